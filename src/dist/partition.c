/* partition.c: the recorded graph, which is global, as the graph of one device.
 *
 * Problem: each operation can run on parts of its inputs in several ways, and the layout that suits one
 * operation may not suit the next. All devices run the same local graph, so the choice must depend on the
 * graph alone.
 *
 * Idea: entries are the nodes that are needed, inputs before users, with composites replaced by their
 * expansions. Three walks over the entries:
 *
 *   forward     the layout of each entry if only its inputs had a say (assign.c: they vote by size)
 *   backward    the layout that the users of an entry would like, for entries that have none of their
 *               own: constants, index ranges, random numbers and values behind a constraint are then
 *               made in parts from the start instead of being made whole and cut
 *   forward     makes the local nodes (rules.c), and inserts conversions between the layout of an input
 *               and the one that the operation wants (reshard.c)
 *
 * Assumed: a layout is a property of a value, not of a use, so a value that two users want in two layouts is
 * converted at one of them; auto_inner.c tries to do better. What would break it: a rule that looks at
 * anything that differs between devices, since these would then wait for different collectives.
 */
#include "dist.h"

/* ---- entries ---- */

static uint32_t place_of(const partition *p, const eas_node *n)
{
    uint64_t h = (uint64_t)(uintptr_t)n * 0x9e3779b97f4a7c15u >> 24;
    while (p->table[h & (p->ntable - 1)] && p->at.at[p->table[h & (p->ntable - 1)] - 1].n != n)
        h++;
    return (uint32_t)(h & (p->ntable - 1));
}

pentry *partition_find(partition *p, const eas_node *n)
{
    uint32_t k = p->ntable ? p->table[place_of(p, n)] : 0;
    return k ? &p->at.at[k - 1] : NULL;
}

static bool grow(partition *p)
{
    uint32_t size = p->ntable ? p->ntable * 2 : 256, *old = p->table;
    uint32_t *t = calloc(size, sizeof *t);
    if (!t)
        return false;
    p->table = t;
    p->ntable = size;
    for (uint32_t i = 0; i < p->at.len; i++)
        t[place_of(p, p->at.at[i].n)] = i + 1;
    free(old);
    return true;
}

pentry *partition_add(partition *p, eas_node *n)
{
    pentry e = {.n = n, .same = UINT32_MAX, .v.at.rank = n->rank, .ahead.rank = n->rank};
    if ((p->at.len * 2 >= p->ntable && !grow(p)) || !vec_push(&p->at, e)) {
        p->g.st = base_fail_oom(sizeof e);
        return NULL;
    }
    p->table[place_of(p, n)] = p->at.len;
    return &p->at.at[p->at.len - 1];
}

eas_node *partition_keep(partition *p, eas_status st, eas_node *n)
{
    if (!st && !vec_push(&p->g.made, n)) {
        node_unref(n);
        st = base_fail_oom(sizeof n);
    }
    p->g.st = p->g.st ? p->g.st : st;
    return st ? NULL : n;
}

eas_node *partition_input(partition *p, eas_dtype dt, int rank, const eas_dim *shape)
{
    int64_t word = p->next_input++;
    eas_node *n = NULL;
    eas_status st = node_new(GRAPH_INPUT, dt, 0, rank, shape, 1, &word, 0, NULL, &n);
    if (!st)
        n->flags |= NODE_SYMBOLIC;
    return partition_keep(p, st, n);
}

eas_node *partition_number(partition *p, const eas_node *n, bool fixed)
{
    eas_node *own = NULL;
    eas_status st = node_new(GRAPH_CONST, (eas_dtype)n->dtype, 0, 0, NULL, 2, node_words(n), 0, NULL, &own);
    if (!st)
        own->flags |= (n->flags & (NODE_WEAK | NODE_FIXED)) | (fixed ? NODE_FIXED : 0);
    return partition_keep(p, st, own);
}

eas_node *partition_index(partition *p, const eas_dim_spec *axes)
{
    for (uint32_t i = 0; i < p->index.len; i++)
        if (spec_same_dim(&p->index.at[i].axes, axes))
            return p->index.at[i].n;
    pindex x = {*axes, partition_input(p, EAS_I64, 0, NULL)};
    if (x.n && !vec_push(&p->index, x))
        p->g.st = base_fail_oom(sizeof x);
    return p->g.st ? NULL : x.n;
}

