/* `queen kv`: key-value state. Every command but `list` and `namespaces` is one call of POST /api/v1/kv. */
#include <stdio.h>

#include "cli/rows.h"
#include "cli/words.h"

enum command_bit {
    GET = 1,
    PUT = 2,
    PUT_IF_ABSENT = 4,
    DELETE = 8,
    INCR = 16,
    LIST = 32,
    NAMESPACES = 64,
    SETS = PUT | PUT_IF_ABSENT | INCR,
};

enum option_place { O_TTL, O_FOREVER, O_EXPECT, O_MIN, O_MAX, O_PREFIX, O_LIMIT, O_AFTER, O_KEYS_ONLY, OPTION_COUNT };

static const char HELP[] =
    "Usage: queen kv get NS KEY...\n"
    "       queen kv put NS KEY [VALUE] --ttl S | --forever [--expect VERSION]\n"
    "       queen kv put-if-absent NS KEY [VALUE] --ttl S | --forever\n"
    "       queen kv incr NS KEY [DELTA] --ttl S | --forever [--min N] [--max N]\n"
    "       queen kv delete NS KEY [--expect VERSION]\n"
    "       queen kv list NS [--prefix TEXT] [--after KEY] [--limit N] [--keys-only]\n"
    "       queen kv namespaces\n"
    "\n"
    "Key-value state of the broker, by name space and key; it takes part in transactions (queen txn). Prints one JSON line a\n"
    "result. VALUE is JSON (a text needs its quotes); without it the value is read from standard input.\n"
    "\n"
    "  get                  {\"found\",\"key\",\"value\",\"version\",\"expiresAt\",\"updatedAt\"} of each key\n"
    "  put                  sets value and expiry: {\"applied\",\"key\",\"value\",\"version\"}\n"
    "  put-if-absent        the same unless the key is there: then applied is false, with the value and version it has.\n"
    "                       Of many callers one wins: do something once\n"
    "  incr                 adds DELTA (1) to a number, exactly; one that is not there counts from 0. A number that is there\n"
    "                       keeps its expiry\n"
    "  delete               removes the key and prints what it was\n"
    "  list                 the keys in order, one a line\n"
    "\n"
    "  --ttl S              seconds until the key is gone\n"
    "  --forever            until it is deleted\n"
    "  --expect VERSION     only if the key is at this version; 0: only if it is not there\n"
    "  --min N, --max N     not applied when the result would be outside\n"
    "  --prefix TEXT        only keys that begin so\n"
    "  --after KEY          only keys behind this one\n"
    "  --limit N            at most so many keys (all)\n"
    "  --keys-only          without the values\n"
    "  --server URL         http://HOST:PORT (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often a call is made again when the server is busy or went away (10). incr, put-if-absent and\n"
    "                       what has --expect is made again only where the first call certainly did nothing\n"
    "\n"
    "Exit code: 0 done; 1 wrong command line; 3 a key is not there, or a condition was not met; 4 refused; 5 the server "
    "cannot\n"
    "be reached.\n"
    "\n"
    "  queen kv put-if-absent reports 2031-02-03 '\"sent\"' --ttl 86400 && send-report\n";

static const struct words_command COMMANDS[] = {
    {"get", GET, 2, WORDS_MAX, "NS KEY..."},
    {"put", PUT, 2, 3, "NS KEY [VALUE]"},
    {"put-if-absent", PUT_IF_ABSENT, 2, 3, "NS KEY [VALUE]"},
    {"delete", DELETE, 2, 2, "NS KEY"},
    {"incr", INCR, 2, 3, "NS KEY [DELTA]"},
    {"list", LIST, 1, 1, "NS"},
    {"namespaces", NAMESPACES, 0, 0, ""},
};

static const struct words_option OPTIONS[OPTION_COUNT] = {
    [O_TTL] = {"ttl", false, SETS},     [O_FOREVER] = {"forever", true, SETS}, [O_EXPECT] = {"expect", false, PUT | DELETE},
    [O_MIN] = {"min", false, INCR},     [O_MAX] = {"max", false, INCR},        [O_PREFIX] = {"prefix", false, LIST},
    [O_LIMIT] = {"limit", false, LIST}, [O_AFTER] = {"after", false, LIST},    [O_KEYS_ONLY] = {"keys-only", true, LIST},
};

static const struct words_table TABLE = {
    .help = HELP,
    .commands = COMMANDS,
    .command_count = sizeof COMMANDS / sizeof COMMANDS[0],
    .options = OPTIONS,
    .option_count = OPTION_COUNT,
};

