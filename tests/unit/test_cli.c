/* The client's reading of answers, its addresses, the load generator's histogram and prepared requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "cli/bench.h"
#include "cli/client.h"
#include "cli/json_view.h"

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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
