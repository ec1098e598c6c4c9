/* rules.c: the type rule of every instruction: what its operands must be, and what its results are. */
#include "ir.h"

/* ---- type rules ----
 * Each returns NULL or the reason. `c` bundles what the rules look at. */

typedef struct check {
    const eas_ir *ir;
    arena *mem;
    uint16_t op;
    const uint32_t *args;
    int nargs, nres;
    int64_t imm;
    ir_type *t;
} check;

static ir_type arg(const check *c, int i) { return c->ir->vals[c->args[i]].type; }

static int class_of(eas_dtype dt) { return dt == EAS_BOOL ? IR_B : dtype_is_float(dt) ? IR_F : IR_I; }

static const char *want_value(const check *c, int i)
{
    return arg(c, i).kind == IR_VAL ? NULL
                                    : arena_printf(c->mem, "operand %d is %s, expected a value", i + 1,
                                                   ir_type_text(c->mem, arg(c, i)));
}

static const char *want_memory(const check *c, int i)
{
    ir_type t = arg(c, i);
    return t.kind == IR_BUF || t.kind == IR_TG
             ? NULL
             : arena_printf(c->mem, "operand %d is %s, expected a buffer", i + 1, ir_type_text(c->mem, t));
}

static const char *want_int(const check *c, int i)
{
    ir_type t = arg(c, i);
    return t.kind == IR_VAL && dtype_is_int(t.dtype)
             ? NULL
             : arena_printf(c->mem, "operand %d is %s, expected an integer", i + 1, ir_type_text(c->mem, t));
}

static const char *want_scalar_int(const check *c, int i)
{
    const char *e = want_int(c, i);
    return e              ? e
         : arg(c, i).rank ? arena_printf(c->mem, "operand %d is %s, expected a scalar", i + 1,
                                         ir_type_text(c->mem, arg(c, i)))
                          : NULL;
}

static const char *want_bool_like(const check *c, int i, ir_type shape)
{
    ir_type t = arg(c, i), w = ir_with_dtype(shape, EAS_BOOL);
    return ir_type_eq(t, w) ? NULL
                            : arena_printf(c->mem, "mask is %s, expected %s", ir_type_text(c->mem, t),
                                           ir_type_text(c->mem, w));
}

static const char *want_equal(const check *c, ir_type a, ir_type b)
{
    return ir_type_eq(a, b) ? NULL
                            : arena_printf(c->mem, "types differ: %s and %s", ir_type_text(c->mem, a),
                                           ir_type_text(c->mem, b));
}

static const char *valid_result(const check *c)
{
    ir_type t = *c->t;
    if (t.kind != IR_VAL || t.dtype >= EAS_NDTYPES || t.rank > IR_MAX_RANK)
        return "malformed result type";
    for (int i = 0; i < IR_MAX_RANK; i++)
        if (i < t.rank ? t.dim[i] < 1 || t.dim[i] > IR_MAX_DIM : t.dim[i] != 0)
            return arena_printf(c->mem, "block dimension %d must be between 1 and %d", i, (int)IR_MAX_DIM);
    int64_t lanes = 1;
    for (int i = 0; i < t.rank; i++)
        if ((lanes *= t.dim[i]) > IR_MAX_LANES)
            return arena_printf(c->mem, "a block may have at most %d elements", (int)IR_MAX_LANES);
    return NULL;
}

static const char *rule_const(check *c)
{
    const char *e = valid_result(c);
    if (e)
        return e;
    if (c->t->rank)
        return "a constant is a scalar";
    eas_dtype dt = c->t->dtype;
    int bits = dtype_bits(dt);
    bool fits = dt == EAS_U64 || bits == 64 ? true
              : dtype_is_signed(dt)
                  ? c->imm >= dtype_min(dt) && c->imm <= (int64_t)dtype_max(dt)
                  : (uint64_t)c->imm <= (bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1);
    return fits ? NULL : "constant does not fit its dtype";
}

static const char *rule_ident(check *c)
{
    const char *e = valid_result(c);
    if (e)
        return e;
    if (c->t->rank || !dtype_is_int(c->t->dtype))
        return "result must be an integer scalar";
    switch (c->op) {
    case IR_PROGRAM_ID:
    case IR_NUM_PROGRAMS:
    case IR_LOCAL_ID: return c->imm >= 0 && c->imm < 3 ? NULL : "axis must be 0, 1 or 2";
    case IR_THREAD_ID:
    case IR_GLOBAL_ID:
        return c->imm >= 1 && c->imm <= IR_MAX_DIM ? NULL : "threads in a group must be positive";
    default: return c->imm == 0 ? NULL : "takes no immediate";
    }
}

