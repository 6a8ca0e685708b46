/* What a process costs, read from /proc, and starting a broker of our own to measure it.
 *
 * Not thread-safe; a sample costs a few system calls, a search for a listener walks /proc once. */
#ifndef QUEEN_CLI_BENCH_PROC_H
#define QUEEN_CLI_BENCH_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_sample {
    int64_t at_ns;
    bool alive;    /* false: the process could not be read, its figures are 0 */
    double user_s; /* of the process so far */
    double system_s;
    uint64_t rss_bytes;
    uint64_t rss_bytes_peak;
    uint64_t rss_bytes_anonymous;
    double own_s;     /* user and system time of this client */
    double machine_s; /* busy time of all cores, interrupts included */
};

/* pid 0: only the client and the machine. */
void proc_sample(pid_t pid, struct proc_sample *out);

/* The process that listens on a TCP port of this machine; 0 when none is found (or it is another user's). */
pid_t proc_listener(uint16_t port);

/* A TCP port of 127.0.0.1 that is free at this moment; 0 when there is none. */
uint16_t proc_port_free(void);

/* ---- a broker under test ---- */

struct proc_broker {
    const char *binary;
    const char *data;
    uint16_t port;
    pid_t pid;
    char log_path[4096]; /* its output: DATA.log */
};

/* Starts `BINARY serve --data DATA --port PORT` and polls GET /health until it answers 200.
 * Returns the milliseconds from fork to that answer, or -1 (reason on stderr, process ended). */
double proc_broker_start(struct proc_broker *b, double limit_s);

/* SIGTERM, then waits; after limit_s SIGKILL. Returns the exit code, or -1 when it had to be killed. */
int proc_broker_stop(struct proc_broker *b, double limit_s);

void proc_broker_kill(struct proc_broker *b);

#endif
