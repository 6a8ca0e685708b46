#include "engine/command.h"

#include "base/hash.h"
#include "engine/command_io.h"

/* ---- entries ------------------------------------------------------------------------------------------------------ */

void entry_head_write(char out[ENTRY_HEAD_BYTES], const struct entry_head *h)
{
    uint32_t magic = ENTRY_MAGIC;
    memset(out, 0, ENTRY_HEAD_BYTES);
    memcpy(out, &magic, 4);
    memcpy(out + 4, &h->count, 4);
    memcpy(out + 8, &h->log_us, 8);
    memcpy(out + 16, &h->wall_us, 8);
    memcpy(out + 24, &h->clock_id, 8);
    memcpy(out + 32, &h->clock_us, 8);
    memcpy(out + 40, &h->origins_at, 4);
}

bool entry_head_read(struct slice entry, struct entry_head *out)
{
    uint32_t magic;
    if (entry.len < ENTRY_HEAD_BYTES) return false;
    memcpy(&magic, entry.at, 4);
    if (magic != ENTRY_MAGIC) return false;
    memcpy(&out->count, entry.at + 4, 4);
    memcpy(&out->log_us, entry.at + 8, 8);
    memcpy(&out->wall_us, entry.at + 16, 8);
    memcpy(&out->clock_id, entry.at + 24, 8);
    memcpy(&out->clock_us, entry.at + 32, 8);
    memcpy(&out->origins_at, entry.at + 40, 4);
    return true;
}

bool command_next(struct slice *rest, struct command *out)
{
    uint32_t bytes;
    if (rest->len < COMMAND_HEAD_BYTES) return false;
    memcpy(&bytes, rest->at, 4);
    if (bytes < COMMAND_HEAD_BYTES || bytes % 8 != 0 || bytes > rest->len) return false;
    out->kind = (uint8_t)rest->at[4];
    out->flags = (uint8_t)rest->at[5];
    out->all = slice_make(rest->at, bytes);
    out->body = slice_make(rest->at + COMMAND_HEAD_BYTES, bytes - COMMAND_HEAD_BYTES);
    rest->at += bytes;
    rest->len -= bytes;
    return true;
}

/* ---- push --------------------------------------------------------------------------------------------------------- */

enum { GROUP_HEAD_BYTES = 16, ITEM_HEAD_BYTES = 4 };

bool push_decode(const struct command *c, struct push_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    out->group_count = read_u32(&r);
    read_u32(&r);
    out->groups = slice_make(r.at, (size_t)(r.end - r.at));
    return !r.bad;
}

uint32_t push_group_bytes(struct slice head)
{
    uint32_t bytes;
    must(head.len >= 4);
    memcpy(&bytes, head.at, 4);
    return bytes;
}

static uint32_t end_of(const struct push_group *g, uint32_t i)
{
    uint32_t end;
    memcpy(&end, g->ends + (size_t)i * 4, 4);
    return end;
}

/* Everything an item's head says fits in the item? */
static bool item_fits(const char *at, uint32_t len)
{
    uint16_t n;
    if (len < ITEM_HEAD_BYTES) return false;
    uint8_t flags = (uint8_t)at[0];
    memcpy(&n, at + 2, 2);
    uint32_t need = ITEM_HEAD_BYTES + (flags & ITEM_TRACE ? 16U : 0U) + (flags & ITEM_ID ? 16U : 0U);
    if (flags & ITEM_SUBJECT) {
        uint16_t subject;
        if (len < need + 2) return false;
        memcpy(&subject, at + need, 2);
        need += 2U + subject;
    }
    return len >= need + n;
}

bool push_group_of(struct slice block, struct push_group *out)
{
    if (block.len < GROUP_HEAD_BYTES) return false;
    uint32_t bytes = push_group_bytes(block);
    if (bytes < GROUP_HEAD_BYTES || bytes > block.len || bytes % 8 != 0) return false;
    struct reader r = reader_of(slice_make(block.at + 8, bytes - 8));
    uint16_t queue_len = read_u16(&r), partition_len = read_u16(&r);
    out->block = slice_make(block.at, bytes);
    out->item_count = read_u32(&r);
    out->queue = read_bytes(&r, queue_len);
    out->partition = read_bytes(&r, partition_len);
    read_bytes(&r, (4 - ((size_t)queue_len + partition_len) % 4) % 4);
    struct slice ends = read_bytes(&r, (size_t)out->item_count * 4);
    if (r.bad || out->item_count == 0) return false;
    out->ends = ends.at;
    out->items = r.at;
    return true;
}

