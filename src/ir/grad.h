/* grad.h: derivatives of kernels: what grad.c, grad_rule.c, grad_scan.c, grad_place.c, grad_facts.c,
 * grad_reverse.c, grad_loop.c, grad_jvp.c and prune.c share.
 *
 * The adjoint of a value is the derivative of the result with respect to it, its tangent the derivative of it
 * along a direction. Both are kept in `adj`, by value of the primal kernel; those of f16 and bf16 are f32. 0:
 * none, which stands for zero.
 */
#ifndef GRAD_H
#define GRAD_H

#include "ir.h"

enum { GRAD_MAX_LOOPS = 64 };

/* What the kernel that is built does with a parameter of the primal kernel. */
typedef struct grad_buf {
    bool of, wrt; /* of: its cotangent is given; wrt: its gradient is wanted */
    bool shared; /* in place: one array is the cotangent first and the gradient afterwards */
    /* of: an element is set to 0 once it was read, since an earlier store may have written it too */
    bool consumed;
    uint32_t ct, grad; /* values of the new kernel: cotangent and gradient, or tangent in both; 0: none */
    uint32_t owner; /* which lane of a store came last; 0: not needed */
    uint32_t length; /* deterministic: elements of the gradient; 0: no part for each program */
} grad_buf;

/* A threadgroup array of the primal kernel: a part of two buffers for each program. */
typedef struct grad_local {
    uint32_t value; /* of the primal kernel */
    /* parameters of the new one; adj 0: nothing varies in it; owner 0: lanes of its stores never meet */
    uint32_t data, adj, owner;
    uint32_t start; /* where this program's part begins */
    int64_t size;
} grad_local;

typedef struct grad_tape {
    uint32_t loop; /* index of its opener */
    int carried; /* which carried value; -1 - i: the content of local array i */
    uint32_t param; /* in the new kernel */
    bool dropped; /* found to be unread */
} grad_tape;

/* What a build found out for the next one. */
typedef struct grad_known {
    VEC(grad_tape) tapes;
} grad_known;

struct eas_grad {
    eas_ir *ir; /* the derivative */
    eas_ir *primal; /* as it was given */
    eas_grad_param *params;
    int nparams;
    uint32_t loops[GRAD_MAX_LOOPS]; /* per taped loop: its opener in `primal` */
    int nloops;
    int64_t max_trips;
};

typedef struct gradder {
    /* from the primal kernel, in SPMD form for reverse mode; map has the copy that was computed last */
    ir_rewrite w;
    const eas_ir *primal; /* as it was given */
    const uint32_t *origin; /* per instruction of ir: the one of primal; NULL: they are the same */
    const eas_grad_options *opt;
    ir_regions at;
    bool *varied; /* depends on a value that is differentiated with respect to */
    bool *useful; /* of those: something that is stored depends on it */
    uint8_t *sign; /* 1: never negative; 2: never below some positive number */
    bool *risky; /* may be infinite or NaN in lanes that are masked off, though everything loaded is finite */
    uint8_t *axes; /* per value: bits of the program axes that it depends on */
    ir_range *range;
    uint32_t *adj;
    grad_buf *buf; /* per parameter */
    VEC(grad_local) locals;
    VEC(grad_tape) tapes;
    uint32_t trips[GRAD_MAX_LOOPS]; /* parameters: the most trips a loop may take */
    uint32_t loops[GRAD_MAX_LOOPS]; /* openers that have a tape */
    int nloops;
    uint32_t *went; /* per opener: how often the loop went round, in the new kernel */
    uint32_t program, programs; /* number of this program over all axes */
    VEC(eas_grad_param) params;
    eas_status status;
} gradder;

/* ---- grad.c ---- */
/* with the line of `in` */
eas_status grad_fail(gradder *g, const ir_insn *in, const char *fmt, ...) BASE_PRINTF(3, 4);
grad_local *grad_local_of(gradder *g, uint32_t value); /* NULL: not a threadgroup array */
uint32_t grad_param(gradder *g, const char *name, ir_type t, eas_grad_param what);
eas_dtype grad_dtype(eas_dtype dt); /* of adjoints: f32 for halves */
ir_type grad_type(ir_type t);
static inline const uint32_t *gargs(const gradder *g, const ir_insn *in) { return ir_args(g->w.from, in); }
static inline bool gfloat(const gradder *g, uint32_t v)
{
    ir_type t = ir_typeof(g->w.from, v);
    return t.kind == IR_VAL && dtype_is_float((eas_dtype)t.dtype);
}
/* of a value of the new kernel */
static inline ir_type gnew(const gradder *g, uint32_t v) { return g->w.b->ir->vals[v].type; }
static inline bool gactive(const gradder *g, uint32_t v) { return g->varied[v] && g->useful[v]; }

