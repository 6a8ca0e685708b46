#include "http/route.h"

#include <stdio.h>

#include "http/answer.h"
#include "http/name.h"
#include "http/render.h"

const struct route route_table[] = {
    {ROUTE_PUSH, "push", "POST", "/api/v1/push", false, false, route_push},
    {ROUTE_POP_QUEUE, "pop_queue", "GET", "/api/v1/pop/queue/:", false, false, route_pop_queue},
    {ROUTE_POP_PARTITION, "pop_partition", "GET", "/api/v1/pop/queue/:/partition/:", false, false, route_pop_partition},
    {ROUTE_POP_DISCOVERY, "pop_discovery", "GET", "/api/v1/pop", false, false, route_pop_discovery},
    {ROUTE_ACK, "ack", "POST", "/api/v1/ack", false, false, route_ack},
    {ROUTE_ACK_BATCH, "ack_batch", "POST", "/api/v1/ack/batch", false, false, route_ack},
    {ROUTE_EXTEND, "lease_extend", "POST", "/api/v1/lease/:/extend", false, false, route_extend},
    {ROUTE_TRANSACTION, "transaction", "POST", "/api/v1/transaction", false, false, route_transaction},
    {ROUTE_KV, "kv", "POST", "/api/v1/kv", false, false, route_kv},
    {ROUTE_KV_GET, "kv_get", "GET", "/api/v1/kv/:/*", true, false, route_kv_get},
    {ROUTE_KV_PUT, "kv_put", "PUT", "/api/v1/kv/:/*", false, false, route_kv_put},
    {ROUTE_KV_DELETE, "kv_delete", "DELETE", "/api/v1/kv/:/*", false, false, route_kv_delete},
    {ROUTE_KV_SPACES, "kv_namespaces", "GET", "/api/v1/resources/kv/namespaces", true, false, route_kv_spaces},
    {ROUTE_KV_LIST, "kv_list", "POST", "/api/v1/resources/kv/list", false, false, route_kv_list},
    {ROUTE_LOCKS, "locks", "POST", "/api/v1/locks", false, false, route_locks},
    {ROUTE_CONFIGURE, "configure", "POST", "/api/v1/configure", false, false, route_configure},
    {ROUTE_QUEUE_DELETE, "queue_delete", "DELETE", "/api/v1/resources/queues/:", false, false, route_queue_delete},
    {ROUTE_QUEUE_LIST, "queue_list", "GET", "/api/v1/resources/queues", true, false, route_queue_list},
    {ROUTE_QUEUE_DETAIL, "queue_detail", "GET", "/api/v1/resources/queues/:", true, false, route_queue_detail},
    {ROUTE_QUEUE_DEPTH, "queue_depth", "GET", "/api/v1/resources/queues/:/depth", true, false, route_queue_depth},
    {ROUTE_QUEUE_SIZES, "queue_sizes", "GET", "/api/v1/resources/queues/:/sizes", true, false, route_queue_sizes},
    {ROUTE_OVERVIEW, "overview", "GET", "/api/v1/resources/overview", true, false, route_overview},
    {ROUTE_NAMESPACES, "namespaces", "GET", "/api/v1/resources/namespaces", true, false, route_namespaces},
    {ROUTE_TASKS, "tasks", "GET", "/api/v1/resources/tasks", true, false, route_tasks},
    {ROUTE_STATUS_VIEW, "status_view", "GET", "/api/v1/status", true, false, route_status_view},
    {ROUTE_STATUS_QUEUES, "status_queues", "GET", "/api/v1/status/queues", true, false, route_queue_list},
    {ROUTE_STATUS_QUEUE, "status_queue", "GET", "/api/v1/status/queues/:", true, false, route_status_queue},
    {ROUTE_STATUS_ANALYTICS, "status_analytics", "GET", "/api/v1/status/analytics", true, false, route_status_analytics},
    {ROUTE_RAFT_STATUS, "raft_status", "GET", "/api/v1/raft/status", true, true, route_raft_status},
    {ROUTE_RAFT_MEMBERS, "raft_members", "GET", "/api/v1/raft/members", true, true, route_raft_members},
    {ROUTE_RAFT_LIVENESS, "raft_liveness", "GET", "/api/v1/raft/liveness", true, true, route_raft_liveness},
    {ROUTE_MEMBERSHIP, "membership", "GET", "/api/v1/system/raft/membership", true, true, route_membership},
    {ROUTE_MEMBER_ADD, "member_add", "POST", "/api/v1/system/raft/membership/learners", false, true, route_member_add},
    {ROUTE_MEMBER_PROMOTE, "member_promote", "POST", "/api/v1/system/raft/membership/promote", false, true,
     route_member_promote},
    {ROUTE_MEMBER_VOTERS, "member_voters", "PUT", "/api/v1/system/raft/membership/voters", false, true, route_member_voters},
    {ROUTE_MEMBER_READDRESS, "member_readdress", "PUT", "/api/v1/system/raft/membership/members/:", false, true,
     route_member_readdress},
    {ROUTE_MEMBER_REMOVE, "member_remove", "DELETE", "/api/v1/system/raft/membership/members/:", false, true,
     route_member_remove},
    {ROUTE_BACKUP, "backup", "POST", "/api/v1/system/backup", false, true, route_backup},
    {ROUTE_BACKUP_VIEW, "backup_view", "GET", "/api/v1/system/backup", true, true, route_backup_view},
    {ROUTE_BACKUP_CANCEL, "backup_cancel", "DELETE", "/api/v1/system/backup", false, true, route_backup_cancel},
    {ROUTE_KV_TIMERS, "kv_timers", "GET", "/api/v1/system/kv-timers", true, true, route_kv_timers},
    {ROUTE_SHARED_STATE, "shared_state", "GET", "/api/v1/system/shared-state", true, true, route_shared_state},
    {ROUTE_GROUP_LIST, "group_list", "GET", "/api/v1/consumer-groups", true, false, route_group_list},
    {ROUTE_GROUP_LAGGING, "group_lagging", "GET", "/api/v1/consumer-groups/lagging", true, false, route_group_lagging},
    {ROUTE_GROUP_DETAIL, "group_detail", "GET", "/api/v1/consumer-groups/:", true, false, route_group_detail},
    {ROUTE_GROUP_SEEK, "group_seek", "POST", "/api/v1/consumer-groups/:/queues/:/seek", false, false, route_group_seek},
    {ROUTE_GROUP_SEEK_LANE, "group_seek_partition", "POST", "/api/v1/consumer-groups/:/queues/:/partitions/:/seek", false,
     false, route_group_seek_lane},
    {ROUTE_GROUP_DELETE, "group_delete", "DELETE", "/api/v1/consumer-groups/:", false, false, route_group_delete},
    {ROUTE_GROUP_DELETE_QUEUE, "group_delete_queue", "DELETE", "/api/v1/consumer-groups/:/queues/:", false, false,
     route_group_delete_queue},
    {ROUTE_GROUP_SUBSCRIPTION, "group_subscription", "POST", "/api/v1/consumer-groups/:/subscription", false, false,
     route_group_subscription},
    {ROUTE_GROUP_POSITIONS, "group_positions", "POST", "/api/v1/consumer-groups/positions", false, false,
     route_group_positions},
    {ROUTE_MESSAGE_LIST, "message_list", "GET", "/api/v1/messages", true, false, route_message_list},
    {ROUTE_MESSAGE_DETAIL, "message_detail", "GET", "/api/v1/messages/:/*", true, false, route_message_detail},
    {ROUTE_MESSAGE_DELETE, "message_delete", "DELETE", "/api/v1/messages/:/*", false, false, route_message_delete},
    {ROUTE_MESSAGE_RETRY, "message_retry", "POST", "/api/v1/messages/:/*/retry", false, false, route_message_retry},
    {ROUTE_DLQ, "dlq", "GET", "/api/v1/dlq", true, false, route_dlq},
    {ROUTE_DLQ_DELETE, "dlq_delete", "DELETE", "/api/v1/dlq", false, false, route_dlq_delete},
    {ROUTE_DLQ_REPLAY, "dlq_replay", "POST", "/api/v1/dlq/:/replay", false, false, route_dlq_replay},
    {ROUTE_TIMERS, "timers", "POST", "/api/v1/timers", false, false, route_timers},
    {ROUTE_TIMER_LIST, "timer_list", "GET", "/api/v1/timers/:", true, false, route_timer_list},
    {ROUTE_TIMER_PEEK, "timer_peek", "GET", "/api/v1/timers/:/*", true, false, route_timer_peek},
    {ROUTE_TIMER_CANCEL, "timer_cancel", "DELETE", "/api/v1/timers/:/*", false, false, route_timer_cancel},
    {ROUTE_FETCH, "fetch", "POST", "/api/v1/fetch", false, false, route_fetch},
    {ROUTE_FETCH_OFFSETS, "fetch_offsets", "POST", "/api/v1/fetch/offsets", false, false, route_fetch_offsets},
    {ROUTE_PARTITIONS_CHANGED, "partitions_changed", "POST", "/api/v1/partitions/changed", false, false,
     route_partitions_changed},
    {ROUTE_HEALTH, "health", "GET", "/health", true, true, route_health},
    {ROUTE_STATUS, "status", "GET", "/status", true, true, route_status},
    {ROUTE_METRICS, "metrics", "GET", "/metrics", true, true, route_metrics},
    {ROUTE_PROMETHEUS, "prometheus", "GET", "/metrics/prometheus", true, true, route_prometheus},
    {ROUTE_STATS_REFRESH, "stats_refresh", "POST", "/api/v1/stats/refresh", false, true, route_stats_refresh},
};
const uint32_t route_table_len = sizeof route_table / sizeof route_table[0];

