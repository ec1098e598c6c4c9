/* math.c: the elementary functions, spelled in the IR itself, so that every device runs the same code and
 * gives the same bits.
 *
 * Each takes values of dtype f32 or f64 (halves are computed in f32 by the caller) and gives at most 1 ULP in
 * f32, 2 in f64; special values are C99 Annex F's. Polynomials come from tools/fit_math.py. A number pair
 * (hi, lo) stands for hi + lo with |lo| at most half an ULP of hi.
 */
#include "math_words.h"

/* ---- exponentials ---- */

static const double LOG2E = 1.4426950408889634074;
/* ln 2 = HI + LO with so few bits in HI that n*HI is exact */
static const double LN2_HI32 = 0x1.62e4p-1, LN2_LO32 = 1.42860676533018e-06;
static const double LN2_HI64 = 6.93147180369123816490e-01, LN2_LO64 = 1.90821492927058770002e-10;

/* (e^r - 1 - r) / r^2 */
static const double EXP32[] = {
    0.5, 0.1666666716, 0.04166652262, 0.008332905360, 0.001393068000, 0.0002027602168};
/* e^r itself: exact enough where the rounding error of the sum is not used afterwards */
static const double EXP32_WHOLE[] = {1, 1, 0.5, 0.1666651517, 0.04166658595, 0.008369322866, 0.001392089063};
static const double EXP64[] = {0.5,
                               0.166666666666666713,
                               0.0416666666666666644,
                               0.00833333333332585829,
                               0.00138888888888994561,
                               0.000198412698755244879,
                               0.0000248015872450870259,
                               2.75572539728551008e-6,
                               2.75574039423881345e-7,
                               2.51061038913735170e-8,
                               2.08513908883350822e-9};
/* (2^r - 1) / r */
static const double EXP2_32[] = {0.6931471825,   0.2402265072,    0.05550397933, 0.009618107229,
                                 0.001334656496, 0.0001544040570, 1.199191956e-5};

/* x = n ln2 + r, |r| <= ln2/2. If lo is not NULL, r + *lo is the remainder as a pair. */
static uint32_t reduce_exp(maths *m, uint32_t x, rounded *n, uint32_t *lo)
{
    *n = round_to(m, x, LOG2E);
    uint32_t r1 = fma3(m, n->f, num2(m, -LN2_HI32, -LN2_HI64), x);
    if (!lo)
        return fma3(m, n->f, num2(m, -LN2_LO32, -LN2_LO64), r1);
    uint32_t c = mul(m, n->f, num2(m, LN2_LO32, LN2_LO64)), r = sub(m, r1, c);
    *lo = sub(m, sub(m, r1, r), c);
    return r;
}

static uint32_t exp_tail(maths *m, uint32_t r) { return mul(m, mul(m, r, r), HORNER2(m, r, EXP32, EXP64)); }

/* Clamps x, the exponent of 2^(x k), to the range outside of which the result is 0 or infinite for sure. An
 * exponent below the range is replaced by one so small that hardware sees at once that the result is 0:
 * rounding a result that is only just too small takes a trap in microcode, and masks and tails are full of
 * such arguments. */
static uint32_t exponent(maths *m, uint32_t x, double k)
{
    const double far = m->ldexp ? -10000 : m->wide ? -2040 : -250;
    uint32_t h = num(m, (m->wide ? 1025 : 129) / k);
    x = pick(m, lt(m, x, num(m, (m->wide ? -1076 : -151) / k)), num(m, far / k), x);
    return pick(m, gt(m, x, h), h, x); /* NaN stays */
}

static uint32_t do_exp(maths *m, uint32_t x)
{
    rounded n;
    uint32_t r = reduce_exp(m, exponent(m, x, LOG2E), &n, NULL);
    if (!m->wide)
        return scale(m, HORNER(m, r, EXP32_WHOLE), n);
    return scale(m, add(m, fma3(m, mul(m, r, r), HORNER(m, r, EXP64), r), num(m, 1)), n);
}

static uint32_t do_exp2(maths *m, uint32_t x)
{
    uint32_t c = exponent(m, x, 1), p;
    const rounded n = round_to(m, c, 1);
    uint32_t r = sub(m, c, n.f);
    if (m->wide) { /* e^(r ln2): r ln2 as a pair keeps the last bit */
        pair a = two_mul(m, r, num(m, 0.69314718055994530942));
        uint32_t lo = fma3(m, r, num(m, 2.3190468138462996e-17), a.lo);
        p = add(m, num(m, 1), add(m, a.hi, add(m, exp_tail(m, a.hi), lo)));
    } else {
        p = fma3(m, r, HORNER(m, r, EXP2_32), num(m, 1));
    }
    return scale(m, p, n);
}

