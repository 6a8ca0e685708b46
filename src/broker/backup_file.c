#include "broker/backup_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/files.h"
#include "base/hash.h"
#include "base/isotime.h"

static const char LAST_HEAD[] = "\"crc32c\":\"", LAST_TAIL[] = "\"}\n";
enum { LAST_BYTES = sizeof LAST_HEAD - 1 + 8 + sizeof LAST_TAIL - 1 };

/* Plain names, parted by slashes, none of which begins with a dot. */
static bool name_good(const char *name)
{
    bool begins = true;
    size_t len = 0;
    for (const char *c = name; *c != '\0'; c++, len++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!letter && *c != '-' && *c != '_' && *c != '.' && *c != '/') return false;
        if (begins && (*c == '.' || *c == '/')) return false;
        begins = *c == '/';
    }
    return len > 0 && len < BACKUP_NAME_BYTES && !begins;
}

bool backup_file_add(struct backup_file *f, const char *name, uint64_t bytes, uint32_t crc)
{
    if (!name_good(name) || f->count == BACKUP_FILES_MAX) return false;
    if (f->count == f->cap) {
        f->cap = f->cap == 0 ? 64 : f->cap * 2;
        f->files = realloc(f->files, f->cap * sizeof *f->files);
        must(f->files != NULL);
    }
    char *copy = strdup(name);
    must(copy != NULL);
    f->files[f->count++] = (struct backup_entry){.name = copy, .bytes = bytes, .crc = crc};
    return true;
}

static int entry_order(const void *a, const void *b)
{
    return strcmp(((const struct backup_entry *)a)->name, ((const struct backup_entry *)b)->name);
}

void backup_file_sort(struct backup_file *f)
{
    if (f->count > 1) qsort(f->files, f->count, sizeof *f->files, entry_order);
}

const struct backup_entry *backup_file_find(const struct backup_file *f, const char *name)
{
    struct backup_entry wanted = {.name = (char *)(uintptr_t)name};
    return f->count == 0 ? NULL : bsearch(&wanted, f->files, f->count, sizeof *f->files, entry_order);
}

uint64_t backup_file_bytes(const struct backup_file *f)
{
    uint64_t sum = 0;
    for (uint32_t n = 0; n < f->count; n++) sum += f->files[n].bytes;
    return sum;
}

void backup_file_free(struct backup_file *f)
{
    for (uint32_t n = 0; n < f->count; n++) free(f->files[n].name);
    free(f->files);
    *f = (struct backup_file){0};
}

/* ---- writing */

void backup_file_encode(const struct backup_file *f, struct buf *out)
{
    size_t from = out->len;
    char id[UUID_TEXT], cluster[UUID_TEXT], time[ISOTIME_SECONDS_BYTES + 1];
    uint32_t micros;
    uuid_text(f->id, id);
    uuid_text(f->cluster, cluster);
    isotime_seconds_put(time, f->wall_us, &micros);
    buf_printf(out, "{\"format\":%d,\n\"backup\":\"%.*s\",\n\"cluster\":\"%.*s\",\n\"node\":%" PRIu64 ",\n", BACKUP_FORMAT,
               UUID_TEXT, id, UUID_TEXT, cluster, f->node);
    buf_printf(out, "\"time\":\"%.*s.%06" PRIu32 "Z\",\n\"version\":\"%s\",\n\"groups\":[\n", ISOTIME_SECONDS_BYTES, time,
               micros, f->version);
    for (uint32_t n = 0; n < f->group_count; n++) {
        buf_printf(out, "{\"group\":%" PRIu32 ",\"index\":%" PRIu64 ",\"term\":%" PRIu64 "}%s\n", n, f->groups[n].index,
                   f->groups[n].term, n + 1 < f->group_count ? "," : "");
    }
    buf_text(out, "],\n\"files\":[\n");
    for (uint32_t n = 0; n < f->count; n++) {
        must(n == 0 || strcmp(f->files[n - 1].name, f->files[n].name) < 0);
        buf_printf(out, "{\"name\":\"%s\",\"bytes\":%" PRIu64 ",\"crc32c\":\"%08" PRIx32 "\"}%s\n", f->files[n].name,
                   f->files[n].bytes, f->files[n].crc, n + 1 < f->count ? "," : "");
    }
    buf_text(out, "],\n");
    uint32_t crc = crc32c(0, out->at + from, out->len - from);
    buf_printf(out, "%s%08" PRIx32 "%s", LAST_HEAD, crc, LAST_TAIL);
}

/* ---- reading */

/* The next line, terminated; NULL at the end. */
static char *line_next(char **at)
{
    char *line = *at, *end = strchr(line, '\n');
    if (end == NULL) return NULL;
    *end = '\0';
    *at = end + 1;
    return line;
}

static bool line_is(char **at, const char *text)
{
    const char *line = line_next(at);
    return line != NULL && strcmp(line, text) == 0;
}

