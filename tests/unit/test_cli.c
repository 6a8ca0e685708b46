/* The client's reading of answers, its addresses, the load generator's histogram and prepared requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "cli/bench_step.h"
#include "cli/client.h"
#include "cli/json_view.h"
#include "cli/words.h"

/* Reads `text` as if it arrived in pieces of `step` bytes; returns how many bytes were there when it was done, 0 when it
 * never was, -1 when it is refused. */
static long read_in_steps(struct client_reply *r, const char *text, size_t len, size_t step, char *buffer)
{
    client_reply_reset(r);
    size_t have = 0;
    while (have < len) {
        size_t n = len - have < step ? len - have : step;
        memcpy(buffer + have, text + have, n);
        have += n;
        enum client_reply_state state = client_reply_read(r, buffer, have);
        if (state == CLIENT_REPLY_BAD) return -1;
        if (state == CLIENT_REPLY_DONE) return (long)have;
    }
    return 0;
}

static void expect_body(const char *text, unsigned status, const char *body)
{
    char buffer[1024];
    for (size_t step = 1; step <= strlen(text); step++) {
        struct client_reply r;
        assert_int_equal(read_in_steps(&r, text, strlen(text), step, buffer), strlen(text));
        assert_int_equal(r.status, status);
        assert_int_equal(r.body_len, strlen(body));
        assert_memory_equal(buffer + r.head_len, body, r.body_len);
        assert_int_equal(r.total_len, strlen(text));
    }
}

static void answers_are_framed_however_they_arrive(void **state)
{
    (void)state;
    expect_body("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello");
    expect_body("HTTP/1.1 201 Created\r\ncontent-length:0\r\n\r\n", 201, "");
    expect_body("HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n", 204, "");
    expect_body("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n", 200,
                "abc0123456789");
    expect_body("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nz\r\n0\r\nTrailer: y\r\n\r\n", 200, "z");
}

static void retry_and_close_are_noticed(void **state)
{
    (void)state;
    char buffer[256];
    struct client_reply r;
    const char text[] = "HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
    assert_true(read_in_steps(&r, text, sizeof text - 1, 7, buffer) > 0);
    assert_int_equal(r.retry_after_s, 3);
    assert_true(r.closes);
}

static void answers_that_cannot_be_framed_are_refused(void **state)
{
    (void)state;
    char buffer[256];
    struct client_reply r;
    static const char *const bad[] = {
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(read_in_steps(&r, bad[i], strlen(bad[i]), 5, buffer), -1);
    }
}

static void body_without_length_ends_with_the_connection(void **state)
{
    (void)state;
    char buffer[] = "HTTP/1.0 200 OK\r\n\r\nrest";
    struct client_reply r;
    client_reply_reset(&r);
    assert_int_equal(client_reply_read(&r, buffer, sizeof buffer - 1), CLIENT_REPLY_MORE);
    assert_int_equal(client_reply_end(&r, sizeof buffer - 1), CLIENT_REPLY_DONE);
    assert_int_equal(r.body_len, 4);
    client_reply_reset(&r);
    char cut[] = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nrest";
    assert_int_equal(client_reply_read(&r, cut, sizeof cut - 1), CLIENT_REPLY_MORE);
    assert_int_equal(client_reply_end(&r, sizeof cut - 1), CLIENT_REPLY_BAD);
}

static void server_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *url, *host, *port, *prefix;
    } good[] = {
        {"http://127.0.0.1:7000", "127.0.0.1", "7000", ""},
        {"broker", "broker", "6632", ""},
        {"http://[::1]:80/base/", "::1", "80", "/base"},
        {"http://h/", "h", "6632", ""},
    };
    static const char *const bad[] = {"",           "http://",     "https://h", "http://h:0", "http://h:65536",
                                      "http://h:x", "http://[::1", "ftp://x"};
    struct client c;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(client_init(&c, good[i].url));
        assert_string_equal(c.host, good[i].host);
        assert_string_equal(c.port, good[i].port);
        assert_string_equal(c.prefix, good[i].prefix);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(client_init(&c, bad[i]));
        assert_true(c.error[0] != 0);
    }
}