const char *route_label(enum route_id id)
{
    return id == ROUTE_NONE ? "none" : route_table[id].label;
}

/* ---- path --------------------------------------------------------------------------------------------------------- */

/* Does the raw path match? Splits on / first; parameters are given raw. */
static bool pattern_match(const char *pattern, struct slice path, struct slice params[REQUEST_PARAMS_MAX])
{
    size_t i = 0;
    unsigned count = 0;
    for (; *pattern != 0; pattern++) {
        if (*pattern != ':' && *pattern != '*') {
            if (i == path.len || path.at[i] != *pattern) return false;
            i++;
            continue;
        }
        size_t from = i, behind = strlen(pattern + 1);
        if (*pattern == '*') {
            if (path.len - i < behind) return false;
            i = path.len - behind;
        } else
            while (i < path.len && path.at[i] != '/') i++;
        must(count < REQUEST_PARAMS_MAX);
        params[count++] = slice_make(path.at + from, i - from);
    }
    return i == path.len;
}

/* The path of a request target: itself, or behind the authority of an absolute one. */
static struct slice path_of(struct slice target)
{
    static const char scheme[] = "http://";
    if (target.len == 0 || target.at[0] == '/') return target;
    if (target.len < sizeof scheme - 1 || memcmp(target.at, scheme, sizeof scheme - 1) != 0) return slice_make(NULL, 0);
    const char *slash = memchr(target.at + sizeof scheme - 1, '/', target.len - (sizeof scheme - 1));
    if (slash == NULL) return slice_make(NULL, 0);
    return slice_make(slash, target.len - (size_t)(slash - target.at));
}

