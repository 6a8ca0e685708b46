/* The inside of a node: node.c (groups, life, looks), node_files.c (its small files), node_peers.c (what the net brings) and
 * node_change.c (changes of the members). Everything on the main loop unless it says otherwise. */
#ifndef QUEEN_BROKER_NODE_INNER_H
#define QUEEN_BROKER_NODE_INNER_H

#include <pthread.h>

#include "broker/die.h"
#include "broker/node.h"

enum {
    NODE_LOOK_US = 200000,        /* between two looks at the groups: members, leaders */
    NODE_SPREAD_US = 3000000,     /* a leader elsewhere than it belongs is left there so long */
    NODE_READDRESS_US = 5000000,  /* between two tries to tell the cluster our new address */
    NODE_HANDOVER_US = 1000000,   /* graceful stop: for a new leader */
    NODE_PEERS_KEPT_MAX = 64,     /* nodes remembered in DATA/peers */
    NODE_FILE_BYTES_MAX = 1 << 18 /* of each of the small files */
};

/* ---- node_files.c */

/* DATA/disk, only of nodes with peers: who this directory is. */
struct disk_file {
    struct uuid cluster, disk; /* cluster all zero: not learned yet */
    uint64_t node, starts, inode;
    bool joined; /* made to be added, not one of the first boot */
};

struct peer_seen {
    uint64_t node, starts;
    struct uuid disk;
};
struct peers_file {
    uint32_t count;
    struct peer_seen at[NODE_PEERS_KEPT_MAX];
};

bool node_dir_has(const char *dir, const char *name);
bool node_dir_is_used(const char *dir);                /* a group was made in it */
bool node_dir_inode(const char *dir, uint64_t *inode); /* of the directory itself */
/* The lock that the group's broker takes later. */
bool node_lock_try(const char *dir, int *fd, int *exit_code, struct buf *error);
/* Each: false = I/O or damage, said in `error`; exit code 3 or 2. */
bool disk_file_load(const char *dir, struct disk_file *out, bool *found, int *exit_code, struct buf *error);
bool disk_file_store(const char *dir, const struct disk_file *f, struct buf *error);
bool peers_file_load(const char *dir, struct peers_file *out, int *exit_code, struct buf *error);
bool peers_file_store(const char *dir, const struct peers_file *f, struct buf *error);
/* DATA/groups against the configuration: made for a new directory with several groups, refused when it does not fit. */
bool groups_file_check(const char *dir, const struct config *c, int *exit_code, struct buf *error);
bool cluster_of_replica(const char *dir, struct uuid *out); /* of a directory that was made without peers */

/* ---- node.c */

struct node;

struct node_group {
    struct node *node;
    uint32_t number;
    char dir[4200];
    struct loop *loop;
    pthread_t thread;
    bool has_thread;
    struct broker *broker;
    uint64_t rows_loaded;
    struct replica_member *members; /* of the first boot */
    /* the last look; `looking`: one is under way, its fields are the group's */
    struct node_visit visit;
    bool looking;
    struct replica_members now;
    uint64_t leader, last;
    bool leads;
    struct replica_progress progress[REPLICA_MEMBERS_MAX];
    bool has_progress[REPLICA_MEMBERS_MAX];
    uint64_t transfer_to; /* for the next look to do */
    int64_t displaced_us; /* leads, and another one should: since when */
    /* damage (node_repair.c) */
    struct node_damage damage; /* under the node's lock */
    bool hands_over;           /* leads and should not: the next look asks another one to take over */
    bool repair_asking;
    int64_t repair_ask_us, repair_said_us;
    struct repair *repair; /* the group is not open, it is under repair */
    /* stop */
    struct loop_task stop_task, stopped_task;
    struct loop_timer stop_timer;
    int64_t stop_by_us;
};

/* A node we dial. */
struct node_peer {
    uint64_t id;
    char host[256], told_host[256]; /* dialled; said by itself in its hello */
    uint16_t port, told_port;
    bool held;  /* by a change under way */
    bool dials; /* its connection to us is up: it means us, member or not, and is answered */
};

struct node_asked {
    struct node_asked *next;
    uint64_t peer, number;
    int64_t deadline_us;
    node_answer *done;
    void *ctx;
};

struct node_change_run;

struct node {
    const struct config *config;
    struct loop *loop;
    struct node_owner owner;
    struct loop_task again_task;
    atomic_bool again_asked;

    uint32_t group_count;
    struct node_group *groups;
    uint64_t id;
    struct disk_file disk;
    bool clustered, waits; /* waits: for its cluster; no group is open */
    bool repairs;          /* no group is open: a damaged one gets the leader's state */
    int repair_lock;       /* of the directory meanwhile; -1 */
    int64_t repaired_us, repair_until_us;
    uint64_t repair_peer; /* at a leader: who was let go for a repair */
    struct net *net;
    struct admission admission;
    uint64_t map_hash; /* of the number of groups and the tenants' map */

    struct node_peer peers[NET_PEERS_MAX];
    uint32_t peer_count;
    struct peers_file seen;
    uint64_t refused_by[NET_PEERS_MAX]; /* nodes that refuse our disk */
    uint32_t refused_count;
    int64_t refused_said_us, readdress_us;
    bool readdressing;

    pthread_mutex_t lock; /* view */
    struct node_members view;

    struct node_asked *asked;
    uint64_t ask_numbers;
    struct loop_timer ask_timer, look_timer;
    void (*on_ask)(void *ctx, struct node_question q, uint8_t what, struct slice question);
    void *on_ask_ctx;

    bool stopping;
    uint32_t stopped_count;
    void (*stopped)(void *ctx);
    void *stopped_ctx;
    struct loop_task stopped_task;
};

void node_start_anew(struct node *n); /* any thread */
void node_look(struct node *n);       /* now, and every so often */
const struct replica_member *members_find(const struct replica_members *all, uint64_t id);
void node_address_make(char out[REPLICA_ADDRESS_BYTES], const char *raft, const char *http, const struct uuid *disk);

/* ---- node_peers.c */

bool peers_open(struct node *n, struct buf *error); /* the net; its peers come with the first look */
void peers_follow(struct node *n);                  /* dials whom the groups' members, or the configuration, name */
bool peers_hold(struct node *n, uint64_t id, const char *address); /* dials one that is to be added; false: too many */
void peers_release(struct node *n, uint64_t id);
const struct peer_seen *peers_seen(const struct node *n, uint64_t id);
void peers_stop(struct node *n); /* every question ends without an answer */

/* ---- node_change.c */

enum { NODE_ASK_CHANGE = NODE_ASK_OWN, NODE_ASK_REPAIR };
void change_asked(struct node *n, struct node_question q, struct slice question);

/* ---- node_repair.c */

/* Before any group is opened: begins the repair of this one when the last start, or what ran then, asked for it (node->repairs). False:
 * it can not be; `error` says why and what to do. */
bool repair_open(struct node_group *g, struct buf *error);
/* The group cannot be opened, for `error`: the next start is to repair it. False: it cannot; so, and what to do, is added to `error`. */
bool repair_note(struct node_group *g, struct buf *error);
void repair_over(struct node_group *g); /* the group is open */
void repair_stop(struct node_group *g);
void repair_look(struct node *n);
void repair_asked(struct node *n, struct node_question q, struct slice question);

#endif
