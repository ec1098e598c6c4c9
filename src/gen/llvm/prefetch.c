/* prefetch.c: asks the memory for cache lines before they are read or written.
 *
 * What the next round of the loop around a segment, or the next program, will read lies at the same offsets,
 * computed from uniform values one step further: next_values computes those before the segment, next_offset
 * the offsets. Offsets that are one line over the whole inner dim are computed before the loop over chunks.
 * plan/prefetch.c decides which loads and stores are prefetched where.
 */
#include "llvm.h"

/* ---- the next round ---- */

/* The value that a uniform load would read one round later. It is used for prefetching only, so it may be
 * wrong: if the place is outside of the buffer, the frame of the call is read instead. */
static V peek(gen *g, V *next, const ir_insn *load)
{
    const uint32_t *a = ir_args(g->ir, load);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, load->res).dtype;
    V off = value_cast(g, next[a[1]], (eas_dtype)ir_typeof(g->ir, a[1]).dtype, EAS_I64);
    V inside = LLVMBuildICmp(g->b, LLVMIntULT, off, mem_count(g, a[0]), "");
    return mem_load_scalar(g, sel(g, inside, mem_element(g, next[a[0]], dt, off), g->call), dt, k_int(g, 0));
}

static uint32_t first_insn(const segment *s)
{
    for (uint32_t k = 0; k < s->items.len; k++)
        if (s->items.at[k].insn != UINT32_MAX)
            return s->items.at[k].insn;
    return UINT32_MAX;
}

/* Does it depend on the loop's counter, by way of values that were made before the segment? A uniform
 * value that is made of a block is not made again. */
static bool moves_on(gen *g, V *next, const ir_insn *in, bool uniform)
{
    bool moves = false;
    for (int k = 0; k < in->nargs; k++) {
        const uint32_t a = ir_args(g->ir, in)[k];
        if (g->p.val[a].cls == C_UNI ? !next[a] : uniform && g->p.val[a].cls != C_NONE)
            return false;
        moves = moves || g->moves[a];
    }
    return moves;
}

/* What moves on: the loop's counter, or for segments outside loops the program's number. */
static void step_on(gen *g, uint32_t loop, V *next)
{
    if (loop != UINT32_MAX) {
        const ir_insn *in = &g->ir->insns[loop];
        next[in->res] = LLVMBuildAdd(g->b, g->sval[in->res], g->sval[ir_args(g->ir, in)[2]], "");
        g->moves[in->res] = true;
        return;
    }
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        if (in->op != IR_PROGRAM_ID || in->imm != 0 || !g->sval[in->res])
            continue;
        next[in->res] = LLVMBuildAdd(g->b, g->sval[in->res], k_like(g, LLVMTypeOf(g->sval[in->res]), 1), "");
        g->moves[in->res] = true;
    }
}

static bool wants_next(const segment *s)
{
    for (uint32_t k = 0; k < s->prefetches.len; k++)
        if (s->prefetches.at[k].next)
            return true;
    return false;
}

/* Uniform values as the next round will have them: those that depend on what moves on are computed once
 * more, ahead of the segment. */
void next_values(gen *g, const segment *s)
{
    const uint32_t first = first_insn(s), loop = first == UINT32_MAX ? first : g->p.parent[first];
    const size_t nv = g->ir->nvals + 1;
    g->next = NULL;
    if (first == UINT32_MAX || s->kind == SEG_SIMDGROUPS || (s->kind == SEG_WHOLE && !s->prefetches.len) ||
        (loop == UINT32_MAX ? !wants_next(s) : g->ir->insns[loop].op != IR_LOOP))
        return;
    V *next = arena_alloc(&g->mem, nv * sizeof *next);
    g->moves = arena_alloc(&g->mem, nv);
    g->next_cache = arena_alloc(&g->mem, nv * sizeof *g->next_cache);
    if (!next || !g->moves || !g->next_cache) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    memcpy(next, g->sval, (nv - 1) * sizeof *next);
    step_on(g, loop, next);
    for (uint32_t i = loop + 1; i < (loop == UINT32_MAX ? first : g->p.end[loop]) && !g->st; i++) {
        const ir_insn *x = &g->ir->insns[i];
        const bool uniform = x->res && g->p.val[x->res].cls == C_UNI && !g->p.made[x->res].inside,
                   peeks = uniform && plan_peeks(g->ir, x);
        if (!x->res || x->nres != 1 || !(ir_rows[x->op].flags & IR_PURE || peeks) || g->p.parent[i] != loop ||
            !moves_on(g, next, x, uniform))
            continue;
        if (peeks)
            next[x->res] = peek(g, next, x);
        else if (uniform)
            next[x->res] = scalar_value(g, next, x);
        g->moves[x->res] = true;
    }
    g->next = next;
}

