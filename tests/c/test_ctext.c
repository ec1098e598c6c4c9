/* test_ctext.c: the texts that kernels become.
 *
 * Three kinds of tests: fragments that users rely on (docs and tools look for them); every instruction on every dtype through the
 * compilers of both languages, and its MSL executed against the reference on special values; and whole kernels (loops, threads,
 * barriers, dots, matrices, n-d blocks) executed the same way.
 */
#include "eas.h"
#include "msl_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- helpers ---- */

static void ok(eas_status st)
{
    if (st)
        fail_msg("%s: %s", eas_status_name(st), eas_error_message());
}

static char *text_of_ir(const char *ir_text, const char *form)
{
    eas_ir *ir;
    char *out;
    ok(eas_ir_parse(ir_text, strlen(ir_text), &ir));
    ok(eas_ir_emit(ir, form, &out));
    eas_ir_release(ir);
    return out;
}

static eas_kernel *finish(eas_builder *b)
{
    eas_ir *ir;
    eas_kernel *k;
    ok(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    ok(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

static char *text_of(eas_kernel *k, const char *form)
{
    char *out;
    ok(eas_kernel_text(k, form, &out));
    return out;
}

static eas_builder *start(const char *name)
{
    eas_builder *b;
    ok(eas_builder_new(name, 0, &b));
    return b;
}

static eas_value op2(eas_builder *b, const char *name, eas_value x, eas_value y) { return eas_builder_apply(b, eas_op_find(name), x, y, 0); }
static eas_value op3(eas_builder *b, const char *name, eas_value x, eas_value y, eas_value z)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, z);
}
static eas_value num(eas_builder *b, int64_t v) { return eas_builder_const_int(b, v); }

static void has(const char *text, const char *want)
{
    if (!strstr(text, want))
        fail_msg("\"%s\" is not in\n%s", want, text);
}

static void has_not(const char *text, const char *unwanted)
{
    if (strstr(text, unwanted))
        fail_msg("\"%s\" is in\n%s", unwanted, text);
}

/* "v" and digits stand for # in the pattern. */
static const char *find(const char *text, const char *pattern)
{
    for (; *text; text++) {
        const char *t = text, *p = pattern;
        while (*p && *t) {
            if (*p == '#' && *t == 'v' && t[1] >= '0' && t[1] <= '9') {
                for (t++; *t >= '0' && *t <= '9'; t++) {}
                p++;
            } else if (*p == *t) {
                p++, t++;
            } else {
                break;
            }
        }
        if (!*p)
            return text;
    }
    return NULL;
}

static void has_like(const char *text, const char *pattern)
{
    if (!find(text, pattern))
        fail_msg("nothing like \"%s\" in\n%s", pattern, text);
}

/* ---- kernels that several tests look at ---- */

static eas_kernel *add_kernel(eas_dtype dt)
{
    eas_builder *b = start("add_kernel");
    eas_value x = eas_builder_param_buffer(b, "a", dt), y = eas_builder_param_buffer(b, "b", dt), z = eas_builder_param_buffer(b, "c", dt);
    eas_value n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value offs = op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), num(b, 128)), eas_builder_arange(b, 0, 128));
    eas_value mask = op2(b, "lt", offs, n);
    eas_builder_store(b, z, offs, op2(b, "add", eas_builder_load(b, x, offs, mask, 0), eas_builder_load(b, y, offs, mask, 0)), mask);
    return finish(b);
}

static eas_value global_index(eas_builder *b, int64_t block)
{
    return op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), num(b, block)), eas_builder_tid(b, 0, block));
}

static eas_kernel *thread_scale(void)
{
    eas_builder *b = start("thread_scale");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32);
    eas_value n = eas_builder_param_scalar(b, "N", EAS_I64, 1), m = eas_builder_param_scalar(b, "M", EAS_I64, 1);
    eas_value alpha = eas_builder_param_scalar(b, "alpha", EAS_F64, 1);
    eas_value i = global_index(b, 64);
    eas_value in_n = op2(b, "lt", i, n), in_m = op2(b, "lt", i, m), mask = op2(b, "and", in_n, in_m);
    eas_builder_store(b, y, i, op2(b, "mul", eas_builder_load(b, x, i, mask, 0), alpha), mask);
    return finish(b);
}

/* A row times four neighbouring columns; `known`: the columns start at multiples of four. */
static eas_kernel *four_columns(eas_dtype dt, int known, int meta_k)
{
    char name[64];
    snprintf(name, sizeof name, "four_columns_%s_%d_%d", eas_dtype_name(dt), known, meta_k);
    eas_builder *b = start(name);
    eas_value x = eas_builder_param_buffer(b, "a", dt), w = eas_builder_param_buffer(b, "b", dt), y = eas_builder_param_buffer(b, "c", EAS_F32);
    eas_value n = known ? 0 : eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value K = meta_k ? 0 : eas_builder_param_scalar(b, "K", EAS_I64, 1);
    n = n ? n : num(b, 32);
    K = K ? K : num(b, 16);
    eas_value t = eas_builder_tid(b, 0, 8), row = eas_builder_program_id(b, 0);
    eas_value col = op2(b, "mul", t, num(b, 4));
    for (int c = 0; c < 4; c++) {
        eas_value at = c ? op2(b, "add", col, num(b, c)) : col;
        eas_value d = eas_builder_dot(b, x, op2(b, "mul", row, K), num(b, 1), w, at, n, K);
        eas_builder_store(b, y, op2(b, "add", op2(b, "mul", row, n), at), d, 0);
    }
    return finish(b);
}

static eas_kernel *reverse_in_group(eas_dtype dt)
{
    char name[64];
    snprintf(name, sizeof name, "reverse_%s", eas_dtype_name(dt));
    eas_builder *b = start(name);
    eas_value x = eas_builder_param_buffer(b, "x", dt), y = eas_builder_param_buffer(b, "y", dt);
    eas_value t = eas_builder_tid(b, 0, 64), tg = eas_builder_alloc_tg(b, 64, dt), base = op2(b, "mul", eas_builder_program_id(b, 0), num(b, 64));
    eas_builder_store(b, tg, t, eas_builder_load(b, x, op2(b, "add", base, t), 0, 0), 0);
    eas_builder_barrier(b);
    eas_builder_store(b, y, op2(b, "add", base, t), eas_builder_load(b, tg, op2(b, "sub", num(b, 63), t), 0, 0), 0);
    return finish(b);
}

static eas_kernel *matrices(eas_dtype in, eas_dtype out)
{
    char name[64];
    snprintf(name, sizeof name, "matrices_%s_%s", eas_dtype_name(in), eas_dtype_name(out));
    eas_builder *b = start(name);
    eas_value x = eas_builder_param_buffer(b, "a", in), w = eas_builder_param_buffer(b, "b", in), y = eas_builder_param_buffer(b, "c", out);
    eas_value sg = op2(b, "floordiv", eas_builder_tid(b, 0, 64), num(b, 32)), acc = eas_builder_mma_zero(b);
    eas_value base = op2(b, "mul", op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), num(b, 2)), sg), num(b, 64));
    acc = eas_builder_mma(b, x, base, num(b, 8), w, base, num(b, 8), acc);
    acc = eas_builder_mma(b, w, base, num(b, 8), x, base, num(b, 8), acc);
    eas_builder_mma_store(b, y, base, num(b, 8), acc);
    return finish(b);
}

/* ---- fragments ---- */

static void test_msl_of_add(void **state)
{
    (void)state;
    eas_kernel *k = add_kernel(EAS_F32);
    char *s = text_of(k, "msl");
    has(s, "#include <metal_stdlib>");
    has(s, "kernel void add_kernel(");
    has(s, "device const float* __restrict a [[buffer(0)]]");
    has(s, "device const float* __restrict b [[buffer(1)]]");
    has(s, "device float* __restrict c [[buffer(2)]]");
    has(s, "constant uint& N [[buffer(3)]]");
    has(s, "[[thread_position_in_grid]]");
    has(s, "for (uint i = 0; i < 128u; ++i)");
    has_like(s, "? a[#] : 0.0f;");
    has_like(s, "if (#) c[#] = #;");
    has_not(s, "BLOCK");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    s = text_of(k, "opencl");
    has(s, "__kernel void add_kernel(");
    has(s, "__global const float* restrict a");
    has(s, "__global float* restrict c");
    has(s, "uint N");
    assert_int_equal(opencl_syntax(s), 0);
    eas_memory_free(s);
    eas_kernel_release(k);
}

static void test_msl_of_half_buffers(void **state)
{
    (void)state;
    eas_kernel *k = add_kernel(EAS_F16);
    char *s = text_of(k, "msl");
    has(s, "device const half* __restrict a");
    has_like(s, "half # = (half)((float)# + (float)#);");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    s = text_of(k, "opencl");
    has(s, "vload_half(");
    has(s, "vstore_half_rte(");
    has_not(s, "cl_khr_fp16");
    assert_int_equal(opencl_syntax(s), 0);
    eas_memory_free(s);
    eas_kernel_release(k);
}

static void test_thread_mode_returns_early(void **state)
{
    (void)state;
    eas_kernel *k = thread_scale();
    char *s = text_of(k, "msl");
    has(s, "uint3 gid [[thread_position_in_grid]]");
    has_not(s, "threadgroup_position_in_grid");
    has_like(s, "bool # = (# < N) && (# < M);");
    has_like(s, "if (!#) return;");
    has(s, "constant float& alpha");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    eas_kernel_release(k);
}

