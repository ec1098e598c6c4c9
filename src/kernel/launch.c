/* launch.c: from a call to running code: arguments checked and packed, the form chosen by what this launch's values prove.
 *
 * Order matters: everything that can refuse a launch comes before anything runs, so a refused launch leaves outputs untouched.
 */
#include "kernel.h"

#include <stdio.h>

typedef struct packed {
    uint64_t slot[IR_MAX_PARAMS];
    int64_t count[IR_MAX_PARAMS];
    int64_t key[3 + IR_MAX_PARAMS]; /* grid, then per parameter its integer value or its count */
    uint64_t bytes;
    int64_t grid[3], programs;
} packed;

/* ---- arguments ---- */

static eas_status bad_arg(const eas_kernel *k, int i, const char *fmt, ...) BASE_PRINTF(3, 4);
static eas_status bad_arg(const eas_kernel *k, int i, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return base_fail(EAS_ERR_TYPE, "kernel %s, argument \"%s\": %s", k->ir->name, k->ir->params[i].name, text);
}

static eas_status refuse_buffer(const eas_kernel *k, int i, const eas_arg *a)
{
    const kernel_param *q = &k->params[i];
    if (!a->is_buffer)
        return bad_arg(k, i, "expected a buffer of %s, got a scalar", eas_dtype_name(q->dtype));
    if (a->dtype != q->dtype)
        return bad_arg(k, i, "expected a buffer of %s, got %s", eas_dtype_name(q->dtype), eas_dtype_name(a->dtype));
    if (a->flags & EAS_ARG_READONLY && q->written)
        return base_fail(EAS_ERR_VALUE, "kernel %s, argument \"%s\": the kernel writes to it and it is read-only", k->ir->name,
                         k->ir->params[i].name);
    return base_fail(EAS_ERR_VALUE, "kernel %s, argument \"%s\": no memory behind it", k->ir->name, k->ir->params[i].name);
}

static eas_status pack_buffer(const eas_kernel *k, int i, const eas_arg *a, packed *p)
{
    const kernel_param *q = &k->params[i];
    bool readonly = a->flags & EAS_ARG_READONLY;
    if (!a->is_buffer || a->dtype != q->dtype || (readonly && q->written) || a->count < 0 || (a->count && !a->v.data))
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
        return bad_arg(k, i, "expected a scalar (%s), got a buffer of %s", eas_dtype_name(q->dtype), eas_dtype_name(a->dtype));
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
        return base_fail(EAS_ERR_TYPE, "kernel %s takes %d arguments, got %d", k->ir->name, k->nparams, nargs);
    p->bytes = 0;
    for (int i = 0; i < nargs; i++) {
        eas_status st = k->params[i].is_buffer ? pack_buffer(k, i, &args[i], p) : pack_scalar(k, i, &args[i], p);
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
            return base_fail(EAS_ERR_VALUE, "kernel %s: a grid of %lld x %lld x %lld is too large", k->ir->name, (long long)p->grid[0],
                             (long long)p->grid[1], (long long)p->grid[2]);
    }
    p->programs = n;
    return EAS_OK;
}

/* ---- what this launch proves ---- */

typedef struct verdict {
    bool in_bounds;
    int8_t narrow; /* as in kernel_memo */
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
    return (verdict){ir_in_bounds(k->ir, &env, NULL), -1, kernel_cost(k->ir, &env)};
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
        *out = (verdict){m->in_bounds, m->narrow, m->cost};
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
        m->in_bounds = v.in_bounds;
        m->narrow = v.narrow;
        m->cost = v.cost;
        k->memo_next = (k->memo_next + 1) % MEMOS;
    }
    atomic_flag_clear_explicit(&k->memo_lock, memory_order_release);
}

static eas_status judge(eas_kernel *k, const eas_device *d, const packed *p, verdict *v)
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

