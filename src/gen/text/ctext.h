/* ctext.h: what the parts of the C-text generator share.
 *
 *   ctext.c       the walk over the IR: values, statements, lane loops
 *   flow.c        loops and branches
 *   dot.c         strided dot products
 *   plan.c        decided before anything is printed: which block values share a loop, which need an array
 *   lazy.c        which loads are delayed until they are read
 *   arrays.c      blocks in arrays, and which share one
 *   index.c       index expressions, through broadcasts, reshapes, slices, pads and transposes
 *   fold.c        reductions, scans and matrix products as loops
 *   vector.c      lane loops in explicit vectors; vector_memory.c their loads and stores
 *   prefetch.c    prefetches
 *   expr.c        expressions: the table's meanings, literals, casts
 *   atomic.c      atomics on 16-bit floats, fences
 *   names.c       identifiers that are legal in the target language
 *   msl.c, opencl.c   the dialects
 *
 * Expressions are strings in the generator's arena; a string that stands for a value is always atomic (a
 * name, a literal, or in parentheses), so it can be put anywhere into another expression.
 */
#ifndef GEN_CTEXT_H
#define GEN_CTEXT_H

#include "../gen.h"

typedef struct ct ct;

/* Built-in values that a kernel may ask for; bits of ct.idents. */
enum { CT_PID, CT_NPROG, CT_TID, CT_GID, CT_LANE, CT_SG, CT_NIDENTS };

/* What is printed before the kernel when it needs it; bits of ct.helpers. CT_SAT + dtype is the saturating
 * cast to that dtype; CT_ATOMIC + 2*n + local the n-th of ct_float_atomics on a float, and as many again
 * on a double. */
enum {
    CT_MMA,
    CT_BOUNDS,
    CT_ODD,
    CT_F16,
    CT_BF16,
    CT_F64_F16,
    CT_F64_BF16,
    CT_CAS,
    CT_FENCE,
    CT_HALF_ODD,
    CT_SAT,
    CT_ATOMIC = CT_SAT + EAS_NDTYPES
};
enum {
    CT_NFLOAT_ATOMICS = 3,
    CT_NHALF_ATOMICS = 6,
    CT_MAX_VEC = 16,
    CT_HALF = CT_ATOMIC + 4 * CT_NFLOAT_ATOMICS
};
_Static_assert(CT_HALF + 4 * CT_NHALF_ATOMICS <= 64, "helpers are bits of a word");
/* those that have no call of their own in the languages */
extern const uint16_t ct_float_atomics[CT_NFLOAT_ATOMICS];

/* A place in the lane loops around the current statement: an index expression per dim of some block shape. */
typedef struct ct_at {
    const char *dim[IR_MAX_RANK];
    const char *flat; /* the row-major index, where it is known better than from dim[] */
} ct_at;