/* 2^n (r + tail) + (2^n - 1), the large parts first and their rounding errors after them */
static uint32_t do_expm1(maths *m, uint32_t x)
{
    uint32_t one = num(m, 1), top = m->wide ? whole_num(m, 1023) : whole_num(m, 127);
    rounded w;
    uint32_t c = m->wide ? clamp(m, x, -60, 710) : clamp(m, x, -30, 89), rl, r = reduce_exp(m, c, &w, &rl);
    uint32_t n = whole_of(m, w), over = gt(m, n, top), k = pick(m, over, top, n);
    /* past the top exponent work with half of everything */
    uint32_t s = power_of_two(m, k), unit = pick(m, over, num(m, 0.5), one);
    uint32_t b = sub(m, s, unit), bl = sub(m, sub(m, s, b), unit);
    uint32_t hi = fma3(m, s, r, b), lo = fma3(m, s, r, sub(m, b, hi));
    /* the tail is r^2/2 and the higher terms; the rounding error of r^2 is added to the latter */
    uint32_t r2 = mul(m, r, r), half = num(m, 0.5), r2l = fma3(m, r, r, neg(m, r2));
    uint32_t more = fma3(m, mul(m, r2, r), m->wide ? horner(m, r, EXP64 + 1, 10) : horner(m, r, EXP32 + 1, 5),
                         fma3(m, half, r2l, rl));
    uint32_t rest = fma3(m, s, mul(m, half, r2), add(m, lo, bl)), y = add(m, hi, fma3(m, s, more, rest));
    y = pick(m, over, add(m, y, y), y);
    return pick(m, same(m, x, num(m, 0)), x, y); /* -0 */
}

/* ---- logarithms ---- */

/* (log(1+f) - f + f^2/2) / f^3 */
static const double LOG32[] = {0.3333333433,  -0.2499998361, 0.1999964863,  -0.1666841507, 0.1430623531,
                               -0.1245656163, 0.1068847701,  -0.1025746912, 0.1249496937,  -0.09469457716};

/* x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for positive normal x. In f64 the exponent becomes a float
 * by its bits: vector units have no conversion of 64 bits and no signed shift of them. If twice is not
 * NULL, *twice is 2^(1-k), or 0 where k is the largest exponent of all. */
static uint32_t split_with(maths *m, uint32_t x, uint32_t *k, uint32_t *twice)
{
    const int64_t root = m->wide ? 0x3fe6a09e667f3bcd : 0x3f3504f3,
                  mant = m->wide ? ((int64_t)1 << 52) - 1 : 0x7fffff, lift = (int64_t)1024 << 52;
    uint32_t f, i;
    if (m->wide) {
        i = add(m, as_ubits(m, x), bits_num(m, (uint64_t)(lift - root)));
        uint32_t e = op2(m, IR_OR, op2(m, IR_SHR, i, bits_num(m, 52)), bits_num(m, (uint64_t)0x433 << 52));
        *k = sub(m, as_float(m, e), num(m, 0x1p52 + 1024));
        f = add(m, op2(m, IR_AND, i, bits_num(m, (uint64_t)mant)), bits_num(m, (uint64_t)root));
        if (twice)
            *twice = as_float(
                m, sub(m, bits_num(m, (uint64_t)1 << 63), op2(m, IR_AND, i, bits_num(m, ~(uint64_t)mant))));
    } else {
        i = sub(m, as_bits(m, x), whole_num(m, root));
        *k = to_float(m, op2(m, IR_SHR, i, whole_num(m, 23)));
        f = add(m, op2(m, IR_AND, i, whole_num(m, mant)), whole_num(m, root));
        if (twice)
            *twice = as_float(m, sub(m, whole_num(m, 1 << 30), op2(m, IR_AND, i, whole_num(m, ~mant))));
    }
    return sub(m, as_float(m, f), num(m, 1));
}

uint32_t math_split(maths *m, uint32_t x, uint32_t *k) { return split_with(m, x, k, NULL); }

/* math_split for every positive finite x, subnormal ones too. */
static uint32_t split_log(maths *m, uint32_t x, uint32_t *k)
{
    uint32_t tiny = lt(m, x, num2(m, 0x1p-126, 0x1p-1022)),
             up = pick(m, tiny, num2(m, 0x1p25, 0x1p54), num(m, 1));
    uint32_t f = math_split(m, mul(m, x, up), k);
    *k = sub(m, *k, pick(m, tiny, num2(m, 25, 54), num(m, 0)));
    return f;
}

