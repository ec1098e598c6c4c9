/* ir.h: the kernel IR: typed SSA in a flat list with nested regions.
 *
 * An eas_ir is immutable once finished; passes build a new one. Values are 32-bit ids from 1; parameters come
 * first, then the results of instructions in order, so that a definition always precedes its uses. A region
 * is opened by LOOP, WHILE or IF and closed by its END*; body values are results of the opener, final values
 * are results of the closer. A value is visible from its definition to the end of the region it stands in.
 */
#ifndef IR_H
#define IR_H

#include "../base/base.h"

enum {
    IR_MAX_RANK = 4,
    IR_MAX_DIM = 1 << 20,
    IR_MAX_LANES = 1 << 20,
    IR_MAX_PARAMS = 256,
    IR_MAX_THREADS = 1024,
    IR_SIMD = 32
};

/* ---- the table (insn.c) ---- */
typedef enum ir_op {
    IR_NOP,
#define INSN(NAME, name, nargs, rule, classes, flags, cost, llvm, mk, si, ui, fl) IR_##NAME,
#include "insn.def"
#undef INSN
    IR_NOPS
} ir_op;

enum { IR_B = 1, IR_I = 2, IR_F = 4 }; /* dtype classes */
enum { IR_PURE = 1, IR_COMM = 2, IR_MEM = 4, IR_EFFECT = 8, IR_STRUCT = 16, IR_EXPAND = 32, IR_VECTOR = 64 };

typedef enum ir_rule {
    IR_RULE_CONST,  /* no operands; any value type, rank 0 (shapes come by broadcast) */
    IR_RULE_IDENT,  /* no operands; integer scalar */
    IR_RULE_ARANGE, /* no operands; integer block of rank 1 */
    IR_RULE_SAME,   /* operands of one type, result the same type */
    IR_RULE_CMP,    /* operands of one type, result bool of that shape */
    IR_RULE_WHERE,  /* bool, T, T of one shape; result T */
    IR_RULE_CAST,   /* any value; result any dtype, same shape (bitcast: same size) */
    IR_RULE_SHAPE,  /* any value; result same dtype */
    IR_RULE_MOVE,   /* a block; result same dtype and rank */
    IR_RULE_REDUCE, /* a block; result without the axis imm */
    IR_RULE_SCAN,   /* a block; result the same type */
    IR_RULE_MATMUL, /* (M,K), (K,N), (M,N) of one dtype; result (M,N) */
    IR_RULE_SHUFFLE, /* a scalar and an integer scalar; result the type of the first */
    IR_RULE_LOAD,
    IR_RULE_STORE,
    IR_RULE_BOUNDS,
    IR_RULE_ATOMIC,
    IR_RULE_ALLOC,
    IR_RULE_ASSERT,
    IR_RULE_PRINT,
    IR_RULE_DOT,
    IR_RULE_FRAG,
    IR_RULE_MMA,
    IR_RULE_MMA_STORE,
    IR_RULE_LOOP,
    IR_RULE_END,
    IR_RULE_NONE    /* no results */
} ir_rule;

typedef struct ir_row {
    const char *name;
    int8_t nargs; /* -1: varies */
    uint8_t rule, classes, flags, cost;
    const char *mk; /* how Python spells it; "": not at all */
    const char *si, *ui, *fl; /* meanings as text; NULL where there is none */
} ir_row;
extern const ir_row ir_rows[IR_NOPS];

/* ---- types ---- */
/* kinds: value, global buffer, threadgroup array, 8x8 f32 simdgroup matrix */
enum { IR_VAL, IR_BUF, IR_TG, IR_FRAG };
typedef struct ir_type {
    uint8_t dtype, kind, rank, pad;
    int32_t dim[IR_MAX_RANK]; /* unused entries are 0. IR_TG: rank 1, its size */
} ir_type;
ir_type ir_scalar(eas_dtype dt);
ir_type ir_with_dtype(ir_type t, eas_dtype dt); /* same shape, kind IR_VAL */
bool ir_type_eq(ir_type a, ir_type b);
bool ir_shape_eq(ir_type a, ir_type b);
int64_t ir_lanes(ir_type t); /* product of dims; 1 for a scalar */
const char *ir_type_text(arena *mem, ir_type t); /* the same, in an arena */
void ir_type_print(str *s, ir_type t); /* "f32", "i64[256]", "buf<f32>", "tg<f32>[64]", "frag" */

