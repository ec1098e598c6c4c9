/* graph.h: lazy tensors as a graph of nodes.
 *
 * A node is an operation that was recorded, or data. Nodes are immutable but for one step: exec gives a
 * recorded node its data, and the node lets go of its inputs (unless it is traced). Shapes are physical: the
 * first batch_dims dims are those that vmap put there, the rest is what the user sees. Axes in a node's words
 * are physical too; rules turn the user's logical ones into them.
 *
 *   dim.c         sizes that are expressions in symbols
 *   node.c        nodes: memory, reference counts, properties
 *   node_number.c numbers as nodes
 *   node_call.c   nodes with several results: calls of kernels and host functions, collectives
 *   control.c     loops and branches as nodes
 *   control_loop.c, control_cut.c   loops; functions that are cut out of the graph
 *   hoist.c       products that a loop does row by row, done once before it
 *   shard.c       how tensors lie on a mesh: rules of operations, and specs that follow from specs
 *   call_share.c  how a call of a kernel can be cut along a mesh, as its user tells
 *   op.c          the table of operations (op.def), promotion of dtypes
 *   op_<family>.c the rules of one family of operations
 *   rule.c        what the families share: attributes, batch dims, building of expansions
 *   function.c    the elementary functions that kernels take from op_map.c
 *   diff.c        derivatives: the walk; diff_kind.c, diff_map.c, diff_as.c, diff_control*.c rules;
 * diff_tape.c variables; diff_keep.c residuals of pullbacks
 */
#ifndef GRAPH_H
#define GRAPH_H

#include "../ir/ir.h"

#include <stdatomic.h>

/* What the lowering does with an operation. Rules and lowering speak of kinds; only a family's own file knows
 * its operations. */
typedef enum graph_kind {
    KIND_LEAF, /* has data. words: none (C order), or offset and strides, in elements */
    KIND_INPUT, /* a placeholder of a compiled function. words: its number */
    KIND_CONST, /* one number, rank 0. words: its bits (as ir_const_of), weak */
    /* element by element; inputs broadcast by NumPy's rule on physical shapes and have the exact dtypes that
       emit wants */
    KIND_MAP,
    KIND_CAST, /* to the node's dtype */
    KIND_RESHAPE, /* to the node's shape */
    KIND_PERMUTE, /* words: which axis of the input each axis is */
    KIND_BROADCAST, /* to the node's shape, aligned at the end */
    /* words: start per axis, then step per axis (may be negative): element i is input[start + i*step] */
    KIND_SLICE,
    KIND_PAD, /* x, fill (rank 0). words: elements before x, per axis */
    KIND_CONCAT, /* words: axis */
    KIND_UPDATE, /* x, u: x with u in place of a slice. words: start per axis, then step per axis (> 0) */
    /* sliding windows. words: n, then axis, stride, dilation of each. n dims of the windows' sizes are
       appended to the shape */
    KIND_WINDOW,
    KIND_IOTA, /* the index along an axis, in the node's dtype. words: axis */
    /* key (u64 or i64; its shape is a prefix of the node's), offset (i64, rank 0). words: eas_rand_kind.
       Elements after the prefix are counted from 0. A counter of Philox gives DRAW_LANES times 4 (2 of 64
       bits) neighbours their numbers: the first DRAW_LANES are the first ones of as many counters, the next
       are their second ones, and so on. Counters begin at the offset */
    KIND_RANDOM,
    KIND_REDUCE, /* words: keepdims, axes... (sorted) */
    KIND_ARG, /* argmax, argmin (ir: max, min): i64, the first of equals and of NaNs. words: keepdims, axis */
    KIND_SCAN, /* cumulative. words: axis, reverse */
    KIND_MATMUL, /* x (..., M, K), y (..., K, N): leading dims broadcast */
    /* x, index: words: nbatch, axis. The first nbatch dims are common; index dims replace the axis. Negative
       counts from the end */
    KIND_GATHER,
    KIND_ALONG, /* x, index of the same rank: words: axis. Other dims broadcast */
    /* x, index, updates: words: nbatch, axis, how (SCATTER_SET, ...). In the order of the indices */
    KIND_SCATTER,
    KIND_SORT, /* sort, argsort (stable; NaN last). words: axis, descending, 1 for indices */
    /* truth (..., N), and for each part of its last dim how many are true up to its end, and in it: the
       places of the true ones, then N. words: length of a part */
    KIND_COMPACT,
    /* its first input, under another name or with other batch_dims; inputs after it are for looking at */
    KIND_ALIAS,
    KIND_CALL, /* a kernel of the user's; extra says which. Its results are KIND_RESULT */
    KIND_CONTROL, /* a loop or a branch; extra->control says what runs. Its results are KIND_RESULT */
    /* devices of a mesh exchange parts; words say how (collective in graph.h). Its results are KIND_RESULT,
       one for each input */
    KIND_COLLECTIVE,
    KIND_RESULT, /* words: which */
    KIND_COMPOSITE /* expand says what it is made of */
} graph_kind;
enum { SCATTER_SET, SCATTER_ADD, SCATTER_MUL, SCATTER_MIN, SCATTER_MAX };
enum { GRAPH_MAX_RANK = EAS_MAX_RANK }; /* sets of axes are 32 bits */
enum { DRAW_LANES = 64 }; /* of KIND_RANDOM */
enum { /* flags of a node */
       NODE_TRACED = 1, /* keeps its inputs when it has data */
       /* depends on a KIND_INPUT or on a size that is a symbol: cannot be evaluated by itself */
       NODE_SYMBOLIC = 2,
       NODE_WEAK = 4, /* a Python number: takes the dtype of what it meets */
       /* depends on a variable of a derivative that is being taken: keeps its inputs when it has data */
       NODE_TAPED = 8,
       NODE_FIXED = 16, /* of KIND_CONST: part of the structure of whatever it is in */
       NODE_BRANCH = 32, /* to 512: how many branches were open when it was recorded, BRANCH_MOST at most */
       /* it, or something that it was recorded from, lies in parts on a mesh: src/dist evaluates it */
       NODE_SHARDED = 1024
};
#define NODE_KEEPS (NODE_TRACED | NODE_TAPED)
enum { BRANCH_MOST = 31 };

