/* test_flow.c: branches and loops whose values are known when they are over (flow.c), lanes that change
 * places (order.c), kernels over many sets of arguments (many.c), and memory orders, on ref, cpu and as MSL.
 */
#include "everywhere.h"

#include "../../src/ir/ir.h"

static eas_value i32(int64_t v) { return eas_builder_const_typed(b, EAS_I32, 0, v); }

/* Runs case 0 on ref with the arrays as they are, and takes it off the list. */
static void run_ref(void *const *data, const eas_dtype *dt, const int64_t *count, int n, int64_t grid)
{
    eas_device *ref;
    eas_arg args[MAX_ARGS];
    for (int i = 0; i < n; i++)
        args[i] = (eas_arg){.v.data = data[i], .count = count[i], .dtype = (uint8_t)dt[i], .is_buffer = 1};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {grid, 1, 1}};
    ok(eas_device_get("ref", &ref));
    ok(eas_kernel_launch(cases[0].k, ref, args, n, &opts));
}

/* ---- flow.c ---- */

/* The sides of a branch disagree in dtype and shape; the values are named after both were built. */
static void test_branches_are_joined_late(void **state)
{
    (void)state;
    begin("late");
    eas_value a = eas_builder_param_buffer(b, "a", EAS_F32), r = eas_builder_param_buffer(b, "r", EAS_F32),
              N = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value o = eas_builder_arange(b, 0, 16), merged[2];
    eas_builder_if_begin(b, op2("gt", N, num(3)));
    eas_value then_values[2] = {load(a, o), eas_builder_const_float(b, 2)};
    eas_builder_if_else(b, 0, NULL);
    eas_value else_values[2] = {eas_builder_const_float(b, 0.5), load(a, num(1))};
    eas_builder_if_join(b, 2, then_values, else_values, merged);
    store(r, o, op2("mul", merged[0], merged[1]));
    end(1)->scalar[2] = 7;
    begin("late_not");
    a = eas_builder_param_buffer(b, "a", EAS_F32), r = eas_builder_param_buffer(b, "r", EAS_F32),
    N = eas_builder_param_scalar(b, "N", EAS_I64, 1), o = eas_builder_arange(b, 0, 16);
    eas_builder_if_begin(b, op2("gt", N, num(3)));
    eas_value x = load(a, o);
    eas_builder_if_else(b, 0, NULL);
    eas_value y = op2("add", load(a, num(2)), eas_builder_const_float(b, 1));
    eas_builder_if_join(b, 1, &x, &y, merged);
    store(r, o, merged[0]);
    end(1)->scalar[2] = 1;
    run_cases();
}

/* A loop that is forgotten leaves no trace: the text is that of the second attempt alone. */
static void test_rewinding(void **state)
{
    (void)state;
    char *text[2];
    for (int again = 0; again < 2; again++) {
        eas_mark m;
        eas_value iv, c, next, out;
        begin("again%d", again);
        eas_value r = eas_builder_param_buffer(b, "r", EAS_F32),
                  N = eas_builder_param_scalar(b, "N", EAS_I64, 1), o = eas_builder_arange(b, 0, 8);
        eas_builder_mark(b, &m);
        if (again) {
            eas_value first = i32(0), sorted;
            eas_builder_loop_begin(b, num(0), N, num(1), 1, &first, &iv, &c);
            /* takes scratch memory, at the top */
            eas_builder_sort(b, eas_builder_cast(b, o, EAS_F32), 0, 1, &sorted, NULL);
            store(r, o, sorted);
            eas_builder_rewind(b, &m);
        }
        eas_value init = eas_builder_const_typed(b, EAS_F32, 0, 0);
        eas_builder_loop_begin(b, num(0), N, num(1), 1, &init, &iv, &c);
        next = op2("add", c, eas_builder_const_float(b, 0.5));
        eas_builder_loop_end(b, 1, &next, &out);
        store(r, o, out);
        everywhere *w = end(1);
        w->scalar[1] = 5;
        ok(eas_ir_text(eas_kernel_ir(w->k), 1, &text[again]));
    }
    assert_string_equal(strchr(text[0], 0x28), strchr(text[1], 0x28)); /* behind the name */
    eas_memory_free(text[0]);
    eas_memory_free(text[1]);
    run_cases();
}

