/* sugar.c: the public builder: Python's arithmetic over the raw one.
 *
 * Literals are weak: they take the dtype of what they meet. Integers that Python hands over at run time are i64 and promote
 * like one; floats are weak. Shapes broadcast as NumPy's. Integer `div` is true division in f32; `floordiv` and
 * `mod` round as Python's do, for floats too (spelled out here in terms of `trem`).
 */
#include "ir.h"

#include <math.h>
#include <stdio.h>

static ir_type type_of(const eas_builder *b, uint32_t v) { return b->ir->vals[v].type; }
static bool is_weak(const eas_builder *b, uint32_t v) { return b->ir->vals[v].weak == IR_WEAK; }
/* A number that has a dtype: NumPy's. It promotes as that dtype does, and must fit what it meets as any number. */
static bool is_number(const eas_builder *b, uint32_t v)
{
    const ir_insn *d = b->ir->vals[v].weak == IR_NUMBER ? ir_def(b->ir, v) : NULL;
    return d && d->op == IR_CONST;
}

static bool is_literal(const eas_builder *b, uint32_t v)
{
    const ir_insn *d = ir_def(b->ir, v);
    return is_weak(b, v) && d && d->op == IR_CONST;
}

/* What a message calls v: a parameter by its name, the rest by type. */
static const char *describe(const eas_builder *b, uint32_t v, char buf[160])
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

static bool alive(const eas_builder *b, uint32_t v) { return !b->status && v && v < b->ir->nvals; }

static bool want_value(eas_builder *b, const char *what, uint32_t v)
{
    char d[160];
    if (b->status)
        return false;
    if (!v || v >= b->ir->nvals)
        return irb_fail(b, EAS_ERR_VALUE, "%s: not a value of this kernel", what), false;
    if (type_of(b, v).kind != IR_VAL)
        return irb_fail(b, EAS_ERR_TYPE, "%s: %s is not a value; read it with load", what, describe(b, v, d)), false;
    return true;
}

static bool want_buffer(eas_builder *b, const char *what, uint32_t v)
{
    char d[160];
    if (b->status)
        return false;
    if (!v || v >= b->ir->nvals)
        return irb_fail(b, EAS_ERR_VALUE, "%s: not a value of this kernel", what), false;
    if (type_of(b, v).kind != IR_BUF && type_of(b, v).kind != IR_TG)
        return irb_fail(b, EAS_ERR_TYPE, "%s: expected a buffer, got %s", what, describe(b, v, d)), false;
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
static uint32_t adapt(eas_builder *b, uint32_t v, eas_dtype dt)
{
    if (b->status)
        return 0;
    if (type_of(b, v).dtype == dt)
        return v;
    if (is_literal(b, v))
        return irb_typed(b, IR_CONST, ir_scalar(dt), literal_bits(b, v, dt));
    return irb_to(b, IR_CAST, ir_with_dtype(type_of(b, v), dt), v);
}

static bool weak_float(const eas_builder *b, uint32_t v) { return is_weak(b, v) && dtype_is_float(type_of(b, v).dtype); }
static bool weak_int(const eas_builder *b, uint32_t v) { return is_literal(b, v) && type_of(b, v).dtype == EAS_I64; }

/* One rule wherever a Python number meets a dtype: it must fit. Casts are explicit. */
static bool literal_fits(eas_builder *b, const char *what, uint32_t v, eas_dtype dt)
{
    if (!is_literal(b, v) && !is_number(b, v))
        return true;
    const eas_dtype from = type_of(b, v).dtype;
    const int64_t bits = ir_def(b->ir, v)->imm;
    const bool real = dtype_is_float(from);
    if (is_number(b, v) && (dt == EAS_BOOL || from == EAS_BOOL || (from == EAS_U64 && bits < 0 && dt == EAS_U64)))
        return true;
    const double d = real ? ir_bits_to_double(from, bits) : 0;
    if (eas_dtype_holds(dt, real, bits, d))
        return true;
    char number[40];
    real ? snprintf(number, sizeof number, "%g", d) : snprintf(number, sizeof number, "%lld", (long long)bits);
    return irb_fail(b, EAS_ERR_VALUE,
                    "%s: the number %s does not fit %s, the dtype it meets: cast what it meets to a wider one first, or say mk.cast(%s, mk.%s)", what,
                    number, eas_dtype_name(dt), number, eas_dtype_name(dt)),
           false;
}

/* Does a number with a dtype fit the integers among the others? A wider sum of narrow ones would be cut off where it is stored. */
static bool number_meets(eas_builder *b, const char *what, const uint32_t *v, int n, int at)
{
    for (int i = 0; i < n; i++) {
        const eas_dtype dt = type_of(b, v[i]).dtype;
        if (i != at && dtype_is_int(dt) && dtype_is_int(type_of(b, v[at]).dtype) && !is_literal(b, v[i]) && !is_number(b, v[i]) &&
            !literal_fits(b, what, v[at], dt))
            return false;
    }
    return true;
}

/* The dtype in which `what` is computed on v[0..n): strong dtypes promote, then literals adapt. */
static bool common_dtype(eas_builder *b, const char *what, const uint32_t *v, int n, eas_dtype *out)
{
    bool have = false, any_float = false, any_int = false;
    eas_dtype dt = EAS_BOOL;
    for (int i = 0; i < n; i++) {
        eas_dtype x = type_of(b, v[i]).dtype;
        if (weak_float(b, v[i])) {
            any_float = true;
        } else if (weak_int(b, v[i])) {
            any_int = true;
        } else if (!have) {
            dt = x;
            have = true;
        } else if (!promote(dt, x, &dt)) {
            return irb_fail(b, EAS_ERR_TYPE, "%s: %s and %s have no common dtype; cast one of them", what, eas_dtype_name(dt), eas_dtype_name(x)),
                   false;
        }
    }
    if (any_float && !(have && dtype_is_float(dt)))
        dt = EAS_F32;
    else if (any_int && (!have || dt == EAS_BOOL))
        dt = EAS_I64;
    for (int i = 0; i < n; i++)
        if (is_number(b, v[i]) ? !number_meets(b, what, v, n, i) : !literal_fits(b, what, v[i], dt))
            return false;
    *out = dt;
    return true;
}

/* ---- shapes ---- */

static bool common_shape(eas_builder *b, const char *what, const uint32_t *v, int n, ir_type *out)
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
                return irb_fail(b, EAS_ERR_VALUE, "%s: block shapes clash: %s and %s", what, describe(b, v[0], p), describe(b, v[i], q)), false;
            }
            if (d != 1)
                t.dim[t.rank - 1 - k] = d;
        }
    }
    *out = t;
    return true;
}

