#include "base/logger.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/must.h"

enum { LINE_MAX_BYTES = 2048 };

static enum logger_level logger_level = LOGGER_INFO;
static bool logger_json;

void logger_init(enum logger_level level, bool json)
{
    logger_level = level;
    logger_json = json;
}

static size_t stamp_write(char *out, size_t cap)
{
    int64_t now_us = clock_wall_us();
    time_t seconds = (time_t)(now_us / 1000000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t n = strftime(out, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    int more = snprintf(out + n, cap - n, ".%03dZ", (int)(now_us / 1000 % 1000));
    return n + (size_t)more;
}

/* Control characters would break the line, quotes and backslashes a JSON string. */
static void text_clean(char *text)
{
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20) *c = ' ';
        if (logger_json && *c == '"') *c = '\'';
        if (logger_json && *c == '\\') *c = '/';
    }
}

void logger_write(enum logger_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if (level > logger_level) return;
    char text[LINE_MAX_BYTES], stamp[40], line[LINE_MAX_BYTES + 128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_clean(text);
    stamp_write(stamp, sizeof stamp);
    const char *shape = logger_json ? "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"%s\"}\n" : "%s %-5s %s\n";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(line, sizeof line, shape, stamp, names[level], text);
#pragma GCC diagnostic pop
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

bool logger_every(int64_t *last_us, int64_t every_us)
{
    int64_t now_us = clock_mono_us();
    if (*last_us != 0 && now_us - *last_us < every_us) return false;
    *last_us = now_us;
    return true;
}

void must_fail(const char *file, int line, const char *condition)
{
    log_error("broken invariant at %s:%d: %s", file, line, condition);
    abort();
}
