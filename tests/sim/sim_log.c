/* log.h over the simulated file system.
 *
 * Same names of files, same positions' meaning, same promises; records of its own:
 *
 *   magic 4 | crc32c of the rest 4 | number 8 | index 8 | term 8 | synced position when staged 8 | body length 4 | type 1, zeros 3 |
 *   body, padded to 8
 *
 * Bodies stay in memory once appended. The disk's work is one event at a time: what was appended when it begins is written to the
 * files then, and durable when it ends. A process that is killed meanwhile leaves a part of it, a loss of power a prefix of what was not
 * synced. Now and then the memory of old records is "gone" (log_view says no), so that reading back from the file is exercised. */
#include "log/log.h"
#include "log/log_check.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sim.h"

enum { HEAD = 48, CHUNK = 256 << 10, VIEW_BYTES = 64 << 10 };
static const uint32_t MAGIC = 0x51474f4c;

struct rec {
    uint64_t pos, index, term; /* pos: of the body */
    uint64_t hash;             /* of the body */
    uint32_t len;
    char *body; /* NULL: only in the file */
};

struct seg {
    uint64_t first, end; /* positions; end - first: a multiple of segment_bytes */
    struct vfile *file;
};

struct log {
    struct sim_node *node;
    struct log_options o;
    char *dir;
    struct seg *segs;
    uint32_t seg_count, seg_cap;
    struct rec *recs;                     /* in order of position: those with bodies in memory, and those found at open */
    uint32_t rec_count, rec_cap, written; /* recs before `written` are in the files */
    uint32_t *live;                       /* record of index live_first + i */
    uint64_t live_first, live_count, live_cap;
    uint64_t end_pos, synced_pos, handed_pos, synced_index, numbers;
    char *chunk;
    size_t chunk_used, chunk_cap;
    char *reserved;
    size_t reserved_bytes;
    bool closed, failed, working;
    bool archive;      /* the other log of the node (broker/place.h): nothing that is agreed on is in it */
    uint64_t work_pos; /* the job makes durable up to here */
    struct sim_event job;
    struct log_stats stats;
};

static struct log *logs[SIM_NODES_MAX + 1][2];

/* What is durable where, also of nodes that are down: the body's hash of each entry, 0 = not there. */
static struct known {
    uint64_t *hash;
    uint64_t cap;
} known[SIM_NODES_MAX + 1];

static void known_set(const struct log *l, uint64_t index, uint64_t hash)
{
    if (l->archive) return;
    struct known *k = &known[l->node->id];
    if (index >= k->cap) {
        uint64_t cap = index * 2 + 1024;
        k->hash = realloc(k->hash, cap * sizeof k->hash[0]);
        must(k->hash != NULL);
        memset(k->hash + k->cap, 0, (cap - k->cap) * sizeof k->hash[0]);
        k->cap = cap;
    }
    k->hash[index] = hash;
}

static void known_cut(const struct log *l, uint64_t index)
{
    if (l->archive) return;
    struct known *k = &known[l->node->id];
    for (uint64_t i = index; i < k->cap; i++) k->hash[i] = 0;
}

static uint64_t body_hash(const char *at, size_t len)
{
    return hash64(slice_make(at, len), 1) | 1;
}

static size_t padded(size_t len)
{
    return (len + 7) & ~(size_t)7;
}

/* ---- segments ------------------------------------------------------------------------------------------------------ */

static void seg_path(const struct log *l, uint64_t first, char out[512])
{
    snprintf(out, 512, "%s/%016llx.seg", l->dir, (unsigned long long)first);
}

static struct seg *seg_of(struct log *l, uint64_t pos)
{
    for (uint32_t i = l->seg_count; i-- > 0;) {
        if (l->segs[i].first <= pos && pos < l->segs[i].end) return &l->segs[i];
    }
    return NULL;
}

