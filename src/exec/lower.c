/* lower.c: a group of nodes as a kernel: its parameters, the merged space, and the frame that every kind of
 * group shares. */
#include "exec.h"

#include <pthread.h>
#include <stdio.h>

/* ---- kernels that were made before ---- */

/* By the text of their IR: equal groups of one program, or of several, share one kernel. Entries are counted
 * by who uses them; a kernel that nobody uses goes when its place is wanted. */
enum { TABLE = 1024 };
typedef struct made {
    uint8_t key[32];
    eas_kernel *kernel;
} made;
static made table[TABLE];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t kernels_made;

uint64_t lower_kernels(void) { return kernels_made; }

static eas_status kernel_of(eas_ir *ir, bool lines, eas_kernel **out)
{
    char *text;
    uint8_t key[32];
    sha256 h;
    eas_status st = eas_ir_text(ir, lines, &text);
    if (st)
        return st;
    sha256_init(&h);
    sha256_add(&h, text, strlen(text));
    sha256_done(&h, key);
    eas_memory_free(text);
    base_lock(&table_lock);
    made *m = &table[(key[0] | key[1] << 8) % TABLE];
    if (!m->kernel || memcmp(m->key, key, sizeof key)) {
        eas_kernel *k;
        st = eas_kernel_new(ir, &k);
        if (!st) {
            if (m->kernel)
                eas_kernel_release(m->kernel);
            memcpy(m->key, key, sizeof key);
            m->kernel = k;
            kernels_made++;
        }
    }
    if (!st)
        *out = eas_kernel_retain(m->kernel);
    base_unlock(&table_lock);
    return st;
}

void kernel_use_free(kernel_use *u)
{
    if (u->kernel)
        eas_kernel_release(u->kernel);
    vec_free(&u->params);
}

/* ---- parameters ---- */

static bool is_flat(const lowering *w)
{
    return w->l.grp->kind == GROUP_MAP && w->l.nm == 1 && !w->l.minner[0] && dim_known(w->l.msize[0]) &&
           !w->c->general;
}

static void add_use(lowering *w, use u)
{
    if (!vec_push(&w->use->params, u))
        w->l.st = base_fail_oom(sizeof u);
}

/* Does this kernel write the group's results? */
static bool stores(const lowering *w) { return !w->l.grp->packed || w->part == PACK_PRODUCT; }

/* Lists the arguments of the kernel in the order of its parameters: results, tensors, numbers, sizes. */
static void add_uses(lowering *w)
{
    const lower *l = &w->l;
    bool oom = false;
    for (uint32_t i = 0; i < l->grp->roots.len && stores(w); i++) {
        uint32_t id = l->grp->roots.at[i].node;
        add_use(w, (use){.what = USE_NODE, .node = id, .dtype = pass_at(l->g, id)->dtype, .written = true});
    }
    if (l->grp->packed)
        pack_uses(w, &w->use->params, &oom);
    for (uint32_t i = 0; i < w->c->buffers.len; i++)
        add_use(w, (use){.what = USE_NODE,
                         .node = w->c->buffers.at[i],
                         .dtype = pass_at(l->g, w->c->buffers.at[i])->dtype});
    for (uint32_t i = 0; i < w->c->numbers.len; i++)
        add_use(w, (use){.what = USE_NUMBER,
                         .node = w->c->numbers.at[i],
                         .dtype = pass_at(l->g, w->c->numbers.at[i])->dtype});
    for (uint32_t i = 0; i < w->c->dims.len; i++)
        add_use(w, (use){.what = USE_DIM, .dim = w->c->dims.at[i], .dtype = EAS_I64});
    if (l->grp->kind == GROUP_SORT)
        sort_scratch(l->g, pass_at(l->g, l->grp->core), &w->use->params, &oom);
    if (oom)
        w->l.st = base_fail_oom(sizeof(use));
    if (is_flat(w)) /* takes its length when it runs, so one kernel serves all */
        add_use(w, (use){.what = USE_DIM, .dim = l->msize[0], .dtype = EAS_I64});
}

