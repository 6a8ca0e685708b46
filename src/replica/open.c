/* Starting.
 *
 *   read identity, configuration, term and vote   nothing is written yet
 *   open the log: its records from the applied one on, and those kept before it
 *   do they belong together? if not: refuse, name the file
 *   a new node: identity -> configuration -> term and vote (version 1) -> entry 1, each durable before the next
 *   one that waits to be added: identity -> term and vote, marked as waiting; configuration and entries come from a leader
 *   the term of this start, durable -> raft's START
 *
 * Creation has come to its end when term and vote have a version above 1: until then a start goes on where it was cut short. A node
 * that waits has come to its end when its first entry is durable (or a fetched state was put in place): until then a log without
 * entries is no loss. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/logger.h"
#include "replica/replica_inner.h"

enum {
    ELECTION_TIMEOUT_MS = 1000,
    HEARTBEAT_TIMEOUT_MS = 100,
    INSTALL_TIMEOUT_MS = 5000,      /* a member that should fetch a state is asked again */
    INFLIGHT_ENTRIES_MAX = 1 << 30, /* by raft's count; ours is in bytes, see stream.c */
    WINDOW_BYTES = 32 << 20,
    NODE_FIRST = 1,
    CREATE_TERM = 1,
};

/* ---- what the log reports while it is opened */

void open_record(void *ctx, const struct log_record *rec)
{
    struct replica *r = ctx;
    if (r->open_fault != NULL) return;
    /* The scan begins at a file's beginning. What it finds first may be cut again from an even earlier entry on, which was not in
     * that file the first time: only what follows then counts. */
    bool earlier = r->o.keep_bytes > 0 && rec->index < r->ring.first && r->ring.next > 0;
    if (r->ring.next == 0 || earlier) {
        ring_free(&r->ring);
        ring_init(&r->ring, rec->index);
    }
    bool fits = rec->index >= r->ring.first && rec->index <= r->ring.next;
    uint64_t term_before = rec->index > r->ring.first && fits ? ring_at(&r->ring, rec->index - 1)->term : 0;
    if (!fits) r->open_fault = "does not follow the entry before it";
    if (fits && rec->term < term_before) r->open_fault = "has a lower term than the entry before it";
    if (rec->type != RAFT_COMMAND && rec->type != RAFT_BARRIER && rec->type != RAFT_CHANGE)
        r->open_fault = "has an unknown type";
    if (r->open_fault != NULL) {
        r->open_index = rec->index;
        return;
    }
    struct slot s = {.pos = rec->pos, .term = rec->term, .len = rec->len, .type = rec->type};
    ring_put(&r->ring, rec->index, &s);
    marks_note(&r->marks, rec->index, rec->term, rec->pos);
}

static void on_synced(void *ctx)
{
    struct replica *r = ctx;
    if (atomic_load(&r->closing) || atomic_exchange(&r->synced_posted, true)) return;
    loop_post(r->o.loop, &r->synced_task);
}

void replica_fail(struct replica *r, const char *what)
{
    if (!atomic_exchange(&r->broken, true)) r->o.failed(r->o.ctx, what);
}

void replica_damaged(struct replica *r, uint64_t pos)
{
    char what[240];
    uint64_t first = pos & ~(r->o.segment_bytes - 1);
    snprintf(what, sizeof what,
             "the entry in %.120s/%016" PRIx64 ".seg at offset %" PRIu64 " cannot be read, or fails its checks", r->log_dir,
             first, pos - first);
    log_error("%s", what);
    if (r->o.damaged != NULL) r->o.damaged(r->o.ctx, what);
}

static void on_failed(void *ctx, const char *what)
{
    replica_fail(ctx, what);
}

static enum log_status log_start(struct replica *r, struct buf *error)
{
    struct log_options o = {
        .dir = r->log_dir,
        .segment_bytes = r->o.segment_bytes,
        .cache_bytes_max = r->o.cache_bytes_max,
        .unsynced_bytes_max = r->o.unsynced_bytes_max,
        .cache_age_us = r->o.cache_age_us,
        /* With the last applied entry itself: it shows that log and store belong together. */
        .first_index = r->o.keep_bytes > 0 ? 1 : r->o.applied_index,
        .first_pos = r->o.applied_pos,
        .ctx = r,
        .record = open_record,
        .synced = on_synced,
        .failed = on_failed,
    };
    r->marks.spacing = r->o.segment_bytes / 16;
    enum log_status status = log_open(&r->log, &o, error);
    if (status != LOG_OK || r->open_fault == NULL) return status;
    buf_printf(error, "%s: damaged: entry %" PRIu64 " %s; restore the directory from a backup", r->log_dir, r->open_index,
               r->open_fault);
    return LOG_DAMAGED;
}

