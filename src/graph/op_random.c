/* op_random.c: random numbers out of keys.
 *
 * A key is one u64: the seed of Philox, whose counter follows from the number of the element (KIND_RANDOM).
 * Nothing has a state, so the same key gives the same numbers, and lanes of a vmap over keys are independent.
 * New keys come from regions of the counter's 64 bits that no element has.
 */
#include "graph.h"

static const int64_t split_at = INT64_MIN, fold_at = INT64_MIN + (INT64_C(1) << 62);

static eas_node *draw(gbuild *g, eas_node *key, int64_t offset, eas_rand_kind kind, int rank,
                      const eas_dim *shape)
{
    static const struct {
        uint16_t op;
        eas_dtype dtype;
    } of[] = {[EAS_RAND_BITS] = {GRAPH_RANDOM_BITS, EAS_U32},
              [EAS_RAND_UNIFORM] = {GRAPH_RANDOM_UNIFORM, EAS_F32},
              [EAS_RAND_NORMAL] = {GRAPH_RANDOM_NORMAL, EAS_F32},
              [EAS_RAND_BITS64] = {GRAPH_RANDOM_BITS, EAS_U64},
              [EAS_RAND_UNIFORM64] = {GRAPH_RANDOM_UNIFORM, EAS_F64},
              [EAS_RAND_NORMAL64] = {GRAPH_RANDOM_NORMAL, EAS_F64}};
    eas_dim full[2 * GRAPH_MAX_RANK];
    int64_t word = kind;
    if (g->st || !key)
        return NULL;
    memcpy(full, node_shape(key), sizeof *full * key->rank);
    if (rank)
        memcpy(full + key->rank, shape, sizeof *full * (size_t)rank);
    eas_node *in[2] = {key, gb_int(g, EAS_I64, offset)};
    return gb_new(g, of[kind].op, of[kind].dtype, key->batch_dims, key->rank + rank, full, 1, &word, 2, in);
}

static void need_key(rule *r)
{
    const eas_node *key = r->c->in[0];
    if (r->g.st)
        return;
    if (!dtype_is_int((eas_dtype)key->dtype))
        rule_type_fail(r, "a key is a u64, this is %s", eas_dtype_name((eas_dtype)key->dtype));
    if (node_logical_rank(key))
        rule_fail(r, "one key is wanted, these have shape %s; use vmap", rule_text(key, (char[128]){0}));
}

/* ---- the simple ones: KIND_RANDOM. words: eas_rand_kind ---- */

