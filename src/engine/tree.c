#include "engine/tree.h"

#include <stdlib.h>

#include "base/must.h"

enum { LEAF_MAX = 62, INNER_MAX = 32, HEIGHT_MAX = 12 };

struct tree_leaf {
    struct tree_leaf *next, *previous;
    uint32_t count;
    uint32_t records[LEAF_MAX];
};

struct inner {
    uint32_t count;
    uint32_t first[INNER_MAX]; /* smallest record under each child */
    uint64_t total[INNER_MAX];
    void *child[INNER_MAX];
};

void tree_init(struct tree *t, struct slice (*key)(const void *ctx, uint32_t record), const void *ctx)
{
    *t = (struct tree){.key = key, .ctx = ctx};
}

static void *node_new(size_t bytes)
{
    void *n = calloc(1, bytes);
    must(n != NULL);
    return n;
}

static int order(const struct tree *t, uint32_t record, struct slice key)
{
    return slice_compare(t->key(t->ctx, record), key);
}

/* Number of records in records[0..count) with a key < `key` (or, `inclusive`, <= key). */
static uint32_t search(const struct tree *t, const uint32_t *records, uint32_t count, struct slice key, bool inclusive)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int o = order(t, records[middle], key);
        if (o < 0 || (inclusive && o == 0)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The child that a key belongs under. */
static uint32_t child_of(const struct tree *t, const struct inner *n, struct slice key)
{
    uint32_t at = search(t, n->first + 1, n->count - 1, key, true);
    return at;
}

static uint64_t node_total(const void *node, uint32_t height)
{
    if (height == 0) return ((const struct tree_leaf *)node)->count;
    const struct inner *n = node;
    uint64_t total = 0;
    for (uint32_t i = 0; i < n->count; i++) total += n->total[i];
    return total;
}

static uint32_t node_first(const void *node, uint32_t height)
{
    return height == 0 ? ((const struct tree_leaf *)node)->records[0] : ((const struct inner *)node)->first[0];
}

/* ---- inserting ------------------------------------------------------------------------------------------------------ */

/* Makes room; gives the new right half, or NULL. A record put at the very end leaves the left one full: ascending keys fill leaves. */
static struct tree_leaf *leaf_insert(struct tree_leaf *l, uint32_t at, uint32_t record)
{
    struct tree_leaf *right = NULL, *into = l;
    if (l->count == LEAF_MAX) {
        uint32_t keep = at == LEAF_MAX && l->next == NULL ? LEAF_MAX : LEAF_MAX / 2;
        right = node_new(sizeof *right);
        right->count = LEAF_MAX - keep;
        memcpy(right->records, l->records + keep, right->count * sizeof l->records[0]);
        l->count = keep;
        right->next = l->next;
        right->previous = l;
        if (l->next != NULL) l->next->previous = right;
        l->next = right;
        if (at > keep || keep == LEAF_MAX) {
            into = right;
            at -= keep;
        }
    }
    memmove(into->records + at + 1, into->records + at, (into->count - at) * sizeof into->records[0]);
    into->records[at] = record;
    into->count++;
    return right;
}

static void inner_put(struct inner *n, uint32_t at, void *child, uint32_t child_height)
{
    uint32_t behind = n->count - at;
    memmove(n->first + at + 1, n->first + at, behind * sizeof n->first[0]);
    memmove(n->total + at + 1, n->total + at, behind * sizeof n->total[0]);
    memmove(n->child + at + 1, n->child + at, behind * sizeof n->child[0]);
    n->child[at] = child;
    n->first[at] = node_first(child, child_height);
    n->total[at] = node_total(child, child_height);
    n->count++;
}

static struct inner *inner_insert(struct inner *n, uint32_t at, void *child, uint32_t child_height)
{
    struct inner *right = NULL, *into = n;
    if (n->count == INNER_MAX) {
        uint32_t keep = at == INNER_MAX ? INNER_MAX - 1 : INNER_MAX / 2;
        right = node_new(sizeof *right);
        right->count = INNER_MAX - keep;
        memcpy(right->first, n->first + keep, right->count * sizeof n->first[0]);
        memcpy(right->total, n->total + keep, right->count * sizeof n->total[0]);
        memcpy(right->child, n->child + keep, right->count * sizeof n->child[0]);
        n->count = keep;
        if (at > keep) {
            into = right;
            at -= keep;
        }
    }
    inner_put(into, at, child, child_height);
    return right;
}

static void *node_insert(struct tree *t, void *node, uint32_t height, struct slice key, uint32_t record)
{
    if (height == 0) {
        struct tree_leaf *l = node;
        uint32_t at = search(t, l->records, l->count, key, false);
        must(at == l->count || order(t, l->records[at], key) != 0);
        return leaf_insert(l, at, record);
    }
    struct inner *n = node;
    uint32_t at = child_of(t, n, key);
    void *right = node_insert(t, n->child[at], height - 1, key, record);
    n->first[at] = node_first(n->child[at], height - 1);
    if (right == NULL) {
        n->total[at]++;
        return NULL;
    }
    n->total[at] = node_total(n->child[at], height - 1);
    return inner_insert(n, at + 1, right, height - 1);
}

void tree_insert(struct tree *t, uint32_t record)
{
    if (t->root == NULL) t->root = node_new(sizeof(struct tree_leaf));
    void *left = t->root, *right = node_insert(t, left, t->height, t->key(t->ctx, record), record);
    t->count++;
    if (right == NULL) return;
    struct inner *root = node_new(sizeof *root);
    inner_put(root, 0, left, t->height);
    inner_put(root, 1, right, t->height);
    t->root = root;
    t->height++;
    must(t->height < HEIGHT_MAX);
}

/* ---- removing ------------------------------------------------------------------------------------------------------- */

static void inner_drop(struct inner *n, uint32_t at)
{
    uint32_t behind = n->count - at - 1;
    memmove(n->first + at, n->first + at + 1, behind * sizeof n->first[0]);
    memmove(n->total + at, n->total + at + 1, behind * sizeof n->total[0]);
    memmove(n->child + at, n->child + at + 1, behind * sizeof n->child[0]);
    n->count--;
}

static void leaf_unlink(struct tree_leaf *l)
{
    if (l->next != NULL) l->next->previous = l->previous;
    if (l->previous != NULL) l->previous->next = l->next;
    free(l);
}

/* Two neighbours become one when that leaves room to grow again. */
static bool children_merge(struct inner *n, uint32_t at, uint32_t child_height)
{
    if (child_height == 0) {
        struct tree_leaf *l = n->child[at], *r = n->child[at + 1];
        if (l->count + r->count > LEAF_MAX * 3 / 4) return false;
        memcpy(l->records + l->count, r->records, r->count * sizeof l->records[0]);
        l->count += r->count;
        leaf_unlink(r);
    } else {
        struct inner *l = n->child[at], *r = n->child[at + 1];
        if (l->count + r->count > INNER_MAX * 3 / 4) return false;
        memcpy(l->first + l->count, r->first, r->count * sizeof l->first[0]);
        memcpy(l->total + l->count, r->total, r->count * sizeof l->total[0]);
        memcpy(l->child + l->count, r->child, r->count * sizeof l->child[0]);
        l->count += r->count;
        free(r);
    }
    n->first[at] = node_first(n->child[at], child_height);
    n->total[at] += n->total[at + 1];
    inner_drop(n, at + 1);
    return true;
}

static void node_remove(struct tree *t, void *node, uint32_t height, struct slice key, uint32_t record)
{
    if (height == 0) {
        struct tree_leaf *l = node;
        uint32_t at = search(t, l->records, l->count, key, false);
        must(at < l->count && l->records[at] == record);
        l->count--;
        memmove(l->records + at, l->records + at + 1, (l->count - at) * sizeof l->records[0]);
        return;
    }
    struct inner *n = node;
    uint32_t at = child_of(t, n, key);
    node_remove(t, n->child[at], height - 1, key, record);
    n->total[at]--;
    if (n->total[at] == 0) {
        if (height == 1) {
            leaf_unlink(n->child[at]);
        } else {
            free(n->child[at]);
        }
        inner_drop(n, at);
        return;
    }
    n->first[at] = node_first(n->child[at], height - 1);
    if (at + 1 < n->count && children_merge(n, at, height - 1)) return;
    if (at > 0) children_merge(n, at - 1, height - 1);
}

void tree_remove(struct tree *t, uint32_t record)
{
    must(t->count > 0);
    node_remove(t, t->root, t->height, t->key(t->ctx, record), record);
    t->count--;
    while (t->height > 0 && ((struct inner *)t->root)->count <= 1) {
        struct inner *root = t->root;
        must(root->count == 1 || t->count == 0);
        if (t->count == 0) break;
        t->root = root->child[0];
        t->height--;
        free(root);
    }
    if (t->count > 0) return;
    free(t->root);
    t->root = NULL;
    t->height = 0;
}

static void node_free(void *node, uint32_t height)
{
    if (height > 0) {
        struct inner *n = node;
        for (uint32_t i = 0; i < n->count; i++) node_free(n->child[i], height - 1);
    }
    free(node);
}

void tree_free(struct tree *t)
{
    if (t->root != NULL) node_free(t->root, t->height);
    t->root = NULL;
    t->height = 0;
    t->count = 0;
}

/* ---- looking -------------------------------------------------------------------------------------------------------- */

struct tree_place tree_seek(const struct tree *t, struct slice key)
{
    const void *node = t->root;
    if (node == NULL) return (struct tree_place){0};
    for (uint32_t height = t->height; height > 0; height--) {
        const struct inner *n = node;
        node = n->child[child_of(t, n, key)];
    }
    const struct tree_leaf *l = node;
    return (struct tree_place){.leaf = l, .index = search(t, l->records, l->count, key, false)};
}

uint32_t tree_next(struct tree_place *p)
{
    while (p->leaf != NULL && p->index == p->leaf->count) {
        p->leaf = p->leaf->next;
        p->index = 0;
    }
    return p->leaf == NULL ? 0 : p->leaf->records[p->index++];
}

uint32_t tree_previous(struct tree_place *p)
{
    while (p->leaf != NULL && p->index == 0) {
        p->leaf = p->leaf->previous;
        p->index = p->leaf == NULL ? 0 : p->leaf->count;
    }
    return p->leaf == NULL ? 0 : p->leaf->records[--p->index];
}

uint64_t tree_rank(const struct tree *t, struct slice key)
{
    const void *node = t->root;
    uint64_t rank = 0;
    if (node == NULL) return 0;
    for (uint32_t height = t->height; height > 0; height--) {
        const struct inner *n = node;
        uint32_t at = child_of(t, n, key);
        for (uint32_t i = 0; i < at; i++) rank += n->total[i];
        node = n->child[at];
    }
    const struct tree_leaf *l = node;
    return rank + search(t, l->records, l->count, key, false);
}

bool tree_prefix_end(struct slice prefix, char *out, struct slice *end)
{
    size_t len = prefix.len;
    while (len > 0 && (unsigned char)prefix.at[len - 1] == 0xff) len--;
    if (len == 0) return false;
    memcpy(out, prefix.at, len);
    out[len - 1] = (char)((unsigned char)out[len - 1] + 1);
    *end = slice_make(out, len);
    return true;
}