/* (log((1+s)/(1-s)) - 2s) / s^3 in z = s^2 */
static const double LOG64[] = {0.666666666666666630, 0.400000000000088785, 0.285714285671934631,
                               0.222222231249029012, 0.181817209463610019, 0.153901754848123490,
                               0.131664006306724451, 0.141255458607850881};

/* log(1 + f) without its first term f */
static uint32_t log_rest(maths *m, uint32_t f)
{
    if (!m->wide) {
        /* zl: the rounding error of f^2 */
        uint32_t z = mul(m, f, f), zl = fma3(m, f, f, neg(m, z)), half = num(m, -0.5);
        return fma3(m, half, z, fma3(m, mul(m, f, z), HORNER(m, f, LOG32), mul(m, half, zl)));
    }
    uint32_t h = mul(m, mul(m, num(m, 0.5), f), f), s = quo(m, f, add(m, f, num(m, 2))), z = mul(m, s, s);
    uint32_t R = mul(m, z, HORNER(m, z, LOG64));
    return sub(m, mul(m, s, add(m, h, R)), h);
}

/* y, the logarithm of x, replaced where x is not a positive finite number. */
static uint32_t log_special(maths *m, uint32_t x, uint32_t y)
{
    uint32_t zero = num(m, 0), inf = inf_num(m);
    y = pick(m, same(m, x, inf), inf, y);
    y = pick(m, same(m, x, zero), neg(m, inf), y);
    return pick(m, op2(m, IR_GE, x, zero), y, nan_num(m));
}

uint32_t math_log_normal(maths *m, uint32_t x)
{
    uint32_t k, f = math_split(m, x, &k), y = log_rest(m, f);
    y = fma3(m, k, num2(m, LN2_LO32, LN2_LO64), y);
    if (!m->wide)
        return fma3(m, k, num(m, LN2_HI32), add(m, f, y));
    pair s = fast_two_sum(m, mul(m, k, num(m, LN2_HI64)), f); /* k ln2 is 0 or larger than f */
    return add(m, s.hi, add(m, s.lo, y));
}

static uint32_t log_of_any(maths *m, uint32_t x)
{
    uint32_t k, f = split_log(m, x, &k), y = log_rest(m, f);
    y = fma3(m, k, num2(m, LN2_LO32, LN2_LO64), y);
    pair s = m->wide ? fast_two_sum(m, mul(m, k, num(m, LN2_HI64)), f) : (pair){0, 0};
    y = m->wide ? add(m, s.hi, add(m, s.lo, y)) : fma3(m, k, num(m, LN2_HI32), add(m, f, y));
    return log_special(m, x, y);
}

/* As an integer without its sign that is one comparison. */
uint32_t math_not_normal(maths *m, uint32_t x)
{
    const uint64_t least = m->wide ? (uint64_t)1 << 52 : (uint64_t)1 << 23,
                   inf = m->wide ? (uint64_t)0x7ff << 52 : (uint64_t)0xff << 23;
    return op2(m, IR_GE, sub(m, as_ubits(m, x), bits_num(m, least)), bits_num(m, inf - least));
}

/* Arguments that are not positive normal numbers take a second computation, which runs only if a lane has one
 * (gen/plan/rare.c). */
static uint32_t do_log(maths *m, uint32_t x)
{
    return pick(m, math_not_normal(m, x), log_of_any(m, x), math_log_normal(m, x));
}

/* (log2(1+f) - L f) / f, where L is log2(e) rounded to f32 */
static const double LOG2_32[] = {2.019483247e-8, -0.7213475108, 0.4808979332, -0.3606745899,
                                 0.2885715067,   -0.2404612303, 0.2051541805, -0.1789502800,
                                 0.1711610705,   -0.1687551290, 0.09892040491};

/* k + log2(1 + f). In f32 the fma that adds L f to the rest, which is at most a fifth of the sum, is the one
 * rounding of log2(1 + f) that counts; where k is not 0, that is 0.5 at most and smaller than the result. In
 * f64 it is log(1 + f) as a pair, times log2(e) as one. */
static uint32_t log2_sum(maths *m, uint32_t k, uint32_t f)
{
    uint32_t L = num(m, LOG2E);
    if (!m->wide)
        return add(m, k, fma3(m, f, L, mul(m, f, HORNER(m, f, LOG2_32))));
    pair l = fast_two_sum(m, f, log_rest(m, f)), p = two_mul(m, l.hi, L);
    uint32_t lo = fma3(m, l.hi, num(m, 2.0355273740931033e-17), fma3(m, l.lo, L, p.lo));
    pair s = fast_two_sum(m, k, p.hi);
    /* k = 0: fast_two_sum still holds, its first operand being zero */
    return add(m, s.hi, add(m, s.lo, lo));
}

