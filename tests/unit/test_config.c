/* The configuration: every variable is read, kept in range, and refused with its name when it cannot be understood. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/logger.h"
#include "broker/config.h"

extern char **environ;

/* Reads with an environment of "NAME=value" strings and the given arguments. */
static bool read_with(struct config *c, const char *const *env, char **argv, int argc, struct buf *error)
{
    clearenv();
    for (; env != NULL && *env != NULL; env++) {
        char text[512];
        snprintf(text, sizeof text, "%s", *env);
        char *equals = strchr(text, '=');
        *equals = '\0';
        setenv(text, equals + 1, 1);
    }
    buf_clear(error);
    return config_read(c, argc, argv, error);
}

static bool reads(struct config *c, const char *one)
{
    struct buf error = {0};
    const char *env[] = {one, NULL};
    bool good = read_with(c, one == NULL ? NULL : env, NULL, 0, &error);
    if (!good) print_message("%.*s\n", (int)error.len, error.at);
    buf_free(&error);
    return good;
}

static void refuses(const char *one, const char *name, const char *says)
{
    struct config c;
    struct buf error = {0};
    const char *env[] = {one, NULL};
    assert_false(read_with(&c, env, NULL, 0, &error));
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, name));
    assert_non_null(strstr(error.at, says));
    buf_free(&error);
}

static void test_defaults(void **state)
{
    (void)state;
    struct config c;
    assert_true(reads(&c, NULL));
    assert_string_equal(c.dir, "./data");
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 6632);
    assert_in_range(c.body_bytes_max, 4 << 20, 64 << 20);
    assert_int_equal(c.segment_bytes, 64 << 20);
    assert_in_range(c.cache_bytes, 8 << 20, 512 << 20);
    assert_int_equal(c.cache_bytes, c.memory.log_cache);
    assert_int_equal(c.memory_max, c.memory.total);
    assert_true(c.memory_max >= 128 << 20);
    assert_int_equal(c.durable_every_ms, 1000);
    assert_int_equal(c.durable_every_bytes, 256 << 20);
    assert_int_equal(c.disk_high_pct, 85);
    assert_int_equal(c.disk_low_pct, 80);
    assert_in_range(c.admit_bytes_max, 5 << 20, 128 << 20);
    assert_int_equal(c.pop_timeout_ms, 30000);
    assert_int_equal(c.statement_timeout_ms, 30000);
    assert_false(c.subscribe_all);
    assert_false(c.tenancy_header);
    assert_in_range(c.edge_threads, 1, 8);
    assert_true(c.connections_max > 0);
    assert_true(c.server_id[0] != '\0');
    assert_int_equal(c.log_level, LOGGER_INFO);
    assert_false(c.log_json);
    assert_string_equal(c.version, QUEEN_VERSION);
}

static void test_booleans(void **state)
{
    (void)state;
    static const char *const yes[] = {"true", "1", "yes", "on", "TRUE", "Yes", " on ", "On\t"};
    static const char *const no[] = {"false", "0", "no", "off", "FALSE", " No", "oFF"};
    static const char *const bad[] = {"ture", "y", "2", "enabled", "true false", "-1", "t"};
    char text[64];
    struct config c;
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        snprintf(text, sizeof text, "QUEEN_LOG_JSON=%s", yes[i]);
        assert_true(reads(&c, text));
        assert_true(c.log_json);
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        snprintf(text, sizeof text, "QUEEN_LOG_JSON=%s", no[i]);
        assert_true(reads(&c, text));
        assert_false(c.log_json);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "QUEEN_LOG_JSON=%s", bad[i]);
        refuses(text, "QUEEN_LOG_JSON", bad[i]);
        refuses(text, "QUEEN_LOG_JSON", "yes/no");
    }
    assert_true(reads(&c, "QUEEN_LOG_JSON="));
    assert_false(c.log_json);
    assert_true(reads(&c, "QUEEN_LOG_JSON=  "));
    assert_false(c.log_json);
}

