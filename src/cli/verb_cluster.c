/* `queen cluster`: who belongs to the cluster, and changes of that. Any node is asked; it passes a change on to the leader. */
#include <stdio.h>

#include "base/clock.h"
#include "cli/cluster.h"
#include "cli/words.h"

enum command_bit { STATUS = 1, MEMBERS = 2, ADD = 4, PROMOTE = 8, REMOVE = 16, ADDRESS = 32 };

enum option_place { O_JSON, O_ID, O_RAFT, O_HTTP, O_FORCE, O_WAIT, OPTION_COUNT };

enum {
    IDS_MAX = 9,
    ID_MAX = 1000000000,
    WAIT_S = 600,
    WAIT_S_MAX = 86400,
    POLL_MS = 200,
    NEWS_MS = 5000, /* how often a wait tells how far it is */
};

static const char ROUTE[] = "/api/v1/system/raft/membership";

static const char HELP[] =
    "Usage: queen cluster status [--json]\n"
    "       queen cluster members [--json]\n"
    "       queen cluster add --id N --raft HOST:PORT --http HOST:PORT [--wait S] [--json]\n"
    "       queen cluster promote ID... [--force] [--json]\n"
    "       queen cluster remove ID [--force] [--json]\n"
    "       queen cluster address --id N --raft HOST:PORT --http HOST:PORT [--json]\n"
    "\n"
    "The nodes of a cluster. Any of its nodes can be asked; a change goes on to the leader by itself and can be repeated: what "
    "is\n"
    "done already stays done. One change at a time.\n"
    "\n"
    "  status               the node asked: its role, how far it is, its disk\n"
    "  members              all of them; a node that does not answer is shown as unreachable\n"
    "  add                  a learner: it gets everything and has no vote. Start the new node first, with "
    "QUEEN_RAFT_JOIN=true, the\n"
    "                       cluster's QUEEN_RAFT_TOKEN and an empty data directory. Ends when the learner has caught up\n"
    "  promote              learners become voters, which count for a majority: have 1, 3 or 5 of them\n"
    "  remove               a node that is gone, or will be: it never comes back with its data directory\n"
    "  address              a member has moved: where the others reach it from now on\n"
    "\n"
    "  --id N               the node's QUEEN_RAFT_NODE_ID; promote and remove take it too\n"
    "  --raft HOST:PORT     where the other nodes reach it\n"
    "  --http HOST:PORT     where clients reach it\n"
    "  --wait S             seconds for the learner to catch up; 0: do not wait (600)\n"
    "  --force              promote: although it has not caught up. remove: although it answers\n"
    "  --json               the server's answer as it is\n"
    "  --server URL         http://HOST:PORT of any node (environment QUEEN_SERVER, else http://127.0.0.1:6632)\n"
    "  --retries N          how often a call is made again when there is no leader or the node went away (10)\n"
    "\n"
    "Exit code: 0 done; 1 wrong command line; 3 no leader is known, or the learner has not caught up in time; 4 refused; 5 "
    "the\n"
    "server cannot be reached.\n"
    "\n"
    "  queen cluster add --id 4 --raft 10.0.0.4:7400 --http 10.0.0.4:6632 && queen cluster promote 4\n";

static const struct words_command COMMANDS[] = {
    {"status", STATUS, 0, 0, ""},
    {"members", MEMBERS, 0, 0, ""},
    {"add", ADD, 0, 0, "--id N --raft HOST:PORT --http HOST:PORT"},
    {"promote", PROMOTE, 0, IDS_MAX, "ID..."},
    {"remove", REMOVE, 0, 1, "ID"},
    {"address", ADDRESS, 0, 0, "--id N --raft HOST:PORT --http HOST:PORT"},
};

