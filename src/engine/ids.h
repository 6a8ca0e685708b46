/* Message ids that need not be stored.
 *
 * A message id is a UUIDv7 made from what the engine knows of the message anyway, so it costs nothing in the log or in memory
 * and is known as long as the message's offset and time are:
 *
 *   48 bits  milliseconds of createdAt
 *    4       version 7
 *   12       offset, bits 41..30 of its low 42
 *    2       variant
 *   30       offset, bits 29..0
 *   32       the partition's number under a keyed permutation (seed: the cluster's id seed)
 *
 * Unique: a partition never gives an offset twice and numbers are never reused. In a lane ids sort like offsets, since
 * createdAt never goes back. Pure functions; any thread. */
#ifndef QUEEN_ENGINE_IDS_H
#define QUEEN_ENGINE_IDS_H

#include "base/uuid.h"

struct uuid message_id(uint64_t seed, uint32_t partition, uint64_t offset, int64_t created_us);

/* The same in two steps, for many messages of one partition. */
uint32_t message_tag(uint64_t seed, uint32_t partition);
struct uuid message_id_tagged(uint32_t tag, uint64_t offset, int64_t created_us);

/* Takes an id apart. False when it cannot be one of this partition. `offset` is modulo 2^42. */
bool message_id_parse(uint64_t seed, struct uuid id, uint32_t partition, uint64_t *offset, int64_t *created_ms);

/* Ids of other things: queues, partitions, dead letters. `space` keeps the kinds apart. */
enum id_space { ID_QUEUE = 1, ID_PARTITION, ID_DEAD_LETTER };
struct uuid thing_id(uint64_t seed, enum id_space space, uint64_t number, int64_t created_us);
/* The number (modulo 2^42) that such an id would be of. The caller makes the id anew from what it finds and compares. */
uint64_t thing_number(struct uuid id);

#endif
