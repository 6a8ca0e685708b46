#include "http/json_utf8.h"

#include <simdjson.h>

extern "C" bool json_utf8_valid(const char *at, size_t len)
{
    return simdjson::validate_utf8(at, len);
}
