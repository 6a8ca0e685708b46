/* What the engine's tests share: an engine with a log (bytes in memory, `where` = position in it), a table of rows as its store,
 * short ways to make and apply commands, and results as text so that they can be compared whole.
 *
 * Entries are stamped by the kit's own clock (kit->log_us, kit->wall_us), which a test moves by hand. */
#ifndef QUEEN_TESTS_ENGINE_KIT_H
#define QUEEN_TESTS_ENGINE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "engine/engine.h"

struct kit_row {
    struct buf key, value;
};

/* Rows in key order. */
struct kit_store {
    struct kit_row *rows;
    size_t count, cap;
};

struct kit_log {
    struct buf bytes;
    struct {
        uint64_t index;
        size_t at, len;
    } entries[65536];
    size_t count;
};

struct kit {
    struct engine *e;
    struct kit_store store;
    struct kit_log *log;
    struct buf archive; /* what was moved there */
    int64_t log_us, wall_us;
    struct engine_budget budget; /* of an engine that is opened from here on */
    struct arena arena;
    struct engine_result result; /* of the last command applied by kit_do */
    uint32_t scans;              /* reads of rows since it was last set to 0 */
    struct buf text;             /* results as text, of every entry since kit_text_clear */
    uint32_t ready;              /* lanes reported ready since it was last set to 0 */
    uint32_t appended;           /* appends reported since it was last set to 0 */
    uint64_t refused;            /* bit i: command i of the last entry was a step that was refused */
};

static const struct uuid KIT_TENANT = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

/* ---- store ---- */

static size_t kit_row_place(const struct kit_store *s, struct slice key)
{
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (slice_compare(buf_view(&s->rows[middle].key), key) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void kit_row_drop(struct kit_store *s, size_t at)
{
    buf_free(&s->rows[at].key);
    buf_free(&s->rows[at].value);
    memmove(&s->rows[at], &s->rows[at + 1], (--s->count - at) * sizeof s->rows[0]);
}

static void kit_put(void *ctx, struct slice key, struct slice value)
{
    struct kit_store *s = ctx;
    size_t at = kit_row_place(s, key);
    if (at == s->count || !slice_equal(buf_view(&s->rows[at].key), key)) {
        if (s->count == s->cap) {
            s->cap = s->cap == 0 ? 256 : s->cap * 2;
            s->rows = realloc(s->rows, s->cap * sizeof s->rows[0]);
        }
        memmove(&s->rows[at + 1], &s->rows[at], (s->count++ - at) * sizeof s->rows[0]);
        s->rows[at] = (struct kit_row){0};
        buf_slice(&s->rows[at].key, key);
    }
    buf_clear(&s->rows[at].value);
    buf_slice(&s->rows[at].value, value);
}

static void kit_delete(void *ctx, struct slice key)
{
    struct kit_store *s = ctx;
    size_t at = kit_row_place(s, key);
    if (at < s->count && slice_equal(buf_view(&s->rows[at].key), key)) kit_row_drop(s, at);
}

static void kit_delete_range(void *ctx, struct slice from, struct slice to)
{
    struct kit_store *s = ctx;
    size_t at = kit_row_place(s, from);
    while (at < s->count && slice_compare(buf_view(&s->rows[at].key), to) < 0) kit_row_drop(s, at);
}

static void kit_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                     void *row_ctx)
{
    struct kit *k = ctx;
    k->scans++;
    for (size_t at = kit_row_place(&k->store, from); at < k->store.count; at++) {
        if (slice_compare(buf_view(&k->store.rows[at].key), to) >= 0) return;
        if (!row(row_ctx, buf_view(&k->store.rows[at].key), buf_view(&k->store.rows[at].value))) return;
    }
}

static void kit_block(void *ctx, uint64_t where, uint32_t bytes, char *out)
{
    struct kit *k = ctx;
    const struct buf *home = where & PLACE_ARCHIVE ? &k->archive : &k->log->bytes;
    where &= ~PLACE_ARCHIVE;
    assert_true(where + bytes <= home->len);
    memcpy(out, home->at + where, bytes);
}

/* ---- life ---- */

static void kit_engine_open(struct kit *k)
{
    struct engine_options o = {
        .cold = {.ctx = k, .scan = kit_scan, .block = kit_block}, .budget = k->budget, .segment_shift = 16};
    k->e = engine_new(&o);
}

/* The store says later that it has it: engine_cut_stored of what this gives. */
static __attribute__((unused)) uint64_t kit_cut_begin(struct kit *k)
{
    struct engine_rows rows = {.ctx = &k->store, .put = kit_put, .delete = kit_delete, .delete_range = kit_delete_range};
    engine_cut(k->e, &rows);
    return engine_revision(k->e);
}

static __attribute__((unused)) void kit_cut(struct kit *k)
{
    engine_cut_stored(k->e, kit_cut_begin(k));
}

/* Drops the engine and loads another from the rows, as a restart does. */
static __attribute__((unused)) void kit_reload(struct kit *k, uint64_t applied_index)
{
    engine_free(k->e);
    kit_engine_open(k);
    for (size_t i = 0; i < k->store.count; i++) {
        struct slice key = buf_view(&k->store.rows[i].key);
        if (slice_compare(key, slice_of(ENGINE_ROWS_LOADED_END)) >= 0) break;
        assert_null(engine_load_row(k->e, key, buf_view(&k->store.rows[i].value)));
    }
    assert_null(engine_loaded(k->e, applied_index));
}

/* ---- results as text ---- */

static void kit_text_push(struct buf *b, const struct push_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        char id[UUID_TEXT];
        uuid_text(r->items[i].id, id);
        buf_printf(b, " %u@%lu %.36s", r->items[i].status, r->items[i].offset, id);
    }
}

