/* llvm.h: what the files of the LLVM generator share.
 *
 *   compile.c      entry point: plan, function, object, image
 *   target.c       the target machine
 *   function.c     parameters, the loop over programs
 *   flow.c         loops and branches
 *   scalar.c       uniform instructions
 *   segment.c      a segment: loops over chunks, with and without masks and non-temporal stores
 *   chunk.c        the instructions of one chunk
 *   values.c       values of a chunk, on demand
 *   affine.c       integer values as base + stride*lane; prefix masks
 *   prefetch.c     what the next round of a loop, or the next program, will read
 *   elementwise.c  element-wise instructions on scalars and vectors
 *   table.c        choices among constants, as look-ups in registers
 *   float.c        what hardware may lack: f16, bf16, rounding, fma, fmod
 *   memory.c       loads, stores, gathers, bounds
 *   atomic.c       read-modify-write
 *   dot.c          dot and simdgroup matrices
 *   fold.c         reductions inside a segment; scans and transposes as segments of their own
 *   matmul.c       the register tiles of a matrix product
 *   bf16.c         products of bf16 blocks: pairs for vdpbf16ps, tiles of AMX
 *   output.c       large blocks in the output that they end up in
 *   poll.c         loops that may never end ask whether to go on
 *   guard.c        running out of memory inside LLVM
 *   build.c        types, constants and small expressions
 */
#ifndef GEN_LLVM_H
#define GEN_LLVM_H

#include "../plan/plan.h"

#include <llvm-c/Core.h>

typedef LLVMValueRef V;
typedef LLVMTypeRef T;

/* ---- generation ---- */
/* Lane l is base + k + run.stride * l. base is an i64; k stands apart so that it ends up in the
 * displacement of an address. base + k is a multiple of run.mult. */
typedef struct aff {
    ir_run run;
    V base;
    int64_t k;
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
    V first; /* NULL: 0 */
} prefix; /* mask v is true for indices first <= i < count of the inner dim */

typedef struct line { /* an offset at inner index 0, made before the loop over chunks */
    uint32_t v;
    bool next; /* as the next round will have it */
    aff a;
} line;

enum { MOST_LANES = 64 }; /* of a vector: a whole AVX-512 register of bytes */

typedef struct chunk {
    int n; /* lanes */
    shape sh; /* iteration space */
    V idx[IR_MAX_RANK]; /* outer dims: index; innermost: index of lane 0 */
    V exec; /* lanes that run; NULL: all */
    bool full; /* prefix masks hold for every lane */
    bool rows; /* several vectors of rows that a loop adds up */
    enum {
        STREAM_PIECES = 1,
        STREAM_WHOLE
    } stream; /* contiguous stores are non-temporal, in pieces of 16 bytes or aligned vectors; 0: not */
    uint32_t align; /* idx of the innermost dim is a multiple of this */
    V *sval; /* uniform values as it sees them: gen.sval, or gen.next */
    entry **cache; /* per value */
    VEC(made) log; /* in order of making, so that leaving a region forgets what was made in it */
    prefix *pre;
    int npre;
    VEC(line) lines;
    V **regs; /* in rounds, per value: the running results of a reduction; NULL outside */
    int part; /* which chunk of the round it is */
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
    V fn, entry_end; /* entry_end: where allocas go */
    bool x86, sse41, f16c, fma, avx2, avx512, fp16, bf16, amx, vnni;
    bool tiles; /* some product uses those of AMX */
    int64_t pairs_at; /* in scratch, bf16.c */
    int64_t bytes_at; /* bytes.c */
    V call, slots, counts, grid, scratch, fault, flags;
    V zero; /* address of a 0 that lanes which are off may read, once somebody wants it */
    V pid, id[3]; /* the running program, as a number and by axis */
    V *sval; /* per value: uniform values (scalar), buffers (pointer) */
    V *outputs; /* per value: where a block of IN_OUTPUT lies, once that was chosen; NULL: in its slot */
    bool *sums; /* per parameter: the array is this thread's own; NULL: none is */
    frag *frags; /* per value, in the running chunk */
    V *chains; /* per value: the running results of a reduction along the last axis */
    segment *seg; /* the one being emitted */
    chunk *c; /* the chunk being emitted, NULL at scalar level */
    /* uniform values one round of the surrounding loop (or one program) later, NULL if nobody asks */
    V *next;
    bool *moves; /* per value: it depends on that loop's counter */
    entry **next_cache;
    eas_status st; /* sticky */
} gen;

void gen_fail(gen *g, eas_status st, const char *fmt, ...) BASE_PRINTF(3, 4);
static inline bool uniform(const gen *g, uint32_t v) { return g->p.val[v].cls == C_UNI; }