static uint32_t log2_of_any(maths *m, uint32_t x)
{
    uint32_t k, f = split_log(m, x, &k);
    return log_special(m, x, log2_sum(m, k, f));
}

static uint32_t do_log2(maths *m, uint32_t x)
{
    uint32_t k, f = math_split(m, x, &k);
    return pick(m, math_not_normal(m, x), log2_of_any(m, x), log2_sum(m, k, f));
}

/* log(1 + x): u = 1 + x is rounded; the rounding error, divided by the power of two that u is divided by, is
 * a small correction d. Where u is not a positive normal number, the result is its logarithm. */
static uint32_t do_log1p(maths *m, uint32_t x)
{
    uint32_t half = num(m, 0.5), k, twice;
    pair u = two_sum(m, num(m, 1), x);
    uint32_t f = split_with(m, u.hi, &k, &twice), d2 = mul(m, u.lo, twice);
    /* log(1+f+d) = log(1+f) + d/(1+f), about d (1 - f + f^2) */
    uint32_t corr = mul(m, d2, fma3(m, f, fma3(m, f, half, neg(m, half)), half));
    uint32_t y = fma3(m, k, num2(m, LN2_LO32, LN2_LO64), add(m, log_rest(m, f), corr));
    pair s = fast_two_sum(m, mul(m, k, num2(m, LN2_HI32, LN2_HI64)), f);
    y = copy_sign(m, add(m, s.hi, add(m, s.lo, y)), x); /* of -0 */
    return pick(m, math_not_normal(m, u.hi), log_of_any(m, u.hi), y);
}

/* ---- roots ---- */

/* 1/sqrt(x), corrected by its exact residual */
static uint32_t corrected_rsqrt(maths *m, uint32_t x, uint32_t y)
{
    pair h = two_mul(m, x, y);
    uint32_t e = sub(m, fma3(m, neg(m, h.hi), y, num(m, 1)), mul(m, h.lo, y));
    return fma3(m, mul(m, num(m, 0.5), y), e, y);
}

/* Outside of a wide range the argument is scaled into the middle, x 2^(2s); few lanes ever need that. */
static uint32_t do_rsqrt(maths *m, uint32_t x)
{
    uint32_t one = num(m, 1), y = quo(m, one, irb_op(m->b, IR_SQRT, x, 0, 0)),
             better = corrected_rsqrt(m, x, y);
    uint32_t odd = op2(m, IR_OR, op2(m, IR_LE, x, num2(m, 0x1p-100, 0x1p-900)),
                       op2(m, IR_GE, x, num2(m, 0x1p100, 0x1p900)));
    uint32_t small = lt(m, x, one);
    uint32_t up = pick(m, small, num2(m, 0x1p80, 0x1p600), num2(m, 0x1p-80, 0x1p-600)),
             back = pick(m, small, num2(m, 0x1p40, 0x1p300), num2(m, 0x1p-40, 0x1p-300));
    uint32_t xs = mul(m, x, up), ys = quo(m, one, irb_op(m->b, IR_SQRT, xs, 0, 0));
    uint32_t usual = both(m, gt(m, x, num(m, 0)), lt(m, x, inf_num(m)));
    /* 0, inf, negative: the uncorrected quotient is right */
    return pick(m, odd, pick(m, usual, mul(m, corrected_rsqrt(m, xs, ys), back), y), better);
}

/* ---- hyperbolic tangent, logistic function ---- */

/* e^c = 2^n (1 + t + low) for c <= 0. t is rounded once; if low is not NULL, *low is its rounding error. */
static uint32_t exp_split(maths *m, uint32_t c, rounded *n, uint32_t *low)
{
    uint32_t r = reduce_exp(m, c, n, NULL), square = mul(m, r, r), poly = HORNER2(m, r, EXP32, EXP64);
    if (!low)
        return fma3(m, square, poly, r);
    uint32_t tail = mul(m, square, poly), t = add(m, r, tail);
    *low = sub(m, tail, sub(m, t, r));
    return t;
}

static uint32_t two_to(maths *m, rounded n)
{
    return m->ldexp ? op2(m, IR_LDEXP, num(m, 1), n.f) : power_of_two(m, whole_of(m, n));
}

