/* The small files of a node: identity and configuration. Each is written whole under a temporary name and renamed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crash_point.h"
#include "base/files.h"
#include "base/hash.h"
#include "replica/replica_inner.h"

enum { IDENTITY_BYTES_MAX = 1024, CONF_BYTES_MAX = 1 << 20, CONF_HEAD_BYTES = 32 };

static const char CONF_MAGIC[8] = {'Q', 'U', 'E', 'E', 'N', 'C', 'N', 'F'};

static enum log_status io_error(struct buf *error, const char *path, const char *doing, int code)
{
    buf_printf(error, "%s: %s: %s", path, doing, strerror(code));
    return LOG_IO;
}

static enum log_status path_make(char out[FILES_PATH_BYTES], const char *dir, const char *name, struct buf *error)
{
    int n = snprintf(out, FILES_PATH_BYTES, "%s/%s", dir, name);
    return n > 0 && n < FILES_PATH_BYTES - 8 ? LOG_OK : io_error(error, dir, "path", ENAMETOOLONG);
}

enum log_status file_replace(const char *dir, const char *name, struct slice bytes, struct buf *error)
{
    char path[FILES_PATH_BYTES];
    enum log_status status = path_make(path, dir, name, error);
    if (status != LOG_OK) return status;
    int code = files_replace(path, bytes);
    if (code != 0) return io_error(error, path, "cannot be written", code);
    crash_point("meta-renamed");
    return LOG_OK;
}

enum log_status file_load(const char *dir, const char *name, size_t bytes_max, struct buf *out, bool *found, struct buf *error)
{
    char path[FILES_PATH_BYTES];
    *found = false;
    enum log_status status = path_make(path, dir, name, error);
    if (status != LOG_OK) return status;
    int code = files_read(path, 0, bytes_max + 1, out);
    if (code == ENOENT) return LOG_OK;
    if (code != 0) return io_error(error, path, "cannot be read", code);
    *found = true;
    if (out->len <= bytes_max) return LOG_OK;
    buf_printf(error, "%s: damaged: larger than %zu bytes", path, bytes_max);
    return LOG_DAMAGED;
}

/* ---- identity */

static void identity_text(const struct identity *id, struct buf *out)
{
    char cluster[UUID_TEXT];
    uuid_text(id->cluster, cluster);
    buf_printf(out, "queen identity 1\ncluster %.*s\nnode %" PRIu64 "\ngeneration %" PRIu64 "\n", UUID_TEXT, cluster, id->node,
               id->generation);
    uint32_t crc = crc32c(0, out->at, out->len);
    buf_printf(out, "check %08" PRIx32 "\n", crc);
}

enum log_status identity_load(const char *dir, struct identity *out, bool *found, struct buf *error)
{
    struct buf text = {0}, again = {0};
    enum log_status status = file_load(dir, "identity", IDENTITY_BYTES_MAX, &text, found, error);
    if (status != LOG_OK || !*found) {
        buf_free(&text);
        return status;
    }
    buf_byte(&text, '\0');
    char cluster[UUID_TEXT + 1];
    unsigned format = 0;
    int n = sscanf(text.at, "queen identity %u\ncluster %36s\nnode %" SCNu64 "\ngeneration %" SCNu64, &format, cluster,
                   &out->node, &out->generation);
    bool good = n == 4 && format == 1 && uuid_parse(slice_of(cluster), &out->cluster) && out->node != 0;
    if (good) identity_text(out, &again);
    if (n >= 1 && format > 1) {
        buf_printf(error, "%s/identity: has format %u, this program reads format 1: use a newer version of it", dir, format);
        status = LOG_DAMAGED;
    } else if (!good || text.len != again.len + 1 || memcmp(text.at, again.at, again.len) != 0) {
        buf_printf(error,
                   "%s/identity: damaged (offset 0): restore it from a backup; without it the node does not know who it is",
                   dir);
        status = LOG_DAMAGED;
    }
    buf_free(&text);
    buf_free(&again);
    return status;
}

enum log_status identity_store(const char *dir, const struct identity *id, struct buf *error)
{
    struct buf text = {0};
    identity_text(id, &text);
    enum log_status status = file_replace(dir, "identity", buf_view(&text), error);
    buf_free(&text);
    return status;
}

/* ---- configuration:  magic 8 | format 4 | crc 4 (of what follows) | index 8 | length 8 | encoded */

enum log_status conf_load(const char *dir, struct conf *out, bool *found, struct buf *error)
{
    struct buf file = {0};
    enum log_status status = file_load(dir, "configuration", CONF_BYTES_MAX, &file, found, error);
    if (status != LOG_OK || !*found) {
        buf_free(&file);
        return status;
    }
    uint32_t format = 0, crc = 0;
    uint64_t index = 0, len = 0;
    bool good = file.len > CONF_HEAD_BYTES && memcmp(file.at, CONF_MAGIC, 8) == 0;
    if (good) {
        memcpy(&format, file.at + 8, 4);
        memcpy(&crc, file.at + 12, 4);
        memcpy(&index, file.at + 16, 8);
        memcpy(&len, file.at + 24, 8);
        good = crc == crc32c(0, file.at + 16, file.len - 16) && len == file.len - CONF_HEAD_BYTES && index != 0;
    }
    if (!good) {
        buf_printf(error, "%s/configuration: damaged (offset 0): restore it from a backup", dir);
        status = LOG_DAMAGED;
    } else if (format != 1) {
        buf_printf(error, "%s/configuration: has format %" PRIu32 ", this program reads format 1: use a newer version of it",
                   dir, format);
        status = LOG_DAMAGED;
    } else {
        out->index = index;
        buf_clear(&out->encoded);
        buf_put(&out->encoded, file.at + CONF_HEAD_BYTES, len);
    }
    buf_free(&file);
    return status;
}

void conf_write(const struct conf *c, struct buf *out)
{
    size_t begin = out->len;
    buf_put(out, CONF_MAGIC, 8);
    buf_u32(out, 1);
    buf_u32(out, 0);
    buf_u64(out, c->index);
    buf_u64(out, c->encoded.len);
    buf_slice(out, buf_view(&c->encoded));
    uint32_t crc = crc32c(0, out->at + begin + 16, out->len - begin - 16);
    memcpy(out->at + begin + 12, &crc, 4);
}

enum log_status conf_store(const char *dir, const struct conf *c, struct buf *error)
{
    struct buf file = {0};
    conf_write(c, &file);
    enum log_status status = file_replace(dir, "configuration", buf_view(&file), error);
    buf_free(&file);
    return status;
}
