/* Derivatives of recorded graphs from C: both modes against formulas, through loops, branches, rules of one's
 * own and checkpoints; what is refused; long chains. */
#include "nodes.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static eas_device *cpu;

#define NODES(...) ((eas_node *[]){__VA_ARGS__})

static eas_node *op1(const char *name, eas_node *x) { return op(name, 1, &x, 0, NULL); }
static eas_node *with(const char *name, eas_node *x, double v)
{
    eas_node *n = number(v), *r = op2(name, x, n);
    eas_node_release(n);
    return r;
}
static eas_node *sum(eas_node *x) { return op("reduce_sum", 1, &x, 2, (int64_t[]){-1, 0}); }

/* (n,), or without dims for n = 0 */
static eas_node *tensor(int n, const double *v)
{
    eas_buffer *buf;
    eas_node *x;
    int64_t shape = n;
    size_t size = sizeof *v * (size_t)(n ? n : 1);
    ok(eas_buffer_new(cpu, size, &buf));
    memcpy(eas_buffer_host(buf), v, size);
    ok(eas_node_from_buffer(buf, EAS_F64, n > 0, &shape, 0, NULL, &x));
    eas_buffer_release(buf);
    return x;
}
static eas_node *scalar(double v) { return tensor(0, &v); }
static eas_node *variable(eas_node *x)
{
    eas_node *v;
    ok(eas_node_variable(x, &v));
    eas_node_release(x);
    return v;
}
static eas_node *like(const eas_node *x)
{
    eas_node *n;
    ok(eas_node_input(-1, eas_node_dtype(x), eas_node_rank(x), eas_node_shape(x), eas_node_batch_dims(x),
                      NULL, &n));
    return n;
}
static void drop(int n, eas_node **x)
{
    for (int i = 0; i < n; i++)
        eas_node_release(x[i]);
}
#define DROP(...) drop((int)(sizeof NODES(__VA_ARGS__) / sizeof(eas_node *)), NODES(__VA_ARGS__))

static double item(eas_node *n, int i)
{
    int64_t offset, strides[EAS_MAX_RANK];
    assert_non_null(n);
    assert_int_equal(eas_node_dtype(n), EAS_F64);
    ok(eas_nodes_realize(1, &n, NULL, NULL));
    const double *data = eas_buffer_host(eas_node_buffer(n, &offset, strides));
    return data[offset + (eas_node_rank(n) ? i * strides[0] : 0)];
}
static void near(eas_node *n, int i, double want)
{
    double got = item(n, i);
    if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want))))
        fail_msg("element %d is %.15g, not %.15g", i, got, want);
}

/* The gradient of one scalar by one tensor; NULL where it does not depend on it. */
static eas_node *gradient(eas_node *y, eas_node *x)
{
    eas_node *one = scalar(1), *g;
    ok(eas_nodes_vjp(1, &x, 1, &y, &one, 0, &g));
    eas_node_release(one);
    return g;
}
static eas_node *tangent(eas_node *y, eas_node *x, eas_node *t)
{
    eas_node *out;
    ok(eas_nodes_jvp(1, &x, &t, 1, &y, 0, &out));
    return out;
}

/* ---- graphs ---- */

/* sum(x x w + sin x) */
static void both_modes(void **state)
{
    (void)state;
    double v[3] = {0.5, -1, 2}, u[3] = {3, 0.25, -2}, dv[3] = {1, 2, -1}, du[3] = {-0.5, 1, 4}, forth = 0;
    eas_node *x = variable(tensor(3, v)), *w = variable(tensor(3, u)), *xx = op2("mul", x, x),
             *xxw = op2("mul", xx, w), *s = op1("sin", x);
    eas_node *all = op2("add", xxw, s), *y = sum(all), *t[2] = {tensor(3, dv), tensor(3, du)},
             *one = scalar(1), *in[2] = {x, w}, *g[2], *j;
    ok(eas_nodes_vjp(2, in, 1, &y, &one, 0, g));
    ok(eas_nodes_jvp(2, in, t, 1, &y, 0, &j));
    for (int i = 0; i < 3; i++) {
        double by_x = 2 * v[i] * u[i] + cos(v[i]), by_w = v[i] * v[i];
        near(g[0], i, by_x);
        near(g[1], i, by_w);
        forth += by_x * dv[i] + by_w * du[i];
    }
    near(j, 0, forth);
    DROP(j, g[0], g[1]);
    /* a tangent that is missing is zero; so is a cotangent */
    ok(eas_nodes_jvp(2, in, NODES(NULL, t[1]), 1, &y, 0, &j));
    near(j, 0, 0.25 * -0.5 + 1 * 1 + 4 * 4);
    eas_node_release(j);
    ok(eas_nodes_vjp(2, in, 2, NODES(y, all), NODES(NULL, t[0]), 0, g));
    near(g[1], 2, v[2] * v[2] * dv[2]);
    DROP(x, w, xx, xxw, s, all, y, t[0], t[1], one, g[0], g[1]);
}

