/* opencl.c: the OpenCL device: any vendor's, through the loader that the system has.
 *
 * One device is used: what EAS_OPENCL_DEVICE names (a number in the order of `clinfo -l`, or part of a name),
 * else the first GPU, accelerator or CPU. EAS_OPENCL_OPTIONS adds to the options that programs are built
 * with. Addresses are numbers of our own, never used twice; a sorted table leads from them to cl_mem objects.
 * Kernels take the whole object and an offset in elements (GEN_OFFSETS), so views need no alignment. A queue
 * is an in-order command queue; a ticket is the number of a command in it, and the commands that may still
 * run are kept with their events. Checked kernels write what went wrong into a buffer of their own, which is
 * read when the command is found done.
 */
#include "opencl.h"
#include "dev.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { MAX_PLATFORMS = 16, MAX_DEVICES = 64, FAULT_WORDS = 8, TIMES = 4096 };

static struct {
    pthread_once_t once;
    char why[512]; /* "" : usable */
    char about[512];
    char target[1024]; /* what a compiled program depends on besides its text */
    char options[256];
#define X(result, name, params) result(*name) params;
    OPENCL_FUNCTIONS(X)
#undef X
    cl_device_id device;
    cl_context context;
    dev_limits limits;
    size_t max_params;
    bool on_cpu;
    int lanes; /* of vectors in the text, on a CPU; 0: threads are the device's own */
} O = {.once = PTHREAD_ONCE_INIT};

/* ---- errors ---- */

static const char *error_text(cl_int e)
{
    switch (e) {
    case CL_DEVICE_NOT_FOUND: return "no such device";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE: return "out of device memory";
    case CL_OUT_OF_RESOURCES: return "out of resources";
    case CL_OUT_OF_HOST_MEMORY: return "out of host memory";
    case CL_BUILD_PROGRAM_FAILURE: return "the program does not build";
    case CL_INVALID_WORK_GROUP_SIZE: return "the device cannot run groups of this size for this kernel";
    case CL_INVALID_BUFFER_SIZE: return "the buffer is too large";
    default: return "the driver failed";
    }
}

static eas_status failed(cl_int e, const char *what)
{
    bool memory =
        e == CL_MEM_OBJECT_ALLOCATION_FAILURE || e == CL_OUT_OF_HOST_MEMORY || e == CL_INVALID_BUFFER_SIZE;
    return base_fail(memory ? EAS_ERR_MEMORY : EAS_ERR_RUNTIME, "OpenCL: %s: %s (error %d)", what,
                     error_text(e), (int)e);
}

/* ---- finding the device ---- */

