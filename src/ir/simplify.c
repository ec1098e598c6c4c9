/* simplify.c: the same kernel with less to do.
 *
 *   rewrite   one walk that folds constants, applies identities, decides comparisons by intervals, inlines
 *             ifs whose condition is known and shares equal pure instructions within a region (hash-consing);
 *             repeated until nothing changes
 *   retype    a scalar parameter that is only ever cast to one float dtype arrives in that dtype
 *   contract  a product that feeds exactly one sum becomes an fma (contract.c; unless the kernel says no)
 *   sweep     drops instructions that nothing needs
 *
 * Every identity is exact: integers wrap, floats keep signed zeros, infinities and NaN.
 */
#include "ir.h"

#include <math.h>

typedef struct simp {
    ir_rewrite w;
    ir_range *range;     /* per new value */
    uint32_t caprange;
    eas_ir_info info;
    bool rewrite_tid, changed;
    uint32_t *table;     /* open hash of instruction index + 1, for sharing */
    uint32_t tabsize;
    VEC(uint32_t) undo;  /* table slots filled, to empty them when a region closes */
    VEC(uint32_t) scope; /* undo.len at each open region */
    /* how many instructions there were at the last write to memory, or at the start of a loop that writes: an
     * earlier load may not be shared with a later one, since arguments may overlap */
    uint32_t written;
} simp;

static const ir_env nothing_known = {0};

/* ---- looking at the new kernel ---- */

static ir_type type_of(const simp *s, uint32_t v) { return s->w.b->ir->vals[v].type; }
static const ir_insn *def(const simp *s, uint32_t v) { return ir_def(s->w.b->ir, v); }
static const uint32_t *args_of(const simp *s, const ir_insn *in) { return ir_args(s->w.b->ir, in); }
static bool is_op(const simp *s, uint32_t v, uint16_t op) { return def(s, v) && def(s, v)->op == op; }
static bool is_float(const simp *s, uint32_t v) { return dtype_is_float(type_of(s, v).dtype); }
static bool is_bool(const simp *s, uint32_t v) { return type_of(s, v).dtype == EAS_BOOL; }
static bool constant(const simp *s, uint32_t v, int64_t *bits)
{
    return type_of(s, v).kind == IR_VAL && ir_const_of(s->w.b->ir, v, bits);
}

static bool is_int_const(const simp *s, uint32_t v, int64_t want)
{
    int64_t c;
    return !is_float(s, v) && constant(s, v, &c) && c == want;
}

/* A float constant with exactly these bits, signed zero told apart. */
static bool is_float_const(const simp *s, uint32_t v, double want)
{
    int64_t c;
    return is_float(s, v) && constant(s, v, &c) && c == ir_bits_from_double(type_of(s, v).dtype, want);
}

/* ---- sharing ---- */

static uint32_t hash_insn(uint16_t op, const uint32_t *args, int nargs, int64_t imm, ir_type t)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ op;
    for (int i = 0; i < nargs; i++)
        h = (h ^ args[i]) * 0x100000001b3u;
    h = (h ^ (uint64_t)imm) * 0x100000001b3u;
    h = (h ^ t.dtype ^ (uint64_t)t.rank << 8) * 0x100000001b3u;
    for (int i = 0; i < t.rank; i++)
        h = (h ^ (uint64_t)t.dim[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 29);
}

static bool same_insn(const simp *s, const ir_insn *in, uint16_t op, const uint32_t *args, int nargs,
                      int64_t imm, ir_type t)
{
    return in->op == op && in->nargs == nargs && in->imm == imm && ir_type_eq(type_of(s, in->res), t) &&
           (!nargs || !memcmp(args_of(s, in), args, (size_t)nargs * sizeof *args));
}

/* A load may be shared if nothing in this kernel writes to its buffer and, as buffers may overlap, nothing is
 * written between the two loads. */
static bool shareable(const simp *s, uint16_t op, const uint32_t *args)
{
    if (ir_rows[op].flags & IR_PURE)
        return true;
    return op == IR_LOAD && args[0] <= (uint32_t)s->w.from->nparams && !s->w.from->params[args[0] - 1].write;
}

