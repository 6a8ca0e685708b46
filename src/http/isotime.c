#include "http/isotime.h"

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

/* Milliseconds of a fraction of any length. */
static int64_t fraction(struct reader *r)
{
    int64_t ms = 0;
    size_t count = 0;
    while (r->at < r->text.len && r->text.at[r->at] >= '0' && r->text.at[r->at] <= '9') {
        if (count < 3) ms = ms * 10 + (r->text.at[r->at] - '0');
        r->at++;
        count++;
    }
    if (count == 0) r->ok = false;
    for (; count < 3; count++) ms *= 10;
    return ms;
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
    struct reader r = {.text = text, .ok = true};
    int64_t hour = 0, minute = 0, second = 0, ms = 0, east = 0;
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
            if (take(&r, '.') || take(&r, ',')) ms = fraction(&r);
        }
        east = offset(&r);
    }
    if (!r.ok || r.at != text.len || hour > 23 || minute > 59 || second > 60) return false;
    int64_t seconds = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - east * 60;
    if (seconds < 0) return false;
    *wall_us = seconds * 1000000 + ms * 1000;
    return true;
}
