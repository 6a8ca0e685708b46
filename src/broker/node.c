/* Life of a node, and its looks at its groups.
 *
 *   open    lock -> DATA/groups fits? -> DATA/disk: who am I, one more start -> the net -> the groups' brokers -> their threads
 *   look    every NODE_LOOK_US, only with peers: a visit to each group's loop copies members, leader and progress; then whom to dial, who
 *           should lead, is our address the one that the others know
 *   stop    each group hands its leadership over, then its broker stops; the groups' loops go on until node_close, for those
 *           who still visit them
 *
 * What can go wrong: the directory is not the one it says (copied, restored): refused when others count on it, exit code 2. A node that was
 * told to join and does not know its cluster yet opens no group; it starts anew when it was told. */
#include "broker/node.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/logger.h"
#include "broker/dir.h"
#include "broker/node_inner.h"

#define member_of_struct(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static void again_run(struct loop_task *t)
{
    struct node *n = member_of_struct(t, struct node, again_task);
    if (!n->stopping) n->owner.again(n->owner.ctx);
}

void node_start_anew(struct node *n)
{
    if (atomic_exchange(&n->again_asked, true)) return;
    n->again_task.run = again_run;
    loop_post(n->loop, &n->again_task);
}

/* ---- groups ------------------------------------------------------------------------------------------------------- */

uint32_t node_group_count(const struct node *n)
{
    return n->group_count;
}

struct broker *node_group(const struct node *n, uint32_t group)
{
    return n->groups[group].broker;
}

struct loop *node_group_loop(const struct node *n, uint32_t group)
{
    return n->groups[group].loop;
}

uint32_t node_group_of_tenant(const struct node *n, struct uuid tenant)
{
    if (n->group_count == 1) return 0;
    for (uint32_t i = 0; i < n->config->tenant_count; i++) {
        if (uuid_equal(n->config->tenants[i].tenant, tenant)) return n->config->tenants[i].group;
    }
    return (uint32_t)(hash64(slice_make(tenant.bytes, sizeof tenant.bytes), 0) % n->group_count);
}

struct broker *node_of_tenant(const struct node *n, struct uuid tenant)
{
    return n->groups[node_group_of_tenant(n, tenant)].broker;
}

bool node_alone(const struct node *n)
{
    return !n->clustered;
}

uint64_t node_id(const struct node *n)
{
    return n->id;
}

struct uuid node_cluster(const struct node *n)
{
    return n->disk.cluster;
}

struct net *node_net(const struct node *n)
{
    return n->net;
}

struct loop *node_loop(const struct node *n)
{
    return n->loop;
}

static void visit_home(struct loop_task *t)
{
    struct node_visit *v = member_of_struct(t, struct node_visit, task);
    v->done(v);
}

static void visit_there(struct loop_task *t)
{
    struct node_visit *v = member_of_struct(t, struct node_visit, task);
    v->run(v, v->broker);
    v->task.run = visit_home;
    loop_post(v->home, &v->task);
}

void node_visit(struct node *n, uint32_t group, struct node_visit *v)
{
    must(group < n->group_count && n->groups[group].broker != NULL);
    v->broker = n->groups[group].broker;
    v->task.run = visit_there;
    loop_post(n->groups[group].loop, &v->task);
}

/* ---- members ------------------------------------------------------------------------------------------------------ */

/* raft address / http address [/ disk] */
void node_address_make(char out[REPLICA_ADDRESS_BYTES], const char *raft, const char *http, const struct uuid *disk)
{
    char text[UUID_TEXT];
    if (disk != NULL) uuid_text(*disk, text);
    snprintf(out, REPLICA_ADDRESS_BYTES, "%s/%s%s%.*s", raft, http, disk == NULL ? "" : "/", disk == NULL ? 0 : UUID_TEXT,
             text);
}

static void part_read(const char **at, char out[NODE_ADDRESS_BYTES])
{
    size_t len = strcspn(*at, "/");
    if (len < NODE_ADDRESS_BYTES) memcpy(out, *at, len);
    out[len < NODE_ADDRESS_BYTES ? len : 0] = '\0';
    *at += len + ((*at)[len] == '/');
}

