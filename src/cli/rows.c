#include "cli/rows.h"

void rows_begin(struct rows *r, const char *after)
{
    if (after != NULL) view_quote(&r->after, slice_of(after));
}

void rows_list(struct rows *r, bool (*page)(void *ctx, uint64_t count), void *ctx)
{
    do {
        uint64_t left = r->limit - r->printed;
        if (!page(ctx, left < ROWS_PAGE_MAX ? left : ROWS_PAGE_MAX)) return;
    } while (r->after.len > 0 && r->printed < r->limit);
}

static bool row_each(void *arg, struct slice row)
{
    struct rows *r = arg;
    verb_line(&r->scratch, row);
    r->printed++;
    return true;
}

bool rows_print(struct rows *r, struct slice array)
{
    return view_elements(array, row_each, r);
}

bool rows_page(struct rows *r, struct verb *v, struct slice page)
{
    static const char *const names[2] = {"rows", "nextAfter"};
    struct slice m[2] = {{0}, {0}};
    if (!view_members(page, names, m, 2) || m[0].at == NULL || !rows_print(r, m[0])) return verb_answer_wrong(v);
    buf_clear(&r->after);
    if (view_is_string(m[1])) buf_slice(&r->after, m[1]);
    return verb_flush(v);
}

void rows_free(struct rows *r)
{
    buf_free(&r->after);
    buf_free(&r->scratch);
}
