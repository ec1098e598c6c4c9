/* dot.c: strided dot products and 8x8 simdgroup matrices.
 *
 * A dot runs over k inside the chunk, one fma a step in the order of k, so its bits do not depend on the vector width. A fragment is eight
 * vectors of eight f32, one per row; the product broadcasts an element of A over a row of B, k ascending.
 */
#include "llvm.h"

typedef struct side {
    V ptr;
    eas_dtype dt;
    bool scalar;
    aff base;
    V vbase, stride, vstride;
} side; /* one factor of a dot */

static V as_i64(gen *g, V x, uint32_t v) { return value_cast(g, x, (eas_dtype)ir_typeof(g->ir, v).dtype, EAS_I64); }

static side make_side(gen *g, const uint32_t *a)
{
    side s = {.ptr = g->sval[a[0]], .dt = (eas_dtype)ir_typeof(g->ir, a[0]).dtype};
    const aff base = affine_of(g, a[1], seg_map(g)), stride = affine_of(g, a[2], seg_map(g));
    if (base.run.ok && base.run.exact && stride.run.ok && stride.run.exact && stride.run.stride == 0) {
        s.base = base;
        s.stride = affine_base(g, stride);
    } else {
        s.vbase = as_i64(g, seg_here(g, a[1]), a[1]);
        s.vstride = as_i64(g, seg_here(g, a[2]), a[2]);
    }
    return s;
}

static V factor(gen *g, const side *s, V k, V mask, eas_dtype acc)
{
    V x;
    if (s->stride) {
        aff off = s->base;
        off.base = LLVMBuildAdd(g->b, off.base, LLVMBuildMul(g->b, k, s->stride, ""), "");
        x = mem_load_affine(g, s->ptr, s->dt, off, mask, NULL);
    } else {
        V off = LLVMBuildAdd(g->b, s->vbase, LLVMBuildMul(g->b, splat(g, k, g->c->n), s->vstride, ""), "");
        x = mem_load_vector(g, s->ptr, s->dt, off, mask, NULL);
    }
    return value_cast(g, x, s->dt, acc);
}

typedef struct kloop {
    LLVMBasicBlockRef from, head, done;
    V k, acc;
} kloop;

static kloop open_k(gen *g, T t)
{
    kloop l = {.from = LLVMGetInsertBlock(g->b), .head = new_block(g, "dot"), .done = new_block(g, "dotted")};
    branch_to(g, l.head);
    LLVMPositionBuilderAtEnd(g->b, l.head);
    l.k = LLVMBuildPhi(g->b, ty_int(g, 64, 0), "");
    l.acc = LLVMBuildPhi(g->b, t, "");
    return l;
}

static void close_k(gen *g, const kloop *l, V acc)
{
    V zero = k_int(g, 0), none = LLVMConstNull(LLVMTypeOf(acc)), next = LLVMBuildAdd(g->b, l->k, k_int(g, 1), "");
    LLVMBasicBlockRef from = l->from, back = LLVMGetInsertBlock(g->b);
    branch_to(g, l->head);
    LLVMAddIncoming(l->k, &zero, &from, 1);
    LLVMAddIncoming(l->k, &next, &back, 1);
    LLVMAddIncoming(l->acc, &none, &from, 1);
    LLVMAddIncoming(l->acc, &acc, &back, 1);
    LLVMPositionBuilderAtEnd(g->b, l->done);
}

void dot_insn(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    const int n = g->c->n;
    const side x = make_side(g, a), y = make_side(g, a + 3);
    const aff count = affine_of(g, a[6], seg_map(g));
    const bool uni = count.run.ok && count.run.exact && count.run.stride == 0;
    V per_lane = uni ? NULL : as_i64(g, seg_here(g, a[6]), a[6]);
    kloop l = open_k(g, ty_of(g, dt, n));
    LLVMBasicBlockRef body = new_block(g, "dot.k");
    V run = uni ? NULL : LLVMBuildICmp(g->b, LLVMIntSLT, splat(g, l.k, n), per_lane, "");
    run = mask_and(g, run, g->c->exec);
    LLVMBuildCondBr(g->b, uni ? LLVMBuildICmp(g->b, LLVMIntSLT, l.k, affine_base(g, count), "") : any_of(g, run), body, l.done);
    LLVMPositionBuilderAtEnd(g->b, body);
    V r = float_fma(g, factor(g, &x, l.k, run, dt), factor(g, &y, l.k, run, dt), l.acc);
    if (run)
        r = sel(g, run, r, l.acc);
    close_k(g, &l, r);
    seg_define(g, in->res, l.acc);
}

