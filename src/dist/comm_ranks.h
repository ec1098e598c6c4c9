/* comm_ranks.h: the engine over messages, for comm_world.c. */
#ifndef COMM_RANKS_H
#define COMM_RANKS_H

#include "transport.h"
#include "watch.h"

/* takes w */
eas_status comm_ranks_new(const transport *t, watch *w, int rank, int size, bool crowded, comm **out);
/* bytes as they were given to the transport; NULL for other engines */
const comm_stats *comm_ranks_wire(const comm *c);
const char *comm_ranks_report(const comm *c); /* of the failure; NULL: none */

#endif
