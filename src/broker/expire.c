/* KV rows at rest whose time has come are removed, a few at a time, beside other housekeeping.
 *
 *   some may have expired (engine_kv_expired) -> a reader of cold messages goes over their due rows, AHEAD_BYTES at most
 *                                             -> removed, ROWS_A_STEP at a time, with the pauses of keeper.c: the rows are in the store's cache
 *
 * Every node does so for itself; nobody can tell which of them are gone, so there is no hurry: beside other calls ROWS_BESIDE are removed each
 * BESIDE_US, since the store has two rows of each to remove. Only when that has not been enough for BEHIND_US it goes on as fast as housekeeping
 * may. */
#include "broker/broker_internal.h"

enum {
    ROWS_A_STEP = 256,
    ROWS_BESIDE = 64,
    BESIDE_US = 8000,
    BEHIND_US = 300000000,
    AHEAD_BYTES = 1 << 20,
    LOOK_EVERY_US = 250000,
};

static bool row_passed(void *ctx, struct slice key, struct slice value)
{
    struct expiring *x = ctx;
    uint64_t bytes = key.len + value.len;
    int64_t due_us = engine_kv_due_row_us(key);
    if (due_us > x->until_us || (bytes >= x->left && due_us > x->from_us)) {
        x->before_us = due_us;
        return false;
    }
    x->left -= bytes < x->left ? bytes : x->left;
    return true;
}

/* On a reader's thread. What cannot be read whoever wants it will see. */
static void ahead_run(struct cold_job *j)
{
    struct expiring *x = owner_of(j, struct expiring, job);
    struct broker *b = owner_of(x, struct broker, expiring);
    char from[KV_DUE_KEY_BYTES], to[KV_DUE_KEY_BYTES];
    engine_kv_due_rows(x->from_us, INT64_MAX, from, to);
    store_find(b->store, slice_make(from, sizeof from), slice_make(to, sizeof to), row_passed, x, NULL, NULL);
}

static void ahead_back(struct loop_task *t)
{
    struct expiring *x = owner_of(t, struct expiring, job.task);
    struct broker *b = owner_of(x, struct broker, expiring);
    x->reading = false;
    x->reached_us = x->before_us;
    b->housekeeping = true; /* the turn that follows goes on */
}

static void ahead_read(struct broker *b, int64_t from_us)
{
    struct expiring *x = &b->expiring;
    x->reading = true;
    x->from_us = from_us;
    x->until_us = engine_last_head(b->engine).wall_us;
    x->before_us = x->until_us + 1;
    x->left = AHEAD_BYTES;
    x->job = (struct cold_job){.task.run = ahead_back, .run = ahead_run};
    cold_reader_submit(b->cold.reader, &x->job);
}

/* The rows have been passed. */
static bool rows_expire(struct broker *b)
{
    struct expiring *x = &b->expiring;
    bool beside = pace_is_small(b->mono_us, b->keeper.others_us) && b->mono_us < x->since_us + BEHIND_US;
    if (beside && b->mono_us < x->step_us) return true;
    x->step_us = b->mono_us + BESIDE_US;
    return engine_kv_expire(b->engine, x->reached_us, beside ? ROWS_BESIDE : ROWS_A_STEP);
}

bool expire_step(struct broker *b)
{
    struct expiring *x = &b->expiring;
    int64_t from_us;
    bool some = engine_kv_expired(b->engine, &from_us);
    if (!some || x->since_us == 0) x->since_us = b->mono_us;
    if (!some || x->reading || b->cold.reader == NULL) return false;
    if (from_us < x->reached_us) {
        if (rows_expire(b)) return true;
        x->reached_us = 0; /* what comes to rest from here on is read when its time has come */
        x->look_us = b->mono_us + LOOK_EVERY_US;
    }
    if (engine_kv_expired(b->engine, &from_us) && b->mono_us >= x->look_us) ahead_read(b, from_us);
    return false;
}
