/* The variables of a cluster: peers, own place, secret, times, groups and tenants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/config.h"

#define TOKEN "QUEEN_RAFT_TOKEN=0123456789abcdef"
#define PEERS "QUEEN_RAFT_PEERS=1=a:7400/a:6632,2=b:7400/b:6632,3=c:7401/c:6633"
#define TENANT "00000000-0000-0000-0000-0000000000"

static bool read_with(struct config *c, const char *const *env, struct buf *error)
{
    clearenv();
    for (; *env != NULL; env++) {
        char text[4096];
        snprintf(text, sizeof text, "%s", *env);
        char *equals = strchr(text, '=');
        *equals = '\0';
        setenv(text, equals + 1, 1);
    }
    buf_clear(error);
    return config_read(c, 0, NULL, error);
}

static void reads(struct config *c, const char *const *env)
{
    struct buf error = {0};
    bool good = read_with(c, env, &error);
    if (!good) print_message("%.*s\n", (int)error.len, error.at);
    assert_true(good);
    buf_free(&error);
}

/* The refusal names the variable and what is wrong. */
static void refuses(const char *const *env, const char *name, const char *says)
{
    struct config *c = malloc(sizeof *c);
    struct buf error = {0};
    assert_non_null(c);
    assert_false(read_with(c, env, &error));
    buf_byte(&error, '\0');
    if (strstr(error.at, name) == NULL || strstr(error.at, says) == NULL) fail_msg("%s: no %s, %s", error.at, name, says);
    buf_free(&error);
    free(c);
}

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_alone(void **state)
{
    (void)state;
    static struct config c;
    reads(&c, ENV("PORT=1"));
    assert_false(config_clustered(&c));
    assert_int_equal(c.peer_count, 0);
    assert_int_equal(c.groups, 1);
    assert_int_equal(c.node_id, 0);
    assert_int_equal(c.promote_max_lag, 1000);
    assert_int_equal(c.ready_lag_ms, 2000);
    assert_int_equal(c.ready_lag_entries, 1000);
    assert_int_equal(c.ready_quorum_ms, 5000);
    assert_int_equal(c.leader_wait_ms, 8000);
    assert_int_equal(c.keep_bytes, 256 << 20);
    reads(&c, ENV("QUEEN_RAFT_REPLICATOR=local", "QUEEN_RAFT_NODE_ID=7"));
    assert_int_equal(c.node_id, 7);
    refuses(ENV("QUEEN_RAFT_REPLICATOR=raft"), "QUEEN_RAFT_REPLICATOR", "QUEEN_RAFT_PEERS");
    refuses(ENV("QUEEN_RAFT_REPLICATOR=zookeeper"), "QUEEN_RAFT_REPLICATOR", "zookeeper");
}

static void test_peers(void **state)
{
    (void)state;
    static struct config c;
    reads(&c, ENV("QUEEN_RAFT_PEERS= 3=c:7402/c:6634 , 1=a:7400/a:6632,2=[fd00::2]:7401/[fd00::2]:6633", "QUEEN_RAFT_NODE_ID=2",
                  TOKEN));
    assert_true(config_clustered(&c));
    assert_int_equal(c.peer_count, 3);
    assert_int_equal(c.peers[0].id, 1);
    assert_string_equal(c.peers[0].raft_host, "a");
    assert_int_equal(c.peers[0].raft_port, 7400);
    assert_string_equal(c.peers[0].http, "a:6632");
    assert_string_equal(c.peers[1].raft_host, "fd00::2");
    assert_string_equal(c.peers[1].http, "[fd00::2]:6633");
    assert_int_equal(c.peers[2].id, 3);
    assert_string_equal(c.raft_host, "0.0.0.0");
    assert_int_equal(c.raft_port, 7401);
    assert_string_equal(c.advertise_raft, "[fd00::2]:7401");
    assert_string_equal(c.advertise_http, "[fd00::2]:6633");
    reads(&c, ENV(PEERS, "QUEEN_RAFT_NODE_ID=1", TOKEN, "QUEEN_RAFT_REPLICATOR=openraft", "QUEEN_RAFT_LISTEN=127.0.0.1:9",
                  "QUEEN_RAFT_ADVERTISE=x:1/y:2"));
    assert_string_equal(c.raft_host, "127.0.0.1");
    assert_int_equal(c.raft_port, 9);
    assert_string_equal(c.advertise_raft, "x:1");
    assert_string_equal(c.advertise_http, "y:2");
}

