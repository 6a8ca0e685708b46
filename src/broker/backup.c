#include "broker/backup_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/logger.h"
#include "broker/broker_internal.h"

bool backup_group_path(const struct backup_group *g, const char *a, const char *b, char out[FILES_PATH_BYTES])
{
    int n = snprintf(out, FILES_PATH_BYTES, "%s/backup%s%s%s%s", g->dir, a == NULL ? "" : "/", a == NULL ? "" : a,
                     b == NULL ? "" : "/", b == NULL ? "" : b);
    return n > 0 && n < FILES_PATH_BYTES;
}

bool backup_fail(struct backups *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&b->lock);
    if (b->view.error[0] == '\0') vsnprintf(b->view.error, sizeof b->view.error, format, args); /* the first counts */
    pthread_mutex_unlock(&b->lock);
    va_end(args);
    return false;
}

/* ---- the state of a group, on its loop ------------------------------------------------------------------------------ */

static void group_over(struct backup_group *g, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* NULL: it is good. */
static void group_over(struct backup_group *g, const char *format, ...)
{
    struct backups *b = g->backups;
    va_list args;
    if (format != NULL) {
        va_start(args, format);
        vsnprintf(g->error, sizeof g->error, format, args);
        va_end(args);
    }
    pthread_mutex_lock(&b->lock);
    g->over = true;
    g->good = format == NULL;
    b->groups_over++;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

static void positions_put(struct positions *p, uint64_t pos)
{
    if (p->count == p->cap) {
        p->cap = p->cap == 0 ? 64 : p->cap * 2;
        p->at = realloc(p->at, p->cap * sizeof *p->at);
        must(p->at != NULL);
    }
    p->at[p->count++] = pos;
}

bool positions_has(const struct positions *p, uint64_t pos)
{
    uint32_t low = 0, high = p->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->at[middle] < pos)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->count && p->at[low] == pos;
}

static int segment_link(const struct backup_group *g, uint64_t first)
{
    char name[32], from[FILES_PATH_BYTES + 64], to[FILES_PATH_BYTES];
    const char *part = place_archived(first) ? "archive" : "log";
    snprintf(name, sizeof name, "%016" PRIx64 ".seg", first & ~PLACE_ARCHIVE);
    snprintf(from, sizeof from, "%s/%s/%s", g->dir, part, name);
    return backup_group_path(g, part, name, to) ? files_link(from, to) : ENAMETOOLONG;
}

static bool place_link(struct backup_group *g, const struct files_entry *e, uint64_t top)
{
    uint64_t first_pos;
    if (!e->is_dir && manifest_segment(e->name, &first_pos) && segment_link(g, first_pos | top) == 0)
        positions_put(&g->linked, first_pos | top);
    return !atomic_load(&g->backups->cancelled);
}

static bool link_ahead(void *ctx, const struct files_entry *e)
{
    return place_link(ctx, e, 0);
}

static bool archive_link_ahead(void *ctx, const struct files_entry *e)
{
    return place_link(ctx, e, PLACE_ARCHIVE);
}

/* On the backup's thread, so that a log of many files holds nobody up. What is trimmed while this goes on is sorted out later. */
static bool links_begin(struct backup_group *g)
{
    char log[FILES_PATH_BYTES + 8], archive[FILES_PATH_BYTES + 8], top[FILES_PATH_BYTES], segments[FILES_PATH_BYTES],
        archived[FILES_PATH_BYTES];
    if (!backup_group_path(g, NULL, NULL, top) || !backup_group_path(g, "log", NULL, segments) ||
        !backup_group_path(g, "archive", NULL, archived))
        return backup_fail(g->backups, "%s: the path is too long", g->dir);
    snprintf(log, sizeof log, "%s/log", g->dir);
    snprintf(archive, sizeof archive, "%s/archive", g->dir);
    int code = files_remove_tree(top);
    if (code == 0) code = files_make_dir(top);
    if (code == 0) code = files_make_dir(segments);
    if (code == 0) code = files_make_dir(archived);
    if (code == 0) code = files_list(log, link_ahead, g);
    int archive_code = code == 0 ? files_list(archive, archive_link_ahead, g) : 0;
    if (archive_code != ENOENT && code == 0) code = archive_code; /* ENOENT: there is none */
    return code == 0 || backup_fail(g->backups, "%s: the log's files cannot be linked: %s", g->dir, strerror(code));
}

/* On the group's loop, where segments are trimmed: those the log has now are the state's. A file is given another use only after it was
 * trimmed, and not when it has a second name by then: so the links of these are what they should be. */
static int links_keep(struct backup_group *g, struct log *log, uint64_t top)
{
    uint64_t first_pos, end_pos;
    for (uint64_t pos = 0; log_segment_next(log, pos, &first_pos, &end_pos); pos = end_pos) {
        uint64_t first = first_pos | top;
        int code = positions_has(&g->linked, first) ? 0 : segment_link(g, first);
        if (code != 0) return code;
        positions_put(&g->kept, first);
    }
    return 0;
}

static int links_end(struct backup_group *g)
{
    const struct places *p = &g->broker->places;
    g->archive_end = reclaim_archive_end(g->broker);
    int code = links_keep(g, p->log, 0);
    return code != 0 || g->archive_end == 0 ? code : links_keep(g, p->archive, PLACE_ARCHIVE);
}

static void checkpoint_done(void *ctx, struct store_mark mark, const char *error)
{
    struct backup_group *g = ctx;
    struct broker *b = g->broker;
    struct manifest *m = &g->manifest;
    struct log *log = replica_log(b->replica);
    if (error != NULL) {
        group_over(g, "group %" PRIu32 ": %s", g->number, error);
        return;
    }
    *m = (struct manifest){.node = node_id(g->backups->node), .mark = mark, .segment_bytes = log_segment_bytes(log)};
    if (log_entry_end(log, replica_entry_pos(b->replica, mark.index), mark.index, mark.term, &m->log_end) != LOG_OK) {
        group_over(g, "group %" PRIu32 ": entry %" PRIu64 " is not in the log", g->number, mark.index);
        return;
    }
    replica_configuration_file(b->replica, &m->configuration);
    group_over(g, NULL);
}

/* Everything applied is in the store's line, and its entries are on the disk: links and checkpoint, in this turn. */
static void group_take(struct loop_timer *t)
{
    struct backup_group *g = owner_of(t, struct backup_group, timer);
    struct broker *b = g->broker;
    int64_t now_us = clock_mono_us();
    if (b->stopping || atomic_load(&g->backups->cancelled)) {
        group_over(g, "cancelled");
        return;
    }
    uint64_t applied = engine_applied_index(b->engine);
    if (applied == 0 || log_synced_index(replica_log(b->replica)) < applied || !keeper_cut(b)) {
        if (now_us > g->give_up_us)
            group_over(g, "group %" PRIu32 ": log or store did not keep up for %d s", g->number, BACKUP_SETTLE_US / 1000000);
        else
            loop_timer_set(b->loop, t, now_us + BACKUP_RETRY_US);
        return;
    }
    char path[FILES_PATH_BYTES];
    int code = links_end(g);
    if (code == 0 && !backup_group_path(g, "store", NULL, path)) code = ENAMETOOLONG;
    if (code != 0) {
        group_over(g, "%s: the log's files cannot be linked: %s", g->dir, strerror(code));
        return;
    }
    crash_point("backup-linked");
    store_checkpoint(b->store, path, g, checkpoint_done);
}

static void state_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct backup_group *g = c->read_ctx;
    (void)e, (void)now;
    g->broker = c->broker;
    g->give_up_us = clock_mono_us() + BACKUP_SETTLE_US;
    g->timer.fire = group_take;
    loop_timer_set(c->broker->loop, &g->timer, clock_mono_us());
}