static bool grow_ranges(simp *s)
{
    return vec_grow((void **)&s->range, &s->caprange, s->w.b->ir->nvals + 1, sizeof *s->range);
}

/* Operands of a commutative instruction: a constant on the right, else the older value first. */
static void put_in_order(const simp *s, const uint32_t *a, uint32_t *out)
{
    int64_t c;
    bool ca = constant(s, a[0], &c), cb = constant(s, a[1], &c);
    bool swap = ca != cb ? ca : a[0] > a[1];
    out[0] = a[swap];
    out[1] = a[!swap];
}

/* Appends an instruction, or finds an equal one. For rules with an explicit result type t holds it; otherwise
 * the type is computed. */
static uint32_t emit(simp *s, uint16_t op, const uint32_t *args, int nargs, int64_t imm, ir_type t)
{
    eas_builder *b = s->w.b;
    uint32_t slot = 0;
    if (b->status)
        return 0;
    uint32_t ordered[2];
    if (ir_rows[op].flags & IR_COMM) {
        put_in_order(s, args, ordered);
        args = ordered;
    }
    bool share = shareable(s, op, args);
    if (share) {
        arena tmp = {0};
        const char *why = ir_check_insn(b->ir, &tmp, op, args, nargs, imm, 1, &t);
        const bool unknown = tmp.oom;
        arena_free(&tmp);
        if (why || unknown)
            return irb_insn(b, op, args, nargs, imm, 1, &t); /* reports it */
        for (slot = hash_insn(op, args, nargs, imm, t) % s->tabsize; s->table[slot];
             slot = (slot + 1) % s->tabsize)
            if ((op != IR_LOAD || s->table[slot] > s->written) &&
                same_insn(s, &b->ir->insns[s->table[slot] - 1], op, args, nargs, imm, t))
                return b->ir->insns[s->table[slot] - 1].res;
    }
    uint32_t r = irb_insn(b, op, args, nargs, imm, 1, &t);
    if (!r)
        return 0;
    if (!grow_ranges(s))
        return irb_fail(b, EAS_ERR_MEMORY, "out of memory"), 0;
    ir_range_insn(b->ir, &nothing_known, &s->info, &b->ir->insns[b->ir->ninsns - 1], s->range);
    if (share && s->undo.len < s->tabsize / 2 && vec_push(&s->undo, slot))
        s->table[slot] = b->ir->ninsns;
    return r;
}

static uint32_t emit_op(simp *s, uint16_t op, uint32_t x, uint32_t y, uint32_t z)
{
    uint32_t args[3] = {x, y, z};
    ir_type t = {0};
    return emit(s, op, args, ir_rows[op].nargs, 0, t);
}

static uint32_t emit_const(simp *s, ir_type t, int64_t bits)
{
    uint32_t c = emit(s, IR_CONST, NULL, 0, bits, ir_scalar(t.dtype));
    return t.rank && c ? emit(s, IR_BROADCAST, &c, 1, 0, t) : c;
}

static void open_scope(simp *s)
{
    if (!vec_push(&s->scope, s->undo.len))
        irb_fail(s->w.b, EAS_ERR_MEMORY, "out of memory");
}

/* Slots are emptied in reverse order of filling, which keeps the probe chains of the others intact. */
static void close_scope(simp *s)
{
    uint32_t keep = s->scope.len ? s->scope.at[--s->scope.len] : 0;
    while (s->undo.len > keep)
        s->table[s->undo.at[--s->undo.len]] = 0;
}

/* ---- identities: each returns a value to use instead, or 0 ---- */

static uint32_t fold(simp *s, uint16_t op, const uint32_t *a, int n, ir_type t)
{
    int64_t c[3], out;
    if (n < 1 || n > 3 || (ir_rows[op].flags & IR_EXPAND) || ir_rows[op].rule < IR_RULE_SAME ||
        ir_rows[op].rule > IR_RULE_CAST)
        return 0;
    for (int i = 0; i < n; i++)
        if (!constant(s, a[i], &c[i]))
            return 0;
    return ir_eval(op, type_of(s, a[0]).dtype, t.dtype, c, &out) ? emit_const(s, t, out) : 0;
}

