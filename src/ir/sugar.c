/* sugar.c: the public builder: Python's arithmetic over the raw one.
 *
 * Literals are weak: they take the dtype of what they meet. Integers that Python hands over at run time are
 * i64 and promote like one; floats are weak. Shapes broadcast as NumPy's. Integer `div` is true division in
 * f32; `floordiv` and `mod` round as Python's do, for floats too (spelled out here in terms of `trem`).
 */
#include "sugar.h"

#include <math.h>
#include <stdio.h>

/* Is v a number with a dtype of its own, as a NumPy scalar is? It promotes as that dtype does, and must fit
 * the dtype that it is combined with, as any number must. */
static bool is_number(const eas_builder *b, uint32_t v)
{
    const ir_insn *d = b->ir->vals[v].weak == IR_NUMBER ? ir_def(b->ir, v) : NULL;
    return d && d->op == IR_CONST;
}

bool sugar_is_literal(const eas_builder *b, uint32_t v)
{
    const ir_insn *d = ir_def(b->ir, v);
    return is_weak(b, v) && d && d->op == IR_CONST;
}

/* How a message calls v: parameters by name, other values by type. */
const char *sugar_describe(const eas_builder *b, uint32_t v, char buf[160])
{
    str s = {0};
    ir_type t = type_of(b, v);
    if (v <= (uint32_t)b->ir->nparams)
        str_add(&s, "\"%s\" (%s ", b->ir->params[v - 1].name, t.kind == IR_BUF ? "a buffer of" : "a scalar,");
    else if (t.kind == IR_TG)
        str_add(&s, "a threadgroup array of ");
    if (t.kind == IR_FRAG)
        str_add(&s, "a simdgroup matrix");
    else if (t.kind == IR_VAL)
        ir_type_print(&s, t);
    else
        str_add(&s, "%s", eas_dtype_name(t.dtype));
    if (v <= (uint32_t)b->ir->nparams)
        str_add(&s, ")");
    snprintf(buf, 160, "%s", s.oom ? "?" : s.at);
    str_free(&s);
    return buf;
}

bool sugar_want_value(eas_builder *b, const char *what, uint32_t v)
{
    char d[160];
    if (b->status)
        return false;
    if (!v || v >= b->ir->nvals)
        return irb_fail(b, EAS_ERR_VALUE, "%s: not a value of this kernel", what), false;
    if (type_of(b, v).kind != IR_VAL)
        return irb_fail(b, EAS_ERR_TYPE, "%s: %s is not a value; read it with load", what,
                        sugar_describe(b, v, d)),
               false;
    return true;
}

bool sugar_want_buffer(eas_builder *b, const char *what, uint32_t v)
{
    char d[160];
    if (b->status)
        return false;
    if (!v || v >= b->ir->nvals)
        return irb_fail(b, EAS_ERR_VALUE, "%s: not a value of this kernel", what), false;
    if (type_of(b, v).kind != IR_BUF && type_of(b, v).kind != IR_TG)
        return irb_fail(b, EAS_ERR_TYPE, "%s: expected a buffer, got %s", what, sugar_describe(b, v, d)),
               false;
    return true;
}

/* ---- dtypes ---- */

static eas_dtype int_of(int bits, bool sign)
{
    for (int i = EAS_I8; i <= EAS_U64; i++)
        if (dtype_bits((eas_dtype)i) == bits && dtype_is_signed((eas_dtype)i) == sign)
            return (eas_dtype)i;
    return EAS_I64;
}

/* The dtype that holds both; false where none does. */
static bool promote(eas_dtype x, eas_dtype y, eas_dtype *out)
{
    if (x == y || y == EAS_BOOL)
        return *out = x, true;
    if (x == EAS_BOOL)
        return *out = y, true;
    if (dtype_is_float(x) && dtype_is_float(y)) {
        *out = dtype_bits(x) == dtype_bits(y) ? EAS_F32 : dtype_bits(x) > dtype_bits(y) ? x : y;
        return true;
    }
    if (dtype_is_float(x) || dtype_is_float(y))
        return *out = dtype_is_float(x) ? x : y, true;
    if (dtype_is_signed(x) == dtype_is_signed(y))
        return *out = dtype_bits(x) > dtype_bits(y) ? x : y, true;
    eas_dtype s = dtype_is_signed(x) ? x : y, u = dtype_is_signed(x) ? y : x;
    if (dtype_bits(s) > dtype_bits(u))
        return *out = s, true;
    if (dtype_bits(u) == 64)
        return false;
    return *out = int_of(2 * dtype_bits(u), true), true;
}

