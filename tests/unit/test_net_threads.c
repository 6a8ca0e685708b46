/* Channels on other loops, senders on other threads. Meant to run under a thread sanitizer as well. */
#include "test_net_rig.h"

enum { MIB = 1 << 20, SENDERS = 3, FRAMES = 4000 };

/* A channel whose loop has a thread of its own. It checks order itself: frames carry their number. */
struct group {
    struct loop *loop;
    pthread_t thread;
    uint16_t channel;
    _Atomic uint64_t frames, bytes, wrong, ups, downs, receiving;
    _Atomic int nap_us;
    atomic_bool blocked;
    uint64_t next; /* number expected */
    bool up;
};

static struct node a, b;

static void group_frame(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    struct group *g = ctx;
    uint64_t number = 0;
    (void)kind;
    if (frame.len >= 8) memcpy(&number, frame.at, 8);
    bool right = peer == 1 && frame_right(frame.at, frame.len) && number == g->next && g->up && loop_is_mine(g->loop);
    g->next = number + 1;
    if (!right) atomic_fetch_add(&g->wrong, 1);
    while (atomic_load(&g->blocked)) usleep(500);
    int nap_us = atomic_load(&g->nap_us);
    if (nap_us > 0) usleep((useconds_t)nap_us);
    atomic_fetch_add(&g->bytes, frame.len);
    atomic_fetch_add(&g->frames, 1);
}

static void group_link(void *ctx, uint64_t peer, enum net_link which, bool up)
{
    struct group *g = ctx;
    if (peer != 1 || which != NET_LINK_IN) return;
    if (up == g->up) atomic_fetch_add(&g->wrong, 1);
    g->up = up;
    atomic_fetch_add(up ? &g->ups : &g->downs, 1);
    if (up) g->next = 0; /* senders count anew on each connection */
}

static void group_receiving(void *ctx, uint64_t peer)
{
    struct group *g = ctx;
    (void)peer;
    atomic_fetch_add(&g->receiving, 1);
}

static void group_start(struct group *g, uint16_t channel)
{
    memset(g, 0, sizeof *g);
    g->channel = channel;
    g->loop = loop_new();
    assert_non_null(g->loop);
    struct net_channel c = {.ctx = g, .loop = g->loop, .frame = group_frame, .link = group_link, .receiving = group_receiving};
    net_attach(b.net, channel, &c);
    assert_int_equal(pthread_create(&g->thread, NULL, node_thread, g->loop), 0);
}

static void group_halt(struct group *g)
{
    loop_stop(g->loop);
    pthread_join(g->thread, NULL);
}

static void nodes_start(struct group *groups, uint32_t count)
{
    node_start(&a, 1);
    node_init(&b, 2);
    node_open_net(&b);
    for (uint32_t i = 0; i < count; i++) group_start(&groups[i], (uint16_t)(10 + i));
    node_go(&b);
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    for (uint32_t i = 0; i < count; i++) eventually(atomic_load(&groups[i].ups) == 1);
}

static void nodes_halt(struct group *groups, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) group_halt(&groups[i]);
    node_halt(&a);
    node_halt(&b);
    for (uint32_t i = 0; i < count; i++) loop_free(groups[i].loop);
}

struct sender {
    pthread_t thread;
    uint16_t channel;
    uint32_t frames;
    uint64_t bytes;
};

static void *sender_run(void *arg)
{
    struct sender *s = arg;
    uint64_t seed = s->channel * 7919u;
    for (uint32_t i = 0; i < s->frames;) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t len = 8 + (seed >> 33) % (i % 100 == 99 ? 400000 : 600);
        if (!node_send_on(&a, 2, s->channel, len, i, 1)) {
            usleep(1000); /* the backlog is full */
            continue;
        }
        s->bytes += len;
        i++;
    }
    return NULL;
}

static void each_thread_and_channel_keeps_its_order(void **state)
{
    (void)state;
    static struct group groups[SENDERS];
    struct sender senders[SENDERS];
    nodes_start(groups, SENDERS);
    for (uint32_t i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){.channel = (uint16_t)(10 + i), .frames = FRAMES};
        assert_int_equal(pthread_create(&senders[i].thread, NULL, sender_run, &senders[i]), 0);
    }
    for (uint32_t i = 0; i < SENDERS; i++) {
        pthread_join(senders[i].thread, NULL);
    }
    for (uint32_t i = 0; i < SENDERS; i++) {
        eventually(atomic_load(&groups[i].frames) == FRAMES);
        assert_int_equal(atomic_load(&groups[i].wrong), 0);
        assert_int_equal(atomic_load(&groups[i].bytes), senders[i].bytes);
    }
    nodes_halt(groups, SENDERS);
}

