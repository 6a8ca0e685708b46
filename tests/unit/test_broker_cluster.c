/* Three brokers with nets of their own on 127.0.0.1, each on a thread; the test is the client. What any node is asked, wherever the leader
 * is, and what becomes of calls when it goes. */
#include "test_broker_rig.h"

#include <pthread.h>

enum { NODES = 3, SPREAD = 40 };

struct member {
    struct loop *loop;
    struct net *net;
    struct broker *broker;
    pthread_t thread;
    uint16_t port;
    uint64_t id;
    char dir[160];
    struct trio *trio;
    uint32_t orphans;
};

struct trio {
    struct rig rigs[NODES]; /* one client a node, all on the test's loop */
    struct member members[NODES];
    struct loop *loop;
    char dir[128];
    struct config config;
};

/* ---- a member ----------------------------------------------------------------------------------------------------- */

struct order {
    struct loop_task task;
    struct member *m;
    void (*run)(struct member *m);
    atomic_bool done;
};

static void order_run(struct loop_task *t)
{
    struct order *o = outer(t, struct order, task);
    o->run(o->m);
    atomic_store(&o->done, true);
}

/* On the member's own thread. */
static void member_do(struct member *m, void (*run)(struct member *m))
{
    struct order o = {.task.run = order_run, .m = m, .run = run};
    loop_post(m->loop, &o.task);
    while (!atomic_load(&o.done)) usleep(200);
}

static const char *everybody(void *ctx, const struct net_self *peer)
{
    (void)ctx, (void)peer;
    return NULL;
}

static void unexpected_refusal(void *ctx, uint64_t peer, const char *why)
{
    (void)ctx;
    print_message("node %llu refuses: %s\n", (unsigned long long)peer, why);
}

static void peers_set(struct member *m)
{
    for (int i = 0; i < NODES; i++) {
        struct member *other = &m->trio->members[i];
        if (other != m && other->port != 0) net_peer_set(m->net, other->id, "127.0.0.1", other->port);
    }
}

static void peers_remove(struct member *m)
{
    for (int i = 0; i < NODES; i++) {
        if (&m->trio->members[i] != m) net_peer_remove(m->net, m->trio->members[i].id);
    }
}

static void again(void *ctx)
{
    (void)ctx;
    must(false); /* nobody falls so far behind here */
}

static void *member_thread(void *ctx)
{
    loop_run(((struct member *)ctx)->loop);
    return NULL;
}

static void member_open(struct member *m)
{
    struct trio *t = m->trio;
    struct buf error = {0};
    int code = 0;
    m->loop = loop_new();
    must(m->loop != NULL);
    struct net_options no = {.loop = m->loop,
                             .self = {.cluster = {{7}}, .node = m->id, .disk = {{(uint8_t)m->id}}, .starts = 1, .version = 1},
                             .secret = "a secret of the test",
                             .listen_host = "127.0.0.1",
                             .listen_port = m->port,
                             .meet = everybody,
                             .refused = unexpected_refusal};
    m->net = net_open(&no, &error);
    if (m->net == NULL) print_message("%.*s\n", (int)error.len, error.at);
    must(m->net != NULL);
    m->port = net_port(m->net);
    struct replica_member members[NODES] = {0};
    for (int i = 0; i < NODES; i++) {
        members[i].id = (uint64_t)i + 1;
        snprintf(members[i].address, sizeof members[i].address, "node-%d", i + 1);
    }
    struct broker_place place = {.dir = m->dir,
                                 .net = m->net,
                                 .cluster = {{7}},
                                 .node = m->id,
                                 .members = members,
                                 .member_count = NODES,
                                 .again = again};
    m->broker = broker_open(&t->config, &place, m->loop, &code, &error);
    if (m->broker == NULL) print_message("%.*s\n", (int)error.len, error.at);
    must(m->broker != NULL);
    buf_free(&error);
    t->rigs[m->id - 1].broker = m->broker;
    must(pthread_create(&m->thread, NULL, member_thread, m) == 0);
}

