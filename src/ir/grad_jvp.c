/* grad_jvp.c: forward mode. Every instruction is copied and followed by instructions that compute the tangent
 * of its result; loops and branches carry the tangents of their carried values; a store is followed by one of
 * the tangent. A kernel of threads remains one, since the order of instructions does not change.
 */
#include "grad.h"

static void add_id(gradder *g, grad_ids *s, uint32_t v)
{
    if (!vec_push(s, v))
        g->w.mem.oom = true;
}

static bool is_frag(const gradder *g, uint32_t v) { return ir_typeof(g->w.from, v).kind == IR_FRAG; }

static uint32_t zero_of(gradder *g, uint32_t v)
{
    const ir_type t = ir_typeof(g->w.from, v);
    return t.kind == IR_FRAG ? irb_typed(g->w.b, IR_MMA_ZERO, t, 0) : g_num(g, grad_type(t), 0);
}

static uint32_t tangent_of(gradder *g, uint32_t v) { return g->adj[v] ? g->adj[v] : zero_of(g, v); }

/* The buffer that holds the tangents of memory `buf`; 0: they are zero. */
static uint32_t shadow_of(gradder *g, uint32_t buf)
{
    return buf <= (uint32_t)g->w.from->nparams ? g->buf[buf - 1].ct : g->adj[buf];
}

static uint32_t sum(gradder *g, uint32_t x, uint32_t y) { return !x ? y : !y ? x : g_op(g, IR_ADD, x, y); }

/* ---- memory ---- */

static void alloc(gradder *g, const ir_insn *in)
{
    ir_type t = ir_typeof(g->w.from, in->res);
    t.dtype = (uint8_t)grad_dtype((eas_dtype)t.dtype);
    if (g->varied[in->res])
        g->adj[in->res] = irb_typed(g->w.b, IR_ALLOC_TG, t, in->imm);
}

static uint32_t loaded(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in), from = shadow_of(g, a[0]), mask = in->nargs == 4 ? g->w.map[a[2]] : 0;
    const uint32_t other = mask && g->adj[a[3]] ? g->adj[a[3]] : 0;
    if (!g->varied[in->res] || g->w.b->status)
        return 0;
    const eas_dtype dt = grad_dtype((eas_dtype)ir_typeof(g->w.from, in->res).dtype);
    uint32_t t = from ? g_cast(g, g_load(g, from, g->w.map[a[1]], mask), dt) : 0;
    if (!other)
        return t;
    return g_where(g, mask, t ? t : g_num(g, gnew(g, other), 0), other);
}

static void stored(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in), to = shadow_of(g, a[0]);
    if (to && !g->w.b->status)
        g_store(g, to, g->w.map[a[1]], g_cast(g, tangent_of(g, a[2]), (eas_dtype)gnew(g, to).dtype),
                in->nargs == 4 ? g->w.map[a[3]] : 0);
}

static void added(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in), to = shadow_of(g, a[0]);
    uint32_t args[4] = {to, g->w.map[a[1]], g->adj[a[2]], in->nargs == 4 ? g->w.map[a[3]] : 0};
    ir_type t = {0};
    if (to && args[2] && !g->w.b->status)
        irb_insn(g->w.b, IR_ATOMIC_ADD, args, in->nargs, 0, 1, &t);
}

/* The tangent of a product from memory: one product for each factor that varies. */
static uint32_t products(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    const bool dot = in->op == IR_DOT;
    uint32_t r = dot ? 0 : tangent_of(g, a[6]);
    if (!g->varied[in->res])
        return 0;
    for (int x = 0; x < 6 && !g->w.b->status; x += 3) {
        uint32_t args[7];
        ir_type t = ir_typeof(g->w.from, in->res);
        if (!shadow_of(g, a[x]))
            continue;
        for (int k = 0; k < 7; k++)
            args[k] = g->w.map[a[k]];
        args[x] = shadow_of(g, a[x]);
        if (!dot)
            args[6] = r;
        uint32_t p = irb_insn(g->w.b, in->op, args, 7, 0, 1, &t);
        if (!p)
            return 0;
        p = dot ? g_cast(g, p, (eas_dtype)ir_typeof(g->w.from, in->res).dtype) : p;
        r = dot ? sum(g, r, p) : p;
    }
    return r;
}

static void matrix_stored(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    uint32_t args[4] = {shadow_of(g, a[0]), g->w.map[a[1]], g->w.map[a[2]], 0};
    if (!args[0] || g->w.b->status)
        return;
    args[3] = tangent_of(g, a[3]);
    irb_insn(g->w.b, IR_MMA_STORE, args, 4, 0, 0, NULL);
}

static uint32_t shuffled(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    uint32_t args[2] = {g->adj[a[0]], g->w.map[a[1]]};
    ir_type t = {0};
    return args[0] && !g->w.b->status ? irb_insn(g->w.b, IR_SIMD_SHUFFLE, args, 2, in->imm, 1, &t) : 0;
}

