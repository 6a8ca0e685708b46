/* The small files of a node. Each is text with a checksum in its last line, replaced whole:
 *
 *   DATA/disk     queen disk 1      {cluster, node, disk, starts, inode, joined}; only of a node with peers
 *   DATA/peers    queen peers 1     <node> <disk> <starts>, a line each: what was last seen of the others
 *   DATA/groups   queen groups 1    groups N, and a line for each tenant of the map; no file: one group */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/hash.h"
#include "base/logger.h"
#include "broker/dir.h"
#include "broker/node_inner.h"

/* ---- directories -------------------------------------------------------------------------------------------------- */

bool node_dir_has(const char *dir, const char *name)
{
    char path[FILES_PATH_BYTES];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return files_size(path, &bytes) == 0;
}

bool node_dir_is_used(const char *dir)
{
    return node_dir_has(dir, "identity") || node_dir_has(dir, "meta-1");
}

bool node_dir_inode(const char *dir, uint64_t *inode)
{
    struct stat st;
    if (stat(dir, &st) != 0) return false;
    *inode = (uint64_t)st.st_ino;
    return true;
}

bool node_lock_try(const char *dir, int *fd, int *exit_code, struct buf *error)
{
    char path[FILES_PATH_BYTES];
    snprintf(path, sizeof path, "%s/lock", dir);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) {
        *exit_code = dir_exit_code(errno);
        buf_printf(error, "%s: %s", path, strerror(errno));
        return false;
    }
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return true;
    buf_printf(error, "%s: in use by another process (%s)", dir, strerror(errno));
    close(*fd);
    return false;
}

/* ---- text with a checksum ----------------------------------------------------------------------------------------- */

