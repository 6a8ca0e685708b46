/* A transaction between its body and its command: read, planned, encoded. Pure; any thread.
 *
 *   body_transaction_read   one pass over the body; ops in the order they stand in
 *   transaction_plan        acks by group, pushed items by lane; checks of names and sizes
 *   transaction_encode      one COMMAND_STEP; each slot learns its place in it
 *
 * The answer's flat index space: the slots in order (an ack, or a pushed item), then KV ops, timer ops, positions. */
#ifndef QUEEN_HTTP_TRANSACTION_H
#define QUEEN_HTTP_TRANSACTION_H

#include "http/body.h"
#include "http/data_ops.h"
#include "http/lanes.h"

enum slot_kind { SLOT_ACK, SLOT_PUSH };

struct transaction_ack {
    struct slice group;
    struct ack_item item;
};

struct transaction_slot {
    struct transaction_slot *next; /* in the order of the body */
    struct transaction_slot *peer; /* of the same group, or lane */
    uint32_t place;                /* number of that */
    uint32_t number;               /* in the command: among all acks, or all pushed items */
    uint8_t kind;                  /* enum slot_kind */
    union {
        struct transaction_ack ack;
        struct push_input push;
    };
};

struct transaction_input {
    struct transaction_slot *slots; /* a list */
    uint32_t slot_count, ack_count, push_count;
    struct kv_inputs kv;
    struct timer_inputs timers;
    struct position_item *positions;
    uint32_t position_count;
    bool has_next; /* commit and take the next batch */
    bool wait;
    int64_t wait_us;
    struct pop_command pop;
    /* the plan */
    struct lanes groups, lanes;
};

struct transaction_refusal {
    uint32_t status;    /* 200, 400, 413 */
    const char *reason; /* NULL: the engine's envelope, with `code` */
    const char *code;
    char text[256]; /* never holds the client's bytes */
};

/* Checks in the order of http-data 8.4; the first refusal of that order wins, wherever it stands in the body. `body` needs JSON_PAD
 * and must outlive `out`, like the arena. */
bool body_transaction_read(struct slice body, struct arena *arena, const struct config *config, struct uuid tenant,
                           struct transaction_input *out, struct transaction_refusal *why);

bool transaction_plan(struct transaction_input *in, struct arena *arena, struct transaction_refusal *why);

/* Nothing to do: operations that push no items, and nothing else. */
bool transaction_is_empty(const struct transaction_input *in);

/* Of a planned one that is not empty. */
void transaction_encode(struct transaction_input *in, struct uuid tenant, struct arena *arena, struct buf *out);

/* The slot of that kind with that number in the command, and its index; NULL: there is none. For refusals: linear. */
const struct transaction_slot *transaction_slot_find(const struct transaction_input *in, enum slot_kind kind, uint32_t number,
                                                     uint32_t *index);

#endif
