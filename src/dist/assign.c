/* assign.c: which axes of the mesh cut which factors of an operation.
 *
 * An operation's rule names factors (graph/shard.c): the dims of its tensors are products of them. An axis
 * can cut one factor only, since a device has one place along it, while the inputs may lie as they like. Each
 * input votes for the factors that its own axes cut, with its size in bytes, which is about what it costs to
 * lay it out otherwise; so the large tensors stay where they are and the small ones move. Where two factors
 * compete for an axis, one that is summed over pays for the sum of its result too. What users of the result
 * would like decides where no input has an opinion: a tensor that is whole on every device is cut for free.
 *
 * What is assigned can hold: sizes divide (but for padded dims), and of a dim that is a product of factors
 * only the outermost are cut, each into single elements before the next one.
 */
#include "dist.h"

static double bytes_of(const eas_node *n)
{
    double b = (double)eas_dtype_size((eas_dtype)n->dtype);
    for (int d = 0; d < n->rank; d++)
        b *= dim_known(node_shape(n)[d]) ? (double)node_shape(n)[d] : 64.0;
    return b;
}

uint32_t assign_carried(const eas_node *n, const uint32_t *p)
{
    uint32_t all = n->nin ? p[0] : 0;
    int64_t bits;
    for (int i = 1; i < n->nin; i++)
        all &= p[i];
    switch (node_kind(n)) {
    case KIND_COMPOSITE: /* a shuffle */
    case KIND_RESHAPE:
    case KIND_PERMUTE:
    case KIND_SLICE:
    case KIND_ALIAS: return p[0];
    case KIND_CAST: /* not to fewer bits: rounding the parts is not rounding the sum */
        return dtype_is_float((eas_dtype)n->dtype) && dtype_is_float((eas_dtype)node_in(n)[0]->dtype) &&
                       dtype_bits((eas_dtype)n->dtype) >= dtype_bits((eas_dtype)node_in(n)[0]->dtype)
                 ? p[0]
                 : 0;
    case KIND_CONCAT: return all;
    case KIND_PAD: return node_const_bits(node_in(n)[1], &bits) && bits == 0 ? p[0] : 0;
    case KIND_REDUCE: return !strcmp(graph_rows[n->op].ir, "add") ? p[0] : 0;
    case KIND_MATMUL: return p[0] ^ p[1];
    case KIND_MAP: break;
    default: return 0;
    }
    if (n->dtype == EAS_BOOL)
        return 0;
    switch (n->op) {
    case GRAPH_NEG: return p[0];
    case GRAPH_ADD:
    case GRAPH_SUB: return all;
    case GRAPH_MUL: return p[0] ^ p[1];
    case GRAPH_DIV: return p[0] & ~p[1];
    default: return 0;
    }
}

/* Mesh axes along which the result may stay a partial sum: the operation is linear in the partial inputs, the
 * result is not larger than they are, and the axis cuts no input. */
static uint32_t carry(const eas_node *n, const eas_spec *const *in)
{
    enum { FEW = 64 };
    uint32_t p[FEW] = {0}, cut = 0, c;
    double most = 0;
    if (n->nin > FEW)
        return 0;
    for (int i = 0; i < n->nin; i++) {
        p[i] = in[i]->partial;
        cut |= spec_cut(in[i]);
        if (p[i] && bytes_of(node_in(n)[i]) > most)
            most = bytes_of(node_in(n)[i]);
    }
    c = assign_carried(n, p) & ~cut;
    return c && bytes_of(n) <= most ? c : 0;
}

static int64_t count_parts(const partition *p, const eas_dim_spec *a) { return spec_parts(p->m, a); }

/* Distributes the axes that cut a dim over the factors of the dim, outermost first: a factor must be cut into
 * single elements before an axis can cut the next one. */
static void spread(const partition *p, const eas_shard_rule *r, const eas_shard_dim *d, const eas_dim_spec *s,
                   eas_dim_spec *out)
{
    int k = 0;
    for (int i = 0; i < s->n && d->n; i++) {
        eas_dim_spec *a = &out[k];
        eas_dim size = r->factors[d->factors[k]].size;
        int64_t now = count_parts(p, a) * p->m->m.sizes[s->axes[i]];
        if (d->n > 1 && !(dim_known(size) && size % now == 0))
            return;
        a->axes[a->n++] = s->axes[i];
        if (d->n > 1 && now == size && ++k == d->n)
            return;
    }
}

