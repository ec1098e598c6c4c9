/* memory.c: loads, stores and bounds checks of a chunk, and the few scalar accesses.
 *
 * The shape of an offset decides: stride 1 is a vector access, stride 0 one element, everything else a gather
 * or scatter (by the hardware where it has a good one, else lane after lane). A lane that is
 * masked off never touches memory. Stores happen in the order of lanes, so of several lanes that write one
 * element the last one wins, as the reference has it.
 */
#include "llvm.h"

V mem_slot(gen *g, int64_t off)
{
    V i = k_int(g, off);
    return off ? LLVMBuildGEP2(g->b, ty_int(g, 8, 0), g->scratch, &i, 1, "") : g->scratch;
}

V mem_streams(gen *g)
{
    return LLVMBuildICmp(g->b, LLVMIntNE, LLVMBuildAnd(g->b, g->flags, k_int(g, GEN_STREAM), ""), k_int(g, 0),
                         "");
}

static unsigned elem_align(eas_dtype dt) { return (unsigned)eas_dtype_size(dt); }

V mem_element(gen *g, V ptr, eas_dtype dt, V off)
{
    return LLVMIsConstant(off) && LLVMIsNull(off) ? ptr
                                                  : LLVMBuildGEP2(g->b, ty_mem(g, dt, 0), ptr, &off, 1, "");
}

/* the address of lane 0 of an affine offset, `more` elements on */
V mem_affine_element(gen *g, V ptr, eas_dtype dt, aff a, int64_t more)
{
    const int64_t k = a.k + more;
    V p = mem_element(g, ptr, dt, a.base);
    return k ? mem_element(g, p, dt, k_int(g, k)) : p;
}

static V from_mem(gen *g, V x, eas_dtype dt)
{
    return dt == EAS_BOOL ? LLVMBuildICmp(g->b, LLVMIntNE, x, k_like(g, LLVMTypeOf(x), 0), "") : x;
}

static V to_mem(gen *g, V x, eas_dtype dt)
{
    return dt == EAS_BOOL ? LLVMBuildZExt(g->b, x, with_bits(g, LLVMTypeOf(x), 8), "") : x;
}

static V load_at(gen *g, V p, T t, eas_dtype dt)
{
    V x = LLVMBuildLoad2(g->b, t, p, "");
    LLVMSetAlignment(x, elem_align(dt));
    return x;
}

static void store_at(gen *g, V p, V x, eas_dtype dt)
{
    LLVMSetAlignment(LLVMBuildStore(g->b, x, p), elem_align(dt));
}

V mem_load_scalar(gen *g, V ptr, eas_dtype dt, V off)
{
    return from_mem(g, load_at(g, mem_element(g, ptr, dt, off), ty_mem(g, dt, 0), dt), dt);
}
void mem_store_scalar(gen *g, V ptr, eas_dtype dt, V off, V x)
{
    store_at(g, mem_element(g, ptr, dt, off), to_mem(g, x, dt), dt);
}

/* ---- what the hardware can do ---- */

static bool masked_vectors(const gen *g, eas_dtype dt)
{
    return g->avx512 || (g->avx2 && eas_dtype_size(dt) >= 4);
}

static bool gathers(const gen *g, eas_dtype dt)
{
    return g->avx512 && eas_dtype_size(dt) >= 4 && g->c->n > 1;
}

/* ---- lane after lane: a loop over the set bits of a mask ---- */

lanes mem_open_lanes(gen *g, V mask)
{
    const int n = g->c->n;
    const T i64 = ty_int(g, 64, 0);
    V all = k_int(g, n == 64 ? -1 : (int64_t)(((uint64_t)1 << n) - 1)), start = all;
    if (mask)
        start = n == 64 ? mask_bits(g, mask, n) : LLVMBuildZExt(g->b, mask_bits(g, mask, n), i64, "");
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), body = new_block(g, "lane");
    lanes l = {.head = new_block(g, "lanes"), .done = new_block(g, "laned")};
    branch_to(g, l.head);
    LLVMPositionBuilderAtEnd(g->b, l.head);
    l.bits = LLVMBuildPhi(g->b, i64, "");
    LLVMAddIncoming(l.bits, &start, &from, 1);
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntNE, l.bits, k_int(g, 0), ""), body, l.done);
    LLVMPositionBuilderAtEnd(g->b, body);
    T t = i64;
    V a[2] = {l.bits, LLVMConstInt(ty_int(g, 1, 0), 1, 0)};
    l.lane = intrinsic(g, "llvm.cttz", &t, 1, a, 2);
    return l;
}

