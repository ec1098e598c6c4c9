/* diff.c: derivatives of a recorded graph, forward (jvp) and reverse (vjp): one walk each, over one set of
 * rules.
 *
 * Idea: a row of op.def has one rule for both modes. Linear operations are known by their kind, which has a
 * transpose (diff_kind.c); element-wise maps are their own transposes (diff_map.c); every other operation is
 * differentiated through other operations: its expansion, or a stand-in with the same derivatives
 * (diff_as.c). Derivatives are recorded as nodes like any others, so they fuse with what is around them, and
 * a derivative of a derivative is the same walk again.
 *
 * The walk first collects the nodes between the variables and the results, inputs first and without recursion
 * (follow). Forward mode goes through this list from inputs to results, reverse mode from results to inputs,
 * where cotangents of a node that is used several times are summed before the node itself is reached.
 *
 * Dims of a tangent (or cotangent) of x, in front of x's logical dims:
 *
 *     extra dims      of vmaps that were entered after f was recorded, around its derivative: jacrev is vmap
 *                     of a pullback
 *     batch dims      x's own, of vmaps inside f and around it
 *
 * The last `lanes` batch dims belong to vmaps around the whole derivative. There a tangent may have lanes
 * where x has none or one: x is the same in every lane, and its gradient is not. A gradient is therefore
 * summed over batch dims that x lacks only if they belong to vmaps inside f. Batch dims are aligned at their
 * end, logical ones at theirs.
 *
 * Assumed: nodes are immutable while the walk runs, and a node is recorded after its inputs. Rules build
 * derivatives from the node, its inputs and the given tangents only: the walk does not look for variables in
 * nodes that rules have made.
 */
#include "graph.h"

/* ---- the walk ---- */

/* One node between the variables and the results, as the walk sees it. */
typedef struct item {
    eas_node *n;       /* borrowed: the results hold it, or the build does */
    eas_node *through; /* what it is differentiated through; NULL: itself */
    eas_node *t;       /* tangent or cotangent */
    eas_node **many;   /* the same of a node with several results */
    uint32_t sibling;  /* 1 + number of the item before it that shares its user's rule */
    bool active;       /* depends on a variable */
} item;
typedef struct group { /* the results of one call of a user's operation */
    const node_rule *rule;
    uint32_t first, last; /* items */
} group;
/* results that are computed once more for a reverse derivative (eas_nodes_checkpoint) */
typedef struct again {
    const node_rule *rule;
    eas_node **copies;  /* of the results; made from barriers in place of inputs */
    eas_node *barriers[64]; /* that wait for the cotangent, once it is there */
    int nbarriers;
} again;
typedef struct walk {
    gbuild g;
    bool reverse;
    uint16_t symbolic; /* NODE_SYMBOLIC if a cotangent is: so is what waits for one */
    uint16_t prune;  /* nodes without any of these flags do not depend on a variable; 0: it is not known */
    VEC(item) items; /* inputs first; the variables first of all */
    uint32_t nvars;
    VEC(group) groups;
    VEC(again) again;
    uint32_t *table, ntable; /* by node, 1 + number of the item */
} walk;

static uint32_t *slot(const walk *w, const eas_node *n)
{
    uint64_t h = (uint64_t)(uintptr_t)n * 0x9e3779b97f4a7c15u >> 24;
    while (w->table[h & (w->ntable - 1)] && w->items.at[w->table[h & (w->ntable - 1)] - 1].n != n)
        h++;
    return &w->table[h & (w->ntable - 1)];
}

static item *find(const walk *w, const eas_node *n)
{
    uint32_t k = *slot(w, n);
    return k ? &w->items.at[k - 1] : NULL;
}

static bool grow(walk *w)
{
    uint32_t size = w->ntable ? 2 * w->ntable : 64, *table = calloc(size, sizeof *table);
    if (!table) {
        w->g.st = base_fail_oom(size * sizeof *table);
        return false;
    }
    free(w->table);
    w->table = table;
    w->ntable = size;
    for (uint32_t i = 0; i < w->items.len; i++)
        *slot(w, w->items.at[i].n) = i + 1;
    return true;
}

