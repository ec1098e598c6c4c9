/* diff_control_back.c: derivatives of loops and branches in reverse mode.
 *
 * A loop becomes two. The first is the loop as recorded that also stacks what the derivative of its body
 * needs of each trip (residuals); it takes the place of the recorded one (node_extra.wider), so nothing runs
 * twice. The second goes the other way: it carries the cotangents of what the first carries, scans the
 * residuals, and sums the gradients of what the body captures. A loop with a condition is first written as
 * one of a fixed number of trips, in which the state stays once the condition fails. Of a branch, the side
 * that was taken runs again in the branch of its derivative.
 */
#include "diff_control.h"

#include <stdio.h>

static void widen(eas_node *n, eas_node *result)
{
    eas_node *wider = node_in(result)[0], *none = NULL;
    if (dc_inside)
        return;
    node_ref(wider);
    if (!atomic_compare_exchange_strong(&n->extra->wider, &none, wider))
        node_unref(wider);
}

/* All nodes below these; `stop`: where it ends, and what is met there goes on a list. */
static void below(gbuild *g, int n, eas_node *const *roots, const diff_set *stop, diff_set *seen, list *met)
{
    list stack = {0};
    for (int i = 0; i < n; i++)
        if (roots[i])
            dc_push(g, &stack, roots[i]);
    while (stack.len && !g->st) {
        eas_node *x = stack.at[--stack.len];
        if (diff_set_has(seen, x))
            continue;
        diff_set_add(g, seen, x);
        if (stop && diff_set_has(stop, x)) {
            dc_push(g, met, x);
            continue;
        }
        for (int i = 0; i < x->nin; i++)
            if (!diff_set_has(seen, node_in(x)[i]))
                dc_push(g, &stack, node_in(x)[i]);
    }
    vec_free(&stack);
}

typedef struct pulls { /* the derivative of one trip */
    eas_node **ct; /* placeholders of cotangents of the body's results; NULL: zero */
    eas_node **grad; /* gradients of its inputs, by number; NULL: zero */
} pulls;

/* The vjp of one trip. Gradients are taken of the inputs that were asked for and of every carried value,
 * since the trip before needs those. */
static void pull_body(work *w, const bool *wanted, pulls *p)
{
    gbuild *g = w->g;
    list vars = {0}, outs = {0}, cts = {0};
    int *which = dc_room(g, (size_t)w->c->nin, sizeof *which);
    for (int i = 0; i < w->c->nin && !g->st; i++)
        if (w->in[i] && diff_float(w->in[i]) && (i < w->nc || wanted[i])) {
            which[vars.len] = i;
            dc_push(g, &vars, w->in[i]);
        }
    for (int i = 0; i < w->nc + w->nk && !g->st; i++)
        if (p->ct[i]) {
            dc_push(g, &outs, w->outs[i]);
            dc_push(g, &cts, p->ct[i]);
        }
    eas_node **grads = dc_room(g, vars.len, sizeof *grads);
    dc_inside++;
    if (!g->st)
        g->st = eas_nodes_vjp((int)vars.len, vars.at, (int)outs.len, outs.at, cts.at, g->lanes, grads);
    dc_inside--;
    memset(p->grad, 0, sizeof *p->grad * (size_t)w->c->nin);
    for (uint32_t i = 0; i < vars.len && !g->st; i++)
        if (grads[i]) {
            p->grad[which[i]] = dc_keep(g, node_ref(grads[i]));
            eas_node_release(grads[i]);
        }
    free(grads), free(which);
    vec_free(&vars), vec_free(&outs), vec_free(&cts);
}

/* Views are not kept as residuals: their base is, and the view is made again from it. */
static bool is_view(const eas_node *n)
{
    switch (node_kind(n)) {
    case KIND_RESHAPE:
    case KIND_PERMUTE:
    case KIND_BROADCAST:
    case KIND_CAST:
    case KIND_ALIAS: return n->nin == 1;
    default: return false;
    }
}

/* Residuals: nodes of the body that the derivative of the body refers to and that differ from trip to trip
 * (they depend on a carried value or on a scanned element). */
