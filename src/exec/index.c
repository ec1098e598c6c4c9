/* index.c: the value of a node at an index, as kernel code.
 *
 * Problem: a kernel computes its results at given indices. A view (slice, pad, reshape, gather, ...) should
 * cost no memory: it should only change the index at which its input is read.
 *
 * Idea: one recursive function, low_value: it emits the code that computes node p at an index. A view
 * computes the index of its input and goes on there; a node with memory becomes a load; any other node is
 * computed from its inputs at their indices. An index is one integer value per dim, a scalar or a block along
 * one axis of the program's block, together with the lanes where it lies within the dim (`ok`); these masks
 * are joined on the way and end up at the loads. A value has only the block axes that it depends on, so what
 * is broadcast is computed once.
 *
 * Assumed: a node is asked for at few different indices (fuse.c counts them and stores nodes that are read at
 * many); otherwise the code would double with each view in a chain. Values are remembered by node and index,
 * so asking twice costs nothing.
 */
#include "exec.h"

/* ---- small things ---- */

eas_value low_bin(lower *l, const char *op, eas_value x, eas_value y)
{
    return eas_builder_apply(l->b, eas_op_find(op), x, y, 0);
}

eas_value low_and(lower *l, eas_value x, eas_value y)
{
    return !x ? y : !y || x == y ? x : low_bin(l, "and", x, y);
}

eas_value low_int(lower *l, int64_t v) { return eas_builder_const_typed(l->b, EAS_I64, 0, v); }

/* Reports a state that cannot occur unless the builder has failed before; then the builder's error is the
 * one that counts. */
static void impossible(lower *l, const char *what, const char *why)
{
    if (!l->st && !eas_builder_status(l->b))
        l->st = base_fail(EAS_ERR_INTERNAL, "exec: %s%s", what, why);
}

eas_value low_dim(lower *l, eas_dim d)
{
    if (dim_known(d))
        return low_int(l, d);
    for (int i = 0; i < l->ndims; i++)
        if (l->dims[i].d == d)
            return l->dims[i].v;
    impossible(l, "a size", " that is no parameter");
    return low_int(l, 1);
}

eas_dim low_spread(lower *l, int axis, int rank, const eas_dim *shape, uint32_t skip, lindex *at)
{
    for (int d = 0; d < rank; d++)
        if (shape[d] != 1 && !(skip >> d & 1))
            return low_spread_from(l, eas_builder_program_id(l->b, axis), rank, shape, skip, at);
    return 1;
}

eas_dim low_spread_from(lower *l, eas_value rest, int rank, const eas_dim *shape, uint32_t skip, lindex *at)
{
    eas_dim count = 1;
    int first = 0;
    while (first < rank && (shape[first] == 1 || skip >> first & 1))
        first++;
    for (int d = rank - 1; d >= first; d--) {
        if (shape[d] == 1 || skip >> d & 1)
            continue;
        at[d] = (lindex){d == first ? rest : low_bin(l, "mod", rest, low_dim(l, shape[d])), 0};
        rest = low_bin(l, "floordiv", rest, low_dim(l, shape[d]));
        eas_dim_apply(EAS_DIM_MUL, count, shape[d], &count);
    }
    return count;
}

/* x * d, where either may be simple */
static eas_value scaled(lower *l, eas_value x, eas_dim d)
{
    int64_t c;
    if (d == 1)
        return x;
    if (dim_known(d) && eas_value_const_int(l->b, x, &c))
        return low_int(l, c * d);
    return low_bin(l, "mul", x, low_dim(l, d));
}

static eas_value plus(lower *l, eas_value x, eas_value y)
{
    int64_t c;
    if (!x || !y)
        return x ? x : y;
    if (eas_value_const_int(l->b, y, &c) && c == 0)
        return x;
    return low_bin(l, "add", x, y);
}

static eas_value plus_dim(lower *l, eas_value x, eas_dim d)
{
    return d == 0 ? x : x ? plus(l, x, low_dim(l, d)) : low_dim(l, d);
}

static int lanes(lower *l, eas_value v)
{
    int64_t shape[4];
    int rank = eas_value_shape(l->b, v, shape), n = 1;
    for (int i = 0; i < rank; i++)
        n *= (int)(shape[i] > 1 ? 2 : 1);
    return n;
}