/* ---- order.c ---- */

static void test_lanes_change_places(void **state)
{
    (void)state;
    for (int descending = 0; descending < 2; descending++) {
        begin("order%d", descending);
        eas_value x = eas_builder_param_buffer(b, "x", EAS_F32),
                  i = eas_builder_param_buffer(b, "i", EAS_I32),
                  r = eas_builder_param_buffer(b, "r", EAS_F32),
                  q = eas_builder_param_buffer(b, "q", EAS_I64), o = eas_builder_arange(b, 0, 24),
                  v = load(x, o), sorted, places;
        eas_builder_sort(b, v, 0, descending, &sorted, &places);
        store(r, o, sorted);
        store(q, o, places);
        store(r, op2("add", o, num(100)), eas_builder_gather(b, v, op2("sub", load(i, o), num(8)), 0));
        store(r, op2("add", o, num(200)), eas_builder_flip(b, v, 0));
        store(r, op2("add", eas_builder_arange(b, 0, 48), num(300)), eas_builder_cat(b, v, sorted, 0));
        store(r, num(400),
              eas_builder_lane(b, v, 0, op2("mod", eas_builder_cast(b, load(i, num(0)), EAS_I64), num(24))));
        store(q, op2("add", o, num(100)),
              eas_builder_cast(b, eas_builder_histogram(b, load(i, o), 24, op2("lt", o, num(20))), EAS_I64));
        end(1);
    }
    run_cases();
}

static void test_sort_is_stable_and_nan_is_last(void **state)
{
    (void)state;
    enum { N = 6 };
    const float nan = __builtin_nanf("");
    float x[N] = {2, nan, 1, 2, -0.0f, 0.0f}, r[N];
    int64_t q[N];
    begin("stable");
    eas_value p = eas_builder_param_buffer(b, "x", EAS_F32), to = eas_builder_param_buffer(b, "r", EAS_F32),
              at = eas_builder_param_buffer(b, "q", EAS_I64), o = eas_builder_arange(b, 0, N), sorted, places;
    eas_builder_sort(b, load(p, o), 0, 0, &sorted, &places);
    store(to, o, sorted);
    store(at, o, places);
    end(1);
    run_ref((void *[]){x, r, q}, (eas_dtype[]){EAS_F32, EAS_F32, EAS_I64}, (int64_t[]){N, N, N}, 3, 1);
    static const int64_t want[N] = {4, 5, 2, 0, 3, 1};
    for (int i = 0; i < N; i++)
        assert_int_equal(q[i], want[i]);
    assert_true(r[N - 1] != r[N - 1] && r[0] == 0 && r[3] == 2);
    eas_kernel_release(cases[0].k);
    ncases = 0;
}

static int join_affine(void *ctx, eas_builder *bb, const eas_value *x, const eas_value *y, eas_value *out)
{
    (void)ctx;
    (void)bb;
    out[0] = op2("mul", x[0], y[0]); /* (a, c) then (A, C): A a, A c + C */
    out[1] = op2("add", op2("mul", y[0], x[1]), y[1]);
    return 1;
}

static void test_scan_by_a_function(void **state)
{
    (void)state;
    for (int reverse = 0; reverse < 2; reverse++) {
        begin("affine%d", reverse);
        eas_value x = eas_builder_param_buffer(b, "x", EAS_I32),
                  y = eas_builder_param_buffer(b, "y", EAS_I32),
                  r = eas_builder_param_buffer(b, "r", EAS_I32);
        eas_value o = eas_builder_arange(b, 0, 19), in[2] = {load(x, o), load(y, o)}, out[2];
        eas_builder_scan_with(b, 2, in, 0, reverse, join_affine, NULL, out);
        store(r, o, out[0]);
        store(r, op2("add", o, num(50)), out[1]);
        end(1);
    }
    run_cases();
}

/* ---- many.c ---- */

