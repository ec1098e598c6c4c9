/* metal_call.c: a launch as Metal takes it: pipeline, grid, and what is bound to which index. The queue
 * encodes it as it is, a plan keeps it. */
#include "metal.h"

static eas_status check_grid(const dev_code *c, const dev_launch *l)
{
    for (int a = 0; a < 3; a++) {
        int64_t threads = a == 0 && c->thread_mode ? c->threads : 1;
        if (l->grid[a] > UINT32_MAX / threads)
            return base_fail(EAS_ERR_VALUE,
                             "kernel %s: %lld programs along axis %d; Metal counts threads in 32 bits",
                             l->ir->name, (long long)l->grid[a], a);
    }
    return EAS_OK;
}

/* Programs of an SPMD kernel are threads; a simdgroup of them makes a group. */
static mtl_size group_of(const dev_code *c, const dev_launch *l)
{
    mtl_size g = {(unsigned long)c->threads, 1, 1};
    if (c->thread_mode)
        return g;
    unsigned long left = (unsigned long)c->width, n[3];
    for (int a = 0; a < 3; a++) {
        n[a] = (unsigned long)l->grid[a] < left ? (unsigned long)l->grid[a] : left;
        left /= n[a];
    }
    return (mtl_size){n[0], n[1], n[2]};
}

static eas_status add_buffer(const dev_code *c, const dev_launch *l, int i, metal_call *out)
{
    metal_place at = {0};
    size_t n = (size_t)l->count[i] * eas_dtype_size(ir_typeof(c->ir, (uint32_t)i + 1).dtype);
    eas_status st = l->count[i] ? metal_find(l->slot[i], n, &at) : EAS_OK;
    if (!st)
        out->arg[out->nargs++] =
            (metal_arg){.buffer = at.buffer, .offset = at.offset, .index = c->layout.index[i]};
    return st;
}

/* A scalar's bits as the text has it: an f64 that the text takes as something narrower is rounded here. */
static uint64_t scalar_bits(const dev_code *c, const dev_launch *l, int i)
{
    eas_dtype from = ir_typeof(l->ir, (uint32_t)i + 1).dtype, to = (eas_dtype)c->scalar[i];
    double d;
    if (from != EAS_F64 || to == EAS_F64)
        return l->slot[i];
    memcpy(&d, &l->slot[i], sizeof d);
    return (uint64_t)ir_bits_from_double(to, d);
}

static void add_bytes(metal_call *out, const void *bytes, size_t n, uint16_t index)
{
    out->arg[out->nargs++] = (metal_arg){.index = index, .at = (uint16_t)out->nbytes, .n = (uint16_t)n};
    memcpy(out->bytes + out->nbytes, bytes, n);
    out->nbytes += (int)n;
}

static void add_pack(const dev_code *c, const dev_launch *l, metal_call *out)
{
    unsigned char pack[IR_MAX_PARAMS * 8] = {0};
    for (int i = 0; i < c->ir->nparams; i++)
        if (ir_typeof(c->ir, (uint32_t)i + 1).kind != IR_BUF) {
            uint64_t bits = scalar_bits(c, l, i);
            memcpy(pack + c->layout.index[i], &bits, eas_dtype_size((eas_dtype)c->scalar[i]));
        }
    if (c->layout.pack_bytes)
        add_bytes(out, pack, c->layout.pack_bytes, c->layout.pack);
}

eas_status metal_call_of(const dev_code *c, const dev_launch *l, metal_call *out)
{
    eas_status st = check_grid(c, l);
    out->pipeline = c->pipeline;
    out->groups = c->thread_mode;
    out->nargs = out->nbytes = 0;
    for (int i = 0; i < c->ir->nparams && !st; i++) {
        if (ir_typeof(c->ir, (uint32_t)i + 1).kind == IR_BUF) {
            st = add_buffer(c, l, i, out);
        } else if (!c->layout.packed) {
            uint64_t bits = scalar_bits(c, l, i);
            add_bytes(out, &bits, eas_dtype_size((eas_dtype)c->scalar[i]), c->layout.index[i]);
        }
    }
    if (st)
        return st;
    if (c->layout.packed)
        add_pack(c, l, out);
    out->grid = (mtl_size){(unsigned long)l->grid[0], (unsigned long)l->grid[1], (unsigned long)l->grid[2]};
    out->group = group_of(c, l);
    return EAS_OK;
}
