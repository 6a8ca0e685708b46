#include "broker/restore.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "broker/dir.h"
#include "broker/node_inner.h"
#include "broker/snapshot_manifest.h"
#include "replica/restore.h"

enum { RANGE_BYTES = 1 << 20, FILE_MODE = 0640, NODE_ID_MAX = 1000000000 };

struct restore {
    const struct restore_options *o;
    struct backup_file *file;
    struct manifest manifests[CONFIG_GROUPS_MAX];
    struct replica_member members[CONFIG_PEERS_MAX];
    struct uuid cluster;
    struct buf *error;
    uint32_t findings;
    char *bytes;
    uint64_t done, total;
};

/* ---- findings ------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void find(struct restore *r, const char *format, ...)
{
    va_list args;
    char text[FILES_PATH_BYTES + 512];
    if (r->findings++ >= RESTORE_FINDINGS_MAX) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->error->len > 0) buf_byte(r->error, '\n');
    buf_text(r->error, text);
}

__attribute__((format(printf, 3, 4))) static enum restore_result fail(struct restore *r, enum restore_result result,
                                                                      const char *format, ...)
{
    va_list args;
    char text[FILES_PATH_BYTES + 512];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->error->len > 0) buf_byte(r->error, '\n');
    buf_text(r->error, text);
    return result;
}

static void progress(struct restore *r, bool copying, uint64_t bytes)
{
    r->done += bytes;
    if (r->o->progress != NULL) r->o->progress(r->o->ctx, copying, r->done, r->total);
}

static void backup_path(const struct restore *r, const char *name, char out[FILES_PATH_BYTES])
{
    int n = snprintf(out, FILES_PATH_BYTES, "%s/%s", r->o->backup, name);
    must(n > 0 && n < FILES_PATH_BYTES);
}

/* ---- verifying ------------------------------------------------------------------------------------------------------ */

/* Reads all of the file, with `out` >= 0 writing it there. NULL, or what is wrong; `offset`: where it ended. */
static const char *file_pass(struct restore *r, int in, int out, uint64_t bytes, uint32_t *crc, uint64_t *offset)
{
    *crc = 0;
    for (*offset = 0; *offset < bytes;) {
        ssize_t n = pread(in, r->bytes, RANGE_BYTES, (off_t)*offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return strerror(errno);
        if (n == 0) return "it is cut off";
        if ((uint64_t)n > bytes - *offset) return "it is longer than it should be";
        *crc = crc32c(*crc, r->bytes, (size_t)n);
        for (ssize_t at = 0, w; out >= 0 && at < n; at += w) {
            w = write(out, r->bytes + at, (size_t)(n - at));
            if (w < 0 && errno != EINTR) return strerror(errno);
            if (w < 0) w = 0;
        }
        *offset += (uint64_t)n;
        progress(r, out >= 0, (uint64_t)n);
    }
    return pread(in, r->bytes, 1, (off_t)bytes) == 0 ? NULL : "it is longer than it should be";
}

static void entry_verify(struct restore *r, const struct backup_entry *e)
{
    char path[FILES_PATH_BYTES];
    uint32_t crc;
    uint64_t offset;
    backup_path(r, e->name, path);
    int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0) {
        find(r, "%s: %s", path, errno == ENOENT ? "is missing" : strerror(errno));
        return;
    }
    const char *wrong = file_pass(r, in, -1, e->bytes, &crc, &offset);
    close(in);
    if (wrong != NULL)
        find(r, "%s: damaged at offset %" PRIu64 ": %s (it should have %" PRIu64 " bytes)", path, offset, wrong, e->bytes);
    else if (crc != e->crc)
        find(r, "%s: damaged: the checksum of its bytes is %08" PRIx32 ", that of the file that was backed up %08" PRIx32, path,
             crc, e->crc);
}

