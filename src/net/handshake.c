/* Who is there: hello.h has the messages.
 *
 * The accepter checks, in this order: the proof; that the dialler is not this very process; that it means this node and belongs to this
 * cluster; what the owner says (`meet`). The dialler checks the verdict's MAC and the same of the accepter, and tells it by a record
 * WIRE_REFUSE when its owner will not have it. Only texts of owners reach the other's `refused`; the rest is for the logs. */
#include <inttypes.h>
#include <stdio.h>

#include "base/logger.h"
#include "net/net_inner.h"

static bool uuid_zero(struct uuid u)
{
    static const struct uuid zero;
    return uuid_equal(u, zero);
}

/* Not the owner's business: NULL, or why the two do not belong together. */
static const char *mismatch(const struct net *n, const struct net_self *other, uint64_t other_run)
{
    if (other_run == n->run) return "the address leads back to this very node";
    if (other->node == n->self.node) return "both nodes have the same id";
    if (!uuid_zero(other->cluster) && !uuid_zero(n->self.cluster) && !uuid_equal(other->cluster, n->self.cluster)) {
        return "the nodes belong to two different clusters";
    }
    return NULL;
}

static void conn_keys(struct conn *c, const uint8_t dialler_nonce[SEAL_NONCE], const uint8_t accepter_nonce[SEAL_NONCE])
{
    uint8_t nonces[2 * SEAL_NONCE];
    struct seal_key dialler, accepter;
    struct buf said = {0};
    memcpy(nonces, dialler_nonce, SEAL_NONCE);
    memcpy(nonces + SEAL_NONCE, accepter_nonce, SEAL_NONCE);
    buf_slice(&said, buf_view(&c->hello));
    buf_slice(&said, buf_view(&c->answer));
    seal_derive(c->net->secret, slice_make(nonces, sizeof nonces), buf_view(&said), &dialler, &accepter);
    buf_free(&said);
    seal_open(&c->out_seal, c->dialled ? &dialler : &accepter);
    seal_open(&c->in_seal, c->dialled ? &accepter : &dialler);
    explicit_bzero(&dialler, sizeof dialler);
    explicit_bzero(&accepter, sizeof accepter);
}

void handshake_begin(struct conn *c)
{
    struct net *n = c->net;
    if (!c->dialled) {
        c->state = CONN_AWAIT_HELLO;
        return;
    }
    c->said = (struct hello){.self = n->self, .target = atomic_load(&c->peer->id), .run = n->run, .dial = ++c->peer->dials};
    random_bytes(c->said.nonce, sizeof c->said.nonce);
    hello_write(&c->hello, &c->said);
    c->state = CONN_AWAIT_ANSWER;
    conn_queue_plain(c, buf_view(&c->hello));
}

static void deny(struct conn *c, enum hello_denial code)
{
    struct buf b = {0};
    hello_head(&b, HELLO_DENIED, 1);
    buf_byte(&b, (char)code);
    conn_queue_plain(c, buf_view(&b));
    buf_free(&b);
}

/* ---- the accepting side */

static void hello_came(struct conn *c, const struct hello_message *m)
{
    struct net *n = c->net;
    if (!hello_read(m->body, &c->said)) {
        conn_close(c, "a hello that is not well formed");
        return;
    }
    buf_slice(&c->hello, m->whole);
    c->other = c->said.self;
    struct answer a = {.self = n->self, .run = n->run};
    random_bytes(a.nonce, sizeof a.nonce);
    answer_write(&c->answer, &a);
    c->state = CONN_AWAIT_PROOF;
    conn_queue_plain(c, buf_view(&c->answer));
}

static void verdict_send(struct conn *c, enum hello_verdict code, const char *text)
{
    struct verdict v = {.code = code, .text = slice_of(text)};
    struct buf b = {0};
    if (v.text.len > HELLO_TEXT_MAX) v.text.len = HELLO_TEXT_MAX;
    hello_verdict_mac(c->net->secret, buf_view(&c->hello), buf_view(&c->answer), &v, v.mac);
    verdict_write(&b, &v);
    conn_queue_plain(c, buf_view(&b));
    buf_free(&b);
}

