/* fuse.c: which nodes share a kernel.
 *
 * Problem: a node that is computed where it is used needs no memory, but a kernel can only iterate over one
 * space, and what several kernels compute is computed several times.
 *
 * Idea: one walk from results to inputs (nodes are in topological order, so all users of a node are settled
 * before it). Each node is put in one of three places: in the one group that uses it, if it can be computed
 * there; in each of several groups, if that costs next to nothing (fuse_cost.c); else it gets memory and a
 * group of its own. A group iterates over a space. Each member knows how its dims lie in the space
 * (place.map) as long as that is a selection of dims; a member that is read through a slice, a pad or data is
 * read "at indices of its own" (index.c). A reduction joins if its axes are exactly the dims of the space
 * that its users broadcast over (softmax, layer norm), or if its users do not see the axes at all (what
 * follows a sum: the axes become new inner dims of the space). Matrix products and scans become the core of
 * the group of what follows them element by element. Afterwards merge.c joins groups that can run as one
 * kernel.
 *
 * Assumed: decisions are never revised, so each may use only what users have said (place.many, map, ways). A
 * node must be settled after all of its users: a pass that breaks the order of the list breaks this walk. A
 * group that turns out too large for a kernel is not repaired here; the plan fuses again with cuts (cut.c).
 */
#include "exec.h"

enum { ROW_MAX = 1 << 15, CONCAT_MAX = 4 };

eas_dim shape_count(int rank, const eas_dim *shape) { return dim_product(rank, shape); }

/* ---- groups ---- */

static uint32_t open_group(fusion *f, group_kind kind, uint32_t core, int rank, const eas_dim *space)
{
    group g = {.kind = kind, .core = core, .rank = rank};
    memcpy(g.space, space, sizeof *space * (size_t)rank);
    const bool ok = vec_push(&f->groups, g);
    f->oom |= !ok;
    return ok ? f->groups.len - 1 : 0;
}

static void identity(place *q, int rank)
{
    q->simple = true;
    q->many = false;
    for (int k = 0; k < rank; k++)
        q->map[k] = (int8_t)k;
}

static int axis_count(const pnode *p) { return p->kind == KIND_REDUCE ? p->nwords - 1 : 1; }
bool fold_axis(const pnode *p, int d)
{
    for (int i = 0; i < axis_count(p); i++)
        if (p->words[1 + i] == d)
            return true;
    return false;
}

/* The dim of the result that corresponds to the unreduced dim d of the input. */
int fold_kept(const pnode *p, int d)
{
    int skipped = 0;
    if (p->words[0])
        return d;
    for (int i = 0; i < d; i++)
        skipped += fold_axis(p, i);
    return d - skipped;
}

static void join_fold(fusion *f, uint32_t i, group *g)
{
    f->oom |= !vec_push(&g->folds, i);
    g->size++;
}

/* A reduction with a group of its own: it iterates over the input. */
static void root_fold(fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i), *x = pass_at(f->g, p->in[0]);
    uint32_t id = open_group(f, GROUP_MAP, 0, x->rank, x->shape);
    group *g = &f->groups.at[id];
    place *q = &f->at[i];
    int8_t map[GRAPH_MAX_RANK];
    q->group = id;
    q->simple = true;
    q->many = false;
    for (int k = 0; k < p->rank; k++)
        q->map[k] = -1;
    for (int d = 0; d < x->rank; d++) {
        map[d] = (int8_t)d;
        if (fold_axis(p, d))
            g->inner |= 1u << d;
        else
            q->map[fold_kept(p, d)] = (int8_t)d;
    }
    join_fold(f, i, g);
    fuse_push(f, p->in[0], id, map, false);
}

