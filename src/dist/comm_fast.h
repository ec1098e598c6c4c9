/* comm_fast.h: reductions in any order: ours or the transport's, for comm_ranks.c. */
#ifndef COMM_FAST_H
#define COMM_FAST_H

#include "comm.h"
#include "transport.h"

/* a call in one of the two ways, to its end */
typedef eas_status (*fast_run)(comm *c, const comm_call *k, bool library);
/* Is the transport's own reduction to be used for this call? Measured by all members together when it is
 * first asked for a group and a size; also makes what fast_start needs. */
eas_status fast_choose(comm *c, const transport *t, const comm_call *k, fast_run run, bool *library);
/* after fast_choose has said so; 0, or the transport's code */
int fast_start(const transport *t, const comm_call *k, transport_request *out);

#endif
