/* lower_scan.c: running sums and the like along an axis, with what follows element by element.
 *
 * Along the last axis: rows as whole blocks, or in chunks with the result so far carried on. Along another:
 * lanes are columns, and a loop goes down the axis.
 */
#include "exec.h"

enum { WHOLE = 8192, CHUNK = 1024, COLUMNS = 256 };

typedef struct scan {
    lowering *w;
    const pnode *p;
    int axis; /* of the space */
    eas_dim n;
    eas_dtype sum;
    const char *join;
    int8_t map[MAX_DIMS];
} scan;

/* Along the axis, from the other end if the scan is reversed. */
static void place_axis(const scan *s, eas_value i, eas_value ok)
{
    lower *l = &s->w->l;
    if (s->p->words[1])
        i = low_bin(l, "sub", low_bin(l, "sub", low_dim(l, s->n), low_int(l, 1)), i);
    l->at[l->mdim[s->axis]] = (lindex){i, ok};
}

static eas_value input(const scan *s, eas_value ok)
{
    lower *l = &s->w->l;
    eas_value v = eas_builder_cast(l->b, low_value(l, s->p->in[0], NULL, s->map), s->sum);
    return ok ? eas_builder_apply(l->b, eas_op_find("where"), ok, v, low_neutral(l, s->join, s->sum)) : v;
}

static void store_all(const scan *s, eas_value v)
{
    lower *l = &s->w->l;
    l->fold[l->grp->core] = eas_builder_cast(l->b, v, (eas_dtype)s->p->dtype);
    for (uint32_t i = 0; i < l->grp->roots.len; i++)
        low_store(s->w, i);
    l->fold[l->grp->core] = 0;
}

static void rows_whole(const scan *s)
{
    lower *l = &s->w->l;
    int64_t most = dim_most(s->n);
    eas_value i = low_lanes(l, 0, most), ok = dim_known(s->n) ? 0 : low_bin(l, "lt", i, low_dim(l, s->n));
    place_axis(s, i, ok);
    eas_value v = eas_builder_broadcast(l->b, input(s, ok), 1, (int64_t[]){most});
    store_all(s, eas_builder_scan(l->b, eas_op_find(s->join), v, 0));
}

static void rows_in_chunks(const scan *s)
{
    lower *l = &s->w->l;
    eas_value so_far = low_neutral(l, s->join, s->sum), iv, now, end;
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_dim(l, s->n), low_int(l, CHUNK), 1, &so_far, &iv, &now);
    eas_value i = low_bin(l, "add", iv, low_lanes(l, 0, CHUNK)), ok = low_bin(l, "lt", i, low_dim(l, s->n));
    place_axis(s, i, ok);
    eas_value v = eas_builder_broadcast(l->b, input(s, ok), 1, (int64_t[]){CHUNK});
    store_all(s, low_bin(l, s->join, now, eas_builder_scan(l->b, eas_op_find(s->join), v, 0)));
    eas_value next = low_bin(l, s->join, now, eas_builder_reduce(l->b, eas_op_find(s->join), v, 0));
    eas_builder_loop_end(l->b, 1, &next, &end);
    low_forget(l, mark);
}

static void down_columns(const scan *s, int64_t columns)
{
    lower *l = &s->w->l;
    eas_value zero = low_neutral(l, s->join, s->sum), so_far = eas_builder_broadcast(l->b, zero, 1, &columns),
              iv, now, end;
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_dim(l, s->n), low_int(l, 1), 1, &so_far, &iv, &now);
    place_axis(s, iv, 0);
    eas_value next = low_bin(l, s->join, now, input(s, 0));
    store_all(s, next);
    eas_builder_loop_end(l->b, 1, &next, &end);
    low_forget(l, mark);
}

/* Indices of all dims but the axis: the last of them as lanes if the axis is not the last. */
static int64_t other_indices(const scan *s)
{
    lower *l = &s->w->l;
    eas_dim *grid = s->w->use->grid;
    int last = l->nm - 1, axis = l->mdim[s->axis];
    int64_t lanes = 1;
    grid[0] = grid[2] = 1;
    if (last != axis) {
        eas_dim n = l->msize[last];
        lanes = dim_known(n) && n < COLUMNS ? (n ? n : 1) : COLUMNS;
        l->at[last] = low_lanes_of(l, 0, n, COLUMNS, &grid[0]);
    }
    const int along =
        last == axis ? 0 : 1; /* neighbouring programs have neighbouring rows: each can prefetch the next */
    grid[1] = 1;
    grid[along] = low_spread(l, along, l->nm, l->msize, 1u << axis | 1u << last, l->at);
    return lanes;
}

void lower_scan(lowering *w)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core);
    int axis = (int)p->words[0];
    eas_dtype dt = (eas_dtype)p->dtype;
    scan s = {
        w,  p, axis, p->shape[axis], dt == EAS_F16 || dt == EAS_BF16 ? EAS_F32 : dt, graph_rows[p->op].ir,
        {0}};
    memcpy(s.map, l->f->at[l->grp->core].map, sizeof s.map);
    l->nblock = 1;
    if (s.n == 1) { /* the merged space has no dim of size 1: the axis is appended to it */
        l->mdim[axis] = (int8_t)l->nm;
        l->mlast[l->nm] = (int8_t)axis;
        l->msize[l->nm++] = 1;
    }
    int64_t lanes = other_indices(&s);
    if (l->mdim[axis] != l->nm - 1)
        down_columns(&s, lanes);
    else if (dim_most(s.n) <= WHOLE && dim_most(s.n) > 0)
        rows_whole(&s);
    else
        rows_in_chunks(&s);
}
