/* metal.c: the device "mps": Apple's GPUs through Metal. This file has the device itself, its memory and its
 * code; metal_queue.c has the work.
 *
 * Memory is private to the device, unless it was asked for as shared. Addresses are numbers of our own,
 * handed out upwards and never again, and a table leads from them to the buffers.
 */
#include "metal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* ---- the device ---- */

static struct {
    pthread_mutex_t lock; /* guards opening */
    _Atomic(mtl_id) device;
    dev_limits limits;
    bool indirect, resident; /* as metal_indirect says */
    char name[128];
} metal = {.lock = PTHREAD_MUTEX_INITIALIZER};

mtl_id metal_device(void) { return atomic_load_explicit(&metal.device, memory_order_acquire); }

static void read_limits(mtl_id d)
{
    mtl_size threads = SEND0(max_threads, d);
    mtl_id name = SEND0(name, d);
    snprintf(metal.name, sizeof metal.name, "%s", name ? SEND0(utf8, name) : "unnamed");
    metal.limits = (dev_limits){.threads = (int64_t)threads.width,
                                .tg_bytes = (int64_t)SEND0(max_tg, d),
                                .simd = IR_SIMD,
                                .buffers = GEN_MSL_BUFFERS,
                                .max_alloc = SEND0(max_buffer, d),
                                .f16 = true,
                                .unified = SEND0(unified, d) != 0};
}

bool metal_answers(mtl_id o, int message) { return SEND(responds, o, metal_sel[message]) != 0; }

static bool class_answers(const char *name, int message)
{
    mtl_id class = metal_class(name), o = class ? SEND0(alloc, class) : NULL;
    o = o ? SEND0(init, o) : NULL;
    bool yes = o && metal_answers(o, message);
    if (o)
        SEND0(release, o);
    return yes;
}

/* Compute commands are encoded once from macOS 11 on, by these families. Before Apple 9 (M3) the GPU does not
 * find a pipeline that only such commands name. */
static void read_families(mtl_id d)
{
    enum { APPLE_3 = 1003, APPLE_9 = 1009, MAC_2 = 2002 };
    bool asks = metal_answers(d, MSG_supports) && metal_answers(d, MSG_new_indirect) &&
                class_answers("MTLComputePipelineDescriptor", MSG_set_indirect) &&
                class_answers("MTLIndirectCommandBufferDescriptor", MSG_set_most_buffers);
    metal.indirect = asks && (SEND(supports, d, APPLE_3) || SEND(supports, d, MAC_2));
    metal.resident = asks && SEND(supports, d, APPLE_9);
}

bool metal_indirect(bool *resident)
{
    *resident = metal.resident;
    return metal.indirect;
}

/* A failure is not remembered: EAS_METAL_LIBRARY may be set later. */
static const char *open_device(void)
{
    mtl_id d = NULL;
    const char *why = NULL;
    pthread_mutex_lock(&metal.lock);
    if (!metal_device() && !(why = metal_open(&d))) {
        void *pool = metal_pool_push();
        read_limits(d);
        read_families(d);
        metal_pool_pop(pool);
        metal_watch_fork();
        atomic_store_explicit(&metal.device, d, memory_order_release);
    }
    pthread_mutex_unlock(&metal.lock);
    return why;
}

static const char *unavailable(eas_device *d)
{
    (void)d;
    if (metal_forked())
        return "Metal cannot be used in a child of fork() once the parent has used it; start the child with exec or spawn";
    return metal_device() ? NULL : open_device();
}

eas_status metal_ready(void)
{
    const char *why = unavailable(&dev_metal);
    return why ? base_fail(EAS_ERR_UNAVAILABLE, "device \"mps\" is not available: %s", why) : EAS_OK;
}

static const char *describe(eas_device *d)
{
    static _Thread_local char text[256];
    const char *why = unavailable(d);
    if (why)
        return why;
    snprintf(text, sizeof text, "%s, %lld KiB of threadgroup memory, %lld threads a group", metal.name,
             (long long)metal.limits.tg_bytes >> 10, (long long)metal.limits.threads);
    return text;
}

