#include "base/isotime.h"

struct reader {
    struct slice text;
    size_t at;
    bool ok;
};

static int64_t digits(struct reader *r, size_t count)
{
    int64_t value = 0;
    if (r->text.len - r->at < count) r->ok = false;
    for (size_t i = 0; r->ok && i < count; i++) {
        char c = r->text.at[r->at++];
        if (c < '0' || c > '9') r->ok = false;
        value = value * 10 + (c - '0');
    }
    return r->ok ? value : 0;
}

static bool take(struct reader *r, char c)
{
    if (r->at >= r->text.len || r->text.at[r->at] != c) return false;
    r->at++;
    return true;
}

static void want(struct reader *r, char c)
{
    if (!take(r, c)) r->ok = false;
}

/* Days since 1970 of a civil date; after Howard Hinnant. */
static int64_t days_of(int64_t year, int64_t month, int64_t day)
{
    year -= month <= 2 ? 1 : 0;
    int64_t era = year / 400, yoe = year - era * 400;
    int64_t doy = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

static int64_t days_of_month(int64_t year, int64_t month)
{
    static const int8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap ? 1 : 0);
}

/* Microseconds of a fraction of any length. */
static int64_t fraction(struct reader *r)
{
    int64_t us = 0;
    size_t count = 0;
    while (r->at < r->text.len && r->text.at[r->at] >= '0' && r->text.at[r->at] <= '9') {
        if (count < 6) us = us * 10 + (r->text.at[r->at] - '0');
        r->at++;
        count++;
    }
    if (count == 0) r->ok = false;
    for (; count < 6; count++) us *= 10;
    return us;
}

/* Minutes east of UTC. */
static int64_t offset(struct reader *r)
{
    if (take(r, 'Z') || take(r, 'z')) return 0;
    int sign = take(r, '+') ? 1 : take(r, '-') ? -1 : 0;
    if (sign == 0) return 0;
    int64_t hours = digits(r, 2), minutes = 0;
    if (r->at < r->text.len) {
        take(r, ':');
        minutes = digits(r, 2);
    }
    if (hours > 23 || minutes > 59) r->ok = false;
    return sign * (hours * 60 + minutes);
}

bool isotime_parse(struct slice text, int64_t *wall_us)
{
    int64_t us;
    if (!isotime_parse_us(text, &us)) return false;
    *wall_us = us / 1000 * 1000;
    return true;
}

bool isotime_parse_us(struct slice text, int64_t *wall_us)
{
    struct reader r = {.text = text, .ok = true};
    int64_t hour = 0, minute = 0, second = 0, micros = 0, east = 0;
    int64_t year = digits(&r, 4);
    want(&r, '-');
    int64_t month = digits(&r, 2);
    want(&r, '-');
    int64_t day = digits(&r, 2);
    if (!r.ok || year < 1970 || month < 1 || month > 12 || day < 1 || day > days_of_month(year, month)) return false;
    if (take(&r, 'T') || take(&r, 't') || take(&r, ' ')) {
        hour = digits(&r, 2);
        want(&r, ':');
        minute = digits(&r, 2);
        if (take(&r, ':')) {
            second = digits(&r, 2);
            if (take(&r, '.') || take(&r, ',')) micros = fraction(&r);
        }
        east = offset(&r);
    }
    if (!r.ok || r.at != text.len || hour > 23 || minute > 59 || second > 60) return false;
    int64_t seconds = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - east * 60;
    if (seconds < 0) return false;
    *wall_us = seconds * 1000000 + micros;
    return true;
}

static char *digits_put(char *p, uint32_t value, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        p[i] = (char)('0' + value % 10);
        value /= 10;
    }
    return p + count;
}

/* Civil-from-days after Howard Hinnant. */
char *isotime_seconds_put(char *p, int64_t wall_us, uint32_t *micros)
{
    static const int64_t highest_us = INT64_C(253402300799999999); /* 9999-12-31T23:59:59.999999Z */
    if (wall_us < 0) wall_us = 0;
    if (wall_us > highest_us) wall_us = highest_us;
    int64_t seconds = wall_us / 1000000;
    *micros = (uint32_t)(wall_us % 1000000);
    uint32_t days = (uint32_t)(seconds / 86400), rest = (uint32_t)(seconds % 86400);
    uint32_t z = days + 719468, era = z / 146097, doe = z % 146097;
    uint32_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    uint32_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    uint32_t day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
    uint32_t year = yoe + era * 400 + (month <= 2 ? 1 : 0);
    p = digits_put(p, year, 4);
    *p++ = '-';
    p = digits_put(p, month, 2);
    *p++ = '-';
    p = digits_put(p, day, 2);
    *p++ = 'T';
    p = digits_put(p, rest / 3600, 2);
    *p++ = ':';
    p = digits_put(p, rest / 60 % 60, 2);
    *p++ = ':';
    return digits_put(p, rest % 60, 2);
}

size_t isotime_kv(int64_t wall_us, char out[40])
{
    uint32_t micros;
    char *p = isotime_seconds_put(out, wall_us, &micros);
    if (micros != 0) {
        *p++ = '.';
        p = digits_put(p, micros, 6);
        while (p[-1] == '0') p--;
    }
    memcpy(p, "+00:00", 6);
    return (size_t)(p + 6 - out);
}