/* x^3, three times: also of the derivative's own graph, after it was evaluated */
static void derivatives_of_derivatives(void **state)
{
    (void)state;
    eas_node *x = variable(scalar(1.5)), *xx = op2("mul", x, x), *y = op2("mul", xx, x);
    eas_node *g1 = gradient(y, x);
    near(g1, 0, 3 * 1.5 * 1.5);
    eas_node *g2 = gradient(g1, x), *one = scalar(1), *g3 = tangent(g2, x, one);
    near(g2, 0, 6 * 1.5);
    near(g3, 0, 6);
    DROP(x, xx, y, g1, g2, g3, one);
}

static void as_a_program(void **state)
{
    (void)state;
    eas_node *x, *y, *g, *one = number(1), *seed = op("cast", 1, &one, 1, (int64_t[]){EAS_F64}), *r;
    eas_program *p;
    eas_dim n;
    ok(eas_dim_symbol("n", &n));
    ok(eas_node_input(0, EAS_F64, 1, &n, 0, NULL, &x));
    eas_node *e = op1("exp", x);
    y = sum(e);
    ok(eas_nodes_vjp(1, &x, 1, &y, &seed, 0, &g));
    ok(eas_program_new(1, &x, 1, &g, cpu, &p));
    DROP(x, e, y, g, one, seed);
    for (int size = 1; size < 4; size++) {
        double v[3] = {0.5, -1, 2};
        eas_node *arg = tensor(size, v);
        ok(eas_program_run(p, 1, &arg, NULL, NULL, &r));
        assert_int_equal(eas_node_shape(r)[0], size);
        for (int i = 0; i < size; i++)
            near(r, i, exp(v[i]));
        DROP(arg, r);
    }
    eas_program_release(p);
}

/* Products along a length that is not known yet: zeros among them, and no work beyond that length. */
static void products_of_any_length(void **state)
{
    (void)state;
    static const char *const names[] = {"prod", "cumprod"};
    for (int k = 0; k < 2; k++) {
        eas_node *x, *g, *seed, *r;
        eas_program *p;
        eas_dim n;
        ok(eas_dim_symbol("n", &n));
        ok(eas_node_input(0, EAS_F64, 1, &n, 0, NULL, &x));
        eas_node *y =
            k ? op("cumprod", 1, &x, 2, (int64_t[]){0, 0}) : op(names[k], 1, &x, 2, (int64_t[]){-1, 0});
        ok(eas_node_input(1, EAS_F64, k, &n, 0, NULL, &seed));
        ok(eas_nodes_vjp(1, &x, 1, &y, &seed, 0, &g));
        ok(eas_program_new(2, NODES(x, seed), 1, &g, cpu, &p));
        DROP(x, y, g, seed);
        double v[5] = {2, -1, 0, 3, 0.5}, ct[5] = {1, 1, 1, 1, 1};
        eas_node *args[2] = {tensor(5, v), tensor(k ? 5 : 0, ct)};
        uint64_t before = eas_memory_stats(cpu).peak_bytes;
        ok(eas_program_run(p, 2, args, NULL, NULL, &r));
        assert_true(eas_memory_stats(cpu).peak_bytes < before + (1 << 20));
        for (int i = 0; i < 5; i++) {
            double want = 0;
            for (int last = k ? i : 4; last < 5; last++) {
                double others = 1;
                for (int j = 0; j <= last; j++)
                    others *= j == i ? 1 : v[j];
                want += others;
            }
            near(r, i, want);
        }
        DROP(args[0], args[1], r);
        eas_program_release(p);
    }
}