static void loop_end(struct member *m)
{
    loop_stop(m->loop);
}

static void member_free(struct member *m)
{
    pthread_join(m->thread, NULL);
    broker_close(m->broker);
    net_close(m->net);
    loop_free(m->loop);
    m->broker = NULL;
}

/* Without any goodbye; none of its calls may be open. */
static void member_crash(struct member *m)
{
    member_do(m, loop_end);
    member_free(m);
}

static void member_stopped(void *ctx)
{
    struct member *m = ctx;
    loop_stop(m->loop);
}

static void member_stop_begin(struct member *m)
{
    broker_stop(m->broker, member_stopped, m);
}

static void member_stop(struct member *m)
{
    member_do(m, member_stop_begin);
    member_free(m);
}

/* ---- the three ---------------------------------------------------------------------------------------------------- */

static int leader_now(struct trio *t)
{
    for (int i = 0; i < NODES; i++) {
        struct broker_health h;
        if (t->members[i].broker == NULL) continue;
        broker_health(t->members[i].broker, &h);
        if (h.leader && h.ready) return i;
    }
    return -1;
}

static int leader_wait(struct trio *t)
{
    for (int i = 0; i < 4000; i++) {
        int at = leader_now(t);
        if (at >= 0) return at;
        usleep(5000);
    }
    fail_msg("no leader in 20 s");
    return -1;
}

static struct rig *leader(struct trio *t)
{
    return &t->rigs[leader_wait(t)];
}

/* A node that follows: the n-th. */
static struct rig *follower(struct trio *t, int n)
{
    int at = leader_wait(t);
    for (int i = 1; i < NODES; i++) {
        int k = (at + i) % NODES;
        if (t->members[k].broker != NULL && n-- == 0) return &t->rigs[k];
    }
    fail();
    return NULL;
}

static int setup(void **state)
{
    struct trio *t = calloc(1, sizeof *t);
    must(t != NULL);
    const char *base = getenv("TMPDIR");
    struct buf error = {0};
    snprintf(t->dir, sizeof t->dir, "%s/queen-cluster-XXXXXX", base == NULL ? "/tmp" : base);
    must(mkdtemp(t->dir) != NULL);
    must(config_read(&t->config, 0, NULL, &error));
    t->config.segment_bytes = 1 << 20;
    t->config.disk_high_pct = 100;
    t->config.disk_low_pct = 99;
    t->config.election_ms = 300;
    t->config.heartbeat_ms = 50;
    t->config.leader_wait_ms = 2000;
    logger_init(LOGGER_ERROR, false);
    t->loop = loop_new();
    for (int i = 0; i < NODES; i++) {
        t->rigs[i].loop = t->loop;
        t->rigs[i].config = t->config;
        t->rigs[i].hook.run = rig_hook_run;
        loop_hook_add(t->loop, &t->rigs[i].hook);
        t->members[i].trio = t;
        t->members[i].id = (uint64_t)i + 1;
        snprintf(t->members[i].dir, sizeof t->members[i].dir, "%s/node-%d", t->dir, i + 1);
    }
    for (int i = 0; i < NODES; i++) member_open(&t->members[i]);
    for (int i = 0; i < NODES; i++) member_do(&t->members[i], peers_set);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct trio *t = *state;
    char command[256];
    for (int i = 0; i < NODES; i++) {
        if (t->members[i].broker != NULL) member_stop(&t->members[i]);
    }
    loop_free(t->loop);
    snprintf(command, sizeof command, "rm -rf '%s'", t->dir);
    must(system(command) == 0);
    free(t);
    return 0;
}

static struct shot *push_id_start(struct rig *r, const char *lane, const char *id, const char *payload)
{
    struct shot *s = shot_new(r, CALL_WRITE);
    struct push_writer w;
    struct push_item item = {.flags = ITEM_TRANSACTION, .transaction = slice_of(id), .payload = slice_of(payload)};
    push_begin(&w, &s->command, rig_tenant);
    push_group_begin(&w, slice_of("q"), slice_of(lane), 1);
    push_item_add(&w, &item);
    push_group_end(&w);
    push_end(&w);
    shot_write(s, true);
    return s;
}