static ir_type result_type(const simp *s, uint16_t op, const uint32_t *a, ir_type given)
{
    switch (ir_rows[op].rule) {
    case IR_RULE_SAME: return type_of(s, a[0]);
    case IR_RULE_CMP: return ir_with_dtype(type_of(s, a[0]), EAS_BOOL);
    case IR_RULE_WHERE: return type_of(s, a[1]);
    default: return given;
    }
}

/* x + c1 + c2 and x * c1 * c2: wrapping arithmetic is associative */
static uint32_t reassociate(simp *s, uint16_t op, uint32_t x, uint32_t y)
{
    int64_t c1, c2, c;
    const ir_insn *d = def(s, x);
    if (!d || d->op != op || is_float(s, x) || !constant(s, y, &c2) || !constant(s, args_of(s, d)[1], &c1))
        return 0;
    uint32_t inner = args_of(s, d)[0];
    int64_t both[2] = {c1, c2};
    if (!ir_eval(op, type_of(s, x).dtype, 0, both, &c))
        return 0;
    return emit_op(s, op, inner, emit_const(s, type_of(s, y), c), 0);
}

static uint32_t simplify_int(simp *s, uint16_t op, uint32_t x, uint32_t y)
{
    ir_type t = type_of(s, x);
    ir_range rx = s->range[x], ry = y ? s->range[y] : rx;
    switch (op) {
    case IR_ADD:
        return is_int_const(s, y, 0) ? x
             : is_int_const(s, x, 0) ? y
             : is_op(s, y, IR_NEG)   ? emit_op(s, IR_SUB, x, args_of(s, def(s, y))[0], 0)
                                     : reassociate(s, op, x, y);
    case IR_SUB: return is_int_const(s, y, 0) ? x : x == y ? emit_const(s, t, 0) : 0;
    case IR_MUL:
        return is_int_const(s, y, 1)                          ? x
             : is_int_const(s, x, 1)                          ? y
             : is_int_const(s, x, 0) || is_int_const(s, y, 0) ? emit_const(s, t, 0)
                                                              : reassociate(s, op, x, y);
    case IR_FLOORDIV:
    case IR_TDIV:
        if (is_int_const(s, y, 1))
            return x;
        return rx.lo >= 0 && rx.hi < ry.lo ? emit_const(s, t, 0) : 0;
    case IR_MOD:
    case IR_TREM:
        if (is_int_const(s, y, 1))
            return emit_const(s, t, 0);
        return rx.lo >= 0 && rx.hi < ry.lo ? x : 0;
    case IR_MIN: return x == y || rx.hi <= ry.lo ? x : ry.hi <= rx.lo ? y : 0;
    case IR_MAX: return x == y || rx.lo >= ry.hi ? x : ry.lo >= rx.hi ? y : 0;
    case IR_SHL:
    case IR_SHR: return is_int_const(s, y, 0) ? x : 0;
    case IR_NEG: return is_op(s, x, IR_NEG) ? args_of(s, def(s, x))[0] : 0;
    case IR_ABS: return rx.lo >= 0 && (rx.hi != INT64_MAX || t.dtype != EAS_U64) ? x : 0;
    default: return 0;
    }
}

static uint32_t simplify_bits(simp *s, uint16_t op, uint32_t x, uint32_t y)
{
    int64_t ones = is_bool(s, x)                        ? 1
                 : dtype_is_signed(type_of(s, x).dtype) ? -1
                                                        : (int64_t)dtype_max(type_of(s, x).dtype);
    bool y0 = is_int_const(s, y, 0), y1 = is_int_const(s, y, ones), x0 = is_int_const(s, x, 0),
         x1 = is_int_const(s, x, ones);
    switch (op) {
    case IR_AND: return x == y || y1 || x0 ? x : x1 || y0 ? y : 0;
    case IR_OR: return x == y || y0 || x1 ? x : x0 || y1 ? y : 0;
    case IR_XOR: return x == y ? emit_const(s, type_of(s, x), 0) : y0 ? x : x0 ? y : 0;
    default: return 0;
    }
}

