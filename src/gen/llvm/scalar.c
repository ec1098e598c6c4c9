/* scalar.c: uniform instructions. A uniform value is one LLVM scalar (gen.sval), at scalar level as inside
 * a chunk. */
#include "llvm.h"

static V program_axis(gen *g, int64_t axis) { return g->id[axis] ? g->id[axis] : k_int(g, 0); }

V grid_axis(gen *g, int64_t axis)
{
    V i = k_int(g, axis);
    return LLVMBuildLoad2(g->b, ty_int(g, 64, 0), LLVMBuildGEP2(g->b, ty_int(g, 64, 0), g->grid, &i, 1, ""),
                          "");
}

static V scalar_ident(gen *g, const ir_insn *in)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V x = k_int(g, 0);
    if (in->op == IR_PROGRAM_ID)
        x = program_axis(g, in->imm);
    else if (in->op == IR_NUM_PROGRAMS)
        x = grid_axis(g, in->imm);
    else if (in->op == IR_ARANGE)
        x = k_int(g, in->imm);
    return value_cast(g, x, EAS_I64, dt);
}

static void scalar_store(gen *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, a[0]).dtype,
                    ot = (eas_dtype)ir_typeof(g->ir, a[1]).dtype;
    LLVMBasicBlockRef yes = new_block(g, "store"), done = new_block(g, "stored");
    if (in->nargs == 4)
        LLVMBuildCondBr(g->b, g->sval[a[3]], yes, done);
    else
        branch_to(g, yes);
    LLVMPositionBuilderAtEnd(g->b, yes);
    mem_store_scalar(g, g->sval[a[0]], dt, value_cast(g, g->sval[a[1]], ot, EAS_I64), g->sval[a[2]]);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
}

/* a load under a uniform mask: the memory is touched only if it holds */
static V scalar_load(gen *g, V *sval, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype,
                    ot = (eas_dtype)ir_typeof(g->ir, a[1]).dtype;
    int64_t k;
    if (in->nargs == 2 || (ir_const_of(g->ir, a[2], &k) && k))
        return mem_load_scalar(g, sval[a[0]], dt, value_cast(g, sval[a[1]], ot, EAS_I64));
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), yes = new_block(g, "load"),
                      done = new_block(g, "loaded");
    LLVMBuildCondBr(g->b, sval[a[2]], yes, done);
    LLVMPositionBuilderAtEnd(g->b, yes);
    V x = mem_load_scalar(g, sval[a[0]], dt, value_cast(g, sval[a[1]], ot, EAS_I64));
    yes = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    V phi = LLVMBuildPhi(g->b, LLVMTypeOf(x), ""), in2[2] = {sval[a[3]], x};
    LLVMBasicBlockRef bb[2] = {from, yes};
    LLVMAddIncoming(phi, in2, bb, 2);
    return phi;
}

/* one element of a block that lies in its slot */
static V scalar_move(gen *g, V *sval, const ir_insn *in)
{
    const uint32_t x = ir_args(g->ir, in)[0];
    if (g->p.val[x].cls == C_UNI)
        return sval[x];
    const ir_type from = ir_typeof(g->ir, x);
    const int64_t lane = ir_source_lane(in->op, in->imm, from, ir_typeof(g->ir, in->res), 0);
    return mem_load_scalar(g, mem_slot(g, g->p.at[x].slot), (eas_dtype)from.dtype, k_int(g, lane));
}

V scalar_value(gen *g, V *sval, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype to = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    switch (in->op) {
    case IR_CONST: return k_bits(g, to, 0, in->imm);
    case IR_CAST: return value_cast(g, sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    case IR_BITCAST: return value_bitcast(g, sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_SIMD_SHUFFLE: return sval[a[0]]; /* the same for all threads */
    case IR_SLICE:
    case IR_PAD:
    case IR_TRANS: return scalar_move(g, sval, in);
    case IR_LOAD: return scalar_load(g, sval, in);
    case IR_MATMUL: return float_fma(g, sval[a[0]], sval[a[1]], sval[a[2]]);
    default: break;
    }
    if (ir_is_fold(in)) /* of one element */
        return sval[a[0]];
    if (in->nargs == 0)
        return scalar_ident(g, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, a[in->op == IR_WHERE ? 1 : 0]).dtype;
    return value_insn(g, in->op, dt, sval[a[0]], in->nargs > 1 ? sval[a[1]] : NULL,
                      in->nargs > 2 ? sval[a[2]] : NULL);
}

void scalar_insn(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    if (in->op == IR_STORE)
        scalar_store(g, in);
    else if (in->op == IR_BOUNDS)
        mem_bounds_scalar(g, i);
    else if (in->op == IR_ASSERT)
        mem_assert_scalar(g, i);
    else if (in->op == IR_DOT)
        dot_scalar(g, i);
    else if (in->op == IR_FENCE)
        atomic_fence(g, i);
    else if (ir_is_atomic(in))
        atomic_scalar(g, i);
    else if (in->res)
        g->sval[in->res] = scalar_value(g, g->sval, in);
}
