#include "broker/memory_limit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

enum { PATH_BYTES = 4096, UNKNOWN_MACHINE_MIB = 2048 };

static uint64_t machine_bytes(void)
{
    struct sysinfo info;
    return sysinfo(&info) != 0 ? (uint64_t)UNKNOWN_MACHINE_MIB << 20 : (uint64_t)info.totalram * info.mem_unit;
}

/* The number in a file; UINT64_MAX for none, `max`, or no such file. */
static uint64_t file_number(const char *path)
{
    char text[64] = "";
    FILE *f = fopen(path, "re");
    if (f == NULL) return UINT64_MAX;
    bool read = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    return read && end != text && n > 0 ? n : UINT64_MAX;
}

/* The least limit of the group `path` and of all that it lies in. Inside a container the path may be one that is only known outside: then
 * what is mounted is the container's own. */
static uint64_t tree_limit(const char *mount, const char *path, const char *name)
{
    char at[PATH_BYTES], file[PATH_BYTES + 64];
    uint64_t least = UINT64_MAX;
    if ((size_t)snprintf(at, sizeof at, "%s%s", mount, path) >= sizeof at) return least;
    for (;;) {
        snprintf(file, sizeof file, "%s/%s", at, name);
        uint64_t n = file_number(file);
        if (n < least) least = n;
        char *slash = strrchr(at, '/');
        if (strlen(at) <= strlen(mount) || slash == NULL) return least;
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup is number:controllers:path; version 2 has number 0 and no controllers. */
static uint64_t line_limit(const char *root, char *line)
{
    char mount[PATH_BYTES];
    char *controllers = strchr(line, ':'), *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (path == NULL) return UINT64_MAX;
    *path++ = '\0';
    controllers++;
    path[strcspn(path, "\n")] = '\0';
    if (controllers[0] == '\0') {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        return tree_limit(mount, path, "memory.max");
    }
    bool memory = false;
    for (char *word = strtok(controllers, ","); word != NULL; word = strtok(NULL, ",")) memory |= strcmp(word, "memory") == 0;
    if (!memory) return UINT64_MAX;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
    return tree_limit(mount, path, "memory.limit_in_bytes");
}

uint64_t memory_limit(const char *root)
{
    char line[PATH_BYTES];
    uint64_t least = machine_bytes();
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        uint64_t n = line_limit(root, line);
        if (n < least) least = n;
    }
    if (f != NULL) fclose(f);
    return least;
}
