/* A sweep: every row of a range, read ahead by threads.
 *
 *   pieces   the range is cut where about PIECE_BYTES of files lie between two keys, by asking RocksDB for the size of halves
 *   reader   takes the next piece, scans it, fills parcels of rows, hangs each on its piece
 *   caller   empties the pieces in order; an emptied parcel goes back to the readers
 *
 * At most PARCELS_MAX parcels exist. The last PARCELS_FRONT free ones are for the piece the caller is in, so that it never waits for
 * readers that are further ahead and can go no further. A reader that finds damage leaves it with its piece, behind the rows that came
 * before: the caller sees the same rows and the same error as a plain scan would give. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "store/store_inner.h"

enum {
    PIECE_BYTES = 1 << 20,   /* in files, compressed; as rows in memory about three times that */
    PIECES_RANGE_MAX = 1024, /* of one family's part of the range */
    PIECES_MAX = (PIECES_RANGE_MAX + 1) * 2 * STORE_FAMILIES,
    PARCEL_BYTES = 256 << 10, /* a longer row has one for itself */
    PARCELS_MAX = 128,
    PARCELS_FRONT = 4,
    READERS_MAX = 4,
    READAHEAD_BYTES = 1 << 20,
    PULSE_NS = 5000000,
    CUT_KEY_BYTES = 40, /* keys are told apart by so many of their first bytes */
    CUT_DEPTH_MAX = CUT_KEY_BYTES * 8,
};

struct parcel {
    struct parcel *next;
    struct buf rows; /* u32 key length, u32 value length, key, value */
};

struct piece {
    struct buf from; /* it ends where the next one begins */
    uint64_t bytes;  /* of files, about */
    struct parcel *first, **end;
    bool read; /* to its end, or to where it failed */
    char *fault;
};

struct sweep {
    struct store *store;
    const struct store_sweep *o;
    struct piece *pieces;
    uint32_t piece_count, piece_cap;
    int cut_family; /* the one being cut into pieces */
    uint64_t bytes_whole, bytes_done;
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    /* Under the lock. */
    uint32_t next, front; /* piece: to be read next; the caller is in */
    struct parcel *spare;
    uint32_t made, spare_count;
    bool over;
};

/* ---- pieces --------------------------------------------------------------------------------------------------------- */

struct cut_key {
    unsigned char bytes[CUT_KEY_BYTES];
};

static struct cut_key cut_key(struct slice s)
{
    struct cut_key k = {0};
    memcpy(k.bytes, s.at, s.len < CUT_KEY_BYTES ? s.len : CUT_KEY_BYTES);
    return k;
}

/* Half way between two keys, read as numbers. */
static struct cut_key cut_middle(const struct cut_key *a, const struct cut_key *b)
{
    struct cut_key sum, middle;
    unsigned carry = 0;
    for (int i = CUT_KEY_BYTES - 1; i >= 0; i--) {
        carry += (unsigned)a->bytes[i] + b->bytes[i];
        sum.bytes[i] = (unsigned char)carry;
        carry >>= 8;
    }
    for (int i = 0; i < CUT_KEY_BYTES; i++) {
        middle.bytes[i] = (unsigned char)(carry << 7 | sum.bytes[i] >> 1);
        carry = sum.bytes[i] & 1;
    }
    return middle;
}

static uint64_t size_between(const struct sweep *w, const struct cut_key *a, const struct cut_key *b)
{
    const char *from = (const char *)a->bytes, *to = (const char *)b->bytes;
    size_t from_len = CUT_KEY_BYTES, to_len = CUT_KEY_BYTES;
    uint64_t size = 0;
    char *text = NULL;
    rocksdb_approximate_sizes_cf(store_rocksdb(w->store), store_rocks_family(w->store, w->cut_family), 1, &from, &from_len, &to,
                                 &to_len, &size, &text);
    if (text != NULL) rocksdb_free(text); /* the scan meets what is wrong, and says it */
    return size;
}

