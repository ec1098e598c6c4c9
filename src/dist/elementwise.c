/* elementwise.c: a proof that a kernel is element-wise, and the same kernel over a part of its elements.
 *
 * A kernel is element-wise if what it stores for an element depends on that element of its arguments alone.
 * Each value of the IR is given a form:
 *
 *   SAME    the same for every lane and program: made of constants and scalar parameters; its value where it
 *           is known
 *   DATA    depends on the lane through loads at the lane's own place only
 *   PLACE   row * length + pid * program_id(0) + lane * lane number + c, with integers pid, lane and c; `row`
 *           is program_id(axis), and may be absent
 *   ROW     program_id(axis) itself
 *   BOUND   a truth value that holds for every place inside a row and for none outside, joined by `and` with
 *           anything but OTHER
 *   OTHER   anything else: it depends on where a lane is
 *
 * The own place of a lane is pid = block, lane = 1, c = 0: programs take blocks of a row, one after the
 * other. The proof holds if every store is at the own place (with the row, where there are rows), and
 * stores nothing that is PLACE, ROW or OTHER; every load is at the own place, or at a place that does not
 * depend on where the lane is, of an argument that is not written; and no lane sees another one
 * (reductions, shuffles, threadgroup memory, atomics). A value that two branches or trips of a loop make is
 * DATA if none of them depends on the place.
 *
 * For elements inside a row BOUND holds, whatever the length of the row is; so the kernel over a part of
 * each row is the kernel with that part's length in every BOUND and in every product with `row`. That
 * length is one more parameter, the last one. All else, such as N in a mean, stays as it was given.
 */
#include "elementwise.h"

typedef enum form { SAME, DATA, PLACE, ROW, BOUND, OTHER } form;
typedef struct fact {
    uint8_t form, row, known;
    int64_t pid, lane, c; /* PLACE; SAME with a known value: c is it */
} fact;
typedef struct proof {
    const eas_ir *ir;
    int64_t threads; /* of a group; 0: programs are of blocks */
    elementwise *e;
    fact *of;       /* per value */
    uint8_t *again; /* per instruction: compares with, or multiplies by, the length of a row */
    VEC(uint8_t) open; /* per open region: does it run for places inside a row alone? */
} proof;

static bool moves_lanes(uint16_t op)
{
    switch (op) {
    case IR_SLICE:
    case IR_PAD:
    case IR_TRANS:
    case IR_SIMD_SHUFFLE: return true;
    default: return ir_join_of(op) != 0 || op == IR_MATMUL;
    }
}

static const fact other = {.form = OTHER}, data = {.form = DATA};
static fact same(int64_t v) { return (fact){.form = SAME, .known = 1, .c = v}; }

static bool depends_on_place(const fact *f) { return f->form == PLACE || f->form == ROW || f->form == OTHER; }

/* The lane's own place: blocks of the row, one after the other. */
static bool own_place(const proof *p, uint32_t v, bool with_row)
{
    const fact *f = &p->of[v];
    ir_type t = ir_typeof(p->ir, v);
    int64_t lanes = p->threads ? p->threads : t.rank ? t.dim[0] : 1;
    return f->form == PLACE && t.rank <= 1 && f->pid == lanes && f->c == 0 &&
           (f->lane == 1 || (lanes == 1 && !f->lane)) && f->row == with_row &&
           (p->e->block == 0 || p->e->block == lanes);
}

/* ---- forms of results ---- */

static fact sum_of(const fact *a, const fact *b, int64_t sign)
{
    if ((a->form != PLACE && !(a->form == SAME && a->known)) ||
        (b->form != PLACE && !(b->form == SAME && b->known)))
        return other;
    if (b->row && (a->row || sign < 0))
        return other;
    return (fact){.form = PLACE,
                  .row = a->row | b->row,
                  .pid = a->pid + sign * b->pid,
                  .lane = a->lane + sign * b->lane,
                  .c = (a->form == SAME || a->form == PLACE ? a->c : 0) + sign * b->c};
}

static fact product_of(proof *p, uint32_t i, const fact *a, const fact *b)
{
    if (b->form != SAME)
        return a->form == SAME ? product_of(p, i, b, a) : other;
    if (!b->known)
        return other;
    if (a->form == ROW && b->c == p->e->length) {
        p->again[i] = 1;
        return (fact){.form = PLACE, .row = 1};
    }
    return a->form == PLACE && !a->row
             ? (fact){.form = PLACE, .pid = a->pid * b->c, .lane = a->lane * b->c, .c = a->c * b->c}
             : other;
}

