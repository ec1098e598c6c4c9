/* narrow.c: the 32-bit form of a kernel.
 *
 * 64-bit integers that the kernel computes become 32-bit ones. Which values, and whether u32 or i32, depends
 * on the kernel alone, so the text is the same in every process; whether the form may be used depends on the
 * launch, whose intervals must satisfy the obligations that are handed back with it.
 */
#include "ir.h"

typedef struct narrower {
    ir_rewrite w;
    bool *cand;       /* value becomes 32-bit */
    uint8_t *as;      /* EAS_U32 or EAS_I32 */
    ir_range *likely; /* intervals for non-negative arguments: decides the sign */
    ir_narrow *need;
    uint32_t capneed;
} narrower;

static bool is_i64(const eas_ir *ir, uint32_t v)
{
    return ir_typeof(ir, v).kind == IR_VAL && ir_typeof(ir, v).dtype == EAS_I64;
}

/* Operations for which 32 bits give the same value whenever operands and result fit. */
static bool narrows(uint16_t op)
{
    switch (op) {
    case IR_ADD:
    case IR_SUB:
    case IR_MUL:
    case IR_FLOORDIV:
    case IR_MOD:
    case IR_TDIV:
    case IR_TREM:
    case IR_MIN:
    case IR_MAX:
    case IR_NEG:
    case IR_ABS:
    case IR_AND:
    case IR_OR:
    case IR_XOR:
    case IR_SHL:
    case IR_SHR:
    case IR_WHERE:
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_SLICE:
    case IR_PAD:
    case IR_TRANS:
    case IR_SIMD_SHUFFLE: return true;
    default: return false;
    }
}

static bool can_start(const eas_ir *ir, const ir_insn *in)
{
    if (in->op == IR_CAST) {
        eas_dtype from = ir_typeof(ir, ir_args(ir, in)[0]).dtype;
        return !dtype_is_float(from) && dtype_bits(from) <= 32;
    }
    return ir_rows[in->op].rule == IR_RULE_IDENT || in->op == IR_ARANGE || in->op == IR_CONST;
}

static bool candidate(const narrower *n, const ir_insn *in)
{
    if (!narrows(in->op))
        return can_start(n->w.from, in);
    for (int k = 0; k < in->nargs; k++) {
        uint32_t a = ir_args(n->w.from, in)[k];
        if (is_i64(n->w.from, a) && !n->cand[a])
            return false;
    }
    return true;
}

static bool fits32(ir_range r)
{
    return (r.lo >= INT32_MIN && r.hi <= INT32_MAX) || (r.lo >= 0 && r.hi <= UINT32_MAX);
}

/* Values that do not fit even in the smallest launch stay wide, so that they do not spoil the form for the
 * rest. */
static void find_candidates(narrower *n, const ir_range *smallest)
{
    const eas_ir *ir = n->w.from;
    for (int p = 1; p <= ir->nparams; p++)
        n->cand[p] = is_i64(ir, (uint32_t)p);
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (in->op == IR_LOOP && is_i64(ir, in->res)) {
            const uint32_t *a = ir_args(ir, in);
            n->cand[in->res] = n->cand[a[0]] && n->cand[a[1]] && n->cand[a[2]] && fits32(smallest[in->res]);
        } else if (in->nres == 1 && is_i64(ir, in->res) && !(ir_rows[in->op].flags & IR_STRUCT)) {
            n->cand[in->res] = candidate(n, in) && fits32(smallest[in->res]);
        }
    }
}

/* Adds the obligation that v fits dt: this form runs only in launches for which that is proved. */
static void oblige(narrower *n, uint32_t v, eas_dtype dt)
{
    ir_narrow *w = n->need;
    if (w->n == n->capneed) {
        uint32_t cap = n->capneed ? 2 * n->capneed : 64;
        uint32_t *values = realloc(w->value, cap * sizeof *values);
        if (values)
            w->value = values;
        uint8_t *dtypes = realloc(w->dtype, cap);
        if (dtypes)
            w->dtype = dtypes;
        if (!values || !dtypes) {
            n->w.mem.oom = true;
            return;
        }
        n->capneed = cap;
    }
    w->value[w->n] = v;
    w->dtype[w->n++] = (uint8_t)dt;
}

