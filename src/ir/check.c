/* check.c: finds the faults of a kernel in its use of memory: races, missing barriers, divergent barriers,
 * reads of uninitialised elements, accesses out of bounds.
 *
 * The kernel runs on the interpreter under a watch. Shadow memory remembers who touched an element last. Two
 * accesses are ordered if
 *
 *   - one program makes both, and either one thread makes both or a barrier lies between them
 *   - the program of the first passed a release fence after it, and the program of the second an acquire
 * fence before it (the atomic by which one program learned of the other is not taken into account)
 *
 * Any other two accesses race unless both read or both are atomic. Programs run one after the other, so it is
 * enough to remember a few accesses of each element: per kind of access those of two threads of the present
 * program since its last barrier, and one of an earlier program.
 */
#include "interp.h"

typedef struct touch { /* an access; insn is 1 + its index, 0: none */
    uint32_t program, epoch, insn, thread;
    uint32_t clock; /* fences that release, before it */
} touch;
enum { READ, WRITE, ATOMIC, NKINDS };
typedef struct past { /* of one kind of access to one element */
    touch now[2]; /* of the present program, by different threads, since the last barrier */
    touch before; /* of an earlier program */
} past;
typedef struct cell {
    past kind[NKINDS];
} cell;
enum { PAGE = 256 };

typedef struct shadow { /* of a piece of memory that arguments share, or of a threadgroup array */
    uint64_t lo, hi; /* addresses */
    uint32_t grain;  /* bytes of a cell */
    cell **page;     /* made at first touch */
} shadow;

struct ir_checker {
    watch w;
    const eas_ir *ir;
    const ir_call *call;
    arena mem;
    shadow *shadows; /* of arguments */
    uint32_t nshadows;
    uint32_t *of;    /* per argument: its shadow */
    shadow *tg;      /* per value */
    uint32_t program, epoch, clock;
    bool acquired; /* the present program has passed a fence that acquires */
    VEC(uint32_t) released; /* per program: its clock */
    ir_report *report;
};

/* ---- findings ---- */

static ir_place place_of(const struct ir_checker *c, touch t)
{
    const ir_insn *in = &c->ir->insns[t.insn - 1];
    ir_place p = {
        .insn = t.insn - 1, .file = in->file ? c->ir->files[in->file] : NULL, .line = (int)in->line};
    uint64_t n = t.program - 1;
    const int64_t *g = c->call->grid;
    p.program[0] = (int64_t)(n % (uint64_t)g[0]);
    p.program[1] = (int64_t)(n / (uint64_t)g[0] % (uint64_t)g[1]);
    p.program[2] = (int64_t)(n / (uint64_t)g[0] / (uint64_t)g[1]);
    p.thread = c->ir->threads ? (int64_t)t.thread : -1;
    return p;
}

static bool same_place(const ir_place *a, const ir_place *b)
{
    return a->line == b->line && a->file == b->file && (a->line || a->insn == b->insn);
}

/* Findings of one kind at the same lines are counted as one. */
static void found(struct ir_checker *c, eas_finding_kind kind, uint32_t buf, int64_t index, touch a, touch b)
{
    ir_finding f = {
        .kind = kind, .buf = buf, .index = index, .count = 1, .at = {place_of(c, a), place_of(c, b)}};
    for (uint32_t i = 0; i < c->report->findings.len; i++) {
        ir_finding *o = &c->report->findings.at[i];
        bool across = memcmp(o->at[0].program, o->at[1].program, sizeof o->at[0].program) != 0;
        bool same = (same_place(&o->at[0], &f.at[0]) && same_place(&o->at[1], &f.at[1])) ||
                    (same_place(&o->at[0], &f.at[1]) && same_place(&o->at[1], &f.at[0]));
        if (o->kind == kind && o->buf == buf && same && across == (a.program != b.program)) {
            o->count++;
            return;
        }
    }
    if (!vec_push(&c->report->findings, f))
        c->report->oom = true;
}

/* ---- shadow memory ---- */

static cell *cell_at(struct ir_checker *c, shadow *s, uint64_t at)
{
    uint64_t n = (at - s->lo) / s->grain;
    cell **p = &s->page[n / PAGE];
    if (!*p)
        *p = arena_alloc(&c->mem, PAGE * sizeof **p);
    return *p ? *p + n % PAGE : NULL;
}

static bool ordered(const struct ir_checker *c, touch a, touch b)
{
    if (a.program == b.program && (a.thread == b.thread || a.epoch != b.epoch))
        return true;
    return c->acquired && a.program && a.program <= c->released.len &&
           c->released.at[a.program - 1] > a.clock;
}