/* A number whose dtype holds it, whatever it is computed from. */
static fact number(int64_t v, int bits)
{
    return bits < 32 || v < INT32_MIN || v > INT32_MAX ? (fact){.form = SAME} : same(v);
}

static fact arithmetic(const fact *a, const fact *b, uint16_t op, int bits)
{
    if (!a->known || !b->known)
        return (fact){.form = SAME};
    if (op == IR_MUL && a->c && (a->c * b->c) / a->c != b->c)
        return (fact){.form = SAME};
    return number(op == IR_ADD ? a->c + b->c : op == IR_SUB ? a->c - b->c : a->c * b->c, bits);
}

/* place < length, or row < rows */
static fact comparison(proof *p, uint32_t i, uint32_t x, uint32_t y)
{
    const fact *a = &p->of[x], *b = &p->of[y];
    if (a->form == ROW && b->form == SAME && b->known && b->c >= p->e->rows)
        return same(1);
    if (b->form != SAME || !b->known || b->c != p->e->length || !own_place(p, x, false))
        return other;
    p->again[i] = 1;
    return (fact){.form = BOUND};
}

static fact changed_type(const proof *p, const ir_insn *in, const fact *a)
{
    ir_type to = ir_typeof(p->ir, in->res), from = ir_typeof(p->ir, ir_args(p->ir, in)[0]);
    if (a->form == SAME && a->known && in->op == IR_CAST)
        return dtype_is_float((eas_dtype)to.dtype) ? (fact){.form = SAME}
                                                   : number(a->c, dtype_bits((eas_dtype)to.dtype));
    if (a->form == SAME && in->op == IR_BITCAST)
        return (fact){.form = SAME};
    if (a->form == SAME || a->form == DATA || a->form == OTHER)
        return *a;
    if (in->op == IR_BROADCAST || in->op == IR_RESHAPE)
        return from.rank == 0 || ir_type_eq(from, to) ? *a : other;
    if (a->form == BOUND)
        return to.dtype == EAS_BOOL ? *a : data;
    return in->op == IR_CAST && !dtype_is_float((eas_dtype)to.dtype) && dtype_bits((eas_dtype)to.dtype) >= 32
             ? *a
             : other;
}

static fact pure(proof *p, uint32_t i, const ir_insn *in)
{
    const uint32_t *x = ir_args(p->ir, in);
    bool all_same = true, any_place = false;
    for (int k = 0; k < in->nargs; k++) {
        all_same &= p->of[x[k]].form == SAME;
        any_place |= depends_on_place(&p->of[x[k]]);
    }
    const fact *a = in->nargs > 0 ? &p->of[x[0]] : NULL, *b = in->nargs > 1 ? &p->of[x[1]] : NULL;
    bool integers = in->nargs == 2 && !dtype_is_float((eas_dtype)ir_typeof(p->ir, x[0]).dtype);
    if (moves_lanes(in->op))
        return all_same ? (fact){.form = SAME} : other;
    switch (in->op) {
    case IR_CAST:
    case IR_BITCAST:
    case IR_BROADCAST:
    case IR_RESHAPE: return changed_type(p, in, a);
    case IR_ADD:
    case IR_SUB:
    case IR_MUL:
        if (all_same && integers)
            return arithmetic(a, b, in->op, dtype_bits((eas_dtype)ir_typeof(p->ir, x[0]).dtype));
        if (any_place && integers)
            return in->op == IR_MUL ? product_of(p, i, a, b) : sum_of(a, b, in->op == IR_SUB ? -1 : 1);
        break;
    case IR_SHL:
        if (any_place && b->form == SAME && b->known && b->c >= 0 && b->c < 31)
            return product_of(p, i, a, &(fact){.form = SAME, .known = 1, .c = (int64_t)1 << b->c});
        break;
    case IR_LT: return any_place ? comparison(p, i, x[0], x[1]) : all_same ? (fact){.form = SAME} : data;
    case IR_GT: return any_place ? comparison(p, i, x[1], x[0]) : all_same ? (fact){.form = SAME} : data;
    case IR_AND:
        if (!any_place && (a->form == BOUND || b->form == BOUND))
            return (fact){.form = BOUND};
        break;
    default: break;
    }
    return any_place ? other : all_same ? (fact){.form = SAME} : data;
}

static fact identity(const proof *p, const ir_insn *in)
{
    switch (in->op) {
    case IR_PROGRAM_ID:
        return in->imm == 0          ? (fact){.form = PLACE, .pid = 1}
             : in->imm == p->e->axis ? (fact){.form = ROW}
                                     : other;
    case IR_GLOBAL_ID: return (fact){.form = PLACE, .pid = in->imm, .lane = 1};
    case IR_THREAD_ID: return (fact){.form = PLACE, .lane = 1};
    case IR_ARANGE: return (fact){.form = PLACE, .lane = 1, .c = in->imm};
    default: return other;
    }
}