static eas_value bits_value(lower *l, eas_dtype dt, int64_t bits)
{
    return eas_builder_const_typed(l->b, dt, dtype_is_float(dt) ? ir_bits_to_double(dt, bits) : 0, bits);
}

eas_value low_neutral(lower *l, const char *join, eas_dtype dt)
{
    return bits_value(l, dt, graph_neutral(join, dt));
}

/* ---- values that were computed before ---- */

uint32_t low_mark(const lower *l) { return l->memos.len; }

void low_forget(lower *l, uint32_t mark)
{
    while (l->memos.len > mark) {
        memo *m = &l->memos.at[--l->memos.len];
        l->newest[m->node] = m->older;
    }
}

static eas_value recall(const lower *l, uint32_t p, const lindex *at, const int8_t *map)
{
    int rank = pass_at(l->g, p)->rank;
    for (uint32_t i = l->newest[p]; i; i = l->memos.at[i - 1].older) {
        const memo *m = &l->memos.at[i - 1];
        if (at ? m->rank == rank && !memcmp(m->by.at, at, sizeof *at * (size_t)rank)
               : m->rank == -1 && !memcmp(m->by.map, map, (size_t)rank))
            return m->v;
    }
    return 0;
}

static eas_value remember(lower *l, uint32_t p, const lindex *at, const int8_t *map, eas_value v)
{
    int rank = pass_at(l->g, p)->rank;
    memo m = {.node = p, .older = l->newest[p], .v = v, .rank = (int8_t)(at ? rank : -1)};
    if (at)
        memcpy(m.by.at, at, sizeof *at * (size_t)rank);
    else
        memcpy(m.by.map, map, (size_t)rank);
    if (!vec_push(&l->memos, m))
        l->st = base_fail_oom(sizeof m);
    else
        l->newest[p] = l->memos.len;
    return v;
}

/* ---- memory ---- */

bool leaf_strides(const pgraph *g, uint32_t p, eas_dim *offset, eas_dim *strides)
{
    const pnode *n = pass_at(g, p);
    *offset = 0;
    if (n->kind == KIND_LEAF && n->nwords) {
        *offset = n->words[0];
        memcpy(strides, n->words + 1, sizeof *strides * n->rank);
        return false;
    }
    eas_dim dense = 1;
    for (int i = n->rank - 1; i >= 0; i--) {
        strides[i] = dense;
        eas_dim_apply(EAS_DIM_MUL, dense, n->shape[i], &dense);
    }
    return true;
}

/* The sum of index times stride: scalars first, so that a block is a base plus lanes. */
static eas_value offset_of(lower *l, int n, const lindex *at, const eas_dim *strides, const bool *negative,
                           eas_dim start, eas_value *ok)
{
    eas_value base = 0, block = 0;
    *ok = 0;
    for (int i = 0; i < n; i++) {
        if (!at[i].v || strides[i] == 0)
            continue;
        eas_value t = scaled(l, at[i].v, strides[i]);
        if (negative && negative[i])
            t = eas_builder_apply(l->b, eas_op_find("neg"), t, 0, 0);
        if (lanes(l, t) == 1)
            base = plus(l, base, t);
        else
            block = plus(l, block, t);
        *ok = low_and(l, *ok, at[i].ok);
    }
    base = plus_dim(l, base, start);
    if (base && block)
        return low_bin(l, "add", base, block);
    return base ? base : block ? block : low_int(l, 0);
}

eas_value low_sum(lower *l, int n, const lindex *at, const eas_dim *strides, eas_value *ok)
{
    return offset_of(l, n, at, strides, NULL, 0, ok);
}

eas_value low_offset(lower *l, int rank, const eas_dim *shape, const lindex *at, eas_value *ok)
{
    eas_dim strides[MAX_DIMS], dense = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = dense;
        eas_dim_apply(EAS_DIM_MUL, dense, shape[i], &dense);
    }
    return offset_of(l, rank, at, strides, NULL, 0, ok);
}

