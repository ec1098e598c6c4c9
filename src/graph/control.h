/* control.h: what the files of loops and branches share: functions cut out of the graph (control_cut.c).
 *
 * To cut means to copy the nodes below some results into a function of placeholders that shares no node with
 * the graph it was recorded in. A node is inside if it depends on one of the placeholders that the function
 * begins with (of a loop), or if it was recorded while the branch was open (of a branch). A node outside that
 * the function reads becomes one more input: it is captured.
 */
#ifndef GRAPH_CONTROL_H
#define GRAPH_CONTROL_H

#include "graph.h"

/* What stands for a node of the graph inside the function. */
typedef struct twin {
    const eas_node *from;
    eas_node *to; /* NULL: outside, not asked for yet */
    uint32_t id; /* for the key */
    bool inside;
} twin;

/* One function that is being cut out. Begin with zeros and the fields `replace` to `nin`; cut_grow before
 * cut_note. The first error stays in st, and later calls do nothing. */
typedef struct cutting {
    twin *table; /* hash table from nodes to twins */
    uint32_t ntable, used;
    bool replace; /* only puts other nodes in place of some: what is outside stays */
    bool all; /* and looks at everything, not only at what depends on placeholders */
    unsigned branch; /* nodes recorded with that many open branches are inside; 0: it does not matter */
    int nin;
    VEC(eas_node *) captured; /* borrowed: inputs, from nin on */
    VEC(eas_node *) numbers, values; /* the private ones; what gives their value (borrowed) */
    VEC(eas_node *) made; /* counted here */
    uint64_t key[2]; /* hash of the function's structure: equal functions have equal keys */
    eas_status st;
} cutting;

void cut_mix(cutting *c, uint64_t v); /* into the key */
bool cut_grow(cutting *c);
void cut_note(cutting *c, const eas_node *n, eas_node *to, bool inside); /* `to` stands for n */
eas_node *cut_placeholder(cutting *c, const eas_node *like, int index); /* input `index` of the function */
eas_node *cut_node(cutting *c, eas_node *root); /* root as it is inside, borrowed */
eas_status cut_fn(cutting *c, int n, eas_node *const *outs,
                  graph_fn *fn); /* the function with these results */
void cut_free(cutting *c);

/* control.c: makes the node of a loop or branch from what was cut, and its results. first: the inputs before
 * those that were captured. */
eas_status control_record(cutting *c, graph_control *k, uint16_t op, eas_node *const *first, int nouts,
                          const struct node_out *outs, const uint8_t *batch_dims, eas_node **results);
const char *control_type_text(const eas_node *n, char *buf, size_t room); /* "f32(2, 3)", for messages */
bool control_same_type(const eas_node *a, const eas_node *b);

#endif
