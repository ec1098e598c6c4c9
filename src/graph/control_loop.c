/* control_loop.c: loops as nodes (eas_node_loop). The body of a loop is cut out of the graph as a function of
 * placeholders: carried values first, then one element of each scanned tensor. Whatever does not depend on
 * these is computed once, before the loop.
 */
#include "control.h"

typedef struct looping {
    const eas_loop *l;
    gbuild g;
    /* carried values: the condition, the lanes that go on, the caller's. Borrowed */
    VEC(eas_node *) init, state, next;
    VEC(eas_node *) scanned;
    int hidden; /* of them, how many are not the caller's */
    bool flagged; /* the first carried value is the condition already */
} looping;

static eas_status check_carried(const eas_loop *l)
{
    char a[128], b[128];
    for (int i = 0; i < l->ncarried; i++) {
        const eas_node *bad = !control_same_type(l->init[i], l->state[i]) ? l->state[i]
                            : !control_same_type(l->init[i], l->next[i])  ? l->next[i]
                                                                          : NULL;
        if (bad)
            return base_fail(EAS_ERR_TYPE, "eager.loop: carried value %d begins as %s, and %s %s", i,
                             control_type_text(l->init[i], a, sizeof a),
                             bad == l->state[i] ? "its placeholder is" : "the body makes it",
                             control_type_text(bad, b, sizeof b));
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
                             control_type_text(x, a, sizeof a), control_type_text(e, b, sizeof b));
    }
    return EAS_OK;
}

static void carry(looping *w, eas_node *init, eas_node *state, eas_node *next)
{
    if (!w->g.st && !(vec_push(&w->init, init) && vec_push(&w->state, state) && vec_push(&w->next, next)))
        w->g.st = base_fail_oom(sizeof init);
}

/* A copy of n in which `states` stand in place of the loop's state placeholders. */
static eas_node *with_states(looping *w, eas_node *n, eas_node *const *states)
{
    cutting c = {.replace = true};
    if (w->g.st)
        return NULL;
    if (!cut_grow(&c))
        c.st = base_fail_oom(0);
    for (int i = 0; i < w->l->ncarried && !c.st; i++)
        cut_note(&c, w->l->state[i], states[i], true);
    eas_node *r = cut_node(&c, n);
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
                          control_type_text(n, text, sizeof text));
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

/* The condition becomes a carried value: each trip computes whether one more follows. Under vmap each lane
 * has its own condition; a lane that is done keeps its values while others go on. */
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
        if (next[i] && !control_same_type(next[i], l->state[i]))
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

/* Makes the placeholders of one trip and cuts the body out as a function of them. */
static eas_status cut_trip(looping *w, cutting *c, graph_control *k)
{
    const eas_loop *l = w->l;
    int n = (int)w->next.len, at = 0;
    if (!cut_grow(c))
        return base_fail_oom(0);
    for (int i = 0; i < n && !c->st; i++)
        cut_note(c, w->state.at[i], cut_placeholder(c, w->state.at[i], at++), true);
    for (int i = 0; i < l->nscanned && !c->st; i++)
        cut_note(c, l->element[i], cut_placeholder(c, l->element[i], at++), true);
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

/* Types of the loop's results: the carried values, then the stacked results of trips, which have the trips
 * as an additional first dim. */
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
            r->batch_dims = (uint8_t)bd; /* changed in place: no other node refers to it yet */
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
        st = control_record(&c, k, GRAPH_LOOP, first, nouts, outs, bd, made);
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