/* ---- the kernel ---- */
typedef struct ir_insn {
    uint16_t op, nargs, nres;
    uint16_t file;  /* index into files; 0 is unknown */
    uint32_t line;
    uint32_t args;  /* index of the first operand in ir->pool */
    uint32_t res;   /* first result; 0 if none */
    int64_t imm;    /* constants: the bits, as ir_const_* below read them */
} ir_insn;

enum { IR_STRONG, IR_WEAK, IR_NUMBER };
typedef struct ir_val {
    ir_type type;
    uint32_t def;  /* index of the defining instruction; UINT32_MAX for a parameter */
    /* IR_WEAK: stands for a Python number; IR_NUMBER: one with a dtype of its own. Only meaningful while
     * building */
    uint8_t weak;
} ir_val;

typedef struct ir_param {
    const char *name;
    uint32_t value; /* its value id: parameters are values 1..nparams */
    uint8_t read, write, atomic; /* filled by ir_finish */
} ir_param;

struct eas_ir {
    uint32_t magic; /* IR_MAGIC while alive */
    int refs;
    arena mem;      /* owns everything below */
    const char *name;
    /* for people: the text that distinguishes it from other kernels of its name, or NULL */
    const char *config;
    unsigned flags; /* EAS_KERNEL_* */
    /* block size and threads of a group, as arange and tid say even if their values go unused; 0: neither
     * says */
    int64_t spmd_block, threads;
    bool simple; /* made by ir_simplify: doing it again changes nothing */
    ir_param *params;
    int nparams;
    ir_insn *insns;
    uint32_t ninsns;
    ir_val *vals;
    uint32_t nvals; /* vals[0] unused */
    uint32_t *pool;
    uint32_t npool; /* operands */
    const char **files;
    int nfiles; /* files[0] is "" */
    const char **strings;
    int nstrings; /* messages of asserts, texts of prints: imm counts them */
};
enum { IR_MAGIC = 0x45415349 };

static inline const uint32_t *ir_args(const eas_ir *ir, const ir_insn *in) { return ir->pool + in->args; }
static inline ir_type ir_typeof(const eas_ir *ir, uint32_t v) { return ir->vals[v].type; }
/* the instruction that defines v, or NULL for a parameter */
static inline const ir_insn *ir_def(const eas_ir *ir, uint32_t v)
{
    return ir->vals[v].def == UINT32_MAX ? NULL : &ir->insns[ir->vals[v].def];
}
/* ---- accesses, by instruction (insn.c) ---- */
static inline bool ir_is_atomic(const ir_insn *in) { return ir_rows[in->op].rule == IR_RULE_ATOMIC; }
bool ir_writes(const ir_insn *in); /* stores to the memory that operand 0 names */
/* of a load, store, atomic, bounds or assert; 0: none */
uint32_t ir_mask(const eas_ir *ir, const ir_insn *in);
/* a shuffle from lane own ^ delta, a constant below 32 */
bool ir_shuffle_xor(const eas_ir *ir, const ir_insn *in, int64_t *delta);
int ir_print_values(const char *text); /* how many {} there are; {{ and }} stand for braces */
/* operands after buffer and offset: 2 of cas, 0 of load, else 1 */
int ir_atomic_values(uint16_t op);
/* a barrier or a fence: no access may move across it */
bool ir_orders(const ir_insn *in);
/* the operation that combines the old element with the value: IR_ADD, ...; 0 for xchg, cas and load */
uint16_t ir_atomic_op(uint16_t op);

/* Immediate of fence. */
static inline int64_t ir_imm_fence(eas_order order, eas_scope scope) { return order | scope << 3; }
static inline eas_order ir_fence_order(int64_t imm) { return (eas_order)(imm & 7); }
static inline eas_scope ir_fence_scope(int64_t imm) { return (eas_scope)(imm >> 3); }
extern const char *const ir_order_names[EAS_NORDERS], *const ir_scope_names[EAS_NSCOPES];

/* Immediates of slice and pad: axis and start; of trans: per axis of the result the axis of the operand. */
static inline int64_t ir_imm_place(int axis, int64_t start) { return axis | start << 3; }
static inline int ir_imm_axis(int64_t imm) { return (int)(imm & 7); }
static inline int64_t ir_imm_start(int64_t imm) { return imm >> 3; }
static inline int ir_imm_perm(int64_t imm, int axis) { return (int)(imm >> (3 * axis) & 7); }
/* Which lane of the operand lane k of a broadcast, reshape, slice, pad or trans comes from; -1: the fill
 * of a pad. */
