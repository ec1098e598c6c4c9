/* Random graphs out of the whole table: what is fused and compiled must give what each operation gives by
 * itself on the reference.
 *
 * A step takes any row of op.def, tensors that are there and attributes of the right kinds. Most calls make
 * no sense: they must fail with a message that opens with the operation's name. The others are recorded three
 * times: on `ref`, where each is computed at once; on `cpu`, where all is computed at the end; and, as far as
 * the rules allow it, over placeholders in which every size of 3 is a symbol, which become one compiled
 * program.
 *
 * Every fourth graph is differentiated as well, both ways: <ct, J t> = <J^T ct, t>, on `ref`, on `cpu` and as
 * a program over placeholders, which give the same derivatives. Its floats are f64, but for every fourth of
 * those.
 *
 *   test_graph_random [graphs [seed]]
 *
 * Results are compared with a tolerance, so an operation that may jump (a comparison, a rounding, a
 * logarithm) only takes tensors that are exact: integers, and floats that are small multiples of 1/64.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "graph_words.h"

enum { MAX_POOL = 48, MAX_STEPS = 16, MAX_ELEMENTS = 2000, MAX_TRIES = 400 };

static uint64_t rng;
static uint32_t any(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)((rng >> 11) % n);
}
static int64_t between(int64_t a, int64_t b) { return b < a ? a : a + any((uint32_t)(b - a + 1)); }

/* ---- tensors, in both worlds ---- */

typedef struct tensor {
    eas_node *ref, *cpu, *sym; /* sym: NULL if there is none */
    bool exact, large;
} tensor;
static tensor pool[MAX_POOL];
static int npool;
static eas_device *ref, *cpu;
static str story; /* what was done, for the message */
static bool derive, narrow; /* this graph is differentiated; with floats of every dtype */
static bool has_lanes; /* batch dims may be those of a vmap around it: nothing moves them */

static double item(const eas_node *n, int64_t i)
{
    int64_t offset, strides[GRAPH_MAX_RANK];
    const char *data = eas_buffer_host(eas_node_buffer(n, &offset, strides));
    for (int k = n->rank - 1; k >= 0; k--) {
        offset += i % node_shape(n)[k] * strides[k];
        i /= node_shape(n)[k];
    }
    switch ((eas_dtype)n->dtype) {
    case EAS_BOOL:
    case EAS_U8: return ((const uint8_t *)data)[offset];
    case EAS_I8: return ((const int8_t *)data)[offset];
    case EAS_I16: return ((const int16_t *)data)[offset];
    case EAS_U16: return ((const uint16_t *)data)[offset];
    case EAS_I32: return ((const int32_t *)data)[offset];
    case EAS_U32: return ((const uint32_t *)data)[offset];
    case EAS_I64: return (double)((const int64_t *)data)[offset];
    case EAS_U64: return (double)((const uint64_t *)data)[offset];
    case EAS_F16: return f16_to_f32(((const uint16_t *)data)[offset]);
    case EAS_BF16: return bf16_to_f32(((const uint16_t *)data)[offset]);
    case EAS_F32: return ((const float *)data)[offset];
    default: return ((const double *)data)[offset];
    }
}

static int64_t elements(const eas_node *n) { return dim_product(n->rank, node_shape(n)); }

static double largest(const eas_node *n)
{
    double top = 0;
    for (int64_t i = 0; i < elements(n); i++)
        if (isfinite(item(n, i)))
            top = fmax(top, fabs(item(n, i)));
    return top;
}

static bool is_exact(const eas_node *n)
{
    if (!dtype_is_float((eas_dtype)n->dtype))
        return true;
    for (int64_t i = 0; i < elements(n); i++) {
        double v = item(n, i) * 64;
        if (isfinite(v) && (v != floor(v) || fabs(v) > 1 << 20))
            return false;
    }
    return true;
}

static void drop_all(void)
{
    for (int i = 0; i < npool; i++) {
        eas_node_release(pool[i].ref);
        eas_node_release(pool[i].cpu);
        eas_node_release(pool[i].sym);
    }
    npool = 0;
    str_free(&story);
}