static void add_params(lowering *w)
{
    lower *l = &w->l;
    uint32_t outs = 0, scratch = 0;
    for (uint32_t i = 0; i < w->use->params.len; i++) {
        const use *u = &w->use->params.at[i];
        eas_dtype dt = (eas_dtype)u->dtype;
        char name[32];
        snprintf(name, sizeof name, "%s%u",
                 u->written              ? "out"
                 : u->what == USE_NODE   ? "in"
                 : u->what == USE_NUMBER ? "x"
                 : u->what == USE_DIM    ? "n"
                                         : "tmp",
                 i);
        eas_value v = u->what == USE_NODE || u->what == USE_SCRATCH || u->what == USE_PACKED
                        ? eas_builder_param_buffer(l->b, name, dt)
                        : eas_builder_param_scalar(l->b, name, dt, 0);
        if (u->what == USE_PACKED)
            w->scratch[u->node] = v;
        else if (u->written)
            w->out[outs++] = v;
        else if (u->what == USE_SCRATCH)
            w->scratch[scratch++] = v;
        else if (u->what == USE_DIM)
            l->dims[l->ndims++] = (struct lower_dim){u->dim, v};
        else
            l->param[u->node] = v;
    }
}

/* ---- the merged space ---- */

static bool runs_on(const reading *r, const group *g, int a, int b)
{
    const eas_dim *s = r->stride;
    eas_dim step;
    if (s[a] == 0 && s[b] == 0)
        return true;
    return s[a] != 0 && s[b] != 0 && !eas_dim_apply(EAS_DIM_MUL, s[b], g->space[b], &step) && step == s[a];
}

static bool run_on(const collected *c, const group *g, int a, int b)
{
    for (uint32_t i = 0; i < c->accesses.len; i++)
        if (!runs_on(&c->accesses.at[i], g, a, b))
            return false;
    for (uint32_t i = 0; i < c->draws.len; i++)
        if (!runs_on(&c->draws.at[i], g, a, b))
            return false;
    return true;
}

/* Dims in the order in which the largest tensor has them in memory, when something is reduced; results' order
 * else. */
static void order_in_memory(const collected *c, const group *g, int n, int8_t *order)
{
    const reading *ref = NULL;
    int most = 0;
    double largest = 0;
    for (uint32_t i = 0; i < c->accesses.len && g->inner; i++) {
        int dims = 0;
        double size = 1;
        for (int d = 0; d < g->rank; d++) {
            const bool has = c->accesses.at[i].stride[d] != 0;
            dims += has;
            size *= has && dim_known(g->space[d]) ? (double)g->space[d] : 1;
            if (!dim_known(c->accesses.at[i].stride[d]))
                return;
        }
        if (dims > most || (dims == most && size > largest)) {
            most = dims;
            largest = size;
            ref = &c->accesses.at[i];
        }
    }
    if (!ref)
        return;
    for (int i = 1; i < n; i++) /* few: by insertion, stable */
        for (int k = i;
             k > 0 && ref->stride[order[k]] > ref->stride[order[k - 1]] && ref->stride[order[k - 1]] != 0;
             k--) {
            int8_t t = order[k];
            order[k] = order[k - 1];
            order[k - 1] = t;
        }
}

static void merge_dims(lowering *w)
{
    lower *l = &w->l;
    const group *g = l->grp;
    int8_t order[MAX_DIMS];
    int n = 0;
    for (int d = 0; d < g->rank; d++)
        if (g->space[d] != 1)
            order[n++] = (int8_t)d;
    if (g->kind == GROUP_MAP)
        order_in_memory(w->c, g, n, order);
    bool may = !w->c->general && g->kind == GROUP_MAP;
    l->nm = 0;
    for (int i = 0; i < n; i++) {
        int d = order[i];
        bool inner = g->inner >> d & 1;
        if (may && i > 0 && inner == l->minner[l->nm - 1] && run_on(w->c, g, order[i - 1], d)) {
            eas_dim_apply(EAS_DIM_MUL, l->msize[l->nm - 1], g->space[d], &l->msize[l->nm - 1]);
        } else {
            l->minner[l->nm] = inner;
            l->msize[l->nm++] = g->space[d];
        }
        l->mdim[d] = (int8_t)(l->nm - 1);
        l->mlast[l->nm - 1] = (int8_t)d;
    }
    for (int m = 0; m < l->nm; m++) /* merged sizes are parameters too where they are symbols */
        collect_shape(w->c, 1, &l->msize[m]);
}

/* ---- pieces of code ---- */

