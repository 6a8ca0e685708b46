/* Opening, turning, stopping, numbers.
 *
 *   open    lock the directory -> store -> rows into the engine -> log and replica -> are live payloads there? -> loop turns:
 *           replay -> leader -> [a new log: INIT] -> ready
 *   turn    wake parked callers -> look at arrivals -> a tick if a timer is due -> build entries -> (the replica hands them to the
 *           disk and applies what is committed) -> waiting reads run -> answers go home -> cuts, timers, numbers for other threads
 *   stop    parked pops answered, queued writes still written, entries in flight awaited, state cut and flushed; bounded in time
 *
 * Failures at run time (log, store) end the process at once, exit 3: answers not sent stay unsent. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logger.h"
#include "broker/broker_internal.h"
#include "broker/dir.h"

void broker_damaged(struct broker *b, const char *what, bool ends)
{
    if (b->place.damaged != NULL) b->place.damaged(b->place.ctx, what, ends);
}

static void part_failed(void *ctx, const char *what)
{
    if (strstr(what, "Corruption") != NULL) broker_damaged(ctx, what, true); /* RocksDB's word for it */
    broker_die(3, "%s", what);
}

static void entry_damaged(void *ctx, const char *what)
{
    broker_damaged(ctx, what, false);
}

/* ---- cold reads of the engine ------------------------------------------------------------------------------------- */

static void wait_count(struct cold_waits *w, int64_t began_us)
{
    w->count++;
    w->us += (uint64_t)(clock_mono_us() - began_us);
}

static void cold_scan(void *ctx, struct slice from, struct slice to, bool (*row)(void *, struct slice, struct slice),
                      void *row_ctx)
{
    struct broker *b = ctx;
    struct buf error = {0};
    int64_t began_us = clock_mono_us();
    struct cold_waits *waits = b->executing ? &b->entry_rows : &b->call_rows;
    if (store_find(b->store, from, to, row, row_ctx, &waits->blocks, &error) == STORE_OK) {
        wait_count(waits, began_us);
        return;
    }
    buf_byte(&error, '\0');
    broker_damaged(b, error.at, true);
    broker_die(3, "a stored row cannot be read: %s", error.at);
}

/* From memory: the log's, or a range read lately. */
static bool block_here(struct broker *b, uint64_t where, uint32_t bytes, char *out)
{
    struct slice view;
    struct log_pin pin;
    if (place_view(&b->places, where, bytes, &view, &pin)) {
        memcpy(out, view.at, bytes);
        log_unpin(b->places.log, pin);
        return true;
    }
    struct cold_range *range = b->cold.cache == NULL ? NULL : cold_cache_find(b->cold.cache, where, bytes, &view);
    if (range == NULL) return false;
    memcpy(out, view.at, bytes);
    cold_range_drop(range);
    return push_group_crc_ok(slice_make(out, bytes));
}

