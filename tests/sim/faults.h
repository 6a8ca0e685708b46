/* The schedule of faults: a list, made from the seed, printed as text, read back, carried out.
 *
 * One fault a line: time in seconds, kind, up to four numbers; node 0 is the one that leads at that time. A schedule and a seed make a run; leaving out lines leaves the rest as it
 * is, which is how a failing run is made smaller. */
#ifndef QUEEN_TESTS_SIM_FAULTS_H
#define QUEEN_TESTS_SIM_FAULTS_H

#include "sim.h"

enum { FAULTS_MAX = 256 };

enum fault_kind {
    FAULT_KILL,      /* node, down ms */
    FAULT_POWER,     /* node, down ms */
    FAULT_STOP,      /* node, down ms: graceful */
    FAULT_DIE_IO,    /* node, down ms, disk operations until then, 1 = power */
    FAULT_ISOLATE,   /* node, ms: from all others */
    FAULT_CUT,       /* from, to, ms: one way */
    FAULT_SPLIT,     /* mask of one side, ms */
    FAULT_BRIDGE,    /* node that still reaches both sides, mask of one side, ms */
    FAULT_BREAK,     /* from, to: a connection */
    FAULT_SLOW_NET,  /* from, to, ms, delay us */
    FAULT_PAUSE,     /* node, ms */
    FAULT_STEP,      /* node, ms by which its wall clock steps */
    FAULT_DRIFT,     /* node, ppm */
    FAULT_SLOW_DISK, /* node, ms, factor */
    FAULT_FAIL_SYNC, /* node */
    FAULT_FULL,      /* node, ms */
    FAULT_FLIP,      /* node, ms until it is mended: a bit of its log while it is down */
    FAULT_TRANSFER,  /* to node */
    FAULT_WIPE,      /* node, ms until it is replaced: its disk is emptied while it is down */
    FAULT_GROW,      /* a node that joins */
    FAULT_REMOVE,    /* node, for good */
    FAULT_KINDS
};

struct fault {
    int64_t at_us;
    enum fault_kind kind;
    int64_t n[4];
    bool off; /* left out */
};

struct schedule {
    uint32_t count, nodes;
    bool alone;
    int64_t minutes;
    struct fault at[FAULTS_MAX];
};

void schedule_make(struct schedule *s, uint64_t seed, uint32_t nodes, bool alone, int64_t minutes);
void schedule_print(const struct schedule *s, FILE *to);
bool schedule_read(struct schedule *s, FILE *from);
void schedule_start(const struct schedule *s); /* its faults happen from here on */
void faults_heal(void);                        /* what they left behind is mended */

/* members.c: changes of the members. false: one of that node is under way. */
bool members_grow(uint32_t node);
bool members_replace(uint32_t node, int64_t in_us);
bool members_remove(uint32_t node);
bool members_idle(void);
void members_transfer(uint32_t to);

#endif