/* The block axis along which v varies; -1: none, -2: several. */
static int axis_of(lower *l, eas_value v)
{
    int64_t shape[4];
    int rank = eas_value_shape(l->b, v, shape), axis = -1;
    for (int i = 0; i < rank; i++)
        if (shape[i] > 1)
            axis = axis == -1 ? i : -2;
    return axis;
}

static eas_value swapped(lower *l, eas_value v, int a, int b)
{
    int axes[4] = {0, 1, 2, 3};
    int64_t shape[4];
    if (!v || eas_value_shape(l->b, v, shape) != l->nblock)
        return v;
    if (axis_of(l, v) != -2) { /* one row of lanes: only its direction changes */
        int64_t t = shape[a];
        shape[a] = shape[b];
        shape[b] = t;
        return eas_builder_reshape(l->b, v, l->nblock, shape);
    }
    axes[a] = b;
    axes[b] = a;
    return eas_builder_trans(l->b, v, axes);
}

/* Neighbours in memory along a block axis that is not the last one: load with that axis last, then turn the
 * block. */
static bool load_turned(lower *l, eas_value buf, int n, const lindex *at, const eas_dim *strides,
                        eas_dim start, eas_value *out)
{
    int unit = -1, last = -1;
    for (int i = 0; i < n; i++) {
        if (!at[i].v || strides[i] == 0)
            continue;
        int a = axis_of(l, at[i].v);
        if (a == -2)
            return false;
        if (a >= 0 && strides[i] == 1)
            unit = a;
        if (a > last)
            last = a;
    }
    if (unit < 0 || unit == last || l->nblock < 2)
        return false;
    lindex turned[MAX_DIMS];
    for (int i = 0; i < n; i++)
        turned[i] = (lindex){swapped(l, at[i].v, unit, last), swapped(l, at[i].ok, unit, last)};
    eas_value ok, off = offset_of(l, n, turned, strides, NULL, start, &ok);
    *out = swapped(l, eas_builder_load(l->b, buf, off, ok, 0), unit, last);
    return true;
}

static eas_value load_strided(lower *l, uint32_t p, int n, const lindex *at, const eas_dim *strides,
                              eas_dim start)
{
    bool negative[MAX_DIMS] = {0};
    eas_dim size[MAX_DIMS];
    eas_value v, ok;
    /* strides of data are plain numbers: a negative one would read as a symbol */
    const pnode *q = pass_at(l->g, p);
    bool plain = q->kind == KIND_LEAF && q->nwords, any = false;
    for (int i = 0; i < n; i++) {
        negative[i] = plain && strides[i] < 0;
        any |= negative[i];
        size[i] = negative[i] ? -strides[i] : strides[i];
    }
    if (!any && load_turned(l, l->param[p], n, at, size, start, &v))
        return v;
    eas_value off = offset_of(l, n, at, size, negative, start, &ok);
    return eas_builder_load(l->b, l->param[p], off, ok, 0);
}

static eas_value load_at(lower *l, uint32_t p, const lindex *at)
{
    eas_dim start, strides[MAX_DIMS];
    leaf_strides(l->g, p, &start, strides);
    return load_strided(l, p, pass_at(l->g, p)->rank, at, strides, start);
}

/* At the group's own index; dims of the space that were merged count as one. Node p's memory has the shape
 * and strides of `as`: p itself, or a reshape of it. */
static eas_value load_mapped(lower *l, uint32_t p, uint32_t as, const int8_t *map)
{
    const pnode *n = pass_at(l->g, as);
    eas_dim start, strides[MAX_DIMS], own[MAX_DIMS] = {0};
    leaf_strides(l->g, as, &start, own);
    for (int d = 0; d < MAX_DIMS; d++)
        strides[d] = 0;
    for (int k = 0; k < n->rank; k++)
        /* the last dim of a run counts */
        if (map[k] >= 0 && n->shape[k] != 1 && l->mlast[l->mdim[map[k]]] == map[k])
            strides[l->mdim[map[k]]] = own[k];
    return load_strided(l, p, l->nm, l->at, strides, start);
}

/* ---- views ---- */

