/* `queen timers`: messages that are pushed later. */
#include <stdio.h>

#include "base/clock.h"
#include "base/uuid.h"
#include "cli/rows.h"
#include "cli/words.h"

enum command_bit { SCHEDULE = 1, CANCEL = 2, GET = 4, LIST = 8, COUNT = 16 };

enum option_place { O_DELAY, O_PAYLOAD, O_TXN, O_PARTITION, O_LIMIT, O_AFTER, O_PREFIX, OPTION_COUNT };

static const char HELP[] =
    "Usage: queen timers schedule QUEUE KEY --delay-ms N [--payload JSON] [--partition NAME] [--txn ID]\n"
    "       queen timers cancel QUEUE KEY [--txn ID]\n"
    "       queen timers get QUEUE KEY\n"
    "       queen timers list QUEUE [--after KEY] [--limit N]\n"
    "       queen timers count QUEUE --prefix TEXT\n"
    "\n"
    "A timer is a message that the broker pushes into QUEUE when its time has come, once and never early. KEY names it within\n"
    "its queue: scheduling the same key again replaces it. Prints one JSON line a result.\n"
    "\n"
    "  schedule             {\"ok\",\"status\":\"scheduled\" or \"rescheduled\",\"txn\",\"messageId\",\"deliverAt\",...}\n"
    "  cancel               {\"ok\",\"status\":\"cancelled\" or \"absent\",...}; absent may mean that it has fired\n"
    "  get                  the timer, its payload in base64: {\"found\",\"deliverAt\",\"partition\",\"payload\",...}\n"
    "  list                 the timers of a queue by key, one a line, without payloads\n"
    "  count                {\"count\"} of the keys that begin with --prefix\n"
    "\n"
    "  --delay-ms N         from now, a fraction allowed; 0 or less: at once\n"
    "  --payload JSON       of the message (standard input)\n"
    "  --partition NAME     the lane (Default)\n"
    "  --txn ID             the message's transactionId: dedup applies when it fires (a new one)\n"
    "  --prefix TEXT        1 to 128 bytes\n"
    "  --after KEY          only keys behind this one\n"
    "  --limit N            at most so many timers (all)\n"
    "  --server URL         http://HOST:PORT (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often a call is made again when the server is busy or went away (10)\n"
    "\n"
    "Exit code: 0 done; 1 wrong command line; 3 there is no such timer; 4 refused; 5 the server cannot be reached.\n"
    "\n"
    "  echo '{\"order\":17}' | queen timers schedule reminders order-17 --delay-ms 3600000\n";

static const struct words_command COMMANDS[] = {
    {"schedule", SCHEDULE, 2, 2, "QUEUE KEY"}, {"cancel", CANCEL, 2, 2, "QUEUE KEY"},
    {"get", GET, 2, 2, "QUEUE KEY"},           {"list", LIST, 1, 1, "QUEUE"},
    {"count", COUNT, 1, 1, "QUEUE"},
};

static const struct words_option OPTIONS[OPTION_COUNT] = {
    [O_DELAY] = {"delay-ms", false, SCHEDULE},   [O_PAYLOAD] = {"payload", false, SCHEDULE},
    [O_TXN] = {"txn", false, SCHEDULE | CANCEL}, [O_PARTITION] = {"partition", false, SCHEDULE},
    [O_LIMIT] = {"limit", false, LIST},          [O_AFTER] = {"after", false, LIST},
    [O_PREFIX] = {"prefix", false, COUNT},
};

static const struct words_table TABLE = {
    .help = HELP,
    .commands = COMMANDS,
    .command_count = sizeof COMMANDS / sizeof COMMANDS[0],
    .options = OPTIONS,
    .option_count = OPTION_COUNT,
};

struct timers {
    struct verb verb;
    struct words words;
    struct buf input;
    struct buf path;
    struct buf body;
    struct buf after; /* as text */
    struct rows rows;
};

static const char *value_of(const struct timers *t, enum option_place o)
{
    return t->words.value[o];
}

/* Prints one answer; a false member of that name makes the exit code. */
static bool element_print(struct timers *t, struct slice element, const char *name)
{
    const char *const names[1] = {name};
    struct slice m = {0};
    if (!view_members(element, names, &m, 1) || m.at == NULL) return verb_answer_wrong(&t->verb);
    if (slice_is(m, "false")) verb_fail(&t->verb, CLI_NO);
    verb_line(&t->rows.scratch, element);
    return true;
}

/* ---- schedule ---- */

static void base64_put(struct buf *b, struct slice bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes.len; i += 3) {
        uint32_t v = 0;
        size_t n = bytes.len - i < 3 ? bytes.len - i : 3;
        for (size_t k = 0; k < 3; k++) v = v << 8 | (k < n ? (unsigned char)bytes.at[i + k] : 0);
        buf_byte(b, digits[v >> 18]);
        buf_byte(b, digits[v >> 12 & 63]);
        buf_byte(b, n > 1 ? digits[v >> 6 & 63] : '=');
        buf_byte(b, n > 2 ? digits[v & 63] : '=');
    }
}

static bool payload_read(struct timers *t, struct slice *value)
{
    const char *payload = value_of(t, O_PAYLOAD);
    if (payload == NULL) return verb_input(&t->verb, &t->input, "the payload", value);
    if (view_whole(slice_of(payload), value)) return true;
    verb_say(&t->verb, "--payload is not JSON; a text needs its quotes: '\"text\"'");
    verb_fail(&t->verb, CLI_USAGE);
    return false;
}

static bool result_each(void *arg, struct slice element)
{
    return element_print(arg, element, "ok");
}

