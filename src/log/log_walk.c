/* From record to record through the log, for who copies it: heads only, from memory or from the files. */
#include "log/log_internal.h"

/* What a head says about where the next record begins. False: no valid record begins at `pos`. */
static bool record_next(struct log *l, uint64_t pos, const struct record_head *h, uint64_t seg_end, uint64_t *next)
{
    if (!record_head_valid(l, pos, h)) return false;
    uint64_t border = pos / l->block_bytes * l->block_bytes + l->block_bytes;
    uint64_t end = h->kind == LOG_PAD ? pos + LOG_HEAD + h->len : pos + record_bytes(h->len);
    if (end > border) {
        border = round_up(end, l->block_bytes); /* blocks of its own */
        end = border;
    }
    *next = border - end < LOG_HEAD ? border : end;
    return *next <= seg_end;
}

enum log_status log_entry_end(struct log *l, uint64_t from, uint64_t index, uint64_t term, uint64_t *end)
{
    uint64_t pos = from - LOG_HEAD, log_end = log_end_pos(l);
    if (from < LOG_PAGE + LOG_HEAD) return LOG_DAMAGED;
    while (pos < log_end && log_end - pos >= LOG_HEAD) {
        pthread_mutex_lock(&l->file_lock);
        const struct segment *s = segment_at(l, pos);
        uint64_t seg_end = s == NULL ? 0 : s->end_pos;
        pthread_mutex_unlock(&l->file_lock);
        if (s == NULL) return LOG_DAMAGED;
        struct record_head h;
        uint64_t next;
        enum log_status status = log_read(l, pos, LOG_HEAD, (char *)&h);
        if (status != LOG_OK) return status;
        if (!record_next(l, pos, &h, seg_end, &next)) return LOG_DAMAGED;
        if (h.kind == LOG_ENTRY && h.index == index && h.term == term) {
            *end = next;
            return LOG_OK;
        }
        pos = next == seg_end ? seg_end + LOG_PAGE : next;
    }
    return LOG_DAMAGED;
}
