/* plan.h: how a kernel runs on the CPU, decided before any code is made. Nothing here knows LLVM.
 *
 * A kernel is a tree of steps: scalar instructions, segments and scalar-level regions. A *segment* is a run
 * of block instructions of one iteration shape that may be executed chunk by chunk: a chunk is `n`
 * neighbouring lanes of the innermost dim, all of its values are LLVM vectors of n elements. Shapes are
 * canonical: dims of size 1 are dropped, so a block with one lane is a scalar. In thread mode a value that
 * differs between threads has the shape (threads).
 */
#ifndef GEN_PLAN_H
#define GEN_PLAN_H

#include "../gen.h"

/* ---- classes of values (classify.c) ---- */
enum {
    C_NONE,    /* buffers and threadgroup arrays */
    C_UNI,     /* one scalar for all lanes */
    C_REMAT,   /* cheap function of lane index and uniforms: computed wherever it is wanted */
    /* broadcast or reshape of a C_BLOCK: never computed, its source is read through an index map */
    C_VIEW,
    /* a factor of a product that is read in place (factor.c): a load, in global memory; the transpose of
     * one, or of a block in its slot */
    C_FACTOR,
    C_BLOCK, /* computed in its segment; kept in scratch if wanted elsewhere */
    C_FRAG /* simdgroup matrix: eight vectors of eight f32 per simdgroup */
};

/* An index map: for each canonical dim of a value the iteration dim that indexes it, or NODIM for index 0.
 * Packed 4 bits each. */
enum { NODIM = 15 };
typedef uint16_t map_t;
#define MAP_LINEAR 0xffffu /* reshaped: no dim-wise map; read by row-major number */

typedef struct shape {
    int rank;
    int32_t dim[IR_MAX_RANK];
} shape;

typedef struct kind { /* what kind of value it is */
    uint8_t cls;
    uint16_t cost; /* of recomputing, C_REMAT */
    shape sh;
} kind;

/* ---- where values are made (segment.c, region.c) ---- */
typedef struct origin {
    uint32_t seg; /* segment that defines it; 0: none */
    bool inside; /* C_UNI, and defined inside of that segment */
    /* 0, or the segment at whose end it is there: a reduction, and what is recomputed from one */
    uint32_t ready;
    /* 0, or the value whose memory it is made in: the carried one of a loop, for its next and its final
     * value */
    uint32_t into;
} origin;

/* ---- where values lie (place.c, factor.c, output.c) ---- */
typedef enum where {
    IN_REGISTERS, /* computed in its segment, and not needed elsewhere; or made wherever it is needed */
    IN_SLOT, /* of scratch memory */
    IN_OUTPUT, /* in the output buffer that it ends up in, or in its slot: chosen when the program runs */
    IN_ARGUMENT /* in the memory that it is loaded from: each reader loads it there */
} where;
typedef struct placement {
    uint8_t where;
    /* offset in scratch, -1: none. A value that is made into another's memory has that one's slot */
    int64_t slot;
    int32_t pitch; /* 0, or elements from one row to the next in its slot */
    int64_t step; /* C_FACTOR: elements from one row of the load to the next; 0: known when it runs */
} placement;

/* ---- the plan ---- */
typedef struct steps steps;
typedef struct item { /* of a segment */
    uint32_t insn; /* an instruction, or the opener of a region that runs inside the chunk */
    uint32_t src, dst; /* insn == UINT32_MAX: copy src to the slot of dst */
    /* 0, or the instruction `where` that is the first to want it: made there, if a lane does */
    uint32_t rare;
    bool chooses; /* that `where` */
} item;
typedef struct prefetch { /* of what a load or store touches */
    uint32_t insn;
    bool next; /* as the next round of the loop around, or the next program, will do it */
    /* 0: all of it, at the pace of the segment; 1, 2: only that half of its row, at half the pace */
    uint8_t half;
} prefetch;
typedef struct segment {
    uint32_t id;
    shape sh;
    /* SEG_WHOLE: one instruction on blocks in their slots */
    enum { SEG_CHUNKS, SEG_SIMDGROUPS, SEG_WHOLE } kind;
    bool reduces;
    /* the block is one chunk, however many registers that takes: its accesses may depend on each other */
    bool at_once;
    VEC(item) items;
    VEC(prefetch) prefetches;
} segment;
typedef struct step {
    enum { S_SCALAR, S_SEGMENT, S_REGION } kind;
    uint32_t insn; /* S_SCALAR: instruction; S_REGION: opener */
    segment *seg;
    steps *body, *other; /* LOOP: body. WHILE: condition, body. IF: then, else */
} step;
struct steps {
    VEC(step) v;
};

typedef struct output { /* block v is kept where instruction `store` stores what is made of it */
    uint32_t v, store;
    ir_coef
        /* what is added to its offset from one program to the next, along each axis of the grid: numbers,
         * or numbers times a parameter */
        pace[3];
} output;