/* ---- structure ---- */

static uint32_t structure(gradder *g, uint16_t op, const grad_ids *a, int nres)
{
    ir_type *t = arena_alloc(&g->w.mem, ((size_t)nres + 1) * sizeof *t);
    return t && !g->w.mem.oom ? irb_insn(g->w.b, op, a->at, (int)a->len, 0, nres, t) : 0;
}

static bool carries(const gradder *g, uint32_t v) { return g->varied[v] && (gfloat(g, v) || is_frag(g, v)); }

/* Operands of an instruction of structure, then the tangents of those for which the value in `with`
 * varies. */
static int operands(gradder *g, const ir_insn *in, int head, uint32_t with, grad_ids *a)
{
    int more = 0;
    for (int k = 0; k < in->nargs; k++)
        add_id(g, a, g->w.map[gargs(g, in)[k]]);
    for (int k = head; k < in->nargs; k++)
        if (carries(g, with + (uint32_t)(k - head))) {
            add_id(g, a, tangent_of(g, gargs(g, in)[k]));
            more++;
        }
    return more;
}

static void results(gradder *g, const ir_insn *in, uint32_t with, int skip, uint32_t r)
{
    uint32_t t = r + in->nres;
    for (int k = 0; k < in->nres; k++)
        g->w.map[in->res + (uint32_t)k] = r + (uint32_t)k;
    for (int k = skip; k < in->nres; k++)
        g->adj[in->res + (uint32_t)k] = carries(g, with + (uint32_t)(k - skip)) ? t++ : 0;
}

static void open_loop(gradder *g, const ir_insn *in)
{
    const int head = in->op == IR_LOOP ? 3 : 0, skip = head ? 1 : 0;
    grad_ids a = {0};
    const int more = operands(g, in, head, in->res + (uint32_t)skip, &a);
    results(g, in, in->res + (uint32_t)skip, skip, structure(g, in->op, &a, in->nres + more));
    vec_free(&a);
}

static void close_loop(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i], *open = &g->w.from->insns[g->at.opener[i]];
    const uint32_t with = open->res + (open->op == IR_LOOP ? 1 : 0);
    grad_ids a = {0};
    const int more = operands(g, in, 0, with, &a);
    results(g, in, with, 0, structure(g, in->op, &a, in->nres + more));
    vec_free(&a);
}

static void divide(gradder *g, uint32_t i)
{
    grad_ids a = {0};
    operands(g, &g->w.from->insns[i], 0, g->w.from->insns[g->at.end[g->at.opener[i]]].res, &a);
    structure(g, IR_ELSE, &a, 0);
    vec_free(&a);
}

static void close_if(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i];
    grad_ids a = {0};
    const int more = operands(g, in, 0, in->res, &a);
    results(g, in, in->res, 0, structure(g, IR_ENDIF, &a, in->nres + more));
    vec_free(&a);
}

/* ---- the pass ---- */

static void plain(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i];
    bool known = true;
    ir_rewrite_copy(&g->w, i);
    switch (in->op) {
    case IR_ALLOC_TG: alloc(g, in); return;
    case IR_LOAD: g->adj[in->res] = loaded(g, in); return;
    case IR_STORE: stored(g, in); return;
    case IR_ATOMIC_ADD: added(g, in); return;
    case IR_DOT:
    case IR_MMA: g->adj[in->res] = products(g, in); return;
    case IR_MMA_STORE: matrix_stored(g, in); return;
    case IR_SIMD_SHUFFLE: g->adj[in->res] = shuffled(g, in); return;
    default: break;
    }
    if (in->nres != 1 || !in->nargs || ir_is_atomic(in) || !g->varied[in->res])
        return;
    g->adj[in->res] = grad_tangent(g, in, &known);
    if (!known)
        grad_fail(g, in, "%s has no derivative", ir_rows[in->op].name);
}

void grad_jvp(gradder *g)
{
    for (int p = 0; p < g->w.from->nparams; p++)
        if (gfloat(g, (uint32_t)p + 1) && g->buf[p].wrt)
            g->adj[p + 1] =
                g_cast(g, g->buf[p].ct, grad_dtype((eas_dtype)ir_typeof(g->w.from, (uint32_t)p + 1).dtype));
    for (uint32_t i = 0; i < g->w.from->ninsns && !g->w.b->status && !g->status; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        g->w.b->file = in->file;
        g->w.b->line = in->line;
        switch (in->op) {
        case IR_LOOP:
        case IR_WHILE: open_loop(g, in); break;
        case IR_ENDLOOP:
        case IR_ENDWHILE: close_loop(g, i); break;
        case IR_ELSE: divide(g, i); break;
        case IR_ENDIF: close_if(g, i); break;
        default: plain(g, i);
        }
    }
}