void partition_free(partition *p)
{
    for (uint32_t i = 0; i < p->at.len; i++)
        free(p->at.at[i].results);
    for (uint32_t i = 0; i < p->g.made.len; i++)
        node_unref(p->g.made.at[i]);
    for (uint32_t i = p->opened.len; i-- > 0;)
        node_unref(p->opened.at[i]);
    vec_free(&p->g.made);
    vec_free(&p->at);
    vec_free(&p->opened);
    vec_free(&p->index);
    vec_free(&p->memo);
    vec_free(&p->mixes);
    vec_free(&p->roots);
    free(p->table);
}

/* ---- what is needed ---- */

typedef struct visit {
    eas_node *n, *opened; /* the expansion of a composite */
    int next;
} visit;

/* Composites that have a rule of their own here. */
static bool kept_whole(const eas_node *n) { return n->op == GRAPH_SHUFFLE_PHYSICAL || shift_is_roll(n); }
static bool just_another_name(const eas_node *n)
{
    return node_kind(n) == KIND_ALIAS && n->op != GRAPH_SHARD;
}

/* Lies as another tensor of the mesh does. */
static bool lies_like(const eas_node *n) { return n->op == GRAPH_SHARD && n->nin > 1 && !dist_foreign(n, 1); }
static int children(const visit *v)
{
    if (node_real(v->n))
        return 0;
    return v->opened || just_another_name(v->n) || (v->n->op == GRAPH_SHARD && !lies_like(v->n)) ? 1
                                                                                                 : v->n->nin;
}

/* The node that a barrier waits for. Views of it are skipped: the barrier may wait for any element, and
 * none has to be fetched from another device. */
const eas_node *barrier_source(const eas_node *n)
{
    const eas_node *t = node_in(n)[1];
    while (!node_real(t) &&
           (node_kind(t) == KIND_SLICE || node_kind(t) == KIND_RESHAPE || just_another_name(t)) &&
           node_kind(t) != KIND_RESULT)
        t = node_in(t)[0];
    return t;
}

static eas_node *child(const visit *v, int i)
{
    int index;
    if (!v->opened && v->n->op == GRAPH_BARRIER && i == 1)
        return (eas_node *)(uintptr_t)barrier_source(v->n);
    return v->opened                      ? v->opened
         : node_kind(v->n) == KIND_RESULT ? control_source(v->n, &index)
                                          : node_in(v->n)[i];
}

static eas_status open_composite(partition *p, visit *v)
{
    eas_node *n = v->n;
    if (node_real(n) || node_kind(n) != KIND_COMPOSITE || kept_whole(n))
        return EAS_OK;
    node_expanding = true;
    eas_site_set(n->site);
    eas_status st = graph_rows[n->op].expand(n, node_in(n), &v->opened);
    eas_site_set(0);
    node_expanding = false;
    if (!st && !vec_push(&p->opened, v->opened)) {
        node_unref(v->opened);
        st = base_fail_oom(sizeof v->opened);
    }
    return st;
}

static eas_status enter(partition *p, const visit *v)
{
    eas_node *n = v->n;
    if (n->op == GRAPH_INPUT || node_real(n))
        return base_fail(EAS_ERR_RUNTIME, "eager: data of %s that no leaf of the program has",
                         graph_rows[n->op].name);
    uint32_t same = v->opened || just_another_name(n) ? (uint32_t)(partition_find(p, child(v, 0)) - p->at.at)
                                                      : UINT32_MAX;
    pentry *e = partition_add(p, n);
    if (!e)
        return p->g.st;
    e->same = same;
    if (n->op == GRAPH_CONST)
        e->v.n = partition_number(p, n, false);
    return p->g.st;
}

static void note_roots(partition *p, int n, eas_node *const *roots)
{
    for (int i = 0; i < n && !p->g.st; i++)
        if (!vec_push(&p->roots, roots[i]))
            p->g.st = base_fail_oom(sizeof *roots);
}

