/* lower_concat.c: tensors one after the other along an axis.
 *
 * One kernel copies as many inputs as it has parameters for. Each input has a range of the programs, and a
 * program copies a block of the one that it belongs to: it compares its number with the ranges, so nothing is
 * decided lane by lane. An input that is in memory in C order is copied flat: as rows of `inner` neighbours
 * that lie `inner` apart in the input and a row of the result apart there. Short rows are copied several at a
 * time. Other inputs are computed where they are copied, a row at a time.
 */
#include "exec.h"

enum { LANES = 4096, SHORT = 1024, COMPUTED = 6, ROOM = 3, MOST = 64 };

/* ---- which inputs share a kernel ---- */

/* The node whose memory has x's elements in C order; 0: none has. */
static uint32_t memory_of(const fusion *f, uint32_t x)
{
    const pnode *p = pass_at(f->g, x);
    while (!fused_stored(f, x) && (p->kind == KIND_RESHAPE || p->kind == KIND_ALIAS)) {
        x = p->in[0];
        p = pass_at(f->g, x);
    }
    return fused_stored(f, x) && !(p->kind == KIND_LEAF && p->nwords) ? x : 0;
}

static bool known_shape(const pnode *p)
{
    for (int d = 0; d < p->rank; d++)
        if (!dim_known(p->shape[d]))
            return false;
    return true;
}

/* The inputs of a kernel: from `first` to the one that is returned. What an input needs is guessed; too much,
 * and the input gets memory of its own (cut.c). */
static int last_input(const fusion *f, const pnode *p, int first)
{
    uint32_t most = f->params > ROOM + COMPUTED ? f->params - ROOM : COMPUTED, needs = 0;
    most = most < MOST ? most : MOST;
    int k = first;
    if (!known_shape(p))
        return first + 1;
    do
        needs += memory_of(f, p->in[k++]) ? 1 : COMPUTED;
    while (k < p->nin && needs + (memory_of(f, p->in[k]) ? 1 : COMPUTED) <= most);
    return k;
}

void concat_inputs(const fusion *f, const group *g, int part, int *first, int *last)
{
    const pnode *p = pass_at(f->g, g->core);
    *first = 0;
    *last = last_input(f, p, 0);
    while (part-- > 0) {
        *first = *last;
        *last = last_input(f, p, *first);
    }
}

int concat_parts(const fusion *f, const group *g)
{
    const pnode *p = pass_at(f->g, g->core);
    int n = 0;
    for (int k = 0; k < p->nin; k = last_input(f, p, k))
        n++;
    return n;
}

/* The dim along which an input has neighbours is that of the first one that has any. */
static bool lie_alike(const pgraph *g, const pnode *p)
{
    int first = -1;
    for (int k = 0; k < p->nin; k++) {
        const int last = pass_last_in_memory(g, p->in[k]);
        if (last >= 0 && first >= 0 && last != first)
            return false;
        first = last >= 0 ? last : first;
    }
    return true;
}

/* Is a kernel of its own better than a value that is chosen element by element? Where rows to be copied are
 * long, or there is one of each, and lie as they are in the result. */
bool concat_copies(const pgraph *g, const pnode *p)
{
    const int axis = (int)p->words[0];
    int64_t after = 1;
    bool once = true;
    for (int d = 0; d < axis; d++)
        once &= p->shape[d] == 1;
    for (int d = axis + 1; d < p->rank; d++) {
        if (!dim_known(p->shape[d]))
            return false;
        after *= p->shape[d];
    }
    for (int k = 0; k < p->nin; k++) {
        const pnode *x = pass_at(g, p->in[k]);
        if (!dim_known(x->shape[axis]) || (!once && x->shape[axis] * after < 16))
            return false;
    }
    return lie_alike(g, p);
}

/* ---- the kernel ---- */

typedef struct copying {
    lowering *w;
    const pnode *p;
    int axis, input;
    eas_value pid; /* among the programs of this input */
} copying;

static eas_dim product_of(int from, int to, const eas_dim *shape)
{
    return from < to ? shape_count(to - from, shape + from) : 1;
}

static eas_value times(lower *l, eas_value x, eas_dim d)
{
    return d == 1 ? x : low_bin(l, "mul", x, low_dim(l, d));
}

/* Rows of `inner` elements: a program has several whole ones, or a block of one. */
static void copy_flat(copying *c, uint32_t from, eas_dim outer, eas_dim inner, eas_dim whole, eas_dim start)
{
    lower *l = &c->w->l;
    const bool several = outer != 1 && dim_known(inner) && inner <= SHORT;
    const int64_t rows = several ? LANES / inner : 1, lanes = several                           ? inner
                                                            : dim_known(inner) && inner < LANES ? inner
                                                                                                : LANES;
    eas_value o = 0, j, ok = 0;
    l->nblock = several ? 2 : 1;
    j = low_lanes(l, several, lanes);
    if (several) {
        o = low_bin(l, "add", low_bin(l, "mul", c->pid, low_int(l, rows)), low_lanes(l, 0, rows));
        ok = dim_known(outer) && outer % rows == 0 ? 0 : low_bin(l, "lt", o, low_dim(l, outer));
    } else {
        eas_value chunk = c->pid;
        const eas_dim chunks = ceil_dim(inner, lanes);
        if (outer != 1) {
            o = low_bin(l, "floordiv", c->pid, low_dim(l, chunks));
            chunk = low_bin(l, "mod", c->pid, low_dim(l, chunks));
        }
        j = low_bin(l, "add", low_bin(l, "mul", chunk, low_int(l, lanes)), j);
        ok = dim_known(inner) && inner % lanes == 0 ? 0 : low_bin(l, "lt", j, low_dim(l, inner));
    }
    eas_value there = o ? low_bin(l, "add", times(l, o, inner), j) : j,
              to = o ? low_bin(l, "add", times(l, o, whole), j) : j;
    eas_value v = eas_builder_load(l->b, l->param[from], there, ok, 0);
    eas_builder_store(l->b, c->w->out[0], start == 0 ? to : low_bin(l, "add", to, low_dim(l, start)), v, ok);
}

