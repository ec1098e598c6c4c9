/* lower_attention_back.c: products of a matrix that is computed tile by tile: derivatives of attention
 * (match_back.c tells which).
 *
 * A program owns some rows of E (for E @ w) or some columns (for E^T @ w), and walks along the other dim in
 * tiles. In a tile the walked dim is the first one and the owned dim the second, along lanes. So the
 * program's own factors of the products in E are transposed once, before the walk; the other factors, and the
 * tile of E that is multiplied with w, are used as they are.
 */
#include "exec.h"

enum { OWN = 64, WALK = 64 };

typedef struct backward {
    lowering *w;
    const back *b;
    const pnode *s; /* the space of E */
    lindex batch[MAX_DIMS];
    int64_t own, walk;
    eas_dim nown, nwalk;
    eas_dtype sum;
    eas_value factor[2]; /* per product in E: the program's, as (k, own) */
} backward;

static lindex whole(lower *l, int axis, int64_t n) { return (lindex){low_lanes(l, axis, n), 0}; }

/* A tile of the tensor: rows by r, columns by c. */
static eas_value tile(const backward *a, uint32_t id, lindex r, lindex c, int64_t first, int64_t second)
{
    lower *l = &a->w->l;
    const pnode *x = pass_at(l->g, id);
    lindex at[MAX_DIMS];
    for (int i = 0; i + 2 < x->rank; i++)
        at[i] = x->shape[i] == 1 ? (lindex){0, 0} : a->batch[i + a->s->rank - x->rank];
    at[x->rank - 2] = x->shape[x->rank - 2] == 1 ? (lindex){0, r.ok} : r;
    at[x->rank - 1] = x->shape[x->rank - 1] == 1 ? (lindex){0, c.ok} : c;
    return eas_builder_cast(
        l->b, eas_builder_broadcast(l->b, low_value(l, id, at, NULL), 2, (int64_t[]){first, second}), a->sum);
}

static int64_t depth_of(const lower *l, uint32_t core)
{
    const pnode *x = pass_at(l->g, pass_at(l->g, core)->in[0]);
    return x->shape[x->rank - 1];
}

/* A factor of product `core` that has a row for each of n indices along the first axis of a block: the left
 * one has rows, the right one columns of theirs. */
static eas_value factor(const backward *a, uint32_t core, bool left, lindex along, int64_t n)
{
    lower *l = &a->w->l;
    const int64_t k = depth_of(l, core);
    const uint32_t id = pass_at(l->g, core)->in[left ? 0 : 1];
    return left ? tile(a, id, along, whole(l, 1, k), n, k) : tile(a, id, whole(l, 1, k), along, n, k);
}

static eas_value nothing(const backward *a) { return eas_builder_const_typed(a->w->l.b, a->sum, 0, 0); }

/* The value of E in a tile (walk, own). */
static eas_value matrix(const backward *a, uint32_t id, lindex walked, lindex owned)
{
    lower *l = &a->w->l;
    int8_t map[MAX_DIMS];
    for (int d = 0; d < a->s->rank; d++)
        map[d] = (int8_t)d;
    low_stand_at(&a->w->l, a->batch, a->s, a->b->rows ? owned : walked, a->b->rows ? walked : owned);
    eas_value v = eas_builder_cast(l->b, low_value(l, id, NULL, map), a->sum);
    v = eas_builder_broadcast(l->b, v, 2, (int64_t[]){a->walk, a->own});
    return walked.ok ? eas_builder_apply(l->b, eas_op_find("where"), walked.ok, v, nothing(a)) : v;
}

static void one_tile(const backward *a, lindex owned, eas_value first, const eas_value *now, eas_value *next)
{
    lower *l = &a->w->l;
    const lindex walked = low_along(l, first, 0, a->walk, a->nwalk);
    for (int i = 0; i < a->b->ncores; i++) {
        const uint32_t core = a->b->core[i];
        eas_value zero = eas_builder_broadcast(l->b, nothing(a), 2, (int64_t[]){a->walk, a->own});
        eas_value x = factor(a, core, !a->b->rows, walked, a->walk);
        l->fold[core] = eas_builder_cast(l->b, eas_builder_matmul(l->b, x, a->factor[i], zero),
                                         (eas_dtype)pass_at(l->g, core)->dtype);
    }
    eas_value e[BACK_ROOTS];
    for (int i = 0; i < a->b->n; i++)
        e[i] = matrix(a, a->b->value[i], walked, owned);
    for (int i = 0; i < a->b->n; i++) {
        const pnode *w = pass_at(l->g, a->b->with[i]);
        const int64_t width = w->shape[w->rank - 1];
        eas_value y = tile(a, a->b->with[i], walked, whole(l, 1, width), a->walk, width);
        next[i] = eas_builder_matmul(l->b, eas_builder_trans(l->b, e[i], NULL), y, now[i]);
    }
    for (int i = 0; i < a->b->ncores; i++)
        l->fold[a->b->core[i]] = 0;
}

