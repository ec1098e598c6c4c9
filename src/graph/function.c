/* function.c: elementary functions for kernels that are made of instructions, as the operations of lazy
 * tensors are (op_map.c). */
#include "graph.h"

#include <math.h>

static eas_value op2(eas_builder *b, const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}

static const struct {
    const char *name;
    int n;
    eas_value (*emit)(eas_builder *b, const eas_value *x, eas_dtype dt);
} functions[] = {{"asin", 1, emit_asin},        {"acos", 1, emit_acos},   {"atan", 1, emit_atan},
                 {"sinh", 1, emit_sinh},        {"cosh", 1, emit_cosh},   {"asinh", 1, emit_asinh},
                 {"acosh", 1, emit_acosh},      {"atanh", 1, emit_atanh}, {"log10", 1, emit_log10},
                 {"cbrt", 1, emit_cbrt},        {"atan2", 2, emit_atan2}, {"hypot", 2, emit_hypot},
                 {"copysign", 2, emit_copysign}};

/* Integers and halves are computed in f32. */
static eas_dtype wide(eas_dtype dt) { return dt == EAS_F64 ? EAS_F64 : EAS_F32; }

eas_value eas_builder_function(eas_builder *b, const char *name, eas_value x, eas_value y)
{
    NEED(b, 0);
    NEED(name, 0);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(name, functions[i].name))
            continue;
        eas_value v[2] = {x, y};
        eas_dtype own = eas_value_dtype(b, x);
        if (functions[i].n == 2) { /* a common type and shape */
            eas_value both = op2(b, "add", x, y);
            int64_t shape[4];
            int rank = eas_value_shape(b, both, shape);
            own = eas_value_dtype(b, both);
            for (int k = 0; k < 2; k++) {
                v[k] = eas_builder_cast(b, v[k], wide(own));
                if (rank)
                    v[k] = eas_builder_broadcast(b, v[k], rank, shape);
            }
        } else
            v[0] = eas_builder_cast(b, x, wide(own));
        eas_value r = functions[i].emit(b, v, wide(own));
        return own == EAS_F16 || own == EAS_BF16 ? eas_builder_cast(b, r, own) : r;
    }
    return eas_builder_apply(b, 0, x, y, 0); /* there is no such function: the builder says so */
}
