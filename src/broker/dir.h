/* Making a data directory. */
#ifndef QUEEN_BROKER_DIR_H
#define QUEEN_BROKER_DIR_H

#include "base/buf.h"

/* With those above it; durable. False: `error` says why. */
bool dir_make(const char *dir, struct buf *error);

#endif