static void test_threads_share_memory(void **state)
{
    (void)state;
    eas_kernel *k = reverse_in_group(EAS_F32);
    char *s = text_of(k, "msl");
    has_like(s, "threadgroup float #[64];");
    has(s, "threadgroup_barrier(mem_flags::mem_threadgroup);");
    has(s, "[[thread_position_in_threadgroup]]");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    s = text_of(k, "opencl");
    has_like(s, "__local float #[64];");
    has(s, "barrier(CLK_LOCAL_MEM_FENCE);");
    has(s, "reqd_work_group_size(64, 1, 1)");
    assert_int_equal(opencl_syntax(s), 0);
    eas_memory_free(s);
    eas_kernel_release(k);
}

static void test_four_neighbouring_columns_share_a_loop(void **state)
{
    (void)state;
    eas_kernel *k = four_columns(EAS_F32, 0, 0);
    char *s = text_of(k, "msl");
    has(s, "packed_float4");
    has(s, "& 3u)");
    has(s, "for (uint k = 0; k < K; ++k)");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    eas_kernel_release(k);
    k = four_columns(EAS_F16, 1, 1);
    s = text_of(k, "msl");
    has(s, "packed_half4");
    has(s, "for (uint k = 0; k < 16u; ++k)");
    has_not(s, "& 3u");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    s = text_of(k, "opencl");
    has(s, "vload_half4(");
    assert_int_equal(opencl_syntax(s), 0);
    eas_memory_free(s);
    eas_kernel_release(k);
}

static void test_simdgroup_matrices(void **state)
{
    (void)state;
    eas_kernel *k = matrices(EAS_F16, EAS_F32);
    char *s = text_of(k, "msl");
    has(s, "#include <metal_simdgroup_matrix>");
    has(s, "simdgroup_half8x8");
    has(s, "simdgroup_float8x8");
    has(s, "simdgroup_load(");
    has(s, "simdgroup_multiply_accumulate(");
    has(s, "simdgroup_store(");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    s = text_of(k, "opencl");
    assert_int_equal(opencl_syntax(s), 0);
    eas_memory_free(s);
    eas_kernel_release(k);
}

static const char odd_names[] = "kernel half(buf<f32> kernel, buf<f32> in, u32 i, u32 v7, u32 pid, u32 pid_, u32 eas_x, u32 \xc3\xa4) {\n"
                                "  %9 = program_id 0 : u32\n"
                                "  %10 = arange 0 : u32[8]\n"
                                "  %11 = add %9, %3 : u32\n"
                                "  %12 = add %11, %4 : u32\n"
                                "  %13 = add %12, %5 : u32\n"
                                "  %14 = add %13, %6 : u32\n"
                                "  %15 = add %14, %7 : u32\n"
                                "  %16 = add %15, %8 : u32\n"
                                "  %17 = broadcast %16 : u32[8]\n"
                                "  %18 = add %17, %10 : u32[8]\n"
                                "  %19 = load %2, %18 : f32[8]\n"
                                "  store %1, %10, %19\n"
                                "}\n";

static void test_names_do_not_collide(void **state)
{
    (void)state;
    char *s = text_of_ir(odd_names, "msl");
    has(s, "kernel void half_(");
    has(s, "float* __restrict kernel_ ");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    s = text_of_ir(odd_names, "opencl");
    assert_int_equal(opencl_syntax(s), 0);
    eas_memory_free(s);
}

static void test_metal_has_no_double(void **state)
{
    (void)state;
    static const char text[] = "file 1 \"user.py\"\n"
                               "kernel twice(buf<f64> x) {\n"
                               "  %2 = arange 0 : u32[8] @1:3\n"
                               "  %3 = load %1, %2 : f64[8] @1:4\n"
                               "  %4 = add %3, %3 : f64[8] @1:5\n"
                               "  store %1, %2, %4 @1:6\n"
                               "}\n";
    eas_ir *ir;
    char *out;
    ok(eas_ir_parse(text, strlen(text), &ir));
    assert_int_equal(eas_ir_emit(ir, "msl", &out), EAS_ERR_TYPE);
    has(eas_error_message(), "user.py:4");
    has(eas_error_message(), "Metal has no double");
    ok(eas_ir_emit(ir, "opencl", &out));
    has(out, "cl_khr_fp64");
    assert_int_equal(opencl_syntax(out), 0);
    eas_memory_free(out);
    eas_ir_release(ir);
}

static void test_same_text_every_time(void **state)
{
    (void)state;
    eas_kernel *k = four_columns(EAS_F32, 0, 0), *l = four_columns(EAS_F32, 0, 0);
    char *s = text_of(k, "msl"), *t = text_of(l, "msl");
    assert_string_equal(s, t);
    eas_memory_free(s);
    eas_memory_free(t);
    eas_kernel_release(k);
    eas_kernel_release(l);
}

static void test_accesses_with_bounds(void **state)
{
    (void)state;
    static const char text[] = "kernel checked(buf<f32> x, u32 N) {\n"
                               "  %3 = program_id 0 : u32\n"
                               "  %4 = arange 0 : u32[8]\n"
                               "  %5 = broadcast %2 : u32[8]\n"
                               "  %6 = lt %4, %5 : bool[8]\n"
                               "  %7 = bounds %1, %4, %6 : bool[8]\n"
                               "  %8 = const 0.0 : f32\n"
                               "  %9 = broadcast %8 : f32[8]\n"
                               "  %10 = load %1, %4, %7, %9 : f32[8]\n"
                               "  store %1, %4, %10, %7\n"
                               "}\n";
    char *s = text_of_ir(text, "msl");
    has(s, "device atomic_int* eas_fault [[buffer(2)]]");
    has(s, "constant long* eas_count [[buffer(3)]]");
    assert_int_equal(msl_syntax(s), 0);
    eas_memory_free(s);
    s = text_of_ir(text, "opencl");
    assert_int_equal(opencl_syntax(s), 0);
    eas_memory_free(s);
}

/* ---- every instruction on every dtype ---- */

typedef struct row {
    const char *name;
    int nargs;
    const char *rule, *classes, *flags;
} row;
#define V (-1)
static const row rows[] = {
#define INSN(NAME, name, nargs, rule, classes, flags, si, ui, fl) {#name, nargs, #rule, #classes, #flags},
#include "../../src/ir/insn.def"
#undef INSN
};
#undef V

typedef struct elementwise {
    char name[48];
    eas_dtype in, out;
    int nargs, where, elementary;
    char *ir;
} elementwise;
static elementwise *cases;
static int ncases;

static int allows(const row *r, eas_dtype dt)
{
    char kind = eas_dtype_kind(dt);
    return strstr(r->classes, kind == 'b' ? "IR_B" : kind == 'f' ? "IR_F" : "IR_I") != NULL;
}

static int is_elementary(const char *op)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, op))
            return strchr(rows[i].flags, 'E') != NULL;
    return 0;
}

static void add_case(const char *op, eas_dtype in, eas_dtype out, int nargs, int where)
{
    cases = realloc(cases, (size_t)(ncases + 1) * sizeof *cases);
    elementwise *c = &cases[ncases++];
    const char *x = eas_dtype_name(in), *y = eas_dtype_name(out);
    *c = (elementwise){.in = in, .out = out, .nargs = nargs, .where = where, .elementary = is_elementary(op)};
    snprintf(c->name, sizeof c->name, "x_%s_%s_%s", op, x, y);
    char operands[64];
    snprintf(operands, sizeof operands, where ? "%%14, %%12, %%13" : nargs == 1 ? "%%12" : nargs == 2 ? "%%12, %%13" : "%%12, %%13, %%14");
    c->ir = malloc(1024);
    snprintf(c->ir, 1024,
             "kernel %s(buf<%s> a, buf<%s> b, buf<%s> c, buf<%s> o) {\n"
             "  %%5 = program_id 0 : u32\n"
             "  %%6 = const 64 : u32\n"
             "  %%7 = mul %%5, %%6 : u32\n"
             "  %%8 = broadcast %%7 : u32[64]\n"
             "  %%9 = arange 0 : u32[64]\n"
             "  %%10 = add %%8, %%9 : u32[64]\n"
             "  %%11 = reshape %%10 : u32[64]\n"
             "  %%12 = load %%1, %%11 : %s[64]\n"
             "  %%13 = load %%2, %%11 : %s[64]\n"
             "  %%14 = load %%3, %%11 : %s[64]\n"
             "  %%15 = %s %s : %s[64]\n"
             "  store %%4, %%11, %%15\n"
             "}\n",
             c->name, x, x, where ? "bool" : x, y, x, x, where ? "bool" : x, op, operands, y);
}

static void make_cases(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int dt = 0; dt < EAS_NDTYPES; dt++) {
            const row *r = &rows[i];
            if (!allows(r, (eas_dtype)dt))
                continue;
            if (!strcmp(r->rule, "SAME"))
                add_case(r->name, (eas_dtype)dt, (eas_dtype)dt, r->nargs, 0);
            else if (!strcmp(r->rule, "CMP"))
                add_case(r->name, (eas_dtype)dt, EAS_BOOL, r->nargs, 0);
            else if (!strcmp(r->rule, "WHERE"))
                add_case(r->name, (eas_dtype)dt, (eas_dtype)dt, 3, 1);
            else if (!strcmp(r->rule, "CAST"))
                for (int to = 0; to < EAS_NDTYPES; to++)
                    if (!strcmp(r->name, "cast") || (to != EAS_BOOL && eas_dtype_size((eas_dtype)to) == eas_dtype_size((eas_dtype)dt)))
                        add_case(r->name, (eas_dtype)dt, (eas_dtype)to, 1, 0);
        }
}

