/* Evaluating lazy tensors from C: values against plain loops, one program for what is needed, structure found
 * again, memory, symbols, threads. */
#include "nodes.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static eas_device *cpu;

/* ---- words ---- */

static eas_node *op1(const char *name, eas_node *x) { return op(name, 1, &x, 0, NULL); }
static eas_node *reduced(const char *name, eas_node *x, int64_t axis, int64_t keep)
{
    return op(name, 1, &x, 3, (int64_t[]){1, axis, keep});
}
static eas_node *softmax(eas_node *x) { return op("softmax", 1, &x, 1, (int64_t[]){-1}); }
static eas_node *turned(eas_node *x) { return op("permute", 1, &x, 3, (int64_t[]){2, 1, 0}); }

/* Lets its arguments go: expressions read as such. */
static eas_node *own2(const char *name, eas_node *x, eas_node *y)
{
    eas_node *r = op2(name, x, y);
    eas_node_release(x);
    eas_node_release(y);
    return r;
}
static eas_node *own1(eas_node *(*f)(eas_node *), eas_node *x)
{
    eas_node *r = f(x);
    eas_node_release(x);
    return r;
}

static eas_node *tensor_on(eas_device *d, int rank, const int64_t *shape, float (*f)(int64_t))
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= shape[i];
    float *v = malloc(sizeof *v * (size_t)(n + 1));
    eas_buffer *buf;
    eas_node *x;
    for (int64_t i = 0; i < n; i++)
        v[i] = f(i);
    ok(eas_buffer_new(d, sizeof *v * (size_t)n, &buf));
    if (n)
        ok(eas_device_copy(d, eas_buffer_address(buf), NULL, v, sizeof *v * (size_t)n, NULL));
    ok(eas_node_from_buffer(buf, EAS_F32, rank, shape, 0, NULL, &x));
    eas_buffer_release(buf);
    free(v);
    return x;
}
static eas_node *tensor(int64_t rows, int64_t cols, float (*f)(int64_t))
{
    return tensor_on(cpu, 2, (int64_t[]){rows, cols}, f);
}

static float wave(int64_t i) { return sinf((float)i * 0.37f); }
static float ramp(int64_t i) { return (float)(i % 17) * 0.25f - 2; }

/* The data of x, which becomes real; free it. */
static float *data(eas_node *x, int64_t *count)
{
    int64_t off, strides[17], n = 1;
    ok(eas_nodes_realize(1, &x, NULL, NULL));
    eas_buffer *buf = eas_node_buffer(x, &off, strides);
    for (int i = 0; i < eas_node_rank(x); i++)
        n *= eas_node_shape(x)[i];
    float *v = malloc(sizeof *v * (size_t)(n + 1));
    if (n)
        ok(eas_device_copy(NULL, v, eas_buffer_device(buf), (char *)eas_buffer_address(buf) + off * 4,
                           sizeof *v * (size_t)n, NULL));
    *count = n;
    return v;
}

static void near(eas_node *x, int64_t n, const float *want, float tol)
{
    int64_t count;
    float *v = data(x, &count);
    assert_int_equal(count, n);
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(v[i] - want[i]) <= tol * (1 + fabsf(want[i]))))
            fail_msg("element %lld is %g, not %g", (long long)i, (double)v[i], (double)want[i]);
    free(v);
}

/* ---- values ---- */

enum { R = 37, C = 53 };

static void softmax_of_rows(const float *x, int64_t rows, int64_t cols, float *out)
{
    for (int64_t r = 0; r < rows; r++) {
        float top = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++)
            top = fmaxf(top, x[r * cols + c]);
        for (int64_t c = 0; c < cols; c++)
            sum += out[r * cols + c] = expf(x[r * cols + c] - top);
        for (int64_t c = 0; c < cols; c++)
            out[r * cols + c] /= sum;
    }
}

static void rows_and_columns(void **state)
{
    float x[R * C], want[R * C], sums[C] = {0};
    eas_node *t = tensor(R, C, wave), *s = softmax(t), *columns = reduced("reduce_sum", t, 0, 0);
    (void)state;
    for (int i = 0; i < R * C; i++)
        sums[i % C] += x[i] = wave(i);
    softmax_of_rows(x, R, C, want);
    near(s, R * C, want, 1e-5f);
    near(columns, C, sums, 1e-5f);
    eas_node_release(t);
    eas_node_release(s);
    eas_node_release(columns);
}

