#include "net/hello.h"

enum { SELF_BYTES = 56, HELLO_BODY = SELF_BYTES + 24 + SEAL_NONCE, ANSWER_BODY = SELF_BYTES + 8 + SEAL_NONCE };

static const char magic[4] = {'Q', 'N', 'E', 'T'};

/* Reads integers and bytes one after another; the caller has checked the length. */
struct reader {
    const char *at;
};

static void take(struct reader *r, void *out, size_t len)
{
    memcpy(out, r->at, len);
    r->at += len;
}

static void self_write(struct buf *b, const struct net_self *s)
{
    buf_put(b, s->cluster.bytes, sizeof s->cluster.bytes);
    buf_u64(b, s->node);
    buf_put(b, s->disk.bytes, sizeof s->disk.bytes);
    buf_u64(b, s->starts);
    buf_u64(b, s->version);
}

static void self_read(struct reader *r, struct net_self *s)
{
    take(r, s->cluster.bytes, sizeof s->cluster.bytes);
    take(r, &s->node, sizeof s->node);
    take(r, s->disk.bytes, sizeof s->disk.bytes);
    take(r, &s->starts, sizeof s->starts);
    take(r, &s->version, sizeof s->version);
}

enum hello_status hello_next(struct slice in, struct hello_message *out)
{
    size_t known = in.len < sizeof magic ? in.len : sizeof magic;
    if (memcmp(in.at, magic, known) != 0) return HELLO_BAD;
    if (in.len < HELLO_HEAD) return HELLO_MORE;
    if ((uint8_t)in.at[4] != HELLO_PROTOCOL) return HELLO_OTHER_PROTOCOL;
    uint8_t type = (uint8_t)in.at[5];
    uint16_t body_bytes;
    memcpy(&body_bytes, in.at + 6, sizeof body_bytes);
    if (type < HELLO_HELLO || type > HELLO_DENIED || body_bytes > HELLO_MESSAGE_MAX - HELLO_HEAD) return HELLO_BAD;
    if (in.len < (size_t)HELLO_HEAD + body_bytes) return HELLO_MORE;
    *out = (struct hello_message){.type = (enum hello_type)type,
                                  .whole = slice_make(in.at, (size_t)HELLO_HEAD + body_bytes),
                                  .body = slice_make(in.at + HELLO_HEAD, body_bytes)};
    return HELLO_OK;
}

void hello_head(struct buf *b, enum hello_type type, size_t body_bytes)
{
    must(body_bytes <= HELLO_MESSAGE_MAX - HELLO_HEAD);
    buf_put(b, magic, sizeof magic);
    buf_byte(b, HELLO_PROTOCOL);
    buf_byte(b, (char)type);
    buf_u16(b, (uint16_t)body_bytes);
}

void hello_write(struct buf *b, const struct hello *h)
{
    hello_head(b, HELLO_HELLO, HELLO_BODY);
    self_write(b, &h->self);
    buf_u64(b, h->target);
    buf_u64(b, h->run);
    buf_u64(b, h->dial);
    buf_put(b, h->nonce, sizeof h->nonce);
}

bool hello_read(struct slice body, struct hello *out)
{
    struct reader r = {body.at};
    if (body.len != HELLO_BODY) return false;
    self_read(&r, &out->self);
    take(&r, &out->target, sizeof out->target);
    take(&r, &out->run, sizeof out->run);
    take(&r, &out->dial, sizeof out->dial);
    take(&r, out->nonce, sizeof out->nonce);
    return out->self.node != 0;
}

void answer_write(struct buf *b, const struct answer *a)
{
    hello_head(b, HELLO_ANSWER, ANSWER_BODY);
    self_write(b, &a->self);
    buf_u64(b, a->run);
    buf_put(b, a->nonce, sizeof a->nonce);
}

bool answer_read(struct slice body, struct answer *out)
{
    struct reader r = {body.at};
    if (body.len != ANSWER_BODY) return false;
    self_read(&r, &out->self);
    take(&r, &out->run, sizeof out->run);
    take(&r, out->nonce, sizeof out->nonce);
    return out->self.node != 0;
}

void verdict_write(struct buf *b, const struct verdict *v)
{
    must(v->text.len <= HELLO_TEXT_MAX);
    hello_head(b, HELLO_VERDICT, 1 + v->text.len + SEAL_MAC);
    buf_byte(b, (char)v->code);
    buf_slice(b, v->text);
    buf_put(b, v->mac, SEAL_MAC);
}

bool verdict_read(struct slice body, struct verdict *out)
{
    if (body.len < 1 + SEAL_MAC || (uint8_t)body.at[0] > VERDICT_WRONG) return false;
    out->code = (enum hello_verdict)body.at[0];
    out->text = slice_make(body.at + 1, body.len - 1 - SEAL_MAC);
    memcpy(out->mac, body.at + body.len - SEAL_MAC, SEAL_MAC);
    return out->text.len <= HELLO_TEXT_MAX;
}

void hello_proof(struct slice secret, struct slice hello, struct slice answer, uint8_t mac[SEAL_MAC])
{
    struct slice parts[] = {slice_of("queen-net-1 dial"), hello, answer};
    seal_mac(secret, parts, 3, mac);
}

void hello_verdict_mac(struct slice secret, struct slice hello, struct slice answer, const struct verdict *v,
                       uint8_t mac[SEAL_MAC])
{
    char code = (char)v->code;
    struct slice parts[] = {slice_of("queen-net-1 accept"), hello, answer, slice_make(&code, 1), v->text};
    seal_mac(secret, parts, 5, mac);
}
