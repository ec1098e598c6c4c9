/* test_fold.c: reductions, scans and rearrangements of blocks against plain loops, on every device. */
#include "../../src/kernel/kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { MOST = 6000 };

typedef struct shape {
    int rank;
    int64_t dim[4];
} shape;

static int64_t lanes(shape s)
{
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++)
        n *= s.dim[i];
    return n;
}

static eas_value offsets(eas_builder *b, shape s)
{
    eas_value v = eas_arange(b, 0, lanes(s));
    return eas_reshape(b, v, s.rank, s.dim);
}

typedef eas_value transform(eas_builder *b, eas_value x, int axis);

/* out = f(in) on device; shapes of the result are whatever f makes of s. Returns the number of results. */
static int64_t run(const char *device, eas_dtype dt, shape s, int axis, transform *f, const void *in, void *out)
{
    eas_builder *b;
    eas_ir *ir = NULL;
    eas_kernel *k = NULL;
    eas_device *d = NULL;
    int64_t dims[4];
    assert_int_equal(eas_builder_new("k", 0, &b), EAS_OK);
    eas_value a = eas_param_buffer(b, "a", dt), o = eas_param_buffer(b, "o", dt), oi = eas_param_buffer(b, "oi", EAS_I64);
    eas_value r = f(b, eas_load(b, a, offsets(b, s), 0, 0), axis);
    shape rs = {.rank = eas_value_shape(b, r, dims)};
    memcpy(rs.dim, dims, sizeof dims);
    eas_value to = rs.rank ? offsets(b, rs) : eas_const_int(b, 0);
    eas_store(b, eas_value_dtype(b, r) == EAS_I64 && dt != EAS_I64 ? oi : o, to, r, 0);
    if (eas_builder_finish(b, &ir) || eas_kernel_new(ir, &k) || eas_device_get(device, &d))
        fail_msg("%s", eas_error_message());
    eas_arg args[3] = {{.v.data = (void *)(uintptr_t)in, .count = lanes(s), .dtype = (uint8_t)dt, .is_buffer = 1},
                       {.v.data = out, .count = MOST, .dtype = (uint8_t)dt, .is_buffer = 1},
                       {.v.data = out, .count = MOST, .dtype = EAS_I64, .is_buffer = 1}};
    eas_launch l = {.size = sizeof l, .has_grid = 1, .grid = {1, 1, 1}};
    if (eas_kernel_launch(k, d, args, 3, &l))
        fail_msg("%s", eas_error_message());
    eas_kernel_release(k);
    eas_ir_release(ir);
    eas_builder_free(b);
    return lanes(rs);
}

static eas_value f_sum(eas_builder *b, eas_value x, int axis) { return eas_reduce(b, eas_op_find("add"), x, axis); }
static eas_value f_max(eas_builder *b, eas_value x, int axis) { return eas_reduce(b, eas_op_find("max"), x, axis); }
static eas_value f_xor(eas_builder *b, eas_value x, int axis) { return eas_reduce(b, eas_op_find("xor"), x, axis); }
static eas_value f_argmax(eas_builder *b, eas_value x, int axis) { return eas_arg_reduce(b, 1, x, axis); }
static eas_value f_argmin(eas_builder *b, eas_value x, int axis) { return eas_arg_reduce(b, 0, x, axis); }
static eas_value f_scan(eas_builder *b, eas_value x, int axis) { return eas_scan(b, eas_op_find("add"), x, axis); }
static eas_value f_trans(eas_builder *b, eas_value x, int axis) { return (void)axis, eas_trans(b, x, NULL); }
static eas_value f_join(eas_builder *b, eas_value x, int axis) { return (void)axis, eas_join(b, x, eas_apply(b, eas_op_find("neg"), x, 0, 0)); }
static eas_value f_slice(eas_builder *b, eas_value x, int axis) { return eas_slice(b, x, axis, 1, 2); }

static eas_value hypot_like(void *ctx, eas_builder *b, eas_value x, eas_value y)
{
    (void)ctx;
    return eas_apply(b, eas_op_find("max"), x, y, 0);
}
static eas_value f_fold(eas_builder *b, eas_value x, int axis) { return eas_fold(b, x, axis, hypot_like, NULL); }

static const shape shapes[] = {{1, {1}},    {1, {2}},      {1, {7}},    {1, {32}},      {1, {100}},       {1, {1024}},
                               {2, {3, 5}}, {2, {16, 16}}, {2, {1, 9}}, {3, {4, 3, 6}}, {4, {2, 3, 4, 5}}};
enum { NSHAPES = sizeof shapes / sizeof *shapes };
static const char *const devices[] = {"ref", "cpu"};

static uint64_t seed = 99991;
static int64_t next_int(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(seed >> 33) % 50 - 25;
}

/* Visits every line along axis: its first element, stride and place among the results. */
#define EACH_LINE(s, axis, first, stride, line) \
    int64_t stride = 1; \
    for (int _i = (s).rank - 1; _i > (axis); _i--) \
        stride *= (s).dim[_i]; \
    for (int64_t line = 0; line < lanes(s) / (s).dim[axis]; line++) \
        for (int64_t first = line / stride * stride * (s).dim[axis] + line % stride, _once = 1; _once; _once = 0)

