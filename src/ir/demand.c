/* demand.c: loads read only what some store needs.
 *
 * A kernel may mask its stores but not the loads that feed them. Rows beyond the end of a matrix are then
 * computed from whatever memory lies there, and the results are not stored. This has no visible effect, so it
 * is no error. If a launch cannot be proved to stay inside its arguments, this form of the kernel runs: every
 * load (and block dot) also takes the mask of the stores to which its lanes contribute.
 *
 * Going backwards from stores, each value gets the condition under which a lane of it is needed, as an
 * expression over masks and enclosing branches (`want`). Element-wise instructions pass the condition to
 * their operands, a reduction spreads it over the reduced axis, and a loop passes it on if it does not change
 * it. Where lanes mix in any other way, all lanes are needed. The condition may be computed after the load;
 * it is made anew in front of it if it consists of nothing but pure instructions on values that exist there.
 * Otherwise the load stays as it is.
 */
#include "ir.h"

typedef enum want_kind {
    WANT_ALL,
    WANT_MASK,
    WANT_NOT,
    WANT_AND,
    WANT_OR,
    WANT_RESHAPE,
    WANT_BROADCAST
} want_kind;
typedef struct want {
    want_kind kind;
    uint32_t v;  /* WANT_MASK */
    ir_type t;   /* bool, in the shape of the value whose lanes are needed */
    int size;
    const struct want *a, *b;
} want;
static const want all = {.kind = WANT_ALL};

enum { MAX_WANT = 12, MAX_ROUNDS = 6, MAX_CLONE = 24 };

typedef struct demander {
    ir_rewrite w;
    ir_regions at;
    const want **need;  /* per value; NULL: nothing needs it */
    const want **under; /* per instruction: the branches it stands in */
    bool *visible; /* per value of the old kernel, while the new one is made */
    bool changed;  /* need grew in this round */
    bool masked;   /* some load was */
} demander;

/* ---- wants ---- */

static bool same_shape(ir_type a, ir_type b)
{
    return ir_type_eq(ir_with_dtype(a, EAS_BOOL), ir_with_dtype(b, EAS_BOOL));
}

static const want *make(demander *d, want w)
{
    w.size = 1 + (w.a ? w.a->size : 0) + (w.b ? w.b->size : 0);
    want *n = w.size > MAX_WANT ? NULL : arena_alloc(&d->w.mem, sizeof *n);
    if (!n)
        return &all;
    *n = w;
    return n;
}

static bool equal(const want *x, const want *y)
{
    if (x == y)
        return true;
    if (!x || !y || x->kind != y->kind || x->v != y->v || !ir_type_eq(x->t, y->t))
        return false;
    return equal(x->a, y->a) && equal(x->b, y->b);
}

static const want *mask_want(demander *d, uint32_t v)
{
    return make(d, (want){.kind = WANT_MASK, .v = v, .t = ir_typeof(d->w.from, v)});
}

/* The same condition in another shape. It is spread if it is one condition for all lanes; if the shapes do
 * not fit, all lanes are needed. */
static const want *shaped(demander *d, const want *w, ir_type t)
{
    if (!w || w->kind == WANT_ALL || same_shape(w->t, t))
        return w;
    return w->t.rank ? &all
                     : make(d, (want){.kind = WANT_BROADCAST, .t = ir_with_dtype(t, EAS_BOOL), .a = w});
}

static const want *both(demander *d, const want *x, const want *y)
{
    if (!x || !y)
        return NULL;
    if (x->kind == WANT_ALL || y->kind == WANT_ALL || equal(x, y))
        return x->kind == WANT_ALL ? y : x;
    const ir_type t = x->t.rank >= y->t.rank ? x->t : y->t;
    x = shaped(d, x, t);
    y = shaped(d, y, t);
    if (x->kind == WANT_ALL || y->kind == WANT_ALL)
        return x->kind == WANT_ALL ? y : x;
    return make(d, (want){.kind = WANT_AND, .t = x->t, .a = x, .b = y});
}

/* Does x hold wherever y does? True if y is x with further conditions, or one of x's alternatives. */
static bool covers(const want *x, const want *y)
{
    if (equal(x, y))
        return true;
    if (y->kind == WANT_OR)
        return covers(x, y->a) && covers(x, y->b);
    if (y->kind == WANT_AND && (covers(x, y->a) || covers(x, y->b)))
        return true;
    return x->kind == WANT_OR && (covers(x->a, y) || covers(x->b, y));
}