struct eas_node {
    /* all references; in the upper half those of users (public retain and release) */
    _Atomic uint64_t counts;
    uint16_t op;
    uint8_t dtype, rank;
    uint8_t batch_dims, room; /* room: of its memory, in steps of the allocator; 0: a block of its own */
    uint16_t flags, nin, nwords;
    uint32_t site; /* where it was recorded; 0: unknown */
    uint32_t depth; /* of what was recorded since there was data */
    uint32_t mark, epoch; /* exec's, under its lock */
    eas_device *device; /* NULL: any */
    _Atomic(eas_buffer *) buf; /* data: in C order unless KIND_LEAF says otherwise */
    void *user; /* of the language above: not counted */
    /* of a KIND_COMPOSITE, once somebody asked; of dead nodes, the next one to free */
    struct eas_node *expansion;
    struct node_extra *extra; /* what few nodes have */
    int64_t at[]; /* shape, words, inputs */
};
typedef struct node_extra {
    void *object; /* the language's own, e.g. the operation that a user wrote, a sharding; */
    void (*drop)(void *object);
    eas_kernel *kernel; /* of KIND_CALL */
    eas_launch launch;
    /* of KIND_CALL, in place of a kernel: a function of the host's, with these numbers */
    const struct eas_native *native;
    int nnumbers;
    eas_dim *numbers;
    int nouts, nargs;
    struct node_out {
        eas_dtype dtype;
        int rank;
        const eas_dim *shape;
    } *outs;
    int8_t *order; /* of KIND_CALL, per parameter: the number of an input (>= 0) or of an output (-1 - i) */
    /* of KIND_CALL, per output: what it holds before the launch, EAS_BEGIN_* or the number of an input; NULL:
     * anything */
    int8_t *begin;
    struct call_share *share; /* of KIND_CALL: how it can be cut; counted, NULL: not told */
    struct graph_control *control; /* of KIND_CONTROL; outs as of calls */
    struct node_rule *rule; /* of GRAPH_CUSTOM: the user's derivative; all results of one call share it */
    struct eas_pullback *pullback; /* of the result of one, while it has no data; counted */
    /* of KIND_CONTROL: a node that gives the same results, and more behind them, as a derivative needs them;
     * counted */
    eas_node *_Atomic wider;
} node_extra;
typedef struct node_rule { /* counted; see eas_nodes_custom */
    _Atomic uint32_t refs;
    int nout;
    eas_vjp_rule vjp;
    eas_jvp_rule jvp;
    void *ctx;
    void (*drop)(void *ctx);
    /* no rule but a wish: these results, counted, are computed again for a reverse derivative */
    eas_node **again;
} node_rule;
/* call_share.c: what eas_node_call_rule told. */
typedef struct call_share {
    _Atomic uint32_t refs;
    bool lanes; /* of vmap's lanes alone: a kernel that is proved element-wise can be cut further */
    bool has_grid;
    int ntensors;
    uint64_t hash; /* of all that follows */
    eas_shard_rule *rule; /* tensors: inputs, then outputs */
    eas_dim *sizes, *numbers; /* per factor: its symbol; per input: the number, or DIM_NONE */
    eas_dim grid[3];
    uint8_t *sums; /* per output */
} call_share;
void call_share_release(call_share *s);
call_share *call_share_retain(call_share *s);
/* of a call: all that makes its launch another one, but for inputs and shapes */
uint64_t node_call_key(const node_extra *e);
/* What a loop or a branch runs: functions of placeholders, which share no node with the graph around them.
 * Placeholder i is input i of the KIND_CONTROL. Counted. */