/* Attention with every size that is no multiple of a tile, against the plain formula. */
static void attention(void **state)
{
    enum { S = 150, D = 24 };
    static float q[S * D], scores[S * S], weights[S * S], want[S * D];
    eas_node *x = tensor(S, D, wave), *v = tensor(S, D, ramp), *k = turned(x);
    (void)state;
    for (int i = 0; i < S * D; i++)
        q[i] = wave(i);
    for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++) {
            scores[i * S + j] = 0;
            for (int d = 0; d < D; d++)
                scores[i * S + j] += q[i * D + d] * q[j * D + d];
        }
    softmax_of_rows(scores, S, S, weights);
    memset(want, 0, sizeof want);
    for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++)
            for (int d = 0; d < D; d++)
                want[i * D + d] += weights[i * S + j] * ramp(j * D + d);
    eas_lazy_stats before = eas_lazy_stats_get();
    eas_node *r = own2("matmul", own1(softmax, op2("matmul", x, k)), v);
    near(r, S * D, want, 1e-4f);
    assert_int_equal(eas_lazy_stats_get().steps - before.steps, 1);
    eas_node_release(r);
    eas_node_release(x);
    eas_node_release(k);
}

/* ---- programs ---- */

static eas_node *formula(eas_node *x)
{
    eas_node *t = op1("tanh", x), *y = op2("mul", t, x), *r = own2("add", y, number(0.125));
    eas_node_release(t);
    return r;
}

static void structure_is_found_again(void **state)
{
    (void)state;
    eas_node *a = tensor(3, 1000, wave), *b = tensor(3, 1000, ramp), *x = formula(a), *y = formula(b);
    int64_t n;
    free(data(x, &n));
    eas_lazy_stats once = eas_lazy_stats_get();
    free(data(y, &n));
    eas_lazy_stats twice = eas_lazy_stats_get();
    assert_int_equal(twice.programs, once.programs);
    assert_int_equal(twice.program_hits, once.program_hits + 1);
    assert_int_equal(twice.kernels, once.kernels);
    assert_int_equal(twice.steps, once.steps + 1);
    eas_node_release(a);
    eas_node_release(b);
    eas_node_release(x);
    eas_node_release(y);
}

/* A number that changes is no other structure, and no other result either. */
static void numbers_are_given_at_each_run(void **state)
{
    (void)state;
    eas_node *a = tensor(2, 5, ramp);
    for (int k = 0; k < 5; k++) {
        float want[10];
        eas_lazy_stats before = eas_lazy_stats_get();
        eas_node *s = number(1.7 + k), *x = own2("mul", op2("add", a, s), s);
        for (int i = 0; i < 10; i++)
            want[i] = (ramp(i) + (float)(1.7 + k)) * (float)(1.7 + k);
        near(x, 10, want, 1e-6f);
        if (k)
            assert_int_equal(eas_lazy_stats_get().programs, before.programs);
        eas_node_release(x);
    }
    eas_node_release(a);
}

static void unread_results_are_not_computed(void **state)
{
    (void)state;
    eas_lazy_stats before = eas_lazy_stats_get();
    eas_node *a = tensor(4, 4, wave), *x = formula(a);
    eas_node_release(x);
    eas_node_release(a);
    assert_int_equal(eas_lazy_stats_get().steps, before.steps);
    assert_int_equal(eas_lazy_stats_get().live_nodes, before.live_nodes);
}

static void long_chains(void **state)
{
    enum { N = 150000 }; /* more than a chain may have before it is computed (LONGEST in realize.c) */
    (void)state;
    eas_node *a = tensor(1, 8, ramp), *x = eas_node_retain(a), *one = number(1);
    for (int i = 0; i < N; i++) {
        eas_node *y = op2("add", x, one);
        eas_node_release(x);
        x = y;
    }
    assert_true(eas_lazy_stats_get().live_nodes < 140000);
    float want[8];
    for (int i = 0; i < 8; i++) {
        want[i] = ramp(i);
        for (int k = 0; k < N; k++)
            want[i] += 1;
    }
    near(x, 8, want, 0);
    eas_node_release(x);
    eas_node_release(a);
    eas_node_release(one);
}