/* The 32-bit dtype an operation works in: signed as soon as anything in it may be negative. */
static eas_dtype working_dtype(const narrower *n, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++) {
        uint32_t a = ir_args(n->w.from, in)[k];
        if (is_i64(n->w.from, a) && n->likely[a].lo < 0)
            return EAS_I32;
    }
    return in->nres && is_i64(n->w.from, in->res) && n->likely[in->res].lo < 0 ? EAS_I32 : EAS_U32;
}

static uint32_t as_dtype(narrower *n, uint32_t old, eas_dtype dt)
{
    uint32_t v = n->w.map[old];
    return n->w.b->status ? 0 : irb_to(n->w.b, IR_CAST, ir_with_dtype(ir_typeof(n->w.b->ir, v), dt), v);
}

/* One instruction in 32 bits: i64 operands brought to dt. */
static void narrow_insn(narrower *n, const ir_insn *in, eas_dtype dt)
{
    uint32_t a[3];
    ir_type t = in->nres ? ir_typeof(n->w.from, in->res) : (ir_type){0};
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = ir_args(n->w.from, in)[k];
        a[k] = is_i64(n->w.from, v) ? as_dtype(n, v, dt) : n->w.map[v];
        if (is_i64(n->w.from, v))
            oblige(n, v, dt);
    }
    if (is_i64(n->w.from, in->res)) {
        t = ir_with_dtype(t, dt);
        oblige(n, in->res, dt);
    }
    int64_t imm = in->op == IR_CONST && dt == EAS_U32 ? (int64_t)(uint32_t)in->imm : in->imm;
    n->w.map[in->res] = irb_insn(n->w.b, in->op, a, in->nargs, imm, in->nres, &t);
}

static bool compares_candidates(const narrower *n, const ir_insn *in)
{
    const uint32_t *a = ir_args(n->w.from, in);
    return ir_rows[in->op].rule == IR_RULE_CMP && in->nargs == 2 && is_i64(n->w.from, a[0]) &&
           n->cand[a[0]] && n->cand[a[1]];
}

/* Offsets and casts take integers of any width. */
static bool takes_any_int(const ir_insn *in, int k)
{
    switch (in->op) {
    case IR_LOAD:
    case IR_STORE:
    case IR_BOUNDS: return k == 1;
    case IR_DOT: return k != 0 && k != 3;
    case IR_MMA: return k == 1 || k == 2 || k == 4 || k == 5;
    case IR_MMA_STORE: return k == 1 || k == 2;
    case IR_CAST: return true;
    default: return ir_is_atomic(in) && k == 1;
    }
}

static void narrow_loop(narrower *n, const ir_insn *in)
{
    eas_dtype dt = n->likely[in->res].lo < 0 || working_dtype(n, in) == EAS_I32 ? EAS_I32 : EAS_U32;
    uint32_t *args = arena_alloc(&n->w.mem, in->nargs * sizeof *args);
    ir_type *t = arena_alloc(&n->w.mem, in->nres * sizeof *t);
    if (!args || !t)
        return;
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = ir_args(n->w.from, in)[k];
        args[k] = k < 3 ? as_dtype(n, v, dt) : is_i64(n->w.from, v) ? as_dtype(n, v, EAS_I64) : n->w.map[v];
        if (k < 3)
            oblige(n, v, dt);
    }
    oblige(n, in->res, dt);
    uint32_t r = irb_insn(n->w.b, IR_LOOP, args, in->nargs, 0, in->nres, t);
    for (int k = 0; k < in->nres; k++)
        n->w.map[in->res + (uint32_t)k] = r + (uint32_t)k;
}

