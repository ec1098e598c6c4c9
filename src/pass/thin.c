/* thin.c: products of a vector and a matrix, and of integers.
 *
 * A product of a vector and a matrix is limited by memory, so the matrix should be read once, in the order of
 * memory, by all threads. If the rows of the matrix are multiplied with the vector, each result is a sum of
 * products element by element. If its columns are, the matrix is cut into bands of rows: each is a product of
 * its own, and the products are added. The number of bands follows from the sizes alone, never from the
 * number of threads.
 */
#include "pass.h"

enum {
    BAND = 256,
    LEAST_BAND = 128,
    MOST_BAND = 512,
    FEW_ROWS = 4,
    MANY_COLUMNS = 64,
    LEAST_K = 256,
    MOST_K = 1 << 14
};

uint32_t pass_reshaped(pgraph *g, uint32_t x, int rank, const eas_dim *shape)
{
    pnode p = {.op = GRAPH_RESHAPE,
               .kind = graph_rows[GRAPH_RESHAPE].kind,
               .dtype = pass_at(g, x)->dtype,
               .rank = (uint8_t)rank,
               .nin = 1,
               .param = PARAM_NONE,
               .shape = shape,
               .in = &x};
    return x ? pass_add(g, &p) : 0;
}

static uint32_t converted(pgraph *g, uint32_t x, eas_dtype dt)
{
    const pnode *p = pass_at(g, x);
    pnode c = {.op = GRAPH_CAST,
               .kind = KIND_CAST,
               .dtype = (uint8_t)dt,
               .rank = p->rank,
               .nin = 1,
               .param = PARAM_NONE,
               .shape = p->shape,
               .in = &x};
    return x ? pass_add(g, &c) : 0;
}

static uint32_t summed(pgraph *g, uint32_t x, int axis)
{
    const pnode *p = pass_at(g, x);
    eas_dim shape[GRAPH_MAX_RANK + 1];
    if (!x)
        return 0;
    memcpy(shape, p->shape, sizeof *shape * p->rank);
    memmove(shape + axis, shape + axis + 1, sizeof *shape * (size_t)(p->rank - axis - 1));
    pnode r = {.op = GRAPH_REDUCE_SUM,
               .kind = KIND_REDUCE,
               .dtype = p->dtype,
               .rank = (uint8_t)(p->rank - 1),
               .nin = 1,
               .nwords = 2,
               .param = PARAM_NONE,
               .shape = shape,
               .words = (int64_t[]){0, axis},
               .in = &x};
    return pass_add(g, &r);
}

/* x with the last two dims exchanged. */
uint32_t pass_turned(pgraph *g, uint32_t x)
{
    const pnode *p = pass_at(g, x);
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t order[GRAPH_MAX_RANK];
    for (int i = 0; i < p->rank; i++) {
        order[i] = i < p->rank - 2 ? i : 2 * p->rank - 3 - i;
        shape[i] = p->shape[order[i]];
    }
    pnode t = {.op = GRAPH_PERMUTE,
               .kind = graph_rows[GRAPH_PERMUTE].kind,
               .dtype = p->dtype,
               .rank = p->rank,
               .nin = 1,
               .nwords = p->rank,
               .param = PARAM_NONE,
               .shape = shape,
               .words = order,
               .in = &x};
    return pass_add(g, &t);
}

/* x with a dim of size 1 at `at`, in dtype dt. */
static uint32_t wider(pgraph *g, uint32_t x, int at, eas_dtype dt)
{
    const pnode *p = pass_at(g, x);
    eas_dim shape[GRAPH_MAX_RANK + 1];
    memcpy(shape, p->shape, sizeof *shape * (size_t)at);
    shape[at] = 1;
    memcpy(shape + at + 1, p->shape + at, sizeof *shape * (size_t)(p->rank - at));
    return converted(g, pass_reshaped(g, x, p->rank + 1, shape), dt);
}

/* The sum of products element by element. */
static uint32_t by_elements(pgraph *g, const pnode *p)
{
    eas_dtype dt = (eas_dtype)p->dtype, sum = dt == EAS_F16 || dt == EAS_BF16 ? EAS_F32 : dt;
    eas_dim shape[GRAPH_MAX_RANK + 1], k = pass_at(g, p->in[0])->shape[pass_at(g, p->in[0])->rank - 1];
    uint32_t in[2];
    int rank = p->rank + 1;
    memcpy(shape, p->shape, sizeof *shape * (size_t)(rank - 2));
    shape[rank - 2] = k;
    shape[rank - 1] = p->shape[p->rank - 1];
    in[0] = wider(g, p->in[0], pass_at(g, p->in[0])->rank, sum);
    in[1] = wider(g, p->in[1], pass_at(g, p->in[1])->rank - 2, sum);
    if (g->st)
        return 0;
    pnode m = {.op = GRAPH_MUL,
               .kind = KIND_MAP,
               .dtype = (uint8_t)sum,
               .rank = (uint8_t)rank,
               .nin = 2,
               .param = PARAM_NONE,
               .shape = shape,
               .in = in};
    return converted(g, summed(g, pass_add(g, &m), rank - 2), dt);
}

