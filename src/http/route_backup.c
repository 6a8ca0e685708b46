/* Backups of this node (broker/backup.h). For operators: the default tenant only, else 403 forbidden.
 *
 * POST   /api/v1/system/backup   {"dir","previous"?,"bytesPerSecond"?}  202 {"ok":true,"backup":B} once it has begun; 400 bad_request (the
 *                                directory will not do), 409 busy
 * GET    /api/v1/system/backup   {"backup":B or null}: the one under way, or the last one of this process
 * DELETE /api/v1/system/backup   ends the one under way: 200 {"ok":true}, 404 none_running
 *
 * B: "id","state" (running, done, failed),"phase" (state, copy; null unless running),"dir","startedAt","endedAt","files","filesDone","bytes",
 * "bytesDone","bytesLinked","bytesCopied","groups":[{"group","index"}],"error". The directory is one of the node's machine. */
#include <stdio.h>

#include "http/answer.h"
#include "http/edge.h"
#include "http/json.h"
#include "http/render.h"
#include "http/route.h"
#include "http/visit.h"

struct backup_plan {
    struct backup_order order;
    enum backup_answer answer;
    struct backups_view view;
    char why[BACKUP_ERROR_BYTES];
};

static void backup_render(struct buf *out, const struct backups_view *v)
{
    static const char *const states[] = {
        [BACKUP_NONE] = "", [BACKUP_RUNNING] = "running", [BACKUP_DONE] = "done", [BACKUP_FAILED] = "failed"};
    if (v->state == BACKUP_NONE) {
        buf_text(out, "null");
        return;
    }
    buf_text(out, "{\"id\":");
    render_uuid(out, v->id);
    field_text(out, ",\"state\":", slice_of(states[v->state]));
    if (v->state == BACKUP_RUNNING)
        field_text(out, ",\"phase\":", slice_of(v->copying ? "copy" : "state"));
    else
        buf_text(out, ",\"phase\":null");
    field_text(out, ",\"dir\":", slice_of(v->dir));
    field_time_us(out, ",\"startedAt\":", v->began_us);
    field_time_us(out, ",\"endedAt\":", v->ended_us);
    field_number(out, ",\"files\":", v->files_total);
    field_number(out, ",\"filesDone\":", v->files_done);
    field_number(out, ",\"bytes\":", v->bytes_total);
    field_number(out, ",\"bytesDone\":", v->bytes_done);
    field_number(out, ",\"bytesLinked\":", v->bytes_linked);
    field_number(out, ",\"bytesCopied\":", v->bytes_copied);
    buf_text(out, ",\"groups\":[");
    for (uint32_t i = 0; i < v->group_count && v->index[i] != 0; i++) {
        field_number(out, i == 0 ? "{\"group\":" : ",{\"group\":", i);
        field_number(out, ",\"index\":", v->index[i]);
        buf_byte(out, '}');
    }
    struct slice error = v->error[0] == '\0' ? (struct slice){0} : slice_of(v->error);
    field_text_or_null(out, "],\"error\":", error);
    buf_byte(out, '}');
}

/* False: an answer is set. */
static bool backup_open(struct request *r)
{
    static const struct uuid default_tenant = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
    if (!uuid_equal(r->tenant, default_tenant))
        return answer_not_ok(r, 403, "forbidden", "only the default tenant may see or make backups");
    if (r->http->backups == NULL) return answer_not_ok(r, 503, "retry", "the broker is starting");
    return true;
}

/* ---- an order ------------------------------------------------------------------------------------------------------- */

static bool path_take(struct request *r, struct json *j, char out[BACKUP_PATH_BYTES], const char *field)
{
    struct slice text = {0};
    char why[64];
    if (json_peek(j) == JSON_NULL) return json_skip(j, NULL);
    if (!json_string(j, &text)) return true; /* told by the reader's error */
    snprintf(why, sizeof why, "%s is too long, or holds a NUL", field);
    if (text.len >= BACKUP_PATH_BYTES || memchr(text.at, '\0', text.len) != NULL)
        return answer_not_ok(r, 400, "bad_request", why);
    memcpy(out, text.at, text.len);
    out[text.len] = '\0';
    return true;
}

static bool order_read(struct request *r, struct backup_order *o)
{
    struct json j;
    struct slice key;
    bool first;
    int64_t rate = 0;
    json_open(&j, request_body(r), request_arena(r));
    if (json_peek(&j) != JSON_OBJECT || !json_object_open(&j, &first))
        return answer_not_ok(r, 400, "bad_request", "the body must be a JSON object");
    while (json_object_next(&j, &first, &key)) {
        bool good = true;
        if (slice_is(key, "dir"))
            good = path_take(r, &j, o->dir, "dir");
        else if (slice_is(key, "previous"))
            good = path_take(r, &j, o->previous, "previous");
        else if (slice_is(key, "bytesPerSecond"))
            json_integer(&j, &rate);
        else
            json_skip(&j, NULL);
        if (!good) return false;
    }
    if (j.error != NULL || !json_end(&j))
        return answer_not_ok(r, 400, "bad_request", "the body is not JSON, or a field has a wrong type");
    if (o->dir[0] == '\0')
        return answer_not_ok(r, 400, "bad_request", "dir is required: where the backup goes, on the node's machine");
    if (rate < 0) return answer_not_ok(r, 400, "bad_request", "bytesPerSecond must not be negative");
    o->bytes_s = (uint64_t)rate;
    return true;
}

static void order_answered(struct request *r)
{
    const struct backup_plan *p = r->route_data;
    switch (p->answer) {
    case BACKUP_BEGUN:
        buf_text(&r->out, "{\"ok\":true,\"backup\":");
        backup_render(&r->out, &p->view);
        buf_byte(&r->out, '}');
        answer_json(r, 202);
        break;
    case BACKUP_BUSY:
        answer_not_ok(r, 409, "busy", "a backup is under way: one at a time");
        break;
    case BACKUP_REFUSED:
        answer_not_ok(r, 400, "bad_request", p->why);
        break;
    default:
        answer_not_ok(r, 503, "retry", "the broker stops");
        break;
    }
}

/* Any thread. */
static void begun(void *ctx, enum backup_answer answer, struct uuid id, const char *why)
{
    struct request *r = ctx;
    struct backup_plan *p = r->route_data;
    (void)id;
    p->answer = answer;
    snprintf(p->why, sizeof p->why, "%s", why);
    if (answer == BACKUP_BEGUN) backups_view(r->http->backups, &p->view);
    request_wake(r);
}

void route_backup(struct request *r)
{
    if (!backup_open(r)) return;
    struct backup_plan *p = arena_zero(request_arena(r), sizeof *p);
    r->route_data = p;
    if (!order_read(r, &p->order)) return;
    p->order.ctx = r;
    p->order.begun = begun;
    request_wait(r, order_answered);
    backups_begin(r->http->backups, &p->order);
}

/* ---- the others ----------------------------------------------------------------------------------------------------- */

void route_backup_view(struct request *r)
{
    if (!backup_open(r)) return;
    struct backups_view *v = arena_zero(request_arena(r), sizeof *v);
    backups_view(r->http->backups, v);
    buf_text(&r->out, "{\"backup\":");
    backup_render(&r->out, v);
    buf_byte(&r->out, '}');
    answer_json(r, 200);
}

void route_backup_cancel(struct request *r)
{
    if (!backup_open(r)) return;
    if (!backups_cancel(r->http->backups)) {
        answer_not_ok(r, 404, "none_running", "no backup is under way");
        return;
    }
    buf_text(&r->out, "{\"ok\":true}");
    answer_json(r, 200);
}
