/* `queen pop`: messages as JSON lines. */
#include <stdio.h>

#include "cli/verb.h"

struct pop {
    struct verb verb;
    const char *queue;
    const char *partition;
    const char *group;
    const char *from;
    uint64_t batch, partitions, timeout_ms, lease_s;
    bool wait, auto_ack, follow;
    struct buf path;
    struct buf scratch;
};

static const char HELP[] =
    "Usage: queen pop QUEUE [options]\n"
    "\n"
    "Pops messages and prints each as one JSON line: "
    "{\"id\",\"transactionId\",\"data\",\"partition\",\"partitionId\",\"leaseId\",\n"
    "\"consumerGroup\",\"deliveryAttempt\",\"offset\",...}; `data` is the payload byte for byte. They are leased: ack them "
    "with\n"
    "`queen ack`, which takes these lines, before the lease ends, or they are delivered again. Nothing there: prints nothing.\n"
    "\n"
    "  --partition NAME     only this lane (any lane)\n"
    "  --group NAME         consumer group: each group gets every message; without one all callers share the queue\n"
    "  --batch N            at most so many messages a pop, 1 to 10000 (1)\n"
    "  --partitions N       at most so many lanes a pop, 1 to 64 (1)\n"
    "  --wait               wait for a message\n"
    "  --timeout MS         how long, 1 to 60000 (30000)\n"
    "  --lease S            seconds the lease lasts (the queue's leaseTime)\n"
    "  --auto-ack           no lease: delivered is done (at most once)\n"
    "  --from all|new|TIME  where a new group begins: at the oldest message, at what comes from now on, or at a time like\n"
    "                       2031-02-03T04:05:06Z (all). Kept with the group at its first pop\n"
    "  --follow             go on for ever, waiting; prints at once\n"
    "  --server URL         http://HOST:PORT (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often a call is made again when the server is busy or went away (10)\n"
    "\n"
    "Exit code: 0 done, also when there was nothing; 1 wrong command line; 4 refused; 5 the server cannot be reached.\n"
    "\n"
    "  queen pop orders --group billing --follow | ./work | queen ack\n";

static void query_text(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, "&%s=", name);
    client_escape(b, slice_of(value));
}

static void path_make(struct pop *p)
{
    struct buf *b = &p->path;
    buf_text(b, "/api/v1/pop/queue/");
    client_escape(b, slice_of(p->queue));
    if (p->partition != NULL) {
        buf_text(b, "/partition/");
        client_escape(b, slice_of(p->partition));
    }
    buf_printf(b, "?batch=%llu&partitions=%llu&wait=%s&timeout=%llu&leaseSeconds=%llu&autoAck=%s", (unsigned long long)p->batch,
               (unsigned long long)p->partitions, p->wait ? "true" : "false", (unsigned long long)p->timeout_ms,
               (unsigned long long)p->lease_s, p->auto_ack ? "true" : "false");
    if (p->group == NULL) return;
    query_text(b, "consumerGroup", p->group);
    if (p->from == NULL || strcmp(p->from, "all") == 0) {
        buf_text(b, "&subscriptionMode=all");
    } else if (strcmp(p->from, "new") == 0) {
        buf_text(b, "&subscriptionMode=new");
    } else {
        query_text(b, "subscriptionFrom", p->from);
    }
}

static bool message_each(void *arg, struct slice element)
{
    struct pop *p = arg;
    verb_line(&p->scratch, element);
    return true;
}

/* One pop. False: the verb cannot go on. */
static bool pop_once(struct pop *p)
{
    static const char *const names[1] = {"messages"};
    int timeout_ms = (int)p->timeout_ms + 10000;
    if (!verb_send(&p->verb, "GET", buf_view(&p->path), slice_of(""), timeout_ms, 200, 204)) return false;
    if (p->verb.client.status == 204) return true;
    struct slice whole, messages;
    if (!view_whole(p->verb.client.body, &whole) || !view_members(whole, names, &messages, 1) || messages.at == NULL ||
        !view_elements(messages, message_each, p)) {
        verb_say(&p->verb, "the answer has no messages in it");
        verb_fail(&p->verb, CLI_REFUSED);
        return false;
    }
    return verb_flush(&p->verb);
}

