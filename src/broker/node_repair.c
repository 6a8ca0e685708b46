/* A group whose files are damaged gets the leader's state in place of its own (docs/decisions/0028).
 *
 *   while it runs    node_damaged: said once -> a leader hands over -> the leader is asked: does a majority stay without this node?
 *                    -> GROUP/damaged -> the process starts itself anew
 *   at a start       a group cannot be opened for damage -> GROUP/damaged -> the process starts itself anew
 *   the next start   GROUP/damaged is there: no group of the node is opened. It votes for nobody
 *                    and acknowledges nothing; it asks peer after peer who leads, and fetches a state at the entry that the leader's log
 *                    ended with when it was asked, or later -> incoming/ready -> starts itself anew
 *   the one after    incoming_finish puts the state in place, the group opens, GROUP/damaged goes
 *
 * GROUP/damaged:  "queen damaged 1" | "fetches N" | "running", "start" or "fetched" | what was found. N counts the states that were
 * fetched for this damage: after REPAIR_FETCHES_MAX of them the start is refused, as it would be without peers. What a start wrote goes
 * when the repair begins: who puts the files right and starts the node again has a sound group.
 *
 * When nobody leads within REPAIR_PATIENCE_US and the group could be opened, it is: what is damaged is not served, all else is. */
#include "broker/node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/logger.h"
#include "broker/node_inner.h"
#include "broker/snapshot.h"
#include "replica/look.h"

enum {
    REPAIR_FETCHES_MAX = 3,
    REPAIR_TICK_US = 500000,
    REPAIR_PATIENCE_US = 30000000,
    REPAIR_ASK_US = 2000000,     /* between two questions to the leader */
    REPAIR_AGAIN_US = 600000000, /* damage found so soon after a repair waits: what was fetched may be damaged at its source */
    REPAIR_SAY_US = 10000000,
    REPAIR_HEARD_US = 1000000,
    REPAIR_GRANT_US = 30000000, /* the node that was let go is still going */
};

/* A group under repair. */
struct repair {
    struct node_group *group;
    struct snapshots *snapshots;
    struct loop_timer timer;
    uint64_t term; /* ours, as it was stored */
    uint32_t fetches;
    bool opens; /* the group could be opened as it is */
    bool fetched;
    int64_t began_us, said_us, low_said_us;
    uint32_t at; /* the peer asked last */
};

#define repair_of(t) ((struct repair *)(void *)((char *)(t)-offsetof(struct repair, timer)))

/* ---- GROUP/damaged ------------------------------------------------------------------------------------------------ */

enum damage_state { DAMAGE_RUNNING, DAMAGE_START, DAMAGE_FETCHED, DAMAGE_STATES };
static const char *const DAMAGE_NAMES[] = {"running", "start", "fetched"};

struct damage_file {
    uint32_t fetches;
    enum damage_state state;
    char what[NODE_DAMAGE_BYTES];
};

static void damage_path(const struct node_group *g, char out[FILES_PATH_BYTES])
{
    snprintf(out, FILES_PATH_BYTES, "%.4096s/damaged", g->dir);
}

static bool damage_store(const struct node_group *g, const struct damage_file *f)
{
    char path[FILES_PATH_BYTES];
    struct buf text = {0};
    damage_path(g, path);
    buf_printf(&text, "queen damaged 1\nfetches %" PRIu32 "\n%s\n%s\n", f->fetches, DAMAGE_NAMES[f->state], f->what);
    int code = files_replace(path, buf_view(&text));
    buf_free(&text);
    if (code != 0) log_error("%s: cannot be written: %s", path, strerror(code));
    return code == 0;
}

/* What cannot be read counts as there: a repair too many does no harm. */
static bool damage_load(const struct node_group *g, struct damage_file *out)
{
    char path[FILES_PATH_BYTES];
    struct buf text = {0};
    int head = 0;
    *out = (struct damage_file){0};
    damage_path(g, path);
    char state[16];
    bool there = files_read(path, 0, NODE_DAMAGE_BYTES + 64, &text) == 0;
    buf_byte(&text, '\0');
    if (there && sscanf(text.at, "queen damaged 1\nfetches %" SCNu32 "\n%15s\n%n", &out->fetches, state, &head) == 2 &&
        head > 0) {
        for (int i = 0; i < DAMAGE_STATES; i++)
            if (strcmp(state, DAMAGE_NAMES[i]) == 0) out->state = (enum damage_state)i;
        snprintf(out->what, sizeof out->what, "%s", text.at + head);
        out->what[strcspn(out->what, "\n")] = '\0';
    }
    buf_free(&text);
    return there;
}

