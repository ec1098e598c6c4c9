/* grad_loop.c: loops and branches in reverse mode.
 *
 * The adjoint of a loop is a loop that goes the other way. In each turn it computes the body again, forwards,
 * and goes through it backwards; for that it needs the values with which the body began. They are kept on a
 * tape: a buffer with room for every turn of every program, written by the forward loop just before. A
 * value that only counts is computed instead, and tapes that nothing reads are left out (grad.c builds the
 * kernel again without them). Inner loops are taped while the outer one computes its body again, so a tape
 * has one loop's turns, not the product of several.
 *
 * Threadgroup arrays that the body reads, and that change afterwards, are kept on a tape as well and put back
 * before the body is computed again. The adjoint of a branch is a branch on the same condition.
 */
#include "grad.h"

#include <math.h>

static int head_of(const ir_insn *in) { return in->op == IR_LOOP ? 3 : 0; }
static uint32_t body_value(const ir_insn *in, int k)
{
    return in->res + (uint32_t)k + (in->op == IR_LOOP ? 1 : 0);
}

static void add_id(gradder *g, grad_ids *s, uint32_t v)
{
    if (!vec_push(s, v))
        g->w.mem.oom = true;
}

static bool has_id(const grad_ids *s, uint32_t v)
{
    for (uint32_t i = 0; i < s->len; i++)
        if (s->at[i] == v)
            return true;
    return false;
}

static bool defined_before(const gradder *g, uint32_t v, uint32_t insn)
{
    return g->w.from->vals[v].def == UINT32_MAX || g->w.from->vals[v].def < insn;
}

void grad_outside(gradder *g, uint32_t first, uint32_t last, grad_ids *out)
{
    for (uint32_t i = first; i <= last; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        for (int k = 0; k < in->nargs; k++) {
            const uint32_t v = gargs(g, in)[k];
            if (gfloat(g, v) && gactive(g, v) && defined_before(g, v, first - 1) && !has_id(out, v))
                add_id(g, out, v);
        }
    }
}

static void clear_inside(gradder *g, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i <= last; i++)
        for (int k = 0; k < g->w.from->insns[i].nres; k++)
            g->adj[g->w.from->insns[i].res + (uint32_t)k] = 0;
}

static uint32_t adj_or_zero(gradder *g, uint32_t v)
{
    return g->adj[v] ? g->adj[v] : g_num(g, grad_type(ir_typeof(g->w.from, v)), 0);
}

static uint32_t structure(gradder *g, uint16_t op, const grad_ids *a, int nres)
{
    ir_type *t = arena_alloc(&g->w.mem, ((size_t)nres + 1) * sizeof *t);
    return t && !g->w.mem.oom ? irb_insn(g->w.b, op, a->at, (int)a->len, 0, nres, t) : 0;
}

/* ---- tapes ---- */

static grad_tape *tape_of(gradder *g, uint32_t loop, int carried)
{
    for (uint32_t i = 0; i < g->tapes.len; i++)
        if (g->tapes.at[i].loop == loop && g->tapes.at[i].carried == carried)
            return g->tapes.at[i].dropped ? NULL : &g->tapes.at[i];
    return NULL;
}

static uint32_t most_trips(const gradder *g, uint32_t loop)
{
    for (int i = 0; i < g->nloops; i++)
        if (g->loops[i] == loop)
            return g->trips[i];
    return 0;
}

/* The same number for every turn that the tape has room for. It says so in a way that a proof of bounds
 * understands: how a counter and the number of turns hang together, intervals cannot tell. */
static uint32_t within(gradder *g, uint32_t loop, uint32_t turn)
{
    const uint32_t last = g_op(g, IR_SUB, most_trips(g, loop), g_int(g, EAS_I64, 1));
    return g_op(g, IR_MIN, g_op(g, IR_MAX, turn, g_int(g, EAS_I64, 0)), last);
}

