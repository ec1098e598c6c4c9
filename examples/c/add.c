/* add.c: c = a + b from C: builds the kernel, prints it, compiles it and launches it on this program's own
 * memory.
 *
 *   cc add.c $(pkg-config --cflags --libs eas) && ./a.out
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

/* A builder keeps its first error, so building reads straight; finish reports it. */
static eas_ir *add_kernel(int64_t block)
{
    eas_builder *b;
    eas_ir *ir;
    check(eas_builder_new("add_kernel", 0, &b));
    eas_op add = eas_op_find("add"), mul = eas_op_find("mul"), lt = eas_op_find("lt");

    eas_value a = eas_builder_param_buffer(b, "a", EAS_F32), x = eas_builder_param_buffer(b, "b", EAS_F32),
              c = eas_builder_param_buffer(b, "c", EAS_F32);
    eas_value n = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    /* C leaves the order of arguments open: one call that builds per statement keeps the text the same
     * everywhere */
    eas_value pid = eas_builder_program_id(b, 0), size = eas_builder_const_int(b, block);
    eas_value first = eas_builder_apply(b, mul, pid, size, 0), lane = eas_builder_arange(b, 0, block);
    eas_value offs = eas_builder_apply(b, add, first, lane, 0);
    eas_value mask = eas_builder_apply(b, lt, offs, n, 0);
    eas_value va = eas_builder_load(b, a, offs, mask, 0), vx = eas_builder_load(b, x, offs, mask, 0);
    eas_builder_store(b, c, offs, eas_builder_apply(b, add, va, vx, 0), mask);

    check(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    return ir;
}

static void show(eas_kernel *k, const char *form)
{
    char *text;
    check(eas_kernel_text(k, form, &text));
    printf("---- %s ----\n%s\n", form, text);
    eas_memory_free(text);
}

int main(void)
{
    enum { N = 1024 + 7 };
    static float a[N], b[N], c[N];
    eas_ir *ir = add_kernel(256);
    eas_kernel *k;
    eas_device *cpu;
    for (int i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = 0.5f * (float)i;
    }
    check(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    show(k, "ir");
    show(k, "msl");
    show(k, "opencl");

    eas_arg args[4] = {{{a}, N, EAS_F32, 1, EAS_ARG_READONLY},
                       {{b}, N, EAS_F32, 1, EAS_ARG_READONLY},
                       {{c}, N, EAS_F32, 1, 0},
                       {{NULL}, 0, EAS_I64, 0, 0}};
    args[3].v.i = N;
    check(eas_device_get("cpu", &cpu));
    check(eas_kernel_launch(k, cpu, args, 4, NULL)); /* the grid follows from N */
    eas_kernel_release(k);

    for (int i = 0; i < N; i++)
        if (c[i] != a[i] + b[i]) {
            printf("c[%d] is %g, expected %g\n", i, (double)c[i], (double)(a[i] + b[i]));
            return 1;
        }
    printf("c == a + b on %s (%s)\n", eas_device_name(cpu), eas_device_describe(cpu));
    return 0;
}
