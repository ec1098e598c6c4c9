/* llvm_lent.c: factors of matrix products that are read where they lie, in global memory or transposed in a slot; knows nothing of LLVM.
 *
 * A block that a product reads once, whose rows follow each other without a gap, or of whole lines in a small matrix, gains nothing from being copied to a slot first. The right factor may be such a
 * load, and the left one too if the distance of its rows is a number, or the transpose of one. bf16 factors that are laid out as pairs (llvm_bf16.c) are read once, row by row. The product then reads
 * at its own place what was to be loaded before: nothing may be written in between. The transpose of a block that has a slot needs no slot of its own as a left factor: its elements are read one by one anyway.
 */
#include "llvm.h"

enum { MAX_DEPTH = 12, FEW_ROWS = 16, FEW_BYTES = 256, LINE_BYTES = 256, SMALL_BYTES = 1 << 20, PAGE_BYTES = 4096, NEAR_BYTES = 64 << 10 };

/* An integer block as a sum over its dims of coefficient times index, plus something uniform. */
typedef struct line_sum {
    bool ok;
    bool any[IR_MAX_RANK];     /* the coefficient is uniform, but no number known here */
    int64_t by[IR_MAX_RANK];
} line_sum;

static line_sum sum_of(const plan *p, const bool *uni, uint32_t v, int depth);

static bool is_flat(const line_sum *s)
{
    for (int d = 0; d < IR_MAX_RANK; d++)
        if (s->any[d] || s->by[d])
            return false;
    return true;
}

/* Dims that are 1 come and go; the others keep their order. */
static line_sum reshaped(line_sum x, ir_type from, ir_type to)
{
    line_sum r = {.ok = x.ok};
    int d = 0;
    for (int s = 0; s < from.rank && r.ok; s++) {
        if (from.dim[s] == 1)
            continue;
        while (d < to.rank && to.dim[d] == 1)
            d++;
        if (d == to.rank || to.dim[d] != from.dim[s])
            return (line_sum){0};
        r.any[d] = x.any[s];
        r.by[d++] = x.by[s];
    }
    return r;
}

static line_sum broadcast(line_sum x, ir_type from, ir_type to)
{
    line_sum r = {.ok = x.ok};
    for (int s = 0; s < from.rank; s++) {
        const int d = s + to.rank - from.rank;
        if (from.dim[s] == 1)
            continue;
        r.any[d] = x.any[s];
        r.by[d] = x.by[s];
    }
    return r;
}

static line_sum added(line_sum x, line_sum y, int64_t sign)
{
    line_sum r = {.ok = x.ok && y.ok};
    for (int d = 0; d < IR_MAX_RANK && r.ok; d++) {
        r.any[d] = x.any[d] || y.any[d];
        r.by[d] = (int64_t)((uint64_t)x.by[d] + (uint64_t)sign * (uint64_t)y.by[d]);
    }
    return r;
}

static line_sum scaled(const plan *p, line_sum x, uint32_t factor)
{
    int64_t k;
    const bool known = ir_const_of(p->ir, factor, &k);
    for (int d = 0; d < IR_MAX_RANK; d++) {
        x.any[d] = x.any[d] || (!known && x.by[d]);
        x.by[d] = known ? (int64_t)((uint64_t)x.by[d] * (uint64_t)k) : 0;
    }
    return x;
}

static line_sum multiplied(const plan *p, const bool *uni, const uint32_t *a, int depth)
{
    const line_sum x = sum_of(p, uni, a[0], depth), y = sum_of(p, uni, a[1], depth);
    if (x.ok && y.ok && is_flat(&y))
        return scaled(p, x, a[1]);
    if (x.ok && y.ok && is_flat(&x))
        return scaled(p, y, a[0]);
    return (line_sum){0};
}

static line_sum sum_of(const plan *p, const bool *uni, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(p->ir, v);
    const ir_type t = ir_typeof(p->ir, v);
    if (uni[v])
        return (line_sum){.ok = true};
    if (!in || depth > MAX_DEPTH || dtype_bits((eas_dtype)t.dtype) != 64 || !dtype_is_int((eas_dtype)t.dtype))
        return (line_sum){0};
    const uint32_t *a = ir_args(p->ir, in);
    switch (in->op) {
    case IR_ARANGE: return (line_sum){.ok = true, .by = {1}};
    case IR_BROADCAST: return broadcast(sum_of(p, uni, a[0], depth + 1), ir_typeof(p->ir, a[0]), t);
    case IR_RESHAPE: return reshaped(sum_of(p, uni, a[0], depth + 1), ir_typeof(p->ir, a[0]), t);
    case IR_ADD: return added(sum_of(p, uni, a[0], depth + 1), sum_of(p, uni, a[1], depth + 1), 1);
    case IR_SUB: return added(sum_of(p, uni, a[0], depth + 1), sum_of(p, uni, a[1], depth + 1), -1);
    case IR_MUL: return multiplied(p, uni, a, depth + 1);
    default: return (line_sum){0};
    }
}

bool plan_neighbours(const plan *p, uint32_t off)
{
    const ir_type t = ir_typeof(p->ir, off);
    bool *uni = arena_alloc(p->mem, p->ir->nvals + 1);
    for (uint32_t v = 1; uni && v < p->ir->nvals; v++)
        uni[v] = p->val[v].cls == C_UNI;
    const line_sum s = uni && t.rank ? sum_of(p, uni, off, 0) : (line_sum){0};
    return s.ok && !s.any[t.rank - 1] && s.by[t.rank - 1] == 1;
}