static dev_limits limits(eas_device *d)
{
    static const dev_limits unknown = {.threads = 1024,
                                       .tg_bytes = 32768,
                                       .simd = IR_SIMD,
                                       .buffers = GEN_MSL_BUFFERS,
                                       .f16 = true,
                                       .unified = true};
    return unavailable(d) ? unknown : metal.limits;
}

/* ---- memory ---- */

typedef struct block {
    uint64_t base, size;
    mtl_id buffer;
    char *host;
    int refs; /* a buffer of others may be adopted more than once */
} block;

static struct {
    pthread_mutex_t lock;
    VEC(block) blocks; /* by base: new ones are the highest */
    uint64_t next;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER, .next = (uint64_t)1 << 40};

enum { GAP = 4096 }; /* between blocks, so that an address just past one is never in another */

/* The index of the block that address lies in or just behind; -1: none. */
static int64_t block_of(uint64_t address)
{
    int64_t lo = 0, hi = (int64_t)memory.blocks.len;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (memory.blocks.at[mid].base <= address)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (!lo)
        return -1;
    const block *b = &memory.blocks.at[lo - 1];
    return address - b->base <= b->size ? lo - 1 : -1;
}

static eas_status remember(mtl_id buffer, size_t nbytes, char *host, void **mem)
{
    pthread_mutex_lock(&memory.lock);
    block b = {.base = memory.next, .size = nbytes, .buffer = buffer, .host = host, .refs = 1};
    bool ok = vec_push(&memory.blocks, b);
    if (ok)
        memory.next += (nbytes + 2 * GAP - 1) / GAP * GAP;
    pthread_mutex_unlock(&memory.lock);
    *mem = (void *)(uintptr_t)b.base;
    return ok ? EAS_OK : base_fail_oom(sizeof b);
}

static eas_status new_memory(size_t nbytes, bool shared, void **mem, void **host)
{
    eas_status st = metal_ready();
    if (st)
        return st;
    if (nbytes > metal.limits.max_alloc)
        return base_fail(EAS_ERR_MEMORY, "device \"mps\": %zu bytes; one allocation has at most %zu", nbytes,
                         metal.limits.max_alloc);
    mtl_id b = SEND(new_buffer, metal_device(), nbytes ? nbytes : 1, shared ? METAL_SHARED : METAL_PRIVATE);
    if (!b)
        return base_fail(EAS_ERR_MEMORY, "device \"mps\": out of memory, %zu bytes were asked for", nbytes);
    *host = shared ? SEND0(contents, b) : NULL;
    st = remember(b, nbytes, *host, mem);
    if (st)
        SEND0(release, b);
    return st;
}

static eas_status alloc(eas_device *d, size_t nbytes, void **mem)
{
    void *host;
    (void)d;
    return new_memory(nbytes, false, mem, &host);
}

static eas_status alloc_shared(eas_device *d, size_t nbytes, void **mem, void **host)
{
    (void)d;
    return new_memory(nbytes, true, mem, host);
}

/* Metal takes whole pages. The last one may hold more than was lent: it is there all the same, and nothing
 * touches it. */
static bool lend(eas_device *d, void *host, size_t nbytes, bool written, void **mem)
{
    (void)d, (void)written;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (nbytes + page - 1) / page * page;
    if (unavailable(d) || !metal.limits.unified || (uintptr_t)host % page || whole < nbytes ||
        whole > metal.limits.max_alloc)
        return false;
    mtl_id b = SEND(new_lent, metal_device(), host, whole, METAL_SHARED, NULL);
    if (b && !remember(b, nbytes, host, mem))
        return true;
    if (b)
        SEND0(release, b);
    return false;
}

