#include "cli/json_view.h"

#include "cli/json_scan.h"

enum {
    JSON_MEMBERS_MAX = 32,
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

static uint32_t hex4(const char *at)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return v;
}

static void utf8_put(struct buf *b, uint32_t c)
{
    if (c < 0x80) {
        buf_byte(b, (char)c);
    } else if (c < 0x800) {
        buf_byte(b, (char)(0xc0 | c >> 6));
        buf_byte(b, (char)(0x80 | (c & 63)));
    } else if (c < 0x10000) {
        buf_byte(b, (char)(0xe0 | c >> 12));
        buf_byte(b, (char)(0x80 | (c >> 6 & 63)));
        buf_byte(b, (char)(0x80 | (c & 63)));
    } else {
        buf_byte(b, (char)(0xf0 | c >> 18));
        buf_byte(b, (char)(0x80 | (c >> 12 & 63)));
        buf_byte(b, (char)(0x80 | (c >> 6 & 63)));
        buf_byte(b, (char)(0x80 | (c & 63)));
    }
}

/* The escape at `at` ("uXXXX" or one letter). Returns its length without the backslash. */
static size_t escape_put(struct buf *b, const char *at, size_t len)
{
    static const char letters[] = "bfnrt";
    static const char meant[] = "\b\f\n\r\t";
    if (at[0] != 'u') {
        const char *known = strchr(letters, at[0]);
        buf_byte(b, known == NULL ? at[0] : meant[known - letters]);
        return 1;
    }
    must(len >= 5);
    uint32_t c = hex4(at + 1);
    bool pair = c >= 0xd800 && c < 0xe000; /* view_whole refuses half of one */
    must(!pair || len >= 11);
    utf8_put(b, pair ? 0x10000 + ((c - 0xd800) << 10) + (hex4(at + 7) - 0xdc00) : c);
    return pair ? 11 : 5;
}

void view_text(struct buf *b, struct slice raw)
{
    must(view_is_string(raw));
    struct slice s = view_unquoted(raw);
    for (size_t i = 0; i < s.len;) {
        if (s.at[i] != '\\') {
            buf_byte(b, s.at[i++]);
        } else {
            must(i + 1 < s.len);
            i += 1 + escape_put(b, s.at + i + 1, s.len - i - 1);
        }
    }
}

void view_one_line(struct buf *b, struct slice value)
{
    buf_slice(b, value);
    char *at = b->at + b->len - value.len;
    for (size_t i = 0; i < value.len; i++) {
        if (at[i] == '\n' || at[i] == '\r') at[i] = ' ';
    }
}
