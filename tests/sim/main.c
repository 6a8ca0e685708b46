/* Seeds, children, shrinking.
 *
 *   queen_sim [--seed N] [--seeds N] [--jobs N] [--nodes N] [--minutes N] [--alone] [--hours H]
 *             [--schedule FILE] [--log [LEVEL]] [--twice] [--keep-going] [--plant NAME]
 *
 * Every seed is run in a child, so that what killed nodes leave behind is gone with it. A seed that fails is run again with fewer and
 * fewer faults; the smallest schedule that still fails is printed, to be replayed with --schedule. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "faults.h"
#include "sim.h"
#include "work.h"

enum { JOBS_MAX = 64, SETTLE_US = 60000000, DRAIN_MAX_US = 240000000, CHILD_SECONDS_MAX = 120 };

/* What a child tells; shared memory. */
struct report {
    bool done, failed;
    char failure[1024];
    uint64_t trace, events, entries;
    struct work_counts counts;
    int64_t now_us;
    double cpu_s;
};

struct options {
    uint64_t seed, seeds;
    uint32_t jobs, nodes;
    int64_t minutes;
    bool alone, twice, keep_going, shrink;
    double hours;
    const char *schedule, *plant;
    int log_level;
};
static struct options options = {.seed = 1, .seeds = 1, .jobs = 1, .minutes = 10, .log_level = -1, .shrink = true};

/* ---- one run (in the child) ------------------------------------------------------------------------------------------ */

static struct report *report;

void __real__exit(int code) __attribute__((noreturn));

static void report_fill(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    report->trace = sim.trace;
    report->events = sim.event_count;
    report->entries = check_entries();
    report->counts = work_counts;
    report->now_us = sim.now_us;
    report->cpu_s = (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec / 1e6 + (double)u.ru_stime.tv_sec +
                    (double)u.ru_stime.tv_usec / 1e6;
}

static void on_fail(void)
{
    report_fill();
    snprintf(report->failure, sizeof report->failure, "%s", sim.failure);
    report->failed = true;
    if (sim.log != NULL) fflush(sim.log);
    __real__exit(1);
}

static bool wait_for(bool (*condition)(void), int64_t limit_us)
{
    int64_t end_us = sim.now_us + limit_us;
    while (!condition()) {
        if (sim.now_us >= end_us) return false;
        sim_run_until(sim.now_us + 100000);
    }
    return true;
}

static bool all_up(void)
{
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        const struct sim_node *n = &sim.nodes[i];
        if (n->boots > 0 && !n->removed && (!n->up || n->broker == NULL)) return false;
    }
    return sim_leader() != NULL;
}

/* Timers go off by the wall clocks: steps back may have put some far away. */
static void clocks_mend(void)
{
    int64_t most_us = 0;
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        int64_t ahead_us = sim_wall_of(&sim.nodes[i], sim.now_us);
        if (ahead_us > most_us) most_us = ahead_us;
    }
    for (uint32_t i = 1; i <= SIM_NODES_MAX; i++) {
        struct sim_node *n = &sim.nodes[i];
        sim_clock_drift(n, 0);
        sim_clock_step(n, most_us - sim_wall_of(n, sim.now_us) + 4 * 3600 * INT64_C(1000000));
    }
}

static void run(const struct schedule *s, uint64_t seed)
{
    sim_start(seed);
    sim.on_fail = on_fail;
    sim_cluster_start(s->nodes, s->alone);
    queue_work_start();
    step_work_start();
    kv_work_start();
    timer_work_start();
    lock_work_start();
    admin_work_start();
    schedule_start(s);
    sim_run_until(s->minutes * SIM_MINUTE_US);
    sim_say("-- calm");
    faults_heal();
    clocks_mend();
    sim.calm = true;
    work_stopping = true;
    if (!wait_for(members_idle, 2 * SETTLE_US))
        sim_fail("a change of the members is not made two minutes after all faults are over");
    if (!wait_for(all_up, SETTLE_US)) sim_fail("no leader, or a node does not come up, a minute after all faults are over");
    if (!wait_for(work_idle, SETTLE_US)) sim_fail("a call is not answered a minute after all faults are over");
    work_is_calm = true;
    queue_work_drain_start();
    if (!wait_for(queue_work_drained, DRAIN_MAX_US)) sim_fail("the queues are not empty after minutes of draining");
    work_stopping = true;
    sim_run_until(sim.now_us + 20000000);
    if (!wait_for(check_states, SETTLE_US)) sim_fail("the nodes do not come to the same entry");
    queue_work_check();
    step_work_check();
    kv_work_check();
    timer_work_check();
    report_fill();
    report->done = true;
}

/* ---- children -------------------------------------------------------------------------------------------------------- */

static struct report *report_new(void)
{
    struct report *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(r != MAP_FAILED);
    return r;
}

