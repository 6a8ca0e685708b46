#include "http/render.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/isotime.h"
#include "engine/ids.h"

/* ---- texts -------------------------------------------------------------------------------------------------------- */

static inline bool needs_escape(unsigned char c)
{
    return c < 0x20 || c == '"' || c == '\\';
}

/* Bits 7 of the bytes of `v` that need an escape; exact up to the first such byte. */
static inline uint64_t escapes_of(uint64_t v)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7;
    uint64_t quote = v ^ (ones * '"'), backslash = v ^ (ones * '\\');
    return (((v - ones * 0x20) & ~v) | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash)) & highs;
}

static inline uint64_t load64(const char *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* How many bytes from the start need no escape. The last step of the wide loops overlaps bytes already seen to be plain. */
static size_t plain_prefix(const char *at, size_t len)
{
    size_t i = 0;
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    while (len >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(at + i));
        __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash));
        hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_min_epu8(v, control), v));
        unsigned hits = (unsigned)_mm_movemask_epi8(hit);
        if (hits != 0) return i + (unsigned)__builtin_ctz(hits);
        if (i + 16 == len) return len;
        i = i + 32 <= len ? i + 16 : len - 16;
    }
#endif
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (len >= 8) {
        uint64_t hits = escapes_of(load64(at + i));
        if (hits != 0) return i + (unsigned)__builtin_ctzll(hits) / 8;
        if (i + 8 == len) return len;
        i = i + 16 <= len ? i + 8 : len - 8;
    }
#endif
    while (i < len && !needs_escape((unsigned char)at[i])) i++;
    return i;
}

static char *escape_put(char *p, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    *p++ = '\\';
    switch (c) {
    case '"':
    case '\\':
        *p++ = (char)c;
        break;
    case '\b':
        *p++ = 'b';
        break;
    case '\f':
        *p++ = 'f';
        break;
    case '\n':
        *p++ = 'n';
        break;
    case '\r':
        *p++ = 'r';
        break;
    case '\t':
        *p++ = 't';
        break;
    default:
        memcpy(p, "u00", 3);
        p[3] = hex[c >> 4];
        p[4] = hex[c & 15];
        p += 5;
    }
    return p;
}

/* At most 6 bytes a byte. Returns the new end. */
static char *text_put(char *p, struct slice text)
{
    while (text.len > 0) {
        size_t n = plain_prefix(text.at, text.len);
        memcpy(p, text.at, n);
        p += n;
        if (n == text.len) break;
        p = escape_put(p, (unsigned char)text.at[n]);
        text = slice_make(text.at + n + 1, text.len - n - 1);
    }
    return p;
}

void render_text_inside(struct buf *out, struct slice text)
{
    char *p = buf_reserve(out, text.len * 6);
    out->len += (size_t)(text_put(p, text) - p);
}

void render_text(struct buf *out, struct slice text)
{
    buf_byte(out, '"');
    render_text_inside(out, text);
    buf_byte(out, '"');
}

void render_uuid(struct buf *out, struct uuid id)
{
    char *p = buf_reserve(out, UUID_TEXT + 2);
    p[0] = '"';
    uuid_text(id, p + 1);
    p[UUID_TEXT + 1] = '"';
    out->len += UUID_TEXT + 2;
}

/* ---- times -------------------------------------------------------------------------------------------------------- */

static char *digits_put(char *p, uint32_t value, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        p[i] = (char)('0' + value % 10);
        value /= 10;
    }
    return p + count;
}

static char *time_ms_put(char *p, int64_t wall_us)
{
    uint32_t micros;
    p = isotime_seconds_put(p, wall_us, &micros);
    *p++ = '.';
    p = digits_put(p, micros / 1000, 3);
    *p++ = 'Z';
    return p;
}

void render_time_ms(struct buf *out, int64_t wall_us)
{
    char *p = buf_reserve(out, TIME_MS_BYTES + 2);
    p[0] = '"';
    char *end = time_ms_put(p + 1, wall_us);
    *end++ = '"';
    out->len += (size_t)(end - p);
}

void render_time_us(struct buf *out, int64_t wall_us)
{
    uint32_t micros;
    char *p = buf_reserve(out, TIME_US_BYTES + 2);
    p[0] = '"';
    char *end = isotime_seconds_put(p + 1, wall_us, &micros);
    *end++ = '.';
    end = digits_put(end, micros, 6);
    *end++ = 'Z';
    *end++ = '"';
    out->len += (size_t)(end - p);
}

void render_time_kv(struct buf *out, int64_t wall_us)
{
    char *p = buf_reserve(out, 42);
    p[0] = '"';
    size_t len = isotime_kv(wall_us, p + 1);
    p[len + 1] = '"';
    out->len += len + 2;
}

void render_time_us_or_null(struct buf *out, int64_t wall_us)
{
    if (wall_us == 0)
        buf_text(out, "null");
    else
        render_time_us(out, wall_us);
}

