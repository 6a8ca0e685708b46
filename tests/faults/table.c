/* table.c - which descriptor is which watched inode. */
#define _GNU_SOURCE
#include "faults.h"

#include <string.h>

enum { BUCKETS = 1024 };

struct slot {
    struct node *node;
    int open_flags;
};

static struct slot slots[FAULT_FD_MAX];
static struct node *buckets[BUCKETS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

struct node *table_get(int fd, int *open_flags)
{
    if (fd < 0 || fd >= FAULT_FD_MAX) return NULL;
    struct node *node = __atomic_load_n(&slots[fd].node, __ATOMIC_ACQUIRE);
    if (node && open_flags) *open_flags = slots[fd].open_flags;
    return node;
}

static void slot_clear(int fd)
{
    struct node *node = slots[fd].node;
    if (!node) return;
    __atomic_store_n(&slots[fd].node, NULL, __ATOMIC_RELEASE);
    if (--node->open_count == 0) undo_release(node);
}

static void slot_fill(int fd, struct node *node, int open_flags)
{
    slot_clear(fd);
    slots[fd].open_flags = open_flags;
    node->open_count++;
    __atomic_store_n(&slots[fd].node, node, __ATOMIC_RELEASE);
}

void table_set(int fd, struct node *node, int open_flags)
{
    if (fd < 0 || fd >= FAULT_FD_MAX) fault_die("descriptor out of range", node->path);
    pthread_mutex_lock(&table_lock);
    slot_fill(fd, node, open_flags);
    pthread_mutex_unlock(&table_lock);
}

void table_clear(int fd)
{
    if (!table_get(fd, NULL)) return;
    pthread_mutex_lock(&table_lock);
    slot_clear(fd);
    pthread_mutex_unlock(&table_lock);
}

void table_copy(int from_fd, int to_fd)
{
    if (to_fd < 0 || to_fd >= FAULT_FD_MAX || from_fd == to_fd) return;
    pthread_mutex_lock(&table_lock);
    struct node *node = table_get(from_fd, NULL);
    if (node)
        slot_fill(to_fd, node, slots[from_fd].open_flags);
    else
        slot_clear(to_fd);
    pthread_mutex_unlock(&table_lock);
}

static struct node *bucket_find(uint64_t inode)
{
    for (struct node *node = buckets[inode % BUCKETS]; node; node = node->next)
        if (node->inode == inode) return node;
    return NULL;
}

struct node *table_find(uint64_t inode)
{
    pthread_mutex_lock(&table_lock);
    struct node *node = bucket_find(inode);
    pthread_mutex_unlock(&table_lock);
    return node;
}

struct node *table_intern(uint64_t inode, bool is_dir, const char *path)
{
    pthread_mutex_lock(&table_lock);
    struct node *node = bucket_find(inode);
    if (!node) {
        node = calloc(1, sizeof *node);
        if (!node) fault_die("no memory for", path);
        pthread_mutex_init(&node->lock, NULL);
        node->inode = inode;
        node->undo_fd = -1;
        node->read_fd = -1;
        node->next = buckets[inode % BUCKETS];
        buckets[inode % BUCKETS] = node;
    }
    node->is_dir = is_dir;
    if (!node->path || strcmp(node->path, path) != 0) {
        char *copy = strdup(path);
        if (!copy) fault_die("no memory for", path);
        node->path = copy;
    }
    pthread_mutex_unlock(&table_lock);
    return node;
}

void table_each(void (*visit)(struct node *node))
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct node *node = buckets[i]; node; node = node->next) visit(node);
}
