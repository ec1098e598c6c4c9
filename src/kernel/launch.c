/* launch.c: from a call to running code: arguments checked and packed, the form chosen by what this launch's
 * values prove, and given to a stream.
 *
 * Order matters: everything that can refuse a launch comes before anything runs, so a refused launch leaves
 * outputs untouched.
 */
#include "kernel.h"

#include <stdio.h>

/* ---- arguments ---- */

static eas_status bad_arg(const eas_kernel *k, int i, const char *fmt, ...) BASE_PRINTF(3, 4);
static eas_status bad_arg(const eas_kernel *k, int i, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return base_fail(EAS_ERR_TYPE, "kernel %s, argument \"%s\": %s", k->ir->name, k->ir->params[i].name,
                     text);
}

static eas_status refuse_buffer(const eas_kernel *k, int i, const eas_arg *a)
{
    const kernel_param *q = &k->params[i];
    if (!a->is_buffer)
        return bad_arg(k, i, "expected a buffer of %s, got a scalar", eas_dtype_name(q->dtype));
    if (a->dtype != q->dtype)
        return bad_arg(k, i, "expected a buffer of %s, got %s", eas_dtype_name(q->dtype),
                       eas_dtype_name(a->dtype));
    if (a->flags & EAS_ARG_READONLY && q->written)
        return base_fail(EAS_ERR_VALUE,
                         "kernel %s, argument \"%s\": the kernel writes to it and it is read-only",
                         k->ir->name, k->ir->params[i].name);
    if (a->count > 0 && a->v.data)
        return base_fail(
            EAS_ERR_VALUE,
            "kernel %s, argument \"%s\": its address is not a multiple of %d bytes, the size of an element of %s; pass a copy",
            k->ir->name, k->ir->params[i].name, 1 << q->log2_size, eas_dtype_name(q->dtype));
    return base_fail(EAS_ERR_VALUE, "kernel %s, argument \"%s\": no memory behind it", k->ir->name,
                     k->ir->params[i].name);
}

static eas_status pack_buffer(const eas_kernel *k, int i, const eas_arg *a, packed *p)
{
    const kernel_param *q = &k->params[i];
    bool readonly = a->flags & EAS_ARG_READONLY;
    const uintptr_t odd = (uintptr_t)a->v.data & (((uintptr_t)1 << q->log2_size) - 1);
    if (!a->is_buffer || a->dtype != q->dtype || (readonly && q->written) || a->count < 0 ||
        (a->count && (!a->v.data || odd)))
        return refuse_buffer(k, i, a);
    p->slot[i] = (uint64_t)(uintptr_t)a->v.data;
    p->count[i] = p->key[3 + i] = a->count;
    p->bytes += (uint64_t)a->count << q->log2_size;
    return EAS_OK;
}

/* A scalar arrives in the IR's dtype; a float may have become narrower there than the caller's. */
static eas_status pack_scalar(const eas_kernel *k, int i, const eas_arg *a, packed *p)
{
    const kernel_param *q = &k->params[i];
    if (a->is_buffer)
        return bad_arg(k, i, "expected a scalar (%s), got a buffer of %s", eas_dtype_name(q->dtype),
                       eas_dtype_name(a->dtype));
    p->count[i] = 0;
    if (q->is_float) {
        double d = dtype_is_float(a->dtype) ? a->v.f : (double)a->v.i;
        p->slot[i] = (uint64_t)ir_bits_from_double(q->dtype, d);
        p->key[3 + i] = 0;
        return EAS_OK;
    }
    if (a->dtype != q->dtype)
        return bad_arg(k, i, "expected %s, got %s", eas_dtype_name(q->dtype), eas_dtype_name(a->dtype));
    p->slot[i] = (uint64_t)a->v.i;
    p->key[3 + i] = a->v.i;
    return EAS_OK;
}

