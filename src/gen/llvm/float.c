/* float.c: float operations that the hardware may lack, as inline code that works on scalars and vectors
 * alike.
 *
 * Nothing here may become a library call: f16 without F16C, rounding without SSE4.1, fma without FMA and fmod
 * are integer and plain float code. Results are exact (correctly rounded) in every case.
 */
#include "llvm.h"

static V bits_of(gen *g, V x) /* float -> integer of the same width */
{
    const T t = LLVMTypeOf(x), e = lanes_of(t) ? LLVMGetElementType(t) : t;
    return LLVMBuildBitCast(g->b, x, with_bits(g, t, LLVMGetTypeKind(e) == LLVMDoubleTypeKind ? 64 : 32), "");
}

static V as_f32(gen *g, V x)
{
    return LLVMBuildBitCast(g->b, x, ty_float(g, 32, lanes_of(LLVMTypeOf(x))), "");
}
static V as_like(gen *g, V x, V like) { return LLVMBuildBitCast(g->b, x, LLVMTypeOf(like), ""); }

static bool is_f64(V x)
{
    T t = LLVMTypeOf(x);
    if (lanes_of(t))
        t = LLVMGetElementType(t);
    return LLVMGetTypeKind(t) == LLVMDoubleTypeKind;
}

V float_abs(gen *g, V x)
{
    T t = LLVMTypeOf(x);
    return intrinsic(g, "llvm.fabs", &t, 1, &x, 1);
}

static V copysign_(gen *g, V x, V sign)
{
    T t = LLVMTypeOf(x);
    V a[2] = {x, sign};
    return intrinsic(g, "llvm.copysign", &t, 1, a, 2);
}

/* ---- f16 and bf16 ---- */

static V bf16_up(gen *g, V x)
{
    const T t = with_bits(g, LLVMTypeOf(x), 32);
    return as_f32(g, LLVMBuildShl(g->b, LLVMBuildZExt(g->b, x, t, ""), k_like(g, t, 16), ""));
}

static V bf16_down_soft(gen *g, V f)
{
    const T t = with_bits(g, LLVMTypeOf(f), 32);
    V u = bits_of(g, f), hi = LLVMBuildLShr(g->b, u, k_like(g, t, 16), "");
    V odd = LLVMBuildAnd(g->b, hi, k_like(g, t, 1), "");
    V r = LLVMBuildAdd(g->b, u, LLVMBuildAdd(g->b, odd, k_like(g, t, 0x7fff), ""), "");
    r = LLVMBuildLShr(g->b, r, k_like(g, t, 16), "");
    V nan = LLVMBuildFCmp(g->b, LLVMRealUNO, f, f, "");
    r = sel(g, nan, LLVMBuildOr(g->b, hi, k_like(g, t, 0x40), ""), r);
    return LLVMBuildTrunc(g->b, r, with_bits(g, t, 16), "");
}

/* Is any of 8, 16 or 32 lanes a subnormal number? */
static V any_subnormal(gen *g, V f)
{
    enum { SUBNORMAL = 1 << 5 };
    const int n = lanes_of(LLVMTypeOf(f)), part = n < 16 ? n : 16;
    const char *const name = part == 16 ? "llvm.x86.avx512.fpclass.ps.512" : "llvm.x86.avx512.fpclass.ps.256";
    V found = NULL;
    for (int i = 0; i < n; i += part) {
        V x[2] = {n == part ? f : part_of(g, f, i, part), LLVMConstInt(ty_int(g, 32, 0), SUBNORMAL, 0)};
        V mask = intrinsic(g, name, NULL, 0, x, 2);
        found = found ? LLVMBuildOr(g->b, found, mask, "") : mask;
    }
    return any_of(g, found);
}

/* vcvtneps2bf16 rounds as everywhere, but takes subnormal numbers as 0: a vector with one goes the long way.
 */
static V bf16_down_quickly(gen *g, V f)
{
    const int n = lanes_of(LLVMTypeOf(f));
    const T bf16 = LLVMVectorType(LLVMBFloatTypeInContext(g->cx), (unsigned)n);
    LLVMBasicBlockRef quick = new_block(g, "bf16.quick"), slow = new_block(g, "bf16.slow"),
                      done = new_block(g, "bf16.done");
    LLVMBuildCondBr(g->b, any_subnormal(g, f), slow, quick);
    LLVMPositionBuilderAtEnd(g->b, quick);
    V r[2] = {LLVMBuildBitCast(g->b, LLVMBuildFPTrunc(g->b, f, bf16, ""), ty_int(g, 16, n), "")};
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, slow);
    r[1] = bf16_down_soft(g, f);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    V phi = LLVMBuildPhi(g->b, LLVMTypeOf(r[0]), "");
    LLVMBasicBlockRef from[2] = {quick, slow};
    LLVMAddIncoming(phi, r, from, 2);
    return phi;
}