static fact constant(const proof *p, const ir_insn *in)
{
    ir_type t = ir_typeof(p->ir, in->res);
    return dtype_is_float((eas_dtype)t.dtype) ? (fact){.form = SAME} : same(in->imm);
}

/* ---- memory ---- */

static const char *const at_other_places = "the kernel reads or writes other elements than the lane's own";

static bool inside_a_row(const proof *p, uint32_t mask)
{
    if (mask && p->of[mask].form == BOUND)
        return true;
    for (uint32_t i = 0; i < p->open.len; i++)
        if (p->open.at[i])
            return true;
    return false;
}

static bool take_as(proof *p, uint32_t buf, uint8_t how)
{
    uint8_t *had = &p->e->how[buf - 1];
    if (*had != ELEMENTS_UNUSED && *had != how)
        return false;
    *had = how;
    return true;
}

static const char *access_at(proof *p, const ir_insn *in, fact *result)
{
    const uint32_t *x = ir_args(p->ir, in), mask = ir_mask(p->ir, in);
    if (x[0] > (uint32_t)p->ir->nparams)
        return "its lanes share threadgroup memory";
    if (mask && depends_on_place(&p->of[mask]))
        return "what it does depends on where an element is";
    for (int k = 2; k < in->nargs; k++)
        if (depends_on_place(&p->of[x[k]]))
            return "what it stores depends on where an element is";
    bool all = own_place(p, x[1], p->e->axis != 0), row = p->e->axis && own_place(p, x[1], false);
    if (all || row) {
        p->e->exact |= !inside_a_row(p, mask);
        p->e->block = p->threads                  ? p->threads
                    : ir_typeof(p->ir, x[1]).rank ? ir_typeof(p->ir, x[1]).dim[0]
                                                  : 1;
        *result = data;
        return take_as(p, x[0], all ? ELEMENTS_ALL : ELEMENTS_ROW) && (all || in->op == IR_LOAD)
                 ? NULL
                 : at_other_places;
    }
    if (in->op != IR_LOAD || depends_on_place(&p->of[x[1]]))
        return at_other_places;
    *result = p->of[x[1]].form == SAME && (!mask || p->of[mask].form == SAME) ? (fact){.form = SAME} : data;
    return take_as(p, x[0], ELEMENTS_WHOLE) ? NULL : at_other_places;
}

/* ---- regions ---- */

static const char *const by_place = "its branches or loops depend on where an element is";

static const char *region(proof *p, const ir_insn *in)
{
    const uint32_t *x = ir_args(p->ir, in);
    bool place = false, ok = true;
    for (int k = 0; k < in->nargs; k++)
        place |= depends_on_place(&p->of[x[k]]);
    for (int k = 0; k < in->nres; k++)
        p->of[in->res + (uint32_t)k] = data;
    if (place)
        return by_place;
    switch (in->op) {
    case IR_IF: ok = vec_push(&p->open, (uint8_t)(p->of[x[0]].form == BOUND)); break;
    case IR_LOOP:
    case IR_WHILE: ok = vec_push(&p->open, 0); break;
    case IR_ELSE: p->open.at[p->open.len - 1] = 0; break;
    case IR_ENDIF:
    case IR_ENDLOOP:
    case IR_ENDWHILE: p->open.len--; break;
    default: break;
    }
    return ok ? NULL : "there is no memory for the proof";
}

static const char *step(proof *p, uint32_t i)
{
    const ir_insn *in = &p->ir->insns[i];
    fact r = other;
    const char *why = NULL;
    switch (in->op) {
    case IR_NOP: return NULL;
    case IR_LOAD:
    case IR_STORE: why = access_at(p, in, &r); break;
    case IR_ASSERT:
        return depends_on_place(&p->of[ir_args(p->ir, in)[0]]) ? "what it does depends on where an element is"
                                                               : NULL;
    case IR_CONST: r = constant(p, in); break;
    case IR_PROGRAM_ID:
    case IR_GLOBAL_ID:
    case IR_THREAD_ID:
    case IR_ARANGE:
    case IR_NUM_PROGRAMS:
    case IR_LOCAL_ID:
    case IR_LANE_ID:
    case IR_SG_ID: r = identity(p, in); break;
    default:
        if (ir_rows[in->op].flags & IR_STRUCT)
            return region(p, in);
        if (!(ir_rows[in->op].flags & IR_PURE))
            return "its lanes see each other, or it has effects of another kind";
        r = pure(p, i, in);
    }
    if (in->nres)
        p->of[in->res] = r;
    return why;
}

