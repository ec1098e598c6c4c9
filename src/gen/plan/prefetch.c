/* prefetch.c: which loads and stores are prefetched, and in which segment.
 *
 * The problem: a program that goes over its block several times waits for memory in the segment that loads
 * it, and computes in the others. The idea: each load is prefetched by another segment of the same shape.
 *   - The loads of a segment are prefetched by the segment before it. The loads that the first segment of the
 *     next program will do are prefetched by the segment with the most instructions, which also prefetches
 * the lines that the last segment writes.
 *   - The tiles that a loop multiplies are prefetched, one round ahead, by the product.
 *   - Rows whose numbers are data come in an order that hardware cannot predict, and the hardware's
 * prefetcher stops at the end of rows that are only summed up: in both cases the segment prefetches the row
 * of the next program. It is assumed that programs run in order on one thread (src/base/pool.c); where they
 * do not, prefetches are wasted and nothing breaks.
 */
#include "plan.h"

static uint32_t weight(const segment *s) { return s->items.len; }

static void add_prefetch(plan *p, segment *in, uint32_t insn, bool next)
{
    if (!vec_push(&in->prefetches, ((prefetch){insn, next, 0})))
        p->mem->oom = true;
}

static void add_loads(plan *p, const segment *from, segment *to, bool next)
{
    for (uint32_t k = 0; k < from->items.len; k++) {
        const uint32_t i = from->items.at[k].insn;
        if (i == UINT32_MAX || !plan_peeks(p->ir, &p->ir->insns[i]))
            continue;
        p->prefetched[i] = true;
        add_prefetch(p, to, i, next);
    }
}

/* Where blocks are kept in the output, the segment that makes them and the last one wait for memory
 * equally long: each prefetches half of the next row. */
static void add_halves(plan *p, const segment *from, segment *first, segment *second)
{
    const uint32_t had[2] = {first->prefetches.len, second->prefetches.len};
    add_loads(p, from, first, true);
    add_loads(p, from, second, true);
    for (uint32_t k = had[0]; k < first->prefetches.len; k++)
        first->prefetches.at[k].half = 1;
    for (uint32_t k = had[1]; k < second->prefetches.len; k++)
        second->prefetches.at[k].half = 2;
}

/* Lines that a block is kept in (output.c) are in the cache already and are left out. */
static void add_stores(plan *p, const segment *from, segment *to)
{
    for (uint32_t k = 0; k < from->items.len; k++) {
        const uint32_t i = from->items.at[k].insn;
        const ir_insn *in = i == UINT32_MAX ? NULL : &p->ir->insns[i];
        if (!in || in->op != IR_STORE || ir_typeof(p->ir, ir_args(p->ir, in)[0]).kind != IR_BUF ||
            !plan_stays(p, ir_args(p->ir, in)[1]))
            continue;
        if (!plan_output_of(p, i))
            add_prefetch(p, to, i, false);
    }
}

static int64_t flops(const plan *p, const segment *s)
{
    const ir_insn *in = &p->ir->insns[s->items.at[0].insn];
    return s->kind == SEG_WHOLE && in->op == IR_MATMUL
             ? shape_lanes(&p->val[in->res].sh) * ir_typeof(p->ir, ir_args(p->ir, in)[0]).dim[1]
             : 0;
}

enum { FEW_ROWS = 16, LARGE_BYTES = 96 << 10, LONGEST_ROW = 8192 };

static const segment *next_segment(const steps *s, uint32_t i)
{
    do
        i++;
    while (i < s->v.len && s->v.at[i].kind == S_SCALAR);
    return i < s->v.len && s->v.at[i].kind == S_SEGMENT ? s->v.at[i].seg : NULL;
}

static int64_t bytes(const plan *p, uint32_t v)
{
    return shape_lanes(&p->val[v].sh) * (int64_t)eas_dtype_size((eas_dtype)ir_typeof(p->ir, v).dtype);
}

/* A product that reads its large factor in place has time to fetch the next one, and the lines that its
 * result will go to. */
static void prefetch_in_product(plan *p, segment *s, const segment *after)
{
    const ir_insn *in = &p->ir->insns[s->items.at[0].insn];
    const uint32_t y = flops(p, s) ? ir_args(p->ir, in)[1] : 0;
    if (!y || p->val[y].cls != C_FACTOR || ir_typeof(p->ir, y).dtype == EAS_BF16 ||
        ir_typeof(p->ir, in->res).dim[0] <= FEW_ROWS || bytes(p, y) < LARGE_BYTES)
        return;
    add_prefetch(p, s, p->ir->vals[y].def, true);
    if (after && shape_eq(&after->sh, &p->val[in->res].sh))
        add_stores(p, after, s);
}

