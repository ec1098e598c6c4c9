/* plan_run.c: a plan is run: memory comes from the device's pool just before a step needs it and goes back
 * after the last one that does. */
#include "exec.h"

#include <stdio.h>

_Atomic uint64_t plan_steps_done;

typedef struct running {
    const plan *p;
    const plan_run *r;
    eas_buffer **buf; /* per slot */
    bool *owned; /* counted by the run */
    struct started {
        void *request;
        bool open;
    } *started; /* per collective */
    uint32_t nstarted; /* that are open */
    /* Memory of leaves that were given away and that no later step reads: results of their size take it. */
    VEC(struct spare {
        eas_buffer *buf;
        bool taken;
    })
    spares;
} running;

/* A spare buffer of exactly that size, or NULL. */
static eas_buffer *take_spare(running *x, size_t nbytes)
{
    for (uint32_t k = 0; k < x->spares.len; k++) {
        struct spare *s = &x->spares.at[k];
        if (!s->taken && eas_buffer_size(s->buf) == nbytes) {
            s->taken = true;
            dev_buffer_changes(s->buf);
            return eas_buffer_retain(s->buf);
        }
    }
    return NULL;
}

static bool was_spare(const running *x, const eas_buffer *b)
{
    for (uint32_t k = 0; k < x->spares.len; k++)
        if (x->spares.at[k].buf == b)
            return true;
    return false;
}

/* b is read no more. What was a spare buffer is one again. */
static void let_go(running *x, eas_buffer *b)
{
    for (uint32_t k = 0; k < x->spares.len; k++)
        if (x->spares.at[k].buf == b)
            x->spares.at[k].taken = false;
    eas_buffer_release(b);
}

static eas_status size_of(const running *x, eas_dim d, int64_t *out)
{
    if (dim_known(d)) {
        *out = d;
        return EAS_OK;
    }
    return dim_eval(d, x->r->nsymbols, x->r->symbols, x->r->sizes, out);
}

static eas_status need(running *x, uint32_t i)
{
    const slot *s = &x->p->slots[i];
    int64_t n;
    if (x->buf[i])
        return EAS_OK;
    if (s->takes != SLOT_NONE && x->owned[s->takes]) {
        x->buf[i] = x->buf[s->takes];
        x->owned[i] = true;
        x->owned[s->takes] = false; /* still read by this step, from the same place */
        return EAS_OK;
    }
    eas_status st = size_of(x, s->count, &n);
    if (st)
        return st;
    if (n < 0 || (uint64_t)n > SIZE_MAX / 16)
        return base_fail(EAS_ERR_MEMORY, "eager: a tensor of %lld elements", (long long)n);
    const size_t nbytes = (size_t)n * eas_dtype_size((eas_dtype)s->dtype);
    x->buf[i] = take_spare(x, nbytes);
    st = x->buf[i] ? EAS_OK : eas_buffer_new(x->p->device, nbytes, &x->buf[i]);
    x->owned[i] = !st;
    if (!st && !was_spare(x, x->buf[i]))
        dev_seal(x->buf[i]);
    return st;
}

/* The first result takes the memory of a donated leaf. */
static void take_given(running *x, const plan_step *s)
{
    if (s->nouts <= 0 || s->reuse == SLOT_NONE || !x->r->given)
        return;
    uint32_t to = s->args[0].index, leaf = x->p->slots[s->reuse].leaf;
    if (leaf == SLOT_NONE || !x->r->given[leaf] || x->buf[to] ||
        eas_buffer_size(x->buf[s->reuse]) !=
            (size_t)x->p->slots[to].count * eas_dtype_size((eas_dtype)x->p->slots[to].dtype))
        return;
    x->buf[to] = eas_buffer_retain(x->buf[s->reuse]);
    x->owned[to] = true;
    dev_buffer_changes(x->buf[to]);
}