eas_status partition_collect(partition *p, int n, eas_node *const *roots)
{
    note_roots(p, n, roots);
    VEC(visit) stack = {0};
    for (int i = 0; i < n && !p->g.st; i++) {
        if (!partition_find(p, roots[i]) && !vec_push(&stack, ((visit){.n = roots[i]})))
            p->g.st = base_fail_oom(0);
        while (stack.len && !p->g.st) {
            visit *v = &stack.at[stack.len - 1];
            if (v->next == 0 && !v->opened)
                p->g.st = partition_find(p, v->n) ? EAS_OK : open_composite(p, v);
            if (p->g.st)
                break;
            if (!partition_find(p, v->n) && v->next < children(v)) {
                eas_node *next = child(v, v->next++);
                if (!partition_find(p, next) && !vec_push(&stack, ((visit){.n = next})))
                    p->g.st = base_fail_oom(0);
                continue;
            }
            if (!partition_find(p, v->n))
                p->g.st = enter(p, v);
            stack.len--;
        }
    }
    vec_free(&stack);
    return p->g.st;
}

/* ---- the mesh ---- */

static eas_status meet(const dist_mesh *found, const dist_mesh **m)
{
    if (*m && found && found != *m)
        return base_fail(
            EAS_ERR_VALUE,
            "eager: one tensor lies on mesh '%s', and another on mesh '%s'; gather one, or reshard it onto the other mesh",
            (*m)->name, found->name);
    if (found)
        *m = found;
    return EAS_OK;
}

const dist_mesh *node_own_mesh(const eas_node *n)
{
    const dist_parts *parts = node_real(n) ? parts_of(n) : NULL;
    if (node_real(n))
        return parts ? parts->mesh : NULL;
    if (n->op == GRAPH_SHARD)
        return dist_mesh_at((int)(node_words(n)[SHARD_MESH] & 0xffff));
    return n->op == GRAPH_INPUT && n->nwords > 1 ? dist_mesh_at((int)(node_words(n)[1 + SHARD_MESH] & 0xffff))
                                                 : NULL;
}

static eas_status mesh_below(diff_set *seen, gbuild *g, int n, eas_node *const *nodes, const dist_mesh **m)
{
    VEC(eas_node *) stack = {0};
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++)
        if (!vec_push(&stack, nodes[i]))
            st = base_fail_oom(0);
    while (stack.len && !st) {
        eas_node *x = stack.at[--stack.len];
        if (!(x->flags & NODE_SHARDED) || diff_set_has(seen, x))
            continue;
        diff_set_add(g, seen, x);
        st = g->st ? g->st : meet(node_own_mesh(x), m);
        if (node_real(x))
            continue;
        for (int i = 0; i < x->nin && !st; i++) {
            int index;
            eas_node *in = node_kind(x) == KIND_RESULT ? control_source(x, &index) : node_in(x)[i];
            if (!dist_foreign(x, i) && !vec_push(&stack, in))
                st = base_fail_oom(0);
        }
        const graph_control *c = x->extra ? x->extra->control : NULL;
        for (int k = 0; c && k < (c->branch ? 2 : 1) && !st; k++)
            st = mesh_below(seen, g, c->fn[k].n, c->fn[k].outs, m);
    }
    vec_free(&stack);
    return st;
}

eas_status partition_mesh(int n, eas_node *const *nodes, const dist_mesh **m)
{
    diff_set seen = {0};
    gbuild g = {0};
    eas_status st = mesh_below(&seen, &g, n, nodes, m);
    free(seen.at);
    return st;
}

/* ---- forward and backward ---- */

/* The layout of `other` for the last dims of n, and that of the input for the dims in front of them. */
void spec_like(const eas_node *n, const eas_spec *in, const eas_node *other, const eas_spec *like,
               eas_spec *out)
{
    int extra = n->rank - other->rank;
    uint32_t used = 0;
    *out = (eas_spec){.rank = n->rank};
    for (int d = 0; d < other->rank; d++)
        if (node_shape(other)[d] == node_shape(n)[d + extra] && !like->dims[d].priority)
            out->dims[d + extra] = like->dims[d];
    used = spec_cut(out);
    for (int d = 0; d < extra; d++)
        for (int i = 0; i < in->dims[d].n && !in->dims[d].priority && !(used >> in->dims[d].axes[i] & 1); i++)
            out->dims[d].axes[out->dims[d].n++] = in->dims[d].axes[i];
    for (int d = 0; d < out->rank; d++)
        out->dims[d].open = 0;
}

