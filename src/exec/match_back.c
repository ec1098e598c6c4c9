/* match_back.c: finds derivatives of softmax(scores) @ v that need no matrix of the size of the scores.
 *
 * With P = softmax(s), s made of a product of queries and keys, G the cotangent of P @ v, and D its row sums
 * with the result (pass/attend.c):
 *
 *     dv = P^T G        dS = P * (G v^T - D)        dq = f(dS) k        dk = f(dS)^T q
 *
 * P, dS and whatever else is element-wise between them (the region) is computed tile by tile where a product
 * wants it, from the factors of the products in it and from the maxima and sums of rows that the forward
 * kernel stores. Products E @ w share a kernel that goes along the rows of E, products E^T @ w one that goes
 * along its columns: the two products inside are computed in both, which costs less than going through memory
 * for them.
 *
 * A region is a set of nodes of the shape of P, each used by the region and by such products only. It ends at
 * P, at products of that shape, and at anything smaller or cheaper, which is read as any input is.
 */
#include "exec.h"

enum { WIDEST = 256, REGION = 64, PRODUCTS = 8 };

typedef struct candidate {
    uint32_t weights;
    softmax_parts soft;
    uint32_t region[REGION]; /* without weights */
    uint32_t turned[PRODUCTS]; /* transposes of members of the region */
    struct {
        uint32_t root, value, with;
        bool rows;
    } product[PRODUCTS];
    int nregion, nturned, nproducts;
    uint32_t core; /* beside the one of the scores; 0: none */
    bool bad;
} candidate;
typedef struct matching {
    fusion *f;
    VEC(candidate) all;
    uint32_t *of;   /* per node: 1 + the candidate whose region it is in */
    uint32_t *mine; /* per node: how often the region and its products use it */
    uint32_t *reader; /* per node: the first that reads it */
    bool oom;
} matching;

static bool same_shape(const pnode *a, const pnode *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, sizeof *a->shape * a->rank);
}

static bool swaps_last(const pnode *p)
{
    if (p->kind != KIND_PERMUTE || p->rank < 2 || p->words[p->rank - 1] != p->rank - 2 ||
        p->words[p->rank - 2] != p->rank - 1)
        return false;
    for (int i = 0; i + 2 < p->rank; i++)
        if (p->words[i] != i)
            return false;
    return true;
}

static bool fits(eas_dim n) { return dim_known(n) && n > 0 && n <= WIDEST; }

static bool core_fits(const fusion *f, uint32_t core, const pnode *shape)
{
    const pnode *c = pass_at(f->g, core), *x = pass_at(f->g, c->in[0]);
    return same_shape(c, shape) && c->dtype == shape->dtype && fits(x->shape[x->rank - 1]);
}

static void find_candidates(matching *m)
{
    const pgraph *g = m->f->g;
    for (uint32_t i = 1; i < g->n.len && !m->oom; i++) {
        const pnode *p = pass_at(g, i);
        candidate c = {.weights = i};
        if (p->op != GRAPH_MUL || m->f->uses[i] < 2 || m->f->at[i].root ||
            (p->dtype != EAS_F32 && p->dtype != EAS_F64) || p->rank < 2 ||
            !match_softmax(m->f, i, m->f->uses, &c.soft) || !core_fits(m->f, c.soft.core, p))
            continue;
        m->oom = !vec_push(&m->all, c);
        m->of[i] = m->all.len;
    }
}

/* Explores the nodes that x is computed from, down to the softmax weights of one candidate. Nodes met for
 * the first time go to `found`; *who is the candidate. */
typedef struct exploring {
    uint32_t who, found[REGION], core;
    int n;
} exploring;

static bool has(const exploring *e, uint32_t x)
{
    for (int i = 0; i < e->n; i++)
        if (e->found[i] == x)
            return true;
    return false;
}

static bool explore(const matching *m, uint32_t x, const pnode *shape, exploring *e)
{
    const pnode *p = pass_at(m->f->g, x);
    if (m->of[x] || has(e, x)) {
        const bool fine = has(e, x) || !e->who || e->who == m->of[x];
        e->who = has(e, x) ? e->who : m->of[x];
        return fine;
    }
    if (!m->f->at[x].heavy || !same_shape(p, shape))
        return true;
    if (p->kind == KIND_MATMUL) {
        const bool fine = !e->core || e->core == x;
        e->core = x;
        return fine;
    }
    if ((p->kind != KIND_MAP && p->kind != KIND_CAST) || p->dtype != shape->dtype || m->f->at[x].root ||
        e->n == REGION)
        return false;
    e->found[e->n++] = x;
    for (int k = 0; k < p->nin; k++)
        if (!explore(m, p->in[k], shape, e))
            return false;
    return true;
}

static void use_inputs(matching *m, uint32_t x, const pnode *shape)
{
    const pnode *p = pass_at(m->f->g, x);
    for (int k = 0; k < p->nin; k++)
        if (same_shape(pass_at(m->f->g, p->in[k]), shape))
            m->mine[p->in[k]]++;
}

