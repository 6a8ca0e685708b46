/* undo.c - how to take back writes that are not durable yet.
 *
 * QFAULT_STATE/undo/<inode, hex> holds, for one file, what every write since the last sync replaced, oldest first:
 *
 *   0        8         16
 *   +--------+---------+--------+--------+---
 *   | magic  | start   | record | record |          start: position of the first live record
 *   +--------+---------+--------+--------+---
 *
 *   record (40 bytes + saved):
 *   | kind u32 | flags u32 | offset u64 | len u64 | size before u64 | saved u64 | the old bytes |
 *
 * The record is written before the write itself, both under node->lock. A kill between them leaves a record that changes nothing;
 * a kill inside the record leaves a short one, which the reader drops: its write has not begun.
 * Old bytes that are all zero are not stored (flag UNDO_ZERO). A sync that succeeds moves `start`; when nothing is live the file is
 * cut to its header.
 *
 * After a sync that failed (by injection) the kernel would call those pages clean, and the next sync would say "ok" without having
 * written them. So records a failed sync covered stay and are marked UNDO_LOST for ever; what later syncs make durable above them is
 * marked UNDO_KEEP, so that taking the lost ones back does not touch it.
 */
#define _GNU_SOURCE
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HEADER_BYTES = 16, UNDO_KEEP = 1, UNDO_LOST = 2, UNDO_ZERO = 4 };
static const uint64_t UNDO_MAGIC = 0x31304f444e554651; /* "QFUNDO01" */

struct record {
    uint32_t kind;
    uint32_t flags;
    uint64_t offset;
    uint64_t len;
    uint64_t size;
    uint64_t saved;
};

static int raw_open(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0644);
}

