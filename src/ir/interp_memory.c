/* interp_memory.c: the interpreter's loads, stores and atomics, and the messages for accesses outside of an
 * array. */
#include "interp.h"

#include <math.h>
#include <stdio.h>

int64_t interp_load_element(eas_dtype dt, const uint8_t *p)
{
    int16_t h;
    int32_t w;
    int64_t q;
    switch (dt) {
    case EAS_BOOL: return *p != 0;
    case EAS_I8: return (int8_t)*p;
    case EAS_U8: return *p;
    case EAS_I16: memcpy(&h, p, 2); return h;
    case EAS_U16:
    case EAS_F16:
    case EAS_BF16: memcpy(&h, p, 2); return (uint16_t)h;
    case EAS_I32: memcpy(&w, p, 4); return w;
    case EAS_U32:
    case EAS_F32: memcpy(&w, p, 4); return (uint32_t)w;
    default: memcpy(&q, p, 8); return q;
    }
}

void interp_store_element(eas_dtype dt, uint8_t *p, int64_t v)
{
    memcpy(p, &v, eas_dtype_size(dt)); /* little-endian hosts only */
}

/* The user's line that an instruction comes from; NULL: not known. */
static const char *file_of(const eas_ir *ir, const ir_insn *in)
{
    return in->file ? ir->files[in->file] : NULL;
}

static eas_status fault(const eas_ir *ir, uint32_t insn, uint32_t buf, int64_t index, int64_t count,
                        const int64_t pid[3], int64_t thread)
{
    const ir_insn *in = &ir->insns[insn];
    char name[320], who[64] = "";
    if (buf <= (uint32_t)ir->nparams)
        snprintf(name, sizeof name, "\"%s\"", ir->params[buf - 1].name);
    else
        snprintf(name, sizeof name, "a threadgroup array");
    if (ir->threads)
        snprintf(who, sizeof who, ", thread %lld", (long long)thread);
    return base_fail_at(EAS_ERR_INDEX, file_of(ir, in), in->line,
                        "kernel %s: access out of bounds: index %lld of %s, which has %lld elements (program "
                        "%lld, %lld, %lld%s)",
                        ir->name, (long long)index, name, (long long)count, (long long)pid[0],
                        (long long)pid[1], (long long)pid[2], who);
}

static eas_status assertion_message(const eas_ir *ir, uint32_t insn, int64_t lane, const int64_t pid[3])
{
    const ir_insn *in = &ir->insns[insn];
    char who[64] = "";
    if (ir->threads)
        snprintf(who, sizeof who, ", thread %lld", (long long)lane);
    else if (ir_lanes(ir_typeof(ir, ir_args(ir, in)[0])) > 1)
        snprintf(who, sizeof who, ", lane %lld", (long long)lane);
    return base_fail_at(EAS_ERR_ASSERT, file_of(ir, in), in->line,
                        "kernel %s: assertion failed: %s (program %lld, %lld, %lld%s)", ir->name,
                        ir->strings[in->imm], (long long)pid[0], (long long)pid[1], (long long)pid[2], who);
}

eas_status ir_fault_message(const eas_ir *ir, uint32_t insn, int64_t index, const int64_t *count,
                            const int64_t pid[3], int64_t thread)
{
    const ir_insn *in = &ir->insns[insn];
    if (in->op == IR_ASSERT)
        return assertion_message(ir, insn, index, pid);
    uint32_t buf = ir_args(ir, in)[0];
    return fault(ir, insn, buf, index,
                 buf <= (uint32_t)ir->nparams ? count[buf - 1] : ir_typeof(ir, buf).dim[0], pid, thread);
}

bool ir_faults(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_BOUNDS || ir->insns[i].op == IR_ASSERT)
            return true;
    return false;
}

static int64_t count_of(const run *r, uint32_t buf)
{
    return buf <= (uint32_t)r->ir->nparams ? r->call->count[buf - 1] : ir_typeof(r->ir, buf).dim[0];
}

/* The address of element off of buf, or NULL with the error set. */
uint8_t *interp_address(run *r, uint32_t i, uint32_t buf, int64_t off, int64_t lane)
{
    int64_t n = count_of(r, buf);
    bool inside = off >= 0 && off < n;
    if (r->watch)
        r->watch->access(r->watch, r, i, buf, off, inside);
    if (!inside && r->watch)
        return (uint8_t *)r->watch->nowhere;
    if (!inside) {
        r->st = fault(r->ir, i, buf, off, n, r->pid, lane);
        return NULL;
    }
    uint8_t *base =
        buf <= (uint32_t)r->ir->nparams ? (uint8_t *)(uintptr_t)r->call->slot[buf - 1] : r->tg[buf];
    return base + (size_t)off * eas_dtype_size(ir_typeof(r->ir, buf).dtype);
}

bool interp_lane_on(const run *r, int64_t lane) { return r->threads == 1 ? r->active[0] : r->active[lane]; }

