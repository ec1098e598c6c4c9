/* math_circular.c: sine, cosine and tangent, with a reduction of the argument that is exact for every
 * finite one. */
#include "math_words.h"

static const double SIN32[] = {-0.1666666716, 0.008333477192, -0.0001990281016, 3.402247785e-6};
static const double COS32[] = {0.04166666791, -0.001388925011, 2.495710942e-5, -4.420440689e-7};
static const double SIN64[] = {-0.166666666666666657,   0.00833333333333232361,  -0.000198412698390723261,
                               2.75573170964591839e-6,  -2.50510805608751938e-8, 1.58024953214740220e-10,
                               2.39738719913166003e-12, -1.51893896931362483e-12};
static const double COS64[] = {0.0416666666666666644,    -0.00138888888888863632, 0.0000248015872960887804,
                               -2.75573139004037571e-7,  2.08741852959921288e-9,  -1.08288967823338562e-11,
                               -7.43257080251341208e-13, 3.80507161523310166e-13};

static const double TAN64[] = {0.333333333333333315,     0.133333333333330001,      0.0539682539686560797,
                               0.0218694885170470504,    0.00886323600411628200,    0.00359212097188211458,
                               0.00145590281619053944,   0.000589575142274228374,   0.000241228291838821110,
                               0.0000899795125902827877, 0.0000555995410830108423,  -0.0000110300805327252717,
                               0.0000365313166410872580, -0.0000183235190643641840, 8.48531607270132269e-6};

typedef struct angle {
    pair r;
    uint32_t q;
} angle; /* x = r + q pi/2, |r| <= pi/4 and a little; q an integer */

/* 2/pi, 32 bits a word, after a word of zeros */
static const uint32_t TWO_OVER_PI[] = {
    0x00000000, 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab,
    0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5,
    0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff,
    0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7,
    0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b6bab};

enum { MAX_WORDS = 39 };

typedef struct limbs {
    maths *m;
    ir_type t;
} limbs; /* u64 lanes that hold 32-bit words */
static uint32_t word(limbs *l, uint64_t v) { return irb_const(l->m->b, l->t, (int64_t)v); }
static uint32_t low32(limbs *l, uint32_t x) { return op2(l->m, IR_AND, x, word(l, 0xffffffff)); }
static uint32_t high32(limbs *l, uint32_t x) { return op2(l->m, IR_SHR, x, word(l, 32)); }

/* The n words of 2/pi that begin at bit pos: a barrel shifter over the table, then a shift inside the
 * words. */
static void window(limbs *l, uint32_t pos, int top_bit, int n, uint32_t *out)
{
    maths *m = l->m;
    uint32_t w[MAX_WORDS], idx = op2(m, IR_SHR, pos, word(l, 5)), shift = op2(m, IR_AND, pos, word(l, 31));
    int have = (1 << (top_bit + 1)) + n;
    for (int i = 0; i < have; i++)
        w[i] = word(l, i < MAX_WORDS ? TWO_OVER_PI[i] : 0);
    for (int bit = top_bit; bit >= 0; bit--) {
        int step = 1 << bit, keep = step + n;
        uint32_t on = op2(m, IR_NE, op2(m, IR_AND, idx, word(l, (uint64_t)step)), word(l, 0));
        for (int i = 0; i < keep; i++)
            w[i] = i + step < have ? pick(m, on, w[i + step], w[i]) : w[i];
        have = keep;
    }
    for (int i = 0; i < n; i++) {
        uint32_t two = op2(m, IR_OR, op2(m, IR_SHL, w[i], word(l, 32)), w[i + 1]);
        out[i] = high32(l, op2(m, IR_SHL, two, shift));
    }
}

