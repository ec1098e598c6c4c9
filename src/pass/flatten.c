/* flatten.c: from recorded nodes to a list: the walk that finds and hashes what a run needs, and the building
 * of the list.
 *
 * Every evaluation pays for the walk, so it does little: it visits each node once, inputs first and without
 * recursion, and keeps two running hashes. The same structure over other data gives the same key; the data,
 * numbers included, is collected on the way.
 */
#include "pass.h"

enum { MAX_NUMBERS = 24 }; /* numbers given at each run; more than that become part of the structure */

static uint32_t walks; /* epochs, under exec's lock */

static void mix(pass_walk *w, uint64_t v)
{
    w->key[0] = (w->key[0] ^ v) * 0x9e3779b97f4a7c15u;
    w->key[0] ^= w->key[0] >> 29;
    w->key[1] = (w->key[1] + v) * 0xd6e8feb86659fd93u;
    w->key[1] ^= w->key[1] >> 32;
}

/* Results of loops belong to whatever node computes them now (node_extra.wider). */
static eas_node *input_of(const eas_node *n, int i)
{
    int index;
    return node_kind(n) == KIND_RESULT ? control_source(n, &index) : node_in(n)[i];
}

static bool ends_here(const eas_node *n) { return n->nin == 0 || node_real(n); }

static bool take_number(pass_walk *w, eas_node *n)
{
    bool fixed = node_fixed(n) || w->numbers.len >= MAX_NUMBERS;
    mix(w, (uint64_t)GRAPH_CONST << 32 | (uint64_t)n->dtype << 1 | fixed);
    if (fixed) {
        mix(w, (uint64_t)node_words(n)[0]);
        return true;
    }
    return vec_push(&w->numbers, n);
}

static bool take_leaf(pass_walk *w, eas_node *n)
{
    bool real = node_real(n);
    mix(w, (uint64_t)(real ? GRAPH_LEAF : GRAPH_INPUT) << 32 | (uint64_t)n->dtype << 16 | n->rank);
    mix(w, (uint64_t)(uintptr_t)n->device);
    for (int i = 0; i < n->rank; i++)
        mix(w, (uint64_t)node_shape(n)[i]);
    if (n->op == GRAPH_LEAF || !real)
        for (int i = 0; i < n->nwords; i++)
            mix(w, (uint64_t)node_words(n)[i] + 1);
    return vec_push(&w->leaves, n);
}

static bool take_recorded(pass_walk *w, eas_node *n)
{
    bool held = node_held(n);
    mix(w, (uint64_t)n->op << 48 | (uint64_t)n->dtype << 40 | (uint64_t)n->nwords << 24 |
               (uint64_t)n->nin << 1 | held);
    if (node_kind(n) == KIND_RESULT) {
        int index;
        mix(w, control_source(n, &index)->mark);
        mix(w, (uint64_t)index);
    } else {
        for (int i = 0; i < n->nwords; i++)
            mix(w, (uint64_t)node_words(n)[i]);
        for (int i = 0; i < n->nin; i += 2) /* two at a time */
            mix(w, node_in(n)[i]->mark | (uint64_t)(i + 1 < n->nin ? node_in(n)[i + 1]->mark : 0) << 32);
    }
    if (n->rank && node_kind(n) != KIND_MAP) /* others' shapes follow from their inputs */
        for (int i = 0; i < n->rank; i++)
            mix(w, (uint64_t)node_shape(n)[i]);
    if (n->extra && (n->extra->kernel || n->extra->native))
        mix(w, node_call_key(n->extra));
    if (n->extra && n->extra->control) {
        mix(w, n->extra->control->key[0]);
        mix(w, n->extra->control->key[1]);
    }
    return !held || vec_push(&w->held, w->order.len);
}

static bool take(pass_walk *w, eas_node *n)
{
    bool ok;
    uint32_t which = PARAM_NONE, numbers = w->numbers.len;
    if (node_real(n) || n->op == GRAPH_INPUT) {
        which = w->leaves.len;
        ok = take_leaf(w, n);
    } else if (n->op == GRAPH_CONST) {
        ok = take_number(w, n);
        which = w->numbers.len > numbers ? numbers : PARAM_NONE;
    } else
        ok = take_recorded(w, n);
    n->mark = w->order.len;
    n->epoch = w->epoch;
    return ok && vec_push(&w->number, which) && vec_push(&w->order, n);
}

typedef struct visit {
    eas_node *n;
    int next;
} visit;
typedef VEC(visit) visits;

/* Memory of the walk before, for the next one: a short chain costs no allocation. */
static pass_walk spare;
static visits spare_stack;
enum { SPARE = 4096 };

