/* GET /metrics/prometheus: text/plain; version=0.0.4
 *
 * Numbers of this node. What belongs to the group is collected on its thread, lanes in several visits; the edges' counters are summed here.
 * Times in seconds where the name does not say otherwise. Nothing is told by partition, key or group. Series by queue are bounded: at most QUEUES_SHOWN queues, and of those with many lanes only what is counted
 * anyway; queen_queues_omitted says how many are missing. Cost: about 1 us a queue and 0.3 us a lane shown, on the group thread. */
#include <stdio.h>

#include "base/clock.h"
#include "http/answer.h"
#include "http/edge.h"
#include "http/metrics.h"
#include "http/ops.h"
#include "http/route.h"
#include "http/visit.h"

enum { QUEUES_SHOWN = 1000, LANES_COUNTED = 100000 };

static void family(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void value(struct buf *out, const char *name, const char *labels, uint64_t n)
{
    buf_printf(out, "%s%s %llu\n", name, labels, (unsigned long long)n);
}

static void seconds(struct buf *out, const char *name, const char *labels, uint64_t us)
{
    buf_printf(out, "%s%s %.6f\n", name, labels, (double)us / 1e6);
}

static void single(struct buf *out, const char *name, const char *type, const char *help, uint64_t n)
{
    family(out, name, type, help);
    value(out, name, "", n);
}

/* A histogram of `count` buckets: bucket i ends at first_us * 2^i, the last one is open. `label` is "" or ends with a comma. */
static void histogram(struct buf *out, const char *name, const char *label, const uint64_t *buckets, uint32_t count,
                      uint64_t first_us, uint64_t us_total)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += buckets[i];
        if (i + 1 < count) {
            buf_printf(out, "%s_bucket{%sle=\"%g\"} %llu\n", name, label, (double)(first_us << i) / 1e6,
                       (unsigned long long)sum);
        } else {
            buf_printf(out, "%s_bucket{%sle=\"+Inf\"} %llu\n", name, label, (unsigned long long)sum);
        }
    }
    int label_len = (int)strlen(label);
    char braces[128] = "";
    if (label_len > 0) snprintf(braces, sizeof braces, "{%.*s}", label_len - 1, label);
    buf_printf(out, "%s_sum%s %.6f\n%s_count%s %llu\n", name, braces, (double)us_total / 1e6, name, braces,
               (unsigned long long)sum);
}

/* ---- the group's part ------------------------------------------------------------------------------------------------ */

/* Label values escape backslash, quote and newline. */
static void label_text(struct buf *out, struct slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];
        if (c == '\n') {
            buf_text(out, "\\n");
            continue;
        }
        if (c == '\\' || c == '"') buf_byte(out, '\\');
        buf_byte(out, c);
    }
}

static void queue_labels(struct buf *out, const struct queue_view *q)
{
    buf_text(out, "{queue=\"");
    label_text(out, q->name);
    buf_byte(out, '"');
}

struct queue_families {
    struct buf depth, dead, lag;
};

struct queue_depth {
    uint32_t number;
    uint64_t pending, processing;
};

/* Queues are counted in visits, lane by lane, and shown when all are. */
struct queue_depths {
    struct lane_walk walk;
    struct arena *arena;
    struct queue_depth *rows;
    uint32_t count, cap;
    uint64_t omitted, lanes;
};

static bool depth_queue(void *ctx, struct engine *e, const struct queue_view *q)
{
    struct queue_depths *d = ctx;
    (void)e;
    if (d->count == QUEUES_SHOWN || d->lanes + q->partition_count > LANES_COUNTED) {
        d->omitted++;
        return false;
    }
    d->rows = arena_room(d->arena, d->rows, d->count, &d->cap, sizeof d->rows[0]);
    d->rows[d->count++] = (struct queue_depth){.number = q->number};
    d->lanes += q->partition_count;
    return true;
}

static void depth_lane(void *ctx, struct engine *e, struct engine_now now, const struct queue_view *q,
                       const struct lane_view *lane)
{
    struct queue_depths *d = ctx;
    struct lane_counts n;
    (void)q;
    engine_lane_counts(e, lane->number, now, &n);
    d->rows[d->count - 1].pending += n.pending;
    d->rows[d->count - 1].processing += n.processing;
}

/* True: there are more lanes. What a walk did not get to is left out. */
static bool depths_visit(struct queue_depths *d, struct request *r, struct engine *e, struct engine_now now)
{
    struct lane_walker walker = {.queue = depth_queue, .lane = depth_lane, .ctx = d};
    struct queue_view q;
    if (lane_walk_go(&d->walk, r, e, now, &walker)) return true;
    if (!d->walk.partial) return false;
    for (uint32_t after = d->walk.at_queue; engine_queue_next(e, r->tenant, after, &q); after = q.number) d->omitted++;
    if (d->count > 0 && d->rows[d->count - 1].number == d->walk.at_queue) {
        d->count--;
        d->omitted++;
    }
    return false;
}