static int64_t literal_bits(const eas_builder *b, uint32_t v, eas_dtype to)
{
    const ir_insn *d = ir_def(b->ir, v);
    int64_t out = 0;
    ir_eval(IR_CAST, type_of(b, v).dtype, to, &d->imm, &out);
    return out;
}

/* v as dtype dt. A literal becomes a new literal of that dtype, rounded once. */
uint32_t sugar_adapt(eas_builder *b, uint32_t v, eas_dtype dt)
{
    if (b->status)
        return 0;
    if (type_of(b, v).dtype == dt)
        return v;
    if (sugar_is_literal(b, v))
        return irb_typed(b, IR_CONST, ir_scalar(dt), literal_bits(b, v, dt));
    return irb_to(b, IR_CAST, ir_with_dtype(type_of(b, v), dt), v);
}

bool sugar_weak_float(const eas_builder *b, uint32_t v)
{
    return is_weak(b, v) && dtype_is_float(type_of(b, v).dtype);
}
bool sugar_weak_int(const eas_builder *b, uint32_t v)
{
    return sugar_is_literal(b, v) && type_of(b, v).dtype == EAS_I64;
}

/* One rule wherever a Python number meets a dtype: it must fit. Casts are explicit. */
bool sugar_literal_fits(eas_builder *b, const char *what, uint32_t v, eas_dtype dt)
{
    if (!sugar_is_literal(b, v) && !is_number(b, v))
        return true;
    const eas_dtype from = type_of(b, v).dtype;
    const int64_t bits = ir_def(b->ir, v)->imm;
    const bool real = dtype_is_float(from);
    if (is_number(b, v) &&
        (dt == EAS_BOOL || from == EAS_BOOL || (from == EAS_U64 && bits < 0 && dt == EAS_U64)))
        return true;
    const double d = real ? ir_bits_to_double(from, bits) : 0;
    if (eas_dtype_holds(dt, real, bits, d))
        return true;
    char number[40];
    real ? snprintf(number, sizeof number, "%g", d)
         : snprintf(number, sizeof number, "%lld", (long long)bits);
    return irb_fail(b, EAS_ERR_VALUE,
                    "%s: the number %s does not fit %s, the dtype it meets: cast what it meets to a wider "
                    "one first, or say mk.cast(%s, mk.%s)",
                    what, number, eas_dtype_name(dt), number, eas_dtype_name(dt)),
           false;
}

/* Does a number with a dtype fit the integers among the others? A wider sum of narrow ones would be cut
 * off where it is stored. */
static bool number_meets(eas_builder *b, const char *what, const uint32_t *v, int n, int at)
{
    for (int i = 0; i < n; i++) {
        const eas_dtype dt = type_of(b, v[i]).dtype;
        if (i != at && dtype_is_int(dt) && dtype_is_int(type_of(b, v[at]).dtype) &&
            !sugar_is_literal(b, v[i]) && !is_number(b, v[i]) && !sugar_literal_fits(b, what, v[at], dt))
            return false;
    }
    return true;
}

/* The dtype in which `what` is computed on v[0..n): strong dtypes promote, then literals adapt. */
bool sugar_common_dtype(eas_builder *b, const char *what, const uint32_t *v, int n, eas_dtype *out)
{
    bool have = false, any_float = false, any_int = false;
    eas_dtype dt = EAS_BOOL;
    for (int i = 0; i < n; i++) {
        eas_dtype x = type_of(b, v[i]).dtype;
        if (sugar_weak_float(b, v[i])) {
            any_float = true;
        } else if (sugar_weak_int(b, v[i])) {
            any_int = true;
        } else if (!have) {
            dt = x;
            have = true;
        } else if (!promote(dt, x, &dt)) {
            return irb_fail(b, EAS_ERR_TYPE, "%s: %s and %s have no common dtype; cast one of them", what,
                            eas_dtype_name(dt), eas_dtype_name(x)),
                   false;
        }
    }
    if (any_float && !(have && dtype_is_float(dt)))
        dt = EAS_F32;
    else if (any_int && (!have || dt == EAS_BOOL))
        dt = EAS_I64;
    for (int i = 0; i < n; i++)
        if (is_number(b, v[i]) ? !number_meets(b, what, v, n, i) : !sugar_literal_fits(b, what, v[i], dt))
            return false;
    *out = dt;
    return true;
}

