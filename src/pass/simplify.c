/* simplify.c: nodes are simplified and hash-consed as they are added to the list. pass_add looks at a node
 * whose inputs are in the list already: it replaces the node by something smaller, or by an equal node that
 * is there, or appends it. Simplification must not change bits: x + 0.0 is not x (x may be -0.0), x * 0 is
 * not 0.
 */
#include "pass.h"

#include <math.h>

eas_status pass_init(pgraph *g)
{
    memset(g, 0, sizeof *g);
    g->ntable = 256;
    g->table = calloc(g->ntable, sizeof *g->table);
    pnode none = {0};
    if (!g->table || !vec_push(&g->n, none))
        g->st = base_fail_oom(g->ntable * sizeof *g->table);
    return g->st;
}

void pass_free(pgraph *g)
{
    arena_free(&g->mem);
    vec_free(&g->n);
    free(g->table);
}

/* ---- equal nodes once ---- */

static uint32_t hash_of(const pnode *p)
{
    uint64_t h = (uint64_t)p->op << 40 ^ (uint64_t)p->dtype << 32 ^ (uint64_t)p->param << 8 ^ p->rank;
#define MIX(v) h = (h ^ (uint64_t)(v)) * 0x9e3779b97f4a7c15u, h ^= h >> 31
    for (int i = 0; i < p->rank; i++)
        MIX(p->shape[i]);
    for (int i = 0; i < p->nwords; i++)
        MIX(p->words[i]);
    for (int i = 0; i < p->nin; i++)
        MIX(p->in[i]);
#undef MIX
    return (uint32_t)(h ^ h >> 32);
}

static bool equal(const void *a, const void *b, size_t n) { return n == 0 || !memcmp(a, b, n); }

/* Are two calls equal? Host functions with the same inputs and numbers give the same results. */
static bool same_extra(const node_extra *a, const node_extra *b)
{
    return a == b ||
           (a && b && a->native && a->native == b->native && a->nnumbers == b->nnumbers &&
            a->nouts == b->nouts && equal(a->numbers, b->numbers, sizeof *a->numbers * (size_t)a->nnumbers));
}

static bool same(const pnode *a, const pnode *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->rank == b->rank && a->nin == b->nin &&
           a->nwords == b->nwords && a->param == b->param && same_extra(a->extra, b->extra) &&
           equal(a->shape, b->shape, sizeof *a->shape * a->rank) &&
           equal(a->words, b->words, sizeof *a->words * a->nwords) &&
           equal(a->in, b->in, sizeof *a->in * a->nin);
}

static bool rehash(pgraph *g)
{
    uint32_t size = g->ntable * 2, *t = calloc(size, sizeof *t);
    if (!t)
        return false;
    for (uint32_t i = 1; i < g->n.len; i++) {
        g->n.at[i].next = t[g->n.at[i].hash & (size - 1)];
        t[g->n.at[i].hash & (size - 1)] = i;
    }
    free(g->table);
    g->table = t;
    g->ntable = size;
    return true;
}

static void *copied(pgraph *g, const void *from, size_t n)
{
    if (!n)
        return arena_alloc(&g->mem, 1);
    void *to = arena_alloc(&g->mem, n);
    return to ? memcpy(to, from, n) : NULL;
}

static uint32_t append(pgraph *g, const pnode *p, uint32_t hash)
{
    pnode q = *p;
    q.shape = copied(g, p->shape, sizeof *p->shape * p->rank);
    q.words = copied(g, p->words, sizeof *p->words * p->nwords);
    q.in = copied(g, p->in, sizeof *p->in * p->nin);
    q.hash = hash;
    q.site = g->site;
    if ((g->n.len >= g->ntable && !rehash(g)) || !q.shape || !q.words || !q.in)
        goto oom;
    q.next = g->table[hash & (g->ntable - 1)];
    if (!vec_push(&g->n, q))
        goto oom;
    return g->table[hash & (g->ntable - 1)] = g->n.len - 1;
oom:
    g->st = base_fail_oom(sizeof q);
    return 0;
}

static uint32_t intern(pgraph *g, const pnode *p)
{
    uint32_t hash = hash_of(p);
    for (uint32_t i = g->table[hash & (g->ntable - 1)]; i; i = g->n.at[i].next)
        if (g->n.at[i].hash == hash && same(&g->n.at[i], p))
            return i;
    return append(g, p, hash);
}

