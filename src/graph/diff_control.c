/* diff_control.c: derivatives of loops and branches in forward mode, and what both modes share.
 *
 * Forward, the body carries tangents beside its values: one loop computes both. A branch gives values and
 * tangents on both sides. Reverse mode: diff_control_back.c.
 *
 * Tangents have dims in front of what they are tangents of (diff.c). A carried tangent must keep its type
 * from trip to trip, and its type is not known before: it is found by fixed-point iteration. The body is
 * differentiated for the types of the initial tangents; where a tangent comes out with more dims than it went
 * in with, the placeholder is widened (hold) and the body differentiated again. Dims only grow and are those
 * of tangents that exist, so this ends.
 */
#include "diff_control.h"

/* bodies that are being differentiated: their nodes belong to others, and stay as they are */
_Thread_local int dc_inside;

bool diff_in_body(void) { return dc_inside > 0; }

eas_node *control_source(const eas_node *result, int *index)
{
    eas_node *n = node_in(result)[0];
    *index = (int)node_words(result)[0];
    for (eas_node *w; (w = atomic_load_explicit(&n->extra->wider, memory_order_acquire)); n = w)
        ;
    return n;
}

/* ---- working memory of one derivative ---- */

void *dc_room(gbuild *g, size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p && !g->st)
        g->st = base_fail_oom(n * size);
    return p;
}

void dc_push(gbuild *g, list *l, eas_node *n)
{
    if (!g->st && !vec_push(l, n))
        g->st = base_fail_oom(sizeof n);
}

eas_node *dc_keep(gbuild *g, eas_node *n) /* a counted reference goes to the build */
{
    if (n && !vec_push(&g->made, n)) {
        node_unref(n);
        g->st = base_fail_oom(sizeof n);
        return NULL;
    }
    return n;
}

static eas_node *placeholder(gbuild *g, eas_dtype dt, int batch_dims, int rank, const eas_dim *shape,
                             eas_device *device)
{
    int64_t word = -1;
    eas_node *n = gb_new(g, GRAPH_INPUT, dt, batch_dims, rank, shape, 1, &word, 0, NULL);
    if (n) {
        n->flags |= NODE_SYMBOLIC;
        n->device = device;
    }
    return n;
}
eas_node *dc_like(gbuild *g, const eas_node *x)
{
    return x ? placeholder(g, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), x->device) : NULL;
}

bool dc_begin(work *w, gbuild *g, eas_node *n)
{
    *w = (work){.g = g, .n = n, .c = n->extra->control};
    w->nc = w->c->ncarried;
    w->ns = w->c->nscanned;
    w->nk = w->c->nstacked;
    w->in = dc_room(g, (size_t)w->c->nin, sizeof *w->in);
    w->outs = dc_room(g, (size_t)w->c->fn[0].n, sizeof *w->outs);
    if (!g->st && !w->c->branch)
        g->st = control_inputs(w->c, 0, w->in);
    for (int i = 0; i < w->c->fn[0].n && !g->st && !w->c->branch; i++)
        w->outs[i] = w->c->fn[0].outs[i];
    /* carried values and elements need placeholders, used or not */
    for (int i = 0; i < w->nc + w->ns && !g->st && !w->c->branch; i++) {
        const eas_node *x = node_in(n)[i];
        if (w->in[i])
            continue;
        if (i < w->nc)
            w->in[i] = dc_like(g, w->outs[i]);
        else
            w->in[i] = placeholder(g, (eas_dtype)x->dtype, x->batch_dims < x->rank ? x->batch_dims : 0,
                                   x->rank - 1, node_shape(x) + 1, x->device);
    }
    return !g->st;
}

void dc_end(work *w)
{
    free(w->in);
    free(w->outs);
}

/* Like an element of t, a tangent of what is scanned, where e dims are in front of the trips. */
eas_node *dc_element_like(gbuild *g, const eas_node *t, int e, const eas_node *element)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < t->rank; i++)
        if (i != e)
            shape[rank++] = node_shape(t)[i];
    return placeholder(g, (eas_dtype)t->dtype, e + element->batch_dims, rank, shape, t->device);
}

/* The shape that both broadcast to, aligned at the end. true: that is a's own shape. */
static bool join_shapes(const eas_node *a, const eas_node *b, int *rank, eas_dim *shape)
{
    bool same = b->rank <= a->rank;
    *rank = a->rank > b->rank ? a->rank : b->rank;
    for (int i = 0; i < *rank; i++) {
        int p = i - (*rank - a->rank), q = i - (*rank - b->rank);
        eas_dim x = p < 0 ? 1 : node_shape(a)[p], y = q < 0 ? 1 : node_shape(b)[q];
        shape[i] = x == 1 ? y : x;
        same &= shape[i] == x && p >= 0;
    }
    return same;
}