/* Likewise for the other results: each takes the memory of a donated leaf of its size. */
static void take_alike(running *x, const plan_step *s)
{
    uint64_t left = s->alike;
    if (!left || !x->r->given)
        return;
    for (int i = 0; i < s->nouts && i < 64; i++) {
        const uint32_t to = s->args[i].index;
        if (!(s->alike >> i & 1) || x->buf[to])
            continue;
        for (int k = s->nouts; k < s->nargs && k < 64; k++) {
            const uint32_t from = s->args[k].index;
            if (!(left >> k & 1) || from == s->reuse || !x->r->given[x->p->slots[from].leaf] ||
                eas_buffer_size(x->buf[from]) !=
                    (size_t)x->p->slots[to].count * eas_dtype_size((eas_dtype)x->p->slots[to].dtype))
                continue;
            x->buf[to] = eas_buffer_retain(x->buf[from]);
            x->owned[to] = true;
            dev_buffer_changes(x->buf[to]);
            left &= ~(UINT64_C(1) << k);
            break;
        }
    }
}

static eas_status fill_arg(running *x, const struct plan_arg *a, eas_arg *out)
{
    memset(out, 0, sizeof *out);
    out->dtype = a->dtype;
    if (a->what == USE_NODE) {
        const eas_buffer *b = x->buf[a->index];
        out->is_buffer = 1;
        out->v.data = b->mem;
        out->count = (int64_t)(eas_buffer_size(b) / eas_dtype_size((eas_dtype)a->dtype));
        return EAS_OK;
    }
    if (a->what == USE_DIM)
        return size_of(x, a->dim, &out->v.i);
    int64_t bits = a->index == SLOT_NONE ? a->bits : x->r->numbers[a->index];
    if (dtype_is_float((eas_dtype)a->dtype))
        out->v.f = ir_bits_to_double((eas_dtype)a->dtype, bits);
    else
        out->v.i = bits;
    return EAS_OK;
}

/* Replaces the message of a kernel of the lowering: it names a place in memory, which tells users nothing.
 * Such kernels can only fail at an index that is data, so the new message speaks of that. */
static eas_status bad_index(void)
{
    const char *file;
    int line;
    eas_error_place(&file, &line);
    return base_fail_at(EAS_ERR_INDEX, file, (uint32_t)line,
                        "an index is out of range for the axis that it selects from");
}

static eas_status run_control(running *x, const plan_step *s)
{
    enum { FEW = 32 };
    eas_buffer *few[FEW], **in = s->nargs <= FEW ? few : malloc(sizeof *in * (size_t)s->nargs);
    int64_t numbers_few[FEW],
        *numbers = s->nargs <= FEW ? numbers_few : malloc(sizeof *numbers * (size_t)s->nargs);
    int nin = 0, nnumbers = 0;
    eas_status st = in && numbers ? EAS_OK : base_fail_oom((size_t)s->nargs);
    for (int i = 0; i < s->nargs && !st; i++) {
        const struct plan_arg *a = &s->args[i];
        if (a->what != USE_NODE) {
            numbers[nnumbers++] = a->index == SLOT_NONE ? a->bits : x->r->numbers[a->index];
            continue;
        }
        st = need(x, a->index);
        in[nin++] = x->buf[a->index];
    }
    if (!st)
        st = control_run(s->control, x->r, x->p->device, in, numbers, &x->buf[s->reuse]);
    for (int i = 0; i < -s->nouts && !st; i++)
        x->owned[s->reuse + (uint32_t)i] = true;
    if (in != few)
        free(in);
    if (numbers != numbers_few)
        free(numbers);
    return st;
}

static eas_status start_collective(running *x, const plan_step *s)
{
    enum { FEW = 8 };
    int n = s->nargs / 2;
    eas_dtype few_dtypes[FEW], *dtypes = n <= FEW ? few_dtypes : malloc(sizeof *dtypes * (size_t)n);
    eas_buffer *few[2 * FEW], **bufs = n <= FEW ? few : malloc(sizeof *bufs * (size_t)s->nargs);
    eas_status st = bufs && dtypes ? EAS_OK : base_fail_oom((size_t)s->nargs);
    for (int i = 0; i < s->nargs && !st; i++) {
        st = need(x, s->args[i].index);
        bufs[i] = x->buf[s->args[i].index];
    }
    for (int i = 0; i < n && !st; i++)
        dtypes[i] = (eas_dtype)s->args[i].dtype;
    if (!st)
        st = x->r->comm->start(x->r->comm->ctx, s->collective, n, dtypes, bufs, bufs + n, x->r->hooks,
                               &x->started[s->number].request);
    x->started[s->number].open = !st;
    x->nstarted += !st;
    if (bufs != few)
        free(bufs);
    if (dtypes != few_dtypes)
        free(dtypes);
    return st;
}