/* A retry is harmless: it replaces what the first call scheduled, and under the same txn nothing is delivered twice. */
static void schedule_run(struct timers *t)
{
    static const char *const names[1] = {"results"};
    struct buf *b = &t->body;
    struct slice payload;
    if (!payload_read(t, &payload)) return;
    buf_text(b, "[{\"op\":\"schedule\",\"queue\":");
    view_quote(b, slice_of(t->words.word[0]));
    buf_text(b, ",\"timerKey\":");
    view_quote(b, slice_of(t->words.word[1]));
    if (value_of(t, O_PARTITION) != NULL) {
        buf_text(b, ",\"partition\":");
        view_quote(b, slice_of(value_of(t, O_PARTITION)));
    }
    buf_printf(b, ",\"delayMs\":%s,\"txn\":", value_of(t, O_DELAY));
    char minted[UUID_TEXT];
    uuid_text(uuid_mint(clock_wall_us()), minted);
    view_quote(b, value_of(t, O_TXN) != NULL ? slice_of(value_of(t, O_TXN)) : slice_make(minted, sizeof minted));
    buf_text(b, ",\"payload\":\"");
    base64_put(b, payload);
    buf_text(b, "\"}]");
    struct slice whole, results = {0};
    if (!verb_send(&t->verb, "POST", slice_of("/api/v1/timers"), buf_view(b), VERB_CALL_MS, 200, 0)) return;
    if (!view_whole(t->verb.client.body, &whole) || !view_members(whole, names, &results, 1) || results.at == NULL ||
        !view_elements(results, result_each, t)) {
        verb_answer_wrong(&t->verb);
        return;
    }
    verb_flush(&t->verb);
}

/* ---- the other commands: one call of a path ---- */

static void path_make(struct timers *t, const char *key)
{
    buf_clear(&t->path);
    buf_text(&t->path, "/api/v1/timers/");
    client_escape(&t->path, slice_of(t->words.word[0]));
    if (key == NULL) return;
    buf_byte(&t->path, '/');
    client_escape(&t->path, slice_of(key));
}

static bool path_call(struct timers *t, const char *method, struct slice *whole)
{
    if (!verb_send(&t->verb, method, buf_view(&t->path), slice_of(""), VERB_CALL_MS, 200, 0)) return false;
    return view_whole(t->verb.client.body, whole) || verb_answer_wrong(&t->verb);
}

static void query_text(struct buf *b, const char *name, struct slice value)
{
    buf_text(b, name);
    client_escape(b, value);
}

static void one_run(struct timers *t)
{
    bool cancel = t->words.command->bit == CANCEL;
    bool count = t->words.command->bit == COUNT;
    path_make(t, count ? NULL : t->words.word[1]);
    if (cancel && value_of(t, O_TXN) != NULL) query_text(&t->path, "?txn=", slice_of(value_of(t, O_TXN)));
    if (count) query_text(&t->path, "?mode=count&prefix=", slice_of(value_of(t, O_PREFIX)));
    struct slice whole;
    if (!path_call(t, cancel ? "DELETE" : "GET", &whole)) return;
    if (element_print(t, whole, cancel ? "ok" : count ? "count" : "found")) verb_flush(&t->verb);
}

static bool page_get(void *ctx, uint64_t count)
{
    struct timers *t = ctx;
    path_make(t, NULL);
    buf_printf(&t->path, "?limit=%llu", (unsigned long long)count);
    buf_clear(&t->after);
    if (t->rows.after.len > 0) view_text(&t->after, buf_view(&t->rows.after));
    if (t->after.len > 0) query_text(&t->path, "&after=", buf_view(&t->after));
    struct slice whole;
    return path_call(t, "GET", &whole) && rows_page(&t->rows, &t->verb, whole);
}

/* ---- the command line ---- */

/* Returns -1 to go on, else the exit code. */
static int options_read(struct timers *t, int argc, char **argv)
{
    int rc = words_read(&t->words, &t->verb, &TABLE, argc, argv);
    if (rc >= 0) return rc;
    t->rows.limit = UINT64_MAX;
    if (!verb_number_given(&t->verb, "--limit", value_of(t, O_LIMIT), 1, INT64_MAX, &t->rows.limit)) return CLI_USAGE;
    const char *delay = value_of(t, O_DELAY);
    if (t->words.command->bit == SCHEDULE && (delay == NULL || !verb_json_number(delay))) {
        verb_say(&t->verb, "when? --delay-ms takes milliseconds from now%s%s", delay == NULL ? "" : ", not ",
                 delay == NULL ? "" : delay);
        return CLI_USAGE;
    }
    if (t->words.command->bit == COUNT && value_of(t, O_PREFIX) == NULL) {
        verb_say(&t->verb, "which? --prefix is the beginning of the keys to count");
        return CLI_USAGE;
    }
    return -1;
}

int cli_timers_main(int argc, char **argv)
{
    struct timers t = {.verb = {.name = "timers", .retries = VERB_RETRIES}};
    int rc = options_read(&t, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&t.verb)) {
        if (t.words.command->bit == SCHEDULE) {
            schedule_run(&t);
        } else if (t.words.command->bit == LIST) {
            rows_begin(&t.rows, value_of(&t, O_AFTER));
            rows_list(&t.rows, page_get, &t);
        } else {
            one_run(&t);
        }
    }
    verb_close(&t.verb);
    buf_free(&t.input);
    buf_free(&t.path);
    buf_free(&t.body);
    buf_free(&t.after);
    rows_free(&t.rows);
    return t.verb.rc;
}
