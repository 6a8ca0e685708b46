/* The log: its segments, its entries, and where it ends. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/files.h"
#include "cli/columns.h"
#include "cli/inspect.h"
#include "engine/command.h"
#include "engine/row.h"
#include "replica/look.h"

/* ---- walking all of it ---- */

struct listing {
    const struct inspect_group *g;
    const char *part; /* log, archive */
    struct inspect_segment *at;
    uint32_t count, cap;
};

static bool segment_list(void *ctx, const struct files_entry *e)
{
    struct listing *l = ctx;
    uint64_t first_pos;
    if (e->is_dir || !manifest_segment(e->name, &first_pos)) return true;
    if (l->count == l->cap) {
        l->cap = l->cap == 0 ? 64 : l->cap * 2;
        l->at = realloc(l->at, l->cap * sizeof *l->at);
        must(l->at != NULL);
    }
    struct inspect_segment *s = &l->at[l->count++];
    *s = (struct inspect_segment){.walk = {.first_pos = first_pos}};
    snprintf(s->path, sizeof s->path, "%.*s/%s/%.20s", INSPECT_PATH_BYTES - 40, l->g->dir, l->part, e->name);
    return true;
}

struct walking {
    struct inspect *i;
    struct inspect_segment *s;
    bool (*item)(void *ctx, const struct inspect_segment *s, const struct segment_item *r);
    void *ctx;
    bool ended;
};

static bool item_seen(void *ctx, const struct segment_item *r)
{
    struct walking *w = ctx;
    if (r->synced > w->s->synced_max) w->s->synced_max = r->synced;
    w->ended = w->item != NULL && !w->item(w->ctx, w->s, r);
    return !w->ended;
}

/* A stop is damage when something behind it proves that more had been durable; else the log ends there. */
static void segments_judge(struct inspect_segment *segments, uint32_t count)
{
    uint64_t proven = 0; /* by what lies behind */
    for (uint32_t n = count; n-- > 0;) {
        struct inspect_segment *s = &segments[n];
        const struct segment_walk *w = &s->walk;
        uint64_t stop = w->end_pos == 0 ? w->first_pos : w->stop_pos;
        if (w->proof_synced > proven) proven = w->proof_synced;
        if (w->end_pos != 0 && w->stop_pos == w->end_pos)
            s->state = SEGMENT_WHOLE;
        else if (proven > stop)
            s->state = SEGMENT_DAMAGED;
        else
            s->state = w->records == 0 ? SEGMENT_UNUSED : SEGMENT_ENDS;
        if (s->synced_max > proven) proven = s->synced_max;
    }
}

/* Into the list; an errno value of listing the directory. */
static int files_walk(struct walking *w, struct listing *l, bool heads_only, bool *good)
{
    char dir[INSPECT_PATH_BYTES + 16];
    snprintf(dir, sizeof dir, "%s/%s", l->g->dir, l->part);
    *good = true;
    int code = files_list(dir, segment_list, l);
    for (uint32_t n = 0; code == 0 && n < l->count && !w->ended; n++) {
        struct buf error = {0};
        w->s = &l->at[n];
        w->s->walk = (struct segment_walk){
            .path = w->s->path, .first_pos = w->s->walk.first_pos, .heads_only = heads_only, .ctx = w, .item = item_seen};
        if (segment_walk(&w->s->walk, &error) != LOG_OK) {
            inspect_io(w->i, "%.*s", (int)error.len, error.at);
            *good = false;
        }
        buf_free(&error);
    }
    segments_judge(l->at, l->count);
    return code;
}

bool inspect_log_walk(struct inspect *i, struct inspect_group *g, bool heads_only,
                      bool (*item)(void *ctx, const struct inspect_segment *s, const struct segment_item *r), void *ctx)
{
    struct listing l = {.g = g, .part = "log"};
    struct walking w = {.i = i, .item = item, .ctx = ctx};
    bool good;
    int code = files_walk(&w, &l, heads_only, &good);
    free(g->segments);
    g->segments = l.at;
    g->segment_count = l.count;
    if (code != 0) inspect_io(i, "%s/log: cannot be listed: %s", g->dir, strerror(code));
    return code == 0 && good;
}

