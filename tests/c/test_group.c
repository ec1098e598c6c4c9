/* test_group.c: functions over the threads of a simdgroup and of a group: on ref, cpu and as MSL, against
 * plain C, and what is refused. */
#include "everywhere.h"

#include "../../src/dev/dev.h"

static const uint16_t joins[] = {IR_ADD, IR_MUL, IR_MIN, IR_MAX, IR_AND, IR_OR, IR_XOR};
enum { NJOINS = sizeof joins / sizeof *joins };

static int takes(uint16_t op, eas_dtype dt)
{
    return ir_rows[op].classes & (dtype_is_float(dt) ? IR_F : dt == EAS_BOOL ? IR_B : IR_I);
}

/* i-th result of each thread into r */
static void put(eas_value r, eas_value t, int i, int64_t n, eas_value x)
{
    store(r, op2("add", t, num(i * n)), x);
}

static void simd_case(eas_dtype dt, int64_t n)
{
    begin("lanes_of_%s_%d", eas_dtype_name(dt), (int)n);
    eas_value x = eas_builder_param_buffer(b, "x", dt), r = eas_builder_param_buffer(b, "r", dt),
              t = eas_builder_tid(b, 0, n), v = load(x, t);
    int k = 0;
    for (int i = 0; i < NJOINS; i++)
        if (takes(joins[i], dt))
            put(r, t, k++, n, eas_builder_simd_reduce(b, joins[i], v));
    if (dt != EAS_BOOL) {
        put(r, t, k++, n, eas_builder_simd_scan(b, v, 0));
        put(r, t, k++, n, eas_builder_simd_scan(b, v, 1));
    }
    everywhere *w = end(1);
    w->no_msl = dt == EAS_F64;
}

static void shuffle_case(eas_dtype dt, int64_t n)
{
    begin("shuffle_of_%s_%d", eas_dtype_name(dt), (int)n);
    eas_value x = eas_builder_param_buffer(b, "x", dt), i = eas_builder_param_buffer(b, "i", EAS_I32),
              r = eas_builder_param_buffer(b, "r", dt);
    eas_value N = eas_builder_param_scalar(b, "N", EAS_I64, 1), t = eas_builder_tid(b, 0, n), v = load(x, t);
    eas_value deltas[] = {num(1), num(3), num(16), num(31), N, eas_builder_cast(b, load(i, t), EAS_I16)};
    int k = 0;
    for (int d = 0; d < 6 && (k + 1) * n <= ELEMENTS; d++)
        for (int kind = 0; kind < 4 && (k + 1) * n <= ELEMENTS; kind++)
            put(r, t, k++, n, eas_builder_simd_shuffle(b, (eas_shuffle)kind, v, deltas[d]));
    everywhere *w = end(1);
    w->scalar[3] = -27;
    w->no_msl = dt == EAS_F64;
}

static void group_case(eas_dtype dt, int64_t n)
{
    begin("group_of_%s_%d", eas_dtype_name(dt), (int)n);
    eas_value x = eas_builder_param_buffer(b, "x", dt), r = eas_builder_param_buffer(b, "r", dt),
              t = eas_builder_tid(b, 0, n), v = load(x, t);
    int k = 0;
    for (int i = 0; i < NJOINS; i++)
        if (takes(joins[i], dt))
            put(r, t, k++, n, eas_builder_tg_reduce(b, joins[i], v));
    if (dt != EAS_BOOL) {
        put(r, t, k++, n, eas_builder_tg_scan(b, v, 0));
        put(r, t, k++, n, eas_builder_tg_scan(b, v, 1));
    }
    everywhere *w = end(2);
    w->no_msl = dt == EAS_F64;
}

/* In loops and branches that are the same for all; values that the loop carries. */
static void control_case(int64_t n)
{
    begin("control_%d", (int)n);
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), r = eas_builder_param_buffer(b, "r", EAS_F32),
              N = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value t = eas_builder_tid(b, 0, n), init[2] = {load(x, t), eas_builder_const_typed(b, EAS_F32, 0, 0)},
              iv, c[2], out[2], m;
    eas_builder_loop_begin(b, num(0), N, num(1), 2, init, &iv, c);
    eas_value next[2] = {op2("mul", eas_builder_simd_shuffle(b, EAS_SHUFFLE_DOWN, c[0], num(1)),
                             eas_builder_const_float(b, 0.5)),
                         op2("add", c[1], eas_builder_tg_reduce(b, IR_ADD, c[0]))};
    eas_builder_if_begin(b, op2("eq", op2("mod", iv, num(2)), num(0)));
    eas_value yes = eas_builder_simd_reduce(b, IR_MAX, next[0]);
    eas_builder_if_else(b, 1, &yes);
    eas_value no = eas_builder_tg_scan(b, next[0], 0);
    eas_builder_if_end(b, 1, &no, &m);
    next[1] = op2("add", next[1], m);
    eas_builder_loop_end(b, 2, next, out);
    store(r, t, out[0]);
    eas_builder_store(b, r, op2("add", t, num(n)), out[1], op2("lt", t, num(n - 3)));
    end(1)->scalar[2] = 5;
}

