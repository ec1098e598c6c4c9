/* exec.h: from a flat graph to kernels that run.
 *
 *   fuse.c     which nodes share a kernel; fuse_cost.c what they cost, fuse_map.c how they lie in the space
 *   index.c    the value of a node at an index: views, gathers, pads are arithmetic on indices
 *   lower.c    a group of nodes as a kernel: which dims are blocks, which are loops; parameters
 *   lower_*.c  groups around a matrix product, a scan, a scatter, a sort
 *   match_*.c  attention and its derivative, found among the nodes
 *   plan.c     kernels and memory in order: made; plan_run.c: run; plan_packs.c: what runs leave to later
 * ones program.c  compiled functions control.c  loops and branches: plans that a step of a plan runs
 *   realize.c  the front: structure found again or made
 */
#ifndef EXEC_H
#define EXEC_H

#include "../kernel/kernel.h"
#include "../pass/pass.h"

/* ---- fuse.c ---- */
/* X(NAME, text, lower, parts): its name for people; what makes its kernel (NULL: plan.c has a step of its own
 * for it); how many kernels it takes (NULL: one). */
#define GROUP_KINDS(X) \
    X(MAP, "map", lower_map, NULL) \
    X(MATMUL, "matmul", lower_product, product_parts) \
    X(SCAN, "scan", lower_scan, NULL) \
    X(SCATTER, "scatter", lower_scatter, scatter_parts_of) \
    X(SORT, "sort", lower_sort, NULL) \
    X(COMPACT, "compact", lower_compact, NULL) \
    X(CALL, "call", NULL, NULL) \
    X(ALIAS, "result", NULL, NULL) \
    X(ATTENTION, "attention", lower_attention, NULL) \
    X(CONCAT, "concatenate", lower_concat, concat_parts) \
    X(ATTENTION_BACK, "attention backward", lower_attention_back, NULL)
typedef enum group_kind {
#define EXEC_X(NAME, text, lower, parts) GROUP_##NAME,
    GROUP_KINDS(EXEC_X)
#undef EXEC_X
} group_kind;
typedef struct group_root {
    uint32_t node, value; /* stored: node; computed: value, the same elements in the group's shape */
} group_root;
typedef struct group {
    group_kind kind;
    uint32_t core; /* of other kinds than GROUP_MAP */
    uint32_t scores, inner_core; /* of GROUP_ATTENTION: what softmax is taken of, and the product in it */
    int rank;
    eas_dim space[GRAPH_MAX_RANK]; /* what is iterated over */
    uint32_t inner; /* bits: dims that are reduced or scanned along */
    VEC(group_root) roots;
    VEC(uint32_t) folds; /* reductions computed here, inputs first */
    uint32_t size; /* nodes */
    uint32_t back; /* of GROUP_ATTENTION_BACK: which of fusion.backs */
    bool packed; /* of GROUP_MATMUL: its factors are laid out for register tiles first (lower_pack.c) */
} group;
typedef struct place { /* of a node */
    uint32_t group; /* it is computed in; 0: none yet */
    bool many; /* in several: computed again in each */
    bool used, root, stored, simple;
    bool whole; /* is read by an index that is data: must have memory of its own, so that a bad one is found
                 * (or be computed from such, element by element) */
    bool taken; /* by a group that knows what to do with it */
    bool rows; /* windows that a product reads where they lie (lower_conv.c) */
    int8_t map[GRAPH_MAX_RANK]; /* simple: which dim of the group's space each dim is; -1: index 0 */
    bool heavy; /* a reduction, a product or the like is below it, or it is one */
    bool tail; /* is all that is made of a product, element by element */
    bool reads; /* reads memory: it is not made of indices and numbers alone */
    uint16_t cost; /* of an element, with what is inlined into it */
    uint16_t len; /* of the longest chain into it */
    uint8_t users; /* how many nodes read it: 0, 1, or 2 for more */
    uint8_t nways; /* at how many indices its group reads it; PLACE_WAYS + 1: more than ways[] has room for */
    uint32_t ways[4]; /* names of these indices */
    bool shared; /* a softmax that fusion.backs compute again: the maxima and sums of its rows are stored */
    uint32_t back; /* 1 + which of fusion.backs gets its group here */
} place;
enum { BACK_ROOTS = 3 };
typedef struct back { /* products of a matrix that is computed tile by tile (match_back.c) */
    bool rows; /* E @ w; else E^T @ w */
    int n, ncores;
    uint32_t root[BACK_ROOTS], value[BACK_ROOTS], with[BACK_ROOTS]; /* the product, E, w */
    uint32_t next; /* 1 + another one that gets its group at the same node */
    uint32_t scores, core[2]; /* what softmax is taken of; products of the size of E in it */
} back;
enum { PLACE_WAYS = 4 };
typedef struct fusion {
    const pgraph *g;
    place *at; /* per node */
    VEC(group) groups; /* 0 is unused; from results to inputs: run them backwards */
    uint32_t limit; /* nodes in a group */
    uint32_t params; /* of a kernel, at most */
    /* NULL, or per node CUT_*: what an earlier try found to be too much for one kernel */
    const uint8_t *cuts;
    dev_tile tile[DEV_TILES]; /* of the device, dev_limits */
    bool bf16_products; /* likewise */
    int sort_bytes; /* likewise */
    int variant; /* of the choices that lowering makes: 0 is what it thinks best, see VARIANTS */
    bool oom; /* some list could not grow: what there is is not all */
    uint32_t *uses; /* per node: how many inputs it is */
    VEC(back) backs;
    struct scratch *scratch; /* of lowering: shared by the groups, clean between them */
} fusion;
enum { VARIANTS = 4 };
eas_status fuse(fusion *f, const pgraph *g, uint32_t nroots, const uint32_t *roots, uint32_t limit,
                const uint8_t *cuts);