static bool is_result(const eas_node *n) { return node_kind(n) == KIND_RESULT; }
static bool has_rule(const eas_node *n) { return n->extra && n->extra->rule && !n->extra->rule->again; }
static bool runs_again(const eas_node *n) { return n->extra && n->extra->rule && n->extra->rule->again; }

/* Adds an item to the group of its call. The search begins with the newest group: results of one call are
 * close to each other in the list. */
static bool join_group(walk *w, item *it, uint32_t number)
{
    const node_rule *r = it->n->extra->rule;
    for (uint32_t i = w->groups.len; i-- > 0;)
        if (w->groups.at[i].rule == r) {
            it->sibling = w->groups.at[i].last + 1;
            w->groups.at[i].last = number;
            return true;
        }
    return vec_push(&w->groups, ((group){r, number, number}));
}

static void enter(walk *w, item it)
{
    if (2 * (w->items.len + 1) > w->ntable && !grow(w))
        return;
    uint32_t *at = slot(w, it.n);
    bool ok = !has_rule(it.n) || !it.active || w->items.len < w->nvars || join_group(w, &it, w->items.len);
    if (!ok || !vec_push(&w->items, it))
        w->g.st = base_fail_oom(sizeof it);
    else
        *at = w->items.len;
}

/* The inputs from first_input to last_input carry a derivative. An operation with a user's rule is an alias
 * of its result (input 0) whose arguments follow as inputs 1, 2, ...: the rule differentiates by the
 * arguments. An alias without a rule has the derivative of input 0, and the inputs after it have none. */
static int first_input(const eas_node *n) { return has_rule(n) ? 1 : 0; }
static int last_input(const eas_node *n)
{
    return !has_rule(n) && node_kind(n) == KIND_ALIAS && n->nin ? 1 : n->nin;
}
static bool has_results(const eas_node *n)
{
    return node_kind(n) == KIND_CONTROL || node_kind(n) == KIND_CALL;
}

/* Input i of n; of a result, the node that computes it now (a loop may have been replaced by a wider one). */
static eas_node *input_of(const eas_node *n, int i)
{
    int index;
    return node_kind(n) == KIND_RESULT ? control_source(n, &index) : node_in(n)[i];
}

/* Stand-ins (diff_as.c) refer to what they stand for, but only through operations without a derivative: the
 * walk ends there. */
static bool may_depend(const walk *w, const eas_node *n)
{
    return n->nin && (!w->prune || n->flags & w->prune) && graph_rows[n->op].diff.how != DIFF_ZERO;
}

/* Is an input of n active? */
static bool reached(const walk *w, const eas_node *n)
{
    if (graph_rows[n->op].diff.how == DIFF_ZERO || !(diff_float(n) || has_results(n)))
        return false;
    for (int i = first_input(n); i < last_input(n); i++) {
        const item *x = find(w, input_of(n, i));
        if (x && x->active)
            return true;
    }
    return false;
}

/* An alias of x that this walk takes for a constant. */
static eas_node *without_derivative(walk *w, eas_node *x)
{
    int64_t word = x->batch_dims;
    eas_node *n = gb_new(&w->g, GRAPH_ALIAS, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1,
                         &word, 1, &x);
    if (n)
        enter(w, (item){.n = n});
    return n;
}

/* ---- results that are computed again ---- */

/* Was it computed, or is it data, an argument, or another name of such? */
static bool computed(const eas_node *x)
{
    while (!node_real(x) && node_kind(x) == KIND_ALIAS && x->nin)
        x = node_in(x)[0];
    return !node_real(x) && x->nin;
}

/* Records the results of a checkpoint a second time. Inputs that were computed are replaced by barriers, so
 * that no node of the copy is equal to one of the original and both are really computed. Inputs that are data
 * need no barrier. There are two exceptions: the last input gets one if no input was computed, and an input
 * in parts on a mesh gets one, so that what is gathered of it is gathered again instead of being kept. */
