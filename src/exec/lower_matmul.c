/* lower_matmul.c: a matrix product and what follows it element by element.
 *
 * A program makes one tile of the result: it walks along K in blocks, multiplies them into the tile, and
 * computes what follows on the tile before it is stored. Operands are read through their views at the indices
 * of the block, so transposes, casts and gathers cost no pass of their own.
 */
#include "exec.h"

enum { WIDE = 1024, DEEP = 256, SHALLOW = 16 };

/* n itself if it is at most `want`; else a divisor not far below; else `want`, and the last tile is masked.
 */
static int64_t tile_of(eas_dim n, int64_t want)
{
    if (!dim_known(n))
        return dim_most(n) < want && dim_most(n) > 0 ? dim_most(n) : want;
    if (n <= want)
        return n ? n : 1;
    for (int64_t t = want; t >= want / 2; t -= 16)
        if (n % t == 0)
            return t;
    return want;
}

typedef struct tiles {
    eas_dim m, n, k;
    int64_t bm, bn, bk;
    bool full; /* tiles overlap rather than end outside */
    lindex row, col; /* of the tile */
    lindex batch[MAX_DIMS];
} tiles;

static int64_t wanted(eas_dim n)
{
    int64_t most = dim_most(n);
    return most == DIM_ANY ? 64 : most >= 1024 ? 256 : most >= 512 ? 128 : 64;
}

/* Other tiles to try than those that are usually best: rows, columns, along K. */
static const int64_t other_tiles[VARIANTS][3] = {{0, 0, 0}, {128, 512, 256}, {64, 256, 256}, {128, 128, 256}};

/* The largest divisor of k that is at most `most`. */
static int64_t divisor(int64_t k, int64_t most)
{
    int64_t d = most < k ? most : k;
    while (k % d)
        d--;
    return d;
}

/* One row, against a matrix that is read where it lies: wide stretches of its rows. The last tile begins
 * early enough to be full, so that nothing is masked, unless K has no divisor to go by. */
static bool one_row(tiles *t)
{
    if (t->m != 1 || !dim_known(t->n) || !dim_known(t->k) || t->k == 0 || t->n == 0)
        return false;
    const int64_t strips = (t->n + WIDE - 1) / WIDE, even = ((t->n + strips - 1) / strips + 15) / 16 * 16,
                  deep = divisor(t->k, DEEP);
    t->bm = 1;
    t->bn = even < t->n ? even : t->n;
    t->bk = deep >= SHALLOW ? deep : tile_of(t->k, DEEP);
    t->full = true;
    return true;
}

static void choose_tiles(const pnode *p, eas_dim k, int variant, tiles *t)
{
    t->m = p->shape[p->rank - 2];
    t->n = p->shape[p->rank - 1];
    t->k = k;
    if (!variant && one_row(t))
        return;
    int64_t wm = wanted(t->m), wn = wanted(t->n);
    if (wm == 256 && wn < 256)
        wm = 128;
    t->bm = tile_of(t->m, wm);
    t->bn = tile_of(t->n, wn);
    t->bk = tile_of(k, t->bm * t->bn > 128 * 128 ? 128 : 256);
    if (variant) {
        t->bm = tile_of(t->m, other_tiles[variant][0]);
        t->bn = tile_of(t->n, other_tiles[variant][1]);
        t->bk = tile_of(k, other_tiles[variant][2]);
    }
}

void matmul_index(const pnode *x, const pnode *p, const lindex *batch, lindex *at)
{
    for (int i = 0; i + 2 < x->rank; i++)
        at[i] = x->shape[i] == 1 ? (lindex){0, 0} : batch[i + p->rank - x->rank];
}

/* An operand's block, rows by r and columns by c; nothing where there is no element of K. */
static eas_value operand(lowering *w, uint32_t id, const tiles *t, lindex r, lindex c, int64_t nr, int64_t nc,
                         eas_value k_ok)
{
    lower *l = &w->l;
    const pnode *x = pass_at(l->g, id), *p = pass_at(l->g, l->grp->core);
    lindex at[MAX_DIMS];
    matmul_index(x, p, t->batch, at);
    at[x->rank - 2] = r;
    at[x->rank - 1] = c;
    eas_value v = low_value(l, id, at, NULL);
    eas_dtype dt = (eas_dtype)x->dtype;
    v = eas_builder_broadcast(l->b, v, 2, (int64_t[]){nr, nc});
    return k_ok
             ? eas_builder_apply(l->b, eas_op_find("where"), k_ok, v, eas_builder_const_typed(l->b, dt, 0, 0))
             : v;
}