void mem_close_lanes(gen *g, const lanes *l)
{
    V next = LLVMBuildAnd(g->b, l->bits, LLVMBuildSub(g->b, l->bits, k_int(g, 1), ""), "");
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    LLVMAddIncoming(l->bits, &next, &back, 1);
    branch_to(g, l->head);
    LLVMPositionBuilderAtEnd(g->b, l->done);
}

/* offsets of a chunk: affine, or a vector of i64 */
typedef struct offsets {
    aff a;
    V vec, mem;
} offsets;

static V offset_vector(gen *g, offsets *o)
{
    if (!o->vec)
        o->vec = affine_vector(g, o->a, EAS_I64);
    return o->vec;
}

/* for use in a lane loop: kept in memory so that a lane can be picked */
static void prepare_lanes(gen *g, offsets *o)
{
    if (o->a.run.ok)
        return;
    o->mem = entry_alloca(g, ty_int(g, 64, g->c->n));
    LLVMBuildStore(g->b, o->vec, o->mem);
}

static V lane_offset(gen *g, const offsets *o, V lane)
{
    if (o->a.run.ok)
        return LLVMBuildAdd(g->b, affine_base(g, o->a),
                            LLVMBuildMul(g->b, lane, k_int(g, o->a.run.stride), ""), "");
    return mem_load_scalar(g, o->mem, EAS_I64, lane);
}

static V load_lanes(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V other)
{
    const T t = ty_mem(g, dt, g->c->n);
    V buf = entry_alloca(g, t);
    LLVMBuildStore(g->b, other, buf);
    prepare_lanes(g, o);
    lanes l = mem_open_lanes(g, mask);
    V x = load_at(g, mem_element(g, ptr, dt, lane_offset(g, o, l.lane)), ty_mem(g, dt, 0), dt);
    store_at(g, mem_element(g, buf, dt, l.lane), x, dt);
    mem_close_lanes(g, &l);
    return LLVMBuildLoad2(g->b, t, buf, "");
}

static void store_lanes(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V x)
{
    V buf = entry_alloca(g, LLVMTypeOf(x));
    LLVMBuildStore(g->b, x, buf);
    prepare_lanes(g, o);
    lanes l = mem_open_lanes(g, mask);
    V e = load_at(g, mem_element(g, buf, dt, l.lane), ty_mem(g, dt, 0), dt);
    store_at(g, mem_element(g, ptr, dt, lane_offset(g, o, l.lane)), e, dt);
    mem_close_lanes(g, &l);
}

static V load_unrolled(gen *g, V ptr, eas_dtype dt, offsets *o)
{
    V r = LLVMGetPoison(ty_mem(g, dt, g->c->n));
    for (int i = 0; i < g->c->n; i++) {
        V p = o->a.run.ok ? mem_affine_element(g, ptr, dt, o->a, i * o->a.run.stride)
                          : mem_element(g, ptr, dt, LLVMBuildExtractElement(g->b, o->vec, k_int(g, i), ""));
        r = LLVMBuildInsertElement(g->b, r, load_at(g, p, ty_mem(g, dt, 0), dt), k_int(g, i), "");
    }
    return r;
}

/* An element that is 0, of any dtype. */
static V zero_element(gen *g)
{
    if (!g->zero) {
        LLVMBuilderRef b = LLVMCreateBuilderInContext(g->cx);
        g->zero = entry_alloca(g, ty_int(g, 64, 0));
        LLVMPositionBuilderBefore(b, g->entry_end);
        LLVMBuildStore(b, k_int(g, 0), g->zero);
        LLVMDisposeBuilder(b);
    }
    return g->zero;
}