/* The condition under which there are scores at all (where(condition, ..., -inf)): tiles in which it holds
 * nowhere add nothing. */
static uint32_t gate(const backward *a)
{
    const lower *l = &a->w->l;
    double v;
    if (a->s->op != GRAPH_WHERE || !pass_is_const(l->g, a->s->in[2], &v) || !(v < -1e300) ||
        l->f->at[a->s->in[0]].heavy)
        return 0;
    return a->s->in[0];
}

static eas_value any_there(const backward *a, uint32_t cond, lindex owned, eas_value first)
{
    lower *l = &a->w->l;
    const lindex walked = low_along(l, first, 0, a->walk, a->nwalk);
    int8_t map[MAX_DIMS], to[MAX_DIMS];
    low_stand_at(&a->w->l, a->batch, a->s, a->b->rows ? owned : walked, a->b->rows ? walked : owned);
    for (int d = 0; d < a->s->rank; d++)
        map[d] = (int8_t)d;
    map_input(l->g, a->s, 0, map, to);
    eas_value v = eas_builder_broadcast(l->b, low_value(l, cond, NULL, to), 2, (int64_t[]){a->walk, a->own});
    v = eas_builder_reduce(l->b, eas_op_find("or"), eas_builder_cast(l->b, v, EAS_U8), 1);
    return low_bin(l, "ne", eas_builder_reduce(l->b, eas_op_find("or"), v, 0),
                   eas_builder_const_typed(l->b, EAS_U8, 0, 0));
}

static int64_t tile_size(eas_dim n, int64_t most)
{
    if (!dim_known(n))
        return most;
    for (int64_t t = most; t >= most / 2; t -= 8)
        if (n % t == 0)
            return t;
    return n < most ? (n ? n : 1) : most;
}

void lower_attention_back(lowering *w)
{
    lower *l = &w->l;
    const back *b = &l->f->backs.at[l->grp->back];
    backward a = {.w = w, .b = b, .s = pass_at(l->g, b->scores)};
    l->nblock = 2;
    a.sum = a.s->dtype == EAS_F64 ? EAS_F64 : EAS_F32;
    a.nown = a.s->shape[a.s->rank - (b->rows ? 2 : 1)];
    a.nwalk = a.s->shape[a.s->rank - (b->rows ? 1 : 2)];
    a.own = tile_size(a.nown, OWN);
    a.walk = tile_size(a.nwalk, WALK);
    w->use->grid[0] = ceil_dim(a.nown, a.own);
    w->use->grid[2] = 1;
    w->use->grid[1] = low_spread(l, 1, a.s->rank - 2, a.s->shape, 0, a.batch);
    eas_value first = low_bin(l, "mul", eas_builder_program_id(l->b, 0), low_int(l, a.own)), iv,
              init[BACK_ROOTS], now[BACK_ROOTS], next[BACK_ROOTS], last[BACK_ROOTS];
    const lindex down = low_along(l, first, 0, a.own, a.nown), across = low_along(l, first, 1, a.own, a.nown);
    for (int i = 0; i < b->ncores; i++)
        a.factor[i] = eas_builder_trans(l->b, factor(&a, b->core[i], b->rows, down, a.own), NULL);
    for (int i = 0; i < b->n; i++) {
        const pnode *y = pass_at(l->g, b->with[i]);
        init[i] = eas_builder_broadcast(l->b, nothing(&a), 2, (int64_t[]){a.own, y->shape[y->rank - 1]});
    }
    const uint32_t cond = gate(&a), mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_dim(l, a.nwalk), low_int(l, a.walk), b->n, init, &iv,
                           now);
    if (cond)
        eas_builder_if_begin(l->b, any_there(&a, cond, across, iv));
    one_tile(&a, across, iv, now, next);
    if (cond) {
        eas_value merged[BACK_ROOTS];
        eas_builder_if_else(l->b, b->n, next);
        eas_builder_if_end(l->b, b->n, now, merged);
        memcpy(next, merged, sizeof next);
    }
    eas_builder_loop_end(l->b, b->n, next, last);
    low_forget(l, mark);
    for (int i = 0; i < b->n; i++) {
        const pnode *p = pass_at(l->g, b->root[i]);
        l->fold[b->root[i]] = eas_builder_cast(l->b, last[i], (eas_dtype)p->dtype);
        low_stand_at(&a.w->l, a.batch, p, down, whole(l, 1, p->shape[p->rank - 1]));
        low_store(w, (uint32_t)i);
    }
}