static const char *rule_arange(check *c)
{
    const char *e = valid_result(c);
    return e                                            ? e
         : c->t->rank == 1 && dtype_is_int(c->t->dtype) ? NULL
                                                        : "result must be an integer block of rank 1";
}

static const char *same_operands(check *c, int from)
{
    for (int i = from; i < c->nargs; i++) {
        const char *e = want_value(c, i);
        if (!e && i > from)
            e = want_equal(c, arg(c, from), arg(c, i));
        if (e)
            return e;
    }
    if (!(ir_rows[c->op].classes & class_of(arg(c, from).dtype)))
        return arena_printf(c->mem, "not defined for %s", eas_dtype_name(arg(c, from).dtype));
    return NULL;
}

static const char *rule_same(check *c)
{
    const char *e = same_operands(c, 0);
    if (!e)
        *c->t = arg(c, 0);
    return e;
}

static const char *rule_cmp(check *c)
{
    const char *e = same_operands(c, 0);
    if (!e)
        *c->t = ir_with_dtype(arg(c, 0), EAS_BOOL);
    return e;
}

static const char *rule_where(check *c)
{
    const char *e = same_operands(c, 1);
    if (!e)
        e = want_bool_like(c, 0, arg(c, 1));
    if (!e)
        *c->t = arg(c, 1);
    return e;
}

static const char *rule_cast(check *c)
{
    const char *e = want_value(c, 0);
    if (!e)
        e = valid_result(c);
    if (e)
        return e;
    if (!ir_shape_eq(*c->t, arg(c, 0)))
        return "shapes differ";
    if (c->op == IR_BITCAST) {
        if (c->t->dtype == EAS_BOOL || arg(c, 0).dtype == EAS_BOOL ||
            eas_dtype_size(c->t->dtype) != eas_dtype_size(arg(c, 0).dtype))
            return "bitcast needs dtypes of one size, not bool";
    }
    return NULL;
}

static const char *rule_shape(check *c)
{
    const char *e = want_value(c, 0);
    if (!e)
        e = valid_result(c);
    if (e)
        return e;
    ir_type from = arg(c, 0), to = *c->t;
    if (from.dtype != to.dtype)
        return "dtypes differ";
    if (c->op == IR_RESHAPE)
        return ir_lanes(from) == ir_lanes(to) ? NULL : "element counts differ";
    if (from.rank > to.rank)
        return "cannot broadcast to a lower rank";
    for (int i = 0; i < from.rank; i++) {
        int32_t f = from.dim[from.rank - 1 - i], t = to.dim[to.rank - 1 - i];
        if (f != t && f != 1)
            return arena_printf(c->mem, "cannot broadcast %s to %s", ir_type_text(c->mem, from),
                                ir_type_text(c->mem, to));
    }
    return NULL;
}

static const char *same_but(const check *c, int axis)
{
    ir_type from = arg(c, 0);
    for (int i = 0; i < from.rank; i++)
        if (i != axis && from.dim[i] != c->t->dim[i])
            return "only the dimension of its axis may change";
    return NULL;
}

static const char *valid_perm(const check *c)
{
    ir_type from = arg(c, 0);
    unsigned seen = 0;
    for (int i = 0; i < from.rank; i++) {
        int p = ir_imm_perm(c->imm, i);
        if (p >= from.rank || from.dim[p] != c->t->dim[i])
            return "the axes do not match the operand's";
        seen |= 1u << p;
    }
    return seen == (1u << from.rank) - 1 && c->imm >> (3 * from.rank) == 0 ? NULL
                                                                           : "every axis must stand once";
}