bool inspect_archive_walk(struct inspect *i, struct inspect_group *g, bool heads_only,
                          bool (*item)(void *ctx, const struct inspect_segment *s, const struct segment_item *r), void *ctx)
{
    struct listing l = {.g = g, .part = "archive"};
    struct walking w = {.i = i, .item = item, .ctx = ctx};
    bool good;
    int code = files_walk(&w, &l, heads_only, &good);
    free(g->archive);
    g->archive = l.at;
    g->archive_count = l.count;
    if (code == ENOENT) return true;
    if (code != 0) inspect_io(i, "%s/archive: cannot be listed: %s", g->dir, strerror(code));
    return code == 0 && good;
}

/* ---- segments ---- */

static const char *state_of(const struct inspect_segment *s)
{
    static const char *const names[] = {"whole", "the log ends in it", "not in use", "damaged"};
    return names[s->state];
}

/* Payload bytes that the stored state wants, by segment: the row that the engine keeps of them. */
struct live {
    bool known;
    struct buf rows[2]; /* of the log, of the archive: number of the first segment, bytes of each, u64 */
};

static bool live_row(void *ctx, struct slice key, struct slice value)
{
    struct live *l = ctx;
    if (key.len == 2 && (unsigned char)key.at[1] < 2 && value.len % 8 == 0)
        buf_slice(&l->rows[(unsigned char)key.at[1]], value);
    return true;
}

static void live_read(const struct inspect_group *g, struct live *out)
{
    static const char from[] = {ROW_SEGMENT}, to[] = {ROW_SEGMENT + 1};
    char dir[INSPECT_PATH_BYTES + 16];
    struct store_look *look;
    struct store_mark mark;
    struct buf error = {0};
    *out = (struct live){0};
    snprintf(dir, sizeof dir, "%s/store", g->dir);
    if (store_look_open(&look, dir, &mark, &error) == STORE_OK) {
        out->known = store_look_scan(look, slice_make(from, 1), slice_make(to, 1), live_row, out, &error) == STORE_OK;
        store_look_close(look);
    }
    buf_free(&error);
}

static uint64_t live_of(const struct live *l, int home, const struct segment_walk *w)
{
    const struct buf *row = &l->rows[home];
    uint64_t base, sum = 0, unit = w->segment_bytes;
    if (row->len < 8 || unit == 0) return 0;
    memcpy(&base, row->at, sizeof base);
    for (uint64_t pos = w->first_pos; pos < w->end_pos; pos += unit) {
        uint64_t n = pos / unit, bytes;
        if (n < base || (n - base + 2) * 8 > row->len) continue;
        memcpy(&bytes, row->at + (n - base + 1) * 8, sizeof bytes);
        sum += bytes;
    }
    return sum;
}

static void segment_json(struct inspect *i, const struct inspect_group *g, const struct inspect_segment *s,
                         const struct live *live, int home)
{
    const struct segment_walk *w = &s->walk;
    inspect_text(i, "file", slice_of(s->path));
    inspect_field(i, "group", "%" PRIu32, g->number);
    inspect_field(i, "firstPosition", "%" PRIu64, w->first_pos);
    inspect_field(i, "endPosition", "%" PRIu64, w->end_pos);
    inspect_field(i, "bytes", "%" PRIu64, w->file_bytes);
    inspect_field(i, "entries", "%" PRIu64, w->entries);
    inspect_field(i, "entryBytes", "%" PRIu64, w->entry_bytes);
    inspect_field(i, "firstIndex", "%" PRIu64, w->first_index);
    inspect_field(i, "lastIndex", "%" PRIu64, w->last_index);
    inspect_field(i, "lastTerm", "%" PRIu64, w->last_term);
    inspect_field(i, "generation", "%" PRIu32, w->gen);
    inspect_field(i, "stopOffset", "%" PRIu64, w->end_pos == 0 ? 0 : w->stop_pos - w->first_pos);
    inspect_text(i, "state", slice_of(state_of(s)));
    inspect_text(i, "home", slice_of(home == 0 ? "log" : "archive"));
    inspect_field(i, "liveBytes", live->known ? "%" PRIu64 : "null", live_of(live, home, w));
    inspect_line_end(i);
}

