/* narrow.c: other forms of a kernel for other kinds of launch.
 *
 * ir_narrowed: 64-bit integers that the kernel computes become 32-bit ones. Which values, and whether u32 or i32, depends on the
 * kernel alone, so the text is the same in every process; whether the form may be used depends on the launch, whose intervals
 * must satisfy the obligations that are handed back with it.
 *
 * ir_checked: every access, or every one by data, asks `bounds` first; used when a launch cannot be proved to stay inside.
 *
 * ir_unasserted: what runs unless a launch debugs.
 */
#include "ir.h"

typedef struct narrower {
    const eas_ir *ir;
    arena mem;
    bool *cand;       /* value becomes 32-bit */
    uint8_t *as;      /* EAS_U32 or EAS_I32 */
    ir_range *likely; /* intervals for non-negative arguments: decides the sign */
    eas_builder *b;
    uint32_t *map;
    ir_narrow *need;
    uint32_t capneed;
} narrower;

static bool is_i64(const eas_ir *ir, uint32_t v) { return ir_typeof(ir, v).kind == IR_VAL && ir_typeof(ir, v).dtype == EAS_I64; }

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
        return can_start(n->ir, in);
    for (int k = 0; k < in->nargs; k++) {
        uint32_t a = ir_args(n->ir, in)[k];
        if (is_i64(n->ir, a) && !n->cand[a])
            return false;
    }
    return true;
}

static bool fits32(ir_range r) { return (r.lo >= INT32_MIN && r.hi <= INT32_MAX) || (r.lo >= 0 && r.hi <= UINT32_MAX); }

/* Values that do not fit even in the smallest launch stay wide, so that they do not spoil the form for the rest. */
static void find_candidates(narrower *n, const ir_range *smallest)
{
    const eas_ir *ir = n->ir;
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

static bool oblige(narrower *n, uint32_t v, eas_dtype dt)
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
        if (!values || !dtypes)
            return false;
        n->capneed = cap;
    }
    w->value[w->n] = v;
    w->dtype[w->n++] = (uint8_t)dt;
    return true;
}

/* The 32-bit dtype an operation works in: signed as soon as anything in it may be negative. */
static eas_dtype working_dtype(const narrower *n, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++) {
        uint32_t a = ir_args(n->ir, in)[k];
        if (is_i64(n->ir, a) && n->likely[a].lo < 0)
            return EAS_I32;
    }
    return in->nres && is_i64(n->ir, in->res) && n->likely[in->res].lo < 0 ? EAS_I32 : EAS_U32;
}

static uint32_t as_dtype(narrower *n, uint32_t old, eas_dtype dt)
{
    uint32_t v = n->map[old];
    return n->b->status ? 0 : irb_to(n->b, IR_CAST, ir_with_dtype(ir_typeof(n->b->ir, v), dt), v);
}

/* One instruction in 32 bits: i64 operands brought to dt. */
static void narrow_insn(narrower *n, const ir_insn *in, eas_dtype dt)
{
    uint32_t a[3];
    ir_type t = in->nres ? ir_typeof(n->ir, in->res) : (ir_type){0};
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = ir_args(n->ir, in)[k];
        a[k] = is_i64(n->ir, v) ? as_dtype(n, v, dt) : n->map[v];
        if (is_i64(n->ir, v) && !oblige(n, v, dt))
            irb_fail(n->b, EAS_ERR_MEMORY, "out of memory");
    }
    if (is_i64(n->ir, in->res)) {
        t = ir_with_dtype(t, dt);
        if (!oblige(n, in->res, dt))
            irb_fail(n->b, EAS_ERR_MEMORY, "out of memory");
    }
    int64_t imm = in->op == IR_CONST && dt == EAS_U32 ? (int64_t)(uint32_t)in->imm : in->imm;
    n->map[in->res] = irb_insn(n->b, in->op, a, in->nargs, imm, in->nres, &t);
}