static eas_dim flat_programs(eas_dim outer, eas_dim inner)
{
    if (outer == 0 || inner == 0)
        return 0;
    eas_dim n = ceil_dim(inner, dim_known(inner) && inner < LANES ? inner : LANES);
    if (outer != 1 && dim_known(inner) && inner <= SHORT)
        return ceil_dim(outer, LANES / inner);
    eas_dim_apply(EAS_DIM_MUL, n, outer, &n);
    return n;
}

/* The last dim that is not 1, whose elements are lanes. */
static int lanes_dim(const pnode *x)
{
    int last = x->rank - 1;
    while (last > 0 && x->shape[last] == 1)
        last--;
    return last;
}

static int64_t computed_lanes(const pnode *x)
{
    const eas_dim n = x->shape[lanes_dim(x)];
    return dim_known(n) && n < SHORT ? (n ? n : 1) : SHORT;
}

static void copy_computed(copying *c, eas_dim start)
{
    lower *l = &c->w->l;
    const uint32_t in = c->p->in[c->input];
    const pnode *x = pass_at(l->g, in);
    const int last = lanes_dim(x);
    const int64_t lanes = computed_lanes(x);
    const eas_dim chunks = ceil_dim(x->shape[last], lanes);
    lindex at[MAX_DIMS] = {{0, 0}};
    eas_value ok, rest = c->pid;
    l->nblock = 1;
    if (x->shape[last] != 1) {
        at[last] = low_along(
            l,
            low_bin(l, "mul", chunks == 1 ? low_int(l, 0) : low_bin(l, "mod", rest, low_dim(l, chunks)),
                    low_int(l, lanes)),
            0, lanes, x->shape[last]);
        rest = chunks == 1 ? rest : low_bin(l, "floordiv", rest, low_dim(l, chunks));
    }
    low_spread_from(l, rest, last, x->shape, 0, at);
    eas_value v = low_value(l, in, at, NULL);
    if (start != 0)
        at[c->axis].v =
            at[c->axis].v ? low_bin(l, "add", at[c->axis].v, low_dim(l, start)) : low_dim(l, start);
    eas_value off = low_offset(l, c->p->rank, c->p->shape, at, &ok);
    eas_builder_store(l->b, c->w->out[0], off, v, ok);
}

static eas_dim computed_programs(const pnode *x)
{
    const int last = lanes_dim(x);
    eas_dim n = ceil_dim(x->shape[last], computed_lanes(x));
    eas_dim_apply(EAS_DIM_MUL, n, product_of(0, last, x->shape), &n);
    return n;
}

/* One input; returns how many programs it takes. */
static eas_dim copy_input(copying *c, bool emit)
{
    lower *l = &c->w->l;
    const pnode *x = pass_at(l->g, c->p->in[c->input]);
    const eas_dim start = concat_start(l->g, c->p, c->input), outer = product_of(0, c->axis, x->shape);
    const uint32_t from = memory_of(l->f, c->p->in[c->input]);
    eas_dim inner = product_of(c->axis, x->rank, x->shape), whole = product_of(c->axis, x->rank, c->p->shape),
            before = start;
    if (!from || !known_shape(x)) {
        if (emit)
            copy_computed(c, start);
        return computed_programs(x);
    }
    eas_dim_apply(EAS_DIM_MUL, before, product_of(c->axis + 1, x->rank, x->shape), &before);
    if (emit)
        copy_flat(c, from, outer, inner, whole, before);
    return flat_programs(outer, inner);
}

void lower_concat(lowering *w)
{
    lower *l = &w->l;
    copying c = {.w = w, .p = pass_at(l->g, l->grp->core)};
    int first, last;
    eas_dim *grid = w->use->grid, done = 0;
    c.axis = (int)c.p->words[0];
    concat_inputs(l->f, l->grp, w->part, &first, &last);
    const eas_value pid = eas_builder_program_id(l->b, 0);
    const bool alone = last - first == 1; /* and only then sizes may be symbols */
    for (int k = first; k < last; k++) {
        const uint32_t mark = low_mark(l);
        c.input = k;
        const eas_dim n = copy_input(&c, false);
        if (n == 0)
            continue;
        c.pid = done == 0 ? pid : low_bin(l, "sub", pid, low_int(l, done));
        if (!alone)
            eas_builder_if_begin(l->b, low_bin(l, "and", low_bin(l, "ge", c.pid, low_int(l, 0)),
                                               low_bin(l, "lt", c.pid, low_dim(l, n))));
        copy_input(&c, true);
        if (!alone)
            eas_builder_if_end(l->b, 0, NULL, NULL);
        low_forget(l, mark);
        done = alone ? n : done + n;
    }
    grid[1] = grid[2] = 1;
    grid[0] = done;
}
