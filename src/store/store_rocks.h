/* What the store needs of RocksDB that its C interface does not have. Plain C types; texts of errors are malloc'd. */
#ifndef QUEEN_STORE_STORE_ROCKS_H
#define QUEEN_STORE_STORE_ROCKS_H

#include <rocksdb/c.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes what was written to these families durable, as one step. NULL, or the error. */
char *rocks_flush(rocksdb_t *db, rocksdb_column_family_handle_t **families, int count);

struct rocks_look;

/* Opens to read only: nothing is written, not even RocksDB's own log. NULL: *error says why. */
struct rocks_look *rocks_look_open(const char *dir, char **error);
void rocks_look_close(struct rocks_look *l);
typedef bool rocks_row(void *ctx, const char *key, size_t key_len, const char *value, size_t value_len);
/* Rows of a family from <= key < to (an empty `to`: to the end) until `row` gives false. A family that is not there has none. NULL, or the
 * error. */
char *rocks_look_scan(struct rocks_look *l, const char *family, const char *from, size_t from_len, const char *to,
                      size_t to_len, rocks_row *row, void *ctx);
/* Every block of a table file against its checksum. NULL: whole; else what is wrong, with the offset where RocksDB knows it. */
char *rocks_file_verify(const char *path);

#ifdef __cplusplus
}
#endif

#endif
