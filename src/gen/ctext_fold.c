/* ctext_fold.c: reductions, scans and matrix products as loops of their own, in the order of src/ir/fold.c.
 *
 * One thread runs a whole program, so a running result is a variable, or a small array where the order asks for several. The operand is read at places that the loops
 * name; names made here begin with the result's.
 */
#include "ctext.h"

typedef struct folding {
    ct *g;
    const ir_insn *in;
    ir_type from; /* the operand's type */
    eas_dtype dt;
    uint16_t op;
    const char *type, *v; /* of a variable; the prefix of names */
    int open;             /* loops around */
} folding;

static bool last_axis(const folding *f)
{
    for (int d = (int)f->in->imm + 1; d < f->from.rank; d++)
        if (f->from.dim[d] != 1)
            return false;
    return true;
}

/* Loops over all axes but the folded one. */
static void open_others(folding *f)
{
    for (int d = 0; d < f->from.rank; d++)
        if (d != f->in->imm && f->from.dim[d] != 1) {
            ct_open(f->g, ct_lane_var[d], f->from.dim[d]);
            f->open++;
        }
}

static void close_all(folding *f)
{
    for (; f->open; f->open--)
        ct_close(f->g);
}

static ct_at place(const folding *f, const char *along, bool keep)
{
    ct_at at = {0};
    int n = 0;
    for (int d = 0; d < f->from.rank; d++)
        if (d != f->in->imm || keep)
            at.dim[n++] = f->from.dim[d] == 1 ? "0" : d == f->in->imm ? along : ct_lane_var[d];
    return at;
}

static const char *element(folding *f, const char *along)
{
    ct_at at = place(f, along, true);
    ct_new_scope(f->g);
    return ct_ref(f->g, ir_args(f->g->ir, f->in)[0], &at);
}

static void put(folding *f, const ct_at *at, const char *x)
{
    ct *g = f->g;
    const uint32_t r = f->in->res;
    if (g->array[r])
        ct_line(g, "%s[%s] = %s;", ct_name(g, r), ct_flat(g, ir_typeof(g->ir, r), at), x);
    else
        ct_line(g, "%s = %s;", ct_name(g, r), x);
}

/* to = to joined with from, both places of an array */
static void join_places(folding *f, const char *to, const char *from)
{
    ct *g = f->g;
    const char *a = ct_fmt(g, "%s_a", f->v), *b = ct_fmt(g, "%s_b", f->v);
    ct_line(g, "%s %s = %s;", f->type, a, to);
    ct_line(g, "%s %s = %s;", f->type, b, from);
    ct_line(g, "%s = %s;", to, ct_join(g, f->op, f->dt, a, b));
}

/* ---- reductions ---- */

static void join_chains(folding *f, int64_t w)
{
    ct *g = f->g;
    int64_t p = 1;
    const char *here = ct_fmt(g, "%s_c[k]", f->v);
    while (2 * p <= w)
        p *= 2;
    if (w > p) {
        ct_open(g, "k", w - p);
        join_places(f, here, ct_fmt(g, "%s_c[k + %lldu]", f->v, (long long)p));
        ct_close(g);
    }
    if (p == 1)
        return;
    ct_line(g, "for (uint %s_s = %lldu; %s_s > 0; %s_s /= 2) {", f->v, (long long)p / 2, f->v, f->v);
    g->indent++;
    ct_line(g, "for (uint k = 0; k < %s_s; ++k) {", f->v);
    g->indent++;
    join_places(f, here, ct_fmt(g, "%s_c[k + %s_s]", f->v, f->v));
    ct_close(g);
    ct_close(g);
}

/* The chains side by side, so that a compiler sees vectors: chain k takes elements k, k + w, k + 2w and so on. */
static void run_chains(folding *f, int64_t n, int64_t w)
{
    ct *g = f->g;
    const char *k = ct_fmt(g, "%s_k", f->v), *a = ct_fmt(g, "%s_a", f->v), *x = ct_fmt(g, "%s_x", f->v);
    ct_line(g, "for (uint %s_j = 0; %s_j < %lldu; %s_j += %lldu) {", f->v, f->v, (long long)n, f->v, (long long)w);
    g->indent++;
    if (n % w)
        ct_line(g, "for (uint k = 0; k < %lldu && %s_j + k < %lldu; ++k) {", (long long)w, f->v, (long long)n);
    else
        ct_line(g, "for (uint k = 0; k < %lldu; ++k) {", (long long)w);
    g->indent++;
    ct_line(g, "uint %s = %s_j + k;", k, f->v);
    const char *e = element(f, k);
    ct_line(g, "%s %s = %s;", f->type, x, e);
    ct_line(g, "if (%s_j == 0) {", f->v);
    ct_line(g, "    %s_c[k] = %s;", f->v, x);
    ct_line(g, "} else {");
    g->indent++;
    ct_line(g, "%s %s = %s_c[k];", f->type, a, f->v);
    ct_line(g, "%s_c[k] = %s;", f->v, ct_join(g, f->op, f->dt, a, x));
    ct_close(g);
    ct_close(g);
    ct_close(g);
}

static void reduce_last(folding *f)
{
    ct *g = f->g;
    const int64_t n = f->from.dim[f->in->imm], chains = ir_chains(f->dt), w = n < chains ? n : chains;
    ct_line(g, "%s %s_c[%lld];", f->type, f->v, (long long)w);
    if (n > chains) {
        run_chains(f, n, w);
    } else {
        ct_open(g, "k", n);
        const char *x = element(f, "k");
        ct_line(g, "%s_c[k] = %s;", f->v, x);
        ct_close(g);
    }
    join_chains(f, w);
    const ct_at at = place(f, NULL, false);
    put(f, &at, ct_fmt(g, "%s_c[0]", f->v));
}

