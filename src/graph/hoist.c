/* hoist.c: products that a loop would do row by row are done once, for all trips, before it.
 *
 * A trip that multiplies an element of what the loop goes through by a matrix which all trips share (the
 * inputs of a recurrent layer) does a product of few rows. The products of all trips are one product of many
 * rows, which reads the matrix once. Each row of a product is computed the same way however many rows there
 * are, so results do not change by a bit. The loop then goes through the rows of that product instead; its
 * derivative is one product as well.
 */
#include "graph.h"

enum { MOST_WIDER = 16 }; /* the product may be that many times as large as what is scanned */

typedef struct search {
    gbuild g;
    const eas_loop *l;
    diff_set seen;
    diff_nodes stack, found;
} search;

static void visit(search *s, eas_node *n)
{
    /* what depends on a placeholder is symbolic */
    if (!(n->flags & NODE_SYMBOLIC) || node_real(n) || s->g.st || diff_set_has(&s->seen, n))
        return;
    diff_set_add(&s->g, &s->seen, n);
    if (!vec_push(&s->stack, n))
        s->g.st = base_fail_oom(sizeof n);
}

static int element_of(const eas_loop *l, const eas_node *n)
{
    for (int i = 0; i < l->nscanned; i++)
        if (l->element[i] == n)
            return i;
    return -1;
}

static bool is_placeholder(const eas_loop *l, const eas_node *n)
{
    for (int i = 0; i < l->ncarried; i++)
        if (l->state[i] == n)
            return true;
    return element_of(l, n) >= 0;
}

/* Is n the same in all trips? */
static bool shared(const eas_loop *l, eas_node *n, eas_status *st)
{
    search s = {.l = l};
    bool yes = true;
    visit(&s, n);
    while (s.stack.len && yes && !s.g.st) {
        const eas_node *x = s.stack.at[--s.stack.len];
        yes = !is_placeholder(l, x);
        for (int i = 0; i < x->nin && yes; i++)
            visit(&s, node_in(x)[i]);
    }
    *st = *st ? *st : s.g.st;
    vec_free(&s.stack);
    free(s.seen.at);
    return yes && !*st;
}

static bool is_product(const eas_loop *l, const eas_node *n)
{
    if (n->op != GRAPH_MATMUL || n->batch_dims || n->rank != 2)
        return false;
    const eas_node *x = node_in(n)[0], *y = node_in(n)[1];
    const int i = element_of(l, x);
    if (i < 0 || l->scanned[i]->batch_dims || x->batch_dims || y->batch_dims || x->rank != 2 || y->rank != 2)
        return false;
    const eas_dim k = node_shape(y)[0], columns = node_shape(y)[1];
    return dim_known(k) && dim_known(columns) && columns <= MOST_WIDER * k;
}

static void look(search *s)
{
    const eas_loop *l = s->l;
    for (int i = 0; i < l->ncarried; i++)
        visit(s, l->next[i]);
    for (int i = 0; i < l->nstacked; i++)
        visit(s, l->stacked[i]);
    while (s->stack.len && !s->g.st) {
        eas_node *n = s->stack.at[--s->stack.len];
        if (is_product(l, n) && shared(l, node_in(n)[1], &s->g.st) && !vec_push(&s->found, n))
            s->g.st = base_fail_oom(sizeof n);
        for (int i = 0; i < n->nin; i++)
            visit(s, node_in(n)[i]);
    }
}

/* The product n for all trips. */
static eas_node *for_all(gbuild *g, const eas_loop *l, eas_node *n)
{
    eas_node *x = l->scanned[element_of(l, node_in(n)[0])];
    const eas_dim trips = node_shape(x)[0], rows = node_shape(x)[1], k = node_shape(x)[2],
                  columns = node_shape(n)[1];
    eas_site_set(n->site);
    eas_node *flat = gb_reshape(g, x, 0, 2, (eas_dim[]){gb_dim(g, EAS_DIM_MUL, trips, rows), k});
    eas_node *all = flat ? gb2(g, GRAPH_MATMUL, flat, node_in(n)[1]) : NULL;
    eas_site_set(0);
    return all ? gb_reshape(g, all, 0, 3, (eas_dim[]){trips, rows, columns}) : NULL;
}

static eas_node *element_for(gbuild *g, const eas_node *n)
{
    int64_t word = -1;
    eas_node *e = gb_new(g, GRAPH_INPUT, (eas_dtype)n->dtype, 0, n->rank, node_shape(n), 1, &word, 0, NULL);
    if (e) {
        e->flags |= NODE_SYMBOLIC;
        e->device = n->device;
    }
    return e;
}

static void put_in_place(gbuild *g, hoisted *h, const search *s)
{
    const eas_loop *l = s->l;
    const int have = l->nscanned, more = (int)s->found.len, roots = l->ncarried + l->nstacked;
    eas_node **all = h->nodes = calloc(2 * (size_t)(have + more) + (size_t)roots + 1, sizeof *all),
             **elements = all + have + more, **out = elements + have + more;
    if (!all) {
        g->st = base_fail_oom((size_t)(have + more));
        return;
    }
    for (int i = 0; i < have; i++) {
        all[i] = l->scanned[i];
        elements[i] = l->element[i];
    }
    for (int i = 0; i < more && !g->st; i++) {
        all[have + i] = for_all(g, l, s->found.at[i]);
        elements[have + i] = element_for(g, s->found.at[i]);
    }
    for (int i = 0; i < roots; i++)
        out[i] = i < l->ncarried ? l->next[i] : l->stacked[i - l->ncarried];
    control_replace(g, more, s->found.at, elements + have, roots, out, false);
    h->loop = *l;
    h->loop.nscanned = have + more;
    h->loop.scanned = all;
    h->loop.element = elements;
    h->loop.next = out;
    h->loop.stacked = out + l->ncarried;
}

eas_status loop_hoist(gbuild *g, const eas_loop *l, hoisted *h)
{
    *h = (hoisted){.loop = *l};
    if (!l->nscanned || l->condition)
        return EAS_OK;
    search s = {.l = l};
    look(&s);
    g->st = g->st ? g->st : s.g.st;
    if (s.found.len && !g->st)
        put_in_place(g, h, &s);
    vec_free(&s.stack);
    vec_free(&s.found);
    free(s.seen.at);
    return g->st;
}
