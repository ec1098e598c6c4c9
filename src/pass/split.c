/* split.c: reductions in two stages where one would leave the machine idle or jump through memory.
 *
 * Few long rows: each is cut into parts that are reduced side by side, and then the results of the parts are
 * reduced. Columns: bands of rows are reduced first, so that memory is read nearly in its order. Counts (sums
 * of truth values) are summed in bytes first. How a reduction is cut depends on its sizes alone, never on the
 * number of threads, so the bits of the result are the same on any machine.
 */
#include "pass.h"

#include <stdlib.h>

enum { LONG_ROW = 1 << 16, PART = 1 << 14, FEW = 64, TALL = 512, BAND = 64 };

static bool known(const pnode *x)
{
    for (int i = 0; i < x->rank; i++)
        if (!dim_known(x->shape[i]))
            return false;
    return true;
}

static uint32_t view_of(pgraph *g, uint16_t op, uint32_t x, int rank, const eas_dim *shape, int nwords,
                        const int64_t *words, uint32_t fill)
{
    pnode p = {.op = op,
               .kind = graph_rows[op].kind,
               .dtype = pass_at(g, x)->dtype,
               .rank = (uint8_t)rank,
               .nin = fill ? 2 : 1,
               .nwords = (uint16_t)nwords,
               .param = PARAM_NONE,
               .shape = shape,
               .words = words,
               .in = (uint32_t[]){x, fill}};
    return pass_add(g, &p);
}

/* p over axis `axis` of x, which is cut into parts of `part`. */
static uint32_t in_parts(pgraph *g, const pnode *p, int axis, int64_t part)
{
    uint32_t x = p->in[0];
    const pnode *from = pass_at(g, x);
    int rank = from->rank;
    eas_dim shape[GRAPH_MAX_RANK + 1];
    int64_t n = from->shape[axis], parts = (n + part - 1) / part, zeros[GRAPH_MAX_RANK] = {0};
    if (rank >= GRAPH_MAX_RANK)
        return 0;
    memcpy(shape, from->shape, sizeof *shape * (size_t)rank);
    if (parts * part != n) {
        /* padding with the identity element does not change the result */
        uint32_t fill =
            pass_const(g, (eas_dtype)p->dtype, graph_neutral(graph_rows[p->op].ir, (eas_dtype)p->dtype));
        shape[axis] = parts * part;
        x = view_of(g, GRAPH_PAD_CONSTANT, x, rank, shape, rank, zeros, fill);
    }
    memmove(shape + axis + 2, shape + axis + 1, sizeof *shape * (size_t)(rank - axis - 1));
    shape[axis] = parts;
    shape[axis + 1] = part;
    x = view_of(g, GRAPH_RESHAPE, x, rank + 1, shape, 0, NULL, 0);
    pnode first = *p;
    first.words = (int64_t[]){0, axis + 1};
    first.nwords = 2;
    first.in = &x;
    memmove(shape + axis + 1, shape + axis + 2, sizeof *shape * (size_t)(rank - axis - 1));
    first.rank = (uint8_t)rank;
    first.shape = shape;
    uint32_t stage = g->st ? 0 : pass_add(g, &first);
    pnode second = *p;
    second.in = &stage;
    return stage ? pass_add(g, &second) : 0;
}

/* The n-th dim of x that is not 1, or which of them dim d is. */
static int solid_dim(const pnode *x, int n)
{
    for (int d = 0; d < x->rank; d++)
        if (x->shape[d] != 1 && n-- == 0)
            return d;
    return -1;
}

static int solid_number(const pnode *x, int d)
{
    int n = 0;
    for (int i = 0; i < d; i++)
        n += x->shape[i] != 1;
    return n;
}

static int last_dim(const pnode *x)
{
    int d = x->rank - 1;
    while (d >= 0 && x->shape[d] == 1)
        d--;
    return d;
}

/* The first of those with the most elements; 0: some size is not known. */
static uint32_t largest_input(const pgraph *g, const pnode *p)
{
    uint32_t best = 0;
    int64_t most = 0;
    for (int k = 0; k < p->nin; k++) {
        const int64_t n = dim_product(pass_at(g, p->in[k])->rank, pass_at(g, p->in[k])->shape);
        if (!dim_known(n))
            return 0;
        if (n > most) {
            best = p->in[k];
            most = n;
        }
    }
    return best;
}