static bool params_decode(struct request *r, const char *pattern, struct slice params[REQUEST_PARAMS_MAX])
{
    bool judged_later = strchr(pattern, '*') != NULL;
    for (unsigned i = 0; i < REQUEST_PARAMS_MAX; i++) {
        if (params[i].at == NULL) continue;
        if (!name_decode(params[i], false, request_arena(r), &r->params[i])) {
            answer_error(r, 400, "bad_request", "the path has a bad percent escape or is not UTF-8");
            return false;
        }
        if (judged_later) continue;
        if (name_has_control(r->params[i])) {
            answer_error(r, 400, "bad_request", "a name in the path has a control character");
            return false;
        }
        if (r->params[i].len == 0) {
            answer_error(r, 400, "bad_request", "a name in the path is empty");
            return false;
        }
    }
    return true;
}

static bool query_decode(struct request *r, struct slice query)
{
    while (query.len > 0) {
        const char *amp = memchr(query.at, '&', query.len);
        struct slice pair = slice_make(query.at, amp == NULL ? query.len : (size_t)(amp - query.at));
        query = amp == NULL ? slice_make(NULL, 0) : slice_make(amp + 1, query.len - pair.len - 1);
        if (pair.len == 0) continue;
        if (r->query_count == REQUEST_QUERY_MAX) {
            answer_plain(r, 400, "too many query parameters");
            return false;
        }
        const char *equals = memchr(pair.at, '=', pair.len);
        size_t name_len = equals == NULL ? pair.len : (size_t)(equals - pair.at);
        struct slice value = equals == NULL ? slice_make("", 0) : slice_make(equals + 1, pair.len - name_len - 1);
        struct query_pair *q = &r->query[r->query_count++];
        if (!name_decode(slice_make(pair.at, name_len), true, request_arena(r), &q->name) ||
            !name_decode(value, true, request_arena(r), &q->value)) {
            answer_plain(r, 400, "the query string has a bad percent escape or is not UTF-8");
            return false;
        }
    }
    return true;
}

