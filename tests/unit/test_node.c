/* A node: its small files, members' addresses, and several groups in one process. (Clusters are tests/api's.) */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/logger.h"
#include "broker/dir.h"
#include "broker/node_inner.h"

static int dir_setup(void **state)
{
    char *dir = strdup("/tmp/queen-node-XXXXXX");
    assert_non_null(mkdtemp(dir));
    *state = dir;
    return 0;
}

static int dir_teardown(void **state)
{
    assert_int_equal(files_remove_tree(*state), 0);
    free(*state);
    return 0;
}

static void file_spoil(const char *dir, const char *name, uint64_t at)
{
    char path[512];
    struct buf old = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(files_read(path, at, 1, &old), 0);
    assert_int_equal(old.len, 1);
    char other = old.at[0] == '7' ? '8' : '7';
    assert_int_equal(files_write(path, at, slice_make(&other, 1)), 0);
    buf_free(&old);
}

static bool says(struct buf *error, const char *text)
{
    buf_byte(error, '\0');
    bool found = strstr(error->at, text) != NULL;
    if (!found) print_message("%s\n", error->at);
    buf_clear(error);
    return found;
}

static void test_disk_file(void **state)
{
    const char *dir = *state;
    struct buf error = {0};
    int exit_code = 0;
    bool found = true;
    struct disk_file f = {.node = 3, .starts = UINT64_C(5) << 32 | 17, .inode = UINT64_MAX, .joined = true}, back;
    f.cluster = uuid_mint(1);
    f.disk = uuid_mint(2);
    assert_true(disk_file_load(dir, &back, &found, &exit_code, &error));
    assert_false(found);
    assert_true(disk_file_store(dir, &f, &error));
    assert_true(disk_file_load(dir, &back, &found, &exit_code, &error));
    assert_true(found);
    assert_true(uuid_equal(back.cluster, f.cluster) && uuid_equal(back.disk, f.disk));
    assert_int_equal(back.node, 3);
    assert_int_equal(back.starts, f.starts);
    assert_int_equal(back.inode, UINT64_MAX);
    assert_true(back.joined);
    for (uint64_t at = 0; at < 120; at += 7) {
        assert_true(disk_file_store(dir, &f, &error));
        file_spoil(dir, "disk", at);
        assert_false(disk_file_load(dir, &back, &found, &exit_code, &error));
        assert_int_equal(exit_code, 2);
        assert_true(says(&error, "/disk: damaged"));
    }
    buf_free(&error);
}

static void test_peers_file(void **state)
{
    const char *dir = *state;
    struct buf error = {0};
    int exit_code = 0;
    struct peers_file f = {.count = NODE_PEERS_KEPT_MAX}, back;
    for (uint32_t i = 0; i < f.count; i++)
        f.at[i] = (struct peer_seen){.node = i + 1, .starts = UINT64_MAX - i, .disk = uuid_mint(i)};
    assert_true(peers_file_load(dir, &back, &exit_code, &error));
    assert_int_equal(back.count, 0);
    assert_true(peers_file_store(dir, &f, &error));
    assert_true(peers_file_load(dir, &back, &exit_code, &error));
    assert_int_equal(back.count, f.count);
    for (uint32_t i = 0; i < f.count; i++) {
        assert_int_equal(back.at[i].node, f.at[i].node);
        assert_int_equal(back.at[i].starts, f.at[i].starts);
        assert_true(uuid_equal(back.at[i].disk, f.at[i].disk));
    }
    file_spoil(dir, "peers", 1000);
    assert_false(peers_file_load(dir, &back, &exit_code, &error));
    assert_int_equal(exit_code, 2);
    assert_true(says(&error, "/peers: damaged"));
    buf_free(&error);
}

static void tenants_set(struct config *c, uint32_t groups, uint32_t count, const uint32_t *placed)
{
    c->groups = groups;
    c->tenant_count = count;
    for (uint32_t i = 0; i < count; i++) {
        c->tenants[i].tenant = (struct uuid){{[15] = (uint8_t)(i + 1)}};
        c->tenants[i].group = placed[i];
    }
}