uint32_t pass_share(pgraph *g, const pnode *p) { return g->st ? 0 : intern(g, p); }

/* ---- numbers ---- */

uint32_t pass_const(pgraph *g, eas_dtype dt, int64_t bits)
{
    pnode p = {.op = GRAPH_CONST,
               .kind = KIND_CONST,
               .dtype = (uint8_t)dt,
               .fixed = true,
               .param = PARAM_NONE,
               .nwords = 1,
               .words = &bits};
    return intern(g, &p);
}

bool pass_is_const(const pgraph *g, uint32_t i, double *v)
{
    const pnode *p = pass_at(g, i);
    while (p->kind == KIND_BROADCAST || p->kind == KIND_RESHAPE)
        p = pass_at(g, p->in[0]);
    if (p->kind != KIND_CONST || !p->fixed)
        return false;
    eas_dtype dt = (eas_dtype)p->dtype;
    *v = dtype_is_float(dt) ? ir_bits_to_double(dt, p->words[0])
       : dt == EAS_U64      ? (double)(uint64_t)p->words[0]
                            : (double)p->words[0];
    return true;
}

/* An element-wise node of numbers alone, computed now with the instruction that the kernel would have. */
static uint32_t fold(pgraph *g, const pnode *p)
{
    int64_t args[3] = {0}, r;
    const graph_row *row = &graph_rows[p->op];
    if (p->rank || p->nin == 0 || p->nin > 3 || !(p->kind == KIND_CAST || (p->kind == KIND_MAP && row->ir)))
        return 0;
    for (int i = 0; i < p->nin; i++) {
        const pnode *x = pass_at(g, p->in[i]);
        if (x->kind != KIND_CONST || !x->fixed)
            return 0;
        args[i] = x->words[0];
    }
    eas_dtype from = (eas_dtype)pass_at(g, p->in[p->nin == 3 ? 1 : 0])->dtype;
    uint16_t op = p->kind == KIND_CAST ? IR_CAST : eas_op_find(row->ir);
    if (ir_rows[op].flags & IR_EXPAND || !ir_eval(op, from, (eas_dtype)p->dtype, args, &r))
        return 0;
    return pass_const(g, (eas_dtype)p->dtype, r);
}

/* ---- shapes ---- */

static uint32_t view(pgraph *g, uint16_t op, const pnode *like, uint32_t x)
{
    pnode p = {.op = op,
               .kind = graph_rows[op].kind,
               .dtype = pass_at(g, x)->dtype,
               .rank = like->rank,
               .nin = 1,
               .param = PARAM_NONE,
               .shape = like->shape,
               .in = &x};
    return pass_add(g, &p);
}

static bool one_element(const pnode *p)
{
    for (int i = 0; i < p->rank; i++)
        if (p->shape[i] != 1)
            return false;
    return true;
}

/* An element-wise node of tensors of its own shape and of numbers can be computed in any shape. */
static bool shape_free(const pgraph *g, const pnode *p)
{
    if (p->kind != KIND_MAP && p->kind != KIND_CAST)
        return false;
    for (int i = 0; i < p->nin; i++) {
        const pnode *x = pass_at(g, p->in[i]);
        if (!pass_same_shape(x, p) && !one_element(x))
            return false;
    }
    return true;
}

static uint32_t simple_reshape(pgraph *g, const pnode *p)
{
    pnode x = *pass_at(g, p->in[0]);
    if (pass_same_shape(p, &x))
        return p->in[0];
    if (x.kind == KIND_RESHAPE)
        return view(g, GRAPH_RESHAPE, p, x.in[0]);
    if (x.kind == KIND_LEAF && !x.nwords) { /* in C order: the same memory */
        x.rank = p->rank;
        x.shape = p->shape;
        return intern(g, &x);
    }
    if (x.kind == KIND_BROADCAST && one_element(pass_at(g, x.in[0]))) {
        uint32_t one = view(g, GRAPH_RESHAPE, &(pnode){.rank = 0}, x.in[0]);
        return one ? view(g, GRAPH_BROADCAST_TO, p, one) : 0;
    }
    if (!x.shared && shape_free(g, &x)) {
        uint32_t in[3];
        for (int i = 0; i < x.nin; i++)
            in[i] = one_element(pass_at(g, x.in[i])) ? view(g, GRAPH_RESHAPE, &(pnode){.rank = 0}, x.in[i])
                                                     : view(g, GRAPH_RESHAPE, p, x.in[i]);
        x.rank = p->rank;
        x.shape = p->shape;
        x.in = in;
        x.shared = false;
        return g->st ? 0 : pass_add(g, &x);
    }
    return x.kind == KIND_PERMUTE ? pass_flat_windows(g, p) : 0;
}

