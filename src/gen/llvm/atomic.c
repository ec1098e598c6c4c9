/* atomic.c: atomics on the CPU.
 *
 * Lanes take effect one after the other. Global memory is shared with the other threads of the pool: one
 * locked instruction, or a loop around compare-and-exchange for floats, whose min and max are the IR's and
 * not the hardware's. An exchange whose result nobody reads is a store.
 *
 * Threadgroup memory belongs to the one thread that runs the program, and so do the arrays that stand for
 * buffers which the kernel only adds to (gen_options.sums): plain read and write, of whole vectors where
 * lanes follow each other in memory, since no two of them are then one element.
 *
 * All of these are relaxed; orders are fences of their own, which cost an x86 nothing but seq_cst.
 */
#include "llvm.h"

static const LLVMAtomicOrdering relaxed = LLVMAtomicOrderingMonotonic;

static LLVMAtomicRMWBinOp rmw_of(uint16_t op, bool is_signed)
{
    switch (op) {
    case IR_ATOMIC_ADD: return LLVMAtomicRMWBinOpAdd;
    case IR_ATOMIC_MIN: return is_signed ? LLVMAtomicRMWBinOpMin : LLVMAtomicRMWBinOpUMin;
    case IR_ATOMIC_MAX: return is_signed ? LLVMAtomicRMWBinOpMax : LLVMAtomicRMWBinOpUMax;
    case IR_ATOMIC_AND: return LLVMAtomicRMWBinOpAnd;
    case IR_ATOMIC_OR: return LLVMAtomicRMWBinOpOr;
    case IR_ATOMIC_XOR: return LLVMAtomicRMWBinOpXor;
    default: return LLVMAtomicRMWBinOpXchg;
    }
}

static V as_bits(gen *g, V x, eas_dtype dt)
{
    return LLVMBuildBitCast(g->b, x, ty_int(g, dtype_bits(dt), 0), "");
}
static V from_bits(gen *g, V x, eas_dtype dt) { return LLVMBuildBitCast(g->b, x, ty_of(g, dt, 0), ""); }

static V load_bits(gen *g, V p, eas_dtype dt)
{
    V x = LLVMBuildLoad2(g->b, ty_int(g, dtype_bits(dt), 0), p, "");
    LLVMSetAlignment(x, (unsigned)eas_dtype_size(dt));
    return x;
}

static V exchange(gen *g, V p, V want, V x)
{
    V pair = LLVMBuildAtomicCmpXchg(g->b, p, want, x, relaxed, relaxed, 0);
    return pair;
}

/* *p = op(old, x) by compare-and-exchange, repeated until no other thread has changed *p in between */
static V float_loop(gen *g, uint16_t op, eas_dtype dt, V p, V x)
{
    V start = load_bits(g, p, dt);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), again = new_block(g, "again"),
                      done = new_block(g, "exchanged");
    LLVMSetOrdering(start, relaxed);
    branch_to(g, again);
    LLVMPositionBuilderAtEnd(g->b, again);
    V old = LLVMBuildPhi(g->b, LLVMTypeOf(start), "");
    LLVMAddIncoming(old, &start, &from, 1);
    V next = value_insn(g, ir_atomic_op(op), dt, from_bits(g, old, dt), x, NULL);
    V pair = exchange(g, p, old, as_bits(g, next, dt)), seen = LLVMBuildExtractValue(g->b, pair, 0, "");
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    LLVMAddIncoming(old, &seen, &back, 1);
    LLVMBuildCondBr(g->b, LLVMBuildExtractValue(g->b, pair, 1, ""), done, again);
    LLVMPositionBuilderAtEnd(g->b, done);
    return from_bits(g, old, dt);
}

static V relaxed_load(gen *g, V p, eas_dtype dt)
{
    V x = load_bits(g, p, dt);
    LLVMSetOrdering(x, relaxed);
    return from_bits(g, x, dt);
}

/* The value that it returns is never read. */
static V relaxed_store(gen *g, V p, eas_dtype dt, V x)
{
    V st = LLVMBuildStore(g->b, as_bits(g, x, dt), p);
    LLVMSetAlignment(st, (unsigned)eas_dtype_size(dt));
    LLVMSetOrdering(st, relaxed);
    return x;
}

static bool used(const gen *g, uint32_t v)
{
    for (uint32_t i = 0; i < g->ir->npool; i++)
        if (g->ir->pool[i] == v)
            return true;
    return false;
}