/* Under a mask, without a branch: lanes that are off read a 0 of our own. */
static V load_redirected(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V other)
{
    const T t = ty_mem(g, dt, g->c->n);
    V own = zero_element(g), off = offset_vector(g, o), r = LLVMGetPoison(t);
    V p = sel(g, mask, LLVMBuildGEP2(g->b, ty_mem(g, dt, 0), ptr, &off, 1, ""), splat(g, own, g->c->n));
    for (int i = 0; i < g->c->n; i++) {
        V x = load_at(g, LLVMBuildExtractElement(g->b, p, k_int(g, i), ""), ty_mem(g, dt, 0), dt);
        r = LLVMBuildInsertElement(g->b, r, x, k_int(g, i), "");
    }
    return LLVMIsNull(other) ? r : sel(g, mask, r, other);
}

/* ---- vectors ---- */

static V k_i32(gen *g, int v) { return LLVMConstInt(ty_int(g, 32, 0), (uint64_t)v, 0); }

static V masked_load(gen *g, V p, T t, eas_dtype dt, V mask, V other)
{
    T ts[2] = {t, LLVMPointerTypeInContext(g->cx, 0)};
    V a[4] = {p, k_i32(g, (int)elem_align(dt)), mask, other};
    return intrinsic(g, "llvm.masked.load", ts, 2, a, 4);
}

static void masked_store(gen *g, V p, V x, eas_dtype dt, V mask)
{
    T ts[2] = {LLVMTypeOf(x), LLVMPointerTypeInContext(g->cx, 0)};
    V a[4] = {x, p, k_i32(g, (int)elem_align(dt)), mask};
    intrinsic(g, "llvm.masked.store", ts, 2, a, 4);
}

/* of n lanes, the first ones */
static V first_lanes(gen *g, int lanes, int n)
{
    V on[MOST_LANES];
    for (int i = 0; i < lanes; i++)
        on[i] = LLVMConstInt(ty_int(g, 1, 0), i < n, 0);
    return LLVMConstVector(on, (unsigned)lanes);
}

V mem_read_first(gen *g, V ptr, eas_dtype dt, int lanes, int n, V other)
{
    const T t = ty_mem(g, dt, lanes);
    return n == lanes
             ? load_at(g, ptr, t, dt)
             : masked_load(g, ptr, t, dt, first_lanes(g, lanes, n), other ? other : LLVMConstNull(t));
}

void mem_write_first(gen *g, V ptr, eas_dtype dt, int n, V x)
{
    const int lanes = lanes_of(LLVMTypeOf(x));
    if (n == lanes)
        store_at(g, ptr, x, dt);
    else
        masked_store(g, ptr, x, dt, first_lanes(g, lanes, n));
}

static V pointers(gen *g, V ptr, eas_dtype dt, offsets *o)
{
    V off = offset_vector(g, o);
    return LLVMBuildGEP2(g->b, ty_mem(g, dt, 0), ptr, &off, 1, "");
}

static V all_lanes(gen *g, V mask) { return mask ? mask : k_like(g, ty_int(g, 1, g->c->n), 1); }

static V gather(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V other)
{
    const T t = ty_mem(g, dt, g->c->n);
    V p = pointers(g, ptr, dt, o), a[4] = {p, k_i32(g, (int)elem_align(dt)), all_lanes(g, mask), other};
    T ts[2] = {t, LLVMTypeOf(p)};
    return intrinsic(g, "llvm.masked.gather", ts, 2, a, 4);
}

static void scatter(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V x)
{
    V p = pointers(g, ptr, dt, o), a[4] = {x, p, k_i32(g, (int)elem_align(dt)), all_lanes(g, mask)};
    T ts[2] = {LLVMTypeOf(x), LLVMTypeOf(p)};
    intrinsic(g, "llvm.masked.scatter", ts, 2, a, 4);
}

/* ---- masks that hardware cannot load and store under ----
 *
 * Most chunks have all lanes on, or at a tail the first ones: whole vectors then go by one instruction, and
 * only the others lane after lane.
 */
typedef struct fork { /* two ways to do one thing */
    LLVMBasicBlockRef whole, lanes, done;
} fork;

static fork fork_on(gen *g, V quick)
{
    fork f = {new_block(g, "whole"), new_block(g, "bylanes"), new_block(g, "either")};
    LLVMBuildCondBr(g->b, quick, f.whole, f.lanes);
    LLVMPositionBuilderAtEnd(g->b, f.whole);
    return f;
}

/* Neighbours: a vector that lies within one page can be read whole if any of its lanes is on, since then
 * the page is there. What the others give is not used. */
