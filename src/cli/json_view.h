/* Looking into JSON texts without changing a byte of them: values come back as raw slices of the text given, strings with
 * their quotes and escapes, so that they can be put into another text as they are.
 *
 * Strict (simdjson, behind json_scan.h): a whole value, valid UTF-8. Every call copies its text once (a padded buffer) and is linear. A call on
 * a text that is not what it should be returns false and leaves its outputs undefined. Not thread-safe; each() may call
 * view_whole and view_members but not view_elements. */
#ifndef QUEEN_CLI_JSON_VIEW_H
#define QUEEN_CLI_JSON_VIEW_H

#include "base/buf.h"
#include "base/slice.h"

/* True when the text is exactly one JSON value, blanks around it allowed. *value is the value without them. */
bool view_whole(struct slice text, struct slice *value);

/* The members of an object by name; at == NULL: not there. Of a repeated name the last one counts. The text must have
 * passed view_whole before. At most 32 names. False: not an object. */
bool view_members(struct slice text, const char *const *names, struct slice *values, size_t count);

/* Calls each() for every element of an array, in order, until it returns false. The text must have passed view_whole.
 * False: not an array, or each() has stopped it. */
bool view_elements(struct slice array, bool (*each)(void *arg, struct slice element), void *arg);

/* What a raw value is, by its first character. */
static inline bool view_is_string(struct slice raw)
{
    return raw.at != NULL && raw.len >= 2 && raw.at[0] == '"';
}

static inline bool view_is_null(struct slice raw)
{
    return raw.at == NULL || slice_is(raw, "null");
}

/* "abc" -> abc. Escapes stay. */
static inline struct slice view_unquoted(struct slice raw)
{
    return view_is_string(raw) ? slice_make(raw.at + 1, raw.len - 2) : raw;
}

/* Appends text as a JSON string. Bytes that are not valid UTF-8 are the caller's business. */
void view_quote(struct buf *b, struct slice text);

/* Appends what a raw string (with its quotes, out of a text that has passed view_whole) means: escapes become UTF-8. */
void view_text(struct buf *b, struct slice raw);

/* Appends a JSON value on one line: line breaks between its tokens become blanks, everything else stays as it is (a valid
 * JSON string holds no raw line break). */
void view_one_line(struct buf *b, struct slice value);

#endif
