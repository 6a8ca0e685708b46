/* net.h between the simulated nodes.
 *
 * Each ordered pair (a, b) is a wire; a's connection to b runs over it: a's frames go to b in order, each with a delay of its own that
 * never lets it overtake the one before. A connection breaks as a whole: what was on its way is lost then.
 *
 *   cut wire      frames wait (the sender's kernel keeps them), for some seconds; then each end finds out in its own time that the
 *                 connection is dead. Dialling needs both directions open
 *   killed node   what its kernel had been given still arrives, then the peers see its connections close
 *   power loss    nothing more arrives; the peers find out after a while */
#include "net/net.h"

#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum {
    DELAY_LOW_US = 80,
    DELAY_HIGH_US = 600,
    DEAD_AFTER_LOW_US = 1500000,
    DEAD_AFTER_HIGH_US = 6000000,
    BYTES_PER_US = 200,
    LARGE_BYTES = 64 << 10,
};

struct frame {
    struct sim_event event;
    struct frame *next;
    struct wire *wire;
    uint64_t epoch;
    uint16_t channel;
    uint8_t kind;
    size_t len;
    bool half; /* the news that it is coming in */
    char *bytes;
};

/* a's connection to b. */
struct wire {
    uint32_t from, to;
    bool cut;
    int64_t slow_us;
    bool out_up, in_up; /* as a and as b see it */
    uint64_t epoch;     /* of the connection */
    uint64_t from_life, to_life;
    int64_t last_us; /* when the last frame arrives */
    int64_t dial_pause_us;
    uint64_t backlog;
    struct frame *held_first, *held_last; /* while the wire is cut */
    struct sim_event dial, out_dead, in_dead;
    struct rng rng;
    struct net_peer_stats stats;
};

struct peer {
    uint64_t id;
    bool set;
};

struct net {
    struct sim_node *node;
    struct net_options o;
    bool peers[SIM_NODES_MAX + 1];
    struct net_channel channels[NET_PEERS_MAX + 1];
    uint16_t channel_ids[NET_PEERS_MAX + 1];
    uint32_t channel_count;
    int64_t refused_us[SIM_NODES_MAX + 1];
    bool closed;
};

static struct wire wires[SIM_NODES_MAX + 1][SIM_NODES_MAX + 1];

static struct net_channel *channel_find(struct net *n, uint16_t id)
{
    for (uint32_t i = 0; i < n->channel_count; i++) {
        if (n->channel_ids[i] == id) return &n->channels[i];
    }
    return NULL;
}

/* ---- handing over to a node's loop ---------------------------------------------------------------------------------- */

enum given_what { GIVEN_FRAME, GIVEN_LINK, GIVEN_RECEIVING, GIVEN_REFUSED };

struct given {
    struct sim_work work;
    struct net *net;
    uint16_t channel;
    enum given_what what;
    uint64_t peer;
    enum net_link which;
    bool up;
    uint8_t kind;
    struct slice bytes;
    char *why;
};

static void given_run(struct sim_work *w)
{
    struct given *g = outer(w, struct given, work);
    struct net_channel *c = channel_find(g->net, g->channel);
    if (g->what == GIVEN_REFUSED) {
        if (g->net->o.refused != NULL) g->net->o.refused(g->net->o.ctx, g->peer, g->why);
    } else if (c != NULL && g->what == GIVEN_FRAME) {
        c->frame(c->ctx, g->peer, g->kind, g->bytes);
    } else if (c != NULL && g->what == GIVEN_LINK) {
        if (c->link != NULL) c->link(c->ctx, g->peer, g->which, g->up);
    } else if (c != NULL && c->receiving != NULL) {
        c->receiving(c->ctx, g->peer);
    }
    free((char *)(uintptr_t)g->bytes.at);
    free(g->why);
    free(g);
}

static struct given *given_new(struct net *n, uint16_t channel, enum given_what what, uint64_t peer)
{
    struct given *g = calloc(1, sizeof *g);
    must(g != NULL);
    *g = (struct given){.net = n, .channel = channel, .what = what, .peer = peer};
    g->work.run = given_run;
    return g;
}

static void link_tell(uint32_t node, uint32_t peer, enum net_link which, bool up)
{
    struct net *n = sim.nodes[node].net;
    if (n == NULL) return;
    sim_trace(node * 64 + peer * 8 + (uint64_t)which * 2 + up);
    for (uint32_t i = 0; i < n->channel_count; i++) {
        struct given *g = given_new(n, n->channel_ids[i], GIVEN_LINK, peer);
        g->which = which;
        g->up = up;
        sim_loop_give(n->channels[i].loop, &g->work);
    }
}