static int has_double(const elementwise *c) { return c->in == EAS_F64 || c->out == EAS_F64; }

enum { LANES = 1024, MANY_LANES = 65536 }; /* many: every half, for elementary functions */

static uint64_t seed = 1;
static uint64_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 20 ^ seed << 30;
}

/* Element i of operand `which`, in its dtype, to p: pairs of special values first, then random bits. */
static void put_value(eas_dtype dt, int which, int i, void *p)
{
    static const uint64_t ints[] = {0,
                                    1,
                                    2,
                                    3,
                                    7,
                                    8,
                                    15,
                                    16,
                                    31,
                                    32,
                                    33,
                                    63,
                                    64,
                                    100,
                                    127,
                                    128,
                                    255,
                                    256,
                                    32767,
                                    32768,
                                    65535,
                                    2147483647u,
                                    2147483648u,
                                    (uint64_t)-1,
                                    (uint64_t)-2,
                                    (uint64_t)-3,
                                    (uint64_t)-7,
                                    (uint64_t)-128,
                                    (uint64_t)-129,
                                    INT64_MAX,
                                    (uint64_t)INT64_MIN,
                                    UINT32_MAX};
    static const float floats[] = {0.0f,   -0.0f,         1.0f,          -1.0f,          0.5f,          1.5f,      2.5f,     -2.5f,
                                   3.75f,  -0.5f,         1e-3f,         65504.0f,       65520.0f,      127.5f,    -128.9f,  255.9f,
                                   256.0f, 32767.5f,      2147483648.0f, -2147483648.0f, 4294967296.0f, 9.3e18f,   -9.3e18f, 1.9e19f,
                                   1e30f,  3.4028235e38f, 1e-40f,        1.1754944e-38f, INFINITY,      -INFINITY, NAN,      3.0f};
    static const uint16_t halves[] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x3800, 0x3e00, 0x4100, 0xc100, 0x0001, 0x03ff, 0x0400,
                                      0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3f80, 0xbf80, 0x4020, 0xc020, 0x42ff, 0x4300,
                                      0x437f, 0x477f, 0x4f00, 0x5f00, 0xdf00, 0x5f80, 0x7f7f, 0x7f80, 0x0080, 0x1400};
    int s = which == 0 ? i % 32 : which == 1 ? i / 32 % 32 : (i * 7 + 5) % 32;
    uint64_t bits = ints[s];
    float f = floats[s];
    size_t size = eas_dtype_size(dt);
    if (dt == EAS_F32)
        memcpy(&bits, &f, 4);
    else if (dt == EAS_F16 || dt == EAS_BF16)
        bits = halves[s];
    if (i >= LANES / 4 * 3)
        bits = random_bits();
    if (dt == EAS_BOOL)
        bits &= 1;
    memcpy(p, &bits, size);
}

/* More operands for elementary functions: every half; floats of all magnitudes, and of the ones where something happens. */
static void put_number(eas_dtype dt, int which, int i, void *p)
{
    uint64_t bits = which ? random_bits() : (uint64_t)i;
    if (dt == EAS_F32) {
        float f = (float)(int)(random_bits() >> 8 & 0xffffff) / 8388608.0f - 1;
        bits = random_bits();
        if (i % 4) {
            f *= i % 4 == 1 ? 110.0f : i % 4 == 2 ? 4.0f : 1e-3f;
            memcpy(&bits, &f, 4);
        }
    }
    memcpy(p, &bits, eas_dtype_size(dt));
}

static int is_nan_at(eas_dtype dt, const void *p)
{
    uint64_t u = 0;
    memcpy(&u, p, eas_dtype_size(dt));
    switch (dt) {
    case EAS_F16: return (u & 0x7fff) > 0x7c00;
    case EAS_BF16: return (u & 0x7fff) > 0x7f80;
    case EAS_F32: return (u & 0x7fffffff) > 0x7f800000;
    case EAS_F64: return (u & INT64_MAX) > 0x7ff0000000000000;
    default: return 0;
    }
}

static void same_values(const char *what, eas_dtype dt, const void *want, const void *got, int64_t n)
{
    size_t size = eas_dtype_size(dt);
    for (int64_t i = 0; i < n; i++) {
        const char *w = (const char *)want + (size_t)i * size, *g = (const char *)got + (size_t)i * size;
        if (!memcmp(w, g, size) || (is_nan_at(dt, w) && is_nan_at(dt, g)))
            continue;
        uint64_t x = 0, y = 0;
        memcpy(&x, w, size);
        memcpy(&y, g, size);
        fail_msg("%s: element %lld is %llx, the reference says %llx", what, (long long)i, (unsigned long long)y, (unsigned long long)x);
    }
}

static msl_batch *batch;

static void check_case(const elementwise *c)
{
    static char in[3][MANY_LANES * 8], want[MANY_LANES * 8], got[MANY_LANES * 8];
    int n = c->elementary ? MANY_LANES : LANES;
    eas_dtype dt[3] = {c->in, c->in, c->where ? EAS_BOOL : c->in};
    eas_arg args[4];
    void *ptr[4] = {in[0], in[1], in[2], got};
    eas_ir *ir;
    eas_kernel *k;
    eas_device *ref;
    for (int w = 0; w < 3; w++)
        for (int i = 0; i < n; i++)
            (i < LANES ? put_value : put_number)(dt[w], w, i, in[w] + (size_t)i * eas_dtype_size(dt[w]));
    for (int a = 0; a < 4; a++)
        args[a] = (eas_arg){.v.data = a < 3 ? in[a] : want, .count = n, .dtype = (uint8_t)(a < 3 ? dt[a] : c->out), .is_buffer = 1};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {n / 64, 1, 1}};
    ok(eas_device_get("ref", &ref));
    ok(eas_ir_parse(c->ir, strlen(c->ir), &ir));
    ok(eas_kernel_new(ir, &k));
    ok(eas_kernel_launch(k, ref, args, 4, &opts));
    assert_int_equal(msl_batch_run(batch, c->name, ptr, opts.grid, 1), 0);
    same_values(c->name, c->out, want, got, n);
    eas_kernel_release(k);
    eas_ir_release(ir);
}

static void test_every_instruction_runs_as_msl(void **state)
{
    (void)state;
    batch = msl_batch_new();
    for (int i = 0; i < ncases; i++)
        if (!has_double(&cases[i])) {
            char *s = text_of_ir(cases[i].ir, "msl");
            msl_batch_add(batch, s);
            eas_memory_free(s);
        }
    assert_int_equal(msl_batch_compile(batch), 0);
    for (int i = 0; i < ncases; i++)
        if (!has_double(&cases[i]))
            check_case(&cases[i]);
    msl_batch_free(batch);
}

/* OpenCL C of many kernels in one file: their helper functions get a prefix each. */
typedef struct joined {
    char *text;
    size_t n, cap;
    int kernels;
} joined;

static void join_opencl(joined *j, const char *text)
{
    static const char *const helpers[] = {"eas_f16_bits",   "eas_f16_value",  "eas_round_f16",   "eas_bf16_bits", "eas_bf16_value",
                                          "eas_round_bf16", "eas_f64_to_f16", "eas_f64_to_bf16", "eas_odd_u64",   "eas_odd_i64"};
    size_t most = strlen(text) + 4096;
    if (j->n + most > j->cap)
        j->text = realloc(j->text, j->cap = 2 * (j->n + most));
    for (size_t h = 0; h < sizeof helpers / sizeof *helpers; h++)
        j->n += (size_t)snprintf(j->text + j->n, j->cap - j->n, "#undef %s\n#define %s h%d_%s\n", helpers[h], helpers[h], j->kernels, helpers[h]);
    j->n += (size_t)snprintf(j->text + j->n, j->cap - j->n, "%s\n", text);
    assert_true(j->n < j->cap);
    j->kernels++;
}

static void check_joined(joined *j)
{
    assert_int_equal(opencl_syntax(j->text), 0);
    free(j->text);
}

static void test_every_instruction_compiles_as_opencl(void **state)
{
    (void)state;
    joined all = {0};
    for (int i = 0; i < ncases; i++) {
        char *s = text_of_ir(cases[i].ir, "opencl");
        join_opencl(&all, s);
        eas_memory_free(s);
    }
    check_joined(&all);
}

/* ---- fast math: the language's own functions ---- */

static char *fast_text(const elementwise *c, const char *form)
{
    char ir[1200];
    const char *brace = strchr(c->ir, '{');
    snprintf(ir, sizeof ir, "%.*sfastmath %s", (int)(brace - c->ir), c->ir, brace);
    return text_of_ir(ir, form);
}

static float as_number(eas_dtype dt, const char *p)
{
    uint32_t u = 0;
    float f;
    memcpy(&u, p, eas_dtype_size(dt));
    if (dt == EAS_F16) /* normal numbers only */
        u = (u & 0x8000) << 16 | (u & 0x7fff ? (u & 0x7fff) * 8192 + (112u << 23) : 0);
    else if (dt == EAS_BF16)
        u <<= 16;
    memcpy(&f, &u, 4);
    return f;
}

