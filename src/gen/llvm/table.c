/* table.c: choices among constants by the bits of an index, as a look-up in registers.
 *
 * A value such as where(i & 4, where(i & 2, ...), ...) with constants at its leaves is a table that is
 * indexed by bits of i. AVX2 has an instruction that looks eight elements of 32 bits up in a register by the
 * low three bits of each lane of an index, AVX-512 one that looks up sixteen by four bits; the tree takes
 * seven or fifteen choices and as many constants. The choices below the root stay behind unused, and LLVM
 * drops them. Where a tree has more levels than the instruction has bits, its upper levels remain choices.
 */
#include "llvm.h"

enum { MOST_BITS = 4 };

/* The bits of a constant that is the same in all lanes. */
static bool constant_bits(V x, uint64_t *out)
{
    V e = LLVMIsConstant(x) && lanes_of(LLVMTypeOf(x)) ? LLVMGetAggregateElement(x, 0) : NULL;
    for (int i = 1; e && i < lanes_of(LLVMTypeOf(x)); i++)
        if (LLVMGetAggregateElement(x, (unsigned)i) != e) /* equal constants are one object */
            return false;
    if (e && LLVMIsAConstantFP(e))
        e = LLVMConstBitCast(e, LLVMIntTypeInContext(LLVMGetTypeContext(LLVMTypeOf(e)), 32));
    if (!e || !LLVMIsAConstantInt(e))
        return false;
    *out = LLVMConstIntGetZExtValue(e);
    return true;
}

static bool is_and(V x) { return LLVMIsAInstruction(x) && LLVMGetInstructionOpcode(x) == LLVMAnd; }

/* (index & mask) with a constant mask */
static bool masked(V x, V *index, uint64_t *mask)
{
    if (!is_and(x))
        return false;
    for (unsigned i = 0; i < 2; i++)
        if (constant_bits(LLVMGetOperand(x, i), mask)) {
            *index = LLVMGetOperand(x, 1 - i);
            return true;
        }
    return false;
}

/* Is cond "bit `bit` of index is set"? *index NULL: of any, which is told. */
static bool asks_for_bit(V cond, int bit, V *index)
{
    uint64_t zero, mask;
    V of;
    if (!LLVMIsAICmpInst(cond) || LLVMGetICmpPredicate(cond) != LLVMIntNE ||
        !constant_bits(LLVMGetOperand(cond, 1), &zero) || zero ||
        !masked(LLVMGetOperand(cond, 0), &of, &mask) || mask != UINT64_C(1) << bit ||
        (*index && *index != of))
        return false;
    *index = of;
    return true;
}

/* The constants of a tree of choices, by index; a and b: what is chosen where bit bits - 1 is set, and not.
 */
static bool leaves(V cond, V a, V b, int bits, V *index, V *out)
{
    const int half = 1 << (bits - 1);
    uint64_t any;
    if (!asks_for_bit(cond, bits - 1, index))
        return false;
    V side[2] = {b, a};
    for (int i = 0; i < 2; i++) {
        if (bits == 1 ? !constant_bits(side[i], &any) : !LLVMIsASelectInst(side[i]))
            return false;
        if (bits == 1)
            out[i] = LLVMGetAggregateElement(side[i], 0);
        else if (!leaves(LLVMGetOperand(side[i], 0), LLVMGetOperand(side[i], 1), LLVMGetOperand(side[i], 2),
                         bits - 1, index, out + i * half))
            return false;
    }
    return true;
}

/* One instruction: n lanes, as many as the table has elements. */
static V look_up(gen *g, V table, V index, int n, bool real)
{
    V x[] = {table, index};
    return n == 8 ? intrinsic(g, real ? "llvm.x86.avx2.permps" : "llvm.x86.avx2.permd", NULL, 0, x, 2)
                  : intrinsic(g, real ? "llvm.x86.avx512.permvar.sf.512" : "llvm.x86.avx512.permvar.si.512",
                              NULL, 0, x, 2);
}

static V look_up_all(gen *g, V table, V index, int n, bool real)
{
    const int lanes = lanes_of(LLVMTypeOf(index));
    V all[MOST_LANES];
    if (lanes == n)
        return look_up(g, table, index, n, real);
    V lo = look_up_all(g, table, part_of(g, index, 0, lanes / 2), n, real),
      hi = look_up_all(g, table, part_of(g, index, lanes / 2, lanes / 2), n, real);
    for (int i = 0; i < lanes; i++)
        all[i] = LLVMConstInt(ty_int(g, 32, 0), (uint64_t)i, 0);
    return LLVMBuildShuffleVector(g->b, lo, hi, LLVMConstVector(all, (unsigned)lanes), "");
}

V table_choice(gen *g, V cond, V a, V b)
{
    const int lanes = lanes_of(LLVMTypeOf(a)), bits = g->avx512 && lanes % 16 == 0 ? 4 : 3, n = 1 << bits;
    const T t = lanes ? LLVMGetElementType(LLVMTypeOf(a)) : NULL;
    const bool real = t && t == ty_float(g, 32, 0);
    V index = NULL, out[1 << MOST_BITS], of;
    uint64_t mask;
    if (!g->avx2 || !lanes || lanes % n || lanes & (lanes - 1) || (!real && t != ty_int(g, 32, 0)) ||
        !leaves(cond, a, b, bits, &index, out) || LLVMGetElementType(LLVMTypeOf(index)) != ty_int(g, 32, 0))
        return NULL;
    if (masked(index, &of, &mask) && (mask & (uint64_t)(n - 1)) == (uint64_t)(n - 1))
        index = of; /* higher bits are not looked at */
    return look_up_all(g, LLVMConstVector(out, (unsigned)n), index, n, real);
}