static void find_residuals(work *w, const pulls *p, list *out)
{
    gbuild *g = w->g;
    diff_set body = {0}, changing = {0}, seen = {0}, kept = {0};
    list met = {0};
    below(g, w->nc + w->nk, w->outs, NULL, &body, NULL);
    for (int i = 0; i < w->nc + w->ns && !g->st; i++) {
        diff_set_add(g, &changing, w->in[i]);
        if (!diff_set_has(&body, w->in[i]))
            diff_set_add(g, &body, w->in[i]);
    }
    below(g, w->c->nin, p->grad, &body, &seen, &met);
    for (uint32_t i = 0; i < met.len && !g->st; i++) {
        eas_node *x = met.at[i];
        while (is_view(x))
            x = node_in(x)[0];
        diff_set upstream = {0};
        list reached = {0};
        below(g, 1, &x, &changing, &upstream, &reached);
        bool element = false;
        for (int k = w->nc; k < w->nc + w->ns; k++)
            element |= w->in[k] == x;
        if (reached.len && !element && !diff_set_has(&kept, x)) {
            diff_set_add(g, &kept, x);
            dc_push(g, out, x);
        }
        free(upstream.at);
        vec_free(&reached);
    }
    free(body.at), free(changing.at), free(seen.at), free(kept.at);
    vec_free(&met);
}

/* The result of the loop that already stacks x; NULL: there is none. */
static eas_node *stacked_result(work *w, const eas_node *x)
{
    for (int i = w->nc; i < w->nc + w->nk; i++)
        if (w->outs[i] == x) {
            const struct node_out *o = &w->n->extra->outs[i];
            int64_t word = i;
            return gb_new(w->g, GRAPH_RESULT, o->dtype, 0, o->rank, o->shape, 1, &word, 1, &w->n);
        }
    return NULL;
}

/* The loop once more, with residuals stacked: (trips, ...) each. */
static void stack_residuals(work *w, const list *residuals, eas_node **stacks)
{
    gbuild *g = w->g;
    list next = {0}, stacked = {0};
    uint32_t there = 0;
    for (uint32_t i = 0; i < residuals->len; i++)
        there += (stacks[i] = stacked_result(w, residuals->at[i])) != NULL;
    if (there == residuals->len)
        return;
    for (int i = 0; i < w->nc; i++)
        dc_push(g, &next, w->outs[i]);
    for (int i = 0; i < w->nk; i++)
        dc_push(g, &stacked, w->outs[w->nc + i]);
    for (uint32_t i = 0; i < residuals->len; i++)
        if (!stacks[i])
            dc_push(g, &stacked, residuals->at[i]);
    if (!g->st) {
        dc_outside(w, (int)next.len, next.at);
        dc_outside(w, (int)stacked.len, stacked.at);
    }
    eas_node **made = dc_room(g, next.len + stacked.len, sizeof *made);
    eas_loop l = {w->nc, node_in(w->n),         w->in,         next.at,          NULL,       w->c->length,
                  w->ns, node_in(w->n) + w->nc, w->in + w->nc, (int)stacked.len, stacked.at, w->c->reverse};
    dc_loop(g, &l, false, made);
    if (!g->st && next.len + stacked.len)
        widen(w->n, made[0]);
    int at = w->nc + w->nk;
    for (uint32_t i = 0; i < residuals->len && !g->st; i++)
        stacks[i] = stacks[i] ? stacks[i] : made[at++];
    free(made);
    vec_free(&next), vec_free(&stacked);
}

typedef struct backward { /* the loop that goes back */
    list init, state, next, scanned, element, stacked;
} backward;

static void carry(gbuild *g, backward *b, eas_node *init, eas_node *state, eas_node *next)
{
    dc_push(g, &b->init, init);
    dc_push(g, &b->state, state);
    dc_push(g, &b->next, next);
}

static void go_through(gbuild *g, backward *b, eas_node *tensor, eas_node *element)
{
    dc_push(g, &b->scanned, tensor);
    dc_push(g, &b->element, element);
}