static void histogram_keeps_values_within_a_percent(void **state)
{
    (void)state;
    static struct hist h, other;
    for (int64_t v = 1; v <= 1000000; v++) hist_add(v % 2 == 0 ? &h : &other, v * 1000);
    hist_merge(&h, &other);
    assert_int_equal(h.count, 1000000);
    assert_int_equal(h.max_ns, 1000000000);
    static const double shares[] = {0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        double error = (double)hist_at(&h, shares[i]) / (shares[i] * 1e9) - 1;
        assert_true(error > -0.01 && error < 0.01);
    }
    static struct hist edge;
    hist_add(&edge, -5);
    assert_int_equal(hist_at(&edge, 1), 0);
    hist_add(&edge, INT64_MAX);
    assert_true(hist_at(&edge, 1) >= (int64_t)1 << 39);
}

static void pushes_are_patched_in_place(void **state)
{
    (void)state;
    static struct bench b;
    b.options = (struct bench_options){.host = "127.0.0.1", .port = 1, .size = 256};
    strcpy(b.queue, "q");
    strcpy(b.run_id, "01a9c0de-0000-7abc-8def");
    struct push_request p;
    push_request_make(&p, &b, 7, 3);
    push_request_renew(&p);
    push_request_renew(&p);
    push_request_lane(&p, 1, 42);
    push_request_stamp(&p, 2, 123456789);
    struct slice body = push_request_body(&p);
    struct slice whole, items[1];
    static const char *const names[1] = {"items"};
    assert_true(view_whole(body, &whole));
    assert_true(view_members(whole, names, items, 1));
    assert_int_equal(text_count(body.at, body.len, "\"transactionId\":\"01a9c0de-0000-7abc-8def-000700000003\""), 1);
    assert_int_equal(text_count(body.at, body.len, "\"transactionId\":\"01a9c0de-0000-7abc-8def-000700000005\""), 1);
    assert_int_equal(text_count(body.at, body.len, "\"partition\":\"lane-00000042\""), 1);
    assert_int_equal(text_count(body.at, body.len, "\"at\":\"0000000000123456789\""), 1);
    char length[64];
    snprintf(length, sizeof length, "Content-Length: %zu\r\n", body.len);
    assert_int_equal(text_count(p.text, p.len, length), 1);
    push_request_free(&p);
}

static void acks_name_every_message_of_a_pop(void **state)
{
    (void)state;
    static struct bench b;
    b.options = (struct bench_options){.host = "127.0.0.1", .port = 1, .group = "g"};
    static const char pop[] =
        "{\"partitionId\":\"3\",\"leaseId\":\"L\",\"messages\":["
        "{\"transactionId\":\"a\",\"data\":1,\"partitionId\":\"3\"},{\"transactionId\":\"b\",\"data\":1,\"partitionId\":\"3\"},"
        "{\"transactionId\":\"c\",\"data\":1,\"partitionId\":\"4\"},{\"transactionId\":\"dd\",\"data\":12,\"partitionId\":"
        "\"5\"}]}";
    struct buf out = {0};
    assert_int_equal(ack_request_make(&out, &b, pop, sizeof pop - 1, false), 4);
    static const char want[] = "{\"consumerGroup\":\"g\",\"acknowledgments\":["
                               "{\"transactionId\":\"a\",\"partitionId\":\"3\",\"leaseId\":\"L\",\"status\":\"completed\"},"
                               "{\"transactionId\":\"b\",\"partitionId\":\"3\",\"leaseId\":\"L\",\"status\":\"completed\"},"
                               "{\"transactionId\":\"c\",\"partitionId\":\"4\",\"leaseId\":\"L\",\"status\":\"completed\"},"
                               "{\"transactionId\":\"dd\",\"partitionId\":\"5\",\"leaseId\":\"L\",\"status\":\"completed\"}]}";
    assert_true(out.len > sizeof want - 1);
    assert_memory_equal(out.at + out.len - (sizeof want - 1), want, sizeof want - 1);
    assert_int_equal(ack_request_make(&out, &b, "{\"messages\":[]}", 15, false), 0);
    buf_free(&out);
}

struct seen {
    struct slice elements[8];
    size_t count;
};

static bool element_see(void *arg, struct slice element)
{
    struct seen *s = arg;
    s->elements[s->count++] = element;
    return true;
}

