/* The store's rows, the small files, and the short account. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/files.h"
#include "cli/columns.h"
#include "cli/inspect.h"
#include "engine/row.h"
#include "replica/look.h"

/* ---- rows ---- */

static const struct {
    uint8_t kind;
    const char *name;
    uint8_t numbers[4]; /* of its key: their sizes */
} KINDS[] = {
    {ROW_META, "meta", {0}},
    {ROW_QUEUE, "queue", {4}},
    {ROW_GROUP, "group", {4, 4}},
    {ROW_LANE, "partition", {4, 4}},
    {ROW_LANE, "cursor", {4, 4, 4}},
    {ROW_DEAD_LETTER, "dead-letter", {4, 8}},
    {ROW_DEDUP, "dedup", {1, 8}},
    {ROW_SEGMENT, "segment", {1}},
    {ROW_KV, "kv", {0}},
    {ROW_TIMER, "timer", {8, 8}},
    {ROW_RUN, "run", {4, 4, 8}},
    {ROW_KV_DUE, "kv-due", {8}},
    {ROW_TIMER_PATH, "timer-path", {0}},
    {ROW_DEDUP_GENERATION, "dedup-generation", {4}},
    {ROW_DEDUP_FILTER, "dedup-filter", {4, 1, 4}},
    {ROW_DEDUP_RECORDS, "dedup-records", {4, 1, 4}},
};
enum { KIND_COUNT = sizeof KINDS / sizeof KINDS[0] };

static int kind_of(struct slice key)
{
    int k = 0;
    while (k < KIND_COUNT && KINDS[k].kind != (uint8_t)key.at[0]) k++;
    if (k == KIND_COUNT) return -1;
    return KINDS[k].kind == ROW_LANE && key.len == CURSOR_KEY_BYTES ? k + 1 : k;
}

/* "queue 3 partition 7 group 1"'s numbers: 3 7 1. KV paths as tenant, namespace and key. */
static void key_put(struct buf *out, int kind, struct slice key)
{
    size_t at = 1;
    if (KINDS[kind].kind == ROW_KV && key.len > 17) {
        struct uuid tenant;
        char text[UUID_TEXT];
        memcpy(tenant.bytes, key.at + 1, 16);
        uuid_text(tenant, text);
        buf_printf(out, "%.*s ", UUID_TEXT, text);
        const char *nul = memchr(key.at + 17, '\0', key.len - 17);
        size_t space = nul == NULL ? key.len - 17 : (size_t)(nul - key.at - 17);
        inspect_bytes(out, slice_make(key.at + 17, space));
        if (nul == NULL) return;
        buf_byte(out, ' ');
        inspect_bytes(out, slice_make(nul + 1, (size_t)(key.at + key.len - nul - 1)));
        return;
    }
    for (int n = 0; n < 4 && KINDS[kind].numbers[n] != 0 && at + KINDS[kind].numbers[n] <= key.len; n++) {
        uint64_t v = row_key_number(key.at + at, KINDS[kind].numbers[n]);
        at += KINDS[kind].numbers[n];
        buf_printf(out, "%s%" PRIu64, n == 0 ? "" : " ", v);
    }
    if (at < key.len) {
        if (at > 1) buf_byte(out, ' ');
        inspect_bytes(out, slice_make(key.at + at, key.len - at));
    }
}

struct rows {
    struct inspect *i;
    struct inspect_group *g;
    int wanted; /* -1: only counts */
    uint64_t count[KIND_COUNT + 1], key_bytes[KIND_COUNT + 1], value_bytes[KIND_COUNT + 1], shown;
    struct buf text;
};

static bool row_seen(void *ctx, struct slice key, struct slice value)
{
    struct rows *r = ctx;
    struct inspect *i = r->i;
    int kind = kind_of(key), at = kind < 0 ? KIND_COUNT : kind;
    r->count[at]++;
    r->key_bytes[at] += key.len;
    r->value_bytes[at] += value.len;
    if (r->wanted < 0 || kind != r->wanted) return true;
    buf_clear(&r->text);
    key_put(&r->text, kind, key);
    if (i->json) {
        inspect_text(i, "kind", slice_of(KINDS[kind].name));
        inspect_field(i, "group", "%" PRIu32, r->g->number);
        inspect_text(i, "key", buf_view(&r->text));
        inspect_field(i, "bytes", "%zu", value.len);
        inspect_line_end(i);
    } else {
        printf("%s  %.*s  %zu bytes\n", KINDS[kind].name, (int)r->text.len, r->text.at, value.len);
    }
    return i->limit == 0 || ++r->shown < i->limit;
}