/* ---- offsets ---- */

bool seg_available(gen *g, uint32_t v)
{
    const ir_insn *in = ir_def(g->ir, v);
    if (g->p.val[v].cls == C_UNI)
        return g->sval[v] != NULL && !g->p.made[v].inside;
    if (g->p.val[v].cls != C_REMAT)
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!seg_available(g, ir_args(g->ir, in)[k]))
            return false;
    return true;
}

/* The offset at the running inner index, from its line. */
static bool on_line(gen *g, const chunk *c, uint32_t v, bool next, aff *out)
{
    for (uint32_t k = 0; k < c->lines.len; k++) {
        const line *l = &c->lines.at[k];
        if (l->v != v || l->next != next)
            continue;
        *out = l->a;
        if (l->a.run.stride)
            out->base =
                LLVMBuildAdd(g->b, l->a.base,
                             LLVMBuildMul(g->b, c->idx[c->sh.rank - 1], k_int(g, l->a.run.stride), ""), "");
        return true;
    }
    return false;
}

aff seg_offset(gen *g, chunk *c, uint32_t v)
{
    aff a;
    return on_line(g, c, v, false, &a) ? a : affine_at(g, c, v, map_identity(c->sh.rank));
}

/* In a copy of the chunk that sees the next round's values, and remembers what it makes of them elsewhere. */
aff next_offset(gen *g, const chunk *c, uint32_t v)
{
    aff a = {0};
    if (!g->next || !g->moves[v] || on_line(g, c, v, true, &a))
        return a;
    chunk later = *c;
    later.sval = g->next;
    later.cache = g->next_cache;
    memset(&later.log, 0, sizeof later.log);
    a = affine_at(g, &later, v, map_identity(c->sh.rank));
    chunk_forget(&later, 0);
    vec_free(&later.log);
    return a;
}

static void add_line(gen *g, uint32_t v, bool next)
{
    aff a;
    if (!seg_available(g, v) || on_line(g, g->c, v, next, &a))
        return;
    a = next ? next_offset(g, g->c, v) : affine_of(g, v, seg_map(g));
    if (a.run.ok && a.run.exact && a.run.whole && !vec_push(&g->c->lines, ((line){v, next, a})))
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
}

/* Offsets of the segment's own accesses and prefetches; the chunk stands at inner index 0. */
void offset_lines(gen *g, const segment *s)
{
    g->c->lines.len = 0;
    for (uint32_t k = 0; k < s->items.len; k++) {
        const ir_insn *in = s->items.at[k].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[k].insn];
        if (in && (in->op == IR_LOAD || in->op == IR_STORE)) {
            add_line(g, ir_args(g->ir, in)[1], false);
            if (in->op == IR_LOAD && g->next)
                add_line(g, ir_args(g->ir, in)[1], true);
        }
    }
    for (uint32_t k = 0; k < s->prefetches.len; k++)
        add_line(g, ir_args(g->ir, &g->ir->insns[s->prefetches.at[k].insn])[1], s->prefetches.at[k].next);
}

/* ---- prefetches ---- */

