/* test_debug.c: the live builder and the checker, as a C program sees them; and what random kernels have
 * found. */
#include "eas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static eas_value op(eas_builder *b, const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}
static eas_arg buffer(void *p, int64_t n, eas_dtype dt)
{
    return (eas_arg){.v.data = p, .count = n, .dtype = (uint8_t)dt, .is_buffer = 1};
}
static eas_arg integer(int64_t i) { return (eas_arg){.v.i = i, .dtype = EAS_I64}; }

static eas_builder *live(const char *name, const eas_arg *args, int nargs, const eas_launch *opts)
{
    static const char *const names[] = {"x", "N"};
    eas_builder *b;
    assert_int_equal(eas_builder_new(name, 0, &b), EAS_OK);
    for (int i = 0; i < nargs; i++)
        args[i].is_buffer ? eas_builder_param_buffer(b, names[i], (eas_dtype)args[i].dtype)
                          : eas_builder_param_scalar(b, names[i], (eas_dtype)args[i].dtype, 1);
    assert_int_equal(eas_live_begin(b, args, nargs, opts), EAS_OK);
    return b;
}

static void a_live_kernel_runs_as_it_is_built(void **state)
{
    (void)state;
    int32_t x[10] = {0};
    eas_arg args[2] = {buffer(x, 10, EAS_I32), integer(10)};
    eas_builder *b = live("k", args, 2, NULL);
    int programs = 0;
    while (eas_live_next(b) == 1) {
        int64_t lanes[4];
        eas_value at = op(b, "add", op(b, "mul", eas_builder_program_id(b, 0), eas_builder_const_int(b, 4)),
                          eas_builder_arange(b, 0, 4));
        assert_int_equal(eas_live_count(b, at), 4);
        assert_int_equal(eas_live_read(b, at, lanes), EAS_OK);
        assert_int_equal(lanes[3], 4 * programs + 3);
        eas_builder_store(b, 1, at, eas_builder_cast(b, op(b, "mul", at, at), EAS_I32), op(b, "lt", at, 2));
        programs++;
    }
    assert_int_equal(eas_builder_status(b), EAS_OK);
    assert_int_equal(programs, 3);
    for (int i = 0; i < 10; i++)
        assert_int_equal(x[i], i * i);
    eas_builder_free(b);
}

static void threads_take_their_own_ways(void **state)
{
    (void)state;
    int64_t x[8] = {0};
    eas_arg args[1] = {buffer(x, 8, EAS_I64)};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
    eas_builder *b = live("k", args, 1, &opts);
    assert_int_equal(eas_live_next(b), 1);
    eas_value before = eas_builder_const_int(b, 5), t = eas_builder_tid(b, 0, 8),
              sum = eas_builder_cast(b, eas_builder_const_int(b, 0), EAS_I64), iv;
    assert_int_equal(eas_live_count(b, before), 8);
    int turns = 0;
    for (int more = eas_live_loop(b, eas_builder_const_int(b, 0), t, eas_builder_const_int(b, 1), &iv); more;
         more = eas_live_again(b, &iv), turns++)
        sum = eas_live_merge(b, sum, op(b, "add", sum, iv));
    assert_int_equal(turns, 7);
    eas_value odd = op(b, "eq", op(b, "mod", t, eas_builder_const_int(b, 2)), eas_builder_const_int(b, 1));
    eas_live_if(b, odd);
    eas_builder_store(b, 1, t, sum, 0);
    eas_live_end(b);
    eas_live_else(b, odd);
    eas_builder_store(b, 1, t, eas_builder_const_int(b, -1), 0);
    eas_live_end(b);
    assert_int_equal(eas_live_depth(b), 0);
    assert_int_equal(eas_live_next(b), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(x[i], i % 2 ? i * (i - 1) / 2 : -1);
    eas_builder_free(b);
}

static void values_go_unless_they_are_kept(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4};
    eas_arg args[1] = {buffer(x, 4, EAS_F32)};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
    eas_builder *b = live("k", args, 1, &opts);
    assert_int_equal(eas_live_next(b), 1);
    eas_value v = eas_builder_load(b, 1, eas_builder_arange(b, 0, 4), 0, 0);
    eas_live_keep(b, v);
    eas_live_sweep(b);
    assert_int_equal(eas_live_values(b), 1);
    for (int i = 0; i < 1000; i++) {
        eas_builder_apply(b, eas_op_find("exp"), v, 0, 0);
        eas_live_sweep(b);
    }
    assert_int_equal(eas_live_values(b), 1);
    float now[4];
    assert_int_equal(eas_live_read(b, v, now), EAS_OK);
    assert_memory_equal(now, x, sizeof x);
    eas_live_drop(b, v);
    eas_live_sweep(b);
    assert_int_equal(eas_live_values(b), 0);
    eas_builder_free(b);
}