static eas_status pack(const eas_kernel *k, const eas_arg *args, int nargs, packed *p)
{
    if (nargs != k->nparams)
        return base_fail(EAS_ERR_TYPE, "kernel %s takes %d arguments, got %d", k->ir->name, k->nparams,
                         nargs);
    p->bytes = 0;
    for (int i = 0; i < nargs; i++) {
        eas_status st =
            k->params[i].is_buffer ? pack_buffer(k, i, &args[i], p) : pack_scalar(k, i, &args[i], p);
        if (st)
            return st;
    }
    return EAS_OK;
}

static eas_status count_programs(const eas_kernel *k, packed *p)
{
    int64_t n = 1;
    for (int i = 0; i < 3; i++) {
        p->key[i] = p->grid[i];
        if (__builtin_mul_overflow(n, p->grid[i], &n))
            return base_fail(EAS_ERR_VALUE, "kernel %s: a grid of %lld x %lld x %lld is too large",
                             k->ir->name, (long long)p->grid[0], (long long)p->grid[1],
                             (long long)p->grid[2]);
    }
    p->programs = n;
    return EAS_OK;
}

/* ---- what this launch proves ---- */

typedef struct verdict {
    ir_proof proof;
    int8_t narrow; /* as in kernel_memo */
    bool sums;
    double cost;
} verdict;

static ir_env env_of(const eas_kernel *k, const packed *p, ir_range scalar[IR_MAX_PARAMS])
{
    for (int i = 0; i < k->nparams; i++)
        scalar[i] = (ir_range){p->key[3 + i], p->key[3 + i]};
    return (ir_env){.scalar = scalar, .grid = {p->grid[0], p->grid[1], p->grid[2]}, .count = p->count};
}

static verdict prove(eas_kernel *k, const packed *p)
{
    ir_range scalar[IR_MAX_PARAMS];
    ir_env env = env_of(k, p, scalar);
    const kernel_estimate e = kernel_cost(k, &env);
    return (verdict){.proof = ir_in_bounds(k->ir, &env, NULL),
                     .narrow = -1,
                     .sums = k->adds && kernel_sums_pay(k, p->count, e.adds * (double)p->programs),
                     .cost = e.ns};
}

/* May this launch run the 32-bit form? There may be none: then the answer is no. */
static eas_status prove_narrow(eas_kernel *k, const packed *p, verdict *v)
{
    ir_range scalar[IR_MAX_PARAMS];
    ir_env env = env_of(k, p, scalar);
    eas_ir *narrow;
    eas_status st = kernel_narrowed(k, &narrow);
    v->narrow = !st && narrow != k->ir && ir_narrow_ok(k->ir, &k->need, &env);
    return st;
}

static size_t key_bytes(const eas_kernel *k) { return (size_t)(3 + k->nparams) * sizeof(int64_t); }

/* Another thread holding the table is no reason to wait: proving again is cheap enough. */
static bool recall(eas_kernel *k, const packed *p, verdict *out)
{
    bool found = false;
    if (atomic_flag_test_and_set_explicit(&k->memo_lock, memory_order_acquire))
        return false;
    for (uint32_t n = 0; n < MEMOS && !found; n++) {
        const kernel_memo *m = &k->memo[(k->memo_next + MEMOS - 1 - n) % MEMOS];
        if (!m->key)
            break;
        found = !memcmp(m->key, p->key, key_bytes(k));
        *out = (verdict){(ir_proof)m->proof, m->narrow, m->sums, m->cost};
    }
    atomic_flag_clear_explicit(&k->memo_lock, memory_order_release);
    return found;
}

static void remember(eas_kernel *k, const packed *p, verdict v)
{
    if (atomic_flag_test_and_set_explicit(&k->memo_lock, memory_order_acquire))
        return;
    kernel_memo *m = &k->memo[k->memo_next % MEMOS];
    if (!m->key)
        m->key = malloc(key_bytes(k));
    if (m->key) {
        memcpy(m->key, p->key, key_bytes(k));
        m->proof = (uint8_t)v.proof;
        m->narrow = v.narrow;
        m->sums = v.sums;
        m->cost = v.cost;
        k->memo_next = (k->memo_next + 1) % MEMOS;
    }
    atomic_flag_clear_explicit(&k->memo_lock, memory_order_release);
}