static eas_status wait_collective(running *x, uint32_t number)
{
    x->started[number].open = false;
    x->nstarted--;
    return x->r->comm->wait(x->r->comm->ctx, x->started[number].request, x->r->hooks);
}

static bool runs_kernels_of_users(const plan *p)
{
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].kernel && p->steps[i].nouts <= 0)
            return true;
    return false;
}

/* On a device whose launches are not awaited, a kernel's bad index is found here, where data leaves it. */
static eas_status run_collective(running *x, const plan_step *s)
{
    eas_status st = s->phase == STEP_START ? start_collective(x, s) : wait_collective(x, s->number);
    return st == EAS_ERR_INDEX && !runs_kernels_of_users(x->p) ? bad_index() : st;
}

/* After a failure: collectives that were started are awaited, so that none writes to memory that is freed. */
static void abandon_collectives(running *x)
{
    for (uint32_t i = 0; x->started && i < x->p->ncomms; i++)
        if (x->started[i].open)
            wait_collective(x, i);
}

static eas_launch options_of(const running *x)
{
    eas_launch o = x->r->hooks ? *x->r->hooks : (eas_launch){.size = sizeof o};
    o.has_grid = 1;
    return o;
}

/* Steps that do not depend on each other: one launch. Memory of all is there before any runs, and let go of
 * after. */
static eas_status run_many(running *x, const plan_step *s, int n)
{
    kernel_call calls[JOIN_MOST];
    int nargs = 0, count = 0;
    for (int i = 0; i < n; i++)
        nargs += s[i].nargs;
    eas_arg *args = malloc((size_t)nargs * sizeof *args), *at = args;
    eas_status st = args ? EAS_OK : base_fail_oom((size_t)nargs * sizeof *args);
    for (int i = 0; i < n && !st; i++) {
        kernel_call *c = &calls[count];
        *c = (kernel_call){.kernel = s[i].kernel, .args = at, .nargs = s[i].nargs};
        bool empty = false;
        take_given(x, &s[i]);
        take_alike(x, &s[i]);
        for (int k = 0; k < s[i].nargs && !st; k++)
            if (s[i].args[k].what == USE_NODE)
                st = need(x, s[i].args[k].index);
        for (int k = 0; k < 3 && !st; k++) {
            st = size_of(x, s[i].grid[k], &c->grid[k]);
            empty |= c->grid[k] == 0;
        }
        for (int k = 0; k < s[i].nargs && !st && !empty; k++)
            st = fill_arg(x, &s[i].args[k], at++);
        count += !empty;
    }
    eas_launch o = options_of(x);
    atomic_fetch_add_explicit(&plan_steps_done, count > 0, memory_order_relaxed);
    if (!st && count)
        st = kernel_launch_many(count, calls, x->p->device, &o);
    free(args);
    return st == EAS_ERR_INDEX ? bad_index() : st;
}

static eas_status run_native(running *x, const plan_step *s)
{
    enum { MOST = 16 };
    eas_buffer *in[MOST];
    eas_status st = EAS_OK;
    for (int i = 0; i < s->nargs && !st; i++) {
        st = need(x, s->args[i].index);
        in[i] = x->buf[s->args[i].index];
    }
    for (int i = 0; i < -s->nouts && !st; i++)
        st = need(x, s->reuse + (uint32_t)i);
    atomic_fetch_add_explicit(&plan_steps_done, 1, memory_order_relaxed);
    return st ? st : native_run(s->native, x->r, x->p->device, s->nargs, in, -s->nouts, &x->buf[s->reuse]);
}