/* ---- shapes ---- */

bool sugar_common_shape(eas_builder *b, const char *what, const uint32_t *v, int n, ir_type *out)
{
    ir_type t = {0};
    for (int i = 0; i < n; i++)
        if (type_of(b, v[i]).rank > t.rank)
            t.rank = type_of(b, v[i]).rank;
    for (int k = 0; k < t.rank; k++)
        t.dim[k] = 1;
    for (int i = 0; i < n; i++) {
        ir_type x = type_of(b, v[i]);
        for (int k = 0; k < x.rank; k++) {
            int32_t have = t.dim[t.rank - 1 - k], d = x.dim[x.rank - 1 - k];
            if (have != d && have != 1 && d != 1) {
                char p[160], q[160];
                return irb_fail(b, EAS_ERR_VALUE, "%s: block shapes clash: %s and %s", what,
                                sugar_describe(b, v[0], p), sugar_describe(b, v[i], q)),
                       false;
            }
            if (d != 1)
                t.dim[t.rank - 1 - k] = d;
        }
    }
    *out = t;
    return true;
}

uint32_t sugar_spread(eas_builder *b, uint32_t v, ir_type shape)
{
    return b->status ? 0 : irb_to(b, IR_BROADCAST, ir_with_dtype(shape, type_of(b, v).dtype), v);
}

bool sugar_spread_all(eas_builder *b, const char *what, uint32_t *v, int n)
{
    ir_type t;
    if (b->status || !sugar_common_shape(b, what, v, n, &t))
        return false;
    for (int i = 0; i < n; i++)
        v[i] = sugar_spread(b, v[i], t);
    return !b->status;
}

/* ---- element-wise operations ---- */

static uint32_t konst(eas_builder *b, ir_type like, double d)
{
    return irb_const(b, like, ir_bits_from_double(like.dtype, d));
}

static uint32_t apply1(eas_builder *b, uint16_t op, uint32_t x) { return irb_op(b, op, x, 0, 0); }
static uint32_t apply2(eas_builder *b, uint16_t op, uint32_t x, uint32_t y) { return irb_op(b, op, x, y, 0); }

/* A zero with the sign of x. */
static uint32_t signed_zero(eas_builder *b, uint32_t x)
{
    ir_type t = type_of(b, x), u = ir_with_dtype(t, int_of(dtype_bits(t.dtype), false));
    uint32_t sign = irb_const(b, u, (int64_t)((uint64_t)1 << (dtype_bits(t.dtype) - 1)));
    return irb_to(b, IR_BITCAST, t, apply2(b, IR_AND, irb_to(b, IR_BITCAST, u, x), sign));
}

/* Python's x % y for floats: the remainder takes the sign of y; a zero takes it too. */
static uint32_t float_mod(eas_builder *b, uint32_t x, uint32_t y)
{
    ir_type t = type_of(b, x);
    uint32_t r = apply2(b, IR_TREM, x, y), zero = konst(b, t, 0);
    uint32_t differ = apply2(b, IR_NE, apply2(b, IR_LT, y, zero), apply2(b, IR_LT, r, zero));
    uint32_t m = irb_op(b, IR_WHERE, differ, apply2(b, IR_ADD, r, y), r);
    return irb_op(b, IR_WHERE, apply2(b, IR_EQ, r, zero), signed_zero(b, y), m);
}

/* Python's x // y for floats, as CPython and NumPy compute it: with the truncated remainder r, (x - r) /
 * y, less 1 where r and y differ in sign (which holds for an infinite y too), snapped to the integer it is
 * within rounding; x / 0 stays what division gives. */