/* (4, 6 |) as (24 |): batch dims that are merged */
static void batch_dims_that_change(void **state)
{
    (void)state;
    double v[24];
    for (int i = 0; i < 24; i++)
        v[i] = i - 7;
    eas_node *flat = tensor(24, v), *x = op("reshape", 1, &flat, 3, (int64_t[]){2, 4, 6}), *in = variable(x),
             *g, *j;
    eas_node *lanes = op("incr_batch_dims", 1, &in, 0, NULL),
             *two = op("incr_batch_dims", 1, &lanes, 0, NULL);
    eas_node *merged = op("reshape_physical", 1, &two, 2, (int64_t[]){1, 24}),
             *y = op2("mul", merged, merged);
    ok(eas_nodes_vjp(1, &in, 1, &y, &merged, 0, &g));
    ok(eas_nodes_jvp(1, &in, &in, 1, &y, 0, &j));
    eas_node *gf = op("reshape", 1, &g, 2, (int64_t[]){1, 24}), *jf = op("decr_batch_dims", 1, &j, 0, NULL);
    for (int i = 0; i < 24; i++) {
        near(gf, i, 2 * v[i] * v[i]);
        near(jf, i, 2 * v[i] * v[i]);
    }
    DROP(flat, in, g, j, lanes, two, merged, y, gf, jf);
}

/* ---- loops and branches ---- */

/* Five times s = s s w: w^31 x^32 */
static void through_a_loop(void **state)
{
    (void)state;
    eas_node *x = variable(scalar(1.1)), *w = variable(scalar(0.9)), *s = like(x), *ss = op2("mul", s, s),
             *next = op2("mul", ss, w), *y, *g[2], *j;
    eas_loop l = {.ncarried = 1, .init = &x, .state = &s, .next = &next, .length = 5};
    ok(eas_node_loop(&l, &y));
    eas_node *one = scalar(1), *in[2] = {x, w};
    double by_x = 32 * pow(0.9, 31) * pow(1.1, 31), by_w = 31 * pow(0.9, 30) * pow(1.1, 32);
    ok(eas_nodes_vjp(2, in, 1, &y, &one, 0, g));
    near(g[0], 0, by_x);
    near(g[1], 0, by_w);
    ok(eas_nodes_jvp(2, in, NODES(one, one), 1, &y, 0, &j));
    near(j, 0, by_x + by_w);
    DROP(x, w, s, ss, next, y, g[0], g[1], j, one);
}

/* s = s + e e over elements; what is stacked is 2 s e */
static void through_elements(void **state)
{
    (void)state;
    double v[4] = {1, -2, 3, 0.5}, want[4] = {0};
    for (int reverse = 0; reverse < 2; reverse++) {
        eas_node *xs = variable(tensor(4, v)), *init = scalar(0.25), *s = like(init), *e = like(init),
                 *ee = op2("mul", e, e), *next = op2("add", s, ee);
        eas_node *se = op2("mul", s, e), *twice = with("mul", se, 2), *r[2];
        eas_loop l = {.ncarried = 1,
                      .init = &init,
                      .state = &s,
                      .next = &next,
                      .length = 4,
                      .nscanned = 1,
                      .scanned = &xs,
                      .element = &e,
                      .nstacked = 1,
                      .stacked = &twice,
                      .reverse = reverse};
        ok(eas_node_loop(&l, r));
        eas_node *total = sum(r[1]), *y = op2("add", total, r[0]), *g = gradient(y, xs),
                 *j = tangent(y, xs, xs);
        double state_now = 0.25, along = 0;
        memset(want, 0, sizeof want);
        for (int t = 0; t < 4; t++) { /* y = S_4 + sum of 2 S_t e_t, where S_t = 1/4 + the squares before */
            int i = reverse ? 3 - t : t;
            want[i] += 2 * state_now + 2 * v[i];
            for (int before = 0; before < t; before++)
                want[reverse ? 3 - before : before] += 2 * v[i] * 2 * v[reverse ? 3 - before : before];
            state_now += v[i] * v[i];
        }
        for (int i = 0; i < 4; i++) {
            near(g, i, want[i]);
            along += want[i] * v[i];
        }
        near(j, 0, along);
        DROP(xs, init, s, e, ee, next, se, twice, r[0], r[1], total, y, g, j);
    }
}