static V k_int32(gen *g, int v) { return LLVMConstInt(ty_int(g, 32, 0), (uint64_t)v, 0); }

/* Into the cache of that level. A prefetch never faults. */
static void touch(gen *g, V ptr, eas_dtype dt, aff a, int level)
{
    if (!a.run.ok || !a.run.exact || a.run.stride < 0 || a.run.stride > 1)
        return;
    T t = LLVMPointerTypeInContext(g->cx, 0);
    V x[4] = {mem_affine_element(g, ptr, dt, a, 0), k_int32(g, 0), k_int32(g, 4 - level), k_int32(g, 1)};
    intrinsic(g, "llvm.prefetch", &t, 1, x, 4);
}

/* A line that is to be written. Where stores are non-temporal, some line that is in the cache anyway is
 * prefetched instead. */
static void touch_store(gen *g, V ptr, eas_dtype dt, aff a)
{
    if (!a.run.ok || !a.run.exact || a.run.stride != 1)
        return;
    T t = LLVMPointerTypeInContext(g->cx, 0);
    V x[4] = {sel(g, mem_streams(g), g->call, mem_affine_element(g, ptr, dt, a, 0)), k_int32(g, 1),
              k_int32(g, 3), k_int32(g, 1)};
    intrinsic(g, "llvm.prefetch", &t, 1, x, 4);
}

void prefetch_load(gen *g, uint32_t buf, aff off)
{
    touch(g, g->sval[buf], (eas_dtype)ir_typeof(g->ir, buf).dtype, off, 1);
}

/* Of narrow elements a chunk reads a cache line or two of each row, and rows lie so far apart that hardware
 * does not predict them. Into the second cache: rows that far apart compete for few places in the first. */
void prefetch_further(gen *g, uint32_t buf, aff off)
{
    enum { LINE = 64, NARROW = 2 };
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, buf).dtype;
    const int64_t size = (int64_t)eas_dtype_size(dt);
    if (size > NARROW)
        return;
    for (int64_t at = 0; at < g->c->n; at += LINE / size) {
        aff there = off;
        there.k += g->c->n + at;
        touch(g, g->sval[buf], dt, there, 2);
    }
}

static aff offset_of(gen *g, chunk *c, const prefetch *x)
{
    const uint32_t off = ir_args(g->ir, &g->ir->insns[x->insn])[1];
    return !seg_available(g, off) ? (aff){0} : x->next ? next_offset(g, c, off) : seg_offset(g, c, off);
}

static void prefetch_one(gen *g, const prefetch *x, aff off)
{
    const ir_insn *in = &g->ir->insns[x->insn];
    const uint32_t buf = ir_args(g->ir, in)[0];
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, buf).dtype;
    if (in->op == IR_STORE)
        touch_store(g, g->sval[buf], dt, off);
    else
        touch(g, g->sval[buf], dt, off, 2);
}

void prefetch_chunk(gen *g, const prefetch *x)
{
    aff off = offset_of(g, g->c, x);
    const int d = g->c->sh.rank - 1;
    if (off.run.ok && x->half) { /* in a row: each line is prefetched twice, which costs little */
        off.base = LLVMBuildSub(g->b, off.base, LLVMBuildLShr(g->b, g->c->idx[d], k_int(g, 1), ""), "");
        off.k += x->half == 2 ? g->c->sh.dim[d] / 2 : 0;
    }
    prefetch_one(g, x, off);
}

shape prefetch_reach(const gen *g, const prefetch *x)
{
    const ir_insn *in = &g->ir->insns[x->insn];
    return g->p.val[in->op == IR_STORE ? ir_args(g->ir, in)[2] : in->res].sh;
}

void prefetch_at(gen *g, const prefetch *x, V row, V col)
{
    chunk c;
    if (!chunk_at(g, prefetch_reach(g, x), row, col, &c))
        return;
    const aff off = offset_of(g, &c, x);
    if (off.run.stride == 1)
        prefetch_one(g, x, off);
    vec_free(&c.log);
}
