/* Connections inside TLS, with certificates made here. */
#include "test_net_rig.h"

#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "net/hello.h"

static struct node a, b;
static char dir[] = "/tmp/test-net-tls-XXXXXX";

/* An authority, or a node's certificate by one. */
struct issued {
    EVP_PKEY *key;
    X509 *cert;
};

static X509_NAME *name_of(const char *common)
{
    X509_NAME *name = X509_NAME_new();
    assert_int_equal(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)common, -1, -1, 0), 1);
    return name;
}

static struct issued issue(const struct issued *by, const char *common, long valid_s)
{
    static long serial = 1;
    struct issued i = {.key = EVP_EC_gen("P-256"), .cert = X509_new()};
    assert_non_null(i.key);
    X509_NAME *name = name_of(common);
    X509_set_version(i.cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(i.cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(i.cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(i.cert), valid_s);
    X509_set_subject_name(i.cert, name);
    X509_set_issuer_name(i.cert, by == NULL ? name : X509_get_subject_name(by->cert));
    X509_set_pubkey(i.cert, i.key);
    if (by == NULL) {
        X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, "critical,CA:TRUE");
        assert_non_null(e);
        X509_add_ext(i.cert, e, -1);
        X509_EXTENSION_free(e);
    }
    assert_true(X509_sign(i.cert, by == NULL ? i.key : by->key, EVP_sha256()) > 0);
    X509_NAME_free(name);
    return i;
}

static void issued_free(struct issued i)
{
    EVP_PKEY_free(i.key);
    X509_free(i.cert);
}

static void issued_write(const struct issued *i, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s.crt", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(PEM_write_X509(f, i->cert), 1);
    fclose(f);
    snprintf(path, sizeof path, "%s/%s.key", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(PEM_write_PrivateKey(f, i->key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(f);
}

static const char *const files[] = {"ca", "other-ca", "n1", "n2", "stranger", "expired"};

static int certificates_make(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    struct issued ca = issue(NULL, "cluster", 3600), other = issue(NULL, "elsewhere", 3600);
    struct issued n1 = issue(&ca, "n1", 3600), n2 = issue(&ca, "n2", 3600);
    struct issued stranger = issue(&other, "stranger", 3600), expired = issue(&ca, "expired", -60);
    const struct issued *all[] = {&ca, &other, &n1, &n2, &stranger, &expired};
    for (size_t i = 0; i < 6; i++) {
        issued_write(all[i], files[i]);
        issued_free(*all[i]);
    }
    return 0;
}

static int certificates_remove(void **state)
{
    (void)state;
    char path[200];
    for (size_t i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "%s/%s.crt", dir, files[i]);
        unlink(path);
        snprintf(path, sizeof path, "%s/%s.key", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}

static void node_tls(struct node *n, uint64_t id, const char *name, const char *ca)
{
    static char paths[2][3][200];
    node_init(n, id);
    if (name != NULL) {
        char(*p)[200] = paths[id - 1];
        snprintf(p[0], sizeof p[0], "%s/%s.crt", dir, name);
        snprintf(p[1], sizeof p[1], "%s/%s.key", dir, name);
        snprintf(p[2], sizeof p[2], "%s/%s.crt", dir, ca);
        n->options.tls_cert = p[0];
        n->options.tls_key = p[1];
        n->options.tls_ca = p[2];
    }
    node_open_net(n);
    node_attach(n, CHANNEL, NULL);
    node_go(n);
}

static void halt(void)
{
    node_halt(&a);
    node_halt(&b);
}

static void frames_travel_inside_tls(void **state)
{
    (void)state;
    node_tls(&a, 1, "n1", "ca");
    node_tls(&b, 2, "n2", "ca");
    struct proxy p;
    proxy_start(&p, net_port(b.net));
    node_dial(&a, 2, p.port);
    node_dial(&b, 1, net_port(a.net));
    eventually(net_connected(a.net, 2) && net_connected(b.net, 1));
    static const size_t sizes[] = {0, 1, 100, 65536, 131064, 1 << 20, 20 << 20, 5};
    for (uint32_t i = 0; i < 8; i++) {
        assert_true(node_send(&a, 2, sizes[i], 50 + i));
        assert_true(node_send(&b, 1, sizes[i], 50 + i));
    }
    eventually(node_count(&b, NOTE_FRAME) == 8 && node_count(&a, NOTE_FRAME) == 8);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(node_frame_at(&b, i).len, sizes[i]);
        assert_true(node_frame_at(&b, i).right && node_frame_at(&a, i).right);
    }
    /* Nothing of ours is to be seen on the way: a TLS record of a handshake begins it. */
    pthread_mutex_lock(&p.lock);
    assert_int_equal(p.seen[0], 22);
    assert_null(memmem(p.seen, p.seen_len, "QNET", 4));
    pthread_mutex_unlock(&p.lock);
    usleep(1500000); /* signs of life */
    assert_true(net_connected(a.net, 2));
    proxy_halt(&p);
    halt();
}

static void a_turned_byte_ends_the_tls_connection(void **state)
{
    (void)state;
    node_tls(&a, 1, "n1", "ca");
    node_tls(&b, 2, "n2", "ca");
    struct proxy p;
    proxy_start(&p, net_port(b.net));
    node_dial(&a, 2, p.port);
    eventually(net_connected(a.net, 2) && node_links(&b, NET_LINK_IN, true) == 1);
    atomic_store(&p.flip_at, 500000);
    node_send(&a, 2, 1000000, 1);
    eventually(node_links(&b, NET_LINK_IN, false) == 1 && node_links(&a, NET_LINK_OUT, false) == 1);
    assert_int_equal(node_count(&b, NOTE_FRAME), 0);
    atomic_store(&p.flip_at, -1);
    eventually(node_count(&b, NOTE_FRAME) >= 1 || (node_send(&a, 2, 1000, 2) && false));
    proxy_halt(&p);
    halt();
}

static void never_connected(void)
{
    node_dial(&a, 2, net_port(b.net));
    node_dial(&b, 1, net_port(a.net));
    usleep(700000);
    assert_false(net_connected(a.net, 2) || net_connected(b.net, 1));
    assert_int_equal(a.met + b.met, 0);
    assert_int_equal(node_count(&a, NOTE_LINK) + node_count(&b, NOTE_LINK), 0);
    halt();
}

static void a_certificate_of_another_authority_is_refused(void **state)
{
    (void)state;
    node_tls(&a, 1, "n1", "ca");
    node_tls(&b, 2, "stranger", "ca"); /* it would trust us */
    never_connected();
    node_tls(&a, 1, "n1", "other-ca");
    node_tls(&b, 2, "n2", "ca");
    never_connected();
}

static void an_expired_certificate_is_refused(void **state)
{
    (void)state;
    node_tls(&a, 1, "n1", "ca");
    node_tls(&b, 2, "expired", "ca");
    never_connected();
}

static void with_and_without_tls_do_not_mix(void **state)
{
    (void)state;
    node_tls(&a, 1, "n1", "ca");
    node_tls(&b, 2, NULL, NULL);
    never_connected();
}

static void the_secret_is_needed_inside_tls_too(void **state)
{
    (void)state;
    node_tls(&a, 1, "n1", "ca");
    node_init(&b, 2);
    b.options.secret = "another secret of enough bytes";
    char path[3][200];
    snprintf(path[0], sizeof path[0], "%s/n2.crt", dir);
    snprintf(path[1], sizeof path[1], "%s/n2.key", dir);
    snprintf(path[2], sizeof path[2], "%s/ca.crt", dir);
    b.options.tls_cert = path[0];
    b.options.tls_key = path[1];
    b.options.tls_ca = path[2];
    node_open_net(&b);
    node_attach(&b, CHANNEL, NULL);
    node_go(&b);
    never_connected();
}

/* A client with the right authority but no certificate of its own, and one that speaks only TLS 1.1. */
static bool client_gets_an_answer(uint16_t port, const char *cert, int newest)
{
    char path[200];
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(ctx, newest);
    SSL_CTX_set_security_level(ctx, 0);
    if (cert != NULL) {
        snprintf(path, sizeof path, "%s/%s.crt", dir, cert);
        assert_int_equal(SSL_CTX_use_certificate_chain_file(ctx, path), 1);
        snprintf(path, sizeof path, "%s/%s.key", dir, cert);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM), 1);
    }
    int fd = dial_plain(port);
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    struct hello hello = {.self = {.node = 1}, .target = 2};
    struct buf out = {0};
    hello_write(&out, &hello);
    char answer[100];
    bool got = SSL_connect(ssl) == 1 && SSL_write(ssl, out.at, (int)out.len) > 0 && SSL_read(ssl, answer, sizeof answer) > 0;
    buf_free(&out);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return got;
}

static void both_ends_must_show_a_certificate(void **state)
{
    (void)state;
    node_tls(&a, 1, "n1", "ca");
    node_tls(&b, 2, "n2", "ca");
    signal(SIGPIPE, SIG_IGN); /* of the clients here */
    assert_true(client_gets_an_answer(net_port(b.net), "n1", TLS1_3_VERSION));
    assert_true(client_gets_an_answer(net_port(b.net), "n1", TLS1_2_VERSION));
    assert_false(client_gets_an_answer(net_port(b.net), "n1", TLS1_1_VERSION));
    assert_false(client_gets_an_answer(net_port(b.net), NULL, TLS1_3_VERSION));
    assert_false(client_gets_an_answer(net_port(b.net), NULL, TLS1_2_VERSION));
    assert_false(client_gets_an_answer(net_port(b.net), "stranger", TLS1_3_VERSION));
    signal(SIGPIPE, SIG_DFL);
    node_dial(&a, 2, net_port(b.net));
    eventually(net_connected(a.net, 2));
    halt();
}

static void a_key_of_another_certificate_is_told(void **state)
{
    (void)state;
    char path[3][200];
    struct buf error = {0};
    node_init(&a, 1);
    snprintf(path[0], sizeof path[0], "%s/n1.crt", dir);
    snprintf(path[1], sizeof path[1], "%s/n2.key", dir);
    snprintf(path[2], sizeof path[2], "%s/ca.crt", dir);
    a.options.tls_cert = path[0];
    a.options.tls_key = path[1];
    a.options.tls_ca = path[2];
    assert_null(net_open(&a.options, &error));
    buf_byte(&error, 0);
    assert_non_null(strstr(error.at, "n2.key"));
    buf_free(&error);
    loop_free(a.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_travel_inside_tls),
        cmocka_unit_test(a_turned_byte_ends_the_tls_connection),
        cmocka_unit_test(a_certificate_of_another_authority_is_refused),
        cmocka_unit_test(an_expired_certificate_is_refused),
        cmocka_unit_test(with_and_without_tls_do_not_mix),
        cmocka_unit_test(the_secret_is_needed_inside_tls_too),
        cmocka_unit_test(both_ends_must_show_a_certificate),
        cmocka_unit_test(a_key_of_another_certificate_is_told),
    };
    signal(SIGPIPE, SIG_DFL);
    return cmocka_run_group_tests(tests, certificates_make, certificates_remove);
}