eas_dim ceil_dim(eas_dim n, int64_t by)
{
    eas_dim up, r;
    if (by == 1)
        return n;
    if (dim_known(n))
        return (n + by - 1) / by;
    eas_dim_apply(EAS_DIM_ADD, n, by - 1, &up);
    eas_dim_apply(EAS_DIM_FLOORDIV, up, by, &r);
    return r;
}

eas_value low_lanes(lower *l, int axis, int64_t n)
{
    int64_t shape[MAX_BLOCK] = {1, 1, 1, 1};
    eas_value v = eas_builder_arange(l->b, 0, n);
    shape[axis] = n;
    return l->nblock == 1 ? v : eas_builder_reshape(l->b, v, l->nblock, shape);
}

lindex low_along(lower *l, eas_value first, int axis, int64_t n, eas_dim size)
{
    eas_value v = low_lanes(l, axis, n);
    v = first ? low_bin(l, "add", first, v) : v;
    return (lindex){v, dim_known(size) && size % n == 0 ? 0 : low_bin(l, "lt", v, low_dim(l, size))};
}

lindex low_lanes_of(lower *l, int axis, eas_dim size, int64_t most, eas_dim *programs)
{
    int64_t n = dim_known(size) && size < most ? (size ? size : 1) : most;
    *programs = ceil_dim(size, n);
    return low_along(l, low_bin(l, "mul", eas_builder_program_id(l->b, axis), low_int(l, n)), 0, n, size);
}

/* Where root i goes in memory, and what is stored there. */
void low_store(lowering *w, uint32_t i)
{
    lower *l = &w->l;
    const group_root *r = &l->grp->roots.at[i];
    const pnode *p = pass_at(l->g, r->value);
    int8_t map[MAX_DIMS];
    lindex at[MAX_DIMS] = {{0, 0}};
    eas_dim dense = 1, strides[MAX_DIMS];
    int64_t shape[4];
    root_map(l->f, l->grp, r, map);
    eas_value v = low_value(l, r->value, NULL, map), ok = 0, off = 0;
    int n = 0;
    for (int k = p->rank - 1; k >= 0; k--) {
        if (map[k] >= 0 && p->shape[k] != 1 && l->mlast[l->mdim[map[k]]] == map[k]) {
            at[n] = l->at[l->mdim[map[k]]];
            strides[n++] = dense;
        }
        eas_dim_apply(EAS_DIM_MUL, dense, p->shape[k], &dense);
    }
    off = low_sum(l, n, at, strides, &ok);
    if (!v || !off)
        return;
    if (eas_value_shape(l->b, off, shape) == 0 && eas_value_shape(l->b, v, shape) > 0)
        v = eas_builder_reshape(l->b, v, 0, NULL);
    eas_builder_store(l->b, w->out[i], off, v, ok);
}

/* ---- any group ---- */

