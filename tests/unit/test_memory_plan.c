/* The division of a node's memory: it adds up whatever was asked for, grows with the total, and what does not fit is refused with what
 * would; and the limit that the system sets is found in its files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/memory_limit.h"
#include "broker/memory_plan.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static uint64_t sum_of(const struct memory_plan *p)
{
    return p->base + p->margin + p->connections + p->bodies + p->answers + p->log + p->cold_cache + p->cold_reads + p->store +
           p->peers + p->unstored + p->runs + p->timers + p->lanes + p->dedup + p->kv_values;
}

static bool makes(struct memory_plan *p, struct memory_wish w)
{
    struct buf error = {0};
    bool good = memory_plan_make(p, &w, &error);
    assert_true(good == (error.len == 0));
    buf_free(&error);
    return good;
}

static void refuses(struct memory_wish w, const char *first, const char *second)
{
    struct memory_plan p;
    struct buf error = {0};
    assert_false(memory_plan_make(&p, &w, &error));
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, first));
    assert_non_null(strstr(error.at, second));
    buf_free(&error);
}

static void the_shares_are_the_total(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 7, 64};
    for (size_t i = 0; i < 4; i++) {
        for (uint64_t total = memory_plan_min(groups[i], 8, i % 2 == 0); total < 200 * GIB; total = total / 2 * 3 + 12345) {
            struct memory_plan p, g;
            assert_true(makes(
                &p, (struct memory_wish){.total = total, .groups = groups[i], .edge_threads = 8, .clustered = i % 2 == 0}));
            assert_true(sum_of(&p) <= total && sum_of(&p) > total - 1024);
            assert_true(p.lanes > 0 && p.dedup > 0 && p.kv_values > 0 && p.runs > 0 && p.timers > 0);
            assert_int_equal(p.log, p.log_cache + p.log_unsynced + 16 * MIB * groups[i]);
            assert_int_equal(p.store, p.store_buffers + p.store_cache);
            assert_true(p.bodies >= 3 * p.body_bytes_max && p.bodies >= 3 * p.admit_bytes_max);
            memory_plan_group(&g, &p, groups[i]);
            assert_true(g.lanes * groups[i] <= p.lanes && g.dedup * groups[i] <= p.dedup && g.log * groups[i] <= p.log);
            assert_true(g.log_unsynced >= 4 * MIB && g.store_buffers >= 4 * MIB && g.cold_cache >= MIB);
            assert_int_equal(g.admit_bytes_max, p.admit_bytes_max);
            assert_true((p.peers > 0) == (i % 2 == 0) && 4 * p.peer_backlog <= p.peers);
        }
    }
}

static void more_memory_is_never_less_of_anything(void **state)
{
    (void)state;
    struct memory_plan before = {0}, p;
    for (uint64_t total = memory_plan_min(1, 2, false); total < 64 * GIB; total += total / 9) {
        assert_true(makes(&p, (struct memory_wish){.total = total, .groups = 1, .edge_threads = 2}));
        const uint64_t old[] = {before.connections, before.bodies,   before.answers, before.log,   before.cold_cache,
                                before.cold_reads,  before.store,    before.runs,    before.lanes, before.dedup,
                                before.kv_values,   before.unstored, before.timers};
        const uint64_t now[] = {p.connections, p.bodies, p.answers, p.log,       p.cold_cache, p.cold_reads, p.store,
                                p.runs,        p.lanes,  p.dedup,   p.kv_values, p.unstored,   p.timers};
        for (size_t i = 0; i < sizeof now / sizeof now[0]; i++) assert_true(now[i] >= old[i]);
        before = p;
    }
    /* With plenty the fixed shares are what they need, and the engine has the rest. */
    assert_int_equal(p.log_cache, 512 * MIB);
    assert_int_equal(p.admit_bytes_max, 128 * MIB);
    assert_int_equal(p.body_bytes_max, 64 * MIB);
    assert_true(p.lanes > 16 * GIB);
}

