/* Loops and branches from C: values against plain loops, in programs and outside, nested, in lanes; what is
 * refused leaves nothing behind. */
#include "nodes.h"

#include <stdlib.h>
#include <string.h>

static eas_device *cpu;

static eas_node *with(const char *name, eas_node *x, double v)
{
    eas_node *n = number(v), *r = op2(name, x, n);
    eas_node_release(n);
    return r;
}
static eas_node *tensor(int rank, const int64_t *shape, const float *v)
{
    size_t n = sizeof(float);
    eas_buffer *buf;
    eas_node *x;
    for (int i = 0; i < rank; i++)
        n *= (size_t)shape[i];
    ok(eas_buffer_new(cpu, n, &buf));
    if (n)
        memcpy(eas_buffer_host(buf), v, n);
    ok(eas_node_from_buffer(buf, EAS_F32, rank, shape, 0, NULL, &x));
    eas_buffer_release(buf);
    return x;
}
static eas_node *like(const eas_node *x)
{
    eas_node *n;
    ok(eas_node_input(-1, eas_node_dtype(x), eas_node_rank(x), eas_node_shape(x), eas_node_batch_dims(x),
                      NULL, &n));
    return n;
}
static const float *data(eas_node *n)
{
    int64_t offset, strides[16];
    ok(eas_nodes_realize(1, &n, NULL, NULL));
    return eas_buffer_host(eas_node_buffer(n, &offset, strides));
}
static void drop(int n, eas_node **x)
{
    for (int i = 0; i < n; i++)
        eas_node_release(x[i]);
}

/* while x < limit: x = x*by + step */
static eas_node *grow_until(eas_node *x, double limit, double by, eas_node *step)
{
    eas_node *s = like(x), *test = with("less", s, limit), *scaled = with("mul", s, by),
             *next = op2("add", scaled, step), *out;
    eas_loop l = {
        .ncarried = 1, .init = &x, .state = &s, .next = &next, .condition = test, .length = EAS_DIM_NONE};
    ok(eas_node_loop(&l, &out));
    drop(4, (eas_node *[]){s, test, scaled, next});
    return out;
}
static float grown(float x, float limit, float by, float step)
{
    while (x < limit)
        x = x * by + step;
    return x;
}

static void a_loop(void **state)
{
    (void)state;
    float one = 1, step = 2.5f;
    eas_node *x = tensor(0, NULL, &one), *s = tensor(0, NULL, &step);
    for (int i = 0; i < 3; i++) {
        float limits[] = {100, 1e6f, -5};
        eas_node *r = grow_until(x, limits[i], 1.75, s);
        assert_true(data(r)[0] == grown(1, limits[i], 1.75f, step));
        eas_node_release(r);
    }
    drop(2, (eas_node *[]){x, s});
}

/* The same as a function that is compiled: the limit of trips counts as well. */
static void in_a_program(void **state)
{
    (void)state;
    eas_node *x, *s, *out, *results[1];
    eas_program *p;
    ok(eas_node_input(0, EAS_F32, 0, NULL, 0, NULL, &x));
    ok(eas_node_input(1, EAS_F32, 0, NULL, 0, NULL, &s));
    eas_node *inner = with("mul", s, 2), *grownup = grow_until(x, 50, 1.25, inner);
    out = with("add", grownup, 1);
    ok(eas_program_new(2, (eas_node *[]){x, s}, 1, &out, cpu, &p));
    drop(5, (eas_node *[]){x, s, inner, grownup, out});
    for (int i = 0; i < 4; i++) {
        float a = (float)i, b = 0.75f * (float)(i + 1);
        eas_node *args[2] = {tensor(0, NULL, &a), tensor(0, NULL, &b)};
        ok(eas_program_run(p, 2, args, NULL, NULL, results));
        assert_true(data(results[0])[0] == grown(a, 50, 1.25f, 2 * b) + 1);
        eas_node_release(results[0]);
        drop(2, args);
    }
    eas_program_release(p);
}

static void elements_and_stacks(void **state)
{
    (void)state;
    float v[12], zero[3] = {0, 0, 0};
    for (int i = 0; i < 12; i++)
        v[i] = (float)(i * i % 7);
    for (int reverse = 0; reverse < 2; reverse++) {
        eas_node *xs = tensor(2, (int64_t[]){4, 3}, v), *init = tensor(1, (int64_t[]){3}, zero),
                 *s = like(init), *e = like(init);
        eas_node *next = op2("add", s, e), *twice = with("mul", e, 2), *r[4];
        eas_node *stacked[3] = {next, twice, s};
        eas_loop l = {.ncarried = 1,
                      .init = &init,
                      .state = &s,
                      .next = &next,
                      .length = 4,
                      .nscanned = 1,
                      .scanned = &xs,
                      .element = &e,
                      .nstacked = 3,
                      .stacked = stacked,
                      .reverse = reverse};
        ok(eas_node_loop(&l, r));
        ok(eas_nodes_realize(4, r, NULL, NULL));
        float sum[3] = {0, 0, 0};
        for (int t = 0; t < 4; t++) {
            int i = reverse ? 3 - t : t;
            for (int k = 0; k < 3; k++) {
                assert_true(data(r[3])[i * 3 + k] == sum[k]);
                sum[k] += v[i * 3 + k];
                assert_true(data(r[1])[i * 3 + k] == sum[k] && data(r[2])[i * 3 + k] == 2 * v[i * 3 + k]);
            }
        }
        assert_memory_equal(data(r[0]), sum, sizeof sum);
        drop(4, r);
        drop(6, (eas_node *[]){xs, init, s, e, next, twice});
    }
}