/* while s < 100: s = s w */
static void through_a_condition(void **state)
{
    (void)state;
    for (int bounded = 0; bounded < 2; bounded++) {
        eas_node *x = variable(scalar(3)), *w = variable(scalar(2)), *s = like(x),
                 *test = with("less", s, 100), *next = op2("mul", s, w), *y, *g = NULL;
        eas_loop l = {.ncarried = 1,
                      .init = &x,
                      .state = &s,
                      .next = &next,
                      .condition = test,
                      .length = bounded ? 20 : EAS_DIM_NONE};
        ok(eas_node_loop(&l, &y));
        near(y, 0, 192);
        eas_node *one = scalar(1), *j = tangent(y, w, one);
        near(j, 0, 3 * 6 * 32);
        eas_status st = eas_nodes_vjp(1, &w, 1, &y, &one, 0, &g);
        if (bounded) {
            ok(st);
            near(g, 0, 3 * 6 * 32);
        } else {
            assert_int_equal(st, EAS_ERR_VALUE);
            assert_non_null(strstr(eas_error_message(), "how many there can be"));
            assert_null(g);
        }
        DROP(x, w, s, test, next, y, one, j, g);
    }
}

/* if x > 0: exp(x w) else w w w; each side on its own has no derivative by something */
static void through_a_branch(void **state)
{
    (void)state;
    for (int yes = 0; yes < 2; yes++) {
        double v = yes ? 0.75 : -0.75;
        eas_node *x = variable(scalar(v)), *w = variable(scalar(2)), *flag = with("greater", x, 0), *y, *g[2],
                 *j, *one = scalar(1);
        eas_branch_begin();
        eas_node *xw = op2("mul", x, w), *a = op1("exp", xw), *ww = op2("mul", w, w), *b = op2("mul", ww, w);
        ok(eas_branch_end(flag, 1, &a, &b, &y));
        ok(eas_nodes_vjp(2, NODES(x, w), 1, &y, &one, 0, g));
        near(g[0], 0, yes ? 2 * exp(2 * v) : 0);
        near(g[1], 0, yes ? v * exp(2 * v) : 12);
        ok(eas_nodes_jvp(2, NODES(x, w), NODES(one, one), 1, &y, 0, &j));
        near(j, 0, yes ? (2 + v) * exp(2 * v) : 12);
        DROP(x, w, flag, y, g[0], g[1], j, one, xw, a, ww, b);
    }
}

/* ---- rules of one's own ---- */

static int dropped;
static void count_drop(void *ctx) { dropped += *(int *)ctx; }

/* Of x y: gradients that are ten times too large, to be told apart. */
static eas_status tenfold_back(void *ctx, int nin, eas_node *const *in, eas_node *const *ct, eas_node **grads)
{
    (void)ctx;
    assert_int_equal(nin, 2);
    for (int i = 0; i < 2; i++) {
        eas_node *p = op2("mul", ct[0], in[1 - i]);
        grads[i] = with("mul", p, 10);
        eas_node_release(p);
    }
    return EAS_OK;
}
static eas_status tenfold_forth(void *ctx, int nin, eas_node *const *in, eas_node *const *t, eas_node **out)
{
    eas_node *both = NULL;
    (void)ctx;
    for (int i = 0; i < nin; i++) {
        if (!t[i])
            continue;
        eas_node *p = op2("mul", t[i], in[1 - i]), *q = both ? op2("add", both, p) : eas_node_retain(p);
        DROP(p, both);
        both = q;
    }
    out[0] = both ? with("mul", both, 10) : NULL;
    eas_node_release(both);
    return EAS_OK;
}
static eas_status refuse(void *ctx, int nin, eas_node *const *in, eas_node *const *t, eas_node **out)
{
    (void)ctx, (void)nin, (void)in, (void)t, (void)out;
    eas_node *x = scalar(1), *bad = NULL;
    /* its message is the user's own */
    eas_status st =
        eas_node_apply((eas_tensor_op)eas_tensor_op_find("matmul"), 2, NODES(x, x), 0, NULL, &bad);
    eas_node_release(x);
    return st;
}

/* x y with a rule; then its square root */
static eas_node *tenfold(eas_node *x, eas_node *y, eas_vjp_rule vjp, eas_jvp_rule jvp)
{
    static int one = 1;
    eas_node *p = op2("mul", x, y), *c, *r;
    ok(eas_nodes_custom(1, &p, 2, NODES(x, y), vjp, jvp, &one, count_drop, &c));
    r = op1("sqrt", c);
    DROP(p, c);
    return r;
}

