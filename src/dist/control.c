/* control.c: loops and branches on parts. What runs is partitioned like the graph around it, with
 * placeholders that lie as the inputs do.
 *
 * A carried value lies the same way before and after a trip: as it comes in, or, if it comes in whole and a
 * trip would give it in parts, as a trip gives it. What is scanned is whole along its first dim, since a trip
 * needs an element on every device at once. The device's place along axes is one more input.
 */
#include "dist.h"

typedef struct body {
    partition *p; /* around it */
    pentry *e;
    const graph_control *c;
    eas_spec *in;     /* per input: how it goes in; of scanned ones with their first dim */
    eas_node **holder[2]; /* placeholders of the functions, borrowed */
    partition q;
} body;

static int nfns(const graph_control *c) { return c->branch ? 2 : 1; }
static bool is_scanned(const graph_control *c, int i)
{
    return !c->branch && i >= c->ncarried && i < c->ncarried + c->nscanned;
}

/* The layout of one element along the first dim. */
static eas_spec element_of(const eas_spec *s)
{
    eas_spec r = {.rank = s->rank - 1};
    memcpy(r.dims, s->dims + 1, sizeof *r.dims * (size_t)r.rank);
    return r;
}
static eas_spec stacked_of(const eas_spec *s)
{
    eas_spec r = {.rank = s->rank + 1};
    memcpy(r.dims + 1, s->dims, sizeof *r.dims * (size_t)s->rank);
    return r;
}

static void open_inputs(body *b)
{
    for (int i = 0; i < b->c->nin; i++) {
        b->in[i] = mix_none(&partition_value(b->p, node_in(b->e->n)[i])->at);
        b->in[i].partial = 0;
        if (is_scanned(b->c, i) || (b->c->branch && i == 0))
            b->in[i].dims[0].n = 0;
    }
}

/* The functions' placeholders with these layouts, and entries of all that they need. */
static eas_status collect(body *b, pnotes *notes)
{
    const graph_control *c = b->c;
    partition *p = b->p, *q = &b->q;
    int64_t trips = c->branch || c->length == DIM_NONE || !dim_known(c->length) ? 1 : c->length;
    *q = (partition){.m = p->m,
                     .around = p,
                     .notes = notes,
                     .sites = notes ? p->sites : NULL,
                     .times = p->times * trips,
                     .next_input = c->nin};
    q->per_trip =
        p->per_trip || (!c->branch && (c->conditional || c->length == DIM_NONE || !dim_known(c->length)));
    for (int f = 0; f < nfns(c); f++)
        for (int i = 0; i < c->nin && !q->g.st; i++) {
            eas_node *h = b->holder[f][i], *own = NULL;
            eas_spec at = is_scanned(c, i) ? element_of(&b->in[i]) : b->in[i];
            eas_dim shape[GRAPH_MAX_RANK];
            int64_t word = i;
            if (!h || partition_find(q, h))
                continue;
            spec_local_shape(p->m, &at, node_shape(h), shape);
            eas_status st =
                node_new(GRAPH_INPUT, (eas_dtype)h->dtype, 0, h->rank, shape, 1, &word, 0, NULL, &own);
            if (!st)
                own->flags |= NODE_SYMBOLIC;
            own = partition_keep(q, st, own);
            pentry *e = own ? partition_add(q, h) : NULL;
            if (e)
                e->v = (pvalue){own, at};
        }
    for (int f = 0; f < nfns(c) && !q->g.st; f++)
        partition_collect(q, c->fn[f].n, c->fn[f].outs);
    return q->g.st;
}

/* Values that come in whole and leave a trip in parts: they are carried in parts. */
static bool settle_carried(body *b)
{
    const graph_control *c = b->c;
    bool changed = false;
    for (int i = 0; !c->branch && i < c->ncarried; i++) {
        eas_spec out = mix_none(&partition_value(&b->q, c->fn[0].outs[i])->at);
        out.partial = 0;
        if (!spec_plain(&b->in[i]) || !spec_cut(&out))
            continue;
        b->in[i] = out;
        changed = true;
    }
    return changed;
}

static eas_status run_body(body *b, pnotes *notes)
{
    enum { ROUNDS = 4 };
    eas_status st = EAS_OK;
    for (int i = 0; i < ROUNDS && !b->c->branch; i++) {
        st = collect(b, NULL);
        if (!st)
            st = partition_run(&b->q);
        bool again = !st && settle_carried(b);
        partition_free(&b->q);
        b->q = (partition){0};
        if (st || !again)
            break;
    }
    if (!st)
        st = collect(b, notes);
    return st ? st : partition_run(&b->q);
}

/* The layout of result i of a trip, or of both branches. */
static eas_spec out_spec(body *b, int i)
{
    const graph_control *c = b->c;
    eas_spec s = mix_none(&partition_value(&b->q, c->fn[c->branch ? 1 : 0].outs[i])->at);
    if (!c->branch && i < c->ncarried)
        s = b->in[i];
    s.partial = 0;
    return s;
}

static eas_node *out_node(body *b, int f, int i)
{
    eas_node *o = b->c->fn[f].outs[i];
    eas_spec to = out_spec(b, i);
    b->q.now = o;
    return reshard(&b->q, partition_value(&b->q, o), &to, o->rank, node_shape(o),
                   b->c->branch ? "both branches give it laid out alike"
                                : "a carried value lies as it did before the trip");
}

