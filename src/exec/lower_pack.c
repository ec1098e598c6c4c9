/* lower_pack.c: large matrix products, laid out for the register tiles of the processor.
 *
 * Up to three kernels. The first copies the right factor into panels as wide as a register tile, one behind
 * the other, so that the product reads it in the order of memory. The second does as much for the left
 * factor, row by row, if it does not lie so already. In the third a program multiplies a block of rows, which
 * stays in the second cache, by one panel, register tile after register tile, and prefetches the next
 * program's panel meanwhile. What follows the product comes on top. Factors that are both bf16 are not laid
 * out for a device that multiplies bf16: its products do that by themselves, block by block (lower_matmul.c).
 * Panels are full: what lies beyond the matrix is 0. The last block of rows begins early enough to be full,
 * too: a few rows are computed twice, to the same bits.
 */
#include "exec.h"

enum {
    FEWEST_ROWS = 48,
    LEAST_WORK = 1 << 21,
    MOST_K = 2048,
    PACK_ROWS = 64,
    PACK_COLS = 64,
    PACK_PANELS = 8,
    PACK_FEW = 16,
    FEWEST_HALVES = 32
};
enum {
    BLOCK_BYTES = 512 << 10, /* of the left factor in a block */
    MOST_ROWS = 128,         /* of one */
    PROGRAMS = 64,           /* so many are worth smaller blocks */
    WIDE_BYTES = 256,        /* of a panel's row, at least, for a right factor that is read in place */
    SMALL_BYTES = 1 << 19,   /* of such a factor, at most */
    PAGE_BYTES = 4096,       /* lines so far apart share their place in the first cache */
};

typedef struct panels {
    const pnode *p, *x, *y;
    eas_dtype sum;
    int64_t m, n, k;
    int64_t rows, cols;      /* of a program's result */
    int64_t blocks, panels;  /* down, across */
    int64_t step, steps;     /* along K */
} panels;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static panels panels_of(const fusion *f, const group *g)
{
    panels t = {.p = pass_at(f->g, g->core)};
    t.x = pass_at(f->g, t.p->in[0]);
    t.y = pass_at(f->g, t.p->in[1]);
    t.sum = t.x->dtype == EAS_F64 || t.y->dtype == EAS_F64 ? EAS_F64 : EAS_F32;
    t.m = t.p->shape[t.p->rank - 2];
    t.n = t.p->shape[t.p->rank - 1];
    t.k = t.x->shape[t.x->rank - 1];
    return t;
}

static void cut_across(panels *t, const dev_tile *size)
{
    t->cols = size->bytes / (int64_t)eas_dtype_size(t->sum);
    t->panels = ceil_div(t->n, t->cols);
}

/* Blocks as large as the cache likes, but enough of them for all threads. */
static void cut_down(panels *t)
{
    int64_t rows = BLOCK_BYTES / (t->step * (int64_t)eas_dtype_size(t->sum));
    rows = rows > MOST_ROWS ? MOST_ROWS : rows < FEWEST_ROWS ? FEWEST_ROWS : rows;
    if (ceil_div(t->m, rows) * t->panels < PROGRAMS)
        rows = FEWEST_ROWS;
    t->blocks = ceil_div(t->m, rows);
    t->rows = ceil_div(t->m, t->blocks);
}

/* The first tile of the device's list is the fastest; another one is taken if it computes much less beyond
 * the edges of the matrix. */
static void choose(const fusion *f, panels *t)
{
    cut_across(t, &f->tile[0]);
    for (int i = 1; i < DEV_TILES && f->tile[i].rows; i++) {
        panels other = *t;
        cut_across(&other, &f->tile[i]);
        if (other.panels * other.cols * 65 < t->panels * t->cols * 64)
            *t = other;
    }
    t->steps = ceil_div(t->k, MOST_K);
    t->step = ceil_div(t->k, t->steps);
    cut_down(t);
}

bool pack_wanted(const fusion *f, const group *g)
{
    if (g->kind != GROUP_MATMUL || !f->tile[0].rows || f->variant)
        return false;
    const panels t = panels_of(f, g);
    for (int i = 0; i < t.p->rank; i++)
        if (!dim_known(t.p->shape[i]))
            return false;
    if (!dim_known(t.k) || !dtype_is_float((eas_dtype)t.x->dtype) || t.p->rank + 1 > MAX_DIMS)
        return false;
    if (f->bf16_products && t.k >= FEWEST_HALVES && t.x->dtype == EAS_BF16 && t.y->dtype == EAS_BF16)
        return false;
    return t.m >= FEWEST_ROWS && t.n * (int64_t)eas_dtype_size(t.sum) >= f->tile[0].bytes &&
           t.k >= f->tile[0].rows && t.m * t.n >= LEAST_WORK / t.k;
}