static void lag_render(struct buf *out, const struct queue_view *q, const char *stat, uint64_t us)
{
    buf_text(out, "queen_queue_pop_lag_milliseconds");
    queue_labels(out, q);
    buf_printf(out, ",stat=\"%s\"} %.3f\n", stat, (double)us / 1e3);
}

static void queue_render(struct queue_families *f, struct broker *b, const struct queue_view *q, const struct queue_depth *n)
{
    const char *const kinds[] = {"pending", "processing", "retained"};
    const uint64_t numbers[] = {n->pending - (n->processing < n->pending ? n->processing : n->pending), n->processing,
                                q->retained_messages};
    for (unsigned i = 0; i < 3; i++) {
        buf_text(&f->depth, "queen_queue_depth");
        queue_labels(&f->depth, q);
        buf_printf(&f->depth, ",kind=\"%s\"} %llu\n", kinds[i], (unsigned long long)numbers[i]);
    }
    struct pop_lag lag;
    if (broker_pop_lag(b, q->number, &lag)) {
        lag_render(&f->lag, q, "avg", lag.average_us);
        lag_render(&f->lag, q, "max", lag.max_us);
    }
    if (q->dead_letters == 0) return;
    buf_text(&f->dead, "queen_dlq_depth_by_queue");
    queue_labels(&f->dead, q);
    buf_printf(&f->dead, "} %llu\n", (unsigned long long)q->dead_letters);
}

/* The numbers of each group, and of all together: a family whose series carry `group` takes the groups, all others the sum. */
struct group_numbers {
    uint32_t count;
    struct broker_metrics all;
    struct broker_metrics at[];
};

/* One sample a group; `labels` is "" or `kind="x"`. */
static void grouped(struct buf *out, const struct group_numbers *g, const char *name, const char *labels, size_t field)
{
    for (uint32_t i = 0; i < g->count; i++) {
        uint64_t n;
        char text[96];
        memcpy(&n, (const char *)&g->at[i] + field, sizeof n);
        if (g->count > 1)
            snprintf(text, sizeof text, "{group=\"%u\"%s%s}", i, labels[0] == 0 ? "" : ",", labels);
        else
            snprintf(text, sizeof text, labels[0] == 0 ? "%s" : "{%s}", labels);
        value(out, name, text, n);
    }
}

#define GROUPED(out, g, name, labels, field) grouped(out, g, name, labels, offsetof(struct broker_metrics, field))

static void raft_families(struct buf *out, const struct group_numbers *g)
{
    const struct broker_metrics *m = &g->all;
    family(out, "queen_raft_index", "gauge", "Log positions.");
    GROUPED(out, g, "queen_raft_index", "kind=\"log\"", log_index);
    GROUPED(out, g, "queen_raft_index", "kind=\"committed\"", commit_index);
    GROUPED(out, g, "queen_raft_index", "kind=\"applied\"", applied_index);
    GROUPED(out, g, "queen_raft_index", "kind=\"durable\"", durable_index);
    family(out, "queen_raft_inflight", "gauge", "Entries proposed and not yet applied.");
    GROUPED(out, g, "queen_raft_inflight", "", in_flight_entries);
    single(out, "queen_raft_inflight_bytes", "gauge", "Their bytes.", m->in_flight_bytes);
    family(out, "queen_raft_log_storage", "gauge", "Log files.");
    GROUPED(out, g, "queen_raft_log_storage", "kind=\"files\"", log.files);
    GROUPED(out, g, "queen_raft_log_storage", "kind=\"bytes\"", log.file_bytes);
    family(out, "queen_raft_proposals_total", "counter", "Entries proposed.");
    GROUPED(out, g, "queen_raft_proposals_total", "", entries_total);
    single(out, "queen_raft_commands_total", "counter", "Commands in them.", m->commands_total);
    single(out, "queen_raft_storage_full", "gauge", "1 while writes that grow the store are refused.", m->storage_full ? 1 : 0);
    single(out, "queen_raft_admit_bytes", "gauge", "Bytes of request bodies admitted now.", m->admitted_bytes);
    family(out, "queen_raft_admit_total", "counter", "Requests at the admission.");
    value(out, "queen_raft_admit_total", "{outcome=\"refused\"}", m->admit_refused_total);
    single(out, "queen_raft_slow_commands_total", "counter", "Entries that took 50 ms or more from proposal to effect.",
           m->slow_commands_total);
    single(out, "queen_parked_long_polls", "gauge", "Long polls waiting for a message.", m->parked);
    family(out, "queen_raft_log_fsync_seconds", "histogram", "Time of a log sync.");
    histogram(out, "queen_raft_log_fsync_seconds", "", m->log.sync_buckets, 24, 16, m->log.sync_us_total);
    family(out, "queen_raft_propose_roundtrip_seconds", "histogram", "Time of an entry from proposal to effect.");
    histogram(out, "queen_raft_propose_roundtrip_seconds", "", m->entry_buckets, 24, 16, m->entry_us_total);
    family(out, "queen_raft_apply_seconds_total", "counter", "Time spent executing entries.");
    seconds(out, "queen_raft_apply_seconds_total", "", m->apply_us_total);
}

