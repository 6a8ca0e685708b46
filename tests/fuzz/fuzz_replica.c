/* Frames of other replicas. What is taken for a frame has entries that can be walked to its end, in the order of terms, with
 * configurations that raft's own decoder (which trusts its input) reads; and it reads the same when it is written again.
 *
 * Input: the frame's bytes. */
#include <stdlib.h>

#include "replica/replica_inner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void configuration_check(struct slice body)
{
    struct raft_configuration c;
    struct raft_buffer b = {.base = (void *)(uintptr_t)body.at, .len = body.len}, again;
    must(raft_configuration_decode(&b, &c) == 0);
    must(c.n >= 1 && c.n <= REPLICA_MEMBERS_MAX);
    for (unsigned i = 0; i < c.n; i++) must(c.servers[i].id != 0 && strlen(c.servers[i].address) < REPLICA_ADDRESS_BYTES + 64);
    must(raft_configuration_encode(&c, &again) == 0);
    must(configuration_valid(slice_make(again.base, again.len)));
    raft_free(again.base);
    raft_configuration_close(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frame f;
    char *exact = malloc(size == 0 ? 1 : size);
    must(exact != NULL);
    if (size > 0) memcpy(exact, data, size);
    if (configuration_valid(slice_make(exact, size))) configuration_check(slice_make(exact, size));
    if (frame_read(slice_make(exact, size), &f) == NULL) {
        struct buf again = {0};
        struct slice rest = f.entries;
        uint64_t term = f.b;
        frame_head_write(&f, buf_reserve(&again, FRAME_HEAD_BYTES));
        again.len += FRAME_HEAD_BYTES;
        must(f.kind == FRAME_APPEND || f.count == 0);
        for (uint32_t i = 0; i < f.count; i++) {
            struct frame_entry e;
            frame_entry_read(&rest, &e);
            must(e.term >= term && e.term <= f.term);
            term = e.term;
            if (e.type == RAFT_CHANGE) configuration_check(e.body);
            frame_entry_write(&e, buf_reserve(&again, FRAME_ENTRY_BYTES));
            again.len += FRAME_ENTRY_BYTES;
            buf_slice(&again, e.body);
        }
        must(rest.len == 0 && again.len == size && memcmp(again.at, exact, size) == 0);
        buf_free(&again);
    }
    free(exact);
    return 0;
}