typedef struct graph_fn {
    int n;
    eas_node **outs;
} graph_fn;
typedef struct graph_control {
    _Atomic uint32_t refs;
    uint64_t key[2]; /* of the structure */
    bool branch; /* fn[1] where input 0 holds, else fn[0]. A loop: fn[0] is one trip */
    bool reverse; /* the last element first */
    bool conditional; /* a trip follows while carried value 0 holds */
    /* inputs: carried, scanned (an element each trip), others. Results of a trip: carried, stacked */
    int ncarried, nscanned, nstacked;
    eas_dim length; /* trips, at most; DIM_NONE: any number */
    int nin; /* inputs with memory; numbers[i] has the value of input nin + i */
    int nnumbers;
    eas_node **numbers;
    graph_fn fn[2];
} graph_control;

/* Words of a GRAPH_SHARD, and of a GRAPH_INPUT after its number: the mesh's number and flags, axes that are
 * not to be used, then one for each dim. A GRAPH_SHARD with a second input has none for dims: it lies as that
 * input does, dims that it has in front as they like. */
enum { SHARD_MESH, SHARD_REPLICATED, SHARD_DIMS, SHARD_AXES = 12 };
#define SHARD_PAD ((int64_t)1 << 32) /* of the first word: sizes need not divide */
/* Of a dim: how many axes (8 bits), open (bit 8: whatever it is), then 4 bits for each axis. */
#define SHARD_OPEN ((int64_t)1 << 8)
/* Words of a GRAPH_COLLECTIVE. */
typedef enum coll_kind { COLL_GATHER, COLL_REDUCE, COLL_SCATTER, COLL_EXCHANGE, COLL_PERMUTE } coll_kind;
typedef enum coll_join { JOIN_SUM, JOIN_PROD, JOIN_MAX, JOIN_MIN, JOIN_AND, JOIN_OR } coll_join;
/* axes as a dim's; pairs: how many (from, to) follow; then the rank and the sizes of the input */
enum { COLL_KIND, COLL_JOIN, COLL_MESH, COLL_AXES, COLL_SITE, COLL_PAIRS, COLL_WORDS };
static inline int64_t coll_rank_at(const int64_t *words) { return COLL_WORDS + 2 * words[COLL_PAIRS]; }
static inline int64_t coll_nwords(const int64_t *words)
{
    return coll_rank_at(words) + 1 + words[coll_rank_at(words)];
}

static inline const eas_dim *node_shape(const eas_node *n) { return n->at; }
static inline const int64_t *node_words(const eas_node *n) { return n->at + n->rank; }
static inline eas_node **node_in(const eas_node *n) { return (eas_node **)(n->at + n->rank + n->nwords); }

/* One call of an operation, as a rule sees it. attr: what the signature lists after the tensors, flattened
 * (see op.def). */
