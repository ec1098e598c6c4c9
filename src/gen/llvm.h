/* llvm.h: what the files of the LLVM generator share.
 *
 *   llvm_plan.c    classes of values, segments                                (no LLVM)
 *   llvm_rare.c    what only few lanes ever need                               (no LLVM)
 *   llvm_lent.c    factors of products that stay in global memory              (no LLVM)
 *   llvm_slots.c   slots in scratch, prefetches                                (no LLVM)
 *   llvm_home.c    large blocks that wait where they are stored in the end
 *   llvm.c         entry point, target, the loop over programs, scalar code and scalar-level control flow
 *   llvm_seg.c     a segment: loops over chunks, variants, control flow inside a chunk, values on demand
 *   llvm_affine.c  integer values as base + stride*lane; prefix masks
 *   llvm_value.c   element-wise instructions on scalars and vectors
 *   llvm_float.c   what hardware may lack: f16, bf16, rounding, fma, fmod
 *   llvm_mem.c     loads, stores, gathers, bounds
 *   llvm_atomic.c  read-modify-write
 *   llvm_dot.c     dot and simdgroup matrices
 *   llvm_fold.c    reductions inside a segment; scans, matrix products and transposes as segments of their own
 *   llvm_matmul.c  the register tiles of a matrix product
 *   llvm_bf16.c    products of bf16 blocks: pairs for vdpbf16ps, tiles of AMX
 *
 * A kernel is a tree of steps: scalar instructions, segments and scalar-level regions. A *segment* is a run of block
 * instructions of one iteration shape that may be executed chunk by chunk: a chunk is `n` neighbouring lanes of the innermost dim, all of
 * its values are LLVM vectors of n elements. Shapes are canonical: dims of size 1 are dropped, so a block with one lane is a
 * scalar. In thread mode a value that differs between threads has the shape (threads).
 */
#ifndef GEN_LLVM_H
#define GEN_LLVM_H

#include "gen.h"

#include <llvm-c/Core.h>

typedef LLVMValueRef V;
typedef LLVMTypeRef T;

/* ---- classes of values (llvm_plan.c) ---- */
enum {
    C_NONE,    /* buffers and threadgroup arrays */
    C_UNI,     /* one scalar for all lanes */
    C_REMAT,   /* cheap function of lane index and uniforms: computed wherever it is wanted */
    C_VIEW,    /* broadcast or reshape of a C_BLOCK: never computed, its source is read through an index map */
    C_LENT,    /* a factor that is read where it lies (llvm_lent.c): a load, in global memory; the transpose of one, or of a block in its slot */
    C_BLOCK,   /* computed in its segment; kept in scratch if wanted elsewhere */
    C_FRAG     /* simdgroup matrix: eight vectors of eight f32 per simdgroup */
};

/* An index map: for each canonical dim of a value the iteration dim that indexes it, or NODIM for index 0. Packed 4 bits each. */
enum { NODIM = 15 };
typedef uint16_t map_t;
#define MAP_LINEAR 0xffffu /* reshaped: no dim-wise map; read by row-major number */

typedef struct shape {
    int rank;
    int32_t dim[IR_MAX_RANK];
} shape;

typedef struct vinfo {
    uint8_t cls;
    uint8_t inseg;     /* C_UNI defined inside a segment */
    uint8_t needs_slot;
    uint8_t again;     /* a load that other segments do again instead of reading a slot */
    uint16_t cost;     /* of recomputing, C_REMAT */
    uint32_t seg;      /* segment that defines it; 0: none */
    int64_t slot;      /* offset in scratch, -1: none */
    int32_t pitch;     /* 0, or elements from one row to the next in its slot */
    int64_t step;      /* C_LENT: elements from one row of the load to the next; 0: known when it runs */
    uint32_t late;     /* 0, or the segment at whose end it is there: a reduction, and what is recomputed from one */
    uint32_t same_slot; /* final values of loops live where the carried ones do: that value, or 0 */
    shape sh;
} vinfo;