static const struct words_option OPTIONS[OPTION_COUNT] = {
    [O_JSON] = {"json", true, STATUS | MEMBERS | ADD | PROMOTE | REMOVE | ADDRESS},
    [O_ID] = {"id", false, ADD | PROMOTE | REMOVE | ADDRESS},
    [O_RAFT] = {"raft", false, ADD | ADDRESS},
    [O_HTTP] = {"http", false, ADD | ADDRESS},
    [O_FORCE] = {"force", true, PROMOTE | REMOVE},
    [O_WAIT] = {"wait", false, ADD},
};

static const struct words_table TABLE = {
    .help = HELP,
    .commands = COMMANDS,
    .command_count = sizeof COMMANDS / sizeof COMMANDS[0],
    .options = OPTIONS,
    .option_count = OPTION_COUNT,
};

struct cluster {
    struct verb verb;
    struct words words;
    uint64_t ids[IDS_MAX + 1];
    uint32_t id_count;
    uint64_t wait_s;
    struct buf path;
    struct buf body;
    struct buf scratch;
    struct cluster_membership membership; /* as last read */
    struct cluster_member member;         /* the one of ids[0] */
    bool is_member;
};

static bool given(const struct cluster *c, enum option_place o)
{
    return c->words.value[o] != NULL;
}

static bool call(struct cluster *c, const char *method, struct slice *whole)
{
    if (!verb_send(&c->verb, method, buf_view(&c->path), buf_view(&c->body), VERB_CALL_MS, 200, 0)) return false;
    return view_whole(c->verb.client.body, whole) || verb_answer_wrong(&c->verb);
}

/* ---- status, members ---- */

static void view_run(struct cluster *c)
{
    bool status = c->words.command->bit == STATUS;
    bool leader = false;
    struct slice whole;
    buf_printf(&c->path, "/api/v1/raft/%s", c->words.command->name);
    if (!call(c, "GET", &whole)) return;
    if (given(c, O_JSON)) {
        static const char *const names[1] = {"leaderId"};
        struct slice id = {0};
        leader = view_members(whole, names, &id, 1) && !view_is_null(id);
        verb_line(&c->scratch, whole);
    } else if (status ? !cluster_status_print(whole, &leader) : !cluster_members_print(whole, &leader)) {
        verb_answer_wrong(&c->verb);
        return;
    }
    if (!leader) verb_fail(&c->verb, CLI_NO);
    verb_flush(&c->verb);
}

/* ---- changes ---- */

/* Reads {"membership":M} of an answer. */
static bool membership_take(struct cluster *c, struct slice whole)
{
    static const char *const names[1] = {"membership"};
    struct slice value = {0};
    return (view_members(whole, names, &value, 1) && value.at != NULL &&
            cluster_membership_read(value, c->ids[0], &c->membership, &c->member, &c->is_member)) ||
           verb_answer_wrong(&c->verb);
}

static void body_make(struct cluster *c)
{
    struct buf *b = &c->body;
    unsigned long long id = c->ids[0];
    switch ((enum command_bit)c->words.command->bit) {
    case PROMOTE:
        buf_text(b, "{\"ids\":[");
        for (uint32_t i = 0; i < c->id_count; i++) buf_printf(b, "%s%llu", i == 0 ? "" : ",", (unsigned long long)c->ids[i]);
        buf_printf(b, "],\"force\":%s}", given(c, O_FORCE) ? "true" : "false");
        break;
    case REMOVE:
        break;
    default:
        buf_printf(b, "{\"id\":%llu,\"raft\":", id);
        view_quote(b, slice_of(c->words.value[O_RAFT]));
        buf_text(b, ",\"http\":");
        view_quote(b, slice_of(c->words.value[O_HTTP]));
        buf_byte(b, '}');
        break;
    }
}

/* Makes the change and reads the membership after it. */
static bool change_make(struct cluster *c, struct slice *whole)
{
    unsigned bit = c->words.command->bit;
    unsigned long long id = c->ids[0];
    const char *method = bit == REMOVE ? "DELETE" : bit == ADDRESS ? "PUT" : "POST";
    buf_text(&c->path, ROUTE);
    if (bit == ADD) buf_text(&c->path, "/learners");
    if (bit == PROMOTE) buf_text(&c->path, "/promote");
    if (bit == REMOVE || bit == ADDRESS) buf_printf(&c->path, "/members/%llu", id);
    if (bit == REMOVE && given(c, O_FORCE)) buf_text(&c->path, "?force=true");
    body_make(c);
    return call(c, method, whole) && membership_take(c, *whole);
}