static bool inlinable(const pnode *p)
{
    switch (p->kind) {
    case KIND_MAP:
    case KIND_CAST:
    case KIND_RESHAPE:
    case KIND_PERMUTE:
    case KIND_BROADCAST:
    case KIND_SLICE:
    case KIND_PAD:
    case KIND_UPDATE:
    case KIND_WINDOW:
    case KIND_IOTA:
    case KIND_RANDOM:
    case KIND_GATHER:
    case KIND_ALONG:
    case KIND_ALIAS: return true;
    case KIND_CONCAT: return p->nin <= CONCAT_MAX;
    default: return false;
    }
}

/* Does every dim of the space that programs are spread over reach p? If not, p would be computed again for
 * each index of the missing one. */
static bool covers(const group *g, const pnode *p, const place *q)
{
    uint32_t seen = g->inner;
    for (int k = 0; k < p->rank; k++)
        if (q->map[k] >= 0)
            seen |= 1u << q->map[k];
    for (int d = 0; d < g->rank; d++)
        if (!(seen >> d & 1) && g->space[d] != 1)
            return false;
    return true;
}

/* ---- reductions that join a group ---- */

static bool row_fits(const group *g, uint32_t inner)
{
    eas_dim n = 1, rest = 1;
    for (int d = 0; d < g->rank; d++) {
        if (!dim_known(g->space[d]))
            return true;
        if (inner >> d & 1)
            n *= g->space[d];
        else
            rest *= g->space[d];
    }
    return n <= ROW_MAX || rest >= 64;
}

/* May the reduction p join group g as "reduce a row, then use the result in that row" (softmax)? The users of
 * p lie in the space with p's dims at q->map; the dims of the space that p does not have are those that its
 * result is broadcast over. The axes of p must be exactly these dims, in the same order and of the same size.
 * *inner: these dims as bits; map: how the input of p lies in the space. Dims of size 1 match anything. */
static bool match_inner(const pgraph *pg, const group *g, const pnode *p, const place *q, uint32_t *inner,
                        int8_t *map)
{
    const pnode *x = pass_at(pg, p->in[0]);
    uint32_t seen = 0;
    int next = 0;
    for (int k = 0; k < p->rank; k++)
        if (q->map[k] >= 0)
            seen |= 1u << q->map[k];
    *inner = 0;
    for (int d = 0; d < x->rank; d++) {
        if (!fold_axis(p, d)) {
            map[d] = q->map[fold_kept(p, d)];
            if (map[d] < 0 && x->shape[d] != 1)
                return false;
            continue;
        }
        while (next < g->rank && ((seen >> next & 1) || g->space[next] == 1))
            next++;
        if (next == g->rank || g->space[next] != x->shape[d])
            return false;
        *inner |= 1u << next;
        map[d] = (int8_t)next++;
    }
    while (next < g->rank && ((seen >> next & 1) || g->space[next] == 1))
        next++;
    return next == g->rank;
}

/* Is node i computed from a reduction over exactly the dims along which i is broadcast? Then the reduction
 * will join the group, and i is computed once per row. */
static bool follows_fold(const fusion *f, const group *g, uint32_t i, const int8_t *map, int depth)
{
    const pnode *p = pass_at(f->g, i);
    if (g->kind != GROUP_MAP || depth == 0)
        return false;
    if (p->kind == KIND_REDUCE || p->kind == KIND_ARG) {
        uint32_t inner;
        int8_t to[GRAPH_MAX_RANK];
        place q = {.simple = true};
        memcpy(q.map, map, p->rank);
        return match_inner(f->g, g, p, &q, &inner, to) && (!g->inner || g->inner == inner) &&
               row_fits(g, inner);
    }
    for (int k = 0; k < p->nin; k++) {
        int8_t to[GRAPH_MAX_RANK];
        if (f->at[p->in[k]].heavy && map_input(f->g, p, k, map, to) &&
            follows_fold(f, g, p->in[k], to, depth - 1))
            return true;
    }
    return false;
}

