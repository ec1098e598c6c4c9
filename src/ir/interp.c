/* interp.c: the reference. Runs the IR as it is written, one program at a time, every access checked.
 *
 * All lanes of a block, or all threads of a group, go through each instruction together, so barriers hold by construction. A
 * value is an array of 64-bit words, one per lane (see eval.c); its slot takes another value when its live range ends (slots.c). Control flow keeps a
 * mask of active lanes: threads that do not take part compute garbage but touch no memory and change no carried value.
 */
#include "interp.h"

#include <math.h>
#include <stdio.h>

int64_t interp_lanes(const run *r, uint32_t v)
{
    ir_type t = ir_typeof(r->ir, v);
    return t.kind == IR_FRAG ? r->groups * 64 : t.rank ? ir_lanes(t) : r->threads;
}

/* ---- storage: values whose live ranges do not meet share slots ---- */

/* What an instruction reads, and until when: the condition of a branch is asked again where it merges, the bounds of a loop in every round. */
static void read_operands(const run *r, ir_lives *l, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    for (int k = 0; k < in->nargs; k++) {
        const bool until_end = in->op == IR_ELSE || in->op == IR_IF || (in->op == IR_LOOP && k < 3);
        ir_lives_read(l, ir_args(r->ir, in)[k], until_end ? r->end[i] : i);
    }
    for (int k = 0; k < in->nres; k++) {
        const uint32_t v = in->res + (uint32_t)k;
        l->of[v].made = i;
        ir_lives_read(l, v, in->op == IR_LOOP || in->op == IR_WHILE ? r->end[i] : i);
    }
}

static bool find_lives(const run *r, ir_lives *l, arena *mem)
{
    ir_regions regions;
    if (!ir_lives_begin(l, r->ir->nvals, mem) || !ir_find_regions(r->ir, mem, &regions))
        return false;
    for (uint32_t i = 0; i < r->ir->ninsns; i++) {
        const uint16_t op = r->ir->insns[i].op;
        read_operands(r, l, i);
        if (op == IR_ENDLOOP || op == IR_ENDWHILE)
            ir_lives_region(l, regions.opener[i] + 1, i);
    }
    return true;
}

static bool is_over(const void *ctx, const ir_slot *s, uint32_t v)
{
    const ir_lives *l = ctx;
    return l->of[s->holder].last < l->of[v].made;
}

/* Where the elements of a value begin among all slots; *total grows if it needs a new slot. */
static uint64_t place(run *r, ir_slots *slots, const ir_lives *l, uint32_t v, uint64_t *total)
{
    const uint64_t size = (uint64_t)interp_lanes(r, v);
    const ir_slot *s = ir_slot_take(slots, size, v, is_over, l);
    if (s)
        return s->at;
    if (!ir_slot_add(slots, *total, size, v))
        r->mem.oom = true;
    *total += size;
    return *total - size;
}

static void make_array(run *r, uint32_t v)
{
    const ir_type t = ir_typeof(r->ir, v);
    if (t.kind == IR_FRAG)
        r->frag[v] = arena_alloc(&r->mem, (size_t)r->groups * 64 * sizeof(float));
    else
        r->tg[v] = arena_alloc(&r->mem, (size_t)t.dim[0] * eas_dtype_size(t.dtype));
}

static bool plan_storage(run *r)
{
    const eas_ir *ir = r->ir;
    ir_lives l;
    ir_slots slots = {0};
    uint64_t *at = arena_alloc(&r->mem, ir->nvals * sizeof *at), total = 0;
    if (!at || !find_lives(r, &l, &r->mem))
        return false;
    for (uint32_t v = 1; v < ir->nvals && !r->mem.oom; v++) {
        if (v <= (uint32_t)ir->nparams)
            r->val[v] = arena_alloc(&r->mem, (size_t)r->threads * sizeof(int64_t));
        else if (ir_typeof(ir, v).kind == IR_VAL)
            at[v] = place(r, &slots, &l, v, &total);
        else
            make_array(r, v);
    }
    vec_free(&slots);
    int64_t *all = arena_alloc(&r->mem, (size_t)(total + 1) * sizeof *all);
    for (uint32_t v = 1 + (uint32_t)ir->nparams; v < ir->nvals && all; v++)
        if (ir_typeof(ir, v).kind == IR_VAL)
            r->val[v] = all + at[v];
    return !r->mem.oom;
}