/* An index into a run of dims as one number, and back. */
static eas_value joined(lower *l, int n, const lindex *at, const eas_dim *shape, eas_value *ok)
{
    eas_value v = 0;
    *ok = 0;
    for (int i = 0; i < n; i++) {
        v = v ? scaled(l, v, shape[i]) : 0;
        v = plus(l, v, at[i].v);
        *ok = low_and(l, *ok, at[i].ok);
    }
    return v;
}

static void parted(lower *l, eas_value v, eas_value ok, int n, lindex *at, const eas_dim *shape)
{
    for (int i = n - 1; i >= 0; i--) {
        bool first = true;
        for (int k = 0; k < i; k++)
            first &= shape[k] == 1;
        if (!v || shape[i] == 1) {
            at[i] = (lindex){0, 0};
        } else if (first) {
            at[i] = (lindex){v, ok};
            v = 0;
        } else {
            at[i] = (lindex){low_bin(l, "mod", v, low_dim(l, shape[i])), ok};
            v = low_bin(l, "floordiv", v, low_dim(l, shape[i]));
        }
    }
}

/* Runs of dims with the same number of elements on both sides. */
static void reshape_index(lower *l, const pnode *p, const pnode *x, const lindex *at, lindex *to)
{
    int i = 0, k = 0;
    while (i < p->rank || k < x->rank) {
        int i0 = i, k0 = k;
        eas_dim a = i < p->rank ? p->shape[i++] : 1, b = k < x->rank ? x->shape[k++] : 1;
        while (a != b && (i < p->rank || k < x->rank)) {
            bool more =
                k < x->rank && (i == p->rank || (dim_known(a) && dim_known(b) ? b < a : i - i0 > k - k0));
            if (more)
                eas_dim_apply(EAS_DIM_MUL, b, x->shape[k++], &b);
            else if (i < p->rank)
                eas_dim_apply(EAS_DIM_MUL, a, p->shape[i++], &a);
        }
        if (i - i0 == 1 && k - k0 == 1) {
            to[k0] = at[i0];
            continue;
        }
        eas_value ok, v = joined(l, i - i0, at + i0, p->shape + i0, &ok);
        parted(l, v, ok, k - k0, to + k0, x->shape + k0);
    }
}

static void slice_index(lower *l, const pnode *p, const lindex *at, lindex *to)
{
    for (int i = 0; i < p->rank; i++) {
        int64_t step = p->words[p->rank + i];
        eas_value v = at[i].v;
        if (v && step != 1)
            v = low_bin(l, "mul", v, low_int(l, step));
        to[i] = (lindex){plus_dim(l, v, p->words[i]), at[i].ok};
    }
}

static void window_index(lower *l, const pnode *p, const pnode *x, const lindex *at, lindex *to)
{
    for (int i = 0; i < x->rank; i++)
        to[i] = at[i];
    for (int w = 0; w < p->words[0]; w++) {
        int axis = (int)p->words[1 + 3 * w];
        const lindex *k = &at[x->rank + w];
        eas_value far = at[axis].v ? scaled(l, at[axis].v, p->words[2 + 3 * w]) : 0,
                  near = k->v ? scaled(l, k->v, p->words[3 + 3 * w]) : 0;
        to[axis] = (lindex){plus(l, far, near), low_and(l, at[axis].ok, k->ok)};
    }
}

/* lo <= v < lo + n, as far as that is not known; v counted from lo. */
static eas_value shifted(lower *l, eas_value v, eas_dim lo, eas_dim n, eas_dim whole, eas_value *inside)
{
    eas_value zero = low_int(l, 0), u = v ? v : zero;
    eas_dim end;
    if (lo != 0)
        u = low_bin(l, "sub", u, low_dim(l, lo));
    eas_dim_apply(EAS_DIM_ADD, lo, n, &end);
    if (lo != 0)
        *inside = low_and(l, *inside, low_bin(l, "ge", u, zero));
    if (end != whole)
        *inside = low_and(l, *inside, low_bin(l, "lt", u, low_dim(l, n)));
    return u;
}

static eas_value choose(lower *l, eas_value cond, eas_value x, eas_value y)
{
    return cond ? eas_builder_apply(l->b, eas_op_find("where"), cond, x, y) : x;
}