/* The same for a device: which products are packed for its register tiles is decided, too. */
eas_status fuse_for(fusion *f, const pgraph *g, uint32_t nroots, const uint32_t *roots, uint32_t limit,
                    const uint8_t *cuts, eas_device *d, int variant);
void fuse_free(fusion *f);
static inline bool fused_stored(const fusion *f, uint32_t p)
{
    return f->at[p].stored || pass_at(f->g, p)->kind == KIND_LEAF;
}
static inline uint8_t cut_of(const fusion *f, uint32_t i) { return f->cuts ? f->cuts[i] : 0; }
eas_status merge_groups(fusion *f); /* merge.c */
/* fuse_cost.c: fills cost, len, users, heavy, tail and reads of every place. A node whose cost is at most
 * FUSE_CHEAP is computed again in each group that uses it; FUSE_LONG: chains from this length on are cut. */
enum { FUSE_CHEAP = 2, FUSE_LONG = 64 };
void fuse_costs(fusion *f);
bool fuse_kept(const place *x);
/* fuse_map.c: group grp uses node x, by this map (NULL: at indices of its own); many: x may be in several */
void fuse_push(fusion *f, uint32_t x, uint32_t grp, const int8_t *map, bool many);
void fuse_push_inputs(fusion *f, uint32_t i); /* all inputs of i, where i is */
/* How input k of p lies in the space if p lies by map; false: not simply. */
bool map_input(const pgraph *g, const pnode *p, int k, const int8_t *map, int8_t *to);
/* Of reductions: is d one of the axes? Which dim of the result is dim d of the input, if it is none? */
/* match_attention.c: is MATMUL i softmax(scores) @ v, with nothing else looking at what lies between? */
bool reaches(const fusion *f, uint32_t x, uint32_t core, int depth);
bool match_attention(const fusion *f, uint32_t i, const uint32_t *uses, uint32_t *scores, uint32_t *core);
typedef struct softmax_parts {
    uint32_t e, inverse, sum, diff, top, scores, core; /* core: the product that scores are made of */
} softmax_parts;
static inline bool is_op(const pgraph *g, uint32_t i, uint16_t op) { return pass_at(g, i)->op == op; }
bool match_softmax(const fusion *f, uint32_t weights, const uint32_t *uses,
                   softmax_parts *out); /* of something that is element-wise over one product */