static void call_over(struct backups *b)
{
    pthread_mutex_lock(&b->lock);
    b->calls_over++;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

static void state_was_read(struct call *c)
{
    struct backup_group *g = c->read_ctx;
    bool good = c->outcome == CALL_OK && g->broker != NULL;
    arena_free(&c->arena);
    buf_free(&c->answer);
    if (!good) group_over(g, "group %" PRIu32 ": no leader is known, so what is newest is not", g->number);
    call_over(g->backups);
}

/* Main loop: the calls' home. */
static void groups_begin(struct loop_task *t)
{
    struct backups *b = owner_of(t, struct backups, begin_task);
    for (uint32_t i = 0; i < b->group_count; i++) {
        struct backup_group *g = &b->groups[i];
        struct broker *broker = node_group(b->node, i);
        if (broker == NULL) {
            group_over(g, "this node waits to be added to its cluster, or is under repair");
            call_over(b);
            continue;
        }
        g->call = (struct call){.home = node_loop(b->node),
                                .done = state_was_read,
                                .kind = CALL_READ,
                                .deadline_us = clock_mono_us() + BACKUP_READ_US,
                                .read = state_read,
                                .read_ctx = g};
        arena_init(&g->call.arena);
        broker_submit(broker, &g->call);
    }
}

/* ---- the thread ------------------------------------------------------------------------------------------------------ */

static void group_free(struct backup_group *g)
{
    manifest_free(&g->manifest);
    free(g->linked.at);
    free(g->kept.at);
}

static void groups_clear(struct backups *b)
{
    for (uint32_t i = 0; i < b->group_count; i++) {
        struct backup_group *g = &b->groups[i];
        uint32_t number = g->number;
        char dir[FILES_PATH_BYTES];
        memcpy(dir, g->dir, sizeof dir);
        group_free(g);
        *g = (struct backup_group){.backups = b, .number = number};
        memcpy(g->dir, dir, sizeof dir);
    }
    b->groups_over = b->calls_over = 0;
}

static void staging_remove(struct backups *b)
{
    for (uint32_t i = 0; i < b->group_count; i++) {
        char path[FILES_PATH_BYTES];
        int code = backup_group_path(&b->groups[i], NULL, NULL, path) ? files_remove_tree(path) : ENAMETOOLONG;
        if (code != 0) log_warn("%s/backup: cannot be removed: %s", b->groups[i].dir, strerror(code));
    }
}

/* False: it failed, or the process stops: then groups may still be at work. */
static bool states_take(struct backups *b)
{
    b->begin_task.run = groups_begin;
    pthread_mutex_lock(&b->lock);
    bool stopping = b->stopping;
    if (!stopping) loop_post(node_loop(b->node), &b->begin_task);
    while ((b->groups_over < b->group_count || b->calls_over < b->group_count) && !b->stopping)
        pthread_cond_wait(&b->wake, &b->lock);
    stopping = b->stopping;
    pthread_mutex_unlock(&b->lock);
    if (stopping) return backup_fail(b, "the process stops");
    for (uint32_t i = 0; i < b->group_count; i++)
        if (!b->groups[i].good) return backup_fail(b, "%s", b->groups[i].error);
    pthread_mutex_lock(&b->lock);
    b->view.copying = true;
    for (uint32_t i = 0; i < b->group_count; i++) b->view.index[i] = b->groups[i].manifest.mark.index;
    pthread_mutex_unlock(&b->lock);
    return true;
}

static void begun_tell(struct backups *b, enum backup_answer answer, const char *why)
{
    const struct backup_order *o = &b->order;
    pthread_mutex_lock(&b->lock);
    if (answer == BACKUP_BEGUN) {
        b->view = (struct backups_view){
            .state = BACKUP_RUNNING, .id = b->id, .began_us = clock_wall_us(), .group_count = b->group_count};
        memcpy(b->view.dir, o->dir, sizeof b->view.dir);
    } else {
        b->running = false;
    }
    pthread_mutex_unlock(&b->lock);
    o->begun(o->ctx, answer, b->id, why);
}

static void backup_end(struct backups *b, bool good)
{
    if (!good) backup_undo(b);
    staging_remove(b);
    backup_file_free(&b->previous);
    backup_file_free(&b->made);
    free(b->bytes);
    b->bytes = NULL;
    struct backups_view v;
    backups_view(b, &v);
    if (good)
        log_info("backup: %s is whole: %" PRIu64 " files, %" PRIu64 " bytes, %" PRIu64 " of them linked", v.dir, v.files_done,
                 v.bytes_done, v.bytes_linked);
    else
        log_error("backup: %s: %s", v.dir, v.error);
    pthread_mutex_lock(&b->lock);
    b->view.state = good ? BACKUP_DONE : BACKUP_FAILED;
    b->view.ended_us = clock_wall_us();
    b->running = false;
    pthread_mutex_unlock(&b->lock);
}

static void *backup_thread(void *ctx)
{
    struct backups *b = ctx;
    char why[BACKUP_ERROR_BYTES] = "";
    if (!backup_dir_prepare(b, why)) {
        backup_file_free(&b->previous);
        begun_tell(b, BACKUP_REFUSED, why);
        return NULL;
    }
    log_info("backup: to %s%s%s", b->order.dir, b->has_previous ? ", on top of " : "", b->order.previous);
    begun_tell(b, BACKUP_BEGUN, "");
    groups_clear(b);
    bool good = true;
    for (uint32_t i = 0; i < b->group_count && good; i++) good = links_begin(&b->groups[i]);
    good = good && states_take(b) && backup_copy(b);
    backup_end(b, good);
    return NULL;
}

/* ---- orders ----------------------------------------------------------------------------------------------------------- */

static bool thread_start(struct backups *b)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool good = pthread_create(&b->thread, NULL, backup_thread, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (good) pthread_setname_np(b->thread, "backup");
    return good;
}

void backups_begin(struct backups *b, const struct backup_order *o)
{
    enum backup_answer answer = BACKUP_BEGUN;
    pthread_mutex_lock(&b->lock);
    if (b->stopping)
        answer = BACKUP_STOPPING;
    else if (b->running)
        answer = BACKUP_BUSY;
    if (answer == BACKUP_BEGUN) {
        if (b->joinable) pthread_join(b->thread, NULL); /* at its end, or behind it */
        b->order = *o;
        b->id = uuid_mint(clock_wall_us());
        atomic_store(&b->cancelled, false);
        b->running = b->joinable = true;
        if (!thread_start(b)) {
            b->running = b->joinable = false;
            answer = BACKUP_STOPPING;
        }
    }
    pthread_mutex_unlock(&b->lock);
    if (answer != BACKUP_BEGUN) o->begun(o->ctx, answer, (struct uuid){0}, "");
}

bool backups_cancel(struct backups *b)
{
    pthread_mutex_lock(&b->lock);
    bool running = b->running;
    if (running) atomic_store(&b->cancelled, true);
    pthread_mutex_unlock(&b->lock);
    return running;
}

void backups_view(struct backups *b, struct backups_view *out)
{
    pthread_mutex_lock(&b->lock);
    *out = b->view;
    pthread_mutex_unlock(&b->lock);
}

/* ---- life --------------------------------------------------------------------------------------------------------------- */

struct backups *backups_new(struct node *n, const struct config *config)
{
    struct backups *b = calloc(1, sizeof *b);
    must(b != NULL && pthread_mutex_init(&b->lock, NULL) == 0 && pthread_cond_init(&b->wake, NULL) == 0);
    b->node = n;
    b->config = config;
    b->group_count = node_group_count(n);
    b->groups = calloc(b->group_count, sizeof *b->groups);
    must(b->groups != NULL);
    char *data = realpath(config->dir, NULL);
    if (data != NULL && strlen(data) < sizeof b->data) memcpy(b->data, data, strlen(data) + 1);
    free(data);
    for (uint32_t i = 0; i < b->group_count; i++) {
        struct backup_group *g = &b->groups[i];
        g->backups = b;
        g->number = i;
        if (i == 0)
            snprintf(g->dir, sizeof g->dir, "%s", config->dir);
        else
            snprintf(g->dir, sizeof g->dir, "%s/group-%" PRIu32, config->dir, i);
    }
    staging_remove(b);
    return b;
}

void backups_stop(struct backups *b)
{
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    atomic_store(&b->cancelled, true);
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

void backups_free(struct backups *b)
{
    if (b == NULL) return;
    backups_stop(b);
    if (b->joinable) pthread_join(b->thread, NULL);
    for (uint32_t i = 0; i < b->group_count; i++) group_free(&b->groups[i]);
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    free(b->groups);
    free(b);
}