/* The number of each lane, row by row. As a sum over dims it is known to follow the lanes in memory. */
static uint32_t lane_numbers(gradder *g, ir_type shape)
{
    const ir_type full = ir_with_dtype(shape, EAS_I64);
    uint32_t sum = 0;
    int64_t stride = 1;
    for (int d = shape.rank - 1; d >= 0 && !g->w.b->status; stride *= shape.dim[d--]) {
        if (shape.dim[d] == 1)
            continue;
        ir_type row = ir_scalar(EAS_I64), along = row;
        row.rank = 1;
        row.dim[0] = shape.dim[d];
        along.rank = shape.rank;
        for (int k = 0; k < shape.rank; k++)
            along.dim[k] = k == d ? shape.dim[d] : 1;
        uint32_t x = irb_to(g->w.b, IR_RESHAPE, along, irb_typed(g->w.b, IR_ARANGE, row, 0));
        if (stride > 1)
            x = g_op(g, IR_MUL, x, irb_const(g->w.b, along, stride));
        x = irb_to(g->w.b, IR_BROADCAST, full, x);
        sum = sum ? g_op(g, IR_ADD, sum, x) : x;
    }
    return sum ? sum : irb_const(g->w.b, full, 0);
}

/* The place on the tape of the values of one turn. */
static uint32_t tape_place(gradder *g, uint32_t loop, ir_type shape, uint32_t turn)
{
    const int64_t n = ir_lanes(shape);
    uint32_t at = g->program;
    if (turn)
        at = g_op(g, IR_ADD, g_op(g, IR_MUL, at, most_trips(g, loop)), within(g, loop, turn));
    if (n > 1)
        at = g_op(g, IR_MUL, at, g_int(g, EAS_I64, n));
    if (!shape.rank || g->w.b->status)
        return at;
    const uint32_t first = irb_to(g->w.b, IR_BROADCAST, ir_with_dtype(shape, EAS_I64), at);
    return g_op(g, IR_ADD, first, lane_numbers(g, shape));
}

static ir_type row_of(int64_t n, eas_dtype dt)
{
    ir_type t = ir_scalar(dt);
    t.rank = 1;
    t.dim[0] = (int32_t)n;
    return t;
}

static uint32_t local_place(gradder *g, const grad_local *l)
{
    ir_type t = row_of(l->size, EAS_I64);
    return g->w.b->status
             ? 0
             : g_op(g, IR_ADD, irb_to(g->w.b, IR_BROADCAST, t, l->start), irb_typed(g->w.b, IR_ARANGE, t, 0));
}

/* Does the caller give the length of the tape? Otherwise it follows from the bounds of the loop. */
static bool may_overrun(const gradder *g, uint32_t loop)
{
    return most_trips(g, loop) && (g->w.from->insns[loop].op == IR_WHILE || g->opt->max_trips);
}

/* Turns for which the tape has no room are not written: the adjoint loop then makes every gradient NaN. */
static uint32_t fits(gradder *g, uint32_t loop, ir_type shape, uint32_t turn)
{
    if (!may_overrun(g, loop) || !turn || g->w.b->status)
        return 0;
    return irb_to(g->w.b, IR_BROADCAST, ir_with_dtype(shape, EAS_BOOL),
                  g_op(g, IR_LT, turn, most_trips(g, loop)));
}

static void keep_values(gradder *g, uint32_t i, uint32_t turn)
{
    const ir_insn *in = &g->w.from->insns[i];
    for (int k = 0; k < in->nargs - head_of(in); k++) {
        const grad_tape *tape = tape_of(g, i, k);
        const ir_type t = ir_typeof(g->w.from, body_value(in, k));
        if (tape)
            g_store(g, tape->param, tape_place(g, i, t, turn), g->w.map[body_value(in, k)],
                    fits(g, i, t, turn));
    }
}