/* Each array is written by one part of the planner, and read by those after it. */
typedef struct plan {
    const eas_ir *ir;
    arena *mem;
    eas_ir_info info;
    bool alias; /* gen_options.alias */
    bool alias_sensitive; /* out */
    uint32_t *end; /* region ends */
    uint32_t *parent; /* per instruction: the innermost opener around it, UINT32_MAX */
    kind *val; /* per value: classify.c */
    origin *made; /* per value: segment.c, region.c */
    uint32_t *seg_of; /* per instruction: its segment, 0: none. segment.c */
    placement *at; /* per value: place.c */
    ir_range *range;
    ir_linears *linear;
    steps *top;
    uint32_t nsegs;
    uint64_t scratch;
    bool *prefetched; /* per instruction: a load that some segment prefetches: prefetch.c */
    VEC(output) outputs; /* output.c */
    const char *why; /* refusal, NULL if none */
} plan;

/* ---- shape.c ---- */
int64_t shape_lanes(const shape *s);
bool shape_eq(const shape *a, const shape *b);
map_t map_identity(int rank);
static inline int map_get(map_t m, int d) { return m >> (4 * d) & 15; }
shape plan_shape(const plan *p, ir_type t); /* canonical */
int plan_canon_dim(ir_type t, int d); /* the canonical number of dim d, or NODIM if it has size 1 */
/* of a broadcast or trivial reshape: how its operand is read */
map_t plan_source_map(const plan *p, const ir_insn *in, map_t m);
bool plan_trivial_reshape(const plan *p, const ir_insn *in); /* the canonical shape stays */
bool plan_whole(const plan *p, const ir_insn *in); /* runs as a segment of its own */
/* Follows broadcasts and reshapes from v (read through *m) to the value that holds the data. *m is
 * updated; MAP_LINEAR with *lin = the shape whose row-major numbers index it when a reshape is in the way. */
typedef struct view {
    uint32_t v;
    map_t m;
    bool linear;
    shape lin;
    map_t linmap;
} view;
view plan_resolve(const plan *p, uint32_t v, map_t m);
bool plan_identity(const plan *p, const view *w, const shape *sh); /* lane for lane */
/* slice, pad, trans and shuffles read their operand from its slot, once all of it is there */
static inline bool is_move(const ir_insn *in)
{
    return ir_rows[in->op].rule == IR_RULE_MOVE || in->op == IR_SIMD_SHUFFLE;
}
static inline bool is_view_op(const ir_insn *in) { return in->op == IR_BROADCAST || in->op == IR_RESHAPE; }
static inline bool is_reduce(const ir_insn *in) { return ir_rows[in->op].rule == IR_RULE_REDUCE; }

/* ---- classify.c ---- */
void plan_classify(plan *p, const bool *uni, bool *forced, const bool *factor);
uint32_t plan_else_of(const plan *p, uint32_t opener); /* its ELSE; the end of the region if it has none */

/* ---- factor.c ---- */
/* per value: is it C_FACTOR? Before there are classes */
void plan_factors(plan *p, const bool *uni, bool *factor);
/* with classes: can the offsets be computed where the products are? */
bool plan_factors_hold(const plan *p, const bool *factor);
/* what a C_FACTOR is the transpose of, else itself: the load, but for plan_factor_slot */
uint32_t plan_factor_load(const plan *p, uint32_t v);
/* the block in its slot that a C_FACTOR is the transpose of; 0: it is none */
uint32_t plan_factor_slot(const plan *p, uint32_t v);
void plan_place_factors(plan *p);
int plan_uses(const plan *p, uint32_t v); /* how often instructions read it */
/* do neighbouring lanes of an offset stand for neighbouring elements? */
bool plan_neighbours(const plan *p, uint32_t off);

/* ---- access.c ---- */
bool plan_injective(const plan *p, uint32_t off); /* no two lanes of an offset are equal, for sure */

/* ---- place.c ---- */
void plan_place(plan *p);
/* it is spilled */
static inline bool plan_in_memory(const plan *p, uint32_t v)
{
    return p->at[v].where == IN_SLOT || p->at[v].where == IN_OUTPUT;
}
bool plan_stays(const plan *p, uint32_t v); /* can any later segment compute it? */
/* takes v lane by lane, in the region of its definition */
bool plan_plain_reader(const plan *p, uint32_t user, uint32_t def, uint32_t v);
bool plan_reads(const plan *p, const ir_insn *in, uint32_t v);

/* ---- output.c ---- */
void plan_outputs(plan *p); /* once it is known who needs a slot */
/* the block that is kept where a store writes, or NULL */
const output *plan_output_of(const plan *p, uint32_t store);

/* ---- prefetch.c ---- */
void plan_prefetch(plan *p);
/* a load whose value for the next round may be read early */
bool plan_peeks(const eas_ir *ir, const ir_insn *in);

/* ---- rare.c ---- */
void plan_rare(plan *p);

/* ---- print.c ---- */
void plan_print(const plan *p, str *s);

/* ---- plan.c ---- */
eas_status plan_make(plan *p);
void plan_free(plan *p);
/* the exact result lies in dt */
bool plan_fits(const plan *p, uint16_t op, uint32_t a, uint32_t b, eas_dtype dt);
bool plan_cast_fits(const plan *p, uint32_t v, eas_dtype dt);

#endif
