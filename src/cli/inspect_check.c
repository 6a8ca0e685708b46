/* Everything read, every checksum verified.
 *
 *   small files   each has its own
 *   backup        BACKUP, and each file against it
 *   log           record by record, head and body; inside of a command's entry each push group's own; is anything missing between the
 *                 segments that a start would read, or that hold messages still wanted
 *   store         block by block, table file by table file; then each row, as a start would take it
 *   both          the entry the store stands at is in the log, with the term the store knows and the stamps it was applied with: the
 *                 state of another broker, or of another past of this one, is told even where index and term are the same */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/files.h"
#include "base/hash.h"
#include "broker/reclaim.h"
#include "broker/restore.h"
#include "cli/inspect.h"
#include "engine/engine.h"
#include "replica/look.h"

struct check {
    struct inspect *i;
    struct inspect_group *g;
    uint64_t files, bytes, records, rows;
    bool mark_seen;
    uint64_t mark_term;
    struct entry_head last; /* of the last entry of commands at or before the store's mark */
    uint64_t last_index;    /* 0: no such entry is in the log any more, or others that followed it are not */
    uint64_t seen_index;
    struct engine *engine;
    const char *row_wrong;
};

/* ---- small files ---- */

static void text_check(struct check *c, const char *dir, const char *name)
{
    enum { LAST_BYTES = 15 };
    char path[INSPECT_PATH_BYTES + 16], last[LAST_BYTES + 1];
    struct buf text = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int code = files_read(path, 0, 1 << 18, &text);
    if (code != 0 && code != ENOENT) inspect_io(c->i, "%s: %s", path, strerror(code));
    if (code == 0) {
        c->files++;
        bool good = text.len > LAST_BYTES;
        if (good) {
            snprintf(last, sizeof last, "check %08" PRIx32 "\n", crc32c(0, text.at, text.len - LAST_BYTES));
            good = memcmp(text.at + text.len - LAST_BYTES, last, LAST_BYTES) == 0;
        }
        if (!good) inspect_find(c->i, path, 0, "its checksum is wrong");
    }
    buf_free(&text);
}

static void raft_check(struct check *c)
{
    struct replica_look *look = calloc(1, sizeof *look);
    struct buf error = {0};
    must(look != NULL);
    enum log_status status = replica_look(c->g->dir, look, &error);
    if (status == LOG_DAMAGED) inspect_find(c->i, c->g->dir, UINT64_MAX, "%.*s", (int)error.len, error.at);
    if (status == LOG_IO) inspect_io(c->i, "%.*s", (int)error.len, error.at);
    if (status == LOG_OK && !c->i->backup) {
        if (!look->has_identity) inspect_find(c->i, c->g->dir, UINT64_MAX, "the file identity is missing");
        if (!look->has_meta) inspect_find(c->i, c->g->dir, UINT64_MAX, "term and vote are missing or damaged: meta-0, meta-1");
    }
    buf_free(&error);
    free(look);
}

/* ---- the log ---- */

/* Push groups carry a checksum that goes with the message wherever it is read. */
static bool groups_good(const struct command *c)
{
    struct push_command p;
    struct push_group g;
    struct step_command s;
    if (c->kind == COMMAND_STEP && step_decode(c, &s)) return !s.has_push || groups_good(&s.push);
    if (c->kind != COMMAND_PUSH || !push_decode(c, &p)) return true;
    struct slice rest = p.groups;
    for (uint32_t n = 0; n < p.group_count && push_group_next(&rest, &g); n++)
        if (!push_group_crc_ok(g.block)) return false;
    return true;
}

static void entry_check(struct check *c, const struct inspect_segment *s, const struct segment_item *r)
{
    uint64_t offset = r->pos - s->walk.first_pos;
    struct entry_head h;
    struct command command;
    if (!entry_head_read(r->body, &h)) {
        inspect_find(c->i, s->path, offset, "entry %" PRIu64 " is no entry of commands", r->index);
        return;
    }
    if (r->index <= c->g->mark.index) {
        c->last = h;
        c->last_index = r->index;
    }
    struct slice rest = slice_make(r->body.at + ENTRY_HEAD_BYTES, r->body.len - ENTRY_HEAD_BYTES);
    uint32_t count = 0;
    for (; command_next(&rest, &command); count++)
        if (!groups_good(&command))
            inspect_find(c->i, s->path, offset, "entry %" PRIu64 ": a message's checksum is wrong", r->index);
    if (rest.len > 0)
        inspect_find(c->i, s->path, offset, "entry %" PRIu64 ": command %" PRIu32 " cannot be read", r->index, count);
}