static const char *rule_move(check *c)
{
    const char *e = want_value(c, 0);
    if (!e)
        e = valid_result(c);
    if (e)
        return e;
    ir_type from = arg(c, 0);
    if (from.dtype != c->t->dtype || from.rank != c->t->rank || !from.rank)
        return "needs a block, and keeps its dtype and rank";
    if (c->op == IR_TRANS)
        return valid_perm(c);
    int axis = ir_imm_axis(c->imm);
    int64_t start = ir_imm_start(c->imm);
    if (axis >= from.rank || start < 0)
        return "no such axis or start";
    int64_t small = c->op == IR_SLICE ? c->t->dim[axis] : from.dim[axis],
            large = c->op == IR_SLICE ? from.dim[axis] : c->t->dim[axis];
    if (start + small > large)
        return "reaches past the end";
    if (c->op == IR_PAD && !ir_type_eq(arg(c, 1), ir_scalar(from.dtype)))
        return "the fill must be a scalar of the same dtype";
    return same_but(c, axis);
}

static const char *rule_reduce(check *c)
{
    const char *e = want_value(c, 0);
    if (e)
        return e;
    ir_type t = arg(c, 0), to = ir_scalar(t.dtype);
    if (c->imm < 0 || c->imm >= t.rank)
        return "no such axis";
    e = same_operands(c, 0);
    for (int i = 0; i < t.rank; i++)
        if (i != c->imm)
            to.dim[to.rank++] = t.dim[i];
    *c->t = to;
    return e;
}

static const char *rule_scan(check *c)
{
    const char *e = rule_same(c);
    return e ? e : c->imm >= 0 && c->imm < arg(c, 0).rank ? NULL : "no such axis";
}

static const char *rule_matmul(check *c)
{
    for (int i = 0; i < 3; i++) {
        const char *e = want_value(c, i);
        if (!e && arg(c, i).rank != 2)
            e = arena_printf(c->mem, "operand %d is %s, expected a block of rank 2", i + 1,
                             ir_type_text(c->mem, arg(c, i)));
        if (e)
            return e;
    }
    ir_type x = arg(c, 0), y = arg(c, 1), acc = arg(c, 2);
    if ((x.dtype != EAS_F32 && x.dtype != EAS_F64) || y.dtype != x.dtype || acc.dtype != x.dtype)
        return "operands must all be f32 or all f64";
    if (x.dim[1] != y.dim[0] || acc.dim[0] != x.dim[0] || acc.dim[1] != y.dim[1])
        return arena_printf(c->mem, "%s times %s does not give %s", ir_type_text(c->mem, x),
                            ir_type_text(c->mem, y), ir_type_text(c->mem, acc));
    *c->t = acc;
    return NULL;
}

static const char *rule_shuffle(check *c)
{
    const char *e = want_value(c, 0);
    if (!e && arg(c, 0).rank)
        e = arena_printf(c->mem, "operand 1 is %s, expected a scalar", ir_type_text(c->mem, arg(c, 0)));
    if (!e)
        e = want_scalar_int(c, 1);
    if (!e)
        *c->t = arg(c, 0);
    return e;
}

static const char *rule_load(check *c)
{
    if (c->nargs != 2 && c->nargs != 4)
        return "takes 2 or 4 operands";
    const char *e = want_memory(c, 0);
    if (!e)
        e = want_int(c, 1);
    if (e)
        return e;
    ir_type t = ir_with_dtype(arg(c, 1), arg(c, 0).dtype);
    if (c->nargs == 4) {
        e = want_bool_like(c, 2, t);
        if (!e)
            e = want_equal(c, arg(c, 3), t);
    }
    *c->t = t;
    return e;
}

static const char *rule_store(check *c)
{
    if (c->nargs != 3 && c->nargs != 4)
        return "takes 3 or 4 operands";
    const char *e = want_memory(c, 0);
    if (!e)
        e = want_int(c, 1);
    if (!e)
        e = want_equal(c, arg(c, 2), ir_with_dtype(arg(c, 1), arg(c, 0).dtype));
    if (!e && c->nargs == 4)
        e = want_bool_like(c, 3, arg(c, 1));
    return e;
}

static const char *rule_bounds(check *c)
{
    if (c->nargs != 2 && c->nargs != 3)
        return "takes 2 or 3 operands";
    const char *e = want_memory(c, 0);
    if (!e)
        e = want_int(c, 1);
    if (!e && c->nargs == 3)
        e = want_bool_like(c, 2, arg(c, 1));
    if (!e)
        *c->t = ir_with_dtype(arg(c, 1), EAS_BOOL);
    return e;
}

static bool atomic_dtype(eas_dtype dt)
{
    return dtype_is_float(dt) || (dtype_bits(dt) >= 32 && dt != EAS_BOOL);
}

