/* op_map.c: operations element by element: which dtypes they take and give, and their kernel code where one
 * instruction is not enough.
 *
 * A rule brings batch dims together, inputs to one dtype (numbers at once, tensors by a cast node), and
 * records the node with the broadcast shape. Code is written for f32, f64 and integers; whoever lowers does
 * halves in f32.
 */
#include "graph.h"

#include <math.h>

/* ---- dtypes and shapes ---- */

enum { MAX_IN = 3 };

/* Records c's operation on x[0..n), which are of the right dtypes; lets go of x. */
static eas_status finish(const graph_call *c, eas_dtype result, int n, eas_node **x, int batch_dims,
                         eas_node **out)
{
    int rank;
    eas_dim shape[GRAPH_MAX_RANK];
    eas_status st = graph_broadcast(c, n, x, &rank, shape);
    if (!st)
        st = node_new(c->op, result, batch_dims, rank, shape, 0, NULL, n, x, out);
    for (int i = 0; i < n; i++)
        node_unref(x[i]);
    return st;
}

static bool all_alike(const graph_call *c, int first, eas_dtype dt)
{
    const eas_node *a = c->in[0];
    for (int i = 0; i < c->nin; i++) {
        const eas_node *x = c->in[i];
        if ((i >= first && x->dtype != dt) || x->flags & NODE_WEAK || x->batch_dims != a->batch_dims ||
            x->rank != a->rank)
            return false;
        for (int k = 0; k < x->rank; k++)
            if (node_shape(x)[k] != node_shape(a)[k])
                return false;
    }
    return true;
}

/* The common case: dtypes, batch dims and shapes agree already, and nothing needs a cast or a reshape. */
static eas_status alike(const graph_call *c, eas_dtype result, eas_node **out)
{
    return node_new(c->op, result, c->in[0]->batch_dims, c->in[0]->rank, node_shape(c->in[0]), 0, NULL,
                    c->nin, c->in, out);
}

/* c's inputs from the `first` one on in dtype dt, those before as they are. */
static eas_status typed(const graph_call *c, int first, eas_dtype dt, eas_dtype result, eas_node **out)
{
    eas_node *x[MAX_IN], *y[MAX_IN];
    int bd = 0;
    if (all_alike(c, first, dt))
        return alike(c, result, out);
    eas_status st = EAS_OK;
    for (int i = first; i < c->nin && !st; i++)
        st = graph_number_fits(c, c->in[i], dt);
    if (!st)
        st = graph_align(c, c->nin, c->in, x, &bd);
    if (st)
        return st;
    for (int i = 0; i < c->nin; i++) {
        st = i < first ? EAS_OK : graph_cast(x[i], dt, &y[i]);
        if (st) {
            for (int k = 0; k < c->nin; k++)
                node_unref(k < i ? y[k] : x[k]);
            return st;
        }
        if (i < first)
            y[i] = x[i];
        else
            node_unref(x[i]);
    }
    return finish(c, result, c->nin, y, bd, out);
}

static eas_status count(const graph_call *c, int n)
{
    return c->nin == n
             ? EAS_OK
             : node_fail(EAS_ERR_TYPE, c, "%d tensor%s expected, %d given", n, n == 1 ? "" : "s", c->nin);
}

static bool weak(const eas_node *x) { return (x->flags & NODE_WEAK) != 0; }

/* The common dtype of the inputs from `first` on; a result of Python numbers alone is as their array would
 * be. */
static eas_dtype common(const graph_call *c, int first)
{
    eas_dtype dt = (eas_dtype)c->in[first]->dtype;
    bool w = weak(c->in[first]);
    for (int i = first + 1; i < c->nin; i++)
        dt = graph_promote(dt, w, (eas_dtype)c->in[i]->dtype, weak(c->in[i]), &w);
    return w && dtype_is_float(dt) ? EAS_F32 : dt;
}