static void collect_group(const fusion *f, uint32_t grp, int part, collected *c)
{
    const group *g = &f->groups.at[grp];
    int8_t map[GRAPH_MAX_RANK];
    uint32_t head[] = {g->kind,
                       (uint32_t)g->rank,
                       g->inner,
                       g->roots.len,
                       g->folds.len,
                       (uint32_t)part,
                       f->limit,
                       (uint32_t)f->variant,
                       f->tile[0].rows != 0,
                       g->packed ? (uint32_t)f->tile[0].rows : 0,
                       g->packed ? (uint32_t)f->tile[0].bytes : 0};
    collect_key(c, head, sizeof head);
    collect_key(c, g->space, sizeof *g->space * (size_t)g->rank);
    for (uint32_t i = 0; i < g->roots.len; i++)
        collect_note(f, grp, g->roots.at[i].node, c);
    for (uint32_t i = 0; i < g->folds.len; i++)
        collect_note(f, grp, g->folds.at[i], c);
    if (g->core)
        collect_note(f, grp, g->core, c);
    if (g->inner_core)
        collect_note(f, grp, g->inner_core, c);
    if (g->kind == GROUP_CONCAT) {
        const pnode *p = pass_at(f->g, g->core);
        int first, last;
        concat_inputs(f, g, part, &first, &last);
        for (int k = 0; k < last; k++)
            collect_shape(c, p->rank, pass_at(f->g, p->in[k])->shape);
        for (int k = first; k < last; k++) {
            const eas_dim start = concat_start(f->g, p, k);
            collect_key(c, &start, sizeof start);
            collect_from(f, grp, p->in[k], NULL, c);
            collect_starts(c, f->g, p, k);
        }
        collect_shape(c, p->rank, p->shape);
        return;
    }
    if (g->kind == GROUP_ATTENTION_BACK) {
        const back *b = &f->backs.at[g->back];
        uint32_t shape[] = {b->rows, (uint32_t)b->n, (uint32_t)b->ncores};
        collect_key(c, shape, sizeof shape);
        for (int k = 0; k < g->rank; k++)
            map[k] = (int8_t)k;
        for (int i = 0; i < b->ncores; i++) {
            const pnode *p = pass_at(f->g, b->core[i]);
            collect_note(f, grp, b->core[i], c);
            collect_from(f, grp, p->in[0], NULL, c);
            collect_from(f, grp, p->in[1], NULL, c);
        }
        for (int i = 0; i < b->n; i++) {
            const pnode *p = pass_at(f->g, b->root[i]);
            collect_from(f, grp, b->value[i], map, c);
            collect_from(f, grp, b->with[i], NULL, c);
            collect_shape(c, p->rank, p->shape);
        }
        c->general = true;
        collect_shape(c, g->rank, g->space);
        return;
    }
    for (int k = 0; g->packed && k < 2; k++) { /* their shapes say how they are laid out */
        const pnode *x = pass_at(f->g, pass_at(f->g, g->core)->in[k]);
        uint32_t type[] = {x->dtype, x->rank, pack_copies(f, g, k ? PACK_RIGHT : PACK_LEFT)};
        collect_key(c, type, sizeof type);
        collect_key(c, x->shape, sizeof *x->shape * x->rank);
    }
    if (g->packed && part != PACK_PRODUCT) {
        collect_from(f, grp, pass_at(f->g, g->core)->in[part == PACK_RIGHT], NULL, c);
        return;
    }
    for (uint32_t i = 0; i < g->roots.len; i++) {
        root_map(f, g, &g->roots.at[i], map);
        collect_from(f, grp, g->roots.at[i].value, map, c);
        const pnode *p = pass_at(f->g, g->roots.at[i].value);
        collect_shape(c, p->rank, p->shape); /* a reduction's own strides: the walk stops before it */
        reading out = {.node = g->roots.at[i].node};
        eas_dim dense = 1;
        for (int k = p->rank - 1; k >= 0; k--) {
            if (map[k] >= 0 && p->shape[k] != 1)
                out.stride[map[k]] = dense;
            eas_dim_apply(EAS_DIM_MUL, dense, p->shape[k], &dense);
        }
        c->oom |= !vec_push(&c->accesses, out);
    }
    for (uint32_t i = 0; i < g->folds.len; i++) {
        fold_input_map(f, g->folds.at[i], map);
        collect_from(f, grp, pass_at(f->g, g->folds.at[i])->in[0], map, c);
    }
    if (g->core) {
        const pnode *p = pass_at(f->g, g->core);
        /* the first one reads the first input */
        const bool parts = g->kind == GROUP_SCATTER && scatter_parts(p) == 2;
        for (int k = g->kind == GROUP_ATTENTION || (parts && part); k < (parts && !part ? 1 : p->nin); k++)
            if (!g->packed || !pack_copies(f, g, k ? PACK_RIGHT : PACK_LEFT))
                collect_from(f, grp, p->in[k], g->kind == GROUP_SCAN && k == 0 ? f->at[g->core].map : NULL,
                             c);
    }
    if (g->kind == GROUP_ATTENTION) {
        const pnode *p = pass_at(f->g, g->inner_core), *s = pass_at(f->g, g->scores);
        for (int k = 0; k < s->rank; k++)
            map[k] = (int8_t)k;
        collect_from(f, grp, g->scores, map, c);
        for (int k = 0; k < p->nin; k++)
            collect_from(f, grp, p->in[k], NULL, c);
        collect_shape(c, s->rank, s->shape);
    }
    collect_shape(c, g->rank, g->space);
}

/* An input of the same shape and dtype as the first result, read where that is written: its memory may become
 * the result's. */
