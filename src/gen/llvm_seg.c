/* llvm_seg.c: one segment as loops over chunks.
 *
 *   for outer indices: counts of the prefix masks;
 *     lanes before the first address at which a vector may be streamed, if that is asked for
 *     full chunks: no masks at all (twice, if streaming stores pay: with and without)
 *     the remaining chunks: masks as they are, lanes beyond the block switched off
 *
 * Inside a chunk values are made on demand and remembered in a cache keyed by (value, index map); leaving a region forgets what
 * was made inside it, so every remembered LLVM value dominates its uses. Uniform control flow is branches; control flow that differs between
 * lanes runs under c->exec, and skips what no lane takes.
 */
#include "llvm.h"

enum { SMALL_BODY = 160, STREAM_BODY = 64, UNROLL_BODY = 64, SHIFT_CHUNKS = 8, ROUND_BODY = 192 };

/* ---- the cache ---- */

map_t seg_map(gen *g) { return map_identity(g->c->sh.rank); }

entry *seg_find(gen *g, uint32_t v, map_t m)
{
    for (entry *e = g->c->cache[v]; e; e = e->next)
        if (e->m == m)
            return e;
    return NULL;
}

static entry *new_entry(gen *g, uint32_t v, map_t m)
{
    entry *e = arena_alloc(&g->mem, sizeof *e);
    if (!e) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return NULL;
    }
    *e = (entry){.next = g->c->cache[v], .v = v, .m = m};
    g->c->cache[v] = e;
    return e;
}

void seg_remember(gen *g, uint32_t v, map_t m, V vec, const aff *a)
{
    entry *e = seg_find(g, v, m);
    if (!e)
        e = new_entry(g, v, m);
    if (!e)
        return;
    if (!(a ? e->has_aff : e->has_vec) && !vec_push(&g->c->log, ((made){e, a != NULL})))
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
    if (a)
        e->a = *a, e->has_aff = 1;
    else
        e->vec = vec, e->has_vec = 1;
}

static void forget(gen *g, uint32_t mark)
{
    while (g->c->log.len > mark) {
        const made m = g->c->log.at[--g->c->log.len];
        if (m.affine)
            m.e->has_aff = 0;
        else
            m.e->has_vec = 0;
    }
}

/* ---- values on demand ---- */

V seg_linear(gen *g, const shape *sh, map_t m, int64_t *stride)
{
    V at = k_int(g, 0);
    int64_t scale = 1;
    *stride = 0;
    for (int d = sh->rank - 1; d >= 0; d--) {
        const int i = map_get(m, d);
        if (i != NODIM)
            at = LLVMBuildAdd(g->b, at, LLVMBuildMul(g->b, g->c->idx[i], k_int(g, scale), ""), "");
        if (i == g->c->sh.rank - 1)
            *stride += scale;
        scale *= sh->dim[d];
    }
    return at;
}

/* lanes that may be read: beyond the end of an inner dim there is another row, or padding that is always there */
static V from_slot(gen *g, const view *w)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, w->v).dtype;
    aff a = {.ok = true, .exact = true, .mult = 1};
    if (g->p.val[w->v].again)
        return mem_again(g, g->ir->vals[w->v].def);
    if (g->p.val[w->v].slot < 0) {
        gen_fail(g, EAS_ERR_INTERNAL, "value %u is wanted outside its segment and has no slot", (unsigned)w->v);
        return LLVMGetUndef(ty_of(g, dt, g->c->n));
    }
    a.base = seg_linear(g, w->linear ? &w->lin : &g->p.val[w->v].sh, w->linear ? w->linmap : w->m, &a.stride);
    return mem_load_affine(g, home_or_slot(g, w->v), dt, a, a.stride > 1 ? g->c->exec : NULL, NULL);
}

static V wrapped_identity(gen *g, const ir_insn *in, eas_dtype dt) /* lane_id and sg_id where a chunk is wider than a simdgroup */
{
    const int n = g->c->n;
    V i = LLVMBuildAdd(g->b, splat(g, g->c->idx[0], n), k_iota(g, ty_int(g, 64, 0), n, 1), "");
    const T t = LLVMTypeOf(i);
    i = in->op == IR_LANE_ID ? LLVMBuildAnd(g->b, i, k_like(g, t, IR_SIMD - 1), "") : LLVMBuildLShr(g->b, i, k_like(g, t, 5), "");
    return value_cast(g, i, EAS_I64, dt);
}

/* ---- slice, pad, trans ---- */

/* Which iteration dim runs along dim d of the result, NODIM for none. */
static int along(ir_type to, int d, map_t m)
{
    const int c = plan_canon_dim(to, d);
    return c == NODIM ? NODIM : map_get(m, c);
}

/* The operand's row-major number as base + stride*lane; slice and pad shift one axis by start. */
static aff moved_index(gen *g, const ir_insn *in, ir_type from, ir_type to, map_t m)
{
    aff a = {.ok = true, .exact = true, .base = k_int(g, 0), .mult = 1};
    int64_t step[IR_MAX_RANK], scale = 1;
    for (int d = from.rank - 1; d >= 0; d--) {
        step[d] = scale;
        scale *= from.dim[d];
    }
    for (int d = 0; d < to.rank; d++) {
        const int i = along(to, d, m), s = in->op == IR_TRANS ? ir_imm_perm(in->imm, d) : d;
        if (i == NODIM)
            continue;
        a.base = LLVMBuildAdd(g->b, a.base, LLVMBuildMul(g->b, g->c->idx[i], k_int(g, step[s]), ""), "");
        if (i == g->c->sh.rank - 1)
            a.stride += step[s];
    }
    if (in->op != IR_TRANS)
        a.k = (in->op == IR_SLICE ? 1 : -1) * ir_imm_start(in->imm) * step[ir_imm_axis(in->imm)];
    return a;
}

/* lanes of a pad that lie on the operand */
static V on_operand(gen *g, const ir_insn *in, ir_type from, ir_type to, map_t m)
{
    const int axis = ir_imm_axis(in->imm), i = along(to, axis, m), n = g->c->n;
    const int64_t front = ir_imm_start(in->imm);
    V at = splat(g, i == NODIM ? k_int(g, 0) : g->c->idx[i], n);
    if (i == g->c->sh.rank - 1)
        at = LLVMBuildAdd(g->b, at, k_iota(g, ty_int(g, 64, 0), n, 1), "");
    at = LLVMBuildSub(g->b, at, k_like(g, LLVMTypeOf(at), front), "");
    return LLVMBuildICmp(g->b, LLVMIntULT, at, k_like(g, LLVMTypeOf(at), from.dim[axis]), "");
}

static V moved(gen *g, const ir_insn *in, map_t m)
{
    const uint32_t *a = ir_args(g->ir, in);
    const ir_type from = ir_typeof(g->ir, a[0]), to = ir_typeof(g->ir, in->res);
    V mask = in->op == IR_PAD ? on_operand(g, in, from, to, m) : NULL, fill = mask ? splat(g, g->sval[a[1]], g->c->n) : NULL;
    if (g->p.val[a[0]].cls == C_UNI) {
        V x = splat(g, g->sval[a[0]], g->c->n);
        return mask ? sel(g, mask, x, fill) : x;
    }
    const aff at = moved_index(g, in, from, to, m);
    if (mask || at.stride > 1)
        mask = mask_and(g, mask, g->c->exec);
    return mem_load_affine(g, mem_slot(g, g->p.val[a[0]].slot), (eas_dtype)from.dtype, at, mask, fill);
}

/* ---- shuffles ---- */

/* Lanes own ^ c: whole vectors, since a chunk begins at a multiple of its length. */
static V shuffled_xor(gen *g, const ir_insn *in, int64_t c)
{
    const int n = g->c->n;
    const uint32_t x = ir_args(g->ir, in)[0];
    V idx[64];
    aff at = {.ok = true, .exact = true, .mult = 1, .stride = 1};
    at.base = LLVMBuildXor(g->b, g->c->idx[0], k_int(g, c & -(int64_t)n), "");
    V v = mem_load_affine(g, mem_slot(g, g->p.val[x].slot), (eas_dtype)ir_typeof(g->ir, x).dtype, at, NULL, NULL);
    for (int i = 0; i < n; i++)
        idx[i] = LLVMConstInt(ty_int(g, 32, 0), (uint64_t)(i ^ (c & (n - 1))), 0);
    return LLVMBuildShuffleVector(g->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(idx, (unsigned)n), "");
}

