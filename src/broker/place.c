#include "broker/place.h"

#include <stdio.h>

static struct log *log_of(const struct places *p, uint64_t where)
{
    return place_archived(where) ? p->archive : p->log;
}

bool place_view(const struct places *p, uint64_t where, size_t len, struct slice *out, struct log_pin *pin)
{
    struct log *l = log_of(p, where);
    return l != NULL && log_view(l, where & ~PLACE_ARCHIVE, len, out, pin);
}

enum log_status place_read(const struct places *p, uint64_t where, size_t len, char *out)
{
    struct log *l = log_of(p, where);
    return l == NULL ? LOG_DAMAGED : log_read(l, where & ~PLACE_ARCHIVE, len, out);
}

uint64_t place_stable(const struct places *p, uint64_t where)
{
    struct log *l = log_of(p, where);
    return l == NULL ? 0 : (log_end_pos(l) - log_unsynced_bytes(l)) | (where & PLACE_ARCHIVE);
}

void place_text(uint64_t where, uint64_t segment_bytes, char out[PLACE_TEXT_BYTES])
{
    uint64_t pos = where & ~PLACE_ARCHIVE;
    snprintf(out, PLACE_TEXT_BYTES, "%s/%016llx.seg at offset %llu", place_archived(where) ? "archive" : "log",
             (unsigned long long)(pos & ~(segment_bytes - 1)), (unsigned long long)(pos & (segment_bytes - 1)));
}