/* ---- the plan ---- */
typedef struct steps steps;
typedef struct item { /* of a segment */
    uint32_t insn;      /* an instruction, or the opener of a region that runs inside the chunk */
    uint32_t src, dst;  /* insn == UINT32_MAX: copy src to the slot of dst */
    uint32_t rare;      /* 0, or the instruction `where` that is the first to want it: made there, if a lane does */
    bool chooses;       /* that `where` */
} item;
typedef struct ahead { /* a load or store that another segment asks for */
    uint32_t insn;
    bool next;          /* as the next program will do it */
    uint8_t half;       /* 0: all of it, at the pace of the segment; 1, 2: only that half of its row, at half the pace */
} ahead;
typedef struct segment {
    uint32_t id;
    shape sh;
    enum { SEG_CHUNKS, SEG_SIMDGROUPS, SEG_WHOLE } kind; /* SEG_WHOLE: one instruction on blocks in their slots */
    bool reduces;
    VEC(item) items;
    VEC(ahead) ahead;
} segment;
typedef struct step {
    enum { S_SCALAR, S_SEGMENT, S_REGION } kind;
    uint32_t insn;      /* S_SCALAR: instruction; S_REGION: opener */
    segment *seg;
    steps *body, *other; /* LOOP: body. WHILE: condition, body. IF: then, else */
} step;
struct steps {
    VEC(step) v;
};

/* What is added to an offset from one program to the next: k, or k times the parameter `by`. */
typedef struct pace {
    int64_t k;
    uint32_t by;
} pace;
typedef struct home { /* block v waits where an instruction stores what is made of it */
    uint32_t v, store;
    pace pace[3]; /* along each axis of the grid */
} home;

typedef struct plan {
    const eas_ir *ir;
    arena *mem;
    eas_ir_info info;
    bool alias;              /* gen_options.alias */
    bool alias_sensitive;    /* out */
    uint32_t *end;           /* region ends */
    uint32_t *parent;        /* per instruction: the innermost opener around it, UINT32_MAX */
    vinfo *val;
    ir_range *range;
    steps *top;
    uint32_t nsegs;
    uint64_t scratch;
    bool *hosted;            /* per instruction: a load that another segment prefetches */
    VEC(home) homes;
    const char *why;         /* refusal, NULL if none */
} plan;

/* slice, pad, trans and shuffles read their operand from its slot, once all of it is there */
static inline bool is_move(const ir_insn *in) { return ir_rows[in->op].rule == IR_RULE_MOVE || in->op == IR_SIMD_SHUFFLE; }
static inline bool is_reduce(const ir_insn *in) { return ir_rows[in->op].rule == IR_RULE_REDUCE; }
bool plan_whole(const plan *p, const ir_insn *in); /* runs as a segment of its own */
bool plan_injective(const plan *p, uint32_t off); /* no two lanes of an offset are equal, for sure */
int plan_canon_dim(ir_type t, int d); /* the canonical number of dim d, or NODIM if it has size 1 */

/* llvm_slots.c */
void plan_slots(plan *p, const uint32_t *iseg);
void plan_prefetch(plan *p);
bool plan_peeks(const eas_ir *ir, const ir_insn *in); /* a load whose value for the next round may be read early */
bool plan_stays(const plan *p, uint32_t v); /* can any later segment compute it? */
bool plan_plain_reader(const plan *p, uint32_t user, uint32_t def, uint32_t v); /* takes v lane by lane, in the region of its definition */
bool plan_reads(const plan *p, const ir_insn *in, uint32_t v);
/* llvm_home.c */
void plan_homes(plan *p, const uint32_t *iseg); /* once it is known who needs a slot */
const home *plan_home(const plan *p, uint32_t store); /* the one that a store takes in, or NULL */
/* llvm_lent.c */
int plan_uses(const plan *p, uint32_t v); /* how often instructions read it */
bool plan_neighbours(const plan *p, uint32_t off); /* do neighbouring lanes of an offset stand for neighbouring elements? */
/* llvm_rare.c */
void plan_rare(plan *p);
/* llvm_lent.c */
void plan_lent(plan *p, const bool *uni, bool *lent); /* per value: is it C_LENT? Before there are classes */
bool plan_lent_holds(const plan *p, const bool *lent); /* with classes: can the offsets be computed where the products are? */
uint32_t plan_lent_load(const plan *p, uint32_t v); /* what a C_LENT is the transpose of, else itself: the load, but for plan_turned */
uint32_t plan_turned(const plan *p, uint32_t v); /* the block in its slot that a C_LENT is the transpose of; 0: it is none */
/* llvm_plan.c */
eas_status plan_make(plan *p);
void plan_free(plan *p);
map_t plan_source_map(const plan *p, const ir_insn *in, map_t m); /* of a broadcast or trivial reshape: how its operand is read */
shape plan_shape(const plan *p, ir_type t);     /* canonical */
int64_t shape_lanes(const shape *s);
bool shape_eq(const shape *a, const shape *b);
map_t map_identity(int rank);
static inline int map_get(map_t m, int d) { return m >> (4 * d) & 15; }
/* Follows broadcasts and reshapes from v (read through *m) to the value that holds the data. *m is updated; MAP_LINEAR with *lin = the
 * shape whose row-major numbers index it when a reshape is in the way. */