/* If the factor lies in memory row by row, as the product reads it: the distance of rows in bytes; else 0. */
static int64_t rows_apart(const fusion *f, const panels *t, uint32_t id)
{
    const pnode *x = pass_at(f->g, id);
    eas_dim offset, strides[MAX_DIMS];
    if (!fused_stored(f, id) || x->dtype != t->sum || t->steps > 1)
        return 0;
    leaf_strides(f->g, id, &offset, strides);
    const eas_dim rows = strides[x->rank - 2];
    return strides[x->rank - 1] == 1 && dim_known(rows) && rows > 0 ? rows * (int64_t)eas_dtype_size(t->sum)
                                                                    : 0;
}

bool pack_copies(const fusion *f, const group *g, int part)
{
    panels t = panels_of(f, g);
    choose(f, &t);
    if (part == PACK_LEFT)
        return !rows_apart(f, &t, t.p->in[0]);
    if (part == PACK_PRODUCT)
        return true;
    /* A small factor is read where it lies, from the second cache, unless the distance of its rows maps all
     * of them to a few sets of the first cache. */
    const int64_t apart = rows_apart(f, &t, t.p->in[1]);
    return !apart || t.cols * (int64_t)eas_dtype_size(t.sum) < WIDE_BYTES || t.n % t.cols ||
           apart * t.k > SMALL_BYTES || apart % PAGE_BYTES == 0;
}

/* The shape of a packed factor, leading dims included. */
static int packed_shape(const panels *t, bool right, eas_dim *shape)
{
    const pnode *x = right ? t->y : t->x;
    int n = x->rank - 2;
    memcpy(shape, x->shape, sizeof *shape * (size_t)n);
    shape[n++] = right ? t->panels : t->m;
    shape[n++] = t->step * t->steps;
    if (right)
        shape[n++] = t->cols;
    return n;
}

void pack_uses(const lowering *w, VEC_USE *out, bool *oom)
{
    const lower *l = &w->l;
    panels t = panels_of(l->f, l->grp);
    eas_dim shape[MAX_DIMS + 1];
    choose(l->f, &t);
    for (int right = 0; right < 2; right++) {
        const int part = right ? PACK_RIGHT : PACK_LEFT;
        if (w->part == PACK_PRODUCT ? !pack_copies(l->f, l->grp, part) : w->part != part)
            continue;
        int rank = packed_shape(&t, right, shape);
        use u = {.what = USE_PACKED,
                 .node = (uint32_t)right,
                 .dim = shape_count(rank, shape),
                 .dtype = (uint8_t)t.sum,
                 .written = w->part != PACK_PRODUCT};
        *oom |= !vec_push(out, u);
    }
}

/* ---- laying out ---- */

/* v as a block in the dtype of the sums, 0 where it is not ok. */
static eas_value filled(lower *l, const panels *t, eas_value v, eas_value ok, int rank, const int64_t *shape)
{
    v = eas_builder_broadcast(l->b, eas_builder_cast(l->b, v, t->sum), rank, shape);
    return ok ? eas_builder_apply(l->b, eas_op_find("where"), ok, v,
                                  eas_builder_const_typed(l->b, t->sum, 0, 0))
              : v;
}

/* A block of a factor, rows by r and columns by c. */
static eas_value block(lower *l, const panels *t, uint32_t id, lindex *at, lindex r, lindex c, int64_t nr,
                       int64_t nc)
{
    const pnode *x = pass_at(l->g, id);
    at[x->rank - 2] = r;
    at[x->rank - 1] = c;
    return filled(l, t, low_value(l, id, at, NULL), low_and(l, r.ok, c.ok), 2, (int64_t[]){nr, nc});
}

static lindex along(lower *l, int program, int axis, int64_t n, int64_t size)
{
    return low_along(l, low_bin(l, "mul", eas_builder_program_id(l->b, program), low_int(l, n)), axis, n,
                     size);
}

static lindex inside(lower *l, lindex x, int64_t n, int64_t size)
{
    return (lindex){x.v, size % n == 0 ? 0 : low_bin(l, "lt", x.v, low_int(l, size))};
}

