/* test_rewrite.c: what passes and back ends share: regions, live ranges, slots, and the frame that new
 * kernels are built in. */
#include "../../src/ir/ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char LOOPS[] = "kernel loops(buf<f32> x, i64 n) {\n"
                            "  %3 = const 0 : i64\n"
                            "  %4 = const 1 : i64\n"
                            "  %5 = const 2.0 : f32\n"
                            "  %6, %7 = loop %3, %2, %4, %5 : i64, f32\n"
                            "    %8 = lt %6, %4 : bool\n"
                            "    if %8\n"
                            "      %9 = mul %7, %5 : f32\n"
                            "    else %9\n"
                            "      %10 = add %7, %5 : f32\n"
                            "    %11 = endif %10 : f32\n"
                            "  %12 = endloop %11 : f32\n"
                            "  store %1, %3, %12\n"
                            "}\n";

static eas_ir *read_ir(const char *text)
{
    eas_ir *ir = NULL;
    if (eas_ir_parse(text, strlen(text), &ir))
        fail_msg("%s", eas_error_message());
    return ir;
}

/* Instructions: 0-2 consts, 3 loop, 4 lt, 5 if, 6 mul, 7 else, 8 add, 9 endif, 10 endloop, 11 store. */
static void test_regions(void **state)
{
    (void)state;
    arena mem = {0};
    ir_regions r;
    eas_ir *ir = read_ir(LOOPS);
    assert_true(ir_find_regions(ir, &mem, &r));
    assert_int_equal(r.end[3], 10);
    assert_int_equal(r.end[5], 9);
    assert_int_equal(r.end[7], 9);
    assert_int_equal(r.mid[5], 7);
    assert_int_equal(r.mid[3], 0);
    assert_int_equal(r.opener[7], 5);
    assert_int_equal(r.opener[9], 5);
    assert_int_equal(r.opener[10], 3);
    assert_int_equal(r.parent[3], UINT32_MAX);
    assert_int_equal(r.parent[4], 3);
    assert_int_equal(r.parent[8], 5);
    assert_int_equal(r.parent[9], 3);
    assert_int_equal(r.parent[10], UINT32_MAX);
    arena_free(&mem);
    eas_ir_release(ir);
}

/* What comes into a loop is needed until it ends, whatever its last read in there; what is made in it is not.
 */
static void test_lives(void **state)
{
    (void)state;
    arena mem = {0};
    ir_lives l;
    assert_true(ir_lives_begin(&l, 4, &mem));
    l.of[1].made = 1;
    l.of[2].made = 1;
    l.of[3].made = 4;
    ir_lives_read(&l, 1, 5);
    ir_lives_read(&l, 2, 2);
    ir_lives_read(&l, 3, 6);
    ir_lives_region(&l, 3, 8);
    assert_int_equal(l.of[1].last, 8);
    assert_true(l.of[1].region);
    assert_int_equal(l.of[2].last, 2);
    assert_int_equal(l.of[3].last, 6);
    assert_false(l.of[3].region);
    /* such as the condition of a branch, which is asked again where the branch ends */
    ir_lives_read(&l, 2, 20);
    ir_lives_region(&l, 12, 15);
    assert_int_equal(l.of[2].last, 20);
    ir_lives_read(&l, 1, 9);
    assert_int_equal(l.of[1].last, 9);
    assert_false(l.of[1].region);
    arena_free(&mem);
}

static bool even_holder(const void *ctx, const ir_slot *s, uint32_t v)
{
    (void)ctx;
    (void)v;
    return s->holder % 2 == 0;
}

/* Best fit: the smallest free slot that is large enough. */
static void test_slots(void **state)
{
    (void)state;
    ir_slots s = {0};
    assert_true(ir_slot_add(&s, 0, 100, 2));
    assert_true(ir_slot_add(&s, 100, 40, 4));
    assert_true(ir_slot_add(&s, 140, 30, 5));
    assert_null(ir_slot_take(&s, 101, 6, even_holder, NULL));
    const ir_slot *x = ir_slot_take(&s, 20, 7, even_holder, NULL);
    assert_non_null(x);
    assert_int_equal(x->at, 100);
    assert_int_equal(x->owner, 4);
    assert_int_equal(x->holder, 7);
    x = ir_slot_take(&s, 20, 8, even_holder, NULL);
    assert_non_null(x);
    assert_int_equal(x->at, 0);
    vec_free(&s);
}

static void add_once_more(ir_rewrite *w, uint32_t i)
{
    const ir_insn *in = ir_rewrite_at(w, i);
    ir_rewrite_copy(w, i);
    if (in->op == IR_MUL)
        w->map[in->res] = irb_op(w->b, IR_ADD, w->map[in->res], ir_rewrite_arg(w, in, 0), 0);
}

/* A pass that changes one instruction leaves the rest as it is. */
static void test_frame(void **state)
{
    (void)state;
    ir_rewrite w = {0};
    eas_ir *ir = read_ir(LOOPS), *out = NULL;
    assert_int_equal(ir_rewrite_begin(&w, ir), EAS_OK);
    for (uint32_t i = 0; i < ir->ninsns; i++)
        add_once_more(&w, i);
    assert_int_equal(ir_rewrite_end(&w, EAS_OK, &out), EAS_OK);
    assert_int_equal(out->ninsns, ir->ninsns + 1);
    assert_int_equal(out->insns[7].op, IR_ADD);
    assert_int_equal(ir_args(out, &out->insns[8])[0], out->insns[7].res);
    assert_string_equal(out->name, ir->name);
    eas_ir_release(ir);
    eas_ir_release(out);
}

