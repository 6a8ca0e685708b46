/* Answers of the cluster routes for people. Missing and null values are shown as "-": a node that cannot be reached tells nothing. */
#include <stdio.h>

#include "cli/cluster.h"

static const struct slice NOTHING = {"-", 1};

static struct slice shown(struct slice raw)
{
    struct slice text = view_unquoted(raw);
    return view_is_null(raw) || text.len == 0 ? NOTHING : text;
}

static bool number_of(struct slice raw, uint64_t *out)
{
    uint64_t n = 0;
    if (raw.at == NULL || raw.len == 0 || raw.len > 19) return false;
    for (size_t i = 0; i < raw.len; i++) {
        if (raw.at[i] < '0' || raw.at[i] > '9') return false;
        n = n * 10 + (uint64_t)(raw.at[i] - '0');
    }
    *out = n;
    return true;
}

/* "12 ms", "4.2 s", "7 min", "31 h", "9 d" */
static void duration_cell(struct columns *t, struct slice raw, uint64_t unit_ms)
{
    uint64_t n;
    if (!number_of(raw, &n) || n > UINT64_MAX / 1000) {
        columns_cell(t, NOTHING);
        return;
    }
    unsigned long long ms = n * unit_ms;
    if (ms < 1000) {
        columns_cellf(t, "%llu ms", ms);
    } else if (ms < 120000) {
        columns_cellf(t, "%llu.%llu s", ms / 1000, ms / 100 % 10);
    } else if (ms < 7200000) {
        columns_cellf(t, "%llu min", ms / 60000);
    } else if (ms < 172800000) {
        columns_cellf(t, "%llu h", ms / 3600000);
    } else {
        columns_cellf(t, "%llu d", ms / 86400000);
    }
}

/* ---- membership ---- */

struct membership_reader {
    struct cluster_member *member;
    uint64_t id;
    bool found, wrong;
    struct buf *list;
};

static bool number_each(void *arg, struct slice element)
{
    struct membership_reader *reader = arg;
    uint64_t n;
    if (!number_of(element, &n)) return false;
    if (reader->list->len > 0) buf_text(reader->list, ", ");
    buf_decimal(reader->list, n);
    return true;
}

static bool member_each(void *arg, struct slice element)
{
    enum { ID, VOTER, LIVE, LAG, FIELDS };
    static const char *const names[FIELDS] = {"nodeId", "voter", "live", "lag"};
    struct membership_reader *reader = arg;
    struct slice m[FIELDS] = {{0}};
    uint64_t id = 0;
    if (!view_members(element, names, m, FIELDS) || !number_of(m[ID], &id)) return false;
    if (id != reader->id) return true;
    reader->found = true;
    *reader->member = (struct cluster_member){.id = id, .voter = slice_is(m[VOTER], "true"), .live = slice_is(m[LIVE], "true")};
    reader->member->lag_known = number_of(m[LAG], &reader->member->lag);
    return true;
}

bool cluster_membership_read(struct slice value, uint64_t id, struct cluster_membership *out, struct cluster_member *member,
                             bool *found)
{
    enum { LEADER, VOTERS, LEARNERS, IN_FLIGHT, MAX_LAG, MEMBERS, FIELDS };
    static const char *const names[FIELDS] = {"leader", "voters", "learners", "changeInFlight", "promoteMaxLag", "members"};
    struct slice m[FIELDS] = {{0}};
    struct membership_reader reader = {.member = member, .id = id};
    *member = (struct cluster_member){.id = id};
    if (!view_members(value, names, m, FIELDS) || m[VOTERS].at == NULL || m[LEARNERS].at == NULL || m[MEMBERS].at == NULL) {
        return false;
    }
    buf_clear(&out->voters);
    buf_clear(&out->learners);
    out->leader = 0;
    out->promote_max_lag = 0;
    number_of(m[LEADER], &out->leader);
    number_of(m[MAX_LAG], &out->promote_max_lag);
    out->in_flight = slice_is(m[IN_FLIGHT], "true");
    reader.list = &out->voters;
    if (!view_elements(m[VOTERS], number_each, &reader)) return false;
    reader.list = &out->learners;
    if (!view_elements(m[LEARNERS], number_each, &reader)) return false;
    if (!view_elements(m[MEMBERS], member_each, &reader)) return false;
    *found = reader.found;
    return true;
}

