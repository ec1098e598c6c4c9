/* cost.h: time, memory and traffic of programs over parts, predicted without running them.
 *
 *   cost.c      the graph of one device, as kernels and collectives with their times
 *   simulate.c  the same for users: a table and a trace
 *   auto.c      layouts of inputs that cost least
 *   auto_inner.c  layouts of values inside the graph, given those of the inputs
 *   auto_class.c  which tensors play the same part
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
eas_status cost_of(const dist_mesh *m, const eas_machine *machine, int n, eas_node *const *outs,
                   const eas_spec *specs, const pins *chosen, cost *out, sim_events *events);
bool cost_machine_ok(const eas_machine *m);
double cost_collective(const dist_mesh *m, const eas_machine *machine, coll_kind kind,
                       const eas_dim_spec *axes, double bytes, int64_t *sent);

/* ---- auto_class.c: nodes of a graph with a hash of their surroundings, equal for tensors that play the same
 * part in repeated layers ---- */
typedef struct around {
    VEC(eas_node *) order; /* users before what they use */
    uint64_t *hash; /* per node */
    uint32_t *table, ntable;
} around;
eas_status around_new(around *a, int n, eas_node *const *outs);
uint64_t around_hash(const around *a, const eas_node *n); /* 0: it is not there */
void around_free(around *a);
uint64_t around_join(uint64_t h, uint64_t v);

/* ---- auto.c ---- */
double auto_rank(const eas_machine *machine,
                 /* what candidates are compared by: seconds, then memory; those that do not fit come last */
                 const cost *c);
bool auto_can_cut(const dist_mesh *m, const eas_node *n, const eas_spec *s); /* do the sizes divide? */

/* ---- auto_inner.c ---- */
/* Adds to `chosen` layouts of values inside the graph that make it cheaper, with at most `tries` candidates.
 * *best: the rank with what is chosen already; lowered. */
eas_status auto_inner(const dist_mesh *m, const eas_machine *machine, int n, eas_node *const *outs,
                      const eas_spec *specs, int tries, pins *chosen, double *best, double *seconds);
/* The layouts inside that compiled functions of this thread are made with; see eas_mesh_auto_inner. */
eas_status auto_for_compiled(const dist_mesh *m, int n, eas_node *const *outs, pins *chosen);

#endif
