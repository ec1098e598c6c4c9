/* lower_scatter.c: updates at indices, in their order, so that results do not depend on threads.
 *
 * A program owns everything along the axis for one index of the other dims (a block of lanes along the last
 * of them): it copies, then goes through the indices. With no dim after the axis, the copy itself is done in
 * blocks. What is large is copied by a kernel of its own, by all threads.
 */
#include "exec.h"

enum { LANES = 1024, UPDATED = 128, COPIED = 4096, LARGE = 1 << 13 };
enum { PART_COPY, PART_UPDATES };

int scatter_parts(const pnode *p)
{
    const eas_dim n = shape_count(p->rank, p->shape);
    return dim_known(n) && n >= LARGE ? 2 : 1;
}

typedef struct scatter {
    lowering *w;
    const pnode *p, *x, *index;
    int nbatch, axis, many; /* many: dims of the index after the common ones */
    lindex at[MAX_DIMS];    /* of x; the axis is set on the way */
} scatter;

static void other_indices(scatter *s)
{
    lower *l = &s->w->l;
    eas_dim *grid = s->w->use->grid;
    int last = s->p->rank - 1;
    grid[0] = grid[2] = 1;
    if (last != s->axis && s->p->shape[last] != 1)
        s->at[last] =
            low_lanes_of(l, 0, s->p->shape[last], scatter_parts(s->p) == 2 ? UPDATED : LANES, &grid[0]);
    grid[1] = low_spread(l, 1, s->p->rank, s->p->shape, 1u << s->axis | 1u << last, s->at);
}

static void copy(scatter *s)
{
    lower *l = &s->w->l;
    bool last = s->axis == s->p->rank - 1;
    eas_dim n = s->p->shape[s->axis];
    eas_value iv, ok, v;
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_dim(l, n), low_int(l, last ? LANES : 1), 0, NULL, &iv,
                           NULL);
    if (last) {
        eas_value i = low_bin(l, "add", iv, low_lanes(l, 0, LANES));
        s->at[s->axis] = (lindex){i, low_bin(l, "lt", i, low_dim(l, n))};
    } else {
        s->at[s->axis] = (lindex){iv, 0};
    }
    v = low_value(l, s->p->in[0], s->at, NULL);
    eas_value off = low_offset(l, s->p->rank, s->p->shape, s->at, &ok);
    eas_builder_store(l->b, s->w->out[0], off, v, ok);
    eas_builder_loop_end(l->b, 0, NULL, NULL);
    low_forget(l, mark);
}

static eas_value joined(scatter *s, eas_value old, eas_value v)
{
    static const char *const how[] = {NULL, "add", "mul", "min", "max"};
    static const char *const truth[] = {NULL, "or", "and", "and", "or"};
    int h = (int)s->p->words[2];
    return h == SCATTER_SET ? v : low_bin(&s->w->l, s->p->dtype == EAS_BOOL ? truth[h] : how[h], old, v);
}

/* An index counted from the end if negative. Where the axis is all there is, a bad one is outside of the
 * memory, which is checked anyway. */
static eas_value where_to(scatter *s, eas_value i)
{
    lower *l = &s->w->l;
    if (s->p->rank > 1)
        return low_wrapped(l, i, s->x->shape[s->axis]);
    eas_value n = low_dim(l, s->x->shape[s->axis]);
    return eas_builder_apply(l->b, eas_op_find("where"), low_bin(l, "lt", i, low_int(l, 0)),
                             low_bin(l, "add", i, n), i);
}