static void copy_again(walk *w, eas_node *n, again *a)
{
    enum { MOST = sizeof a->barriers / sizeof *a->barriers };
    gbuild *g = &w->g;
    int nin = n->nin - 1, count = 0;
    eas_node **in = node_in(n) + 1, **to = calloc((size_t)nin + 1, sizeof *to);
    a->copies = calloc((size_t)a->rule->nout + 1, sizeof *a->copies);
    if (!to || !a->copies)
        g->st = base_fail_oom((size_t)nin);
    for (int i = 0; i < nin; i++)
        count += computed(in[i]);
    for (int i = 0; i < nin && !g->st; i++) {
        bool wanted = (in[i]->flags & NODE_SHARDED) || (count ? computed(in[i]) : i == nin - 1);
        if (!wanted || a->nbarriers == MOST)
            continue;
        eas_node *token = gd_const(g, EAS_F32, 0);
        to[i] = token ? gb_new(g, GRAPH_BARRIER, (eas_dtype)in[i]->dtype, in[i]->batch_dims, in[i]->rank,
                               node_shape(in[i]), 0, NULL, 2, (eas_node *[]){in[i], token})
                      : NULL;
        if (to[i])
            to[i]->flags |= w->symbolic;
        a->barriers[a->nbarriers++] = to[i];
    }
    for (int i = 0; i < a->rule->nout && !g->st; i++)
        a->copies[i] = a->rule->again[i];
    if (!g->st)
        control_replace(g, nin, in, to, a->rule->nout, a->copies, true);
    free(to);
}

static eas_node *computed_again(walk *w, eas_node *n)
{
    const node_rule *r = n->extra->rule;
    for (uint32_t i = w->again.len; i-- > 0;)
        if (w->again.at[i].rule == r)
            return w->again.at[i].copies[node_words(n)[0]];
    again a = {.rule = r};
    copy_again(w, n, &a);
    if (!w->g.st && !vec_push(&w->again, a))
        w->g.st = base_fail_oom(sizeof a);
    if (w->g.st)
        free(a.copies);
    return w->g.st ? NULL : a.copies[node_words(n)[0]];
}

/* Makes the barriers depend on ct: nothing is computed again before the cotangent is there. The barriers are
 * changed in place, which is allowed because only this walk refers to them. */
static void wait_for(walk *w, const node_rule *r, eas_node *ct)
{
    for (uint32_t i = w->again.len; i-- > 0;) {
        again *a = &w->again.at[i];
        if (a->rule != r)
            continue;
        for (int k = 0; k < a->nbarriers && !w->g.st; k++) {
            eas_node *x = node_in(a->barriers[k])[0];
            eas_node *with = gb_apply(&w->g, GRAPH_BARRIER, 2, (eas_node *[]){x, ct}, 0, NULL);
            if (with) { /* its second input replaces the constant that copy_again put there */
                eas_node **mine = &node_in(a->barriers[k])[1], *old = *mine;
                *mine = node_ref(node_in(with)[1]);
                a->barriers[k]->depth =
                    with->depth > a->barriers[k]->depth ? with->depth : a->barriers[k]->depth;
                a->barriers[k]->flags |= (*mine)->flags & (NODE_SYMBOLIC | NODE_SHARDED);
                node_unref(old);
            }
        }
        a->nbarriers = 0;
        return;
    }
}

/* The expansion of n that is differentiated in its place; NULL: n has a rule of its own. */
static eas_node *opened(walk *w, eas_node *n)
{
    const graph_diff *d = &graph_rows[n->op].diff;
    gbuild *g = &w->g;
    eas_node *out = NULL;
    if (runs_again(n))
        return w->reverse ? computed_again(w, n) : node_in(n)[0];
    if (has_rule(n) || (d->how != DIFF_AS && d->how != DIFF_EXPAND))
        return NULL;
    node_expanding = true;
    if (d->how == DIFF_AS)
        out = d->as(g, n);
    node_expanding = false;
    if (d->how == DIFF_AS)
        return out;
    eas_node *few[16], **in = n->nin <= 16 ? few : malloc(sizeof *in * n->nin);
    if (!in)
        g->st = base_fail_oom(n->nin);
    for (int i = 0; i < n->nin && !g->st; i++) {
        const item *x = find(w, node_in(n)[i]);
        bool quick = w->reverse && d->each && x && x->active && d->each(NULL, n, i, NULL);
        in[i] = quick ? without_derivative(w, node_in(n)[i]) : node_in(n)[i];
        /* An expansion may treat batch dims that an input lacks as rows of a product, whose derivative sums
         * over them; but the lanes of vmaps around the derivative must stay apart. So each input gets them.
         */
        if (g->lanes && n->batch_dims)
            in[i] = gd_aligned(g, in[i], n->batch_dims, n->batch_dims, node_logical_rank(in[i]));
    }
    node_expanding = true;
    if (!g->st)
        g->st = graph_rows[n->op].expand(n, in, &out);
    node_expanding = false;
    if (in != few)
        free(in);
    if (!g->st && !vec_push(&g->made, out))
        g->st = base_fail_oom(sizeof out);
    return g->st ? NULL : out;
}