static void counts_print(struct rows *r)
{
    struct inspect *i = r->i;
    struct columns *t = calloc(1, sizeof *t);
    static const char *const heading[] = {"KIND", "ROWS", "KEY BYTES", "VALUE BYTES"};
    must(t != NULL);
    t->across = 4;
    t->right = 0xe;
    for (int c = 0; c < 4 && !i->json; c++) columns_cell(t, slice_of(heading[c]));
    for (int k = 0; k <= KIND_COUNT; k++) {
        const char *name = k == KIND_COUNT ? "unknown" : KINDS[k].name;
        if (k == KIND_COUNT && r->count[k] == 0) continue;
        if (i->json) {
            inspect_text(i, "kind", slice_of(name));
            inspect_field(i, "group", "%" PRIu32, r->g->number);
            inspect_field(i, "rows", "%" PRIu64, r->count[k]);
            inspect_field(i, "keyBytes", "%" PRIu64, r->key_bytes[k]);
            inspect_field(i, "valueBytes", "%" PRIu64, r->value_bytes[k]);
            inspect_line_end(i);
            continue;
        }
        columns_cell(t, slice_of(name));
        columns_cellf(t, "%" PRIu64, r->count[k]);
        columns_cellf(t, "%" PRIu64, r->key_bytes[k]);
        columns_cellf(t, "%" PRIu64, r->value_bytes[k]);
    }
    columns_print(t);
    columns_free(t);
    free(t);
}

void inspect_rows(struct inspect *i, struct inspect_group *g)
{
    struct rows r = {.i = i, .g = g, .wanted = -1};
    struct buf error = {0};
    for (int k = 0; i->kind != NULL && k < KIND_COUNT; k++)
        if (strcmp(KINDS[k].name, i->kind) == 0) r.wanted = k;
    if (i->kind != NULL && r.wanted < 0) {
        verb_say(&i->verb, "there is no kind %s; see `queen inspect --help`", i->kind);
        verb_fail(&i->verb, CLI_USAGE);
        return;
    }
    if (!inspect_store_open(i, g)) return;
    char first = r.wanted < 0 ? 0 : (char)KINDS[r.wanted].kind, after = (char)(first + 1);
    struct slice from = slice_make(&first, r.wanted < 0 ? 0 : 1), to = slice_make(&after, r.wanted < 0 ? 0 : 1);
    enum store_status status = store_look_scan(g->store, from, to, row_seen, &r, &error);
    if (status == STORE_DAMAGED) inspect_find(i, g->dir, UINT64_MAX, "%.*s", (int)error.len, error.at);
    if (status == STORE_IO) inspect_io(i, "%.*s", (int)error.len, error.at);
    if (status == STORE_OK && r.wanted < 0) counts_print(&r);
    buf_free(&r.text);
    buf_free(&error);
}

/* ---- small files ---- */

static void text_file(struct inspect *i, const char *dir, const char *name)
{
    char path[INSPECT_PATH_BYTES + 16];
    struct buf text = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int code = files_read(path, 0, 1 << 18, &text);
    if (code != 0 && code != ENOENT) inspect_io(i, "%s: %s", path, strerror(code));
    if (code == 0 && i->json) {
        inspect_text(i, "file", slice_of(path));
        inspect_text(i, "text", buf_view(&text));
        inspect_line_end(i);
    } else if (code == 0) {
        printf("%s\n", path);
        for (struct slice rest = buf_view(&text); rest.len > 0;) {
            const char *end = memchr(rest.at, '\n', rest.len);
            size_t len = end == NULL ? rest.len : (size_t)(end - rest.at);
            printf("  %.*s\n", (int)len, rest.at);
            rest = slice_make(rest.at + len + (end != NULL), rest.len - len - (end != NULL));
        }
    }
    buf_free(&text);
}

void inspect_identity(struct inspect *i)
{
    if (i->backup) {
        text_file(i, i->dir, "BACKUP");
        text_file(i, i->dir, "groups");
        return;
    }
    text_file(i, i->dir, "disk");
    text_file(i, i->dir, "groups");
    text_file(i, i->dir, "peers");
    for (uint32_t n = 0; n < i->group_count; n++) text_file(i, i->groups[n].dir, "identity");
}

