/* `queen ack`: takes the lines `queen pop` printed.
 *
 * The consumer group stands once in a call, so a batch ends where the group changes; the order of the lines is kept. */
#include <stdio.h>

#include "cli/verb.h"

struct ack {
    struct verb verb;
    const char *status;
    const char *error;
    const char *group_name;
    uint32_t batch;
    struct buf group; /* of the batch, as raw JSON; empty: none sent */
    struct buf items;
    uint32_t count;
    struct buf body;
    struct buf scratch;
};

static const char HELP[] =
    "Usage: queen ack [options] < LINES\n"
    "\n"
    "Acks messages: each line of standard input is a message as `queen pop` printed it; its transactionId, partitionId, "
    "leaseId\n"
    "and consumerGroup are used. Prints one result a line in the same order: "
    "{\"index\",\"transactionId\",\"success\",\"error\",\n"
    "\"leaseReleased\",\"dlq\",\"noop\"}. Completing a message completes what came before it in the same batch of its lane. "
    "Lines\n"
    "are sent when --batch are there or no more wait.\n"
    "\n"
    "  --status STATUS      completed; failed (deliver again until the retries are spent, then dead-letter); retry (deliver\n"
    "                       again, spends nothing); dlq (dead-letter now) (completed)\n"
    "  --error TEXT         kept with a dead letter\n"
    "  --group NAME         the consumer group (the line's)\n"
    "  --batch N            acks in one call, 1 to 10000 (100)\n"
    "  --server URL         http://HOST:PORT (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often a call is made again when the server is busy or went away (10)\n"
    "\n"
    "A line may decide for itself: members \"status\" and \"error\" that a worker adds beat the options.\n"
    "\n"
    "Exit code: 0 all honoured; 1 wrong command line; 4 something was refused (a lease that has ended, for example), or a "
    "line\n"
    "is not a message; 5 the server cannot be reached.\n"
    "\n"
    "  queen pop orders --group billing --batch 10 | queen ack --status failed --error 'printer on fire'\n";

static bool result_each(void *arg, struct slice element)
{
    static const char *const names[1] = {"success"};
    struct ack *a = arg;
    struct slice success = {0};
    if (!view_members(element, names, &success, 1) || !slice_is(success, "true")) verb_fail(&a->verb, CLI_REFUSED);
    verb_line(&a->scratch, element);
    return true;
}

/* Sends the batch and prints its results. False: the verb cannot go on. */
static bool batch_send(struct ack *a)
{
    if (a->count == 0) return true;
    buf_clear(&a->body);
    buf_byte(&a->body, '{');
    if (a->group.len > 0) {
        buf_text(&a->body, "\"consumerGroup\":");
        buf_slice(&a->body, buf_view(&a->group));
        buf_byte(&a->body, ',');
    }
    buf_text(&a->body, "\"acknowledgments\":[");
    buf_slice(&a->body, buf_view(&a->items));
    buf_text(&a->body, "]}");
    a->count = 0;
    buf_clear(&a->items);
    if (!verb_send(&a->verb, "POST", slice_of("/api/v1/ack/batch"), buf_view(&a->body), VERB_CALL_MS, 200, 0)) return false;
    struct slice whole;
    if (!view_whole(a->verb.client.body, &whole) || !view_elements(whole, result_each, a)) {
        verb_say(&a->verb, "the answer is not an array of results");
        verb_fail(&a->verb, CLI_REFUSED);
        return false;
    }
    return verb_flush(&a->verb);
}

enum member { M_TRANSACTION, M_PARTITION, M_LEASE, M_GROUP, M_STATUS, M_ERROR, MEMBERS };

static void text_member(struct buf *b, const char *name, struct slice raw, const char *text)
{
    if (!view_is_string(raw) && text == NULL) return;
    buf_printf(b, ",\"%s\":", name);
    if (view_is_string(raw)) {
        buf_slice(b, raw);
    } else {
        view_quote(b, slice_of(text));
    }
}