static void integers_reduce_exactly(void **state)
{
    (void)state;
    static int64_t in[MOST], out[MOST];
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < NSHAPES; i++)
            for (int axis = 0; axis < shapes[i].rank; axis++) {
                shape s = shapes[i];
                for (int64_t k = 0; k < lanes(s); k++)
                    in[k] = next_int();
                transform *const fs[] = {f_sum, f_max, f_xor, f_fold, f_argmax, f_argmin};
                for (int f = 0; f < 6; f++) {
                    assert_int_equal(run(devices[d], EAS_I64, s, axis, fs[f], in, out), lanes(s) / s.dim[axis]);
                    EACH_LINE(s, axis, first, stride, line)
                    {
                        int64_t sum = 0, x = 0, best = INT64_MIN, hi = 0, lo = 0;
                        for (int64_t k = 0; k < s.dim[axis]; k++) {
                            int64_t v = in[first + k * stride];
                            sum += v;
                            x ^= v;
                            best = v > best ? v : best;
                            hi = v > in[first + hi * stride] ? k : hi;
                            lo = v < in[first + lo * stride] ? k : lo;
                        }
                        int64_t want[] = {sum, best, x, best, hi, lo};
                        assert_int_equal(out[line], want[f]);
                    }
                }
            }
}

static void scans_run_along_the_axis(void **state)
{
    (void)state;
    static int32_t in[MOST], out[MOST];
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < NSHAPES; i++)
            for (int axis = 0; axis < shapes[i].rank; axis++) {
                shape s = shapes[i];
                for (int64_t k = 0; k < lanes(s); k++)
                    in[k] = (int32_t)next_int();
                run(devices[d], EAS_I32, s, axis, f_scan, in, out);
                EACH_LINE(s, axis, first, stride, line)
                {
                    int32_t sum = 0;
                    for (int64_t k = 0; k < s.dim[axis]; k++)
                        assert_int_equal(out[first + k * stride], sum += in[first + k * stride]);
                }
            }
}

/* The order is fixed: devices agree to the bit, and it is the documented one. */
static float folded(const float *x, int64_t n)
{
    float t[MOST];
    int64_t p = 1;
    while (2 * p <= n)
        p *= 2;
    memcpy(t, x, (size_t)n * sizeof *t);
    for (int64_t i = 0; i < n - p; i++)
        t[i] += t[p + i];
    for (p /= 2; p; p /= 2)
        for (int64_t i = 0; i < p; i++)
            t[i] += t[p + i];
    return t[0];
}

static void floats_fold_in_the_documented_order(void **state)
{
    (void)state;
    static float in[MOST], out[2][MOST];
    static const int64_t sizes[] = {1, 3, 31, 64, 100, 777, 1024, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int64_t k = 0; k < sizes[i]; k++)
            in[k] = (float)next_int() * 0.1f;
        for (int d = 0; d < 2; d++) {
            run(devices[d], EAS_F32, (shape){1, {sizes[i]}}, 0, f_sum, in, out[d]);
            assert_true(out[d][0] == folded(in, sizes[i]));
        }
    }
}

static void nan_wins(void **state)
{
    (void)state;
    float in[5] = {1, 5, NAN, 7, NAN};
    int64_t at[1];
    for (int d = 0; d < 2; d++) {
        run(devices[d], EAS_F32, (shape){1, {5}}, 0, f_argmax, in, at);
        assert_int_equal(at[0], 2);
        run(devices[d], EAS_F32, (shape){1, {5}}, 0, f_argmin, in, at);
        assert_int_equal(at[0], 2);
        float m[1];
        run(devices[d], EAS_F32, (shape){1, {5}}, 0, f_max, in, m);
        assert_true(isnan(m[0]));
    }
}

static void blocks_are_rearranged(void **state)
{
    (void)state;
    static int16_t in[MOST], out[MOST];
    shape s = {3, {4, 3, 6}};
    for (int64_t k = 0; k < lanes(s); k++)
        in[k] = (int16_t)k;
    for (int d = 0; d < 2; d++) {
        assert_int_equal(run(devices[d], EAS_I16, s, 0, f_trans, in, out), 72);
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 3; b++)
                for (int c = 0; c < 6; c++)
                    assert_int_equal(out[(c * 3 + b) * 4 + a], in[(a * 3 + b) * 6 + c]);
        assert_int_equal(run(devices[d], EAS_I16, s, 0, f_join, in, out), 144);
        for (int k = 0; k < 72; k++) {
            assert_int_equal(out[2 * k], in[k]);
            assert_int_equal(out[2 * k + 1], -in[k]);
        }
        assert_int_equal(run(devices[d], EAS_I16, s, 1, f_slice, in, out), 48);
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 2; b++)
                for (int c = 0; c < 6; c++)
                    assert_int_equal(out[(a * 2 + b) * 6 + c], in[(a * 3 + b + 1) * 6 + c]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_reduce_exactly),
        cmocka_unit_test(scans_run_along_the_axis),
        cmocka_unit_test(floats_fold_in_the_documented_order),
        cmocka_unit_test(nan_wins),
        cmocka_unit_test(blocks_are_rearranged),
    };
    return cmocka_run_group_tests_name("fold", tests, NULL, NULL);
}
