/* What the operators' routes share. */
#ifndef QUEEN_HTTP_OPS_H
#define QUEEN_HTTP_OPS_H

#include <stdint.h>

uint64_t ops_resident_bytes(void); /* of this process; 0 when it cannot be read */

#endif