/* A copy whose result took the memory of what it copies. */
static bool copied_already(const running *x, const plan_step *s)
{
    for (int i = 1; s->copies && i < s->nargs; i++)
        if (s->args[i].what == USE_NODE && x->buf[s->args[i].index] == x->buf[s->args[0].index])
            return true;
    return false;
}

static eas_status run_step(running *x, const plan_step *s)
{
    eas_arg args[IR_MAX_PARAMS];
    eas_launch o = options_of(x);
    eas_status st = EAS_OK;
    take_given(x, s);
    take_alike(x, s);
    for (int i = 0; i < s->nargs && !st; i++)
        if (s->args[i].what == USE_NODE)
            st = need(x, s->args[i].index);
    for (int i = 0; i < -s->nouts && !st; i++)
        st = need(x, s->reuse + (uint32_t)i);
    if (!st && copied_already(x, s))
        return EAS_OK;
    if (s->grid[0] == -1) /* a kernel of the user's that finds its own */
        o.has_grid = 0;
    for (int i = 0; i < 3 && !st && o.has_grid; i++) {
        st = size_of(x, s->grid[i], &o.grid[i]);
        if (!st && o.grid[i] == 0)
            return EAS_OK;
    }
    for (int i = 0; i < s->nargs && !st; i++)
        st = fill_arg(x, &s->args[i], &args[i]);
    atomic_fetch_add_explicit(&plan_steps_done, 1, memory_order_relaxed);
    if (!st)
        st = eas_kernel_launch(s->kernel, x->p->device, args, s->nargs, &o);
    return st == EAS_ERR_INDEX && s->nouts > 0 ? bad_index() : st;
}

/* A factor of a product that is laid out, unless it still lies so from an earlier run. */
static eas_status run_packing(running *x, const plan_step *s)
{
    packs_use u;
    const uint32_t to = s->args[0].index;
    x->buf[to] = packs_find(s, x->r, x->buf, &u);
    x->owned[to] = x->buf[to] != NULL;
    if (x->buf[to])
        return EAS_OK;
    eas_status st = run_step(x, s);
    if (!st && !was_spare(x, x->buf[to])) /* a later step of this run may write to spare memory */
        packs_keep(&u, x->buf[to]);
    return st;
}

/* Is slot k a leaf that was given away, and has no result taken its memory in this step? */
static bool is_spare(const running *x, const plan_step *s, uint32_t k)
{
    const slot *leaf = &x->p->slots[k];
    if (!leaf->ends || !x->r->given || !x->r->given[leaf->leaf] || !x->buf[k])
        return false;
    for (int i = 0; i < s->nouts; i++)
        if (x->buf[s->args[i].index] == x->buf[k])
            return false;
    return !was_spare(x, x->buf[k]);
}

static void let_go_after(running *x, uint32_t step)
{
    const plan_step *s = &x->p->steps[step];
    for (int i = 0; i < s->nargs; i++) {
        uint32_t k = s->args[i].index;
        if (s->args[i].what != USE_NODE || x->p->slots[k].last != step || x->p->slots[k].kept)
            continue;
        if (!x->owned[k]) {
            if (is_spare(x, s, k)) /* without memory for the list it is not used again: nothing is lost */
                (void)vec_push(&x->spares, ((struct spare){x->buf[k], false}));
            continue;
        }
        let_go(x, x->buf[k]);
        x->buf[k] = NULL;
        x->owned[k] = false;
    }
}

static eas_status hand_over(running *x, eas_buffer **outs)
{
    for (uint32_t i = 0; i < x->p->nouts; i++) {
        uint32_t k = x->p->outs[i].slot;
        eas_status st = need(x, k); /* of a tensor that no step wrote: it is empty */
        if (st) {
            while (i > 0)
                eas_buffer_release(outs[--i]);
            return st;
        }
        outs[i] = x->owned[k] ? x->buf[k] : eas_buffer_retain(x->buf[k]);
        x->owned[k] = false; /* the run's count is the result's; a second result of the slot has its own */
    }
    return EAS_OK;
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)*(eas_kernel *const *)a, y = (uintptr_t)*(eas_kernel *const *)b;
    return (x > y) - (x < y);
}