void node_member_read(const struct replica_member *m, struct node_member *out)
{
    const char *at = m->address;
    *out = (struct node_member){.id = m->id, .voter = m->role == REPLICA_VOTER};
    part_read(&at, out->raft);
    part_read(&at, out->http);
    out->has_disk = uuid_parse(slice_of(at), &out->disk);
}

const struct replica_member *members_find(const struct replica_members *all, uint64_t id)
{
    for (uint32_t i = 0; i < all->count; i++) {
        if (all->at[i].id == id) return &all->at[i];
    }
    return NULL;
}

void node_members(struct node *n, struct node_members *out)
{
    pthread_mutex_lock(&n->lock);
    *out = n->view;
    pthread_mutex_unlock(&n->lock);
}

bool node_http_of(struct node *n, uint64_t id, char out[NODE_ADDRESS_BYTES])
{
    bool found = false;
    pthread_mutex_lock(&n->lock);
    for (uint32_t i = 0; i < n->view.count && !found; i++) {
        found = n->view.at[i].id == id;
        if (found) memcpy(out, n->view.at[i].http, NODE_ADDRESS_BYTES);
    }
    pthread_mutex_unlock(&n->lock);
    return found;
}

/* ---- looks -------------------------------------------------------------------------------------------------------- */

static void group_look(struct node_group *g, struct replica *r)
{
    replica_members(r, &g->now);
    g->leader = replica_leader(r);
    g->leads = replica_role(r) == REPLICA_LEADER;
    g->last = replica_last_index(r);
    for (uint32_t i = 0; i < g->now.count; i++)
        g->has_progress[i] = g->leads && replica_progress(r, g->now.at[i].id, &g->progress[i]);
}

static void look_run(struct node_visit *v, struct broker *b)
{
    struct node_group *g = member_of_struct(v, struct node_group, visit);
    group_look(g, broker_replica(b));
    if (g->transfer_to != 0 && g->leads) replica_transfer(broker_replica(b), g->transfer_to);
    if (g->hands_over && g->leads) replica_transfer(broker_replica(b), 0);
    g->transfer_to = 0;
    g->hands_over = false;
}

static void view_take(struct node *n)
{
    struct node_group *first = &n->groups[0];
    pthread_mutex_lock(&n->lock);
    n->view.index = first->now.index;
    n->view.leader = first->leader;
    n->view.count = first->now.count;
    for (uint32_t i = 0; i < first->now.count; i++) node_member_read(&first->now.at[i], &n->view.at[i]);
    pthread_mutex_unlock(&n->lock);
}

/* Who should lead this group: 0 when that is us, or it can not now. */
static uint64_t leader_wanted(const struct node *n, const struct node_group *g)
{
    enum { BEHIND_MAX = 1000, SILENT_US_MAX = 1000000 };
    uint32_t voters = 0, at[REPLICA_MEMBERS_MAX];
    for (uint32_t i = 0; i < g->now.count; i++) {
        if (g->now.at[i].role == REPLICA_VOTER) at[voters++] = i;
    }
    if (voters < 2 || !g->now.committed) return 0;
    uint32_t i = at[g->number % voters];
    const struct replica_progress *p = &g->progress[i];
    bool there = g->has_progress[i] && p->heard_age_us >= 0 && p->heard_age_us < SILENT_US_MAX && !p->snapshot &&
                 p->match + BEHIND_MAX >= g->last;
    return there && g->now.at[i].id != n->id ? g->now.at[i].id : 0;
}

static void leader_spread(struct node *n, struct node_group *g)
{
    uint64_t to = n->group_count > 1 && g->leads && !n->stopping ? leader_wanted(n, g) : 0;
    int64_t now_us = clock_mono_us();
    if (to == 0) {
        g->displaced_us = 0;
        return;
    }
    if (g->displaced_us == 0) g->displaced_us = now_us;
    if (now_us - g->displaced_us < NODE_SPREAD_US) return;
    g->displaced_us = now_us;
    g->transfer_to = to;
    log_info("group %" PRIu32 ": leadership goes to node %" PRIu64 ", where it belongs", g->number, to);
}

