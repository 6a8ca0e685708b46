/* One table of variables: name, kind, where it goes, default, range. Flags set the same fields after the environment was read. */
#include "broker/config.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/logger.h"
#include "base/must.h"
#include "broker/config_inner.h"
#include "broker/memory_limit.h"

#define MIB (1ull << 20)

enum value_kind { VALUE_U16, VALUE_U32, VALUE_U64, VALUE_BYTES, VALUE_MIB, VALUE_BOOL, VALUE_TEXT };

struct variable {
    const char *name;
    enum value_kind kind;
    size_t at, size; /* of the field; size for texts */
    uint64_t initial, min, max;
    const char *unit;
};

#define FIELD(f) offsetof(struct config, f), sizeof(((struct config *)0)->f)

/* Two names for one field: the later row wins when both are set. */
static const struct variable variables[] = {
    {"QUEEN_RAFT_DIR", VALUE_TEXT, FIELD(dir), 0, 1, 0, "a directory"},
    {"PORT", VALUE_U16, FIELD(port), 6632, 0, 65535, "0 = any free one"},
    {"QUEEN_MEMORY_MAX", VALUE_BYTES, FIELD(memory_max), 0, 1, 1ull << 50, "bytes"},
    {"QUEEN_MAX_BODY_BYTES", VALUE_BYTES, FIELD(body_bytes_max), 0, 1024, COMMAND_BYTES_MAX / 3 * 2, "bytes"},
    {"QUEEN_RAFT_SEGMENT_BYTES", VALUE_BYTES, FIELD(segment_bytes), 64 * MIB, 1 * MIB, 1024 * MIB, "bytes, a power of two"},
    {"QUEEN_LOG_CACHE_BYTES", VALUE_BYTES, FIELD(cache_bytes), 0, 1 * MIB, 65536 * MIB, "bytes"},
    {"RETENTION_INTERVAL", VALUE_U32, FIELD(retention_every_ms), 5000, 100, 3600000, "ms"},
    {"QUEEN_RAFT_RETENTION_SCAN_PER_S", VALUE_U32, FIELD(retention_scan_per_s), 50000, 1, 10000000, "lanes a second"},
    {"QUEEN_SCRUB_BYTES_S", VALUE_BYTES, FIELD(scrub_bytes_s), 4 * MIB, 0, 65536 * MIB, "bytes a second, 0 = off"},
    {"QUEEN_RECLAIM_BYTES_S", VALUE_U64, FIELD(reclaim_bytes_s), 32 * MIB, 0, 65536 * MIB, "bytes a second, 0 = off"},
    {"QUEEN_RECLAIM_LIVE_PCT", VALUE_U32, FIELD(reclaim_live_pct), 40, 1, 90, "percent"},
    {"QUEEN_RECLAIM_AFTER_MS", VALUE_U32, FIELD(reclaim_after_ms), 30000, 0, 86400000, "ms"},
    {"QUEEN_RAFT_DURABLE_EVERY_MS", VALUE_U32, FIELD(durable_every_ms), 1000, 1, 600000, "ms"},
    {"QUEEN_RAFT_DURABLE_EVERY_BYTES", VALUE_BYTES, FIELD(durable_every_bytes), 256 * MIB, 1 * MIB, 65536 * MIB, "bytes"},
    {"QUEEN_RAFT_DISK_HIGH_PCT", VALUE_U32, FIELD(disk_high_pct), 85, 1, 100, "percent"},
    {"QUEEN_RAFT_DISK_LOW_PCT", VALUE_U32, FIELD(disk_low_pct), 80, 1, 100, "percent"},
    {"QUEEN_RAFT_ADMIT_MAX_MB", VALUE_MIB, FIELD(admit_bytes_max), 0, 0, 1048576, "MiB, 0 = off"},
    {"QUEEN_RAFT_ADMIT_HOLD_MS", VALUE_U32, FIELD(admit_hold_ms), 500, 1, 60000, "ms"},
    {"POP_DEFAULT_TIMEOUT_MS", VALUE_U32, FIELD(pop_timeout_ms), 30000, 1, DEADLINE_MS_MAX, "ms"},
    {"DEFAULT_TIMEOUT", VALUE_U32, FIELD(pop_timeout_ms), 30000, 1, DEADLINE_MS_MAX, "ms"},
    {"QUEEN_STMT_TIMEOUT_MS", VALUE_U32, FIELD(statement_timeout_ms), 30000, 1, DEADLINE_MS_MAX, "ms"},
    {"QUEEN_TIMERS_MAX_PAYLOAD_BYTES", VALUE_BYTES, FIELD(timer_payload_bytes_max), TIMER_PAYLOAD_BYTES_MAX_DEFAULT, 1,
     COMMAND_BYTES_MAX / 3 * 2, "bytes"},
    {"QUEEN_TIMERS_MAX_HORIZON_S", VALUE_U64, FIELD(timer_horizon_s), 90 * 86400, 1, TIMER_DELAY_US_MAX / 1000000, "seconds"},
    {"QUEEN_KV_MAX_VALUE_BYTES", VALUE_U32, FIELD(kv_value_bytes_max), KV_VALUE_BYTES_MAX, 1, KV_VALUE_BYTES_MAX, "bytes"},
    {"QUEEN_KV_MAX_OPS_PER_CALL", VALUE_U32, FIELD(kv_ops_max), KV_OPS_MAX, 1, KV_OPS_MAX, "ops"},
    {"QUEEN_KV_MAX_KEYS_PER_CALL", VALUE_U32, FIELD(kv_keys_max), 1024, 1, KV_KEYS_MAX, "keys"},
    {"QUEEN_KV_READ_RATE", VALUE_U32, FIELD(kv_read_rate), 0, 0, 1000000, "calls a second, 0 = off"},
    {"QUEEN_KV_READ_BURST", VALUE_U32, FIELD(kv_read_burst), 0, 0, 1000000, "calls, 0 = twice the rate"},
    {"QUEEN_KV_WRITE_RATE", VALUE_U32, FIELD(kv_write_rate), 0, 0, 1000000, "calls a second, 0 = off"},
    {"QUEEN_KV_WRITE_BURST", VALUE_U32, FIELD(kv_write_burst), 0, 0, 1000000, "calls, 0 = twice the rate"},
    {"QUEEN_TENANCY_HEADER", VALUE_BOOL, FIELD(tenancy_header), 0, 0, 1, NULL},
    {"QUEEN_EDGE_THREADS", VALUE_U32, FIELD(edge_threads), 0, 1, 32, "threads"},
    {"QUEEN_CONNECTIONS_MAX", VALUE_U32, FIELD(connections_max), 0, 1, 1000000, "connections"},
    {"QUEEN_SERVER_ID", VALUE_TEXT, FIELD(server_id), 0, 0, 0, "a name"},
    {"QUEEN_LOG_JSON", VALUE_BOOL, FIELD(log_json), 0, 0, 1, NULL},
    {"QUEEN_CELL_ID", VALUE_TEXT, FIELD(cell_id), 0, 0, 0, "a name"},
    {"QUEEN_RAFT_JOIN", VALUE_BOOL, FIELD(join), 0, 0, 1, NULL},
    {"QUEEN_RAFT_GROUPS", VALUE_U32, FIELD(groups), 1, 1, CONFIG_GROUPS_MAX, "groups"},
    {"QUEEN_RAFT_TLS_CERT", VALUE_TEXT, FIELD(tls_cert), 0, 0, 0, "a file"},
    {"QUEEN_RAFT_TLS_KEY", VALUE_TEXT, FIELD(tls_key), 0, 0, 0, "a file"},
    {"QUEEN_RAFT_TLS_CA", VALUE_TEXT, FIELD(tls_ca), 0, 0, 0, "a file"},
    {"QUEEN_RAFT_ELECTION_MS", VALUE_U32, FIELD(election_ms), 0, 50, 60000, "ms"},
    {"QUEEN_RAFT_KEEP_BYTES", VALUE_BYTES, FIELD(keep_bytes), 256 * MIB, 0, 1024 * 1024 * MIB, "bytes"},
    {"QUEEN_RAFT_PROMOTE_MAX_LAG", VALUE_U32, FIELD(promote_max_lag), 1000, 0, 1000000000, "entries"},
    {"QUEEN_RAFT_READY_LAG_MS", VALUE_U32, FIELD(ready_lag_ms), 2000, 1, 3600000, "ms"},
    {"QUEEN_RAFT_READY_LAG_ENTRIES", VALUE_U32, FIELD(ready_lag_entries), 1000, 0, 1000000000, "entries"},
    {"QUEEN_RAFT_READY_QUORUM_MS", VALUE_U32, FIELD(ready_quorum_ms), 5000, 0, 3600000, "ms, 0 = not looked at"},
    {"QUEEN_RAFT_LEADER_WAIT_MS", VALUE_U32, FIELD(leader_wait_ms), 8000, 0, DEADLINE_MS_MAX, "ms"},
};

