/* diff_control.h: what forward mode (diff_control.c) and reverse mode (diff_control_back.c) of loops and
 * branches share. All of it fails by g->st, which stays, and does nothing after that.
 */
#ifndef GRAPH_DIFF_CONTROL_H
#define GRAPH_DIFF_CONTROL_H

#include "graph.h"

typedef VEC(eas_node *) list;

/* One derivative of one loop or branch. */
typedef struct work {
    gbuild *g;
    eas_node *n;
    const graph_control *c;
    eas_node **in; /* placeholders of the body by number; NULL: not used */
    eas_node **outs; /* a copy of the body's results */
    int nc, ns, nk; /* carried, scanned, stacked */
} work;

/* Bodies that are being differentiated on this thread: their nodes belong to others, and stay as they are. */
extern _Thread_local int dc_inside;

bool dc_begin(work *w, gbuild *g, eas_node *n);
void dc_end(work *w);
void *dc_room(gbuild *g, size_t n, size_t size); /* zeros, one element more than asked for; free it */
void dc_push(gbuild *g, list *l, eas_node *n);
eas_node *dc_keep(gbuild *g, eas_node *n); /* a counted reference goes to the build */
eas_node *dc_like(gbuild *g, const eas_node *x); /* a placeholder of x's type */
/* A placeholder like an element of t, a tangent of what is scanned, where e dims are in front of the trips.
 */
eas_node *dc_element_like(gbuild *g, const eas_node *t, int e, const eas_node *element);

/* Dims in front of a tensor that is scanned or stacked, against the trips: (trips, e dims, element) for the
 * loop, (e dims, trips, element) outside. */
static inline eas_node *dc_trips_first(gbuild *g, eas_node *t, int e)
{
    return t && e ? gb_move(g, t, e, 0) : t;
}
static inline eas_node *dc_trips_behind(gbuild *g, eas_node *t, int e)
{
    return t && e ? gb_move(g, t, 0, e) : t;
}

eas_node *dc_as_type(gbuild *g, eas_node *t, const eas_node *type); /* t in the type of a placeholder */
/* Replaces the placeholder *type by a wider one if it lacks dims that t has. true: it has them all already.
 */
bool dc_hold(gbuild *g, eas_node **type, const eas_node *t, const eas_node *of);
void dc_outside(work *w, int n, eas_node **nodes); /* what the body captures, in place of its placeholders */
void dc_loop(gbuild *g, eas_loop *l, bool flagged, eas_node **made); /* results are kept by the build */

#endif