static void proof_came(struct conn *c, const struct hello_message *m)
{
    struct net *n = c->net;
    uint8_t right[SEAL_MAC];
    hello_proof(n->secret, buf_view(&c->hello), buf_view(&c->answer), right);
    if (m->body.len != SEAL_MAC || !seal_mac_equal(right, (const uint8_t *)m->body.at)) {
        deny(c, DENIED_SECRET);
        conn_close(c, "it calls itself node %" PRIu64 " and does not know the cluster's secret", c->other.node);
        return;
    }
    const char *why = mismatch(n, &c->other, c->said.run);
    char text[120];
    if (why == NULL && c->said.target != n->self.node) {
        snprintf(text, sizeof text, "it looks for node %" PRIu64 ", and this is node %" PRIu64, c->said.target, n->self.node);
        why = text;
    }
    if (why != NULL) {
        verdict_send(c, VERDICT_WRONG, why);
        conn_close(c, "node %" PRIu64 ": %s", c->other.node, why);
        return;
    }
    why = n->options.meet == NULL ? NULL : n->options.meet(n->options.ctx, &c->other);
    if (conn_dead(c)) return;
    verdict_send(c, why == NULL ? VERDICT_WELCOME : VERDICT_REFUSED, why == NULL ? "" : why);
    if (why != NULL) {
        conn_close(c, "node %" PRIu64 ": %s", c->other.node, why);
        return;
    }
    struct answer a;
    struct slice answer_body = buf_view(&c->answer);
    must(answer_read(slice_make(answer_body.at + HELLO_HEAD, answer_body.len - HELLO_HEAD), &a));
    conn_keys(c, c->said.nonce, a.nonce);
    c->state = CONN_AWAIT_FIRST;
}

static bool older_than_known(const struct net_peer *p, const struct conn *c)
{
    return p->has_run && p->run == c->said.run && c->said.dial <= p->run_dial;
}

void handshake_first(struct conn *c)
{
    struct net *n = c->net;
    struct net_peer *p = peer_place(n, c->other.node);
    if (p == NULL) {
        conn_close(c, "node %" PRIu64 ": more than %d peers", c->other.node, NET_PEERS_MAX);
        return;
    }
    if (older_than_known(p, c)) {
        conn_close(c, "node %" PRIu64 ": a newer connection of it was here already", c->other.node);
        return;
    }
    struct conn *old = p->in;
    p->has_run = true;
    p->run = c->said.run;
    p->run_dial = c->said.dial;
    c->peer = p;
    p->in = c;
    if (old != NULL) conn_close(old, "the peer has made a new one");
    if (conn_dead(c)) return; /* the owner removed the peer when it heard of that */
    c->state = CONN_UP;
    c->up_us = loop_now_us(n->loop);
    n->strangers--;
    buf_free(&c->hello);
    buf_free(&c->answer);
    atomic_store(&p->in_up, true);
    atomic_store_explicit(&p->heard_us, c->heard_us, memory_order_relaxed);
    log_info("connection from node %" PRIu64 " (%s)", c->other.node, c->name);
    peer_dial_soon(p);
    channels_link(n, c->other.node, NET_LINK_IN, true);
}

/* ---- the dialling side */

static void answer_came(struct conn *c, const struct hello_message *m)
{
    struct net *n = c->net;
    struct answer a;
    if (!answer_read(m->body, &a)) {
        conn_close(c, "an answer that is not well formed");
        return;
    }
    const char *why = mismatch(n, &a.self, a.run);
    if (why != NULL) {
        conn_close(c, "%s", why);
        return;
    }
    if (a.self.node != c->said.target) {
        conn_close(c, "the address leads to node %" PRIu64, a.self.node);
        return;
    }
    buf_slice(&c->answer, m->whole);
    c->other = a.self;
    uint8_t mac[SEAL_MAC];
    struct buf b = {0};
    hello_proof(n->secret, buf_view(&c->hello), buf_view(&c->answer), mac);
    hello_head(&b, HELLO_PROOF, sizeof mac);
    buf_put(&b, mac, sizeof mac);
    conn_keys(c, c->said.nonce, a.nonce);
    c->state = CONN_AWAIT_VERDICT;
    conn_queue_plain(c, buf_view(&b));
    buf_free(&b);
}

