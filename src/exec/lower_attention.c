/* lower_attention.c: softmax(scores) @ v without the matrix of scores.
 *
 * scores may be anything element-wise over one product (scaled, masked, with a bias). A program takes a tile
 * of rows and walks the columns of the scores in tiles: per row it keeps the largest score so far, the sum of
 * exponentials against it, and the weighted sum of v; a tile that raises the maximum scales both sums down
 * before it is added. A tile of scores is computed transposed: the keys, as they mostly lie in memory, are
 * then the left factor of the product, and what is kept for each row of scores lies along the lanes.
 */
#include "exec.h"

#include <math.h>

#define LOG2_E 1.44269504088896340736
enum { FEW_TILES = 32 };
/* rows and columns; the first is usually best */
static const int64_t tile_sizes[VARIANTS][2] = {{64, 64}, {128, 128}, {64, 128}, {32, 256}};

static eas_value op1(lower *l, const char *name, eas_value x)
{
    return eas_builder_apply(l->b, eas_op_find(name), x, 0, 0);
}

typedef struct attend {
    lowering *w;
    const pnode *o, *s, *c; /* the result, the scores, the product in them */
    int64_t rows, cols, depth, width;
    eas_dim nrows, ncols;
    lindex batch[MAX_DIMS], row, across; /* its rows along the first and the second dim of a block */
    eas_dtype sum;
    bool inside; /* the running tile has all its columns */
} attend;

static lindex whole(lower *l, int axis, int64_t n) { return (lindex){low_lanes(l, axis, n), 0}; }

static eas_value tile(attend *a, uint32_t id, lindex r, lindex c, int64_t nr, int64_t nc)
{
    lower *l = &a->w->l;
    const pnode *x = pass_at(l->g, id);
    lindex at[MAX_DIMS];
    for (int i = 0; i + 2 < x->rank; i++)
        at[i] = x->shape[i] == 1 ? (lindex){0, 0} : a->batch[i + a->o->rank - x->rank];
    at[x->rank - 2] = r;
    at[x->rank - 1] = c;
    return eas_builder_cast(
        l->b, eas_builder_broadcast(l->b, low_value(l, id, at, NULL), 2, (int64_t[]){nr, nc}), a->sum);
}

/* The group's own index becomes that of a tile of rows by columns. */
void low_stand_at(lower *l, const lindex *batch, const pnode *space, lindex r, lindex c)
{
    l->nm = space->rank;
    for (int d = 0; d < space->rank; d++) {
        l->mdim[d] = l->mlast[d] = (int8_t)d;
        l->msize[d] = space->shape[d];
        l->at[d] = d == space->rank - 2 ? r : d == space->rank - 1 ? c : batch[d];
    }
}

/* The columns of a tile, along the first dim of a block. */
static lindex columns(const attend *a, eas_value first)
{
    lindex c = low_along(&a->w->l, first, 0, a->cols, a->ncols);
    return (lindex){c.v, a->inside ? 0 : c.ok};
}

/* whole: all scores of the tile are there, whatever the condition in front of them says */
static eas_value scores_tile(attend *a, eas_value q, eas_value first, bool whole_tile)
{
    lower *l = &a->w->l;
    int8_t map[MAX_DIMS], to[MAX_DIMS];
    lindex col = columns(a, first);
    eas_value k = tile(a, a->c->in[1], whole(l, 1, a->depth), col, a->cols, a->depth);
    eas_value zero = eas_builder_broadcast(l->b, eas_builder_const_typed(l->b, a->sum, 0, 0), 2,
                                           (int64_t[]){a->cols, a->rows});
    l->fold[l->grp->inner_core] =
        eas_builder_cast(l->b, eas_builder_matmul(l->b, k, q, zero), (eas_dtype)a->c->dtype);
    low_stand_at(&a->w->l, a->batch, a->s, a->across, col);
    for (int d = 0; d < a->s->rank; d++)
        map[d] = (int8_t)d;
    if (whole_tile)
        map_input(l->g, a->s, 1, map, to);
    eas_value s = eas_builder_cast(
        l->b, whole_tile ? low_value(l, a->s->in[1], NULL, to) : low_value(l, l->grp->scores, NULL, map),
        a->sum);
    l->fold[l->grp->inner_core] = 0;
    s = eas_builder_broadcast(l->b, s, 2, (int64_t[]){a->cols, a->rows});
    return col.ok ? eas_builder_apply(l->b, eas_op_find("where"), col.ok, s,
                                      eas_builder_const_typed(l->b, a->sum, -INFINITY, 0))
                  : s;
}

