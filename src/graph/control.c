/* control.c: loops and branches as nodes. What runs is cut out of the graph that it was recorded in: a
 * function of placeholders that shares no node with it.
 *
 * Of a loop, whatever depends on the loop's own placeholders is inside; the rest is computed once, before,
 * and is an input. Of a branch, what was recorded while the branch was open is inside. Numbers stay what they
 * are: inputs whose value is given at each run.
 */
#include "graph.h"

#include <stdio.h>

/* ---- nodes that stand for nodes ---- */

typedef struct twin {
    const eas_node *from;
    eas_node *to; /* NULL: outside, not asked for yet */
    uint32_t id; /* for the key */
    bool inside;
} twin;
typedef struct cutting {
    twin *table;
    uint32_t ntable, used;
    bool replace; /* only puts other nodes in place of some: what is outside stays */
    bool all; /* and looks at everything, not only at what depends on placeholders */
    unsigned branch; /* nodes recorded with that many open branches are inside; 0: it does not matter */
    int nin;
    VEC(eas_node *) captured; /* borrowed: inputs, from nin on */
    VEC(eas_node *) numbers, values; /* the private ones; what gives their value (borrowed) */
    VEC(eas_node *) made; /* counted here */
    uint64_t key[2];
    eas_status st;
} cutting;

static void mix(cutting *c, uint64_t v)
{
    c->key[0] = (c->key[0] ^ v) * 0x9e3779b97f4a7c15u;
    c->key[0] ^= c->key[0] >> 29;
    c->key[1] = (c->key[1] + v) * 0xd6e8feb86659fd93u;
    c->key[1] ^= c->key[1] >> 32;
}

static void mix_type(cutting *c, const eas_node *n)
{
    mix(c, (uint64_t)n->op << 32 | (uint64_t)n->dtype << 16 | (uint64_t)n->rank << 8 | n->nin);
    for (int i = 0; i < n->rank; i++)
        mix(c, (uint64_t)node_shape(n)[i]);
}

static twin *find(const cutting *c, const eas_node *n)
{
    uint64_t h = (uint64_t)(uintptr_t)n * 0x9e3779b97f4a7c15u >> 20;
    while (c->table[h & (c->ntable - 1)].from && c->table[h & (c->ntable - 1)].from != n)
        h++;
    return &c->table[h & (c->ntable - 1)];
}

static bool grow(cutting *c)
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

static void note(cutting *c, const eas_node *n, eas_node *to, bool inside)
{
    if (c->used * 2 >= c->ntable && !grow(c)) {
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

static eas_node *placeholder(cutting *c, const eas_node *like, int index)
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
    mix(c, (uint64_t)index);
    mix(c, (uint64_t)(uintptr_t)n->device);
    return keep(c, EAS_OK, n);
}

/* ---- what is outside ---- */

/* Made of numbers and sizes alone, by next to nothing: better computed again than kept. */
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
    mix(c, (uint64_t)GRAPH_CONST << 32 | (uint64_t)n->dtype << 1 | fixed);
    if (fixed)
        mix(c, (uint64_t)node_words(n)[0]);
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
        mix(c, (uint64_t)node_words(n)[i]);
    if (n->extra && (n->extra->kernel || n->extra->native))
        mix(c, node_call_key(n->extra));
    if (n->extra && n->extra->control) {
        mix(c, n->extra->control->key[0]);
        mix(c, n->extra->control->key[1]);
    }
    return keep(c, st, t);
}

static eas_node *stand_in(cutting *c, eas_node *n);

static eas_node *copy_of_nothing(cutting *c, eas_node *n)
{
    eas_node *in = n->nin ? stand_in(c, node_in(n)[0]) : NULL;
    return c->st ? NULL : twin_of(c, n, &in);
}