static struct push_outcome push_id(struct rig *r, const char *lane, const char *id)
{
    struct shot *s = push_id_start(r, lane, id, "1");
    assert_int_equal(shot_wait(s), CALL_OK);
    struct push_outcome out = s->call.result.push.items[0];
    shot_free(s);
    return out;
}

struct total {
    uint64_t messages;
    bool found;
};

static void total_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct total *t = c->read_ctx;
    struct queue_view v;
    (void)now;
    t->found = engine_queue_get(e, rig_tenant, slice_of("q"), &v);
    t->messages = t->found ? v.pushed_total : 0;
}

static uint64_t total(struct rig *r)
{
    struct total t = {0};
    struct shot *s = shot_new(r, CALL_READ);
    s->call.read = total_read;
    s->call.read_ctx = &t;
    broker_submit(r->broker, &s->call);
    assert_int_equal(shot_wait(s), CALL_OK);
    shot_free(s);
    return t.messages;
}

/* ---- any node ------------------------------------------------------------------------------------------------------ */

static void test_any_node_answers_a_push_and_its_repeat(void **state)
{
    struct trio *t = *state;
    struct push_outcome first = push_id(follower(t, 0), "a", "one");
    assert_int_equal(first.status, PUSH_QUEUED);
    for (int i = 0; i < NODES; i++) {
        struct push_outcome again_ = push_id(&t->rigs[i], "a", "one");
        assert_int_equal(again_.status, PUSH_DUPLICATE);
        assert_int_equal(again_.offset, first.offset);
        assert_true(uuid_equal(again_.id, first.id));
    }
}

static void test_a_read_on_any_node_sees_what_was_answered(void **state)
{
    struct trio *t = *state;
    char id[32];
    for (int i = 0; i < SPREAD; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        push_id(&t->rigs[i % NODES], "a", id);
        assert_int_equal(total(&t->rigs[(i + 1) % NODES]), i + 1);
        assert_int_equal(total(&t->rigs[(i + 2) % NODES]), i + 1);
    }
}

static void test_a_poll_at_one_follower_gets_what_another_pushes(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "other", "x");
    struct shot *waiting =
        pop_start(follower(t, 0), (struct pop_wish){.queue = "q", .lane = "a", .group = "g", .wait_ms = 20000});
    rig_pass(waiting->rig, 100);
    assert_false(waiting->done);
    struct shot *s = push_start(follower(t, 1), "q", "a", "\"hello\"");
    expect_payload(waiting, "\"hello\"");
    shot_wait(s);
    ack(follower(t, 1), waiting);
    shot_free(waiting);
    shot_free(s);
    struct shot *none = pop_start(leader(t), (struct pop_wish){.queue = "q", .lane = "a", .group = "g"});
    expect_empty(none);
}

static void test_a_poll_ends_empty_in_its_time(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "other", "x");
    int64_t began_us = clock_mono_us();
    expect_empty(pop_start(follower(t, 0), (struct pop_wish){.queue = "q", .lane = "a", .group = "g", .wait_ms = 400}));
    int64_t took_us = clock_mono_us() - began_us;
    assert_in_range(took_us, 250000, 3000000);
}

static void orphans_count(struct member *m)
{
    m->orphans = m->broker->cluster.orphans.count;
}

/* What is remembered of callers that left goes when the leader is done with them, not with the leader. */
static void orphans_go(struct trio *t)
{
    for (int i = 0; i < NODES; i++) {
        struct member *m = &t->members[i];
        int tries = 0;
        for (member_do(m, orphans_count); m->orphans > 0 && tries < 100; tries++) {
            usleep(20000);
            member_do(m, orphans_count);
        }
        assert_int_equal(m->orphans, 0);
    }
}