/* match_back.c: finds fusion.backs, and takes their nodes. */
eas_status match_backs(fusion *f);
bool back_core(const back *b, uint32_t node);
/* Calls f for all that a group computes tiles from: what it reads at indices of its own. */
void back_reads(const fusion *f, const back *b, void (*each)(void *ctx, uint32_t node), void *ctx);
bool fold_axis(const pnode *p, int d);
int fold_kept(const pnode *p, int d);
eas_dim shape_count(int rank, const eas_dim *shape);

/* ---- cut.c ---- */
enum {
    CUT_APART = 1, /* is not computed where it is used */
    CUT_ALONE = 2, /* the group that it is a result of is not merged with others */
};
/* Marks nodes so that the group comes to need at most that many parameters; false: nothing was found. */
bool cut_group(const fusion *f, uint32_t grp, uint32_t most, uint8_t *cuts);

/* ---- collect.c ---- */
/* Arrays with an entry for each node that the lowering of one group needs; only what it touched is cleaned.
 */
typedef struct scratch {
    eas_value *param, *fold;
    uint32_t *newest, *visits, *number, *stamp;
    uint32_t now; /* of stamps */
} scratch;
scratch *scratch_new(uint32_t n);
void scratch_free(scratch *s);
typedef VEC(uint32_t) VEC_U32;
typedef struct reading { /* of a tensor that lies simply in the space */
    uint32_t node;
    eas_dim stride[GRAPH_MAX_RANK]; /* per dim of the space; 0: none */
} reading;
typedef struct visited { /* a node, seen at a place of the space or (rank -1) at an index */
    uint32_t node, older;
    bool general;
    int8_t map[GRAPH_MAX_RANK];
} visited;
typedef struct collected {
    VEC_U32 buffers, numbers;
    VEC(visited) visits;
    VEC_U32 touched;
    str key; /* tells groups apart: equal ones make equal code for parameters in the same order */
    VEC(eas_dim) dims; /* symbolic sizes that code needs */
    VEC(reading) accesses;
    VEC(reading) draws; /* random numbers that lie simply in the space, and how their elements count on */
    bool general; /* something is read at indices of its own */
    bool indexed; /* by an index that is data */
    bool oom;
} collected;
void collect_from(const fusion *f, uint32_t grp, uint32_t node, const int8_t *map, collected *c);
/* it is part of the group: into the key */
void collect_note(const fusion *f, uint32_t grp, uint32_t node, collected *c);
void collect_key(collected *c, const void *p, size_t n);
void collect_free(const fusion *f, collected *c);
/* of random numbers: how far apart elements are, along each dim */
void draw_strides(const pgraph *g, const pnode *p, eas_dim *own);
void collect_shape(collected *c, int rank, const eas_dim *shape); /* sizes and strides as parameters */
/* where input `part` begins along the axis */
eas_dim concat_start(const pgraph *g, const pnode *p, int part);
void collect_starts(collected *c, const pgraph *g, const pnode *p, int part);
/* does the result depend on that dim of the space? */
bool fold_varies(const pgraph *g, const fusion *f, uint32_t fold, int dim);
void fold_input_map(const fusion *f, uint32_t fold, int8_t *map);
void root_map(const fusion *f, const group *g, const group_root *r, int8_t *map);

/* ---- lowering ---- */
typedef struct lindex { /* along one dim, for a block of programs' lanes */
    eas_value v; /* 0: always 0 */
    eas_value ok; /* 0: within the dim; else where it is */
} lindex;
enum { MAX_DIMS = GRAPH_MAX_RANK, MAX_BLOCK = 4 };

typedef struct memo {
    uint32_t node, older;
    eas_value v;
    int8_t rank; /* -1: by map */
    union {
        lindex at[MAX_DIMS];
        int8_t map[MAX_DIMS];
    } by;
} memo;

typedef struct lower {
    const pgraph *g;
    const fusion *f;
    const group *grp;
    eas_builder *b;
    eas_value *param; /* per node: its buffer, or its number */
    struct lower_dim {
        eas_dim d;
        eas_value v;
    } *dims; /* symbolic sizes among the parameters */
    int ndims;
    lindex at[MAX_DIMS]; /* the group's own index; v is 0 where it is not set */
    eas_value *fold; /* per node: results of reductions that are done */
    VEC(memo) memos;
    uint32_t *newest; /* per node, in memos */
    /* The space with neighbouring dims merged where every access allows it. */
    int nm;
    eas_dim msize[MAX_DIMS];
    bool minner[MAX_DIMS];
    int8_t mlast[MAX_DIMS]; /* the last dim of the space in each */
    int8_t mdim[MAX_DIMS]; /* per dim of the space: the merged one */
    int nblock; /* rank of blocks */
    struct { /* where a program makes all numbers of a counter (low_draws): the element is 4 DRAW_LANES unit +
              * DRAW_LANES turn + lane */
        eas_value unit, lane; /* unit 0: it does not */
        int turn;
    } draw;
    arena *mem;
    eas_status st;
} lower;

