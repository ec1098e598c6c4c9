/* linear.c: integer values as affine functions of lane and program.
 *
 *   value = base + sum over axes of lane[d] * index along d + sum over grid axes of program[a] *
 *   program_id(a)
 *
 * The problem: whether an access is contiguous, whether two lanes can meet at one element, how far apart
 * neighbouring programs work and which address comes next are all questions about the coefficients of an
 * offset. The idea: constants, identities, sums, and products with something that stands still keep the form,
 * so coefficients follow instruction by instruction; each value is worked out once. What is assumed:
 * arithmetic in 64 bits does not wrap (`exact`); in narrower dtypes the form holds modulo 2^bits only. A
 * coefficient is a number, a number times one scalar of the kernel, or not known (`any`).
 */
#include "ir.h"

struct ir_linears {
    const eas_ir *ir;
    const bool *uniform;
    arena *mem;
    ir_linear **of; /* per value, once it has been computed */
};

static const ir_linear UNKNOWN;

/* ---- coefficients ---- */

static const ir_coef ZERO, ANY = {.any = true};

bool ir_coef_is(ir_coef c, int64_t k) { return !c.any && !c.by && c.k == k; }
bool ir_coef_number(ir_coef c) { return !c.any && !c.by; }

static ir_coef coef(int64_t k, uint32_t by) { return k ? (ir_coef){.k = k, .by = by} : ZERO; }

static ir_coef coef_sum(ir_coef x, ir_coef y, int64_t sign)
{
    int64_t k;
    if (x.any || y.any || __builtin_mul_overflow(y.k, sign, &y.k))
        return ANY;
    if (!y.k)
        return x;
    if (x.k && x.by != y.by)
        return ANY;
    return __builtin_add_overflow(x.k, y.k, &k) ? ANY : coef(k, y.by);
}

/* The scalar that a factor is, or is broadcast from; 0 if it is a block. */
static uint32_t scalar_of(const eas_ir *ir, uint32_t v)
{
    for (const ir_insn *in; (in = ir_def(ir, v)) && (in->op == IR_BROADCAST || in->op == IR_RESHAPE);)
        v = ir_args(ir, in)[0];
    return ir_lanes(ir_typeof(ir, v)) == 1 ? v : 0;
}

static ir_coef coef_scaled(const eas_ir *ir, ir_coef x, uint32_t factor)
{
    int64_t k;
    const uint32_t by = scalar_of(ir, factor);
    if (x.any || !x.k)
        return x;
    if (ir_const_of(ir, factor, &k))
        return __builtin_mul_overflow(x.k, k, &k) ? ANY : coef(k, x.by);
    return x.by || !by ? ANY : coef(x.k, by);
}

/* ---- forms ---- */

static bool still(const ir_coef *c, int n)
{
    for (int i = 0; i < n; i++)
        if (!ir_coef_is(c[i], 0))
            return false;
    return true;
}

static bool still_in_lanes(const ir_linear *x) { return still(x->lane, IR_MAX_RANK); }

static ir_linear added(const ir_linear *x, const ir_linear *y, int64_t sign)
{
    ir_linear r = {.ok = x->ok && y->ok, .exact = x->exact && y->exact};
    for (int d = 0; d < IR_MAX_RANK; d++)
        r.lane[d] = coef_sum(x->lane[d], y->lane[d], sign);
    for (int a = 0; a < 3; a++)
        r.program[a] = coef_sum(x->program[a], y->program[a], sign);
    return r;
}

/* x times a factor that is the same for all lanes; only one of the two may depend on program ids. */
static ir_linear scaled(const eas_ir *ir, const ir_linear *x, const ir_linear *f, uint32_t xv,
                        uint32_t factor)
{
    ir_linear r = {.ok = x->ok, .exact = x->exact && f->exact};
    for (int d = 0; d < IR_MAX_RANK; d++)
        r.lane[d] = coef_scaled(ir, x->lane[d], factor);
    const bool fx = still(x->program, 3), ff = still(f->program, 3);
    for (int a = 0; a < 3; a++)
        r.program[a] = ff ? coef_scaled(ir, x->program[a], factor)
                     : fx ? coef_scaled(ir, f->program[a], xv)
                          : ANY;
    return r;
}

static ir_linear multiplied(const eas_ir *ir, const ir_linear *x, const ir_linear *y, const uint32_t *a)
{
    if (!x->ok || !y->ok)
        return UNKNOWN;
    if (still_in_lanes(y))
        return scaled(ir, x, y, a[0], a[1]);
    return still_in_lanes(x) ? scaled(ir, y, x, a[1], a[0]) : UNKNOWN;
}

