/* lower_sort.c: sort and argsort along an axis, by a network of compare-exchanges.
 *
 * Every exchange puts the smaller element first, so elements beyond the end, taken as larger than all, never move and need no memory: any length works.
 * A program sorts one row in the memory of the result. NaN is larger than all numbers; equal elements keep their order in argsort.
 */
#include "exec.h"

enum { LANES = 1024 };

static eas_value int_of(lower *l, int64_t v) { return eas_const_typed(l->b, EAS_I64, 0, v); }

typedef struct sorting {
    lowering *w;
    const pnode *p;
    int axis;
    bool by_index; /* argsort: the result holds indices into the input */
    bool down;
    lindex at[MAX_DIMS];
} sorting;

static eas_value offset(sorting *s, eas_value i, eas_value ok)
{
    eas_value all;
    s->at[s->axis] = (lindex){i, ok};
    return low_offset(&s->w->l, s->p->rank, s->p->shape, s->at, &all);
}

static eas_value key_at(sorting *s, eas_value i, eas_value ok)
{
    s->at[s->axis] = (lindex){i, ok};
    return low_value(&s->w->l, s->p->in[0], s->at, NULL);
}

static eas_value op1(lower *l, const char *name, eas_value x) { return eas_apply(l->b, eas_op_find(name), x, 0, 0); }

/* Does x come before y? */
static eas_value before(sorting *s, eas_value x, eas_value y)
{
    lower *l = &s->w->l;
    eas_dtype dt = eas_value_dtype(l->b, x);
    if (dt == EAS_BOOL) {
        x = eas_cast(l->b, x, EAS_U8);
        y = eas_cast(l->b, y, EAS_U8);
    }
    eas_value r = low_bin(l, s->down ? "gt" : "lt", x, y);
    if (!dtype_is_float(dt))
        return r;
    eas_value nx = op1(l, "isnan", x), ny = op1(l, "isnan", y);
    return low_bin(l, "or", r, s->down ? low_bin(l, "and", nx, op1(l, "not", ny)) : low_bin(l, "and", ny, op1(l, "not", nx)));
}

/* Elements i < j of the row in order; lanes with j beyond the end do nothing. */
static void exchange(sorting *s, eas_value i, eas_value j)
{
    lower *l = &s->w->l;
    eas_value ok = low_bin(l, "lt", j, low_dim(l, s->p->shape[s->axis])), out = s->w->out[0], wrong;
    eas_value at_i = offset(s, i, ok), at_j = offset(s, j, ok);
    eas_value x = eas_load(l->b, out, at_i, ok, 0), y = eas_load(l->b, out, at_j, ok, 0);
    if (s->by_index) {
        uint32_t mark = low_mark(l);
        eas_value kx = key_at(s, x, ok), ky = key_at(s, y, ok);
        low_forget(l, mark);
        eas_value tie = low_bin(l, "and", op1(l, "not", low_bin(l, "or", before(s, kx, ky), before(s, ky, kx))), low_bin(l, "lt", y, x));
        wrong = low_bin(l, "or", before(s, ky, kx), tie);
    } else {
        wrong = before(s, y, x);
    }
    eas_store(l->b, out, at_i, eas_apply(l->b, eas_op_find("where"), wrong, y, x), ok);
    eas_store(l->b, out, at_j, eas_apply(l->b, eas_op_find("where"), wrong, x, y), ok);
}

/* All pairs of one step: runs of 2*half elements, the lower half against the upper one, mirrored or straight. */
static void step(sorting *s, eas_value half, bool mirrored)
{
    lower *l = &s->w->l;
    eas_value n = low_dim(l, s->p->shape[s->axis]), one = int_of(l, 1), two = int_of(l, 2), iv;
    eas_value run = low_bin(l, "mul", half, two);
    eas_value runs = low_bin(l, "floordiv", low_bin(l, "add", n, low_bin(l, "sub", run, one)), run);
    eas_loop_begin(l->b, int_of(l, 0), low_bin(l, "mul", runs, half), int_of(l, LANES), 0, NULL, &iv, NULL);
    eas_value q = low_bin(l, "add", iv, low_lanes(l, 0, LANES));
    eas_value t = low_bin(l, "and", q, low_bin(l, "sub", half, one)), start = low_bin(l, "mul", low_bin(l, "sub", q, t), two);
    eas_value far = mirrored ? low_bin(l, "sub", low_bin(l, "sub", run, one), t) : low_bin(l, "add", t, half);
    exchange(s, low_bin(l, "add", start, t), low_bin(l, "add", start, far));
    eas_loop_end(l->b, 0, NULL, NULL);
}

static void fill(sorting *s)
{
    lower *l = &s->w->l;
    eas_value n = low_dim(l, s->p->shape[s->axis]), iv;
    uint32_t mark = low_mark(l);
    eas_loop_begin(l->b, int_of(l, 0), n, int_of(l, LANES), 0, NULL, &iv, NULL);
    eas_value i = low_bin(l, "add", iv, low_lanes(l, 0, LANES)), ok = low_bin(l, "lt", i, n);
    eas_value v = s->by_index ? i : key_at(s, i, ok);
    eas_store(l->b, s->w->out[0], offset(s, i, ok), v, ok);
    eas_loop_end(l->b, 0, NULL, NULL);
    low_forget(l, mark);
}

static void network(sorting *s)
{
    lower *l = &s->w->l;
    eas_value half = int_of(l, 1), now, end, two = int_of(l, 2), inner, last;
    eas_while_begin(l->b, 1, &half, &now);
    eas_while_do(l->b, low_bin(l, "lt", now, low_dim(l, s->p->shape[s->axis])));
    step(s, now, true);
    eas_value next = low_bin(l, "floordiv", now, two);
    eas_while_begin(l->b, 1, &next, &inner);
    eas_while_do(l->b, low_bin(l, "gt", inner, int_of(l, 0)));
    step(s, inner, false);
    next = low_bin(l, "floordiv", inner, two);
    eas_while_end(l->b, 1, &next, &last);
    next = low_bin(l, "mul", now, two);
    eas_while_end(l->b, 1, &next, &end);
}

void lower_sort(lowering *w)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core);
    sorting s = {w, p, (int)p->words[0], !strcmp(graph_rows[p->op].name, "argsort"), p->words[1] != 0, {{0, 0}}};
    eas_dim *grid = w->use->grid;
    eas_value rest = 0;
    l->nblock = 1;
    grid[0] = grid[1] = grid[2] = 1;
    for (int d = p->rank - 1; d >= 0; d--) {
        if (d == s.axis || p->shape[d] == 1)
            continue;
        rest = rest ? rest : eas_program_id(l->b, 0);
        s.at[d].v = low_bin(l, "mod", rest, low_dim(l, p->shape[d]));
        rest = low_bin(l, "floordiv", rest, low_dim(l, p->shape[d]));
        eas_dim_apply(EAS_DIM_MUL, grid[0], p->shape[d], &grid[0]);
    }
    fill(&s);
    network(&s);
}