struct kv {
    struct verb verb;
    struct words words;
    uint64_t ttl_s, expect;
    struct buf input;
    struct buf body;
    struct rows rows;
};

static const char *value_of(const struct kv *k, enum option_place o)
{
    return k->words.value[o];
}

/* ---- single keys ---- */

static void op_open(struct kv *k, const char *op, const char *key)
{
    buf_printf(&k->body, "{\"op\":\"%s\",\"ns\":", op);
    view_quote(&k->body, slice_of(k->words.word[0]));
    buf_text(&k->body, ",\"key\":");
    view_quote(&k->body, slice_of(key));
}

static void expiry_put(struct kv *k)
{
    if (value_of(k, O_FOREVER) != NULL) {
        buf_text(&k->body, ",\"forever\":true");
    } else {
        buf_printf(&k->body, ",\"ttlSeconds\":%llu", (unsigned long long)k->ttl_s);
    }
}

static bool result_each(void *arg, struct slice element)
{
    static const char *const names[2] = {"found", "applied"};
    struct kv *k = arg;
    struct slice m[2] = {{0}, {0}};
    if (!view_members(element, names, m, 2) || slice_is(m[0], "false") || slice_is(m[1], "false")) verb_fail(&k->verb, CLI_NO);
    verb_line(&k->rows.scratch, element);
    return true;
}

/* Sends the ops and gives their results to each(). */
static bool ops_send(struct kv *k, bool (*each)(void *arg, struct slice element))
{
    static const char *const names[1] = {"results"};
    struct slice whole, results = {0};
    if (!verb_send(&k->verb, "POST", slice_of("/api/v1/kv"), buf_view(&k->body), VERB_CALL_MS, 200, 0)) return false;
    if (!view_whole(k->verb.client.body, &whole) || !view_members(whole, names, &results, 1) || results.at == NULL ||
        !view_elements(results, each, k)) {
        return verb_answer_wrong(&k->verb);
    }
    return true;
}

/* The value of a put, from the command line or standard input. */
static bool value_put(struct kv *k)
{
    struct slice value;
    if (k->words.count < 3) {
        if (!verb_input(&k->verb, &k->input, "the value", &value)) return false;
    } else if (!view_whole(slice_of(k->words.word[2]), &value)) {
        verb_say(&k->verb, "the value is not JSON; a text needs its quotes: '\"text\"'");
        verb_fail(&k->verb, CLI_USAGE);
        return false;
    }
    buf_text(&k->body, ",\"value\":");
    buf_slice(&k->body, value);
    return true;
}

static void keys_run(struct kv *k)
{
    const struct words *w = &k->words;
    const char *expect = value_of(k, O_EXPECT);
    buf_byte(&k->body, '[');
    switch ((enum command_bit)w->command->bit) {
    case GET:
        for (uint32_t i = 1; i < w->count; i++) {
            if (i > 1) buf_text(&k->body, "},");
            op_open(k, "get", w->word[i]);
        }
        break;
    case PUT:
    case PUT_IF_ABSENT:
        op_open(k, w->command->bit == PUT ? "put" : "putIfAbsent", w->word[1]);
        if (!value_put(k)) return;
        expiry_put(k);
        break;
    case INCR:
        op_open(k, "incr", w->word[1]);
        buf_printf(&k->body, ",\"delta\":%s", w->count == 3 ? w->word[2] : "1");
        if (value_of(k, O_MIN) != NULL) buf_printf(&k->body, ",\"min\":%s", value_of(k, O_MIN));
        if (value_of(k, O_MAX) != NULL) buf_printf(&k->body, ",\"max\":%s", value_of(k, O_MAX));
        expiry_put(k);
        break;
    default:
        op_open(k, "delete", w->word[1]);
        break;
    }
    if (expect != NULL) buf_printf(&k->body, ",\"expect\":%llu", (unsigned long long)k->expect);
    buf_text(&k->body, "}]");
    k->verb.once = w->command->bit == INCR || w->command->bit == PUT_IF_ABSENT || expect != NULL;
    if (ops_send(k, result_each)) verb_flush(&k->verb);
}

/* ---- lists ---- */

struct first {
    struct slice element;
};

static bool first_each(void *arg, struct slice element)
{
    struct first *f = arg;
    if (f->element.at == NULL) f->element = element;
    return true;
}

