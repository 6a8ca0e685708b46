#include "http/kv_value.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/must.h"

static inline bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Index of the first white space at or behind `i`, in a string or not; the length when there is none. A checked value holds no
 * byte up to the blank but white space. */
static size_t space_find(struct slice s, size_t i)
{
#if defined(__SSE2__)
    const __m128i blank = _mm_set1_epi8(' ');
    for (; s.len - i >= 16; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(s.at + i));
        unsigned hits = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(v, blank), v));
        if (hits != 0) return i + (unsigned)__builtin_ctz(hits);
    }
#endif
    while (i < s.len && !is_space(s.at[i])) i++;
    return i;
}

/* Behind the string that begins at i. */
static size_t string_end(struct slice s, size_t i)
{
    for (i++;; i++) {
        must(i < s.len);
        if (s.at[i] == '"') return i + 1;
        if (s.at[i] == '\\') i++;
    }
}

/* How many bytes are left without the white space outside strings, counted until they are more than enough; written to `to`
 * unless it is NULL. */
static size_t compact(struct slice s, size_t enough, char *to)
{
    size_t len = 0;
    for (size_t i = 0; i < s.len && len <= enough;) {
        if (is_space(s.at[i])) {
            i++;
            continue;
        }
        size_t end = s.at[i] == '"' ? string_end(s, i) : i + 1;
        if (to != NULL) memcpy(to + len, s.at + i, end - i);
        len += end - i;
        i = end;
    }
    return len;
}

bool kv_value_compact(struct arena *arena, struct slice value, size_t bytes_max, struct slice *out)
{
    must(value.len > 0);
    *out = value;
    bool nested = value.at[0] == '{' || value.at[0] == '['; /* only these have room for white space */
    if (!nested || space_find(value, 0) == value.len) return value.len <= bytes_max;
    size_t len = compact(value, bytes_max, NULL);
    if (len > bytes_max) return false;
    if (len == value.len) return true;
    char *text = arena_get(arena, len);
    must(compact(value, bytes_max, text) == len);
    *out = slice_make(text, len);
    return true;
}