static void kit_text_pop(struct buf *b, const struct pop_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct claim *c = &r->claims[i];
        buf_printf(b, " [p%u a%u %lu..%lu n%u", c->partition, c->attempt, c->first_offset, c->last_offset, c->message_count);
        for (uint32_t j = 0; j < c->piece_count; j++) {
            buf_printf(b, " %lu+%u/%u@%ld", c->pieces[j].first_offset, c->pieces[j].count, c->pieces[j].item0,
                       c->pieces[j].created_us);
        }
        buf_text(b, "]");
    }
    buf_printf(b, " c%d x%d", r->conflates, r->conflation_conflict);
}

static void kit_text_ack(struct buf *b, const struct ack_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        buf_printf(b, " %u%d%d", r->items[i].verdict, r->items[i].lease_released, r->items[i].dead_lettered);
    }
}

static void kit_text_row(struct buf *b, const struct kv_row_view *r)
{
    buf_printf(b, " <%.*s=%.*s v%lu u%ld e%ld>", (int)r->key.len, r->key.at, (int)r->value.len, r->value.at, r->version,
               r->updated_us, r->expires_us);
}

static void kit_text_kv(struct buf *b, const struct kv_result *r)
{
    if (r->refused) buf_printf(b, " refused %u %u", r->failed, r->items[r->failed].reason);
    for (uint32_t i = 0; i < r->count && !r->refused; i++) {
        const struct kv_outcome *o = &r->items[i];
        buf_printf(b, " %d%d%u v%lu %.*s", o->applied, o->found, o->reason, o->version, (int)o->value.len, o->value.at);
        for (uint32_t j = 0; j < o->row_count; j++) kit_text_row(b, &o->rows[j]);
        buf_printf(b, " -%u%d", o->missing_count, o->truncated);
    }
}

static void kit_text_timers(struct buf *b, const struct timers_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct timer_outcome *o = &r->items[i];
        char id[UUID_TEXT];
        uuid_text(o->message, id);
        buf_printf(b, " %u@%ld %.36s %.*s", o->status, o->due_us, id, (int)o->transaction.len, o->transaction.at);
    }
}

static void kit_text_locks(struct buf *b, const struct locks_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct lock_outcome *o = &r->items[i];
        buf_printf(b, " %d%d s%u t%lu", o->done, o->already, o->slot, o->token);
        for (uint32_t j = 0; j < o->holder_count; j++) kit_text_row(b, &o->holders[j].row);
    }
}

static void kit_text_step(struct buf *b, const struct step_result *r)
{
    buf_printf(b, " %u %u", r->refusal, r->refusal == STEP_COMMITTED ? 0 : r->failed);
    if (r->refusal == STEP_DUPLICATE) buf_printf(b, " @%lu", r->offset);
    if (r->refusal != STEP_COMMITTED) return;
    kit_text_ack(b, &r->acks);
    kit_text_push(b, &r->push);
    kit_text_kv(b, &r->kv);
    kit_text_timers(b, &r->timers);
    kit_text_pop(b, &r->next);
}