/* Takes all that is on the stack, inputs first. */
static bool take_stack(pass_walk *w, visits *stack)
{
    while (stack->len) {
        visit *v = &stack->at[stack->len - 1];
        eas_node *n = v->n, *next = NULL;
        while (v->next < n->nin && !next) {
            eas_node *in = input_of(n, v->next++);
            if (in->epoch == w->epoch)
                continue;
            if (!ends_here(in))
                next = in;
            else if (!take(w, in))
                return false;
        }
        if (next ? !vec_push(stack, ((visit){next, 0})) : (stack->len--, n->epoch != w->epoch && !take(w, n)))
            return false;
    }
    return true;
}

eas_status pass_walk_from(pass_walk *w, int n, eas_node *const *roots)
{
    visits stack = spare_stack;
    bool ok = true;
    *w = spare;
    w->key[0] = 0x243f6a8885a308d3u;
    w->key[1] = 0x13198a2e03707344u;
    w->epoch = ++walks;
    memset(&spare, 0, sizeof spare);
    memset(&spare_stack, 0, sizeof spare_stack);
    for (int r = 0; r < n && ok; r++) {
        if (roots[r]->epoch != w->epoch)
            ok = ends_here(roots[r]) ? take(w, roots[r])
                                     : vec_push(&stack, ((visit){roots[r], 0})) && take_stack(w, &stack);
        mix(w, roots[r]->mark + 0x10001u);
    }
    if (stack.cap <= SPARE && ok)
        spare_stack = stack;
    else
        vec_free(&stack);
    if (!ok)
        pass_walk_clear(w);
    return ok ? EAS_OK : base_fail_oom(0);
}

void pass_walk_clear(pass_walk *w)
{
    if (!spare.order.at && w->order.cap <= SPARE) {
        spare = *w;
        spare.order.len = spare.leaves.len = spare.numbers.len = spare.number.len = spare.held.len = 0;
        return;
    }
    vec_free(&w->order);
    vec_free(&w->leaves);
    vec_free(&w->numbers);
    vec_free(&w->number);
    vec_free(&w->held);
}

/* ---- the list ---- */

typedef struct flat {
    pgraph *g;
    const pass_walk *w;
    uint32_t *at; /* per position of the walk */
    VEC(uint32_t) more; /* the same for nodes of expansions, whose marks count on from the walk's */
    VEC(eas_node *) opened; /* composites that were expanded here: released at the end */
    uint8_t *users; /* per position of the walk: nodes of the walk that read it; 2: or more */
} flat;

static uint32_t *slot(flat *f, const eas_node *n)
{
    uint32_t m = n->mark;
    return m < f->w->order.len ? &f->at[m] : &f->more.at[m - f->w->order.len];
}

static bool done(flat *f, const eas_node *n) { return n->epoch == f->w->epoch && *slot(f, n); }

/* Nodes of an expansion are not in the walk: they get the next marks. */
static bool enter(flat *f, eas_node *n)
{
    if (n->epoch == f->w->epoch)
        return true;
    n->epoch = f->w->epoch;
    n->mark = f->w->order.len + f->more.len;
    return vec_push(&f->more, 0);
}

/* The number of n among the leaves or numbers of the run; nodes of expansions have none. */
static uint32_t given_as(const flat *f, const eas_node *n)
{
    return n->mark < f->w->order.len ? f->w->number.at[n->mark] : PARAM_NONE;
}

/* Operations that differ only in their name for users (squeeze, reshape) are one operation here. */
static uint16_t plain_op(const eas_node *n)
{
    switch (node_kind(n)) {
    case KIND_RESHAPE: return GRAPH_RESHAPE;
    case KIND_PERMUTE: return GRAPH_PERMUTE;
    case KIND_BROADCAST: return GRAPH_BROADCAST_TO;
    case KIND_SLICE: return GRAPH_SLICE_STEPS;
    case KIND_UPDATE: return GRAPH_SLICE_UPDATE;
    default: return n->op;
    }
}

/* Does more than one node read it? Counted for recorded nodes only; nodes of an expansion are mostly read
 * once.
 */
static bool has_users(const flat *f, const eas_node *n)
{
    return n->epoch == f->w->epoch && n->mark < f->w->order.len && f->users[n->mark] > 1;
}

static void count_users(flat *f)
{
    for (uint32_t i = 0; i < f->w->order.len; i++) {
        const eas_node *n = f->w->order.at[i];
        for (int k = 0; k < n->nin && !ends_here(n); k++) {
            const eas_node *x = input_of(n, k);
            if (x->epoch == f->w->epoch && x->mark < f->w->order.len && f->users[x->mark] < 2)
                f->users[x->mark]++;
        }
    }
}