enum { VARIABLE_COUNT = sizeof variables / sizeof variables[0] };

static const char *const help = "usage: queen serve [--data DIR] [--port N] [--host HOST]\n"
                                "  --data DIR   where everything is kept (QUEEN_RAFT_DIR), default ./data\n"
                                "  --port N     HTTP port (PORT), default 6632, 0 = any free one\n"
                                "  --host HOST  address to listen on (QUEEN_BIND_ADDR, HOST), default 127.0.0.1\n"
                                "Everything else is set by environment variables; the effective values are printed at start.\n"
                                "QUEEN_MEMORY_MAX bounds the memory: bytes, or 512M, 4G; default half of what is allowed.\n";

/* ---- reading one value -------------------------------------------------------------------------------------------- */

struct slice config_trim(const char *text)
{
    static const char blank[] = " \t\r\n";
    struct slice s = slice_of(text + strspn(text, blank));
    while (s.len > 0 && strchr(blank, s.at[s.len - 1]) != NULL) s.len--;
    return s;
}

bool config_word(struct slice s, const char *word)
{
    return s.len == strlen(word) && strncasecmp(s.at, word, s.len) == 0;
}

static bool bool_read(struct slice s, bool *out)
{
    static const char *const words[2][4] = {{"false", "0", "no", "off"}, {"true", "1", "yes", "on"}};
    for (int value = 0; value < 2; value++) {
        for (int i = 0; i < 4; i++) {
            if (!config_word(s, words[value][i])) continue;
            *out = value == 1;
            return true;
        }
    }
    return false;
}