static const char *rule_atomic(check *c)
{
    int values = ir_atomic_values(c->op);
    if (c->nargs != 2 + values && c->nargs != 3 + values)
        return arena_printf(c->mem, "takes %d or %d operands", 2 + values, 3 + values);
    const char *e = want_memory(c, 0);
    if (!e)
        e = want_int(c, 1);
    if (e)
        return e;
    eas_dtype dt = arg(c, 0).dtype;
    if (!atomic_dtype(dt) || !(ir_rows[c->op].classes & class_of(dt)))
        return arena_printf(c->mem, "not defined for %s", eas_dtype_name(dt));
    ir_type t = ir_with_dtype(arg(c, 1), dt);
    for (int i = 0; i < values && !e; i++)
        e = want_equal(c, arg(c, 2 + i), t);
    if (!e && c->nargs == 3 + values)
        e = want_bool_like(c, 2 + values, t);
    *c->t = t;
    return e;
}

bool ir_writes(const ir_insn *in)
{
    return in->op == IR_STORE || in->op == IR_MMA_STORE || (ir_is_atomic(in) && in->op != IR_ATOMIC_LOAD);
}

bool ir_orders(const ir_insn *in) { return in->op == IR_BARRIER || in->op == IR_FENCE; }

int ir_atomic_values(uint16_t op) { return op == IR_ATOMIC_CAS ? 2 : op == IR_ATOMIC_LOAD ? 0 : 1; }

const char *const ir_order_names[EAS_NORDERS] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};
const char *const ir_scope_names[EAS_NSCOPES] = {"group", "device"};

uint32_t ir_mask(const eas_ir *ir, const ir_insn *in)
{
    int without = in->op == IR_ASSERT                      ? 1
                : in->op == IR_LOAD || in->op == IR_BOUNDS ? 2
                : in->op == IR_STORE                       ? 3
                : !ir_is_atomic(in)                        ? UINT16_MAX
                                                           : 2 + ir_atomic_values(in->op);
    return in->nargs > without ? ir_args(ir, in)[without] : 0;
}

uint16_t ir_atomic_op(uint16_t op)
{
    switch (op) {
    case IR_ATOMIC_ADD: return IR_ADD;
    case IR_ATOMIC_MIN: return IR_MIN;
    case IR_ATOMIC_MAX: return IR_MAX;
    case IR_ATOMIC_AND: return IR_AND;
    case IR_ATOMIC_OR: return IR_OR;
    case IR_ATOMIC_XOR: return IR_XOR;
    default: return 0;
    }
}

static const ir_insn *through_casts(const eas_ir *ir, uint32_t v)
{
    const ir_insn *d = ir_def(ir, v);
    while (d && d->op == IR_CAST && dtype_is_int(ir_typeof(ir, ir_args(ir, d)[0]).dtype))
        d = ir_def(ir, ir_args(ir, d)[0]);
    return d;
}

bool ir_shuffle_xor(const eas_ir *ir, const ir_insn *in, int64_t *delta)
{
    const ir_insn *d = through_casts(ir, ir_args(ir, in)[1]);
    if (!d || d->op != IR_XOR)
        return false;
    for (int k = 0; k < 2; k++) {
        const ir_insn *own = through_casts(ir, ir_args(ir, d)[k]);
        if (own && own->op == IR_LANE_ID && ir_const_of(ir, ir_args(ir, d)[1 - k], delta) && *delta >= 0 &&
            *delta < IR_SIMD)
            return true;
    }
    return false;
}

static const char *rule_assert(check *c)
{
    if (c->nargs != 1 && c->nargs != 2)
        return "takes 1 or 2 operands";
    if (c->imm < 0 || c->imm >= c->ir->nstrings)
        return "has no message";
    const char *e = want_value(c, 0);
    for (int i = 0; i < c->nargs && !e; i++)
        e = want_bool_like(c, i, arg(c, 0));
    return e;
}

int ir_print_values(const char *text)
{
    int n = 0;
    for (const char *p = text; *p; p++) {
        n += p[0] == '{' && p[1] == '}';
        p += (p[0] == '{' || p[0] == '}') && p[1];
    }
    return n;
}

/* Under a mask that is a block every printed value has the mask's shape; without one each value has its
 * own. */