static void keep_locals(gradder *g, uint32_t i, uint32_t turn)
{
    for (uint32_t n = 0; n < g->locals.len; n++) {
        const grad_tape *tape = tape_of(g, i, -1 - (int)n);
        const grad_local *l = &g->locals.at[n];
        const ir_type t = row_of(l->size, EAS_I64);
        if (tape)
            g_store(g, tape->param, tape_place(g, i, t, turn), g_load(g, l->data, local_place(g, l), 0),
                    fits(g, i, t, turn));
    }
}

static void put_back_locals(gradder *g, uint32_t i, uint32_t turn)
{
    for (uint32_t n = 0; n < g->locals.len; n++) {
        const grad_tape *tape = tape_of(g, i, -1 - (int)n);
        const grad_local *l = &g->locals.at[n];
        if (tape)
            g_store(g, l->data, local_place(g, l),
                    g_load(g, tape->param, tape_place(g, i, row_of(l->size, EAS_I64), turn), 0), 0);
    }
}

uint32_t grad_counts_by(const gradder *g, uint32_t i, int k)
{
    const ir_insn *in = &g->w.from->insns[i];
    const uint32_t next = gargs(g, &g->w.from->insns[g->at.end[i]])[k], body = body_value(in, k);
    const ir_insn *add = ir_def(g->w.from, next);
    if (!dtype_is_int((eas_dtype)ir_typeof(g->w.from, body).dtype))
        return 0;
    if (next == body)
        return body;
    if (!add || add->op != IR_ADD)
        return 0;
    for (int x = 0; x < 2; x++) {
        const uint32_t by = gargs(g, add)[1 - x];
        if (gargs(g, add)[x] == body &&
            (defined_before(g, by, i) || ir_const_of(g->w.from, by, &(int64_t){0})))
            return by;
    }
    return 0;
}

/* The value of a carried value that only counts, at a turn. */
static uint32_t counted(gradder *g, uint32_t i, int k, uint32_t turn)
{
    const ir_insn *in = &g->w.from->insns[i];
    const uint32_t by = grad_counts_by(g, i, k), init = g->w.map[gargs(g, in)[head_of(in) + k]];
    const ir_type t = ir_typeof(g->w.from, body_value(in, k));
    int64_t bits;
    if (by == body_value(in, k))
        return init;
    uint32_t step = ir_const_of(g->w.from, by, &bits) ? irb_const(g->w.b, t, bits) : g->w.map[by];
    uint32_t n = irb_to(g->w.b, IR_BROADCAST, t, g_cast(g, turn, (eas_dtype)t.dtype));
    return g_op(g, IR_ADD, init, g_op(g, IR_MUL, step, n));
}

/* The carried value at the beginning of a turn. If its tape was dropped, nothing needs the value. */
static uint32_t value_at(gradder *g, uint32_t i, int k, uint32_t turn)
{
    const ir_type t = ir_typeof(g->w.from, body_value(&g->w.from->insns[i], k));
    const grad_tape *tape = tape_of(g, i, k);
    if (grad_counts_by(g, i, k))
        return counted(g, i, k, turn);
    return tape ? g_load(g, tape->param, tape_place(g, i, t, turn), 0) : irb_const(g->w.b, t, 0);
}

/* ---- loops, forwards ---- */

/* A loop of the primal kernel in the forward sweep: the same loop with one more carried value that counts
 * its turns, by which the reverse sweep knows how often to go back, and where this turn's values lie on
 * the tapes. */
