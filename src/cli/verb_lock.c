/* `queen lock`: locks and semaphores, each command one call of POST /api/v1/locks. */
#include <stdio.h>

#include "cli/words.h"

enum command_bit { ACQUIRE = 1, RENEW = 2, RELEASE = 4, GET = 8 };

enum option_place { O_TTL, O_OWNER, O_LIMIT, O_TOKEN, O_SLOT, OPTION_COUNT };

static const char HELP[] =
    "Usage: queen lock acquire NAME --ttl S [--owner NAME] [--limit N]\n"
    "       queen lock renew NAME --token N --ttl S [--slot N] [--owner NAME]\n"
    "       queen lock release NAME --token N [--slot N]\n"
    "       queen lock get NAME\n"
    "\n"
    "Locks, and semaphores of up to --limit holders. A lock ends by itself after its --ttl. Prints one JSON line.\n"
    "\n"
    "  acquire              {\"acquired\":true,\"slot\",\"token\",\"guard\",...}, or false with its holders. The guard is a KV "
    "op: put\n"
    "                       it into a transaction's \"kv\" and that commits only while the lock is still held\n"
    "  renew                {\"renewed\":true,\"token\",\"guard\",...}: from now on the new token counts. False: it was lost\n"
    "  release              {\"released\":true,...}, or false: it was lost\n"
    "  get                  {\"held\",\"holders\":[{\"slot\",\"owner\",\"token\",\"since\",\"expiresAt\",\"renewedAt\"}],...}\n"
    "\n"
    "  --ttl S              seconds it is held\n"
    "  --owner NAME         who: the same owner acquiring again is given the lock it holds\n"
    "  --limit N            holders at a time, 1 to 1024 (1)\n"
    "  --token N            as acquire or renew answered\n"
    "  --slot N             as acquire answered (0)\n"
    "  --server URL         http://HOST:PORT (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often a call is made again when the server is busy or went away (10). Without an --owner only\n"
    "                       where the first call certainly did nothing\n"
    "\n"
    "Exit code: 0 done; 1 wrong command line; 3 not acquired, lost, or not held; 4 refused; 5 the server cannot be reached.\n"
    "\n"
    "  queen lock acquire nightly --ttl 600 --owner $(hostname) && ./nightly\n";

static const struct words_command COMMANDS[] = {
    {"acquire", ACQUIRE, 1, 1, "NAME"},
    {"renew", RENEW, 1, 1, "NAME"},
    {"release", RELEASE, 1, 1, "NAME"},
    {"get", GET, 1, 1, "NAME"},
};

static const struct words_option OPTIONS[OPTION_COUNT] = {
    [O_TTL] = {"ttl", false, ACQUIRE | RENEW},   [O_OWNER] = {"owner", false, ACQUIRE | RENEW},
    [O_LIMIT] = {"limit", false, ACQUIRE},       [O_TOKEN] = {"token", false, RENEW | RELEASE},
    [O_SLOT] = {"slot", false, RENEW | RELEASE},
};

static const struct words_table TABLE = {
    .help = HELP,
    .commands = COMMANDS,
    .command_count = sizeof COMMANDS / sizeof COMMANDS[0],
    .options = OPTIONS,
    .option_count = OPTION_COUNT,
};

struct lock {
    struct verb verb;
    struct words words;
    struct buf body;
    struct buf scratch;
};

static bool result_each(void *arg, struct slice element)
{
    static const char *const names[4] = {"acquired", "renewed", "released", "held"};
    struct lock *l = arg;
    struct slice m[4] = {{0}};
    if (!view_members(element, names, m, 4)) return false;
    for (size_t i = 0; i < 4; i++) {
        if (slice_is(m[i], "false")) verb_fail(&l->verb, CLI_NO);
    }
    verb_line(&l->scratch, element);
    return true;
}

static void lock_run(struct lock *l)
{
    static const char *const fields[OPTION_COUNT] = {"ttlSeconds", "owner", "limit", "token", "slot"};
    static const char *const names[1] = {"results"};
    const struct words *w = &l->words;
    buf_printf(&l->body, "[{\"op\":\"%s\",\"name\":", w->command->name);
    view_quote(&l->body, slice_of(w->word[0]));
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (w->value[i] == NULL) continue;
        buf_printf(&l->body, ",\"%s\":", fields[i]);
        if (i == O_OWNER) {
            view_quote(&l->body, slice_of(w->value[i]));
        } else {
            buf_printf(&l->body, "%llu", strtoull(w->value[i], NULL, 10)); /* options_read has checked it */
        }
    }
    buf_text(&l->body, "}]");
    l->verb.once = w->command->bit != GET && w->value[O_OWNER] == NULL;
    struct slice whole, results = {0};
    if (!verb_send(&l->verb, "POST", slice_of("/api/v1/locks"), buf_view(&l->body), VERB_CALL_MS, 200, 0)) return;
    if (!view_whole(l->verb.client.body, &whole) || !view_members(whole, names, &results, 1) || results.at == NULL ||
        !view_elements(results, result_each, l)) {
        verb_answer_wrong(&l->verb);
        return;
    }
    verb_flush(&l->verb);
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct lock *l, int argc, char **argv)
{
    static const char *const needed[OPTION_COUNT] = {[O_TTL] = "--ttl SECONDS", [O_TOKEN] = "--token N"};
    int rc = words_read(&l->words, &l->verb, &TABLE, argc, argv);
    if (rc >= 0) return rc;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        bool takes = (OPTIONS[i].commands & l->words.command->bit) != 0;
        if (!takes || needed[i] == NULL || l->words.value[i] != NULL) continue;
        verb_say(&l->verb, "%s needs %s; see `queen lock --help`", l->words.command->name, needed[i]);
        return CLI_USAGE;
    }
    uint64_t n = 0;
    bool right = verb_number_given(&l->verb, "--ttl", l->words.value[O_TTL], 1, INT64_MAX, &n) &&
                 verb_number_given(&l->verb, "--limit", l->words.value[O_LIMIT], 1, 1024, &n) &&
                 verb_number_given(&l->verb, "--token", l->words.value[O_TOKEN], 1, INT64_MAX, &n) &&
                 verb_number_given(&l->verb, "--slot", l->words.value[O_SLOT], 0, 1023, &n);
    return right ? -1 : CLI_USAGE;
}

int cli_lock_main(int argc, char **argv)
{
    struct lock l = {.verb = {.name = "lock", .retries = VERB_RETRIES}};
    int rc = options_read(&l, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&l.verb)) lock_run(&l);
    verb_close(&l.verb);
    buf_free(&l.body);
    buf_free(&l.scratch);
    return l.verb.rc;
}
