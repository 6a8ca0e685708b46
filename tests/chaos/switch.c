/* switch.c - the network between the nodes of a test cluster, as a program.
 *
 *     chaos_switch CONTROL FD...
 *
 * Each FD is the other end of a TUN interface in the network namespace of one member; the n-th has the address 10.0.0.(n+1). A
 * packet that one of them sends comes out of this program's FD, and goes into the FD of the member it is addressed to, unless the
 * link from the one to the other says otherwise. Links have a direction each, so every cut can be one-way.
 *
 * CONTROL is a file of MEMBERS_MAX x MEMBERS_MAX links, mapped shared: a test changes a number in it and the next packet obeys.
 *
 *   link [from][to]:  | cut u32 | delay_us u32 | jitter_us u32 | loss_ppm u32 | passed u64 | dropped u64 |
 *
 * Delayed packets wait in a heap; when it is full the packet is lost, as in a router. With jitter they overtake each other.
 * Ends when its standard input does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS_MAX = 16, PACKET_MAX = 65536, WAITING_MAX = 16384, READS_MAX = 64, STDIN_MARK = 1000, TIMER_MARK = 1001 };

struct link {
    uint32_t cut, delay_us, jitter_us, loss_ppm;
    uint64_t passed, dropped;
};

struct packet {
    int64_t due_us;
    uint64_t number; /* of equal times the older one first */
    int to;
    size_t size;
    char bytes[];
};

static struct link (*links)[MEMBERS_MAX];
static int members[MEMBERS_MAX], member_count;
static struct packet *waiting[WAITING_MAX];
static size_t waiting_count;
static uint64_t numbers;
static uint64_t random_state = 0x9e3779b97f4a7c15;
static int timer_fd;

static void die(const char *what)
{
    fprintf(stderr, "chaos_switch: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % n);
}

static bool before(const struct packet *a, const struct packet *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->number < b->number;
}

static bool wait_push(struct packet *p)
{
    if (waiting_count == WAITING_MAX) return false;
    size_t at = waiting_count++;
    while (at > 0 && before(p, waiting[(at - 1) / 2])) {
        waiting[at] = waiting[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    waiting[at] = p;
    return true;
}

static struct packet *wait_pop(void)
{
    struct packet *top = waiting[0], *last = waiting[--waiting_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= waiting_count) break;
        if (child + 1 < waiting_count && before(waiting[child + 1], waiting[child])) child++;
        if (!before(waiting[child], last)) break;
        waiting[at] = waiting[child];
        at = child;
    }
    waiting[at] = last;
    return top;
}

/* A member that does not take it (its interface is down) has lost it. */
static void deliver(int to, const char *bytes, size_t size)
{
    if (write(members[to], bytes, size) < 0 && errno != EAGAIN && errno != EIO && errno != EINVAL && errno != ENOBUFS)
        die("write");
}

static void timer_set(void)
{
    struct itimerspec when = {0};
    if (waiting_count > 0) {
        int64_t due_us = waiting[0]->due_us > 0 ? waiting[0]->due_us : 1;
        when.it_value.tv_sec = due_us / 1000000;
        when.it_value.tv_nsec = due_us % 1000000 * 1000;
    }
    if (timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL) != 0) die("timer");
}

static void deliver_due(void)
{
    int64_t now = now_us();
    while (waiting_count > 0 && waiting[0]->due_us <= now) {
        struct packet *p = wait_pop();
        deliver(p->to, p->bytes, p->size);
        free(p);
    }
    timer_set();
}

/* IPv4 within 10.0.0.0/24 only; everything else ends here. */
static int target_of(const unsigned char *bytes, size_t size)
{
    if (size < 20 || bytes[0] >> 4 != 4 || bytes[16] != 10 || bytes[17] != 0 || bytes[18] != 0) return -1;
    int to = bytes[19] - 1;
    return to >= 0 && to < member_count ? to : -1;
}

static void carry(int from, const char *bytes, size_t size)
{
    int to = target_of((const unsigned char *)bytes, size);
    if (to < 0 || to == from) return;
    struct link *l = &links[from][to];
    uint32_t delay_us = __atomic_load_n(&l->delay_us, __ATOMIC_RELAXED);
    uint32_t jitter_us = __atomic_load_n(&l->jitter_us, __ATOMIC_RELAXED);
    uint32_t loss_ppm = __atomic_load_n(&l->loss_ppm, __ATOMIC_RELAXED);
    if (__atomic_load_n(&l->cut, __ATOMIC_RELAXED) || (loss_ppm && random_below(1000000) < loss_ppm)) {
        l->dropped++;
        return;
    }
    l->passed++;
    if (!delay_us && !jitter_us) {
        deliver(to, bytes, size);
        return;
    }
    struct packet *p = malloc(sizeof *p + size);
    if (!p) die("malloc");
    p->due_us = now_us() + delay_us + (jitter_us ? random_below(jitter_us) : 0);
    p->number = numbers++;
    p->to = to;
    p->size = size;
    memcpy(p->bytes, bytes, size);
    if (!wait_push(p)) {
        free(p);
        l->dropped++;
        return;
    }
    if (waiting[0] == p) timer_set();
}

static void take(int from)
{
    static char bytes[PACKET_MAX];
    for (int i = 0; i < READS_MAX; i++) {
        ssize_t n = read(members[from], bytes, sizeof bytes);
        if (n > 0)
            carry(from, bytes, (size_t)n);
        else if (n < 0 && (errno == EAGAIN || errno == EIO))
            return;
        else if (n < 0 && errno != EINTR)
            die("read");
    }
}

static void watch(int epoll, int fd, int mark)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = mark};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) != 0) die("epoll");
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 2 + MEMBERS_MAX) {
        fprintf(stderr, "usage: chaos_switch CONTROL FD...\n");
        return 1;
    }
    int control = open(argv[1], O_RDWR | O_CLOEXEC);
    if (control < 0) die(argv[1]);
    links = mmap(NULL, sizeof(struct link) * MEMBERS_MAX * MEMBERS_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, control, 0);
    if (links == MAP_FAILED) die("mmap");
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll < 0 || timer_fd < 0) die("epoll");
    for (int i = 2; i < argc; i++) {
        int fd = atoi(argv[i]);
        if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) die("FD");
        watch(epoll, fd, member_count);
        members[member_count++] = fd;
    }
    watch(epoll, timer_fd, TIMER_MARK);
    watch(epoll, STDIN_FILENO, STDIN_MARK);
    for (;;) {
        struct epoll_event events[MEMBERS_MAX + 2];
        int n = epoll_wait(epoll, events, MEMBERS_MAX + 2, -1);
        if (n < 0 && errno != EINTR) die("epoll");
        for (int i = 0; i < n; i++) {
            int mark = events[i].data.fd;
            uint64_t ticks;
            if (mark == STDIN_MARK) return 0;
            if (mark == TIMER_MARK) {
                if (read(timer_fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN) die("timer");
                deliver_due();
            } else {
                take(mark);
            }
        }
    }
}