/* ---- connections --------------------------------------------------------------------------------------------------- */

static void dial_arm(struct wire *w, int64_t in_us);

static void held_drop(struct wire *w)
{
    while (w->held_first != NULL) {
        struct frame *f = w->held_first;
        w->held_first = f->next;
        free(f->bytes);
        free(f);
    }
    w->held_last = NULL;
}

static bool both_ways(const struct wire *w)
{
    return !w->cut && !wires[w->to][w->from].cut;
}

static void dead_soon(struct wire *w, bool out, int64_t low_us, int64_t high_us)
{
    struct sim_event *e = out ? &w->out_dead : &w->in_dead;
    if (heap_holds(&e->at)) return;
    sim_at(e, NULL, sim.now_us + rng_span(&w->rng, low_us, high_us));
}

/* One end has given the connection up: the other one is told, if anything gets through, or finds out by itself. */
static void other_end(struct wire *w, bool out)
{
    if (out ? !w->out_up : !w->in_up) return;
    bool told = both_ways(w);
    if (told) sim_cancel(out ? &w->out_dead : &w->in_dead);
    dead_soon(w, out, told ? 100 : DEAD_AFTER_LOW_US, told ? 2000 : DEAD_AFTER_HIGH_US);
}

static void out_break(struct wire *w)
{
    sim_cancel(&w->out_dead);
    if (!w->out_up) return;
    w->out_up = false;
    w->backlog = 0;
    held_drop(w);
    link_tell(w->from, w->to, NET_LINK_OUT, false);
    dial_arm(w, 20000);
    other_end(w, false);
}

/* The receiver sees no frame of it any more. */
static void in_break(struct wire *w)
{
    sim_cancel(&w->in_dead);
    if (!w->in_up) return;
    w->in_up = false;
    w->epoch++;
    link_tell(w->to, w->from, NET_LINK_IN, false);
    other_end(w, true);
}

static void out_dead_run(struct sim_event *e)
{
    out_break(outer(e, struct wire, out_dead));
}

static void in_dead_run(struct sim_event *e)
{
    in_break(outer(e, struct wire, in_dead));
}

static void refused_tell(struct net *n, uint64_t peer, const char *why)
{
    if (n->refused_us[peer] != 0 && sim.now_us - n->refused_us[peer] < 1000000) return;
    n->refused_us[peer] = sim.now_us;
    struct given *g = given_new(n, 0, GIVEN_REFUSED, peer);
    g->why = strdup(why);
    sim_loop_give(n->o.loop, &g->work);
}

struct meeting {
    struct net *net;
    const struct net_self *peer;
    const char *why;
};

static void meet_run(void *ctx)
{
    struct meeting *m = ctx;
    if (m->net->o.meet != NULL) m->why = m->net->o.meet(m->net->o.ctx, m->peer);
    if (m->why == NULL) return;
    static char copy[512];
    snprintf(copy, sizeof copy, "%s", m->why);
    m->why = copy;
}

/* `at` looks at who `peer` says it is. */
static bool meets(struct net *at, struct net *peer)
{
    struct meeting m = {.net = at, .peer = &peer->o.self};
    if (!sim_as_node(at->node, meet_run, &m)) return false;
    if (m.why == NULL) return true;
    refused_tell(peer, at->node->id, m.why);
    return false;
}

static void dial_run(struct sim_event *e)
{
    struct wire *w = outer(e, struct wire, dial);
    struct sim_node *a = &sim.nodes[w->from], *b = &sim.nodes[w->to];
    if (w->out_up || a->net == NULL || !a->net->peers[w->to]) return;
    bool good = b->net != NULL && both_ways(w) && !a->paused && !b->paused;
    if (good) good = meets(b->net, a->net) && a->net != NULL && b->net != NULL && meets(a->net, b->net);
    if (!good || a->net == NULL || b->net == NULL) {
        if (sim.log_level > 2) sim_say("n%u does not get through to n%u", w->from, w->to);
        w->dial_pause_us = w->dial_pause_us * 2 > 1000000 ? 1000000 : w->dial_pause_us * 2;
        dial_arm(w, w->dial_pause_us);
        return;
    }
    sim_cancel(&w->in_dead);
    in_break(w); /* a new connection takes the old one's place */
    w->epoch++;
    w->out_up = w->in_up = true;
    w->last_us = sim.now_us;
    w->backlog = 0;
    w->stats.connects++;
    w->from_life = a->life;
    w->to_life = b->life;
    link_tell(w->from, w->to, NET_LINK_OUT, true);
    link_tell(w->to, w->from, NET_LINK_IN, true);
    w->dial_pause_us = 20000;
    if (sim.log_level > 2) sim_say("n%u connects to n%u", w->from, w->to);
}