/* For large arguments: the mantissa times as many bits of 2/pi as matter, modulo 4, in integers. */
static angle reduce_large(maths *m, uint32_t x)
{
    limbs L = {m, ir_with_dtype(m->t, EAS_U64)}, *l = &L;
    ir_type i64 = ir_with_dtype(m->t, EAS_I64);
    int mant = m->wide ? 52 : 23, n = m->wide ? 6 : 3, limbs_out = m->wide ? 4 : 2;
    uint32_t bits = irb_to(m->b, IR_CAST, L.t, as_ubits(m, mag(m, x)));
    uint32_t e = op2(m, IR_SHR, bits, word(l, (uint64_t)mant));
    uint32_t f =
        op2(m, IR_OR, op2(m, IR_AND, bits, word(l, ((uint64_t)1 << mant) - 1)), word(l, (uint64_t)1 << mant));
    uint32_t fl = low32(l, f), fh = high32(l, f), g[8], hi_l[8], lo_l[8], hi_h[8], lo_h[8];
    /* x = f 2^s; the window starts at weight 2 of 2^s 2/pi, which is bit s + 30 of the table */
    uint32_t pos = sub(m, e, word(l, (uint64_t)((m->wide ? 1023 : 127) + mant - 30)));
    window(l, pos, m->wide ? 4 : 2, n, g);
    for (int j = 0; j < n; j++) {
        uint32_t a = mul(m, fl, g[j]), b = m->wide ? mul(m, fh, g[j]) : word(l, 0);
        lo_l[j] = low32(l, a), hi_l[j] = high32(l, a);
        lo_h[j] = low32(l, b), hi_h[j] = high32(l, b);
    }
    uint32_t limb[8], carry = word(l, 0);
    for (int j = limbs_out; j >= 0; j--) {
        uint32_t acc = add(m, carry, lo_l[j < n ? j : n - 1]);
        if (j + 1 < n)
            acc = add(m, acc, add(m, hi_l[j + 1], lo_h[j + 1]));
        if (j + 2 < n)
            acc = add(m, acc, hi_h[j + 2]);
        limb[j] = low32(l, acc);
        carry = high32(l, acc);
    }
    uint32_t top = op2(m, IR_OR, op2(m, IR_SHL, limb[0], word(l, 32)), limb[1]);
    uint32_t low = m->wide ? op2(m, IR_OR, op2(m, IR_SHL, limb[2], word(l, 32)), limb[3])
                           : op2(m, IR_SHL, limb[2], word(l, 32));
    uint32_t q = op2(m, IR_SHR, add(m, top, word(l, (uint64_t)1 << 61)), word(l, 62));
    uint32_t frac = op2(m, IR_OR, op2(m, IR_SHL, top, word(l, 2)), op2(m, IR_SHR, low, word(l, 62)));
    /* frac is a signed fraction of a quarter turn in units of 2^-64; the bits below go into the low part */
    uint32_t s = irb_to(m->b, IR_BITCAST, i64, frac), h = to_float(m, s);
    uint32_t back = irb_to(m->b, IR_CAST, i64, h), d = to_float(m, sub(m, s, back));
    uint32_t below = mul(m, to_float(m, op2(m, IR_SHL, low, word(l, 2))), num(m, 0x1p-64));
    pair unit = {num(m, m->wide ? 1.5707963267948966 * 0x1p-64 : 1.5707963705062866 * 0x1p-64),
                 num(m, m->wide ? 6.123233995736766e-17 * 0x1p-64 : -4.371138828673793e-08 * 0x1p-64)};
    pair r = pair_mul(m, fast_two_sum(m, h, add(m, d, below)), unit);
    uint32_t minus = lt(m, x, num(m, 0)), qi = irb_to(m->b, IR_CAST, m->it, q);
    r.hi = pick(m, minus, neg(m, r.hi), r.hi);
    r.lo = pick(m, minus, neg(m, r.lo), r.lo);
    return (angle){r, pick(m, minus, neg(m, qi), qi)};
}

void math_small_angle(maths *m, uint32_t x, uint32_t *s, uint32_t *c)
{
    uint32_t z = mul(m, x, x);
    *s = fma3(m, mul(m, x, z), HORNER2(m, z, SIN32, SIN64), x);
    *c = fma3(m, z, fma3(m, z, HORNER2(m, z, COS32, COS64), num(m, -0.5)), num(m, 1));
}

static uint32_t odd(maths *m, uint32_t q, int64_t bit)
{
    return op2(m, IR_NE, op2(m, IR_AND, q, whole_num(m, bit)), whole_num(m, 0));
}

/* x - q pi/2, with pi/2 in three parts: exact while q has few bits. r.lo is the part of the remainder that
 * r.hi cannot hold, and only the last bits of q are right, which is enough to tell the quarter. */
static angle reduce_angle(maths *m, uint32_t x)
{
    uint32_t magic = num2(m, 0x1.8p23, 0x1.8p52), t = fma3(m, x, num(m, 0.63661977236758134308), magic),
             q = sub(m, t, magic), b = num2(m, 4.371138828673793e-08, -6.123233995736766e-17);
    uint32_t r = fma3(m, q, num2(m, -1.5707963705062866, -1.5707963267948966), x); /* exact */
    /* |p| may exceed |r|: then either p is small or the difference is exact */
    pair p = two_mul(m, q, b), d = fast_two_sum(m, r, p.hi);
    uint32_t rest = num2(m, 1.7151245100058819e-15, 1.4973849048591698e-33),
             lo = add(m, d.lo, fma3(m, q, rest, p.lo));
    angle l = reduce_large(m, x);
    uint32_t big = gt(m, mag(m, x), num2(m, 0x1p18, 0x1p40)),
             far = pick(m, lt(m, mag(m, x), inf_num(m)), l.r.hi, nan_num(m));
    return (angle){{pick(m, big, far, d.hi), pick(m, big, l.r.lo, lo)}, pick(m, big, l.q, as_bits(m, t))};
}

/* (r.hi + r.lo)^2 */
static uint32_t square_of(maths *m, pair r) { return fma3(m, r.hi, r.hi, mul(m, add(m, r.hi, r.hi), r.lo)); }

/* sin(x + turn pi/2). Only the last operation rounds the result; the error of all before it is at most three
 * eighths of an ULP. */
