#include "replica/restore.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "replica/replica_inner.h"

struct restoring {
    const struct replica_restore *o;
    uint64_t last_index, last_term;
    atomic_bool broken;
};

static void record_seen(void *ctx, const struct log_record *rec)
{
    struct restoring *s = ctx;
    s->last_index = rec->index;
    s->last_term = rec->term;
}

static void log_failed(void *ctx, const char *what)
{
    (void)what;
    atomic_store(&((struct restoring *)ctx)->broken, true);
}

static int by_id(const void *a, const void *b)
{
    const struct replica_member *left = *(const struct replica_member *const *)a,
                                *right = *(const struct replica_member *const *)b;
    return left->id < right->id ? -1 : left->id > right->id;
}

static void member_put(struct raft_configuration *c, const struct replica_member *m)
{
    char *text = member_address_text(m->id, m->address);
    must(raft_configuration_add(c, m->id, text, m->role == REPLICA_VOTER ? RAFT_VOTER : RAFT_STANDBY) == 0);
    free(text);
}

/* Ordered by id: the same bytes on every node. */
static void members_encode(const struct replica_restore *o, struct buf *out)
{
    const struct replica_member *sorted[REPLICA_MEMBERS_MAX];
    struct raft_configuration c;
    struct raft_buffer encoded;
    bool me = o->member_count == 0;
    must(o->member_count <= REPLICA_MEMBERS_MAX);
    for (uint32_t i = 0; i < o->member_count; i++) sorted[i] = &o->members[i];
    qsort(sorted, o->member_count, sizeof sorted[0], by_id);
    raft_configuration_init(&c);
    for (uint32_t i = 0; i < o->member_count; i++) {
        me |= sorted[i]->id == o->node;
        member_put(&c, sorted[i]);
    }
    if (o->member_count == 0) {
        char address[32];
        snprintf(address, sizeof address, "node-%" PRIu64, o->node);
        must(raft_configuration_add(&c, o->node, address, RAFT_VOTER) == 0);
    }
    must(me && raft_configuration_encode(&c, &encoded) == 0);
    raft_configuration_close(&c);
    buf_put(out, encoded.base, encoded.len);
    raft_free(encoded.base);
}

static enum log_status entry_append(struct restoring *s, struct log *log, struct slice body, struct buf *error)
{
    const struct replica_restore *o = s->o;
    if (s->last_index != o->index || s->last_term != o->term) {
        buf_printf(error,
                   "%s/log: ends with entry %" PRIu64 " of term %" PRIu64 ", but the store is the state at entry %" PRIu64
                   " of term %" PRIu64 ": they do not belong together",
                   o->dir, s->last_index, s->last_term, o->index, o->term);
        return LOG_DAMAGED;
    }
    memcpy(log_reserve(log, body.len), body.at, body.len);
    log_append(log, o->index + 1, o->term + 1, RAFT_CHANGE, body.len);
    log_flush(log);
    while (log_synced_index(log) < o->index + 1 && !atomic_load(&s->broken))
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    if (!atomic_load(&s->broken)) return LOG_OK;
    buf_printf(error, "%s/log: cannot be written", o->dir);
    return LOG_IO;
}

static enum log_status log_extend(const struct replica_restore *o, struct slice body, struct buf *error)
{
    struct restoring s = {.o = o};
    struct log *log;
    char dir[4200];
    snprintf(dir, sizeof dir, "%s/log", o->dir);
    struct log_options lo = {.dir = dir,
                             .segment_bytes = o->segment_bytes,
                             .cache_bytes_max = 16 << 20,
                             .first_index = o->index,
                             .first_pos = o->scan_pos,
                             .ctx = &s,
                             .record = record_seen,
                             .failed = log_failed};
    enum log_status status = log_open(&log, &lo, error);
    if (status != LOG_OK) return status;
    status = entry_append(&s, log, body, error);
    log_close(log);
    return status;
}

static enum log_status meta_begin(const struct replica_restore *o, struct buf *error)
{
    struct meta m;
    uint64_t vote = o->member_count == 0 ? o->node : 0;
    enum log_status status = meta_open(&m, o->dir, error);
    m.cluster = o->cluster;
    m.node = o->node;
    for (int i = 0; i < 2 && status == LOG_OK; i++) status = meta_write(&m, o->term + 1, vote, error);
    meta_close(&m);
    return status;
}

enum log_status replica_restore(const struct replica_restore *o, struct buf *error)
{
    must(o->index > 0 && o->term > 0 && o->node > 0);
    struct conf c = {.index = o->index + 1};
    members_encode(o, &c.encoded);
    enum log_status status = log_extend(o, buf_view(&c.encoded), error);
    if (status == LOG_OK) status = conf_store(o->dir, &c, error);
    if (status == LOG_OK) status = meta_begin(o, error);
    struct identity id = {.cluster = o->cluster, .node = o->node, .generation = 1};
    if (status == LOG_OK) status = identity_store(o->dir, &id, error);
    buf_free(&c.encoded);
    return status;
}