static eas_value per_row(lower *l, eas_value v, int64_t n)
{
    return eas_builder_reshape(l->b, v, 2, (int64_t[]){n, 1});
}
static eas_value per_lane(lower *l, eas_value v, int64_t n)
{
    return eas_builder_reshape(l->b, v, 2, (int64_t[]){1, n});
}

/* The condition of scores that are where(condition, ..., -inf), if it does not depend on the product. Where
 * it is false the score is -inf and its weight 0. 0: there is no such condition. */
static uint32_t gate(const attend *a)
{
    const lower *l = &a->w->l;
    double v;
    if (a->s->op != GRAPH_WHERE || !pass_is_const(l->g, a->s->in[2], &v) || v != -INFINITY ||
        l->f->at[a->s->in[0]].heavy)
        return 0;
    return a->s->in[0];
}

/* Does the condition hold anywhere in this tile? Its value is remembered, so the scores do not compute it
 * again. */
static eas_value any_there(attend *a, uint32_t cond, eas_value first)
{
    lower *l = &a->w->l;
    int8_t map[MAX_DIMS], to[MAX_DIMS];
    low_stand_at(&a->w->l, a->batch, a->s, a->across, low_along(l, first, 0, a->cols, a->ncols));
    for (int d = 0; d < a->s->rank; d++)
        map[d] = (int8_t)d;
    map_input(l->g, a->s, 0, map, to);
    eas_value v = eas_builder_broadcast(l->b, low_value(l, cond, NULL, to), 2, (int64_t[]){a->cols, a->rows});
    v = eas_builder_reduce(l->b, eas_op_find("or"), eas_builder_cast(l->b, v, EAS_U8), 1);
    return low_bin(l, "ne", eas_builder_reduce(l->b, eas_op_find("or"), v, 0),
                   eas_builder_const_typed(l->b, EAS_U8, 0, 0));
}

/* ---- conditions that hold up to some column ---- */

static bool is_small(const pgraph *g, uint32_t id)
{
    double v;
    return pass_is_const(g, id, &v) && v > -1e9 && v < 1e9;
}

/* Indices along one axis, shifted by a number: never NaN, no sum wraps, and they grow along the axis. */
static bool counts(const pgraph *g, uint32_t id)
{
    for (;;) {
        const pnode *x = pass_at(g, id);
        if (!dtype_is_float((eas_dtype)x->dtype) && dtype_bits((eas_dtype)x->dtype) < 32)
            return false;
        if (x->kind == KIND_IOTA) {
            for (int i = 0; i < x->rank; i++)
                if (x->shape[i] != 1 && i != x->words[0])
                    return false;
            return true;
        }
        const bool sum = is_op(g, id, GRAPH_ADD);
        if (sum && (is_small(g, x->in[0]) || is_small(g, x->in[1])))
            id = x->in[is_small(g, x->in[0])];
        else if (x->kind == KIND_RESHAPE || x->kind == KIND_BROADCAST || x->kind == KIND_PERMUTE ||
                 x->kind == KIND_CAST)
            id = x->in[0];
        else
            return false;
    }
}

/* Numbers that grow with the column and depend on nothing else. */
static bool of_column(const attend *a, uint32_t id)
{
    const pnode *x = pass_at(a->w->l.g, id);
    for (int i = 0; i < x->rank; i++)
        if (x->shape[i] != (i == x->rank - 1 ? a->ncols : 1))
            return false;
    return x->rank > 0 && counts(a->w->l.g, id);
}

/* Numbers of a row, never NaN. */
static bool of_row(const attend *a, uint32_t id)
{
    const lower *l = &a->w->l;
    const pnode *x = pass_at(l->g, id);
    return (x->rank == 0 || x->shape[x->rank - 1] == 1) && !l->f->at[id].heavy &&
           (dtype_is_int((eas_dtype)x->dtype) || counts(l->g, id));
}

