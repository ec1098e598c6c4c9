/* math_words.h: the small language that elementary functions are spelled in: one name for each
 * instruction, polynomials, and pairs of numbers. */
#ifndef MATH_WORDS_H
#define MATH_WORDS_H

#include "ir.h"

#include <math.h>

typedef struct maths {
    eas_builder *b;
    ir_type t, it, ut; /* the float type, and its signed and unsigned twins */
    bool wide;         /* f64 */
    bool ldexp;        /* IR_LDEXP stays an instruction */
} maths;

typedef struct pair {
    uint32_t hi, lo;
} pair;

/* The dtype in which functions of x are computed: f32 for halves, else its own. */
static inline maths maths_of(eas_builder *b, uint32_t x)
{
    const ir_type t = ir_typeof(b->ir, x);
    const bool wide = t.dtype == EAS_F64;
    return (maths){.b = b,
                   .t = ir_with_dtype(t, wide ? EAS_F64 : EAS_F32),
                   .it = ir_with_dtype(t, wide ? EAS_I64 : EAS_I32),
                   .ut = ir_with_dtype(t, wide ? EAS_U64 : EAS_U32),
                   .wide = wide};
}

/* ---- a small language: one name per instruction ---- */

static inline uint32_t num(maths *m, double v)
{
    return irb_const(m->b, m->t, ir_bits_from_double(m->t.dtype, v));
}
static inline uint32_t num2(maths *m, double narrow, double wide) { return num(m, m->wide ? wide : narrow); }
static inline uint32_t whole_num(maths *m, int64_t v) { return irb_const(m->b, m->it, v); }
static inline uint32_t whole_num2(maths *m, int64_t narrow, int64_t wide)
{
    return whole_num(m, m->wide ? wide : narrow);
}
static inline uint32_t bits_num(maths *m, uint64_t v) { return irb_const(m->b, m->ut, (int64_t)v); }
static inline uint32_t op2(maths *m, uint16_t op, uint32_t x, uint32_t y)
{
    return irb_op(m->b, op, x, y, 0);
}
static inline uint32_t add(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_ADD, x, y); }
static inline uint32_t sub(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_SUB, x, y); }
static inline uint32_t mul(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_MUL, x, y); }
static inline uint32_t quo(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_DIV, x, y); }
static inline uint32_t fma3(maths *m, uint32_t x, uint32_t y, uint32_t z)
{
    return irb_op(m->b, IR_FMA, x, y, z);
}
static inline uint32_t neg(maths *m, uint32_t x) { return irb_op(m->b, IR_NEG, x, 0, 0); }
static inline uint32_t mag(maths *m, uint32_t x) { return irb_op(m->b, IR_ABS, x, 0, 0); }
static inline uint32_t nearest(maths *m, uint32_t x) { return irb_op(m->b, IR_ROUND, x, 0, 0); }
static inline uint32_t pick(maths *m, uint32_t c, uint32_t x, uint32_t y)
{
    return irb_op(m->b, IR_WHERE, c, x, y);
}
static inline uint32_t lt(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_LT, x, y); }
static inline uint32_t gt(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_GT, x, y); }
static inline uint32_t same(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_EQ, x, y); }
static inline uint32_t both(maths *m, uint32_t x, uint32_t y) { return op2(m, IR_AND, x, y); }
static inline uint32_t to_int(maths *m, uint32_t x) { return irb_to(m->b, IR_CAST, m->it, x); }
static inline uint32_t to_float(maths *m, uint32_t x) { return irb_to(m->b, IR_CAST, m->t, x); }
static inline uint32_t as_bits(maths *m, uint32_t x) { return irb_to(m->b, IR_BITCAST, m->it, x); }
static inline uint32_t as_ubits(maths *m, uint32_t x) { return irb_to(m->b, IR_BITCAST, m->ut, x); }
static inline uint32_t as_float(maths *m, uint32_t x) { return irb_to(m->b, IR_BITCAST, m->t, x); }
static inline uint32_t nan_num(maths *m) { return num(m, (double)NAN); }
static inline uint32_t inf_num(maths *m) { return num(m, (double)INFINITY); }

/* c[0] + c[1] x + ... by Horner's rule, which rounds least: what a step adds is smaller than its coefficient.
 * From LONG terms on only the last two or three steps are that; of the others pairs c[i] + c[i+1] x, which do
 * not wait for each other, are joined by x^2. A chain of dependent fmas is half as long then: more vectors
 * are in flight in the processor's queues, which such chains fill. */
static inline uint32_t horner(maths *m, uint32_t x, const double *c, int n)
{
    enum { LONG = 6 };
    const int from = n < LONG ? n - 1 : n % 2 ? 3 : 2;
    uint32_t r = num(m, c[n - 1]);
    if (n >= LONG) {
        uint32_t square = mul(m, x, x);
        r = fma3(m, r, x, num(m, c[n - 2]));
        for (int i = n - 4; i >= from; i -= 2)
            r = fma3(m, r, square, fma3(m, num(m, c[i + 1]), x, num(m, c[i])));
    }
    for (int i = from - 1; i >= 0; i--)
        r = fma3(m, r, x, num(m, c[i]));
    return r;
}
#define HORNER(m, x, c) horner(m, x, c, (int)(sizeof(c) / sizeof *(c)))
#define HORNER2(m, x, c32, c64) ((m)->wide ? HORNER(m, x, c64) : HORNER(m, x, c32))