static uint32_t spread(eas_builder *b, uint32_t v, ir_type shape)
{
    return b->status ? 0 : irb_to(b, IR_BROADCAST, ir_with_dtype(shape, type_of(b, v).dtype), v);
}

static bool spread_all(eas_builder *b, const char *what, uint32_t *v, int n)
{
    ir_type t;
    if (b->status || !common_shape(b, what, v, n, &t))
        return false;
    for (int i = 0; i < n; i++)
        v[i] = spread(b, v[i], t);
    return !b->status;
}

/* ---- element-wise operations ---- */

static uint32_t konst(eas_builder *b, ir_type like, double d) { return irb_const(b, like, ir_bits_from_double(like.dtype, d)); }

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

/* Python's x // y for floats, as CPython and NumPy compute it: with the truncated remainder r, (x - r) / y, less 1 where r and y differ in sign
 * (which holds for an infinite y too), snapped to the integer it is within rounding; x / 0 stays what division gives. */
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

/* The dtype op computes in, given the common one: integers become f32 where only floats will do, bool becomes i64. */
static eas_dtype op_dtype(uint16_t op, eas_dtype dt)
{
    uint8_t classes = ir_rows[op].classes;
    if (dt == EAS_BOOL && !(classes & IR_B))
        dt = EAS_I64;
    if (dtype_is_int(dt) && !(classes & IR_I))
        dt = EAS_F32;
    return dt;
}

/* Rounding functions leave integers as they are; ask for them before op_dtype makes floats of them. */
static bool identity_on_ints(uint16_t op) { return op == IR_FLOOR || op == IR_CEIL || op == IR_TRUNC || op == IR_ROUND; }

static uint32_t build_fma(eas_builder *b, uint32_t *v)
{
    if (dtype_is_float(type_of(b, v[0]).dtype))
        return irb_op(b, IR_FMA, v[0], v[1], v[2]);
    return apply2(b, IR_ADD, apply2(b, IR_MUL, v[0], v[1]), v[2]);
}

static bool as_condition(eas_builder *b, uint32_t *v)
{
    if (type_of(b, *v).dtype != EAS_BOOL)
        *v = adapt(b, *v, EAS_BOOL);
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
    if (!as_condition(b, &v[0]) || !common_dtype(b, "where", v + 1, 2, &dt))
        return 0;
    bool weak = is_weak(b, v[1]) && is_weak(b, v[2]);
    v[1] = adapt(b, v[1], dt);
    v[2] = adapt(b, v[2], dt);
    return spread_all(b, "where", v, 3) ? mark_weak(b, irb_op(b, IR_WHERE, v[0], v[1], v[2]), weak) : 0;
}