/* Hot path of every launch: forced inline. */
#define IN_LINE static inline __attribute__((always_inline))

IN_LINE eas_status judge(eas_kernel *k, const eas_device *d, const packed *p, verdict *v)
{
    bool known = recall(k, p, v);
    eas_status st = EAS_OK;
    if (!known)
        *v = prove(k, p);
    if (d->text && v->narrow < 0) {
        st = prove_narrow(k, p, v);
        known = false;
    }
    if (!known && !st)
        remember(k, p, *v);
    return st;
}

/* Do a written buffer and another one overlap? Exactly equal ones only matter to code that is sensitive to
 * it. */
IN_LINE bool overlaps(const eas_kernel *k, const packed *p, bool sensitive)
{
    for (int i = 0; i < k->nparams; i++) {
        const kernel_param *q = &k->params[i];
        if (!q->written)
            continue;
        uint64_t lo = p->slot[i], hi = lo + ((uint64_t)p->count[i] << q->log2_size);
        for (int j = 0; j < k->nparams; j++) {
            const kernel_param *o = &k->params[j];
            uint64_t lo2 = p->slot[j], hi2 = lo2 + ((uint64_t)p->count[j] << o->log2_size);
            if (o->is_buffer && j != i && lo < hi2 && lo2 < hi &&
                (sensitive || lo != lo2 || o->log2_size != q->log2_size))
                return true;
        }
    }
    return false;
}

/* Does memory that is changed atomically belong to another argument as well? */
static bool atomics_overlap(const eas_kernel *k, const packed *p)
{
    for (int i = 0; i < k->nparams; i++) {
        const uint64_t lo = p->slot[i], hi = lo + ((uint64_t)p->count[i] << k->params[i].log2_size);
        for (int j = 0; j < k->nparams && k->params[i].atomic; j++) {
            const uint64_t lo2 = p->slot[j], hi2 = lo2 + ((uint64_t)p->count[j] << k->params[j].log2_size);
            if (k->params[j].is_buffer && j != i && lo < hi2 && lo2 < hi)
                return true;
        }
    }
    return false;
}

/* ---- the launch ---- */

/* Compiling takes long: the caller's lock is not held meanwhile. */
static eas_status code_of(eas_kernel *k, int device, unsigned form, const eas_launch *o, dev_code **code)
{
    *code = atomic_load_explicit(&k->code[device][form], memory_order_acquire);
    if (*code)
        return EAS_OK;
    bool locks = o && o->leave && o->enter;
    if (locks)
        o->leave(o->ctx);
    eas_status st = kernel_code(k, device, form, code);
    if (locks)
        o->enter(o->ctx);
    return st;
}

bool kernel_debugs(const eas_launch *o)
{
    if (o && o->debug)
        return o->debug == 1;
    static _Atomic int always = -1; /* EAS_DEBUG, read once */
    int on = atomic_load_explicit(&always, memory_order_relaxed);
    if (on < 0) {
        const char *e = getenv("EAS_DEBUG");
        on = e && *e && strcmp(e, "0");
        atomic_store_explicit(&always, on, memory_order_relaxed);
    }
    return on;
}

/* The code for this launch. Simdgroup matrices that cannot be proved to stay inside run on the interpreter,
 * which checks. */
static eas_status choose(eas_kernel *k, eas_device *d, const packed *p, verdict v, const eas_launch *o,
                         eas_device **on, dev_code **code)
{
    unsigned form = k->has_assert && kernel_debugs(o) ? FORM_ASSERT : 0;
    if (v.proof != IR_PROVED_ALL && !(d == &dev_ref && k->has_mma))
        form |= v.proof == IR_PROVED_INDEX ? FORM_CHECKED | FORM_DATA : FORM_CHECKED;
    if (d->text && v.narrow == 1)
        form |= FORM_NARROW;
    *on = (form & FORM_CHECKED) && k->has_mma ? &dev_ref : d;
    /* programs that run in order add in order */
    if ((*on)->sums && v.sums && !k->serial && !atomics_overlap(k, p))
        form |= FORM_SUMS;
    int device = dev_index(*on);
    if (*on == &dev_ref)
        return code_of(k, device, d == &dev_ref ? form : form & FORM_ASSERT, o, code);
    eas_status st = code_of(k, device, form, o, code);
    if (st || !overlaps(k, p, d->alias_sensitive(*code)))
        return st;
    return code_of(k, device, form | FORM_ALIAS, o, code);
}

