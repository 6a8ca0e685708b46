/* The variables that make a node one of several.
 *
 *   QUEEN_RAFT_PEERS      id=raft_host:port/http_host:port,...   the voters of the first boot; later starts go by what the log says
 *   QUEEN_RAFT_JOIN       no voter of the first boot: an empty directory that waits to be added
 *   QUEEN_RAFT_REPLICATOR `raft` (or `openraft`) says what a peer list says anyway; `local` contradicts one
 *
 * Without peers and join the rest is read and kept in range, and has no effect. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/logger.h"
#include "base/must.h"
#include "broker/config_inner.h"

enum { TOKEN_BYTES_MIN = 16, NODE_ID_MAX = 1000000000, HOST_BYTES_MAX = 255 };

/* ---- addresses ---------------------------------------------------------------------------------------------------- */

static bool host_good(struct slice host, bool bracketed)
{
    for (size_t i = 0; i < host.len; i++) {
        unsigned char c = (unsigned char)host.at[i];
        if (c <= ' ' || c > 126 || strchr("[]/,=\"\\", c) != NULL || (c == ':' && !bracketed)) return false;
    }
    return host.len > 0;
}

bool config_address(struct slice text, char *host, size_t host_size, uint16_t *port)
{
    size_t colon = text.len;
    while (colon > 0 && text.at[colon - 1] != ':') colon--;
    if (colon == 0) return false;
    struct slice name = slice_make(text.at, colon - 1);
    uint64_t number = 0;
    if (!config_number(slice_make(text.at + colon, text.len - colon), &number) || number == 0 || number > 65535) return false;
    bool bracketed = name.len > 2 && name.at[0] == '[' && name.at[name.len - 1] == ']';
    if (bracketed) name = slice_make(name.at + 1, name.len - 2);
    if (!host_good(name, bracketed) || name.len >= host_size) return false;
    memcpy(host, name.at, name.len);
    host[name.len] = '\0';
    *port = (uint16_t)number;
    return true;
}

static bool address_text(struct slice text, char *out, size_t size)
{
    char host[HOST_BYTES_MAX + 1];
    uint16_t port;
    if (!config_address(text, host, sizeof host, &port) || text.len >= size) return false;
    memcpy(out, text.at, text.len);
    out[text.len] = '\0';
    return true;
}

static struct slice trimmed(struct slice s)
{
    while (s.len > 0 && (unsigned char)s.at[0] <= ' ') s = slice_make(s.at + 1, s.len - 1);
    while (s.len > 0 && (unsigned char)s.at[s.len - 1] <= ' ') s.len--;
    return s;
}

/* Cuts `rest` at the first of that character: what is before it, or all of it. */
static struct slice cut(struct slice *rest, char at)
{
    const char *end = rest->len == 0 ? NULL : memchr(rest->at, at, rest->len);
    size_t len = end == NULL ? rest->len : (size_t)(end - rest->at);
    struct slice part = slice_make(rest->at, len);
    *rest = slice_make(rest->at + len + (end != NULL), rest->len - len - (end != NULL));
    return trimmed(part);
}

/* ---- peers -------------------------------------------------------------------------------------------------------- */

static bool peer_read(struct slice text, struct config_peer *out)
{
    struct slice rest = text, id = cut(&rest, '='), raft = cut(&rest, '/'), http = trimmed(rest);
    *out = (struct config_peer){0};
    return config_number(id, &out->id) && out->id >= 1 && out->id <= NODE_ID_MAX &&
           config_address(raft, out->raft_host, sizeof out->raft_host, &out->raft_port) &&
           address_text(http, out->http, sizeof out->http);
}

static bool peer_put(struct config *c, const struct config_peer *p)
{
    uint32_t at = c->peer_count;
    while (at > 0 && c->peers[at - 1].id > p->id) at--;
    if (at > 0 && c->peers[at - 1].id == p->id) return false;
    memmove(&c->peers[at + 1], &c->peers[at], (c->peer_count - at) * sizeof c->peers[0]);
    c->peers[at] = *p;
    c->peer_count++;
    return true;
}

