/* control_cut.c: cuts a function out of the graph, for a loop or a branch (see control.h).
 *
 * The walk goes from the results to their inputs, without recursion, and decides of each node whether it is
 * inside. Inside nodes are copied (twin_of). Of the nodes outside that are read inside, numbers get a private
 * copy whose value is given at each run, index ranges and constants of a few elements are computed again, and
 * everything else becomes a placeholder: an input of the function, computed once, before it runs.
 * While nodes are copied a hash of the structure is built (cut_mix), so that equal bodies are known to be
 * equal.
 */
#include "control.h"

void cut_mix(cutting *c, uint64_t v)
{
    c->key[0] = (c->key[0] ^ v) * 0x9e3779b97f4a7c15u;
    c->key[0] ^= c->key[0] >> 29;
    c->key[1] = (c->key[1] + v) * 0xd6e8feb86659fd93u;
    c->key[1] ^= c->key[1] >> 32;
}

static void mix_type(cutting *c, const eas_node *n)
{
    cut_mix(c, (uint64_t)n->op << 32 | (uint64_t)n->dtype << 16 | (uint64_t)n->rank << 8 | n->nin);
    for (int i = 0; i < n->rank; i++)
        cut_mix(c, (uint64_t)node_shape(n)[i]);
}

static twin *find(const cutting *c, const eas_node *n)
{
    uint64_t h = (uint64_t)(uintptr_t)n * 0x9e3779b97f4a7c15u >> 20;
    while (c->table[h & (c->ntable - 1)].from && c->table[h & (c->ntable - 1)].from != n)
        h++;
    return &c->table[h & (c->ntable - 1)];
}

bool cut_grow(cutting *c)
{
    cutting old = *c;
    c->ntable = old.ntable ? old.ntable * 2 : 64;
    c->table = calloc(c->ntable, sizeof *c->table);
    if (!c->table) {
        c->table = old.table;
        c->ntable = old.ntable;
        return false;
    }
    for (uint32_t i = 0; i < old.ntable; i++)
        if (old.table[i].from)
            *find(c, old.table[i].from) = old.table[i];
    free(old.table);
    return true;
}

void cut_note(cutting *c, const eas_node *n, eas_node *to, bool inside)
{
    if (c->used * 2 >= c->ntable && !cut_grow(c)) {
        c->st = base_fail_oom(c->ntable * sizeof *c->table);
        return;
    }
    twin *t = find(c, n);
    if (!t->from)
        c->used++;
    *t = (twin){n, to, c->used, inside};
}

/* Takes the node over. */
static eas_node *keep(cutting *c, eas_status st, eas_node *n)
{
    if (!st && !vec_push(&c->made, n)) {
        node_unref(n);
        st = base_fail_oom(sizeof n);
    }
    c->st = c->st ? c->st : st;
    return st ? NULL : n;
}

eas_node *cut_placeholder(cutting *c, const eas_node *like, int index)
{
    int64_t word = index;
    eas_node *n = NULL;
    eas_status st = node_new(GRAPH_INPUT, (eas_dtype)like->dtype, like->batch_dims, like->rank,
                             node_shape(like), 1, &word, 0, NULL, &n);
    if (st)
        return keep(c, st, NULL);
    n->flags |= NODE_SYMBOLIC;
    n->device = like->device;
    mix_type(c, n);
    cut_mix(c, (uint64_t)index);
    cut_mix(c, (uint64_t)(uintptr_t)n->device);
    return keep(c, EAS_OK, n);
}

/* ---- what is outside ---- */

/* Is n made of numbers and index ranges alone, through views? Then it is computed again inside the function
 * instead of being passed in. */
static bool of_nothing(const eas_node *n, int depth)
{
    switch (node_real(n) ? KIND_LEAF : node_kind(n)) {
    case KIND_CONST:
    case KIND_IOTA: return true;
    case KIND_BROADCAST:
    case KIND_RESHAPE:
    case KIND_CAST: return depth > 0 && of_nothing(node_in(n)[0], depth - 1);
    default: return false;
    }
}