void grad_forward_loop(gradder *g, uint32_t i, bool taped)
{
    const ir_insn *in = &g->w.from->insns[i], *close = &g->w.from->insns[g->at.end[i]];
    grad_ids a = {0};
    g->w.b->file = in->file;
    g->w.b->line = in->line;
    for (int k = 0; k < in->nargs; k++)
        add_id(g, &a, g->w.map[gargs(g, in)[k]]);
    add_id(g, &a, g_int(g, EAS_I64, 0));
    uint32_t r = structure(g, in->op, &a, in->nres + 1), turn = r + in->nres;
    for (int k = 0; k < in->nres; k++)
        g->w.map[in->res + (uint32_t)k] = r + (uint32_t)k;
    if (taped) {
        keep_values(g, i, turn);
        keep_locals(g, i, turn);
    }
    if (in->op == IR_WHILE) {
        grad_forward(g, i + 1, g->at.mid[i], false);
        uint32_t cond = g->w.map[gargs(g, &g->w.from->insns[g->at.mid[i]])[0]];
        irb_insn(g->w.b, IR_DO, &cond, 1, 0, 0, NULL);
    }
    grad_forward(g, in->op == IR_WHILE ? g->at.mid[i] + 1 : i + 1, g->at.end[i], false);
    a.len = 0;
    for (int k = 0; k < close->nargs; k++)
        add_id(g, &a, g->w.map[gargs(g, close)[k]]);
    add_id(g, &a, g_op(g, IR_ADD, turn, g_int(g, EAS_I64, 1)));
    r = structure(g, close->op, &a, close->nres + 1);
    for (int k = 0; k < close->nres; k++)
        g->w.map[close->res + (uint32_t)k] = r + (uint32_t)k;
    g->went[i] = r + close->nres;
    vec_free(&a);
}

/* How often a counted loop goes round, computed without running it. */
static uint32_t trips_of(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i];
    if (in->op == IR_WHILE)
        return g->went[i];
    uint32_t v[3];
    for (int k = 0; k < 3; k++)
        v[k] = g_cast(g, g->w.map[gargs(g, in)[k]], EAS_I64);
    uint32_t zero = g_int(g, EAS_I64, 0), one = g_int(g, EAS_I64, 1), far = g_op(g, IR_SUB, v[1], v[0]);
    uint32_t up = g_op(g, IR_FLOORDIV, g_op(g, IR_ADD, far, g_op(g, IR_SUB, v[2], one)), v[2]);
    uint32_t down = g_op(g, IR_FLOORDIV, g_op(g, IR_ADD, far, g_op(g, IR_ADD, v[2], one)), v[2]);
    uint32_t n =
        g_where(g, g_op(g, IR_GT, v[2], zero), up, g_where(g, g_op(g, IR_LT, v[2], zero), down, zero));
    return g_op(g, IR_MAX, n, zero);
}

/* ---- loops, backwards ---- */

typedef struct back {
    grad_ids outer, carried; /* values from outside; numbers of carried values that have an adjoint */
    uint32_t first; /* of the results of the adjoint loop behind its counter */
} back;

static uint32_t poisoned(gradder *g, uint32_t i, uint32_t x, uint32_t trips)
{
    if (!may_overrun(g, i) || g->w.b->status)
        return x;
    ir_type t = gnew(g, x);
    uint32_t over = g_op(g, IR_GT, trips, most_trips(g, i));
    return g_where(g, irb_to(g->w.b, IR_BROADCAST, ir_with_dtype(t, EAS_BOOL), over), g_num(g, t, NAN), x);
}

static void open_back(gradder *g, uint32_t i, back *r, uint32_t went, uint32_t trips)
{
    const ir_insn *close = &g->w.from->insns[g->at.end[i]];
    grad_ids a = {0};
    add_id(g, &a, g_int(g, EAS_I64, 0));
    add_id(g, &a, trips);
    add_id(g, &a, g_int(g, EAS_I64, 1));
    for (uint32_t k = 0; k < r->carried.len; k++)
        add_id(g, &a, poisoned(g, i, adj_or_zero(g, close->res + r->carried.at[k]), went));
    for (uint32_t k = 0; k < r->outer.len; k++)
        add_id(g, &a, poisoned(g, i, adj_or_zero(g, r->outer.at[k]), went));
    r->first = structure(g, IR_LOOP, &a, (int)a.len - 2);
    vec_free(&a);
}