static eas_value pad_value(lower *l, const pnode *p, const lindex *at)
{
    const pnode *x = pass_at(l->g, p->in[0]);
    lindex to[MAX_DIMS] = {{0, 0}};
    eas_value inside = 0;
    for (int i = 0; i < p->rank; i++) {
        eas_value here = 0;
        to[i] = at[i];
        if (p->shape[i] == x->shape[i])
            continue;
        to[i].v = shifted(l, at[i].v, p->words[i], x->shape[i], p->shape[i], &here);
        to[i].ok = low_and(l, at[i].ok, here);
        inside = low_and(l, inside, here);
    }
    return choose(l, inside, low_value(l, p->in[0], to, NULL), low_value(l, p->in[1], to, NULL));
}

static eas_value concat_value(lower *l, const pnode *p, const lindex *at)
{
    int axis = (int)p->words[0];
    eas_dim start = 0;
    eas_value v = 0;
    for (int i = 0; i < p->nin; i++) {
        const pnode *x = pass_at(l->g, p->in[i]);
        lindex to[MAX_DIMS];
        eas_value here = 0;
        memcpy(to, at, sizeof *to * p->rank);
        to[axis].v = shifted(l, at[axis].v, start, x->shape[axis], p->shape[axis], &here);
        to[axis].ok = low_and(l, at[axis].ok, here);
        if (x->shape[axis] != 0) {
            eas_value mine = low_value(l, p->in[i], to, NULL);
            v = v ? choose(l, here, mine, v) : mine;
        }
        eas_dim_apply(EAS_DIM_ADD, start, x->shape[axis], &start);
    }
    return v ? v : eas_builder_const_typed(l->b, (eas_dtype)p->dtype, 0, 0);
}

static eas_value update_value(lower *l, const pnode *p, const lindex *at)
{
    const pnode *u = pass_at(l->g, p->in[1]);
    lindex to[MAX_DIMS];
    eas_value inside = 0;
    for (int i = 0; i < p->rank; i++) {
        int64_t step = p->words[p->rank + i];
        eas_value here = 0;
        to[i] = at[i];
        if (step == 1 && p->words[i] == 0 && p->shape[i] == u->shape[i])
            continue;
        if (step == 1) {
            to[i].v = shifted(l, at[i].v, p->words[i], u->shape[i], p->shape[i], &here);
        } else {
            eas_value zero = low_int(l, 0),
                      far = low_bin(l, "sub", at[i].v ? at[i].v : zero, low_dim(l, p->words[i]));
            to[i].v = low_bin(l, "floordiv", far, low_int(l, step));
            here =
                low_and(l, low_bin(l, "ge", far, zero), low_bin(l, "lt", to[i].v, low_dim(l, u->shape[i])));
            here = low_and(l, here, low_bin(l, "eq", low_bin(l, "mod", far, low_int(l, step)), zero));
        }
        to[i].ok = low_and(l, at[i].ok, here);
        inside = low_and(l, inside, here);
    }
    return choose(l, inside, low_value(l, p->in[1], to, NULL), low_value(l, p->in[0], at, NULL));
}

/* An element of an integer tensor as an index: negative ones count from the end. One that is out of range
 * becomes one that no memory has, so that the access is refused; low_bad_index says it in words. */
eas_value low_wrapped(lower *l, eas_value i, eas_dim size)
{
    eas_value n = low_dim(l, size), zero = low_int(l, 0);
    i = choose(l, low_bin(l, "lt", i, zero), low_bin(l, "add", i, n), i);
    return choose(l, low_and(l, low_bin(l, "ge", i, zero), low_bin(l, "lt", i, n)), i,
                  low_int(l, (int64_t)1 << 40));
}

static lindex picked(lower *l, uint32_t index, const lindex *at, int rank, eas_dim size)
{
    eas_value ok = 0;
    for (int k = 0; k < rank; k++)
        if (at[k].v)
            ok = low_and(l, ok, at[k].ok);
    return (lindex){low_wrapped(l, eas_builder_cast(l->b, low_value(l, index, at, NULL), EAS_I64), size), ok};
}

