/* `queen backup`: asks a broker for a backup, and waits until it is whole. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/verb.h"

enum { POLL_MS = 100, NEWS_MS = 1000 };

static const char ROUTE[] = "/api/v1/system/backup";

static const char HELP[] =
    "Usage: queen backup DIR [--from PREVIOUS] [--rate BYTES] [--no-wait] [--json] [--url URL]\n"
    "       queen backup --status [--json] [--url URL]\n"
    "       queen backup --cancel [--url URL]\n"
    "\n"
    "A backup of a node that goes on serving, written by the broker itself into DIR on its machine: everything it had "
    "answered\n"
    "when the backup began is in it, each group as it was at one entry of its log. DIR must be empty or not there, and outside "
    "of the\n"
    "data directory. It is whole when there is a file BACKUP in it; `queen restore` makes a data directory of it.\n"
    "\n"
    "On the file system of the data directory files are hard links, which take no room until the broker has dropped its own.\n"
    "Elsewhere they are copied, and what has not changed since PREVIOUS is linked from there: each backup is complete by "
    "itself,\n"
    "and any of them may be removed.\n"
    "\n"
    "  --from PREVIOUS      an earlier backup to share unchanged files with\n"
    "  --rate BYTES         read and copy at most so much a second; K, M, G may follow (no limit)\n"
    "  --no-wait            do not wait for its end: see --status\n"
    "  --status             the backup under way, or the last one\n"
    "  --cancel             end the one under way; what it wrote is removed\n"
    "  --json               the server's answers as they are\n"
    "  --url URL            http://HOST:PORT of the broker (also --server; environment QUEEN_SERVER, else "
    "http://127.0.0.1:6632)\n"
    "\n"
    "A relative DIR or PREVIOUS counts from where this runs. Interrupted (Ctrl-C) it cancels the backup.\n"
    "\n"
    "Exit code: 0 the backup is whole; 1 wrong command line; 3 none is under way; 4 it was refused or failed; 5 the server "
    "cannot\n"
    "be reached.\n"
    "\n"
    "  queen backup /backups/tuesday --from /backups/monday\n";

struct backup {
    struct verb verb;
    const char *dir, *from;
    uint64_t rate;
    bool no_wait, status, cancel, json;
    struct buf path, body, scratch;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- what the server says ---- */

enum { STATE, PHASE, DIR_NAME, FILES, FILES_DONE, BYTES, BYTES_DONE, LINKED, COPIED, ERROR, ID, FIELDS };
static const char *const FIELD_NAMES[FIELDS] = {"state",     "phase",       "dir",         "files", "filesDone", "bytes",
                                                "bytesDone", "bytesLinked", "bytesCopied", "error", "id"};

static bool answer_wrong(struct backup *b)
{
    verb_say(&b->verb, "the answer is not what it should be (is that address a Queen server?)");
    verb_fail(&b->verb, CLI_REFUSED);
    return false;
}

static bool call(struct backup *b, const char *method, unsigned wanted, struct slice *whole)
{
    buf_clear(&b->path);
    buf_text(&b->path, ROUTE);
    if (!verb_send(&b->verb, method, buf_view(&b->path), buf_view(&b->body), VERB_CALL_MS, wanted, 0)) return false;
    return view_whole(b->verb.client.body, whole) || answer_wrong(b);
}

/* Reads {"backup":B}; f[ID].at is NULL when there is none. */
static bool fields_take(struct backup *b, struct slice whole, struct slice f[FIELDS])
{
    static const char *const names[1] = {"backup"};
    struct slice value = {0};
    memset(f, 0, FIELDS * sizeof f[0]);
    if (!view_members(whole, names, &value, 1) || value.at == NULL) return answer_wrong(b);
    if (view_is_null(value)) return true;
    return (view_members(value, FIELD_NAMES, f, FIELDS) && view_is_string(f[STATE]) && view_is_string(f[ID])) ||
           answer_wrong(b);
}

static uint64_t number_of(struct slice raw)
{
    uint64_t v = 0;
    for (size_t i = 0; i < raw.len && raw.at[i] >= '0' && raw.at[i] <= '9'; i++) v = v * 10 + (uint64_t)(raw.at[i] - '0');
    return v;
}

static void size_put(struct buf *out, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int unit = 0;
    for (; v >= 1024 && unit < 4; unit++) v /= 1024;
    buf_printf(out, unit == 0 ? "%.0f %s" : "%.1f %s", v, units[unit]);
}

