#include "http/head.h"

#include "base/must.h"
#include "http/name.h"

struct walk {
    struct head *head;
    uintptr_t next; /* where the next line begins when lines end with CR LF */
    bool contiguous;
    uint32_t lengths, codings, hosts, expects, tenants, encodings;
    bool version_1_0;
};

static void head_refuse(struct head *h, uint32_t status, const char *error)
{
    if (h->status != 0) return;
    h->status = status;
    h->error = error;
}

/* RFC 9110 tchar. */
static bool is_token(struct slice s)
{
    static const uint64_t table[4] = {UINT64_C(0x03ff6cfa00000000), /* ! # $ % & ' * + - . 0-9 */
                                      UINT64_C(0x57ffffffc7fffffe), /* A-Z ^ _ ` a-z | ~ */
                                      0, 0};
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.at[i];
        if ((table[c >> 6] >> (c & 63) & 1) == 0) return false;
    }
    return s.len > 0;
}

/* Eight bytes of which none is below 0x20 or 0x7f. False also of some others, with a tab for instance. */
static bool eight_are_plain(const char *at)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    uint64_t w, del;
    memcpy(&w, at, 8);
    del = w ^ ones * 0x7f;
    return (((w - ones * 0x20) & ~w) & tops) == 0 && (((del - ones) & ~del) & tops) == 0;
}

static bool value_has_control(struct slice s)
{
    size_t i = 0;
    while (s.len - i >= 8 && eight_are_plain(s.at + i)) i += 8;
    for (; i < s.len; i++) {
        unsigned char c = (unsigned char)s.at[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return true;
    }
    return false;
}

static bool length_read(struct slice s, uint64_t *out)
{
    if (s.len == 0 || s.len > 18) return false;
    *out = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] < '0' || s.at[i] > '9') return false;
        *out = *out * 10 + (uint64_t)(s.at[i] - '0');
    }
    return true;
}

static struct slice trim(struct slice s)
{
    while (s.len > 0 && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t')) s.len--;
    return s;
}

/* The few fields that mean something to us, by length first. */
static void field_take(struct walk *w, struct slice name, struct slice value)
{
    struct head *h = w->head;
    switch (name.len) {
    case 4:
        if (name_equals_caseless(name, "host")) w->hosts++;
        break;
    case 6:
        if (name_equals_caseless(name, "expect")) {
            w->expects++;
            h->expect_bad |= !name_equals_caseless(value, "100-continue");
        }
        break;
    case 14:
        if (name_equals_caseless(name, "content-length")) {
            w->lengths++;
            h->has_length = true;
            if (!length_read(value, &h->length)) head_refuse(h, 400, "bad Content-Length");
        } else if (name_equals_caseless(name, "x-queen-tenant")) {
            w->tenants++;
            h->has_tenant = true;
            h->tenant = trim(value);
        }
        break;
    case 16:
        if (name_equals_caseless(name, "content-encoding")) {
            w->encodings++;
            h->encoded |= !name_equals_caseless(trim(value), "identity");
        }
        break;
    case 17:
        if (name_equals_caseless(name, "transfer-encoding")) {
            w->codings++;
            h->chunked = name_equals_caseless(value, "chunked");
            if (!h->chunked) head_refuse(h, 501, "a transfer coding other than chunked");
        }
        break;
    default:
        break;
    }
}

/* `name` stands where its line must begin, and between it and `value` is one colon and blanks? (The daemon has put a zero byte
 * over the colon.) Then the next line begins two bytes behind the value. */
static void layout_check(struct walk *w, struct slice name, struct slice value)
{
    if (!HEAD_LAYOUT_KNOWN || !w->contiguous) return;
    uintptr_t behind_name = (uintptr_t)name.at + name.len + 1;
    if ((uintptr_t)name.at != w->next || (uintptr_t)value.at < behind_name) {
        w->contiguous = false;
        return;
    }
    w->next = (uintptr_t)value.at + value.len + 2;
}

static enum MHD_Result field_see(void *cls, enum MHD_ValueKind kind, const char *name_at, size_t name_len, const char *value_at,
                                 size_t value_len)
{
    struct walk *w = cls;
    (void)kind;
    struct slice name = slice_make(name_at, name_len), value = slice_make(value_at, value_at == NULL ? 0 : value_len);
    layout_check(w, name, value);
    if (!is_token(name)) head_refuse(w->head, 400, "bad field name");
    if (value_has_control(value)) head_refuse(w->head, 400, "a control character in a field");
    field_take(w, name, value);
    return w->head->status == 0 ? MHD_YES : MHD_NO;
}

/* One space on each side of the target, nothing in it that does not belong there. */
static void request_line_check(struct walk *w, const struct request *r, const char *method, const char *version)
{
    size_t method_len = strlen(method);
    if (!is_token(slice_make(method, method_len))) head_refuse(w->head, 400, "bad method");
    for (size_t i = 0; i < r->target.len; i++) {
        unsigned char c = (unsigned char)r->target.at[i];
        if (c <= 0x20 || c == 0x7f) head_refuse(w->head, 400, "bad request target");
    }
    if (r->target.len == 0) head_refuse(w->head, 400, "bad request target");
    if (HEAD_LAYOUT_KNOWN &&
        (r->target_place != (uintptr_t)method + method_len + 1 || (uintptr_t)version != r->target_place + r->target.len + 1)) {
        head_refuse(w->head, 400, "bad request line");
    }
    w->version_1_0 = strcmp(version, "HTTP/1.0") == 0;
    w->next = (uintptr_t)version + strlen(version) + 2;
}

void head_check(struct head *out, struct MHD_Connection *c, const struct request *r, const char *method, const char *version)
{
    struct walk w = {.head = out, .contiguous = true};
    *out = (struct head){0};
    request_line_check(&w, r, method, version);
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, field_see, &w);
    if (out->status != 0) return;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    must(info != NULL);
    if (HEAD_LAYOUT_KNOWN && (!w.contiguous || w.next + 2 != (uintptr_t)method + info->header_size)) {
        head_refuse(out, 400, "lines must end with CR LF and must not be folded");
    }
    if (w.lengths > 1) head_refuse(out, 400, "Content-Length twice");
    if (w.codings > 1) head_refuse(out, 400, "Transfer-Encoding twice");
    if (w.codings > 0 && w.lengths > 0) head_refuse(out, 400, "Content-Length beside Transfer-Encoding");
    if (w.codings > 0 && w.version_1_0) head_refuse(out, 400, "Transfer-Encoding in HTTP/1.0");
    if (w.hosts > 1 || (w.hosts == 0 && !w.version_1_0)) head_refuse(out, 400, "one Host field is required");
    if (w.expects > 1 || w.tenants > 1 || w.encodings > 1) head_refuse(out, 400, "a field twice that may stand once");
}