/* ---- do the parts belong together? */

struct found {
    bool identity, conf;
};

static uint64_t ring_last(const struct replica *r)
{
    return r->ring.next == 0 ? 0 : r->ring.next - 1;
}

static enum log_status refuse(struct buf *error, const struct replica *r, const char *file, const char *why)
{
    buf_printf(error, "%s/%s: %s; restore the directory from a backup", r->dir, file, why);
    return LOG_DAMAGED;
}

/* Creation has not come to its end, so there is at most entry 1. */
static enum log_status creating_check(struct replica *r, const struct found *f, struct buf *error)
{
    if (!f->identity && r->ring.next > 0) return refuse(error, r, "identity", "is missing, but there are entries in the log");
    if (!f->identity && (r->meta.files > 0 || f->conf))
        return refuse(error, r, "identity", "is missing, but other files of a node are there");
    return LOG_OK;
}

static enum log_status used_check(struct replica *r, const struct found *f, struct buf *error)
{
    char why[200];
    uint64_t applied = r->o.applied_index;
    if (!f->identity) return refuse(error, r, "identity", "is missing, but there are entries in the log or the store");
    if (r->meta.version == 0) return refuse(error, r, "meta-0", "term and vote are missing or damaged (meta-1 too)");
    if (!uuid_equal(r->meta.cluster, r->identity.cluster) || r->meta.node != r->identity.node)
        return refuse(error, r, "identity", "names another node than the files meta-0 and meta-1");
    if (!f->conf) return refuse(error, r, "configuration", "is missing");
    if (r->ring.next == 0) {
        snprintf(why, sizeof why, "ends before entry %" PRIu64 ", which the node had stored", applied == 0 ? 1 : applied);
        return refuse(error, r, "log", why);
    }
    uint64_t first_wanted = applied == 0 ? 1 : applied;
    if (r->ring.first > first_wanted || r->ring.next <= first_wanted) {
        snprintf(why, sizeof why,
                 "has entries %" PRIu64 " to %" PRIu64 ", but entry %" PRIu64 " is wanted: the store (applied up to %" PRIu64
                 ") and the log do not belong together",
                 r->ring.first, ring_last(r), first_wanted, applied);
        return refuse(error, r, "log", why);
    }
    const struct slot *s = ring_at(&r->ring, first_wanted);
    if (applied > 0 && s->term != r->o.applied_term) {
        snprintf(why, sizeof why,
                 "entry %" PRIu64 " has term %" PRIu64 ", but the store has applied it with term %" PRIu64
                 ": store and log do not belong together",
                 applied, s->term, r->o.applied_term);
        return refuse(error, r, "log", why);
    }
    if (applied == 0 && s->type != RAFT_CHANGE) return refuse(error, r, "log", "its first entry is not a configuration");
    return LOG_OK;
}

static bool uuid_zero(struct uuid id)
{
    return uuid_equal(id, (struct uuid){0});
}

static enum log_status node_check(const struct replica *r, struct buf *error)
{
    if (r->o.node_id != 0 && r->o.node_id != r->identity.node) {
        buf_printf(error, "%s/identity: the directory belongs to node %" PRIu64 ", but this is started as node %" PRIu64,
                   r->dir, r->identity.node, r->o.node_id);
        return LOG_DAMAGED;
    }
    if (uuid_zero(r->o.cluster) || uuid_equal(r->o.cluster, r->identity.cluster)) return LOG_OK;
    char its[UUID_TEXT], ours[UUID_TEXT];
    uuid_text(r->identity.cluster, its);
    uuid_text(r->o.cluster, ours);
    buf_printf(error, "%s/identity: the directory belongs to cluster %.*s, but this is started in cluster %.*s", r->dir,
               UUID_TEXT, its, UUID_TEXT, ours);
    return LOG_DAMAGED;
}

/* ---- creation */