static V bf16_down(gen *g, V f)
{
    const int n = lanes_of(LLVMTypeOf(f));
    const bool quickly = g->bf16 && (n == 8 || n == 16 || n == 32) && !LLVMIsConstant(f);
    return quickly ? bf16_down_quickly(g, f) : bf16_down_soft(g, f);
}

static V f16_up_soft(gen *g, V x)
{
    const T t = with_bits(g, LLVMTypeOf(x), 32);
    V u = LLVMBuildZExt(g->b, x, t, "");
    V sign = LLVMBuildShl(g->b, LLVMBuildAnd(g->b, u, k_like(g, t, 0x8000), ""), k_like(g, t, 16), "");
    V mag = LLVMBuildAnd(g->b, u, k_like(g, t, 0x7fff), "");
    V shifted = LLVMBuildShl(g->b, mag, k_like(g, t, 13), "");
    V f = as_f32(g, shifted); /* the exponent is 112 too small; the product makes subnormals right as well */
    V scaled = bits_of(g, LLVMBuildFMul(g->b, f, k_float(g, LLVMTypeOf(f), 0x1p112), ""));
    V special = LLVMBuildICmp(g->b, LLVMIntUGE, mag, k_like(g, t, 0x7c00), "");
    V inf = LLVMBuildOr(g->b, shifted, k_like(g, t, 0x7f800000), "");
    return as_f32(g, LLVMBuildOr(g->b, sel(g, special, inf, scaled), sign, ""));
}

static V f16_down_soft(gen *g, V f)
{
    const T t = with_bits(g, LLVMTypeOf(f), 32);
    V u = bits_of(g, f), sign = LLVMBuildAnd(g->b, u, k_like(g, t, 0x80000000u), "");
    V mag = LLVMBuildXor(g->b, u, sign, "");
    V nan = LLVMBuildICmp(g->b, LLVMIntUGT, mag, k_like(g, t, 0x7f800000), "");
    /* 2^16: infinity whatever the rounding */
    V over = LLVMBuildICmp(g->b, LLVMIntUGE, mag, k_like(g, t, 0x47800000), "");
    /* below 2^-14: subnormal in f16 */
    V small = LLVMBuildICmp(g->b, LLVMIntULT, mag, k_like(g, t, 0x38800000), "");
    V odd = LLVMBuildAnd(g->b, LLVMBuildLShr(g->b, mag, k_like(g, t, 13), ""), k_like(g, t, 1), "");
    V n =
        LLVMBuildAdd(g->b, LLVMBuildAdd(g->b, mag, odd, ""), k_like(g, t, 0xfff - ((int64_t)112 << 23)), "");
    n = LLVMBuildLShr(g->b, n, k_like(g, t, 13), "");
    /* the adder rounds at 2^-24 */
    V s = LLVMBuildFAdd(g->b, as_f32(g, mag), k_float(g, LLVMTypeOf(f), 0.5), "");
    s = LLVMBuildSub(g->b, bits_of(g, s), k_like(g, t, 0x3f000000), "");
    V r = sel(g, small, s, n);
    r = sel(g, over, sel(g, nan, k_like(g, t, 0x7e00), k_like(g, t, 0x7c00)), r);
    r = LLVMBuildOr(g->b, r, LLVMBuildLShr(g->b, sign, k_like(g, t, 16), ""), "");
    return LLVMBuildTrunc(g->b, r, with_bits(g, t, 16), "");
}

/* LLVM 19 ends the process at a conversion of a vector of one half for AArch64. Such a vector is converted as
 * a scalar there. */
static bool is_single(const gen *g, V x) { return !g->x86 && lanes_of(LLVMTypeOf(x)) == 1; }
static V single_of(gen *g, V x) { return LLVMBuildExtractElement(g->b, x, k_int(g, 0), ""); }
static V as_single(gen *g, V x)
{
    V none = LLVMGetUndef(LLVMVectorType(LLVMTypeOf(x), 1));
    return LLVMBuildInsertElement(g->b, none, x, k_int(g, 0), "");
}

V float_up(gen *g, V x, eas_dtype dt)
{
    const int n = lanes_of(LLVMTypeOf(x));
    if (dt == EAS_BF16)
        return bf16_up(g, x);
    if (dt != EAS_F16)
        return x;
    if (!g->f16c)
        return f16_up_soft(g, x);
    if (is_single(g, x))
        return as_single(g, float_up(g, single_of(g, x), dt));
    return LLVMBuildFPExt(g->b, LLVMBuildBitCast(g->b, x, ty_float(g, 16, n), ""), ty_float(g, 32, n), "");
}

