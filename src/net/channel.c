/* Frames to their owners.
 *
 * A channel of the net's own loop is called straight from the read buffer. For one of another loop, what comes is gathered in `filling`
 * as mails (frame, link, receiving), in order; at the end of a read the channel's task is posted, once, and on its loop takes the whole
 * batch by swapping buffers. A large frame's memory is handed over, not copied.
 *
 * When the owner does not keep up, CHANNEL_BYTES_MAX are on their way to it and the connections that bring more are not read until half
 * of that is worked off; the sender's backlog grows then, and its limit holds. */
#include <pthread.h>

#include "net/net_inner.h"

enum mail_type { MAIL_FRAME, MAIL_LINK, MAIL_RECEIVING };

struct mail {
    uint64_t peer;
    char *large; /* the frame's bytes, malloc'ed; NULL: they follow */
    uint32_t bytes;
    uint8_t type, kind, which, up;
};

struct channel {
    struct net *net;
    uint16_t number;
    bool here; /* its loop is the net's */
    atomic_bool attached;
    struct net_channel to;
    struct loop_task task, resume_task;
    pthread_mutex_t lock; /* of filling and posted */
    struct buf filling;
    bool posted;
    bool due;                /* net's loop: has mail that is not posted */
    pthread_mutex_t running; /* held while the owner is called */
    struct buf reading;      /* of the owner's loop */
    _Atomic uint64_t bytes;  /* of frames on their way */
    atomic_bool held, resume_posted;
};

static bool channel_is(const struct channel *ch, uint16_t number)
{
    return ch != NULL && ch->number == number && atomic_load_explicit(&ch->attached, memory_order_relaxed);
}

static struct channel *channel_find(struct net *n, uint16_t number)
{
    if (channel_is(n->channels[n->channel_last], number)) return n->channels[n->channel_last];
    for (uint32_t i = 0; i < n->channel_count; i++) {
        if (!channel_is(n->channels[i], number)) continue;
        n->channel_last = i;
        return n->channels[i];
    }
    return NULL;
}

bool channel_wanted(struct net *n, uint16_t number)
{
    return channel_find(n, number) != NULL;
}

/* ---- on the owner's loop */

static void mail_hand_over(struct channel *ch, const struct mail *m, const char *bytes)
{
    if (m->type == MAIL_FRAME) {
        ch->to.frame(ch->to.ctx, m->peer, m->kind, slice_make(bytes, m->bytes));
    } else if (m->type == MAIL_LINK) {
        if (ch->to.link != NULL) ch->to.link(ch->to.ctx, m->peer, (enum net_link)m->which, m->up != 0);
    } else if (ch->to.receiving != NULL) {
        ch->to.receiving(ch->to.ctx, m->peer);
    }
}

static size_t mail_size(const struct mail *m)
{
    size_t bytes = m->large == NULL ? m->bytes : 0;
    return sizeof *m + (bytes + 7) / 8 * 8;
}

static void batch_run(struct channel *ch, struct buf *batch)
{
    for (size_t at = 0; at < batch->len;) {
        struct mail m;
        memcpy(&m, batch->at + at, sizeof m);
        const char *bytes = m.large != NULL ? m.large : batch->at + at + sizeof m;
        pthread_mutex_lock(&ch->running);
        if (atomic_load(&ch->attached)) mail_hand_over(ch, &m, bytes);
        pthread_mutex_unlock(&ch->running);
        free(m.large);
        if (m.type == MAIL_FRAME) atomic_fetch_sub(&ch->bytes, m.bytes + sizeof m);
        at += mail_size(&m);
    }
    buf_clear(batch);
    if (batch->cap > CHANNEL_BYTES_MAX / 16) buf_free(batch);
}