static int member_by_id(const void *a, const void *b)
{
    const struct replica_member *left = *(const struct replica_member *const *)a,
                                *right = *(const struct replica_member *const *)b;
    return left->id < right->id ? -1 : left->id > right->id;
}

static void server_put(struct raft_configuration *c, uint64_t id, const char *address, int role)
{
    char *text = member_address_text(id, address);
    must(raft_configuration_add(c, id, text, role) == 0);
    free(text);
}

/* The members asked for, by id: the same on every node. None: this node alone. */
static enum log_status members_make(struct replica *r, struct raft_configuration *c, struct buf *error)
{
    const struct replica_member *sorted[REPLICA_MEMBERS_MAX];
    uint32_t count = r->o.member_count;
    bool me = count == 0, voters = count == 0;
    must(count <= REPLICA_MEMBERS_MAX);
    for (uint32_t i = 0; i < count; i++) sorted[i] = &r->o.members[i];
    qsort(sorted, count, sizeof sorted[0], member_by_id);
    for (uint32_t i = 0; i < count; i++) {
        must(sorted[i]->id != 0 && (i == 0 || sorted[i]->id != sorted[i - 1]->id));
        me |= sorted[i]->id == r->identity.node;
        voters |= sorted[i]->role == REPLICA_VOTER;
        server_put(c, sorted[i]->id, sorted[i]->address, sorted[i]->role == REPLICA_VOTER ? RAFT_VOTER : RAFT_STANDBY);
    }
    if (count == 0) {
        char address[32];
        snprintf(address, sizeof address, "node-%" PRIu64, r->identity.node);
        must(raft_configuration_add(c, r->identity.node, address, RAFT_VOTER) == 0);
    }
    if (me && voters) return LOG_OK;
    buf_printf(error, "%s: node %" PRIu64 " is not among the members it is to begin with", r->dir, r->identity.node);
    return LOG_DAMAGED;
}

static enum log_status conf_make(struct replica *r, struct buf *error)
{
    struct raft_configuration c;
    struct raft_buffer encoded;
    raft_configuration_init(&c);
    enum log_status status = members_make(r, &c, error);
    if (status != LOG_OK) {
        raft_configuration_close(&c);
        return status;
    }
    must(raft_configuration_encode(&c, &encoded) == 0);
    raft_configuration_close(&c);
    r->conf.index = 1;
    buf_clear(&r->conf.encoded);
    buf_put(&r->conf.encoded, encoded.base, encoded.len);
    raft_free(encoded.base);
    return conf_store(r->dir, &r->conf, error);
}

static enum log_status first_entry_write(struct replica *r, struct buf *error)
{
    struct slice body = buf_view(&r->conf.encoded);
    memcpy(log_reserve(r->log, body.len), body.at, body.len);
    uint64_t pos = log_append(r->log, 1, 1, RAFT_CHANGE, body.len);
    log_flush(r->log);
    /* Once in the life of a node, before its loop runs. */
    while (log_synced_index(r->log) < 1 && !atomic_load(&r->broken)) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    if (atomic_load(&r->broken)) {
        buf_printf(error, "%s: the first entry could not be written", r->log_dir);
        return LOG_IO;
    }
    open_record(r, &(struct log_record){.index = 1, .term = 1, .pos = pos, .len = (uint32_t)body.len, .type = RAFT_CHANGE});
    return LOG_OK;
}

static enum log_status identity_make(struct replica *r, const struct found *f, struct buf *error)
{
    enum log_status status = LOG_OK;
    if (!f->identity) {
        r->identity = (struct identity){.cluster = uuid_zero(r->o.cluster) ? uuid_mint(clock_wall_us()) : r->o.cluster,
                                        .node = r->o.node_id == 0 ? NODE_FIRST : r->o.node_id,
                                        .generation = 1};
        status = identity_store(r->dir, &r->identity, error);
    }
    if (status == LOG_OK) status = node_check(r, error);
    r->meta.cluster = r->identity.cluster;
    r->meta.node = r->identity.node;
    return status;
}

static enum log_status create(struct replica *r, const struct found *f, struct buf *error)
{
    enum log_status status = identity_make(r, f, error);
    if (status == LOG_OK) status = conf_make(r, error);
    /* Alone it has voted for itself; with others nobody has voted in the first term, and nobody leads in it. */
    uint64_t vote = r->o.member_count == 0 ? r->identity.node : 0;
    if (status == LOG_OK && r->meta.version == 0) status = meta_write(&r->meta, CREATE_TERM, vote, error);
    if (status == LOG_OK && r->ring.next == 0) status = first_entry_write(r, error);
    if (status == LOG_OK && r->o.member_count > 0) status = meta_write(&r->meta, CREATE_TERM, vote, error);
    return status;
}

