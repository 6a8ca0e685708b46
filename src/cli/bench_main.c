/* `queen bench`: the command line. One table of options says which workload takes which; help is made from it. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/bench.h"
#include "cli/cli.h"

enum workload_bit {
    W_PUSH = 1,
    W_POPACK = 2,
    W_DELIVER = 4,
    W_JOBS = 8,
    W_IDLE = 16,
    W_LANES = 32,
    W_POLLS = 64,
    W_REDIS = 128,
    W_STEP = 256,
    W_KV = 512,
    W_REDIS_STEP = 1024,
    W_REPLAY = 2048,
    W_BULK = 4096,
    W_PEER = W_REDIS | W_REDIS_STEP,
    W_QUEUED = W_PUSH | W_POPACK | W_DELIVER | W_JOBS | W_POLLS | W_STEP,
    W_LOAD = W_QUEUED | W_KV,
    W_OWN = W_IDLE | W_LANES | W_REPLAY | W_BULK,
    W_ALL = 8191,
};

enum option_id {
    O_HELP = 1000,
    O_JSON,
    O_HOST,
    O_PORT,
    O_PID,
    O_QUEUE,
    O_GROUP,
    O_CONNS,
    O_CONSUMERS,
    O_PUSHERS,
    O_THREADS,
    O_LANES,
    O_BATCH,
    O_SIZE,
    O_PARTITIONS,
    O_COUNT,
    O_DURATION,
    O_WARMUP,
    O_RATE,
    O_DEDUP,
    O_SPREAD,
    O_NEXT,
    O_KEYS,
    O_TTL,
    O_GET,
    O_SCRIPT,
    O_NO_POP,
    O_NO_ACK,
    O_BINARY,
    O_DATA,
};

static const struct bench_option {
    const char *name;
    enum option_id id;
    const char *value; /* NULL: takes none */
    unsigned workloads;
    const char *help;
} OPTIONS[] = {
    {"help", O_HELP, NULL, W_ALL, "this text"},
    {"json", O_JSON, NULL, W_ALL, "one JSON line instead of a table"},
    {"host", O_HOST, "IPV4", W_LOAD | W_PEER, "the server's address (127.0.0.1)"},
    {"port", O_PORT, "N", W_ALL, "its port (6632; redis 6379; a free one for a broker started here)"},
    {"pid", O_PID, "N", W_LOAD | W_PEER, "its process, for CPU and memory (found by the port)"},
    {"binary", O_BINARY, "FILE", W_LOAD | W_OWN, "the broker to start, with --data (this program)"},
    {"data", O_DATA, "DIR", W_LOAD | W_OWN,
     "start a broker of its own on this folder, empty or missing (idle, lanes, replay, bulk: required)"},
    {"duration", O_DURATION, "S", W_ALL & ~W_LANES, "measured seconds (10; replay: 120, or until nearly all is read)"},
    {"warmup", O_WARMUP, "S", W_LOAD | W_PEER | W_BULK, "seconds before (1; polls 5)"},
    {"threads", O_THREADS, "N", W_LOAD | W_LANES | W_REPLAY | W_PEER | W_BULK, "load threads (1)"},
    {"conns", O_CONNS, "N", W_LOAD | W_LANES | W_REPLAY | W_PEER | W_BULK,
     "connections, one request at a time on each (64; lanes 32; replay 16; polls 20000)"},
    {"workers", O_CONNS, "N", W_STEP | W_REDIS_STEP, "the same: connections that step"},
    {"consumers", O_CONSUMERS, "N", W_DELIVER | W_STEP, "connections that wait in a long poll; step: with --rate (32)"},
    {"pushers", O_PUSHERS, "N", W_POPACK | W_STEP,
     "push on N connections meanwhile instead of filling first (0); step: with --rate (16)"},
    {"lanes", O_LANES, "N", (W_QUEUED & ~W_POLLS) | W_LANES | W_REPLAY | W_PEER | W_BULK,
     "partitions, or streams (200; lanes, bulk 1000000; replay 1000)"},
    {"batch", O_BATCH, "N", W_PUSH | W_POPACK | W_LANES | W_REPLAY | W_PEER | W_STEP | W_KV | W_BULK,
     "messages in a request, ops in a call (1; popack 100; lanes, replay 1000; step, bulk 10)"},
    {"size", O_SIZE, "BYTES", W_LOAD | W_LANES | W_REPLAY | W_PEER | W_BULK,
     "of one payload (256; replay 100); kv: of one value (64)"},
    {"rate", O_RATE, "N", W_PUSH | W_DELIVER | W_JOBS | W_POPACK | W_REDIS | W_STEP | W_KV | W_BULK,
     "messages, steps or calls a second to offer; 0 = as fast as answers come (0; deliver 1000; jobs 500; bulk 10000)"},
    {"dedup", O_DEDUP, "on|off", W_QUEUED | W_REDIS | W_LANES | W_REPLAY | W_BULK,
     "the queue's dedup window, 3600 s or 0 (on)"},
    {"spread", O_SPREAD, NULL, W_PUSH | W_REPLAY, "every item of a batch into another lane; replay: when it fills them"},
    {"count", O_COUNT, "N", W_PUSH | W_POPACK | W_REPLAY | W_STEP | W_REDIS_STEP,
     "messages to fill in first (2000000; push 0; replay 1000000; step: enough for 30,000 steps a second, more where more are "
     "expected)"},
    {"next", O_NEXT, NULL, W_STEP, "the transaction takes the next batch: one call a step"},
    {"keys", O_KEYS, "N", W_STEP | W_KV | W_REDIS_STEP, "different KV keys (20000)"},
    {"ttl", O_TTL, "S", W_KV, "keys live so long (for ever)"},
    {"get", O_GET, NULL, W_KV, "read instead of write; all keys are written first"},
    {"script", O_SCRIPT, "FILE", W_REDIS_STEP, "the step as a Lua script"},
    {"partitions", O_PARTITIONS, "N", W_POPACK | W_LANES | W_REPLAY, "lanes that one pop may claim (1; lanes 64)"},
    {"no-pop", O_NO_POP, NULL, W_LANES, "do not pop: lanes without a group's cursor"},
    {"no-ack", O_NO_ACK, NULL, W_LANES | W_REPLAY, "pop but leave the leases"},
    {"queue", O_QUEUE, "NAME", W_QUEUED | W_LANES, "use and keep this queue (a new one, deleted afterwards)"},
    {"group", O_GROUP, "NAME", W_POPACK | W_DELIVER | W_JOBS | W_LANES | W_REPLAY | W_POLLS | W_STEP | W_BULK,
     "consumer group (bench)"},
};