/* index.c */
/* At an index of its own, or (at NULL) where map says that its dims lie in the group's space. */
eas_value low_value(lower *l, uint32_t p, const lindex *at, const int8_t *map);
/* an index that is data, counted from the end if negative, refused if out of range */
eas_value low_wrapped(lower *l, eas_value i, eas_dim size);
/* a reshape of what lies densely in memory, if it lies there at all? */
bool reshapes_dense(const pgraph *g, const pnode *p);
/* computed from its inputs' values alone? */
bool low_by_map(const pgraph *g, const pnode *p, const int8_t *map);
/* in C order */
eas_value low_offset(lower *l, int rank, const eas_dim *shape, const lindex *at, eas_value *ok);
/* of index times stride */
eas_value low_sum(lower *l, int n, const lindex *at, const eas_dim *strides, eas_value *ok);
eas_value low_dim(lower *l, eas_dim d);
eas_value low_int(lower *l, int64_t v);
/* Indices of the dims that are not in `skip` (bits) and have more than one element, from one program axis,
 * the last dim fastest; and how many programs that is. */
eas_dim low_spread(lower *l, int axis, int rank, const eas_dim *shape, uint32_t skip, lindex *at);
eas_dim low_spread_from(lower *l, eas_value from, int rank, const eas_dim *shape, uint32_t skip,
                        lindex *at); /* from a number instead of a program axis */
eas_value low_bin(lower *l, const char *op, eas_value x, eas_value y);
eas_value low_and(lower *l, eas_value x, eas_value y); /* 0: true */
eas_value low_neutral(lower *l, const char *join, eas_dtype dt);
uint32_t low_mark(const lower *l);
void low_forget(lower *l, uint32_t mark); /* values of a region that is closed */
void low_line(lower *l, const pnode *p); /* what follows was written where p was */
eas_value low_emit(lower *l, const pnode *p, const eas_value *x);
/* of something with memory */
bool leaf_strides(const pgraph *g, uint32_t p, eas_dim *offset, eas_dim *strides);

/* lower.c */
typedef struct use { /* a parameter of a kernel */
    enum { USE_NODE, USE_NUMBER, USE_DIM, USE_SCRATCH, USE_PACKED } what;
    uint32_t node; /* USE_NODE: with memory; USE_NUMBER: the constant; USE_PACKED: which factor, 0 or 1 */
    /* USE_SCRATCH: elements of memory for this launch alone; USE_PACKED: for the launches of this group */
    eas_dim dim;
    uint8_t dtype;
    bool written;
} use;
typedef VEC(use) VEC_USE;
typedef struct kernel_use { /* a kernel and what it is given, in the order of its parameters */
    eas_kernel *kernel;
    VEC_USE params;
    eas_dim grid[3];
    /* a node whose memory the first result may take, if it is not needed any more; 0: none */
    uint32_t in_place;
    uint64_t
        /* bits of parameters (of the first 64): results and inputs that are gone through in the same way, so
           that a result may take an input's memory */
        alike;
    bool maps; /* element by element, or a reduction: may run beside others */
    bool indexed; /* has accesses by data, which are checked as it runs */
    bool copies; /* in_place as it is: nothing to do where the result took its memory */
} kernel_use;
/* part: of GROUP_CONCAT, which inputs are copied (concat_inputs); of GROUP_SCATTER in two parts 0 or 1; of a
 * packed product pack_part; else 0 */
eas_status lower_group(const fusion *f, uint32_t grp, int part, kernel_use *out);
void kernel_use_free(kernel_use *u);
const char *group_name(group_kind kind);
int group_parts(const fusion *f, const group *g); /* how many kernels it takes */
eas_dim ceil_dim(eas_dim n, int64_t by);