/* Is p as large as one of the inputs of the concatenation? Then each of its elements is computed once. */
static bool part_of_concat(const fusion *f, const pnode *p, const group *g)
{
    const pnode *core = pass_at(f->g, g->core);
    const eas_dim mine = shape_count(p->rank, p->shape);
    for (int k = 0; k < core->nin; k++)
        if (shape_count(pass_at(f->g, core->in[k])->rank, pass_at(f->g, core->in[k])->shape) == mine)
            return p->kind == KIND_MAP || p->kind == KIND_CAST;
    return false;
}

static bool cheap_here(const fusion *f, uint32_t i, const group *g)
{
    const pnode *p = pass_at(f->g, i);
    const place *q = &f->at[i];
    if (g->kind == GROUP_CALL)
        return false;
    /* a border that many shifted reads test for is copied instead */
    if (q->cost <= FUSE_CHEAP && !(p->kind == KIND_PAD && q->nways > PLACE_WAYS))
        return true;
    if (g->kind == GROUP_SCATTER || g->kind == GROUP_SORT || g->kind == GROUP_COMPACT ||
        q->nways > PLACE_WAYS)
        return false;
    if (g->kind == GROUP_CONCAT)
        return part_of_concat(f, p, g);
    if (q->simple)
        return covers(g, p, q) || follows_fold(f, g, i, q->map, 12);
    if (g->kind == GROUP_MATMUL)
        return false;
    /* read through something that is not simple: as long as no element is computed more than once */
    eas_dim mine = shape_count(p->rank, p->shape), all = shape_count(g->rank, g->space);
    return dim_known(mine) && dim_known(all) ? all <= mine : mine == all;
}

/* No member of the group has the reduced axes: they become new inner dims of the space. */
static bool append_inner(const pgraph *pg, group *g, const pnode *p, const place *q, int8_t *map)
{
    const pnode *x = pass_at(pg, p->in[0]);
    if (g->inner || !covers(g, p, q) || g->rank + axis_count(p) > GRAPH_MAX_RANK)
        return false;
    for (int d = 0; d < x->rank; d++) {
        if (fold_axis(p, d)) {
            g->inner |= 1u << g->rank;
            map[d] = (int8_t)g->rank;
            g->space[g->rank++] = x->shape[d];
        } else {
            map[d] = q->map[fold_kept(p, d)];
        }
    }
    return true;
}

/* Puts the reduction i into the group of its only user, in one of two ways: its axes are the dims that the
 * user broadcasts over (match_inner), or no member of the group has its axes yet (append_inner). A group has
 * one set of inner dims, so a reduction along others is refused. */
static bool try_fold(fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i);
    place *q = &f->at[i];
    group *g = &f->groups.at[q->group];
    uint32_t inner;
    int8_t map[GRAPH_MAX_RANK];
    if (q->many || !q->simple || g->kind != GROUP_MAP || g->size >= f->limit)
        return false;
    if (match_inner(f->g, g, p, q, &inner, map)) {
        if ((g->inner && g->inner != inner) || !row_fits(g, inner))
            return false;
        g->inner = inner;
    } else if (!append_inner(f->g, g, p, q, map)) {
        return false;
    }
    join_fold(f, i, g);
    fuse_push(f, p->in[0], q->group, map, false);
    return true;
}

/* ---- matrix products and scans with what follows them ---- */

/* Does the group iterate over just p's elements, in their order, so that p may be the product or scan that it
 * is built around? */
static bool takes_core(const fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i);
    const place *q = &f->at[i];
    const group *g = &f->groups.at[q->group];
    if (q->many || !q->simple || g->kind != GROUP_MAP || g->inner || g->rank != p->rank ||
        g->size >= f->limit)
        return false;
    for (int k = 0; k < p->rank; k++)
        if (g->space[k] != p->shape[k] || (q->map[k] != k && !(q->map[k] == -1 && g->space[k] == 1)))
            return false;
    return true;
}