/* A node that waits to be added: no configuration, no entries. It has no vote to give and never asks for one. */
static enum log_status wait_begin(struct replica *r, const struct found *f, struct buf *error)
{
    enum log_status status = identity_make(r, f, error);
    r->conf.index = 0; /* what is there may have been stored for an entry that never came to be */
    buf_clear(&r->conf.encoded);
    ring_init(&r->ring, 1);
    r->meta.waits = true;
    if (status == LOG_OK && r->meta.version == 0) status = meta_write(&r->meta, 0, 0, error);
    return status;
}

/* ---- raft's start */

static bool alone(const struct raft_configuration *c, uint64_t node)
{
    unsigned voters = 0;
    bool me = false;
    for (unsigned i = 0; i < c->n; i++) {
        if (c->servers[i].role != RAFT_VOTER) continue;
        voters++;
        me |= c->servers[i].id == node;
    }
    return voters == 1 && me;
}

static enum log_status conf_decode(struct replica *r, struct slice encoded, struct raft_configuration *out, struct buf *error)
{
    struct raft_buffer b = {.base = (void *)(uintptr_t)encoded.at, .len = encoded.len};
    raft_configuration_init(out);
    if (raft_configuration_decode(&b, out) == 0 && out->n > 0) return LOG_OK;
    raft_configuration_close(out);
    return refuse(error, r, "configuration", "what it holds cannot be read");
}

/* Terms and types of the entries after the applied one; bodies for changes of the members only. */
static enum log_status entries_make(struct replica *r, struct raft_entry **out, unsigned *n, struct buf *error)
{
    uint64_t count = r->ring.next - r->ring.first;
    must(count < UINT_MAX);
    *n = (unsigned)count;
    *out = count == 0 ? NULL : raft_calloc(count, sizeof **out);
    must(count == 0 || *out != NULL);
    for (unsigned i = 0; i < *n; i++) {
        const struct slot *s = ring_at(&r->ring, r->ring.first + i);
        struct raft_entry *e = &(*out)[i];
        e->term = s->term;
        e->type = s->type;
        if (s->type != RAFT_CHANGE) continue;
        e->buf.len = s->len;
        e->buf.base = e->batch = raft_malloc(s->len == 0 ? 1 : s->len);
        must(e->batch != NULL);
        if (log_read_record(r->log, s->pos, s->len, e->buf.base) != LOG_OK)
            return refuse(error, r, "log", "an entry cannot be read back");
    }
    return LOG_OK;
}

static void entries_free(struct raft_entry *entries, unsigned n)
{
    for (unsigned i = 0; i < n; i++) raft_free(entries[i].batch);
    raft_free(entries);
}

/* The configuration that raft will start with: the last one in the log, else the stored one, which may be newer than a fetched log. */
static enum log_status conf_last(struct replica *r, const struct raft_entry *entries, unsigned n,
                                 struct raft_configuration *out, struct buf *error)
{
    for (unsigned i = n; i-- > 0;) {
        if (entries[i].type == RAFT_CHANGE && r->ring.first + i > r->conf.index)
            return conf_decode(r, slice_make(entries[i].buf.base, entries[i].buf.len), out, error);
    }
    return conf_decode(r, buf_view(&r->conf.encoded), out, error);
}

/* raft lets the only voter lead without an election, in the term it had. We hold that election on its behalf, so that every start
 * has a term of its own and (term, index) never names two different entries, not even one that a crash threw away.
 *
 * Term and vote older than the log's last entry mean that the newer of the two files was damaged after it had been written. Where
 * nobody else votes that is harmless, the log's term takes its place; otherwise a vote could be given twice. */