bool push_group_next(struct slice *rest, struct push_group *out)
{
    if (!push_group_of(*rest, out)) return false;
    uint32_t room = (uint32_t)(out->block.at + out->block.len - out->items), start = 0;
    for (uint32_t i = 0; i < out->item_count; i++) {
        uint32_t end = end_of(out, i);
        if (end < start || end > room || !item_fits(out->items + start, end - start)) return false;
        start = end;
    }
    rest->at += out->block.len;
    rest->len -= out->block.len;
    return true;
}

static uint32_t group_crc(struct slice block)
{
    return crc32c(0, block.at + 8, block.len - 8);
}

bool push_group_crc_ok(struct slice block)
{
    struct push_group g;
    struct slice rest = block;
    uint32_t stored;
    if (!push_group_next(&rest, &g)) return false;
    memcpy(&stored, block.at + 4, 4);
    return stored == group_crc(g.block);
}

void push_group_item(const struct push_group *g, uint32_t i, struct push_item *out)
{
    uint32_t start = i == 0 ? 0 : end_of(g, i - 1), end = end_of(g, i);
    const char *at = g->items + start;
    uint16_t transaction_len, subject_len = 0;
    out->flags = (uint8_t)at[0];
    memcpy(&transaction_len, at + 2, 2);
    at += ITEM_HEAD_BYTES;
    if (out->flags & ITEM_TRACE) {
        memcpy(out->trace.bytes, at, 16);
        at += 16;
    }
    if (out->flags & ITEM_ID) {
        memcpy(out->id.bytes, at, 16);
        at += 16;
    }
    if (out->flags & ITEM_SUBJECT) {
        memcpy(&subject_len, at, 2);
        at += 2;
    }
    out->transaction = slice_make(at, transaction_len);
    out->subject = slice_make(at + transaction_len, subject_len);
    at += (size_t)transaction_len + subject_len;
    out->payload = slice_make(at, (size_t)(g->items + end - at));
}

void push_begin(struct push_writer *w, struct buf *out, struct uuid tenant)
{
    *w = (struct push_writer){.out = out};
    w->command_at = command_begin(out, COMMAND_PUSH, 0);
    put_uuid(out, tenant);
    buf_u32(out, 0);
    buf_u32(out, 0);
}

void push_group_begin(struct push_writer *w, struct slice queue, struct slice partition, uint32_t item_count)
{
    must(queue.len <= NAMES_BYTES_MAX && partition.len <= NAMES_BYTES_MAX && item_count > 0);
    w->group_at = w->out->len;
    w->group_count++;
    w->item_count = 0;
    w->item_total = item_count;
    buf_u64(w->out, 0);
    buf_u16(w->out, (uint16_t)queue.len);
    buf_u16(w->out, (uint16_t)partition.len);
    buf_u32(w->out, item_count);
    buf_slice(w->out, queue);
    buf_slice(w->out, partition);
    pad_to(w->out, w->group_at, 4);
    w->ends_at = w->out->len;
    buf_reserve(w->out, (size_t)item_count * 4);
    w->out->len += (size_t)item_count * 4;
    w->items_at = w->out->len;
}

void push_item_add(struct push_writer *w, const struct push_item *item)
{
    struct buf *out = w->out;
    must(w->item_count < w->item_total && item->transaction.len <= TRANSACTION_ID_BYTES_MAX && item->subject.len <= UINT16_MAX);
    bool named = item->flags & ITEM_TRANSACTION;
    buf_reserve(out, 48 + item->transaction.len + item->subject.len + item->payload.len);
    buf_byte(out, (char)item->flags);
    buf_byte(out, 0);
    buf_u16(out, named ? (uint16_t)item->transaction.len : 0);
    if (item->flags & ITEM_TRACE) put_uuid(out, item->trace);
    if (item->flags & ITEM_ID) put_uuid(out, item->id);
    if (item->flags & ITEM_SUBJECT) buf_u16(out, (uint16_t)item->subject.len);
    if (named) buf_slice(out, item->transaction);
    if (item->flags & ITEM_SUBJECT) buf_slice(out, item->subject);
    buf_slice(out, item->payload);
    put_u32_at(out, w->ends_at + (size_t)w->item_count * 4, (uint32_t)(out->len - w->items_at));
    w->item_count++;
}