static void payload_homes(struct buf *out, const char *home, uint64_t live, uint64_t files)
{
    char labels[64];
    snprintf(labels, sizeof labels, "{home=\"%s\",kind=\"live\"}", home);
    value(out, "queen_payload_storage_bytes", labels, live);
    snprintf(labels, sizeof labels, "{home=\"%s\",kind=\"dead\"}", home);
    value(out, "queen_payload_storage_bytes", labels, files > live ? files - live : 0);
}

static void storage_families(struct buf *out, const struct group_numbers *g)
{
    const struct broker_metrics *m = &g->all;
    single(out, "queen_log_written_bytes_total", "counter", "Bytes written to the log.", m->log.written_bytes);
    single(out, "queen_log_syncs_total", "counter", "Syncs of the log.", m->log.syncs);
    single(out, "queen_log_cold_reads_total", "counter", "Payload reads that went to a file.", m->log.cold_reads);
    family(out, "queen_cold_row_reads_total", "counter", "Row reads from the store that the group itself waited for.");
    value(out, "queen_cold_row_reads_total", "{during=\"entry\"}", m->cold_entry_rows.count);
    value(out, "queen_cold_row_reads_total", "{during=\"call\"}", m->cold_call_rows.count);
    family(out, "queen_rows_read_group_thread_total", "counter",
           "Blocks of stored rows that were in no cache, so that the group itself read them from files.");
    value(out, "queen_rows_read_group_thread_total", "{during=\"entry\"}", m->cold_entry_rows.blocks);
    value(out, "queen_rows_read_group_thread_total", "{during=\"call\"}", m->cold_call_rows.blocks);
    family(out, "queen_cold_row_read_seconds_total", "counter", "The time of it.");
    seconds(out, "queen_cold_row_read_seconds_total", "{during=\"entry\"}", m->cold_entry_rows.us);
    seconds(out, "queen_cold_row_read_seconds_total", "{during=\"call\"}", m->cold_call_rows.us);
    single(out, "queen_cold_block_reads_total", "counter", "Reads of log files that the group itself waited for.",
           m->cold_entry_blocks.count);
    family(out, "queen_cold_block_read_seconds_total", "counter", "The time of it.");
    seconds(out, "queen_cold_block_read_seconds_total", "", m->cold_entry_blocks.us);
    family(out, "queen_cold_foreseen_total", "counter",
           "What an entry would read and was read ahead of it, or not for want of room.");
    value(out, "queen_cold_foreseen_total", "{outcome=\"read\"}", m->foreseen_total);
    value(out, "queen_cold_foreseen_total", "{outcome=\"dropped\"}", m->foreseen_dropped_total);
    family(out, "queen_payload_storage_bytes", "gauge",
           "Files of the log and of the archive: payloads still wanted, and the rest.");
    payload_homes(out, "log", m->engine.log_live_bytes, m->log.file_bytes);
    payload_homes(out, "archive", m->engine.archive_live_bytes, m->archive.file_bytes);
    single(out, "queen_reclaim_files_total", "counter", "Mostly dead files whose wanted payloads were copied.",
           m->reclaim.files);
    single(out, "queen_reclaim_freed_bytes_total", "counter", "Their bytes.", m->reclaim.bytes);
    single(out, "queen_reclaim_copied_bytes_total", "counter", "Payload bytes copied to the archive.", m->reclaim.copied_bytes);
    family(out, "queen_raft_store_operations_total", "counter", "Work of the row store.");
    GROUPED(out, g, "queen_raft_store_operations_total", "kind=\"batches\"", store_batches);
    GROUPED(out, g, "queen_raft_store_operations_total", "kind=\"rows\"", store_rows);
    GROUPED(out, g, "queen_raft_store_operations_total", "kind=\"flushes\"", store_flushes);
    GROUPED(out, g, "queen_raft_store_operations_total", "kind=\"bytes\"", store_bytes);
    family(out, "queen_memory_bytes", "gauge", "Memory by what holds it (estimates).");
    value(out, "queen_memory_bytes", "{kind=\"engine\"}", m->engine.memory_bytes);
    value(out, "queen_memory_bytes", "{kind=\"partitions\"}", m->engine.lane_bytes);
    value(out, "queen_memory_bytes", "{kind=\"store\"}", m->store_memory);
    value(out, "queen_memory_bytes", "{kind=\"log_cache\"}", m->log.cache_bytes);
    family(out, "queen_engine_objects", "gauge", "What the engine keeps.");
    value(out, "queen_engine_objects", "{kind=\"queues\"}", m->engine.queues);
    value(out, "queen_engine_objects", "{kind=\"partitions\"}", m->engine.partitions);
    value(out, "queen_engine_objects", "{kind=\"partitions_in_memory\"}", m->engine.lanes_in_memory);
    value(out, "queen_engine_objects", "{kind=\"timers_in_memory\"}", m->engine.timers_in_memory);
    value(out, "queen_engine_objects", "{kind=\"groups\"}", m->engine.groups);
    value(out, "queen_engine_objects", "{kind=\"cursors\"}", m->engine.cursors);
    value(out, "queen_engine_objects", "{kind=\"leases\"}", m->engine.leases);
    value(out, "queen_engine_objects", "{kind=\"dedup_ids\"}", m->engine.dedup_ids);
    value(out, "queen_engine_objects", "{kind=\"dead_letters\"}", m->engine.dead_letters);
    value(out, "queen_engine_objects", "{kind=\"messages\"}", m->engine.retained_messages);
    single(out, "queen_retained_bytes", "gauge", "Payload bytes retained.", m->engine.retained_bytes);
}

