/* Several edge loops on their own threads against one broker: pushes, long polls, steps, reads that wait and cancels at random. Every call is done exactly
 * once on its own thread, no message is delivered twice, nothing hangs. Meant to be run under the thread sanitizer too. */
#include <pthread.h>
#include <stdatomic.h>

#include "test_broker_rig.h"

enum { EDGES = 3, OPEN_CALLS = 64, CALLS_AN_EDGE = 4000, MESSAGES_MAX = EDGES * CALLS_AN_EDGE };

struct edge;

struct job {
    struct call call;
    struct edge *edge;
    struct buf command;
    bool open, cancelled;
    uint32_t runs; /* of a read: the group thread's */
};

struct edge {
    struct loop *loop, *group_loop;
    struct loop_hook hook;
    pthread_t thread;
    struct broker *broker;
    uint32_t number, submitted, done, open;
    uint64_t random;
    uint32_t ok, empty, cancelled, pushed, delivered, chained, waited;
    struct job jobs[OPEN_CALLS];
};

static atomic_uint next_message;
static atomic_uchar seen[MESSAGES_MAX];

static uint32_t dice(struct edge *e, uint32_t sides)
{
    e->random = e->random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(e->random >> 33) % sides;
}

static void messages_note(struct job *j)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < j->call.result.pop.count; i++) {
        const struct claim *c = &j->call.result.pop.claims[i];
        for (uint32_t k = 0; k < c->piece_count; k++, at++) {
            for (uint32_t m = 0; m < c->pieces[k].count; m++) {
                struct push_item item;
                push_group_item(&j->call.pieces[at].group, c->pieces[k].item0 + m, &item);
                char text[16] = {0};
                must(item.payload.len < sizeof text);
                memcpy(text, item.payload.at, item.payload.len);
                uint32_t id = (uint32_t)atoi(text);
                must(id < MESSAGES_MAX);
                must(atomic_fetch_add(&seen[id], 1) == 0); /* delivered and committed: never again */
                j->edge->delivered++;
            }
        }
    }
}

static void job_done(struct call *c)
{
    struct job *j = outer(c, struct job, call);
    struct edge *e = j->edge;
    must(j->open && loop_is_mine(e->loop));
    j->open = false;
    e->open--;
    e->done++;
    switch (c->outcome) {
    case CALL_OK:
        e->ok++;
        if (c->kind == CALL_READ) {
            e->waited += j->runs > 1;
            break;
        }
        if (c->kind == CALL_WRITE && !c->has_next) e->pushed++;
        if (c->result.kind == COMMAND_POP) messages_note(j);
        if (c->has_next) e->chained++;
        break;
    case CALL_EMPTY:
        must(!c->has_next || c->step != NULL);
        e->empty++;
        break;
    case CALL_CANCELLED:
        must(j->cancelled);
        e->cancelled++;
        break;
    default:
        must(false);
    }
    broker_pieces_release(e->broker, c);
    arena_free(&c->arena);
    buf_free(&j->command);
}

static void read_nothing(struct call *c, struct engine *e, struct engine_now now)
{
    must(now.log_us > 0);
    buf_decimal(&c->answer, engine_applied_index(e));
}

static const char *const lanes[] = {"a", "b", "c", "d"};

static void read_waiting(struct call *c, struct engine *e, struct engine_now now)
{
    struct job *j = outer(c, struct job, call);
    read_nothing(c, e, now);
    if (++j->runs > 1 || c->late) return;
    c->waits = true;
    for (int i = 0; i < 2; i++) broker_watch(c->broker, c, rig_tenant, slice_of("q"), slice_of(lanes[i]));
}

static void message_encode(struct job *j)
{
    char text[16];
    struct push_writer w;
    struct push_item item = {
        .payload = slice_make(text, (size_t)snprintf(text, sizeof text, "%u", atomic_fetch_add(&next_message, 1)))};
    push_begin(&w, &j->command, rig_tenant);
    push_group_begin(&w, slice_of("q"), slice_of(lanes[dice(j->edge, 4)]), 1);
    push_item_add(&w, &item);
    push_group_end(&w);
    push_end(&w);
}

static void job_push(struct job *j)
{
    message_encode(j);
    j->call.kind = CALL_WRITE;
    j->call.command = buf_view(&j->command);
    j->call.grows = true;
}

static void pop_make(struct job *j)
{
    bool pinned = dice(j->edge, 4) == 0;
    j->call.wait = dice(j->edge, 3) > 0;
    j->call.pop = (struct pop_command){.tenant = rig_tenant,
                                       .lease_id = uuid_mint(clock_wall_us()),
                                       .scope = pinned ? POP_PARTITION : POP_QUEUE,
                                       .auto_ack = 1,
                                       .batch = 1 + dice(j->edge, 4),
                                       .partitions = 1 + dice(j->edge, 3),
                                       .group = slice_of(QUEUE_MODE_GROUP),
                                       .queue = slice_of("q"),
                                       .partition = slice_of(pinned ? "a" : ""),
                                       .name_space = slice_of(""),
                                       .task = slice_of("")};
}