static bool join(matching *m, candidate *c, const exploring *e, const pnode *shape)
{
    if (c->nregion + e->n > REGION || (e->core && c->core && e->core != c->core) ||
        (e->core && !core_fits(m->f, e->core, shape)))
        return false;
    for (int i = 0; i < e->n; i++) {
        c->region[c->nregion++] = e->found[i];
        m->of[e->found[i]] = e->who;
        use_inputs(m, e->found[i], shape);
    }
    c->core = e->core ? e->core : c->core;
    return true;
}

/* Is product i one of a region's matrix, or of its transpose? */
static void add_product(matching *m, uint32_t i)
{
    const pgraph *g = m->f->g;
    const pnode *p = pass_at(g, i), *left = pass_at(g, p->in[0]), *w = pass_at(g, p->in[1]);
    const bool turned = swaps_last(left);
    const uint32_t x = turned ? left->in[0] : p->in[0];
    const pnode *s = pass_at(g, x);
    exploring e = {0};
    if (!m->f->at[x].heavy || (s->kind != KIND_MAP && s->kind != KIND_CAST) || !explore(m, x, s, &e) ||
        !e.who)
        return;
    candidate *c = &m->all.at[e.who - 1];
    bool fine = same_shape(s, pass_at(g, c->weights)) && p->dtype == s->dtype && p->rank == s->rank &&
                w->rank <= s->rank && w->dtype == s->dtype && fits(w->shape[w->rank - 1]) &&
                c->nproducts < PRODUCTS && !m->of[p->in[1]];
    for (int d = 0; d + 2 < p->rank && fine; d++)
        fine = p->shape[d] == s->shape[d];
    if (!fine || !join(m, c, &e, s)) {
        c->bad = true;
        return;
    }
    if (turned && m->mine[p->in[0]]++ == 0) {
        m->mine[x]++;
        c->turned[c->nturned++] = p->in[0];
    } else if (!turned)
        m->mine[x]++;
    c->product[c->nproducts].root = i;
    c->product[c->nproducts].value = x;
    c->product[c->nproducts].with = p->in[1];
    c->product[c->nproducts++].rows = !turned;
}

static bool only_mine(const matching *m, uint32_t x)
{
    return m->f->uses[x] == m->mine[x] && !m->f->at[x].root;
}

/* Every node of the region is used by the region only, and there is a forward product. */
static bool closed(const matching *m, const candidate *c, int *forward)
{
    bool ok = !c->bad && only_mine(m, c->weights) &&
              (!c->core || (only_mine(m, c->core) && c->core != c->soft.core));
    for (int i = 0; i < c->nregion && ok; i++)
        ok = only_mine(m, c->region[i]);
    for (int i = 0; i < c->nturned && ok; i++)
        ok = only_mine(m, c->turned[i]);
    *forward = -1;
    for (int i = c->nproducts; i-- > 0;)
        if (c->product[i].value == c->weights && c->product[i].rows)
            *forward = i;
    return ok && *forward >= 0 && c->nproducts > 1;
}

static void take(fusion *f, uint32_t x)
{
    if (x)
        f->at[x].taken = f->at[x].used = f->at[x].many = true;
}

/* Groups run in the reverse order of the nodes that they are opened at: that of `b` comes before everything
 * that reads its results, and after the forward kernel. */
static void place_back(matching *m, back b, uint32_t first, uint32_t forward)
{
    fusion *f = m->f;
    place *q = &f->at[first > forward ? first : forward];
    b.next = q->back;
    m->oom |= !vec_push(&f->backs, b);
    q->back = f->backs.len;
}

