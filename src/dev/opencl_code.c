/* opencl_code.c: programs of the OpenCL device: the text of a kernel is built by the driver, its binary is
 * kept in the cache on disk, and an error in the build log is reported with the line of the kernel that it is
 * about.
 */
#include "opencl_dev.h"

#include <ctype.h>
#include <stdatomic.h>

void ocl_drop(eas_device *d, dev_code *c)
{
    (void)d;
    if (c->kernel)
        ocl.clReleaseKernel(c->kernel);
    if (c->program)
        ocl.clReleaseProgram(c->program);
    eas_ir_release(c->ir);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

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
    ocl.clGetProgramBuildInfo(program, ocl.device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    char *log = calloc(1, size + 1);
    if (log)
        ocl.clGetProgramBuildInfo(program, ocl.device, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    uint32_t insn = log ? blamed(log, map) : UINT32_MAX;
    const ir_insn *in = insn < ir->ninsns ? &ir->insns[insn] : NULL;
    eas_status st;
    if (in && in->file)
        st = base_fail(EAS_ERR_RUNTIME, "%s:%u: kernel %s: the OpenCL compiler refused it: %s",
                       ir->files[in->file], (unsigned)in->line, ir->name, log);
    else
        st = base_fail(EAS_ERR_RUNTIME, "kernel %s: the OpenCL compiler refused it (error %d): %s", ir->name,
                       (int)e, log && *log ? log : ocl_error_text(e));
    free(log);
    return st;
}

static void keep_binary(const cache_key *key, cl_program program)
{
    size_t size = 0;
    if (ocl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) || !size)
        return;
    gen_image im = {.bytes = malloc(size), .size = size};
    unsigned char *at = im.bytes;
    if (at && !ocl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof at, &at, NULL))
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
    cl_program p = ocl.clCreateProgramWithBinary(ocl.context, 1, &ocl.device, &im.size, &at, &bad, &e);
    if (p && (e || bad || ocl.clBuildProgram(p, 1, &ocl.device, ocl.options, NULL, NULL))) {
        ocl.clReleaseProgram(p);
        p = NULL;
    }
    gen_image_free(&im);
    return p;
}

static eas_status build(const eas_ir *ir, const str *text, const gen_linemap *map, cl_program *out)
{
    cache_key key;
    cache_key_text(text->at, text->len, ocl.target, "", &key);
    if ((*out = load_binary(&key)))
        return EAS_OK;
    cl_int e = 0;
    const char *at = text->at;
    cl_program p = ocl.clCreateProgramWithSource(ocl.context, 1, &at, &text->len, &e);
    if (!p)
        return ocl_failed(e, "a program could not be made");
    atomic_fetch_add(&dev_count.compiles, 1);
    e = ocl.clBuildProgram(p, 1, &ocl.device, ocl.options, NULL, NULL);
    if (e) {
        eas_status st = build_failed(e, ir, p, map);
        ocl.clReleaseProgram(p);
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
        gen_ctext(c->ir, GEN_OPENCL,
                  GEN_OFFSETS | (alias ? GEN_ALIAS : 0) | (unsigned)(ocl.lanes * GEN_LANES), &text, &map);
    if (!st)
        st = gen_ctext_name(c->ir, &name);
    if (!st)
        st = build(c->ir, &text, &map, &c->program);
    if (!st && !(c->kernel = ocl.clCreateKernel(c->program, name.at, &e)))
        st = ocl_failed(e, "the kernel is not in its program");
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
    if (!ocl.max_params || bytes <= ocl.max_params)
        return EAS_OK;
    return base_fail(EAS_ERR_VALUE, "kernel %s: its %d arguments take %zu bytes; the OpenCL device takes %zu",
                     c->ir->name, c->ir->nparams, bytes, ocl.max_params);
}

eas_status ocl_compile(eas_device *d, const eas_ir *ir, unsigned how, dev_code **out)
{
    *out = NULL;
    eas_status st = ocl_usable();
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
        st = make_kernel(c, how & DEV_ALIAS);
    if (st)
        ocl_drop(d, c);
    else
        *out = c;
    return st;
}
