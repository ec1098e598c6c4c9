/* op.c: the table of operations, and what the rules of all families share: promotion, alignment,
 * broadcasting, building. */
#include "graph.h"

#include <math.h>
#include <stdio.h>

const graph_row graph_rows[GRAPH_NOPS] = {
#define DIFF_INIT_EACH(f) {DIFF_EACH, .each = each_##f}
#define DIFF_INIT_AS(f) {DIFF_AS, .as = as_##f}
#define DIFF_INIT_BACK(f) {DIFF_EXPAND, .each = back_##f}
#define DIFF_INIT_LINEAR {DIFF_LINEAR, NULL, NULL}
#define DIFF_INIT_EXPAND {DIFF_EXPAND, NULL, NULL}
#define DIFF_INIT_ZERO {DIFF_ZERO, NULL, NULL}
#define OP(NAME, name, kind, make, ir, emit, expand, diff, shard, sig, doc) \
    [GRAPH_##NAME] = {#name,           KIND_##kind,      make_##make,   ir,  emit_##emit, \
                      expand_##expand, DIFF_INIT_##diff, shard_##shard, sig, doc},
#include "op.def"
#undef OP
};

static const char *const kind_names[] = {
    "leaf",  "input", "const",   "map",        "cast",   "reshape",  "permute", "broadcast",
    "slice", "pad",   "concat",  "update",     "window", "iota",     "random",  "reduce",
    "arg",   "scan",  "matmul",  "gather",     "along",  "scatter",  "sort",    "compact",
    "alias", "call",  "control", "collective", "result", "composite"};
_Static_assert(sizeof kind_names / sizeof *kind_names == KIND_COMPOSITE + 1, "a name for each kind");

/* Families in the order of the table: each before its rows. */
static const struct {
    const char *family;
    int op;
    bool hidden;
} order[] = {
#define OP(NAME, ...) {NULL, GRAPH_##NAME, false},
#define HIDDEN(NAME, ...) {NULL, GRAPH_##NAME, true},
#define FAMILY(name) {#name, -1, false},
#include "op.def"
#undef OP
};

const char *eas_tensor_op_family(eas_tensor_op op, int *hidden)
{
    const char *family = NULL;
    NEED(hidden, NULL);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        family = order[i].family ? order[i].family : family;
        *hidden = order[i].hidden;
        if (order[i].op == op)
            return family;
    }
    return NULL;
}

int eas_tensor_op_count(void) { return GRAPH_NOPS; }

int eas_tensor_op_find(const char *name)
{
    NEED(name, 0);
    for (int i = 0; i < GRAPH_NOPS; i++)
        if (!strcmp(graph_rows[i].name, name))
            return i;
    return -1;
}

eas_tensor_op_info eas_tensor_op_at(eas_tensor_op op)
{
    static const char *const how[] = {[DIFF_ZERO] = "zero",
                                      [DIFF_EACH] = "each",
                                      [DIFF_LINEAR] = "linear",
                                      [DIFF_EXPAND] = "expand",
                                      [DIFF_AS] = "as"};
    const graph_row *r = &graph_rows[op];
    return (eas_tensor_op_info){r->name, kind_names[r->kind], r->sig, r->doc, how[r->diff.how]};
}

/* ---- rules that are missing ---- */

eas_status make_none(const graph_call *c, eas_node **out)
{
    *out = NULL;
    return base_fail(EAS_ERR_VALUE, "eager.%s cannot be applied: it has a function of its own", c->row->name);
}
eas_value emit_none(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    (void)b, (void)x, (void)dt;
    return 0;
}
static eas_status no_rule(const eas_node *n, const char *rule)
{
    return base_fail(EAS_ERR_UNAVAILABLE, "eager.%s has no %s rule", graph_rows[n->op].name, rule);
}
eas_status expand_none(eas_node *n, eas_node *const *in, eas_node **out)
{
    (void)in, (void)out;
    return no_rule(n, "expand");
}
eas_status shard_none(eas_node *n, eas_shard_rule *rule)
{
    (void)rule;
    return no_rule(n, "sharding");
}

/* ---- calls ---- */

eas_status node_fail(eas_status st, const graph_call *c, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return base_fail(st, "eager.%s: %s", c->row->name, text);
}

eas_status graph_apply(uint16_t op, int nin, eas_node *const *in, int nattr, const int64_t *attr,
                       eas_node **out)
{
    graph_call c = {op, &graph_rows[op], in, nin, attr, nattr};
    *out = NULL;
    return c.row->make(&c, out);
}

/* ---- dtypes ---- */

/* Bool, then integers, then floats: a weak one of the same or a lower kind gives way. */
static int rung(eas_dtype dt) { return dt == EAS_BOOL ? 0 : dtype_is_int(dt) ? 1 : 2; }

