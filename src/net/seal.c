#include "net/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/buf.h"
#include "base/must.h"

void seal_open(struct seal *s, const struct seal_key *key)
{
    must(s->ctx == NULL);
    s->ctx = EVP_CIPHER_CTX_new();
    must(s->ctx != NULL);
    must(EVP_EncryptInit_ex(s->ctx, EVP_aes_128_gcm(), NULL, key->key, NULL) == 1);
    memcpy(s->salt, key->salt, sizeof s->salt);
    s->count = 0;
}

void seal_close(struct seal *s)
{
    EVP_CIPHER_CTX_free(s->ctx);
    s->ctx = NULL;
}

static void tag_of(struct seal *s, const void *at, size_t len, uint8_t tag[SEAL_TAG])
{
    uint8_t nonce[SEAL_SALT + 8], none[16];
    int n;
    must(len <= INT32_MAX && s->count != UINT64_MAX);
    memcpy(nonce, s->salt, SEAL_SALT);
    memcpy(nonce + SEAL_SALT, &s->count, sizeof s->count);
    must(EVP_EncryptInit_ex(s->ctx, NULL, NULL, NULL, nonce) == 1);
    must(EVP_EncryptUpdate(s->ctx, NULL, &n, at, (int)len) == 1);
    must(EVP_EncryptFinal_ex(s->ctx, none, &n) == 1);
    must(EVP_CIPHER_CTX_ctrl(s->ctx, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, tag) == 1);
}

void seal_tag(struct seal *s, const void *at, size_t len, uint8_t tag[SEAL_TAG])
{
    tag_of(s, at, len, tag);
    s->count++;
}

bool seal_check(struct seal *s, const void *at, size_t len, const uint8_t tag[SEAL_TAG])
{
    uint8_t right[SEAL_TAG];
    tag_of(s, at, len, right);
    if (CRYPTO_memcmp(right, tag, SEAL_TAG) != 0) return false;
    s->count++;
    return true;
}

static void hmac(struct slice key, struct slice text, uint8_t out[SEAL_MAC])
{
    unsigned len = SEAL_MAC;
    must(key.len <= INT32_MAX);
    must(HMAC(EVP_sha256(), key.at, (int)key.len, (const unsigned char *)text.at, text.len, out, &len) != NULL);
    must(len == SEAL_MAC);
}

void seal_mac(struct slice secret, const struct slice *parts, uint32_t count, uint8_t mac[SEAL_MAC])
{
    struct buf text = {0};
    for (uint32_t i = 0; i < count; i++) {
        buf_u32(&text, (uint32_t)parts[i].len);
        buf_slice(&text, parts[i]);
    }
    hmac(secret, buf_view(&text), mac);
    buf_free(&text);
}

bool seal_mac_equal(const uint8_t a[SEAL_MAC], const uint8_t b[SEAL_MAC])
{
    return CRYPTO_memcmp(a, b, SEAL_MAC) == 0;
}

void seal_derive(struct slice secret, struct slice nonces, struct slice said, struct seal_key *dialler,
                 struct seal_key *accepter)
{
    uint8_t prk[SEAL_MAC], block[2][SEAL_MAC];
    struct buf info = {0};
    hmac(nonces, secret, prk); /* RFC 5869: extract, then two blocks of expand */
    buf_text(&info, "queen-net-1 keys");
    buf_slice(&info, said);
    buf_byte(&info, 1);
    hmac(slice_make(prk, sizeof prk), buf_view(&info), block[0]);
    buf_clear(&info);
    buf_put(&info, block[0], SEAL_MAC);
    buf_text(&info, "queen-net-1 keys");
    buf_slice(&info, said);
    buf_byte(&info, 2);
    hmac(slice_make(prk, sizeof prk), buf_view(&info), block[1]);
    buf_free(&info);
    memcpy(dialler, block[0], sizeof *dialler);
    memcpy(accepter, block[1], sizeof *accepter);
    OPENSSL_cleanse(prk, sizeof prk);
    OPENSSL_cleanse(block, sizeof block);
}