/* ---- leaves ---- */

static eas_node *leaf(eas_device *d, eas_dtype dt, int rank, const eas_dim *shape, int bd, uint64_t seed)
{
    eas_buffer *buf;
    eas_node *x, *y, *z;
    int64_t n = dim_product(rank, shape);
    uint64_t keep = rng;
    assert_int_equal(eas_buffer_new(d, (size_t)(n ? n : 1) * 4, &buf), EAS_OK);
    rng = seed;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = between(-6, 6);
        if (dt == EAS_F32)
            ((float *)eas_buffer_host(buf))[i] = (float)v / 2;
        else
            ((int32_t *)eas_buffer_host(buf))[i] = (int32_t)v;
    }
    rng = keep;
    assert_int_equal(eas_node_from_buffer(buf, dt == EAS_F32 ? EAS_F32 : EAS_I32, rank, shape, 0, NULL, &x),
                     EAS_OK);
    eas_buffer_release(buf);
    assert_int_equal(eas_node_apply(GRAPH_CAST, 1, &x, 1, (int64_t[]){dt}, &y), EAS_OK);
    assert_int_equal(eas_node_apply(GRAPH_ALIAS, 1, &y, 1, (int64_t[]){bd}, &z), EAS_OK);
    eas_node_release(x);
    eas_node_release(y);
    return z;
}

/* A leaf that derivatives are taken by. */
static eas_node *variable(eas_node *x)
{
    eas_node *v;
    if (!derive)
        return x;
    assert_int_equal(eas_node_variable(x, &v), EAS_OK);
    eas_node_release(x);
    return v;
}

static eas_node *placeholder(eas_dtype dt, int rank, const eas_dim *shape, int bd)
{
    eas_dim sizes[4], n;
    eas_node *x;
    assert_int_equal(eas_dim_symbol("n", &n), EAS_OK);
    for (int i = 0; i < rank; i++)
        sizes[i] = shape[i] == 3 ? n : shape[i];
    assert_int_equal(eas_node_input(npool, dt, rank, sizes, bd, cpu, &x), EAS_OK);
    return x;
}

static void add_leaf(void)
{
    static const eas_dtype dtypes[] = {EAS_F32, EAS_F32,  EAS_F32, EAS_I32, EAS_I64,
                                       EAS_U8,  EAS_BOOL, EAS_F64, EAS_F16};
    static const eas_dim sizes[] = {1, 2, 3, 3, 4, 5, 0, 17};
    eas_dim shape[4];
    int rank = (int)any(5);
    eas_dtype dt = dtypes[any(9)];
    if (derive && (npool == 0 || dtype_is_float(dt)))
        dt = narrow && dtype_is_float(dt) ? dt : EAS_F64;
    for (int i = 0; i < rank; i++)
        shape[i] = sizes[any(i ? 8 : 6)];
    int bd = rank ? (int)any(4) == 0 : 0;
    uint64_t seed = rng | 1;
    tensor t = {variable(leaf(ref, dt, rank, shape, bd, seed)),
                variable(leaf(cpu, dt, rank, shape, bd, seed)), placeholder(dt, rank, shape, bd), true,
                false};
    pool[npool++] = t;
    assert_int_equal(eas_nodes_realize(1, &pool[npool - 1].ref, ref, NULL), EAS_OK);
    char text[128];
    describe(pool[npool - 1].ref, text, sizeof text);
    str_add(&story, "v%d = %s; ", npool - 1, text);
}

/* ---- attributes by their kinds ---- */

static int add_list(int64_t *out, int n, int64_t low, int64_t high)
{
    out[0] = n;
    for (int i = 0; i < n; i++)
        out[1 + i] = between(low, high);
    return 1 + n;
}

/* A list that may be a shape: often x's own, in part or in another order. */
static int add_dims(int64_t *out, const eas_node *x)
{
    int rank = x ? node_logical_rank(x) : 0;
    if (!x || any(3) == 0)
        return add_list(out, (int)any(4), -1, 4);
    out[0] = rank;
    for (int i = 0; i < rank; i++)
        out[1 + i] = any(4) ? node_logical_shape(x)[any(3) ? i : rank - 1 - i] : between(-1, 3);
    if (any(3) == 0 && rank < 6) {
        memmove(out + 2, out + 1, sizeof *out * (size_t)rank);
        out[1] = between(1, 2);
        out[0]++;
    }
    return 1 + (int)out[0];
}

