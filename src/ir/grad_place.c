/* grad_place.c: which elements the lanes of an access touch: is an addition to the gradient safe without atomics?
 *
 * An offset is written as a sum of coordinates (lanes along an axis, program ids, anything else that is one number for all lanes) times an integer and, at most, one
 * scalar that is the same for the whole launch. Constants drop out: only differences between lanes and between programs count. Two facts make such a sum one-to-one:
 * each integer step is larger than everything that smaller steps add up to; and where a scalar n is a factor, a mask "rest < n" bounds what is not multiplied by it.
 * What is not proved gets an atomic addition, which is always right.
 */
#include "grad.h"

enum { MAX_TERMS = 10, PID = 4, OTHER = 16, MAX_FACTS = 8 };

typedef struct term {
    uint32_t coord; /* 0..3: lane along that axis; PID + axis; OTHER + value */
    int64_t c;
    uint32_t sym; /* a scalar of the primal kernel; 0: none */
} term;

typedef struct form {
    bool ok;
    int n;
    term t[MAX_TERMS];
} form;

typedef struct fact {
    form less;      /* 0 <= less < than, up to a constant */
    uint32_t value; /* what `less` is the form of */
    uint32_t than;  /* a scalar */
} fact;

static const form nothing = {.ok = true};
static const form unknown = {.ok = false};

static void add_term(form *f, term t)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord == t.coord && f->t[i].sym == t.sym) {
            f->t[i].c += t.c;
            if (!f->t[i].c)
                f->t[i] = f->t[--f->n];
            return;
        }
    if (!t.c)
        return;
    if (f->n == MAX_TERMS)
        f->ok = false;
    else
        f->t[f->n++] = t;
}

/* ---- scalars ---- */

/* The same for the whole launch: made of parameters and constants alone. */
static bool invariant(const gradder *g, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(g->w.from, v);
    if (!in)
        return ir_typeof(g->w.from, v).kind == IR_VAL;
    if (in->op == IR_CONST)
        return true;
    if (!(ir_rows[in->op].flags & IR_PURE) || !in->nargs || in->nargs > 3 || depth > 8)
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!invariant(g, gargs(g, in)[k], depth + 1))
            return false;
    return true;
}

static uint32_t through(const gradder *g, uint32_t v)
{
    const ir_insn *in;
    while ((in = ir_def(g->w.from, v)) && (in->op == IR_BROADCAST || in->op == IR_RESHAPE ||
                                           (in->op == IR_CAST && dtype_is_int((eas_dtype)ir_typeof(g->w.from, v).dtype) &&
                                            dtype_is_int((eas_dtype)ir_typeof(g->w.from, gargs(g, in)[0]).dtype))))
        v = gargs(g, in)[0];
    return v;
}

/* v as an integer times an invariant scalar. */
static bool scale_of(const gradder *g, uint32_t v, int64_t *c, uint32_t *sym)
{
    v = through(g, v);
    if (ir_const_of(g->w.from, v, c))
        return *sym = 0, true;
    if (ir_typeof(g->w.from, v).rank || !invariant(g, v, 0))
        return false;
    const ir_insn *in = ir_def(g->w.from, v);
    *c = 1;
    *sym = v;
    int64_t k;
    if (in && in->op == IR_MUL)
        for (int i = 0; i < 2; i++)
            if (ir_const_of(g->w.from, gargs(g, in)[i], &k)) {
                *c = k;
                *sym = through(g, gargs(g, in)[1 - i]);
            }
    return true;
}

/* ---- forms ---- */

static form form_of(const gradder *g, uint32_t v, int depth);

static form remapped(const form *f, const int *axis) /* axis[i]: where lane axis i goes; -1: its length is 1 */
{
    form r = nothing;
    r.ok = f->ok;
    for (int i = 0; i < f->n; i++) {
        term t = f->t[i];
        if (t.coord < PID && axis[t.coord] < 0)
            continue;
        if (t.coord < PID)
            t.coord = (uint32_t)axis[t.coord];
        add_term(&r, t);
    }
    return r;
}

static form broadcast_form(form f, ir_type from, ir_type to)
{
    int axis[4] = {-1, -1, -1, -1};
    for (int a = 0; a < from.rank; a++)
        axis[a] = from.dim[a] == 1 ? -1 : a + to.rank - from.rank;
    return remapped(&f, axis);
}