static bool try_core(fusion *f, uint32_t i, group_kind kind)
{
    const pnode *p = pass_at(f->g, i);
    group *g = &f->groups.at[f->at[i].group];
    if (!takes_core(f, i))
        return false;
    g->kind = kind;
    g->core = i;
    if (kind == GROUP_SCAN)
        g->inner = 1u << p->words[0];
    g->size++;
    return true;
}

/* Does x depend on core? */
bool reaches(const fusion *f, uint32_t x, uint32_t core, int depth)
{
    const pnode *p = pass_at(f->g, x);
    if (x == core)
        return true;
    if (x < core || depth == 0 || !f->at[x].heavy)
        return false;
    for (int k = 0; k < p->nin; k++)
        if (reaches(f, p->in[k], core, depth - 1))
            return true;
    return false;
}

/* A product reads the windows that x joins to a matrix where they lie, as often as they overlap: the image
 * has memory, they have none. */
static void read_in_place(fusion *f, uint32_t x)
{
    const uint32_t windows = pass_at(f->g, x)->in[0], image = pass_at(f->g, windows)->in[0];
    f->at[x].rows = f->at[windows].rows = true;
    f->at[image].root |= pass_at(f->g, image)->kind != KIND_LEAF;
}

/* The operands of a core are read at indices of its own; of a scan at the group's. */
static void push_core(fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i);
    place *q = &f->at[i];
    if (p->kind == KIND_MATMUL && conv_wanted(f->g, p))
        read_in_place(f, p->in[0]);
    else if (p->kind == KIND_MATMUL && conv_gradient_wanted(f->g, p)) {
        f->at[p->in[0]].rows = true;
        read_in_place(f, pass_at(f->g, p->in[0])->in[0]);
    }
    for (int k = 0; k < p->nin; k++) {
        if ((p->kind == KIND_CALL || p->kind == KIND_CONTROL || p->kind == KIND_COLLECTIVE ||
             sort_by_host(f, p)) &&
            pass_at(f->g, p->in[k])->kind != KIND_CONST)
            f->at[p->in[k]].root = true; /* it is read from memory, whoever else uses it */
        fuse_push(f, p->in[k], q->group, p->kind == KIND_SCAN && k == 0 && !p->words[1] ? q->map : NULL,
                  false);
    }
}

/* softmax(scores) @ v: the nodes between are this group's own affair; what the scores are computed from, but
 * for their product, is read at indices. */
static void take_scores(fusion *f, uint32_t i, uint32_t core, uint32_t grp, int depth)
{
    const pnode *p = pass_at(f->g, i);
    place *q = &f->at[i];
    if (q->taken)
        return;
    q->taken = q->used = true;
    q->group = grp;
    q->many = q->simple = false;
    for (int k = 0; k < p->nin; k++) {
        uint32_t x = p->in[k];
        if (i == core)
            fuse_push(f, x, grp, NULL, false);
        else if (x == core || (f->at[x].heavy && depth > 0 && reaches(f, x, core, depth)))
            take_scores(f, x, core, grp, depth - 1);
        else
            fuse_push(f, x, grp, NULL, false);
    }
}

static void add_root(fusion *f, uint32_t i, uint32_t value)
{
    f->oom |= !vec_push(&f->groups.at[f->at[i].group].roots, ((group_root){i, value}));
}

static void take_root(fusion *f, uint32_t i, uint32_t grp)
{
    place *q = &f->at[i];
    q->taken = q->used = q->stored = true;
    q->group = grp;
    identity(q, pass_at(f->g, i)->rank);
    add_root(f, i, i);
}

/* Maxima and sums of the rows of a softmax that derivatives compute again. */
static void store_rows(fusion *f, uint32_t weights, uint32_t grp)
{
    const pnode *w = pass_at(f->g, weights);
    const uint32_t sum = pass_at(f->g, w->in[1])->in[0], diff = pass_at(f->g, w->in[0])->in[0];
    take_root(f, pass_at(f->g, diff)->in[1], grp);
    take_root(f, sum, grp);
}