static void test_a_caller_that_left_leaves_no_lease(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "other", "x");
    for (int i = 0; i < SPREAD; i++) {
        char lane[32], id[32];
        snprintf(lane, sizeof lane, "lane-%d", i);
        snprintf(id, sizeof id, "id-%d", i);
        struct rig *f = follower(t, i % 2);
        struct shot *leaves =
            pop_start(f, (struct pop_wish){.queue = "q", .lane = lane, .group = "g", .wait_ms = 20000, .lease_ms = 60000});
        if (i % 4 != 0) rig_pass(f, i % 4);
        struct shot *push_ = push_id_start(follower(t, (i + 1) % 2), lane, id, "1");
        if (i % 3 == 0) rig_pass(f, i % 3);
        broker_cancel(f->broker, &leaves->call);
        enum call_outcome outcome = shot_wait(leaves);
        assert_true(outcome == CALL_CANCELLED || outcome == CALL_OK);
        bool got = outcome == CALL_OK && leaves->call.result.pop.messages > 0;
        shot_wait(push_);
        if (!got) {
            struct shot *next =
                pop_start(leader(t), (struct pop_wish){.queue = "q", .lane = lane, .group = "g", .wait_ms = 10000});
            expect_payload(next, "1");
            shot_free(next);
        }
        shot_free(leaves);
        shot_free(push_);
    }
    orphans_go(t);
}

/* ---- the leader goes ------------------------------------------------------------------------------------------------ */

/* Every push of the lot is answered and stored once, and the digests of the logs agree. */
static void lot_settle(struct trio *t, struct shot **lot, int count, uint64_t before)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(shot_wait(lot[i]), CALL_OK);
        assert_int_equal(lot[i]->call.result.push.items[0].status, PUSH_QUEUED);
        shot_free(lot[i]);
    }
    assert_int_equal(total(follower(t, 0)), before + (uint64_t)count);
}

static void leader_ends(struct trio *t, void (*end)(struct member *m))
{
    struct shot *lot[SPREAD];
    char id[32];
    push_id(leader(t), "a", "first");
    int gone = leader_wait(t);
    struct rig *f[2] = {follower(t, 0), follower(t, 1)};
    for (int i = 0; i < SPREAD; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        lot[i] = push_id_start(f[i % 2], "a", id, "1");
        if (i == SPREAD / 2) end(&t->members[gone]);
    }
    lot_settle(t, lot, SPREAD, 1);
}

static void test_calls_in_flight_at_a_follower_survive_the_leaders_end(void **state)
{
    leader_ends(*state, member_crash);
}

static void test_a_parked_poll_survives_the_leaders_end(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "other", "x");
    int gone = leader_wait(t);
    struct rig *f = follower(t, 0);
    struct shot *waiting = pop_start(f, (struct pop_wish){.queue = "q", .lane = "a", .group = "g", .wait_ms = 20000});
    rig_pass(f, 200);
    member_crash(&t->members[gone]);
    struct shot *s = push_id_start(follower(t, 0), "a", "one", "\"late\"");
    expect_payload(waiting, "\"late\"");
    shot_wait(s);
    shot_free(s);
    shot_free(waiting);
}

static void test_a_leader_that_was_cut_off_answers_its_calls_after_the_cut(void **state)
{
    struct trio *t = *state;
    struct shot *lot[SPREAD];
    char id[32];
    push_id(leader(t), "a", "first");
    int cut = leader_wait(t);
    struct rig *old = &t->rigs[cut];
    for (int i = 0; i < SPREAD / 2; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        lot[i] = push_id_start(old, "a", id, "1");
    }
    member_do(&t->members[cut], peers_remove);
    for (int i = SPREAD / 2; i < SPREAD; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        lot[i] = push_id_start(old, "a", id, "1");
    }
    rig_pass(old, 1500); /* the others have a leader by now */
    assert_false(lot[SPREAD - 1]->done);
    member_do(&t->members[cut], peers_set);
    lot_settle(t, lot, SPREAD, 1);
}

