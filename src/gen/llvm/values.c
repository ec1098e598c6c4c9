/* values.c: values of the running chunk, made on demand and remembered in a cache keyed by (value, index
 * map); leaving a region forgets what was made inside it, so every remembered LLVM value dominates its uses.
 */
#include "llvm.h"

/* ---- the cache ---- */

map_t seg_map(gen *g) { return map_identity(g->c->sh.rank); }

entry *chunk_find(const chunk *c, uint32_t v, map_t m)
{
    for (entry *e = c->cache[v]; e; e = e->next)
        if (e->m == m)
            return e;
    return NULL;
}

static entry *new_entry(gen *g, chunk *c, uint32_t v, map_t m)
{
    entry *e = arena_alloc(&g->mem, sizeof *e);
    if (!e) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return NULL;
    }
    *e = (entry){.next = c->cache[v], .v = v, .m = m};
    c->cache[v] = e;
    return e;
}

void chunk_remember(gen *g, chunk *c, uint32_t v, map_t m, V vec, const aff *a)
{
    entry *e = chunk_find(c, v, m);
    if (!e)
        e = new_entry(g, c, v, m);
    if (!e)
        return;
    if (!(a ? e->has_aff : e->has_vec) && !vec_push(&c->log, ((made){e, a != NULL})))
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
    if (a)
        e->a = *a, e->has_aff = 1;
    else
        e->vec = vec, e->has_vec = 1;
}

void chunk_forget(chunk *c, uint32_t mark)
{
    while (c && c->log.len > mark) {
        const made m = c->log.at[--c->log.len];
        if (m.affine)
            m.e->has_aff = 0;
        else
            m.e->has_vec = 0;
    }
}

bool chunk_at(gen *g, shape sh, V row, V col, chunk *out)
{
    *out = (chunk){.sh = sh, .n = 1, .align = 1, .idx = {row, col}, .sval = g->sval};
    out->cache = arena_alloc(&g->mem, sizeof *out->cache * (g->ir->nvals + 1));
    if (!out->cache)
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
    return out->cache != NULL;
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

/* lanes that may be read: beyond the end of an inner dim there is another row, or padding that is always
 * there */
static V from_slot(gen *g, const view *w)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, w->v).dtype;
    aff a = {.run = {.ok = true, .exact = true, .mult = 1}};
    if (g->p.at[w->v].where == IN_ARGUMENT)
        return mem_reload(g, g->ir->vals[w->v].def);
    if (g->p.at[w->v].slot < 0) {
        gen_fail(g, EAS_ERR_INTERNAL, "value %u is wanted outside its segment and has no slot",
                 (unsigned)w->v);
        return LLVMGetUndef(ty_of(g, dt, g->c->n));
    }
    a.base =
        seg_linear(g, w->linear ? &w->lin : &g->p.val[w->v].sh, w->linear ? w->linmap : w->m, &a.run.stride);
    return mem_load_affine(g, output_or_slot(g, w->v), dt, a, a.run.stride > 1 ? g->c->exec : NULL, NULL);
}

/* lane_id and sg_id where a chunk is wider than a simdgroup */
static V wrapped_identity(gen *g, const ir_insn *in, eas_dtype dt)
{
    const int n = g->c->n;
    V i = LLVMBuildAdd(g->b, splat(g, g->c->idx[0], n), k_iota(g, ty_int(g, 64, 0), n, 1), "");
    const T t = LLVMTypeOf(i);
    i = in->op == IR_LANE_ID ? LLVMBuildAnd(g->b, i, k_like(g, t, IR_SIMD - 1), "")
                             : LLVMBuildLShr(g->b, i, k_like(g, t, 5), "");
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
    aff a = {.run = {.ok = true, .exact = true, .mult = 1}, .base = k_int(g, 0)};
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
            a.run.stride += step[s];
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
    V mask = in->op == IR_PAD ? on_operand(g, in, from, to, m) : NULL,
      fill = mask ? splat(g, g->sval[a[1]], g->c->n) : NULL;
    if (g->p.val[a[0]].cls == C_UNI) {
        V x = splat(g, g->sval[a[0]], g->c->n);
        return mask ? sel(g, mask, x, fill) : x;
    }
    const aff at = moved_index(g, in, from, to, m);
    if (mask || at.run.stride > 1)
        mask = mask_and(g, mask, g->c->exec);
    return mem_load_affine(g, mem_slot(g, g->p.at[a[0]].slot), (eas_dtype)from.dtype, at, mask, fill);
}