/* Is cond column < row or column <= row (causal masks, lengths)? Which input is the column, and may it be
 * equal? */
static bool holds_up_to(const attend *a, uint32_t cond, int *column, bool *equal)
{
    const pgraph *g = a->w->l.g;
    const bool less = is_op(g, cond, GRAPH_LESS) || is_op(g, cond, GRAPH_LESS_EQUAL);
    if (fused_stored(a->w->l.f, cond) ||
        (!less && !is_op(g, cond, GRAPH_GREATER) && !is_op(g, cond, GRAPH_GREATER_EQUAL)))
        return false;
    *column = less ? 0 : 1;
    *equal = is_op(g, cond, GRAPH_LESS_EQUAL) || is_op(g, cond, GRAPH_GREATER_EQUAL);
    return of_column(a, pass_at(g, cond)->in[*column]) && of_row(a, pass_at(g, cond)->in[1 - *column]);
}

/* An input of the condition where the tile at column `first` (0: none) stands. */
static eas_value side(attend *a, uint32_t cond, int k, eas_value first)
{
    lower *l = &a->w->l;
    int8_t map[MAX_DIMS], of_cond[MAX_DIMS], to[MAX_DIMS];
    low_stand_at(&a->w->l, a->batch, a->s, a->row, (lindex){first, 0});
    for (int d = 0; d < a->s->rank; d++)
        map[d] = (int8_t)d;
    map_input(l->g, a->s, 0, map, of_cond);
    map_input(l->g, pass_at(l->g, cond), k, of_cond, to);
    uint32_t mark = low_mark(l);
    eas_value v = low_value(l, pass_at(l->g, cond)->in[k], NULL, to);
    low_forget(l, mark);
    return v;
}

static eas_value one_more_if(lower *l, eas_value so_far, eas_value yes)
{
    return low_bin(l, "add", so_far,
                   eas_builder_apply(l->b, eas_op_find("where"), yes, low_int(l, 1), low_int(l, 0)));
}

/* Up to which column every score is there in whole tiles, and up to which there is any. */
static void find_ends(attend *a, uint32_t cond, int column, bool equal, eas_value ends[2])
{
    lower *l = &a->w->l;
    const char *below = equal ? "le" : "lt";
    eas_value row = eas_builder_broadcast(l->b, side(a, cond, 1 - column, 0), 2, (int64_t[]){a->rows, 1}), iv,
              now[2], next[2];
    row = eas_builder_reshape(l->b, row, 1, &a->rows);
    eas_value least = eas_builder_reduce(l->b, eas_op_find("min"), row, 0),
              most = eas_builder_reduce(l->b, eas_op_find("max"), row, 0);
    eas_value zero[2] = {low_int(l, 0), low_int(l, 0)};
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_dim(l, a->ncols), low_int(l, a->cols), 2, zero, &iv, now);
    eas_value last = low_bin(l, "min", low_bin(l, "add", iv, low_int(l, a->cols - 1)),
                             low_bin(l, "sub", low_dim(l, a->ncols), low_int(l, 1)));
    next[0] = one_more_if(
        l, now[0], low_bin(l, below, eas_builder_reshape(l->b, side(a, cond, column, last), 0, NULL), least));
    next[1] = one_more_if(
        l, now[1], low_bin(l, below, eas_builder_reshape(l->b, side(a, cond, column, iv), 0, NULL), most));
    eas_builder_loop_end(l->b, 2, next, ends);
    low_forget(l, mark);
    /* it cannot exceed the number of tiles; the minimum is for the proof that accesses stay inside */
    eas_value all = low_bin(l, "floordiv", low_bin(l, "add", low_dim(l, a->ncols), low_int(l, a->cols - 1)),
                            low_int(l, a->cols));
    for (int i = 0; i < 2; i++)
        ends[i] = low_bin(l, "mul", low_bin(l, "max", low_bin(l, "min", ends[i], all), low_int(l, 0)),
                          low_int(l, a->cols));
}