static void segments_print(struct inspect *i, const struct inspect_group *g, const struct inspect_segment *segments,
                           uint32_t count, const struct live *live, int home)
{
    static const char *const heading[] = {"FILE", "BYTES",      "ENTRIES", "FIRST",  "LAST",
                                          "TERM", "GENERATION", "ENDS AT", "WANTED", "STATE"};
    enum { ACROSS = sizeof heading / sizeof heading[0] };
    for (uint32_t from = 0; from < count || from == 0;) {
        struct columns *t = calloc(1, sizeof *t);
        must(t != NULL);
        t->across = ACROSS;
        t->right = 0x1fe;
        for (int c = 0; c < ACROSS && !i->json; c++) columns_cell(t, slice_of(heading[c]));
        uint32_t n = from;
        for (; n < count && n < from + 100; n++) {
            const struct inspect_segment *s = &segments[n];
            const struct segment_walk *w = &s->walk;
            if (i->json) {
                segment_json(i, g, s, live, home);
                continue;
            }
            columns_cellf(t, "%s%s", home == 0 ? "" : "archive/", strrchr(s->path, '/') + 1);
            columns_cellf(t, "%" PRIu64, w->file_bytes);
            columns_cellf(t, "%" PRIu64, w->entries);
            columns_cellf(t, "%" PRIu64, w->first_index);
            columns_cellf(t, "%" PRIu64, w->last_index);
            columns_cellf(t, "%" PRIu64, w->last_term);
            columns_cellf(t, "%" PRIu32, w->gen);
            columns_cellf(t, "%" PRIu64, w->end_pos == 0 ? 0 : w->stop_pos - w->first_pos);
            columns_cellf(t, live->known ? "%" PRIu64 : "-", live_of(live, home, w));
            columns_cell(t, slice_of(state_of(s)));
        }
        columns_print(t);
        columns_free(t);
        free(t);
        from = n > from ? n : from + 1;
    }
}

void inspect_segments(struct inspect *i, struct inspect_group *g)
{
    struct live live;
    if (!inspect_log_walk(i, g, true, NULL, NULL)) return;
    bool archive = inspect_archive_walk(i, g, true, NULL, NULL) && g->archive_count > 0;
    live_read(g, &live);
    segments_print(i, g, g->segments, g->segment_count, &live, 0);
    if (archive) segments_print(i, g, g->archive, g->archive_count, &live, 1);
    for (int home = 0; home < 2; home++) buf_free(&live.rows[home]);
}

/* ---- entries ---- */

static const char *const KINDS[] = {
    [COMMAND_PUSH] = "push",
    [COMMAND_POP] = "pop",
    [COMMAND_ACK] = "ack",
    [COMMAND_EXTEND] = "extend",
    [COMMAND_CONFIGURE] = "configure",
    [COMMAND_QUEUE_DELETE] = "queue-delete",
    [COMMAND_CLAIM_RETURN] = "claim-return",
    [COMMAND_INIT] = "init",
    [COMMAND_KV] = "kv",
    [COMMAND_TIMERS] = "timers",
    [COMMAND_LOCKS] = "locks",
    [COMMAND_POSITIONS] = "positions",
    [COMMAND_STEP] = "step",
    [COMMAND_TICK] = "tick",
    [COMMAND_SEEK] = "seek",
    [COMMAND_GROUP_DELETE] = "group-delete",
    [COMMAND_SUBSCRIPTION] = "subscription",
    [COMMAND_LETTERS_DELETE] = "letters-delete",
    [COMMAND_LETTER_MOVE] = "letter-move",
    [COMMAND_TRIM] = "trim",
    [COMMAND_ORIGINS] = "origins",
    [COMMAND_DIGEST] = "digest",
};