/* What there is of KV, locks and timers, all tenants together, and what the broker did by itself. */
static void step_states(struct buf *out, const struct broker_metrics *m)
{
    single(out, "queen_kv_rows", "gauge", "Rows of the KV store, with those that expired and were not swept yet.",
           m->engine.kv_rows);
    single(out, "queen_kv_stored_bytes", "gauge", "Their bytes, keys and values.", m->engine.kv_bytes);
    single(out, "queen_locks_held", "gauge", "Permits of locks, with those that expired and were not swept yet.",
           m->engine.lock_rows);
    single(out, "queen_timers_pending", "gauge", "Timers that have not fired.", m->engine.timers);
    single(out, "queen_timers_due", "gauge", "Timers whose time has come and that have not fired; counted up to 10000.",
           m->timers_due);
    family(out, "queen_timers_oldest_late_seconds", "gauge", "How long the first of them has been due.");
    seconds(out, "queen_timers_oldest_late_seconds", "", (uint64_t)m->timer_overdue_us);
    family(out, "queen_timers_last_late_seconds", "gauge", "How long after its time the last timer fired.");
    seconds(out, "queen_timers_last_late_seconds", "", (uint64_t)m->timer_late_us);
    family(out, "queen_timers_fired_total", "counter",
           "Timers fired; duplicate: the partition had the transaction id already.");
    value(out, "queen_timers_fired_total", "{result=\"fired\"}", m->timers_fired_total);
    value(out, "queen_timers_fired_total", "{result=\"duplicate\"}", m->timers_duplicate_total);
    single(out, "queen_timers_ticks_total", "counter", "Log commands that fire timers.", m->ticks_total);
    single(out, "queen_reads_waiting", "gauge", "Fetches waiting for a message.", m->reads_waiting);
    single(out, "queen_retention_partitions_total", "counter", "Times that retention took messages off a partition.",
           m->trimmed_lanes_total);
    single(out, "queen_retention_messages_total", "counter", "Messages that it took.", m->trimmed_messages_total);
}

/* Adds the numbers of one more group. */
static void numbers_add(struct broker_metrics *all, const struct broker_metrics *one)
{
    static const size_t sums[] = {
#define SUM(field) offsetof(struct broker_metrics, field)
        SUM(log_index),
        SUM(commit_index),
        SUM(applied_index),
        SUM(durable_index),
        SUM(in_flight_entries),
        SUM(in_flight_bytes),
        SUM(entries_total),
        SUM(commands_total),
        SUM(cold_cache_bytes),
        SUM(cold_read_bytes),
        SUM(slow_commands_total),
        SUM(parked),
        SUM(reads_waiting),
        SUM(ticks_total),
        SUM(timers_fired_total),
        SUM(timers_duplicate_total),
        SUM(trimmed_lanes_total),
        SUM(trimmed_messages_total),
        SUM(entry_us_total),
        SUM(apply_us_total),
        SUM(log.syncs),
        SUM(log.sync_us_total),
        SUM(log.written_bytes),
        SUM(log.cold_reads),
        SUM(log.cache_bytes),
        SUM(log.file_bytes),
        SUM(archive.file_bytes),
        SUM(reclaim.files),
        SUM(reclaim.bytes),
        SUM(reclaim.copied_bytes),
        SUM(engine.log_live_bytes),
        SUM(engine.archive_live_bytes),
        SUM(engine.queues),
        SUM(engine.partitions),
        SUM(engine.lanes_in_memory),
        SUM(engine.lane_bytes),
        SUM(engine.groups),
        SUM(engine.cursors),
        SUM(engine.leases),
        SUM(engine.dedup_ids),
        SUM(engine.dead_letters),
        SUM(engine.retained_messages),
        SUM(engine.retained_bytes),
        SUM(engine.memory_bytes),
        SUM(engine.lane_bytes),
        SUM(engine.dedup_bytes),
        SUM(engine.kv_value_bytes),
        SUM(engine.kv_row_bytes),
        SUM(engine.unstored_bytes),
        SUM(engine.runs_in_memory),
        SUM(engine.kv_rows),
        SUM(engine.kv_bytes),
        SUM(engine.lock_rows),
        SUM(engine.timers),
        SUM(engine.timers_in_memory),
        SUM(engine.timer_bytes),
        SUM(store_memory),
        SUM(cold_entry_rows.count),
        SUM(cold_entry_rows.us),
        SUM(cold_entry_rows.blocks),
        SUM(cold_call_rows.count),
        SUM(cold_call_rows.blocks),
        SUM(cold_call_rows.us),
        SUM(cold_entry_blocks.count),
        SUM(cold_entry_blocks.us),
        SUM(foreseen_total),
        SUM(foreseen_dropped_total),
#undef SUM
    };
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        uint64_t a, b;
        memcpy(&a, (char *)all + sums[i], sizeof a);
        memcpy(&b, (const char *)one + sums[i], sizeof b);
        a += b;
        memcpy((char *)all + sums[i], &a, sizeof a);
    }
    for (size_t i = 0; i < sizeof all->entry_buckets / sizeof all->entry_buckets[0]; i++)
        all->entry_buckets[i] += one->entry_buckets[i];
    for (size_t i = 0; i < sizeof all->log.sync_buckets / sizeof all->log.sync_buckets[0]; i++)
        all->log.sync_buckets[i] += one->log.sync_buckets[i];
    all->timers_due += one->timers_due;
    if (one->timer_overdue_us > all->timer_overdue_us) all->timer_overdue_us = one->timer_overdue_us;
    if (one->timer_late_us > all->timer_late_us) all->timer_late_us = one->timer_late_us;
    all->storage_full = all->storage_full || one->storage_full;
}