static const want *either(demander *d, const want *x, const want *y)
{
    if (!x || !y)
        return x ? x : y;
    if (x->kind == WANT_ALL || y->kind == WANT_ALL || !same_shape(x->t, y->t))
        return &all;
    if (covers(x, y) || covers(y, x))
        return covers(x, y) ? x : y;
    return make(d, (want){.kind = WANT_OR, .t = x->t, .a = x, .b = y});
}

static void add(demander *d, uint32_t v, const want *w)
{
    const ir_type t = ir_typeof(d->w.from, v);
    if (!w || t.kind != IR_VAL)
        return;
    const want *now = either(d, d->need[v], shaped(d, w, t));
    if (!equal(now, d->need[v])) {
        d->need[v] = now;
        d->changed = true;
    }
}

static void add_args(demander *d, const ir_insn *in, int from, int n, const want *w)
{
    for (int k = from; k < from + n; k++)
        add(d, ir_args(d->w.from, in)[k], w);
}

/* ---- backwards ---- */

/* A value that a loop does not change: made before it, or of such values alone. */
static bool invariant(const demander *d, uint32_t v, uint32_t first, int depth)
{
    const ir_insn *in = ir_def(d->w.from, v);
    if (v < first || !in)
        return true;
    if (depth > MAX_CLONE || in->nres != 1 ||
        !(ir_rows[in->op].flags & IR_PURE || ir_rows[in->op].rule == IR_RULE_IDENT))
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!invariant(d, ir_args(d->w.from, in)[k], first, depth + 1))
            return false;
    return true;
}

static bool want_invariant(const demander *d, const want *w, uint32_t first)
{
    return !w || (w->kind == WANT_MASK ? invariant(d, w->v, first, 0)
                                       : want_invariant(d, w->a, first) && want_invariant(d, w->b, first));
}

static const want *around(const demander *d, const want *w, uint32_t first)
{
    return !w || want_invariant(d, w, first) ? w : &all;
}

static void loop_needs(demander *d, const ir_insn *op, const ir_insn *end)
{
    const int head = op->op == IR_LOOP ? 3 : 0, own = op->op == IR_LOOP;
    const uint32_t first = op->res ? op->res : UINT32_MAX;
    add_args(d, op, 0, head, &all);
    for (int k = 0; k < end->nargs; k++) {
        const uint32_t next = ir_args(d->w.from, end)[k], init = ir_args(d->w.from, op)[head + k];
        const want *w = either(d, around(d, d->need[op->res + (uint32_t)(own + k)], first),
                               d->need[end->res + (uint32_t)k]);
        add(d, next, w);
        add(d, init, w);
    }
}

/* The lanes of a reduction's operand that are needed: all lanes along the axis whose result is needed. */
static const want *along(demander *d, const want *w, ir_type t, int axis)
{
    if (!w || w->kind == WANT_ALL || !w->t.rank)
        return w;
    ir_type one = ir_with_dtype(t, EAS_BOOL);
    one.dim[axis] = 1;
    w = make(d, (want){.kind = WANT_RESHAPE, .t = one, .a = w});
    return make(d, (want){.kind = WANT_BROADCAST, .t = ir_with_dtype(t, EAS_BOOL), .a = w});
}

/* The condition for the operand of a broadcast: known if the condition itself was broadcast in the same
 * way. */
static const want *before_broadcast(demander *d, const want *w, ir_type from)
{
    if (!w || w->kind == WANT_ALL)
        return w;
    if (w->kind == WANT_BROADCAST && same_shape(w->a->t, from))
        return w->a;
    const ir_insn *in = w->kind == WANT_MASK ? ir_def(d->w.from, w->v) : NULL;
    if (in && in->op == IR_BROADCAST && same_shape(ir_typeof(d->w.from, ir_args(d->w.from, in)[0]), from))
        return mask_want(d, ir_args(d->w.from, in)[0]);
    return &all;
}

static void value_needs(demander *d, const ir_insn *in)
{
    const want *w = in->nres == 1 ? d->need[in->res] : &all;
    const uint32_t *a = ir_args(d->w.from, in);
    if (!w)
        return;
    switch (ir_rows[in->op].rule) {
    case IR_RULE_SAME:
    case IR_RULE_CMP:
    case IR_RULE_WHERE:
    case IR_RULE_CAST: add_args(d, in, 0, in->nargs, w); return;
    case IR_RULE_REDUCE: add(d, a[0], along(d, w, ir_typeof(d->w.from, a[0]), (int)in->imm)); return;
    default: break;
    }
    if (in->op == IR_BROADCAST)
        add(d, a[0], before_broadcast(d, w, ir_typeof(d->w.from, a[0])));
    else if (in->op == IR_RESHAPE)
        add(d, a[0],
            w->kind == WANT_ALL ? w
                                : make(d, (want){.kind = WANT_RESHAPE,
                                                 .t = ir_with_dtype(ir_typeof(d->w.from, a[0]), EAS_BOOL),
                                                 .a = w}));
    else
        add_args(d, in, 0, in->nargs, &all);
}