static uint32_t float_floordiv(eas_builder *b, uint32_t x, uint32_t y)
{
    ir_type t = type_of(b, x);
    uint32_t r = apply2(b, IR_TREM, x, y), zero = konst(b, t, 0), q0 = apply2(b, IR_DIV, x, y);
    uint32_t differ = apply2(b, IR_NE, apply2(b, IR_LT, y, zero), apply2(b, IR_LT, r, zero));
    differ = apply2(b, IR_AND, differ, apply2(b, IR_NE, r, zero));
    uint32_t q = apply2(b, IR_DIV, apply2(b, IR_SUB, x, r), y);
    q = irb_op(b, IR_WHERE, differ, apply2(b, IR_SUB, q, konst(b, t, 1)), q);
    uint32_t f = apply1(b, IR_FLOOR, q);
    uint32_t up = apply2(b, IR_GT, apply2(b, IR_SUB, q, f), konst(b, t, 0.5));
    f = irb_op(b, IR_WHERE, up, apply2(b, IR_ADD, f, konst(b, t, 1)), f);
    f = irb_op(b, IR_WHERE, apply2(b, IR_EQ, q, zero), signed_zero(b, q0), f);
    return irb_op(b, IR_WHERE, apply2(b, IR_EQ, y, zero), q0, f);
}

static uint32_t float_divmod(eas_builder *b, uint16_t op, uint32_t x, uint32_t y)
{
    eas_dtype dt = type_of(b, x).dtype;
    if (dt == EAS_F16 || dt == EAS_BF16) {
        ir_type wide = ir_with_dtype(type_of(b, x), EAS_F32), narrow = type_of(b, x);
        uint32_t r = float_divmod(b, op, irb_to(b, IR_CAST, wide, x), irb_to(b, IR_CAST, wide, y));
        return b->status ? 0 : irb_to(b, IR_CAST, narrow, r);
    }
    return op == IR_MOD ? float_mod(b, x, y) : float_floordiv(b, x, y);
}

/* The dtype op computes in, given the common one: integers become f32 where only floats will do, bool
 * becomes i64. */
static eas_dtype op_dtype(uint16_t op, eas_dtype dt)
{
    uint8_t classes = ir_rows[op].classes;
    if (dt == EAS_BOOL && !(classes & IR_B))
        dt = EAS_I64;
    if (dtype_is_int(dt) && !(classes & IR_I))
        dt = EAS_F32;
    return dt;
}

/* Rounding functions leave integers as they are; this is tested before op_dtype turns integers into
 * floats. */
static bool identity_on_ints(uint16_t op)
{
    return op == IR_FLOOR || op == IR_CEIL || op == IR_TRUNC || op == IR_ROUND;
}

static uint32_t build_fma(eas_builder *b, uint32_t *v)
{
    if (dtype_is_float(type_of(b, v[0]).dtype))
        return irb_op(b, IR_FMA, v[0], v[1], v[2]);
    return apply2(b, IR_ADD, apply2(b, IR_MUL, v[0], v[1]), v[2]);
}

bool sugar_as_condition(eas_builder *b, uint32_t *v)
{
    if (type_of(b, *v).dtype != EAS_BOOL)
        *v = sugar_adapt(b, *v, EAS_BOOL);
    return !b->status;
}

static uint32_t mark_weak(eas_builder *b, uint32_t r, bool weak)
{
    if (weak && alive(b, r) && dtype_is_float(type_of(b, r).dtype))
        b->ir->vals[r].weak = 1;
    return r;
}

static uint32_t apply_where(eas_builder *b, uint32_t *v)
{
    eas_dtype dt;
    if (!sugar_as_condition(b, &v[0]) || !sugar_common_dtype(b, "where", v + 1, 2, &dt))
        return 0;
    bool weak = is_weak(b, v[1]) && is_weak(b, v[2]);
    v[1] = sugar_adapt(b, v[1], dt);
    v[2] = sugar_adapt(b, v[2], dt);
    return sugar_spread_all(b, "where", v, 3) ? mark_weak(b, irb_op(b, IR_WHERE, v[0], v[1], v[2]), weak) : 0;
}

static uint32_t apply_float_test(eas_builder *b, uint16_t op, uint32_t x)
{
    if (dtype_is_float(type_of(b, x).dtype))
        return apply1(b, op, is_weak(b, x) ? sugar_adapt(b, x, EAS_F32) : x);
    return irb_const(b, ir_with_dtype(type_of(b, x), EAS_BOOL), 0);
}