/* ---- memory ---- */

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

void interp_store_element(eas_dtype dt, uint8_t *p, int64_t v) { memcpy(p, &v, eas_dtype_size(dt)); /* little-endian hosts only */ }

static eas_status fault(const eas_ir *ir, uint32_t insn, uint32_t buf, int64_t index, int64_t count, const int64_t pid[3], int64_t thread)
{
    const ir_insn *in = &ir->insns[insn];
    char where[320] = "", name[320], who[64] = "";
    if (in->file)
        snprintf(where, sizeof where, "%s:%u: ", ir->files[in->file], (unsigned)in->line);
    if (buf <= (uint32_t)ir->nparams)
        snprintf(name, sizeof name, "\"%s\"", ir->params[buf - 1].name);
    else
        snprintf(name, sizeof name, "a threadgroup array");
    if (ir->threads)
        snprintf(who, sizeof who, ", thread %lld", (long long)thread);
    return base_fail(EAS_ERR_INDEX, "%skernel %s: access out of bounds: index %lld of %s, which has %lld elements (program %lld, %lld, %lld%s)",
                     where, ir->name, (long long)index, name, (long long)count, (long long)pid[0], (long long)pid[1], (long long)pid[2], who);
}

static eas_status assertion_message(const eas_ir *ir, uint32_t insn, int64_t lane, const int64_t pid[3])
{
    const ir_insn *in = &ir->insns[insn];
    char where[320] = "", who[64] = "";
    if (in->file)
        snprintf(where, sizeof where, "%s:%u: ", ir->files[in->file], (unsigned)in->line);
    if (ir->threads)
        snprintf(who, sizeof who, ", thread %lld", (long long)lane);
    else if (ir_lanes(ir_typeof(ir, ir_args(ir, in)[0])) > 1)
        snprintf(who, sizeof who, ", lane %lld", (long long)lane);
    return base_fail(EAS_ERR_ASSERT, "%skernel %s: assertion failed: %s (program %lld, %lld, %lld%s)", where, ir->name, ir->strings[in->imm],
                     (long long)pid[0], (long long)pid[1], (long long)pid[2], who);
}

eas_status ir_fault_message(const eas_ir *ir, uint32_t insn, int64_t index, const int64_t *count, const int64_t pid[3], int64_t thread)
{
    const ir_insn *in = &ir->insns[insn];
    if (in->op == IR_ASSERT)
        return assertion_message(ir, insn, index, pid);
    uint32_t buf = ir_args(ir, in)[0];
    return fault(ir, insn, buf, index, buf <= (uint32_t)ir->nparams ? count[buf - 1] : ir_typeof(ir, buf).dim[0], pid, thread);
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
static uint8_t *address_in(run *r, uint32_t i, uint32_t buf, int64_t off, int64_t lane)
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
    uint8_t *base = buf <= (uint32_t)r->ir->nparams ? (uint8_t *)(uintptr_t)r->call->slot[buf - 1] : r->tg[buf];
    return base + (size_t)off * eas_dtype_size(ir_typeof(r->ir, buf).dtype);
}

static bool lane_on(const run *r, int64_t lane) { return r->threads == 1 ? r->active[0] : r->active[lane]; }

static int64_t offset_of(const run *r, uint32_t v, int64_t lane)
{
    int64_t o = r->val[v][lane];
    return ir_typeof(r->ir, v).dtype == EAS_U64 && o < 0 ? INT64_MAX : o;
}

static void do_load(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        bool on = lane_on(r, k) && (in->nargs == 2 || r->val[a[2]][k]);
        if (!on) {
            r->val[in->res][k] = in->nargs == 4 ? r->val[a[3]][k] : 0;
            continue;
        }
        r->lane = k;
        const uint8_t *p = address_in(r, i, a[0], offset_of(r, a[1], k), k);
        if (!p && r->lenient)
            poison_load(r, in->res, k);
        if (r->st)
            return;
        r->val[in->res][k] = p ? interp_load_element(dt, p) : 0;
    }
}

