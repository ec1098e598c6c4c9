/* test_ir.c: the IR by itself: text form, every rule of the verifier broken once, simplifier, intervals,
 * forms, interpreter. */
#include "../../src/ir/ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static eas_ir *parse(const char *text)
{
    eas_ir *ir = NULL;
    if (eas_ir_parse(text, strlen(text), &ir))
        fail_msg("%s\n%s", eas_error_message(), text);
    return ir;
}

static char *print(const eas_ir *ir, int lines)
{
    char *t = NULL;
    assert_int_equal(eas_ir_text(ir, lines, &t), EAS_OK);
    return t;
}

#define K(params, body) "kernel k(" params ") {\n" body "}\n"

/* ---- text ---- */

static const char *const whole[] = {
    K("", ""),
    "file 1 \"a \\\"b\\\\ c.py\"\nfile 2 \"x\"\n" K(
        "buf<f32> a, f64 s",
        "  %3 = const 0 : i64 @1:12\n  %4 = load %1, %3 : f32 @2:4294967295\n  store %1, %3, %4\n"),
    K("buf<bf16> a",
      "  %2 = const -0.0 : bf16\n  %3 = const inf : f64\n  %4 = const nan : f32\n  %5 = const nan:0x7f800001 : f32\n  %6 = const true : bool\n"
      "  %7 = const 18446744073709551615 : u64\n  %8 = const -9223372036854775808 : i64\n  %9 = const 0.1 : f32\n  %10 = const 5e-324 : f64\n"),
    K("i64 n",
      "  %2 = const 0 : i64\n  %3 = const 1 : i64\n  %4 = const 1.0 : f32\n  %5, %6 = loop %2, %1, %3, %4 : i64, f32\n    %7 = add %6, %6 : "
      "f32\n  %8 = endloop %7 : f32\n"
      "  %9 = gt %8, %4 : bool\n  if %9\n  else %8\n  %10 = endif %4 : f32\n  %11 = while %2 : i64\n    %12 = lt %11, %1 : bool\n  do %12\n "
      "   %13 = add %11, %3 : i64\n  %14 = endwhile %13 : i64\n"),
    K("bool c, f32 x",
      "  assert \"a \\\"quoted\\\" \\\\ line\\x0a; no comment\" %1\n  assert \"\" %1, %1\n  print \"x {} {{}}\" %2\n  print "
      "\"none\"\n  print \"none\" %1\n"),
    K("buf<f16> a",
      "  %2 = thread_id 64 : i64\n  %3 = alloc_tg : tg<f16>[64]\n  barrier\n  %4 = mma_zero : frag\n  %5 = lane_id : i64\n  %6 = sg_id "
      ": u32\n  %7 = local_id 1 : i64\n  mma_store %1, %2, %2, %4\n"),
    K("buf<i8> a",
      "  %2 = arange -4 : i32[7]\n  %3 = reshape %2 : i32[7,1]\n  %4 = broadcast %3 : i32[7,3]\n"),
};

static void text_form_is_its_own_inverse(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        eas_ir *ir = parse(whole[i]);
        char *t = print(ir, 1);
        eas_ir *again = parse(t);
        char *t2 = print(again, 1);
        assert_string_equal(t, t2);
        free(t);
        free(t2);
        eas_ir_release(ir);
        eas_ir_release(again);
    }
}

static void comments_and_blank_lines_are_skipped(void **state)
{
    (void)state;
    eas_ir *ir =
        parse("; a comment\n\nkernel k(i64 n) { ; here too\n\n  %2 = add %1, %1 : i64 ; and here\n}\n\n");
    assert_int_equal(eas_ir_insn_count(ir), 1);
    eas_ir_release(ir);
}

static const struct {
    const char *text, *why;
} bad_text[] = {
    {"", "expected 'kernel'"},
    {"kernel (", "expected a name"},
    {"kernel 1k() {\n}\n", "identifier"},
    {K("f32 a, f32 a", ""), "two parameters"},
    {K("tg<f32>[4] a", ""), "scalar or a buffer"},
    {K("f99 a", ""), "no dtype"},
    {K("", "  %1 = frobnicate : i64\n"), "no instruction"},
    {K("", "  %2 = const 1 : i64\n"), "expected %1"},
    {K("", "  %1 = const 300 : u8\n"), "does not fit"},
    {K("", "  %1 = const 1.5 : i64\n"), "expected"},
    {K("", "  %1 = const 99999999999999999999 : i64\n"), "too large"},
    {K("", "  %1 = const 1 : i64 @3:1\n"), "out of range"},
    {K("", "  %1 = const 1 : i64[2]\n"), "scalar"},
    {K("i64 n", "  %2 = add %1, %3 : i64\n"), "not a value"},
    {K("i64 n", "  %2 = add %1, %1 : i32\n"), "type that the operands give"},
    {K("i64 n", "  %2, %3 = add %1, %1 : i64, i64\n"), "results"},
    {K("i64 n", "  %2 = add %1 : i64\n"), "operands"},
    {K("i64 n", "  endloop\n"), "without"},
    {K("bool c", "  if %1\n"), "not closed"},
    {K("i64 n", "  %2 = arange 0 : i64[1,2,3,4,5]\n"), "dimensions"},
    {K("i64 n", "  %2 = arange 0 : i64[0]\n"), "dimension"},
    {K("i64 n", "  %2 = arange 0 : i64[1048577]\n"), "dimension"},
    {"file 2 \"x\"\n" K("", ""), "numbered from 1"},
    {"file 1 \"x\"\nfile 2 \"x\"\n" K("", ""), "twice"},
    {K("", "") "x", "end of the text"},
};