static V shared(gen *g, const ir_insn *in, eas_dtype dt, V p, V x, V y)
{
    const uint16_t op = in->op;
    if (op == IR_ATOMIC_LOAD)
        return relaxed_load(g, p, dt);
    if (op == IR_ATOMIC_XCHG && !used(g, in->res))
        return relaxed_store(g, p, dt, x);
    if (op == IR_ATOMIC_CAS)
        return from_bits(
            g, LLVMBuildExtractValue(g->b, exchange(g, p, as_bits(g, x, dt), as_bits(g, y, dt)), 0, ""), dt);
    if (dtype_is_float(dt) && op != IR_ATOMIC_XCHG)
        return float_loop(g, op, dt, p, x);
    return from_bits(
        g, LLVMBuildAtomicRMW(g->b, rmw_of(op, dtype_is_signed(dt)), p, as_bits(g, x, dt), relaxed, 0), dt);
}

static V own(gen *g, const ir_insn *in, eas_dtype dt, V p, V x, V y)
{
    const uint16_t op = in->op;
    V bits = load_bits(g, p, dt), old = from_bits(g, bits, dt), next = x;
    if (op == IR_ATOMIC_LOAD)
        return old;
    if (op == IR_ATOMIC_CAS)
        next = sel(g, LLVMBuildICmp(g->b, LLVMIntEQ, bits, as_bits(g, x, dt), ""), y, old);
    else if (op != IR_ATOMIC_XCHG)
        next = value_insn(g, ir_atomic_op(op), dt, old, x, NULL);
    LLVMSetAlignment(LLVMBuildStore(g->b, next, p), (unsigned)eas_dtype_size(dt));
    return old;
}

static bool is_own(const gen *g, uint32_t buf)
{
    return ir_typeof(g->ir, buf).kind == IR_TG ||
           (g->sums && buf <= (uint32_t)g->ir->nparams && g->sums[buf - 1]);
}

static V change(gen *g, const ir_insn *in, V off, V x, V y)
{
    const uint32_t buf = ir_args(g->ir, in)[0];
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, buf).dtype;
    V p = mem_element(g, g->sval[buf], dt, off);
    return (is_own(g, buf) ? own : shared)(g, in, dt, p, x, y);
}

/* A vector in memory, so that a lane can be picked. */
static V laid_out(gen *g, V x)
{
    V buf = entry_alloca(g, LLVMTypeOf(x));
    LLVMBuildStore(g->b, x, buf);
    return buf;
}

/* Own memory, lanes that follow each other in it. */
static V own_row(gen *g, const ir_insn *in, aff off, V mask, V x)
{
    const uint32_t buf = ir_args(g->ir, in)[0];
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, buf).dtype;
    V old = mem_load_affine(g, g->sval[buf], dt, off, mask, mask ? LLVMConstNull(LLVMTypeOf(x)) : NULL);
    mem_store_row(g, g->sval[buf], dt, off, mask, value_insn(g, ir_atomic_op(in->op), dt, old, x, NULL));
    return old;
}

/* Offsets in a dtype of their own, as narrow as they were made: fewer words have to leave the vector
 * registers. */
typedef struct offsets {
    V x;
    eas_dtype dt;
} offsets;

static offsets offsets_of(gen *g, uint32_t v, aff a)
{
    if (a.run.ok && a.run.exact)
        return (offsets){affine_vector(g, a, EAS_I64), EAS_I64};
    return (offsets){seg_here(g, v), (eas_dtype)ir_typeof(g->ir, v).dtype};
}

static V offset_vector(gen *g, const offsets *o) { return value_cast(g, o->x, o->dt, EAS_I64); }

/* One lane. From a register the CPU takes words of 64 bits; smaller parts are shifted out of these. */
static V offset_lane(gen *g, const offsets *o, int k)
{
    const int bits = dtype_bits(o->dt), all = bits * g->c->n;
    V x;
    if (bits < 64 && all % 64 == 0) {
        V words = LLVMBuildBitCast(g->b, o->x, ty_int(g, 64, all / 64), "");
        V word = LLVMBuildExtractElement(g->b, words, k_int(g, k * bits / 64), "");
        x = LLVMBuildTrunc(g->b, LLVMBuildLShr(g->b, word, k_int(g, k * bits % 64), ""), ty_int(g, bits, 0),
                           "");
    } else {
        x = LLVMBuildExtractElement(g->b, o->x, k_int(g, k), "");
    }
    return value_cast(g, x, o->dt, EAS_I64);
}

/* All lanes are on: lane after lane, written out. */
static void all_in_a_row(gen *g, const ir_insn *in, const offsets *off, V x, V y, V out)
{
    V r = LLVMConstNull(ty_of(g, (eas_dtype)ir_typeof(g->ir, in->res).dtype, g->c->n));
    for (int k = 0; k < g->c->n; k++) {
        V at = k_int(g, k);
        V old = change(g, in, offset_lane(g, off, k), x ? LLVMBuildExtractElement(g->b, x, at, "") : NULL,
                       y ? LLVMBuildExtractElement(g->b, y, at, "") : NULL);
        r = out ? LLVMBuildInsertElement(g->b, r, old, at, "") : r;
    }
    if (out)
        LLVMBuildStore(g->b, r, out);
}

