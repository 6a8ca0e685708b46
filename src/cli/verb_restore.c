/* `queen restore`: a backup becomes a data directory. Offline. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "broker/restore.h"
#include "cli/verb.h"

enum { NEWS_US = 1000000, EXIT_DAMAGED = 2, EXIT_IO = 3 };

static const char HELP[] =
    "Usage: queen restore BACKUP --data DIR [--node N --peers LIST]\n"
    "       queen restore BACKUP --verify\n"
    "\n"
    "Makes a data directory for `queen serve` out of a backup. Every file of the backup is checked first; nothing is written "
    "when one\n"
    "is damaged. DIR must be empty or not there.\n"
    "\n"
    "For one node alone --data is all. For a cluster run it on each of its nodes, from a copy of the same backup and with the\n"
    "same list of peers: all begin with the same state and with these peers as their members, and are then started with the "
    "same\n"
    "QUEEN_RAFT_PEERS, their QUEEN_RAFT_NODE_ID, and a QUEEN_RAFT_TOKEN. Other nodes can be added later (`queen cluster "
    "add`).\n"
    "What is restored belongs to a new cluster: it never talks to nodes of the one that the backup was taken from.\n"
    "\n"
    "  --data DIR           the data directory to make\n"
    "  --node N             this node's number (1)\n"
    "  --peers LIST         id=raft_host:port/http_host:port,... as in QUEEN_RAFT_PEERS; this node among them\n"
    "  --verify             only check the backup\n"
    "  --quiet              no progress\n"
    "\n"
    "Exit code: 0 done; 1 wrong command line, no backup there, or DIR not empty; 2 the backup is damaged (which files is "
    "told); 3 it could\n"
    "not be read or written.\n"
    "\n"
    "  queen restore /backups/tuesday --data /var/lib/queen && queen serve --data /var/lib/queen\n";

struct restore {
    struct verb verb;
    const char *backup, *data, *peers_text;
    struct config_peer peers[CONFIG_PEERS_MAX];
    uint32_t peer_count;
    uint64_t node;
    bool verify, quiet;
    int64_t news_us;
};

static void progress(void *ctx, bool copying, uint64_t done, uint64_t total)
{
    struct restore *r = ctx;
    int64_t now_us = clock_mono_us();
    if (r->quiet || now_us - r->news_us < NEWS_US) return;
    r->news_us = now_us;
    verb_say(&r->verb, "%s: %llu of %llu MiB", copying ? "copied" : "checked", (unsigned long long)(done >> 20),
             (unsigned long long)(total >> 20));
}

static bool peers_read(struct restore *r)
{
    struct buf error = {0};
    bool me = false, good = restore_peers_read(r->peers_text, r->peers, &r->peer_count, &error);
    if (!good) verb_say(&r->verb, "--peers: %.*s", (int)error.len, error.at);
    buf_free(&error);
    for (uint32_t i = 0; i < r->peer_count; i++) me |= r->peers[i].id == r->node;
    if (good && !me) verb_say(&r->verb, "--node %llu is not among --peers", (unsigned long long)r->node);
    return good && me;
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct restore *r, int argc, char **argv)
{
    enum { O_DATA = 1, O_NODE, O_PEERS, O_VERIFY, O_QUIET, O_HELP };
    static const struct option options[] = {{"data", required_argument, NULL, O_DATA},
                                            {"node", required_argument, NULL, O_NODE},
                                            {"peers", required_argument, NULL, O_PEERS},
                                            {"verify", no_argument, NULL, O_VERIFY},
                                            {"quiet", no_argument, NULL, O_QUIET},
                                            {"help", no_argument, NULL, O_HELP},
                                            {NULL, 0, NULL, 0}};
    for (int o; (o = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (o == O_DATA) r->data = optarg;
        if (o == O_NODE && !verb_number(&r->verb, "--node", optarg, 1, 1000000000, &r->node)) return CLI_USAGE;
        if (o == O_PEERS) r->peers_text = optarg;
        r->verify |= o == O_VERIFY;
        r->quiet |= o == O_QUIET;
        if (o == '?') return CLI_USAGE;
        if (o == O_HELP || o == 'h') {
            fputs(HELP, stdout);
            return CLI_OK;
        }
    }
    if (optind + 1 != argc || argv[optind][0] == '\0') {
        verb_say(&r->verb, "which backup? See `queen restore --help`");
        return CLI_USAGE;
    }
    r->backup = argv[optind];
    if ((r->data != NULL) == r->verify || (r->data != NULL && r->data[0] == '\0')) {
        verb_say(&r->verb, "either --data DIR, or --verify");
        return CLI_USAGE;
    }
    return r->peers_text == NULL || peers_read(r) ? -1 : CLI_USAGE;
}

static void lines_say(const struct restore *r, const struct buf *error)
{
    for (struct slice rest = buf_view(error); rest.len > 0;) {
        const char *end = memchr(rest.at, '\n', rest.len);
        size_t len = end == NULL ? rest.len : (size_t)(end - rest.at);
        verb_say(&r->verb, "%.*s", (int)len, rest.at);
        rest = slice_make(rest.at + len + (end != NULL), rest.len - len - (end != NULL));
    }
}

static void result_say(const struct restore *r, const struct backup_file *f)
{
    unsigned long long mib = (unsigned long long)(backup_file_bytes(f) >> 20);
    char id[UUID_TEXT];
    uuid_text(f->id, id);
    printf("%s: backup %.*s of node %llu: %u files, %llu MiB, all whole\n", r->backup, UUID_TEXT, id,
           (unsigned long long)f->node, f->count, mib);
    for (uint32_t i = 0; i < f->group_count; i++)
        printf("group %u: entry %llu, term %llu\n", i, (unsigned long long)f->groups[i].index,
               (unsigned long long)f->groups[i].term);
    if (r->data == NULL) return;
    printf("%s is ready for: ", r->data);
    if (r->peer_count > 0)
        printf("QUEEN_RAFT_PEERS=%s QUEEN_RAFT_NODE_ID=%llu QUEEN_RAFT_TOKEN=... ", r->peers_text, (unsigned long long)r->node);
    if (f->group_count > 1) printf("QUEEN_RAFT_GROUPS=%u ", f->group_count);
    printf("queen serve --data %s\n", r->data);
}

int cli_restore_main(int argc, char **argv)
{
    static const int exits[] = {
        [RESTORE_OK] = CLI_OK, [RESTORE_USAGE] = CLI_USAGE, [RESTORE_DAMAGED] = EXIT_DAMAGED, [RESTORE_IO] = EXIT_IO};
    struct restore r = {.verb = {.name = "restore"}, .node = 1};
    int rc = options_read(&r, argc, argv);
    if (rc >= 0) return rc;
    logger_init(LOGGER_WARN, false);
    struct backup_file file;
    struct buf error = {0};
    struct restore_options o = {.backup = r.backup,
                                .data = r.data,
                                .node = r.node,
                                .peers = r.peers,
                                .peer_count = r.peer_count,
                                .ctx = &r,
                                .progress = progress};
    r.news_us = clock_mono_us();
    enum restore_result result = restore_run(&o, &file, &error);
    if (result == RESTORE_OK)
        result_say(&r, &file);
    else
        lines_say(&r, &error);
    backup_file_free(&file);
    buf_free(&error);
    return exits[result];
}
