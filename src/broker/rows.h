/* Where an engine's cut goes: into a batch of the store. Threads: those of the batch. */
#ifndef QUEEN_BROKER_ROWS_H
#define QUEEN_BROKER_ROWS_H

#include "engine/engine.h"
#include "store/store.h"

/* For one engine_cut; the batch must outlive it. */
struct engine_rows rows_of_batch(struct store_batch *batch);

#endif