/* build.c: types and constants; n = 0 is a scalar */
T ty_int(gen *g, int bits, int n);
T ty_float(gen *g, int bits, int n); /* 16: half */
T ty_of(gen *g, eas_dtype dt, int n); /* in registers: bool is i1, f16 and bf16 are their bits (i16) */
T ty_mem(gen *g, eas_dtype dt, int n); /* in memory: bool is i8 */
V k_int(gen *g, int64_t v); /* i64 */
V k_like(gen *g, T t, int64_t v); /* integer constant or splat of type t */
V k_float(gen *g, T t, double v); /* float constant or splat of type t */
V k_bits(gen *g, eas_dtype dt, int n, int64_t bits);
V k_iota(gen *g, T elem, int n, int64_t stride);
int lanes_of(T t); /* 0: scalar */
T with_bits(gen *g, T like, int bits); /* integer type with the lanes of `like` */
V splat(gen *g, V x, int n);
V part_of(gen *g, V x, int from, int n); /* float.c: lanes from .. from + n */
V intrinsic(gen *g, const char *name, T *types, int ntypes, V *args, int nargs);
V sel(gen *g, V c, V a, V b);
V any_of(gen *g, V mask); /* i1: some lane */
V all_of(gen *g, V mask); /* i1: every lane of a vector */
V mask_bits(gen *g, V mask, int n); /* integer of n bits */
V entry_alloca(gen *g, T t);
LLVMBasicBlockRef new_block(gen *g, const char *name);
void branch_to(gen *g, LLVMBasicBlockRef bb);
V mask_and(gen *g, V a, V b); /* NULL is all true */

/* table.c: the choice between a and b by a bit, as a look-up in a table; NULL: it is none */
V table_choice(gen *g, V cond, V a, V b);

/* elementwise.c: operands and results as ty_of says, scalar or vector */
V value_insn(gen *g, uint16_t op, eas_dtype dt, V a, V b, V c);
V value_cast(gen *g, V x, eas_dtype from, eas_dtype to);
V value_bitcast(gen *g, V x, eas_dtype from, eas_dtype to);

/* float.c */
V float_up(gen *g, V x, eas_dtype dt); /* f16, bf16 bits -> f32; others unchanged */
V float_down(gen *g, V x, eas_dtype dt); /* f32 -> f16, bf16 bits; others unchanged */
V float_narrow(gen *g, V x, eas_dtype to); /* f64 -> f16, bf16 bits, one rounding */
V float_odd(gen *g, V x); /* f64 -> f32, rounded to odd */
V float_round(gen *g, uint16_t op, V x); /* floor, ceil, trunc, round of f32, f64 */
V float_fma(gen *g, V a, V b, V c);
V float_ldexp(gen *g, V a, V b); /* a 2^b of f32, f64 */
V float_mod(gen *g, V a, V b); /* fmod of f32, f64 */
V float_abs(gen *g, V x);

/* affine.c */
aff affine_of(gen *g, uint32_t v, map_t m); /* integer value in the running chunk */
aff affine_at(gen *g, chunk *c, uint32_t v, map_t m); /* in any chunk */
aff affine_identity(gen *g, chunk *c, const ir_insn *in, map_t m); /* arange, thread_id and the like */
V affine_base(gen *g, aff a); /* base + k */
V affine_vector(gen *g, aff a, eas_dtype dt);
/* Fills c->pre with the prefix masks of the segment, the chunk standing at inner index 0. Gives the count
 * beyond which nothing happens, NULL if there is none. */
V affine_prefixes(gen *g, segment *s);
/* a uniform or rematerialised value that needs nothing made in the segment */
bool affine_early(gen *g, uint32_t v);
V affine_prefix_vector(gen *g, uint32_t v); /* a mask in c->pre, NULL if it is not */
/* At the start of a round of a loop in a full chunk: i1, whether the masks in its body that can be told by
 * then hold for all lanes; NULL if there are none. Enters them into c->pre, where only code that runs under
 * that condition may see them. */
V affine_round(gen *g, uint32_t opener);
bool affine_holds(gen *g, uint32_t v); /* a mask known to be true for all lanes of the chunk */

