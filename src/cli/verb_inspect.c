/* `queen inspect`: looks into a data directory that nobody has open, or a backup. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/isotime.h"
#include "base/logger.h"
#include "cli/inspect.h"

static const char HELP[] =
    "Usage: queen inspect DIR [PART] [--group N] [--from N] [--to N] [--kind KIND] [--limit N] [--json]\n"
    "\n"
    "Looks into the data directory of a stopped broker, or into a backup. Changes nothing.\n"
    "\n"
    "  (no PART)            a short account of each group\n"
    "  segments             the log's files: positions, sizes, entries, what is left of them\n"
    "  entries              the log's entries with their commands, those of --from N to --to N\n"
    "  rows                 the store: rows and bytes of each kind; with --kind KIND each row of that kind\n"
    "  identity             who the node is: its small files\n"
    "  raft                 term and vote, members, what is stored\n"
    "  check                reads everything and verifies every checksum; tells what is damaged, file and offset\n"
    "\n"
    "  --group N            only that group of the node\n"
    "  --from N, --to N     entries by their index\n"
    "  --kind KIND          meta, queue, group, partition, cursor, dead-letter, dedup, segment, kv, timer, run,\n"
    "                       dedup-generation, dedup-filter, dedup-records\n"
    "  --limit N            so many entries or rows at most\n"
    "  --json               one JSON object a line\n"
    "\n"
    "Exit code: 0 fine; 1 wrong command line, no such directory, or it is in use; 2 something is damaged; 3 a file cannot be "
    "read.\n"
    "\n"
    "  queen inspect /var/lib/queen check\n"
    "  queen inspect /backups/tuesday entries --from 1000 --to 1010\n";

/* ---- output ---- */

void inspect_text(struct inspect *i, const char *key, struct slice text)
{
    buf_printf(&i->line, "%s\"%s\":", i->line.len == 0 ? "" : ",", key);
    view_quote(&i->line, text);
}

void inspect_field(struct inspect *i, const char *key, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    buf_printf(&i->line, "%s\"%s\":%s", i->line.len == 0 ? "" : ",", key, text);
}

void inspect_line_end(struct inspect *i)
{
    printf("{%.*s}\n", (int)i->line.len, i->line.at);
    buf_clear(&i->line);
}

void inspect_time(struct buf *out, int64_t wall_us)
{
    char text[ISOTIME_SECONDS_BYTES + 1];
    uint32_t micros;
    isotime_seconds_put(text, wall_us, &micros);
    buf_printf(out, "%.*s.%06" PRIu32 "Z", ISOTIME_SECONDS_BYTES, text, micros);
}

void inspect_bytes(struct buf *out, struct slice bytes)
{
    for (size_t n = 0; n < bytes.len; n++) {
        unsigned char c = (unsigned char)bytes.at[n];
        if (c >= ' ' && c < 127 && c != '\\')
            buf_byte(out, (char)c);
        else
            buf_printf(out, "\\x%02x", c);
    }
}

void inspect_find(struct inspect *i, const char *file, uint64_t offset, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    i->findings++;
    verb_fail(&i->verb, INSPECT_DAMAGED);
    if (i->json) {
        buf_clear(&i->line);
        inspect_text(i, "damaged", slice_of(file));
        if (offset != UINT64_MAX) inspect_field(i, "offset", "%" PRIu64, offset);
        inspect_text(i, "why", slice_of(text));
        inspect_line_end(i);
    } else if (offset != UINT64_MAX) {
        printf("damaged: %s: offset %" PRIu64 ": %s\n", file, offset, text);
    } else {
        printf("damaged: %s: %s\n", file, text);
    }
}

void inspect_io(struct inspect *i, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    verb_say(&i->verb, "%s", text);
    verb_fail(&i->verb, INSPECT_IO);
}

/* ---- the directory ---- */

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool has(const char *dir, const char *name)
{
    char path[INSPECT_PATH_BYTES];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &st) == 0;
}

static void group_add(struct inspect *i, uint32_t number, const char *dir)
{
    if (i->only_group >= 0 && (uint32_t)i->only_group != number) return;
    i->groups = realloc(i->groups, (i->group_count + 1) * sizeof *i->groups);
    must(i->groups != NULL);
    struct inspect_group *g = &i->groups[i->group_count++];
    *g = (struct inspect_group){.number = number};
    snprintf(g->dir, sizeof g->dir, "%s", dir);
}

/* The lock that a broker on the directory would hold. It stays until the process ends. */
static bool lock_take(struct inspect *i, const char *dir)
{
    char path[INSPECT_PATH_BYTES + 8];
    snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    verb_say(&i->verb, "%s is in use by a broker: stop it first, or make a backup (`queen backup`) and look into that", dir);
    close(fd);
    return false;
}

/* A backup, one group of a backup, or a data directory with its groups. */
static bool dir_open(struct inspect *i)
{
    char path[INSPECT_PATH_BYTES];
    if (strlen(i->dir) > INSPECT_PATH_BYTES - 200 || !is_dir(i->dir)) {
        verb_say(&i->verb, "%.300s: there is no such directory", i->dir);
        return false;
    }
    bool one = has(i->dir, "manifest") && has(i->dir, "store");
    i->backup = has(i->dir, "BACKUP") || one;
    if (one || (!i->backup && (has(i->dir, "store") || has(i->dir, "log")))) group_add(i, 0, i->dir);
    for (uint32_t n = i->backup ? 0 : 1; n < CONFIG_GROUPS_MAX; n++) {
        snprintf(path, sizeof path, "%s/group-%" PRIu32, i->dir, n);
        if (!one && is_dir(path)) group_add(i, n, path);
    }
    if (i->group_count == 0) {
        verb_say(&i->verb, "%s: no data of a broker, and no backup, is in it%s", i->dir,
                 i->only_group >= 0 ? ", or not that group" : "");
        return false;
    }
    for (uint32_t n = 0; n < i->group_count && !i->backup; n++)
        if (!lock_take(i, i->groups[n].dir)) return false;
    return true;
}