static void an_owner_that_stands_still_makes_the_sender_wait(void **state)
{
    (void)state;
    enum { MORE = 20 };
    static struct group groups[1];
    nodes_start(groups, 1);
    atomic_store(&groups[0].blocked, true);
    uint64_t sent = 0;
    for (int64_t last_us = clock_mono_us(); clock_mono_us() - last_us < 1000000;) {
        if (node_send_on(&a, 2, 10, MIB, sent, 1)) {
            sent++;
            last_us = clock_mono_us();
        } else {
            usleep(1000);
        }
        assert_true(sent < 200);
    }
    /* The backlog here, 32 MiB to the owner, and what sockets hold. */
    assert_in_range(sent, 90, 125);
    usleep(6000000); /* longer than a silent connection lives */
    assert_int_equal(atomic_load(&groups[0].downs), 0);
    atomic_store(&groups[0].blocked, false);
    for (uint64_t i = 0; i < MORE;) {
        if (node_send_on(&a, 2, 10, MIB, sent + i, 1)) {
            i++;
        } else {
            usleep(1000);
        }
    }
    eventually(atomic_load(&groups[0].frames) == sent + MORE);
    assert_int_equal(atomic_load(&groups[0].wrong), 0);
    assert_true(atomic_load(&groups[0].receiving) > 0);
    assert_int_equal(atomic_load(&groups[0].downs), 0);
    nodes_halt(groups, 1);
}

static void links_come_in_order_with_frames(void **state)
{
    (void)state;
    enum { ROUNDS = 30 };
    static struct group groups[1];
    nodes_start(groups, 1);
    uint64_t seed = 12345;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        /* As many as come before the connection is broken, maybe with frames under way. */
        uint32_t count = 1 + (uint32_t)(seed = seed * 6364136223846793005u + 1, seed >> 40) % 200;
        for (uint32_t i = 0; i < count; i++) node_send_on(&a, 2, 10, i % 17 == 16 ? 300000 : 100, i, 1);
        if (round % 2 == 0) usleep(1000);
        node_remove(&a, 2);
        node_dial(&a, 2, net_port(b.net));
        eventually(net_connected(a.net, 2) && atomic_load(&groups[0].ups) == round + 2);
    }
    assert_int_equal(atomic_load(&groups[0].wrong), 0);
    assert_int_equal(atomic_load(&groups[0].downs), ROUNDS);
    assert_true(atomic_load(&groups[0].frames) > 0);
    nodes_halt(groups, 1);
}

static void detach_run(void *ctx)
{
    net_detach(ctx, 10);
}

static void after_detach_nothing_is_delivered(void **state)
{
    (void)state;
    static struct group groups[2];
    nodes_start(groups, 2);
    atomic_store(&groups[0].nap_us, 1000);
    for (uint32_t i = 0; i < 500; i++) assert_true(node_send_on(&a, 2, 10, 1000, i, 1));
    eventually(atomic_load(&groups[0].frames) > 0);
    node_do(&b, detach_run, b.net);
    uint64_t then = atomic_load(&groups[0].frames);
    assert_true(then < 500);
    assert_true(node_send_on(&a, 2, 11, 1000, 0, 1));
    eventually(atomic_load(&groups[1].frames) == 1);
    usleep(20000);
    assert_int_equal(atomic_load(&groups[0].frames), then);
    nodes_halt(groups, 2);
}

/* A group that ended with frames on their way to it does not keep the others waiting. */
static void a_group_that_ended_holds_nobody_up(void **state)
{
    (void)state;
    static struct group groups[2];
    nodes_start(groups, 2);
    group_halt(&groups[0]);
    uint64_t sent = 0;
    for (int64_t last_us = clock_mono_us(); clock_mono_us() - last_us < 500000 && sent < 200;) {
        if (node_send_on(&a, 2, 10, MIB, sent, 1)) {
            sent++;
            last_us = clock_mono_us();
        } else {
            usleep(1000);
        }
    }
    assert_in_range(sent, 90, 125); /* b does not read on */
    assert_false(node_send_on(&a, 2, 11, 1000, 0, 1));
    node_do(&b, detach_run, b.net);
    eventually(net_backlog(a.net, 2) == 0);
    assert_true(node_send_on(&a, 2, 11, 1000, 0, 1));
    eventually(atomic_load(&groups[1].frames) == 1);
    assert_int_equal(atomic_load(&groups[0].frames), 0);
    group_halt(&groups[1]);
    node_halt(&a);
    node_halt(&b);
    for (int i = 0; i < 2; i++) loop_free(groups[i].loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_thread_and_channel_keeps_its_order),
        cmocka_unit_test(an_owner_that_stands_still_makes_the_sender_wait),
        cmocka_unit_test(links_come_in_order_with_frames),
        cmocka_unit_test(after_detach_nothing_is_delivered),
        cmocka_unit_test(a_group_that_ended_holds_nobody_up),
    };
    signal(SIGPIPE, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
