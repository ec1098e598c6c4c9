/* fold.c: reductions, scans and matrix products as loops of their own, in the order of src/ir/fold.c.
 *
 * One thread runs a whole program, so a running result is a variable, or a small array where the order asks
 * for several. The operand is read at places that the loops name; names made here begin with the result's.
 */
#include "ctext.h"

typedef struct folding {
    ct *g;
    const ir_insn *in;
    ir_type from; /* the operand's type */
    eas_dtype dt;
    uint16_t op;
    const char *type, *v; /* of a variable; the prefix of names */
    const char *lane;     /* the type of a vector's lanes */
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
    ct_line(g, "%s = %s;", to, ct_join(g, f->op, f->dt, a, b, 0));
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

/* The chains side by side, so that a compiler sees vectors: chain k takes elements k, k + w, k + 2w and so
 * on. */
static void run_chains(folding *f, int64_t n, int64_t w)
{
    ct *g = f->g;
    const char *k = ct_fmt(g, "%s_k", f->v), *a = ct_fmt(g, "%s_a", f->v), *x = ct_fmt(g, "%s_x", f->v);
    ct_line(g, "for (uint %s_j = 0; %s_j < %lldu; %s_j += %lldu) {", f->v, f->v, (long long)n, f->v,
            (long long)w);
    g->indent++;
    if (n % w)
        ct_line(g, "for (uint k = 0; k < %lldu && %s_j + k < %lldu; ++k) {", (long long)w, f->v,
                (long long)n);
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
    ct_line(g, "%s_c[k] = %s;", f->v, ct_join(g, f->op, f->dt, a, x, 0));
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
    ct_line(g, "    %s = %s;", a, ct_join(g, f->op, f->dt, a, x, 0));
    ct_line(g, "}");
    ct_at at = place(f, "k", every);
    if (every)
        put(f, &at, a);
    ct_close(g);
    if (!every)
        put(f, &at, a);
}

/* ---- reductions in vectors ---- */

static const char *vec_name(const folding *f, char what, int k)
{
    return ct_fmt(f->g, "%s_%c%d", f->v, what, k);
}

/* The vector of elements from `at` on along the axis, in a variable. */
static const char *elements(folding *f, const char *at, int k)
{
    ct *g = f->g;
    const char *along = vec_name(f, 'k', k), *x = vec_name(f, 'x', k);
    ct_line(g, "uint %s = %s;", along, at);
    const ct_at p = place(f, along, true);
    g->vec.var = along;
    const char *e = ct_vec_ref(g, ir_args(g->ir, f->in)[0], &p);
    ct_line(g, "%s%d %s = %s;", f->lane, g->lanes, x, e);
    return x;
}

/* Halves of a vector joined until one element is left. */
static const char *join_lanes(folding *f, const char *x)
{
    ct *g = f->g;
    for (int n = g->lanes / 2; n; n /= 2) {
        const char *r = vec_name(f, 'h', n), *lo = ct_fmt(g, "%s_lo%d", f->v, n),
                   *hi = ct_fmt(g, "%s_hi%d", f->v, n);
        const char *type = n > 1 ? ct_fmt(g, "%s%d", f->lane, n) : f->lane;
        ct_line(g, "%s %s = %s.%s, %s = %s.%s;", type, lo, x, n > 1 ? "lo" : "x", hi, x, n > 1 ? "hi" : "y");
        ct_line(g, "%s %s = %s;", type, r,
                ct_join(g, f->op, f->dt, lo, hi, f->dt == EAS_BOOL || n > 1 ? n : 0));
        x = r;
    }
    return f->dt == EAS_BOOL ? ct_fmt(g, "(%s != 0)", x) : x;
}

/* The running results as vectors; they are as many as a power of two, and all of them take part in every
 * round. */
static void reduce_vectors(folding *f, int64_t n, int64_t w)
{
    ct *g = f->g;
    const int W = g->lanes;
    int many = (int)w / W;
    for (int k = 0; k < many; k++)
        ct_line(g, "%s%d %s;", f->lane, W, vec_name(f, 'c', k));
    for (int round = 0; round < (n > w ? 2 : 1); round++) {
        if (round)
            ct_line(g, "for (uint %s_j = %lldu; %s_j < %lldu; %s_j += %lldu) {", f->v, (long long)w, f->v,
                    (long long)n, f->v, (long long)w);
        else
            ct_line(g, "{");
        g->indent++;
        ct_new_scope(g);
        for (int k = 0; k < many; k++) {
            const char *c = vec_name(f, 'c', k),
                       *x = elements(
                           f, round ? ct_fmt(g, "%s_j + %du", f->v, k * W) : ct_fmt(g, "%du", k * W), k);
            ct_line(g, "%s = %s;", c, round ? ct_join(g, f->op, f->dt, c, x, W) : x);
        }
        ct_close(g);
    }
    while (many /= 2)
        for (int k = 0; k < many; k++) {
            const char *c = vec_name(f, 'c', k);
            ct_line(g, "%s = %s;", c, ct_join(g, f->op, f->dt, c, vec_name(f, 'c', k + many), W));
        }
    const ct_at at = place(f, NULL, false);
    put(f, &at, join_lanes(f, vec_name(f, 'c', 0)));
}

static bool joins_in_vectors(const folding *f)
{
    return f->dt == EAS_BOOL || f->dt == EAS_F32 || f->dt == EAS_F64 ||
           (dtype_is_int(f->dt) && dtype_bits(f->dt) >= 32);
}

static bool reduces_last(folding *f)
{
    const int64_t n = f->from.dim[f->in->imm], chains = ir_chains(f->dt), w = n < chains ? n : chains;
    if (n % w || w % f->g->lanes || (w & (w - 1)))
        return false;
    const ct_vec_mark m = ct_vec_begin(f->g);
    reduce_vectors(f, n, w);
    return ct_vec_end(f->g, &m);
}

/* ---- scans ---- */

/* A scan along the last axis, in the order that is part of its meaning: chunks of IR_CHUNK elements are
 * scanned by doubling (each element joins the one 1, 2, 4, ... before it), then every element of a chunk
 * joins the last result of the chunk before. */
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
    ct_line(g, "%s_c[k] = %s;", v, ct_join(g, f->op, f->dt, ct_fmt(g, "%s_a", v), ct_fmt(g, "%s_b", v), 0));
    ct_close(g);
    ct_close(g);
    ct_line(g, "for (uint k = 0; k < %s_m; ++k) {", v);
    g->indent++;
    ct_line(g, "uint %s = %s_k + k;", i, v);
    ct_line(g, "%s %s_b = %s_c[k];", f->type, v, v);
    ct_line(g, "if (%s_k > 0) {", v);
    ct_line(g, "    %s_b = %s;", v, ct_join(g, f->op, f->dt, ct_fmt(g, "%s_l", v), ct_fmt(g, "%s_b", v), 0));
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

/* A product in rectangles of the result: `rows` x `wide` vectors of running sums in variables, so that an
 * element of x and a vector of y serve several. Before that a strip of y, as wide as the rectangle, is
 * copied to where its rows are neighbours. One fma a step and k ascending, as everywhere. */
typedef struct tiling {
    folding *f;
    const uint32_t *a; /* x, y, what to begin with */
    ir_type to;
    int64_t K;
    int lanes, wide; /* of a vector; vectors of a row */
} tiling;
enum { TILE_ROWS = 6, TILE_WIDE = 2 };

static const char *plus(ct *g, const char *x, int64_t n)
{
    return n ? ct_fmt(g, "%s + %lldu", x, (long long)n) : x;
}

static void open_part(ct *g, const char *var, int64_t lo, int64_t hi, int64_t step)
{
    ct_line(g, "for (uint %s = %lldu; %s < %lldu; %s += %lldu) {", var, (long long)lo, var, (long long)hi,
            var, (long long)step);
    g->indent++;
}

static const char *sum_name(const tiling *t, int r, int c)
{
    return ct_fmt(t->f->g, "%s_t%d_%d", t->f->v, r, c);
}

/* The strip of y at column j. */
static void copy_strip(const tiling *t)
{
    ct *g = t->f->g;
    const int width = t->lanes * t->wide;
    ct_line(g, "%s %s_y[%lld];", t->f->type, t->f->v, (long long)t->K * width);
    ct_open(g, "k", t->K);
    const char *l = ct_fmt(g, "%s_l", t->f->v);
    ct_open(g, l, width);
    ct_new_scope(g);
    const char *y = entry(g, t->a[1], "k", ct_fmt(g, "j + %s", l));
    ct_line(g, "%s_y[k * %du + %s] = %s;", t->f->v, width, l, y);
    ct_close(g);
    ct_close(g);
}

/* The vector at row and column of what the sums begin with. */
static const char *start_vector(const tiling *t, const char *row, const char *col)
{
    ct *g = t->f->g;
    bool aligned;
    const uint32_t leaf = ct_leaf(g->ir, t->a[2], &aligned);
    const ct_at at = {.dim = {t->to.dim[0] == 1 ? "0" : row, col}};
    if (aligned && g->array[leaf])
        return g->d->vec_load(g, t->f->type, t->lanes, ct_name(g, leaf), ct_flat(g, t->to, &at));
    const char *e[CT_MAX_VEC];
    bool same = true;
    for (int l = 0; l < t->lanes; l++) {
        e[l] = entry(g, t->a[2], row, plus(g, col, l));
        same = same && !strcmp(e[0], e[l]);
    }
    return same ? g->d->vec_splat(g, t->f->type, t->lanes, e[0]) : g->d->vec_of(g, t->f->type, t->lanes, e);
}

static void begin_sums(const tiling *t, int rows)
{
    ct *g = t->f->g;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < t->wide; c++) {
            const char *x = start_vector(t, plus(g, "i", r), plus(g, "j", c * t->lanes));
            ct_line(g, "%s%d %s = %s;", t->f->type, t->lanes, sum_name(t, r, c), x);
        }
}