static void do_store(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    int64_t n = interp_lanes(r, a[1]);
    for (int64_t k = 0; k < n; k++) {
        if (!lane_on(r, k) || (in->nargs == 4 && !r->val[a[3]][k]))
            continue;
        r->lane = k;
        uint8_t *p = address_in(r, i, a[0], offset_of(r, a[1], k), k);
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

static void do_atomic(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in), mask = ir_mask(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        r->val[in->res][k] = 0;
        if (!lane_on(r, k) || (mask && !r->val[mask][k]))
            continue;
        r->lane = k;
        uint8_t *p = address_in(r, i, a[0], offset_of(r, a[1], k), k);
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

static void do_bounds(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    int64_t n = interp_lanes(r, in->res), count = count_of(r, a[0]);
    for (int64_t k = 0; k < n; k++) {
        bool on = lane_on(r, k) && (in->nargs == 2 || r->val[a[2]][k]);
        int64_t off = offset_of(r, a[1], k);
        if (on && (off < 0 || off >= count)) {
            r->st = fault(r->ir, i, a[0], off, count, r->pid, k);
            return;
        }
        r->val[in->res][k] = on;
    }
}

static void do_assert(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t cond = ir_args(r->ir, in)[0], mask = ir_mask(r->ir, in);
    int64_t n = interp_lanes(r, cond);
    for (int64_t k = 0; k < n; k++)
        if (lane_on(r, k) && !r->val[cond][k] && (!mask || r->val[mask][k])) {
            r->st = assertion_message(r->ir, i, k, r->pid);
            return;
        }
}

static double element_as_double(const run *r, uint32_t buf, const uint8_t *p)
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
        const uint8_t *p = address_in(r, i, a[0], (int64_t)((uint64_t)r->val[a[1]][lane] + (uint64_t)k * (uint64_t)r->val[a[2]][lane]), lane);
        const uint8_t *q =
            p ? address_in(r, i, a[3], (int64_t)((uint64_t)r->val[a[4]][lane] + (uint64_t)k * (uint64_t)r->val[a[5]][lane]), lane) : NULL;
        if (!q)
            return false;
        double x = element_as_double(r, a[0], p), y = element_as_double(r, a[3], q);
        if (wide)
            sd = fma(x, y, sd);
        else
            sf = fmaf((float)x, (float)y, sf);
    }
    r->val[in->res][lane] = ir_bits_from_double(wide ? EAS_F64 : EAS_F32, wide ? sd : (double)sf);
    return true;
}

static void do_dot(run *r, uint32_t i)
{
    int64_t n = interp_lanes(r, r->ir->insns[i].res);
    for (int64_t lane = 0; lane < n; lane++)
        if (lane_on(r, lane) && !dot_lane(r, i, lane))
            return;
}

/* ---- along an axis: the order is that of fold.c ---- */

static void join(const run *r, const ir_insn *in, int64_t n, const int64_t *x, const int64_t *y, int64_t *out)
{
    eas_dtype dt = ir_typeof(r->ir, in->res).dtype;
    ir_eval_lanes(ir_join_of(in->op), dt, dt, n, x, y, y, out);
}

/* The elements of the last axis: running results side by side, then the upper half joins the lower. */
static int64_t reduce_line(const run *r, const ir_insn *in, const int64_t *x, int64_t n)
{
    int64_t chains = ir_chains(ir_typeof(r->ir, in->res).dtype), w = n < chains ? n : chains, acc[IR_CHAINS], p = 1;
    memcpy(acc, x, (size_t)w * sizeof *acc);
    for (int64_t k = w; k < n; k += w)
        join(r, in, n - k < w ? n - k : w, acc, x + k, acc);
    while (2 * p <= w)
        p *= 2;
    join(r, in, w - p, acc, acc + p, acc);
    for (p /= 2; p; p /= 2)
        join(r, in, p, acc, acc + p, acc);
    return acc[0];
}

static void do_reduce(run *r, const ir_insn *in)
{
    uint32_t x = ir_args(r->ir, in)[0];
    ir_axis a = ir_axis_of(ir_typeof(r->ir, x), (int)in->imm);
    for (int64_t o = 0; o < a.outer; o++) {
        const int64_t *from = r->val[x] + o * a.n * a.inner;
        int64_t *to = r->val[in->res] + o * a.inner;
        if (a.inner == 1) {
            *to = reduce_line(r, in, from, a.n);
            continue;
        }
        memcpy(to, from, (size_t)a.inner * sizeof *to);
        for (int64_t k = 1; k < a.n; k++)
            join(r, in, a.inner, to, from + k * a.inner, to);
    }
}

/* Within a chunk every element is joined with the one 1, 2, 4, 8 before it; then with the result before the chunk. */
static void scan_line(const run *r, const ir_insn *in, const int64_t *x, int64_t n, int64_t *out)
{
    int64_t old[IR_CHUNK], before[IR_CHUNK];
    for (int64_t c = 0; c < n; c += IR_CHUNK) {
        int64_t m = n - c < IR_CHUNK ? n - c : IR_CHUNK;
        memcpy(out + c, x + c, (size_t)m * sizeof *out);
        for (int64_t s = 1; s < m; s *= 2) {
            memcpy(old, out + c, sizeof *old * (size_t)m);
            join(r, in, m - s, old, old + s, out + c + s);
        }
        for (int64_t k = 0; k < m && c; k++)
            before[k] = out[c - 1];
        if (c)
            join(r, in, m, before, out + c, out + c);
    }
}

static void do_scan(run *r, const ir_insn *in)
{
    uint32_t x = ir_args(r->ir, in)[0];
    ir_axis a = ir_axis_of(ir_typeof(r->ir, x), (int)in->imm);
    for (int64_t o = 0; o < a.outer; o++) {
        const int64_t *from = r->val[x] + o * a.n * a.inner;
        int64_t *to = r->val[in->res] + o * a.n * a.inner;
        if (a.inner == 1) {
            scan_line(r, in, from, a.n, to);
            continue;
        }
        memcpy(to, from, (size_t)a.inner * sizeof *to);
        for (int64_t k = 1; k < a.n; k++)
            join(r, in, a.inner, to + (k - 1) * a.inner, from + k * a.inner, to + k * a.inner);
    }
}

static void do_matmul(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    ir_type x = ir_typeof(r->ir, a[0]), y = ir_typeof(r->ir, a[1]);
    for (int64_t i = 0; i < x.dim[0]; i++)
        for (int64_t j = 0; j < y.dim[1]; j++) {
            int64_t s = r->val[a[2]][i * y.dim[1] + j];
            for (int64_t k = 0; k < x.dim[1]; k++)
                ir_eval(IR_FMA, x.dtype, x.dtype, (int64_t[]){r->val[a[0]][i * x.dim[1] + k], r->val[a[1]][k * y.dim[1] + j], s}, &s);
            r->val[in->res][i * y.dim[1] + j] = s;
        }
}

/* ---- simdgroup matrices: operands are those of a group's first thread ---- */

static bool read_tile(run *r, uint32_t i, uint32_t buf, uint32_t base, uint32_t stride, int64_t lane, float tile[64])
{
    r->lane = lane;
    for (int row = 0; row < 8; row++)
        for (int col = 0; col < 8; col++) {
            const uint8_t *p = address_in(r, i, buf, r->val[base][lane] + row * r->val[stride][lane] + col, lane);
            if (!p)
                return false;
            tile[row * 8 + col] = (float)element_as_double(r, buf, p);
        }
    return true;
}

static void do_mma(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    float x[64], y[64];
    for (int64_t g = 0; g < r->groups; g++) {
        int64_t lane = g * IR_SIMD;
        const float *acc = r->frag[a[6]] + g * 64;
        float *out = r->frag[in->res] + g * 64, sum[64];
        if (!read_tile(r, i, a[0], a[1], a[2], lane, x) || !read_tile(r, i, a[3], a[4], a[5], lane, y))
            return;
        for (int e = 0; e < 64; e++) {
            sum[e] = acc[e];
            for (int k = 0; k < 8; k++)
                sum[e] = fmaf(x[e / 8 * 8 + k], y[k * 8 + e % 8], sum[e]);
        }
        memcpy(out, sum, sizeof sum);
    }
}

static void do_mma_store(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    for (int64_t g = 0; g < r->groups; g++)
        for (int e = 0; e < 64; e++) {
            int64_t lane = r->lane = g * IR_SIMD;
            uint8_t *p = address_in(r, i, a[0], r->val[a[1]][lane] + e / 8 * r->val[a[2]][lane] + e % 8, lane);
            if (!p)
                return;
            interp_store_element(dt, p, ir_bits_from_double(dt, (double)r->frag[a[3]][g * 64 + e]));
        }
}

/* ---- shapes and identity ---- */

static void do_shape(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    ir_type from = ir_typeof(r->ir, a[0]), to = ir_typeof(r->ir, in->res);
    int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        int64_t src = to.rank ? ir_source_lane(in->op, in->imm, from, to, k) : k;
        r->val[in->res][k] = src < 0 ? r->val[a[1]][0] : r->val[a[0]][src];
    }
}