static void raw_pwrite(int fd, const void *at, size_t len, uint64_t offset)
{
    const char *bytes = at;
    while (len > 0) {
        long n = syscall(SYS_pwrite64, fd, bytes, len, offset);
        if (n <= 0) fault_die("cannot write undo records", strerror(errno));
        bytes += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
}

static size_t raw_pread(int fd, void *at, size_t len, uint64_t offset)
{
    size_t have = 0;
    while (have < len) {
        long n = syscall(SYS_pread64, fd, (char *)at + have, len - have, offset + have);
        if (n < 0) fault_die("cannot read old contents", strerror(errno));
        if (n == 0) break;
        have += (size_t)n;
    }
    return have;
}

static void undo_path(char *out, size_t out_len, uint64_t inode)
{
    snprintf(out, out_len, "%s/undo/%llx", fault_settings()->state, (unsigned long long)inode);
}

static void header_write(struct node *node)
{
    uint64_t header[2] = {UNDO_MAGIC, node->undo_at};
    raw_pwrite(node->undo_fd, header, sizeof header, 0);
}

/* Records of an earlier process on the same state are kept: its unsynced writes are still not durable. */
static void undo_open(struct node *node)
{
    if (node->undo_fd >= 0) return;
    char path[FAULT_PATH_MAX + 64];
    undo_path(path, sizeof path, node->inode);
    int fd = raw_open(path, O_RDWR | O_CREAT);
    if (fd < 0) fault_die("cannot open undo file", path);
    node->undo_fd = fd;
    uint64_t header[2] = {0, 0};
    struct stat st;
    if (fstat(fd, &st) != 0) fault_die("cannot stat undo file", path);
    uint64_t end = (uint64_t)st.st_size;
    if (raw_pread(fd, header, sizeof header, 0) == sizeof header && header[0] == UNDO_MAGIC && header[1] < end) {
        /* a record that a kill cut short is dropped, as the reader does */
        uint64_t at = header[1];
        struct record record;
        while (at + sizeof record <= end && raw_pread(fd, &record, sizeof record, at) == sizeof record &&
               at + sizeof record + record.saved <= end)
            at += sizeof record + record.saved;
        node->undo_at = header[1];
        node->undo_end = at;
        node->undo_lost = 0;
        for (uint64_t i = node->undo_at; i < at; i += sizeof record + record.saved) {
            raw_pread(fd, &record, sizeof record, i);
            if (record.flags & UNDO_LOST) node->undo_lost = i + sizeof record + record.saved;
        }
        return;
    }
    undo_reset(node);
}

void undo_reset(struct node *node)
{
    if (node->undo_fd < 0) {
        char path[FAULT_PATH_MAX + 64];
        undo_path(path, sizeof path, node->inode);
        node->undo_fd = raw_open(path, O_RDWR | O_CREAT);
        if (node->undo_fd < 0) fault_die("cannot open undo file", path);
    }
    if (syscall(SYS_ftruncate, node->undo_fd, (long)HEADER_BYTES) != 0) fault_die("cannot cut undo file", strerror(errno));
    node->undo_at = HEADER_BYTES;
    node->undo_end = HEADER_BYTES;
    node->undo_lost = 0;
    header_write(node);
}

static void undo_prepare(struct node *node, int fd)
{
    undo_open(node);
    if (node->read_fd < 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        node->read_fd = raw_open(path, O_RDONLY);
        if (node->read_fd < 0) fault_die("cannot open for reading", node->path);
    }
}

static bool bytes_all_zero(const char *at, size_t len)
{
    return len == 0 || (at[0] == 0 && memcmp(at, at + 1, len - 1) == 0);
}

uint64_t undo_save(struct node *node, int fd, enum undo_kind kind, uint64_t offset, uint64_t len, uint64_t size)
{
    undo_prepare(node, fd);
    uint64_t saved = offset < size ? (offset + len < size ? len : size - offset) : 0;
    char *buffer = malloc(sizeof(struct record) + saved);
    if (!buffer) fault_die("no memory for old contents of", node->path);
    char *old = buffer + sizeof(struct record);
    size_t have = raw_pread(node->read_fd, old, saved, offset);
    memset(old + have, 0, saved - have);
    struct record record = {.kind = (uint32_t)kind, .offset = offset, .len = len, .size = size, .saved = saved};
    if (saved > 0 && bytes_all_zero(old, saved)) {
        record.flags |= UNDO_ZERO;
        record.saved = 0;
    }
    memcpy(buffer, &record, sizeof record);
    uint64_t at = node->undo_end;
    raw_pwrite(node->undo_fd, buffer, sizeof record + record.saved, at);
    node->undo_end = at + sizeof record + record.saved;
    free(buffer);
    return at;
}

static void record_flag(struct node *node, uint64_t at, uint32_t flag)
{
    struct record record;
    if (raw_pread(node->undo_fd, &record, sizeof record, at) != sizeof record) fault_die("undo record is gone", node->path);
    record.flags |= flag;
    raw_pwrite(node->undo_fd, &record, sizeof record, at);
}

static uint64_t record_next(struct node *node, uint64_t at, uint32_t *flags)
{
    struct record record;
    if (raw_pread(node->undo_fd, &record, sizeof record, at) != sizeof record) fault_die("undo record is gone", node->path);
    *flags = record.flags;
    return at + sizeof record + record.saved;
}

void undo_keep(struct node *node, uint64_t record_at)
{
    if (record_at == node->undo_at && record_at < node->undo_end) {
        uint32_t flags;
        if (record_next(node, record_at, &flags) == node->undo_end) { /* nothing older is live: simply done */
            undo_reset(node);
            return;
        }
    }
    record_flag(node, record_at, UNDO_KEEP);
}

void undo_sync_done(struct node *node, uint64_t mark)
{
    if (node->undo_fd < 0) {
        /* an earlier process may have left records of this file */
        char path[FAULT_PATH_MAX + 64];
        undo_path(path, sizeof path, node->inode);
        if (syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0) return;
        undo_open(node);
        mark = node->undo_end;
    }
    if (mark <= node->undo_at) return;
    if (node->undo_lost > node->undo_at) {
        uint32_t flags = 0;
        for (uint64_t at = node->undo_at; at < mark;) {
            uint64_t next = record_next(node, at, &flags);
            if (!(flags & (UNDO_LOST | UNDO_KEEP))) record_flag(node, at, UNDO_KEEP);
            at = next;
        }
        return;
    }
    node->undo_at = mark;
    if (node->undo_at == node->undo_end)
        undo_reset(node);
    else
        header_write(node);
}

void undo_sync_failed(struct node *node, uint64_t mark)
{
    if (node->undo_fd < 0) return;
    uint32_t flags = 0;
    for (uint64_t at = node->undo_at; at < mark;) {
        uint64_t next = record_next(node, at, &flags);
        if (!(flags & (UNDO_LOST | UNDO_KEEP))) record_flag(node, at, UNDO_LOST);
        at = next;
    }
    node->undo_lost = mark;
}

void undo_release(struct node *node)
{
    if (node->undo_fd >= 0) syscall(SYS_close, node->undo_fd);
    if (node->read_fd >= 0) syscall(SYS_close, node->read_fd);
    node->undo_fd = -1;
    node->read_fd = -1;
}

void undo_remove(uint64_t inode)
{
    char path[FAULT_PATH_MAX + 64];
    undo_path(path, sizeof path, inode);
    syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