typedef struct graph_row graph_row;
typedef struct graph_call {
    uint16_t op;
    const graph_row *row;
    eas_node *const *in;
    int nin;
    const int64_t *attr;
    int nattr;
} graph_call;
/* checks, infers shape and dtype, records */
typedef eas_status (*graph_make)(const graph_call *c, eas_node **out);
typedef eas_status (*graph_expand)(eas_node *n, eas_node *const *in,
                                   /* the same in simpler operations; in: what stands for n's inputs */
                                   eas_node **out);
/* kernel code of a KIND_MAP; dt: the node's */
typedef eas_value (*graph_emit)(eas_builder *b, const eas_value *x, eas_dtype dt);
/* Derivatives: see diff.c. each: what tangent t of input i gives the tangent of n. as: a node with n's
 * derivatives, whatever its value; NULL: as LINEAR. */
typedef struct gbuild gbuild;
typedef eas_node *(*diff_each)(gbuild *g, eas_node *n, int i, eas_node *t);
typedef eas_node *(*diff_as)(gbuild *g, eas_node *n);
enum diff_how { DIFF_ZERO, DIFF_EACH, DIFF_LINEAR, DIFF_EXPAND, DIFF_AS };
typedef struct graph_diff {
    uint8_t how;
    /* of DIFF_EXPAND: a quicker way back, or NULL. Called without g it says whether it has one for input i,
     * by a node or NULL */
    diff_each each;
    diff_as as;
} graph_diff;
/* factors of the dims of inputs and result; see shard.c */
typedef eas_status (*graph_shard)(eas_node *n, eas_shard_rule *rule);
struct graph_row {
    const char *name;
    uint8_t kind;
    graph_make make;
    /* KIND_MAP: the instruction; KIND_REDUCE, KIND_SCAN, KIND_ARG: the one that joins; else NULL */
    const char *ir;
    graph_emit emit; /* KIND_MAP without one */
    graph_expand expand; /* KIND_COMPOSITE */
    graph_diff diff;
    graph_shard shard;
    const char *sig, *doc;
};
enum {
#define OP(NAME, ...) GRAPH_##NAME,
#include "op.def"
#undef OP
    GRAPH_NOPS
};
extern const graph_row graph_rows[GRAPH_NOPS];
static inline graph_kind node_kind(const eas_node *n) { return (graph_kind)graph_rows[n->op].kind; }
static inline bool node_real(const eas_node *n)
{
    return atomic_load_explicit(&n->buf, memory_order_acquire) != NULL;
}

enum { NODE_REF = 1 };
#define NODE_HANDLE ((uint64_t)1 << 32 | NODE_REF)
static inline uint32_t node_refs(const eas_node *n)
{
    return (uint32_t)atomic_load_explicit(&n->counts, memory_order_acquire);
}
static inline bool node_held(const eas_node *n)
{
    return atomic_load_explicit(&n->counts, memory_order_relaxed) >> 32 != 0;
}
/* The first reference becomes a user's: nobody else has seen the node. */
static inline void node_hand_out(eas_node *n)
{
    atomic_store_explicit(&n->counts, NODE_HANDLE, memory_order_relaxed);
}

/* ---- dim.c ---- */
static inline bool dim_known(eas_dim d) { return d >= 0; }
/* Numbers of expressions lie below DIM_LOWEST: small negative numbers (-1 in a reshape) are not taken for
 * one. DIM_NONE is None in attributes. */
#define DIM_NONE INT64_MIN
#define DIM_LOWEST (-((int64_t)1 << 62))
static inline bool dim_is_expr(eas_dim d) { return d < DIM_LOWEST && d != DIM_NONE; }
eas_dim dim_product(int n, const eas_dim *d); /* DIM_NONE: failed */
/* a / b if that is exact for every value of the symbols; else -1 and false. */
bool dim_divides(eas_dim a, eas_dim b, eas_dim *out);
/* Is d scale*symbol + offset? */
/* Equal, or taken for equal by whoever traces (eas_dim_set_decider). */
bool dim_agrees(eas_dim a, eas_dim b);
bool dim_linear(eas_dim d, eas_dim *symbol, int64_t *scale, int64_t *offset);
/* The value of d where symbols[i] is values[i]. */
eas_status dim_eval(eas_dim d, int n, const eas_dim *symbols, const int64_t *values, int64_t *out);
/* The most that d can be, given the bounds of symbols that this thread has set; DIM_ANY: there is no bound.
 */