typedef struct view {
    uint32_t v;
    map_t m;
    bool linear;
    shape lin;
    map_t linmap;
} view;
view plan_resolve(const plan *p, uint32_t v, map_t m);
bool plan_identity(const plan *p, const view *w, const shape *sh); /* lane for lane */
bool plan_fits(const plan *p, uint16_t op, uint32_t a, uint32_t b, eas_dtype dt); /* the exact result lies in dt */
bool plan_cast_fits(const plan *p, uint32_t v, eas_dtype dt);

/* ---- generation ---- */
/* Lane l is base + k + stride*l modulo 2^bits of its dtype; exact: as a number, too. base is an i64; k stands apart so that it ends up in the
 * displacement of an address. base + k is a multiple of mult, a power of two. whole: the same stride leads from chunk to chunk, so that it
 * is one line over the whole inner dim (lane % 16 is not). */
typedef struct aff {
    bool ok, exact, whole;
    V base;
    int64_t k, stride;
    uint64_t mult;
} aff;
typedef struct entry {
    struct entry *next;
    uint32_t v;
    map_t m;
    uint8_t has_vec, has_aff;
    V vec;
    aff a;
} entry;
typedef struct made {
    entry *e;
    bool affine;
} made; /* the vector or the affine form of an entry */
typedef struct prefix {
    uint32_t v;
    V count;
} prefix; /* mask v is true for the first `count` indices of the inner dim */

typedef struct line { /* an offset at inner index 0, made before the loop over chunks */
    uint32_t v;
    bool ahead;
    aff a;
} line;

typedef struct chunk {
    int n;               /* lanes */
    shape sh;            /* iteration space */
    V idx[IR_MAX_RANK];  /* outer dims: index; innermost: index of lane 0 */
    V exec;              /* lanes that run; NULL: all */
    bool full;           /* prefix masks hold for every lane */
    enum {
        STREAM_PIECES = 1,
        STREAM_WHOLE
    } stream; /* contiguous stores go past the caches: 16 bytes at a time, or as aligned vectors; 0: they do not */
    uint32_t align;      /* idx of the innermost dim is a multiple of this */
    entry **cache;       /* per value */
    VEC(made) log;       /* in order of making, so that leaving a region forgets what was made in it */
    prefix *pre;
    int npre;
    VEC(line) lines;
    V **regs;            /* in rounds, per value: the running results of a reduction; NULL outside */
    int part;            /* which chunk of the round it is */
} chunk;

typedef struct frag {
    V row[8];
} frag;

typedef struct gen {
    const eas_ir *ir;
    const gen_options *opt;
    plan p;
    arena mem;
    LLVMContextRef cx;
    LLVMModuleRef mod;
    LLVMBuilderRef b;
    V fn, entry_end;     /* entry_end: where allocas go */
    bool x86, sse41, f16c, fma, avx2, avx512, fp16, bf16, amx, vnni;
    bool tiles;          /* some product uses those of AMX */
    int64_t pairs_at;    /* in scratch, llvm_bf16.c */
    int64_t bytes_at;    /* llvm_bytes.c */
    V call, slots, counts, grid, scratch, fault, flags;
    V pid, id[3];        /* the running program, as a number and by axis */
    V *sval;             /* per value: uniform values (scalar), buffers (pointer) */
    V *homes;            /* per value: where it waits, once that was chosen; NULL: in its slot */
    frag *frags;         /* per value, in the running chunk */
    V *chains;           /* per value: the running results of a reduction along the last axis */
    segment *seg;        /* the one being emitted */
    chunk *c;            /* the chunk being emitted, NULL at scalar level */
    V *ahead;            /* uniform values one round of the surrounding loop later, NULL if not looked for */
    bool *moves;         /* per value: it depends on that loop's counter */
    entry **ahead_cache;
    eas_status st;       /* sticky */
} gen;