static void test_peers_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"1",
                                      "1=a",
                                      "1=a:1",
                                      "1=a:1/b",
                                      "0=a:1/b:2",
                                      "x=a:1/b:2",
                                      "1=a:0/b:2",
                                      "1=a:65536/b:2",
                                      "1=:1/b:2",
                                      "1=a b:1/b:2",
                                      "1=a:1/b:2,",
                                      ",1=a:1/b:2",
                                      "1=fd00::1:1/b:2",
                                      "1=a:1/b:2;2=c:1/d:2",
                                      "99999999999=a:1/b:2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "QUEEN_RAFT_PEERS=%s", bad[i]);
        if (strcmp(bad[i], "1=a:1/b:2,") == 0) continue; /* a comma at the end is none too many */
        refuses(ENV(text, "QUEEN_RAFT_NODE_ID=1", TOKEN), "QUEEN_RAFT_PEERS", "id=raft_host:port/http_host:port");
    }
    refuses(ENV("QUEEN_RAFT_PEERS=1=a:1/b:2,1=c:1/d:2", "QUEEN_RAFT_NODE_ID=1", TOKEN), "QUEEN_RAFT_PEERS", "twice");
    refuses(ENV("QUEEN_RAFT_PEERS=1=a:1/b:2,2=a:1/d:2", "QUEEN_RAFT_NODE_ID=1", TOKEN), "QUEEN_RAFT_PEERS", "a:1");
    refuses(ENV("QUEEN_RAFT_PEERS=1=a:1/a:2,2=b:1/b:2,3=c:1/c:2,4=d:1/d:2,5=e:1/e:2,6=f:1/f:2,7=g:1/g:2,8=h:1/h:2,9=i:1/i:2,"
                "10=j:1/j:2",
                "QUEEN_RAFT_NODE_ID=1", TOKEN),
            "QUEEN_RAFT_PEERS", "more than 9");
    refuses(ENV(PEERS, TOKEN), "QUEEN_RAFT_NODE_ID", "needed");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=4"), "QUEEN_RAFT_NODE_ID", "QUEEN_RAFT_PEERS does not name");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=0"), "QUEEN_RAFT_NODE_ID", "1 to");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=one"), "QUEEN_RAFT_NODE_ID", "ordinal");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=1", "QUEEN_RAFT_REPLICATOR=local"), "QUEEN_RAFT_REPLICATOR", "contradicts");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=1", "QUEEN_RAFT_LISTEN=7400"), "QUEEN_RAFT_LISTEN", "host:port");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=1", "QUEEN_RAFT_ADVERTISE=a:1"), "QUEEN_RAFT_ADVERTISE", "http_host:port");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=1", "QUEEN_RAFT_TLS_KEY=/k"), "QUEEN_RAFT_TLS_CERT", "all or none");
}