/* The programs that N gives, where they are not what the kernel means. Launches that are right are
 * remembered. */
static eas_status check_cover(eas_kernel *k, const packed *p)
{
    uint64_t key = 1;
    for (int i = 0; i < 3 + k->nparams; i++)
        key = (key ^ (uint64_t)p->key[i]) * 0x9e3779b97f4a7c15u, key ^= key >> 29;
    key |= 1; /* 0: none yet */
    if (atomic_load_explicit(&k->covered, memory_order_relaxed) == key)
        return EAS_OK;
    eas_status st = cover_check(k, p);
    if (!st)
        atomic_store_explicit(&k->covered, key, memory_order_relaxed);
    return st;
}

static bool infers_from_n(const eas_kernel *k, const eas_launch *o)
{
    return k->size_n >= 0 && k->info.naxes == 1 && !(o && (o->has_grid || o->has_nthreads || o->has_shape));
}

static eas_status prepare(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o, packed *p)
{
#ifndef NDEBUG
    if (k->magic != KERNEL_MAGIC)
        return base_fail(EAS_ERR_HANDLE, "this kernel was released");
#endif
    if (o && o->size && o->size != sizeof *o) /* 0: a caller that says nothing about it */
        return base_fail(
            EAS_ERR_VALUE,
            "kernel %s: eas_launch.size is %u and this library's struct has %u bytes: set it to sizeof(eas_launch), and compile against its eas.h",
            k->ir->name, (unsigned)o->size, (unsigned)sizeof *o);
    if (nargs && !args)
        return base_null("eas_kernel_launch", "args");
    eas_status st = pack(k, args, nargs, p);
    if (!st)
        st = kernel_grid(k, args, o, p->grid);
    if (!st)
        st = count_programs(k, p);
    if (!st && infers_from_n(k, o) && p->programs && cover_asks(k, p))
        st = check_cover(k, p);
    return st;
}

eas_status kernel_pack(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o, uint64_t *slot,
                       int64_t *count, int64_t grid[3])
{
    packed p;
    eas_status st = prepare(k, args, nargs, o, &p);
    if (st)
        return st;
    memcpy(slot, p.slot, (size_t)k->nparams * sizeof *slot);
    memcpy(count, p.count, (size_t)k->nparams * sizeof *count);
    memcpy(grid, p.grid, sizeof p.grid);
    return EAS_OK;
}

eas_status kernel_refuses(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o)
{
    packed p;
    return prepare(k, args, nargs, o, &p);
}

eas_status kernel_judge(eas_kernel *k, const eas_device *d, const eas_arg *args, int nargs,
                        const eas_launch *o, packed *p, bool *in_bounds, bool *narrow, bool *overlap)
{
    verdict v = {0};
    eas_status st = prepare(k, args, nargs, o, p);
    if (!st && p->programs)
        st = judge(k, d, p, &v);
    *in_bounds = v.proof == IR_PROVED_ALL;
    *narrow = v.narrow == 1;
    *overlap = !st && overlaps(k, p, true);
    return st;
}

static bool has_host_args(const eas_kernel *k, const eas_arg *args)
{
    for (int i = 0; i < k->nparams; i++)
        if (args[i].flags & EAS_ARG_HOST && args[i].is_buffer && args[i].count)
            return true;
    return false;
}

static eas_status stream_of(eas_device *d, const eas_launch *o, eas_stream **out);

