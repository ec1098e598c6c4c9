/* opencl.c: the OpenCL device: any vendor's, through the loader that the system has.
 *
 * One device is used: what EAS_OPENCL_DEVICE names (a number in the order of `clinfo -l`, or part of a name),
 * else the first GPU, accelerator or CPU. EAS_OPENCL_OPTIONS adds to the options that programs are built
 * with. This file finds the device and asks it for its limits; memory, programs and queues have files of
 * their own (opencl_dev.h).
 */
#include "opencl_dev.h"

#include <dlfcn.h>
#include <stdio.h>

enum { MAX_PLATFORMS = 16, MAX_DEVICES = 64 };

struct opencl_state ocl = {.once = PTHREAD_ONCE_INIT};

/* ---- errors ---- */

const char *ocl_error_text(cl_int e)
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

eas_status ocl_failed(cl_int e, const char *what)
{
    bool memory =
        e == CL_MEM_OBJECT_ALLOCATION_FAILURE || e == CL_OUT_OF_HOST_MEMORY || e == CL_INVALID_BUFFER_SIZE;
    return base_fail(memory ? EAS_ERR_MEMORY : EAS_ERR_RUNTIME, "OpenCL: %s: %s (error %d)", what,
                     ocl_error_text(e), (int)e);
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
        return snprintf(ocl.why, sizeof ocl.why, "no OpenCL loader (libOpenCL.so.1) could be opened: %s",
                        dlerror()),
               false;
    void *sym;
#define X(result, name, params) \
    if (!(sym = dlsym(lib, #name))) \
        return snprintf(ocl.why, sizeof ocl.why, \
                        "the OpenCL loader is older than OpenCL 1.2: it has no " #name), \
               false; \
    memcpy(&ocl.name, &sym, sizeof sym);
    OPENCL_FUNCTIONS(X)
#undef X
    return true;
}

static int list_devices(cl_device_id out[MAX_DEVICES])
{
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint np = 0, n = 0;
    if (ocl.clGetPlatformIDs(MAX_PLATFORMS, platforms, &np))
        return 0;
    for (cl_uint i = 0; i < np && i < MAX_PLATFORMS; i++) {
        cl_uint more = 0;
        if (n < MAX_DEVICES &&
            !ocl.clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, MAX_DEVICES - n, out + n, &more))
            n += more < MAX_DEVICES - n ? more : MAX_DEVICES - n;
    }
    return (int)n;
}

static void info_text(cl_device_id d, cl_uint what, char *out, size_t size)
{
    if (ocl.clGetDeviceInfo(d, what, size - 1, out, NULL))
        *out = 0;
    out[size - 1] = 0;
}

static uint64_t info_bits(cl_device_id d, cl_uint what, size_t size)
{
    uint64_t v = 0;
    uint32_t w = 0;
    if (size == 4)
        return ocl.clGetDeviceInfo(d, what, 4, &w, NULL) ? 0 : w;
    return ocl.clGetDeviceInfo(d, what, 8, &v, NULL) ? 0 : v;
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
        return snprintf(ocl.why, sizeof ocl.why,
                        "OpenCL has no device here (no driver is installed, such as pocl-opencl-icd)"),
               NULL;
    if (want && *want) {
        cl_device_id d = named_device(all, n, want);
        if (!d)
            snprintf(ocl.why, sizeof ocl.why, "EAS_OPENCL_DEVICE=%s: none of the %d devices is called that",
                     want, n);
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
    uint64_t n = e && *e     ? strtoull(e, NULL, 10)
               : !ocl.on_cpu ? 0
                             : info_bits(d, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 4);
    return e && *e && !n ? 0 : n >= 16 ? 16 : n >= 8 ? 8 : n ? 4 : 0;
}

static void read_limits(cl_device_id d)
{
    size_t extensions = 0;
    ocl.clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, 0, NULL, &extensions);
    char *ext = calloc(1, extensions + 1);
    if (ext)
        ocl.clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, extensions, ext, NULL);
    ocl.limits = (dev_limits){.threads = (int64_t)info_bits(d, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t)),
                              .tg_bytes = (int64_t)info_bits(d, CL_DEVICE_LOCAL_MEM_SIZE, 8),
                              .simd = IR_SIMD,
                              .max_alloc = (size_t)info_bits(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 8),
                              .f64 = info_bits(d, CL_DEVICE_DOUBLE_FP_CONFIG, 8) != 0,
                              .f16 = true, /* in memory; computed in float */
                              .i64_atomics = ext && strstr(ext, "cl_khr_int64_base_atomics") &&
                                             strstr(ext, "cl_khr_int64_extended_atomics"),
                              .unified = info_bits(d, CL_DEVICE_HOST_UNIFIED_MEMORY, 4) != 0};
    ocl.max_params = (size_t)info_bits(d, CL_DEVICE_MAX_PARAMETER_SIZE, sizeof(size_t));
    /* as if all were buffers, see check_params */
    ocl.limits.params = ocl.max_params ? (int64_t)(ocl.max_params - 16) / 16 : 0;
    ocl.on_cpu = (info_bits(d, CL_DEVICE_TYPE, 8) & CL_DEVICE_TYPE_CPU) != 0;
    ocl.lanes = text_lanes(d);
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
    snprintf(ocl.options, sizeof ocl.options, "-cl-std=CL1.2%s%s%s",
             exact ? " -cl-fp32-correctly-rounded-divide-sqrt" : "", more ? " " : "", more ? more : "");
    snprintf(ocl.about, sizeof ocl.about, "%s, %s%s%s%s", name, version, ocl.limits.f64 ? "" : ", no double",
             exact ? "" : ", f32 division and square root are not correctly rounded",
             fp & CL_FP_DENORM ? "" : ", f32 denormals are flushed");
    snprintf(ocl.target, sizeof ocl.target, "opencl %s %s %s %s", name, version, driver, ocl.options);
}

static void set_up(void)
{
    cl_int e = 0;
    if (!open_loader() || !(ocl.device = pick_device())) {
        if (!ocl.why[0])
            snprintf(ocl.why, sizeof ocl.why, "OpenCL has no usable device");
        return;
    }
    read_limits(ocl.device);
    describe_device(ocl.device);
    ocl.context = ocl.clCreateContext(NULL, 1, &ocl.device, NULL, NULL, &e);
    if (!ocl.context)
        snprintf(ocl.why, sizeof ocl.why, "%.400s: no context could be made: %s (error %d)", ocl.about,
                 ocl_error_text(e), (int)e);
}

const char *ocl_unavailable(eas_device *d)
{
    (void)d;
    pthread_once(&ocl.once, set_up);
    return ocl.why[0] ? ocl.why : NULL;
}

eas_status ocl_usable(void)
{
    const char *why = ocl_unavailable(NULL);
    return why ? base_fail(EAS_ERR_UNAVAILABLE, "device \"opencl\" is not available: %s", why) : EAS_OK;
}

static const char *describe(eas_device *d)
{
    const char *why = ocl_unavailable(d);
    return why ? why : ocl.about;
}

static dev_limits limits(eas_device *d) { return ocl_unavailable(d) ? (dev_limits){0} : ocl.limits; }

static bool always(const dev_code *c) { return (void)c, true; } /* the text says restrict */

eas_device dev_opencl = {
    .name = "opencl",
    .unavailable = ocl_unavailable,
    .describe = describe,
    .limits = limits,
    .alloc = ocl_alloc,
    .dealloc = ocl_dealloc,
    .adopt = ocl_adopt,
    .handle = ocl_handle,
    .lend = ocl_lend,
    .own_tg = gen_opencl_tg,
    .text = true,
    .compile = ocl_compile,
    .drop = ocl_drop,
    .alias_sensitive = always,
    .queue_new = ocl_queue_new,
    .queue_free = ocl_queue_free,
    .launch = ocl_launch,
    .copy = ocl_copy,
    .mark = ocl_mark,
    .given = ocl_given,
    .reached = ocl_reached,
    .wait = ocl_wait,
    .after = ocl_after,
    .time = ocl_time_of,
};