static bool head_read(char **at, struct backup_file *out)
{
    char id[UUID_TEXT + 1], cluster[UUID_TEXT + 1], time[64];
    char *line = line_next(at); /* the format, seen already */
    line = line_next(at);
    if (line == NULL || sscanf(line, "\"backup\":\"%36[0-9a-f-]\",", id) != 1) return false;
    line = line_next(at);
    if (line == NULL || sscanf(line, "\"cluster\":\"%36[0-9a-f-]\",", cluster) != 1) return false;
    line = line_next(at);
    if (line == NULL || sscanf(line, "\"node\":%" SCNu64 ",", &out->node) != 1) return false;
    line = line_next(at);
    if (line == NULL || sscanf(line, "\"time\":\"%63[0-9TZ:.-]\",", time) != 1) return false;
    line = line_next(at);
    if (line == NULL || sscanf(line, "\"version\":\"%31[^\"]\",", out->version) != 1) return false;
    return uuid_parse(slice_of(id), &out->id) && uuid_parse(slice_of(cluster), &out->cluster) &&
           isotime_parse_us(slice_of(time), &out->wall_us) && line_is(at, "\"groups\":[");
}

static bool groups_read(char **at, struct backup_file *out)
{
    for (;;) {
        const char *line = line_next(at);
        uint32_t number;
        if (line == NULL) return false;
        if (strcmp(line, "],") == 0) return out->group_count > 0;
        uint32_t n = out->group_count;
        if (n == CONFIG_GROUPS_MAX || sscanf(line, "{\"group\":%" SCNu32 ",\"index\":%" SCNu64 ",\"term\":%" SCNu64 "}",
                                             &number, &out->groups[n].index, &out->groups[n].term) != 3)
            return false;
        if (number != n) return false;
        out->group_count++;
    }
}

static bool files_read_in(char **at, struct backup_file *out)
{
    if (!line_is(at, "\"files\":[")) return false;
    for (;;) {
        const char *line = line_next(at);
        char name[BACKUP_NAME_BYTES];
        uint64_t bytes;
        uint32_t crc;
        if (line == NULL) return false;
        if (strcmp(line, "],") == 0) return true;
        if (sscanf(line, "{\"name\":\"%127[^\"]\",\"bytes\":%" SCNu64 ",\"crc32c\":\"%8" SCNx32 "\"}", name, &bytes, &crc) != 3)
            return false;
        if (bytes > (uint64_t)1 << 50 || !backup_file_add(out, name, bytes, crc)) return false;
        if (out->count > 1 && strcmp(out->files[out->count - 2].name, name) >= 0) return false;
    }
}

static const char *text_read(char *text, struct backup_file *out)
{
    unsigned format = 0;
    if (sscanf(text, "{\"format\":%u,", &format) != 1) return "it is no backup's";
    if (format != BACKUP_FORMAT) return "it has a format that this program does not know: use a newer one";
    bool good = head_read(&text, out) && groups_read(&text, out) && files_read_in(&text, out);
    return good && *text == '"' ? NULL : "it is not laid out as it should be";
}

const char *backup_file_decode(struct slice bytes, struct backup_file *out)
{
    *out = (struct backup_file){0};
    if (bytes.len <= LAST_BYTES || memchr(bytes.at, '\0', bytes.len) != NULL) return "it is cut off or damaged";
    char last[LAST_BYTES + 1];
    snprintf(last, sizeof last, "%s%08" PRIx32 "%s", LAST_HEAD, crc32c(0, bytes.at, bytes.len - LAST_BYTES), LAST_TAIL);
    if (memcmp(bytes.at + bytes.len - LAST_BYTES, last, LAST_BYTES) != 0)
        return "its checksum is wrong: it is damaged, or was edited";
    char *text = strndup(bytes.at, bytes.len);
    must(text != NULL);
    const char *wrong = text_read(text, out);
    free(text);
    if (wrong != NULL) backup_file_free(out);
    return wrong;
}

bool backup_file_load(const char *dir, struct backup_file *out, bool *missing, struct buf *error)
{
    char path[FILES_PATH_BYTES];
    uint64_t bytes = 0;
    struct buf file = {0};
    *out = (struct backup_file){0};
    int n = snprintf(path, sizeof path, "%s/BACKUP", dir);
    int code = n < 0 || (size_t)n >= sizeof path ? ENAMETOOLONG : files_size(path, &bytes);
    if (missing != NULL) *missing = code == ENOENT || code == ENOTDIR;
    if (code == 0 && bytes > BACKUP_FILE_BYTES_MAX) code = EFBIG;
    if (code == 0) code = files_read(path, 0, (size_t)bytes, &file);
    const char *wrong = code == 0 ? backup_file_decode(buf_view(&file), out) : NULL;
    buf_free(&file);
    if (code == ENOENT || code == ENOTDIR) {
        buf_printf(error, "%s is no backup, or one that was cut short: there is no file BACKUP in it", dir);
    } else if (code != 0) {
        buf_printf(error, "%s: cannot be read: %s", path, strerror(code));
    } else if (wrong != NULL) {
        buf_printf(error, "%s: %s", path, wrong);
    }
    return code == 0 && wrong == NULL;
}