static int neighbours(const pgraph *g, uint32_t i, int depth)
{
    const pnode *p = pass_at(g, i), *x = p->nin ? pass_at(g, p->in[0]) : NULL;
    if (depth == 0)
        return last_dim(p);
    switch (p->kind) {
    case KIND_LEAF:
        for (int d = 0; p->nwords && d < p->rank; d++)
            if (p->words[1 + d] == 1 && p->shape[d] != 1)
                return d;
        return last_dim(p);
    case KIND_PERMUTE: {
        const int from = neighbours(g, p->in[0], depth - 1);
        for (int d = 0; d < p->rank; d++)
            if (p->words[d] == from)
                return d;
        return -1;
    }
    case KIND_RESHAPE: { /* that adds and drops dims of 1 */
        const int from = neighbours(g, p->in[0], depth - 1);
        int n = 0;
        while (solid_dim(x, n) >= 0 && solid_dim(p, n) >= 0 &&
               x->shape[solid_dim(x, n)] == p->shape[solid_dim(p, n)])
            n++;
        return from >= 0 && solid_dim(x, n) < 0 && solid_dim(p, n) < 0 ? solid_dim(p, solid_number(x, from))
                                                                       : last_dim(p);
    }
    case KIND_MAP:
    case KIND_CAST: { /* as the largest of its inputs */
        const uint32_t most = largest_input(g, p);
        const int from = most ? neighbours(g, most, depth - 1) : -1;
        return from >= 0 ? from + p->rank - pass_at(g, most)->rank : last_dim(p);
    }
    default: return last_dim(p);
    }
}

int pass_last_in_memory(const pgraph *g, uint32_t x) { return neighbours(g, x, 24); }

/* Can x be read in another shape at no cost? */
static bool any_shape(const pgraph *g, const pnode *x, int depth)
{
    if (x->kind == KIND_LEAF)
        return !x->nwords;
    if ((x->kind != KIND_MAP && x->kind != KIND_CAST) || depth == 0)
        return false;
    for (int i = 0; i < x->nin; i++) {
        const pnode *y = pass_at(g, x->in[i]);
        bool one = true;
        for (int k = 0; k < y->rank; k++)
            one &= y->shape[k] == 1;
        if (!one && (y->rank != x->rank || memcmp(y->shape, x->shape, sizeof *x->shape * x->rank) ||
                     !any_shape(g, y, depth - 1)))
            return false;
    }
    return true;
}

static uint32_t reduce(pgraph *g, const pnode *like, uint32_t x, int naxes, const int64_t *axes)
{
    const pnode *from = pass_at(g, x);
    int64_t words[GRAPH_MAX_RANK + 1] = {1};
    eas_dim shape[GRAPH_MAX_RANK];
    memcpy(shape, from->shape, sizeof *shape * from->rank);
    for (int i = 0; i < naxes; i++) {
        words[1 + i] = axes[i];
        shape[axes[i]] = 1;
    }
    pnode p = *like;
    p.words = words;
    p.nwords = (uint16_t)(1 + naxes);
    p.rank = from->rank;
    p.shape = shape;
    p.in = &x;
    return pass_add(g, &p);
}

/* The dims from first to last as one, the reduction over that, and the result in p's shape. */
static uint32_t merged(pgraph *g, const pnode *p, int first, int last)
{
    const pnode *x = pass_at(g, p->in[0]);
    eas_dim shape[GRAPH_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < x->rank; i++)
        if (i <= first || i > last)
            shape[rank++] = x->shape[i];
        else
            shape[rank - 1] *= x->shape[i];
    uint32_t flat = view_of(g, GRAPH_RESHAPE, p->in[0], rank, shape, 0, NULL, 0);
    uint32_t r = flat ? reduce(g, p, flat, 1, (int64_t[]){first}) : 0;
    return r ? view_of(g, GRAPH_RESHAPE, r, p->rank, p->shape, 0, NULL, 0) : 0;
}

/* Runs of neighbouring axes one after the other, the last first; a run is one axis where that costs nothing.
 */
static uint32_t by_runs(pgraph *g, const pnode *p, int naxes, const int64_t *axes)
{
    int first = naxes - 1;
    while (first > 0 && axes[first - 1] == axes[first] - 1)
        first--;
    if (first == 0)
        return naxes > 1 && any_shape(g, pass_at(g, p->in[0]), 24)
                 ? merged(g, p, (int)axes[0], (int)axes[naxes - 1])
                 : 0;
    uint32_t stage = reduce(g, p, p->in[0], naxes - first, axes + first);
    stage = stage ? reduce(g, p, stage, first, axes) : 0;
    return stage ? view_of(g, GRAPH_RESHAPE, stage, p->rank, p->shape, 0, NULL, 0) : 0;
}

