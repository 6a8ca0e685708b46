#include "http/timer_payload.h"

#include <zstd.h>
#include <zstd_errors.h>

#include "base/must.h"
#include "http/json.h"

/* ---- base64 ------------------------------------------------------------------------------------------------------- */

static inline int base64_digit(unsigned char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Value of each character, -1 for those that are none. */
static const int8_t *base64_table(void)
{
    static _Thread_local int8_t table[256];
    static _Thread_local bool made;
    for (int c = 0; c < 256 && !made; c++) table[c] = (int8_t)base64_digit((unsigned char)c);
    made = true;
    return table;
}

/* The last four characters, of which `padding` are `=`: gives one or two bytes. */
static bool base64_tail(const int8_t *table, const unsigned char *at, unsigned padding, unsigned char *out)
{
    int a = table[at[0]], b = table[at[1]], c = padding == 2 ? 0 : table[at[2]];
    if ((a | b | c) < 0) return false;
    out[0] = (unsigned char)(a << 2 | b >> 4);
    if (padding == 2) return (b & 15) == 0;
    out[1] = (unsigned char)(b << 4 | c >> 2);
    return (c & 3) == 0;
}

bool base64_decode(struct slice text, struct arena *arena, struct slice *out)
{
    const int8_t *table = base64_table();
    const unsigned char *at = (const unsigned char *)text.at;
    if (text.len % 4 != 0) return false;
    unsigned padding = text.len == 0 || at[text.len - 1] != '=' ? 0 : at[text.len - 2] != '=' ? 1 : 2;
    size_t whole = text.len / 4 - (padding > 0 ? 1 : 0), len = text.len / 4 * 3 - padding;
    unsigned char *bytes = arena_get(arena, len + JSON_PAD), *to = bytes;
    int bad = 0;
    for (size_t i = 0; i < whole; i++, at += 4, to += 3) {
        int a = table[at[0]], b = table[at[1]], c = table[at[2]], d = table[at[3]];
        bad |= a | b | c | d;
        to[0] = (unsigned char)((unsigned)a << 2 | (unsigned)b >> 4);
        to[1] = (unsigned char)((unsigned)b << 4 | (unsigned)c >> 2);
        to[2] = (unsigned char)((unsigned)c << 6 | (unsigned)d);
    }
    if (bad < 0 || (padding > 0 && !base64_tail(table, at, padding, to))) return false;
    memset(bytes + len, 0, JSON_PAD);
    *out = slice_make(bytes, len);
    return true;
}

void base64_encode(struct slice bytes, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *at = (const unsigned char *)bytes.at;
    size_t left = bytes.len;
    for (; left >= 3; left -= 3, at += 3) {
        *out++ = digits[at[0] >> 2];
        *out++ = digits[(at[0] & 3) << 4 | at[1] >> 4];
        *out++ = digits[(at[1] & 15) << 2 | at[2] >> 6];
        *out++ = digits[at[2] & 63];
    }
    if (left == 0) return;
    unsigned second = left == 2 ? at[1] : 0;
    *out++ = digits[at[0] >> 2];
    *out++ = digits[(at[0] & 3u) << 4 | second >> 4];
    *out++ = left == 2 ? digits[(second & 15) << 2] : '=';
    *out = '=';
}

/* ---- Zstandard ---------------------------------------------------------------------------------------------------- */

/* One shot into a buffer that doubles: so no frame can ask for a window, and what it claims about its size is only a hint. */
enum unzstd_result payload_unzstd(struct slice packed, size_t bytes_max, struct arena *arena, struct slice *out)
{
    enum { ROOM_MIN = 4096 };
    unsigned long long claimed = ZSTD_getFrameContentSize(packed.at, packed.len);
    if (packed.len == 0 || claimed == ZSTD_CONTENTSIZE_ERROR) return UNZSTD_BAD;
    size_t room = packed.len * 4 < ROOM_MIN ? ROOM_MIN : packed.len * 4;
    if (claimed != ZSTD_CONTENTSIZE_UNKNOWN && claimed > room) room = claimed > bytes_max ? bytes_max : (size_t)claimed;
    for (;; room *= 2) {
        if (room > bytes_max) room = bytes_max;
        char *bytes = arena_get(arena, room + JSON_PAD);
        size_t len = ZSTD_decompress(bytes, room, packed.at, packed.len);
        if (!ZSTD_isError(len)) {
            memset(bytes + len, 0, JSON_PAD);
            *out = slice_make(bytes, len);
            return UNZSTD_OK;
        }
        if (ZSTD_getErrorCode(len) != ZSTD_error_dstSize_tooSmall) return UNZSTD_BAD;
        if (room == bytes_max) return UNZSTD_TOO_LARGE;
    }
}

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

/* The exponent of a checked number, from behind its `e`; drawn to a range in which nothing overflows. */
static int64_t exponent_read(const char *at, const char *end)
{
    const int64_t far = INT64_C(1) << 40;
    bool negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    int64_t value = 0;
    for (; at < end; at++) value = value > far ? far : value * 10 + (*at - '0');
    return negative ? -value : value;
}

/* Digits without leading zeros, read as 0.ddd... x 10^point: then the places in front of the point are the whole microseconds. */
int64_t number_ms_to_us(struct slice number)
{
    enum { DIGITS_KEPT = 20, LIMIT_DIGITS = 18 };
    const char *at = number.at, *end = number.at + number.len;
    bool negative = at < end && *at == '-', fraction = false;
    char digits[DIGITS_KEPT];
    int64_t point = 3, value = 0, count = 0;
    for (at += negative ? 1 : 0; at < end && *at != 'e' && *at != 'E'; at++) {
        if (*at == '.') {
            fraction = true;
            continue;
        }
        bool leading = count == 0 && *at == '0';
        if (!leading && count < DIGITS_KEPT) digits[count++] = *at;
        if (fraction ? leading : !leading) point += fraction ? -1 : 1;
    }
    if (at < end) point += exponent_read(at + 1, end);
    if (count == 0 || point < 0) return 0;
    if (point > LIMIT_DIGITS) return negative ? -MS_TO_US_LIMIT : MS_TO_US_LIMIT;
    for (int64_t i = 0; i < point; i++) value = value * 10 + (i < count ? digits[i] - '0' : 0);
    if (point < count && digits[point] >= '5') value++;
    return negative ? -value : value;
}
