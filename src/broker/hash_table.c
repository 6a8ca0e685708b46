#include "broker/hash_table.h"

#include <stdlib.h>

#include "base/must.h"

enum { BUCKETS_MIN = 64 };

static struct hash_node **bucket_of(const struct hash_table *t, uint64_t hash)
{
    return &t->buckets[(hash ^ (hash >> 32)) & (t->bucket_count - 1)];
}

static void table_grow(struct hash_table *t)
{
    struct hash_table bigger = {.bucket_count = t->bucket_count == 0 ? BUCKETS_MIN : t->bucket_count * 2, .count = t->count};
    bigger.buckets = calloc(bigger.bucket_count, sizeof bigger.buckets[0]);
    must(bigger.buckets != NULL);
    for (uint32_t i = 0; i < t->bucket_count; i++) {
        struct hash_node *n = t->buckets[i];
        while (n != NULL) {
            struct hash_node *next = n->next, **at = bucket_of(&bigger, n->hash);
            n->next = *at;
            *at = n;
            n = next;
        }
    }
    free(t->buckets);
    *t = bigger;
}

void hash_table_put(struct hash_table *t, struct hash_node *n, uint64_t hash)
{
    if (t->count >= t->bucket_count) table_grow(t);
    n->hash = hash;
    struct hash_node **at = bucket_of(t, hash);
    n->next = *at;
    *at = n;
    t->count++;
}

void hash_table_remove(struct hash_table *t, struct hash_node *n)
{
    must(t->count > 0);
    struct hash_node **at = bucket_of(t, n->hash);
    while (*at != n) {
        must(*at != NULL);
        at = &(*at)->next;
    }
    *at = n->next;
    n->next = NULL;
    t->count--;
}

static struct hash_node *chain_find(struct hash_node *n, uint64_t hash)
{
    while (n != NULL && n->hash != hash) n = n->next;
    return n;
}

struct hash_node *hash_table_find(const struct hash_table *t, uint64_t hash)
{
    return t->count == 0 ? NULL : chain_find(*bucket_of(t, hash), hash);
}

struct hash_node *hash_table_again(const struct hash_node *n)
{
    return chain_find(n->next, n->hash);
}

void hash_table_free(struct hash_table *t)
{
    free(t->buckets);
    *t = (struct hash_table){0};
}