static V shuffled(gen *g, const ir_insn *in)
{
    const uint32_t x = ir_args(g->ir, in)[0], lane = ir_args(g->ir, in)[1];
    const int n = g->c->n;
    int64_t c;
    if (g->p.val[x].cls == C_UNI)
        return splat(g, g->sval[x], n);
    if (ir_shuffle_xor(g->ir, in, &c))
        return shuffled_xor(g, in, c);
    V base = mem_slot(g, g->p.val[x].slot), first = LLVMBuildAnd(g->b, g->c->idx[0], k_int(g, -(int64_t)IR_SIMD), "");
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, x).dtype, lt = (eas_dtype)ir_typeof(g->ir, lane).dtype;
    if (g->p.val[lane].cls == C_UNI && n <= IR_SIMD) {
        V l = LLVMBuildAnd(g->b, value_cast(g, g->sval[lane], lt, EAS_I64), k_int(g, IR_SIMD - 1), "");
        const aff at = {.ok = true, .exact = true, .mult = 1, .base = LLVMBuildAdd(g->b, first, l, "")};
        return mem_load_affine(g, base, dt, at, NULL, NULL);
    }
    V own = LLVMBuildAdd(g->b, splat(g, g->c->idx[0], n), k_iota(g, ty_int(g, 64, 0), n, 1), "");
    const T t = LLVMTypeOf(own);
    V l = LLVMBuildAnd(g->b, value_cast(g, seg_here(g, lane), lt, EAS_I64), k_like(g, t, IR_SIMD - 1), "");
    V at = LLVMBuildAdd(g->b, LLVMBuildAnd(g->b, own, k_like(g, t, -(int64_t)IR_SIMD), ""), l, "");
    return mem_load_vector(g, base, dt, at, g->c->exec, NULL);
}

