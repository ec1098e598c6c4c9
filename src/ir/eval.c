/* eval.c: the meaning of every element-wise instruction, compiled from the table's expressions.
 *
 * A lane is a 64-bit slot: integers sign- or zero-extended, bool 0/1, floats their bit pattern. The
 * interpreter and the constant folder run these functions, so folding cannot differ from running.
 */
#include "ir.h"

#include <math.h>
#include <tgmath.h>

#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wbool-operation"

typedef void eval_fn(int64_t n, const int64_t *a, const int64_t *b, const int64_t *c, int64_t *r);

static float bits_f32(int64_t s)
{
    float f;
    memcpy(&f, &s, 4);
    return f;
}
static int64_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (int64_t)u;
}
static double bits_f64(int64_t s)
{
    double d;
    memcpy(&d, &s, 8);
    return d;
}
static int64_t f64_bits(double d)
{
    int64_t s;
    memcpy(&s, &d, 8);
    return s;
}
static float bits_f16(int64_t s) { return f16_to_f32((uint16_t)s); }
static int64_t f16_bits(float f) { return f32_to_f16(f); }
static float bits_bf16(int64_t s) { return bf16_to_f32((uint16_t)s); }
static int64_t bf16_bits(float f) { return f32_to_bf16(f); }

/* rules that are not element-wise arithmetic get no function */
#define EVAL_CONST(N, n, e)
#define EVAL_IDENT(N, n, e)
#define EVAL_ARANGE(N, n, e)
#define EVAL_WHERE(N, n, e)
#define EVAL_CAST(N, n, e)
#define EVAL_SHAPE(N, n, e)
#define EVAL_MOVE(N, n, e)
#define EVAL_REDUCE(N, n, e)
#define EVAL_SCAN(N, n, e)
#define EVAL_MATMUL(N, n, e)
#define EVAL_SHUFFLE(N, n, e)
#define EVAL_LOAD(N, n, e)
#define EVAL_STORE(N, n, e)
#define EVAL_BOUNDS(N, n, e)
#define EVAL_ATOMIC(N, n, e)
#define EVAL_ALLOC(N, n, e)
#define EVAL_ASSERT(N, n, e)
#define EVAL_PRINT(N, n, e)
#define EVAL_NONE(N, n, e)
#define EVAL_DOT(N, n, e)
#define EVAL_FRAG(N, n, e)
#define EVAL_MMA(N, n, e)
#define EVAL_MMA_STORE(N, n, e)
#define EVAL_LOOP(N, n, e)
#define EVAL_END(N, n, e)
/* a class for which an instruction has no meaning; its function is never called */
#define NONE 0

#define SIGNED(si, ui, fl) si
#define UNSIGNED(si, ui, fl) ui
#define FLOATING(si, ui, fl) fl

#define SUFFIX I8
#define T int8_t
#define U uint32_t
#define BITS 8
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK SIGNED
#include "eval_dtype.inc"
#define SUFFIX I16
#define T int16_t
#define U uint32_t
#define BITS 16
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK SIGNED
#include "eval_dtype.inc"
#define SUFFIX I32
#define T int32_t
#define U uint32_t
#define BITS 32
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK SIGNED
#include "eval_dtype.inc"
#define SUFFIX I64
#define T int64_t
#define U uint64_t
#define BITS 64
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK SIGNED
#include "eval_dtype.inc"
#define SUFFIX BOOL
#define T uint8_t
#define U uint32_t
#define BITS 1
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)((v) & 1))
#define PICK UNSIGNED
#include "eval_dtype.inc"
#define SUFFIX U8
#define T uint8_t
#define U uint32_t
#define BITS 8
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK UNSIGNED
#include "eval_dtype.inc"
#define SUFFIX U16
#define T uint16_t
#define U uint32_t
#define BITS 16
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK UNSIGNED
#include "eval_dtype.inc"
#define SUFFIX U32
#define T uint32_t
#define U uint32_t
#define BITS 32
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK UNSIGNED
#include "eval_dtype.inc"
#define SUFFIX U64
#define T uint64_t
#define U uint64_t
#define BITS 64
#define IN(s) ((T)(s))
#define OUT(v) ((int64_t)(v))
#define PICK UNSIGNED
#include "eval_dtype.inc"
#define SUFFIX F16
#define T float
#define IN bits_f16
#define OUT f16_bits
#define PICK FLOATING
#include "eval_dtype.inc"
#define SUFFIX BF16
#define T float
#define IN bits_bf16
#define OUT bf16_bits
#define PICK FLOATING
#include "eval_dtype.inc"
#define SUFFIX F32
#define T float
#define IN bits_f32
#define OUT f32_bits
#define PICK FLOATING
#include "eval_dtype.inc"
#define SUFFIX F64
#define T double
#define IN bits_f64
#define OUT f64_bits
#define PICK FLOATING
#include "eval_dtype.inc"