/* Dims of size 1 are added and dropped; the others keep their order. */
static ir_linear reshaped(const ir_linear *x, ir_type from, ir_type to)
{
    ir_linear r = *x;
    int d = 0;
    memset(r.lane, 0, sizeof r.lane);
    if (still_in_lanes(x))
        return r;
    for (int s = 0; s < from.rank; s++) {
        if (from.dim[s] == 1)
            continue;
        while (d < to.rank && to.dim[d] == 1)
            d++;
        if (d == to.rank || to.dim[d] != from.dim[s])
            return UNKNOWN;
        r.lane[d++] = x->lane[s];
    }
    return r;
}

static ir_linear spread(const ir_linear *x, ir_type from, ir_type to)
{
    ir_linear r = *x;
    memset(r.lane, 0, sizeof r.lane);
    for (int s = 0; s < from.rank; s++)
        if (from.dim[s] != 1)
            r.lane[s + to.rank - from.rank] = x->lane[s];
    return r;
}

static bool is_wide(ir_type t)
{
    return dtype_is_int((eas_dtype)t.dtype) && dtype_bits((eas_dtype)t.dtype) == 64;
}

/* The form of a value that is the same for all lanes; program: its coefficients of program ids. */
static ir_linear standing(ir_type t, ir_coef program)
{
    return (ir_linear){.ok = true, .exact = is_wide(t), .program = {program, program, program}};
}

/* The coefficients of a value from those of its operands. The result of an instruction without a rule is
 * unknown, unless it is the same for all lanes: then its lane coefficients are 0. */
static ir_linear worked_out(ir_linears *l, uint32_t v)
{
    const eas_ir *ir = l->ir;
    const ir_insn *in = ir_def(ir, v);
    const ir_type t = ir_typeof(ir, v);
    const bool same = l->uniform ? l->uniform[v] : ir_lanes(t) == 1;
    if (t.kind != IR_VAL)
        return UNKNOWN;
    ir_linear r = same ? standing(t, ANY) : UNKNOWN;
    if (!in)
        return standing(t, ZERO);
    if (!dtype_is_int((eas_dtype)t.dtype))
        return r;
    const uint32_t *a = ir_args(ir, in);
    switch (in->op) {
    case IR_CONST:
    case IR_NUM_PROGRAMS: return standing(t, ZERO);
    case IR_PROGRAM_ID:
        r = standing(t, ZERO);
        r.program[in->imm] = coef(1, 0);
        return r;
    case IR_ARANGE:
        r = standing(t, ZERO);
        r.lane[0] = coef(t.dim[0] != 1, 0);
        return r;
    case IR_BROADCAST: r = spread(ir_linear_of(l, a[0]), ir_typeof(ir, a[0]), t); break;
    case IR_RESHAPE: r = reshaped(ir_linear_of(l, a[0]), ir_typeof(ir, a[0]), t); break;
    case IR_ADD:
    case IR_SUB: r = added(ir_linear_of(l, a[0]), ir_linear_of(l, a[1]), in->op == IR_ADD ? 1 : -1); break;
    case IR_MUL: r = multiplied(ir, ir_linear_of(l, a[0]), ir_linear_of(l, a[1]), a); break;
    default: return r;
    }
    if (same && !r.ok)
        return standing(t, ANY);
    r.exact = r.exact && is_wide(t);
    return r;
}

ir_linears *ir_linears_new(const eas_ir *ir, const bool *uniform, arena *mem)
{
    ir_linears *l = arena_alloc(mem, sizeof *l);
    if (!l)
        return NULL;
    *l = (ir_linears){.ir = ir,
                      .uniform = uniform,
                      .mem = mem,
                      .of = arena_alloc(mem, ((size_t)ir->nvals + 1) * sizeof *l->of)};
    return l->of ? l : NULL;
}

const ir_linear *ir_linear_of(ir_linears *l, uint32_t v)
{
    if (!l->of[v]) {
        const ir_linear r = worked_out(l, v);
        if (!(l->of[v] = arena_alloc(l->mem, sizeof r)))
            return &UNKNOWN;
        *l->of[v] = r;
    }
    return l->of[v];
}

/* ---- properties that follow from the coefficients ---- */

/* The one axis that has more than one lane; -1 if there are several, or none. */
static int only_axis(ir_type t)
{
    int axis = -1;
    for (int d = 0; d < t.rank; d++) {
        if (t.dim[d] != 1 && axis >= 0)
            return -1;
        axis = t.dim[d] != 1 ? d : axis;
    }
    return axis;
}