static void bad_text_is_refused_with_the_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_text / sizeof *bad_text; i++) {
        eas_ir *ir = NULL;
        eas_status st = eas_ir_parse(bad_text[i].text, strlen(bad_text[i].text), &ir);
        if (!st || !strstr(eas_error_message(), bad_text[i].why))
            fail_msg("expected \"%s\", got %d \"%s\" for\n%s", bad_text[i].why, st, eas_error_message(),
                     bad_text[i].text);
        assert_null(ir);
    }
}

/* ---- rules: one broken kernel each ---- */

static const struct {
    const char *text, *why;
} bad_rule[] = {
    /* operands and classes */
    {K("f32 x", "  %2 = floordiv %1, %1 : f32\n"), "not defined for f32"},
    {K("i64 x", "  %2 = div %1, %1 : i64\n"), "not defined for i64"},
    {K("i64 x, i32 y", "  %3 = add %1, %2 : i64\n"), "types differ"},
    {K("bool x", "  %2 = lt %1, %1 : bool\n"), "not defined for bool"},
    {K("buf<f32> a", "  %2 = add %1, %1 : f32\n"), "expected a value"},
    {K("i64 c, f32 x", "  %3 = where %1, %2, %2 : f32\n"), "mask is"},
    {K("i64 x", "  %2 = bitcast %1 : f32\n"), "one size"},
    {K("bool x", "  %2 = bitcast %1 : u8\n"), "one size"},
    {K("", "  %1 = arange 0 : i64[4]\n  %2 = cast %1 : f32[2]\n"), "shapes differ"},
    {K("", "  %1 = arange 0 : i64[4]\n  %2 = broadcast %1 : i64[3]\n"), "cannot broadcast"},
    {K("", "  %1 = arange 0 : i64[4]\n  %2 = broadcast %1 : i32[4]\n"), "dtypes differ"},
    {K("", "  %1 = arange 0 : i64[4]\n  %2 = reshape %1 : i64[3]\n"), "counts differ"},
    {K("", "  %1 = arange 0 : f32[4]\n"), "integer block"},
    {K("", "  %1 = program_id 3 : i64\n"), "axis"},
    {K("", "  %1 = program_id 0 : f32\n"), "integer scalar"},
    {K("", "  %1 = thread_id 0 : i64\n"), "positive"},
    /* memory */
    {K("f32 x, i64 i", "  %3 = load %1, %2 : f32\n"), "expected a buffer"},
    {K("buf<f32> a, f32 i", "  %3 = load %1, %2 : f32\n"), "expected an integer"},
    {K("buf<f32> a, i64 i, i64 m, f32 o", "  %5 = load %1, %2, %3, %4 : f32\n"), "mask"},
    {K("buf<f32> a, i64 i, bool m, f64 o", "  %5 = load %1, %2, %3, %4 : f32\n"), "types differ"},
    {K("buf<f32> a, i64 i, bool m", "  %4 = load %1, %2, %3 : f32\n"), "2 or 4"},
    {K("buf<f32> a, i64 i, f64 v", "  store %1, %2, %3\n"), "types differ"},
    {K("buf<f32> a, i64 i", "  store %1, %2\n"), "3 or 4"},
    {K("", "  %1 = alloc_tg : tg<f32>[0]\n"), "positive"},
    {K("", "  %1 = alloc_tg : f32\n"), "malformed"},
    {K("buf<i32> a, i64 i", "  %3 = dot %1, %2, %2, %1, %2, %2, %2 : f32\n"), "float buffers"},
    {K("buf<f32> a, f32 i", "  %3 = dot %1, %2, %2, %1, %2, %2, %2 : f32\n"), "integer"},
    {K("buf<f64> a, i64 i",
       "  %3 = thread_id 32 : i64\n  %4 = mma_zero : frag\n  %5 = mma %1, %2, %2, %1, %2, %2, %4 : frag\n"),
     "f16 or f32"},
    {K("buf<f32> a, i64 i", "  %3 = thread_id 32 : i64\n  %4 = mma %1, %2, %2, %1, %2, %2, %2 : frag\n"),
     "fragment"},
    {K("i64 i", "  %2 = bounds %1, %1 : bool\n"), "expected a buffer"},
    {K("i64 i", "  assert \"x\" %1\n"), "mask is i64"},
    {K("bool c", "  assert %1\n"), "expected"},
    {K("bool c", "  assert \"x\" %1, %1, %1\n"), "takes 1 or 2 operands"},
    {K("i64 i", "  print \"{} {}\" %1\n"), "takes 2 or 3 operands"},
    {K("i64 i", "  print \"{}\" %1, %1\n"), "mask is i64"},
    {K("buf<f32> x", "  print \"{}\" %1\n"), "expected a value"},
    /* structure */
    {K("i64 n, i32 m", "  %3 = loop %1, %2, %1 : i64\n  endloop\n"), "types differ"},
    {K("f32 n", "  %2 = loop %1, %1, %1 : f32\n  endloop\n"), "integer"},
    {K("i64 n", "  %2 = loop %1, %1 : i64\n"), "lo, hi, step"},
    {K("i64 n, f32 x", "  %3, %4 = loop %1, %1, %1, %2 : i64, f32\n  %5 = endloop %3 : i64\n"),
     "another type"},
    {K("i64 n, f32 x", "  %3, %4 = loop %1, %1, %1, %2 : i64, f32\n  endloop\n"), "expected 1"},
    {K("buf<f32> a, i64 n", "  %3, %4 = loop %2, %2, %2, %1 : i64, buf<f32>\n"), "carried"},
    {K("i64 n", "  if %1\n  endif\n"), "bool scalar"},
    {K("bool c, f32 x, i64 y", "  if %1\n  else %2\n  %4 = endif %3 : i64\n"), "another type"},
    {K("bool c, f32 x", "  if %1\n  else %2\n  endif\n"), "expected 1"},
    {K("bool c, f32 x", "  if %1\n  %3 = endif %2 : f32\n"), "expected 0"},
    {K("bool c", "  if %1\n  else\n  else\n  endif\n"), "twice"},
    {K("bool c, i64 n", "  if %1\n    %3 = add %2, %2 : i64\n  endif\n  %4 = add %3, %3 : i64\n"),
     "not defined here"},
    {K("bool c, i64 n", "  if %1\n    %3 = add %2, %2 : i64\n  else\n    %4 = add %3, %3 : i64\n  endif\n"),
     "not defined here"},
    {K("i64 n", "  %2 = loop %1, %1, %1 : i64\n  endloop\n  %3 = add %2, %2 : i64\n"), "not defined here"},
    {K("i64 n", "  %2 = while %1 : i64\n  %3 = endwhile %2 : i64\n"), "no condition"},
    {K("bool c",
       "  if %1\n    %2 = alloc_tg : tg<f32>[4]\n  endif\n  %3 = const 0 : i64\n  %4 = load %2, %3 : f32\n"),
     "is not defined here"},
    {K("f32 x", "  %2 = thread_id 48 : i64\n  %3 = simd_shuffle %1, %2 : f32\n"),
     "multiple of 32 threads; this one has 48"},
    {K("f32 x", "  %2 = const 0 : i64\n  %3 = simd_shuffle %1, %2 : f32\n"), "call tid"},
    {K("f32 x",
       "  %2 = thread_id 32 : i64\n  %3 = const 4 : i64\n  %4 = lt %2, %3 : bool\n  if %4\n    %5 = simd_shuffle %1, %2 : f32\n  endif\n"),
     "the same for the whole group"},
    {K("f32 x", "  %2 = thread_id 32 : i64\n  %3 = simd_shuffle %1, %1 : f32\n"), "expected an integer"},
    /* modes */
    {K("", "  %1 = arange 0 : i64[4]\n  %2 = thread_id 4 : i64\n"), "mixes"},
    {K("", "  %1 = thread_id 4 : i64\n  %2 = thread_id 8 : i64\n"), "threads elsewhere"},
    {K("", "  %1 = lane_id : i64\n"), "never says how many"},
    {K("",
       "  %1 = thread_id 64 : i64\n  %2 = const 3 : i64\n  %3 = lt %1, %2 : bool\n  if %3\n    barrier\n  endif\n"),
     "differ between threads"},
    {K("",
       "  %1 = thread_id 64 : i64\n  %2 = const 1 : i64\n  %3 = loop %2, %1, %2 : i64\n    barrier\n  endloop\n"),
     "differ between threads"},
    {K("",
       "  %1 = thread_id 64 : i64\n  %2 = while %1 : i64\n    %3 = lt %2, %1 : bool\n  do %3\n    barrier\n  %4 = endwhile %2 : i64\n"),
     "differ between threads"},
};