static eval_fn *const *const tables[EAS_NDTYPES] = {
#define EAS_X(NAME, name, bytes, kind) [EAS_##NAME] = table_##NAME,
    EAS_DTYPE_TABLE(EAS_X)
#undef EAS_X
};

/* ---- conversions ---- */

static double slot_to_double(eas_dtype dt, int64_t s)
{
    switch (dt) {
    case EAS_F16: return bits_f16(s);
    case EAS_BF16: return bits_bf16(s);
    case EAS_F32: return bits_f32(s);
    case EAS_F64: return bits_f64(s);
    default: return 0;
    }
}

/* Wraps an integer to dt and extends it to the slot again. */
static int64_t wrap(eas_dtype dt, int64_t s)
{
    switch (dt) {
    case EAS_BOOL: return s != 0;
    case EAS_I8: return (int8_t)s;
    case EAS_I16: return (int16_t)s;
    case EAS_I32: return (int32_t)s;
    case EAS_U8: return (uint8_t)s;
    case EAS_U16: return (uint16_t)s;
    case EAS_U32: return (uint32_t)s;
    default: return s;
    }
}

static int64_t float_to_int(eas_dtype dt, double d)
{
    if (d != d)
        return 0;
    double lo = (double)dtype_min(dt), hi = (double)dtype_max(dt);
    if (d <= lo)
        return dtype_min(dt);
    if (d >= hi) /* for 64 bits hi rounds up to a power of two, which is out of range itself */
        return (int64_t)dtype_max(dt);
    return dtype_is_signed(dt) ? (int64_t)d : (int64_t)(uint64_t)d;
}

/* A 64-bit integer to a 16-bit float must round once: going through double would round twice. Halves have
 * at most 11 bits, so folding everything below bit 40 of a large magnitude into a sticky bit keeps the
 * rounding right. */
static double sticky_double(uint64_t m)
{
    if (m >> 53)
        m = (m & ~(uint64_t)0xfff) | ((m & 0xfff) != 0) << 12;
    return (double)m;
}

static int64_t int_to_float(eas_dtype from, eas_dtype to, int64_t s)
{
    bool neg = dtype_is_signed(from) && s < 0;
    uint64_t m = neg ? 0 - (uint64_t)s : (uint64_t)s;
    double h = neg ? -sticky_double(m) : sticky_double(m);
    switch (to) {
    case EAS_F16: return f64_to_f16(h);
    case EAS_BF16: return f64_to_bf16(h);
    case EAS_F32: return f32_bits(neg ? -(float)m : (float)m);
    default: return f64_bits(neg ? -(double)m : (double)m);
    }
}

static int64_t convert(eas_dtype from, eas_dtype to, int64_t s)
{
    if (dtype_is_float(from)) {
        double d = slot_to_double(from, s);
        if (to == EAS_BOOL)
            return d != 0;
        return dtype_is_float(to) ? ir_bits_from_double(to, d) : float_to_int(to, d);
    }
    return dtype_is_float(to) ? int_to_float(from, to, s) : wrap(to, s);
}

static int64_t reinterpret(eas_dtype to, int64_t s)
{
    static const uint8_t as_int[EAS_NDTYPES] = {
        [EAS_F16] = EAS_U16, [EAS_BF16] = EAS_U16, [EAS_F32] = EAS_U32, [EAS_F64] = EAS_U64};
    return wrap(dtype_is_float(to) ? (eas_dtype)as_int[to] : to, s);
}

bool ir_eval_lanes(uint16_t op, eas_dtype dt, eas_dtype to, int64_t n, const int64_t *a, const int64_t *b,
                   const int64_t *c, int64_t *r)
{
    switch (op) {
    case IR_WHERE:
        for (int64_t i = 0; i < n; i++)
            r[i] = a[i] ? b[i] : c[i];
        return true;
    case IR_CAST:
        for (int64_t i = 0; i < n; i++)
            r[i] = dt == to ? a[i] : convert(dt, to, a[i]);
        return true;
    case IR_BITCAST:
        for (int64_t i = 0; i < n; i++)
            r[i] = reinterpret(to, a[i]);
        return true;
    default: {
        eval_fn *f = op < IR_NOPS ? tables[dt][op] : NULL;
        if (!f)
            return false;
        f(n, a, b, c, r);
        return true;
    }
    }
}

bool ir_eval(uint16_t op, eas_dtype dt, eas_dtype to, const int64_t *args, int64_t *out)
{
    int n = ir_rows[op].nargs;
    return ir_eval_lanes(op, dt, to, 1, args, n > 1 ? args + 1 : args, n > 2 ? args + 2 : args, out);
}
