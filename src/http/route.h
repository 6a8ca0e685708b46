/* Routes: which path and method means what. One file a family implements them (route_*.c).
 *
 * A route's `run` is called once the whole request is there. It either makes an answer at once (answer.h) or gives the call to
 * the broker (request_submit) and makes the answer when that is done. Edge thread. */
#ifndef QUEEN_HTTP_ROUTE_H
#define QUEEN_HTTP_ROUTE_H

#include "http/request.h"

enum route_id {
    ROUTE_PUSH,
    ROUTE_POP_QUEUE,
    ROUTE_POP_PARTITION,
    ROUTE_POP_DISCOVERY,
    ROUTE_ACK,
    ROUTE_ACK_BATCH,
    ROUTE_EXTEND,
    ROUTE_TRANSACTION,
    ROUTE_KV,
    ROUTE_KV_GET,
    ROUTE_KV_PUT,
    ROUTE_KV_DELETE,
    ROUTE_KV_SPACES,
    ROUTE_KV_LIST,
    ROUTE_LOCKS,
    ROUTE_CONFIGURE,
    ROUTE_QUEUE_DELETE,
    ROUTE_QUEUE_LIST,
    ROUTE_QUEUE_DETAIL,
    ROUTE_QUEUE_DEPTH,
    ROUTE_QUEUE_SIZES,
    ROUTE_OVERVIEW,
    ROUTE_NAMESPACES,
    ROUTE_TASKS,
    ROUTE_STATUS_VIEW,
    ROUTE_STATUS_QUEUES,
    ROUTE_STATUS_QUEUE,
    ROUTE_STATUS_ANALYTICS,
    ROUTE_RAFT_STATUS,
    ROUTE_RAFT_MEMBERS,
    ROUTE_RAFT_LIVENESS,
    ROUTE_MEMBERSHIP,
    ROUTE_MEMBER_ADD,
    ROUTE_MEMBER_PROMOTE,
    ROUTE_MEMBER_VOTERS,
    ROUTE_MEMBER_READDRESS,
    ROUTE_MEMBER_REMOVE,
    ROUTE_BACKUP,
    ROUTE_BACKUP_VIEW,
    ROUTE_BACKUP_CANCEL,
    ROUTE_KV_TIMERS,
    ROUTE_SHARED_STATE,
    ROUTE_GROUP_LIST,
    ROUTE_GROUP_LAGGING,
    ROUTE_GROUP_DETAIL,
    ROUTE_GROUP_SEEK,
    ROUTE_GROUP_SEEK_LANE,
    ROUTE_GROUP_DELETE,
    ROUTE_GROUP_DELETE_QUEUE,
    ROUTE_GROUP_SUBSCRIPTION,
    ROUTE_GROUP_POSITIONS,
    ROUTE_MESSAGE_LIST,
    ROUTE_MESSAGE_DETAIL,
    ROUTE_MESSAGE_DELETE,
    ROUTE_MESSAGE_RETRY,
    ROUTE_DLQ,
    ROUTE_DLQ_DELETE,
    ROUTE_DLQ_REPLAY,
    ROUTE_TIMERS,
    ROUTE_TIMER_LIST,
    ROUTE_TIMER_PEEK,
    ROUTE_TIMER_CANCEL,
    ROUTE_FETCH,
    ROUTE_FETCH_OFFSETS,
    ROUTE_PARTITIONS_CHANGED,
    ROUTE_HEALTH,
    ROUTE_STATUS,
    ROUTE_METRICS,
    ROUTE_PROMETHEUS,
    ROUTE_STATS_REFRESH,
    ROUTE_NONE, /* refused before a route was known, or no such route */
    ROUTE_COUNT
};

struct route {
    enum route_id id;
    const char *label; /* for metrics */
    const char *method;
    const char *pattern; /* `:` stands for one segment, a parameter; `*` for all that is left, slashes too, but for the letters
                            behind it. The names of a path with `*` are only decoded: the route judges them (empty, control characters) */
    bool head;           /* HEAD is answered like GET, without the body */
    bool always;         /* answered also while the broker is not ready */
    void (*run)(struct request *r);
};

extern const struct route route_table[];
extern const uint32_t route_table_len;
const char *route_label(enum route_id id);

/* Reads r->target: finds the route, decodes parameters and query. Without one: an answer (404, 405 or 400) is set and r->route
 * stays NULL. */
void route_find(struct request *r, const char *method);

/* Typed query parameters. A repeated name keeps the last value; an empty value is as good as absent. False: the value is not of
 * that type; a 400 is set. `out` is left alone when the parameter is absent. */
bool query_text(struct request *r, const char *name, struct slice *out);
bool query_int(struct request *r, const char *name, int64_t *out, bool *given);
bool query_bool(struct request *r, const char *name, bool *out, bool *given);

void route_push(struct request *r);
void route_pop_queue(struct request *r);
void route_pop_partition(struct request *r);
void route_pop_discovery(struct request *r);
void route_ack(struct request *r);
void route_extend(struct request *r);
void route_transaction(struct request *r);
void route_kv(struct request *r);
void route_kv_get(struct request *r);
void route_kv_put(struct request *r);
void route_kv_delete(struct request *r);
void route_kv_spaces(struct request *r);
void route_kv_list(struct request *r);
void route_locks(struct request *r);
void route_configure(struct request *r);
void route_queue_delete(struct request *r);
void route_queue_list(struct request *r);
void route_queue_detail(struct request *r);
void route_queue_depth(struct request *r);
void route_queue_sizes(struct request *r);
void route_overview(struct request *r);
void route_namespaces(struct request *r);
void route_tasks(struct request *r);
void route_status_view(struct request *r);
void route_status_queue(struct request *r);
void route_status_analytics(struct request *r);
void route_raft_status(struct request *r);
void route_raft_members(struct request *r);
void route_raft_liveness(struct request *r);
void route_membership(struct request *r);
void route_member_add(struct request *r);
void route_member_promote(struct request *r);
void route_member_voters(struct request *r);
void route_member_readdress(struct request *r);
void route_member_remove(struct request *r);
void route_backup(struct request *r);
void route_backup_view(struct request *r);
void route_backup_cancel(struct request *r);
void route_kv_timers(struct request *r);
void route_shared_state(struct request *r);
void route_group_list(struct request *r);
void route_group_lagging(struct request *r);
void route_group_detail(struct request *r);
void route_group_seek(struct request *r);
void route_group_seek_lane(struct request *r);
void route_group_delete(struct request *r);
void route_group_delete_queue(struct request *r);
void route_group_subscription(struct request *r);
void route_group_positions(struct request *r);
void route_message_list(struct request *r);
void route_message_detail(struct request *r);
void route_message_delete(struct request *r);
void route_message_retry(struct request *r);
void route_dlq(struct request *r);
void route_dlq_delete(struct request *r);
void route_dlq_replay(struct request *r);
void route_timers(struct request *r);
void route_timer_list(struct request *r);
void route_timer_peek(struct request *r);
void route_timer_cancel(struct request *r);
void route_fetch(struct request *r);
void route_fetch_offsets(struct request *r);
void route_partitions_changed(struct request *r);
void route_health(struct request *r);
void route_status(struct request *r);
void route_metrics(struct request *r);
void route_prometheus(struct request *r);
void route_stats_refresh(struct request *r);

#endif