/* Close to the reference, on operands from 1/4 to 4. */
static void check_fast(const elementwise *c)
{
    enum { N = 64 };
    static char in[2][N * 4], want[N * 4], got[N * 4];
    size_t size = eas_dtype_size(c->in);
    eas_ir *ir;
    eas_kernel *k;
    eas_device *ref;
    for (int i = 0; i < 2 * N; i++) {
        uint32_t top = c->in == EAS_F16 ? 0x3400 : c->in == EAS_BF16 ? 0x3e80 : 0x3e800000;
        uint32_t bits = top + (uint32_t)(random_bits() >> 11 & (c->in == EAS_F16 ? 0xfff : c->in == EAS_BF16 ? 0x1ff : 0x1ffffff));
        memcpy(in[i / N] + (size_t)(i % N) * size, &bits, size);
    }
    eas_arg args[4];
    void *ptr[4] = {in[0], in[1], in[1], got};
    for (int a = 0; a < 4; a++)
        args[a] = (eas_arg){.v.data = a == 3 ? want : ptr[a], .count = N, .dtype = (uint8_t)c->in, .is_buffer = 1};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
    ok(eas_device_get("ref", &ref));
    ok(eas_ir_parse(c->ir, strlen(c->ir), &ir));
    ok(eas_kernel_new(ir, &k));
    ok(eas_kernel_launch(k, ref, args, 4, &opts));
    assert_int_equal(msl_batch_run(batch, c->name, ptr, opts.grid, 1), 0);
    for (int i = 0; i < N; i++) {
        float x = as_number(c->in, want + (size_t)i * size), y = as_number(c->in, got + (size_t)i * size);
        if (fabsf(x - y) > (c->in == EAS_F32 ? 1e-4f : 2e-2f) * (1 + fabsf(x)))
            fail_msg("%s: element %d is %g, the reference says %g", c->name, i, (double)y, (double)x);
    }
    eas_kernel_release(k);
    eas_ir_release(ir);
}

static void test_fast_math_uses_the_languages_functions(void **state)
{
    (void)state;
    joined all = {0};
    batch = msl_batch_new();
    for (int i = 0; i < ncases; i++) {
        if (!cases[i].elementary)
            continue;
        char *s = fast_text(&cases[i], "opencl");
        join_opencl(&all, s);
        eas_memory_free(s);
        if (has_double(&cases[i]))
            continue;
        s = fast_text(&cases[i], "msl");
        if (strstr(cases[i].name, "x_exp_"))
            has_like(s, cases[i].in == EAS_F16 ? "(half)(exp((float)#))" : cases[i].in == EAS_BF16 ? "(bfloat)(exp((float)#))" : "exp(#)");
        msl_batch_add(batch, s);
        eas_memory_free(s);
    }
    check_joined(&all);
    assert_int_equal(msl_batch_compile(batch), 0);
    for (int i = 0; i < ncases; i++)
        if (cases[i].elementary && !has_double(&cases[i]))
            check_fast(&cases[i]);
    msl_batch_free(batch);
}

/* ---- whole kernels ---- */

enum { MAX_ARGS = 6, ELEMENTS = 4096 };
typedef struct whole {
    eas_kernel *k;
    int64_t grid[3];
    int64_t scalar[MAX_ARGS]; /* integers; a float scalar is given in thousandths */
} whole;

static void check_whole(const whole *w)
{
    eas_ir *ir = eas_kernel_ir(w->k);
    eas_ir_info info = eas_kernel_info(w->k);
    int n = eas_ir_param_count(ir);
    eas_arg args[MAX_ARGS];
    void *ptr[MAX_ARGS], *want[MAX_ARGS];
    int64_t scalars[MAX_ARGS];
    float floats[MAX_ARGS];
    eas_device *ref;
    for (int i = 0; i < n; i++) {
        eas_param p = eas_ir_param(ir, i);
        size_t size = eas_dtype_size(p.dtype);
        args[i] = (eas_arg){.dtype = (uint8_t)p.dtype, .is_buffer = p.is_buffer, .count = ELEMENTS};
        if (!p.is_buffer) {
            scalars[i] = w->scalar[i];
            floats[i] = (float)w->scalar[i] / 1000;
            if (eas_dtype_kind(p.dtype) == 'f')
                args[i].v.f = (double)floats[i];
            else
                args[i].v.i = w->scalar[i];
            ptr[i] = eas_dtype_kind(p.dtype) == 'f' ? (void *)&floats[i] : (void *)&scalars[i];
            continue;
        }
        want[i] = malloc(ELEMENTS * size);
        ptr[i] = malloc(ELEMENTS * size);
        for (int e = 0; e < ELEMENTS; e++) {
            uint64_t bits = random_bits() >> 3 & (p.dtype == EAS_BOOL ? 1 : 7);
            float f = (float)(int)(random_bits() >> 7 & 63) / 8 - 4;
            if (p.dtype == EAS_F32)
                memcpy(&bits, &f, 4);
            else if (p.dtype == EAS_F16)
                bits = 0x3c00 + (random_bits() >> 9 & 0x83ff);
            memcpy((char *)want[i] + (size_t)e * size, &bits, size);
        }
        memcpy(ptr[i], want[i], ELEMENTS * size);
        args[i].v.data = want[i];
    }
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {w->grid[0], w->grid[1], w->grid[2]}};
    ok(eas_device_get("ref", &ref));
    ok(eas_kernel_launch(w->k, ref, args, n, &opts));
    assert_int_equal(msl_batch_run(batch, eas_ir_name(ir), ptr, w->grid, info.mode == EAS_MODE_THREAD ? (int)info.block : 1), 0);
    for (int i = 0; i < n; i++)
        if (args[i].is_buffer) {
            same_values(eas_ir_name(ir), (eas_dtype)args[i].dtype, want[i], ptr[i], ELEMENTS);
            free(want[i]);
            free(ptr[i]);
        }
}

/* acc = sum over k of x[row, k] * (k odd ? 2 : 1), with a step of 3; and a while loop after it */
static eas_kernel *loops(void)
{
    eas_builder *b = start("loops");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value offs = eas_builder_arange(b, 0, 32), zero = eas_builder_const_typed(b, EAS_F32, 0, 0);
    eas_value first = eas_builder_load(b, x, offs, 0, 0);
    eas_value init[2] = {first, zero}, iv, in[2], out[2], next[2], m, w[2], wi[2];
    eas_builder_loop_begin(b, num(b, 1), n, num(b, 3), 2, init, &iv, in);
    eas_value v = eas_builder_load(b, x, op2(b, "add", offs, iv), 0, 0);
    eas_builder_if_begin(b, op2(b, "eq", op2(b, "mod", iv, num(b, 2)), num(b, 0)));
    eas_value t = op2(b, "add", v, v);
    eas_builder_if_else(b, 1, &t);
    eas_value e = op2(b, "sub", v, eas_builder_const_float(b, 0.5));
    eas_builder_if_end(b, 1, &e, &m);
    next[0] = op2(b, "add", in[0], m);
    next[1] = op2(b, "add", in[1], eas_builder_const_float(b, 1.0));
    eas_builder_loop_end(b, 2, next, out);
    wi[0] = out[0];
    wi[1] = out[1];
    eas_builder_while_begin(b, 2, wi, w);
    eas_builder_while_do(b, op2(b, "gt", w[1], eas_builder_const_float(b, 0.5)));
    next[0] = op2(b, "mul", w[0], eas_builder_const_float(b, 0.75));
    next[1] = op2(b, "sub", w[1], eas_builder_const_float(b, 2.0));
    eas_builder_while_end(b, 2, next, out);
    eas_builder_store(b, y, offs, out[0], 0);
    eas_builder_store(b, y, op2(b, "add", num(b, 64), eas_builder_program_id(b, 0)), out[1], 0);
    return finish(b);
}

/* two carried values that change places; blocks and scalars */
static eas_kernel *swaps(void)
{
    eas_builder *b = start("swaps");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value offs = eas_builder_arange(b, 0, 16);
    eas_value init[4] = {eas_builder_load(b, x, offs, 0, 0), eas_builder_load(b, x, op2(b, "add", offs, num(b, 16)), 0, 0),
                         eas_builder_load(b, x, num(b, 40), 0, 0), eas_builder_load(b, x, num(b, 41), 0, 0)};
    eas_value iv, in[4], out[4];
    eas_builder_loop_begin(b, num(b, 0), n, num(b, 1), 4, init, &iv, in);
    eas_value next[4] = {in[1], in[0], in[3], op2(b, "add", in[2], eas_builder_cast(b, iv, EAS_F32))};
    eas_builder_loop_end(b, 4, next, out);
    eas_builder_store(b, y, offs, out[0], 0);
    eas_builder_store(b, y, op2(b, "add", offs, num(b, 16)), out[1], 0);
    eas_builder_store(b, y, num(b, 40), out[2], 0);
    eas_builder_store(b, y, num(b, 41), out[3], 0);
    return finish(b);
}