/* What the counter of the loop was in a turn. It lies between the bounds of the loop, and what divides both
 * start and step divides it; this, too, is said for proofs of bounds. */
static uint32_t counter_at(gradder *g, uint32_t i, uint32_t turn)
{
    const ir_insn *in = &g->w.from->insns[i];
    const uint32_t *a = gargs(g, in), lo = g->w.map[a[0]], hi = g->w.map[a[1]];
    const eas_dtype dt = (eas_dtype)ir_typeof(g->w.from, in->res).dtype;
    const uint32_t x = g_op(g, IR_ADD, lo, g_op(g, IR_MUL, g_cast(g, turn, dt), g->w.map[a[2]]));
    const uint32_t unit = g_int(g, dt, ir_loop_unit(g->w.from, g->range, i)), one = g_int(g, dt, 1);
    int64_t step;
    if (!ir_const_of(g->w.from, a[2], &step) || !step)
        return x;
    if (step > 0) {
        const uint32_t last = g_op(g, IR_FLOORDIV, g_op(g, IR_SUB, hi, one), unit);
        return g_op(g, IR_MAX, g_op(g, IR_MIN, x, g_op(g, IR_MUL, last, unit)), lo);
    }
    const uint32_t last = g_op(g, IR_ADD, g_op(g, IR_FLOORDIV, hi, unit), one);
    return g_op(g, IR_MIN, g_op(g, IR_MAX, x, g_op(g, IR_MUL, last, unit)), lo);
}

static void begin_turn(gradder *g, uint32_t i, uint32_t turn)
{
    const ir_insn *in = &g->w.from->insns[i];
    if (in->op == IR_LOOP)
        g->w.map[in->res] = counter_at(g, i, turn);
    for (int k = 0; k < in->nargs - head_of(in); k++)
        g->w.map[body_value(in, k)] = value_at(g, i, k, turn);
    put_back_locals(g, i, turn);
}

static void close_back(gradder *g, uint32_t i, back *r)
{
    const ir_insn *in = &g->w.from->insns[i];
    grad_ids a = {0};
    for (uint32_t k = 0; k < r->carried.len; k++)
        add_id(g, &a, adj_or_zero(g, body_value(in, (int)r->carried.at[k])));
    for (uint32_t k = 0; k < r->outer.len; k++)
        add_id(g, &a, adj_or_zero(g, r->outer.at[k]));
    uint32_t last = structure(g, IR_ENDLOOP, &a, (int)a.len);
    for (uint32_t k = 0; k < r->outer.len; k++)
        g->adj[r->outer.at[k]] = last + r->carried.len + k;
    for (uint32_t k = 0; k < r->carried.len; k++)
        grad_add(g, gargs(g, in)[head_of(in) + (int)r->carried.at[k]], last + k);
    vec_free(&a);
}

void grad_reverse_loop(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i], *close = &g->w.from->insns[g->at.end[i]];
    bool any = grad_touches(g, i, g->at.end[i]);
    back r = {{0}, {0}, 0};
    for (int k = 0; k < close->nres; k++)
        any |= g->adj[close->res + (uint32_t)k] != 0;
    if (!any)
        return;
    for (int k = 0; k < in->nargs - head_of(in); k++)
        if (gfloat(g, body_value(in, k)) && gactive(g, body_value(in, k)))
            add_id(g, &r.carried, (uint32_t)k);
    grad_outside(g, i + 1, g->at.end[i], &r.outer);
    uint32_t went = trips_of(g, i),
             trips = may_overrun(g, i) ? g_op(g, IR_MIN, went, most_trips(g, i)) : went;
    open_back(g, i, &r, went, trips);
    uint32_t turn = g_op(g, IR_SUB, g_op(g, IR_SUB, trips, g_int(g, EAS_I64, 1)), r.first);
    begin_turn(g, i, turn);
    clear_inside(g, i, g->at.end[i] - 1);
    grad_forward(g, i + 1, g->at.end[i], true);
    for (uint32_t k = 0; k < r.outer.len; k++)
        g->adj[r.outer.at[k]] = r.first + 1 + r.carried.len + k;
    for (uint32_t k = 0; k < r.carried.len; k++)
        grad_add(g, gargs(g, close)[r.carried.at[k]], r.first + 1 + k);
    grad_reverse(g, i + 1, g->at.end[i]);
    close_back(g, i, &r);
    vec_free(&r.outer);
    vec_free(&r.carried);
}

