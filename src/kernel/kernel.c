/* kernel.c: the life of a kernel: made from IR, given forms and code at first need, shown as text, released.
 */
#include "kernel.h"

#include <stdio.h>
#include <time.h>

enum { TG_LIMIT = 32768, THREAD_LIMIT = IR_MAX_THREADS };

static int find_scalar(const eas_ir *ir, const char *name)
{
    for (int i = 0; i < ir->nparams; i++)
        if (!strcmp(ir->params[i].name, name))
            return ir->vals[i + 1].type.kind == IR_VAL && dtype_is_int(ir->vals[i + 1].type.dtype) ? i : -1;
    return -1;
}

void kernel_sizes(const eas_ir *ir, eas_kernel *k)
{
    k->ir = (eas_ir *)(uintptr_t)ir;
    k->size_n = find_scalar(ir, "N");
    k->size_h = find_scalar(ir, "H");
    k->size_w = find_scalar(ir, "W");
    k->size_d = find_scalar(ir, "D");
}

/* Limits that hold on every device, so that a kernel that runs here runs there: what uses the memory is
 * listed. */
static eas_status check_limits(const eas_ir *ir, const eas_ir_info *info)
{
    if (info->mode == EAS_MODE_THREAD && info->block > THREAD_LIMIT)
        return base_fail(EAS_ERR_VALUE, "kernel %s: a group of %lld threads; the limit is %d", ir->name,
                         (long long)info->block, (int)THREAD_LIMIT);
    if (info->tg_bytes <= TG_LIMIT)
        return EAS_OK;
    str s = {0};
    dev_list_tg(&s, ir);
    eas_status st =
        base_fail(EAS_ERR_VALUE, "kernel %s needs %lld bytes of threadgroup memory; the limit is %d:%s",
                  ir->name, (long long)info->tg_bytes, (int)TG_LIMIT, s.at ? s.at : "");
    str_free(&s);
    return st;
}

static bool uses_matrices(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_MMA || ir->insns[i].op == IR_MMA_STORE)
            return true;
    return false;
}

static bool describe_adds(eas_kernel *k)
{
    bool *added = calloc((size_t)k->nparams + 1, sizeof *added);
    k->adds = added && ir_added(k->ir, added);
    for (int i = 0; i < k->nparams && added; i++)
        k->params[i].added = added[i];
    free(added);
    return added != NULL;
}

static bool describe_params(eas_kernel *k)
{
    const eas_ir *ir = k->ir;
    k->nparams = ir->nparams;
    k->params = calloc((size_t)ir->nparams + 1, sizeof *k->params);
    for (int i = 0; i < ir->nparams && k->params; i++) {
        ir_type t = ir->vals[i + 1].type;
        k->params[i] = (kernel_param){.is_buffer = t.kind == IR_BUF,
                                      .dtype = t.dtype,
                                      .written = ir->params[i].write,
                                      .log2_size = (uint8_t)__builtin_ctzll(eas_dtype_size(t.dtype)),
                                      .is_float = dtype_is_float(t.dtype),
                                      .atomic = ir->params[i].atomic};
    }
    return k->params && describe_adds(k);
}

