/* ctext.c: kernel IR as C-like source text: MSL and OpenCL C.
 *
 *   check (the dialect) -> plan -> body -> head
 *
 * The body is printed first; what it asked for (built-in values, helper functions) decides the head. A scalar
 * is a variable v<id>; a block is a loop over lanes with one variable per value inside it, or an array
 * v<id>[lanes] where a loop of its own cannot be avoided (see plan.c). Constants stand where they are used.
 * Values carried by loops and merged by branches are variables that are assigned.
 *
 * The text depends on nothing but the IR. The caller's IR is verified and simplified; it is read only.
 */
#include "ctext.h"

#include <stdio.h>

typedef struct ct_inst { /* a recomputed value in the current lane loop */
    ct_at at;
    const char *name;
    uint32_t next;
} ct_inst;

const char *ct_fmt(ct *g, const char *fmt, ...)
{
    va_list ap;
    str s = {0};
    va_start(ap, fmt);
    str_vadd(&s, fmt, ap);
    va_end(ap);
    const char *r = s.oom ? NULL : arena_strndup(&g->mem, s.at ? s.at : "", s.len);
    if (s.oom)
        g->mem.oom = true;
    str_free(&s);
    return r ? r : "";
}

void ct_line(ct *g, const char *fmt, ...)
{
    va_list ap;
    for (int i = 0; i < g->indent; i++)
        str_put(&g->body, "    ", 4);
    va_start(ap, fmt);
    str_vadd(&g->body, fmt, ap);
    va_end(ap);
    str_put(&g->body, "\n", 1);
    if (!vec_push(&g->lines, ct_source(g)))
        g->mem.oom = true;
}

const char *ct_name(ct *g, uint32_t v)
{
    if (!g->name[v])
        g->name[v] = ct_fmt(g, "v%u", v);
    return g->name[v];
}

const char *ct_type_name(ct *g, ir_type t) { return t.kind == IR_FRAG ? g->d->frag : g->d->type[t.dtype]; }

/* ---- values ---- */

static bool same_place(ir_type t, const ct_at *a, const ct_at *b)
{
    for (int d = 0; d < t.rank; d++)
        if (strcmp(a->dim[d], b->dim[d]))
            return false;
    return true;
}

static ct_inst *find_inst(ct *g, uint32_t v, const ct_at *at, int *count)
{
    *count = 0;
    if (g->inst_epoch[v] != g->loop.epoch) {
        g->inst_epoch[v] = g->loop.epoch;
        g->inst_head[v] = 0;
    }
    for (uint32_t k = g->inst_head[v]; k; k = g->insts[k - 1].next, ++*count)
        if (same_place(ir_typeof(g->ir, v), &g->insts[k - 1].at, at))
            return &g->insts[k - 1];
    return NULL;
}

static const char *remember(ct *g, uint32_t v, const ct_at *at, const char *name)
{
    if (!vec_grow((void **)&g->insts, &g->capinsts, g->ninsts + 1, sizeof *g->insts)) {
        g->mem.oom = true;
        return name;
    }
    g->insts[g->ninsts++] = (ct_inst){*at, name, g->inst_head[v]};
    g->inst_head[v] = g->ninsts;
    return name;
}

static const char *arange_expr(ct *g, const ir_insn *in, const char *lane)
{
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    if (dt == EAS_U32 && in->imm == 0)
        return lane;
    const char *x =
        dt == EAS_U32 ? lane : ct_fmt(g, ct_plain(lane) ? "(%s)%s" : "(%s)(%s)", g->d->type[dt], lane);
    return in->imm ? ct_fmt(g, "%s + %s", x, ct_literal(g, dt, in->imm)) : x;
}

static const char *mask_of(ct *g, uint32_t mask, const ct_at *at)
{
    int64_t bits;
    if (ir_const_of(g->ir, mask, &bits) && bits)
        return NULL;
    return g->early_done && mask == g->early ? NULL : ct_ref(g, mask, at);
}

static const char *load_expr(ct *g, const ir_insn *in, const ct_at *at)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *off = ct_ref(g, a[1], at);
    const char *mask = in->nargs == 4 ? mask_of(g, a[2], at) : NULL;
    const char *other = mask ? ct_ref(g, a[3], at) : NULL;
    const char *x = g->d->load(g, a[0], off);
    return mask ? ct_fmt(g, "%s ? %s : %s", mask, x, other) : x;
}

