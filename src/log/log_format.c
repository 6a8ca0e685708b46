/* Heads of records and files. */
#include "base/hash.h"
#include "log/log_internal.h"

static const uint64_t FILE_MAGIC = 0x31474f4c4e455551; /* "QUENLOG1" */
enum { FILE_VERSION = 1 };

_Static_assert(sizeof(struct record_head) == LOG_HEAD, "the record head is 48 bytes on disk");
_Static_assert(sizeof(struct file_head) == 64, "the file head has no holes");

/* The id is random: half of it becomes the records' magic, the other half seeds their checksums. */
void log_key_set(struct log *l, uint64_t id)
{
    l->id = id;
    l->magic = (uint32_t)id | 1; /* never the zeros of unwritten space */
    l->key = (uint32_t)(id >> 32);
}

uint32_t record_body_crc(const struct log *l, const char *body, size_t len)
{
    return crc32c(~l->key, body, len);
}

static uint32_t record_head_crc(const struct log *l, uint64_t pos, const struct record_head *h)
{
    uint32_t crc = crc32c(l->key, &pos, sizeof pos);
    return crc32c(crc, &h->len, LOG_HEAD - offsetof(struct record_head, len));
}

/* Completes the head: everything else in it is set. A PAD has no body (body == NULL). */
void record_seal(const struct log *l, uint64_t pos, struct record_head *h, const char *body)
{
    h->magic = l->magic;
    h->gen = l->gen;
    h->zero = 0;
    h->body_crc = body == NULL ? 0 : record_body_crc(l, body, h->len);
    h->crc = record_head_crc(l, pos, h);
}

bool record_head_valid(const struct log *l, uint64_t pos, const struct record_head *h)
{
    return h->magic == l->magic && h->crc == record_head_crc(l, pos, h) && h->zero == 0 && h->kind >= LOG_ENTRY &&
           h->kind <= LOG_MARK;
}

void file_head_make(const struct log *l, uint64_t first_pos, uint64_t len, char page[LOG_PAGE])
{
    struct file_head h = {.magic = FILE_MAGIC,
                          .version = FILE_VERSION,
                          .page_bytes = LOG_PAGE,
                          .id = l->id,
                          .first_pos = first_pos,
                          .len = len,
                          .segment_bytes = l->segment_bytes,
                          .block_bytes = l->block_bytes,
                          .gen = l->gen};
    h.crc = crc32c(0, &h, offsetof(struct file_head, crc));
    memset(page, 0, LOG_PAGE);
    memcpy(page, &h, sizeof h);
}

static bool power_of_two(uint64_t v)
{
    return v != 0 && (v & (v - 1)) == 0;
}

enum file_head_state file_head_read(const char page[LOG_PAGE], uint64_t first_pos, struct file_head *out)
{
    memcpy(out, page, sizeof *out);
    if (out->magic != FILE_MAGIC || out->crc != crc32c(0, out, offsetof(struct file_head, crc))) return FILE_HEAD_BAD;
    if (out->version != FILE_VERSION) return FILE_HEAD_NEWER;
    bool sane = out->page_bytes == LOG_PAGE && out->first_pos == first_pos && power_of_two(out->segment_bytes) &&
                out->segment_bytes >= 1 << 20 && out->segment_bytes <= 1 << 30 && power_of_two(out->block_bytes) &&
                out->block_bytes >= 1 << 18 && out->block_bytes <= LOG_BLOCK_BYTES_MAX &&
                out->block_bytes < out->segment_bytes && out->len != 0 && out->len % out->segment_bytes == 0 &&
                out->len <= (uint64_t)2 << 30 && first_pos % out->segment_bytes == 0 && first_pos < (uint64_t)1 << 62;
    return sane ? FILE_HEAD_GOOD : FILE_HEAD_BAD;
}
