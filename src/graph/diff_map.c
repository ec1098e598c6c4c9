/* diff_map.c: derivatives of operations element by element: each_<op>(n, i, t) is t times the partial
 * derivative of n by input i, in terms of n and its inputs.
 *
 * The map from t is diagonal, so it is its own transpose: forward mode calls it with tangents, reverse mode
 * with cotangents. Where functions have corners the convention is JAX's: half of each side where two maxima
 * meet, 0 for relu at 0.
 */
#include "graph.h"

#include <math.h>

#define X node_in(n)[0]
#define Y node_in(n)[1]
#define NUM(v) gd_num(g, n, v)
static eas_node *mul(gbuild *g, eas_node *a, eas_node *b) { return gd2(g, GRAPH_MUL, a, b); }
static eas_node *quo(gbuild *g, eas_node *a, eas_node *b) { return gd2(g, GRAPH_DIV, a, b); }
static eas_node *add(gbuild *g, eas_node *a, eas_node *b) { return gd2(g, GRAPH_ADD, a, b); }
static eas_node *sub(gbuild *g, eas_node *a, eas_node *b) { return gd2(g, GRAPH_SUB, a, b); }
static eas_node *neg(gbuild *g, eas_node *a) { return gd1(g, GRAPH_NEG, a); }

#define EACH(name) eas_node *each_##name(gbuild *g, eas_node *n, int i, eas_node *t)
/* Derivative rules of operations with one input: t times an expression */
#define EACH1(name, expression) \
    EACH(name) \
    { \
        (void)g, (void)n, (void)i; \
        return expression; \
    }

EACH1(sin, mul(g, t, gd1(g, GRAPH_COS, X)))
EACH1(cos, neg(g, mul(g, t, gd1(g, GRAPH_SIN, X))))
EACH1(tan, add(g, t, mul(g, t, mul(g, n, n))))
EACH1(asin, mul(g, t, gd1(g, GRAPH_RSQRT, sub(g, NUM(1), mul(g, X, X)))))
EACH1(acos, neg(g, mul(g, t, gd1(g, GRAPH_RSQRT, sub(g, NUM(1), mul(g, X, X))))))
EACH1(atan, quo(g, t, add(g, NUM(1), mul(g, X, X))))
EACH1(sinh, mul(g, t, gd1(g, GRAPH_COSH, X)))
EACH1(cosh, mul(g, t, gd1(g, GRAPH_SINH, X)))
EACH1(tanh, mul(g, t, sub(g, NUM(1), mul(g, n, n))))
EACH1(asinh, mul(g, t, gd1(g, GRAPH_RSQRT, add(g, mul(g, X, X), NUM(1)))))
EACH1(acosh, mul(g, t, gd1(g, GRAPH_RSQRT, mul(g, sub(g, X, NUM(1)), add(g, X, NUM(1))))))
EACH1(atanh, quo(g, t, sub(g, NUM(1), mul(g, X, X))))
EACH1(exp, mul(g, t, n))
EACH1(exp2, mul(g, t, mul(g, n, NUM(0.69314718055994530942))))
EACH1(expm1, add(g, t, mul(g, t, n)))
EACH1(log, quo(g, t, X))
EACH1(log1p, quo(g, t, add(g, X, NUM(1))))
EACH1(log2, quo(g, t, mul(g, X, NUM(0.69314718055994530942))))
EACH1(log10, quo(g, t, mul(g, X, NUM(2.30258509299404568402))))
EACH1(sqrt, quo(g, mul(g, t, NUM(0.5)), n))
EACH1(cbrt, quo(g, t, mul(g, NUM(3), mul(g, n, n))))
EACH1(rsqrt, mul(g, t, quo(g, mul(g, n, NUM(-0.5)), X)))
EACH1(sigmoid, mul(g, t, mul(g, n, sub(g, NUM(1), n))))
EACH1(erf, mul(g, t, mul(g, NUM(1.12837916709551257390), gd1(g, GRAPH_EXP, neg(g, mul(g, X, X))))))
EACH1(neg, neg(g, t))
EACH1(abs, mul(g, t, gd1(g, GRAPH_SIGN, X)))
EACH1(square, mul(g, t, mul(g, NUM(2), X)))
EACH1(reciprocal, neg(g, mul(g, t, mul(g, n, n))))
/* by the result, so that x need not be kept */
EACH1(relu, gd_where(g, gd2(g, GRAPH_GREATER, n, NUM(0)), t, NUM(0)))

/* x s, with s = sigmoid(x): s + x s (1 - s) */
EACH(silu)
{
    (void)i;
    eas_node *s = gd1(g, GRAPH_SIGMOID, X);
    return mul(g, t, add(g, s, mul(g, n, sub(g, NUM(1), s))));
}