/* A part that divides the row in whole vectors needs no padding: the one nearest to PART, within a factor of
 * 4; else PART. */
static int64_t part_of(int64_t n)
{
    enum { VECTORS = 64 };
    int64_t best = 0;
    for (int64_t p = PART / 4 / VECTORS * VECTORS; p <= 4 * PART; p += VECTORS)
        if (n % p == 0 && (!best || llabs(p - PART) < llabs(best - PART)))
            best = p;
    return best ? best : PART;
}

/* ---- counting ---- */

/* Is p a sum of integers that are bools, cast? */
static bool counts(const pgraph *g, const pnode *p)
{
    const pnode *x = pass_at(g, p->in[0]);
    return !strcmp(graph_rows[p->op].ir, "add") && dtype_is_int((eas_dtype)p->dtype) &&
           x->kind == KIND_CAST && x->dtype == p->dtype && eas_dtype_size((eas_dtype)p->dtype) > 1 &&
           pass_at(g, x->in[0])->dtype == EAS_BOOL;
}

/* A long row as up to 255 rows one below the other: their sum fits u8, of which a vector has the most; then
 * the sum of that. 0: no number of rows divides it. */
static uint32_t counted(pgraph *g, const pnode *p, int axis)
{
    enum { MOST_ROWS = 255, LEAST_ROWS = 16 };
    const pnode cast = *pass_at(g, p->in[0]), *x = pass_at(g, cast.in[0]);
    const int rank = x->rank;
    const int64_t n = x->shape[axis];
    eas_dim shape[GRAPH_MAX_RANK + 1];
    int64_t rows = MOST_ROWS;
    while (rows >= LEAST_ROWS && n % rows)
        rows--;
    if (rows < LEAST_ROWS || rank >= GRAPH_MAX_RANK || axis != rank - 1)
        return 0;
    memcpy(shape, x->shape, sizeof *shape * (size_t)rank);
    shape[axis] = rows;
    shape[rank] = n / rows;
    pnode narrow = cast, sum = *p;
    uint32_t y = view_of(g, GRAPH_RESHAPE, cast.in[0], rank + 1, shape, 0, NULL, 0);
    narrow.rank = (uint8_t)(rank + 1);
    narrow.shape = shape;
    narrow.dtype = sum.dtype = EAS_U8;
    narrow.in = &y;
    y = y ? pass_add(g, &narrow) : 0;
    y = y ? reduce(g, &sum, y, 1, (int64_t[]){axis}) : 0;
    shape[axis] = 1;
    narrow.dtype = cast.dtype;
    y = y ? pass_add(g, &narrow) : 0;
    y = y ? reduce(g, p, y, 1, (int64_t[]){rank}) : 0;
    return y ? view_of(g, GRAPH_RESHAPE, y, p->rank, p->shape, 0, NULL, 0) : 0;
}

uint32_t pass_split_reduce(pgraph *g, const pnode *p)
{
    const pnode *x = pass_at(g, p->in[0]);
    int64_t axes[GRAPH_MAX_RANK], size = 1, after = 1;
    int naxes = 0, given = p->nwords - 1;
    for (int i = 1; i <= given; i++)
        if (x->shape[p->words[i]] != 1)
            axes[naxes++] = p->words[i];
    if (naxes == 0)
        return view_of(g, GRAPH_RESHAPE, p->in[0], p->rank, p->shape, 0, NULL, 0);
    if (naxes < given) {
        uint32_t r = reduce(g, p, p->in[0], naxes, axes);
        return r ? view_of(g, GRAPH_RESHAPE, r, p->rank, p->shape, 0, NULL, 0) : 0;
    }
    if (!known(x))
        return 0;
    if (naxes > 1)
        return by_runs(g, p, naxes, axes);
    for (int i = 0; i < x->rank; i++)
        size *= x->shape[i];
    for (int i = (int)axes[0] + 1; i < x->rank; i++)
        after *= x->shape[i];
    int64_t inner = x->shape[axes[0]];
    if (size == 0)
        return 0;
    const bool rows = after == 1 || pass_last_in_memory(g, p->in[0]) == axes[0];
    if (rows && inner > LONG_ROW && size / inner < FEW && counts(g, p)) {
        uint32_t r = counted(g, p, (int)axes[0]);
        if (r || g->st)
            return r;
    }
    if (rows && inner > LONG_ROW && size / inner < FEW)
        return in_parts(g, p, (int)axes[0], part_of(inner));
    return !rows && inner >= TALL ? in_parts(g, p, (int)axes[0], BAND) : 0;
}