static void channel_run(struct loop_task *task)
{
    struct channel *ch = (struct channel *)(void *)((char *)task - offsetof(struct channel, task));
    pthread_mutex_lock(&ch->lock);
    struct buf batch = ch->filling;
    ch->filling = ch->reading;
    ch->reading = (struct buf){0};
    ch->posted = false;
    pthread_mutex_unlock(&ch->lock);
    batch_run(ch, &batch);
    ch->reading = batch;
    if (atomic_load(&ch->held) && atomic_load(&ch->bytes) < CHANNEL_BYTES_MAX / 2 &&
        !atomic_exchange(&ch->resume_posted, true)) {
        loop_post(ch->net->loop, &ch->resume_task);
    }
}

/* ---- on the net's loop */

static void channel_resume(struct loop_task *task)
{
    struct channel *ch = (struct channel *)(void *)((char *)task - offsetof(struct channel, resume_task));
    struct net *n = ch->net;
    atomic_store(&ch->resume_posted, false);
    atomic_store(&ch->held, false);
    /* Those that bring frames for a channel that is still full stop again at the next one. */
    for (struct conn *c = n->conns, *next; c != NULL; c = next) {
        if (c->paused) conn_resume(c);
        next = conn_dead(c) ? n->conns : c->next; /* a callback may have closed any: begin again */
    }
    channels_post(n);
}

static void mail_put(struct channel *ch, const struct mail *m, const char *bytes)
{
    static const char zero[8];
    size_t copied = m->large == NULL ? m->bytes : 0;
    pthread_mutex_lock(&ch->lock);
    buf_put(&ch->filling, m, sizeof *m);
    buf_put(&ch->filling, bytes, copied);
    buf_put(&ch->filling, zero, (8 - copied % 8) % 8);
    pthread_mutex_unlock(&ch->lock);
    ch->due = true;
}

void channels_post(struct net *n)
{
    for (uint32_t i = 0; i < n->channel_count; i++) {
        struct channel *ch = n->channels[i];
        if (!ch->due) continue;
        ch->due = false;
        pthread_mutex_lock(&ch->lock);
        bool post = !ch->posted;
        ch->posted = true;
        pthread_mutex_unlock(&ch->lock);
        if (post) loop_post(ch->to.loop, &ch->task);
    }
}

static void channel_hold(struct channel *ch, struct conn *c)
{
    if (atomic_load_explicit(&ch->bytes, memory_order_relaxed) < CHANNEL_BYTES_MAX) return;
    c->paused = true;
    atomic_store(&ch->held, true);
    /* The owner may have finished just before: then nobody else would say so. */
    if (atomic_load(&ch->bytes) < CHANNEL_BYTES_MAX / 2 && !atomic_exchange(&ch->resume_posted, true)) {
        loop_post(ch->net->loop, &ch->resume_task);
    }
}

void channel_frame(struct conn *c, const struct wire_item *item, struct wire_frame *large)
{
    struct net_peer *p = c->peer;
    struct channel *ch = channel_find(c->net, item->channel);
    uint64_t id = atomic_load_explicit(&p->id, memory_order_relaxed);
    struct slice bytes = large != NULL ? slice_make(large->at, large->total) : item->bytes;
    atomic_fetch_add_explicit(&p->received_frames, 1, memory_order_relaxed);
    if (ch == NULL) return;
    if (ch->here) {
        ch->to.frame(ch->to.ctx, id, item->kind, bytes);
        return;
    }
    struct mail m = {.peer = id, .bytes = (uint32_t)bytes.len, .type = MAIL_FRAME, .kind = item->kind};
    if (large != NULL) {
        m.large = large->at;
        large->at = NULL;
    }
    atomic_fetch_add(&ch->bytes, bytes.len + sizeof m);
    mail_put(ch, &m, bytes.at);
    channel_hold(ch, c);
}