static bool all_here(run *r, uint32_t i, const char *what)
{
    const ir_insn *in = &r->ir->insns[i];
    for (int64_t k = 1; k < r->threads; k++)
        if (r->active[k] != r->active[0]) {
            r->st = base_fail(EAS_ERR_RUNTIME, "%s:%u: kernel %s: some threads of the group do not reach this %s", r->ir->files[in->file],
                              (unsigned)in->line, r->ir->name, what);
            return false;
        }
    return true;
}

static void do_shuffle(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    if (!all_here(r, i, ir_rows[in->op].name))
        return;
    for (int64_t k = 0; k < r->threads; k++) {
        int64_t from = k - k % IR_SIMD + (r->val[a[1]][k] & (IR_SIMD - 1));
        r->val[in->res][k] = r->val[a[0]][from];
    }
}

static int64_t identity(const run *r, const ir_insn *in, int64_t lane)
{
    switch (in->op) {
    case IR_CONST: return in->imm;
    case IR_PROGRAM_ID: return r->pid[in->imm];
    case IR_NUM_PROGRAMS: return r->call->grid[in->imm];
    case IR_ARANGE: return in->imm + lane;
    case IR_THREAD_ID: return lane;
    case IR_GLOBAL_ID: return r->pid[0] * in->imm + lane;
    case IR_LOCAL_ID: return in->imm == 0 ? lane : 0;
    case IR_LANE_ID: return lane % IR_SIMD;
    default: return lane / IR_SIMD;
    }
}