static void readdressed(void *ctx, enum node_change_code code, uint32_t group, uint32_t which)
{
    struct node *n = ctx;
    (void)group, (void)which;
    n->readdressing = false;
    if (code == NODE_CHANGE_OK)
        log_info("the cluster knows our address now: %s/%s", n->config->advertise_raft, n->config->advertise_http);
}

/* Our own entry in the members' list, when our address is another by now. */
static void address_keep(struct node *n)
{
    const struct config *c = n->config;
    int64_t now_us = clock_mono_us();
    bool differs = false;
    if (c->advertise_raft[0] == '\0' || n->readdressing || n->stopping || now_us - n->readdress_us < NODE_READDRESS_US) return;
    for (uint32_t g = 0; g < n->group_count; g++) {
        const struct replica_member *m = members_find(&n->groups[g].now, n->id);
        struct node_member own;
        if (m == NULL) return;
        node_member_read(m, &own);
        differs = differs || strcmp(own.raft, c->advertise_raft) != 0 || strcmp(own.http, c->advertise_http) != 0;
    }
    if (!differs) return;
    struct node_change change = {.kind = NODE_READDRESS, .id = n->id};
    snprintf(change.raft, sizeof change.raft, "%s", c->advertise_raft);
    snprintf(change.http, sizeof change.http, "%s", c->advertise_http);
    n->readdressing = true;
    n->readdress_us = now_us;
    node_change(n, &change, 1, NODE_READDRESS_US, readdressed, n);
}

static void looked(struct node *n)
{
    view_take(n);
    peers_follow(n);
    for (uint32_t g = 0; g < n->group_count; g++) leader_spread(n, &n->groups[g]);
    address_keep(n);
    repair_look(n);
}

static void look_done(struct node_visit *v)
{
    struct node_group *g = member_of_struct(v, struct node_group, visit);
    struct node *n = g->node;
    bool all = true;
    g->looking = false;
    for (uint32_t i = 0; i < n->group_count; i++) all = all && !n->groups[i].looking;
    if (all && !n->stopping) looked(n);
}

void node_look(struct node *n)
{
    for (uint32_t i = 0; i < n->group_count; i++) {
        if (n->groups[i].looking) return;
    }
    for (uint32_t i = 0; i < n->group_count; i++) {
        struct node_group *g = &n->groups[i];
        g->looking = true;
        g->visit = (struct node_visit){.home = n->loop, .run = look_run, .done = look_done};
        node_visit(n, i, &g->visit);
    }
}

static void look_fire(struct loop_timer *t)
{
    struct node *n = member_of_struct(t, struct node, look_timer);
    if (n->waits || n->repairs)
        peers_follow(n);
    else
        node_look(n);
    loop_timer_set(n->loop, t, clock_mono_us() + NODE_LOOK_US);
}

/* ---- who we are --------------------------------------------------------------------------------------------------- */

static int tenant_order(const void *a, const void *b)
{
    return memcmp(((const struct config_tenant *)a)->tenant.bytes, ((const struct config_tenant *)b)->tenant.bytes, 16);
}

/* The same on every node whose settings are the same, in whatever order they are written. */
static uint64_t map_hash(const struct config *c)
{
    struct config_tenant *sorted = calloc(c->tenant_count + 1, sizeof *sorted);
    struct buf text = {0};
    must(sorted != NULL);
    memcpy(sorted, c->tenants, c->tenant_count * sizeof *sorted);
    qsort(sorted, c->tenant_count, sizeof *sorted, tenant_order);
    buf_u32(&text, c->groups);
    for (uint32_t i = 0; i < c->tenant_count; i++) {
        buf_put(&text, sorted[i].tenant.bytes, 16);
        buf_u32(&text, sorted[i].group);
    }
    uint64_t hash = hash64(buf_view(&text), 0);
    buf_free(&text);
    free(sorted);
    return hash;
}