int plan_uses(const plan *p, uint32_t v)
{
    int n = 0;
    for (uint32_t i = 0; i < p->ir->ninsns; i++)
        for (int k = 0; k < p->ir->insns[i].nargs; k++)
            n += ir_args(p->ir, &p->ir->insns[i])[k] == v;
    return n;
}

static bool nothing_written(const plan *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        if (ir_writes(&p->ir->insns[i]) || (ir_rows[p->ir->insns[i].op].flags & IR_STRUCT) || ir_orders(&p->ir->insns[i]))
            return false;
    return p->parent[from] == p->parent[to];
}

/* Rows so far apart are still within reach of an instruction's address. */
static bool near(int64_t step) { return step > 0 && step < 1 << 22; }

/* The load can be read as rows of neighbours by the product at `user`, which reads each of its elements once if `once`. */
static bool in_rows(plan *p, const bool *uni, uint32_t v, uint32_t user, bool once)
{
    const ir_insn *in = ir_def(p->ir, v);
    if (!in || in->op != IR_LOAD || in->nargs != 2 || plan_uses(p, v) != 1 || !nothing_written(p, p->ir->vals[v].def, user))
        return false;
    const uint32_t *a = ir_args(p->ir, in);
    const ir_type t = ir_typeof(p->ir, v);
    if (ir_typeof(p->ir, a[0]).kind != IR_BUF || t.rank != 2 || t.dim[0] < 2 || t.dim[1] < 2)
        return false;
    const line_sum s = sum_of(p, uni, a[1], 0);
    if (!s.ok || s.any[1] || s.by[1] != 1)
        return false;
    const int64_t size = (int64_t)eas_dtype_size((eas_dtype)t.dtype), row = t.dim[1] * size, apart = s.by[0] * size;
    p->val[v].step = s.any[0] ? 0 : s.by[0];
    if (once || s.any[0])
        return once;
    return row <= LINE_BYTES && (apart == row || (row == LINE_BYTES && near(s.by[0]) && apart * t.dim[0] <= SMALL_BYTES && apart % PAGE_BYTES));
}

static bool is_transpose(const plan *p, uint32_t v)
{
    const ir_insn *in = ir_def(p->ir, v);
    return in && in->op == IR_TRANS && ir_typeof(p->ir, v).rank == 2 && ir_imm_perm(in->imm, 0) == 1;
}

uint32_t plan_lent_load(const plan *p, uint32_t v) { return is_transpose(p, v) ? ir_args(p->ir, ir_def(p->ir, v))[0] : v; }

/* The transpose of a block that stays in its slot, small enough for the nearest caches. */
static bool turns_slot(const plan *p, const bool *uni, uint32_t v)
{
    if (!is_transpose(p, v) || plan_uses(p, v) != 1)
        return false;
    const uint32_t x = plan_lent_load(p, v);
    const ir_insn *in = ir_def(p->ir, x);
    const ir_type t = ir_typeof(p->ir, x);
    return in && !uni[x] && !(ir_rows[in->op].flags & IR_STRUCT) && t.dim[0] > 1 && t.dim[1] > 1 &&
           (int64_t)t.dim[0] * t.dim[1] * (int64_t)eas_dtype_size((eas_dtype)t.dtype) <= NEAR_BYTES;
}

uint32_t plan_turned(const plan *p, uint32_t v)
{
    const uint32_t x = plan_lent_load(p, v);
    return p->val[v].cls == C_LENT && p->val[x].cls == C_BLOCK ? x : 0;
}

void plan_lent(plan *p, const bool *uni, bool *lent)
{
    for (uint32_t i = 0; i < p->ir->ninsns && p->info.mode == EAS_MODE_SPMD; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (in->op != IR_MATMUL)
            continue;
        const uint32_t x = ir_args(p->ir, in)[0], y = ir_args(p->ir, in)[1];
        const int64_t rows = ir_typeof(p->ir, x).dim[0],
                      bytes = ir_typeof(p->ir, y).dim[1] * (int64_t)eas_dtype_size((eas_dtype)ir_typeof(p->ir, y).dtype);
        const bool half = eas_dtype_size((eas_dtype)ir_typeof(p->ir, x).dtype) < 4; /* bf16 and bytes are laid out as words: read once, row by row */
        if (in_rows(p, uni, y, i, half || rows <= FEW_ROWS))
            lent[y] = true;
        if (half)
            lent[x] = in_rows(p, uni, x, i, true);
        else if (is_transpose(p, x) && plan_uses(p, x) == 1 && in_rows(p, uni, plan_lent_load(p, x), i, bytes <= FEW_BYTES))
            lent[x] = lent[plan_lent_load(p, x)] = true;
        else if (turns_slot(p, uni, x) || (bytes <= FEW_BYTES && in_rows(p, uni, x, i, true) && near(p->val[x].step)))
            lent[x] = true;
    }
}

bool plan_lent_holds(const plan *p, const bool *lent)
{
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        const ir_insn *in = lent[v] ? ir_def(p->ir, v) : NULL;
        if (in && in->op == IR_LOAD && p->val[ir_args(p->ir, in)[1]].cls != C_REMAT)
            return false;
    }
    return true;
}