static void kit_text_result(struct kit *k, const struct engine_result *r)
{
    struct buf *b = &k->text;
    buf_printf(b, "%u:", r->kind);
    if (r->kind == COMMAND_PUSH) {
        kit_text_push(b, &r->push);
    } else if (r->kind == COMMAND_POP) {
        kit_text_pop(b, &r->pop);
    } else if (r->kind == COMMAND_ACK) {
        kit_text_ack(b, &r->ack);
    } else if (r->kind == COMMAND_KV) {
        kit_text_kv(b, &r->kv);
    } else if (r->kind == COMMAND_TIMERS) {
        kit_text_timers(b, &r->timers);
    } else if (r->kind == COMMAND_LOCKS) {
        kit_text_locks(b, &r->locks);
    } else if (r->kind == COMMAND_STEP) {
        kit_text_step(b, &r->step);
    } else if (r->kind >= COMMAND_SEEK && r->kind <= COMMAND_LETTERS_DELETE) {
        buf_printf(b, " %u", r->changed.lanes);
        for (uint32_t i = 0; i < r->changed.queue_count; i++) {
            buf_printf(b, " %.*s", (int)r->changed.queues[i].len, r->changed.queues[i].at);
        }
    } else if (r->kind == COMMAND_LETTER_MOVE) {
        buf_printf(b, " %u @%lu", r->letter_move.fate, r->letter_move.push.offset);
    } else if (r->kind == COMMAND_EXTEND) {
        buf_printf(b, " %u %ld", r->extend.renewed, r->extend.expires_wall_us);
    } else if (r->kind == COMMAND_QUEUE_DELETE) {
        buf_printf(b, " %d", r->queue_delete.existed);
    }
    buf_text(b, "\n");
}

static struct arena *kit_sink_arena(void *ctx, uint32_t slot)
{
    (void)slot;
    return &((struct kit *)ctx)->arena;
}

static void kit_sink_result(void *ctx, uint32_t slot, const struct engine_result *r)
{
    struct kit *k = ctx;
    k->result = *r;
    if (r->kind == COMMAND_STEP && r->step.refusal != STEP_COMMITTED) k->refused |= UINT64_C(1) << slot;
    kit_text_result(k, r);
}

static void kit_sink_appended(void *ctx, uint32_t partition)
{
    assert_true(partition != 0);
    ((struct kit *)ctx)->appended++;
}

static void kit_sink_ready(void *ctx, uint32_t group, uint32_t partition, struct slice name)
{
    struct kit *k = ctx;
    assert_true(group != 0 && partition != 0 && name.at != NULL);
    k->ready++;
}

/* ---- entries ---- */

/* Appends an entry of `commands` to the log and applies it. */
static void kit_entry(struct kit *k, struct slice commands, uint32_t count)
{
    struct entry_head head = engine_last_head(k->e);
    struct entry_head next = {.count = count, .log_us = k->log_us, .wall_us = k->wall_us};
    if (next.wall_us <= head.wall_us + head.count) next.wall_us = head.wall_us + head.count + 1;
    k->wall_us = next.wall_us;
    struct kit_log *log = k->log;
    char bytes[ENTRY_HEAD_BYTES];
    entry_head_write(bytes, &next);
    size_t at = log->bytes.len;
    buf_put(&log->bytes, bytes, sizeof bytes);
    buf_slice(&log->bytes, commands);
    assert_true(log->count < sizeof log->entries / sizeof log->entries[0]);
    uint64_t index = engine_applied_index(k->e) + 1;
    log->entries[log->count].index = index;
    log->entries[log->count].at = at;
    log->entries[log->count++].len = log->bytes.len - at;
    struct engine_sink sink = {.ctx = k, .arena = kit_sink_arena, .result = kit_sink_result, .ready = kit_sink_ready};
    sink.appended = kit_sink_appended;
    k->refused = 0;
    assert_null(engine_apply(k->e, index, at, slice_make(log->bytes.at + at, log->bytes.len - at), &sink));
}

static void kit_do(struct kit *k, struct buf *command)
{
    arena_reset(&k->arena);
    kit_entry(k, buf_view(command), 1);
    buf_free(command);
}

static __attribute__((unused)) void kit_open(struct kit *k)
{
    *k = (struct kit){.log_us = 1000000000, .wall_us = INT64_C(1900000000000000)};
    k->log = calloc(1, sizeof *k->log);
    arena_init(&k->arena);
    kit_engine_open(k);
    struct buf b = {0};
    init_encode(&b, 0x1234567890abcdef);
    kit_do(k, &b);
}

static void kit_close(struct kit *k)
{
    engine_free(k->e);
    while (k->store.count > 0) kit_row_drop(&k->store, k->store.count - 1);
    free(k->store.rows);
    buf_free(&k->archive);
    buf_free(&k->log->bytes);
    free(k->log);
    arena_free(&k->arena);
    buf_free(&k->text);
}