static eas_dtype join_ints(eas_dtype a, eas_dtype b)
{
    if (dtype_is_signed(a) == dtype_is_signed(b))
        return eas_dtype_size(a) >= eas_dtype_size(b) ? a : b;
    eas_dtype s = dtype_is_signed(a) ? a : b, u = dtype_is_signed(a) ? b : a;
    if (eas_dtype_size(s) > eas_dtype_size(u))
        return s;
    switch (eas_dtype_size(u)) {
    case 1: return EAS_I16;
    case 2: return EAS_I32;
    case 4: return EAS_I64;
    default: return EAS_F64; /* u64 and a signed one: as NumPy; f32 would hold 24 bits of it */
    }
}

static eas_dtype join_floats(eas_dtype a, eas_dtype b)
{
    if (a == b)
        return a;
    if (eas_dtype_size(a) == eas_dtype_size(b))
        return EAS_F32; /* f16 and bf16 */
    return eas_dtype_size(a) > eas_dtype_size(b) ? a : b;
}

int64_t graph_neutral(const char *join, eas_dtype dt)
{
    bool real = dtype_is_float(dt), max = !strcmp(join, "max");
    if (!strcmp(join, "add") || !strcmp(join, "or") || !strcmp(join, "xor"))
        return 0;
    if (!strcmp(join, "mul"))
        return real ? ir_bits_from_double(dt, 1) : 1;
    if (!strcmp(join, "and"))
        return dt == EAS_BOOL ? 1 : -1;
    if (real)
        return ir_bits_from_double(dt, max ? -INFINITY : INFINITY);
    return max ? dtype_min(dt) : (int64_t)dtype_max(dt);
}

eas_dtype graph_promote(eas_dtype a, bool weak_a, eas_dtype b, bool weak_b, bool *weak)
{
    int ra = rung(a), rb = rung(b);
    *weak = weak_a && weak_b;
    if (weak_a != weak_b) {
        int rw = weak_a ? ra : rb, rs = weak_a ? rb : ra;
        if (rw <= rs)
            return weak_a ? b : a;
        return rw == 2 ? EAS_F32 : EAS_I64; /* a Python float meets integers, a Python int meets bools */
    }
    if (ra != rb)
        return ra > rb ? a : b;
    return ra == 0 ? EAS_BOOL : ra == 1 ? join_ints(a, b) : join_floats(a, b);
}

/* ---- shapes ---- */

eas_status graph_axis(const graph_call *c, const eas_node *x, int64_t axis, int *out)
{
    int rank = node_logical_rank(x);
    if (axis < -rank || axis >= rank)
        return node_fail(EAS_ERR_VALUE, c, "axis %lld of a tensor of %d dims", (long long)axis, rank);
    *out = x->batch_dims + (int)(axis < 0 ? axis + rank : axis);
    return EAS_OK;
}

/* x with batch dims of size 1 in front, up to bd, and size-1 logical dims up to `logical`. */
static eas_status widened(eas_node *x, int bd, int logical, eas_node **out)
{
    eas_dim shape[2 * GRAPH_MAX_RANK];
    int rank = 0, have = node_logical_rank(x);
    if (bd + logical > GRAPH_MAX_RANK)
        return base_fail(EAS_ERR_VALUE, "eager: %d batch dims and %d others are more than %d", bd, logical,
                         GRAPH_MAX_RANK);
    for (int i = x->batch_dims; i < bd; i++)
        shape[rank++] = 1;
    for (int i = 0; i < x->batch_dims; i++)
        shape[rank++] = node_shape(x)[i];
    for (int i = have; i < logical; i++)
        shape[rank++] = 1;
    for (int i = 0; i < have; i++)
        shape[rank++] = node_logical_shape(x)[i];
    return node_new(GRAPH_RESHAPE, (eas_dtype)x->dtype, bd, rank, shape, 0, NULL, 1, &x, out);
}

/* A tensor without batch dims whose logical dims lie at the end needs nothing: broadcasting aligns at the
 * end. */
static bool lies_well(const eas_node *x, int logical)
{
    return x->batch_dims == 0 || node_logical_rank(x) == logical;
}

eas_status graph_align(const graph_call *c, int n, eas_node *const *in, eas_node **out, int *batch_dims)
{
    int bd = 0, logical = 0;
    (void)c;
    for (int i = 0; i < n; i++) {
        bd = in[i]->batch_dims > bd ? in[i]->batch_dims : bd;
        logical = node_logical_rank(in[i]) > logical ? node_logical_rank(in[i]) : logical;
    }
    *batch_dims = bd;
    for (int i = 0; i < n; i++) {
        eas_status st = EAS_OK;
        if (bd == 0 || lies_well(in[i], logical))
            out[i] = node_ref(in[i]);
        else
            st = widened(in[i], bd, logical, &out[i]);
        if (st) {
            while (i > 0)
                node_unref(out[--i]);
            return st;
        }
    }
    return EAS_OK;
}