static void test_numbers(void **state)
{
    (void)state;
    struct config c;
    static const struct {
        const char *env, *name, *says;
    } bad[] = {
        {"PORT=65536", "PORT", "0 to 65535"},
        {"PORT=http", "PORT", "http"},
        {"PORT=-1", "PORT", "-1"},
        {"PORT=80 81", "PORT", "80 81"},
        {"PORT=1e3", "PORT", "1e3"},
        {"PORT=99999999999999999999999", "PORT", "65535"},
        {"QUEEN_MAX_BODY_BYTES=100", "QUEEN_MAX_BODY_BYTES", "1024"},
        {"QUEEN_RAFT_SEGMENT_BYTES=1048577", "QUEEN_RAFT_SEGMENT_BYTES", "power of two"},
        {"QUEEN_RAFT_SEGMENT_BYTES=524288", "QUEEN_RAFT_SEGMENT_BYTES", "1048576"},
        {"QUEEN_RAFT_SEGMENT_BYTES=2147483648", "QUEEN_RAFT_SEGMENT_BYTES", "1073741824"},
        {"QUEEN_RAFT_DURABLE_EVERY_MS=0", "QUEEN_RAFT_DURABLE_EVERY_MS", "1 to"},
        {"QUEEN_RAFT_DISK_HIGH_PCT=101", "QUEEN_RAFT_DISK_HIGH_PCT", "1 to 100"},
        {"QUEEN_RAFT_DISK_HIGH_PCT=79", "QUEEN_RAFT_DISK_LOW_PCT", "79"},
        {"DEFAULT_TIMEOUT=0", "DEFAULT_TIMEOUT", "60000"},
        {"POP_DEFAULT_TIMEOUT_MS=60001", "POP_DEFAULT_TIMEOUT_MS", "60000"},
        {"QUEEN_STMT_TIMEOUT_MS=soon", "QUEEN_STMT_TIMEOUT_MS", "soon"},
        {"QUEEN_EDGE_THREADS=0", "QUEEN_EDGE_THREADS", "1 to 32"},
        {"QUEEN_MEMORY_MAX=64M", "QUEEN_MEMORY_MAX", "at least"},
        {"QUEEN_MEMORY_MAX=0", "QUEEN_MEMORY_MAX", "1 to"},
        {"QUEEN_MEMORY_MAX=1GB", "QUEEN_MEMORY_MAX", "1GB"},
        {"QUEEN_MEMORY_MAX=M", "QUEEN_MEMORY_MAX", "M is not"},
        {"QUEEN_MEMORY_MAX=99999999999T", "QUEEN_MEMORY_MAX", "1 to"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) refuses(bad[i].env, bad[i].name, bad[i].says);
    assert_true(reads(&c, "PORT=0"));
    assert_int_equal(c.port, 0);
    assert_true(reads(&c, "PORT= 7000 "));
    assert_int_equal(c.port, 7000);
    assert_true(reads(&c, "QUEEN_RAFT_SEGMENT_BYTES=1048576"));
    assert_int_equal(c.segment_bytes, 1 << 20);
    assert_true(reads(&c, "QUEEN_RAFT_ADMIT_MAX_MB=0"));
    assert_int_equal(c.admit_bytes_max, 0);
    assert_true(reads(&c, "QUEEN_RAFT_ADMIT_MAX_MB=3"));
    assert_int_equal(c.admit_bytes_max, 3 << 20);
    assert_true(reads(&c, "QUEEN_EDGE_THREADS=5"));
    assert_int_equal(c.edge_threads, 5);
    assert_true(reads(&c, "QUEEN_RAFT_SEGMENT_BYTES=2M"));
    assert_int_equal(c.segment_bytes, 2 << 20);
    assert_true(reads(&c, "QUEEN_MEMORY_MAX=1g"));
    assert_int_equal(c.memory_max, 1 << 30);
    assert_int_equal(c.cache_bytes, 64 << 20);
    assert_int_equal(c.body_bytes_max, 32 << 20);
    assert_true(reads(&c, "QUEEN_MEMORY_MAX= 512M "));
    assert_int_equal(c.memory_max, 512 << 20);
    assert_true(reads(&c, "QUEEN_MEMORY_MAX=524288K"));
    assert_int_equal(c.memory_max, 512 << 20);
    assert_true(reads(&c, "QUEEN_CONNECTIONS_MAX=77"));
    assert_int_equal(c.connections_max, 77);
    assert_true(reads(&c, "QUEEN_LOG_CACHE_BYTES=2097152"));
    assert_int_equal(c.cache_bytes, 2 << 20);
}

static void test_timeouts_have_two_names(void **state)
{
    (void)state;
    struct config c;
    struct buf error = {0};
    const char *both[] = {"POP_DEFAULT_TIMEOUT_MS=111", "DEFAULT_TIMEOUT=222", NULL};
    assert_true(reads(&c, "POP_DEFAULT_TIMEOUT_MS=111"));
    assert_int_equal(c.pop_timeout_ms, 111);
    assert_true(read_with(&c, both, NULL, 0, &error));
    assert_int_equal(c.pop_timeout_ms, 222);
    buf_free(&error);
}

static void test_hosts(void **state)
{
    (void)state;
    struct config c;
    struct buf error = {0};
    assert_true(reads(&c, "HOST=0.0.0.0"));
    assert_string_equal(c.host, "0.0.0.0");
    assert_true(reads(&c, "HOST="));
    assert_string_equal(c.host, "127.0.0.1");
    assert_true(reads(&c, "QUEEN_BIND_ADDR=::1"));
    assert_string_equal(c.host, "::1");
    const char *both[] = {"HOST=1.1.1.1", "QUEEN_BIND_ADDR=2.2.2.2", NULL};
    assert_true(read_with(&c, both, NULL, 0, &error));
    assert_string_equal(c.host, "2.2.2.2");
    refuses("QUEEN_BIND_ADDR=", "QUEEN_BIND_ADDR", "without a port");
    refuses("QUEEN_BIND_ADDR=0.0.0.0:80", "QUEEN_BIND_ADDR", "0.0.0.0:80");
    refuses("HOST=[::]:80", "HOST", "[::]:80");
    refuses("HOST=a b", "HOST", "a b");
    buf_free(&error);
}

static void test_words(void **state)
{
    (void)state;
    struct config c;
    static const char *const news[] = {"new", "NEW", "new-only", "new_only", "newonly"};
    char text[64];
    for (size_t i = 0; i < sizeof news / sizeof news[0]; i++) {
        snprintf(text, sizeof text, "DEFAULT_SUBSCRIPTION_MODE=%s", news[i]);
        assert_true(reads(&c, text));
        assert_false(c.subscribe_all);
    }
    assert_true(reads(&c, "DEFAULT_SUBSCRIPTION_MODE=all"));
    assert_true(c.subscribe_all);
    assert_true(reads(&c, "DEFAULT_SUBSCRIPTION_MODE=earliest"));
    assert_true(c.subscribe_all);

    assert_true(reads(&c, "LOG_LEVEL=debug"));
    assert_int_equal(c.log_level, LOGGER_DEBUG);
    assert_true(reads(&c, "RUST_LOG=hyper=trace,WARN,queen=debug"));
    assert_int_equal(c.log_level, LOGGER_WARN);
    struct buf error = {0};
    const char *both[] = {"LOG_LEVEL=debug", "RUST_LOG=error", NULL};
    assert_true(read_with(&c, both, NULL, 0, &error));
    assert_int_equal(c.log_level, LOGGER_ERROR);
    buf_free(&error);
    refuses("LOG_LEVEL=verbose", "LOG_LEVEL", "verbose");
    refuses("RUST_LOG=info,loud", "RUST_LOG", "loud");
}

static void test_tenancy_needs_a_trusted_proxy(void **state)
{
    (void)state;
    struct config c;
    struct buf error = {0};
    const char *both[] = {"QUEEN_TENANCY_HEADER=true", "QUEEN_KV_TRUSTED_PROXY=yes", NULL};
    refuses("QUEEN_TENANCY_HEADER=true", "QUEEN_TENANCY_HEADER", "QUEEN_KV_TRUSTED_PROXY");
    refuses("QUEEN_KV_TRUSTED_PROXY=maybe", "QUEEN_KV_TRUSTED_PROXY", "maybe");
    assert_true(read_with(&c, both, NULL, 0, &error));
    assert_true(c.tenancy_header);
    buf_free(&error);
}

static void test_flags(void **state)
{
    (void)state;
    struct config c;
    struct buf error = {0};
    const char *env[] = {"PORT=7000", "QUEEN_RAFT_DIR=/somewhere", NULL};
    char *argv[] = {(char[]){"--data"}, (char[]){"/d"}, (char[]){"--port=9"}, (char[]){"--host"}, (char[]){"0.0.0.0"}};
    assert_true(read_with(&c, env, argv, 5, &error));
    assert_string_equal(c.dir, "/d");
    assert_int_equal(c.port, 9);
    assert_string_equal(c.host, "0.0.0.0");
    assert_true(read_with(&c, env, NULL, 0, &error));
    assert_string_equal(c.dir, "/somewhere");

    char *help[] = {(char[]){"--help"}};
    assert_false(read_with(&c, NULL, help, 1, &error));
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, "usage: queen serve"));
    static const char *const bad[][2] = {{"--prot", "7"}, {"serve", ""}, {"--port", "x"}, {"--data", ""}, {"--host", "h:1"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char first[16], second[16];
        snprintf(first, sizeof first, "%s", bad[i][0]);
        snprintf(second, sizeof second, "%s", bad[i][1]);
        char *args[] = {first, second};
        assert_false(read_with(&c, NULL, args, 2, &error));
        buf_byte(&error, '\0');
        assert_non_null(strstr(error.at, first));
    }
    char *lonely[] = {(char[]){"--data"}};
    assert_false(read_with(&c, NULL, lonely, 1, &error));
    buf_byte(&error, '\0');
    assert_non_null(strstr(error.at, "needs a value"));
    buf_free(&error);
}