static struct uuid cluster_hash(const struct node *n)
{
    struct buf text = {0};
    struct uuid id;
    buf_text(&text, "queen cluster 1\n");
    for (uint32_t i = 0; i < n->config->peer_count; i++) {
        const struct config_peer *p = &n->config->peers[i];
        buf_printf(&text, "%" PRIu64 "=%s:%u\n", p->id, p->raft_host, p->raft_port);
    }
    buf_printf(&text, "%s\n", n->config->cell_id);
    buf_u64(&text, n->map_hash);
    struct hash128 h = hash128(buf_view(&text), 0);
    memcpy(id.bytes, &h.low, 8);
    memcpy(id.bytes + 8, &h.high, 8);
    buf_free(&text);
    return id;
}

/* The first start of a node with peers in this directory. */
static void disk_begin(struct node *n, bool used)
{
    const struct config *c = n->config;
    n->disk = (struct disk_file){.node = c->node_id, .disk = uuid_mint(clock_wall_us())};
    if (used) { /* was alone until now: its data is the cluster's from here on */
        if (c->join) log_info("QUEEN_RAFT_JOIN counts only for an empty directory: %s is not", c->dir);
        if (!cluster_of_replica(c->dir, &n->disk.cluster)) n->disk.cluster = cluster_hash(n);
    } else if (c->join) {
        n->disk.joined = true;
    } else {
        n->disk.cluster = cluster_hash(n);
    }
}

static bool disk_open(struct node *n, int *exit_code, struct buf *error)
{
    const struct config *c = n->config;
    bool found, used = node_dir_is_used(c->dir);
    uint64_t inode = 0;
    if (!disk_file_load(c->dir, &n->disk, &found, exit_code, error)) return false;
    if (!found) disk_begin(n, used);
    *exit_code = 1;
    if (n->disk.node != c->node_id) {
        buf_printf(error, "QUEEN_RAFT_NODE_ID=%" PRIu64 ": %s is the data directory of node %" PRIu64, c->node_id, c->dir,
                   n->disk.node);
        return false;
    }
    *exit_code = 3;
    if (!node_dir_inode(c->dir, &inode)) {
        buf_printf(error, "%s: %s", c->dir, strerror(errno));
        return false;
    }
    if (!found) n->disk.inode = inode;
    uint32_t mark; /* two starts from one copy are not the same one */
    random_bytes(&mark, sizeof mark);
    n->disk.starts = ((n->disk.starts >> 32) + 1) << 32 | mark;
    if (!peers_file_load(c->dir, &n->seen, exit_code, error)) return false;
    if (n->disk.inode == inode) {
        *exit_code = 3;
        return disk_file_store(c->dir, &n->disk, error);
    }
    return true; /* it is another directory: judged when we know whether there are others */
}

/* A copy may lack what the original has promised to others. Nobody else there: it is ours to say that it counts. */
static bool inode_judge(struct node *n, int *exit_code, struct buf *error)
{
    uint64_t inode = 0;
    uint32_t others = 0;
    if (!node_dir_inode(n->config->dir, &inode) || inode == n->disk.inode) return true;
    for (uint32_t g = 0; g < n->group_count; g++) {
        for (uint32_t i = 0; i < n->groups[g].now.count; i++) others += n->groups[g].now.at[i].id != n->id;
    }
    *exit_code = 2;
    if (others > 0) {
        buf_printf(error,
                   "%s was copied or restored: it may lack what node %" PRIu64
                   " has promised to the others since. Remove the node from the cluster (DELETE "
                   "/api/v1/system/raft/membership/members/%" PRIu64 " at another one), empty the directory, start with "
                   "QUEEN_RAFT_JOIN=true and add it anew",
                   n->config->dir, n->id, n->id);
        return false;
    }
    log_warn("%s was copied or restored: this node is the only one, so it counts from here on", n->config->dir);
    n->disk.inode = inode;
    *exit_code = 3;
    return disk_file_store(n->config->dir, &n->disk, error);
}

/* ---- open --------------------------------------------------------------------------------------------------------- */