static bool record_check(void *ctx, const struct inspect_segment *s, const struct segment_item *r)
{
    struct check *c = ctx;
    c->records++;
    if (r->kind != SEGMENT_ENTRY) return true;
    if (r->index != c->seen_index + 1 && r->index <= c->g->mark.index) c->last_index = 0;
    c->seen_index = r->index;
    if (r->index == c->g->mark.index) {
        c->mark_seen = true;
        c->mark_term = r->term;
    }
    if (r->type == REPLICA_ENTRY_COMMAND) entry_check(c, s, r);
    return true;
}

/* Of the log or of the archive, by the place. */
static const struct inspect_segment *segment_holding(const struct inspect_group *g, uint64_t where)
{
    const struct inspect_segment *segments = where & PLACE_ARCHIVE ? g->archive : g->segments;
    uint32_t count = where & PLACE_ARCHIVE ? g->archive_count : g->segment_count;
    uint64_t pos = where & ~PLACE_ARCHIVE;
    for (uint32_t n = 0; n < count; n++) {
        const struct segment_walk *w = &segments[n].walk;
        if (w->first_pos <= pos && pos < (w->end_pos == 0 ? w->first_pos + 1 : w->end_pos)) return &segments[n];
    }
    return NULL;
}

static void damage_find(struct check *c, const struct inspect_segment *s)
{
    const struct segment_walk *w = &s->walk;
    inspect_find(c->i, s->path, w->end_pos == 0 ? 0 : w->stop_pos - w->first_pos, "%s",
                 w->end_pos == 0 ? "the file's head is damaged"
                 : w->head_valid ? "the record that begins there fails its checksum"
                                 : "no record begins there, though there was one");
}

static bool archived_check(void *ctx, const struct inspect_segment *s, const struct segment_item *r)
{
    struct check *c = ctx;
    struct archive_head head;
    struct slice block;
    c->records++;
    if (r->kind != SEGMENT_ENTRY) return true;
    if (!archive_head_read(r->body, &head, &block) || !push_group_crc_ok(block))
        inspect_find(c->i, s->path, r->pos - s->walk.first_pos, "the message's checksum is wrong");
    return true;
}

static void archive_check(struct check *c)
{
    struct inspect_group *g = c->g;
    if (!inspect_archive_walk(c->i, g, false, archived_check, c)) return;
    for (uint32_t n = 0; n < g->archive_count; n++) {
        const struct inspect_segment *s = &g->archive[n];
        c->files++;
        c->bytes += s->walk.file_bytes;
        if (s->state == SEGMENT_DAMAGED) damage_find(c, s);
    }
}

static void segments_check(struct check *c)
{
    struct inspect_group *g = c->g;
    bool damaged = false;
    for (uint32_t n = 0; n < g->segment_count; n++) {
        const struct inspect_segment *s = &g->segments[n];
        const struct segment_walk *w = &s->walk;
        c->files++;
        c->bytes += w->file_bytes;
        damaged |= s->state == SEGMENT_DAMAGED;
        if (s->state == SEGMENT_DAMAGED) damage_find(c, s);
        /* Below the place where a start begins to read, segments that hold nothing wanted are gone. */
        bool may_lack = g->mark.index == 0 || w->first_pos <= g->mark.scan_pos;
        if (n == 0 || s->state == SEGMENT_UNUSED || may_lack) continue;
        const struct segment_walk *before = &g->segments[n - 1].walk;
        if (before->end_pos == 0 || before->end_pos == w->first_pos) continue;
        inspect_find(c->i, s->path, UINT64_MAX, "the segment before it is missing: it would begin at position %" PRIu64,
                     before->end_pos);
    }
    if (g->mark.index == 0) return;
    if (!c->mark_seen && !damaged)
        inspect_find(c->i, g->dir, UINT64_MAX,
                     "the store is the state at entry %" PRIu64 ", which is not in the log: they do not belong together",
                     g->mark.index);
    else if (c->mark_seen && c->mark_term != g->mark.term)
        inspect_find(c->i, g->dir, UINT64_MAX, "entry %" PRIu64 " has term %" PRIu64 " in the log and %" PRIu64 " in the store",
                     g->mark.index, c->mark_term, g->mark.term);
}