static void change_say(struct cluster *c)
{
    const struct cluster_membership *m = &c->membership;
    unsigned long long id = c->ids[0];
    switch ((enum command_bit)c->words.command->bit) {
    case ADD:
        printf("node %llu is %s\n", id, c->is_member && c->member.voter ? "a voter already" : "a learner");
        break;
    case PROMOTE:
        printf("node%s ", c->id_count > 1 ? "s" : "");
        for (uint32_t i = 0; i < c->id_count; i++) printf("%s%llu", i == 0 ? "" : ", ", (unsigned long long)c->ids[i]);
        printf("%s\n", c->id_count > 1 ? " are voters" : " is a voter");
        break;
    case REMOVE:
        printf("node %llu is no member any more\n", id);
        break;
    default:
        printf("node %llu is now reached at %s by nodes, at %s by clients\n", id, c->words.value[O_RAFT],
               c->words.value[O_HTTP]);
        break;
    }
    printf("voters: %.*s\n", (int)m->voters.len, m->voters.at);
    if (m->learners.len > 0) printf("learners: %.*s\n", (int)m->learners.len, m->learners.at);
}

static void change_run(struct cluster *c)
{
    struct slice whole;
    if (!change_make(c, &whole)) return;
    if (given(c, O_JSON))
        verb_line(&c->scratch, whole);
    else
        change_say(c);
    verb_flush(&c->verb);
}

/* ---- the wait of add ---- */

static void progress_say(const struct cluster *c)
{
    unsigned long long id = c->ids[0];
    if (!c->member.live) {
        verb_say(&c->verb,
                 "node %llu does not answer the leader yet: does it run, with the cluster's QUEEN_RAFT_TOKEN, and is %s it?",
                 id, c->words.value[O_RAFT]);
    } else if (!c->member.lag_known) {
        verb_say(&c->verb, "node %llu answers; how far it is is not known yet", id);
    } else {
        verb_say(&c->verb, "node %llu is %llu entries behind", id, (unsigned long long)c->member.lag);
    }
}

static bool caught_up(const struct cluster *c)
{
    return c->member.voter || (c->member.live && c->member.lag_known && c->member.lag <= c->membership.promote_max_lag);
}

/* One look at the membership. A node that is away for a moment, or has no leader, does not end the wait: verb_send tries again. */
static bool look(struct cluster *c, struct slice *whole)
{
    buf_clear(&c->path);
    buf_clear(&c->body);
    buf_text(&c->path, ROUTE);
    return call(c, "GET", whole) && membership_take(c, *whole);
}

static void add_run(struct cluster *c)
{
    unsigned long long id = c->ids[0];
    bool json = given(c, O_JSON);
    struct slice whole;
    if (!change_make(c, &whole)) return;
    if (!json) {
        change_say(c);
        if (!verb_flush(&c->verb)) return;
    }
    int64_t begun = clock_mono_us(), told = begun;
    int64_t end = begun + (int64_t)c->wait_s * 1000000;
    bool seen = c->is_member; /* the node asked may hear of it a moment later */
    while (c->wait_s > 0 && !caught_up(c)) {
        int64_t now = clock_mono_us();
        if (now >= end || (seen && !c->is_member)) break;
        if (now - told >= NEWS_MS * 1000) {
            progress_say(c);
            told = now;
        }
        verb_sleep_ms(POLL_MS);
        if (!look(c, &whole)) return;
        seen = seen || c->is_member;
    }
    if (json) verb_line(&c->scratch, whole);
    if (c->wait_s > 0 && seen && !c->is_member) {
        verb_say(&c->verb, "node %llu was removed meanwhile", id);
        verb_fail(&c->verb, CLI_NO);
    } else if (c->wait_s > 0 && !caught_up(c)) {
        progress_say(c);
        verb_say(&c->verb, "not caught up within %llu s; it goes on by itself: run this again to go on waiting",
                 (unsigned long long)c->wait_s);
        verb_fail(&c->verb, CLI_NO);
    } else if (!json && c->wait_s > 0 && !c->member.voter) {
        printf("node %llu has caught up; it becomes a voter with: queen cluster promote %llu\n", id, id);
    }
    verb_flush(&c->verb);
}