typedef struct visit {
    eas_node *n;
    int next;
    eas_node *through;
} visit;

/* Everything below root that may depend on a variable, inputs first; without recursion, as chains are long.
 */
static void follow(walk *w, eas_node *root)
{
    VEC(visit) stack = {0};
    bool ok = true;
    if (may_depend(w, root) && !find(w, root))
        ok = vec_push(&stack, ((visit){root, first_input(root), NULL}));
    while (stack.len && ok && !w->g.st) {
        visit *v = &stack.at[stack.len - 1];
        eas_node *n = v->n;
        if (v->next < last_input(n)) {
            eas_node *in = input_of(n, v->next++);
            if (may_depend(w, in) && !find(w, in))
                ok = vec_push(&stack, ((visit){in, first_input(in), NULL}));
            continue;
        }
        bool active = reached(w, n);
        if (active && v->next <= last_input(n)) { /* once */
            v->next = last_input(n) + 1;
            eas_site_set(n->site);
            eas_node *through = v->through = opened(w, n);
            if (through && !find(w, through)) {
                if (may_depend(w, through))
                    ok = vec_push(&stack, ((visit){through, first_input(through), NULL})); /* moves v */
                continue;
            }
        }
        item it = {.n = n, .through = v->through, .active = active};
        stack.len--;
        if (!find(w, n) && !w->g.st)
            enter(w, it);
    }
    if (!ok && !w->g.st)
        w->g.st = base_fail_oom(sizeof(visit));
    vec_free(&stack);
}

static bool begin(walk *w, int nin, eas_node *const *in, int nout, eas_node *const *outs)
{
    bool known = true;
    if (!grow(w))
        return false;
    for (int i = 0; i < nin && !w->g.st; i++) {
        uint16_t sign = in[i]->flags & NODE_KEEPS ? NODE_KEEPS : in[i]->flags & NODE_SYMBOLIC;
        known &= sign != 0;
        w->prune |= sign;
        w->nvars = w->items.len + 1;
        if (!find(w, in[i]))
            enter(w, (item){.n = in[i], .active = true});
    }
    w->nvars = w->items.len;
    w->prune = known ? w->prune : 0;
    for (int i = 0; i < nout && !w->g.st; i++)
        follow(w, outs[i]);
    return !w->g.st;
}

static eas_status finish(walk *w)
{
    eas_node *none;
    for (uint32_t i = 0; i < w->items.len; i++)
        free(w->items.at[i].many);
    vec_free(&w->items);
    for (uint32_t i = 0; i < w->again.len; i++)
        free(w->again.at[i].copies);
    vec_free(&w->again);
    vec_free(&w->groups);
    free(w->table);
    eas_site_set(0);
    return gb_done(&w->g, NULL, &none);
}

static eas_status place_of(const eas_node *n, const char *what)
{
    char file[256];
    int line = 0;
    const char *name =
        n->extra && n->extra->kernel ? eas_ir_name(eas_kernel_ir(n->extra->kernel)) : graph_rows[n->op].name;
    if (!node_place(n, file, sizeof file, &line))
        return base_fail(EAS_ERR_UNAVAILABLE, "eager: %s: %s", name, what);
    return base_fail(EAS_ERR_UNAVAILABLE, "eager: %s at %s:%d: %s", name, file, line, what);
}

static eas_status no_kernel_rule(const eas_node *n)
{
    return place_of(
        n,
        "this kernel has no derivative; give its operation a vjp_rule or jvp_rule, or make it with differentiate=True");
}

