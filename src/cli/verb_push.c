/* `queen push`: JSON lines to messages.
 *
 * Every item gets a transactionId here when the line brings none, so a call whose answer was lost can be made again without
 * storing anything twice. */
#include <stdio.h>

#include "base/clock.h"
#include "base/uuid.h"
#include "cli/verb.h"

struct push {
    struct verb verb;
    const char *queue;
    const char *partition;
    const char *key; /* payload member that names the partition */
    const char *id;  /* payload member that is the transactionId */
    bool raw;
    uint32_t batch;
    struct buf body;
    uint32_t items;
    struct buf scratch;
};

static const char HELP[] =
    "Usage: queen push QUEUE [options] < LINES\n"
    "       queen push --raw [QUEUE] [options] < LINES\n"
    "\n"
    "Pushes messages: each line of standard input is one JSON value, the payload, kept byte for byte. Prints one result a\n"
    "line in the same order: {\"index\",\"message_id\",\"transaction_id\",\"queueName\",\"status\",\"offset\"}; status is "
    "queued, or\n"
    "duplicate (with the first message's id and offset), or error. Lines are sent when --batch are there or no more wait.\n"
    "\n"
    "  --partition NAME     the lane: messages of one lane are delivered in order (Default)\n"
    "  --key FIELD          take the lane from this member of the payload (a string or number)\n"
    "  --id FIELD           take the transactionId from this member: pushing the same id to the same lane again, within the\n"
    "                       queue's dedup window, stores nothing. Without it every line gets a new id\n"
    "  --raw                lines are items: {\"queue\",\"partition\",\"transactionId\",\"payload\"}; QUEUE is for those that "
    "name\n"
    "                       none\n"
    "  --batch N            messages in one call, 1 to 10000 (100)\n"
    "  --server URL         http://HOST:PORT (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often a call is made again when the server is busy or went away (10)\n"
    "\n"
    "Exit code: 0 all stored or duplicate; 1 wrong command line; 4 the server refused something, or a line is not JSON;\n"
    "5 the server cannot be reached.\n"
    "\n"
    "  echo '{\"order\":17,\"customer\":\"ann\"}' | queen push orders --key customer --id order\n";

static bool result_each(void *arg, struct slice element)
{
    static const char *const names[1] = {"status"};
    struct push *p = arg;
    struct slice status = {0};
    if (!view_members(element, names, &status, 1) || slice_is(status, "\"error\"")) verb_fail(&p->verb, CLI_REFUSED);
    verb_line(&p->scratch, element);
    return true;
}

/* Sends the batch and prints its results. False: the verb cannot go on. */
static bool batch_send(struct push *p)
{
    if (p->items == 0) return true;
    buf_text(&p->body, "]}");
    bool sent = verb_send(&p->verb, "POST", slice_of("/api/v1/push"), buf_view(&p->body), VERB_CALL_MS, 201, 0);
    p->items = 0;
    buf_clear(&p->body);
    if (!sent) return false;
    struct slice whole;
    if (!view_whole(p->verb.client.body, &whole) || !view_elements(whole, result_each, p)) {
        verb_say(&p->verb, "the answer is not an array of results");
        verb_fail(&p->verb, CLI_REFUSED);
        return false;
    }
    return verb_flush(&p->verb);
}

/* A string stays, a number or literal becomes one; containers and null name nothing. */
static bool name_put(struct buf *b, struct slice raw)
{
    if (view_is_null(raw) || raw.len == 0 || raw.at[0] == '{' || raw.at[0] == '[') return false;
    if (view_is_string(raw)) {
        buf_slice(b, raw);
    } else {
        view_quote(b, raw);
    }
    return true;
}

static void id_mint(struct buf *b)
{
    char text[UUID_TEXT];
    uuid_text(uuid_mint(clock_wall_us()), text);
    view_quote(b, slice_make(text, sizeof text));
}

/* Puts `name` and the payload's member. False: it is not there. */
static bool member_put(struct push *p, const char *name, const char *field, struct slice raw, uint64_t line)
{
    buf_printf(&p->body, ",\"%s\":", name);
    if (name_put(&p->body, raw)) return true;
    verb_say(&p->verb, "line %llu has no string or number member %s; it was not sent", (unsigned long long)line, field);
    return false;
}

static bool payload_item(struct push *p, struct slice value, uint64_t line)
{
    const char *const names[2] = {p->key == NULL ? "" : p->key, p->id == NULL ? "" : p->id};
    struct slice values[2] = {{0}, {0}};
    if (p->key != NULL || p->id != NULL) view_members(value, names, values, 2);
    if (p->key != NULL && p->id != NULL && strcmp(p->key, p->id) == 0) values[1] = values[0];
    buf_text(&p->body, "{\"queue\":");
    view_quote(&p->body, slice_of(p->queue));
    if (p->key != NULL) {
        if (!member_put(p, "partition", p->key, values[0], line)) return false;
    } else if (p->partition != NULL) {
        buf_text(&p->body, ",\"partition\":");
        view_quote(&p->body, slice_of(p->partition));
    }
    if (p->id != NULL) {
        if (!member_put(p, "transactionId", p->id, values[1], line)) return false;
    } else {
        buf_text(&p->body, ",\"transactionId\":");
        id_mint(&p->body);
    }
    buf_text(&p->body, ",\"payload\":");
    buf_slice(&p->body, value);
    buf_byte(&p->body, '}');
    return true;
}