typedef struct read_into {
    fusion *f;
    uint32_t grp;
} read_into;
static void push_read(void *ctx, uint32_t node)
{
    const read_into *r = ctx;
    fuse_push(r->f, node, r->grp, NULL, false);
}

static void open_back(fusion *f, uint32_t k)
{
    const back *b = &f->backs.at[k];
    const pnode *s = pass_at(f->g, b->scores);
    const uint32_t id = open_group(f, GROUP_ATTENTION_BACK, b->root[0], s->rank, s->shape);
    if (!id)
        return;
    f->groups.at[id].back = k;
    f->groups.at[id].size = f->limit; /* full: no other node can join */
    for (int i = 0; i < b->n; i++)
        take_root(f, b->root[i], id);
    back_reads(f, b, push_read, &(read_into){f, id});
}

static void try_attention(fusion *f, uint32_t i)
{
    uint32_t scores, core, id = f->at[i].group;
    if (!match_attention(f, i, f->uses, &scores, &core)) {
        push_core(f, i);
        return;
    }
    const uint32_t weights = pass_at(f->g, i)->in[0];
    group *g = &f->groups.at[id];
    g->kind = GROUP_ATTENTION;
    g->scores = scores;
    g->inner_core = core;
    if (f->at[weights].shared)
        store_rows(f, weights, id);
    take_scores(f, scores, core, id, 10);
    fuse_push(f, pass_at(f->g, i)->in[1], id, NULL, false);
}

static group_kind core_kind(const pgraph *g, const pnode *p)
{
    switch (p->kind) {
    case KIND_MATMUL: return GROUP_MATMUL;
    case KIND_SCAN: return GROUP_SCAN;
    case KIND_SCATTER: return GROUP_SCATTER;
    case KIND_SORT: return GROUP_SORT;
    case KIND_COMPACT: return GROUP_COMPACT;
    case KIND_CALL:
    case KIND_COLLECTIVE:
    case KIND_CONTROL: return GROUP_CALL;
    case KIND_RESULT: return GROUP_ALIAS;
    case KIND_CONCAT: return p->nin > CONCAT_MAX || concat_copies(g, p) ? GROUP_CONCAT : GROUP_MAP;
    default: return GROUP_MAP;
    }
}

/* Gives node i memory and a group of its own. */
static void root_group(fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i);
    place *q = &f->at[i];
    group_kind kind = core_kind(f->g, p);
    q->stored = true;
    q->used = true;
    if (p->kind == KIND_REDUCE || p->kind == KIND_ARG) {
        root_fold(f, i);
        add_root(f, i, i);
        return;
    }
    if (p->kind == KIND_RESHAPE) { /* the same memory in order: iterate over what is reshaped */
        const pnode *x = pass_at(f->g, p->in[0]);
        q->group = open_group(f, GROUP_MAP, 0, x->rank, x->shape);
        int8_t map[GRAPH_MAX_RANK];
        for (int k = 0; k < x->rank; k++)
            map[k] = (int8_t)k;
        q->simple = false;
        add_root(f, i, p->in[0]);
        fuse_push(f, p->in[0], q->group, map, false);
        return;
    }
    q->group = open_group(f, kind, kind == GROUP_MAP ? 0 : i, p->rank, p->shape);
    if (!q->group)
        return;
    identity(q, p->rank);
    f->groups.at[q->group].size = 1;
    if (kind == GROUP_SCAN)
        f->groups.at[q->group].inner = 1u << p->words[0];
    add_root(f, i, i);
    if (kind == GROUP_MAP)
        fuse_push_inputs(f, i);
    else if (kind == GROUP_MATMUL)
        try_attention(f, i);
    else
        push_core(f, i);
}

/* May the result i be stored by the group that uses it? Yes if only that group uses it, at the group's own
 * index, and the group computes each of its elements once. */