/* Hands a node that a user's rule returned (counted as a handle) over to the build. */
static eas_node *keep(gbuild *g, eas_node *n)
{
    if (!n)
        return NULL;
    bool ok = vec_push(&g->made, node_ref(n));
    if (!ok) {
        node_unref(n);
        g->st = g->st ? g->st : base_fail_oom(sizeof n);
    }
    eas_node_release(n);
    return ok ? n : NULL;
}

/* ---- forward ---- */

static eas_node *tangent_of(const walk *w, const eas_node *n)
{
    const item *x = find(w, n);
    return x && x->active ? x->t : NULL;
}

static eas_node *forward_each(gbuild *g, eas_node *n, eas_node *const *t)
{
    eas_node *sum = NULL;
    for (int i = 0; i < n->nin; i++) {
        if (!t[i])
            continue;
        eas_node *a = gd_aligned(g, t[i], node_in(n)[i]->batch_dims, n->batch_dims, node_logical_rank(n));
        eas_node *one = graph_rows[n->op].diff.each(g, n, i, a);
        sum = sum ? gd2(g, GRAPH_ADD, sum, one) : one;
    }
    return sum ? gd_full(g, sum, n) : NULL;
}

static void forward_many(walk *w, item *it, eas_node *const *t)
{
    eas_node *n = it->n;
    int nouts = n->extra->nouts;
    if (node_kind(n) == KIND_CALL) {
        w->g.st = no_kernel_rule(n);
        return;
    }
    eas_node **many = calloc((size_t)nouts + 1, sizeof *many);
    if (!many)
        w->g.st = base_fail_oom((size_t)nouts);
    else
        w->g.st = diff_control_forth(&w->g, n, t, many);
    it->many = many;
}

/* The tangent of one result of a user's operation. The rule is called anew for each result; it records equal
 * nodes each time, and those are merged when the graph runs. */
static eas_node *forward_rule(walk *w, eas_node *n, eas_node *const *t)
{
    const node_rule *r = n->extra->rule;
    gbuild *g = &w->g;
    eas_node **out = calloc((size_t)r->nout + 1, sizeof *out), *mine = NULL;
    if (!out)
        g->st = base_fail_oom((size_t)r->nout);
    else if (!r->jvp)
        g->st = place_of(
            n, "its derivative is given for reverse mode only (a vjp rule), so forward mode cannot pass it");
    else
        g->st = r->jvp(r->ctx, n->nin - 1, node_in(n) + 1, t + 1, out);
    for (int i = 0; out && i < r->nout; i++) {
        eas_node *k = keep(g, out[i]);
        mine = i == node_words(n)[0] ? k : mine;
    }
    free(out);
    return g->st ? NULL : mine;
}

static void forward_item(walk *w, uint32_t k)
{
    item *it = &w->items.at[k];
    eas_node *n = it->n, *few[16], **t = n->nin <= 16 ? few : malloc(sizeof *t * (n->nin + 1u)), *out = NULL;
    gbuild *g = &w->g;
    if (!t)
        g->st = base_fail_oom(n->nin);
    bool any = it->through || is_result(n); /* variables may have no tangent */
    for (int i = 0; i < n->nin && t; i++) {
        t[i] = tangent_of(w, node_in(n)[i]);
        any |= t[i] && i >= first_input(n) && i < last_input(n);
    }
    eas_site_set(n->site);
    if (g->st || !any)
        out = NULL;
    else if (it->through)
        out = tangent_of(w, it->through);
    else if (has_rule(n))
        out = forward_rule(w, n, t);
    else if (has_results(n))
        forward_many(w, it, t);
    else if (is_result(n)) {
        int index;
        const item *of = find(w, control_source(n, &index));
        out = of && of->many ? of->many[index] : NULL;
    } else if (graph_rows[n->op].diff.how == DIFF_EACH)
        out = forward_each(g, n, t);
    else
        out = diff_forth(g, n, t);
    w->items.at[k].t = out;
    if (t != few)
        free(t);
}

