/* test_atomics.c: every atomic row, every dtype it takes, global and threadgroup memory, both modes, on ref,
 * cpu and as MSL. */
#include "everywhere.h"

#include "../../src/ir/ir.h"

static int takes(uint16_t op, eas_dtype dt)
{
    if (dtype_is_float(dt))
        return ir_rows[op].classes & IR_F;
    return dt == EAS_I32 || dt == EAS_U32 || dt == EAS_I64 || dt == EAS_U64;
}

static eas_value atomic(uint16_t op, eas_value buf, eas_value off, eas_value x, eas_value y, eas_value mask)
{
    return eas_builder_atomic(b, op, buf, off, op == IR_ATOMIC_LOAD ? 0 : x, op == IR_ATOMIC_CAS ? y : 0,
                              mask);
}

/* Lanes of one block fight over 16 elements: the order, and so every old value, is defined. */
static void spmd_case(uint16_t op, eas_dtype dt, int tg, int64_t n)
{
    begin("s_%s_%s_%d_%d", ir_rows[op].name, eas_dtype_name(dt), tg, (int)n);
    eas_value a = eas_builder_param_buffer(b, "a", dt), v = eas_builder_param_buffer(b, "v", dt),
              i = eas_builder_param_buffer(b, "i", EAS_I32);
    eas_value r = eas_builder_param_buffer(b, "r", dt), N = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value o = eas_builder_arange(b, 0, n), first = eas_builder_arange(b, 0, 16), mask = op2("lt", o, N);
    eas_value shared = tg ? eas_builder_alloc_tg(b, 16, dt) : a;
    if (tg)
        store(shared, first, load(a, first));
    eas_value y = load(v, op2("add", o, num(500)));
    eas_value old = atomic(op, shared, load(i, o), load(v, o), y, mask);
    store(r, o, old);
    atomic(op, shared, load(i, op2("add", o, num(7))), load(v, o), y, 0); /* nobody reads the result */
    if (tg)
        store(a, first, load(shared, first));
    everywhere *w = end(1);
    w->scalar[4] = n - n / 4;
    w->no_msl = eas_dtype_size(dt) == 8;
}

static int any_order(uint16_t op) { return op != IR_ATOMIC_XCHG && op != IR_ATOMIC_CAS; }

/* Threads of a group fight where the result does not depend on the order, and own an element where it does.
 */
static void thread_case(uint16_t op, eas_dtype dt, int tg, int64_t n)
{
    begin("t_%s_%s_%d_%d", ir_rows[op].name, eas_dtype_name(dt), tg, (int)n);
    eas_value a = eas_builder_param_buffer(b, "a", dt), v = eas_builder_param_buffer(b, "v", dt),
              i = eas_builder_param_buffer(b, "i", EAS_I32);
    eas_value r = eas_builder_param_buffer(b, "r", dt), N = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value t = eas_builder_tid(b, 0, n), mask = op2("lt", t, N);
    eas_value shared = tg ? eas_builder_alloc_tg(b, 16 + n, dt) : a, own = op2("add", t, num(16));
    if (tg) {
        store(shared, own, load(a, own));
        eas_builder_store(b, shared, t, load(a, t), op2("lt", t, num(16)));
        eas_builder_barrier(b);
    }
    store(r, t, atomic(op, shared, own, load(v, t), load(v, op2("add", t, num(500))), mask));
    if (any_order(op)) {
        eas_builder_if_begin(b, op2("gt", load(i, t), num(4)));
        atomic(op, shared, load(i, t), load(v, t), 0, mask);
        eas_builder_if_end(b, 0, NULL, NULL);
        atomic(op, shared, num(3), load(v, t), 0, 0); /* the same element for all */
    }
    if (tg) {
        eas_builder_barrier(b);
        store(a, own, load(shared, own));
        eas_builder_store(b, a, t, load(shared, t), op2("lt", t, num(16)));
    }
    everywhere *w = end(1);
    w->scalar[4] = n - n / 4;
    w->no_msl = eas_dtype_size(dt) == 8;
}