/* (hi + lo) / (d + dl) with one division: the quotient of the large parts, corrected by its remainder. */
static uint32_t corrected_quotient(maths *m, pair x, pair d)
{
    uint32_t r = quo(m, num(m, 1), d.hi), q = mul(m, x.hi, r), minus = neg(m, q);
    return fma3(m, add(m, fma3(m, minus, d.hi, x.hi), fma3(m, minus, d.lo, x.lo)), r, q);
}

/* (1 - u) / (1 + u), u = e^-2|x| = s (1 + t), s a power of two: 1 - s and s t are exact, so nothing is
 * lost for small x. Beyond top, the last x for which 1 - s is exact, the result is the one there until 1
 * is nearer. */
static uint32_t do_tanh(maths *m, uint32_t x)
{
    uint32_t a = mag(m, x), one = num(m, 1), top = num2(m, 8.49, 18.538), c = pick(m, gt(m, a, top), top, a),
             low;
    uint32_t far = gt(m, a, num2(m, 9.0109, 19.0615));
    rounded n;
    uint32_t t = exp_split(m, neg(m, add(m, c, c)), &n, &low), s = two_to(m, n);
    uint32_t p = mul(m, s, t), rest = sub(m, one, s), up = sub(m, rest, p);
    const pair over = {up, fma3(m, neg(m, s), low, sub(m, sub(m, rest, up), p))};
    pair under = fast_two_sum(m, num(m, 2), neg(m, up)); /* 1 + u is 2 - (1 - u) */
    under.lo = sub(m, under.lo, over.lo);
    return copy_sign(m, pick(m, far, one, corrected_quotient(m, over, under)), x);
}

/* 1/(1+e^-x): with u = e^-|x| = s (1 + t), u/(1+u) for x < 0, which is scaled last so that it may underflow,
 * and 1 minus that for the others: it is a half at most, so that half of its error counts. */
static uint32_t do_sigmoid(maths *m, uint32_t x)
{
    uint32_t one = num(m, 1), c = neg(m, mag(m, x)), top = num2(m, -104, -746);
    rounded n;
    uint32_t t = exp_split(m, pick(m, lt(m, c, top), top, c), &n, NULL);
    const pair w = fast_two_sum(m, one, t);
    const double least = m->wide ? -1000 : -120; /* below, u vanishes against 1 */
    uint32_t s = pick(m, lt(m, n.f, num(m, least)), num(m, m->wide ? 0x1p-1000 : 0x1p-120), two_to(m, n));
    uint32_t d = fma3(m, s, w.hi, one), dl = fma3(m, s, w.hi, sub(m, one, d));
    uint32_t y = scale(m, corrected_quotient(m, w, (pair){d, dl}), n);
    return pick(m, op2(m, IR_GE, x, num(m, 0)), sub(m, one, y), y);
}

/* ---- error function ---- */

/* (erf(x)/x - 2/sqrt(pi)) / x^2 in x^2, below 51/64 (f64: 1) */
static const double ERF32[] = {-0.3761263788,    0.1128372550,   -0.02685772255, 0.005181078333,
                               -0.0007544432301, 1.124600840e-5, 3.123430724e-5};
static const double ERF64[] = {-0.376126389031837538,     0.112837916709554356,     -0.0268661706452764312,
                               0.00522397762864462017,    -0.000854832740792990241, 0.000120553605700852697,
                               -0.0000149269133298159457, 1.65005638958200245e-6,   -1.71615183976840767e-7,
                               2.60460315355390992e-8,    -1.18957992375329265e-8,  6.60014431469749489e-9,
                               -2.31037765509585497e-9,   3.60334692480792403e-10};
/* -log(erfc(x)) in x - 1 for 0.7 to 4; and without x^2, in (x - 2.5)/(x + 2.5), for 1 to 6 */
static const double ERFC32[] = {1.849605560,     2.638967276,     0.8430995941,     0.04156954959,
                                -0.009882207960, 0.001730674063,  -0.0008834323962, 0.001969945151,
                                -0.001924055512, 0.0008173318347, -0.0001274942770};
static const double ERFC64[] = {
    1.55681527272726439,   1.76340375493195745,      0.360747093035442501,   0.315349523453257397,
    0.273787984298489384,  0.198053668620440965,     0.161945694936502321,   0.144014699862259454,
    0.126047751086653753,  0.110713506605681369,     0.0997398236834038249,  0.0910651353466006425,
    0.0837006850303357031, 0.0775374769574869449,    0.0700828827012026784,  0.0548034857669940159,
    0.0276627194350522985, -0.000723799467398169986, -0.0116639014158149788, -0.00550806315844353921};

