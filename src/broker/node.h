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
 * Without QUEEN_RAFT_PEERS the node is alone: no net, no port. With them it needs the cluster's secret.
 *
 * Identity of a disk: {cluster, node, disk, starts} go in the hello to every peer; a peer keeps in DATA/peers what it last saw of each
 * node and refuses one whose disk is another or whose count of starts went back (an emptied or rolled-back directory): such a node
 * stops with exit code 2 and says how to remove it from the cluster and add it anew. A directory that was copied or restored shows it
 * by the inode number in DATA/identity and is refused at start when there are other voters.
 *
 * Leaders are spread: group i is led by the (i mod voters)-th voter by id when that one is there and has the log (looked at every
 * few seconds; a hand-over, no election).
 *
 * Threads: node_open, node_stop, node_close on the main loop; node_group, node_of_tenant, node_view from any. */
#ifndef QUEEN_BROKER_NODE_H
#define QUEEN_BROKER_NODE_H

#include "broker/broker.h"
#include "net/net.h"
#include "replica/replica.h"

struct node;

/* exit_code and error as of broker_open. `again` runs when the process must start itself anew (a state was fetched). */
struct node *node_open(const struct config *config, struct loop *main_loop, void (*again)(void *ctx), void *ctx, int *exit_code,
                       struct buf *error);
/* Graceful: leaderships are handed over, every call is answered, states are flushed; then `stopped` on the main loop. */
void node_stop(struct node *n, void (*stopped)(void *ctx), void *ctx);
void node_close(struct node *n);

uint32_t node_group_count(const struct node *n);
struct broker *node_group(const struct node *n, uint32_t group);
struct broker *node_of_tenant(const struct node *n, struct uuid tenant);
uint32_t node_group_of_tenant(const struct node *n, struct uuid tenant);
bool node_alone(const struct node *n);
uint64_t node_id(const struct node *n);
struct uuid node_cluster(const struct node *n);
struct net *node_net(const struct node *n); /* NULL when alone */

/* A question to another node's HTTP edge, answered as bytes by its `ask` handler (status of the node, a change of the members). `done` runs
 * on the main loop, once: ok, or not when it did not answer in time. Main loop only. */
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

#endif
