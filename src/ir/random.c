/* random.c: random numbers, spelled in the IR: Philox-4x32-10 (Salmon et al., SC 2011). A counter-based
 * generator keeps no state: the same seed and counter give the same words on every device, in any order and
 * at any grid.
 *
 * The seed is the 64-bit key. The counter is 128 bits: the offset below, the stream above; four 32-bit words
 * come of each.
 *
 * Words are kept in lanes of 64 bits, of which only the lower half counts: vector units multiply 32 by 32
 * bits in such lanes, take the lower halves as they are and leave the whole product, so that a word needs
 * neither unpacking before a product nor packing after it.
 */
#include "math_words.h"

static uint32_t two(eas_builder *b, uint16_t op, uint32_t x, uint32_t y)
{
    return eas_builder_apply(b, op, x, y, 0);
}
static uint32_t word(eas_builder *b, uint64_t v)
{
    return eas_builder_const_typed(b, EAS_U64, 0, (int64_t)v);
}
static uint32_t low(eas_builder *b, uint32_t x) { return eas_builder_cast(b, x, EAS_U32); }
static uint32_t high(eas_builder *b, uint32_t x) { return two(b, IR_SHR, x, word(b, 32)); }

/* Integers of any width as 64 bits; negative ones wrap. */
static uint32_t bits64(eas_builder *b, const char *what, uint32_t x)
{
    if (b->status)
        return 0;
    if (!x || x >= b->ir->nvals || b->ir->vals[x].type.kind != IR_VAL ||
        !dtype_is_int(b->ir->vals[x].type.dtype))
        return irb_fail(b, EAS_ERR_TYPE, "random numbers: %s must be an integer", what), 0;
    return eas_builder_cast(b, b->ir->vals[x].type.dtype == EAS_U64 ? x : eas_builder_cast(b, x, EAS_I64),
                            EAS_U64);
}

/* m times the lower half of x */
static uint32_t product(eas_builder *b, uint32_t m, uint32_t x)
{
    return two(b, IR_MUL, two(b, IR_AND, x, word(b, 0xffffffff)), word(b, m));
}

static void round_once(eas_builder *b, uint32_t c[4], const uint32_t key[2])
{
    uint32_t p = product(b, 0xD2511F53u, c[0]), q = product(b, 0xCD9E8D57u, c[2]);
    uint32_t next[4] = {two(b, IR_XOR, two(b, IR_XOR, high(b, q), c[1]), key[0]), q,
                        two(b, IR_XOR, two(b, IR_XOR, high(b, p), c[3]), key[1]), p};
    for (int i = 0; i < 4; i++)
        c[i] = next[i];
}

/* The four words, each in the lower half of 64 bits. */
static void philox(eas_builder *b, eas_value seed, eas_value offset, eas_value stream, uint32_t c[4])
{
    uint32_t s = bits64(b, "the seed", seed), o = bits64(b, "the offset", offset);
    uint32_t up = stream ? bits64(b, "the stream", stream) : word(b, 0);
    uint32_t key[2] = {s, high(b, s)}, first[4] = {o, high(b, o), up, high(b, up)};
    for (int i = 0; i < 4; i++)
        c[i] = first[i];
    for (int i = 0; i < 10; i++) {
        round_once(b, c, key);
        key[0] = two(b, IR_ADD, key[0], word(b, 0x9E3779B9u));
        key[1] = two(b, IR_ADD, key[1], word(b, 0xBB67AE85u));
    }
}

void eas_builder_philox(eas_builder *b, eas_value seed, eas_value offset, eas_value stream,
                        eas_value words[4])
{
    NEED_(b);
    NEED_(words);
    uint32_t c[4];
    philox(b, seed, offset, stream, c);
    for (int i = 0; i < 4; i++)
        words[i] = b->status ? 0 : low(b, c[i]);
}

/* ---- distributions ---- */

static maths maths_like(eas_builder *b, uint32_t v, bool wide)
{
    const ir_type t = ir_typeof(b->ir, v);
    return (maths){.b = b,
                   .t = ir_with_dtype(t, wide ? EAS_F64 : EAS_F32),
                   .it = ir_with_dtype(t, wide ? EAS_I64 : EAS_I32),
                   .ut = ir_with_dtype(t, wide ? EAS_U64 : EAS_U32),
                   .wide = wide};
}

static uint32_t up(maths *m, uint32_t w, uint64_t by) { return op2(m, IR_SHL, w, bits_num(m, by)); }
static uint32_t down(maths *m, uint32_t w, uint64_t by) { return op2(m, IR_SHR, w, bits_num(m, by)); }
static uint32_t signed_of(maths *m, uint32_t w) { return irb_to(m->b, IR_BITCAST, m->it, w); }

/* [1, 2) from the top 52 bits, without a conversion, which few machines have in 64 bits */
static const uint64_t ONE64 = (uint64_t)0x3ff << 52;
static uint32_t from_one(maths *m, uint32_t w)
{
    return as_float(m, op2(m, IR_OR, down(m, w, 12), bits_num(m, ONE64)));
}

/* [0, 1) in steps of 2^-24 or 2^-53: every result is exact. 24 bits fit i32, which converts faster than u32.
 * For f64, 52 bits give a number in [1, 2); the 53rd bit decides whether 1 or the number before 1 is
 * subtracted. */