/* Work that is pending may still write what is lent, and a driver may look at that at once. */
static eas_status settle(eas_device *d, const eas_launch *o)
{
    eas_stream *s;
    eas_status st = stream_of(d, o, &s);
    return st || !stream_pending(s) ? st : stream_wait(s, o);
}

static eas_status bring(eas_kernel *k, eas_device *d, const eas_arg *args, const eas_launch *o, bool lend,
                        resolved *r)
{
    eas_status st = lend && d->lend ? settle(d, o) : EAS_OK;
    if (st)
        return st;
    if (!(r->stage = stage_new(k, args, &r->p, true)))
        return base_fail_oom((size_t)k->nparams * sizeof(span));
    st = stage_alloc(r->stage, d, lend);
    if (!st)
        stage_map(r->stage, k, &r->p, args, true);
    return st;
}

eas_status kernel_resolve(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o,
                          bool lend, resolved *r)
{
    verdict v;
    r->stage = NULL;
    eas_status st = prepare(k, args, nargs, o, &r->p);
    if (st || !r->p.programs)
        return st;
    if ((st = judge(k, d, &r->p, &v)))
        return st;
    if (kernel_debugs(o))
        v.proof = IR_PROVED_NONE;
    if (!d->host_memory && (st = dev_usable(d)))
        return st;
    bool foreign = !d->host_memory && !(k->has_mma && v.proof != IR_PROVED_ALL) && has_host_args(k, args);
    if (foreign)
        st = bring(k, d, args, o, lend, r);
    if (!st)
        st = choose(k, d, &r->p, v, o, &r->on, &r->code);
    r->cost = v.cost;
    if (st) {
        stage_free(r->stage);
        r->stage = NULL;
    }
    return st;
}

dev_launch kernel_launch_of(const eas_kernel *k, const eas_device *d, const resolved *r)
{
    return (dev_launch){.cost = r->cost,
                        .ir = k->ir,
                        .slot = r->p.slot,
                        .count = r->p.count,
                        .grid = {r->p.grid[0], r->p.grid[1], r->p.grid[2]},
                        .programs = r->p.programs,
                        .bytes = r->p.bytes,
                        .serial = k->serial,
                        .interp = r->on != d ? (const eas_ir *)(const void *)r->code : NULL};
}

/* ---- ways to run it ---- */

static void release_kernel(void *k) { eas_kernel_release(k); }

static stream_hold hold_of(eas_kernel *k, stage *g, const eas_launch *o)
{
    bool objects = o && o->retain && o->release;
    return (stream_hold){.owner = k,
                         .drop_owner = release_kernel,
                         .stage = g,
                         .drop_stage = stage_free,
                         .objects = objects ? o->hold : NULL,
                         .nobjects = objects ? o->nhold : 0,
                         .retain = objects ? o->retain : NULL,
                         .release = objects ? o->release : NULL};
}

/* Between begin and end of the stream. Once a copy was given the stream holds everything, whatever comes
 * after. */
static eas_status give(eas_stream *s, eas_kernel *k, const resolved *r, const dev_launch *l,
                       const eas_launch *o)
{
    eas_device *d = eas_stream_device(s);
    dev_queue *q = stream_queue(s);
    eas_status st = r->stage ? stage_copy(r->stage, d, q, DEV_TO) : EAS_OK;
    if (!st)
        st = d->launch(d, q, r->code, l);
    if (!st && r->stage)
        st = stage_copy(r->stage, d, q, DEV_FROM);
    if (st && !r->stage)
        return stream_end(s, st, NULL);
    eas_kernel_retain(k);
    stream_hold hold = hold_of(k, r->stage, o);
    eas_status held = stream_end(s, EAS_OK, &hold);
    if (held) {
        stage_free(r->stage);
        eas_kernel_release(k);
    }
    return st ? st : held;
}

static eas_status run_queued(eas_stream *s, eas_kernel *k, resolved *r, const eas_launch *o)
{
    eas_status st = stream_begin(s, o);
    if (st) {
        stage_free(r->stage);
        return st;
    }
    dev_launch l = kernel_launch_of(k, eas_stream_device(s), r);
    st = give(s, k, r, &l, o);
    return st || (o && o->async) ? st : stream_wait(s, o);
}