/* ---- gradients of captured tensors, after the loop ----
 *
 * The gradient of a captured matrix is a sum over trips of x^T c: x from a stack, c from the way back. Rather
 * than adding to it trip by trip, the loop stacks c, and one product over the rows of all trips (pass/rows.c)
 * follows it. The gradient of a bias is a sum of the rows of c. Where c is stacked anyway, for a matrix or as
 * the gradient of an element, that sum follows the loop as well. */
typedef struct late {
    eas_node *x;       /* the stack whose rows are multiplied with those of c; NULL: no product */
    const eas_node *c; /* the gradient is views and sums of it; NULL: it is not */
    int stacked;       /* where c is in what the loop stacks */
} late;

static bool is_late(const late *l) { return l->x || l->c; }

static eas_node *stack_of(const work *w, const list *residuals, eas_node *const *stacks, const eas_node *x)
{
    for (uint32_t i = 0; i < residuals->len; i++)
        if (residuals->at[i] == x)
            return stacks[i];
    for (int i = w->nc; i < w->nc + w->ns; i++)
        if (w->in[i] == x)
            return node_in(w->n)[i];
    return NULL;
}

/* The place of c in the list; its length: c is not there. */
static uint32_t place_in(const list *l, const eas_node *c)
{
    uint32_t k = 0;
    while (k < l->len && l->at[k] != c)
        k++;
    return k;
}

/* Is n, the gradient of a captured matrix in a trip, a product to be done after the loop? Then c is stacked.
 */
static bool product_late(const work *w, const list *residuals, eas_node *const *stacks, const eas_node *n,
                         list *stacked, late *out)
{
    enum { TALL = 4 };
    if (w->g->st || w->g->lanes || node_kind(n) != KIND_MATMUL || n->rank != 2 || n->batch_dims ||
        node_kind(node_in(n)[0]) != KIND_PERMUTE)
        return false;
    eas_node *x = node_in(node_in(n)[0])[0], *c = node_in(n)[1], *stack = stack_of(w, residuals, stacks, x);
    if (!stack || stack->rank != 3 || stack->batch_dims || x->rank != 2 || x->batch_dims || c->rank != 2 ||
        c->batch_dims)
        return false;
    const eas_dim rows = node_shape(x)[0], cols = node_shape(x)[1];
    if (!dim_known(rows) || !dim_known(cols) || rows > TALL * cols ||
        stack_of(w, residuals, stacks, c)) /* with many rows the product of one trip is efficient by itself */
        return false;
    const uint32_t k = place_in(stacked, c);
    if (k == stacked->len)
        dc_push(w->g, stacked, c);
    *out = (late){.x = stack, .stacked = (int)k};
    return true;
}

/* Is n, the gradient of a captured tensor in a trip, made by views and sums of something that is stacked? */
static bool sum_late(const work *w, const eas_node *n, const list *stacked, late *out)
{
    if (w->g->st || w->g->lanes || n->batch_dims)
        return false;
    const eas_node *c = n;
    while (node_kind(c) == KIND_RESHAPE || node_kind(c) == KIND_PERMUTE || c->op == GRAPH_REDUCE_SUM) {
        c = node_in(c)[0];
        const uint32_t k = place_in(stacked, c);
        if (k < stacked->len && !c->batch_dims) {
            *out = (late){.c = c, .stacked = (int)k};
            return true;
        }
    }
    return false;
}

/* n, which is made of c by views and sums, made of x instead. */
static eas_node *with_other(gbuild *g, const eas_node *n, const eas_node *c, eas_node *x)
{
    if (n == c || !x)
        return x;
    x = with_other(g, node_in(n)[0], c, x);
    return x && !g->st ? gb_new(g, n->op, (eas_dtype)n->dtype, n->batch_dims, n->rank, node_shape(n),
                                n->nwords, node_words(n), 1, &x)
                       : NULL;
}

/* cs: (trips, rows, columns), as x is */
static eas_node *summed_late(gbuild *g, eas_node *x, eas_node *cs)
{
    eas_dim shape[3];
    if (g->st || !x || !cs)
        return NULL;
    shape[0] = node_shape(x)[0];
    shape[1] = node_shape(x)[2];
    shape[2] = node_shape(cs)[2];
    eas_node *turned = gb_permute(g, x, (int[]){0, 2, 1});
    eas_node *each = turned ? gb_new(g, GRAPH_MATMUL, (eas_dtype)cs->dtype, 0, 3, shape, 0, NULL, 2,
                                     (eas_node *[]){turned, cs})
                            : NULL;
    return each ? gb_reduce(g, GRAPH_REDUCE_SUM, each, 1, false) : NULL;
}