enum { OPTION_COUNT = sizeof OPTIONS / sizeof OPTIONS[0] };

static const struct workload {
    const char *name;
    enum workload_bit bit;
    int (*run)(struct bench *b);
    const char *help;
} WORKLOADS[] = {
    {"push", W_PUSH, bench_push, "push messages, alone or in batches"},
    {"popack", W_POPACK, bench_popack, "pop and ack messages that were filled in"},
    {"deliver", W_DELIVER, bench_deliver, "time from a push to its delivery to a waiting long poll"},
    {"jobs", W_JOBS, bench_jobs, "jobs at a rate: push, pop and ack, one message each"},
    {"polls", W_POLLS, bench_polls, "many parked long polls: memory and CPU at rest, then wake them all"},
    {"idle", W_IDLE, bench_idle, "start a broker on an empty folder: time to ready, memory and CPU at rest"},
    {"lanes", W_LANES, bench_lanes, "start a broker, one message into each of many lanes, kill it, start it again"},
    {"replay", W_REPLAY, bench_replay, "start a broker, fill it, start it again, and read everything from disk by a new group"},
    {"bulk", W_BULK, bench_bulk, "what others notice of a seek, a group's delete and a queue's delete over many lanes"},
    {"step", W_STEP, bench_step, "pop a batch, then one transaction: acks, outputs, one KV put, one once marker"},
    {"kv", W_KV, bench_kv, "KV puts or gets, alone or several a call"},
    {"redis", W_REDIS, bench_redis, "the same pushes to Redis streams, for comparison"},
    {"redis-step", W_REDIS_STEP, bench_redis_step, "the same step as one Lua script in Redis, for comparison"},
};