/* t in the type of a placeholder. */
eas_node *dc_as_type(gbuild *g, eas_node *t, const eas_node *type)
{
    if (g->st || !type)
        return NULL;
    if (!t)
        return gd_fill(g, (eas_dtype)type->dtype, 0, type->batch_dims, type->rank, node_shape(type));
    return gd_rebatch(g, gb_broadcast(g, t, type->batch_dims, type->rank, node_shape(type)),
                      type->batch_dims);
}

/* Replaces the placeholder *type by a wider one if it lacks dims that t has. true: it has them all already.
 */
bool dc_hold(gbuild *g, eas_node **type, const eas_node *t, const eas_node *of)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int rank;
    if (!t || g->st)
        return true;
    if (*type && join_shapes(*type, t, &rank, shape))
        return true;
    if (!*type) {
        rank = t->rank;
        memcpy(shape, node_shape(t), sizeof *shape * (size_t)rank);
    }
    *type = placeholder(g, (eas_dtype)t->dtype, rank - of->rank + of->batch_dims, rank, shape, t->device);
    return false;
}

/* Replaces the placeholders of captured values by the captured nodes themselves. */
void dc_outside(work *w, int n, eas_node **nodes)
{
    int first = w->c->branch ? 0 : w->nc + w->ns;
    control_replace(w->g, w->c->nin - first, w->in + first, node_in(w->n) + first, n, nodes, false);
}

/* Records the loop; results are kept by the build. */
void dc_loop(gbuild *g, eas_loop *l, bool flagged, eas_node **made)
{
    if (g->st)
        return;
    g->st = control_loop(l, flagged, made);
    for (int i = 0; i < l->ncarried + l->nstacked && !g->st; i++)
        dc_keep(g, made[i]);
}

/* ---- forward ---- */

typedef struct duals { /* placeholders of tangents inside a body */
    eas_node **type; /* per input of the loop; NULL: zero. Of captured values: the tangent itself */
    eas_node **out; /* tangents of the body's results; NULL: zero */
} duals;

static void push_body(work *w, duals *d)
{
    gbuild *g = w->g;
    list vars = {0}, ts = {0};
    for (int i = 0; i < w->c->nin && !g->st; i++)
        if (w->in[i] && d->type[i]) {
            dc_push(g, &vars, w->in[i]);
            dc_push(g, &ts, d->type[i]);
        }
    dc_inside++;
    if (!g->st)
        g->st = eas_nodes_jvp((int)vars.len, vars.at, ts.at, w->nc + w->nk, w->outs, g->lanes, d->out);
    dc_inside--;
    for (int i = 0; i < w->nc + w->nk && !g->st; i++)
        if (d->out[i]) {
            dc_keep(g, node_ref(d->out[i]));
            eas_node_release(d->out[i]);
        }
    vec_free(&vars);
    vec_free(&ts);
}

static void loop_forth(work *w, eas_node *const *t, eas_node **out)
{
    gbuild *g = w->g;
    int nc = w->nc, ns = w->ns, nk = w->nk;
    duals d = {dc_room(g, (size_t)w->c->nin, sizeof(eas_node *)),
               dc_room(g, (size_t)(nc + nk), sizeof(eas_node *))};
    list init = {0}, state = {0}, next = {0}, scanned = {0}, element = {0}, stacked = {0};
    for (int i = 0; i < w->c->nin && !g->st; i++) {
        int e = t[i] ? gd_extra(t[i], node_in(w->n)[i]) : 0;
        if (t[i])
            d.type[i] = i < nc      ? dc_like(g, t[i])
                      : i < nc + ns ? dc_element_like(g, t[i], e, w->in[i])
                                    : t[i];
    }
    for (bool settled = false; !settled && !g->st;) {
        push_body(w, &d);
        settled = true;
        for (int i = 0; i < nc && !g->st; i++)
            settled &= dc_hold(g, &d.type[i], d.out[i], w->outs[i]);
    }
    /* values first, then tangents; the same for what is scanned and stacked */
    for (int i = 0; i < nc && !g->st; i++) {
        dc_push(g, &init, node_in(w->n)[i]);
        dc_push(g, &state, w->in[i]);
        dc_push(g, &next, w->outs[i]);
    }
    for (int i = 0; i < nc && !g->st; i++)
        if (d.type[i]) {
            dc_push(g, &init, dc_as_type(g, t[i], d.type[i]));
            dc_push(g, &state, d.type[i]);
            dc_push(g, &next, dc_as_type(g, d.out[i], d.type[i]));
        }
    for (int dual = 0; dual < 2; dual++)
        for (int i = nc; i < nc + ns && !g->st; i++)
            if (!dual || d.type[i]) {
                dc_push(g, &scanned,
                        dual ? dc_trips_first(g, t[i], gd_extra(t[i], node_in(w->n)[i])) : node_in(w->n)[i]);
                dc_push(g, &element, dual ? d.type[i] : w->in[i]);
            }
    for (int dual = 0; dual < 2; dual++)
        for (int i = nc; i < nc + nk && !g->st; i++)
            if (!dual || d.out[i])
                dc_push(g, &stacked, dual ? d.out[i] : w->outs[i]);
    if (!g->st) {
        dc_outside(w, (int)next.len, next.at);
        dc_outside(w, (int)stacked.len, stacked.at);
    }
    eas_node **made = dc_room(g, next.len + stacked.len, sizeof *made);
    eas_loop l = {(int)next.len,    init.at,    state.at,   next.at,          NULL,       w->c->length,
                  (int)scanned.len, scanned.at, element.at, (int)stacked.len, stacked.at, w->c->reverse};
    dc_loop(g, &l, w->c->conditional, made);
    if (!g->st) {
        int at = nc, behind = (int)next.len + nk;
        for (int i = 0; i < nc; i++)
            out[i] = d.type[i] ? made[at++] : NULL;
        for (int i = nc; i < nc + nk; i++)
            if (d.out[i]) {
                int e = gd_extra(d.out[i], w->outs[i]);
                out[i] = gd_rebatch(g, dc_trips_behind(g, made[behind++], e), e);
            }
    }
    free(made), free(d.type), free(d.out);
    vec_free(&init), vec_free(&state), vec_free(&next), vec_free(&scanned), vec_free(&element),
        vec_free(&stacked);
}

