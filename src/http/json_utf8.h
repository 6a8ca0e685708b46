/* simdjson's vectorised UTF-8 check behind a C door. Pure; any thread. About 10 GB/s. */
#ifndef QUEEN_HTTP_JSON_UTF8_H
#define QUEEN_HTTP_JSON_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C"
#endif
    bool
    json_utf8_valid(const char *at, size_t len);

#endif