static bool open_loader(void)
{
    const char *env = base_env("EAS_OPENCL_LIBRARY");
    const char *const names[] = {env && *env ? env : NULL, "libOpenCL.so.1", "libOpenCL.so",
                                 "/System/Library/Frameworks/OpenCL.framework/OpenCL"};
    void *lib = NULL;
    for (int i = 0; i < 4 && !lib; i++) {
        if (names[i])
            lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (i == 0 && names[0])
            break;
    }
    if (!lib)
        return snprintf(O.why, sizeof O.why, "no OpenCL loader (libOpenCL.so.1) could be opened: %s",
                        dlerror()),
               false;
    void *sym;
#define X(result, name, params) \
    if (!(sym = dlsym(lib, #name))) \
        return snprintf(O.why, sizeof O.why, \
                        "the OpenCL loader is older than OpenCL 1.2: it has no " #name), \
               false; \
    memcpy(&O.name, &sym, sizeof sym);
    OPENCL_FUNCTIONS(X)
#undef X
    return true;
}

static int list_devices(cl_device_id out[MAX_DEVICES])
{
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint np = 0, n = 0;
    if (O.clGetPlatformIDs(MAX_PLATFORMS, platforms, &np))
        return 0;
    for (cl_uint i = 0; i < np && i < MAX_PLATFORMS; i++) {
        cl_uint more = 0;
        if (n < MAX_DEVICES &&
            !O.clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, MAX_DEVICES - n, out + n, &more))
            n += more < MAX_DEVICES - n ? more : MAX_DEVICES - n;
    }
    return (int)n;
}

static void info_text(cl_device_id d, cl_uint what, char *out, size_t size)
{
    if (O.clGetDeviceInfo(d, what, size - 1, out, NULL))
        *out = 0;
    out[size - 1] = 0;
}

static uint64_t info_bits(cl_device_id d, cl_uint what, size_t size)
{
    uint64_t v = 0;
    uint32_t w = 0;
    if (size == 4)
        return O.clGetDeviceInfo(d, what, 4, &w, NULL) ? 0 : w;
    return O.clGetDeviceInfo(d, what, 8, &v, NULL) ? 0 : v;
}

static cl_device_id named_device(const cl_device_id *all, int n, const char *want)
{
    char name[256], *end;
    long number = strtol(want, &end, 10);
    if (!*end && number >= 0 && number < n)
        return all[number];
    for (int i = 0; i < n; i++) {
        info_text(all[i], CL_DEVICE_NAME, name, sizeof name);
        if (strstr(name, want))
            return all[i];
    }
    return NULL;
}

static cl_device_id pick_device(void)
{
    static const cl_bits order[] = {CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CPU,
                                    CL_DEVICE_TYPE_ALL};
    cl_device_id all[MAX_DEVICES];
    int n = list_devices(all);
    const char *want = getenv("EAS_OPENCL_DEVICE");
    if (!n)
        return snprintf(O.why, sizeof O.why,
                        "OpenCL has no device here (no driver is installed, such as pocl-opencl-icd)"),
               NULL;
    if (want && *want) {
        cl_device_id d = named_device(all, n, want);
        if (!d)
            snprintf(O.why, sizeof O.why, "EAS_OPENCL_DEVICE=%s: none of the %d devices is called that", want,
                     n);
        return d;
    }
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < n; i++)
            if (info_bits(all[i], CL_DEVICE_TYPE, 8) & order[k])
                return all[i];
    return NULL;
}

/* A CPU gets vectors as wide as its own; EAS_OPENCL_LANES says otherwise (0: the text that GPUs get), for
 * tests. */
static int text_lanes(cl_device_id d)
{
    const char *e = getenv("EAS_OPENCL_LANES");
    uint64_t n = e && *e   ? strtoull(e, NULL, 10)
               : !O.on_cpu ? 0
                           : info_bits(d, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 4);
    return e && *e && !n ? 0 : n >= 16 ? 16 : n >= 8 ? 8 : n ? 4 : 0;
}

static void read_limits(cl_device_id d)
{
    size_t extensions = 0;
    O.clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, 0, NULL, &extensions);
    char *ext = calloc(1, extensions + 1);
    if (ext)
        O.clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, extensions, ext, NULL);
    O.limits = (dev_limits){.threads = (int64_t)info_bits(d, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t)),
                            .tg_bytes = (int64_t)info_bits(d, CL_DEVICE_LOCAL_MEM_SIZE, 8),
                            .simd = IR_SIMD,
                            .max_alloc = (size_t)info_bits(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 8),
                            .f64 = info_bits(d, CL_DEVICE_DOUBLE_FP_CONFIG, 8) != 0,
                            .f16 = true, /* in memory; computed in float */
                            .i64_atomics = ext && strstr(ext, "cl_khr_int64_base_atomics") &&
                                           strstr(ext, "cl_khr_int64_extended_atomics"),
                            .unified = info_bits(d, CL_DEVICE_HOST_UNIFIED_MEMORY, 4) != 0};
    O.max_params = (size_t)info_bits(d, CL_DEVICE_MAX_PARAMETER_SIZE, sizeof(size_t));
    /* as if all were buffers, see check_params */
    O.limits.params = O.max_params ? (int64_t)(O.max_params - 16) / 16 : 0;
    O.on_cpu = (info_bits(d, CL_DEVICE_TYPE, 8) & CL_DEVICE_TYPE_CPU) != 0;
    O.lanes = text_lanes(d);
    free(ext);
}

static void describe_device(cl_device_id d)
{
    char name[160], version[160], driver[160];
    uint64_t fp = info_bits(d, CL_DEVICE_SINGLE_FP_CONFIG, 8);
    bool exact = fp & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
    info_text(d, CL_DEVICE_NAME, name, sizeof name);
    info_text(d, CL_DEVICE_VERSION, version, sizeof version);
    info_text(d, CL_DRIVER_VERSION, driver, sizeof driver);
    const char *more = getenv("EAS_OPENCL_OPTIONS");
    snprintf(O.options, sizeof O.options, "-cl-std=CL1.2%s%s%s",
             exact ? " -cl-fp32-correctly-rounded-divide-sqrt" : "", more ? " " : "", more ? more : "");
    snprintf(O.about, sizeof O.about, "%s, %s%s%s%s", name, version, O.limits.f64 ? "" : ", no double",
             exact ? "" : ", f32 division and square root are not correctly rounded",
             fp & CL_FP_DENORM ? "" : ", f32 denormals are flushed");
    snprintf(O.target, sizeof O.target, "opencl %s %s %s %s", name, version, driver, O.options);
}

static void set_up(void)
{
    cl_int e = 0;
    if (!open_loader() || !(O.device = pick_device())) {
        if (!O.why[0])
            snprintf(O.why, sizeof O.why, "OpenCL has no usable device");
        return;
    }
    read_limits(O.device);
    describe_device(O.device);
    O.context = O.clCreateContext(NULL, 1, &O.device, NULL, NULL, &e);
    if (!O.context)
        snprintf(O.why, sizeof O.why, "%.400s: no context could be made: %s (error %d)", O.about,
                 error_text(e), (int)e);
}

static const char *unavailable(eas_device *d)
{
    (void)d;
    pthread_once(&O.once, set_up);
    return O.why[0] ? O.why : NULL;
}

static eas_status usable(void)
{
    const char *why = unavailable(NULL);
    return why ? base_fail(EAS_ERR_UNAVAILABLE, "device \"opencl\" is not available: %s", why) : EAS_OK;
}

static const char *describe(eas_device *d)
{
    const char *why = unavailable(d);
    return why ? why : O.about;
}