static uint32_t simple_permute(pgraph *g, const pnode *p)
{
    const pnode *x = pass_at(g, p->in[0]);
    bool same_order = true;
    for (int i = 0; i < p->rank; i++)
        same_order &= p->words[i] == i;
    if (same_order)
        return p->in[0];
    if (x->kind != KIND_PERMUTE)
        return 0;
    int64_t order[GRAPH_MAX_RANK];
    for (int i = 0; i < p->rank; i++)
        order[i] = x->words[p->words[i]];
    pnode q = *p;
    q.words = order;
    q.in = (uint32_t[]){x->in[0]};
    return pass_add(g, &q);
}

static uint32_t simple_broadcast(pgraph *g, const pnode *p)
{
    const pnode *x = pass_at(g, p->in[0]);
    if (pass_same_shape(p, x))
        return p->in[0];
    return x->kind == KIND_BROADCAST ? view(g, GRAPH_BROADCAST_TO, p, x->in[0]) : 0;
}

static uint32_t simple_slice(pgraph *g, const pnode *p)
{
    const pnode *x = pass_at(g, p->in[0]);
    bool whole = pass_same_shape(p, x);
    for (int i = 0; i < p->rank; i++)
        whole &= p->words[i] == 0 && p->words[p->rank + i] == 1;
    if (whole)
        return p->in[0];
    if (x->kind != KIND_SLICE)
        return 0;
    int64_t words[2 * GRAPH_MAX_RANK];
    for (int i = 0; i < p->rank; i++) {
        eas_dim start, far;
        int64_t step = x->words[x->rank + i];
        if (eas_dim_apply(EAS_DIM_MUL, p->words[i], step < 0 ? -step : step, &far) ||
            eas_dim_apply(step < 0 ? EAS_DIM_SUB : EAS_DIM_ADD, x->words[i], far, &start))
            return 0;
        words[i] = start;
        words[p->rank + i] = step * p->words[p->rank + i];
    }
    pnode q = *p;
    q.words = words;
    q.in = (uint32_t[]){x->in[0]};
    return pass_add(g, &q);
}

/* ---- element by element ---- */

/* Inputs that are broadcast anyway need no broadcast node, as long as another one has the full shape. */
static bool strip_broadcasts(pgraph *g, const pnode *p, uint32_t *in)
{
    bool changed = false;
    for (int i = 0; i < p->nin; i++)
        in[i] = p->in[i];
    for (int i = 0; i < p->nin; i++) {
        const pnode *x = pass_at(g, in[i]);
        if (x->kind != KIND_BROADCAST)
            continue;
        eas_dim shape[GRAPH_MAX_RANK];
        for (int k = 0; k < p->rank; k++)
            shape[k] = 1;
        for (int j = 0; j < p->nin; j++) {
            const pnode *y = pass_at(g, j == i ? x->in[0] : in[j]);
            for (int k = 0; k < y->rank; k++)
                if (y->shape[k] != 1)
                    shape[p->rank - y->rank + k] = y->shape[k];
        }
        if (!memcmp(shape, p->shape, sizeof *shape * p->rank)) {
            in[i] = x->in[0];
            changed = true;
        }
    }
    return changed;
}

/* in, if it has p's shape and dtype already. */
static uint32_t as_is(const pgraph *g, const pnode *p, uint32_t in)
{
    const pnode *x = pass_at(g, in);
    return x->dtype == p->dtype && pass_same_shape(x, p) ? in : 0;
}

static uint32_t map2(pgraph *g, const pnode *p, uint16_t op, uint32_t x, uint32_t y)
{
    pnode q = *p;
    q.op = op;
    q.nin = y ? 2 : 1;
    q.in = (uint32_t[]){x, y};
    return pass_add(g, &q);
}

static uint32_t simple_power(pgraph *g, const pnode *p, double y)
{
    if (y == 1)
        return as_is(g, p, p->in[0]);
    if (y == 2)
        return map2(g, p, GRAPH_SQUARE, p->in[0], 0);
    if (!dtype_is_float((eas_dtype)p->dtype))
        return 0;
    if (y == 0.5)
        return map2(g, p, GRAPH_SQRT, p->in[0], 0);
    return y == -1 ? map2(g, p, GRAPH_RECIPROCAL, p->in[0], 0) : 0;
}