static void step_sums(const tiling *t, int rows)
{
    ct *g = t->f->g;
    const char *v = t->f->v;
    ct_open(g, "k", t->K);
    ct_new_scope(g);
    for (int c = 0; c < t->wide; c++) {
        const char *at = plus(g, ct_fmt(g, "k * %du", t->lanes * t->wide), c * t->lanes);
        ct_line(g, "%s%d %s_y%d = %s;", t->f->type, t->lanes, v, c,
                g->d->vec_load(g, t->f->type, t->lanes, ct_fmt(g, "%s_y", v), at));
    }
    for (int r = 0; r < rows; r++) {
        const char *x = entry(g, t->a[0], plus(g, "i", r), "k");
        ct_line(g, "%s%d %s_x%d = %s;", t->f->type, t->lanes, v, r,
                g->d->vec_splat(g, t->f->type, t->lanes, x));
        for (int c = 0; c < t->wide; c++)
            ct_line(g, "%s = fma(%s_x%d, %s_y%d, %s);", sum_name(t, r, c), v, r, v, c, sum_name(t, r, c));
    }
    ct_close(g);
}

static void end_sums(const tiling *t, int rows)
{
    ct *g = t->f->g;
    const uint32_t to = t->f->in->res;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < t->wide; c++) {
            const ct_at at = {.dim = {t->to.dim[0] == 1 ? "0" : plus(g, "i", r), plus(g, "j", c * t->lanes)}};
            g->d->vec_store(g, t->lanes, ct_name(g, to), ct_flat(g, t->to, &at), sum_name(t, r, c));
        }
}