static void test_every_atomic_everywhere(void **state)
{
    (void)state;
    for (uint16_t op = 1; op < IR_NOPS; op++)
        for (int dt = 0; dt < EAS_NDTYPES && ir_rows[op].rule == IR_RULE_ATOMIC; dt++)
            for (int tg = 0; tg < 2 && takes(op, (eas_dtype)dt); tg++) {
                spmd_case(op, (eas_dtype)dt, tg, tg ? 50 : 33);
                thread_case(op, (eas_dtype)dt, tg, tg ? 20 : 32);
            }
    run_cases();
}

/* The old value decides what happens next; loops and branches around it. */
static void control_case(void)
{
    begin("control");
    eas_value a = eas_builder_param_buffer(b, "a", EAS_I32), r = eas_builder_param_buffer(b, "r", EAS_I32),
              N = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value o = eas_builder_arange(b, 0, 40), at = op2("mod", op2("mul", o, num(7)), num(8)),
              zero = eas_builder_const_typed(b, EAS_I32, 0, 0), iv, c, next, out;
    eas_builder_loop_begin(b, num(0), N, num(1), 1, &zero, &iv, &c);
    eas_builder_if_begin(b, op2("eq", op2("mod", iv, num(2)), num(0)));
    eas_builder_atomic(b, IR_ATOMIC_ADD, a, at, eas_builder_cast(b, o, EAS_I32), 0, op2("gt", o, iv));
    eas_builder_if_end(b, 0, NULL, NULL);
    eas_value ticket = eas_builder_atomic(b, IR_ATOMIC_ADD, a, num(9), num(2), 0, 0); /* a scalar */
    next = op2("add", c, ticket);
    eas_builder_loop_end(b, 1, &next, &out);
    eas_value first = eas_builder_atomic(b, IR_ATOMIC_CAS, a, num(10), out, op2("add", out, num(1)), 0);
    store(r, o, op2("add", load(a, at), op2("add", out, first)));
    eas_value rows = eas_builder_reshape(b, eas_builder_arange(b, 0, 6), 2, (int64_t[]){6, 1}),
              cols = eas_builder_reshape(b, eas_builder_arange(b, 0, 5), 2, (int64_t[]){1, 5});
    eas_value old = eas_builder_atomic(
        b, IR_ATOMIC_XCHG, a, op2("add", num(20), op2("mod", op2("add", rows, cols), num(4))),
        eas_builder_cast(b, op2("add", op2("mul", rows, num(5)), cols), EAS_I32), 0, op2("ne", rows, cols));
    store(r, op2("add", num(100), op2("add", op2("mul", rows, num(5)), cols)), old);
    end(1)->scalar[2] = 7;
}

static void test_atomics_in_loops_and_branches(void **state)
{
    (void)state;
    control_case();
    run_cases();
}

/* Programs of a grid share the buffer; the pool runs them at once. */
static void test_programs_share_a_counter(void **state)
{
    (void)state;
    enum { GRID = 3000, LANES = 64 };
    eas_device *cpu;
    ok(eas_device_get("cpu", &cpu));
    begin("shared");
    eas_value n = eas_builder_param_buffer(b, "n", EAS_I64), f = eas_builder_param_buffer(b, "f", EAS_F32),
              seen = eas_builder_param_buffer(b, "seen", EAS_I32);
    eas_value o = eas_builder_arange(b, 0, LANES), one = eas_builder_const_typed(b, EAS_F32, 1, 0);
    eas_value ticket = eas_builder_atomic(b, IR_ATOMIC_ADD, n, op2("mul", o, num(0)), num(1), 0, 0);
    eas_builder_atomic(b, IR_ATOMIC_ADD, f, num(0), one, 0, op2("lt", o, num(8)));
    eas_builder_atomic(b, IR_ATOMIC_ADD, seen, ticket, num(1), 0, 0);
    everywhere *w = end(GRID);
    int64_t total = 0;
    float sum = 0;
    int32_t *each = calloc(GRID * LANES, sizeof *each);
    eas_arg args[3] = {{.v.data = &total, .count = 1, .dtype = EAS_I64, .is_buffer = 1},
                       {.v.data = &sum, .count = 1, .dtype = EAS_F32, .is_buffer = 1},
                       {.v.data = each, .count = GRID * LANES, .dtype = EAS_I32, .is_buffer = 1}};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {GRID, 1, 1}};
    ok(eas_kernel_launch(w->k, cpu, args, 3, &opts));
    assert_int_equal(total, GRID * LANES);
    assert_true(sum == GRID * 8);
    for (int i = 0; i < GRID * LANES; i++)
        assert_int_equal(each[i], 1); /* every ticket was handed out once */
    free(each);
    eas_kernel_release(w->k);
    ncases = 0;
}

