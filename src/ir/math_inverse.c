/* math_inverse.c: inverse functions that no instruction exists for: arc sine, cosine and tangent, the angle
 * of a point, the cube root. Operations of tensors and functions of kernels are built of them.
 *
 * Each takes f32 or f64 and is within 1.2 ULP (cbrt 0.51, atan2 1.5). One division or one root serves each;
 * where a multiple of pi/2 is added, it is a pair, and what the addition of the large parts loses is added to
 * the small ones, so that only one rounding counts.
 */
#include "math_words.h"

/* (atan(t)/t - 1) / t^2 in t^2, for t up to 1 */
static const double ATAN32[] = {-0.3333331048, 0.1999886334,   -0.1426738054, 0.1096773818,   -0.08446799964,
                                0.05866935477, -0.03186076134, 0.01126874145, -0.001870278269};
static const double ATAN64[] = {
    -0.333333333333333315,     0.199999999999999206,   -0.142857142857012342,   0.111111111102682972,
    -0.0909090906193528031,    0.0769230707882702924,  -0.0666665793457376782,  0.0588226441677644901,
    -0.0526249222902567537,    0.0475808008363782092,  -0.0433065384306706644,  0.0393868754079863201,
    -0.0352713310668712962,    0.0303307192657905067,  -0.0241913458101407179,  0.0171839817221133492,
    -0.0104121532603592415,    0.00514091285674693910, -0.00196125542716853261, 0.000537683929739624436,
    -0.0000937118634505262589, 7.76762433028991897e-6};
/* (asin(s)/s - 1) / s^2 in s^2, for s up to 1/2 */
static const double ASIN32[] = {0.1666672528, 0.07496172190, 0.04537757486, 0.02458049543, 0.04155699909};
static const double ASIN64[] = {0.166666666666666685,   0.0749999999999843292, 0.0446428571463554288,
                                0.0303819441385312465,  0.0223721729421498886, 0.0173523927208699726,
                                0.0139712129735529329,  0.0114791774151849057, 0.0103228143501857793,
                                0.00545750671864035815, 0.0174008794426940214, -0.0148518870712472037,
                                0.0287578513674215663};
/* 1/cbrt(x) for sqrt(1/8) <= x < sqrt(8), within 0.003 */
static const double CBRT[] = {2.015116930,  -2.386715651, 2.306067944,
                              -1.235575318, 0.3345318437, -0.03568781540};

static pair half_pi(maths *m)
{
    return (pair){num2(m, 1.5707963705062866, 1.5707963267948966),
                  num2(m, -4.371138828673793e-08, 6.123233995736766e-17)};
}

static pair twice(maths *m, pair x) { return (pair){add(m, x.hi, x.hi), add(m, x.lo, x.lo)}; }

static pair pair_pick(maths *m, uint32_t c, pair x, pair y)
{
    return (pair){pick(m, c, x.hi, y.hi), pick(m, c, x.lo, y.lo)};
}

/* base + v + v z p, where base is 0 or larger than v */
static uint32_t angle_sum(maths *m, pair base, uint32_t v, uint32_t z, uint32_t p)
{
    pair s = fast_two_sum(m, base.hi, v);
    return add(m, s.hi, add(m, s.lo, fma3(m, mul(m, v, z), p, base.lo)));
}

/* base + atan(t), or base - atan(t), for 0 <= t <= 1 */
static uint32_t angle_from(maths *m, pair base, uint32_t minus, uint32_t t)
{
    uint32_t z = mul(m, t, t);
    return angle_sum(m, base, pick(m, minus, neg(m, t), t), z, HORNER2(m, z, ATAN32, ATAN64));
}

static uint32_t do_atan(maths *m, uint32_t x)
{
    uint32_t a = mag(m, x), one = num(m, 1), big = gt(m, a, one);
    uint32_t t = quo(m, pick(m, big, one, a), pick(m, big, a, one));
    const pair none = {num(m, 0), num(m, 0)};
    return copy_sign(m, angle_from(m, pair_pick(m, big, half_pi(m), none), big, t), x);
}

/* The smaller leg over the larger one is the tangent of the angle between the point and the nearer axis. A
 * NaN in either leg goes through the quotient. */
static uint32_t do_atan2(maths *m, uint32_t y, uint32_t x)
{
    uint32_t ay = mag(m, y), ax = mag(m, x), zero = num(m, 0), steep = gt(m, ay, ax),
             behind = lt(m, as_bits(m, x), whole_num(m, 0));
    uint32_t low = pick(m, steep, ax, ay), high = pick(m, steep, ay, ax);
    uint32_t t =
        pick(m, same(m, low, high), pick(m, same(m, high, zero), zero, num(m, 1)), quo(m, low, high));
    const pair none = {zero, zero}, quarter = half_pi(m);
    const pair base = pair_pick(m, steep, quarter, pair_pick(m, behind, twice(m, quarter), none));
    return copy_sign(m, angle_from(m, base, op2(m, IR_NE, steep, behind), t), y);
}

