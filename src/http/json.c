#include "http/json.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/limits.h"
#include "base/must.h"
#include "http/json_utf8.h"

/* What a scan of a string found out on its way. */
struct scan {
    bool escapes, wide; /* has a backslash; has bytes above 0x7f */
};

void json_open(struct json *j, struct slice text, struct arena *arena)
{
    *j = (struct json){.at = text.at, .start = text.at, .end = text.at + text.len, .arena = arena};
}

bool json_fail(struct json *j, const char *error)
{
    if (j->error == NULL) j->error = error;
    return false;
}

static inline bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The zero bytes behind the end stop every loop of this file. */
static inline const char *space_skip(const char *p)
{
    while (is_space(*p)) p++;
    return p;
}

/* First byte at or after p that is a quote, a backslash or a control character; the end's zero byte is one. */
static inline const char *string_stop(const char *p, bool *wide)
{
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    for (;; p += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
        __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash));
        hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_min_epu8(v, control), v));
        unsigned hits = (unsigned)_mm_movemask_epi8(hit), high = (unsigned)_mm_movemask_epi8(v);
        if (hits == 0) {
            *wide |= high != 0;
            continue;
        }
        unsigned n = (unsigned)__builtin_ctz(hits);
        *wide |= (high & ((1u << n) - 1)) != 0;
        return p + n;
    }
#else
    for (;; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == '"' || c == '\\') return p;
        *wide |= c > 0x7f;
    }
#endif
}

/* The closing quote of a string that has it among its first 16 bytes and nothing unusual before it, as keys and most names do; else
 * NULL: look closely. p is at the opening quote. */
static inline const char *string_end_near(const char *p)
{
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), blank = _mm_set1_epi8(0x20);
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + 1));
    /* Bytes above 0x7f are negative: they are as good as control characters here. */
    __m128i odd = _mm_or_si128(_mm_cmpeq_epi8(v, backslash), _mm_cmplt_epi8(v, blank));
    unsigned ends = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(v, quote)), odds = (unsigned)_mm_movemask_epi8(odd);
    unsigned first = (unsigned)__builtin_ctz(ends | 1u << 16);
    return first < 16 && (odds & ((1u << first) - 1)) == 0 ? p + 1 + first : NULL;
#else
    (void)p;
    return NULL;
#endif
}

static inline int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* p is behind `\u`. Negative when these are not four hex digits (the first bad one stops the reading). */
static int hex4(const char *p)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Checks one string; p is at the opening quote. Returns the place behind the closing one, or NULL. */
static const char *string_check(struct json *j, const char *p, struct scan *s)
{
    const char *begin = ++p;
    *s = (struct scan){0};
    for (;;) {
        p = string_stop(p, &s->wide);
        if (*p == '"') break;
        j->at = p;
        if (p >= j->end) return json_fail(j, "a string does not end"), NULL;
        if (*p != '\\') return json_fail(j, "a control character inside a string"), NULL;
        s->escapes = true;
        switch (p[1]) {
        case '"':
        case '\\':
        case '/':
        case 'b':
        case 'f':
        case 'n':
        case 'r':
        case 't':
            p += 2;
            break;
        case 'u':
            if (hex4(p + 2) < 0) return json_fail(j, "a bad \\u escape"), NULL;
            p += 6;
            break;
        default:
            return json_fail(j, "an unknown escape"), NULL;
        }
    }
    if (p >= j->end) return json_fail(j, "a string does not end"), NULL;
    if (s->wide && !json_utf8_valid(begin, (size_t)(p - begin))) {
        j->at = begin;
        return json_fail(j, "a string is not UTF-8"), NULL;
    }
    return p + 1;
}

static inline bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Behind a number, or NULL. */
static const char *number_check(struct json *j, const char *p)
{
    if (*p == '-') p++;
    if (*p == '0') {
        p++;
    } else if (is_digit(*p)) {
        while (is_digit(*p)) p++;
    } else {
        goto bad;
    }
    if (*p == '.') {
        if (!is_digit(*++p)) goto bad;
        while (is_digit(*p)) p++;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        if (!is_digit(*p)) goto bad;
        while (is_digit(*p)) p++;
    }
    return p;
bad:
    j->at = p;
    return json_fail(j, "a bad number"), NULL;
}

static const char *literal_check(struct json *j, const char *p, const char *word, size_t len)
{
    if ((size_t)(j->end - p) >= len && memcmp(p, word, len) == 0) return p + len;
    j->at = p;
    return json_fail(j, "not a JSON value"), NULL;
}