/* ---- the store ---- */

static void table_damaged(void *ctx, const char *file, const char *what)
{
    const struct check *c = ctx;
    const char *at = strstr(what, " offset ");
    uint64_t offset = at == NULL ? UINT64_MAX : strtoull(at + 8, NULL, 10);
    inspect_find(c->i, file, offset, "%s", what);
}

static void cold_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                      void *row_ctx)
{
    struct check *c = ctx;
    struct buf error = {0};
    if (store_look_scan(c->g->store, from, to, row, row_ctx, &error) != STORE_OK)
        inspect_find(c->i, c->g->dir, UINT64_MAX, "%.*s", (int)error.len, error.at);
    buf_free(&error);
}

static void cold_block(void *ctx, uint64_t where, uint32_t bytes, char *out)
{
    const struct check *c = ctx;
    const struct inspect_segment *s = segment_holding(c->g, where);
    int fd = s == NULL ? -1 : open(s->path, O_RDONLY | O_CLOEXEC);
    memset(out, 0, bytes);
    if (fd < 0 || pread(fd, out, bytes, (off_t)((where & ~PLACE_ARCHIVE) - s->walk.first_pos)) != (ssize_t)bytes)
        inspect_find(c->i, c->g->dir, UINT64_MAX, "a message at position %" PRIu64 " of the %s cannot be read",
                     where & ~PLACE_ARCHIVE, where & PLACE_ARCHIVE ? "archive" : "log");
    if (fd >= 0) close(fd);
}

static bool row_check(void *ctx, struct slice key, struct slice value)
{
    struct check *c = ctx;
    c->rows++;
    if (c->row_wrong == NULL && (unsigned char)key.at[0] < 0x80) c->row_wrong = engine_load_row(c->engine, key, value);
    return true;
}

static uint8_t shift_of(uint64_t bytes)
{
    return bytes == 0 ? 26 : (uint8_t)__builtin_ctzll(bytes);
}

/* Every segment between two places of which something is wanted is there. */
static void wanted_check(struct check *c, uint64_t first, uint64_t end, uint64_t segment_bytes)
{
    for (uint64_t at = first; at < end; at += segment_bytes) {
        uint64_t live = engine_segment_live(c->engine, at);
        if (live == 0 || segment_holding(c->g, at) != NULL) continue;
        inspect_find(c->i, c->g->dir, UINT64_MAX,
                     "the segment %s/%016" PRIx64 ".seg is missing, but %" PRIu64 " bytes of messages in it are wanted",
                     at & PLACE_ARCHIVE ? "archive" : "log", at & ~PLACE_ARCHIVE, live);
    }
}

static void last_head_check(struct check *c)
{
    char logged[ENTRY_HEAD_BYTES], applied[ENTRY_HEAD_BYTES];
    struct entry_head head = engine_last_head(c->engine);
    entry_head_write(logged, &c->last);
    entry_head_write(applied, &head);
    if (c->last_index == 0 || memcmp(logged, applied, sizeof logged) == 0) return;
    inspect_find(c->i, c->g->dir, UINT64_MAX,
                 "entry %" PRIu64 " of the log is not the one the store's state came from: they do not belong together",
                 c->last_index);
}

/* Every row that a start would load, as it would. */
static void rows_check(struct check *c, uint64_t segment_bytes)
{
    struct engine_options o = {.cold = {.ctx = c, .scan = cold_scan, .block = cold_block},
                               .segment_shift = shift_of(segment_bytes)};
    struct buf error = {0};
    struct inspect_group *g = c->g;
    c->engine = engine_new(&o);
    enum store_status status = store_look_scan(g->store, slice_of(""), slice_of(""), row_check, c, &error);
    if (status == STORE_DAMAGED) inspect_find(c->i, g->dir, UINT64_MAX, "%.*s", (int)error.len, error.at);
    if (status == STORE_IO) inspect_io(c->i, "%.*s", (int)error.len, error.at);
    if (status == STORE_OK && c->row_wrong == NULL) c->row_wrong = engine_loaded(c->engine, g->mark.index);
    if (c->row_wrong != NULL) inspect_find(c->i, g->dir, UINT64_MAX, "store: %s", c->row_wrong);
    if (status == STORE_OK && c->row_wrong == NULL && g->mark.index > 0) last_head_check(c);
    uint64_t end = g->segment_count == 0 ? 0 : g->segments[g->segment_count - 1].walk.first_pos + segment_bytes;
    if (status == STORE_OK && c->row_wrong == NULL && segment_bytes > 0) {
        uint64_t last = engine_archive_last(c->engine);
        wanted_check(c, 0, end, segment_bytes);
        if (last != 0) wanted_check(c, PLACE_ARCHIVE, last + segment_bytes, segment_bytes);
    }
    engine_free(c->engine);
    c->engine = NULL;
    buf_free(&error);
}

