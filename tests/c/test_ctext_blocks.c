/* test_ctext_blocks.c: slices, pads, transposes, reductions and scans as MSL against the reference. */
#include "ctext_words.h"

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
    put(&w, "  %%3 = arange 0 : u32[60]\n  %%4 = load %%1, %%3 : %s[60]\n  %%5 = reshape %%4 : %s[3,4,5]\n",
        d, d);
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

static int64_t block_lanes(block s)
{
    return s.dim[0] * (s.rank > 1 ? s.dim[1] : 1) * (s.rank > 2 ? s.dim[2] : 1);
}

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
    snprintf(name, sizeof name, "along_%s_%d_%d_%d_%d", eas_dtype_name(dt), (int)s.dim[0], (int)s.dim[1],
             (int)s.dim[2], axis);
    eas_builder *b = start(name);
    eas_value xs = eas_builder_param_buffer(b, "x", dt), y = eas_builder_param_buffer(b, "y", dt),
              z = eas_builder_param_buffer(b, "z", EAS_I64);
    eas_value t = eas_builder_param_buffer(b, "t", EAS_BOOL), u = eas_builder_param_buffer(b, "u", EAS_BOOL);
    eas_value off = eas_builder_reshape(b, eas_builder_arange(b, 0, block_lanes(s)), s.rank, s.dim);
    eas_value x = eas_builder_load(b, xs, off, 0, 0), flag = eas_builder_load(b, t, off, 0, 0), gaps = x;
    int64_t ny = 0, nz = 0, nu = 0;
    if (eas_dtype_kind(dt) == 'f') {
        x = op2(b, "mul", x, eas_builder_const_float(b, 0.1));
        gaps = op3(b, "where", op2(b, "gt", x, eas_builder_const_float(b, 0.37)),
                   eas_builder_const_float(b, NAN), x);
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

/* y = softmax(x) of one row a program, its length not a power of two; the divisor stays in a carried block
 * besides */
static eas_kernel *softmax(void)
{
    eas_builder *b = start("softmax");
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    eas_value c = eas_builder_arange(b, 0, 64),
              off = op2(b, "add", op2(b, "mul", eas_builder_program_id(b, 0), n), c),
              mask = op2(b, "lt", c, n);
    eas_value v = eas_builder_load(b, x, off, mask, eas_builder_const_float(b, -INFINITY));
    eas_value e = eas_builder_apply(b, eas_op_find("exp"),
                                    op2(b, "sub", v, eas_builder_reduce(b, eas_op_find("max"), v, 0)), 0, 0);
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
    eas_value init[2] = {eas_builder_load(b, x, off, 0, 0), eas_builder_const_typed(b, EAS_F32, 0, 0)}, iv,
              in[2], out[2], merged;
    eas_builder_loop_begin(b, num(b, 0), n, num(b, 1), 2, init, &iv, in);
    eas_value rows = eas_builder_reduce(b, eas_op_find("add"), in[0], 1),
              all = eas_builder_reduce(b, eas_op_find("max"), rows, 0);
    eas_builder_if_begin(b, op2(b, "gt", all, in[1]));
    eas_value yes = eas_builder_trans(b, in[0], NULL);
    eas_builder_if_else(b, 1, &yes);
    eas_value no =
        op2(b, "mul", eas_builder_scan(b, eas_op_find("add"), in[0], 0), eas_builder_const_float(b, 0.3));
    eas_builder_if_end(b, 1, &no, &merged);
    eas_value next[2] = {
        op2(b, "add", merged, eas_builder_reshape(b, rows, 2, (int64_t[]){6, 1})),
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
    eas_value init[2] = {eas_builder_load(b, x, off, 0, 0),
                         eas_builder_load(b, x, op2(b, "add", off, num(b, 25)), 0, 0)},
              iv, in[2], out[2];
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
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              pid = eas_builder_program_id(b, 0);
    eas_value v = eas_builder_load(
        b, x, op2(b, "add", op2(b, "mul", pid, num(b, 1024)), eas_builder_arange(b, 0, 1024)), 0, 0);
    eas_builder_store(
        b, y, pid,
        eas_builder_reduce(b, eas_op_find("add"), op2(b, "mul", v, eas_builder_const_float(b, 0.1)), 0), 0);
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
        eas_value p = eas_builder_load(
            b, x, eas_builder_reshape(b, eas_builder_arange(b, 0, m * k), 2, (int64_t[]){m, k}), 0, 0);
        eas_value q = eas_builder_load(
            b, x, eas_builder_reshape(b, eas_builder_arange(b, 3, k * c), 2, (int64_t[]){c, k}), 0, 0);
        eas_value r = eas_builder_matmul(
            b, p, eas_builder_trans(b, op2(b, "mul", q, eas_builder_const_float(b, 0.3)), NULL), 0);
        put_result(b, y, &at, eas_builder_matmul(b, p, eas_builder_trans(b, q, NULL), r));
    }
    eas_value s = eas_builder_load(
                  b, x, eas_builder_reshape(b, eas_builder_arange(b, 0, 36), 2, (int64_t[]){6, 6}), 0, 0),
              iv, acc, out;
    eas_builder_loop_begin(b, num(b, 0), n, num(b, 1), 1, &s, &iv, &acc);
    eas_value next = op2(b, "mul", eas_builder_matmul(b, acc, s, acc), eas_builder_const_float(b, 0.1));
    eas_builder_loop_end(b, 1, &next, &out);
    put_result(b, y, &at, out);
    return finish(b);
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
    static const block blocks[] = {{1, {1}},    {1, {2}},    {1, {7}},    {1, {32}},     {1, {100}},
                                   {2, {3, 5}}, {2, {8, 8}}, {2, {1, 9}}, {3, {4, 3, 6}}};
    static const eas_dtype dtypes[] = {EAS_F32, EAS_F16, EAS_I32, EAS_BF16, EAS_U8, EAS_I64};
    whole all[64];
    int n = 0;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (int axis = 0; axis < blocks[i].rank; axis++)
            for (int other = 0; other < 2; other++, n++)
                all[n] = (whole){.k = along(other ? dtypes[1 + (n / 2) % 5] : EAS_F32, blocks[i], axis),
                                 .grid = {1, 1, 1}};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sum_keeps_few_elements),
        cmocka_unit_test(test_moves_run_as_msl),
        cmocka_unit_test(test_folds_and_scans_run_as_msl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
