/* The formats, the keys and the queue of a net, each alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdlib.h>

#include "net/hello.h"
#include "net/net.h"
#include "net/outbox.h"
#include "net/wire.h"

/* ---- wire */

static void a_record_head_is_read_as_written(void **state)
{
    (void)state;
    char head[WIRE_RECORD_HEAD];
    struct wire_record r;
    wire_record_write(head, WIRE_DATA, WIRE_PAYLOAD_MAX);
    assert_true(wire_record_read(head, &r));
    assert_int_equal(r.type, WIRE_DATA);
    assert_int_equal(r.payload_bytes, WIRE_PAYLOAD_MAX);
    uint32_t large = WIRE_PAYLOAD_MAX + 1;
    memcpy(head, &large, 4);
    assert_false(wire_record_read(head, &r));
    wire_record_write(head, WIRE_REFUSE, 0);
    assert_true(wire_record_read(head, &r));
    for (size_t i = 4; i < WIRE_RECORD_HEAD; i++) {
        head[i] = (char)(head[i] + 7);
        assert_false(wire_record_read(head, &r));
        head[i] = (char)(head[i] - 7);
    }
}

static size_t item_put(char *at, uint16_t channel, uint8_t kind, enum wire_piece piece, const void *bytes, uint32_t len)
{
    wire_item_write(at, channel, kind, piece, len);
    if (len > 0) memcpy(at + WIRE_ITEM_HEAD, bytes, len);
    return WIRE_ITEM_HEAD + len;
}

static void items_follow_one_another(void **state)
{
    (void)state;
    char payload[100];
    size_t len = item_put(payload, 3, 9, WIRE_WHOLE, "abc", 3);
    len += item_put(payload + len, 0xffff, 255, WIRE_WHOLE, "", 0);
    struct slice rest = slice_make(payload, len);
    struct wire_item item;
    assert_true(wire_item_next(&rest, &item));
    assert_int_equal(item.channel, 3);
    assert_int_equal(item.kind, 9);
    assert_true(slice_is(item.bytes, "abc"));
    assert_true(wire_item_next(&rest, &item));
    assert_int_equal(item.channel, 0xffff);
    assert_int_equal(item.bytes.len, 0);
    assert_false(wire_item_next(&rest, &item));
    assert_int_equal(rest.len, 0);
    for (size_t cut = 1; cut < WIRE_ITEM_HEAD + 3; cut++) { /* not well formed: something is left */
        rest = slice_make(payload, cut);
        assert_false(wire_item_next(&rest, &item));
        assert_true(rest.len > 0);
    }
    payload[7] = WIRE_LAST + 1;
    rest = slice_make(payload, len);
    assert_false(wire_item_next(&rest, &item));
    assert_int_equal(rest.len, len);
}

static enum wire_result piece_take(struct wire_frames *f, uint16_t channel, enum wire_piece piece, const char *bytes,
                                   size_t len, bool wanted, struct wire_frame **out)
{
    struct wire_item item = {.channel = channel, .kind = 1, .piece = piece, .bytes = slice_make(bytes, len)};
    return wire_frames_take(f, &item, wanted, out);
}

static void pieces_of_channels_may_alternate(void **state)
{
    (void)state;
    struct wire_frames f = {.bytes_max = 1000};
    struct wire_frame *out = NULL;
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, "\6\0\0\0ab", 6, true, &out), WIRE_MORE);
    assert_int_equal(piece_take(&f, 2, WIRE_FIRST, "\3\0\0\0x", 5, true, &out), WIRE_MORE);
    assert_int_equal(piece_take(&f, 3, WIRE_FIRST, "\2\0\0\0-", 5, false, &out), WIRE_MORE);
    assert_int_equal(piece_take(&f, 1, WIRE_BETWEEN, "cd", 2, true, &out), WIRE_MORE);
    assert_int_equal(piece_take(&f, 3, WIRE_LAST, "-", 1, true, &out), WIRE_MORE); /* not wanted when it began */
    assert_int_equal(piece_take(&f, 2, WIRE_LAST, "yz", 2, true, &out), WIRE_FRAME);
    assert_memory_equal(out->at, "xyz", 3);
    wire_frame_done(&f, out);
    assert_int_equal(piece_take(&f, 1, WIRE_LAST, "ef", 2, true, &out), WIRE_FRAME);
    assert_int_equal(out->total, 6);
    assert_memory_equal(out->at, "abcdef", 6);
    wire_frame_done(&f, out);
    assert_null(f.under_way);
    wire_frames_free(&f);
}