int64_t ir_source_lane(uint16_t op, int64_t imm, ir_type from, ir_type to, int64_t k);
/* Reductions and scans: the instruction that combines two elements; 0 for any other. */
uint16_t ir_join_of(uint16_t op);
bool ir_is_fold(const ir_insn *in); /* a reduction, a scan or a matrix product: needs its operands whole */
/* A block seen along an axis: `outer` times `n` elements `inner` apart. */
typedef struct ir_axis {
    int64_t outer, n, inner;
} ir_axis;
ir_axis ir_axis_of(ir_type t, int axis);
/* Elements of the last axis go round `IR_CHAINS` running results (half as many of 8 bytes), scans of it in
 * chunks of IR_CHUNK. */
enum { IR_CHAINS = 64, IR_CHUNK = 16 };
static inline int64_t ir_chains(eas_dtype dt) { return eas_dtype_size(dt) == 8 ? IR_CHAINS / 2 : IR_CHAINS; }
/* Constants. imm holds the bits of the dtype: integers sign- or zero-extended to 64 bits, bool 0/1,
 * f16/bf16/f32/f64 their bit patterns zero-extended. */
bool ir_const_of(const eas_ir *ir, uint32_t v, int64_t *bits); /* through broadcast and reshape too */
double ir_bits_to_double(eas_dtype dt, int64_t bits);
int64_t ir_bits_from_double(eas_dtype dt, double d); /* floats: rounded once */

/* rules.c: results of an instruction from its operands; NULL or the reason it is ill-typed (in the arena).
 * For rules whose result type is explicit, *t holds it on entry and is checked. nres results are written
 * to t. */
const char *ir_check_insn(const eas_ir *ir, arena *mem, uint16_t op, const uint32_t *args, int nargs,
                          int64_t imm, int nres, ir_type *t);

/* ---- build.c: appends instructions; used by eas_* of the public builder and by every pass ---- */
struct eas_builder {
    uint32_t magic; /* IRB_MAGIC */
    eas_ir *ir; /* under construction; NULL once finished */
    uint32_t capinsns, capvals, cappool, capfiles, capstrings;
    eas_status status;
    base_error error; /* the first one */
    uint32_t line;
    uint16_t file;
    /* group.c: threadgroup arrays made at top level, one element a thread; 0: none yet */
    uint32_t group_array[EAS_NDTYPES];
    VEC(uint32_t) open; /* indices of the region openers around the current position */
    VEC(uint32_t) scratch; /* order.c: threadgroup arrays for moving lanes */
    uint32_t hoisted; /* flow.c: instructions that were put in front of all others */
    bool moved; /* flow.c: instructions are not in the order in which their values are numbered */
    struct ir_live *live; /* NULL: instructions are only recorded */
};
enum { IRB_MAGIC = 0x45415342 };
/* The raw append: exact types, nothing promoted. t holds result types (in: where explicit; out: all).
 * Returns the first result, or 0 (also for instructions without results). */
uint32_t irb_insn(eas_builder *b, uint16_t op, const uint32_t *args, int nargs, int64_t imm, int nres,
                  ir_type *t);
/* Common forms over irb_insn */
uint32_t irb_op(eas_builder *b, uint16_t op, uint32_t x, uint32_t y, uint32_t z); /* SAME, CMP, WHERE rules */
/* CONST, IDENT, ARANGE, FRAG, ALLOC rules */
uint32_t irb_typed(eas_builder *b, uint16_t op, ir_type t, int64_t imm);
/* CAST and SHAPE rules; x itself when nothing changes */
uint32_t irb_to(eas_builder *b, uint16_t op, ir_type t, uint32_t x);
/* with a broadcast if t has a shape */
uint32_t irb_const(eas_builder *b, ir_type t, int64_t bits);
/* If v is an arange, it is one that the kernel's author wrote: the first one decides the block size. */
void irb_note_block(eas_builder *b, uint32_t v);
int64_t irb_string(eas_builder *b, const char *s); /* its number among the strings; -1 after a failure */
uint32_t irb_strong(eas_builder *b, uint32_t x); /* a Python float whose dtype no operand decided is an f32 */
uint32_t irb_param(eas_builder *b, const char *name, ir_type t, bool weak);
/* adds "file:line: " */
eas_status irb_fail(eas_builder *b, eas_status st, const char *fmt, ...) BASE_PRINTF(3, 4);
eas_status irb_stop(eas_builder *b, eas_status st); /* fails with this thread's message as it is */
eas_status irb_finish(eas_builder *b, eas_ir **out); /* verify and hand over, no simplification */
/* A builder that continues where `from` is copied by a pass: same name, flags, files and parameters (same
 * value ids). */