/* The gradient of which a trip has n; cs: the c of all trips. */
static eas_node *made_late(gbuild *g, const late *l, const eas_node *n, eas_node *cs)
{
    if (l->x)
        return summed_late(g, l->x, cs);
    return cs ? with_other(g, n, l->c, gb_reduce(g, GRAPH_REDUCE_SUM, cs, 1, false)) : NULL;
}

static void loop_back(work *w, eas_node *const *ct, const bool *wanted, eas_node **grads)
{
    gbuild *g = w->g;
    int nc = w->nc, ns = w->ns, nk = w->nk, nin = w->c->nin;
    pulls p = {dc_room(g, (size_t)(nc + nk), sizeof(eas_node *)),
               dc_room(g, (size_t)nin, sizeof(eas_node *))};
    list residuals = {0};
    late *after = dc_room(g, (size_t)nin, sizeof *after);
    backward b = {0};
    for (int i = 0; i < nc + nk && !g->st; i++)
        if (ct[i])
            p.ct[i] = i < nc ? dc_like(g, ct[i])
                             : dc_element_like(g, ct[i], gd_extra(ct[i], w->outs[i]) - 1, w->outs[i]);
    for (bool settled = false; !settled && !g->st;) {
        pull_body(w, wanted, &p);
        settled = true;
        for (int i = 0; i < nc && !g->st; i++)
            settled &= dc_hold(g, &p.ct[i], p.grad[i], w->outs[i]);
    }
    if (!g->st)
        find_residuals(w, &p, &residuals);
    eas_node **stacks = dc_room(g, residuals.len, sizeof *stacks),
             **slot = dc_room(g, residuals.len, sizeof *slot);
    if (!g->st)
        stack_residuals(w, &residuals, stacks);
    /* what is carried back: cotangents, then sums of the gradients of what is captured */
    for (int i = 0; i < nc && !g->st; i++)
        if (p.ct[i])
            carry(g, &b, dc_as_type(g, ct[i], p.ct[i]), p.ct[i], dc_as_type(g, p.grad[i], p.ct[i]));
    for (int i = nc; i < nc + ns && !g->st; i++)
        if (wanted[i] && p.grad[i])
            dc_push(g, &b.stacked, p.grad[i]);
    for (int i = nc + ns; i < nin && !g->st; i++)
        if (wanted[i] && p.grad[i])
            product_late(w, &residuals, stacks, p.grad[i], &b.stacked, &after[i]);
    int sums = (int)b.next.len;
    for (int i = nc + ns; i < nin && !g->st; i++)
        if (wanted[i] && p.grad[i] && !after[i].x && !sum_late(w, p.grad[i], &b.stacked, &after[i])) {
            eas_node *sum = dc_like(g, p.grad[i]);
            carry(g, &b, dc_as_type(g, NULL, sum), sum, gd2(g, GRAPH_ADD, sum, p.grad[i]));
        }
    for (uint32_t i = 0; i < residuals.len && !g->st; i++) {
        slot[i] = dc_like(g, residuals.at[i]);
        go_through(g, &b, stacks[i], slot[i]);
    }
    for (int i = nc; i < nc + ns && !g->st; i++)
        go_through(g, &b, node_in(w->n)[i], w->in[i]);
    for (int i = nc; i < nc + nk && !g->st; i++)
        if (p.ct[i])
            go_through(g, &b, dc_trips_first(g, ct[i], gd_extra(ct[i], w->outs[i]) - 1), p.ct[i]);
    if (!g->st) { /* the body reads residuals from their stacks */
        control_replace(g, (int)residuals.len, residuals.at, slot, (int)b.next.len, b.next.at, false);
        control_replace(g, (int)residuals.len, residuals.at, slot, (int)b.stacked.len, b.stacked.at, false);
        dc_outside(w, (int)b.next.len, b.next.at);
        dc_outside(w, (int)b.stacked.len, b.stacked.at);
    }
    eas_node **made = dc_room(g, b.next.len + b.stacked.len, sizeof *made);
    eas_loop l = {(int)b.next.len, b.init.at,          b.state.at,   b.next.at,    NULL,
                  w->c->length,    (int)b.scanned.len, b.scanned.at, b.element.at, (int)b.stacked.len,
                  b.stacked.at,    !w->c->reverse};
    if (b.next.len + b.stacked.len)
        dc_loop(g, &l, false, made);
    if (!g->st) {
        int at = 0, behind = (int)b.next.len;
        for (int i = 0; i < nc; i++)
            if (p.ct[i]) {
                grads[i] = wanted[i] ? made[at] : NULL;
                at++;
            }
        at = sums;
        for (int i = nc + ns; i < nin; i++)
            if (wanted[i] && p.grad[i])
                grads[i] = is_late(&after[i])
                             ? made_late(g, &after[i], p.grad[i], made[behind + after[i].stacked])
                             : made[at++];
        for (int i = nc; i < nc + ns && !g->st; i++)
            if (wanted[i] && p.grad[i]) {
                int e = gd_extra(p.grad[i], w->in[i]);
                grads[i] = dc_trips_behind(g, made[behind++], e);
            }
        for (int i = 0; i < nin && !g->st; i++)
            if (grads[i])
                grads[i] = gd_rebatch(g, grads[i],
                                      gd_extra(grads[i], node_in(w->n)[i]) + node_in(w->n)[i]->batch_dims);
    }
    free(made), free(stacks), free(slot), free(p.ct), free(p.grad), free(after);
    vec_free(&residuals);
    vec_free(&b.init), vec_free(&b.state), vec_free(&b.next), vec_free(&b.scanned), vec_free(&b.element),
        vec_free(&b.stacked);
}