static int damage_remove(const struct node_group *g)
{
    char path[FILES_PATH_BYTES];
    damage_path(g, path);
    int code = files_remove(path);
    if (code == 0) code = files_sync(g->dir);
    if (code != 0) log_warn("%s: cannot be removed: %s", path, strerror(code));
    return code;
}

/* ---- found while it runs ------------------------------------------------------------------------------------------ */

void node_damaged(struct node *n, uint32_t group, const char *what, bool ends)
{
    struct node_group *g = &n->groups[group];
    pthread_mutex_lock(&n->lock);
    bool first = !g->damage.damaged;
    if (first) {
        snprintf(g->damage.what, sizeof g->damage.what, "%s", what);
        g->damage.damaged = true;
    }
    pthread_mutex_unlock(&n->lock);
    if (!n->clustered) return;
    if (first)
        log_error("group %" PRIu32
                  ": this node's copy is damaged: %s. It is replaced by the leader's as soon as a majority stays "
                  "without this node",
                  group, what);
    struct damage_file f = {0};
    snprintf(f.what, sizeof f.what, "%s", what);
    if (ends) damage_store(g, &f);
}

void node_damage(struct node *n, uint32_t group, struct node_damage *out)
{
    struct node_group *g = &n->groups[group];
    pthread_mutex_lock(&n->lock);
    *out = g->damage;
    pthread_mutex_unlock(&n->lock);
}

static void repair_begin(struct node_group *g)
{
    struct damage_file f = {0};
    snprintf(f.what, sizeof f.what, "%s", g->damage.what);
    if (!damage_store(g, &f)) return;
    log_warn("group %" PRIu32 ": starting anew to replace what is damaged", g->number);
    node_start_anew(g->node);
}

static void repair_answered(void *ctx, uint64_t peer, bool ok, struct slice bytes)
{
    struct node_group *g = ctx;
    (void)peer;
    g->repair_asking = false;
    if (g->node->stopping || !ok || bytes.len != 1) return;
    if (bytes.at[0] != 0)
        repair_begin(g);
    else if (logger_every(&g->repair_said_us, 60000000))
        log_warn("group %" PRIu32 ": the damage is not repaired yet: without this node no majority would be left", g->number);
}

static void damage_look(struct node *n, struct node_group *g, int64_t now_us)
{
    uint32_t voters = 0;
    for (uint32_t i = 0; i < g->now.count; i++) voters += g->now.at[i].role == REPLICA_VOTER;
    if (g->leads) {
        g->hands_over = voters > 1;
        return;
    }
    bool soon = n->repaired_us != 0 && now_us - n->repaired_us < REPAIR_AGAIN_US;
    if (soon || g->leader == 0 || g->leader == n->id || g->repair_asking || now_us < g->repair_ask_us) return;
    g->repair_asking = true;
    g->repair_ask_us = now_us + REPAIR_ASK_US;
    node_ask(n, g->leader, NODE_ASK_REPAIR, slice_make(&g->number, sizeof g->number), REPAIR_ASK_US, repair_answered, g);
}

void repair_look(struct node *n)
{
    int64_t now_us = clock_mono_us();
    for (uint32_t i = 0; i < n->group_count; i++) {
        struct node_group *g = &n->groups[i];
        pthread_mutex_lock(&n->lock);
        bool damaged = g->damage.damaged;
        pthread_mutex_unlock(&n->lock);
        if (damaged) damage_look(n, g, now_us);
    }
}

/* At the leader. One node at a time, and only when the others are a majority that is there now. */
static bool repair_granted(struct node *n, struct node_group *g, uint64_t peer)
{
    uint32_t voters = 0, there = 0;
    bool votes = false;
    int64_t now_us = clock_mono_us();
    if (!g->leads || !g->now.committed || members_find(&g->now, peer) == NULL) return false;
    for (uint32_t i = 0; i < g->now.count; i++) {
        const struct replica_progress *p = &g->progress[i];
        if (g->now.at[i].role != REPLICA_VOTER) continue;
        uint64_t id = g->now.at[i].id;
        bool heard = g->has_progress[i] && p->heard_age_us >= 0 && p->heard_age_us < REPAIR_HEARD_US && !p->snapshot &&
                     net_connected(n->net, id);
        voters++;
        votes |= id == peer;
        there += id == n->id || (id != peer && heard);
    }
    if (!votes) return true;
    if (there < voters / 2 + 1) return false;
    if (n->repair_peer != 0 && n->repair_peer != peer && now_us < n->repair_until_us) return false;
    n->repair_peer = peer;
    n->repair_until_us = now_us + REPAIR_GRANT_US;
    return true;
}