static eas_value gather_value(lower *l, const pnode *p, const lindex *at)
{
    const pnode *x = pass_at(l->g, p->in[0]), *i = pass_at(l->g, p->in[1]);
    int nbatch = (int)p->words[0], axis = (int)p->words[1], many = i->rank - nbatch;
    lindex in[MAX_DIMS], to[MAX_DIMS];
    for (int k = 0; k < i->rank; k++)
        in[k] = k < nbatch ? at[k] : at[axis + k - nbatch];
    for (int k = 0; k < x->rank; k++)
        to[k] = k < axis ? at[k] : k > axis ? at[k + many - 1] : (lindex){0, 0};
    to[axis] = picked(l, p->in[1], in, i->rank, x->shape[axis]);
    low_line(l, p);
    return low_value(l, p->in[0], to, NULL);
}

static eas_value along_value(lower *l, const pnode *p, const lindex *at)
{
    const pnode *x = pass_at(l->g, p->in[0]), *i = pass_at(l->g, p->in[1]);
    lindex in[MAX_DIMS], to[MAX_DIMS];
    for (int k = 0; k < p->rank; k++) {
        in[k] = i->shape[k] == 1 ? (lindex){0, 0} : at[k];
        to[k] = x->shape[k] == 1 ? (lindex){0, 0} : at[k];
    }
    int axis = (int)p->words[0];
    to[axis] = picked(l, p->in[1], in, p->rank, x->shape[axis]);
    low_line(l, p);
    return low_value(l, p->in[0], to, NULL);
}

/* ---- random numbers ---- */

static int draw_shift(eas_rand_kind kind) { return kind < EAS_RAND_BITS64 ? 2 : 1; }

/* Number `turn` of a counter's. */
static eas_value draw_turn(lower *l, const pnode *p, eas_value key, eas_value counter, int turn)
{
    eas_value v[4];
    return ir_rand_all(l->b, key, counter, (eas_rand_kind)p->words[0], v) ? v[turn] : 0;
}

/* Of element i: all numbers of its counter, and the one that is its own. */
static eas_value draw_at(lower *l, const pnode *p, eas_value key, eas_value first, eas_value i)
{
    const int shift = draw_shift((eas_rand_kind)p->words[0]), n = 1 << shift;
    eas_value v[4], lanes = low_int(l, DRAW_LANES),
                    unit = low_bin(l, "floordiv", i, low_int(l, DRAW_LANES * n)),
                    turn = low_bin(l, "and", low_bin(l, "floordiv", i, lanes), low_int(l, n - 1));
    eas_value counter =
        low_bin(l, "add", low_bin(l, "mul", unit, lanes), low_bin(l, "and", i, low_int(l, DRAW_LANES - 1)));
    if (!ir_rand_all(l->b, key, low_bin(l, "add", first, counter), (eas_rand_kind)p->words[0], v))
        return 0;
    for (int k = 1; k < n; k++)
        v[0] = choose(l, low_bin(l, "eq", turn, low_int(l, k)), v[k], v[0]);
    return v[0];
}

static eas_value draw_first(lower *l, const pnode *p, const lindex *at, const int8_t *map)
{
    return eas_builder_cast(l->b, low_value(l, p->in[1], at, map), EAS_I64);
}

static eas_value random_value(lower *l, const pnode *p, const lindex *at)
{
    int prefix = pass_at(l->g, p->in[0])->rank;
    eas_value ok, i = low_offset(l, p->rank - prefix, p->shape + prefix, at + prefix, &ok);
    return draw_at(l, p, low_value(l, p->in[0], at, NULL), draw_first(l, p, at, NULL), i);
}

/* At the group's own index. */
static eas_value random_mapped(lower *l, const pnode *p, const int8_t *map)
{
    eas_dim own[MAX_DIMS], strides[MAX_DIMS] = {0};
    eas_value key = low_value(l, p->in[0], NULL, map), first = draw_first(l, p, NULL, map), ok;
    draw_strides(l->g, p, own);
    for (int k = 0; k < p->rank; k++) /* the last dim of a run counts */
        if (map[k] >= 0 && p->shape[k] != 1 && l->mlast[l->mdim[map[k]]] == map[k])
            strides[l->mdim[map[k]]] = own[k];
    if (!l->draw.unit)
        return draw_at(l, p, key, first, low_sum(l, l->nm, l->at, strides, &ok));
    const int shift = draw_shift((eas_rand_kind)p->words[0]), n = 1 << shift;
    eas_value from = low_bin(l, "mul", l->draw.unit, low_int(l, DRAW_LANES * (4 / n)));
    from = low_bin(l, "add", from, low_int(l, DRAW_LANES * (l->draw.turn / n)));
    eas_value counter = low_bin(l, "add", first, low_bin(l, "add", from, l->draw.lane));
    return draw_turn(l, p, key, counter, l->draw.turn % n);
}