static void do_identity(run *r, const ir_insn *in)
{
    eas_dtype dt = ir_typeof(r->ir, in->res).dtype;
    int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        int64_t v = identity(r, in, k);
        if (in->op == IR_CONST)
            r->val[in->res][k] = v;
        else
            ir_eval(IR_CAST, EAS_I64, dt, &v, &r->val[in->res][k]);
    }
}

static void do_elementwise(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    const int64_t *x = r->val[a[0]], *y = in->nargs > 1 ? r->val[a[1]] : x, *z = in->nargs > 2 ? r->val[a[2]] : x;
    ir_eval_lanes(in->op, ir_typeof(r->ir, a[0]).dtype, ir_typeof(r->ir, in->res).dtype, interp_lanes(r, in->res), x, y, z, r->val[in->res]);
}

/* ---- control ---- */

static bool any_active(const run *r)
{
    for (int64_t k = 0; k < r->threads; k++)
        if (r->active[k])
            return true;
    return false;
}

static void push(run *r, uint32_t i)
{
    frame *f = &r->stack[r->depth++];
    f->at = i;
    memcpy(f->saved, r->active, (size_t)r->threads);
}

static void pop(run *r) { memcpy(r->active, r->stack[--r->depth].saved, (size_t)r->threads); }

/* Copies value v to w for the threads that take part (all lanes of a block count as the program's one thread). */
static void copy_active(run *r, uint32_t w, uint32_t v, bool all)
{
    if (ir_typeof(r->ir, v).kind == IR_FRAG) {
        if (w != v)
            memcpy(r->frag[w], r->frag[v], (size_t)r->groups * 64 * sizeof(float));
        return;
    }
    int64_t n = interp_lanes(r, v);
    for (int64_t k = 0; k < n; k++)
        if (all || lane_on(r, k))
            r->val[w][k] = r->val[v][k];
}

