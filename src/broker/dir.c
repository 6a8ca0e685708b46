#include "broker/dir.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/files.h"

/* A name is durable when its directory is synced; one above that others look after may not let us. */
static int dir_make_one(const char *path)
{
    char parent[FILES_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL ? 0 : (size_t)(slash - path);
    snprintf(parent, sizeof parent, "%.*s", (int)len, path);
    int code = files_make_dir(path);
    if (code != 0) return code;
    code = files_sync(slash == NULL ? "." : len == 0 ? "/" : parent);
    return code == EACCES || code == EROFS || code == EINVAL ? 0 : code;
}

int dir_exit_code(int code)
{
    return code == EIO || code == ENOSPC || code == EDQUOT ? 3 : 2;
}

bool dir_make(const char *dir, int *exit_code, struct buf *error)
{
    char text[FILES_PATH_BYTES];
    size_t len = strlen(dir);
    int code = len == 0 || len >= sizeof text ? ENAMETOOLONG : 0;
    if (code == 0) {
        memcpy(text, dir, len + 1);
        while (len > 1 && text[len - 1] == '/') text[--len] = '\0';
    }
    for (char *at = text + 1; code == 0 && *at != '\0'; at++) {
        struct stat st;
        if (*at != '/') continue;
        *at = '\0';
        if (stat(text, &st) != 0) code = dir_make_one(text);
        *at = '/';
    }
    if (code == 0) code = dir_make_one(text);
    if (code == 0) return true;
    buf_printf(error, "%s: cannot be created: %s", dir, strerror(code));
    *exit_code = dir_exit_code(code);
    return false;
}