/* The block of a buffer that is known already, counted once more; false: there is none. */
static bool known(mtl_id buffer, block *out)
{
    bool found = false;
    pthread_mutex_lock(&memory.lock);
    for (uint32_t i = 0; i < memory.blocks.len && !found; i++)
        if (memory.blocks.at[i].buffer == buffer) {
            memory.blocks.at[i].refs++;
            *out = memory.blocks.at[i];
            found = true;
        }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

static eas_status adopt(eas_device *d, void *handle, size_t *nbytes, void **mem, void **host)
{
    (void)d;
    eas_status st = metal_ready();
    mtl_id buffer = handle;
    block b;
    if (st)
        return st;
    if (known(buffer, &b)) {
        *nbytes = b.size;
        *host = b.host;
        *mem = (void *)(uintptr_t)b.base;
        return EAS_OK;
    }
    SEND0(retain, buffer);
    *nbytes = SEND0(length, buffer);
    *host = SEND0(contents, buffer);
    st = remember(buffer, *nbytes, *host, mem);
    if (st)
        SEND0(release, buffer);
    return st;
}

static void *handle(eas_device *d, const void *mem, size_t *offset)
{
    metal_place at;
    (void)d;
    if (metal_find((uint64_t)(uintptr_t)mem, 0, &at))
        return NULL;
    *offset = at.offset;
    return at.buffer;
}

/* Command buffers retain what they use: the memory itself goes when the last of them is done. */
static void dealloc(eas_device *d, void *mem, size_t nbytes)
{
    (void)d, (void)nbytes;
    mtl_id buffer = NULL;
    pthread_mutex_lock(&memory.lock);
    int64_t i = block_of((uint64_t)(uintptr_t)mem);
    if (i >= 0 && !--memory.blocks.at[i].refs) {
        buffer = memory.blocks.at[i].buffer;
        memmove(&memory.blocks.at[i], &memory.blocks.at[i + 1],
                (memory.blocks.len - (size_t)i - 1) * sizeof(block));
        memory.blocks.len--;
    }
    pthread_mutex_unlock(&memory.lock);
    if (buffer && !metal_forked())
        SEND0(release, buffer);
}

eas_status metal_find(uint64_t address, size_t n, metal_place *out)
{
    pthread_mutex_lock(&memory.lock);
    int64_t i = block_of(address);
    block b = {0};
    if (i >= 0)
        b = memory.blocks.at[i];
    pthread_mutex_unlock(&memory.lock);
    if (i < 0 || n > b.size - (address - b.base))
        return base_fail(EAS_ERR_VALUE, "device \"mps\": %zu bytes from address 0x%llx are not in its memory",
                         n, (unsigned long long)address);
    *out = (metal_place){b.buffer, (size_t)(address - b.base), b.host ? b.host + (address - b.base) : NULL};
    return EAS_OK;
}

/* ---- code ---- */

static bool uses_bf16(const eas_ir *ir)
{
    for (uint32_t v = 1; v < ir->nvals; v++)
        if (ir->vals[v].type.kind != IR_FRAG && ir->vals[v].type.dtype == EAS_BF16)
            return true;
    return false;
}

static bool uses_lanes(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        uint16_t op = ir->insns[i].op;
        if (op == IR_LANE_ID || op == IR_SG_ID || op == IR_MMA || op == IR_MMA_STORE)
            return true;
    }
    return false;
}

/* Exact arithmetic unless the kernel asks for fast math: division and sqrt are then correctly rounded. */
static mtl_id new_options(const eas_ir *ir)
{
    enum { MATH_SAFE = 0, MATH_FAST = 2, VERSION_3_1 = (3 << 16) + 1 };
    bool fast = ir->flags & EAS_KERNEL_FAST_MATH;
    mtl_id o = SEND0(alloc, metal_class("MTLCompileOptions"));
    o = SEND0(init, o);
    if (metal_answers(o, MSG_set_math_mode))
        SEND(set_math_mode, o, fast ? MATH_FAST : MATH_SAFE);
    else
        SEND(set_fast_math, o, fast);
    if (uses_bf16(ir))
        SEND(set_version, o, VERSION_3_1);
    return o;
}

static const char *line_of(const char *text, unsigned line, int *len)
{
    while (--line && text) {
        text = strchr(text, '\n');
        text = text ? text + 1 : NULL;
    }
    *len = text ? (int)strcspn(text, "\n") : 0;
    return text ? text : "";
}

