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
    ENTRY_BYTES_MAX = 4 << 20,    /* one log entry, unless one command alone is larger */
    COMMAND_BYTES_MAX = 96 << 20, /* one command; above: refused at the edge */
    BATCH_COMMANDS_MAX = 4096,    /* commands of one log entry */
    LEASE_SECONDS_MAX = 31536000, /* clamped */
    PARKED_POLLS_MAX = 100000,    /* parked long polls; above: 429 overloaded */
};

#endif