/* ---- shuffles ---- */

/* Lanes own ^ c: whole vectors, since a chunk begins at a multiple of its length. */
static V shuffled_xor(gen *g, const ir_insn *in, int64_t c)
{
    const int n = g->c->n;
    const uint32_t x = ir_args(g->ir, in)[0];
    V idx[MOST_LANES];
    aff at = {.run = {.ok = true, .exact = true, .mult = 1, .stride = 1}};
    at.base = LLVMBuildXor(g->b, g->c->idx[0], k_int(g, c & -(int64_t)n), "");
    V v = mem_load_affine(g, mem_slot(g, g->p.at[x].slot), (eas_dtype)ir_typeof(g->ir, x).dtype, at, NULL,
                          NULL);
    for (int i = 0; i < n; i++)
        idx[i] = LLVMConstInt(ty_int(g, 32, 0), (uint64_t)(i ^ (c & (n - 1))), 0);
    return LLVMBuildShuffleVector(g->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(idx, (unsigned)n),
                                  "");
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
    V base = mem_slot(g, g->p.at[x].slot),
      first = LLVMBuildAnd(g->b, g->c->idx[0], k_int(g, -(int64_t)IR_SIMD), "");
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, x).dtype, lt = (eas_dtype)ir_typeof(g->ir, lane).dtype;
    if (g->p.val[lane].cls == C_UNI && n <= IR_SIMD) {
        V l = LLVMBuildAnd(g->b, value_cast(g, g->sval[lane], lt, EAS_I64), k_int(g, IR_SIMD - 1), "");
        const aff at = {.run = {.ok = true, .exact = true, .mult = 1},
                        .base = LLVMBuildAdd(g->b, first, l, "")};
        return mem_load_affine(g, base, dt, at, NULL, NULL);
    }
    V own = LLVMBuildAdd(g->b, splat(g, g->c->idx[0], n), k_iota(g, ty_int(g, 64, 0), n, 1), "");
    const T t = LLVMTypeOf(own);
    V l = LLVMBuildAnd(g->b, value_cast(g, seg_here(g, lane), lt, EAS_I64), k_like(g, t, IR_SIMD - 1), "");
    V at = LLVMBuildAdd(g->b, LLVMBuildAnd(g->b, own, k_like(g, t, -(int64_t)IR_SIMD), ""), l, "");
    return mem_load_vector(g, base, dt, at, g->c->exec, NULL);
}