static void seg_add(struct log *l, uint64_t first, uint64_t end, struct vfile *f)
{
    if (l->seg_count == l->seg_cap) {
        l->seg_cap = l->seg_cap * 2 + 8;
        l->segs = realloc(l->segs, l->seg_cap * sizeof l->segs[0]);
        must(l->segs != NULL);
    }
    l->segs[l->seg_count++] = (struct seg){.first = first, .end = end, .file = f};
}

static void seg_roll(struct log *l, size_t record)
{
    uint64_t unit = l->o.segment_bytes, first = (l->end_pos + unit - 1) / unit * unit;
    uint64_t units = (record + unit - 1) / unit;
    char path[512];
    seg_path(l, first, path);
    /* Its name is durable before anything is written to it. */
    seg_add(l, first, first + units * unit, vfile_make(l->node, path, false));
    l->end_pos = first;
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

static void live_put(struct log *l, uint64_t index, uint32_t rec)
{
    if (l->live_count == 0) l->live_first = index;
    if (index < l->live_first) {
        l->live_count = 0;
        l->live_first = index;
    }
    must(index <= l->live_first + l->live_count);
    if (index < l->live_first + l->live_count) known_cut(l, index);
    if (index < l->live_first + l->live_count && l->synced_index >= index) l->synced_index = index - 1;
    l->live_count = index - l->live_first;
    if (l->live_count == l->live_cap) {
        l->live_cap = l->live_cap * 2 + 1024;
        l->live = realloc(l->live, l->live_cap * sizeof l->live[0]);
        must(l->live != NULL);
    }
    l->live[l->live_count++] = rec;
}

static uint32_t rec_add(struct log *l, struct rec r)
{
    if (l->rec_count == l->rec_cap) {
        l->rec_cap = l->rec_cap * 2 + 1024;
        l->recs = realloc(l->recs, l->rec_cap * sizeof l->recs[0]);
        must(l->recs != NULL);
    }
    l->recs[l->rec_count] = r;
    return l->rec_count++;
}

static void synced_advance(struct log *l)
{
    uint64_t index = l->synced_index + 1;
    if (l->live_count == 0) return;
    if (index < l->live_first) index = l->live_first;
    while (index < l->live_first + l->live_count) {
        const struct rec *r = &l->recs[l->live[index - l->live_first]];
        if (r->pos + padded(r->len) > l->synced_pos) break;
        known_set(l, index, r->hash);
        l->synced_index = index++;
    }
}

/* ---- the disk ------------------------------------------------------------------------------------------------------ */

static void head_write(struct log *l, const struct rec *r, uint8_t type, char *at)
{
    uint64_t numbers[4] = {++l->numbers, r->index, r->term, l->synced_pos};
    memcpy(at, &MAGIC, 4);
    memcpy(at + 8, numbers, 32);
    memcpy(at + 40, &r->len, 4);
    memset(at + 44, 0, 4);
    at[44] = (char)type;
    uint32_t crc = crc32c(0, at + 8, HEAD - 8 + r->len);
    memcpy(at + 4, &crc, 4);
}

static void job_start(struct log *l);

static void log_fail(struct log *l, const char *what)
{
    l->failed = true;
    l->node->disk.had_failure = true;
    l->o.failed(l->o.ctx, what);
}

/* Appended records go to the files. */
static bool records_write(struct log *l)
{
    for (; l->written < l->rec_count; l->written++) {
        const struct rec *r = &l->recs[l->written];
        if (r->pos >= l->handed_pos) break;
        struct seg *s = seg_of(l, r->pos);
        must(s != NULL);
        uint64_t at = r->pos - HEAD - s->first, have = vfile_bytes(s->file).len;
        must(at >= have);
        /* Between two records nothing is left open within a segment. */
        must(at == have);
        if (!vfile_append(l->node, s->file, slice_make(r->body - HEAD, HEAD + padded(r->len)))) return false;
        l->stats.written_bytes += HEAD + padded(r->len);
    }
    return true;
}

static void segs_sync(struct log *l)
{
    for (uint32_t i = l->seg_count; i-- > 0;) {
        vfile_sync(l->segs[i].file);
        if (l->segs[i].end <= l->synced_pos) break;
    }
}

static void job_done(struct log *l)
{
    struct sim_node *n = l->node;
    l->working = false;
    if (l->failed) return;
    if (n->disk.fail_syncs > 0) {
        n->disk.fail_syncs--;
        log_fail(l, "log: a sync failed: Input/output error (injected)");
        return;
    }
    segs_sync(l);
    l->synced_pos = l->work_pos;
    l->stats.syncs++;
    synced_advance(l);
    sim_trace(l->synced_pos);
    if (l->o.synced != NULL) l->o.synced(l->o.ctx);
    job_start(l);
}

static void job_run(struct sim_event *e)
{
    struct log *l = outer(e, struct log, job);
    if (l->working) job_done(l);
}

static void job_start(struct log *l)
{
    if (l->working || l->failed || l->handed_pos == l->synced_pos) return;
    if (!records_write(l)) {
        log_fail(l, "log: a write failed: No space left on device (injected)");
        return;
    }
    l->working = true;
    l->work_pos = l->handed_pos;
    l->job.run = job_run;
    sim_at(&l->job, l->node, sim.now_us + sim.ahead_us + sim_disk_us(l->node));
}

void sim_log_block(struct sim_node *n)
{
    struct log *l = logs[n->id][0];
    if (l == NULL || !l->working) return;
    sim_cancel(&l->job);
    job_done(l);
}

void sim_log_await(struct log *l)
{
    while (l->working && !l->failed) {
        sim_block(sim_disk_us(l->node));
        sim_io_point();
        sim_cancel(&l->job);
        job_done(l);
    }
}

static void log_end(struct log *l, enum sim_end how)
{
    if (l == NULL || l->closed) return;
    sim_cancel(&l->job);
    if (how == SIM_END_POWER) return; /* the file system loses what it must */
    /* A write that was under way may have reached the files in part; what reached them stays, also without a sync. */
    if (l->seg_count > 0 && l->working) vfile_tear(l->node, l->segs[l->seg_count - 1].file);
}

void sim_log_end(struct sim_node *n, enum sim_end how)
{
    for (uint32_t i = 0; i < 2; i++) {
        log_end(logs[n->id][i], how);
        logs[n->id][i] = NULL;
    }
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

struct head {
    uint32_t magic, crc;
    uint64_t number, index, term, synced;
    uint32_t len;
    uint8_t type;
};

static bool head_read(struct slice s, uint64_t at, struct head *h)
{
    if (s.len < HEAD || at > s.len - HEAD) return false;
    const char *p = s.at + at;
    memcpy(&h->magic, p, 4);
    memcpy(&h->crc, p + 4, 4);
    memcpy(&h->number, p + 8, 8);
    memcpy(&h->index, p + 16, 8);
    memcpy(&h->term, p + 24, 8);
    memcpy(&h->synced, p + 32, 8);
    memcpy(&h->len, p + 40, 4);
    h->type = (uint8_t)p[44];
    if (h->magic != MAGIC || h->len > s.len - at - HEAD || padded(h->len) > s.len - at - HEAD) return false;
    return crc32c(0, p + 8, HEAD - 8 + h->len) == h->crc;
}

/* Is there a record behind `pos` that proves that more than `pos` had been durable? */
static bool proof_behind(struct log *l, uint32_t seg, uint64_t at, uint64_t pos)
{
    for (; seg < l->seg_count; seg++, at = 0) {
        struct slice s = vfile_bytes(l->segs[seg].file);
        struct head h;
        for (at = padded(at); at + HEAD <= s.len; at += 8) {
            if (head_read(s, at, &h) && h.synced > pos) return true;
        }
    }
    return false;
}

static void record_found(struct log *l, const struct head *h, uint64_t pos, const char *body)
{
    struct log_record r = {.index = h->index, .term = h->term, .pos = pos, .len = h->len, .type = h->type};
    if (h->index < l->o.first_index || pos < l->o.first_pos) return;
    live_put(l, h->index,
             rec_add(l, (struct rec){
                            .pos = pos, .index = h->index, .term = h->term, .len = h->len, .hash = body_hash(body, h->len)}));
    if (l->o.record != NULL) l->o.record(l->o.ctx, &r);
}

static enum log_status segs_scan(struct log *l, struct buf *error)
{
    uint32_t i = 0;
    while (i + 1 < l->seg_count && l->segs[i + 1].first <= l->o.first_pos) i++;
    for (uint32_t k = i + 1; l->o.sparse && k < l->seg_count; k++)
        if (l->segs[k - 1].end != l->segs[k].first) i = k;
    if (l->seg_count > 0) l->end_pos = l->segs[i].first;
    for (; i < l->seg_count; i++) {
        struct slice s = vfile_bytes(l->segs[i].file);
        uint64_t at = 0;
        struct head h;
        /* A gap between two segments, other than the unused end of the first, is a hole. */
        uint64_t unit = l->o.segment_bytes, expected = (l->end_pos + unit - 1) / unit * unit;
        if (l->segs[i].first != expected) break;
        while (head_read(s, at, &h) && (l->numbers == 0 || h.number == l->numbers + 1)) {
            l->numbers = h.number;
            record_found(l, &h, l->segs[i].first + at + HEAD, s.at + at + HEAD);
            at += HEAD + padded(h.len);
        }
        l->end_pos = l->segs[i].first + at;
        /* Nothing but zeros may be left of a segment, and the next one goes on. */
        bool rest = false, last = i + 1 == l->seg_count;
        for (uint64_t k = at; k < s.len && !rest; k++) rest = s.at[k] != 0;
        struct head next;
        bool goes_on = !rest && !last && head_read(vfile_bytes(l->segs[i + 1].file), 0, &next) && next.number == l->numbers + 1;
        if (goes_on) continue;
        if ((rest || !last) && proof_behind(l, i, at, l->end_pos)) {
            buf_printf(error, "%s/%016llx.seg: damaged at offset %llu", l->dir, (unsigned long long)l->segs[i].first,
                       (unsigned long long)at);
            return LOG_DAMAGED;
        }
        i++;
        break;
    }
    /* What lies behind was never promised to anybody. */
    for (uint32_t k = i; k < l->seg_count; k++) {
        char path[512];
        seg_path(l, l->segs[k].first, path);
        vfile_remove(l->node, path, true);
    }
    if (i < l->seg_count) l->seg_count = i;
    if (l->seg_count > 0) {
        struct seg *last = &l->segs[l->seg_count - 1];
        if (l->end_pos >= last->first) vfile_cut(l->node, last->file, l->end_pos - last->first);
    }
    return LOG_OK;
}

static bool segs_find(struct log *l)
{
    struct vfile *dir = vfile_make(l->node, l->dir, true);
    for (uint32_t i = 0; i < vfile_count(dir); i++) {
        unsigned long long first;
        char tail[8];
        if (sscanf(vfile_name(dir, i), "%16llx.%7s", &first, tail) != 2 || strcmp(tail, "seg") != 0) continue;
        struct vfile *f = vfile_child(dir, i);
        uint64_t bytes = vfile_bytes(f).len, unit = l->o.segment_bytes, units = bytes == 0 ? 1 : (bytes + unit - 1) / unit;
        if (l->seg_count > 0 && l->segs[l->seg_count - 1].end > first) return false;
        seg_add(l, first, first + units * unit, f);
    }
    return true;
}

enum log_status log_open(struct log **out, const struct log_options *o, struct buf *error)
{
    must(sim.node != NULL && logs[sim.node->id][o->sparse] == NULL);
    struct log *l = calloc(1, sizeof *l);
    must(l != NULL);
    *out = NULL;
    l->node = sim.node;
    l->o = *o;
    l->archive = o->sparse;
    l->dir = strdup(o->dir);
    sim_io_point();
    logs[l->node->id][l->archive] = l;
    l->synced_index = o->first_index == 0 ? 0 : o->first_index - 1;
    if (!segs_find(l)) {
        logs[l->node->id][l->archive] = NULL;
        buf_printf(error, "%s: segments overlap", l->dir);
        return LOG_DAMAGED;
    }
    enum log_status status = segs_scan(l, error);
    if (status != LOG_OK) {
        logs[l->node->id][l->archive] = NULL;
        return status;
    }
    /* Opening makes durable what it found. */
    for (uint32_t i = 0; i < l->seg_count; i++) vfile_sync(l->segs[i].file);
    l->handed_pos = l->synced_pos = l->end_pos;
    l->written = l->rec_count;
    synced_advance(l);
    sim_block(sim_disk_us(l->node) * 2);
    *out = l;
    return LOG_OK;
}

void log_close(struct log *l)
{
    if (l->closed) return;
    l->handed_pos = l->end_pos;
    if (!l->failed && records_write(l)) segs_sync(l);
    sim_cancel(&l->job);
    l->closed = true;
    if (logs[l->node->id][l->archive] == l) logs[l->node->id][l->archive] = NULL;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

char *log_reserve(struct log *l, size_t bytes_max)
{
    size_t need = HEAD + padded(bytes_max) + 16;
    if (l->chunk_cap - l->chunk_used < need) {
        l->chunk_cap = need > CHUNK ? need : CHUNK;
        l->chunk = malloc(l->chunk_cap);
        must(l->chunk != NULL);
        l->chunk_used = 0;
    }
    l->reserved = l->chunk + l->chunk_used + HEAD;
    l->reserved_bytes = bytes_max;
    return l->reserved;
}

uint64_t log_append(struct log *l, uint64_t index, uint64_t term, uint8_t type, size_t bytes)
{
    must(l->reserved != NULL && bytes <= l->reserved_bytes);
    size_t record = HEAD + padded(bytes);
    struct seg *last = l->seg_count == 0 ? NULL : &l->segs[l->seg_count - 1];
    if (last == NULL || l->end_pos + record > last->end || l->end_pos < last->first) seg_roll(l, record);
    memset(l->reserved + bytes, 0, padded(bytes) - bytes);
    struct rec r = {.pos = l->end_pos + HEAD, .index = index, .term = term, .len = (uint32_t)bytes, .body = l->reserved};
    r.hash = body_hash(r.body, r.len);
    head_write(l, &r, type, l->reserved - HEAD);
    live_put(l, index, rec_add(l, r));
    l->chunk_used += (record + 15) & ~(size_t)15;
    l->end_pos += record;
    l->reserved = NULL;
    return r.pos;
}

void log_flush(struct log *l)
{
    l->handed_pos = l->end_pos;
    sim_io_point();
    job_start(l);
}

uint64_t log_synced_index(struct log *l)
{
    return l->synced_index;
}

uint64_t log_unsynced_bytes(struct log *l)
{
    return l->end_pos - l->synced_pos;
}

uint64_t log_end_pos(struct log *l)
{
    return l->end_pos;
}

uint64_t log_segment_bytes(const struct log *l)
{
    return l->o.segment_bytes;
}

enum log_status log_segment_bytes_peek(const char *log_dir, uint64_t *bytes, struct buf *error)
{
    (void)log_dir, (void)error;
    *bytes = 0; /* every run has one size */
    return LOG_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static const struct rec *rec_at(const struct log *l, uint64_t pos)
{
    uint32_t low = 0, high = l->rec_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (l->recs[middle].pos <= pos) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (low >= l->rec_count || l->recs[low].pos > pos || pos >= l->recs[low].pos + padded(l->recs[low].len) + 1) return NULL;
    return &l->recs[low];
}

bool log_view(struct log *l, uint64_t pos, size_t len, struct slice *out, struct log_pin *pin)
{
    const struct rec *r = rec_at(l, pos);
    if (r == NULL || r->body == NULL || pos + len > r->pos + r->len) return false;
    bool durable = r->pos + padded(r->len) <= l->synced_pos;
    if (durable && l->end_pos - r->pos > VIEW_BYTES) return false; /* no longer in memory */
    *out = slice_make(r->body + (pos - r->pos), len);
    pin->image = l;
    return true;
}

void log_unpin(struct log *l, struct log_pin pin)
{
    const struct log *of = pin.image; /* this one or the node's other one */
    must(of->node == l->node);
}

enum log_status log_read(struct log *l, uint64_t pos, size_t len, char *out)
{
    const struct rec *r = rec_at(l, pos);
    if (r != NULL && r->body != NULL && pos + len <= r->pos + r->len) {
        memcpy(out, r->body + (pos - r->pos), len);
        return LOG_OK;
    }
    struct seg *s = seg_of(l, pos);
    if (s == NULL) return LOG_DAMAGED;
    struct slice bytes = vfile_bytes(s->file);
    if (pos - s->first + len > bytes.len) return LOG_DAMAGED;
    memcpy(out, bytes.at + (pos - s->first), len);
    l->stats.cold_reads++;
    return LOG_OK;
}

enum log_status log_read_record(struct log *l, uint64_t pos, size_t len, char *out)
{
    struct slice seen;
    struct log_pin pin;
    struct head h;
    if (log_view(l, pos, len, &seen, &pin)) {
        memcpy(out, seen.at, len);
        return LOG_OK;
    }
    const struct seg *s = seg_of(l, pos);
    if (s == NULL || !head_read(vfile_bytes(s->file), pos - s->first - HEAD, &h) || h.len != len) return LOG_DAMAGED;
    return log_read(l, pos, len, out);
}

bool log_segment_next(struct log *l, uint64_t from, uint64_t *first_pos, uint64_t *end_pos)
{
    uint32_t i = 0;
    while (i < l->seg_count && l->segs[i].first < from) i++;
    if (i == l->seg_count) return false;
    *first_pos = l->segs[i].first;
    *end_pos = l->segs[i].end;
    return true;
}

void log_trim(struct log *l, uint64_t pos, bool (*wanted)(void *ctx, uint64_t first_pos, uint64_t end_pos), void *ctx)
{
    uint32_t kept = 0;
    sim_io_point();
    for (uint32_t i = 0; i < l->seg_count; i++) {
        struct seg s = l->segs[i];
        bool sealed = i + 1 < l->seg_count && s.end <= pos && l->segs[i + 1].first < l->synced_pos;
        if (!sealed || (wanted != NULL && wanted(ctx, s.first, s.end))) {
            l->segs[kept++] = s;
            continue;
        }
        char path[512];
        seg_path(l, s.first, path);
        vfile_remove(l->node, path, false);
        sim_say("%s: segment %016llx goes", l->archive ? "archive" : "log", (unsigned long long)s.first);
        /* Its bytes are gone for readers too. */
        for (uint32_t k = 0; k < l->rec_count && l->recs[k].pos < s.end; k++) {
            if (l->recs[k].pos >= s.first) l->recs[k].body = NULL;
        }
    }
    l->seg_count = kept;
}

bool log_covers(struct log *l, uint64_t first_pos, uint64_t end_pos)
{
    while (first_pos < end_pos) {
        struct seg *s = seg_of(l, first_pos);
        if (s == NULL) return false;
        first_pos = s->end;
    }
    return true;
}

enum log_status log_entry_end(struct log *l, uint64_t from, uint64_t index, uint64_t term, uint64_t *end)
{
    for (uint32_t i = 0; i < l->rec_count; i++) {
        const struct rec *r = &l->recs[i];
        if (r->pos < from || r->index != index || r->term != term) continue;
        *end = r->pos + padded(r->len);
        return LOG_OK;
    }
    return LOG_DAMAGED;
}

void log_idle(struct log *l)
{
    (void)l;
}

void log_stats(struct log *l, struct log_stats *out)
{
    *out = l->stats;
    out->files = l->seg_count;
}

/* ---- a sealed segment, record by record ----------------------------------------------------------------------------- */

enum log_status segment_walk(struct segment_walk *w, struct buf *error)
{
    struct vfile *f = vfile_find(sim.node, w->path);
    if (f == NULL) {
        buf_printf(error, "%s: cannot be opened: No such file or directory", w->path);
        return LOG_IO;
    }
    struct slice s = vfile_bytes(f);
    struct head h;
    uint64_t at = 0;
    w->file_bytes = s.len;
    w->end_pos = w->stop_pos = w->first_pos + s.len;
    for (; at < s.len && head_read(s, at, &h); at += HEAD + padded(h.len)) {
        struct segment_item i = {.pos = w->first_pos + at,
                                 .next = w->first_pos + at + HEAD + padded(h.len),
                                 .index = h.index,
                                 .term = h.term,
                                 .synced = h.synced,
                                 .len = h.len,
                                 .type = h.type,
                                 .kind = SEGMENT_ENTRY,
                                 .body = slice_make(s.at + at + HEAD, h.len)};
        w->ended_early = (w->pace != NULL && !w->pace(w->ctx, i.next - i.pos)) || (w->item != NULL && !w->item(w->ctx, &i));
        if (w->ended_early) return LOG_OK;
    }
    w->stop_pos = w->first_pos + at;
    return LOG_OK;
}

/* ---- for the checks ------------------------------------------------------------------------------------------------ */

bool sim_log_durable(const struct sim_node *n, uint64_t index, struct slice body)
{
    const struct known *k = &known[n->id];
    return index < k->cap && k->hash[index] == body_hash(body.at, body.len);
}

void sim_log_wiped(struct sim_node *n)
{
    known[n->id].cap = 0;
}

bool sim_log_flip(struct sim_node *n, struct rng *r, struct sim_flip *out)
{
    char path[64];
    snprintf(path, sizeof path, "/sim/n%u/log", n->id);
    struct vfile *dir = vfile_find(n, path);
    if (dir == NULL || vfile_count(dir) == 0 || n->up) return false;
    uint32_t last = vfile_count(dir) - 1;
    struct vfile *f = vfile_child(dir, last);
    snprintf(out->path, sizeof out->path, "%s/%.60s", path, vfile_name(dir, last));
    struct slice s = vfile_bytes(f);
    struct head h;
    uint64_t ends[64], count = 0, pos = 0;
    for (; head_read(s, pos, &h); pos += HEAD + padded(h.len)) ends[count++ % 64] = pos;
    /* Of a record that a later one proves to have been durable. */
    if (count < 8) return false;
    uint64_t begin = ends[(count - 4 - rng_below(r, 3)) % 64];
    if (!head_read(s, begin, &h)) return false;
    out->begin = begin;
    out->offset = begin + rng_below(r, HEAD - 4 + h.len);
    out->bit = (uint8_t)(1U << rng_below(r, 8));
    vfile_at(f)[out->offset] ^= (char)out->bit;
    return true;
}

bool sim_log_mend(struct sim_node *n, const struct sim_flip *flip)
{
    struct vfile *f = vfile_find(n, flip->path);
    struct head h;
    if (f == NULL || vfile_bytes(f).len <= flip->offset || head_read(vfile_bytes(f), flip->begin, &h)) return false;
    vfile_at(f)[flip->offset] ^= (char)flip->bit;
    if (head_read(vfile_bytes(f), flip->begin, &h)) return true;
    vfile_at(f)[flip->offset] ^= (char)flip->bit;
    return false;
}