static V readable(gen *g, V p, eas_dtype dt, V mask)
{
    enum { PAGE = 4096 };
    const T i64 = ty_int(g, 64, 0);
    const int bytes = g->c->n * (int)eas_dtype_size(dt);
    V in_page = LLVMBuildAnd(g->b, LLVMBuildPtrToInt(g->b, p, i64, ""), k_int(g, PAGE - 1), "");
    V fits = LLVMBuildICmp(g->b, LLVMIntULE, in_page, k_int(g, PAGE - bytes), "");
    return LLVMBuildOr(g->b, all_of(g, mask), LLVMBuildAnd(g->b, fits, any_of(g, mask), ""), "");
}

static V load_either(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V other)
{
    const T t = ty_mem(g, dt, g->c->n);
    const bool row = o->a.run.ok && o->a.run.stride == 1;
    if (!row && g->c->n > 16)
        return load_lanes(g, ptr, dt, o, mask, other);
    if (g->c->n == 1)
        return load_redirected(g, ptr, dt, o, mask, other);
    V p = row ? mem_affine_element(g, ptr, dt, o->a, 0) : NULL, in[2];
    const fork f = fork_on(g, row ? readable(g, p, dt, mask) : all_of(g, mask));
    in[0] = row ? sel(g, mask, load_at(g, p, t, dt), other) : load_unrolled(g, ptr, dt, o);
    branch_to(g, f.done);
    LLVMPositionBuilderAtEnd(g->b, f.lanes);
    in[1] = (row ? load_lanes : load_redirected)(g, ptr, dt, o, mask, other);
    LLVMBasicBlockRef from[2] = {f.whole, LLVMGetInsertBlock(g->b)};
    branch_to(g, f.done);
    LLVMPositionBuilderAtEnd(g->b, f.done);
    V x = LLVMBuildPhi(g->b, t, "");
    LLVMAddIncoming(x, in, from, 2);
    return x;
}

static void store_either(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V x)
{
    if (!mask || !o->a.run.ok || o->a.run.stride != 1) {
        store_lanes(g, ptr, dt, o, mask, x);
        return;
    }
    const fork f = fork_on(g, all_of(g, mask));
    store_at(g, mem_affine_element(g, ptr, dt, o->a, 0), x, dt);
    branch_to(g, f.done);
    LLVMPositionBuilderAtEnd(g->b, f.lanes);
    store_lanes(g, ptr, dt, o, mask, x);
    branch_to(g, f.done);
    LLVMPositionBuilderAtEnd(g->b, f.done);
}

/* every second element: two vector loads that touch nothing beyond the last element wanted */
static V load_pairs(gen *g, V ptr, eas_dtype dt, aff off)
{
    const int n = g->c->n;
    V idx[MOST_LANES];
    V lo = load_at(g, mem_affine_element(g, ptr, dt, off, 0), ty_mem(g, dt, n), dt);
    V hi = load_at(g, mem_affine_element(g, ptr, dt, off, n - 1), ty_mem(g, dt, n), dt);
    for (int i = 0; i < n; i++)
        idx[i] = k_i32(g, 2 * i < n ? 2 * i : n + 2 * i - (n - 1));
    return LLVMBuildShuffleVector(g->b, lo, hi, LLVMConstVector(idx, (unsigned)n), "");
}

static V reversed(gen *g, V x)
{
    const int n = g->c->n;
    V idx[MOST_LANES];
    for (int i = 0; i < n; i++)
        idx[i] = k_i32(g, n - 1 - i);
    return LLVMBuildShuffleVector(g->b, x, LLVMGetPoison(LLVMTypeOf(x)), LLVMConstVector(idx, (unsigned)n),
                                  "");
}

/* Backwards: the vector that ends where lane 0 is, turned round. */
static V load_backwards(gen *g, V ptr, eas_dtype dt, aff off, V mask, V other)
{
    const T t = ty_mem(g, dt, g->c->n);
    V p = mem_affine_element(g, ptr, dt, off, 1 - g->c->n);
    return reversed(g, mask ? masked_load(g, p, t, dt, reversed(g, mask), reversed(g, other))
                            : load_at(g, p, t, dt));
}

