#include "cli/bench_proc.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/must.h"
#include "cli/bench_load.h"

/* The whole of a small file, terminated. Returns its length, -1 on failure. */
static ssize_t file_read(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t len = 0;
    for (;;) {
        ssize_t n = read(fd, out + len, cap - 1 - len);
        if (n <= 0) break;
        len += (size_t)n;
    }
    close(fd);
    out[len] = 0;
    return (ssize_t)len;
}

static uint64_t status_kb(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at == NULL ? 0 : strtoull(at + strlen(name), NULL, 10) * 1024;
}

static void process_read(pid_t pid, struct proc_sample *out)
{
    char path[64];
    char text[8192];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (file_read(path, text, sizeof text) <= 0) return;
    /* The name in parentheses may hold anything: fields are counted behind the last one. */
    const char *at = strrchr(text, ')');
    if (at == NULL) return;
    at++;
    for (int field = 3; field < 14; field++) {
        at = strchr(at + 1, ' ');
        if (at == NULL) return;
    }
    char *next = NULL;
    double tick = (double)sysconf(_SC_CLK_TCK);
    out->user_s = (double)strtoull(at, &next, 10) / tick;
    out->system_s = (double)strtoull(next, NULL, 10) / tick;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    if (file_read(path, text, sizeof text) <= 0) return;
    out->rss_bytes = status_kb(text, "VmRSS:");
    out->rss_bytes_peak = status_kb(text, "VmHWM:");
    out->rss_bytes_anonymous = status_kb(text, "RssAnon:");
    out->alive = true;
}

static double machine_read(void)
{
    char text[4096];
    if (file_read("/proc/stat", text, sizeof text) <= 0) return 0;
    unsigned long long user, nice, sys, idle, wait, irq, soft;
    if (sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &sys, &idle, &wait, &irq, &soft) != 7) {
        return 0;
    }
    return (double)(user + nice + sys + irq + soft) / (double)sysconf(_SC_CLK_TCK);
}

void proc_sample(pid_t pid, struct proc_sample *out)
{
    *out = (struct proc_sample){.at_ns = load_now_ns()};
    if (pid > 0) process_read(pid, out);
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    out->own_s =
        (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) + (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec) / 1e6;
    out->machine_s = machine_read();
}

/* ---- who listens ---- */

static uint64_t listener_inode(const char *table, uint16_t port)
{
    FILE *f = fopen(table, "re");
    if (f == NULL) return 0;
    char line[512];
    uint64_t found = 0;
    while (found == 0 && fgets(line, sizeof line, f) != NULL) {
        char address[128];
        unsigned local, state;
        unsigned long long inode;
        int n = sscanf(line, " %*d: %127[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %llu", address, &local,
                       &state, &inode);
        if (n == 4 && local == port && state == 0x0a) found = inode;
    }
    fclose(f);
    return found;
}

static bool process_holds(const char *pid, const char *socket_name)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *d = opendir(path);
    if (d == NULL) return false;
    bool holds = false;
    for (struct dirent *e; !holds && (e = readdir(d)) != NULL;) {
        char target[64];
        ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        holds = strcmp(target, socket_name) == 0;
    }
    closedir(d);
    return holds;
}

pid_t proc_listener(uint16_t port)
{
    uint64_t inode = listener_inode("/proc/net/tcp", port);
    if (inode == 0) inode = listener_inode("/proc/net/tcp6", port);
    if (inode == 0) return 0;
    char name[64];
    snprintf(name, sizeof name, "socket:[%llu]", (unsigned long long)inode);
    DIR *d = opendir("/proc");
    if (d == NULL) return 0;
    pid_t found = 0;
    for (struct dirent *e; found == 0 && (e = readdir(d)) != NULL;) {
        if (isdigit((unsigned char)e->d_name[0]) && process_holds(e->d_name, name)) found = atoi(e->d_name);
    }
    closedir(d);
    return found;
}

uint16_t proc_port_free(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof any;
    bool found =
        fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0 && getsockname(fd, (struct sockaddr *)&any, &len) == 0;
    if (fd >= 0) close(fd);
    return found ? ntohs(any.sin_port) : 0;
}

/* ---- a broker under test ---- */

static void sleep_ns(long ns)
{
    struct timespec t = {.tv_sec = 0, .tv_nsec = ns};
    nanosleep(&t, NULL);
}

/* One GET /health with a short limit. */
static bool broker_healthy(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 1, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    static const char ask[] = "GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
    char answer[64];
    bool healthy = connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
                   send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) == (ssize_t)(sizeof ask - 1) &&
                   recv(fd, answer, sizeof answer, 0) >= 12 && memcmp(answer + 8, " 200", 4) == 0;
    close(fd);
    return healthy;
}

static _Noreturn void broker_exec(const struct proc_broker *b)
{
    char port[16];
    snprintf(port, sizeof port, "%u", b->port);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlives the measurement */
    int log = open(b->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log >= 0 && null >= 0) {
        dup2(null, 0);
        dup2(log, 1);
        dup2(log, 2);
    }
    execl(b->binary, b->binary, "serve", "--data", b->data, "--port", port, (char *)NULL);
    _exit(127);
}

double proc_broker_start(struct proc_broker *b, double limit_s)
{
    if (broker_healthy(b->port)) {
        fprintf(stderr, "queen bench: port %u is taken by another broker; choose one with --port\n", b->port);
        return -1;
    }
    snprintf(b->log_path, sizeof b->log_path, "%s.log", b->data);
    int64_t from = load_now_ns();
    b->pid = fork();
    if (b->pid < 0) {
        fprintf(stderr, "queen bench: fork: %s\n", strerror(errno));
        return -1;
    }
    if (b->pid == 0) broker_exec(b);
    for (;;) {
        if (broker_healthy(b->port)) return (double)(load_now_ns() - from) / 1e6;
        int status;
        if (waitpid(b->pid, &status, WNOHANG) == b->pid) {
            fprintf(stderr, "queen bench: %s serve ended with code %d before it was ready; see %s\n", b->binary,
                    WIFEXITED(status) ? WEXITSTATUS(status) : -1, b->log_path);
            b->pid = 0;
            return -1;
        }
        if ((double)(load_now_ns() - from) / 1e9 > limit_s) {
            fprintf(stderr, "queen bench: %s serve was not ready after %.0f s; see %s\n", b->binary, limit_s, b->log_path);
            proc_broker_kill(b);
            return -1;
        }
        /* It answers while it loads: asking it all the time would be a load of its own. */
        int64_t pause_ns = (load_now_ns() - from) / 64;
        sleep_ns(pause_ns < 200000 ? 200000 : pause_ns > 20000000 ? 20000000 : (long)pause_ns);
    }
}

int proc_broker_stop(struct proc_broker *b, double limit_s)
{
    if (b->pid <= 0) return -1;
    int64_t from = load_now_ns();
    kill(b->pid, SIGTERM);
    while ((double)(load_now_ns() - from) / 1e9 < limit_s) {
        int status;
        if (waitpid(b->pid, &status, WNOHANG) == b->pid) {
            b->pid = 0;
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        }
        sleep_ns(1000000);
    }
    proc_broker_kill(b);
    return -1;
}

void proc_broker_kill(struct proc_broker *b)
{
    if (b->pid <= 0) return;
    kill(b->pid, SIGKILL);
    waitpid(b->pid, NULL, 0);
    b->pid = 0;
}