static bool is(const char *kind, size_t len, const char *word)
{
    return strlen(word) == len && !strncmp(kind, word, len);
}

static int add_attribute(const char *kind, const eas_node *x, int64_t *out)
{
    int rank = x ? node_logical_rank(x) : 2;
    size_t len = strcspn(kind, "= ");
    bool none = !strncmp(kind + len, "=None", 5) && any(3) == 0;
    double f = between(0, 4) / 4.0;
    if (is(kind, len, "axis")) {
        out[0] = none ? DIM_NONE : between(-rank, rank - 1 + (any(20) == 0));
        return 1;
    }
    if (is(kind, len, "axes")) {
        if (none)
            return out[0] = -1, 1;
        return add_list(out, rank ? (int)between(0, rank > 2 ? 2 : rank) : 0, -rank, rank ? rank - 1 : 0);
    }
    if (is(kind, len, "dims"))
        return add_dims(out, x);
    if (is(kind, len, "ints")) {
        int n = any(2) ? rank : (int)any(3);
        add_list(out, n, any(3) ? 0 : -2, 2);
        for (int i = 0; i < n && any(2); i++) /* an order of axes */
            out[1 + i] = n - 1 - i;
        return 1 + n;
    }
    if (is(kind, len, "float"))
        return memcpy(out, &f, sizeof f), 1;
    if (is(kind, len, "bool"))
        return out[0] = any(2), 1;
    if (is(kind, len, "dtype"))
        return out[0] = any(EAS_NDTYPES), 1;
    if (is(kind, len, "int"))
        return out[0] = between(any(3) ? 0 : -2, 4), 1;
    int words = 1;
    for (size_t i = 0; i < len; i++)
        words += kind[i] == '|';
    return out[0] = any((uint32_t)words), 1;
}

/* ---- steps ---- */

/* Is its derivative one that jumps? */
static bool has_corners(const graph_row *r)
{
    static const char *const names[] = {"abs",  "maximum", "minimum", "relu",
                                        "clip", "cummax",  "cummin",  "minmax"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(r->name, names[i]))
            return true;
    return r->kind == KIND_REDUCE && strcmp(r->ir, "add");
}

/* Small errors stay small. */
static bool is_smooth(const graph_row *r)
{
    static const char *const names[] = {
        "add",     "sub",    "mul",    "neg",     "abs",       "maximum",  "minimum", "relu",  "tanh",
        "sigmoid", "sin",    "cos",    "softmax", "mean",      "stack",    "roll",    "tile",  "repeat",
        "pad",     "unbind", "outer",  "vecdot",  "tensordot", "dot",      "trace",   "tril",  "triu",
        "clip",    "index",  "cumsum", "cummax",  "cummin",    "diagonal", "minmax",  "square"};
    if (derive && has_corners(r))
        return false;
    switch (r->kind) {
    case KIND_RESHAPE:
    case KIND_PERMUTE:
    case KIND_BROADCAST:
    case KIND_SLICE:
    case KIND_CONCAT:
    case KIND_PAD:
    case KIND_UPDATE:
    case KIND_WINDOW:
    case KIND_GATHER:
    case KIND_ALONG:
    case KIND_MATMUL:
    case KIND_ALIAS: return true;
    case KIND_REDUCE: return strcmp(r->ir, "or") && strcmp(r->ir, "and") && strcmp(r->ir, "mul");
    default: break;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(r->name, names[i]))
            return true;
    return false;
}

/* The sign of a NaN is anybody's. */
static bool asks_sign_of_nan(const graph_row *r, const eas_node *x)
{
    bool asks = !strcmp(r->name, "signbit") || !strcmp(r->name, "copysign");
    for (int64_t i = 0; asks && i < elements(x); i++)
        if (isnan(item(x, i)))
            return true;
    return false;
}