static bool compares_candidates(const narrower *n, const ir_insn *in)
{
    const uint32_t *a = ir_args(n->ir, in);
    return ir_rows[in->op].rule == IR_RULE_CMP && in->nargs == 2 && is_i64(n->ir, a[0]) && n->cand[a[0]] && n->cand[a[1]];
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
    uint32_t *args = arena_alloc(&n->mem, in->nargs * sizeof *args);
    ir_type *t = arena_alloc(&n->mem, in->nres * sizeof *t);
    if (!args || !t) {
        irb_fail(n->b, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = ir_args(n->ir, in)[k];
        args[k] = k < 3 ? as_dtype(n, v, dt) : is_i64(n->ir, v) ? as_dtype(n, v, EAS_I64) : n->map[v];
        if (k < 3 && !oblige(n, v, dt))
            irb_fail(n->b, EAS_ERR_MEMORY, "out of memory");
    }
    if (!oblige(n, in->res, dt))
        irb_fail(n->b, EAS_ERR_MEMORY, "out of memory");
    uint32_t r = irb_insn(n->b, IR_LOOP, args, in->nargs, 0, in->nres, t);
    for (int k = 0; k < in->nres; k++)
        n->map[in->res + (uint32_t)k] = r + (uint32_t)k;
}

/* Everything else keeps its types: narrowed operands are widened where the instruction needs i64. */
static void keep_insn(narrower *n, uint32_t i)
{
    const ir_insn *in = &n->ir->insns[i];
    uint32_t *saved = arena_alloc(&n->mem, (in->nargs + 1u) * sizeof *saved);
    if (!saved) {
        irb_fail(n->b, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = ir_args(n->ir, in)[k];
        saved[k] = n->map[v];
        if (is_i64(n->ir, v) && !takes_any_int(in, k))
            n->map[v] = as_dtype(n, v, EAS_I64);
    }
    irb_copy(n->b, n->ir, i, n->map);
    for (int k = 0; k < in->nargs; k++)
        n->map[ir_args(n->ir, in)[k]] = saved[k];
}

static void rewrite(narrower *n, uint32_t i)
{
    const ir_insn *in = &n->ir->insns[i];
    n->b->file = in->file;
    n->b->line = in->line;
    if (in->op == IR_LOOP && n->cand[in->res])
        narrow_loop(n, in);
    else if (in->nres == 1 && !(ir_rows[in->op].flags & IR_STRUCT) && n->cand[in->res])
        narrow_insn(n, in, working_dtype(n, in));
    else if (compares_candidates(n, in))
        narrow_insn(n, in, working_dtype(n, in));
    else
        keep_insn(n, i);
}

static eas_status begin(narrower *n)
{
    const eas_ir *ir = n->ir;
    ir_range *one = arena_alloc(&n->mem, (size_t)(ir->nparams + 1) * sizeof *one),
             *pos = arena_alloc(&n->mem, (size_t)(ir->nparams + 1) * sizeof *pos);
    n->cand = arena_alloc(&n->mem, ir->nvals);
    n->map = arena_alloc(&n->mem, ir->nvals * sizeof *n->map);
    if (n->mem.oom)
        return base_fail_oom(ir->nvals);
    for (int p = 0; p < ir->nparams; p++) {
        one[p] = (ir_range){1, 1};
        pos[p] = (ir_range){0, INT32_MAX};
    }
    const ir_range *smallest = ir_ranges(ir, &(ir_env){.scalar = one, .grid = {1, 1, 1}}, &n->mem);
    n->likely = ir_ranges(ir, &(ir_env){.scalar = pos}, &n->mem);
    if (n->mem.oom)
        return base_fail_oom(ir->nvals);
    find_candidates(n, smallest);
    return EAS_OK;
}

static bool anything(const narrower *n)
{
    for (uint32_t v = 1; v < n->ir->nvals; v++)
        if (n->cand[v])
            return true;
    return false;
}

static eas_status build(narrower *n, eas_ir **out)
{
    const eas_ir *ir = n->ir;
    eas_status st = irb_like(ir, &n->b);
    if (st)
        return st;
    for (int p = 1; p <= ir->nparams; p++) {
        n->map[p] = (uint32_t)p;
        if (n->cand[p]) {
            n->b->ir->vals[p].type.dtype = EAS_U32; /* arguments that are negative in a launch make it take the wide form */
            if (!oblige(n, (uint32_t)p, EAS_U32))
                irb_fail(n->b, EAS_ERR_MEMORY, "out of memory");
        }
    }
    for (uint32_t i = 0; i < ir->ninsns; i++)
        rewrite(n, i);
    eas_ir *raw = NULL;
    st = irb_finish(n->b, &raw);
    eas_builder_free(n->b);
    if (st)
        return st;
    st = ir_simplify(raw, out);
    eas_ir_release(raw);
    return st;
}

eas_status ir_narrowed(const eas_ir *ir, eas_ir **out, ir_narrow *need)
{
    narrower n = {.ir = ir, .need = need};
    *out = NULL;
    memset(need, 0, sizeof *need);
    eas_status st = begin(&n);
    if (!st && anything(&n))
        st = build(&n, out);
    if (st)
        ir_narrow_free(need);
    arena_free(&n.mem);
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

/* ---- checked ---- */

typedef struct checker {
    const eas_ir *ir;
    eas_builder *b;
    uint32_t *map;
    uint32_t last[3], verdict; /* of the newest guard in this region: an element that is changed is asked for once */
} checker;

static uint32_t guarded(checker *c, uint32_t buf, uint32_t off, uint32_t mask)
{
    uint32_t args[3] = {buf, off, mask};
    ir_type t = {0};
    if (c->verdict && !memcmp(args, c->last, sizeof args))
        return c->verdict;
    memcpy(c->last, args, sizeof args);
    return c->verdict = irb_insn(c->b, IR_BOUNDS, args, mask ? 3 : 2, 0, 1, &t);
}

static void check_load(checker *c, const ir_insn *in)
{
    uint32_t a[4] = {0};
    for (int k = 0; k < in->nargs; k++)
        a[k] = c->map[ir_args(c->ir, in)[k]];
    a[2] = guarded(c, a[0], a[1], a[2]);
    if (!a[3])
        a[3] = irb_const(c->b, ir_typeof(c->ir, in->res), 0);
    ir_type t = {0};
    c->map[in->res] = irb_insn(c->b, IR_LOAD, a, 4, 0, 1, &t);
}

static void check_store(checker *c, const ir_insn *in)
{
    uint32_t a[4] = {0};
    for (int k = 0; k < in->nargs; k++)
        a[k] = c->map[ir_args(c->ir, in)[k]];
    a[3] = guarded(c, a[0], a[1], a[3]);
    irb_insn(c->b, IR_STORE, a, 4, 0, 0, NULL);
}

static void check_atomic(checker *c, const ir_insn *in)
{
    uint32_t a[5] = {0};
    int values = ir_atomic_values(in->op);
    for (int k = 0; k < in->nargs; k++)
        a[k] = c->map[ir_args(c->ir, in)[k]];
    a[2 + values] = guarded(c, a[0], a[1], a[2 + values]);
    ir_type t = {0};
    c->map[in->res] = irb_insn(c->b, in->op, a, 3 + values, 0, 1, &t);
}

/* The offsets of a dot run linearly: if both ends are inside, all are. K becomes 0 where they are not. */
static uint32_t check_run(checker *c, uint32_t buf, uint32_t base, uint32_t stride, uint32_t last, uint32_t any)
{
    ir_type t = ir_with_dtype(ir_typeof(c->b->ir, base), EAS_I64);
    uint32_t b = irb_to(c->b, IR_CAST, t, base), s = irb_to(c->b, IR_CAST, t, stride);
    uint32_t end = irb_op(c->b, IR_ADD, b, irb_op(c->b, IR_MUL, s, last, 0), 0);
    return guarded(c, buf, end, guarded(c, buf, b, any));
}

static void check_dot(checker *c, const ir_insn *in)
{
    uint32_t a[7];
    for (int k = 0; k < 7; k++)
        a[k] = c->map[ir_args(c->ir, in)[k]];
    if (c->b->status)
        return;
    ir_type t = ir_typeof(c->b->ir, a[6]), w = ir_with_dtype(t, EAS_I64);
    uint32_t K = irb_to(c->b, IR_CAST, w, a[6]);
    uint32_t any = irb_op(c->b, IR_GT, K, irb_const(c->b, w, 0), 0), last = irb_op(c->b, IR_SUB, K, irb_const(c->b, w, 1), 0);
    uint32_t ok = check_run(c, a[3], a[4], a[5], last, check_run(c, a[0], a[1], a[2], last, any));
    a[6] = irb_op(c->b, IR_WHERE, ok, a[6], irb_const(c->b, t, 0));
    ir_type r = {0};
    c->map[in->res] = irb_insn(c->b, IR_DOT, a, 7, 0, 1, &r);
}

static bool is_access(const ir_insn *in) { return in->op == IR_LOAD || in->op == IR_STORE || in->op == IR_DOT || ir_is_atomic(in); }

static uint32_t next_access(const eas_ir *ir, uint32_t i)
{
    while (i < ir->ninsns && !is_access(&ir->insns[i]))
        i++;
    return i;
}

/* The accesses of ir that need a guard, if they are one for one those of `proved`; NULL: all of them. */
static const bool *doubtful(const eas_ir *ir, const eas_ir *proved, arena *mem)
{
    const bool *here = proved ? ir_by_data(ir, mem) : NULL, *there = here ? ir_by_data(proved, mem) : NULL;
    if (!there)
        return NULL;
    uint32_t i = next_access(ir, 0), j = next_access(proved, 0);
    while (i < ir->ninsns && j < proved->ninsns && ir->insns[i].op == proved->insns[j].op && here[i] == there[j]) {
        i = next_access(ir, i + 1);
        j = next_access(proved, j + 1);
    }
    return i == ir->ninsns && j == proved->ninsns ? here : NULL;
}

eas_status ir_checked(const eas_ir *ir, const eas_ir *proved, eas_ir **out)
{
    arena mem = {0};
    checker c = {.ir = ir, .map = arena_alloc(&mem, ir->nvals * sizeof *c.map)};
    const bool *guard = doubtful(ir, proved, &mem);
    *out = NULL;
    eas_status st = mem.oom ? base_fail_oom(ir->nvals) : irb_like(ir, &c.b);
    if (st) {
        arena_free(&mem);
        return st;
    }
    for (int p = 1; p <= ir->nparams; p++)
        c.map[p] = (uint32_t)p;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        c.b->file = in->file;
        c.b->line = in->line;
        if (ir_rows[in->op].flags & IR_STRUCT)
            c.verdict = 0;
        if (guard && !guard[i])
            irb_copy(c.b, ir, i, c.map);
        else if (in->op == IR_LOAD)
            check_load(&c, in);
        else if (in->op == IR_STORE)
            check_store(&c, in);
        else if (ir_is_atomic(in))
            check_atomic(&c, in);
        else if (in->op == IR_DOT)
            check_dot(&c, in);
        else
            irb_copy(c.b, ir, i, c.map);
    }
    eas_ir *raw = NULL;
    st = irb_finish(c.b, &raw);
    eas_builder_free(c.b);
    arena_free(&mem);
    if (st)
        return st;
    st = ir_simplify(raw, out);
    eas_ir_release(raw);
    return st;
}

/* ---- without asserts ---- */

bool ir_asserts(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_ASSERT)
            return true;
    return false;
}

eas_status ir_unasserted(const eas_ir *ir, eas_ir **out)
{
    *out = NULL;
    if (!ir_asserts(ir)) {
        *out = eas_ir_retain((eas_ir *)(uintptr_t)ir);
        return EAS_OK;
    }
    eas_builder *b;
    uint32_t *map = calloc(ir->nvals, sizeof *map);
    eas_status st = map ? irb_like(ir, &b) : base_fail_oom(ir->nvals * sizeof *map);
    if (st) {
        free(map);
        return st;
    }
    for (int p = 1; p <= ir->nparams; p++)
        map[p] = (uint32_t)p;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op != IR_ASSERT)
            irb_copy(b, ir, i, map);
    eas_ir *raw = NULL;
    st = irb_finish(b, &raw);
    eas_builder_free(b);
    free(map);
    if (st)
        return st;
    st = ir_simplify(raw, out);
    eas_ir_release(raw);
    return st;
}
