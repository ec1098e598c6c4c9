/* interp_block.c: instructions of the interpreter that look at more than one lane, and element-wise ones. */
#include "interp.h"

#include <math.h>

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

void interp_reduce(run *r, const ir_insn *in)
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

void interp_scan(run *r, const ir_insn *in)
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

void interp_matmul(run *r, const ir_insn *in)
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
            const uint8_t *p = interp_address(r, i, buf, r->val[base][lane] + row * r->val[stride][lane] + col, lane);
            if (!p)
                return false;
            tile[row * 8 + col] = (float)interp_element_as_double(r, buf, p);
        }
    return true;
}

void interp_mma(run *r, uint32_t i)
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

void interp_mma_store(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    for (int64_t g = 0; g < r->groups; g++)
        for (int e = 0; e < 64; e++) {
            int64_t lane = r->lane = g * IR_SIMD;
            uint8_t *p = interp_address(r, i, a[0], r->val[a[1]][lane] + e / 8 * r->val[a[2]][lane] + e % 8, lane);
            if (!p)
                return;
            interp_store_element(dt, p, ir_bits_from_double(dt, (double)r->frag[a[3]][g * 64 + e]));
        }
}

/* ---- shapes and identity ---- */

void interp_shape(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    ir_type from = ir_typeof(r->ir, a[0]), to = ir_typeof(r->ir, in->res);
    int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        int64_t src = to.rank ? ir_source_lane(in->op, in->imm, from, to, k) : k;
        r->val[in->res][k] = src < 0 ? r->val[a[1]][0] : r->val[a[0]][src];
    }
}

bool interp_all_here(run *r, uint32_t i, const char *what)
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

void interp_shuffle(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    if (!interp_all_here(r, i, ir_rows[in->op].name))
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

void interp_identity(run *r, const ir_insn *in)
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

void interp_elementwise(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    const int64_t *x = r->val[a[0]], *y = in->nargs > 1 ? r->val[a[1]] : x, *z = in->nargs > 2 ? r->val[a[2]] : x;
    ir_eval_lanes(in->op, ir_typeof(r->ir, a[0]).dtype, ir_typeof(r->ir, in->res).dtype, interp_lanes(r, in->res), x, y, z, r->val[in->res]);
}