/* ---- compiled functions ---- */

/* Made for sizes up to a bound: masked below it, refused above. */
static void bounded_sizes(void **state)
{
    (void)state;
    eas_dim shape[2] = {5, 0};
    int64_t most = 16;
    ok(eas_dim_symbol("exec_bounded", &shape[1]));
    eas_node *in, *out, *got;
    ok(eas_node_input(0, EAS_F32, 2, shape, 0, cpu, &in));
    out = softmax(in);
    eas_program *p;
    ok(eas_program_new_bounded(1, &in, 1, &out, cpu, 1, &shape[1], &most, &p));
    for (int64_t size = 0; size <= 17; size++) {
        eas_node *x = tensor(5, size, wave), *want = softmax(x);
        if (size > most) {
            assert_int_equal(eas_program_run(p, 1, &x, NULL, NULL, &got), EAS_ERR_VALUE);
            assert_non_null(strstr(eas_error_message(), "compiled for 16 at most"));
        } else {
            int64_t n, m;
            ok(eas_program_run(p, 1, &x, NULL, NULL, &got));
            float *g = data(got, &n), *v = data(want, &m);
            assert_int_equal(n, m);
            for (int64_t k = 0; k < n; k++)
                assert_true(fabsf(g[k] - v[k]) < 1e-6f);
            free(g);
            free(v);
            eas_node_release(got);
        }
        eas_node_release(want);
        eas_node_release(x);
    }
    eas_program_release(p);
    eas_node_release(out);
    eas_node_release(in);
}

static void any_batch(void **state)
{
    (void)state;
    eas_dim shape[2] = {0, 20};
    ok(eas_dim_symbol("exec_batch", &shape[0]));
    eas_node *in, *w = tensor(20, 7, wave), *out, *outs[2];
    ok(eas_node_input(0, EAS_F32, 2, shape, 0, cpu, &in));
    out = own1(softmax, op2("matmul", in, w));
    outs[0] = out;
    outs[1] = reduced("reduce_max", in, 0, 0);
    eas_program *p;
    ok(eas_program_new(1, &in, 2, outs, cpu, &p));
    assert_int_equal(eas_nodes_realize(1, &out, NULL, NULL), EAS_ERR_RUNTIME);
    static const int64_t sizes[] = {5, 0, 1, 2, 3, 1000};
    for (int i = 0; i < 12; i++) {
        if (i == 6) { /* the same with another plan, perhaps */
            eas_node *some = tensor(9, 20, ramp);
            ok(eas_program_tune(p, 1, &some, NULL));
            eas_node_release(some);
        }
        eas_node *x = tensor(sizes[i % 6], 20, ramp), *got[2], *want = own1(softmax, op2("matmul", x, w));
        ok(eas_program_run(p, 1, &x, NULL, NULL, got));
        int64_t n, m;
        float *g = data(got[0], &n), *v = data(want, &m);
        assert_int_equal(n, sizes[i % 6] * 7);
        assert_int_equal(n, m);
        for (int64_t k = 0; k < n; k++)
            assert_true(fabsf(g[k] - v[k]) < 1e-5f);
        free(g);
        free(v);
        eas_node_release(got[0]);
        eas_node_release(got[1]);
        eas_node_release(want);
        eas_node_release(x);
    }
    eas_node *wrong = tensor(4, 21, ramp), *got[2];
    assert_int_equal(eas_program_run(p, 1, &wrong, NULL, NULL, got), EAS_ERR_VALUE);
    eas_node_release(wrong);
    eas_program_release(p);
    eas_node_release(outs[0]);
    eas_node_release(outs[1]);
    eas_node_release(in);
    eas_node_release(w);
}

static void donated_memory_becomes_the_result(void **state)
{
    (void)state;
    int64_t shape[2] = {64, 64}, off, strides[4];
    eas_node *in, *out, *got;
    ok(eas_node_input(0, EAS_F32, 2, shape, 0, cpu, &in));
    out = formula(in);
    eas_program *p;
    ok(eas_program_new(1, &in, 1, &out, cpu, &p));
    for (int give = 0; give < 2; give++) {
        eas_node *x = tensor(64, 64, wave);
        const void *before = eas_buffer_address(eas_node_buffer(x, &off, strides));
        uint8_t donated = (uint8_t)give;
        float want[64 * 64];
        for (int i = 0; i < 64 * 64; i++)
            want[i] = tanhf(wave(i)) * wave(i) + 0.125f;
        ok(eas_program_run(p, 1, &x, &donated, NULL, &got));
        assert_int_equal(eas_buffer_address(eas_node_buffer(got, &off, strides)) == before, give);
        near(got, 64 * 64, want, 1e-5f);
        eas_node_release(got);
        eas_node_release(x);
    }
    eas_program_release(p);
    eas_node_release(in);
    eas_node_release(out);
}