bool config_number(struct slice s, uint64_t *out)
{
    if (s.len == 0 || s.len > 19) return false;
    uint64_t v = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] < '0' || s.at[i] > '9') return false;
        v = v * 10 + (uint64_t)(s.at[i] - '0');
    }
    *out = v;
    return true;
}

/* Digits, and K, M, G or T for powers of 1024. */
static bool bytes_read(struct slice s, uint64_t *out)
{
    static const char units[] = "KMGT";
    unsigned char last = s.len == 0 ? 0 : (unsigned char)s.at[s.len - 1];
    const char *unit = last == 0 ? NULL : strchr(units, toupper(last));
    if (unit == NULL) return config_number(s, out);
    int shift = 10 * (int)(unit - units + 1);
    s.len--;
    if (!config_number(s, out) || *out > UINT64_MAX >> shift) return false;
    *out <<= shift;
    return true;
}

static void field_set(struct config *c, const struct variable *v, uint64_t value)
{
    char *at = (char *)c + v->at;
    switch (v->kind) {
    case VALUE_U16:
        *(uint16_t *)(void *)at = (uint16_t)value;
        return;
    case VALUE_U32:
        *(uint32_t *)(void *)at = (uint32_t)value;
        return;
    case VALUE_U64:
    case VALUE_BYTES:
        *(uint64_t *)(void *)at = value;
        return;
    case VALUE_MIB:
        *(uint64_t *)(void *)at = value * MIB;
        return;
    case VALUE_BOOL:
        *(bool *)(void *)at = value != 0;
        return;
    case VALUE_TEXT:
        return;
    }
}

