/* Reads JSON texts (RFC 8259), strictly, in one pass and without building anything.
 *
 * A caller walks the part of the text it knows with json_object_next and json_array_next and takes what it wants: strings
 * unescaped, other values as the bytes that were sent. json_skip checks a whole value and gives its bytes: payloads are kept
 * verbatim, numbers are never converted.
 *
 *   json_open -> json_object_open -> json_object_next (key) -> json_string | json_skip | ... -> json_object_next ... -> json_end
 *
 * Everything in the text is checked, also what is skipped: grammar, escapes, UTF-8, unescaped control characters, nesting
 * (JSON_DEPTH_MAX levels inside one value). Lone surrogates written as escapes are let through by json_skip, as they were sent,
 * and refused by json_string, which could not turn them into UTF-8. The first error stops the reader: every later call fails.
 *
 * The text needs JSON_PAD readable zero bytes after its end. Strings come as slices of the text, or of the arena when they had
 * escapes. Any thread; one reader is used by one thread. Cost: about 0.6 ns a byte of a usual message. */
#ifndef QUEEN_HTTP_JSON_H
#define QUEEN_HTTP_JSON_H

#include "base/arena.h"
#include "base/slice.h"

enum { JSON_PAD = 64 };

enum json_type { JSON_BAD, JSON_OBJECT, JSON_ARRAY, JSON_STRING, JSON_NUMBER, JSON_TRUE, JSON_FALSE, JSON_NULL };

struct json {
    const char *at, *start, *end;
    struct arena *arena;
    const char *error; /* NULL, or what is wrong at `at` */
};

void json_open(struct json *j, struct slice text, struct arena *arena);

/* Type of the value that comes next, by its first character. */
enum json_type json_peek(struct json *j);

/* `first` is the caller's mark of one open object or array: true before the first call of next, false after it.
 * next: false at the end (the bracket is consumed) or on an error (j->error is set). */
bool json_object_open(struct json *j, bool *first);
bool json_object_next(struct json *j, bool *first, struct slice *key);
bool json_array_open(struct json *j, bool *first);
bool json_array_next(struct json *j, bool *first);

bool json_string(struct json *j, struct slice *out);
bool json_skip(struct json *j, struct slice *raw); /* raw: the value's bytes without white space around it; may be NULL */
bool json_integer(struct json *j, int64_t *out);   /* a number without fraction and exponent that fits; else an error */
bool json_bool(struct json *j, bool *out);
bool json_end(struct json *j); /* nothing but white space is left */

bool json_fail(struct json *j, const char *error); /* sets the error unless there is one; returns false */

#endif