/* Next values may be each other's sources: read all before writing any. */
static void carry(run *r, const ir_insn *end, uint32_t body)
{
    const uint32_t *next = ir_args(r->ir, end);
    size_t bytes = 0;
    for (int k = 0; k < end->nargs; k++)
        bytes += (size_t)interp_lanes(r, next[k]) * 8;
    int64_t *tmp = malloc(bytes + 8), *t = tmp;
    if (!tmp) {
        r->st = base_fail_oom(bytes);
        return;
    }
    for (int k = 0; k < end->nargs; k++) {
        size_t n = (size_t)interp_lanes(r, next[k]);
        bool frag = ir_typeof(r->ir, next[k]).kind == IR_FRAG;
        memcpy(t, frag ? (void *)r->frag[next[k]] : (void *)r->val[next[k]], n * (frag ? sizeof(float) : 8));
        t += n;
    }
    t = tmp;
    for (int k = 0; k < end->nargs; k++) {
        uint32_t w = body + (uint32_t)k;
        size_t n = (size_t)interp_lanes(r, next[k]);
        if (ir_typeof(r->ir, w).kind == IR_FRAG)
            memcpy(r->frag[w], t, n * sizeof(float));
        else
            for (size_t e = 0; e < n; e++)
                if (lane_on(r, (int64_t)e))
                    r->val[w][e] = t[e];
        t += n;
    }
    free(tmp);
}

bool interp_in_range(eas_dtype dt, int64_t iv, int64_t hi, int64_t step)
{
    if (!dtype_is_signed(dt))
        return step && (uint64_t)iv < (uint64_t)hi;
    return step > 0 ? iv < hi : step < 0 && iv > hi;
}

bool interp_next_in_range(eas_dtype dt, int64_t iv, int64_t hi, int64_t step)
{
    if (!dtype_is_signed(dt) || step > 0)
        return (uint64_t)hi - (uint64_t)iv > (uint64_t)step;
    return (uint64_t)iv - (uint64_t)hi > 0 - (uint64_t)step;
}

static uint32_t begin_loop(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    int head = in->op == IR_LOOP ? 3 : 0;
    push(r, i);
    for (int k = head; k < in->nargs; k++)
        copy_active(r, in->res + (uint32_t)(k - head + (head ? 1 : 0)), a[k], true);
    if (in->op == IR_WHILE)
        return i + 1;
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    for (int64_t k = 0; k < r->threads; k++) {
        r->val[in->res][k] = r->val[a[0]][k];
        r->active[k] = r->active[k] && interp_in_range(dt, r->val[a[0]][k], r->val[a[1]][k], r->val[a[2]][k]);
    }
    return any_active(r) ? i + 1 : r->end[i];
}

static uint32_t leave_loop(run *r, uint32_t end, uint32_t body)
{
    const ir_insn *in = &r->ir->insns[end];
    pop(r);
    for (int k = 0; k < in->nres; k++)
        copy_active(r, in->res + (uint32_t)k, body + (uint32_t)k, true);
    return end + 1;
}

/* Asked after every program and every turn of a loop. */
static void ask(run *r)
{
    if (!r->st && r->call->interrupted && r->call->interrupted(r->call->ctx))
        r->st = base_fail(EAS_ERR_INTERRUPTED, "kernel %s was interrupted", r->ir->name);
}

static uint32_t end_loop(run *r, uint32_t i)
{
    ask(r);
    uint32_t at = r->stack[r->depth - 1].at;
    const ir_insn *open = &r->ir->insns[at];
    const uint32_t *a = ir_args(r->ir, open);
    if (!any_active(r))
        return leave_loop(r, i, open->res + 1);
    carry(r, &r->ir->insns[i], open->res + 1);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    for (int64_t k = 0; k < r->threads; k++) {
        int64_t *iv = &r->val[open->res][k];
        if (!r->active[k])
            continue;
        r->active[k] = interp_next_in_range(dt, *iv, r->val[a[1]][k], r->val[a[2]][k]);
        if (r->active[k])
            *iv = (int64_t)((uint64_t)*iv + (uint64_t)r->val[a[2]][k]);
    }
    return any_active(r) ? at + 1 : leave_loop(r, i, open->res + 1);
}