static uint32_t simple_map(pgraph *g, const pnode *p)
{
    double x, y;
    bool real = dtype_is_float((eas_dtype)p->dtype);
    if (p->nin < 2)
        return p->op == GRAPH_NEG && pass_at(g, p->in[0])->op == GRAPH_NEG ? pass_at(g, p->in[0])->in[0] : 0;
    if (p->op == GRAPH_WHERE)
        return pass_is_const(g, p->in[0], &x) ? as_is(g, p, p->in[x != 0 ? 1 : 2])
             : p->in[1] == p->in[2]           ? as_is(g, p, p->in[1])
                                              : 0;
    bool cx = pass_is_const(g, p->in[0], &x), cy = pass_is_const(g, p->in[1], &y);
    switch (p->op) {
    case GRAPH_ADD:
        if (real || p->dtype == EAS_BOOL)
            return cy && y == 0 && signbit(y) ? as_is(g, p, p->in[0]) : 0;
        return cy && y == 0 ? as_is(g, p, p->in[0]) : cx && x == 0 ? as_is(g, p, p->in[1]) : 0;
    case GRAPH_SUB: return cy && y == 0 && !signbit(y) ? as_is(g, p, p->in[0]) : 0;
    case GRAPH_MUL: return cy && y == 1 ? as_is(g, p, p->in[0]) : cx && x == 1 ? as_is(g, p, p->in[1]) : 0;
    case GRAPH_DIV: return cy && y == 1 ? as_is(g, p, p->in[0]) : 0;
    case GRAPH_POW: return cy ? simple_power(g, p, y) : 0;
    case GRAPH_MAXIMUM:
    case GRAPH_MINIMUM:
    case GRAPH_LOGICAL_AND:
    case GRAPH_LOGICAL_OR: return p->in[0] == p->in[1] ? as_is(g, p, p->in[0]) : 0;
    default: return 0;
    }
}

/* A cast to something wider and back, or on from something wider, is one cast. */
static uint32_t simple_cast(pgraph *g, const pnode *p)
{
    const pnode *x = pass_at(g, p->in[0]);
    if (x->dtype == p->dtype)
        return p->in[0];
    if (x->kind != KIND_CAST)
        return 0;
    const pnode *y = pass_at(g, x->in[0]);
    eas_dtype a = (eas_dtype)y->dtype, b = (eas_dtype)x->dtype;
    bool keeps = a == EAS_BOOL || (eas_dtype_kind(a) == eas_dtype_kind(b) &&
                                   (dtype_is_int(a) || a != EAS_BF16 || b != EAS_F16) &&
                                   eas_dtype_size(b) > eas_dtype_size(a));
    if (!keeps)
        return 0;
    pnode q = *p;
    q.in = (uint32_t[]){x->in[0]};
    return pass_add(g, &q);
}

/* In memory, in C order. */
static uint32_t in_memory(pgraph *g, uint32_t i)
{
    const pnode *x = pass_at(g, i);
    if (x->kind != KIND_CONST && (x->kind != KIND_LEAF || !x->nwords))
        return i;
    pnode a = {.op = GRAPH_ALIAS,
               .kind = KIND_ALIAS,
               .dtype = x->dtype,
               .rank = x->rank,
               .nin = 1,
               .param = PARAM_NONE,
               .shape = x->shape,
               .in = &i};
    return intern(g, &a);
}

/* The inputs of calls, loops and branches must be in memory, but for those that are passed as numbers. */
static uint32_t solid_call(pgraph *g, const pnode *p)
{
    uint32_t *in = arena_alloc(&g->mem, sizeof *in * (size_t)(p->nin + 1));
    bool changed = false;
    if (!in) {
        g->st = base_fail_oom(p->nin);
        return 0;
    }
    for (int i = 0; i < p->nin; i++) {
        bool number = pass_at(g, p->in[i])->kind == KIND_CONST &&
                      (p->kind == KIND_CALL ? !p->extra->native
                                            : p->kind == KIND_CONTROL && i >= p->extra->control->nin);
        in[i] = number ? p->in[i] : in_memory(g, p->in[i]);
        changed |= in[i] != p->in[i];
    }
    pnode q = *p;
    q.in = in;
    return changed && !g->st ? intern(g, &q) : 0;
}