static void test_groups_file(void **state)
{
    const char *dir = *state;
    struct config *c = calloc(1, sizeof *c);
    struct buf error = {0};
    int exit_code = 0;
    assert_non_null(c);
    tenants_set(c, 4, 2, (uint32_t[]){3, 1});
    assert_true(groups_file_check(dir, c, &exit_code, &error));
    assert_true(groups_file_check(dir, c, &exit_code, &error));
    struct config_tenant first = c->tenants[0]; /* the order they are written in says nothing */
    c->tenants[0] = c->tenants[1];
    c->tenants[1] = first;
    assert_true(groups_file_check(dir, c, &exit_code, &error));
    static const struct {
        uint32_t groups, count, placed[3];
        const char *text;
    } bad[] = {
        {3, 2, {2, 1, 0}, "made with 4"}, {4, 1, {3, 0, 0}, "another map"},         {4, 3, {3, 1, 0}, "another map"},
        {4, 2, {3, 2, 0}, "another map"}, {1, 2, {0, 0, 0}, "QUEEN_RAFT_GROUPS=1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tenants_set(c, bad[i].groups, bad[i].count, bad[i].placed);
        assert_false(groups_file_check(dir, c, &exit_code, &error));
        assert_int_equal(exit_code, 1);
        assert_true(says(&error, bad[i].text));
    }
    free(c);
    buf_free(&error);
}

static void test_one_group_needs_no_file(void **state)
{
    const char *dir = *state;
    struct config *c = calloc(1, sizeof *c);
    struct buf error = {0};
    int exit_code = 0;
    assert_non_null(c);
    tenants_set(c, 1, 0, NULL);
    assert_true(groups_file_check(dir, c, &exit_code, &error));
    assert_false(node_dir_has(dir, "groups"));
    char path[512];
    snprintf(path, sizeof path, "%s/identity", dir); /* something lives there now, in one group */
    assert_int_equal(files_replace(path, slice_of("queen identity 1\n")), 0);
    tenants_set(c, 2, 0, NULL);
    assert_false(groups_file_check(dir, c, &exit_code, &error));
    assert_true(says(&error, "made with 1"));
    free(c);
    buf_free(&error);
}

static void test_directories(void **state)
{
    const char *dir = *state;
    char deep[512], other[512];
    struct buf error = {0};
    uint64_t a = 0, b = 0;
    int first = -1, second = -1, exit_code = 0;
    snprintf(deep, sizeof deep, "%s/a//b/c/", dir);
    snprintf(other, sizeof other, "%s/a/b/c", dir);
    assert_true(dir_make(deep, &exit_code, &error));
    assert_true(dir_make(deep, &exit_code, &error));
    assert_false(node_dir_is_used(other));
    assert_true(node_dir_inode(deep, &a) && node_dir_inode(other, &b));
    assert_int_equal(a, b);
    assert_true(node_lock_try(other, &first, &exit_code, &error));
    assert_false(node_lock_try(other, &second, &exit_code, &error));
    assert_true(says(&error, "in use"));
    close(first);
    assert_true(node_lock_try(other, &second, &exit_code, &error));
    close(second);
    snprintf(deep, sizeof deep, "%s/file", dir);
    assert_int_equal(files_replace(deep, slice_of("x")), 0);
    snprintf(deep, sizeof deep, "%s/file/below", dir);
    assert_false(dir_make(deep, &exit_code, &error));
    assert_true(says(&error, "cannot be created"));
    assert_int_equal(exit_code, 2);
    assert_int_equal(dir_exit_code(EIO), 3);
    buf_free(&error);
}

static void test_addresses(void **state)
{
    (void)state;
    struct replica_member m = {.id = 7, .role = REPLICA_LEARNER};
    struct node_member out;
    struct uuid disk = uuid_mint(9);
    node_address_make(m.address, "[::1]:7400", "h:6632", &disk);
    node_member_read(&m, &out);
    assert_int_equal(out.id, 7);
    assert_false(out.voter);
    assert_string_equal(out.raft, "[::1]:7400");
    assert_string_equal(out.http, "h:6632");
    assert_true(out.has_disk && uuid_equal(out.disk, disk));
    node_address_make(m.address, "a:1", "b:2", NULL);
    m.role = REPLICA_VOTER;
    node_member_read(&m, &out);
    assert_true(out.voter);
    assert_false(out.has_disk);
    assert_string_equal(out.http, "b:2");
    static const char *const odd[] = {"", "/", "///", "a", "a/", "/b", "a:1/b:2/no-uuid"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        snprintf(m.address, sizeof m.address, "%s", odd[i]);
        node_member_read(&m, &out);
        assert_false(out.has_disk);
    }
    memset(m.address, 'x', sizeof m.address - 1); /* longer than an address */
    m.address[sizeof m.address - 1] = '\0';
    node_member_read(&m, &out);
    assert_string_equal(out.raft, "");
}

/* ---- several groups in a process ---- */

struct rig {
    struct config config;
    struct loop *loop;
    struct node *node;
    struct loop_timer timer;
    struct node_visit visits[3];
    uint32_t visited;
    uint64_t last[3]; /* indexes */
    bool stopped;
};

static struct rig *the_rig;

static void visit_run(struct node_visit *v, struct broker *b)
{
    uint32_t g = (uint32_t)(v - the_rig->visits);
    the_rig->last[g] = replica_last_index(broker_replica(b));
    assert_true(loop_is_mine(node_group_loop(the_rig->node, g)));
    assert_ptr_equal(b, node_group(the_rig->node, g));
}

static void node_gone(void *ctx)
{
    struct rig *r = ctx;
    assert_true(loop_is_mine(r->loop));
    r->stopped = true;
    loop_stop(r->loop);
}

static void visit_done(struct node_visit *v)
{
    (void)v;
    assert_true(loop_is_mine(the_rig->loop));
    if (++the_rig->visited == 3) node_stop(the_rig->node, node_gone, the_rig);
}

static void look_fire(struct loop_timer *t)
{
    struct rig *r = the_rig;
    for (uint32_t i = 0; i < 3; i++) {
        if (broker_ready(node_group(r->node, i))) continue;
        loop_timer_set(r->loop, t, clock_mono_us() + 1000);
        return;
    }
    for (uint32_t i = 0; i < 3; i++) {
        r->visits[i] = (struct node_visit){.home = r->loop, .run = visit_run, .done = visit_done};
        node_visit(r->node, i, &r->visits[i]);
    }
}

static void never_again(void *ctx)
{
    (void)ctx;
    fail();
}

static void rig_run(struct rig *r, const char *dir)
{
    struct buf error = {0};
    int exit_code = 0;
    the_rig = r;
    setenv("QUEEN_RAFT_GROUPS", "3", 1);
    assert_true(config_read(&r->config, 0, NULL, &error));
    snprintf(r->config.dir, sizeof r->config.dir, "%s/data", dir);
    r->config.segment_bytes = 1 << 20;
    r->loop = loop_new();
    assert_non_null(r->loop);
    struct node_owner owner = {.again = never_again};
    r->node = node_open(&r->config, r->loop, &owner, &exit_code, &error);
    if (r->node == NULL) print_message("%.*s\n", (int)error.len, error.at);
    assert_non_null(r->node);
    assert_true(node_alone(r->node));
    assert_null(node_net(r->node));
    assert_int_equal(node_group_count(r->node), 3);
    uint32_t places[3] = {0};
    for (uint32_t i = 0; i < 300; i++) {
        struct uuid tenant = {{(uint8_t)i, (uint8_t)(i >> 8), 3}};
        uint32_t g = node_group_of_tenant(r->node, tenant);
        assert_ptr_equal(node_of_tenant(r->node, tenant), node_group(r->node, g));
        places[g]++;
    }
    for (uint32_t i = 0; i < 3; i++) assert_in_range(places[i], 60, 140);
    /* Stored data hangs on it: these never change. */
    struct uuid fixed = {{[15] = 1}};
    assert_int_equal(node_group_of_tenant(r->node, fixed), 1);
    r->timer.fire = look_fire;
    loop_timer_set(r->loop, &r->timer, clock_mono_us());
    loop_run(r->loop);
    assert_true(r->stopped);
    assert_int_equal(r->visited, 3);
    node_close(r->node);
    loop_free(r->loop);
    unsetenv("QUEEN_RAFT_GROUPS");
    buf_free(&error);
}

static void test_groups_in_a_process(void **state)
{
    struct rig *first = calloc(1, sizeof *first), *second = calloc(1, sizeof *second);
    assert_true(first != NULL && second != NULL);
    rig_run(first, *state);
    rig_run(second, *state); /* on the same directory */
    for (uint32_t i = 0; i < 3; i++) assert_true(second->last[i] >= first->last[i] && first->last[i] > 0);
    free(first);
    free(second);
}

int main(void)
{
    logger_init(LOGGER_WARN, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disk_file, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(test_peers_file, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(test_groups_file, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(test_one_group_needs_no_file, dir_setup, dir_teardown),
        cmocka_unit_test_setup_teardown(test_directories, dir_setup, dir_teardown),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test_setup_teardown(test_groups_in_a_process, dir_setup, dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
