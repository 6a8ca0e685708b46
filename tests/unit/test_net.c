/* Frames between nodes: what arrives, in which order, and what is dropped. */
#include "test_net_rig.h"

#include "net/net_inner.h"

enum { MIB = 1 << 20 };

static struct node a, b;

static void pair_dial(void)
{
    node_dial(&a, 2, net_port(b.net));
    node_dial(&b, 1, net_port(a.net));
    eventually(net_connected(a.net, 2) && net_connected(b.net, 1));
    eventually(node_links(&a, NET_LINK_IN, true) == 1 && node_links(&b, NET_LINK_IN, true) == 1);
}

static void pair_start(void)
{
    node_start(&a, 1);
    node_start(&b, 2);
    pair_dial();
}

static void pair_halt(void)
{
    node_halt(&a);
    node_halt(&b);
}

static void frames_of_all_sizes_arrive_in_order(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 65536, 131040, 131041, 131064, 131072, MIB, 3000000, (20 * MIB) + 5, 12, 65536, 0};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    pair_start();
    for (uint32_t i = 0; i < COUNT; i++) assert_true(node_send(&a, 2, sizes[i], 1000 + i));
    eventually(node_count(&b, NOTE_FRAME) == COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        struct note n = node_frame_at(&b, i);
        assert_int_equal(n.len, sizes[i]);
        assert_int_equal(n.peer, 1);
        assert_true(n.right);
        if (sizes[i] >= 8) assert_int_equal(n.first, 1000 + i);
    }
    assert_true(node_count(&b, NOTE_RECEIVING) > 0);
    eventually(net_backlog(a.net, 2) == 0);
    assert_int_equal(node_stats(&a, 2).sent_frames, COUNT);
    assert_int_equal(node_stats(&b, 1).received_frames, COUNT);
    pair_halt();
}

static void nothing_is_taken_for_a_peer_that_is_not_there(void **state)
{
    (void)state;
    node_start(&a, 1);
    assert_false(node_send(&a, 2, 10, 1));
    node_dial(&a, 2, 1);
    assert_false(node_send(&a, 2, 10, 1));
    assert_int_equal(node_stats(&a, 2).dropped_frames, 1);
    assert_int_equal(net_backlog(a.net, 2), 0);
    node_halt(&a);
}

/* ---- breaks */

static void a_node_that_comes_back_is_dialled_again(void **state)
{
    (void)state;
    pair_start();
    uint16_t port = net_port(b.net);
    node_halt(&b);
    eventually(!net_connected(a.net, 2) && node_links(&a, NET_LINK_OUT, false) == 1 && node_links(&a, NET_LINK_IN, false) == 1);
    assert_false(node_send(&a, 2, 100, 1));
    node_init(&b, 2);
    b.options.listen_port = port;
    node_open_net(&b);
    node_attach(&b, CHANNEL, NULL);
    node_go(&b);
    eventually(node_links(&a, NET_LINK_OUT, true) == 2 && node_links(&b, NET_LINK_IN, true) == 1);
    assert_true(node_send(&a, 2, 100, 77));
    eventually(node_count(&b, NOTE_FRAME) == 1);
    assert_int_equal(node_frame_at(&b, 0).first, 77);
    assert_int_equal(node_stats(&a, 2).connects, 2);
    pair_halt();
}

