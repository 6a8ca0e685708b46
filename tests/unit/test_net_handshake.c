/* Who is let in, who is not, and what each is told. */
#include "test_net_rig.h"

#include "net/hello.h"

static struct node a, b;

static void nodes_init(void)
{
    node_init(&a, 1);
    node_init(&b, 2);
}

static void nodes_go(void)
{
    node_open_net(&a);
    node_open_net(&b);
    node_attach(&a, CHANNEL, NULL);
    node_attach(&b, CHANNEL, NULL);
    node_go(&a);
    node_go(&b);
}

static void nodes_halt(void)
{
    node_halt(&a);
    node_halt(&b);
}

/* The log is read back from a file. */
static char log_path[] = "/tmp/test-net-log-XXXXXX";
static int log_fd = -1, log_was = -1;

static void log_catch(void)
{
    strcpy(log_path, "/tmp/test-net-log-XXXXXX");
    log_fd = mkstemp(log_path);
    assert_true(log_fd >= 0);
    fflush(stderr);
    log_was = dup(2);
    dup2(log_fd, 2);
}

static char *log_text(void)
{
    static char text[1 << 16];
    ssize_t n = pread(log_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static uint32_t log_lines(const char *with)
{
    uint32_t count = 0;
    for (const char *at = log_text(); (at = strstr(at, with)) != NULL; at++) count++;
    return count;
}

static void log_release(void)
{
    dup2(log_was, 2);
    close(log_was);
    close(log_fd);
    unlink(log_path);
}

static void without_a_secret_there_is_no_net(void **state)
{
    (void)state;
    node_init(&a, 1);
    static const char *bad[] = {NULL, "", "too short"};
    for (size_t i = 0; i < 3; i++) {
        struct buf error = {0};
        a.options.secret = bad[i];
        assert_null(net_open(&a.options, &error));
        buf_byte(&error, 0);
        assert_non_null(strstr(error.at, "secret"));
        buf_free(&error);
    }
    a.options.secret = SECRET;
    a.options.tls_cert = "/nowhere";
    struct buf error = {0};
    assert_null(net_open(&a.options, &error));
    assert_true(error.len > 0);
    buf_clear(&error);
    a.options.tls_key = a.options.tls_ca = "/nowhere";
    assert_null(net_open(&a.options, &error));
    buf_byte(&error, 0);
    assert_non_null(strstr(error.at, "/nowhere"));
    buf_clear(&error);
    a.options.tls_cert = a.options.tls_key = a.options.tls_ca = NULL;
    a.options.listen_host = "203.0.113.1"; /* not ours */
    assert_null(net_open(&a.options, &error));
    assert_true(error.len > 0);
    buf_free(&error);
    loop_free(a.loop);
}

static void a_wrong_secret_is_refused_and_logged_once_a_second(void **state)
{
    (void)state;
    nodes_init();
    b.options.secret = "another secret of enough bytes";
    nodes_go();
    log_catch();
    int64_t began_us = clock_mono_us();
    node_dial(&a, 2, net_port(b.net));
    usleep(1500000); /* several tries */
    uint32_t at_a = log_lines("does not accept our secret"), at_b = log_lines("does not know the cluster's secret");
    uint32_t most = 1 + (uint32_t)((clock_mono_us() - began_us) / 1000000);
    log_release();
    assert_in_range(at_a, 1, most);
    assert_in_range(at_b, 1, most);
    assert_false(net_connected(a.net, 2));
    assert_int_equal(node_count(&a, NOTE_LINK) + node_count(&b, NOTE_LINK), 0);
    assert_int_equal(a.met + b.met, 0);
    assert_int_equal(node_refusals(&a) + node_refusals(&b), 0);
    nodes_halt();
}

static void an_accepter_without_the_secret_is_no_peer(void **state)
{
    (void)state;
    /* It says welcome to everybody, but has no proof. */
    node_start(&a, 1);
    uint16_t port;
    int listener = listen_plain(&port);
    log_catch();
    node_dial(&a, 2, port);
    int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    char bytes[1024];
    assert_true(recv(fd, bytes, sizeof bytes, 0) > 0);
    struct buf out = {0};
    struct answer answer = {.self = {.node = 2}, .run = 5};
    answer_write(&out, &answer);
    struct verdict verdict = {.code = VERDICT_WELCOME, .text = slice_of("")};
    verdict_write(&out, &verdict);
    assert_true(send_whole(fd, out.at, out.len));
    assert_true(closed_within(fd, 5000, NULL, NULL, 0));
    eventually(log_lines("it does not know the cluster's secret") == 1);
    log_release();
    assert_false(net_connected(a.net, 2));
    assert_int_equal(a.met, 0);
    buf_free(&out);
    close(fd);
    close(listener);
    node_halt(&a);
}

/* ---- identities */

static void what_meet_says_reaches_the_other(void **state)
{
    (void)state;
    nodes_init();
    b.meet_says = "this disk is not the one that was here";
    nodes_go();
    node_dial(&a, 2, net_port(b.net)); /* b accepts, b refuses */
    eventually(node_refusals(&a) > 0);
    pthread_mutex_lock(&a.lock);
    assert_string_equal(a.refused, b.meet_says);
    assert_int_equal(a.refused_by, 2);
    pthread_mutex_unlock(&a.lock);
    assert_false(net_connected(a.net, 2));
    node_remove(&a, 2);
    pthread_mutex_lock(&a.lock);
    a.refused_count = 0;
    pthread_mutex_unlock(&a.lock);
    usleep(1000000); /* at most one a second */
    int64_t began_us = clock_mono_us();
    node_dial(&b, 1, net_port(a.net)); /* b dials, b refuses */
    eventually(node_refusals(&a) > 0);
    assert_int_equal(node_refusals(&b), 0);
    assert_int_equal(node_links(&a, NET_LINK_IN, true) + node_links(&b, NET_LINK_OUT, true), 0);
    usleep(1500000);
    uint64_t refusals = node_refusals(&a);
    assert_in_range(refusals, 1, 1 + (uint64_t)(clock_mono_us() - began_us) / 1000000);
    pthread_mutex_lock(&b.lock);
    b.meet_says = NULL;
    pthread_mutex_unlock(&b.lock);
    eventually(net_connected(b.net, 1)); /* it goes on trying */
    nodes_halt();
}

static void not_connected_because(const char *why)
{
    log_catch();
    nodes_go();
    node_dial(&a, 2, net_port(b.net));
    eventually(log_lines(why) > 0);
    log_release();
    assert_false(net_connected(a.net, 2));
    assert_int_equal(a.met + b.met, 0);
    assert_int_equal(node_refusals(&a) + node_refusals(&b), 0);
    nodes_halt();
}

static void another_cluster_is_refused(void **state)
{
    (void)state;
    nodes_init();
    b.options.self.cluster.bytes[0] ^= 1;
    not_connected_because("two different clusters");
}

static void another_node_at_the_address_is_refused(void **state)
{
    (void)state;
    nodes_init();
    b.options.self.node = 7;
    not_connected_because("the address leads to node 7");
    nodes_init();
    b.options.self.node = 1;
    not_connected_because("both nodes have the same id");
}

static void a_node_that_dials_itself_finds_out(void **state)
{
    (void)state;
    node_start(&a, 1);
    log_catch();
    node_dial(&a, 1, net_port(a.net)); /* ignored */
    node_dial(&a, 2, net_port(a.net));
    eventually(log_lines("leads back to this very node") > 0);
    log_release();
    assert_false(net_connected(a.net, 2));
    assert_int_equal(node_count(&a, NOTE_LINK), 0);
    node_halt(&a);
}

static const char *meet_cluster(void *ctx, const struct net_self *peer)
{
    struct node *n = ctx;
    net_self_cluster(n->net, peer->cluster);
    return NULL;
}

static void a_waiting_node_learns_the_cluster(void **state)
{
    (void)state;
    nodes_init();
    memset(&b.options.self.cluster, 0, sizeof b.options.self.cluster);
    b.options.meet = meet_cluster;
    nodes_go();
    struct node c;
    node_init(&c, 3);
    memset(&c.options.self.cluster, 9, sizeof c.options.self.cluster);
    node_open_net(&c);
    node_go(&c);
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    log_catch();
    node_dial(&c, 2, net_port(b.net));
    eventually(log_lines("two different clusters") > 0);
    log_release();
    assert_false(net_connected(c.net, 2));
    nodes_halt();
    node_halt(&c);
}

/* ---- hostile bytes */

static void what_was_recorded_opens_nothing(void **state)
{
    (void)state;
    nodes_init();
    nodes_go();
    struct proxy p;
    proxy_start(&p, net_port(b.net));
    node_dial(&a, 2, p.port);
    eventually(net_connected(a.net, 2) && node_links(&b, NET_LINK_IN, true) == 1);
    assert_true(node_send(&a, 2, 100, 4));
    eventually(node_count(&b, NOTE_FRAME) == 1);
    pthread_mutex_lock(&p.lock);
    char seen[sizeof p.seen];
    size_t len = p.seen_len;
    memcpy(seen, p.seen, len);
    pthread_mutex_unlock(&p.lock);
    assert_true(len > 200);
    int fd = dial_plain(net_port(b.net));
    char kept[1024];
    size_t kept_len = 0;
    assert_true(send_whole(fd, seen, len));
    assert_true(closed_within(fd, 2000, kept, &kept_len, sizeof kept));
    close(fd);
    assert_int_equal(node_links(&b, NET_LINK_IN, true), 1);
    assert_int_equal(node_links(&b, NET_LINK_IN, false), 0);
    assert_int_equal(node_count(&b, NOTE_FRAME), 1);
    assert_true(net_connected(a.net, 2));
    proxy_halt(&p);
    nodes_halt();
}

static void garbage_is_closed_at_once(void **state)
{
    (void)state;
    nodes_init();
    nodes_go();
    uint64_t seed = 88172645463325252u;
    for (int i = 0; i < 60; i++) {
        char bytes[3000];
        for (size_t j = 0; j < sizeof bytes; j++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            bytes[j] = (char)seed;
        }
        if (i % 3 == 1) memcpy(bytes, "QNET\1\1", 6);
        if (i % 3 == 2) memcpy(bytes, "QNET\1\1\x70\0", 8); /* a hello of the right length */
        int fd = dial_plain(net_port(b.net));
        send_whole(fd, bytes, 8 + seed % 2900);
        if (!closed_within(fd, i % 3 == 0 ? 500 : 4000, NULL, NULL, 0)) fail_msg("garbage %d is still connected", i);
        close(fd);
        if (i > 6) i += 5;
    }
    assert_int_equal(node_count(&b, NOTE_LINK), 0);
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    nodes_halt();
}

static void another_protocol_is_told_so(void **state)
{
    (void)state;
    node_start(&b, 2);
    int fd = dial_plain(net_port(b.net));
    char kept[64];
    size_t kept_len = 0;
    assert_true(send_whole(fd, "QNET\2\1\0\0", 8));
    assert_true(closed_within(fd, 2000, kept, &kept_len, sizeof kept));
    assert_int_equal(kept_len, HELLO_HEAD + 1);
    assert_int_equal(kept[5], HELLO_DENIED);
    assert_int_equal(kept[8], DENIED_PROTOCOL);
    close(fd);
    node_halt(&b);
}

static void a_slow_handshake_is_given_up(void **state)
{
    (void)state;
    nodes_init();
    nodes_go();
    int fd = dial_plain(net_port(b.net));
    int64_t began_us = clock_mono_us();
    bool closed = false;
    size_t at = 0;
    while (!closed && clock_mono_us() - began_us < 8000000) {
        static const char hello[] = "QNET\1\1\x70\0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        send_whole(fd, hello + at, 1); /* a byte now and then */
        if (at < 60) at++;
        closed = closed_within(fd, 100, NULL, NULL, 0);
    }
    assert_true(closed);
    assert_in_range(clock_mono_us() - began_us, 2500000, 8000000);
    close(fd);
    nodes_halt();
}

static void strangers_do_not_keep_peers_out(void **state)
{
    (void)state;
    enum { CROWD = 100 };
    nodes_init();
    nodes_go();
    int crowd[CROWD];
    for (int i = 0; i < CROWD; i++) crowd[i] = dial_plain(net_port(b.net));
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    int open = 0;
    for (int i = 0; i < CROWD; i++) open += !closed_within(crowd[i], 1, NULL, NULL, 0);
    assert_true(open <= 32);
    for (int i = 0; i < CROWD; i++) close(crowd[i]);
    assert_true(node_send(&a, 2, 100, 1));
    eventually(node_count(&b, NOTE_FRAME) == 1);
    nodes_halt();
}

/* ---- bytes turned on the way */

/* hello 120, proof 40, first record 24: frames begin at 184. */
enum { FRAMES_AT = 184, FRAME_LEN = 100, RECORD_LEN = 8 + 8 + FRAME_LEN + 16 };

static void flip_one(int64_t at)
{
    nodes_init();
    nodes_go();
    struct proxy p;
    proxy_start(&p, net_port(b.net));
    atomic_store(&p.flip_at, at);
    node_dial(&a, 2, p.port);
    if (at < FRAMES_AT) { /* never gets through */
        eventually(atomic_load(&p.connections) >= 2);
        assert_int_equal(node_links(&b, NET_LINK_IN, true), 0);
    } else {
        eventually(node_links(&b, NET_LINK_IN, true) == 1 && net_connected(a.net, 2));
        node_send(&a, 2, FRAME_LEN, 9);
        eventually(node_links(&b, NET_LINK_IN, false) == 1 && node_links(&a, NET_LINK_OUT, false) == 1);
    }
    assert_int_equal(node_count(&b, NOTE_FRAME), 0);
    atomic_store(&p.flip_at, -1);
    /* The dialler may not know yet that its connection was refused; what it sends on that is lost. */
    eventually(node_count(&b, NOTE_FRAME) >= 1 || (node_send(&a, 2, FRAME_LEN, 10) && false));
    assert_int_equal(node_frame_at(&b, 0).first, 10);
    proxy_halt(&p);
    nodes_halt();
}

static void a_turned_byte_ends_the_connection(void **state)
{
    (void)state;
    static const int64_t at[] = {/* hello: magic, protocol, type, length, cluster, node, target, nonce */
                                 0, 4, 5, 6, 10, 24, 64, 100,
                                 /* proof, first record */
                                 121, 130, 160, 164, 175,
                                 /* record head, item head, bytes, tag */
                                 FRAMES_AT, FRAMES_AT + 3, FRAMES_AT + 4, FRAMES_AT + 6, FRAMES_AT + 8, FRAMES_AT + 12,
                                 FRAMES_AT + 14, FRAMES_AT + 15, FRAMES_AT + 16, FRAMES_AT + 115, FRAMES_AT + 116,
                                 FRAMES_AT + RECORD_LEN - 1};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) flip_one(at[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_secret_there_is_no_net),
        cmocka_unit_test(a_wrong_secret_is_refused_and_logged_once_a_second),
        cmocka_unit_test(an_accepter_without_the_secret_is_no_peer),
        cmocka_unit_test(what_meet_says_reaches_the_other),
        cmocka_unit_test(another_cluster_is_refused),
        cmocka_unit_test(another_node_at_the_address_is_refused),
        cmocka_unit_test(a_node_that_dials_itself_finds_out),
        cmocka_unit_test(a_waiting_node_learns_the_cluster),
        cmocka_unit_test(what_was_recorded_opens_nothing),
        cmocka_unit_test(garbage_is_closed_at_once),
        cmocka_unit_test(another_protocol_is_told_so),
        cmocka_unit_test(a_slow_handshake_is_given_up),
        cmocka_unit_test(strangers_do_not_keep_peers_out),
        cmocka_unit_test(a_turned_byte_ends_the_connection),
    };
    signal(SIGPIPE, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