static void progress_say(struct backup *b, const struct slice f[FIELDS])
{
    struct buf *t = &b->scratch;
    buf_clear(t);
    if (slice_is(view_unquoted(f[PHASE]), "state")) {
        buf_text(t, "taking the state");
    } else {
        size_put(t, number_of(f[BYTES_DONE]));
        buf_text(t, " of ");
        size_put(t, number_of(f[BYTES]));
        buf_printf(t, ", %llu of %llu files", (unsigned long long)number_of(f[FILES_DONE]),
                   (unsigned long long)number_of(f[FILES]));
    }
    verb_say(&b->verb, "%.*s", (int)t->len, t->at);
}

static void result_say(struct backup *b, const struct slice f[FIELDS])
{
    struct buf *t = &b->scratch;
    buf_clear(t);
    view_text(t, f[DIR_NAME]);
    if (slice_is(view_unquoted(f[STATE]), "done")) {
        buf_printf(t, ": whole, %llu files, ", (unsigned long long)number_of(f[FILES_DONE]));
        size_put(t, number_of(f[BYTES_DONE]));
        buf_text(t, " (");
        size_put(t, number_of(f[LINKED]));
        buf_text(t, " linked, ");
        size_put(t, number_of(f[COPIED]));
        buf_text(t, " copied)");
        printf("%.*s\n", (int)t->len, t->at);
    } else if (slice_is(view_unquoted(f[STATE]), "failed")) {
        buf_text(t, ": ");
        view_text(t, f[ERROR]);
        verb_say(&b->verb, "%.*s", (int)t->len, t->at);
        verb_fail(&b->verb, CLI_REFUSED);
    } else {
        printf("%.*s: running\n", (int)t->len, t->at);
    }
}

/* ---- what is asked for ---- */

/* As the broker wants it: from the root on. */
static bool path_whole(struct backup *b, const char *given, const char *field)
{
    char cwd[PATH_MAX];
    buf_printf(&b->body, "\"%s\":", field);
    if (given[0] == '/') {
        view_quote(&b->body, slice_of(given));
        return true;
    }
    if (getcwd(cwd, sizeof cwd) == NULL) {
        verb_say(&b->verb, "the current directory cannot be told: %s", strerror(errno));
        verb_fail(&b->verb, CLI_USAGE);
        return false;
    }
    while (strncmp(given, "./", 2) == 0) given += 2;
    struct buf path = {0};
    buf_printf(&path, "%s/%s", strcmp(cwd, "/") == 0 ? "" : cwd, given);
    view_quote(&b->body, buf_view(&path));
    buf_free(&path);
    return true;
}

static bool begin(struct backup *b, struct slice *whole)
{
    buf_clear(&b->body);
    buf_byte(&b->body, '{');
    if (!path_whole(b, b->dir, "dir")) return false;
    if (b->from != NULL) {
        buf_byte(&b->body, ',');
        if (!path_whole(b, b->from, "previous")) return false;
    }
    if (b->rate > 0) buf_printf(&b->body, ",\"bytesPerSecond\":%llu", (unsigned long long)b->rate);
    buf_byte(&b->body, '}');
    b->verb.once = true; /* a second try would find the directory not empty */
    bool good = call(b, "POST", 202, whole);
    b->verb.once = false;
    buf_clear(&b->body);
    return good;
}

/* Until it has ended, by itself or because we were interrupted. */
static void wait_end(struct backup *b, struct slice f[FIELDS], struct slice *whole)
{
    struct buf id = {0};
    bool told = false;
    int64_t news_us = clock_mono_us();
    buf_slice(&id, f[ID]);
    buf_byte(&id, '\0');
    id.len--;
    while (slice_is(view_unquoted(f[STATE]), "running")) {
        if (interrupted && !told) {
            told = true;
            verb_say(&b->verb, "interrupted: cancelling the backup");
            call(b, "DELETE", 200, whole);
        }
        verb_sleep_ms(POLL_MS);
        if (!call(b, "GET", 200, whole) || !fields_take(b, *whole, f)) break;
        if (f[ID].at == NULL || !slice_is(f[ID], id.at)) {
            verb_say(&b->verb, "the broker started anew, or made another backup meanwhile: this one did not come to its end");
            verb_fail(&b->verb, CLI_REFUSED);
            f[ID].at = NULL;
            break;
        }
        if (!b->json && clock_mono_us() - news_us >= NEWS_MS * 1000) {
            news_us = clock_mono_us();
            progress_say(b, f);
        }
    }
    buf_free(&id);
}