/* b is slow, so much of the old connection is unread when the new one comes. */
static void a_new_connection_takes_the_old_ones_place(void **state)
{
    (void)state;
    enum { OLD = 3000, NEW = 20, NEW_SEED = 1000000 };
    pair_start();
    struct proxy p;
    proxy_start(&p, net_port(b.net));
    atomic_store(&b.nap_us, 2000);
    for (uint32_t i = 0; i < OLD; i++) assert_true(node_send(&a, 2, 8000, i));
    eventually(node_count(&b, NOTE_FRAME) > 0);
    node_dial(&a, 2, p.port);
    eventually(net_connected(a.net, 2) && node_stats(&a, 2).connects == 2);
    for (uint32_t i = 0; i < NEW; i++) assert_true(node_send(&a, 2, 8000, NEW_SEED + i));
    atomic_store(&b.nap_us, 0);
    eventually(node_links(&b, NET_LINK_IN, true) == 2 && node_count(&b, NOTE_FRAME) >= NEW);
    uint32_t old = 0, new = 0, downs = 0, ups = 0;
    eventually(node_frame_at(&b, node_count(&b, NOTE_FRAME) - 1).first == NEW_SEED + NEW - 1);
    pthread_mutex_lock(&b.lock);
    for (uint32_t i = 0; i < b.note_count; i++) {
        struct note *n = &b.notes[i];
        if (n->type == NOTE_LINK && n->which == NET_LINK_IN) {
            *(n->up ? &ups : &downs) += 1;
        } else if (n->type == NOTE_FRAME && n->first < NEW_SEED) {
            assert_int_equal(n->first, old++);
            assert_int_equal(ups, 1);
            assert_int_equal(downs, 0);
        } else if (n->type == NOTE_FRAME) {
            assert_int_equal(n->first, NEW_SEED + new ++);
            assert_int_equal(ups, 2);
            assert_int_equal(downs, 1);
        }
    }
    pthread_mutex_unlock(&b.lock);
    assert_int_equal(new, NEW);
    assert_true(old < OLD); /* else the test proves nothing */
    proxy_halt(&p);
    pair_halt();
}

static void a_silent_connection_is_taken_for_dead(void **state)
{
    (void)state;
    node_start(&a, 1);
    node_start(&b, 2);
    struct proxy p;
    proxy_start(&p, net_port(b.net));
    node_dial(&a, 2, p.port);
    eventually(net_connected(a.net, 2) && node_links(&b, NET_LINK_IN, true) == 1);
    int64_t before_us = clock_mono_us();
    usleep(2000000); /* nothing to send: signs of life keep it */
    assert_true(net_connected(a.net, 2));
    atomic_store(&p.stalled, true);
    eventually(!net_connected(a.net, 2) && node_links(&b, NET_LINK_IN, false) == 1);
    assert_in_range(clock_mono_us() - before_us, 5500000, 15000000);
    atomic_store(&p.cut, true);
    atomic_store(&p.stalled, false);
    usleep(50000);
    atomic_store(&p.cut, false);
    eventually(net_connected(a.net, 2));
    proxy_halt(&p);
    pair_halt();
}

static void a_removed_peer_is_let_go_and_not_dialled(void **state)
{
    (void)state;
    pair_start();
    node_remove(&a, 2);
    assert_false(net_connected(a.net, 2));
    assert_false(node_send(&a, 2, 10, 1));
    eventually(node_links(&a, NET_LINK_OUT, false) == 1 && node_links(&b, NET_LINK_IN, false) == 1);
    node_remove(&b, 1);
    eventually(node_links(&a, NET_LINK_IN, false) >= 1);
    usleep(200000);
    assert_int_equal(node_links(&b, NET_LINK_IN, true), 1);
    assert_int_equal(node_stats(&a, 2).peer, 0);
    /* Set again, it comes back. */
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    pair_halt();
}

static void a_name_is_looked_up_off_the_loop(void **state)
{
    (void)state;
    node_start(&a, 1);
    node_start(&b, 2);
    struct peer_errand e = {a.net, 2, net_port(b.net), "localhost"};
    node_do(&a, peer_set_run, &e);
    eventually(net_connected(a.net, 2));
    char name[301];
    memset(name, 'x', sizeof name - 1);
    name[300] = 0;
    struct peer_errand nowhere = {a.net, 3, 1, name}; /* there can be no such host */
    node_do(&a, peer_set_run, &nowhere);
    assert_true(node_send(&a, 2, 100, 5));
    eventually(node_count(&b, NOTE_FRAME) == 1);
    node_halt(&a); /* with a lookup perhaps under way */
    node_halt(&b);
}

/* ---- limits */

static atomic_bool b_blocked;