/* The first time: all kernels of the plan are compiled beside each other, instead of one by one when each is
 * launched. */
static void compile_kernels(plan *p, const plan_run *r)
{
    if (atomic_load_explicit(&p->compiled, memory_order_relaxed) || atomic_exchange(&p->compiled, true))
        return;
    eas_kernel **kernels = malloc(sizeof(eas_kernel *) * (p->nsteps + 1));
    int all = 0, n = 0;
    for (uint32_t i = 0; kernels && i < p->nsteps; i++)
        if (p->steps[i].kernel && p->steps[i].nouts > 0 && !p->steps[i].indexed)
            kernels[all++] = p->steps[i].kernel;
    if (all > 1)
        qsort(kernels, (size_t)all, sizeof *kernels, by_address);
    for (int i = 0; i < all; i++)
        if (i == 0 || kernels[i] != kernels[n - 1])
            kernels[n++] = kernels[i];
    if (n)
        kernel_compile_ahead(n, kernels, p->device, r->hooks);
    free(kernels);
}

eas_status plan_go(plan *p, const plan_run *r, eas_buffer **outs)
{
    enum { FEW = 64 };
    eas_buffer *few[FEW];
    bool few_owned[FEW];
    running x = {.p = p, .r = r, .buf = few, .owned = few_owned};
    eas_status st = EAS_OK;
    compile_kernels(p, r);
    if (p->nslots > FEW) {
        x.buf = malloc(sizeof *x.buf * p->nslots);
        x.owned = malloc(sizeof *x.owned * p->nslots);
    }
    if (!x.buf || !x.owned)
        st = base_fail_oom(p->nslots);
    for (uint32_t i = 0; i < p->nslots && !st; i++) {
        uint32_t leaf = p->slots[i].leaf;
        x.owned[i] = false;
        x.buf[i] = leaf == SLOT_NONE ? NULL
                 : r->bufs           ? r->bufs[leaf]
                                     : atomic_load_explicit(&r->leaves[leaf]->buf, memory_order_acquire);
    }
    if (p->ncomms && !st && !(x.started = calloc(p->ncomms, sizeof *x.started)))
        st = base_fail_oom(p->ncomms);
    bool ready = !st;
    for (uint32_t i = 0; r->places && i < p->nouts && !st; i++) {
        uint32_t k = p->outs[i].slot;
        if (r->places[i] && p->slots[k].leaf == SLOT_NONE && !x.buf[k]) {
            x.buf[k] = r->places[i];
            dev_buffer_changes(x.buf[k]);
        }
    }
    for (uint32_t i = 0, n; i < p->nsteps && !st; i += n) {
        for (n = 1; i + n < p->nsteps && p->steps[i + n].joins; n++)
            ;
        const plan_step *s = &p->steps[i];
        if (n > 1)
            st = run_many(&x, s, (int)n);
        else
            st = s->control    ? run_control(&x, s)
               : s->collective ? run_collective(&x, s)
               : s->native     ? run_native(&x, s)
               : s->packs      ? run_packing(&x, s)
                               : run_step(&x, s);
        for (uint32_t k = i; k < i + n && !st; k++)
            let_go_after(&x, k);
        if (x.nstarted && !st)
            r->comm->poll(r->comm->ctx);
    }
    if (st && x.nstarted) { /* the first failure is the one that is reported */
        base_error first;
        base_error_keep(&first, st);
        abandon_collectives(&x);
        st = base_error_raise(&first);
    }
    free(x.started);
    if (!st)
        st = hand_over(&x, outs);
    vec_free(&x.spares);
    for (uint32_t i = 0; i < p->nslots && ready; i++)
        if (x.owned[i])
            eas_buffer_release(x.buf[i]);
    if (x.buf != few) {
        free(x.buf);
        free(x.owned);
    }
    return st;
}