static void every_rule_is_enforced(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_rule / sizeof *bad_rule; i++) {
        eas_ir *ir = NULL;
        eas_status st = eas_ir_parse(bad_rule[i].text, strlen(bad_rule[i].text), &ir);
        if (!st || !strstr(eas_error_message(), bad_rule[i].why))
            fail_msg("expected \"%s\", got %d \"%s\" for\n%s", bad_rule[i].why, st, eas_error_message(),
                     bad_rule[i].text);
    }
}

/* The verifier does not trust its input: every field of every instruction set to nonsense is noticed or
 * harmless. */
static void the_verifier_survives_broken_structures(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof whole / sizeof *whole; w++) {
        eas_ir *ir = parse(whole[w]);
        for (uint32_t i = 0; i < ir->ninsns; i++) {
            ir_insn keep = ir->insns[i];
            static const uint32_t nonsense[] = {0, 1, 2, 3, 7, 63, 255, 65535, UINT32_MAX};
            for (size_t k = 0; k < sizeof nonsense / sizeof *nonsense; k++)
                for (int field = 0; field < 7; field++) {
                    uint32_t v = nonsense[k];
                    switch (field) {
                    case 0: ir->insns[i].op = (uint16_t)v; break;
                    case 1: ir->insns[i].nargs = (uint16_t)v; break;
                    case 2: ir->insns[i].nres = (uint16_t)v; break;
                    case 3: ir->insns[i].args = v; break;
                    case 4: ir->insns[i].res = v; break;
                    case 5: ir->insns[i].file = (uint16_t)v; break;
                    default: ir->insns[i].imm = (int64_t)v; break;
                    }
                    (void)ir_verify(ir);
                    ir->insns[i] = keep;
                }
        }
        assert_int_equal(ir_verify(ir), EAS_OK);
        eas_ir_release(ir);
    }
}

/* ---- simplifier ---- */