static void pieces_that_do_not_fit_are_bad(void **state)
{
    (void)state;
    struct wire_frame *out = NULL;
    struct wire_frames f = {.bytes_max = 1000};
    assert_int_equal(piece_take(&f, 1, WIRE_LAST, "a", 1, true, &out), WIRE_BAD); /* without a first */
    assert_int_equal(piece_take(&f, 1, WIRE_BETWEEN, "a", 1, true, &out), WIRE_BAD);
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, "\1\0\0", 3, true, &out), WIRE_BAD);      /* no total */
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, "\xe9\3\0\0a", 5, true, &out), WIRE_BAD); /* 1001 */
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, "\1\0\0\0ab", 6, true, &out), WIRE_BAD);  /* more than told */
    wire_frames_free(&f);
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, "\3\0\0\0a", 5, true, &out), WIRE_MORE);
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, "\3\0\0\0a", 5, true, &out), WIRE_BAD); /* a second first */
    assert_int_equal(piece_take(&f, 1, WIRE_LAST, "b", 1, true, &out), WIRE_BAD);          /* less than told */
    wire_frames_free(&f);
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, "\3\0\0\0a", 5, true, &out), WIRE_MORE);
    struct wire_item other_kind = {.channel = 1, .kind = 2, .piece = WIRE_LAST, .bytes = slice_of("bc")};
    assert_int_equal(wire_frames_take(&f, &other_kind, true, &out), WIRE_BAD);
    wire_frames_free(&f);
}

static void memory_is_taken_as_bytes_come(void **state)
{
    (void)state;
    struct wire_frames f = {.bytes_max = NET_FRAME_BYTES_MAX};
    struct wire_frame *out = NULL;
    uint32_t total = NET_FRAME_BYTES_MAX;
    char first[8] = {0};
    memcpy(first, &total, 4);
    assert_int_equal(piece_take(&f, 1, WIRE_FIRST, first, 8, true, &out), WIRE_MORE);
    assert_true(f.under_way->cap <= 1 << 20);
    wire_frames_free(&f);
}

/* ---- seal */

static void a_tag_is_of_its_place_and_its_bytes(void **state)
{
    (void)state;
    struct seal_key key = {.key = "0123456789abcde", .salt = {1, 2, 3, 4}};
    struct seal out = {0}, in = {0}, other = {0};
    uint8_t tag[3][SEAL_TAG];
    static const char *text[3] = {"first", "second", "first"};
    seal_open(&out, &key);
    seal_open(&in, &key);
    for (int i = 0; i < 3; i++) seal_tag(&out, text[i], strlen(text[i]), tag[i]);
    assert_memory_not_equal(tag[0], tag[2], SEAL_TAG);
    assert_false(seal_check(&in, "second", 6, tag[1])); /* left out: the first */
    assert_false(seal_check(&in, "firsT", 5, tag[0]));
    assert_true(seal_check(&in, "first", 5, tag[0]));
    assert_false(seal_check(&in, "first", 5, tag[0])); /* once more */
    tag[1][15] ^= 1;
    assert_false(seal_check(&in, "second", 6, tag[1]));
    tag[1][15] ^= 1;
    assert_true(seal_check(&in, "second", 6, tag[1]));
    assert_true(seal_check(&in, "first", 5, tag[2]));
    key.salt[3] = 5;
    seal_open(&other, &key);
    assert_false(seal_check(&other, "first", 5, tag[0]));
    seal_close(&out);
    seal_close(&in);
    seal_close(&other);
}