static enum log_status term_begin(struct replica *r, const struct raft_configuration *c, struct buf *error)
{
    uint64_t last_term = r->ring.next > r->ring.first ? ring_at(&r->ring, ring_last(r))->term : r->o.applied_term;
    bool only_voter = alone(c, r->identity.node);
    const char *newest = (r->meta.version & 1) != 0 ? "meta-1" : "meta-0";
    bool fetched = ring_last(r) == r->o.applied_index; /* the state came from a leader of a term that is news here */
    if (last_term > r->meta.term && !only_voter && fetched) {
        log_warn("%s/%s: holds an older term than the log's last entry; no vote is given in that one", r->dir, newest);
        return meta_write(&r->meta, last_term, r->identity.node, error);
    }
    if (last_term > r->meta.term && !only_voter)
        return refuse(error, r, newest, "holds an older term than the log's last entry");
    if (last_term > r->meta.term)
        log_warn("%s/%s: holds an older term than the log's last entry; the log's counts, since this is the only voter", r->dir,
                 newest);
    if (!only_voter) return LOG_OK;
    return meta_write(&r->meta, (last_term > r->meta.term ? last_term : r->meta.term) + 1, r->identity.node, error);
}

static enum log_status raft_begin(struct replica *r, struct raft_entry *entries, unsigned n, const char *address,
                                  struct buf *error)
{
    must(raft_init(&r->raft, NULL, NULL, r->identity.node, address) == 0);
    r->raft_open = true;
    r->raft.tracer = NULL; /* its trace buffers are static: shared between groups, written even when tracing is off */
    unsigned seed;
    random_bytes(&seed, sizeof seed);
    raft_seed(&r->raft, seed);
    raft_set_pre_vote(&r->raft, true);
    raft_set_election_timeout(&r->raft, r->o.election_ms);
    raft_set_heartbeat_timeout(&r->raft, r->o.heartbeat_ms);
    raft_set_install_snapshot_timeout(&r->raft, INSTALL_TIMEOUT_MS);
    raft_set_max_inflight_entries(&r->raft, INFLIGHT_ENTRIES_MAX);
    struct raft_snapshot_metadata snapshot = {
        .index = r->o.applied_index, .term = r->o.applied_term, .configuration_index = r->conf.index};
    struct raft_event event = {.type = RAFT_START,
                               .start = {.term = r->meta.term,
                                         .voted_for = r->meta.vote,
                                         .metadata = r->o.applied_index > 0 ? &snapshot : NULL,
                                         .start_index = r->ring.first,
                                         .entries = entries,
                                         .n_entries = n}};
    if (r->o.applied_index > 0) {
        enum log_status status = conf_decode(r, buf_view(&r->conf.encoded), &snapshot.configuration, error);
        if (status != LOG_OK) return status;
    }
    int rv = step_run(r, &event);
    if (rv == 0 && !atomic_load(&r->broken)) return LOG_OK;
    buf_printf(error, "%s: raft cannot start: %s", r->dir, rv == 0 ? "a write failed" : raft_strerror(rv));
    return rv == 0 ? LOG_IO : LOG_DAMAGED;
}

static enum log_status raft_start_it(struct replica *r, struct buf *error)
{
    struct raft_entry *entries;
    unsigned n;
    struct raft_configuration last = {0};
    enum log_status status = entries_make(r, &entries, &n, error);
    if (status == LOG_OK && r->conf.index > 0) status = conf_last(r, entries, n, &last, error);
    if (status != LOG_OK) {
        entries_free(entries, n);
        return status;
    }
    const char *address = "";
    for (unsigned i = 0; i < last.n; i++) {
        if (last.servers[i].id == r->identity.node) address = last.servers[i].address;
    }
    status = term_begin(r, &last, error);
    if (status == LOG_OK) status = raft_begin(r, entries, n, address, error);
    raft_configuration_close(&last);
    /* A refused START has given the entries away; the process ends anyway. */
    if (status == LOG_OK) entries_free(entries, n);
    return status;
}

static enum log_status parts_check(struct replica *r, struct found *f, struct buf *error)
{
    /* Only the very first write of term and vote, to meta-1, can have been cut short with nothing else there. */
    bool begun = r->meta.version == 0 && r->meta.files <= 1 && r->ring.next == 0;
    bool first = r->meta.version == 1 && r->ring.next <= 2 && !r->meta.waits;
    bool waits = r->meta.waits && r->ring.next == 0;
    if (r->o.applied_index == 0 && (begun || first || waits)) {
        enum log_status status =
            waits ? (f->identity ? LOG_OK : refuse(error, r, "identity", "is missing, but other files of a node are there"))
                  : creating_check(r, f, error);
        if (status != LOG_OK) return status;
        return waits || (begun && r->o.join) ? wait_begin(r, f, error) : create(r, f, error);
    }
    enum log_status status = used_check(r, f, error);
    return status == LOG_OK ? node_check(r, error) : status;
}