void push_group_end(struct push_writer *w)
{
    must(w->item_count == w->item_total);
    pad_to(w->out, w->group_at, 8);
    struct slice block = slice_make(w->out->at + w->group_at, w->out->len - w->group_at);
    put_u32_at(w->out, w->group_at, (uint32_t)block.len);
    put_u32_at(w->out, w->group_at + 4, group_crc(block));
}

void push_end(struct push_writer *w)
{
    put_u32_at(w->out, w->command_at + COMMAND_HEAD_BYTES + 16, w->group_count);
    command_finish(w->out, w->command_at);
}

/* ---- pop ---------------------------------------------------------------------------------------------------------- */

void pop_encode(struct buf *out, const struct pop_command *p)
{
    size_t at = command_begin(out, COMMAND_POP, 0);
    put_uuid(out, p->tenant);
    put_uuid(out, p->lease_id);
    buf_byte(out, (char)p->scope);
    buf_byte(out, (char)p->mode);
    buf_byte(out, (char)p->conflation);
    buf_byte(out, (char)p->auto_ack);
    buf_u32(out, p->batch);
    buf_u32(out, p->partitions);
    buf_u32(out, p->bytes_max);
    put_i64(out, p->lease_us);
    put_i64(out, p->from_us);
    put_name(out, p->group);
    put_name(out, p->queue);
    put_name(out, p->partition);
    put_name(out, p->name_space);
    put_name(out, p->task);
    command_finish(out, at);
}

bool pop_decode(const struct command *c, struct pop_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    out->lease_id = read_uuid(&r);
    out->scope = read_u8(&r);
    out->mode = read_u8(&r);
    out->conflation = read_u8(&r);
    out->auto_ack = read_u8(&r);
    out->batch = read_u32(&r);
    out->partitions = read_u32(&r);
    out->bytes_max = read_u32(&r);
    out->lease_us = read_i64(&r);
    out->from_us = read_i64(&r);
    out->group = read_name(&r);
    out->queue = read_name(&r);
    out->partition = read_name(&r);
    out->name_space = read_name(&r);
    out->task = read_name(&r);
    return !r.bad && out->scope <= POP_DISCOVERY && out->mode <= SUBSCRIBE_FROM && out->conflation <= CONFLATION_ON &&
           out->batch >= 1 && out->batch <= POP_BATCH_MAX && out->partitions >= 1 && out->partitions <= POP_PARTITIONS_MAX &&
           out->lease_us >= 0 && out->bytes_max <= POP_BYTES_MAX;
}

/* ---- ack ---------------------------------------------------------------------------------------------------------- */

void ack_begin(struct buf *out, struct uuid tenant, struct slice group, uint32_t item_count)
{
    command_begin(out, COMMAND_ACK, 0);
    put_uuid(out, tenant);
    buf_u32(out, item_count);
    put_name(out, group);
}

void ack_item_add(struct buf *out, const struct ack_item *item)
{
    must(item->error.len <= ERROR_TEXT_BYTES_MAX);
    buf_u64(out, item->partition);
    buf_byte(out, (char)item->status);
    buf_byte(out, (char)item->fenced);
    buf_byte(out, (char)item->has_error);
    if (item->fenced) put_uuid(out, item->lease);
    put_name(out, item->transaction);
    if (item->has_error) put_name(out, item->error);
}

void ack_end(struct buf *out, size_t command_at)
{
    command_finish(out, command_at);
}

enum { ACK_HEAD_BYTES = 8 + 3 };