static uint32_t in_place(const lowering *w)
{
    const collected *c = w->c;
    const group *g = w->l.grp;
    if (g->kind == GROUP_SCATTER)
        return scatter_copies(w);
    if (g->kind != GROUP_MAP || g->inner || c->general || g->roots.len == 0)
        return 0;
    const reading *out = NULL;
    for (uint32_t i = 0; i < c->accesses.len && !out; i++)
        if (c->accesses.at[i].node == g->roots.at[0].node)
            out = &c->accesses.at[i];
    for (uint32_t i = 0; out && i < c->accesses.len; i++) {
        const reading *a = &c->accesses.at[i];
        bool once = a->node != out->node &&
                    pass_at(w->l.g, a->node)->dtype == pass_at(w->l.g, out->node)->dtype &&
                    !memcmp(a->stride, out->stride, sizeof a->stride);
        for (uint32_t k = 0; once && k < c->accesses.len; k++)
            once = c->accesses.at[k].node != a->node ||
                   !memcmp(c->accesses.at[k].stride, a->stride, sizeof a->stride);
        if (once && !(pass_at(w->l.g, a->node)->kind == KIND_LEAF && pass_at(w->l.g, a->node)->nwords))
            return a->node;
    }
    return 0;
}

/* Parameters that are read or written exactly where the first result is written, and of its dtype: any of the
 * results among them may take the memory of any of the inputs. */
static uint64_t alike(const lowering *w)
{
    const collected *c = w->c;
    const group *g = w->l.grp;
    uint64_t bits = 0;
    if (g->kind != GROUP_MAP || g->inner || c->general || g->roots.len == 0)
        return 0;
    const reading *out = NULL;
    for (uint32_t i = 0; i < c->accesses.len && !out; i++)
        if (c->accesses.at[i].node == g->roots.at[0].node)
            out = &c->accesses.at[i];
    for (uint32_t i = 0; out && i < w->use->params.len && i < 64; i++) {
        const use *u = &w->use->params.at[i];
        bool same =
                 u->what == USE_NODE && pass_at(w->l.g, u->node)->dtype == pass_at(w->l.g, out->node)->dtype,
             seen = false;
        for (uint32_t k = 0; same && k < c->accesses.len; k++)
            if (c->accesses.at[k].node == u->node) {
                seen = true;
                same = !memcmp(c->accesses.at[k].stride, out->stride, sizeof out->stride);
            }
        if (same && seen &&
            !(pass_at(w->l.g, u->node)->kind == KIND_LEAF && pass_at(w->l.g, u->node)->nwords))
            bits |= UINT64_C(1) << i;
    }
    return bits;
}

/* ---- the kinds of groups ---- */

static void lower_product(lowering *w)
{
    if (w->l.grp->packed)
        lower_pack(w);
    else if (conv_rows(w->l.f, w->l.grp))
        lower_conv(w);
    else if (conv_gradient_rows(w->l.f, w->l.grp))
        lower_conv_gradient(w);
    else
        lower_matmul(w);
}

static int product_parts(const fusion *f, const group *g) { return (void)f, g->packed ? PACK_PARTS : 1; }
static int scatter_parts_of(const fusion *f, const group *g) { return scatter_parts(pass_at(f->g, g->core)); }

static const struct {
    const char *name;
    void (*lower)(lowering *w);
    int (*parts)(const fusion *f, const group *g);
} kinds[] = {
#define EXEC_X(NAME, text, lower, parts) {text, lower, parts},
    GROUP_KINDS(EXEC_X)
#undef EXEC_X
};

const char *group_name(group_kind kind) { return kinds[kind].name; }
int group_parts(const fusion *f, const group *g)
{
    return kinds[g->kind].parts ? kinds[g->kind].parts(f, g) : 1;
}

/* ---- groups that were lowered before ---- */

/* The layers of a network are alike: what is computed is the same, on other tensors. */
typedef struct recipe {
    uint8_t key[32];
    eas_kernel *kernel;
    eas_dim grid[3];
    uint32_t in_place; /* which parameter; UINT32_MAX: none */
    uint64_t alike;
    bool maps, indexed, copies;
} recipe;
static recipe recipes[TABLE];

static recipe *recipe_of(const collected *c, uint8_t key[32])
{
    sha256 h;
    sha256_init(&h);
    sha256_add(&h, c->key.at, c->key.len);
    for (uint32_t i = 0; i < c->dims.len; i++) {
        int64_t most = dim_most(c->dims.at[i]);
        sha256_add(&h, &most, sizeof most);
    }
    sha256_done(&h, key);
    return &recipes[(key[0] | key[1] << 8) % TABLE];
}

