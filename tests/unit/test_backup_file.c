/* BACKUP: what is written is read, and nothing else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "broker/backup_file.h"
#include "broker/restore.h"

static void file_fill(struct backup_file *f)
{
    *f = (struct backup_file){.node = 3, .wall_us = 1796066884907659, .version = "1.2.3", .group_count = 2};
    for (int i = 0; i < 16; i++) {
        f->id.bytes[i] = (uint8_t)(i * 7 + 1);
        f->cluster.bytes[i] = (uint8_t)(200 - i);
    }
    f->groups[0].index = 17;
    f->groups[0].term = 2;
    f->groups[1].index = UINT64_MAX >> 2;
    f->groups[1].term = 1;
    assert_true(backup_file_add(f, "group-1/store/CURRENT", 16, 0xffffffff));
    assert_true(backup_file_add(f, "group-0/log/0000000000000000.seg", (uint64_t)1 << 40, 0));
    assert_true(backup_file_add(f, "groups", 0, 1));
    assert_true(backup_file_add(f, "group-0/store/000008.sst", 12345, 0xdeadbeef));
    backup_file_sort(f);
}

static void test_what_is_written_is_read(void **state)
{
    struct backup_file f, g;
    struct buf text = {0};
    (void)state;
    file_fill(&f);
    backup_file_encode(&f, &text);
    assert_null(backup_file_decode(buf_view(&text), &g));
    assert_true(uuid_equal(f.id, g.id) && uuid_equal(f.cluster, g.cluster));
    assert_int_equal(g.node, 3);
    assert_int_equal(g.wall_us, f.wall_us);
    assert_string_equal(g.version, "1.2.3");
    assert_int_equal(g.group_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(g.groups[i].index, f.groups[i].index);
        assert_int_equal(g.groups[i].term, f.groups[i].term);
    }
    assert_int_equal(g.count, 4);
    assert_int_equal(backup_file_bytes(&g), ((uint64_t)1 << 40) + 12345 + 16);
    const struct backup_entry *e = backup_file_find(&g, "group-0/store/000008.sst");
    assert_non_null(e);
    assert_int_equal(e->bytes, 12345);
    assert_int_equal(e->crc, 0xdeadbeef);
    assert_null(backup_file_find(&g, "group-0/store/000009.sst"));
    backup_file_free(&f);
    backup_file_free(&g);
    buf_free(&text);
}

static void test_every_wrong_byte_and_every_cut_is_refused(void **state)
{
    struct backup_file f, g;
    struct buf text = {0};
    (void)state;
    file_fill(&f);
    backup_file_encode(&f, &text);
    for (size_t at = 0; at < text.len; at++) {
        for (int bit = 0; bit < 8; bit++) {
            text.at[at] = (char)(text.at[at] ^ (1 << bit));
            assert_non_null(backup_file_decode(buf_view(&text), &g));
            assert_int_equal(g.count, 0);
            text.at[at] = (char)(text.at[at] ^ (1 << bit));
        }
        assert_non_null(backup_file_decode(slice_make(text.at, at), &g));
    }
    buf_byte(&text, '\n');
    assert_non_null(backup_file_decode(buf_view(&text), &g));
    backup_file_free(&f);
    buf_free(&text);
}

/* Puts the right checksum behind a text. */
static void text_seal(struct buf *text)
{
    buf_printf(text, "\"crc32c\":\"%08x\"}\n", crc32c(0, text->at, text->len));
}

static const char HEAD[] = "{\"format\":1,\n\"backup\":\"01a22ded-c102-749a-8a86-35718913bb65\",\n"
                           "\"cluster\":\"01a22ded-bcdd-7420-8cda-9c36ad406828\",\n\"node\":1,\n"
                           "\"time\":\"2026-11-30T19:28:05.891290Z\",\n\"version\":\"0.1.0\",\n";

static const char *decode(const char *head, const char *rest)
{
    struct buf text = {0};
    struct backup_file f;
    buf_text(&text, head);
    buf_text(&text, rest);
    text_seal(&text);
    const char *wrong = backup_file_decode(buf_view(&text), &f);
    backup_file_free(&f);
    buf_free(&text);
    return wrong;
}

