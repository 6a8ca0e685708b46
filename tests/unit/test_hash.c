/* CRC32C: known values, and every length and beginning against one bit at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"

static uint32_t bit_by_bit(uint32_t crc, const unsigned char *at, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < len * 8; i++) {
        uint32_t bit = (crc ^ (uint32_t)at[i / 8] >> i % 8) & 1;
        crc = crc >> 1 ^ (bit ? 0x82f63b78U : 0);
    }
    return ~crc;
}

static void known_values(void **state)
{
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283U);
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x8a9136aaU);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x46dd794eU);
}

static void every_length(void **state)
{
    (void)state;
    enum { MOST = 3200 };
    static unsigned char bytes[MOST + 8];
    uint32_t random = 1;
    for (size_t i = 0; i < sizeof bytes; i++) {
        random = random * 1664525U + 1013904223U;
        bytes[i] = (unsigned char)(random >> 24);
    }
    for (size_t len = 0; len <= MOST; len += len < 1600 ? 1 : 37) {
        size_t from = len % 8;
        uint32_t before = (uint32_t)len * 0x9e3779b9U;
        assert_int_equal(crc32c(before, bytes + from, len), bit_by_bit(before, bytes + from, len));
        size_t first = len / 3;
        assert_int_equal(crc32c(crc32c(0, bytes, first), bytes + first, len - first), bit_by_bit(0, bytes, len));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
