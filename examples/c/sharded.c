/* sharded.c: a matrix product in parts, from C: on four devices of one process, or on one of each rank.
 *
 *   cc sharded.c $(pkg-config --cflags --libs eas)
 *   ./a.out
 *   mpirun -n 4 ./a.out
 *
 * The rows of x lie on the devices of a mesh; each process makes those of its own devices, and none has all
 * of them. What follows is recorded as for any tensor. The sums over all rows need what every device has: one
 * all_reduce, which the library puts in.
 */
#include <eas.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 8, IN = 16, OUT = 4 }; /* ROWS: on each device */

static void check(eas_status st)
{
    if (st == EAS_OK)
        return;
    fprintf(stderr, "%s: %s\n", eas_status_name(st), eas_error_message());
    exit(1); /* the other ranks end, too: docs/distributed.md */
}

static float x_at(int64_t i) { return (float)(i % 7) - 3; }
static float w_at(int64_t i) { return (float)(i % 5) * 0.5f - 1; }

static eas_buffer *numbers(int64_t first, int64_t count, float (*element)(int64_t))
{
    eas_device *cpu;
    eas_buffer *b;
    check(eas_device_get("cpu", &cpu));
    check(eas_buffer_new(cpu, (size_t)count * sizeof(float), &b));
    for (int64_t i = 0; i < count; i++)
        ((float *)eas_buffer_host(b))[i] = element(first + i);
    return b;
}

static eas_node *rows_of_x(int mesh, int64_t devices)
{
    int64_t first, here;
    eas_node *x;
    check(eas_mesh_devices(mesh, &first, &here));
    eas_buffer **parts = malloc(sizeof *parts * (size_t)(here + 1));
    for (int64_t i = 0; i < here; i++)
        parts[i] = numbers((first + i) * ROWS * IN, ROWS * IN, x_at);
    eas_spec rows = {.rank = 2, .dims = {{.n = 1, .axes = {0}}}};
    check(eas_node_from_parts(mesh, &rows, 0, EAS_F32, 2, (int64_t[]){devices * ROWS, IN}, here, parts, &x));
    for (int64_t i = 0; i < here; i++)
        eas_buffer_release(parts[i]);
    free(parts);
    return x;
}

static float expected(int64_t rows, int column)
{
    float total = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int k = 0; k < IN; k++)
            total += x_at(r * IN + k) * w_at(k * OUT + column);
    return total;
}

int main(void)
{
    int rank, ranks, mesh, bad = 0;
    check(eas_dist_place(&rank, &ranks));
    const int64_t devices = ranks > 1 ? ranks : 4;
    check(
        eas_mesh_register("line", &(eas_mesh){.naxes = 1, .sizes = {devices}}, (const char *[]){"x"}, &mesh));
    eas_buffer *b = numbers(0, IN * OUT, w_at);
    eas_node *x = rows_of_x(mesh, devices), *w, *product, *sums, *whole;
    check(eas_node_from_buffer(b, EAS_F32, 2, (int64_t[]){IN, OUT}, 0, NULL, &w));
    check(eas_node_apply((eas_tensor_op)eas_tensor_op_find("matmul"), 2, (eas_node *[]){x, w}, 0, NULL,
                         &product));
    check(eas_node_apply((eas_tensor_op)eas_tensor_op_find("reduce_sum"), 1, &product, 3,
                         (int64_t[]){1, 0, 0}, &sums));
    char *text;
    check(eas_nodes_explain(1, &sums, &text));
    check(eas_node_whole(sums, NULL, &whole));
    int64_t offset, strides[EAS_MAX_RANK];
    const float *data = eas_buffer_host(eas_node_buffer(whole, &offset, strides));
    for (int k = 0; k < OUT; k++)
        bad += data[offset + k * strides[0]] != expected(devices * ROWS, k);
    if (rank == 0)
        printf("%s%s\n", text, bad ? "wrong" : "every sum is as expected");
    eas_memory_free(text);
    eas_node *done[] = {x, w, product, sums, whole};
    for (size_t i = 0; i < sizeof done / sizeof *done; i++)
        eas_node_release(done[i]);
    eas_buffer_release(b);
    check(eas_dist_finalize());
    return bad != 0;
}