/* whole-block order: every lane must see what the others stored before */
static eas_kernel *neighbours_in_place(void)
{
    eas_builder *b = start("neighbours");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), i = eas_builder_arange(b, 0, 32);
    eas_value right = op2(b, "mod", op2(b, "add", i, num(b, 1)), num(b, 32));
    eas_value v = op2(b, "add", eas_builder_load(b, x, i, 0, 0), eas_builder_load(b, x, right, 0, 0));
    eas_builder_store(b, x, i, v, 0);
    eas_value u = op2(b, "mul", eas_builder_load(b, x, right, 0, 0), eas_builder_const_float(b, 0.5));
    eas_builder_store(b, x, i, u, 0);
    eas_builder_store(b, x, op2(b, "floordiv", i, num(b, 2)), op2(b, "add", u, v), 0);
    return finish(b);
}

/* y[r, c] = x[r, c] * w[c] + s[r] over a 2-d block, and its transpose through a reshape */
static eas_kernel *two_dims(void)
{
    eas_builder *b = start("two_dims");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), w = eas_builder_param_buffer(b, "w", EAS_F32),
              s = eas_builder_param_buffer(b, "s", EAS_F32);
    eas_value y = eas_builder_param_buffer(b, "y", EAS_F32), n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    int64_t col[2] = {1, 16}, row[2] = {8, 1}, flat[1] = {128}, other[2] = {16, 8};
    eas_value r = eas_builder_arange(b, 0, 8), c = eas_builder_arange(b, 0, 16);
    eas_value r2 = eas_builder_reshape(b, r, 2, row), c2 = eas_builder_reshape(b, c, 2, col);
    eas_value off = op2(b, "add", op2(b, "mul", r2, n), c2);
    eas_value mask = op2(b, "lt", off, num(b, 100));
    eas_value sw = eas_builder_reshape(b, eas_builder_load(b, w, c, 0, 0), 2, col),
              ss = eas_builder_reshape(b, eas_builder_load(b, s, r, 0, 0), 2, row);
    eas_value v = op3(b, "fma", eas_builder_load(b, x, off, mask, eas_builder_const_float(b, 1.5)), sw, ss);
    eas_builder_store(b, y, off, v, mask);
    eas_value f = eas_builder_reshape(b, v, 1, flat);
    eas_builder_store(b, y, op2(b, "add", num(b, 1000), eas_builder_arange(b, 0, 128)), f, 0);
    eas_value g = eas_builder_reshape(b, f, 2, other);
    eas_value cr = eas_builder_reshape(b, eas_builder_arange(b, 0, 16), 2, (int64_t[]){16, 1}),
              cc = eas_builder_reshape(b, eas_builder_arange(b, 0, 8), 2, (int64_t[]){1, 8});
    eas_builder_store(b, y, op2(b, "add", num(b, 2000), op2(b, "add", op2(b, "mul", cc, num(b, 16)), cr)), g, 0);
    return finish(b);
}

static eas_kernel *block_dot(eas_dtype dt)
{
    char name[64];
    snprintf(name, sizeof name, "block_dot_%s", eas_dtype_name(dt));
    eas_builder *b = start(name);
    eas_value x = eas_builder_param_buffer(b, "x", dt), w = eas_builder_param_buffer(b, "w", dt), y = eas_builder_param_buffer(b, "y", EAS_F32);
    eas_value K = eas_builder_param_scalar(b, "K", EAS_I64, 1), pid = eas_builder_program_id(b, 0), c = eas_builder_arange(b, 0, 16);
    eas_value d = eas_builder_dot(b, x, op2(b, "mul", pid, K), num(b, 1), w, c, num(b, 16), K);
    eas_builder_store(b, y, op2(b, "add", op2(b, "mul", pid, num(b, 16)), c), d, 0);
    return finish(b);
}

/* a tiled product with barriers in a loop */
static eas_kernel *tiles(void)
{
    eas_builder *b = start("tiles");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), w = eas_builder_param_buffer(b, "w", EAS_F32),
              y = eas_builder_param_buffer(b, "y", EAS_F32);
    eas_value K = eas_builder_param_scalar(b, "K", EAS_I64, 1), t = eas_builder_tid(b, 0, 64);
    eas_value tr = op2(b, "floordiv", t, num(b, 8)), tc = op2(b, "mod", t, num(b, 8));
    eas_value ta = eas_builder_alloc_tg(b, 64, EAS_F32), tb = eas_builder_alloc_tg(b, 64, EAS_F32);
    eas_value zero = eas_builder_const_typed(b, EAS_F32, 0, 0), iv, acc, next, out;
    eas_builder_loop_begin(b, num(b, 0), K, num(b, 8), 1, &zero, &iv, &acc);
    eas_builder_store(b, ta, t, eas_builder_load(b, x, op2(b, "add", op2(b, "mul", tr, K), op2(b, "add", iv, tc)), 0, 0), 0);
    eas_builder_store(b, tb, t, eas_builder_load(b, w, op2(b, "add", op2(b, "mul", op2(b, "add", iv, tr), num(b, 8)), tc), 0, 0), 0);
    eas_builder_barrier(b);
    next = op2(b, "add", acc, eas_builder_dot(b, ta, op2(b, "mul", tr, num(b, 8)), num(b, 1), tb, tc, num(b, 8), num(b, 8)));
    eas_builder_barrier(b);
    eas_builder_loop_end(b, 1, &next, &out);
    eas_builder_store(b, y, t, out, 0);
    return finish(b);
}

static eas_kernel *identities(void)
{
    eas_builder *b = start("identities");
    eas_value y = eas_builder_param_buffer(b, "y", EAS_I32), t = eas_builder_tid(b, 0, 64);
    eas_value at =
        op2(b, "mul",
            op2(b, "add",
                op2(b, "mul", op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 1), num(b, 2)), eas_builder_program_id(b, 0)), num(b, 64)), t),
            num(b, 8));
    eas_value v[] = {eas_builder_lane_id(b),         eas_builder_sg_id(b),           eas_builder_local_id(b, 0),
                     eas_builder_num_programs(b, 0), eas_builder_num_programs(b, 1), eas_builder_program_id(b, 1)};
    for (int i = 0; i < 6; i++)
        eas_builder_store(b, y, op2(b, "add", at, num(b, i)), eas_builder_cast(b, v[i], EAS_I32), 0);
    return finish(b);
}

static void test_who_am_i(void **state)
{
    (void)state;
    eas_kernel *k = identities();
    char *s = text_of(k, "msl");
    has(s, "[[threadgroup_position_in_grid]]");
    has(s, "[[thread_position_in_threadgroup]]");
    has(s, "[[threadgroups_per_grid]]");
    has(s, "[[thread_index_in_simdgroup]]");
    has(s, "[[simdgroup_index_in_threadgroup]]");
    eas_memory_free(s);
    eas_kernel_release(k);
}

static void test_whole_kernels_run_as_msl(void **state)
{
    (void)state;
    whole all[] = {
        {add_kernel(EAS_F32), {4, 1, 1}, {0, 0, 0, 500}},
        {add_kernel(EAS_F16), {4, 1, 1}, {0, 0, 0, 500}},
        {thread_scale(), {3, 1, 1}, {0, 0, 150, 170, 1500}},
        {four_columns(EAS_F32, 0, 0), {4, 1, 1}, {0, 0, 0, 32, 10}},
        {four_columns(EAS_F16, 0, 0), {4, 1, 1}, {0, 0, 0, 33, 10}},
        {four_columns(EAS_F32, 1, 0), {4, 1, 1}, {0, 0, 0, 10}},
        {reverse_in_group(EAS_F32), {2, 1, 1}, {0}},
        {reverse_in_group(EAS_F16), {2, 1, 1}, {0}},
        {reverse_in_group(EAS_BOOL), {2, 1, 1}, {0}},
        {matrices(EAS_F32, EAS_F32), {2, 1, 1}, {0}},
        {matrices(EAS_F16, EAS_F32), {2, 1, 1}, {0}},
        {matrices(EAS_F32, EAS_F16), {2, 1, 1}, {0}},
        {loops(), {2, 1, 1}, {0, 0, 20}},
        {swaps(), {1, 1, 1}, {0, 0, 5}},
        {neighbours_in_place(), {1, 1, 1}, {0}},
        {two_dims(), {1, 1, 1}, {0, 0, 0, 0, 20}},
        {block_dot(EAS_F32), {4, 1, 1}, {0, 0, 0, 9}},
        {block_dot(EAS_F16), {4, 1, 1}, {0, 0, 0, 9}},
        {block_dot(EAS_BF16), {4, 1, 1}, {0, 0, 0, 9}},
        {tiles(), {1, 1, 1}, {0, 0, 0, 24}},
        {identities(), {2, 2, 1}, {0}},
    };
    int n = (int)(sizeof all / sizeof *all), seen_f16 = 0;
    batch = msl_batch_new();
    for (int i = 0; i < n; i++) {
        char *s = text_of(all[i].k, "msl"), *c = text_of(all[i].k, "opencl");
        /* the two add kernels share a name: the second goes through the compiler only */
        int twin = !strcmp(eas_ir_name(eas_kernel_ir(all[i].k)), "add_kernel") && seen_f16++;
        assert_int_equal(msl_syntax(s), 0);
        assert_int_equal(opencl_syntax(c), 0);
        if (!twin)
            msl_batch_add(batch, s);
        else
            all[i].grid[0] = 0;
        eas_memory_free(s);
        eas_memory_free(c);
    }
    assert_int_equal(msl_batch_compile(batch), 0);
    for (int i = 0; i < n; i++) {
        if (all[i].grid[0])
            check_whole(&all[i]);
        eas_kernel_release(all[i].k);
    }
    msl_batch_free(batch);
}