static V element_wise(gen *g, const ir_insn *in, map_t m)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype to = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V x[3] = {NULL, NULL, NULL};
    if (in->op == IR_SIMD_SHUFFLE)
        return shuffled(g, in);
    if (is_move(in))
        return moved(g, in, m);
    if (in->op == IR_RESHAPE && g->p.val[a[0]].cls == C_BLOCK && !shape_eq(&g->p.val[a[0]].sh, &g->p.val[in->res].sh)) {
        const view w = {.v = a[0], .m = m, .linear = true, .lin = g->p.val[in->res].sh, .linmap = m};
        return from_slot(g, &w);
    }
    if (in->op == IR_BROADCAST || in->op == IR_RESHAPE)
        return seg_vector(g, a[0], plan_source_map(&g->p, in, m));
    if (in->nargs == 0) {
        const aff id = affine_identity(g, in, m);
        return id.ok ? affine_vector(g, id, to) : wrapped_identity(g, in, to);
    }
    for (int k = 0; k < in->nargs && k < 3; k++)
        x[k] = seg_vector(g, a[k], m);
    if (in->op == IR_CAST)
        return value_cast(g, x[0], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    if (in->op == IR_BITCAST)
        return value_bitcast(g, x[0], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    return value_insn(g, in->op, (eas_dtype)ir_typeof(g->ir, a[in->op == IR_WHERE ? 1 : 0]).dtype, x[0], x[1], x[2]);
}

static V rematerialise(gen *g, uint32_t v, map_t m)
{
    const aff a = affine_of(g, v, m);
    if (a.ok)
        return affine_vector(g, a, (eas_dtype)ir_typeof(g->ir, v).dtype);
    V x = m == seg_map(g) ? affine_prefix_vector(g, v) : NULL;
    return x ? x : element_wise(g, ir_def(g->ir, v), m);
}

V seg_vector(gen *g, uint32_t v, map_t m)
{
    const vinfo *x = &g->p.val[v];
    if (g->st)
        return LLVMGetUndef(ty_of(g, (eas_dtype)ir_typeof(g->ir, v).dtype, g->c->n));
    const entry *e = seg_find(g, v, x->cls == C_UNI ? 0 : m);
    if (e && e->has_vec)
        return e->vec;
    if (x->cls == C_UNI)
        return splat(g, g->sval[v], g->c->n);
    view w = {.v = v, .m = m};
    if (x->cls == C_VIEW)
        w = plan_resolve(&g->p, v, m);
    V r;
    if (x->cls == C_REMAT) {
        r = rematerialise(g, v, m);
    } else if (!w.linear && w.v != v) {
        r = seg_vector(g, w.v, w.m);
    } else {
        r = from_slot(g, &w);
    }
    seg_remember(g, v, m, r, NULL);
    return r;
}

V seg_here(gen *g, uint32_t v) { return seg_vector(g, v, seg_map(g)); }

V seg_mask(gen *g, uint32_t v)
{
    if (g->p.val[v].cls != C_UNI && affine_holds(g, v))
        return NULL;
    int64_t k;
    if (ir_const_of(g->ir, v, &k) && k)
        return NULL;
    return seg_here(g, v);
}

V seg_scalar(gen *g, uint32_t v)
{
    const aff a = affine_of(g, v, seg_map(g));
    if (a.ok && a.exact)
        return affine_base(g, a);
    V x = LLVMBuildExtractElement(g->b, seg_here(g, v), k_int(g, 0), "");
    return value_cast(g, x, (eas_dtype)ir_typeof(g->ir, v).dtype, EAS_I64);
}

static void set_vector(gen *g, uint32_t v, V x) { seg_remember(g, v, seg_map(g), x, NULL); }

void seg_define(gen *g, uint32_t v, V x)
{
    set_vector(g, v, x);
    if (g->p.val[v].slot >= 0 && g->p.val[v].needs_slot)
        mem_spill(g, home_or_slot(g, v), (eas_dtype)ir_typeof(g->ir, v).dtype, x, v);
}

/* a uniform value made inside the segment and wanted after it */
static void publish(gen *g, uint32_t v)
{
    const vinfo *x = &g->p.val[v];
    if (x->cls != C_UNI || !x->needs_slot || x->slot < 0)
        return;
    mem_store_scalar(g, mem_slot(g, x->slot), (eas_dtype)ir_typeof(g->ir, v).dtype, k_int(g, 0), g->sval[v]);
}

/* ---- fragments ---- */

static V frag_slot(gen *g, uint32_t v)
{
    V at = LLVMBuildMul(g->b, g->c->idx[0], k_int(g, 256 / IR_SIMD), "");
    return LLVMBuildGEP2(g->b, ty_int(g, 8, 0), mem_slot(g, g->p.val[v].slot), &at, 1, "");
}

static frag get_frag(gen *g, uint32_t v)
{
    frag f = g->frags[v];
    const T row = ty_float(g, 32, 8);
    if (f.row[0] && g->p.val[v].seg == g->seg->id)
        return f;
    if (g->p.val[v].slot < 0)
        gen_fail(g, EAS_ERR_INTERNAL, "fragment %u has no slot", (unsigned)v);
    V base = frag_slot(g, v);
    for (int i = 0; i < 8; i++) {
        V k = k_int(g, i);
        f.row[i] = LLVMBuildLoad2(g->b, row, LLVMBuildGEP2(g->b, row, base, &k, 1, ""), "");
    }
    return f;
}

static void put_frag(gen *g, uint32_t v, const frag *f)
{
    const T row = ty_float(g, 32, 8);
    V base = frag_slot(g, v);
    for (int i = 0; i < 8; i++) {
        V k = k_int(g, i);
        LLVMBuildStore(g->b, f->row[i], LLVMBuildGEP2(g->b, row, base, &k, 1, ""));
    }
}

frag seg_frag(gen *g, uint32_t v) { return get_frag(g, v); }

void seg_define_frag(gen *g, uint32_t v, const frag *f)
{
    g->frags[v] = *f;
    if (g->p.val[v].slot >= 0 && g->p.val[v].needs_slot)
        put_frag(g, v, f);
}

/* ---- values that cross regions inside a chunk: a scalar, a vector or eight rows ---- */

typedef struct bundle {
    V v[8];
    int n;
} bundle;

static bundle bundle_get(gen *g, uint32_t like, uint32_t v)
{
    bundle b = {.n = 1};
    if (g->p.val[like].cls == C_FRAG) {
        const frag f = get_frag(g, v);
        b.n = 8;
        memcpy(b.v, f.row, sizeof f.row);
    } else {
        b.v[0] = g->p.val[like].cls == C_UNI ? g->sval[v] : seg_here(g, v);
    }
    return b;
}

static void bundle_set(gen *g, uint32_t v, const bundle *b, bool final)
{
    if (g->p.val[v].cls == C_FRAG) {
        frag f;
        memcpy(f.row, b->v, sizeof f.row);
        if (final)
            seg_define_frag(g, v, &f);
        else
            g->frags[v] = f;
    } else if (g->p.val[v].cls == C_UNI) {
        g->sval[v] = b->v[0];
        if (final)
            publish(g, v);
    } else if (final) {
        seg_define(g, v, b->v[0]);
    } else {
        set_vector(g, v, b->v[0]);
    }
}

static bundle bundle_phi(gen *g, const bundle *init, LLVMBasicBlockRef from)
{
    bundle p = {.n = init->n};
    for (int i = 0; i < p.n; i++) {
        V x = init->v[i];
        p.v[i] = LLVMBuildPhi(g->b, LLVMTypeOf(x), "");
        LLVMAddIncoming(p.v[i], &x, &from, 1);
    }
    return p;
}

static void bundle_incoming(bundle *phi, const bundle *x, LLVMBasicBlockRef from)
{
    for (int i = 0; i < phi->n; i++) {
        V v = x->v[i];
        LLVMAddIncoming(phi->v[i], &v, &from, 1);
    }
}

static void bundle_select(gen *g, V mask, bundle *x, const bundle *old)
{
    for (int i = 0; mask && i < x->n; i++)
        if (lanes_of(LLVMTypeOf(x->v[i])) == g->c->n && x->n == 1)
            x->v[i] = sel(g, mask, x->v[i], old->v[i]);
}

static bool uniform(gen *g, uint32_t v) { return g->p.val[v].cls == C_UNI; }

/* ---- control flow inside a chunk ---- */

static void emit_range(gen *g, uint32_t from, uint32_t to);

/* Makes what a loop body wants from outside before the loop, not in it. */
static void warm(gen *g, uint32_t opener)
{
    for (uint32_t i = opener + 1; i < g->p.end[opener]; i++) {
        const ir_insn *in = &g->ir->insns[i];
        for (int k = 0; k < in->nargs && !g->st; k++) {
            const uint32_t v = ir_args(g->ir, in)[k];
            const uint8_t cls = g->p.val[v].cls;
            if (g->ir->vals[v].def >= opener || g->p.val[v].sh.rank == 0)
                continue;
            if (cls == C_REMAT) {
                const aff a = affine_of(g, v, seg_map(g));
                if (!a.ok || !a.exact)
                    seg_here(g, v);
            } else if (cls == C_BLOCK || cls == C_VIEW) {
                seg_here(g, v);
            }
        }
    }
}

static V exec_mask(gen *g) { return g->c->exec ? g->c->exec : k_like(g, ty_int(g, 1, g->c->n), 1); }

typedef struct carried {
    int n;
    uint32_t first;
    const uint32_t *next;
    bundle *phi;
} carried;

static carried open_carried(gen *g, const ir_insn *in, const ir_insn *end, bundle *init)
{
    const int head = in->op == IR_LOOP ? 3 : 0;
    carried c = {.n = end->nargs, .first = in->res + (in->op == IR_LOOP), .next = ir_args(g->ir, end)};
    for (int k = 0; k < c.n; k++)
        init[k] = bundle_get(g, c.first + (uint32_t)k, ir_args(g->ir, in)[head + k]);
    return c;
}

static void start_carried(gen *g, carried *c, const bundle *init, LLVMBasicBlockRef from)
{
    for (int k = 0; k < c->n; k++) {
        c->phi[k] = bundle_phi(g, &init[k], from);
        bundle_set(g, c->first + (uint32_t)k, &c->phi[k], false);
    }
}

/* the values for the next round: those of lanes that do not run stay */
static void next_carried(gen *g, carried *c, V run, bundle *next)
{
    for (int k = 0; k < c->n; k++) {
        next[k] = bundle_get(g, c->first + (uint32_t)k, c->next[k]);
        if (!uniform(g, c->first + (uint32_t)k))
            bundle_select(g, run, &next[k], &c->phi[k]);
    }
}

/* is there a step from iv to the next, without wrapping? */
V loop_next(gen *g, V iv, V hi, V step, bool is_signed)
{
    const T t = LLVMTypeOf(iv);
    V up = LLVMBuildICmp(g->b, LLVMIntUGT, LLVMBuildSub(g->b, hi, iv, ""), step, "");
    if (LLVMIsAConstantInt(step) && LLVMConstIntGetSExtValue(step) == 1) /* iv < hi, so iv + 1 does not wrap */
        return LLVMBuildICmp(g->b, is_signed ? LLVMIntSLT : LLVMIntULT, LLVMBuildAdd(g->b, iv, step, ""), hi, "");
    if (!is_signed || (LLVMIsAConstantInt(step) && LLVMConstIntGetSExtValue(step) > 0))
        return up;
    V down = LLVMBuildICmp(g->b, LLVMIntUGT, LLVMBuildSub(g->b, iv, hi, ""), LLVMBuildNeg(g->b, step, ""), "");
    return sel(g, LLVMBuildICmp(g->b, LLVMIntSGT, step, k_like(g, t, 0), ""), up, down);
}

V loop_first(gen *g, V iv, V hi, V step, bool is_signed)
{
    const T t = LLVMTypeOf(iv);
    V zero = k_like(g, t, 0);
    if (!is_signed)
        return LLVMBuildAnd(g->b, LLVMBuildICmp(g->b, LLVMIntNE, step, zero, ""), LLVMBuildICmp(g->b, LLVMIntULT, iv, hi, ""), "");
    V up = LLVMBuildAnd(g->b, LLVMBuildICmp(g->b, LLVMIntSGT, step, zero, ""), LLVMBuildICmp(g->b, LLVMIntSLT, iv, hi, ""), "");
    V down = LLVMBuildAnd(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, step, zero, ""), LLVMBuildICmp(g->b, LLVMIntSGT, iv, hi, ""), "");
    return LLVMBuildOr(g->b, up, down, "");
}

static uint32_t region_weight(gen *g, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t k = i; k < g->p.end[i]; k++)
        n += g->ir->insns[k].op == IR_MMA ? 64 : 1;
    return n;
}

/* How many rounds of a loop with constant bounds to write out in one. */
static int unroll_of(gen *g, uint32_t i, V lo, V hi, V step)
{
    if (!LLVMIsAConstantInt(lo) || !LLVMIsAConstantInt(hi) || !LLVMIsAConstantInt(step) || region_weight(g, i) > UNROLL_BODY)
        return 1;
    const int64_t a = LLVMConstIntGetSExtValue(lo), b = LLVMConstIntGetSExtValue(hi), s = LLVMConstIntGetSExtValue(step);
    if (s <= 0 || s > 1 << 20 || a < 0 || b < a || b > INT32_MAX || (b - a) % s)
        return 1;
    const int64_t trips = (b - a) / s;
    return trips > 4 && trips % 4 == 0 ? 4 : trips > 2 && trips % 2 == 0 ? 2 : 1;
}

/* the body, u times: iv, iv + step, ...; next receives the carried values after the last */
static void emit_rounds(gen *g, uint32_t i, carried *c, V run, V iv, V step, int u, bundle *next)
{
    const uint32_t mark = g->c->log.len, res = g->ir->insns[i].res;
    for (int k = 0; k < u; k++) {
        if (k) {
            forget(g, mark);
            for (int j = 0; j < c->n; j++)
                bundle_set(g, c->first + (uint32_t)j, &next[j], false);
            iv = g->sval[res] = LLVMBuildAdd(g->b, iv, step, "");
        }
        emit_range(g, i + 1, g->p.end[i]);
        next_carried(g, c, run, next);
    }
}