static dev_limits limits(eas_device *d) { return unavailable(d) ? (dev_limits){0} : O.limits; }

/* ---- memory ---- */

typedef struct range {
    uint64_t at, size;
    cl_mem mem;
    int refs; /* a buffer may be adopted more than once */
    const void *host; /* of lent memory; else NULL */
} range;

static struct {
    pthread_mutex_t lock;
    VEC(range) all; /* by address: new ones come last */
    uint64_t next;
} M = {.lock = PTHREAD_MUTEX_INITIALIZER, .next = (uint64_t)1 << 40};

enum { GUARD = 4096 };

static uint32_t find_range(uint64_t at) /* the last one that begins at or before */
{
    uint32_t lo = 0, hi = M.all.len;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (M.all.at[mid].at <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo; /* one past it */
}

/* Takes m. */
static eas_status add_range(cl_mem m, size_t nbytes, const void *host, void **mem)
{
    pthread_mutex_lock(&M.lock);
    range r = {M.next, nbytes, m, 1, host};
    bool ok = vec_push(&M.all, r);
    if (ok)
        M.next += (nbytes + 2 * GUARD - 1) / GUARD * GUARD;
    pthread_mutex_unlock(&M.lock);
    if (!ok) {
        O.clReleaseMemObject(m);
        return base_fail_oom(sizeof r);
    }
    *mem = (void *)(uintptr_t)r.at;
    return EAS_OK;
}

static eas_status alloc(eas_device *d, size_t nbytes, void **mem)
{
    (void)d;
    cl_int e = 0;
    eas_status st = usable();
    if (st)
        return st;
    if (O.limits.max_alloc && nbytes > O.limits.max_alloc)
        return base_fail(EAS_ERR_MEMORY,
                         "out of memory: %zu bytes in one piece; the OpenCL device gives at most %zu", nbytes,
                         O.limits.max_alloc);
    cl_mem m = O.clCreateBuffer(O.context, CL_MEM_READ_WRITE, nbytes ? nbytes : 1, NULL, &e);
    if (!m)
        return failed(e, "a buffer could not be made");
    return add_range(m, nbytes, NULL, mem);
}

/* Only where the device works in the host's memory: others would copy behind our back. */
static bool lend(eas_device *d, void *host, size_t nbytes, bool written, void **mem)
{
    (void)d;
    cl_int e = 0;
    if (unavailable(NULL) || !O.limits.unified || (O.limits.max_alloc && nbytes > O.limits.max_alloc))
        return false;
    cl_mem m = O.clCreateBuffer(
        O.context, CL_MEM_USE_HOST_PTR | (written ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY), nbytes, host, &e);
    return m && !add_range(m, nbytes, host, mem);
}

/* The range of a buffer that is known already, counted once more. */
static bool known(cl_mem m, size_t *nbytes, void **mem)
{
    bool found = false;
    pthread_mutex_lock(&M.lock);
    for (uint32_t i = 0; i < M.all.len && !found; i++)
        if ((found = M.all.at[i].mem == m)) {
            M.all.at[i].refs++;
            *nbytes = M.all.at[i].size;
            *mem = (void *)(uintptr_t)M.all.at[i].at;
        }
    pthread_mutex_unlock(&M.lock);
    return found;
}

/* A buffer belongs to the context it was made in: only those of ours can be used. */
static eas_status adopt(eas_device *d, void *handle, size_t *nbytes, void **mem, void **host)
{
    (void)d;
    cl_context context = NULL;
    eas_status st = usable();
    *host = NULL;
    if (st || known(handle, nbytes, mem))
        return st;
    cl_int e = O.clGetMemObjectInfo(handle, CL_MEM_CONTEXT, sizeof context, &context, NULL);
    if (!e)
        e = O.clGetMemObjectInfo(handle, CL_MEM_SIZE, sizeof *nbytes, nbytes, NULL);
    if (e)
        return failed(e, "a buffer of others could not be asked for its size");
    if (context != O.context)
        return base_fail(EAS_ERR_VALUE,
                         "an OpenCL buffer of another context cannot be used here: copy it through the host");
    O.clRetainMemObject(handle);
    return add_range(handle, *nbytes, NULL, mem);
}

static void dealloc(eas_device *d, void *mem, size_t nbytes)
{
    (void)d, (void)nbytes;
    pthread_mutex_lock(&M.lock);
    uint32_t i = find_range((uint64_t)(uintptr_t)mem);
    if (i && M.all.at[i - 1].at == (uint64_t)(uintptr_t)mem && !--M.all.at[i - 1].refs) {
        /* the driver keeps it until commands that use it are done */
        O.clReleaseMemObject(M.all.at[i - 1].mem);
        memmove(&M.all.at[i - 1], &M.all.at[i], (M.all.len - i) * sizeof(range));
        M.all.len--;
    }
    pthread_mutex_unlock(&M.lock);
}

/* What [at, at + size) lies in. */
static eas_status range_of(uint64_t at, uint64_t size, range *out)
{
    pthread_mutex_lock(&M.lock);
    uint32_t i = find_range(at);
    range r = i ? M.all.at[i - 1] : (range){0};
    pthread_mutex_unlock(&M.lock);
    if (!r.mem || at - r.at > r.size || size > r.size - (at - r.at))
        return base_fail(
            EAS_ERR_VALUE,
            "%#llx is not an address of the OpenCL device, or %llu bytes reach beyond its buffer",
            (unsigned long long)at, (unsigned long long)size);
    *out = r;
    return EAS_OK;
}

/* The object behind [at, at + size) and the offset in it. */
static eas_status locate(uint64_t at, uint64_t size, cl_mem *mem, uint64_t *offset)
{
    range r;
    eas_status st = range_of(at, size, &r);
    *mem = st ? NULL : r.mem;
    *offset = st ? 0 : at - r.at;
    return st;
}

static void *handle(eas_device *d, const void *mem, size_t *offset)
{
    (void)d;
    cl_mem m;
    uint64_t at = 0;
    bool found = !locate((uint64_t)(uintptr_t)mem, 0, &m, &at);
    *offset = (size_t)at;
    return found ? m : NULL;
}

/* ---- code ---- */

struct dev_code {
    eas_ir *ir;
    cl_program program;
    cl_kernel kernel;
    pthread_mutex_t lock; /* arguments are the kernel's state */
    eas_ir_info info;
    bool checked;
    uint8_t dtype[IR_MAX_PARAMS]; /* in which scalars are handed over */
};

static void drop(eas_device *d, dev_code *c)
{
    (void)d;
    if (c->kernel)
        O.clReleaseKernel(c->kernel);
    if (c->program)
        O.clReleaseProgram(c->program);
    eas_ir_release(c->ir);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static bool always(const dev_code *c) { return (void)c, true; } /* the text says restrict */

/* The first ":LINE:COLUMN" of a line of a build log; 0 if there is none. */
static unsigned place_in(const char *line, const char *end)
{
    for (const char *p = line; p < end && (p = memchr(p, ':', (size_t)(end - p))); p++) {
        const char *q = p + 1;
        while (q < end && isdigit((unsigned char)*q))
            q++;
        if (q > p + 1 && q + 1 < end && *q == ':' && isdigit((unsigned char)q[1]))
            return (unsigned)strtoul(p + 1, NULL, 10);
    }
    return 0;
}

/* The instruction that the first error in the text itself is about; UINT32_MAX if none is. Compilers differ
 * in what comes first, the place or the word; errors in headers have no line in the map. */
static uint32_t blamed(const char *log, const gen_linemap *map)
{
    for (const char *line = log, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        const char *word = strstr(line, "error");
        unsigned n = word && word < end ? place_in(line, end) : 0;
        if (n && n <= map->len && map->at[n - 1] != UINT32_MAX)
            return map->at[n - 1];
    }
    return UINT32_MAX;
}

static eas_status build_failed(cl_int e, const eas_ir *ir, cl_program program, const gen_linemap *map)
{
    size_t size = 0;
    O.clGetProgramBuildInfo(program, O.device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    char *log = calloc(1, size + 1);
    if (log)
        O.clGetProgramBuildInfo(program, O.device, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    uint32_t insn = log ? blamed(log, map) : UINT32_MAX;
    const ir_insn *in = insn < ir->ninsns ? &ir->insns[insn] : NULL;
    eas_status st;
    if (in && in->file)
        st = base_fail(EAS_ERR_RUNTIME, "%s:%u: kernel %s: the OpenCL compiler refused it: %s",
                       ir->files[in->file], (unsigned)in->line, ir->name, log);
    else
        st = base_fail(EAS_ERR_RUNTIME, "kernel %s: the OpenCL compiler refused it (error %d): %s", ir->name,
                       (int)e, log && *log ? log : error_text(e));
    free(log);
    return st;
}

static void keep_binary(const cache_key *key, cl_program program)
{
    size_t size = 0;
    if (O.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) || !size)
        return;
    gen_image im = {.bytes = malloc(size), .size = size};
    unsigned char *at = im.bytes;
    if (at && !O.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof at, &at, NULL))
        cache_store(key, &im);
    gen_image_free(&im);
}

static cl_program load_binary(const cache_key *key)
{
    gen_image im = {0};
    if (!cache_load(key, &im))
        return NULL;
    cl_int e = 0, bad = 0;
    const unsigned char *at = im.bytes;
    cl_program p = O.clCreateProgramWithBinary(O.context, 1, &O.device, &im.size, &at, &bad, &e);
    if (p && (e || bad || O.clBuildProgram(p, 1, &O.device, O.options, NULL, NULL))) {
        O.clReleaseProgram(p);
        p = NULL;
    }
    gen_image_free(&im);
    return p;
}

static eas_status build(const eas_ir *ir, const str *text, const gen_linemap *map, cl_program *out)
{
    cache_key key;
    cache_key_text(text->at, text->len, O.target, "", &key);
    if ((*out = load_binary(&key)))
        return EAS_OK;
    cl_int e = 0;
    const char *at = text->at;
    cl_program p = O.clCreateProgramWithSource(O.context, 1, &at, &text->len, &e);
    if (!p)
        return failed(e, "a program could not be made");
    atomic_fetch_add(&dev_count.compiles, 1);
    e = O.clBuildProgram(p, 1, &O.device, O.options, NULL, NULL);
    if (e) {
        eas_status st = build_failed(e, ir, p, map);
        O.clReleaseProgram(p);
        return st;
    }
    keep_binary(&key, p);
    *out = p;
    return EAS_OK;
}

static eas_status make_kernel(dev_code *c, bool alias)
{
    str text = {0}, name = {0};
    gen_linemap map = {0};
    cl_int e = 0;
    eas_status st =
        gen_ctext(c->ir, GEN_OPENCL, GEN_OFFSETS | (alias ? GEN_ALIAS : 0) | (unsigned)(O.lanes * GEN_LANES),
                  &text, &map);
    if (!st)
        st = gen_ctext_name(c->ir, &name);
    if (!st)
        st = build(c->ir, &text, &map, &c->program);
    if (!st && !(c->kernel = O.clCreateKernel(c->program, name.at, &e)))
        st = failed(e, "the kernel is not in its program");
    str_free(&text);
    str_free(&name);
    vec_free(&map);
    return st;
}

/* Bytes of all arguments: devices may take as little as 1024. */
static eas_status check_params(const dev_code *c)
{
    size_t bytes = c->checked ? 16 : 0;
    for (int i = 0; i < c->ir->nparams; i++)
        bytes += ir_typeof(c->ir, (uint32_t)i + 1).kind == IR_BUF ? 16 : 8;
    if (!O.max_params || bytes <= O.max_params)
        return EAS_OK;
    return base_fail(EAS_ERR_VALUE, "kernel %s: its %d arguments take %zu bytes; the OpenCL device takes %zu",
                     c->ir->name, c->ir->nparams, bytes, O.max_params);
}

static eas_status compile(eas_device *d, const eas_ir *ir, bool alias, dev_code **out)
{
    *out = NULL;
    eas_status st = usable();
    dev_code *c = st ? NULL : calloc(1, sizeof *c);
    if (!c)
        return st ? st : base_fail_oom(sizeof *c);
    c->ir = eas_ir_retain((eas_ir *)(uintptr_t)ir);
    c->info = ir_analyse(ir);
    c->checked = ir_faults(ir);
    pthread_mutex_init(&c->lock, NULL);
    for (int i = 0; i < ir->nparams; i++)
        c->dtype[i] = (uint8_t)gen_ctext_scalar(ir, i);
    st = check_params(c);
    if (!st)
        st = make_kernel(c, alias);
    if (st)
        drop(d, c);
    else
        *out = c;
    return st;
}

/* ---- queues ---- */

typedef struct fault { /* of one checked launch */
    int32_t word[FAULT_WORDS];
    eas_ir *ir;
    cl_mem mem, count_mem;
    int64_t count[];
} fault;

typedef struct command {
    cl_event event;
    fault *fault;
    bool timed; /* by mark */
} command;

struct dev_queue {
    cl_command_queue q;
    pthread_mutex_t lock;
    VEC(command) live; /* commands head .. given, in order, from live.at[first] on */
    uint32_t first;
    uint64_t head, given; /* all tickets below head are reached */
    struct {
        uint64_t ticket;
        double when;
    } times[TIMES];
    eas_status failure;
    base_error error; /* of that */
};

static eas_status queue_new(eas_device *d, dev_queue **out)
{
    (void)d;
    cl_int e = 0;
    *out = NULL;
    eas_status st = usable();
    dev_queue *q = st ? NULL : calloc(1, sizeof *q);
    if (!q)
        return st ? st : base_fail_oom(sizeof *q);
    q->q = O.clCreateCommandQueue(O.context, O.device, CL_QUEUE_PROFILING_ENABLE, &e);
    if (!q->q) {
        free(q);
        return failed(e, "a queue could not be made");
    }
    pthread_mutex_init(&q->lock, NULL);
    q->head = 1;
    *out = q;
    return EAS_OK;
}

static void keep_failure(dev_queue *q, eas_status st)
{
    if (!st || q->failure)
        return;
    q->failure = st;
    base_error_keep(&q->error, st);
}

static void free_fault(fault *f)
{
    if (!f)
        return;
    if (f->mem)
        O.clReleaseMemObject(f->mem);
    if (f->count_mem)
        O.clReleaseMemObject(f->count_mem);
    eas_ir_release(f->ir);
    free(f);
}

static eas_status read_fault(const fault *f)
{
    if (!f->word[0])
        return EAS_OK;
    uint32_t insn = (uint32_t)f->word[1];
    int64_t index = (int64_t)((uint64_t)(uint32_t)f->word[2] | (uint64_t)(uint32_t)f->word[3] << 32),
            pid[3] = {f->word[4], f->word[5], f->word[6]};
    return ir_fault_message(f->ir, insn, index, f->count, pid, (uint32_t)f->word[7]);
}

/* With the lock held: 1 done, 0 not yet, negative: failed. */
static cl_int state_of(cl_event e)
{
    cl_int state = 0;
    cl_int err = O.clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    return err ? err : state < 0 ? state : state == CL_COMPLETE;
}

static void note_time(dev_queue *q, uint64_t ticket, cl_event e)
{
    uint64_t ns = 0;
    O.clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_END, sizeof ns, &ns, NULL);
    q->times[ticket % TIMES].ticket = ticket;
    q->times[ticket % TIMES].when = 1e-9 * (double)ns;
}

static void retire(dev_queue *q)
{
    while (q->head <= q->given) {
        command *c = &q->live.at[q->first];
        cl_int state = state_of(c->event);
        if (!state)
            return;
        if (c->timed)
            note_time(q, q->head, c->event);
        if (state < 0)
            keep_failure(q, failed(state, "a command failed"));
        else if (c->fault)
            keep_failure(q, read_fault(c->fault));
        O.clReleaseEvent(c->event);
        free_fault(c->fault);
        q->first++;
        q->head++;
    }
    q->first = q->live.len = 0;
}

/* With the lock held. Room for one more command, so that nothing can fail once it was given. */
static bool make_room(dev_queue *q)
{
    if (q->first > 64 && q->first > q->live.len / 2) {
        memmove(q->live.at, q->live.at + q->first, (q->live.len - q->first) * sizeof *q->live.at);
        q->live.len -= q->first;
        q->first = 0;
    }
    return vec_grow((void **)&q->live.at, &q->live.cap, q->live.len + 1, sizeof *q->live.at);
}

static void add_command(dev_queue *q, cl_event e, fault *f, bool timed)
{
    q->live.at[q->live.len++] = (command){e, f, timed};
    q->given++;
    O.clFlush(q->q);
}

static bool reached(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    pthread_mutex_lock(&q->lock);
    if (ticket >= q->head)
        retire(q);
    bool yes = ticket < q->head;
    pthread_mutex_unlock(&q->lock);
    return yes;
}

static uint64_t given(eas_device *d, dev_queue *q)
{
    (void)d;
    pthread_mutex_lock(&q->lock);
    uint64_t t = q->given;
    pthread_mutex_unlock(&q->lock);
    return t;
}

/* The event of a ticket that may not be reached yet, retained; NULL if it is. */
static cl_event pending_event(dev_queue *q, uint64_t ticket)
{
    cl_event e = NULL;
    pthread_mutex_lock(&q->lock);
    retire(q);
    if (ticket > q->given)
        ticket = q->given;
    if (ticket >= q->head) {
        e = q->live.at[q->first + (ticket - q->head)].event;
        O.clRetainEvent(e);
    }
    pthread_mutex_unlock(&q->lock);
    return e;
}

static eas_status wait(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    cl_event e = pending_event(q, ticket);
    if (e) {
        O.clWaitForEvents(1, &e); /* a failure is found by retire */
        O.clReleaseEvent(e);
    }
    pthread_mutex_lock(&q->lock);
    retire(q);
    eas_status st = q->failure;
    q->failure = EAS_OK;
    if (st)
        base_error_raise(&q->error);
    pthread_mutex_unlock(&q->lock);
    return st;
}

static void queue_free(eas_device *d, dev_queue *q)
{
    O.clFinish(q->q);
    wait(d, q, UINT64_MAX);
    O.clReleaseCommandQueue(q->q);
    pthread_mutex_destroy(&q->lock);
    vec_free(&q->live);
    free(q);
}

static eas_status mark(eas_device *d, dev_queue *q, uint64_t *ticket)
{
    (void)d;
    cl_event e;
    pthread_mutex_lock(&q->lock);
    eas_status st = make_room(q) ? EAS_OK : base_fail_oom(sizeof(command));
    cl_int err = st ? 0 : O.clEnqueueMarkerWithWaitList(q->q, 0, NULL, &e);
    if (err)
        st = failed(err, "a marker could not be queued");
    if (!st)
        add_command(q, e, NULL, true);
    *ticket = q->given;
    pthread_mutex_unlock(&q->lock);
    return st;
}

static eas_status after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket)
{
    (void)d;
    cl_event e = q == other ? NULL : pending_event(other, ticket);
    if (!e)
        return EAS_OK;
    cl_int err = O.clEnqueueBarrierWithWaitList(q->q, 1, &e, NULL);
    O.clReleaseEvent(e);
    return err ? failed(err, "a barrier could not be queued") : EAS_OK;
}