V float_down(gen *g, V x, eas_dtype dt)
{
    const int n = lanes_of(LLVMTypeOf(x));
    if (dt == EAS_BF16)
        return bf16_down(g, x);
    if (dt != EAS_F16)
        return x;
    if (!g->f16c)
        return f16_down_soft(g, x);
    if (is_single(g, x))
        return as_single(g, float_down(g, single_of(g, x), dt));
    return LLVMBuildBitCast(g->b, LLVMBuildFPTrunc(g->b, x, ty_float(g, 16, n), ""), ty_int(g, 16, n), "");
}

/* Of the two floats around x the one with the odd last bit (x itself if exact): rounding that again is
 * rounding x. */
V float_odd(gen *g, V x)
{
    const int n = lanes_of(LLVMTypeOf(x));
    V f = LLVMBuildFPTrunc(g->b, x, ty_float(g, 32, n), ""), e = LLVMBuildFPExt(g->b, f, LLVMTypeOf(x), "");
    V u = bits_of(g, f);
    const T t = LLVMTypeOf(u);
    V even = LLVMBuildICmp(g->b, LLVMIntEQ, LLVMBuildAnd(g->b, u, k_like(g, t, 1), ""), k_like(g, t, 0), "");
    V inexact = LLVMBuildFCmp(g->b, LLVMRealONE, e, x, "");
    V above = LLVMBuildFCmp(g->b, LLVMRealOGT, float_abs(g, e), float_abs(g, x), "");
    V next =
        sel(g, above, LLVMBuildSub(g->b, u, k_like(g, t, 1), ""), LLVMBuildAdd(g->b, u, k_like(g, t, 1), ""));
    return as_f32(g, sel(g, LLVMBuildAnd(g->b, even, inexact, ""), next, u));
}

V float_narrow(gen *g, V x, eas_dtype to) { return float_down(g, float_odd(g, x), to); }

/* ---- rounding to integers ---- */

static V rint_soft(gen *g, V x)
{
    const T t = LLVMTypeOf(x);
    V big = k_float(g, t, is_f64(x) ? 0x1p52 : 0x1p23), a = float_abs(g, x);
    V r = LLVMBuildFSub(g->b, LLVMBuildFAdd(g->b, a, big, ""), big, "");
    r = sel(g, LLVMBuildFCmp(g->b, LLVMRealOLT, a, big, ""), r, a);
    r = sel(g, LLVMBuildFCmp(g->b, LLVMRealUNO, x, x, ""), x, r);
    return copysign_(g, r, x);
}

static V round_soft(gen *g, uint16_t op, V x)
{
    const T t = LLVMTypeOf(x);
    V src = op == IR_TRUNC ? float_abs(g, x) : x;
    V r = rint_soft(g, src), one = k_float(g, t, 1);
    if (op == IR_FLOOR || op == IR_TRUNC)
        r = sel(g, LLVMBuildFCmp(g->b, LLVMRealOGT, r, src, ""), LLVMBuildFSub(g->b, r, one, ""), r);
    if (op == IR_CEIL)
        r = sel(g, LLVMBuildFCmp(g->b, LLVMRealOLT, r, src, ""), LLVMBuildFAdd(g->b, r, one, ""), r);
    return copysign_(g, r, x);
}

V float_round(gen *g, uint16_t op, V x)
{
    static const char *const name[] = {[IR_FLOOR] = "llvm.floor",
                                       [IR_CEIL] = "llvm.ceil",
                                       [IR_TRUNC] = "llvm.trunc",
                                       [IR_ROUND] = "llvm.rint"};
    T t = LLVMTypeOf(x);
    if (g->x86 && !g->sse41)
        return round_soft(g, op, x);
    return intrinsic(g, name[op], &t, 1, &x, 1);
}

/* ---- fma ---- */

/* f32: the product is exact in f64; the sum is rounded to odd there, so that rounding it to f32 is the
 * only rounding. */