/* A reshape that only adds or drops axes of length 1. */
static bool same_but_ones(ir_type from, ir_type to, int axis[4])
{
    int b = 0;
    for (int a = 0; a < from.rank; a++) {
        axis[a] = -1;
        if (from.dim[a] == 1)
            continue;
        while (b < to.rank && to.dim[b] == 1)
            b++;
        if (b == to.rank || to.dim[b] != from.dim[a])
            return false;
        axis[a] = b++;
    }
    while (b < to.rank && to.dim[b] == 1)
        b++;
    return b == to.rank;
}

static form reshape_form(form f, ir_type from, ir_type to)
{
    int axis[4] = {-1, -1, -1, -1};
    if (same_but_ones(from, to, axis))
        return remapped(&f, axis);
    if (from.rank != 1)
        return unknown;
    form r = nothing; /* a row cut into several axes */
    r.ok = f.ok;
    for (int i = 0; i < f.n; i++) {
        int64_t stride = 1;
        if (f.t[i].coord >= PID)
            add_term(&r, f.t[i]);
        for (int a = to.rank - 1; a >= 0 && f.t[i].coord < PID; a--) {
            add_term(&r, (term){(uint32_t)a, f.t[i].c * stride, f.t[i].sym});
            stride *= to.dim[a];
        }
    }
    return r;
}

static form trans_form(form f, int64_t imm, int rank)
{
    int axis[4] = {-1, -1, -1, -1};
    for (int a = 0; a < rank; a++)
        axis[ir_imm_perm(imm, a)] = a;
    return remapped(&f, axis);
}

static form sum_form(const form *x, const form *y, int64_t sign)
{
    form r = *x;
    r.ok = x->ok && y->ok;
    for (int i = 0; i < y->n; i++)
        add_term(&r, (term){y->t[i].coord, sign * y->t[i].c, y->t[i].sym});
    return r;
}

static form scaled(const gradder *g, uint32_t x, uint32_t by, int depth)
{
    int64_t c;
    uint32_t sym;
    if (!scale_of(g, by, &c, &sym))
        return unknown;
    form f = form_of(g, x, depth + 1);
    for (int i = 0; i < f.n; i++) {
        if (sym && f.t[i].sym)
            return unknown;
        if (__builtin_mul_overflow(f.t[i].c, c, &f.t[i].c))
            return unknown;
        f.t[i].sym = sym ? sym : f.t[i].sym;
    }
    return c ? f : nothing;
}

static form other(uint32_t v)
{
    form f = nothing;
    add_term(&f, (term){OTHER + v, 1, 0});
    return f;
}

/* A view of x: f is the form of x. */
static form viewed(const gradder *g, const ir_insn *in, form f)
{
    ir_type from = ir_typeof(g->w.from, gargs(g, in)[0]), to = ir_typeof(g->w.from, in->res);
    switch (in->op) {
    case IR_BROADCAST: return broadcast_form(f, from, to);
    case IR_RESHAPE: return reshape_form(f, from, to);
    case IR_TRANS: return trans_form(f, in->imm, to.rank);
    default: return f;
    }
}

static form form_of(const gradder *g, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(g->w.from, v);
    const ir_type t = ir_typeof(g->w.from, v);
    form f = nothing, x, y;
    if (invariant(g, v, 0))
        return nothing;
    if (depth > 24)
        return unknown;
    if (!in)
        return unknown;
    switch (in->op) {
    case IR_ARANGE: add_term(&f, (term){0, 1, 0}); return f;
    case IR_PROGRAM_ID: add_term(&f, (term){PID + (uint32_t)in->imm, 1, 0}); return f;
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_TRANS:
    case IR_SLICE: return viewed(g, in, form_of(g, gargs(g, in)[0], depth + 1));
    case IR_CAST: return dtype_is_int((eas_dtype)t.dtype) && dtype_bits((eas_dtype)t.dtype) >= 32 ? form_of(g, gargs(g, in)[0], depth + 1) : unknown;
    case IR_ADD:
    case IR_SUB:
        x = form_of(g, gargs(g, in)[0], depth + 1);
        y = form_of(g, gargs(g, in)[1], depth + 1);
        return sum_form(&x, &y, in->op == IR_ADD ? 1 : -1);
    case IR_MUL:
        f = scaled(g, gargs(g, in)[0], gargs(g, in)[1], depth);
        if (!f.ok)
            f = scaled(g, gargs(g, in)[1], gargs(g, in)[0], depth);
        return f.ok || t.rank ? f : other(v);
    default: return t.rank ? unknown : other(v);
    }
}

