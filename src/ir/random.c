/* random.c: random numbers, spelled in the IR: Philox-4x32-10 (Salmon et al., SC 2011). A counter-based generator keeps no state:
 * the same seed and counter give the same words on every device, in any order and at any grid.
 *
 * The seed is the 64-bit key. The counter is 128 bits: the offset below, the stream above; four 32-bit words come of each.
 */
#include "ir.h"

static uint32_t op2(eas_builder *b, uint16_t op, uint32_t x, uint32_t y) { return eas_builder_apply(b, op, x, y, 0); }
static uint32_t word(eas_builder *b, uint32_t v) { return eas_builder_const_typed(b, EAS_U32, 0, (int64_t)v); }
static uint32_t real(eas_builder *b, double v) { return eas_builder_const_typed(b, EAS_F32, v, 0); }

static uint32_t low(eas_builder *b, uint32_t x) { return eas_builder_cast(b, x, EAS_U32); }
static uint32_t high(eas_builder *b, uint32_t x)
{
    return eas_builder_cast(b, op2(b, IR_SHR, x, eas_builder_const_typed(b, EAS_U64, 0, 32)), EAS_U32);
}

/* Integers of any width as 64 bits; negative ones wrap. */
static uint32_t bits64(eas_builder *b, const char *what, uint32_t x)
{
    if (b->status)
        return 0;
    if (!x || x >= b->ir->nvals || b->ir->vals[x].type.kind != IR_VAL || !dtype_is_int(b->ir->vals[x].type.dtype))
        return irb_fail(b, EAS_ERR_TYPE, "random numbers: %s must be an integer", what), 0;
    return eas_builder_cast(b, b->ir->vals[x].type.dtype == EAS_U64 ? x : eas_builder_cast(b, x, EAS_I64), EAS_U64);
}

/* m * x in full: x is 32 bits wide */
static uint32_t product(eas_builder *b, uint32_t m, uint32_t x)
{
    return op2(b, IR_MUL, eas_builder_cast(b, x, EAS_U64), eas_builder_const_typed(b, EAS_U64, 0, (int64_t)m));
}

static void round_once(eas_builder *b, uint32_t c[4], const uint32_t key[2])
{
    uint32_t p = product(b, 0xD2511F53u, c[0]), q = product(b, 0xCD9E8D57u, c[2]);
    uint32_t next[4] = {op2(b, IR_XOR, op2(b, IR_XOR, high(b, q), c[1]), key[0]), low(b, q), op2(b, IR_XOR, op2(b, IR_XOR, high(b, p), c[3]), key[1]),
                        low(b, p)};
    for (int i = 0; i < 4; i++)
        c[i] = next[i];
}

void eas_builder_philox(eas_builder *b, eas_value seed, eas_value offset, eas_value stream, eas_value words[4])
{
    NEED_(b);
    NEED_(words);
    uint32_t s = bits64(b, "the seed", seed), o = bits64(b, "the offset", offset);
    uint32_t up = stream ? bits64(b, "the stream", stream) : eas_builder_const_typed(b, EAS_U64, 0, 0);
    uint32_t key[2] = {low(b, s), high(b, s)}, c[4] = {low(b, o), high(b, o), low(b, up), high(b, up)};
    for (int i = 0; i < 10; i++) {
        round_once(b, c, key);
        key[0] = op2(b, IR_ADD, key[0], word(b, 0x9E3779B9u));
        key[1] = op2(b, IR_ADD, key[1], word(b, 0xBB67AE85u));
    }
    for (int i = 0; i < 4; i++)
        words[i] = b->status ? 0 : c[i];
}

/* [0, 1) from the top 24 bits: every result is exact. They fit i32, which converts faster than u32. */
static uint32_t unit(eas_builder *b, uint32_t w)
{
    uint32_t top = eas_builder_cast(b, op2(b, IR_SHR, w, word(b, 8)), EAS_I32);
    return op2(b, IR_MUL, eas_builder_cast(b, top, EAS_F32), real(b, 0x1p-24));
}

/* Box-Muller. The radius takes all 32 bits, off zero by half a step: it reaches 6.7 standard deviations. */
static uint32_t normal(eas_builder *b, uint32_t w0, uint32_t w1)
{
    uint32_t u = eas_builder_apply(b, IR_FMA, eas_builder_cast(b, w0, EAS_F32), real(b, 0x1p-32), real(b, 0x1p-33));
    uint32_t r = op2(b, IR_SQRT, op2(b, IR_MUL, op2(b, IR_LOG, u, 0), real(b, -2)), 0);
    return op2(b, IR_MUL, r, op2(b, IR_COS, op2(b, IR_MUL, unit(b, w1), real(b, 6.283185307179586)), 0));
}

eas_value eas_builder_rand(eas_builder *b, eas_value seed, eas_value offset, eas_rand_kind kind)
{
    NEED(b, 0);
    eas_value w[4];
    eas_builder_philox(b, seed, offset, 0, w);
    if (b->status)
        return 0;
    switch (kind) {
    case EAS_RAND_BITS: return w[0];
    case EAS_RAND_UNIFORM: return unit(b, w[0]);
    case EAS_RAND_NORMAL: return normal(b, w[0], w[1]);
    }
    return irb_fail(b, EAS_ERR_VALUE, "random numbers: no such kind %d", (int)kind), 0;
}

/* lo + word * (hi - lo) / 2^32: each value's share is off by at most one word in 2^32 */
eas_value eas_builder_rand_int(eas_builder *b, eas_value seed, eas_value offset, eas_value lo, eas_value hi)
{
    NEED(b, 0);
    uint32_t w = eas_builder_rand(b, seed, offset, EAS_RAND_BITS), from = bits64(b, "lo", lo), to = bits64(b, "hi", hi);
    int64_t l, h;
    if (b->status)
        return 0;
    if (eas_value_const_int(b, lo, &l) && eas_value_const_int(b, hi, &h) && (h <= l || (uint64_t)h - (uint64_t)l > (uint64_t)1 << 32))
        return irb_fail(b, EAS_ERR_VALUE, "randint: the range from %lld to %lld must hold between 1 and 2^32 values", (long long)l, (long long)h), 0;
    uint32_t scaled = op2(b, IR_MUL, eas_builder_cast(b, w, EAS_U64), op2(b, IR_SUB, to, from));
    uint32_t above = eas_builder_cast(b, op2(b, IR_SHR, scaled, eas_builder_const_typed(b, EAS_U64, 0, 32)), EAS_I64);
    return op2(b, IR_ADD, above, eas_builder_cast(b, from, EAS_I64));
}
