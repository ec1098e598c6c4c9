/* cpu.c: the host's own processor: compiled images, mapped and called.
 *
 * compile: look on disk; else open libeas-llvm, compile, keep on disk; map. Without libeas-llvm kernels run
 * on the interpreter and that is said once. launch: small grids on the calling thread, others over the pool.
 */
#include "dev.h"
#include "isa.h"
#include "sums.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct dev_code {
    eas_ir *ir;        /* run by the interpreter when fn is NULL */
    gen_entry *fn;
    void *map;
    size_t mapped;
    uint64_t scratch;
    bool alias_sensitive;
    unsigned how; /* it was compiled */
    sums_set *sums; /* of form DEV_SUMS, else NULL */
    _Atomic(dev_code *) locked; /* the same without DEV_SUMS, once a launch had no memory for that */
};

/* ---- the compiler module ---- */

static pthread_mutex_t llvm_lock = PTHREAD_MUTEX_INITIALIZER;
static gen_llvm_compile *llvm_compile;
static char llvm_why[512];
static bool llvm_tried;

/* With the lock held. True: whether there is one is known. A lack of memory says nothing about that: it is
 * asked again at the next kernel. */
static bool open_compiler(void)
{
    char path[1024];
    base_module_path("EAS_LLVM_LIBRARY", "libeas-llvm", path, sizeof path);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *sym = lib ? dlsym(lib, "eas_llvm_compile") : NULL;
    if (sym) {
        memcpy(&llvm_compile, &sym, sizeof sym);
        atomic_store(&dev_count.compiler, 1);
        return true;
    }
    const char *e = dlerror();
    snprintf(llvm_why, sizeof llvm_why, "%s", e ? e : "libeas-llvm could not be opened");
    return !(strstr(llvm_why, "memory") || strstr(llvm_why, "failed to map segment"));
}

/* *out: NULL when there is none; llvm_why then says why. */
static eas_status compiler(gen_llvm_compile **out)
{
    base_lock(&llvm_lock);
    if (!llvm_tried)
        llvm_tried = open_compiler();
    *out = llvm_compile;
    eas_status st = llvm_tried
                      ? EAS_OK
                      : base_fail(EAS_ERR_MEMORY, "there is no memory to open the compiler: %s", llvm_why);
    base_unlock(&llvm_lock);
    return st;
}

static gen_options options(unsigned how, const char *text)
{
    return (gen_options){.cpu_features = isa_features(),
                         .vector_bytes = isa_vector_bytes(),
                         .alias = (how & DEV_ALIAS) != 0,
                         .sums = (how & DEV_SUMS) != 0,
                         .text = text,
                         .build = eas_build_id()};
}

static eas_status compile_as(const eas_ir *ir, const char *form, gen_image *im, char **out)
{
    gen_llvm_compile *f;
    char *error = NULL;
    eas_status st = compiler(&f);
    if (st)
        return st;
    if (!f)
        return base_fail(EAS_ERR_UNAVAILABLE, "no compiler for \"%s\": %s", form, llvm_why);
    gen_options o = options(0, form);
    fork_hold();
    st = f(ir, &o, im, out, &error);
    fork_release();
    if (st)
        base_fail(st, "%s", error ? error : "the compiler failed");
    free(error);
    return st;
}

eas_status cpu_text(const eas_ir *ir, const char *form, char **out)
{
    gen_image im = {0};
    return compile_as(ir, form, &im, out);
}

eas_status cpu_object(const eas_ir *ir, void **bytes, size_t *size)
{
    gen_image im = {0};
    char *none = NULL;
    eas_status st = compile_as(ir, "obj", &im, &none);
    *bytes = im.bytes;
    *size = im.size;
    return st;
}

static eas_status build_image(const eas_ir *ir, unsigned how, gen_image *im)
{
    gen_options o = options(how, NULL);
    char *error = NULL, *text = NULL;
    atomic_fetch_add(&dev_count.compiles, 1);
    eas_status st = llvm_compile(ir, &o, im, &text, &error);
    if (st)
        base_fail(st, "kernel %s: %s", ir->name, error ? error : "the compiler failed");
    free(error);
    free(text);
    return st;
}

/* ---- mapping ---- */

static eas_status map_image(const gen_image *im, dev_code *c)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (im->size + page - 1) / page * page;
    if (im->size == 0 || im->entry >= im->size)
        return base_fail(EAS_ERR_INTERNAL, "a compiled image is malformed");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, prot = PROT_READ | PROT_WRITE;