/* A counted loop. Uniform bounds: a branch. Else: iv, bounds and the set of running lanes are vectors, until none runs. */
static void emit_loop(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i], *end = &g->ir->insns[g->p.end[i]];
    const uint32_t *a = ir_args(g->ir, in);
    const bool uni = uniform(g, a[0]) && uniform(g, a[1]) && uniform(g, a[2]), uni_iv = uniform(g, in->res);
    const bool sg = dtype_is_signed((eas_dtype)ir_typeof(g->ir, a[0]).dtype);
    bundle *buf = arena_alloc(&g->mem, sizeof *buf * (size_t)(3 * end->nargs + 1)), *init = buf, *next = buf + end->nargs;
    if (!buf) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    warm(g, i);
    carried c = open_carried(g, in, end, init);
    c.phi = buf + 2 * end->nargs;
    const uint32_t mark = g->c->log.len;
    V outer = g->c->exec;
    V lo = uni ? g->sval[a[0]] : seg_here(g, a[0]), hi = uni ? g->sval[a[1]] : seg_here(g, a[1]), st = uni ? g->sval[a[2]] : seg_here(g, a[2]);
    V go = loop_first(g, lo, hi, st, sg);
    if (!uni)
        go = LLVMBuildAnd(g->b, go, exec_mask(g), "");
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), body = new_block(g, "body"), done = new_block(g, "done");
    LLVMBuildCondBr(g->b, any_of(g, go), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    V iv = LLVMBuildPhi(g->b, LLVMTypeOf(lo), ""), run = uni ? NULL : LLVMBuildPhi(g->b, LLVMTypeOf(go), "");
    V iv_s = !uni && uni_iv ? LLVMBuildPhi(g->b, LLVMTypeOf(g->sval[a[0]]), "") : NULL;
    start_carried(g, &c, init, from);
    if (uni_iv)
        g->sval[in->res] = uni ? iv : iv_s;
    else
        set_vector(g, in->res, iv);
    if (run)
        g->c->exec = run;
    const int u = uni ? unroll_of(g, i, lo, hi, st) : 1;
    emit_rounds(g, i, &c, run, iv, st, u, next);
    if (u > 1)
        st = LLVMBuildMul(g->b, st, k_like(g, LLVMTypeOf(st), u), "");
    V more = loop_next(g, iv, hi, st, sg), iv2 = LLVMBuildAdd(g->b, iv, st, "");
    if (run)
        more = LLVMBuildAnd(g->b, more, run, "");
    V iv_s2 = iv_s ? LLVMBuildAdd(g->b, iv_s, g->sval[a[2]], "") : NULL;
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    V again = any_of(g, more);
    LLVMBuildCondBr(g->b, again, body, done);
    LLVMAddIncoming(iv, &lo, &from, 1);
    LLVMAddIncoming(iv, &iv2, &back, 1);
    if (run)
        LLVMAddIncoming(run, &go, &from, 1), LLVMAddIncoming(run, &more, &back, 1);
    if (iv_s)
        LLVMAddIncoming(iv_s, &g->sval[a[0]], &from, 1), LLVMAddIncoming(iv_s, &iv_s2, &back, 1);
    for (int k = 0; k < c.n; k++)
        bundle_incoming(&c.phi[k], &next[k], back);
    forget(g, mark);
    g->c->exec = outer;
    LLVMPositionBuilderAtEnd(g->b, done);
    for (int k = 0; k < c.n; k++) {
        bundle fin = bundle_phi(g, &init[k], from);
        bundle_incoming(&fin, &next[k], back);
        c.phi[k] = fin;
    }
    for (int k = 0; k < c.n; k++)
        bundle_set(g, end->res + (uint32_t)k, &c.phi[k], true);
}

static uint32_t find_op(gen *g, uint32_t opener, uint16_t op)
{
    uint32_t i = opener + 1;
    while (i < g->p.end[opener] && (g->ir->insns[i].op != op || g->p.parent[i] != opener))
        i++;
    return i;
}

static void emit_while(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i], *end = &g->ir->insns[g->p.end[i]];
    const uint32_t d = find_op(g, i, IR_DO), cond = ir_args(g->ir, &g->ir->insns[d])[0];
    const bool uni = uniform(g, cond);
    bundle *buf = arena_alloc(&g->mem, sizeof *buf * (size_t)(3 * end->nargs + 1)), *init = buf, *next = buf + end->nargs;
    if (!buf) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    warm(g, i);
    carried c = open_carried(g, in, end, init);
    const uint32_t mark = g->c->log.len;
    c.phi = buf + 2 * end->nargs;
    V outer = g->c->exec, all = uni ? NULL : exec_mask(g);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), head = new_block(g, "while"), body = new_block(g, "do"), done = new_block(g, "done");
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, head);
    V run = uni ? NULL : LLVMBuildPhi(g->b, LLVMTypeOf(all), "");
    look l = look_begin(g, i, from);
    start_carried(g, &c, init, from);
    if (run)
        g->c->exec = run;
    emit_range(g, i + 1, d);
    V go = uni ? g->sval[cond] : LLVMBuildAnd(g->b, seg_here(g, cond), run, "");
    LLVMBuildCondBr(g->b, any_of(g, go), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    if (run)
        g->c->exec = go;
    emit_range(g, d + 1, g->p.end[i]);
    next_carried(g, &c, uni ? NULL : go, next);
    look_end(g, &l);
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    branch_to(g, head);
    if (run)
        LLVMAddIncoming(run, &all, &from, 1), LLVMAddIncoming(run, &go, &back, 1);
    for (int k = 0; k < c.n; k++)
        bundle_incoming(&c.phi[k], &next[k], back);
    forget(g, mark);
    g->c->exec = outer;
    LLVMPositionBuilderAtEnd(g->b, done);
    for (int k = 0; k < c.n; k++)
        bundle_set(g, end->res + (uint32_t)k, &c.phi[k], true);
}

/* One branch of an if: its values, the block it ends in; what it made is forgotten. */
static LLVMBasicBlockRef emit_arm(gen *g, uint32_t from, uint32_t to, V exec, const ir_insn *merge, const uint32_t *vals, bundle *out,
                                  LLVMBasicBlockRef done)
{
    const uint32_t mark = g->c->log.len;
    V outer = g->c->exec;
    g->c->exec = exec;
    emit_range(g, from, to);
    for (uint32_t k = 0; k < merge->nres; k++)
        out[k] = bundle_get(g, merge->res + k, vals[k]);
    g->c->exec = outer;
    forget(g, mark);
    LLVMBasicBlockRef end = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    return end;
}

static void emit_uniform_if(gen *g, uint32_t i, uint32_t mid, bundle *t, bundle *e)
{
    const ir_insn *end = &g->ir->insns[g->p.end[i]];
    LLVMBasicBlockRef yes = new_block(g, "then"), no = new_block(g, "else"), done = new_block(g, "endif");
    LLVMBuildCondBr(g->b, g->sval[ir_args(g->ir, &g->ir->insns[i])[0]], yes, no);
    LLVMPositionBuilderAtEnd(g->b, yes);
    yes = emit_arm(g, i + 1, mid, g->c->exec, end, ir_args(g->ir, &g->ir->insns[mid]), t, done);
    LLVMPositionBuilderAtEnd(g->b, no);
    no = emit_arm(g, mid + (mid < g->p.end[i]), g->p.end[i], g->c->exec, end, ir_args(g->ir, end), e, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < end->nres; k++) {
        t[k] = bundle_phi(g, &t[k], yes);
        bundle_incoming(&t[k], &e[k], no);
    }
    for (uint32_t k = 0; k < end->nres; k++)
        bundle_set(g, end->res + k, &t[k], true);
}

