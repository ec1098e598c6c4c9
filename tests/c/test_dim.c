/* Sizes that are expressions: equal ones are one number, with one text, whatever the way they were made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include "../../src/graph/graph.h"

static eas_dim sym(const char *name)
{
    eas_dim d;
    assert_int_equal(eas_dim_symbol(name, &d), EAS_OK);
    assert_true(d < 0 && d != -1 && dim_is_expr(d));
    return d;
}

static eas_dim op(eas_dim_op o, eas_dim a, eas_dim b)
{
    eas_dim d;
    assert_int_equal(eas_dim_apply(o, a, b, &d), EAS_OK);
    return d;
}
static eas_dim add(eas_dim a, eas_dim b) { return op(EAS_DIM_ADD, a, b); }
static eas_dim sub(eas_dim a, eas_dim b) { return op(EAS_DIM_SUB, a, b); }
static eas_dim mul(eas_dim a, eas_dim b) { return op(EAS_DIM_MUL, a, b); }
static eas_dim quo(eas_dim a, eas_dim b) { return op(EAS_DIM_FLOORDIV, a, b); }
static eas_dim mod(eas_dim a, eas_dim b) { return op(EAS_DIM_MOD, a, b); }
static eas_dim min(eas_dim a, eas_dim b) { return op(EAS_DIM_MIN, a, b); }
static eas_dim max(eas_dim a, eas_dim b) { return op(EAS_DIM_MAX, a, b); }

static void reads(eas_dim d, const char *text)
{
    char *s;
    assert_int_equal(eas_dim_text(d, &s), EAS_OK);
    assert_string_equal(s, text);
    eas_memory_free(s);
}

static int64_t value(eas_dim d, int64_t batch, int64_t n)
{
    int64_t v, w;
    assert_int_equal(eas_dim_value(d, 2, (const char *[]){"batch", "n"}, (int64_t[]){batch, n}, &v), EAS_OK);
    assert_int_equal(dim_eval(d, 2, (eas_dim[]){sym("batch"), sym("n")}, (int64_t[]){batch, n}, &w), EAS_OK);
    assert_int_equal(v, w);
    return v;
}

static void numbers(void **state)
{
    (void)state;
    assert_int_equal(add(2, 3), 5);
    assert_int_equal(sub(2, 3), -1);
    assert_int_equal(quo(7, 2), 3);
    assert_int_equal(quo(-7, 2), -4);
    assert_int_equal(mod(-7, 3), 2);
    assert_int_equal(mod(-7, -3), -1);
    assert_int_equal(min(2, 3), 2);
    assert_int_equal(max(2, 3), 3);
    eas_dim d;
    assert_int_equal(eas_dim_apply(EAS_DIM_FLOORDIV, 3, 0, &d), EAS_ERR_VALUE);
    assert_int_equal(eas_dim_apply(EAS_DIM_MOD, sym("n"), 0, &d), EAS_ERR_VALUE);
    assert_int_equal(eas_dim_apply(EAS_DIM_MUL, INT64_C(1) << 40, INT64_C(1) << 40, &d), EAS_ERR_VALUE);
    assert_int_equal(eas_dim_apply(EAS_DIM_SUB, -(INT64_C(1) << 62), INT64_C(1) << 62, &d), EAS_ERR_VALUE);
    assert_int_equal(eas_dim_apply((eas_dim_op)99, 1, 1, &d), EAS_ERR_VALUE);
    assert_int_equal(eas_dim_apply((eas_dim_op)99, sym("n"), 1, &d), EAS_ERR_VALUE);
    /* nobody made this one */
    assert_int_equal(eas_dim_apply(EAS_DIM_ADD, INT64_MIN + 1000000, 1, &d), EAS_ERR_VALUE);
}

static void equal_ones_are_one(void **state)
{
    (void)state;
    eas_dim b = sym("batch"), n = sym("n");
    assert_int_equal(b, sym("batch"));
    assert_true(b != n);
    assert_int_equal(add(b, n), add(n, b));
    assert_int_equal(mul(add(b, 1), add(b, -1)), sub(mul(b, b), 1));
    assert_int_equal(sub(add(b, 3), b), 3);
    assert_int_equal(mul(b, 0), 0);
    assert_int_equal(min(b, n), min(n, b));
    assert_int_equal(max(mul(b, 2), n), max(n, add(b, b)));
    assert_int_equal(quo(add(mul(b, 4), 2), 2), add(mul(b, 2), 1));
    assert_int_equal(quo(add(mul(b, 4), 3), 2), add(mul(b, 2), 1));
    assert_int_equal(mod(add(mul(b, 4), 3), 2), 1);
    assert_int_equal(mod(add(b, 7), 3), mod(add(b, 1), 3));
    assert_int_equal(quo(mul(b, n), n), b);
    assert_int_equal(mod(mul(b, n), n), 0);
    assert_int_equal(max(b, 0), b); /* sizes are not negative */
    assert_int_equal(min(b, 0), 0);
    assert_int_equal(max(add(b, 2), b), add(b, 2));
    assert_int_equal(min(add(b, n), b), b);
    assert_int_equal(max(quo(b, 2), 0), quo(b, 2));
    assert_int_equal(max(min(b, n), 0), min(b, n));
}