static void piece_add(struct sweep *w, struct slice from, uint64_t bytes)
{
    if (w->piece_count == w->piece_cap) {
        w->piece_cap = w->piece_cap == 0 ? 64 : w->piece_cap * 2;
        w->pieces = realloc(w->pieces, w->piece_cap * sizeof w->pieces[0]);
        must(w->pieces != NULL);
    }
    struct piece *p = &w->pieces[w->piece_count++];
    *p = (struct piece){.bytes = bytes};
    buf_slice(&p->from, from);
}

struct cut {
    struct cut_key from, to;
    uint64_t bytes;
    uint32_t depth;
};

/* Of a range within one family: halves what is too large, from the front on; the halves behind wait on a stack. */
static void range_cut(struct sweep *w, struct slice from, struct slice to)
{
    static struct cut_key last; /* all ones */
    memset(last.bytes, 0xff, sizeof last.bytes);
    struct cut *stack = calloc(CUT_DEPTH_MAX + 1, sizeof *stack);
    must(stack != NULL);
    uint32_t count = 1;
    stack[0] = (struct cut){.from = cut_key(from), .to = to.len > 0 ? cut_key(to) : last};
    uint64_t whole = stack[0].bytes = size_between(w, &stack[0].from, &stack[0].to);
    uint64_t most = whole / PIECES_RANGE_MAX > PIECE_BYTES ? whole / PIECES_RANGE_MAX : PIECE_BYTES;
    uint32_t count_max = w->piece_count + PIECES_RANGE_MAX;
    w->bytes_whole += whole;
    bool first = true;
    while (count > 0) {
        struct cut c = stack[--count];
        struct cut_key middle = cut_middle(&c.from, &c.to);
        bool small = c.bytes <= most || c.depth == CUT_DEPTH_MAX || w->piece_count >= count_max ||
                     memcmp(&middle, &c.from, sizeof middle) == 0;
        if (small) { /* next to nothing is no piece: it goes with the one before it */
            if (first || c.bytes > most / 16) piece_add(w, first ? from : slice_make(c.from.bytes, CUT_KEY_BYTES), c.bytes);
            first = false;
            continue;
        }
        uint64_t left = size_between(w, &c.from, &middle);
        if (left > c.bytes) left = c.bytes;
        must(count + 2 <= CUT_DEPTH_MAX + 1);
        stack[count++] = (struct cut){middle, c.to, c.bytes - left, c.depth + 1};
        stack[count++] = (struct cut){c.from, middle, left, c.depth + 1};
    }
    free(stack);
}

static void pieces_cut(struct sweep *w)
{
    struct slice from, to;
    for (struct store_walk k = {w->o->from, w->o->to, false}; store_walk_next(&k, &from, &to, &w->cut_family);)
        range_cut(w, from, to);
}

static struct slice piece_end(const struct sweep *w, uint32_t at)
{
    return at + 1 < w->piece_count ? buf_view(&w->pieces[at + 1].from) : w->o->to;
}

/* ---- readers -------------------------------------------------------------------------------------------------------- */

static bool parcel_may(const struct sweep *w, uint32_t piece)
{
    uint32_t left = w->spare_count + (PARCELS_MAX - w->made);
    return left > (piece == w->front ? 0 : PARCELS_FRONT);
}

/* NULL: nobody wants more. */
static struct parcel *parcel_get(struct sweep *w, uint32_t piece)
{
    struct parcel *p = NULL;
    pthread_mutex_lock(&w->lock);
    while (!w->over && !parcel_may(w, piece)) pthread_cond_wait(&w->emptied, &w->lock);
    if (!w->over && w->spare != NULL) {
        p = w->spare;
        w->spare = p->next;
        w->spare_count--;
    } else if (!w->over) {
        p = calloc(1, sizeof *p);
        must(p != NULL);
        w->made++;
    }
    pthread_mutex_unlock(&w->lock);
    return p;
}