static void job_pop(struct job *j)
{
    pop_make(j);
    j->call.kind = CALL_POP;
    if (j->call.wait) j->call.deadline_us = clock_mono_us() + 1000 + dice(j->edge, 200000);
}

static void job_step(struct job *j)
{
    size_t at = step_begin(&j->command);
    message_encode(j);
    pop_make(j);
    pop_encode(&j->command, &j->call.pop);
    step_end(&j->command, at);
    j->call.kind = CALL_WRITE;
    j->call.command = buf_view(&j->command);
    j->call.has_next = j->call.grows = true;
    j->call.next_wait_us = 1000 + dice(j->edge, 200000);
}

static void job_start(struct edge *e, struct job *j)
{
    memset(&j->call, 0, sizeof j->call);
    j->edge = e;
    j->cancelled = false;
    j->runs = 0;
    j->call.home = e->loop;
    j->call.done = job_done;
    j->call.deadline_us = clock_mono_us() + 30000000;
    arena_init(&j->call.arena);
    uint32_t what = dice(e, 24);
    if (what < 10) {
        job_push(j);
    } else if (what < 18) {
        job_pop(j);
    } else if (what < 22) {
        job_step(j);
    } else if (what < 23) {
        j->call.kind = CALL_READ;
        j->call.read = read_waiting;
        j->call.deadline_us = clock_mono_us() + 1000 + dice(e, 200000);
    } else {
        j->call.kind = CALL_READ;
        j->call.read = read_nothing;
    }
    j->open = true;
    e->open++;
    e->submitted++;
    broker_submit(e->broker, &j->call);
}

static bool edge_hook(struct loop_hook *h)
{
    struct edge *e = outer(h, struct edge, hook);
    for (int i = 0; i < OPEN_CALLS; i++) {
        struct job *j = &e->jobs[i];
        if (!j->open) {
            buf_free(&j->call.answer);
            if (e->submitted < CALLS_AN_EDGE) job_start(e, j);
        }
        if (j->open && !j->cancelled && dice(e, 64) == 0) {
            j->cancelled = true;
            broker_cancel(e->broker, &j->call);
        }
    }
    if (e->open == 0 && e->submitted == CALLS_AN_EDGE) loop_stop(e->loop);
    return false;
}

static atomic_uint edges_running;

static void *edge_main(void *arg)
{
    struct edge *e = arg;
    loop_run(e->loop);
    atomic_fetch_sub(&edges_running, 1);
    loop_wake(e->group_loop);
    return NULL;
}

static bool edges_are_done(void *arg)
{
    (void)arg;
    return atomic_load(&edges_running) == 0;
}

static void test_edges_on_their_own_threads(void **state)
{
    (void)state;
    static struct edge edges[EDGES];
    struct rig r;
    rig_start(&r);
    push(&r, "q", "a", "0");
    atomic_store(&next_message, 1);
    atomic_store(&edges_running, EDGES);
    for (uint32_t i = 0; i < EDGES; i++) {
        struct edge *e = &edges[i];
        e->loop = loop_new();
        must(e->loop != NULL);
        e->broker = r.broker;
        e->group_loop = r.loop;
        e->number = i;
        e->random = i * 7919 + 1;
        e->hook.run = edge_hook;
        loop_hook_add(e->loop, &e->hook);
        assert_int_equal(pthread_create(&e->thread, NULL, edge_main, e), 0);
    }
    assert_true(rig_run(&r, edges_are_done, NULL, 120000));
    uint32_t pushed = 0, delivered = 0, cancelled = 0, chained = 0, waited = 0;
    for (uint32_t i = 0; i < EDGES; i++) {
        pthread_join(edges[i].thread, NULL);
        assert_int_equal(edges[i].done, CALLS_AN_EDGE);
        pushed += edges[i].pushed;
        delivered += edges[i].delivered;
        cancelled += edges[i].cancelled;
        chained += edges[i].chained;
        waited += edges[i].waited;
        loop_free(edges[i].loop);
    }
    assert_true(pushed > 1000 && delivered > 100 && cancelled > 50 && chained > 50 && waited > 10);
    struct rig_numbers n = rig_numbers(&r);
    assert_int_equal(n.metrics.parked, 0);
    assert_int_equal(n.metrics.reads_waiting, 0);
    assert_int_equal(n.metrics.in_flight_entries, 0);
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_edges_on_their_own_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