static void texts(void **state)
{
    (void)state;
    eas_dim b = sym("batch"), n = sym("n");
    reads(7, "7");
    reads(b, "batch");
    reads(add(mul(b, 2), 1), "2*batch + 1");
    reads(sub(1, b), "-batch + 1");
    reads(add(mul(n, b), sub(mul(b, mul(b, 3)), n)), "3*batch**2 + batch*n - n");
    reads(quo(add(b, 1), 2), "floordiv(batch + 1, 2)");
    reads(mod(b, n), "mod(batch, n)");
    reads(min(3, b), "min(batch, 3)");
    reads(max(n, b), "max(batch, n)");
    char buf[64], small[8];
    assert_string_equal(shape_text(buf, sizeof buf, 2, (eas_dim[]){2, b}), "(2, batch)");
    assert_string_equal(shape_text(buf, sizeof buf, 1, (eas_dim[]){4}), "(4,)");
    assert_string_equal(shape_text(buf, sizeof buf, 0, NULL), "()");
    assert_string_equal(shape_text(small, sizeof small, 2, (eas_dim[]){123456, 7}), "(123456");
}

static void values(void **state)
{
    (void)state;
    eas_dim b = sym("batch"), n = sym("n");
    eas_dim all = add(mul(quo(add(b, 1), 2), mod(n, 5)), max(min(b, n), 3));
    for (int64_t i = 0; i < 12; i++)
        for (int64_t k = 0; k < 12; k++)
            assert_int_equal(value(all, i, k),
                             (i + 1) / 2 * (k % 5) + ((i < k ? i : k) > 3 ? (i < k ? i : k) : 3));
    int64_t v;
    assert_int_equal(eas_dim_value(add(b, sym("other")), 1, (const char *[]){"batch"}, (int64_t[]){3}, &v),
                     EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "'other' has no value"));
    assert_int_equal(eas_dim_value(mod(b, n), 2, (const char *[]){"batch", "n"}, (int64_t[]){3, 0}, &v),
                     EAS_ERR_VALUE);
}

static void division(void **state)
{
    (void)state;
    eas_dim b = sym("batch"), n = sym("n"), d;
    assert_true(dim_divides(12, 4, &d) && d == 3);
    assert_false(dim_divides(12, 5, &d));
    assert_false(dim_divides(0, 0, &d));
    assert_true(dim_divides(mul(mul(b, n), 6), mul(b, 2), &d));
    assert_int_equal(d, mul(n, 3));
    assert_true(dim_divides(sub(mul(b, b), 1), add(b, 1), &d));
    assert_int_equal(d, sub(b, 1));
    assert_false(dim_divides(b, 2, &d));
    assert_false(dim_divides(b, n, &d));
    assert_int_equal(dim_product(3, (eas_dim[]){b, 2, n}), mul(mul(b, n), 2));
    assert_int_equal(dim_product(3, (eas_dim[]){INT64_C(1) << 40, INT64_C(1) << 40, 0}), 0);
    assert_int_equal(dim_product(2, (eas_dim[]){INT64_C(1) << 40, INT64_C(1) << 40}), DIM_NONE);
    int64_t scale, offset;
    assert_true(dim_linear(add(mul(b, 3), 2), &d, &scale, &offset));
    assert_true(d == b && scale == 3 && offset == 2);
    assert_false(dim_linear(mul(b, n), &d, &scale, &offset));
    assert_false(dim_linear(quo(b, 2), &d, &scale, &offset));
    assert_false(dim_linear(5, &d, &scale, &offset));
}

static void limits(void **state)
{
    (void)state;
    eas_dim d, b = sym("batch");
    for (int i = 0; i < 4; i++)
        assert_int_equal(eas_dim_symbol((const char *[]){"", "2x", "a b", "n+1"}[i], &d), EAS_ERR_VALUE);
    eas_dim p = b;
    eas_status st = EAS_OK;
    for (int i = 0; i < 30 && !st; i++)
        st = eas_dim_apply(EAS_DIM_MUL, p, b, &p);
    assert_int_equal(st, EAS_ERR_VALUE);
    p = b;
    st = EAS_OK;
    for (int i = 0; i < 200 && !st; i++)
        st = eas_dim_apply(EAS_DIM_MOD, add(p, 1), 1000 + i, &p);
    assert_int_equal(st, EAS_ERR_VALUE);
}

static void *work(void *arg)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    eas_dim *out = arg;
    for (int i = 0; i < 2000; i++) {
        eas_dim x, y;
        eas_dim_symbol(names[i % 4], &x);
        eas_dim_symbol(names[(i + 1) % 4], &y);
        eas_dim_apply(EAS_DIM_MUL, x, y, &x);
        eas_dim_apply(EAS_DIM_ADD, x, i % 50, &out[i % 200]);
    }
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    static eas_dim out[4][200];
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, work, out[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 1; i < 4; i++)
        assert_memory_equal(out[i], out[0], sizeof out[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers),     cmocka_unit_test(equal_ones_are_one),
                                       cmocka_unit_test(texts),       cmocka_unit_test(values),
                                       cmocka_unit_test(division),    cmocka_unit_test(limits),
                                       cmocka_unit_test(many_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