static void lanes_that_are_done_wait(void **state)
{
    (void)state;
    float v[3] = {1, 40, 200}, step = 1;
    eas_node *x = tensor(1, (int64_t[]){3}, v), *s = tensor(0, NULL, &step);
    eas_node_set_batch_dims(x, 1);
    eas_node *r = grow_until(x, 100, 2, s);
    assert_int_equal(eas_node_batch_dims(r), 1);
    for (int i = 0; i < 3; i++)
        assert_true(data(r)[i] == grown(v[i], 100, 2, 1));
    drop(3, (eas_node *[]){x, s, r});
}

/* Only one side runs: a chain of kernels tells by their number. */
static void branches(void **state)
{
    (void)state;
    float v[4] = {1, 2, 3, 4};
    eas_node *in, *flag, *m, *r;
    eas_program *p;
    ok(eas_node_input(0, EAS_F32, 2, (eas_dim[]){2, 2}, 0, NULL, &m));
    ok(eas_node_input(1, EAS_F32, 0, NULL, 0, NULL, &in));
    flag = with("greater", in, 0);
    eas_branch_begin();
    eas_node *a = op2("matmul", m, m), *yes = op2("matmul", a, m), *no = with("mul", m, 3);
    ok(eas_branch_end(flag, 1, &yes, &no, &r));
    ok(eas_program_new(2, (eas_node *[]){m, in}, 1, &r, cpu, &p));
    char *text;
    ok(eas_program_show(p, "text", &text));
    assert_non_null(strstr(text, "branch"));
    eas_memory_free(text);
    drop(7, (eas_node *[]){in, flag, m, a, yes, no, r});
    for (int i = 0; i < 2; i++) {
        float sign = i ? 1 : -1;
        eas_node *args[2] = {tensor(2, (int64_t[]){2, 2}, v), tensor(0, NULL, &sign)}, *result;
        uint64_t before = eas_lazy_stats_get().steps;
        ok(eas_program_run(p, 2, args, NULL, NULL, &result));
        assert_int_equal(eas_lazy_stats_get().steps - before, i ? 3 : 2);
        assert_true(data(result)[3] == (i ? 118.0f : 12.0f));
        eas_node_release(result);
        drop(2, args);
    }
    eas_program_release(p);
}

static void what_is_refused(void **state)
{
    (void)state;
    float v[2] = {0, 0};
    uint64_t before = eas_lazy_stats_get().live_nodes;
    eas_node *x = tensor(1, (int64_t[]){2}, v), *s = like(x),
             *sum = op("reduce_sum", 1, &s, 2, (int64_t[]){-1, 0}), *next = with("add", s, 1);
    eas_node *less = with("less", s, 3), *out;
    eas_loop wide = {
        .ncarried = 1, .init = &x, .state = &s, .next = &sum, .condition = sum, .length = EAS_DIM_NONE};
    assert_int_equal(eas_node_loop(&wide, &out), EAS_ERR_TYPE);
    assert_non_null(
        strstr(eas_error_message(), "carried value 0 begins as f32(2,), and the body makes it f32()"));
    eas_loop many = {
        .ncarried = 1, .init = &x, .state = &s, .next = &next, .condition = less, .length = EAS_DIM_NONE};
    assert_int_equal(eas_node_loop(&many, &out), EAS_ERR_VALUE);
    eas_loop endless = {.ncarried = 1, .init = &x, .state = &s, .next = &next, .length = EAS_DIM_NONE};
    assert_int_equal(eas_node_loop(&endless, &out), EAS_ERR_VALUE);
    eas_loop stacks = {.ncarried = 1,
                       .init = &x,
                       .state = &s,
                       .next = &next,
                       .condition = sum,
                       .length = 3,
                       .nstacked = 1,
                       .stacked = &next};
    assert_int_equal(eas_node_loop(&stacks, &out), EAS_ERR_VALUE);
    eas_loop scans = {.ncarried = 1,
                      .init = &x,
                      .state = &s,
                      .next = &next,
                      .length = 3,
                      .nscanned = 1,
                      .scanned = &x,
                      .element = &s};
    assert_int_equal(eas_node_loop(&scans, &out), EAS_ERR_VALUE);
    assert_int_equal(eas_branch_end(x, 0, NULL, NULL, NULL), EAS_ERR_RUNTIME);
    eas_branch_begin();
    assert_int_equal(eas_branch_end(x, 0, NULL, NULL, NULL), EAS_ERR_TYPE);
    drop(5, (eas_node *[]){x, s, sum, next, less});
    assert_true(eas_lazy_stats_get().live_nodes <= before + 4); /* numbers are remembered */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_loop),
                                       cmocka_unit_test(in_a_program),
                                       cmocka_unit_test(elements_and_stacks),
                                       cmocka_unit_test(lanes_that_are_done_wait),
                                       cmocka_unit_test(branches),
                                       cmocka_unit_test(what_is_refused)};
    ok(eas_device_get("cpu", &cpu));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
