/* pass.h: a graph that is about to run, as one flat list: inputs before users, equal nodes once, simple
 * things done.
 *
 * eas_nodes become pnodes through pass_add, which simplifies and shares as it builds (simplify.c); composites
 * are expanded on the way (flatten.c); reductions that would leave the machine idle are split (split.c), and
 * so are products of vectors and matrices (thin.c). Nothing here computes or knows a device.
 */
#ifndef PASS_H
#define PASS_H

#include "../graph/graph.h"

#define PARAM_NONE UINT32_MAX
typedef struct pnode {
    uint16_t op;
    uint8_t kind, dtype, rank;
    /* several nodes that were recorded read it: it is not computed again in another shape */
    bool shared;
    /* of KIND_CONST: the bits are part of the structure; else param says which number of a run it is */
    bool fixed;
    uint16_t nin, nwords;
    uint32_t param;    /* of KIND_LEAF: which tensor of a run; of KIND_CONST: which number */
    uint32_t hash, next; /* of the table */
    const eas_dim *shape;
    const int64_t *words;
    const uint32_t *in;
    uint32_t site;     /* where it was recorded */
    const node_extra *extra;
} pnode;

typedef struct pgraph {
    arena mem;
    VEC(pnode) n;      /* 0 is unused */
    uint32_t *table;   /* heads of chains, by hash */
    uint32_t ntable;
    eas_status st;     /* sticky */
    uint32_t site;     /* that pass_add notes */
} pgraph;

/* ---- simplify.c ---- */
eas_status pass_init(pgraph *g);
void pass_free(pgraph *g);
/* The node that computes this: p itself if new, an equal one, or something simpler. Arrays are copied. 0
 * after a failure. */
uint32_t pass_add(pgraph *g, const pnode *p);
uint32_t pass_share(pgraph *g, const pnode *p); /* p itself or an equal one: nothing is simplified */
uint32_t pass_const(pgraph *g, eas_dtype dt, int64_t bits);
static inline const pnode *pass_at(const pgraph *g, uint32_t i) { return &g->n.at[i]; }
static inline bool pass_same_shape(const pnode *a, const pnode *b)
{
    return a->rank == b->rank && (a->rank == 0 || !memcmp(a->shape, b->shape, sizeof *a->shape * a->rank));
}
bool pass_is_const(const pgraph *g, uint32_t i, double *v); /* a number known now */

/* ---- flatten.c ---- */
/* What a run is given: tensors with data (or placeholders) and numbers, in the order of the walk. */
typedef struct pass_walk {
    VEC(eas_node *) order;   /* inputs first; nodes with data and numbers included */
    VEC(eas_node *) leaves;  /* tensors: KIND_LEAF, with data, or KIND_INPUT */
    VEC(eas_node *) numbers; /* KIND_CONST that are not part of the structure */
    VEC(uint32_t) number;    /* per position in order: which leaf or number it is; PARAM_NONE */
    VEC(uint32_t) held;      /* positions in order of recorded nodes that users hold */
    uint64_t key[2];
    uint32_t epoch;
} pass_walk;
/* Everything that roots need, from data on. One at a time: it marks the nodes. */
eas_status pass_walk_from(pass_walk *w, int n, eas_node *const *roots);
void pass_walk_clear(pass_walk *w);
/* The list; at[i] is the pnode of w->order.at[i]. */
eas_status pass_flatten(pgraph *g, const pass_walk *w, uint32_t *at);

/* ---- split.c ---- */
/* in two stages where one would be slow; 0: as it is */
uint32_t pass_split_reduce(pgraph *g, const pnode *p);
/* the dim along which elements are neighbours, as far as one can tell; -1: none */
int pass_last_in_memory(const pgraph *g, uint32_t x);

/* ---- conv.c ---- */
uint32_t pass_flat_windows(
    pgraph *g,
    /* a KIND_RESHAPE of a convolution's windows to a matrix, as one that needs no copy; 0: as it is */
    const pnode *p);

/* a KIND_MATMUL of transposed windows, in parts; 0: as it is */
uint32_t pass_filter_gradient(pgraph *g, const pnode *p);

/* ---- shape.c ---- */
/* an element-wise node of a reshape as a reshape of one; 0: as it is */
uint32_t pass_move_reshape(pgraph *g, const pnode *p);

/* ---- pads.c ---- */
/* an addition of zero-padded parts that lie side by side, as a concatenation; 0: as it is */
uint32_t pass_join_pads(pgraph *g, const pnode *p);

/* ---- attend.c ---- */
/* a KIND_REDUCE of softmax(s) * (x @ y), without that matrix; 0: as it is */
uint32_t pass_row_sums(pgraph *g, const pnode *p);

/* ---- rows.c ---- */
/* a KIND_REDUCE over a batch of products as one product; 0: as it is */
uint32_t pass_join_rows(pgraph *g, const pnode *p);

/* ---- join.c ---- */
/* a KIND_UPDATE along one axis as a KIND_CONCAT; 0: as it is */
uint32_t pass_as_concat(pgraph *g, const pnode *p);

/* ---- thin.c ---- */
uint32_t pass_reshaped(pgraph *g, uint32_t x, int rank, const eas_dim *shape); /* 0 of 0 */
uint32_t pass_turned(pgraph *g, uint32_t x); /* the last two dims exchanged */
/* a KIND_MATMUL of integers, or with one row or column, as something quicker; 0: as it is */
uint32_t pass_thin(pgraph *g, const pnode *p);

#endif