enum { WORKLOAD_COUNT = sizeof WORKLOADS / sizeof WORKLOADS[0] };

static void help_print(const struct workload *w)
{
    if (w == NULL) {
        puts("Usage: queen bench WORKLOAD [options]\n\nThe load generator. Workloads (`queen bench WORKLOAD --help`):\n");
        for (size_t i = 0; i < WORKLOAD_COUNT; i++) printf("  %-10s %s\n", WORKLOADS[i].name, WORKLOADS[i].help);
        puts("\nLatencies under --rate count from the moment a request was due, not from when it was sent.\n"
             "CPU is user and system time from /proc; other_cores is what neither broker nor client used.\n"
             "Exit code: 0 measured, 1 wrong command line, 4 refused or wrong answers, 5 no server.");
        return;
    }
    printf("Usage: queen bench %s [options]\n\n%s.\n\n", w->name, w->help);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct bench_option *o = &OPTIONS[i];
        if (!(o->workloads & (unsigned)w->bit)) continue;
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->value == NULL ? "" : " ", o->value == NULL ? "" : o->value);
        printf("  %-20s %s\n", left, o->help);
    }
}

static void defaults_set(struct bench_options *o, enum workload_bit w)
{
    *o = (struct bench_options){
        .host = "127.0.0.1",
        .port = 0,
        .group = "bench",
        .conns = w == W_POLLS    ? 20000
                 : w == W_LANES  ? 32
                 : w == W_REPLAY ? 16
                                 : 64,
        .consumers = 32,
        .threads = 1,
        .lanes = w & (W_LANES | W_BULK) ? 1000000
                 : w == W_REPLAY        ? 1000
                                        : 200,
        .pushers = w == W_STEP ? 16 : 0,
        .batch = w == W_POPACK                          ? 100
                 : w & (W_LANES | W_REPLAY)             ? 1000
                 : w & (W_STEP | W_REDIS_STEP | W_BULK) ? 10
                                                        : 1,
        .size = w == W_KV       ? 64
                : w == W_REPLAY ? 100
                                : 256,
        .keys = 20000,
        .partitions = w == W_LANES ? 64 : 1,
        .count = w == W_POPACK   ? 2000000
                 : w == W_REPLAY ? 1000000
                                 : 0,
        .duration_s = w == W_REPLAY ? 120 : 10,
        .warmup_s = w == W_POLLS    ? 5
                    : w == W_REPLAY ? 0
                                    : 1,
        .rate = w == W_DELIVER ? 1000
                : w == W_BULK  ? 10000
                : w == W_JOBS  ? 500
                               : 0,
        .dedup = true,
        .pop = true,
        .ack = true,
    };
}

static bool whole_read(const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno == 0 && end != text && *end == 0 && text[0] != '-' && v >= least && v <= most) {
        *out = v;
        return true;
    }
    fprintf(stderr, "queen bench: --%s takes a whole number from %llu to %llu, not %s\n", name, (unsigned long long)least,
            (unsigned long long)most, text);
    return false;
}

static bool seconds_read(const char *name, const char *text, double most, double *out)
{
    char *end = NULL;
    double v = strtod(text, &end);
    if (end != text && *end == 0 && v >= 0 && v <= most) {
        *out = v;
        return true;
    }
    fprintf(stderr, "queen bench: --%s takes a number from 0 to %.0f, not %s\n", name, most, text);
    return false;
}

/* Names go into paths and JSON as they are. */
static bool name_read(const char *name, const char *text, const char **out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t n = strspn(text, plain);
    if (n > 0 && n <= 100 && text[n] == 0) {
        *out = text;
        return true;
    }
    fprintf(stderr, "queen bench: --%s takes 1 to 100 letters, digits and -_. , not %s\n", name, text);
    return false;
}