static uint32_t add_plain(flat *f, eas_node *n, const uint32_t *in)
{
    bool real = node_real(n);
    pnode p = {.op = real ? GRAPH_LEAF : plain_op(n),
               .kind = (uint8_t)(real ? KIND_LEAF : node_kind(n)),
               .dtype = n->dtype,
               .rank = n->rank,
               .nin = real ? 0 : n->nin,
               .nwords = real && n->op != GRAPH_LEAF ? 0 : n->nwords,
               .param = PARAM_NONE,
               .shape = node_shape(n),
               .words = node_words(n),
               .in = in,
               .extra = n->extra};
    if (p.kind == KIND_LEAF || p.kind == KIND_INPUT) {
        p.param = given_as(f, n);
        p.kind = KIND_LEAF;
        if (n->op == GRAPH_INPUT)
            p.nwords = 0;
    } else if (p.kind == KIND_CONST) {
        p.param = given_as(f, n);
        p.fixed = p.param == PARAM_NONE;
        p.nwords = 1;
    }
    int index;
    int64_t word;
    if (p.kind == KIND_RESULT) {
        control_source(n, &index);
        word = index;
        p.words = &word;
    }
    f->g->site = n->site;
    const uint32_t i = pass_add(f->g, &p);
    if (i && has_users(f, n))
        for (uint32_t k = i; k; k = f->g->n.at[k].kind == KIND_RESHAPE ? f->g->n.at[k].in[0] : 0)
            f->g->n.at[k].shared = true;
    return i;
}

static eas_status expanded(flat *f, eas_node *n)
{
    if (n->expansion)
        return EAS_OK;
    node_expanding = true;
    eas_site_set(n->site);
    eas_status st = graph_rows[n->op].expand(n, node_in(n), &n->expansion);
    eas_site_set(0);
    node_expanding = false;
    if (!st && !vec_push(&f->opened, n))
        st = base_fail_oom(0);
    return st;
}

/* One node and whatever it needs; iterative, as chains are long. */
static eas_status flatten_one(flat *f, eas_node *root)
{
    VEC(visit) stack = {0};
    VEC(uint32_t) in = {0};
    eas_status st = enter(f, root) && vec_push(&stack, ((visit){root, 0})) ? EAS_OK : base_fail_oom(0);
    while (stack.len && !st) {
        visit *v = &stack.at[stack.len - 1];
        eas_node *n = v->n;
        bool composite = !node_real(n) && node_kind(n) == KIND_COMPOSITE;
        if (done(f, n)) {
            stack.len--;
            continue;
        }
        if (composite)
            st = expanded(f, n);
        if (st)
            break;
        int nin = composite ? 1 : ends_here(n) ? 0 : n->nin;
        if (v->next < nin) {
            eas_node *next = composite ? n->expansion : input_of(n, v->next);
            v->next++;
            if (!done(f, next) && !(enter(f, next) && vec_push(&stack, ((visit){next, 0}))))
                st = base_fail_oom(0);
            continue;
        }
        in.len = 0;
        for (int i = 0; i < nin && !st; i++)
            if (!vec_push(&in, *slot(f, composite ? n->expansion : input_of(n, i))))
                st = base_fail_oom(0);
        if (st)
            break;
        uint32_t p = composite || (nin && node_kind(n) == KIND_ALIAS) ? in.at[0] : add_plain(f, n, in.at);
        *slot(f, n) = p;
        st = f->g->st;
        stack.len--;
    }
    vec_free(&stack);
    vec_free(&in);
    return st;
}

eas_status pass_flatten(pgraph *g, const pass_walk *w, uint32_t *at)
{
    flat f = {.g = g, .w = w, .at = at, .users = calloc(w->order.len + 1, 1)};
    if (!f.users)
        return base_fail_oom(w->order.len);
    eas_status st = EAS_OK;
    memset(at, 0, sizeof *at * w->order.len);
    count_users(&f);
    for (uint32_t i = 0; i < w->order.len && !st; i++)
        if (!at[i])
            st = flatten_one(&f, w->order.at[i]);
    /* the inner ones were opened later, and live in the outer ones */
    for (uint32_t i = f.opened.len; i-- > 0;) {
        node_unref(f.opened.at[i]->expansion);
        f.opened.at[i]->expansion = NULL;
    }
    vec_free(&f.opened);
    vec_free(&f.more);
    free(f.users);
    return st;
}