static const char *recompute(ct *g, uint32_t v, const ct_at *at)
{
    const ir_insn *in = ir_def(g->ir, v);
    int count;
    if (in->op == IR_ARANGE && in->imm == 0 && ir_typeof(g->ir, v).dtype == EAS_U32)
        return ct_plain(at->dim[0]) ? at->dim[0] : ct_fmt(g, "(%s)", at->dim[0]);
    ct_inst *have = find_inst(g, v, at, &count);
    if (have)
        return have->name;
    const char *x = in->op == IR_ARANGE ? arange_expr(g, in, at->dim[0])
                  : in->op == IR_LOAD   ? load_expr(g, in, at)
                                        : ct_expr(g, in, at);
    if (g->inlined[v])
        return ct_fmt(g, "(%s)", x);
    const char *name = count ? ct_fmt(g, "v%u_%d", v, count) : ct_fmt(g, "v%u", v);
    ct_line(g, "%s %s = %s;", ct_type_name(g, ir_typeof(g->ir, v)), name, x);
    return remember(g, v, at, name);
}

static const char *view_ref(ct *g, const ir_insn *in, const ct_at *at)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *inside;
    ct_at from = ct_through(g, in, at, &inside);
    const char *x = ct_ref(g, a[0], &from);
    return inside ? ct_fmt(g, "(%s ? %s : %s)", inside, x, ct_ref(g, a[1], NULL)) : x;
}

const char *ct_ref(ct *g, uint32_t v, const ct_at *at)
{
    const eas_ir *ir = g->ir;
    int64_t bits;
    ir_type t = ir_typeof(ir, v);
    if (t.kind != IR_VAL)
        return ct_name(g, v);
    if (ir_const_of(ir, v, &bits))
        return ct_literal(g, t.dtype, bits);
    ct_at here = at ? *at : ct_natural(t);
    const ir_insn *in = ir_def(ir, v);
    if (in && ct_is_view(ir, in))
        return view_ref(g, in, &here);
    if (!is_block(t)) {
        if (v <= (uint32_t)ir->nparams && t.dtype == EAS_BOOL && strcmp(g->d->mem[EAS_BOOL], "bool"))
            return ct_fmt(g, "(%s != 0)", ct_name(g, v));
        if (g->inlined[v])
            return ct_fmt(g, "(%s)", ct_expr(g, in, NULL));
        return ct_name(g, v);
    }
    if (g->remat[v])
        return recompute(g, v, &here);
    if (g->array[v])
        return ct_fmt(g, "%s[%s]", ct_name(g, v), ct_flat(g, t, &here));
    if (g->inlined[v])
        return ct_fmt(g, "(%s)", ct_expr(g, in, &here));
    return ct_name(g, v);
}

const char *ct_ref_often(ct *g, uint32_t v, const ct_at *at)
{
    ir_type t = ir_typeof(g->ir, v);
    const char *x = ct_ref(g, v, at);
    int count;
    if (!is_block(t) || !strpbrk(x, "[?"))
        return x;
    ct_at here = at ? *at : ct_natural(t);
    ct_inst *have = find_inst(g, v, &here, &count);
    if (have)
        return have->name;
    const char *name = count || g->array[v] ? ct_fmt(g, "v%u_%d", v, count + 1) : ct_fmt(g, "v%u", v);
    ct_line(g, "%s %s = %s;", g->d->type[t.dtype], name, x);
    return remember(g, v, &here, name);
}

/* Gives v its value: a new variable, or its element of an array that stands before the loop. */
void ct_define(ct *g, uint32_t v, const char *x)
{
    ir_type t = ir_typeof(g->ir, v);
    ct_at at = ct_natural(t);
    if (is_block(t) && g->array[v])
        ct_line(g, "%s[%s] = %s;", ct_name(g, v), ct_flat(g, t, &at), x);
    else
        ct_line(g, "%s %s = %s;", ct_type_name(g, t), ct_name(g, v), x);
}

void ct_declare_array(ct *g, ir_type t, const char *name)
{
    ct_line(g, "%s %s[%lld]%s;", ct_array_type(g, t.dtype), name, (long long)ir_lanes(t),
            g->lanes ? " __attribute__((aligned(64)))" : "");
}

