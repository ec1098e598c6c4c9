/* grad_place.c: which elements the lanes of an access touch: is an addition to the gradient safe without
 * atomics?
 *
 * An offset is a sum of terms (terms.c): lanes, program ids and other scalars times an integer and, at most,
 * one scalar that is the same for the whole launch. Two facts make such a sum one-to-one: each integer step
 * is larger than everything that smaller steps add up to; and where a scalar n is a factor, a mask "rest < n"
 * bounds what is not multiplied by it. What is not proved gets an atomic addition, which is always right.
 */
#include "grad.h"

enum { MAX_FACTS = 8 };

typedef struct fact {
    ir_terms less;      /* 0 <= less < than, up to a constant */
    uint32_t value; /* the value whose terms are `less` */
    uint32_t than;  /* a scalar */
} fact;

/* ---- facts that follow from a mask ---- */

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
        fact f = {.less = ir_terms_of(g->w.from, x), .value = x, .than = ir_through_views(g->w.from, y)};
        for (int i = npath; i-- > 0;)
            f.less = ir_terms_viewed(g->w.from, &g->w.from->insns[path[i]], f.less);
        if (f.less.ok && g->range[x].lo >= 0)
            s->at[s->n++] = f;
    }
}

/* ---- one-to-one ---- */

static bool holds_term(const ir_terms *f, const ir_term *t)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord == t->coord && f->t[i].c == t->c && f->t[i].sym == t->sym)
            return true;
    return false;
}

static bool same_form(const ir_terms *x, const ir_terms *y)
{
    if (!x->ok || !y->ok || x->n != y->n)
        return false;
    for (int i = 0; i < x->n; i++)
        if (!holds_term(y, &x->t[i]))
            return false;
    return true;
}

static int64_t size_of(int64_t c) { return c < 0 ? -c : c; }

/* Terms without scalars: is each step larger than all smaller ones together? The number of programs is not
 * bounded, so a program id may only have the largest step. */
static bool steps_apart(const ir_terms *f, ir_type t)
{
    bool done[IR_MAX_TERMS] = {false};
    int64_t reach = 0;
    bool endless = false;
    for (int round = 0; round < f->n; round++) {
        int least = -1;
        for (int i = 0; i < f->n; i++)
            if (!done[i] && (least < 0 || size_of(f->t[i].c) < size_of(f->t[least].c)))
                least = i;
        const ir_term *s = &f->t[least];
        done[least] = true;
        if (endless || s->coord >= IR_TERM_OTHER || size_of(s->c) <= reach)
            return false;
        if (s->coord >= IR_TERM_PROGRAM)
            endless = true;
        else if (size_of(s->c) > INT64_MAX >> 24)
            return false;
        else
            reach += size_of(s->c) * (t.dim[s->coord] - 1);
    }
    return true;
}

static bool covers(const ir_terms *x, const ir_terms *y, ir_type t, uint8_t axes)
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
            found |= x->t[i].coord == IR_TERM_PROGRAM + (uint32_t)a;
        for (int i = 0; y && i < y->n; i++)
            found |= y->t[i].coord == IR_TERM_PROGRAM + (uint32_t)a;
        if (!found)
            return false;
    }
    return true;
}

/* f split in the terms with the scalar and those without. */
static bool split(const ir_terms *f, uint32_t sym, ir_terms *with, ir_terms *without)
{
    *with = *without = (ir_terms){.ok = true};
    for (int i = 0; i < f->n; i++) {
        if (f->t[i].sym && f->t[i].sym != sym)
            return false;
        ir_terms_add(f->t[i].sym ? with : without, (ir_term){f->t[i].coord, f->t[i].c, 0});
    }
    return true;
}

static ir_terms lanes_only(const ir_terms *f)
{
    ir_terms r = {.ok = true};
    r.ok = f->ok;
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord < IR_TERM_PROGRAM)
            ir_terms_add(&r, f->t[i]);
    return r;
}

static bool no_other(const ir_terms *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord >= IR_TERM_OTHER)
            return false;
    return true;
}

static bool has_pid(const ir_terms *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord >= IR_TERM_PROGRAM && f->t[i].coord < IR_TERM_OTHER)
            return true;
    return false;
}

/* Are the terms that a mask bounds one-to-one? They may include terms that change from turn to turn of a
 * loop, if no program id is among them. */
static bool inner_apart(const ir_terms *f, ir_type t)
{
    ir_terms lanes = lanes_only(f);
    return no_other(f) ? steps_apart(f, t) : !has_pid(f) && steps_apart(&lanes, t);
}

static bool one_to_one(const gradder *g, const ir_terms *f, ir_type t, uint32_t mask, uint8_t axes,
                       bool lanes)
{
    ir_terms with, without;
    if (!f->ok)
        return false;
    if (split(f, 0, &with, &without) && !with.n)
        return covers(f, NULL, t, axes) && no_other(f) && steps_apart(f, t);
    facts s = {.g = g};
    if (mask)
        find_facts(&s, mask, NULL, 0);
    for (int i = 0; i < s.n; i++) {
        ir_terms less = lanes ? lanes_only(&s.at[i].less) : s.at[i].less;
        if (split(f, s.at[i].than, &with, &without) && same_form(&without, &less) &&
            covers(&with, &without, t, axes) && no_other(&with) && steps_apart(&with, t) &&
            inner_apart(&without, t))
            return true;
    }
    return false;
}

bool grad_lanes_differ(gradder *g, uint32_t off, uint32_t mask)
{
    ir_type t = ir_typeof(g->w.from, off);
    if (ir_lanes(t) == 1)
        return true;
    ir_terms f = ir_terms_of(g->w.from, off), lanes = lanes_only(&f);
    return one_to_one(g, &lanes, t, mask, 0, true);
}

/* ---- between programs ---- */

static uint32_t region_of(const gradder *g, uint32_t i)
{
    for (uint32_t o = i; o-- > 0;)
        if (g->at.end[o] > i && (g->w.from->insns[o].op == IR_LOOP || g->w.from->insns[o].op == IR_WHILE ||
                                 g->w.from->insns[o].op == IR_IF || g->w.from->insns[o].op == IR_ELSE))
            return o;
    return UINT32_MAX;
}

static bool inside(const gradder *g, uint32_t i, uint32_t region)
{
    return region == UINT32_MAX || (i > region && i < g->at.end[region]);
}

static uint8_t axes_used(const gradder *g)
{
    uint8_t bits = 0;
    for (uint32_t i = 0; i < g->w.from->ninsns; i++)
        if (g->w.from->insns[i].op == IR_PROGRAM_ID)
            bits |= (uint8_t)(1 << g->w.from->insns[i].imm);
    return bits;
}

/* Does the program alone read what this load reads, because it stores to the same elements? Different
 * programs may not store to one element. */
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
    ir_terms f = ir_terms_of(g->w.from, off);
    return one_to_one(g, &f, ir_typeof(g->w.from, off), ir_mask(g->w.from, in), axes_used(g), false);
}

/* Every load of the buffer must have the same offset, and read elements that only its own program reads: an
 * addition without atomics may not coincide with another one. */
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