/* 1 - e^-g. In f32 e^-g is at most 0.26, so that its error counts for a quarter in the result, and the plain
 * polynomial of e^r is exact enough, once the rounding error of g is taken off r. */
static uint32_t far_erf32(maths *m, uint32_t c)
{
    rounded n;
    uint32_t t = sub(m, c, num(m, 1)),
             q = horner(m, t, ERFC32 + 1, (int)(sizeof ERFC32 / sizeof *ERFC32) - 1),
             first = num(m, ERFC32[0]);
    uint32_t g = fma3(m, t, q, first), lo = fma3(m, t, q, sub(m, first, g));
    uint32_t r = sub(m, reduce_exp(m, neg(m, g), &n, NULL), lo);
    return fma3(m, neg(m, HORNER(m, r, EXP32_WHOLE)), power_of_two(m, whole_of(m, n)), num(m, 1));
}

/* far_erf32 in f64, where e^-g is at most 0.16 and even the rounding error of g counts for little. */
static uint32_t far_erf64(maths *m, uint32_t a)
{
    rounded n;
    uint32_t c = num(m, 2.5), t = quo(m, sub(m, a, c), add(m, a, c)), one = num(m, 1);
    uint32_t g = fma3(m, a, a, HORNER(m, t, ERFC64)), r = reduce_exp(m, neg(m, g), &n, NULL);
    uint32_t e = add(m, fma3(m, mul(m, r, r), HORNER(m, r, EXP64), r), one);
    return fma3(m, neg(m, e), power_of_two(m, whole_of(m, n)), one);
}

static uint32_t do_erf(maths *m, uint32_t x)
{
    uint32_t a = mag(m, x), one = num(m, 1), top = num2(m, 4, 6), z = mul(m, a, a);
    uint32_t c = pick(m, gt(m, a, top), top, a);
    uint32_t from = num2(m, 0.796875, 1), near = lt(m, a, from);
    c = pick(m, near, from, c);
    uint32_t big = m->wide ? far_erf64(m, c) : far_erf32(m, c);
    uint32_t w =
        fma3(m, z, HORNER2(m, z, ERF32, ERF64), num2(m, -5.8635382771399236e-08, 1.533545961316588e-17));
    uint32_t small = fma3(m, a, num2(m, 1.128379225730896, 1.1283791670955126), mul(m, a, w));
    uint32_t y = pick(m, near, small, pick(m, gt(m, a, top), one, big));
    return pick(m, op2(m, IR_NE, x, x), x, copy_sign(m, y, x));
}

/* ---- powers ---- */

/* log2(x) for positive finite x = 2^k (1 + f) as a pair good to about 33 (68) bits: with s = f / (2 + f) and
 * z = s^2 it is k + s (C0 + z (C1 + z R(z))), where C0, C1, s and z are pairs. The one division is a
 * reciprocal, which also divides the remainder of s. */
static pair log2_pair(maths *m, uint32_t x)
{
    static const double R32[] = {0.5770780444, 0.4122000635, 0.3203470409, 0.2758484483};
    static const double R64[] = {0.577078016355585310, 0.412198583111132388, 0.320598897975324260,
                                 0.262308189252946800, 0.221953083123788475, 0.192359350151036279,
                                 0.169727954930971370, 0.151904063730071426, 0.136218316004261902,
                                 0.143854026537102969};
    uint32_t k, f = split_log(m, x, &k);
    pair d = fast_two_sum(m, num(m, 2), f);
    uint32_t r = quo(m, num(m, 1), d.hi), sh = mul(m, f, r), minus = neg(m, sh);
    const pair s = {sh, mul(m, fma3(m, minus, d.lo, fma3(m, minus, d.hi, f)), r)};
    pair z = two_mul(m, sh, sh);
    z.lo = fma3(m, add(m, sh, sh), s.lo, z.lo);
    const pair c0 = {num2(m, 2.885390043258667, 2.8853900817779268),
                     num2(m, 3.8519260670000222e-8, 4.0710547481862066e-17)},
               c1 = {num2(m, 0.96179670095443726, 0.96179669392597555),
                     num2(m, -7.0284618125526777e-9, 5.0577616648125907e-17)};
    pair c = fast_two_sum(m, c1.hi, mul(m, z.hi, HORNER2(m, z.hi, R32, R64)));
    pair w = two_mul_pair(m, z, (pair){c.hi, add(m, c.lo, c1.lo)}), t = fast_two_sum(m, c0.hi, w.hi);
    pair l = two_mul_pair(m, s, (pair){t.hi, add(m, t.lo, add(m, c0.lo, w.lo))});
    pair sum = fast_two_sum(m, k, l.hi); /* k is 0 or larger than l */
    return (pair){sum.hi, add(m, sum.lo, l.lo)};
}