/* The derivative of a branch is a branch whose two sides each give values and tangents. */
static void branch_forth(work *w, eas_node *const *t, eas_node **out)
{
    gbuild *g = w->g;
    int n = w->c->fn[0].n, nin = w->c->nin;
    eas_node **dot[2] = {dc_room(g, (size_t)n, sizeof(eas_node *)),
                         dc_room(g, (size_t)n, sizeof(eas_node *))};
    eas_node **all[2] = {dc_room(g, 2 * (size_t)n, sizeof(eas_node *)),
                         dc_room(g, 2 * (size_t)n, sizeof(eas_node *))};
    eas_node **made = dc_room(g, 2 * (size_t)n, sizeof *made), **type = dc_room(g, (size_t)n, sizeof *type);
    for (int f = 0; f < 2 && !g->st; f++) {
        list vars = {0}, ts = {0};
        g->st = control_inputs(w->c, f, w->in);
        for (int i = 1; i < nin && !g->st; i++)
            if (w->in[i] && t[i]) {
                dc_push(g, &vars, w->in[i]);
                dc_push(g, &ts, t[i]);
            }
        dc_inside++;
        if (!g->st)
            g->st = eas_nodes_jvp((int)vars.len, vars.at, ts.at, n, w->c->fn[f].outs, g->lanes, dot[f]);
        dc_inside--;
        for (int i = 0; i < n && !g->st; i++)
            if (dot[f][i]) {
                dc_keep(g, node_ref(dot[f][i]));
                eas_node_release(dot[f][i]);
                dc_hold(g, &type[i], dot[f][i], w->c->fn[f].outs[i]);
            }
        vec_free(&vars);
        vec_free(&ts);
    }
    int count = n;
    node_open_branches(1);
    for (int f = 0; f < 2 && !g->st; f++) {
        count = n;
        for (int i = 0; i < n; i++)
            all[f][i] = w->c->fn[f].outs[i];
        for (int i = 0; i < n && !g->st; i++)
            if (type[i])
                all[f][count++] = dc_as_type(g, dot[f][i], type[i]);
        if (!g->st)
            g->st = control_inputs(w->c, f, w->in);
        if (!g->st)
            dc_outside(w, count, all[f]);
    }
    if (g->st)
        node_open_branches(-1);
    else
        g->st = eas_branch_end(node_in(w->n)[0], count, all[1], all[0], made);
    for (int i = 0; i < count && !g->st; i++) {
        dc_keep(g, node_ref(made[i]));
        eas_node_release(made[i]);
    }
    for (int i = 0, at = n; i < n && !g->st; i++)
        out[i] = type[i] ? made[at++] : NULL;
    free(dot[0]), free(dot[1]), free(all[0]), free(all[1]), free(made), free(type);
}

eas_status diff_control_forth(gbuild *g, eas_node *n, eas_node *const *t, eas_node **out)
{
    work w;
    if (dc_begin(&w, g, n)) {
        if (w.c->branch)
            branch_forth(&w, t, out);
        else
            loop_forth(&w, t, out);
    }
    dc_end(&w);
    return g->st;
}
