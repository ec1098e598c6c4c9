/* opencl_memory.c: memory of the OpenCL device. Addresses are numbers of our own, never used twice; a sorted
 * table leads from them to cl_mem objects and offsets in them. A kernel takes the whole object and an offset
 * in elements (GEN_OFFSETS), so views need no alignment.
 */
#include "opencl_dev.h"

static struct {
    pthread_mutex_t lock;
    VEC(ocl_range) all; /* by address: new ones come last */
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
    ocl_range r = {M.next, nbytes, m, 1, host};
    bool ok = vec_push(&M.all, r);
    if (ok)
        M.next += (nbytes + 2 * GUARD - 1) / GUARD * GUARD;
    pthread_mutex_unlock(&M.lock);
    if (!ok) {
        ocl.clReleaseMemObject(m);
        return base_fail_oom(sizeof r);
    }
    *mem = (void *)(uintptr_t)r.at;
    return EAS_OK;
}

eas_status ocl_alloc(eas_device *d, size_t nbytes, void **mem)
{
    (void)d;
    cl_int e = 0;
    eas_status st = ocl_usable();
    if (st)
        return st;
    if (ocl.limits.max_alloc && nbytes > ocl.limits.max_alloc)
        return base_fail(EAS_ERR_MEMORY,
                         "out of memory: %zu bytes in one piece; the OpenCL device gives at most %zu", nbytes,
                         ocl.limits.max_alloc);
    cl_mem m = ocl.clCreateBuffer(ocl.context, CL_MEM_READ_WRITE, nbytes ? nbytes : 1, NULL, &e);
    if (!m)
        return ocl_failed(e, "a buffer could not be made");
    return add_range(m, nbytes, NULL, mem);
}

/* Only where the device works in the host's memory: others would copy behind our back. */
bool ocl_lend(eas_device *d, void *host, size_t nbytes, bool written, void **mem)
{
    (void)d;
    cl_int e = 0;
    if (ocl_unavailable(NULL) || !ocl.limits.unified ||
        (ocl.limits.max_alloc && nbytes > ocl.limits.max_alloc))
        return false;
    cl_mem m = ocl.clCreateBuffer(ocl.context,
                                  CL_MEM_USE_HOST_PTR | (written ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY),
                                  nbytes, host, &e);
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
eas_status ocl_adopt(eas_device *d, void *handle, size_t *nbytes, void **mem, void **host)
{
    (void)d;
    cl_context context = NULL;
    eas_status st = ocl_usable();
    *host = NULL;
    if (st || known(handle, nbytes, mem))
        return st;
    cl_int e = ocl.clGetMemObjectInfo(handle, CL_MEM_CONTEXT, sizeof context, &context, NULL);
    if (!e)
        e = ocl.clGetMemObjectInfo(handle, CL_MEM_SIZE, sizeof *nbytes, nbytes, NULL);
    if (e)
        return ocl_failed(e, "a buffer of others could not be asked for its size");
    if (context != ocl.context)
        return base_fail(EAS_ERR_VALUE,
                         "an OpenCL buffer of another context cannot be used here: copy it through the host");
    ocl.clRetainMemObject(handle);
    return add_range(handle, *nbytes, NULL, mem);
}

void ocl_dealloc(eas_device *d, void *mem, size_t nbytes)
{
    (void)d, (void)nbytes;
    pthread_mutex_lock(&M.lock);
    uint32_t i = find_range((uint64_t)(uintptr_t)mem);
    if (i && M.all.at[i - 1].at == (uint64_t)(uintptr_t)mem && !--M.all.at[i - 1].refs) {
        /* the driver keeps it until commands that use it are done */
        ocl.clReleaseMemObject(M.all.at[i - 1].mem);
        memmove(&M.all.at[i - 1], &M.all.at[i], (M.all.len - i) * sizeof(ocl_range));
        M.all.len--;
    }
    pthread_mutex_unlock(&M.lock);
}

/* The range of addresses that contains [at, at + size). */
eas_status ocl_range_of(uint64_t at, uint64_t size, ocl_range *out)
{
    pthread_mutex_lock(&M.lock);
    uint32_t i = find_range(at);
    ocl_range r = i ? M.all.at[i - 1] : (ocl_range){0};
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
eas_status ocl_locate(uint64_t at, uint64_t size, cl_mem *mem, uint64_t *offset)
{
    ocl_range r;
    eas_status st = ocl_range_of(at, size, &r);
    *mem = st ? NULL : r.mem;
    *offset = st ? 0 : at - r.at;
    return st;
}

void *ocl_handle(eas_device *d, const void *mem, size_t *offset)
{
    (void)d;
    cl_mem m;
    uint64_t at = 0;
    bool found = !ocl_locate((uint64_t)(uintptr_t)mem, 0, &m, &at);
    *offset = (size_t)at;
    return found ? m : NULL;
}