static int64_t offset_of(const run *r, uint32_t v, int64_t lane)
{
    int64_t o = r->val[v][lane];
    return ir_typeof(r->ir, v).dtype == EAS_U64 && o < 0 ? INT64_MAX : o;
}

void interp_load(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        bool on = interp_lane_on(r, k) && (in->nargs == 2 || r->val[a[2]][k]);
        if (!on) {
            r->val[in->res][k] = in->nargs == 4 ? r->val[a[3]][k] : 0;
            continue;
        }
        r->lane = k;
        const uint8_t *p = interp_address(r, i, a[0], offset_of(r, a[1], k), k);
        if (!p && r->lenient)
            poison_load(r, in->res, k);
        if (r->st)
            return;
        r->val[in->res][k] = p ? interp_load_element(dt, p) : 0;
    }
}

void interp_store(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    int64_t n = interp_lanes(r, a[1]);
    for (int64_t k = 0; k < n; k++) {
        if (!interp_lane_on(r, k) || (in->nargs == 4 && !r->val[a[3]][k]))
            continue;
        r->lane = k;
        uint8_t *p = interp_address(r, i, a[0], offset_of(r, a[1], k), k);
        if (!p)
            return;
        interp_store_element(dt, p, r->val[a[2]][k]);
    }
}

/* The new element, out of the old one; v: the value, or expected and desired. */
static int64_t atomic_result(uint16_t op, eas_dtype dt, int64_t old, const int64_t v[2])
{
    int64_t args[2] = {old, v[0]}, out = v[0];
    if (op == IR_ATOMIC_CAS)
        return old == v[0] ? v[1] : old;
    if (op != IR_ATOMIC_XCHG)
        ir_eval(ir_atomic_op(op), dt, dt, args, &out);
    return out;
}

void interp_atomic(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in), mask = ir_mask(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        r->val[in->res][k] = 0;
        if (!interp_lane_on(r, k) || (mask && !r->val[mask][k]))
            continue;
        r->lane = k;
        uint8_t *p = interp_address(r, i, a[0], offset_of(r, a[1], k), k);
        if (!p)
            return;
        int64_t old = interp_load_element(dt, p), v[2] = {0};
        for (int j = 0; j < ir_atomic_values(in->op); j++)
            v[j] = r->val[a[2 + j]][k];
        if (ir_writes(in))
            interp_store_element(dt, p, atomic_result(in->op, dt, old, v));
        r->val[in->res][k] = old;
    }
}

void interp_bounds(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    int64_t n = interp_lanes(r, in->res), count = count_of(r, a[0]);
    for (int64_t k = 0; k < n; k++) {
        bool on = interp_lane_on(r, k) && (in->nargs == 2 || r->val[a[2]][k]);
        int64_t off = offset_of(r, a[1], k);
        if (on && (off < 0 || off >= count)) {
            r->st = fault(r->ir, i, a[0], off, count, r->pid, k);
            return;
        }
        r->val[in->res][k] = on;
    }
}

void interp_assert(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t cond = ir_args(r->ir, in)[0], mask = ir_mask(r->ir, in);
    int64_t n = interp_lanes(r, cond);
    for (int64_t k = 0; k < n; k++)
        if (interp_lane_on(r, k) && !r->val[cond][k] && (!mask || r->val[mask][k])) {
            r->st = assertion_message(r->ir, i, k, r->pid);
            return;
        }
}

double interp_element_as_double(const run *r, uint32_t buf, const uint8_t *p)
{
    eas_dtype dt = ir_typeof(r->ir, buf).dtype;
    return ir_bits_to_double(dt, interp_load_element(dt, p));
}

static bool dot_lane(run *r, uint32_t i, int64_t lane)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    bool wide = ir_typeof(r->ir, in->res).dtype == EAS_F64;
    float sf = 0;
    double sd = 0;
    r->lane = lane;
    for (int64_t k = 0; k < r->val[a[6]][lane]; k++) {
        const uint8_t *p = interp_address(
            r, i, a[0], (int64_t)((uint64_t)r->val[a[1]][lane] + (uint64_t)k * (uint64_t)r->val[a[2]][lane]),
            lane);
        const uint8_t *q = p ? interp_address(r, i, a[3],
                                              (int64_t)((uint64_t)r->val[a[4]][lane] +
                                                        (uint64_t)k * (uint64_t)r->val[a[5]][lane]),
                                              lane)
                             : NULL;
        if (!q)
            return false;
        double x = interp_element_as_double(r, a[0], p), y = interp_element_as_double(r, a[3], q);
        if (wide)
            sd = fma(x, y, sd);
        else
            sf = fmaf((float)x, (float)y, sf);
    }
    r->val[in->res][lane] = ir_bits_from_double(wide ? EAS_F64 : EAS_F32, wide ? sd : (double)sf);
    return true;
}

void interp_dot(run *r, uint32_t i)
{
    int64_t n = interp_lanes(r, r->ir->insns[i].res);
    for (int64_t lane = 0; lane < n; lane++)
        if (interp_lane_on(r, lane) && !dot_lane(r, i, lane))
            return;
}