/* ---- the command line ---- */

/* HOST:PORT, [V6]:PORT */
static bool address_right(const struct cluster *c, const char *option, const char *text)
{
    const char *colon = text == NULL ? NULL : strrchr(text, ':');
    uint64_t port = 0;
    bool host = colon != NULL && colon > text &&
                (memchr(text, ':', (size_t)(colon - text)) == NULL || (text[0] == '[' && colon[-1] == ']')) &&
                strpbrk(text, "/ ,=") == NULL;
    if (host && strspn(colon + 1, "0123456789") == strlen(colon + 1) && strlen(colon + 1) <= 5)
        port = strtoull(colon + 1, NULL, 10);
    if (port >= 1 && port <= 65535) return true;
    verb_say(&c->verb, "%s takes HOST:PORT%s%s", option, text == NULL ? "; see `queen cluster --help`" : ", not ",
             text == NULL ? "" : text);
    return false;
}

static bool id_take(struct cluster *c, const char *option, const char *text)
{
    uint64_t id = 0;
    if (!verb_number(&c->verb, option, text, 1, ID_MAX, &id)) return false;
    for (uint32_t i = 0; i < c->id_count; i++) {
        if (c->ids[i] == id) return true;
    }
    c->ids[c->id_count++] = id;
    return true;
}

/* Returns -1 to go on, else the exit code. */
static int options_read(struct cluster *c, int argc, char **argv)
{
    int rc = words_read(&c->words, &c->verb, &TABLE, argc, argv);
    if (rc >= 0) return rc;
    unsigned bit = c->words.command->bit;
    for (uint32_t i = 0; i < c->words.count; i++) {
        if (!id_take(c, "the node's id", c->words.word[i])) return CLI_USAGE;
    }
    if (given(c, O_ID) && !id_take(c, "--id", c->words.value[O_ID])) return CLI_USAGE;
    if ((OPTIONS[O_ID].commands & bit) != 0 && c->id_count == 0) {
        verb_say(&c->verb, "which node? queen cluster %s %s", c->words.command->name, c->words.command->usage);
        return CLI_USAGE;
    }
    if (bit == REMOVE && c->id_count > 1) {
        verb_say(&c->verb, "one node at a time: queen cluster remove ID");
        return CLI_USAGE;
    }
    if ((OPTIONS[O_RAFT].commands & bit) != 0 &&
        (!address_right(c, "--raft", c->words.value[O_RAFT]) || !address_right(c, "--http", c->words.value[O_HTTP]))) {
        return CLI_USAGE;
    }
    c->wait_s = WAIT_S;
    return verb_number_given(&c->verb, "--wait", c->words.value[O_WAIT], 0, WAIT_S_MAX, &c->wait_s) ? -1 : CLI_USAGE;
}

int cli_cluster_main(int argc, char **argv)
{
    struct cluster c = {.verb = {.name = "cluster", .retries = VERB_RETRIES, .advise = cluster_advice}};
    int rc = options_read(&c, argc, argv);
    if (rc >= 0) return rc;
    if (verb_open(&c.verb)) {
        if (c.words.command->bit == STATUS || c.words.command->bit == MEMBERS) {
            view_run(&c);
        } else if (c.words.command->bit == ADD) {
            add_run(&c);
        } else {
            change_run(&c);
        }
    }
    verb_close(&c.verb);
    cluster_membership_free(&c.membership);
    buf_free(&c.path);
    buf_free(&c.body);
    buf_free(&c.scratch);
    return c.verb.rc;
}