static void test_many_sets_of_arguments(void **state)
{
    (void)state;
    enum { SETS = 5, N = 8 };
    begin("one");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), w = eas_builder_param_buffer(b, "w", EAS_F32),
              s = eas_builder_param_buffer(b, "s", EAS_F32), o = eas_builder_arange(b, 0, N);
    eas_builder_atomic(b, IR_ATOMIC_ADD, s, num(0), op2("mul", load(x, o), load(w, o)), 0, 0);
    end(1);
    eas_kernel *many;
    ok(eas_kernel_lanes(cases[0].k, (const uint8_t[]){1, 0, 1}, 1, &many));
    float xs[SETS * N], ws[N], ss[SETS] = {0};
    for (int i = 0; i < SETS * N; i++)
        xs[i] = (float)i;
    for (int i = 0; i < N; i++)
        ws[i] = (float)(i % 3);
    static const char *const names[] = {"ref", "cpu"};
    for (int d = 0; d < 2; d++) {
        eas_device *dev;
        memset(ss, 0, sizeof ss);
        eas_arg args[5] = {{.v.data = xs, .count = SETS * N, .dtype = EAS_F32, .is_buffer = 1},
                           {.v.data = ws, .count = N, .dtype = EAS_F32, .is_buffer = 1},
                           {.v.data = ss, .count = SETS, .dtype = EAS_F32, .is_buffer = 1},
                           {.v.i = N, .dtype = EAS_I64},
                           {.v.i = 1, .dtype = EAS_I64}};
        eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, SETS, 1}};
        ok(eas_device_get(names[d], &dev));
        ok(eas_kernel_launch(many, dev, args, 5, &opts));
        for (int k = 0; k < SETS; k++) {
            float want = 0;
            for (int i = 0; i < N; i++)
                want += xs[k * N + i] * ws[i];
            assert_true(ss[k] == want);
        }
    }
    eas_kernel_release(many);
    /* all would write to one */
    assert_int_not_equal(eas_kernel_lanes(cases[0].k, (const uint8_t[]){1, 0, 0}, 1, &many), EAS_OK);
    eas_kernel_release(cases[0].k);
    ncases = 0;
}

/* ---- fences ---- */

static void test_fences(void **state)
{
    (void)state;
    for (int order = 0; order < EAS_NORDERS; order++)
        for (int scope = 0; scope < EAS_NSCOPES; scope++) {
            begin("fence_%d_%d", order, scope);
            eas_value x = eas_builder_param_buffer(b, "x", EAS_I32),
                      f = eas_builder_param_buffer(b, "f", EAS_I32),
                      r = eas_builder_param_buffer(b, "r", EAS_I32), o = eas_builder_arange(b, 0, 32);
            store(x, o, op2("mul", load(x, o), num(3)));
            eas_builder_fence(b, (eas_order)order, (eas_scope)scope);
            eas_builder_atomic_ordered(b, IR_ATOMIC_XCHG, f, num(0), num(1), 0, 0, (eas_order)order);
            eas_value seen =
                eas_builder_atomic_ordered(b, IR_ATOMIC_LOAD, f, num(0), 0, 0, 0, (eas_order)order);
            store(r, o, op2("add", load(x, op2("sub", num(31), o)), seen));
            end(1);
        }
    char *text, *again;
    eas_ir *ir;
    ok(eas_ir_text(eas_kernel_ir(cases[ncases - 1].k), 1, &text));
    assert_non_null(strstr(text, "fence seq_cst device"));
    ok(eas_ir_parse(text, strlen(text), &ir));
    ok(eas_ir_text(ir, 1, &again));
    assert_string_equal(text, again);
    eas_memory_free(text);
    eas_memory_free(again);
    eas_ir_release(ir);
    static const char bad[] = "kernel k(buf<f32> x) {\n  fence weak device\n}\n";
    assert_int_not_equal(eas_ir_parse(bad, strlen(bad), &ir), EAS_OK);
    run_cases();
    begin("bad");
    eas_builder_fence(b, EAS_NORDERS, EAS_SCOPE_GROUP);
    assert_int_equal(eas_builder_status(b), EAS_ERR_VALUE);
    eas_builder_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_branches_are_joined_late),
        cmocka_unit_test(test_rewinding),
        cmocka_unit_test(test_lanes_change_places),
        cmocka_unit_test(test_sort_is_stable_and_nan_is_last),
        cmocka_unit_test(test_scan_by_a_function),
        cmocka_unit_test(test_many_sets_of_arguments),
        cmocka_unit_test(test_fences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