static void what_was_asked_for_is_what_there_is(void **state)
{
    (void)state;
    struct memory_plan p;
    struct memory_wish w = {.total = GIB, .groups = 1, .edge_threads = 2};
    w.log_cache = 100 * MIB;
    w.body_bytes_max = 20 * MIB;
    w.admit_bytes_max = 50 * MIB;
    w.connections_max = 1000;
    assert_true(makes(&p, w));
    assert_int_equal(p.log_cache, 100 * MIB);
    assert_int_equal(p.body_bytes_max, 20 * MIB);
    assert_int_equal(p.admit_bytes_max, 50 * MIB);
    assert_int_equal(p.bodies, 150 * MIB);
    assert_int_equal(p.connections_max, 1000);
    assert_int_equal(p.connections, 1000 * MEMORY_CONNECTION_BYTES);
    assert_true(sum_of(&p) <= GIB);
    w.admit_off = true;
    assert_true(makes(&p, w));
    assert_int_equal(p.admit_bytes_max, 0);
}

static void too_little_is_refused_with_what_is_needed(void **state)
{
    (void)state;
    struct memory_plan p;
    struct memory_wish w = {.total = memory_plan_min(1, 2, false) - 1, .groups = 1, .edge_threads = 2};
    char least[32];
    snprintf(least, sizeof least, "%llu", (unsigned long long)w.total + 1);
    refuses(w, "QUEEN_MEMORY_MAX", least);
    w.total++;
    assert_true(makes(&p, w));
    w.log_cache = 512 * MIB;
    refuses(w, "QUEEN_LOG_CACHE_BYTES=536870912", "at least");
    w.log_cache = 0;
    w.connections_max = 100000;
    refuses(w, "QUEEN_CONNECTIONS_MAX=100000", "at least");
    w.connections_max = 0;
    w.body_bytes_max = 64 * MIB;
    refuses(w, "QUEEN_MAX_BODY_BYTES=67108864", "at least");
}

/* ---- the limit ---------------------------------------------------------------------------------------------------------- */

static char root[64];

static void file_write(const char *path, const char *text)
{
    char at[512];
    for (size_t i = 1; i < strlen(path); i++) {
        if (path[i] != '/') continue;
        snprintf(at, sizeof at, "%s%.*s", root, (int)i, path);
        mkdir(at, 0777);
    }
    snprintf(at, sizeof at, "%s%s", root, path);
    FILE *f = fopen(at, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void root_make(void)
{
    snprintf(root, sizeof root, "/tmp/queen-memory-XXXXXX");
    assert_non_null(mkdtemp(root));
}

static void root_remove(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void the_least_limit_of_the_control_groups_counts(void **state)
{
    (void)state;
    root_make();
    uint64_t machine = memory_limit(root);
    assert_true(machine >= 64 * MIB);
    file_write("/proc/self/cgroup", "0::/a/b\n");
    assert_int_equal(memory_limit(root), machine);
    file_write("/sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(memory_limit(root), machine);
    file_write("/sys/fs/cgroup/a/memory.max", "50000000\n");
    assert_int_equal(memory_limit(root), 50000000);
    file_write("/sys/fs/cgroup/a/b/memory.max", "60000000\n");
    assert_int_equal(memory_limit(root), 50000000);
    file_write("/sys/fs/cgroup/a/b/memory.max", "40000000\n");
    assert_int_equal(memory_limit(root), 40000000);
    file_write("/proc/self/cgroup", "0::/\n");
    file_write("/sys/fs/cgroup/memory.max", "30000000\n");
    assert_int_equal(memory_limit(root), 30000000);
    root_remove();
}

static void version_one_has_its_own_files(void **state)
{
    (void)state;
    root_make();
    file_write("/proc/self/cgroup", "12:cpu,cpuacct:/x\n5:hugetlb,memory:/docker/abc\n0::/\n");
    file_write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "45000000\n"); /* inside: the path is not there */
    assert_int_equal(memory_limit(root), 45000000);
    file_write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(memory_limit(root), 45000000);
    file_write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "35000000\n");
    assert_int_equal(memory_limit(root), 35000000);
    root_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shares_are_the_total),
        cmocka_unit_test(more_memory_is_never_less_of_anything),
        cmocka_unit_test(what_was_asked_for_is_what_there_is),
        cmocka_unit_test(too_little_is_refused_with_what_is_needed),
        cmocka_unit_test(the_least_limit_of_the_control_groups_counts),
        cmocka_unit_test(version_one_has_its_own_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