static void test_sealed_texts_that_are_not_laid_out_right(void **state)
{
    static const char groups[] = "\"groups\":[\n{\"group\":0,\"index\":5,\"term\":2}\n],\n";
    char rest[1024];
    (void)state;
    snprintf(rest, sizeof rest, "%s\"files\":[\n{\"name\":\"groups\",\"bytes\":1,\"crc32c\":\"00000001\"}\n],\n", groups);
    assert_null(decode(HEAD, rest));
    /* names that would lead elsewhere, out of order, twice, or none */
    static const char *const files[] = {
        "{\"name\":\"../x\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"/x\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"a/../x\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"a//x\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"a/\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\".x\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"a b\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"b\",\"bytes\":1,\"crc32c\":\"00000001\"},\n{\"name\":\"a\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"a\",\"bytes\":1,\"crc32c\":\"00000001\"},\n{\"name\":\"a\",\"bytes\":1,\"crc32c\":\"00000001\"}\n",
        "{\"name\":\"a\",\"crc32c\":\"00000001\"}\n",
        "nonsense\n",
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(rest, sizeof rest, "%s\"files\":[\n%s],\n", groups, files[i]);
        assert_non_null(decode(HEAD, rest));
    }
    assert_non_null(decode(HEAD, "\"groups\":[\n],\n\"files\":[\n],\n")); /* no group */
    assert_non_null(
        decode(HEAD, "\"groups\":[\n{\"group\":1,\"index\":5,\"term\":2}\n],\n\"files\":[\n],\n")); /* not from 0 on */
    assert_non_null(decode(HEAD, groups));                                                          /* cut off */
    assert_non_null(decode(HEAD, ""));
    assert_non_null(decode("{\"format\":2,\n", ""));
    assert_non_null(decode("", ""));
}

static void test_names_that_are_added(void **state)
{
    struct backup_file f = {0};
    char name[BACKUP_NAME_BYTES + 2];
    (void)state;
    memset(name, 'a', sizeof name - 1);
    name[BACKUP_NAME_BYTES] = '\0';
    assert_false(backup_file_add(&f, name, 0, 0));
    name[BACKUP_NAME_BYTES - 1] = '\0';
    assert_true(backup_file_add(&f, name, 0, 0));
    assert_false(backup_file_add(&f, "a\"b", 0, 0));
    assert_false(backup_file_add(&f, "a\nb", 0, 0));
    backup_file_free(&f);
}

static void test_peers(void **state)
{
    struct config_peer peers[CONFIG_PEERS_MAX];
    struct buf error = {0};
    uint32_t count;
    (void)state;
    assert_true(
        restore_peers_read("3=c:7003/c:6003,1=10.0.0.1:7001/10.0.0.1:6001,2=[::1]:7002/[::1]:6002", peers, &count, &error));
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(peers[i].id, i + 1);
        assert_int_equal(peers[i].raft_port, 7001 + i);
    }
    assert_string_equal(peers[1].raft_host, "::1");
    assert_string_equal(peers[1].http, "[::1]:6002");
    static const char *const wrong[] = {"1",
                                        "1=a:1",
                                        "=a:1/b:2",
                                        "0=a:1/b:2",
                                        "x=a:1/b:2",
                                        "1=a/b:2",
                                        "1=a:1/b",
                                        "1=a:1/b:99999",
                                        "1000000001=a:1/b:2",
                                        "1=a:1/b:2,1=c:1/d:2",
                                        "1=a:1/b:2,,2=c:1/d:2",
                                        " 1=a:1/b:2"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        buf_clear(&error);
        assert_false(restore_peers_read(wrong[i], peers, &count, &error));
        assert_true(error.len > 0);
    }
    buf_free(&error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_every_wrong_byte_and_every_cut_is_refused),
        cmocka_unit_test(test_sealed_texts_that_are_not_laid_out_right),
        cmocka_unit_test(test_names_that_are_added),
        cmocka_unit_test(test_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