/* One page of at most `count` rows. A prefix goes the ordinary way; a whole name space has a route of its own. */
static bool page_get(void *ctx, uint64_t count)
{
    struct kv *k = ctx;
    static const char *const names[1] = {"results"};
    const char *prefix = value_of(k, O_PREFIX);
    bool whole_space = prefix == NULL || prefix[0] == 0;
    buf_clear(&k->body);
    buf_text(&k->body, whole_space ? "{\"namespace\":" : "[{\"op\":\"getPrefix\",\"ns\":");
    view_quote(&k->body, slice_of(k->words.word[0]));
    if (!whole_space) {
        buf_text(&k->body, ",\"prefix\":");
        view_quote(&k->body, slice_of(prefix));
    }
    if (k->rows.after.len > 0) {
        buf_text(&k->body, ",\"after\":");
        buf_slice(&k->body, buf_view(&k->rows.after));
    }
    buf_printf(&k->body, ",\"limit\":%llu,\"keysOnly\":%s%s", (unsigned long long)count,
               value_of(k, O_KEYS_ONLY) != NULL ? "true" : "false", whole_space ? "}" : "}]");
    struct slice path = slice_of(whole_space ? "/api/v1/resources/kv/list" : "/api/v1/kv");
    if (!verb_send(&k->verb, "POST", path, buf_view(&k->body), VERB_CALL_MS, 200, 0)) return false;
    struct slice whole, results = {0};
    if (!view_whole(k->verb.client.body, &whole)) return verb_answer_wrong(&k->verb);
    if (whole_space) return rows_page(&k->rows, &k->verb, whole);
    struct first first = {0};
    if (!view_members(whole, names, &results, 1) || results.at == NULL || !view_elements(results, first_each, &first) ||
        first.element.at == NULL) {
        return verb_answer_wrong(&k->verb);
    }
    return rows_page(&k->rows, &k->verb, first.element);
}

static void namespaces_run(struct kv *k)
{
    static const char *const names[1] = {"namespaces"};
    struct slice whole, spaces = {0};
    struct slice path = slice_of("/api/v1/resources/kv/namespaces");
    if (!verb_send(&k->verb, "GET", path, slice_of(""), VERB_CALL_MS, 200, 0)) return;
    if (!view_whole(k->verb.client.body, &whole) || !view_members(whole, names, &spaces, 1) || spaces.at == NULL ||
        !rows_print(&k->rows, spaces)) {
        verb_answer_wrong(&k->verb);
        return;
    }
    verb_flush(&k->verb);
}

/* ---- the command line ---- */

static bool numbers_read(struct kv *k)
{
    const struct verb *v = &k->verb;
    k->rows.limit = UINT64_MAX;
    if (!verb_number_given(v, "--ttl", value_of(k, O_TTL), 1, INT64_MAX, &k->ttl_s) ||
        !verb_number_given(v, "--expect", value_of(k, O_EXPECT), 0, INT64_MAX, &k->expect) ||
        !verb_number_given(v, "--limit", value_of(k, O_LIMIT), 1, INT64_MAX, &k->rows.limit)) {
        return false;
    }
    const char *numbers[3] = {value_of(k, O_MIN), value_of(k, O_MAX), NULL};
    if (k->words.command->bit == INCR && k->words.count == 3) numbers[2] = k->words.word[2];
    for (size_t i = 0; i < 3; i++) {
        if (numbers[i] == NULL || verb_json_number(numbers[i])) continue;
        verb_say(v, "%s is not a number", numbers[i]);
        return false;
    }
    return true;
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct kv *k, int argc, char **argv)
{
    int rc = words_read(&k->words, &k->verb, &TABLE, argc, argv);
    if (rc >= 0) return rc;
    if (!numbers_read(k)) return CLI_USAGE;
    bool sets = (k->words.command->bit & SETS) != 0;
    if (sets && (value_of(k, O_TTL) == NULL) == (value_of(k, O_FOREVER) == NULL)) {
        verb_say(&k->verb, "how long does it last? Either --ttl SECONDS or --forever");
        return CLI_USAGE;
    }
    return -1;
}

int cli_kv_main(int argc, char **argv)
{
    struct kv k = {.verb = {.name = "kv", .retries = VERB_RETRIES}};
    int rc = options_read(&k, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&k.verb)) {
        if (k.words.command->bit == LIST) {
            rows_begin(&k.rows, value_of(&k, O_AFTER));
            rows_list(&k.rows, page_get, &k);
        } else if (k.words.command->bit == NAMESPACES) {
            namespaces_run(&k);
        } else {
            keys_run(&k);
        }
    }
    verb_close(&k.verb);
    buf_free(&k.input);
    buf_free(&k.body);
    rows_free(&k.rows);
    return k.verb.rc;
}