/* The manifest of a group and the files it names. */
static void group_verify(struct restore *r, uint32_t group)
{
    char name[BACKUP_NAME_BYTES], path[FILES_PATH_BYTES];
    struct buf bytes = {0};
    struct manifest *m = &r->manifests[group];
    snprintf(name, sizeof name, "group-%" PRIu32 "/manifest", group);
    backup_path(r, name, path);
    const struct backup_entry *e = backup_file_find(r->file, name);
    int code = e == NULL ? ENOENT : files_read(path, 0, (size_t)e->bytes, &bytes);
    const char *wrong = code != 0 ? strerror(code) : manifest_decode(buf_view(&bytes), m);
    buf_free(&bytes);
    if (wrong == NULL && (m->mark.index != r->file->groups[group].index || m->mark.term != r->file->groups[group].term))
        wrong = "it is not the one of this backup";
    if (wrong != NULL) find(r, "%s: %s", path, wrong);
    for (uint32_t n = 0; wrong == NULL && n < m->count; n++) {
        const struct manifest_file *f = &m->files[n];
        snprintf(name, sizeof name, "group-%" PRIu32 "/%s/%s", group, manifest_dir(f->part), f->name);
        e = backup_file_find(r->file, name);
        if (e == NULL || e->bytes != f->bytes) find(r, "%s: %s is not in this backup as it should be", path, name);
    }
}

static enum restore_result verify(struct restore *r)
{
    bool missing = false;
    if (strlen(r->o->backup) > FILES_PATH_BYTES - 2 * BACKUP_NAME_BYTES) return fail(r, RESTORE_USAGE, "the path is too long");
    if (!backup_file_load(r->o->backup, r->file, &missing, r->error)) return missing ? RESTORE_USAGE : RESTORE_DAMAGED;
    r->total = backup_file_bytes(r->file);
    for (uint32_t n = 0; n < r->file->count; n++) entry_verify(r, &r->file->files[n]);
    for (uint32_t i = 0; i < r->file->group_count && r->findings == 0; i++) group_verify(r, i);
    if (r->findings > RESTORE_FINDINGS_MAX)
        fail(r, RESTORE_DAMAGED, "and %" PRIu32 " more", r->findings - RESTORE_FINDINGS_MAX);
    return r->findings == 0 ? RESTORE_OK : RESTORE_DAMAGED;
}

/* ---- who the new node is -------------------------------------------------------------------------------------------- */

static void cluster_make(struct restore *r)
{
    struct buf text = {0};
    buf_text(&text, "queen restore 1\n");
    buf_put(&text, r->file->id.bytes, sizeof r->file->id.bytes);
    for (uint32_t i = 0; i < r->o->peer_count; i++) {
        const struct config_peer *p = &r->o->peers[i];
        buf_printf(&text, "%" PRIu64 "=%s:%u\n", p->id, p->raft_host, p->raft_port);
    }
    if (r->o->peer_count == 0) buf_printf(&text, "alone %" PRIu64 "\n", r->o->node);
    struct hash128 h = hash128(buf_view(&text), 0);
    memcpy(r->cluster.bytes, &h.low, 8);
    memcpy(r->cluster.bytes + 8, &h.high, 8);
    buf_free(&text);
}

static void members_make(struct restore *r)
{
    for (uint32_t i = 0; i < r->o->peer_count; i++) {
        const struct config_peer *p = &r->o->peers[i];
        char raft[NODE_ADDRESS_BYTES];
        bool six = strchr(p->raft_host, ':') != NULL;
        snprintf(raft, sizeof raft, "%s%s%s:%u", six ? "[" : "", p->raft_host, six ? "]" : "", p->raft_port);
        r->members[i] = (struct replica_member){.id = p->id, .role = REPLICA_VOTER};
        node_address_make(r->members[i].address, raft, p->http, NULL);
    }
}

/* ---- laying out ----------------------------------------------------------------------------------------------------- */

static bool entry_any(void *ctx, const struct files_entry *e)
{
    if (strcmp(e->name, "lost+found") == 0) return true; /* of a file system of its own */
    *(bool *)ctx = true;
    return false;
}

static enum restore_result data_make(struct restore *r)
{
    bool any = false;
    const char *data = r->o->data;
    int code = files_list(data, entry_any, &any);
    if (code == 0 && any)
        return fail(r, RESTORE_USAGE,
                    "%s is not empty: a backup is restored to an empty directory, nothing is put over other data", data);
    if (code == ENOENT) {
        int exit_code;
        return dir_make(data, &exit_code, r->error) ? RESTORE_OK : RESTORE_IO;
    }
    return code == 0 ? RESTORE_OK : fail(r, code == ENOTDIR ? RESTORE_USAGE : RESTORE_IO, "%s: %s", data, strerror(code));
}