static bool has_slope(const eas_node *n)
{
    return dtype_is_float((eas_dtype)n->dtype) && eas_node_is_taped(n);
}

/* A tensor of the pool, rather a late one; rather one with a derivative, if that is wanted. */
static int choose_input(void)
{
    int i = 0;
    for (int tries = derive ? 3 : 1; tries > 0; tries--) {
        i = any(2) || npool < 4 ? (int)any((uint32_t)npool) : npool - 1 - (int)any(3);
        if (has_slope(pool[i].ref))
            break;
    }
    return i;
}

/* Inputs and attributes for a row; false if it cannot be asked for. */
static bool choose(const graph_row *r, int *in, int *nin, int64_t *attr, int *nattr)
{
    const eas_node *x = NULL;
    *nin = *nattr = 0;
    for (const char *p = r->sig; *p; p += strcspn(p, " "), p += *p == ' ') {
        size_t len = strcspn(p, " :");
        if (p[len] == ':') {
            *nattr += add_attribute(p + len + 1, x, attr + *nattr);
            continue;
        }
        int copies = p[len - 1] == '?' ? (int)any(2) : p[len - 1] == '*' ? (int)between(1, 3) : 1;
        while (copies-- > 0) {
            in[*nin] = choose_input();
            if (*nin == 0)
                x = pool[in[0]].ref;
            if (!pool[in[*nin]].exact &&
                (!is_smooth(r) ||
                 (pool[in[*nin]].large && (r->kind == KIND_MAP || r->kind == KIND_COMPOSITE))))
                return false;
            if (asks_sign_of_nan(r, pool[in[*nin]].ref))
                return false;
            ++*nin;
        }
    }
    return true;
}

static void tell(const graph_row *r, int n, const int *in, int m, const int64_t *attr, const eas_node *out)
{
    char text[128];
    describe(out, text, sizeof text);
    str_add(&story, "v%d = %s(", npool, r->name);
    for (int i = 0; i < n; i++)
        str_add(&story, "%sv%d", i ? ", " : "", in[i]);
    for (int i = 0; i < m; i++)
        str_add(&story, "%s%lld", i ? " " : "; ", (long long)attr[i]);
    str_add(&story, ") = %s; ", text);
}

static bool step(void)
{
    int op = (int)any(GRAPH_NOPS), in[8], n, m;
    int64_t attr[64];
    const graph_row *r = &graph_rows[op];
    if (r->make == make_none || op == GRAPH_CUSTOM || !choose(r, in, &n, attr, &m))
        return false;
    eas_node *a[8], *b[8], *c[8], *x = NULL, *y = NULL, *z = NULL;
    bool symbolic = true;
    for (int i = 0; i < n; i++) {
        a[i] = pool[in[i]].ref;
        b[i] = pool[in[i]].cpu;
        c[i] = pool[in[i]].sym;
        symbolic &= c[i] != NULL;
    }
    eas_status st = eas_node_apply((eas_tensor_op)op, n, a, m, attr, &x);
    if (st) {
        if (strncmp(eas_error_message(), "eager", 5))
            fail_msg("%s fails with '%s'", r->name, eas_error_message());
        assert_null(x);
        return false;
    }
    bool narrowed = derive && !narrow && dtype_is_float((eas_dtype)x->dtype) && x->dtype != EAS_F64;
    bool good =
        !narrowed && elements(x) <= MAX_ELEMENTS && !eas_nodes_realize(1, &x, ref, NULL) && largest(x) < 1e4;
    if (good) {
        assert_int_equal(eas_node_apply((eas_tensor_op)op, n, b, m, attr, &y), EAS_OK);
        if (symbolic && eas_node_apply((eas_tensor_op)op, n, c, m, attr, &z))
            assert_null(z);
        /* a size that happens to be 1 is no reason to squeeze what is only a symbol */
        if (z && z->rank != x->rank) {
            eas_node_release(z);
            z = NULL;
        }
        tell(r, n, in, m, attr, x);
        has_lanes &= !strstr(r->name, "physical") && !strstr(r->name, "batch") && op != GRAPH_ALIAS;
        pool[npool++] = (tensor){x, y, z, is_exact(x), largest(x) > 64};
    } else
        eas_node_release(x);
    return good;
}

