/* control.c: loops and branches: plans that a step of a plan runs, with nothing in between but reading the
 * condition.
 *
 * Carried values go from the results of one trip to the inputs of the next. A trip may write its results
 * over its inputs if nothing else refers to that memory; else it takes new memory from the pool, which mostly
 * has that of the trip before. An element of a scanned tensor is a view of its memory, and a stacked result
 * is written to its place in the stack.
 */
#include "exec.h"

enum { BREATH = 256 }; /* after so many trips the host is asked whether to stop */

typedef struct control_fn {
    plan *p;
    uint32_t nleaves;
    uint32_t *leaf;   /* per leaf of the plan: which input */
    uint32_t nnumbers;
    struct {
        int which;    /* number of the step; -1: bits */
        int64_t bits;
    } *numbers;
} control_fn;
struct control_step {
    graph_control *c; /* counted */
    control_fn fn[2];
    int nfns;
};

/* ---- making ---- */

static void fn_free(control_fn *f)
{
    plan_release(f->p);
    free(f->leaf);
    free(f->numbers);
}

static eas_status fill_fn(control_fn *f, const graph_control *c, const pass_walk *w)
{
    f->nleaves = w->leaves.len;
    f->nnumbers = w->numbers.len;
    f->leaf = calloc(f->nleaves + 1, sizeof *f->leaf);
    f->numbers = calloc(f->nnumbers + 1, sizeof *f->numbers);
    if (!f->leaf || !f->numbers)
        return base_fail_oom(f->nleaves);
    for (uint32_t i = 0; i < f->nleaves; i++)
        f->leaf[i] = (uint32_t)node_words(w->leaves.at[i])[0];
    for (uint32_t i = 0; i < f->nnumbers; i++) {
        f->numbers[i].which = -1;
        f->numbers[i].bits = node_words(w->numbers.at[i])[0];
        for (int k = 0; k < c->nnumbers; k++)
            if (c->numbers[k] == w->numbers.at[i])
                f->numbers[i].which = k;
    }
    return EAS_OK;
}

/* The function shares no node with the graph around it, so this walk does not overwrite the marks of the walk
 * that it is part of. */
static eas_status fn_new(control_fn *f, const graph_control *c, const graph_fn *fn, eas_device *d,
                         int variant)
{
    pass_walk w;
    eas_status st = pass_walk_from(&w, fn->n, fn->outs);
    if (st)
        return st;
    w.held.len = 0;
    st = plan_new(&w, (uint32_t)fn->n, fn->outs, d, variant, &f->p);
    if (!st)
        st = fill_fn(f, c, &w);
    pass_walk_clear(&w);
    return st;
}

eas_status control_new(const graph_control *c, eas_device *d, int variant, control_step **out)
{
    control_step *s = calloc(1, sizeof *s);
    eas_status st = s ? EAS_OK : base_fail_oom(sizeof *s);
    *out = s;
    if (st)
        return st;
    s->c = (graph_control *)(uintptr_t)c;
    atomic_fetch_add(&s->c->refs, 1);
    for (s->nfns = 0; s->nfns < (c->branch ? 2 : 1) && !st; s->nfns++)
        st = fn_new(&s->fn[s->nfns], c, &c->fn[s->nfns], d, variant);
    return st; /* the step owns what there is, finished or not */
}

void control_free(control_step *s)
{
    if (!s)
        return;
    for (int i = 0; i < 2; i++)
        fn_free(&s->fn[i]);
    control_release(s->c);
    free(s);
}

bool control_same(const control_step *a, const control_step *b)
{
    if (!a || !b)
        return a == b;
    bool same = a->nfns == b->nfns;
    for (int i = 0; i < a->nfns && same; i++)
        same = plan_same(a->fn[i].p, b->fn[i].p);
    return same;
}

/* ---- running ---- */