static bool may_ride(const fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i);
    const place *q = &f->at[i];
    const group *g = &f->groups.at[q->group];
    if (!q->used || q->many || !q->simple || g->kind != GROUP_MAP || !inlinable(p) || g->size >= f->limit ||
        !covers(g, p, q))
        return false;
    uint32_t seen = 0, whole = 0;
    for (int k = 0; k < p->rank; k++)
        if (q->map[k] >= 0)
            seen |= 1u << q->map[k];
    for (int d = 0; d < g->rank; d++)
        whole |= (g->space[d] != 1 ? 1u : 0u) << d;
    seen &= whole;
    return seen == whole || (g->inner && seen == (whole & ~g->inner));
}

/* Is p element-wise in a tensor of its own shape? Then an index that is bad for p is bad for that tensor,
 * where the access finds it. */
static bool by_elements(const pgraph *g, const pnode *p)
{
    bool any = false;
    if (p->kind != KIND_MAP && p->kind != KIND_CAST)
        return false;
    for (int k = 0; k < p->nin; k++) {
        const pnode *x = pass_at(g, p->in[k]);
        any |= x->kind != KIND_CONST && x->rank == p->rank &&
               !memcmp(x->shape, p->shape, sizeof *x->shape * x->rank);
    }
    return any;
}

/* Decides where node i is computed; all of its users have been settled. In this order: a result of the
 * program is stored, by the group that uses it if possible (may_ride); a reduction, product or scan joins its
 * user's group or gets one of its own; any other node is computed where it is used if it is cheap in every
 * group that does, or if it has one user and each of its elements is needed once. Whatever cannot join is
 * stored (root_group). */
static void settle(fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i);
    place *q = &f->at[i];
    if (q->taken)
        return;
    if (q->root) {
        if (cut_of(f, i) & CUT_APART || !may_ride(f, i)) {
            root_group(f, i);
            return;
        }
        q->stored = true;
        add_root(f, i, i);
        f->groups.at[q->group].size++;
        fuse_push_inputs(f, i);
        return;
    }
    group *g = q->many ? NULL : &f->groups.at[q->group];
    if (p->kind == KIND_REDUCE || p->kind == KIND_ARG) {
        if (!try_fold(f, i))
            root_group(f, i);
        return;
    }
    if (p->kind == KIND_MATMUL || p->kind == KIND_SCAN) {
        if (try_core(f, i, core_kind(f->g, p))) {
            if (p->kind == KIND_MATMUL)
                try_attention(f, i);
            else
                push_core(f, i);
        } else
            root_group(f, i);
        return;
    }
    bool here =
        inlinable(p) && (!q->whole || by_elements(f->g, p)) &&
        (q->many ? (q->cost <= FUSE_CHEAP && q->len < FUSE_LONG && !fuse_kept(q)) ||
                       (q->rows && p->kind == KIND_WINDOW)
                 : g->size < f->limit && (cheap_here(f, i, g) || (q->rows && g->kind == GROUP_MATMUL)));
    /* If the user's group cannot take the product as its core, the product needs memory. Then the
     * element-wise nodes after the product are computed in the product's kernel, and their result is stored
     * in place of the product: no kernel of their own is needed. */
    here &= !(q->tail && p->kind != KIND_RESHAPE && !takes_core(f, i));
    if (!here) {
        root_group(f, i);
        return;
    }
    if (g)
        g->size++;
    fuse_push_inputs(f, i);
}

/* Reductions were found from results to inputs; kernels compute them from inputs to results. */
static void order_folds(fusion *f)
{
    for (uint32_t i = 1; i < f->groups.len; i++) {
        group *g = &f->groups.at[i];
        for (uint32_t a = 0, b = g->folds.len; a + 1 < b; a++, b--) {
            uint32_t t = g->folds.at[a];
            g->folds.at[a] = g->folds.at[b - 1];
            g->folds.at[b - 1] = t;
        }
    }
}