#if defined(__APPLE__) && defined(MAP_JIT)
    flags |= MAP_JIT;
    prot |= PROT_EXEC;
#endif
    void *p = mmap(NULL, size, prot, flags, -1, 0);
    if (p == MAP_FAILED)
        return base_fail_oom(size);
#if defined(__APPLE__) && defined(__aarch64__)
    pthread_jit_write_protect_np(0);
    memcpy(p, im->bytes, im->size);
    pthread_jit_write_protect_np(1);
#else
    memcpy(p, im->bytes, im->size);
    if (mprotect(p, size, PROT_READ | PROT_EXEC)) {
        const bool poor = errno == ENOMEM;
        munmap(p, size);
        return poor ? base_fail_oom(size)
                    : base_fail(EAS_ERR_RUNTIME, "this system does not let memory be made executable");
    }
#endif
    __builtin___clear_cache((char *)p, (char *)p + im->size);
    c->map = p;
    c->mapped = size;
    c->scratch = im->scratch;
    c->alias_sensitive = im->alias_sensitive;
    void *entry = (char *)p + im->entry;
    memcpy(&c->fn, &entry, sizeof entry);
    return EAS_OK;
}

static _Atomic int said_no_compiler;

static eas_status obtain_image(const eas_ir *ir, unsigned how, gen_image *im, bool *have)
{
    static const char *const named[] = {"", [DEV_ALIAS] = "alias", [DEV_SUMS] = "sums",
                                        [DEV_ALIAS | DEV_SUMS] = "alias sums"};
    cache_key key;
    cache_key_of(ir, isa_features(), named[how], &key);
    *have = cache_load(&key, im);
    if (*have)
        return EAS_OK;
    gen_llvm_compile *f;
    eas_status st = compiler(&f);
    if (st)
        return st;
    if (!f) {
        dev_warn_once(&said_no_compiler, "kernels run on the interpreter, slowly: %s", llvm_why);
        return EAS_OK;
    }
    st = build_image(ir, how, im);
    if (st)
        return st;
    *have = true;
    cache_store(&key, im);
    return EAS_OK;
}

static void drop(eas_device *d, dev_code *c)
{
    if (c->locked)
        drop(d, c->locked);
    if (c->map)
        munmap(c->map, c->mapped);
    free(c->sums);
    eas_ir_release(c->ir);
    free(c);
}

static eas_status compile(eas_device *d, const eas_ir *ir, unsigned how, dev_code **out)
{
    gen_image im = {0};
    bool have;
    dev_code *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return base_fail_oom(sizeof *c);
    c->ir = eas_ir_retain((eas_ir *)(uintptr_t)ir);
    c->how = how;
    eas_status st = how & DEV_SUMS ? sums_find(ir, &c->sums) : EAS_OK;
    if (!st)
        st = obtain_image(ir, how, &im, &have);
    if (!st && have)
        st = map_image(&im, c);
    gen_image_free(&im);
    if (st)
        drop(d, c);
    else
        *out = c;
    return st;
}

static bool alias_sensitive(const dev_code *c) { return c->alias_sensitive; }

/* ---- scratch: one growing block per thread ---- */

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static _Thread_local struct {
    void *at;
    size_t size;
} scratch;

static void make_key(void) { pthread_key_create(&scratch_key, free); }

static void *get_scratch(size_t n)
{
    if (n <= scratch.size)
        return scratch.at;
    void *p;
    if (posix_memalign(&p, 64, n))
        return NULL;
    pthread_once(&scratch_once, make_key);
    free(scratch.at);
    scratch.at = p;
    scratch.size = n;
    pthread_setspecific(scratch_key, p);
    return p;
}

/* ---- launching ---- */

enum { POLL_US = 20000 };

typedef struct work {
    const dev_code *code;
    gen_call call;
    sums sums; /* of code->sums */
    pthread_mutex_t lock; /* guards fault and st */
    gen_fault fault;
    bool oom;
    const eas_launch *opts; /* may be NULL */
    bool left;              /* the caller's lock was given up */
    pthread_t caller;       /* only this thread may ask */
    int64_t asked;          /* when, in us */
    _Atomic int stop;
} work;

/* ---- being interrupted ---- */

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int ask(void *ctx)
{
    work *w = ctx;
    const eas_launch *o = w->opts;
    if (!o || !o->interrupted)
        return 0;
    const int stop = w->left ? dev_poll((void *)(uintptr_t)o) : o->interrupted(o->ctx);
    if (stop)
        atomic_store(&w->stop, 1);
    return stop;
}