static void target_of(const eas_node *n, const eas_spec *in, eas_spec *out)
{
    spec_of_words(n->rank, node_words(n), out);
    uint32_t used = spec_cut(out) | out->replicated;
    for (int d = 0; d < n->rank; d++)
        for (int i = 0; out->dims[d].open && i < in->dims[d].n; i++) {
            int a = in->dims[d].axes[i];
            if (used >> a & 1)
                break;
            bool has = false;
            for (int k = 0; k < out->dims[d].n; k++)
                has |= out->dims[d].axes[k] == a;
            if (has || out->dims[d].n != i)
                continue;
            out->dims[d].axes[out->dims[d].n++] = (uint8_t)a;
            used |= 1u << a;
        }
}

static const eas_spec *spec_ahead(partition *p, const eas_node *n) { return &partition_find(p, n)->ahead; }

static bool opaque(const eas_node *n)
{
    graph_kind k = node_kind(n);
    return k == KIND_CALL || k == KIND_CONTROL || k == KIND_RESULT;
}

static eas_status assign_ahead(partition *p, const pentry *e, const eas_spec *want, assigned *a)
{
    const eas_spec **in = malloc(sizeof *in * ((size_t)e->n->nin + 1));
    eas_status st = in ? EAS_OK : base_fail_oom(e->n->nin);
    for (int i = 0; i < e->n->nin && !st; i++)
        in[i] = spec_ahead(p, node_in(e->n)[i]);
    if (!st)
        st = assign_factors(p, e->n, in, want, a);
    free(in);
    return st;
}

static bool any_cut(partition *p, const eas_node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (!spec_plain(spec_ahead(p, node_in(n)[i])))
            return true;
    return false;
}

/* A carried result of a loop has the layout of the value it starts from. */
static void result_ahead(partition *p, pentry *e)
{
    int index;
    const eas_node *from = control_source(e->n, &index);
    const graph_control *c = from->extra ? from->extra->control : NULL;
    const pentry *f = partition_find(p, from);
    if (node_kind(from) == KIND_CALL && f && f->results) {
        e->ahead = f->results[index].at;
        return;
    }
    if (c && !c->branch && index < c->ncarried)
        e->ahead = *spec_ahead(p, node_in(from)[index]);
    e->ahead.partial = 0;
}

void partition_pin(partition *p, const pins *chosen)
{
    for (uint32_t i = 0; chosen && i < chosen->len; i++) {
        pentry *e = partition_find(p, chosen->at[i].n);
        if (e && !e->v.n)
            e->pinned = &chosen->at[i];
    }
}

static void follow_inputs(partition *p, pentry *e)
{
    assigned a;
    if (e->v.n)
        e->ahead = e->v.at;
    else if (e->same != UINT32_MAX)
        e->ahead = p->at.at[e->same].ahead;
    else if (e->n->op == GRAPH_BARRIER)
        e->ahead = *spec_ahead(p, node_in(e->n)[0]);
    else if (e->n->op == GRAPH_SHARD && e->n->nin > 1 && !lies_like(e->n))
        e->ahead = (eas_spec){.rank = e->n->rank};
    else if (e->n->op == GRAPH_SHARD && e->n->nin > 1)
        spec_like(e->n, spec_ahead(p, node_in(e->n)[0]), node_in(e->n)[1], spec_ahead(p, node_in(e->n)[1]),
                  &e->ahead);
    else if (e->n->op == GRAPH_SHARD)
        target_of(e->n, spec_ahead(p, node_in(e->n)[0]), &e->ahead);
    else if (node_kind(e->n) == KIND_RESULT)
        result_ahead(p, e);
    else if (node_kind(e->n) == KIND_CALL)
        call_ahead(p, e);
    else if (shift_is(e->n) && any_cut(p, e->n))
        shift_ahead(p, e);
    else if (!opaque(e->n) && any_cut(p, e->n) && !place_ahead(p, e) && !p->g.st) {
        p->g.st = assign_ahead(p, e, NULL, &a);
        if (p->g.st)
            return;
        assign_spec(&a, a.r->nin, &e->ahead);
        e->ahead.partial = a.carried;
        for (int f = 0; f < a.r->nfactors; f++)
            for (int i = 0; a.r->factors[f].kind == EAS_FACTOR_SUM && i < a.of[f].n; i++)
                e->ahead.partial |= 1u << a.of[f].axes[i];
        assign_free(&a);
    }
}