eas_value eas_builder_apply(eas_builder *b, eas_op op, eas_value x, eas_value y, eas_value z)
{
    NEED(b, 0);
    uint32_t v[3] = {x, y, z};
    eas_dtype dt;
    if (b->status)
        return 0;
    if (op == 0 || op >= IR_NOPS || ir_rows[op].rule < IR_RULE_SAME || ir_rows[op].rule > IR_RULE_WHERE)
        return irb_fail(b, EAS_ERR_VALUE, "%s is not an element-wise operation", eas_op_name(op)), 0;
    const char *name = ir_rows[op].name;
    int n = ir_rows[op].nargs;
    bool weak = true;
    for (int i = 0; i < n; i++) {
        if (!sugar_want_value(b, name, v[i]))
            return 0;
        weak = weak && is_weak(b, v[i]);
    }
    if (op == IR_WHERE)
        return apply_where(b, v);
    if (op == IR_ISNAN || op == IR_ISINF)
        return apply_float_test(b, op, x);
    if (!sugar_common_dtype(b, name, v, n, &dt))
        return 0;
    if (identity_on_ints(op) && dtype_is_int(dt))
        return sugar_adapt(b, x, dt);
    if ((ir_rows[op].classes & (IR_B | IR_I)) && !(ir_rows[op].classes & IR_F) && dtype_is_float(dt) &&
        op != IR_FLOORDIV && op != IR_MOD)
        return irb_fail(b, EAS_ERR_TYPE, "%s: expected integers, got %s", name, eas_dtype_name(dt)), 0;
    if (op == IR_FMA ? dt == EAS_BOOL : !((op == IR_FLOORDIV || op == IR_MOD) && dtype_is_float(dt)))
        dt = op_dtype(op, dt);
    if (op == IR_FMA && dt == EAS_BOOL)
        dt = EAS_I64;
    for (int i = 0; i < n; i++)
        v[i] = sugar_adapt(b, v[i], dt);
    if (!sugar_spread_all(b, name, v, n))
        return 0;
    uint32_t r = op == IR_FMA                                              ? build_fma(b, v)
               : (op == IR_FLOORDIV || op == IR_MOD) && dtype_is_float(dt) ? float_divmod(b, op, v[0], v[1])
                                                                           : irb_op(b, op, v[0], v[1], v[2]);
    return mark_weak(b, r, weak);
}

/* The quotient plus 1 where there is a remainder: negating x, as in -(-x // y), would wrap for unsigned
 * integers and the least signed one. */
static uint32_t int_cdiv(eas_builder *b, uint32_t x, uint32_t y)
{
    uint32_t q = apply2(b, IR_FLOORDIV, x, y), r = apply2(b, IR_MOD, x, y);
    if (b->status)
        return 0;
    uint32_t more = apply2(b, IR_NE, r, irb_const(b, type_of(b, r), 0));
    return b->status ? 0 : apply2(b, IR_ADD, q, irb_to(b, IR_CAST, type_of(b, q), more));
}

eas_value eas_builder_cdiv(eas_builder *b, eas_value x, eas_value y)
{
    NEED(b, 0);
    uint32_t v[2] = {x, y};
    eas_dtype dt;
    if (!sugar_want_value(b, "cdiv", x) || !sugar_want_value(b, "cdiv", y) ||
        !sugar_common_dtype(b, "cdiv", v, 2, &dt))
        return 0;
    if (dtype_is_float(dt))
        return eas_builder_apply(
            b, IR_NEG, eas_builder_apply(b, IR_FLOORDIV, eas_builder_apply(b, IR_NEG, x, 0, 0), y, 0), 0, 0);
    dt = dt == EAS_BOOL ? EAS_I64 : dt;
    v[0] = sugar_adapt(b, x, dt);
    v[1] = sugar_adapt(b, y, dt);
    return sugar_spread_all(b, "cdiv", v, 2) ? int_cdiv(b, v[0], v[1]) : 0;
}

eas_value eas_builder_cast(eas_builder *b, eas_value x, eas_dtype dt)
{
    NEED(b, 0);
    if ((unsigned)dt >= EAS_NDTYPES)
        return irb_fail(b, EAS_ERR_VALUE, "cast: no such dtype"), 0;
    if (!sugar_want_value(b, "cast", x))
        return 0;
    if (b->ir->vals[x].weak && type_of(b, x).dtype == dt) { /* an explicit cast makes it strong */
        const ir_insn *d = ir_def(b->ir, x);
        ir_type t = type_of(b, x);
        return d && d->op == IR_CONST ? irb_typed(b, IR_CONST, t, d->imm)
                                      : irb_insn(b, IR_CAST, &x, 1, 0, 1, &t);
    }
    return sugar_adapt(b, x, dt);
}

