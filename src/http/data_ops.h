/* KV and timer ops as they stand in bodies: read, encoded, and rendered as result elements. Shared by their own routes and by the
 * transaction.
 *
 * Readers work on an open JSON reader that stands at the array of ops (body.h's rules hold). They check everything that needs no state
 * and fill in `why` on refusal. Slices point into the body or the arena. Any thread. */
#ifndef QUEEN_HTTP_DATA_OPS_H
#define QUEEN_HTTP_DATA_OPS_H

#include "base/buf.h"
#include "engine/engine.h"
#include "http/json.h"

struct config;

/* Why ops are refused, in the terms of the routes' envelope {"error","reason","detail"}. */
struct ops_refusal {
    uint32_t status;    /* 400, 403, 413 */
    const char *error;  /* kv_bad_request, payload_too_large, timers_bad_request, timer_horizon_exceeded, ... */
    const char *reason; /* kv_bad_ttl, timers_delay_required, ...; NULL = none */
    char detail[200];   /* never holds the client's bytes */
};

enum ops_place { OPS_ROUTE, OPS_TRANSACTION }; /* a transaction has other limits (http-data 8.1, 9.6) */

/* ---- KV ------------------------------------------------------------------------------------------------------------ */

struct kv_input {
    const char *name; /* as sent: "put", "putIfAbsent", ... */
    struct kv_op op;  /* value: compact JSON */
};

struct kv_inputs {
    struct kv_input *items;
    uint32_t count;
    bool writes; /* put, delete or incr: belongs in the log; else a read */
    bool grows;  /* put or incr: needs room on disk */
};

/* The array of ops: duplicates and the key budget included. `config`: QUEEN_KV_* limits. */
bool kv_ops_read(struct json *j, enum ops_place place, const struct config *config, struct kv_inputs *out,
                 struct ops_refusal *why);
/* One op whose name, namespace and key stand in the request line: `body` holds the other fields (a delete's and a get's may be
 * empty) and must not name these. The body needs JSON_PAD like every JSON text. */
bool kv_path_op_read(struct slice body, const char *name, struct slice name_space, struct slice key, struct arena *arena,
                     const struct config *config, struct kv_inputs *out, struct ops_refusal *why);
/* The body of a listing: {"namespace","prefix"?,"after"?,"limit"?,"keysOnly"?} as a getPrefix whose prefix may be empty. */
bool kv_list_read(struct slice body, struct arena *arena, const struct config *config, struct kv_inputs *out,
                  struct ops_refusal *why);
/* Appends a KV command with all ops in order. */
void kv_ops_encode(const struct kv_inputs *in, struct uuid tenant, struct buf *out);
/* Appends one result element without its closing brace: {"index":N,"op":"put","applied":true,... */
void kv_element_open(struct buf *out, const struct kv_input *in, const struct kv_outcome *o, uint32_t index);
/* Appends ,"rows":[...],"truncated":...,"nextAfter":... of a getPrefix. */
void kv_page_render(struct buf *out, const struct kv_input *in, const struct kv_outcome *o);
const char *kv_reason_text(uint8_t reason); /* "exists", ... */
/* The value of a lost op as JSON: the live row's, null when there is none, 0 when the row is no number. */
struct slice kv_lost_value(const struct kv_outcome *o);

bool kv_name_space_ok(struct slice name); /* ^[a-z0-9][a-z0-9._-]{0,63}$ */

/* ---- timers -------------------------------------------------------------------------------------------------------- */

struct timer_input {
    struct timer_op op;       /* item.id: minted here; item.payload: the decoded JSON */
    struct slice transaction; /* as sent; at == NULL when a cancel named none */
};

struct timer_inputs {
    struct timer_input *items;
    uint32_t count;
    bool schedules; /* at least one */
};

/* The array of ops: duplicates included. `detail` begins with QTIMER. */
bool timer_ops_read(struct json *j, enum ops_place place, const struct config *config, struct timer_inputs *out,
                    struct ops_refusal *why);
void timer_ops_encode(const struct timer_inputs *in, struct uuid tenant, struct buf *out);
/* Appends one result element without its closing brace: {"ok":true,"status":"scheduled",... */
void timer_element_open(struct buf *out, const struct timer_input *in, const struct timer_outcome *o);

#endif