/* ---- slices, pads, transposes; reductions and scans ---- */

typedef struct writer {
    char text[8192];
    size_t n;
    int next;   /* the next value's number */
    int stored; /* results stored so far */
    const char *dtype;
} writer;

static void put(writer *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    w->n += (size_t)vsnprintf(w->text + w->n, sizeof w->text - w->n, fmt, ap);
    va_end(ap);
    assert_true(w->n < sizeof w->text);
}

/* One instruction that makes a block of n lanes, and a store of it to a place of its own. */
static void put_move(writer *w, const char *insn, const char *shape, int n)
{
    int v = w->next;
    put(w, "  %%%d = %s : %s[%s]\n", v, insn, w->dtype, shape);
    put(w, "  %%%d = reshape %%%d : %s[%d]\n", v + 1, v, w->dtype, n);
    put(w, "  %%%d = arange %d : u32[%d]\n", v + 2, w->stored, n);
    put(w, "  store %%2, %%%d, %%%d\n", v + 2, v + 1);
    w->next += 3;
    w->stored += n;
}

/* Slices, pads and transposes of a 3-d block of each dtype; the fill is a constant or a loaded value. */
static eas_kernel *moves(eas_dtype dt)
{
    writer w = {.next = 9, .dtype = eas_dtype_name(dt)};
    const char *d = w.dtype;
    put(&w, "kernel moves_%s(buf<%s> x, buf<%s> y) {\n", d, d, d);
    put(&w, "  %%3 = arange 0 : u32[60]\n  %%4 = load %%1, %%3 : %s[60]\n  %%5 = reshape %%4 : %s[3,4,5]\n", d, d);
    put(&w, "  %%6 = const 61 : u32\n  %%7 = load %%1, %%6 : %s\n", d);
    put(&w, "  %%8 = const %s : %s\n", dt == EAS_BOOL ? "true" : eas_dtype_kind(dt) == 'f' ? "-2.5" : "3", d);
    put_move(&w, "slice 0 1 %5", "2,4,5", 40);
    put_move(&w, "slice 1 2 %5", "3,2,5", 30);
    put_move(&w, "slice 2 4 %5", "3,4,1", 12);
    put_move(&w, "slice 0 59 %4", "1", 1);
    put_move(&w, "pad 0 1 %5, %7", "4,4,5", 80);
    put_move(&w, "pad 1 0 %5, %8", "3,6,5", 90);
    put_move(&w, "pad 2 2 %5, %7", "3,4,9", 108);
    put_move(&w, "pad 0 3 %4, %8", "66", 66);
    put_move(&w, "trans 2 1 0 %5", "5,4,3", 60);
    put_move(&w, "trans 1 2 0 %5", "4,5,3", 60);
    put_move(&w, "trans 0 2 1 %5", "3,5,4", 60);
    char insn[48];
    snprintf(insn, sizeof insn, "slice 0 1 %%%d", w.next - 6); /* of a trans */
    put_move(&w, insn, "2,5,3", 30);
    snprintf(insn, sizeof insn, "pad 1 2 %%%d, %%7", w.next - 3); /* of a slice */
    put_move(&w, insn, "2,8,3", 48);
    snprintf(insn, sizeof insn, "slice 1 1 %%%d", w.next - 3); /* of a pad: its fill and its elements */
    put_move(&w, insn, "2,3,3", 18);
    put(&w, "}\n");
    eas_ir *ir;
    eas_kernel *k;
    ok(eas_ir_parse(w.text, w.n, &ir));
    ok(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

typedef struct block {
    int rank;
    int64_t dim[3];
} block;

static int64_t block_lanes(block s) { return s.dim[0] * (s.rank > 1 ? s.dim[1] : 1) * (s.rank > 2 ? s.dim[2] : 1); }

/* Stores v behind what was stored before. */
static void put_result(eas_builder *b, eas_value buf, int64_t *at, eas_value v)
{
    int64_t dim[4], n = 1;
    int rank = eas_value_shape(b, v, dim);
    for (int i = 0; i < rank; i++)
        n *= dim[i];
    eas_value off = rank ? eas_builder_reshape(b, eas_builder_arange(b, *at, n), rank, dim) : num(b, *at);
    eas_builder_store(b, buf, off, v, 0);
    *at += n;
}

/* Everything that runs along an axis, on a block of inexact numbers (f: with some NaN) and of bools. */
static eas_kernel *along(eas_dtype dt, block s, int axis)
{
    char name[64];
    snprintf(name, sizeof name, "along_%s_%d_%d_%d_%d", eas_dtype_name(dt), (int)s.dim[0], (int)s.dim[1], (int)s.dim[2], axis);
    eas_builder *b = start(name);
    eas_value xs = eas_builder_param_buffer(b, "x", dt), y = eas_builder_param_buffer(b, "y", dt), z = eas_builder_param_buffer(b, "z", EAS_I64);
    eas_value t = eas_builder_param_buffer(b, "t", EAS_BOOL), u = eas_builder_param_buffer(b, "u", EAS_BOOL);
    eas_value off = eas_builder_reshape(b, eas_builder_arange(b, 0, block_lanes(s)), s.rank, s.dim);
    eas_value x = eas_builder_load(b, xs, off, 0, 0), flag = eas_builder_load(b, t, off, 0, 0), gaps = x;
    int64_t ny = 0, nz = 0, nu = 0;
    if (eas_dtype_kind(dt) == 'f') {
        x = op2(b, "mul", x, eas_builder_const_float(b, 0.1));
        gaps = op3(b, "where", op2(b, "gt", x, eas_builder_const_float(b, 0.37)), eas_builder_const_float(b, NAN), x);
    }
    put_result(b, y, &ny, eas_builder_reduce(b, eas_op_find("add"), x, axis));
    put_result(b, y, &ny, eas_builder_reduce(b, eas_op_find("mul"), x, axis));
    put_result(b, y, &ny, eas_builder_reduce(b, eas_op_find("max"), gaps, axis));
    put_result(b, z, &nz, eas_builder_arg_reduce(b, 1, gaps, axis));
    put_result(b, z, &nz, eas_builder_arg_reduce(b, 0, x, axis));
    put_result(b, u, &nu, eas_builder_reduce(b, eas_op_find("or"), flag, axis));
    put_result(b, u, &nu, eas_builder_reduce(b, eas_op_find("and"), flag, axis));
    put_result(b, z, &nz, eas_builder_reduce(b, eas_op_find("add"), flag, axis));
    put_result(b, y, &ny, eas_builder_scan(b, eas_op_find("add"), x, axis));
    put_result(b, y, &ny, eas_builder_scan(b, eas_op_find("min"), gaps, axis));
    put_result(b, y, &ny, eas_builder_trans(b, x, NULL));
    put_result(b, y, &ny, eas_builder_join(b, x, gaps));
    eas_value mean = eas_builder_reduce(b, eas_op_find("add"), x, axis);
    if (s.rank > 1) {
        int64_t kept[3] = {s.dim[0], s.dim[1], s.dim[2]};
        kept[axis] = 1;
        mean = eas_builder_reshape(b, mean, s.rank, kept);
    }
    put_result(b, y, &ny, op2(b, "sub", x, mean));
    return finish(b);
}

/* y = softmax(x) of one row a program, its length not a power of two; the divisor stays in a carried block besides */
static eas_kernel *softmax(void)
{
    eas_builder *b = start("softmax");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value c = eas_builder_arange(b, 0, 64), off = op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), n), c), mask = op2(b, "lt", c, n);
    eas_value v = eas_builder_load(b, x, off, mask, eas_builder_const_float(b, -INFINITY));
    eas_value e = eas_builder_apply(b, eas_op_find("exp"), op2(b, "sub", v, eas_builder_reduce(b, eas_op_find("max"), v, 0)), 0, 0);
    eas_builder_store(b, y, off, op2(b, "div", e, eas_builder_reduce(b, eas_op_find("add"), e, 0)), mask);
    return finish(b);
}

/* Blocks carried by a loop, moved and folded in it; a scalar that a fold made decides a branch. */
static eas_kernel *folds_in_loops(void)
{
    eas_builder *b = start("folds_in_loops");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value off = eas_builder_reshape(b, eas_builder_arange(b, 0, 36), 2, (int64_t[]){6, 6});
    eas_value init[2] = {eas_builder_load(b, x, off, 0, 0), eas_builder_const_typed(b, EAS_F32, 0, 0)}, iv, in[2], out[2], merged;
    eas_builder_loop_begin(b, num(b, 0), n, num(b, 1), 2, init, &iv, in);
    eas_value rows = eas_builder_reduce(b, eas_op_find("add"), in[0], 1), all = eas_builder_reduce(b, eas_op_find("max"), rows, 0);
    eas_builder_if_begin(b, op2(b, "gt", all, in[1]));
    eas_value yes = eas_builder_trans(b, in[0], NULL);
    eas_builder_if_else(b, 1, &yes);
    eas_value no = op2(b, "mul", eas_builder_scan(b, eas_op_find("add"), in[0], 0), eas_builder_const_float(b, 0.3));
    eas_builder_if_end(b, 1, &no, &merged);
    eas_value next[2] = {op2(b, "add", merged, eas_builder_reshape(b, rows, 2, (int64_t[]){6, 1})),
                         eas_builder_reduce(b, eas_op_find("min"), eas_builder_reduce(b, eas_op_find("add"), in[0], 0), 0)};
    eas_builder_loop_end(b, 2, next, out);
    eas_builder_store(b, y, off, out[0], 0);
    eas_builder_store(b, y, num(b, 100), out[1], 0);
    return finish(b);
}