/* ---- element by element ---- */

/* Halves are computed in f32 where it takes more than one instruction. */
eas_value low_emit(lower *l, const pnode *p, const eas_value *x)
{
    const graph_row *row = &graph_rows[p->op];
    eas_dtype dt = (eas_dtype)p->dtype;
    if (row->ir)
        return eas_builder_apply(l->b, eas_op_find(row->ir), x[0], p->nin > 1 ? x[1] : 0,
                                 p->nin > 2 ? x[2] : 0);
    eas_value wide[3];
    bool half = false;
    for (int i = 0; i < p->nin; i++) {
        eas_dtype from = eas_value_dtype(l->b, x[i]);
        bool narrow = (from == EAS_F16 || from == EAS_BF16) && dtype_is_float(dt);
        wide[i] = narrow ? eas_builder_cast(l->b, x[i], EAS_F32) : x[i];
        half |= narrow;
    }
    /* these are about the format itself, or exact in it */
    if (half && (p->op == GRAPH_NEXTAFTER || p->op == GRAPH_COPYSIGN || p->op == GRAPH_ABS))
        return row->emit(l->b, x, dt);
    eas_value v = row->emit(l->b, wide, half ? EAS_F32 : dt);
    return half ? eas_builder_cast(l->b, v, dt) : v;
}

/* Input k of p, where p stands at an index or in the space. */
static eas_value input_value(lower *l, const pnode *p, int k, const lindex *at, const int8_t *map)
{
    const pnode *x = pass_at(l->g, p->in[k]);
    lindex to[MAX_DIMS];
    int8_t lies[MAX_DIMS];
    if (map) {
        map_input(l->g, p, k, map, lies);
        return low_value(l, p->in[k], NULL, lies);
    }
    for (int d = 0; d < x->rank; d++)
        to[d] = x->shape[d] == 1 ? (lindex){0, 0} : at[p->rank - x->rank + d];
    return low_value(l, p->in[k], to, NULL);
}

static eas_value map_value(lower *l, const pnode *p, const lindex *at, const int8_t *map)
{
    eas_value x[3];
    int rest = p->nin;
    if (p->op == GRAPH_FMA) { /* of a chain the sum comes first: factors are read just before they are used */
        rest = 2;
        x[2] = input_value(l, p, 2, at, map);
    }
    for (int i = 0; i < rest; i++)
        x[i] = input_value(l, p, i, at, map);
    return p->kind == KIND_CAST ? eas_builder_cast(l->b, x[0], (eas_dtype)p->dtype) : low_emit(l, p, x);
}

/* ---- any node ---- */

static eas_value iota_value(lower *l, const pnode *p, const lindex *at)
{
    const lindex *i = &at[p->words[0]];
    return eas_builder_cast(l->b, i->v ? i->v : low_int(l, 0), (eas_dtype)p->dtype);
}

bool reshapes_dense(const pgraph *g, const pnode *p)
{
    const pnode *x = p->kind == KIND_RESHAPE ? pass_at(g, p->in[0]) : NULL;
    return x && !(x->kind == KIND_LEAF && x->nwords);
}

/* A reshape of what lies densely in memory reads that memory with strides of its own. */
static bool reads_reshaped(const lower *l, const pnode *p)
{
    return reshapes_dense(l->g, p) && fused_stored(l->f, p->in[0]) && l->param[p->in[0]];
}

static eas_value reshape_value(lower *l, const pnode *p, const lindex *at)
{
    const pnode *x = pass_at(l->g, p->in[0]);
    lindex to[MAX_DIMS];
    if (reads_reshaped(l, p)) {
        eas_value ok, off = low_offset(l, p->rank, p->shape, at, &ok);
        return eas_builder_load(l->b, l->param[p->in[0]], off, ok, 0);
    }
    reshape_index(l, p, x, at, to);
    return low_value(l, p->in[0], to, NULL);
}

