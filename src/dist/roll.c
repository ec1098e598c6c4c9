/* roll.c: rolls along a cut dim. A roll by whole parts is one permutation of parts; otherwise two: of the
 * parts' ends and of their beginnings. */
#include "shift.h"

bool shift_is_roll(const eas_node *n)
{
    if (n->op != GRAPH_ROLL || node_real(n) || !shift_known_sizes(n))
        return false;
    for (int i = 0; i < n->nwords; i += 2)
        if (node_words(n)[i] < 0 || dim_is_expr(node_words(n)[i + 1]))
            return false;
    return true;
}

eas_status shift_roll_rule(const eas_node *n, eas_shard_rule **out)
{
    eas_shard_rule *r = calloc(1, sizeof *r + sizeof(eas_shard_tensor) * 2);
    *out = r;
    if (!r)
        return base_fail_oom(sizeof *r);
    r->nin = 1;
    r->tensors = (eas_shard_tensor *)(r + 1);
    r->tensors[0].rank = r->tensors[1].rank = n->rank;
    for (int d = 0; d < n->rank; d++, r->nfactors++) {
        r->factors[d].size = node_shape(n)[d];
        r->factors[d].kind = EAS_FACTOR_PASS;
        r->tensors[0].dims[d] = r->tensors[1].dims[d] = (eas_shard_dim){.n = 1, .factors = {(uint16_t)d}};
    }
    return EAS_OK;
}

/* The last rows of each part (or, of `first`, its first ones) to the device `hops` further, around. */
static eas_node *around(partition *p, eas_node *x, int dim, const eas_dim_spec *axes, int64_t n, int64_t hops,
                        int64_t rows, bool first)
{
    int64_t *pairs = malloc(sizeof *pairs * 2 * (size_t)n);
    if (!pairs)
        return partition_keep(p, base_fail_oom((size_t)n), NULL);
    for (int64_t k = 0; k < n; k++) {
        pairs[2 * k] = k;
        pairs[2 * k + 1] = (k + hops) % n;
    }
    eas_node *part = gb_slice(&p->g, x, dim, first ? 0 : node_shape(x)[dim] - rows, rows, 1);
    if (hops % n)
        part = coll_permute(p, part, axes, (int)n, pairs, "edges of parts go around");
    free(pairs);
    return part;
}

static eas_node *rolled(partition *p, eas_node *x, int dim, const eas_dim_spec *axes, int64_t size,
                        int64_t shift)
{
    gbuild *g = &p->g;
    if (g->st || !x || size == 0)
        return g->st ? NULL : x;
    int64_t n = spec_parts(p->m, axes), li = node_shape(x)[dim], by = ((shift % size) + size) % size,
            hops = by / li, rows = by % li;
    eas_node *ends = rows ? around(p, x, dim, axes, n, hops + 1, rows, false) : NULL;
    eas_node *rest = around(p, x, dim, axes, n, hops, li - rows, true);
    return !rows || g->st ? rest : gb_concat(g, dim, 2, (eas_node *[]){ends, rest});
}

eas_node *shift_rolled(partition *p, const eas_node *n, const eas_spec *at, eas_node *x)
{
    for (int i = 0; i < n->nwords && x; i += 2) {
        int dim = (int)node_words(n)[i];
        x = rolled(p, x, dim, &at->dims[dim], node_shape(n)[dim], node_words(n)[i + 1]);
    }
    return x;
}