static eas_status check_tangent(const eas_node *t, const eas_node *x, int i, const char *what)
{
    char a[128], b[128];
    int l = node_logical_rank(x);
    bool fits = node_logical_rank(t) == l && t->dtype == x->dtype;
    for (int k = 0; k < l && fits; k++)
        fits = node_logical_shape(t)[k] == node_logical_shape(x)[k];
    return fits ? EAS_OK
                : base_fail(EAS_ERR_VALUE, "%s %d is %s%s, and %s%s is wanted", what, i,
                            eas_dtype_name((eas_dtype)t->dtype),
                            shape_text(a, sizeof a, node_logical_rank(t), node_logical_shape(t)),
                            eas_dtype_name((eas_dtype)x->dtype),
                            shape_text(b, sizeof b, l, node_logical_shape(x)));
}

/* The caller gets a reference of its own. */
static eas_node *hand(eas_node *n) { return n ? eas_node_retain(n) : NULL; }

static eas_status drop_results(int n, eas_node **out, eas_status st)
{
    for (int i = 0; i < n && st; i++) {
        eas_node_release(out[i]);
        out[i] = NULL;
    }
    return st;
}

eas_status eas_nodes_jvp(int nin, eas_node *const *in, eas_node *const *tangents, int nout,
                         eas_node *const *outs, int lanes, eas_node **out)
{
    NEED(!nin || (in && tangents), EAS_ERR_HANDLE);
    NEED(!nout || (outs && out), EAS_ERR_HANDLE);
    walk w = {.g.lanes = lanes};
    eas_status st = EAS_OK;
    memset(out, 0, sizeof *out * (size_t)nout);
    for (int i = 0; i < nin && !st; i++)
        if (tangents[i])
            st = check_tangent(tangents[i], in[i], i, "jvp: tangent");
    if (st)
        return st;
    begin(&w, nin, in, nout, outs);
    for (int i = 0; i < nin && !w.g.st; i++)
        find(&w, in[i])->t = tangents[i];
    for (uint32_t k = w.nvars; k < w.items.len && !w.g.st; k++)
        if (w.items.at[k].active)
            forward_item(&w, k);
    for (int i = 0; i < nout && !w.g.st; i++)
        out[i] = hand(tangent_of(&w, outs[i]));
    return drop_results(nout, out, finish(&w));
}

/* ---- reverse ---- */

/* ct, with e extra dims, summed over what x was broadcast along: everything that x lacks, but for lanes. */
static eas_node *summed_to(gbuild *g, eas_node *ct, int e, const eas_node *x)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !ct)
        return NULL;
    int own = ct->batch_dims - e, off = ct->rank - e - x->rank, rank = e, bd = e;
    uint32_t sum = 0;
    bool less = false;
    for (int i = 0; i < e; i++)
        shape[i] = node_shape(ct)[i];
    for (int i = e; i < ct->rank; i++) {
        int level = own - (i - e), j = i - e - off;
        eas_dim size = node_shape(ct)[i];
        bool lane = level > 0 && level <= g->lanes, gone = j < 0 && !lane,
             one = !lane && j >= 0 && node_shape(x)[j] == 1 && size != 1;
        if ((gone && size != 1) || one)
            sum |= 1u << i;
        less |= gone;
        if (!gone) {
            bd += j < x->batch_dims;
            shape[rank++] = one ? 1 : size;
        }
    }
    if (sum)
        ct = gb_reduce(g, GRAPH_REDUCE_SUM, ct, sum, true);
    return less ? gb_reshape(g, ct, bd, rank, shape) : gd_rebatch(g, ct, bd);
}

static void add_to(walk *w, eas_node **at, eas_node *ct)
{
    if (ct && !w->g.st)
        *at = *at ? gd2(&w->g, GRAPH_ADD, *at, ct) : ct;
}

static void give(walk *w, const eas_node *x, eas_node *ct)
{
    item *it = find(w, x);
    if (it && it->active)
        add_to(w, &it->t, ct);
}

static bool wants(const walk *w, const eas_node *x)
{
    const item *it = find(w, x);
    return it && it->active;
}