/* Everything else keeps its types: narrowed operands are widened where the instruction needs i64. */
static void keep_insn(narrower *n, uint32_t i)
{
    const ir_insn *in = &n->w.from->insns[i];
    uint32_t *saved = arena_alloc(&n->w.mem, (in->nargs + 1u) * sizeof *saved);
    if (!saved)
        return;
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = ir_args(n->w.from, in)[k];
        saved[k] = n->w.map[v];
        if (is_i64(n->w.from, v) && !takes_any_int(in, k))
            n->w.map[v] = as_dtype(n, v, EAS_I64);
    }
    ir_rewrite_copy(&n->w, i);
    for (int k = 0; k < in->nargs; k++)
        n->w.map[ir_args(n->w.from, in)[k]] = saved[k];
}

static void rewrite(narrower *n, uint32_t i)
{
    const ir_insn *in = ir_rewrite_at(&n->w, i);
    if (in->op == IR_LOOP && n->cand[in->res])
        narrow_loop(n, in);
    else if (in->nres == 1 && !(ir_rows[in->op].flags & IR_STRUCT) && n->cand[in->res])
        narrow_insn(n, in, working_dtype(n, in));
    else if (compares_candidates(n, in))
        narrow_insn(n, in, working_dtype(n, in));
    else
        keep_insn(n, i);
}

static bool anything(const narrower *n)
{
    for (uint32_t v = 1; v < n->w.from->nvals; v++)
        if (n->cand[v])
            return true;
    return false;
}

/* Finds what can be narrowed; false: there is nothing to narrow, or no memory. */
static bool prepare(narrower *n, const eas_ir *ir)
{
    const size_t np = (size_t)(ir->nparams + 1);
    ir_range *one = arena_alloc(&n->w.mem, np * sizeof *one), *pos = arena_alloc(&n->w.mem, np * sizeof *pos);
    n->cand = arena_alloc(&n->w.mem, ir->nvals);
    for (int p = 0; p < ir->nparams && !n->w.mem.oom; p++) {
        one[p] = (ir_range){1, 1};
        pos[p] = (ir_range){0, INT32_MAX};
    }
    if (n->w.mem.oom)
        return false;
    const ir_range *smallest = ir_ranges(ir, &(ir_env){.scalar = one, .grid = {1, 1, 1}}, &n->w.mem);
    n->likely = ir_ranges(ir, &(ir_env){.scalar = pos}, &n->w.mem);
    if (n->w.mem.oom)
        return false;
    find_candidates(n, smallest);
    return anything(n);
}

static void narrow_params(narrower *n)
{
    for (uint32_t p = 1; p <= (uint32_t)n->w.from->nparams; p++) {
        if (!n->cand[p])
            continue;
        /* arguments that are negative in a launch make it take the wide form */
        n->w.b->ir->vals[p].type.dtype = EAS_U32;
        oblige(n, p, EAS_U32);
    }
}

eas_status ir_narrowed(const eas_ir *ir, eas_ir **out, ir_narrow *need)
{
    narrower n = {.need = need};
    *out = NULL;
    memset(need, 0, sizeof *need);
    eas_status st = ir_rewrite_begin(&n.w, ir);
    if (!st && !prepare(&n, ir) && !n.w.mem.oom) {
        ir_rewrite_drop(&n.w);
        return EAS_OK;
    }
    if (!st && !n.w.mem.oom)
        narrow_params(&n);
    for (uint32_t i = 0; i < ir->ninsns && !st && !n.w.mem.oom; i++)
        rewrite(&n, i);
    st = ir_rewrite_end_simple(&n.w, st, out);
    if (st)
        ir_narrow_free(need);
    return st;
}

void ir_narrow_free(ir_narrow *need)
{
    free(need->value);
    free(need->dtype);
    memset(need, 0, sizeof *need);
}

bool ir_narrow_ok(const eas_ir *ir, const ir_narrow *need, const ir_env *env)
{
    arena mem = {0};
    const ir_range *r = ir_ranges(ir, env, &mem);
    bool ok = r != NULL;
    for (uint32_t i = 0; i < need->n && ok; i++) {
        eas_dtype dt = need->dtype[i];
        ok = r[need->value[i]].lo >= dtype_min(dt) && r[need->value[i]].hi <= (int64_t)dtype_max(dt);
    }
    arena_free(&mem);
    return ok;
}