void ct_declare(ct *g, uint32_t v)
{
    ir_type t = ir_typeof(g->ir, v);
    if (is_block(t))
        ct_declare_array(g, t, ct_name(g, v));
    else
        ct_line(g, "%s %s;", ct_type_name(g, t), ct_name(g, v));
}

/* ---- memory ---- */

static void print_load(ct *g, const ir_insn *in) { ct_define(g, in->res, load_expr(g, in, NULL)); }

static void print_store(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *off = ct_ref(g, a[1], NULL), *x = ct_ref(g, a[2], NULL);
    const char *mask = in->nargs == 4 ? mask_of(g, a[3], NULL) : NULL;
    g->d->store(g, mask ? ct_fmt(g, "if (%s) ", mask) : "", a[0], off, x);
}

const uint16_t ct_float_atomics[CT_NFLOAT_ATOMICS] = {IR_ATOMIC_ADD, IR_ATOMIC_MIN, IR_ATOMIC_MAX};

int ct_float_atomic(uint16_t op)
{
    for (int i = 0; i < CT_NFLOAT_ATOMICS; i++)
        if (ct_float_atomics[i] == op)
            return i;
    return -1;
}

static void print_atomic(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in), mask_value = ir_mask(g->ir, in);
    const int values = ir_atomic_values(in->op);
    const char *off = ct_ref(g, a[1], NULL), *x = values ? ct_ref(g, a[2], NULL) : NULL,
               *y = values == 2 ? ct_ref(g, a[3], NULL) : NULL;
    const char *mask = mask_value ? mask_of(g, mask_value, NULL) : NULL;
    const char *call = g->d->atomic(g, in->op, a[0], off, x, y);
    if (!g->uses[in->res])
        ct_line(g, mask ? "if (%s) %s;" : "%s%s;", mask ? mask : "", call);
    else
        ct_define(g, in->res,
                  mask ? ct_fmt(g, "%s ? %s : %s", mask, call, ct_literal(g, ir_typeof(g->ir, a[0]).dtype, 0))
                       : call);
}

static void print_bounds(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *off = ct_ref(g, a[1], NULL), *mask = in->nargs == 3 ? mask_of(g, a[2], NULL) : NULL;
    ct_need(g, CT_BOUNDS);
    const char *count = a[0] <= (uint32_t)g->ir->nparams
                          ? ct_fmt(g, "eas_count[%u]", a[0] - 1)
                          : ct_literal(g, EAS_I64, ir_typeof(g->ir, a[0]).dim[0]);
    const ir_insn tid = {.op = IR_THREAD_ID};
    ir_type t = ir_typeof(g->ir, in->res);
    ct_at at = ct_natural(t);
    const char *thread = g->thread_mode           ? g->d->identity(g, &tid)
                       : g->origin && is_block(t) ? ct_flat(g, t, &at)
                                                  : "0u";
    const char *call = ct_fmt(g, g->d->bounds, count, off, ct_source(g), thread);
    ct_define(g, in->res, mask ? ct_fmt(g, "%s && %s", mask, call) : call);
}

static void print_assert(ct *g, const ir_insn *in)
{
    const uint32_t cond = ir_args(g->ir, in)[0], m = ir_mask(g->ir, in);
    ir_type t = ir_typeof(g->ir, cond);
    ct_at at = ct_natural(t);
    const ir_insn tid = {.op = IR_THREAD_ID};
    const char *ok = ct_ref(g, cond, NULL), *mask = m ? mask_of(g, m, NULL) : NULL;
    const char *lane = g->thread_mode ? g->d->identity(g, &tid) : is_block(t) ? ct_flat(g, t, &at) : "0";
    ct_need(g, CT_BOUNDS);
    const char *call = ct_fmt(g, g->d->failed, lane, ct_source(g));
    ct_line(g, mask ? "if (%s && !%s) %s;" : "if (%s!%s) %s;", mask ? mask : "", ok, call);
}

void ct_close(ct *g)
{
    g->indent--;
    ct_line(g, "}");
}

void ct_open(ct *g, const char *var, int64_t n)
{
    ct_line(g, "for (uint %s = 0; %s < %lldu; ++%s) {", var, var, (long long)n, var);
    g->indent++;
}