static eas_value at_index(lower *l, const pnode *p, const lindex *at)
{
    lindex to[MAX_DIMS];
    switch (p->kind) {
    case KIND_MAP:
    case KIND_CAST: return map_value(l, p, at, NULL);
    case KIND_BROADCAST: return input_value(l, p, 0, at, NULL);
    case KIND_PERMUTE:
        for (int k = 0; k < p->rank; k++)
            to[p->words[k]] = at[k];
        return low_value(l, p->in[0], to, NULL);
    case KIND_ALIAS: return low_value(l, p->in[0], at, NULL);
    case KIND_RESHAPE: return reshape_value(l, p, at);
    case KIND_SLICE: slice_index(l, p, at, to); return low_value(l, p->in[0], to, NULL);
    case KIND_WINDOW:
        window_index(l, p, pass_at(l->g, p->in[0]), at, to);
        return low_value(l, p->in[0], to, NULL);
    case KIND_PAD: return pad_value(l, p, at);
    case KIND_CONCAT: return concat_value(l, p, at);
    case KIND_UPDATE: return update_value(l, p, at);
    case KIND_GATHER: return gather_value(l, p, at);
    case KIND_ALONG: return along_value(l, p, at);
    case KIND_RANDOM: return random_value(l, p, at);
    case KIND_IOTA: return iota_value(l, p, at);
    default: impossible(l, graph_rows[p->op].name, " has no value at an index"); return low_int(l, 0);
    }
}

bool low_by_map(const pgraph *g, const pnode *p, const int8_t *map)
{
    int8_t to[MAX_DIMS];
    switch (p->kind) {
    case KIND_MAP:
    case KIND_CAST:
    case KIND_BROADCAST:
    case KIND_PERMUTE:
    case KIND_ALIAS: return true;
    case KIND_RESHAPE: return map_input(g, p, 0, map, to);
    default: return false;
    }
}

static eas_value by_map(lower *l, uint32_t id, const int8_t *map)
{
    const pnode *p = pass_at(l->g, id);
    lindex at[MAX_DIMS];
    if (low_by_map(l->g, p, map))
        return p->kind == KIND_MAP || p->kind == KIND_CAST ? map_value(l, p, NULL, map)
                                                           : input_value(l, p, 0, NULL, map);
    if (reads_reshaped(l, p))
        return load_mapped(l, p->in[0], id, map);
    if (p->kind == KIND_RANDOM)
        return random_mapped(l, p, map);
    for (int k = 0; k < p->rank; k++)
        at[k] = map[k] < 0 || p->shape[k] == 1 ? (lindex){0, 0} : l->at[l->mdim[map[k]]];
    return at_index(l, p, at);
}

/* Only accesses by index can fail, and then the user wants to know where they were written. */
void low_line(lower *l, const pnode *p)
{
    char file[512];
    int line;
    if (p->site && node_place(&(eas_node){.site = p->site}, file, sizeof file, &line))
        eas_builder_at(l->b, file, line);
}

static eas_value number_value(lower *l, uint32_t id)
{
    const pnode *p = pass_at(l->g, id);
    return p->fixed ? bits_value(l, (eas_dtype)p->dtype, p->words[0]) : l->param[id];
}

/* The value of node `id`: at the index `at`, or, if that is NULL, at the group's own index by `map`. In this
 * order: a number; a reduction that the group has computed; a value that was asked for before at the same
 * place; a load, if the node is a parameter of the kernel; else code that computes it from its inputs. */
eas_value low_value(lower *l, uint32_t id, const lindex *at, const int8_t *map)
{
    const pnode *p = pass_at(l->g, id);
    if (p->kind == KIND_CONST)
        return number_value(l, id);
    if (l->fold[id])
        return l->fold[id];
    eas_value v = recall(l, id, at, map);
    if (v || l->st)
        return v;
    if (l->param[id])
        v = at ? load_at(l, id, at) : load_mapped(l, id, id, map);
    else
        v = at ? at_index(l, p, at) : by_map(l, id, map);
    return remember(l, id, at, map, v);
}