static void rules(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) { /* reverse; forward, transposed where reverse is asked for; both */
        dropped = 0;
        eas_node *x = variable(scalar(2)), *y = variable(scalar(8)), *one = scalar(1), *in[2] = {x, y}, *g[2],
                 *j = NULL;
        eas_node *r = tenfold(x, y, how != 1 ? tenfold_back : NULL, how != 0 ? tenfold_forth : NULL);
        near(r, 0, 4);
        ok(eas_nodes_vjp(2, in, 1, &r, &one, 0, g));
        near(g[0], 0, 10 * 8 / 8.0);
        near(g[1], 0, 10 * 2 / 8.0);
        eas_status st = eas_nodes_jvp(2, in, NODES(one, NULL), 1, &r, 0, &j);
        if (how == 0) {
            assert_int_equal(st, EAS_ERR_UNAVAILABLE);
            assert_non_null(strstr(eas_error_message(), "reverse mode only"));
            assert_null(j);
        } else {
            ok(st);
            near(j, 0, 10 * 8 / 8.0);
        }
        assert_int_equal(dropped, 0);
        DROP(x, y, one, r, g[0], g[1], j);
        assert_int_equal(dropped, 1);
    }
    eas_node *x = variable(scalar(2)), *one = scalar(1), *g = NULL, *r = tenfold(x, x, refuse, refuse);
    assert_int_not_equal(eas_nodes_vjp(1, &x, 1, &r, &one, 0, &g), EAS_OK);
    assert_null(g);
    assert_int_not_equal(eas_nodes_jvp(1, &x, &one, 1, &r, 0, &g), EAS_OK);
    assert_non_null(strstr(eas_error_message(), "matmul"));
    DROP(x, one, r);
}

/* ---- checkpoints ---- */

static void checkpoints(void **state)
{
    (void)state;
    double v[3] = {0.5, -1, 2}, plain[3];
    for (int again = 0; again < 2; again++) {
        eas_node *x = variable(tensor(3, v)), *s = op1("sin", x), *e = op1("exp", s), *h = op2("mul", e, s),
                 *c;
        if (again)
            ok(eas_nodes_checkpoint(1, &h, 1, &x, &c));
        else
            c = eas_node_retain(h);
        DROP(s, e, h);
        eas_node *cc = op2("mul", c, c), *y = sum(cc), *g = gradient(y, x), *j = tangent(y, x, x);
        double along = 0;
        for (int i = 0; i < 3; i++) {
            double sv = sin(v[i]), f = exp(sv) * sv, slope = 2 * f * cos(v[i]) * exp(sv) * (sv + 1);
            near(g, i, slope);
            plain[i] = again ? plain[i] : item(g, i);
            assert_true(item(g, i) == plain[i]);
            along += slope * v[i];
        }
        near(j, 0, along);
        DROP(x, c, cc, y, g, j);
    }
}

/* ---- what is kept ---- */

static void leaves_and_forgetting(void **state)
{
    (void)state;
    uint64_t before = eas_lazy_stats_get().live_nodes;
    eas_node *x = scalar(2), *w = scalar(3), *k = scalar(5), **found;
    eas_node_set_traced(x, 1);
    eas_node_set_traced(w, 1);
    eas_node *a = op2("mul", x, k), *b = op2("mul", a, w), *y = op2("add", b, a);
    int count;
    assert_true(eas_node_is_traced(y));
    near(y, 0, 40);
    ok(eas_node_leaves(y, &found, &count));
    assert_int_equal(count, 2);
    assert_true((found[0] == x && found[1] == w) || (found[0] == w && found[1] == x));
    eas_memory_free(found);
    ok(eas_node_leaves(k, &found, &count));
    assert_int_equal(count, 0);
    eas_memory_free(found);
    eas_node *g = gradient(y, x), *const * in;
    near(g, 0, 5 * 3 + 5);
    eas_node_release(g);
    assert_int_equal(eas_node_inputs(y, &in), 2);
    ok(eas_node_forget(y));
    assert_int_equal(eas_node_inputs(y, &in), 0);
    assert_true(!eas_node_is_traced(y) && eas_node_is_traced(x) && eas_node_is_traced(w));
    near(y, 0, 40);
    assert_null(gradient(y, x));
    DROP(x, w, k, a, b, y);
    assert_true(eas_lazy_stats_get().live_nodes <= before + 4); /* numbers are remembered */
}

