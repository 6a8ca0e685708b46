#include "broker/scrub.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/logger.h"
#include "broker/node_inner.h"
#include "log/log_check.h"
#include "store/store_look.h"

struct known {
    uint32_t group;
    uint64_t end_pos, offset;
};

struct scrub {
    struct node *node;
    uint64_t bytes_s;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping;          /* under the lock */
    struct scrub_view view; /* under the lock */
    /* of the thread */
    int64_t pace_us;
    struct known known[SCRUB_KNOWN_MAX];
    uint32_t known_count;
};

/* False: it is time to stop. */
static bool sleep_until(struct scrub *s, int64_t at_us)
{
    struct timespec t;
    int64_t left_us = at_us - clock_mono_us();
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (left_us > 0) {
        int64_t ns = t.tv_nsec + left_us % 1000000 * 1000;
        t.tv_sec += (time_t)(left_us / 1000000 + ns / 1000000000);
        t.tv_nsec = (long)(ns % 1000000000);
    }
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && pthread_cond_timedwait(&s->wake, &s->lock, &t) != ETIMEDOUT) continue;
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return !stopping;
}

static bool pace(void *ctx, uint64_t bytes)
{
    struct scrub *s = ctx;
    int64_t now_us = clock_mono_us();
    pthread_mutex_lock(&s->lock);
    s->view.bytes_total += bytes;
    pthread_mutex_unlock(&s->lock);
    if (s->pace_us < now_us) s->pace_us = now_us;
    s->pace_us += (int64_t)(bytes * 1000000 / s->bytes_s);
    return sleep_until(s, s->pace_us);
}

static void damage_tell(struct scrub *s, struct known found, const char *what)
{
    for (uint32_t i = 0; i < s->known_count; i++) {
        const struct known *k = &s->known[i];
        if (k->group == found.group && k->end_pos == found.end_pos && k->offset == found.offset) return;
    }
    if (s->known_count == SCRUB_KNOWN_MAX) return; /* enough was said */
    s->known[s->known_count++] = found;
    pthread_mutex_lock(&s->lock);
    s->view.damaged_total++;
    pthread_mutex_unlock(&s->lock);
    node_damaged(s->node, found.group, what, false);
}

static void log_tell(struct scrub *s, uint32_t group, uint64_t end_pos, const struct log_scrub *o)
{
    char what[NODE_DAMAGE_BYTES];
    uint32_t before = s->known_count;
    snprintf(what, sizeof what, "the log file %.400s fails its checks at offset %" PRIu64, o->path, o->offset);
    damage_tell(s, (struct known){.group = group, .end_pos = end_pos, .offset = o->offset}, what);
    if (s->known_count == before) return;
    log_error("the log file %s is damaged at offset %" PRIu64
              ": what begins there fails its checks. Messages in it may be lost on this node",
              o->path, o->offset);
}

/* False: it is time to stop. */
static bool log_pass(struct scrub *s, uint32_t group, struct log *l, uint64_t top)
{
    struct log_scrub o = {.ctx = s, .pace = pace};
    struct buf error = {0};
    for (uint64_t from = 0;;) {
        buf_clear(&error);
        uint64_t before = from;
        if (log_scrub(l, &from, &o, &error) != LOG_OK) {
            o.offset = 0;
            log_warn("scrub: %.*s", (int)error.len, error.at);
        }
        if (o.damaged) log_tell(s, group, from | top, &o);
        if (from == before || !sleep_until(s, 0)) break;
    }
    buf_free(&error);
    return sleep_until(s, 0);
}

struct store_pass {
    struct scrub *s;
    uint32_t group;
};

static void store_tell(void *ctx, const char *file, const char *text)
{
    struct store_pass *p = ctx;
    char what[NODE_DAMAGE_BYTES];
    uint32_t before = p->s->known_count;
    snprintf(what, sizeof what, "the store file %.400s fails its checks", file);
    damage_tell(p->s, (struct known){.group = p->group, .end_pos = hash64(slice_of(file), 0), .offset = UINT64_MAX}, what);
    if (p->s->known_count == before) return;
    log_error("the store file %s is damaged: %s. Rows in it are not served by this node", file, text);
}

static bool store_pace(void *ctx, uint64_t bytes)
{
    struct store_pass *p = ctx;
    return pace(p->s, bytes);
}

/* False: it is time to stop. */
static bool store_pass(struct scrub *s, uint32_t group, const char *group_dir)
{
    struct store_pass p = {.s = s, .group = group};
    struct store_verify v = {.ctx = &p, .damaged = store_tell, .pace = store_pace};
    struct buf error = {0};
    char dir[FILES_PATH_BYTES];
    snprintf(dir, sizeof dir, "%.4096s/store", group_dir);
    if (store_verify(dir, &v, &error) != STORE_OK) log_warn("scrub: %.*s", (int)error.len, error.at);
    buf_free(&error);
    return sleep_until(s, 0);
}

static bool group_scrub(struct scrub *s, uint32_t group)
{
    struct broker *b = node_group(s->node, group);
    if (b == NULL) return true;
    if (!log_pass(s, group, replica_log(broker_replica(b)), 0)) return false;
    if (!store_pass(s, group, s->node->groups[group].dir)) return false;
    struct log *archive = broker_archive(b);
    return archive == NULL || log_pass(s, group, archive, PLACE_ARCHIVE);
}

static void *scrub_thread(void *ctx)
{
    struct scrub *s = ctx;
    int64_t at_us = clock_mono_us() + SCRUB_BEGIN_US;
    while (sleep_until(s, at_us)) {
        for (uint32_t i = 0; i < node_group_count(s->node); i++)
            if (!group_scrub(s, i)) return NULL;
        pthread_mutex_lock(&s->lock);
        s->view.rounds_total++;
        pthread_mutex_unlock(&s->lock);
        at_us = clock_mono_us() + SCRUB_REST_US;
    }
    return NULL;
}

struct scrub *scrub_new(struct node *n, const struct config *config)
{
    struct scrub *s = calloc(1, sizeof *s);
    pthread_condattr_t attr;
    must(s != NULL && pthread_mutex_init(&s->lock, NULL) == 0);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    s->node = n;
    s->bytes_s = config->scrub_bytes_s;
    if (s->bytes_s == 0) return s;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->has_thread = pthread_create(&s->thread, NULL, scrub_thread, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s->has_thread)
        pthread_setname_np(s->thread, "scrub");
    else
        log_warn("scrub: no thread could be started; the log's files are not looked through");
    return s;
}

void scrub_free(struct scrub *s)
{
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void scrub_view(struct scrub *s, struct scrub_view *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->view;
    pthread_mutex_unlock(&s->lock);
}