/* One after the other. */
static void updates(scatter *s)
{
    lower *l = &s->w->l;
    lindex in[MAX_DIMS], up[MAX_DIMS];
    eas_dim n = 1;
    eas_value iv, ok;
    for (int k = s->nbatch; k < s->index->rank; k++)
        eas_dim_apply(EAS_DIM_MUL, n, s->index->shape[k], &n);
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_dim(l, n), low_int(l, 1), 0, NULL, &iv, NULL);
    eas_value rest = iv;
    for (int k = s->index->rank - 1; k >= 0; k--) {
        eas_dim size = s->index->shape[k];
        in[k] = k < s->nbatch ? s->at[k] : (lindex){0, 0};
        if (k < s->nbatch || size == 1)
            continue;
        in[k].v = k == s->nbatch ? rest : low_bin(l, "mod", rest, low_dim(l, size));
        rest = low_bin(l, "floordiv", rest, low_dim(l, size));
    }
    eas_value i = where_to(s, eas_builder_cast(l->b, low_value(l, s->p->in[1], in, NULL), EAS_I64));
    const pnode *u = pass_at(l->g, s->p->in[2]);
    for (int k = 0; k < u->rank; k++)
        up[k] = k < s->axis           ? s->at[k]
              : k < s->axis + s->many ? in[s->nbatch + k - s->axis]
                                      : s->at[k - s->many + 1];
    for (int k = 0; k < u->rank; k++)
        if (u->shape[k] == 1)
            up[k] = (lindex){0, 0};
    eas_value v = low_value(l, s->p->in[2], up, NULL);
    s->at[s->axis] = (lindex){i, 0};
    low_line(l, s->p);
    eas_value off = low_offset(l, s->p->rank, s->p->shape, s->at, &ok);
    eas_value old = s->p->words[2] == SCATTER_SET ? 0 : eas_builder_load(l->b, s->w->out[0], off, ok, 0);
    eas_builder_store(l->b, s->w->out[0], off, joined(s, old, v), ok);
    eas_builder_loop_end(l->b, 0, NULL, NULL);
    low_forget(l, mark);
}

/* In C order in memory: dims do not matter. */
static void copy_flat(scatter *s)
{
    lower *l = &s->w->l;
    lindex at = low_lanes_of(l, 0, shape_count(s->p->rank, s->p->shape), COPIED, &s->w->use->grid[0]);
    eas_value zero = at.ok ? eas_builder_const_typed(l->b, (eas_dtype)s->p->dtype, 0, 0) : 0;
    eas_builder_store(l->b, s->w->out[0], at.v,
                      eas_builder_load(l->b, l->param[s->p->in[0]], at.v, at.ok, zero), at.ok);
}

/* A few rows of the last dim, or a part of one. */
static void copy_rows(scatter *s)
{
    lower *l = &s->w->l;
    eas_dim *grid = s->w->use->grid;
    const int last = s->p->rank - 1;
    const int64_t n = s->p->shape[last], wide = n < COPIED ? n : COPIED, rows = COPIED / wide;
    eas_value ok;
    l->nblock = 2;
    grid[0] = (n + wide - 1) / wide;
    s->at[last] =
        low_along(l, grid[0] == 1 ? 0 : low_bin(l, "mul", eas_builder_program_id(l->b, 0), low_int(l, wide)),
                  1, wide, n);
    if (last > 0) {
        grid[1] = ceil_dim(s->p->shape[last - 1], rows);
        s->at[last - 1] = low_along(l, low_bin(l, "mul", eas_builder_program_id(l->b, 1), low_int(l, rows)),
                                    0, rows, s->p->shape[last - 1]);
        grid[2] = low_spread(l, 2, last - 1, s->p->shape, 0, s->at);
    }
    eas_value v = low_value(l, s->p->in[0], s->at, NULL),
              off = low_offset(l, s->p->rank, s->p->shape, s->at, &ok);
    eas_builder_store(l->b, s->w->out[0], off, v, ok);
}

uint32_t scatter_copies(const lowering *w)
{
    const pnode *p = pass_at(w->l.g, w->l.grp->core);
    const uint32_t x = p->in[0];
    eas_dim offset, strides[MAX_DIMS];
    return scatter_parts(p) == 2 && w->part == PART_COPY && fused_stored(w->l.f, x) &&
                   leaf_strides(w->l.g, x, &offset, strides)
             ? x
             : 0;
}

static void copy_part(scatter *s)
{
    s->w->use->grid[0] = s->w->use->grid[1] = s->w->use->grid[2] = 1;
    if (scatter_copies(s->w))
        copy_flat(s);
    else
        copy_rows(s);
}

void lower_scatter(lowering *w)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core);
    scatter s = {
        w, p,       pass_at(l->g, p->in[0]), pass_at(l->g, p->in[1]), (int)p->words[0], (int)p->words[1],
        0, {{0, 0}}};
    s.many = s.index->rank - s.nbatch;
    l->nblock = 1;
    if (scatter_parts(p) == 2 && w->part == PART_COPY) {
        copy_part(&s);
        return;
    }
    other_indices(&s);
    if (scatter_parts(p) == 1)
        copy(&s);
    updates(&s);
}