typedef struct ct_dialect {
    const char *type[EAS_NDTYPES]; /* of a variable; f16 and bf16 may be held in float */
    const char *mem[EAS_NDTYPES]; /* of an element in memory */
    const char *space_local; /* how a threadgroup array's declaration begins */
    bool half_is_float; /* f16 and bf16 variables are float: rounding is a call */
    /* parameters of the kernel that hold built-in values; NULL where they are calls */
    const char *ident[CT_NIDENTS];
    eas_status (*check)(ct *g); /* NULL, or refuses what the language cannot say */
    void (*head)(ct *g, str *s); /* all text up to and including the opening brace of the kernel */
    const char *(*identity)(ct *g, const ir_insn *in); /* as an unsigned 32-bit (or wider) expression */
    const char *(*load)(ct *g, uint32_t buf, const char *off);
    void (*store)(ct *g, const char *guard, uint32_t buf, const char *off, const char *value);
    const char *(*load4)(ct *g, uint32_t buf, const char *off); /* four neighbours as a float4 */
    bool load4_needs_alignment;
    /* Vectors of floats or doubles, in variables: how many lanes; of as many expressions; of neighbours in
     * an array; of one value; and into an array. */
    int vec;
    const char *(*vec_of)(ct *g, const char *type, int n, const char *const *x);
    const char *(*vec_load)(ct *g, const char *type, int n, const char *array, const char *at);
    const char *(*vec_splat)(ct *g, const char *type, int n, const char *x);
    void (*vec_store)(ct *g, int n, const char *array, const char *at, const char *x);
    const char *(*round)(ct *g, eas_dtype dt, const char *x); /* float x to f16 or bf16 */
    const char *(*from_f64)(ct *g, eas_dtype dt, const char *x); /* f64 x to f16 or bf16 */
    const char *(*sat)(ct *g, eas_dtype from, eas_dtype to, const char *x); /* float to integer */
    const char *(*bitcast)(ct *g, eas_dtype from, eas_dtype to, const char *x);
    const char *(*bits)(ct *g, eas_dtype dt, uint64_t bits); /* the float with these bits, for odd NaNs */
    const char *frag; /* the type of a simdgroup matrix */
    void (*mma_zero)(ct *g, const char *r);
    void (*mma)(ct *g, const char *r, const uint32_t *args);
    void (*mma_store)(ct *g, const uint32_t *args);
    void (*barrier)(ct *g);
    void (*fence)(ct *g, eas_order order, eas_scope scope);
    /* prints what must stand before */
    const char *(*shuffle)(ct *g, const ir_insn *in, const char *x, const char *lane);
    /* the old element; x is NULL of a load; y: of a compare-and-exchange */
    const char *(*atomic)(ct *g, uint16_t op, uint32_t buf, const char *off, const char *x, const char *y);
    const char *bounds; /* the call: count, offset, instruction, thread */
    const char *failed; /* the call that reports: lane, instruction */
} ct_dialect;
extern const ct_dialect ct_msl, ct_opencl;

struct ct {
    const eas_ir *ir;
    const ct_dialect *d;
    gen_dialect dialect;
    unsigned flags; /* GEN_* */
    arena mem;
    eas_ir_info info;
    bool thread_mode;

    /* names */
    const char *kernel_name;
    const char **name; /* per value: set for parameters and for values that live in another's variable */
    uint8_t *param_dtype; /* per parameter: what the text declares (see ct_plan) */

    /* the plan, see plan.c */
    ir_linears *linear;
    uint32_t *uses; /* per value */
    uint32_t *region; /* per instruction: the innermost region's id; 0 at top level */
    uint32_t *parent, *opener; /* per region: the one around it, and the instruction that begins it */
    uint32_t *group; /* per instruction: the lane loop it is printed in; 0: none */
    uint32_t *first, *last; /* per group: its instructions lie in first..last */
    uint32_t ngroups;
    uint8_t *lazy; /* per value: see lazy.c */
    uint32_t *reach;
    uint8_t *remat; /* per value: recomputed where it is used (pure and cheap, or lazy) */
    uint8_t *array; /* per value: lives in an array, one element per lane */
    uint32_t *array_of; /* per value with an array: the value whose array it lies in; 0: its own */
    uint8_t *inlined; /* per value: printed inside its only user (masks) */
    uint32_t *dot4; /* per instruction: 1 + the first of the four neighbouring dots it belongs to; 0: none */
    uint32_t early; /* the mask of the kernel's only effect, or 0 */
    bool device_barrier; /* a global buffer is both read and written: barriers must order it too */
    int max_rank; /* deepest nest of lane loops */
    bool has_dot /* or a fold: loops over k */, has_bounds, has_shuffle;

    /* printing */
    str body;
    gen_linemap lines; /* per line of body */
    uint32_t at; /* the instruction being printed */
    int indent;
    bool early_done;
    uint32_t idents;
    uint64_t helpers;
    struct {
        int rank;
        int32_t dim[IR_MAX_RANK];
        uint32_t group;
        uint32_t epoch;
    } loop; /* the lane loop being printed */
    struct ct_inst *insts;
    uint32_t ninsts, capinsts; /* recomputed values of the current lane loop */
    uint32_t *inst_head; /* per value: chain into insts, 1-based */
    uint32_t *inst_epoch; /* per value: the loop that chain belongs to */
    VEC(uint32_t) open; /* openers of the regions around the current position */

