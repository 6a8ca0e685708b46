/* A whole broker in a child process, three edge threads, real sockets: what the edges share with each other and with the group,
 * connections coming and going, and a graceful stop in the middle of work. (Behaviour on the wire is tests/api's.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "http/serve.h"

enum { WORKERS = 6, ROUNDS = 60, POLLS = 40, DEADLINE_MS = 60000 };

struct server {
    pid_t pid;
    uint16_t port;
    char dir[64];
};

static int dial(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* One answer of a connection: its status, and what is behind it stays in the buffer. 0: the connection ended. */
struct reader {
    int fd;
    size_t len;
    char bytes[65536];
};

static size_t body_length(const char *head, size_t len)
{
    const char *field = memmem(head, len, "Content-Length: ", 16);
    return field == NULL ? 0 : (size_t)strtoul(field + 16, NULL, 10);
}

static int read_answer(struct reader *r, char *body, size_t body_max)
{
    for (;;) {
        const char *end = memmem(r->bytes, r->len, "\r\n\r\n", 4);
        size_t head = end == NULL ? 0 : (size_t)(end - r->bytes) + 4, want = end == NULL ? 0 : body_length(r->bytes, head);
        if (end != NULL && r->len >= head + want) {
            int status = atoi(r->bytes + 9);
            if (body != NULL) snprintf(body, body_max, "%.*s", (int)want, r->bytes + head);
            r->len -= head + want;
            memmove(r->bytes, r->bytes + head + want, r->len);
            return status;
        }
        struct pollfd p = {.fd = r->fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
        ssize_t n = recv(r->fd, r->bytes + r->len, sizeof r->bytes - r->len, 0);
        if (n <= 0) return 0;
        r->len += (size_t)n;
    }
}

static void send_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* the answer, or its absence, tells */
        text += n;
        len -= (size_t)n;
    }
}

static void send_request(int fd, const char *line, const char *body)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", line, strlen(body), body);
    assert_true(n > 0 && (size_t)n < sizeof text);
    send_all(fd, text, (size_t)n);
}

static bool is_ready(uint16_t port)
{
    int fd = dial(port);
    if (fd < 0) return false;
    struct reader *r = calloc(1, sizeof *r);
    r->fd = fd;
    send_request(fd, "GET /health", "");
    bool ready = read_answer(r, NULL, 0) == 200;
    free(r);
    close(fd);
    return ready;
}

static int server_start(void **state)
{
    struct server *s = calloc(1, sizeof *s);
    assert_non_null(s);
    snprintf(s->dir, sizeof s->dir, "/tmp/queen-edge-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->port = free_port();
    fflush(NULL);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        char port[8];
        snprintf(port, sizeof port, "%u", s->port);
        setenv("QUEEN_EDGE_THREADS", "3", 1);
        setenv("LOG_LEVEL", "warn", 1);
        char *argv[] = {"serve", "--data", s->dir, "--port", port, NULL};
        exit(serve_main(5, argv));
    }
    int64_t until = clock_mono_us() + INT64_C(1000) * DEADLINE_MS;
    while (!is_ready(s->port)) {
        int status;
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) fail_msg("the broker ended: %d", status);
        if (clock_mono_us() > until) fail_msg("the broker is not ready in time");
        usleep(5000);
    }
    *state = s;
    return 0;
}

