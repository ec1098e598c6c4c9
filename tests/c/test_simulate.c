/* Predictions and chosen layouts from C, on placeholders: nothing runs and there is no data. */
#include "eas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(e) assert_int_equal((e), EAS_OK)

static eas_machine machine(void)
{
    eas_machine m = {.product_f32 = 1e13,
                     .product_f64 = 5e12,
                     .product_f16 = 1e14,
                     .elementwise = 1e13,
                     .memory_bandwidth = 1e12,
                     .launch = 2e-6};
    for (int i = 0; i < EAS_MESH_AXES; i++)
        m.link[i] = (eas_link){5e-6, 5e10};
    return m;
}

static int mesh_of(int64_t devices)
{
    const char *names[] = {"x"};
    int id;
    OK(eas_mesh_register("s", &(eas_mesh){.naxes = 1, .sizes = {devices}}, names, &id));
    return id;
}

static eas_node *input(int index, int64_t rows, int64_t columns)
{
    eas_node *n;
    OK(eas_node_input(index, EAS_F32, 2, (eas_dim[]){rows, columns}, 0, NULL, &n));
    return n;
}

static eas_node *product(eas_node *x, eas_node *y)
{
    eas_node *n;
    OK(eas_node_apply((eas_tensor_op)eas_tensor_op_find("matmul"), 2, (eas_node *[]){x, y}, 0, NULL, &n));
    return n;
}

static eas_spec cut(int dim)
{
    eas_spec s = {.rank = 2};
    s.dims[dim] = (eas_dim_spec){.n = 1, .axes = {0}};
    return s;
}

/* A product over a cut dim is summed: an all_reduce of 2 (n - 1) / n of the result leaves each device. */
static void test_traffic(void **state)
{
    (void)state;
    const int64_t n = 4096, rows = 64, inner = 8192, columns = 128;
    int mesh = mesh_of(n);
    eas_machine m = machine();
    eas_node *x, *y, *z;
    eas_spec s = cut(1), t = cut(0);
    OK(eas_node_input_sharded(0, EAS_F32, 2, (eas_dim[]){rows, inner}, 0, NULL, mesh, &s, 0, &x));
    OK(eas_node_input_sharded(1, EAS_F32, 2, (eas_dim[]){inner, columns}, 0, NULL, mesh, &t, 0, &y));
    z = product(x, y);
    eas_simulation *sim;
    OK(eas_nodes_simulate(1, &z, mesh, &m, &sim));
    assert_int_equal(sim->collective[1].calls, 1);
    assert_int_equal(sim->collective[1].bytes, 2 * (n - 1) * rows * columns * 4 / n);
    assert_true(sim->flops >= 2.0 * (double)(rows * (inner / n) * columns));
    assert_int_equal(sim->arguments, (rows + columns) * (inner / n) * 4);
    assert_true(sim->seconds > 0 && sim->nevents >= 2);
    char *table;
    OK(eas_simulation_table(sim, &table));
    assert_non_null(strstr(table, "all_reduce"));
    assert_non_null(strstr(table, "4096 devices"));
    eas_memory_free(table);
    assert_int_equal(eas_simulation_trace(sim, "/no/such/folder/t.json"), EAS_ERR_VALUE);
    eas_simulation_free(sim);
    eas_node_release(x);
    eas_node_release(y);
    eas_node_release(z);
}

/* Many rows times a small matrix: the rows are cut, and nothing is sent. */
static void test_chosen(void **state)
{
    (void)state;
    int mesh = mesh_of(8);
    eas_machine m = machine();
    eas_node *x = input(0, 1 << 16, 512), *w = input(1, 512, 512), *z = product(x, w), *in[] = {x, w};
    eas_spec specs[2];
    double seconds[3];
    OK(eas_nodes_auto_shard(1, &z, mesh, &m, 2, in, NULL, specs, seconds));
    assert_int_equal(specs[0].dims[0].n, 1);
    assert_int_equal(specs[0].dims[1].n, 0);
    assert_true(seconds[2] < seconds[1] / 4);
    /* never worse than what it begins with */
    eas_spec start[] = {cut(1), cut(0)};
    OK(eas_nodes_auto_shard(1, &z, mesh, &m, 2, in, start, specs, seconds));
    assert_true(seconds[2] <= seconds[0] && seconds[2] <= seconds[1]);
    m.memory_bandwidth = 0;
    assert_int_equal(eas_nodes_auto_shard(1, &z, mesh, &m, 2, in, NULL, specs, seconds), EAS_ERR_VALUE);
    assert_int_equal(eas_nodes_auto_shard(1, &z, 10000, &m, 2, in, NULL, specs, seconds), EAS_ERR_VALUE);
    eas_node_release(x);
    eas_node_release(w);
    eas_node_release(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_traffic), cmocka_unit_test(test_chosen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