/* ---- devices, threads, pictures ---- */

static void every_device_agrees(void **state)
{
    (void)state;
    int64_t n, m;
    eas_node *x = tensor(R, C, wave), *want = own1(softmax, formula(x));
    float *v = data(want, &n);
    for (int i = 0; i < eas_device_count(); i++) {
        eas_device *d = eas_device_at(i);
        if (eas_device_unavailable(d))
            continue;
        eas_node *y = tensor_on(d, 2, (int64_t[]){R, C}, wave), *r = own1(softmax, formula(y));
        float *g = data(r, &m);
        assert_int_equal(n, m);
        for (int64_t k = 0; k < n; k++)
            assert_true(fabsf(g[k] - v[k]) <= 1e-6f);
        free(g);
        eas_node_release(y);
        eas_node_release(r);
    }
    free(v);
    eas_node_release(x);
    eas_node_release(want);
}

static eas_node *shared;

static void *read_shared(void *arg)
{
    (void)arg;
    for (int i = 0; i < 50; i++) {
        eas_node *x = formula(shared);
        int64_t n;
        free(data(x, &n));
        eas_node_release(x);
    }
    return NULL;
}

static void threads_share_a_graph(void **state)
{
    (void)state;
    pthread_t t[4];
    eas_node *a = tensor(10, 100, wave);
    shared = formula(a);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, read_shared, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    eas_node_release(shared);
    eas_node_release(a);
}

static void it_can_be_looked_at(void **state)
{
    (void)state;
    eas_node *a = tensor(R, C, wave), *x = own1(softmax, formula(a));
    static const char *const forms[] = {"text", "svg-before", "svg-after"},
                             *const holds[] = {"1 kernel, ", "softmax",
                                               "kernel 1: reduce over (37, 53) along 1"};
    for (int i = 0; i < 3; i++) {
        char *text;
        ok(eas_nodes_show(1, &x, forms[i], &text));
        if (!strstr(text, holds[i]))
            fail_msg("no \"%s\" in %s", holds[i], text);
        eas_memory_free(text);
    }
    char *text;
    assert_int_equal(eas_nodes_show(1, &x, "dot", &text), EAS_ERR_VALUE);
    eas_node_release(x);
    eas_node_release(a);
}

/* Naming a bad index computes the indices by themselves, which lets go of what they were computed from. */
static void a_bad_index_among_computed_ones(void **state)
{
    (void)state;
    eas_node *a = tensor(3, 4, wave), *zero = number(0), *x = op2("mul", a, zero),
             *y = op("unique", 1, &x, 3, (int64_t[]){4, 0, 0});
    /* there is one distinct element, not four */
    assert_int_equal(eas_nodes_realize(1, &y, cpu, NULL), EAS_ERR_INDEX);
    eas_node_release(y);
    eas_node_release(x);
    eas_node_release(zero);
    eas_node_release(a);
}

/* What OpenCL's compiler keeps, which is C++. Nothing of ours is. */
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
    return "leak:operator new\n";
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_and_columns),
                                       cmocka_unit_test(attention),
                                       cmocka_unit_test(structure_is_found_again),
                                       cmocka_unit_test(numbers_are_given_at_each_run),
                                       cmocka_unit_test(unread_results_are_not_computed),
                                       cmocka_unit_test(long_chains),
                                       cmocka_unit_test(any_batch),
                                       cmocka_unit_test(bounded_sizes),
                                       cmocka_unit_test(donated_memory_becomes_the_result),
                                       cmocka_unit_test(every_device_agrees),
                                       cmocka_unit_test(threads_share_a_graph),
                                       cmocka_unit_test(it_can_be_looked_at),
                                       cmocka_unit_test(a_bad_index_among_computed_ones)};
    ok(eas_device_get("cpu", &cpu));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
