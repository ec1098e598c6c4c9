/* opencl_dev.h: what the files of the OpenCL device share.
 *
 *   opencl.c        finds the device, describes it, and is its row of functions
 *   opencl_memory.c addresses and the cl_mem objects behind them
 *   opencl_code.c   programs: text, build, cache of binaries
 *   opencl_queue.c  command queues, copies, launches
 */
#ifndef DEV_OPENCL_DEV_H
#define DEV_OPENCL_DEV_H

#include "dev.h"
#include "opencl.h"

#include <pthread.h>

/* The one device that is used; set up once, then only read. */
struct opencl_state {
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
};
extern struct opencl_state ocl;

const char *ocl_error_text(cl_int e);
eas_status ocl_failed(cl_int e, const char *what);
const char *ocl_unavailable(eas_device *d);
eas_status ocl_usable(void);

/* ---- opencl_memory.c ---- */
typedef struct ocl_range {
    uint64_t at, size;
    cl_mem mem;
    int refs; /* a buffer may be adopted more than once */
    const void *host; /* of lent memory; else NULL */
} ocl_range;
eas_status ocl_alloc(eas_device *d, size_t nbytes, void **mem);
void ocl_dealloc(eas_device *d, void *mem, size_t nbytes);
bool ocl_lend(eas_device *d, void *host, size_t nbytes, bool written, void **mem);
eas_status ocl_adopt(eas_device *d, void *handle, size_t *nbytes, void **mem, void **host);
void *ocl_handle(eas_device *d, const void *mem, size_t *offset);
eas_status ocl_range_of(uint64_t at, uint64_t size, ocl_range *out); /* what [at, at + size) lies in */
/* the object behind [at, at + size) and the offset in it */
eas_status ocl_locate(uint64_t at, uint64_t size, cl_mem *mem, uint64_t *offset);

/* ---- opencl_code.c ---- */
struct dev_code {
    eas_ir *ir;
    cl_program program;
    cl_kernel kernel;
    pthread_mutex_t lock; /* arguments are the kernel's state */
    eas_ir_info info;
    bool checked;
    uint8_t dtype[IR_MAX_PARAMS]; /* in which scalars are handed over */
};
eas_status ocl_compile(eas_device *d, const eas_ir *ir, unsigned how, dev_code **out);
void ocl_drop(eas_device *d, dev_code *c);

/* ---- opencl_queue.c ---- */
eas_status ocl_queue_new(eas_device *d, dev_queue **out);
void ocl_queue_free(eas_device *d, dev_queue *q);
eas_status ocl_launch(eas_device *d, dev_queue *q, dev_code *c, const dev_launch *l);
eas_status ocl_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n);
eas_status ocl_mark(eas_device *d, dev_queue *q, uint64_t *ticket);
uint64_t ocl_given(eas_device *d, dev_queue *q);
bool ocl_reached(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status ocl_wait(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status ocl_after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket);
double ocl_time_of(eas_device *d, dev_queue *q, uint64_t ticket);

#endif
