#include "broker/snapshot_manifest.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"

enum { FORMAT = 2, HEAD_BYTES = 24, FILE_BYTES_MIN = 1 + 1 + 1 + 8 };

static const char MAGIC[8] = {'Q', 'U', 'E', 'E', 'N', 'M', 'N', 'F'};
static const uint64_t FILE_BYTES_MAX = (uint64_t)1 << 44; /* times MANIFEST_FILES_MAX: no overflow */
static const uint64_t POSITION_MAX = (uint64_t)1 << 62;

const char *manifest_dir(uint8_t part)
{
    return part == MANIFEST_STORE ? "store" : part == MANIFEST_LOG ? "log" : "archive";
}

bool manifest_is_last(const struct manifest *m, uint32_t n)
{
    must(n < m->count);
    return n + 1 == m->count || m->files[n + 1].part != m->files[n].part;
}

bool manifest_segment(const char *name, uint64_t *first_pos)
{
    if (strlen(name) != 20 || strcmp(name + 16, ".seg") != 0) return false;
    uint64_t pos = 0;
    for (int i = 0; i < 16; i++) {
        char c = name[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false;
        pos = pos << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *first_pos = pos;
    return true;
}

static bool name_is_plain(const char *name)
{
    if (name[0] == '.' || name[0] == '\0') return false;
    for (const char *c = name; *c != '\0'; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!letter && *c != '-' && *c != '_' && *c != '.') return false;
    }
    return true;
}

static int file_order(const struct manifest_file *a, const struct manifest_file *b)
{
    return a->part != b->part ? (a->part < b->part ? -1 : 1) : strcmp(a->name, b->name);
}

bool manifest_add(struct manifest *m, enum manifest_part part, const char *name, uint64_t bytes)
{
    uint64_t pos;
    bool fits = strlen(name) < MANIFEST_NAME_BYTES && name_is_plain(name) && bytes <= FILE_BYTES_MAX;
    if (!fits || (part != MANIFEST_STORE && !manifest_segment(name, &pos)) || m->count == MANIFEST_FILES_MAX) return false;
    if (m->count == m->cap) {
        m->cap = m->cap == 0 ? 64 : m->cap * 2;
        m->files = realloc(m->files, m->cap * sizeof *m->files);
        must(m->files != NULL);
    }
    struct manifest_file *f = &m->files[m->count++];
    *f = (struct manifest_file){.bytes = bytes, .part = (uint8_t)part};
    memcpy(f->name, name, strlen(name) + 1);
    return true;
}

void manifest_encode(const struct manifest *m, struct buf *out)
{
    size_t from = out->len;
    buf_put(out, MAGIC, sizeof MAGIC);
    buf_u32(out, FORMAT);
    buf_u32(out, 0);
    buf_u64(out, 0);
    buf_put(out, m->cluster.bytes, sizeof m->cluster.bytes);
    const uint64_t numbers[] = {m->node, m->mark.index, m->mark.term, m->mark.scan_pos, m->log_end, m->segment_bytes};
    buf_put(out, numbers, sizeof numbers);
    must(m->configuration.len <= MANIFEST_CONFIGURATION_BYTES_MAX);
    buf_u32(out, (uint32_t)m->configuration.len);
    buf_slice(out, buf_view(&m->configuration));
    buf_u32(out, m->count);
    for (uint32_t n = 0; n < m->count; n++) {
        const struct manifest_file *f = &m->files[n];
        must(n == 0 || file_order(f - 1, f) < 0);
        size_t len = strlen(f->name);
        buf_byte(out, (char)f->part);
        buf_byte(out, (char)len);
        buf_put(out, f->name, len);
        buf_u64(out, f->bytes);
    }
    uint64_t len = out->len - from - HEAD_BYTES;
    uint32_t crc = crc32c(0, out->at + from + HEAD_BYTES, len);
    memcpy(out->at + from + 12, &crc, sizeof crc);
    memcpy(out->at + from + 16, &len, sizeof len);
}

/* ---- reading */

/* Takes `len` bytes from the front, or fails for good: everything after it fails too. */
static bool take(struct slice *in, void *to, size_t len)
{
    if (in->len < len) {
        in->len = 0;
        return false;
    }
    memcpy(to, in->at, len);
    in->at += len;
    in->len -= len;
    return true;
}

static const char *head_read(struct slice *in)
{
    char magic[8];
    uint32_t format, crc;
    uint64_t len;
    bool whole = take(in, magic, sizeof magic) && take(in, &format, sizeof format) && take(in, &crc, sizeof crc) &&
                 take(in, &len, sizeof len);
    if (!whole || memcmp(magic, MAGIC, sizeof MAGIC) != 0) return "no manifest";
    if (format != FORMAT) return "a format this program does not know";
    if (in->len != len || crc != crc32c(0, in->at, in->len)) return "its checksum is wrong";
    return NULL;
}

static bool file_read(struct slice *in, struct manifest *out)
{
    uint8_t part, len;
    uint64_t bytes;
    char name[MANIFEST_NAME_BYTES];
    if (!take(in, &part, 1) || !take(in, &len, 1) || len >= MANIFEST_NAME_BYTES || !take(in, name, len)) return false;
    name[len] = '\0';
    if (!take(in, &bytes, sizeof bytes) || strlen(name) != len) return false;
    if (part < MANIFEST_STORE || part > MANIFEST_PARTS) return false;
    if (!manifest_add(out, part, name, bytes)) return false;
    const struct manifest_file *f = &out->files[out->count - 1];
    return out->count == 1 || file_order(f - 1, f) < 0;
}

/* Do the segments hold every byte from the scan position to the end? Before it there may be holes. */
static const char *segments_check(const struct manifest *m)
{
    uint64_t unit = m->segment_bytes, before = 0;
    bool covers = false, any = false;
    for (uint32_t n = 0; n < m->count; n++) {
        const struct manifest_file *f = &m->files[n];
        uint64_t first;
        if (f->part != MANIFEST_LOG) continue;
        must(manifest_segment(f->name, &first));
        uint64_t end = first + (f->bytes + unit - 1) / unit * unit;
        bool sane = first % unit == 0 && first < m->log_end && first >= before && f->bytes != 0;
        if (!sane || f->bytes > (uint64_t)2 << 30) return "a segment that can not belong to its log";
        if (covers && first != before) return "a segment of the log is missing";
        covers |= first <= m->mark.scan_pos && m->mark.scan_pos < end;
        if (manifest_is_last(m, n) && (f->bytes > m->log_end - first || m->log_end > end))
            return "the log does not end where it should";
        before = end;
        any = true;
    }
    return !any ? "no log in it" : !covers ? "the log does not hold the scan position" : NULL;
}

static const char *archive_check(const struct manifest *m)
{
    uint64_t unit = m->segment_bytes, before = 0;
    for (uint32_t n = 0; n < m->count; n++) {
        const struct manifest_file *f = &m->files[n];
        uint64_t first;
        if (f->part != MANIFEST_ARCHIVE) continue;
        must(manifest_segment(f->name, &first));
        bool sane = first % unit == 0 && first < POSITION_MAX && first >= before && f->bytes != 0;
        if (!sane || f->bytes > (uint64_t)2 << 30) return "a file that can not belong to its archive";
        before = first + (f->bytes + unit - 1) / unit * unit;
    }
    return NULL;
}

static const char *manifest_check(const struct manifest *m)
{
    uint64_t unit = m->segment_bytes;
    bool current = false;
    if (m->node == 0 || m->mark.index == 0 || m->mark.term == 0 || m->mark.index >= POSITION_MAX)
        return "it is a state of nothing";
    if (unit < 4096 || unit > 1 << 30 || (unit & (unit - 1)) != 0) return "impossible segments";
    if (m->mark.scan_pos >= m->log_end || m->log_end > POSITION_MAX) return "impossible positions";
    if (m->configuration.len == 0) return "no configuration";
    for (uint32_t n = 0; n < m->count; n++)
        current |= m->files[n].part == MANIFEST_STORE && strcmp(m->files[n].name, "CURRENT") == 0;
    if (!current) return "no store in it";
    const char *wrong = segments_check(m);
    return wrong != NULL ? wrong : archive_check(m);
}

static const char *body_read(struct slice *in, struct manifest *out)
{
    uint64_t numbers[6];
    uint32_t len, count;
    static const char short_of[] = "it is too short";
    if (!take(in, out->cluster.bytes, sizeof out->cluster.bytes) || !take(in, numbers, sizeof numbers)) return short_of;
    out->node = numbers[0];
    out->mark = (struct store_mark){.index = numbers[1], .term = numbers[2], .scan_pos = numbers[3]};
    out->log_end = numbers[4];
    out->segment_bytes = numbers[5];
    if (!take(in, &len, sizeof len) || len > MANIFEST_CONFIGURATION_BYTES_MAX || len > in->len) return short_of;
    if (len > 0) {
        char *at = buf_reserve(&out->configuration, len);
        must(take(in, at, len));
        out->configuration.len = len;
    }
    if (!take(in, &count, sizeof count) || count > MANIFEST_FILES_MAX || count > in->len / FILE_BYTES_MIN) return short_of;
    for (uint32_t n = 0; n < count; n++)
        if (!file_read(in, out)) return "an impossible file in it";
    return in->len == 0 ? manifest_check(out) : "it is too long";
}

const char *manifest_decode(struct slice bytes, struct manifest *out)
{
    *out = (struct manifest){0};
    if (bytes.len > MANIFEST_BYTES_MAX) return "it is too long";
    const char *wrong = head_read(&bytes);
    if (wrong == NULL) wrong = body_read(&bytes, out);
    if (wrong != NULL) manifest_free(out);
    return wrong;
}

void manifest_free(struct manifest *m)
{
    buf_free(&m->configuration);
    free(m->files);
    *m = (struct manifest){0};
}

uint64_t manifest_bytes(const struct manifest *m)
{
    uint64_t sum = 0;
    for (uint32_t n = 0; n < m->count; n++) sum += m->files[n].bytes;
    return sum;
}