void gen_fail(gen *g, eas_status st, const char *fmt, ...) BASE_PRINTF(3, 4);

/* types and constants; n = 0 is a scalar */
T ty_int(gen *g, int bits, int n);
T ty_float(gen *g, int bits, int n);        /* 16: half */
T ty_of(gen *g, eas_dtype dt, int n);       /* in registers: bool is i1, f16 and bf16 are their bits (i16) */
T ty_mem(gen *g, eas_dtype dt, int n);      /* in memory: bool is i8 */
V k_int(gen *g, int64_t v);                 /* i64 */
V k_like(gen *g, T t, int64_t v);           /* integer constant or splat of type t */
V k_float(gen *g, T t, double v);           /* float constant or splat of type t */
V k_bits(gen *g, eas_dtype dt, int n, int64_t bits);
V k_iota(gen *g, T elem, int n, int64_t stride);
int lanes_of(T t);                          /* 0: scalar */
T with_bits(gen *g, T like, int bits);      /* integer type with the lanes of `like` */
V splat(gen *g, V x, int n);
V intrinsic(gen *g, const char *name, T *types, int ntypes, V *args, int nargs);
V sel(gen *g, V c, V a, V b);
V any_of(gen *g, V mask);                   /* i1: some lane */
V mask_bits(gen *g, V mask, int n);         /* integer of n bits */
V entry_alloca(gen *g, T t);
LLVMBasicBlockRef new_block(gen *g, const char *name);
void branch_to(gen *g, LLVMBasicBlockRef bb);
V mask_and(gen *g, V a, V b);               /* NULL is all true */

/* llvm_value.c: operands and results as ty_of says, scalar or vector */
V value_insn(gen *g, uint16_t op, eas_dtype dt, V a, V b, V c);
V value_cast(gen *g, V x, eas_dtype from, eas_dtype to);
V value_bitcast(gen *g, V x, eas_dtype from, eas_dtype to);

/* llvm_float.c */
V float_up(gen *g, V x, eas_dtype dt);      /* f16, bf16 bits -> f32; others unchanged */
V float_down(gen *g, V x, eas_dtype dt);    /* f32 -> f16, bf16 bits; others unchanged */
V float_narrow(gen *g, V x, eas_dtype to);  /* f64 -> f16, bf16 bits, one rounding */
V float_odd(gen *g, V x);                   /* f64 -> f32, rounded to odd */
V float_round(gen *g, uint16_t op, V x);    /* floor, ceil, trunc, round of f32, f64 */
V float_fma(gen *g, V a, V b, V c);
V float_ldexp(gen *g, V a, V b);            /* a 2^b of f32, f64 */
V float_mod(gen *g, V a, V b);              /* fmod of f32, f64 */
V float_abs(gen *g, V x);

/* llvm_affine.c */
aff affine_of(gen *g, uint32_t v, map_t m); /* integer value in the running chunk */
aff affine_identity(gen *g, const ir_insn *in, map_t m); /* arange, thread_id and the like */
V affine_base(gen *g, aff a);               /* base + k */
V affine_vector(gen *g, aff a, eas_dtype dt);
/* Fills c->pre with the prefix masks of the segment, the chunk standing at inner index 0. Gives the count beyond which nothing
 * happens, NULL if there is none. */
V affine_prefixes(gen *g, segment *s);
bool affine_early(gen *g, uint32_t v);      /* a uniform or rematerialised value that needs nothing made in the segment */
V affine_prefix_vector(gen *g, uint32_t v); /* a mask in c->pre, NULL if it is not */
bool affine_holds(gen *g, uint32_t v);      /* a mask known to be true for all lanes of the chunk */