static void groups_free(struct inspect *i)
{
    for (uint32_t n = 0; n < i->group_count; n++) {
        free(i->groups[n].segments);
        free(i->groups[n].archive);
        store_look_close(i->groups[n].store);
    }
    free(i->groups);
}

bool inspect_store_open(struct inspect *i, struct inspect_group *g)
{
    char dir[INSPECT_PATH_BYTES + 8];
    struct buf error = {0};
    if (g->store != NULL) return true;
    snprintf(dir, sizeof dir, "%s/store", g->dir);
    enum store_status status = store_look_open(&g->store, dir, &g->mark, &error);
    if (status == STORE_DAMAGED) inspect_find(i, dir, UINT64_MAX, "%.*s", (int)error.len, error.at);
    if (status == STORE_IO) inspect_io(i, "%.*s", (int)error.len, error.at);
    buf_free(&error);
    return status == STORE_OK;
}

/* ---- the command line ---- */

enum part { SUMMARY, SEGMENTS, ENTRIES, ROWS, IDENTITY, RAFT, CHECK, PARTS };
static const char *const PART_NAMES[PARTS] = {"", "segments", "entries", "rows", "identity", "raft", "check"};

static void part_run(struct inspect *i, enum part part)
{
    static void (*const by_group[PARTS])(struct inspect *, struct inspect_group *) = {[SUMMARY] = inspect_summary,
                                                                                      [SEGMENTS] = inspect_segments,
                                                                                      [ENTRIES] = inspect_entries,
                                                                                      [ROWS] = inspect_rows,
                                                                                      [RAFT] = inspect_raft};
    if (part == IDENTITY) inspect_identity(i);
    if (part == CHECK) inspect_check(i);
    for (uint32_t n = 0; n < i->group_count && by_group[part] != NULL; n++) {
        if (i->group_count > 1 && !i->json) printf("%sgroup %" PRIu32 "\n", n == 0 ? "" : "\n", i->groups[n].number);
        by_group[part](i, &i->groups[n]);
    }
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct inspect *i, enum part *part, int argc, char **argv)
{
    enum { O_GROUP = 1, O_FROM, O_TO, O_KIND, O_LIMIT, O_JSON, O_HELP };
    static const struct option options[] = {
        {"group", required_argument, NULL, O_GROUP}, {"from", required_argument, NULL, O_FROM},
        {"to", required_argument, NULL, O_TO},       {"kind", required_argument, NULL, O_KIND},
        {"limit", required_argument, NULL, O_LIMIT}, {"json", no_argument, NULL, O_JSON},
        {"help", no_argument, NULL, O_HELP},         {NULL, 0, NULL, 0}};
    uint64_t group = 0;
    for (int o; (o = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (o == O_GROUP && !verb_number(&i->verb, "--group", optarg, 0, CONFIG_GROUPS_MAX - 1, &group)) return CLI_USAGE;
        if (o == O_GROUP) i->only_group = (int)group;
        if (o == O_FROM && !verb_number(&i->verb, "--from", optarg, 0, INT64_MAX, &i->from)) return CLI_USAGE;
        if (o == O_TO && !verb_number(&i->verb, "--to", optarg, 1, INT64_MAX, &i->to)) return CLI_USAGE;
        if (o == O_LIMIT && !verb_number(&i->verb, "--limit", optarg, 1, INT64_MAX, &i->limit)) return CLI_USAGE;
        if (o == O_KIND) i->kind = optarg;
        i->json |= o == O_JSON;
        if (o == '?') return CLI_USAGE;
        if (o == O_HELP || o == 'h') {
            fputs(HELP, stdout);
            return CLI_OK;
        }
    }
    int words = argc - optind;
    *part = SUMMARY;
    if (words == 2) {
        while (*part < PARTS && strcmp(argv[optind + 1], PART_NAMES[*part]) != 0) (*part)++;
        if (*part == PARTS) verb_say(&i->verb, "there is no part %s; see `queen inspect --help`", argv[optind + 1]);
        if (*part == PARTS) return CLI_USAGE;
    }
    if (words < 1 || words > 2) {
        verb_say(&i->verb, "which directory? See `queen inspect --help`");
        return CLI_USAGE;
    }
    i->dir = argv[optind];
    return -1;
}

int cli_inspect_main(int argc, char **argv)
{
    struct inspect i = {.verb = {.name = "inspect"}, .only_group = -1};
    enum part part;
    int rc = options_read(&i, &part, argc, argv);
    if (rc >= 0) return rc;
    logger_init(LOGGER_ERROR, false);
    if (dir_open(&i))
        part_run(&i, part);
    else
        verb_fail(&i.verb, CLI_USAGE);
    groups_free(&i);
    buf_free(&i.line);
    verb_flush(&i.verb);
    return i.verb.rc;
}
