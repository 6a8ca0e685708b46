#include "http/options.h"

#include "http/render.h"

#define NUMBER(text)                                                                                                           \
    {                                                                                                                          \
        .name = text, .low = INT32_MIN, .high = INT32_MAX                                                                      \
    }
#define BOOL(text)                                                                                                             \
    {                                                                                                                          \
        .name = text, .is_bool = true                                                                                          \
    }

const struct option_rule option_rules[OPTION_COUNT] = {
    [OPTION_PRIORITY] = NUMBER("priority"),
    [OPTION_LEASE_TIME] = NUMBER("leaseTime"),
    [OPTION_RETRY_LIMIT] = NUMBER("retryLimit"),
    [OPTION_RETRY_DELAY] = NUMBER("retryDelay"),
    [OPTION_MAX_SIZE] = NUMBER("maxSize"),
    [OPTION_TTL] = NUMBER("ttl"),
    [OPTION_DEAD_LETTER_QUEUE] = BOOL("deadLetterQueue"),
    [OPTION_DLQ_AFTER_MAX_RETRIES] = BOOL("dlqAfterMaxRetries"),
    [OPTION_DELAYED_PROCESSING] = NUMBER("delayedProcessing"),
    [OPTION_WINDOW_BUFFER] = NUMBER("windowBuffer"),
    [OPTION_RETENTION_SECONDS] = NUMBER("retentionSeconds"),
    [OPTION_COMPLETED_RETENTION_SECONDS] = NUMBER("completedRetentionSeconds"),
    [OPTION_RETENTION_ENABLED] = BOOL("retentionEnabled"),
    [OPTION_ENCRYPTION_ENABLED] = BOOL("encryptionEnabled"),
    [OPTION_MAX_WAIT_TIME_SECONDS] = NUMBER("maxWaitTimeSeconds"),
    [OPTION_MIN_POP_WAIT_TIME] = {.name = "minPopWaitTime", .low = 0, .high = 60000, .clamps = true},
    [OPTION_DEDUP_WINDOW_SECONDS] = {.name = "dedupWindowSeconds", .low = 0, .high = INT32_MAX, .clamps = true},
    [OPTION_RETENTION_SINK_HOLD_MAX_SECONDS] = {.name = "retentionSinkHoldMaxSeconds",
                                                .low = 60,
                                                .high = 31536000,
                                                .zero_means = 604800},
    [OPTION_RETENTION_SINK_HOLD] = {.name = "retentionSinkHold"},
    [OPTION_NAMESPACE] = {.name = "namespace"},
    [OPTION_TASK] = {.name = "task"},
};

int options_find(struct slice key)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (slice_is(key, option_rules[i].name)) return i;
    }
    return -1;
}

bool options_sink_name_ok(struct slice name)
{
    if (name.len > 64) return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.at[i];
        bool ok =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
        if (!ok) return false;
    }
    return true;
}

void options_render(struct buf *out, const struct queue_options *o)
{
    buf_byte(out, '{');
    for (int i = 0; i < OPTION_NUMBERS; i++) {
        if (i != 0) buf_byte(out, ',');
        buf_printf(out, "\"%s\":", option_rules[i].name);
        if (option_rules[i].is_bool)
            buf_text(out, o->numbers[i] != 0 ? "true" : "false");
        else
            buf_signed(out, o->numbers[i] == 0 ? option_rules[i].zero_means : o->numbers[i]);
        if (i == OPTION_MAX_SIZE) buf_printf(out, ",\"maxQueueSize\":%d", o->numbers[i]);
    }
    buf_text(out, ",\"retentionSinkHold\":");
    render_text(out, o->sink_hold);
    buf_byte(out, '}');
}