/* Ends it and demands exit code 0 (a sanitizer that found something ends it with another one). */
static int server_stop(void **state)
{
    struct server *s = *state;
    int status = 0;
    char command[128];
    if (s->pid > 0) {
        kill(s->pid, SIGTERM);
        assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    }
    snprintf(command, sizeof command, "rm -rf %s", s->dir);
    assert_int_equal(system(command), 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    free(s);
    return 0;
}

/* ---- work on all edges at once ------------------------------------------------------------------------------------- */

struct worker {
    struct server *server;
    int number;
    bool good;
    pthread_t thread;
};

/* Pushes in pairs (pipelined), pops what it pushed, acks it; a new connection now and then. */
static bool worker_round(struct worker *w, struct reader *r, int round)
{
    char line[128], body[512], answer[8192];
    for (int i = 0; i < 2; i++) {
        snprintf(
            body, sizeof body,
            "{\"items\":[{\"queue\":\"work\",\"partition\":\"w%d\",\"transactionId\":\"%d-%d-%d\",\"payload\":{\"n\":%d}}]}",
            w->number, w->number, round, i, round);
        send_request(r->fd, "POST /api/v1/push", body);
    }
    if (read_answer(r, answer, sizeof answer) != 201 || read_answer(r, answer, sizeof answer) != 201) return false;
    snprintf(line, sizeof line, "GET /api/v1/pop/queue/work/partition/w%d?batch=2&wait=true&timeout=5000", w->number);
    send_request(r->fd, line, "");
    if (read_answer(r, answer, sizeof answer) != 200) return false;
    const char *partition = strstr(answer, "\"partitionId\":\""), *lease = strstr(answer, "\"leaseId\":\"");
    snprintf(line, sizeof line, "\"transactionId\":\"%d-%d-1\"", w->number, round);
    if (partition == NULL || lease == NULL || strstr(answer, line) == NULL) return false;
    snprintf(body, sizeof body, "{\"transactionId\":\"%d-%d-1\",\"partitionId\":\"%.*s\",\"leaseId\":\"%.36s\"}", w->number,
             round, (int)strcspn(partition + 15, "\""), partition + 15, lease + 11);
    send_request(r->fd, "POST /api/v1/ack", body);
    return read_answer(r, answer, sizeof answer) == 200 && strstr(answer, "\"success\":true") != NULL &&
           strstr(answer, "\"leaseReleased\":true") != NULL;
}

static void *worker_run(void *ctx)
{
    struct worker *w = ctx;
    struct reader *r = calloc(1, sizeof *r);
    r->fd = -1;
    w->good = true;
    for (int round = 0; round < ROUNDS && w->good; round++) {
        if (r->fd < 0) r->fd = dial(w->server->port);
        w->good = r->fd >= 0 && worker_round(w, r, round);
        if (round % 7 != 0) continue;
        close(r->fd);
        r->fd = -1;
        r->len = 0;
    }
    if (r->fd >= 0) close(r->fd);
    free(r);
    return NULL;
}

/* Long polls that nobody answers, whose clients leave at all moments: before the head is read, while it waits, by a reset. */
static void *leaver_run(void *ctx)
{
    struct worker *w = ctx;
    for (int i = 0; i < POLLS; i++) {
        int fd = dial(w->server->port);
        if (fd < 0) continue;
        send_request(fd, "GET /api/v1/pop/queue/nothing?wait=true&timeout=60000", "");
        usleep((useconds_t)(i % 5) * 10000);
        struct linger now = {.l_onoff = 1};
        if (i % 3 == 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(fd);
    }
    w->good = true;
    return NULL;
}

static void *scraper_run(void *ctx)
{
    struct worker *w = ctx;
    struct reader *r = calloc(1, sizeof *r);
    r->fd = dial(w->server->port);
    w->good = r->fd >= 0;
    for (int i = 0; i < ROUNDS && w->good; i++) {
        send_request(r->fd, i % 2 == 0 ? "GET /metrics/prometheus" : "GET /metrics", "");
        w->good = read_answer(r, NULL, 0) == 200;
    }
    close(r->fd);
    free(r);
    return NULL;
}

static void test_all_edges_work_at_once(void **state)
{
    struct worker w[WORKERS + 2];
    for (int i = 0; i < WORKERS + 2; i++) {
        w[i] = (struct worker){.server = *state, .number = i};
        void *(*run)(void *) = i < WORKERS ? worker_run : i == WORKERS ? leaver_run : scraper_run;
        assert_int_equal(pthread_create(&w[i].thread, NULL, run, &w[i]), 0);
    }
    bool good = true;
    for (int i = 0; i < WORKERS + 2; i++) {
        pthread_join(w[i].thread, NULL);
        if (!w[i].good) print_message("worker %d failed\n", i);
        good &= w[i].good;
    }
    assert_true(good);
}

/* ---- stop --------------------------------------------------------------------------------------------------------- */

static void test_stop_answers_parked_polls_and_closes(void **state)
{
    struct server *s = *state;
    int fds[POLLS];
    for (int i = 0; i < POLLS; i++) {
        fds[i] = dial(s->port);
        assert_true(fds[i] >= 0);
        send_request(fds[i], "GET /api/v1/pop/queue/nothing?wait=true&timeout=60000", "");
    }
    int idle = dial(s->port);
    usleep(200000);
    int64_t begin = clock_mono_us();
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    struct reader *r = calloc(1, sizeof *r);
    for (int i = 0; i < POLLS; i++) {
        r->fd = fds[i];
        r->len = 0;
        assert_int_equal(read_answer(r, NULL, 0), 204);
        assert_int_equal(read_answer(r, NULL, 0), 0);
        close(fds[i]);
    }
    r->fd = idle;
    r->len = 0;
    assert_int_equal(read_answer(r, NULL, 0), 0);
    close(idle);
    free(r);
    int status = 0;
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    s->pid = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(clock_mono_us() - begin < INT64_C(20000000));
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_edges_work_at_once, server_start, server_stop),
        cmocka_unit_test_setup_teardown(test_stop_answers_parked_polls_and_closes, server_start, server_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
