/* A backup turned into a data directory. Offline: no broker runs on it, none is asked.
 *
 *   verify    BACKUP, then every file it names: size and checksum; each group's manifest and the files it names
 *   lay out   copies of the files, checked again on the way; then for each group the members' entry, configuration, term and vote, identity
 *             (replica/restore.h); DATA/disk of a node with peers; DATA/groups
 *
 * The result belongs to a new cluster, whose id is made from the backup's and the members: the same on every node that is made from this backup
 * with this list, another one than that of the cluster the backup was taken from, so that nodes of the two never talk. */
#ifndef QUEEN_BROKER_RESTORE_H
#define QUEEN_BROKER_RESTORE_H

#include "broker/backup_file.h"
#include "broker/config.h"

struct restore_options {
    const char *backup; /* its directory */
    const char *data;   /* empty, or not there; NULL: only verify */
    uint64_t node;
    const struct config_peer *peers; /* with `node` among them; none: this node alone */
    uint32_t peer_count;
    void *ctx;
    void (*progress)(void *ctx, bool copying, uint64_t done, uint64_t total); /* bytes; often. May be NULL */
};

enum restore_result { RESTORE_OK, RESTORE_USAGE, RESTORE_DAMAGED, RESTORE_IO };

/* `error`: one line a finding. While verifying all damaged files are told, up to RESTORE_FINDINGS_MAX. `file`: what BACKUP says, to be
 * freed. */
enum { RESTORE_FINDINGS_MAX = 100 };
enum restore_result restore_run(const struct restore_options *o, struct backup_file *file, struct buf *error);

/* "id=raft_host:port/http_host:port,..." as in QUEEN_RAFT_PEERS. False: said in `error`. */
bool restore_peers_read(const char *text, struct config_peer out[CONFIG_PEERS_MAX], uint32_t *count, struct buf *error);

#endif