/* ---- moving payloads ---- */

struct kit_holders {
    struct holder *at;
    uint32_t count, cap;
};

static void kit_holder_found(void *ctx, const struct holder *h)
{
    struct kit_holders *s = ctx;
    if (s->count == s->cap) {
        s->cap = s->cap == 0 ? 64 : s->cap * 2;
        s->at = realloc(s->at, s->cap * sizeof s->at[0]);
    }
    s->at[s->count++] = *h;
}

/* Everybody whose block lies in [first, end), found a few looks at a time. */
static __attribute__((unused)) void kit_holders(struct kit *k, uint64_t first, uint64_t end, struct kit_holders *out)
{
    out->count = 0;
    for (uint32_t n = 1; n <= 2000; n++) { /* numbers of lanes are given in order */
        struct lane_look l = {.partition = n, .until_us = INT64_MAX};
        while (!engine_lane_holders(k->e, &l, first, end, 3, kit_holder_found, out)) continue;
    }
    uint64_t next = 0;
    while (!engine_timer_holders(k->e, &next, first, end, 7, kit_holder_found, out)) continue;
    next = 0;
    while (!engine_letter_holders(k->e, &next, first, end, 2, kit_holder_found, out)) continue;
}

/* Copies the holder's block to the archive and moves it there. */
static __attribute__((unused)) bool kit_move(struct kit *k, const struct holder *h)
{
    uint64_t at = k->archive.len;
    char *room = malloc(h->bytes);
    kit_block(k, h->where, h->bytes, room);
    buf_put(&k->archive, room, h->bytes);
    free(room);
    return engine_move(k->e, h, PLACE_ARCHIVE | at);
}

static __attribute__((unused)) void kit_pass(struct kit *k, int64_t us)
{
    k->log_us += us;
    k->wall_us += us;
}

static __attribute__((unused)) struct engine_now kit_now(const struct kit *k)
{
    return (struct engine_now){.log_us = k->log_us, .wall_us = k->wall_us + 1};
}

/* ---- commands ---- */

/* Ids separated by spaces; "-" = no transaction id. */
static __attribute__((unused)) void kit_push(struct kit *k, const char *queue, const char *partition, const char *ids)
{
    struct buf b = {0};
    struct push_writer w;
    uint32_t count = 1;
    for (const char *c = ids; *c != '\0'; c++) count += *c == ' ';
    push_begin(&w, &b, KIT_TENANT);
    push_group_begin(&w, slice_of(queue), slice_of(partition), count);
    for (const char *at = ids; at != NULL;) {
        const char *space = strchr(at, ' ');
        size_t len = space == NULL ? strlen(at) : (size_t)(space - at);
        struct push_item item = {.payload = slice_of("{\"n\":1}")};
        if (!(len == 1 && at[0] == '-')) {
            item.flags = ITEM_TRANSACTION;
            item.transaction = slice_make(at, len);
        }
        push_item_add(&w, &item);
        at = space == NULL ? NULL : space + 1;
    }
    push_group_end(&w);
    push_end(&w);
    kit_do(k, &b);
}

static __attribute__((unused)) struct uuid kit_lease(uint32_t n)
{
    struct uuid id = {{0x01, 0x90}};
    memcpy(id.bytes + 12, &n, 4);
    return id;
}

static __attribute__((unused)) struct pop_command kit_pop_of(const char *queue, const char *group, uint32_t lease)
{
    return (struct pop_command){.tenant = KIT_TENANT,
                                .lease_id = kit_lease(lease),
                                .scope = POP_QUEUE,
                                .mode = SUBSCRIBE_ALL,
                                .batch = 100,
                                .partitions = 1,
                                .group = slice_of(group),
                                .queue = slice_of(queue)};
}

static __attribute__((unused)) void kit_pop(struct kit *k, const struct pop_command *p)
{
    struct buf b = {0};
    pop_encode(&b, p);
    kit_do(k, &b);
}

/* One item; lease 0 = not fenced. */
static __attribute__((unused)) uint8_t kit_ack(struct kit *k, const char *group, uint32_t partition, uint32_t lease,
                                               const char *id, enum ack_status status)
{
    struct buf b = {0};
    struct ack_item item = {
        .partition = partition, .status = (uint8_t)status, .fenced = lease != 0, .transaction = slice_of(id)};
    if (lease != 0) item.lease = kit_lease(lease);
    ack_begin(&b, KIT_TENANT, slice_of(group), 1);
    ack_item_add(&b, &item);
    ack_end(&b, 0);
    kit_do(k, &b);
    return k->result.ack.items[0].verdict;
}

#endif
