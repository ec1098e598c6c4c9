/* square.c: the gradient of sum(x * x) from C. An operation only records itself; reading computes.
 *
 *   cc square.c $(pkg-config --cflags --libs eas) && ./a.out
 */
#include <eas.h>

#include <stdio.h>
#include <stdlib.h>

static void check(eas_status st)
{
    if (st == EAS_OK)
        return;
    fprintf(stderr, "%s: %s\n", eas_status_name(st), eas_error_message());
    exit(1);
}

int main(void)
{
    float numbers[4] = {1, 2, 3, 4};
    eas_device *cpu;
    eas_buffer *memory;
    eas_node *data, *x, *square, *sum, *one, *gradient;
    check(eas_device_get("cpu", &cpu));
    check(eas_buffer_wrap(cpu, numbers, sizeof numbers, NULL, NULL, &memory));
    check(eas_node_from_buffer(memory, EAS_F32, 1, (int64_t[]){4}, 0, NULL, &data));
    check(eas_node_variable(data, &x)); /* what is differentiated by */
    check(
        eas_node_apply((eas_tensor_op)eas_tensor_op_find("mul"), 2, (eas_node *[]){x, x}, 0, NULL, &square));
    /* attributes of reduce_sum: no list of axes (-1: all of them), keepdims */
    check(eas_node_apply((eas_tensor_op)eas_tensor_op_find("reduce_sum"), 1, &square, 2, (int64_t[]){-1, 0},
                         &sum));
    check(eas_node_number(EAS_F32, 0, 0, 1, &one));
    check(eas_nodes_vjp(1, &x, 1, &sum, &one, 0, &gradient)); /* records more nodes */
    check(eas_nodes_realize(1, &gradient, NULL, NULL));       /* compiles and runs */

    int64_t offset, strides[EAS_MAX_RANK];
    const float *g = eas_buffer_host(eas_node_buffer(gradient, &offset, strides));
    printf("%g %g %g %g\n", (double)g[0], (double)g[1], (double)g[2], (double)g[3]); /* 2 4 6 8 */
    int wrong = g[0] != 2 || g[3] != 8;
    eas_node *all[] = {data, x, square, sum, one, gradient};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        eas_node_release(all[i]);
    eas_buffer_release(memory);
    return wrong;
}
