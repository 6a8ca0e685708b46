/* A node: its raft groups, its place in the cluster, and who is asked for what.
 *
 *   node -- net (one for all groups)
 *        -- group 0: DATA/            broker: engine, replica, store
 *        -- group i: DATA/group-<i>/  the same, with a loop and thread of its own when there are several groups
 *
 * A tenant lives in one group: QUEEN_TENANT_GROUPS names it, else the hash of its id decides. QUEEN_RAFT_GROUPS and that map are
 * fixed when the data directory is made (DATA/groups; another number is refused: tenants would be looked for in the wrong place).
 * A transaction belongs to one tenant, so to one group.
 *
 * Without QUEEN_RAFT_PEERS and QUEEN_RAFT_JOIN the node is alone: no net, no port. With them it needs the cluster's secret.
 *
 * Identity of a disk: {cluster, node, disk, starts} of DATA/disk go in the hello to every peer; a peer keeps in DATA/peers what it last
 * saw of each node and refuses one whose disk is another, whose count of starts went back, or whose start of that count is another one
 * than it saw (upper and lower half of `starts`: an emptied or rolled-back
 * directory): such a node stops with exit code 2 and says how to remove it from the cluster and add it anew. A directory that was
 * copied or restored shows it by its inode number and is refused at start when there are other voters. Members that were added
 * have their disk in the configuration itself, which counts more than what a peer that was away remembers.
 *
 * The cluster: a hash of the first boot's peers, QUEEN_CELL_ID, the groups and the map, so that nodes whose settings differ do not meet.
 * A node that waits to be added learns it from the first member that dials it, and starts itself anew.
 *
 * Leaders are spread: group i is led by the (i mod voters)-th voter by id when that one is there and has the log (looked at every
 * few seconds; a hand-over, no election).
 *
 * Threads: everything on the main loop, but what is marked "any thread". */
#ifndef QUEEN_BROKER_NODE_H
#define QUEEN_BROKER_NODE_H

#include "broker/broker.h"
#include "net/net.h"
#include "replica/replica.h"

struct node;

struct node_owner {
    void *ctx;
    /* On the main loop: the process must start itself anew (a state was fetched, the cluster was learned). */
    void (*again)(void *ctx);
    /* Inside node_open, while rows of all groups are loaded, every few milliseconds: how many so far, and how far that is, about. The
     * main loop may be turned in it. May be NULL. */
    void (*loading)(void *ctx, uint64_t rows, uint32_t per_mille);
};
enum { NODE_AGAIN = -1 };
/* exit_code and error as of broker_open; 1: the configuration does not fit the directory; NODE_AGAIN: the process must start itself anew at
 * once, nothing of the node may run any more. */
struct node *node_open(const struct config *config, struct loop *main_loop, const struct node_owner *owner, int *exit_code,
                       struct buf *error);
/* Graceful: leaderships are handed over, every call is answered, states are flushed; then `stopped` on the main loop. */
void node_stop(struct node *n, void (*stopped)(void *ctx), void *ctx);
void node_close(struct node *n); /* after stopped, when no loop runs any more but those of the groups */

/* ---- groups: any thread */

uint32_t node_group_count(const struct node *n);
struct broker *node_group(const struct node *n, uint32_t group); /* NULL: the node waits to learn its cluster */
struct loop *node_group_loop(const struct node *n, uint32_t group);
uint32_t node_group_of_tenant(const struct node *n, struct uuid tenant);
struct broker *node_of_tenant(const struct node *n, struct uuid tenant);
bool node_alone(const struct node *n);
uint64_t node_id(const struct node *n); /* 1 when nobody said */
struct uuid node_cluster(const struct node *n);
const struct admission *node_admission(const struct node *n);
struct net *node_net(const struct node *n); /* NULL when alone */
struct loop *node_loop(const struct node *n);

/* A look at a group from another thread: `run` on the group's loop, then `done` on `home`. The struct is the caller's and must stay
 * until `done`, which always comes while home's loop runs. Not for a node that waits. Any thread. */
struct node_visit {
    struct loop_task task;
    struct loop *home;
    struct broker *broker;
    void (*run)(struct node_visit *v, struct broker *b);
    void (*done)(struct node_visit *v);
};
void node_visit(struct node *n, uint32_t group, struct node_visit *v);

