/* Leadership and members, as an operator would change them. */
#include "broker/broker_internal.h"
#include "faults.h"
#include "replica/replica.h"

struct asked {
    struct sim_node *leader;
    uint32_t node;
    bool done;
};

bool members_transfer(uint32_t to)
{
    (void)to;
    return false;
}

bool members_add(uint32_t node)
{
    (void)node;
    return false;
}

bool members_promote(uint32_t node)
{
    (void)node;
    return false;
}

bool members_remove(uint32_t node)
{
    (void)node;
    return false;
}