static bool numbers_set(struct bench_options *o, const struct bench_option *opt, const char *text)
{
    uint32_t *place = NULL;
    uint64_t most = 0;
    uint64_t least = 1;
    switch (opt->id) {
    case O_CONNS:
        place = &o->conns, most = LOAD_CONNS_MAX;
        break;
    case O_CONSUMERS:
        place = &o->consumers, most = LOAD_CONNS_MAX;
        break;
    case O_PUSHERS:
        place = &o->pushers, most = LOAD_CONNS_MAX, least = 0;
        break;
    case O_THREADS:
        place = &o->threads, most = LOAD_THREADS_MAX;
        break;
    case O_LANES:
        place = &o->lanes, most = BENCH_LANES_MAX - 1;
        break;
    case O_BATCH:
        place = &o->batch, most = BENCH_BATCH_MAX;
        break;
    case O_SIZE:
        place = &o->size, most = BENCH_SIZE_MAX, least = BENCH_SIZE_MIN;
        break;
    case O_KEYS:
        place = &o->keys, most = BENCH_LANES_MAX - 1;
        break;
    case O_TTL:
        place = &o->ttl_s, most = 366 * 86400;
        break;
    case O_PARTITIONS:
        place = &o->partitions, most = 64;
        break;
    default:
        must(!"a number option");
    }
    uint64_t v;
    if (!whole_read(opt->name, text, least, most, &v)) return false;
    *place = (uint32_t)v;
    return true;
}

static bool option_set(struct bench_options *o, const struct bench_option *opt, const char *text)
{
    uint64_t v = 0;
    switch (opt->id) {
    case O_JSON:
        o->json = true;
        return true;
    case O_SPREAD:
        o->spread = true;
        return true;
    case O_NEXT:
        o->next = true;
        return true;
    case O_GET:
        o->get = true;
        return true;
    case O_SCRIPT:
        o->script = text;
        return true;
    case O_NO_POP:
        o->pop = false;
        return true;
    case O_NO_ACK:
        o->ack = false;
        return true;
    case O_HOST:
        o->host = text;
        return true;
    case O_BINARY:
        o->binary = text;
        return true;
    case O_DATA:
        o->data = text;
        return true;
    case O_QUEUE:
        return name_read(opt->name, text, &o->queue);
    case O_GROUP:
        return name_read(opt->name, text, &o->group);
    case O_DURATION:
        return seconds_read(opt->name, text, 86400, &o->duration_s);
    case O_WARMUP:
        return seconds_read(opt->name, text, 3600, &o->warmup_s);
    case O_RATE:
        return seconds_read(opt->name, text, 1e8, &o->rate);
    case O_COUNT:
        return whole_read(opt->name, text, 1, 1000000000, &o->count);
    case O_PORT:
        if (!whole_read(opt->name, text, 1, 65535, &v)) return false;
        o->port = (uint16_t)v;
        return true;
    case O_PID:
        if (!whole_read(opt->name, text, 1, INT32_MAX, &v)) return false;
        o->pid = (int)v;
        return true;
    case O_DEDUP:
        o->dedup = strcmp(text, "on") == 0;
        if (o->dedup || strcmp(text, "off") == 0) return true;
        fprintf(stderr, "queen bench: --dedup takes on or off, not %s\n", text);
        return false;
    default:
        return numbers_set(o, opt, text);
    }
}

