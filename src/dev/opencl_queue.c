/* opencl_queue.c: queues of the OpenCL device, and what goes into them: copies and launches.
 *
 * A queue is an in-order command queue. A ticket is the number of a command in it; commands that may still
 * run are kept with their events, in order, and are retired when they are found done. A checked kernel writes
 * what went wrong into a buffer of its own, which is read when the command is retired.
 */
#include "opencl_dev.h"

enum { FAULT_WORDS = 8, TIMES = 4096 };

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

eas_status ocl_queue_new(eas_device *d, dev_queue **out)
{
    (void)d;
    cl_int e = 0;
    *out = NULL;
    eas_status st = ocl_usable();
    dev_queue *q = st ? NULL : calloc(1, sizeof *q);
    if (!q)
        return st ? st : base_fail_oom(sizeof *q);
    q->q = ocl.clCreateCommandQueue(ocl.context, ocl.device, CL_QUEUE_PROFILING_ENABLE, &e);
    if (!q->q) {
        free(q);
        return ocl_failed(e, "a queue could not be made");
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
        ocl.clReleaseMemObject(f->mem);
    if (f->count_mem)
        ocl.clReleaseMemObject(f->count_mem);
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
    cl_int err = ocl.clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    return err ? err : state < 0 ? state : state == CL_COMPLETE;
}

static void note_time(dev_queue *q, uint64_t ticket, cl_event e)
{
    uint64_t ns = 0;
    ocl.clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_END, sizeof ns, &ns, NULL);
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
            keep_failure(q, ocl_failed(state, "a command failed"));
        else if (c->fault)
            keep_failure(q, read_fault(c->fault));
        ocl.clReleaseEvent(c->event);
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
    ocl.clFlush(q->q);
}

bool ocl_reached(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    pthread_mutex_lock(&q->lock);
    if (ticket >= q->head)
        retire(q);
    bool yes = ticket < q->head;
    pthread_mutex_unlock(&q->lock);
    return yes;
}

uint64_t ocl_given(eas_device *d, dev_queue *q)
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
        ocl.clRetainEvent(e);
    }
    pthread_mutex_unlock(&q->lock);
    return e;
}

eas_status ocl_wait(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    cl_event e = pending_event(q, ticket);
    if (e) {
        ocl.clWaitForEvents(1, &e); /* a failure is found by retire */
        ocl.clReleaseEvent(e);
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

void ocl_queue_free(eas_device *d, dev_queue *q)
{
    ocl.clFinish(q->q);
    ocl_wait(d, q, UINT64_MAX);
    ocl.clReleaseCommandQueue(q->q);
    pthread_mutex_destroy(&q->lock);
    vec_free(&q->live);
    free(q);
}

eas_status ocl_mark(eas_device *d, dev_queue *q, uint64_t *ticket)
{
    (void)d;
    cl_event e;
    pthread_mutex_lock(&q->lock);
    eas_status st = make_room(q) ? EAS_OK : base_fail_oom(sizeof(command));
    cl_int err = st ? 0 : ocl.clEnqueueMarkerWithWaitList(q->q, 0, NULL, &e);
    if (err)
        st = ocl_failed(err, "a marker could not be queued");
    if (!st)
        add_command(q, e, NULL, true);
    *ticket = q->given;
    pthread_mutex_unlock(&q->lock);
    return st;
}

eas_status ocl_after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket)
{
    (void)d;
    cl_event e = q == other ? NULL : pending_event(other, ticket);
    if (!e)
        return EAS_OK;
    cl_int err = ocl.clEnqueueBarrierWithWaitList(q->q, 1, &e, NULL);
    ocl.clReleaseEvent(e);
    return err ? ocl_failed(err, "a barrier could not be queued") : EAS_OK;
}

double ocl_time_of(eas_device *d, dev_queue *q, uint64_t ticket)
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
    eas_status st = ocl_locate(dst, n, &to, &to_off);
    if (!st)
        st = ocl_locate(src, n, &from, &from_off);
    if (st)
        return st;
    if (dst < src + n && src < dst + n) { /* overlapping: the language wants a detour */
        between = ocl.clCreateBuffer(ocl.context, CL_MEM_READ_WRITE, n, NULL, &err);
        if (between)
            err = ocl.clEnqueueCopyBuffer(q->q, from, between, from_off, 0, n, 0, NULL, NULL);
        from = between;
        from_off = 0;
    }
    if (!err)
        err = ocl.clEnqueueCopyBuffer(q->q, from, to, from_off, to_off, n, 0, NULL, e);
    if (between)
        ocl.clReleaseMemObject(between);
    return err ? ocl_failed(err, "a copy could not be queued") : EAS_OK;
}