static void queues_render(struct request *r, struct buf *out, struct engine *e, const struct queue_depths *d)
{
    struct queue_families f = {0};
    struct queue_view q;
    for (uint32_t i = 0; i < d->count; i++) {
        if (engine_queue_next(e, r->tenant, d->rows[i].number - 1, &q) && q.number == d->rows[i].number)
            queue_render(&f, r->broker, &q, &d->rows[i]);
    }
    family(out, "queen_queue_depth", "gauge", "Messages of a queue.");
    buf_slice(out, buf_view(&f.depth));
    family(out, "queen_dlq_depth_by_queue", "gauge", "Dead letters of a queue.");
    buf_slice(out, buf_view(&f.dead));
    family(out, "queen_queue_pop_lag_milliseconds", "gauge", "Age of the messages delivered in the last minute or two.");
    buf_slice(out, buf_view(&f.lag));
    single(out, "queen_queues_omitted", "gauge", "Queues left out of the families by queue.", d->omitted);
    buf_free(&f.depth);
    buf_free(&f.dead);
    buf_free(&f.lag);
}

/* The groups are visited one after the other; the queues of the tenant come with its own group, and are kept in r->command. */
struct prometheus {
    uint32_t at, own;
    struct queue_depths depths;
    bool more; /* another visit to this group */
    struct group_numbers *numbers;
};

static void group_read(struct call *c, struct engine *e, struct engine_now now)
{
    struct request *r = c->read_ctx;
    struct prometheus *p = r->route_data;
    if (!p->depths.walk.begun || p->at != p->own) broker_metrics(r->broker, &p->numbers->at[p->at]);
    p->more = p->at == p->own && depths_visit(&p->depths, r, e, now);
    if (p->more) return;
    if (p->at == p->own) queues_render(r, &c->answer, e, &p->depths);
}

static uint64_t peers_backlog(const struct node *n)
{
    struct net_peer_stats peers[NET_PEERS_MAX];
    uint64_t bytes = 0;
    uint32_t count = node_alone(n) ? 0 : net_stats(node_net(n), peers, NET_PEERS_MAX);
    for (uint32_t i = 0; i < count; i++) bytes += peers[i].backlog_bytes;
    return bytes;
}