typedef struct votes {
    double *weight; /* [factor][axis] */
    double *best; /* per factor: the largest vote of one tensor, whose order of axes is taken */
    bool *padded; /* per factor: some tensor has it in uneven parts */
    /* per axis: the largest vote of a tensor that has the axis on a dim which must be whole */
    double homeless[EAS_MESH_AXES];
    int whose[EAS_MESH_AXES]; /* that tensor */
} votes;

/* Notes that these axes cut a dim which must be whole: they may move to another dim (rehouse). */
static void lose(votes *v, int tensor, const eas_dim_spec *s, double weight)
{
    for (int i = 0; i < s->n; i++)
        if (weight > v->homeless[s->axes[i]]) {
            v->homeless[s->axes[i]] = weight;
            v->whose[s->axes[i]] = tensor;
        }
}

static void vote(const partition *p, const eas_node *n, const assigned *a, int tensor, const eas_spec *s,
                 double weight, votes *v)
{
    const eas_shard_rule *r = a->r;
    for (int d = 0; d < r->tensors[tensor].rank && d < s->rank; d++) {
        const eas_shard_dim *dim = &r->tensors[tensor].dims[d];
        eas_dim_spec own[EAS_DIM_FACTORS] = {{0}};
        if (s->dims[d].n && s->dims[d].priority) { /* a mixed dim (mix.c) stays as it is, or becomes whole */
            if (!mix_passes(n) || dim->n != 1)
                continue;
            own[0] = s->dims[d];
        } else
            spread(p, r, dim, &s->dims[d], own);
        if (tensor < r->nin &&
            !spec_uneven(p->m, &s->dims[d], dim->n ? r->factors[dim->factors[0]].size : 0) &&
            (dim->n == 0 || r->factors[dim->factors[0]].kind == EAS_FACTOR_WHOLE))
            lose(v, tensor, &s->dims[d], weight);
        for (int k = 0; k < dim->n; k++) {
            uint16_t f = dim->factors[k];
            if (r->factors[f].kind == EAS_FACTOR_WHOLE || !own[k].n)
                continue;
            for (int i = 0; i < own[k].n; i++)
                v->weight[f * EAS_MESH_AXES + own[k].axes[i]] += weight;
            v->padded[f] |= dim->n == 1 && spec_uneven(p->m, &own[k], r->factors[f].size);
            if (weight > v->best[f]) {
                v->best[f] = weight;
                a->of[f] = own[k];
            }
        }
    }
}

/* The factor that an axis cuts: the one with most votes. A factor that is summed over loses twice the
 * result's bytes, the cost of the all_reduce. -1: none. */
static int winner(const assigned *a, const votes *v, int axis, double result)
{
    int best = -1, candidates = 0;
    double most = 0;
    for (int f = 0; f < a->r->nfactors; f++)
        candidates += v->weight[f * EAS_MESH_AXES + axis] > 0;
    for (int f = 0; f < a->r->nfactors; f++) {
        double w = v->weight[f * EAS_MESH_AXES + axis];
        if (w <= 0)
            continue;
        if (candidates > 1 && a->r->factors[f].kind == EAS_FACTOR_SUM)
            w -= 2 * result;
        if (best < 0 || w > most) {
            best = f;
            most = w;
        }
    }
    return best;
}

static void without(eas_dim_spec *d, int axis)
{
    int n = 0;
    for (int i = 0; i < d->n; i++)
        if (d->axes[i] != axis)
            d->axes[n++] = d->axes[i];
    d->n = (uint8_t)n;
}

static bool has_axis(const eas_dim_spec *d, int axis)
{
    for (int i = 0; i < d->n; i++)
        if (d->axes[i] == axis)
            return true;
    return false;
}

/* Gives every axis to one factor; several axes of a factor keep the order they have in its largest tensor. */
static void settle(const partition *p, assigned *a, const votes *v, uint32_t taken, double result)
{
    for (int x = 0; x < p->m->m.naxes; x++) {
        int f = taken >> x & 1 ? -1 : winner(a, v, x, result);
        for (int k = 0; k < a->r->nfactors; k++)
            if (k != f)
                without(&a->of[k], x);
        if (f >= 0 && !has_axis(&a->of[f], x))
            a->of[f].axes[a->of[f].n++] = (uint8_t)x;
    }
}

