/* test_linear.c: integers as affine functions of lane and program; what divides them; where instructions
 * touch memory. */
#include "../../src/ir/ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

typedef struct world {
    eas_ir *ir;
    arena mem;
    ir_linears *l;
} world;

static void read_ir(world *w, const char *text)
{
    *w = (world){0};
    if (eas_ir_parse(text, strlen(text), &w->ir))
        fail_msg("%s", eas_error_message());
    w->l = ir_linears_new(w->ir, NULL, &w->mem);
    assert_non_null(w->l);
}

static void drop(world *w)
{
    eas_ir_release(w->ir);
    arena_free(&w->mem);
}

static void is(ir_coef c, int64_t k, uint32_t by)
{
    assert_false(c.any);
    assert_int_equal(c.k, k);
    assert_int_equal(c.by, by);
}

/* (program_id(0) * N + 3) * 4 + 2 * arange */
static void test_rows(void **state)
{
    (void)state;
    world w;
    read_ir(&w, "kernel rows(buf<f32> x, i64 N) {\n"
                "  %3 = program_id 0 : i64\n"
                "  %4 = mul %3, %2 : i64\n"
                "  %5 = const 3 : i64\n"
                "  %6 = add %4, %5 : i64\n"
                "  %7 = const 4 : i64\n"
                "  %8 = mul %6, %7 : i64\n"
                "  %9 = broadcast %8 : i64[16]\n"
                "  %10 = arange 5 : i64[16]\n"
                "  %11 = const 2 : i64\n"
                "  %12 = broadcast %11 : i64[16]\n"
                "  %13 = mul %12, %10 : i64[16]\n"
                "  %14 = sub %9, %13 : i64[16]\n"
                "  %15 = load %1, %14 : f32[16]\n"
                "  store %1, %14, %15\n"
                "}\n");
    const ir_linear *x = ir_linear_of(w.l, 14);
    int64_t step;
    assert_true(x->ok && x->exact);
    is(x->lane[0], -2, 0);
    is(x->program[0], 4, 2); /* four times N */
    is(x->program[1], 0, 0);
    assert_true(ir_lane_step(w.l, 14, &step));
    assert_int_equal(step, -2);
    assert_true(ir_linear_of(w.l, 8)->ok);
    assert_int_equal(ir_multiple(w.ir, 8), 4);
    assert_int_equal(ir_multiple(w.ir, 13), 2);
    assert_int_equal(ir_multiple(w.ir, 6), 1);
    drop(&w);
}

/* Two dims: rows N apart, columns side by side; then with the axes of size 1 elsewhere. */
static void test_tiles(void **state)
{
    (void)state;
    world w;
    read_ir(&w, "kernel tiles(buf<f32> x, i64 N) {\n"
                "  %3 = arange 0 : i64[8]\n"
                "  %4 = reshape %3 : i64[8, 1]\n"
                "  %5 = broadcast %2 : i64[8, 1]\n"
                "  %6 = mul %4, %5 : i64[8, 1]\n"
                "  %7 = broadcast %6 : i64[8, 32]\n"
                "  %8 = arange 0 : i64[32]\n"
                "  %9 = broadcast %8 : i64[8, 32]\n"
                "  %10 = add %7, %9 : i64[8, 32]\n"
                "  %11 = load %1, %10 : f32[8, 32]\n"
                "  store %1, %10, %11\n"
                "}\n");
    const ir_linear *x = ir_linear_of(w.l, 10);
    int64_t step;
    assert_true(x->ok && x->exact);
    is(x->lane[0], 1, 2);
    is(x->lane[1], 1, 0);
    assert_false(ir_lane_step(w.l, 10, &step)); /* two axes */
    assert_false(ir_lane_step(w.l, 6, &step));  /* N is no number */
    assert_true(ir_lane_step(w.l, 4, &step));
    assert_int_equal(step, 1);
    drop(&w);
}

/* Narrow integers wrap: the form holds, but not as a number. Products of lanes and quotients have none. */
static void test_limits(void **state)
{
    (void)state;
    world w;
    read_ir(&w, "kernel limits(buf<f32> x, i64 N) {\n"
                "  %3 = arange 0 : i32[64]\n"
                "  %4 = add %3, %3 : i32[64]\n"
                "  %5 = mul %3, %3 : i32[64]\n"
                "  %6 = arange 0 : i64[64]\n"
                "  %7 = const 8 : i64\n"
                "  %8 = broadcast %7 : i64[64]\n"
                "  %9 = floordiv %6, %8 : i64[64]\n"
                "  %10 = cast %5 : i64[64]\n"
                "  %11 = load %1, %6 : f32[64]\n"
                "  store %1, %6, %11\n"
                "}\n");
    int64_t step;
    assert_true(ir_lane_step(w.l, 4, &step));
    assert_int_equal(step, 2);
    assert_true(ir_linear_of(w.l, 4)->ok && !ir_linear_of(w.l, 4)->exact);
    assert_false(ir_linear_of(w.l, 5)->ok);
    assert_false(ir_linear_of(w.l, 9)->ok);
    assert_false(ir_linear_of(w.l, 10)->ok);
    drop(&w);
}