/* x log2(e) - y: one fma, but for f64, whose fma takes many instructions on CPUs without FMA */
static eas_value in_twos(const attend *a, eas_value x, eas_value y)
{
    lower *l = &a->w->l;
    eas_value by = eas_builder_const_typed(l->b, a->sum, LOG2_E, 0);
    if (a->sum == EAS_F64)
        return low_bin(l, "sub", low_bin(l, "mul", x, by), y);
    return eas_builder_apply(l->b, eas_op_find("fma"), x, by, op1(l, "neg", y));
}

/* now: largest, sum, weighted sum. Powers of two are cheaper: exp(s - top) is exp2 of both times log2(e). */
static void one_tile(attend *a, eas_value q, eas_value first, bool whole_tile, const eas_value *now,
                     eas_value *next)
{
    lower *l = &a->w->l;
    eas_value by = eas_builder_const_typed(l->b, a->sum, LOG2_E, 0),
              zero = eas_builder_const_typed(l->b, a->sum, 0, 0);
    eas_value s = scores_tile(a, q, first, whole_tile);
    eas_value top = low_bin(l, "max", now[0], eas_builder_reduce(l->b, eas_op_find("max"), s, 0));
    /* rows without a score so far: nothing is added */
    eas_value none = low_bin(l, "eq", top, eas_builder_const_typed(l->b, a->sum, -INFINITY, 0));
    eas_value safe = eas_builder_apply(l->b, eas_op_find("where"), none, zero, low_bin(l, "mul", top, by));
    eas_value p = op1(l, "exp2", in_twos(a, s, per_lane(l, safe, a->rows)));
    /* at once, while p is in registers */
    eas_value total = eas_builder_reduce(l->b, eas_op_find("add"), p, 0);
    eas_value fade = op1(l, "exp2", low_bin(l, "sub", low_bin(l, "mul", now[0], by), safe));
    lindex key = columns(a, first);
    eas_value v = tile(a, a->o->in[1], key, whole(l, 1, a->width), a->cols, a->width);
    next[0] = top;
    next[1] = low_bin(l, "add", low_bin(l, "mul", now[1], fade), total);
    next[2] = eas_builder_matmul(l->b, eas_builder_trans(l->b, p, NULL), v,
                                 low_bin(l, "mul", now[2], per_row(l, fade, a->rows)));
}

enum { TILE_PART, TILE_WHOLE };

/* Tiles from column `from` to `to`; with a condition those where any score is there. */
static void walk(attend *a, eas_value query, eas_value from, eas_value to, int kind, uint32_t cond,
                 const eas_value *init, eas_value *last)
{
    lower *l = &a->w->l;
    eas_value iv, now[3], next[3], merged[3];
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, from, to, low_int(l, a->cols), 3, init, &iv, now);
    if (cond)
        eas_builder_if_begin(l->b, any_there(a, cond, iv));
    one_tile(a, query, iv, kind == TILE_WHOLE, now, next);
    if (cond) {
        eas_builder_if_else(l->b, 3, next);
        eas_builder_if_end(l->b, 3, now, merged);
        memcpy(next, merged, sizeof next);
    }
    eas_builder_loop_end(l->b, 3, next, last);
    low_forget(l, mark);
}

/* The size of tiles that reach the least beyond n, the larger of two that are alike. */
static int64_t tile_size(eas_dim n, int64_t most)
{
    int64_t best = most;
    if (!dim_known(n))
        return most / 2;
    if (n < most)
        return n ? n : 1;
    for (int64_t t = most - 8; t >= most / 2; t -= 8)
        if ((n + t - 1) / t * t < (n + best - 1) / best * best)
            best = t;
    return best;
}

/* Walks over all columns, without a condition. If the last tile is not whole, it follows the loop on its own,
 * so that only this tile has masks. */
static void walk_all(attend *a, eas_value query, const eas_value *init, eas_value *last)
{
    lower *l = &a->w->l;
    const int64_t full = dim_known(a->ncols) ? a->ncols / a->cols * a->cols : 0;
    eas_value middle[3];
    if (!full || full == a->ncols) {
        walk(a, query, low_int(l, 0), low_dim(l, a->ncols), TILE_PART, 0, init, last);
        return;
    }
    a->inside = true;
    walk(a, query, low_int(l, 0), low_int(l, full), TILE_PART, 0, init, middle);
    a->inside = false;
    one_tile(a, query, low_int(l, full), false, middle, last);
}

