/* Names, times, routes and rendered answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>
#include <time.h>

#include "base/isotime.h"
#include "engine/ids.h"
#include "http/json.h"
#include "http/metrics.h"
#include "http/name.h"
#include "http/options.h"
#include "http/render.h"
#include "http/route.h"

static void test_percent_decoding(void **state)
{
    (void)state;
    static const struct {
        const char *raw;
        bool plus;
        const char *wanted;
    } cases[] = {
        {"plain", false, "plain"},
        {"a%2Fb", false, "a/b"},
        {"a%2fb", false, "a/b"},
        {"a+b", false, "a+b"},
        {"a+b", true, "a b"},
        {"%25%20%3F%23", false, "% ?#"},
        {"caff%C3%A8", false, "caff\xc3\xa8"},
        {"caff\xc3\xa8", false, "caff\xc3\xa8"},
        {"%", false, NULL},
        {"%2", false, NULL},
        {"%zz", false, NULL},
        {"%C3", false, NULL},
        {"\xff", false, NULL},
        {"%ED%A0%80", false, NULL},
        {"", false, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena arena;
        struct slice out;
        arena_init(&arena);
        bool ok = name_decode(slice_of(cases[i].raw), cases[i].plus, &arena, &out);
        assert_int_equal(ok, cases[i].wanted != NULL);
        if (ok) assert_true(slice_is(out, cases[i].wanted));
        arena_free(&arena);
    }
}

static void test_name_budget_is_a_sum(void **state)
{
    (void)state;
    char text[500];
    memset(text, 'x', sizeof text);
    struct slice none = slice_make("", 0);
    assert_true(name_fits(slice_make(text, 411), none, none));
    assert_false(name_fits(slice_make(text, 412), none, none));
    assert_true(name_fits(slice_make(text, 11), slice_make(text, 400), slice_make(text, 399)));
    assert_false(name_fits(slice_make(text, 11), slice_make(text, 400), slice_make(text, 401)));
    assert_false(name_fits(slice_make(text, SIZE_MAX), slice_make(text, 40), none));
}

static void test_iso_times(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t us;
    } good[] = {
        {"1970-01-01", 0},
        {"2031-02-03T04:05:06.789Z", INT64_C(1927857906789000)},
        {"2031-02-03T04:05:06.789012Z", INT64_C(1927857906789000)},
        {"2031-02-03T04:05:06", INT64_C(1927857906000000)},
        {"2031-02-03T04:05", INT64_C(1927857900000000)},
        {"2031-02-03", INT64_C(1927843200000000)},
        {"2031-02-03T05:05:06+01:00", INT64_C(1927857906000000)},
        {"2031-02-03T05:05:06+0100", INT64_C(1927857906000000)},
        {"2031-02-02T23:05:06-05", INT64_C(1927857906000000)},
        {"2000-02-29T00:00Z", INT64_C(951782400000000)},
        {"2031-02-03T04:05:06.7Z", INT64_C(1927857906700000)},
    };
    static const char *const bad[] = {"",
                                      "now",
                                      "2031",
                                      "2031-02",
                                      "2031-13-01",
                                      "2031-02-30",
                                      "2100-02-29",
                                      "2031-02-03T",
                                      "2031-02-03T25:00",
                                      "2031-02-03T04:60",
                                      "2031-02-03T04:05:06.",
                                      "2031-02-03T04:05:06Zx",
                                      "1969-12-31",
                                      "31-02-03",
                                      "2031-2-3",
                                      "1927857906"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t us = -1;
        assert_true(isotime_parse(slice_of(good[i].text), &us));
        if (us != good[i].us) fail_msg("%s: %lld", good[i].text, (long long)us);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t us;
        if (isotime_parse(slice_of(bad[i]), &us)) fail_msg("accepted: %s", bad[i]);
    }
}

/* Against the C library, over the whole range, month ends and leap days among them. */
static void test_rendered_times_are_those_of_gmtime(void **state)
{
    (void)state;
    struct buf out = {0};
    for (int64_t day = 0; day < 60000; day += 1 + day / 400) {
        int64_t us = (day * 86400 + (day * 7919) % 86400) * 1000000 + (day * 104729) % 1000000;
        time_t seconds = (time_t)(us / 1000000);
        struct tm tm;
        char wanted[128], head[32];
        gmtime_r(&seconds, &tm);
        strftime(head, sizeof head, "%Y-%m-%dT%H:%M:%S", &tm);
        snprintf(wanted, sizeof wanted, "\"%s.%06dZ\"\"%s.%03dZ\"", head, (int)(us % 1000000), head,
                 (int)(us % 1000000 / 1000));
        buf_clear(&out);
        render_time_us(&out, us);
        render_time_ms(&out, us);
        assert_true(slice_is(buf_view(&out), wanted));
        int64_t back;
        assert_true(isotime_parse(slice_make(out.at + 1, TIME_US_BYTES), &back) && back == us / 1000 * 1000);
    }
    buf_free(&out);
}

