/* batch.c: relu(x @ w + b) from C, compiled once for every batch size.
 *
 *   cc batch.c $(pkg-config --cflags --libs eas) && ./a.out
 *
 * The first dim of x is a symbol. A program is made from placeholders; each run solves the symbol from the
 * shapes of its arguments.
 */
#include <eas.h>

#include <stdio.h>
#include <stdlib.h>

enum { IN = 4, OUT = 3 };

static void check(eas_status st)
{
    if (st == EAS_OK)
        return;
    fprintf(stderr, "%s: %s\n", eas_status_name(st), eas_error_message());
    exit(1);
}

static eas_node *apply(const char *name, int n, eas_node *const *in)
{
    eas_node *out;
    check(eas_node_apply((eas_tensor_op)eas_tensor_op_find(name), n, in, 0, NULL, &out));
    return out;
}

static eas_program *layer(void)
{
    eas_dim batch;
    eas_node *in[3];
    eas_program *program;
    check(eas_dim_symbol("batch", &batch));
    check(eas_node_input(0, EAS_F32, 2, (eas_dim[]){batch, IN}, 0, NULL, &in[0]));
    check(eas_node_input(1, EAS_F32, 2, (eas_dim[]){IN, OUT}, 0, NULL, &in[1]));
    check(eas_node_input(2, EAS_F32, 1, (eas_dim[]){OUT}, 0, NULL, &in[2]));
    eas_node *product = apply("matmul", 2, in);
    eas_node *sum = apply("add", 2, (eas_node *[]){product, in[2]}), *result = apply("relu", 1, &sum);
    check(eas_program_new(3, in, 1, &result, NULL, &program));
    eas_node *done[] = {in[0], in[1], in[2], product, sum, result}; /* the program keeps what it needs */
    for (size_t i = 0; i < sizeof done / sizeof *done; i++)
        eas_node_release(done[i]);
    return program;
}

static eas_node *numbers(eas_device *d, int rank, const int64_t *shape, float (*element)(int i))
{
    int count = 1;
    eas_buffer *buffer;
    eas_node *out;
    for (int i = 0; i < rank; i++)
        count *= (int)shape[i];
    check(eas_buffer_new(d, (size_t)count * sizeof(float), &buffer));
    for (int i = 0; i < count; i++)
        ((float *)eas_buffer_host(buffer))[i] = element(i);
    check(eas_node_from_buffer(buffer, EAS_F32, rank, shape, 0, NULL, &out));
    eas_buffer_release(buffer);
    return out;
}

static float x_at(int i) { return (float)(i % 7) - 3; }
static float w_at(int i) { return (float)(i % 5) * 0.5f - 1; }
static float b_at(int i) { return (float)i - 1; }

static float expected(int row, int column)
{
    float sum = b_at(column);
    for (int k = 0; k < IN; k++)
        sum += x_at(row * IN + k) * w_at(k * OUT + column);
    return sum > 0 ? sum : 0;
}

static int wrong(eas_node *result, int batch)
{
    int bad = 0;
    int64_t offset, strides[EAS_MAX_RANK];
    const float *data = eas_buffer_host(eas_node_buffer(result, &offset, strides));
    for (int i = 0; i < batch; i++)
        for (int k = 0; k < OUT; k++)
            bad += data[offset + i * strides[0] + k * strides[1]] != expected(i, k);
    return bad;
}

int main(void)
{
    int bad = 0;
    eas_device *cpu;
    eas_program *program = layer();
    check(eas_device_get("cpu", &cpu));
    eas_node *w = numbers(cpu, 2, (int64_t[]){IN, OUT}, w_at), *b = numbers(cpu, 1, (int64_t[]){OUT}, b_at);
    for (int batch = 1; batch <= 1000; batch *= 10) {
        eas_node *x = numbers(cpu, 2, (int64_t[]){batch, IN}, x_at), *result;
        check(eas_program_run(program, 3, (eas_node *[]){x, w, b}, NULL, NULL, &result));
        bad += wrong(result, batch);
        printf("batch %4d: shape (%d, %d)\n", batch, (int)eas_node_shape(result)[0],
               (int)eas_node_shape(result)[1]);
        eas_node_release(result);
        eas_node_release(x);
    }
    eas_node_release(w);
    eas_node_release(b);
    eas_program_release(program);
    printf("%s\n", bad ? "wrong" : "every element is as expected");
    return bad != 0;
}