/* A loop that only turns its block. */
static eas_kernel *turns(void)
{
    eas_builder *b = start("turns");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value off = eas_builder_reshape(b, eas_builder_arange(b, 0, 25), 2, (int64_t[]){5, 5});
    eas_value init[2] = {eas_builder_load(b, x, off, 0, 0), eas_builder_load(b, x, op2(b, "add", off, num(b, 25)), 0, 0)}, iv, in[2], out[2];
    eas_builder_loop_begin(b, num(b, 0), n, num(b, 1), 2, init, &iv, in);
    eas_value next[2] = {eas_builder_trans(b, in[1], NULL), eas_builder_trans(b, in[0], NULL)};
    eas_builder_loop_end(b, 2, next, out);
    eas_builder_store(b, y, off, out[0], 0);
    eas_builder_store(b, y, op2(b, "add", off, num(b, 25)), out[1], 0);
    return finish(b);
}

/* Folds of what needs no memory: counters. */
static eas_kernel *folds_of_counters(void)
{
    eas_builder *b = start("folds_of_counters");
    eas_value y = eas_builder_param_buffer(b, "y", EAS_I64), pid = eas_builder_program_id(b, 0);
    int64_t at = 0;
    for (int64_t n = 2; n <= 40; n += 19) {
        eas_value v = op2(b, "add", eas_builder_arange(b, 3, n), pid);
        put_result(b, y, &at, eas_builder_reduce(b, eas_op_find("add"), v, 0));
        put_result(b, y, &at, eas_builder_arg_reduce(b, 1, op2(b, "mod", v, num(b, 7)), 0));
        put_result(b, y, &at, eas_builder_scan(b, eas_op_find("xor"), v, 0));
    }
    return finish(b);
}

static eas_kernel *sum_of_1024(void)
{
    eas_builder *b = start("sum_of_1024");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32), pid = eas_builder_program_id(b, 0);
    eas_value v = eas_builder_load(b, x, op2(b, "add", op2(b, "mul", pid, num(b, 1024)), eas_builder_arange(b, 0, 1024)), 0, 0);
    eas_builder_store(b, y, pid, eas_builder_reduce(b, eas_op_find("add"), op2(b, "mul", v, eas_builder_const_float(b, 0.1)), 0), 0);
    return finish(b);
}

static void test_a_sum_keeps_few_elements(void **state)
{
    (void)state;
    eas_kernel *k = sum_of_1024();
    char *s = text_of(k, "msl");
    assert_non_null(strstr(s, "_c[64];"));
    has_not(s, "[1024];");
    eas_memory_free(s);
    eas_kernel_release(k);
}