/* Packing is worth it for large products: both factors are laid out for the device's register tiles before
 * they are multiplied. */
static void choose_packed(fusion *f)
{
    for (uint32_t i = 1; i < f->groups.len; i++)
        f->groups.at[i].packed = pack_wanted(f, &f->groups.at[i]) && !conv_rows(f, &f->groups.at[i]) &&
                                 !conv_gradient_rows(f, &f->groups.at[i]);
}

static eas_status fuse_all(fusion *f, uint32_t nroots, const uint32_t *roots);

eas_status fuse_for(fusion *f, const pgraph *g, uint32_t nroots, const uint32_t *roots, uint32_t limit,
                    const uint8_t *cuts, eas_device *d, int variant)
{
    const dev_limits l = d->limits(d);
    *f = (fusion){.g = g,
                  .limit = limit,
                  .cuts = cuts,
                  .variant = variant,
                  .bf16_products = l.bf16_products,
                  .sort_bytes = l.sort_bytes};
    memcpy(f->tile, l.tile, sizeof f->tile);
    eas_status st = fuse_all(f, nroots, roots);
    if (!st)
        choose_packed(f);
    return st;
}

eas_status fuse(fusion *f, const pgraph *g, uint32_t nroots, const uint32_t *roots, uint32_t limit,
                const uint8_t *cuts)
{
    *f = (fusion){.g = g, .limit = limit, .cuts = cuts};
    return fuse_all(f, nroots, roots);
}

static eas_status fuse_all(fusion *f, uint32_t nroots, const uint32_t *roots)
{
    const pgraph *g = f->g;
    group none = {0};
    f->at = calloc(g->n.len, sizeof *f->at);
    if (!f->at || !vec_push(&f->groups, none))
        return base_fail_oom(g->n.len * sizeof *f->at);
    f->uses = calloc(g->n.len, sizeof *f->uses);
    f->scratch = scratch_new(g->n.len);
    if (!f->uses || !f->scratch)
        return base_fail_oom(g->n.len);
    for (uint32_t i = 0; i < nroots; i++) {
        f->uses[roots[i]]++;
        f->at[roots[i]].root = true;
    }
    for (uint32_t i = g->n.len - 1; i > 0; i--) /* by what is needed itself */
        for (int k = 0; k < pass_at(g, i)->nin && f->uses[i]; k++)
            f->uses[pass_at(g, i)->in[k]]++;
    fuse_costs(f);
    for (uint32_t i = 1; i < g->n.len; i++)
        if (cut_of(f, i) & CUT_APART) {
            f->at[i].root = true;
            f->uses[i]++;
        }
    eas_status st = f->limit > 8 ? match_backs(f) : EAS_OK;
    if (st)
        return st;
    for (uint32_t i = g->n.len - 1; i > 0 && !f->oom; i--) {
        const pnode *p = pass_at(g, i);
        for (uint32_t b = f->at[i].back; b; b = f->backs.at[b - 1].next)
            open_back(f, b - 1);
        if ((f->at[i].used || f->at[i].root) && p->kind != KIND_LEAF &&
            (p->kind != KIND_CONST || f->at[i].root))
            settle(f, i);
        else if (p->kind == KIND_LEAF && f->at[i].root)
            f->at[i].stored = true;
    }
    if (f->oom)
        return base_fail_oom(sizeof(group));
    order_folds(f);
    return f->limit > 1 ? merge_groups(f) : EAS_OK;
}

void fuse_free(fusion *f)
{
    for (uint32_t i = 0; i < f->groups.len; i++) {
        vec_free(&f->groups.at[i].roots);
        vec_free(&f->groups.at[i].folds);
    }
    vec_free(&f->groups);
    vec_free(&f->backs);
    free(f->uses);
    scratch_free(f->scratch);
    free(f->at);
}
