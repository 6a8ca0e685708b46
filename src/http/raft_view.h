/* What the routes of the cluster share: looks at this node's groups, and the same from other nodes.
 *
 * A look is a visit to a group's thread (node_visit): it is answered in every state of the broker. What is about the members travels between
 * nodes as struct raft_shared, with the leader's knowledge of who has what; a node describes itself in JSON, its node block. */
#ifndef QUEEN_HTTP_RAFT_VIEW_H
#define QUEEN_HTTP_RAFT_VIEW_H

#include "http/request.h"

enum { RAFT_ANSWER_US = 1500000 }; /* how long another node is waited for */

struct raft_member {
    struct replica_member m;
    struct replica_progress progress;
    bool known; /* progress holds: told by the leader */
};

struct raft_shared {
    uint32_t version, count;
    uint64_t node, leader, term, last, commit, index; /* index: of the entry that made the members */
    bool committed, leads;
    struct raft_member at[REPLICA_MEMBERS_MAX];
};
const struct raft_member *raft_member_find(const struct raft_shared *s, uint64_t id);

/* A group of this node. */
struct raft_facts {
    struct broker_metrics m;
    enum replica_role role;
    bool votes;
    struct raft_shared shared;
};

struct raft_look {
    struct node_visit visit;
    struct raft_looks *all;
    struct raft_facts facts;
};
struct raft_looks {
    struct http *http;
    uint32_t count, waiting;
    void (*done)(struct raft_looks *l); /* on `home` */
    void *ctx;
    struct raft_look at[];
};
size_t raft_looks_bytes(const struct http *h);
/* All groups at once. `l` (zeroed, of that size) must stay until `done`. Not for a node that waits for its cluster. */
void raft_looks_begin(struct http *h, struct raft_looks *l, struct loop *home, void (*done)(struct raft_looks *l), void *ctx);

/* The node block, without braces, from all groups: the first one's numbers. */
void raft_block_render(struct http *h, struct buf *out, const struct raft_looks *l, bool local);
/* "clusterId":...,"self":...,"voters":... */
void raft_cluster_render(struct http *h, struct buf *out, const struct raft_shared *s);
void raft_id_or_null(struct buf *out, const char *key, uint64_t id); /* 0 = null */
void raft_ms_or_null(struct buf *out, const char *key, int64_t us);  /* below 0 = null */

/* ---- other nodes */

enum raft_question { RAFT_ASK_SHARED = 1, RAFT_ASK_BLOCK };

struct raft_reply {
    uint64_t node;
    bool ok;
    struct raft_shared shared;
    struct slice block; /* of RAFT_ASK_BLOCK, in the request's arena */
};
struct raft_round {
    struct loop_task task;
    struct request *request;
    enum raft_question what;
    uint32_t count, waiting;
    struct raft_reply at[REPLICA_MEMBERS_MAX];
};
/* Asks the nodes named in at[0..count) and wakes the request (request_wait) when all have answered or did not in time. */
void raft_round_begin(struct raft_round *round);
/* Answers others' questions. Once, on the main loop. */
void raft_answers(struct http *h);

#endif