void channel_receiving(struct conn *c, uint16_t number)
{
    struct channel *ch = channel_find(c->net, number);
    if (ch == NULL || ch->to.receiving == NULL) return;
    uint64_t id = atomic_load_explicit(&c->peer->id, memory_order_relaxed);
    if (ch->here) {
        ch->to.receiving(ch->to.ctx, id);
    } else {
        mail_put(ch, &(struct mail){.peer = id, .type = MAIL_RECEIVING}, NULL);
    }
}

static void channel_link(struct channel *ch, uint64_t peer, enum net_link which, bool up)
{
    if (ch->to.link == NULL || !atomic_load_explicit(&ch->attached, memory_order_relaxed)) return;
    if (ch->here) {
        ch->to.link(ch->to.ctx, peer, which, up);
    } else {
        mail_put(ch, &(struct mail){.peer = peer, .type = MAIL_LINK, .which = (uint8_t)which, .up = up}, NULL);
    }
}

void channels_link(struct net *n, uint64_t peer, enum net_link which, bool up)
{
    uint32_t count = n->channel_count; /* one that is attached inside is told by net_attach */
    for (uint32_t i = 0; i < count; i++) channel_link(n->channels[i], peer, which, up);
    channels_post(n);
}

void net_attach(struct net *n, uint16_t channel, const struct net_channel *c)
{
    must(c->frame != NULL && channel_find(n, channel) == NULL && n->channel_count < CHANNELS_MAX);
    struct channel *ch = calloc(1, sizeof *ch);
    must(ch != NULL && pthread_mutex_init(&ch->lock, NULL) == 0 && pthread_mutex_init(&ch->running, NULL) == 0);
    ch->net = n;
    ch->number = channel;
    ch->to = *c;
    if (ch->to.loop == NULL) ch->to.loop = n->loop;
    ch->here = ch->to.loop == n->loop;
    ch->task.run = channel_run;
    ch->resume_task.run = channel_resume;
    atomic_store(&ch->attached, true);
    n->channels[n->channel_count++] = ch;
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) {
        struct net_peer *p = &n->peers[i];
        uint64_t id = atomic_load(&p->id);
        if (id == 0) continue;
        if (atomic_load(&p->out_up)) channel_link(ch, id, NET_LINK_OUT, true);
        if (atomic_load(&p->in_up)) channel_link(ch, id, NET_LINK_IN, true);
    }
    channels_post(n);
}

/* How many bytes of frames were in it (as counted in ch->bytes). */
static uint64_t batch_drop(struct buf *batch)
{
    uint64_t bytes = 0;
    for (size_t at = 0; at < batch->len;) {
        struct mail m;
        memcpy(&m, batch->at + at, sizeof m);
        free(m.large);
        if (m.type == MAIL_FRAME) bytes += m.bytes + sizeof m;
        at += mail_size(&m);
    }
    buf_free(batch);
    return bytes;
}

void net_detach(struct net *n, uint16_t channel)
{
    struct channel *ch = channel_find(n, channel);
    if (ch == NULL) return;
    if (ch->here) {
        atomic_store(&ch->attached, false);
        return;
    }
    pthread_mutex_lock(&ch->running); /* waits for a call that is under way */
    atomic_store(&ch->attached, false);
    pthread_mutex_unlock(&ch->running);
    /* Its loop may have ended: connections that wait for it go on. */
    pthread_mutex_lock(&ch->lock);
    atomic_fetch_sub(&ch->bytes, batch_drop(&ch->filling));
    pthread_mutex_unlock(&ch->lock);
    if (atomic_load(&ch->held) && !atomic_exchange(&ch->resume_posted, true)) loop_post(n->loop, &ch->resume_task);
}

void channels_free(struct net *n)
{
    for (uint32_t i = 0; i < n->channel_count; i++) {
        struct channel *ch = n->channels[i];
        batch_drop(&ch->filling);
        batch_drop(&ch->reading);
        pthread_mutex_destroy(&ch->lock);
        pthread_mutex_destroy(&ch->running);
        free(ch);
    }
    n->channel_count = 0;
}