static V fma_soft(gen *g, V a, V b, V c)
{
    const T f32 = LLVMTypeOf(a), f64 = ty_float(g, 64, lanes_of(f32));
    V x = LLVMBuildFPExt(g->b, a, f64, ""), y = LLVMBuildFPExt(g->b, b, f64, ""),
      z = LLVMBuildFPExt(g->b, c, f64, "");
    V p = LLVMBuildFMul(g->b, x, y, ""), s = LLVMBuildFAdd(g->b, p, z, "");
    V bb = LLVMBuildFSub(g->b, s, p, ""), aa = LLVMBuildFSub(g->b, s, bb, "");
    V err = LLVMBuildFAdd(g->b, LLVMBuildFSub(g->b, p, aa, ""), LLVMBuildFSub(g->b, z, bb, ""), "");
    V u = bits_of(g, s);
    const T t = LLVMTypeOf(u);
    V even = LLVMBuildICmp(g->b, LLVMIntEQ, LLVMBuildAnd(g->b, u, k_like(g, t, 1), ""), k_like(g, t, 0), "");
    V zero = k_float(g, f64, 0), inexact = LLVMBuildFCmp(g->b, LLVMRealONE, err, zero, "");
    /* towards the error: away from zero if it has the sign of s */
    V away = LLVMBuildICmp(g->b, LLVMIntSGE, LLVMBuildXor(g->b, u, bits_of(g, err), ""), k_like(g, t, 0), "");
    V next =
        sel(g, away, LLVMBuildAdd(g->b, u, k_like(g, t, 1), ""), LLVMBuildSub(g->b, u, k_like(g, t, 1), ""));
    V odd = as_like(g, sel(g, LLVMBuildAnd(g->b, even, inexact, ""), next, u), s);
    return LLVMBuildFPTrunc(g->b, odd, f32, "");
}

/* f64: a function of its own, once in a module, in integers of 128 bits. Mantissas are normalised, so the
 * product P has 105 or 106 bits; c is aligned with it. Whichever loses bits in that keeps a sticky one:
 * then the other is so much larger that nothing cancels, and the bit lies far below where the result is
 * rounded. One rounding, subnormal results included. */
#define ADD(x, y) LLVMBuildAdd(g->b, x, y, "")
#define SUB(x, y) LLVMBuildSub(g->b, x, y, "")
#define AND(x, y) LLVMBuildAnd(g->b, x, y, "")
#define OR(x, y) LLVMBuildOr(g->b, x, y, "")
#define SHL(x, n) LLVMBuildShl(g->b, x, n, "")
#define SHR(x, n) LLVMBuildLShr(g->b, x, n, "")
#define CMP(how, x, y) LLVMBuildICmp(g->b, LLVMInt##how, x, y, "")
#define PICK(c, x, y) LLVMBuildSelect(g->b, c, x, y, "")
#define K(t, v) LLVMConstInt(t, (unsigned long long)(v), 1)

typedef struct soft_part {
    V bits, mantissa, exponent, negative; /* i64, normalised to bit 52; its power; i1 */
} soft_part;

static V leading_zeros(gen *g, V x)
{
    T t = LLVMTypeOf(x);
    V a[2] = {x, LLVMConstInt(ty_int(g, 1, 0), 0, 0)};
    return intrinsic(g, "llvm.ctlz", &t, 1, a, 2);
}

static soft_part soft_split(gen *g, V x, T i64)
{
    V u = LLVMBuildBitCast(g->b, x, i64, ""), e = AND(SHR(u, K(i64, 52)), K(i64, 0x7ff)),
      m = AND(u, K(i64, 0xfffffffffffff));
    V tiny = CMP(EQ, e, K(i64, 0));
    m = PICK(tiny, m, OR(m, K(i64, 1ull << 52)));
    V by = SUB(leading_zeros(g, m), K(i64, 11));
    return (soft_part){u, SHL(m, by), SUB(PICK(tiny, K(i64, 1), e), by), CMP(SLT, u, K(i64, 0))};
}

static V soft_clamp(gen *g, V x, int64_t low, int64_t high)
{
    const T t = LLVMTypeOf(x);
    x = PICK(CMP(SLT, x, K(t, low)), K(t, low), x);
    return PICK(CMP(SGT, x, K(t, high)), K(t, high), x);
}

/* x >> n, with the lowest bit set if one was lost; n of 64 bits, below 128 */
static V soft_jam(gen *g, V x, V n, T i128)
{
    V by = LLVMBuildZExt(g->b, n, i128, ""), lost = AND(x, SUB(SHL(K(i128, 1), by), K(i128, 1)));
    return OR(SHR(x, by), LLVMBuildZExt(g->b, CMP(NE, lost, K(i128, 0)), i128, ""));
}

static V soft_signed(gen *g, V negative, V x) { return PICK(negative, LLVMBuildNeg(g->b, x, ""), x); }

/* a * b + c in integers, rounded once, for finite numbers. The product of the mantissas has 106 bits; c is
 * shifted to its scale, or, if c is much larger, the product to c's, with the bits that fall off kept as
 * one sticky bit. The sum is exact up to that bit, so shifting it to 53 bits (fewer for subnormal results)
 * and rounding halves to even is the only rounding. */