static void test_times_in_the_spelling_of_kv(void **state)
{
    (void)state;
    static const struct {
        int64_t us;
        const char *text;
    } cases[] = {
        {0, "\"1970-01-01T00:00:00+00:00\""},
        {INT64_C(1927857906000000), "\"2031-02-03T04:05:06+00:00\""},
        {INT64_C(1927857906700000), "\"2031-02-03T04:05:06.7+00:00\""},
        {INT64_C(1927857906789012), "\"2031-02-03T04:05:06.789012+00:00\""},
        {INT64_C(1927857906000010), "\"2031-02-03T04:05:06.00001+00:00\""},
        {INT64_C(951868799999999), "\"2000-02-29T23:59:59.999999+00:00\""},
        {INT64_MAX, "\"9999-12-31T23:59:59.999999+00:00\""},
        {-1, "\"1970-01-01T00:00:00+00:00\""},
    };
    struct buf out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        buf_clear(&out);
        render_time_kv(&out, cases[i].us);
        if (!slice_is(buf_view(&out), cases[i].text)) fail_msg("%.*s", (int)out.len, out.at);
        assert_true(out.len <= ISOTIME_KV_BYTES_MAX + 2);
    }
    buf_free(&out);
}

static void test_rendered_texts_read_back(void **state)
{
    (void)state;
    struct buf out = {0};
    struct arena arena;
    arena_init(&arena);
    for (size_t len = 0; len < 80; len++) {
        for (int c = 0; c < 128; c++) {
            char text[80];
            memset(text, 'a', sizeof text);
            if (len > 0) text[(size_t)c * 31 % len] = (char)c;
            struct json j;
            struct slice back;
            buf_clear(&out);
            render_text(&out, slice_make(text, len));
            memset(buf_reserve(&out, JSON_PAD), 0, JSON_PAD);
            json_open(&j, buf_view(&out), &arena);
            assert_true(json_string(&j, &back) && json_end(&j));
            assert_true(slice_equal(back, slice_make(text, len)));
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
    buf_free(&out);
}

/* A pop answer of two claims, from push groups as the log keeps them. */
static void test_pop_answer(void **state)
{
    (void)state;
    struct buf command = {0}, out = {0};
    struct push_writer w;
    struct uuid tenant = {{0}}, trace = {{1}}, lease = {{2}};
    push_begin(&w, &command, tenant);
    push_group_begin(&w, slice_of("q"), slice_of("p\"1"), 2);
    push_item_add(&w, &(struct push_item){.flags = ITEM_TRANSACTION | ITEM_TRACE,
                                          .transaction = slice_of("t\n"),
                                          .trace = trace,
                                          .payload = slice_of("{ \"a\":1 }")});
    push_item_add(&w, &(struct push_item){.payload = slice_of("2")});
    push_group_end(&w);
    push_group_begin(&w, slice_of("q"), slice_of("p2"), 1);
    push_item_add(&w, &(struct push_item){.flags = ITEM_SUBJECT, .subject = slice_of("me")});
    push_group_end(&w);
    push_end(&w);
    struct slice rest = buf_view(&command);
    struct command c;
    struct push_command p;
    assert_true(command_next(&rest, &c) && push_decode(&c, &p));
    struct call_piece pieces[2] = {0};
    assert_true(push_group_next(&p.groups, &pieces[0].group) && push_group_next(&p.groups, &pieces[1].group));
    struct delivery_piece first = {.item0 = 0, .count = 2, .first_offset = 7, .created_us = INT64_C(1927857906789012)};
    struct delivery_piece second = {.item0 = 0, .count = 1, .first_offset = 0, .created_us = INT64_C(1927857906789999)};
    struct claim claims[2] = {{.partition = 17,
                               .attempt = 1,
                               .partition_name = slice_of("p\"1"),
                               .pieces = &first,
                               .piece_count = 1,
                               .message_count = 2},
                              {.partition = 18,
                               .attempt = 3,
                               .partition_name = slice_of("p2"),
                               .pieces = &second,
                               .piece_count = 1,
                               .message_count = 1}};
    struct engine_result result = {.kind = COMMAND_POP};
    result.pop.claims = claims;
    result.pop.count = 2;
    result.pop.messages = 3;
    struct pop_answer a = {
        .result = &result, .pieces = pieces, .id_seed = 5, .queue = slice_of("q"), .group = slice_of("g"), .lease = lease};
    render_pop(&out, &a);
    char ids[3][UUID_TEXT], wanted[4096];
    uuid_text(message_id(5, 17, 7, first.created_us), ids[0]);
    uuid_text(message_id(5, 17, 8, first.created_us), ids[1]);
    uuid_text(message_id(5, 18, 0, second.created_us), ids[2]);
#define LEASE "02000000-0000-0000-0000-000000000000"
    snprintf(wanted, sizeof wanted,
             "{\"success\":true,\"queue\":\"q\",\"partition\":\"p\\\"1\",\"partitionId\":\"17\",\"leaseId\":\"" LEASE
             "\",\"consumerGroup\":\"g\",\"messages\":["
             "{\"id\":\"%.36s\",\"transactionId\":\"t\\n\",\"traceId\":\"01000000-0000-0000-0000-000000000000\",\"data\":{ "
             "\"a\":1 },\"producerSub\":null,"
             "\"createdAt\":\"2031-02-03T04:05:06.789Z\",\"partitionId\":\"17\",\"partition\":\"p\\\"1\",\"leaseId\":\"" LEASE
             "\",\"consumerGroup\":\"g\","
             "\"deliveryAttempt\":1,\"offset\":7},"
             "{\"id\":\"%.36s\",\"transactionId\":\"%.36s\",\"traceId\":null,\"data\":2,\"producerSub\":null,"
             "\"createdAt\":\"2031-02-03T04:05:06.789Z\",\"partitionId\":\"17\",\"partition\":\"p\\\"1\",\"leaseId\":\"" LEASE
             "\",\"consumerGroup\":\"g\","
             "\"deliveryAttempt\":1,\"offset\":8},"
             "{\"id\":\"%.36s\",\"transactionId\":\"%.36s\",\"traceId\":null,\"data\":null,\"producerSub\":\"me\","
             "\"createdAt\":\"2031-02-03T04:05:06.789Z\",\"partitionId\":\"18\",\"partition\":\"p2\",\"leaseId\":\"" LEASE
             "\",\"consumerGroup\":\"g\","
             "\"deliveryAttempt\":3,\"offset\":0}"
             "],\"partitionsClaimed\":2}",
             ids[0], ids[1], ids[1], ids[2], ids[2]);
    if (!slice_is(buf_view(&out), wanted)) fail_msg("\n%.*s\n%s", (int)out.len, out.at, wanted);
    buf_clear(&out);
    result.pop.count = 0;
    result.pop.conflates = true;
    a.auto_ack = a.autopilot = true;
    a.chosen_batch = 100;
    a.chosen_partitions = 4;
    render_pop(&out, &a);
    assert_true(slice_is(buf_view(&out),
                         "{\"success\":true,\"queue\":\"q\",\"partition\":\"\",\"partitionId\":\"\",\"leaseId\":\"\","
                         "\"consumerGroup\":\"g\",\"messages\":[],"
                         "\"partitionsClaimed\":0,\"conflation\":true,\"autopilot\":{\"partitions\":4,\"batch\":100}}"));
    buf_free(&command);
    buf_free(&out);
}

static void test_options_echo(void **state)
{
    (void)state;
    struct buf out = {0};
    struct queue_options o = {.numbers = {[OPTION_MAX_SIZE] = 7, [OPTION_DEAD_LETTER_QUEUE] = 1}, .sink_hold = slice_of("s")};
    options_render(&out, &o);
    buf_byte(&out, 0);
    unsigned keys = 0;
    for (const char *p = out.at; *p != 0; p++) keys += *p == ':';
    assert_int_equal(keys, 20);
    assert_non_null(strstr(out.at, "\"maxSize\":7,\"maxQueueSize\":7,"));
    assert_non_null(strstr(out.at, "\"deadLetterQueue\":true,"));
    assert_non_null(strstr(out.at, "\"retentionSinkHoldMaxSeconds\":604800,"));
    assert_non_null(strstr(out.at, "\"retentionSinkHold\":\"s\"}"));
    buf_free(&out);
}

static struct request *target(const char *method, const char *text)
{
    struct request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    arena_init(&r->call.arena);
    r->target = slice_of(text);
    route_find(r, method);
    return r;
}

static void target_drop(struct request *r)
{
    arena_free(&r->call.arena);
    buf_free(&r->out);
    free(r);
}

static void test_every_route_is_found(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < route_table_len; i++) {
        char path[128];
        size_t len = 0;
        for (const char *p = route_table[i].pattern; *p != 0; p++) {
            if (*p == ':')
                len += (size_t)sprintf(path + len, "a%%2Fb+%%20");
            else if (*p == '*')
                len += (size_t)sprintf(path + len, "c/%%2f%%0A");
            else
                path[len++] = *p;
        }
        path[len] = 0;
        struct request *r = target(route_table[i].method, path);
        assert_ptr_equal(r->route, &route_table[i]);
        assert_int_equal(route_table[i].id, i);
        if (strchr(route_table[i].pattern, ':') != NULL) assert_true(slice_is(r->params[0], "a/b+ "));
        if (strchr(route_table[i].pattern, '*') != NULL) assert_true(slice_is(r->params[1], "c//\n"));
        target_drop(r);
    }
}

static void test_paths_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *method, *target;
        uint32_t status;
    } cases[] = {
        {"GET", "/api/v1/none", 404},
        {"GET", "/", 404},
        {"GET", "/api/v1/push/", 404},
        {"POST", "/api/v1/pushx", 404},
        {"GET", "/api/v1/push", 405},
        {"POST", "/api/v1/pop", 405},
        {"HEAD", "/api/v1/pop", 405},
        {"get", "/health", 405},
        {"PUT", "/api/v1/resources/queues/q", 405},
        {"GET", "/api/v1/pop/queue/", 400},
        {"GET", "/api/v1/pop/queue/%zz", 400},
        {"GET", "/api/v1/pop/queue/%00", 400},
        {"GET", "/api/v1/pop/queue/%ff", 400},
        {"GET", "/api/v1/pop/queue/a%0Ab", 400},
        {"GET", "*", 400},
        {"GET", "http://x", 400},
        {"GET", "/health?a=%zz", 400},
        {"GET", "/health?a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a&a", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct request *r = target(cases[i].method, cases[i].target);
        if (r->status != cases[i].status || r->route != NULL)
            fail_msg("%s %s: %u", cases[i].method, cases[i].target, r->status);
        target_drop(r);
    }
    struct request *r = target("PATCH", "/api/v1/resources/queues/q");
    assert_string_equal(r->allow, "DELETE, GET, HEAD");
    target_drop(r);
    r = target("GET", "/api/v1/no%22ne");
    assert_true(
        slice_is(buf_view(&r->out), "{\"code\":\"no_such_route\",\"error\":\"not found\",\"path\":\"/api/v1/no\\\"ne\"}"));
    target_drop(r);
    r = target("HEAD", "http://h:1/health");
    assert_non_null(r->route);
    target_drop(r);
}