/* values.c */
V seg_vector(gen *g, uint32_t v, map_t m); /* value in the running chunk */
V seg_here(gen *g, uint32_t v); /* the same, through the identity map */
V seg_mask(gen *g, uint32_t v); /* as seg_here, NULL if all lanes are known to be true */
V seg_scalar(gen *g, uint32_t v); /* lane 0 of the chunk (simdgroup operands) */
V seg_elementwise(gen *g, const ir_insn *in, map_t m); /* a pure instruction, or a move, computed anew */
void seg_define(gen *g, uint32_t v, V x); /* enters a result, and stores it to its slot */
void seg_set(gen *g, uint32_t v, V x); /* enters it only */
/* a uniform value made inside the segment and wanted after it goes to its slot */
void seg_publish(gen *g, uint32_t v);
V seg_linear(gen *g, const shape *sh, map_t m, int64_t *stride); /* row-major number of lane 0 */
/* one lane of a block of two dims; false: no memory. Free out->log */
bool chunk_at(gen *g, shape sh, V row, V col, chunk *out);
entry *chunk_find(const chunk *c, uint32_t v, map_t m); /* what is remembered of (v, m), NULL if nothing is */
void chunk_remember(gen *g, chunk *c, uint32_t v, map_t m, V vec, const aff *a); /* vec or a */
/* what was remembered since its log had that length; c may be NULL */
void chunk_forget(chunk *c, uint32_t mark);
map_t seg_map(gen *g);
frag seg_frag(gen *g, uint32_t v);
void seg_define_frag(gen *g, uint32_t v, const frag *f);
void seg_put_frag(gen *g, uint32_t v, const frag *f); /* to its slot */

/* prefetch.c */
void next_values(gen *g, const segment *s); /* before the segment: fills g->next, or leaves it NULL */
/* offsets of its accesses and prefetches as lines, the chunk standing at inner index 0 */
void offset_lines(gen *g, const segment *s);
bool seg_available(gen *g, uint32_t v); /* an integer that needs only uniform values that are there */
aff seg_offset(gen *g, chunk *c, uint32_t v); /* an offset, from its line where it has one */
/* one round of the surrounding loop later; not ok if it stays or is not affine */
aff next_offset(gen *g, const chunk *c, uint32_t v);
void prefetch_load(gen *g, uint32_t buf, aff off);
void prefetch_further(gen *g, uint32_t buf, aff off); /* what the next chunk will read of the same row */
void prefetch_chunk(gen *g, const prefetch *x); /* the lanes of the running chunk */
shape prefetch_reach(const gen *g, const prefetch *x); /* the lanes that it reads or writes */
void prefetch_at(gen *g, const prefetch *x, V row, V col); /* one element of it, of two dims */

/* chunk.c */
void chunk_emit(gen *g, const segment *s);
void chunk_range(gen *g, uint32_t from, uint32_t to); /* instructions and regions inside a chunk */

/* segment.c */
void seg_emit(gen *g, segment *s);

/* flow.c */
void flow_steps(gen *g, const steps *s);
void flow_region(gen *g, uint32_t opener); /* inside a chunk */
/* A value that crosses regions inside a chunk: a scalar, a vector or eight rows. */
typedef struct bundle {
    V v[8];
    int n;
} bundle;
bundle bundle_get(gen *g, uint32_t like, uint32_t v); /* v in the form of `like` */
typedef struct loop {
    LLVMBasicBlockRef from, head, done; /* head NULL: there is one round */
    V iv, end; /* end: where the test comes last */
    int64_t step;
} loop; /* iv from lo on, below hi */
loop loop_open(gen *g, V lo, V hi, int64_t step);
/* right after loop_open: a value that goes from round to round */
V loop_carry(gen *g, const loop *l, V first);
void loop_carried(gen *g, const loop *l, V carry, V next); /* right before loop_close: what it is then */
void loop_close(gen *g, const loop *l);
/* Counted loops: does it start; is there a step from iv to the next, without wrapping? Scalars or vectors. */
V loop_first(gen *g, V iv, V hi, V step, bool is_signed);
V loop_next(gen *g, V iv, V hi, V step, bool is_signed);

/* memory.c */
V mem_slot(gen *g, int64_t off); /* address in scratch */
V mem_streams(gen *g); /* i1: the stores of this call are non-temporal */
/* the address of lane 0 of an affine offset, `more` elements on */
V mem_affine_element(gen *g, V ptr, eas_dtype dt, aff a, int64_t more);
V mem_count(gen *g, uint32_t buf); /* elements of a buffer or threadgroup array */
V mem_load_scalar(gen *g, V ptr, eas_dtype dt, V off);
void mem_store_scalar(gen *g, V ptr, eas_dtype dt, V off, V x);
V mem_load_affine(gen *g, V ptr, eas_dtype dt, aff off, V mask, V other);
V mem_load_vector(gen *g, V ptr, eas_dtype dt, V off, V mask, V other);
void mem_load(gen *g, uint32_t insn); /* in a chunk */
/* lanes that follow each other in memory */
void mem_store_row(gen *g, V ptr, eas_dtype dt, aff off, V mask, V x);
V mem_reload(gen *g, uint32_t insn); /* what a load of an earlier segment gave, from the same place */
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