eas_status irb_like(const eas_ir *from, eas_builder **out);
/* Copies instruction i of `from`, operands through map[], results entered into map[]; keeps its source
 * line. */
void irb_copy(eas_builder *b, const eas_ir *from, uint32_t i, uint32_t *map);

/* The bounds of a loop in one integer dtype; a condition as one bool (sugar.c). False with the error set. */
bool irb_bounds(eas_builder *b, uint32_t head[3]);
bool irb_condition(eas_builder *b, const char *what, uint32_t *cond);

/* For joining branches (flow.c): x in the type common to both, and values for an else that was built
 * without. */
uint32_t irb_join_type(eas_builder *b, uint32_t x, uint32_t other);
bool irb_renumber(eas_builder *b); /* false: no memory */
void irb_hoist(eas_builder *b); /* the last instruction becomes the first */
void irb_else_values(eas_builder *b, uint32_t at, int n, const uint32_t *v);

/* ---- live.c: instructions that run as they are appended; the rest of it is in eas.h ---- */
typedef struct ir_live ir_live;
typedef struct ir_live_host { /* the facts and functions that a live kernel needs of its launch */
    const uint64_t *slot; /* as ir_call's */
    const int64_t *count;
    const bool *readonly; /* per parameter */
    /* The grid, called when it is first needed; naxes: how many axes the kernel has used so far. */
    eas_status (*grid)(void *ctx, const eas_builder *b, int naxes, int64_t grid[3]);
    void (*done)(void *ctx); /* called when the builder is freed */
    void *ctx;
    void (*print)(void *print_ctx, const char *text, size_t n); /* as ir_call's */
    void *print_ctx;
} ir_live_host;
eas_status live_begin(eas_builder *b, const ir_live_host *host);
/* instructions from now on are that program's */
eas_status live_program(eas_builder *b, const int64_t pid[3]);
eas_status live_grid(eas_builder *b, int64_t grid[3]);
ir_live_host *live_host(eas_builder *b);
bool live_inside(const eas_builder *b); /* a loop or branch is open */
uint32_t live_insn(eas_builder *b, uint16_t op, const uint32_t *args, int nargs, int64_t imm, int nres,
                   const ir_type *t);
void live_free(eas_builder *b);
/* What live.c needs from build.c: room for an empty instruction per value; a new value; the operands of the
 * instruction that is about to run. */
bool irb_live_room(eas_builder *b);
bool irb_live_value(eas_builder *b);
bool irb_live_operands(eas_builder *b, const uint32_t *args, int nargs);

/* ---- verify.c ---- */
eas_status ir_verify(const eas_ir *ir);

/* ---- print.c, parse.c ---- */
void ir_print(str *s, const eas_ir *ir, bool lines);
void ir_print_insn(str *s, const eas_ir *ir, uint32_t i, bool lines);
eas_status ir_parse(const char *text, size_t len, eas_ir **out);

/* ---- region.c ---- */
bool ir_opens(uint16_t op); /* LOOP, WHILE, IF */
bool ir_divides(uint16_t op); /* ELSE, DO */
bool ir_closes(uint16_t op); /* ENDLOOP, ENDWHILE, ENDIF */
typedef struct ir_regions { /* per instruction, each */
    uint32_t *end; /* of an opener or divider: the closer of its region */
    uint32_t *mid; /* of an opener: its ELSE or DO; 0: it has none */
    uint32_t *opener; /* of a divider or closer */
    /* the innermost opener around it; UINT32_MAX: there is none. An opener and a closer are outside of their
     * own region */
    uint32_t *parent;
} ir_regions;
bool ir_find_regions(const eas_ir *ir, arena *mem, ir_regions *out); /* false: no memory */
uint32_t *ir_region_ends(const eas_ir *ir, arena *mem); /* only `end` */

/* ---- slots.c: live ranges, and memory that values share. Points of a run are numbered in order, by
 * instruction or by segment ---- */
typedef struct ir_live_range {
    uint32_t made, last; /* the point that makes the value, the last one that needs it */
    bool region; /* `last` is the end of a region into which the value came */
} ir_live_range;
typedef struct ir_lives {
    uint32_t n;
    ir_live_range *of; /* per value */
} ir_lives;
bool ir_lives_begin(ir_lives *l, uint32_t nvals, arena *mem); /* false: no memory */
void ir_lives_read(ir_lives *l, uint32_t v, uint32_t at);
/* A region from point `first` to point `last` is over: a value that was made before the region and is needed
 * in it is needed until the region ends. */