static void blocked_frame(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    while (atomic_load(&b_blocked)) usleep(500);
    node_frame(ctx, peer, kind, frame);
}

static uint32_t send_until_dropped(const char *bytes, uint32_t flags, uint64_t *seed)
{
    uint32_t sent = 0;
    for (;; sent++) {
        char number[8];
        memcpy(number, seed, 8);
        struct slice parts[2] = {slice_make(number, 8), slice_make(bytes, MIB - 8)};
        if (!net_send(a.net, 2, CHANNEL, 1, flags, parts, 2)) return sent;
        ++*seed;
        assert_true(sent < 400);
    }
}

static void beyond_the_backlog_frames_are_dropped(void **state)
{
    (void)state;
    node_start(&a, 1);
    node_init(&b, 2);
    node_open_net(&b);
    /* The owner stands still on a loop of its own: the connection itself stays alive, however long this takes. */
    struct loop *owner = loop_new();
    pthread_t thread;
    assert_non_null(owner);
    struct net_channel c = {.ctx = &b, .loop = owner, .frame = blocked_frame, .link = node_link};
    net_attach(b.net, CHANNEL, &c);
    assert_int_equal(pthread_create(&thread, NULL, node_thread, owner), 0);
    node_go(&b);
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    char *bytes = calloc(1, MIB);
    uint64_t seed = 0;
    atomic_store(&b_blocked, true);
    uint32_t sent = send_until_dropped(bytes, 0, &seed);
    assert_in_range(net_backlog(a.net, 2), NET_BACKLOG_BYTES_MAX - 8 * MIB, NET_BACKLOG_BYTES_MAX + 2 * MIB);
    uint32_t vital = send_until_dropped(bytes, NET_VITAL, &seed);
    assert_in_range(vital, 50, 80);
    assert_false(node_send(&a, 2, 1, 1));
    assert_int_equal(node_stats(&a, 2).dropped_frames, 3);
    atomic_store(&b_blocked, false);
    eventually(node_count(&b, NOTE_FRAME) == sent + vital);
    for (uint32_t i = 0; i < sent + vital; i++) assert_int_equal(node_frame_at(&b, i).first, i);
    eventually(net_backlog(a.net, 2) == 0);
    assert_true(node_send(&a, 2, 1, 1));
    free(bytes);
    loop_stop(owner);
    pthread_join(thread, NULL);
    pair_halt();
    loop_free(owner);
}

static void a_large_frame_does_not_hold_up_other_channels(void **state)
{
    (void)state;
    node_start(&a, 1);
    node_init(&b, 2);
    node_open_net(&b);
    node_attach(&b, CHANNEL, NULL);
    node_attach(&b, CHANNEL + 1, NULL);
    node_go(&b);
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    assert_true(node_send_on(&a, 2, CHANNEL, 60 * MIB, 1, 1));
    assert_true(node_send_on(&a, 2, CHANNEL + 1, 100, 2, 2));
    assert_true(node_send_on(&a, 2, CHANNEL, 100, 3, 3));
    eventually(node_count(&b, NOTE_FRAME) == 3);
    assert_int_equal(node_frame_at(&b, 0).kind, 2);
    assert_int_equal(node_frame_at(&b, 1).kind, 1);
    assert_true(node_frame_at(&b, 1).right);
    assert_int_equal(node_frame_at(&b, 2).kind, 3);
    pair_halt();
}

static _Atomic uint32_t tells[2];

static void told_receiving(void *ctx, uint64_t peer)
{
    (void)peer;
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
}

static void ignored_frame(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    (void)ctx, (void)peer, (void)kind, (void)frame;
}