static eas_status fill_control(body *b, graph_control *k)
{
    const graph_control *c = b->c;
    *k = *c;
    atomic_init(&k->refs, 1);
    k->nin = c->nin + (int)b->q.index.len;
    k->fn[0] = k->fn[1] = (graph_fn){0};
    k->nnumbers = 0;
    k->numbers = calloc((size_t)c->nnumbers + 1, sizeof *k->numbers);
    if (!k->numbers)
        return base_fail_oom((size_t)c->nnumbers);
    for (int i = 0; i < c->nnumbers; i++) {
        pentry *e = partition_find(&b->q, c->numbers[i]);
        eas_node *n = e ? e->v.n : partition_number(&b->q, c->numbers[i], false);
        if (!n)
            return b->q.g.st;
        k->numbers[k->nnumbers++] = node_ref(n);
    }
    for (int f = 0; f < nfns(c); f++) {
        k->fn[f].outs = calloc((size_t)c->fn[f].n + 1, sizeof *k->fn[f].outs);
        if (!k->fn[f].outs)
            return base_fail_oom((size_t)c->fn[f].n);
        for (int i = 0; i < c->fn[f].n; i++) {
            eas_node *o = out_node(b, f, i);
            if (!o)
                return b->q.g.st;
            k->fn[f].outs[k->fn[f].n++] = node_ref(o);
        }
    }
    k->nin = c->nin + (int)b->q.index.len; /* resharding the results may have added indices */
    return EAS_OK;
}

static eas_status control_inputs_of(body *b, const graph_control *k, eas_node **in)
{
    const graph_control *c = b->c;
    partition *p = b->p;
    for (int i = 0; i < c->nin && !p->g.st; i++) {
        eas_node *x = node_in(b->e->n)[i];
        in[i] =
            reshard(p, partition_value(p, x), &b->in[i], x->rank, node_shape(x),
                    is_scanned(c, i) ? "a trip needs the element on every device" : "goes into the loop so");
    }
    for (uint32_t i = 0; i < b->q.index.len && !p->g.st; i++)
        in[c->nin + (int)i] = partition_index(p, &b->q.index.at[i].axes);
    for (int i = 0; i < c->nnumbers && !p->g.st; i++)
        in[k->nin + i] = partition_value(p, node_in(b->e->n)[c->nin + i])->n;
    return p->g.st;
}

static eas_status record(body *b, graph_control *k)
{
    const node_extra *x = b->e->n->extra;
    partition *p = b->p;
    eas_node **in = calloc((size_t)(k->nin + k->nnumbers + 1), sizeof *in),
             **made = calloc((size_t)x->nouts + 1, sizeof *made);
    struct node_out *outs = calloc((size_t)x->nouts + 1, sizeof *outs);
    eas_dim *shapes = calloc((size_t)(x->nouts + 1) * GRAPH_MAX_RANK, sizeof *shapes);
    eas_status st =
        in && made && outs && shapes ? control_inputs_of(b, k, in) : base_fail_oom((size_t)k->nin);
    for (int i = 0; i < x->nouts && !st; i++) {
        eas_spec s = out_spec(b, i);
        if (!k->branch && i >= k->ncarried)
            s = stacked_of(&s);
        spec_local_shape(p->m, &s, x->outs[i].shape, shapes + i * GRAPH_MAX_RANK);
        outs[i] = (struct node_out){x->outs[i].dtype, x->outs[i].rank, shapes + i * GRAPH_MAX_RANK};
        b->e->results[i].at = s;
    }
    if (!st)
        st = node_control(b->e->n->op, k->nin + k->nnumbers, in, k, x->nouts, outs, NULL, made);
    for (int i = 0; i < x->nouts && !st; i++)
        b->e->results[i].n = partition_keep(p, EAS_OK, made[i]);
    free(in);
    free(made);
    free(outs);
    free(shapes);
    return st ? st : p->g.st;
}

void partition_control(partition *p, pentry *e)
{
    const graph_control *c = e->n->extra->control;
    body b = {.p = p, .e = e, .c = c};
    graph_control *k = calloc(1, sizeof *k);
    e->results = calloc((size_t)e->n->extra->nouts + 1, sizeof *e->results);
    b.in = calloc((size_t)c->nin + 1, sizeof *b.in);
    b.holder[0] = calloc((size_t)c->nin + 1, sizeof *b.holder[0]);
    b.holder[1] = calloc((size_t)c->nin + 1, sizeof *b.holder[1]);
    eas_status st =
        k && e->results && b.in && b.holder[0] && b.holder[1] ? EAS_OK : base_fail_oom((size_t)c->nin);
    for (int f = 0; f < nfns(c) && !st; f++)
        st = control_inputs(c, f, b.holder[f]);
    if (!st) {
        open_inputs(&b);
        st = run_body(&b, p->notes);
    }
    if (!st)
        st = fill_control(&b, k);
    if (!st)
        st = b.q.g.st;
    if (!st)
        st = record(&b, k);
    if (k && k->numbers)
        control_release(k);
    else
        free(k);
    partition_free(&b.q);
    free(b.in);
    free(b.holder[0]);
    free(b.holder[1]);
    p->g.st = p->g.st ? p->g.st : st;
    /* the control node's own value is never read, only its results */
    e->v.n = st                 ? NULL
           : e->n->extra->nouts ? e->results[0].n
                                : partition_number(p, gb_int(&p->g, EAS_I64, 0), true);
}