/* ---- what a mask says ---- */

typedef struct facts {
    const gradder *g;
    int n;
    fact at[MAX_FACTS];
} facts;

static void find_facts(facts *s, uint32_t v, const uint32_t *path, int npath)
{
    const gradder *g = s->g;
    const ir_insn *in = ir_def(g->w.from, v);
    uint32_t longer[8];
    if (!in || s->n == MAX_FACTS || npath >= 8)
        return;
    if (in->op == IR_AND) {
        find_facts(s, gargs(g, in)[0], path, npath);
        find_facts(s, gargs(g, in)[1], path, npath);
    } else if (in->op == IR_BROADCAST || in->op == IR_RESHAPE) {
        memcpy(longer, path, (size_t)npath * sizeof *path);
        longer[npath] = g->w.from->vals[v].def;
        find_facts(s, gargs(g, in)[0], longer, npath + 1);
    } else if (in->op == IR_LT || in->op == IR_GT) {
        const uint32_t x = gargs(g, in)[in->op == IR_GT], y = gargs(g, in)[in->op == IR_LT];
        fact f = {.less = form_of(g, x, 0), .value = x, .than = through(g, y)};
        for (int i = npath; i-- > 0;)
            f.less = viewed(g, &g->w.from->insns[path[i]], f.less);
        if (f.less.ok && g->range[x].lo >= 0)
            s->at[s->n++] = f;
    }
}

/* ---- one-to-one ---- */

static bool holds_term(const form *f, const term *t)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord == t->coord && f->t[i].c == t->c && f->t[i].sym == t->sym)
            return true;
    return false;
}

static bool same_form(const form *x, const form *y)
{
    if (!x->ok || !y->ok || x->n != y->n)
        return false;
    for (int i = 0; i < x->n; i++)
        if (!holds_term(y, &x->t[i]))
            return false;
    return true;
}

static int64_t size_of(int64_t c) { return c < 0 ? -c : c; }

/* Terms without scalars: is each step larger than all smaller ones together? A program id goes on without end, so only the largest step may be one. */
static bool steps_apart(const form *f, ir_type t)
{
    bool done[MAX_TERMS] = {false};
    int64_t reach = 0;
    bool endless = false;
    for (int round = 0; round < f->n; round++) {
        int least = -1;
        for (int i = 0; i < f->n; i++)
            if (!done[i] && (least < 0 || size_of(f->t[i].c) < size_of(f->t[least].c)))
                least = i;
        const term *s = &f->t[least];
        done[least] = true;
        if (endless || s->coord >= OTHER || size_of(s->c) <= reach)
            return false;
        if (s->coord >= PID)
            endless = true;
        else if (size_of(s->c) > INT64_MAX >> 24)
            return false;
        else
            reach += size_of(s->c) * (t.dim[s->coord] - 1);
    }
    return true;
}

static bool covers(const form *x, const form *y, ir_type t, uint8_t axes)
{
    for (int a = 0; a < t.rank; a++) {
        bool found = t.dim[a] == 1;
        for (int i = 0; i < x->n; i++)
            found |= x->t[i].coord == (uint32_t)a;
        for (int i = 0; y && i < y->n; i++)
            found |= y->t[i].coord == (uint32_t)a;
        if (!found)
            return false;
    }
    for (int a = 0; a < 3; a++) {
        bool found = !(axes >> a & 1);
        for (int i = 0; i < x->n; i++)
            found |= x->t[i].coord == PID + (uint32_t)a;
        for (int i = 0; y && i < y->n; i++)
            found |= y->t[i].coord == PID + (uint32_t)a;
        if (!found)
            return false;
    }
    return true;
}

/* f split in the terms with the scalar and those without. */
static bool split(const form *f, uint32_t sym, form *with, form *without)
{
    *with = *without = nothing;
    for (int i = 0; i < f->n; i++) {
        if (f->t[i].sym && f->t[i].sym != sym)
            return false;
        add_term(f->t[i].sym ? with : without, (term){f->t[i].coord, f->t[i].c, 0});
    }
    return true;
}

static form lanes_only(const form *f)
{
    form r = nothing;
    r.ok = f->ok;
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord < PID)
            add_term(&r, f->t[i]);
    return r;
}

static bool no_other(const form *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord >= OTHER)
            return false;
    return true;
}

static bool has_pid(const form *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord >= PID && f->t[i].coord < OTHER)
            return true;
    return false;
}

