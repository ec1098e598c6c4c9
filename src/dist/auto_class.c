/* auto_class.c: which tensors of a graph play the same part: a hash of shape, dtype and of the operations
 * within a few uses, which is equal for the weights and activations of repeated layers. */
#include "cost.h"

uint64_t around_join(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t own_hash(const eas_node *n)
{
    uint64_t h = around_join(0x51ed, n->op);
    h = around_join(h, n->dtype);
    for (int d = 0; d < n->rank; d++)
        h = around_join(h, (uint64_t)node_shape(n)[d] + 7);
    return h;
}

static uint32_t place_in(const around *a, const eas_node *n)
{
    uint64_t h = (uint64_t)(uintptr_t)n * 0x9e3779b97f4a7c15u >> 24;
    while (a->table[h & (a->ntable - 1)] && a->order.at[a->table[h & (a->ntable - 1)] - 1] != n)
        h++;
    return (uint32_t)(h & (a->ntable - 1));
}

static bool has(const around *a, const eas_node *n) { return a->table[place_in(a, n)] != 0; }

static bool enlarge(around *a)
{
    free(a->table);
    a->ntable = a->ntable ? a->ntable * 2 : 1024;
    a->table = calloc(a->ntable, sizeof *a->table);
    for (uint32_t i = 0; a->table && i < a->order.len; i++)
        a->table[place_in(a, a->order.at[i])] = i + 1;
    return a->table != NULL;
}

static bool push_node(around *a, eas_node *n)
{
    if (a->order.len * 2 >= a->ntable && !enlarge(a))
        return false;
    if (has(a, n))
        return true;
    if (!vec_push(&a->order, n))
        return false;
    a->table[place_in(a, n)] = a->order.len;
    return true;
}

/* All nodes that outs are made of; users stand before what they use. */
static bool reach(around *a, int n, eas_node *const *outs)
{
    bool ok = true;
    for (int i = 0; i < n && ok; i++)
        ok = push_node(a, outs[i]);
    for (uint32_t i = 0; i < a->order.len && ok; i++) {
        eas_node *x = a->order.at[i];
        for (int k = 0; k < x->nin && !node_real(x) && ok; k++)
            ok = push_node(a, node_in(x)[k]);
    }
    return ok;
}

/* Hashes of what lies within STEPS uses of each node. The sum over users does not depend on their order. */
static bool look_around(around *a)
{
    enum { STEPS = 5 };
    uint64_t *next = malloc(sizeof *next * (a->order.len + 1u));
    a->hash = malloc(sizeof *a->hash * (a->order.len + 1u));
    if (!next || !a->hash) {
        free(next);
        return false;
    }
    for (uint32_t i = 0; i < a->order.len; i++)
        a->hash[i] = own_hash(a->order.at[i]);
    for (int s = 0; s < STEPS; s++) {
        memcpy(next, a->hash, sizeof *next * a->order.len);
        for (uint32_t i = 0; i < a->order.len; i++) {
            const eas_node *x = a->order.at[i];
            for (int k = 0; k < x->nin && !node_real(x); k++)
                next[a->table[place_in(a, node_in(x)[k])] - 1] += around_join(a->hash[i], (uint64_t)k + 1);
        }
        uint64_t *t = a->hash;
        a->hash = next;
        next = t;
    }
    free(next);
    return true;
}

eas_status around_new(around *a, int n, eas_node *const *outs)
{
    *a = (around){0};
    if (enlarge(a) && reach(a, n, outs) && look_around(a))
        return EAS_OK;
    around_free(a);
    return base_fail_oom(sizeof *a);
}

uint64_t around_hash(const around *a, const eas_node *n)
{
    uint32_t k = a->table[place_in(a, n)];
    return k ? a->hash[k - 1] : 0;
}

void around_free(around *a)
{
    vec_free(&a->order);
    free(a->hash);
    free(a->table);
    *a = (around){0};
}