/* !(a < b) is a >= b, for integers. */
static uint32_t simplify_not(simp *s, uint32_t x)
{
    static const uint8_t opposite[IR_NOPS] = {
        [IR_LT] = IR_GE, [IR_LE] = IR_GT, [IR_GT] = IR_LE, [IR_GE] = IR_LT, [IR_EQ] = IR_NE, [IR_NE] = IR_EQ};
    const ir_insn *d = def(s, x);
    if (!d)
        return 0;
    if (d->op == IR_NOT)
        return args_of(s, d)[0];
    if (!is_bool(s, x) || !opposite[d->op] || is_float(s, args_of(s, d)[0]))
        return 0;
    return emit_op(s, opposite[d->op], args_of(s, d)[0], args_of(s, d)[1], 0);
}

static uint32_t reciprocal_of_power(simp *s, uint32_t y)
{
    int64_t c;
    int e;
    eas_dtype dt = type_of(s, y).dtype;
    if (!constant(s, y, &c))
        return 0;
    double d = ir_bits_to_double(dt, c);
    int least = dt == EAS_F64 ? -1000
              : dt == EAS_F16 ? -13
                              : -120,
        most = dt == EAS_F64 ? 1000
             : dt == EAS_F16 ? 13
                             : 120;
    if (!isfinite(d) || fabs(frexp(d, &e)) != 0.5 || e < least || e > most)
        return 0;
    return emit_const(s, type_of(s, y), ir_bits_from_double(dt, 1 / d));
}

static uint32_t simplify_float(simp *s, uint16_t op, uint32_t x, uint32_t y)
{
    uint32_t r;
    switch (op) {
    case IR_ADD: return is_float_const(s, y, -0.0) ? x : is_float_const(s, x, -0.0) ? y : 0;
    case IR_SUB: return is_float_const(s, y, 0.0) ? x : 0;
    case IR_MUL: return is_float_const(s, y, 1) ? x : is_float_const(s, x, 1) ? y : 0;
    case IR_DIV:
        if (is_float_const(s, y, 1))
            return x;
        return (r = reciprocal_of_power(s, y)) ? emit_op(s, IR_MUL, x, r, 0) : 0;
    case IR_NEG: return is_op(s, x, IR_NEG) ? args_of(s, def(s, x))[0] : 0;
    case IR_ABS: return is_op(s, x, IR_ABS) ? x : 0;
    default: return 0;
    }
}

static uint32_t simplify_compare(simp *s, uint16_t op, uint32_t x, uint32_t y, ir_type t)
{
    if (is_bool(s, x) && (op == IR_EQ || op == IR_NE)) {
        for (int side = 0; side < 2; side++) {
            uint32_t c = side ? x : y, other = side ? y : x;
            int64_t v;
            if (constant(s, c, &v))
                return (v != 0) == (op == IR_EQ) ? other : emit_op(s, IR_NOT, other, 0, 0);
        }
    }
    if (!is_float(s, x) && x == y)
        return emit_const(s, t, op == IR_LE || op == IR_GE || op == IR_EQ);
    return 0;
}

static uint32_t simplify_where(simp *s, uint32_t c, uint32_t x, uint32_t y)
{
    int64_t k;
    if (constant(s, c, &k))
        return k ? x : y;
    if (x == y)
        return x;
    if (!is_bool(s, x))
        return 0;
    if (is_int_const(s, y, 0))
        return emit_op(s, IR_AND, c, x, 0);
    if (is_int_const(s, x, 1))
        return emit_op(s, IR_OR, c, y, 0);
    if (is_int_const(s, y, 1))
        return emit_op(s, IR_OR, emit_op(s, IR_NOT, c, 0, 0), x, 0);
    return is_int_const(s, x, 0) ? emit_op(s, IR_AND, emit_op(s, IR_NOT, c, 0, 0), y, 0) : 0;
}

