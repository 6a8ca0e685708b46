/* Any bytes as a manifest, sealed and not: refused, or a manifest that is the same when it is written again, and whose names stay inside
 * their directories. */
#include <stdlib.h>

#include "base/hash.h"
#include "broker/snapshot_manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD_BYTES = 24 };

static void read_one(struct slice bytes)
{
    struct manifest m;
    struct buf again = {0};
    if (manifest_decode(bytes, &m) != NULL) {
        must(m.files == NULL && m.configuration.at == NULL);
        return;
    }
    for (uint32_t n = 0; n < m.count; n++) must(strchr(m.files[n].name, '/') == NULL && m.files[n].name[0] != '.');
    manifest_encode(&m, &again);
    must(slice_equal(buf_view(&again), bytes));
    buf_free(&again);
    manifest_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *at = malloc(HEAD_BYTES + size);
    must(at != NULL);
    read_one(slice_make(data, size));
    /* The same bytes behind a head that vouches for them. */
    uint32_t format = 1, crc = crc32c(0, data, size);
    uint64_t len = size;
    memcpy(at, "QUEENMNF", 8);
    memcpy(at + 8, &format, sizeof format);
    memcpy(at + 12, &crc, sizeof crc);
    memcpy(at + 16, &len, sizeof len);
    if (size > 0) memcpy(at + HEAD_BYTES, data, size);
    read_one(slice_make(at, HEAD_BYTES + size));
    free(at);
    return 0;
}
