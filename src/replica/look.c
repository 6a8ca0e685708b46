#include "replica/look.h"

#include <stdio.h>
#include <stdlib.h>

#include "replica/replica_inner.h"

_Static_assert((int)REPLICA_ENTRY_COMMAND == (int)RAFT_COMMAND && (int)REPLICA_ENTRY_BARRIER == (int)RAFT_BARRIER &&
                   (int)REPLICA_ENTRY_MEMBERS == (int)RAFT_CHANGE,
               "raft's numbers under public names");

bool replica_members_decode(struct slice body, struct replica_members *out)
{
    struct raft_buffer b = {.base = (void *)(uintptr_t)body.at, .len = body.len};
    struct raft_configuration c;
    *out = (struct replica_members){0};
    raft_configuration_init(&c);
    if (raft_configuration_decode(&b, &c) != 0) return false;
    members_list(&c, out);
    raft_configuration_close(&c);
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