static uint32_t is_whole(maths *m, uint32_t y) { return same(m, irb_op(m->b, IR_TRUNC, y, 0, 0), y); }

static uint32_t pow_special(maths *m, uint32_t x, uint32_t y, uint32_t r)
{
    uint32_t zero = num(m, 0), one = num(m, 1), inf = inf_num(m), a = mag(m, x), up = gt(m, y, zero);
    uint32_t whole = is_whole(m, y),
             uneven = both(
                 m, whole,
                 op2(m, IR_NE, y, mul(m, num(m, 2), irb_op(m->b, IR_TRUNC, mul(m, y, num(m, 0.5)), 0, 0))));
    r = pick(m, op2(m, IR_OR, same(m, a, zero), same(m, a, inf)),
             pick(m, same(m, up, same(m, a, zero)), zero, inf), r);
    r = pick(m, same(m, mag(m, y), inf), pick(m, same(m, up, gt(m, a, one)), inf, zero), r);
    uint32_t minus = lt(m, as_bits(m, x), whole_num(m, 0)); /* the sign bit, of -0 too */
    r = pick(m, both(m, minus, uneven), neg(m, r), r);
    uint32_t proper = both(m, lt(m, x, zero), lt(m, a, inf)); /* negative and finite: only whole exponents */
    r = pick(m,
             both(m, proper,
                  op2(m, IR_AND, op2(m, IR_NE, whole, irb_const(m->b, ir_with_dtype(m->t, EAS_BOOL), 1)),
                      lt(m, mag(m, y), inf))),
             nan_num(m), r);
    r = pick(m, op2(m, IR_OR, op2(m, IR_NE, x, x), op2(m, IR_NE, y, y)), nan_num(m), r);
    r = pick(m, both(m, same(m, x, neg(m, one)), same(m, mag(m, y), inf)), one, r);
    return pick(m, op2(m, IR_OR, same(m, y, zero), same(m, x, one)), one, r);
}

/* 2^(n + r + lo) without the factor 2^n; r is exact and |r| at most 1/2. All sums but the last keep their
 * rounding errors, so that a power that is a number of the dtype comes out as that number. */
static uint32_t exp2_rest(maths *m, uint32_t r, uint32_t lo)
{
    pair t = fast_two_sum(m, r, lo);
    uint32_t ln2 = num2(m, 0.6931471824645996, 0.6931471805599453),
             ln2_low = num2(m, -1.9046542121259336e-09, 2.3190468138462996e-17);
    pair a = two_mul(m, t.hi, ln2), s = fast_two_sum(m, num(m, 1), a.hi);
    uint32_t low = fma3(m, t.hi, ln2_low, fma3(m, t.lo, ln2, a.lo));
    return add(m, s.hi, add(m, s.lo, add(m, exp_tail(m, a.hi), low)));
}

/* Infinity or NaN? */
static uint32_t endless(maths *m, uint32_t x)
{
    return op2(m, IR_GE, as_ubits(m, mag(m, x)),
               bits_num(m, m->wide ? (uint64_t)0x7ff << 52 : (uint64_t)0xff << 23));
}

/* Bases that are not positive normal numbers, and exponents that are not finite, take a second computation
 * that runs only if a lane has one (rare.c). */
static uint32_t do_pow(maths *m, uint32_t x, uint32_t y)
{
    pair l = log2_pair(m, mag(m, x)), p = two_mul(m, y, l.hi);
    uint32_t h = m->wide ? clamp(m, p.hi, -1080, 1030) : clamp(m, p.hi, -155, 135);
    uint32_t low = pick(m, same(m, h, p.hi), fma3(m, y, l.lo, p.lo), num(m, 0));
    const rounded n = round_to(m, h, 1);
    uint32_t r = scale(m, exp2_rest(m, sub(m, h, n.f), low), n);
    return pick(m, op2(m, IR_OR, math_not_normal(m, x), endless(m, y)), pow_special(m, x, y, r), r);
}

/* ---- any number times a power of two ---- */

static uint32_t limited(maths *m, uint32_t x)
{
    return m->wide ? clamp(m, x, -1022, 1023) : clamp(m, x, -126, 127);
}