/* one element for all lanes; under a mask only if some lane wants it */
static V load_one(gen *g, V p, eas_dtype dt, V mask, V other)
{
    const int n = g->c->n;
    if (!mask)
        return splat(g, load_at(g, p, ty_mem(g, dt, 0), dt), n);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), yes = new_block(g, "one"), done = new_block(g, "oned");
    LLVMBuildCondBr(g->b, any_of(g, mask), yes, done);
    LLVMPositionBuilderAtEnd(g->b, yes);
    V x = sel(g, mask, splat(g, load_at(g, p, ty_mem(g, dt, 0), dt), n), other);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    V phi = LLVMBuildPhi(g->b, LLVMTypeOf(x), ""), in[2] = {other, x};
    LLVMBasicBlockRef bb[2] = {from, yes};
    LLVMAddIncoming(phi, in, bb, 2);
    return phi;
}

static V load_offsets(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V other)
{
    const T t = ty_mem(g, dt, g->c->n);
    V none = other ? to_mem(g, other, dt) : LLVMConstNull(t), x;
    const aff a = o->a;
    if (a.run.ok && a.run.stride == 0)
        x = load_one(g, mem_affine_element(g, ptr, dt, a, 0), dt, mask, none);
    else if (a.run.ok && a.run.stride == 1 && !mask)
        x = load_at(g, mem_affine_element(g, ptr, dt, a, 0), t, dt);
    else if (a.run.ok && a.run.stride == 1 && masked_vectors(g, dt))
        x = masked_load(g, mem_affine_element(g, ptr, dt, a, 0), t, dt, mask, none);
    else if (a.run.ok && a.run.stride == -1 && (!mask || masked_vectors(g, dt)))
        x = load_backwards(g, ptr, dt, a, mask, none);
    else if (a.run.ok && a.run.stride == 2 && !mask)
        x = load_pairs(g, ptr, dt, a);
    else if (gathers(g, dt) && (!a.run.ok || a.run.stride != 1))
        x = gather(g, ptr, dt, o, mask, none);
    else if (!mask && g->c->n <= 16)
        x = load_unrolled(g, ptr, dt, o);
    else
        x = mask ? load_either(g, ptr, dt, o, mask, none) : load_lanes(g, ptr, dt, o, mask, none);
    return from_mem(g, x, dt);
}

V mem_load_affine(gen *g, V ptr, eas_dtype dt, aff off, V mask, V other)
{
    offsets o = {.a = off};
    return load_offsets(g, ptr, dt, &o, mask, other);
}

V mem_load_vector(gen *g, V ptr, eas_dtype dt, V off, V mask, V other)
{
    offsets o = {.vec = off};
    return load_offsets(g, ptr, dt, &o, mask, other);
}

static offsets offsets_of(gen *g, uint32_t v)
{
    offsets o = {.a = seg_offset(g, g->c, v)};
    if (o.a.run.ok && o.a.run.exact)
        return o;
    o.a.run.ok = false;
    o.vec = value_cast(g, seg_here(g, v), (eas_dtype)ir_typeof(g->ir, v).dtype, EAS_I64);
    return o;
}

static V load_here(gen *g, const ir_insn *in, offsets *o)
{
    const uint32_t *a = ir_args(g->ir, in);
    *o = offsets_of(g, a[1]);
    V mask = mask_and(g, in->nargs == 4 ? seg_mask(g, a[2]) : NULL, g->c->exec);
    V other = in->nargs == 4 && mask ? seg_here(g, a[3]) : NULL;
    return load_offsets(g, g->sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, o, mask, other);
}

V mem_reload(gen *g, uint32_t i)
{
    offsets o;
    return load_here(g, &g->ir->insns[i], &o);
}

void mem_load(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    offsets o;
    seg_define(g, in->res, load_here(g, in, &o));
    if (g->next && !g->p.prefetched[i] && !g->seg->prefetches.len && ir_typeof(g->ir, a[0]).kind == IR_BUF &&
        o.a.run.ok && g->c->exec == NULL)
        prefetch_load(g, a[0], next_offset(g, g->c, a[1]));
    if (g->c->rows && g->p.parent[i] != UINT32_MAX && ir_typeof(g->ir, a[0]).kind == IR_BUF && o.a.run.ok)
        prefetch_further(g, a[0], o.a);
}

/* ---- stores ---- */

/* Non-temporal, as whole vectors or 16 bytes at a time: that alignment every allocator gives, and the
 * write-combining buffers join the pieces. */