/* What the files of the lowering share. */
typedef struct lowering {
    lower l;
    collected *c;
    kernel_use *use;
    eas_value *out; /* per root */
    eas_value scratch[8];
    uint8_t role[MAX_DIMS];
    int64_t block[MAX_DIMS]; /* lanes along a merged dim */
    int8_t axis[MAX_DIMS]; /* block axis; -1 */
    uint8_t several[MAX_DIMS]; /* of a dim of which a program does several, one beside the other: how many */
    eas_value first; /* of the innermost loop */
    bool *late; /* per root: stored inside loops */
    int part;
} lowering;
eas_value low_lanes(lower *l, int axis, int64_t n); /* 0 .. n-1 along a block axis */
/* first + lanes along a block axis, within size. */
lindex low_along(lower *l, eas_value first, int axis, int64_t n, eas_dim size);
/* The same from a program axis: a block of at most `most` lanes each; *programs: how many. */
lindex low_lanes_of(lower *l, int axis, eas_dim size, int64_t most, eas_dim *programs);
void low_store(lowering *w, uint32_t root);
void lower_map(lowering *w);
void lower_matmul(lowering *w);
/* lower_pack.c: large products of floats. */
enum pack_part { PACK_RIGHT, PACK_LEFT, PACK_PRODUCT, PACK_PARTS };
bool pack_wanted(const fusion *f, const group *g);
/* is there such a part? Else that factor is read where it lies */
bool pack_copies(const fusion *f, const group *g, int part);
void pack_uses(const lowering *w, VEC_USE *out, bool *oom);
void lower_pack(lowering *w);
eas_value matmul_sums(lower *l, eas_dtype dt, int64_t rows, int64_t cols); /* zeros to begin with */
void matmul_batch(lowering *w, const pnode *p, lindex *batch);
/* leading dims of a factor */
void matmul_index(const pnode *x, const pnode *p, const lindex *batch, lindex *at);
/* what follows the product, and the results */
void matmul_store(lowering *w, eas_value acc, lindex row, lindex col);
/* lower_conv.c: products whose left factor are windows of images. */
bool conv_wanted(const pgraph *g, const pnode *p); /* may they be read where they lie? */
bool conv_rows(const fusion *f, const group *g); /* are they? */
void lower_conv(lowering *w);
/* the same of the gradient of a filter: the left factor are windows, transposed */
bool conv_gradient_wanted(const pgraph *g, const pnode *p);
bool conv_gradient_rows(const fusion *f, const group *g);
void lower_conv_gradient(lowering *w);
void low_stand_at(lower *l, const lindex *batch, const pnode *space, lindex r,
                  lindex c); /* the group's own index is that of a tile of rows by columns */
void lower_attention(lowering *w);
void lower_attention_back(lowering *w);
void lower_scan(lowering *w);
void lower_scatter(lowering *w);
int scatter_parts(const pnode *p); /* kernels: what is large is copied by one, and updated by another */
/* The node that the first of these kernels copies as it lies in memory; 0: it computes what it stores. */
uint32_t scatter_copies(const lowering *w);
void lower_sort(lowering *w);
void sort_scratch(const pgraph *g, const pnode *p, VEC_USE *out, bool *oom);
/* Are these rows sorted by a function of the host's (src/native/sort.c) instead of by a kernel? */
bool sort_by_host(const fusion *f, const pnode *p);
void lower_compact(lowering *w);
void lower_concat(lowering *w);
bool concat_copies(const pgraph *g, const pnode *p); /* is it better copied than chosen element by element? */
void concat_inputs(const fusion *f, const group *g, int part, int *first, int *last); /* of kernel `part` */
int concat_parts(const fusion *f, const group *g);
uint64_t lower_kernels(void); /* made so far */

