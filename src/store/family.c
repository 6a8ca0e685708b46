/* Which family a row belongs to. */
#include "store/store_inner.h"

static const char ENDS[] = {STORE_KIND_JOURNAL,    STORE_KIND_JOURNAL + 1,   STORE_KIND_FILTER,
                            STORE_KIND_FILTER + 1, (char)STORE_KIND_RECORDS, (char)(STORE_KIND_RECORDS + 1)};

const struct store_family STORE_FAMILY[STORE_FAMILIES] = {
    {.name = "default", .way = FAMILY_MIXED},
    {.name = "07", .way = FAMILY_BRIEF, .from = &ENDS[0], .to = &ENDS[1]},
    {.name = "0c", .way = FAMILY_ONCE, .from = &ENDS[2], .to = &ENDS[3]},
    {.name = "8b", .way = FAMILY_ONCE, .from = &ENDS[4], .to = &ENDS[5]},
};

int store_family_of(struct slice key)
{
    for (int i = 1; i < STORE_FAMILIES; i++)
        if (key.at[0] == *STORE_FAMILY[i].from) return i;
    return 0;
}

bool store_walk_next(struct store_walk *w, struct slice *from, struct slice *to, int *family)
{
    struct slice end = {0};
    if (w->over) return false;
    *family = 0;
    for (int i = 1; i < STORE_FAMILIES; i++) { /* in the order of their kinds */
        struct slice begin = slice_make(STORE_FAMILY[i].from, 1), behind = slice_make(STORE_FAMILY[i].to, 1);
        if (slice_compare(w->from, behind) >= 0) continue;
        bool inside = slice_compare(w->from, begin) >= 0;
        *family = inside ? i : 0;
        end = inside ? behind : begin;
        break;
    }
    *from = w->from;
    w->over = end.len == 0 || (w->to.len > 0 && slice_compare(w->to, end) <= 0);
    *to = w->over ? w->to : end;
    w->from = end;
    return true;
}