/* llvm_seg.c */
void seg_emit(gen *g, segment *s);
V seg_vector(gen *g, uint32_t v, map_t m);  /* value in the running chunk */
V seg_here(gen *g, uint32_t v);             /* the same, through the identity map */
V seg_mask(gen *g, uint32_t v);             /* as seg_here, NULL if all lanes are known to be true */
V seg_scalar(gen *g, uint32_t v);           /* lane 0 of the chunk (simdgroup operands) */
void seg_define(gen *g, uint32_t v, V x);   /* enters a result, and stores it to its slot */
V seg_linear(gen *g, const shape *sh, map_t m, int64_t *stride); /* row-major number of lane 0 */
entry *seg_find(gen *g, uint32_t v, map_t m); /* what is remembered of (v, m), NULL if nothing is */
void seg_remember(gen *g, uint32_t v, map_t m, V vec, const aff *a); /* vec or a */
map_t seg_map(gen *g);
bool seg_available(gen *g, uint32_t v);     /* an integer that needs only uniform values that are there */
aff seg_offset(gen *g, uint32_t v);         /* affine_of an offset, from its line where it has one */
aff seg_ahead(gen *g, uint32_t v);          /* an offset one round of the surrounding loop later; not ok if it stays or is not affine */
frag seg_frag(gen *g, uint32_t v);
void seg_define_frag(gen *g, uint32_t v, const frag *f);
typedef struct loop {
    LLVMBasicBlockRef from, head, done; /* head NULL: there is one round */
    V iv, end;                          /* end: where the test comes last */
    int64_t step;
} loop; /* iv from lo on, below hi */
loop loop_open(gen *g, V lo, V hi, int64_t step);
V loop_carry(gen *g, const loop *l, V first); /* right after loop_open: a value that goes from round to round */
void loop_carried(gen *g, const loop *l, V carry, V next); /* right before loop_close: what it is then */
void loop_close(gen *g, const loop *l);
/* Counted loops: does it start; is there a step from iv to the next, without wrapping? Scalars or vectors. */
V loop_first(gen *g, V iv, V hi, V step, bool is_signed);
V loop_next(gen *g, V iv, V hi, V step, bool is_signed);

/* llvm_mem.c */
V mem_slot(gen *g, int64_t off);            /* address in scratch */
V mem_streams(gen *g);                      /* i1: this call stores past the caches */
V mem_load_scalar(gen *g, V ptr, eas_dtype dt, V off);
void mem_store_scalar(gen *g, V ptr, eas_dtype dt, V off, V x);
V mem_load_affine(gen *g, V ptr, eas_dtype dt, aff off, V mask, V other);
V mem_load_vector(gen *g, V ptr, eas_dtype dt, V off, V mask, V other);
void mem_load(gen *g, uint32_t insn);       /* in a chunk */
void mem_prefetch(gen *g, const ahead *a);
V mem_again(gen *g, uint32_t insn); /* what a load of an earlier segment gave, from the same place */
V mem_peek(gen *g, const ir_insn *load); /* the value of a uniform load, one round of the loop later; anything where that is outside */
shape mem_reach(const gen *g, const ahead *x);                 /* the lanes that it reads or writes */
void mem_prefetch_at(gen *g, const ahead *x, V row, V col);    /* one element of it, of two dims */
void mem_store(gen *g, uint32_t insn);
void mem_bounds(gen *g, uint32_t insn);
void mem_bounds_scalar(gen *g, uint32_t insn);
void mem_assert(gen *g, uint32_t insn); /* in a chunk */
void mem_assert_scalar(gen *g, uint32_t insn);
void mem_spill(gen *g, V to, eas_dtype dt, V x, uint32_t v);

typedef struct lanes { /* a loop over the set bits of a mask, in order */
    LLVMBasicBlockRef head, done;
    V bits, lane;
} lanes;
lanes mem_open_lanes(gen *g, V mask); /* mask NULL: all lanes of the chunk */
void mem_close_lanes(gen *g, const lanes *l);
V mem_element(gen *g, V ptr, eas_dtype dt, V off); /* an address */
/* The first n of a vector's lanes, on machines with masks. other: the lanes behind; NULL: any. */
V mem_read_first(gen *g, V ptr, eas_dtype dt, int lanes, int n, V other);
void mem_write_first(gen *g, V ptr, eas_dtype dt, int n, V x);