static void dial_arm(struct wire *w, int64_t in_us)
{
    if (w->dial_pause_us == 0) w->dial_pause_us = 20000;
    if (heap_holds(&w->dial.at)) return;
    sim_at(&w->dial, NULL, sim.now_us + in_us + rng_span(&w->rng, 200, 2000));
}

/* ---- frames -------------------------------------------------------------------------------------------------------- */

static void frame_run(struct sim_event *e)
{
    struct frame *f = outer(e, struct frame, event);
    struct wire *w = f->wire;
    struct sim_node *to = &sim.nodes[w->to];
    bool good = w->in_up && f->epoch == w->epoch && to->net != NULL && to->life == w->to_life;
    if (!f->half && w->backlog >= f->len) w->backlog -= f->len;
    if (!good) {
        free(f->bytes);
        free(f);
        return;
    }
    if (w->cut) { /* waits in the sender's kernel */
        f->next = NULL;
        if (w->held_last != NULL) {
            w->held_last->next = f;
        } else {
            w->held_first = f;
        }
        w->held_last = f;
        return;
    }
    struct net_channel *c = channel_find(to->net, f->channel);
    if (c != NULL) {
        struct given *g = given_new(to->net, f->channel, f->half ? GIVEN_RECEIVING : GIVEN_FRAME, w->from);
        g->kind = f->kind;
        g->bytes = slice_make(f->bytes, f->len);
        w->stats.heard_us = sim_mono_of(to, sim.now_us);
        w->stats.received_frames += !f->half;
        w->stats.received_bytes += f->len;
        sim_trace(f->len * 256 + f->kind);
        sim_loop_give(c->loop, &g->work);
    } else {
        free(f->bytes);
    }
    free(f);
}

static void frame_put(struct wire *w, uint16_t channel, uint8_t kind, char *bytes, size_t len, int64_t at_us, bool half)
{
    struct frame *f = calloc(1, sizeof *f);
    must(f != NULL);
    *f = (struct frame){
        .wire = w, .epoch = w->epoch, .channel = channel, .kind = kind, .len = len, .bytes = bytes, .half = half};
    f->event.run = frame_run;
    if (at_us < w->last_us) at_us = w->last_us;
    w->last_us = at_us;
    sim_at(&f->event, NULL, at_us);
}