static V scalar_factor(gen *g, const uint32_t *a, V k, eas_dtype acc)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, a[0]).dtype;
    V off = LLVMBuildAdd(g->b, as_i64(g, g->sval[a[1]], a[1]), LLVMBuildMul(g->b, k, as_i64(g, g->sval[a[2]], a[2]), ""), "");
    return value_cast(g, mem_load_scalar(g, g->sval[a[0]], dt, off), dt, acc);
}

void dot_scalar(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V count = as_i64(g, g->sval[a[6]], a[6]);
    kloop l = open_k(g, ty_of(g, dt, 0));
    LLVMBasicBlockRef body = new_block(g, "dot.k");
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, l.k, count, ""), body, l.done);
    LLVMPositionBuilderAtEnd(g->b, body);
    close_k(g, &l, float_fma(g, scalar_factor(g, a, l.k, dt), scalar_factor(g, a + 3, l.k, dt), l.acc));
    g->sval[in->res] = l.acc;
}

/* ---- simdgroup matrices ---- */

static V row_address(gen *g, V ptr, eas_dtype dt, V base, V stride, int row, int col)
{
    V off = LLVMBuildAdd(g->b, base, LLVMBuildMul(g->b, stride, k_int(g, row), ""), "");
    off = LLVMBuildAdd(g->b, off, k_int(g, col), "");
    return LLVMBuildGEP2(g->b, ty_mem(g, dt, 0), ptr, &off, 1, "");
}

static V load_tile(gen *g, V p, eas_dtype dt, int n) /* one element or eight, as f32 */
{
    V x = LLVMBuildLoad2(g->b, ty_mem(g, dt, n), p, "");
    LLVMSetAlignment(x, (unsigned)eas_dtype_size(dt));
    return value_cast(g, x, dt, EAS_F32);
}

static void multiply(gen *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype da = (eas_dtype)ir_typeof(g->ir, a[0]).dtype, db = (eas_dtype)ir_typeof(g->ir, a[3]).dtype;
    V ab = seg_scalar(g, a[1]), as = seg_scalar(g, a[2]), bb = seg_scalar(g, a[4]), bs = seg_scalar(g, a[5]);
    frag f = seg_frag(g, a[6]);
    for (int k = 0; k < 8; k++) {
        V b = load_tile(g, row_address(g, g->sval[a[3]], db, bb, bs, k, 0), db, 8);
        for (int i = 0; i < 8; i++) {
            V x = load_tile(g, row_address(g, g->sval[a[0]], da, ab, as, i, k), da, 0);
            f.row[i] = float_fma(g, splat(g, x, 8), b, f.row[i]);
        }
    }
    seg_define_frag(g, in->res, &f);
}

static void store_frag(gen *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, a[0]).dtype;
    V base = seg_scalar(g, a[1]), stride = seg_scalar(g, a[2]);
    const frag f = seg_frag(g, a[3]);
    for (int i = 0; i < 8; i++) {
        V s = LLVMBuildStore(g->b, value_cast(g, f.row[i], EAS_F32, dt), row_address(g, g->sval[a[0]], dt, base, stride, i, 0));
        LLVMSetAlignment(s, (unsigned)eas_dtype_size(dt));
    }
}

void mma_insn(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    if (in->op == IR_MMA)
        multiply(g, in);
    if (in->op == IR_MMA_STORE)
        store_frag(g, in);
    if (in->op == IR_MMA_ZERO) {
        frag f;
        for (int k = 0; k < 8; k++)
            f.row[k] = LLVMConstNull(ty_float(g, 32, 8));
        seg_define_frag(g, in->res, &f);
    }
}
