/* inject.c - faults by rule.
 *
 * QFAULT_CONTROL holds one rule a line; `#` begins a comment line. A rule is words of the form key=value:
 *
 *   op=OP          open read write sync fsync fdatasync dirsync rename unlink truncate allocate mkdir link close
 *                  (`sync` matches fsync and fdatasync of a file; `dirsync` is the sync of a directory)
 *   path=GLOB      against the path below QFAULT_DIR (`*` also matches `/`); "" is the directory itself; default *
 *   nth=N          the N-th matching call since the rule was armed; default 1
 *   times=N        how often it fires from there on; 0 = for ever; default 1
 *   errno=NAME     the call fails: EIO ENOSPC EMFILE ENFILE EDQUOT EROFS EACCES EINTR, or a number
 *   bytes=N        a write or read does only N bytes (then fails if errno is given, else answers N)
 *   stall_ms=N     wait before the call
 *   kill=before | kill=after   SIGKILL around the call
 *   lie=1          a sync answers "ok" and makes nothing durable, as a disk that lies about its cache
 *
 * Replace the file with rename(2): it is read again when its inode or time changes, and all counts start anew.
 * Each fault that fires adds a line "op path" to QFAULT_CONTROL.fired.
 */
#define _GNU_SOURCE
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RULES_MAX = 32, CONTROL_BYTES_MAX = 16384 };

struct rule {
    uint32_t ops; /* bit an op */
    char path[256];
    uint64_t nth;
    uint64_t times;
    int error;
    size_t bytes_max;
    long stall_ms;
    bool kill_before;
    bool kill_after;
    bool lie;
    uint64_t seen;
    uint64_t fired;
};

static const char *const op_names[FAULT_OP_COUNT] = {
    [FAULT_OPEN] = "open",           [FAULT_READ] = "read",         [FAULT_WRITE] = "write",   [FAULT_FSYNC] = "fsync",
    [FAULT_FDATASYNC] = "fdatasync", [FAULT_DIRSYNC] = "dirsync",   [FAULT_RENAME] = "rename", [FAULT_UNLINK] = "unlink",
    [FAULT_TRUNCATE] = "truncate",   [FAULT_ALLOCATE] = "allocate", [FAULT_MKDIR] = "mkdir",   [FAULT_LINK] = "link",
    [FAULT_CLOSE] = "close",
};

static const struct {
    const char *name;
    int value;
} error_names[] = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EMFILE", EMFILE}, {"ENFILE", ENFILE},
    {"EDQUOT", EDQUOT}, {"EROFS", EROFS},   {"EACCES", EACCES}, {"EINTR", EINTR},
};

static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES_MAX];
static size_t rule_count;
static struct stat control_seen;

static uint32_t parse_op(const char *name)
{
    if (strcmp(name, "sync") == 0) return 1u << FAULT_FSYNC | 1u << FAULT_FDATASYNC;
    for (unsigned i = 0; i < FAULT_OP_COUNT; i++)
        if (strcmp(name, op_names[i]) == 0) return 1u << i;
    fault_die("unknown op in a fault rule", name);
}

static int parse_errno(const char *name)
{
    for (size_t i = 0; i < sizeof error_names / sizeof error_names[0]; i++)
        if (strcmp(name, error_names[i].name) == 0) return error_names[i].value;
    int value = atoi(name);
    if (value <= 0) fault_die("unknown errno in a fault rule", name);
    return value;
}

static void parse_word(struct rule *rule, char *word)
{
    char *value = strchr(word, '=');
    if (!value) fault_die("fault rule word without =", word);
    *value++ = 0;
    if (strcmp(word, "op") == 0)
        rule->ops = parse_op(value);
    else if (strcmp(word, "path") == 0)
        snprintf(rule->path, sizeof rule->path, "%s", value);
    else if (strcmp(word, "nth") == 0)
        rule->nth = strtoull(value, NULL, 10);
    else if (strcmp(word, "times") == 0)
        rule->times = strtoull(value, NULL, 10);
    else if (strcmp(word, "errno") == 0)
        rule->error = parse_errno(value);
    else if (strcmp(word, "bytes") == 0)
        rule->bytes_max = strtoull(value, NULL, 10);
    else if (strcmp(word, "stall_ms") == 0)
        rule->stall_ms = atol(value);
    else if (strcmp(word, "lie") == 0)
        rule->lie = atoi(value) != 0;
    else if (strcmp(word, "kill") == 0)
        *(strcmp(value, "before") == 0 ? &rule->kill_before : &rule->kill_after) = true;
    else
        fault_die("unknown word in a fault rule", word);
}

static void parse_line(char *line)
{
    if (*line == 0 || *line == '#') return;
    if (rule_count == RULES_MAX) fault_die("too many fault rules", line);
    struct rule *rule = &rules[rule_count];
    *rule = (struct rule){.path = "*", .nth = 1, .times = 1, .bytes_max = SIZE_MAX};
    char *rest = line;
    for (char *word = strsep(&rest, " "); word; word = strsep(&rest, " "))
        if (*word) parse_word(rule, word);
    if (rule->ops == 0) fault_die("fault rule without op", rule->path);
    rule_count++;
}

static void control_read(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        rule_count = 0;
        control_seen = (struct stat){0};
        return;
    }
    if (st.st_ino == control_seen.st_ino && st.st_mtim.tv_sec == control_seen.st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == control_seen.st_mtim.tv_nsec)
        return;
    control_seen = st;
    rule_count = 0;
    static char text[CONTROL_BYTES_MAX];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    long len = fd >= 0 ? syscall(SYS_read, fd, text, sizeof text - 1) : -1;
    if (len < 0) fault_die("cannot read", path);
    syscall(SYS_close, fd);
    text[len] = 0;
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) parse_line(line);
}

static void fired_note(const char *control, enum fault_op op, const char *path)
{
    char name[FAULT_PATH_MAX + 16];
    char line[FAULT_PATH_MAX + 32];
    snprintf(name, sizeof name, "%s.fired", control);
    int len = snprintf(line, sizeof line, "%s %s\n", op_names[op], path);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || syscall(SYS_write, fd, line, (size_t)len) != len) fault_die("cannot note a fault in", name);
    syscall(SYS_close, fd);
    stat_add(STAT_FAULTS, 1);
}

static void stall(long ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) continue;
}

struct fault_verdict fault_check(enum fault_op op, const char *path)
{
    struct fault_verdict verdict = {.bytes_max = SIZE_MAX};
    const char *control = getenv("QFAULT_CONTROL");
    if (!control || !*control) return verdict;
    int error_before = errno;
    long stall_ms = 0;
    bool kill_before = false;
    path = fault_relative(path);
    pthread_mutex_lock(&rules_lock);
    control_read(control);
    for (size_t i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (!(rule->ops & 1u << op) || fnmatch(rule->path, path, 0) != 0) continue;
        if (++rule->seen < rule->nth || (rule->times && rule->fired >= rule->times)) continue;
        rule->fired++;
        fired_note(control, op, path);
        stall_ms += rule->stall_ms;
        kill_before |= rule->kill_before;
        verdict.kill_after |= rule->kill_after;
        verdict.lie |= rule->lie;
        if (rule->error) verdict.error = rule->error;
        if (rule->bytes_max < verdict.bytes_max) verdict.bytes_max = rule->bytes_max;
    }
    pthread_mutex_unlock(&rules_lock);
    if (stall_ms > 0) stall(stall_ms);
    if (kill_before) fault_kill_self();
    errno = error_before;
    return verdict;
}