typedef struct trips {
    const control_step *s;
    const plan_run *around;
    eas_device *device;
    eas_buffer *const *in;
    const int64_t *numbers; /* of the step */
    int64_t n; /* at most; -1: any number */
    eas_buffer **carried; /* counted */
    eas_buffer **stacked; /* counted */
    eas_buffer *views; /* parts of scanned, then of stacked */
    size_t *bytes; /* of one element of each of those */
    eas_buffer **leaf, **place, **out; /* of one trip */
    uint8_t *given;
    int64_t *own; /* numbers of one function */
} trips;

static eas_status read_flag(const trips *t, const eas_buffer *b, bool *out)
{
    uint8_t flag = 0;
    eas_status st = EAS_OK;
    if (eas_device_has_host_memory(t->device))
        flag = *(const uint8_t *)b->mem;
    else
        st = eas_device_copy(NULL, &flag, t->device, b->mem, 1, t->around->hooks);
    *out = flag != 0;
    return st;
}

static eas_status copy_within(const trips *t, eas_buffer *to, const eas_buffer *from)
{
    size_t n = eas_buffer_size(to);
    dev_buffer_changes(to);
    return n ? eas_device_copy(t->device, to->mem, t->device, from->mem, n, t->around->hooks) : EAS_OK;
}

static void fill_numbers(trips *t, const control_fn *f)
{
    for (uint32_t i = 0; i < f->nnumbers; i++)
        t->own[i] = f->numbers[i].which < 0 ? f->numbers[i].bits : t->numbers[f->numbers[i].which];
}

static plan_run run_of(const trips *t)
{
    plan_run r = *t->around;
    r.leaves = NULL;
    r.bufs = t->leaf;
    r.places = NULL;
    r.numbers = t->own;
    r.given = NULL;
    return r;
}

/* May the buffer be written? It is if the library owns it and this reference is the only one. */
static bool only_here(const eas_buffer *b)
{
    return b->owned && __atomic_load_n(&b->refs, __ATOMIC_ACQUIRE) == 1;
}

static void set_view(eas_buffer *view, const eas_buffer *of, size_t bytes, int64_t at)
{
    *view = *of;
    view->refs = 1; /* never freed: it lives with the loop */
    view->owned = false;
    view->done = NULL;
    view->host = NULL;
    view->sealed = false;
    view->packs = NULL;
    view->mem = (char *)of->mem + bytes * (size_t)at;
    view->size = bytes;
}

/* Memory of the leaves in trip `at`. */
static void set_leaves(trips *t, const control_fn *f, int64_t at)
{
    const graph_control *c = t->s->c;
    for (int i = 0; i < c->nscanned; i++)
        set_view(&t->views[i], t->in[c->ncarried + i], t->bytes[i], at);
    for (int i = 0; i < c->nstacked; i++)
        set_view(&t->views[c->nscanned + i], t->stacked[i], t->bytes[c->nscanned + i], at);
    for (uint32_t i = 0; i < f->nleaves; i++) {
        int k = (int)f->leaf[i];
        t->leaf[i] = k < c->ncarried               ? t->carried[k]
                   : k < c->ncarried + c->nscanned ? &t->views[k - c->ncarried]
                                                   : t->in[k];
        t->given[i] = k < c->ncarried && only_here(t->carried[k]);
    }
}

/* A stacked result is written directly to its place in the stack, unless another result shares its slot. */
static void set_places(trips *t, const control_fn *f)
{
    const graph_control *c = t->s->c;
    for (int i = 0; i < c->ncarried + c->nstacked; i++) {
        bool alone = i >= c->ncarried;
        for (int k = 0; k < c->ncarried + c->nstacked && alone; k++)
            alone = k == i || f->p->outs[k].slot != f->p->outs[i].slot;
        t->place[i] = alone ? &t->views[c->nscanned + i - c->ncarried] : NULL;
    }
}

/* A trip may carry on an element of a scanned or stacked array as it is. The view of that element is moved
 * to the next element before the next trip, so the carried value is copied to memory of its own. */
static eas_status keep_element(trips *t, eas_buffer **carried)
{
    const graph_control *c = t->s->c;
    eas_buffer *view = *carried, *own = NULL;
    if (view < t->views || view >= t->views + c->nscanned + c->nstacked)
        return EAS_OK;
    eas_status st = eas_buffer_new(t->device, eas_buffer_size(view), &own);
    if (!st && (st = copy_within(t, own, view))) {
        eas_buffer_release(own);
        own = NULL;
    }
    eas_buffer_release(view);
    *carried = own;
    return st;
}