static void store_packed(lowering *w, const panels *t, bool right, const lindex *at, eas_value v)
{
    lower *l = &w->l;
    eas_dim shape[MAX_DIMS + 1];
    eas_value ok = 0, off = low_offset(l, packed_shape(t, right, shape), shape, at, &ok);
    eas_builder_store(l->b, w->scratch[right], off, v, ok);
}

/* Does the factor lie by columns? Then blocks of it are turned while they are read. */
static bool by_columns(const lower *l, uint32_t id)
{
    const pnode *x = pass_at(l->g, id);
    eas_dim offset, strides[MAX_DIMS];
    while ((x->kind == KIND_MAP || x->kind == KIND_CAST) && x->nin && !fused_stored(l->f, id) &&
           pass_at(l->g, x->in[0])->rank == x->rank) {
        id = x->in[0];
        x = pass_at(l->g, id);
    }
    if (x->kind == KIND_PERMUTE && !fused_stored(l->f, id))
        return x->words[x->rank - 1] != x->rank - 1;
    leaf_strides(l->g, id, &offset, strides);
    return fused_stored(l->f, id) && strides[x->rank - 1] != 1;
}

/* Several panels at a time, so that whole stretches of a row are read. */
static void lay_out_rows(lowering *w, const panels *t)
{
    lower *l = &w->l;
    const int n = t->y->rank - 2;
    const int64_t deep = t->step * t->steps, wide = t->panels < PACK_PANELS ? t->panels : PACK_PANELS;
    lindex at[MAX_DIMS + 1] = {{0, 0}}, there[MAX_DIMS + 1];
    l->nblock = 3;
    w->use->grid[0] = ceil_div(t->panels, wide);
    w->use->grid[1] = ceil_div(deep, PACK_FEW);
    w->use->grid[2] = low_spread(l, 2, n, t->y->shape, 0, at);
    memcpy(there, at, sizeof at);
    lindex r = along(l, 1, 0, PACK_FEW, t->k), panel = along(l, 0, 1, wide, t->panels);
    eas_value c =
        low_bin(l, "add", low_bin(l, "mul", panel.v, low_int(l, t->cols)), low_lanes(l, 2, t->cols));
    at[n] = r;
    at[n + 1] = (lindex){c, t->n % (wide * t->cols) == 0 ? 0 : low_bin(l, "lt", c, low_int(l, t->n))};
    eas_value v = filled(l, t, low_value(l, t->p->in[1], at, NULL), low_and(l, at[n].ok, at[n + 1].ok), 3,
                         (int64_t[]){PACK_FEW, wide, t->cols});
    there[n] = panel;
    there[n + 1] = inside(l, r, PACK_FEW, deep);
    there[n + 2] = (lindex){low_lanes(l, 2, t->cols), 0};
    store_packed(w, t, true, there, v);
}

static void lay_out_columns(lowering *w, const panels *t)
{
    lower *l = &w->l;
    const int n = t->y->rank - 2;
    const int64_t deep = t->step * t->steps;
    lindex at[MAX_DIMS + 1] = {{0, 0}}, there[MAX_DIMS + 1];
    w->use->grid[0] = t->panels;
    w->use->grid[1] = ceil_div(deep, PACK_ROWS);
    w->use->grid[2] = low_spread(l, 2, n, t->y->shape, 0, at);
    memcpy(there, at, sizeof at);
    lindex r = along(l, 1, 0, PACK_ROWS, t->k), c = along(l, 0, 1, t->cols, t->n);
    eas_value v = block(l, t, t->p->in[1], at, r, c, PACK_ROWS, t->cols);
    there[n] = (lindex){eas_builder_program_id(l->b, 0), 0};
    there[n + 1] = inside(l, r, PACK_ROWS, deep);
    there[n + 2] = (lindex){low_lanes(l, 1, t->cols), 0};
    store_packed(w, t, true, there, v);
}

static void lay_out_left(lowering *w, const panels *t)
{
    lower *l = &w->l;
    const int n = t->x->rank - 2;
    const int64_t deep = t->step * t->steps;
    lindex at[MAX_DIMS + 1] = {{0, 0}}, there[MAX_DIMS + 1];
    w->use->grid[0] = ceil_div(deep, PACK_COLS);
    w->use->grid[1] = ceil_div(t->m, PACK_ROWS);
    w->use->grid[2] = low_spread(l, 2, n, t->x->shape, 0, at);
    memcpy(there, at, sizeof at);
    lindex r = along(l, 1, 0, PACK_ROWS, t->m), c = along(l, 0, 1, PACK_COLS, t->k);
    eas_value v = block(l, t, t->p->in[0], at, r, c, PACK_ROWS, PACK_COLS);
    there[n] = r;
    there[n + 1] = inside(l, c, PACK_COLS, deep);
    store_packed(w, t, false, there, v);
}