static double tolerance_of(eas_dtype dt) { return dt == EAS_F16 ? 4e-3 : dt == EAS_BF16 ? 3e-2 : 1e-4; }

static void compare(int k, const eas_node *y, const char *how, uint64_t seed)
{
    const eas_node *x = pool[k].ref;
    eas_dtype dt = (eas_dtype)x->dtype;
    double scale = fmax(1, largest(x)), tolerance = tolerance_of(dt);
    char a[128], b[128];
    describe(x, a, sizeof a);
    describe(y, b, sizeof b);
    assert_string_equal(a, b);
    for (int64_t i = 0; i < elements(x); i++) {
        double v = item(x, i), w = item(y, i);
        if (v == w || (isnan(v) && isnan(w)) || (dtype_is_float(dt) && fabs(v - w) <= tolerance * scale))
            continue;
        fail_msg("seed %llu: element %lld of v%d is %.9g, %s %.9g\n%s", (unsigned long long)seed,
                 (long long)i, k, v, how, w, story.at);
    }
}

/* The last tensors that have placeholders, as a program; run with the leaves. */
static void as_program(int leaves, uint64_t seed)
{
    eas_node *inputs[8], *args[8], *outs[6], *results[6];
    int which[6], n = 0;
    eas_program *p = NULL;
    for (int i = npool - 1; i >= leaves && n < 6; i--)
        if (pool[i].sym) {
            which[n] = i;
            outs[n++] = pool[i].sym;
        }
    for (int i = 0; i < leaves; i++) {
        inputs[i] = pool[i].sym;
        args[i] = pool[i].cpu;
    }
    if (n == 0)
        return;
    if (eas_program_new(leaves, inputs, n, outs, cpu, &p) ||
        eas_program_run(p, leaves, args, NULL, NULL, results))
        fail_msg("seed %llu: compiled (v%d ...): %s\n%s", (unsigned long long)seed, which[0],
                 eas_error_message(), story.at);
    for (int i = 0; i < n; i++) {
        compare(which[i], results[i], "compiled", seed);
        eas_node_release(results[i]);
    }
    eas_program_release(p);
}

/* ---- derivatives ---- */

enum { MAX_LEAVES = 4, NAMED = 128 };

/* One result, differentiated by the leaves that are floats. */
typedef struct derivative {
    int of, nvars, vars[MAX_LEAVES]; /* numbers in the pool */
    int lanes, extra; /* batch dims of vmaps around it; dims of one more vmap, around the pullback alone */
    bool constant[MAX_LEAVES]; /* no tangent */
    uint64_t seeds[MAX_LEAVES + 1];
    uint64_t graph;
} derivative;
typedef struct slopes {
    eas_node *t[MAX_LEAVES], *ct; /* given */
    eas_node *jt, *grads[MAX_LEAVES]; /* J t, J^T ct; NULL: zero */
} slopes;
static uint64_t identities, zeros, infinite;

static void complain(const derivative *d, const char *what)
{
    fail_msg("seed %llu: derivative of v%d (lanes %d, extra %d): %s\n%s", (unsigned long long)d->graph, d->of,
             d->lanes, d->extra, what, story.at);
}

static void drop_slopes(slopes *s)
{
    for (int i = 0; i < MAX_LEAVES; i++) {
        eas_node_release(s->t[i]);
        eas_node_release(s->grads[i]);
    }
    eas_node_release(s->ct);
    eas_node_release(s->jt);
    *s = (slopes){0};
}

static void complain_of_types(const derivative *d, const char *what, const eas_node *t, const eas_node *x)
{
    char a[NAMED], b[NAMED], text[400];
    describe(t, a, sizeof a);
    describe(x, b, sizeof b);
    snprintf(text, sizeof text, "%s %s, for %s", what, a, b);
    complain(d, text);
}