static V soft_ordinary(gen *g, soft_part a, soft_part b, soft_part c, T i64, T i128)
{
    V p = LLVMBuildMul(g->b, LLVMBuildZExt(g->b, a.mantissa, i128, ""),
                       LLVMBuildZExt(g->b, b.mantissa, i128, ""), "");
    /* of the lowest bits of c and P */
    V apart = ADD(SUB(c.exponent, ADD(a.exponent, b.exponent)), K(i64, 1075));
    V over = soft_clamp(g, SUB(apart, K(i64, 73)), 0, 4096);
    p = soft_jam(g, p, soft_clamp(g, over, 0, 127), i128);
    V up = LLVMBuildZExt(g->b, soft_clamp(g, apart, 0, 73), i128, ""),
      down = soft_clamp(g, SUB(K(i64, 0), apart), 0, 127);
    V q = soft_jam(g, SHL(LLVMBuildZExt(g->b, c.mantissa, i128, ""), up), down, i128);
    V sum =
        ADD(soft_signed(g, LLVMBuildXor(g->b, a.negative, b.negative, ""), p), soft_signed(g, c.negative, q));
    V negative = CMP(SLT, sum, K(i128, 0)), m = soft_signed(g, negative, sum);
    V weight = ADD(SUB(ADD(a.exponent, b.exponent), K(i64, 2150)), over); /* of the lowest bit */
    V top = SUB(K(i64, 127), LLVMBuildTrunc(g->b, leading_zeros(g, m), i64, ""));
    V normal = SUB(top, K(i64, 52)), least = SUB(K(i64, -1074), weight);
    V shift = PICK(CMP(SGT, normal, least), normal, least), far = CMP(SGT, shift, K(i64, 127));
    V right = LLVMBuildZExt(g->b, soft_clamp(g, shift, 0, 127), i128, ""),
      left = LLVMBuildZExt(g->b, soft_clamp(g, SUB(K(i64, 0), shift), 0, 127), i128, "");
    V kept = SHR(SHL(m, left), right), one = K(i128, 1), lost = AND(m, SUB(SHL(one, right), one)),
      half = SHR(SHL(one, right), one);
    V tie = AND(CMP(EQ, lost, half), CMP(NE, AND(kept, one), K(i128, 0)));
    V more = AND(CMP(SGT, shift, K(i64, 0)), OR(CMP(UGT, lost, half), tie));
    V low = ADD(LLVMBuildTrunc(g->b, kept, i64, ""), LLVMBuildZExt(g->b, more, i64, ""));
    low = PICK(far, K(i64, 0), low);
    V power = ADD(ADD(weight, shift), K(i64, 1074));
    V bits = ADD(SHL(PICK(far, K(i64, 0), power), K(i64, 52)), low);
    bits = PICK(CMP(SGE, power, K(i64, 2046)), PICK(far, bits, K(i64, 0x7ff0000000000000)), bits);
    bits = OR(bits, PICK(negative, K(i64, 1ull << 63), K(i64, 0)));
    return PICK(CMP(EQ, m, K(i128, 0)), K(i64, 0), bits);
}

static V fma_f64_function(gen *g)
{
    V f = LLVMGetNamedFunction(g->mod, "fma_f64");
    if (f)
        return f;
    const T d = ty_float(g, 64, 0), i64 = ty_int(g, 64, 0), i128 = ty_int(g, 128, 0), in[3] = {d, d, d};
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    f = LLVMAddFunction(g->mod, "fma_f64", LLVMFunctionType(d, (T *)in, 3, 0));
    LLVMSetLinkage(f, LLVMInternalLinkage);
    LLVMPositionBuilderAtEnd(g->b, LLVMAppendBasicBlockInContext(g->cx, f, ""));
    V x[3], plain = LLVMConstInt(ty_int(g, 1, 0), 0, 0), infinite = plain;
    soft_part s[3];
    for (unsigned i = 0; i < 3; i++) {
        x[i] = LLVMGetParam(f, i);
        s[i] = soft_split(g, x[i], i64);
        V rest = AND(s[i].bits, K(i64, 0x7fffffffffffffff));
        V odd = CMP(UGE, rest, K(i64, 0x7ff0000000000000));
        plain = i < 2 ? OR(plain, OR(odd, CMP(EQ, rest, K(i64, 0)))) : plain;
        infinite = odd; /* of c: then a finite product does not count, even one that overflows */
    }
    V product = LLVMBuildFMul(g->b, x[0], x[1], ""), sum = LLVMBuildFAdd(g->b, product, x[2], "");
    V r = LLVMBuildBitCast(g->b, soft_ordinary(g, s[0], s[1], s[2], i64, i128), d, "");
    r = PICK(CMP(EQ, AND(s[2].bits, K(i64, 0x7fffffffffffffff)), K(i64, 0)), product, r);
    r = PICK(infinite, x[2], r);
    LLVMBuildRet(g->b, PICK(plain, sum, r));
    LLVMPositionBuilderAtEnd(g->b, back);
    return f;
}
#undef ADD
#undef SUB
#undef AND
#undef OR
#undef SHL
#undef SHR
#undef CMP
#undef PICK
#undef K