/* ---- small builders over the new kernel (grad_rule.c) ---- */
uint32_t g_op(gradder *g, uint16_t op, uint32_t x, uint32_t y);
uint32_t g_num(gradder *g, ir_type t, double v);
uint32_t g_int(gradder *g, eas_dtype dt, int64_t v);
uint32_t g_where(gradder *g, uint32_t c, uint32_t x, uint32_t y);
uint32_t g_cast(gradder *g, uint32_t x, eas_dtype dt);
uint32_t g_wide(gradder *g, uint32_t v); /* the copy of a primal value in the dtype of its adjoint */
uint32_t g_load(gradder *g, uint32_t buf, uint32_t off, uint32_t mask);
void g_store(gradder *g, uint32_t buf, uint32_t off, uint32_t x, uint32_t mask);
uint32_t g_reduce(gradder *g, uint16_t op, uint32_t x, int axis);
uint32_t g_spread(gradder *g, uint32_t x, ir_type t, int axis); /* x has no axis `axis`: repeated along it */
uint32_t g_sum_to(gradder *g, uint32_t x, ir_type t); /* sums over what a broadcast from t repeated */

/* ---- grad_rule.c ---- */
void grad_add(gradder *g, uint32_t v, uint32_t x); /* adj[v] += x */
bool grad_has_rule(uint16_t op);
/* Contributions of an instruction whose result has an adjoint to those of its operands; false: it has no
 * rule. */
bool grad_transpose(gradder *g, const ir_insn *in);
/* The tangent of its result; 0: zero. */
uint32_t grad_tangent(gradder *g, const ir_insn *in, bool *known);

/* ---- grad_scan.c: along an axis ---- */
uint32_t grad_reduce_back(gradder *g, const ir_insn *in, uint32_t ct);
uint32_t grad_scan_back(gradder *g, const ir_insn *in, uint32_t ct);
uint32_t grad_reduce_tangent(gradder *g, const ir_insn *in, uint32_t t);
uint32_t grad_scan_tangent(gradder *g, const ir_insn *in, uint32_t t);

/* ---- grad_place.c: which elements an access touches ---- */
/* is every lane that is on at another element? */
bool grad_lanes_differ(gradder *g, uint32_t off, uint32_t mask);
bool grad_programs_differ(gradder *g, uint32_t insn); /* does no other program read what this load reads? */

/* ---- grad_facts.c: activity and what cannot be differentiated ---- */
eas_status grad_facts(gradder *g, bool reverse);
/* are there stores in [first, last) whose adjoint counts? */
bool grad_touches(gradder *g, uint32_t first, uint32_t last);

/* ---- grad_reverse.c, grad_loop.c ---- */
void grad_forward(gradder *g, uint32_t first, uint32_t last, bool taped);
void grad_reverse(gradder *g, uint32_t first, uint32_t last);
void grad_forward_loop(gradder *g, uint32_t i, bool taped);
void grad_reverse_loop(gradder *g, uint32_t i);
void grad_forward_if(gradder *g, uint32_t i);
void grad_reverse_if(gradder *g, uint32_t i);
/* what carried value k of a loop grows by in each turn; 0: it does not just count */
uint32_t grad_counts_by(const gradder *g, uint32_t i, int k);
typedef VEC(uint32_t) grad_ids;
/* active values from before `first` that [first, last] uses */
void grad_outside(gradder *g, uint32_t first, uint32_t last, grad_ids *out);

/* ---- grad_jvp.c ---- */
void grad_jvp(gradder *g);

/* ---- grad_band.c ---- */
/* The same with two more parameters, EAS_GRAD_PROGRAMS and EAS_GRAD_BAND; *out is NULL where there is
 * nothing to gain. */
eas_status grad_banded(const eas_ir *ir, eas_ir **out);

/* ---- prune.c ---- */
/* Without carried and merged values, loops and branches that nothing needs. */
eas_status ir_prune(const eas_ir *ir, eas_ir **out);

#endif