static void test_special_floats(void **state)
{
    (void)state;
    static const float x[] = {
        0.0f, -0.0f, 1.0f, -1.0f, __builtin_inff(), -__builtin_inff(), __builtin_nanf(""), 1e-45f};
    enum { N = 8 };
    static const uint16_t ops[] = {IR_ATOMIC_ADD, IR_ATOMIC_MIN, IR_ATOMIC_MAX, IR_ATOMIC_XCHG,
                                   IR_ATOMIC_CAS};
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        float got[2][N * N], value[N * N];
        static const char *const names[] = {"ref", "cpu"};
        begin("special");
        eas_value a = eas_builder_param_buffer(b, "a", EAS_F32),
                  v = eas_builder_param_buffer(b, "v", EAS_F32), o = eas_builder_arange(b, 0, N * N);
        atomic(ops[k], a, o, load(v, o), eas_builder_const_float(b, 5), 0);
        everywhere *w = end(1);
        for (int d = 0; d < 2; d++) {
            eas_device *dev;
            for (int i = 0; i < N * N; i++)
                got[d][i] = x[i / N], value[i] = x[i % N];
            eas_arg args[2] = {{.v.data = got[d], .count = N * N, .dtype = EAS_F32, .is_buffer = 1},
                               {.v.data = value, .count = N * N, .dtype = EAS_F32, .is_buffer = 1}};
            eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
            ok(eas_device_get(names[d], &dev));
            ok(eas_kernel_launch(w->k, dev, args, 2, &opts));
        }
        for (int i = 0; i < N * N; i++)
            assert_true(!memcmp(&got[0][i], &got[1][i], 4) ||
                        (got[0][i] != got[0][i] && got[1][i] != got[1][i]));
        eas_kernel_release(w->k);
        ncases = 0;
    }
}

/* An access outside is reported by every device with the same words, and a lane that is off may be anywhere.
 */
static void test_bounds(void **state)
{
    (void)state;
    char said[2][512];
    static const char *const names[] = {"ref", "cpu"};
    for (int tg = 0; tg < 2; tg++)
        for (int d = 0; d < 2; d++) {
            eas_device *dev;
            int32_t a[4] = {0}, i[40];
            for (int k = 0; k < 40; k++)
                i[k] = k < 20 ? k % 4 : -1000000 * k;
            begin("outside");
            eas_builder_at(b, "k.py", 7);
            eas_value p = eas_builder_param_buffer(b, "a", EAS_I32),
                      q = eas_builder_param_buffer(b, "i", EAS_I32),
                      N = eas_builder_param_scalar(b, "N", EAS_I64, 1);
            eas_value o = eas_builder_arange(b, 0, 40), buf = tg ? eas_builder_alloc_tg(b, 4, EAS_I32) : p;
            eas_builder_atomic(b, IR_ATOMIC_ADD, buf, load(q, o), num(1), 0, op2("lt", o, N));
            everywhere *w = end(1);
            ok(eas_device_get(names[d], &dev));
            for (int n = 20; n <= 21; n++) {
                eas_arg args[3] = {{.v.data = a, .count = 4, .dtype = EAS_I32, .is_buffer = 1},
                                   {.v.data = i, .count = 40, .dtype = EAS_I32, .is_buffer = 1},
                                   {.v.i = n, .dtype = EAS_I64}};
                eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
                eas_status st = eas_kernel_launch(w->k, dev, args, 3, &opts);
                if (n == 20)
                    ok(st);
                else if (!tg) {
                    assert_int_equal(st, EAS_ERR_INDEX);
                    snprintf(said[d], sizeof said[d], "%s", eas_error_message());
                    assert_non_null(strstr(said[d], "k.py:7: "));
                    assert_non_null(strstr(said[d], "index -20000000 of \"a\", which has 4 elements"));
                }
            }
            eas_kernel_release(w->k);
            ncases = 0;
        }
    assert_string_equal(said[0], said[1]);
}