static void a_live_kernel_stops_at_a_bad_access(void **state)
{
    (void)state;
    float x[4] = {0};
    eas_arg args[1] = {buffer(x, 4, EAS_F32)};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {2, 1, 1}};
    eas_builder *b = live("k", args, 1, &opts);
    eas_ir *ir;
    assert_int_equal(eas_live_next(b), 1);
    eas_builder_at(b, "k.c", 7);
    eas_value v = eas_builder_load(b, 1, eas_builder_const_int(b, 4), 0, 0); /* nobody needs it yet */
    assert_int_equal(eas_builder_status(b), EAS_OK);
    eas_builder_at(b, "k.c", 8);
    eas_builder_store(b, 1, eas_builder_const_int(b, 0), v, 0);
    assert_int_equal(eas_builder_status(b), EAS_ERR_INDEX);
    assert_non_null(strstr(eas_error_message(), "k.c:7: kernel k: access out of bounds: index 4 of \"x\""));
    assert_int_equal(eas_live_next(b), EAS_ERR_INDEX);
    assert_int_not_equal(eas_builder_finish(b, &ir), EAS_OK);
    eas_builder_free(b);
}

static void regions_of_the_other_kind_are_refused(void **state)
{
    (void)state;
    float x[4] = {0};
    eas_arg args[1] = {buffer(x, 4, EAS_F32)};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
    eas_builder *b = live("k", args, 1, &opts);
    assert_int_equal(eas_live_next(b), 1);
    eas_builder_if_begin(b, eas_builder_const_bool(b, 1));
    assert_int_equal(eas_builder_status(b), EAS_ERR_VALUE);
    eas_builder_free(b);
    assert_int_equal(eas_builder_new("k", 0, &b), EAS_OK);
    eas_live_end(b);
    assert_int_not_equal(eas_builder_status(b), EAS_OK);
    eas_builder_free(b);
}

/* ---- the checker ---- */

static eas_kernel *parsed(const char *text)
{
    eas_ir *ir;
    eas_kernel *k = NULL;
    if (eas_ir_parse(text, strlen(text), &ir) || eas_kernel_new(ir, &k))
        fail_msg("%s", eas_error_message());
    eas_ir_release(ir);
    return k;
}

static void a_check_reports_both_lines(void **state)
{
    (void)state;
    eas_kernel *k =
        parsed("file 1 \"k.py\"\nkernel k(buf<i32> x) {\n"
               "  %2 = program_id 0 : i64\n  %3 = const 1 : i32\n  %4 = const 0 : i64\n"
               "  store %1, %2, %3 @1:4\n  %5 = load %1, %4 : i32 @1:5\n  store %1, %2, %5 @1:6\n}\n");
    int32_t x[3] = {7, 8, 9};
    eas_arg args[1] = {buffer(x, 3, EAS_I32)};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {3, 1, 1}};
    eas_report *r;
    char *text;
    assert_int_equal(eas_kernel_check(k, args, 1, &opts, &r), EAS_OK);
    assert_int_equal(x[0], 7);
    assert_int_equal(eas_report_count(r), 1);
    eas_finding f = eas_report_at(r, 0);
    assert_int_equal(f.kind, EAS_FOUND_READ_WRITE);
    assert_string_equal(f.arg, "x");
    assert_int_equal(f.index, 0);
    assert_int_equal(f.at[0].line, 4);
    assert_int_equal(f.at[1].line, 5);
    assert_int_equal(f.count, 2);
    assert_int_equal(f.at[1].program[0], 1);
    assert_int_equal(f.at[1].thread, -1);
    assert_int_equal(eas_report_text(r, &text), EAS_OK);
    assert_non_null(strstr(text, "k.py:5 (program 1, 0, 0)"));
    eas_memory_free(text);
    eas_report_free(r);
    eas_kernel_release(k);
}