static void cold_block(void *ctx, uint64_t where, uint32_t bytes, char *out)
{
    struct broker *b = ctx;
    if (block_here(b, where, bytes, out)) return;
    int64_t began_us = clock_mono_us();
    bool good = place_read(&b->places, where, bytes, out) == LOG_OK && push_group_crc_ok(slice_make(out, bytes));
    wait_count(&b->entry_blocks, began_us);
    if (good) return;
    char text[PLACE_TEXT_BYTES];
    place_text(where, b->config.segment_bytes, text);
    broker_damaged(b, text, true);
    broker_die(3, "the message in %s/%s (%u bytes) that a command needs cannot be read", b->config.dir, text, bytes);
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

static bool dir_lock(struct broker *b, int *exit_code, struct buf *error)
{
    char path[4200];
    const char *dir = b->config.dir;
    if (!dir_make(dir, exit_code, error)) return false;
    snprintf(path, sizeof path, "%s/lock", dir);
    b->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (b->lock_fd < 0) {
        *exit_code = dir_exit_code(errno);
        buf_printf(error, "%s: %s", path, strerror(errno));
        return false;
    }
    if (flock(b->lock_fd, LOCK_EX | LOCK_NB) == 0) return true;
    buf_printf(error, "%s: in use by another process (%s)", dir, strerror(errno));
    return false;
}

struct row_load {
    struct broker *b;
    const char *reason;
    uint64_t rows;
    int64_t began_us, said_us;
};

static bool row_load(void *ctx, struct slice key, struct slice value)
{
    struct row_load *l = ctx;
    l->reason = engine_load_row(l->b->engine, key, value);
    l->rows++;
    return l->reason == NULL;
}

static bool row_load_pulse(void *ctx, uint64_t done, uint64_t whole)
{
    struct row_load *l = ctx;
    struct broker *b = l->b;
    uint32_t per_mille = whole == 0 ? 0 : (uint32_t)(done * 1000 / whole);
    if (b->place.loading != NULL) b->place.loading(b->place.ctx, l->rows, per_mille);
    if (clock_mono_us() - l->began_us > 1000000 && logger_every(&l->said_us, 1000000))
        log_info("loading: %llu rows so far, about %u %%", (unsigned long long)l->rows, per_mille / 10);
    return true;
}

static void damage_note(struct broker *b, bool damaged)
{
    if (b->place.is_damaged != NULL) *b->place.is_damaged = damaged;
}

static bool state_load(struct broker *b, const struct store_mark *mark, int *exit_code, struct buf *error)
{
    struct row_load l = {.b = b, .began_us = clock_mono_us()};
    l.said_us = l.began_us;
    struct store_sweep sweep = {
        .from = slice_of("\1"), .to = slice_of(ENGINE_ROWS_LOADED_END), .ctx = &l, .row = row_load, .pulse = row_load_pulse};
    enum store_status s = store_sweep(b->store, &sweep, error);
    *exit_code = s == STORE_IO ? 3 : 2;
    damage_note(b, s == STORE_DAMAGED);
    if (s != STORE_OK) return false;
    if (l.reason == NULL) l.reason = engine_loaded(b->engine, mark->index);
    if (l.reason != NULL) {
        damage_note(b, true);
        buf_printf(error, "%s/store: a stored row is not valid: %s", b->config.dir, l.reason);
        return false;
    }
    log_info("loaded %llu rows up to entry %llu in %lld ms", (unsigned long long)l.rows, (unsigned long long)mark->index,
             (long long)((clock_mono_us() - l.began_us) / 1000));
    return true;
}

/* Every segment that holds a payload still wanted must be there. */
static bool segments_check(struct broker *b, struct buf *error)
{
    struct log *log = replica_log(b->replica);
    uint64_t bytes = b->config.segment_bytes, end = log_end_pos(log);
    must(bytes == log_segment_bytes(log));
    for (uint64_t at = 0; at * bytes < end; at++) {
        uint64_t live = engine_segment_live(b->engine, at * bytes);
        uint64_t first = at * bytes, last = first + bytes < end ? first + bytes : end;
        if (live == 0 || log_covers(log, first, last)) continue;
        damage_note(b, true);
        buf_printf(error,
                   "%s/log/%016llx.seg: the segment file is missing, but %llu bytes of messages in it are still wanted. Put it "
                   "back from a backup",
                   b->config.dir, (unsigned long long)first, (unsigned long long)live);
        return false;
    }
    return true;
}

/* A monotonic clock is compared with itself only: two nodes may be of one boot and yet read different clocks. */
static uint64_t clock_id(const struct broker *b)
{
    return clock_boot_id() ^ b->place.node * UINT64_C(0x9e3779b97f4a7c15);
}

static void role_changed(void *ctx, enum replica_role role)
{
    struct broker *b = ctx;
    atomic_store_explicit(&b->role, (int)role, memory_order_relaxed);
    inbox_clock(b);
    b->leading = role == REPLICA_LEADER;
    if (b->leading) {
        struct entry_head last = engine_last_head(b->engine);
        struct clocks clocks = {.mono_us = clock_mono_us(), .wall_us = clock_wall_us()};
        stamps_start(&b->stamps, &last, clock_id(b), b->cluster.entry_us, clocks);
        inbox_clock(b);
        b->cluster.digest_index = engine_applied_index(b->engine);
    }
    dispatch_role(b);
    inbox_kick(b);
}

static void leadership_lost(void *ctx)
{
    struct broker *b = ctx;
    b->leading = b->serving = b->init_proposed = false;
    inbox_clock(b);
    if (b->stopping && b->handing_over) inbox_kick(b);
    if (!b->cluster.on) inbox_end(b, CALL_NO_LEADER, CALL_UNKNOWN);
}

static void leader_changed(void *ctx, uint64_t leader, uint64_t term)
{
    struct broker *b = ctx;
    inbox_clock(b);
    dispatch_leader(b, leader, term);
}

static bool replica_send(void *ctx, uint64_t peer, bool vital, const struct slice *parts, uint32_t count)
{
    struct broker *b = ctx;
    return net_send(b->place.net, peer, (uint16_t)b->place.group, FRAME_REPLICA, vital ? NET_VITAL : 0, parts, count);
}

/* ---- frames of other nodes ------------------------------------------------------------------------------------------ */

static void frame_came(void *ctx, uint64_t peer, uint8_t kind, struct slice frame)
{
    struct broker *b = ctx;
    if (b->stopped) return;
    if (peer == b->cluster.leader) atomic_store_explicit(&b->heard_us, loop_now_us(b->loop), memory_order_relaxed);
    if (kind == FRAME_REPLICA && !b->leading) disk_guard_bytes(b, frame.len);
    if (kind == FRAME_REPLICA && !b->fetched) replica_receive(b->replica, peer, frame);
    if (kind == FRAME_CALLS) forward_frame(b, peer, frame);
    if (kind == FRAME_SNAPSHOT) snapshots_receive(b->snapshots, peer, frame);
}

static void link_changed(void *ctx, uint64_t peer, enum net_link which, bool up)
{
    struct broker *b = ctx;
    if (b->stopped) return;
    dispatch_link(b, peer, which, up);
    snapshots_link(b->snapshots, peer, up);
}

static void frame_coming(void *ctx, uint64_t peer)
{
    struct broker *b = ctx;
    if (!b->stopped && !b->fetched) replica_receiving(b->replica, peer);
}

static bool snapshot_send(void *ctx, uint64_t peer, const struct slice *parts, uint32_t count)
{
    struct broker *b = ctx;
    return net_send(b->place.net, peer, (uint16_t)b->place.group, FRAME_SNAPSHOT, 0, parts, count);
}

static void snapshot_wanted(void *ctx, uint64_t leader, uint64_t index)
{
    struct broker *b = ctx;
    if (b->snapshots != NULL && !b->fetched && !b->stopping) snapshots_fetch(b->snapshots, leader, index);
}

static void snapshot_fetched(void *ctx, uint64_t index)
{
    struct broker *b = ctx;
    b->fetched = true;
    log_info("group %u: the state up to entry %llu is fetched; starting anew with it", b->place.group,
             (unsigned long long)index);
    b->place.again(b->place.ctx);
}

static uint64_t snapshot_archive_end(void *ctx)
{
    return reclaim_archive_end(ctx);
}

/* What follows the last command in the log (entries of raft's own) is in no stored state until another command is applied. */
static bool snapshot_reach(void *ctx, uint64_t index)
{
    struct broker *b = ctx;
    if (engine_applied_index(b->engine) >= index) return keeper_cut(b);
    if (b->leading && !b->stopping && replica_applied_index(b->replica) >= index) {
        internal_tick(b);
        inbox_kick(b);
    }
    return false;
}

static void net_begin(struct broker *b)
{
    if (b->place.net == NULL) return;
    struct snapshots_options o = {.dir = b->config.dir,
                                  .loop = b->loop,
                                  .cluster = b->place.cluster,
                                  .node = b->place.node,
                                  .replica = b->replica,
                                  .store = b->store,
                                  .ctx = b,
                                  .send = snapshot_send,
                                  .archive_end = snapshot_archive_end,
                                  .fetched = snapshot_fetched,
                                  .reach = snapshot_reach};
    b->snapshots = snapshots_new(&o);
    struct net_channel c = {.ctx = b, .loop = b->loop, .frame = frame_came, .link = link_changed, .receiving = frame_coming};
    net_attach(b->place.net, (uint16_t)b->place.group, &c);
}

static uint8_t shift_of(uint64_t bytes)
{
    must(bytes != 0 && (bytes & (bytes - 1)) == 0);
    return (uint8_t)__builtin_ctzll(bytes);
}

static void entry_arrived(void *ctx, uint64_t index, struct slice body)
{
    warm_entry(ctx, index, body);
}

static bool replica_start(struct broker *b, const struct store_mark *mark, int *exit_code, struct buf *error)
{
    struct replica_options o = {
        .dir = b->config.dir,
        .loop = b->loop,
        .segment_bytes = b->config.segment_bytes,
        .cache_bytes_max = b->config.cache_bytes,
        .unsynced_bytes_max = b->config.memory.log_unsynced,
        .cache_age_us = CACHE_AGE_US,
        .applied_index = mark->index,
        .applied_term = mark->term,
        .applied_pos = mark->scan_pos,
        .ctx = b,
        .apply = entry_apply,
        .arrived = entry_arrived,
        .role = role_changed,
        .lost = leadership_lost,
        .node_id = b->place.node,
        .members = b->place.members,
        .member_count = b->place.member_count,
        .join = b->place.join,
        .cluster = b->place.cluster,
        .election_ms = b->config.election_ms,
        .heartbeat_ms = b->config.heartbeat_ms,
        .keep_bytes = b->place.net != NULL ? b->config.keep_bytes : 0,
        .send = b->place.net != NULL ? replica_send : NULL,
        .leader = b->place.net != NULL ? leader_changed : NULL,
        .snapshot_wanted = b->place.net != NULL ? snapshot_wanted : NULL,
        .damaged = entry_damaged,
        .failed = part_failed,
    };
    enum log_status s = replica_open(&b->replica, &o, error);
    if (s == LOG_OK) b->places.log = replica_log(b->replica);
    if (s == LOG_OK) return true;
    *exit_code = s == LOG_IO ? 3 : 2;
    damage_note(b, s == LOG_DAMAGED);
    return false;
}

static bool store_start(struct broker *b, struct store_mark *mark, int *exit_code, struct buf *error)
{
    char dir[4200];
    snprintf(dir, sizeof dir, "%s/store", b->config.dir);
    struct store_options o = {.dir = dir,
                              .loop = b->loop,
                              .write_buffer_bytes = b->config.memory.store_buffers / STORE_BUFFERS,
                              .block_cache_bytes = b->config.memory.store_cache,
                              .open_files_max = b->config.store_files,
                              .ctx = b,
                              .failed = part_failed};
    enum store_status s = store_open(&b->store, &o, mark, error);
    if (s == STORE_OK) return true;
    *exit_code = s == STORE_IO ? 3 : 2;
    damage_note(b, s == STORE_DAMAGED);
    return false;
}

static void keeper_start(struct broker *b, const struct store_mark *mark)
{
    struct keeper *k = &b->keeper;
    k->flush_index = k->durable_index = mark->index;
    k->cut_revision = k->flush_revision = k->durable_revision = k->seen_revision = engine_revision(b->engine);
    k->applied_term = mark->term;
    k->flush_pos = k->durable_pos = mark->scan_pos;
    k->timer.fire = keeper_fire;
}

/* An existing log keeps the size of its segments, and everything that counts in segments goes by that. */
static bool segment_bytes_find(struct broker *b, int *exit_code, struct buf *error)
{
    char dir[4200];
    uint64_t bytes;
    snprintf(dir, sizeof dir, "%s/log", b->config.dir);
    if (log_segment_bytes_peek(dir, &bytes, error) != LOG_OK) {
        *exit_code = 3;
        return false;
    }
    if (bytes == 0 || bytes == b->config.segment_bytes) return true;
    log_info("log: %s has segments of %llu bytes and keeps them; %llu were asked for", dir, (unsigned long long)bytes,
             (unsigned long long)b->config.segment_bytes);
    b->config.segment_bytes = bytes;
    return true;
}

static bool hook_run(struct loop_hook *h);
static bool late_hook_run(struct loop_hook *h);
static void stop_fire(struct loop_timer *t);
static void hand_over_turn(struct broker *b);

struct broker *broker_open(const struct config *config, const struct broker_place *place, struct loop *group_loop,
                           int *exit_code, struct buf *error)
{
    struct broker *b = calloc(1, sizeof *b);
    must(b != NULL);
    b->config = *config;
    b->place = *place;
    snprintf(b->config.dir, sizeof b->config.dir, "%s", place->dir); /* of the group, from here on */
    b->loop = group_loop;
    b->lock_fd = -1;
    b->hook.run = hook_run;
    b->late_hook.run = late_hook_run;
    b->deadline_timer.fire = inbox_deadline_fire;
    b->parked.timer.fire = parked_due_fire;
    b->ticker.timer.fire = ticker_fire;
    b->ticker.stale = true;
    b->retention.timer.fire = retention_fire;
    b->guard.timer.fire = disk_guard_fire;
    b->room.timer.fire = room_fire;
    b->admission = place->admission != NULL ? place->admission : &b->own_admission;
    if (place->admission == NULL) admission_open(b->admission, config);
    b->stop_timer.fire = stop_fire;
    dispatch_start(b);
    atomic_store(&b->retry_after_s, 1);
    arena_init(&b->scratch);
    struct store_mark mark = {0};
    *exit_code = 2;
    if (!dir_lock(b, exit_code, error)) goto fail;
    if (!incoming_finish(b->config.dir, error)) {
        *exit_code = 3;
        goto fail;
    }
    if (!store_start(b, &mark, exit_code, error)) goto fail;
    if (!segment_bytes_find(b, exit_code, error)) goto fail;
    const struct memory_plan *m = &b->config.memory;
    struct engine_options eo = {
        .cold = {.ctx = b, .scan = cold_scan, .block = cold_block},
        .budget = {.lanes = m->lanes, .dedup = m->dedup, .kv_values = m->kv_values, .runs = m->runs, .timers = m->timers},
        .segment_shift = shift_of(b->config.segment_bytes)};
    b->engine = engine_new(&eo);
    if (!state_load(b, &mark, exit_code, error)) goto fail;
    keeper_start(b, &mark);
    cold_start(b);
    b->replay_said_us = clock_mono_us(); /* the first line after a second */
    b->housekeeping = true;
    loop_hook_add(group_loop, &b->hook);
    if (!replica_start(b, &mark, exit_code, error)) goto fail;
    loop_hook_add(group_loop, &b->late_hook);
    *exit_code = 2;
    if (!segments_check(b, error)) goto fail;
    if (!reclaim_open(b, exit_code, error)) {
        damage_note(b, *exit_code == 2);
        goto fail;
    }
    net_begin(b);
    inbox_clock(b);
    disk_guard_look(b);
    return b;
fail:
    broker_close(b);
    return NULL;
}

/* The loop may live on and hold other timers. */
static void timers_cancel(struct broker *b)
{
    struct loop_timer *timers[] = {&b->stop_timer,   &b->deadline_timer,     &b->parked.timer,
                                   &b->ticker.timer, &b->retention.timer,    &b->keeper.timer,
                                   &b->guard.timer,  &b->cluster.hold_timer, &b->room.timer};
    for (size_t i = 0; i < sizeof timers / sizeof timers[0]; i++) loop_timer_cancel(b->loop, timers[i]);
}

void broker_close(struct broker *b)
{
    timers_cancel(b);
    cold_free(b);
    reclaim_free(b);
    if (b->replica != NULL) {
        dispatch_free(b);
        if (b->place.net != NULL) net_detach(b->place.net, (uint16_t)b->place.group);
        flights_free(b);
        parked_free(b);
        watch_free(b);
        pop_lag_free(b);
        replica_close(b->replica);
    }
    if (b->store != NULL) store_close(b->store);
    if (b->snapshots != NULL) snapshots_free(b->snapshots);
    if (b->engine != NULL) engine_free(b->engine);
    if (b->lock_fd >= 0) close(b->lock_fd);
    for (int i = 0; i < 2; i++) free(b->keeper.dead[i].at);
    heap_free(&b->deadlines);
    buf_free(&b->internal);
    buf_free(&b->encoded);
    arena_free(&b->scratch);
    free(b);
}

/* ---- a turn ------------------------------------------------------------------------------------------------------- */

static bool hook_run(struct loop_hook *h)
{
    struct broker *b = owner_of(h, struct broker, hook);
    if (b->stopped || b->replica == NULL) return false;
    inbox_clock(b);
    dispatch_turn(b);
    parked_turn(b);
    inbox_turn(b);
    parked_turn(b); /* who was parked just now may have to be woken by time */
    ticker_turn(b);
    batch_turn(b);
    return false; /* the late hook says whether another turn is wanted */
}

static void counter_publish(atomic_uint_fast64_t *cell, uint64_t value)
{
    if (atomic_load_explicit(cell, memory_order_relaxed) == value) return;
    atomic_store_explicit(cell, value, memory_order_relaxed);
}

static void stop_turn(struct broker *b)
{
    if (!b->stopping) return;
    bool idle =
        dispatch_hopeless(b) ||
        (b->flight_count == 0 && b->cluster.forwarded.count == 0 && b->cold.calls.count == 0 && b->room.waiting.count == 0 &&
         (!b->leading || (b->queued.count == 0 && b->bulk.count == 0 && b->internal_count == 0)));
    bool late = b->mono_us - b->stop_began_us >= STOP_ALL_US;
    if (!late && (!idle || !keeper_settled(b))) return;
    if (late) log_warn("stopping without waiting any longer; what is not flushed is replayed from the log at the next start");
    inbox_end(b, CALL_NO_LEADER, CALL_UNKNOWN);
    calls_go_home(b);
    b->stopped = true;
    timers_cancel(b);
    if (b->stopped_call != NULL) b->stopped_call(b->stopped_ctx);
}

static bool late_hook_run(struct loop_hook *h)
{
    struct broker *b = owner_of(h, struct broker, late_hook);
    if (b->stopped) {
        calls_go_home(b);
        return false;
    }
    if (b->cluster.on) dispatch_turn(b);
    watch_turn(b);
    calls_go_home(b);
    inbox_deadlines_arm(b);
    ticker_turn(b);
    bool more = keeper_turn(b);
    counter_publish(&b->term, replica_term(b->replica));
    counter_publish(&b->applied, engine_applied_index(b->engine));
    counter_publish(&b->commit, replica_commit_index(b->replica));
    hand_over_turn(b);
    stop_turn(b);
    /* Entries may have been applied after this turn's batch was built. */
    return !b->stopped && (more || batch_due(b) || parked_is_dirty(b));
}

/* ---- stopping ----------------------------------------------------------------------------------------------------- */

static void stop_fire(struct loop_timer *t)
{
    struct broker *b = owner_of(t, struct broker, stop_timer);
    inbox_clock(b);
    if (b->handing_over) {
        hand_over_turn(b);
        return;
    }
    inbox_end(b, CALL_NO_LEADER, CALL_UNKNOWN);
    if (b->mono_us - b->stop_began_us < STOP_ALL_US) loop_timer_set(b->loop, t, b->stop_began_us + STOP_ALL_US);
}

static void stop_begin(struct broker *b)
{
    inbox_clock(b);
    b->handing_over = false;
    b->stopping = true;
    b->stop_began_us = b->mono_us;
    atomic_store(&b->ready, false);
    if (dispatch_hopeless(b)) {
        inbox_end(b, CALL_NO_LEADER, CALL_UNKNOWN);
    } else {
        inbox_end(b, CALL_OK, CALL_OK);
    }
    loop_timer_set(b->loop, &b->stop_timer, b->mono_us + STOP_ANSWERS_US);
    inbox_kick(b);
}

/* Another node takes over first, so that nobody waits for an election; calls are held and then sent there meanwhile. */
static void hand_over_turn(struct broker *b)
{
    if (!b->handing_over) return;
    bool done = !b->leading && b->cluster.leader != 0 && b->cluster.leader != b->place.node && b->cluster.held.count == 0;
    if (done || b->mono_us >= b->stop_began_us + STOP_HAND_OVER_US) stop_begin(b);
}

void broker_stop(struct broker *b, void (*stopped)(void *ctx), void *ctx)
{
    if (b->stopping || b->handing_over) return;
    inbox_clock(b);
    b->stopped_call = stopped;
    b->stopped_ctx = ctx;
    b->stop_began_us = b->mono_us;
    b->handing_over = b->cluster.on && b->leading && replica_transfer(b->replica, 0);
    if (!b->handing_over) {
        stop_begin(b);
        return;
    }
    b->serving = false;
    b->refused_until_us = b->mono_us + STOP_HAND_OVER_US;
    loop_timer_set(b->loop, &b->stop_timer, b->mono_us + STOP_HAND_OVER_US);
}

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

bool broker_ready(const struct broker *b)
{
    return atomic_load_explicit(&b->ready, memory_order_acquire);
}

bool broker_storage_full(const struct broker *b)
{
    return atomic_load_explicit(&b->storage_full, memory_order_relaxed);
}

void broker_health(const struct broker *b, struct broker_health *out)
{
    static const char *const names[] = {[REPLICA_STARTING] = "starting",
                                        [REPLICA_FOLLOWER] = "follower",
                                        [REPLICA_CANDIDATE] = "candidate",
                                        [REPLICA_LEADER] = "leader"};
    int role = atomic_load_explicit(&b->role, memory_order_relaxed);
    int64_t heard_us = atomic_load_explicit(&b->heard_us, memory_order_relaxed);
    *out = (struct broker_health){
        .ready = broker_ready(b),
        .leader = role == REPLICA_LEADER,
        .storage_ready = !broker_storage_full(b),
        .role = names[role],
        .term = atomic_load_explicit(&b->term, memory_order_relaxed),
        .applied = atomic_load_explicit(&b->applied, memory_order_relaxed),
        .commit = atomic_load_explicit(&b->commit, memory_order_relaxed),
        .leader_id = atomic_load_explicit(&b->leader_id, memory_order_relaxed),
        .lag_us = atomic_load_explicit(&b->lag_us, memory_order_relaxed),
        .quorum_age_us = heard_us == 0 ? -1 : clock_mono_us() - heard_us,
    };
    if (!b->cluster.on) out->quorum_age_us = 0;
    if (b->cluster.on && b->config.ready_quorum_ms > 0 &&
        (out->quorum_age_us < 0 || out->quorum_age_us > (int64_t)b->config.ready_quorum_ms * 1000))
        out->ready = false;
}

static void due_skip(void *ctx, struct uuid tenant, struct slice queue, struct slice partition)
{
    (void)ctx, (void)tenant, (void)queue, (void)partition; /* they are only counted */
}

struct log *broker_archive(struct broker *b)
{
    return atomic_load_explicit(&b->archive_seen, memory_order_acquire);
}

struct replica *broker_replica(struct broker *b)
{
    return b->replica;
}

void broker_metrics(struct broker *b, struct broker_metrics *out)
{
    struct store_stats s;
    store_stats(b->store, &s);
    *out = (struct broker_metrics){
        .log_index = replica_last_index(b->replica),
        .commit_index = replica_commit_index(b->replica),
        .applied_index = engine_applied_index(b->engine),
        .durable_index = b->keeper.durable_index,
        .in_flight_entries = b->flight_count,
        .in_flight_bytes = b->flight_bytes,
        .entries_total = b->entries_total,
        .commands_total = b->commands_total,
        .admitted_bytes = atomic_load_explicit(&b->admission->bodies, memory_order_relaxed),
        .answer_bytes = atomic_load_explicit(&b->admission->answers, memory_order_relaxed),
        .admit_refused_total = atomic_load_explicit(&b->admission->refused, memory_order_relaxed),
        .cold_cache_bytes = b->cold.cache == NULL ? 0 : cold_cache_bytes(b->cold.cache),
        .cold_read_bytes = b->cold.given_bytes,
        .parked = b->parked.count,
        .reads_waiting = b->watching.count,
        .ticks_total = b->ticks_total,
        .slow_commands_total = b->slow_commands_total,
        .entry_us_total = b->entry_us_total,
        .apply_us_total = b->apply_us_total,
        .store_batches = s.batches,
        .store_rows = s.rows,
        .store_flushes = s.flushes,
        .store_bytes = s.disk_bytes,
        .store_memory = s.memory_bytes,
        .storage_full = broker_storage_full(b),
    };
    out->timers_fired_total = b->timers_fired_total;
    out->timers_duplicate_total = b->timers_duplicate_total;
    out->timer_late_us = b->timer_late_us;
    out->cold_entry_rows = b->entry_rows;
    out->cold_call_rows = b->call_rows;
    out->cold_entry_blocks = b->entry_blocks;
    out->foreseen_total = b->warming.foreseen_total;
    out->foreseen_dropped_total = b->warming.dropped_total;
    out->trimmed_lanes_total = b->trimmed_lanes_total;
    out->trimmed_messages_total = b->trimmed_messages_total;
    memcpy(out->entry_buckets, b->entry_buckets, sizeof out->entry_buckets);
    log_stats(b->places.log, &out->log);
    if (b->places.archive != NULL) log_stats(b->places.archive, &out->archive);
    reclaim_stats(b, &out->reclaim);
    engine_stats(b->engine, &out->engine);
    if (out->engine.timer_first_us == 0 || out->engine.timer_first_us > b->now.wall_us) return;
    out->timer_overdue_us = b->now.wall_us - out->engine.timer_first_us;
    out->timers_due = engine_timers_due(b->engine, b->now, TIMERS_DUE_COUNTED, due_skip, NULL);
}