static void test_query_parameters_are_typed(void **state)
{
    (void)state;
    struct request *r = target("GET", "/health?a=1&a=-7&b=true&c=&d=x+y%26&e=9999999999999999999&f=TRUE&g&=h&i=+5");
    int64_t n = 3;
    bool given, flag = false;
    struct slice text = {0};
    assert_non_null(r->route);
    assert_true(query_int(r, "a", &n, &given) && given && n == -7);
    assert_true(query_int(r, "none", &n, &given) && !given && n == -7);
    assert_true(query_int(r, "c", &n, &given) && !given);
    assert_true(query_bool(r, "b", &flag, &given) && given && flag);
    assert_true(query_text(r, "d", &text) && slice_is(text, "x y&"));
    assert_false(query_text(r, "g", &text));
    assert_int_equal(r->status, 0);
    assert_false(query_int(r, "e", &n, &given));
    assert_int_equal(r->status, 400);
    assert_false(query_int(r, "d", &n, &given));
    assert_false(query_bool(r, "f", &flag, &given));
    target_drop(r);
}

static void test_latencies_fall_into_their_buckets(void **state)
{
    (void)state;
    struct edge_metrics *m = calloc(1, sizeof *m);
    assert_non_null(m);
    static const struct {
        int64_t us;
        uint32_t bucket;
    } cases[] = {{0, 0}, {1, 0}, {64, 0}, {65, 1}, {128, 1}, {129, 2}, {1000000, 14}, {INT64_MAX, METRICS_BUCKETS - 1},
                 {-5, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t before = counter_get(&m->routes[ROUTE_PUSH].bucket[cases[i].bucket]);
        metrics_count(m, ROUTE_PUSH, 201, cases[i].us);
        assert_int_equal(counter_get(&m->routes[ROUTE_PUSH].bucket[cases[i].bucket]), before + 1);
    }
    metrics_count(m, ROUTE_NONE, 999, 5);
    assert_int_equal(metrics_requests(m, ROUTE_PUSH), sizeof cases / sizeof cases[0]);
    assert_int_equal(metrics_requests(m, ROUTE_NONE), 1);
    assert_int_equal(metrics_status(0), 200);
    assert_int_equal(metrics_status(METRICS_STATUSES - 1), 0);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percent_decoding),
        cmocka_unit_test(test_name_budget_is_a_sum),
        cmocka_unit_test(test_iso_times),
        cmocka_unit_test(test_rendered_times_are_those_of_gmtime),
        cmocka_unit_test(test_times_in_the_spelling_of_kv),
        cmocka_unit_test(test_rendered_texts_read_back),
        cmocka_unit_test(test_pop_answer),
        cmocka_unit_test(test_options_echo),
        cmocka_unit_test(test_every_route_is_found),
        cmocka_unit_test(test_paths_that_are_refused),
        cmocka_unit_test(test_query_parameters_are_typed),
        cmocka_unit_test(test_latencies_fall_into_their_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