static const char *kind_name(uint8_t kind)
{
    return kind < sizeof KINDS / sizeof KINDS[0] && KINDS[kind] != NULL ? KINDS[kind] : "unknown";
}

static void name_put(struct buf *out, const char *before, struct slice name)
{
    buf_text(out, before);
    inspect_bytes(out, name);
}

static void push_put(struct buf *out, const struct command *c)
{
    struct push_command p;
    struct push_group g;
    if (!push_decode(c, &p)) return;
    struct slice rest = p.groups;
    for (uint32_t n = 0; n < p.group_count && push_group_next(&rest, &g); n++) {
        name_put(out, n == 0 ? " " : ", ", g.queue);
        name_put(out, "/", g.partition);
        buf_printf(out, " x%" PRIu32, g.item_count);
    }
}

static void kv_put(struct buf *out, const struct command *c)
{
    struct kv_command k;
    struct kv_op op;
    if (!kv_decode(c, &k)) return;
    struct slice rest = k.ops;
    for (uint32_t n = 0; n < k.op_count && kv_op_next(&rest, &op); n++) {
        static const char *const names[] = {"put", "delete", "incr", "check", "get", "get-many", "get-prefix"};
        buf_printf(out, "%s %s", n == 0 ? "" : ",", op.kind < 7 ? names[op.kind] : "?");
        name_put(out, " ", op.name_space);
        if (op.kind != KV_GET_MANY) name_put(out, "/", op.key);
    }
}

static void timers_put(struct buf *out, const struct command *c)
{
    struct timers_command t;
    struct timer_op op;
    if (!timers_decode(c, &t)) return;
    struct slice rest = t.ops;
    for (uint32_t n = 0; n < t.op_count && timer_op_next(&rest, &op); n++) {
        name_put(out,
                 n == 0 ? (op.kind == TIMER_SCHEDULE ? " schedule " : " cancel ")
                        : (op.kind == TIMER_SCHEDULE ? ", schedule " : ", cancel "),
                 op.queue);
        name_put(out, "/", op.key);
    }
}

static void locks_put(struct buf *out, const struct command *c)
{
    struct locks_command l;
    struct lock_op op;
    if (!locks_decode(c, &l)) return;
    struct slice rest = l.ops;
    for (uint32_t n = 0; n < l.op_count && lock_op_next(&rest, &op); n++) {
        static const char *const names[] = {"acquire", "renew", "release", "get"};
        buf_printf(out, "%s %s ", n == 0 ? "" : ",", op.kind < 4 ? names[op.kind] : "?");
        inspect_bytes(out, op.name);
    }
}

static void command_put(struct buf *out, const struct command *c);

static void step_put(struct buf *out, const struct command *c)
{
    struct step_command s;
    struct command part;
    if (!step_decode(c, &s)) return;
    buf_text(out, " {");
    struct slice rest = s.acks;
    for (uint32_t n = 0; command_next(&rest, &part); n++) {
        if (n > 0) buf_text(out, "; ");
        command_put(out, &part);
    }
    const struct command *const parts[] = {s.has_push ? &s.push : NULL, s.has_positions ? &s.positions : NULL,
                                           s.has_kv ? &s.kv : NULL, s.has_timers ? &s.timers : NULL, s.has_pop ? &s.pop : NULL};
    bool some = s.ack_commands > 0;
    for (int n = 0; n < 5; n++) {
        if (parts[n] == NULL) continue;
        if (some) buf_text(out, "; ");
        some = true;
        command_put(out, parts[n]);
    }
    buf_byte(out, '}');
}