static void stream_store(gen *g, V p, V x, eas_dtype dt)
{
    const int n = g->c->n, step = g->c->stream == STREAM_WHOLE ? n : 16 / (int)eas_dtype_size(dt);
    const unsigned kind = LLVMGetMDKindIDInContext(g->cx, "nontemporal", 11);
    LLVMMetadataRef one = LLVMValueAsMetadata(k_i32(g, 1));
    V md = LLVMMetadataAsValue(g->cx, LLVMMDNodeInContext2(g->cx, &one, 1));
    for (int i = 0; i < n; i += step) {
        V idx[MOST_LANES], at = k_int(g, i);
        for (int k = 0; k < step; k++)
            idx[k] = k_i32(g, i + k);
        V piece = LLVMBuildShuffleVector(g->b, x, LLVMGetPoison(LLVMTypeOf(x)),
                                         LLVMConstVector(idx, (unsigned)step), "");
        V s = LLVMBuildStore(g->b, piece, mem_element(g, p, dt, at));
        LLVMSetAlignment(s, (unsigned)(step * (int)eas_dtype_size(dt)));
        LLVMSetMetadata(s, kind, md);
    }
}

static void store_offsets(gen *g, V ptr, eas_dtype dt, offsets *o, V mask, V value, bool stream)
{
    V x = to_mem(g, value, dt);
    const aff a = o->a;
    if (a.run.ok && a.run.stride == 1 && !mask && stream)
        stream_store(g, mem_affine_element(g, ptr, dt, a, 0), x, dt);
    else if (a.run.ok && a.run.stride == 1 && !mask)
        store_at(g, mem_affine_element(g, ptr, dt, a, 0), x, dt);
    else if (a.run.ok && a.run.stride == 1 && masked_vectors(g, dt))
        masked_store(g, mem_affine_element(g, ptr, dt, a, 0), x, dt, mask);
    else if (a.run.ok && a.run.stride == -1 && !mask)
        store_at(g, mem_affine_element(g, ptr, dt, a, 1 - g->c->n), reversed(g, x), dt);
    else if (a.run.ok && a.run.stride == -1 && masked_vectors(g, dt))
        masked_store(g, mem_affine_element(g, ptr, dt, a, 1 - g->c->n), reversed(g, x), dt,
                     reversed(g, mask));
    else if (a.run.ok && a.run.stride == 0 && !mask)
        store_at(g, mem_affine_element(g, ptr, dt, a, 0),
                 LLVMBuildExtractElement(g->b, x, k_int(g, g->c->n - 1), ""), dt);
    else if (gathers(g, dt) && (!a.run.ok || a.run.stride != 1))
        scatter(g, ptr, dt, o, mask, x);
    else
        store_either(g, ptr, dt, o, mask, x);
}

void mem_store_row(gen *g, V ptr, eas_dtype dt, aff off, V mask, V x)
{
    offsets o = {.a = off};
    store_offsets(g, ptr, dt, &o, mask, x, false);
}

static bool is_item(const gen *g, uint32_t i) /* not inside a region of the segment */
{
    for (uint32_t k = 0; k < g->seg->items.len; k++)
        if (g->seg->items.at[k].insn == i)
            return true;
    return false;
}

/* Streams exactly the stores whose alignment the segment has checked. */
void mem_store(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    const ir_type buf = ir_typeof(g->ir, a[0]);
    offsets o = offsets_of(g, a[1]);
    V x = seg_here(g, a[2]);
    V mask = mask_and(g, in->nargs == 4 ? seg_mask(g, a[3]) : NULL, g->c->exec);
    const bool stream = g->c->stream && buf.kind == IR_BUF && o.a.run.whole && is_item(g, i) &&
                        g->c->n * (int)eas_dtype_size((eas_dtype)buf.dtype) % 16 == 0;
    store_offsets(g, g->sval[a[0]], (eas_dtype)buf.dtype, &o, mask, x, stream);
}

/* Spills a chunk of a block to its slot, or to the output that it is kept in. The padding at the end of a
 * slot takes lanes beyond the block; between rows there is none. */