/* The largest number of rows of a tile: tall tiles reuse more of the keys and values, but every thread should
 * have some tiles. */
static int64_t tallest(const attend *a)
{
    const int64_t most = tile_sizes[a->w->l.f->variant][0];
    int64_t rows = 1;
    for (int i = 0; i + 1 < a->o->rank; i++)
        rows = dim_known(a->o->shape[i]) && rows <= FEW_TILES * most ? rows * a->o->shape[i] : rows;
    return rows < FEW_TILES * most && most > 64 ? 64 : most;
}

void lower_attention(lowering *w)
{
    lower *l = &w->l;
    attend a = {.w = w,
                .o = pass_at(l->g, l->grp->core),
                .s = pass_at(l->g, l->grp->scores),
                .c = pass_at(l->g, l->grp->inner_core)};
    const pnode *q = pass_at(l->g, a.c->in[0]);
    l->nblock = 2;
    a.sum = a.o->dtype == EAS_F64 ? EAS_F64 : EAS_F32;
    a.nrows = a.o->shape[a.o->rank - 2];
    a.ncols = a.c->shape[a.c->rank - 1];
    a.depth = q->shape[q->rank - 1];
    a.width = a.o->shape[a.o->rank - 1];
    a.rows = tile_size(a.nrows, tallest(&a));
    a.cols = tile_size(a.ncols, tile_sizes[l->f->variant][1]);
    w->use->grid[0] = ceil_dim(a.nrows, a.rows);
    w->use->grid[2] = 1;
    w->use->grid[1] = low_spread(l, 1, a.o->rank - 2, a.o->shape, 0, a.batch);
    eas_value first = low_bin(l, "mul", eas_builder_program_id(l->b, 0), low_int(l, a.rows));
    a.row = low_along(l, first, 0, a.rows, a.nrows);
    a.across = low_along(l, first, 1, a.rows, a.nrows);
    eas_value query =
        eas_builder_trans(l->b, tile(&a, a.c->in[0], a.row, whole(l, 1, a.depth), a.rows, a.depth), NULL);
    eas_value zero = eas_builder_const_typed(l->b, a.sum, 0, 0), last[3];
    eas_value init[3] = {
        eas_builder_broadcast(l->b, eas_builder_const_typed(l->b, a.sum, -INFINITY, 0), 1, &a.rows),
        eas_builder_broadcast(l->b, zero, 1, &a.rows),
        eas_builder_broadcast(l->b, zero, 2, (int64_t[]){a.rows, a.width})};
    int column;
    bool equal;
    uint32_t cond = gate(&a);
    if (cond && holds_up_to(&a, cond, &column, &equal)) {
        eas_value ends[2], middle[3];
        find_ends(&a, cond, column, equal, ends);
        walk(&a, query, low_int(l, 0), ends[0], TILE_WHOLE, 0, init, middle);
        walk(&a, query, ends[0], ends[1], TILE_PART, 0, middle, last);
    } else if (cond) {
        walk(&a, query, low_int(l, 0), low_dim(l, a.ncols), TILE_PART, cond, init, last);
    } else {
        walk_all(&a, query, init, last);
    }
    eas_value r =
        low_bin(l, "mul", last[2],
                per_row(l, low_bin(l, "div", eas_builder_const_typed(l->b, a.sum, 1, 0), last[1]), a.rows));
    l->fold[l->grp->core] = eas_builder_cast(l->b, r, (eas_dtype)a.o->dtype);
    for (uint32_t i = 0; i < l->grp->roots.len; i++) {
        const uint32_t id = l->grp->roots.at[i].value;
        /* for derivatives: the maxima and the sums */
        const bool row = pass_at(l->g, id)->kind == KIND_REDUCE;
        if (row)
            l->fold[id] =
                eas_builder_cast(l->b, per_row(l, last[is_op(l->g, id, GRAPH_REDUCE_MAX) ? 0 : 1], a.rows),
                                 (eas_dtype)pass_at(l->g, id)->dtype);
        low_stand_at(&a.w->l, a.batch, row ? pass_at(l->g, id) : a.o, a.row,
                     row ? (lindex){0, 0} : whole(l, 1, a.width));
        low_store(w, i);
    }
}