#define DIM_ANY INT64_MAX
int64_t dim_most(eas_dim d);
void dim_bound(int n, const eas_dim *symbols, const int64_t *most); /* borrowed; n = 0: none */
void dim_add_text(str *s, eas_dim d);
void shape_add_text(str *s, int rank, const eas_dim *shape); /* "(2, batch)" */
const char *shape_text(char *buf, size_t n, int rank, const eas_dim *shape); /* for messages */

/* ---- node.c ---- */
/* A node of op with that shape and dtype; the inputs are counted by it; flags, device and depth follow from
 * them, batch_dims is given. */
eas_status node_new(uint16_t op, eas_dtype dt, int batch_dims, int rank, const eas_dim *shape, int nwords,
                    const int64_t *words, int nin, eas_node *const *in, eas_node **out);
eas_node *node_ref(eas_node *n); /* counted from inside the graph */
void node_unref(eas_node *n);
/* exec: n has its data now (counted by n). Lets the inputs go unless n is traced. */
void node_settle(eas_node *n, eas_buffer *buf);
void node_cut(eas_node *n); /* lets its inputs go if it has data and nobody needs them */
/* equal ones are usually one node */
eas_status node_const(eas_dtype dt, bool weak, int64_t bits, eas_node **out);
eas_status node_const_double(eas_dtype dt, bool weak, double v, eas_node **out); /* v in dt */
bool node_const_bits(const eas_node *n, int64_t *bits); /* is it a KIND_CONST? */
bool graph_site(uint32_t site, char *file, size_t room, int *line);
/* where it was recorded, if that is known */
bool node_place(const eas_node *n, char *file, size_t room, int *line);
uint64_t node_live(void); /* how many there are */
/* While a composite is expanded: numbers made meanwhile are part of what the composite means, those of its
 * inputs may be others at the next run. So the former get nodes of their own, and the latter are not computed
 * with. */
extern _Thread_local bool node_expanding;
eas_status node_fail(eas_status st, const graph_call *c, const char *fmt, ...)
    BASE_PRINTF(3, 4); /* "eager.<op>: ..." */

/* of a KIND_CONST: is the number part of the structure of what it is in? Else it is given at each run */
bool node_fixed(const eas_node *n);
unsigned node_branches(void); /* that are open on this thread */
void node_open_branches(int by);
/* A loop or branch (c is counted by it) and its results. batch_dims: one each. */
eas_status node_control(uint16_t op, int nin, eas_node *const *in, graph_control *c, int nouts,
                        const struct node_out *outs, const uint8_t *batch_dims, eas_node **results);
/* A collective over tensors: one result each. The result of COLL_GATHER has one more dim in front, that of
 * COLL_SCATTER one less; else it is as its input. */
eas_status node_collective(int nwords, const int64_t *words, int n, eas_node *const *in, int64_t group,
                           eas_node **results);
eas_status node_extra_copy(const node_extra *e, node_extra **out); /* what it says of kernels and loops */
void node_extra_free(node_extra *e);
void node_forget_numbers(void); /* node_number.c: the thread ends */
/* A call of a function of the host's. Results are counted as users count. */
eas_status node_native(const struct eas_native *fn, int nin, eas_node *const *in, int nouts,
                       const eas_node_type *outs, int nnumbers, const eas_dim *numbers, eas_node **results);

/* ---- shard.c ---- */
/* The rule of a result of a call, for the call's inputs and it (*out NULL: there is none); src/dist sets it
 * when something is first laid out on a mesh. */
extern eas_status (*shard_call_rule)(eas_node *result, eas_shard_rule **out);

/* ---- control.c ---- */
void control_release(graph_control *c);
/* A loop as its node has it: scanned tensors with the trips as their first dim; flagged: carried value 0 says
 * whether a trip follows. made: carried values, then what is stacked. */
eas_status control_loop(const eas_loop *l, bool flagged, eas_node **made);
/* hoist.c: the loop with products of all trips done before it; borrows from l and from g. nodes is the
 * caller's to free. */