static void parcel_hand_over(struct sweep *w, uint32_t piece, struct parcel *p)
{
    pthread_mutex_lock(&w->lock);
    struct piece *to = &w->pieces[piece];
    p->next = NULL;
    *to->end = p;
    to->end = &p->next;
    bool waited_for = piece == w->front;
    pthread_mutex_unlock(&w->lock);
    if (waited_for) pthread_cond_signal(&w->filled);
}

struct reading {
    struct sweep *w;
    struct parcel *parcel;
    uint32_t piece;
};

static bool row_pack(void *ctx, struct slice key, struct slice value)
{
    struct reading *r = ctx;
    size_t bytes = 8 + key.len + value.len;
    if (r->parcel != NULL && r->parcel->rows.len + bytes > PARCEL_BYTES) {
        parcel_hand_over(r->w, r->piece, r->parcel);
        r->parcel = NULL;
    }
    if (r->parcel == NULL) {
        r->parcel = parcel_get(r->w, r->piece);
        if (r->parcel == NULL) return false;
        buf_reserve(&r->parcel->rows, bytes > PARCEL_BYTES ? bytes : PARCEL_BYTES);
    }
    struct buf *b = &r->parcel->rows;
    buf_u32(b, (uint32_t)key.len);
    buf_u32(b, (uint32_t)value.len);
    buf_slice(b, key);
    buf_slice(b, value);
    return true;
}

static void piece_read(struct sweep *w, uint32_t at)
{
    struct reading r = {.w = w, .piece = at};
    char *fault = scan_rows(w->store, buf_view(&w->pieces[at].from), piece_end(w, at), READAHEAD_BYTES, row_pack, &r);
    if (r.parcel != NULL) parcel_hand_over(w, at, r.parcel);
    pthread_mutex_lock(&w->lock);
    w->pieces[at].fault = fault;
    w->pieces[at].read = true;
    pthread_mutex_unlock(&w->lock);
    pthread_cond_signal(&w->filled);
}

static void *reader_main(void *ctx)
{
    struct sweep *w = ctx;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        uint32_t at = w->over || w->next == w->piece_count ? UINT32_MAX : w->next++;
        pthread_mutex_unlock(&w->lock);
        if (at == UINT32_MAX) return NULL;
        piece_read(w, at);
    }
}

/* ---- the caller ------------------------------------------------------------------------------------------------------ */

static bool pulse(struct sweep *w)
{
    return w->o->pulse == NULL || w->o->pulse(w->o->ctx, w->bytes_done, w->bytes_whole);
}

/* The next parcel of the piece in front; NULL with *ended: it has no more; NULL else: none yet. */
static struct parcel *parcel_take(struct sweep *w, bool *ended)
{
    struct piece *p = &w->pieces[w->front];
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PULSE_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&w->lock);
    int waited = 0;
    while (p->first == NULL && !p->read && waited == 0) waited = pthread_cond_timedwait(&w->filled, &w->lock, &until);
    struct parcel *first = p->first;
    *ended = first == NULL && p->read;
    if (first != NULL) {
        p->first = first->next;
        if (p->first == NULL) p->end = &p->first;
    }
    pthread_mutex_unlock(&w->lock);
    return first;
}

static void parcel_give_back(struct sweep *w, struct parcel *p)
{
    if (p->rows.cap > 2 * PARCEL_BYTES) buf_free(&p->rows); /* of one long row */
    buf_clear(&p->rows);
    pthread_mutex_lock(&w->lock);
    p->next = w->spare;
    w->spare = p;
    w->spare_count++;
    pthread_mutex_unlock(&w->lock);
    pthread_cond_broadcast(&w->emptied);
}