static bool text_set(char *out, size_t size, const char *name, struct slice value, size_t len_min, struct buf *error)
{
    if (value.len >= len_min && value.len < size) {
        memcpy(out, value.at, value.len);
        out[value.len] = '\0';
        return true;
    }
    buf_printf(error, "%s: %zu characters, allowed are %zu to %zu", name, value.len, len_min, size - 1);
    return false;
}

static bool value_set(struct config *c, const struct variable *v, const char *name, const char *text, struct buf *error)
{
    struct slice s = config_trim(text);
    uint64_t number = 0;
    bool flag = false;
    switch (v->kind) {
    case VALUE_TEXT:
        return text_set((char *)c + v->at, v->size, name, s, v->min, error);
    case VALUE_BOOL:
        if (bool_read(s, &flag)) {
            field_set(c, v, flag);
            return true;
        }
        buf_printf(error, "%s=%.200s is not a boolean; allowed are true/false, 1/0, yes/no, on/off", name, text);
        return false;
    default:
        if ((v->kind == VALUE_BYTES ? bytes_read(s, &number) : config_number(s, &number)) && number >= v->min &&
            number <= v->max) {
            field_set(c, v, number);
            return true;
        }
        buf_printf(error, "%s=%.200s is not allowed; a whole number from %llu to %llu is (%s)", name, text,
                   (unsigned long long)v->min, (unsigned long long)v->max, v->unit);
        return false;
    }
}

/* Unset and empty are the same: the default. */
const char *config_env(const char *name)
{
    const char *text = getenv(name);
    return text == NULL || config_trim(text).len == 0 ? NULL : text;
}

/* ---- the special ones --------------------------------------------------------------------------------------------- */

static bool host_set(struct config *c, const char *name, const char *text, struct buf *error)
{
    struct slice s = config_trim(text);
    size_t colons = 0, blanks = 0;
    for (size_t i = 0; i < s.len; i++) {
        colons += s.at[i] == ':';
        blanks += (unsigned char)s.at[i] <= ' ' || s.at[i] == '/' || s.at[i] == '[' || s.at[i] == ']';
    }
    if (s.len == 0 || blanks > 0 || colons == 1) {
        buf_printf(error, "%s=%.200s is not an address; a host name or an IP address without a port is", name, text);
        return false;
    }
    return text_set(c->host, sizeof c->host, name, s, 1, error);
}

static bool hosts_read(struct config *c, struct buf *error)
{
    const char *host = config_env("HOST"), *bind_addr = getenv("QUEEN_BIND_ADDR");
    if (host != NULL && !host_set(c, "HOST", host, error)) return false;
    return bind_addr == NULL || host_set(c, "QUEEN_BIND_ADDR", bind_addr, error);
}

static bool subscription_read(struct config *c)
{
    static const char *const news[] = {"new", "new-only", "new_only", "newonly"};
    const char *text = config_env("DEFAULT_SUBSCRIPTION_MODE");
    if (text == NULL) return true;
    c->subscribe_all = true;
    for (int i = 0; i < 4; i++) {
        if (config_word(config_trim(text), news[i])) c->subscribe_all = false;
    }
    return true;
}

static int level_of(struct slice s)
{
    static const struct {
        const char *word;
        int level;
    } words[] = {
        {"error", LOGGER_ERROR}, {"off", LOGGER_ERROR},   {"warn", LOGGER_WARN},   {"warning", LOGGER_WARN},
        {"info", LOGGER_INFO},   {"debug", LOGGER_DEBUG}, {"trace", LOGGER_DEBUG},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (config_word(s, words[i].word)) return words[i].level;
    }
    return -1;
}