/* Behind a string, number or literal, or NULL. */
static inline const char *scalar_check(struct json *j, const char *p)
{
    struct scan s;
    switch (*p) {
    case '"':
        return string_check(j, p, &s);
    case 't':
        return literal_check(j, p, "true", 4);
    case 'f':
        return literal_check(j, p, "false", 5);
    case 'n':
        return literal_check(j, p, "null", 4);
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
        return number_check(j, p);
    default:
        j->at = p;
        return json_fail(j, p >= j->end ? "the text ends too early" : "not a JSON value"), NULL;
    }
}

/* Behind the colon of the member whose key comes next, or NULL. */
static const char *member_check(struct json *j, const char *p)
{
    struct scan s;
    if (*p != '"') {
        j->at = p;
        return json_fail(j, "a member without a key"), NULL;
    }
    if ((p = string_check(j, p, &s)) == NULL) return NULL;
    p = space_skip(p);
    if (*p == ':') return p + 1;
    j->at = p;
    return json_fail(j, "a key without a colon"), NULL;
}

/* Checks one whole value without recursion: one bit a level says object or array. Returns the place behind it, or NULL. */
static const char *value_check(struct json *j, const char *p)
{
    uint64_t objects[JSON_DEPTH_MAX / 64 + 1];
    uint32_t depth = 0;
    p = space_skip(p);
    for (;;) { /* p is at the first character of a value */
        if (*p == '{' || *p == '[') {
            bool object = *p == '{';
            if (depth == JSON_DEPTH_MAX) {
                j->at = p;
                return json_fail(j, "nested too deeply"), NULL;
            }
            uint64_t bit = (uint64_t)1 << (depth & 63);
            objects[depth >> 6] =
                object ? (depth % 64 == 0 ? 0 : objects[depth >> 6]) | bit : (depth % 64 == 0 ? 0 : objects[depth >> 6]) & ~bit;
            depth++;
            p = space_skip(p + 1);
            if (*p != (object ? '}' : ']')) {
                if (object && (p = member_check(j, p)) == NULL) return NULL;
                p = space_skip(p);
                continue;
            }
            depth--; /* empty */
            p++;
        } else if ((p = scalar_check(j, p)) == NULL) {
            return NULL;
        }
        for (;;) { /* behind a value */
            if (depth == 0) return p;
            bool object = (objects[(depth - 1) >> 6] >> ((depth - 1) & 63) & 1) != 0;
            p = space_skip(p);
            if (*p == ',') {
                p = space_skip(p + 1);
                if (object && (p = member_check(j, p)) == NULL) return NULL;
                p = space_skip(p);
                break;
            }
            if (*p != (object ? '}' : ']')) {
                j->at = p;
                return json_fail(j, p >= j->end ? "the text ends too early" : "a comma or closing bracket is missing"), NULL;
            }
            p++;
            depth--;
        }
    }
}

bool json_skip(struct json *j, struct slice *raw)
{
    if (j->error != NULL) return false;
    const char *from = space_skip(j->at), *to = value_check(j, from);
    if (to == NULL) return false;
    must(to <= j->end);
    if (raw != NULL) *raw = slice_make(from, (size_t)(to - from));
    j->at = to;
    return true;
}

enum json_type json_peek(struct json *j)
{
    if (j->error != NULL) return JSON_BAD;
    j->at = space_skip(j->at);
    switch (*j->at) {
    case '{':
        return JSON_OBJECT;
    case '[':
        return JSON_ARRAY;
    case '"':
        return JSON_STRING;
    case 't':
        return JSON_TRUE;
    case 'f':
        return JSON_FALSE;
    case 'n':
        return JSON_NULL;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
        return JSON_NUMBER;
    default:
        return JSON_BAD;
    }
}

static bool bracket_open(struct json *j, bool *first, char bracket, const char *error)
{
    if (j->error != NULL) return false;
    j->at = space_skip(j->at);
    if (*j->at != bracket) return json_fail(j, error);
    j->at++;
    *first = true;
    return true;
}

/* Steps over the comma, or the closing bracket (false). */
static bool bracket_next(struct json *j, bool *first, char bracket)
{
    if (j->error != NULL) return false;
    const char *p = space_skip(j->at);
    if (*p == bracket) {
        j->at = p + 1;
        return false;
    }
    if (!*first) {
        if (*p != ',') {
            j->at = p;
            return json_fail(j, p >= j->end ? "the text ends too early" : "a comma or closing bracket is missing");
        }
        p = space_skip(p + 1);
    }
    *first = false;
    j->at = p;
    return true;
}

bool json_object_open(struct json *j, bool *first)
{
    return bracket_open(j, first, '{', "not an object");
}