/* What takes the place of n inside. */
static eas_node *stand_in(cutting *c, eas_node *n)
{
    twin *t = find(c, n);
    if (c->st || (t->from && t->to)) {
        if (!c->st)
            mix(c, t->id);
        return c->st ? NULL : t->to;
    }
    eas_node *to = n;
    if (!c->replace && n->op == GRAPH_CONST)
        to = private_number(c, n);
    else if (!c->replace && of_nothing(n, 6))
        to = copy_of_nothing(c, n);
    else if (!c->replace) {
        to = placeholder(c, n, c->nin + (int)c->captured.len);
        if (to && !vec_push(&c->captured, n))
            c->st = base_fail_oom(sizeof n);
    }
    if (!c->st)
        note(c, n, to, false);
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
        note(c, n, to, inside);
    if (in != few)
        free(in);
}

typedef struct visit {
    eas_node *n;
    int next;
} visit;

/* n as it is inside, borrowed; without recursion, as chains are long. */
static eas_node *cut(cutting *c, eas_node *root)
{
    VEC(visit) stack = {0};
    if (!c->ntable && !grow(c))
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

static void cut_free(cutting *c)
{
    for (uint32_t i = 0; i < c->made.len; i++)
        node_unref(c->made.at[i]);
    vec_free(&c->made);
    vec_free(&c->captured);
    vec_free(&c->numbers);
    vec_free(&c->values);
    free(c->table);
}

/* ---- made from that ---- */

void control_release(graph_control *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < c->fn[f].n && c->fn[f].outs; i++)
            node_unref(c->fn[f].outs[i]);
        free(c->fn[f].outs);
    }
    for (int i = 0; i < c->nnumbers && c->numbers; i++)
        node_unref(c->numbers[i]);
    free(c->numbers);
    free(c);
}

static eas_status cut_fn(cutting *c, int n, eas_node *const *outs, graph_fn *fn)
{
    fn->outs = calloc((size_t)n + 1, sizeof *fn->outs);
    if (!fn->outs)
        return base_fail_oom((size_t)n);
    for (int i = 0; i < n; i++) {
        eas_node *o = cut(c, outs[i]);
        if (!o)
            return c->st;
        fn->outs[fn->n++] = node_ref(o);
    }
    return EAS_OK;
}

/* Numbers that are too many become part of the structure: see pass/flatten.c, which has the same limit or a
 * higher one. */
enum { MOST_NUMBERS = 16 };

static eas_status keep_numbers(cutting *c, graph_control *k)
{
    k->nin = c->nin + (int)c->captured.len;
    if (c->numbers.len > MOST_NUMBERS) {
        for (uint32_t i = 0; i < c->numbers.len; i++)
            mix(c, (uint64_t)node_words(c->numbers.at[i])[0]);
        c->numbers.len = c->values.len = 0;
    }
    k->numbers = calloc(c->numbers.len + 1, sizeof *k->numbers);
    if (!k->numbers)
        return base_fail_oom(c->numbers.len);
    for (uint32_t i = 0; i < c->numbers.len; i++)
        k->numbers[k->nnumbers++] = node_ref(c->numbers.at[i]);
    return EAS_OK;
}

static void mix_control(cutting *c, graph_control *k)
{
    mix(c, (uint64_t)k->branch << 2 | (uint64_t)k->reverse << 1 | k->conditional);
    mix(c, (uint64_t)k->ncarried << 40 | (uint64_t)k->nscanned << 20 | (uint64_t)k->nstacked);
    mix(c, (uint64_t)k->length);
    memcpy(k->key, c->key, sizeof k->key);
}

