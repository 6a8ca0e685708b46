/* The C++ side of json_view.h in plain types: where in a text a value lies. Same rules, errors and cost. */
#ifndef QUEEN_CLI_JSON_SCAN_H
#define QUEEN_CLI_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct view_span {
    size_t at, len; /* may end with blanks */
    bool present;
};

bool view_scan_whole(const char *text, size_t len);
bool view_scan_members(const char *text, size_t len, const char *const *names, struct view_span *values, size_t count);
bool view_scan_elements(const char *text, size_t len, bool (*each)(void *arg, struct view_span element), void *arg);

#ifdef __cplusplus
}
#endif

#endif