/* On the calling thread, when nothing is pending. */
static eas_status run_here(eas_stream *s, eas_kernel *k, const resolved *r, const eas_launch *o)
{
    eas_device *d = eas_stream_device(s);
    eas_status st = stream_pending(s) ? stream_wait(s, o) : EAS_OK;
    if (st)
        return st;
    dev_launch l = kernel_launch_of(k, d, r);
    l.now = true;
    l.opts = o;
    st = d->launch(d, stream_queue(s), r->code, &l);
    return st ? st : d->wait(d, stream_queue(s), UINT64_MAX);
}

/* Interpreted for a device whose memory the host cannot reach: what it uses is copied here, and back. */
static eas_status fetch(eas_stream *s, eas_kernel *k, const eas_arg *args, packed *p, stage *g,
                        const eas_launch *quiet)
{
    eas_device *d = eas_stream_device(s);
    eas_status st = stage_alloc(g, NULL, false);
    if (st)
        return st;
    stage_map(g, k, p, args, false);
    st = stage_copy(g, d, stream_queue(s), DEV_FROM);
    eas_status waited = stream_wait(s, quiet);
    return st ? st : waited;
}

static eas_status run_fetched(eas_stream *s, eas_kernel *k, const eas_arg *args, resolved *r,
                              const eas_launch *o)
{
    eas_device *d = eas_stream_device(s);
    eas_launch quiet = o ? *o : (eas_launch){0};
    quiet.interrupted = NULL; /* copies into this function's memory must end before it returns */
    eas_status st = stream_wait(s, o);
    stage *g = st ? NULL : stage_new(k, args, &r->p, false);
    if (!g)
        return st ? st : base_fail_oom((size_t)k->nparams * sizeof(span));
    if (!(st = fetch(s, k, args, &r->p, g, &quiet))) {
        dev_launch l = kernel_launch_of(k, &dev_ref, r);
        l.opts = o;
        eas_status ran = dev_ref.launch(&dev_ref, NULL, r->code, &l);
        base_error failed;
        base_error_keep(&failed, ran);
        /* what was written before a failure too, as everywhere */
        st = stage_copy(g, d, stream_queue(s), DEV_TO);
        eas_status back = stream_wait(s, &quiet);
        st = ran ? base_error_raise(&failed) : st ? st : back;
    }
    stage_free(g);
    return st;
}

static eas_status stream_of(eas_device *d, const eas_launch *o, eas_stream **out)
{
    *out = o ? o->stream : NULL;
    if (!*out)
        return eas_stream_current(d, out);
    if (eas_stream_device(*out) == d)
        return EAS_OK;
    return base_fail(EAS_ERR_VALUE, "the stream is of device \"%s\", the launch runs on \"%s\"",
                     eas_stream_device(*out)->name, d->name);
}

eas_status eas_kernel_launch(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs,
                             const eas_launch *o)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(d, EAS_ERR_HANDLE);
    resolved r;
    eas_stream *s;
    if (k->printer)
        return print_launch(k, d, args, nargs, o);
    if (graph_capturing())
        return graph_record(k, d, args, nargs, o);
    eas_status st = kernel_resolve(k, d, args, nargs, o, !(o && o->async), &r);
    if (st || !r.p.programs)
        return st;
    if ((st = stream_of(d, o, &s))) {
        stage_free(r.stage);
        return st;
    }
    atomic_fetch_add_explicit(&dev_count.launches, 1, memory_order_relaxed);
    if (!d->host_memory && r.on != d)
        return run_fetched(s, k, args, &r, o);
    bool here = d->host_memory && !(o && o->async);
    return here ? run_here(s, k, &r, o) : run_queued(s, k, &r, o);
}