static void test_groups_everywhere(void **state)
{
    (void)state;
    for (int dt = 0; dt < EAS_NDTYPES; dt++) {
        simd_case((eas_dtype)dt, dt == EAS_F32 ? 96 : 32);
        shuffle_case((eas_dtype)dt, dt == EAS_F32 || dt == EAS_I8 ? 96 : 32);
        group_case((eas_dtype)dt, dt == EAS_I64 ? 100 : 20);
    }
    group_case(EAS_F32, 1);
    group_case(EAS_F32, 33);
    group_case(EAS_F32, 64);
    control_case(32);
    control_case(64);
    run_cases();
}

/* ---- against plain C ---- */

static void run_f32(const char *device, everywhere *w, float *x, float *r)
{
    eas_device *d;
    eas_arg args[2] = {{.v.data = x, .count = ELEMENTS, .dtype = EAS_F32, .is_buffer = 1},
                       {.v.data = r, .count = ELEMENTS, .dtype = EAS_F32, .is_buffer = 1}};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
    ok(eas_device_get(device, &d));
    ok(eas_kernel_launch(w->k, d, args, 2, &opts));
}

static void test_the_order_of_joining(void **state)
{
    (void)state;
    enum { N = 64 };
    static const char *const devices[] = {"ref", "cpu"};
    float x[ELEMENTS] = {0}, r[ELEMENTS], simd[N], scan[N], group[N];
    for (int i = 0; i < N; i++)
        x[i] = 1.0f / (float)(i * i + 3);
    for (int g = 0; g < N; g += 32) {
        float now[32];
        memcpy(now, x + g, sizeof now);
        for (int d = 16; d; d /= 2) {
            float next[32];
            for (int i = 0; i < 32; i++)
                next[i] = now[i & ~d] + now[i | d];
            memcpy(now, next, sizeof now);
        }
        memcpy(simd + g, now, sizeof now);
        memcpy(scan + g, x + g, sizeof now);
        for (int s = 1; s < 32; s *= 2)
            for (int i = 31; i >= s; i--)
                scan[g + i] = scan[g + i - s] + scan[g + i];
    }
    memcpy(group, x, sizeof group);
    for (int p = N / 2; p; p /= 2)
        for (int i = 0; i < p; i++)
            group[i] += group[p + i];
    begin("order");
    eas_value bx = eas_builder_param_buffer(b, "x", EAS_F32), br = eas_builder_param_buffer(b, "r", EAS_F32),
              t = eas_builder_tid(b, 0, N), v = load(bx, t);
    put(br, t, 0, N, eas_builder_simd_reduce(b, IR_ADD, v));
    put(br, t, 1, N, eas_builder_simd_scan(b, v, 0));
    put(br, t, 2, N, eas_builder_tg_reduce(b, IR_ADD, v));
    everywhere *w = end(1);
    for (int d = 0; d < 2; d++) {
        run_f32(devices[d], w, x, r);
        assert_memory_equal(r, simd, sizeof simd);
        assert_memory_equal(r + N, scan, sizeof scan);
        for (int i = 0; i < N; i++)
            assert_memory_equal(&r[2 * N + i], &group[0], 4);
    }
    eas_kernel_release(w->k);
    ncases = 0;
}

/* Zeros of both signs: every lane gets the same one. */
static void test_all_lanes_agree(void **state)
{
    (void)state;
    float x[ELEMENTS] = {0}, r[ELEMENTS];
    for (int i = 0; i < 32; i++)
        x[i] = i % 3 ? 0.0f : -0.0f;
    begin("agree");
    eas_value bx = eas_builder_param_buffer(b, "x", EAS_F32), br = eas_builder_param_buffer(b, "r", EAS_F32),
              t = eas_builder_tid(b, 0, 32), v = load(bx, t);
    put(br, t, 0, 32, eas_builder_simd_reduce(b, IR_MIN, v));
    put(br, t, 1, 32, eas_builder_simd_reduce(b, IR_MAX, v));
    everywhere *w = end(1);
    run_f32("cpu", w, x, r);
    for (int i = 0; i < 64; i++)
        assert_memory_equal(&r[i], &r[i & 32], 4);
    eas_kernel_release(w->k);
    ncases = 0;
}

static void test_texts(void **state)
{
    (void)state;
    simd_case(EAS_F32, 32);
    char *s = text_of(cases[0].k, "msl");
    assert_non_null(strstr(s, "simd_shuffle_xor("));
    assert_non_null(strstr(s, "(ushort)16)"));
    assert_non_null(strstr(s, "simd_shuffle("));
    eas_memory_free(s);
    s = text_of(cases[0].k, "opencl");
    assert_non_null(strstr(s, "__local ulong eas_shuffle[32];"));
    eas_memory_free(s);
    char *again;
    eas_ir *ir;
    ok(eas_ir_text(eas_kernel_ir(cases[0].k), 1, &s));
    ok(eas_ir_parse(s, strlen(s), &ir));
    ok(eas_ir_text(ir, 1, &again));
    assert_string_equal(s, again);
    eas_memory_free(s);
    eas_memory_free(again);
    eas_ir_release(ir);
    eas_kernel_release(cases[0].k);
    ncases = 0;
}