/* From inside a loop that may never end, after some 0.1 ms of it. What was thought to be short is not: others
 * may have the caller's lock meanwhile. */
static int look(void *ctx)
{
    work *w = ctx;
    const eas_launch *o = w->opts;
    if (atomic_load_explicit(&w->stop, memory_order_relaxed) || !o ||
        !pthread_equal(pthread_self(), w->caller))
        return atomic_load_explicit(&w->stop, memory_order_relaxed);
    if (!w->left && o->leave && o->enter) {
        o->leave(o->ctx);
        w->left = true;
    }
    const int64_t t = now_us();
    if (t - w->asked < POLL_US)
        return 0;
    w->asked = t;
    return ask(w);
}

static void keep_first(work *w, const gen_fault *f)
{
    pthread_mutex_lock(&w->lock);
    if (!w->fault.set || f->program < w->fault.program)
        w->fault = *f;
    pthread_mutex_unlock(&w->lock);
}

static void stream_fence(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

#if defined(__clang__) /* the sanitizer looks for the type of a function before its code, and an image has \
                          none there */
__attribute__((no_sanitize("function")))
#endif
static void
run_slice(void *ctx, int64_t first, int64_t last, int worker)
{
    work *w = ctx;
    gen_fault f = {0};
    gen_call call = w->call;
    void *s = get_scratch(w->code->scratch);
    if (!s && w->code->scratch) {
        w->oom = true;
        return;
    }
    if (first) {
        call.id[0] = first % call.grid[0];
        call.id[1] = first / call.grid[0] % call.grid[1];
        call.id[2] = first / call.grid[0] / call.grid[1];
    }
    if (w->code->sums)
        call.slot = sums_slots(&w->sums, worker);
    w->code->fn(&call, first, last, s, &f);
    if (call.flags & GEN_STREAM)
        stream_fence();
    if (f.set)
        keep_first(w, &f);
}

static eas_status report(const dev_launch *l, const work *w)
{
    if (w->oom)
        return base_fail_oom(w->code->scratch);
    if (!w->fault.set)
        return EAS_OK;
    int64_t p = w->fault.program,
            pid[3] = {p % l->grid[0], p / l->grid[0] % l->grid[1], p / (l->grid[0] * l->grid[1])};
    const eas_ir *ir = w->code->ir;
    uint32_t insn = (uint32_t)w->fault.insn;
    return ir_fault_message(ir, insn, w->fault.index, l->count, pid, w->fault.thread);
}

/* Of a launch; of a launch that is one slice anyway, up to which giving up the caller's lock costs more than
 * holding it; of a slice, which is worth waking a thread for; of a slice where the threads of the pool are
 * awake from the launch before. */
enum { TINY_NS = 4000, ALONE_NS = 40000, SLICE_NS = 20000, AWAKE_NS = 2500 };
static const uint64_t CACHE_SHARE =
    /* bytes for each thread: other programs use the last cache too, and with more than this non-temporal
       stores are faster even if the next launch reads the results */
    32u << 20;

uint64_t dev_cache_bytes(void)
{
    static _Atomic uint64_t known;
    uint64_t n = known;
    if (!n) {
        long l3 = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
        l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
        const uint64_t share = CACHE_SHARE * (uint64_t)pool_size();
        n = l3 > 0 ? (uint64_t)l3 : 16u << 20;
        known = n = n < share ? n : share;
    }
    return n;
}

static bool run_serial(work *w, int64_t programs, int64_t grain)
{
    for (int64_t i = 0; i < programs; i += grain) {
        run_slice(w, i, i + grain < programs ? i + grain : programs, 0);
        if (ask(w))
            return false;
    }
    return true;
}

static eas_status interrupted(const dev_launch *l)
{
    return base_fail(EAS_ERR_INTERRUPTED, "kernel %s was interrupted", l->ir->name);
}

/* Is an output also an input, as in an update in place? */
static bool in_place(const dev_launch *l)
{
    const eas_ir *ir = l->ir;
    for (int i = 0; i < ir->nparams; i++)
        for (int k = 0; k < ir->nparams && ir->params[i].write; k++)
            if (l->slot[k] == l->slot[i] && ir->params[k].read)
                return true;
    return false;
}

/* Outputs that do not fit the caches are written with non-temporal stores. Those are wrong for an update in
 * place: a line that was read is in the cache, the store evicts it, and the next vector of the line is read
 * from memory again. */
static bool streams(const dev_launch *l, uint64_t bytes)
{
    return bytes > dev_cache_bytes() / 2 && !in_place(l);
}

static work work_of(dev_code *c, const dev_launch *l, uint64_t bytes)
{
    return (work){.code = c,
                  .call = {.slot = l->slot,
                           .count = l->count,
                           .grid = {l->grid[0], l->grid[1], l->grid[2]},
                           .flags = streams(l, bytes) ? GEN_STREAM : 0,
                           .look = look},
                  .lock = PTHREAD_MUTEX_INITIALIZER,
                  .opts = l->opts,
                  .caller = pthread_self()};
}

/* The form that adds to the buffers themselves, for launches that find no memory for the threads' arrays. */
static eas_status locked_form(dev_code *c, dev_code **out)
{
    *out = atomic_load(&c->locked);
    if (*out)
        return EAS_OK;
    dev_code *made, *none = NULL;
    eas_status st = compile(&dev_cpu, c->ir, c->how & ~(unsigned)DEV_SUMS, &made);
    if (st)
        return st;
    if (atomic_compare_exchange_strong(&c->locked, &none, made)) {
        *out = made;
    } else {
        drop(&dev_cpu, made);
        *out = none;
    }
    return EAS_OK;
}

static eas_status begin(work *w, dev_code *c, const dev_launch *l, uint64_t bytes)
{
    *w = work_of(c, l, bytes);
    if (!c->sums || sums_open(&w->sums, c->sums, l))
        return EAS_OK;
    dev_code *locked = NULL;
    eas_status st = locked_form(c, &locked);
    w->code = locked;
    return st;
}

/* lost: what the launch did is not wanted. */
static void end(work *w, bool lost)
{
    if (w->code->sums)
        sums_close(&w->sums, lost);
}

static double slice_ns(void) { return pool_awake() ? AWAKE_NS : SLICE_NS; }
static int64_t grain_of(const dev_launch *l, double ns) { return (int64_t)(ns / l->cost) + 1; }

static eas_status forked(const dev_launch *l)
{
    return base_fail(
        EAS_ERR_RUNTIME,
        "this process was forked while kernel %s ran in the thread that forked it: its result is the parent's only; launch it again here",
        l->ir->name);
}

eas_status cpu_run(dev_code *c, const dev_launch *l)
{
    if (l->interp || !c->fn)
        return dev_ref.launch(&dev_ref, NULL, (dev_code *)(uintptr_t)(l->interp ? l->interp : c->ir), l);
    work w;
    const eas_launch *o = l->opts;
    eas_status st = begin(&w, c, l, l->bytes);
    if (st)
        return st;
    w.call.look_ctx = &w;
    const double ns = l->cost * (double)l->programs;
    const int64_t grain = grain_of(l, slice_ns());
    if (ns < TINY_NS || (ns < ALONE_NS && l->programs <= grain)) {
        run_slice(&w, 0, l->programs, 0);
        end(&w, false);
        if (w.left)
            o->enter(o->ctx);
        return w.stop ? interrupted(l) : w.fault.set || w.oom ? report(l, &w) : EAS_OK;
    }
    bool locks = o && o->leave && o->enter;
    const uint32_t forks = pool_forks();
    if (locks)
        o->leave(o->ctx);
    w.left = locks;
    bool done = l->serial ? run_serial(&w, l->programs, grain)
                          : pool_run(l->programs, grain, run_slice, &w, o && o->interrupted ? ask : NULL, &w);
    end(&w, pool_forks() != forks);
    if (locks)
        o->enter(o->ctx);
    if (!done && pool_forks() != forks)
        return forked(l);
    return done && !w.stop ? report(l, &w) : interrupted(l);
}

/* ---- several launches as one ----
 *
 * Launches that do not depend on each other (the updates of a model's parameters, say) are cut into slices as
 * each alone would be, and the slices of all are handed out from one list: one wake-up of the pool in place
 * of many, and a small launch leaves no thread idle. */
typedef struct many {
    work *w;
    const dev_launch *l;
    int64_t *first; /* per launch: its first slice; at n: how many there are */
    int n;
    double slice_ns;
} many;

static void run_slices(void *ctx, int64_t first, int64_t last, int worker)
{
    const many *m = ctx;
    int lo = 0, hi = m->n; /* the launch that slice `first` is of: first[lo] <= first < first[hi] */
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        *(m->first[mid] <= first ? &lo : &hi) = mid;
    }
    for (int64_t i = first; i < last; i++) {
        while (i >= m->first[lo + 1])
            lo++;
        const int64_t grain = grain_of(&m->l[lo], m->slice_ns), from = (i - m->first[lo]) * grain,
                      to = from + grain;
        run_slice(&m->w[lo], from, to < m->l[lo].programs ? to : m->l[lo].programs, worker);
    }
}