/* An arm under a mask, skipped if no lane takes it; its values are then undefined, and chosen by no lane. */
static void emit_masked_arm(gen *g, uint32_t from, uint32_t to, V mask, const ir_insn *merge, const uint32_t *vals, bundle *out)
{
    LLVMBasicBlockRef before = LLVMGetInsertBlock(g->b), arm = new_block(g, "arm"), done = new_block(g, "after");
    LLVMBuildCondBr(g->b, any_of(g, mask), arm, done);
    LLVMPositionBuilderAtEnd(g->b, arm);
    arm = emit_arm(g, from, to, mask, merge, vals, out, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < merge->nres; k++) {
        bundle none = out[k];
        for (int j = 0; j < none.n; j++)
            none.v[j] = LLVMConstNull(LLVMTypeOf(none.v[j]));
        bundle phi = bundle_phi(g, &out[k], arm);
        bundle_incoming(&phi, &none, before);
        out[k] = phi;
    }
}

static void emit_if(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i], *end = &g->ir->insns[g->p.end[i]];
    const uint32_t mid = find_op(g, i, IR_ELSE), cond = ir_args(g->ir, in)[0];
    bundle *t = arena_alloc(&g->mem, sizeof *t * (2u * end->nres + 1)), *e = t + end->nres;
    if (!t) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    warm(g, i);
    if (uniform(g, cond)) {
        emit_uniform_if(g, i, mid, t, e);
        return;
    }
    V c = seg_here(g, cond);
    emit_masked_arm(g, i + 1, mid, mask_and(g, c, g->c->exec), end, ir_args(g->ir, &g->ir->insns[mid]), t);
    if (mid < g->p.end[i])
        emit_masked_arm(g, mid + 1, g->p.end[i], mask_and(g, LLVMBuildNot(g->b, c, ""), g->c->exec), end, ir_args(g->ir, end), e);
    for (uint32_t k = 0; k < end->nres; k++) {
        bundle r = t[k];
        bundle_select(g, c, &r, &e[k]);
        t[k] = r;
    }
    for (uint32_t k = 0; k < end->nres; k++)
        bundle_set(g, end->res + k, &t[k], true);
}

/* ---- instructions of a chunk ---- */

static void emit_insn(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint8_t cls = in->res ? g->p.val[in->res].cls : C_NONE;
    switch (in->op) {
    case IR_STORE: mem_store(g, i); return;
    case IR_ASSERT: mem_assert(g, i); return;
    case IR_FENCE: atomic_fence(g, i); return;
    case IR_MMA_ZERO:
    case IR_MMA:
    case IR_MMA_STORE: mma_insn(g, i); return;
    default: break;
    }
    if (is_reduce(in)) {
        fold_chunk(g, i);
    } else if (cls == C_UNI) {
        scalar_insn(g, i);
        publish(g, in->res);
    } else if (cls == C_BLOCK) {
        if (in->op == IR_LOAD)
            mem_load(g, i);
        else if (in->op == IR_BOUNDS)
            mem_bounds(g, i);
        else if (in->op == IR_DOT)
            dot_insn(g, i);
        else if (ir_is_atomic(in))
            atomic_insn(g, i);
        else
            seg_define(g, in->res, element_wise(g, in, seg_map(g)));
    }
}

static uint32_t emit_one(gen *g, uint32_t i) /* an instruction or a region; returns its last instruction */
{
    switch (g->ir->insns[i].op) {
    case IR_LOOP: emit_loop(g, i); return g->p.end[i];
    case IR_WHILE: emit_while(g, i); return g->p.end[i];
    case IR_IF: emit_if(g, i); return g->p.end[i];
    default: emit_insn(g, i); return i;
    }
}

static void emit_range(gen *g, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to && !g->st; i++)
        i = emit_one(g, i);
}

static uint32_t emit_copies(gen *g, const segment *s, uint32_t k)
{
    uint32_t end = k;
    while (end < s->items.len && s->items.at[end].insn == UINT32_MAX)
        end++;
    bundle *b = arena_alloc(&g->mem, sizeof *b * (end - k));
    if (!b) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return end;
    }
    for (uint32_t i = k; i < end; i++)
        b[i - k] = bundle_get(g, s->items.at[i].dst, s->items.at[i].src);
    for (uint32_t i = k; i < end; i++) {
        const uint32_t d = s->items.at[i].dst;
        if (s->kind == SEG_SIMDGROUPS) {
            frag f;
            memcpy(f.row, b[i - k].v, sizeof f.row);
            put_frag(g, d, &f);
        } else {
            mem_spill(g, mem_slot(g, g->p.val[d].slot), (eas_dtype)ir_typeof(g->ir, d).dtype, b[i - k].v[0], d);
        }
    }
    return end;
}

static bool is_rare(const segment *s, uint32_t k, uint32_t choice) { return s->items.at[k].rare == choice; }

/* The values that a `where` (and others with its condition) choose, made if some lane wants them. */
static void emit_rare(gen *g, const segment *s, uint32_t at)
{
    const uint32_t choice = s->items.at[at].insn, cond = ir_args(g->ir, &g->ir->insns[choice])[0];
    uint32_t *vals = arena_alloc(&g->mem, sizeof *vals * (s->items.len + 1)), n = 0;
    V *x = arena_alloc(&g->mem, sizeof *x * (s->items.len + 1));
    if (!vals || !x) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    for (uint32_t k = at; k < s->items.len; k++) {
        const ir_insn *in = s->items.at[k].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[k].insn];
        if (in && in->op == IR_WHERE && ir_args(g->ir, in)[0] == cond)
            for (uint32_t j = 0; j < at; j++)
                if (is_rare(s, j, choice) && g->ir->insns[s->items.at[j].insn].res == ir_args(g->ir, in)[1])
                    vals[n++] = ir_args(g->ir, in)[1];
    }
    for (uint32_t j = 0; j < at; j++) /* what it wants from outside is made before the branch */
        for (int k = 0; is_rare(s, j, choice) && k < g->ir->insns[s->items.at[j].insn].nargs; k++) {
            const uint32_t a = ir_args(g->ir, &g->ir->insns[s->items.at[j].insn])[k];
            if (g->p.val[a].cls == C_BLOCK && g->p.val[a].seg != s->id)
                seg_here(g, a);
        }
    V want = mask_and(g, seg_here(g, cond), g->c->exec);
    LLVMBasicBlockRef before = LLVMGetInsertBlock(g->b), arm = new_block(g, "rare"), done = new_block(g, "usual");
    LLVMBuildCondBr(g->b, any_of(g, want), arm, done);
    LLVMPositionBuilderAtEnd(g->b, arm);
    const uint32_t mark = g->c->log.len;
    for (uint32_t j = 0; j < at; j++)
        if (is_rare(s, j, choice))
            emit_one(g, s->items.at[j].insn);
    for (uint32_t k = 0; k < n; k++)
        x[k] = seg_here(g, vals[k]);
    arm = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    forget(g, mark);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < n; k++) {
        V none = LLVMConstNull(LLVMTypeOf(x[k])), phi = LLVMBuildPhi(g->b, LLVMTypeOf(x[k]), "");
        LLVMAddIncoming(phi, &x[k], &arm, 1);
        LLVMAddIncoming(phi, &none, &before, 1);
        set_vector(g, vals[k], phi);
    }
}

static void emit_chunk(gen *g, const segment *s)
{
    const uint32_t mark = g->c->log.len;
    for (uint32_t k = 0; k < s->ahead.len && g->c->full; k++)
        mem_prefetch(g, &s->ahead.at[k]);
    for (uint32_t k = 0; k < s->items.len && !g->st;) {
        if (s->items.at[k].insn == UINT32_MAX) {
            k = emit_copies(g, s, k);
        } else if (s->items.at[k].rare) {
            k++;
        } else {
            if (s->items.at[k].chooses)
                emit_rare(g, s, k);
            emit_one(g, s->items.at[k].insn);
            k++;
        }
    }
    forget(g, mark);
}

/* ---- loops over chunks ---- */

/* Rounds of a loop that are known to be run, 2 for any number above 1; 0: not known. */
static int sure_rounds(V lo, V hi, int64_t step)
{
    if (!LLVMIsAConstantInt(lo) || !LLVMIsAConstantInt(hi))
        return 0;
    const int64_t n = LLVMConstIntGetSExtValue(hi) - LLVMConstIntGetSExtValue(lo);
    return n <= 0 ? 0 : n <= step ? 1 : 2;
}