static uint32_t apply_float_test(eas_builder *b, uint16_t op, uint32_t x)
{
    if (dtype_is_float(type_of(b, x).dtype))
        return apply1(b, op, is_weak(b, x) ? adapt(b, x, EAS_F32) : x);
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
        if (!want_value(b, name, v[i]))
            return 0;
        weak = weak && is_weak(b, v[i]);
    }
    if (op == IR_WHERE)
        return apply_where(b, v);
    if (op == IR_ISNAN || op == IR_ISINF)
        return apply_float_test(b, op, x);
    if (!common_dtype(b, name, v, n, &dt))
        return 0;
    if (identity_on_ints(op) && dtype_is_int(dt))
        return adapt(b, x, dt);
    if ((ir_rows[op].classes & (IR_B | IR_I)) && !(ir_rows[op].classes & IR_F) && dtype_is_float(dt) && op != IR_FLOORDIV && op != IR_MOD)
        return irb_fail(b, EAS_ERR_TYPE, "%s: expected integers, got %s", name, eas_dtype_name(dt)), 0;
    if (op == IR_FMA ? dt == EAS_BOOL : !((op == IR_FLOORDIV || op == IR_MOD) && dtype_is_float(dt)))
        dt = op_dtype(op, dt);
    if (op == IR_FMA && dt == EAS_BOOL)
        dt = EAS_I64;
    for (int i = 0; i < n; i++)
        v[i] = adapt(b, v[i], dt);
    if (!spread_all(b, name, v, n))
        return 0;
    uint32_t r = op == IR_FMA                                              ? build_fma(b, v)
               : (op == IR_FLOORDIV || op == IR_MOD) && dtype_is_float(dt) ? float_divmod(b, op, v[0], v[1])
                                                                           : irb_op(b, op, v[0], v[1], v[2]);
    return mark_weak(b, r, weak);
}

/* The quotient plus 1 where something is left over: negating x, as in -(-x // y), would wrap for unsigned integers and the least signed one. */
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
    if (!want_value(b, "cdiv", x) || !want_value(b, "cdiv", y) || !common_dtype(b, "cdiv", v, 2, &dt))
        return 0;
    if (dtype_is_float(dt))
        return eas_builder_apply(b, IR_NEG, eas_builder_apply(b, IR_FLOORDIV, eas_builder_apply(b, IR_NEG, x, 0, 0), y, 0), 0, 0);
    dt = dt == EAS_BOOL ? EAS_I64 : dt;
    v[0] = adapt(b, x, dt);
    v[1] = adapt(b, y, dt);
    return spread_all(b, "cdiv", v, 2) ? int_cdiv(b, v[0], v[1]) : 0;
}

eas_value eas_builder_cast(eas_builder *b, eas_value x, eas_dtype dt)
{
    NEED(b, 0);
    if ((unsigned)dt >= EAS_NDTYPES)
        return irb_fail(b, EAS_ERR_VALUE, "cast: no such dtype"), 0;
    if (!want_value(b, "cast", x))
        return 0;
    if (b->ir->vals[x].weak && type_of(b, x).dtype == dt) { /* an explicit cast makes it strong */
        const ir_insn *d = ir_def(b->ir, x);
        ir_type t = type_of(b, x);
        return d && d->op == IR_CONST ? irb_typed(b, IR_CONST, t, d->imm) : irb_insn(b, IR_CAST, &x, 1, 0, 1, &t);
    }
    return adapt(b, x, dt);
}

eas_value eas_builder_convert(eas_builder *b, const char *what, eas_value x, eas_dtype dt)
{
    NEED(b, 0);
    if ((unsigned)dt < EAS_NDTYPES && want_value(b, what, x) && !literal_fits(b, what, x, dt))
        return 0;
    return eas_builder_cast(b, x, dt);
}

eas_value eas_builder_bitcast(eas_builder *b, eas_value x, eas_dtype dt)
{
    NEED(b, 0);
    if (!want_value(b, "bitcast", x))
        return 0;
    if (weak_float(b, x))
        x = adapt(b, x, EAS_F32);
    return irb_to(b, IR_BITCAST, ir_with_dtype(type_of(b, x), dt), x);
}

static bool shape_type(eas_builder *b, const char *what, int rank, const int64_t *shape, eas_dtype dt, ir_type *t)
{
    *t = ir_scalar(dt);
    if (rank < 0 || rank > IR_MAX_RANK)
        return irb_fail(b, EAS_ERR_VALUE, "%s: a block has at most %d dimensions, not %d", what, (int)IR_MAX_RANK, rank), false;
    t->rank = (uint8_t)rank;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1 || shape[i] > IR_MAX_DIM)
            return irb_fail(b, EAS_ERR_VALUE, "%s: dimension %d is %lld; it must be between 1 and %d", what, i, (long long)shape[i], (int)IR_MAX_DIM),
                   false;
        t->dim[i] = (int32_t)shape[i];
    }
    return true;
}

