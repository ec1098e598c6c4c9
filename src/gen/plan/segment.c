/* segment.c: a kernel as steps: scalar instructions, segments and scalar-level regions.
 *
 * Problem: instructions on blocks have to run in pieces of one vector (chunks). Running each instruction over
 * all chunks before the next one would send every value through memory.
 *
 * Idea: neighbouring block instructions of one shape form a segment, whose instructions all run on the first
 * chunk, then on the second, and so on: values inside stay in registers. An instruction joins the open
 * segment as long as the invariants hold; otherwise the segment is closed and a new one opened.
 *
 * Invariants
 *   - Everything in one segment may be executed chunk after chunk: no two of its accesses can touch one
 *     element from different lanes if one of them is a store. In SPMD mode that is proved from the
 *     offsets, in thread mode the kernel's barriers say so. A short block that would have to be cut
 *     there is one chunk instead, in which the order of instructions is kept.
 *   - A C_BLOCK value that is read outside its segment, or through an index map other than the identity,
 *     has a slot.
 *   - A scalar instruction between instructions of a segment is pure and is moved in front of it.
 */
#include "segment.h"

bool segment_touches_memory(const ir_insn *in)
{
    return in->op == IR_LOAD || in->op == IR_STORE || in->op == IR_BOUNDS || in->op == IR_DOT ||
           in->op == IR_ASSERT || ir_is_atomic(in);
}

bool segment_is_mma(const ir_insn *in)
{
    return in->op == IR_MMA || in->op == IR_MMA_ZERO || in->op == IR_MMA_STORE;
}

void step_push(planner *q, step s)
{
    if (!vec_push(&q->out->v, s))
        q->p->mem->oom = true;
}

void segment_close(planner *q)
{
    if (!q->open)
        return;
    step_push(q, (step){.kind = S_SEGMENT, .seg = q->open});
    q->open = NULL;
    q->views = false;
    q->acc.len = 0;
}

void segment_open(planner *q, shape sh, int kind)
{
    if (q->open && (int)q->open->kind == kind && shape_eq(&q->open->sh, &sh))
        return;
    segment_close(q);
    q->open = arena_alloc(q->p->mem, sizeof *q->open);
    if (!q->open)
        return;
    q->open->id = ++q->p->nsegs;
    q->open->sh = sh;
    q->open->kind = kind;
}

void segment_push(planner *q, item it)
{
    if (!q->open || !vec_push(&q->open->items, it))
        q->p->mem->oom = true;
}

/* May an instruction that reads v join the open segment? Not if v is made in it and read through a map. */
bool segment_readable(planner *q, uint32_t v, const shape *sh)
{
    const view w = plan_resolve(q->p, v, map_identity(sh->rank));
    if (q->p->val[w.v].cls != C_BLOCK || plan_identity(q->p, &w, sh))
        return true;
    if (q->open && q->p->made[w.v].seg == q->open->id)
        return false;
    q->views = true;
    return true;
}

/* Does it wait for the end of the open segment? */
bool segment_waits(const planner *q, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++)
        if (q->open && q->p->made[ir_args(q->p->ir, in)[k]].ready == q->open->id)
            return true;
    return false;
}

/* A value that is recomputed from others is ready when the last of them is. */
static void pass_on_ready(planner *q, const ir_insn *in)
{
    origin *v = &q->p->made[in->res];
    for (int k = 0; k < in->nargs; k++)
        if (q->p->made[ir_args(q->p->ir, in)[k]].ready > v->ready)
            v->ready = q->p->made[ir_args(q->p->ir, in)[k]].ready;
}

/* The operand of a move is made in the open segment: not all of it is there yet. */
bool segment_half_made(planner *q, const ir_insn *in)
{
    if (!is_move(in))
        return false;
    const uint32_t src = ir_args(q->p->ir, in)[0];
    if (q->p->val[src].cls != C_BLOCK)
        return false;
    if (q->open && q->p->made[src].seg == q->open->id)
        return true;
    q->views = true;
    return false;
}

bool segment_uses_open(const planner *q, const ir_insn *in)
{
    for (int i = 0; i < in->nargs; i++) {
        const uint32_t a = ir_args(q->p->ir, in)[i];
        if (q->open && q->p->val[a].cls == C_UNI && q->p->made[a].inside && q->p->made[a].seg == q->open->id)
            return true;
    }
    return false;
}

void segment_define(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    if (q->open == NULL)
        return;
    q->p->seg_of[i] = q->open->id;
    for (uint32_t k = 0; k < in->nres; k++) {
        origin *v = &q->p->made[in->res + k];
        v->seg = q->open->id;
        v->inside = v->inside || q->p->val[in->res + k].cls == C_UNI;
    }
}

/* the iteration shape of a block instruction */
shape segment_shape(const plan *p, const ir_insn *in)
{
    if (in->op == IR_ASSERT && p->info.mode == EAS_MODE_SPMD)
        return p->val[ir_args(p->ir, in)[0]].sh;
    if (p->info.mode == EAS_MODE_THREAD)
        return (shape){1, {(int32_t)p->info.block}};
    if (in->op == IR_STORE || in->op == IR_BOUNDS)
        return p->val[ir_args(p->ir, in)[1]].sh;
    return p->val[is_reduce(in) ? ir_args(p->ir, in)[0] : in->res].sh;
}

