/* Ids in text: every byte's digits, in every place; what is no id. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/uuid.h"

static void every_byte_in_every_place(void **state)
{
    (void)state;
    for (int place = 0; place < 16; place++) {
        for (int value = 0; value < 256; value++) {
            struct uuid id = {{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10}},
                        back;
            char text[UUID_TEXT], expected[UUID_TEXT + 1], *to = expected;
            id.bytes[place] = (uint8_t)value;
            for (int i = 0; i < 16; i++) {
                const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
                to += sprintf(to, "%s%02x", dash, id.bytes[i]);
            }
            uuid_text(id, text);
            assert_memory_equal(text, expected, UUID_TEXT);
            assert_true(uuid_parse(slice_make(text, UUID_TEXT), &back) && uuid_equal(id, back));
            for (int i = 0; i < UUID_TEXT; i++) {
                if (text[i] >= 'a') text[i] = (char)(text[i] - 'a' + 'A');
            }
            assert_true(uuid_parse(slice_make(text, UUID_TEXT), &back) && uuid_equal(id, back));
        }
    }
}

static void what_is_no_id(void **state)
{
    (void)state;
    static const char good[] = "01234567-89ab-cdef-fedc-ba9876543210";
    struct uuid ignored;
    for (int place = 0; place < UUID_TEXT; place++) {
        bool dash = good[place] == '-';
        for (int c = 0; c < 256; c++) {
            char text[UUID_TEXT];
            memcpy(text, good, UUID_TEXT);
            text[place] = (char)c;
            bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
            assert_int_equal(uuid_parse(slice_make(text, UUID_TEXT), &ignored), dash ? c == '-' : digit);
        }
    }
    assert_false(uuid_parse(slice_make(good, UUID_TEXT - 1), &ignored));
    assert_false(uuid_parse(slice_of("01234567-89ab-cdef-fedc-ba98765432100"), &ignored));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_in_every_place),
        cmocka_unit_test(what_is_no_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