/* Two large frames side by side: each channel hears that its own is coming in. */
static void each_channel_is_told_of_its_large_frame(void **state)
{
    (void)state;
    node_start(&a, 1);
    node_init(&b, 2);
    node_open_net(&b);
    for (uint16_t i = 0; i < 2; i++) {
        atomic_store(&tells[i], 0);
        struct net_channel c = {.ctx = &tells[i], .frame = ignored_frame, .receiving = told_receiving};
        net_attach(b.net, (uint16_t)(CHANNEL + i), &c);
    }
    node_go(&b);
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    int64_t began_us = clock_mono_us();
    assert_true(node_send_on(&a, 2, CHANNEL, 60 * MIB, 1, 1));
    assert_true(node_send_on(&a, 2, CHANNEL + 1, 60 * MIB, 2, 1));
    eventually(node_stats(&b, 1).received_frames == 2);
    uint64_t most = 1 + (uint64_t)(clock_mono_us() - began_us) / 10000;
    assert_in_range(atomic_load(&tells[0]), 1, most);
    assert_in_range(atomic_load(&tells[1]), 1, most);
    pair_halt();
}

static void detach_run(void *ctx)
{
    net_detach(ctx, CHANNEL);
}

static void attach_run(void *ctx)
{
    node_attach(ctx, CHANNEL, NULL);
}

static void a_channel_comes_and_goes(void **state)
{
    (void)state;
    pair_start();
    node_do(&b, detach_run, b.net);
    assert_true(node_send(&a, 2, 100, 1));
    assert_true(node_send(&a, 2, 5 * MIB, 2));
    eventually(node_stats(&b, 1).received_bytes > 5 * MIB);
    assert_int_equal(node_count(&b, NOTE_FRAME), 0);
    uint32_t told = node_links(&b, NET_LINK_IN, true);
    node_do(&b, attach_run, &b);
    assert_int_equal(node_links(&b, NET_LINK_IN, true), told + 1);
    assert_int_equal(node_links(&b, NET_LINK_OUT, true), 2);
    assert_true(node_send(&a, 2, 100, 3));
    eventually(node_count(&b, NOTE_FRAME) == 1);
    assert_int_equal(node_frame_at(&b, 0).first, 3);
    pair_halt();
}

static void held_run(void *ctx)
{
    struct net *n = *(struct net **)ctx;
    size_t held = 0;
    for (struct conn *c = n->conns; c != NULL; c = c->next) held += c->in_cap + c->frames.spare_cap;
    for (uint32_t i = 0; i < NET_PEERS_MAX; i++) held += n->peers[i].outbox.spare_count * (size_t)WIRE_RECORD_MAX;
    *(size_t *)ctx = held;
}

static size_t held_bytes(struct node *n)
{
    union {
        struct net *net;
        size_t held;
    } u = {.net = n->net};
    node_do(n, held_run, &u);
    return u.held;
}

static void idle_connections_hold_no_buffers(void **state)
{
    (void)state;
    pair_start();
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 8; i++) assert_true(node_send(&a, 2, 4 * MIB, i));
        eventually(node_count(&b, NOTE_FRAME) == 8 * ((uint32_t)round + 1));
        for (uint32_t i = 0; i < 8; i++) assert_true(node_frame_at(&b, (uint32_t)round * 8 + i).right);
        if (round == 0) assert_true(held_bytes(&a) > 0 && held_bytes(&b) > 0);
        eventually(held_bytes(&a) == 0 && held_bytes(&b) == 0);
    }
    pair_halt();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_all_sizes_arrive_in_order),
        cmocka_unit_test(nothing_is_taken_for_a_peer_that_is_not_there),
        cmocka_unit_test(a_node_that_comes_back_is_dialled_again),
        cmocka_unit_test(a_new_connection_takes_the_old_ones_place),
        cmocka_unit_test(a_silent_connection_is_taken_for_dead),
        cmocka_unit_test(a_removed_peer_is_let_go_and_not_dialled),
        cmocka_unit_test(a_name_is_looked_up_off_the_loop),
        cmocka_unit_test(beyond_the_backlog_frames_are_dropped),
        cmocka_unit_test(a_large_frame_does_not_hold_up_other_channels),
        cmocka_unit_test(each_channel_is_told_of_its_large_frame),
        cmocka_unit_test(a_channel_comes_and_goes),
        cmocka_unit_test(idle_connections_hold_no_buffers),
    };
    signal(SIGPIPE, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