/* first: the inputs before those that were captured. */
static eas_status record(cutting *c, graph_control *k, uint16_t op, eas_node *const *first, int nouts,
                         const struct node_out *outs, const uint8_t *batch_dims, eas_node **results)
{
    eas_status st = keep_numbers(c, k);
    int n = k->nin + k->nnumbers, at = 0;
    eas_node **in = malloc(sizeof *in * (size_t)(n + 1));
    if (!in)
        st = base_fail_oom((size_t)n);
    if (!st && n > UINT16_MAX)
        st = base_fail(EAS_ERR_VALUE, "eager.%s: %d inputs, captured ones included; there are at most %d",
                       graph_rows[op].name, n, UINT16_MAX);
    for (int i = 0; i < c->nin && !st; i++)
        in[at++] = first[i];
    for (uint32_t i = 0; i < c->captured.len && !st; i++)
        in[at++] = c->captured.at[i];
    for (uint32_t i = 0; i < c->values.len && !st; i++)
        in[at++] = c->values.at[i];
    mix_control(c, k);
    if (!st)
        st = node_control(op, n, in, k, nouts, outs, batch_dims, results);
    free(in);
    return st;
}

/* ---- loops ---- */

typedef struct looping {
    const eas_loop *l;
    gbuild g;
    /* carried values: the condition, the lanes that go on, the caller's. Borrowed */
    VEC(eas_node *) init, state, next;
    VEC(eas_node *) scanned;
    int hidden; /* of them, how many are not the caller's */
    bool flagged; /* the first carried value is the condition already */
} looping;

static const char *type_text(const eas_node *n, char *buf, size_t room)
{
    str s = {0};
    str_add(&s, "%s", eas_dtype_name((eas_dtype)n->dtype));
    shape_add_text(&s, n->rank, node_shape(n));
    snprintf(buf, room, "%s", s.at ? s.at : "?");
    str_free(&s);
    return buf;
}

static bool same_type(const eas_node *a, const eas_node *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->batch_dims == b->batch_dims &&
           (!a->rank || !memcmp(node_shape(a), node_shape(b), sizeof(eas_dim) * a->rank));
}

static eas_status check_carried(const eas_loop *l)
{
    char a[128], b[128];
    for (int i = 0; i < l->ncarried; i++) {
        const eas_node *bad = !same_type(l->init[i], l->state[i]) ? l->state[i]
                            : !same_type(l->init[i], l->next[i])  ? l->next[i]
                                                                  : NULL;
        if (bad)
            return base_fail(EAS_ERR_TYPE, "eager.loop: carried value %d begins as %s, and %s %s", i,
                             type_text(l->init[i], a, sizeof a),
                             bad == l->state[i] ? "its placeholder is" : "the body makes it",
                             type_text(bad, b, sizeof b));
        if (l->state[i]->op != GRAPH_INPUT)
            return base_fail(EAS_ERR_VALUE,
                             "eager.loop: carried value %d needs a placeholder to stand for it", i);
    }
    if (l->condition && l->nstacked)
        return base_fail(EAS_ERR_VALUE,
                         "eager.loop: results of trips are stacked only if their number is known before");
    if (!l->condition && l->length == DIM_NONE)
        return base_fail(EAS_ERR_VALUE, "eager.loop: neither a condition nor a length");
    return dim_known(l->length) || dim_is_expr(l->length) || l->length == DIM_NONE
             ? EAS_OK
             : base_fail(EAS_ERR_VALUE, "eager.loop: a length of %lld", (long long)l->length);
}

static eas_status check_scanned(const eas_loop *l)
{
    char a[128], b[128];
    for (int i = 0; i < l->nscanned; i++) {
        const eas_node *x = l->scanned[i], *e = l->element[i];
        int bd = x->batch_dims;
        bool fits = x->rank > bd && e->op == GRAPH_INPUT && e->dtype == x->dtype && e->rank == x->rank - 1 &&
                    e->batch_dims == bd && node_shape(x)[bd] == l->length;
        for (int k = 0; k < e->rank && fits; k++)
            fits = node_shape(e)[k] == node_shape(x)[k < bd ? k : k + 1];
        if (!fits)
            return base_fail(EAS_ERR_VALUE, "eager.loop: %s cannot be gone through in elements of %s",
                             type_text(x, a, sizeof a), type_text(e, b, sizeof b));
    }
    return EAS_OK;
}

