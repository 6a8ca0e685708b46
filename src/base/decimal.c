#include "base/decimal.h"

#include <stdio.h>

#include "base/must.h"

static unsigned __int128 power(uint32_t n)
{
    unsigned __int128 p = 1;
    must(n <= DECIMAL_DIGITS_MAX);
    while (n-- > 0) p *= 10;
    return p;
}

static uint32_t digit_count(unsigned __int128 v)
{
    uint32_t n = 1;
    while (v >= 10) {
        v /= 10;
        n++;
    }
    return n;
}

static struct decimal normal(struct decimal d)
{
    if (d.digits == 0) return (struct decimal){0};
    while (d.digits % 10 == 0) {
        d.digits /= 10;
        d.exponent++;
    }
    return d;
}

struct scan {
    const char *at, *end;
};

static bool is_digit(const struct scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

/* One more digit behind those taken. Zeros wait in `zeros` until another digit follows, so that a long tail of them costs no place. */
static bool digit_take(struct decimal *d, uint32_t *zeros, unsigned digit)
{
    if (digit == 0) {
        if (d->digits != 0) ++*zeros;
        return true;
    }
    uint32_t held = d->digits == 0 ? 0 : digit_count(d->digits);
    if (*zeros >= DECIMAL_DIGITS_MAX || held + *zeros + 1 > DECIMAL_DIGITS_MAX) return false;
    d->digits = d->digits * power(*zeros + 1) + digit;
    *zeros = 0;
    return true;
}

/* Integer digits, or (point) those behind the point, which count the exponent down. */
static bool digits_scan(struct scan *s, struct decimal *d, uint32_t *zeros, bool point)
{
    if (!is_digit(s)) return false;
    for (; is_digit(s); s->at++) {
        if (!digit_take(d, zeros, (unsigned)(*s->at - '0'))) return false;
        if (point) d->exponent--;
    }
    return true;
}

static bool exponent_scan(struct scan *s, int32_t *out)
{
    bool negative = false;
    int32_t e = 0;
    if (s->at < s->end && (*s->at == '+' || *s->at == '-')) negative = *s->at++ == '-';
    if (!is_digit(s)) return false;
    for (; is_digit(s); s->at++) {
        if (e <= 2 * DECIMAL_EXPONENT_MAX) e = e * 10 + (*s->at - '0');
    }
    *out = negative ? -e : e;
    return true;
}

bool decimal_parse(struct slice text, struct decimal *out)
{
    struct scan s = {.at = text.at, .end = text.at + text.len};
    struct decimal d = {0};
    uint32_t zeros = 0;
    int32_t exponent = 0;
    if (s.at < s.end && *s.at == '-') {
        d.negative = true;
        s.at++;
    }
    if (!digits_scan(&s, &d, &zeros, false)) return false;
    if (s.at < s.end && *s.at == '.') {
        s.at++;
        if (!digits_scan(&s, &d, &zeros, true)) return false;
    }
    if (s.at < s.end && (*s.at == 'e' || *s.at == 'E')) {
        s.at++;
        if (!exponent_scan(&s, &exponent)) return false;
    }
    if (s.at != s.end) return false;
    d.exponent += exponent + (int32_t)zeros;
    if (d.digits != 0 && (d.exponent > DECIMAL_EXPONENT_MAX || d.exponent < -DECIMAL_EXPONENT_MAX)) return false;
    *out = normal(d);
    return true;
}

/* The same value with a smaller exponent. False: it has too many digits then. */
static bool stretch(struct decimal *d, int32_t exponent)
{
    uint32_t by = (uint32_t)(d->exponent - exponent);
    if (by > DECIMAL_DIGITS_MAX || digit_count(d->digits) + by > DECIMAL_DIGITS_MAX) return false;
    d->digits *= power(by);
    d->exponent = exponent;
    return true;
}

static bool align(struct decimal *a, struct decimal *b)
{
    if (a->exponent > b->exponent) return stretch(a, b->exponent);
    return stretch(b, a->exponent);
}

bool decimal_add(const struct decimal *x, const struct decimal *y, struct decimal *out)
{
    struct decimal a = *x, b = *y;
    if (a.digits == 0 || b.digits == 0) {
        *out = a.digits == 0 ? b : a;
        return true;
    }
    if (!align(&a, &b)) return false;
    if (a.negative == b.negative) {
        a.digits += b.digits;
    } else if (a.digits >= b.digits) {
        a.digits -= b.digits;
    } else {
        b.digits -= a.digits;
        a = b;
    }
    if (a.digits != 0 && digit_count(a.digits) > DECIMAL_DIGITS_MAX && a.digits % 10 != 0) return false;
    *out = normal(a);
    return out->exponent <= DECIMAL_EXPONENT_MAX;
}

static int magnitude_compare(struct decimal a, struct decimal b)
{
    int64_t places_a = (int64_t)digit_count(a.digits) + a.exponent, places_b = (int64_t)digit_count(b.digits) + b.exponent;
    if (places_a != places_b) return places_a < places_b ? -1 : 1;
    must(align(&a, &b)); /* as many places: as many digits once aligned */
    return a.digits < b.digits ? -1 : a.digits > b.digits;
}

int decimal_compare(const struct decimal *a, const struct decimal *b)
{
    if (a->digits == 0 || b->digits == 0) {
        int sign_a = a->digits == 0 ? 0 : a->negative ? -1 : 1, sign_b = b->digits == 0 ? 0 : b->negative ? -1 : 1;
        return sign_a - sign_b;
    }
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    int order = magnitude_compare(*a, *b);
    return a->negative ? -order : order;
}

static uint32_t digits_write(unsigned __int128 v, char *out)
{
    uint32_t n = digit_count(v);
    for (uint32_t i = n; i > 0; i--) {
        out[i - 1] = (char)('0' + (int)(v % 10));
        v /= 10;
    }
    return n;
}

size_t decimal_text(const struct decimal *d, char out[DECIMAL_TEXT_MAX])
{
    enum { PLAIN_MIN = -7 };
    char digits[DECIMAL_DIGITS_MAX + 2] = {0};
    uint32_t n = digits_write(d->digits, digits);
    int32_t point = (int32_t)n + d->exponent; /* digits before the point */
    size_t len = 0;
    if (d->negative) out[len++] = '-';
    if (d->exponent >= 0 && point <= DECIMAL_DIGITS_MAX) {
        memcpy(out + len, digits, n);
        memset(out + len + n, '0', (size_t)d->exponent);
        return len + n + (size_t)d->exponent;
    }
    if (d->exponent < 0 && point > 0) {
        memcpy(out + len, digits, (size_t)point);
        out[len + (size_t)point] = '.';
        memcpy(out + len + (size_t)point + 1, digits + point, n - (uint32_t)point);
        return len + n + 1;
    }
    if (d->exponent < 0 && point > PLAIN_MIN) {
        out[len++] = '0';
        out[len++] = '.';
        memset(out + len, '0', (size_t)-point);
        memcpy(out + len + (size_t)-point, digits, n);
        return len + (size_t)-point + n;
    }
    out[len++] = digits[0];
    if (n > 1) {
        out[len++] = '.';
        memcpy(out + len, digits + 1, n - 1);
        len += n - 1;
    }
    return len + (size_t)snprintf(out + len, DECIMAL_TEXT_MAX - len, "e%d", (int)(point - 1));
}