static V fma_soft64(gen *g, V a, V b, V c)
{
    V f = fma_f64_function(g), x[3] = {a, b, c}, r;
    const T type = LLVMGlobalGetValueType(f);
    const int n = lanes_of(LLVMTypeOf(a));
    if (!n)
        return LLVMBuildCall2(g->b, type, f, x, 3, "");
    r = LLVMGetPoison(LLVMTypeOf(a));
    for (int i = 0; i < n; i++) {
        V at = LLVMConstInt(ty_int(g, 32, 0), (uint64_t)i, 0), one[3];
        for (int k = 0; k < 3; k++)
            one[k] = LLVMBuildExtractElement(g->b, x[k], at, "");
        r = LLVMBuildInsertElement(g->b, r, LLVMBuildCall2(g->b, type, f, one, 3, ""), at, "");
    }
    return r;
}

/* A constant vector as a load that becomes the memory operand of the instruction. LLVM would broadcast it
 * into a register by an instruction of its own each time, since 16 registers do not hold the coefficients
 * of a polynomial; with AVX-512 the broadcast is part of the operand. */
static V from_memory(gen *g, V x)
{
    const T t = LLVMTypeOf(x);
    V k = LLVMGetFirstGlobal(g->mod);
    while (k && LLVMGetInitializer(k) != x)
        k = LLVMGetNextGlobal(k);
    if (!k) {
        k = LLVMAddGlobal(g->mod, t, "");
        LLVMSetInitializer(k, x);
        LLVMSetGlobalConstant(k, true);
        LLVMSetLinkage(k, LLVMPrivateLinkage);
        LLVMSetAlignment(k, 32);
    }
    V load = LLVMBuildLoad2(g->b, t, k, "");
    LLVMSetAlignment(load, 32);
    return load;
}

V float_fma(gen *g, V a, V b, V c)
{
    T t = LLVMTypeOf(a);
    const bool pool = g->avx2 && !g->avx512 && lanes_of(t) * (is_f64(a) ? 8 : 4) == 32;
    if (pool && LLVMIsConstant(c) && !LLVMIsUndef(c) && !LLVMIsNull(c) && !LLVMIsConstant(a) &&
        !LLVMIsConstant(b))
        c = from_memory(g, c);
    V x[3] = {a, b, c};
    return g->fma    ? intrinsic(g, "llvm.fma", &t, 1, x, 3)
         : is_f64(a) ? fma_soft64(g, a, b, c)
                     : fma_soft(g, a, b, c);
}

/* ---- a 2^b ---- */

V part_of(gen *g, V x, int from, int n)
{
    V idx[MOST_LANES];
    for (int i = 0; i < n; i++)
        idx[i] = LLVMConstInt(ty_int(g, 32, 0), (uint64_t)(from + i), 0);
    return LLVMBuildShuffleVector(g->b, x, LLVMGetPoison(LLVMTypeOf(x)), LLVMConstVector(idx, (unsigned)n),
                                  "");
}

/* Whole vectors of 128, 256 or 512 bits. */
static V scalef(gen *g, V a, V b, int n, bool wide)
{
    static const char *const name[2][3] = {
        {"llvm.x86.avx512.mask.scalef.ps.128", "llvm.x86.avx512.mask.scalef.ps.256",
         "llvm.x86.avx512.mask.scalef.ps.512"},
        {"llvm.x86.avx512.mask.scalef.pd.128", "llvm.x86.avx512.mask.scalef.pd.256",
         "llvm.x86.avx512.mask.scalef.pd.512"}};
    const int bits = n * (wide ? 64 : 32);
    const T mask = ty_int(g, n > 8 ? n : 8, 0);
    /* 4: the rounding in force */
    V x[5] = {a, b, LLVMGetUndef(LLVMTypeOf(a)), LLVMConstAllOnes(mask),
              LLVMConstInt(ty_int(g, 32, 0), 4, 0)};
    return intrinsic(g, name[wide][bits == 512 ? 2 : bits == 256], NULL, 0, x, bits == 512 ? 5 : 4);
}