/* ---- numbers and pieces of the hot answers -------------------------------------------------------------------------- */

static char *decimal_put(char *p, uint64_t value)
{
    char digits[20];
    int n = 0;
    do {
        digits[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    while (n > 0) *p++ = digits[--n];
    return p;
}

#define PUT(p, literal) (memcpy((p), (literal), sizeof(literal) - 1), (p) + sizeof(literal) - 1)

static inline char *slice_put(char *p, struct slice s)
{
    if (s.len > 0) memcpy(p, s.at, s.len);
    return p + s.len;
}

void render_push_line(struct buf *out, const struct push_line *line)
{
    size_t transaction_max = line->has_transaction ? line->transaction.len * 6 : UUID_TEXT;
    char *begin = buf_reserve(out, 256 + transaction_max + line->queue.len), *p = begin;
    p = PUT(p, "{\"index\":");
    p = decimal_put(p, line->index);
    p = PUT(p, ",\"message_id\":\"");
    char *id = p;
    uuid_text(line->outcome->id, p);
    p = PUT(p + UUID_TEXT, "\",\"transaction_id\":\"");
    p = line->has_transaction ? text_put(p, line->transaction) : slice_put(p, slice_make(id, UUID_TEXT));
    p = PUT(p, "\",\"queueName\":");
    p = slice_put(p, line->queue);
    p = line->outcome->status == PUSH_DUPLICATE ? PUT(p, ",\"status\":\"duplicate\",\"offset\":")
                                                : PUT(p, ",\"status\":\"queued\",\"offset\":");
    p = decimal_put(p, line->outcome->offset);
    *p++ = '}';
    out->len += (size_t)(p - begin);
}

void render_step_push(struct buf *out, const struct push_line *line)
{
    size_t transaction_max = line->has_transaction ? line->transaction.len * 6 : UUID_TEXT;
    char *begin = buf_reserve(out, 256 + transaction_max + line->queue.len), *p = begin;
    char id[UUID_TEXT];
    uuid_text(line->outcome->id, id);
    p = PUT(p, "{\"index\":");
    p = decimal_put(p, line->index);
    p = PUT(p, ",\"type\":\"push\",\"success\":true,\"transactionId\":\"");
    p = line->has_transaction ? text_put(p, line->transaction) : slice_put(p, slice_make(id, UUID_TEXT));
    p = PUT(p, "\",\"messageId\":\"");
    p = slice_put(p, slice_make(id, UUID_TEXT));
    p = PUT(p, "\",\"queueName\":");
    p = slice_put(p, line->queue);
    if (line->outcome->status == PUSH_DUPLICATE) p = PUT(p, ",\"duplicate\":true");
    *p++ = '}';
    out->len += (size_t)(p - begin);
}

void render_step_ack(struct buf *out, uint32_t index, struct slice transaction, bool dead_letter)
{
    char *begin = buf_reserve(out, 128 + transaction.len * 6), *p = begin;
    p = PUT(p, "{\"index\":");
    p = decimal_put(p, index);
    p = PUT(p, ",\"type\":\"ack\",\"success\":true,\"transactionId\":\"");
    p = text_put(p, transaction);
    p = dead_letter ? PUT(p, "\",\"error\":null,\"dlq\":true}") : PUT(p, "\",\"error\":null,\"dlq\":false}");
    out->len += (size_t)(p - begin);
}

/* ---- pop ---------------------------------------------------------------------------------------------------------- */

struct uuid render_message_id(const struct push_item *item, uint32_t tag, uint64_t offset, int64_t created_us)
{
    return item->flags & ITEM_ID ? item->id : message_id_tagged(tag, offset, created_us);
}

static void claim_tail_render(struct buf *out, const struct pop_answer *a, const struct claim *c)
{
    buf_text(out, "\",\"partitionId\":\"");
    buf_decimal(out, c->partition);
    buf_text(out, "\",\"partition\":");
    render_text(out, c->partition_name);
    buf_text(out, ",\"leaseId\":");
    if (a->auto_ack)
        buf_text(out, "\"\"");
    else
        render_uuid(out, a->lease);
    buf_text(out, ",\"consumerGroup\":");
    render_text(out, a->group);
    buf_text(out, ",\"deliveryAttempt\":");
    buf_decimal(out, c->attempt);
    buf_text(out, ",\"offset\":");
}

static void message_render(struct buf *out, const struct push_item *item, struct uuid id, struct slice created,
                           struct slice tail)
{
    size_t transaction_max = item->flags & ITEM_TRANSACTION ? item->transaction.len * 6 : UUID_TEXT;
    char *begin = buf_reserve(out, 320 + transaction_max + item->payload.len + item->subject.len * 6 + tail.len), *p = begin;
    p = PUT(p, "{\"id\":\"");
    char *id_text = p;
    uuid_text(id, p);
    p = PUT(p + UUID_TEXT, "\",\"transactionId\":\"");
    p = item->flags & ITEM_TRANSACTION ? text_put(p, item->transaction) : slice_put(p, slice_make(id_text, UUID_TEXT));
    if (item->flags & ITEM_TRACE) {
        p = PUT(p, "\",\"traceId\":\"");
        uuid_text(item->trace, p);
        p = PUT(p + UUID_TEXT, "\",\"data\":");
    } else {
        p = PUT(p, "\",\"traceId\":null,\"data\":");
    }
    p = item->payload.len == 0 ? PUT(p, "null") : slice_put(p, item->payload);
    if (item->flags & ITEM_SUBJECT) {
        p = PUT(p, ",\"producerSub\":\"");
        p = text_put(p, item->subject);
        p = PUT(p, "\",\"createdAt\":\"");
    } else {
        p = PUT(p, ",\"producerSub\":null,\"createdAt\":\"");
    }
    p = slice_put(p, created);
    p = slice_put(p, tail);
    out->len += (size_t)(p - begin);
}

void render_record(struct buf *out, const struct push_item *item, struct uuid id, uint64_t offset, struct slice ts)
{
    size_t transaction_max = item->flags & ITEM_TRANSACTION ? item->transaction.len * 6 : UUID_TEXT;
    char *begin = buf_reserve(out, 160 + transaction_max + item->payload.len + ts.len), *p = begin;
    p = PUT(p, "{\"offset\":");
    p = decimal_put(p, offset);
    p = PUT(p, ",\"transactionId\":\"");
    if (item->flags & ITEM_TRANSACTION) {
        p = text_put(p, item->transaction);
    } else {
        uuid_text(id, p);
        p += UUID_TEXT;
    }
    p = PUT(p, "\",\"payload\":");
    p = item->payload.len == 0 ? PUT(p, "null") : slice_put(p, item->payload);
    p = PUT(p, ",\"ts\":");
    p = slice_put(p, ts);
    *p++ = '}';
    out->len += (size_t)(p - begin);
}

static void piece_render(struct buf *out, const struct pop_answer *a, const struct claim *c, const struct delivery_piece *piece,
                         const struct push_group *group, struct slice tail, bool *first)
{
    char created[TIME_MS_BYTES];
    char *end = time_ms_put(created, piece->created_us);
    must((size_t)(end - created) == sizeof created);
    must(piece->item0 + piece->count <= group->item_count);
    uint32_t tag = message_tag(a->id_seed, c->partition);
    for (uint32_t i = 0; i < piece->count; i++) {
        struct push_item item;
        uint64_t offset = piece->first_offset + i;
        push_group_item(group, piece->item0 + i, &item);
        if (!*first) buf_byte(out, ',');
        *first = false;
        message_render(out, &item, render_message_id(&item, tag, offset, piece->created_us),
                       slice_make(created, sizeof created), tail);
        buf_decimal(out, offset);
        buf_byte(out, '}');
    }
}

static void pop_head_render(struct buf *out, const struct pop_answer *a)
{
    const struct claim *c = a->result->pop.count == 0 ? NULL : &a->result->pop.claims[0];
    buf_text(out, "{\"success\":true,\"queue\":");
    render_text(out, a->queue);
    buf_text(out, ",\"partition\":");
    render_text(out, c == NULL ? slice_make("", 0) : c->partition_name);
    buf_text(out, ",\"partitionId\":\"");
    if (c != NULL) buf_decimal(out, c->partition);
    buf_text(out, "\",\"leaseId\":");
    if (c == NULL || a->auto_ack)
        buf_text(out, "\"\"");
    else
        render_uuid(out, a->lease);
    buf_text(out, ",\"consumerGroup\":");
    render_text(out, a->group);
    buf_text(out, ",\"messages\":[");
}

void render_pop(struct buf *out, const struct pop_answer *a)
{
    struct buf tail = {0};
    bool first = true;
    size_t piece = 0;
    pop_head_render(out, a);
    for (uint32_t i = 0; i < a->result->pop.count; i++) {
        const struct claim *c = &a->result->pop.claims[i];
        buf_clear(&tail);
        claim_tail_render(&tail, a, c);
        for (uint32_t k = 0; k < c->piece_count; k++, piece++) {
            piece_render(out, a, c, &c->pieces[k], &a->pieces[piece].group, buf_view(&tail), &first);
        }
    }
    buf_free(&tail);
    buf_text(out, "],\"partitionsClaimed\":");
    buf_decimal(out, a->result->pop.count);
    if (a->result->pop.conflates) buf_text(out, ",\"conflation\":true");
    if (a->result->pop.conflation_conflict) buf_text(out, ",\"conflationConflict\":true");
    if (a->autopilot) buf_printf(out, ",\"autopilot\":{\"partitions\":%u,\"batch\":%u}", a->chosen_partitions, a->chosen_batch);
    buf_byte(out, '}');
}
