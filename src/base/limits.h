/* Every limit of the broker in one place: what it bounds, and what happens there. */
#ifndef QUEEN_BASE_LIMITS_H
#define QUEEN_BASE_LIMITS_H

#include <stdint.h>

enum {
    NAMES_BYTES_MAX = 447, /* tenant (36) + queue + longer of partition and group; above: 413 name_too_long */
    TENANT_TEXT_BYTES = 36,
    TRANSACTION_ID_BYTES_MAX = 65535, /* above: 400 */
    ERROR_TEXT_BYTES_MAX = 4096,      /* of an ack, kept with a dead letter; the rest is cut at a character */
    POP_PARTITIONS_MAX = 64,          /* lanes one pop may claim; clamped */
    POP_BATCH_DEFAULT = 200,
    POP_BATCH_MAX = 100000,   /* messages of one answer; a larger batch is clamped */
    POP_BYTES_MAX = 32 << 20, /* payload bytes of one answer: a claim ends there, after at least one message */
    DEADLINE_MS_MAX = 60000,  /* longest wait of any call; clamped */
    JSON_DEPTH_MAX = 512,     /* deeper: 400 */
    BODY_BYTES_MAX_DEFAULT = 64 << 20,
    ENTRY_BYTES_MAX = 4 << 20,                 /* one log entry, unless one command alone is larger */
    COMMAND_BYTES_MAX = 96 << 20,              /* one command; above: refused at the edge */
    BATCH_COMMANDS_MAX = 4096,                 /* commands of one log entry */
    LEASE_SECONDS_MAX = 31536000,              /* clamped */
    KV_OPS_MAX = 256,                          /* ops of one KV call; 64 inside a transaction; above: 400 */
    KV_KEYS_MAX = 4096,                        /* keys of one KV call, whatever the setting */
    KV_KEY_BYTES_MAX = 512,                    /* above: 413 */
    KV_NAME_SPACE_BYTES_MAX = 64,              /* above: 400 */
    KV_VALUE_BYTES_MAX = 65536,                /* as compact JSON; above: 413 */
    KV_PREFIX_ROWS_MAX = 1000,                 /* rows of one getPrefix; clamped */
    KV_READ_BYTES_MAX = 4 << 20,               /* values of one call's getMany and getPrefix: then they are cut short */
    TIMER_OPS_MAX = 256,                       /* of one timers call; above: 400 */
    TIMER_KEY_BYTES_MAX = 512,                 /* above: 400 */
    TIMER_PAYLOAD_BYTES_MAX_DEFAULT = 1 << 20, /* decoded, on the timers route; above: 413 */
    TIMERS_A_TICK = 256,                       /* fired by one tick; the rest by the next */
    LOCK_OPS_MAX = 64,                         /* of one locks call; above: 400 */
    POSITIONS_MAX = 16384,                     /* of one transaction; above: 400 */
    METADATA_BYTES_MAX = 4096,                 /* of a position; above: the transaction is refused */
    STEP_KV_OPS_MAX = 64,                      /* of one transaction; above: 400 */
    STEP_KV_KEYS_MAX = 256,
    FETCH_ENTRIES_MAX = 1024,  /* of one fetch call; above: 400 */
    PARKED_POLLS_MAX = 100000, /* parked long polls; above: 429 overloaded */
};

#define TIMER_DELAY_US_MAX INT64_C(250000000000000000) /* about 7,900 years; longer: 400 */

#endif