/* The same by OpenSSL's own HKDF. */
static void keys_are_those_of_rfc_5869(void **state)
{
    (void)state;
    static const char secret[] = "a secret that the cluster shares", nonces[] = "sixty-four bytes of nonces",
                      said[] = "what was said";
    char info[64];
    uint8_t right[64];
    int info_len = snprintf(info, sizeof info, "queen-net-1 keys%s", said);
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = EVP_KDF_CTX_new(kdf);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char[]){"SHA256"}, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (char *)(uintptr_t)secret, sizeof secret - 1),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (char *)(uintptr_t)nonces, sizeof nonces - 1),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, (size_t)info_len),
        OSSL_PARAM_construct_end(),
    };
    assert_int_equal(EVP_KDF_derive(ctx, right, sizeof right, params), 1);
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    struct seal_key dialler, accepter;
    seal_derive(slice_of(secret), slice_of(nonces), slice_of(said), &dialler, &accepter);
    assert_memory_equal(&dialler, right, sizeof dialler);
    assert_memory_equal(&accepter, right + 32, sizeof accepter);
}

static void parts_of_a_mac_cannot_be_shifted(void **state)
{
    (void)state;
    uint8_t a[SEAL_MAC], b[SEAL_MAC];
    struct slice one[] = {slice_of("ab"), slice_of("c")}, two[] = {slice_of("a"), slice_of("bc")};
    seal_mac(slice_of("secret"), one, 2, a);
    seal_mac(slice_of("secret"), two, 2, b);
    assert_false(seal_mac_equal(a, b));
    seal_mac(slice_of("secret"), one, 2, b);
    assert_true(seal_mac_equal(a, b));
    seal_mac(slice_of("Secret"), one, 2, b);
    assert_false(seal_mac_equal(a, b));
}

/* ---- hello */

static void messages_are_read_as_written(void **state)
{
    (void)state;
    struct hello h = {.self = {.node = 7, .starts = 3, .version = 2}, .target = 9, .run = 11, .dial = 13}, h2;
    struct answer a = {.self = {.node = 8}, .run = 17}, a2;
    struct verdict v = {.code = VERDICT_REFUSED, .text = slice_of("no")}, v2;
    struct hello_message m;
    struct buf b = {0};
    memset(&h.self.cluster, 1, 16);
    memset(&h.self.disk, 2, 16);
    memset(h.nonce, 3, sizeof h.nonce);
    memset(v.mac, 4, sizeof v.mac);
    hello_write(&b, &h);
    size_t first = b.len;
    answer_write(&b, &a);
    verdict_write(&b, &v);
    for (size_t len = 1; len < first; len++) assert_int_equal(hello_next(slice_make(b.at, len), &m), HELLO_MORE);
    assert_int_equal(hello_next(buf_view(&b), &m), HELLO_OK);
    assert_int_equal(m.type, HELLO_HELLO);
    assert_int_equal(m.whole.len, first);
    assert_true(hello_read(m.body, &h2));
    assert_true(uuid_equal(h.self.cluster, h2.self.cluster) && uuid_equal(h.self.disk, h2.self.disk));
    assert_true(h2.self.node == 7 && h2.self.starts == 3 && h2.self.version == 2);
    assert_true(h2.target == 9 && h2.run == 11 && h2.dial == 13);
    assert_memory_equal(h.nonce, h2.nonce, sizeof h.nonce);
    struct slice rest = slice_make(b.at + first, b.len - first);
    assert_int_equal(hello_next(rest, &m), HELLO_OK);
    assert_true(m.type == HELLO_ANSWER && answer_read(m.body, &a2) && a2.self.node == 8 && a2.run == 17);
    rest = slice_make(rest.at + m.whole.len, rest.len - m.whole.len);
    assert_int_equal(hello_next(rest, &m), HELLO_OK);
    assert_true(m.type == HELLO_VERDICT && verdict_read(m.body, &v2));
    assert_true(v2.code == VERDICT_REFUSED && slice_is(v2.text, "no"));
    assert_memory_equal(v.mac, v2.mac, SEAL_MAC);
    b.at[4] = HELLO_PROTOCOL + 1;
    assert_int_equal(hello_next(buf_view(&b), &m), HELLO_OTHER_PROTOCOL);
    b.at[0] = 'q';
    assert_int_equal(hello_next(buf_view(&b), &m), HELLO_BAD);
    buf_free(&b);
}