/* Factors that are read where they lie, once, before the product begins. */
static void add_lent_halves(plan *p, segment *host)
{
    const uint32_t *a = ir_args(p->ir, &p->ir->insns[host->items.at[0].insn]);
    for (int k = 0; k < 2; k++)
        if (p->val[a[k]].cls == C_FACTOR && ir_typeof(p->ir, a[k]).dtype == EAS_BF16)
            add_prefetch(p, host, p->ir->vals[a[k]].def, true);
}

/* A loop that multiplies matrices has time to fetch the tiles of its next round while it does. */
static void prefetch_in_loop(plan *p, const steps *body)
{
    segment *host = NULL;
    for (uint32_t i = 0; i < body->v.len; i++) {
        segment *s = body->v.at[i].kind == S_SEGMENT ? body->v.at[i].seg : NULL;
        if (s && s->items.len && flops(p, s) > (host ? flops(p, host) : 0))
            host = s;
    }
    if (host)
        add_lent_halves(p, host);
    for (uint32_t i = 0; host && i < body->v.len; i++) {
        const segment *s = body->v.at[i].kind == S_SEGMENT ? body->v.at[i].seg : NULL;
        if (s && s->kind == SEG_CHUNKS && s->sh.rank == 2)
            add_loads(p, s, host, true);
    }
    if (host)
        prefetch_in_product(p, host, NULL);
}

static void prefetch_in_loops(plan *p, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        const step *st = &s->v.at[i];
        if (st->kind != S_REGION)
            continue;
        if (p->ir->insns[st->insn].op == IR_LOOP)
            prefetch_in_loop(p, st->body);
        prefetch_in_loops(p, st->body);
        prefetch_in_loops(p, st->other);
    }
}

enum { MAX_PATH = 6, LONG_ROW = 256 };

bool plan_peeks(const eas_ir *ir, const ir_insn *in)
{
    return in->op == IR_LOAD && ir_typeof(ir, ir_args(ir, in)[0]).kind == IR_BUF;
}

/* Does a uniform value that was loaded decide where v points? */
static bool is_data(const plan *p, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(p->ir, v);
    if (!in || depth > MAX_PATH)
        return false;
    if (plan_peeks(p->ir, in))
        return p->val[v].cls == C_UNI && !p->made[v].inside;
    bool yes = false;
    for (int k = 0; k < in->nargs && ir_rows[in->op].flags & IR_PURE; k++)
        yes = yes || is_data(p, ir_args(p->ir, in)[k], depth + 1);
    return yes;
}

static void prefetch_rows(plan *p, segment *s)
{
    for (uint32_t k = 0; k < s->items.len; k++) {
        const uint32_t i = s->items.at[k].insn;
        if (i == UINT32_MAX || p->prefetched[i] || !plan_peeks(p->ir, &p->ir->insns[i]) ||
            !is_data(p, ir_args(p->ir, &p->ir->insns[i])[1], 0))
            continue;
        p->prefetched[i] = true;
        add_prefetch(p, s, i, true);
    }
}

/* A program that only sums up one row: where rows end, hardware stops looking ahead, and each begins with
 * a wait. */
static bool sums_row(const segment *s) { return s->reduces && s->sh.rank == 1 && s->sh.dim[0] >= LONG_ROW; }

/* Memory is waited for in the first segment that goes over a row; later ones find it in the caches and
 * have the memory to spare. So the heaviest later segment (the host) prefetches what the next program's
 * first one will load, and the lines that the last one will store to; where a row is long it is the last
 * segment that prefetches. In loops the next round takes the place of the next program. */
void plan_prefetch(plan *p)
{
    segment *first = NULL, *before = NULL, *host = NULL;
    p->prefetched = arena_alloc(p->mem, (size_t)p->ir->ninsns + 1);
    if (p->info.mode == EAS_MODE_THREAD || !p->prefetched)
        return;
    prefetch_in_loops(p, p->top);
    for (uint32_t i = 0; i < p->top->v.len; i++) {
        segment *s = p->top->v.at[i].kind == S_SEGMENT ? p->top->v.at[i].seg : NULL;
        if (!s || s->kind != SEG_CHUNKS || (first && !shape_eq(&first->sh, &s->sh)))
            continue;
        if (before)
            add_loads(p, s, before, false);
        if (first && (!host || weight(s) > weight(host)))
            host = s;
        first = first ? first : s;
        before = s;
    }
    if (!host && first && sums_row(first))
        host = first;
    if (host && host != before && p->outputs.len)
        add_halves(p, first, host, before);
    else if (host) /* of a long row the last segment does it */
        add_loads(p, first, shape_lanes(&first->sh) >= LONGEST_ROW ? before : host, true);
    if (host && before != host)
        add_stores(p, before, host);
    for (uint32_t i = 0; i < p->top->v.len; i++) {
        segment *s = p->top->v.at[i].kind == S_SEGMENT ? p->top->v.at[i].seg : NULL;
        if (s && s->kind == SEG_CHUNKS)
            prefetch_rows(p, s);
        if (s && s->kind == SEG_WHOLE && s->items.len)
            prefetch_in_product(p, s, next_segment(p->top, i));
    }
}