typedef struct hoisted {
    eas_loop loop;
    eas_node **nodes;
} hoisted;
eas_status loop_hoist(struct gbuild *g, const eas_loop *l, hoisted *h);
/* the placeholders of what runs, by number; NULL: not used. Borrowed */
eas_status control_inputs(const graph_control *c, int which, eas_node **in);
/* nodes[i] with to[k] in the place of from[k], kept by g. all: of nodes that depend on no placeholder, too.
 */
eas_status control_replace(gbuild *g, int nfrom, eas_node *const *from, eas_node *const *to, int n,
                           eas_node **nodes, bool all);
/* A result of a node with several: that node and which, of the one that computes them all if there is one. */
eas_node *control_source(const eas_node *result, int *index);

/* ---- op.c ---- */
/* One rule wherever a Python number (a weak constant) meets a dtype: it must fit. Casts are explicit. */
eas_status graph_number_fits(const graph_call *c, const eas_node *x, eas_dtype dt);
/* JAX's lattice; weak ones give way. *weak: is the result weak? */
/* What changes nothing when it is joined with `join` (add, mul, min, max, and, or, xor): the bits, as
 * constants have them. */
int64_t graph_neutral(const char *join, eas_dtype dt);
eas_dtype graph_promote(eas_dtype a, bool weak_a, eas_dtype b, bool weak_b, bool *weak);
/* what eas_node_apply does */
eas_status graph_apply(uint16_t op, int nin, eas_node *const *in, int nattr, const int64_t *attr,
                       eas_node **out);
/* x in dtype dt: itself, a constant of that dtype, or a cast. Counted. */
eas_status graph_cast(eas_node *x, eas_dtype dt, eas_node **out);
/* Batch dims brought together: out[i] is in[i], or in[i] reshaped so that physical shapes align as the
 * logical ones do with the largest batch_dims in front. Counted. *batch_dims: the largest. */
eas_status graph_align(const graph_call *c, int n, eas_node *const *in, eas_node **out, int *batch_dims);
/* NumPy's broadcasting of physical shapes; fails with the op's name and the logical shapes. */
eas_status graph_broadcast(const graph_call *c, int n, eas_node *const *in, int *rank, eas_dim *shape);
/* A logical axis (negative: from the end of `rank` logical ones) to a physical one. */
eas_status graph_axis(const graph_call *c, const eas_node *x, int64_t axis, int *out);
static inline int node_logical_rank(const eas_node *n) { return n->rank - n->batch_dims; }
static inline const eas_dim *node_logical_shape(const eas_node *n) { return node_shape(n) + n->batch_dims; }

/* Sticky building for rules: after a failure every call gives NULL and the status stays. Every node made is
 * let go by gb_done, which hands over the result. So expansions read as formulas. */
struct gbuild {
    eas_status st;
    VEC(eas_node *) made;
    int lanes; /* of derivatives: see diff.c */
};
eas_node *gb_apply(gbuild *g, uint16_t op, int nin, eas_node *const *in, int nattr, const int64_t *attr);
eas_node *gb1(gbuild *g, uint16_t op, eas_node *x);
eas_node *gb2(gbuild *g, uint16_t op, eas_node *x, eas_node *y);
eas_node *gb3(gbuild *g, uint16_t op, eas_node *x, eas_node *y, eas_node *z);
eas_node *gb_num(gbuild *g, const eas_node *like, double v); /* in like's dtype */
eas_node *gb_int(gbuild *g, eas_dtype dt, int64_t v);
eas_node *gb_cast(gbuild *g, eas_node *x, eas_dtype dt);
eas_node *gb_new(gbuild *g, uint16_t op, eas_dtype dt, int batch_dims, int rank, const eas_dim *shape,
                 int nwords, const int64_t *words, int nin, eas_node *const *in);
eas_status gb_done(gbuild *g, eas_node *result, eas_node **out);

/* ---- rule.c: what rules outside op_map.c share ---- */
/* Axes and shapes here are physical; views and reductions keep x's batch dims unless told. In makes, `c` is
 * in the messages; expansions have none. */