static const struct {
    const char *what, *from, *want;
} simple[] = {
    {"constants fold",
     K("buf<i64> a",
       "  %2 = const 6 : i64\n  %3 = const 7 : i64\n  %4 = mul %2, %3 : i64\n  %5 = const 0 : i64\n  store %1, %5, %4\n"),
     "const 42 : i64"},
    {"floor division folds as Python's",
     K("buf<i64> a",
       "  %2 = const -7 : i64\n  %3 = const 2 : i64\n  %4 = floordiv %2, %3 : i64\n  %5 = const 0 : i64\n  store %1, %5, %4\n"),
     "const -4 : i64"},
    {"x + 0", K("buf<i64> a, i64 x", "  %3 = const 0 : i64\n  %4 = add %2, %3 : i64\n  store %1, %3, %4\n"),
     "store %1, %3, %2"},
    {"x * 1",
     K("buf<f32> a, f32 x",
       "  %3 = const 1.0 : f32\n  %4 = mul %2, %3 : f32\n  %5 = const 0 : i64\n  store %1, %5, %4\n"),
     "store %1, %3, %2"},
    {"x + 0.0 stays",
     K("buf<f32> a, f32 x",
       "  %3 = const 0.0 : f32\n  %4 = add %2, %3 : f32\n  %5 = const 0 : i64\n  store %1, %5, %4\n"),
     "add "},
    {"x - x stays for floats",
     K("buf<f32> a, f32 x", "  %3 = sub %2, %2 : f32\n  %4 = const 0 : i64\n  store %1, %4, %3\n"), "sub "},
    {"equal values are shared",
     K("buf<f32> a, f32 x",
       "  %3 = mul %2, %2 : f32\n  %4 = mul %2, %2 : f32\n  %5 = sub %3, %4 : f32\n  %6 = const 0 : i64\n  store %1, %6, %5\n"),
     "sub %3, %3"},
    {"a decided comparison disappears",
     K("buf<f32> a, f32 x",
       "  %3 = thread_id 64 : i64\n  %4 = const 64 : i64\n  %5 = lt %3, %4 : bool\n  store %1, %3, %2, %5\n"),
     "store %1, %3, %2\n"},
    {"tid + i*NT < LIMIT",
     K("buf<f32> a, f32 x",
       "  %3 = thread_id 64 : i64\n  %4 = const 192 : i64\n  %5 = add %3, %4 : i64\n  %6 = const 256 : i64\n  %7 = lt %5, %6 : "
       "bool\n  store %1, %5, %2, %7\n"),
     "store %1, %5, %2\n"},
    {"where on bools is and",
     K("buf<f32> a, f32 x, bool p, bool q",
       "  %5 = const false : bool\n  %6 = where %3, %4, %5 : bool\n  %7 = const 0 : i64\n  store %1, %7, %2, %6\n"),
     "and %3, %4"},
    {"a*b + c is one fma",
     K("buf<f32> a, f32 x, f32 y",
       "  %4 = mul %2, %3 : f32\n  %5 = add %4, %2 : f32\n  %6 = const 0 : i64\n  store %1, %6, %5\n"),
     "fma %2, %3, %2"},
    {"pid*BLOCK + tid is the place in the grid",
     K("buf<f32> a, f32 x",
       "  %3 = program_id 0 : i64\n  %4 = const 64 : i64\n  %5 = mul %3, %4 : i64\n  %6 = thread_id 64 : i64\n  %7 = add %5, %6 "
       ": i64\n  store %1, %7, %2\n"),
     "global_id 64"},
    {"a known if is its branch",
     K("buf<f32> a, f32 x, f32 y",
       "  %4 = const true : bool\n  if %4\n    %5 = neg %2 : f32\n  else %5\n    %6 = neg %3 : f32\n  %7 = endif %6 : "
       "f32\n  %8 = const 0 : i64\n  store %1, %8, %7\n"),
     "neg %2"},
    {"x / 4 multiplies",
     K("buf<f32> a, f32 x",
       "  %3 = const 4.0 : f32\n  %4 = div %2, %3 : f32\n  %5 = const 0 : i64\n  store %1, %5, %4\n"),
     "const 0.25 : f32"},
    {"what is not needed goes",
     K("buf<f32> a, f32 x",
       "  %3 = neg %2 : f32\n  %4 = abs %3 : f32\n  %5 = const 0 : i64\n  store %1, %5, %2\n"),
     "store %1, %3, %2"},
};

static void simplifications(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++) {
        eas_ir *ir = parse(simple[i].from), *s = NULL;
        assert_int_equal(eas_ir_simplify(ir, &s), EAS_OK);
        char *t = print(s, 0);
        if (!strstr(t, simple[i].want))
            fail_msg("%s: \"%s\" is not in\n%s", simple[i].what, simple[i].want, t);
        free(t);
        eas_ir_release(ir);
        eas_ir_release(s);
    }
}

static void contraction_can_be_switched_off(void **state)
{
    (void)state;
    eas_ir *
        ir = parse(
           "kernel k(buf<f32> a, f32 x) nocontract {\n  %3 = mul %2, %2 : f32\n  %4 = add %3, %2 : f32\n  %5 = const 0 : i64\n  store "
           "%1, %5, %4\n}\n"),
       *s = NULL;
    assert_int_equal(eas_ir_simplify(ir, &s), EAS_OK);
    char *t = print(s, 0);
    assert_null(strstr(t, "fma"));
    free(t);
    eas_ir_release(ir);
    eas_ir_release(s);
}

/* ---- interpreter ---- */

static void run(const eas_ir *ir, uint64_t *slot, int64_t *count, int64_t programs, eas_status want)
{
    ir_call call = {.slot = slot, .count = count, .grid = {programs, 1, 1}};
    eas_status st = ir_interp(ir, &call);
    if (st != want)
        fail_msg("status %d, expected %d: %s", st, want, eas_error_message());
}

static void loops_carry_values(void **state)
{
    (void)state;
    /* out[0] = sum of 10, 7, 4, 1; out[1] = last iv; a swap of two carried values */
    eas_ir *ir = parse(K(
        "buf<i64> a",
        "  %2 = const 10 : i64\n  %3 = const 0 : i64\n  %4 = const -3 : i64\n  %5 = const 1 : i64\n"
        "  %6, %7, %8, %9 = loop %2, %3, %4, %3, %3, %5 : i64, i64, i64, i64\n    %10 = add %7, %6 : i64\n"
        "  %11, %12, %13 = endloop %10, %9, %8 : i64, i64, i64\n  store %1, %3, %11\n  store %1, %5, %12\n"));
    int64_t out[2] = {-1, -1}, count[1] = {2};
    uint64_t slot[1] = {(uintptr_t)out};
    run(ir, slot, count, 1, EAS_OK);
    assert_int_equal(out[0], 22);
    assert_int_equal(out[1], 0); /* four swaps: back where it began */
    eas_ir_release(ir);
}