/* 2^n for an integer n within the normal exponents */
static inline uint32_t power_of_two(maths *m, uint32_t n)
{
    uint32_t biased = add(m, n, whole_num(m, m->wide ? 1023 : 127));
    return as_float(m, op2(m, IR_SHL, biased, whole_num(m, m->wide ? 52 : 23)));
}

/* A whole number that is small against the mantissa: f is the number as a float; the last bits of t hold it
 * as an integer, since BIG and twice the bias of an exponent were added to it. */
typedef struct rounded {
    uint32_t f, t;
} rounded;
#define BIG(m) ((m)->wide ? 0x1.8p52 + 2046 : 0x1.8p23 + 254)

/* x k to the nearest integer */
static inline rounded round_to(maths *m, uint32_t x, double k)
{
    uint32_t big = num(m, BIG(m)), t = k == 1 ? add(m, x, big) : fma3(m, x, num(m, k), big);
    return (rounded){sub(m, t, big), t};
}

static inline uint32_t whole_of(maths *m, rounded n)
{
    return sub(m, as_bits(m, n.t), whole_num(m, m->wide ? 0x43380000000007fe : 0x4b4000fe));
}

/* x 2^n for an x near 1, in two steps, so that the result underflows or overflows as it should; the first
 * step is exact, so hardware that does it in one gives the same result. The shift drops everything of t but n
 * and the bias. */
static inline uint32_t scale(maths *m, uint32_t x, rounded n)
{
    if (m->ldexp)
        return op2(m, IR_LDEXP, x, n.f);
    uint32_t bits = as_bits(m, n.t), half = op2(m, IR_SHR, bits, whole_num(m, 1)),
             mant = whole_num(m, m->wide ? 52 : 23);
    uint32_t first = as_float(m, op2(m, IR_SHL, half, mant)),
             second = as_float(m, op2(m, IR_SHL, sub(m, bits, half), mant));
    return mul(m, mul(m, x, first), second);
}

static inline uint32_t clamp(maths *m, uint32_t x, double lo, double hi) /* NaN stays */
{
    uint32_t l = num(m, lo), h = num(m, hi);
    x = pick(m, lt(m, x, l), l, x);
    return pick(m, gt(m, x, h), h, x);
}

static inline uint32_t copy_sign(maths *m, uint32_t x, uint32_t from)
{
    uint64_t sign = m->wide ? (uint64_t)1 << 63 : (uint64_t)1 << 31;
    uint32_t s = op2(m, IR_AND, as_ubits(m, from), bits_num(m, sign));
    uint32_t v = op2(m, IR_AND, as_ubits(m, x), bits_num(m, sign - 1));
    return as_float(m, op2(m, IR_OR, v, s));
}

/* ---- pairs ---- */

static inline pair fast_two_sum(maths *m, uint32_t a, uint32_t b) /* |a| >= |b| or a = 0 */
{
    uint32_t s = add(m, a, b);
    return (pair){s, sub(m, b, sub(m, s, a))};
}

static inline pair two_sum(maths *m, uint32_t a, uint32_t b)
{
    uint32_t s = add(m, a, b), bb = sub(m, s, a);
    return (pair){s, add(m, sub(m, a, sub(m, s, bb)), sub(m, b, bb))};
}

static inline pair two_mul(maths *m, uint32_t a, uint32_t b)
{
    uint32_t p = mul(m, a, b);
    return (pair){p, fma3(m, a, b, neg(m, p))};
}

/* A product of pairs, whose lo may be some ULP of hi. */
static inline pair two_mul_pair(maths *m, pair a, pair b)
{
    pair p = two_mul(m, a.hi, b.hi);
    return (pair){p.hi, fma3(m, a.hi, b.lo, fma3(m, a.lo, b.hi, p.lo))};
}

static inline pair pair_mul(maths *m, pair a, pair b)
{
    pair p = two_mul_pair(m, a, b);
    return fast_two_sum(m, p.hi, p.lo);
}

/* ---- math.c ---- */
/* f and k of x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for a positive normal x */
uint32_t math_split(maths *m, uint32_t x, uint32_t *k);
uint32_t math_not_normal(maths *m, uint32_t x); /* is x anything but a positive normal number? */
uint32_t math_log_normal(maths *m, uint32_t x); /* of a positive normal number */

/* ---- math_circular.c ---- */
void math_small_angle(maths *m, uint32_t x, uint32_t *s, uint32_t *c); /* sine and cosine, |x| <= pi/4 */
uint32_t math_sin(maths *m, uint32_t x);
uint32_t math_cos(maths *m, uint32_t x);
uint32_t math_tan(maths *m, uint32_t x);

#endif