static bool peers_read(struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_RAFT_PEERS");
    struct slice rest = text == NULL ? slice_of("") : config_trim(text);
    while (rest.len > 0) {
        struct config_peer p;
        struct slice one = cut(&rest, ',');
        if (!peer_read(one, &p)) {
            buf_printf(error, "QUEEN_RAFT_PEERS: \"%.*s\" is not a peer; id=raft_host:port/http_host:port is", (int)one.len,
                       one.at);
            return false;
        }
        if (c->peer_count == CONFIG_PEERS_MAX) {
            buf_printf(error, "QUEEN_RAFT_PEERS names more than %d peers", CONFIG_PEERS_MAX);
            return false;
        }
        if (peer_put(c, &p)) continue;
        buf_printf(error, "QUEEN_RAFT_PEERS names the id %llu twice", (unsigned long long)p.id);
        return false;
    }
    for (uint32_t i = 1; i < c->peer_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            const struct config_peer *a = &c->peers[i], *b = &c->peers[k];
            if (strcmp(a->raft_host, b->raft_host) != 0 || a->raft_port != b->raft_port) continue;
            buf_printf(error, "QUEEN_RAFT_PEERS gives %s:%u to the ids %llu and %llu", a->raft_host, a->raft_port,
                       (unsigned long long)b->id, (unsigned long long)a->id);
            return false;
        }
    }
    return true;
}

static const struct config_peer *peer_self(const struct config *c)
{
    for (uint32_t i = 0; i < c->peer_count; i++) {
        if (c->peers[i].id == c->node_id) return &c->peers[i];
    }
    return NULL;
}

/* The number at the end of a host's name, as stateful sets give them, plus one. */
static bool ordinal_read(uint64_t *out)
{
    char name[256] = "";
    const char *host = config_env("HOSTNAME");
    if (host == NULL && gethostname(name, sizeof name - 1) == 0) host = name;
    struct slice s = config_trim(host == NULL ? "" : host);
    size_t from = s.len;
    while (from > 0 && s.at[from - 1] >= '0' && s.at[from - 1] <= '9') from--;
    if (!config_number(slice_make(s.at + from, s.len - from), out)) return false;
    (*out)++;
    return *out <= NODE_ID_MAX;
}

static bool node_id_read(struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_RAFT_NODE_ID");
    if (text == NULL) return true;
    if (config_word(config_trim(text), "ordinal")) {
        if (ordinal_read(&c->node_id)) return true;
        buf_text(error, "QUEEN_RAFT_NODE_ID=ordinal: the host's name (HOSTNAME) does not end with a number");
        return false;
    }
    if (config_number(config_trim(text), &c->node_id) && c->node_id >= 1 && c->node_id <= NODE_ID_MAX) return true;
    buf_printf(error, "QUEEN_RAFT_NODE_ID=%.200s is not allowed; a whole number from 1 to %d is, or `ordinal`", text,
               NODE_ID_MAX);
    return false;
}

/* ---- secret, times, replicator ------------------------------------------------------------------------------------ */