static eas_dtype floating(eas_dtype dt) { return dtype_is_float(dt) ? dt : EAS_F32; }

eas_status make_float1(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 1);
    if (st)
        return st;
    eas_dtype dt = floating((eas_dtype)c->in[0]->dtype);
    return typed(c, 0, dt, dt, out);
}

eas_status make_same1(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 1);
    return st ? st : typed(c, 0, (eas_dtype)c->in[0]->dtype, (eas_dtype)c->in[0]->dtype, out);
}

static eas_status not_for(const graph_call *c, eas_dtype dt, const char *hint)
{
    return node_fail(EAS_ERR_TYPE, c, "not for %s%s%s", eas_dtype_name(dt), hint ? "; " : "",
                     hint ? hint : "");
}

eas_status make_number1(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 1);
    if (!st && c->in[0]->dtype == EAS_BOOL)
        st = not_for(c, EAS_BOOL, "use logical_not, or cast it");
    return st ? st : make_same1(c, out);
}

eas_status make_test1(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 1);
    return st ? st : typed(c, 0, (eas_dtype)c->in[0]->dtype, EAS_BOOL, out);
}

eas_status make_arith2(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 2);
    if (st)
        return st;
    eas_dtype dt = (eas_dtype)c->in[0]->dtype;
    if (all_alike(c, 0, dt))
        return alike(c, dt, out);
    dt = common(c, 0);
    return typed(c, 0, dt, dt, out);
}

eas_status make_number2(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 2);
    if (st)
        return st;
    return common(c, 0) == EAS_BOOL ? not_for(c, EAS_BOOL, "use logical operations, or cast")
                                    : make_arith2(c, out);
}

eas_status make_pow(const graph_call *c, eas_node **out)
{
    int64_t n;
    double f;
    eas_status st = count(c, 2);
    if (!st && dtype_is_int(common(c, 0)) && eas_node_number_value(c->in[1], &n, &f) && f < 0)
        st = node_fail(EAS_ERR_VALUE, c,
                       "an integer to the negative power %lld is not an integer; cast it to a float first",
                       (long long)n);
    return st ? st : make_number2(c, out);
}

static eas_status in_floats(const graph_call *c, int n, eas_node **out)
{
    eas_status st = count(c, n);
    if (st)
        return st;
    eas_dtype dt = floating(common(c, 0));
    return typed(c, 0, dt, dt, out);
}
eas_status make_float2(const graph_call *c, eas_node **out) { return in_floats(c, 2, out); }
eas_status make_float3(const graph_call *c, eas_node **out) { return in_floats(c, 3, out); }

eas_status make_compare(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 2);
    return st ? st : typed(c, 0, common(c, 0), EAS_BOOL, out);
}

/* One or two truth values. */
eas_status make_logic(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, c->op == GRAPH_LOGICAL_NOT ? 1 : 2);
    return st ? st : typed(c, 0, EAS_BOOL, EAS_BOOL, out);
}

eas_status make_bits(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, c->op == GRAPH_BITWISE_INVERT ? 1 : 2);
    if (st)
        return st;
    eas_dtype dt = common(c, 0);
    return dtype_is_float(dt) ? not_for(c, dt, NULL) : typed(c, 0, dt, dt, out);
}

eas_status make_shift(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 2);
    if (st)
        return st;
    eas_dtype dt = common(c, 0);
    return dtype_is_int(dt) ? typed(c, 0, dt, dt, out) : not_for(c, dt, NULL);
}

eas_status make_where(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 3);
    eas_node *cond = NULL;
    if (st)
        return st;
    st = graph_cast(c->in[0], EAS_BOOL, &cond);
    if (st)
        return st;
    graph_call d = *c;
    d.in = (eas_node *[]){cond, c->in[1], c->in[2]};
    eas_dtype dt = common(c, 1);
    st = typed(&d, 1, dt, dt, out);
    node_unref(cond);
    return st;
}