/* Files are read and written before the group's broker takes the lock for good. */
static bool files_open(struct node *n, int *exit_code, struct buf *error)
{
    const struct config *c = n->config;
    int lock = -1;
    *exit_code = 2;
    bool ours = node_dir_is_used(c->dir) || node_dir_has(c->dir, "groups") || node_dir_has(c->dir, "disk");
    if (!n->clustered && c->groups == 1 && !ours) return true; /* nothing of ours is there, or comes there */
    if (!dir_make(c->dir, exit_code, error) || !node_lock_try(c->dir, &lock, exit_code, error)) return false;
    bool good = groups_file_check(c->dir, c, exit_code, error);
    if (good && n->clustered) good = disk_open(n, exit_code, error);
    if (good && !n->clustered && node_dir_has(c->dir, "disk")) {
        buf_printf(
            error,
            "%s is the data directory of a node in a cluster: QUEEN_RAFT_PEERS (or QUEEN_RAFT_JOIN) and QUEEN_RAFT_TOKEN "
            "are needed to start it",
            c->dir);
        *exit_code = 1;
        good = false;
    }
    if (good && !n->clustered && !cluster_of_replica(c->dir, &n->disk.cluster) && c->groups > 1)
        n->disk.cluster = uuid_mint(clock_wall_us());
    close(lock);
    return good;
}

static void members_first(struct node *n, struct node_group *g)
{
    const struct config *c = n->config;
    g->members = calloc(CONFIG_PEERS_MAX, sizeof *g->members);
    must(g->members != NULL);
    for (uint32_t i = 0; i < c->peer_count; i++) {
        const struct config_peer *p = &c->peers[i];
        char raft[NODE_ADDRESS_BYTES];
        bool six = strchr(p->raft_host, ':') != NULL;
        snprintf(raft, sizeof raft, "%s%s%s:%u", six ? "[" : "", p->raft_host, six ? "]" : "", p->raft_port);
        g->members[i] = (struct replica_member){.id = p->id, .role = REPLICA_VOTER};
        node_address_make(g->members[i].address, raft, p->http, NULL);
    }
}

static void group_again(void *ctx)
{
    struct node_group *g = ctx;
    node_start_anew(g->node);
}

/* Groups are opened one after the other; each counts the same. */
static void group_loading(void *ctx, uint64_t rows, uint32_t per_mille)
{
    struct node_group *g = ctx;
    struct node *n = g->node;
    g->rows_loaded = rows;
    for (uint32_t i = 0; i < g->number; i++) rows += n->groups[i].rows_loaded;
    n->owner.loading(n->owner.ctx, rows, (g->number * 1000 + per_mille) / n->group_count);
}

static void group_damaged(void *ctx, const char *what, bool ends)
{
    struct node_group *g = ctx;
    node_damaged(g->node, g->number, what, ends);
}

/* What a node keeps in memory is shared by its groups. */
static struct config group_config(const struct node *n)
{
    struct config c = *n->config;
    memory_plan_group(&c.memory, &n->config->memory, n->group_count);
    c.cache_bytes /= n->group_count;
    if (n->group_count > 1) c.group_own_thread = true;
    return c;
}

static bool group_open(struct node *n, struct node_group *g, int *exit_code, struct buf *error)
{
    struct config *c = malloc(sizeof *c);
    bool damaged = false;
    must(c != NULL);
    *c = group_config(n);
    struct broker_place place = {
        .dir = g->dir,
        .group = g->number,
        .admission = &n->admission,
        .net = n->net,
        .cluster = n->disk.cluster,
        .node = n->clustered ? n->id : n->config->node_id,
        .join = n->clustered && n->disk.joined,
        .ctx = g,
        .again = group_again,
        .loading = n->owner.loading == NULL ? NULL : group_loading,
        .damaged = group_damaged,
        .is_damaged = &damaged,
    };
    if (n->clustered && !n->disk.joined && n->config->peer_count > 0) {
        members_first(n, g);
        place.members = g->members;
        place.member_count = n->config->peer_count;
    }
    g->loop = n->group_count == 1 ? n->loop : loop_new();
    *exit_code = 3;
    if (g->loop != NULL) g->broker = broker_open(c, &place, g->loop, exit_code, error);
    if (g->broker != NULL && n->clustered) group_look(g, broker_replica(g->broker));
    if (g->broker != NULL) repair_over(g);
    free(c);
    if (damaged && repair_note(g, error)) *exit_code = NODE_AGAIN;
    return g->broker != NULL;
}