/* The access that races with t among those of one kind, if any. */
static const touch *rival(const struct ir_checker *c, const past *p, touch t)
{
    const touch *all[3] = {&p->now[0], &p->now[1], &p->before};
    for (int i = 0; i < 3; i++)
        if (all[i]->insn && !ordered(c, *all[i], t))
            return all[i];
    return NULL;
}

static void note(past *p, touch t)
{
    if (p->now[0].insn && p->now[0].program != t.program)
        p->before = p->now[0];
    if (p->now[0].program != t.program || p->now[0].epoch != t.epoch) {
        p->now[0] = t;
        p->now[1] = (touch){0};
    } else if (p->now[0].thread != t.thread) {
        p->now[1] = t;
    }
}

static void touch_cell(struct ir_checker *c, cell *e, int kind, touch t, uint32_t buf, int64_t index)
{
    for (int k = 0; k < NKINDS; k++) {
        const touch *o = k == kind && kind != WRITE ? NULL : rival(c, &e->kind[k], t);
        if (o)
            found(c, k == READ || kind == READ ? EAS_FOUND_READ_WRITE : EAS_FOUND_WRITE_WRITE, buf, index, *o,
                  t);
    }
    note(&e->kind[kind], t);
}

static bool written(const cell *e, uint32_t program)
{
    return (e->kind[WRITE].now[0].insn && e->kind[WRITE].now[0].program == program) ||
           (e->kind[ATOMIC].now[0].insn && e->kind[ATOMIC].now[0].program == program);
}

/* Threadgroup memory belongs to one program: accesses of earlier programs do not count. */
static void forget_others(cell *e, uint32_t program)
{
    for (int k = 0; k < NKINDS; k++)
        if (e->kind[k].now[0].insn && e->kind[k].now[0].program != program)
            e->kind[k] = (past){0};
}

/* The kind of access that an instruction makes to memory. */
static int kind_of(const ir_insn *in)
{
    return ir_is_atomic(in) ? ATOMIC : ir_rows[in->op].flags & IR_EFFECT ? WRITE : READ;
}

static touch here(const struct ir_checker *c, const run *r, uint32_t insn)
{
    return (touch){c->program, c->epoch, insn + 1, r->threads > 1 ? (uint32_t)r->lane : 0, c->clock};
}

static void on_access(watch *w, const run *r, uint32_t insn, uint32_t buf, int64_t off, bool inside)
{
    struct ir_checker *c = (struct ir_checker *)w;
    touch t = here(c, r, insn);
    int kind = kind_of(&r->ir->insns[insn]);
    uint64_t size = eas_dtype_size(ir_typeof(r->ir, buf).dtype);
    memset(w->nowhere, 0, sizeof w->nowhere);
    if (!inside) {
        found(c, EAS_FOUND_OUT_OF_BOUNDS, buf, off, t, t);
        return;
    }
    bool global = buf <= (uint32_t)r->ir->nparams;
    shadow *s = global ? &c->shadows[c->of[buf - 1]] : &c->tg[buf];
    uint64_t at = (global ? r->call->slot[buf - 1] : s->lo) + (uint64_t)off * size;
    for (uint64_t b = 0; b < size; b += s->grain) {
        cell *e = cell_at(c, s, at + b);
        if (!e)
            return;
        if (!global)
            forget_others(e, t.program);
        if (!b && !global && kind != WRITE && !written(e, t.program))
            found(c, EAS_FOUND_UNINITIALISED, buf, off, t, t);
        touch_cell(c, e, kind, t, buf, off);
    }
}

/* ---- barriers ---- */

static bool all_equal(const uint8_t *active, int64_t n) { return !memchr(active, !active[0], (size_t)n); }

/* The instruction at which the threads diverged: the outermost region that all threads of the group entered
 * together, or did not enter, and that some of them left. */
static uint32_t parting(const run *r)
{
    for (uint32_t d = r->depth; d-- > 0;)
        if (all_equal(r->stack[d].saved, r->threads))
            return r->stack[d].at;
    return r->stack[0].at;
}

static void on_barrier(watch *w, const run *r, uint32_t insn)
{
    struct ir_checker *c = (struct ir_checker *)w;
    c->epoch++;
    if (all_equal(r->active, r->threads))
        return;
    touch reached = {c->program, c->epoch, insn + 1, 0, 0},
          missed = {c->program, c->epoch, parting(r) + 1, 0, 0};
    reached.thread = (uint32_t)((uint8_t *)memchr(r->active, 1, (size_t)r->threads) - r->active);
    missed.thread = (uint32_t)((uint8_t *)memchr(r->active, 0, (size_t)r->threads) - r->active);
    found(c, EAS_FOUND_DIVERGENT_BARRIER, 0, 0, reached, missed);
}