/* from -> mid -> to is from -> to when mid holds every value of from. */
static bool widens(eas_dtype from, eas_dtype mid)
{
    if (from == mid || from == EAS_BOOL)
        return true;
    if (dtype_is_float(from))
        return mid == EAS_F64 || (mid == EAS_F32 && from != EAS_F64);
    if (dtype_is_float(mid))
        return mid == EAS_F64 ? dtype_bits(from) <= 32
             : mid == EAS_F32 ? dtype_bits(from) <= 16
                              : dtype_bits(from) <= 8 && mid == EAS_F16;
    if (dtype_is_signed(from))
        return dtype_is_signed(mid) && dtype_bits(from) <= dtype_bits(mid);
    return dtype_bits(from) + dtype_is_signed(mid) <= dtype_bits(mid);
}

static uint32_t simplify_cast(simp *s, uint32_t x, ir_type t)
{
    if (ir_type_eq(type_of(s, x), t))
        return x;
    const ir_insn *d = def(s, x);
    if (d && d->op == IR_CAST) {
        uint32_t inner = args_of(s, d)[0];
        eas_dtype from = type_of(s, inner).dtype, mid = type_of(s, x).dtype;
        bool wraps = dtype_is_int(from) && dtype_is_int(mid) && dtype_is_int(t.dtype) &&
                     dtype_bits(t.dtype) <= dtype_bits(mid);
        /* out of a float an integer saturates, out of an integer it wraps */
        bool saturates =
            dtype_is_int(from) && dtype_is_float(mid) && dtype_is_int(t.dtype) && !widens(from, t.dtype);
        if ((widens(from, mid) && !saturates) || wraps)
            return from == t.dtype ? inner : emit(s, IR_CAST, &inner, 1, 0, t);
    }
    return 0;
}

/* A shape instruction that changes nothing is its operand; of two in a row the first is left out. */
static uint32_t simplify_shape(simp *s, uint16_t op, uint32_t x, ir_type t)
{
    if (ir_type_eq(type_of(s, x), t))
        return x;
    const ir_insn *d = def(s, x);
    if (d && d->op == op) {
        uint32_t inner = args_of(s, d)[0];
        return ir_type_eq(type_of(s, inner), t) ? inner : emit(s, op, &inner, 1, 0, t);
    }
    if (d && d->op == IR_BROADCAST && op == IR_RESHAPE && !type_of(s, args_of(s, d)[0]).rank) {
        uint32_t inner = args_of(s, d)[0];
        return t.rank ? emit(s, IR_BROADCAST, &inner, 1, 0, t) : inner;
    }
    return 0;
}

/* program_id(0) * block + thread_id is the thread's place in the grid. */
static uint32_t global_id(simp *s, uint32_t x, uint32_t y)
{
    if (!s->rewrite_tid)
        return 0;
    for (int side = 0; side < 2; side++) {
        const ir_insn *m = def(s, side ? y : x), *t = def(s, side ? x : y);
        if (!m || !t || m->op != IR_MUL || t->op != IR_THREAD_ID)
            continue;
        for (int k = 0; k < 2; k++) {
            const ir_insn *p = def(s, args_of(s, m)[k]);
            if (p && p->op == IR_PROGRAM_ID && p->imm == 0 && is_int_const(s, args_of(s, m)[1 - k], t->imm))
                return emit(s, IR_GLOBAL_ID, NULL, 0, t->imm, type_of(s, t->res));
        }
    }
    return 0;
}