/* A loop with a condition and a bound, as one of so many trips in which the state stays once the condition
 * fails. Then that is differentiated. */
static void bounded_back(work *w, eas_node *const *ct, const bool *wanted, eas_node **grads)
{
    gbuild *g = w->g;
    int nc = w->nc;
    eas_node **next = dc_room(g, (size_t)nc, sizeof *next), **made = dc_room(g, (size_t)nc, sizeof *made),
             **chosen = dc_room(g, (size_t)nc, sizeof *chosen);
    list vars = {0}, outs = {0}, cts = {0};
    node_open_branches(1);
    for (int i = 0; i < nc && !g->st; i++)
        next[i] = w->outs[i];
    if (!g->st)
        /* recorded again while the branch is open: only such nodes are inside of it */
        control_replace(g, nc, w->in, w->in, nc, next, false);
    if (!g->st)
        dc_outside(w, nc, next);
    if (g->st)
        node_open_branches(-1);
    else
        g->st = eas_branch_end(w->in[0], nc, next, w->in, chosen);
    for (int i = 0; i < nc && !g->st; i++) {
        dc_keep(g, node_ref(chosen[i]));
        eas_node_release(chosen[i]);
    }
    eas_loop l = {nc, node_in(w->n), w->in, chosen, NULL, w->c->length, 0, NULL, NULL, 0, NULL, 0};
    dc_loop(g, &l, false, made);
    int *which = dc_room(g, (size_t)w->c->nin, sizeof *which);
    for (int i = 0; i < w->c->nin && !g->st; i++) {
        bool twice = false; /* a tensor that is carried and captured has one gradient, for both */
        for (uint32_t k = 0; k < vars.len; k++)
            twice |= vars.at[k] == node_in(w->n)[i];
        if (wanted[i] && !twice) {
            which[vars.len] = i;
            dc_push(g, &vars, node_in(w->n)[i]);
        }
    }
    for (int i = 0; i < nc && !g->st; i++)
        if (ct[i]) {
            dc_push(g, &outs, made[i]);
            dc_push(g, &cts, ct[i]);
        }
    eas_node **got = dc_room(g, vars.len, sizeof *got);
    if (!g->st)
        g->st = eas_nodes_vjp((int)vars.len, vars.at, (int)outs.len, outs.at, cts.at, g->lanes, got);
    for (uint32_t k = 0; k < vars.len && !g->st; k++) {
        grads[which[k]] = got[k] ? dc_keep(g, node_ref(got[k])) : NULL;
        eas_node_release(got[k]);
    }
    free(next), free(made), free(chosen), free(got), free(which);
    vec_free(&vars), vec_free(&outs), vec_free(&cts);
}