static uint32_t newer(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint32_t newest_factor(const matching *m, uint32_t core)
{
    const pnode *p = pass_at(m->f->g, core);
    return newer(p->in[0], p->in[1]);
}

/* What member x of the region is computed from: the newest node that is read, and whether the second product
 * is needed. A kernel that does not need it must not read its factors, which may be made after that kernel.
 */
static uint32_t newest_read(const matching *m, const candidate *c, uint32_t x, bool *second)
{
    if (x == c->weights)
        return newest_factor(m, c->soft.core);
    if (c->core && x == c->core) {
        *second = true;
        return newest_factor(m, c->core);
    }
    if (m->of[x] != m->of[c->weights])
        return x;
    const pnode *p = pass_at(m->f->g, x);
    uint32_t newest = 0;
    for (int k = 0; k < p->nin; k++)
        newest = newer(newest, newest_read(m, c, p->in[k], second));
    return newest;
}

/* One kernel for all, if nothing that any of them reads comes after the first of them. */
static void add_back(matching *m, const candidate *c, bool rows, int forward)
{
    fusion *f = m->f;
    const back none = {.rows = rows, .scores = c->soft.scores, .core = {c->soft.core, c->core}, .ncores = 1};
    back b = none;
    uint32_t first = UINT32_MAX, newest = 0;
    for (int i = 0; i < c->nproducts; i++) {
        if (i == forward || c->product[i].rows != rows)
            continue;
        const uint32_t root = c->product[i].root;
        bool second = false;
        const uint32_t read = newer(newest_read(m, c, c->product[i].value, &second), c->product[i].with);
        if (b.n && (b.n == BACK_ROOTS || newer(newest, read) >= (root < first ? root : first))) {
            place_back(m, b, first, c->product[forward].root);
            b = none;
            first = UINT32_MAX;
            newest = 0;
        }
        b.root[b.n] = root;
        b.value[b.n] = c->product[i].value;
        b.with[b.n++] = c->product[i].with;
        b.ncores = second ? 2 : b.ncores;
        newest = newer(newest, read);
        first = root < first ? root : first;
        take(f, root);
    }
    if (b.n)
        place_back(m, b, first, c->product[forward].root);
}

/* Can the forward kernel come first? */
static bool in_order(const matching *m, const candidate *c, int forward)
{
    const uint32_t o = c->product[forward].root;
    for (int i = 0; i < c->nproducts; i++)
        if (i != forward && c->product[i].root < o && m->reader[c->product[i].root] < o)
            return false;
    return true;
}

static void accept(matching *m, const candidate *c, int forward)
{
    fusion *f = m->f;
    take(f, c->weights);
    take(f, c->soft.e);
    take(f, c->soft.inverse);
    take(f, c->soft.diff);
    take(f, c->core);
    for (int i = 0; i < c->nregion; i++)
        take(f, c->region[i]);
    for (int i = 0; i < c->nturned; i++)
        take(f, c->turned[i]);
    f->at[c->weights].shared = true;
    /* The forward kernel's group is opened at the product, not at an element-wise node after it: place_back
     * relies on that. */
    f->at[c->product[forward].root].root = true;
    add_back(m, c, true, forward);
    add_back(m, c, false, forward);
}

eas_status match_backs(fusion *f)
{
    const uint32_t n = f->g->n.len;
    matching m = {.f = f};
    bool any = false;
    for (uint32_t i = 1; i < n && !any; i++)
        any = pass_at(f->g, i)->op == GRAPH_EXP && f->at[i].heavy;
    if (!any)
        return EAS_OK;
    m.of = calloc(n, sizeof *m.of);
    m.mine = calloc(n, sizeof *m.mine);
    m.reader = calloc(n, sizeof *m.reader);
    m.oom = !m.of || !m.mine || !m.reader;
    for (uint32_t i = 0; i < n && !m.oom; i++)
        m.reader[i] = UINT32_MAX;
    for (uint32_t i = n - 1; i > 0 && !m.oom; i--)
        for (int k = 0; k < pass_at(f->g, i)->nin && f->uses[i]; k++)
            m.reader[pass_at(f->g, i)->in[k]] = i;
    if (!m.oom)
        find_candidates(&m);
    for (uint32_t i = 1; i < n && m.all.len && !m.oom; i++)
        if (pass_at(f->g, i)->kind == KIND_MATMUL && f->uses[i])
            add_product(&m, i);
    for (uint32_t i = 0; i < m.all.len && !m.oom; i++) {
        int forward;
        uint32_t scores, core;
        if (!closed(&m, &m.all.at[i], &forward) || !in_order(&m, &m.all.at[i], forward))
            continue;
        f->at[m.all.at[i].weights].shared = true;
        if (match_attention(f, m.all.at[i].product[forward].root, f->uses, &scores, &core))
            accept(&m, &m.all.at[i], forward);
        else
            f->at[m.all.at[i].weights].shared = false;
    }
    vec_free(&m.all);
    free(m.of);
    free(m.mine);
    free(m.reader);
    return m.oom ? base_fail_oom(n) : EAS_OK;
}

bool back_core(const back *b, uint32_t node)
{
    return node == b->core[0] || (b->ncores > 1 && node == b->core[1]);
}

/* ---- what is read ---- */

static void reads_of(const fusion *f, const back *b, uint32_t x, int depth,
                     void (*each)(void *ctx, uint32_t node), void *ctx)
{
    const pnode *p = pass_at(f->g, x), *s = pass_at(f->g, b->scores);
    if (back_core(b, x))
        return;
    if (depth == 0 || !f->at[x].heavy || !same_shape(p, s) || (p->kind != KIND_MAP && p->kind != KIND_CAST)) {
        /* maxima and sums: the forward kernel has them */
        const bool rows = p->kind == KIND_REDUCE && p->in[0] && f->at[x].taken;
        if (p->op == GRAPH_RECIPROCAL && f->at[x].taken) /* of a sum */
            return;
        if (!rows)
            each(ctx, x);
        return;
    }
    for (int k = 0; k < p->nin; k++)
        reads_of(f, b, p->in[k], depth - 1, each, ctx);
}

void back_reads(const fusion *f, const back *b, void (*each)(void *ctx, uint32_t node), void *ctx)
{
    for (int i = 0; i < b->n; i++) {
        reads_of(f, b, b->value[i], REGION, each, ctx);
        each(ctx, b->with[i]);
    }
    for (int i = 0; i < b->ncores; i++)
        for (int k = 0; k < 2; k++)
            each(ctx, pass_at(f->g, b->core[i])->in[k]);
}
