/* Frames between nodes: what arrives, in which order, and what is dropped. */
#include "test_net_rig.h"

static struct node a, b;

static void pair_start(void)
{
    node_start(&a, 1);
    node_start(&b, 2);
    node_dial(&a, 2, net_port(b.net));
    node_dial(&b, 1, net_port(a.net));
    eventually(net_connected(a.net, 2) && net_connected(b.net, 1));
    eventually(node_links(&a, NET_LINK_IN, true) == 1 && node_links(&b, NET_LINK_IN, true) == 1);
}

static void pair_halt(void)
{
    node_halt(&a);
    node_halt(&b);
}

static void frames_of_all_sizes_arrive_in_order(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,      1,       7,       65536,          131064 - 8, 131064 - 7, 131064,
                                   131072, 1 << 20, 3000000, (20 << 20) + 5, 12,         65536,      0};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_all_sizes_arrive_in_order),
        cmocka_unit_test(nothing_is_taken_for_a_peer_that_is_not_there),
    };
    signal(SIGPIPE, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