static bool recall(lowering *w, const recipe *r, const uint8_t key[32])
{
    if (!r->kernel || memcmp(r->key, key, sizeof r->key))
        return false;
    w->use->kernel = eas_kernel_retain(r->kernel);
    memcpy(w->use->grid, r->grid, sizeof r->grid);
    w->use->in_place = r->in_place == UINT32_MAX ? 0 : w->use->params.at[r->in_place].node;
    w->use->alike = r->alike;
    w->use->maps = r->maps;
    w->use->indexed = r->indexed;
    w->use->copies = r->copies;
    return true;
}

static void remember(const lowering *w, recipe *r, const uint8_t key[32])
{
    if (r->kernel)
        eas_kernel_release(r->kernel);
    memcpy(r->key, key, sizeof r->key);
    r->kernel = eas_kernel_retain(w->use->kernel);
    memcpy(r->grid, w->use->grid, sizeof r->grid);
    r->alike = w->use->alike;
    r->maps = w->use->maps;
    r->indexed = w->use->indexed;
    r->copies = w->use->copies;
    r->in_place = UINT32_MAX;
    for (uint32_t i = 0; w->use->in_place && i < w->use->params.len; i++)
        if (w->use->params.at[i].what == USE_NODE && !w->use->params.at[i].written &&
            w->use->params.at[i].node == w->use->in_place)
            r->in_place = i;
}

/* ---- the kernel ---- */

static eas_status make(lowering *w)
{
    lower *l = &w->l;
    char name[64];
    const group_root *r = &l->grp->roots.at[0];
    snprintf(name, sizeof name, "%s",
             graph_rows[pass_at(l->g, l->grp->core ? l->grp->core : r->value)->op].name);
    eas_status st = eas_builder_new(name, EAS_KERNEL_NO_CONTRACT, &l->b);
    if (st)
        return st;
    add_params(w);
    w->use->in_place = in_place(w);
    w->use->alike = alike(w);
    w->use->maps = l->grp->kind == GROUP_MAP && !w->c->indexed;
    w->use->indexed = w->c->indexed;
    w->use->copies = w->l.grp->kind == GROUP_SCATTER && w->use->in_place;
    kinds[w->l.grp->kind].lower(w);
    eas_ir *ir = NULL;
    st = l->st ? l->st : eas_builder_finish(l->b, &ir);
    if (!st)
        st = kernel_of(ir, w->c->indexed, &w->use->kernel);
    eas_ir_release(ir);
    eas_builder_free(l->b);
    return st;
}

static eas_status build(lowering *w)
{
    uint8_t key[32];
    merge_dims(w);
    add_uses(w);
    if (w->l.st)
        return w->l.st;
    if (w->use->params.len > w->l.f->params)
        return EAS_ERR_UNAVAILABLE; /* smaller groups have fewer */
    if (w->c->indexed) /* its messages tell a line of its own */
        return make(w);
    recipe *r = recipe_of(w->c, key);
    if (recall(w, r, key))
        return EAS_OK;
    eas_status st = make(w);
    if (!st)
        remember(w, r, key);
    return st;
}

eas_status lower_group(const fusion *f, uint32_t grp, int part, kernel_use *out)
{
    arena mem = {0};
    collected c = {0};
    scratch *t = f->scratch;
    lowering w = {.l = {.g = f->g,
                        .f = f,
                        .grp = &f->groups.at[grp],
                        .mem = &mem,
                        .param = t->param,
                        .fold = t->fold,
                        .newest = t->newest},
                  .c = &c,
                  .use = out,
                  .part = part};
    memset(out, 0, sizeof *out);
    collect_group(f, grp, part, &c);
    w.l.dims = arena_alloc(&mem, (c.dims.len + MAX_DIMS + 2) * sizeof *w.l.dims);
    w.out = arena_alloc(&mem, (w.l.grp->roots.len + 1) * sizeof *w.out);
    eas_status st = mem.oom || c.oom || c.key.oom ? base_fail_oom(c.key.len) : build(&w);
    vec_free(&w.l.memos);
    collect_free(f, &c);
    arena_free(&mem);
    if (st)
        kernel_use_free(out);
    return st;
}