/* ---- damage: any thread */

enum { NODE_DAMAGE_BYTES = 512 };

struct node_damage {
    bool damaged;
    char what[NODE_DAMAGE_BYTES]; /* the first of it */
};
/* Something stored of that group cannot be read, or fails its checks: with peers, it is repaired (node_repair.c). `ends`: the process is
 * about to end for it; the next start repairs. */
void node_damaged(struct node *n, uint32_t group, const char *what, bool ends);
void node_damage(struct node *n, uint32_t group, struct node_damage *out);
bool node_repairs(const struct node *n); /* no group is open: the node fetches a state from its peers */

/* ---- members: any thread */

enum { NODE_ADDRESS_BYTES = 264 };

struct node_member {
    uint64_t id;
    bool voter, has_disk;
    char raft[NODE_ADDRESS_BYTES], http[NODE_ADDRESS_BYTES];
    struct uuid disk;
};
void node_member_read(const struct replica_member *m, struct node_member *out); /* takes its address text apart */

/* Of group 0, as it was a moment ago. */
struct node_members {
    uint64_t index, leader;
    uint32_t count;
    struct node_member at[REPLICA_MEMBERS_MAX];
};
void node_members(struct node *n, struct node_members *out);
/* Where that member's HTTP edge is. False: not a member. */
bool node_http_of(struct node *n, uint64_t id, char out[NODE_ADDRESS_BYTES]);

/* ---- questions to other nodes */

/* A question to another node, answered as bytes by its `asked` handler. `done` runs on the main loop, once, not inside: ok, or not when it
 * did not answer in time. Questions at or above NODE_ASK_OWN are the node's own. */
enum { NODE_ASK_OWN = 128, NODE_ASKS_MAX = 256 };
typedef void node_answer(void *ctx, uint64_t peer, bool ok, struct slice bytes);
void node_ask(struct node *n, uint64_t peer, uint8_t what, struct slice question, int64_t timeout_us, node_answer *done,
              void *ctx);
/* How this node answers others' questions: `reply` may be called later, on the main loop, once. */
struct node_question {
    struct node *node;
    uint64_t peer, number;
};
void node_on_ask(struct node *n, void (*asked)(void *ctx, struct node_question q, uint8_t what, struct slice question),
                 void *ctx);
void node_reply(struct node_question q, struct slice bytes);

/* ---- changes of the members */

enum node_change_kind { NODE_ADD_LEARNER, NODE_PROMOTE, NODE_REMOVE, NODE_READDRESS };

struct node_change {
    enum node_change_kind kind;
    uint64_t id;
    bool force; /* promote one that lacks many entries; do not ask whether a majority is there */
    char raft[NODE_ADDRESS_BYTES], http[NODE_ADDRESS_BYTES]; /* of an addition and a new address */
};

enum node_change_code {
    NODE_CHANGE_OK,
    NODE_CHANGE_IN_FLIGHT,
    NODE_CHANGE_NO_QUORUM,
    NODE_CHANGE_LAST_VOTER,
    NODE_CHANGE_LEARNER_BEHIND,
    NODE_CHANGE_ALREADY_VOTER,
    NODE_CHANGE_ADDRESS_MISMATCH,
    NODE_CHANGE_NOT_A_LEARNER,
    NODE_CHANGE_NOT_A_MEMBER,
    NODE_CHANGE_FULL,
    NODE_CHANGE_RETRY,              /* no leader */
    NODE_CHANGE_LEADER_UNREACHABLE, /* it did not answer */
    NODE_CHANGE_TIMEOUT,            /* it may still happen */
    NODE_CHANGE_CODES
};

enum { NODE_CHANGES_MAX = 2 * REPLICA_MEMBERS_MAX };

/* Makes the changes one after the other, each in every group, at the groups' leaders wherever they are; a change that is made
 * already counts as made. `done` on the main loop, once, not inside: the first failure's code, the group and the index of the change. */
typedef void node_changed(void *ctx, enum node_change_code code, uint32_t group, uint32_t which);
void node_change(struct node *n, const struct node_change *changes, uint32_t count, int64_t timeout_us, node_changed *done,
                 void *ctx);

#endif