/* `info,module=debug`: the word without a module counts; there are no modules here. */
static bool level_read(struct config *c, const char *name, struct buf *error)
{
    const char *text = config_env(name);
    if (text == NULL) return true;
    struct slice rest = config_trim(text);
    while (rest.len > 0) {
        const char *comma = memchr(rest.at, ',', rest.len);
        size_t len = comma == NULL ? rest.len : (size_t)(comma - rest.at);
        struct slice word = {.at = rest.at, .len = len};
        rest.at += comma == NULL ? len : len + 1;
        rest.len -= comma == NULL ? len : len + 1;
        if (memchr(word.at, '=', word.len) != NULL) continue;
        int level = level_of(word);
        if (level < 0) {
            buf_printf(error, "%s=%.200s is not a log level; error, warn, info and debug are", name, text);
            return false;
        }
        c->log_level = level;
    }
    return true;
}

static bool tenancy_check(struct config *c, struct buf *error)
{
    bool trusted = false;
    const char *text = config_env("QUEEN_KV_TRUSTED_PROXY");
    if (text != NULL && !bool_read(config_trim(text), &trusted)) {
        buf_printf(error, "QUEEN_KV_TRUSTED_PROXY=%.200s is not a boolean; allowed are true/false, 1/0, yes/no, on/off", text);
        return false;
    }
    if (!c->tenancy_header || trusted) return true;
    buf_text(error, "QUEEN_TENANCY_HEADER=true needs QUEEN_KV_TRUSTED_PROXY=true: anybody could name any tenant otherwise");
    return false;
}

/* What this version cannot do: a broker whose operator asked for it must not run without. `off` is what may stand there. */
static const struct {
    const char *name, *off, *what;
} missing_parts[] = {
    {"JWT_ENABLED", NULL, "authentication"},
    {"QUEEN_ENCRYPTION_KEY", "", "encryption at rest"},
    {"QUEEN_RAFT_FORCE_RECOVER", NULL, "recovery of a cluster from one copy"},
    {"QUEEN_RAFT_APPLY_SKIP", "", "skipping of log entries"},
    {"QUEEN_KAFKA_EMBEDDED", NULL, "the Kafka listener"},
};

static bool missing_parts_check(struct buf *error)
{
    for (size_t i = 0; i < sizeof missing_parts / sizeof missing_parts[0]; i++) {
        const char *name = missing_parts[i].name, *off = missing_parts[i].off, *text = config_env(name);
        if (text == NULL) continue;
        bool wanted = off != NULL && !config_word(config_trim(text), off);
        if (off == NULL && !bool_read(config_trim(text), &wanted)) {
            buf_printf(error, "%s=%.200s is not a boolean; allowed are true/false, 1/0, yes/no, on/off", name, text);
            return false;
        }
        if (!wanted) continue;
        buf_printf(error, "%s is set: this version has no %s and does not run without what was asked for", name,
                   missing_parts[i].what);
        return false;
    }
    return true;
}

static bool relations_check(struct config *c, struct buf *error)
{
    if ((c->segment_bytes & (c->segment_bytes - 1)) != 0) {
        buf_printf(error, "QUEEN_RAFT_SEGMENT_BYTES=%llu is not allowed; a power of two from 1048576 to 1073741824 is",
                   (unsigned long long)c->segment_bytes);
        return false;
    }
    if (c->disk_low_pct > c->disk_high_pct) {
        buf_printf(error, "QUEEN_RAFT_DISK_LOW_PCT=%u is not allowed; at most QUEEN_RAFT_DISK_HIGH_PCT=%u is", c->disk_low_pct,
                   c->disk_high_pct);
        return false;
    }
    return missing_parts_check(error) && tenancy_check(c, error) && config_cluster_read(c, error);
}