typedef struct dims {
    int n;
    eas_dim at[2 * GRAPH_MAX_RANK + 2];
} dims;
/* A make reads its attributes in order; sticky like gbuild, which it holds. */
typedef struct rule {
    gbuild g;
    const graph_call *c;
    int at;
    bool physical; /* axes and shapes count batch dims too */
} rule;
rule rule_begin(const graph_call *c, int least, int most); /* so many tensors; most < 0: any number */
void rule_fail(rule *r, const char *fmt, ...) BASE_PRINTF(2, 3); /* ERR_VALUE */
void rule_type_fail(rule *r, const char *fmt, ...) BASE_PRINTF(2, 3); /* ERR_TYPE */
int64_t rule_int(rule *r);
double rule_float(rule *r);
eas_dtype rule_dtype(rule *r);
int rule_list(rule *r, const int64_t **items); /* how many; -1: None */
dims rule_shape(rule *r); /* sizes: none negative */
int rule_axis(rule *r, const eas_node *x);
uint32_t rule_axes(rule *r, const eas_node *x); /* a bit for each; None: all logical ones */
int rule_axis_of(rule *r, const eas_node *x, int64_t axis);
/* the first axis that can be spoken of */
static inline int rule_base(const rule *r, const eas_node *x) { return r->physical ? 0 : x->batch_dims; }
const char *rule_text(const eas_node *x, char buf[128]); /* the logical shape */
/* Records c's operation and ends the rule. */
eas_status rule_node(rule *r, eas_dtype dt, int batch_dims, int rank, const eas_dim *shape, int nwords,
                     const int64_t *words, int nin, eas_node *const *in, eas_node **out);
eas_status rule_done(rule *r, eas_node *result, eas_node **out);
/* Batch dims in front of x, of size 1, until there are n. */
eas_node *gb_lift(gbuild *g, eas_node *x, int batch_dims);
/* All inputs with the same batch dims, size 1 where they have none; their number. */
int gb_align_batch(gbuild *g, int n, eas_node *const *in, eas_node **out);
/* What the batch dims of the inputs (aligned) broadcast to. */
void gb_batch_shape(gbuild *g, int n, eas_node *const *in, int batch_dims, eas_dim *shape);

eas_dim gb_dim(gbuild *g, eas_dim_op op, eas_dim a, eas_dim b);
eas_dim gb_product(gbuild *g, int n, const eas_dim *d);
eas_node *gb_size(gbuild *g, eas_dim d, eas_dtype dt); /* a size as a number of rank 0 */
eas_node *gb_reshape(gbuild *g, eas_node *x, int batch_dims, int rank, const eas_dim *shape);
eas_node *gb_unsqueeze(gbuild *g, eas_node *x, int axis);
eas_node *gb_squeeze(gbuild *g, eas_node *x, int axis);
eas_node *gb_permute(gbuild *g, eas_node *x, const int *order);
eas_node *gb_move(gbuild *g, eas_node *x, int from, int to);
eas_node *gb_broadcast(gbuild *g, eas_node *x, int batch_dims, int rank, const eas_dim *shape);
eas_node *gb_slice(gbuild *g, eas_node *x, int axis, eas_dim start, eas_dim size, int64_t step);
eas_node *gb_concat(gbuild *g, int axis, int n, eas_node *const *in);
eas_node *gb_iota(gbuild *g, eas_dim size, eas_dtype dt); /* 0, 1, ... of rank 1 */
/* with `after` dims of size 1 behind */
eas_node *gb_iota_at(gbuild *g, eas_dim size, eas_dtype dt, int after);
/* no dtype changes; without axes the result is x itself */
eas_node *gb_reduce(gbuild *g, uint16_t op, eas_node *x, uint32_t axes, bool keep);
eas_node *gb_gather(gbuild *g, eas_node *x, eas_node *index, int nbatch, int axis);
eas_node *gb_take(gbuild *g, eas_node *x, eas_node *index, int64_t axis); /* take_along_axis */
eas_node *gb_typed(gbuild *g, eas_node *x, eas_dtype dt); /* gb_cast, where it is needed */
eas_node *gb_spread(gbuild *g, eas_node *x, int rank); /* a number per batch, against `rank` logical dims */
eas_dtype graph_wide_dtype(eas_dtype dt); /* a float dtype that holds dt's numbers, for integers too */
eas_dtype graph_compute_dtype(eas_dtype dt); /* f32 for halves: what composites compute in */