static const char *rule_print(check *c)
{
    if (c->imm < 0 || c->imm >= c->ir->nstrings)
        return "has no text";
    int n = ir_print_values(c->ir->strings[c->imm]);
    if (c->nargs != n && c->nargs != n + 1)
        return arena_printf(c->mem, "takes %d or %d operands", n, n + 1);
    const char *e = NULL;
    for (int i = 0; i < c->nargs && !e; i++)
        e = want_value(c, i);
    if (e || c->nargs == n)
        return e;
    ir_type mask = arg(c, n);
    for (int i = 0; i < n && mask.rank && !e; i++)
        if (!ir_shape_eq(arg(c, i), mask))
            e = "shapes differ from the mask's";
    return e ? e : want_bool_like(c, n, mask);
}

static const char *rule_alloc(check *c)
{
    if (c->t->kind != IR_TG || c->t->dtype >= EAS_NDTYPES || c->t->rank != 1 || c->t->dim[0] != c->imm)
        return "malformed result type";
    return c->imm >= 1 && c->imm <= IR_MAX_DIM * (int64_t)64 ? NULL : "size must be positive";
}

static const char *rule_dot(check *c)
{
    const char *e = want_memory(c, 0);
    if (!e)
        e = want_memory(c, 3);
    for (int i = 0; i < 7 && !e; i++)
        if (i % 3 || i == 6)
            e = want_int(c, i);
    for (int i = 0; i < 7 && !e; i++)
        if ((i % 3 || i == 6) && !ir_shape_eq(arg(c, i), arg(c, 1)))
            e = "bases, strides and K must have one shape";
    if (e)
        return e;
    eas_dtype x = arg(c, 0).dtype, y = arg(c, 3).dtype;
    if (!dtype_is_float(x) || !dtype_is_float(y))
        return "needs float buffers";
    *c->t = ir_with_dtype(arg(c, 1), x == EAS_F64 || y == EAS_F64 ? EAS_F64 : EAS_F32);
    return NULL;
}

static ir_type frag_type(void) { return (ir_type){.dtype = EAS_F32, .kind = IR_FRAG}; }

static const char *want_matrix_source(const check *c, int i)
{
    const char *e = want_memory(c, i);
    return e ? e
         : arg(c, i).dtype == EAS_F32 || arg(c, i).dtype == EAS_F16
             ? NULL
             : "simdgroup matrices are made of f16 or f32";
}

static const char *rule_mma(check *c)
{
    const char *e = want_matrix_source(c, 0);
    if (!e)
        e = want_matrix_source(c, 3);
    for (int i = 1; i < 6 && !e; i++)
        if (i != 3)
            e = want_scalar_int(c, i);
    if (!e && arg(c, 6).kind != IR_FRAG)
        e = "accumulator must be a fragment";
    *c->t = frag_type();
    return e;
}

static const char *rule_mma_store(check *c)
{
    const char *e = want_matrix_source(c, 0);
    for (int i = 1; i < 3 && !e; i++)
        e = want_scalar_int(c, i);
    return e ? e : arg(c, 3).kind == IR_FRAG ? NULL : "operand 4 must be a fragment";
}

/* Carried values may be plain values or fragments. */
static const char *want_carried(const check *c, int i)
{
    return arg(c, i).kind == IR_VAL || arg(c, i).kind == IR_FRAG ? NULL
                                                                 : "only values and fragments can be carried";
}

static const char *rule_loop(check *c)
{
    int head = c->op == IR_LOOP ? 3 : 0, n = 0;
    if (c->nargs < head)
        return "takes lo, hi, step and initial values";
    for (int i = 0; i < head; i++) {
        const char *e = want_scalar_int(c, i);
        if (!e)
            e = want_equal(c, arg(c, 0), arg(c, i));
        if (e)
            return e;
    }
    if (c->nres != c->nargs - (head ? 2 : 0))
        return "wrong number of body values";
    if (head)
        c->t[n++] = arg(c, 0);
    for (int i = head; i < c->nargs; i++) {
        const char *e = want_carried(c, i);
        if (e)
            return e;
        c->t[n++] = arg(c, i);
    }
    return NULL;
}