eas_status make_cast(const graph_call *c, eas_node **out)
{
    eas_status st = count(c, 1);
    if (st)
        return st;
    if (c->nattr != 1 || c->attr[0] < 0 || c->attr[0] >= EAS_NDTYPES)
        return node_fail(EAS_ERR_TYPE, c, "a dtype is expected");
    return graph_cast(c->in[0], (eas_dtype)c->attr[0], out);
}

/* ---- code ---- */

static eas_value op2(eas_builder *b, const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}
static eas_value op1(eas_builder *b, const char *name, eas_value x)
{
    return eas_builder_apply(b, eas_op_find(name), x, 0, 0);
}
static eas_value num(eas_builder *b, eas_dtype dt, double v)
{
    return eas_builder_const_typed(b, dt, v, dtype_is_float(dt) ? 0 : (int64_t)v);
}
static eas_value add(eas_builder *b, eas_value x, eas_value y) { return op2(b, "add", x, y); }
static eas_value sub(eas_builder *b, eas_value x, eas_value y) { return op2(b, "sub", x, y); }
static eas_value mul(eas_builder *b, eas_value x, eas_value y) { return op2(b, "mul", x, y); }
static eas_value quo(eas_builder *b, eas_value x, eas_value y) { return op2(b, "div", x, y); }
static eas_value pick(eas_builder *b, eas_value c, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find("where"), c, x, y);
}
static eas_dtype type(eas_builder *b, eas_value x) { return eas_value_dtype(b, x); }
static bool is_float(eas_builder *b, eas_value x) { return dtype_is_float(type(b, x)); }

eas_value emit_add(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return op2(b, dt == EAS_BOOL ? "or" : "add", x[0], x[1]);
}
eas_value emit_mul(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return op2(b, dt == EAS_BOOL ? "and" : "mul", x[0], x[1]);
}
eas_value emit_maximum(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return op2(b, dt == EAS_BOOL ? "or" : "max", x[0], x[1]);
}
eas_value emit_minimum(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return op2(b, dt == EAS_BOOL ? "and" : "min", x[0], x[1]);
}
/* An infinite operand gives floor(x / y), which the array API asks for: x / y is then infinite, zero or NaN.
 * Python and the instruction have NaN and -1 there. */
eas_value emit_floordiv(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value whole = op2(b, "floordiv", x[0], x[1]);
    if (!dtype_is_float(dt))
        return whole;
    eas_value some = op2(b, "or", op1(b, "isinf", x[0]), op1(b, "isinf", x[1]));
    return pick(b, some, quo(b, x[0], x[1]), whole);
}
eas_value emit_mod(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    (void)dt;
    return op2(b, "mod", x[0], x[1]);
}

static eas_value compare(eas_builder *b, const char *name, const eas_value *x)
{
    bool truth = type(b, x[0]) == EAS_BOOL; /* False < True */
    return op2(b, name, truth ? eas_builder_cast(b, x[0], EAS_U8) : x[0],
               truth ? eas_builder_cast(b, x[1], EAS_U8) : x[1]);
}
#define COMPARE(name, ir) \
    eas_value emit_##name(eas_builder *b, const eas_value *x, eas_dtype dt) \
    { \
        (void)dt; \
        return compare(b, ir, x); \
    }
COMPARE(less, "lt")
COMPARE(less_equal, "le")
COMPARE(greater, "gt")
COMPARE(greater_equal, "ge")

