#include <stdio.h>

#include "base/limits.h"
#include "http/body.h"
#include "http/json.h"
#include "http/name.h"
#include "http/options.h"

/* The two places where options may stand: inside `options`, or at the top level. Which one counts is known at the end, so
 * errors in one are kept until then. */
struct option_set {
    uint32_t given, reset;
    struct queue_options values;
    char error[160]; /* "" or what is wrong */
    const char *code;
};

static void set_error(struct option_set *s, const char *code, const char *name, const char *error)
{
    if (s->error[0] != 0) return;
    snprintf(s->error, sizeof s->error, "%s: %s", name, error);
    s->code = code;
}

static void number_set(struct option_set *s, enum queue_option o, int64_t value)
{
    const struct option_rule *rule = &option_rules[o];
    if (value < INT32_MIN || value > INT32_MAX) {
        set_error(s, "bad_request", rule->name, "an integer of 32 bits is required");
        return;
    }
    if (value < rule->low || value > rule->high) {
        if (!rule->clamps) {
            char text[80];
            snprintf(text, sizeof text, "must be %d to %d", rule->low, rule->high);
            set_error(s, "bad_request", rule->name, text);
            return;
        }
        value = value < rule->low ? rule->low : rule->high;
    }
    s->values.numbers[o] = (int32_t)value;
}

/* One known option with a value other than null. False: the text is not JSON. */
static bool number_read(struct json *j, struct option_set *s, enum queue_option o)
{
    const struct option_rule *rule = &option_rules[o];
    enum json_type type = json_peek(j);
    if (rule->is_bool) {
        if (type != JSON_TRUE && type != JSON_FALSE) {
            set_error(s, "bad_request", rule->name, "true or false is required");
        } else {
            s->values.numbers[o] = type == JSON_TRUE;
        }
        return json_skip(j, NULL);
    }
    struct json number = *j;
    int64_t value = 0;
    if (json_integer(&number, &value)) {
        number_set(s, o, value);
    } else {
        set_error(s, "bad_request", rule->name, "an integer is required");
    }
    return json_skip(j, NULL);
}

static bool label_read(struct json *j, struct option_set *s, enum queue_option o)
{
    struct slice *to = o == OPTION_NAMESPACE ? &s->values.name_space
                       : o == OPTION_TASK    ? &s->values.task
                                             : &s->values.sink_hold;
    *to = slice_make("", 0);
    if (json_peek(j) != JSON_STRING) return json_skip(j, NULL);
    if (!json_string(j, to)) return false;
    if (name_has_control(*to)) set_error(s, "bad_request", option_rules[o].name, "a control character");
    if (o == OPTION_RETENTION_SINK_HOLD) {
        if (!options_sink_name_ok(*to))
            set_error(s, "bad_request", option_rules[o].name, "[A-Za-z0-9._-], at most 64 characters");
    } else if (to->len > NAMES_BYTES_MAX) {
        set_error(s, "name_too_long", option_rules[o].name, "longer than 447 bytes");
    }
    return true;
}

static bool option_read(struct json *j, struct option_set *s, enum queue_option o)
{
    uint32_t bit = 1u << o;
    if ((s->given | s->reset) & bit) set_error(s, "bad_request", option_rules[o].name, "given twice");
    if (o >= OPTION_NUMBERS) { /* strings take null, and whatever is no string, as "" */
        s->given |= bit;
        return label_read(j, s, o);
    }
    if (json_peek(j) == JSON_NULL) {
        s->reset |= bit;
        return json_skip(j, NULL);
    }
    s->given |= bit;
    return number_read(j, s, o);
}

static bool option_set_read(struct json *j, struct option_set *s)
{
    bool first;
    struct slice key;
    if (!json_object_open(j, &first)) return false;
    while (json_object_next(j, &first, &key)) {
        int o = options_find(key);
        if (o < 0 ? !json_skip(j, NULL) : !option_read(j, s, (enum queue_option)o)) return false;
    }
    return j->error == NULL;
}

