/* `queen txn`: one transaction, its body as a caller wrote it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/verb.h"

enum {
    TXN_CALL_MS = 100000, /* the transaction's deadline and the longest wait of its `next` */
};

static const char HELP[] =
    "Usage: queen txn [FILE] [options]\n"
    "\n"
    "Runs one transaction: a JSON object from FILE, or from standard input, with any of\n"
    "\n"
    "  operations           acks {\"type\":\"ack\",\"transactionId\",\"partitionId\",\"leaseId\",\"consumerGroup\",\"status\"} "
    "and\n"
    "                       pushes {\"type\":\"push\",\"items\":[{\"queue\",\"partition\",\"transactionId\",\"payload\"}]}\n"
    "  kv                   [{\"op\":\"put\",\"ns\",\"key\",\"value\",\"ttlSeconds\" or "
    "\"forever\":true,\"expect\",\"required\"}, ...]\n"
    "  timers               [{\"op\":\"schedule\",\"queue\",\"timerKey\",\"delayMs\",\"txn\",\"payload\" (base64)}, ...]\n"
    "  positions            [{\"queue\",\"partition\",\"consumerGroup\",\"offset\"}, ...]\n"
    "  requiredLeases       leases for acks that name none\n"
    "  next                 what to pop when it commits: {\"queue\",\"consumerGroup\",\"batch\",\"wait\",\"timeout\"}\n"
    "\n"
    "All of it happens or nothing. Prints the answer as one line; a transaction that was rolled back says why in \"reason\" "
    "(and\n"
    "\"kvReason\"): rejected_ack, duplicate, kv_precondition, queue_not_found, ...\n"
    "\n"
    "  --server URL         http://HOST:PORT (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often it is sent again when the server certainly did nothing yet: it is busy (429), or cannot "
    "be\n"
    "                       reached after it was once (10)\n"
    "\n"
    "When the answer was lost (exit code 5) it may have committed. Sending it again is safe when it pushes with a "
    "transactionId\n"
    "(within the queue's dedup window), has a required putIfAbsent, or acks the whole of a batch under its lease: then it "
    "cannot\n"
    "commit twice.\n"
    "\n"
    "Exit code: 0 committed; 1 wrong command line; 3 rolled back; 4 refused, or the body is not a JSON object; 5 the server\n"
    "cannot be reached, or went away.\n";

struct txn {
    struct verb verb;
    const char *file; /* NULL or "-": standard input */
    struct buf body;
    struct buf scratch;
};

/* Makes FILE standard input. */
static bool file_open(struct txn *t)
{
    if (t->file == NULL || strcmp(t->file, "-") == 0) return true;
    int fd = open(t->file, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && dup2(fd, 0) == 0) {
        close(fd);
        return true;
    }
    verb_say(&t->verb, "%s: %s", t->file, strerror(errno));
    verb_fail(&t->verb, CLI_USAGE);
    return false;
}

/* Prints the answer and says whether it committed. */
static void answer_judge(struct txn *t)
{
    enum { SUCCESS, REASON, ERROR, MEMBERS };
    static const char *const names[MEMBERS] = {"success", "reason", "error"};
    struct slice m[MEMBERS] = {{0}};
    struct slice whole;
    if (!view_whole(t->verb.client.body, &whole) || !view_members(whole, names, m, MEMBERS) || m[SUCCESS].at == NULL) {
        verb_say(&t->verb, "the answer does not say whether it committed");
        verb_fail(&t->verb, CLI_REFUSED);
        return;
    }
    verb_line(&t->scratch, whole);
    if (!verb_flush(&t->verb) || slice_is(m[SUCCESS], "true")) return;
    struct slice reason = view_unquoted(m[REASON]);
    struct slice error = view_unquoted(m[ERROR]);
    verb_say(&t->verb, "rolled back, %.*s: %.*s", (int)reason.len, reason.at == NULL ? "" : reason.at, (int)error.len,
             error.at == NULL ? "" : error.at);
    verb_fail(&t->verb, CLI_NO);
}

static void txn_run(struct txn *t)
{
    struct slice body;
    if (!file_open(t) || !verb_input(&t->verb, &t->body, "the transaction", &body)) return;
    if (body.at[0] != '{') {
        verb_say(&t->verb, "a transaction is a JSON object; see `queen txn --help`");
        verb_fail(&t->verb, CLI_REFUSED);
        return;
    }
    t->verb.once = true;
    if (verb_send(&t->verb, "POST", slice_of("/api/v1/transaction"), body, TXN_CALL_MS, 200, 0)) answer_judge(t);
}

static const struct option OPTIONS[] = {
    {"help", no_argument, NULL, 'h'},
    {"server", required_argument, NULL, 's'},
    {"retries", required_argument, NULL, 't'},
    {NULL, 0, NULL, 0},
};

/* Returns -1 to go on, else the exit code. */
static int options_read(struct txn *t, int argc, char **argv)
{
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1;) {
        uint64_t n = 0;
        switch (c) {
        case 'h':
            fputs(HELP, stdout);
            return CLI_OK;
        case 's':
            t->verb.server = optarg;
            break;
        case 't':
            if (!verb_number(&t->verb, "--retries", optarg, 0, VERB_RETRIES_MAX, &n)) return CLI_USAGE;
            t->verb.retries = (uint32_t)n;
            break;
        default:
            return CLI_USAGE;
        }
    }
    if (optind < argc) t->file = argv[optind++];
    if (optind == argc) return -1;
    verb_say(&t->verb, "unexpected argument %s; see `queen txn --help`", argv[optind]);
    return CLI_USAGE;
}

int cli_txn_main(int argc, char **argv)
{
    struct txn t = {.verb = {.name = "txn", .retries = VERB_RETRIES}};
    int rc = options_read(&t, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&t.verb)) txn_run(&t);
    verb_close(&t.verb);
    buf_free(&t.body);
    buf_free(&t.scratch);
    return t.verb.rc;
}