void ir_lives_region(ir_lives *l, uint32_t first, uint32_t last);

typedef struct ir_slot {
    uint32_t owner; /* the value for which it was made */
    uint32_t holder; /* the value it holds now */
    uint64_t size, at; /* in the unit that the caller counts in */
} ir_slot;
typedef VEC(ir_slot) ir_slots;
typedef bool ir_slot_test(const void *ctx, const ir_slot *s, uint32_t v); /* may v be written there? */
/* The smallest slot of at least that size that is free for v; it holds v from now on. NULL: there is none. */
ir_slot *ir_slot_take(ir_slots *s, uint64_t size, uint32_t v, ir_slot_test *is_free, const void *ctx);
/* Adds a new slot that holds v; false: no memory. */
bool ir_slot_add(ir_slots *s, uint64_t at, uint64_t size, uint32_t v);

/* ---- added.c ---- */
/* added[i]: parameter i is a buffer that the kernel does nothing to but add, by relaxed atomics whose results
 * are unused, and no program can tell when that happens. True: there is one. */
bool ir_added(const eas_ir *ir, bool *added);

/* ---- analyse.c ---- */
eas_ir_info ir_analyse(const eas_ir *ir);
/* uniform[v]: the same for every lane of a block and every thread of a group. In SPMD kernels a rank-0
 * value is uniform. how: what else counts. */
enum {
    IR_UNIFORM_MERGES = 1, /* a value that a region leaves alone, though threads part there (ir_roots) */
    /* the counter of a loop that threads leave at different times: those that run have the same one */
    IR_UNIFORM_COUNTERS = 2,
    IR_UNIFORM_ONE_LANE = 4 /* in SPMD kernels also blocks of one lane */
};
bool *ir_uniform(const eas_ir *ir, unsigned how, arena *mem);
/* Per value: the value that it surely is, where it only passed through regions that leave it alone
 * (merge.c); else itself. */
uint32_t *ir_roots(const eas_ir *ir, arena *mem);
/* Intervals of integer and bool values, for given ranges of scalars and grid. */
typedef struct ir_range {
    int64_t lo, hi;
} ir_range; /* lo <= hi */
typedef struct ir_env {
    const ir_range *scalar; /* per parameter; NULL: the dtype's whole range */
    int64_t grid[3]; /* program_id(a) < grid[a]; 0: unknown (up to 2^31-1) */
    const int64_t *count; /* per parameter: elements of each buffer; NULL: unknown */
    int64_t first; /* program_id(0) >= first */
} ir_env;
ir_range *ir_ranges(const eas_ir *ir, const ir_env *env, arena *mem);
/* A number above 0 that divides every value of the counter of a loop; r: of ir_ranges. */
int64_t ir_loop_unit(const eas_ir *ir, const ir_range *r, uint32_t loop);
/* The results of one instruction, into r[]; operands' ranges are there already. */
void ir_range_insn(const eas_ir *ir, const ir_env *env, const eas_ir_info *info, const ir_insn *in,
                   ir_range *r);
/* Per instruction: an access whose place rests on data, loaded or carried by a loop, which no interval
 * knows. */
bool *ir_by_data(const eas_ir *ir, arena *mem);
/* Is every access within count[] and within its threadgroup array? Masks of the form off < bound are
 * understood. IR_PROVED_INDEX: all but those for which ir_by_data holds. If none is proved, *insn is the
 * first doubtful one. */
typedef enum ir_proof { IR_PROVED_NONE, IR_PROVED_INDEX, IR_PROVED_ALL } ir_proof;
ir_proof ir_in_bounds(const eas_ir *ir, const ir_env *env, uint32_t *insn);

/* A store to an argument, at a place that depends on program_id(0), which some lane may make and which stays
 * inside for every lane that makes it; UINT32_MAX: there is none. */
uint32_t ir_writes_inside(const eas_ir *ir, const ir_env *env);
bool *ir_depends(const eas_ir *ir, uint16_t op, int64_t imm,
                 /* per value: does it depend on that instruction (for program_id(0) also on global_id)? */
                 arena *mem);

/* ---- linear.c: integers as affine functions: base + sum of lane[d] * (index along d) + sum of program[a]
 * * program_id(a) ---- */