static void verdict_came(struct conn *c, const struct hello_message *m)
{
    struct net *n = c->net;
    struct verdict v;
    uint8_t right[SEAL_MAC];
    if (!verdict_read(m->body, &v)) {
        conn_close(c, "a verdict that is not well formed");
        return;
    }
    hello_verdict_mac(n->secret, buf_view(&c->hello), buf_view(&c->answer), &v, right);
    if (!seal_mac_equal(right, v.mac)) {
        conn_close(c, "it does not know the cluster's secret");
        return;
    }
    if (v.code == VERDICT_REFUSED) {
        handshake_refused(c, v.text);
        return;
    }
    if (v.code == VERDICT_WRONG) {
        conn_close(c, "it says: %.*s", (int)v.text.len, v.text.at);
        return;
    }
    const char *why = n->options.meet == NULL ? NULL : n->options.meet(n->options.ctx, &c->other);
    if (conn_dead(c)) return;
    if (why != NULL) {
        struct slice text = slice_of(why);
        if (text.len > HELLO_TEXT_MAX) text.len = HELLO_TEXT_MAX;
        conn_queue_record(c, WIRE_REFUSE, text);
        conn_close(c, "%s", why);
        return;
    }
    buf_free(&c->hello);
    buf_free(&c->answer);
    peer_out_up(c->peer);
}

static void denied(struct conn *c, struct slice body)
{
    enum hello_denial code = body.len == 1 ? (enum hello_denial)body.at[0] : 0;
    if (code == DENIED_SECRET) {
        conn_close(c, "it does not accept our secret");
    } else if (code == DENIED_PROTOCOL) {
        conn_close(c, "it speaks another version of the protocol between nodes");
    } else {
        conn_close(c, "denied by it");
    }
}

void handshake_refused(struct conn *c, struct slice text)
{
    struct net *n = c->net;
    uint64_t peer = c->other.node;
    char why[HELLO_TEXT_MAX + 1];
    if (c->state == CONN_UP) {
        conn_close(c, "a refusal where there is nothing left to refuse");
        return;
    }
    snprintf(why, sizeof why, "%.*s", (int)(text.len > HELLO_TEXT_MAX ? HELLO_TEXT_MAX : text.len), text.at);
    struct net_peer *p = peer_find(n, peer);
    conn_close(c, "node %" PRIu64 " refuses us: %s", peer, why);
    if (n->options.refused != NULL && logger_every(p != NULL ? &p->refused_us : &n->refused_us, SAY_US)) {
        n->options.refused(n->options.ctx, peer, why);
    }
}

static void other_protocol(struct conn *c)
{
    if (!c->dialled) deny(c, DENIED_PROTOCOL);
    conn_close(c, "it speaks another version of the protocol between nodes");
}

bool handshake_take(struct conn *c)
{
    struct hello_message m;
    struct slice in = slice_make(c->in + c->in_start, c->in_end - c->in_start);
    switch (hello_next(in, &m)) {
    case HELLO_MORE:
        return false;
    case HELLO_BAD:
        conn_close(c, "bytes that are no handshake between nodes");
        return false;
    case HELLO_OTHER_PROTOCOL:
        other_protocol(c);
        return false;
    case HELLO_OK:
        break;
    }
    c->in_start += (uint32_t)m.whole.len;
    if (c->state == CONN_AWAIT_HELLO && m.type == HELLO_HELLO) {
        hello_came(c, &m);
    } else if (c->state == CONN_AWAIT_PROOF && m.type == HELLO_PROOF) {
        proof_came(c, &m);
    } else if (c->state == CONN_AWAIT_ANSWER && m.type == HELLO_ANSWER) {
        answer_came(c, &m);
    } else if (c->state == CONN_AWAIT_VERDICT && m.type == HELLO_VERDICT) {
        verdict_came(c, &m);
    } else if (c->dialled && m.type == HELLO_DENIED) {
        denied(c, m.body);
    } else {
        conn_close(c, "a message out of turn");
    }
    return !conn_dead(c);
}