/* ---- plan.c, plan_run.c: kernels in order, with their memory ---- */
#define SLOT_NONE UINT32_MAX
typedef struct slot { /* memory of one tensor of a plan */
    uint32_t leaf; /* which tensor of the run it is; SLOT_NONE: made here */
    uint8_t dtype;
    bool kept; /* a result */
    eas_dim count; /* elements */
    uint32_t takes; /* a slot whose memory it takes over; SLOT_NONE */
    uint32_t last; /* the last step that needs it */
    bool ends; /* of a leaf: after `last` no step and no result needs its memory */
} slot;
typedef struct plan_step {
    eas_kernel *kernel; /* NULL: control, collective or native */
    struct control_step *control;
    int64_t *collective; /* the node's words */
    struct native_step *native;
    struct plan_arg {
        uint8_t what, dtype; /* USE_*; fixed numbers are USE_NUMBER with index SLOT_NONE */
        uint32_t index; /* slot, or number */
        eas_dim dim;
        int64_t bits;
    } *args;
    int nargs, nouts; /* the first nouts are written: they need memory */
    eas_dim grid[3];
    uint32_t reuse; /* a leaf's slot that the first result may take if the leaf is given away */
    /* bits of args: results, and slots of leaves whose memory they may take if those are given away */
    uint64_t alike;
    uint8_t phase; /* STEP_*, of a collective: args are its inputs, then as many results */
    uint32_t number; /* which of the plan's collectives */
    bool maps, indexed, copies; /* of kernel_use */
    bool packs; /* lays one tensor of the run out for a product: plan_packs.c */
    /* depends on none of the steps right before it, back to the last one that does not join: they run as one
     */
    bool joins;
} plan_step;
enum { JOIN_MOST = 128 }; /* steps that run as one */
enum { STEP_START = 1, STEP_WAIT };
typedef VEC(plan_step) VEC_PLAN_STEP;
typedef struct plan { /* counted */
    _Atomic uint32_t refs;
    eas_device *device;
    uint32_t nleaves, nslots, nsteps, nouts;
    slot *slots;
    plan_step *steps;
    struct plan_out {
        uint32_t position, slot;
    } *outs; /* which node of the walk gets which memory */
    bool symbolic;
    uint32_t ncomms; /* collectives, small ones together */
    uint64_t used; /* when it was found last */
    atomic_bool compiled; /* its kernels are, or are being: see compile_kernels */
} plan;
typedef struct plan_run {
    eas_node *const *leaves;
    eas_buffer *const *bufs; /* NULL, or the leaves' memory, in place of leaves */
    /* NULL, or per result: memory that it goes to if it is made here and nothing else is; may be NULL */
    eas_buffer *const *places;
    const int64_t *numbers; /* bits */
    const uint8_t *given; /* per leaf: its memory may be taken; may be NULL */
    int nsymbols;
    const eas_dim *symbols;
    const int64_t *sizes;
    const eas_launch *hooks;
    const struct plan_comm *comm; /* of a device of a mesh */
} plan_run;
/* runs collectives: one result for each tensor, the memory is there. n > 1: they go as one */
typedef struct plan_comm {
    eas_status (*start)(void *ctx, const int64_t *words, int n, const eas_dtype *dtypes,
                        eas_buffer *const *in, eas_buffer *const *out, const eas_launch *hooks,
                        void **request);
    /* the request is gone afterwards */
    eas_status (*wait)(void *ctx, void *request, const eas_launch *hooks);
    void (*poll)(void *ctx); /* moves on what was started */
    void *ctx;
} plan_comm;
eas_status plan_new(const pass_walk *w, uint32_t nroots, eas_node *const *roots, eas_device *d, int variant,
                    plan **out);
bool plan_same(const plan *a, const plan *b); /* the same kernels? */
eas_status plan_go(plan *p, const plan_run *r, eas_buffer **outs); /* one each, counted */
void plan_release(plan *p);
extern _Atomic uint64_t plan_steps_done;

/* ---- plan_packs.c: factors of products that are laid out once for several runs ---- */
/* Is the step of a kernel that lays a factor out worth it, and can it be? */
bool packs_can_keep(const plan_step *s, const slot *slots);
typedef struct packs_use { /* of one step in one run */
    eas_buffer *from;
    dev_pack_key key;
    dev_pack_ask ask;
} packs_use;
/* The factor, laid out in an earlier run, counted; NULL: the step must run, and packs_keep its result. */
eas_buffer *packs_find(const plan_step *s, const plan_run *r, eas_buffer *const *bufs, packs_use *u);
void packs_keep(const packs_use *u, eas_buffer *made);