void repair_asked(struct node *n, struct node_question q, struct slice question)
{
    uint32_t group;
    if (question.len != sizeof group || n->waits || n->repairs) return;
    memcpy(&group, question.at, sizeof group);
    if (group >= n->group_count) return;
    char granted = (char)repair_granted(n, &n->groups[group], q.peer);
    if (granted) log_info("group %" PRIu32 ": node %" PRIu64 " is damaged and leaves for a repair", group, q.peer);
    node_reply(q, slice_make(&granted, 1));
}

/* ---- under repair ------------------------------------------------------------------------------------------------- */

static bool repair_send(void *ctx, uint64_t peer, const struct slice *parts, uint32_t count)
{
    struct repair *r = ctx;
    return net_send(r->group->node->net, peer, (uint16_t)r->group->number, FRAME_SNAPSHOT, 0, parts, count);
}

static void repair_frame(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    struct repair *r = ctx;
    if (kind == FRAME_SNAPSHOT && !r->fetched) snapshots_receive(r->snapshots, peer, frame);
}

static void repair_link(void *ctx, uint64_t peer, enum net_link which, bool up)
{
    struct repair *r = ctx;
    (void)which;
    if (!r->fetched) snapshots_link(r->snapshots, peer, up);
}

/* A leader of an older term than ours may not know of entries that we have acknowledged to a newer one. */
static void repair_last(void *ctx, uint64_t peer, uint64_t term, uint64_t index)
{
    struct repair *r = ctx;
    struct snapshots_view v;
    snapshots_view(r->snapshots, &v);
    if (v.fetching || r->fetched) return;
    if (term >= r->term) {
        snapshots_repair(r->snapshots, peer, index);
    } else if (logger_every(&r->low_said_us, REPAIR_SAY_US)) {
        log_info("group %" PRIu32 ": node %" PRIu64 " leads in term %" PRIu64 ", and this node has seen term %" PRIu64
                 ": another leader is waited for",
                 r->group->number, peer, term, r->term);
    }
}

static void repair_fetched(void *ctx, uint64_t index)
{
    struct repair *r = ctx;
    struct damage_file f = {.fetches = r->fetches + 1, .state = DAMAGE_FETCHED};
    (void)index;
    r->fetched = true;
    snprintf(f.what, sizeof f.what, "%s", r->group->damage.what);
    damage_store(r->group, &f);
    node_start_anew(r->group->node);
}

static void repair_give_up(struct repair *r)
{
    log_warn("group %" PRIu32 ": no leader was found to repair from: starting anew with what is there", r->group->number);
    if (damage_remove(r->group) != 0) return;
    r->fetched = true;
    node_start_anew(r->group->node);
}

static void repair_tick(struct loop_timer *t)
{
    struct repair *r = repair_of(t);
    struct node *n = r->group->node;
    struct snapshots_view v;
    int64_t now_us = clock_mono_us();
    if (r->fetched || n->stopping) return;
    loop_timer_set(n->loop, t, now_us + REPAIR_TICK_US);
    snapshots_view(r->snapshots, &v);
    if (v.fetching) {
        r->began_us = now_us;
        return;
    }
    if (r->opens && now_us - r->began_us >= REPAIR_PATIENCE_US) {
        repair_give_up(r);
        return;
    }
    if (logger_every(&r->said_us, REPAIR_SAY_US))
        log_warn("group %" PRIu32 ": under repair, looking for a leader to fetch the state from", r->group->number);
    for (uint32_t i = 0; i < n->peer_count; i++) snapshots_who(r->snapshots, n->peers[i].id);
}

