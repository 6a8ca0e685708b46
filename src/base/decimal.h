/* Exact decimal numbers of up to 38 significant digits: counters that are added to and compared, never rounded.
 * Pure functions; any thread. */
#ifndef QUEEN_BASE_DECIMAL_H
#define QUEEN_BASE_DECIMAL_H

#include "base/slice.h"

enum { DECIMAL_DIGITS_MAX = 38, DECIMAL_EXPONENT_MAX = 6144, DECIMAL_TEXT_MAX = 64 };

/* (-1)^negative * digits * 10^exponent, without trailing zeros in digits; zero is {false, 0, 0}. */
struct decimal {
    unsigned __int128 digits; /* < 10^38 */
    int32_t exponent;
    bool negative;
};

/* A JSON number. False: not one, or it has more digits or a larger exponent than fit. */
bool decimal_parse(struct slice text, struct decimal *out);
/* False: the exact sum does not fit. */
bool decimal_add(const struct decimal *a, const struct decimal *b, struct decimal *out);
int decimal_compare(const struct decimal *a, const struct decimal *b); /* < 0, 0, > 0 */
/* The shortest usual spelling, a JSON number: plain digits from 10^-7 up to 38 places, with an exponent beyond. Gives the length. */
size_t decimal_text(const struct decimal *d, char out[DECIMAL_TEXT_MAX]);

#endif
