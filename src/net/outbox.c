#include "net/outbox.h"

#include <stdlib.h>

#include "base/must.h"
#include "net/net.h"

enum { SPARE_MAX = 32 };

struct chunk *chunk_new(uint32_t bytes)
{
    struct chunk *c = malloc(sizeof *c + bytes);
    must(c != NULL);
    *c = (struct chunk){0};
    return c;
}

void outbox_init(struct outbox *o, uint64_t backlog_max)
{
    *o = (struct outbox){.backlog_max = backlog_max};
    must(pthread_mutex_init(&o->lock, NULL) == 0);
}

static void chain_free(struct chunk *c)
{
    while (c != NULL) {
        struct chunk *next = c->next;
        free(c);
        c = next;
    }
}

void outbox_free(struct outbox *o)
{
    outbox_close(o);
    outbox_trim(o);
    must(atomic_load(&o->backlog) == 0);
    while (o->lanes != NULL) {
        struct lane *l = o->lanes;
        o->lanes = l->next;
        free(l);
    }
    pthread_mutex_destroy(&o->lock);
}

static struct lane *lane_of(struct outbox *o, uint16_t channel)
{
    for (struct lane *l = o->lanes; l != NULL; l = l->next) {
        if (l->channel == channel) return l;
    }
    struct lane *l = calloc(1, sizeof *l);
    must(l != NULL);
    l->channel = channel;
    l->next = o->lanes;
    o->lanes = l;
    return l;
}

/* Its turn comes behind the others'. */
static void ready_put(struct outbox *o, struct lane *l)
{
    l->next_ready = NULL;
    if (o->ready == NULL) {
        o->ready = l;
    } else {
        o->ready_last->next_ready = l;
    }
    o->ready_last = l;
}

/* The chunks from `first` to `last` behind what the lane has. */
static void lane_append(struct outbox *o, struct lane *l, struct chunk *first, struct chunk *last)
{
    if (l->last != NULL) {
        l->last->next = first;
    } else {
        l->first = first;
        ready_put(o, l);
    }
    l->last = last;
}

static struct chunk *spare_pop(struct chunk **spare)
{
    struct chunk *c = *spare;
    if (c == NULL) return chunk_new(WIRE_RECORD_MAX);
    *spare = c->next;
    *c = (struct chunk){0};
    return c;
}

static struct chunk *lane_extend(struct outbox *o, struct lane *l)
{
    if (o->spare != NULL) o->spare_count--;
    struct chunk *c = spare_pop(&o->spare);
    lane_append(o, l, c, c);
    return c;
}

/* The lane's last chunk when it has that much room, else a new one. */
static struct chunk *lane_room(struct outbox *o, struct lane *l, uint32_t bytes)
{
    if (l->last != NULL && WIRE_PAYLOAD_MAX - l->last->used >= bytes) return l->last;
    return lane_extend(o, l);
}

static char *chunk_add(struct outbox *o, struct chunk *c, uint32_t bytes)
{
    char *at = c->at + WIRE_RECORD_HEAD + c->used;
    c->used += bytes;
    must(c->used <= WIRE_PAYLOAD_MAX);
    atomic_fetch_add_explicit(&o->backlog, bytes, memory_order_relaxed);
    return at;
}

static void whole_put(struct outbox *o, struct lane *l, uint8_t kind, const struct slice *parts, uint32_t count, uint32_t total)
{
    struct chunk *c = lane_room(o, l, WIRE_ITEM_HEAD + total);
    char *at = chunk_add(o, c, WIRE_ITEM_HEAD + total);
    wire_item_write(at, l->channel, kind, WIRE_WHOLE, total);
    at += WIRE_ITEM_HEAD;
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].len == 0) continue;
        memcpy(at, parts[i].at, parts[i].len);
        at += parts[i].len;
    }
    c->frames++;
}

static void parts_copy(char *at, uint32_t len, const struct slice **part, size_t *skip)
{
    while (len > 0) {
        size_t n = (*part)->len - *skip;
        if (n > len) n = len;
        if (n > 0) memcpy(at, (*part)->at + *skip, n);
        at += n;
        len -= (uint32_t)n;
        *skip += n;
        if (*skip == (*part)->len) {
            (*part)++;
            *skip = 0;
        }
    }
}

/* A large frame as a chain of chunks; `last` gets the last. The chunks of `spare` are used first. */
static struct chunk *pieces_build(uint16_t channel, uint8_t kind, const struct slice *parts, uint32_t total,
                                  struct chunk **spare, struct chunk **last)
{
    struct chunk *chain = NULL, **end = &chain;
    size_t skip = 0;
    for (uint32_t left = total; left > 0;) {
        bool first = left == total;
        struct chunk *c = spare_pop(spare);
        uint32_t head = first ? WIRE_ITEM_HEAD + WIRE_TOTAL : WIRE_ITEM_HEAD, n = WIRE_PAYLOAD_MAX - head;
        if (n > left) n = left;
        must(!first || n < left);
        char *at = c->at + WIRE_RECORD_HEAD;
        wire_item_write(at, channel, kind,
                        first       ? WIRE_FIRST
                        : n == left ? WIRE_LAST
                                    : WIRE_BETWEEN,
                        head - WIRE_ITEM_HEAD + n);
        if (first) memcpy(at + WIRE_ITEM_HEAD, &total, WIRE_TOTAL);
        parts_copy(at + head, n, &parts, &skip);
        c->used = head + n;
        left -= n;
        c->frames = left == 0;
        *end = *last = c;
        end = &c->next;
    }
    return chain;
}

