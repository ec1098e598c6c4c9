/* node_number.c: numbers as nodes (KIND_CONST): equal ones of a thread are one node, casts of numbers are
 * computed when they are recorded, and a literal that does not fit the dtype it meets is refused.
 */
#include "graph.h"

#include <stdio.h>

/* The last numbers of this thread: Python's literals come back again and again, and one node for equal ones
 * makes their equality visible. */
enum { RECENT = 64 };
typedef struct recent {
    eas_node *node[RECENT];
} recent;
static _Thread_local recent numbers;

void node_forget_numbers(void)
{
    for (int i = 0; i < RECENT; i++) {
        node_unref(numbers.node[i]);
        numbers.node[i] = NULL;
    }
}

eas_status node_const(eas_dtype dt, bool weak, int64_t bits, eas_node **out)
{
    uint64_t h = ((uint64_t)bits ^ (uint64_t)bits >> 32 ^ (uint64_t)dt * 2 ^ weak) * 0x9e3779b97f4a7c15u;
    eas_node **slot = &numbers.node[h >> 58];
    if (!node_expanding && *slot && (*slot)->dtype == dt && node_words(*slot)[0] == bits &&
        node_words(*slot)[1] == weak) {
        *out = node_ref(*slot);
        return EAS_OK;
    }
    int64_t words[2] = {bits, weak};
    eas_status st = node_new(GRAPH_CONST, dt, 0, 0, NULL, 2, words, 0, NULL, out);
    if (st)
        return st;
    if (weak)
        (*out)->flags |= NODE_WEAK;
    (*out)->site = 0;
    if (node_expanding) {
        (*out)->flags |= NODE_FIXED;
        return EAS_OK;
    }
    node_unref(*slot);
    *slot = node_ref(*out);
    return EAS_OK;
}

eas_status node_const_double(eas_dtype dt, bool weak, double v, eas_node **out)
{
    if (dtype_is_float(dt))
        return node_const(dt, weak, ir_bits_from_double(dt, v), out);
    return node_const(dt, weak,
                      dt == EAS_BOOL  ? v != 0
                      : dt == EAS_U64 ? (int64_t)(uint64_t)v
                                      : (int64_t)v,
                      out);
}

bool node_const_bits(const eas_node *n, int64_t *bits)
{
    if (n->op != GRAPH_CONST)
        return false;
    *bits = node_words(n)[0];
    return true;
}

static int64_t wrapped(eas_dtype dt, int64_t v)
{
    int bits = dtype_bits(dt);
    if (dt == EAS_BOOL)
        return v != 0;
    if (bits == 64)
        return v;
    uint64_t low = (uint64_t)v << (64 - bits);
    return dtype_is_signed(dt) ? (int64_t)low >> (64 - bits) : (int64_t)(low >> (64 - bits));
}

eas_status eas_node_number(eas_dtype dt, int weak, int64_t i, double f, eas_node **out)
{
    NEED(out, EAS_ERR_HANDLE);
    eas_status st =
        node_const(dt, weak != 0, dtype_is_float(dt) ? ir_bits_from_double(dt, f) : wrapped(dt, i), out);
    if (!st)
        atomic_fetch_add_explicit(&(*out)->counts, NODE_HANDLE - NODE_REF, memory_order_relaxed);
    return st;
}

int eas_node_number_value(const eas_node *n, int64_t *i, double *f)
{
    NEED(n, 0);
    NEED(i, 0);
    NEED(f, 0);
    int64_t bits;
    if (!node_const_bits(n, &bits))
        return 0;
    bool real = dtype_is_float((eas_dtype)n->dtype);
    *f = real                ? ir_bits_to_double((eas_dtype)n->dtype, bits)
       : n->dtype == EAS_U64 ? (double)(uint64_t)bits
                             : (double)bits;
    *i = real ? 0 : bits;
    return 1;
}

/* ---- a number in another dtype: as the cast of the IR does ---- */
static eas_status const_cast(const eas_node *x, eas_dtype dt, eas_node **out)
{
    int64_t from = node_words(x)[0], to;
    if (!ir_eval(IR_CAST, (eas_dtype)x->dtype, dt, &from, &to))
        return base_fail(EAS_ERR_INTERNAL, "eager: a number cannot be cast");
    return node_const(dt, false, to, out);
}

eas_status graph_cast(eas_node *x, eas_dtype dt, eas_node **out)
{
    *out = NULL;
    if (x->dtype == dt && !(x->flags & NODE_WEAK)) {
        *out = node_ref(x);
        return EAS_OK;
    }
    if (x->op == GRAPH_CONST && !node_expanding)
        return const_cast(x, dt, out);
    if (x->dtype == dt) {
        *out = node_ref(x);
        return EAS_OK;
    }
    return node_new(GRAPH_CAST, dt, x->batch_dims, x->rank, node_shape(x), 0, NULL, 1, &x, out);
}

eas_status graph_number_fits(const graph_call *c, const eas_node *x, eas_dtype dt)
{
    int64_t i;
    double f;
    if (!(x->flags & NODE_WEAK) || dt == EAS_BOOL || !eas_node_number_value(x, &i, &f))
        return EAS_OK;
    /* beyond 63 bits */
    const bool real = dtype_is_float((eas_dtype)x->dtype) || (x->dtype == EAS_U64 && i < 0);
    if (eas_dtype_holds(dt, real, i, f) || (dt == EAS_U64 && x->dtype == EAS_U64))
        return EAS_OK;
    char number[40];
    real ? snprintf(number, sizeof number, "%g", f) : snprintf(number, sizeof number, "%lld", (long long)i);
    const char *text =
        "the number %s does not fit %s, the dtype it meets; cast the tensor to a wider one first";
    return c ? node_fail(EAS_ERR_VALUE, c, text, number, eas_dtype_name(dt))
             : base_fail(EAS_ERR_VALUE, text, number, eas_dtype_name(dt));
}

/* Numbers that simplification knows what to do with; bools. */
bool node_fixed(const eas_node *n)
{
    static const double plain[] = {0, 1, -1, 2, -2, 0.5, 3, 4, 10};
    eas_dtype dt = (eas_dtype)n->dtype;
    if (dt == EAS_BOOL || n->flags & NODE_FIXED)
        return true;
    double v = dtype_is_float(dt) ? ir_bits_to_double(dt, node_words(n)[0]) : (double)node_words(n)[0];
    if (v != v || v - v != 0) /* nan and the infinities */
        return true;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (v == plain[i])
            return true;
    return false;
}