static void backup_run(struct backup *b)
{
    struct slice whole, f[FIELDS];
    bool good = b->dir != NULL ? begin(b, &whole) : call(b, "GET", 200, &whole);
    if (!good || !fields_take(b, whole, f)) return;
    if (b->dir != NULL && !b->no_wait) wait_end(b, f, &whole);
    if (b->verb.rc != 0) return;
    if (f[ID].at == NULL) {
        verb_say(&b->verb, "no backup was made since the broker started");
        verb_fail(&b->verb, CLI_NO);
    } else if (b->json) {
        verb_line(&b->scratch, whole);
        if (slice_is(view_unquoted(f[STATE]), "failed")) verb_fail(&b->verb, CLI_REFUSED);
    } else {
        result_say(b, f);
    }
    verb_flush(&b->verb);
}

static void cancel_run(struct backup *b)
{
    struct slice whole;
    if (call(b, "DELETE", 200, &whole)) printf("cancelled\n");
    verb_flush(&b->verb);
}

/* ---- the command line ---- */

static bool rate_read(struct backup *b, const char *text)
{
    static const char units[] = "KMG";
    char digits[32];
    size_t len = strlen(text);
    const char *unit = len == 0 ? NULL : strchr(units, text[len - 1]);
    if (unit != NULL) len--;
    if (len == 0 || len >= sizeof digits) return verb_number(&b->verb, "--rate", text, 1, INT64_MAX, &b->rate);
    snprintf(digits, sizeof digits, "%.*s", (int)len, text);
    if (!verb_number(&b->verb, "--rate", digits, 1, (uint64_t)INT64_MAX >> 30, &b->rate)) return false;
    if (unit != NULL) b->rate <<= 10 * (unit - units + 1);
    return true;
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct backup *b, int argc, char **argv)
{
    enum { O_FROM = 1, O_RATE, O_NO_WAIT, O_STATUS, O_CANCEL, O_JSON, O_URL, O_HELP };
    static const struct option options[] = {
        {"from", required_argument, NULL, O_FROM}, {"rate", required_argument, NULL, O_RATE},
        {"no-wait", no_argument, NULL, O_NO_WAIT}, {"status", no_argument, NULL, O_STATUS},
        {"cancel", no_argument, NULL, O_CANCEL},   {"json", no_argument, NULL, O_JSON},
        {"url", required_argument, NULL, O_URL},   {"server", required_argument, NULL, O_URL},
        {"help", no_argument, NULL, O_HELP},       {NULL, 0, NULL, 0}};
    for (int o; (o = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (o == O_FROM) b->from = optarg;
        if (o == O_RATE && !rate_read(b, optarg)) return CLI_USAGE;
        b->no_wait |= o == O_NO_WAIT;
        b->status |= o == O_STATUS;
        b->cancel |= o == O_CANCEL;
        b->json |= o == O_JSON;
        if (o == O_URL) b->verb.server = optarg;
        if (o == '?') return CLI_USAGE;
        if (o == O_HELP || o == 'h') {
            fputs(HELP, stdout);
            return CLI_OK;
        }
    }
    if (optind < argc) b->dir = argv[optind++];
    bool alone = b->status || b->cancel;
    if (optind == argc && (b->dir != NULL) != alone && !(b->status && b->cancel) && (b->dir == NULL || b->dir[0] != '\0'))
        return -1;
    verb_say(&b->verb,
             b->dir == NULL ? "which directory? See `queen backup --help`" : "unexpected arguments; see `queen backup --help`");
    return CLI_USAGE;
}

int cli_backup_main(int argc, char **argv)
{
    struct backup b = {.verb = {.name = "backup", .retries = VERB_RETRIES}};
    int rc = options_read(&b, argc, argv);
    if (rc >= 0) return rc;
    struct sigaction action = {.sa_handler = on_signal};
    if (b.dir != NULL && !b.no_wait) {
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
    }
    if (verb_open(&b.verb)) {
        if (b.cancel)
            cancel_run(&b);
        else
            backup_run(&b);
    }
    verb_close(&b.verb);
    buf_free(&b.path);
    buf_free(&b.body);
    buf_free(&b.scratch);
    return b.verb.rc;
}