static void same_type(const derivative *d, const eas_node *t, const eas_node *x, const char *what)
{
    bool fits =
        t->dtype == x->dtype && node_logical_rank(t) == node_logical_rank(x) &&
        !memcmp(node_logical_shape(t), node_logical_shape(x), sizeof(eas_dim) * (size_t)node_logical_rank(x));
    if (!fits || (t->batch_dims != x->batch_dims && !d->lanes && !d->extra))
        complain_of_types(d, what, t, x);
}

/* Both modes, from t and ct. */
static void record(const derivative *d, eas_node *const *in, eas_node *out, slopes *s)
{
    if (eas_nodes_jvp(d->nvars, in, s->t, 1, &out, d->lanes, &s->jt) ||
        eas_nodes_vjp(d->nvars, in, 1, &out, &s->ct, d->lanes, s->grads))
        complain(d, eas_error_message());
    if (s->jt)
        same_type(d, s->jt, out, "J t is");
    for (int i = 0; i < d->nvars; i++)
        if (s->grads[i])
            same_type(d, s->grads[i], in[i], "a gradient is");
}

static void on_device(const derivative *d, eas_device *dev, slopes *s)
{
    eas_node *in[MAX_LEAVES], *all[MAX_LEAVES * 2 + 2], *out = dev == ref ? pool[d->of].ref : pool[d->of].cpu;
    eas_dim shape[GRAPH_MAX_RANK + 1] = {2};
    int n = 0;
    for (int i = 0; i < d->nvars; i++) {
        in[i] = dev == ref ? pool[d->vars[i]].ref : pool[d->vars[i]].cpu;
        if (!d->constant[i])
            all[n++] = s->t[i] = leaf(dev, (eas_dtype)in[i]->dtype, in[i]->rank, node_shape(in[i]),
                                      in[i]->batch_dims, d->seeds[i]);
    }
    memcpy(shape + d->extra, node_shape(out), sizeof *shape * out->rank);
    all[n++] = s->ct = leaf(dev, (eas_dtype)out->dtype, out->rank + d->extra, shape,
                            out->batch_dims + d->extra, d->seeds[MAX_LEAVES]);
    record(d, in, out, s);
    if (s->jt)
        all[n++] = s->jt;
    for (int i = 0; i < d->nvars; i++)
        if (s->grads[i])
            all[n++] = s->grads[i];
    if (eas_nodes_realize(n, all, dev, NULL))
        complain(d, eas_error_message());
}

/* Over placeholders, those of tangents after those of leaves. */
static void as_derived_program(const derivative *d, int leaves, const slopes *given, slopes *s)
{
    eas_node *inputs[2 * MAX_LEAVES + 1], *args[2 * MAX_LEAVES + 1], *in[MAX_LEAVES], *outs[MAX_LEAVES + 1],
        *results[MAX_LEAVES + 1];
    eas_node *out = pool[d->of].sym;
    eas_dim shape[GRAPH_MAX_RANK + 1] = {2};
    eas_program *p = NULL;
    slopes r = {0};
    int n = 0, m = 0;
    for (; n < leaves; n++) {
        inputs[n] = pool[n].sym;
        args[n] = pool[n].cpu;
    }
    for (int i = 0; i < d->nvars; i++) {
        const eas_node *x = in[i] = pool[d->vars[i]].sym;
        if (d->constant[i])
            continue;
        assert_int_equal(
            eas_node_input(n, (eas_dtype)x->dtype, x->rank, node_shape(x), x->batch_dims, cpu, &r.t[i]),
            EAS_OK);
        args[n] = given->t[i];
        inputs[n++] = r.t[i];
    }
    memcpy(shape + d->extra, node_shape(out), sizeof *shape * out->rank);
    assert_int_equal(eas_node_input(n, (eas_dtype)out->dtype, out->rank + d->extra, shape,
                                    out->batch_dims + d->extra, cpu, &r.ct),
                     EAS_OK);
    args[n] = given->ct;
    inputs[n++] = r.ct;
    record(d, in, out, &r);
    if (r.jt)
        outs[m++] = r.jt;
    for (int i = 0; i < d->nvars; i++)
        if (r.grads[i])
            outs[m++] = r.grads[i];
    if (m &&
        (eas_program_new(n, inputs, m, outs, cpu, &p) || eas_program_run(p, n, args, NULL, NULL, results)))
        complain(d, eas_error_message());
    m = 0;
    if (r.jt)
        s->jt = results[m++];
    for (int i = 0; i < d->nvars; i++)
        if (r.grads[i])
            s->grads[i] = results[m++];
    eas_program_release(p);
    drop_slopes(&r);
}