struct configure_input {
    struct option_set top, inner;
    bool has_inner, queue_seen, options_seen, mode_seen, queue_ok, mode_ok, replace, queue_control;
    struct slice queue;
};

static bool mode_read(struct json *j, struct configure_input *in)
{
    struct slice mode;
    in->mode_ok = true;
    if (json_peek(j) == JSON_NULL) return json_skip(j, NULL);
    in->mode_ok = json_peek(j) == JSON_STRING;
    if (!in->mode_ok) return json_skip(j, NULL);
    if (!json_string(j, &mode)) return false;
    in->replace = slice_is(mode, "replace");
    in->mode_ok = in->replace || slice_is(mode, "merge");
    return true;
}

static bool twice(struct json *j, bool *seen)
{
    if (*seen) return json_fail(j, "a field given twice"), true;
    *seen = true;
    return false;
}

static bool configure_member_read(struct json *j, struct slice key, struct configure_input *in)
{
    if (slice_is(key, "queue")) {
        if (twice(j, &in->queue_seen)) return false;
        in->queue_ok = json_peek(j) == JSON_STRING;
        return in->queue_ok ? json_string(j, &in->queue) : json_skip(j, NULL);
    }
    if (slice_is(key, "mode")) return !twice(j, &in->mode_seen) && mode_read(j, in);
    if (slice_is(key, "options")) {
        if (twice(j, &in->options_seen)) return false;
        in->has_inner = json_peek(j) == JSON_OBJECT;
        return in->has_inner ? option_set_read(j, &in->inner) : json_skip(j, NULL);
    }
    int o = options_find(key);
    return o < 0 ? json_skip(j, NULL) : option_read(j, &in->top, (enum queue_option)o);
}

static bool refuse(struct body_refusal *why, const char *code, const char *text)
{
    snprintf(why->text, sizeof why->text, "%s", text);
    why->code = code;
    return false;
}

/* A label at the top level counts when the options object lacks it and it is not empty. */
static void label_inherit(const struct configure_input *in, struct option_set *s, enum queue_option o)
{
    if (!in->has_inner || (s->given >> o & 1) || !(in->top.given >> o & 1)) return;
    struct slice top = o == OPTION_NAMESPACE ? in->top.values.name_space : in->top.values.task;
    if (top.len == 0) return;
    s->given |= 1u << o;
    if (o == OPTION_NAMESPACE)
        s->values.name_space = top;
    else
        s->values.task = top;
}

bool body_configure_read(struct slice body, struct arena *arena, struct configure_command *out, struct body_refusal *why)
{
    struct json j;
    bool first;
    struct slice key;
    struct configure_input in = {0};
    in.mode_ok = true;
    json_open(&j, body, arena);
    bool ok = json_object_open(&j, &first);
    while (ok && json_object_next(&j, &first, &key)) ok = configure_member_read(&j, key, &in);
    if (!ok || !json_end(&j)) {
        snprintf(why->text, sizeof why->text, "body: %s at byte %zu", j.error, (size_t)(j.at - j.start));
        why->code = "bad_body";
        return false;
    }
    if (!in.queue_ok || in.queue.len == 0) return refuse(why, "bad_request", "queue: a non-empty string is required");
    if (name_has_control(in.queue)) return refuse(why, "bad_request", "queue: a control character");
    if (!in.mode_ok) return refuse(why, NULL, "mode: merge or replace is required");
    struct option_set *s = in.has_inner ? &in.inner : &in.top;
    label_inherit(&in, s, OPTION_NAMESPACE);
    label_inherit(&in, s, OPTION_TASK);
    if (s->error[0] != 0) return refuse(why, s->code, s->error);
    *out = (struct configure_command){
        .queue = in.queue, .replace = in.replace, .given = s->given, .reset = s->reset, .options = s->values};
    return true;
}
