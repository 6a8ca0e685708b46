#include "broker/rows.h"

static void row_put(void *ctx, struct slice key, struct slice value)
{
    store_batch_put(ctx, key, value);
}

static void row_delete(void *ctx, struct slice key)
{
    store_batch_delete(ctx, key);
}

static void row_delete_range(void *ctx, struct slice from, struct slice to)
{
    store_batch_delete_range(ctx, from, to);
}

struct engine_rows rows_of_batch(struct store_batch *batch)
{
    return (struct engine_rows){.ctx = batch, .put = row_put, .delete = row_delete, .delete_range = row_delete_range};
}