static void test_what_is_missing_is_not_silently_left_out(void **state)
{
    (void)state;
    struct config c;
    refuses("JWT_ENABLED=true", "JWT_ENABLED", "authentication");
    refuses("JWT_ENABLED=maybe", "JWT_ENABLED", "maybe");
    refuses("QUEEN_ENCRYPTION_KEY=00", "QUEEN_ENCRYPTION_KEY", "encryption");
    refuses("QUEEN_RAFT_FORCE_RECOVER=1", "QUEEN_RAFT_FORCE_RECOVER", "recovery");
    refuses("QUEEN_KAFKA_EMBEDDED=on", "QUEEN_KAFKA_EMBEDDED", "Kafka");
    assert_true(reads(&c, "JWT_ENABLED=no"));
    assert_true(reads(&c, "QUEEN_RAFT_REPLICATOR=local"));
    assert_true(reads(&c, "QUEEN_RAFT_GROUPS=1"));
}

static void test_long_texts_are_refused(void **state)
{
    (void)state;
    char text[400] = "QUEEN_SERVER_ID=";
    memset(text + strlen(text), 'x', 300);
    refuses(text, "QUEEN_SERVER_ID", "300");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_booleans),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_timeouts_have_two_names),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_tenancy_needs_a_trusted_proxy),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_what_is_missing_is_not_silently_left_out),
        cmocka_unit_test(test_long_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