static void carry(looping *w, eas_node *init, eas_node *state, eas_node *next)
{
    if (!w->g.st && !(vec_push(&w->init, init) && vec_push(&w->state, state) && vec_push(&w->next, next)))
        w->g.st = base_fail_oom(sizeof init);
}

/* The same with other nodes in place of the states. */
static eas_node *with_states(looping *w, eas_node *n, eas_node *const *states)
{
    cutting c = {.replace = true};
    if (w->g.st)
        return NULL;
    if (!grow(&c))
        c.st = base_fail_oom(0);
    for (int i = 0; i < w->l->ncarried && !c.st; i++)
        note(&c, w->l->state[i], states[i], true);
    eas_node *r = cut(&c, n);
    w->g.st = c.st;
    if (r && !vec_push(&w->g.made, node_ref(r))) {
        node_unref(r);
        w->g.st = base_fail_oom(sizeof r);
    }
    cut_free(&c);
    return w->g.st ? NULL : r;
}

/* One truth value, for each lane of vmap. */
static eas_node *truth(looping *w, eas_node *n)
{
    char text[128];
    for (int i = n->batch_dims; i < n->rank; i++)
        if (node_shape(n)[i] != 1) {
            w->g.st =
                base_fail(EAS_ERR_VALUE, "eager.loop: the condition is one truth value, and %s is given",
                          type_text(n, text, sizeof text));
            return NULL;
        }
    return gb_typed(&w->g, gb_reshape(&w->g, n, n->batch_dims, n->batch_dims, node_shape(n)), EAS_BOOL);
}

static eas_node *any_lane(looping *w, eas_node *n)
{
    return n && n->rank ? gb_reduce(&w->g, GRAPH_ANY, n, (uint32_t)(((uint64_t)1 << n->rank) - 1), false) : n;
}

static eas_node *own_placeholder(looping *w, const eas_node *like)
{
    int64_t word = -1;
    eas_node *n = like ? gb_new(&w->g, GRAPH_INPUT, EAS_BOOL, like->batch_dims, like->rank, node_shape(like),
                                1, &word, 0, NULL)
                       : NULL;
    if (n) {
        n->flags |= NODE_SYMBOLIC;
        n->device = like->device;
    }
    return n;
}

/* The condition is carried: each trip tells whether one more follows. In lanes of vmap one that is done keeps
 * its values. */
static void carry_condition(looping *w)
{
    const eas_loop *l = w->l;
    eas_node *test = truth(w, l->condition), *first = test ? with_states(w, test, l->init) : NULL;
    if (!first)
        return;
    bool lanes = first->rank > 0;
    eas_node *going = lanes ? own_placeholder(w, first) : NULL,
             **next = calloc((size_t)l->ncarried + 1, sizeof *next);
    if (!next)
        w->g.st = base_fail_oom((size_t)l->ncarried);
    for (int i = 0; i < l->ncarried && !w->g.st; i++) {
        next[i] = lanes ? gb3(&w->g, GRAPH_WHERE, going, l->next[i], l->state[i]) : l->next[i];
        if (next[i] && !same_type(next[i], l->state[i]))
            w->g.st =
                base_fail(EAS_ERR_TYPE, "eager.loop: carried value %d needs the lanes of the condition", i);
    }
    eas_node *again = w->g.st ? NULL : with_states(w, test, next);
    eas_node *flag0 = any_lane(w, first), *flag = any_lane(w, again);
    carry(w, flag0, own_placeholder(w, flag0), flag);
    if (lanes)
        carry(w, first, going, again);
    w->hidden = 1 + lanes;
    for (int i = 0; i < l->ncarried && !w->g.st; i++)
        carry(w, l->init[i], l->state[i], next[i]);
    free(next);
}

