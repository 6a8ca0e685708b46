// The JSON edge: our reader against simdjson's full parser as an oracle, then the bodies of push, ack, configure and extend.
//
// The first byte of an input says which body the rest is read as. Reader and oracle must agree whether a text is JSON, except
// where their rules differ: our depth limit and simdjson's, numbers beyond a double (we keep their digits), half surrogate pairs
// (kept in payloads).
#include <simdjson.h>

#include <cstdlib>
#include <cstring>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wc++20-designator"
#pragma clang diagnostic ignored "-Wc99-extensions"
#endif
extern "C" {
#include "base/must.h"
#include "http/body.h"
#include "http/json.h"
}
#pragma GCC diagnostic pop

static bool reader_accepts(struct slice text, struct arena *arena, struct slice *raw, const char **error)
{
    struct json j;
    json_open(&j, text, arena);
    bool ok = json_skip(&j, raw) && json_end(&j);
    must(ok == (j.error == nullptr));
    *error = j.error;
    return ok;
}

// Does the oracle's verdict say nothing about ours?
static bool rules_differ(simdjson::error_code code, const char *error)
{
    switch (code) {
    case simdjson::DEPTH_ERROR:
    case simdjson::NUMBER_ERROR: // also for numbers that no double holds
    case simdjson::STRING_ERROR: // also for half surrogate pairs
    case simdjson::CAPACITY:
    case simdjson::MEMALLOC:
        return true;
    default:
        return error != nullptr && strcmp(error, "nested too deeply") == 0;
    }
}

static void inside(struct slice part, struct slice text, const struct arena *arena)
{
    bool in_text = part.at >= text.at && part.at + part.len <= text.at + text.len;
    must(in_text || arena->total >= part.len || part.len <= strlen(DEFAULT_PARTITION));
}

// Whatever is accepted can be written as a command and read back.
static void push_try(struct slice text, struct arena *arena)
{
    struct buf items = {}, command = {};
    struct body_refusal why;
    if (body_push_read(text, 1000, arena, &items, &why)) {
        size_t count = items.len / sizeof(struct push_input);
        struct push_writer w;
        push_begin(&w, &command, {});
        for (size_t i = 0; i < count; i++) {
            struct push_input in;
            memcpy(&in, items.at + i * sizeof in, sizeof in);
            must(in.queue.len > 0 && in.partition.len > 0 && in.payload.len > 0);
            inside(in.queue, text, arena);
            must(in.payload.at >= text.at && in.payload.at + in.payload.len <= text.at + text.len);
            if (in.queue.len > 400 || in.partition.len > 400) continue;
            struct push_item item = {};
            item.payload = in.payload;
            if (in.has_transaction) {
                item.flags = ITEM_TRANSACTION;
                item.transaction = in.transaction;
            }
            push_group_begin(&w, in.queue, in.partition, 1);
            push_item_add(&w, &item);
            push_group_end(&w);
        }
        push_end(&w);
        struct slice rest = buf_view(&command);
        struct command c;
        struct push_command p;
        if (w.group_count > 0) must(command_next(&rest, &c) && rest.len == 0 && push_decode(&c, &p));
    } else {
        must(why.code != nullptr && why.text[0] != 0);
    }
    buf_free(&items);
    buf_free(&command);
}

static void ack_try(struct slice text, struct arena *arena)
{
    struct buf items = {};
    struct slice group = {};
    struct body_refusal why;
    if (body_ack_read(text, arena, &items, &group, &why)) must(group.len > 0 && items.len >= sizeof(struct ack_input));
    buf_free(&items);
}

static void configure_try(struct slice text, struct arena *arena)
{
    struct configure_command c, back;
    struct body_refusal why;
    struct buf command = {};
    if (body_configure_read(text, arena, &c, &why) && c.queue.len <= 411) {
        must((c.given & c.reset) == 0);
        memset(&c.tenant, 0, sizeof c.tenant);
        configure_encode(&command, &c);
        struct slice rest = buf_view(&command);
        struct command decoded;
        must(command_next(&rest, &decoded) && configure_decode(&decoded, &back));
        must(back.given == c.given && back.reset == c.reset && slice_equal(back.queue, c.queue));
    }
    buf_free(&command);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1u << 20) return 0;
    size_t len = size - 1;
    char *copy = static_cast<char *>(calloc(1, len + JSON_PAD));
    must(copy != nullptr);
    if (len > 0) memcpy(copy, data + 1, len);
    struct slice text = slice_make(copy, len), raw;
    struct arena arena;
    arena_init(&arena);
    const char *error = nullptr;
    bool ours = reader_accepts(text, &arena, &raw, &error);
    static simdjson::dom::parser parser;
    simdjson::error_code code = parser.parse(copy, len, true).error();
    if (ours != (code == simdjson::SUCCESS) && !rules_differ(code, error)) {
        fprintf(stderr, "reader: %s, oracle: %s\n", error == nullptr ? "accepts" : error, simdjson::error_message(code));
        abort();
    }
    switch (data[0] & 3) {
    case 0:
        push_try(text, &arena);
        break;
    case 1:
        ack_try(text, &arena);
        break;
    case 2:
        configure_try(text, &arena);
        break;
    default:
        must(body_extend_read(text, &arena) >= 1);
        break;
    }
    arena_free(&arena);
    free(copy);
    return 0;
}