static uint32_t unit(maths *m, uint32_t w)
{
    if (!m->wide)
        return mul(m, to_float(m, signed_of(m, down(m, w, 8))), num(m, 0x1p-24));
    uint32_t last = op2(m, IR_AND, down(m, w, 11), bits_num(m, 1));
    return sub(m, from_one(m, w), as_float(m, sub(m, bits_num(m, ONE64), last)));
}

/* Box-Muller: two words give two numbers. The radius takes 31 (52) bits and is never of 0: it reaches 6.6
 * (8.4) standard deviations. Of the angle's word, the lower bits are an angle of at most an eighth of a turn
 * to either side, whose sine and cosine need no reduction; the two upper bits exchange the coordinates and
 * turn the point round, which makes four such arcs, the whole circle. */
static void normals(maths *m, uint32_t w0, uint32_t w1, uint32_t z[2])
{
    const uint64_t top = m->wide ? (uint64_t)1 << 63 : (uint64_t)1 << 31;
    uint32_t u = m->wide
                   ? sub(m, num(m, 2), from_one(m, w0))
                   : fma3(m, to_float(m, signed_of(m, down(m, w0, 1))), num(m, 0x1p-31), num(m, 0x1p-32));
    uint32_t r = irb_op(m->b, IR_SQRT, mul(m, math_log_normal(m, u), num(m, -2)), 0, 0);
    uint32_t turn = up(m, w1, 2), s, c;
    turn = m->wide ? sub(m, from_one(m, turn), num(m, 1.5)) : to_float(m, signed_of(m, turn));
    math_small_angle(m, mul(m, turn, num(m, 1.5707963267948966 * (m->wide ? 1 : 0x1p-32))), &s, &c);
    uint32_t swap = lt(m, signed_of(m, up(m, w1, 1)), whole_num(m, 0));
    r = as_float(m, op2(m, IR_XOR, as_ubits(m, r), op2(m, IR_AND, w1, bits_num(m, top))));
    z[0] = mul(m, r, pick(m, swap, s, c));
    z[1] = mul(m, r, pick(m, swap, c, s));
}

int ir_rand_all(eas_builder *b, eas_value seed, eas_value offset, eas_rand_kind kind, eas_value v[4])
{
    const bool wide = kind >= EAS_RAND_BITS64;
    const int n = wide ? 2 : 4;
    uint32_t c[4], w[4], z[2];
    philox(b, seed, offset, 0, c);
    for (int i = 0; i < n; i++)
        w[i] = !wide ? low(b, c[i])
                     : two(b, IR_OR, two(b, IR_SHL, c[2 * i], word(b, 32)),
                           two(b, IR_AND, c[2 * i + 1], word(b, 0xffffffff)));
    if (b->status)
        return 0;
    maths m = maths_like(b, w[0], wide);
    for (int i = 0; i < n; i++)
        switch (kind) {
        case EAS_RAND_BITS:
        case EAS_RAND_BITS64: v[i] = w[i]; break;
        case EAS_RAND_UNIFORM:
        case EAS_RAND_UNIFORM64: v[i] = unit(&m, w[i]); break;
        case EAS_RAND_NORMAL:
        case EAS_RAND_NORMAL64:
            if (i % 2 == 0)
                normals(&m, w[i], w[i + 1], z);
            v[i] = z[i % 2];
            break;
        }
    return b->status ? 0 : n;
}

eas_value eas_builder_rand(eas_builder *b, eas_value seed, eas_value offset, eas_rand_kind kind)
{
    NEED(b, 0);
    eas_value v[4];
    if ((unsigned)kind > EAS_RAND_NORMAL64)
        return irb_fail(b, EAS_ERR_VALUE, "random numbers: no such kind %d", (int)kind), 0;
    return ir_rand_all(b, seed, offset, kind, v) ? v[0] : 0;
}

/* lo + word * (hi - lo) / 2^32: each value's share is off by at most one word in 2^32 */
eas_value eas_builder_rand_int(eas_builder *b, eas_value seed, eas_value offset, eas_value lo, eas_value hi)
{
    NEED(b, 0);
    uint32_t w = eas_builder_rand(b, seed, offset, EAS_RAND_BITS), from = bits64(b, "lo", lo),
             to = bits64(b, "hi", hi);
    int64_t l, h;
    if (b->status)
        return 0;
    if (eas_value_const_int(b, lo, &l) && eas_value_const_int(b, hi, &h) &&
        (h <= l || (uint64_t)h - (uint64_t)l > (uint64_t)1 << 32))
        return irb_fail(b, EAS_ERR_VALUE,
                        "randint: the range from %lld to %lld must hold between 1 and 2^32 values",
                        (long long)l, (long long)h),
               0;
    uint32_t scaled = two(b, IR_MUL, eas_builder_cast(b, w, EAS_U64), two(b, IR_SUB, to, from));
    uint32_t above = eas_builder_cast(b, two(b, IR_SHR, scaled, word(b, 32)), EAS_I64);
    return two(b, IR_ADD, above, eas_builder_cast(b, from, EAS_I64));
}