/* The shares of QUEEN_MEMORY_MAX and what is used of them. */
static void memory_families(struct buf *out, const struct http *h, const struct broker_metrics *m)
{
    const struct memory_plan *p = &h->config->memory;
    uint32_t connections = 0;
    for (uint32_t i = 0; i < h->edge_count; i++) connections += edge_connections(h->edges[i]);
    const struct {
        const char *labels;
        uint64_t bound, used;
    } shares[] = {
        {"{share=\"connections\"}", p->connections, (uint64_t)connections * MEMORY_CONNECTION_BYTES},
        {"{share=\"bodies\"}", p->bodies, m->admitted_bytes * MEMORY_BODY_COPIES},
        {"{share=\"answers\"}", p->answers, m->answer_bytes},
        {"{share=\"log\"}", p->log, m->log.cache_bytes},
        {"{share=\"cold_cache\"}", p->cold_cache, m->cold_cache_bytes},
        {"{share=\"cold_reads\"}", p->cold_reads, m->cold_read_bytes},
        {"{share=\"store\"}", p->store, m->store_memory},
        {"{share=\"peers\"}", p->peers, peers_backlog(h->node)},
        {"{share=\"unstored\"}", p->unstored, m->engine.unstored_bytes},
        {"{share=\"runs\"}", p->runs, m->engine.runs_in_memory * ENGINE_RUN_BYTES},
        {"{share=\"timers\"}", p->timers, m->engine.timer_bytes},
        {"{share=\"lanes\"}", p->lanes, m->engine.lane_bytes},
        {"{share=\"dedup\"}", p->dedup, m->engine.dedup_bytes},
        {"{share=\"kv_values\"}", p->kv_values, m->engine.kv_value_bytes + m->engine.kv_row_bytes},
    };
    const size_t count = sizeof shares / sizeof shares[0];
    single(out, "queen_memory_max_bytes", "gauge", "QUEEN_MEMORY_MAX.", p->total);
    family(out, "queen_memory_share_bytes", "gauge", "How it is divided; 0 = that share has no bound.");
    for (size_t i = 0; i < count; i++) value(out, "queen_memory_share_bytes", shares[i].labels, shares[i].bound);
    family(out, "queen_memory_share_used_bytes", "gauge", "What is used of each share (estimates).");
    for (size_t i = 0; i < count; i++) value(out, "queen_memory_share_used_bytes", shares[i].labels, shares[i].used);
}

static void groups_render(struct buf *out, const struct http *h, struct group_numbers *g, struct slice queues)
{
    g->all = g->at[0];
    for (uint32_t i = 1; i < g->count; i++) numbers_add(&g->all, &g->at[i]);
    raft_families(out, g);
    storage_families(out, g);
    memory_families(out, h, &g->all);
    step_states(out, &g->all);
    buf_slice(out, queues);
}

/* What the other nodes are to this one. */
static void cluster_families(struct buf *out, struct http *h)
{
    struct net_peer_stats peers[NET_PEERS_MAX];
    uint32_t count = net_stats(node_net(h->node), peers, NET_PEERS_MAX);
    static const struct {
        const char *name, *type, *help;
        size_t at;
    } families[] = {
        {"queen_peer_sent_bytes_total", "counter", "Bytes sent to another node.", offsetof(struct net_peer_stats, sent_bytes)},
        {"queen_peer_received_bytes_total", "counter", "Bytes received from it.",
         offsetof(struct net_peer_stats, received_bytes)},
        {"queen_peer_backlog_bytes", "gauge", "Bytes that wait to be sent to it.",
         offsetof(struct net_peer_stats, backlog_bytes)},
        {"queen_peer_dropped_frames_total", "counter", "Frames to it that were dropped.",
         offsetof(struct net_peer_stats, dropped_frames)},
        {"queen_peer_connects_total", "counter", "Connections made to it.", offsetof(struct net_peer_stats, connects)},
    };
    family(out, "queen_raft_leader", "gauge", "1 while this node leads the group.");
    for (uint32_t i = 0; i < node_group_count(h->node); i++) {
        struct broker_health b;
        broker_health(node_group(h->node, i), &b);
        buf_printf(out, "queen_raft_leader{group=\"%u\"} %d\n", i, b.leader ? 1 : 0);
    }
    family(out, "queen_peer_connected", "gauge", "1 while both connections with another node are up.");
    for (uint32_t i = 0; i < count; i++)
        buf_printf(out, "queen_peer_connected{peer=\"%llu\"} %d\n", (unsigned long long)peers[i].peer,
                   peers[i].out_up && peers[i].in_up ? 1 : 0);
    for (size_t k = 0; k < sizeof families / sizeof families[0]; k++) {
        family(out, families[k].name, families[k].type, families[k].help);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t n;
            memcpy(&n, (const char *)&peers[i] + families[k].at, sizeof n);
            buf_printf(out, "%s{peer=\"%llu\"} %llu\n", families[k].name, (unsigned long long)peers[i].peer,
                       (unsigned long long)n);
        }
    }
}

/* ---- the edges' part -------------------------------------------------------------------------------------------------- */

static void http_families(struct buf *out, const struct edge_metrics *m)
{
    family(out, "queen_http_requests_total", "counter", "Requests by route and status.");
    for (int i = 0; i < ROUTE_COUNT; i++) {
        for (uint32_t s = 0; s < METRICS_STATUSES; s++) {
            uint64_t n = counter_get(&m->routes[i].status[s]);
            if (n == 0) continue;
            buf_printf(out, "queen_http_requests_total{route=\"%s\",status=\"%u\"} %llu\n", route_label((enum route_id)i),
                       metrics_status(s), (unsigned long long)n);
        }
    }
    family(out, "queen_http_request_seconds", "histogram", "Time from the request line to the end of the answer.");
    for (int i = 0; i < ROUTE_COUNT; i++) {
        char label[64];
        uint64_t buckets[METRICS_BUCKETS];
        if (metrics_requests(m, (enum route_id)i) == 0) continue;
        for (uint32_t k = 0; k < METRICS_BUCKETS; k++) buckets[k] = counter_get(&m->routes[i].bucket[k]);
        snprintf(label, sizeof label, "route=\"%s\",", route_label((enum route_id)i));
        histogram(out, "queen_http_request_seconds", label, buckets, METRICS_BUCKETS, METRICS_BUCKET_US,
                  counter_get(&m->routes[i].us_total));
    }
}