static eas_status one_trip(trips *t, int64_t at)
{
    const graph_control *c = t->s->c;
    const control_fn *f = &t->s->fn[0];
    plan_run r = run_of(t);
    set_leaves(t, f, at);
    r.given = t->given;
    r.places = t->place;
    eas_status st = plan_go(f->p, &r, t->out);
    if (st)
        return st;
    for (int i = 0; i < c->ncarried; i++) {
        if (!st)
            st = keep_element(t, &t->out[i]);
        if (t->carried[i])
            eas_buffer_release(t->carried[i]);
        t->carried[i] = t->out[i];
    }
    for (int i = 0; i < c->nstacked; i++) {
        eas_buffer *made = t->out[c->ncarried + i], *place = &t->views[c->nscanned + i];
        if (made != place && !st)
            st = copy_within(t, place, made);
        eas_buffer_release(made);
    }
    return st;
}

/* Lets other threads of the host run, and asks whether to stop. */
static eas_status breathe(const eas_launch *h)
{
    if (h && h->leave && h->enter) {
        h->leave(h->ctx);
        h->enter(h->ctx);
    }
    return h && h->interrupted && h->interrupted(h->ctx)
             ? base_fail(EAS_ERR_INTERRUPTED, "eager.loop was interrupted")
             : EAS_OK;
}

static eas_status all_trips(trips *t)
{
    const graph_control *c = t->s->c;
    bool on = true;
    eas_status st = EAS_OK;
    fill_numbers(t, &t->s->fn[0]);
    set_places(t, &t->s->fn[0]);
    for (int64_t i = 0; !st && (t->n < 0 || i < t->n); i++) {
        if (c->conditional)
            st = read_flag(t, t->carried[0], &on);
        if (st || !on)
            break;
        if (i % BREATH == BREATH - 1)
            st = breathe(t->around->hooks);
        if (!st)
            st = one_trip(t, c->reverse ? t->n - 1 - i : i);
    }
    return st;
}

/* A result has memory of its own. */
static eas_status hand_over(trips *t, int nin, int n, eas_buffer **from, eas_buffer **outs)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++) {
        bool own = from[i]->owned;
        for (int k = 0; k < nin && own; k++)
            own = from[i] != t->in[k];
        for (int k = 0; k < i && own; k++)
            own = from[i] != outs[k];
        if (own) {
            outs[i] = eas_buffer_retain(from[i]);
            continue;
        }
        st = eas_buffer_new(t->device, eas_buffer_size(from[i]), &outs[i]);
        if (!st)
            st = copy_within(t, outs[i], from[i]);
    }
    return st;
}

static eas_status size_of(const plan_run *r, eas_dim d, int64_t *out)
{
    *out = d;
    return dim_known(d) ? EAS_OK : dim_eval(d, r->nsymbols, r->symbols, r->sizes, out);
}

static eas_status bytes_of(const plan_run *r, const eas_node *n, size_t *out)
{
    int64_t count;
    eas_dim all = dim_product(n->rank, node_shape(n));
    eas_status st = all == DIM_NONE ? EAS_ERR_VALUE : size_of(r, all, &count);
    *out = st ? 0 : (size_t)count * eas_dtype_size((eas_dtype)n->dtype);
    return st;
}

/* Memory for what is stacked, and how much one element takes. */
static eas_status open_arrays(trips *t)
{
    const graph_control *c = t->s->c;
    eas_status st = c->length == DIM_NONE ? EAS_OK : size_of(t->around, c->length, &t->n);
    if (!st && c->length != DIM_NONE && t->n < 0)
        st = base_fail(EAS_ERR_VALUE, "eager.loop: a length of %lld", (long long)t->n);
    for (int i = 0; i < c->nscanned && !st; i++)
        t->bytes[i] = t->n ? eas_buffer_size(t->in[c->ncarried + i]) / (size_t)t->n : 0;
    for (int i = 0; i < c->nstacked && !st; i++) {
        size_t *bytes = &t->bytes[c->nscanned + i];
        st = bytes_of(t->around, c->fn[0].outs[c->ncarried + i], bytes);
        if (!st)
            st = eas_buffer_new(t->device, *bytes * (size_t)t->n, &t->stacked[i]);
    }
    return st;
}