bool ir_lane_step(ir_linears *l, uint32_t v, int64_t *step)
{
    const ir_linear *x = ir_linear_of(l, v);
    const int axis = only_axis(ir_typeof(l->ir, v));
    if (!x->ok || axis < 0 || !ir_coef_number(x->lane[axis]))
        return false;
    *step = x->lane[axis].k;
    return true;
}

/* ---- multiples ---- */

enum { DEPTH = 16 };
static const uint64_t MOST = (uint64_t)1 << 62;

uint64_t ir_low_bit(uint64_t x) { return x ? x & (0 - x) : MOST; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
uint64_t ir_multiple_product(uint64_t a, uint64_t b) { return a > MOST / b ? MOST : a * b; }

static uint64_t multiple(const eas_ir *ir, uint32_t v, int depth)
{
    int64_t c;
    if (ir_const_of(ir, v, &c))
        return ir_low_bit((uint64_t)c);
    const ir_insn *in = ir_def(ir, v);
    if (!in || depth > DEPTH || !dtype_is_int((eas_dtype)ir_typeof(ir, v).dtype))
        return 1;
    const uint32_t *a = ir_args(ir, in);
    switch (in->op) {
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_NEG:
    case IR_CAST: return multiple(ir, a[0], depth + 1); /* of a cast from a float: 1 */
    case IR_ADD:
    case IR_SUB:
    case IR_OR: return least(multiple(ir, a[0], depth + 1), multiple(ir, a[1], depth + 1));
    case IR_MUL: return ir_multiple_product(multiple(ir, a[0], depth + 1), multiple(ir, a[1], depth + 1));
    case IR_SHL:
        return ir_const_of(ir, a[1], &c) && c >= 0 && c < 32
                 ? ir_multiple_product(multiple(ir, a[0], depth + 1), (uint64_t)1 << c)
                 : 1;
    case IR_LOOP:
        return v == in->res ? least(multiple(ir, a[0], depth + 1), multiple(ir, a[2], depth + 1)) : 1;
    default: return 1;
    }
}

uint64_t ir_multiple(const eas_ir *ir, uint32_t v) { return multiple(ir, v, 0); }

void ir_split_constant(const eas_ir *ir, uint32_t v, uint32_t *root, int64_t *add)
{
    int64_t c;
    *add = 0;
    for (;;) {
        const ir_insn *d = ir_def(ir, v);
        if (ir_const_of(ir, v, &c)) {
            *root = 0;
            *add += c;
            return;
        }
        *root = v;
        if (!d)
            return;
        const uint32_t *a = ir_args(ir, d);
        if (d->op == IR_BROADCAST && ir_typeof(ir, a[0]).rank == 0) {
            v = a[0];
            continue;
        }
        if (d->op != IR_ADD)
            return;
        if (ir_const_of(ir, a[1], &c))
            v = a[0];
        else if (ir_const_of(ir, a[0], &c))
            v = a[1];
        else
            return;
        *add += c;
    }
}

/* ---- steps ---- */

static const ir_step NO_STEP = {.kind = STEP_ZERO};

static const ir_step *step_node(arena *mem, ir_step s)
{
    ir_step *n = arena_alloc(mem, sizeof *n);
    if (n)
        *n = s;
    return n;
}

static const ir_step *step_times(const eas_ir *ir, const ir_step *x, uint32_t factor, arena *mem)
{
    const uint32_t scalar = scalar_of(ir, factor);
    return scalar ? step_node(mem, (ir_step){.kind = STEP_TIMES, .v = scalar, .x = x}) : NULL;
}

/* The step of an instruction's result from those of its operands. */
static const ir_step *step_insn(const eas_ir *ir, const ir_insn *in, const ir_step *const *x, arena *mem)
{
    const uint32_t *a = ir_args(ir, in);
    bool zero[3] = {true, true, true}, all = true;
    for (int k = 0; k < in->nargs; k++) {
        zero[k] = x[k]->kind == STEP_ZERO;
        all = all && zero[k];
    }
    if (all)
        return &NO_STEP;
    switch (in->op) {
    case IR_BROADCAST:
    case IR_RESHAPE: return x[0];
    case IR_CAST:
        return dtype_is_int((eas_dtype)ir_typeof(ir, a[0]).dtype)
                 ? step_node(mem, (ir_step){.kind = STEP_CAST, .v = in->res, .x = x[0]})
                 : NULL;
    case IR_ADD:
        return zero[0] ? x[1]
             : zero[1] ? x[0]
                       : step_node(mem, (ir_step){.kind = STEP_SUM, .x = x[0], .y = x[1]});
    case IR_SUB: return zero[1] ? x[0] : NULL;
    case IR_MUL:
        return zero[1] ? step_times(ir, x[0], a[1], mem) : zero[0] ? step_times(ir, x[1], a[0], mem) : NULL;
    default: return NULL;
    }
}

static const ir_step *step_at(const eas_ir *ir, uint32_t v, uint32_t iv, arena *mem, int depth)
{
    const ir_insn *in = ir_def(ir, v);
    const ir_step *x[3] = {0};
    if (!in || in->op == IR_CONST || in->op == IR_ARANGE || in->op == IR_NUM_PROGRAMS)
        return &NO_STEP;
    if (in->op == IR_PROGRAM_ID)
        return iv || in->imm ? &NO_STEP : step_node(mem, (ir_step){.kind = STEP_ONE, .v = v});
    if (iv && v == iv)
        return step_node(mem, (ir_step){.kind = STEP_VALUE, .v = ir_args(ir, in)[2]});
    if (iv && in < ir_def(ir, iv) && ir_lanes(ir_typeof(ir, v)) == 1)
        return &NO_STEP; /* from outside of the loop */
    if (depth > DEPTH || !(ir_rows[in->op].flags & IR_PURE) || in->nargs > 3)
        return NULL;
    for (int k = 0; k < in->nargs; k++)
        if (!(x[k] = step_at(ir, ir_args(ir, in)[k], iv, mem, depth + 1)))
            return NULL;
    return step_insn(ir, in, x, mem);
}

const ir_step *ir_step_of(const eas_ir *ir, uint32_t v, uint32_t iv, arena *mem)
{
    return step_at(ir, v, iv, mem, 0);
}

/* ---- runs of lanes ---- */

static const ir_run NO_RUN;
static const int64_t MOST_STRIDE = (int64_t)1 << 30; /* the largest stride of an operand that is multiplied */

ir_run ir_run_still(uint64_t mult)
{
    return (ir_run){.ok = true, .exact = true, .whole = true, .mult = mult};
}

ir_run ir_run_sum(uint16_t op, const ir_run *x, const ir_run *y)
{
    if (!x->ok || !y->ok)
        return NO_RUN;
    return (ir_run){.ok = true,
                    .exact = x->exact && y->exact,
                    .whole = x->whole && y->whole,
                    .stride = op == IR_ADD ? x->stride + y->stride : x->stride - y->stride,
                    .mult = least(x->mult, y->mult)};
}

ir_run ir_run_scaled(const ir_run *x, int64_t c)
{
    ir_run r = *x;
    if (!x->ok || x->stride > MOST_STRIDE || x->stride < -MOST_STRIDE ||
        __builtin_mul_overflow(x->stride, c, &r.stride))
        return NO_RUN;
    r.mult = ir_multiple_product(x->mult, ir_low_bit((uint64_t)c));
    return r;
}

ir_run ir_run_product(const ir_run *x, const ir_run *y)
{
    if (!x->ok || !y->ok || x->stride || y->stride)
        return NO_RUN;
    return (ir_run){.ok = true,
                    .exact = x->exact && y->exact,
                    .whole = x->whole && y->whole,
                    .mult = ir_multiple_product(x->mult, y->mult)};
}

/* A run of n lanes that begins at a multiple of n lies within one multiple of k, if n divides k. */
ir_run ir_run_split(bool quotient, const ir_run *x, int64_t k, int n)
{
    if (!x->ok || !x->exact || k <= 0)
        return NO_RUN;
    if (x->stride != 0 && !(x->stride == 1 && x->mult >= (uint64_t)n && k % n == 0))
        return NO_RUN;
    return (ir_run){.ok = true,
                    .exact = true,
                    .whole = x->whole && x->stride == 0,
                    .stride = quotient ? 0 : x->stride,
                    .mult = quotient ? 1 : least(x->mult, ir_low_bit((uint64_t)k))};
}

/* ---- accesses ---- */

int ir_accesses(const eas_ir *ir, const ir_insn *in, ir_access out[2])
{
    const uint32_t *a = ir_args(ir, in);
    switch (in->op) {
    case IR_LOAD: out[0] = (ir_access){a[0], a[1], false}; return 1;
    case IR_STORE: out[0] = (ir_access){a[0], a[1], true}; return 1;
    case IR_DOT:
    case IR_MMA:
        out[0] = (ir_access){a[0], 0, false};
        out[1] = (ir_access){a[3], 0, false};
        return 2;
    case IR_MMA_STORE: out[0] = (ir_access){a[0], 0, true}; return 1;
    default:
        if (!ir_is_atomic(in))
            return 0;
        out[0] = (ir_access){a[0], a[1], true};
        return 1;
    }
}