static void on_fence(watch *w, const run *r, uint32_t insn)
{
    struct ir_checker *c = (struct ir_checker *)w;
    const eas_order order = ir_fence_order(r->ir->insns[insn].imm);
    c->acquired |= order != EAS_ORDER_RELEASE;
    if (order != EAS_ORDER_ACQUIRE)
        c->released.at[c->program - 1] = ++c->clock;
}

static void on_program(watch *w, const run *r)
{
    struct ir_checker *c = (struct ir_checker *)w;
    (void)r;
    c->program++;
    c->epoch = c->clock = 0;
    c->acquired = false;
    if (!vec_push(&c->released, 0u))
        c->mem.oom = true;
}

/* ---- setting up ---- */

static bool add_pages(struct ir_checker *c, shadow *s)
{
    s->page = arena_alloc(&c->mem, ((s->hi - s->lo) / s->grain / PAGE + 1) * sizeof *s->page);
    return s->page != NULL;
}

/* Arguments whose memory overlaps share a shadow; a cell is as large as their smallest element, or a byte if
 * they are not aligned to it. */
static bool join(struct ir_checker *c, uint64_t lo, uint64_t hi, uint32_t size)
{
    shadow s = {.lo = lo, .hi = hi, .grain = size};
    for (uint32_t i = 0; i < c->nshadows;) {
        shadow *o = &c->shadows[i];
        if (o->lo >= s.hi || s.lo >= o->hi) {
            i++;
            continue;
        }
        s.grain = (o->lo - s.lo) % s.grain || (o->lo - s.lo) % o->grain ? 1
                : s.grain < o->grain                                    ? s.grain
                                                                        : o->grain;
        s.lo = o->lo < s.lo ? o->lo : s.lo;
        s.hi = o->hi > s.hi ? o->hi : s.hi;
        *o = c->shadows[--c->nshadows];
        i = 0; /* the joined range may overlap others now */
    }
    c->shadows[c->nshadows++] = s;
    return true;
}

static bool shadow_arguments(struct ir_checker *c)
{
    const eas_ir *ir = c->ir;
    c->shadows = arena_alloc(&c->mem, ((size_t)ir->nparams + 1) * sizeof *c->shadows);
    c->of = arena_alloc(&c->mem, ((size_t)ir->nparams + 1) * sizeof *c->of);
    if (!c->shadows || !c->of)
        return false;
    for (int i = 0; i < ir->nparams; i++) {
        uint32_t size = (uint32_t)eas_dtype_size(ir->vals[i + 1].type.dtype);
        if (ir->vals[i + 1].type.kind == IR_BUF && c->call->count[i])
            join(c, c->call->slot[i], c->call->slot[i] + (uint64_t)c->call->count[i] * size, size);
    }
    for (int i = 0; i < ir->nparams; i++)
        for (uint32_t k = 0; k < c->nshadows; k++)
            if (c->call->slot[i] >= c->shadows[k].lo && c->call->slot[i] < c->shadows[k].hi)
                c->of[i] = k;
    for (uint32_t k = 0; k < c->nshadows; k++)
        if (!add_pages(c, &c->shadows[k]))
            return false;
    return true;
}

static bool shadow_threadgroup(struct ir_checker *c)
{
    c->tg = arena_alloc(&c->mem, c->ir->nvals * sizeof *c->tg);
    for (uint32_t v = 1; v < c->ir->nvals && c->tg; v++) {
        ir_type t = ir_typeof(c->ir, v);
        if (t.kind != IR_TG)
            continue;
        uint32_t size = (uint32_t)eas_dtype_size(t.dtype);
        c->tg[v] = (shadow){.lo = 0, .hi = (uint64_t)t.dim[0] * size, .grain = size};
        if (!add_pages(c, &c->tg[v]))
            return false;
    }
    return c->tg != NULL;
}

eas_status ir_check(const eas_ir *ir, const ir_call *call, ir_report *report)
{
    struct ir_checker c = {
        .w = {.access = on_access, .barrier = on_barrier, .fence = on_fence, .program = on_program},
        .ir = ir,
        .call = call,
        .report = report};
    if ((double)call->grid[0] * (double)call->grid[1] * (double)call->grid[2] >= (double)UINT32_MAX)
        return base_fail(EAS_ERR_VALUE, "kernel %s: a grid of %lld x %lld x %lld is too large to check",
                         ir->name, (long long)call->grid[0], (long long)call->grid[1],
                         (long long)call->grid[2]);
    eas_status st = shadow_arguments(&c) && shadow_threadgroup(&c)
                      ? interp_watched(ir, call, &c.w)
                      : base_fail_oom(ir->nvals * sizeof(shadow));
    if (!st && (c.mem.oom || report->oom))
        st = base_fail(
            EAS_ERR_MEMORY,
            "out of memory: checking kernel %s needs about 150 bytes for each element that it touches",
            ir->name);
    vec_free(&c.released);
    arena_free(&c.mem);
    return st;
}