static const struct option OPTIONS[] = {
    {"help", no_argument, NULL, 'h'},
    {"partition", required_argument, NULL, 'p'},
    {"group", required_argument, NULL, 'g'},
    {"batch", required_argument, NULL, 'b'},
    {"partitions", required_argument, NULL, 'n'},
    {"wait", no_argument, NULL, 'w'},
    {"timeout", required_argument, NULL, 'm'},
    {"lease", required_argument, NULL, 'l'},
    {"auto-ack", no_argument, NULL, 'a'},
    {"from", required_argument, NULL, 'f'},
    {"follow", no_argument, NULL, 'F'},
    {"server", required_argument, NULL, 's'},
    {"retries", required_argument, NULL, 't'},
    {NULL, 0, NULL, 0},
};

/* False: said on stderr. */
static bool option_set(struct pop *p, int c, const char *value)
{
    uint64_t n = 0;
    switch (c) {
    case 'p':
        p->partition = value;
        return true;
    case 'g':
        p->group = value;
        return true;
    case 'f':
        p->from = value;
        return true;
    case 'w':
        p->wait = true;
        return true;
    case 'a':
        p->auto_ack = true;
        return true;
    case 'F':
        p->follow = p->wait = true;
        return true;
    case 's':
        p->verb.server = value;
        return true;
    case 'b':
        return verb_number(&p->verb, "--batch", value, 1, VERB_BATCH_MAX, &p->batch);
    case 'n':
        return verb_number(&p->verb, "--partitions", value, 1, 64, &p->partitions);
    case 'm':
        return verb_number(&p->verb, "--timeout", value, 1, 60000, &p->timeout_ms);
    case 'l':
        return verb_number(&p->verb, "--lease", value, 1, 1000000000, &p->lease_s);
    case 't':
        if (!verb_number(&p->verb, "--retries", value, 0, VERB_RETRIES_MAX, &n)) return false;
        p->verb.retries = (uint32_t)n;
        return true;
    default:
        return false;
    }
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct pop *p, int argc, char **argv)
{
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1;) {
        if (c == 'h') {
            fputs(HELP, stdout);
            return CLI_OK;
        }
        if (!option_set(p, c, optarg)) return CLI_USAGE;
    }
    if (optind < argc) p->queue = argv[optind++];
    if (optind < argc) {
        verb_say(&p->verb, "unexpected argument %s; see `queen pop --help`", argv[optind]);
        return CLI_USAGE;
    }
    if (p->queue == NULL) {
        verb_say(&p->verb, "which queue? queen pop QUEUE; see `queen pop --help`");
        return CLI_USAGE;
    }
    if (p->from != NULL && p->group == NULL) {
        verb_say(&p->verb, "--from says where a consumer group begins: give one with --group");
        return CLI_USAGE;
    }
    if (p->from != NULL && strcmp(p->from, "all") != 0 && strcmp(p->from, "new") != 0 &&
        (p->from[0] < '0' || p->from[0] > '9')) {
        verb_say(&p->verb, "--from takes all, new or a time like 2031-02-03T04:05:06Z, not %s", p->from);
        return CLI_USAGE;
    }
    return -1;
}

int cli_pop_main(int argc, char **argv)
{
    struct pop p = {.verb = {.name = "pop", .retries = VERB_RETRIES}, .batch = 1, .partitions = 1, .timeout_ms = 30000};
    int rc = options_read(&p, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&p.verb)) {
        path_make(&p);
        while (pop_once(&p) && p.follow) continue;
    }
    verb_close(&p.verb);
    buf_free(&p.path);
    buf_free(&p.scratch);
    return p.verb.rc;
}