/* Each item is looked at several times on its way, so the usual one is taken apart with few checks. */
bool ack_item_next(struct slice *rest, struct ack_item *out)
{
    if (rest->len < ACK_HEAD_BYTES) return false;
    memcpy(&out->partition, rest->at, 8);
    out->status = (uint8_t)rest->at[8];
    out->fenced = (uint8_t)rest->at[9];
    out->has_error = (uint8_t)rest->at[10];
    out->lease = (struct uuid){0};
    out->error = slice_of("");
    struct reader r = reader_of(slice_make(rest->at + ACK_HEAD_BYTES, rest->len - ACK_HEAD_BYTES));
    if (out->fenced) out->lease = read_uuid(&r);
    out->transaction = read_name(&r);
    if (out->has_error) out->error = read_name(&r);
    if (r.bad || out->status > ACK_DLQ) return false;
    rest->len = (size_t)(r.end - r.at);
    rest->at = r.at;
    return true;
}

bool ack_open(const struct command *c, struct ack_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    out->item_count = read_u32(&r);
    out->group = read_name(&r);
    out->items = slice_make(r.at, (size_t)(r.end - r.at));
    return !r.bad;
}

bool ack_decode(const struct command *c, struct ack_command *out)
{
    if (!ack_open(c, out)) return false;
    struct slice rest = out->items;
    struct ack_item item;
    for (uint32_t i = 0; i < out->item_count; i++) {
        if (!ack_item_next(&rest, &item)) return false;
    }
    return true;
}

/* ---- the small ones ----------------------------------------------------------------------------------------------- */

void extend_encode(struct buf *out, const struct extend_command *e)
{
    size_t at = command_begin(out, COMMAND_EXTEND, 0);
    put_uuid(out, e->tenant);
    put_uuid(out, e->lease);
    put_i64(out, e->seconds);
    command_finish(out, at);
}

bool extend_decode(const struct command *c, struct extend_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    out->lease = read_uuid(&r);
    out->seconds = read_i64(&r);
    return !r.bad && out->seconds >= 1 && out->seconds <= LEASE_SECONDS_MAX;
}

void configure_encode(struct buf *out, const struct configure_command *c)
{
    size_t at = command_begin(out, COMMAND_CONFIGURE, c->replace);
    put_uuid(out, c->tenant);
    buf_u32(out, c->given);
    buf_u32(out, c->reset);
    buf_put(out, c->options.numbers, sizeof c->options.numbers);
    put_name(out, c->queue);
    put_name(out, c->options.sink_hold);
    put_name(out, c->options.name_space);
    put_name(out, c->options.task);
    command_finish(out, at);
}

bool configure_decode(const struct command *c, struct configure_command *out)
{
    struct reader r = reader_of(c->body);
    out->replace = c->flags;
    out->tenant = read_uuid(&r);
    out->given = read_u32(&r);
    out->reset = read_u32(&r);
    read_into(&r, out->options.numbers, sizeof out->options.numbers);
    out->queue = read_name(&r);
    out->options.sink_hold = read_name(&r);
    out->options.name_space = read_name(&r);
    out->options.task = read_name(&r);
    return !r.bad && out->replace <= 1;
}

void queue_delete_encode(struct buf *out, const struct queue_delete_command *d)
{
    size_t at = command_begin(out, COMMAND_QUEUE_DELETE, 0);
    put_uuid(out, d->tenant);
    put_name(out, d->queue);
    command_finish(out, at);
}

bool queue_delete_decode(const struct command *c, struct queue_delete_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    out->queue = read_name(&r);
    return !r.bad;
}

void claim_return_encode(struct buf *out, struct uuid lease)
{
    size_t at = command_begin(out, COMMAND_CLAIM_RETURN, 0);
    put_uuid(out, lease);
    command_finish(out, at);
}

bool claim_return_decode(const struct command *c, struct uuid *lease)
{
    struct reader r = reader_of(c->body);
    *lease = read_uuid(&r);
    return !r.bad;
}

void init_encode(struct buf *out, uint64_t id_seed)
{
    size_t at = command_begin(out, COMMAND_INIT, 0);
    buf_u64(out, id_seed);
    command_finish(out, at);
}

bool init_decode(const struct command *c, uint64_t *id_seed)
{
    struct reader r = reader_of(c->body);
    read_into(&r, id_seed, sizeof *id_seed);
    return !r.bad && *id_seed != 0;
}