void cluster_membership_free(struct cluster_membership *m)
{
    buf_free(&m->voters);
    buf_free(&m->learners);
}

/* ---- members ---- */

static bool node_each(void *arg, struct slice element)
{
    enum { ID, ROLE, STATE, APPLIED, LAG, HEARD, RAFT, HTTP, UPTIME, VERSION, ERROR, FIELDS };
    static const char *const names[FIELDS] = {"nodeId",        "role",           "state",    "appliedIndex",
                                              "lagEntries",    "heartbeatAgeMs", "raftAddr", "httpAddr",
                                              "uptimeSeconds", "version",        "error"};
    struct columns *t = arg;
    struct slice m[FIELDS] = {{0}};
    if (!view_members(element, names, m, FIELDS) || m[ID].at == NULL) return false;
    for (size_t i = ID; i <= LAG; i++) columns_cell(t, shown(m[i]));
    duration_cell(t, m[HEARD], 1);
    columns_cell(t, shown(m[RAFT]));
    columns_cell(t, shown(m[HTTP]));
    duration_cell(t, m[UPTIME], 1000);
    columns_cell(t, shown(view_is_null(m[ERROR]) ? m[VERSION] : m[ERROR]));
    return true;
}

static void head_cells(struct columns *t, const char *const *names, uint32_t count, uint32_t right)
{
    t->across = count;
    t->right = right;
    for (uint32_t i = 0; i < count; i++) columns_cell(t, slice_of(names[i]));
}

static void leader_print(struct slice leader, bool *known)
{
    struct slice text = shown(leader);
    *known = !view_is_null(leader);
    if (*known)
        printf("node %.*s leads", (int)text.len, text.at);
    else
        printf("no leader is known");
}

bool cluster_members_print(struct slice value, bool *leader)
{
    enum { CLUSTER, LEADER, TERM, VOTERS, MEMBERS, FIELDS };
    static const char *const names[FIELDS] = {"clusterId", "leaderId", "term", "voters", "members"};
    static const char *const head[] = {"NODE", "ROLE", "STATE", "APPLIED", "LAG", "HEARD", "RAFT", "HTTP", "UP", "VERSION"};
    struct slice m[FIELDS] = {{0}};
    if (!view_members(value, names, m, FIELDS) || m[MEMBERS].at == NULL) return false;
    struct columns t = {0};
    head_cells(&t, head, sizeof head / sizeof head[0], 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8);
    bool right = view_elements(m[MEMBERS], node_each, &t);
    if (right) {
        struct slice cluster = shown(m[CLUSTER]), term = shown(m[TERM]), voters = shown(m[VOTERS]);
        printf("cluster %.*s: ", (int)cluster.len, cluster.at);
        leader_print(m[LEADER], leader);
        printf(", term %.*s, voters: %.*s\n", (int)term.len, term.at, (int)voters.len, voters.at);
        columns_print(&t);
    }
    columns_free(&t);
    return right;
}

/* ---- status ---- */

static bool follower_each(void *arg, struct slice element)
{
    static const char *const names[3] = {"nodeId", "matchIndex", "heartbeatAgeMs"};
    struct columns *t = arg;
    struct slice m[3] = {{0}};
    if (!view_members(element, names, m, 3)) return false;
    columns_cell(t, shown(m[0]));
    columns_cell(t, shown(m[1]));
    duration_cell(t, m[2], 1);
    return true;
}

static bool replication_print(struct slice replication)
{
    static const char *const head[] = {"FOLLOWER", "HAS UP TO", "HEARD"};
    struct columns t = {0};
    head_cells(&t, head, 3, 1 << 1 | 1 << 2);
    bool right = view_elements(replication, follower_each, &t);
    if (right && t.count > t.across) columns_print(&t);
    columns_free(&t);
    return right;
}

static void row_put(struct columns *t, const char *name, struct slice value)
{
    columns_cell(t, slice_of(name));
    columns_cell(t, value);
}

