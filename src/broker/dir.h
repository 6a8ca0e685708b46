/* Making a data directory. */
#ifndef QUEEN_BROKER_DIR_H
#define QUEEN_BROKER_DIR_H

#include "base/buf.h"

/* With those above it; durable. False: `error` says why, and the exit code is 3 when the disk failed, 2 when such a directory cannot be. */
bool dir_make(const char *dir, int *exit_code, struct buf *error);
/* Of a failed system call at a data directory. */
int dir_exit_code(int code);

#endif
