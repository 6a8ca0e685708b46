/* KV and lock ops: read, refused, encoded, rendered; compact values; rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/limits.h"
#include "broker/config.h"
#include "http/data_ops.h"
#include "http/kv_answer.h"
#include "http/kv_rates.h"
#include "http/kv_value.h"
#include "http/lock_ops.h"

static struct arena arena;
static struct config config;
static const struct uuid tenant = {{1}};

static int setup(void **state)
{
    (void)state;
    arena_init(&arena);
    config = (struct config){.kv_value_bytes_max = KV_VALUE_BYTES_MAX, .kv_ops_max = KV_OPS_MAX, .kv_keys_max = 1024};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

/* With the pad that readers need. */
static struct slice padded(struct slice text)
{
    char *at = arena_zero(&arena, text.len + JSON_PAD);
    memcpy(at, text.at, text.len);
    return slice_make(at, text.len);
}

static bool read_ops(const char *text, enum ops_place place, struct kv_inputs *in, struct ops_refusal *why)
{
    struct json j;
    json_open(&j, padded(slice_of(text)), &arena);
    memset(why, 0, sizeof *why);
    return kv_ops_read(&j, place, &config, in, why);
}

static void read_good(const char *text, struct kv_inputs *in)
{
    struct ops_refusal why;
    if (!read_ops(text, OPS_ROUTE, in, &why)) fail_msg("%s: %s %s", text, why.reason, why.detail);
}

static void refused(const char *text, enum ops_place place, const char *reason, uint32_t status)
{
    struct kv_inputs in;
    struct ops_refusal why;
    if (read_ops(text, place, &in, &why)) fail_msg("accepted: %s", text);
    if (strcmp(why.reason, reason) != 0 || why.status != status)
        fail_msg("%s: %u %s, wanted %s", text, why.status, why.reason, reason);
    assert_string_equal(why.error, status == 413 ? "payload_too_large" : "kv_bad_request");
    assert_true(why.detail[0] != 0);
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

#define PUT "\"op\":\"put\",\"ns\":\"n\",\"key\":\"k\""
#define GET "\"op\":\"get\",\"ns\":\"n\""

static void test_every_refusal(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"{}", "kv_bad_body"},
        {"[", "kv_bad_body"},
        {"[{\"op\":\"get\"", "kv_bad_body"},
        {"[{" GET ",\"key\":\"\\ud800\"}]", "kv_bad_body"},
        {"[{" PUT ",\"forever\":true,\"value\":[1,]}]", "kv_bad_body"},
        {"[1]", "kv_bad_request"},
        {"[[]]", "kv_bad_request"},
        {"[null]", "kv_bad_request"},
        {"[{" GET ",\"key\":\"k\",\"key\":\"k\"}]", "kv_bad_request"},
        {"[{}]", "kv_unknown_op"},
        {"[{\"op\":\"Get\",\"ns\":\"n\",\"key\":\"k\"}]", "kv_unknown_op"},
        {"[{\"op\":1,\"ns\":\"n\",\"key\":\"k\"}]", "kv_unknown_op"},
        {"[{\"op\":null,\"ns\":\"n\",\"key\":\"k\"}]", "kv_unknown_op"},
        {"[{" GET ",\"key\":\"k\",\"tenant\":\"t\"}]", "kv_tenant_not_an_input"},
        {"[{" GET ",\"key\":\"k\",\"tenantId\":null}]", "kv_tenant_not_an_input"},
        {"[{" GET ",\"key\":\"k\",\"_tenant\":1,\"tenant\":2}]", "kv_tenant_not_an_input"},
        {"[{\"op\":\"nope\",\"tenant\":1}]", "kv_tenant_not_an_input"},
        {"[{\"op\":\"get\",\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":null,\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":true,\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":\"Bad\",\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":\"\",\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":\"-a\",\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":\"a b\",\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":-1,\"key\":\"k\"}]", "kv_bad_namespace"},
        {"[{\"op\":\"get\",\"ns\":\"a23456789012345678901234567890123456789012345678901234567890123_5\",\"key\":\"k\"}]",
         "kv_bad_namespace"},
        {"[{" GET "}]", "kv_bad_key"},
        {"[{" GET ",\"key\":\"\"}]", "kv_bad_key"},
        {"[{" GET ",\"key\":null}]", "kv_bad_key"},
        {"[{" GET ",\"key\":{}}]", "kv_bad_key"},
        {"[{" GET ",\"key\":\"a\\u0000b\"}]", "kv_bad_key"},
        {"[{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":\"k\"}]", "kv_bad_request"},
        {"[{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":[\"k\",\"\"]}]", "kv_bad_key"},
        {"[{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":[null]}]", "kv_bad_key"},
        {"[{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":[\"\\ud800\"]}]", "kv_bad_body"},
        {"[{\"op\":\"getPrefix\",\"ns\":\"n\"}]", "kv_prefix_required"},
        {"[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"\"}]", "kv_prefix_required"},
        {"[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":null}]", "kv_prefix_required"},
        {"[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\",\"limit\":\"9\"}]", "kv_bad_request"},
        {"[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\",\"limit\":1.5}]", "kv_bad_request"},
        {"[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\",\"keysOnly\":1}]", "kv_bad_request"},
        {"[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\",\"after\":[]}]", "kv_bad_request"},
        {"[{" PUT ",\"value\":1}]", "kv_expiry_not_specified"},
        {"[{" PUT ",\"value\":1,\"forever\":false}]", "kv_expiry_not_specified"},
        {"[{" PUT ",\"value\":1,\"forever\":true,\"ttlSeconds\":1}]", "kv_expiry_not_specified"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":null}]", "kv_expiry_not_specified"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":0}]", "kv_bad_ttl"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":-1}]", "kv_bad_ttl"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":1.5}]", "kv_bad_ttl"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":1e2}]", "kv_bad_ttl"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":\"9\"}]", "kv_bad_ttl"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":250000000001}]", "kv_bad_ttl"},
        {"[{" PUT ",\"value\":1,\"ttlSeconds\":18446744073709551617}]", "kv_bad_ttl"},
        {"[{" PUT ",\"value\":1,\"forever\":\"yes\"}]", "kv_bad_ttl"},
        {"[{" PUT ",\"forever\":true}]", "kv_bad_request"},
        {"[{" PUT ",\"forever\":true,\"value\":1,\"expect\":null}]", "kv_bad_expect"},
        {"[{" PUT ",\"forever\":true,\"value\":1,\"expect\":-1}]", "kv_bad_expect"},
        {"[{" PUT ",\"forever\":true,\"value\":1,\"expect\":1.0}]", "kv_bad_expect"},
        {"[{" PUT ",\"forever\":true,\"value\":1,\"expect\":\"1\"}]", "kv_bad_expect"},
        {"[{" PUT ",\"forever\":true,\"value\":1,\"expect\":9223372036854775808}]", "kv_bad_expect"},
        {"[{" PUT ",\"forever\":true,\"value\":1,\"required\":1}]", "kv_bad_request"},
        {"[{\"op\":\"putIfAbsent\",\"ns\":\"n\",\"key\":\"k\",\"forever\":true,\"value\":1,\"expect\":3}]", "kv_bad_expect"},
        {"[{\"op\":\"check\",\"ns\":\"n\",\"key\":\"k\"}]", "kv_bad_expect"},
        {"[{\"op\":\"check\",\"ns\":\"n\",\"key\":\"k\",\"expect\":null}]", "kv_bad_expect"},
        {"[{\"op\":\"delete\",\"ns\":\"n\",\"key\":\"k\",\"expect\":true}]", "kv_bad_expect"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"forever\":true}]", "kv_bad_request"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":1}]", "kv_expiry_not_specified"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":1,\"forever\":true,\"expect\":0}]", "kv_bad_request"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":\"1\",\"forever\":true}]", "kv_bad_request"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":1,\"min\":\"0\",\"forever\":true}]", "kv_bad_request"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":1,\"max\":[],\"forever\":true}]", "kv_bad_request"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":1e99999,\"forever\":true}]", "kv_bad_request"},
        {"[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":123456789012345678901234567890123456789,\"forever\":true}]",
         "kv_bad_request"},
        {"[{" PUT ",\"forever\":true,\"value\":1},{" PUT ",\"forever\":true,\"value\":1}]", "kv_duplicate_key_in_call"},
        {"[{\"op\":\"check\",\"ns\":\"n\",\"key\":7,\"expect\":0},{\"op\":\"delete\",\"ns\":\"n\",\"key\":\"7\"}]",
         "kv_duplicate_key_in_call"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) refused(cases[i].text, OPS_ROUTE, cases[i].reason, 400);
    refused("[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\"}]", OPS_TRANSACTION,
            "kv_get_prefix_not_allowed_in_transaction", 400);
}