/* Rounding and the like leave integers alone. */
#define ROUNDING(name) \
    eas_value emit_##name(eas_builder *b, const eas_value *x, eas_dtype dt) \
    { \
        return dtype_is_float(dt) ? op1(b, #name, x[0]) : x[0]; \
    }
ROUNDING(floor)
ROUNDING(ceil)
ROUNDING(round)
ROUNDING(trunc)

eas_value emit_abs(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return eas_dtype_kind(dt) == 'f' || eas_dtype_kind(dt) == 'i' ? op1(b, "abs", x[0]) : x[0];
}
eas_value emit_relu(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return op2(b, "max", x[0], num(b, dt, 0));
}
eas_value emit_square(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    (void)dt;
    return mul(b, x[0], x[0]);
}
eas_value emit_reciprocal(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return quo(b, num(b, dt, 1), x[0]);
}

eas_value emit_sign(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value zero = num(b, dt, 0), below = eas_dtype_kind(dt) == 'u' ? zero : num(b, dt, -1);
    eas_value rest = dtype_is_float(dt) ? pick(b, op1(b, "isnan", x[0]), x[0], zero) : zero;
    return pick(b, op2(b, "gt", x[0], zero), num(b, dt, 1), pick(b, op2(b, "lt", x[0], zero), below, rest));
}

eas_value emit_is_nan(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    (void)dt;
    return op2(b, "ne", x[0], x[0]);
}
eas_value emit_is_inf(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    (void)dt;
    return is_float(b, x[0]) ? op1(b, "isinf", x[0]) : op2(b, "ne", x[0], x[0]);
}
eas_value emit_is_finite(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    (void)dt;
    return is_float(b, x[0]) ? op2(b, "lt", op1(b, "abs", x[0]), num(b, type(b, x[0]), INFINITY))
                             : op2(b, "eq", x[0], x[0]);
}

static eas_dtype bits_of(eas_dtype dt) { return dt == EAS_F64 ? EAS_I64 : dt == EAS_F32 ? EAS_I32 : EAS_I16; }

eas_value emit_signbit(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_dtype from = type(b, x[0]);
    (void)dt;
    if (from == EAS_BOOL || eas_dtype_kind(from) == 'u')
        return op2(b, "ne", x[0], x[0]);
    eas_value i = dtype_is_float(from) ? eas_builder_bitcast(b, x[0], bits_of(from)) : x[0];
    return op2(b, "lt", i, num(b, type(b, i), 0));
}

/* ---- activations ---- */

/* x * sigmoid(-u), with one division */
static eas_value gated(eas_builder *b, eas_value x, eas_value u, eas_dtype dt)
{
    return quo(b, x, add(b, num(b, dt, 1), op1(b, "exp", u)));
}

eas_value emit_silu(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return gated(b, x[0], op1(b, "neg", x[0]), dt);
}

/* x * (1 + tanh(u)) / 2 with u = sqrt(2/pi) * (x + 0.044715 x^3) is x * sigmoid(2u). */
eas_value emit_gelu(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value cube = mul(b, mul(b, x[0], x[0]), num(b, dt, -1.5957691216057308 * 0.044715));
    return gated(b, x[0], mul(b, x[0], add(b, cube, num(b, dt, -1.5957691216057308))), dt);
}

/* ---- functions that the IR does not have ---- */

static const double LN2 = 0.69314718055994530942;

static eas_value with_sign(eas_builder *b, eas_value size, eas_value sign, eas_dtype dt)
{
    eas_dtype bits = bits_of(dt);
    eas_value top = eas_builder_const_typed(b, bits, 0, dtype_min(bits));
    eas_value rest = op1(b, "not", top);
    return eas_builder_bitcast(b,
                               op2(b, "or", op2(b, "and", eas_builder_bitcast(b, size, bits), rest),
                                   op2(b, "and", eas_builder_bitcast(b, sign, bits), top)),
                               dt);
}

eas_value emit_copysign(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return with_sign(b, x[0], x[1], dt);
}

static eas_value inverse(eas_builder *b, ir_inverse_fn fn, const eas_value *x, eas_dtype dt)
{
    (void)dt;
    return ir_inverse(b, fn, x[0], 0);
}
eas_value emit_asin(eas_builder *b, const eas_value *x, eas_dtype dt) { return inverse(b, IR_ASIN, x, dt); }
eas_value emit_acos(eas_builder *b, const eas_value *x, eas_dtype dt) { return inverse(b, IR_ACOS, x, dt); }
eas_value emit_atan(eas_builder *b, const eas_value *x, eas_dtype dt) { return inverse(b, IR_ATAN, x, dt); }
eas_value emit_cbrt(eas_builder *b, const eas_value *x, eas_dtype dt) { return inverse(b, IR_CBRT, x, dt); }

eas_value emit_atan2(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    int64_t shape[4];
    const int rank = eas_value_shape(b, add(b, x[0], x[1]), shape);
    eas_value v[2];
    for (int i = 0; i < 2; i++)
        v[i] = rank ? eas_builder_broadcast(b, x[i], rank, shape) : x[i];
    (void)dt;
    return ir_inverse(b, IR_ATAN2, v[0], v[1]);
}

eas_value emit_hypot(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value p = op1(b, "abs", x[0]), q = op1(b, "abs", x[1]), zero = num(b, dt, 0),
              inf = num(b, dt, INFINITY);
    eas_value lo = op2(b, "min", p, q), hi = op2(b, "max", p, q);
    eas_value t = quo(b, lo, hi), r = mul(b, hi, op1(b, "sqrt", add(b, mul(b, t, t), num(b, dt, 1))));
    eas_value endless = op2(b, "or", op2(b, "eq", p, inf), op2(b, "eq", q, inf));
    return pick(b, endless, inf, pick(b, op2(b, "eq", hi, zero), zero, r));
}

/* Half of exp(a), for a where exp(a) itself may be too large. */
static eas_value half_exp(eas_builder *b, eas_value a, eas_dtype dt)
{
    eas_value h = op1(b, "exp", mul(b, a, num(b, dt, 0.5)));
    return mul(b, mul(b, h, num(b, dt, 0.5)), h);
}
eas_value emit_sinh(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value a = op1(b, "abs", x[0]), e = op1(b, "expm1", a), half = num(b, dt, 0.5);
    eas_value small = mul(b, half, add(b, e, quo(b, e, add(b, e, num(b, dt, 1)))));
    return with_sign(b, pick(b, op2(b, "gt", a, num(b, dt, 20)), half_exp(b, a, dt), small), x[0], dt);
}
eas_value emit_cosh(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value a = op1(b, "abs", x[0]), e = op1(b, "exp", a), half = num(b, dt, 0.5);
    eas_value small = mul(b, half, add(b, e, quo(b, num(b, dt, 1), e)));
    return pick(b, op2(b, "gt", a, num(b, dt, 20)), half_exp(b, a, dt), small);
}
eas_value emit_asinh(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value a = op1(b, "abs", x[0]), one = num(b, dt, 1), sq = mul(b, a, a);
    eas_value small = op1(b, "log1p", add(b, a, quo(b, sq, add(b, one, op1(b, "sqrt", add(b, sq, one))))));
    eas_value large = add(b, op1(b, "log", a), num(b, dt, LN2));
    return with_sign(b, pick(b, op2(b, "gt", a, num(b, dt, dt == EAS_F64 ? 1e9 : 1e5)), large, small), x[0],
                     dt);
}
eas_value emit_acosh(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value t = sub(b, x[0], num(b, dt, 1));
    eas_value small = op1(b, "log1p", add(b, t, op1(b, "sqrt", mul(b, t, add(b, t, num(b, dt, 2))))));
    eas_value large = add(b, op1(b, "log", x[0]), num(b, dt, LN2));
    eas_value r = pick(b, op2(b, "gt", x[0], num(b, dt, dt == EAS_F64 ? 1e9 : 1e5)), large, small);
    return pick(b, op2(b, "lt", x[0], num(b, dt, 1)), num(b, dt, NAN), r);
}
eas_value emit_atanh(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value a = op1(b, "abs", x[0]);
    eas_value r = mul(b, num(b, dt, 0.5), op1(b, "log1p", quo(b, add(b, a, a), sub(b, num(b, dt, 1), a))));
    return pick(b, op2(b, "gt", a, num(b, dt, 1)), num(b, dt, NAN), with_sign(b, r, x[0], dt));
}
/* The factor is hi + lo; lo is positive, so that infinities stay. */
eas_value emit_log10(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value y = op1(b, "log2", x[0]);
    if (dtype_bits(dt) < 32)
        return mul(b, y, num(b, dt, 0.30102999566398119521));
    const bool wide = dt == EAS_F64;
    eas_value hi = num(b, dt, wide ? 0.30102999566398114 : 0.3010299801826477),
              lo = num(b, dt, wide ? 5.270742310347266e-17 : 1.5481333490135613e-08);
    return eas_builder_apply(b, eas_op_find("fma"), y, hi, mul(b, y, lo));
}

eas_value emit_logaddexp(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_value m = op2(b, "max", x[0], x[1]), d = op1(b, "abs", sub(b, x[0], x[1]));
    eas_value r = add(b, m, op1(b, "log1p", op1(b, "exp", op1(b, "neg", d))));
    return pick(b, op2(b, "eq", x[0], x[1]), add(b, x[0], num(b, dt, LN2)), r);
}

/* The neighbours of a float are those of its bits, once these are counted from zero. */
eas_value emit_nextafter(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    eas_dtype bits = bits_of(dt);
    eas_value zero = num(b, dt, 0), i = eas_builder_bitcast(b, x[0], bits), one = num(b, bits, 1);
    eas_value away = op2(b, "eq", op2(b, "gt", x[1], x[0]), op2(b, "gt", x[0], zero));
    eas_value step = eas_builder_bitcast(b, pick(b, away, add(b, i, one), sub(b, i, one)), dt);
    eas_value least = with_sign(b, eas_builder_bitcast(b, one, dt), x[1], dt);
    eas_value r = pick(b, op2(b, "eq", x[0], zero), least, step);
    r = pick(b, op2(b, "eq", x[0], x[1]), x[1], r);
    return pick(b, op1(b, "isnan", x[0]), x[0], pick(b, op1(b, "isnan", x[1]), x[1], r));
}

/* ---- powers ---- */

/* By squaring, over all bits of the exponent; a negative exponent leaves 1, -1 or 0. */
static eas_value int_power(eas_builder *b, eas_value x, eas_value y, eas_dtype dt)
{
    eas_value zero = num(b, dt, 0), one = num(b, dt, 1), init[3] = {0}, now[3], next[3], last[3], iv;
    eas_value whole = add(b, mul(b, x, zero), mul(b, y, zero)); /* of both shapes */
    init[0] = add(b, whole, one);
    init[1] = add(b, whole, x);
    init[2] = add(b, whole, y);
    eas_builder_loop_begin(b, eas_builder_const_int(b, 0), eas_builder_const_int(b, dtype_bits(dt)),
                           eas_builder_const_int(b, 1), 3, init, &iv, now);
    eas_value odd = op2(b, "ne", op2(b, "and", now[2], one), zero);
    next[0] = pick(b, odd, mul(b, now[0], now[1]), now[0]);
    next[1] = mul(b, now[1], now[1]);
    next[2] = op2(b, "shr", now[2], one);
    eas_builder_loop_end(b, 3, next, last);
    if (!dtype_is_signed(dt))
        return last[0];
    eas_value minus = num(b, dt, -1), odd_y = op2(b, "ne", op2(b, "and", y, one), zero);
    eas_value unit =
        pick(b, op2(b, "eq", x, one), one, pick(b, op2(b, "eq", x, minus), pick(b, odd_y, minus, one), zero));
    return pick(b, op2(b, "lt", y, zero), unit, last[0]);
}
eas_value emit_pow(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    return dtype_is_float(dt) ? op2(b, "pow", x[0], x[1]) : int_power(b, x[0], x[1], dt);
}
