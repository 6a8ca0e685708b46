/* Between config.c (values one by one) and config_cluster.c (what makes a node part of a cluster). */
#ifndef QUEEN_BROKER_CONFIG_INNER_H
#define QUEEN_BROKER_CONFIG_INNER_H

#include "broker/config.h"

struct slice config_trim(const char *text);         /* without blanks at both ends */
bool config_word(struct slice s, const char *word); /* the same, whatever the case */
bool config_number(struct slice s, uint64_t *out);  /* digits alone */
const char *config_env(const char *name);           /* NULL: unset or blank */
bool config_cluster_read(struct config *c, struct buf *error);
void config_cluster_print(const struct config *c); /* no secrets */

#endif