static void carry_all(looping *w)
{
    const eas_loop *l = w->l;
    if (l->condition)
        carry_condition(w);
    for (int i = 0; i < l->ncarried && !l->condition; i++)
        carry(w, l->init[i], l->state[i], l->next[i]);
    for (int i = 0; i < l->nscanned && !w->g.st; i++) {
        eas_node *x = gb_move(&w->g, l->scanned[i], l->scanned[i]->batch_dims, 0);
        if (x && !vec_push(&w->scanned, x))
            w->g.st = base_fail_oom(sizeof x);
    }
}

/* Placeholders of the trip, and what a trip gives. */
static eas_status cut_trip(looping *w, cutting *c, graph_control *k)
{
    const eas_loop *l = w->l;
    int n = (int)w->next.len, at = 0;
    if (!grow(c))
        return base_fail_oom(0);
    for (int i = 0; i < n && !c->st; i++)
        note(c, w->state.at[i], placeholder(c, w->state.at[i], at++), true);
    for (int i = 0; i < l->nscanned && !c->st; i++)
        note(c, l->element[i], placeholder(c, l->element[i], at++), true);
    eas_node **outs = malloc(sizeof *outs * (size_t)(n + l->nstacked + 1));
    if (!outs || c->st) {
        free(outs);
        return c->st ? c->st : base_fail_oom((size_t)n);
    }
    for (int i = 0; i < n; i++)
        outs[i] = w->next.at[i];
    for (int i = 0; i < l->nstacked; i++)
        outs[n + i] = l->stacked[i];
    eas_status st = cut_fn(c, n + l->nstacked, outs, &k->fn[0]);
    free(outs);
    return st;
}

/* What the loop gives: carried values, then results of trips with a first dim more. */
static eas_status result_types(looping *w, struct node_out *outs, uint8_t *batch_dims, eas_dim *room)
{
    int n = (int)w->next.len;
    for (int i = 0; i < n; i++) {
        const eas_node *x = w->next.at[i];
        outs[i] = (struct node_out){(eas_dtype)x->dtype, x->rank, node_shape(x)};
        batch_dims[i] = x->batch_dims;
    }
    for (int i = 0; i < w->l->nstacked; i++, room += GRAPH_MAX_RANK + 1) {
        const eas_node *x = w->l->stacked[i];
        room[0] = w->l->length;
        memcpy(room + 1, node_shape(x), sizeof *room * x->rank);
        outs[n + i] = (struct node_out){(eas_dtype)x->dtype, x->rank + 1, room};
        batch_dims[n + i] = 0;
    }
    return EAS_OK;
}

static eas_status hand_results(looping *w, eas_node **made, eas_node **results)
{
    int n = (int)w->next.len;
    gbuild g = {0};
    for (int i = 0; i < n + w->l->nstacked; i++)
        if (!vec_push(&g.made, made[i]))
            g.st = base_fail_oom(sizeof *made);
    for (int i = 0; i < w->l->ncarried; i++)
        results[i] = made[w->hidden + i];
    for (int i = 0; i < w->l->nstacked && !g.st; i++) {
        int bd = w->l->stacked[i]->batch_dims;
        eas_node *r = bd ? gb_move(&g, made[n + i], 0, bd) : made[n + i];
        if (r)
            r->batch_dims = (uint8_t)bd; /* nobody has seen it */
        results[w->l->ncarried + i] = r;
    }
    for (int i = 0; i < w->l->ncarried + w->l->nstacked && !g.st; i++)
        eas_node_retain(results[i]);
    return gb_done(&g, NULL, (eas_node *[]){NULL});
}

/* made: what the loop gives, as its node has it: carried values, hidden ones included, then results of trips,
 * with the trips as their first dim. */