static eas_status outcome(const many *m, bool done)
{
    for (int i = 0; i < m->n; i++)
        if (m->w[i].stop)
            done = false;
    if (!done)
        return interrupted(&m->l[0]);
    for (int i = 0; i < m->n; i++)
        if (m->w[i].fault.set || m->w[i].oom)
            return report(&m->l[i], &m->w[i]);
    return EAS_OK;
}

eas_status cpu_run_many(int n, dev_code *const *code, const dev_launch *l)
{
    bool plain = true;
    uint64_t bytes = 0;
    double ns = 0;
    for (int i = 0; i < n; i++) {
        plain &= !l[i].interp && code[i]->fn && !l[i].serial && !code[i]->sums;
        bytes += l[i].bytes;
        ns += l[i].cost * (double)l[i].programs;
    }
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !plain && !st; i++)
        st = cpu_run(code[i], &l[i]);
    if (!plain)
        return st;
    many m = {.w = malloc((size_t)n * sizeof *m.w),
              .l = l,
              .first = malloc(((size_t)n + 1) * sizeof *m.first),
              .n = n,
              .slice_ns = slice_ns()};
    if (!m.w || !m.first) {
        free(m.w);
        free(m.first);
        return base_fail_oom((size_t)n * sizeof *m.w);
    }
    const eas_launch *o = l[0].opts;
    const bool locks = o && o->leave && o->enter && ns >= TINY_NS;
    m.first[0] = 0;
    for (int i = 0; i < n; i++) {
        m.w[i] = work_of(code[i], &l[i], bytes);
        m.w[i].call.look_ctx = &m.w[i];
        m.w[i].left = locks;
        const int64_t grain = grain_of(&l[i], m.slice_ns);
        m.first[i + 1] = m.first[i] + (l[i].programs + grain - 1) / grain;
    }
    const uint32_t forks = pool_forks();
    bool done = true;
    if (locks)
        o->leave(o->ctx);
    if (ns < TINY_NS)
        run_slices(&m, 0, m.first[n], 0);
    else
        done = pool_run(m.first[n], 1, run_slices, &m, o && o->interrupted ? ask : NULL, &m.w[0]);
    bool left = locks;
    for (int i = 0; i < n; i++)
        left |= m.w[i].left;
    if (left)
        o->enter(o->ctx);
    st = !done && pool_forks() != forks ? forked(&l[0]) : outcome(&m, done);
    free(m.w);
    free(m.first);
    return st;
}