static void another_name_keeps_nothing(void **state)
{
    (void)state;
    eas_node *x = variable(scalar(2)), *y = op2("mul", x, x), *plain, *const * in;
    assert_true(eas_node_is_taped(x) && eas_node_is_taped(y));
    ok(eas_node_untaped(y, &plain));
    assert_false(eas_node_is_taped(plain));
    near(plain, 0, 4);
    assert_int_equal(eas_node_inputs(plain, &in), 0);
    near(y, 0, 4);
    assert_int_equal(eas_node_inputs(y, &in), 2);
    DROP(x, y, plain);
}

static void turned_off(void **state)
{
    (void)state;
    eas_node *x = variable(scalar(2));
    assert_int_equal(eas_grad_set_enabled(0), 1);
    eas_node *y = op2("mul", x, x);
    assert_int_equal(eas_grad_set_enabled(1), 0);
    eas_node *z = op2("mul", y, x), *g = gradient(z, x), *none = gradient(y, x);
    near(g, 0, 4); /* y counts as a constant */
    assert_null(none);
    DROP(x, y, z, g);
}

static void nothing_depends(void **state)
{
    (void)state;
    double v[2] = {1, 2};
    eas_node *x = variable(tensor(2, v)), *w = variable(scalar(3)), *y = sum(x), *floor = op1("floor", x),
             *whole = op("cast", 1, &x, 1, (int64_t[]){EAS_I32});
    eas_node *stopped = op1("stop_gradient", x), *in[2] = {x, w}, *outs[4] = {y, floor, stopped, w},
             *one = scalar(1), *g[2], *j[4];
    ok(eas_nodes_vjp(2, in, 1, &y, &one, 0, g));
    assert_non_null(g[0]);
    assert_null(g[1]);
    eas_node_release(g[0]);
    ok(eas_nodes_jvp(2, in, NODES(x, NULL), 4, outs, 0, j));
    near(j[0], 0, 3);
    assert_null(j[1]);
    assert_null(j[2]);
    assert_null(j[3]);
    eas_node_release(j[0]);
    eas_node *back = op("cast", 1, &whole, 1, (int64_t[]){EAS_F64}); /* integers have none */
    ok(eas_nodes_jvp(1, &x, &x, 1, &back, 0, j));
    assert_null(j[0]);
    DROP(x, w, y, floor, whole, stopped, one, back);
}

/* ---- what is refused ---- */

static void wrong_tangents(void **state)
{
    (void)state;
    double v[3] = {1, 2, 3};
    uint64_t before = eas_lazy_stats_get().live_nodes;
    eas_node *x = variable(tensor(3, v)), *y = op2("mul", x, x), *shorter = tensor(2, v), *flat = scalar(1),
             *out = x;
    eas_node *narrow = op("cast", 1, &x, 1, (int64_t[]){EAS_F32}),
             *whole = op("cast", 1, &x, 1, (int64_t[]){EAS_I64});
    struct {
        eas_node *t;
        const char *says;
    } bad[] = {{shorter, "f64(2,)"}, {flat, "f64()"}, {narrow, "f32(3,)"}, {whole, "i64(3,)"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(eas_nodes_jvp(1, &x, &bad[i].t, 1, &y, 0, &out), EAS_ERR_VALUE);
        assert_non_null(strstr(eas_error_message(), "tangent 0 is"));
        assert_non_null(strstr(eas_error_message(), bad[i].says));
        assert_non_null(strstr(eas_error_message(), "f64(3,) is wanted"));
        assert_null(out);
        assert_int_equal(eas_nodes_vjp(1, &x, 1, &y, &bad[i].t, 0, &out), EAS_ERR_VALUE);
        assert_non_null(strstr(eas_error_message(), "cotangent 0 is"));
        assert_non_null(strstr(eas_error_message(), bad[i].says));
        assert_null(out);
    }
    eas_node *all = sum(y);
    out = gradient(all, x);
    near(out, 1, 4);
    DROP(x, y, shorter, flat, narrow, whole, all, out);
    assert_true(eas_lazy_stats_get().live_nodes <= before + 4); /* numbers are remembered */
}

/* ---- long chains ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct chain {
    int length;
    double back, forth; /* seconds of its thread, the least */
    eas_status st;
    char message[256];
} chain;

/* x w sin w sin ..., over placeholders: nothing is computed, so all of it is there. No assertions: it runs on
 * a thread of its own. */