/* Rows lo to hi, so many at once. */
static void tile_rows(const tiling *t, int64_t lo, int64_t hi, int rows)
{
    if (lo == hi)
        return;
    open_part(t->f->g, "i", lo, hi, rows);
    ct_new_scope(t->f->g);
    begin_sums(t, rows);
    step_sums(t, rows);
    end_sums(t, rows);
    ct_close(t->f->g);
}

/* Columns from lo on, as far as rectangles of this width go; returns where they end. */
static int64_t tile_columns(tiling *t, int64_t lo, int wide)
{
    const int64_t width = (int64_t)wide * t->lanes, hi = lo + (t->to.dim[1] - lo) / width * width,
                  M = t->to.dim[0];
    if (lo == hi)
        return lo;
    t->wide = wide;
    open_part(t->f->g, "j", lo, hi, width);
    copy_strip(t);
    tile_rows(t, 0, M / TILE_ROWS * TILE_ROWS, TILE_ROWS);
    tile_rows(t, M / TILE_ROWS * TILE_ROWS, M, (int)(M % TILE_ROWS));
    ct_close(t->f->g);
    return hi;
}

/* The columns that are left, one by one. */
static void last_columns(const tiling *t, int64_t lo)
{
    folding *f = t->f;
    ct *g = f->g;
    if (lo == t->to.dim[1])
        return;
    ct_open(g, "i", t->to.dim[0]);
    open_part(g, "j", lo, t->to.dim[1], 1);
    ct_new_scope(g);
    const char *start = entry(g, t->a[2], "i", "j");
    ct_line(g, "%s %s_a = %s;", f->type, f->v, start);
    ct_open(g, "k", t->K);
    const char *x = entry(g, t->a[0], "i", "k"), *y = entry(g, t->a[1], "k", "j");
    ct_line(g, "%s_a = fma(%s, %s, %s_a);", f->v, x, y, f->v);
    ct_close(g);
    const ct_at at = {.dim = {t->to.dim[0] == 1 ? "0" : "i", t->to.dim[1] == 1 ? "0" : "j"}};
    put(f, &at, ct_fmt(g, "%s_a", f->v));
    ct_close(g);
    ct_close(g);
}

static int product_lanes(const folding *f)
{
    const int n = f->g->lanes;
    return !n ? f->g->d->vec : f->dt == EAS_F64 && n > 4 ? n / 2 : n;
}

static void matmul(folding *f)
{
    ct *g = f->g;
    tiling t = {.f = f,
                .a = ir_args(g->ir, f->in),
                .to = ir_typeof(g->ir, f->in->res),
                .K = f->from.dim[1],
                .lanes = product_lanes(f)};
    int64_t done = tile_columns(&t, 0, TILE_WIDE);
    last_columns(&t, tile_columns(&t, done, 1));
}

void ct_fold(ct *g, const ir_insn *in)
{
    folding f = {.g = g,
                 .in = in,
                 .from = ir_typeof(g->ir, ir_args(g->ir, in)[0]),
                 .op = ir_join_of(in->op),
                 .v = ct_fmt(g, "v%u", (unsigned)in->res)};
    f.dt = (eas_dtype)f.from.dtype;
    f.type = g->d->type[f.dt];
    f.lane = f.dt == EAS_BOOL ? "int" : f.type;
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
        else if (!(g->lanes && joins_in_vectors(&f) && reduces_last(&f)))
            reduce_last(&f);
    }
    close_all(&f);
    ct_close(g);
    ct_new_scope(g);
}
