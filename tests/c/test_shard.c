/* Sharded tensors from C: laid out, computed with, differentiated, compiled and explained, with nothing but
 * the public header. */
#include "eas.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(e) assert_int_equal((e), EAS_OK)

static int mesh_of(int64_t a, int64_t b)
{
    const char *names[] = {"a", "b"};
    int id;
    OK(eas_mesh_register("c", &(eas_mesh){.naxes = 2, .sizes = {a, b}}, names, &id));
    return id;
}

static eas_node *tensor(int rows, int columns, float first)
{
    eas_device *d;
    eas_buffer *b;
    eas_node *n;
    OK(eas_device_get("cpu", &d));
    OK(eas_buffer_new(d, sizeof(float) * (size_t)(rows * columns), &b));
    for (int i = 0; i < rows * columns; i++)
        ((float *)eas_buffer_host(b))[i] = first + (float)(i % 7) - 0.25f * (float)(i % 5);
    OK(eas_node_from_buffer(b, EAS_F32, 2, (int64_t[]){rows, columns}, 0, NULL, &n));
    eas_buffer_release(b);
    return n;
}

static eas_spec cut(int dim, int axis)
{
    eas_spec s = {.rank = 2};
    s.dims[dim] = (eas_dim_spec){.n = 1, .axes = {(uint8_t)axis}};
    return s;
}

static eas_node *laid_out(eas_node *x, int mesh, eas_spec s)
{
    eas_node *n;
    OK(eas_node_shard(x, mesh, &s, 0, &n));
    return n;
}

static eas_node *product(eas_node *x, eas_node *y)
{
    eas_node *n;
    OK(eas_node_apply((eas_tensor_op)eas_tensor_op_find("matmul"), 2, (eas_node *[]){x, y}, 0, NULL, &n));
    return n;
}

static void same(eas_node *got, eas_node *want)
{
    eas_node *whole;
    int64_t offset, strides[EAS_MAX_RANK], count = 1;
    OK(eas_node_whole(got, NULL, &whole));
    OK(eas_nodes_realize(1, &want, NULL, NULL));
    for (int i = 0; i < eas_node_rank(want); i++)
        count *= eas_node_shape(want)[i];
    const float *a = eas_buffer_host(eas_node_buffer(whole, &offset, strides)),
                *b = eas_buffer_host(eas_node_buffer(want, &offset, strides));
    for (int64_t i = 0; i < count; i++)
        assert_true(fabsf(a[i] - b[i]) <= 1e-4f * (1 + fabsf(b[i])));
    eas_node_release(whole);
}

static void test_products(void **state)
{
    (void)state;
    int mesh = mesh_of(2, 4);
    eas_node *x = tensor(8, 8, 1), *y = tensor(8, 16, -1), *want = product(x, y);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            for (int axis = 0; axis < 2; axis++) {
                eas_node *xs = laid_out(x, mesh, cut(i, axis)), *ys = laid_out(y, mesh, cut(j, 1 - axis)),
                         *got = product(xs, ys);
                assert_true(eas_node_is_sharded(got));
                same(got, want);
                eas_node_release(xs);
                eas_node_release(ys);
                eas_node_release(got);
            }
    eas_node_release(x);
    eas_node_release(y);
    eas_node_release(want);
}

static void test_parts(void **state)
{
    (void)state;
    int mesh = mesh_of(2, 4), id;
    int64_t first, n, shape[EAS_MAX_RANK], offset, strides[EAS_MAX_RANK];
    eas_node *x = tensor(8, 8, 0), *xs = laid_out(x, mesh, cut(1, 1)), *again;
    eas_buffer *part[8];
    eas_spec s;
    OK(eas_nodes_realize(1, &xs, NULL, NULL));
    assert_int_equal(eas_node_layout(xs, &id, &s), 1);
    assert_int_equal(id, mesh);
    assert_int_equal(s.dims[1].n, 1);
    OK(eas_mesh_devices(mesh, &first, &n));
    assert_int_equal(n, 8);
    const float *whole = eas_buffer_host(eas_node_buffer(x, &offset, strides));
    for (int64_t k = 0; k < n; k++) {
        OK(eas_node_part(xs, k, &part[k], shape));
        assert_int_equal(shape[1], 2);
        assert_true(((float *)eas_buffer_host(part[k]))[0] == whole[2 * (k % 4)]);
    }
    assert_int_not_equal(eas_node_part(xs, 8, &part[0], shape), EAS_OK);
    OK(eas_node_from_parts(mesh, &s, 0, EAS_F32, 2, (int64_t[]){8, 8}, n, part, &again));
    same(again, x);
    eas_node_release(again);
    eas_node_release(xs);
    eas_node_release(x);
}