/* What the scan found before the entries that are kept. */
static void kept_bound(struct replica *r)
{
    if (r->o.applied_index == 0) return;
    uint64_t keep = keep_start(r, r->o.applied_index);
    while (r->ring.first < keep) ring_pop(&r->ring);
    marks_trim(&r->marks, keep);
}

static enum log_status parts_open(struct replica *r, struct buf *error)
{
    struct found f = {0};
    int code = files_make_dir(r->dir);
    if (code != 0) {
        buf_printf(error, "%s: cannot be created: %s", r->dir, strerror(code));
        return LOG_IO;
    }
    enum log_status status = identity_load(r->dir, &r->identity, &f.identity, error);
    if (status == LOG_OK) status = conf_load(r->dir, &r->conf, &f.conf, error);
    if (status == LOG_OK) status = meta_open(&r->meta, r->dir, error);
    if (status == LOG_OK) status = log_start(r, error);
    if (status == LOG_OK) status = parts_check(r, &f, error);
    if (status != LOG_OK) return status;
    kept_bound(r);
    for (uint64_t i = r->o.applied_index + 1; i < r->ring.next; i++) r->flight_bytes += ring_at(&r->ring, i)->len;
    r->applied = r->stored = r->commit_max = r->o.applied_index;
    r->applied_term = r->o.applied_term;
    if (r->meta.waits && r->conf.index > 0) { /* what it waited for is there, and durable */
        r->meta.waits = false;
        status = meta_write(&r->meta, r->meta.term, r->meta.vote, error);
        if (status != LOG_OK) return status;
    }
    return raft_start_it(r, error);
}

static char *text_join(const char *left, const char *right)
{
    size_t bytes = strlen(left) + strlen(right) + 1;
    char *at = malloc(bytes);
    must(at != NULL);
    snprintf(at, bytes, "%s%s", left, right);
    return at;
}

enum log_status replica_open(struct replica **out, const struct replica_options *o, struct buf *error)
{
    *out = NULL;
    must(o->apply != NULL && o->failed != NULL && (o->applied_index == 0) == (o->applied_term == 0));
    struct replica *r = calloc(1, sizeof *r);
    must(r != NULL);
    r->o = *o;
    r->dir = text_join(o->dir, "");
    r->log_dir = text_join(o->dir, "/log");
    r->o.dir = r->dir;
    if (r->o.election_ms == 0) r->o.election_ms = ELECTION_TIMEOUT_MS;
    if (r->o.heartbeat_ms == 0) r->o.heartbeat_ms = HEARTBEAT_TIMEOUT_MS;
    if (r->o.window_bytes == 0) r->o.window_bytes = WINDOW_BYTES;
    r->role = REPLICA_STARTING;
    r->hook.run = apply_hook;
    r->timer.fire = step_timeout;
    r->synced_task.run = step_synced;
    r->confirm_task.run = confirm_start;
    enum log_status status = parts_open(r, error);
    if (status != LOG_OK) {
        replica_close(r);
        return status;
    }
    r->o.members = NULL; /* the caller's; only creation reads it */
    r->told_committed = r->raft.configuration_committed_index;
    r->told_uncommitted = r->raft.configuration_uncommitted_index;
    r->opened = true;
    loop_hook_add(o->loop, &r->hook);
    *out = r;
    return LOG_OK;
}

void replica_close(struct replica *r)
{
    if (r == NULL) return;
    atomic_store(&r->closing, true);
    loop_timer_cancel(r->o.loop, &r->timer);
    if (r->log != NULL) {
        r->reserved = NULL;
        if (r->aside.len > 0) step_aside_flush(r);
        log_close(r->log);
    }
    if (r->raft_open) raft_close(&r->raft, NULL);
    meta_close(&r->meta);
    ring_free(&r->ring);
    marks_free(&r->marks);
    buf_free(&r->aside);
    buf_free(&r->body);
    buf_free(&r->conf.encoded);
    buf_free(&r->outgoing.small);
    free(r->entries);
    free(r->dir);
    free(r->log_dir);
    free(r);
}