static double time_of(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    pthread_mutex_lock(&q->lock);
    double t = q->times[ticket % TIMES].ticket == ticket ? q->times[ticket % TIMES].when : -1;
    pthread_mutex_unlock(&q->lock);
    return t;
}

/* ---- copies ---- */

static eas_status copy_within(dev_queue *q, uint64_t dst, uint64_t src, size_t n, cl_event *e)
{
    cl_mem to, from, between = NULL;
    uint64_t to_off, from_off;
    cl_int err = 0;
    eas_status st = locate(dst, n, &to, &to_off);
    if (!st)
        st = locate(src, n, &from, &from_off);
    if (st)
        return st;
    if (dst < src + n && src < dst + n) { /* overlapping: the language wants a detour */
        between = O.clCreateBuffer(O.context, CL_MEM_READ_WRITE, n, NULL, &err);
        if (between)
            err = O.clEnqueueCopyBuffer(q->q, from, between, from_off, 0, n, 0, NULL, NULL);
        from = between;
        from_off = 0;
    }
    if (!err)
        err = O.clEnqueueCopyBuffer(q->q, from, to, from_off, to_off, n, 0, NULL, e);
    if (between)
        O.clReleaseMemObject(between);
    return err ? failed(err, "a copy could not be queued") : EAS_OK;
}

