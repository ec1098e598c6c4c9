/* elementwise.c: element-wise instructions on scalars and on vectors, with the corner cases that insn.def
 * states.
 *
 * Operands and results have the type ty_of gives: bool is i1, f16 and bf16 are their bits. LLVM's poison
 * (division by zero, shift out of range, cast out of range) never arises: operands are made harmless first
 * and the result is chosen after.
 */
#include "llvm.h"

#include <math.h>

static V icmp(gen *g, LLVMIntPredicate p, V a, V b) { return LLVMBuildICmp(g->b, p, a, b, ""); }
static V fcmp(gen *g, LLVMRealPredicate p, V a, V b) { return LLVMBuildFCmp(g->b, p, a, b, ""); }
static V zero_of(gen *g, V x) { return k_like(g, LLVMTypeOf(x), 0); }

/* ---- what the table says: one instruction or intrinsic ---- */

typedef V build_one(LLVMBuilderRef b, V x, const char *name);
typedef V build_two(LLVMBuilderRef b, V x, V y, const char *name);
typedef struct way {
    enum { WAY_OWN, WAY_ONE, WAY_TWO, WAY_CMP, WAY_CALL } kind;
    build_one *one[2]; /* of integers, of floats; NULL: none */
    build_two *two[2];
    LLVMIntPredicate sint, uint;
    LLVMRealPredicate real;
    const char *call;
} way;
#define OWN {.kind = WAY_OWN}
#define ONE(i, f) \
    { \
        WAY_ONE, .one = { LLVMBuild##i, LLVMBuild##f } \
    }
#define ONE_I(i) \
    { \
        WAY_ONE, .one = { LLVMBuild##i, NULL } \
    }
#define TWO(i, f) \
    { \
        WAY_TWO, .two = { LLVMBuild##i, LLVMBuild##f } \
    }
#define TWO_I(i) \
    { \
        WAY_TWO, .two = { LLVMBuild##i, NULL } \
    }
#define TWO_F(f) \
    { \
        WAY_TWO, .two = { NULL, LLVMBuild##f } \
    }
#define CMP(s, u, f) {WAY_CMP, .sint = LLVMInt##s, .uint = LLVMInt##u, .real = LLVMReal##f}
#define CALL(name) {WAY_CALL, .call = "llvm." #name}
static const way ways[IR_NOPS] = {
#define INSN(NAME, name, nargs, rule, classes, flags, cost, llvm, mk, si, ui, fl) [IR_##NAME] = llvm,
#include "../../ir/insn.def"
#undef INSN
};

/* NULL: no single instruction or intrinsic computes it. */
static V by_table(gen *g, uint16_t op, bool is_float, V a, V b)
{
    const way *w = &ways[op];
    T t = LLVMTypeOf(a);
    if (w->kind == WAY_ONE && w->one[is_float])
        return w->one[is_float](g->b, a, "");
    if (w->kind == WAY_TWO && w->two[is_float])
        return w->two[is_float](g->b, a, b, "");
    return w->kind == WAY_CALL && is_float ? intrinsic(g, w->call, &t, 1, &a, 1) : NULL;
}

/* ---- division ---- */

/* a constant scalar or splat: its special values are known */
static bool all_constant(V x, bool *has_zero, bool *has_m1)
{
    if (!LLVMIsConstant(x))
        return false;
    const int n = lanes_of(LLVMTypeOf(x));
    V e = n ? LLVMGetAggregateElement(x, 0) : x;
    if (!e || !LLVMIsAConstantInt(e))
        return false;
    for (int i = 1; i < n; i++)
        if (LLVMGetAggregateElement(x, (unsigned)i) != e) /* equal constants are one object */
            return false;
    *has_zero = LLVMConstIntGetZExtValue(e) == 0;
    *has_m1 = LLVMConstIntGetSExtValue(e) == -1;
    return true;
}

/* Vectors have no integer division: up to 32 bits it is exact through floats, since the quotient times the
 * divisor fits the mantissa. */
static V divide_vector(gen *g, V a, V b, bool is_signed, int bits)
{
    const T t = LLVMTypeOf(a), f = ty_float(g, bits == 32 ? 64 : 32, lanes_of(t));
    V x = is_signed ? LLVMBuildSIToFP(g->b, a, f, "") : LLVMBuildUIToFP(g->b, a, f, "");
    V y = is_signed ? LLVMBuildSIToFP(g->b, b, f, "") : LLVMBuildUIToFP(g->b, b, f, "");
    V q = LLVMBuildFDiv(g->b, x, y, "");
    if (bits == 32)
        return is_signed ? LLVMBuildFPToSI(g->b, q, t, "") : LLVMBuildFPToUI(g->b, q, t, "");
    return LLVMBuildTrunc(g->b, LLVMBuildFPToSI(g->b, q, with_bits(g, t, 32), ""), t, "");
}

/* 64-bit vectors: one lane after the other, in a loop to keep the code small */
static V divide_lanes(gen *g, V a, V b, bool is_signed)
{
    const T t = LLVMTypeOf(a);
    const int n = lanes_of(t);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), loop = new_block(g, "div"),
                      done = new_block(g, "div.done");
    V pa = entry_alloca(g, t), pb = entry_alloca(g, t);
    LLVMBuildStore(g->b, a, pa);
    LLVMBuildStore(g->b, b, pb);
    branch_to(g, loop);
    LLVMPositionBuilderAtEnd(g->b, loop);
    V i = LLVMBuildPhi(g->b, ty_int(g, 64, 0), "");
    V qa = LLVMBuildGEP2(g->b, ty_int(g, 64, 0), pa, &i, 1, ""),
      qb = LLVMBuildGEP2(g->b, ty_int(g, 64, 0), pb, &i, 1, "");
    V x = LLVMBuildLoad2(g->b, ty_int(g, 64, 0), qa, ""), y = LLVMBuildLoad2(g->b, ty_int(g, 64, 0), qb, "");
    LLVMBuildStore(g->b, is_signed ? LLVMBuildSDiv(g->b, x, y, "") : LLVMBuildUDiv(g->b, x, y, ""), qa);
    V i2 = LLVMBuildAdd(g->b, i, k_int(g, 1), "");
    V from_i = k_int(g, 0);
    LLVMBuildCondBr(g->b, icmp(g, LLVMIntULT, i2, k_int(g, n)), loop, done);
    LLVMAddIncoming(i, &from_i, &from, 1);
    LLVMAddIncoming(i, &i2, &loop, 1);
    LLVMPositionBuilderAtEnd(g->b, done);
    return LLVMBuildLoad2(g->b, t, pa, "");
}

/* ---- by one number for all lanes: times its reciprocal ---- */

/* The number in every lane of b; NULL if it was not made of one. */
static V one_number(V b)
{
    V v = LLVMIsAShuffleVectorInst(b) ? LLVMGetOperand(b, 0) : NULL;
    return v && LLVMIsAInsertElementInst(v) && LLVMIsPoison(LLVMGetOperand(v, 0)) ? LLVMGetOperand(v, 1)
                                                                                  : NULL;
}

/* 1/d times a number near 1, in every lane */
static V reciprocal(gen *g, V d, bool is_signed, int bits, int n, double near)
{
    const T f = ty_float(g, bits, 0);
    V y = is_signed ? LLVMBuildSIToFP(g->b, d, f, "") : LLVMBuildUIToFP(g->b, d, f, "");
    V r = LLVMBuildFDiv(g->b, LLVMConstReal(f, 1), y, "");
    return splat(g, LLVMBuildFMul(g->b, r, LLVMConstReal(f, near), ""), n);
}

/* Up to 32 bits: the reciprocal is larger than it should be by two units at most. So a multiple of d does
 * not fall short, and anything else is too far below the next one to reach it. */
static V divide_short(gen *g, V a, V d, bool is_signed, int bits)
{
    const T t = LLVMTypeOf(a);
    const int n = lanes_of(t), wide = bits == 32 ? 64 : 32;
    const T f = ty_float(g, wide, n);
    V x = is_signed ? LLVMBuildSIToFP(g->b, a, f, "") : LLVMBuildUIToFP(g->b, a, f, "");
    V q = LLVMBuildFMul(g->b, x, reciprocal(g, d, is_signed, wide, n, wide == 64 ? 1 + 0x1p-52 : 1 + 0x1p-23),
                        "");
    if (bits == 32)
        return is_signed ? LLVMBuildFPToSI(g->b, q, t, "") : LLVMBuildFPToUI(g->b, q, t, "");
    return LLVMBuildTrunc(g->b, LLVMBuildFPToSI(g->b, q, with_bits(g, t, 32), ""), t, "");
}

/* One step of the division: the part of the quotient that is certain is added to *q; the remainder that is
 * still to be divided is returned. */
static V take_off(gen *g, V r, V by, V d, V *q)
{
    const T t = LLVMTypeOf(r);
    V some = LLVMBuildFPToUI(g->b, LLVMBuildFMul(g->b, LLVMBuildUIToFP(g->b, r, LLVMTypeOf(by), ""), by, ""),
                             t, "");
    *q = *q ? LLVMBuildAdd(g->b, *q, some, "") : some;
    return LLVMBuildSub(g->b, r, LLVMBuildMul(g->b, some, d, ""), "");
}

/* 64 bits: magnitudes, with a reciprocal that is too small. The first step leaves less than 2^15 and d,
 * the second less than twice d. */
static V divide_long(gen *g, V a, V d, bool is_signed)
{
    const T t = LLVMTypeOf(a);
    const int n = lanes_of(t);
    V zero = zero_of(g, a), minus = NULL, q = NULL;
    if (is_signed) {
        minus = icmp(g, LLVMIntSLT, LLVMBuildXor(g->b, a, splat(g, d, n), ""), zero);
        a = sel(g, icmp(g, LLVMIntSLT, a, zero), LLVMBuildNeg(g->b, a, ""), a);
        d = sel(g, icmp(g, LLVMIntSLT, d, zero_of(g, d)), LLVMBuildNeg(g->b, d, ""), d);
    }
    V by = reciprocal(g, d, false, 64, n, 1 - 0x1p-50), all = splat(g, d, n);
    V r = take_off(g, take_off(g, a, by, all, &q), by, all, &q);
    q = sel(g, icmp(g, LLVMIntUGE, r, all), LLVMBuildAdd(g->b, q, k_like(g, t, 1), ""), q);
    return minus ? sel(g, minus, LLVMBuildNeg(g->b, q, ""), q) : q;
}

/* As below, for a number that is not known here. */
static V quotient_by(gen *g, V a, V d, bool is_signed, int bits)
{
    V is0 = icmp(g, LLVMIntEQ, d, zero_of(g, d)),
      ism1 = is_signed ? icmp(g, LLVMIntEQ, d, k_like(g, LLVMTypeOf(d), -1)) : NULL;
    V safe = sel(g, ism1 ? LLVMBuildOr(g->b, is0, ism1, "") : is0, k_like(g, LLVMTypeOf(d), 1), d);
    V q = bits == 64 ? divide_long(g, a, safe, is_signed) : divide_short(g, a, safe, is_signed, bits);
    const int n = lanes_of(LLVMTypeOf(a));
    if (ism1)
        q = sel(g, splat(g, ism1, n), LLVMBuildNeg(g->b, a, ""), q);
    return sel(g, splat(g, is0, n), zero_of(g, a), q);
}

static V divide_raw(gen *g, V a, V b, bool is_signed, int bits)
{
    bool z, m;
    if (lanes_of(LLVMTypeOf(a)) == 0 || all_constant(b, &z, &m))
        return is_signed ? LLVMBuildSDiv(g->b, a, b, "") : LLVMBuildUDiv(g->b, a, b, "");
    return bits == 64 ? divide_lanes(g, a, b, is_signed) : divide_vector(g, a, b, is_signed, bits);
}

/* quotient towards zero with x / 0 = 0 and x / -1 = 0 - x */
static V quotient(gen *g, V a, V b, bool is_signed, int bits)
{
    bool z, m;
    const T t = LLVMTypeOf(a);
    if (all_constant(b, &z, &m)) {
        if (z)
            return zero_of(g, a);
        if (m && is_signed)
            return LLVMBuildNeg(g->b, a, "");
        return divide_raw(g, a, b, is_signed, bits);
    }
    V d = lanes_of(t) ? one_number(b) : NULL;
    if (d && (bits < 64 || g->avx512)) /* others have no vectors of such conversions */
        return quotient_by(g, a, d, is_signed, bits);
    V is0 = icmp(g, LLVMIntEQ, b, zero_of(g, b)), odd = is0, ism1 = NULL;
    if (is_signed) {
        ism1 = icmp(g, LLVMIntEQ, b, k_like(g, t, -1));
        odd = LLVMBuildOr(g->b, is0, ism1, "");
    }
    V q = divide_raw(g, a, sel(g, odd, k_like(g, t, 1), b), is_signed, bits);
    if (ism1)
        q = sel(g, ism1, LLVMBuildNeg(g->b, a, ""), q);
    return sel(g, is0, zero_of(g, a), q);
}

/* log2 of a constant divisor that is a power of two, -1 if it is not */
static int divisor_log2(V b)
{
    bool z, m;
    if (!all_constant(b, &z, &m))
        return -1;
    V e = lanes_of(LLVMTypeOf(b)) ? LLVMGetAggregateElement(b, 0) : b;
    const int64_t k = LLVMConstIntGetSExtValue(e);
    return k > 0 && (k & (k - 1)) == 0 ? __builtin_ctzll((uint64_t)k) : -1;
}

static V division(gen *g, uint16_t op, eas_dtype dt, V a, V b)
{
    const int log2 = divisor_log2(b);
    const T t = LLVMTypeOf(a);
    if (log2 >= 0 && op == IR_FLOORDIV)
        return dtype_is_signed(dt) ? LLVMBuildAShr(g->b, a, k_like(g, t, log2), "")
                                   : LLVMBuildLShr(g->b, a, k_like(g, t, log2), "");
    if (log2 >= 0 && op == IR_MOD)
        return LLVMBuildAnd(g->b, a, k_like(g, t, ((int64_t)1 << log2) - 1), "");
    const bool s = dtype_is_signed(dt), floored = s && (op == IR_FLOORDIV || op == IR_MOD);
    V q = quotient(g, a, b, s, dtype_bits(dt));
    if (op == IR_TDIV || (op == IR_FLOORDIV && !s))
        return q;
    V r = LLVMBuildSub(g->b, a, LLVMBuildMul(g->b, q, b, ""), "");
    bool z = false, m = false;
    const bool known = all_constant(b, &z, &m);
    /* b == 0 makes r = a, which is not the remainder's value */
    if (op == IR_FLOORDIV || op == IR_MOD || op == IR_TREM)
        if (!known || z)
            r = sel(g, icmp(g, LLVMIntEQ, b, zero_of(g, b)), zero_of(g, a), r);
    if (!floored)
        return r;
    V fix = LLVMBuildAnd(g->b, icmp(g, LLVMIntNE, r, zero_of(g, r)),
                         icmp(g, LLVMIntSLT, LLVMBuildXor(g->b, r, b, ""), zero_of(g, r)), "");
    if (op == IR_MOD)
        return sel(g, fix, LLVMBuildAdd(g->b, r, b, ""), r);
    return sel(g, fix, LLVMBuildSub(g->b, q, k_like(g, LLVMTypeOf(q), 1), ""), q);
}

/* ---- integers ---- */

static V shift(gen *g, uint16_t op, eas_dtype dt, V a, V b)
{
    const T t = LLVMTypeOf(a);
    V width = k_like(g, t, dtype_bits(dt)), over = icmp(g, LLVMIntUGE, b, width);
    if (op == IR_SHR && dtype_is_signed(dt))
        return LLVMBuildAShr(g->b, a, sel(g, over, k_like(g, t, dtype_bits(dt) - 1), b), "");
    V safe = sel(g, over, zero_of(g, b), b);
    V r = op == IR_SHL ? LLVMBuildShl(g->b, a, safe, "") : LLVMBuildLShr(g->b, a, safe, "");
    return sel(g, over, zero_of(g, a), r);
}

static V integer_insn(gen *g, uint16_t op, eas_dtype dt, V a, V b)
{
    const bool s = dtype_is_signed(dt);
    V r = ways[op].kind == WAY_CMP ? icmp(g, s ? ways[op].sint : ways[op].uint, a, b)
                                   : by_table(g, op, false, a, b);
    if (r)
        return r;
    switch (op) {
    case IR_ABS: return s ? sel(g, icmp(g, LLVMIntSLT, a, zero_of(g, a)), LLVMBuildNeg(g->b, a, ""), a) : a;
    case IR_FLOORDIV:
    case IR_MOD:
    case IR_TDIV:
    case IR_TREM: return division(g, op, dt, a, b);
    case IR_MIN: return sel(g, icmp(g, s ? LLVMIntSLT : LLVMIntULT, a, b), a, b);
    case IR_MAX: return sel(g, icmp(g, s ? LLVMIntSGT : LLVMIntUGT, a, b), a, b);
    case IR_SHL:
    case IR_SHR: return shift(g, op, dt, a, b);
    default: break;
    }
    gen_fail(g, EAS_ERR_INTERNAL, "no code for %s of integers", ir_rows[op].name);
    return a;
}

/* ---- floats ---- */

/* A NaN in b is chosen by the comparison, as it fails; the first choice is one instruction on most
 * machines. */
static V min_max(gen *g, uint16_t op, V a, V b)
{
    V take_a = fcmp(g, op == IR_MIN ? LLVMRealOLT : LLVMRealOGT, a, b);
    return sel(g, fcmp(g, LLVMRealUNO, a, a), a, sel(g, take_a, a, b));
}

static V float_compare(gen *g, uint16_t op, V a, V b)
{
    const T t = LLVMTypeOf(a);
    if (ways[op].kind == WAY_CMP)
        return fcmp(g, ways[op].real, a, b);
    switch (op) {
    case IR_ISNAN: return fcmp(g, LLVMRealUNO, a, a);
    case IR_ISINF: return fcmp(g, LLVMRealOEQ, float_abs(g, a), k_float(g, t, INFINITY));
    default: return NULL;
    }
}

static V float_arith(gen *g, uint16_t op, V a, V b, V c)
{
    V r = by_table(g, op, true, a, b);
    if (r)
        return r;
    switch (op) {
    case IR_ABS: return float_abs(g, a);
    case IR_TREM: return float_mod(g, a, b);
    case IR_FMA: return float_fma(g, a, b, c);
    case IR_LDEXP: return float_ldexp(g, a, b);
    case IR_MIN:
    case IR_MAX: return min_max(g, op, a, b);
    case IR_FLOOR:
    case IR_CEIL:
    case IR_TRUNC:
    case IR_ROUND: return float_round(g, op, a);
    default: break;
    }
    gen_fail(g, EAS_ERR_INTERNAL, "no code for %s of floats", ir_rows[op].name);
    return a;
}

V value_insn(gen *g, uint16_t op, eas_dtype dt, V a, V b, V c)
{
    if (op == IR_WHERE) {
        V found = table_choice(g, a, b, c);
        return found ? found : sel(g, a, b, c);
    }
    if (!dtype_is_float(dt))
        return integer_insn(g, op, dt, a, b);
    if (op == IR_NEG && dtype_bits(dt) == 16)
        return LLVMBuildXor(g->b, a, k_like(g, LLVMTypeOf(a), 0x8000), "");
    if (op == IR_ABS && dtype_bits(dt) == 16)
        return LLVMBuildAnd(g->b, a, k_like(g, LLVMTypeOf(a), 0x7fff), "");
    V x = float_up(g, a, dt), y = b ? float_up(g, b, dt) : NULL, z = c ? float_up(g, c, dt) : NULL;
    V r = float_compare(g, op, x, y);
    return r ? r : float_down(g, float_arith(g, op, x, y, z), dt);
}

/* ---- conversions ---- */

static V int_to_int(gen *g, V x, eas_dtype from, eas_dtype to)
{
    const T t = with_bits(g, LLVMTypeOf(x), dtype_bits(to));
    if (to == EAS_BOOL)
        return icmp(g, LLVMIntNE, x, zero_of(g, x));
    if (dtype_bits(to) < dtype_bits(from))
        return LLVMBuildTrunc(g->b, x, t, "");
    if (dtype_bits(to) == dtype_bits(from))
        return x;
    return dtype_is_signed(from) ? LLVMBuildSExt(g->b, x, t, "") : LLVMBuildZExt(g->b, x, t, "");
}

/* Folds the bits that a double cannot hold into one sticky bit, so that rounding to 16 bits later is the
 * only rounding. */
static V sticky(gen *g, V x)
{
    const T t = LLVMTypeOf(x);
    V low = LLVMBuildAnd(g->b, x, k_like(g, t, 0xfff), "");
    V bit = LLVMBuildShl(g->b, LLVMBuildZExt(g->b, icmp(g, LLVMIntNE, low, zero_of(g, x)), t, ""),
                         k_like(g, t, 12), "");
    V cut = LLVMBuildOr(g->b, LLVMBuildAnd(g->b, x, k_like(g, t, ~(int64_t)0xfff), ""), bit, "");
    V big = icmp(g, LLVMIntNE, LLVMBuildLShr(g->b, x, k_like(g, t, 53), ""), zero_of(g, x));
    return sel(g, big, cut, x);
}

static V wide_to_bf16(gen *g, V x, eas_dtype from)
{
    const T f64 = ty_float(g, 64, lanes_of(LLVMTypeOf(x)));
    V neg = dtype_is_signed(from) ? icmp(g, LLVMIntSLT, x, zero_of(g, x)) : NULL;
    V m = sticky(g, neg ? sel(g, neg, LLVMBuildNeg(g->b, x, ""), x) : x);
    V d = LLVMBuildUIToFP(g->b, m, f64, "");
    if (neg)
        d = sel(g, neg, LLVMBuildFNeg(g->b, d, ""), d);
    return float_narrow(g, d, EAS_BF16);
}

static V int_to_float(gen *g, V x, eas_dtype from, eas_dtype to)
{
    const int n = lanes_of(LLVMTypeOf(x)), bits = dtype_bits(from);
    if (to == EAS_BF16 && bits == 64)
        return wide_to_bf16(g, x, from);
    /* f16 may go through f32: what f32 cannot hold exactly is infinite in f16 */
    const T f = ty_float(g, to == EAS_F64 || (to == EAS_BF16 && bits == 32) ? 64 : 32, n);
    V r = dtype_is_signed(from) ? LLVMBuildSIToFP(g->b, x, f, "") : LLVMBuildUIToFP(g->b, x, f, "");
    if (to == EAS_BF16 && bits == 32)
        return float_narrow(g, r, to);
    return float_down(g, r, to);
}

/* Saturating, as vectors: x is brought into the range that converts exactly, and what lay above it takes
 * the largest integer. */
static V float_to_int_vector(gen *g, V f, T to, eas_dtype dt)
{
    const T ft = LLVMTypeOf(f), via = dtype_bits(dt) < 32 ? with_bits(g, to, 32) : to;
    const bool wide = LLVMGetTypeKind(LLVMGetElementType(ft)) == LLVMDoubleTypeKind,
               is_signed = dtype_is_signed(dt);
    const int bits = dtype_bits(dt), mantissa = wide ? 53 : 24, room = bits - (is_signed ? 1 : 0);
    /* the first number too large, and the least */
    const double end = ldexp(1, room), low = is_signed ? -end : 0;
    const double high = room > mantissa ? end - ldexp(1, room - mantissa) : end - 1;
    V lo = k_float(g, ft, low), hi = k_float(g, ft, high);
    V y = LLVMBuildSelect(g->b, fcmp(g, LLVMRealOGT, f, lo), f, lo, ""); /* NaN becomes low, and 0 below */
    y = LLVMBuildSelect(g->b, fcmp(g, LLVMRealOLT, y, hi), y, hi, "");
    V i = is_signed || bits < 32 ? LLVMBuildFPToSI(g->b, y, via, "") : LLVMBuildFPToUI(g->b, y, via, "");
    i = via == to ? i : LLVMBuildTrunc(g->b, i, to, "");
    if (room > mantissa)
        i = sel(g, fcmp(g, LLVMRealOGE, f, k_float(g, ft, end)), k_like(g, to, (int64_t)dtype_max(dt)), i);
    /* A signalling NaN need not become `low`: on AArch64 the first selection is an fmaxnm, which makes it
     * a quiet NaN. */
    const bool low_is_0 = !is_signed && g->x86;
    return low_is_0 ? i : sel(g, fcmp(g, LLVMRealUNO, f, f), k_like(g, to, 0), i);
}

static V float_to_int(gen *g, V x, eas_dtype from, eas_dtype to)
{
    V f = float_up(g, x, from);
    T t[2] = {with_bits(g, LLVMTypeOf(x), dtype_bits(to)), LLVMTypeOf(f)};
    if (to == EAS_BOOL)
        return fcmp(g, LLVMRealUNE, f, k_float(g, t[1], 0));
    if (lanes_of(t[1]))
        return float_to_int_vector(g, f, t[0], to);
    return intrinsic(g, dtype_is_signed(to) ? "llvm.fptosi.sat" : "llvm.fptoui.sat", t, 2, &f, 1);
}

static V float_to_float(gen *g, V x, eas_dtype from, eas_dtype to)
{
    const int n = lanes_of(LLVMTypeOf(x));
    if (from == EAS_F64)
        return to == EAS_F32 ? LLVMBuildFPTrunc(g->b, x, ty_float(g, 32, n), "") : float_narrow(g, x, to);
    V f = float_up(g, x, from);
    return to == EAS_F64 ? LLVMBuildFPExt(g->b, f, ty_float(g, 64, n), "") : float_down(g, f, to);
}

V value_cast(gen *g, V x, eas_dtype from, eas_dtype to)
{
    if (from == to)
        return x;
    if (dtype_is_float(from))
        return dtype_is_float(to) ? float_to_float(g, x, from, to) : float_to_int(g, x, from, to);
    return dtype_is_float(to) ? int_to_float(g, x, from, to) : int_to_int(g, x, from, to);
}

V value_bitcast(gen *g, V x, eas_dtype from, eas_dtype to)
{
    (void)from;
    return LLVMBuildBitCast(g->b, x, ty_of(g, to, lanes_of(LLVMTypeOf(x))), "");
}