static void results_render(struct buf *out, const char *name, const char *kind_label, const char *result_label,
                           const char *kind, const struct counter results[OP_RESULTS])
{
    static const char *const names[OP_RESULTS] = {"applied", "rejected", "error"};
    for (int i = 0; i < OP_RESULTS; i++) {
        buf_printf(out, "%s{%s=\"%s\",%s=\"%s\"} %llu\n", name, kind_label, kind, result_label, names[i],
                   (unsigned long long)counter_get(&results[i]));
    }
}

static void counters_render(struct buf *out, const char *name, const char *label, const char *const *values,
                            const struct counter *counters, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        buf_printf(out, "%s{%s=\"%s\"} %llu\n", name, label, values[i], (unsigned long long)counter_get(&counters[i]));
    }
}

static void step_families(struct buf *out, const struct edge_metrics *m)
{
    static const char *const kv[METRICS_KV_OPS] = {"put", "delete", "incr", "check", "get", "getMany", "getPrefix"};
    static const char *const locks[METRICS_LOCK_OPS] = {"acquire", "renew", "release", "get"};
    static const char *const timers[METRICS_TIMER_STATUSES] = {"scheduled", "rescheduled", "cancelled", "absent"};
    static const char *const schedules[SCHEDULE_REFUSALS] = {"shape", "payload_too_large", "horizon", "rate_limited",
                                                             "unavailable"};
    static const char *const fates[TRANSACTION_FATES] = {
        "committed", "rejected_ack", "queue_not_found", "duplicate", "kv_precondition", "malformed", "error"};
    family(out, "queen_transactions_total", "counter",
           "Transactions by what became of them; error: not known, else all but committed changed nothing.");
    counters_render(out, "queen_transactions_total", "outcome", fates, m->transactions, TRANSACTION_FATES);
    family(out, "queen_kv_ops_total", "counter", "KV operations, those of transactions too.");
    for (int i = 0; i < METRICS_KV_OPS; i++) results_render(out, "queen_kv_ops_total", "op", "result", kv[i], m->kv_ops[i]);
    family(out, "queen_kv_bytes_total", "counter", "Bytes of values stored and given out.");
    value(out, "queen_kv_bytes_total", "{dir=\"in\"}", counter_get(&m->kv_bytes_in));
    value(out, "queen_kv_bytes_total", "{dir=\"out\"}", counter_get(&m->kv_bytes_out));
    family(out, "queen_kv_read_rejected_total", "counter", "KV and lock calls that only read and were refused.");
    value(out, "queen_kv_read_rejected_total", "{reason=\"rate_limited\"}", counter_get(&m->kv_reads_limited));
    family(out, "queen_locks_ops_total", "counter", "Lock operations.");
    for (int i = 0; i < METRICS_LOCK_OPS; i++)
        results_render(out, "queen_locks_ops_total", "kind", "outcome", locks[i], m->lock_ops[i]);
    family(out, "queen_timers_ops_total", "counter", "Timer operations, those of transactions too.");
    counters_render(out, "queen_timers_ops_total", "outcome", timers, m->timer_ops, METRICS_TIMER_STATUSES);
    family(out, "queen_timers_schedule_rejected_total", "counter",
           "Calls refused that schedule timers, or whose body does not say what they do.");
    counters_render(out, "queen_timers_schedule_rejected_total", "reason", schedules, m->schedules_refused, SCHEDULE_REFUSALS);
}

static void damage_families(struct buf *out, struct node *n)
{
    if (n == NULL) return;
    family(out, "queen_damaged", "gauge", "1 when stored data of the group was found damaged on this node.");
    for (uint32_t i = 0; i < node_group_count(n); i++) {
        struct node_damage d;
        node_damage(n, i, &d);
        buf_printf(out, "queen_damaged{group=\"%u\"} %d\n", i, d.damaged ? 1 : 0);
    }
    single(out, "queen_under_repair", "gauge", "1 while this node replaces damaged data by the leader's and serves nothing.",
           node_repairs(n) ? 1 : 0);
}