typedef struct ir_coef {
    int64_t k;
    uint32_t by; /* times this scalar; 0: times 1 */
    bool any; /* the same for all lanes, but neither a number nor a number times a scalar */
} ir_coef;
typedef struct ir_linear {
    bool ok; /* it has that form, modulo 2^bits of its dtype; program[] may be `any` all the same */
    bool exact; /* as a number, too: all of it is computed in 64 bits, which are taken not to wrap */
    ir_coef lane[IR_MAX_RANK], program[3];
} ir_linear;
typedef struct ir_linears ir_linears; /* the forms of all values */
/* uniform: per value, is it the same for all lanes? NULL: those of one lane are. Borrowed. NULL: no
 * memory. */
ir_linears *ir_linears_new(const eas_ir *ir, const bool *uniform, arena *mem);
const ir_linear *ir_linear_of(ir_linears *l, uint32_t v);
bool ir_coef_is(ir_coef c, int64_t k); /* is it this number? */
bool ir_coef_number(ir_coef c); /* is it a number? */
bool ir_lane_step(ir_linears *l, uint32_t v,
                  /* of a block with one axis (others have size 1): what one lane more adds, if that is a
                   * number */
                  int64_t *step);
/* the largest power of two (up to 2^62) that is known to divide an integer, in every lane */
uint64_t ir_multiple(const eas_ir *ir, uint32_t v);
uint64_t ir_low_bit(uint64_t x); /* the largest power of two that divides x */
uint64_t ir_multiple_product(uint64_t a, uint64_t b); /* of two such powers, no larger than 2^62 */
/* v = root + add; root 0: v is the constant */
void ir_split_constant(const eas_ir *ir, uint32_t v, uint32_t *root, int64_t *add);
/* The difference between the values of an integer in two successive trips of the loop whose counter is iv,
 * or, if iv is 0, in two successive programs along axis 0, as an expression over values that stay the same.
 * NULL: not known. */
typedef struct ir_step {
    enum { STEP_ZERO, STEP_ONE, STEP_VALUE, STEP_SUM, STEP_TIMES, STEP_CAST } kind;
    /* STEP_VALUE: that scalar; STEP_TIMES: the factor of x; STEP_ONE and STEP_CAST: the value whose dtype it
     * has */
    uint32_t v;
    const struct ir_step *x, *y; /* SUM: both; TIMES, CAST: x */
} ir_step;
const ir_step *ir_step_of(const eas_ir *ir, uint32_t v, uint32_t iv, arena *mem);

/* An integer over a run of n neighbouring lanes as base + stride * lane. The caller keeps the base: machine
 * code in a register, texts as an expression. A result's run follows from those of its operands. */
typedef struct ir_run {
    bool ok; /* it has that form, modulo 2^bits of its dtype */
    bool exact; /* as a number, too */
    /* the same stride leads from run to run, so that it is one line over the whole inner dim (lane % 16 is
     * not) */
    bool whole;
    int64_t stride;
    uint64_t mult; /* a power of two that divides the base */
} ir_run;
ir_run ir_run_still(uint64_t mult); /* the same in every lane */
ir_run ir_run_sum(uint16_t op, const ir_run *x, const ir_run *y); /* add or sub */
ir_run ir_run_scaled(const ir_run *x, int64_t c);
/* neither is a constant: both must be the same in every lane */
ir_run ir_run_product(const ir_run *x, const ir_run *y);
/* x / k or x % k, rounded down, if no run crosses a multiple of k. */
ir_run ir_run_split(bool quotient, const ir_run *x, int64_t k, int n);
/* The places where an instruction touches memory; off 0: places that are not known. Returns how many of out[]
 * are set. */
typedef struct ir_access {
    uint32_t buf, off;
    bool store;
} ir_access;
int ir_accesses(const eas_ir *ir, const ir_insn *in, ir_access out[2]);

/* ---- terms.c: integers as sums of terms, up to a constant ---- */
enum { IR_MAX_TERMS = 10, IR_TERM_PROGRAM = 4, IR_TERM_OTHER = 16 };
typedef struct ir_term {
    uint32_t coord; /* 0..3: lane along that axis; IR_TERM_PROGRAM + axis; IR_TERM_OTHER + value */
    int64_t c;
    uint32_t sym; /* times this scalar, which is the same for the whole launch; 0: times 1 */
} ir_term;
typedef struct ir_terms {
    bool ok; /* it is such a sum */
    int n;
    ir_term t[IR_MAX_TERMS];
} ir_terms;
ir_terms ir_terms_of(const eas_ir *ir, uint32_t v);
void ir_terms_add(ir_terms *f, ir_term t);
/* of a view whose operand has the terms x */
ir_terms ir_terms_viewed(const eas_ir *ir, const ir_insn *in, ir_terms x);
/* what v is spread, reshaped or cast between integers from */
uint32_t ir_through_views(const eas_ir *ir, uint32_t v);