static void *differentiate_chain(void *arg)
{
    chain *c = arg;
    eas_node *x = NULL, *w = NULL, *t = NULL, *y, *g[2] = {NULL, NULL}, *j = NULL;
    eas_tensor_op mul = (eas_tensor_op)eas_tensor_op_find("mul"),
                  sine = (eas_tensor_op)eas_tensor_op_find("sin");
    c->st = eas_node_input(0, EAS_F64, 0, NULL, 0, NULL, &x);
    c->st = c->st ? c->st : eas_node_input(1, EAS_F64, 0, NULL, 0, NULL, &w);
    c->st = c->st ? c->st : eas_node_input(2, EAS_F64, 0, NULL, 0, NULL, &t);
    y = eas_node_retain(x);
    for (int i = 0; i < c->length && !c->st; i++) {
        eas_node *next = NULL;
        c->st = eas_node_apply(i % 2 ? sine : mul, i % 2 ? 1 : 2, NODES(y, w), 0, NULL, &next);
        eas_node_release(y);
        y = next;
    }
    double start = now();
    c->st = c->st ? c->st : eas_nodes_vjp(2, NODES(x, w), 1, &y, &t, 0, g);
    double middle = now();
    c->st = c->st ? c->st : eas_nodes_jvp(2, NODES(x, w), NODES(t, t), 1, &y, 0, &j);
    double end = now();
    c->back = c->back ? fmin(c->back, middle - start) : middle - start;
    c->forth = c->forth ? fmin(c->forth, end - middle) : end - middle;
    if (c->st)
        snprintf(c->message, sizeof c->message, "%s", eas_error_message());
    else if (!g[0] || !g[1] || !j) {
        c->st = EAS_ERR_INTERNAL;
        snprintf(c->message, sizeof c->message, "no derivative");
    }
    DROP(x, w, t, y, g[0], g[1], j);
    return NULL;
}

static void on_a_small_stack(chain *c)
{
    pthread_attr_t small;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&small), 0);
    /* under three bytes for each operation of the long chain */
    assert_int_equal(pthread_attr_setstacksize(&small, 512 << 10), 0);
    assert_int_equal(pthread_create(&thread, &small, differentiate_chain, c), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&small);
    if (c->st)
        fail_msg("%s", c->message);
}

static void long_chains(void **state)
{
    (void)state;
    chain few = {.length = 25000}, many = {.length = 200000}; /* neither fits into a cache */
    for (int i = 0; i < 4; i++) {
        on_a_small_stack(&few);
        on_a_small_stack(&many);
    }
    /* 8 if it is linear, 64 if it is quadratic */
    if (many.back >= 24 * few.back || many.forth >= 24 * few.forth)
        fail_msg("back %.2f ms for 25000 and %.2f ms for 200000, forth %.2f and %.2f", 1e3 * few.back,
                 1e3 * many.back, 1e3 * few.forth, 1e3 * many.forth);
}

/* The same with values: an even number of negations */
static void long_chains_have_values(void **state)
{
    (void)state;
    eas_node *x = variable(scalar(2)), *y = eas_node_retain(x);
    for (int i = 0; i < 2000; i++) {
        eas_node *next = op1("neg", y);
        eas_node_release(y);
        y = next;
    }
    eas_node *yy = op2("mul", y, y), *g = gradient(yy, x), *j = tangent(yy, x, x);
    near(g, 0, 4);
    near(j, 0, 8);
    DROP(x, y, yy, g, j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_modes),
                                       cmocka_unit_test(derivatives_of_derivatives),
                                       cmocka_unit_test(as_a_program),
                                       cmocka_unit_test(products_of_any_length),
                                       cmocka_unit_test(batch_dims_that_change),
                                       cmocka_unit_test(through_a_loop),
                                       cmocka_unit_test(through_elements),
                                       cmocka_unit_test(through_a_condition),
                                       cmocka_unit_test(through_a_branch),
                                       cmocka_unit_test(rules),
                                       cmocka_unit_test(checkpoints),
                                       cmocka_unit_test(leaves_and_forgetting),
                                       cmocka_unit_test(another_name_keeps_nothing),
                                       cmocka_unit_test(turned_off),
                                       cmocka_unit_test(nothing_depends),
                                       cmocka_unit_test(wrong_tangents),
                                       cmocka_unit_test(long_chains),
                                       cmocka_unit_test(long_chains_have_values)};
    ok(eas_device_get("cpu", &cpu));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