/* Without the carried value of a loop: its operand, both results and the next value go together. */
static void test_some(void **state)
{
    (void)state;
    static const char TWO[] = "kernel two(buf<f32> x, i64 n) {\n"
                              "  %3 = const 0 : i64\n"
                              "  %4 = const 1 : i64\n"
                              "  %5 = const 2.0 : f32\n"
                              "  %6, %7, %8 = loop %3, %2, %4, %5, %5 : i64, f32, f32\n"
                              "    %9 = mul %8, %8 : f32\n"
                              "  %10, %11 = endloop %5, %9 : f32, f32\n"
                              "  store %1, %3, %11\n"
                              "}\n";
    const bool keep[2] = {false, true};
    ir_rewrite w = {0};
    eas_ir *ir = read_ir(TWO), *out = NULL;
    assert_int_equal(ir_rewrite_begin(&w, ir), EAS_OK);
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        if (ir->insns[i].op == IR_LOOP)
            ir_rewrite_some(&w, i, 3, 1, keep);
        else if (ir->insns[i].op == IR_ENDLOOP)
            ir_rewrite_some(&w, i, 0, 0, keep);
        else
            ir_rewrite_copy(&w, i);
    }
    assert_int_equal(ir_rewrite_end(&w, EAS_OK, &out), EAS_OK);
    assert_int_equal(out->insns[3].nargs, 4);
    assert_int_equal(out->insns[3].nres, 2);
    assert_int_equal(out->insns[5].nargs, 1);
    assert_int_equal(out->insns[5].nres, 1);
    assert_int_equal(ir_args(out, &out->insns[6])[2], out->insns[5].res);
    eas_ir_release(ir);
    eas_ir_release(out);
}

/* A failure on the way comes out at the end, and nothing else does. */
static void test_failure(void **state)
{
    (void)state;
    ir_rewrite w = {0};
    eas_ir *ir = read_ir(LOOPS), *out = NULL;
    assert_int_equal(ir_rewrite_begin(&w, ir), EAS_OK);
    assert_int_equal(ir_rewrite_end(&w, EAS_ERR_VALUE, &out), EAS_ERR_VALUE);
    assert_null(out);
    assert_int_equal(ir_rewrite_begin(&w, ir), EAS_OK);
    ir_rewrite_copy(&w, 3); /* its operands were never copied */
    assert_int_not_equal(ir_rewrite_end_simple(&w, EAS_OK, &out), EAS_OK);
    assert_null(out);
    eas_ir_release(ir);
}

/* (program_id(0) * n + arange) steps by n from program to program; base + stride * lane follows through
 * arithmetic. */
static void test_steps_and_runs(void **state)
{
    (void)state;
    static const char ROWS[] = "kernel rows(buf<f32> x, i64 n) {\n"
                               "  %3 = program_id 0 : i64\n"
                               "  %4 = mul %3, %2 : i64\n"
                               "  %5 = broadcast %4 : i64[16]\n"
                               "  %6 = arange 0 : i64[16]\n"
                               "  %7 = add %5, %6 : i64[16]\n"
                               "  %8 = load %1, %7 : f32[16]\n"
                               "  store %1, %6, %8\n"
                               "}\n";
    arena mem = {0};
    eas_ir *ir = read_ir(ROWS);
    const ir_step *s = ir_step_of(ir, 7, 0, &mem);
    assert_non_null(s);
    assert_int_equal(s->kind, STEP_TIMES);
    assert_int_equal(s->v, 2);
    assert_int_equal(s->x->kind, STEP_ONE);
    assert_int_equal(ir_step_of(ir, 6, 0, &mem)->kind, STEP_ZERO);
    assert_null(ir_step_of(ir, 8, 0, &mem));
    arena_free(&mem);
    eas_ir_release(ir);

    ir_run lane = ir_run_still(16), base = ir_run_still(4), four;
    lane.stride = 1;
    ir_run sum = ir_run_sum(IR_ADD, &lane, &base), both = ir_run_sum(IR_SUB, &base, &lane);
    assert_int_equal(sum.stride, 1);
    assert_int_equal(sum.mult, 4);
    assert_int_equal(both.stride, -1);
    four = ir_run_scaled(&lane, 4);
    assert_int_equal(four.stride, 4);
    assert_int_equal(four.mult, 64);
    assert_false(ir_run_product(&lane, &base).ok);
    assert_true(ir_run_product(&base, &base).ok);
    assert_int_equal(ir_run_split(true, &lane, 32, 16).stride, 0);
    assert_int_equal(ir_run_split(false, &lane, 32, 16).stride, 1);
    assert_false(ir_run_split(false, &lane, 32, 16).whole);
    assert_false(ir_run_split(true, &sum, 32, 16).ok); /* may cross a multiple of 32 */
    assert_false(ir_run_split(true, &lane, 24, 16).ok);
    assert_false(ir_run_split(true, &lane, 0, 16).ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regions),        cmocka_unit_test(test_lives), cmocka_unit_test(test_slots),
        cmocka_unit_test(test_frame),          cmocka_unit_test(test_some),  cmocka_unit_test(test_failure),
        cmocka_unit_test(test_steps_and_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