uint32_t irb_strong(eas_builder *b, uint32_t x) { return weak_float(b, x) && type_of(b, x).dtype == EAS_F64 ? adapt(b, x, EAS_F32) : x; }

eas_value eas_builder_broadcast(eas_builder *b, eas_value x, int rank, const int64_t *shape)
{
    NEED(b, 0);
    ir_type t;
    if (!want_value(b, "broadcast", x))
        return 0;
    x = irb_strong(b, x);
    return !b->status && shape_type(b, "broadcast", rank, shape, type_of(b, x).dtype, &t) ? irb_to(b, IR_BROADCAST, t, x) : 0;
}

eas_value eas_builder_reshape(eas_builder *b, eas_value x, int rank, const int64_t *shape)
{
    NEED(b, 0);
    ir_type t;
    if (!want_value(b, "reshape", x))
        return 0;
    x = irb_strong(b, x);
    return !b->status && shape_type(b, "reshape", rank, shape, type_of(b, x).dtype, &t) ? irb_to(b, IR_RESHAPE, t, x) : 0;
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

static uint32_t ident(eas_builder *b, uint16_t op, int64_t imm) { return irb_typed(b, op, ir_scalar(EAS_I64), imm); }

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

/* ---- memory ---- */

static bool want_offset(eas_builder *b, const char *what, const char *which, uint32_t *v)
{
    char d[160];
    if (!want_value(b, what, *v))
        return false;
    if (!dtype_is_int(type_of(b, *v).dtype))
        return irb_fail(b, EAS_ERR_TYPE, "%s: %s must be an integer, got %s", what, which, describe(b, *v, d)), false;
    return true;
}

static bool want_mask(eas_builder *b, const char *what, uint32_t v)
{
    char d[160];
    if (!want_value(b, what, v))
        return false;
    if (type_of(b, v).dtype != EAS_BOOL)
        return irb_fail(b, EAS_ERR_TYPE, "%s: the mask must be bool, got %s; compare it with something", what, describe(b, v, d)), false;
    return true;
}

/* A value about to enter memory of dtype elem: anything but a float into an integer converts by itself. */
static uint32_t to_element(eas_builder *b, const char *what, uint32_t v, eas_dtype elem)
{
    char d[160];
    eas_dtype dt = type_of(b, v).dtype;
    const bool number = weak_int(b, v);
    if (!number && dt != elem && ((dtype_is_float(dt) && !dtype_is_float(elem)) || elem == EAS_BOOL))
        return irb_fail(b, EAS_ERR_TYPE, "%s: %s does not go into %s by itself; say mk.cast(value, mk.%s%s)", what, describe(b, v, d),
                        eas_dtype_name(elem), eas_dtype_name(elem), elem == EAS_BOOL ? "_" : ""),
               0;
    if (!literal_fits(b, what, v, elem))
        return 0;
    return adapt(b, v, elem);
}

eas_value eas_builder_load(eas_builder *b, eas_value buf, eas_value off, eas_value mask, eas_value other)
{
    NEED(b, 0);
    if (!want_buffer(b, "load", buf) || !want_offset(b, "load", "the offset", &off) || (mask && !want_mask(b, "load", mask)))
        return 0;
    eas_dtype elem = type_of(b, buf).dtype;
    if (!mask) {
        ir_type t = {0};
        uint32_t args[2] = {buf, off};
        return irb_insn(b, IR_LOAD, args, 2, 0, 1, &t);
    }
    if (other && !want_value(b, "load", other))
        return 0;
    other = other ? to_element(b, "load: other", other, elem) : irb_typed(b, IR_CONST, ir_scalar(elem), 0);
    uint32_t v[3] = {off, mask, other};
    if (b->status || !spread_all(b, "load", v, 3))
        return 0;
    uint32_t args[4] = {buf, v[0], v[1], v[2]};
    ir_type t = {0};
    return irb_insn(b, IR_LOAD, args, 4, 0, 1, &t);
}

void eas_builder_store(eas_builder *b, eas_value buf, eas_value off, eas_value val, eas_value mask)
{
    NEED_(b);
    char d[160];
    if (!want_buffer(b, "store", buf) || !want_offset(b, "store", "the offset", &off) || !want_value(b, "store", val) ||
        (mask && !want_mask(b, "store", mask)))
        return;
    val = to_element(b, "store", val, type_of(b, buf).dtype);
    if (b->status)
        return;
    if (!type_of(b, off).rank && type_of(b, val).rank) {
        irb_fail(b, EAS_ERR_VALUE, "store: one offset for a block of values (%s): every lane would write the same element", describe(b, val, d));
        return;
    }
    uint32_t v[3] = {off, val, mask};
    if (!spread_all(b, "store", v, mask ? 3 : 2))
        return;
    uint32_t args[4] = {buf, v[0], v[1], v[2]};
    irb_insn(b, IR_STORE, args, mask ? 4 : 3, 0, 0, NULL);
}

static bool atomic_fits(uint16_t op, eas_dtype dt)
{
    return dtype_is_float(dt) ? (ir_rows[op].classes & IR_F) != 0 : dtype_is_int(dt) && dtype_bits(dt) >= 32;
}

eas_value eas_builder_atomic(eas_builder *b, eas_op op, eas_value buf, eas_value off, eas_value x, eas_value y, eas_value mask)
{
    NEED(b, 0);
    if (b->status)
        return 0;
    if (!op || op >= IR_NOPS || ir_rows[op].rule != IR_RULE_ATOMIC)
        return irb_fail(b, EAS_ERR_VALUE, "atomic: %s is not an atomic instruction", eas_op_name(op)), 0;
    const char *what = ir_rows[op].name;
    int values = ir_atomic_values(op);
    if (!want_buffer(b, what, buf) || !want_offset(b, what, "the offset", &off) || (values && !want_value(b, what, x)) ||
        (values == 2 && !want_value(b, what, y)) || (mask && !want_mask(b, what, mask)))
        return 0;
    eas_dtype elem = type_of(b, buf).dtype;
    if (!atomic_fits(op, elem))
        return irb_fail(b, EAS_ERR_TYPE, "%s: a buffer of %s; it works on i32, u32, i64, u64%s", what, eas_dtype_name(elem),
                        ir_rows[op].classes & IR_F ? ", f16, bf16, f32 and f64" : ""),
               0;
    uint32_t v[4] = {off, values ? to_element(b, what, x, elem) : 0};
    if (values == 2)
        v[2] = b->status ? 0 : to_element(b, what, y, elem);
    v[1 + values] = mask;
    int n = 1 + values + (mask != 0);
    if (b->status || !spread_all(b, what, v, n))
        return 0;
    uint32_t args[5] = {buf, v[0], v[1], v[2], v[3]};
    ir_type t = {0};
    return irb_insn(b, op, args, 1 + n, 0, 1, &t);
}

void eas_builder_fence(eas_builder *b, eas_order order, eas_scope scope)
{
    NEED_(b);
    if ((unsigned)order >= EAS_NORDERS || (unsigned)scope >= EAS_NSCOPES) {
        irb_fail(b, EAS_ERR_VALUE, "fence: order %d and scope %d; there are %d and %d", (int)order, (int)scope, (int)EAS_NORDERS, (int)EAS_NSCOPES);
        return;
    }
    if (order != EAS_ORDER_RELAXED)
        irb_insn(b, IR_FENCE, NULL, 0, ir_imm_fence(order, scope), 0, NULL);
}

/* C11 has both an ordered atomic and a relaxed one between fences; the second is at least as strong as the first, and all that Metal has. */
eas_value eas_builder_atomic_ordered(eas_builder *b, eas_op op, eas_value buf, eas_value off, eas_value x, eas_value y, eas_value mask,
                                     eas_order order)
{
    NEED(b, 0);
    const bool strict = order == EAS_ORDER_SEQ_CST, first = order == EAS_ORDER_RELEASE || order == EAS_ORDER_ACQ_REL,
               then = order == EAS_ORDER_ACQUIRE || order == EAS_ORDER_ACQ_REL;
    const eas_scope scope = !b->status && want_buffer(b, eas_op_name(op), buf) && type_of(b, buf).kind == IR_TG ? EAS_SCOPE_GROUP : EAS_SCOPE_DEVICE;
    if (strict || first || (unsigned)order >= EAS_NORDERS)
        eas_builder_fence(b, strict ? order : first ? EAS_ORDER_RELEASE : order, scope);
    eas_value r = eas_builder_atomic(b, op, buf, off, x, y, mask);
    if (strict || then)
        eas_builder_fence(b, strict ? order : EAS_ORDER_ACQUIRE, scope);
    return r;
}

void eas_builder_assert(eas_builder *b, eas_value cond, const char *message, eas_value mask)
{
    NEED_(b);
    char d[160];
    if (!want_value(b, "assert_", cond) || (mask && !want_mask(b, "assert_", mask)))
        return;
    if (type_of(b, cond).dtype != EAS_BOOL) {
        irb_fail(b, EAS_ERR_TYPE, "assert_: the condition must be bool, got %s; compare it with something", describe(b, cond, d));
        return;
    }
    uint32_t v[2] = {cond, mask};
    if (!spread_all(b, "assert_", v, mask ? 2 : 1))
        return;
    irb_insn(b, IR_ASSERT, v, mask ? 2 : 1, irb_string(b, message ? message : ""), 0, NULL);
}

enum { MAX_PRINTED = 64 };

void eas_builder_print(eas_builder *b, const char *text, int n, const eas_value *values, eas_value mask)
{
    NEED_(b);
    NEED_(text);
    uint32_t v[MAX_PRINTED + 1];
    if (b->status)
        return;
    if (n < 0 || n > MAX_PRINTED || ir_print_values(text) != n) {
        irb_fail(b, EAS_ERR_VALUE, "print: %d values for %d places in \"%s\"; at most %d", n, ir_print_values(text), text, (int)MAX_PRINTED);
        return;
    }
    for (int i = 0; i < n; i++)
        if (!want_value(b, "print", values[i]) || !(v[i] = irb_strong(b, values[i])))
            return;
    if (mask && !want_mask(b, "print", mask))
        return;
    v[n] = mask;
    ir_type shape = {0};
    if (mask && (!common_shape(b, "print", v, n + 1, &shape)))
        return;
    for (int i = 0; i <= n && mask && type_of(b, mask).rank; i++)
        v[i] = spread(b, v[i], shape);
    irb_insn(b, IR_PRINT, v, n + (mask != 0), irb_string(b, text), 0, NULL);
}

eas_value eas_builder_alloc_tg(eas_builder *b, int64_t size, eas_dtype elem)
{
    NEED(b, 0);
    if (b->status)
        return 0;
    if (size < 1 || size > IR_MAX_DIM * (int64_t)64)
        return irb_fail(b, EAS_ERR_VALUE, "alloc_tg: size is %lld; it must be positive", (long long)size), 0;
    if (b->open.len || live_inside(b))
        return irb_fail(b, EAS_ERR_VALUE, "alloc_tg: a threadgroup array cannot be made inside a loop or branch; move it to the top"), 0;
    ir_type t = {.dtype = (uint8_t)elem, .kind = IR_TG, .rank = 1, .dim = {(int32_t)size}};
    return irb_typed(b, IR_ALLOC_TG, t, size);
}

void eas_builder_barrier(eas_builder *b)
{
    NEED_(b);
    irb_insn(b, IR_BARRIER, NULL, 0, 0, 0, NULL);
}

eas_value eas_builder_dot(eas_builder *b, eas_value a, eas_value a_base, eas_value a_stride, eas_value bb, eas_value b_base, eas_value b_stride,
                          eas_value K)
{
    NEED(b, 0);
    if (!want_buffer(b, "dot", a) || !want_buffer(b, "dot", bb) || !want_offset(b, "dot", "a_base", &a_base) ||
        !want_offset(b, "dot", "a_stride", &a_stride) || !want_offset(b, "dot", "b_base", &b_base) || !want_offset(b, "dot", "b_stride", &b_stride) ||
        !want_offset(b, "dot", "K", &K))
        return 0;
    if (!dtype_is_float(type_of(b, a).dtype) || !dtype_is_float(type_of(b, bb).dtype))
        return irb_fail(b, EAS_ERR_TYPE, "dot: needs float buffers, got %s and %s", eas_dtype_name(type_of(b, a).dtype),
                        eas_dtype_name(type_of(b, bb).dtype)),
               0;
    uint32_t v[5] = {a_base, a_stride, b_base, b_stride, K};
    if (!spread_all(b, "dot", v, 5))
        return 0;
    uint32_t args[7] = {a, v[0], v[1], bb, v[2], v[3], v[4]};
    ir_type t = {0};
    return irb_insn(b, IR_DOT, args, 7, 0, 1, &t);
}

eas_value eas_builder_mma_zero(eas_builder *b)
{
    NEED(b, 0);
    return irb_typed(b, IR_MMA_ZERO, (ir_type){.dtype = EAS_F32, .kind = IR_FRAG}, 0);
}

eas_value eas_builder_mma(eas_builder *b, eas_value a, eas_value a_base, eas_value a_stride, eas_value bb, eas_value b_base, eas_value b_stride,
                          eas_value acc)
{
    NEED(b, 0);
    if (!want_buffer(b, "mma", a) || !want_buffer(b, "mma", bb) || !want_offset(b, "mma", "a_base", &a_base) ||
        !want_offset(b, "mma", "a_stride", &a_stride) || !want_offset(b, "mma", "b_base", &b_base) || !want_offset(b, "mma", "b_stride", &b_stride))
        return 0;
    uint32_t args[7] = {a, a_base, a_stride, bb, b_base, b_stride, acc};
    ir_type t = {0};
    return irb_insn(b, IR_MMA, args, 7, 0, 1, &t);
}

void eas_builder_mma_store(eas_builder *b, eas_value buf, eas_value base, eas_value stride, eas_value frag)
{
    NEED_(b);
    if (!want_buffer(b, "mma_store", buf) || !want_offset(b, "mma_store", "base", &base) || !want_offset(b, "mma_store", "stride", &stride))
        return;
    uint32_t args[4] = {buf, base, stride, frag};
    irb_insn(b, IR_MMA_STORE, args, 4, 0, 0, NULL);
}

/* ---- structured control ---- */

enum { MAX_CARRIED = 1024 };

/* Builds an instruction with n more operands behind `head`, and hands its results (from `skip` on) out. */
static uint32_t region(eas_builder *b, uint16_t op, const uint32_t *head, int nhead, int n, const uint32_t *more, int nres, uint32_t *out, int skip)
{
    uint32_t args[MAX_CARRIED + 3] = {0};
    ir_type t[MAX_CARRIED + 1];
    if (b->status)
        return 0;
    if (n < 0 || n > MAX_CARRIED)
        return irb_fail(b, EAS_ERR_VALUE, "%s: at most %d values can be carried", ir_rows[op].name, (int)MAX_CARRIED), 0;
    for (int i = 0; i < nhead; i++)
        args[i] = head[i];
    for (int i = 0; i < n; i++)
        args[nhead + i] = more[i];
    uint32_t r = irb_insn(b, op, args, nhead + n, 0, nres, t);
    for (int i = skip; i < nres && out; i++)
        out[i - skip] = r ? r + (uint32_t)i : 0;
    return r;
}

/* Weak values cannot be carried: they become strong, so that the body has a definite dtype. */
static void strengthen(eas_builder *b, int n, const uint32_t *in, uint32_t *out)
{
    for (int i = 0; i < n && i < MAX_CARRIED; i++) {
        out[i] = in[i];
        if (alive(b, in[i]) && weak_float(b, in[i]))
            out[i] = adapt(b, in[i], EAS_F32);
    }
}

/* The value `next` brought to the type that the region carries. */
static uint32_t as_carried(eas_builder *b, const char *what, uint32_t next, ir_type t)
{
    char d[160];
    if (!alive(b, next))
        return 0;
    if (t.kind == IR_VAL && type_of(b, next).kind == IR_VAL) {
        if (is_weak(b, next) || (dtype_is_int(t.dtype) && type_of(b, next).dtype == EAS_I64 && t.dtype != EAS_I64 && is_literal(b, next)))
            next = literal_fits(b, what, next, t.dtype) ? adapt(b, next, t.dtype) : 0;
        if (alive(b, next) && !type_of(b, next).rank && t.rank)
            next = spread(b, next, t);
    }
    if (alive(b, next) && !ir_type_eq(type_of(b, next), t)) {
        str s = {0};
        ir_type_print(&s, t);
        irb_fail(b, EAS_ERR_TYPE, "%s: a variable is %s and would become %s; cast or broadcast it", what, s.at ? s.at : "?", describe(b, next, d));
        str_free(&s);
    }
    return next;
}

bool irb_bounds(eas_builder *b, uint32_t head[3])
{
    char d[160];
    for (int i = 0; i < 3; i++) {
        if (!want_offset(b, "range", "a bound", &head[i]))
            return false;
        if (type_of(b, head[i]).rank)
            return irb_fail(b, EAS_ERR_TYPE, "range: a bound must be one integer for the whole program, got %s", describe(b, head[i], d)), false;
    }
    eas_dtype dt;
    if (!common_dtype(b, "range", head, 3, &dt))
        return false;
    for (int i = 0; i < 3; i++)
        head[i] = adapt(b, head[i], dt);
    return !b->status;
}

void eas_builder_loop_begin(eas_builder *b, eas_value lo, eas_value hi, eas_value step, int n, const eas_value *init, eas_value *iv,
                            eas_value *carried)
{
    NEED_(b);
    uint32_t head[3] = {lo, hi, step}, start[MAX_CARRIED];
    if (!irb_bounds(b, head))
        return;
    strengthen(b, n, init, start);
    uint32_t r = region(b, IR_LOOP, head, 3, n, start, n + 1, carried, 1);
    *iv = r;
}

void eas_builder_loop_end(eas_builder *b, int n, const eas_value *next, eas_value *final)
{
    NEED_(b);
    if (b->status || !b->open.len) {
        irb_fail(b, EAS_ERR_VALUE, "endloop without loop");
        return;
    }
    const ir_insn *open = &b->ir->insns[b->open.at[b->open.len - 1]];
    uint32_t v[MAX_CARRIED], first = open->res + 1;
    if (open->op != IR_LOOP || n != open->nres - 1) {
        irb_fail(b, EAS_ERR_VALUE, "endloop does not match its loop");
        return;
    }
    for (int i = 0; i < n; i++)
        v[i] = as_carried(b, "range", next[i], type_of(b, first + (uint32_t)i));
    region(b, IR_ENDLOOP, NULL, 0, n, v, n, final, 0);
}

void eas_builder_while_begin(eas_builder *b, int n, const eas_value *init, eas_value *carried)
{
    NEED_(b);
    NEED_(!n || init);
    uint32_t start[MAX_CARRIED];
    strengthen(b, n, init, start);
    region(b, IR_WHILE, NULL, 0, n, start, n, carried, 0);
}

bool irb_condition(eas_builder *b, const char *what, uint32_t *cond)
{
    char d[160];
    if (!want_value(b, what, *cond) || !as_condition(b, cond))
        return false;
    if (type_of(b, *cond).rank)
        return irb_fail(b, EAS_ERR_TYPE, "%s: the condition must be one bool for the whole program, got %s; use where for lanes", what,
                        describe(b, *cond, d)),
               false;
    return true;
}

void eas_builder_while_do(eas_builder *b, eas_value cond)
{
    NEED_(b);
    if (irb_condition(b, "while_", &cond))
        irb_insn(b, IR_DO, &cond, 1, 0, 0, NULL);
}

void eas_builder_while_end(eas_builder *b, int n, const eas_value *next, eas_value *final)
{
    NEED_(b);
    if (b->status || !b->open.len) {
        irb_fail(b, EAS_ERR_VALUE, "endwhile without while");
        return;
    }
    const ir_insn *open = &b->ir->insns[b->open.at[b->open.len - 1]];
    uint32_t v[MAX_CARRIED], first = open->res;
    if (open->op != IR_WHILE || n != open->nres) {
        irb_fail(b, EAS_ERR_VALUE, "endwhile does not match its while");
        return;
    }
    for (int i = 0; i < n; i++)
        v[i] = as_carried(b, "while_", next[i], type_of(b, first + (uint32_t)i));
    region(b, IR_ENDWHILE, NULL, 0, n, v, n, final, 0);
}

void eas_builder_if_begin(eas_builder *b, eas_value cond)
{
    NEED_(b);
    if (irb_condition(b, "if_", &cond))
        irb_insn(b, IR_IF, &cond, 1, 0, 0, NULL);
}

void eas_builder_if_else(eas_builder *b, int n, const eas_value *then_values)
{
    NEED_(b);
    NEED_(!n || then_values);
    uint32_t v[MAX_CARRIED];
    strengthen(b, n, then_values, v);
    region(b, IR_ELSE, NULL, 0, n, v, 0, NULL, 0);
}

void eas_builder_if_end(eas_builder *b, int n, const eas_value *else_values, eas_value *merged)
{
    NEED_(b);
    uint32_t v[MAX_CARRIED];
    const ir_insn *els = NULL;
    /* the else of the innermost open if, to match its types */
    for (uint32_t i = b->status ? 0 : b->ir->ninsns, depth = 0; i-- > 0;) {
        uint16_t op = b->ir->insns[i].op;
        depth += op == IR_ENDIF || op == IR_ENDLOOP || op == IR_ENDWHILE;
        if (!depth && op == IR_ELSE)
            els = &b->ir->insns[i];
        if (op == IR_IF || op == IR_LOOP || op == IR_WHILE) {
            if (!depth)
                break;
            depth--;
        }
    }
    if (n && !b->status && (!els || els->nargs != n)) {
        irb_fail(b, EAS_ERR_VALUE, "endif does not match its else");
        return;
    }
    for (int i = 0; i < n && n <= MAX_CARRIED && !b->status; i++)
        v[i] = as_carried(b, "if_", else_values[i], type_of(b, ir_args(b->ir, els)[i]));
    region(b, IR_ENDIF, NULL, 0, n, v, n, merged, 0);
}

/* x in the type that it has in common with the other value of a pair. */
uint32_t irb_join_type(eas_builder *b, uint32_t x, uint32_t other)
{
    uint32_t v[2] = {x, other};
    eas_dtype dt;
    ir_type shape;
    if (!want_value(b, "if", x) || !want_value(b, "if", other) || !common_dtype(b, "if", v, 2, &dt) || !common_shape(b, "if", v, 2, &shape))
        return 0;
    x = adapt(b, x, dt);
    return b->status ? 0 : spread(b, x, shape);
}

/* ---- what is known of a value ---- */

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
    return alive(b, v) && type_of(b, v).kind == IR_VAL && !dtype_is_float(type_of(b, v).dtype) && ir_const_of(b->ir, v, out);
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
