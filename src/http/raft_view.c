#include "http/raft_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "http/ops.h"
#include "http/render.h"
#include "http/visit.h"

enum { SHARED_VERSION = 1 };

#define holder_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

const struct raft_member *raft_member_find(const struct raft_shared *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->at[i].m.id == id) return &s->at[i];
    }
    return NULL;
}

/* ---- looks ---------------------------------------------------------------------------------------------------------- */

size_t raft_looks_bytes(const struct http *h)
{
    return sizeof(struct raft_looks) + node_group_count(h->node) * sizeof(struct raft_look);
}

/* On the group's thread. */
static void look_run(struct node_visit *v, struct broker *b)
{
    struct raft_look *l = holder_of(v, struct raft_look, visit);
    struct raft_facts *f = &l->facts;
    struct raft_shared *s = &f->shared;
    struct replica *r = broker_replica(b);
    struct replica_members all;
    broker_metrics(b, &f->m);
    replica_members(r, &all);
    f->role = replica_role(r);
    f->votes = replica_votes(r);
    s->version = SHARED_VERSION;
    s->node = node_id(l->all->http->node);
    s->leads = f->role == REPLICA_LEADER;
    s->leader = replica_leader(r);
    s->term = replica_term(r);
    s->last = replica_last_index(r);
    s->commit = replica_commit_index(r);
    s->index = all.index;
    s->committed = all.committed;
    s->count = all.count;
    for (uint32_t i = 0; i < all.count; i++) {
        s->at[i].m = all.at[i];
        s->at[i].known = s->leads && replica_progress(r, all.at[i].id, &s->at[i].progress);
        if (!s->leads || all.at[i].id != s->node) continue;
        s->at[i].progress = (struct replica_progress){.match = s->last};
        s->at[i].known = true;
    }
}

static void look_done(struct node_visit *v)
{
    struct raft_looks *all = holder_of(v, struct raft_look, visit)->all;
    if (--all->waiting == 0) all->done(all);
}

void raft_looks_begin(struct http *h, struct raft_looks *l, struct loop *home, void (*done)(struct raft_looks *l), void *ctx)
{
    l->http = h;
    l->count = l->waiting = node_group_count(h->node);
    l->done = done;
    l->ctx = ctx;
    for (uint32_t i = 0; i < l->count; i++) {
        l->at[i].all = l;
        l->at[i].visit = (struct node_visit){.home = home, .run = look_run, .done = look_done};
        node_visit(h->node, i, &l->at[i].visit);
    }
}

/* ---- the node block ------------------------------------------------------------------------------------------------- */

void raft_id_or_null(struct buf *out, const char *key, uint64_t id)
{
    buf_text(out, key);
    if (id == 0)
        buf_text(out, "null");
    else
        buf_decimal(out, id);
}

void raft_ms_or_null(struct buf *out, const char *key, int64_t us)
{
    buf_text(out, key);
    if (us < 0)
        buf_text(out, "null");
    else
        buf_decimal(out, (uint64_t)us / 1000);
}

static void disk_render(const struct config *c, struct buf *out, bool storage_full)
{
    struct statvfs v = {0};
    bool known = statvfs(c->dir, &v) == 0;
    uint64_t used = known ? (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize : 0;
    uint64_t total = known ? used + (uint64_t)v.f_bavail * v.f_frsize : 0;
    field_number(out, "{\"totalBytes\":", total);
    field_number(out, ",\"usedBytes\":", used);
    field_number(out, ",\"usedPct\":", total == 0 ? 0 : used * 100 / total);
    buf_printf(out, ",\"gate\":\"%s\"", storage_full ? "closed" : "open");
    field_number(out, ",\"highPct\":", c->disk_high_pct);
    field_number(out, ",\"lowPct\":", c->disk_low_pct);
    field_bool(out, ",\"writesRefused\":", storage_full);
    buf_byte(out, '}');
}

static uint64_t memory_limit(void)
{
    unsigned long long bytes = 0;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "re");
    if (file != NULL) {
        if (fscanf(file, "%llu", &bytes) != 1) bytes = 0; /* "max" */
        fclose(file);
    }
    return bytes;
}