/* Only machines for which isa_ldexp holds are asked for it. */
V float_ldexp(gen *g, V a, V b)
{
    const T t = LLVMTypeOf(a);
    const int n = lanes_of(t), least = is_f64(a) ? 2 : 4, most = 4 * least;
    if (!g->avx512) {
        gen_fail(g, EAS_ERR_INTERNAL, "ldexp on a machine without it");
        return a;
    }
    if (n == 0)
        return LLVMBuildExtractElement(
            g->b, scalef(g, splat(g, a, least), splat(g, b, least), least, is_f64(a)), k_int(g, 0), "");
    if (n <= most)
        return scalef(g, a, b, n, is_f64(a));
    V lo = float_ldexp(g, part_of(g, a, 0, n / 2), part_of(g, b, 0, n / 2)),
      hi = float_ldexp(g, part_of(g, a, n / 2, n / 2), part_of(g, b, n / 2, n / 2));
    V idx[MOST_LANES];
    for (int i = 0; i < n; i++)
        idx[i] = LLVMConstInt(ty_int(g, 32, 0), (uint64_t)i, 0);
    return LLVMBuildShuffleVector(g->b, lo, hi, LLVMConstVector(idx, (unsigned)n), "");
}

/* ---- fmod: long division of the mantissas, one bit a step, until every lane is done ---- */

typedef struct fmt {
    int mant, bias;
    T t;
} fmt;

static V shl1(gen *g, V x) { return LLVMBuildShl(g->b, x, k_like(g, LLVMTypeOf(x), 1), ""); }

/* mantissa with its hidden bit and exponent of a magnitude; subnormals are brought to normal form */
static void unpack(gen *g, const fmt *f, V mag, V *m, V *e)
{
    const T t = f->t;
    V exp = LLVMBuildLShr(g->b, mag, k_like(g, t, f->mant), ""),
      man = LLVMBuildAnd(g->b, mag, k_like(g, t, (int64_t)(((uint64_t)1 << f->mant) - 1)), "");
    V sub = LLVMBuildICmp(g->b, LLVMIntEQ, exp, k_like(g, t, 0), "");
    T tt = t;
    V a[2] = {LLVMBuildOr(g->b, man, k_like(g, t, 1), ""), LLVMConstInt(LLVMInt1TypeInContext(g->cx), 0, 0)};
    V lz = intrinsic(g, "llvm.ctlz", &tt, 1, a, 2);
    const int width = f->mant == 52 ? 64 : 32;
    V shift = LLVMBuildSub(g->b, lz, k_like(g, t, width - 1 - f->mant), "");
    *m = sel(g, sub, LLVMBuildShl(g->b, man, shift, ""),
             LLVMBuildOr(g->b, man, k_like(g, t, (int64_t)((uint64_t)1 << f->mant)), ""));
    *e = sel(g, sub, LLVMBuildSub(g->b, k_like(g, t, 1), shift, ""), exp);
}

static V repack(gen *g, const fmt *f, V m, V e)
{
    const T t = f->t;
    T tt = t;
    V a[2] = {LLVMBuildOr(g->b, m, k_like(g, t, 1), ""), LLVMConstInt(LLVMInt1TypeInContext(g->cx), 0, 0)};
    const int width = f->mant == 52 ? 64 : 32;
    V shift =
        LLVMBuildSub(g->b, intrinsic(g, "llvm.ctlz", &tt, 1, a, 2), k_like(g, t, width - 1 - f->mant), "");
    V nm = LLVMBuildShl(g->b, m, shift, ""), ne = LLVMBuildSub(g->b, e, shift, "");
    V normal = LLVMBuildICmp(g->b, LLVMIntSGT, ne, k_like(g, t, 0), "");
    V man = LLVMBuildAnd(g->b, nm, k_like(g, t, (int64_t)(((uint64_t)1 << f->mant) - 1)), "");
    V big = LLVMBuildOr(g->b, man, LLVMBuildShl(g->b, ne, k_like(g, t, f->mant), ""), "");
    V down = LLVMBuildSub(g->b, k_like(g, t, 1), ne, "");
    down = sel(g, normal, k_like(g, t, 0), down);
    V small = LLVMBuildLShr(g->b, nm, down, "");
    V zero = LLVMBuildICmp(g->b, LLVMIntEQ, m, k_like(g, t, 0), "");
    return sel(g, zero, k_like(g, t, 0), sel(g, normal, big, small));
}

static V divide_loop(gen *g, const fmt *f, V ma, V mb, V steps)
{
    const T t = f->t;
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), head = new_block(g, "fmod"),
                      body = new_block(g, "fmod.step"), done = new_block(g, "fmod.done");
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, head);
    V m = LLVMBuildPhi(g->b, t, ""), d = LLVMBuildPhi(g->b, t, "");
    V more = LLVMBuildICmp(g->b, LLVMIntSGT, d, k_like(g, t, 0), "");
    LLVMBuildCondBr(g->b, any_of(g, more), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    V ge = LLVMBuildICmp(g->b, LLVMIntUGE, m, mb, "");
    V r = shl1(g, sel(g, ge, LLVMBuildSub(g->b, m, mb, ""), m));
    V m2 = sel(g, more, r, m), d2 = LLVMBuildSub(g->b, d, k_like(g, t, 1), "");
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    branch_to(g, head);
    V mi[2] = {ma, m2}, di[2] = {steps, d2};
    LLVMBasicBlockRef bb[2] = {from, back};
    LLVMAddIncoming(m, mi, bb, 2);
    LLVMAddIncoming(d, di, bb, 2);
    LLVMPositionBuilderAtEnd(g->b, done);
    V last = LLVMBuildICmp(g->b, LLVMIntUGE, m, mb, "");
    return sel(g, last, LLVMBuildSub(g->b, m, mb, ""), m);
}