static void test_ordinal(void **state)
{
    (void)state;
    static struct config c;
    reads(&c, ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=ordinal", "HOSTNAME=queen-2"));
    assert_int_equal(c.node_id, 3);
    assert_int_equal(c.raft_port, 7401);
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=ordinal", "HOSTNAME=queen"), "QUEEN_RAFT_NODE_ID", "HOSTNAME");
    refuses(ENV(PEERS, TOKEN, "QUEEN_RAFT_NODE_ID=ordinal", "HOSTNAME=queen-3"), "QUEEN_RAFT_NODE_ID", "does not name");
}

static void test_join(void **state)
{
    (void)state;
    static struct config c;
    reads(&c, ENV("QUEEN_RAFT_JOIN=true", "QUEEN_RAFT_NODE_ID=4", "QUEEN_RAFT_LISTEN=0.0.0.0:7400", TOKEN));
    assert_true(config_clustered(&c));
    reads(&c, ENV("QUEEN_RAFT_JOIN=true", "QUEEN_RAFT_NODE_ID=4", "QUEEN_RAFT_LISTEN=0.0.0.0:7400", TOKEN, PEERS));
    refuses(ENV("QUEEN_RAFT_JOIN=true", "QUEEN_RAFT_NODE_ID=4", TOKEN), "QUEEN_RAFT_LISTEN", "needed");
    reads(&c, ENV("QUEEN_RAFT_JOIN=true", "QUEEN_RAFT_NODE_ID=4", TOKEN,
                  "QUEEN_RAFT_PEERS=", "QUEEN_RAFT_ADVERTISE=d:7404/d:6632"));
    assert_int_equal(c.raft_port, 7404);
    refuses(ENV("QUEEN_RAFT_JOIN=true", "QUEEN_RAFT_LISTEN=0.0.0.0:7400", TOKEN), "QUEEN_RAFT_NODE_ID", "needed");
    refuses(ENV("QUEEN_RAFT_JOIN=true", "QUEEN_RAFT_NODE_ID=4", "QUEEN_RAFT_LISTEN=0.0.0.0:7400"), "QUEEN_RAFT_TOKEN",
            "secret");
    refuses(ENV("QUEEN_RAFT_JOIN=maybe"), "QUEEN_RAFT_JOIN", "maybe");
}

static void test_secret(void **state)
{
    (void)state;
    static struct config c;
    char path[] = "/tmp/queen-token-XXXXXX", variable[128];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    snprintf(variable, sizeof variable, "QUEEN_RAFT_TOKEN_FILE=%s", path);
    refuses(ENV(PEERS, "QUEEN_RAFT_NODE_ID=1"), "QUEEN_RAFT_TOKEN", "QUEEN_RAFT_PEERS");
    refuses(ENV(PEERS, "QUEEN_RAFT_NODE_ID=1", "QUEEN_RAFT_TOKEN=short"), "QUEEN_RAFT_TOKEN", "at least 16");
    refuses(ENV(PEERS, "QUEEN_RAFT_NODE_ID=1", variable), "QUEEN_RAFT_TOKEN", "secret"); /* an empty file */
    assert_int_equal(write(fd, "  fedcba9876543210\n", 19), 19);
    reads(&c, ENV(PEERS, "QUEEN_RAFT_NODE_ID=1", variable));
    assert_string_equal(c.token, "fedcba9876543210");
    refuses(ENV(PEERS, "QUEEN_RAFT_NODE_ID=1", variable, TOKEN), "QUEEN_RAFT_TOKEN_FILE", "both");
    close(fd);
    unlink(path);
    refuses(ENV(PEERS, "QUEEN_RAFT_NODE_ID=1", variable), "QUEEN_RAFT_TOKEN_FILE", path);
    char longer[700] = "QUEEN_RAFT_TOKEN=";
    memset(longer + strlen(longer), 'x', 600);
    refuses(ENV(PEERS, "QUEEN_RAFT_NODE_ID=1", longer), "QUEEN_RAFT_TOKEN", "511");
}

static void test_times(void **state)
{
    (void)state;
    static struct config c;
    reads(&c, ENV("PORT=1"));
    assert_int_equal(c.election_ms, 300);
    assert_int_equal(c.heartbeat_ms, 50);
    reads(&c, ENV("QUEEN_RAFT_PROFILE=WAN"));
    assert_int_equal(c.election_ms, 1000);
    assert_int_equal(c.heartbeat_ms, 100);
    reads(&c, ENV("QUEEN_RAFT_PROFILE=lan", "QUEEN_RAFT_ELECTION_MS=2000"));
    assert_int_equal(c.election_ms, 2000);
    assert_int_equal(c.heartbeat_ms, 50);
    reads(&c, ENV("QUEEN_RAFT_ELECTION_MS=100"));
    assert_int_equal(c.heartbeat_ms, 20);
    refuses(ENV("QUEEN_RAFT_PROFILE=moon"), "QUEEN_RAFT_PROFILE", "moon");
    refuses(ENV("QUEEN_RAFT_ELECTION_MS=49"), "QUEEN_RAFT_ELECTION_MS", "50");
    refuses(ENV("QUEEN_RAFT_LEADER_WAIT_MS=60001"), "QUEEN_RAFT_LEADER_WAIT_MS", "60000");
    refuses(ENV("QUEEN_RAFT_READY_LAG_MS=0"), "QUEEN_RAFT_READY_LAG_MS", "1 to");
    refuses(ENV("QUEEN_RAFT_KEEP_BYTES=-1"), "QUEEN_RAFT_KEEP_BYTES", "-1");
}

static void test_groups(void **state)
{
    (void)state;
    static struct config c;
    reads(&c, ENV("QUEEN_RAFT_GROUPS=4", "QUEEN_TENANT_GROUPS=" TENANT "0a=3, " TENANT "0b=0"));
    assert_int_equal(c.groups, 4);
    assert_int_equal(c.tenant_count, 2);
    assert_int_equal(c.tenants[0].tenant.bytes[15], 10);
    assert_int_equal(c.tenants[0].group, 3);
    assert_int_equal(c.tenants[1].group, 0);
    refuses(ENV("QUEEN_RAFT_GROUPS=0"), "QUEEN_RAFT_GROUPS", "1 to 64");
    refuses(ENV("QUEEN_RAFT_GROUPS=65"), "QUEEN_RAFT_GROUPS", "1 to 64");
    refuses(ENV("QUEEN_RAFT_GROUPS=2", "QUEEN_TENANT_GROUPS=" TENANT "0a=2"), "QUEEN_TENANT_GROUPS", "0 to 1");
    refuses(ENV("QUEEN_TENANT_GROUPS=" TENANT "0a=0," TENANT "0A=0"), "QUEEN_TENANT_GROUPS", "twice");
    refuses(ENV("QUEEN_TENANT_GROUPS=x=0"), "QUEEN_TENANT_GROUPS", "UUID");
    refuses(ENV("QUEEN_TENANT_GROUPS=" TENANT "0a"), "QUEEN_TENANT_GROUPS", "number");
}

static void test_addresses(void **state)
{
    (void)state;
    char host[16];
    uint16_t port = 0;
    assert_true(config_address(slice_of("a.example:80"), host, sizeof host, &port));
    assert_string_equal(host, "a.example");
    assert_int_equal(port, 80);
    assert_true(config_address(slice_of("[::1]:7400"), host, sizeof host, &port));
    assert_string_equal(host, "::1");
    static const char *const bad[] = {"",    "a", "a:", ":1", "a:0", "a:65536", "::1:80", "[]:1", "a/b:1", "0123456789abcdef:1",
                                      "a:1 "};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(config_address(slice_of(bad[i]), host, sizeof host, &port));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),   cmocka_unit_test(test_peers),  cmocka_unit_test(test_peers_refused),
        cmocka_unit_test(test_ordinal), cmocka_unit_test(test_join),   cmocka_unit_test(test_secret),
        cmocka_unit_test(test_times),   cmocka_unit_test(test_groups), cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