/* The host may look at lent memory once it was mapped. */
static cl_int show(dev_queue *q, cl_mem mem, uint64_t off, size_t n, cl_event *e)
{
    cl_int err = 0;
    void *at = O.clEnqueueMapBuffer(q->q, mem, 0, CL_MAP_READ, off, n, 0, NULL, e, &err);
    if (!err && (err = O.clEnqueueUnmapMemObject(q->q, mem, at, 0, NULL, NULL)))
        O.clReleaseEvent(*e);
    return err;
}

static eas_status copy_host(dev_queue *q, dev_way way, void *dst, const void *src, size_t n, cl_event *e)
{
    range r;
    bool to = way == DEV_TO;
    uint64_t at = (uint64_t)(uintptr_t)(to ? dst : src), off;
    eas_status st = range_of(at, n, &r);
    if (st)
        return st;
    off = at - r.at;
    cl_int err = to ? O.clEnqueueWriteBuffer(q->q, r.mem, 0, off, n, src, 0, NULL, e)
               : r.host && (const char *)r.host + off == (char *)dst
                   ? show(q, r.mem, off, n, e)
                   : O.clEnqueueReadBuffer(q->q, r.mem, 0, off, n, dst, 0, NULL, e);
    return err ? failed(err, "a copy could not be queued") : EAS_OK;
}