/* Stores and atomics: the mask is last, and lanes that it leaves out need nothing. */
static void store_needs(demander *d, uint32_t i, const ir_insn *in)
{
    const uint32_t mask = ir_mask(d->w.from, in);
    const want *w = mask ? both(d, mask_want(d, mask), d->under[i]) : d->under[i];
    add_args(d, in, 1, in->nargs - 1 - (mask != 0), w);
    if (mask)
        add(d, mask, d->under[i]);
}

static void load_needs(demander *d, const ir_insn *in)
{
    const uint32_t mask = ir_mask(d->w.from, in);
    const want *w = d->need[in->res];
    add(d, ir_args(d->w.from, in)[1], mask && w ? both(d, mask_want(d, mask), w) : w);
    add_args(d, in, 2, in->nargs - 2, w);
}

static void branch_needs(demander *d, const ir_insn *half, const ir_insn *end)
{
    for (int k = 0; k < half->nargs; k++)
        add(d, ir_args(d->w.from, half)[k], d->need[end->res + (uint32_t)k]);
}

static void visit(demander *d, uint32_t i)
{
    const ir_insn *in = &d->w.from->insns[i];
    switch (in->op) {
    case IR_LOOP:
    case IR_WHILE: loop_needs(d, in, &d->w.from->insns[d->at.end[i]]); break;
    case IR_ENDLOOP:
    case IR_ENDWHILE: loop_needs(d, &d->w.from->insns[d->at.opener[i]], in); break;
    case IR_ELSE: branch_needs(d, in, &d->w.from->insns[d->at.end[i]]); break;
    case IR_ENDIF: branch_needs(d, in, in); break;
    case IR_IF:
    case IR_DO: add_args(d, in, 0, in->nargs, d->under[i]); break;
    case IR_LOAD: load_needs(d, in); break;
    case IR_DOT: add_args(d, in, 0, in->nargs, d->need[in->res]); break;
    default:
        if (in->op == IR_STORE || ir_is_atomic(in))
            store_needs(d, i, in);
        else if (ir_rows[in->op].flags & IR_EFFECT)
            add_args(d, in, 0, in->nargs, d->under[i] ? d->under[i] : &all);
        else
            value_needs(d, in);
    }
}

/* Which branches each instruction stands in. */
static void find_under(demander *d)
{
    uint32_t depth = 0;
    const want **outer = arena_alloc(&d->w.mem, (d->w.from->ninsns + 1) * sizeof *outer), *now = &all;
    for (uint32_t i = 0; outer && i < d->w.from->ninsns; i++) {
        const ir_insn *in = &d->w.from->insns[i];
        if (ir_closes(in->op))
            now = outer[--depth];
        d->under[i] = now;
        if (ir_opens(in->op))
            outer[depth++] = now;
        if (in->op == IR_IF)
            now = both(d, now, mask_want(d, ir_args(d->w.from, in)[0]));
        if (in->op == IR_ELSE) {
            const want *c = mask_want(d, ir_args(d->w.from, &d->w.from->insns[d->at.opener[i]])[0]);
            now = both(d, outer[depth - 1], make(d, (want){.kind = WANT_NOT, .t = c->t, .a = c}));
        }
    }
}

/* Repeats the walk until no condition changes. False: it does not settle, so every lane counts as needed. */
static bool find_needs(demander *d)
{
    for (int round = 0; round < MAX_ROUNDS; round++) {
        d->changed = false;
        for (uint32_t i = d->w.from->ninsns; i-- > 0;)
            visit(d, i);
        if (!d->changed)
            return !d->w.mem.oom;
    }
    return false;
}

/* ---- building the kernel with these masks ---- */

static bool clonable(const demander *d, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(d->w.from, v);
    if (d->visible[v])
        return true;
    if (!in || depth > MAX_CLONE || in->nres != 1 || in->nargs > 3 || ir_is_fold(in) ||
        !(ir_rows[in->op].flags & IR_PURE || ir_rows[in->op].rule == IR_RULE_IDENT))
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!clonable(d, ir_args(d->w.from, in)[k], depth + 1))
            return false;
    return true;
}

static bool can_make(const demander *d, const want *w)
{
    return !w || (w->kind == WANT_MASK ? clonable(d, w->v, 0) : can_make(d, w->a) && can_make(d, w->b));
}