bool json_array_open(struct json *j, bool *first)
{
    return bracket_open(j, first, '[', "not an array");
}

bool json_array_next(struct json *j, bool *first)
{
    return bracket_next(j, first, ']');
}

static size_t utf8_put(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* A \u escape of a checked string, p behind `\u`: one character, maybe of two escapes. NULL for half a surrogate pair. */
static const char *unicode_unescape(const char *p, uint32_t *c)
{
    *c = (uint32_t)hex4(p);
    p += 4;
    if (*c < 0xd800 || *c > 0xdfff) return p;
    if (*c > 0xdbff || p[0] != '\\' || p[1] != 'u') return NULL;
    int low = hex4(p + 2);
    if (low < 0xdc00 || low > 0xdfff) return NULL;
    *c = 0x10000 + ((*c - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
    return p + 6;
}

/* A checked string's inside, escapes resolved. An escape is never shorter than what it stands for. */
static bool string_unescape(struct json *j, const char *p, const char *end, struct slice *out)
{
    char *text = arena_get(j->arena, (size_t)(end - p) + 1);
    size_t len = 0;
    while (p < end) {
        if (*p != '\\') {
            text[len++] = *p++;
            continue;
        }
        char c = p[1];
        p += 2;
        uint32_t code;
        switch (c) {
        case 'b':
            text[len++] = '\b';
            break;
        case 'f':
            text[len++] = '\f';
            break;
        case 'n':
            text[len++] = '\n';
            break;
        case 'r':
            text[len++] = '\r';
            break;
        case 't':
            text[len++] = '\t';
            break;
        case 'u':
            p = unicode_unescape(p, &code);
            if (p == NULL) return json_fail(j, "half a surrogate pair");
            len += utf8_put(text + len, code);
            break;
        default:
            text[len++] = c;
            break;
        }
    }
    *out = slice_make(text, len);
    return true;
}

bool json_string(struct json *j, struct slice *out)
{
    if (j->error != NULL) return false;
    const char *p = space_skip(j->at);
    if (*p != '"') {
        j->at = p;
        return json_fail(j, "not a string");
    }
    struct scan s;
    const char *to = string_end_near(p);
    if (to != NULL) {
        j->at = to + 1;
        *out = slice_make(p + 1, (size_t)(to - p) - 1);
        return true;
    }
    to = string_check(j, p, &s);
    if (to == NULL) return false;
    j->at = to;
    if (s.escapes) return string_unescape(j, p + 1, to - 1, out);
    *out = slice_make(p + 1, (size_t)(to - p) - 2);
    return true;
}

bool json_object_next(struct json *j, bool *first, struct slice *key)
{
    if (!bracket_next(j, first, '}')) return false;
    if (*j->at != '"') return json_fail(j, "a member without a key");
    struct scan s;
    const char *p = j->at, *to = string_end_near(p);
    if (to != NULL && to[1] == ':') {
        *key = slice_make(p + 1, (size_t)(to - p) - 1);
        j->at = to + 2;
        return true;
    }
    to = string_check(j, p, &s);
    if (to == NULL) return false;
    *key = slice_make(p + 1, (size_t)(to - p) - 2);
    /* A key that cannot be UTF-8 (half a surrogate pair) is nobody's name: it is kept as written and so is unknown. */
    if (s.escapes && !string_unescape(j, p + 1, to - 1, key)) j->error = NULL;
    to = space_skip(to);
    j->at = to;
    if (*to != ':') return json_fail(j, "a key without a colon");
    j->at = to + 1;
    return true;
}

bool json_integer(struct json *j, int64_t *out)
{
    struct slice raw;
    if (json_peek(j) != JSON_NUMBER) return json_fail(j, "not an integer");
    if (!json_skip(j, &raw)) return false;
    bool negative = raw.at[0] == '-';
    uint64_t value = 0, limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    for (size_t i = negative ? 1 : 0; i < raw.len; i++) {
        if (!is_digit(raw.at[i])) return json_fail(j, "not an integer");
        uint64_t digit = (uint64_t)(raw.at[i] - '0');
        if (value > (limit - digit) / 10) return json_fail(j, "an integer out of range");
        value = value * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

bool json_bool(struct json *j, bool *out)
{
    enum json_type t = json_peek(j);
    if (t != JSON_TRUE && t != JSON_FALSE) return json_fail(j, "not true or false");
    *out = t == JSON_TRUE;
    return json_skip(j, NULL);
}

bool json_end(struct json *j)
{
    if (j->error != NULL) return false;
    j->at = space_skip(j->at);
    return j->at == j->end || json_fail(j, "something follows the value");
}
