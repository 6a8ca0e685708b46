/* What the commands of `queen cluster` share: the answers of the cluster routes, and their forms for people. */
#ifndef QUEEN_CLI_CLUSTER_H
#define QUEEN_CLI_CLUSTER_H

#include "cli/columns.h"
#include "cli/verb.h"

/* A member as the membership answer has it. */
struct cluster_member {
    uint64_t id;
    bool voter, live;
    bool lag_known; /* not where the node asked does not lead and has no fresh view of the leader's */
    uint64_t lag;   /* entries it lacks */
};

struct cluster_membership {
    uint64_t leader; /* 0: none known */
    bool in_flight;  /* a change is under way */
    uint64_t promote_max_lag;
    struct buf voters; /* as text: "1, 2, 3" */
    struct buf learners;
};

/* Reads the membership object (a value that passed view_whole). *member is that of `id`; false in *found: it is none.
 * False: the value is not a membership. */
bool cluster_membership_read(struct slice value, uint64_t id, struct cluster_membership *out, struct cluster_member *member,
                             bool *found);
void cluster_membership_free(struct cluster_membership *m);

/* Prints the answer of the status or of the members route. False: it is not what it should be. *leader: one is known. */
bool cluster_status_print(struct slice value, bool *leader);
bool cluster_members_print(struct slice value, bool *leader);

/* What to do about a refusal of a membership change, by its code; NULL: nothing is known. */
const char *cluster_advice(struct slice code);

#endif