static enum restore_result file_lay(struct restore *r, const char *name, const char *to)
{
    char from[FILES_PATH_BYTES];
    const struct backup_entry *e = backup_file_find(r->file, name);
    uint32_t crc = 0;
    uint64_t offset;
    must(e != NULL);
    backup_path(r, name, from);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0) return fail(r, RESTORE_IO, "%s: %s", from, strerror(errno));
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    if (out < 0) {
        int code = errno;
        close(in);
        return fail(r, RESTORE_IO, "%s: cannot be made: %s", to, strerror(code));
    }
    const char *wrong = file_pass(r, in, out, e->bytes, &crc, &offset);
    if (wrong == NULL && fsync(out) != 0) wrong = strerror(errno);
    if (close(out) != 0 && wrong == NULL) wrong = strerror(errno);
    close(in);
    if (wrong != NULL) return fail(r, RESTORE_IO, "%s: cannot be copied to %s: %s", from, to, wrong);
    return crc == e->crc ? RESTORE_OK : fail(r, RESTORE_DAMAGED, "%s: damaged: it changed while it was copied", from);
}

static enum restore_result dir_lay(struct restore *r, const char *dir, bool sync)
{
    int code = sync ? files_sync(dir) : files_make_dir(dir);
    return code == 0 ? RESTORE_OK : fail(r, RESTORE_IO, "%s: cannot be %s: %s", dir, sync ? "synced" : "made", strerror(code));
}

static enum restore_result part_lay(struct restore *r, uint32_t group, const char *dir, enum manifest_part part)
{
    const struct manifest *m = &r->manifests[group];
    char path[FILES_PATH_BYTES], to[FILES_PATH_BYTES], name[BACKUP_NAME_BYTES];
    snprintf(path, sizeof path, "%.*s/%s", FILES_PATH_BYTES - 100, dir, manifest_dir((uint8_t)part));
    enum restore_result result = dir_lay(r, path, false);
    for (uint32_t n = 0; n < m->count && result == RESTORE_OK; n++) {
        if (m->files[n].part != part) continue;
        snprintf(name, sizeof name, "group-%" PRIu32 "/%s/%s", group, manifest_dir((uint8_t)part), m->files[n].name);
        snprintf(to, sizeof to, "%.*s/%s", FILES_PATH_BYTES - 80, path, m->files[n].name);
        result = file_lay(r, name, to);
    }
    return result == RESTORE_OK ? dir_lay(r, path, true) : result;
}

static void group_dir(const struct restore *r, uint32_t group, char out[FILES_PATH_BYTES])
{
    if (group == 0)
        snprintf(out, FILES_PATH_BYTES, "%s", r->o->data);
    else
        snprintf(out, FILES_PATH_BYTES, "%s/group-%" PRIu32, r->o->data, group);
}

/* A configuration without an identity: what was not laid out to its end is refused by a start, and never taken for a new directory. */
static enum restore_result group_mark(struct restore *r, uint32_t group)
{
    char dir[FILES_PATH_BYTES], path[FILES_PATH_BYTES];
    group_dir(r, group, dir);
    enum restore_result result = group == 0 ? RESTORE_OK : dir_lay(r, dir, false);
    if (result != RESTORE_OK) return result;
    snprintf(path, sizeof path, "%.*s/configuration", FILES_PATH_BYTES - 20, dir);
    int code = files_replace(path, buf_view(&r->manifests[group].configuration));
    return code == 0 ? RESTORE_OK : fail(r, RESTORE_IO, "%s: cannot be written: %s", path, strerror(code));
}

static enum restore_result group_lay(struct restore *r, uint32_t group)
{
    const struct manifest *m = &r->manifests[group];
    char dir[FILES_PATH_BYTES];
    group_dir(r, group, dir);
    enum restore_result result = part_lay(r, group, dir, MANIFEST_STORE);
    if (result == RESTORE_OK) result = part_lay(r, group, dir, MANIFEST_LOG);
    bool archive = m->count > 0 && m->files[m->count - 1].part == MANIFEST_ARCHIVE;
    if (result == RESTORE_OK && archive) result = part_lay(r, group, dir, MANIFEST_ARCHIVE);
    if (result == RESTORE_OK) result = dir_lay(r, dir, true);
    if (result != RESTORE_OK) return result;
    struct replica_restore o = {.dir = dir,
                                .cluster = r->cluster,
                                .node = r->o->node,
                                .index = m->mark.index,
                                .term = m->mark.term,
                                .scan_pos = m->mark.scan_pos,
                                .segment_bytes = m->segment_bytes,
                                .members = r->members,
                                .member_count = r->o->peer_count};
    enum log_status status = replica_restore(&o, r->error);
    return status == LOG_OK ? RESTORE_OK : status == LOG_IO ? RESTORE_IO : RESTORE_DAMAGED;
}