static bool raw_item(struct push *p, struct slice value, uint64_t line)
{
    static const char *const names[5] = {"queue", "partition", "transactionId", "traceId", "payload"};
    struct slice values[5];
    if (!view_members(value, names, values, 5) || values[4].at == NULL || (values[0].at == NULL && p->queue == NULL)) {
        verb_say(&p->verb, "line %llu is not an item: {\"queue\":...,\"payload\":...}; it was not sent",
                 (unsigned long long)line);
        return false;
    }
    buf_text(&p->body, "{\"queue\":");
    if (values[0].at == NULL) {
        view_quote(&p->body, slice_of(p->queue));
    } else {
        buf_slice(&p->body, values[0]);
    }
    buf_text(&p->body, ",\"partition\":");
    if (!view_is_null(values[1])) {
        buf_slice(&p->body, values[1]);
    } else {
        view_quote(&p->body, slice_of(p->partition == NULL ? "" : p->partition));
    }
    buf_text(&p->body, ",\"transactionId\":");
    if (!view_is_null(values[2])) {
        buf_slice(&p->body, values[2]);
    } else {
        id_mint(&p->body);
    }
    if (!view_is_null(values[3])) {
        buf_text(&p->body, ",\"traceId\":");
        buf_slice(&p->body, values[3]);
    }
    buf_text(&p->body, ",\"payload\":");
    buf_slice(&p->body, values[4]);
    buf_byte(&p->body, '}');
    return true;
}

/* Adds the line to the batch; a line that cannot be sent is said and left out. */
static void line_add(struct push *p, struct slice line, uint64_t number)
{
    struct slice value;
    if (!view_whole(line, &value)) {
        verb_say(&p->verb, "line %llu is not one JSON value; it was not sent", (unsigned long long)number);
        verb_fail(&p->verb, CLI_REFUSED);
        return;
    }
    size_t before = p->body.len;
    buf_text(&p->body, p->items == 0 ? "{\"items\":[" : ",");
    if (p->raw ? raw_item(p, value, number) : payload_item(p, value, number)) {
        p->items++;
    } else {
        p->body.len = before;
        verb_fail(&p->verb, CLI_REFUSED);
    }
}

static void lines_push(struct push *p)
{
    struct lines lines = {0};
    bool going = true;
    while (going) {
        struct slice line;
        switch (lines_next(&lines, &p->verb, p->items == 0, &line)) {
        case LINES_ONE:
            line_add(p, line, lines.number);
            if (p->items == p->batch || p->body.len >= VERB_BODY_BYTES) going = batch_send(p);
            break;
        case LINES_NONE:
            going = batch_send(p);
            break;
        case LINES_END:
        case LINES_BROKEN:
            batch_send(p);
            going = false;
            break;
        }
    }
    buf_free(&lines.in);
}

static const struct option OPTIONS[] = {
    {"help", no_argument, NULL, 'h'},
    {"partition", required_argument, NULL, 'p'},
    {"key", required_argument, NULL, 'k'},
    {"id", required_argument, NULL, 'i'},
    {"raw", no_argument, NULL, 'r'},
    {"batch", required_argument, NULL, 'b'},
    {"server", required_argument, NULL, 's'},
    {"retries", required_argument, NULL, 't'},
    {NULL, 0, NULL, 0},
};

/* Returns -1 to go on, else the exit code. */
static int options_read(struct push *p, int argc, char **argv)
{
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "h", OPTIONS, NULL)) != -1;) {
        uint64_t n = 0;
        switch (c) {
        case 'h':
            fputs(HELP, stdout);
            return CLI_OK;
        case 'p':
            p->partition = optarg;
            break;
        case 'k':
            p->key = optarg;
            break;
        case 'i':
            p->id = optarg;
            break;
        case 'r':
            p->raw = true;
            break;
        case 's':
            p->verb.server = optarg;
            break;
        case 'b':
            if (!verb_number(&p->verb, "--batch", optarg, 1, VERB_BATCH_MAX, &n)) return CLI_USAGE;
            p->batch = (uint32_t)n;
            break;
        case 't':
            if (!verb_number(&p->verb, "--retries", optarg, 0, VERB_RETRIES_MAX, &n)) return CLI_USAGE;
            p->verb.retries = (uint32_t)n;
            break;
        default:
            return CLI_USAGE;
        }
    }
    if (optind < argc) p->queue = argv[optind++];
    if (optind < argc) {
        verb_say(&p->verb, "unexpected argument %s; see `queen push --help`", argv[optind]);
        return CLI_USAGE;
    }
    if (p->queue == NULL && !p->raw) {
        verb_say(&p->verb, "which queue? queen push QUEUE < LINES; see `queen push --help`");
        return CLI_USAGE;
    }
    if (p->raw && (p->key != NULL || p->id != NULL)) {
        verb_say(&p->verb, "--key and --id look into payloads; with --raw the item says its partition and transactionId");
        return CLI_USAGE;
    }
    if (p->key != NULL && p->partition != NULL) {
        verb_say(&p->verb, "--key and --partition both name the lane: use one");
        return CLI_USAGE;
    }
    return -1;
}

int cli_push_main(int argc, char **argv)
{
    struct push p = {.verb = {.name = "push", .retries = VERB_RETRIES}, .batch = 100};
    int rc = options_read(&p, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&p.verb)) lines_push(&p);
    verb_close(&p.verb);
    buf_free(&p.body);
    buf_free(&p.scratch);
    return p.verb.rc;
}