static uint32_t test_while(run *r, uint32_t i)
{
    uint32_t cond = ir_args(r->ir, &r->ir->insns[i])[0];
    for (int64_t k = 0; k < r->threads; k++)
        r->active[k] = r->active[k] && r->val[cond][k];
    if (any_active(r))
        return i + 1;
    return leave_loop(r, r->end[i], r->ir->insns[r->stack[r->depth - 1].at].res);
}

static uint32_t end_while(run *r, uint32_t i)
{
    ask(r);
    uint32_t at = r->stack[r->depth - 1].at;
    carry(r, &r->ir->insns[i], r->ir->insns[at].res);
    return at + 1;
}

static uint32_t find_else(const run *r, uint32_t i)
{
    for (uint32_t k = i + 1; k < r->end[i]; k++) {
        uint16_t op = r->ir->insns[k].op;
        if (op == IR_ELSE)
            return k;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF)
            k = r->end[k];
    }
    return r->end[i];
}

static uint32_t begin_if(run *r, uint32_t i)
{
    uint32_t cond = ir_args(r->ir, &r->ir->insns[i])[0];
    push(r, i);
    for (int64_t k = 0; k < r->threads; k++)
        r->active[k] = r->active[k] && r->val[cond][k];
    return any_active(r) ? i + 1 : find_else(r, i);
}

static uint32_t begin_else(run *r, uint32_t i)
{
    const frame *f = &r->stack[r->depth - 1];
    uint32_t cond = ir_args(r->ir, &r->ir->insns[f->at])[0];
    for (int64_t k = 0; k < r->threads; k++)
        r->active[k] = f->saved[k] && !r->val[cond][k];
    return any_active(r) ? i + 1 : r->end[i];
}

static uint32_t end_if(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    uint32_t at = r->stack[r->depth - 1].at, cond = ir_args(r->ir, &r->ir->insns[at])[0];
    pop(r);
    if (!in->nres)
        return i + 1;
    const uint32_t *yes = ir_args(r->ir, &r->ir->insns[find_else(r, at)]), *no = ir_args(r->ir, in);
    for (int k = 0; k < in->nres; k++) {
        uint32_t w = in->res + (uint32_t)k;
        int64_t n = interp_lanes(r, w);
        if (ir_typeof(r->ir, w).kind == IR_FRAG) {
            memcpy(r->frag[w], r->val[cond][0] ? r->frag[yes[k]] : r->frag[no[k]], (size_t)n * sizeof(float));
            continue;
        }
        for (int64_t e = 0; e < n; e++)
            r->val[w][e] = r->val[cond][r->threads == 1 ? 0 : e] ? r->val[yes[k]][e] : r->val[no[k]][e];
    }
    return i + 1;
}

static void barrier(run *r, uint32_t i)
{
    if (r->watch) {
        r->watch->barrier(r->watch, r, i);
        return;
    }
    all_here(r, i, "barrier");
}

uint32_t interp_step(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    switch (in->op) {
    case IR_LOOP:
    case IR_WHILE: return begin_loop(r, i);
    case IR_ENDLOOP: return end_loop(r, i);
    case IR_DO: return test_while(r, i);
    case IR_ENDWHILE: return end_while(r, i);
    case IR_IF: return begin_if(r, i);
    case IR_ELSE: return begin_else(r, i);
    case IR_ENDIF: return end_if(r, i);
    case IR_LOAD: do_load(r, i); break;
    case IR_STORE: do_store(r, i); break;
    case IR_BOUNDS: do_bounds(r, i); break;
    case IR_ASSERT: do_assert(r, i); break;
    case IR_PRINT: interp_print(r, i); break;
    case IR_ALLOC_TG: memset(r->tg[in->res], 0, (size_t)in->imm * eas_dtype_size(ir_typeof(r->ir, in->res).dtype)); break;
    case IR_BARRIER: barrier(r, i); break;
    case IR_FENCE: /* programs run one after the other, and accesses happen in the order in which they stand */
        if (r->watch)
            r->watch->fence(r->watch, r, i);
        break;
    case IR_DOT: do_dot(r, i); break;
    case IR_MMA_ZERO: memset(r->frag[in->res], 0, (size_t)r->groups * 64 * sizeof(float)); break;
    case IR_MMA: do_mma(r, i); break;
    case IR_MMA_STORE: do_mma_store(r, i); break;
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_SLICE:
    case IR_PAD:
    case IR_TRANS: do_shape(r, in); break;
    case IR_MATMUL: do_matmul(r, in); break;
    case IR_SIMD_SHUFFLE: do_shuffle(r, i); break;
    default:
        if (ir_is_atomic(in))
            do_atomic(r, i);
        else if (ir_rows[in->op].rule == IR_RULE_REDUCE)
            do_reduce(r, in);
        else if (ir_rows[in->op].rule == IR_RULE_SCAN)
            do_scan(r, in);
        else if (in->nargs)
            do_elementwise(r, in);
        else
            do_identity(r, in);
    }
    return i + 1;
}