/* `count` times `op`, with the number put where the %u is. */
static const char *many(const char *op, unsigned count)
{
    struct buf out = {0};
    buf_byte(&out, '[');
    for (unsigned i = 0; i < count; i++) {
        if (i > 0) buf_byte(&out, ',');
        char text[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        int len = snprintf(text, sizeof text, op, i);
#pragma GCC diagnostic pop
        buf_put(&out, text, (size_t)len);
    }
    buf_text(&out, "]");
    buf_byte(&out, 0);
    const char *copy = arena_copy(&arena, buf_view(&out)).at;
    buf_free(&out);
    return copy;
}

static void test_counts_are_limited(void **state)
{
    (void)state;
    static const char put[] = "{\"op\":\"put\",\"ns\":\"n\",\"key\":%u,\"value\":1,\"forever\":true}";
    struct kv_inputs in;
    struct ops_refusal why;
    read_good(many(put, 256), &in);
    assert_int_equal(in.count, 256);
    refused(many(put, 257), OPS_ROUTE, "kv_too_many_ops", 400);
    assert_true(read_ops(many(put, 64), OPS_TRANSACTION, &in, &why));
    refused(many(put, 65), OPS_TRANSACTION, "kv_too_many_ops", 400);
    static const char page[] = "{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":%u,\"limit\":512}";
    read_good(many(page, 2), &in);
    refused(many(page, 3), OPS_ROUTE, "kv_too_many_keys", 400);
    struct buf out = {0};
    for (unsigned keys = 255; keys <= 4097; keys++) {
        if (keys != 255 && keys != 256 && keys != 1023 && keys != 1024 && keys != 4096 && keys != 4097) continue;
        buf_clear(&out);
        buf_text(&out, "[{\"op\":\"get\",\"ns\":\"n\",\"key\":1},{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":");
        buf_text(&out, many("%u", keys));
        buf_text(&out, "}]");
        buf_byte(&out, 0);
        if (keys == 255) assert_true(read_ops(out.at, OPS_TRANSACTION, &in, &why));
        if (keys == 256) refused(out.at, OPS_TRANSACTION, "kv_too_many_keys", 400);
        if (keys == 1023) read_good(out.at, &in);
        if (keys >= 1024) refused(out.at, OPS_ROUTE, "kv_too_many_keys", 400);
    }
    buf_free(&out);
    config.kv_ops_max = 2;
    refused(many(put, 3), OPS_ROUTE, "kv_too_many_ops", 400);
}

static const char *op_with(const char *before, char fill, size_t count, const char *behind)
{
    struct buf out = {0};
    buf_text(&out, before);
    memset(buf_reserve(&out, count), fill, count);
    out.len += count;
    buf_text(&out, behind);
    buf_byte(&out, 0);
    const char *copy = arena_copy(&arena, buf_view(&out)).at;
    buf_free(&out);
    return copy;
}

static void test_sizes_are_limited(void **state)
{
    (void)state;
    struct kv_inputs in;
    static const char value[] = "[{" PUT ",\"forever\":true,\"value\":\"", key[] = "[{" GET ",\"key\":\"";
    read_good(op_with(value, 'x', 65534, "\"}]"), &in);
    assert_int_equal(in.items->op.value.len, 65536);
    refused(op_with(value, 'x', 65535, "\"}]"), OPS_ROUTE, "kv_value_too_large", 413);
    read_good(op_with("[{" PUT ",\"forever\":true,\"value\":[", ' ', 200000, "1 ]}]"), &in);
    assert_true(slice_is(in.items->op.value, "[1]"));
    read_good(op_with(key, 'k', 512, "\"}]"), &in);
    refused(op_with(key, 'k', 513, "\"}]"), OPS_ROUTE, "kv_key_too_large", 413);
    refused(op_with("[{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":[1,\"", 'k', 513, "\"]}]"), OPS_ROUTE, "kv_key_too_large", 413);
    refused(op_with("[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"", 'k', 513, "\"}]"), OPS_ROUTE, "kv_key_too_large", 413);
    read_good(op_with("[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"k\",\"after\":\"", 'k', 600, "\"}]"), &in);
    assert_int_equal(in.items->op.value.len, 512);
    config.kv_value_bytes_max = 10;
    refused("[{" PUT ",\"forever\":true,\"value\":12345678901}]", OPS_ROUTE, "kv_value_too_large", 413);
}

static void test_what_is_read(void **state)
{
    (void)state;
    struct kv_inputs in;
    read_good("[]", &in);
    assert_int_equal(in.count, 0);
    read_good(" [ { \"key\" : \"\\u00e9\\/\" , \"extra\":[{}], \"op\" : \"putIfAbsent\" , \"ns\":\"a.b\" , "
              "\"required\":true,\"value\" : { \"a b\" : "
              "[ 1 , \"\\\" x\" ] } , \"ttlSeconds\" : 9 } ]",
              &in);
    const struct kv_op *op = &in.items->op;
    assert_true(in.count == 1 && in.writes && in.grows);
    assert_string_equal(in.items->name, "putIfAbsent");
    assert_int_equal(op->kind, KV_PUT);
    assert_int_equal(op->flags, KV_EXPECT | KV_REQUIRED);
    assert_int_equal(op->expect, 0);
    assert_int_equal(op->ttl_us, 9000000);
    assert_true(slice_is(op->key, "\xc3\xa9/") && slice_is(op->name_space, "a.b"));
    assert_true(slice_is(op->value, "{\"a b\":[1,\"\\\" x\"]}"));
    read_good("[{" GET ",\"key\":1.50,\"required\":7,\"expect\":null,\"ttlSeconds\":\"x\"}]", &in);
    assert_true(!in.writes && !in.grows && slice_is(in.items->op.key, "1.50"));
    read_good("[{\"op\":\"delete\",\"ns\":5,\"key\":\"k\",\"expect\":7}]", &in);
    assert_true(in.writes && !in.grows && in.items->op.expect == 7 && in.items->op.flags == KV_EXPECT);
    read_good("[{\"op\":\"check\",\"ns\":\"n\",\"key\":\"k\",\"expect\":0,\"required\":false}]", &in);
    assert_true(!in.writes && in.items->op.flags == KV_EXPECT);
    read_good("[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":-0.10,\"min\":null,\"max\":1E5,\"ttlSeconds\":1}]", &in);
    op = &in.items->op;
    assert_true(in.writes && in.grows && op->flags == KV_HAS_MAX && slice_is(op->value, "-0.10") && slice_is(op->max, "1E5"));
    read_good("[{\"op\":\"getMany\",\"ns\":\"n\"},{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":[ \"b\" , 1, \"\\n\" ]}]", &in);
    assert_int_equal(in.items[0].op.key_count, 0);
    assert_int_equal(in.items[1].op.key_count, 3);
    struct slice keys = in.items[1].op.key, key;
    assert_true(kv_key_next(&keys, &key) && slice_is(key, "b") && kv_key_next(&keys, &key) && slice_is(key, "1"));
    assert_true(kv_key_next(&keys, &key) && slice_is(key, "\n") && keys.len == 0);
    static const struct {
        const char *text;
        uint32_t limit;
    } limits[] = {{"", 100}, {",\"limit\":-3", 1}, {",\"limit\":0", 1}, {",\"limit\":7", 7}, {",\"limit\":99999", 1000}};
    for (size_t i = 0; i < 5; i++) {
        char text[200];
        snprintf(text, sizeof text,
                 "[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\",\"keysOnly\":true,\"after\":\"ab\"%s}]", limits[i].text);
        read_good(text, &in);
        assert_int_equal(in.items->op.limit, limits[i].limit);
        assert_true(in.items->op.flags == KV_KEYS_ONLY && slice_is(in.items->op.value, "ab"));
    }
    /* the same key read often, in another namespace, or read and written */
    read_good(
        "[{" PUT ",\"forever\":true,\"value\":1},{\"op\":\"put\",\"ns\":\"m\",\"key\":\"k\",\"forever\":true,\"value\":1},{" GET
        ",\"key\":\"k\"},{" GET ",\"key\":\"k\"},{\"op\":\"put\",\"ns\":\"n\",\"key\":\"kk\",\"forever\":true,\"value\":1}]",
        &in);
    assert_int_equal(in.count, 5);
}

static bool path_op(const char *name, const char *body, struct kv_inputs *in, struct ops_refusal *why)
{
    return kv_path_op_read(padded(slice_of(body)), name, slice_of("n"), slice_of("a/b"), &arena, &config, in, why);
}

static void test_ops_named_by_the_path(void **state)
{
    (void)state;
    struct kv_inputs in;
    struct ops_refusal why;
    static const char *const barred[] = {"\"op\":\"put\"", "\"ns\":\"n\"", "\"namespace\":\"n\"", "\"key\":null"};
    for (size_t i = 0; i < 4; i++) {
        char body[100];
        snprintf(body, sizeof body, "{\"value\":1,\"forever\":true,%s}", barred[i]);
        assert_false(path_op("put", body, &in, &why));
        assert_string_equal(why.reason, "kv_field_in_path");
    }
    static const struct {
        const char *name, *body, *reason;
    } cases[] = {{"put", "", "kv_bad_body"},
                 {"put", "[]", "kv_bad_body"},
                 {"put", "{\"value\":1,\"forever\":true} x", "kv_bad_body"},
                 {"put", "{\"forever\":true}", "kv_bad_request"},
                 {"put", "{\"value\":1}", "kv_expiry_not_specified"},
                 {"put", "{\"value\":1,\"forever\":true,\"tenant\":1}", "kv_tenant_not_an_input"},
                 {"delete", "1", "kv_bad_body"},
                 {"delete", "{\"expect\":-1}", "kv_bad_expect"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_false(path_op(cases[i].name, cases[i].body, &in, &why));
        assert_string_equal(why.reason, cases[i].reason);
    }
    assert_true(path_op("put", "{\"value\":null,\"ttlSeconds\":2,\"expect\":4}", &in, &why));
    assert_true(in.writes && in.grows && in.count == 1 && slice_is(in.items->op.key, "a/b"));
    assert_true(slice_is(in.items->op.value, "null") && in.items->op.expect == 4);
    assert_true(path_op("delete", "", &in, &why) && in.writes && !in.grows);
    assert_true(path_op("get", "", &in, &why) && !in.writes && in.items->op.kind == KV_GET);
    assert_false(kv_path_op_read(padded(slice_of("")), "get", slice_of("N"), slice_of("k"), &arena, &config, &in, &why));
    assert_string_equal(why.reason, "kv_bad_namespace");
    assert_false(kv_path_op_read(padded(slice_of("")), "get", slice_of("n"), slice_of(""), &arena, &config, &in, &why));
    assert_string_equal(why.reason, "kv_bad_key");
}

static void test_listings(void **state)
{
    (void)state;
    struct kv_inputs in;
    struct ops_refusal why;
    assert_true(kv_list_read(padded(slice_of("{\"namespace\":\"n\"}")), &arena, &config, &in, &why));
    assert_true(in.items->op.key.len == 0 && in.items->op.limit == 100 && in.items->op.kind == KV_GET_PREFIX);
    struct buf out = {0};
    kv_ops_encode(&in, tenant, &out);
    struct slice rest = buf_view(&out);
    struct command c;
    struct kv_command back;
    assert_true(command_next(&rest, &c) && kv_decode(&c, &back));
    buf_free(&out);
    static const char *const bad[] = {
        "", "[]", "{}", "{\"ns\":\"n\"}", "{\"namespace\":\"n\",\"prefix\":{}}", "{\"namespace\":\"n\",\"limit\":\"x\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(kv_list_read(padded(slice_of(bad[i])), &arena, &config, &in, &why));
        assert_int_equal(why.status, 400);
    }
}

static void test_commands_read_back(void **state)
{
    (void)state;
    struct kv_inputs in;
    read_good(
        "[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"i\",\"delta\":1.5,\"min\":-2,\"max\":9,\"ttlSeconds\":3,\"required\":true},"
        "{\"op\":\"put\",\"ns\":\"n\",\"key\":\"p\",\"value\":\"v\",\"forever\":true,\"expect\":77},"
        "{\"op\":\"getMany\",\"ns\":\"m\",\"keys\":[\"x\",\"y\"]},"
        "{\"op\":\"getPrefix\",\"ns\":\"m\",\"prefix\":\"x\",\"after\":\"xx\",\"limit\":5,\"keysOnly\":true}]",
        &in);
    struct buf out = {0};
    kv_ops_encode(&in, tenant, &out);
    struct slice rest = buf_view(&out), ops;
    struct command c;
    struct kv_command kv;
    assert_true(command_next(&rest, &c) && rest.len == 0 && kv_decode(&c, &kv));
    assert_int_equal(kv.op_count, 4);
    assert_memory_equal(&kv.tenant, &tenant, sizeof tenant);
    ops = kv.ops;
    for (uint32_t i = 0; i < 4; i++) {
        struct kv_op op;
        const struct kv_op *sent = &in.items[i].op;
        assert_true(kv_op_next(&ops, &op));
        assert_true(op.kind == sent->kind && op.flags == sent->flags && op.expect == sent->expect && op.ttl_us == sent->ttl_us);
        assert_true(slice_equal(op.key, sent->key) && slice_equal(op.name_space, sent->name_space));
        assert_true(op.limit == sent->limit && op.key_count == sent->key_count);
        if (sent->value.at != NULL) assert_true(slice_equal(op.value, sent->value));
        if (sent->flags & KV_HAS_MIN) assert_true(slice_equal(op.min, sent->min) && slice_equal(op.max, sent->max));
    }
    buf_free(&out);
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

static void test_values_are_compacted(void **state)
{
    (void)state;
    static const struct {
        const char *sent, *kept;
    } cases[] = {
        {"1", "1"},
        {"\" a  b \"", "\" a  b \""},
        {"[]", "[]"},
        {"[ ]", "[]"},
        {"{ \"a\" :\t1,\r\n\"b\":\"x y\" }", "{\"a\":1,\"b\":\"x y\"}"},
        {"[\"\\\"  \", \" \\\\\" ]", "[\"\\\"  \",\" \\\\\"]"},
        {"[\"a b\",\"c d\"]", "[\"a b\",\"c d\"]"},
        {"[9007199254740993,1e400,0.1000,-0,1E5]", "[9007199254740993,1e400,0.1000,-0,1E5]"},
        {"[\"0123456789abcdef0123456789abcdef\" ,1]", "[\"0123456789abcdef0123456789abcdef\",1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct slice sent = slice_of(cases[i].sent), kept;
        assert_true(kv_value_compact(&arena, sent, 1000, &kept));
        if (!slice_is(kept, cases[i].kept)) fail_msg("%s: %.*s", cases[i].sent, (int)kept.len, kept.at);
        if (kept.len == sent.len) assert_ptr_equal(kept.at, sent.at);
        assert_true(kv_value_compact(&arena, sent, strlen(cases[i].kept), &kept));
        assert_false(kv_value_compact(&arena, sent, strlen(cases[i].kept) - 1, &kept));
    }
}

/* ---- rendering ----------------------------------------------------------------------------------------------------- */

static void rendered(const char *ops, const struct kv_outcome *o, const char *wanted)
{
    struct kv_inputs in;
    struct buf out = {0};
    read_good(ops, &in);
    kv_element_open(&out, in.items, o, 7);
    buf_byte(&out, '}');
    if (!slice_is(buf_view(&out), wanted)) fail_msg("%.*s\nwanted %s", (int)out.len, out.at, wanted);
    buf_free(&out);
}

static void test_elements(void **state)
{
    (void)state;
    static const char put[] = "[{\"op\":\"put\",\"ns\":\"n\",\"key\":\"k\\\"\",\"forever\":true,\"value\":{\"a\": 1}}]";
    static const char check[] = "[{\"op\":\"check\",\"ns\":\"n\",\"key\":\"k\",\"expect\":9}]";
    static const char delete[] = "[{\"op\":\"delete\",\"ns\":\"n\",\"key\":\"k\"}]";
    static const char incr[] = "[{\"op\":\"incr\",\"ns\":\"n\",\"key\":\"k\",\"delta\":1,\"forever\":true}]";
    static const char get[] = "[{\"op\":\"get\",\"ns\":\"n\",\"key\":\"k\"}]";
    struct slice three = slice_of("3");
    rendered(put, &(struct kv_outcome){.applied = true, .version = 12, .has_value = true},
             "{\"index\":7,\"op\":\"put\",\"applied\":true,\"key\":\"k\\\"\",\"value\":{\"a\":1},\"version\":12}");
    rendered(
        put, &(struct kv_outcome){.reason = KV_VERSION, .version = 12, .has_value = true, .value = three},
        "{\"index\":7,\"op\":\"put\",\"applied\":false,\"reason\":\"version\",\"key\":\"k\\\"\",\"value\":3,\"version\":12}");
    rendered(check, &(struct kv_outcome){.applied = true, .version = 9},
             "{\"index\":7,\"op\":\"check\",\"applied\":true,\"key\":\"k\",\"version\":9}");
    rendered(
        check, &(struct kv_outcome){.reason = KV_ABSENT},
        "{\"index\":7,\"op\":\"check\",\"applied\":false,\"reason\":\"absent\",\"key\":\"k\",\"value\":null,\"version\":0}");
    rendered(delete, &(struct kv_outcome){.applied = true, .version = 5, .has_value = true, .value = three},
             "{\"index\":7,\"op\":\"delete\",\"applied\":true,\"key\":\"k\",\"value\":3,\"version\":5}");
    rendered(delete, &(struct kv_outcome){.applied = true},
             "{\"index\":7,\"op\":\"delete\",\"applied\":true,\"key\":\"k\",\"value\":null,\"version\":0}");
    rendered(incr, &(struct kv_outcome){.reason = KV_TYPE, .version = 4, .has_value = true, .value = slice_of("\"s\"")},
             "{\"index\":7,\"op\":\"incr\",\"applied\":false,\"reason\":\"type\",\"key\":\"k\",\"value\":0,\"version\":4}");
    rendered(get, &(struct kv_outcome){0}, "{\"index\":7,\"op\":\"get\",\"found\":false,\"key\":\"k\"}");
    rendered(get,
             &(struct kv_outcome){
                 .found = true, .has_value = true, .value = three, .version = 8, .updated_us = INT64_C(1927857906700000)},
             "{\"index\":7,\"op\":\"get\",\"found\":true,\"key\":\"k\",\"value\":3,\"version\":8,\"expiresAt\":null,"
             "\"updatedAt\":\"2031-02-03T04:05:06.7+00:00\"}");
    assert_string_equal(kv_reason_text(KV_EXISTS), "exists");
    assert_string_equal(kv_reason_text(KV_LIMIT), "limit");
}

static void test_rows(void **state)
{
    (void)state;
    struct kv_row_view rows[] = {{.key = slice_of("a"), .value = slice_of("null"), .version = 1, .updated_us = 1000000},
                                 {.key = slice_of("b"),
                                  .value = slice_of("[]"),
                                  .version = 2,
                                  .expires_us = INT64_C(1927857906000000),
                                  .updated_us = 2000001}};
    struct slice missing[] = {slice_of("z"), slice_of("y\n")};
    struct kv_outcome o = {.rows = rows, .row_count = 2, .missing = missing, .missing_count = 2};
    rendered("[{\"op\":\"getMany\",\"ns\":\"n\",\"keys\":[\"a\",\"b\",\"z\",\"y\\n\"]}]", &o,
             "{\"index\":7,\"op\":\"getMany\",\"rows\":[{\"key\":\"a\",\"value\":null,\"version\":1,\"expiresAt\":null,"
             "\"updatedAt\":\"1970-01-01T00:00:01+00:00\"},{\"key\":\"b\",\"value\":[],\"version\":2,"
             "\"expiresAt\":\"2031-02-03T04:05:06+00:00\",\"updatedAt\":\"1970-01-01T00:00:02.000001+00:00\"}],"
             "\"missing\":[\"z\",\"y\\n\"],\"truncated\":false}");
    o.truncated = true;
    rendered("[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\",\"keysOnly\":true}]", &o,
             "{\"index\":7,\"op\":\"getPrefix\",\"rows\":[{\"key\":\"a\",\"version\":1,\"expiresAt\":null,"
             "\"updatedAt\":\"1970-01-01T00:00:01+00:00\"},{\"key\":\"b\",\"version\":2,"
             "\"expiresAt\":\"2031-02-03T04:05:06+00:00\",\"updatedAt\":\"1970-01-01T00:00:02.000001+00:00\"}],"
             "\"truncated\":true,\"nextAfter\":\"b\"}");
    rendered("[{\"op\":\"getPrefix\",\"ns\":\"n\",\"prefix\":\"a\"}]", &(struct kv_outcome){0},
             "{\"index\":7,\"op\":\"getPrefix\",\"rows\":[],\"truncated\":false,\"nextAfter\":null}");
}

/* ---- locks --------------------------------------------------------------------------------------------------------- */

static bool read_locks(const char *text, struct lock_inputs *in, struct ops_refusal *why)
{
    struct json j;
    json_open(&j, padded(slice_of(text)), &arena);
    memset(why, 0, sizeof *why);
    return lock_ops_read(&j, in, why);
}

static void lock_refused(const char *text, const char *reason)
{
    struct lock_inputs in;
    struct ops_refusal why;
    if (read_locks(text, &in, &why)) fail_msg("accepted: %s", text);
    if (strcmp(why.reason, reason) != 0) fail_msg("%s: %s, wanted %s", text, why.reason, reason);
    assert_string_equal(why.error, "locks_bad_request");
    assert_true(why.status == 400 && why.detail[0] != 0);
}

#define ACQUIRE "\"op\":\"acquire\",\"name\":\"b\""
#define RENEW "\"op\":\"renew\",\"name\":\"b\""
#define RELEASE "\"op\":\"release\",\"name\":\"b\""

static void test_every_refusal_of_locks(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"{}", "locks_bad_body"},
        {"[", "locks_bad_body"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"owner\":\"\\udc00\"}]", "locks_bad_body"},
        {"[1]", "locks_bad_request"},
        {"[{" ACQUIRE ",\"name\":\"b\"}]", "locks_bad_request"},
        {"[{}]", "locks_unknown_op"},
        {"[{\"op\":\"grab\",\"name\":\"b\"}]", "locks_unknown_op"},
        {"[{\"op\":3,\"name\":\"b\"}]", "locks_unknown_op"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"tenantId\":\"t\"}]", "locks_tenant_not_an_input"},
        {"[{\"op\":\"get\"}]", "locks_bad_name"},
        {"[{\"op\":\"get\",\"name\":\"\"}]", "locks_bad_name"},
        {"[{\"op\":\"get\",\"name\":7}]", "locks_bad_name"},
        {"[{\"op\":\"get\",\"name\":\"a#b\"}]", "locks_bad_name"},
        {"[{\"op\":\"get\",\"name\":\"a\\n\"}]", "locks_bad_name"},
        {"[{\"op\":\"get\",\"name\":\"a\\u007f\"}]", "locks_bad_name"},
        {"[{\"op\":\"get\",\"name\":\"a\\u0085\"}]", "locks_bad_name"},
        {"[{" ACQUIRE "}]", "locks_ttl_required"},
        {"[{" ACQUIRE ",\"ttlSeconds\":null}]", "locks_ttl_required"},
        {"[{" ACQUIRE ",\"forever\":true}]", "locks_ttl_required"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"forever\":false}]", "locks_ttl_required"},
        {"[{" ACQUIRE ",\"ttlSeconds\":0}]", "locks_bad_ttl"},
        {"[{" ACQUIRE ",\"ttlSeconds\":\"1\"}]", "locks_bad_ttl"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1.0}]", "locks_bad_ttl"},
        {"[{" ACQUIRE ",\"ttlSeconds\":250000000001}]", "locks_bad_ttl"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"owner\":\"\"}]", "locks_bad_owner"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"owner\":4}]", "locks_bad_owner"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"owner\":\"\\u0000\"}]", "locks_bad_owner"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"limit\":0}]", "locks_bad_limit"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"limit\":1025}]", "locks_bad_limit"},
        {"[{" ACQUIRE ",\"ttlSeconds\":1,\"limit\":true}]", "locks_bad_limit"},
        {"[{" RENEW ",\"ttlSeconds\":1}]", "locks_token_required"},
        {"[{" RENEW ",\"ttlSeconds\":1,\"token\":0}]", "locks_bad_token"},
        {"[{" RENEW ",\"ttlSeconds\":1,\"token\":\"5\"}]", "locks_bad_token"},
        {"[{" RENEW ",\"token\":5}]", "locks_ttl_required"},
        {"[{" RENEW ",\"token\":5,\"ttlSeconds\":1,\"slot\":1024}]", "locks_bad_slot"},
        {"[{" RENEW ",\"token\":5,\"ttlSeconds\":1,\"slot\":-1}]", "locks_bad_slot"},
        {"[{" RELEASE "}]", "locks_token_required"},
        {"[{" RELEASE ",\"token\":1e3}]", "locks_bad_token"},
        {"[{" RELEASE ",\"token\":9223372036854775808}]", "locks_bad_token"},
        {"[{" RELEASE ",\"token\":1,\"slot\":\"0\"}]", "locks_bad_slot"},
        {"[{" RELEASE ",\"token\":1},{\"op\":\"get\",\"name\":\"b\"}]", "locks_duplicate_in_call"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) lock_refused(cases[i].text, cases[i].reason);
    struct lock_inputs in;
    struct ops_refusal why;
    static const char release[] = "{\"op\":\"release\",\"name\":\"%u\",\"token\":1}";
    assert_true(read_locks(many(release, 64), &in, &why) && in.count == 64 && in.writes && !in.grows);
    lock_refused(many(release, 65), "locks_too_many_ops");
    static const char acquire[] = "{\"op\":\"acquire\",\"name\":\"%u\",\"ttlSeconds\":1,\"limit\":1024}";
    assert_true(read_locks(many(acquire, 4), &in, &why) && in.grows);
    lock_refused(many(acquire, 5), "locks_too_many_keys");
    static const char get[] = "{\"op\":\"get\",\"name\":\"%u\"}";
    assert_true(read_locks(many(get, 4), &in, &why) && !in.writes && !in.grows);
    lock_refused(many(get, 5), "locks_too_many_keys");
    assert_true(read_locks(op_with("[{\"op\":\"get\",\"name\":\"", 'n', 256, "\"}]"), &in, &why));
    lock_refused(op_with("[{\"op\":\"get\",\"name\":\"", 'n', 257, "\"}]"), "locks_bad_name");
    lock_refused(op_with("[{" ACQUIRE ",\"ttlSeconds\":1,\"owner\":\"", 'n', 257, "\"}]"), "locks_bad_owner");
}

static void lock_rendered(const char *ops, const struct lock_outcome *o, const char *wanted)
{
    struct lock_inputs in;
    struct ops_refusal why;
    struct buf out = {0};
    if (!read_locks(ops, &in, &why)) fail_msg("%s: %s", ops, why.detail);
    lock_element(&out, &arena, in.items, o, 3);
    if (!slice_is(buf_view(&out), wanted)) fail_msg("%.*s\nwanted %s", (int)out.len, out.at, wanted);
    buf_free(&out);
}

static void test_lock_elements(void **state)
{
    (void)state;
    static const char acquire[] = "[{\"op\":\"acquire\",\"name\":\"a\\\"b\",\"ttlSeconds\":9,\"owner\":\"w\\\\\",\"limit\":4}]";
    static const char get[] = "[{\"op\":\"get\",\"name\":\"b\"}]";
    static const char release[] = "[{" RELEASE ",\"token\":5,\"slot\":2}]";
    struct lock_outcome won = {.done = true, .slot = 3, .token = 70};
    lock_rendered(
        acquire, &won,
        "{\"index\":3,\"op\":\"acquire\",\"name\":\"a\\\"b\",\"acquired\":true,\"slot\":3,\"token\":70,\"owner\":\"w\\\\\","
        "\"guard\":{\"op\":\"check\",\"ns\":\"queen-locks\",\"key\":\"a\\\"b#3\",\"expect\":70,\"required\":true}}");
    lock_rendered(
        "[{" ACQUIRE ",\"ttlSeconds\":1}]", &(struct lock_outcome){.done = true, .already = true, .token = 8},
        "{\"index\":3,\"op\":\"acquire\",\"name\":\"b\",\"acquired\":true,\"already\":true,\"slot\":0,\"token\":8,"
        "\"owner\":null,\"guard\":{\"op\":\"check\",\"ns\":\"queen-locks\",\"key\":\"b#0\",\"expect\":8,\"required\":true}}");
    lock_rendered("[{" RENEW ",\"token\":5,\"ttlSeconds\":1,\"slot\":3}]", &won,
                  "{\"index\":3,\"op\":\"renew\",\"name\":\"b\",\"renewed\":true,\"slot\":3,\"token\":70,"
                  "\"guard\":{\"op\":\"check\",\"ns\":\"queen-locks\",\"key\":\"b#3\",\"expect\":70,\"required\":true}}");
    lock_rendered(release, &(struct lock_outcome){.done = true, .slot = 2},
                  "{\"index\":3,\"op\":\"release\",\"name\":\"b\",\"released\":true,\"slot\":2}");
    lock_rendered(
        release, &(struct lock_outcome){.slot = 2},
        "{\"index\":3,\"op\":\"release\",\"name\":\"b\",\"released\":false,\"reason\":\"lost\",\"slot\":2,\"holders\":[]}");
    /* written at once, renewed, and by hand */
    struct lock_holder holders[] = {
        {0, {.value = slice_of("{\"owner\":\"w-3\"}"), .version = 5, .updated_us = 1000000, .expires_us = 2000000}},
        {1,
         {.value = slice_of("{\"owner\":null,\"since\":\"1970-01-01T00:00:00.5+00:00\"}"),
          .version = 6,
          .updated_us = 1000000,
          .expires_us = 2000000}},
        {2, {.value = slice_of("[7]"), .version = 7, .updated_us = 1000000}},
        {3, {.value = slice_of("{\"since\":1,\"owner\":{\"owner\":\"x\"}}"), .version = 8, .updated_us = 1000000}},
    };
    struct lock_outcome held = {.holders = holders, .holder_count = 4};
    lock_rendered(
        acquire, &held,
        "{\"index\":3,\"op\":\"acquire\",\"name\":\"a\\\"b\",\"acquired\":false,\"reason\":\"held\",\"holders\":["
        "{\"slot\":0,\"owner\":\"w-3\"},{\"slot\":1,\"owner\":null},{\"slot\":2,\"owner\":null},{\"slot\":3,\"owner\":null}]}");
    held.done = true;
    held.holder_count = 3;
    lock_rendered(get, &held,
                  "{\"index\":3,\"op\":\"get\",\"name\":\"b\",\"held\":true,\"holders\":["
                  "{\"slot\":0,\"owner\":\"w-3\",\"token\":5,\"since\":\"1970-01-01T00:00:01+00:00\","
                  "\"expiresAt\":\"1970-01-01T00:00:02+00:00\",\"renewedAt\":\"1970-01-01T00:00:01+00:00\"},"
                  "{\"slot\":1,\"owner\":null,\"token\":6,\"since\":\"1970-01-01T00:00:00.5+00:00\","
                  "\"expiresAt\":\"1970-01-01T00:00:02+00:00\",\"renewedAt\":\"1970-01-01T00:00:01+00:00\"},"
                  "{\"slot\":2,\"owner\":null,\"token\":7,\"since\":\"1970-01-01T00:00:01+00:00\","
                  "\"expiresAt\":null,\"renewedAt\":\"1970-01-01T00:00:01+00:00\"}]}");
    lock_rendered(get, &(struct lock_outcome){0}, "{\"index\":3,\"op\":\"get\",\"name\":\"b\",\"held\":false,\"holders\":[]}");
}

/* ---- rates --------------------------------------------------------------------------------------------------------- */

static void test_outcomes_in_the_envelope_of_kv(void **state)
{
    (void)state;
    static const struct {
        enum call_outcome outcome;
        uint32_t status, retry_after_s;
        const char *begins;
    } cases[] = {
        {CALL_OVERLOADED, 429, 3, "{\"error\":\"overloaded\",\"detail\":\""},
        {CALL_STORAGE_FULL, 507, 0, "{\"error\":\"storage_full\",\"detail\":\""},
        {CALL_TIMEOUT, 503, 1, "{\"error\":\"kv_unavailable\",\"reason\":\"kv_timeout\",\"detail\":\""},
        {CALL_NO_LEADER, 503, 1, "{\"error\":\"kv_unavailable\",\"reason\":\"kv_no_leader\",\"detail\":\""},
        {CALL_UNKNOWN, 503, 1, "{\"error\":\"kv_unavailable\",\"reason\":\"kv_retry\",\"detail\":\""},
        {CALL_CANCELLED, 503, 1, "{\"error\":\"kv_unavailable\",\"reason\":\"kv_retry\",\"detail\":\""},
        {CALL_DAMAGED, 500, 0, "{\"error\":\"kv_error\",\"detail\":\""},
    };
    struct request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->call.outcome = CALL_OK;
    assert_true(kv_answer_outcome(r) && r->status == 0 && r->out.len == 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r->call.outcome = cases[i].outcome;
        r->call.retry_after_s = 3;
        buf_text(&r->out, "half an answer");
        assert_false(kv_answer_outcome(r));
        assert_int_equal(r->status, cases[i].status);
        assert_int_equal(r->retry_after_s, cases[i].retry_after_s);
        size_t len = strlen(cases[i].begins);
        if (r->out.len < len || memcmp(r->out.at, cases[i].begins, len) != 0) fail_msg("%.*s", (int)r->out.len, r->out.at);
    }
    buf_free(&r->out);
    free(r);
}

static struct uuid tenant_number(uint32_t n)
{
    struct uuid id = {{0}};
    memcpy(id.bytes, &n, sizeof n);
    return id;
}

static void test_rates(void **state)
{
    (void)state;
    assert_null(kv_rates_new(&config));
    assert_int_equal(kv_rates_take(NULL, tenant, KV_RATE_WRITE, 5), 0);
    config.kv_write_rate = 10;
    config.kv_write_burst = 3;
    struct kv_rates *k = kv_rates_new(&config);
    int64_t now = 1000000;
    for (int i = 0; i < 3; i++) assert_int_equal(kv_rates_take(k, tenant, KV_RATE_WRITE, now), 0);
    assert_int_equal(kv_rates_take(k, tenant, KV_RATE_WRITE, now), 1);
    assert_int_equal(kv_rates_take(k, tenant, KV_RATE_READ, now), 0); /* no limit there */
    assert_int_equal(kv_rates_take(k, tenant_number(9), KV_RATE_WRITE, now), 0);
    now += 100000;
    assert_int_equal(kv_rates_take(k, tenant, KV_RATE_WRITE, now), 0);
    assert_int_equal(kv_rates_take(k, tenant, KV_RATE_WRITE, now), 1);
    now += 10000000;
    for (int i = 0; i < 3; i++) assert_int_equal(kv_rates_take(k, tenant, KV_RATE_WRITE, now), 0);
    assert_int_equal(kv_rates_take(k, tenant, KV_RATE_WRITE, now), 1);
    kv_rates_free(k);
}

static void test_rates_forget_idle_tenants(void **state)
{
    (void)state;
    config.kv_read_rate = 1;
    struct kv_rates *k = kv_rates_new(&config);
    int64_t now = 0;
    for (uint32_t i = 0; i < KV_RATES_TENANTS_MAX; i++) {
        assert_int_equal(kv_rates_take(k, tenant_number(i), KV_RATE_READ, now), 0);
    }
    assert_int_equal(kv_rates_take(k, tenant_number(77777), KV_RATE_READ, now), 1); /* no room, and nobody is idle */
    assert_int_equal(kv_rates_take(k, tenant_number(5), KV_RATE_READ, now), 0);
    now += 1500000;
    assert_int_equal(kv_rates_take(k, tenant_number(77777), KV_RATE_READ, now), 0);
    assert_int_equal(kv_rates_take(k, tenant_number(5), KV_RATE_READ, now), 0); /* was kept: two a burst, and one is back */
    assert_int_equal(kv_rates_take(k, tenant_number(5), KV_RATE_READ, now), 1);
    kv_rates_free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_refusal, setup, teardown),
        cmocka_unit_test_setup_teardown(test_counts_are_limited, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes_are_limited, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ops_named_by_the_path, setup, teardown),
        cmocka_unit_test_setup_teardown(test_listings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_commands_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_values_are_compacted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_elements, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_refusal_of_locks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lock_elements, setup, teardown),
        cmocka_unit_test_setup_teardown(test_outcomes_in_the_envelope_of_kv, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rates_forget_idle_tenants, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
