/* The process's log: one line an event on stderr, text or (QUEEN_LOG_JSON) one JSON object a line.
 *
 * Thread-safe: a line is one write(2). Messages are ours (format literals); bytes from outside are passed through "%.*s" and
 * control characters are replaced. Cost: formatting and a system call, so never on the hot path; repeated conditions are
 * limited by the caller (logger_every). */
#ifndef QUEEN_BASE_LOGGER_H
#define QUEEN_BASE_LOGGER_H

#include <stdbool.h>
#include <stdint.h>

enum logger_level { LOGGER_ERROR, LOGGER_WARN, LOGGER_INFO, LOGGER_DEBUG };

void logger_init(enum logger_level level, bool json);
__attribute__((format(printf, 2, 3))) void logger_write(enum logger_level level, const char *format, ...);

#define log_error(...) logger_write(LOGGER_ERROR, __VA_ARGS__)
#define log_warn(...) logger_write(LOGGER_WARN, __VA_ARGS__)
#define log_info(...) logger_write(LOGGER_INFO, __VA_ARGS__)
#define log_debug(...) logger_write(LOGGER_DEBUG, __VA_ARGS__)

/* True at most once in `every_us` for one `last_us` cell. */
bool logger_every(int64_t *last_us, int64_t every_us);

#endif