/* llvm_home.c */
void home_choose(gen *g, const segment *s);
V home_or_slot(gen *g, uint32_t v);         /* the address of a block in memory */

/* llvm_atomic.c */
void atomic_insn(gen *g, uint32_t insn); /* in a chunk, lane after lane */
void atomic_scalar(gen *g, uint32_t insn);
void atomic_fence(gen *g, uint32_t insn);

/* llvm_dot.c */
void dot_insn(gen *g, uint32_t insn); /* in a chunk */
void dot_scalar(gen *g, uint32_t insn);
void mma_insn(gen *g, uint32_t insn); /* MMA_ZERO, MMA, MMA_STORE in a simdgroup chunk */

/* llvm_fold.c */
void fold_chunk(gen *g, uint32_t insn); /* a reduction takes in the chunk */
/* Lanes of a round of the segment's reductions along the last axis; 0: none can be done so. */
int64_t fold_round(gen *g, const segment *s);
/* Whole rounds from inner index 0 to hi; chunk_at makes the chunk at an index. */
void fold_rounds(gen *g, const segment *s, V hi, int64_t w, void chunk_at(gen *, const segment *, V));
void fold_finish(gen *g, const segment *s); /* after the last chunk of the innermost dim */
void whole_insn(gen *g, const segment *s);

/* llvm_matmul.c */
typedef enum words_kind { WORDS_NONE, WORDS_BF16, WORDS_QUADS, WORDS_QUADS_TURNED, WORDS_SHORTS } words_kind;
typedef struct matmul {
    eas_dtype dt;          /* of the sums, and of the factors unless they are bf16 */
    V x, y, acc, out;      /* addresses; acc NULL: start is the constant */
    V xs, ys, start;       /* operands of one element: the scalar */
    V xstep, ystep;        /* elements from one k to the next */
    int64_t xrow;          /* elements from one row of x to the next */
    V xrows;               /* the same of a bf16 factor, where it need not be a number */
    bool xfar, yfar;       /* lent: read once, from beyond the nearest cache */
    words_kind words;      /* what an element of x and y is, if not a number of its own */
    V bias;                /* per column: added to the start of every sum; or NULL */
    int64_t m, n, k;
    const segment *seg;
    int64_t tiles;         /* in all, about */
} matmul;
void matmul_insn(gen *g, const segment *s);
/* One of the `rounds` rounds of tile `number` asks for its share of what the next round of the loop around reads, spread so that it does not keep the tile's own loads waiting. */
void matmul_prefetch(gen *g, const matmul *p, V number, V round, int64_t rounds);
int64_t matmul_share(gen *g, const matmul *p, int64_t rounds); /* how many lines of a load that is at most; 0: there is nothing to ask for */

/* llvm_bf16.c */
eas_status bf16_factors(gen *g); /* before the plan: products take bf16 as it is, where the machine does */
void bf16_reserve(gen *g); /* after it: scratch for the pairs */
void bf16_begin(gen *g); /* at both ends of the kernel */
void bf16_end(gen *g);
bool bf16_product(gen *g, matmul *p); /* true: done; false: its factors are pairs now */
V bf16_step(gen *g, V x, V y, V sum); /* two steps of k, the first in the upper halves */

/* llvm_bytes.c: the same of i8 and u8 */
eas_status bytes_factors(gen *g);
void bytes_reserve(gen *g);
void bytes_product(gen *g, matmul *p, ir_type x, ir_type y);
V bytes_step(gen *g, const matmul *p, V x, V y, V sum);

/* llvm_look.c: of a loop whose rounds are not counted: at its head among the phis (from: the block before it), and where it goes back, in the block that then does */
typedef struct look {
    V left, every;
} look;
look look_begin(gen *g, uint32_t opener, LLVMBasicBlockRef from);
void look_end(gen *g, look *l);

/* llvm_guard.c: fn(ctx), which may call LLVM. False: LLVM gave up and what it had made is lost; why: its last words, or "" where it had no memory. */
bool llvm_guarded(void (*fn)(void *ctx), void *ctx, char *why, size_t room);

/* llvm.c: a uniform instruction, at scalar level or inside a chunk */
void scalar_insn(gen *g, uint32_t insn);
V grid_axis(gen *g, int64_t axis);

#endif