static pid_t child_start(const struct schedule *s, uint64_t seed, struct report *r, bool log)
{
    fflush(stdout);
    fflush(stderr);
    memset(r, 0, sizeof *r);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid != 0) return pid;
    report = r;
    /* By its own time, not the clock's: the machine may be busy. */
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = CHILD_SECONDS_MAX}, NULL);
    if (log) {
        sim.log = stdout;
        sim.log_level = options.log_level;
    }
    run(s, seed);
    if (sim.log != NULL) fflush(sim.log);
    __real__exit(0);
}

static void child_judge(struct report *r, int status)
{
    if (r->failed || (WIFEXITED(status) && WEXITSTATUS(status) == 0 && r->done)) return;
    r->failed = true;
    if (WIFSIGNALED(status)) {
        snprintf(r->failure, sizeof r->failure, "the simulator's process ends by signal %d (%s)", WTERMSIG(status),
                 WTERMSIG(status) == SIGPROF ? "it does not come to its end" : strsignal(WTERMSIG(status)));
    } else {
        snprintf(r->failure, sizeof r->failure, "the simulator's process ends with %d", status);
    }
}

static void child_run(const struct schedule *s, uint64_t seed, struct report *r, bool log)
{
    int status;
    pid_t pid = child_start(s, seed, r, log);
    while (waitpid(pid, &status, 0) < 0) must(errno == EINTR);
    child_judge(r, status);
}

/* ---- shrinking ------------------------------------------------------------------------------------------------------- */

static uint32_t schedule_on(const struct schedule *s)
{
    uint32_t on = 0;
    for (uint32_t i = 0; i < s->count; i++) on += !s->at[i].off;
    return on;
}

/* Leaves out ever smaller parts, as long as what is left still fails (in whatever way). */
static void shrink(struct schedule *s, uint64_t seed)
{
    struct report *r = report_new();
    uint32_t part = (schedule_on(s) + 1) / 2, runs = 0;
    while (part >= 1 && runs < 150) {
        bool any = false;
        for (uint32_t from = 0; from < s->count && runs < 150;) {
            struct schedule less = *s;
            uint32_t off = 0;
            for (; from < s->count && off < part; from++) {
                if (less.at[from].off) continue;
                less.at[from].off = true;
                off++;
            }
            if (off == 0) break;
            runs++;
            child_run(&less, seed, r, false);
            if (!r->failed) continue;
            *s = less;
            any = true;
        }
        if (part == 1 && !any) break;
        if (part > 1) part = (part + 1) / 2;
    }
    munmap(r, sizeof *r);
}

static void failure_print(const struct schedule *s, uint64_t seed, const struct report *r)
{
    printf("seed %llu FAILED: %s\n", (unsigned long long)seed, r->failure);
    struct schedule less = *s;
    if (options.shrink && schedule_on(&less) > 0) shrink(&less, seed);
    struct report *again = report_new();
    child_run(&less, seed, again, false);
    printf("with %u of %u faults: %s\n", schedule_on(&less), schedule_on(s),
           again->failed ? again->failure : "(does not fail)");
    printf("# replay: --seed %llu --schedule FILE, with these lines in FILE:\n", (unsigned long long)seed);
    schedule_print(&less, stdout);
    fflush(stdout);
    munmap(again, sizeof *again);
}

/* ---- all seeds ------------------------------------------------------------------------------------------------------- */

static void schedule_of(struct schedule *s, uint64_t seed)
{
    if (options.schedule != NULL) {
        FILE *f = fopen(options.schedule, "r");
        if (f == NULL || !schedule_read(s, f)) {
            fprintf(stderr, "queen_sim: cannot read the schedule %s\n", options.schedule);
            exit(2);
        }
        fclose(f);
        return;
    }
    struct rng r = rng_for(seed, "shape", 0);
    uint32_t nodes = options.nodes != 0 ? options.nodes : rng_chance(&r, 300) ? 5 : 3;
    schedule_make(s, seed, options.alone ? 1 : nodes, options.alone, options.minutes);
}

struct job {
    pid_t pid;
    uint64_t seed;
    struct report *report;
    struct schedule schedule;
    bool second;
    uint64_t trace;
};

struct totals {
    uint64_t seeds, failed, events, entries;
    struct work_counts counts;
    double minutes, cpu_s, cpu_max_s;
};

static void totals_add(struct totals *t, const struct report *r)
{
    uint64_t *to = (uint64_t *)&t->counts;
    const uint64_t *from = (const uint64_t *)&r->counts;
    for (size_t i = 0; i < sizeof t->counts / sizeof to[0]; i++) to[i] += from[i];
    t->seeds++;
    t->events += r->events;
    t->entries += r->entries;
    t->minutes += (double)r->now_us / 60e6;
    t->cpu_s += r->cpu_s;
    if (r->cpu_s > t->cpu_max_s) t->cpu_max_s = r->cpu_s;
}