static uint32_t simplify_value(simp *s, uint16_t op, const uint32_t *a, int n, ir_type t)
{
    uint32_t r = fold(s, op, a, n, t);
    if (r || n < 1)
        return r;
    uint32_t y = n > 1 ? a[1] : 0;
    switch (ir_rows[op].rule) {
    case IR_RULE_SAME:
        if (op == IR_NOT)
            return simplify_not(s, a[0]);
        if (op == IR_AND || op == IR_OR || op == IR_XOR)
            return simplify_bits(s, op, a[0], y);
        if (is_float(s, a[0]))
            return simplify_float(s, op, a[0], y);
        if (op == IR_ADD && (r = global_id(s, a[0], y)))
            return r;
        return simplify_int(s, op, a[0], y);
    case IR_RULE_CMP: return n == 2 ? simplify_compare(s, op, a[0], y, t) : 0;
    case IR_RULE_WHERE: return simplify_where(s, a[0], a[1], a[2]);
    case IR_RULE_CAST: return op == IR_CAST ? simplify_cast(s, a[0], t) : 0;
    case IR_RULE_SHAPE: return simplify_shape(s, op, a[0], t);
    default: return 0;
    }
}

/* ---- the walk ---- */

/* A value whose interval is one point is a constant, whatever computed it. */
static uint32_t as_point(simp *s, uint32_t v)
{
    ir_range r = s->range[v];
    const ir_insn *d = def(s, v);
    if (r.lo != r.hi || is_float(s, v) || !d || d->op == IR_CONST || !(ir_rows[d->op].flags & IR_PURE) ||
        type_of(s, v).kind != IR_VAL)
        return v;
    int64_t c;
    return constant(s, v, &c) ? v : emit_const(s, type_of(s, v), r.lo);
}

static void pure(simp *s, const ir_insn *in, const uint32_t *a)
{
    ir_type t = result_type(s, in->op, a, ir_typeof(s->w.from, in->res));
    uint32_t args[3] = {0};
    for (int k = 0; k < in->nargs; k++)
        args[k] = a[k];
    if (ir_rows[in->op].flags & IR_COMM)
        put_in_order(s, a, args);
    uint32_t r = simplify_value(s, in->op, args, in->nargs, t);
    s->changed |= r != 0;
    if (!r)
        r = emit(s, in->op, args, in->nargs, in->imm, t);
    s->w.map[in->res] = r && !s->w.b->status ? as_point(s, r) : r;
}

static bool decided(const simp *s, uint32_t v, bool *yes)
{
    ir_range r = s->range[v];
    *yes = r.lo != 0;
    return r.lo == r.hi;
}

static void load(simp *s, const ir_insn *in, const uint32_t *a)
{
    bool yes;
    int n = in->nargs;
    if (n == 4 && decided(s, a[2], &yes)) {
        s->changed = true;
        if (!yes) {
            s->w.map[in->res] = a[3];
            return;
        }
        n = 2;
    }
    s->w.map[in->res] = emit(s, IR_LOAD, a, n, 0, (ir_type){0});
}

static void store(simp *s, const ir_insn *in, const uint32_t *a)
{
    bool yes;
    int n = in->nargs;
    if (n == 4 && decided(s, a[3], &yes)) {
        s->changed = true;
        if (!yes)
            return;
        n = 3;
    }
    irb_insn(s->w.b, IR_STORE, a, n, 0, 0, NULL);
}

static void atomic(simp *s, const ir_insn *in, const uint32_t *a)
{
    bool yes;
    int n = in->nargs, values = ir_atomic_values(in->op);
    if (n == 3 + values && decided(s, a[n - 1], &yes)) {
        s->changed = true;
        if (!yes) {
            s->w.map[in->res] = emit_const(s, ir_typeof(s->w.from, in->res), 0);
            return;
        }
        n--;
    }
    s->w.map[in->res] = emit(s, in->op, a, n, 0, (ir_type){0});
}

static bool note_ranges(simp *s)
{
    if (s->w.b->status || !grow_ranges(s))
        return false;
    ir_range_insn(s->w.b->ir, &nothing_known, &s->info, &s->w.b->ir->insns[s->w.b->ir->ninsns - 1], s->range);
    return true;
}

static uint32_t find_divider(const eas_ir *ir, uint32_t i, const uint32_t *end)
{
    for (uint32_t k = i + 1; k < end[i]; k++) {
        uint16_t op = ir->insns[k].op;
        if (op == IR_ELSE)
            return k;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF)
            k = end[k];
    }
    return end[i];
}

static void walk(simp *s, uint32_t first, uint32_t last, const uint32_t *end);