/* The host may look at lent memory once it was mapped. */
static cl_int show(dev_queue *q, cl_mem mem, uint64_t off, size_t n, cl_event *e)
{
    cl_int err = 0;
    void *at = ocl.clEnqueueMapBuffer(q->q, mem, 0, CL_MAP_READ, off, n, 0, NULL, e, &err);
    if (!err && (err = ocl.clEnqueueUnmapMemObject(q->q, mem, at, 0, NULL, NULL)))
        ocl.clReleaseEvent(*e);
    return err;
}

static eas_status copy_host(dev_queue *q, dev_way way, void *dst, const void *src, size_t n, cl_event *e)
{
    ocl_range r;
    bool to = way == DEV_TO;
    uint64_t at = (uint64_t)(uintptr_t)(to ? dst : src), off;
    eas_status st = ocl_range_of(at, n, &r);
    if (st)
        return st;
    off = at - r.at;
    cl_int err = to ? ocl.clEnqueueWriteBuffer(q->q, r.mem, 0, off, n, src, 0, NULL, e)
               : r.host && (const char *)r.host + off == (char *)dst
                   ? show(q, r.mem, off, n, e)
                   : ocl.clEnqueueReadBuffer(q->q, r.mem, 0, off, n, dst, 0, NULL, e);
    return err ? ocl_failed(err, "a copy could not be queued") : EAS_OK;
}

eas_status ocl_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n)
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
    cl_int e = ocl.clSetKernelArg(c->kernel, i, size, at);
    return e ? ocl_failed(e, "an argument was not taken") : EAS_OK;
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
    eas_status st =
        l->count[i] ? ocl_locate(l->slot[i], (uint64_t)l->count[i] * size, &mem, &offset) : EAS_OK;
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
    return !st && ocl.lanes ? set_arg(c, next, sizeof past, &past) : st;
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
    f->mem = ocl.clCreateBuffer(ocl.context, CL_MEM_READ_WRITE, sizeof f->word, NULL, &e);
    if (f->mem)
        f->count_mem = ocl.clCreateBuffer(ocl.context, CL_MEM_READ_WRITE, bytes, NULL, &e);
    if (!e)
        e = ocl.clEnqueueWriteBuffer(q->q, f->mem, 0, 0, sizeof f->word, f->word, 0, NULL, NULL);
    if (!e)
        e = ocl.clEnqueueWriteBuffer(q->q, f->count_mem, 0, 0, bytes, f->count, 0, NULL, NULL);
    if (!e)
        return *out = f, EAS_OK;
    ocl.clFinish(q->q); /* nothing may still read what is freed */
    free_fault(f);
    return ocl_failed(e, "the buffers of a checked launch could not be made");
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
    bool threads = c->info.mode == EAS_MODE_THREAD && !ocl.lanes; /* else an item runs a whole group */
    size_t block = threads ? (size_t)c->info.block : 1, local[3] = {block, 1, 1},
           global[3] = {(size_t)l->grid[0] * block, (size_t)l->grid[1], (size_t)l->grid[2]};
    eas_status st = set_args(c, l, f);
    if (st)
        return st;
    cl_event ran;
    /* on a CPU a work-item has the loop over the lanes, so groups have one item; a GPU chooses the size */
    cl_int err = ocl.clEnqueueNDRangeKernel(q->q, c->kernel, 3, NULL, global,
                                            threads || ocl.on_cpu ? local : NULL, 0, NULL, f ? &ran : e);
    if (err) {
        eas_status bad = ocl_failed(err, "the launch was refused");
        return base_fail(bad, "kernel %s: %s", c->ir->name, eas_error_message());
    }
    if (!f)
        return EAS_OK;
    err = ocl.clEnqueueReadBuffer(q->q, f->mem, 0, 0, sizeof f->word, f->word, 0, NULL, e);
    ocl.clReleaseEvent(ran);
    return err ? ocl_failed(err, "the result of a checked launch cannot be read") : EAS_OK;
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
        ocl.clFinish(q->q);
        free_fault(f);
    }
    return st;
}

eas_status ocl_launch(eas_device *d, dev_queue *q, dev_code *c, const dev_launch *l)
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