/* The two sides' proofs differ, so one cannot be sent back as the other. */
static void a_proof_is_of_one_side(void **state)
{
    (void)state;
    uint8_t dial[SEAL_MAC], accept[SEAL_MAC], again[SEAL_MAC];
    struct slice secret = slice_of("a secret of the cluster"), hello = slice_of("hello"), answer = slice_of("answer");
    struct verdict v = {.code = VERDICT_WELCOME, .text = slice_of("")};
    hello_proof(secret, hello, answer, dial);
    hello_verdict_mac(secret, hello, answer, &v, accept);
    assert_false(seal_mac_equal(dial, accept));
    v.code = VERDICT_WRONG;
    hello_verdict_mac(secret, hello, answer, &v, again);
    assert_false(seal_mac_equal(accept, again));
    hello_proof(secret, answer, hello, again);
    assert_false(seal_mac_equal(dial, again));
}

/* ---- outbox */

static bool put(struct outbox *o, uint64_t peer, uint16_t channel, size_t len)
{
    char *at = calloc(1, len + 1);
    struct slice part = slice_make(at, len);
    bool taken = outbox_put(o, peer, channel, 1, false, &part, 1, (uint32_t)len);
    free(at);
    return taken;
}

static uint16_t chunk_channel(const struct chunk *c)
{
    uint16_t channel;
    memcpy(&channel, c->at + WIRE_RECORD_HEAD + 4, sizeof channel);
    return channel;
}

static void channels_take_turns(void **state)
{
    (void)state;
    static struct outbox o;
    outbox_init(&o, NET_BACKLOG_BYTES_MAX);
    assert_false(put(&o, 1, 1, 10)); /* closed */
    outbox_open(&o, 1);
    assert_false(put(&o, 2, 1, 10)); /* another's by now */
    assert_true(put(&o, 1, 1, 3 * WIRE_RECORD_MAX));
    assert_true(put(&o, 1, 2, 100));
    assert_true(put(&o, 1, 2, 100));
    assert_true(put(&o, 1, 3, WIRE_RECORD_MAX));
    static const uint16_t order[] = {1, 2, 3, 1, 3, 1, 1};
    struct chunk *chain = outbox_take(&o, UINT32_MAX), *c = chain;
    uint32_t frames = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < 7; i++, c = c->next) {
        assert_non_null(c);
        assert_int_equal(chunk_channel(c), order[i]);
        frames += c->frames;
        bytes += c->used;
    }
    assert_null(c);
    assert_int_equal(frames, 4);
    assert_int_equal(atomic_load(&o.backlog), bytes);
    outbox_give_back(&o, chain);
    assert_int_equal(atomic_load(&o.backlog), 0);
    assert_true(o.spare_count == 7);
    outbox_trim(&o);
    assert_null(o.spare);
    assert_true(put(&o, 1, 1, 5));
    assert_true(put(&o, 1, 2, 500000));
    assert_int_equal(outbox_close(&o), 2);
    assert_int_equal(atomic_load(&o.backlog), 0);
    outbox_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_head_is_read_as_written),
        cmocka_unit_test(items_follow_one_another),
        cmocka_unit_test(pieces_of_channels_may_alternate),
        cmocka_unit_test(pieces_that_do_not_fit_are_bad),
        cmocka_unit_test(memory_is_taken_as_bytes_come),
        cmocka_unit_test(a_tag_is_of_its_place_and_its_bytes),
        cmocka_unit_test(keys_are_those_of_rfc_5869),
        cmocka_unit_test(parts_of_a_mac_cannot_be_shifted),
        cmocka_unit_test(messages_are_read_as_written),
        cmocka_unit_test(a_proof_is_of_one_side),
        cmocka_unit_test(channels_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