    /* vector.c */
    int lanes; /* of a vector; 0: lane loops go lane by lane */
    /* lanes are the threads of another kernel: per instruction the one of that kernel it comes from; else
     * NULL */
    const uint32_t *origin;
    uint32_t *prefetches; /* per group: the one whose next loads it prefetches; 0: none */
    uint32_t packs; /* per dtype: vectors of it are read or written somewhere */
    struct {
        const char *var; /* the index that goes in steps */
        bool failed, puts, prefetches;
        int serial; /* instructions of this loop that go lane by lane */
        struct ct_vinst *insts; /* values of the current step */
        uint32_t n, cap;
        uint32_t *head, *epoch; /* per value, as inst_head and inst_epoch */
    } vec;
};

/* ctext.c */
void ct_line(ct *g, const char *fmt, ...) BASE_PRINTF(2, 3);
const char *ct_fmt(ct *g, const char *fmt, ...) BASE_PRINTF(2, 3);
const char *ct_name(ct *g, uint32_t v);
/* v as an atomic expression in a variable's type; at: where in the lane loops, NULL at the natural place */
const char *ct_ref(ct *g, uint32_t v, const ct_at *at);
/* the same in a variable, unless it is as short as that */
const char *ct_ref_often(ct *g, uint32_t v, const ct_at *at);

static inline bool is_block(ir_type t) { return t.kind == IR_VAL && ir_lanes(t) > 1; }
const char *ct_type_name(ct *g, ir_type t);
/* gives v its value: a new variable, or its element of an array that stands before the loop */
void ct_define(ct *g, uint32_t v, const char *x);
void ct_declare(ct *g, uint32_t v);
void ct_declare_array(ct *g, ir_type t, const char *name);
void ct_copy_block(ct *g, const char *to, uint32_t v); /* to[lane] = v, for every lane */
void ct_open(ct *g, const char *var, int64_t n); /* for (uint var = 0; var < n; ++var) { */
void ct_close(ct *g);
void ct_new_scope(ct *g); /* recomputed values made so far are out of sight */

/* dot.c */
void ct_print_dot(ct *g, const ir_insn *in);
void ct_print_dot4(ct *g, const ir_insn *in); /* of the first of four */

/* flow.c */
void ct_structure(ct *g, uint32_t insn); /* an instruction that opens, divides or closes a region */

/* vector.c */
typedef struct ct_walk ct_walk;
struct ct_walk { /* one lane loop: a group, or a block that is copied to an array */
    uint32_t group, value;
    const char *to;
    void (*one)(ct *g, const ct_walk *w); /* prints the body for one lane */
};
/* false, and nothing printed: it cannot be done in vectors */
bool ct_vec_walk(ct *g, ir_type t, const ct_walk *w);
typedef struct ct_vec_mark {
    size_t len;
    uint32_t lines;
    int indent;
} ct_vec_mark;
ct_vec_mark ct_vec_begin(ct *g);
bool ct_vec_end(ct *g, const ct_vec_mark *m); /* false: what was printed since is taken back */
const char *ct_vec_ref(ct *g, uint32_t v, const ct_at *at); /* g->vec.var is the index that goes in steps */
void ct_vec_put(ct *g, const char *array, ir_type t, const ct_at *at, const char *x);
const char *ct_array_type(const ct *g, eas_dtype dt);
void ct_vec_typedefs(const ct *g, str *s);

/* prefetch.c */
void ct_find_prefetches(ct *g);
const char *ct_prefetch_step(ct *g,
                             /* by how much the offset of a load moves from one round, or program, to the
                              * next; NULL: not at all, or not known */
                             uint32_t i);