static eas_status run_loop(trips *t, eas_buffer **outs)
{
    const graph_control *c = t->s->c;
    eas_status st = EAS_OK;
    for (int i = 0; i < c->ncarried; i++)
        t->carried[i] = eas_buffer_retain(t->in[i]);
    st = open_arrays(t);
    if (!st)
        st = all_trips(t);
    if (!st)
        st = hand_over(t, c->nin, c->ncarried, t->carried, outs);
    for (int i = 0; i < c->nstacked && !st; i++)
        outs[c->ncarried + i] = eas_buffer_retain(t->stacked[i]);
    for (int i = 0; i < c->ncarried; i++)
        if (t->carried[i])
            eas_buffer_release(t->carried[i]);
    for (int i = 0; i < c->nstacked; i++)
        if (t->stacked[i])
            eas_buffer_release(t->stacked[i]);
    return st;
}

static eas_status run_branch(trips *t, eas_buffer **outs)
{
    bool on;
    eas_status st = read_flag(t, t->in[0], &on);
    if (st)
        return st;
    const control_fn *f = &t->s->fn[on];
    int n = t->s->c->fn[on].n;
    fill_numbers(t, f);
    for (uint32_t i = 0; i < f->nleaves; i++)
        t->leaf[i] = t->in[f->leaf[i]];
    plan_run r = run_of(t);
    st = plan_go(f->p, &r, t->out);
    if (st)
        return st;
    st = hand_over(t, t->s->c->nin, n, t->out, outs);
    for (int i = 0; i < n; i++)
        eas_buffer_release(t->out[i]);
    return st;
}

eas_status control_run(const control_step *s, const plan_run *r, eas_device *d, eas_buffer *const *in,
                       const int64_t *numbers, eas_buffer **outs)
{
    arena mem = {0};
    const graph_control *c = s->c;
    trips t = {.s = s, .around = r, .device = d, .in = in, .numbers = numbers, .n = -1};
    size_t nleaves = 0, nnumbers = 0, nouts = 0, arrays = (size_t)(c->nscanned + c->nstacked);
    for (int i = 0; i < s->nfns; i++) {
        nleaves = s->fn[i].nleaves > nleaves ? s->fn[i].nleaves : nleaves;
        nnumbers = s->fn[i].nnumbers > nnumbers ? s->fn[i].nnumbers : nnumbers;
        nouts = s->fn[i].p->nouts > nouts ? s->fn[i].p->nouts : nouts;
    }
    t.carried = arena_alloc(&mem, sizeof *t.carried * (size_t)(c->ncarried + 1));
    t.stacked = arena_alloc(&mem, sizeof *t.stacked * (size_t)(c->nstacked + 1));
    t.views = arena_alloc(&mem, sizeof *t.views * (arrays + 1));
    t.bytes = arena_alloc(&mem, sizeof *t.bytes * (arrays + 1));
    t.leaf = arena_alloc(&mem, sizeof *t.leaf * (nleaves + 1));
    t.given = arena_alloc(&mem, nleaves + 1);
    t.place = arena_alloc(&mem, sizeof *t.place * (nouts + 1));
    t.out = arena_alloc(&mem, sizeof *t.out * (nouts + 1));
    t.own = arena_alloc(&mem, sizeof *t.own * (nnumbers + 1));
    memset(outs, 0, sizeof *outs * (nouts));
    eas_status st = mem.oom ? base_fail_oom(nouts) : c->branch ? run_branch(&t, outs) : run_loop(&t, outs);
    for (size_t i = 0; i < nouts && st; i++)
        if (outs[i]) {
            eas_buffer_release(outs[i]);
            outs[i] = NULL;
        }
    arena_free(&mem);
    return st;
}
