#include "cli/json_view.h"

#include "cli/json_scan.h"

enum {
    JSON_MEMBERS_MAX = 16,
};

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static struct slice trimmed(struct slice s)
{
    while (s.len > 0 && blank(s.at[0])) s.at++, s.len--;
    while (s.len > 0 && blank(s.at[s.len - 1])) s.len--;
    return s;
}

static struct slice part_of(struct slice text, struct view_span span)
{
    must(span.at <= text.len && span.len <= text.len - span.at);
    return trimmed(slice_make(text.at + span.at, span.len));
}

bool view_whole(struct slice text, struct slice *value)
{
    if (!view_scan_whole(text.at, text.len)) return false;
    *value = trimmed(text);
    return true;
}

bool view_members(struct slice text, const char *const *names, struct slice *values, size_t count)
{
    struct view_span spans[JSON_MEMBERS_MAX];
    must(count <= JSON_MEMBERS_MAX);
    if (!view_scan_members(text.at, text.len, names, spans, count)) return false;
    for (size_t i = 0; i < count; i++) {
        values[i] = spans[i].present ? part_of(text, spans[i]) : (struct slice){.at = NULL, .len = 0};
    }
    return true;
}

struct walk {
    struct slice array;
    bool (*each)(void *arg, struct slice element);
    void *arg;
};

static bool walk_each(void *arg, struct view_span element)
{
    struct walk *w = arg;
    return w->each(w->arg, part_of(w->array, element));
}

bool view_elements(struct slice array, bool (*each)(void *arg, struct slice element), void *arg)
{
    struct walk w = {.array = array, .each = each, .arg = arg};
    return view_scan_elements(array.at, array.len, walk_each, &w);
}

void view_quote(struct buf *b, struct slice text)
{
    buf_byte(b, '"');
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.at[i];
        if (c == '"' || c == '\\') {
            buf_byte(b, '\\');
            buf_byte(b, (char)c);
        } else if (c < ' ') {
            buf_printf(b, "\\u%04x", c);
        } else {
            buf_byte(b, (char)c);
        }
    }
    buf_byte(b, '"');
}

void view_one_line(struct buf *b, struct slice value)
{
    buf_slice(b, value);
    char *at = b->at + b->len - value.len;
    for (size_t i = 0; i < value.len; i++) {
        if (at[i] == '\n' || at[i] == '\r') at[i] = ' ';
    }
}