void ct_new_scope(ct *g)
{
    g->loop.epoch++;
    g->ninsts = 0;
    g->vec.n = 0;
}

/* ---- lane loops ---- */

static void open_lanes(ct *g, ir_type t, uint32_t group)
{
    g->loop.rank = ct_dims(t, g->loop.dim);
    g->loop.group = group;
    ct_new_scope(g);
    for (int d = 0; d < g->loop.rank; d++)
        ct_open(g, ct_lane_var[d], g->loop.dim[d]);
}

static void close_lanes(ct *g)
{
    for (int d = 0; d < g->loop.rank; d++)
        ct_close(g);
    g->loop.rank = 0;
    g->loop.group = 0;
    g->loop.epoch++;
}

/* ---- one instruction ---- */

/* One lane of a block. Where the block is recomputed, what that takes goes out of sight again. */
static void print_pick(ct *g, const ir_insn *in)
{
    const eas_ir *ir = g->ir;
    bool aligned;
    uint32_t from = ir_args(ir, in)[0];
    ct_at place = ct_natural(ir_typeof(ir, in->res)), at;
    const char *never;
    at = ct_through(g, in, &place, &never);
    if (!g->remat[ct_leaf(ir, from, &aligned)]) {
        ct_define(g, in->res, ct_ref(g, from, &at));
        return;
    }
    ct_declare(g, in->res);
    ct_line(g, "{");
    g->indent++;
    open_lanes(g, ir_scalar(EAS_BOOL), 0);
    ct_line(g, "%s = %s;", ct_name(g, in->res), ct_ref(g, from, &at));
    close_lanes(g);
    ct_close(g);
}

static const char *identity_expr(ct *g, const ir_insn *in)
{
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    const char *x = g->d->identity(g, in);
    return dt == EAS_U32 ? x : ct_fmt(g, "(%s)%s", g->d->type[dt], x);
}

/* One statement of the text. Blocks are printed for the lane that the loop around is at; what ct_plan
 * marked as inlined, rematerialised or a view is printed where it is read, not here. */
static void print_insn(ct *g, uint32_t i)
{
    const eas_ir *ir = g->ir;
    const ir_insn *in = &ir->insns[i];
    g->at = i;
    if (g->inlined[in->res] && in->nres)
        return;
    if (ct_is_view(ir, in))
        return;
    switch (in->op) {
    case IR_CONST:
    case IR_ALLOC_TG: return;
    case IR_SLICE: print_pick(g, in); return;
    case IR_PROGRAM_ID:
    case IR_NUM_PROGRAMS:
    case IR_THREAD_ID:
    case IR_GLOBAL_ID:
    case IR_LOCAL_ID:
    case IR_LANE_ID:
    case IR_SG_ID: ct_define(g, in->res, identity_expr(g, in)); return;
    /* of one lane */
    case IR_ARANGE: ct_define(g, in->res, ct_literal(g, ir_typeof(ir, in->res).dtype, in->imm)); return;
    case IR_LOAD: print_load(g, in); return;
    case IR_STORE: print_store(g, in); return;
    case IR_BOUNDS: print_bounds(g, in); return;
    case IR_ASSERT: print_assert(g, in); return;
    case IR_BARRIER:
        if (!g->origin) /* one item runs all lanes */
            g->d->barrier(g);
        return;
    case IR_FENCE: g->d->fence(g, ir_fence_order(in->imm), ir_fence_scope(in->imm)); return;
    case IR_SIMD_SHUFFLE:
        ct_define(
            g, in->res,
            g->d->shuffle(g, in, ct_ref(g, ir_args(ir, in)[0], NULL), ct_ref(g, ir_args(ir, in)[1], NULL)));
        return;
    case IR_DOT:
        if (g->dot4[i] == i + 1)
            ct_print_dot4(g, in);
        else if (!g->dot4[i])
            ct_print_dot(g, in);
        return;
    case IR_MMA_ZERO: g->d->mma_zero(g, ct_name(g, in->res)); return;
    case IR_MMA: g->d->mma(g, ct_name(g, in->res), ir_args(ir, in)); return;
    case IR_MMA_STORE: g->d->mma_store(g, ir_args(ir, in)); return;
    default: {
        if (ir_is_atomic(in)) {
            print_atomic(g, in);
            return;
        }
        ct_at at = ct_natural(ir_typeof(ir, in->res));
        const char *x = ct_expr(g, in, &at);
        ct_define(g, in->res, x);
    }
    }
}