static void process_families(struct buf *out, struct http *h, const struct edge_metrics *m)
{
    uint32_t connections = 0;
    for (uint32_t i = 0; i < h->edge_count; i++) connections += edge_connections(h->edges[i]);
    uint64_t pops = metrics_requests(m, ROUTE_POP_QUEUE) + metrics_requests(m, ROUTE_POP_PARTITION) +
                    metrics_requests(m, ROUTE_POP_DISCOVERY);
    family(out, "queen_uptime_seconds", "gauge", "Since the process started.");
    seconds(out, "queen_uptime_seconds", "", (uint64_t)(clock_mono_us() - h->started_us));
    single(out, "queen_loaded_rows", "gauge", "Rows of state read at the start, so far.", atomic_load(&h->rows_loaded));
    family(out, "queen_loaded_ratio", "gauge", "How far the start is with them, about; 1 = all are there.");
    unsigned loaded = atomic_load(&h->loaded_per_mille);
    buf_printf(out, "queen_loaded_ratio %u.%03u\n", loaded / 1000, loaded % 1000);
    struct scrub *s = h->scrub;
    if (s != NULL) {
        struct scrub_view scrub;
        scrub_view(s, &scrub);
        single(out, "queen_scrub_bytes_total", "counter", "Bytes of sealed log files looked through.", scrub.bytes_total);
        single(out, "queen_scrub_damaged_total", "counter", "Places found damaged in them.", scrub.damaged_total);
    }
    damage_families(out, h->node);
    single(out, "queen_process_resident_memory_bytes", "gauge", "Resident memory.", ops_resident_bytes());
    single(out, "queen_process_push_requests_total", "counter", "Push requests.", metrics_requests(m, ROUTE_PUSH));
    single(out, "queen_process_pop_requests_total", "counter", "Pop requests.", pops);
    single(out, "queen_process_ack_requests_total", "counter", "Ack requests.",
           metrics_requests(m, ROUTE_ACK) + metrics_requests(m, ROUTE_ACK_BATCH));
    single(out, "queen_process_push_messages_total", "counter", "Messages pushed.", counter_get(&m->push_messages));
    single(out, "queen_process_pop_messages_total", "counter", "Messages delivered.", counter_get(&m->pop_messages));
    single(out, "queen_process_ack_messages_total", "counter", "Acknowledgments.", counter_get(&m->ack_messages));
    single(out, "queen_http_connections", "gauge", "Open connections.", connections);
    single(out, "queen_http_connections_total", "counter", "Connections accepted.", counter_get(&m->accepted));
    single(out, "queen_http_connections_suspended", "gauge", "Connections whose call takes long.", counter_get(&m->parked));
    single(out, "queen_http_connections_cut_total", "counter", "Connections cut for being slow.", counter_get(&m->cut_slow));
    single(out, "queen_http_polls_left_total", "counter", "Long polls whose client left.", counter_get(&m->left_while_parked));
    single(out, "queen_http_heads_refused_total", "counter", "Requests refused for their head.",
           counter_get(&m->refused_heads));
}

static void edges_render(struct request *r)
{
    struct edge_metrics *m = arena_zero(request_arena(r), sizeof *m);
    metrics_sum(r->http, m);
    process_families(&r->out, r->http, m);
    http_families(&r->out, m);
    step_families(&r->out, m);
}

static void prometheus_end(struct request *r)
{
    r->content_type = "text/plain; version=0.0.4";
    answer_json(r, 200);
}

static void group_ask(struct request *r);

/* A group's part may be missing (too busy, starting): then what is known is told, and nothing of the groups. */
static void group_after(struct request *r)
{
    struct prometheus *p = r->route_data;
    bool good = r->call.outcome == CALL_OK;
    if (good && p->at == p->own) buf_slice(&r->command, buf_view(&r->call.answer));
    buf_clear(&r->call.answer);
    if (good && (p->more || ++p->at < p->numbers->count)) {
        group_ask(r);
        return;
    }
    if (good) groups_render(&r->out, r->http, p->numbers, buf_view(&r->command));
    prometheus_end(r);
}

static void group_ask(struct request *r)
{
    enum { WAIT_MS = 5000 };
    struct prometheus *p = r->route_data;
    r->broker = node_group(r->http->node, p->at);
    r->call.kind = CALL_READ;
    r->call.always = true;
    r->call.read = group_read;
    r->call.read_ctx = r;
    r->call.foresee = NULL;
    if (p->at == p->own) walk_foreseen(r, &p->depths.walk, FORESEEN_LANES);
    request_submit(r, WAIT_MS, group_after);
}

void route_prometheus(struct request *r)
{
    struct node *n = r->http->node;
    edges_render(r);
    if (r->broker == NULL) {
        prometheus_end(r);
        return;
    }
    if (!node_alone(n)) cluster_families(&r->out, r->http);
    struct prometheus *p = arena_zero(request_arena(r), sizeof *p);
    uint32_t count = node_group_count(n);
    p->own = r->group;
    p->depths.arena = request_arena(r);
    p->numbers = arena_zero(request_arena(r), sizeof *p->numbers + count * sizeof p->numbers->at[0]);
    p->numbers->count = count;
    r->route_data = p;
    buf_clear(&r->command);
    group_ask(r);
}