/* ---- rewrite.c: the frame of passes that build a new kernel ---- */
typedef struct ir_rewrite {
    const eas_ir *from;
    eas_builder *b; /* the new kernel */
    uint32_t *map; /* per value of the old kernel: its counterpart in the new one; 0: none yet */
    arena mem; /* for the pass's own tables too: freed at the end */
} ir_rewrite;
/* Zeroed before; whatever it returns, one of the three ends follows, two of them with the status so far. */
eas_status ir_rewrite_begin(ir_rewrite *w, const eas_ir *from);
eas_status ir_rewrite_end(ir_rewrite *w, eas_status st, eas_ir **out);
eas_status ir_rewrite_end_simple(ir_rewrite *w, eas_status st, eas_ir **out); /* and simplifies */
void ir_rewrite_drop(ir_rewrite *w); /* no kernel comes of it */
/* Instructions that are built from now on carry the source line of instruction i. */
const ir_insn *ir_rewrite_at(ir_rewrite *w, uint32_t i);
/* operand k of an old instruction, in the new kernel */
uint32_t ir_rewrite_arg(const ir_rewrite *w, const ir_insn *in, int k);
void ir_rewrite_args(const ir_rewrite *w, const ir_insn *in, uint32_t *args);
void ir_rewrite_copy(ir_rewrite *w, uint32_t i);
/* Copies an instruction of a region without some of the values that pass through it: operand head + k and
 * result own + k only where keep[k]. */
void ir_rewrite_some(ir_rewrite *w, uint32_t i, int head, int own, const bool *keep);

/* ---- simplify.c, narrow.c, checked.c: new IR from old ---- */
eas_status ir_simplify(const eas_ir *ir, eas_ir **out);
/* contract.c: products that feed one sum joined with it into an fma. */
eas_status ir_contracted(const eas_ir *ir, eas_ir **out);
/* merge.c: the kernel without instructions that nothing needs, and without merges and carried values that
 * change nothing; *changed is set if there was one of the latter. */
eas_status ir_swept(const eas_ir *ir, eas_ir **out, bool *changed);
/* A 32-bit form: i64 values that are computed (not loaded) become u32 or i32. It means the same as `ir`
 * for a launch for which ir_narrow_ok says so. *out is NULL when there is nothing to narrow. */
typedef struct ir_narrow {
    uint32_t n;
    uint32_t *value;
    uint8_t *dtype;
} ir_narrow; /* obligations on values of the wide IR */
eas_status ir_narrowed(const eas_ir *ir, eas_ir **out, ir_narrow *need);
void ir_narrow_free(ir_narrow *need);
bool ir_narrow_ok(const eas_ir *ir, const ir_narrow *need, const ir_env *env);
/* Every load, store, atomic and dot guarded: `bounds` for global memory; simdgroup matrices are left as
 * they are. With `proved`, the IR that this one is a form of and of which IR_PROVED_INDEX is known, only
 * accesses for which ir_by_data holds. */
eas_status ir_checked(const eas_ir *ir, const eas_ir *proved, eas_ir **out);
/* demand.c: every load gets as a mask the lanes that stores need of it; `ir` itself, retained, if nothing is
 * known about that. */
eas_status ir_demanded(const eas_ir *ir, eas_ir **out);
/* The kernel without asserts; `ir` itself, retained, if it has none. */
eas_status ir_unasserted(const eas_ir *ir, eas_ir **out);
bool ir_asserts(const eas_ir *ir);

/* ---- many.c ---- */
/* A kernel over many sets of arguments, with one more axis of programs. batched: per parameter, is it a
 * buffer that holds all sets? For each such buffer a parameter is added at the end: the number of elements of
 * one set. */
eas_status ir_many(const eas_ir *ir, const uint8_t *batched, int axis, eas_ir **out);

/* ---- lanes.c ---- */
/* A kernel of threads as one of blocks. origin: per instruction of the new kernel, the index of the one that
 * it comes from; free it. The order of lanes between barriers is not defined. */
eas_status ir_as_lanes(const eas_ir *ir, eas_ir **out, uint32_t **origin);