static void run_program(run *r)
{
    memset(r->active, 1, (size_t)r->threads);
    r->depth = 0;
    if (r->watch)
        r->watch->program(r->watch, r);
    for (uint32_t i = 0; i < r->ir->ninsns && !r->st;)
        i = interp_step(r, i);
}

static bool prepare(run *r)
{
    const eas_ir *ir = r->ir;
    uint32_t regions = 0;
    r->info = ir_analyse(ir);
    r->threads = r->info.mode == EAS_MODE_THREAD ? r->info.block : 1;
    r->groups = (r->threads + IR_SIMD - 1) / IR_SIMD;
    r->val = arena_alloc(&r->mem, ir->nvals * sizeof *r->val);
    r->frag = arena_alloc(&r->mem, ir->nvals * sizeof *r->frag);
    r->tg = arena_alloc(&r->mem, ir->nvals * sizeof *r->tg);
    r->active = arena_alloc(&r->mem, (size_t)r->threads);
    r->end = ir_region_ends(ir, &r->mem);
    for (uint32_t i = 0; i < ir->ninsns; i++)
        regions += ir->insns[i].op == IR_LOOP || ir->insns[i].op == IR_WHILE || ir->insns[i].op == IR_IF;
    r->stack = arena_alloc(&r->mem, (regions + 1) * sizeof *r->stack);
    for (uint32_t i = 0; i <= regions && r->stack; i++)
        r->stack[i].saved = arena_alloc(&r->mem, (size_t)r->threads);
    return !r->mem.oom && plan_storage(r);
}

int64_t interp_scalar_lane(eas_dtype dt, uint64_t slot)
{
    uint8_t b[8];
    memcpy(b, &slot, 8);
    return interp_load_element(dt, b);
}

eas_status interp_watched(const eas_ir *ir, const ir_call *call, watch *w)
{
    run r = {.ir = ir, .call = call, .watch = w};
    if (!prepare(&r)) {
        arena_free(&r.mem);
        return base_fail(EAS_ERR_MEMORY, "out of memory: kernel %s needs more than there is for its values", ir->name);
    }
    for (int p = 0; p < ir->nparams; p++)
        if (ir->vals[p + 1].type.kind == IR_VAL)
            for (int64_t k = 0; k < r.threads; k++)
                r.val[p + 1][k] = interp_scalar_lane(ir->vals[p + 1].type.dtype, call->slot[p]);
    for (r.pid[2] = 0; r.pid[2] < call->grid[2] && !r.st; r.pid[2]++)
        for (r.pid[1] = 0; r.pid[1] < call->grid[1] && !r.st; r.pid[1]++)
            for (r.pid[0] = 0; r.pid[0] < call->grid[0] && !r.st; r.pid[0]++) {
                run_program(&r);
                ask(&r);
            }
    arena_free(&r.mem);
    return r.st;
}

eas_status ir_interp(const eas_ir *ir, const ir_call *call)
{
    eas_ir *plain;
    eas_status st = ir_expanded(ir, 0, &plain);
    if (st)
        return st;
    st = interp_watched(plain, call, NULL);
    eas_ir_release(plain);
    return st;
}