static eas_status record_loop(looping *w, eas_node **made)
{
    const eas_loop *l = w->l;
    int n = (int)w->next.len, nouts = n + l->nstacked;
    graph_control *k = calloc(1, sizeof *k);
    struct node_out *outs = calloc((size_t)nouts + 1, sizeof *outs);
    uint8_t *bd = calloc((size_t)nouts + 1, 1);
    eas_dim *room = calloc((size_t)l->nstacked + 1, sizeof *room * (GRAPH_MAX_RANK + 1));
    eas_node **first = calloc((size_t)(n + l->nscanned) + 1, sizeof *first);
    cutting c = {.nin = n + l->nscanned, .key = {0x452821e638d01377u, 0xbe5466cf34e90c6cu}};
    eas_status st = k && outs && bd && room && first ? EAS_OK : base_fail_oom(sizeof *k);
    if (!st) {
        atomic_init(&k->refs, 1);
        k->ncarried = n;
        k->nscanned = l->nscanned;
        k->nstacked = l->nstacked;
        k->reverse = l->reverse != 0;
        k->conditional = l->condition != NULL || w->flagged;
        k->length = l->length;
        for (int i = 0; i < n; i++)
            first[i] = w->init.at[i];
        for (int i = 0; i < l->nscanned; i++)
            first[n + i] = w->scanned.at[i];
        result_types(w, outs, bd, room);
        st = cut_trip(w, &c, k);
    }
    if (!st)
        st = record(&c, k, GRAPH_LOOP, first, nouts, outs, bd, made);
    cut_free(&c);
    control_release(k);
    free(outs);
    free(bd);
    free(room);
    free(first);
    return st;
}

static void loop_free(looping *w)
{
    gb_done(&w->g, NULL, (eas_node *[]){NULL});
    vec_free(&w->init);
    vec_free(&w->state);
    vec_free(&w->next);
    vec_free(&w->scanned);
}

eas_status eas_node_loop(const eas_loop *l, eas_node **results)
{
    NEED(l, EAS_ERR_HANDLE);
    looping w = {.l = l};
    hoisted h = {0};
    eas_status st = check_carried(l);
    if (!st)
        st = check_scanned(l);
    if (!st)
        st = loop_hoist(&w.g, l, &h);
    if (!st) {
        w.l = l = &h.loop;
        carry_all(&w);
        st = w.g.st;
    }
    eas_node **made = st ? NULL : calloc((size_t)w.next.len + (size_t)l->nstacked + 1, sizeof *made);
    if (!st)
        st = made ? record_loop(&w, made) : base_fail_oom(sizeof *made);
    if (!st)
        st = hand_results(&w, made, results);
    free(made);
    free(h.nodes);
    loop_free(&w);
    return st;
}

eas_status control_loop(const eas_loop *l, bool flagged, eas_node **made)
{
    looping w = {.l = l, .flagged = flagged};
    for (int i = 0; i < l->ncarried; i++)
        carry(&w, l->init[i], l->state[i], l->next[i]);
    for (int i = 0; i < l->nscanned && !w.g.st; i++)
        if (!vec_push(&w.scanned, l->scanned[i]))
            w.g.st = base_fail_oom(sizeof *l->scanned);
    eas_status st = w.g.st ? w.g.st : record_loop(&w, made);
    loop_free(&w);
    return st;
}

/* ---- what runs, as a graph again ---- */

eas_status control_inputs(const graph_control *c, int which, eas_node **in)
{
    VEC(visit) stack = {0};
    cutting seen = {0};
    const graph_fn *fn = &c->fn[which];
    bool ok = grow(&seen);
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
            note(&seen, n, n, false);
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
    if (!g->st && !grow(&c))
        c.st = base_fail_oom(0);
    for (int i = 0; i < nfrom && !c.st; i++)
        if (from[i] && to[i])
            note(&c, from[i], to[i], true);
    for (int i = 0; i < n && !c.st && !g->st; i++) {
        nodes[i] = nodes[i] ? cut(&c, nodes[i]) : NULL;
        if (nodes[i] && !vec_push(&g->made, node_ref(nodes[i]))) {
            node_unref(nodes[i]);
            c.st = base_fail_oom(sizeof *nodes);
        }
    }
    g->st = g->st ? g->st : c.st;
    cut_free(&c);
    return g->st;
}

/* ---- branches ---- */