/* Products of blocks that are loaded, computed, transposed, of one row or column; carried by a loop. */
static eas_kernel *products(void)
{
    eas_builder *b = start("products");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    int64_t at = 0;
    static const int64_t sizes[][3] = {{3, 5, 4}, {1, 7, 1}, {6, 1, 9}, {1, 4, 8}, {8, 8, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t m = sizes[i][0], k = sizes[i][1], c = sizes[i][2];
        eas_value p = eas_builder_load(b, x, eas_builder_reshape(b, eas_builder_arange(b, 0, m * k), 2, (int64_t[]){m, k}), 0, 0);
        eas_value q = eas_builder_load(b, x, eas_builder_reshape(b, eas_builder_arange(b, 3, k * c), 2, (int64_t[]){c, k}), 0, 0);
        eas_value r = eas_builder_matmul(b, p, eas_builder_trans(b, op2(b, "mul", q, eas_builder_const_float(b, 0.3)), NULL), 0);
        put_result(b, y, &at, eas_builder_matmul(b, p, eas_builder_trans(b, q, NULL), r));
    }
    eas_value s = eas_builder_load(b, x, eas_builder_reshape(b, eas_builder_arange(b, 0, 36), 2, (int64_t[]){6, 6}), 0, 0), iv, acc, out;
    eas_builder_loop_begin(b, num(b, 0), n, num(b, 1), 1, &s, &iv, &acc);
    eas_value next = op2(b, "mul", eas_builder_matmul(b, acc, s, acc), eas_builder_const_float(b, 0.1));
    eas_builder_loop_end(b, 1, &next, &out);
    put_result(b, y, &at, out);
    return finish(b);
}

static void run_all(whole *all, int n)
{
    batch = msl_batch_new();
    for (int i = 0; i < n; i++) {
        char *s = text_of(all[i].k, "msl");
        msl_batch_add(batch, s);
        eas_memory_free(s);
    }
    assert_int_equal(msl_batch_compile(batch), 0);
    for (int i = 0; i < n; i++) {
        check_whole(&all[i]);
        eas_kernel_release(all[i].k);
    }
    msl_batch_free(batch);
}

static void test_moves_run_as_msl(void **state)
{
    (void)state;
    whole all[EAS_NDTYPES];
    int n = 0;
    for (int dt = 0; dt < EAS_NDTYPES; dt++) {
        eas_kernel *k = moves((eas_dtype)dt);
        char *s = text_of(k, "opencl");
        assert_int_equal(opencl_syntax(s), 0);
        eas_memory_free(s);
        if (dt == EAS_F64)
            eas_kernel_release(k);
        else
            all[n++] = (whole){.k = k, .grid = {1, 1, 1}};
    }
    run_all(all, n);
}

static void test_folds_and_scans_run_as_msl(void **state)
{
    (void)state;
    static const block blocks[] = {{1, {1}}, {1, {2}}, {1, {7}}, {1, {32}}, {1, {100}}, {2, {3, 5}}, {2, {8, 8}}, {2, {1, 9}}, {3, {4, 3, 6}}};
    static const eas_dtype dtypes[] = {EAS_F32, EAS_F16, EAS_I32, EAS_BF16, EAS_U8, EAS_I64};
    whole all[64];
    int n = 0;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (int axis = 0; axis < blocks[i].rank; axis++)
            for (int other = 0; other < 2; other++, n++)
                all[n] = (whole){.k = along(other ? dtypes[1 + (n / 2) % 5] : EAS_F32, blocks[i], axis), .grid = {1, 1, 1}};
    all[n++] = (whole){.k = softmax(), .grid = {5, 1, 1}, .scalar = {0, 0, 45}};
    all[n++] = (whole){.k = folds_in_loops(), .grid = {1, 1, 1}, .scalar = {0, 0, 4}};
    all[n++] = (whole){.k = turns(), .grid = {1, 1, 1}, .scalar = {0, 0, 3}};
    all[n++] = (whole){.k = folds_of_counters(), .grid = {1, 1, 1}};
    all[n++] = (whole){.k = sum_of_1024(), .grid = {4, 1, 1}};
    all[n++] = (whole){.k = products(), .grid = {1, 1, 1}, .scalar = {0, 0, 3}};
    assert_true(n <= 64);
    for (int i = n - 6; i < n; i++) {
        char *s = text_of(all[i].k, "opencl");
        assert_int_equal(opencl_syntax(s), 0);
        eas_memory_free(s);
    }
    run_all(all, n);
}

/* ---- kernels at random: blocks of several shapes that load, store, loop and branch over the same two buffers ---- */

enum { NSHAPES = 4, POOL = 24, REGION = 256 };
static const int64_t shapes[NSHAPES][2] = {{32, 0}, {8, 4}, {8, 1}, {1, 4}};

typedef struct pool {
    eas_value at[NSHAPES][POOL];
    int n[NSHAPES];
} pool;
typedef struct maker {
    eas_builder *b;
    eas_value buf[2];
    pool val, off; /* f32 values; offsets within REGION */
} maker;

static int pick(int n) { return (int)(random_bits() >> 5 & 0xffff) % n; }
static int rank_of(int s) { return s ? 2 : 1; }

static void keep(pool *p, int s, eas_value v) { p->at[s][p->n[s] < POOL ? p->n[s]++ : pick(POOL)] = v; }

static eas_value any(const pool *p, int s) { return p->at[s][pick(p->n[s])]; }

static eas_value lanes(maker *m, int s)
{
    int64_t n = shapes[s][0] * (shapes[s][1] ? shapes[s][1] : 1);
    eas_value v = eas_builder_arange(m->b, 0, n);
    return s ? eas_builder_reshape(m->b, v, 2, shapes[s]) : v;
}

static void make_offset(maker *m, int s)
{
    eas_builder *b = m->b;
    eas_value v = lanes(m, s);
    switch (pick(5)) {
    case 0: v = op2(b, "sub", num(b, 40), v); break;
    case 1: v = op2(b, "floordiv", v, num(b, 2)); break;
    case 2: v = op2(b, "mul", v, num(b, 3)); break;
    case 3: v = op2(b, "mod", v, num(b, 5)); break;
    default: break;
    }
    keep(&m->off, s, op2(b, "add", v, num(b, pick(8))));
}

static eas_value make_mask(maker *m, int s)
{
    eas_value x = op2(m->b, "lt", any(&m->off, s), num(m->b, pick(40)));
    if (pick(2))
        return x;
    eas_value y = op2(m->b, "gt", any(&m->val, s), eas_builder_const_float(m->b, 0.5));
    return op2(m->b, pick(2) ? "and" : "or", x, y);
}

static eas_value sum(maker *m, eas_value v, int axis) { return eas_builder_reduce(m->b, eas_op_find("add"), v, axis); }

/* A fold of what was just loaded, which may wait until its halves are read, with stores around it. */
static void make_fold(maker *m)
{
    eas_builder *b = m->b;
    int axis = pick(2), to = axis ? 2 : 3;
    eas_value mask = pick(2) ? make_mask(m, 1) : 0;
    if (pick(2))
        eas_builder_store(b, m->buf[pick(2)], any(&m->off, 1), any(&m->val, 1), 0);
    eas_value v = eas_builder_load(b, m->buf[pick(2)], any(&m->off, 1), mask, 0);
    if (pick(3) == 0)
        eas_builder_store(b, m->buf[pick(2)], any(&m->off, 0), any(&m->val, 0), 0);
    if (pick(2))
        v = op2(b, "mul", v, pick(2) ? any(&m->val, 1) : eas_builder_load(b, m->buf[pick(2)], any(&m->off, 1), 0, 0));
    v = eas_builder_reshape(b, sum(m, v, axis), 2, shapes[to]);
    if (pick(2))
        eas_builder_store(b, m->buf[pick(2)], any(&m->off, to), v, 0);
    keep(&m->val, to, v);
}

/* Slices, transposes, pads (inside joins and scans) and folds between the shapes. */
static void make_move(maker *m)
{
    eas_builder *b = m->b;
    eas_value flat = any(&m->val, 0), wide = any(&m->val, 1);
    switch (pick(11)) {
    case 0: keep(&m->val, 1, eas_builder_reshape(b, eas_builder_trans(b, wide, NULL), 2, shapes[1])); break;
    case 1:
        keep(&m->val, 0,
             eas_builder_reshape(b, eas_builder_join(b, eas_builder_slice(b, flat, 0, pick(17), 16), eas_builder_slice(b, flat, 0, pick(17), 16)), 1,
                                 shapes[0]));
        break;
    case 2: keep(&m->val, 2, eas_builder_slice(b, wide, 1, pick(4), 1)); break;
    case 3: keep(&m->val, 3, eas_builder_slice(b, wide, 0, pick(8), 1)); break;
    case 4: keep(&m->val, 2, eas_builder_reshape(b, sum(m, wide, 1), 2, shapes[2])); break;
    case 5: keep(&m->val, 3, eas_builder_reshape(b, sum(m, wide, 0), 2, shapes[3])); break;
    case 6:
    case 7:
    case 8: make_fold(m); break;
    case 9: keep(&m->val, 0, eas_builder_scan(b, eas_op_find("max"), flat, 0)); break;
    default: {
        int s = pick(NSHAPES);
        keep(&m->val, s, eas_builder_broadcast(b, pick(2) ? sum(m, flat, 0) : eas_builder_slice(b, flat, 0, pick(32), 1), rank_of(s), shapes[s]));
    }
    }
}

static void make_view(maker *m)
{
    static const int from[] = {0, 1, 2, 3}, to[] = {1, 0, 1, 1};
    int k = pick(4);
    eas_value v = any(&m->val, from[k]);
    v = k < 2 ? eas_builder_reshape(m->b, v, rank_of(to[k]), shapes[to[k]]) : eas_builder_broadcast(m->b, v, 2, shapes[to[k]]);
    keep(&m->val, to[k], v);
}

/* Scalars between the blocks: they must not overtake stores, nor be overtaken. */
static void make_scalar(maker *m, int s)
{
    eas_value v = eas_builder_load(m->b, m->buf[pick(2)], num(m->b, pick(48)), 0, 0);
    if (pick(2))
        eas_builder_store(m->b, m->buf[pick(2)], num(m->b, pick(48)), op2(m->b, "add", v, eas_builder_const_float(m->b, 0.25)), 0);
    keep(&m->val, s, eas_builder_broadcast(m->b, v, rank_of(s), shapes[s]));
}

static void make_steps(maker *m, int n, int depth);

/* A loop or a branch that changes one value; what it defined goes out of sight with it. */
static void make_region(maker *m, int depth)
{
    int s = pick(NSHAPES), loop = pick(2);
    eas_value init = any(&m->val, s), iv = 0, in = init, out;
    pool val = m->val, off = m->off;
    if (loop)
        eas_builder_loop_begin(m->b, num(m->b, 0), num(m->b, 1 + pick(3)), num(m->b, 1 + pick(2)), 1, &init, &iv, &in);
    else
        eas_builder_if_begin(m->b, op2(m->b, "gt", eas_builder_load(m->b, m->buf[0], num(m->b, pick(64)), 0, 0), eas_builder_const_float(m->b, 0)));
    keep(&m->val, s, in);
    make_steps(m, 4, depth + 1);
    eas_value next = any(&m->val, s);
    m->val = val;
    m->off = off;
    if (loop) {
        eas_builder_loop_end(m->b, 1, &next, &out);
    } else {
        eas_builder_if_else(m->b, 1, &next);
        make_steps(m, 2, depth + 1);
        next = any(&m->val, s);
        m->val = val;
        m->off = off;
        eas_builder_if_end(m->b, 1, &next, &out);
    }
    keep(&m->val, s, out);
}

static void make_steps(maker *m, int n, int depth)
{
    static const char *const ops[] = {"add", "sub", "mul", "min", "max"};
    for (int i = 0; i < n; i++) {
        int s = pick(NSHAPES), what = pick(depth < 2 ? 16 : 15);
        if (what < 3) {
            eas_value o = any(&m->off, s), mask = pick(2) ? make_mask(m, s) : 0;
            keep(&m->val, s, eas_builder_load(m->b, m->buf[pick(2)], o, mask, mask && pick(2) ? any(&m->val, s) : 0));
        } else if (what < 5) {
            eas_value o = any(&m->off, s), v = any(&m->val, s), mask = pick(2) ? make_mask(m, s) : 0;
            eas_builder_store(m->b, m->buf[pick(2)], o, v, mask);
        } else if (what < 7) {
            eas_value x = any(&m->val, s), y = any(&m->val, s);
            keep(&m->val, s, op2(m->b, ops[pick(5)], x, y));
        } else if (what < 8) {
            make_offset(m, s);
        } else if (what < 10) {
            make_view(m);
        } else if (what < 12) {
            make_scalar(m, s);
        } else if (what < 15) {
            make_move(m);
        } else {
            make_region(m, depth);
        }
    }
}

static eas_kernel *random_kernel(int number)
{
    char name[32];
    snprintf(name, sizeof name, "random_%d", number);
    maker m = {.b = start(name)};
    m.buf[0] = eas_builder_param_buffer(m.b, "x", EAS_F32);
    m.buf[1] = eas_builder_param_buffer(m.b, "y", EAS_F32);
    for (int s = 0; s < NSHAPES; s++) {
        make_offset(&m, s);
        make_offset(&m, s);
        keep(&m.val, s, eas_builder_load(m.b, m.buf[s % 2], any(&m.off, s), 0, 0));
    }
    make_steps(&m, 24, 0);
    for (int s = 0; s < NSHAPES; s++)
        eas_builder_store(m.b, m.buf[0], op2(m.b, "add", lanes(&m, s), num(m.b, REGION + 64 * s)), any(&m.val, s), 0);
    return finish(m.b);
}

static void test_random_kernels_run_as_msl(void **state)
{
    (void)state;
    const char *many = getenv("EAS_RANDOM_KERNELS"), *from = getenv("EAS_RANDOM_SEED");
    int n = many ? atoi(many) : 60;
    whole *all = calloc((size_t)n, sizeof *all);
    seed = from ? strtoull(from, NULL, 10) : 12345;
    for (int i = 0; i < n; i++)
        all[i] = (whole){.k = random_kernel(i), .grid = {1, 1, 1}};
    run_all(all, n);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_msl_of_add),
        cmocka_unit_test(test_msl_of_half_buffers),
        cmocka_unit_test(test_thread_mode_returns_early),
        cmocka_unit_test(test_threads_share_memory),
        cmocka_unit_test(test_four_neighbouring_columns_share_a_loop),
        cmocka_unit_test(test_simdgroup_matrices),
        cmocka_unit_test(test_who_am_i),
        cmocka_unit_test(test_names_do_not_collide),
        cmocka_unit_test(test_metal_has_no_double),
        cmocka_unit_test(test_same_text_every_time),
        cmocka_unit_test(test_accesses_with_bounds),
        cmocka_unit_test(test_every_instruction_compiles_as_opencl),
        cmocka_unit_test(test_every_instruction_runs_as_msl),
        cmocka_unit_test(test_fast_math_uses_the_languages_functions),
        cmocka_unit_test(test_whole_kernels_run_as_msl),
        cmocka_unit_test(test_a_sum_keeps_few_elements),
        cmocka_unit_test(test_moves_run_as_msl),
        cmocka_unit_test(test_folds_and_scans_run_as_msl),
        cmocka_unit_test(test_random_kernels_run_as_msl),
    };
    make_cases();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < ncases; i++)
        free(cases[i].ir);
    free(cases);
    return rc;
}