/* An axis whose dim must be whole moves to another dim of the same tensor if one divides: an all_to_all moves
 * 1/n of the bytes of a gather, and the work stays divided. */
static void rehouse(const partition *p, assigned *a, const votes *v, uint32_t taken)
{
    const eas_shard_rule *r = a->r;
    for (int x = 0; x < p->m->m.naxes; x++) {
        int best = -1;
        bool used = taken >> x & 1;
        for (int f = 0; f < r->nfactors; f++)
            used |= has_axis(&a->of[f], x);
        for (int d = 0; !used && v->homeless[x] > 0 && d < r->tensors[v->whose[x]].rank; d++) {
            const eas_shard_dim *dim = &r->tensors[v->whose[x]].dims[d];
            int f = dim->n == 1 ? dim->factors[0] : -1;
            if (f < 0 || a->of[f].priority || r->factors[f].kind != EAS_FACTOR_PASS ||
                !dim_known(r->factors[f].size) || v->padded[f])
                continue;
            if (r->factors[f].size % (count_parts(p, &a->of[f]) * p->m->m.sizes[x]) == 0 &&
                (best < 0 || r->factors[f].size > r->factors[best].size))
                best = f;
        }
        if (best >= 0)
            a->of[best].axes[a->of[best].n++] = (uint8_t)x;
    }
}

static bool drop_last(eas_dim_spec *d)
{
    d->n = (uint8_t)(d->n - 1);
    return true;
}

/* Drops an axis of a factor that is cut although an outer factor of the same dim is not cut into single
 * elements. True: something was dropped. */
static bool fix_dim(const partition *p, assigned *a, const eas_shard_dim *dim)
{
    bool whole = false;
    for (int k = 0; k < dim->n; k++) {
        eas_dim_spec *of = &a->of[dim->factors[k]];
        if (whole && of->n)
            return drop_last(of);
        eas_dim size = a->r->factors[dim->factors[k]].size;
        whole |= !dim_known(size) || count_parts(p, of) != size;
    }
    return false;
}

/* A shuffle along a cut dim is a permutation between devices: each must have one element, and none may be
 * read twice. */
static bool fix_shuffle(const partition *p, const eas_node *n, assigned *a)
{
    const eas_shard_dim *d = &a->r->tensors[1].dims[node_words(n)[0]];
    eas_dim_spec *of = d->n ? &a->of[d->factors[0]] : NULL;
    if (!of || !of->n || (count_parts(p, of) == node_shape(n)[node_words(n)[0]] && rules_is_permutation(n)))
        return false;
    of->n = 0;
    return true;
}

/* A roll along a cut dim needs parts of equal size. */
static bool fix_roll(const partition *p, const eas_node *n, assigned *a)
{
    for (int i = 0; i < n->nwords; i += 2) {
        eas_dim_spec *of = &a->of[node_words(n)[i]];
        if (spec_uneven(p->m, of, node_shape(n)[node_words(n)[i]])) {
            of->n = 0;
            return true;
        }
    }
    return false;
}

/* Finds one thing that cannot hold (a size that does not divide, an inner factor cut before an outer one,
 * ...) and drops the axis that causes it. True: something was dropped, and the rest must be looked at again.
 * Each call takes away an axis, so the loop around it ends. */
static bool fix_once(const partition *p, const eas_node *n, assigned *a, const votes *v)
{
    const eas_shard_rule *r = a->r;
    if (n->op == GRAPH_SHUFFLE_PHYSICAL && fix_shuffle(p, n, a))
        return true;
    if (n->op == GRAPH_ROLL && fix_roll(p, n, a))
        return true;
    for (int f = 0; f < r->nfactors; f++) {
        eas_dim size = r->factors[f].size;
        if (r->factors[f].kind == EAS_FACTOR_HALO)
            continue;
        if (a->of[f].n && (!dim_known(size) || (size % count_parts(p, &a->of[f]) && !v->padded[f])))
            return drop_last(&a->of[f]);
    }
    for (int t = 0; t < r->nin + a->nout; t++)
        for (int d = 0; d < r->tensors[t].rank; d++) {
            const eas_shard_dim *dim = &r->tensors[t].dims[d];
            if (dim->n > 1 && fix_dim(p, a, dim))
                return true;
            for (int k = 0; k < dim->n && dim->n > 1; k++)
                if (v->padded[dim->factors[k]] && a->of[dim->factors[k]].n)
                    return drop_last(&a->of[dim->factors[k]]);
        }
    return false;
}

