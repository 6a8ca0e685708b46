/* Wire form of what operators do: SEEK, GROUP_DELETE, SUBSCRIPTION, LETTERS_DELETE, LETTER_MOVE; and of TRIM. */
#include "engine/command.h"
#include "engine/command_io.h"

static void put_piece(struct buf *out, const struct piece *p)
{
    must(p->most <= PIECE_MOST_MAX);
    buf_u32(out, p->most == 0 ? PIECE_MOST : p->most);
    buf_u32(out, p->queue);
    buf_u32(out, p->group);
    buf_u64(out, p->after);
    buf_u64(out, p->until);
    put_i64(out, p->moment_us);
}

static void read_piece(struct reader *r, struct piece *p)
{
    p->most = read_u32(r);
    p->queue = read_u32(r);
    p->group = read_u32(r);
    p->after = read_u64(r);
    p->until = read_u64(r);
    p->moment_us = read_i64(r);
    r->bad |= p->most < 1 || p->most > PIECE_MOST_MAX;
}

/* All that go in pieces begin with the tenant and the piece. */
void command_piece_set(char *command, uint32_t most)
{
    enum { MOST_AT = COMMAND_HEAD_BYTES + sizeof(struct uuid) };
    must(most >= 1 && most <= PIECE_MOST_MAX);
    memcpy(command + MOST_AT, &most, sizeof most);
}

void seek_encode(struct buf *out, const struct seek_command *s)
{
    size_t at = command_begin(out, COMMAND_SEEK, 0);
    put_uuid(out, s->tenant);
    put_piece(out, &s->piece);
    put_i64(out, s->us);
    buf_byte(out, (char)s->to_end);
    buf_byte(out, (char)s->has_partition);
    put_name(out, s->group);
    put_name(out, s->queue);
    if (s->has_partition) put_name(out, s->partition);
    command_finish(out, at);
}

bool seek_decode(const struct command *c, struct seek_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    read_piece(&r, &out->piece);
    out->us = read_i64(&r);
    out->to_end = read_u8(&r);
    out->has_partition = read_u8(&r);
    out->group = read_name(&r);
    out->queue = read_name(&r);
    out->partition = out->has_partition ? read_name(&r) : slice_of("");
    return !r.bad;
}

void group_delete_encode(struct buf *out, const struct group_delete_command *d)
{
    size_t at = command_begin(out, COMMAND_GROUP_DELETE, 0);
    put_uuid(out, d->tenant);
    put_piece(out, &d->piece);
    buf_byte(out, (char)d->keep_registration);
    put_name(out, d->group);
    put_name(out, d->queue);
    command_finish(out, at);
}

bool group_delete_decode(const struct command *c, struct group_delete_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    read_piece(&r, &out->piece);
    out->keep_registration = read_u8(&r);
    out->group = read_name(&r);
    out->queue = read_name(&r);
    return !r.bad;
}

void subscription_encode(struct buf *out, const struct subscription_command *s)
{
    size_t at = command_begin(out, COMMAND_SUBSCRIPTION, 0);
    put_uuid(out, s->tenant);
    put_piece(out, &s->piece);
    put_i64(out, s->us);
    put_name(out, s->group);
    command_finish(out, at);
}

bool subscription_decode(const struct command *c, struct subscription_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    read_piece(&r, &out->piece);
    out->us = read_i64(&r);
    out->group = read_name(&r);
    return !r.bad;
}

void letters_delete_encode(struct buf *out, const struct letters_delete_command *d)
{
    size_t at = command_begin(out, COMMAND_LETTERS_DELETE, 0);
    put_uuid(out, d->tenant);
    put_piece(out, &d->piece);
    put_name(out, d->queue);
    put_name(out, d->group);
    buf_u32(out, d->count);
    buf_put(out, d->sequences, (size_t)d->count * 8);
    command_finish(out, at);
}

bool letters_delete_decode(const struct command *c, struct letters_delete_command *out)
{
    struct reader r = reader_of(c->body);
    out->tenant = read_uuid(&r);
    read_piece(&r, &out->piece);
    out->queue = read_name(&r);
    out->group = read_name(&r);
    out->count = read_u32(&r);
    out->sequences = read_bytes(&r, (size_t)out->count * 8).at;
    return !r.bad;
}

size_t letter_move_begin(struct buf *out, struct uuid tenant, struct uuid letter)
{
    size_t at = command_begin(out, COMMAND_LETTER_MOVE, 0);
    put_uuid(out, tenant);
    put_uuid(out, letter);
    return at;
}

void letter_move_end(struct buf *out, size_t command_at)
{
    command_finish(out, command_at);
}

bool letter_move_decode(const struct command *c, struct letter_move_command *out)
{
    struct reader r = reader_of(c->body);
    struct push_command push;
    struct push_group g;
    out->tenant = read_uuid(&r);
    out->letter = read_uuid(&r);
    struct slice rest = slice_make(r.at, (size_t)(r.end - r.at));
    if (r.bad || !command_next(&rest, &out->push) || out->push.kind != COMMAND_PUSH || rest.len > 0) return false;
    if (!push_decode(&out->push, &push) || push.group_count != 1 || !uuid_equal(push.tenant, out->tenant)) return false;
    return push_group_next(&push.groups, &g) && g.item_count == 1;
}

enum { TRIM_ITEM_BYTES = 12 };

void trim_encode(struct buf *out, const struct trim_item *items, uint32_t count)
{
    size_t at = command_begin(out, COMMAND_TRIM, 0);
    buf_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        buf_u32(out, items[i].partition);
        buf_u64(out, items[i].start);
    }
    command_finish(out, at);
}

bool trim_decode(const struct command *c, struct trim_command *out)
{
    struct reader r = reader_of(c->body);
    out->count = read_u32(&r);
    out->items = read_bytes(&r, (size_t)out->count * TRIM_ITEM_BYTES);
    return !r.bad;
}

void trim_item_read(const struct trim_command *t, uint32_t i, struct trim_item *out)
{
    must(i < t->count);
    memcpy(&out->partition, t->items.at + (size_t)i * TRIM_ITEM_BYTES, 4);
    memcpy(&out->start, t->items.at + (size_t)i * TRIM_ITEM_BYTES + 4, 8);
}