static void threads_leave_loops_when_they_are_done(void **state)
{
    (void)state;
    /* thread t adds 1 t times; then the odd threads negate */
    eas_ir *ir = parse(K(
        "buf<i64> a",
        "  %2 = thread_id 8 : i64\n  %3 = const 0 : i64\n  %4 = const 1 : i64\n  %5, %6 = loop %3, %2, %4, %3 : i64, "
        "i64\n    %7 = add %6, %4 : i64\n  %8 = endloop %7 : i64\n"
        "  %9 = const 2 : i64\n  %10 = mod %2, %9 : i64\n  %11 = eq %10, %4 : bool\n  if %11\n    %12 = neg %8 : "
        "i64\n  else %12\n  %13 = endif %8 : i64\n  store %1, %2, %13\n"));
    int64_t out[8], count[1] = {8};
    uint64_t slot[1] = {(uintptr_t)out};
    run(ir, slot, count, 1, EAS_OK);
    for (int t = 0; t < 8; t++)
        assert_int_equal(out[t], t % 2 ? -t : t);
    eas_ir_release(ir);
}

static void while_leaves_with_the_values_of_the_failed_test(void **state)
{
    (void)state;
    eas_ir *ir = parse(K(
        "buf<i64> a, i64 n",
        "  %3 = const 1 : i64\n  %4 = while %3 : i64\n    %5 = lt %4, %2 : bool\n  do %5\n    %6 = add %4, %4 "
        ": i64\n  %7 = endwhile %6 : i64\n  %8 = const 0 : i64\n  store %1, %8, %7\n"));
    int64_t out[1] = {0}, count[2] = {1, 0};
    uint64_t slot[2] = {(uintptr_t)out, 100};
    run(ir, slot, count, 1, EAS_OK);
    assert_int_equal(out[0], 128);
    eas_ir_release(ir);
}

static void barriers_order_threadgroup_memory(void **state)
{
    (void)state;
    eas_ir *ir = parse(K(
        "buf<i64> a",
        "  %2 = thread_id 16 : i64\n  %3 = alloc_tg : tg<i64>[16]\n  store %3, %2, %2\n  barrier\n  %4 = const 15 : "
        "i64\n  %5 = sub %4, %2 : i64\n  %6 = load %3, %5 : i64\n  store %1, %2, %6\n"));
    int64_t out[16], count[1] = {16};
    uint64_t slot[1] = {(uintptr_t)out};
    run(ir, slot, count, 1, EAS_OK);
    for (int t = 0; t < 16; t++)
        assert_int_equal(out[t], 15 - t);
    eas_ir_release(ir);
}

static void matrices_multiply(void **state)
{
    (void)state;
    eas_ir *ir =
        parse(K("buf<f32> a, buf<f16> b, buf<f32> c",
                "  %4 = thread_id 32 : i64\n  %5 = const 0 : i64\n  %6 = const 8 : i64\n  %7 = mma_zero : "
                "frag\n  %8 = mma %1, %5, %6, %2, %5, %6, %7 : frag\n  mma_store %3, %5, %6, %8\n"));
    float a[64], c[64];
    uint16_t b[64];
    for (int i = 0; i < 64; i++)
        a[i] = (float)(i % 7 - 3), b[i] = f32_to_f16((float)(i % 5 - 2));
    int64_t count[3] = {64, 64, 64};
    uint64_t slot[3] = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c};
    run(ir, slot, count, 1, EAS_OK);
    for (int i = 0; i < 64; i++) {
        float want = 0;
        for (int k = 0; k < 8; k++)
            want += a[i / 8 * 8 + k] * f16_to_f32(b[k * 8 + i % 8]);
        assert_true(c[i] == want);
    }
    eas_ir_release(ir);
}

static void masked_lanes_touch_nothing(void **state)
{
    (void)state;
    eas_ir *ir = parse(K(
        "buf<f32> a, i64 n",
        "  %3 = arange 0 : i64[8]\n  %4 = const 1000000000000 : i64\n  %5 = broadcast %4 : i64[8]\n  %6 = mul %3, %5 : i64[8]\n  %7 "
        "= broadcast %2 : i64[8]\n  %8 = lt %3, %7 : bool[8]\n"
        "  %9 = const 7.0 : f32\n  %10 = broadcast %9 : f32[8]\n  %11 = load %1, %6, %8, %10 : f32[8]\n  store %1, %6, %11, %8\n"));
    float a[1] = {3};
    int64_t count[2] = {1, 0};
    uint64_t slot[2] = {(uintptr_t)a, 1};
    run(ir, slot, count, 1, EAS_OK);
    slot[1] = 2;
    run(ir, slot, count, 1, EAS_ERR_INDEX);
    assert_non_null(strstr(eas_error_message(), "index 1000000000000 of \"a\""));
    eas_ir_release(ir);
}

/* ---- 16-bit floats: every pattern ---- */