/* A node with a group under repair has none open: they are on the other nodes meanwhile. */
static bool repairs_open(struct node *n, int *exit_code, struct buf *error)
{
    *exit_code = 2;
    for (uint32_t i = 0; i < n->group_count; i++)
        if (!repair_open(&n->groups[i], error)) return false;
    buf_clear(error);
    if (!n->repairs) return true;
    return inode_judge(n, exit_code, error) && node_lock_try(n->config->dir, &n->repair_lock, exit_code, error);
}

static void *group_thread(void *ctx)
{
    struct node_group *g = ctx;
    loop_run(g->loop);
    return NULL;
}

static bool groups_open(struct node *n, int *exit_code, struct buf *error)
{
    if (!repairs_open(n, exit_code, error)) return false;
    if (n->repairs) return true;
    for (uint32_t i = 0; i < n->group_count; i++) {
        if (!group_open(n, &n->groups[i], exit_code, error)) return false;
        if (i == 0 && !n->clustered && n->group_count > 1) cluster_of_replica(n->config->dir, &n->disk.cluster);
    }
    if (n->clustered && !inode_judge(n, exit_code, error)) return false;
    for (uint32_t i = 0; i < n->group_count && n->group_count > 1; i++) {
        struct node_group *g = &n->groups[i];
        g->has_thread = pthread_create(&g->thread, NULL, group_thread, g) == 0;
        *exit_code = 3;
        if (!g->has_thread) {
            buf_text(error, "cannot start a thread");
            return false;
        }
    }
    return true;
}

static void peers_compare(struct node *n)
{
    const struct replica_members *now = &n->groups[0].now;
    bool same = now->count == n->config->peer_count;
    for (uint32_t i = 0; i < n->config->peer_count && same; i++) same = members_find(now, n->config->peers[i].id) != NULL;
    if (!same && n->config->peer_count > 0 && now->count > 0)
        log_info("QUEEN_RAFT_PEERS counts at the first boot only: %s has %" PRIu32 " members in its log", n->config->dir,
                 now->count);
}

static bool cluster_open(struct node *n, int *exit_code, struct buf *error)
{
    static const struct uuid zero;
    n->waits = uuid_equal(n->disk.cluster, zero);
    *exit_code = 1;
    if (!peers_open(n, error)) return false;
    if (n->waits) {
        log_info("this node waits for a member of a cluster to add it: POST /api/v1/system/raft/membership/learners there");
        peers_follow(n);
    } else if (!groups_open(n, exit_code, error)) {
        return false;
    } else {
        peers_compare(n);
        view_take(n);
        peers_follow(n);
    }
    net_accept(n->net);
    n->look_timer.fire = look_fire;
    loop_timer_set(n->loop, &n->look_timer, clock_mono_us() + NODE_LOOK_US);
    return true;
}

const struct admission *node_admission(const struct node *n)
{
    return &n->admission;
}

struct node *node_open(const struct config *config, struct loop *main_loop, const struct node_owner *owner, int *exit_code,
                       struct buf *error)
{
    struct node *n = calloc(1, sizeof *n);
    must(n != NULL && pthread_mutex_init(&n->lock, NULL) == 0);
    n->config = config;
    n->loop = main_loop;
    n->owner = *owner;
    n->group_count = config->groups;
    n->repair_lock = -1;
    n->clustered = config_clustered(config);
    n->id = config->node_id == 0 ? 1 : config->node_id;
    n->map_hash = map_hash(config);
    admission_open(&n->admission, config);
    n->groups = calloc(n->group_count, sizeof *n->groups);
    must(n->groups != NULL);
    for (uint32_t i = 0; i < n->group_count; i++) {
        struct node_group *g = &n->groups[i];
        g->node = n;
        g->number = i;
        if (i == 0)
            snprintf(g->dir, sizeof g->dir, "%s", config->dir);
        else
            snprintf(g->dir, sizeof g->dir, "%s/group-%" PRIu32, config->dir, i);
    }
    bool good = files_open(n, exit_code, error) &&
                (n->clustered ? cluster_open(n, exit_code, error) : groups_open(n, exit_code, error));
    if (good) return n;
    if (*exit_code != NODE_AGAIN) node_close(n);
    return NULL;
}