static bool token_file_read(struct config *c, const char *path, struct buf *error)
{
    char bytes[sizeof c->token + 64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, bytes, sizeof bytes - 1);
    if (n < 0) buf_printf(error, "QUEEN_RAFT_TOKEN_FILE=%.200s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (n < 0) return false;
    struct slice s = trimmed(slice_make(bytes, (size_t)n));
    if (s.len >= sizeof c->token || memchr(s.at, '\0', s.len) != NULL) {
        buf_printf(error, "QUEEN_RAFT_TOKEN_FILE=%.200s: is not a secret of at most %zu characters", path, sizeof c->token - 1);
        return false;
    }
    memcpy(c->token, s.at, s.len);
    c->token[s.len] = '\0';
    return true;
}

static bool token_read(struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_RAFT_TOKEN"), *path = config_env("QUEEN_RAFT_TOKEN_FILE");
    if (text != NULL && path != NULL) {
        buf_text(error, "QUEEN_RAFT_TOKEN and QUEEN_RAFT_TOKEN_FILE are both set: one of them is the secret");
        return false;
    }
    if (path != NULL && !token_file_read(c, path, error)) return false;
    struct slice s = text == NULL ? slice_of(c->token) : config_trim(text);
    if (s.len >= sizeof c->token) {
        buf_printf(error, "QUEEN_RAFT_TOKEN has more than %zu characters", sizeof c->token - 1);
        return false;
    }
    memmove(c->token, s.at, s.len);
    c->token[s.len] = '\0';
    const char *name = path == NULL ? "QUEEN_RAFT_TOKEN" : "QUEEN_RAFT_TOKEN_FILE";
    if (s.len > 0 && s.len < TOKEN_BYTES_MIN) {
        buf_printf(error, "%s: a secret of %zu characters is too short; at least %d are needed", name, s.len, TOKEN_BYTES_MIN);
        return false;
    }
    if (s.len > 0 || !config_clustered(c)) return true;
    buf_printf(error,
               "%s is set without QUEEN_RAFT_TOKEN (or QUEEN_RAFT_TOKEN_FILE): nodes of a cluster need a secret, anybody "
               "could join otherwise",
               c->peer_count > 0 ? "QUEEN_RAFT_PEERS" : "QUEEN_RAFT_JOIN");
    return false;
}

static bool times_read(struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_RAFT_PROFILE");
    bool wan = text != NULL && config_word(config_trim(text), "wan");
    if (text != NULL && !wan && !config_word(config_trim(text), "lan")) {
        buf_printf(error, "QUEEN_RAFT_PROFILE=%.200s is not known; lan and wan are", text);
        return false;
    }
    c->heartbeat_ms = wan ? 100 : 50;
    if (c->election_ms == 0) c->election_ms = wan ? 1000 : 300;
    if (c->heartbeat_ms > c->election_ms / 5) c->heartbeat_ms = c->election_ms / 5; /* at least 10 */
    return true;
}

static bool replicator_read(const struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_RAFT_REPLICATOR");
    if (text == NULL) return true;
    struct slice s = config_trim(text);
    bool local = config_word(s, "local"), raft = config_word(s, "raft") || config_word(s, "openraft");
    if (!local && !raft) {
        buf_printf(error, "QUEEN_RAFT_REPLICATOR=%.200s is not known; local, raft and openraft are", text);
    } else if (local && config_clustered(c)) {
        buf_printf(error, "QUEEN_RAFT_REPLICATOR=local contradicts %s: set it to raft, or leave it out",
                   c->peer_count > 0 ? "QUEEN_RAFT_PEERS" : "QUEEN_RAFT_JOIN");
    } else if (raft && !config_clustered(c)) {
        buf_printf(error, "QUEEN_RAFT_REPLICATOR=%.200s needs QUEEN_RAFT_PEERS (or QUEEN_RAFT_JOIN)", text);
    }
    return error->len == 0;
}

/* ---- own place ---------------------------------------------------------------------------------------------------- */

static bool listen_read(struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_RAFT_LISTEN");
    const struct config_peer *self = peer_self(c);
    snprintf(c->raft_host, sizeof c->raft_host, "0.0.0.0");
    char host[HOST_BYTES_MAX + 1];
    c->raft_port = 0;
    if (self != NULL)
        c->raft_port = self->raft_port;
    else if (c->advertise_raft[0] != '\0')
        must(config_address(slice_of(c->advertise_raft), host, sizeof host, &c->raft_port));
    if (text != NULL && !config_address(config_trim(text), c->raft_host, sizeof c->raft_host, &c->raft_port)) {
        buf_printf(error, "QUEEN_RAFT_LISTEN=%.200s is not an address; host:port is", text);
        return false;
    }
    if (c->raft_port != 0 || !config_clustered(c)) return true;
    buf_text(
        error,
        "QUEEN_RAFT_LISTEN is needed: neither QUEEN_RAFT_PEERS nor QUEEN_RAFT_ADVERTISE says on which port this node listens");
    return false;
}

static bool advertise_read(struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_RAFT_ADVERTISE");
    const struct config_peer *self = peer_self(c);
    if (text != NULL) {
        struct slice rest = config_trim(text), raft = cut(&rest, '/');
        if (address_text(raft, c->advertise_raft, sizeof c->advertise_raft) &&
            address_text(trimmed(rest), c->advertise_http, sizeof c->advertise_http))
            return true;
        buf_printf(error, "QUEEN_RAFT_ADVERTISE=%.200s is not allowed; raft_host:port/http_host:port is", text);
        return false;
    }
    if (self == NULL) return true;
    bool six = strchr(self->raft_host, ':') != NULL;
    snprintf(c->advertise_raft, sizeof c->advertise_raft, "%s%s%s:%u", six ? "[" : "", self->raft_host, six ? "]" : "",
             self->raft_port);
    snprintf(c->advertise_http, sizeof c->advertise_http, "%s", self->http);
    return true;
}

static bool place_read(struct config *c, struct buf *error)
{
    if (config_clustered(c) && c->node_id == 0) {
        buf_text(error, "QUEEN_RAFT_NODE_ID is needed: which node of the cluster is this?");
        return false;
    }
    if (c->peer_count > 0 && !c->join && peer_self(c) == NULL) {
        buf_printf(error, "QUEEN_RAFT_PEERS does not name this node, QUEEN_RAFT_NODE_ID=%llu", (unsigned long long)c->node_id);
        return false;
    }
    int tls = (c->tls_cert[0] != '\0') + (c->tls_key[0] != '\0') + (c->tls_ca[0] != '\0');
    if (tls != 0 && tls != 3) {
        buf_text(error, "QUEEN_RAFT_TLS_CERT, QUEEN_RAFT_TLS_KEY and QUEEN_RAFT_TLS_CA belong together: all or none");
        return false;
    }
    return advertise_read(c, error) && listen_read(c, error);
}

/* ---- tenants ------------------------------------------------------------------------------------------------------ */

static bool tenant_put(struct config *c, struct slice one, struct buf *error)
{
    struct slice rest = one, name = cut(&rest, '='), number = trimmed(rest);
    struct config_tenant t = {0};
    uint64_t group = 0;
    if (!uuid_parse(name, &t.tenant) || !config_number(number, &group)) {
        buf_printf(error, "QUEEN_TENANT_GROUPS: \"%.*s\" is not allowed; tenant=group is, a UUID and a number", (int)one.len,
                   one.at);
        return false;
    }
    if (group >= c->groups) {
        buf_printf(error, "QUEEN_TENANT_GROUPS: group %llu is not there; with QUEEN_RAFT_GROUPS=%u they are 0 to %u",
                   (unsigned long long)group, c->groups, c->groups - 1);
        return false;
    }
    for (uint32_t i = 0; i < c->tenant_count; i++) {
        if (!uuid_equal(c->tenants[i].tenant, t.tenant)) continue;
        buf_printf(error, "QUEEN_TENANT_GROUPS names the tenant %.*s twice", (int)name.len, name.at);
        return false;
    }
    if (c->tenant_count == CONFIG_TENANTS_MAX) {
        buf_printf(error, "QUEEN_TENANT_GROUPS names more than %d tenants", CONFIG_TENANTS_MAX);
        return false;
    }
    t.group = (uint32_t)group;
    c->tenants[c->tenant_count++] = t;
    return true;
}

static bool tenants_read(struct config *c, struct buf *error)
{
    const char *text = config_env("QUEEN_TENANT_GROUPS");
    struct slice rest = text == NULL ? slice_of("") : config_trim(text);
    while (rest.len > 0) {
        if (!tenant_put(c, cut(&rest, ','), error)) return false;
    }
    return true;
}

bool config_cluster_read(struct config *c, struct buf *error)
{
    return peers_read(c, error) && node_id_read(c, error) && replicator_read(c, error) && token_read(c, error) &&
           times_read(c, error) && place_read(c, error) && tenants_read(c, error);
}

void config_cluster_print(const struct config *c)
{
    for (uint32_t i = 0; i < c->tenant_count; i++) {
        char text[UUID_TEXT];
        uuid_text(c->tenants[i].tenant, text);
        log_info("config: QUEEN_TENANT_GROUPS %.*s=%u", UUID_TEXT, text, c->tenants[i].group);
    }
    if (!config_clustered(c)) {
        log_info("config: no QUEEN_RAFT_PEERS: this node is alone");
        return;
    }
    log_info("config: QUEEN_RAFT_NODE_ID=%llu", (unsigned long long)c->node_id);
    for (uint32_t i = 0; i < c->peer_count; i++) {
        const struct config_peer *p = &c->peers[i];
        bool six = strchr(p->raft_host, ':') != NULL;
        log_info("config: QUEEN_RAFT_PEERS %llu=%s%s%s:%u/%s", (unsigned long long)p->id, six ? "[" : "", p->raft_host,
                 six ? "]" : "", p->raft_port, p->http);
    }
    log_info("config: QUEEN_RAFT_LISTEN=%s:%u", c->raft_host, c->raft_port);
    log_info("config: QUEEN_RAFT_ADVERTISE=%s/%s", c->advertise_raft, c->advertise_http);
    log_info("config: QUEEN_RAFT_TOKEN is set (%zu characters)", strlen(c->token));
    log_info("config: an election after %u ms, a heartbeat every %u ms", c->election_ms, c->heartbeat_ms);
}