void eas_branch_begin(void) { node_open_branches(1); }
void eas_branch_abort(void) { node_open_branches(-1); }

/* Element by element, cannot fail, little of it: both are computed where they are used, and chosen from. */
enum { LITTLE = 64 };
static bool little(const cutting *c)
{
    if (c->made.len > LITTLE)
        return false;
    for (uint32_t i = 0; i < c->made.len; i++)
        switch (node_kind(c->made.at[i])) {
        case KIND_INPUT:
        case KIND_CONST:
        case KIND_MAP:
        case KIND_CAST:
        case KIND_RESHAPE:
        case KIND_PERMUTE:
        case KIND_BROADCAST:
        case KIND_SLICE:
        case KIND_PAD:
        case KIND_CONCAT:
        case KIND_ALIAS:
        case KIND_IOTA: break;
        default: return false;
        }
    return true;
}

static eas_status choose(eas_node *pred, int n, eas_node *const *yes, eas_node *const *no, eas_node **results)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++) {
        st = graph_apply(GRAPH_WHERE, 3, (eas_node *[]){pred, yes[i], no[i]}, 0, NULL, &results[i]);
        for (int k = i; st && k > 0;)
            node_unref(results[--k]);
    }
    return st;
}

static eas_status check_branches(const eas_node *pred, int n, eas_node *const *yes, eas_node *const *no)
{
    char a[128], b[128];
    if (pred->rank || pred->dtype != EAS_BOOL)
        return base_fail(EAS_ERR_TYPE, "eager.branch: the condition is one bool, and %s is given",
                         type_text(pred, a, sizeof a));
    for (int i = 0; i < n; i++)
        if (!same_type(yes[i], no[i]))
            return base_fail(EAS_ERR_TYPE, "eager.branch: result %d is %s in one and %s in the other", i,
                             type_text(yes[i], a, sizeof a), type_text(no[i], b, sizeof b));
    return EAS_OK;
}

static eas_status record_branch(cutting *c, eas_node *pred, int n, eas_node *const *yes, eas_node *const *no,
                                eas_node **results)
{
    graph_control *k = calloc(1, sizeof *k);
    struct node_out *outs = calloc((size_t)n + 1, sizeof *outs);
    uint8_t *bd = calloc((size_t)n + 1, 1);
    eas_status st = k && outs && bd ? EAS_OK : base_fail_oom(sizeof *k);
    if (!st) {
        atomic_init(&k->refs, 1);
        k->branch = true;
        st = cut_fn(c, n, no, &k->fn[0]);
        mix(c, 0xb7e151628aed2a6au);
    }
    if (!st)
        st = cut_fn(c, n, yes, &k->fn[1]);
    for (int i = 0; i < n && !st; i++) {
        outs[i] = (struct node_out){(eas_dtype)yes[i]->dtype, yes[i]->rank, node_shape(yes[i])};
        bd[i] = yes[i]->batch_dims;
    }
    if (!st)
        st = little(c) ? choose(pred, n, yes, no, results)
                       : record(c, k, GRAPH_BRANCH, &pred, n, outs, bd, results);
    control_release(k);
    free(outs);
    free(bd);
    return st;
}

eas_status eas_branch_end(eas_node *pred, int n, eas_node *const *yes, eas_node *const *no,
                          eas_node **results)
{
    cutting c = {.branch = node_branches(), .nin = 1, .key = {0xa4093822299f31d0u, 0x082efa98ec4e6c89u}};
    eas_status st = node_branches() ? check_branches(pred, n, yes, no)
                                    : base_fail(EAS_ERR_RUNTIME, "eager.branch: none was begun");
    node_open_branches(-1);
    if (!st)
        st = record_branch(&c, pred, n, yes, no, results);
    for (int i = 0; i < n && !st; i++)
        /* its reference becomes a user's */
        atomic_fetch_add_explicit(&results[i]->counts, NODE_HANDLE - NODE_REF, memory_order_relaxed);
    cut_free(&c);
    return st;
}