/* One number, in like's dtype and shape. */
static uint32_t all_same(pgraph *g, const pnode *like, int64_t bits)
{
    uint32_t number = pass_const(g, (eas_dtype)like->dtype, bits);
    pnode b = {.op = GRAPH_BROADCAST_TO,
               .kind = KIND_BROADCAST,
               .dtype = like->dtype,
               .rank = like->rank,
               .nin = 1,
               .param = PARAM_NONE,
               .shape = like->shape,
               .in = &number};
    return number && like->rank ? intern(g, &b) : number;
}

static uint32_t zeros(pgraph *g, const pnode *like) { return all_same(g, like, 0); }

static bool has_no_element(const pnode *p)
{
    for (int i = 0; i < p->rank; i++)
        if (p->shape[i] == 0)
            return true;
    return false;
}

/* The identity element of a reduction: its result over no elements. */
static int64_t neutral(const char *join, eas_dtype dt)
{
    bool real = dtype_is_float(dt), max = !strcmp(join, "max");
    if (!strcmp(join, "add") || !strcmp(join, "or"))
        return 0;
    if (!strcmp(join, "mul") || !strcmp(join, "and"))
        return real ? ir_bits_from_double(dt, 1) : 1;
    return real ? ir_bits_from_double(dt, max ? -1.0 / 0.0 : 1.0 / 0.0)
         : max  ? dtype_min(dt)
                : (int64_t)dtype_max(dt);
}

static uint32_t simple_reduce(pgraph *g, const pnode *p)
{
    if (has_no_element(pass_at(g, p->in[0])))
        return all_same(g, p, neutral(graph_rows[p->op].ir, (eas_dtype)p->dtype));
    uint32_t rows = pass_row_sums(g, p);
    if (!rows && !g->st)
        rows = pass_join_rows(g, p);
    return rows || g->st ? rows : pass_split_reduce(g, p);
}

/* A tensor without elements needs none of its inputs: it is a number, spread over nothing. */
static uint32_t nothing(pgraph *g, const pnode *p)
{
    if (!has_no_element(p) || p->kind == KIND_LEAF || p->kind == KIND_RESULT ||
        (p->kind == KIND_BROADCAST && pass_at(g, p->in[0])->kind == KIND_CONST))
        return 0;
    return zeros(g, p);
}

/* argmax and argmin over one element are 0. */
static uint32_t simple_arg(pgraph *g, const pnode *p)
{
    return pass_at(g, p->in[0])->shape[p->words[1]] == 1 ? zeros(g, p) : 0;
}

static uint32_t simpler(pgraph *g, const pnode *p)
{
    uint32_t r = fold(g, p);
    if (!r)
        r = nothing(g, p);
    if (r)
        return r;
    switch (p->kind) {
    case KIND_RESHAPE: return simple_reshape(g, p);
    case KIND_PERMUTE: return simple_permute(g, p);
    case KIND_BROADCAST: return simple_broadcast(g, p);
    case KIND_SLICE: return simple_slice(g, p);
    case KIND_CAST: r = simple_cast(g, p); return r || g->st ? r : pass_move_reshape(g, p);
    case KIND_REDUCE: return simple_reduce(g, p);
    case KIND_ARG: return simple_arg(g, p);
    case KIND_UPDATE: return pass_as_concat(g, p);
    case KIND_MATMUL: r = pass_filter_gradient(g, p); return r || g->st ? r : pass_thin(g, p);
    case KIND_CALL:
    case KIND_COLLECTIVE:
    case KIND_CONTROL: return solid_call(g, p);
    case KIND_MAP: {
        uint32_t in[3];
        if (p->nin > 1 && p->nin <= 3 && strip_broadcasts(g, p, in)) {
            pnode q = *p;
            q.in = in;
            return pass_add(g, &q);
        }
        r = simple_map(g, p);
        if (!r && !g->st && p->op == GRAPH_ADD)
            r = pass_join_pads(g, p);
        return r || g->st ? r : pass_move_reshape(g, p);
    }
    default: return 0;
    }
}

uint32_t pass_add(pgraph *g, const pnode *p)
{
    if (g->st)
        return 0;
    uint32_t r = simpler(g, p);
    return r || g->st ? r : intern(g, p);
}