/* Metal's complaint names a line of the text; the user's line is what they can do something about. */
static eas_status refuse(const eas_ir *ir, const str *text, const gen_linemap *map, const char *said)
{
    const char *at = strstr(said, "program_source:"), *error = at ? strstr(at, "error:") : NULL;
    unsigned line = 0;
    int len = 0;
    if (!at || !error || sscanf(at, "program_source:%u", &line) != 1 || !line)
        return base_fail(EAS_ERR_RUNTIME, "kernel %s: Metal cannot compile it: %s", ir->name, said);
    const char *shown = line_of(text->at, line, &len);
    uint32_t i = line <= map->len ? map->at[line - 1] : UINT32_MAX;
    int what = (int)strcspn(error, "\n");
    if (i < ir->ninsns && ir->insns[i].file)
        return base_fail(EAS_ERR_RUNTIME,
                         "%s:%u: kernel %s: Metal cannot compile line %u of its text, `%.*s`: %.*s",
                         ir->files[ir->insns[i].file], (unsigned)ir->insns[i].line, ir->name, line, len,
                         shown, what, error);
    return base_fail(EAS_ERR_RUNTIME, "kernel %s: Metal cannot compile line %u of its text, `%.*s`: %.*s",
                     ir->name, line, len, shown, what, error);
}

/* Launches of it may be part of a plan. */
static mtl_id new_pipeline(mtl_id fn, mtl_id *error)
{
    if (!metal.indirect)
        return SEND(new_pipeline, metal_device(), fn, error);
    mtl_id o = SEND0(alloc, metal_class("MTLComputePipelineDescriptor"));
    o = SEND0(init, o);
    SEND(set_function, o, fn);
    SEND(set_indirect, o, 1);
    mtl_id pipeline = SEND(new_described, metal_device(), o, 0, NULL, error);
    SEND0(release, o);
    return pipeline;
}

static eas_status make_pipeline(const eas_ir *ir, mtl_id library, mtl_id *pipeline)
{
    str name = {0};
    mtl_id error = NULL;
    eas_status st = gen_ctext_name(ir, &name);
    if (st)
        return st;
    mtl_id fn = SEND(new_function, library, metal_string(name.at));
    *pipeline = fn ? new_pipeline(fn, &error) : NULL;
    if (!*pipeline)
        st = base_fail(EAS_ERR_RUNTIME, "kernel %s: Metal makes no pipeline of it: %s", ir->name,
                       fn ? metal_text(error) : "no such function");
    if (fn)
        SEND0(release, fn);
    str_free(&name);
    return st;
}

static eas_status build(const eas_ir *ir, const str *text, const gen_linemap *map, mtl_id *pipeline)
{
    mtl_id error = NULL, options = new_options(ir);
    mtl_id library = SEND(new_library, metal_device(), metal_string(text->at), options, &error);
    SEND0(release, options);
    if (!library)
        return refuse(ir, text, map, metal_text(error));
    eas_status st = make_pipeline(ir, library, pipeline);
    SEND0(release, library);
    return st;
}

eas_status metal_byte_copier(mtl_id *pipeline)
{
    static const char text[] = "#include <metal_stdlib>\n"
                               "using namespace metal;\n"
                               "kernel void eas_copy_bytes(\n"
                               "    device const uchar* from [[buffer(0)]],\n"
                               "    device uchar* to [[buffer(1)]],\n"
                               "    uint3 gid [[thread_position_in_grid]])\n"
                               "{\n"
                               "    to[gid.x] = from[gid.x];\n"
                               "}\n";
    static mtl_id made;
    mtl_id error = NULL;
    pthread_mutex_lock(&metal.lock);
    mtl_id library = made ? NULL : SEND(new_library, metal_device(), metal_string(text), NULL, &error);
    mtl_id fn = library ? SEND(new_function, library, metal_string("eas_copy_bytes")) : NULL;
    if (fn)
        made = SEND(new_pipeline, metal_device(), fn, &error);
    *pipeline = made;
    eas_status st =
        made ? EAS_OK
             : base_fail(EAS_ERR_RUNTIME, "device \"mps\": no kernel to copy bytes: %s", metal_text(error));
    if (fn)
        SEND0(release, fn);
    if (library)
        SEND0(release, library);
    pthread_mutex_unlock(&metal.lock);
    return st;
}