static eas_value product(lowering *w, const tiles *t, eas_value first, eas_value acc)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core);
    lindex across = low_along(l, first, 1, t->bk, t->k), down = low_along(l, first, 0, t->bk, t->k);
    eas_value x = operand(w, p->in[0], t, t->row, across, t->bm, t->bk, across.ok);
    eas_value y = operand(w, p->in[1], t, down, t->col, t->bk, t->bn, down.ok);
    return eas_builder_matmul(l->b, x, y, acc);
}

void matmul_batch(lowering *w, const pnode *p, lindex *batch)
{
    lower *l = &w->l;
    w->use->grid[2] = low_spread(l, 2, p->rank - 2, p->shape, 0, batch);
    for (int i = 0; i < p->rank - 2; i++)
        if (p->shape[i] != 1)
            l->at[l->mdim[i]] = batch[i];
}

eas_value matmul_sums(lower *l, eas_dtype dt, int64_t rows, int64_t cols)
{
    return eas_builder_broadcast(l->b, eas_builder_const_typed(l->b, dt, 0, 0), 2, (int64_t[]){rows, cols});
}

void matmul_store(lowering *w, eas_value acc, lindex row, lindex col)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core);
    l->fold[l->grp->core] = eas_builder_cast(l->b, acc, (eas_dtype)p->dtype);
    if (p->shape[p->rank - 2] != 1)
        l->at[l->mdim[p->rank - 2]] = row;
    if (p->shape[p->rank - 1] != 1)
        l->at[l->mdim[p->rank - 1]] = col;
    for (uint32_t i = 0; i < l->grp->roots.len; i++)
        low_store(w, i);
}

static eas_value tile_start(lower *l, int axis, int64_t n)
{
    return low_bin(l, "mul", eas_builder_program_id(l->b, axis), low_int(l, n));
}

static lindex columns(lowering *w, const tiles *t)
{
    lower *l = &w->l;
    eas_value first = w->use->grid[0] == 1 ? 0 : tile_start(l, 0, t->bn);
    if (!t->full || !first)
        return low_along(l, first, 1, t->bn, t->n);
    return (lindex){
        low_bin(l, "add", low_bin(l, "min", first, low_int(l, t->n - t->bn)), low_lanes(l, 1, t->bn)), 0};
}

void lower_matmul(lowering *w)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core), *x = pass_at(l->g, p->in[0]), *y = pass_at(l->g, p->in[1]);
    tiles t = {0};
    l->nblock = 2;
    choose_tiles(p, x->shape[x->rank - 1], l->f->variant, &t);
    w->use->grid[0] = ceil_dim(t.n, t.bn);
    w->use->grid[1] = ceil_dim(t.m, t.bm);
    t.col = columns(w, &t);
    t.row = low_along(l, w->use->grid[1] == 1 ? 0 : tile_start(l, 1, t.bm), 0, t.bm, t.m);
    matmul_batch(w, p, t.batch);
    eas_dtype sum = x->dtype == EAS_F64 || y->dtype == EAS_F64 ? EAS_F64 : EAS_F32;
    eas_value acc = matmul_sums(l, sum, t.bm, t.bn), iv, now;
    if (dim_most(t.k) <= t.bk) {
        acc = t.k ? product(w, &t, 0, acc) : acc;
    } else {
        uint32_t mark = low_mark(l);
        eas_builder_loop_begin(l->b, low_int(l, 0), low_dim(l, t.k), low_int(l, t.bk), 1, &acc, &iv, &now);
        eas_value next = product(w, &t, iv, now);
        eas_builder_loop_end(l->b, 1, &next, &acc);
        low_forget(l, mark);
    }
    matmul_store(w, acc, t.row, t.col);
}