static void job_judge(struct job *j, int status, struct totals *t)
{
    child_judge(j->report, status);
    totals_add(t, j->report);
    if (j->second && !j->report->failed && j->report->trace != j->trace) {
        j->report->failed = true;
        snprintf(j->report->failure, sizeof j->report->failure, "two runs of the seed differ (traces %llx and %llx)",
                 (unsigned long long)j->trace, (unsigned long long)j->report->trace);
    }
    if (!j->report->failed) return;
    t->failed++;
    failure_print(&j->schedule, j->seed, j->report);
}

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void seeds_run(struct totals *t)
{
    static struct job jobs[JOBS_MAX];
    uint64_t next = options.seed, left = options.seeds;
    double until_s = options.hours > 0 ? wall_s() + options.hours * 3600 : 0;
    uint32_t running = 0;
    for (;;) {
        bool more = (options.hours > 0 ? wall_s() < until_s : left > 0) && (t->failed == 0 || options.keep_going);
        for (uint32_t i = 0; more && i < options.jobs; i++) {
            struct job *j = &jobs[i];
            if (j->pid != 0) continue;
            if (j->report == NULL) j->report = report_new();
            j->seed = next++;
            j->second = false;
            schedule_of(&j->schedule, j->seed);
            j->pid = child_start(&j->schedule, j->seed, j->report, options.log_level >= 0);
            running++;
            left--;
            more = options.hours > 0 || left > 0;
        }
        if (running == 0) return;
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        for (uint32_t i = 0; pid > 0 && i < options.jobs; i++) {
            struct job *j = &jobs[i];
            if (j->pid != pid) continue;
            j->pid = 0;
            running--;
            bool again = options.twice && !j->second && WIFEXITED(status) && WEXITSTATUS(status) == 0;
            if (again) {
                j->trace = j->report->trace;
                j->second = true;
                j->pid = child_start(&j->schedule, j->seed, j->report, false);
                running++;
            } else {
                job_judge(j, status, t);
            }
        }
    }
}

static void totals_print(const struct totals *t, double took_s)
{
    const struct work_counts *c = &t->counts;
    printf("%llu seeds, %llu failed: %.0f minutes of cluster time, %.1f s (%.1f s of CPU, at most %.2f s a seed)\n",
           (unsigned long long)t->seeds, (unsigned long long)t->failed, t->minutes, took_s, t->cpu_s, t->cpu_max_s);
    printf(
        "counts of sim: %llu events, %llu entries, %llu calls (%llu answered, %llu refused, %llu unknown), %llu pushed, %llu "
        "delivered, %llu acked, %llu steps, %llu kv (%llu reads), %llu timers, %llu locks, %llu dead letters, %llu payloads "
        "copied to archives\n",
        (unsigned long long)t->events, (unsigned long long)t->entries, (unsigned long long)c->ops, (unsigned long long)c->ok,
        (unsigned long long)c->failed, (unsigned long long)c->unknown, (unsigned long long)c->pushed,
        (unsigned long long)c->delivered, (unsigned long long)c->acked, (unsigned long long)c->steps, (unsigned long long)c->kv,
        (unsigned long long)c->reads, (unsigned long long)c->timers, (unsigned long long)c->locks, (unsigned long long)c->dead,
        (unsigned long long)c->reclaimed);
}

static void options_read(int argc, char **argv)
{
    static const struct option names[] = {{"seed", required_argument, NULL, 's'},    {"seeds", required_argument, NULL, 'n'},
                                          {"jobs", required_argument, NULL, 'j'},    {"nodes", required_argument, NULL, 'N'},
                                          {"minutes", required_argument, NULL, 'm'}, {"alone", no_argument, NULL, 'a'},
                                          {"hours", required_argument, NULL, 'h'},   {"schedule", required_argument, NULL, 'f'},
                                          {"log", optional_argument, NULL, 'l'},     {"twice", no_argument, NULL, 't'},
                                          {"keep-going", no_argument, NULL, 'k'},    {"no-shrink", no_argument, NULL, 'S'},
                                          {"plant", required_argument, NULL, 'p'},   {NULL, 0, NULL, 0}};
    int o;
    while ((o = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (o) {
        case 's':
            options.seed = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            options.seeds = strtoull(optarg, NULL, 10);
            break;
        case 'j':
            options.jobs = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'N':
            options.nodes = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'm':
            options.minutes = strtoll(optarg, NULL, 10);
            break;
        case 'a':
            options.alone = true;
            break;
        case 'h':
            options.hours = strtod(optarg, NULL);
            break;
        case 'f':
            options.schedule = optarg;
            break;
        case 'l':
            options.log_level = optarg == NULL ? 2 : atoi(optarg);
            break;
        case 't':
            options.twice = true;
            break;
        case 'k':
            options.keep_going = true;
            break;
        case 'S':
            options.shrink = false;
            break;
        case 'p':
            options.plant = optarg;
            setenv("QUEEN_PLANT", optarg, 1);
            break;
        default:
            exit(2);
        }
    }
    if (options.jobs < 1) options.jobs = 1;
    if (options.jobs > JOBS_MAX) options.jobs = JOBS_MAX;
    if (options.minutes < 3) options.minutes = 3;
}

int main(int argc, char **argv)
{
    struct totals t = {0};
    options_read(argc, argv);
    double began_s = wall_s();
    seeds_run(&t);
    totals_print(&t, wall_s() - began_s);
    return t.failed == 0 ? 0 : 1;
}