static void in_a_loop(gen *g, const ir_insn *in, V mask, const offsets *off, V x, V y, V out)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V offs = laid_out(g, offset_vector(g, off)), xs = x ? laid_out(g, x) : NULL,
      ys = y ? laid_out(g, y) : NULL;
    lanes l = mem_open_lanes(g, mask);
    V old = change(g, in, mem_load_scalar(g, offs, EAS_I64, l.lane),
                   xs ? mem_load_scalar(g, xs, dt, l.lane) : NULL,
                   ys ? mem_load_scalar(g, ys, dt, l.lane) : NULL);
    if (out)
        mem_store_scalar(g, out, dt, l.lane, old);
    mem_close_lanes(g, &l);
}

enum { MAX_IN_A_ROW = 16 };

/* Plain accesses are quick enough to be worth writing out; locked ones are not. */
static V lane_by_lane(gen *g, const ir_insn *in, const offsets *off, V mask, V x, V y)
{
    const T vec = ty_of(g, (eas_dtype)ir_typeof(g->ir, in->res).dtype, g->c->n);
    const bool row = is_own(g, ir_args(g->ir, in)[0]) && g->c->n <= MAX_IN_A_ROW;
    V out = used(g, in->res) ? laid_out(g, LLVMConstNull(vec)) : NULL;
    LLVMBasicBlockRef done = new_block(g, "changed");
    if (row && mask) {
        LLVMBasicBlockRef all = new_block(g, "all"), some = new_block(g, "some");
        LLVMBuildCondBr(g->b, all_of(g, mask), all, some);
        LLVMPositionBuilderAtEnd(g->b, all);
        all_in_a_row(g, in, off, x, y, out);
        branch_to(g, done);
        LLVMPositionBuilderAtEnd(g->b, some);
    }
    if (row && !mask)
        all_in_a_row(g, in, off, x, y, out);
    else
        in_a_loop(g, in, mask, off, x, y, out);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    return out ? LLVMBuildLoad2(g->b, vec, out, "") : LLVMConstNull(vec);
}

void atomic_insn(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in), m = ir_mask(g->ir, in);
    V mask = mask_and(g, m ? seg_mask(g, m) : NULL, g->c->exec);
    const aff at = affine_of(g, a[1], seg_map(g));
    const int values = ir_atomic_values(in->op);
    V x = values ? seg_here(g, a[2]) : NULL, y = values == 2 ? seg_here(g, a[3]) : NULL;
    if (is_own(g, a[0]) && ir_atomic_op(in->op) && at.run.ok && at.run.exact && at.run.stride == 1) {
        seg_define(g, in->res, own_row(g, in, at, mask, x));
        return;
    }
    const offsets off = offsets_of(g, a[1], at);
    seg_define(g, in->res, lane_by_lane(g, in, &off, mask, x, y));
}

void atomic_scalar(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in), m = ir_mask(g->ir, in);
    LLVMBasicBlockRef from, yes = new_block(g, "atomic"), done = new_block(g, "changed");
    V off = value_cast(g, g->sval[a[1]], (eas_dtype)ir_typeof(g->ir, a[1]).dtype, EAS_I64), none;
    V on = m ? g->sval[m] : LLVMConstInt(ty_int(g, 1, 0), 1, 0);
    from = LLVMGetInsertBlock(g->b);
    LLVMBuildCondBr(g->b, on, yes, done);
    LLVMPositionBuilderAtEnd(g->b, yes);
    const int values = ir_atomic_values(in->op);
    V old = change(g, in, off, values ? g->sval[a[2]] : NULL, values == 2 ? g->sval[a[3]] : NULL);
    yes = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    none = LLVMConstNull(LLVMTypeOf(old));
    V phi = LLVMBuildPhi(g->b, LLVMTypeOf(old), "");
    LLVMAddIncoming(phi, &old, &yes, 1);
    LLVMAddIncoming(phi, &none, &from, 1);
    g->sval[in->res] = phi;
}

void atomic_fence(gen *g, uint32_t i)
{
    static const LLVMAtomicOrdering of[EAS_NORDERS] = {[EAS_ORDER_ACQUIRE] = LLVMAtomicOrderingAcquire,
                                                       [EAS_ORDER_RELEASE] = LLVMAtomicOrderingRelease,
                                                       [EAS_ORDER_ACQ_REL] = LLVMAtomicOrderingAcquireRelease,
                                                       [EAS_ORDER_SEQ_CST] =
                                                           LLVMAtomicOrderingSequentiallyConsistent};
    const LLVMAtomicOrdering o = of[ir_fence_order(g->ir->insns[i].imm)];
    if (o != LLVMAtomicOrderingNotAtomic)
        LLVMBuildFence(g->b, o, 0, "");
}