void mem_spill(gen *g, V to, eas_dtype dt, V x, uint32_t v)
{
    offsets o = {.a = {.run = {.ok = true, .exact = true, .mult = 1}}};
    shape sh = g->p.val[v].sh;
    const bool rows = sh.rank > 1 && sh.dim[sh.rank - 1] % g->c->n != 0;
    if (g->p.at[v].pitch)
        sh.dim[1] = g->p.at[v].pitch;
    o.a.base = seg_linear(g, &sh, seg_map(g), &o.a.run.stride);
    store_offsets(g, to, dt, &o, rows ? g->c->exec : NULL, x, false);
}

/* ---- bounds ---- */

V mem_count(gen *g, uint32_t buf)
{
    if (ir_typeof(g->ir, buf).kind == IR_TG)
        return k_int(g, ir_typeof(g->ir, buf).dim[0]);
    V i = k_int(g, (int64_t)buf - 1);
    return LLVMBuildLoad2(g->b, ty_int(g, 64, 0), LLVMBuildGEP2(g->b, ty_int(g, 64, 0), g->counts, &i, 1, ""),
                          "");
}

static V fault_field(gen *g, int k)
{
    V i = k_int(g, k);
    return LLVMBuildGEP2(g->b, ty_int(g, 64, 0), g->fault, &i, 1, "");
}

/* Keeps the first failure of the lowest program: within a program that of the first instruction, then of
 * the first lane. */
static void record(gen *g, uint32_t insn, V index, V thread)
{
    const T t = ty_int(g, 64, 0);
    LLVMBasicBlockRef yes = new_block(g, "fault"), done = new_block(g, "faulted");
    V unset = LLVMBuildICmp(g->b, LLVMIntEQ, LLVMBuildLoad2(g->b, t, fault_field(g, 0), ""), k_int(g, 0), "");
    V same = LLVMBuildICmp(g->b, LLVMIntEQ, LLVMBuildLoad2(g->b, t, fault_field(g, 3), ""), g->pid, "");
    V before =
        LLVMBuildICmp(g->b, LLVMIntUGT, LLVMBuildLoad2(g->b, t, fault_field(g, 1), ""), k_int(g, insn), "");
    LLVMBuildCondBr(g->b, LLVMBuildOr(g->b, unset, LLVMBuildAnd(g->b, same, before, ""), ""), yes, done);
    LLVMPositionBuilderAtEnd(g->b, yes);
    LLVMBuildStore(g->b, k_int(g, 1), fault_field(g, 0));
    LLVMBuildStore(g->b, k_int(g, insn), fault_field(g, 1));
    LLVMBuildStore(g->b, index, fault_field(g, 2));
    LLVMBuildStore(g->b, g->pid, fault_field(g, 3));
    LLVMBuildStore(g->b, thread, fault_field(g, 4));
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
}

/* Row-major number of lane 0 of the chunk, then of each lane. */
static V lane_numbers(gen *g)
{
    int64_t stride;
    V first = seg_linear(g, &g->c->sh, seg_map(g), &stride);
    return LLVMBuildAdd(g->b, splat(g, first, g->c->n), k_iota(g, ty_int(g, 64, 0), g->c->n, stride), "");
}

static V pick_lane(gen *g, V of, V lane)
{
    V buf = entry_alloca(g, LLVMTypeOf(of));
    LLVMBuildStore(g->b, of, buf);
    return mem_load_scalar(g, buf, EAS_I64, lane);
}

static void record_lane(gen *g, uint32_t insn, V fails, V off)
{
    const int n = g->c->n;
    T t = ty_int(g, n, 0);
    V a[2] = {mask_bits(g, fails, n), LLVMConstInt(ty_int(g, 1, 0), 0, 0)};
    V lane = intrinsic(g, "llvm.cttz", &t, 1, a, 2);
    lane = n < 64 ? LLVMBuildZExt(g->b, lane, ty_int(g, 64, 0), "") : lane;
    record(g, insn, pick_lane(g, off, lane),
           g->ir->threads ? pick_lane(g, lane_numbers(g), lane) : k_int(g, 0));
}

/* i1: surely inside, by the two ends of a contiguous chunk */
static V ends_inside(gen *g, aff a, V count)
{
    V first = affine_base(g, a), last = LLVMBuildAdd(g->b, first, k_int(g, a.run.stride * (g->c->n - 1)), "");
    V lo = a.run.stride >= 0 ? first : last, hi = a.run.stride >= 0 ? last : first;
    return LLVMBuildAnd(g->b, LLVMBuildICmp(g->b, LLVMIntSGE, lo, k_int(g, 0), ""),
                        LLVMBuildICmp(g->b, LLVMIntSLT, hi, count, ""), "");
}

