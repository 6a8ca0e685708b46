/* The parts of a timer op that have an encoding of their own: base64, Zstandard, and times as decimal numbers.
 *
 * Pure but for the arena; any thread. Linear in what is read and written. */
#ifndef QUEEN_HTTP_TIMER_PAYLOAD_H
#define QUEEN_HTTP_TIMER_PAYLOAD_H

#include "base/arena.h"
#include "base/slice.h"

/* Standard base64 with padding (RFC 4648, section 4), strictly: no white space, no missing padding, no bits set behind the last byte.
 * The bytes are in the arena, with JSON_PAD zero bytes behind them. False: not such a text. */
bool base64_decode(struct slice text, struct arena *arena, struct slice *out);
void base64_encode(struct slice bytes, char *out); /* writes base64_length(bytes.len) characters */
static inline size_t base64_length(size_t bytes)
{
    return (bytes + 2) / 3 * 4;
}

/* Decompresses Zstandard frames to at most `bytes_max` bytes, in the arena, with JSON_PAD zero bytes behind them. Memory: a small multiple
 * of what comes out; never more than that of bytes_max, whatever the frames claim. */
enum unzstd_result { UNZSTD_OK, UNZSTD_BAD, UNZSTD_TOO_LARGE };
enum unzstd_result payload_unzstd(struct slice packed, size_t bytes_max, struct arena *arena, struct slice *out);

/* Microseconds of a JSON number of milliseconds, exact but for fractions of a microsecond, which are rounded to the nearest (halves
 * away from zero). No floating point: 2^53 + 1 is itself, 0.1 is 100. What is beyond MS_TO_US_LIMIT comes out as that, with its sign. */
#define MS_TO_US_LIMIT INT64_C(1000000000000000000)
int64_t number_ms_to_us(struct slice number);

#endif