/* Checks limits that are known only once the pipeline is compiled, such as the threads of a group. */
static eas_status check_pipeline(const dev_code *c)
{
    const char *name = c->ir->name;
    int64_t most = (int64_t)SEND0(max_group, c->pipeline), tg = (int64_t)SEND0(tg_used, c->pipeline);
    if (c->thread_mode && c->threads > most)
        return base_fail(
            EAS_ERR_VALUE,
            "kernel %s: a group of %lld threads; with the registers it uses the device runs at most %lld",
            name, (long long)c->threads, (long long)most);
    if (tg > metal.limits.tg_bytes)
        return base_fail(EAS_ERR_VALUE,
                         "kernel %s needs %lld bytes of threadgroup memory; the device has %lld", name,
                         (long long)tg, (long long)metal.limits.tg_bytes);
    if (c->width != IR_SIMD && uses_lanes(c->ir))
        return base_fail(EAS_ERR_VALUE, "kernel %s uses simdgroups of %d threads; the device's have %lld",
                         name, (int)IR_SIMD, (long long)c->width);
    return EAS_OK;
}

static void drop(eas_device *d, dev_code *c)
{
    (void)d;
    if (!c)
        return;
    if (c->pipeline && !metal_forked())
        SEND0(release, c->pipeline);
    eas_ir_release(c->ir);
    free(c);
}

static eas_status compile_text(dev_code *c, bool alias)
{
    str text = {0};
    gen_linemap map = {0};
    void *pool = metal_pool_push();
    eas_status st = gen_msl_layout_of(c->ir, &c->layout);
    if (!st)
        st = gen_ctext(c->ir, GEN_MSL, alias ? GEN_ALIAS : 0, &text, &map);
    if (!st)
        st = build(c->ir, &text, &map, &c->pipeline);
    if (!st) {
        c->width = (int64_t)SEND0(simd_width, c->pipeline);
        st = check_pipeline(c);
    }
    metal_pool_pop(pool);
    str_free(&text);
    vec_free(&map);
    return st;
}

static eas_status compile(eas_device *d, const eas_ir *ir, unsigned how, dev_code **out)
{
    eas_status st = metal_ready();
    dev_code *c = st ? NULL : calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return st ? st : base_fail_oom(sizeof *c);
    eas_ir_info info = ir_analyse(ir);
    c->ir = eas_ir_retain((eas_ir *)(uintptr_t)ir);
    c->thread_mode = info.mode == EAS_MODE_THREAD;
    c->threads = info.block;
    for (int i = 0; i < ir->nparams; i++)
        c->scalar[i] = (uint8_t)gen_ctext_scalar(ir, i);
    c->checked = ir_faults(ir);
    st = compile_text(c, how & DEV_ALIAS);
    if (st) {
        drop(d, c);
        return st;
    }
    atomic_fetch_add_explicit(&dev_count.compiles, 1, memory_order_relaxed);
    *out = c;
    return EAS_OK;
}

/* The text says restrict unless it was made for overlap. */
static bool alias_sensitive(const dev_code *c) { return (void)c, true; }

eas_device dev_metal = {
    .name = "mps",
    .unavailable = unavailable,
    .describe = describe,
    .limits = limits,
    .alloc = alloc,
    .dealloc = dealloc,
    .alloc_shared = alloc_shared,
    .adopt = adopt,
    .handle = handle,
    .lend = lend,
    .text = true,
    .compile = compile,
    .drop = drop,
    .alias_sensitive = alias_sensitive,
    .queue_new = metal_queue_new,
    .queue_free = metal_queue_free,
    .launch = metal_launch,
    .copy = metal_copy,
    .mark = metal_mark,
    .given = metal_given,
    .reached = metal_reached,
    .wait = metal_wait,
    .after = metal_after,
    .time = metal_time,
    .replay = metal_replay,
    .plan = metal_plan,
    .plan_free = metal_plan_free,
};