/* The part that a mask bounds may have terms that change from turn to turn of a loop, if it tells no programs apart. */
static bool inner_apart(const form *f, ir_type t)
{
    form lanes = lanes_only(f);
    return no_other(f) ? steps_apart(f, t) : !has_pid(f) && steps_apart(&lanes, t);
}

static bool one_to_one(const gradder *g, const form *f, ir_type t, uint32_t mask, uint8_t axes, bool lanes)
{
    form with, without;
    if (!f->ok)
        return false;
    if (split(f, 0, &with, &without) && !with.n)
        return covers(f, NULL, t, axes) && no_other(f) && steps_apart(f, t);
    facts s = {.g = g};
    if (mask)
        find_facts(&s, mask, NULL, 0);
    for (int i = 0; i < s.n; i++) {
        form less = lanes ? lanes_only(&s.at[i].less) : s.at[i].less;
        if (split(f, s.at[i].than, &with, &without) && same_form(&without, &less) && covers(&with, &without, t, axes) && no_other(&with) &&
            steps_apart(&with, t) && inner_apart(&without, t))
            return true;
    }
    return false;
}

bool grad_lanes_differ(gradder *g, uint32_t off, uint32_t mask)
{
    ir_type t = ir_typeof(g->w.from, off);
    if (ir_lanes(t) == 1)
        return true;
    form f = form_of(g, off, 0), lanes = lanes_only(&f);
    return one_to_one(g, &lanes, t, mask, 0, true);
}

/* ---- between programs ---- */

static uint32_t region_of(const gradder *g, uint32_t i)
{
    for (uint32_t o = i; o-- > 0;)
        if (g->at.end[o] > i && (g->w.from->insns[o].op == IR_LOOP || g->w.from->insns[o].op == IR_WHILE || g->w.from->insns[o].op == IR_IF ||
                                 g->w.from->insns[o].op == IR_ELSE))
            return o;
    return UINT32_MAX;
}

static bool inside(const gradder *g, uint32_t i, uint32_t region) { return region == UINT32_MAX || (i > region && i < g->at.end[region]); }

static uint8_t axes_used(const gradder *g)
{
    uint8_t bits = 0;
    for (uint32_t i = 0; i < g->w.from->ninsns; i++)
        if (g->w.from->insns[i].op == IR_PROGRAM_ID)
            bits |= (uint8_t)(1 << g->w.from->insns[i].imm);
    return bits;
}

/* Programs may not store to the same element, so what is loaded where something is stored is the program's own. */
static bool beside_store(const gradder *g, uint32_t load)
{
    const ir_insn *in = &g->w.from->insns[load];
    const uint32_t off = gargs(g, in)[1], mask = ir_mask(g->w.from, in);
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        const ir_insn *s = &g->w.from->insns[i];
        if (s->op != IR_STORE || gargs(g, s)[1] != off || gargs(g, s)[0] > (uint32_t)g->w.from->nparams)
            continue;
        const uint32_t m = ir_mask(g->w.from, s);
        const uint8_t axes = (uint8_t)(g->axes[off] | (m ? g->axes[m] : 0));
        if ((!m || m == mask) && axes == axes_used(g) && inside(g, load, region_of(g, i)))
            return true;
    }
    return false;
}

static bool reads(const gradder *g, const ir_insn *in, uint32_t buf)
{
    const uint32_t *a = gargs(g, in);
    return (in->op == IR_LOAD && a[0] == buf) || (in->op == IR_DOT && (a[0] == buf || a[3] == buf));
}

static bool own_alone(const gradder *g, uint32_t load)
{
    if (beside_store(g, load))
        return true;
    const ir_insn *in = &g->w.from->insns[load];
    const uint32_t off = gargs(g, in)[1];
    form f = form_of(g, off, 0);
    return one_to_one(g, &f, ir_typeof(g->w.from, off), ir_mask(g->w.from, in), axes_used(g), false);
}

/* Every load of the buffer must be at the same place and the program's own: an addition without atomics may not meet any other. */
bool grad_programs_differ(gradder *g, uint32_t insn)
{
    const uint32_t buf = gargs(g, &g->w.from->insns[insn])[0], off = gargs(g, &g->w.from->insns[insn])[1];
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        const ir_insn *o = &g->w.from->insns[i];
        if (reads(g, o, buf) && (o->op != IR_LOAD || gargs(g, o)[1] != off || !own_alone(g, i)))
            return false;
    }
    return true;
}