/* An if whose condition is known is the branch that is taken. */
static uint32_t inline_if(simp *s, uint32_t i, bool yes, const uint32_t *end)
{
    const eas_ir *ir = s->w.from;
    uint32_t div = find_divider(ir, i, end), stop = end[i];
    const ir_insn *close = &ir->insns[stop];
    s->changed = true;
    walk(s, yes ? i + 1 : div + (div != stop), yes ? div : stop, end);
    for (int k = 0; k < close->nres && !s->w.b->status; k++)
        s->w.map[close->res + (uint32_t)k] =
            s->w.map[yes ? ir_args(ir, &ir->insns[div])[k] : ir_args(ir, close)[k]];
    return stop + 1;
}

static bool writes_inside(const eas_ir *ir, uint32_t i, const uint32_t *end)
{
    for (uint32_t k = i + 1; k < end[i]; k++)
        if (ir->insns[k].op == IR_FENCE ||
            (ir_writes(&ir->insns[k]) && ir_args(ir, &ir->insns[k])[0] <= (uint32_t)ir->nparams))
            return true;
    return false;
}

static void structure(simp *s, uint32_t i, const uint32_t *end)
{
    const ir_insn *in = &s->w.from->insns[i];
    if ((in->op == IR_LOOP || in->op == IR_WHILE) && writes_inside(s->w.from, i, end))
        s->written = s->w.b->ir->ninsns;
    bool divides = in->op == IR_ELSE,
         closes = in->op == IR_ENDLOOP || in->op == IR_ENDWHILE || in->op == IR_ENDIF;
    ir_rewrite_copy(&s->w, i);
    if (closes || divides)
        close_scope(s);
    if (divides || in->op == IR_LOOP || in->op == IR_WHILE || in->op == IR_IF)
        open_scope(s);
    note_ranges(s);
}

static bool holds_anyway(const simp *s, const ir_insn *in, const uint32_t *a)
{
    bool yes;
    return (decided(s, a[0], &yes) && yes) || (in->nargs == 2 && decided(s, a[1], &yes) && !yes);
}

/* One instruction of the old kernel: a branch whose condition is known is replaced by the side that is
 * taken, accesses whose mask is known lose it or go, pure instructions are folded, rewritten or shared,
 * and the rest is copied. Returns the instruction to go on with. */
static uint32_t visit(simp *s, uint32_t i, const uint32_t *end)
{
    const ir_insn *in = ir_rewrite_at(&s->w, i);
    uint32_t few[8];
    bool yes;
    if (in->op == IR_IF && decided(s, s->w.map[ir_args(s->w.from, in)[0]], &yes))
        return inline_if(s, i, yes, end);
    if (ir_rows[in->op].flags & IR_STRUCT) {
        structure(s, i, end);
        return i + 1;
    }
    if (in->op == IR_PRINT) { /* the number of operands is not bounded */
        ir_rewrite_copy(&s->w, i);
        return i + 1;
    }
    ir_rewrite_args(&s->w, in, few);
    if (in->op == IR_ASSERT && holds_anyway(s, in, few)) {
        s->changed = true;
        return i + 1;
    }
    if (in->op == IR_LOAD)
        load(s, in, few);
    else if (in->op == IR_STORE)
        store(s, in, few);
    else if (ir_is_atomic(in))
        atomic(s, in, few);
    else if ((ir_rows[in->op].flags & IR_PURE) && in->nargs <= 3)
        pure(s, in, few);
    else {
        ir_rewrite_copy(&s->w, i);
        note_ranges(s);
    }
    if ((ir_writes(in) && few[0] <= (uint32_t)s->w.from->nparams) || in->op == IR_FENCE)
        s->written = s->w.b->ir->ninsns;
    return i + 1;
}

static void walk(simp *s, uint32_t first, uint32_t last, const uint32_t *end)
{
    for (uint32_t i = first; i < last && !s->w.b->status;)
        i = visit(s, i, end);
}