static void halves_convert_exactly(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h), g = bf16_to_f32((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(f32_to_f16(f), h);
        if (!isnan(g))
            assert_int_equal(f32_to_bf16(g), h);
        /* halfway to the next one rounds to even; the next float up rounds up */
        if ((h & 0x7fff) >= 0x7bff)
            continue;
        double mid = ((double)f + (double)f16_to_f32((uint16_t)(h + 1))) / 2;
        if ((h & 0x8000) == 0) {
            assert_int_equal(f64_to_f16(mid), h + (h & 1));
            assert_int_equal(f64_to_f16(nextafter(mid, INFINITY)), h + 1);
            assert_int_equal(f64_to_f16(nextafter(mid, -INFINITY)), h);
        }
    }
    assert_int_equal(f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f64_to_bf16(1e300), 0x7f80);
    assert_int_equal(f64_to_f16(-1e-300), 0x8000);
}

/* ---- intervals ---- */

/* Every integer instruction on random boxes: the result of random points inside must lie in the computed
 * interval. */
static uint64_t seed = 88172645463325252u;
static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static int64_t some_int(eas_dtype dt)
{
    int64_t v = (int64_t)next_random() >> (next_random() % 60), out;
    static const int64_t corner[] = {0, 1, -1, 2, 127, 128, 255, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    if (next_random() % 4 == 0)
        v = corner[next_random() % 11];
    ir_eval(IR_CAST, EAS_I64, dt, &v, &out);
    return out;
}

static bool less(eas_dtype dt, int64_t a, int64_t b)
{
    return dt == EAS_U64 ? (uint64_t)a < (uint64_t)b : a < b;
}

static void one_interval(uint16_t op, eas_dtype dt)
{
    char text[512];
    const char *n = eas_dtype_name(dt);
    bool cmp = ir_rows[op].rule == IR_RULE_CMP;
    snprintf(text, sizeof text, "kernel k(%s x, %s y) {\n  %%3 = %s %%1%s : %s\n}\n", n, n, ir_rows[op].name,
             ir_rows[op].nargs == 2 ? ", %2" : "", cmp ? "bool" : n);
    eas_ir *ir = parse(text);
    for (int round = 0; round < 200; round++) {
        ir_range box[2];
        int64_t pick[2], out;
        for (int i = 0; i < 2; i++) {
            int64_t a = some_int(dt), b = some_int(dt);
            box[i] = less(dt, a, b) ? (ir_range){a, b} : (ir_range){b, a};
            pick[i] = next_random() % 3 == 0 ? box[i].lo
                    : next_random() % 2
                        ? box[i].hi
                        : (int64_t)((uint64_t)box[i].lo + ((uint64_t)box[i].hi - (uint64_t)box[i].lo) / 2);
            if (box[i].lo > box[i].hi) /* u64 across 2^63: unknown */
                box[i] = (ir_range){INT64_MIN, INT64_MAX};
        }
        arena mem = {0};
        const ir_range *r = ir_ranges(ir, &(ir_env){.scalar = box}, &mem);
        assert_true(ir_eval(op, dt, dt, pick, &out));
        bool unknown = r[3].lo == INT64_MIN && r[3].hi == INT64_MAX;
        if (!unknown && (out < r[3].lo || out > r[3].hi))
            fail_msg("%s %s of %lld, %lld in [%lld,%lld] x [%lld,%lld] is %lld, not in [%lld, %lld]",
                     ir_rows[op].name, n, (long long)pick[0], (long long)pick[1], (long long)box[0].lo,
                     (long long)box[0].hi, (long long)box[1].lo, (long long)box[1].hi, (long long)out,
                     (long long)r[3].lo, (long long)r[3].hi);
        arena_free(&mem);
    }
    eas_ir_release(ir);
}

static void intervals_contain_every_result(void **state)
{
    (void)state;
    for (uint16_t op = 1; op < IR_NOPS; op++)
        for (int dt = EAS_I8; dt <= EAS_U64; dt++)
            if ((ir_rows[op].rule == IR_RULE_SAME || ir_rows[op].rule == IR_RULE_CMP) &&
                (ir_rows[op].classes & IR_I))
                one_interval(op, (eas_dtype)dt);
}

/* ---- bounds and narrowing ---- */

static const char *const add_text = K(
    "buf<f32> a, buf<f32> c, i64 N",
    "  %4 = program_id 0 : i64\n  %5 = const 256 : i64\n  %6 = mul %4, %5 : i64\n  %7 = arange 0 : i64[256]\n  %8 "
    "= broadcast %6 : i64[256]\n  %9 = add %8, %7 : i64[256]\n"
    "  %10 = broadcast %3 : i64[256]\n  %11 = lt %9, %10 : bool[256]\n  %12 = const 0.0 : f32\n  %13 = broadcast "
    "%12 : f32[256]\n  %14 = load %1, %9, %11, %13 : f32[256]\n  store %2, %9, %14, %11\n");

static bool inside(const eas_ir *ir, int64_t n, int64_t count, int64_t programs)
{
    ir_range scalar[3] = {{0, 0}, {0, 0}, {n, n}};
    int64_t counts[3] = {count, count, 0};
    return ir_in_bounds(ir, &(ir_env){.scalar = scalar, .grid = {programs, 1, 1}, .count = counts}, NULL) ==
           IR_PROVED_ALL;
}

static void masks_prove_accesses_in_bounds(void **state)
{
    (void)state;
    eas_ir *ir = parse(add_text);
    assert_true(inside(ir, 1000, 1000, 4));
    assert_true(inside(ir, 1000, 1001, 4000));
    assert_false(inside(ir, 1001, 1000, 4));
    assert_true(inside(ir, 0, 0, 1));
    assert_true(inside(ir, 5000000000, 5000000000, 20000000));
    assert_true(inside(ir, 1001, 1000, 3)); /* 768 programs' lanes never reach it */
    eas_ir_release(ir);
}

static void rows_and_columns_prove_too(void **state)
{
    (void)state;
    eas_ir *ir = parse(K(
        "buf<f32> a, i64 H, i64 W",
        "  %4 = program_id 1 : i64\n  %5 = program_id 0 : i64\n  %6 = const 32 : i64\n  %7 = mul %5, %6 : i64\n  %8 = arange 0 : "
        "i64[32]\n  %9 = broadcast %7 : i64[32]\n  %10 = add %9, %8 : i64[32]\n"
        "  %11 = mul %4, %3 : i64\n  %12 = broadcast %11 : i64[32]\n  %13 = add %12, %10 : i64[32]\n  %14 = broadcast %3 : "
        "i64[32]\n  %15 = lt %10, %14 : bool[32]\n  %16 = lt %4, %2 : bool\n  %17 = broadcast %16 : bool[32]\n"
        "  %18 = and %15, %17 : bool[32]\n  %19 = const 1.0 : f32\n  %20 = broadcast %19 : f32[32]\n  store %1, %13, %20, %18\n"));
    ir_range s[3] = {{0, 0}, {10, 10}, {100, 100}};
    int64_t exact[3] = {1000, 0, 0}, less_one[3] = {999, 0, 0};
    assert_int_equal(ir_in_bounds(ir, &(ir_env){.scalar = s, .grid = {4, 16, 1}, .count = exact}, NULL),
                     IR_PROVED_ALL);
    assert_int_equal(ir_in_bounds(ir, &(ir_env){.scalar = s, .grid = {4, 16, 1}, .count = less_one}, NULL),
                     IR_PROVED_NONE);
    eas_ir_release(ir);
}

/* c[p] = a[ix[p]] */
static const char *const gather_text =
    K("buf<f32> a, buf<i64> ix, buf<f32> c",
      "  %4 = program_id 0 : i64\n  %5 = load %2, %4 : i64\n  %6 = load %1, %5 : f32\n"
      "  store %3, %4, %6\n");

static ir_proof gather_proof(const eas_ir *ir, int64_t results)
{
    ir_range s[3] = {{0, 0}, {0, 0}, {0, 0}};
    int64_t count[3] = {10, 4, results};
    return ir_in_bounds(ir, &(ir_env){.scalar = s, .grid = {4, 1, 1}, .count = count}, NULL);
}

static int guards_of(const eas_ir *ir, uint32_t buf) /* 0: of any */
{
    int n = 0;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        n += ir->insns[i].op == IR_BOUNDS && (!buf || ir_args(ir, &ir->insns[i])[0] == buf);
    return n;
}

static void accesses_by_data_are_told_from_others(void **state)
{
    (void)state;
    eas_ir *ir = parse(gather_text), *checked = NULL;
    assert_int_equal(gather_proof(ir, 4), IR_PROVED_INDEX);
    assert_int_equal(gather_proof(ir, 3), IR_PROVED_NONE);
    assert_int_equal(ir_checked(ir, ir, &checked), EAS_OK);
    assert_int_equal(guards_of(checked, 1), 1);
    assert_int_equal(guards_of(checked, 0), 1);
    float a[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, c[4] = {-1, -1, -1, -1};
    int64_t ix[4] = {9, 0, 10, 3}, count[3] = {10, 4, 4};
    uint64_t slot[3] = {(uintptr_t)a, (uintptr_t)ix, (uintptr_t)c};
    run(checked, slot, count, 4, EAS_ERR_INDEX);
    assert_non_null(
        strstr(eas_error_message(), "index 10 of \"a\", which has 10 elements (program 2, 0, 0)"));
    assert_true(c[0] == 9 && c[1] == 0);
    eas_ir_release(checked);
    eas_ir_release(ir);
}

/* From a multiple of 64 on in steps of 64, below a bound: the last whole step ends there. */
static void multiples_prove_loops(void **state)
{
    (void)state;
    eas_ir *ir = parse(K(
        "buf<f32> a, i64 n",
        "  %3 = program_id 0 : i64\n  %4 = const 64 : i64\n  %5 = mul %3, %4 : i64\n  %6 = const 0.0 : f32\n  %7 = broadcast %6 : "
        "f32[64]\n  %8 = arange 0 : i64[64]\n  %9 = loop %5, %2, %4 : i64\n    %10 = broadcast %9 : i64[64]\n    %11 = add %10, %8 "
        ": i64[64]\n    store %1, %11, %7\n  endloop\n"));
    ir_range s[2] = {{0, 0}, {256, 256}};
    int64_t exact[2] = {256, 0}, less_one[2] = {255, 0};
    assert_int_equal(ir_in_bounds(ir, &(ir_env){.scalar = s, .grid = {4, 1, 1}, .count = exact}, NULL),
                     IR_PROVED_ALL);
    assert_int_equal(ir_in_bounds(ir, &(ir_env){.scalar = s, .grid = {4, 1, 1}, .count = less_one}, NULL),
                     IR_PROVED_NONE);
    s[1] = (ir_range){257, 257}; /* one more step then */
    assert_int_equal(ir_in_bounds(ir, &(ir_env){.scalar = s, .grid = {4, 1, 1}, .count = exact}, NULL),
                     IR_PROVED_NONE);
    eas_ir_release(ir);
}

static void narrowing_is_allowed_only_when_values_fit(void **state)
{
    (void)state;
    eas_ir *ir = parse(add_text), *narrow = NULL;
    ir_narrow need;
    assert_int_equal(ir_narrowed(ir, &narrow, &need), EAS_OK);
    char *t = print(narrow, 0);
    assert_non_null(strstr(t, "u32 N"));
    assert_null(strstr(t, "i64"));
    ir_range s[3] = {{0, 0}, {0, 0}, {1000, 1000}};
    assert_true(ir_narrow_ok(ir, &need, &(ir_env){.scalar = s, .grid = {4, 1, 1}}));
    assert_true(ir_narrow_ok(ir, &need, &(ir_env){.scalar = s, .grid = {1 << 24, 1, 1}}));
    assert_false(ir_narrow_ok(ir, &need, &(ir_env){.scalar = s, .grid = {(1 << 24) + 1, 1, 1}}));
    s[2] = (ir_range){5000000000, 5000000000};
    assert_false(ir_narrow_ok(ir, &need, &(ir_env){.scalar = s, .grid = {4, 1, 1}}));
    s[2] = (ir_range){-1, -1};
    assert_false(ir_narrow_ok(ir, &need, &(ir_env){.scalar = s, .grid = {4, 1, 1}}));
    free(t);
    ir_narrow_free(&need);
    eas_ir_release(ir);
    eas_ir_release(narrow);
}

static void checked_form_reports_and_runs(void **state)
{
    (void)state;
    eas_ir *ir = parse(add_text), *checked = NULL;
    assert_int_equal(ir_checked(ir, NULL, &checked), EAS_OK);
    float a[300], c[300];
    for (int i = 0; i < 300; i++)
        a[i] = (float)i, c[i] = -1;
    int64_t count[3] = {300, 300, 0};
    uint64_t slot[3] = {(uintptr_t)a, (uintptr_t)c, 300};
    run(checked, slot, count, 2, EAS_OK);
    assert_true(c[299] == 299);
    count[0] = 299;
    run(checked, slot, count, 2, EAS_ERR_INDEX);
    assert_non_null(
        strstr(eas_error_message(), "index 299 of \"a\", which has 299 elements (program 1, 0, 0)"));
    eas_ir_release(ir);
    eas_ir_release(checked);
}

/* ---- builder ---- */

static void the_first_error_stays(void **state)
{
    (void)state;
    eas_builder *b;
    eas_ir *ir;
    assert_int_equal(eas_builder_new("k", 0, &b), EAS_OK);
    eas_value a = eas_builder_param_buffer(b, "a", EAS_F32), n = eas_builder_param_scalar(b, "n", EAS_I64, 1);
    eas_builder_at(b, "user.py", 12);
    eas_builder_store(b, n, n, n, 0);
    eas_builder_load(b, a, a, 0, 0);
    assert_int_equal(eas_builder_status(b), EAS_ERR_TYPE);
    assert_int_equal(eas_builder_finish(b, &ir), EAS_ERR_TYPE);
    assert_null(ir);
    assert_string_equal(eas_error_message(),
                        "user.py:12: store: expected a buffer, got \"n\" (a scalar, i64)");
    eas_builder_free(b);
}

static void strings_hash_as_published(void **state)
{
    (void)state;
    sha256 h;
    uint8_t out[32];
    char hex[65];
    sha256_init(&h);
    sha256_add(&h, "abc", 3);
    sha256_done(&h, out);
    sha256_hex(out, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_init(&h);
    for (int i = 0; i < 1000; i++)
        sha256_add(
            &h,
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            1000);
    sha256_done(&h, out);
    sha256_hex(out, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* ---- pool ---- */

static void add_slice(void *ctx, int64_t first, int64_t last, int worker)
{
    (void)worker;
    int64_t s = 0;
    for (int64_t i = first; i < last; i++)
        s += i;
    __atomic_add_fetch((int64_t *)ctx, s, __ATOMIC_RELAXED);
}

static int stop_now(void *ctx)
{
    (void)ctx;
    return 1;
}

static void slow_slice(void *ctx, int64_t first, int64_t last, int worker)
{
    (void)first, (void)last, (void)worker;
    __atomic_add_fetch((int64_t *)ctx, 1, __ATOMIC_RELAXED);
    for (volatile int i = 0; i < 1000000; i++)
        ;
}

static void the_pool_runs_every_slice_once_and_can_stop(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        int64_t sum = 0, n = round * 37;
        assert_true(pool_run(n, 1 + round % 5, add_slice, &sum, NULL, NULL));
        assert_int_equal(sum, n * (n - 1) / 2);
    }
    int64_t ran = 0;
    assert_false(pool_run(100000, 1, slow_slice, &ran, stop_now, NULL));
    assert_true(ran < 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_form_is_its_own_inverse),
        cmocka_unit_test(comments_and_blank_lines_are_skipped),
        cmocka_unit_test(bad_text_is_refused_with_the_reason),
        cmocka_unit_test(every_rule_is_enforced),
        cmocka_unit_test(the_verifier_survives_broken_structures),
        cmocka_unit_test(simplifications),
        cmocka_unit_test(contraction_can_be_switched_off),
        cmocka_unit_test(loops_carry_values),
        cmocka_unit_test(threads_leave_loops_when_they_are_done),
        cmocka_unit_test(while_leaves_with_the_values_of_the_failed_test),
        cmocka_unit_test(barriers_order_threadgroup_memory),
        cmocka_unit_test(matrices_multiply),
        cmocka_unit_test(masked_lanes_touch_nothing),
        cmocka_unit_test(halves_convert_exactly),
        cmocka_unit_test(intervals_contain_every_result),
        cmocka_unit_test(masks_prove_accesses_in_bounds),
        cmocka_unit_test(accesses_by_data_are_told_from_others),
        cmocka_unit_test(multiples_prove_loops),
        cmocka_unit_test(rows_and_columns_prove_too),
        cmocka_unit_test(narrowing_is_allowed_only_when_values_fit),
        cmocka_unit_test(checked_form_reports_and_runs),
        cmocka_unit_test(the_first_error_stays),
        cmocka_unit_test(strings_hash_as_published),
        cmocka_unit_test(the_pool_runs_every_slice_once_and_can_stop),
    };
    return cmocka_run_group_tests_name("ir", tests, NULL, NULL);
}