eas_status eas_kernel_new(eas_ir *ir, eas_kernel **out)
{
    NEED(ir, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    eas_ir_info info = ir_analyse(ir);
    eas_status st = check_limits(ir, &info);
    if (st)
        return st;
    static _Atomic uint64_t made;
    eas_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return base_fail_oom(sizeof *k);
    k->number = ++made;
    st = ir_simplify(ir, &k->ir);
    if (!st && !describe_params(k))
        st = base_fail_oom((size_t)ir->nparams);
    if (st) {
        eas_ir_release(k->ir);
        free(k);
        return st;
    }
    k->magic = KERNEL_MAGIC;
    k->refs = 1;
    k->info = info;
    kernel_sizes(k->ir, k);
    k->doubtful = cover_doubtful(k);
    k->has_mma = uses_matrices(k->ir);
    k->has_assert = ir_asserts(k->ir);
    pthread_mutex_init(&k->lock, NULL);
    atomic_flag_clear(&k->memo_lock);
    st = print_kernel(k);
    if (st)
        eas_kernel_release(k);
    else
        *out = k;
    return st;
}

eas_status eas_kernel_lanes(eas_kernel *k, const uint8_t *batched, int axis, eas_kernel **out)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(!k->nparams || batched, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    eas_ir *ir;
    *out = NULL;
    if (axis < k->info.naxes || axis > 2)
        return base_fail(EAS_ERR_VALUE,
                         "kernel %s uses %d axes of programs: there is none left for lanes on axis %d",
                         k->ir->name, k->info.naxes, axis);
    for (int i = 0; i < k->nparams; i++) {
        if (batched[i] && !k->params[i].is_buffer)
            return base_fail(EAS_ERR_TYPE,
                             "kernel %s, argument \"%s\": a number cannot differ from lane to lane",
                             k->ir->name, k->ir->params[i].name);
        if (!batched[i] && k->params[i].is_buffer && k->params[i].written)
            return base_fail(EAS_ERR_VALUE, "kernel %s, argument \"%s\": every lane would write to it",
                             k->ir->name, k->ir->params[i].name);
    }
    eas_status st = ir_many(k->ir, batched, axis, &ir);
    if (!st)
        st = eas_kernel_new(ir, out);
    eas_ir_release(ir);
    return st;
}

eas_kernel *eas_kernel_retain(eas_kernel *k)
{
    if (k)
        __atomic_add_fetch(&k->refs, 1, __ATOMIC_RELAXED);
    return k;
}

/* Debug builds keep the shell of a released kernel, so that using it again is told from using a live one. */
static void bury(eas_kernel *k)
{
#ifdef NDEBUG
    free(k);
#else
    static _Atomic(eas_kernel *) graves;
    k->next_grave = atomic_exchange(&graves, k);
#endif
}

void eas_kernel_release(eas_kernel *k)
{
    if (!k || __atomic_sub_fetch(&k->refs, 1, __ATOMIC_ACQ_REL))
        return;
    for (int d = 0; d < DEV_MAX; d++)
        for (int f = 0; f < NFORMS; f++)
            if (k->code[d][f])
                eas_device_at(d)->drop(eas_device_at(d), k->code[d][f]);
    for (int i = 0; i < MEMOS; i++)
        free(k->memo[i].key);
    free(k->params);
    eas_kernel_release(k->printer);
    eas_ir_release(k->ir);
    for (int i = 0; i < NIRFORMS; i++)
        eas_ir_release(k->forms[i]);
    eas_ir_release(k->narrow);
    ir_narrow_free(&k->need);
    pthread_mutex_destroy(&k->lock);
    k->magic = 0;
    bury(k);
}

eas_ir *eas_kernel_ir(const eas_kernel *k)
{
    NEED(k, NULL);
    return k->ir;
}
eas_ir_info eas_kernel_info(const eas_kernel *k)
{
    NEED(k, ((eas_ir_info){0}));
    return k->info;
}

/* ---- forms ---- */

eas_status kernel_narrowed(eas_kernel *k, eas_ir **out)
{
    eas_status st = EAS_OK;
    base_lock(&k->lock);
    if (!k->tried_narrow) {
        st = ir_narrowed(k->ir, &k->narrow, &k->need);
        k->tried_narrow = !st;
    }
    *out = k->narrow ? k->narrow : k->ir;
    base_unlock(&k->lock);
    return st;
}

static eas_status make_plain(eas_kernel *k, unsigned bits, const eas_ir *from)
{
    const bool native = bits & IR_FORM_TEXT && k->ir->flags & EAS_KERNEL_FAST_MATH;
    const unsigned keep = (native ? IR_KEEP_NATIVE : 0) | (bits & IR_FORM_LDEXP ? IR_KEEP_LDEXP : 0);
    eas_ir *ir = NULL;
    if (bits & IR_FORM_ASSERT)
        return ir_expanded(from, keep, &k->forms[bits]);
    eas_status st = ir_unasserted(from, &ir);
    if (!st)
        st = ir_expanded(ir, keep, &k->forms[bits]);
    eas_ir_release(ir);
    return st;
}

static eas_status make_form(eas_kernel *k, unsigned bits, const eas_ir *narrow)
{
    unsigned plain = bits & ~(unsigned)(IR_FORM_CHECKED | IR_FORM_DATA);
    eas_status st = EAS_OK;
    if (!k->forms[plain])
        st = make_plain(k, plain, bits & IR_FORM_NARROW ? narrow : k->ir);
    if (st || bits == plain || k->forms[bits])
        return st;
    eas_ir *needed = NULL;
    st = ir_demanded(k->forms[plain], &needed);
    if (!st)
        st = ir_checked(needed, bits & IR_FORM_DATA ? k->ir : NULL, &k->forms[bits]);
    eas_ir_release(needed);
    return st;
}

eas_status kernel_form(eas_kernel *k, unsigned bits, eas_ir **out)
{
    eas_ir *narrow = NULL;
    eas_status st = bits & IR_FORM_NARROW ? kernel_narrowed(k, &narrow) : EAS_OK;
    if (st)
        return st;
    base_lock(&k->lock);
    st = make_form(k, bits, narrow);
    *out = k->forms[bits];
    base_unlock(&k->lock);
    return st;
}

static unsigned ir_form_of(const eas_device *d, unsigned form)
{
    return (form & FORM_CHECKED ? IR_FORM_CHECKED : 0) | (form & FORM_DATA ? IR_FORM_DATA : 0) |
           (form & FORM_NARROW ? IR_FORM_NARROW : 0) | (d->text ? IR_FORM_TEXT : 0) |
           (form & FORM_ASSERT ? IR_FORM_ASSERT : 0) | (d->ldexp && d->ldexp() ? IR_FORM_LDEXP : 0);
}

static eas_status refuse_loose(const eas_kernel *k)
{
    return k->ir->flags & EAS_KERNEL_LOOSE
             ? base_fail(EAS_ERR_VALUE,
                         "kernel %s was built to be checked, not to run: build it without EAS_KERNEL_LOOSE",
                         k->ir->name)
             : EAS_OK;
}

static unsigned how_of(unsigned form)
{
    return (form & FORM_ALIAS ? DEV_ALIAS : 0) | (form & FORM_SUMS ? DEV_SUMS : 0);
}

/* EAS_LOG=info: what was compiled, for whom, whether the disk had it, and what it took. */
static eas_status compile_logged(eas_device *d, const eas_ir *ir, unsigned form, dev_code **out)
{
    const char *level = getenv("EAS_LOG");
    kernel_dump(ir);
    if (!level || (strcmp(level, "info") && strcmp(level, "debug")))
        return d->compile(d, ir, how_of(form), out);
    struct timespec a, b;
    uint64_t hits = dev_count.hits, misses = dev_count.misses;
    clock_gettime(CLOCK_MONOTONIC, &a);
    eas_status st = d->compile(d, ir, how_of(form), out);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double ms = 1e3 * (double)(b.tv_sec - a.tv_sec) + 1e-6 * (double)(b.tv_nsec - a.tv_nsec);
    const char *disk = dev_count.hits != hits     ? "found on disk"
                     : dev_count.misses != misses ? "not on disk"
                                                  : "the disk was not asked";
    fprintf(stderr, "eas: %s %s for %s in %.2f ms (%s%s%s%s%s%s)\n",
            st                       ? "failed to compile"
            : dev_count.hits != hits ? "loaded"
                                     : "compiled",
            ir->name, d->name, ms, disk, form & FORM_ALIAS ? "; arguments overlap" : "",
            form & FORM_DATA      ? "; accesses by data are checked"
            : form & FORM_CHECKED ? "; accesses are checked"
                                  : "",
            form & FORM_NARROW ? "; 32-bit integers" : "", form & FORM_ASSERT ? "; with asserts" : "",
            form & FORM_SUMS ? "; sums of threads" : "");
    return st;
}

eas_status kernel_code(eas_kernel *k, int device, unsigned form, dev_code **out)
{
    *out = atomic_load_explicit(&k->code[device][form], memory_order_acquire);
    if (*out)
        return EAS_OK;
    eas_ir *ir = NULL;
    eas_device *d = eas_device_at(device);
    eas_status st = refuse_loose(k);
    if (!st)
        st = kernel_form(k, ir_form_of(d, form), &ir);
    if (!st)
        st = dev_check(d, ir);
    if (st)
        return st;
    base_lock(&k->lock);
    *out = k->code[device][form];
    if (!*out) {
        st = compile_logged(d, ir, form, out);
        if (!st)
            atomic_store_explicit(&k->code[device][form], *out, memory_order_release);
    }
    base_unlock(&k->lock);
    return st;
}

typedef struct ahead {
    eas_kernel *const *kernels;
    int device;
} ahead;

static void compile_slice(void *ctx, int64_t first, int64_t last, int worker)
{
    const ahead *a = ctx;
    dev_code *code;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        kernel_code(a->kernels[i], a->device, 0, &code);
}

/* On the CPU most launches are proved and run the plain form. Which form a text device runs follows from the
 * launch's sizes, and its compilers have threads of their own. */
void kernel_compile_ahead(int n, eas_kernel *const *kernels, eas_device *d, const eas_launch *o)
{
    if (n < 2 || d != &dev_cpu || pool_size() < 2)
        return;
    const bool locks = o && o->leave && o->enter;
    if (locks)
        o->leave(o->ctx);
    pool_run(n, 1, compile_slice, &(ahead){kernels, dev_index(d)}, NULL, NULL);
    if (locks)
        o->enter(o->ctx);
}

/* ---- text ---- */

/* As a launch runs it: prints are stores, asserts are gone. */
static eas_status runnable(const eas_ir *ir, unsigned keep, eas_ir **out)
{
    eas_ir *stores = NULL, *bare = NULL;
    ir_records rec;
    eas_status st = ir_prints(ir) ? ir_printed(ir, 1, &stores, &rec) : EAS_OK;
    if (!st)
        st = ir_unasserted(stores ? stores : ir, &bare);
    if (!st)
        st = ir_expanded(bare, keep, out);
    eas_ir_release(stores);
    eas_ir_release(bare);
    return st;
}

static eas_status machine_text(const eas_ir *ir, const char *form, char **out)
{
    eas_ir *plain;
    eas_status st = runnable(ir, dev_cpu.ldexp() ? IR_KEEP_LDEXP : 0, &plain);
    if (st)
        return st;
    st = cpu_text(plain, form, out);
    eas_ir_release(plain);
    return st;
}

/* Source text; a kernel with fast math uses the language's own functions. */
static eas_status source_text(const eas_ir *ir, gen_dialect d, char **out)
{
    eas_ir *plain;
    str s = {0};
    eas_status st = runnable(ir, ir->flags & EAS_KERNEL_FAST_MATH ? IR_KEEP_NATIVE : 0, &plain);
    if (st)
        return st;
    st = gen_ctext(plain, d, 0, &s, NULL);
    eas_ir_release(plain);
    if (!st)
        return str_take(&s, out);
    str_free(&s);
    return st;
}

/* wide: 64-bit integers; narrow: the form GPU languages are printed from. */
static eas_status emit(const eas_ir *wide, const eas_ir *narrow, const char *form, char **out)
{
    if (!strcmp(form, "ir"))
        return eas_ir_text(wide, 0, out);
    if (!strcmp(form, "plan") || !strcmp(form, "llvm") || !strcmp(form, "asm"))
        return machine_text(wide, form, out);
    gen_dialect dialect;
    if (gen_dialect_find(form, &dialect))
        return source_text(narrow, dialect, out);
    return base_fail(EAS_ERR_VALUE, "unknown form \"%s\"; there are ir, msl, opencl, plan, llvm and asm",
                     form);
}

eas_status eas_ir_emit(const eas_ir *ir, const char *form, char **out)
{
    NEED(ir, EAS_ERR_HANDLE);
    NEED(form, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    return emit(ir, ir, form, out);
}

eas_status eas_kernel_text(eas_kernel *k, const char *form, char **out)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(form, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    eas_ir *narrow = NULL;
    *out = NULL;
    eas_status st = refuse_loose(k);
    if (!st)
        st = kernel_narrowed(k, &narrow);
    return st ? st : emit(k->ir, narrow, form, out);
}

eas_status eas_kernel_object(eas_kernel *k, void **bytes, size_t *size)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(bytes, EAS_ERR_HANDLE);
    NEED(size, EAS_ERR_HANDLE);
    eas_ir *plain = NULL;
    *bytes = NULL;
    *size = 0;
    eas_status st = refuse_loose(k);
    if (!st)
        st = runnable(k->ir, dev_cpu.ldexp() ? IR_KEEP_LDEXP : 0, &plain);
    if (!st)
        st = cpu_object(plain, bytes, size);
    eas_ir_release(plain);
    return st;
}

eas_status eas_kernel_require(eas_kernel *k, eas_device *d)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(d, EAS_ERR_HANDLE);
    eas_ir *ir = NULL;
    eas_status st = refuse_loose(k);
    if (!st)
        st = kernel_form(k, d->text ? IR_FORM_TEXT : 0, &ir);
    return st ? st : dev_check(d, ir);
}