static eas_status copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n)
{
    (void)d;
    cl_event e;
    if (!n)
        return EAS_OK;
    pthread_mutex_lock(&q->lock);
    eas_status st = make_room(q) ? EAS_OK : base_fail_oom(sizeof(command));
    if (!st)
        st = way == DEV_WITHIN ? copy_within(q, (uint64_t)(uintptr_t)dst, (uint64_t)(uintptr_t)src, n, &e)
                               : copy_host(q, way, dst, src, n, &e);
    if (!st)
        add_command(q, e, NULL, false);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- launches ---- */

static eas_status set_arg(dev_code *c, cl_uint i, size_t size, const void *at)
{
    cl_int e = O.clSetKernelArg(c->kernel, i, size, at);
    return e ? failed(e, "an argument was not taken") : EAS_OK;
}

static eas_status set_scalar(dev_code *c, int i, uint64_t slot)
{
    eas_dtype is = ir_typeof(c->ir, (uint32_t)i + 1).dtype, as = (eas_dtype)c->dtype[i];
    if (!dtype_is_float(is))
        return set_arg(c, (cl_uint)i, eas_dtype_size(as), &slot); /* low bytes first */
    if (is == EAS_F64) {
        double v;
        memcpy(&v, &slot, sizeof v);
        if (as == EAS_F64)
            return set_arg(c, (cl_uint)i, sizeof v, &v);
        slot = (uint64_t)ir_bits_from_double(as, v);
    }
    float f = as == EAS_F16 ? f16_to_f32((uint16_t)slot) : as == EAS_BF16 ? bf16_to_f32((uint16_t)slot) : 0;
    if (as == EAS_F32)
        memcpy(&f, &slot, sizeof f);
    return set_arg(c, (cl_uint)i, sizeof f, &f);
}

/* An empty buffer has no memory behind it; the language takes NULL for that. */
static eas_status set_buffer(dev_code *c, int i, cl_uint at_arg, const dev_launch *l)
{
    size_t size = eas_dtype_size(ir_typeof(c->ir, (uint32_t)i + 1).dtype);
    cl_mem mem = NULL;
    uint64_t offset = 0;
    eas_status st = l->count[i] ? locate(l->slot[i], (uint64_t)l->count[i] * size, &mem, &offset) : EAS_OK;
    if (!st && offset % size)
        st = base_fail(EAS_ERR_VALUE,
                       "kernel %s, argument \"%s\": its address is not a multiple of its element size",
                       c->ir->name, c->ir->params[i].name);
    offset /= size;
    if (!st)
        st = set_arg(c, (cl_uint)i, sizeof mem, &mem);
    return st ? st : set_arg(c, at_arg, sizeof offset, &offset);
}

static eas_status set_args(dev_code *c, const dev_launch *l, const fault *f)
{
    cl_uint n = (cl_uint)c->ir->nparams, next = n + (f ? 2 : 0);
    eas_status st = EAS_OK;
    for (cl_uint i = 0; i < n && !st; i++)
        st = ir_typeof(c->ir, i + 1).kind == IR_BUF ? set_buffer(c, (int)i, next++, l)
                                                    : set_scalar(c, (int)i, l->slot[i]);
    if (!st && f)
        st = set_arg(c, n, sizeof f->mem, &f->mem);
    if (!st && f)
        st = set_arg(c, n + 1, sizeof f->count_mem, &f->count_mem);
    const uint32_t past = l->bytes > dev_cache_bytes() / 2;
    return !st && O.lanes ? set_arg(c, next, sizeof past, &past) : st;
}

static eas_status new_fault(dev_queue *q, const dev_code *c, const dev_launch *l, fault **out)
{
    size_t n = (size_t)c->ir->nparams, bytes = (n ? n : 1) * sizeof(int64_t);
    fault *f = calloc(1, sizeof *f + bytes);
    cl_int e = 0;
    *out = NULL;
    if (!f)
        return base_fail_oom(sizeof *f + bytes);
    f->ir = eas_ir_retain(c->ir);
    memcpy(f->count, l->count, n * sizeof(int64_t));
    f->mem = O.clCreateBuffer(O.context, CL_MEM_READ_WRITE, sizeof f->word, NULL, &e);
    if (f->mem)
        f->count_mem = O.clCreateBuffer(O.context, CL_MEM_READ_WRITE, bytes, NULL, &e);
    if (!e)
        e = O.clEnqueueWriteBuffer(q->q, f->mem, 0, 0, sizeof f->word, f->word, 0, NULL, NULL);
    if (!e)
        e = O.clEnqueueWriteBuffer(q->q, f->count_mem, 0, 0, bytes, f->count, 0, NULL, NULL);
    if (!e)
        return *out = f, EAS_OK;
    O.clFinish(q->q); /* nothing may still read what is freed */
    free_fault(f);
    return failed(e, "the buffers of a checked launch could not be made");
}

static eas_status check_grid(const dev_code *c, const dev_launch *l)
{
    for (int i = 0; i < 3; i++)
        if (l->grid[i] > UINT32_MAX ||
            (i == 0 && c->info.mode == EAS_MODE_THREAD && l->grid[0] > UINT32_MAX / c->info.block))
            return base_fail(EAS_ERR_VALUE,
                             "kernel %s: a grid of %lld x %lld x %lld; OpenCL counts in 32 bits", c->ir->name,
                             (long long)l->grid[0], (long long)l->grid[1], (long long)l->grid[2]);
    return EAS_OK;
}

/* With the queue's and the code's lock held: a program is a work-item, or a group of them in thread mode. */
static eas_status enqueue(dev_queue *q, dev_code *c, const dev_launch *l, fault *f, cl_event *e)
{
    bool threads = c->info.mode == EAS_MODE_THREAD && !O.lanes; /* else an item runs a whole group */
    size_t block = threads ? (size_t)c->info.block : 1, local[3] = {block, 1, 1},
           global[3] = {(size_t)l->grid[0] * block, (size_t)l->grid[1], (size_t)l->grid[2]};
    eas_status st = set_args(c, l, f);
    if (st)
        return st;
    cl_event ran;
    /* a CPU runs an item's loop over its lanes best by itself; a GPU chooses */
    cl_int err = O.clEnqueueNDRangeKernel(q->q, c->kernel, 3, NULL, global,
                                          threads || O.on_cpu ? local : NULL, 0, NULL, f ? &ran : e);
    if (err) {
        eas_status bad = failed(err, "the launch was refused");
        return base_fail(bad, "kernel %s: %s", c->ir->name, eas_error_message());
    }
    if (!f)
        return EAS_OK;
    err = O.clEnqueueReadBuffer(q->q, f->mem, 0, 0, sizeof f->word, f->word, 0, NULL, e);
    O.clReleaseEvent(ran);
    return err ? failed(err, "the result of a checked launch cannot be read") : EAS_OK;
}

static eas_status launch_locked(dev_queue *q, dev_code *c, const dev_launch *l)
{
    fault *f = NULL;
    cl_event e;
    eas_status st = make_room(q) ? EAS_OK : base_fail_oom(sizeof(command));
    if (!st && c->checked)
        st = new_fault(q, c, l, &f);
    pthread_mutex_lock(&c->lock);
    if (!st)
        st = enqueue(q, c, l, f, &e);
    pthread_mutex_unlock(&c->lock);
    if (!st) {
        add_command(q, e, f, false);
    } else if (f) {
        O.clFinish(q->q);
        free_fault(f);
    }
    return st;
}

static eas_status launch(eas_device *d, dev_queue *q, dev_code *c, const dev_launch *l)
{
    (void)d;
    eas_status st = check_grid(c, l);
    if (st)
        return st;
    pthread_mutex_lock(&q->lock);
    st = launch_locked(q, c, l);
    pthread_mutex_unlock(&q->lock);
    return st;
}

eas_device dev_opencl = {
    .name = "opencl",
    .unavailable = unavailable,
    .describe = describe,
    .limits = limits,
    .alloc = alloc,
    .dealloc = dealloc,
    .adopt = adopt,
    .handle = handle,
    .lend = lend,
    .own_tg = gen_opencl_tg,
    .text = true,
    .compile = compile,
    .drop = drop,
    .alias_sensitive = always,
    .queue_new = queue_new,
    .queue_free = queue_free,
    .launch = launch,
    .copy = copy,
    .mark = mark,
    .given = given,
    .reached = reached,
    .wait = wait,
    .after = after,
    .time = time_of,
};
