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
    eas_value v = eas_builder_arange(b, 0, lanes(s));
    return eas_builder_reshape(b, v, s.rank, s.dim);
}

typedef eas_value transform(eas_builder *b, eas_value x, int axis);

/* out = f(in) on device; shapes of the result are whatever f makes of s. Returns the number of results. */
static int64_t run(const char *device, eas_dtype dt, shape s, int axis, transform *f, const void *in,
                   void *out)
{
    eas_builder *b;
    eas_ir *ir = NULL;
    eas_kernel *k = NULL;
    eas_device *d = NULL;
    int64_t dims[4];
    assert_int_equal(eas_builder_new("k", 0, &b), EAS_OK);
    eas_value a = eas_builder_param_buffer(b, "a", dt), o = eas_builder_param_buffer(b, "o", dt),
              oi = eas_builder_param_buffer(b, "oi", EAS_I64);
    eas_value r = f(b, eas_builder_load(b, a, offsets(b, s), 0, 0), axis);
    shape rs = {.rank = eas_value_shape(b, r, dims)};
    memcpy(rs.dim, dims, sizeof dims);
    eas_value to = rs.rank ? offsets(b, rs) : eas_builder_const_int(b, 0);
    eas_builder_store(b, eas_value_dtype(b, r) == EAS_I64 && dt != EAS_I64 ? oi : o, to, r, 0);
    if (eas_builder_finish(b, &ir) || eas_kernel_new(ir, &k) || eas_device_get(device, &d))
        fail_msg("%s", eas_error_message());
    eas_arg args[3] = {
        {.v.data = (void *)(uintptr_t)in, .count = lanes(s), .dtype = (uint8_t)dt, .is_buffer = 1},
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

static eas_value f_sum(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_reduce(b, eas_op_find("add"), x, axis);
}
static eas_value f_max(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_reduce(b, eas_op_find("max"), x, axis);
}
static eas_value f_xor(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_reduce(b, eas_op_find("xor"), x, axis);
}
static eas_value f_argmax(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_arg_reduce(b, 1, x, axis);
}
static eas_value f_argmin(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_arg_reduce(b, 0, x, axis);
}
static eas_value f_scan(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_scan(b, eas_op_find("add"), x, axis);
}
static eas_value f_trans(eas_builder *b, eas_value x, int axis)
{
    return (void)axis, eas_builder_trans(b, x, NULL);
}
static eas_value f_join(eas_builder *b, eas_value x, int axis)
{
    return (void)axis, eas_builder_join(b, x, eas_builder_apply(b, eas_op_find("neg"), x, 0, 0));
}
static eas_value f_slice(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_slice(b, x, axis, 1, 2);
}

static uint16_t current;
static eas_value f_row(eas_builder *b, eas_value x, int axis)
{
    const bool scan = ir_rows[current].rule == IR_RULE_SCAN;
    return scan ? eas_builder_scan(b, ir_join_of(current), x, axis)
                : eas_builder_reduce(b, ir_join_of(current), x, axis);
}
static eas_value f_swap(eas_builder *b, eas_value x, int axis)
{
    int64_t dims[4];
    const int rank = eas_value_shape(b, x, dims);
    int axes[4] = {0, 1, 2, 3};
    (void)axis;
    axes[rank - 1] = rank - 2;
    axes[rank - 2] = rank - 1;
    return eas_builder_trans(b, x, axes);
}

static eas_value hypot_like(void *ctx, eas_builder *b, eas_value x, eas_value y)
{
    (void)ctx;
    return eas_builder_apply(b, eas_op_find("max"), x, y, 0);
}
static eas_value f_fold(eas_builder *b, eas_value x, int axis)
{
    return eas_builder_fold(b, x, axis, hypot_like, NULL);
}

static const shape shapes[] = {{1, {1}},    {1, {2}},       {1, {7}},         {1, {32}},
                               {1, {100}},  {1, {1024}},    {2, {3, 5}},      {2, {16, 16}},
                               {2, {1, 9}}, {3, {4, 3, 6}}, {4, {2, 3, 4, 5}}};
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
        for (int64_t first = line / stride * stride * (s).dim[axis] + line % stride, _once = 1; _once; \
             _once = 0)

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
                    assert_int_equal(run(devices[d], EAS_I64, s, axis, fs[f], in, out),
                                     lanes(s) / s.dim[axis]);
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
    float t[64];
    int64_t w = n < 64 ? n : 64, p = 1;
    for (int64_t i = 0; i < n; i++)
        t[i % 64] = i < 64 ? x[i] : t[i % 64] + x[i];
    while (2 * p <= w)
        p *= 2;
    for (int64_t i = 0; i < w - p; i++)
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
        _Alignas(8) float m[2]; /* also handed over as i64 */
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

/* ---- on cpu to the bit as on ref ---- */

static void fill(eas_dtype dt, void *data, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        const double v = (double)next_int() * 0.37 + (k % 97 == 13 ? 1e7 : 0);
        const int64_t bits = ir_bits_from_double(dt, v);
        memcpy((char *)data + k * (int64_t)eas_dtype_size(dt), &bits, eas_dtype_size(dt));
    }
}

static void devices_agree_on_every_row(void **state)
{
    (void)state;
    static int64_t in[MOST], out[2][MOST];
    static const shape more[] = {{1, {5}},        {1, {64}},       {1, {65}},         {1, {130}},
                                 {1, {2000}},     {2, {7, 33}},    {2, {33, 7}},      {2, {5, 128}},
                                 {3, {3, 9, 20}}, {3, {2, 1, 70}}, {4, {2, 3, 5, 17}}};
    for (uint16_t op = IR_REDUCE_ADD; op <= IR_SCAN_XOR; op++)
        for (int dt = EAS_BOOL; dt < EAS_NDTYPES; dt++) {
            const int cls = dt == EAS_BOOL ? IR_B : dtype_is_float((eas_dtype)dt) ? IR_F : IR_I;
            if (!(ir_rows[op].classes & cls))
                continue;
            for (size_t i = 0; i < sizeof more / sizeof *more; i++)
                for (int axis = 0; axis < more[i].rank; axis++) {
                    /* each op and dtype meets some of them, together they meet all */
                    if ((i + op + (size_t)dt + (size_t)axis) % 8)
                        continue;
                    fill((eas_dtype)dt, in, lanes(more[i]));
                    memset(out, 0, sizeof out);
                    current = op;
                    for (int d = 0; d < 2; d++)
                        run(devices[d], (eas_dtype)dt, more[i], axis, f_row, in, out[d]);
                    if (memcmp(out[0], out[1], sizeof out[0]))
                        fail_msg("%s of %s, shape %zu, axis %d", ir_rows[op].name,
                                 eas_dtype_name((eas_dtype)dt), i, axis);
                }
        }
}

/* x (m,k), y (k,n), acc (m,n), all in one buffer */
static void product(const char *device, eas_dtype dt, int64_t m, int64_t k, int64_t n, int with_acc,
                    const void *in, void *out)
{
    eas_builder *b;
    eas_ir *ir = NULL;
    eas_kernel *kern = NULL;
    eas_device *d = NULL;
    const eas_dtype sum = dt == EAS_F64 ? EAS_F64 : EAS_F32;
    const shape s[3] = {{2, {m, k}}, {2, {k, n}}, {2, {m, n}}};
    eas_value v[3] = {0}, from;
    assert_int_equal(eas_builder_new("k", 0, &b), EAS_OK);
    eas_value a = eas_builder_param_buffer(b, "a", dt), o = eas_builder_param_buffer(b, "o", sum);
    int64_t at = 0;
    for (int i = 0; i < 2 + with_acc; i++) {
        from = eas_builder_apply(b, eas_op_find("add"), offsets(b, s[i]), eas_builder_const_int(b, at), 0);
        v[i] = eas_builder_load(b, a, from, 0, 0);
        at += lanes(s[i]);
    }
    eas_builder_store(b, o, offsets(b, s[2]), eas_builder_matmul(b, v[0], v[1], v[2]), 0);
    if (eas_builder_finish(b, &ir) || eas_kernel_new(ir, &kern) || eas_device_get(device, &d))
        fail_msg("%s", eas_error_message());
    eas_arg args[2] = {{.v.data = (void *)(uintptr_t)in, .count = at, .dtype = (uint8_t)dt, .is_buffer = 1},
                       {.v.data = out, .count = m * n, .dtype = (uint8_t)sum, .is_buffer = 1}};
    eas_launch l = {.size = sizeof l, .has_grid = 1, .grid = {1, 1, 1}};
    if (eas_kernel_launch(kern, d, args, 2, &l))
        fail_msg("%s", eas_error_message());
    eas_kernel_release(kern);
    eas_ir_release(ir);
    eas_builder_free(b);
}

static void matrices_multiply_in_order(void **state)
{
    (void)state;
    static int64_t in[MOST], out[2][MOST];
    static const int64_t sizes[][3] = {{1, 1, 1},   {1, 7, 1},   {3, 1, 5},  {2, 5, 3},    {5, 4, 31},
                                       {17, 9, 33}, {1, 16, 70}, {40, 3, 1}, {30, 12, 64}, {8, 8, 8},
                                       {64, 2, 16}, {1, 1, 9},   {9, 1, 1}};
    static const eas_dtype types[] = {EAS_F16, EAS_BF16, EAS_F32, EAS_F64};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < 4; t++)
            for (int acc = 0; acc < 2; acc++) {
                const int64_t *z = sizes[i];
                fill(types[t], in, z[0] * z[1] + z[1] * z[2] + z[0] * z[2]);
                memset(out, 0, sizeof out);
                for (int d = 0; d < 2; d++)
                    product(devices[d], types[t], z[0], z[1], z[2], acc, in, out[d]);
                if (memcmp(out[0], out[1], sizeof out[0]))
                    fail_msg("(%d, %d) times (%d, %d) of %s", (int)z[0], (int)z[1], (int)z[1], (int)z[2],
                             eas_dtype_name(types[t]));
            }
    const float x[4] = {1, 2, 3, 4}, y[4] = {5, 6, 7, 8}, want[4] = {19, 22, 43, 50};
    float both[8], got[4];
    memcpy(both, x, sizeof x);
    memcpy(both + 4, y, sizeof y);
    product("ref", EAS_F32, 2, 2, 2, 0, both, got);
    assert_memory_equal(got, want, sizeof want);
}

static void transposes_of_all_sizes(void **state)
{
    (void)state;
    static int64_t in[MOST], out[2][MOST];
    static const shape some[] = {{2, {5, 7}},      {2, {16, 16}}, {2, {33, 50}},    {2, {64, 4}},
                                 {3, {3, 20, 17}}, {2, {1, 8}},   {4, {2, 3, 9, 8}}};
    for (int dt = EAS_BOOL; dt < EAS_NDTYPES; dt++)
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
            fill((eas_dtype)dt, in, lanes(some[i]));
            memset(out, 0, sizeof out);
            for (int d = 0; d < 2; d++)
                run(devices[d], (eas_dtype)dt, some[i], 0, f_swap, in, out[d]);
            if (memcmp(out[0], out[1], sizeof out[0]))
                fail_msg("transpose of %s, shape %zu", eas_dtype_name((eas_dtype)dt), i);
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
        cmocka_unit_test(devices_agree_on_every_row),
        cmocka_unit_test(matrices_multiply_in_order),
        cmocka_unit_test(transposes_of_all_sizes),
    };
    return cmocka_run_group_tests_name("fold", tests, NULL, NULL);
}