/* Is the element inside, in every lane that is on? If the offset is affine, its two ends decide for the
 * whole chunk, and the lanes are compared only if they do not; a lane that fails is recorded, and the
 * result keeps it off. */
void mem_bounds(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    offsets o = offsets_of(g, a[1]);
    V mask = all_lanes(g, mask_and(g, in->nargs == 3 ? seg_mask(g, a[2]) : NULL, g->c->exec)),
      count = mem_count(g, a[0]);
    LLVMBasicBlockRef from, slow = new_block(g, "check"), bad = new_block(g, "bad"),
                            done = new_block(g, "checked");
    if (o.a.run.ok) {
        LLVMBuildCondBr(g->b, ends_inside(g, o.a, count), done, slow);
        from = LLVMGetInsertBlock(g->b);
        LLVMPositionBuilderAtEnd(g->b, slow);
    } else {
        from = NULL;
        branch_to(g, slow);
        LLVMPositionBuilderAtEnd(g->b, slow);
    }
    V off = offset_vector(g, &o);
    V in_range = LLVMBuildICmp(g->b, LLVMIntULT, off, splat(g, count, g->c->n), "");
    V ok = LLVMBuildAnd(g->b, mask, in_range, ""),
      fails = LLVMBuildAnd(g->b, mask, LLVMBuildNot(g->b, in_range, ""), "");
    LLVMBasicBlockRef checked = LLVMGetInsertBlock(g->b);
    LLVMBuildCondBr(g->b, any_of(g, fails), bad, done);
    LLVMPositionBuilderAtEnd(g->b, bad);
    record_lane(g, i, fails, off);
    bad = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    if (from) {
        V phi = LLVMBuildPhi(g->b, LLVMTypeOf(ok), "");
        LLVMAddIncoming(phi, &ok, &checked, 1);
        LLVMAddIncoming(phi, &ok, &bad, 1);
        LLVMAddIncoming(phi, &mask, &from, 1);
        ok = phi;
    }
    seg_define(g, in->res, ok);
}

void mem_bounds_scalar(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    V off = value_cast(g, g->sval[a[1]], (eas_dtype)ir_typeof(g->ir, a[1]).dtype, EAS_I64);
    V mask = in->nargs == 3 ? g->sval[a[2]] : NULL;
    V inside = LLVMBuildICmp(g->b, LLVMIntULT, off, mem_count(g, a[0]), "");
    LLVMBasicBlockRef bad = new_block(g, "bad"), done = new_block(g, "checked");
    LLVMBuildCondBr(g->b, mask ? LLVMBuildOr(g->b, inside, LLVMBuildNot(g->b, mask, ""), "") : inside, done,
                    bad);
    LLVMPositionBuilderAtEnd(g->b, bad);
    record(g, i, off, k_int(g, 0));
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    g->sval[in->res] = mask ? LLVMBuildAnd(g->b, mask, inside, "") : inside;
}

void mem_assert(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t m = ir_mask(g->ir, in);
    V mask = all_lanes(g, mask_and(g, m ? seg_mask(g, m) : NULL, g->c->exec));
    V fails = LLVMBuildAnd(g->b, mask, LLVMBuildNot(g->b, seg_here(g, ir_args(g->ir, in)[0]), ""), "");
    LLVMBasicBlockRef bad = new_block(g, "bad"), done = new_block(g, "asserted");
    LLVMBuildCondBr(g->b, any_of(g, fails), bad, done);
    LLVMPositionBuilderAtEnd(g->b, bad);
    record_lane(g, i, fails, lane_numbers(g));
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
}

void mem_assert_scalar(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t m = ir_mask(g->ir, in);
    V fails = LLVMBuildNot(g->b, g->sval[ir_args(g->ir, in)[0]], "");
    LLVMBasicBlockRef bad = new_block(g, "bad"), done = new_block(g, "asserted");
    LLVMBuildCondBr(g->b, m ? LLVMBuildAnd(g->b, fails, g->sval[m], "") : fails, bad, done);
    LLVMPositionBuilderAtEnd(g->b, bad);
    record(g, i, k_int(g, 0), k_int(g, 0));
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
}