static void group_check(struct check *c)
{
    struct inspect_group *g = c->g;
    char dir[INSPECT_PATH_BYTES + 8];
    struct buf error = {0};
    struct store_verify v = {.ctx = c, .damaged = table_damaged};
    c->row_wrong = NULL;
    c->mark_seen = false;
    c->last_index = c->seen_index = 0;
    uint32_t before = c->i->findings;
    raft_check(c);
    snprintf(dir, sizeof dir, "%s/store", g->dir);
    if (store_verify(dir, &v, &error) != STORE_OK) inspect_io(c->i, "%.*s", (int)error.len, error.at);
    buf_free(&error);
    c->files += v.files;
    c->bytes += v.bytes;
    bool tables = c->i->findings == before;
    bool stored = inspect_store_open(c->i, g);
    if (!inspect_log_walk(c->i, g, false, record_check, c)) return;
    segments_check(c);
    archive_check(c);
    uint64_t segment_bytes = 0;
    for (uint32_t n = 0; n < g->segment_count && segment_bytes == 0; n++) segment_bytes = g->segments[n].walk.segment_bytes;
    if (stored && tables) rows_check(c, segment_bytes);
}

/* ---- a backup ---- */

static void backup_check(struct check *c)
{
    struct restore_options o = {.backup = c->i->dir};
    struct backup_file file;
    struct buf error = {0};
    enum restore_result result = restore_run(&o, &file, &error);
    c->files += file.count;
    c->bytes += backup_file_bytes(&file);
    for (struct slice rest = buf_view(&error); rest.len > 0;) {
        const char *end = memchr(rest.at, '\n', rest.len);
        size_t len = end == NULL ? rest.len : (size_t)(end - rest.at);
        if (result == RESTORE_IO)
            inspect_io(c->i, "%.*s", (int)len, rest.at);
        else
            inspect_find(c->i, c->i->dir, UINT64_MAX, "%.*s", (int)len, rest.at);
        rest = slice_make(rest.at + len + (end != NULL), rest.len - len - (end != NULL));
    }
    backup_file_free(&file);
    buf_free(&error);
}

void inspect_check(struct inspect *i)
{
    struct check c = {.i = i};
    char path[INSPECT_PATH_BYTES + 16];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/BACKUP", i->dir);
    if (files_size(path, &bytes) == 0) {
        backup_check(&c);
        c.files = c.bytes = 0; /* they are read once more, for what is in them */
    }
    text_check(&c, i->dir, "disk");
    text_check(&c, i->dir, "peers");
    text_check(&c, i->dir, "groups");
    for (uint32_t n = 0; n < i->group_count; n++) {
        c.g = &i->groups[n];
        text_check(&c, c.g->dir, "identity");
        group_check(&c);
    }
    if (i->json) {
        inspect_field(i, "ok", i->verb.rc == 0 ? "true" : "false");
        inspect_field(i, "damaged", "%" PRIu32, i->findings);
        inspect_field(i, "files", "%" PRIu64, c.files);
        inspect_field(i, "bytes", "%" PRIu64, c.bytes);
        inspect_field(i, "records", "%" PRIu64, c.records);
        inspect_field(i, "rows", "%" PRIu64, c.rows);
        inspect_line_end(i);
    } else if (i->verb.rc == 0) {
        printf("%s is whole: %" PRIu64 " files, %" PRIu64 " bytes, %" PRIu64 " records, %" PRIu64 " rows\n", i->dir, c.files,
               c.bytes, c.records, c.rows);
    } else {
        printf("%" PRIu32 " found damaged in %" PRIu64 " files, %" PRIu64 " bytes\n", i->findings, c.files, c.bytes);
    }
}