eas_status make_random(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    dims shape = rule_shape(&r);
    need_key(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_rand_kind kind = c->op == GRAPH_RANDOM_BITS    ? EAS_RAND_BITS
                       : c->op == GRAPH_RANDOM_UNIFORM ? EAS_RAND_UNIFORM
                                                       : EAS_RAND_NORMAL;
    return rule_done(&r, draw(&r.g, gb_typed(&r.g, c->in[0], EAS_U64), 0, kind, shape.n, shape.at), out);
}

/* ---- distributions: key and two numbers ---- */

static eas_status distribution(const graph_call *c, bool ints, eas_node **out)
{
    rule r = rule_begin(c, 3, 3);
    gbuild *g = &r.g;
    eas_node *in[3];
    eas_dim full[2 * GRAPH_MAX_RANK];
    dims shape = rule_shape(&r);
    eas_dtype dt = rule_dtype(&r);
    need_key(&r);
    for (int i = 1; i < 3 && !g->st; i++)
        if (node_logical_rank(c->in[i]))
            rule_fail(&r, "bounds of shape %s: numbers are wanted", rule_text(c->in[i], (char[128]){0}));
    if (ints ? !dtype_is_int(dt) : !dtype_is_float(dt))
        rule_type_fail(&r, "not for %s", eas_dtype_name(dt));
    int bd = g->st ? 0 : gb_align_batch(g, 3, c->in, in);
    if (g->st)
        return rule_done(&r, NULL, out);
    gb_batch_shape(g, 3, in, bd, full);
    memcpy(full + bd, shape.at, sizeof *full * (size_t)shape.n);
    eas_dtype numbers = ints ? (dt == EAS_U64 ? EAS_U64 : EAS_I64) : graph_compute_dtype(dt);
    in[0] = gb_typed(g, c->in[0], EAS_U64); /* as it is: lanes that share a key share the numbers */
    for (int i = 1; i < 3; i++)
        in[i] = gb_typed(g, c->in[i], numbers);
    int64_t low, high;
    if (ints && !g->st && node_const_bits(in[1], &low) && node_const_bits(in[2], &high) &&
        (dt == EAS_U64 ? (uint64_t)high <= (uint64_t)low : high <= low))
        rule_fail(&r, "there is no integer from %lld to below %lld", (long long)low, (long long)high);
    return rule_node(&r, dt, bd, bd + shape.n, full, 0, NULL, 3, in, out);
}

eas_status make_distribution(const graph_call *c, eas_node **out) { return distribution(c, false, out); }
eas_status make_randint(const graph_call *c, eas_node **out) { return distribution(c, true, out); }

/* Of n's shape, after the dims of the key. */
static eas_node *draw_for(gbuild *g, eas_node *n, eas_node *key, eas_rand_kind kind)
{
    return draw(g, key, 0, kind, n->rank - n->batch_dims, node_shape(n) + n->batch_dims);
}

static eas_node *shift_right(gbuild *g, eas_node *x, int by)
{
    return x ? gb2(g, GRAPH_BITWISE_RIGHT_SHIFT, x, gb_int(g, (eas_dtype)x->dtype, by)) : NULL;
}

/* [0, 1) in n's dtype (halves: in f32), with as many bits as it holds. */
static eas_node *unit(gbuild *g, eas_node *n, eas_node *key)
{
    eas_dtype dt = (eas_dtype)n->dtype;
    if (dt == EAS_F32 || dt == EAS_F64)
        return draw_for(g, n, key, dt == EAS_F32 ? EAS_RAND_UNIFORM : EAS_RAND_UNIFORM64);
    int digits = dt == EAS_F16 ? 11 : 8;
    eas_node *f = gb_typed(
        g, gb_typed(g, shift_right(g, draw_for(g, n, key, EAS_RAND_BITS), 32 - digits), EAS_I32), EAS_F32);
    return f ? gb2(g, GRAPH_MUL, f, gb_num(g, f, dt == EAS_F16 ? 0x1p-11 : 0x1p-8)) : NULL;
}

/* low + u * (high - low), in n's dtype; broadcast to its batch dims. */
static eas_status placed(gbuild *g, eas_node *n, eas_node *u, eas_node *low, eas_node *scale, eas_node **out)
{
    int rank = n->rank - n->batch_dims;
    eas_node *y = gb2(g, GRAPH_ADD, gb2(g, GRAPH_MUL, u, gb_spread(g, scale, rank)), gb_spread(g, low, rank));
    y = gb_typed(g, y, (eas_dtype)n->dtype);
    return gb_done(g, y ? gb_broadcast(g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

eas_status expand_uniform(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    return placed(&g, n, unit(&g, n, in[0]), in[1], gb2(&g, GRAPH_SUB, in[2], in[1]), out);
}

eas_status expand_gaussian(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *z = draw_for(&g, n, in[0], n->dtype == EAS_F64 ? EAS_RAND_NORMAL64 : EAS_RAND_NORMAL);
    return placed(&g, n, z, in[1], in[2], out);
}

static bool narrow(eas_node *low, eas_node *high)
{
    int64_t a, b;
    return node_const_bits(low, &a) && node_const_bits(high, &b) &&
           (uint64_t)b - (uint64_t)a <= UINT64_C(1) << 32;
}

/* 32 bits, scaled, for a range that is known to be so small; else 64 bits modulo the range. Some numbers are
 * likelier by at most one part in 2^32. */
eas_status expand_randint(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    int rank = n->rank - n->batch_dims;
    eas_node *low = gb_typed(&g, in[1], EAS_U64), *high = gb_typed(&g, in[2], EAS_U64);
    eas_node *range = gb_spread(&g, gb2(&g, GRAPH_SUB, high, low), rank), *pick;
    if (narrow(in[1], in[2]))
        pick = shift_right(
            &g, gb2(&g, GRAPH_MUL, gb_typed(&g, draw_for(&g, n, in[0], EAS_RAND_BITS), EAS_U64), range), 32);
    else
        pick = gb2(&g, GRAPH_MOD, draw_for(&g, n, in[0], EAS_RAND_BITS64), range);
    eas_node *y = gb_typed(&g, gb2(&g, GRAPH_ADD, pick, gb_spread(&g, low, rank)), (eas_dtype)n->dtype);
    return gb_done(&g, y ? gb_broadcast(&g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

/* ---- keys ---- */

eas_status make_split_key(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK + 1];
    int64_t n = rule_int(&r);
    need_key(&r);
    if (n < 0 && !dim_is_expr(n))
        rule_fail(&r, "%lld keys", (long long)n);
    eas_node *key = r.g.st ? NULL : gb_typed(&r.g, c->in[0], EAS_U64);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    memcpy(shape, node_shape(key), sizeof *shape * key->rank);
    shape[key->rank] = n;
    return rule_node(&r, EAS_U64, key->batch_dims, key->rank + 1, shape, 0, NULL, 1, &key, out);
}

eas_status expand_split_key(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    int rank = n->rank - n->batch_dims;
    return gb_done(&g, draw(&g, in[0], split_at, EAS_RAND_BITS64, rank, node_shape(n) + n->batch_dims), out);
}

eas_status make_fold_in(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    gbuild *g = &r.g;
    eas_node *in[2];
    int rank, bd;
    eas_dim shape[GRAPH_MAX_RANK];
    need_key(&r);
    if (!g->st && !dtype_is_int((eas_dtype)c->in[1]->dtype))
        rule_type_fail(&r, "data must be integers, these are %s", eas_dtype_name((eas_dtype)c->in[1]->dtype));
    if (!g->st)
        g->st = graph_align(c, 2, c->in, in, &bd);
    if (g->st)
        return rule_done(&r, NULL, out);
    g->st = graph_broadcast(c, 2, in, &rank, shape);
    eas_node *both[2] = {gb_typed(g, in[0], EAS_U64), gb_typed(g, in[1], EAS_U64)};
    eas_status st = rule_node(&r, EAS_U64, bd, rank, shape, 0, NULL, 2, both, out);
    node_unref(in[0]);
    node_unref(in[1]);
    return st;
}

/* seed + data * (an odd number) differs for different data; the new key is drawn with that as its seed. */
eas_status expand_fold_in(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *step = gb_int(&g, EAS_U64, (int64_t)UINT64_C(0x9E3779B97F4A7C15));
    eas_node *seed = gb2(&g, GRAPH_ADD, in[0], gb2(&g, GRAPH_MUL, gb_typed(&g, in[1], EAS_U64), step));
    seed = seed ? gb_broadcast(&g, seed, n->batch_dims, n->rank, node_shape(n)) : NULL;
    return gb_done(&g, draw(&g, seed, fold_at, EAS_RAND_BITS64, 0, NULL), out);
}