static void refused(eas_op op, eas_dtype dt, eas_value x, const char *want)
{
    begin("bad");
    eas_value a = eas_builder_param_buffer(b, "a", dt), o = eas_builder_arange(b, 0, 8);
    assert_int_equal(eas_builder_atomic(b, op, a, o, x ? x : num(1), num(1), 0), 0);
    if (!strstr(eas_error_message(), want))
        fail_msg("\"%s\" does not say \"%s\"", eas_error_message(), want);
    eas_builder_free(b);
}

static void test_refused(void **state)
{
    (void)state;
    refused(IR_ATOMIC_ADD, EAS_I16, 0,
            "atomic_add: a buffer of i16; it works on i32, u32, i64, u64, f16, bf16, f32 and f64");
    refused(IR_ATOMIC_LOAD, EAS_U8, 0, "a buffer of u8");
    refused(IR_ATOMIC_MAX, EAS_I8, 0, "a buffer of i8");
    refused(IR_ATOMIC_XOR, EAS_F32, 0, "atomic_xor: a buffer of f32; it works on i32, u32, i64, u64");
    refused(IR_ADD, EAS_I32, 0, "add is not an atomic instruction");
    refused(IR_NOPS, EAS_I32, 0, "is not an atomic instruction");
}

static void test_metal_has_no_wide_atomics(void **state)
{
    (void)state;
    begin("wide");
    eas_builder_at(b, "k.py", 3);
    eas_value a = eas_builder_param_buffer(b, "a", EAS_U64);
    eas_builder_atomic(b, IR_ATOMIC_ADD, a, eas_builder_arange(b, 0, 8), num(1), 0, 0);
    everywhere *w = end(1);
    char *s;
    assert_int_equal(eas_kernel_text(w->k, "msl", &s), EAS_ERR_TYPE);
    assert_string_equal(eas_error_message(),
                        "k.py:3: kernel wide: Metal has no 64-bit atomics; `atomic_add` works on u64 here");
    s = text_of(w->k, "opencl");
    assert_non_null(strstr(s, "cl_khr_int64_base_atomics"));
    assert_non_null(strstr(s, "atom_add("));
    eas_memory_free(s);
    eas_param p = eas_ir_param(eas_kernel_ir(w->k), 0);
    assert_true(p.is_atomic && p.is_read && p.is_written);
    eas_kernel_release(w->k);
    ncases = 0;
}

static void test_text_is_the_inverse(void **state)
{
    (void)state;
    control_case();
    char *text, *again;
    eas_ir *ir;
    ok(eas_ir_text(eas_kernel_ir(cases[0].k), 1, &text));
    ok(eas_ir_parse(text, strlen(text), &ir));
    ok(eas_ir_text(ir, 1, &again));
    assert_string_equal(text, again);
    eas_memory_free(text);
    eas_memory_free(again);
    eas_ir_release(ir);
    eas_kernel_release(cases[0].k);
    ncases = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_atomic_everywhere),
        cmocka_unit_test(test_atomics_in_loops_and_branches),
        cmocka_unit_test(test_programs_share_a_counter),
        cmocka_unit_test(test_special_floats),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_metal_has_no_wide_atomics),
        cmocka_unit_test(test_text_is_the_inverse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