/* ---- whole blocks ---- */

static void group_lane(ct *g, const ct_walk *w)
{
    for (uint32_t i = g->first[w->group]; i <= g->last[w->group]; i++)
        if (g->group[i] == w->group)
            print_insn(g, i);
}

static void print_group(ct *g, uint32_t group)
{
    const eas_ir *ir = g->ir;
    uint32_t first = g->first[group], last = g->last[group];
    const ir_insn *lead = &ir->insns[first];
    for (uint32_t i = first; i <= last; i++) {
        const ir_insn *in = &ir->insns[i];
        g->at = i;
        if (g->group[i] != group || !in->nres || !g->array[in->res])
            continue;
        if (g->array_of[in->res] == in->res)
            ct_declare(g, in->res);
        else
            g->name[in->res] = ct_name(g, g->array_of[in->res]);
    }
    g->at = first;
    if (ir_is_fold(lead)) {
        if (!is_block(ir_typeof(ir, lead->res)))
            ct_declare(g, lead->res);
        ct_fold(g, lead);
        return;
    }
    const ct_walk w = {.group = group, .one = group_lane};
    if (ct_vec_walk(g, ct_lanes_of(ir, lead), &w))
        return;
    open_lanes(g, ct_lanes_of(ir, lead), group);
    group_lane(g, &w);
    close_lanes(g);
}

static void copy_lane(ct *g, const ct_walk *w)
{
    ir_type t = ir_typeof(g->ir, w->value);
    ct_at at = ct_natural(t);
    const char *x = ct_ref(g, w->value, &at);
    ct_line(g, "%s[%s] = %s;", w->to, ct_flat(g, t, &at), x);
}

/* to[lane] = v, for every lane */
void ct_copy_block(ct *g, const char *to, uint32_t v)
{
    const ct_walk w = {.value = v, .to = to, .one = copy_lane};
    if (ct_vec_walk(g, ir_typeof(g->ir, v), &w))
        return;
    open_lanes(g, ir_typeof(g->ir, v), 0);
    copy_lane(g, &w);
    close_lanes(g);
}

/* ---- the whole ---- */

static void declare_tg(ct *g)
{
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        g->at = i;
        if (in->op == IR_ALLOC_TG && !ct_words_tg(g, in->res)) {
            ir_type t = ir_typeof(g->ir, in->res);
            ct_line(g, "%s %s %s[%lld];", g->d->space_local, g->d->mem[t.dtype], ct_name(g, in->res),
                    (long long)in->imm);
        }
    }
}

static void maybe_return_early(ct *g, uint32_t defined)
{
    if (!g->early || g->early_done || defined != g->early)
        return;
    ct_line(g, "if (!%s) return;", ct_ref(g, g->early, NULL));
    g->early_done = true;
}

static void print_body(ct *g)
{
    const eas_ir *ir = g->ir;
    g->indent = 1;
    declare_tg(g);
    if (g->early && g->early <= (uint32_t)ir->nparams)
        maybe_return_early(g, g->early);
    for (uint32_t i = 0; i < ir->ninsns && !g->mem.oom; i++) {
        const ir_insn *in = &ir->insns[i];
        if (ir_rows[in->op].flags & IR_STRUCT)
            ct_structure(g, i);
        else if (g->group[i])
            i == g->last[g->group[i]] ? print_group(g, g->group[i]) : (void)0;
        else if (!in->nres || !is_block(ir_typeof(ir, in->res)))
            print_insn(g, i);
        for (uint32_t r = 0; r < in->nres; r++)
            maybe_return_early(g, in->res + r);
    }
}