static uint32_t copied(demander *d, uint32_t v)
{
    if (d->visible[v])
        return d->w.map[v];
    const ir_insn *in = ir_def(d->w.from, v);
    uint32_t a[3] = {0};
    ir_type t = ir_typeof(d->w.from, v);
    for (int k = 0; k < in->nargs; k++)
        a[k] = copied(d, ir_args(d->w.from, in)[k]);
    return irb_insn(d->w.b, in->op, a, in->nargs, in->imm, 1, &t);
}

static uint32_t make_want(demander *d, const want *w)
{
    if (w->kind == WANT_MASK)
        return copied(d, w->v);
    uint32_t a = make_want(d, w->a), b = w->b ? make_want(d, w->b) : 0;
    if (d->w.b->status)
        return 0;
    switch (w->kind) {
    case WANT_NOT: return irb_op(d->w.b, IR_NOT, a, 0, 0);
    case WANT_AND: return irb_op(d->w.b, IR_AND, a, b, 0);
    case WANT_OR: return irb_op(d->w.b, IR_OR, a, b, 0);
    case WANT_RESHAPE: return irb_to(d->w.b, IR_RESHAPE, w->t, a);
    default: return irb_to(d->w.b, IR_BROADCAST, w->t, a);
    }
}

static void masked_load(demander *d, const ir_insn *in, const want *w)
{
    const uint32_t *old = ir_args(d->w.from, in);
    uint32_t mask = make_want(d, w), a[4] = {d->w.map[old[0]], d->w.map[old[1]]};
    ir_type t = ir_typeof(d->w.from, in->res), r = {0};
    if (d->w.b->status)
        return;
    a[2] = in->nargs == 4 ? irb_op(d->w.b, IR_AND, d->w.map[old[2]], mask, 0) : mask;
    a[3] = in->nargs == 4 ? d->w.map[old[3]] : irb_const(d->w.b, t, 0);
    d->w.map[in->res] = irb_insn(d->w.b, IR_LOAD, a, 4, 0, 1, &r);
}

/* Lanes that nothing needs take no steps: their K becomes 0. */
static void masked_dot(demander *d, const ir_insn *in, const want *w)
{
    uint32_t a[7], mask = make_want(d, w);
    ir_rewrite_args(&d->w, in, a);
    if (d->w.b->status)
        return;
    a[6] = irb_op(d->w.b, IR_WHERE, mask, a[6], irb_const(d->w.b, ir_typeof(d->w.b->ir, a[6]), 0));
    ir_type r = {0};
    d->w.map[in->res] = irb_insn(d->w.b, IR_DOT, a, 7, 0, 1, &r);
}

static void copy(demander *d, uint32_t i)
{
    const ir_insn *in = ir_rewrite_at(&d->w, i);
    const want *w = in->op == IR_LOAD || in->op == IR_DOT ? d->need[in->res] : NULL;
    if (w && w->kind != WANT_ALL && same_shape(w->t, ir_typeof(d->w.from, in->res)) && can_make(d, w)) {
        in->op == IR_LOAD ? masked_load(d, in, w) : masked_dot(d, in, w);
        d->masked = true;
    } else {
        ir_rewrite_copy(&d->w, i);
    }
    for (int k = 0; k < in->nres; k++)
        d->visible[in->res + (uint32_t)k] = true;
    /* values made in a region cannot be used after it; the results of its closer can */
    if (in->op == IR_ELSE || ir_closes(in->op))
        for (uint32_t k = d->at.opener[i]; k < i; k++)
            for (int j = 0; j < d->w.from->insns[k].nres; j++)
                d->visible[d->w.from->insns[k].res + (uint32_t)j] = false;
}

eas_status ir_demanded(const eas_ir *ir, eas_ir **out)
{
    demander d = {0};
    const size_t nv = ir->nvals + 1, ni = ir->ninsns + 1;
    eas_status st = ir_rewrite_begin(&d.w, ir);
    d.need = arena_alloc(&d.w.mem, nv * sizeof *d.need);
    d.under = arena_alloc(&d.w.mem, ni * sizeof *d.under);
    d.visible = arena_alloc(&d.w.mem, nv);
    *out = NULL;
    if (!st && ir_find_regions(ir, &d.w.mem, &d.at)) {
        find_under(&d);
        if (!find_needs(&d) && !d.w.mem.oom) {
            ir_rewrite_drop(&d.w);
            *out = eas_ir_retain((eas_ir *)(uintptr_t)ir);
            return EAS_OK;
        }
    }
    for (int p = 1; p <= ir->nparams && !d.w.mem.oom; p++)
        d.visible[p] = true;
    for (uint32_t i = 0; i < ir->ninsns && !st && !d.w.mem.oom; i++)
        copy(&d, i);
    return ir_rewrite_end(&d.w, st, out);
}