/* The share of the disk, out of host.disk. */
static void disk_row(struct columns *t, struct slice host)
{
    static const char *const host_names[1] = {"disk"}, *const names[2] = {"usedPct", "writesRefused"};
    struct slice disk = {0};
    struct slice m[2] = {{0}};
    if (view_is_null(host) || !view_members(host, host_names, &disk, 1) || view_is_null(disk) ||
        !view_members(disk, names, m, 2)) {
        return;
    }
    struct slice pct = shown(m[0]);
    columns_cell(t, slice_of("disk"));
    columns_cellf(t, "%.*s %% used%s", (int)(pct.len > 20 ? 20 : pct.len), pct.at,
                  slice_is(m[1], "true") ? "; writes are refused until there is room" : "");
}

bool cluster_status_print(struct slice value, bool *leader)
{
    enum {
        ID,
        CLUSTER,
        ROLE,
        STATE,
        LEADER,
        TERM,
        VOTERS,
        LAST,
        COMMITTED,
        APPLIED,
        DURABLE,
        RAFT,
        HTTP,
        VERSION,
        UPTIME,
        HOST,
        REPLICATION,
        ERROR,
        FIELDS
    };
    static const char *const names[FIELDS] = {"nodeId",       "clusterId",   "role",         "state",          "leaderId",
                                              "term",         "voters",      "lastLogIndex", "committedIndex", "appliedIndex",
                                              "durableIndex", "raftAddr",    "httpAddr",     "version",        "uptimeSeconds",
                                              "host",         "replication", "error"};
    static const struct {
        uint8_t field;
        const char *name;
    } rows[] = {
        {CLUSTER, "cluster"}, {ROLE, "role"},         {STATE, "state"},         {TERM, "term"},
        {VOTERS, "voters"},   {LAST, "last entry"},   {COMMITTED, "committed"}, {APPLIED, "applied"},
        {DURABLE, "durable"}, {RAFT, "raft address"}, {HTTP, "http address"},   {VERSION, "version"},
    };
    struct slice m[FIELDS] = {{0}};
    if (!view_members(value, names, m, FIELDS) || m[ID].at == NULL || m[STATE].at == NULL) return false;
    struct slice id = shown(m[ID]);
    printf("node %.*s: ", (int)id.len, id.at);
    leader_print(m[LEADER], leader);
    putchar('\n');
    struct columns t = {.across = 2};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) row_put(&t, rows[i].name, shown(m[rows[i].field]));
    columns_cell(&t, slice_of("up"));
    duration_cell(&t, m[UPTIME], 1000);
    disk_row(&t, m[HOST]);
    if (!view_is_null(m[ERROR])) row_put(&t, "error", shown(m[ERROR]));
    columns_print(&t);
    columns_free(&t);
    return view_is_null(m[REPLICATION]) || replication_print(m[REPLICATION]);
}

/* ---- refusals ---- */

const char *cluster_advice(struct slice code)
{
    static const struct {
        const char *code, *advice;
    } all[] = {
        {"in_flight", "another change is under way: run this again when it is done"},
        {"no_quorum", "too few voters would answer: bring back those that are down first; see `queen cluster members`"},
        {"last_voter", "a cluster keeps one voter: add and promote another node first"},
        {"learner_behind", "wait until its LAG in `queen cluster members` is small, or promote it with --force"},
        {"already_voter", "the node votes already; see `queen cluster members`"},
        {"address_mismatch", "a node of this id is there under other addresses: `queen cluster address` changes them"},
        {"membership_changed", "somebody else changed the cluster meanwhile: see `queen cluster members`, then run this again"},
        {"leader_changed", "run this again: what is done already stays done"},
        {"not_a_learner", "only a learner can be promoted: `queen cluster add` makes one"},
        {"not_a_member", "see `queen cluster members` for those there are"},
        {"full", "remove a node first"},
        {"no_such_route", "this server knows no changes of the cluster: does it run alone, without QUEEN_RAFT_PEERS?"},
        {"forbidden", "only the default tenant may change the cluster: ask a node directly, not a proxy that names a tenant"},
        {"leader_unreachable", "the node asked does not reach the leader: ask another node with --server"},
        {"no_leader", "the nodes that run are no majority, or are electing: see `queen cluster members`"},
        {"timeout", "the change may still come about: see `queen cluster members`, then run this again"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (slice_is(code, all[i].code)) return all[i].advice;
    }
    return NULL;
}