static void repair_start(struct node_group *g, const struct replica_look *look, const struct damage_file *f)
{
    struct node *n = g->node;
    struct repair *r = calloc(1, sizeof *r);
    must(r != NULL);
    *r = (struct repair){.group = g,
                         .term = look->term,
                         .fetches = f->fetches,
                         .opens = f->state == DAMAGE_RUNNING,
                         .began_us = clock_mono_us()};
    struct snapshots_options o = {.dir = g->dir,
                                  .loop = n->loop,
                                  .cluster = n->disk.cluster,
                                  .node = n->id,
                                  .ctx = r,
                                  .send = repair_send,
                                  .fetched = repair_fetched,
                                  .last = repair_last};
    r->snapshots = snapshots_new(&o);
    r->timer.fire = repair_tick;
    g->repair = r;
    n->repairs = true;
    struct net_channel c = {.ctx = r, .loop = n->loop, .frame = repair_frame, .link = repair_link};
    net_attach(n->net, (uint16_t)g->number, &c);
    loop_timer_set(n->loop, &r->timer, clock_mono_us());
}

/* Who this directory is, its term and who the others are must be known, and somebody else must hold what is lost here. */
static bool repair_can(struct node_group *g, struct replica_look *look, uint32_t fetches, struct buf *error)
{
    const struct node *n = g->node;
    uint32_t others = 0;
    const char *why = NULL;
    struct buf unread = {0};
    replica_look(g->dir, look, &unread);
    buf_free(&unread);
    bool ours = look->has_identity && look->node == n->id && uuid_equal(look->cluster, n->disk.cluster);
    look->has_members = look->members.count > 0; /* not when the file is damaged */
    for (uint32_t i = 0; look->has_members && i < look->members.count; i++)
        others += look->members.at[i].id != n->id && look->members.at[i].role == REPLICA_VOTER;
    if (!look->has_members) others = n->config->peer_count > 1 || n->disk.joined;
    if (fetches >= REPAIR_FETCHES_MAX) why = "the states that were fetched for it did not help";
    if (others == 0) why = "no other node votes";
    if (!look->has_meta || look->waits) why = "its term and vote are not known";
    if (!ours) why = "the file `identity` is missing, damaged or of another node";
    if (why == NULL) return true;
    buf_printf(error,
               "; it is not replaced by a peer's: %s. Remove the node from the cluster (DELETE "
               "/api/v1/system/raft/membership/members/%" PRIu64 " at another one), empty the directory, start with "
               "QUEEN_RAFT_JOIN=true and add it anew",
               why, n->id);
    return false;
}

bool repair_note(struct node_group *g, struct buf *error)
{
    struct damage_file f;
    struct replica_look look;
    if (!g->node->clustered) return false;
    damage_load(g, &f);
    if (!repair_can(g, &look, f.fetches, error)) return false;
    f.state = DAMAGE_START;
    snprintf(f.what, sizeof f.what, "%.*s", (int)error->len, error->at);
    return damage_store(g, &f);
}

bool repair_open(struct node_group *g, struct buf *error)
{
    struct damage_file f;
    struct replica_look look;
    char path[FILES_PATH_BYTES];
    uint64_t bytes;
    if (!g->node->clustered || !damage_load(g, &f)) return true;
    snprintf(path, sizeof path, "%.4096s/incoming/ready", g->dir);
    if (f.state == DAMAGE_FETCHED || files_size(path, &bytes) == 0) return true; /* to be put in place */
    buf_printf(error, "%s: damaged", g->dir);
    if (!repair_can(g, &look, f.fetches, error)) return f.state == DAMAGE_RUNNING; /* it opens, and serves what it can */
    if (f.state == DAMAGE_START && damage_remove(g) != 0) return false;
    snprintf(g->damage.what, sizeof g->damage.what, "%s", f.what);
    g->damage.damaged = true;
    log_error("group %" PRIu32 ": this node's copy is damaged and is replaced by the leader's: %s", g->number, f.what);
    /* Until the group is open its members are those of the stored configuration. */
    if (look.has_members) g->now = look.members;
    g->now.committed = false;
    repair_start(g, &look, &f);
    return true;
}

void repair_over(struct node_group *g)
{
    struct damage_file f;
    if (!g->node->clustered || !damage_load(g, &f)) return;
    if (damage_remove(g) == 0) g->node->repaired_us = clock_mono_us();
    log_info("group %" PRIu32 ": the damage is repaired", g->number);
}

void repair_stop(struct node_group *g)
{
    struct repair *r = g->repair;
    if (r == NULL) return;
    net_detach(g->node->net, (uint16_t)g->number);
    loop_timer_cancel(g->node->loop, &r->timer);
    snapshots_free(r->snapshots);
    free(r);
    g->repair = NULL;
}

bool node_repairs(const struct node *n)
{
    return n->repairs;
}
