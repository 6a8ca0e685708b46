/* Clients: simulated callers of any node, what they remember, and what must hold of it.
 *
 * A client does one thing at a time: it sends an op to a node, is answered (or gives up, or its node dies), and thinks. An op's attempt
 * is one call of the broker's; its time on the client's clock is virtual time:
 *
 *   op_send -> [network] -> broker_submit in the node's loop -> done: `read` copies what was answered, in the node
 *           -> [network] -> `answered` on the client's side
 *
 *   OP_OK        answered
 *   OP_FAILED    surely not done: refused, or it never came to the node
 *   OP_UNKNOWN   it may have happened, or happen yet
 *
 * Commands of the log have unique, increasing times (`stamp_us`): where both sides were answered, their order in the log is known. */
#ifndef QUEEN_TESTS_SIM_WORK_H
#define QUEEN_TESTS_SIM_WORK_H

#include "broker/broker.h"
#include "sim.h"

enum op_end { OP_OK, OP_FAILED, OP_UNKNOWN };

struct client {
    struct client *next;
    uint32_t number;
    const char *kind;
    struct rng rng;
    uint32_t node; /* it talks to */
    bool final;    /* of the final phase: goes on when the others stop */
    struct sim_event think;
    void (*step)(struct client *c); /* the next thing; called when not busy */
};

struct shot;

/* One attempt. Belongs to the client; stays until answered. */
struct op {
    struct client *client;
    /* set before op_send */
    enum call_kind kind;
    struct buf command; /* CALL_WRITE */
    bool grows, has_next, wait;
    struct pop_command pop;                         /* CALL_POP, or has_next */
    int64_t next_wait_us, patience_us, deadline_us; /* patience: of the client; deadline: of the call; 0 = usual */
    void (*look)(struct call *c, struct engine *e, struct engine_now now); /* CALL_READ; c->read_ctx is the op */
    void (*read)(struct op *o, struct call *c);                            /* CALL_OK and CALL_EMPTY, in the node */
    void (*answered)(struct op *o);
    void *ctx;
    /* the outcome */
    enum op_end end;
    enum call_outcome outcome;
    uint32_t node;
    int64_t invoked_us, answered_us, stamp_us;
    struct shot *shot;
    struct sim_event back;
};

void client_start(struct client *c, const char *kind, uint32_t number, void (*step)(struct client *c));
void client_think(struct client *c, int64_t low_us, int64_t high_us); /* then step */
void op_send(struct op *o);
void op_clear(struct op *o); /* for another use */

void work_node_ended(struct sim_node *n);
bool work_idle(void);      /* no op is under way */
extern bool work_stopping; /* no new ops */
extern bool work_is_calm;  /* the final phase: answers must come */

extern const struct uuid work_tenant;

/* A node to talk to: up, now and then another one. */
uint32_t work_node_pick(struct rng *r);

/* work_queue.c */
void queue_work_start(void);
void queue_work_drain_start(void);
bool queue_work_drained(void);
void queue_work_check(void); /* at the end, on every node */
/* Messages of others (results of steps, timers): their lane and number. */
enum { LANE_IN = 0, LANES_IN = 3, LANE_OUT = 3, LANES_OUT = 2, LANE_ALARM = 5, LANES_ALARM = 2, LANES = 7 };
struct slice lane_queue(uint32_t lane);
struct slice lane_name(uint32_t lane);
bool queue_final_has(uint32_t lane, const char *text, int64_t *created_us); /* after queue_work_check */

/* Deliveries as a consumer got them. */
enum { DELIVERED_MAX = 24 };
struct delivered_message {
    char text[24]; /* transaction id */
    uint32_t lane;
    uint64_t offset;
};
struct delivered {
    uint32_t count, claim_count;
    struct delivered_message at[DELIVERED_MAX];
    struct delivered_claim {
        uint32_t partition, lane, first, count; /* of `at` */
    } claims[4];
    struct uuid lease;
    int64_t lease_us;
    uint32_t ids[4]; /* of the claims in the history */
};
enum { GROUP_ONE, GROUP_STEPS, GROUPS };
struct slice group_name(uint32_t group);
void delivered_read(struct delivered *d, struct op *o, struct call *c, uint32_t group); /* in the node: copies and checks */
void delivered_answered(const struct delivered *d, struct op *o); /* on the client's side: the claims count from here */
void delivered_release(const struct delivered *d);                /* an op that ends the lease is sent now */
void delivered_extended(const struct delivered *d, int64_t invoked_us, int64_t lease_us);
void delivered_acked(const struct delivered *d, uint32_t claim, uint32_t i, int64_t stamp_us); /* message i, completed */
void delivered_ack_encode(const struct delivered *d, uint32_t group, uint32_t completed, uint8_t rest, struct buf *out);
uint32_t message_number(const char *text);

/* work_step.c, work_kv.c, work_timer.c, work_lock.c */
void step_work_start(void);
void step_work_check(void);
void kv_work_start(void);
void kv_work_check(void);
void timer_work_start(void);
void timer_work_check(void);
void lock_work_start(void);
void admin_work_start(void); /* work_admin.c */

/* Final reads, on a node that is up. `f` runs as that node's code. */
void work_on_node(struct sim_node *n, void (*f)(struct broker *b, void *ctx), void *ctx);
/* The value of a KV key as the node has it; false when absent. */
bool work_kv_get(struct sim_node *n, const char *key, char *out, size_t size, uint64_t *version);

extern struct work_counts {
    uint64_t ops, ok, failed, unknown, pushed, delivered, acked, steps, kv, reads, timers, locks, dead, reclaimed;
} work_counts;

#endif
