/* The process's configuration: QUEEN_* variables and a few flags, read once at start, printed at start.
 *
 * A value that cannot be understood (a misspelt boolean, a number that is not one or out of range) refuses to start with the
 * variable's name, the value and what is allowed: a broker that runs with other settings than its operator wrote is worse than
 * one that does not run. (The public contract keeps the default silently for such integers; see docs/decisions.) */
#ifndef QUEEN_BROKER_CONFIG_H
#define QUEEN_BROKER_CONFIG_H

#include "base/buf.h"
#include "base/uuid.h"
#include "broker/memory_plan.h"

enum { CONFIG_PEERS_MAX = 9, CONFIG_GROUPS_MAX = 64, CONFIG_TENANTS_MAX = 1024 };

/* One of QUEEN_RAFT_PEERS: id=raft_host:port/http_host:port */
struct config_peer {
    uint64_t id;
    char raft_host[256], http[264];
    uint16_t raft_port;
};

struct config_tenant {
    struct uuid tenant;
    uint32_t group;
};

struct config {
    /* The cluster. No peers and not `join`: this node is alone, and none of it counts but the groups. */
    struct config_peer peers[CONFIG_PEERS_MAX]; /* QUEEN_RAFT_PEERS, by id; this node among them */
    uint32_t peer_count;
    uint64_t node_id;    /* QUEEN_RAFT_NODE_ID, a number or `ordinal`; 0 = not given */
    bool join;           /* QUEEN_RAFT_JOIN: start empty and wait to be added */
    char raft_host[256]; /* QUEEN_RAFT_LISTEN, host:port; default 0.0.0.0 and the own port of _PEERS or _ADVERTISE */
    uint16_t raft_port;
    char advertise_raft[264], advertise_http[264]; /* QUEEN_RAFT_ADVERTISE, raft/http of this node; default: as in the peers */
    char token[512]; /* QUEEN_RAFT_TOKEN, or the content of QUEEN_RAFT_TOKEN_FILE: the cluster's secret, never printed */
    char tls_cert[4096], tls_key[4096], tls_ca[4096]; /* QUEEN_RAFT_TLS_CERT, _KEY, _CA: all or none */
    char cell_id[256];                  /* QUEEN_CELL_ID: the cluster's name; part of its identity at the first boot */
    uint32_t election_ms, heartbeat_ms; /* QUEEN_RAFT_PROFILE lan (300/50, default) or wan (1000/100); QUEEN_RAFT_ELECTION_MS */
    uint64_t keep_bytes;                /* QUEEN_RAFT_KEEP_BYTES, 256 MiB: log kept for followers that come back */
    uint32_t promote_max_lag;           /* QUEEN_RAFT_PROMOTE_MAX_LAG, 1000 entries */
    uint32_t ready_lag_ms, ready_lag_entries, ready_quorum_ms; /* QUEEN_RAFT_READY_*: 2000, 1000, 5000 */
    uint32_t leader_wait_ms; /* QUEEN_RAFT_LEADER_WAIT_MS, 8000: how long calls are held while no leader is known */
    uint32_t groups;         /* QUEEN_RAFT_GROUPS, 1 */
    uint32_t store_files;    /* table files a group's store keeps open; 0: as many as it likes. From the limit of open files */
    struct config_tenant tenants[CONFIG_TENANTS_MAX]; /* QUEEN_TENANT_GROUPS: <tenant>=<group>,... */
    uint32_t tenant_count;
    char dir[4096];                /* --data, QUEEN_RAFT_DIR; default ./data */
    char host[256];                /* HOST, QUEEN_BIND_ADDR; default 127.0.0.1 while there is no authentication */
    uint16_t port;                 /* --port, PORT; 6632; 0 = any, printed */
    uint64_t memory_max;           /* QUEEN_MEMORY_MAX; default: half of what the machine or the container allows */
    struct memory_plan memory;     /* its division; a group's own part in a group's configuration */
    uint64_t body_bytes_max;       /* QUEEN_MAX_BODY_BYTES; default as planned, as the next ones */
    uint64_t segment_bytes;        /* QUEEN_RAFT_SEGMENT_BYTES, 64 MiB */
    uint64_t cache_bytes;          /* QUEEN_LOG_CACHE_BYTES: 1/16 of memory_max, at most 512 MiB */
    uint32_t retention_every_ms;   /* RETENTION_INTERVAL, 5000: how long after an entry, or a round, the next round begins */
    uint32_t retention_scan_per_s; /* QUEEN_RAFT_RETENTION_SCAN_PER_S, 50000: lanes looked at */
    uint64_t scrub_bytes_s;        /* QUEEN_SCRUB_BYTES_S, 4 MiB: sealed files of the log looked through; 0 = off */
    uint64_t reclaim_bytes_s;      /* QUEEN_RECLAIM_BYTES_S, 32 MiB: read and copied to give back mostly dead files; 0 = off */
    uint32_t reclaim_live_pct;     /* QUEEN_RECLAIM_LIVE_PCT, 40: files with less of them still wanted are given back */
    uint32_t reclaim_after_ms;     /* QUEEN_RECLAIM_AFTER_MS, 30000: when they have been so for so long */
    uint32_t durable_every_ms;     /* QUEEN_RAFT_DURABLE_EVERY_MS, 1000: rows of the store become durable */
    uint64_t durable_every_bytes;  /* QUEEN_RAFT_DURABLE_EVERY_BYTES, 256 MiB of log */
    uint32_t disk_high_pct, disk_low_pct; /* QUEEN_RAFT_DISK_HIGH_PCT, _LOW_PCT: 85, 80 */
    uint64_t admit_bytes_max;             /* QUEEN_RAFT_ADMIT_MAX_MB: 1/24 of memory_max, at most 128 MiB; 0 = off */
    uint32_t admit_hold_ms;           /* QUEEN_RAFT_ADMIT_HOLD_MS: the oldest queued call waited longer: pushes are refused */
    uint32_t pop_timeout_ms;          /* DEFAULT_TIMEOUT, POP_DEFAULT_TIMEOUT_MS */
    uint32_t statement_timeout_ms;    /* QUEEN_STMT_TIMEOUT_MS */
    uint64_t timer_payload_bytes_max; /* QUEEN_TIMERS_MAX_PAYLOAD_BYTES: decoded, of one timer; not inside transactions */
    uint64_t timer_horizon_s;         /* QUEEN_TIMERS_MAX_HORIZON_S: 90 days; not inside transactions */
    uint32_t kv_value_bytes_max, kv_ops_max, kv_keys_max; /* QUEEN_KV_MAX_VALUE_BYTES, _OPS_PER_CALL, _KEYS_PER_CALL */
    uint32_t kv_read_rate, kv_read_burst;   /* QUEEN_KV_READ_RATE, _READ_BURST: calls a second of a tenant; 0 = any number */
    uint32_t kv_write_rate, kv_write_burst; /* QUEEN_KV_WRITE_RATE, _WRITE_BURST; a burst of 0 is twice the rate */
    bool subscribe_all;                     /* DEFAULT_SUBSCRIPTION_MODE is not `new` */
    bool tenancy_header;                    /* QUEEN_TENANCY_HEADER (needs QUEEN_KV_TRUSTED_PROXY) */
    uint32_t
        edge_threads; /* QUEEN_EDGE_THREADS; default: cores - 1, 1..8; with 1 or 2 cores the group runs in the edge's loop */
    bool group_own_thread;
    uint32_t connections_max; /* QUEEN_CONNECTIONS_MAX; default from memory_max and the file limit */
    char server_id[256];      /* QUEEN_SERVER_ID */
    int log_level;            /* LOG_LEVEL, RUST_LOG */
    bool log_json;            /* QUEEN_LOG_JSON */
    char version[32];
};

/* Is this node one of several, or to become one? Else it opens no port to other nodes. */
static inline bool config_clustered(const struct config *c)
{
    return c->peer_count > 0 || c->join;
}

/* "host:port", the host of IPv6 in brackets. False: it is not that. `host` without brackets. */
bool config_address(struct slice text, char *host, size_t host_size, uint16_t *port);

/* argv after the verb. False: usage or configuration error, said in `error`. */
bool config_read(struct config *out, int argc, char **argv, struct buf *error);
void config_print(const struct config *c); /* effective values to the log, one line each */

#endif