eas_value eas_builder_convert(eas_builder *b, const char *what, eas_value x, eas_dtype dt)
{
    NEED(b, 0);
    if ((unsigned)dt < EAS_NDTYPES && sugar_want_value(b, what, x) && !sugar_literal_fits(b, what, x, dt))
        return 0;
    return eas_builder_cast(b, x, dt);
}

eas_value eas_builder_bitcast(eas_builder *b, eas_value x, eas_dtype dt)
{
    NEED(b, 0);
    if (!sugar_want_value(b, "bitcast", x))
        return 0;
    if (sugar_weak_float(b, x))
        x = sugar_adapt(b, x, EAS_F32);
    return irb_to(b, IR_BITCAST, ir_with_dtype(type_of(b, x), dt), x);
}

static bool shape_type(eas_builder *b, const char *what, int rank, const int64_t *shape, eas_dtype dt,
                       ir_type *t)
{
    *t = ir_scalar(dt);
    if (rank < 0 || rank > IR_MAX_RANK)
        return irb_fail(b, EAS_ERR_VALUE, "%s: a block has at most %d dimensions, not %d", what,
                        (int)IR_MAX_RANK, rank),
               false;
    t->rank = (uint8_t)rank;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1 || shape[i] > IR_MAX_DIM)
            return irb_fail(b, EAS_ERR_VALUE, "%s: dimension %d is %lld; it must be between 1 and %d", what,
                            i, (long long)shape[i], (int)IR_MAX_DIM),
                   false;
        t->dim[i] = (int32_t)shape[i];
    }
    return true;
}

uint32_t irb_strong(eas_builder *b, uint32_t x)
{
    return sugar_weak_float(b, x) && type_of(b, x).dtype == EAS_F64 ? sugar_adapt(b, x, EAS_F32) : x;
}

eas_value eas_builder_broadcast(eas_builder *b, eas_value x, int rank, const int64_t *shape)
{
    NEED(b, 0);
    ir_type t;
    if (!sugar_want_value(b, "broadcast", x))
        return 0;
    x = irb_strong(b, x);
    return !b->status && shape_type(b, "broadcast", rank, shape, type_of(b, x).dtype, &t)
             ? irb_to(b, IR_BROADCAST, t, x)
             : 0;
}

eas_value eas_builder_reshape(eas_builder *b, eas_value x, int rank, const int64_t *shape)
{
    NEED(b, 0);
    ir_type t;
    if (!sugar_want_value(b, "reshape", x))
        return 0;
    x = irb_strong(b, x);
    return !b->status && shape_type(b, "reshape", rank, shape, type_of(b, x).dtype, &t)
             ? irb_to(b, IR_RESHAPE, t, x)
             : 0;
}

/* ---- parameters, literals, identity ---- */

eas_value eas_builder_param_buffer(eas_builder *b, const char *name, eas_dtype elem)
{
    NEED(b, 0);
    return irb_param(b, name, (ir_type){.dtype = (uint8_t)elem, .kind = IR_BUF}, false);
}

eas_value eas_builder_param_scalar(eas_builder *b, const char *name, eas_dtype dt, int weak)
{
    NEED(b, 0);
    return irb_param(b, name, ir_scalar(dt), weak != 0);
}

static uint32_t literal(eas_builder *b, eas_dtype dt, int64_t bits, uint8_t weak)
{
    uint32_t v = irb_typed(b, IR_CONST, ir_scalar(dt), bits);
    if (v)
        b->ir->vals[v].weak = weak;
    return v;
}

eas_value eas_builder_const_int(eas_builder *b, int64_t v)
{
    NEED(b, 0);
    return literal(b, EAS_I64, v, IR_WEAK);
}
eas_value eas_builder_const_float(eas_builder *b, double v)
{
    NEED(b, 0);
    return literal(b, EAS_F64, ir_bits_from_double(EAS_F64, v), IR_WEAK);
}
eas_value eas_builder_const_bool(eas_builder *b, int v)
{
    NEED(b, 0);
    return literal(b, EAS_BOOL, v != 0, IR_STRONG);
}