/* ---- stop --------------------------------------------------------------------------------------------------------- */

static void all_stopped_run(struct loop_task *t)
{
    struct node *n = member_of_struct(t, struct node, stopped_task);
    n->stopped(n->stopped_ctx);
}

static void all_stopped(struct node *n)
{
    n->stopped_task.run = all_stopped_run;
    loop_post(n->loop, &n->stopped_task);
}

static void group_stopped_run(struct loop_task *t)
{
    struct node_group *g = member_of_struct(t, struct node_group, stopped_task);
    if (++g->node->stopped_count == g->node->group_count) all_stopped(g->node);
}

static void group_stopped(void *ctx)
{
    struct node_group *g = ctx;
    g->stopped_task.run = group_stopped_run;
    loop_post(g->node->loop, &g->stopped_task);
}

/* On the group's loop: waits until another one leads, if there is another one. */
static void handover_fire(struct loop_timer *t)
{
    struct node_group *g = member_of_struct(t, struct node_group, stop_timer);
    bool leads = replica_role(broker_replica(g->broker)) == REPLICA_LEADER;
    int64_t now_us = clock_mono_us();
    if (leads && now_us < g->stop_by_us) {
        loop_timer_set(g->loop, t, now_us + 2000);
        return;
    }
    if (leads && g->stop_by_us != 0) log_warn("group %" PRIu32 ": nobody took the leadership over in time", g->number);
    broker_stop(g->broker, group_stopped, g);
}

static void group_stop_run(struct loop_task *t)
{
    struct node_group *g = member_of_struct(t, struct node_group, stop_task);
    struct replica *r = broker_replica(g->broker);
    struct replica_members m;
    uint32_t voters = 0;
    g->stop_timer.fire = handover_fire;
    g->stop_by_us = 0;
    if (g->node->clustered && replica_role(r) == REPLICA_LEADER) {
        replica_members(r, &m);
        for (uint32_t i = 0; i < m.count; i++) voters += m.at[i].role == REPLICA_VOTER;
        if (voters > 1 && replica_transfer(r, 0)) g->stop_by_us = clock_mono_us() + NODE_HANDOVER_US;
    }
    handover_fire(&g->stop_timer);
}

void node_stop(struct node *n, void (*stopped)(void *ctx), void *ctx)
{
    if (n->stopping) return;
    n->stopping = true;
    n->stopped = stopped;
    n->stopped_ctx = ctx;
    loop_timer_cancel(n->loop, &n->look_timer);
    peers_stop(n);
    if (n->waits || n->repairs) {
        all_stopped(n);
        return;
    }
    for (uint32_t i = 0; i < n->group_count; i++) {
        n->groups[i].stop_task.run = group_stop_run;
        loop_post(n->groups[i].loop, &n->groups[i].stop_task);
    }
}

void node_close(struct node *n)
{
    for (uint32_t i = 0; i < n->group_count; i++) {
        struct node_group *g = &n->groups[i];
        if (!g->has_thread) continue;
        loop_stop(g->loop);
        pthread_join(g->thread, NULL);
    }
    for (uint32_t i = 0; i < n->group_count; i++) {
        struct node_group *g = &n->groups[i];
        if (g->broker != NULL) broker_close(g->broker);
        repair_stop(g);
    }
    if (n->repair_lock >= 0) close(n->repair_lock);
    if (n->net != NULL) net_close(n->net);
    for (uint32_t i = 0; i < n->group_count; i++) {
        struct node_group *g = &n->groups[i];
        if (g->loop != NULL && g->loop != n->loop) loop_free(g->loop);
        free(g->members);
    }
    pthread_mutex_destroy(&n->lock);
    free(n->groups);
    free(n);
}