static eas_status one_by_one(int n, const kernel_call *calls, eas_device *d, const eas_launch *o)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++) {
        eas_launch mine = *o;
        mine.has_grid = 1;
        memcpy(mine.grid, calls[i].grid, sizeof mine.grid);
        st = eas_kernel_launch(calls[i].kernel, d, calls[i].args, calls[i].nargs, &mine);
    }
    return st;
}

/* Everything is resolved, and so may be refused, before anything runs. */
static eas_status resolve_many(int n, const kernel_call *calls, eas_device *d, const eas_launch *o,
                               resolved *r, dev_code **code, dev_launch *l, int *out)
{
    eas_status st = EAS_OK;
    *out = 0;
    for (int i = 0; i < n && !st; i++) {
        eas_launch mine = *o;
        mine.has_grid = 1;
        memcpy(mine.grid, calls[i].grid, sizeof mine.grid);
        resolved *at = &r[*out];
        st = kernel_resolve(calls[i].kernel, d, calls[i].args, calls[i].nargs, &mine, false, at);
        if (st || !at->p.programs)
            continue;
        l[*out] = kernel_launch_of(calls[i].kernel, d, at);
        l[*out].now = true;
        l[*out].opts = o;
        code[(*out)++] = at->code;
    }
    return st;
}

eas_status kernel_launch_many(int n, const kernel_call *calls, eas_device *d, const eas_launch *o)
{
    /* a profile exchanges it */
    eas_status (*launch_many)(eas_device *, dev_queue *, int, dev_code *const *, const dev_launch *) =
        __atomic_load_n(&d->launch_many, __ATOMIC_ACQUIRE);
    bool plain = launch_many && d->host_memory && !o->async && !graph_capturing();
    for (int i = 0; i < n; i++)
        plain &= !calls[i].kernel->printer;
    if (!plain || n < 2)
        return one_by_one(n, calls, d, o);
    eas_stream *s;
    resolved *r = malloc((size_t)n * sizeof *r);
    dev_code **code = malloc((size_t)n * sizeof *code);
    dev_launch *l = malloc((size_t)n * sizeof *l);
    int count = 0;
    eas_status st = r && code && l ? stream_of(d, o, &s) : base_fail_oom((size_t)n * sizeof *r);
    if (!st && stream_pending(s))
        st = stream_wait(s, o);
    if (!st)
        st = resolve_many(n, calls, d, o, r, code, l, &count);
    if (!st && count) {
        atomic_fetch_add_explicit(&dev_count.launches, 1, memory_order_relaxed);
        st = launch_many(d, stream_queue(s), count, code, l);
        if (!st)
            st = d->wait(d, stream_queue(s), UINT64_MAX);
    }
    free(r);
    free(code);
    free(l);
    return st;
}

eas_status eas_kernel_prepare(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs,
                              const eas_launch *o)
{
    NEED(k, EAS_ERR_HANDLE);
    resolved r;
    if (k->printer)
        return print_prepare(k, d, args, nargs, o);
    eas_status st = kernel_resolve(k, d, args, nargs, o, false, &r);
    stage_free(r.stage);
    return st;
}

eas_status eas_kernel_grid(const eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o,
                           int64_t grid[3])
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(grid, EAS_ERR_HANDLE);
    if (nargs != k->ir->nparams)
        return base_fail(EAS_ERR_TYPE, "kernel %s takes %d arguments, got %d", k->ir->name, k->ir->nparams,
                         nargs);
    eas_status st = kernel_grid(k, args, o, grid);
    packed p;
    if (!st && infers_from_n(k, o) && grid[0] && grid[1] && grid[2])
        /* are these programs what the kernel means? It only remembers that they are */
        st = prepare((eas_kernel *)k, args, nargs, o, &p);
    return st;
}

int eas_kernel_covers(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o)
{
    packed p;
    NEED(k, 0);
    if (nargs != k->ir->nparams || (nargs && !args) || !infers_from_n(k, o) || pack(k, args, nargs, &p))
        return 1;
    if (kernel_grid(k, args, o, p.grid) || count_programs(k, &p) || !p.programs || !cover_asks(k, &p))
        return 1;
    return check_cover(k, &p) == EAS_OK;
}