static bool outbox_takes(const struct outbox *o, uint64_t peer, bool vital)
{
    uint64_t limit = vital ? 2 * o->backlog_max : o->backlog_max;
    return o->open && o->peer == peer && atomic_load_explicit(&o->backlog, memory_order_relaxed) < limit;
}

/* The bytes are copied outside the lock: others, and the net's loop, go on meanwhile. */
static bool large_put(struct outbox *o, uint64_t peer, uint16_t channel, uint8_t kind, bool vital, const struct slice *parts,
                      uint32_t total)
{
    struct chunk *spare, *last = NULL;
    pthread_mutex_lock(&o->lock);
    bool taken = outbox_takes(o, peer, vital);
    uint64_t opened = o->opened;
    spare = taken ? o->spare : NULL;
    if (taken) {
        o->spare = NULL;
        o->spare_count = 0;
    }
    pthread_mutex_unlock(&o->lock);
    if (!taken) return false;
    struct chunk *chain = pieces_build(channel, kind, parts, total, &spare, &last);
    uint64_t bytes = 0;
    for (struct chunk *c = chain; c != NULL; c = c->next) bytes += c->used;
    pthread_mutex_lock(&o->lock);
    taken = o->open && o->opened == opened;
    if (taken) {
        atomic_fetch_add_explicit(&o->backlog, bytes, memory_order_relaxed);
        lane_append(o, lane_of(o, channel), chain, last);
        chain = NULL;
    }
    pthread_mutex_unlock(&o->lock);
    chain_free(chain);
    chain_free(spare);
    return taken;
}

bool outbox_put(struct outbox *o, uint64_t peer, uint16_t channel, uint8_t kind, bool vital, const struct slice *parts,
                uint32_t count, uint32_t total)
{
    if (WIRE_ITEM_HEAD + total > WIRE_PAYLOAD_MAX) return large_put(o, peer, channel, kind, vital, parts, total);
    pthread_mutex_lock(&o->lock);
    bool taken = outbox_takes(o, peer, vital);
    if (taken) whole_put(o, lane_of(o, channel), kind, parts, count, total);
    pthread_mutex_unlock(&o->lock);
    return taken;
}

static struct chunk *ready_pop(struct outbox *o)
{
    struct lane *l = o->ready;
    struct chunk *c = l->first;
    l->first = c->next;
    if (l->first == NULL) l->last = NULL;
    o->ready = l->next_ready;
    if (o->ready == NULL) o->ready_last = NULL;
    if (l->first != NULL) ready_put(o, l);
    c->next = NULL;
    return c;
}

struct chunk *outbox_take(struct outbox *o, uint32_t bytes)
{
    struct chunk *first = NULL, **end = &first;
    uint32_t have = 0;
    pthread_mutex_lock(&o->lock);
    while (o->ready != NULL && have < bytes) {
        *end = ready_pop(o);
        have += (*end)->used;
        end = &(*end)->next;
    }
    pthread_mutex_unlock(&o->lock);
    return first;
}

void outbox_give_back(struct outbox *o, struct chunk *chain)
{
    struct chunk *surplus = NULL;
    pthread_mutex_lock(&o->lock);
    while (chain != NULL) {
        struct chunk *c = chain;
        chain = c->next;
        atomic_fetch_sub_explicit(&o->backlog, c->used, memory_order_relaxed);
        struct chunk **to = o->spare_count < SPARE_MAX ? &o->spare : &surplus;
        if (to == &o->spare) o->spare_count++;
        c->next = *to;
        *to = c;
    }
    pthread_mutex_unlock(&o->lock);
    chain_free(surplus);
}

void outbox_open(struct outbox *o, uint64_t peer)
{
    pthread_mutex_lock(&o->lock);
    must(!o->open && o->ready == NULL);
    o->open = true;
    o->peer = peer;
    o->opened++;
    pthread_mutex_unlock(&o->lock);
}

uint64_t outbox_close(struct outbox *o)
{
    struct chunk *first = NULL, **end = &first;
    uint64_t frames = 0;
    pthread_mutex_lock(&o->lock);
    o->open = false;
    while (o->ready != NULL) {
        *end = ready_pop(o);
        frames += (*end)->frames;
        atomic_fetch_sub_explicit(&o->backlog, (*end)->used, memory_order_relaxed);
        end = &(*end)->next;
    }
    pthread_mutex_unlock(&o->lock);
    chain_free(first);
    return frames;
}

void outbox_trim(struct outbox *o)
{
    pthread_mutex_lock(&o->lock);
    struct chunk *first = o->spare;
    o->spare = NULL;
    o->spare_count = 0;
    pthread_mutex_unlock(&o->lock);
    chain_free(first);
}