/* ---- branches ---- */

void grad_forward_if(gradder *g, uint32_t i)
{
    const uint32_t mid = g->at.mid[i], end = g->at.end[i];
    keep_locals(g, i, 0);
    ir_rewrite_copy(&g->w, i);
    grad_forward(g, i + 1, mid ? mid : end, false);
    if (mid) {
        ir_rewrite_copy(&g->w, mid);
        grad_forward(g, mid + 1, end, false);
    }
    ir_rewrite_copy(&g->w, end);
}

static void give(gradder *g, uint16_t op, const grad_ids *outer, uint32_t *results)
{
    grad_ids a = {0};
    for (uint32_t k = 0; k < outer->len; k++)
        add_id(g, &a, adj_or_zero(g, outer->at[k]));
    uint32_t r = structure(g, op, &a, op == IR_ENDIF ? (int)a.len : 0);
    if (results)
        *results = r;
    vec_free(&a);
}

/* One side of the branch, the instructions [first, last); its values are the operands of `gives`. */
static void reverse_way(gradder *g, uint32_t i, uint32_t first, uint32_t last, const ir_insn *gives,
                        const uint32_t *ct, const grad_ids *outer, const uint32_t *before)
{
    for (uint32_t k = 0; k < outer->len; k++)
        g->adj[outer->at[k]] = before[k];
    if (first >= last && !gives)
        return;
    clear_inside(g, first, last ? last - 1 : 0);
    put_back_locals(g, i, 0);
    grad_forward(g, first, last, true);
    for (int k = 0; gives && k < gives->nargs; k++)
        grad_add(g, gargs(g, gives)[k], ct[k]);
    grad_reverse(g, first, last);
}

void grad_reverse_if(gradder *g, uint32_t i)
{
    const uint32_t mid = g->at.mid[i], end = g->at.end[i];
    const ir_insn *in = &g->w.from->insns[i], *close = &g->w.from->insns[end];
    bool any = grad_touches(g, i, end);
    grad_ids outer = {0};
    uint32_t *ct = arena_alloc(&g->w.mem, ((size_t)close->nres + 1) * sizeof *ct), *before, r = 0;
    for (int k = 0; ct && k < close->nres; k++) {
        ct[k] = g->adj[close->res + (uint32_t)k];
        any |= ct[k] != 0;
    }
    if (!any || !ct)
        return;
    grad_outside(g, i + 1, end, &outer);
    before = arena_alloc(&g->w.mem, ((size_t)outer.len + 1) * sizeof *before);
    if (!before) {
        vec_free(&outer);
        return;
    }
    for (uint32_t k = 0; k < outer.len; k++)
        before[k] = g->adj[outer.at[k]];
    uint32_t cond = g->w.map[gargs(g, in)[0]];
    irb_insn(g->w.b, IR_IF, &cond, 1, 0, 0, NULL);
    reverse_way(g, i, i + 1, mid ? mid : end, mid ? &g->w.from->insns[mid] : NULL, ct, &outer, before);
    give(g, IR_ELSE, &outer, NULL);
    if (mid)
        reverse_way(g, i, mid + 1, end, close, ct, &outer, before);
    else
        reverse_way(g, i, end, end, NULL, ct, &outer, before);
    give(g, IR_ENDIF, &outer, &r);
    for (uint32_t k = 0; k < outer.len; k++)
        g->adj[outer.at[k]] = r + k;
    vec_free(&outer);
}