/* The entry of an option; of two with one id the one that the workload takes. */
static const struct bench_option *option_find(int id, unsigned workload)
{
    const struct bench_option *found = NULL;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct bench_option *opt = &OPTIONS[i];
        if ((int)opt->id == id && (found == NULL || (opt->workloads & workload))) found = opt;
    }
    return found;
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct bench_options *o, const struct workload *w, int argc, char **argv)
{
    struct option known[OPTION_COUNT + 1] = {0};
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        known[i] = (struct option){OPTIONS[i].name, OPTIONS[i].value != NULL, NULL, (int)OPTIONS[i].id};
    }
    defaults_set(o, w->bit);
    optind = 1;
    for (int id; (id = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        if (id == O_HELP || id == 'h') {
            help_print(w);
            return BENCH_OK;
        }
        if (id == '?') return BENCH_USAGE;
        const struct bench_option *opt = option_find(id, w->bit);
        if (!(opt->workloads & (unsigned)w->bit)) {
            fprintf(stderr, "queen bench %s does not take --%s; see `queen bench %s --help`\n", w->name, opt->name, w->name);
            return BENCH_USAGE;
        }
        if (!option_set(o, opt, optarg)) return BENCH_USAGE;
    }
    if (optind < argc) {
        fprintf(stderr, "queen bench %s: unexpected argument %s\n", w->name, argv[optind]);
        return BENCH_USAGE;
    }
    if ((w->bit & W_OWN) && o->data == NULL) {
        fprintf(stderr, "queen bench %s starts a broker of its own: say where with --data DIR\n", w->name);
        return BENCH_USAGE;
    }
    if (w->bit == W_REDIS_STEP && o->script == NULL) {
        fprintf(stderr, "queen bench redis-step: which script? --script FILE\n");
        return BENCH_USAGE;
    }
    if (o->batch > BENCH_KV_OPS_MAX && w->bit == W_KV) {
        fprintf(stderr, "queen bench kv: --batch takes at most %d ops a call\n", BENCH_KV_OPS_MAX);
        return BENCH_USAGE;
    }
    if (o->port == 0) o->port = o->data != NULL ? proc_port_free() : w->bit & W_PEER ? 6379 : 6632;
    return -1;
}

static void heading_add(struct bench *b, const struct workload *w)
{
    const struct bench_options *o = &b->options;
    struct report *r = &b->report;
    report_text(r, "bench", w->name);
    if (w->bit & (W_LOAD | W_LANES | W_REPLAY | W_PEER | W_BULK)) {
        report_count(r, "conns", o->conns);
        if (w->bit == W_KV) {
            report_text(r, "op", o->get ? "get" : "put");
            report_count(r, "keys", o->keys);
        } else {
            report_count(r, "lanes", o->lanes);
        }
        report_count(r, "batch", o->batch);
        report_count(r, "size", o->size);
        if (w->bit != W_KV) report_text(r, "dedup", o->dedup ? "on" : "off");
        report_number(r, "rate", o->rate, 0);
    }
}

/* Runs a workload, on a broker of its own when a data folder is given (idle and lanes start theirs themselves). */
static int workload_run(struct bench *b, const struct workload *w)
{
    const struct bench_options *o = &b->options;
    struct proc_broker broker = {.binary = o->binary, .data = o->data, .port = o->port};
    bool own = o->data != NULL && !(w->bit & W_OWN);
    if (own && proc_broker_start(&broker, 30) < 0) return BENCH_UNREACHABLE;
    int rc = bench_open(b);
    if (rc == BENCH_OK) rc = w->run(b);
    client_close(&b->client);
    if (!own) return rc;
    int code = proc_broker_stop(&broker, 30);
    if (code != 0) fprintf(stderr, "queen bench: the broker did not stop cleanly (code %d), see %s\n", code, broker.log_path);
    return rc == BENCH_OK && code != 0 ? BENCH_REFUSED : rc;
}

int cli_bench_main(int argc, char **argv)
{
    static char self[4096];
    static struct bench bench;
    const struct workload *w = NULL;
    for (size_t i = 0; argc > 1 && i < WORKLOAD_COUNT; i++) {
        if (strcmp(argv[1], WORKLOADS[i].name) == 0) w = &WORKLOADS[i];
    }
    if (w == NULL) {
        bool asked = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
        if (argc > 1 && !asked) fprintf(stderr, "queen bench: there is no workload %s\n\n", argv[1]);
        if (!asked) dup2(2, 1);
        help_print(NULL);
        return asked ? BENCH_OK : BENCH_USAGE;
    }
    int rc = options_read(&bench.options, w, argc - 1, argv + 1);
    if (rc >= 0) return rc;
    if (bench.options.binary == NULL) {
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        bench.options.binary = n > 0 ? self : "queen";
    }
    heading_add(&bench, w);
    rc = workload_run(&bench, w);
    if (rc == BENCH_OK || rc == BENCH_REFUSED) report_print(&bench.report, bench.options.json);
    return rc;
}