static uint32_t typed(eas_builder *b, eas_dtype dt, double f, int64_t i, uint8_t weak)
{
    if (dtype_is_float(dt))
        return literal(b, dt, ir_bits_from_double(dt, f), weak);
    int64_t out = 0;
    ir_eval(IR_CAST, EAS_I64, dt, &i, &out);
    return literal(b, dt, out, weak);
}

eas_value eas_builder_const_typed(eas_builder *b, eas_dtype dt, double f, int64_t i)
{
    NEED(b, 0);
    return typed(b, dt, f, i, IR_STRONG);
}

eas_value eas_builder_const_number(eas_builder *b, eas_dtype dt, double f, int64_t i)
{
    NEED(b, 0);
    return typed(b, dt, f, i, IR_NUMBER);
}

static uint32_t ident(eas_builder *b, uint16_t op, int64_t imm)
{
    return irb_typed(b, op, ir_scalar(EAS_I64), imm);
}

eas_value eas_builder_program_id(eas_builder *b, int axis)
{
    NEED(b, 0);
    return ident(b, IR_PROGRAM_ID, axis);
}
eas_value eas_builder_num_programs(eas_builder *b, int axis)
{
    NEED(b, 0);
    return ident(b, IR_NUM_PROGRAMS, axis);
}
eas_value eas_builder_local_id(eas_builder *b, int axis)
{
    NEED(b, 0);
    return ident(b, IR_LOCAL_ID, axis);
}
eas_value eas_builder_lane_id(eas_builder *b)
{
    NEED(b, 0);
    return ident(b, IR_LANE_ID, 0);
}
eas_value eas_builder_sg_id(eas_builder *b)
{
    NEED(b, 0);
    return ident(b, IR_SG_ID, 0);
}

eas_value eas_builder_arange(eas_builder *b, int64_t start, int64_t size)
{
    NEED(b, 0);
    ir_type t;
    if (b->status || !shape_type(b, "arange", 1, &size, EAS_I64, &t))
        return 0;
    uint32_t v = irb_typed(b, IR_ARANGE, t, start);
    irb_note_block(b, v);
    return v;
}

eas_value eas_builder_tid(eas_builder *b, int64_t start, int64_t size)
{
    NEED(b, 0);
    ir_type t;
    if (b->status || !shape_type(b, "tid", 1, &size, EAS_I64, &t))
        return 0;
    uint32_t v = ident(b, IR_THREAD_ID, size);
    return start && v ? apply2(b, IR_ADD, v, irb_typed(b, IR_CONST, ir_scalar(EAS_I64), start)) : v;
}

/* ---- properties of values ---- */

eas_dtype eas_value_dtype(const eas_builder *b, eas_value v)
{
    NEED(b, 0);
    return alive(b, v) ? type_of(b, v).dtype : EAS_BOOL;
}
int eas_value_is_buffer(const eas_builder *b, eas_value v)
{
    NEED(b, 0);
    return alive(b, v) && (type_of(b, v).kind == IR_BUF || type_of(b, v).kind == IR_TG);
}
int eas_value_is_weak(const eas_builder *b, eas_value v)
{
    NEED(b, 0);
    return alive(b, v) && is_weak(b, v);
}

int eas_value_shape(const eas_builder *b, eas_value v, int64_t shape[4])
{
    NEED(b, 0);
    if (!alive(b, v))
        return 0;
    ir_type t = type_of(b, v);
    for (int i = 0; i < 4; i++)
        shape[i] = t.dim[i];
    return t.rank;
}

int eas_value_const_int(const eas_builder *b, eas_value v, int64_t *out)
{
    NEED(b, 0);
    return alive(b, v) && type_of(b, v).kind == IR_VAL && !dtype_is_float(type_of(b, v).dtype) &&
           ir_const_of(b->ir, v, out);
}

eas_status eas_builder_finish(eas_builder *b, eas_ir **out)
{
    NEED(b, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    eas_ir *raw;
    *out = NULL;
    eas_status st = irb_finish(b, &raw);
    if (st)
        return st;
    st = ir_simplify(raw, out);
    eas_ir_release(raw);
    return st;
}