/* A scalar that is data: the same for all lanes, unknown from program to program. */
static void test_data(void **state)
{
    (void)state;
    world w;
    read_ir(&w, "kernel data(buf<i64> t, buf<f32> x, i64 N) {\n"
                "  %4 = program_id 1 : i64\n"
                "  %5 = load %1, %4 : i64\n"
                "  %6 = mul %5, %3 : i64\n"
                "  %7 = broadcast %6 : i64[32]\n"
                "  %8 = arange 0 : i64[32]\n"
                "  %9 = add %7, %8 : i64[32]\n"
                "  %10 = load %2, %9 : f32[32]\n"
                "  store %2, %9, %10\n"
                "}\n");
    const ir_linear *x = ir_linear_of(w.l, 9);
    assert_true(x->ok);
    is(x->lane[0], 1, 0);
    assert_true(x->program[0].any && x->program[1].any);
    is(ir_linear_of(w.l, 4)->program[1], 1, 0);
    drop(&w);
}

static void test_counters(void **state)
{
    (void)state;
    world w;
    read_ir(&w, "kernel counters(buf<f32> x, i64 N) {\n"
                "  %3 = const 0 : i64\n"
                "  %4 = const 32 : i64\n"
                "  %5 = loop %3, %2, %4 : i64\n"
                "    %6 = const 16 : i64\n"
                "    %7 = add %5, %6 : i64\n"
                "    %8 = mul %7, %6 : i64\n"
                "    %9 = load %1, %8 : f32\n"
                "    store %1, %7, %9\n"
                "  endloop\n"
                "}\n");
    uint32_t root;
    int64_t add;
    assert_int_equal(ir_multiple(w.ir, 5), 32);
    assert_int_equal(ir_multiple(w.ir, 7), 16);
    assert_int_equal(ir_multiple(w.ir, 8), 256);
    ir_split_constant(w.ir, 7, &root, &add);
    assert_int_equal(root, 5);
    assert_int_equal(add, 16);
    ir_split_constant(w.ir, 6, &root, &add);
    assert_int_equal(root, 0);
    assert_int_equal(add, 16);
    drop(&w);
}

static void test_accesses(void **state)
{
    (void)state;
    world w;
    read_ir(&w, "kernel accesses(buf<f32> x, buf<f32> y, i64 N) {\n"
                "  %4 = const 1 : i64\n"
                "  %5 = load %1, %3 : f32\n"
                "  %6 = dot %1, %3, %4, %2, %3, %4, %3 : f32\n"
                "  %7 = atomic_add %2, %4, %6 : f32\n"
                "  store %2, %3, %5\n"
                "}\n");
    ir_access a[2];
    assert_int_equal(ir_accesses(w.ir, &w.ir->insns[0], a), 0);
    assert_int_equal(ir_accesses(w.ir, &w.ir->insns[1], a), 1);
    assert_true(a[0].buf == 1 && a[0].off == 3 && !a[0].store);
    assert_int_equal(ir_accesses(w.ir, &w.ir->insns[2], a), 2);
    assert_true(a[0].buf == 1 && a[1].buf == 2 && !a[0].off && !a[1].off && !a[0].store && !a[1].store);
    assert_int_equal(ir_accesses(w.ir, &w.ir->insns[3], a), 1);
    assert_true(a[0].buf == 2 && a[0].off == 4 && a[0].store);
    assert_int_equal(ir_accesses(w.ir, &w.ir->insns[4], a), 1);
    assert_true(a[0].buf == 2 && a[0].off == 3 && a[0].store);
    drop(&w);
}

/* Threads that leave a loop at different times count alike while they run; what the loop carries differs
 * after it. */
static void test_uniform(void **state)
{
    (void)state;
    world w;
    read_ir(&w, "kernel uniform(buf<f32> x, i64 N) {\n"
                "  %3 = thread_id 32 : i64\n"
                "  %4 = const 0 : i64\n"
                "  %5 = const 1 : i64\n"
                "  %6, %7 = loop %4, %3, %5, %4 : i64, i64\n"
                "    %8 = add %7, %2 : i64\n"
                "  %9 = endloop %8 : i64\n"
                "  %10 = load %1, %9 : f32\n"
                "  store %1, %3, %10\n"
                "}\n");
    const bool *merges = ir_uniform(w.ir, IR_UNIFORM_MERGES, &w.mem),
               *counters = ir_uniform(w.ir, IR_UNIFORM_COUNTERS, &w.mem);
    assert_true(merges[2] && merges[4] && !merges[3] && !merges[9] && !merges[10]);
    assert_true(!merges[6] && counters[6]);
    assert_true(!counters[7] && !counters[8] && !counters[9]);
    drop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_tiles),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_data),    cmocka_unit_test(test_counters), cmocka_unit_test(test_accesses),
        cmocka_unit_test(test_uniform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