static void members_print(struct inspect *i, const struct replica_members *m)
{
    for (uint32_t n = 0; n < m->count; n++) {
        const char *role = m->at[n].role == REPLICA_VOTER ? "voter" : "learner";
        if (i->json)
            buf_printf(&i->line, "%s{\"id\":%" PRIu64 ",\"role\":\"%s\",\"address\":\"%s\"}", n == 0 ? ",\"members\":[" : ",",
                       m->at[n].id, role, m->at[n].address);
        else
            printf("member %" PRIu64 ": %s %s\n", m->at[n].id, role, m->at[n].address);
    }
    if (i->json && m->count > 0) buf_byte(&i->line, ']');
}

void inspect_raft(struct inspect *i, struct inspect_group *g)
{
    struct replica_look *look = calloc(1, sizeof *look);
    struct buf error = {0};
    must(look != NULL);
    enum log_status status = replica_look(g->dir, look, &error);
    if (status == LOG_DAMAGED) inspect_find(i, g->dir, UINT64_MAX, "%.*s", (int)error.len, error.at);
    if (status == LOG_IO) inspect_io(i, "%.*s", (int)error.len, error.at);
    bool stored = inspect_store_open(i, g);
    if (i->json) {
        buf_clear(&i->line);
        inspect_field(i, "group", "%" PRIu32, g->number);
        inspect_field(i, "term", look->has_meta ? "%" PRIu64 : "null", look->term);
        inspect_field(i, "vote", look->has_meta ? "%" PRIu64 : "null", look->vote);
        inspect_field(i, "membersIndex", look->has_members ? "%" PRIu64 : "null", look->members.index);
        members_print(i, &look->members);
        inspect_field(i, "storedIndex", stored ? "%" PRIu64 : "null", g->mark.index);
        inspect_field(i, "storedTerm", stored ? "%" PRIu64 : "null", g->mark.term);
        inspect_field(i, "scanPosition", stored ? "%" PRIu64 : "null", g->mark.scan_pos);
        inspect_line_end(i);
    } else {
        if (look->has_identity) printf("node %" PRIu64 ", generation %" PRIu64 "\n", look->node, look->generation);
        if (look->has_meta)
            printf("term %" PRIu64 ", vote %" PRIu64 "%s\n", look->term, look->vote, look->waits ? ", waits to be added" : "");
        if (look->has_members) printf("members of entry %" PRIu64 "\n", look->members.index);
        members_print(i, &look->members);
        if (stored)
            printf("stored: the state at entry %" PRIu64 " of term %" PRIu64 "; a start reads the log from position %" PRIu64
                   " on\n",
                   g->mark.index, g->mark.term, g->mark.scan_pos);
    }
    buf_free(&error);
    free(look);
}

/* ---- the short account ---- */

void inspect_summary(struct inspect *i, struct inspect_group *g)
{
    uint64_t bytes = 0, entries = 0, first = 0, last = 0;
    bool stored = inspect_store_open(i, g);
    if (!inspect_log_walk(i, g, true, NULL, NULL)) return;
    for (uint32_t n = 0; n < g->segment_count; n++) {
        const struct segment_walk *w = &g->segments[n].walk;
        bytes += w->file_bytes;
        entries += w->entries;
        if (w->entries > 0 && first == 0) first = w->first_index;
        if (w->entries > 0) last = w->last_index;
    }
    if (i->json) {
        inspect_field(i, "group", "%" PRIu32, g->number);
        inspect_text(i, "dir", slice_of(g->dir));
        inspect_field(i, "segments", "%" PRIu32, g->segment_count);
        inspect_field(i, "segmentBytes", "%" PRIu64, bytes);
        inspect_field(i, "entries", "%" PRIu64, entries);
        inspect_field(i, "firstIndex", "%" PRIu64, first);
        inspect_field(i, "lastIndex", "%" PRIu64, last);
        inspect_field(i, "storedIndex", stored ? "%" PRIu64 : "null", g->mark.index);
        inspect_line_end(i);
        return;
    }
    printf("%s\n", g->dir);
    printf("  log: %" PRIu32 " segments, %" PRIu64 " bytes, %" PRIu64 " entries (%" PRIu64 " to %" PRIu64 ")\n",
           g->segment_count, bytes, entries, first, last);
    if (stored) printf("  store: the state at entry %" PRIu64 " of term %" PRIu64 "\n", g->mark.index, g->mark.term);
}
