/* cost.h: time, memory and traffic of programs over parts, predicted without running them.
 *
 *   cost.c      the graph of one device, as kernels and collectives with their times
 *   simulate.c  the same for users: a table and a trace
 *   auto.c      layouts of inputs that cost least
 */
#ifndef DIST_COST_H
#define DIST_COST_H

#include "dist.h"

/* Of the program of one device. events: NULL, or where they go (VEC of eas_sim_event). */
typedef VEC(eas_sim_event) sim_events;
typedef struct cost {
    double seconds, compute, communication;
    double flops; /* of products and of the rest */
    int64_t memory, arguments, results; /* bytes; memory: the most at any time, all included */
    int64_t sent[5], calls[5]; /* by coll_kind: bytes that leave one device */
    double link[5]; /* seconds */
    int64_t kernels;
} cost;
eas_status cost_of(const dist_mesh *m, const eas_machine *machine, int n, eas_node *const *outs, const eas_spec *specs, cost *out,
                   sim_events *events);
bool cost_machine_ok(const eas_machine *m);
double cost_collective(const dist_mesh *m, const eas_machine *machine, coll_kind kind, const eas_dim_spec *axes, double bytes, int64_t *sent);

#endif