/* The remainder of x by y, both positive and finite, as bits: in integers, a step for each bit of the
 * quotient. */
static V divided(gen *g, const fmt *f, V x, V y)
{
    V ma, ea, mb, eb;
    unpack(g, f, x, &ma, &ea);
    unpack(g, f, y, &mb, &eb);
    V m = divide_loop(g, f, ma, mb, LLVMBuildSub(g->b, ea, eb, ""));
    return repack(g, f, m, eb);
}

/* The same where the hardware has fma. A quotient below 2^53 (2^24) is rounded to its whole part or, where
 * rounding reached that, one more; x - q y is a multiple of y's last bit and smaller than y, so fma gives it
 * exactly. If some lane has a larger quotient, all take the loop. */
static V divided_quickly(gen *g, const fmt *f, V x, V y, V like)
{
    const T ft = LLVMTypeOf(like);
    T tt = ft;
    V xf = as_like(g, x, like), yf = as_like(g, y, like), quotient = LLVMBuildFDiv(g->b, xf, yf, ""),
      zero = LLVMConstNull(ft);
    V large = LLVMBuildFCmp(g->b, LLVMRealUGE, quotient, k_float(g, ft, f->mant == 52 ? 0x1p53 : 0x1p24), "");
    LLVMBasicBlockRef quick = new_block(g, "fmod.quick"), slow = new_block(g, "fmod.slow"),
                      done = new_block(g, "fmod.both");
    LLVMBuildCondBr(g->b, any_of(g, large), slow, quick);
    LLVMPositionBuilderAtEnd(g->b, quick);
    V q = intrinsic(g, "llvm.trunc", &tt, 1, &quotient, 1),
      r = float_fma(g, LLVMBuildFNeg(g->b, q, ""), yf, xf);
    r = sel(g, LLVMBuildFCmp(g->b, LLVMRealOLT, r, zero, ""), LLVMBuildFAdd(g->b, r, yf, ""), r);
    V one = bits_of(g, r);
    LLVMBasicBlockRef from[2] = {LLVMGetInsertBlock(g->b), NULL};
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, slow);
    V other = divided(g, f, x, y);
    from[1] = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    V phi = LLVMBuildPhi(g->b, f->t, ""), in[2] = {one, other};
    LLVMAddIncoming(phi, in, from, 2);
    return phi;
}

V float_mod(gen *g, V a, V b)
{
    const bool wide = is_f64(a);
    const T ft = LLVMTypeOf(a), t = with_bits(g, ft, wide ? 64 : 32);
    const fmt f = {wide ? 52 : 23, wide ? 1023 : 127, t};
    V x = bits_of(g, float_abs(g, a)), y = bits_of(g, float_abs(g, b));
    V inf = k_like(g, t, wide ? 0x7ff0000000000000 : 0x7f800000);
    /* x inf or NaN, y 0 or NaN: NaN; x < y: x; the rest divides */
    V bad = LLVMBuildOr(g->b, LLVMBuildICmp(g->b, LLVMIntUGE, x, inf, ""),
                        LLVMBuildICmp(g->b, LLVMIntUGT, y, inf, ""), "");
    bad = LLVMBuildOr(g->b, bad, LLVMBuildICmp(g->b, LLVMIntEQ, y, k_like(g, t, 0), ""), "");
    V less = LLVMBuildICmp(g->b, LLVMIntULT, x, y, "");
    V idle = LLVMBuildOr(g->b, bad, less, "");
    V one = k_like(g, t, (int64_t)((uint64_t)f.bias << f.mant));
    V xs = sel(g, idle, one, x), ys = sel(g, idle, one, y);
    V r = as_like(g, g->fma ? divided_quickly(g, &f, xs, ys, a) : divided(g, &f, xs, ys), a);
    V nan = LLVMBuildBitCast(g->b, k_like(g, t, wide ? 0x7ff8000000000000 : 0x7fc00000), ft, "");
    r = copysign_(g, r, a);
    return sel(g, bad, nan, sel(g, less, a, r));
}