static double length(const eas_node *n)
{
    double sum = 0;
    for (int64_t i = 0; i < elements(n); i++)
        sum += item(n, i) * item(n, i);
    return sqrt(sum);
}

/* The sum of a b, broadcast against each other; *scale grows by what it could be at most. */
static double inner(const derivative *d, const eas_node *a, const eas_node *b, double *scale)
{
    double sum = 0, aa = 0, bb = 0;
    int64_t count = 1, size[GRAPH_MAX_RANK];
    if (!a || !b)
        return 0;
    int rank = a->rank > b->rank ? a->rank : b->rank;
    for (int k = 0; k < rank; k++) {
        int ka = k - (rank - a->rank), kb = k - (rank - b->rank);
        int64_t na = ka < 0 ? 1 : node_shape(a)[ka], nb = kb < 0 ? 1 : node_shape(b)[kb];
        if (na != nb && na != 1 && nb != 1)
            complain_of_types(d, "there is", a, b);
        size[k] = na == 1 ? nb : na;
        count *= size[k];
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t at[2] = {0, 0}, each[2] = {1, 1}, rest = i;
        const eas_node *both[2] = {a, b};
        for (int k = rank - 1; k >= 0; k--) {
            int64_t index = rest % size[k];
            rest /= size[k];
            for (int j = 0; j < 2; j++) {
                int kj = k - (rank - both[j]->rank);
                if (kj >= 0) {
                    at[j] += node_shape(both[j])[kj] == 1 ? 0 : index * each[j];
                    each[j] *= node_shape(both[j])[kj];
                }
            }
        }
        double x = item(a, at[0]), y = item(b, at[1]);
        sum += x * y;
        aa += x * x;
        bb += y * y;
    }
    *scale += sqrt(aa) * sqrt(bb);
    return sum;
}

static bool is_finite(const eas_node *n)
{
    for (int64_t i = 0; n && i < elements(n); i++)
        if (!isfinite(item(n, i)))
            return false;
    return true;
}

/* Of the least precise float that there is. */
static double coarseness(void)
{
    double worst = 1e-9;
    for (int i = 0; i < npool; i++) {
        eas_dtype dt = (eas_dtype)pool[i].ref->dtype;
        if (dtype_is_float(dt) && dt != EAS_F64)
            worst = fmax(worst, 5 * tolerance_of(dt));
    }
    return worst;
}

/* <ct, J t> = <J^T ct, t> */
static bool check_identity(const derivative *d, const slopes *s, const char *how)
{
    double scale = 0, forth = inner(d, s->ct, s->jt, &scale), back = 0;
    bool finite = is_finite(s->jt);
    for (int i = 0; i < d->nvars; i++) { /* slopes that cancel leave what was rounded */
        scale += s->t[i] ? (narrow ? 1 : 1e-3) * length(s->ct) * length(s->t[i]) : 0;
        back += inner(d, s->grads[i], s->t[i], &scale);
        finite &= is_finite(s->grads[i]);
    }
    if (finite && !(fabs(forth - back) <= coarseness() * scale)) {
        char text[200];
        snprintf(text, sizeof text, "on %s <ct, J t> is %.12g, <J^T ct, t> %.12g", how, forth, back);
        complain(d, text);
    }
    return finite;
}

static void same_slope(const derivative *d, const eas_node *x, const eas_node *y, const char *what)
{
    char text[200];
    const eas_node *any_of = x ? x : y;
    double scale = fmax(fmax(1, x ? largest(x) : 0), y ? largest(y) : 0);
    if (!any_of)
        return;
    if (x && y && elements(x) != elements(y))
        complain(d, what);
    for (int64_t i = 0; i < elements(any_of); i++) {
        double v = x ? item(x, i) : 0, w = y ? item(y, i) : 0;
        if (!(fabs(v - w) <= 10 * coarseness() * scale)) {
            snprintf(text, sizeof text, "element %lld of %s is %.12g on ref, and %.12g", (long long)i, what,
                     v, w);
            complain(d, text);
        }
    }
}

