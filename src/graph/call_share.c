/* call_share.c: how a call of a kernel can be cut along the axes of a mesh, as the one who made it tells:
 * factors of its tensors' dims, and the launch of a part in terms of the part's sizes. */
#include "graph.h"

call_share *call_share_retain(call_share *s)
{
    if (s)
        atomic_fetch_add(&s->refs, 1);
    return s;
}

void call_share_release(call_share *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    free(s->rule);
    free(s->sizes);
    free(s->numbers);
    free(s->sums);
    free(s);
}

static uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 0x9e3779b97f4a7c15u ^ h >> 29; }

static uint64_t hash_of(const call_share *s, int nin, int nout)
{
    uint64_t h = 1 + s->lanes;
    for (int f = 0; f < s->rule->nfactors; f++)
        h = mix(mix(mix(h, (uint64_t)s->rule->factors[f].size), (uint64_t)s->rule->factors[f].kind),
                (uint64_t)s->sizes[f]);
    for (int t = 0; t < s->ntensors; t++)
        for (int d = 0; d < s->rule->tensors[t].rank; d++) {
            const eas_shard_dim *dim = &s->rule->tensors[t].dims[d];
            for (int i = 0; i < dim->n; i++)
                h = mix(h, dim->factors[i] + 1u);
            h = mix(h, 0x100);
        }
    for (int i = 0; i < 3 && s->has_grid; i++)
        h = mix(h, (uint64_t)s->grid[i]);
    for (int i = 0; i < nin; i++)
        h = mix(h, (uint64_t)s->numbers[i]);
    for (int i = 0; i < nout; i++)
        h = mix(h, s->sums[i]);
    return h;
}

static eas_status check_tensor(const eas_call_rule *r, int t, int rank)
{
    const eas_shard_tensor *tensor = &r->factors->tensors[t];
    if (tensor->rank != rank)
        return base_fail(EAS_ERR_VALUE, "a sharding rule says that tensor %d has %d dims, and it has %d", t,
                         tensor->rank, rank);
    for (int d = 0; d < rank; d++)
        for (int i = 0; i < tensor->dims[d].n; i++)
            if (tensor->dims[d].factors[i] >= r->factors->nfactors)
                return base_fail(EAS_ERR_VALUE, "a sharding rule names factor %d of %d",
                                 tensor->dims[d].factors[i], r->factors->nfactors);
    return EAS_OK;
}

static eas_status check_rule(const eas_node *n, const eas_call_rule *r)
{
    const node_extra *x = n->extra;
    eas_status st = EAS_OK;
    if (r->factors->nin != n->nin)
        return base_fail(EAS_ERR_VALUE, "a sharding rule for %d inputs; the call has %d", r->factors->nin,
                         n->nin);
    if (r->factors->nfactors < 0 || r->factors->nfactors > EAS_MAX_FACTORS)
        return base_fail(EAS_ERR_VALUE, "a sharding rule of %d factors; there are at most %d",
                         r->factors->nfactors, EAS_MAX_FACTORS);
    for (int i = 0; i < n->nin && !st; i++)
        st = check_tensor(r, i, node_in(n)[i]->rank);
    for (int i = 0; i < x->nouts && !st; i++)
        st = check_tensor(r, n->nin + i, x->outs[i].rank);
    for (int i = 0; i < n->nin && !st && r->numbers; i++)
        if (r->numbers[i] != DIM_NONE && node_kind(node_in(n)[i]) != KIND_CONST)
            st = base_fail(EAS_ERR_TYPE, "a sharding rule has a number for input %d, which is a tensor", i);
    return st;
}

static bool fill(call_share *s, const eas_node *n, const eas_call_rule *r)
{
    int nout = n->extra->nouts;
    size_t size = sizeof *s->rule + sizeof(eas_shard_tensor) * (size_t)(s->ntensors + 1);
    s->rule = malloc(size);
    s->sizes = calloc((size_t)r->factors->nfactors + 1, sizeof *s->sizes);
    s->numbers = malloc(sizeof *s->numbers * (size_t)(n->nin + 1));
    s->sums = calloc((size_t)nout + 1, 1);
    if (!s->rule || !s->sizes || !s->numbers || !s->sums)
        return false;
    *s->rule = *r->factors;
    s->rule->tensors = (eas_shard_tensor *)(s->rule + 1);
    memcpy(s->rule->tensors, r->factors->tensors, sizeof(eas_shard_tensor) * (size_t)s->ntensors);
    for (int f = 0; f < r->factors->nfactors && r->sizes; f++)
        s->sizes[f] = r->sizes[f];
    for (int i = 0; i < n->nin; i++)
        s->numbers[i] = r->numbers ? r->numbers[i] : DIM_NONE;
    for (int i = 0; i < nout && r->sums; i++)
        s->sums[i] = r->sums[i] != 0;
    s->has_grid = r->grid != NULL;
    for (int i = 0; i < 3 && r->grid; i++)
        s->grid[i] = r->grid[i];
    s->lanes = r->lanes != 0;
    s->hash = hash_of(s, n->nin, nout);
    return true;
}

eas_status eas_node_call_rule(eas_node *result, const eas_call_rule *r)
{
    NEED(result, EAS_ERR_HANDLE);
    NEED(r, EAS_ERR_HANDLE);
    NEED(r->factors, EAS_ERR_HANDLE);
    int index;
    if (node_real(result) || node_kind(result) != KIND_RESULT)
        return base_fail(EAS_ERR_VALUE,
                         "eas_node_call_rule: a result of eas_node_call that has no data yet is wanted");
    eas_node *n = control_source(result, &index);
    if (node_kind(n) != KIND_CALL || !n->extra->kernel)
        return base_fail(EAS_ERR_VALUE, "eas_node_call_rule: a result of eas_node_call is wanted");
    eas_status st = check_rule(n, r);
    call_share *s = st ? NULL : calloc(1, sizeof *s);
    if (!s)
        return st ? st : base_fail_oom(sizeof *s);
    atomic_init(&s->refs, 1);
    s->ntensors = n->nin + n->extra->nouts;
    if (!fill(s, n, r)) {
        call_share_release(s);
        return base_fail_oom(sizeof *s);
    }
    call_share_release(n->extra->share);
    n->extra->share = s;
    return EAS_OK;
}