static eas_node *private_number(cutting *c, eas_node *n)
{
    eas_node *own = NULL;
    eas_status st = node_new(GRAPH_CONST, (eas_dtype)n->dtype, 0, 0, NULL, 2, node_words(n), 0, NULL, &own);
    if (st)
        return keep(c, st, NULL);
    own->flags |= n->flags & (NODE_WEAK | NODE_FIXED);
    bool fixed = node_fixed(n);
    cut_mix(c, (uint64_t)GRAPH_CONST << 32 | (uint64_t)n->dtype << 1 | fixed);
    if (fixed)
        cut_mix(c, (uint64_t)node_words(n)[0]);
    else if (!vec_push(&c->numbers, own) || !vec_push(&c->values, n))
        st = base_fail_oom(sizeof n);
    return keep(c, st, own);
}

static eas_node *twin_of(cutting *c, const eas_node *n, eas_node *const *in)
{
    eas_node *t = NULL;
    eas_status st = node_new(n->op, (eas_dtype)n->dtype, n->batch_dims, n->rank, node_shape(n), n->nwords,
                             node_words(n), n->nin, in, &t);
    if (st)
        return keep(c, st, NULL);
    t->site = n->site;
    t->flags |= n->flags & NODE_WEAK;
    if (n->extra && (n->extra->kernel || n->extra->native || n->extra->control))
        st = node_extra_copy(n->extra, &t->extra);
    mix_type(c, n);
    for (int i = 0; i < n->nwords; i++)
        cut_mix(c, (uint64_t)node_words(n)[i]);
    if (n->extra && (n->extra->kernel || n->extra->native))
        cut_mix(c, node_call_key(n->extra));
    if (n->extra && n->extra->control) {
        cut_mix(c, n->extra->control->key[0]);
        cut_mix(c, n->extra->control->key[1]);
    }
    return keep(c, st, t);
}

static eas_node *stand_in(cutting *c, eas_node *n);

static eas_node *copy_of_nothing(cutting *c, eas_node *n)
{
    eas_node *in = n->nin ? stand_in(c, node_in(n)[0]) : NULL;
    return c->st ? NULL : twin_of(c, n, &in);
}

/* The node that stands for n inside the function; made when it is first asked for. */
static eas_node *stand_in(cutting *c, eas_node *n)
{
    twin *t = find(c, n);
    if (c->st || (t->from && t->to)) {
        if (!c->st)
            cut_mix(c, t->id);
        return c->st ? NULL : t->to;
    }
    eas_node *to = n;
    if (!c->replace && n->op == GRAPH_CONST)
        to = private_number(c, n);
    else if (!c->replace && of_nothing(n, 6))
        to = copy_of_nothing(c, n);
    else if (!c->replace) {
        to = cut_placeholder(c, n, c->nin + (int)c->captured.len);
        if (to && !vec_push(&c->captured, n))
            c->st = base_fail_oom(sizeof n);
    }
    if (!c->st)
        cut_note(c, n, to, false);
    return c->st ? NULL : to;
}

/* ---- what is inside ---- */

static bool opens(const cutting *c, const eas_node *n)
{
    if (node_real(n) || n->nin == 0)
        return false;
    if (c->all)
        return true;
    return c->branch ? (n->flags / NODE_BRANCH & BRANCH_MOST) >= c->branch : (n->flags & NODE_SYMBOLIC) != 0;
}

static void finish_node(cutting *c, eas_node *n)
{
    bool inside = c->branch && opens(c, n);
    eas_node *few[16], **in = n->nin <= 16 ? few : malloc(sizeof *in * n->nin);
    for (int i = 0; i < n->nin && !inside; i++) {
        const twin *t = find(c, node_in(n)[i]);
        inside = t->from && t->inside;
    }
    if (!in)
        c->st = base_fail_oom(n->nin);
    for (int i = 0; i < n->nin && inside && !c->st; i++)
        in[i] = stand_in(c, node_in(n)[i]);
    eas_node *to = inside && !c->st ? twin_of(c, n, in) : NULL;
    if (!c->st)
        cut_note(c, n, to, inside);
    if (in != few)
        free(in);
}