static bool text_store(const char *dir, const char *name, struct buf *text, struct buf *error)
{
    char path[FILES_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    buf_printf(text, "check %08" PRIx32 "\n", crc32c(0, text->at, text->len));
    int code = files_replace(path, buf_view(text));
    if (code != 0) buf_printf(error, "%s: cannot be written: %s", path, strerror(code));
    return code == 0;
}

/* The file's text up to its check line, behind its first line, which must be `first`; terminated. */
static bool text_load(const char *dir, const char *name, const char *first, struct buf *out, bool *found, int *exit_code,
                      struct buf *error)
{
    char path[FILES_PATH_BYTES], check[32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int code = files_read(path, 0, NODE_FILE_BYTES_MAX, out);
    *found = code != ENOENT;
    if (code == ENOENT) return true;
    *exit_code = 3;
    if (code != 0) {
        buf_printf(error, "%s: cannot be read: %s", path, strerror(code));
        return false;
    }
    enum { CHECK_LINE = 15 };
    *exit_code = 2;
    size_t head = strlen(first);
    bool good = out->len >= head + CHECK_LINE && memcmp(out->at, first, head) == 0;
    if (good) {
        out->len -= CHECK_LINE;
        snprintf(check, sizeof check, "check %08" PRIx32 "\n", crc32c(0, out->at, out->len));
        good = memcmp(out->at + out->len, check, CHECK_LINE) == 0;
    }
    if (!good) {
        buf_printf(error,
                   "%s: damaged (offset 0): restore it from a backup of this very directory, or remove the node from its "
                   "cluster and add it anew with an empty one",
                   path);
        return false;
    }
    memmove(out->at, out->at + head, out->len - head);
    out->len -= head;
    buf_byte(out, '\0');
    out->len--;
    return true;
}

/* The next line of a terminated text; NULL at the end. */
static const char *line_next(const char **at)
{
    const char *line = *at;
    if (*line == '\0') return NULL;
    const char *end = strchr(line, '\n');
    *at = end == NULL ? line + strlen(line) : end + 1;
    return line;
}

static bool malformed(const char *dir, const char *name, struct buf *error)
{
    buf_printf(error, "%s/%s: has a line that is not understood: it was written by another version of this program", dir, name);
    return false;
}

/* ---- disk --------------------------------------------------------------------------------------------------------- */

bool disk_file_load(const char *dir, struct disk_file *out, bool *found, int *exit_code, struct buf *error)
{
    struct buf text = {0};
    char cluster[UUID_TEXT + 1] = "", disk[UUID_TEXT + 1] = "";
    unsigned joined = 0;
    *out = (struct disk_file){0};
    bool good = text_load(dir, "disk", "queen disk 1\n", &text, found, exit_code, error);
    if (good && *found) {
        int n = sscanf(text.at, "cluster %36s\nnode %" SCNu64 "\ndisk %36s\nstarts %" SCNu64 "\ninode %" SCNu64 "\njoined %u",
                       cluster, &out->node, disk, &out->starts, &out->inode, &joined);
        out->joined = joined != 0;
        good = n == 6 && uuid_parse(slice_of(cluster), &out->cluster) && uuid_parse(slice_of(disk), &out->disk);
        if (!good) malformed(dir, "disk", error);
    }
    buf_free(&text);
    return good;
}

bool disk_file_store(const char *dir, const struct disk_file *f, struct buf *error)
{
    struct buf text = {0};
    char cluster[UUID_TEXT], disk[UUID_TEXT];
    uuid_text(f->cluster, cluster);
    uuid_text(f->disk, disk);
    buf_printf(&text,
               "queen disk 1\ncluster %.*s\nnode %" PRIu64 "\ndisk %.*s\nstarts %" PRIu64 "\ninode %" PRIu64 "\njoined %d\n",
               UUID_TEXT, cluster, f->node, UUID_TEXT, disk, f->starts, f->inode, f->joined ? 1 : 0);
    bool good = text_store(dir, "disk", &text, error);
    buf_free(&text);
    return good;
}

/* ---- peers -------------------------------------------------------------------------------------------------------- */

bool peers_file_load(const char *dir, struct peers_file *out, int *exit_code, struct buf *error)
{
    struct buf text = {0};
    bool found;
    *out = (struct peers_file){0};
    bool good = text_load(dir, "peers", "queen peers 1\n", &text, &found, exit_code, error);
    const char *at = good && found ? text.at : "", *line;
    while (good && (line = line_next(&at)) != NULL) {
        struct peer_seen p = {0};
        char disk[UUID_TEXT + 1] = "";
        good = out->count < NODE_PEERS_KEPT_MAX && sscanf(line, "%" SCNu64 " %36s %" SCNu64, &p.node, disk, &p.starts) == 3 &&
               uuid_parse(slice_of(disk), &p.disk);
        if (good)
            out->at[out->count++] = p;
        else
            malformed(dir, "peers", error);
    }
    buf_free(&text);
    return good;
}

bool peers_file_store(const char *dir, const struct peers_file *f, struct buf *error)
{
    struct buf text = {0};
    buf_text(&text, "queen peers 1\n");
    for (uint32_t i = 0; i < f->count; i++) {
        char disk[UUID_TEXT];
        uuid_text(f->at[i].disk, disk);
        buf_printf(&text, "%" PRIu64 " %.*s %" PRIu64 "\n", f->at[i].node, UUID_TEXT, disk, f->at[i].starts);
    }
    bool good = text_store(dir, "peers", &text, error);
    buf_free(&text);
    return good;
}

/* ---- groups ------------------------------------------------------------------------------------------------------- */

static const struct config_tenant *tenant_find(const struct config_tenant *all, uint32_t count, struct uuid tenant)
{
    for (uint32_t i = 0; i < count; i++) {
        if (uuid_equal(all[i].tenant, tenant)) return &all[i];
    }
    return NULL;
}

static bool groups_store(const char *dir, const struct config *c, struct buf *error)
{
    struct buf text = {0};
    buf_printf(&text, "queen groups 1\ngroups %" PRIu32 "\n", c->groups);
    for (uint32_t i = 0; i < c->tenant_count; i++) {
        char tenant[UUID_TEXT];
        uuid_text(c->tenants[i].tenant, tenant);
        buf_printf(&text, "%.*s %" PRIu32 "\n", UUID_TEXT, tenant, c->tenants[i].group);
    }
    bool good = text_store(dir, "groups", &text, error);
    buf_free(&text);
    return good;
}

static bool tenant_refuse(const char *dir, struct uuid tenant, struct buf *error)
{
    char text[UUID_TEXT];
    uuid_text(tenant, text);
    buf_printf(
        error,
        "QUEEN_TENANT_GROUPS: %s was made with another map (tenant %.*s differs): what the tenant has would be looked for in "
        "the wrong group",
        dir, UUID_TEXT, text);
    return false;
}

/* The maps agree when every tenant that either names is named by both, with the same group. */
static bool groups_compare(const char *dir, const struct config *c, const char *text, struct buf *error)
{
    struct config_tenant *kept = calloc(CONFIG_TENANTS_MAX, sizeof *kept);
    uint32_t groups = 0, count = 0;
    must(kept != NULL);
    const char *at = text, *line = line_next(&at);
    bool good = line != NULL && sscanf(line, "groups %" SCNu32, &groups) == 1;
    while (good && (line = line_next(&at)) != NULL) {
        char tenant[UUID_TEXT + 1] = "";
        good = count < CONFIG_TENANTS_MAX && sscanf(line, "%36s %" SCNu32, tenant, &kept[count].group) == 2 &&
               uuid_parse(slice_of(tenant), &kept[count].tenant);
        count++;
    }
    if (!good) malformed(dir, "groups", error);
    if (good && groups != c->groups) {
        buf_printf(error,
                   "QUEEN_RAFT_GROUPS=%" PRIu32 ": %s was made with %" PRIu32 ", and their number is fixed: tenants would "
                   "be looked for in the wrong place",
                   c->groups, dir, groups);
        good = false;
    }
    for (uint32_t i = 0; good && i < c->tenant_count; i++) {
        const struct config_tenant *k = tenant_find(kept, count, c->tenants[i].tenant);
        if (k == NULL || k->group != c->tenants[i].group) good = tenant_refuse(dir, c->tenants[i].tenant, error);
    }
    for (uint32_t i = 0; good && i < count; i++) {
        if (tenant_find(c->tenants, c->tenant_count, kept[i].tenant) == NULL) good = tenant_refuse(dir, kept[i].tenant, error);
    }
    free(kept);
    return good;
}

bool groups_file_check(const char *dir, const struct config *c, int *exit_code, struct buf *error)
{
    struct buf text = {0};
    bool found = false, good = text_load(dir, "groups", "queen groups 1\n", &text, &found, exit_code, error);
    if (good && found) {
        *exit_code = 1;
        good = groups_compare(dir, c, text.at, error);
    } else if (good && c->groups > 1 && node_dir_is_used(dir)) {
        *exit_code = 1;
        buf_printf(error,
                   "QUEEN_RAFT_GROUPS=%" PRIu32 ": %s was made with 1, and their number is fixed: tenants would be looked "
                   "for in the wrong place",
                   c->groups, dir);
        good = false;
    } else if (good && c->groups > 1) {
        *exit_code = 3;
        good = groups_store(dir, c, error);
    }
    buf_free(&text);
    return good;
}

/* ---- what a group's replica wrote --------------------------------------------------------------------------------- */

bool cluster_of_replica(const char *dir, struct uuid *out)
{
    char path[FILES_PATH_BYTES], cluster[UUID_TEXT + 1] = "";
    struct buf text = {0};
    snprintf(path, sizeof path, "%s/identity", dir);
    bool good = files_read(path, 0, 1024, &text) == 0;
    buf_byte(&text, '\0');
    good = good && sscanf(text.at, "queen identity %*u\ncluster %36s", cluster) == 1 && uuid_parse(slice_of(cluster), out);
    buf_free(&text);
    return good;
}