static const char *available(eas_device *d) { return (void)d, NULL; }

static const char *describe(eas_device *d)
{
    static _Thread_local char text[128];
    (void)d;
    snprintf(text, sizeof text, "%s, %d thread%s", isa_name(), pool_size(), pool_size() == 1 ? "" : "s");
    return text;
}

static dev_limits limits(eas_device *d)
{
    const int registers = isa_registers(), bytes = isa_vector_bytes(), vectors = gen_tile_vectors(registers);
    const bool wide = vectors == 3; /* then four reach further, and powers of two are multiples of them */
    const dev_tile best = {gen_tile_rows(registers, wide ? 4 : vectors), (wide ? 4 : vectors) * bytes};
    (void)d;
    return (dev_limits){.simd = IR_SIMD,
                        .f64 = true,
                        .f16 = true,
                        .i64_atomics = true,
                        .unified = true,
                        .bf16_products = isa_bf16(),
                        .sort_bytes = isa_vector_bytes(),
                        .tile = {best, {wide ? gen_tile_rows(registers, vectors) : 0, vectors * bytes}}};
}

eas_device dev_cpu = {
    .name = "cpu",
    .unavailable = available,
    .describe = describe,
    .limits = limits,
    .alloc = dev_host_alloc,
    .dealloc = dev_host_dealloc,
    .host_memory = true,
    .ldexp = isa_ldexp,
    .sums = true,
    .compile = compile,
    .drop = drop,
    .alias_sensitive = alias_sensitive,
    .queue_new = cpu_queue_new,
    .queue_free = cpu_queue_free,
    .launch = cpu_queue_launch,
    .launch_many = cpu_queue_launch_many,
    .copy = cpu_queue_copy,
    .mark = cpu_queue_mark,
    .given = cpu_queue_given,
    .reached = cpu_queue_reached,
    .wait = cpu_queue_wait,
    .after = cpu_queue_after,
    .time = cpu_queue_time,
    .replay = cpu_queue_replay,
};