typedef struct visit {
    eas_node *n;
    int next;
} visit;

/* root as it is inside, borrowed. The walk keeps its own stack: chains of nodes are too long for recursion.
 */
eas_node *cut_node(cutting *c, eas_node *root)
{
    VEC(visit) stack = {0};
    if (!c->ntable && !cut_grow(c))
        c->st = base_fail_oom(0);
    if (!c->st && !find(c, root)->from && opens(c, root) && !vec_push(&stack, ((visit){root, 0})))
        c->st = base_fail_oom(0);
    while (stack.len && !c->st) {
        visit *v = &stack.at[stack.len - 1];
        if (v->next < v->n->nin) {
            eas_node *in = node_in(v->n)[v->next++];
            if (opens(c, in) && !find(c, in)->from && !vec_push(&stack, ((visit){in, 0})))
                c->st = base_fail_oom(0);
            continue;
        }
        if (!find(c, v->n)->from)
            finish_node(c, v->n);
        stack.len--;
    }
    vec_free(&stack);
    return c->st ? NULL : stand_in(c, root);
}

void cut_free(cutting *c)
{
    for (uint32_t i = 0; i < c->made.len; i++)
        node_unref(c->made.at[i]);
    vec_free(&c->made);
    vec_free(&c->captured);
    vec_free(&c->numbers);
    vec_free(&c->values);
    free(c->table);
}
eas_status cut_fn(cutting *c, int n, eas_node *const *outs, graph_fn *fn)
{
    fn->outs = calloc((size_t)n + 1, sizeof *fn->outs);
    if (!fn->outs)
        return base_fail_oom((size_t)n);
    for (int i = 0; i < n; i++) {
        eas_node *o = cut_node(c, outs[i]);
        if (!o)
            return c->st;
        fn->outs[fn->n++] = node_ref(o);
    }
    return EAS_OK;
}

/* ---- what runs, as a graph again ---- */

eas_status control_inputs(const graph_control *c, int which, eas_node **in)
{
    VEC(visit) stack = {0};
    cutting seen = {0};
    const graph_fn *fn = &c->fn[which];
    bool ok = cut_grow(&seen);
    memset(in, 0, sizeof *in * (size_t)c->nin);
    for (int i = 0; i < fn->n && ok; i++) {
        if (!find(&seen, fn->outs[i])->from)
            ok = vec_push(&stack, ((visit){fn->outs[i], 0}));
        while (stack.len && ok && !seen.st) {
            visit *v = &stack.at[stack.len - 1];
            if (v->next < v->n->nin) {
                eas_node *x = node_in(v->n)[v->next++];
                if (!find(&seen, x)->from)
                    ok = vec_push(&stack, ((visit){x, 0}));
                continue;
            }
            eas_node *n = v->n;
            stack.len--;
            if (find(&seen, n)->from)
                continue;
            cut_note(&seen, n, n, false);
            if (n->op == GRAPH_INPUT)
                in[node_words(n)[0]] = n;
        }
    }
    vec_free(&stack);
    cut_free(&seen);
    return ok && !seen.st ? EAS_OK : base_fail_oom(0);
}

eas_status control_replace(gbuild *g, int nfrom, eas_node *const *from, eas_node *const *to, int n,
                           eas_node **nodes, bool all)
{
    cutting c = {.replace = true, .all = all};
    if (!g->st && !cut_grow(&c))
        c.st = base_fail_oom(0);
    for (int i = 0; i < nfrom && !c.st; i++)
        if (from[i] && to[i])
            cut_note(&c, from[i], to[i], true);
    for (int i = 0; i < n && !c.st && !g->st; i++) {
        nodes[i] = nodes[i] ? cut_node(&c, nodes[i]) : NULL;
        if (nodes[i] && !vec_push(&g->made, node_ref(nodes[i]))) {
            node_unref(nodes[i]);
            c.st = base_fail_oom(sizeof *nodes);
        }
    }
    g->st = g->st ? g->st : c.st;
    cut_free(&c);
    return g->st;
}