/* ---- defaults that the machine gives ------------------------------------------------------------------------------ */

static void machine_defaults(struct config *c)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores < 1) cores = 1;
    c->group_own_thread = cores > 2;
    if (c->edge_threads == 0) {
        long threads = cores <= 2 ? 1 : cores - 1;
        c->edge_threads = (uint32_t)(threads > 8 ? 8 : threads);
    }
    if (c->server_id[0] != '\0') return;
    const char *host = config_env("HOSTNAME");
    if (host != NULL && strlen(host) < sizeof c->server_id) {
        snprintf(c->server_id, sizeof c->server_id, "%s", host);
    } else if (gethostname(c->server_id, sizeof c->server_id) != 0) {
        snprintf(c->server_id, sizeof c->server_id, "queen");
    }
    c->server_id[sizeof c->server_id - 1] = '\0';
}

/* As many connections as there may be files, less those that log, store and others must never lack. */
static uint32_t connections_of_files(void)
{
    struct rlimit limit = {0};
    uint64_t files = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : 1024;
    if (files > 200000) files = 200000;
    uint64_t kept = files / 4 > 512 ? 512 : files / 4;
    return (uint32_t)(files - kept);
}

static uint64_t memory_default(const struct config *c)
{
    uint64_t limit = memory_limit(""), least = memory_plan_min(c->groups, c->edge_threads, config_clustered(c));
    return limit / 2 >= least || limit < least ? limit / 2 : least;
}

static bool memory_read(struct config *c, struct buf *error)
{
    bool given = c->memory_max != 0;
    if (!given) c->memory_max = memory_default(c);
    struct memory_wish w = {.total = c->memory_max,
                            .groups = c->groups,
                            .edge_threads = c->edge_threads,
                            .clustered = config_clustered(c),
                            .log_cache = c->cache_bytes,
                            .body_bytes_max = c->body_bytes_max,
                            .admit_bytes_max = c->admit_bytes_max,
                            .connections_max = c->connections_max,
                            .admit_off = c->admit_bytes_max == 0 && config_env("QUEEN_RAFT_ADMIT_MAX_MB") != NULL};
    if (!memory_plan_make(&c->memory, &w, error)) {
        if (!given) buf_text(error, " (half of what this machine or container allows, as QUEEN_MEMORY_MAX is not set)");
        return false;
    }
    c->cache_bytes = c->memory.log_cache;
    c->body_bytes_max = c->memory.body_bytes_max;
    c->admit_bytes_max = c->memory.admit_bytes_max;
    uint32_t files = connections_of_files();
    if (c->connections_max == 0) c->connections_max = files < c->memory.connections_max ? files : c->memory.connections_max;
    return true;
}

/* ---- flags -------------------------------------------------------------------------------------------------------- */

static bool flag_set(struct config *c, const char *flag, const char *value, struct buf *error)
{
    const struct variable dir = {"--data", VALUE_TEXT, FIELD(dir), 0, 1, 0, "a directory"};
    const struct variable port = {"--port", VALUE_U16, FIELD(port), 0, 0, 65535, "0 = any free one"};
    if (strcmp(flag, "--data") == 0) return value_set(c, &dir, flag, value, error);
    if (strcmp(flag, "--port") == 0) return value_set(c, &port, flag, value, error);
    if (strcmp(flag, "--host") == 0) return host_set(c, flag, value, error);
    buf_printf(error, "unknown argument %.200s\n%s", flag, help);
    return false;
}

static bool flags_read(struct config *c, int argc, char **argv, struct buf *error)
{
    for (int i = 0; i < argc; i++) {
        char name[32];
        const char *arg = argv[i], *equals = strchr(arg, '=');
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            buf_text(error, help);
            return false;
        }
        if (equals != NULL && (size_t)(equals - arg) < sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)(equals - arg), arg);
            if (!flag_set(c, name, equals + 1, error)) return false;
            continue;
        }
        bool known = strcmp(arg, "--data") == 0 || strcmp(arg, "--port") == 0 || strcmp(arg, "--host") == 0;
        if (known && i + 1 == argc) {
            buf_printf(error, "%s needs a value\n%s", arg, help);
            return false;
        }
        if (!flag_set(c, arg, known ? argv[i + 1] : "", error)) return false;
        i++;
    }
    return true;
}