static eas_status clash(const graph_call *c, int n, eas_node *const *in)
{
    str s = {0};
    for (int i = 0; i < n; i++) {
        str_add(&s, "%s", i == 0 ? "" : i + 1 < n ? ", " : " and ");
        shape_add_text(&s, node_logical_rank(in[i]), node_logical_shape(in[i]));
    }
    eas_status st = node_fail(EAS_ERR_VALUE, c, "shapes %s do not broadcast", s.at ? s.at : "?");
    str_free(&s);
    return st;
}

eas_status graph_broadcast(const graph_call *c, int n, eas_node *const *in, int *rank, eas_dim *shape)
{
    int r = 0;
    eas_dim symbol;
    int64_t scale, offset;
    for (int i = 0; i < n; i++)
        r = in[i]->rank > r ? in[i]->rank : r;
    for (int i = 0; i < r; i++)
        shape[i] = 1;
    for (int i = 0; i < n; i++) {
        const eas_dim *s = node_shape(in[i]);
        eas_dim *to = shape + (r - in[i]->rank);
        for (int k = 0; k < in[i]->rank; k++)
            if (to[k] == 1)
                to[k] = s[k];
            else if (s[k] != 1 && !dim_agrees(s[k], to[k]))
                return clash(c, n, in);
            else if (s[k] != 1 && s[k] != to[k] && dim_linear(s[k], &symbol, &scale, &offset))
                to[k] = s[k]; /* the simpler one of two that agree */
    }
    *rank = r;
    return EAS_OK;
}

/* ---- building ---- */

static eas_node *keep(gbuild *g, eas_status st, eas_node *n)
{
    if (!st && !vec_push(&g->made, n)) {
        node_unref(n);
        st = base_fail_oom(sizeof n);
    }
    g->st = st;
    return st ? NULL : n;
}

eas_node *gb_apply(gbuild *g, uint16_t op, int nin, eas_node *const *in, int nattr, const int64_t *attr)
{
    eas_node *n = NULL;
    if (g->st)
        return NULL;
    for (int i = 0; i < nin; i++)
        if (!in[i])
            return NULL;
    eas_status st = graph_apply(op, nin, in, nattr, attr, &n);
    return keep(g, st, n);
}

eas_node *gb1(gbuild *g, uint16_t op, eas_node *x) { return gb_apply(g, op, 1, &x, 0, NULL); }
eas_node *gb2(gbuild *g, uint16_t op, eas_node *x, eas_node *y)
{
    return gb_apply(g, op, 2, (eas_node *[]){x, y}, 0, NULL);
}
eas_node *gb3(gbuild *g, uint16_t op, eas_node *x, eas_node *y, eas_node *z)
{
    return gb_apply(g, op, 3, (eas_node *[]){x, y, z}, 0, NULL);
}

eas_node *gb_num(gbuild *g, const eas_node *like, double v)
{
    eas_node *n = NULL;
    if (g->st || !like)
        return NULL;
    eas_status st = node_const_double((eas_dtype)like->dtype, false, v, &n);
    return keep(g, st, n);
}

eas_node *gb_int(gbuild *g, eas_dtype dt, int64_t v)
{
    eas_node *n = NULL;
    if (g->st)
        return NULL;
    eas_status st =
        dtype_is_float(dt) ? node_const_double(dt, false, (double)v, &n) : node_const(dt, false, v, &n);
    return keep(g, st, n);
}

eas_node *gb_cast(gbuild *g, eas_node *x, eas_dtype dt)
{
    eas_node *n = NULL;
    if (g->st || !x)
        return NULL;
    eas_status st = graph_cast(x, dt, &n);
    return keep(g, st, n);
}

eas_node *gb_new(gbuild *g, uint16_t op, eas_dtype dt, int batch_dims, int rank, const eas_dim *shape,
                 int nwords, const int64_t *words, int nin, eas_node *const *in)
{
    eas_node *n = NULL;
    if (g->st)
        return NULL;
    eas_status st = node_new(op, dt, batch_dims, rank, shape, nwords, words, nin, in, &n);
    return keep(g, st, n);
}

eas_status gb_done(gbuild *g, eas_node *result, eas_node **out)
{
    *out = NULL;
    if (!g->st && result)
        *out = node_ref(result);
    for (uint32_t i = 0; i < g->made.len; i++)
        node_unref(g->made.at[i]);
    vec_free(&g->made);
    return g->st;
}