/* x s, with s = sigmoid(u) and u = c (x + 0.044715 x^3): s + x s (1 - s) u' */
EACH(gelu)
{
    const double c = 1.5957691216057308, k = 0.044715;
    (void)i;
    eas_node *square = mul(g, X, X);
    eas_node *s = gd1(g, GRAPH_SIGMOID, mul(g, X, add(g, mul(g, square, NUM(c * k)), NUM(c))));
    eas_node *slope = add(g, mul(g, square, NUM(3 * c * k)), NUM(c));
    return mul(g, t, mul(g, s, add(g, NUM(1), mul(g, mul(g, X, slope), sub(g, NUM(1), s)))));
}

/* ---- of two and three ---- */

EACH1(add, t)
EACH1(sub, i == 0 ? t : neg(g, t))
EACH1(mul, mul(g, t, i == 0 ? Y : X))
EACH1(fma, i == 2 ? t : mul(g, t, i == 0 ? Y : X))
EACH1(div, i == 0 ? quo(g, t, Y) : neg(g, mul(g, t, quo(g, n, Y))))
EACH1(mod, i == 0 ? t : neg(g, mul(g, t, gd1(g, GRAPH_FLOOR, quo(g, X, Y)))))
EACH1(atan2, mul(g, t, quo(g, i == 0 ? Y : neg(g, X), add(g, mul(g, X, X), mul(g, Y, Y)))))
EACH1(where, i == 1 ? gd_where(g, X, t, NUM(0)) : gd_where(g, X, NUM(0), t))

/* x / hypot; at the origin 0 */
EACH(hypot)
{
    eas_node *zero = gd2(g, GRAPH_EQUAL, n, NUM(0));
    return mul(g, t, quo(g, i == 0 ? X : Y, gd_where(g, zero, NUM(1), n)));
}

EACH(copysign)
{
    if (i == 1)
        return mul(g, t, NUM(0));
    eas_node *same = gd2(g, GRAPH_EQUAL, gd1(g, GRAPH_SIGNBIT, X), gd1(g, GRAPH_SIGNBIT, Y));
    return gd_where(g, same, t, neg(g, t));
}

/* exp(x - n); equal infinities share it */
EACH(logaddexp)
{
    eas_node *mine = i == 0 ? X : Y, *other = i == 0 ? Y : X;
    eas_node *share = gd1(g, GRAPH_SIGMOID, sub(g, mine, other));
    return mul(g, t, gd_where(g, gd2(g, GRAPH_EQUAL, mine, other), NUM(0.5), share));
}

/* By x: y x^(y-1), and 0 for y = 0 whatever x is. By y: n log x, where log 0 counts as 0. */
EACH(pow)
{
    eas_node *zero = NUM(0), *one = NUM(1);
    if (i == 0) {
        eas_node *flat = gd2(g, GRAPH_EQUAL, Y, zero);
        eas_node *power = gd2(g, GRAPH_POW, X, gd_where(g, flat, one, sub(g, Y, one)));
        return mul(g, t, gd_where(g, flat, zero, mul(g, Y, power)));
    }
    eas_node *safe = gd_where(g, gd2(g, GRAPH_EQUAL, X, zero), one, X);
    return mul(g, t, mul(g, gd1(g, GRAPH_LOG, safe), n));
}

/* All of t where input i is the result, half where both are. */
static eas_node *won(gbuild *g, eas_node *n, int i, eas_node *t)
{
    eas_node *mine = gd2(g, GRAPH_EQUAL, i == 0 ? X : Y, n), *tie = gd2(g, GRAPH_EQUAL, X, Y);
    eas_node *share = gd_where(g, tie, NUM(0.5), NUM(1));
    return mul(g, t, gd_where(g, mine, share, NUM(0)));
}
EACH1(maximum, won(g, n, i, t))
EACH1(minimum, won(g, n, i, t))

/* ---- not element by element, but symmetric too ---- */

/* n (t - sum(n t)) */
EACH(softmax)
{
    (void)i;
    if (g->st || !t)
        return NULL;
    eas_dtype dt = (eas_dtype)n->dtype, wide = graph_compute_dtype(dt);
    eas_node *y = gb_typed(g, n, wide), *s = gb_typed(g, t, wide);
    eas_node *both = mul(g, y, s);
    eas_node *sum =
        both ? gb_reduce(g, GRAPH_REDUCE_SUM, both, 1u << (node_words(n)[0] + gd_extra(both, n)), true)
             : NULL;
    return gb_typed(g, mul(g, y, sub(g, s, sum)), dt);
}