static void json_values_keep_their_bytes(void **state)
{
    (void)state;
    struct slice whole, values[3];
    const char text[] = " {\"a\" : { \"x\":[1, 2] } , \"b\":\"q\\\"\\u00e9\",\"c\": 1.50 ,\"b2\":null} \n";
    assert_true(view_whole(slice_of(text), &whole));
    static const char *const names[3] = {"a", "b", "missing"};
    assert_true(view_members(whole, names, values, 3));
    assert_true(slice_is(values[0], "{ \"x\":[1, 2] }"));
    assert_true(slice_is(values[1], "\"q\\\"\\u00e9\""));
    assert_null(values[2].at);
    struct seen seen = {0};
    assert_true(view_elements(slice_of("[ 1 , \"two\",{ \"3\":3 } ,[ ], null ]"), element_see, &seen));
    static const char *const want[] = {"1", "\"two\"", "{ \"3\":3 }", "[ ]", "null"};
    assert_int_equal(seen.count, 5);
    for (size_t i = 0; i < 5; i++) assert_true(slice_is(seen.elements[i], want[i]));
    static const char *const bad[] = {"", "{", "{} {}", "[1,]", "nul", "\"\xff\"", "01"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(view_whole(slice_of(bad[i]), &whole));
    assert_false(view_members(slice_of("[1]"), names, values, 3));
}

static void strings_mean_what_their_escapes_say(void **state)
{
    (void)state;
    static const struct {
        const char *raw, *text;
    } cases[] = {
        {"\"\"", ""},
        {"\"a\\\"b\\\\\\/\\n\\t\"", "a\"b\\/\n\t"},
        {"\"\\u0041\\u00e9\\u20ac\"", "A\xc3\xa9\xe2\x82\xac"},
        {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80"},
    };
    struct buf out = {0};
    struct slice half;
    assert_false(view_whole(slice_of("\"\\ud83d\\u0041\""), &half));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct slice whole;
        assert_true(view_whole(slice_of(cases[i].raw), &whole));
        buf_clear(&out);
        view_text(&out, whole);
        assert_true(slice_is(buf_view(&out), cases[i].text));
    }
    buf_free(&out);
}

static const struct words_command COMMANDS[] = {{"get", 1, 1, 3, "KEY..."}, {"set", 2, 2, 2, "KEY VALUE"}};
static const struct words_option OPTIONS[] = {{"ttl", false, 2}, {"all", true, 3}};
static const struct words_table TABLE = {"help", COMMANDS, 2, OPTIONS, 2};

static int words_of(struct words *w, struct verb *v, char *line)
{
    char *argv[16] = {NULL};
    int argc = 0;
    for (char *at = strtok(line, " "); at != NULL; at = strtok(NULL, " ")) argv[argc++] = at;
    *v = (struct verb){.name = "test"};
    return words_read(w, v, &TABLE, argc, argv);
}

static void command_lines_are_read(void **state)
{
    (void)state;
    struct words w;
    struct verb v;
    char mixed[] = "test set --all k --ttl=5 -1 --server there --retries 3";
    assert_int_equal(words_of(&w, &v, mixed), -1);
    assert_string_equal(w.command->name, "set");
    assert_int_equal(w.count, 2);
    assert_string_equal(w.word[0], "k");
    assert_string_equal(w.word[1], "-1");
    assert_string_equal(w.value[0], "5");
    assert_string_equal(w.value[1], "");
    assert_string_equal(v.server, "there");
    assert_int_equal(v.retries, 3);
    char plain[] = "test get -- --ttl -x --";
    assert_int_equal(words_of(&w, &v, plain), -1);
    assert_int_equal(w.count, 3);
    assert_string_equal(w.word[0], "--ttl");
    assert_string_equal(w.word[2], "--");
    assert_null(w.value[1]);
    char wrong[][40] = {
        "test",
        "test put k",
        "test get",
        "test get a b c d",
        "test get a --ttl 5",
        "test set a",
        "test set a b -c",
        "test set a b --ttl",
        "test get a --all=yes",
        "test get a --nonsense",
        "test get --al a",
        "test get a --retries x",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) assert_int_equal(words_of(&w, &v, wrong[i]), CLI_USAGE);
}

/* A pop's answer with two messages of lane 7, as the broker writes it. */
#define POPPED                                                                                                                 \
    "{\"success\":true,\"queue\":\"q\",\"partition\":\"lane-00000007\",\"partitionId\":\"31\",\"leaseId\":\"LEASE\","          \
    "\"consumerGroup\":\"g\",\"messages\":[{\"id\":\"x\",\"transactionId\":\"01a9c0de-0000-7abc-8def-000000000001\",\"data\":" \
    "{"                                                                                                                        \
    "\"at\":\"0000000000000000011\"}},{\"id\":\"y\",\"transactionId\":\"01a9c0de-0000-7abc-8def-000000000002\",\"data\":{"     \
    "\"at\":\"0000000000000000022\"}}],\"partitionsClaimed\":1}"

static void step_answers_its_batch(void **state)
{
    (void)state;
    static struct bench b;
    static struct step_shared s;
    b.options = (struct bench_options){.host = "127.0.0.1", .port = 1, .group = "g", .size = 100, .batch = 3, .keys = 1};
    strcpy(b.queue, "q");
    strcpy(b.run_id, "01a9c0de-0000-7abc-8def");
    s.bench = &b;
    s.out = b;
    strcpy(s.out.queue, "q-out");
    s.paced = true;
    struct step_conn *w = step_conn_make(&s, 0);
    struct slice request;
    assert_int_equal(step_request_make(w, &s, POPPED, sizeof POPPED - 1, &request), 2);
    const char *body = memmem(request.at, request.len, "\r\n\r\n", 4);
    assert_non_null(body);
    body += 4;
    struct slice text = slice_make(body, request.len - (size_t)(body - request.at));
    char length[64];
    snprintf(length, sizeof length, "Content-Length: %08zu\r\n", text.len);
    assert_int_equal(text_count(request.at, request.len, length), 1);
    struct slice whole, m[3];
    static const char *const names[3] = {"requiredLeases", "operations", "kv"};
    assert_true(view_whole(text, &whole));
    assert_true(view_members(whole, names, m, 3));
    assert_true(slice_is(m[0], "[\"LEASE\"]"));
    struct seen seen = {0};
    assert_true(view_elements(m[1], element_see, &seen));
    assert_int_equal(seen.count, 3);
    static const char *const ids[2] = {"01a9c0de-0000-7abc-8def-000000000001", "01a9c0de-0000-7abc-8def-000000000002"};
    for (size_t i = 0; i < 2; i++) {
        char ack[200];
        snprintf(ack, sizeof ack, "{\"type\":\"ack\",\"partitionId\":\"31\",\"consumerGroup\":\"g\",\"transactionId\":\"%s\"}",
                 ids[i]);
        assert_true(slice_is(seen.elements[i], ack));
        char output[200];
        snprintf(output, sizeof output,
                 "{\"queue\":\"q-out\",\"partition\":\"lane-00000007\",\"transactionId\":\"%s\",\"payload\":{\"at\":\"%019zu\"",
                 ids[i], (i + 1) * 11);
        assert_int_equal(text_count(seen.elements[2].at, seen.elements[2].len, output), 1);
    }
    assert_int_equal(text_count(seen.elements[2].at, seen.elements[2].len, "\"queue\""), 2);
    assert_int_equal(text_count(m[2].at, m[2].len, "\"ns\":\"bench-once\",\"key\":\"01a9c0de-0000-7abc-8def-000000000001\""),
                     1);
    static const char none[] = "{\"leaseId\":\"\",\"partitionId\":\"\",\"messages\":[]}";
    assert_int_equal(step_request_make(w, &s, none, sizeof none - 1, &request), 0);
    step_conn_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_framed_however_they_arrive),
        cmocka_unit_test(retry_and_close_are_noticed),
        cmocka_unit_test(answers_that_cannot_be_framed_are_refused),
        cmocka_unit_test(body_without_length_ends_with_the_connection),
        cmocka_unit_test(server_addresses),
        cmocka_unit_test(histogram_keeps_values_within_a_percent),
        cmocka_unit_test(pushes_are_patched_in_place),
        cmocka_unit_test(acks_name_every_message_of_a_pop),
        cmocka_unit_test(json_values_keep_their_bytes),
        cmocka_unit_test(strings_mean_what_their_escapes_say),
        cmocka_unit_test(command_lines_are_read),
        cmocka_unit_test(step_answers_its_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
