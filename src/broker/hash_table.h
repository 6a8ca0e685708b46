/* A chained hash table of intrusive nodes. The owner gives the hash and compares: a lookup steps through the nodes of one
 * hash. Grows with its content, never shrinks. Order of nodes means nothing. Not thread-safe. */
#ifndef QUEEN_BROKER_HASH_TABLE_H
#define QUEEN_BROKER_HASH_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct hash_node {
    struct hash_node *next;
    uint64_t hash;
};

struct hash_table {
    struct hash_node **buckets;
    uint32_t bucket_count, count;
};

void hash_table_put(struct hash_table *t, struct hash_node *n, uint64_t hash);
void hash_table_remove(struct hash_table *t, struct hash_node *n); /* must be in it */
void hash_table_free(struct hash_table *t);

/* First node with this hash, and the next one after `n` with the same. */
struct hash_node *hash_table_find(const struct hash_table *t, uint64_t hash);
struct hash_node *hash_table_again(const struct hash_node *n);

#endif