/* ---- the proof ---- */

/* The length of a row is what the number of the row is multiplied with. */
static bool find_rows(proof *p, const elementwise_numbers *given)
{
    const eas_ir *ir = p->ir;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (in->op == IR_PROGRAM_ID && in->imm > 0) {
            if (p->e->axis && p->e->axis != in->imm)
                return false;
            p->e->axis = (int)in->imm;
        }
    }
    p->e->length = given->count;
    p->e->rows = 1;
    if (!p->e->axis)
        return given->grid[1] == 1 && given->grid[2] == 1;
    p->e->rows = given->grid[p->e->axis];
    p->e->length = p->e->rows > 0 ? given->count / p->e->rows : 0;
    return p->e->rows > 0 && p->e->length * p->e->rows == given->count && given->grid[3 - p->e->axis] == 1;
}

static const char *prove(proof *p, const elementwise_numbers *given)
{
    const char *why = NULL;
    if (!find_rows(p, given))
        return "its programs are not blocks of rows";
    for (int i = 0; i < p->ir->nparams; i++) {
        bool number = given->is_number[i] && ir_typeof(p->ir, (uint32_t)i + 1).kind == IR_VAL;
        p->of[i + 1] = number ? same(given->number[i]) : (fact){.form = SAME};
    }
    for (uint32_t i = 0; i < p->ir->ninsns && !why; i++)
        why = step(p, i);
    if (!why && (!p->e->block || given->grid[0] * p->e->block < p->e->length))
        why = "its programs do not cover all elements";
    for (int i = 0; i < p->ir->nparams && !why; i++)
        if (p->ir->params[i].write && p->e->how[i] != ELEMENTS_ALL)
            why = at_other_places;
    return why;
}

/* ---- the kernel over parts of rows ---- */

static void replace(eas_builder *b, const eas_ir *ir, const ir_insn *in, uint32_t *map, uint32_t length)
{
    const uint32_t *x = ir_args(ir, in);
    bool second = in->op == IR_GT; /* the place is its second operand; of a product the row may be either */
    if (in->op == IR_MUL) {
        const ir_insn *d = ir_def(ir, x[1]);
        while (d && (d->op == IR_CAST || d->op == IR_BROADCAST))
            d = ir_def(ir, ir_args(ir, d)[0]);
        second = d && d->op == IR_PROGRAM_ID;
    }
    uint32_t place = map[x[second ? 1 : 0]];
    ir_type t = b->ir->vals[place].type;
    uint32_t n = irb_to(b, IR_BROADCAST, t, irb_to(b, IR_CAST, ir_scalar((eas_dtype)t.dtype), length));
    map[in->res] = irb_op(b, in->op == IR_MUL ? IR_MUL : IR_LT, place, n, 0);
}

static eas_status rewrite(const proof *p, eas_kernel **out)
{
    const eas_ir *ir = p->ir;
    ir_rewrite w = {0};
    eas_ir *made = NULL;
    eas_status st = ir_rewrite_begin(&w, ir);
    uint32_t length = st ? 0 : irb_param(w.b, "part_length", ir_scalar(EAS_I64), false);
    for (uint32_t i = 0; i < ir->ninsns && !st; i++)
        if (p->again[i])
            replace(w.b, ir, &ir->insns[i], w.map, length);
        else
            ir_rewrite_copy(&w, i);
    st = ir_rewrite_end(&w, st, &made);
    if (!st)
        st = eas_kernel_new(made, out);
    eas_ir_release(made);
    return st;
}

eas_status elementwise_prove(eas_kernel *k, const elementwise_numbers *given, bool kernel, elementwise *out)
{
    const eas_ir *ir = eas_kernel_ir(k);
    *out = (elementwise){.how = calloc((size_t)ir->nparams + 1, 1)};
    const eas_ir_info info = ir_analyse(ir);
    proof p = {.ir = ir,
               .threads = info.mode == EAS_MODE_THREAD ? info.block : 0,
               .e = out,
               .of = calloc(ir->nvals + 1, sizeof *p.of),
               .again = calloc(ir->ninsns + 1, 1)};
    eas_status st = p.of && p.again && out->how ? EAS_OK : base_fail_oom(ir->nvals);
    if (!st)
        out->why = prove(&p, given);
    if (!st && !out->why && kernel)
        st = rewrite(&p, &out->kernel);
    free(p.of);
    free(p.again);
    vec_free(&p.open);
    if (st)
        elementwise_free(out);
    return st;
}

void elementwise_free(elementwise *e)
{
    free(e->how);
    eas_kernel_release(e->kernel);
    *e = (elementwise){0};
}