static void host_render(const struct config *c, struct buf *out, bool storage_full)
{
    uint64_t limit = memory_limit();
    buf_text(out, ",\"host\":{\"cpuPct\":null,\"cpuWindowSeconds\":null");
    field_signed(out, ",\"cpus\":", sysconf(_SC_NPROCESSORS_ONLN));
    field_number(out, ",\"rssBytes\":", ops_resident_bytes());
    if (limit > 0)
        field_number(out, ",\"memLimitBytes\":", limit);
    else
        buf_text(out, ",\"memLimitBytes\":null");
    buf_text(out, ",\"disk\":");
    disk_render(c, out, storage_full);
    buf_byte(out, '}');
}

/* Our own addresses: as the members' list has them, else as configured. */
static void addresses_render(struct http *h, struct buf *out, const struct raft_shared *s)
{
    const struct config *c = h->config;
    const struct raft_member *m = raft_member_find(s, s->node);
    struct node_member own = {0};
    char text[300];
    bool six = strchr(c->host, ':') != NULL, alone = node_alone(h->node);
    if (m != NULL) node_member_read(&m->m, &own);
    snprintf(text, sizeof text, "%s%s%s:%u", six ? "[" : "", c->host, six ? "]" : "", c->port);
    const char *raft = own.raft[0] != '\0' ? own.raft : c->advertise_raft;
    const char *http = own.http[0] != '\0' ? own.http : c->advertise_http;
    field_text_or_null(out, ",\"raftAddr\":", alone || raft[0] == '\0' ? slice_make(NULL, 0) : slice_of(raft));
    field_text(out, ",\"httpAddr\":", slice_of(alone || http[0] == '\0' ? text : http));
}

static const char *state_of(struct http *h, const struct raft_facts *f)
{
    static const char *const names[] = {[REPLICA_STARTING] = "starting",
                                        [REPLICA_FOLLOWER] = "follower",
                                        [REPLICA_CANDIDATE] = "candidate",
                                        [REPLICA_LEADER] = "leader"};
    if (atomic_load_explicit(&h->stopping, memory_order_relaxed)) return "shutdown";
    return f->votes || f->role == REPLICA_LEADER || f->role == REPLICA_STARTING ? names[f->role] : "learner";
}

static void numbers_render(struct http *h, struct buf *out, const struct raft_facts *f)
{
    buf_printf(out, "\"role\":\"%s\",\"state\":\"%s\"", f->votes ? "voter" : "learner", state_of(h, f));
    raft_id_or_null(out, ",\"leaderId\":", f->shared.leader);
    field_number(out, ",\"term\":", f->shared.term);
    field_number(out, ",\"lastLogIndex\":", f->m.log_index);
    field_number(out, ",\"committedIndex\":", f->m.commit_index);
    field_number(out, ",\"appliedIndex\":", f->m.applied_index);
    field_number(out, ",\"durableIndex\":", f->m.durable_index);
    field_number(out, ",\"inflight\":", f->m.in_flight_entries);
    field_number(out, ",\"proposals\":", f->m.entries_total);
    field_number(out, ",\"log\":{\"files\":", f->m.log.files);
    field_number(out, ",\"bytes\":", f->m.log.file_bytes);
    field_number(out, "},\"store\":{\"mapBytes\":0,\"usedBytes\":", f->m.store_bytes);
    buf_text(out, ",\"mapUsedPct\":0,\"readersInUse\":0,\"maxReaders\":0}");
}

/* The first damage that was found of any group's files; null: none. */
static void damage_render(struct http *h, struct buf *out)
{
    struct node_damage d = {0};
    for (uint32_t i = 0; i < node_group_count(h->node) && !d.damaged; i++) node_damage(h->node, i, &d);
    field_text_or_null(out, ",\"damage\":", d.damaged ? slice_of(d.what) : slice_make(NULL, 0));
}

void raft_block_render(struct http *h, struct buf *out, const struct raft_looks *l, bool local)
{
    const struct raft_facts *f = &l->at[0].facts;
    bool full = false;
    for (uint32_t i = 0; i < l->count; i++) full = full || l->at[i].facts.m.storage_full;
    field_number(out, "\"nodeId\":", f->shared.node);
    field_text(out, ",\"hostname\":", slice_of(h->config->server_id));
    addresses_render(h, out, &f->shared);
    field_bool(out, ",\"local\":", local);
    buf_text(out, ",\"reachable\":true,");
    numbers_render(h, out, f);
    buf_printf(out, ",\"version\":\"2.0.0+queen.%s\"", h->config->version);
    field_signed(out, ",\"uptimeSeconds\":", (clock_mono_us() - h->started_us) / 1000000);
    host_render(h->config, out, full);
    if (l->count > 1) {
        buf_text(out, ",\"groups\":[");
        for (uint32_t i = 0; i < l->count; i++) {
            field_number(out, i == 0 ? "{\"group\":" : ",{\"group\":", i);
            buf_byte(out, ',');
            numbers_render(h, out, &l->at[i].facts);
            buf_byte(out, '}');
        }
        buf_byte(out, ']');
    }
    damage_render(h, out);
    buf_text(out, ",\"error\":null");
}

