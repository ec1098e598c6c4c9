/* gradient.c: fits a line to points from C: a lazy graph, its gradient, and steps downhill.
 *
 *   cc gradient.c $(pkg-config --cflags --libs eas) -lm && ./a.out
 *
 * Nothing is computed while operations are recorded. eas_nodes_realize computes what it is asked for in one
 * program; the second step has the structure of the first, so its program is found again.
 */
#include <eas.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 64, STEPS = 200 };

static void check(eas_status st)
{
    if (st == EAS_OK)
        return;
    fprintf(stderr, "%s: %s\n", eas_status_name(st), eas_error_message());
    exit(1);
}

/* Records an operation of two tensors. */
static eas_node *apply(const char *name, eas_node *x, eas_node *y)
{
    eas_node *in[2] = {x, y}, *out;
    check(eas_node_apply((eas_tensor_op)eas_tensor_op_find(name), 2, in, 0, NULL, &out));
    return out;
}

/* The mean of all elements. Attributes are flattened: axis None is a list of length -1, then keepdims. */
static eas_node *mean(eas_node *x)
{
    eas_node *out;
    const int64_t attributes[2] = {-1, 0};
    check(eas_node_apply((eas_tensor_op)eas_tensor_op_find("mean"), 1, &x, 2, attributes, &out));
    return out;
}

static eas_node *tensor(eas_device *d, int rank, const int64_t *shape, size_t count, const float *data)
{
    eas_buffer *buffer;
    eas_node *out;
    check(eas_buffer_new(d, count * sizeof *data, &buffer));
    memcpy(eas_buffer_host(buffer), data, count * sizeof *data);
    check(eas_node_from_buffer(buffer, EAS_F32, rank, shape, 0, NULL, &out));
    eas_buffer_release(buffer); /* the node counts it */
    return out;
}

static float number_of(eas_node *n)
{
    int64_t offset, strides[EAS_MAX_RANK];
    check(eas_nodes_realize(1, &n, NULL, NULL));
    return ((const float *)eas_buffer_host(eas_node_buffer(n, &offset, strides)))[offset];
}

/* x -= rate * gradient; the old x is let go of. */
static void descend(eas_node **x, eas_node *gradient, eas_node *rate)
{
    eas_node *step = apply("mul", gradient, rate), *next = apply("sub", *x, step);
    check(eas_nodes_realize(1, &next, NULL, NULL));
    eas_node_release(step);
    eas_node_release(*x);
    *x = next;
}

/* One step for y = slope*x + offset; the loss before it. */
static float train(eas_node **line, eas_node *x, eas_node *y, eas_node *one, eas_node *rate)
{
    eas_node *in[2], *gradients[2];
    for (int i = 0; i < 2; i++)
        check(eas_node_variable(line[i], &in[i]));
    eas_node *scaled = apply("mul", in[0], x), *guess = apply("add", scaled, in[1]);
    eas_node *error = apply("sub", guess, y), *squares = apply("mul", error, error), *loss = mean(squares);
    check(eas_nodes_vjp(2, in, 1, &loss, &one, 0, gradients));
    float before = number_of(loss);
    for (int i = 0; i < 2; i++) {
        descend(&line[i], gradients[i], rate);
        eas_node_release(gradients[i]);
        eas_node_release(in[i]);
    }
    eas_node *done[] = {scaled, guess, error, squares, loss};
    for (size_t i = 0; i < sizeof done / sizeof *done; i++)
        eas_node_release(done[i]);
    return before;
}

int main(void)
{
    static float xs[POINTS], ys[POINTS];
    const int64_t shape[1] = {POINTS};
    eas_device *cpu;
    check(eas_device_get("cpu", &cpu));
    for (int i = 0; i < POINTS; i++) {
        xs[i] = (float)i / POINTS * 4 - 2;
        ys[i] = 3 * xs[i] - 0.5f;
    }
    eas_node *x = tensor(cpu, 1, shape, POINTS, xs), *y = tensor(cpu, 1, shape, POINTS, ys);
    eas_node *line[2] = {tensor(cpu, 0, NULL, 1, &(float){0}), tensor(cpu, 0, NULL, 1, &(float){0})};
    eas_node *one = tensor(cpu, 0, NULL, 1, &(float){1}), *rate;
    check(eas_node_number(EAS_F32, 1, 0, 0.1, &rate));

    float first = 0, last = 0;
    for (int i = 0; i < STEPS; i++) {
        last = train(line, x, y, one, rate);
        first = i ? first : last;
    }
    float slope = number_of(line[0]), offset = number_of(line[1]);
    printf("loss %.4f -> %.2g; y = %.4f x %+.4f\n", (double)first, (double)last, (double)slope,
           (double)offset);

    eas_node *all[] = {x, y, line[0], line[1], one, rate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        eas_node_release(all[i]);
    return !(fabsf(slope - 3) < 1e-3f && fabsf(offset + 0.5f) < 1e-3f);
}