/* Most loops are over blocks, so their first round is sure to be run and the test is at the end; one round is no loop. */
loop loop_open(gen *g, V lo, V hi, int64_t step)
{
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), body;
    const int sure = sure_rounds(lo, hi, step);
    if (sure == 1)
        return (loop){.iv = lo};
    body = sure ? NULL : new_block(g, "chunk");
    loop l = {.from = from, .head = new_block(g, "chunks"), .done = new_block(g, "chunked"), .step = step, .end = sure ? hi : NULL};
    branch_to(g, l.head);
    LLVMPositionBuilderAtEnd(g->b, l.head);
    l.iv = LLVMBuildPhi(g->b, ty_int(g, 64, 0), "");
    LLVMAddIncoming(l.iv, &lo, &from, 1);
    if (!sure) {
        LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, l.iv, hi, ""), body, l.done);
        LLVMPositionBuilderAtEnd(g->b, body);
    }
    return l;
}

V loop_carry(gen *g, const loop *l, V first)
{
    LLVMBasicBlockRef here = LLVMGetInsertBlock(g->b), from = l->from;
    if (!l->head)
        return first;
    LLVMPositionBuilderBefore(g->b, LLVMGetFirstInstruction(l->head));
    V phi = LLVMBuildPhi(g->b, LLVMTypeOf(first), "");
    LLVMAddIncoming(phi, &first, &from, 1);
    LLVMPositionBuilderAtEnd(g->b, here);
    return phi;
}

void loop_carried(gen *g, const loop *l, V carry, V next)
{
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    if (l->head)
        LLVMAddIncoming(carry, &next, &back, 1);
}

void loop_close(gen *g, const loop *l)
{
    if (!l->head)
        return;
    V next = LLVMBuildAdd(g->b, l->iv, k_int(g, l->step), "");
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    LLVMAddIncoming(l->iv, &next, &back, 1);
    if (l->end)
        LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, next, l->end, ""), l->head, l->done);
    else
        branch_to(g, l->head);
    LLVMPositionBuilderAtEnd(g->b, l->done);
}

static uint32_t body_size(gen *g, const segment *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const uint32_t k = s->items.at[i].insn;
        if (k == UINT32_MAX)
            n++;
        else if (!s->items.at[i].rare)
            n += g->p.end[k] > k ? g->p.end[k] - k : 1;
    }
    return n;
}

static int pow2_at_least(int64_t x)
{
    int n = 1;
    while (n < x)
        n *= 2;
    return n;
}

/* Is v made in the segment, and only where some lane wants it? */
static bool seldom(gen *g, const segment *s, uint32_t v)
{
    for (uint32_t i = 0; i < s->items.len; i++)
        if (s->items.at[i].rare && g->ir->insns[s->items.at[i].insn].res == v)
            return true;
    return false;
}

/* Bytes of the widest element of what every chunk computes: a vector holds that many fewer. */
static int widest(gen *g, const segment *s)
{
    int w = 1;
    for (uint32_t v = 1; v < g->ir->nvals; v++) {
        if (g->p.val[v].seg != s->id || g->p.val[v].cls != C_BLOCK || (eas_dtype_size((eas_dtype)ir_typeof(g->ir, v).dtype) > 4 && seldom(g, s, v)))
            continue;
        const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, v).dtype;
        const int bytes = dt == EAS_F16 || dt == EAS_BF16 ? 4 : (int)eas_dtype_size(dt);
        if (bytes > w)
            w = bytes;
    }
    for (uint32_t i = 0; i < s->items.len; i++) {
        const item *it = &s->items.at[i];
        const ir_insn *in = it->insn == UINT32_MAX ? NULL : &g->ir->insns[it->insn];
        const uint32_t v = !in ? it->dst : in->op == IR_STORE || is_reduce(in) ? ir_args(g->ir, in)[0] : 0;
        const int bytes = v ? (int)eas_dtype_size((eas_dtype)ir_typeof(g->ir, v).dtype) : 1;
        if (bytes > w)
            w = bytes;
    }
    return w;
}

/* Thread mode: lanes that tid // C and tid % C keep together. */
static int split_width(gen *g, int n)
{
    for (uint32_t i = 0; i < g->ir->ninsns && g->p.info.mode == EAS_MODE_THREAD; i++) {
        const ir_insn *in = &g->ir->insns[i];
        int64_t k;
        if (in->op != IR_FLOORDIV && in->op != IR_MOD && in->op != IR_TDIV && in->op != IR_TREM)
            continue;
        if (g->p.val[in->res].cls != C_REMAT || !ir_const_of(g->ir, ir_args(g->ir, in)[1], &k))
            continue;
        if (k >= 4 && k < n && (k & (k - 1)) == 0)
            n = (int)k;
    }
    return n;
}

static int pick_lanes(gen *g, const segment *s)
{
    const int64_t inner = s->sh.dim[s->sh.rank - 1];
    int n = g->opt->vector_bytes / widest(g, s);
    n = split_width(g, n);
    if (n > pow2_at_least(inner))
        n = pow2_at_least(inner);
    return n < 4 ? 4 : n;
}

static V lanes_below(gen *g, V count) /* lanes l < count, count an i64 scalar */
{
    const int n = g->c->n;
    V c = LLVMBuildTrunc(g->b, count, ty_int(g, 32, 0), "");
    return LLVMBuildICmp(g->b, LLVMIntSLT, k_iota(g, ty_int(g, 32, 0), n, 1), splat(g, c, n), "");
}

static V round_down(gen *g, V x, int n) { return LLVMBuildAnd(g->b, x, k_int(g, -(int64_t)n), ""); }

/* last: lanes from there on are off; NULL: none are. stream: see chunk. */
static void run_chunks(gen *g, const segment *s, V lo, V hi, V last, bool full, int stream)
{
    loop l = loop_open(g, lo, hi, g->c->n);
    g->c->idx[s->sh.rank - 1] = l.iv;
    g->c->full = full;
    g->c->stream = stream;
    g->c->exec = last ? lanes_below(g, LLVMBuildSub(g->b, last, l.iv, "")) : NULL;
    emit_chunk(g, s);
    g->c->exec = NULL;
    loop_close(g, &l);
}

/* What is streamed: contiguous stores of whole pieces of 16 bytes. The address of inner index 0, NULL for other instructions. */
static V streamed(gen *g, const ir_insn *in, int *bytes)
{
    const uint32_t *a = ir_args(g->ir, in);
    *bytes = (int)eas_dtype_size((eas_dtype)ir_typeof(g->ir, a[0]).dtype);
    const aff off = affine_of(g, a[1], seg_map(g));
    if (ir_typeof(g->ir, a[0]).kind != IR_BUF || !off.ok || !off.exact || !off.whole || off.stride != 1 || g->c->n * *bytes % 16)
        return NULL;
    V at = LLVMBuildPtrToInt(g->b, g->sval[a[0]], ty_int(g, 64, 0), "");
    return LLVMBuildAdd(g->b, at, LLVMBuildMul(g->b, affine_base(g, off), k_int(g, *bytes), ""), "");
}

/* Is a product of blocks summed up in a loop? Then storing the result is little of the work. */
static bool sums_products(const gen *g)
{
    for (uint32_t i = 0; i < g->ir->ninsns; i++)
        for (uint32_t up = g->p.parent[i]; g->ir->insns[i].op == IR_MATMUL && up != UINT32_MAX; up = g->p.parent[up])
            if (g->ir->insns[up].op != IR_IF)
                return true;
    return false;
}

/* May chunks begin anywhere? Then nothing may rest on where they begin: reductions join by lane number, slots have whole chunks, and quotients
 * and remainders of lane numbers are simple only within aligned ones. In rows of tiles that is a lot of code, which pays where they are much of
 * the work only. */
static bool can_shift(gen *g, const segment *s)
{
    if (s->reduces || g->p.info.mode == EAS_MODE_THREAD || s->sh.dim[s->sh.rank - 1] < SHIFT_CHUNKS * g->c->n)
        return false;
    if (s->sh.rank > 1 && sums_products(g))
        return false;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        if (!in || ir_rows[in->op].flags & IR_STRUCT || (in->res && g->p.val[in->res].needs_slot))
            return false;
        if ((in->op == IR_LOAD || in->op == IR_STORE) && affine_early(g, ir_args(g->ir, in)[1])) {
            const aff off = affine_of(g, ir_args(g->ir, in)[1], seg_map(g));
            if (!off.ok || !off.whole)
                return false;
        }
    }
    for (uint32_t v = 1; v < g->ir->nvals; v++) {
        const ir_insn *in = ir_def(g->ir, v);
        if (in && g->p.val[v].cls == C_REMAT && (in->op == IR_MOD || in->op == IR_FLOORDIV || in->op == IR_TDIV || in->op == IR_TREM))
            return false;
    }
    return true;
}