static void a_loose_kernel_does_not_run(void **state)
{
    (void)state;
    eas_builder *b;
    eas_ir *ir;
    eas_kernel *k;
    eas_device *d;
    float x[4] = {0};
    eas_arg args[1] = {buffer(x, 4, EAS_F32)};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
    for (unsigned flags = 0; flags <= EAS_KERNEL_LOOSE; flags += EAS_KERNEL_LOOSE) {
        assert_int_equal(eas_builder_new("k", flags, &b), EAS_OK);
        eas_builder_param_buffer(b, "x", EAS_F32);
        eas_builder_if_begin(b, op(b, "lt", eas_builder_tid(b, 0, 4), eas_builder_const_int(b, 2)));
        eas_builder_barrier(b);
        eas_builder_if_end(b, 0, NULL, NULL);
        assert_int_equal(eas_builder_finish(b, &ir), flags ? EAS_OK : EAS_ERR_TYPE);
        eas_builder_free(b);
    }
    assert_int_equal(eas_kernel_new(ir, &k), EAS_OK);
    assert_int_equal(eas_device_get("ref", &d), EAS_OK);
    assert_int_equal(eas_kernel_launch(k, d, args, 1, &opts), EAS_ERR_VALUE);
    eas_report *r;
    assert_int_equal(eas_kernel_check(k, args, 1, &opts, &r), EAS_OK);
    assert_int_equal(eas_report_count(r), 1);
    assert_int_equal(eas_report_at(r, 0).kind, EAS_FOUND_DIVERGENT_BARRIER);
    eas_report_free(r);
    eas_kernel_release(k);
    eas_ir_release(ir);
}

/* ---- found by random kernels ---- */

static void run(const char *text, const eas_arg *args, int nargs, int64_t grid)
{
    eas_kernel *k = parsed(text);
    eas_device *d;
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {grid, 1, 1}};
    assert_int_equal(eas_device_get("cpu", &d), EAS_OK);
    if (eas_kernel_launch(k, d, args, nargs, &opts))
        fail_msg("%s", eas_error_message());
    eas_kernel_release(k);
}

static void integers_through_floats_saturate(void **state)
{
    (void)state;
    int8_t x[4] = {-3, 5, -128, 127};
    uint64_t y[4];
    eas_arg args[2] = {buffer(x, 4, EAS_I8), buffer(y, 4, EAS_U64)};
    run("kernel k(buf<i8> x, buf<u64> y) {\n  %3 = arange 0 : i64[4]\n  %4 = load %1, %3 : i8[4]\n  %5 = cast %4 : f16[4]\n"
        "  %6 = cast %5 : u64[4]\n  store %2, %3, %6\n}\n",
        args, 2, 1);
    assert_int_equal(y[0], 0);
    assert_int_equal(y[1], 5);
    assert_int_equal(y[2], 0);
    assert_int_equal(y[3], 127);
}

static void loops_with_barriers_may_hold_divergent_loops(void **state)
{
    (void)state;
    int64_t x[4] = {0};
    eas_arg args[1] = {buffer(x, 4, EAS_I64)};
    run("kernel k(buf<i64> x) {\n  %2 = thread_id 4 : i64\n  %3 = const 0 : i64\n  %4 = const 3 : i64\n  %5 = const 1 : i64\n"
        "  %6, %7 = loop %3, %4, %5, %3 : i64, i64\n    barrier\n    %8, %9 = loop %3, %2, %5, %7 : i64, i64\n"
        "      %10 = add %9, %5 : i64\n    %11 = endloop %10 : i64\n  %12 = endloop %11 : i64\n  store %1, %2, %12\n}\n",
        args, 1, 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(x[i], 3 * i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_live_kernel_runs_as_it_is_built),
        cmocka_unit_test(threads_take_their_own_ways),
        cmocka_unit_test(values_go_unless_they_are_kept),
        cmocka_unit_test(a_live_kernel_stops_at_a_bad_access),
        cmocka_unit_test(regions_of_the_other_kind_are_refused),
        cmocka_unit_test(a_check_reports_both_lines),
        cmocka_unit_test(a_loose_kernel_does_not_run),
        cmocka_unit_test(integers_through_floats_saturate),
        cmocka_unit_test(loops_with_barriers_may_hold_divergent_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