/* QUEEN_CELL_ID, or a short hash of who the cluster is. */
void raft_cluster_render(struct http *h, struct buf *out, const struct raft_shared *s)
{
    uint64_t seed = atomic_load_explicit(&h->id_seeds[0], memory_order_relaxed);
    struct uuid cluster = node_cluster(h->node);
    struct slice what = node_alone(h->node) ? slice_make(&seed, sizeof seed) : slice_make(cluster.bytes, sizeof cluster.bytes);
    uint32_t voters = 0;
    for (uint32_t i = 0; i < s->count; i++) voters += s->at[i].m.role == REPLICA_VOTER;
    buf_text(out, "\"engine\":\"raft\",\"clusterId\":");
    if (h->config->cell_id[0] != '\0')
        render_text(out, slice_of(h->config->cell_id));
    else
        buf_printf(out, "\"%08x\"", (unsigned)hash64(what, 0));
    field_number(out, ",\"self\":", s->node);
    field_number(out, ",\"voters\":", voters);
}

/* ---- other nodes: asking --------------------------------------------------------------------------------------------- */

static void round_answered(void *ctx, uint64_t peer, bool ok, struct slice bytes)
{
    struct raft_round *round = ctx;
    struct raft_reply *a = NULL;
    for (uint32_t i = 0; i < round->count; i++) {
        if (round->at[i].node == peer) a = &round->at[i];
    }
    must(a != NULL && round->waiting > 0);
    if (ok && bytes.len >= sizeof a->shared) {
        memcpy(&a->shared, bytes.at, sizeof a->shared);
        a->ok = a->shared.version == SHARED_VERSION && a->shared.count <= REPLICA_MEMBERS_MAX && a->shared.node == peer;
        for (uint32_t i = 0; a->ok && i < a->shared.count; i++) a->shared.at[i].m.address[REPLICA_ADDRESS_BYTES - 1] = '\0';
        struct slice rest = slice_make(bytes.at + sizeof a->shared, bytes.len - sizeof a->shared);
        if (a->ok) a->block = arena_copy(request_arena(round->request), rest);
    }
    if (--round->waiting == 0) request_wake(round->request);
}

static void round_run(struct loop_task *t)
{
    struct raft_round *round = holder_of(t, struct raft_round, task);
    struct node *n = round->request->http->node;
    for (uint32_t i = 0; i < round->count; i++)
        node_ask(n, round->at[i].node, (uint8_t)round->what, slice_of(""), RAFT_ANSWER_US, round_answered, round);
}

void raft_round_begin(struct raft_round *round)
{
    round->waiting = round->count;
    must(round->count > 0);
    round->task.run = round_run;
    loop_post(node_loop(round->request->http->node), &round->task);
}

/* ---- other nodes: answering ------------------------------------------------------------------------------------------ */

struct asked {
    struct node_question question;
    enum raft_question what;
};

static void asked_looked(struct raft_looks *l)
{
    struct asked *a = l->ctx;
    struct buf out = {0};
    buf_put(&out, &l->at[0].facts.shared, sizeof l->at[0].facts.shared);
    if (a->what == RAFT_ASK_BLOCK) raft_block_render(l->http, &out, l, false);
    node_reply(a->question, buf_view(&out));
    buf_free(&out);
    free(a);
    free(l);
}

static void asked(void *ctx, struct node_question q, uint8_t what, struct slice question)
{
    struct http *h = ctx;
    (void)question;
    if ((what != RAFT_ASK_SHARED && what != RAFT_ASK_BLOCK) || node_group(h->node, 0) == NULL) return;
    struct asked *a = malloc(sizeof *a);
    struct raft_looks *l = calloc(1, raft_looks_bytes(h));
    must(a != NULL && l != NULL);
    *a = (struct asked){.question = q, .what = (enum raft_question)what};
    raft_looks_begin(h, l, node_loop(h->node), asked_looked, a);
}

void raft_answers(struct http *h)
{
    node_on_ask(h->node, asked, h);
}