/* Adds a message to the batch, sending the one before when the group changes. False: the verb cannot go on. */
static bool message_add(struct ack *a, const struct slice *m)
{
    struct buf group = {0};
    if (a->group_name != NULL) {
        view_quote(&group, slice_of(a->group_name));
    } else if (view_is_string(m[M_GROUP]) && !slice_is(m[M_GROUP], "\"__QUEUE_MODE__\"")) {
        buf_slice(&group, m[M_GROUP]);
    }
    bool going = true;
    if (!slice_equal(buf_view(&group), buf_view(&a->group))) {
        going = batch_send(a);
        buf_free(&a->group);
        a->group = group;
    } else {
        buf_free(&group);
    }
    buf_text(&a->items, a->count == 0 ? "{\"transactionId\":" : ",{\"transactionId\":");
    buf_slice(&a->items, m[M_TRANSACTION]);
    text_member(&a->items, "partitionId", m[M_PARTITION], NULL);
    text_member(&a->items, "leaseId", m[M_LEASE], NULL);
    text_member(&a->items, "status", m[M_STATUS], a->status);
    text_member(&a->items, "error", m[M_ERROR], a->error);
    buf_byte(&a->items, '}');
    a->count++;
    return going;
}

/* False: the verb cannot go on. A line that is no message is said and left out. */
static bool line_add(struct ack *a, struct slice line, uint64_t number)
{
    static const char *const names[MEMBERS] = {"transactionId", "partitionId", "leaseId", "consumerGroup", "status", "error"};
    struct slice value;
    struct slice m[MEMBERS];
    if (!view_whole(line, &value) || !view_members(value, names, m, MEMBERS) || !view_is_string(m[M_TRANSACTION]) ||
        !view_is_string(m[M_PARTITION])) {
        verb_say(&a->verb, "line %llu is not a message as `queen pop` prints it; it was not acked", (unsigned long long)number);
        verb_fail(&a->verb, CLI_REFUSED);
        return true;
    }
    return message_add(a, m);
}

static void lines_ack(struct ack *a)
{
    struct lines lines = {0};
    bool going = true;
    while (going) {
        struct slice line;
        switch (lines_next(&lines, &a->verb, a->count == 0, &line)) {
        case LINES_ONE:
            going = line_add(a, line, lines.number);
            if (going && (a->count >= a->batch || a->items.len >= VERB_BODY_BYTES)) going = batch_send(a);
            break;
        case LINES_NONE:
            going = batch_send(a);
            break;
        case LINES_END:
        case LINES_BROKEN:
            batch_send(a);
            going = false;
            break;
        }
    }
    buf_free(&lines.in);
}

static const struct option OPTIONS[] = {
    {"help", no_argument, NULL, 'h'},          {"status", required_argument, NULL, 'S'},
    {"error", required_argument, NULL, 'e'},   {"group", required_argument, NULL, 'g'},
    {"batch", required_argument, NULL, 'b'},   {"server", required_argument, NULL, 's'},
    {"retries", required_argument, NULL, 't'}, {NULL, 0, NULL, 0},
};

/* The server takes an unknown status for completed: here it is a mistake. */
static bool status_known(const char *status)
{
    static const char *const known[] = {"completed", "failed", "retry", "dlq"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(status, known[i]) == 0) return true;
    }
    return false;
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct ack *a, int argc, char **argv)
{
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1;) {
        uint64_t n = 0;
        switch (c) {
        case 'h':
            fputs(HELP, stdout);
            return CLI_OK;
        case 'S':
            a->status = optarg;
            break;
        case 'e':
            a->error = optarg;
            break;
        case 'g':
            a->group_name = optarg;
            break;
        case 's':
            a->verb.server = optarg;
            break;
        case 'b':
            if (!verb_number(&a->verb, "--batch", optarg, 1, VERB_BATCH_MAX, &n)) return CLI_USAGE;
            a->batch = (uint32_t)n;
            break;
        case 't':
            if (!verb_number(&a->verb, "--retries", optarg, 0, VERB_RETRIES_MAX, &n)) return CLI_USAGE;
            a->verb.retries = (uint32_t)n;
            break;
        default:
            return CLI_USAGE;
        }
    }
    if (optind < argc) {
        verb_say(&a->verb, "unexpected argument %s; messages come on standard input, see `queen ack --help`", argv[optind]);
        return CLI_USAGE;
    }
    if (!status_known(a->status)) {
        verb_say(&a->verb, "--status takes completed, failed, retry or dlq, not %s", a->status);
        return CLI_USAGE;
    }
    return -1;
}

int cli_ack_main(int argc, char **argv)
{
    struct ack a = {.verb = {.name = "ack", .retries = VERB_RETRIES}, .status = "completed", .batch = 100};
    int rc = options_read(&a, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&a.verb)) lines_ack(&a);
    verb_close(&a.verb);
    buf_free(&a.group);
    buf_free(&a.items);
    buf_free(&a.body);
    buf_free(&a.scratch);
    return a.verb.rc;
}