/* What a kernel asks for before its body is printed decides which names it may not use. */
static void find_idents(ct *g)
{
    static const uint8_t of[IR_NOPS] = {
        [IR_PROGRAM_ID] = 1 + CT_PID, [IR_NUM_PROGRAMS] = 1 + CT_NPROG, [IR_THREAD_ID] = 1 + CT_TID,
        [IR_GLOBAL_ID] = 1 + CT_GID,  [IR_LOCAL_ID] = 1 + CT_TID,       [IR_LANE_ID] = 1 + CT_LANE,
        [IR_SG_ID] = 1 + CT_SG,       [IR_BOUNDS] = 1 + CT_PID,         [IR_ASSERT] = 1 + CT_PID,
    };
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        uint16_t op = g->ir->insns[i].op;
        if (of[op])
            g->idents |= 1u << (of[op] - 1);
        if ((op == IR_ASSERT || op == IR_BOUNDS) && g->thread_mode)
            g->idents |= 1u << CT_TID;
    }
    if (!g->thread_mode)
        g->idents |= 1u << CT_PID;
}

static eas_status prepare(ct *g)
{
    size_t nv = (size_t)g->ir->nvals + 1;
    g->info = ir_analyse(g->ir);
    g->thread_mode = g->info.mode == EAS_MODE_THREAD;
    g->name = arena_alloc(&g->mem, nv * sizeof *g->name);
    g->inst_head = arena_alloc(&g->mem, nv * sizeof *g->inst_head);
    g->inst_epoch = arena_alloc(&g->mem, nv * sizeof *g->inst_epoch);
    g->vec.head = arena_alloc(&g->mem, nv * sizeof *g->vec.head);
    g->vec.epoch = arena_alloc(&g->mem, nv * sizeof *g->vec.epoch);
    g->loop.epoch = 1;
    if (g->mem.oom)
        return base_fail_oom(nv);
    eas_status st = ct_plan(g);
    if (!st && g->d->check)
        st = g->d->check(g);
    if (st)
        return st;
    if (g->lanes)
        ct_find_prefetches(g);
    find_idents(g);
    return ct_names(g) ? EAS_OK : base_fail_oom(nv);
}

static bool fill_map(gen_linemap *map, const str *head, const gen_linemap *body)
{
    bool ok = true;
    for (size_t i = 0; i < head->len; i++)
        if (head->at[i] == '\n')
            ok = ok && vec_push(map, UINT32_MAX);
    for (uint32_t i = 0; i < body->len; i++)
        ok = ok && vec_push(map, body->at[i]);
    return ok && vec_push(map, UINT32_MAX); /* the closing brace */
}

static eas_status print_kernel(ct *g, str *out, gen_linemap *map)
{
    str head = {0};
    eas_status st = prepare(g);
    if (!st) {
        print_body(g);
        g->d->head(g, &head);
        str_put(out, head.at ? head.at : "", head.len);
        str_put(out, g->body.at ? g->body.at : "", g->body.len);
        str_put(out, "}\n", 2);
        bool ok = !map || fill_map(map, &head, &g->lines);
        if (!ok || g->mem.oom || head.oom || g->body.oom || out->oom)
            st = base_fail_oom(out->len);
    }
    str_free(&head);
    str_free(&g->body);
    vec_free(&g->lines);
    vec_free(&g->open);
    free(g->insts);
    free(g->vec.insts);
    arena_free(&g->mem);
    return st;
}

static const struct {
    const char *name;
    const ct_dialect *d;
} dialects[] = {
#define GEN_X(NAME, name) [GEN_##NAME] = {#name, &ct_##name},
    GEN_DIALECTS(GEN_X)
#undef GEN_X
};

bool gen_dialect_find(const char *form, gen_dialect *out)
{
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++)
        if (!strcmp(dialects[i].name, form)) {
            *out = (gen_dialect)i;
            return true;
        }
    return false;
}

eas_status gen_ctext(const eas_ir *ir, gen_dialect d, unsigned flags, str *out, gen_linemap *map)
{
    ct g = {.ir = ir, .d = dialects[d].d, .dialect = d, .flags = flags, .lanes = (int)(flags / GEN_LANES)};
    eas_ir *lanes = NULL;
    uint32_t *origin = NULL;
    eas_status st = g.lanes && ir->threads ? ir_as_lanes(ir, &lanes, &origin) : EAS_OK;
    if (lanes) {
        g.ir = lanes;
        g.origin = origin;
    }
    if (!st)
        st = print_kernel(&g, out, map);
    eas_ir_release(lanes);
    free(origin);
    return st;
}
