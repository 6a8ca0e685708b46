#include "http/name.h"

#include "base/limits.h"
#include "http/json_utf8.h"

bool name_has_control(struct slice s)
{
    for (size_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.at[i] < 0x20) return true;
    }
    return false;
}

bool name_equals_caseless(struct slice s, const char *lower)
{
    if (s.len != strlen(lower)) return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.at[i];
        if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
        if (c != lower[i]) return false;
    }
    return true;
}

bool name_fits(struct slice queue, struct slice partition, struct slice group)
{
    size_t longer = partition.len > group.len ? partition.len : group.len;
    return queue.len <= NAMES_BYTES_MAX && longer <= NAMES_BYTES_MAX &&
           TENANT_TEXT_BYTES + queue.len + longer <= NAMES_BYTES_MAX;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool name_decode(struct slice raw, bool plus, struct arena *arena, struct slice *out)
{
    bool plain = true, wide = false;
    for (size_t i = 0; i < raw.len; i++) {
        plain &= raw.at[i] != '%' && (raw.at[i] != '+' || !plus);
        wide |= (unsigned char)raw.at[i] > 0x7f;
    }
    *out = raw;
    if (plain) return !wide || json_utf8_valid(raw.at, raw.len);
    char *text = arena_get(arena, raw.len);
    size_t len = 0;
    for (size_t i = 0; i < raw.len; i++) {
        char c = raw.at[i];
        if (c == '%') {
            if (raw.len - i < 3) return false;
            int high = hex_digit(raw.at[i + 1]), low = hex_digit(raw.at[i + 2]);
            if (high < 0 || low < 0) return false;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        text[len++] = c;
    }
    *out = slice_make(text, len);
    return json_utf8_valid(text, len);
}