/* i1: the call wants streaming stores and addresses allow them; NULL: there is no contiguous store. With head, chunks begin at that index, from which on the
 * stores are aligned vectors; without, they are at multiples of 16 bytes, or, in rows of tiles, of a vector. */
static V can_stream(gen *g, const segment *s, V *head)
{
    V low = NULL;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        int bytes;
        if (!in || in->op != IR_STORE)
            continue;
        if (!affine_early(g, ir_args(g->ir, in)[1]))
            return NULL;
        V at = streamed(g, in, &bytes);
        if (!at)
            continue;
        /* what a block of one dim leaves of a line the next program fills soon; rows of a tile have no such neighbour */
        V past = k_int(g, (head || s->sh.rank > 1 ? g->c->n * bytes : 16) - 1);
        if (head) {
            if (!low)
                *head = LLVMBuildUDiv(g->b, LLVMBuildAnd(g->b, LLVMBuildNeg(g->b, at, ""), past, ""), k_int(g, bytes), "");
            at = LLVMBuildAdd(g->b, at, LLVMBuildMul(g->b, *head, k_int(g, bytes), ""), "");
        }
        at = LLVMBuildAnd(g->b, at, past, "");
        low = low ? LLVMBuildOr(g->b, low, at, "") : at;
    }
    if (!low)
        return NULL;
    V fit = LLVMBuildICmp(g->b, LLVMIntEQ, low, k_int(g, 0), "");
    return LLVMBuildAnd(g->b, fit, mem_streams(g), "");
}

static void full_chunks(gen *g, const segment *s, V lo, V end, V stream, int how)
{
    if (!stream) {
        run_chunks(g, s, lo, end, NULL, true, 0);
        return;
    }
    LLVMBasicBlockRef yes = new_block(g, "stream"), no = new_block(g, "cached"), done = new_block(g, "filled");
    LLVMBuildCondBr(g->b, stream, yes, no);
    LLVMPositionBuilderAtEnd(g->b, yes);
    run_chunks(g, s, lo, end, NULL, true, how);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, no);
    run_chunks(g, s, lo, end, NULL, true, 0);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
}

static V lesser(gen *g, V a, V b) { return sel(g, LLVMBuildICmp(g->b, LLVMIntSLT, a, b, ""), a, b); }

/* Three parts in order: lanes before head under a mask, full chunks up to `full`, and the rest under a mask. The first and the last are one piece of code. */
static void shifted_chunks(gen *g, const segment *s, V full, V end, V stream, V head)
{
    const uint32_t align = g->c->align;
    g->c->align = 1;
    head = sel(g, stream, head, k_int(g, 0));
    V room = LLVMBuildSub(g->b, full, lesser(g, head, full), ""), mid = LLVMBuildAdd(g->b, lesser(g, head, full), round_down(g, room, g->c->n), "");
    loop part = loop_open(g, k_int(g, 0), k_int(g, 3), 1);
    LLVMBasicBlockRef middle = new_block(g, "middle"), edge = new_block(g, "edge"), done = new_block(g, "part");
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntEQ, part.iv, k_int(g, 1), ""), middle, edge);
    LLVMPositionBuilderAtEnd(g->b, middle);
    full_chunks(g, s, lesser(g, head, full), mid, stream, STREAM_WHOLE);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, edge);
    V first = LLVMBuildICmp(g->b, LLVMIntEQ, part.iv, k_int(g, 0), ""), hi = sel(g, first, lesser(g, head, full), end);
    run_chunks(g, s, sel(g, first, k_int(g, 0), mid), hi, hi, false, 0);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    loop_close(g, &part);
    g->c->align = align;
}

static void full_chunk_at(gen *g, const segment *s, V at)
{
    g->c->idx[s->sh.rank - 1] = at;
    g->c->full = true;
    g->c->stream = 0;
    g->c->exec = NULL;
    emit_chunk(g, s);
}

/* Full chunks, reductions in rounds first. */
static void full_range(gen *g, const segment *s, V full, V end, V stream)
{
    const int64_t size = s->sh.dim[s->sh.rank - 1], w = stream ? 0 : fold_round(g, s);
    if (!w || size < 2 * w || body_size(g, s) * (uint32_t)(w / g->c->n) > ROUND_BODY) {
        full_chunks(g, s, k_int(g, 0), end, stream, s->sh.rank > 1 ? STREAM_WHOLE : STREAM_PIECES); /* as can_stream has checked */
        return;
    }
    V rounds = round_down(g, full, (int)w);
    fold_rounds(g, s, rounds, w, full_chunk_at);
    if (g->c->npre || size % w >= g->c->n)
        full_chunks(g, s, rounds, end, NULL, 0);
}

/* The uniform value that an operand is, or is spread from; 0 for others, for constants and for what is made in the segment. */
static uint32_t source_uniform(gen *g, uint32_t v)
{
    int64_t k;
    const ir_insn *in = ir_def(g->ir, v);
    while (in && g->p.val[v].cls != C_UNI && (in->op == IR_BROADCAST || in->op == IR_RESHAPE)) {
        v = ir_args(g->ir, in)[0];
        in = ir_def(g->ir, v);
    }
    return g->p.val[v].cls == C_UNI && seg_available(g, v) && !ir_const_of(g->ir, v, &k) ? v : 0;
}

/* Uniform operands as vectors before the loops over chunks: no pass of LLVM takes them out of there. */
static void spread_uniforms(gen *g, const segment *s)
{
    for (uint32_t i = 0; i < s->items.len; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        if (!in || !(ir_rows[in->op].flags & IR_PURE) || is_move(in) || !in->res || g->p.val[in->res].cls != C_BLOCK)
            continue;
        for (int k = 0; k < in->nargs; k++) {
            const uint32_t v = source_uniform(g, ir_args(g->ir, in)[k]);
            if (v && !seg_find(g, v, 0))
                seg_remember(g, v, 0, splat(g, g->sval[v], g->c->n), NULL);
        }
    }
}

/* the innermost dim, at the outer indices that stand in c->idx */
static void make_lines(gen *g, const segment *s);

static void emit_inner(gen *g, segment *s)
{
    chunk *c = g->c;
    const int d = s->sh.rank - 1;
    const int64_t size = s->sh.dim[d];
    const uint32_t mark = c->log.len;
    const bool small = body_size(g, s) <= SMALL_BODY;
    c->idx[d] = k_int(g, 0);
    c->npre = 0;
    c->pre = NULL;
    make_lines(g, s);
    V limit = affine_prefixes(g, s), full = k_int(g, size);
    home_choose(g, s);
    V head = NULL, stream = NULL;
    if (g->x86 && small && s->items.len <= STREAM_BODY)
        stream = can_stream(g, s, can_shift(g, s) ? &head : NULL);
    for (int i = 0; i < c->npre; i++)
        full = lesser(g, full, c->pre[i].count);
    forget(g, mark);
    spread_uniforms(g, s);
    V end = limit ? limit : k_int(g, size), from = round_down(g, full, c->n);
    if (stream && head) {
        shifted_chunks(g, s, full, end, stream, head);
    } else {
        if (size < c->n || (!small && c->npre))
            from = k_int(g, 0);
        else
            full_range(g, s, full, from, stream);
        if (c->npre || size % c->n)
            run_chunks(g, s, from, end, size % c->n ? k_int(g, size) : NULL, false, 0);
    }
    forget(g, mark);
}

static void emit_outer(gen *g, segment *s, int d)
{
    if (d == s->sh.rank - 1) {
        emit_inner(g, s);
        fold_finish(g, s);
        return;
    }
    loop l = loop_open(g, k_int(g, 0), k_int(g, s->sh.dim[d]), 1);
    g->c->idx[d] = l.iv;
    emit_outer(g, s, d + 1);
    loop_close(g, &l);
}

