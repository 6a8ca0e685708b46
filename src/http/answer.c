#include "http/answer.h"

#include "http/render.h"

static void answer_clear(struct request *r)
{
    buf_clear(&r->out);
    r->content_type = NULL;
    r->retry_after_s = 0;
    r->allow = NULL;
}

void answer_json(struct request *r, uint32_t status)
{
    r->status = status;
}

void answer_error(struct request *r, uint32_t status, const char *code, const char *text)
{
    answer_clear(r);
    buf_text(&r->out, "{\"error\":");
    render_text(&r->out, slice_of(text));
    if (code != NULL) buf_printf(&r->out, ",\"code\":\"%s\"", code);
    buf_byte(&r->out, '}');
    r->status = status;
}

void answer_refusal(struct request *r, const struct body_refusal *why)
{
    bool too_long = why->code != NULL && (strcmp(why->code, "name_too_long") == 0 || strcmp(why->code, "too_many_items") == 0);
    answer_error(r, too_long ? 413 : 400, why->code, why->text);
}

void answer_plain(struct request *r, uint32_t status, const char *text)
{
    answer_clear(r);
    buf_text(&r->out, text);
    buf_byte(&r->out, '\n');
    r->content_type = "text/plain";
    r->status = status;
}

void answer_empty(struct request *r)
{
    answer_clear(r);
    r->status = 204;
}

void answer_name_too_long(struct request *r)
{
    answer_error(r, 413, "name_too_long",
                 "queue name and the longer of partition and consumer group may have 411 bytes together");
}

bool answer_leader_known(struct request *r, char http[NODE_ADDRESS_BYTES])
{
    struct broker_health h;
    if (r->broker == NULL) return false;
    broker_health(r->broker, &h);
    return !h.leader && h.leader_id != 0 && node_http_of(r->http->node, h.leader_id, http);
}

/* Nobody took it, so nothing happened. With a leader somewhere else it is worth asking there, or here again. */
void answer_no_leader(struct request *r)
{
    char http[NODE_ADDRESS_BYTES];
    if (answer_leader_known(r, http)) {
        answer_error(r, 503, "retry", "leadership moved before the request was taken: send it again");
        r->out.len--; /* the brace */
        buf_text(&r->out, ",\"leader\":");
        render_text(&r->out, slice_of(http));
        buf_byte(&r->out, '}');
    } else if (r->broker == NULL) {
        bool repairs = r->http->node != NULL && node_repairs(r->http->node);
        answer_error(r, 503, "no_leader",
                     repairs ? "this node's data is damaged and is being replaced by the leader's: ask another node"
                             : "the broker is starting, or waits to be added to its cluster");
    } else {
        answer_error(r, 503, "no_leader", "no leader is known, or the broker is starting or stopping");
    }
    r->retry_after_s = 1;
}

bool answer_outcome(struct request *r)
{
    switch (r->call.outcome) {
    case CALL_OK:
    case CALL_EMPTY:
        return true;
    case CALL_OVERLOADED:
        answer_error(r, 429, "overloaded", "the broker has more work than it admits: try again later");
        r->retry_after_s = r->call.retry_after_s == 0 ? 1 : r->call.retry_after_s;
        return false;
    case CALL_STORAGE_FULL:
        answer_error(r, 507, "storage_full", "the disk is above its high-water mark");
        return false;
    case CALL_TIMEOUT:
        answer_error(r, 503, "timeout", "the deadline passed: a write may still happen");
        r->retry_after_s = 1;
        return false;
    case CALL_NO_LEADER:
        answer_no_leader(r);
        return false;
    case CALL_UNKNOWN:
        answer_error(r, 503, "outcome_unknown", "the outcome is not known: send the same request again");
        r->retry_after_s = 1;
        return false;
    case CALL_CANCELLED: /* only after the client left, and then nobody asks; said anyway so that no request stays unanswered */
        answer_error(r, 503, "retry", "the request was given up");
        r->retry_after_s = 1;
        return false;
    case CALL_DAMAGED:
        break;
    }
    answer_error(r, 500, "internal", "a stored message could not be read: see the broker's log");
    return false;
}

void answer_pop_refusal(struct request *r, const char *text)
{
    answer_clear(r);
    buf_text(&r->out, "{\"success\":false,\"error\":");
    render_text(&r->out, slice_of(text));
    buf_text(&r->out, ",\"messages\":[]}");
    r->status = 400;
}

bool answer_not_ok(struct request *r, uint32_t status, const char *code, const char *text)
{
    answer_error(r, status, NULL, "");
    buf_clear(&r->out);
    buf_printf(&r->out, "{\"ok\":false,\"code\":\"%s\",\"error\":", code);
    render_text(&r->out, slice_of(text));
    buf_byte(&r->out, '}');
    if (status == 503) r->retry_after_s = 1;
    return false;
}