/* A block that a few registers hold. */
static bool fits_at_once(const planner *q, const shape *sh, int kind)
{
    enum { MOST_LANES = 32 };
    const int32_t n = sh->dim[0];
    return q->p->info.mode == EAS_MODE_SPMD && kind == SEG_CHUNKS && q->open && !q->open->reduces &&
           sh->rank == 1 && n >= 4 && n <= MOST_LANES && (n & (n - 1)) == 0;
}

static void plan_block(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    const shape sh = segment_shape(q->p, in);
    const int kind = segment_is_mma(in) ? SEG_SIMDGROUPS : SEG_CHUNKS;
    accesses add = {0};
    plan_add_accesses(q->p, i, &add);
    segment_open(q, sh, kind);
    bool ok = !plan_conflicts(q->p, &q->acc, &add, UINT32_MAX);
    if (!ok && fits_at_once(q, &sh, kind))
        ok = q->open->at_once = true;
    ok = ok && !segment_half_made(q, in);
    for (int k = 0; k < in->nargs; k++)
        ok = ok && segment_readable(q, ir_args(q->p->ir, in)[k], &sh);
    if (!ok) {
        segment_close(q);
        segment_open(q, sh, kind);
        segment_half_made(q, in);
        for (int k = 0; k < in->nargs; k++)
            segment_readable(q, ir_args(q->p->ir, in)[k], &sh);
    }
    for (uint32_t k = 0; k < add.len; k++)
        if (!vec_push(&q->acc, add.at[k]))
            q->p->mem->oom = true;
    vec_free(&add);
    segment_push(q, (item){.insn = i});
    segment_define(q, i);
}

/* A reduction takes part in the segment of its operand; its result is there when that ends. */
static void plan_reduce(planner *q, uint32_t i)
{
    if (q->open && q->open->at_once)
        segment_close(q);
    plan_block(q, i);
    origin *v = &q->p->made[q->p->ir->insns[i].res];
    if (!q->open)
        return;
    q->open->reduces = true;
    v->ready = q->open->id;
    v->inside = false;
    v->seg = q->p->val[q->p->ir->insns[i].res].cls == C_UNI ? 0 : v->seg;
}

static void plan_alone(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    segment_close(q);
    segment_open(q, q->p->val[in->res].sh, SEG_WHOLE);
    segment_push(q, (item){.insn = i});
    segment_define(q, i);
    q->p->made[in->res].inside = false;
    if (q->p->val[in->res].cls == C_UNI)
        q->p->made[in->res].seg = 0;
    /* what may follow waits for it; else scalars pass, and a product can tell where its result will go */
    if (q->p->val[in->res].cls == C_UNI)
        segment_close(q);
}

static void plan_scalar(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    if (segment_half_made(q, in))
        segment_close(q);
    if (ir_rows[in->op].flags & IR_PURE) {
        if (segment_uses_open(q, in)) {
            segment_push(q, (item){.insn = i});
            segment_define(q, i);
            return;
        }
    } else {
        accesses add = {0};
        plan_add_accesses(q->p, i, &add);
        if (in->op == IR_STORE || in->op == IR_BOUNDS || ir_is_atomic(in) || segment_uses_open(q, in) ||
            plan_conflicts(q->p, &q->acc, &add, UINT32_MAX))
            segment_close(q);
        vec_free(&add);
    }
    step_push(q, (step){.kind = S_SCALAR, .insn = i});
}

/* Where an instruction of the top level or of a region at scalar level goes: to nowhere (it is
 * rematerialised or read in place), to a segment of its own, into the open segment if it can run lane by
 * lane with what is in there, or between segments as scalar code. What waits for a result of the open
 * segment closes it first. */
void segment_insn(planner *q, uint32_t i)
{
    plan *p = q->p;
    const ir_insn *in = &p->ir->insns[i];
    const bool spmd = p->info.mode == EAS_MODE_SPMD;
    const uint8_t cls = in->res ? p->val[in->res].cls : C_NONE;
    if (in->op == IR_ALLOC_TG)
        return;
    if (in->op == IR_BARRIER) {
        if (!spmd)
            segment_close(q);
        return;
    }
    if (in->op == IR_FENCE) { /* every lane before it, none after */
        segment_close(q);
        step_push(q, (step){.kind = S_SCALAR, .insn = i});
        return;
    }
    if (cls == C_FACTOR || in->op == IR_NOP)
        return;
    if (cls == C_REMAT || cls == C_VIEW) {
        pass_on_ready(q, in);
        return;
    }
    if (segment_waits(q, in))
        segment_close(q);
    if (plan_whole(p, in))
        plan_alone(q, i);
    else if (is_reduce(in) && p->val[ir_args(p->ir, in)[0]].sh.rank)
        plan_reduce(q, i);
    else if (segment_is_mma(in) || cls == C_BLOCK)
        plan_block(q, i);
    else if (!spmd && segment_touches_memory(in))
        plan_block(q, i);
    else if (in->op == IR_STORE && p->val[ir_args(p->ir, in)[1]].sh.rank)
        plan_block(q, i);
    else if (in->op == IR_ASSERT && p->val[ir_args(p->ir, in)[0]].sh.rank)
        plan_block(q, i);
    else
        plan_scalar(q, i);
}