/* The derivative of the side that was taken, which runs again for it. */
static void branch_back(work *w, eas_node *const *ct, const bool *wanted, eas_node **grads)
{
    gbuild *g = w->g;
    int n = w->c->fn[0].n, nin = w->c->nin;
    eas_node **side[2] = {dc_room(g, (size_t)nin, sizeof(eas_node *)),
                          dc_room(g, (size_t)nin, sizeof(eas_node *))};
    eas_node **type = dc_room(g, (size_t)nin, sizeof *type), **made = dc_room(g, (size_t)nin, sizeof *made);
    for (int f = 0; f < 2 && !g->st; f++) {
        list vars = {0}, outs = {0}, cts = {0};
        g->st = control_inputs(w->c, f, w->in);
        for (int i = 1; i < nin && !g->st; i++)
            if (w->in[i] && wanted[i])
                dc_push(g, &vars, w->in[i]);
        for (int i = 0; i < n && !g->st; i++)
            if (ct[i]) {
                dc_push(g, &outs, w->c->fn[f].outs[i]);
                dc_push(g, &cts, ct[i]);
            }
        eas_node **got = dc_room(g, vars.len, sizeof *got);
        dc_inside++;
        if (!g->st)
            g->st = eas_nodes_vjp((int)vars.len, vars.at, (int)outs.len, outs.at, cts.at, g->lanes, got);
        dc_inside--;
        for (int i = 1, k = 0; i < nin && !g->st; i++)
            if (w->in[i] && wanted[i]) {
                if (got[k]) {
                    side[f][i] = dc_keep(g, node_ref(got[k]));
                    dc_hold(g, &type[i], got[k], node_in(w->n)[i]);
                    eas_node_release(got[k]);
                }
                k++;
            }
        free(got);
        vec_free(&vars), vec_free(&outs), vec_free(&cts);
    }
    int count = 0;
    node_open_branches(1);
    for (int f = 0; f < 2 && !g->st; f++) {
        count = 0;
        for (int i = 1; i < nin && !g->st; i++)
            if (type[i])
                side[f][count++] = dc_as_type(g, side[f][i], type[i]);
        if (!g->st)
            g->st = control_inputs(w->c, f, w->in);
        if (!g->st)
            dc_outside(w, count, side[f]);
    }
    if (g->st)
        node_open_branches(-1);
    else
        g->st = eas_branch_end(node_in(w->n)[0], count, side[1], side[0], made);
    for (int i = 0; i < count && !g->st; i++) {
        dc_keep(g, node_ref(made[i]));
        eas_node_release(made[i]);
    }
    for (int i = 1, k = 0; i < nin && !g->st; i++)
        if (type[i])
            grads[i] = made[k++];
    free(side[0]), free(side[1]), free(type), free(made);
}

static eas_status unbounded(const eas_node *n)
{
    char file[256];
    int line = 0;
    bool known = node_place(n, file, sizeof file, &line);
    char at[300] = "";
    if (known)
        snprintf(at, sizeof at, " at %s:%d", file, line);
    return base_fail(
        EAS_ERR_VALUE,
        "eager.while_loop%s: reverse mode keeps something of each trip, so it must know how many there can be: give max_steps=",
        at);
}

eas_status diff_control_back(gbuild *g, eas_node *n, eas_node *const *ct, const bool *wanted,
                             eas_node **grads)
{
    work w;
    if (dc_begin(&w, g, n)) {
        if (w.c->branch)
            branch_back(&w, ct, wanted, grads);
        else if (w.c->conditional && w.c->length == DIM_NONE)
            g->st = unbounded(n);
        else if (w.c->conditional)
            bounded_back(&w, ct, wanted, grads);
        else
            loop_back(&w, ct, wanted, grads);
    }
    dc_end(&w);
    return g->st;
}