static void walk_all(simp *s)
{
    const eas_ir *ir = s->w.from;
    const uint32_t *end = ir_region_ends(ir, &s->w.mem);
    const ir_range *params = ir_ranges(s->w.b->ir, &nothing_known, &s->w.mem);
    s->tabsize = 4 * ir->ninsns + 1021;
    s->table = arena_alloc(&s->w.mem, s->tabsize * sizeof *s->table);
    s->w.mem.oom = s->w.mem.oom || !grow_ranges(s);
    if (s->w.mem.oom)
        return;
    for (int p = 1; p <= ir->nparams; p++)
        s->range[p] = params[p];
    walk(s, 0, ir->ninsns, end);
}

static eas_status rewrite(const eas_ir *ir, eas_ir **out, bool *changed)
{
    simp s = {.info = ir_analyse(ir)};
    const char *off = getenv("EAS_DISABLE_THREAD_ID_REWRITE");
    s.rewrite_tid = !(off && *off && strcmp(off, "0"));
    eas_status st = ir_rewrite_begin(&s.w, ir);
    if (!st)
        walk_all(&s);
    st = ir_rewrite_end(&s.w, st, out);
    *changed = s.changed;
    free(s.range);
    vec_free(&s.undo);
    vec_free(&s.scope);
    return st;
}

/* ---- retype: f64 scalars that are only used as one narrower float ---- */

static void retype(eas_ir *ir)
{
    for (int p = 1; p <= ir->nparams; p++) {
        if (ir->vals[p].type.kind != IR_VAL || ir->vals[p].type.dtype != EAS_F64)
            continue;
        int to = -1;
        for (uint32_t i = 0; i < ir->ninsns && to != EAS_F64; i++)
            for (int k = 0; k < ir->insns[i].nargs; k++) {
                if (ir_args(ir, &ir->insns[i])[k] != (uint32_t)p)
                    continue;
                int dt = ir->insns[i].op == IR_CAST ? ir_typeof(ir, ir->insns[i].res).dtype : EAS_F64;
                to = !dtype_is_float((eas_dtype)dt) || (to >= 0 && to != dt) ? EAS_F64 : dt;
            }
        if (to >= 0)
            ir->vals[p].type.dtype = (uint8_t)to; /* the casts now change nothing; the next walk drops them */
        else
            ir->vals[p].type.dtype = EAS_F32; /* unused: any float will do, and every device has this one */
    }
}

/* ---- the pass ---- */

enum { MAX_ROUNDS = 8 };

static eas_status replace(eas_ir **ir, eas_status st, eas_ir *const *next)
{
    if (!st) {
        eas_ir_release(*ir);
        *ir = *next;
    }
    return st;
}

static eas_status settle(eas_ir **ir)
{
    bool changed = true;
    eas_status st = EAS_OK;
    for (int round = 0; round < MAX_ROUNDS && changed && !st; round++) {
        eas_ir *next = NULL;
        st = replace(ir, rewrite(*ir, &next, &changed), &next);
        if (!st)
            st = replace(ir, ir_swept(*ir, &next, &changed), &next);
    }
    return st;
}

eas_status ir_simplify(const eas_ir *ir, eas_ir **out)
{
    eas_ir *work = eas_ir_retain((eas_ir *)(uintptr_t)ir), *next = NULL;
    bool swept = false;
    *out = NULL;
    if (ir->simple) {
        *out = work;
        return EAS_OK;
    }
    eas_status st = settle(&work);
    if (!st && !(ir->flags & EAS_KERNEL_NO_CONTRACT)) {
        st = replace(&work, ir_contracted(work, &next), &next);
        if (!st)
            st = settle(&work);
    }
    if (!st) {
        if (work == ir) /* the caller's kernel is never edited */
            st = replace(&work, ir_swept(work, &next, &swept), &next);
        if (!st) {
            retype(work);
            st = settle(&work);
        }
    }
    if (st) {
        eas_ir_release(work);
        return st;
    }
    work->simple = true;
    *out = work;
    return EAS_OK;
}

eas_status eas_ir_simplify(const eas_ir *ir, eas_ir **out)
{
    NEED(ir, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    return ir_simplify(ir, out);
}