static void test_derivative(void **state)
{
    (void)state;
    int mesh = mesh_of(2, 4);
    eas_node *x = tensor(8, 8, 1), *y = tensor(8, 8, -1), *grad[2], *plain[2], *v[2];
    for (int k = 0; k < 2; k++) {
        eas_node *in[2] = {k ? laid_out(x, mesh, cut(0, 0)) : eas_node_retain(x),
                           k ? laid_out(y, mesh, cut(0, 1)) : eas_node_retain(y)};
        OK(eas_node_variable(in[0], &v[0]));
        OK(eas_node_variable(in[1], &v[1]));
        eas_node *z = product(v[0], v[1]), *ct = tensor(8, 8, 0.5f);
        OK(eas_nodes_vjp(2, v, 1, &z, &ct, 0, k ? grad : plain));
        for (int i = 0; i < 2; i++) {
            eas_node_release(in[i]);
            eas_node_release(v[i]);
        }
        eas_node_release(z);
        eas_node_release(ct);
    }
    for (int i = 0; i < 2; i++) {
        same(grad[i], plain[i]);
        eas_node_release(grad[i]);
        eas_node_release(plain[i]);
    }
    eas_node_release(x);
    eas_node_release(y);
}

static void test_compiled_and_explained(void **state)
{
    (void)state;
    int mesh = mesh_of(2, 4), count, id;
    int64_t told = 0;
    eas_spec rows = cut(0, 1), columns = cut(1, 1);
    eas_node *x = tensor(8, 8, 1), *y = tensor(8, 4, 2), *want = product(x, y), *in[2], *args[2], *out,
             *result;
    eas_program *p;
    eas_collective *all;
    char *text;
    OK(eas_node_input_sharded(0, EAS_F32, 2, (eas_dim[]){8, 8}, 0, NULL, mesh, &columns, 0, &in[0]));
    OK(eas_node_input_sharded(1, EAS_F32, 2, (eas_dim[]){8, 4}, 0, NULL, mesh, &rows, 0, &in[1]));
    out = product(in[0], in[1]);
    OK(eas_nodes_collectives(1, &out, &id, &all, &count));
    assert_int_equal(count, 1);
    assert_string_equal(all[0].name, "all_reduce");
    for (int i = 0; i < count; i++)
        told += all[i].bytes;
    eas_memory_free(all);
    OK(eas_nodes_explain(1, &out, &text));
    assert_non_null(strstr(text, "all_reduce"));
    eas_memory_free(text);
    OK(eas_program_new(2, in, 1, &out, NULL, &p));
    args[0] = laid_out(x, mesh, columns);
    args[1] = laid_out(y, mesh, rows);
    OK(eas_nodes_realize(2, args, NULL, NULL));
    uint64_t before = eas_comm_stats_get().bytes;
    OK(eas_program_run(p, 2, args, NULL, NULL, &result));
    assert_int_equal(eas_comm_stats_get().bytes - before, told);
    same(result, want);
    for (int i = 0; i < 2; i++) {
        eas_node_release(in[i]);
        eas_node_release(args[i]);
    }
    eas_program_release(p);
    eas_node_release(out);
    eas_node_release(result);
    eas_node_release(want);
    eas_node_release(x);
    eas_node_release(y);
}