static void emit_simdgroups(gen *g, segment *s)
{
    loop l = loop_open(g, k_int(g, 0), k_int(g, g->p.info.block), IR_SIMD);
    g->c->idx[0] = l.iv;
    emit_chunk(g, s);
    loop_close(g, &l);
}

static void reload_uniform(gen *g, const segment *s)
{
    for (uint32_t v = 1; v < g->ir->nvals; v++) {
        const vinfo *x = &g->p.val[v];
        if (x->seg == s->id && x->cls == C_UNI && x->needs_slot && x->slot >= 0)
            g->sval[v] = mem_load_scalar(g, mem_slot(g, x->slot), (eas_dtype)ir_typeof(g->ir, v).dtype, k_int(g, 0));
    }
}

/* ---- looking ahead: uniform values as the next round of the loop around the segment will have them, for prefetching ---- */

static uint32_t first_insn(const segment *s)
{
    for (uint32_t k = 0; k < s->items.len; k++)
        if (s->items.at[k].insn != UINT32_MAX)
            return s->items.at[k].insn;
    return UINT32_MAX;
}

/* Does it depend on the loop's counter, by way of values that were made before the segment? A uniform value that is made of a block is not made again. */
static bool moves_on(gen *g, const ir_insn *in, bool uniform)
{
    bool moves = false;
    for (int k = 0; k < in->nargs; k++) {
        const uint32_t a = ir_args(g->ir, in)[k];
        if (g->p.val[a].cls == C_UNI ? !g->sval[a] : uniform && g->p.val[a].cls != C_NONE)
            return false;
        moves = moves || g->moves[a];
    }
    return moves;
}

/* What moves on: the loop's counter, or for segments outside loops the program's number. */
static void step_ahead(gen *g, uint32_t loop, V *ahead)
{
    if (loop != UINT32_MAX) {
        const ir_insn *in = &g->ir->insns[loop];
        ahead[in->res] = LLVMBuildAdd(g->b, g->sval[in->res], g->sval[ir_args(g->ir, in)[2]], "");
        g->moves[in->res] = true;
        return;
    }
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        if (in->op != IR_PROGRAM_ID || in->imm != 0 || !g->sval[in->res])
            continue;
        ahead[in->res] = LLVMBuildAdd(g->b, g->sval[in->res], k_like(g, LLVMTypeOf(g->sval[in->res]), 1), "");
        g->moves[in->res] = true;
    }
}

static bool looks_ahead(const segment *s)
{
    for (uint32_t k = 0; k < s->ahead.len; k++)
        if (s->ahead.at[k].next)
            return true;
    return false;
}

static void look_ahead(gen *g, const segment *s)
{
    const uint32_t first = first_insn(s), loop = first == UINT32_MAX ? first : g->p.parent[first];
    const size_t nv = g->ir->nvals + 1;
    g->ahead = NULL;
    if (first == UINT32_MAX || s->kind == SEG_SIMDGROUPS || (s->kind == SEG_WHOLE && !s->ahead.len) ||
        (loop == UINT32_MAX ? !looks_ahead(s) : g->ir->insns[loop].op != IR_LOOP))
        return;
    V *now = g->sval, *ahead = arena_alloc(&g->mem, nv * sizeof *ahead);
    g->moves = arena_alloc(&g->mem, nv);
    g->ahead_cache = arena_alloc(&g->mem, nv * sizeof *g->ahead_cache);
    if (!ahead || !g->moves || !g->ahead_cache) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    memcpy(ahead, now, (nv - 1) * sizeof *ahead);
    step_ahead(g, loop, ahead);
    g->sval = ahead;
    for (uint32_t i = loop + 1; i < (loop == UINT32_MAX ? first : g->p.end[loop]) && !g->st; i++) {
        const ir_insn *x = &g->ir->insns[i];
        const bool uniform = x->res && g->p.val[x->res].cls == C_UNI && !g->p.val[x->res].inseg, peeks = uniform && plan_peeks(g->ir, x);
        if (!x->res || x->nres != 1 || !(ir_rows[x->op].flags & IR_PURE || peeks) || g->p.parent[i] != loop || !moves_on(g, x, uniform))
            continue;
        if (peeks)
            g->sval[x->res] = mem_peek(g, x);
        else if (uniform)
            scalar_insn(g, i);
        g->moves[x->res] = true;
    }
    g->sval = now;
    g->ahead = ahead;
}

bool seg_available(gen *g, uint32_t v)
{
    const ir_insn *in = ir_def(g->ir, v);
    if (g->p.val[v].cls == C_UNI)
        return g->sval[v] != NULL && !g->p.val[v].inseg;
    if (g->p.val[v].cls != C_REMAT)
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!seg_available(g, ir_args(g->ir, in)[k]))
            return false;
    return true;
}

/* The offset at the running inner index, from its line. */
static bool on_line(gen *g, uint32_t v, bool ahead, aff *out)
{
    for (uint32_t k = 0; k < g->c->lines.len; k++) {
        const line *l = &g->c->lines.at[k];
        if (l->v != v || l->ahead != ahead)
            continue;
        *out = l->a;
        if (l->a.stride)
            out->base = LLVMBuildAdd(g->b, l->a.base, LLVMBuildMul(g->b, g->c->idx[g->c->sh.rank - 1], k_int(g, l->a.stride), ""), "");
        return true;
    }
    return false;
}

aff seg_offset(gen *g, uint32_t v)
{
    aff a;
    return on_line(g, v, false, &a) ? a : affine_of(g, v, seg_map(g));
}

static void add_line(gen *g, uint32_t v, bool ahead)
{
    aff a;
    if (!seg_available(g, v) || on_line(g, v, ahead, &a))
        return;
    a = ahead ? seg_ahead(g, v) : affine_of(g, v, seg_map(g));
    if (a.ok && a.exact && a.whole && !vec_push(&g->c->lines, ((line){v, ahead, a})))
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
}

/* Offsets of the segment's own accesses and prefetches; the chunk stands at inner index 0. */
static void make_lines(gen *g, const segment *s)
{
    g->c->lines.len = 0;
    for (uint32_t k = 0; k < s->items.len; k++) {
        const ir_insn *in = s->items.at[k].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[k].insn];
        if (in && (in->op == IR_LOAD || in->op == IR_STORE)) {
            add_line(g, ir_args(g->ir, in)[1], false);
            if (in->op == IR_LOAD && g->ahead)
                add_line(g, ir_args(g->ir, in)[1], true);
        }
    }
    for (uint32_t k = 0; k < s->ahead.len; k++)
        add_line(g, ir_args(g->ir, &g->ir->insns[s->ahead.at[k].insn])[1], s->ahead.at[k].next);
}

aff seg_ahead(gen *g, uint32_t v)
{
    aff a = {0};
    if (!g->ahead || !g->moves[v] || on_line(g, v, true, &a))
        return a;
    V *now = g->sval;
    const chunk saved = *g->c;
    g->sval = g->ahead;
    g->c->cache = g->ahead_cache;
    memset(&g->c->log, 0, sizeof g->c->log);
    a = affine_of(g, v, seg_map(g));
    forget(g, 0);
    vec_free(&g->c->log);
    *g->c = saved;
    g->sval = now;
    return a;
}

void seg_emit(gen *g, segment *s)
{
    if (s->kind == SEG_WHOLE) {
        g->seg = s;
        look_ahead(g, s);
        whole_insn(g, s);
        g->seg = NULL;
        return;
    }
    const bool mma = s->kind == SEG_SIMDGROUPS;
    chunk c = {.sh = s->sh, .n = mma ? 8 : pick_lanes(g, s)};
    c.align = mma ? IR_SIMD : (uint32_t)c.n;
    c.cache = arena_alloc(&g->mem, sizeof *c.cache * (g->ir->nvals + 1));
    if (!c.cache) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    g->c = &c;
    g->seg = s;
    look_ahead(g, s);
    if (mma)
        emit_simdgroups(g, s);
    else
        emit_outer(g, s, 0);
    vec_free(&c.log);
    vec_free(&c.lines);
    g->c = NULL;
    g->seg = NULL;
    reload_uniform(g, s);
}