/* A mixed dim keeps its layout only if its axes did not change and every tensor has it as one dim; otherwise
 * it becomes whole. was: the factors' axes before they were settled; NULL: no mixed dim stays. */
static void unmix(assigned *a, const eas_dim_spec *was)
{
    for (int f = 0; f < a->r->nfactors; f++) {
        bool stays = was && spec_same_dim(&a->of[f], &was[f]);
        for (int t = 0; t < a->r->nin + a->nout; t++)
            for (int d = 0; d < a->r->tensors[t].rank; d++)
                for (int k = 0; k < a->r->tensors[t].dims[d].n; k++)
                    stays &= a->r->tensors[t].dims[d].factors[k] != f || a->r->tensors[t].dims[d].n == 1;
        if (a->of[f].priority && (!a->of[f].n || !stays))
            a->of[f] = (eas_dim_spec){0};
    }
}

/* Decides which axes cut which factors: every input votes with its bytes for the factors that its axes cut,
 * the users' wish with less than any input; each axis goes to the factor with most votes (settle); an axis
 * whose dim must be whole moves to another dim (rehouse); and what cannot hold is dropped until all of it
 * can. */
eas_status assign_by(partition *p, eas_node *n, eas_shard_rule *r, int nout, const eas_spec *const *in,
                     const eas_spec *want, assigned *out)
{
    *out = (assigned){.r = r, .nout = nout};
    eas_status st = EAS_OK;
    eas_dim_spec *mixed = NULL;
    size_t nf = (size_t)out->r->nfactors + 1;
    votes v = {.weight = calloc(nf * EAS_MESH_AXES, sizeof(double)),
               .best = calloc(nf, sizeof(double)),
               .padded = calloc(nf, sizeof(bool))};
    out->of = calloc(nf, sizeof *out->of);
    if (!v.weight || !v.best || !v.padded || !out->of)
        st = base_fail_oom(nf);
    if (!st) {
        out->carried = carry(n, in);
        for (int i = 0; i < out->r->nin; i++)
            vote(p, n, out, i, in[i], bytes_of(node_in(n)[i]) + 1, &v);
        if (want)
            vote(p, n, out, out->r->nin, want, 0.5, &v);
        mixed = calloc(nf, sizeof *mixed);
        if (mixed)
            memcpy(mixed, out->of, nf * sizeof *mixed);
        settle(p, out, &v, out->carried, bytes_of(n));
        unmix(out, mixed);
        rehouse(p, out, &v, out->carried);
        while (fix_once(p, n, out, &v))
            continue;
    }
    free(mixed);
    free(v.weight);
    free(v.best);
    free(v.padded);
    if (st)
        assign_free(out);
    return st;
}

eas_status assign_factors(partition *p, eas_node *n, const eas_spec *const *in, const eas_spec *want,
                          assigned *out)
{
    eas_shard_rule *r;
    *out = (assigned){0};
    eas_status st = dist_shard_rule(n, &r);
    return st ? st : assign_by(p, n, r, 1, in, want, out);
}

void assign_spec(const assigned *a, int tensor, eas_spec *out)
{
    const eas_shard_tensor *t = &a->r->tensors[tensor];
    *out = (eas_spec){.rank = t->rank};
    for (int d = 0; d < t->rank; d++)
        for (int k = 0; k < t->dims[d].n; k++) {
            uint16_t f = t->dims[d].factors[k];
            if (a->r->factors[f].kind == EAS_FACTOR_WHOLE)
                continue;
            for (int i = 0; i < a->of[f].n; i++)
                out->dims[d].axes[out->dims[d].n++] = a->of[f].axes[i];
            if (a->of[f].n)
                out->dims[d].priority = a->of[f].priority;
        }
}

void assign_free(assigned *a)
{
    free(a->r);
    free(a->of);
    *a = (assigned){0};
}