/* output.c */
void output_choose(gen *g, const segment *s);
V output_or_slot(gen *g, uint32_t v); /* the address of a block in memory */

/* atomic.c */
void atomic_insn(gen *g, uint32_t insn); /* in a chunk, lane after lane */
void atomic_scalar(gen *g, uint32_t insn);
void atomic_fence(gen *g, uint32_t insn);

/* dot.c */
void dot_insn(gen *g, uint32_t insn); /* in a chunk */
void dot_scalar(gen *g, uint32_t insn);
void mma_insn(gen *g, uint32_t insn); /* MMA_ZERO, MMA, MMA_STORE in a simdgroup chunk */

/* fold.c */
void fold_chunk(gen *g, uint32_t insn); /* a reduction takes in the chunk */
/* Lanes of a round of the segment's reductions along the last axis; 0: none can be done so. */
int64_t fold_round(gen *g, const segment *s);
/* Whole rounds from inner index 0 to hi; chunk_at makes the chunk at an index. */
void fold_rounds(gen *g, const segment *s, V hi, int64_t w, void chunk_at(gen *, const segment *, V));
void fold_finish(gen *g, const segment *s); /* after the last chunk of the innermost dim */
void whole_insn(gen *g, const segment *s);

/* matmul.c */
typedef enum words_kind { WORDS_NONE, WORDS_BF16, WORDS_QUADS, WORDS_QUADS_TURNED, WORDS_SHORTS } words_kind;
typedef struct matmul {
    eas_dtype dt; /* of the sums, and of the factors unless they are bf16 */
    V x, y, acc, out; /* addresses; acc NULL: start is the constant */
    V xs, ys, start; /* operands of one element: the scalar */
    V xstep, ystep; /* elements from one k to the next */
    int64_t xrow; /* elements from one row of x to the next */
    V xrows; /* the same of a bf16 factor, where it need not be a number */
    bool xfar, yfar; /* read in place, from beyond the nearest cache */
    words_kind words; /* what an element of x and y is, if not a number of its own */
    V bias; /* per column: added to the start of every sum; or NULL */
    int64_t m, n, k;
    const segment *seg;
    int64_t tiles; /* in all, about */
} matmul;
void matmul_insn(gen *g, const segment *s);
/* In one of the `rounds` rounds of tile `number`: prefetches its share of what the next round of the loop
 * around reads, spread so that the tile's own loads do not wait. */
void matmul_prefetch(gen *g, const matmul *p, V number, V round, int64_t rounds);
/* how many lines of a load that is at most; 0: there is nothing to prefetch */
int64_t matmul_share(gen *g, const matmul *p, int64_t rounds);

/* bf16.c */
eas_status bf16_factors(gen *g); /* before the plan: products take bf16 as it is, where the machine does */
void bf16_reserve(gen *g); /* after it: scratch for the pairs */
void bf16_begin(gen *g); /* at both ends of the kernel */
void bf16_end(gen *g);
bool bf16_product(gen *g, matmul *p); /* true: done; false: its factors are pairs now */
V bf16_step(gen *g, V x, V y, V sum); /* two steps of k, the first in the upper halves */

/* bytes.c: the same of i8 and u8 */
eas_status bytes_factors(gen *g);
void bytes_reserve(gen *g);
void bytes_product(gen *g, matmul *p, ir_type x, ir_type y);
V bytes_step(gen *g, const matmul *p, V x, V y, V sum);

/* poll.c: of a loop whose rounds are not counted: at its head among the phis (from: the block before it),
 * and where it goes back, in the block that then does */
typedef struct poll {
    V left, every;
} poll;
poll poll_begin(gen *g, uint32_t opener, LLVMBasicBlockRef from);
void poll_end(gen *g, poll *l);

/* guard.c: fn(ctx), which may call LLVM. False: LLVM gave up and what it had made is lost; why: its last
 * words, or "" where it had no memory. */
bool llvm_guarded(void (*fn)(void *ctx), void *ctx, char *why, size_t room);

/* scalar.c: a uniform instruction, at scalar level or inside a chunk */
void scalar_insn(gen *g, uint32_t insn);
/* the result of one without effects, of operands in sval */
V scalar_value(gen *g, V *sval, const ir_insn *in);
V grid_axis(gen *g, int64_t axis);

/* function.c */
void function_emit(gen *g);

/* target.c */
void target_read_isa(gen *g);
/* the module as assembly or as an object */
eas_status target_emit(gen *g, bool assembly, LLVMMemoryBufferRef *out);

#endif