/* Those with one or two names. */
static void small_put(struct buf *out, const struct command *c)
{
    union {
        struct pop_command pop;
        struct ack_command ack;
        struct configure_command configure;
        struct queue_delete_command gone;
        struct seek_command seek;
        struct group_delete_command group;
        struct subscription_command subscription;
        struct letters_delete_command letters;
        struct trim_command trim;
        struct origins_command origins;
        uint64_t two[2];
    } u;
    if (c->kind == COMMAND_POP && pop_decode(c, &u.pop)) {
        name_put(out, " ", u.pop.queue);
        if (u.pop.partition.len > 0) name_put(out, "/", u.pop.partition);
        name_put(out, " group ", u.pop.group);
    } else if (c->kind == COMMAND_ACK && ack_decode(c, &u.ack)) {
        buf_printf(out, " x%" PRIu32, u.ack.item_count);
        name_put(out, " group ", u.ack.group);
    } else if (c->kind == COMMAND_CONFIGURE && configure_decode(c, &u.configure)) {
        name_put(out, " ", u.configure.queue);
    } else if (c->kind == COMMAND_QUEUE_DELETE && queue_delete_decode(c, &u.gone)) {
        name_put(out, " ", u.gone.queue);
    } else if (c->kind == COMMAND_SEEK && seek_decode(c, &u.seek)) {
        name_put(out, " ", u.seek.queue);
        name_put(out, " group ", u.seek.group);
    } else if (c->kind == COMMAND_GROUP_DELETE && group_delete_decode(c, &u.group)) {
        name_put(out, " ", u.group.group);
    } else if (c->kind == COMMAND_SUBSCRIPTION && subscription_decode(c, &u.subscription)) {
        name_put(out, " ", u.subscription.group);
    } else if (c->kind == COMMAND_LETTERS_DELETE && letters_delete_decode(c, &u.letters)) {
        name_put(out, " ", u.letters.queue);
    } else if (c->kind == COMMAND_TRIM && trim_decode(c, &u.trim)) {
        buf_printf(out, " %" PRIu32 " lanes", u.trim.count);
    } else if (c->kind == COMMAND_ORIGINS && origins_decode(c, &u.origins)) {
        buf_printf(out, " of %" PRIu32 " calls", u.origins.count);
    } else if (c->kind == COMMAND_DIGEST && digest_decode(c, &u.two[0], &u.two[1])) {
        buf_printf(out, " of entry %" PRIu64, u.two[0]);
    }
}

static void command_put(struct buf *out, const struct command *c)
{
    buf_text(out, kind_name(c->kind));
    switch (c->kind) {
    case COMMAND_PUSH:
        push_put(out, c);
        break;
    case COMMAND_KV:
        kv_put(out, c);
        break;
    case COMMAND_TIMERS:
        timers_put(out, c);
        break;
    case COMMAND_LOCKS:
        locks_put(out, c);
        break;
    case COMMAND_STEP:
        step_put(out, c);
        break;
    default:
        small_put(out, c);
        break;
    }
}

struct entries {
    struct inspect *i;
    struct inspect_group *g;
    uint64_t shown;
    struct buf text;
};

static const char *type_name(uint8_t type)
{
    return type == REPLICA_ENTRY_COMMAND   ? "command"
           : type == REPLICA_ENTRY_BARRIER ? "barrier"
           : type == REPLICA_ENTRY_MEMBERS ? "members"
                                           : "unknown";
}

static void members_put(struct buf *out, struct slice body)
{
    struct replica_members *m = calloc(1, sizeof *m);
    must(m != NULL);
    if (!replica_members_decode(body, m)) buf_text(out, "cannot be read");
    for (uint32_t n = 0; n < m->count; n++)
        buf_printf(out, "%s%" PRIu64 " %s %s", n == 0 ? "" : ", ", m->at[n].id,
                   m->at[n].role == REPLICA_VOTER ? "voter" : "learner", m->at[n].address);
    free(m);
}