/* ---- diff_build.c: derivatives are built by gd_*. What a tangent's dims are is told in diff.c ---- */
eas_node *gd1(gbuild *g, uint16_t op, eas_node *x);
/* element by element, physical shapes aligned at the end */
eas_node *gd2(gbuild *g, uint16_t op, eas_node *x, eas_node *y);
eas_node *gd_where(gbuild *g, eas_node *c, eas_node *x, eas_node *y);
/* a number that is part of the structure, not one of the user's, whose value may change from run to run */
eas_node *gd_num(gbuild *g, const eas_node *like, double v);
eas_node *gd_const(gbuild *g, eas_dtype dt, double v);
eas_node *gd_fill(gbuild *g, eas_dtype dt, double v, int batch_dims, int rank, const eas_dim *shape);
eas_node *gd_rebatch(gbuild *g, eas_node *x, int batch_dims); /* the same with other batch_dims */
eas_node *gd_stop(gbuild *g, eas_node *x); /* the same, as a constant */
/* t, a tangent of something with `of` batch dims, aligned with a node of these batch dims and that many
 * logical ones: dims of size 1 go in where t has none. */
eas_node *gd_aligned(gbuild *g, eas_node *t, int of, int batch_dims, int logical);
eas_node *gd_full(gbuild *g, eas_node *t, const eas_node *n); /* t, aligned, broadcast to n's dims */
int gd_extras(const gbuild *g, const eas_node *t,
              /* dims of t, a tangent of something with `of` batch dims, that are neither batch dims of that
                 nor lanes */
              int of);
/* dims that t has in front of x's */
static inline int gd_extra(const eas_node *t, const eas_node *x) { return t->rank - x->rank; }
bool diff_float(const eas_node *n);
void diff_rule_release(node_rule *r);

/* diff_tape.c: a set of nodes; free its array. A node is added once */
typedef struct diff_set {
    const eas_node **at;
    uint32_t n, size;
} diff_set;
bool diff_set_has(const diff_set *s, const eas_node *n);
void diff_set_add(gbuild *g, diff_set *s, const eas_node *n);
typedef VEC(eas_node *) diff_nodes;
/* diff_keep.c: what pullbacks need of results among what the roots are made of: to be computed with them.
 * Adds handles. */
eas_status diff_residuals(int n, eas_node *const *roots, diff_nodes *out);
void diff_pullback_drop(eas_pullback *p); /* of a result that has data now, or goes */

/* diff_kind.c: kinds that are linear */
/* the tangent of n, from those of its inputs (NULL: zero) */
eas_node *diff_forth(gbuild *g, eas_node *n, eas_node *const *t);
bool diff_in_body(void); /* is the body of a loop or a branch being differentiated? diff_control.c */
eas_node *
diff_back(gbuild *g, eas_node *n, int i,
          /* what cotangent ct of n adds to that of input i, before it is summed over what was broadcast */
          eas_node *ct);

/* diff_control.c, diff_control_back.c: loops and branches. One entry for each input or result; NULL: zero */
eas_status diff_control_forth(gbuild *g, eas_node *n, eas_node *const *t, eas_node **out);
eas_status diff_control_back(gbuild *g, eas_node *n, eas_node *const *ct, const bool *wanted,
                             eas_node **grads);

/* ---- op_<family>.c ---- */
/* Declared here from the table; a rule that is missing is spelled none, fails and says so. */
#define DIFF_DECLARE_EACH(f) eas_node *each_##f(gbuild *g, eas_node *n, int i, eas_node *t);
#define DIFF_DECLARE_AS(f) eas_node *as_##f(gbuild *g, eas_node *n);
#define DIFF_DECLARE_BACK(f) eas_node *back_##f(gbuild *g, eas_node *n, int i, eas_node *ct);
#define DIFF_DECLARE_LINEAR
#define DIFF_DECLARE_EXPAND
#define DIFF_DECLARE_ZERO
#define OP(NAME, name, kind, make, ir, emit, expand, diff, shard, sig, doc) \
    eas_status make_##make(const graph_call *c, eas_node **out); \
    eas_value emit_##emit(eas_builder *b, const eas_value *x, eas_dtype dt); \
    eas_status expand_##expand(eas_node *n, eas_node *const *in, eas_node **out); \
    DIFF_DECLARE_##diff eas_status shard_##shard(eas_node *n, eas_shard_rule *rule);
#include "op.def"
#undef OP

#endif