static uint32_t product(pgraph *g, const pnode *like, uint32_t x, uint32_t y, int rank, const eas_dim *shape)
{
    pnode p = *like;
    p.rank = (uint8_t)rank;
    p.shape = shape;
    p.in = (uint32_t[]){x, y};
    return x && y ? pass_add(g, &p) : 0;
}

/* A column on the right of a matrix that lies by columns is a row on the left of one that lies by rows. */
static uint32_t other_way(pgraph *g, const pnode *p)
{
    eas_dim shape[GRAPH_MAX_RANK];
    memcpy(shape, p->shape, sizeof *shape * p->rank);
    shape[p->rank - 2] = 1;
    shape[p->rank - 1] = p->shape[p->rank - 2];
    uint32_t x = pass_turned(g, p->in[1]), y = x ? pass_turned(g, p->in[0]) : 0,
             r = product(g, p, x, y, p->rank, shape);
    return pass_reshaped(g, r, p->rank, p->shape);
}

/* How many rows of the matrix are a product of their own: a divisor of k, near BAND; 0: none is. */
static int64_t band_of(int64_t k)
{
    for (int64_t d = 0; d < MOST_BAND; d++)
        for (int s = -1; s <= 1; s += 2) {
            const int64_t b = BAND + s * d;
            if (b >= LEAST_BAND && b <= MOST_BAND && k % b == 0)
                return b;
        }
    return 0;
}

/* x with dim `axis` as parts of `band`, which come before dim `before`. */
static uint32_t cut(pgraph *g, uint32_t x, int axis, int before, int64_t band)
{
    const pnode *p = pass_at(g, x);
    eas_dim shape[GRAPH_MAX_RANK];
    memcpy(shape, p->shape, sizeof *shape * (size_t)before);
    shape[before] = p->shape[axis] / band;
    memcpy(shape + before + 1, p->shape + before, sizeof *shape * (size_t)(p->rank - before));
    shape[axis + 1] = band;
    return pass_reshaped(g, x, p->rank + 1, shape);
}

static uint32_t in_bands(pgraph *g, const pnode *p, int64_t band)
{
    eas_dim shape[GRAPH_MAX_RANK];
    const int rank = p->rank, ry = pass_at(g, p->in[1])->rank;
    const int64_t k = pass_at(g, p->in[1])->shape[ry - 2];
    memcpy(shape, p->shape, sizeof *shape * (size_t)(rank - 2));
    shape[rank - 2] = k / band;
    shape[rank - 1] = 1;
    shape[rank] = p->shape[rank - 1];
    const int rx = pass_at(g, p->in[0])->rank;
    uint32_t x = cut(g, p->in[0], rx - 1, rx - 2, band), y = x ? cut(g, p->in[1], ry - 2, ry - 2, band) : 0;
    uint32_t r = product(g, p, x, y, rank + 1, shape);
    return r ? summed(g, r, rank - 2) : 0;
}

static bool known(const pnode *x)
{
    for (int i = 0; i < x->rank; i++)
        if (!dim_known(x->shape[i]))
            return false;
    return true;
}

/* A few vectors against a matrix that lies by columns: as with one, each column is read once, by a program
 * that has all of them. */
static bool few_rows(const pgraph *g, const pnode *p, const pnode *x, const pnode *y)
{
    if (!known(x) || !known(y) || p->rank != 2 || p->shape[0] > FEW_ROWS || p->shape[1] < MANY_COLUMNS)
        return false;
    return y->shape[0] >= LEAST_K && y->shape[0] <= MOST_K && pass_last_in_memory(g, p->in[1]) == 0 &&
           pass_last_in_memory(g, p->in[0]) == 1;
}

uint32_t pass_thin(pgraph *g, const pnode *p)
{
    eas_dtype dt = (eas_dtype)p->dtype;
    const bool row = p->shape[p->rank - 2] == 1, column = p->shape[p->rank - 1] == 1;
    const pnode *x = pass_at(g, p->in[0]), *y = pass_at(g, p->in[1]);
    if (p->rank >= GRAPH_MAX_RANK)
        return 0;
    if (dtype_is_float(dt) && !row && !column)
        return few_rows(g, p, x, y) ? by_elements(g, p) : 0;
    const bool wide = (dt == EAS_F32 || dt == EAS_F64) && known(x) && known(y);
    if (wide && column && !row && x->rank == p->rank && y->rank == p->rank &&
        pass_last_in_memory(g, p->in[0]) == x->rank - 2)
        return other_way(g, p);
    if (!wide || !row || column || y->kind != KIND_LEAF || y->nwords)
        return by_elements(g, p);
    const int64_t k = y->shape[y->rank - 2], band = k > MOST_BAND ? band_of(k) : 0;
    return band ? in_bands(g, p, band) : 0;
}