/* The verifier checks that these values match those of the opener, since it knows the region. */
static const char *rule_end(check *c)
{
    if (c->nres != c->nargs)
        return "wrong number of results";
    for (int i = 0; i < c->nargs; i++) {
        const char *e = want_carried(c, i);
        if (e)
            return e;
        c->t[i] = arg(c, i);
    }
    return NULL;
}

static const char *rule_none(check *c)
{
    if (c->op == IR_FENCE)
        return c->imm < 0 || ir_fence_order(c->imm) >= EAS_NORDERS || c->imm >> 3 >= EAS_NSCOPES
                 ? "has no such order or scope"
                 : NULL;
    if (c->op == IR_IF || c->op == IR_DO)
        return ir_type_eq(arg(c, 0), ir_scalar(EAS_BOOL)) ? NULL : "condition must be a bool scalar";
    if (c->op == IR_ELSE)
        for (int i = 0; i < c->nargs; i++) {
            const char *e = want_carried(c, i);
            if (e)
                return e;
        }
    return NULL;
}

static const char *rule_frag(check *c)
{
    *c->t = frag_type();
    return NULL;
}

static int results_of(const check *c)
{
    switch (ir_rows[c->op].rule) {
    case IR_RULE_STORE:
    case IR_RULE_MMA_STORE:
    case IR_RULE_ASSERT:
    case IR_RULE_PRINT:
    case IR_RULE_NONE: return 0;
    case IR_RULE_LOOP:
    case IR_RULE_END: return c->nres;
    default: return 1;
    }
}

const char *ir_check_insn(const eas_ir *ir, arena *mem, uint16_t op, const uint32_t *args, int nargs,
                          int64_t imm, int nres, ir_type *t)
{
    static const char *(*const rules[])(check *) = {
        [IR_RULE_CONST] = rule_const,     [IR_RULE_IDENT] = rule_ident,
        [IR_RULE_ARANGE] = rule_arange,   [IR_RULE_SAME] = rule_same,
        [IR_RULE_CMP] = rule_cmp,         [IR_RULE_WHERE] = rule_where,
        [IR_RULE_CAST] = rule_cast,       [IR_RULE_SHAPE] = rule_shape,
        [IR_RULE_MOVE] = rule_move,       [IR_RULE_REDUCE] = rule_reduce,
        [IR_RULE_SCAN] = rule_scan,       [IR_RULE_MATMUL] = rule_matmul,
        [IR_RULE_SHUFFLE] = rule_shuffle, [IR_RULE_LOAD] = rule_load,
        [IR_RULE_STORE] = rule_store,     [IR_RULE_BOUNDS] = rule_bounds,
        [IR_RULE_ATOMIC] = rule_atomic,   [IR_RULE_ALLOC] = rule_alloc,
        [IR_RULE_ASSERT] = rule_assert,   [IR_RULE_PRINT] = rule_print,
        [IR_RULE_DOT] = rule_dot,         [IR_RULE_FRAG] = rule_frag,
        [IR_RULE_MMA] = rule_mma,         [IR_RULE_MMA_STORE] = rule_mma_store,
        [IR_RULE_LOOP] = rule_loop,       [IR_RULE_END] = rule_end,
        [IR_RULE_NONE] = rule_none,
    };
    check c = {ir, mem, op, args, nargs, nres, imm, t};
    if (op == IR_NOP || op >= IR_NOPS)
        return "no such instruction";
    const ir_row *row = &ir_rows[op];
    if (row->nargs >= 0 && nargs != row->nargs)
        return arena_printf(mem, "takes %d operands, not %d", row->nargs, nargs);
    for (int i = 0; i < nargs; i++)
        if (args[i] == 0 || args[i] >= ir->nvals)
            return arena_printf(mem, "operand %d is not a value", i + 1);
    if (results_of(&c) != nres)
        return arena_printf(mem, "gives %d results, not %d", results_of(&c), nres);
    bool has_imm = row->rule == IR_RULE_CONST || row->rule == IR_RULE_IDENT || row->rule == IR_RULE_ARANGE ||
                   row->rule == IR_RULE_ALLOC || row->rule == IR_RULE_MOVE || row->rule == IR_RULE_REDUCE ||
                   row->rule == IR_RULE_SCAN || row->rule == IR_RULE_ASSERT || row->rule == IR_RULE_PRINT ||
                   op == IR_FENCE;
    if (!has_imm && imm)
        return "takes no immediate";
    return rules[row->rule](&c);
}