static void answer_no_route(struct request *r, struct slice path)
{
    answer_error(r, 404, NULL, "");
    buf_clear(&r->out);
    buf_text(&r->out, "{\"code\":\"no_such_route\",\"error\":\"not found\",\"path\":");
    struct slice shown;
    if (path.len > 1024) path.len = 1024;
    if (!name_decode(path, false, request_arena(r), &shown)) shown = slice_make("", 0);
    render_text(&r->out, shown);
    buf_byte(&r->out, '}');
}

static void answer_wrong_method(struct request *r, struct slice path)
{
    struct buf allow = {0};
    struct slice params[REQUEST_PARAMS_MAX];
    for (uint32_t i = 0; i < route_table_len; i++) {
        if (!pattern_match(route_table[i].pattern, path, params)) continue;
        if (allow.len > 0) buf_text(&allow, ", ");
        buf_text(&allow, route_table[i].method);
        if (route_table[i].head) buf_text(&allow, ", HEAD");
    }
    buf_byte(&allow, 0);
    answer_error(r, 405, "method_not_allowed", "the route does not take this method");
    r->allow = arena_copy(request_arena(r), buf_view(&allow)).at;
    buf_free(&allow);
}

static bool path_known(struct slice path)
{
    struct slice params[REQUEST_PARAMS_MAX];
    for (uint32_t i = 0; i < route_table_len; i++) {
        if (pattern_match(route_table[i].pattern, path, params)) return true;
    }
    return false;
}

void route_find(struct request *r, const char *method)
{
    const char *question = memchr(r->target.at, '?', r->target.len);
    size_t path_len = question == NULL ? r->target.len : (size_t)(question - r->target.at);
    struct slice path = path_of(slice_make(r->target.at, path_len));
    r->route = NULL;
    if (path.len == 0) {
        answer_plain(r, 400, "bad request target");
        return;
    }
    for (uint32_t i = 0; i < route_table_len; i++) {
        const struct route *route = &route_table[i];
        struct slice params[REQUEST_PARAMS_MAX] = {0};
        if (strcmp(route->method, method) != 0 && !(route->head && strcmp(method, "HEAD") == 0)) continue;
        if (!pattern_match(route->pattern, path, params)) continue;
        if (!params_decode(r, route->pattern, params)) return;
        if (question != NULL && !query_decode(r, slice_make(question + 1, r->target.len - path_len - 1))) return;
        r->route = route;
        return;
    }
    if (path_known(path))
        answer_wrong_method(r, path);
    else
        answer_no_route(r, path);
}

/* ---- query -------------------------------------------------------------------------------------------------------- */

bool query_text(struct request *r, const char *name, struct slice *out)
{
    for (uint32_t i = r->query_count; i-- > 0;) {
        if (!slice_is(r->query[i].name, name)) continue;
        *out = r->query[i].value;
        return out->len > 0;
    }
    return false;
}

static bool refuse_query(struct request *r, const char *name, const char *wanted)
{
    char text[160];
    snprintf(text, sizeof text, "query parameter %s: %s is required", name, wanted);
    answer_plain(r, 400, text);
    return false;
}

bool query_int(struct request *r, const char *name, int64_t *out, bool *given)
{
    struct slice text = {0};
    *given = query_text(r, name, &text);
    if (!*given) return true;
    size_t i = text.at[0] == '-' || text.at[0] == '+' ? 1 : 0;
    if (i == text.len || text.len > 40) return refuse_query(r, name, "an integer");
    int64_t value = 0;
    for (; i < text.len; i++) {
        if (text.at[i] < '0' || text.at[i] > '9' || value > INT64_MAX / 10 - 1) return refuse_query(r, name, "an integer");
        value = value * 10 + (text.at[i] - '0');
    }
    *out = text.at[0] == '-' ? -value : value;
    return true;
}

bool query_bool(struct request *r, const char *name, bool *out, bool *given)
{
    struct slice text = {0};
    *given = query_text(r, name, &text);
    if (!*given) return true;
    *out = slice_is(text, "true");
    return *out || slice_is(text, "false") || refuse_query(r, name, "true or false");
}