bool config_read(struct config *out, int argc, char **argv, struct buf *error)
{
    memset(out, 0, sizeof *out);
    snprintf(out->dir, sizeof out->dir, "./data");
    snprintf(out->host, sizeof out->host, "127.0.0.1");
    snprintf(out->version, sizeof out->version, "%s", QUEEN_VERSION);
    out->log_level = LOGGER_INFO;
    for (int i = 0; i < VARIABLE_COUNT; i++) field_set(out, &variables[i], variables[i].initial);
    for (int i = 0; i < VARIABLE_COUNT; i++) {
        const char *text = config_env(variables[i].name);
        if (text != NULL && !value_set(out, &variables[i], variables[i].name, text, error)) return false;
    }
    if (!hosts_read(out, error) || !subscription_read(out)) return false;
    if (!level_read(out, "LOG_LEVEL", error) || !level_read(out, "RUST_LOG", error)) return false;
    if (!flags_read(out, argc, argv, error) || !relations_check(out, error)) return false;
    machine_defaults(out);
    return memory_read(out, error);
}

static void memory_print(const struct memory_plan *m)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } shares[] = {
        {"connections", m->connections},
        {"bodies", m->bodies},
        {"answers", m->answers},
        {"log", m->log},
        {"cold_cache", m->cold_cache},
        {"cold_reads", m->cold_reads},
        {"store", m->store},
        {"peers", m->peers},
        {"unstored", m->unstored},
        {"runs", m->runs},
        {"timers", m->timers},
        {"lanes", m->lanes},
        {"dedup", m->dedup},
        {"kv_values", m->kv_values},
        {"rest", m->base + m->margin},
    };
    struct buf text = {0};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        buf_printf(&text, " %s %.1f", shares[i].name, (double)shares[i].bytes / (double)MIB);
    log_info("memory: %.0f MiB at most:%.*s", (double)m->total / (double)MIB, (int)text.len, text.at);
    buf_free(&text);
}

void config_print(const struct config *c)
{
    for (int i = 0; i < VARIABLE_COUNT; i++) {
        const struct variable *v = &variables[i];
        const char *at = (const char *)c + v->at;
        if (i > 0 && variables[i - 1].at == v->at) continue;
        switch (v->kind) {
        case VALUE_TEXT:
            log_info("config: %s=%s", v->name, at);
            break;
        case VALUE_BOOL:
            log_info("config: %s=%s", v->name, *(const bool *)at ? "true" : "false");
            break;
        case VALUE_U16:
            log_info("config: %s=%u", v->name, *(const uint16_t *)(const void *)at);
            break;
        case VALUE_U32:
            log_info("config: %s=%u", v->name, *(const uint32_t *)(const void *)at);
            break;
        case VALUE_U64:
        case VALUE_BYTES:
            log_info("config: %s=%llu", v->name, (unsigned long long)*(const uint64_t *)(const void *)at);
            break;
        case VALUE_MIB:
            log_info("config: %s=%llu", v->name, (unsigned long long)(*(const uint64_t *)(const void *)at / MIB));
            break;
        }
    }
    log_info("config: QUEEN_BIND_ADDR=%s", c->host);
    log_info("config: DEFAULT_SUBSCRIPTION_MODE=%s", c->subscribe_all ? "all" : "new");
    config_cluster_print(c);
    memory_print(&c->memory);
    log_info("config: %s", c->groups > 1         ? "each group runs on a thread of its own"
                           : c->group_own_thread ? "the group runs on its own thread"
                                                 : "the group runs in the edge's loop");
}
