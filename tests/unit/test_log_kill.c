/* A process that writes a log is killed (SIGKILL), at random moments and, in a build with crash points, at each named one. Whatever it
 * said was durable must be there, with its bytes, every time. */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "log_test.h"

static const char *const points[] = {"log-staged",          "log-written", "log-synced", "log-roll",
                                     "log-segment-created", "trim-before", "trim-after"};

static void child_synced(void *ctx)
{
    (void)ctx;
}

static void child_failed(void *ctx, const char *what)
{
    (void)ctx;
    fprintf(stderr, "%s\n", what);
    _exit(9);
}

static uint64_t entry_pos[8192];

static void child_say(int report, uint64_t index, uint64_t keep, uint64_t scan)
{
    uint64_t message[3] = {index, keep, scan};
    if (write(report, message, sizeof message) != sizeof message) _exit(7);
}

/* Reports {index, scan position} of what is durable; then appends, cuts back now and then, and trims. Never returns. */
static void child_run(struct fixture *f, int report, uint64_t seed)
{
    f->o.synced = child_synced;
    f->o.failed = child_failed;
    fixture_open(f);
    uint64_t index = log_synced_index(f->log), first = f->o.first_index;
    for (uint64_t i = f->seen.first; f->seen.last != 0 && i <= f->seen.last; i++)
        entry_pos[i % 8192] = f->seen.records[i - f->seen.first].pos;
    child_say(report, index, first, f->o.first_pos);
    for (int n = 0;; n++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t len = (seed >> 33) % 40 == 0 ? (seed >> 20) % 1500000 : (seed >> 40) % 9000;
        index++;
        entry_pos[index % 8192] = put(f, index, 1, len);
        if (n % 3 == 0) log_flush(f->log);
        if (n % 16 == 15) {
            wait_synced(f);
            if (log_synced_index(f->log) != index) _exit(8);
            uint64_t keep = index > 100 ? index - 100 : first;
            if (keep < first) keep = first;
            uint64_t scan = keep == first ? f->o.first_pos : entry_pos[keep % 8192] - 48;
            child_say(report, index, keep, scan);
            log_trim(f->log, scan, NULL, NULL);
        }
    }
}

static void kill_round(struct fixture *f, const char *point, uint64_t round, uint64_t *durable)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(ends[0]);
        char at[64];
        snprintf(at, sizeof at, "%s:%d", point, (int)(round % 5 + 1));
        setenv("QUEEN_CRASH_AT", at, 1);
        child_run(f, ends[1], round * 7919 + 1);
    }
    close(ends[1]);
    uint64_t message[3];
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    int64_t until = clock_mono_us() + DEADLINE_US; /* to begin with: until it is ready */
    bool killed = false, ready = false;
    for (;;) {
        int64_t left = until - clock_mono_us();
        if (!killed && left <= 0) {
            kill(pid, SIGKILL);
            killed = true;
        }
        if (poll(&p, 1, killed ? -1 : (int)(left / 1000) + 1) <= 0) continue;
        ssize_t n = read(ends[0], message, sizeof message);
        if (n == 0) break;
        assert_int_equal(n, sizeof message);
        *durable = message[0];
        f->o.first_index = message[1];
        f->o.first_pos = message[2];
        if (!ready) until = clock_mono_us() + (int64_t)(round * 7919 % 97) * 1000 + 5000;
        ready = true;
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(ends[0]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail_msg("round %d ended with status %x", (int)round, status);
}

static void killed_at_any_moment_nothing_durable_is_lost(void **state)
{
    (void)state;
    struct fixture f;
    fixture_new(&f, MIB);
    uint64_t durable = 0, last = 0;
    for (uint64_t round = 0; round < 42; round++) {
        kill_round(&f, points[round % 7], round, &durable);
        fixture_open(&f);
        uint64_t now = log_synced_index(f.log);
        assert_true(now >= durable);
        assert_true(f.seen.last == now || (f.seen.last == 0 && now < f.o.first_index));
        check_readable(&f);
        last = now;
        durable = now; /* what the open has reported is durable */
        fixture_close(&f);
    }
    assert_true(last > 40);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_any_moment_nothing_durable_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