static void same_slopes(const derivative *d, const slopes *a, const slopes *b, const char *how)
{
    char what[64];
    snprintf(what, sizeof what, "J t %s", how);
    same_slope(d, a->jt, b->jt, what);
    for (int i = 0; i < d->nvars; i++) {
        snprintf(what, sizeof what, "the gradient by v%d %s", d->vars[i], how);
        same_slope(d, a->grads[i], b->grads[i], what);
    }
}

static void differentiate(int leaves, int k, uint64_t graph)
{
    derivative d = {.of = k, .graph = graph, .lanes = any(2) && has_lanes};
    slopes a = {0}, b = {0}, c = {0};
    d.extra = !d.lanes && any(3) == 0;
    for (int i = 0; i < leaves; i++)
        if (dtype_is_float((eas_dtype)pool[i].ref->dtype)) {
            d.constant[d.nvars] = any(6) == 0;
            d.vars[d.nvars++] = i;
        }
    for (int i = 0; i <= MAX_LEAVES; i++) {
        any(2);
        d.seeds[i] = rng | 1;
    }
    if (d.nvars == 0)
        return;
    on_device(&d, ref, &a);
    on_device(&d, cpu, &b);
    if (check_identity(&d, &a, "ref") && check_identity(&d, &b, "cpu")) {
        same_slopes(&d, &a, &b, "fused");
        if (pool[k].sym) {
            as_derived_program(&d, leaves, &b, &c);
            same_slopes(&d, &a, &c, "compiled");
        }
        identities++;
        zeros += !a.jt;
    } else
        infinite++;
    drop_slopes(&a);
    drop_slopes(&b);
    drop_slopes(&c);
}

/* Of the last results that are floats. */
static void differentiate_some(int leaves, uint64_t graph)
{
    for (int i = npool - 1, n = 0; i >= leaves && n < 3; i--)
        if (has_slope(pool[i].ref) && is_finite(pool[i].ref)) {
            differentiate(leaves, i, graph);
            n++;
        }
}

static void one_graph(uint64_t seed)
{
    eas_node *roots[MAX_POOL];
    rng = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 4; i++)
        any(2);
    int leaves = (int)between(1, MAX_LEAVES), first;
    derive = seed % 4 == 3;
    narrow = seed % 16 == 15;
    has_lanes = true;
    for (int i = 0; i < leaves; i++)
        add_leaf();
    first = npool;
    for (int i = 0, made = 0; i < MAX_TRIES && made < MAX_STEPS; i++)
        made += step();
    if (derive && seed & 16) /* together with what it is the derivative of */
        differentiate_some(leaves, seed);
    for (int i = 0; i < npool; i++)
        roots[i] = pool[i].cpu;
    if (eas_nodes_realize(npool > first + 4 ? 3 : npool, npool > first + 4 ? roots + npool - 3 : roots, cpu,
                          NULL))
        fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, eas_error_message(), story.at);
    if (eas_nodes_realize(npool, roots, cpu, NULL)) /* the rest, partly from what there is now */
        fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, eas_error_message(), story.at);
    for (int i = 0; i < npool; i++)
        compare(i, pool[i].cpu, "fused", seed);
    as_program(leaves, seed);
    if (derive && !(seed & 16))
        differentiate_some(leaves, seed);
    drop_all();
}

static uint64_t graphs = 60, first_seed;

static void random_graphs(void **state)
{
    (void)state;
    assert_int_equal(eas_device_get("ref", &ref), EAS_OK);
    assert_int_equal(eas_device_get("cpu", &cpu), EAS_OK);
    for (uint64_t i = 0; i < graphs; i++)
        one_graph(first_seed + i);
    print_message("%llu derivatives: %llu of them zero; %llu more are not finite\n",
                  (unsigned long long)identities, (unsigned long long)zeros, (unsigned long long)infinite);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_graphs)};
    if (argc > 1)
        graphs = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