static void test_refused(void **state)
{
    (void)state;
    int mesh = mesh_of(2, 4);
    eas_node *x = tensor(6, 8, 0), *n;
    eas_spec s = cut(0, 1), twice = cut(0, 0);
    twice.dims[1] = twice.dims[0];
    assert_int_equal(eas_node_shard(x, mesh, &s, 0, &n), EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "cannot be cut into 4 equal parts"));
    assert_int_equal(eas_node_shard(x, mesh, &twice, 0, &n), EAS_ERR_VALUE);
    assert_int_equal(eas_node_shard(x, 4000, &s, 0, &n), EAS_ERR_VALUE);
    OK(eas_node_shard(x, mesh, &s, 1, &n)); /* padded */
    same(n, x);
    eas_node_release(n);
    eas_node_release(x);
}

/* y[row] = x[row][0] + 2 x[row][1]: rows are programs, so it is not element-wise, but it can be cut by rows.
 */
static eas_kernel *rows_kernel(void)
{
    eas_ir *ir;
    eas_kernel *k;
    eas_builder *b;
    OK(eas_builder_new("rows", 0, &b));
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              row = eas_builder_program_id(b, 0);
    eas_value at = eas_builder_apply(b, eas_op_find("mul"), row, eas_builder_const_int(b, 2), 0),
              next = eas_builder_apply(b, eas_op_find("add"), at, eas_builder_const_int(b, 1), 0);
    eas_value second = eas_builder_load(b, x, next, 0, 0),
              twice = eas_builder_apply(b, eas_op_find("add"), second, second, 0);
    eas_builder_store(
        b, y, row, eas_builder_apply(b, eas_op_find("add"), eas_builder_load(b, x, at, 0, 0), twice, 0), 0);
    OK(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    OK(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

static void test_kernel_with_a_rule(void **state)
{
    (void)state;
    int mesh = mesh_of(2, 4), count, id;
    eas_kernel *k = rows_kernel();
    eas_node *x = tensor(16, 2, 1), *in = laid_out(x, mesh, cut(0, 1)), *plain, *y;
    eas_node_type out = {.dtype = EAS_F32, .rank = 1, .shape = (eas_dim[]){16}};
    int8_t order[2] = {0, -1};
    eas_dim rows;
    eas_collective *sent;
    OK(eas_dim_symbol("rows", &rows));
    eas_shard_tensor tensors[2] = {{.rank = 2}, {.rank = 1}};
    tensors[0].dims[0] = tensors[1].dims[0] = (eas_shard_dim){.n = 1, .factors = {0}};
    eas_shard_rule factors = {.nin = 1, .nfactors = 1, .tensors = tensors};
    factors.factors[0].size = 16;
    factors.factors[0].kind = EAS_FACTOR_PASS;
    eas_call_rule rule = {.factors = &factors, .sizes = &rows, .grid = (eas_dim[]){rows, 1, 1}};
    OK(eas_node_call(k, 1, &x, 1, &out, 2, order, (int64_t[]){16, 1, 1}, &plain));
    OK(eas_node_call(k, 1, &in, 1, &out, 2, order, (int64_t[]){16, 1, 1}, &y));
    OK(eas_nodes_collectives(1, &y, &id, &sent, &count));
    assert_int_equal(count, 1); /* without a rule it is gathered */
    eas_memory_free(sent);
    assert_int_equal(eas_node_call_rule(x, &rule), EAS_ERR_VALUE);
    factors.nin = 2;
    assert_int_equal(eas_node_call_rule(y, &rule), EAS_ERR_VALUE);
    factors.nin = 1;
    OK(eas_node_call_rule(y, &rule));
    OK(eas_nodes_collectives(1, &y, &id, &sent, &count));
    assert_int_equal(count, 0);
    eas_memory_free(sent);
    same(y, plain);
    eas_node_release(x);
    eas_node_release(in);
    eas_node_release(plain);
    eas_node_release(y);
    eas_kernel_release(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),   cmocka_unit_test(test_parts),
        cmocka_unit_test(test_derivative), cmocka_unit_test(test_compiled_and_explained),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_kernel_with_a_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