static void reverse_plain(walk *w, eas_node *n, eas_node *ct)
{
    const graph_diff *d = &graph_rows[n->op].diff;
    int e = gd_extras(&w->g, ct, n->batch_dims);
    for (int i = 0; i < last_input(n) && !w->g.st; i++) {
        eas_node *x = node_in(n)[i];
        if (!wants(w, x) || !diff_float(x))
            continue;
        eas_node *r = d->how == DIFF_EACH ? d->each(&w->g, n, i, ct) : diff_back(&w->g, n, i, ct);
        give(w, x, summed_to(&w->g, r, e, x));
    }
}

/* Inputs that have a quicker way than through the expansion. */
static void reverse_quick(walk *w, eas_node *n, eas_node *ct)
{
    diff_each back = graph_rows[n->op].diff.each;
    for (int i = 0; back && i < n->nin && !w->g.st; i++) {
        eas_node *x = node_in(n)[i];
        if (!wants(w, x) || !back(NULL, n, i, NULL))
            continue;
        eas_node *r = back(&w->g, n, i, ct);
        give(w, x, summed_to(&w->g, r, gd_extras(&w->g, ct, n->batch_dims), x));
    }
}

static void reverse_result(walk *w, const item *it)
{
    int index;
    item *of = find(w, control_source(it->n, &index));
    if (!of || !of->active)
        return;
    if (!of->many && !(of->many = calloc((size_t)of->n->extra->nouts + 1, sizeof *of->many)))
        w->g.st = base_fail_oom(sizeof *of->many);
    else
        add_to(w, &of->many[index], it->t);
}

static void reverse_many(walk *w, eas_node *n, eas_node **many)
{
    bool *wanted = calloc(n->nin + 1u, sizeof *wanted);
    eas_node **grads = calloc(n->nin + 1u, sizeof *grads);
    if (node_kind(n) == KIND_CALL)
        w->g.st = no_kernel_rule(n);
    else if (!wanted || !grads)
        w->g.st = base_fail_oom(n->nin);
    for (int i = 0; i < n->nin && !w->g.st; i++)
        wanted[i] = wants(w, node_in(n)[i]) && diff_float(node_in(n)[i]);
    if (!w->g.st)
        w->g.st = diff_control_back(&w->g, n, many, wanted, grads);
    for (int i = 0; i < n->nin && !w->g.st; i++)
        if (grads[i])
            give(w, node_in(n)[i], grads[i]);
    free(wanted);
    free(grads);
}

/* Through the jvp rule, which is linear in the tangents: placeholders go in, and the cotangents come back to
 * them. */
static eas_status transposed_rule(walk *w, const node_rule *r, eas_node *n, eas_node *const *cts,
                                  eas_node **grads)
{
    gbuild *g = &w->g;
    int nin = n->nin - 1;
    eas_node **t = calloc((size_t)nin + 1, sizeof *t), **vars = calloc((size_t)nin + 1, sizeof *vars);
    eas_node **out = calloc((size_t)r->nout + 1, sizeof *out), **got = calloc((size_t)nin + 1, sizeof *got);
    eas_node **live = calloc((size_t)r->nout + 1, sizeof *live),
             **lct = calloc((size_t)r->nout + 1, sizeof *lct);
    int nvars = 0, nlive = 0;
    eas_status st = t && vars && out && got && live && lct ? EAS_OK : base_fail_oom((size_t)nin);
    for (int i = 0; i < nin && !st; i++) {
        const eas_node *x = node_in(n)[1 + i];
        int64_t word = -1;
        if (!wants(w, x) || !diff_float(x))
            continue;
        t[i] = gb_new(g, GRAPH_INPUT, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1, &word, 0,
                      NULL);
        st = g->st;
        if (!st) {
            t[i]->flags |= NODE_SYMBOLIC;
            t[i]->device = x->device;
            vars[nvars++] = t[i];
        }
    }
    if (!st)
        st = r->jvp(r->ctx, nin, node_in(n) + 1, t, out);
    for (int i = 0; i < r->nout && out; i++)
        if (keep(g, out[i]) && cts[i]) {
            live[nlive] = out[i];
            lct[nlive++] = cts[i];
        }
    if (!st && !g->st)
        st = eas_nodes_vjp(nvars, vars, nlive, live, lct, g->lanes, got);
    for (int i = 0, k = 0; i < nin && !st; i++)
        grads[i] = t[i] ? got[k++] : NULL;
    free(t), free(vars), free(out), free(got), free(live), free(lct);
    return st ? st : g->st;
}