static void test_a_cut_off_leader_confirms_no_read(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "a", "first");
    int cut = leader_wait(t);
    member_do(&t->members[cut], peers_remove);
    struct total sum = {0};
    struct shot *s = shot_new(&t->rigs[cut], CALL_READ);
    s->call.read = total_read;
    s->call.read_ctx = &sum;
    s->call.deadline_us = clock_mono_us() + 1500000;
    broker_submit(s->rig->broker, &s->call);
    enum call_outcome outcome = shot_wait(s);
    assert_true(outcome == CALL_TIMEOUT || outcome == CALL_NO_LEADER);
    shot_free(s);
    member_do(&t->members[cut], peers_set);
}

static void test_a_broken_connection_under_the_same_leader_loses_nothing(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "a", "first");
    struct rig *f = follower(t, 0);
    struct member *m = &t->members[f - t->rigs];
    uint64_t before = 1;
    for (int round = 0; round < 5; round++) {
        struct shot *lot[SPREAD];
        char id[32];
        for (int i = 0; i < SPREAD; i++) {
            snprintf(id, sizeof id, "id-%d-%d", round, i);
            lot[i] = push_id_start(f, "a", id, "1");
            if (i == SPREAD / 2) member_do(m, peers_remove);
        }
        member_do(m, peers_set);
        lot_settle(t, lot, SPREAD, before);
        before += SPREAD;
    }
}

static void test_a_leader_that_stops_hands_over_first(void **state)
{
    leader_ends(*state, member_stop);
}

static void test_what_was_proposed_without_a_majority_is_told_to_be_unknown(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "a", "first");
    int at = leader_wait(t);
    for (int i = 0; i < NODES; i++) {
        if (i != at) member_crash(&t->members[i]);
    }
    int64_t began_us = clock_mono_us();
    struct shot *s = push_id_start(&t->rigs[at], "a", "proposed", "1");
    assert_int_equal(shot_wait(s), CALL_UNKNOWN);
    int64_t took_us = clock_mono_us() - began_us;
    assert_in_range(took_us, 1900000, 4500000);
    shot_free(s);
}

static void test_without_a_majority_calls_are_held_and_then_told(void **state)
{
    struct trio *t = *state;
    push_id(leader(t), "a", "first");
    int at = leader_wait(t);
    struct rig *f = follower(t, 0);
    for (int i = 0; i < NODES; i++) {
        if (i == at || &t->rigs[i] == f) continue;
        member_crash(&t->members[i]);
    }
    member_crash(&t->members[at]);
    rig_pass(f, 1500);
    int64_t began_us = clock_mono_us();
    struct shot *s = push_id_start(f, "a", "held", "1");
    assert_int_equal(shot_wait(s), CALL_NO_LEADER);
    int64_t took_us = clock_mono_us() - began_us;
    assert_in_range(took_us, 1900000, 3500000);
    shot_free(s);
}

int main(void)
{
#define with(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        with(test_any_node_answers_a_push_and_its_repeat),
        with(test_a_read_on_any_node_sees_what_was_answered),
        with(test_a_poll_at_one_follower_gets_what_another_pushes),
        with(test_a_poll_ends_empty_in_its_time),
        with(test_a_caller_that_left_leaves_no_lease),
        with(test_calls_in_flight_at_a_follower_survive_the_leaders_end),
        with(test_a_parked_poll_survives_the_leaders_end),
        with(test_a_leader_that_was_cut_off_answers_its_calls_after_the_cut),
        with(test_a_cut_off_leader_confirms_no_read),
        with(test_a_broken_connection_under_the_same_leader_loses_nothing),
        with(test_a_leader_that_stops_hands_over_first),
        with(test_what_was_proposed_without_a_majority_is_told_to_be_unknown),
        with(test_without_a_majority_calls_are_held_and_then_told),
    };
#undef with
    return cmocka_run_group_tests(tests, NULL, NULL);
}