/* One running result; with every: each one is stored. */
static void run_along(folding *f, bool every)
{
    ct *g = f->g;
    const char *a = ct_fmt(g, "%s_a", f->v), *x = ct_fmt(g, "%s_x", f->v);
    ct_line(g, "%s %s;", f->type, a);
    ct_open(g, "k", f->from.dim[f->in->imm]);
    const char *e = element(f, "k");
    ct_line(g, "%s %s = %s;", f->type, x, e);
    ct_line(g, "if (k == 0) {");
    ct_line(g, "    %s = %s;", a, x);
    ct_line(g, "} else {");
    ct_line(g, "    %s = %s;", a, ct_join(g, f->op, f->dt, a, x));
    ct_line(g, "}");
    ct_at at = place(f, "k", every);
    if (every)
        put(f, &at, a);
    ct_close(g);
    if (!every)
        put(f, &at, a);
}

/* ---- scans ---- */

static void scan_last(folding *f)
{
    ct *g = f->g;
    const int64_t n = f->from.dim[f->in->imm];
    const char *v = f->v, *i = ct_fmt(g, "%s_i", v);
    ct_line(g, "%s %s_l;", f->type, v); /* the last result of the chunk before */
    ct_line(g, "for (uint %s_k = 0; %s_k < %lldu; %s_k += %du) {", v, v, (long long)n, v, (int)IR_CHUNK);
    g->indent++;
    ct_line(g, "%s %s_c[%d];", f->type, v, (int)IR_CHUNK);
    ct_line(g, "uint %s_m = min(%lldu - %s_k, %du);", v, (long long)n, v, (int)IR_CHUNK);
    ct_line(g, "for (uint k = 0; k < %s_m; ++k) {", v);
    g->indent++;
    ct_line(g, "uint %s = %s_k + k;", i, v);
    const char *x = element(f, i);
    ct_line(g, "%s_c[k] = %s;", v, x);
    ct_close(g);
    ct_line(g, "for (uint %s_s = 1; %s_s < %s_m; %s_s *= 2) {", v, v, v, v);
    g->indent++;
    ct_line(g, "for (uint k = %s_m - 1; k >= %s_s; --k) {", v, v);
    g->indent++;
    ct_line(g, "%s %s_a = %s_c[k - %s_s];", f->type, v, v, v);
    ct_line(g, "%s %s_b = %s_c[k];", f->type, v, v);
    ct_line(g, "%s_c[k] = %s;", v, ct_join(g, f->op, f->dt, ct_fmt(g, "%s_a", v), ct_fmt(g, "%s_b", v)));
    ct_close(g);
    ct_close(g);
    ct_line(g, "for (uint k = 0; k < %s_m; ++k) {", v);
    g->indent++;
    ct_line(g, "uint %s = %s_k + k;", i, v);
    ct_line(g, "%s %s_b = %s_c[k];", f->type, v, v);
    ct_line(g, "if (%s_k > 0) {", v);
    ct_line(g, "    %s_b = %s;", v, ct_join(g, f->op, f->dt, ct_fmt(g, "%s_l", v), ct_fmt(g, "%s_b", v)));
    ct_line(g, "}");
    const ct_at at = place(f, i, true);
    put(f, &at, ct_fmt(g, "%s_b", v));
    ct_line(g, "%s_c[k] = %s_b;", v, v);
    ct_close(g);
    ct_line(g, "%s_l = %s_c[%s_m - 1];", v, v, v);
    ct_close(g);
}

/* ---- matrix products ---- */

static const char *entry(ct *g, uint32_t v, const char *row, const char *col)
{
    const ir_type t = ir_typeof(g->ir, v);
    const ct_at at = {.dim = {t.dim[0] == 1 ? "0" : row, t.dim[1] == 1 ? "0" : col}};
    return ct_ref(g, v, &at);
}

static void matmul(folding *f)
{
    ct *g = f->g;
    const uint32_t *a = ir_args(g->ir, f->in);
    const ir_type to = ir_typeof(g->ir, f->in->res);
    ct_open(g, "i", to.dim[0]);
    ct_open(g, "j", to.dim[1]);
    ct_new_scope(g);
    const char *start = entry(g, a[2], "i", "j");
    ct_line(g, "%s %s_a = %s;", f->type, f->v, start);
    ct_open(g, "k", f->from.dim[1]);
    const char *x = entry(g, a[0], "i", "k"), *y = entry(g, a[1], "k", "j");
    ct_line(g, "%s_a = fma(%s, %s, %s_a);", f->v, x, y, f->v);
    ct_close(g);
    const ct_at at = {.dim = {to.dim[0] == 1 ? "0" : "i", to.dim[1] == 1 ? "0" : "j"}};
    put(f, &at, ct_fmt(g, "%s_a", f->v));
    f->open = 2;
}

void ct_fold(ct *g, const ir_insn *in)
{
    folding f = {
        .g = g, .in = in, .from = ir_typeof(g->ir, ir_args(g->ir, in)[0]), .op = ir_join_of(in->op), .v = ct_fmt(g, "v%u", (unsigned)in->res)};
    f.dt = (eas_dtype)f.from.dtype;
    f.type = g->d->type[f.dt];
    ct_line(g, "{");
    g->indent++;
    if (in->op == IR_MATMUL) {
        matmul(&f);
    } else {
        const bool every = ir_rows[in->op].rule == IR_RULE_SCAN;
        open_others(&f);
        if (!last_axis(&f))
            run_along(&f, every);
        else if (every)
            scan_last(&f);
        else
            reduce_last(&f);
    }
    close_all(&f);
    ct_close(g);
    ct_new_scope(g);
}