static const group *group_of(const walk *w, const node_rule *r)
{
    uint32_t i = w->groups.len;
    while (w->groups.at[--i].rule != r)
        ;
    return &w->groups.at[i];
}

/* A rule is asked when the first result of its call, in the order of the walk, is reached: the others come
 * before that on the way back. */
static void reverse_rule(walk *w, uint32_t k)
{
    eas_node *n = w->items.at[k].n;
    const group *all = group_of(w, n->extra->rule);
    uint32_t last = all->last;
    if (all->first != k)
        return;
    const node_rule *r = n->extra->rule;
    int nin = n->nin - 1;
    eas_node **cts = calloc((size_t)r->nout + 1, sizeof *cts),
             **grads = calloc((size_t)nin + 1, sizeof *grads);
    if (!cts || !grads)
        w->g.st = base_fail_oom((size_t)nin);
    bool any = false;
    for (uint32_t i = last + 1; i && !w->g.st; i = w->items.at[i - 1].sibling) {
        const item *o = &w->items.at[i - 1];
        cts[node_words(o->n)[0]] = o->t;
        any |= o->t != NULL;
    }
    if (!w->g.st && any)
        w->g.st =
            r->vjp ? r->vjp(r->ctx, nin, node_in(n) + 1, cts, grads) : transposed_rule(w, r, n, cts, grads);
    for (int i = 0; i < nin && grads; i++) {
        eas_node *gi = keep(&w->g, grads[i]);
        if (gi && !w->g.st && wants(w, node_in(n)[1 + i]))
            give(w, node_in(n)[1 + i],
                 summed_to(&w->g, gi, gd_extras(&w->g, gi, n->batch_dims), node_in(n)[1 + i]));
    }
    free(cts);
    free(grads);
}

static void reverse_item(walk *w, uint32_t k)
{
    item it = w->items.at[k];
    eas_node *n = it.n;
    eas_site_set(n->site);
    if (has_rule(n))
        reverse_rule(w, k);
    else if (has_results(n)) {
        if (it.many)
            reverse_many(w, n, it.many);
    } else if (!it.t)
        return;
    else if (is_result(n))
        reverse_result(w, &it);
    else if (it.through) {
        if (runs_again(n))
            wait_for(w, n->extra->rule, it.t);
        reverse_quick(w, n, it.t);
        give(w, it.through, it.t);
    } else
        reverse_plain(w, n, it.t);
}

/* ct as large as the result, lanes included. */
static eas_node *seed(gbuild *g, eas_node *ct, const eas_node *out)
{
    return gd_full(g, gd_aligned(g, ct, out->batch_dims, out->batch_dims, node_logical_rank(out)), out);
}

eas_status eas_nodes_vjp(int nin, eas_node *const *in, int nout, eas_node *const *outs,
                         eas_node *const *cotangents, int lanes, eas_node **grads)
{
    NEED(!nin || (in && grads), EAS_ERR_HANDLE);
    NEED(!nout || (outs && cotangents), EAS_ERR_HANDLE);
    walk w = {.g.lanes = lanes, .reverse = true};
    eas_status st = EAS_OK;
    memset(grads, 0, sizeof *grads * (size_t)nin);
    for (int i = 0; i < nout && !st; i++)
        if (cotangents[i]) {
            st = check_tangent(cotangents[i], outs[i], i, "vjp: cotangent");
            w.symbolic |= cotangents[i]->flags & NODE_SYMBOLIC;
        }
    if (st)
        return st;
    begin(&w, nin, in, nout, outs);
    for (int i = 0; i < nout && !w.g.st; i++)
        if (cotangents[i] && wants(&w, outs[i]))
            give(&w, outs[i], seed(&w.g, cotangents[i], outs[i]));
    for (uint32_t k = w.items.len; k-- > w.nvars && !w.g.st;)
        if (w.items.at[k].active)
            reverse_item(&w, k);
    for (int i = 0; i < nin && !w.g.st; i++)
        grads[i] = hand(find(&w, in[i])->t);
    return drop_results(nin, grads, finish(&w));
}