static uint32_t power_of_float(maths *m, uint32_t n) /* a whole number within the normal exponents */
{
    uint32_t t = add(m, n, num(m, m->wide ? 0x1.8p52 + 1023 : 0x1.8p23 + 127));
    return as_float(m, op2(m, IR_SHL, as_bits(m, t), whole_num(m, m->wide ? 52 : 23)));
}

/* Three steps, the largest last: where an earlier one rounds, the result is 0, and where one overflows it
 * is infinite. */
static uint32_t do_ldexp(maths *m, uint32_t x, uint32_t y)
{
    uint32_t n = irb_op(m->b, IR_FLOOR, y, 0, 0), last = limited(m, n), rest = sub(m, n, last),
             middle = limited(m, rest);
    uint32_t first = limited(m, sub(m, rest, middle)), zero = num(m, 0);
    uint32_t r = mul(m, mul(m, mul(m, x, power_of_float(m, first)), power_of_float(m, middle)),
                     power_of_float(m, last));
    return pick(m, lt(m, mag(m, y), inf_num(m)), r, mul(m, x, pick(m, lt(m, y, zero), zero, y)));
}

/* ---- the pass ---- */

static uint32_t spell(maths *m, uint16_t op, uint32_t x, uint32_t y)
{
    static uint32_t (*const unary[IR_NOPS])(maths *, uint32_t) = {
        [IR_EXP] = do_exp,   [IR_EXP2] = do_exp2,   [IR_EXPM1] = do_expm1, [IR_LOG] = do_log,
        [IR_LOG2] = do_log2, [IR_LOG1P] = do_log1p, [IR_RSQRT] = do_rsqrt, [IR_SIN] = math_sin,
        [IR_COS] = math_cos, [IR_TAN] = math_tan,   [IR_TANH] = do_tanh,   [IR_SIGMOID] = do_sigmoid,
        [IR_ERF] = do_erf,
    };
    /* hardware gives an infinity or 0 for a NaN that is scaled by an infinite exponent */
    if (op == IR_LDEXP && m->ldexp)
        return pick(m, op2(m, IR_NE, x, x), x, op2(m, IR_LDEXP, x, y));
    if (op == IR_LDEXP)
        return do_ldexp(m, x, y);
    return op == IR_POW ? do_pow(m, x, y) : unary[op](m, x);
}

static uint32_t spell_keeping(eas_builder *b, uint16_t op, uint32_t x, uint32_t y, unsigned keep)
{
    if (b->status)
        return 0;
    ir_type t = ir_typeof(b->ir, x);
    maths m = maths_of(b, x);
    const bool half = t.dtype != m.t.dtype;
    m.ldexp = (keep & IR_KEEP_LDEXP) != 0;
    if (half) {
        x = irb_to(b, IR_CAST, m.t, x);
        y = y ? irb_to(b, IR_CAST, m.t, y) : 0;
    }
    uint32_t r = b->status ? 0 : spell(&m, op, x, y);
    return b->status ? 0 : irb_to(b, IR_CAST, t, r);
}

uint32_t ir_spell(eas_builder *b, uint16_t op, uint32_t x, uint32_t y)
{
    return spell_keeping(b, op, x, y, 0);
}

static bool spelled(const ir_insn *in, unsigned keep)
{
    return (ir_rows[in->op].flags & IR_EXPAND) && !(keep & IR_KEEP_NATIVE && ir_rows[in->op].fl);
}

static bool anything(const eas_ir *ir, unsigned keep)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (spelled(&ir->insns[i], keep))
            return true;
    return false;
}

eas_status ir_expanded(const eas_ir *ir, unsigned keep, eas_ir **out)
{
    *out = NULL;
    if (!anything(ir, keep)) {
        *out = eas_ir_retain((eas_ir *)(uintptr_t)ir);
        return EAS_OK;
    }
    ir_rewrite w = {0};
    eas_status st = ir_rewrite_begin(&w, ir);
    if (!st)
        /* the formulas rely on each rounding as written; the kernel itself was contracted before */
        w.b->ir->flags |= EAS_KERNEL_NO_CONTRACT;
    for (uint32_t i = 0; i < ir->ninsns && !st; i++) {
        const ir_insn *in = ir_rewrite_at(&w, i);
        if (spelled(in, keep))
            w.map[in->res] = spell_keeping(w.b, in->op, ir_rewrite_arg(&w, in, 0),
                                           in->nargs > 1 ? ir_rewrite_arg(&w, in, 1) : 0, keep);
        else
            ir_rewrite_copy(&w, i);
    }
    return ir_rewrite_end_simple(&w, st, out);
}