bool net_send(struct net *n, uint64_t peer, uint16_t channel, uint8_t kind, uint32_t flags, const struct slice *parts,
              uint32_t count)
{
    if (peer < 1 || peer > SIM_NODES_MAX || peer == n->node->id) return false;
    struct wire *w = &wires[n->node->id][peer];
    size_t len = 0, at = 0;
    for (uint32_t i = 0; i < count; i++) len += parts[i].len;
    must(len <= NET_FRAME_BYTES_MAX);
    uint64_t max = (uint64_t)NET_BACKLOG_BYTES_MAX * ((flags & NET_VITAL) != 0 ? 2 : 1);
    if (!w->out_up || w->backlog + len > max) {
        w->stats.dropped_frames++;
        return false;
    }
    char *bytes = malloc(len + 1);
    must(bytes != NULL);
    for (uint32_t i = 0; i < count; at += parts[i].len, i++) {
        if (parts[i].len > 0) memcpy(bytes + at, parts[i].at, parts[i].len);
    }
    w->backlog += len;
    w->stats.sent_frames++;
    w->stats.sent_bytes += len;
    int64_t begin_us = sim.now_us + sim.ahead_us + rng_span(&w->rng, DELAY_LOW_US, DELAY_HIGH_US) + w->slow_us;
    if (rng_chance(&w->rng, 3)) begin_us += rng_span(&w->rng, 1000, 40000);
    int64_t flight_us = (int64_t)(len / BYTES_PER_US);
    if (len > LARGE_BYTES) frame_put(w, channel, kind, NULL, 0, begin_us + flight_us / 2, true);
    frame_put(w, channel, kind, bytes, len, begin_us + flight_us, false);
    return true;
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

static void held_release(struct wire *w)
{
    struct frame *f = w->held_first;
    w->held_first = w->held_last = NULL;
    while (f != NULL) {
        struct frame *next = f->next;
        int64_t at_us = sim.now_us + 200;
        if (at_us < w->last_us) at_us = w->last_us;
        f->next = NULL;
        sim_at(&f->event, NULL, at_us);
        f = next;
    }
}

void sim_net_cut(uint32_t from, uint32_t to, bool cut)
{
    struct wire *w = &wires[from][to];
    if (from == to || w->cut == cut) return;
    w->cut = cut;
    if (cut) {
        /* Data does not pass on this wire; of the other one the acknowledgements do not. */
        struct wire *back = &wires[to][from];
        if (w->out_up) dead_soon(w, true, DEAD_AFTER_LOW_US, DEAD_AFTER_HIGH_US);
        if (w->in_up) dead_soon(w, false, DEAD_AFTER_LOW_US, DEAD_AFTER_HIGH_US);
        if (back->out_up) dead_soon(back, true, DEAD_AFTER_LOW_US, DEAD_AFTER_HIGH_US);
        return;
    }
    if (both_ways(w)) {
        struct wire *both[2] = {w, &wires[to][from]};
        for (int i = 0; i < 2; i++) {
            sim_cancel(&both[i]->out_dead);
            sim_cancel(&both[i]->in_dead);
            if (both[i]->out_up != both[i]->in_up) other_end(both[i], both[i]->out_up);
        }
    }
    /* What waited comes in order, before anything sent from now on. */
    held_release(w);
}

/* A stopped process gives no sign of life: its peers take its connections for dead after a while. */
void sim_net_paused(struct sim_node *n, bool paused)
{
    for (uint32_t p = 1; p <= SIM_NODES_MAX; p++) {
        struct wire *out = &wires[n->id][p], *in = &wires[p][n->id];
        if (paused) {
            if (out->in_up) dead_soon(out, false, 5000000, 6500000);
            if (in->out_up) dead_soon(in, true, 5000000, 6500000);
        } else {
            if (out->in_up && both_ways(out)) sim_cancel(&out->in_dead);
            if (in->out_up && both_ways(in)) sim_cancel(&in->out_dead);
            if (out->out_up != out->in_up) other_end(out, out->out_up);
            if (in->out_up != in->in_up) other_end(in, in->out_up);
        }
    }
}

void sim_net_break(uint32_t from, uint32_t to)
{
    struct wire *w = &wires[from][to];
    if (w->in_up) dead_soon(w, false, 0, 3000);
    if (w->out_up) dead_soon(w, true, 0, 3000);
}

void sim_net_slow(uint32_t from, uint32_t to, int64_t delay_us)
{
    wires[from][to].slow_us = delay_us;
}

void sim_net_heal(void)
{
    for (uint32_t a = 1; a <= SIM_NODES_MAX; a++) {
        for (uint32_t b = 1; b <= SIM_NODES_MAX; b++) {
            sim_net_cut(a, b, false);
            sim_net_slow(a, b, 0);
        }
    }
}

void sim_net_end(struct sim_node *n, enum sim_end how)
{
    if (n->net == NULL) return;
    n->net->closed = true;
    for (uint32_t p = 1; p <= SIM_NODES_MAX; p++) {
        struct wire *out = &wires[n->id][p], *in = &wires[p][n->id];
        sim_cancel(&out->dial);
        sim_cancel(&out->out_dead);
        sim_cancel(&in->in_dead);
        bool quiet = how == SIM_END_POWER;
        out->out_up = in->in_up = false;
        held_drop(out);
        in->epoch++;
        if (out->in_up && quiet) dead_soon(out, false, DEAD_AFTER_LOW_US, DEAD_AFTER_HIGH_US);
        if (out->in_up && !quiet && !out->cut) {
            int64_t left_us = out->last_us > sim.now_us ? out->last_us - sim.now_us : 0;
            sim_cancel(&out->in_dead);
            dead_soon(out, false, left_us + 100, left_us + 2000);
        }
        if (in->out_up) dead_soon(in, true, quiet ? DEAD_AFTER_LOW_US : 100, quiet ? DEAD_AFTER_HIGH_US : 2000);
        out->backlog = 0;
    }
}

void sim_net_init(void)
{
    for (uint32_t a = 0; a <= SIM_NODES_MAX; a++) {
        for (uint32_t b = 0; b <= SIM_NODES_MAX; b++) {
            struct wire *w = &wires[a][b];
            *w = (struct wire){.from = a, .to = b, .rng = rng_for(sim.seed, "wire", a * 100 + b)};
            w->dial.run = dial_run;
            w->out_dead.run = out_dead_run;
            w->in_dead.run = in_dead_run;
            w->stats.peer = b;
        }
    }
}

/* ---- net.h --------------------------------------------------------------------------------------------------------- */

struct net *net_open(const struct net_options *o, struct buf *error)
{
    must(sim.node != NULL && sim.node->net == NULL);
    if (o->secret == NULL || strlen(o->secret) < 16) {
        buf_text(error, "a cluster needs a secret");
        return NULL;
    }
    struct net *n = calloc(1, sizeof *n);
    must(n != NULL);
    n->node = sim.node;
    n->o = *o;
    sim.node->net = n;
    return n;
}

void net_close(struct net *n)
{
    if (n->node->net != n) return;
    sim_net_end(n->node, SIM_END_KILL);
    n->node->net = NULL;
}

/* A node here loads in no time: nobody is kept waiting. */
void net_accept(struct net *n)
{
    must(!n->closed);
}

uint16_t net_port(const struct net *n)
{
    return n->o.listen_port == 0 ? (uint16_t)(7000 + n->node->id) : n->o.listen_port;
}

void net_self_cluster(struct net *n, struct uuid cluster)
{
    n->o.self.cluster = cluster;
}

void net_peer_set(struct net *n, uint64_t peer, const char *host, uint16_t port)
{
    (void)host, (void)port;
    must(peer >= 1 && peer <= SIM_NODES_MAX);
    if (peer == n->node->id) return;
    n->peers[peer] = true;
    if (!wires[n->node->id][peer].out_up) dial_arm(&wires[n->node->id][peer], 500);
}

void net_peer_remove(struct net *n, uint64_t peer)
{
    must(peer >= 1 && peer <= SIM_NODES_MAX);
    n->peers[peer] = false;
    sim_net_break(n->node->id, (uint32_t)peer);
    sim_net_break((uint32_t)peer, n->node->id);
}

void net_attach(struct net *n, uint16_t channel, const struct net_channel *c)
{
    must(n->channel_count < NET_PEERS_MAX && channel_find(n, channel) == NULL);
    n->channel_ids[n->channel_count] = channel;
    n->channels[n->channel_count] = *c;
    if (c->loop == NULL) n->channels[n->channel_count].loop = n->o.loop;
    c = &n->channels[n->channel_count++];
    /* What is up already is told to it, too. */
    for (uint32_t p = 1; p <= SIM_NODES_MAX; p++) {
        for (int out = 0; out < 2; out++) {
            bool up = out ? wires[n->node->id][p].out_up : wires[p][n->node->id].in_up;
            if (!up) continue;
            struct given *g = given_new(n, channel, GIVEN_LINK, p);
            g->which = out ? NET_LINK_OUT : NET_LINK_IN;
            g->up = true;
            sim_loop_give(c->loop, &g->work);
        }
    }
}

void net_detach(struct net *n, uint16_t channel)
{
    for (uint32_t i = 0; i < n->channel_count; i++) {
        if (n->channel_ids[i] != channel) continue;
        n->channels[i] = n->channels[n->channel_count - 1];
        n->channel_ids[i] = n->channel_ids[n->channel_count - 1];
        n->channel_count--;
        return;
    }
}

bool net_connected(const struct net *n, uint64_t peer)
{
    return peer >= 1 && peer <= SIM_NODES_MAX && wires[n->node->id][peer].out_up;
}

uint64_t net_backlog(const struct net *n, uint64_t peer)
{
    return wires[n->node->id][peer].backlog;
}

uint32_t net_stats(const struct net *n, struct net_peer_stats *out, uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t p = 1; p <= SIM_NODES_MAX && count < max; p++) {
        const struct wire *w = &wires[n->node->id][p], *back = &wires[p][n->node->id];
        if (!n->peers[p] && !back->in_up) continue;
        out[count] = w->stats;
        out[count].out_up = w->out_up;
        out[count].in_up = back->in_up;
        out[count].backlog_bytes = w->backlog;
        out[count].received_frames = back->stats.received_frames;
        out[count].received_bytes = back->stats.received_bytes;
        out[count++].heard_us = back->stats.heard_us;
    }
    return count;
}
