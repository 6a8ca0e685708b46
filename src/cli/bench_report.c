#include "cli/bench_report.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"

static struct report_field *field_new(struct report *r, const char *name)
{
    must(r->count < REPORT_FIELDS_MAX);
    struct report_field *f = &r->fields[r->count++];
    f->name = name;
    f->quoted = false;
    return f;
}

void report_text(struct report *r, const char *name, const char *text)
{
    struct report_field *f = field_new(r, name);
    f->quoted = true;
    size_t n = 0;
    /* Our own words and names: what would need escaping in JSON is replaced. */
    for (const char *at = text; *at != 0 && n + 1 < sizeof f->text; at++) {
        f->text[n++] = *at == '"' || *at == '\\' || (unsigned char)*at < ' ' ? '?' : *at;
    }
    f->text[n] = 0;
}

void report_number(struct report *r, const char *name, double value, int decimals)
{
    struct report_field *f = field_new(r, name);
    snprintf(f->text, sizeof f->text, "%.*f", decimals, value);
}

void report_count(struct report *r, const char *name, uint64_t value)
{
    struct report_field *f = field_new(r, name);
    snprintf(f->text, sizeof f->text, "%llu", (unsigned long long)value);
}

static void hist_report(struct report *r, const struct hist *h, const char *const names[5])
{
    static const double shares[4] = {0.5, 0.9, 0.99, 0.999};
    for (int i = 0; i < 4; i++) report_number(r, names[i], (double)hist_at(h, shares[i]) / 1e6, 3);
    report_number(r, names[4], (double)h->max_ns / 1e6, 3);
}

void report_latency(struct report *r, const struct hist *h)
{
    static const char *const names[5] = {"p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms"};
    hist_report(r, h, names);
}

void report_second(struct report *r, const struct hist *h)
{
    static const char *const names[5] = {"second_p50_ms", "second_p90_ms", "second_p99_ms", "second_p99_9_ms", "second_max_ms"};
    hist_report(r, h, names);
}

void report_cost(struct report *r, const struct proc_sample *from, const struct proc_sample *to, uint64_t requests,
                 uint64_t messages)
{
    double seconds = (double)(to->at_ns - from->at_ns) / 1e9;
    must(seconds > 0);
    double user = to->user_s - from->user_s;
    double sys = to->system_s - from->system_s;
    double own = to->own_s - from->own_s;
    bool known = from->alive && to->alive;
    if (known) {
        report_number(r, "broker_cores", (user + sys) / seconds, 3);
        report_number(r, "broker_user_cores", user / seconds, 3);
        report_number(r, "broker_system_cores", sys / seconds, 3);
        if (requests > 0) report_number(r, "broker_us_per_request", (user + sys) * 1e6 / (double)requests, 3);
        if (messages > 0) report_number(r, "broker_us_per_message", (user + sys) * 1e6 / (double)messages, 3);
        report_number(r, "broker_rss_mb", (double)to->rss_bytes / 1e6, 1);
        report_number(r, "broker_rss_peak_mb", (double)to->rss_bytes_peak / 1e6, 1);
    }
    double rest = to->machine_s - from->machine_s - own - (known ? user + sys : 0);
    report_number(r, "client_cores", own / seconds, 3);
    report_number(r, "other_cores", rest < 0 ? 0 : rest / seconds, 3);
}

static void json_print(const struct report *r)
{
    putchar('{');
    for (uint32_t i = 0; i < r->count; i++) {
        const struct report_field *f = &r->fields[i];
        const char *quote = f->quoted ? "\"" : "";
        printf("%s\"%s\":%s%s%s", i == 0 ? "" : ",", f->name, quote, f->text, quote);
    }
    puts("}");
}

void report_print(const struct report *r, bool json)
{
    if (json) {
        json_print(r);
    } else {
        for (uint32_t i = 0; i < r->count; i++) printf("  %-24s %s\n", r->fields[i].name, r->fields[i].text);
    }
    fflush(stdout);
}