/* Do a written buffer and another one overlap? Exactly equal ones only matter to code that is sensitive to it. */
static bool overlaps(const eas_kernel *k, const packed *p, bool sensitive)
{
    for (int i = 0; i < k->nparams; i++) {
        const kernel_param *q = &k->params[i];
        if (!q->written)
            continue;
        uint64_t lo = p->slot[i], hi = lo + ((uint64_t)p->count[i] << q->log2_size);
        for (int j = 0; j < k->nparams; j++) {
            const kernel_param *o = &k->params[j];
            uint64_t lo2 = p->slot[j], hi2 = lo2 + ((uint64_t)p->count[j] << o->log2_size);
            if (o->is_buffer && j != i && lo < hi2 && lo2 < hi && (sensitive || lo != lo2 || o->log2_size != q->log2_size))
                return true;
        }
    }
    return false;
}

/* ---- the launch ---- */

/* The code for this launch. Simdgroup matrices that cannot be proved to stay inside run on the interpreter, which checks. */
static eas_status choose(eas_kernel *k, eas_device *d, const packed *p, verdict v, eas_device **on, dev_code **code)
{
    unsigned form = 0;
    if (d != &dev_ref && !v.in_bounds)
        form |= FORM_CHECKED;
    if (d->text && v.narrow == 1)
        form |= FORM_NARROW;
    *on = (form & FORM_CHECKED) && k->has_mma ? &dev_ref : d;
    int device = dev_index(*on);
    if (*on == &dev_ref)
        return kernel_code(k, device, 0, code);
    eas_status st = kernel_code(k, device, form, code);
    if (st || !overlaps(k, p, d->alias_sensitive(*code)))
        return st;
    return kernel_code(k, device, form | FORM_ALIAS, code);
}

static eas_status prepare(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o, packed *p)
{
#ifndef NDEBUG
    if (k->magic != KERNEL_MAGIC)
        return base_fail(EAS_ERR_HANDLE, "this kernel was released");
#endif
    eas_status st = pack(k, args, nargs, p);
    if (!st)
        st = kernel_grid(k, args, o, p->grid);
    return st ? st : count_programs(k, p);
}

eas_status kernel_pack(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o, uint64_t *slot, int64_t *count, int64_t grid[3])
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

static eas_status decide(eas_kernel *k, eas_device *d, const packed *p, const eas_launch *o, verdict *v, eas_device **on, dev_code **code)
{
    eas_status st = judge(k, d, p, v);
    if (o && o->debug)
        v->in_bounds = false;
    return st ? st : choose(k, d, p, *v, on, code);
}

eas_status eas_kernel_launch(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o)
{
    packed p;
    verdict v;
    eas_device *on;
    dev_code *code;
    dev_queue *q;
    eas_status st = prepare(k, args, nargs, o, &p);
    if (st || !p.programs)
        return st;
    if ((st = decide(k, d, &p, o, &v, &on, &code)) || (st = dev_default_queue(on, &q)))
        return st;
    dev_launch l = {.cost = v.cost,
                    .ir = k->ir,
                    .slot = p.slot,
                    .count = p.count,
                    .grid = {p.grid[0], p.grid[1], p.grid[2]},
                    .programs = p.programs,
                    .bytes = p.bytes,
                    .now = true,
                    .opts = o};
    atomic_fetch_add_explicit(&dev_count.launches, 1, memory_order_relaxed);
    st = on->launch(on, q, code, &l);
    return st ? st : on->wait(on, q, UINT64_MAX);
}

eas_status eas_kernel_prepare(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o)
{
    packed p;
    verdict v;
    eas_device *on;
    dev_code *code;
    eas_status st = prepare(k, args, nargs, o, &p);
    return st || !p.programs ? st : decide(k, d, &p, o, &v, &on, &code);
}

eas_status eas_kernel_grid(const eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o, int64_t grid[3])
{
    if (nargs != k->ir->nparams)
        return base_fail(EAS_ERR_TYPE, "kernel %s takes %d arguments, got %d", k->ir->name, k->ir->nparams, nargs);
    return kernel_grid(k, args, o, grid);
}