/* ---- math.c: elementary functions spelled out ---- */
/* Every IR_EXPAND instruction replaced but those to keep; `ir` itself, retained, if there is none. */
enum {
    IR_KEEP_NATIVE = 1, /* what C-like languages have a function for */
    IR_KEEP_LDEXP = 2 /* of f32 and f64: the machine has it */
};
eas_status ir_expanded(const eas_ir *ir, unsigned keep, eas_ir **out);
/* one of them; y is 0 for functions of one operand */
uint32_t ir_spell(eas_builder *b, uint16_t op, uint32_t x, uint32_t y);

/* ---- math_inverse.c ---- */
/* Inverse functions of f32 or f64. With two operands of one type, x is the first argument of C's function, y
 * the second; else y is 0. */
typedef enum ir_inverse_fn { IR_ASIN, IR_ACOS, IR_ATAN, IR_ATAN2, IR_CBRT } ir_inverse_fn;
uint32_t ir_inverse(eas_builder *b, ir_inverse_fn fn, uint32_t x, uint32_t y);

/* ---- random.c ---- */
/* All numbers of one step of Philox, of which eas_builder_rand gives the first: 4, or 2 of 64 bits. Gives how
 * many; 0 after an error. */
int ir_rand_all(eas_builder *b, eas_value seed, eas_value offset, eas_rand_kind kind, eas_value values[4]);

/* ---- records.c: print ---- */
typedef struct ir_records {
    int64_t limit; /* lines */
    int64_t cap, stride; /* places for records, and words of each */
} ir_records;
bool ir_prints(const eas_ir *ir);
/* Each print as stores into two buffers of u32 that become the last parameters: count[2], zero before
 * (records written, records without a place), and the records, cap * stride words. */
eas_status ir_printed(const eas_ir *ir, int64_t limit, eas_ir **out, ir_records *rec);
/* The text of the records, as lines in the order of programs; ir: the kernel before ir_printed. False: no
 * memory. */
bool ir_add_records(str *s, const eas_ir *ir, const ir_records *rec, const uint32_t count[2],
                    const uint32_t *words, const int64_t grid[3]);

/* ---- interp.c ---- */
typedef struct ir_call {
    /* per parameter: address of element 0, or the scalar's bits (zero- or sign-extended as constants are) */
    const uint64_t *slot;
    const int64_t *count; /* per parameter: elements of a buffer */
    int64_t grid[3];
    int (*interrupted)(void *);
    void *ctx; /* of `interrupted`, which is called between programs */
    void (*print)(void *print_ctx, const char *text, size_t n); /* NULL: standard output */
    void *print_ctx;
} ir_call;
/* Runs every program in order. Out-of-bounds accesses stop it with ERR_INDEX and a full message. */
eas_status ir_interp(const eas_ir *ir, const ir_call *call);

/* ---- check.c: the same, with every access looked at; `ir` has elementary functions spelled out ---- */
typedef struct ir_place {
    uint32_t insn;
    const char *file; /* the IR's; NULL if unknown */
    int line;
    int64_t program[3], thread; /* thread: -1 in SPMD mode */
} ir_place;
typedef struct ir_finding {
    eas_finding_kind kind;
    uint32_t buf; /* the value; 0: none */
    int64_t index, count;
    ir_place at[2];
} ir_finding;
typedef struct ir_report {
    VEC(ir_finding) findings;
    bool oom;
} ir_report;
eas_status ir_check(const eas_ir *ir, const ir_call *call, ir_report *report);

/* ---- eval.c: one element-wise instruction on slots (see ir_const_of); the constant folder and the
 * interpreter share it. dt: dtype of the operands (where: ignored); to: dtype of the result of cast and
 * bitcast. False for other instructions. */
bool ir_eval_lanes(uint16_t op, eas_dtype dt, eas_dtype to, int64_t n, const int64_t *a, const int64_t *b,
                   const int64_t *c, int64_t *r);
bool ir_eval(uint16_t op, eas_dtype dt, eas_dtype to, const int64_t *args, int64_t *out);
/* The text of what `bounds` or `assert` found, the same on every device; index: the offset, or the lane
 * (or thread); count: elements of each parameter. */
eas_status ir_fault_message(const eas_ir *ir, uint32_t insn, int64_t index, const int64_t *count,
                            const int64_t pid[3], int64_t thread);
bool ir_faults(const eas_ir *ir); /* has `bounds` or `assert`: needs a place to report to */

#endif