/* ---- the product ---- */

typedef struct at_tile {
    lindex row, col, batch[MAX_DIMS];
    eas_value panel;
} at_tile;

static void stand_at(lowering *w, const panels *t, at_tile *a)
{
    lower *l = &w->l;
    eas_value down = low_bin(l, "mul", eas_builder_program_id(l->b, 1), low_int(l, t->rows));
    if (t->m % t->rows)
        down = low_bin(l, "min", down, low_int(l, t->m - t->rows));
    a->panel = eas_builder_program_id(l->b, 0);
    a->row = (lindex){low_bin(l, "add", down, low_lanes(l, 0, t->rows)), 0};
    a->col = low_along(l, low_bin(l, "mul", a->panel, low_int(l, t->cols)), 1, t->cols, t->n);
}

static lindex along_k(lower *l, eas_value first, int axis, int64_t n)
{
    eas_value v = low_lanes(l, axis, n);
    return (lindex){first ? low_bin(l, "add", first, v) : v, 0};
}

static eas_value read_packed(lowering *w, const panels *t, bool right, const lindex *at, const int64_t *size)
{
    lower *l = &w->l;
    eas_dim shape[MAX_DIMS + 1];
    eas_value ok = 0, off = low_offset(l, packed_shape(t, right, shape), shape, at, &ok);
    return eas_builder_broadcast(l->b, eas_builder_load(l->b, w->scratch[right], off, 0, 0), 2, size);
}

/* A factor's block, as it was laid out or where it lies. */
static eas_value factor(lowering *w, const panels *t, const at_tile *a, bool right, lindex k)
{
    const pnode *x = right ? t->y : t->x;
    const int64_t size[] = {right ? t->step : t->rows, right ? t->cols : t->step};
    const int n = x->rank - 2;
    lindex at[MAX_DIMS + 1];
    matmul_index(x, t->p, a->batch, at);
    at[n] = right ? k : a->row;
    at[n + 1] = right ? a->col : k;
    if (!w->scratch[right])
        return eas_builder_broadcast(w->l.b, low_value(&w->l, t->p->in[right], at, NULL), 2, size);
    if (right) {
        at[n] = (lindex){a->panel, 0};
        at[n + 1] = k;
        at[n + 2] = (lindex){low_lanes(&w->l, 1, t->cols), 0};
    }
    return read_packed(w, t, right, at, size);
}

static eas_value multiplied(lowering *w, const panels *t, const at_tile *a, eas_value first, eas_value acc)
{
    eas_value y = factor(w, t, a, true, along_k(&w->l, first, 0, t->step)),
              x = factor(w, t, a, false, along_k(&w->l, first, 1, t->step));
    return eas_builder_matmul(w->l.b, x, y, acc);
}

static void multiply(lowering *w, const panels *t)
{
    lower *l = &w->l;
    at_tile a = {0};
    eas_value acc = matmul_sums(l, t->sum, t->rows, t->cols), iv, now;
    w->use->grid[0] = t->panels;
    w->use->grid[1] = t->blocks;
    stand_at(w, t, &a);
    matmul_batch(w, t->p, a.batch);
    if (t->steps == 1) {
        acc = multiplied(w, t, &a, 0, acc);
    } else {
        uint32_t mark = low_mark(l);
        eas_builder_loop_begin(l->b, low_int(l, 0), low_int(l, t->step * t->steps), low_int(l, t->step), 1,
                               &acc, &iv, &now);
        eas_value next = multiplied(w, t, &a, iv, now);
        eas_builder_loop_end(l->b, 1, &next, &acc);
        low_forget(l, mark);
    }
    matmul_store(w, acc, a.row, a.col);
}

void lower_pack(lowering *w)
{
    panels t = panels_of(w->l.f, w->l.grp);
    choose(w->l.f, &t);
    w->l.nblock = 2;
    if (w->part == PACK_RIGHT && !by_columns(&w->l, t.p->in[1]))
        lay_out_rows(w, &t);
    else if (w->part == PACK_RIGHT)
        lay_out_columns(w, &t);
    else if (w->part == PACK_LEFT)
        lay_out_left(w, &t);
    else
        multiply(w, &t);
}