/* ---- what is refused ---- */

static void says(const char *want)
{
    if (!strstr(eas_error_message(), want))
        fail_msg("\"%s\" does not say \"%s\"", eas_error_message(), want);
    eas_builder_free(b);
}

static void test_refused(void **state)
{
    (void)state;
    eas_ir *ir;
    begin("threads_33");
    assert_int_equal(eas_builder_simd_reduce(b, IR_ADD, eas_builder_tid(b, 0, 33)), 0);
    says("needs a group of a multiple of 32 threads; this one has 33");
    begin("block");
    assert_int_equal(eas_builder_tg_reduce(b, IR_ADD, eas_builder_arange(b, 0, 32)), 0);
    says("for a block (mk.arange)");
    begin("unknown");
    assert_int_equal(eas_builder_tg_reduce(b, IR_ADD, num(1)), 0);
    says("call tid(0, BLOCK) first");
    begin("by");
    assert_int_equal(eas_builder_tg_reduce(b, IR_SUB, eas_builder_tid(b, 0, 32)), 0);
    says("cannot join values by \"sub\"");
    begin("floats");
    assert_int_equal(
        eas_builder_simd_reduce(b, IR_XOR, eas_builder_cast(b, eas_builder_tid(b, 0, 32), EAS_F32)), 0);
    says("\"xor\" is not defined for f32");
    begin("lane");
    assert_int_equal(eas_builder_simd_shuffle(b, EAS_SHUFFLE_LANE, eas_builder_tid(b, 0, 32),
                                              eas_builder_const_float(b, 1.5)),
                     0);
    says("the lane must be an integer, not f32");
    begin("kind");
    assert_int_equal(eas_builder_simd_shuffle(b, (eas_shuffle)9, eas_builder_tid(b, 0, 32), num(1)), 0);
    says("there is no kind 9");
    for (int which = 0; which < 2; which++) {
        begin("diverges");
        eas_builder_at(b, "k.py", 5);
        eas_value r = eas_builder_param_buffer(b, "r", EAS_I64), t = eas_builder_tid(b, 0, 32);
        eas_builder_if_begin(b, op2("lt", t, num(7)));
        store(r, t, which ? eas_builder_tg_reduce(b, IR_ADD, t) : eas_builder_simd_reduce(b, IR_ADD, t));
        eas_builder_if_end(b, 0, NULL, NULL);
        assert_int_equal(eas_builder_finish(b, &ir), EAS_ERR_TYPE);
        assert_non_null(strstr(eas_error_message(), "k.py:5: "));
        says("it must be the same for the whole group");
    }
}

static dev_limits little(eas_device *d)
{
    (void)d;
    return (dev_limits){.tg_bytes = 1024, .f64 = true, .i64_atomics = true};
}

/* In OpenCL values go from thread to thread through threadgroup memory: it counts. */
static void test_hidden_memory_counts(void **state)
{
    (void)state;
    eas_device d = {.name = "small", .limits = little, .own_tg = gen_opencl_tg};
    for (int shuffles = 0; shuffles < 2; shuffles++) {
        eas_ir *ir;
        eas_builder *b;
        assert_int_equal(eas_builder_new("k", 0, &b), EAS_OK);
        eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), t = eas_builder_tid(b, 0, 64),
                  a = eas_builder_alloc_tg(b, 200, EAS_F32), v = eas_builder_load(b, x, t, 0, 0);
        eas_builder_store(b, a, t, v, 0);
        eas_builder_barrier(b);
        v = eas_builder_load(b, a, t, 0, 0);
        eas_builder_store(
            b, x, t,
            shuffles ? eas_builder_simd_shuffle(b, EAS_SHUFFLE_XOR, v, eas_builder_const_int(b, 1)) : v, 0);
        assert_int_equal(eas_builder_finish(b, &ir), EAS_OK);
        assert_int_equal(gen_opencl_tg(ir), shuffles ? 512 : 0);
        assert_int_equal(dev_check(&d, ir), shuffles ? EAS_ERR_VALUE : EAS_OK);
        if (shuffles) {
            assert_non_null(strstr(eas_error_message(),
                                   "needs 1312 bytes of threadgroup memory; device \"small\" has 1024"));
            assert_non_null(
                strstr(eas_error_message(), "from one thread of a simdgroup to another: 512 bytes"));
        }
        eas_builder_free(b);
        eas_ir_release(ir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_everywhere), cmocka_unit_test(test_the_order_of_joining),
        cmocka_unit_test(test_all_lanes_agree),   cmocka_unit_test(test_texts),
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_hidden_memory_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