static bool rows_tell(struct sweep *w, const struct buf *rows)
{
    for (size_t at = 0; at < rows->len;) {
        uint32_t len[2];
        memcpy(len, rows->at + at, sizeof len);
        const char *key = rows->at + at + sizeof len;
        if (!w->o->row(w->o->ctx, slice_make(key, len[0]), slice_make(key + len[0], len[1]))) return false;
        at += sizeof len + len[0] + len[1];
    }
    return true;
}

/* Gives the text of RocksDB's error, or NULL. */
static char *pieces_tell(struct sweep *w)
{
    while (w->front < w->piece_count) {
        bool ended;
        struct parcel *p = parcel_take(w, &ended);
        bool more = p == NULL || rows_tell(w, &p->rows);
        if (p != NULL) parcel_give_back(w, p);
        if (!more || !pulse(w)) return NULL;
        if (!ended) continue;
        struct piece *done = &w->pieces[w->front];
        char *fault = done->fault;
        done->fault = NULL;
        if (fault != NULL) return fault;
        w->bytes_done += done->bytes;
        pthread_mutex_lock(&w->lock);
        w->front++;
        pthread_mutex_unlock(&w->lock);
        pthread_cond_broadcast(&w->emptied); /* its reader may have waited for being in front */
    }
    return NULL;
}

static void sweep_free(struct sweep *w)
{
    struct parcel *lists[1 + PIECES_MAX];
    uint32_t count = 0;
    lists[count++] = w->spare;
    for (uint32_t i = 0; i < w->piece_count; i++) {
        lists[count++] = w->pieces[i].first;
        buf_free(&w->pieces[i].from);
        if (w->pieces[i].fault != NULL) rocksdb_free(w->pieces[i].fault);
    }
    for (uint32_t i = 0; i < count; i++) {
        while (lists[i] != NULL) {
            struct parcel *p = lists[i];
            lists[i] = p->next;
            buf_free(&p->rows);
            free(p);
        }
    }
    free(w->pieces);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->filled);
    pthread_cond_destroy(&w->emptied);
}

static uint32_t readers_wanted(const struct sweep *w)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = w->o->readers != 0 ? w->o->readers : cores > 0 ? (uint32_t)cores : 1;
    if (n > READERS_MAX) n = READERS_MAX;
    return n < w->piece_count ? n : w->piece_count;
}

static void sweep_init(struct sweep *w)
{
    pthread_condattr_t clock;
    must(pthread_mutex_init(&w->lock, NULL) == 0 && pthread_condattr_init(&clock) == 0);
    must(pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) == 0);
    must(pthread_cond_init(&w->filled, &clock) == 0 && pthread_cond_init(&w->emptied, NULL) == 0);
    pthread_condattr_destroy(&clock);
    pieces_cut(w);
    for (uint32_t i = 0; i < w->piece_count; i++) w->pieces[i].end = &w->pieces[i].first;
}

enum store_status store_sweep(struct store *s, const struct store_sweep *o, struct buf *error)
{
    struct sweep w = {.store = s, .o = o};
    pthread_t readers[READERS_MAX];
    uint32_t started = 0;
    must(o->from.len > 0 && (unsigned char)o->from.at[0] != STORE_KIND_OWN);
    sweep_init(&w);
    uint32_t wanted = w.piece_count == 1 ? 0 : readers_wanted(&w);
    while (started < wanted && pthread_create(&readers[started], NULL, reader_main, &w) == 0) started++;
    char *text = started == 0 ? scan_rows(s, o->from, o->to, 0, o->row, o->ctx) : pieces_tell(&w);
    pthread_mutex_lock(&w.lock);
    w.over = true;
    pthread_mutex_unlock(&w.lock);
    pthread_cond_broadcast(&w.emptied);
    for (uint32_t i = 0; i < started; i++) pthread_join(readers[i], NULL);
    sweep_free(&w);
    return text == NULL ? STORE_OK : store_error(text, "a scan failed", store_dir(s), error);
}