/* ---- realize.c ---- */
/* What src/dist does for nodes with NODE_SHARDED; it is there before the first such node. */
typedef struct exec_shards {
    /* with the lock held */
    eas_status (*realize)(int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks);
    eas_status (*program_new)(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                              eas_device *device, void **out); /* NULL: nothing lies on a mesh */
    eas_status (*program_run)(void *p, int nin, eas_node *const *args, const uint8_t *donated,
                              const eas_launch *hooks, eas_node **results);
    void (*program_free)(void *p);
    bool (*in_parts)(const eas_node *n); /* of a node with data */
} exec_shards;
extern const exec_shards *_Atomic exec_sharded;
void exec_enter(const eas_launch *hooks); /* the one lock; see realize.c */
void exec_leave(void);
bool exec_any_sharded(int n, eas_node *const *nodes);
/* of what lies on no mesh; with the lock held */
eas_status exec_realize(int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks);
eas_device *exec_device(const pass_walk *w, eas_device *otherwise); /* of the tensors there are */

/* ---- overlap.c ---- */
eas_status plan_overlap(VEC_PLAN_STEP *steps, uint32_t nslots, const slot *slots,
                        uint32_t *ncomms); /* collectives become steps that start and that wait */

/* ---- order.c ---- */
/* moves steps so that memory is free early */
eas_status plan_order(uint32_t nsteps, plan_step *steps, uint32_t nslots, const slot *slots);

/* ---- control.c ---- */
typedef struct control_step control_step;
eas_status control_new(const graph_control *c, eas_device *d, int variant, control_step **out);
void control_free(control_step *c);
bool control_same(const control_step *a, const control_step *b);
/* outs: one each, counted, none of them an input's and no two the same. numbers: one for each input after
 * those with memory. */
eas_status control_run(const control_step *c, const plan_run *r, eas_device *d, eas_buffer *const *in,
                       const int64_t *numbers, eas_buffer **outs);

/* ---- native.c: functions of the host's (src/native) as steps ---- */
typedef struct native_step native_step;
eas_status native_new(const node_extra *e, native_step **out);
void native_free(native_step *s);
bool native_same(const native_step *a, const native_step *b);
const char *native_name(const struct eas_native *fn);
/* outs have their memory. What lies on a device without host memory is copied to the host and back. */
eas_status native_run(const native_step *s, const plan_run *r, eas_device *d, int nin, eas_buffer *const *in,
                      int nout, eas_buffer *const *outs);

/* ---- blame.c ---- */
/* After ERR_INDEX: the message gets the index, its axis and the axis's size, if they can be found. inputs,
 * args: of a program. */
void blame_index(int n, eas_node *const *roots, eas_device *device, int nin, eas_node *const *inputs,
                 eas_node *const *args);

/* ---- draw.c ---- */
typedef struct draw_node {
    const char *cls; /* of the style: data, node, result, kernel */
    str title, lines; /* lines: each ends with \n */
    str inner; /* SVG of drawings inside it */
    int nlines, inner_w, inner_h;
    int layer, w, h, y;
    double x, order, key;
    bool point; /* where an arrow passes a layer */
} draw_node;
typedef struct draw_edge {
    uint32_t from, to;
    bool head; /* it ends at a box */
} draw_edge;
typedef struct drawing {
    VEC(draw_node) boxes;
    VEC(draw_edge) arrows;
    int w, h;
    bool oom;
} drawing;
uint32_t draw_box(drawing *d, const char *cls, const char *title); /* its number */
void draw_line(drawing *d, uint32_t box, const char *text);
void draw_arrow(drawing *d, uint32_t from, uint32_t to); /* once between two boxes */
void draw_inside(drawing *d, uint32_t box, drawing *inner, const char *title);
void draw_layout(drawing *d);
void draw_boxes(str *s, const drawing *d); /* what was laid out */
eas_status draw_svg(drawing *d, str *s);
void draw_free(drawing *d);

/* ---- show.c ---- */
/* form: "text", "svg-before", "svg-after" */
eas_status show_walk(const pass_walk *w, int n, eas_node *const *roots, eas_device *d, const char *form,
                     char **out);

#endif