/* Who the directory is among others. */
static enum restore_result disk_lay(struct restore *r)
{
    struct disk_file f = {.cluster = r->cluster, .disk = uuid_mint(clock_wall_us()), .node = r->o->node};
    if (r->o->peer_count == 0) return RESTORE_OK;
    if (!node_dir_inode(r->o->data, &f.inode)) return fail(r, RESTORE_IO, "%s: %s", r->o->data, strerror(errno));
    return disk_file_store(r->o->data, &f, r->error) ? RESTORE_OK : RESTORE_IO;
}

static enum restore_result lay_out(struct restore *r)
{
    char path[FILES_PATH_BYTES];
    if (strlen(r->o->data) > FILES_PATH_BYTES - 2 * BACKUP_NAME_BYTES) return fail(r, RESTORE_USAGE, "the path is too long");
    enum restore_result result = data_make(r);
    r->done = 0;
    cluster_make(r);
    members_make(r);
    snprintf(path, sizeof path, "%s/groups", r->o->data);
    for (uint32_t i = 0; i < r->file->group_count && result == RESTORE_OK; i++) result = group_mark(r, i);
    if (result == RESTORE_OK && backup_file_find(r->file, "groups") != NULL) result = file_lay(r, "groups", path);
    if (result == RESTORE_OK) result = disk_lay(r);
    /* The first group last: it is the one a start looks at first. */
    for (uint32_t i = r->file->group_count; i-- > 0 && result == RESTORE_OK;) result = group_lay(r, i);
    return result;
}

enum restore_result restore_run(const struct restore_options *o, struct backup_file *file, struct buf *error)
{
    struct restore *r = calloc(1, sizeof *r);
    must(r != NULL && o->peer_count <= CONFIG_PEERS_MAX);
    *r = (struct restore){.o = o, .file = file, .error = error, .bytes = malloc(RANGE_BYTES)};
    must(r->bytes != NULL);
    enum restore_result result = verify(r);
    if (result == RESTORE_OK && o->data != NULL) result = lay_out(r);
    for (uint32_t i = 0; i < CONFIG_GROUPS_MAX; i++) manifest_free(&r->manifests[i]);
    free(r->bytes);
    free(r);
    return result;
}

/* ---- peers ---------------------------------------------------------------------------------------------------------- */

static bool peer_read(const char *text, size_t len, struct config_peer *out)
{
    const char *equals = memchr(text, '=', len), *end = text + len;
    const char *slash = equals == NULL ? NULL : memchr(equals, '/', (size_t)(end - equals));
    char host[256];
    uint16_t port;
    *out = (struct config_peer){0};
    if (slash == NULL || equals == text || equals - text > 10) return false;
    for (const char *c = text; c < equals; c++) {
        if (*c < '0' || *c > '9') return false;
        out->id = out->id * 10 + (uint64_t)(*c - '0');
    }
    size_t http_len = (size_t)(end - slash - 1);
    if (out->id < 1 || out->id > NODE_ID_MAX || http_len >= sizeof out->http) return false;
    memcpy(out->http, slash + 1, http_len);
    return config_address(slice_make(equals + 1, (size_t)(slash - equals - 1)), out->raft_host, sizeof out->raft_host,
                          &out->raft_port) &&
           config_address(slice_make(slash + 1, http_len), host, sizeof host, &port);
}

bool restore_peers_read(const char *text, struct config_peer out[CONFIG_PEERS_MAX], uint32_t *count, struct buf *error)
{
    *count = 0;
    while (*text != '\0') {
        struct config_peer p;
        size_t len = strcspn(text, ",");
        if (!peer_read(text, len, &p)) {
            buf_printf(error, "\"%.*s\" is not a peer; id=raft_host:port/http_host:port is", (int)len, text);
            return false;
        }
        uint32_t at = *count;
        while (at > 0 && out[at - 1].id >= p.id) at--;
        bool twice = at < *count && out[at].id == p.id;
        if (twice || *count == CONFIG_PEERS_MAX) {
            buf_printf(error, twice ? "the id %" PRIu64 " is there twice" : "too many peers with the one of id %" PRIu64, p.id);
            return false;
        }
        memmove(&out[at + 1], &out[at], (*count - at) * sizeof out[0]);
        out[at] = p;
        (*count)++;
        text += len + (text[len] == ',');
    }
    return true;
}