V seg_elementwise(gen *g, const ir_insn *in, map_t m)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype to = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V x[3] = {NULL, NULL, NULL};
    if (in->op == IR_SIMD_SHUFFLE)
        return shuffled(g, in);
    if (is_move(in))
        return moved(g, in, m);
    if (in->op == IR_RESHAPE && g->p.val[a[0]].cls == C_BLOCK &&
        !shape_eq(&g->p.val[a[0]].sh, &g->p.val[in->res].sh)) {
        const view w = {.v = a[0], .m = m, .linear = true, .lin = g->p.val[in->res].sh, .linmap = m};
        return from_slot(g, &w);
    }
    if (in->op == IR_BROADCAST || in->op == IR_RESHAPE)
        return seg_vector(g, a[0], plan_source_map(&g->p, in, m));
    if (in->nargs == 0) {
        const aff id = affine_identity(g, g->c, in, m);
        return id.run.ok ? affine_vector(g, id, to) : wrapped_identity(g, in, to);
    }
    for (int k = 0; k < in->nargs && k < 3; k++)
        x[k] = seg_vector(g, a[k], m);
    if (in->op == IR_CAST)
        return value_cast(g, x[0], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    if (in->op == IR_BITCAST)
        return value_bitcast(g, x[0], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    return value_insn(g, in->op, (eas_dtype)ir_typeof(g->ir, a[in->op == IR_WHERE ? 1 : 0]).dtype, x[0], x[1],
                      x[2]);
}

static V rematerialise(gen *g, uint32_t v, map_t m)
{
    const aff a = affine_of(g, v, m);
    if (a.run.ok)
        return affine_vector(g, a, (eas_dtype)ir_typeof(g->ir, v).dtype);
    V x = m == seg_map(g) ? affine_prefix_vector(g, v) : NULL;
    return x ? x : seg_elementwise(g, ir_def(g->ir, v), m);
}

V seg_vector(gen *g, uint32_t v, map_t m)
{
    const kind *x = &g->p.val[v];
    if (g->st)
        return LLVMGetUndef(ty_of(g, (eas_dtype)ir_typeof(g->ir, v).dtype, g->c->n));
    const entry *e = chunk_find(g->c, v, x->cls == C_UNI ? 0 : m);
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
    chunk_remember(g, g->c, v, m, r, NULL);
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
    if (a.run.ok && a.run.exact)
        return affine_base(g, a);
    V x = LLVMBuildExtractElement(g->b, seg_here(g, v), k_int(g, 0), "");
    return value_cast(g, x, (eas_dtype)ir_typeof(g->ir, v).dtype, EAS_I64);
}

void seg_set(gen *g, uint32_t v, V x) { chunk_remember(g, g->c, v, seg_map(g), x, NULL); }

void seg_define(gen *g, uint32_t v, V x)
{
    seg_set(g, v, x);
    if (plan_in_memory(&g->p, v))
        mem_spill(g, output_or_slot(g, v), (eas_dtype)ir_typeof(g->ir, v).dtype, x, v);
}

/* a uniform value made inside the segment and wanted after it */
void seg_publish(gen *g, uint32_t v)
{
    if (g->p.val[v].cls != C_UNI || !plan_in_memory(&g->p, v))
        return;
    mem_store_scalar(g, mem_slot(g, g->p.at[v].slot), (eas_dtype)ir_typeof(g->ir, v).dtype, k_int(g, 0),
                     g->sval[v]);
}

/* ---- fragments ---- */

static V frag_slot(gen *g, uint32_t v)
{
    V at = LLVMBuildMul(g->b, g->c->idx[0], k_int(g, 256 / IR_SIMD), "");
    return LLVMBuildGEP2(g->b, ty_int(g, 8, 0), mem_slot(g, g->p.at[v].slot), &at, 1, "");
}

frag seg_frag(gen *g, uint32_t v)
{
    frag f = g->frags[v];
    const T row = ty_float(g, 32, 8);
    if (f.row[0] && g->p.made[v].seg == g->seg->id)
        return f;
    if (g->p.at[v].slot < 0)
        gen_fail(g, EAS_ERR_INTERNAL, "fragment %u has no slot", (unsigned)v);
    V base = frag_slot(g, v);
    for (int i = 0; i < 8; i++) {
        V k = k_int(g, i);
        f.row[i] = LLVMBuildLoad2(g->b, row, LLVMBuildGEP2(g->b, row, base, &k, 1, ""), "");
    }
    return f;
}

void seg_put_frag(gen *g, uint32_t v, const frag *f)
{
    const T row = ty_float(g, 32, 8);
    V base = frag_slot(g, v);
    for (int i = 0; i < 8; i++) {
        V k = k_int(g, i);
        LLVMBuildStore(g->b, f->row[i], LLVMBuildGEP2(g->b, row, base, &k, 1, ""));
    }
}

void seg_define_frag(gen *g, uint32_t v, const frag *f)
{
    g->frags[v] = *f;
    if (plan_in_memory(&g->p, v))
        seg_put_frag(g, v, f);
}