static uint32_t circular(maths *m, uint32_t x, int64_t turn)
{
    angle a = reduce_angle(m, x);
    uint32_t q = turn ? add(m, a.q, whole_num(m, turn)) : a.q, z = square_of(m, a.r);
    uint32_t s = add(m, a.r.hi, fma3(m, mul(m, a.r.hi, z), HORNER2(m, z, SIN32, SIN64), a.r.lo));
    uint32_t c = fma3(m, z, fma3(m, z, HORNER2(m, z, COS32, COS64), num(m, -0.5)), num(m, 1));
    uint32_t y = pick(m, odd(m, q, 1), c, s),
             sign = op2(m, IR_SHL, op2(m, IR_AND, q, whole_num(m, 2)), whole_num2(m, 30, 62));
    y = as_float(m, op2(m, IR_XOR, as_bits(m, y), sign));
    return turn ? y : pick(m, same(m, x, num(m, 0)), x, y);
}

uint32_t math_sin(maths *m, uint32_t x) { return circular(m, x, 0); }
uint32_t math_cos(maths *m, uint32_t x) { return circular(m, x, 1); }

/* ---- tangent ---- */

/* pi/2 in three parts; x - q*A is exact. Good while q has few bits. */
static angle reduce_small(maths *m, uint32_t x)
{
    uint32_t q = nearest(m, mul(m, x, num(m, 0.63661977236758134308)));
    uint32_t r = fma3(m, q, num2(m, -1.5707963705062866, -1.5707963267948966), x);
    pair p = two_mul(m, q, num2(m, -4.371138828673793e-08, 6.123233995736766e-17));
    pair d = two_sum(m, r, neg(m, p.hi));
    uint32_t lo = sub(m, d.lo, fma3(m, q, num2(m, -1.7151245100058819e-15, -1.4973849048591698e-33), p.lo));
    return (angle){fast_two_sum(m, d.hi, lo), to_int(m, q)};
}

static angle reduce_fully(maths *m, uint32_t x)
{
    angle a = reduce_small(m, x), b = reduce_large(m, x);
    uint32_t big = gt(m, mag(m, x), num2(m, 0x1p18, 0x1p40));
    return (angle){{pick(m, big, b.r.hi, a.r.hi), pick(m, big, b.r.lo, a.r.lo)}, pick(m, big, b.q, a.q)};
}

static pair sin_pair(maths *m, pair r)
{
    uint32_t z = mul(m, r.hi, r.hi), p = HORNER(m, z, SIN32);
    uint32_t lo = mul(m, r.lo, fma3(m, num(m, -0.5), z, num(m, 1)));
    return fast_two_sum(m, r.hi, fma3(m, mul(m, r.hi, z), p, lo));
}

static pair cos_pair(maths *m, pair r)
{
    uint32_t one = num(m, 1), z = mul(m, r.hi, r.hi), h = mul(m, num(m, 0.5), z), w = sub(m, one, h);
    uint32_t zl = fma3(m, r.hi, r.hi, neg(m, z)); /* the rounding error of r.hi^2 */
    uint32_t rest =
        fma3(m, mul(m, z, z), HORNER(m, z, COS32), neg(m, fma3(m, r.hi, r.lo, mul(m, num(m, 0.5), zl))));
    return fast_two_sum(m, w, add(m, sub(m, sub(m, one, w), h), rest));
}

/* tan(r) as a quotient of pairs: in f32 the bound of 1 ULP leaves no room for the rounding of a polynomial
 * whose terms are up to a quarter of the result. */
static uint32_t tan32(maths *m, uint32_t x)
{
    angle a = reduce_fully(m, x);
    pair s = sin_pair(m, a.r), c = cos_pair(m, a.r);
    uint32_t flip = odd(m, a.q, 1);
    pair n = {pick(m, flip, neg(m, c.hi), s.hi), pick(m, flip, neg(m, c.lo), s.lo)},
         d = {pick(m, flip, s.hi, c.hi), pick(m, flip, s.lo, c.lo)};
    uint32_t t = quo(m, n.hi, d.hi);
    uint32_t rem = add(m, fma3(m, neg(m, t), d.hi, n.hi), sub(m, n.lo, mul(m, t, d.lo)));
    uint32_t y = add(m, t, quo(m, rem, d.hi));
    y = pick(m, same(m, x, num(m, 0)), x, y);
    return pick(m, lt(m, mag(m, x), inf_num(m)), y, nan_num(m));
}

/* tan(r), or -1/tan(r) in odd quarters: a quotient corrected by its remainder, to which both parts of tan(r)
 * contribute */
static uint32_t tan64(maths *m, uint32_t x)
{
    angle a = reduce_angle(m, x);
    uint32_t z = square_of(m, a.r), w = mul(m, a.r.hi, z);
    const pair t = fast_two_sum(m, a.r.hi, fma3(m, w, HORNER(m, z, TAN64), a.r.lo));
    uint32_t q = quo(m, num(m, -1), t.hi), e = fma3(m, q, t.lo, fma3(m, q, t.hi, num(m, 1)));
    uint32_t y = pick(m, odd(m, a.q, 1), fma3(m, q, e, q), t.hi);
    return pick(m, same(m, x, num(m, 0)), x, y);
}

uint32_t math_tan(maths *m, uint32_t x) { return m->wide ? tan64(m, x) : tan32(m, x); }