static void entry_json(struct entries *e, const struct inspect_segment *s, const struct segment_item *r,
                       const struct entry_head *h)
{
    struct inspect *i = e->i;
    struct slice rest = slice_make(r->body.at + ENTRY_HEAD_BYTES, h == NULL ? 0 : r->body.len - ENTRY_HEAD_BYTES);
    struct command c;
    inspect_field(i, "index", "%" PRIu64, r->index);
    inspect_field(i, "group", "%" PRIu32, e->g->number);
    inspect_field(i, "term", "%" PRIu64, r->term);
    inspect_text(i, "type", slice_of(type_name(r->type)));
    inspect_text(i, "file", slice_of(s->path));
    inspect_field(i, "offset", "%" PRIu64, r->pos - s->walk.first_pos);
    inspect_field(i, "bytes", "%" PRIu32, r->len);
    if (r->type == REPLICA_ENTRY_MEMBERS) {
        members_put(&e->text, r->body);
        inspect_text(i, "members", buf_view(&e->text));
    }
    if (h != NULL) {
        inspect_time(&e->text, h->wall_us);
        inspect_text(i, "time", buf_view(&e->text));
        inspect_field(i, "logTimeUs", "%" PRId64, h->log_us);
        buf_text(&i->line, ",\"commands\":[");
        for (uint32_t n = 0; command_next(&rest, &c); n++) {
            buf_clear(&e->text);
            command_put(&e->text, &c);
            buf_printf(&i->line, "%s{\"kind\":\"%s\",\"bytes\":%zu,\"text\":", n == 0 ? "" : ",", kind_name(c.kind), c.all.len);
            view_quote(&i->line, buf_view(&e->text));
            buf_byte(&i->line, '}');
        }
        buf_byte(&i->line, ']');
    }
    buf_clear(&e->text);
    inspect_line_end(i);
}

static void entry_text(struct entries *e, const struct inspect_segment *s, const struct segment_item *r,
                       const struct entry_head *h)
{
    struct slice rest = slice_make(r->body.at + ENTRY_HEAD_BYTES, h == NULL ? 0 : r->body.len - ENTRY_HEAD_BYTES);
    struct buf *t = &e->text;
    struct command c;
    buf_printf(t, "%" PRIu64 "  term %" PRIu64 "  %s  %s+%" PRIu64 "  %" PRIu32 " bytes", r->index, r->term, type_name(r->type),
               strrchr(s->path, '/') + 1, r->pos - s->walk.first_pos, r->len);
    if (h != NULL) {
        buf_text(t, "  ");
        inspect_time(t, h->wall_us);
    }
    if (r->type == REPLICA_ENTRY_MEMBERS) {
        buf_text(t, "  ");
        members_put(t, r->body);
    }
    while (h != NULL && command_next(&rest, &c)) {
        buf_printf(t, "\n    %7zu  ", c.all.len);
        command_put(t, &c);
    }
    printf("%.*s\n", (int)t->len, t->at);
    buf_clear(t);
}

static bool entry_show(void *ctx, const struct inspect_segment *s, const struct segment_item *r)
{
    struct entries *e = ctx;
    const struct inspect *i = e->i;
    struct entry_head h;
    if (r->kind != SEGMENT_ENTRY || r->index < i->from || (i->to > 0 && r->index > i->to)) return true;
    bool command = r->type == REPLICA_ENTRY_COMMAND && entry_head_read(r->body, &h);
    if (i->json)
        entry_json(e, s, r, command ? &h : NULL);
    else
        entry_text(e, s, r, command ? &h : NULL);
    return i->limit == 0 || ++e->shown < i->limit;
}

void inspect_entries(struct inspect *i, struct inspect_group *g)
{
    struct entries e = {.i = i, .g = g};
    inspect_log_walk(i, g, false, entry_show, &e);
    buf_free(&e.text);
}
