/* test_ctext.c: the texts that kernels become: fragments that users rely on (docs and tools look for them),
 * and whole kernels (loops, threads, barriers, dots, matrices, n-d blocks) whose MSL is executed against the
 * reference. */
#include "ctext_words.h"

/* ---- kernels that several tests look at ---- */

static eas_kernel *add_kernel(eas_dtype dt)
{
    eas_builder *b = start("add_kernel");
    eas_value x = eas_builder_param_buffer(b, "a", dt), y = eas_builder_param_buffer(b, "b", dt),
              z = eas_builder_param_buffer(b, "c", dt);
    eas_value n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value offs = op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), num(b, 128)),
                         eas_builder_arange(b, 0, 128));
    eas_value mask = op2(b, "lt", offs, n);
    eas_builder_store(
        b, z, offs,
        op2(b, "add", eas_builder_load(b, x, offs, mask, 0), eas_builder_load(b, y, offs, mask, 0)), mask);
    return finish(b);
}

static eas_value global_index(eas_builder *b, int64_t block)
{
    return op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), num(b, block)),
               eas_builder_tid(b, 0, block));
}

static eas_kernel *thread_scale(void)
{
    eas_builder *b = start("thread_scale");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32);
    eas_value n = eas_builder_param_scalar(b, "N", EAS_I64, 1),
              m = eas_builder_param_scalar(b, "M", EAS_I64, 1);
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
    eas_value x = eas_builder_param_buffer(b, "a", dt), w = eas_builder_param_buffer(b, "b", dt),
              y = eas_builder_param_buffer(b, "c", EAS_F32);
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
    eas_value t = eas_builder_tid(b, 0, 64), tg = eas_builder_alloc_tg(b, 64, dt),
              base = op2(b, "mul", eas_builder_program_id(b, 0), num(b, 64));
    eas_builder_store(b, tg, t, eas_builder_load(b, x, op2(b, "add", base, t), 0, 0), 0);
    eas_builder_barrier(b);
    eas_builder_store(b, y, op2(b, "add", base, t),
                      eas_builder_load(b, tg, op2(b, "sub", num(b, 63), t), 0, 0), 0);
    return finish(b);
}

static eas_kernel *matrices(eas_dtype in, eas_dtype out)
{
    char name[64];
    snprintf(name, sizeof name, "matrices_%s_%s", eas_dtype_name(in), eas_dtype_name(out));
    eas_builder *b = start(name);
    eas_value x = eas_builder_param_buffer(b, "a", in), w = eas_builder_param_buffer(b, "b", in),
              y = eas_builder_param_buffer(b, "c", out);
    eas_value sg = op2(b, "floordiv", eas_builder_tid(b, 0, 64), num(b, 32)), acc = eas_builder_mma_zero(b);
    eas_value base =
        op2(b, "mul", op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), num(b, 2)), sg), num(b, 64));
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

static const char odd_names[] =
    "kernel half(buf<f32> kernel, buf<f32> in, u32 i, u32 v7, u32 pid, u32 pid_, u32 eas_x, u32 \xc3\xa4) {\n"
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

/* ---- whole kernels ---- */

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
    eas_value init[4] = {eas_builder_load(b, x, offs, 0, 0),
                         eas_builder_load(b, x, op2(b, "add", offs, num(b, 16)), 0, 0),
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
    eas_builder_store(b, y, op2(b, "add", num(b, 2000), op2(b, "add", op2(b, "mul", cc, num(b, 16)), cr)), g,
                      0);
    return finish(b);
}

static eas_kernel *block_dot(eas_dtype dt)
{
    char name[64];
    snprintf(name, sizeof name, "block_dot_%s", eas_dtype_name(dt));
    eas_builder *b = start(name);
    eas_value x = eas_builder_param_buffer(b, "x", dt), w = eas_builder_param_buffer(b, "w", dt),
              y = eas_builder_param_buffer(b, "y", EAS_F32);
    eas_value K = eas_builder_param_scalar(b, "K", EAS_I64, 1), pid = eas_builder_program_id(b, 0),
              c = eas_builder_arange(b, 0, 16);
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
    eas_builder_store(
        b, ta, t, eas_builder_load(b, x, op2(b, "add", op2(b, "mul", tr, K), op2(b, "add", iv, tc)), 0, 0),
        0);
    eas_builder_store(
        b, tb, t,
        eas_builder_load(b, w, op2(b, "add", op2(b, "mul", op2(b, "add", iv, tr), num(b, 8)), tc), 0, 0), 0);
    eas_builder_barrier(b);
    next = op2(b, "add", acc,
               eas_builder_dot(b, ta, op2(b, "mul", tr, num(b, 8)), num(b, 1), tb, tc, num(b, 8), num(b, 8)));
    eas_builder_barrier(b);
    eas_builder_loop_end(b, 1, &next, &out);
    eas_builder_store(b, y, t, out, 0);
    return finish(b);
}

static eas_kernel *identities(void)
{
    eas_builder *b = start("identities");
    eas_value y = eas_builder_param_buffer(b, "y", EAS_I32), t = eas_builder_tid(b, 0, 64);
    eas_value at = op2(b, "mul",
                       op2(b, "add",
                           op2(b, "mul",
                               op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 1), num(b, 2)),
                                   eas_builder_program_id(b, 0)),
                               num(b, 64)),
                           t),
                       num(b, 8));
    eas_value v[] = {eas_builder_lane_id(b),         eas_builder_sg_id(b),
                     eas_builder_local_id(b, 0),     eas_builder_num_programs(b, 0),
                     eas_builder_num_programs(b, 1), eas_builder_program_id(b, 1)};
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
        cmocka_unit_test(test_whole_kernels_run_as_msl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