/* plan.c */
ir_type ct_lanes_of(const eas_ir *ir, const ir_insn *in); /* the block that an instruction works through */
eas_status ct_plan(ct *g);
int ct_dims(ir_type t, int32_t dim[IR_MAX_RANK]); /* the dims other than 1; returns how many */
bool ct_picks(const eas_ir *ir, const ir_insn *in); /* a slice of one lane: a variable */
bool ct_is_view(const eas_ir *ir, const ir_insn *in); /* read through, never computed */
/* Through views to what is really computed; *aligned: the row-major index stays what it is. */
uint32_t ct_leaf(const eas_ir *ir, uint32_t v, bool *aligned);

/* lazy.c */
void ct_find_lazy(ct *g);

/* arrays.c */
void ct_find_arrays(ct *g);
void ct_share_arrays(ct *g);

/* index.c */
extern const char *const ct_lane_var[IR_MAX_RANK];
ct_at ct_natural(ir_type t); /* where a value of type t stands when its lanes are the current loop's */
bool ct_plain(const char *x); /* needs no parentheses */
const char *ct_flat(ct *g, ir_type t, const ct_at *at); /* the row-major index */
/* The place in a view's operand of a place in its result; *inside: when it is one, for a pad (NULL:
 * always). */
ct_at ct_through(ct *g, const ir_insn *view, const ct_at *at, const char **inside);

/* fold.c */
void ct_fold(ct *g, const ir_insn *in); /* gives in->res its value; its array or variable is declared */

/* expr.c */
const char *ct_literal(ct *g, eas_dtype dt, int64_t bits); /* in a variable's type */
const char *ct_literal_compute(ct *g, eas_dtype dt, int64_t bits); /* f16 and bf16 as float */
/* The meaning of a pure element-wise instruction on values at one place; not atomic. */
const char *ct_expr(ct *g, const ir_insn *in, const ct_at *at);
/* of atomic expressions; lanes: of vectors, 0: scalars */
const char *ct_expr_with(ct *g, const ir_insn *in, const char *const *arg, int lanes);
/* of two names; not atomic */
const char *ct_join(ct *g, uint16_t op, eas_dtype dt, const char *x, const char *y, int lanes);
const char *ct_as_f32(ct *g, eas_dtype dt, const char *x);
extern const char ct_odd_text[]; /* the helper of CT_ODD, the same in both languages */
const char *ct_unsigned(ct *g, uint32_t v); /* an index operand as the dialect's uint or ulong */

/* atomic.c */
bool ct_is_half(const ct *g, uint32_t buf);
/* declares a threadgroup array of halves with atomics, aligned as words; false: it is none */
bool ct_words_tg(ct *g, uint32_t tg);
void ct_msl_atomics(const ct *g, str *s); /* the helpers that were asked for */
const char *ct_msl_half(ct *g, uint16_t op, uint32_t buf, const char *off, const char *x, const char *y);
void ct_msl_fence(ct *g, eas_order order, eas_scope scope);
bool ct_msl_coherent(const ct *g, uint32_t buf);
void ct_opencl_atomics(const ct *g, str *s);
const char *ct_opencl_half(ct *g, uint16_t op, uint32_t buf, const char *off, const char *x, const char *y);
void ct_opencl_fence(ct *g, eas_order order, eas_scope scope);

/* names.c */
bool ct_names(ct *g);

/* May an access to one of the buffers be one to the other? */
static inline bool ct_shared(const ct *g, uint32_t x, uint32_t y)
{
    return x == y ||
           (g->flags & GEN_ALIAS && ir_typeof(g->ir, x).kind == IR_BUF && ir_typeof(g->ir, y).kind == IR_BUF);
}

/* The instruction being printed, as whoever asked for the text knows it. */
static inline uint32_t ct_source(const ct *g) { return g->origin ? g->origin[g->at] : g->at; }

int ct_float_atomic(uint16_t op); /* its place in ct_float_atomics, -1 */

static inline void ct_need(ct *g, int helper) { g->helpers |= (uint64_t)1 << helper; }
static inline bool ct_needs(const ct *g, int helper) { return g->helpers >> helper & 1; }

#endif
