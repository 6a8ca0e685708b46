#include "replica/look.h"

#include <stdio.h>
#include <stdlib.h>

#include "replica/replica_inner.h"

_Static_assert((int)REPLICA_ENTRY_COMMAND == (int)RAFT_COMMAND && (int)REPLICA_ENTRY_BARRIER == (int)RAFT_BARRIER &&
                   (int)REPLICA_ENTRY_MEMBERS == (int)RAFT_CHANGE,
               "raft's numbers under public names");

static const char *address_read(const struct raft_server *s)
{
    char head[24];
    int n = snprintf(head, sizeof head, "%llu ", s->id);
    return strncmp(s->address, head, (size_t)n) == 0 ? s->address + n : s->address;
}

static int member_order(const void *a, const void *b)
{
    const struct replica_member *left = a, *right = b;
    return left->id < right->id ? -1 : left->id > right->id;
}

bool replica_members_decode(struct slice body, struct replica_members *out)
{
    struct raft_buffer b = {.base = (void *)(uintptr_t)body.at, .len = body.len};
    struct raft_configuration c;
    *out = (struct replica_members){0};
    raft_configuration_init(&c);
    if (raft_configuration_decode(&b, &c) != 0) return false;
    for (unsigned i = 0; i < c.n && out->count < REPLICA_MEMBERS_MAX; i++) {
        struct replica_member *m = &out->at[out->count++];
        m->id = c.servers[i].id;
        m->role = c.servers[i].role == RAFT_VOTER ? REPLICA_VOTER : REPLICA_LEARNER;
        snprintf(m->address, sizeof m->address, "%s", address_read(&c.servers[i]));
    }
    raft_configuration_close(&c);
    qsort(out->at, out->count, sizeof out->at[0], member_order);
    return true;
}

static enum log_status members_look(const char *dir, struct replica_look *out, struct buf *error)
{
    struct conf c = {0};
    enum log_status status = conf_load(dir, &c, &out->has_members, error);
    if (status == LOG_OK && out->has_members && !replica_members_decode(buf_view(&c.encoded), &out->members)) {
        buf_printf(error, "%s/configuration: what it holds cannot be read", dir);
        status = LOG_DAMAGED;
    }
    out->members.index = c.index;
    buf_free(&c.encoded);
    return status;
}

static enum log_status meta_look(const char *dir, struct replica_look *out, struct buf *error)
{
    struct meta m;
    enum log_status status = meta_open(&m, dir, error);
    out->has_meta = m.version != 0;
    out->version = m.version;
    out->term = m.term;
    out->vote = m.vote;
    out->waits = m.waits;
    meta_close(&m);
    return status;
}

enum log_status replica_look(const char *dir, struct replica_look *out, struct buf *error)
{
    struct identity id = {0};
    *out = (struct replica_look){0};
    enum log_status status = identity_load(dir, &id, &out->has_identity, error);
    out->cluster = id.cluster;
    out->node = id.node;
    out->generation = id.generation;
    if (status == LOG_OK) status = meta_look(dir, out, error);
    return status == LOG_OK ? members_look(dir, out, error) : status;
}
