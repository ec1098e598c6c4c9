/* build.c: LLVM's types, constants and the small expressions that every other file builds from. */
#include "llvm.h"

#include <stdio.h>

void gen_fail(gen *g, eas_status st, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (g->st)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    g->st = base_fail(st, "%s", text);
}

static T vec(T e, int n) { return n ? LLVMVectorType(e, (unsigned)n) : e; }
T ty_int(gen *g, int bits, int n) { return vec(LLVMIntTypeInContext(g->cx, (unsigned)bits), n); }

T ty_float(gen *g, int bits, int n)
{
    return vec(bits == 64   ? LLVMDoubleTypeInContext(g->cx)
               : bits == 16 ? LLVMHalfTypeInContext(g->cx)
                            : LLVMFloatTypeInContext(g->cx),
               n);
}

T ty_of(gen *g, eas_dtype dt, int n)
{
    return dt == EAS_F32 || dt == EAS_F64 ? ty_float(g, dtype_bits(dt), n) : ty_int(g, dtype_bits(dt), n);
}

T ty_mem(gen *g, eas_dtype dt, int n) { return dt == EAS_BOOL ? ty_int(g, 8, n) : ty_of(g, dt, n); }

int lanes_of(T t) { return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? (int)LLVMGetVectorSize(t) : 0; }
T with_bits(gen *g, T like, int bits) { return ty_int(g, bits, lanes_of(like)); }

static V const_splat(V x, int n)
{
    V e[MOST_LANES];
    if (!n)
        return x;
    for (int i = 0; i < n; i++)
        e[i] = x;
    return LLVMConstVector(e, (unsigned)n);
}

V k_int(gen *g, int64_t v) { return LLVMConstInt(ty_int(g, 64, 0), (uint64_t)v, 1); }

V k_like(gen *g, T t, int64_t v)
{
    (void)g;
    const int n = lanes_of(t);
    return const_splat(LLVMConstInt(n ? LLVMGetElementType(t) : t, (uint64_t)v, 1), n);
}

V k_float(gen *g, T t, double v)
{
    (void)g;
    const int n = lanes_of(t);
    return const_splat(LLVMConstReal(n ? LLVMGetElementType(t) : t, v), n);
}

V k_bits(gen *g, eas_dtype dt, int n, int64_t bits)
{
    if (dt != EAS_F32 && dt != EAS_F64)
        return const_splat(LLVMConstInt(ty_of(g, dt, 0), (uint64_t)bits, 1), n);
    V i = LLVMConstInt(ty_int(g, dtype_bits(dt), 0), (uint64_t)bits, 0);
    return const_splat(LLVMConstBitCast(i, ty_of(g, dt, 0)), n);
}

V k_iota(gen *g, T elem, int n, int64_t stride)
{
    V e[MOST_LANES];
    (void)g;
    for (int i = 0; i < n; i++)
        e[i] = LLVMConstInt(elem, (uint64_t)(i * stride), 1);
    return LLVMConstVector(e, (unsigned)n);
}

V splat(gen *g, V x, int n)
{
    if (!n)
        return x;
    if (LLVMIsConstant(x) && !LLVMIsUndef(x))
        return const_splat(x, n);
    const T t = vec(LLVMTypeOf(x), n);
    V v = LLVMBuildInsertElement(g->b, LLVMGetPoison(t), x, k_int(g, 0), "");
    return LLVMBuildShuffleVector(g->b, v, LLVMGetPoison(t), LLVMConstNull(ty_int(g, 32, n)), "");
}

V intrinsic(gen *g, const char *name, T *types, int ntypes, V *args, int nargs)
{
    const unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    V f = LLVMGetIntrinsicDeclaration(g->mod, id, types, (size_t)ntypes);
    return LLVMBuildCall2(g->b, LLVMIntrinsicGetType(g->cx, id, types, (size_t)ntypes), f, args,
                          (unsigned)nargs, "");
}

V sel(gen *g, V c, V a, V b) { return LLVMBuildSelect(g->b, c, a, b, ""); }

/* The bits of a constant mask are known: no instruction is needed for them. */
V mask_bits(gen *g, V mask, int n)
{
    uint64_t bits = 0;
    if (!LLVMIsConstant(mask))
        return LLVMBuildBitCast(g->b, mask, ty_int(g, n, 0), "");
    for (int i = 0; i < n; i++) {
        V lane = LLVMIsAConstantInt(LLVMGetAggregateElement(mask, (unsigned)i));
        bits |= (uint64_t)(lane && LLVMConstIntGetZExtValue(lane)) << i;
    }
    return LLVMConstInt(ty_int(g, n, 0), bits, 0);
}

V any_of(gen *g, V mask)
{
    T t = LLVMTypeOf(mask);
    const int n = lanes_of(t);
    if (!n)
        return mask;
    if (n == 1)
        return LLVMBuildExtractElement(g->b, mask, k_int(g, 0), "");
    if (!g->x86)
        return intrinsic(g, "llvm.vector.reduce.or", &t, 1, &mask, 1);
    return LLVMBuildICmp(g->b, LLVMIntNE, mask_bits(g, mask, n), LLVMConstInt(ty_int(g, n, 0), 0, 0), "");
}

V all_of(gen *g, V mask)
{
    T t = LLVMTypeOf(mask);
    const int n = lanes_of(t);
    if (!g->x86 && n > 1 && !LLVMIsConstant(mask))
        return intrinsic(g, "llvm.vector.reduce.and", &t, 1, &mask, 1);
    return LLVMBuildICmp(g->b, LLVMIntEQ, mask_bits(g, mask, n), LLVMConstAllOnes(ty_int(g, n, 0)), "");
}

V mask_and(gen *g, V a, V b) { return !a ? b : !b ? a : LLVMBuildAnd(g->b, a, b, ""); }

LLVMBasicBlockRef new_block(gen *g, const char *name)
{
    return LLVMAppendBasicBlockInContext(g->cx, g->fn, name);
}
void branch_to(gen *g, LLVMBasicBlockRef bb) { LLVMBuildBr(g->b, bb); }

V entry_alloca(gen *g, T t)
{
    LLVMBuilderRef b = LLVMCreateBuilderInContext(g->cx);
    LLVMPositionBuilderBefore(b, g->entry_end);
    V a = LLVMBuildAlloca(b, t, "");
    LLVMSetAlignment(a, 64);
    LLVMDisposeBuilder(b);
    return a;
}