/* asin(|x|) is pi/2 - 2 asin(sqrt((1 - |x|) / 2)) where |x| is above a half; 1 - |x| is exact there. */
static uint32_t arc_of_half(maths *m, uint32_t a, uint32_t big, uint32_t *root)
{
    uint32_t half = num(m, 0.5), z = pick(m, big, fma3(m, a, num(m, -0.5), half), mul(m, a, a)),
             r = irb_op(m->b, IR_SQRT, z, 0, 0);
    *root = add(m, r, r);
    return z;
}

static uint32_t do_asin(maths *m, uint32_t x)
{
    uint32_t a = mag(m, x), big = gt(m, a, num(m, 0.5)), root, z = arc_of_half(m, a, big, &root);
    const pair none = {num(m, 0), num(m, 0)}, base = pair_pick(m, big, half_pi(m), none);
    uint32_t v = pick(m, big, neg(m, root), a);
    return copy_sign(m, angle_sum(m, base, v, z, HORNER2(m, z, ASIN32, ASIN64)), x);
}

static uint32_t do_acos(maths *m, uint32_t x)
{
    uint32_t a = mag(m, x), big = gt(m, a, num(m, 0.5)), root, z = arc_of_half(m, a, big, &root),
             behind = lt(m, x, num(m, 0));
    const pair none = {num(m, 0), num(m, 0)}, quarter = half_pi(m);
    const pair base = pair_pick(m, big, pair_pick(m, behind, twice(m, quarter), none), quarter);
    uint32_t v = pick(m, big, copy_sign(m, root, x), neg(m, x));
    return angle_sum(m, base, v, z, HORNER2(m, z, ASIN32, ASIN64));
}

/* A better approximation of 1/cbrt(v): with e = 1 - v y^3, that of y is off by a relative e/3, the one
 * returned by the order of e^3. */
static uint32_t closer(maths *m, uint32_t v, uint32_t y)
{
    uint32_t e = fma3(m, neg(m, mul(m, v, y)), mul(m, y, y), num(m, 1));
    return fma3(m, mul(m, y, e), fma3(m, e, num(m, 2.0 / 9), num(m, 1.0 / 3)), y);
}

/* The root of a positive normal number v 8^n with v near 1, times 2^-less: c = v y^2 for y near 1/cbrt(v),
 * and one step of Newton's method with the exact residual v - c^3, in which 1/c^2 is y^2. There is no
 * division. */
static uint32_t cbrt_normal(maths *m, uint32_t a, int64_t less)
{
    uint32_t k, f = math_split(m, a, &k);
    const rounded n = round_to(m, k, 1.0 / 3);
    uint32_t left = fma3(m, n.f, num(m, -3), k); /* -1, 0 or 1; 2^left is a polynomial there */
    uint32_t p2 = fma3(m, left, fma3(m, left, num(m, 0.25), num(m, 0.75)), num(m, 1)), v = fma3(m, f, p2, p2);
    uint32_t y = closer(m, v, HORNER(m, v, CBRT));
    y = m->wide ? closer(m, v, y) : y;
    uint32_t y2 = mul(m, y, y), c = mul(m, v, y2);
    const pair square = two_mul(m, c, c);
    uint32_t rest = fma3(m, neg(m, square.lo), c, fma3(m, neg(m, square.hi), c, v));
    c = fma3(m, mul(m, rest, y2), num(m, 1.0 / 3), c);
    return mul(m, c, power_of_two(m, sub(m, whole_of(m, n), whole_num(m, less))));
}

/* Subnormal numbers are scaled by 8^8 (8^18). Infinities, zeros and NaN are their own roots. */
static uint32_t cbrt_of_any(maths *m, uint32_t x, uint32_t a)
{
    uint32_t scaled = cbrt_normal(m, mul(m, a, num2(m, 0x1p24, 0x1p54)), m->wide ? 18 : 8);
    uint32_t tiny = both(m, gt(m, a, num(m, 0)), lt(m, a, inf_num(m)));
    return pick(m, tiny, scaled, x);
}

static uint32_t do_cbrt(maths *m, uint32_t x)
{
    uint32_t a = mag(m, x), root = cbrt_normal(m, a, 0);
    return copy_sign(m, pick(m, math_not_normal(m, a), cbrt_of_any(m, x, a), root), x);
}

uint32_t ir_inverse(eas_builder *b, ir_inverse_fn fn, uint32_t x, uint32_t y)
{
    if (b->status)
        return 0;
    maths m = maths_of(b, x);
    switch (fn) {
    case IR_ASIN: return do_asin(&m, x);
    case IR_ACOS: return do_acos(&m, x);
    case IR_ATAN: return do_atan(&m, x);
    case IR_ATAN2: return do_atan2(&m, x, y);
    case IR_CBRT: return do_cbrt(&m, x);
    }
    return 0;
}