static void forward(partition *p, pentry *e)
{
    follow_inputs(p, e);
    if (e->pinned) {
        e->ahead = e->want = e->pinned->at;
        e->has_want = true;
    }
}

static void wish(pentry *to, const eas_spec *s)
{
    if (to->has_want || to->v.n || !spec_plain(&to->ahead) || !spec_cut(s))
        return;
    to->want = mix_none(s);
    to->want.partial = 0;
    to->has_want = true;
}

static void backward(partition *p, pentry *e)
{
    assigned a;
    eas_spec s;
    if (e->v.n)
        return;
    if (e->same != UINT32_MAX) {
        if (e->has_want)
            wish(&p->at.at[e->same], &e->want);
        return;
    }
    if (e->n->op == GRAPH_SHARD) {
        wish(partition_find(p, node_in(e->n)[0]), &e->ahead);
        return;
    }
    if (e->n->op == GRAPH_BARRIER) {
        if (e->has_want)
            wish(partition_find(p, node_in(e->n)[0]), &e->want);
        return;
    }
    if (opaque(e->n) || (!e->has_want && spec_plain(&e->ahead)))
        return;
    p->g.st = assign_ahead(p, e, e->has_want ? &e->want : NULL, &a);
    if (p->g.st)
        return;
    for (int i = 0; i < e->n->nin; i++) {
        assign_spec(&a, i, &s);
        wish(partition_find(p, node_in(e->n)[i]), &s);
    }
    assign_free(&a);
}

/* A root that was not computed from anything sharded becomes an ordinary tensor, whatever layout its users
 * prefer. */
static void keep_whole_roots(partition *p)
{
    for (uint32_t i = 0; i < p->roots.len && !p->around && !p->any_layout; i++) {
        pentry *e = partition_find(p, p->roots.at[i]);
        if (e->n->flags & NODE_SHARDED || e->has_want)
            continue;
        e->has_want = true;
        e->want = (eas_spec){.rank = e->n->rank};
    }
}

eas_status partition_run(partition *p)
{
    for (uint32_t i = 0; i < p->at.len && !p->g.st; i++)
        forward(p, &p->at.at[i]);
    keep_whole_roots(p);
    for (uint32_t i = p->at.len; i-- > 0 && !p->g.st;)
        backward(p, &p->at.at[i]);
    if (!p->g.st)
        shift_mark(p, (int)p->roots.len, p->roots.at);
    for (uint32_t i = 0; i < p->at.len && !p->g.st; i++) {
        pentry *e = &p->at.at[i];
        if (e->v.n || e->late)
            continue;
        p->now = e->n;
        eas_site_set(e->n->site);
        if (e->same != UINT32_MAX) {
            e->v = p->at.at[e->same].v;
            e->rest = p->at.at[e->same].rest;
        } else
            partition_node(p, e);
        if (e->pinned && !p->g.st)
            partition_keep_pin(p, e);
        eas_site_set(0);
        p->now = NULL;
    }
    return p->g.st;
}

/* Reduces and adds a postponed partial sum. */
pvalue *partition_value(partition *p, const eas_node *n)
{
    pentry *e = partition_find(p, n);
    if (e->rest.n) {
        eas_spec whole = e->v.at;
        eas_node *r =
            reshard(p, &e->rest, &whole, n->rank, node_shape(n), "sums of one value are reduced together");
        e->rest.n = NULL;
        e->v.n = gd2(&p->g, GRAPH_ADD, e->v.n, r);
    }
    return &e->v;
}
