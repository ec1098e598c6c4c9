/* grad.c: derivatives of kernels: what is asked for, the parameters of the kernel that computes it, and
 * building it.
 *
 *   eas_ir_grad   reverse mode: cotangents of results to gradients of arguments
 *   eas_ir_jvp    forward mode: tangents of arguments to tangents of results
 *
 * Reverse mode works on SPMD kernels; one of threads becomes one of blocks first (lanes.c), so threads that
 * part are lanes under masks, shuffles and matrices are loads and stores, and no barrier is left to respect.
 * The kernel is built with a tape for every carried value, pruned, and built again without the tapes that
 * turned out to be unread, until all are read.
 */
#include "grad.h"

#include <stdio.h>

eas_status grad_fail(gradder *g, const ir_insn *in, const char *fmt, ...)
{
    str s = {0};
    va_list ap;
    if (g->status)
        return g->status;
    if (in && in->file)
        str_add(&s, "%s:%u: ", g->w.from->files[in->file], (unsigned)in->line);
    va_start(ap, fmt);
    str_vadd(&s, fmt, ap);
    va_end(ap);
    g->status = base_fail(EAS_ERR_VALUE, "%s: %s", g->w.from->name, s.at ? s.at : "out of memory");
    str_free(&s);
    return g->status;
}

eas_dtype grad_dtype(eas_dtype dt) { return dt == EAS_F16 || dt == EAS_BF16 ? EAS_F32 : dt; }
ir_type grad_type(ir_type t) { return ir_with_dtype(t, grad_dtype((eas_dtype)t.dtype)); }

grad_local *grad_local_of(gradder *g, uint32_t value)
{
    for (uint32_t i = 0; i < g->locals.len; i++)
        if (g->locals.at[i].value == value)
            return &g->locals.at[i];
    return NULL;
}

uint32_t grad_param(gradder *g, const char *name, ir_type t, eas_grad_param what)
{
    what.dtype = (eas_dtype)t.dtype;
    what.is_buffer = t.kind == IR_BUF;
    if (!vec_push(&g->params, what))
        g->w.mem.oom = true;
    return irb_param(g->w.b, name, t, false);
}

static ir_type buffer(eas_dtype dt) { return (ir_type){.dtype = (uint8_t)dt, .kind = IR_BUF}; }

/* ---- parameters and results to differentiate ---- */

static eas_status ask(gradder *g, int n, const int *which, bool of)
{
    for (int k = 0; k < n; k++) {
        const int p = which[k];
        if (p < 0 || p >= g->w.from->nparams)
            return base_fail(EAS_ERR_VALUE, "%s has no parameter %d", g->w.from->name, p);
        const ir_type t = ir_typeof(g->w.from, (uint32_t)p + 1);
        const char *name = g->w.from->params[p].name;
        if (!dtype_is_float((eas_dtype)t.dtype))
            return base_fail(EAS_ERR_TYPE, "%s: \"%s\" is %s; only floats have derivatives", g->w.from->name,
                             name, eas_dtype_name((eas_dtype)t.dtype));
        if (of && (t.kind != IR_BUF || !g->w.from->params[p].write))
            return base_fail(EAS_ERR_VALUE, "%s: `of` names \"%s\", which the kernel does not write to",
                             g->w.from->name, name);
        *(of ? &g->buf[p].of : &g->buf[p].wrt) = true;
    }
    return n ? EAS_OK
             : base_fail(EAS_ERR_VALUE, "%s: `%s` names no parameter", g->w.from->name, of ? "of" : "wrt");
}

/* ---- parameters of the derivative ---- */

static void named_param(gradder *g, uint32_t *to, const char *prefix, int p, ir_type t, eas_grad_role role)
{
    char name[300];
    snprintf(name, sizeof name, "%s_%.250s", prefix, g->w.from->params[p].name);
    *to = grad_param(g, name, t,
                     (eas_grad_param){.role = role,
                                      .param = p,
                                      .consumed = role == EAS_GRAD_COTANGENT && g->buf[p].consumed});
}

static void add_given(gradder *g)
{
    for (int p = 0; p < g->w.from->nparams; p++) {
        const ir_type t = ir_typeof(g->w.from, (uint32_t)p + 1);
        const eas_grad_param what = {
            .role = EAS_GRAD_GIVEN, .param = p, .dtype = (eas_dtype)t.dtype, .is_buffer = t.kind == IR_BUF};
        g->w.map[p + 1] = (uint32_t)p + 1;
        if (!vec_push(&g->params, what))
            g->w.mem.oom = true;
    }
}

/* Adds the cotangents' parameters, in the order in which the results were given. */
static void add_cotangents(gradder *g)
{
    for (int k = 0; k < g->opt->nof; k++) {
        const int p = g->opt->of[k];
        if (!g->buf[p].ct)
            named_param(g, &g->buf[p].ct, "d", p,
                        buffer((eas_dtype)ir_typeof(g->w.from, (uint32_t)p + 1).dtype),
                        g->buf[p].shared ? EAS_GRAD_BOTH : EAS_GRAD_COTANGENT);
    }
    for (int k = 0; k < g->opt->nwrt; k++) {
        const int p = g->opt->wrt[k];
        if (g->buf[p].shared)
            g->buf[p].grad = g->buf[p].ct;
        else if (!g->buf[p].grad)
            named_param(g, &g->buf[p].grad, "d", p,
                        buffer(grad_dtype((eas_dtype)ir_typeof(g->w.from, (uint32_t)p + 1).dtype)),
                        EAS_GRAD_GRADIENT);
    }
}

static uint32_t local_param(gradder *g, const char *what, uint32_t n, eas_dtype dt, int64_t size, bool zeroed)
{
    char name[40];
    snprintf(name, sizeof name, "%s_%u", what, (unsigned)n);
    return grad_param(
        g, name, buffer(dt),
        (eas_grad_param){.role = EAS_GRAD_LOCAL, .param = -1, .elements = size, .zeroed = zeroed});
}

static bool stores_meet(gradder *g, uint32_t buf)
{
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        if (in->op == IR_STORE && gargs(g, in)[0] == buf &&
            !grad_lanes_differ(g, gargs(g, in)[1], ir_mask(g->w.from, in)))
            return true;
    }
    return false;
}

static void add_locals(gradder *g)
{
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        if (in->op != IR_ALLOC_TG)
            continue;
        const ir_type t = ir_typeof(g->w.from, in->res);
        const uint32_t n = g->locals.len;
        grad_local l = {.value = in->res, .size = t.dim[0]};
        l.data = local_param(g, "tg", n, (eas_dtype)t.dtype, l.size, false);
        if (gactive(g, in->res)) {
            l.adj = local_param(g, "d_tg", n, grad_dtype((eas_dtype)t.dtype), l.size, true);
            l.owner = stores_meet(g, in->res) ? local_param(g, "own_tg", n, EAS_I32, l.size, false) : 0;
        }
        if (!vec_push(&g->locals, l))
            g->w.mem.oom = true;
    }
}

static void add_owners(gradder *g)
{
    for (int p = 0; p < g->w.from->nparams; p++)
        if (g->buf[p].of && stores_meet(g, (uint32_t)p + 1))
            named_param(g, &g->buf[p].owner, "own", p, buffer(EAS_I32), EAS_GRAD_OWNER);
}

/* ---- tapes ---- */

static bool loads(const gradder *g, uint32_t i, uint32_t array)
{
    const ir_insn *in = &g->w.from->insns[i];
    return (in->op == IR_LOAD && gargs(g, in)[0] == array) ||
           (in->op == IR_DOT && (gargs(g, in)[0] == array || gargs(g, in)[3] == array));
}

static bool stores(const gradder *g, uint32_t i, uint32_t array)
{
    return ir_writes(&g->w.from->insns[i]) && gargs(g, &g->w.from->insns[i])[0] == array;
}

/* Does the instruction write every element of the array, in every launch? */
static bool fills(const gradder *g, uint32_t i, const grad_local *l)
{
    const ir_insn *in = &g->w.from->insns[i];
    if (in->op != IR_STORE || in->nargs != 3 || gargs(g, in)[0] != l->value)
        return false;
    const ir_insn *off = ir_def(g->w.from, gargs(g, in)[1]);
    while (off && off->op == IR_CAST)
        off = ir_def(g->w.from, gargs(g, off)[0]);
    return off && off->op == IR_ARANGE && !off->imm && ir_typeof(g->w.from, off->res).dim[0] == l->size;
}

/* Is an array from which region `o` reads written after it? Then its content must be restored before the
 * region is computed again. */
static bool changes_after(const gradder *g, uint32_t o, const grad_local *l)
{
    bool read = false, filled = false;
    int depth = 0;
    for (uint32_t i = o + 1; i < g->at.end[o] && !filled; i++) {
        const uint16_t op = g->w.from->insns[i].op;
        depth += (op == IR_LOOP || op == IR_WHILE || op == IR_IF) -
                 (op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF);
        filled = !read && !depth && g->w.from->insns[o].op == IR_LOOP && fills(g, i, l);
        read |= loads(g, i, l->value);
    }
    if (!read)
        return false;
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        if (!stores(g, i, l->value))
            continue;
        if (i > o)
            return true;
        for (uint32_t e = 0; e < i; e++) /* a loop around both comes back to it */
            if ((g->w.from->insns[e].op == IR_LOOP || g->w.from->insns[e].op == IR_WHILE) &&
                g->at.end[e] > g->at.end[o])
                return true;
    }
    return false;
}

static bool dropped(const grad_known *known, uint32_t loop, int carried)
{
    for (uint32_t i = 0; i < known->tapes.len; i++)
        if (known->tapes.at[i].loop == loop && known->tapes.at[i].carried == carried)
            return true;
    return false;
}

static void add_tape(gradder *g, const grad_known *known, uint32_t loop, int carried, eas_dtype dt,
                     int64_t elements, int number)
{
    char name[60];
    grad_tape tape = {.loop = loop, .carried = carried, .dropped = dropped(known, loop, carried)};
    if (!tape.dropped) {
        snprintf(name, sizeof name, "tape_%u", (unsigned)g->tapes.len);
        tape.param = grad_param(
            g, name, buffer(dt),
            (eas_grad_param){.role = EAS_GRAD_TAPE, .param = -1, .loop = number, .elements = elements});
    }
    if (!vec_push(&g->tapes, tape))
        g->w.mem.oom = true;
}

/* A loop that threads left at different times, which has become one that ends with the last thread. */
static bool counts_in_threads(const gradder *g, uint32_t i)
{
    return g->origin && g->primal->insns[g->origin[i]].op == IR_LOOP;
}

static eas_status add_loop(gradder *g, const grad_known *known, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i];
    const int head = in->op == IR_LOOP ? 3 : 0, skip = head ? 1 : 0,
              number = in->op == IR_IF ? -1 : g->nloops;
    const uint32_t first = g->params.len;
    for (int k = 0; k < in->nargs - head && in->op != IR_IF; k++) {
        const ir_type t = ir_typeof(g->w.from, in->res + (uint32_t)(k + skip));
        if (!grad_counts_by(g, i, k))
            add_tape(g, known, i, k, (eas_dtype)t.dtype, ir_lanes(t), number);
    }
    for (uint32_t n = 0; n < g->locals.len; n++)
        if (changes_after(g, i, &g->locals.at[n]))
            add_tape(g, known, i, -1 - (int)n, (eas_dtype)ir_typeof(g->w.from, g->locals.at[n].value).dtype,
                     g->locals.at[n].size, number);
    if (in->op == IR_IF || g->params.len == first)
        return EAS_OK;
    if (g->nloops == GRAD_MAX_LOOPS)
        return grad_fail(g, in, "more than %d loops keep values for the derivative", (int)GRAD_MAX_LOOPS);
    if (in->op == IR_WHILE && !g->opt->max_trips && !counts_in_threads(g, i))
        return grad_fail(g, in,
                         "how often this loop goes round is not known before it ran, and its values must be "
                         "kept: give max_trips");
    char name[40];
    snprintf(name, sizeof name, "trips_%d", g->nloops);
    g->loops[g->nloops] = i;
    g->trips[g->nloops] =
        grad_param(g, name, ir_scalar(EAS_I64),
                   (eas_grad_param){.role = EAS_GRAD_TRIPS, .param = -1, .loop = g->nloops});
    g->nloops++;
    return EAS_OK;
}

static eas_status add_tapes(gradder *g, const grad_known *known)
{
    eas_status st = EAS_OK;
    for (uint32_t i = 0; i < g->w.from->ninsns && !st; i++)
        if (g->w.from->insns[i].op == IR_LOOP || g->w.from->insns[i].op == IR_WHILE ||
            (g->w.from->insns[i].op == IR_IF && g->locals.len))
            st = add_loop(g, known, i);
    return st;
}

static void add_lengths(gradder *g)
{
    for (int p = 0; p < g->w.from->nparams && g->opt->deterministic; p++)
        if (g->buf[p].wrt && !g->buf[p].shared)
            named_param(g, &g->buf[p].length, "n", p, ir_scalar(EAS_I64), EAS_GRAD_LENGTH);
}

/* ---- building ---- */

static void number_programs(gradder *g)
{
    const int naxes = ir_analyse(g->w.from).naxes;
    const ir_type t = ir_scalar(EAS_I64);
    g->program = irb_typed(g->w.b, IR_PROGRAM_ID, t, naxes - 1);
    for (int a = naxes - 2; a >= 0; a--)
        g->program = g_op(g, IR_ADD, g_op(g, IR_MUL, g->program, irb_typed(g->w.b, IR_NUM_PROGRAMS, t, a)),
                          irb_typed(g->w.b, IR_PROGRAM_ID, t, a));
    for (uint32_t i = 0; i < g->locals.len; i++)
        g->locals.at[i].start = g_op(g, IR_MUL, g->program, g_int(g, EAS_I64, g->locals.at[i].size));
}

/* Gradients of numbers: each program adds its part. */
static void add_scalars(gradder *g)
{
    for (int p = 0; p < g->w.from->nparams && !g->w.b->status; p++) {
        const uint32_t v = (uint32_t)p + 1;
        if (!gfloat(g, v) || !g->buf[p].grad || !g->adj[v])
            continue;
        uint32_t at = g_int(g, EAS_I64, 0);
        if (g->buf[p].length)
            at = g_op(g, IR_MUL, g->program, g->buf[p].length);
        uint32_t a[3] = {g->buf[p].grad, at, g->adj[v]};
        ir_type t = {0};
        irb_insn(g->w.b, IR_ATOMIC_ADD, a, 3, 0, 1, &t);
    }
}

/* A product from memory is differentiated by reading the factors again, so they may not have been written
 * since. */
static eas_status check_dots(gradder *g)
{
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        if (in->op != IR_DOT || !gactive(g, in->res))
            continue;
        uint32_t last = g->w.from->ninsns;
        for (uint32_t o = 0; o < i; o++)
            if (g->at.end[o] > i && g->at.end[o] < last)
                last = g->at.end[o];
        for (uint32_t s = i; s < last; s++)
            if (ir_writes(&g->w.from->insns[s]) &&
                gargs(g, &g->w.from->insns[s])[0] > (uint32_t)g->w.from->nparams &&
                (gargs(g, &g->w.from->insns[s])[0] == gargs(g, in)[0] ||
                 gargs(g, &g->w.from->insns[s])[0] == gargs(g, in)[3]))
                return grad_fail(g, in,
                                 "dot: the threadgroup array is written again (line %u) before the loop or "
                                 "kernel ends: its derivative needs what was there",
                                 (unsigned)g->w.from->insns[s].line);
    }
    return EAS_OK;
}

static eas_status begin(gradder *g, const char *suffix)
{
    g->w.b->ir->name = arena_printf(&g->w.b->ir->mem, "%.200s_%s", g->w.from->name, suffix);
    add_given(g);
    return g->w.b->ir->name ? EAS_OK : base_fail_oom(256);
}

static eas_status write_reverse(gradder *g, const grad_known *known)
{
    eas_status st = begin(g, "grad");
    if (!st)
        st = check_dots(g);
    if (st)
        return st;
    add_cotangents(g);
    add_locals(g);
    add_owners(g);
    add_lengths(g);
    st = add_tapes(g, known);
    if (st)
        return st;
    number_programs(g);
    grad_forward(g, 0, g->w.from->ninsns, true);
    grad_reverse(g, 0, g->w.from->ninsns);
    add_scalars(g);
    return g->status;
}

static eas_status join_programs(gradder *g, eas_ir **ir)
{
    eas_ir *banded = NULL;
    eas_status st = grad_banded(*ir, &banded);
    if (st || !banded)
        return st;
    eas_ir_release(*ir);
    *ir = banded;
    for (int k = 0; k < 2; k++) {
        const eas_grad_param what = {
            .role = k ? EAS_GRAD_BAND : EAS_GRAD_PROGRAMS, .param = -1, .dtype = EAS_I64};
        if (!vec_push(&g->params, what))
            return base_fail_oom(sizeof what);
    }
    return EAS_OK;
}

static eas_status finish(gradder *g, bool reverse, eas_ir **out)
{
    eas_ir *full = NULL, *less = NULL;
    eas_status st = ir_rewrite_end(&g->w, g->status, &full);
    if (!st)
        st = ir_prune(full, &less);
    if (!st && reverse && g->opt->band && !g->opt->deterministic)
        st = join_programs(g, &less);
    if (!st)
        st = ir_simplify(less, out);
    eas_ir_release(full);
    eas_ir_release(less);
    return st;
}

static void done(gradder *g)
{
    ir_rewrite_drop(&g->w);
    vec_free(&g->locals);
    vec_free(&g->tapes);
    vec_free(&g->params);
}

/* Notes the tapes that nothing reads; true: there are some. */
static bool note_unread(const gradder *g, const eas_ir *ir, grad_known *known)
{
    bool any = false;
    for (uint32_t i = 0; i < g->tapes.len; i++) {
        const grad_tape *t = &g->tapes.at[i];
        if (!t->dropped && !ir->params[t->param - 1].read)
            any |= vec_push(&known->tapes, *t);
    }
    return any;
}

static eas_status hand_over(gradder *g, eas_ir *ir, eas_ir *primal, const uint32_t *origin, eas_grad **out)
{
    eas_grad *d = calloc(1, sizeof *d);
    eas_grad_param *params = calloc(g->params.len + 1, sizeof *params);
    if (!d || !params) {
        free(d);
        free(params);
        eas_ir_release(ir);
        return base_fail_oom(sizeof *d);
    }
    memcpy(params, g->params.at, g->params.len * sizeof *params);
    *d = (eas_grad){.ir = ir,
                    .primal = eas_ir_retain(primal),
                    .params = params,
                    .nparams = (int)g->params.len,
                    .nloops = g->nloops,
                    .max_trips = g->opt->max_trips};
    for (int i = 0; i < g->nloops; i++)
        d->loops[i] = origin ? origin[g->loops[i]] : g->loops[i];
    *out = d;
    return EAS_OK;
}

static eas_status prepare(gradder *g, const eas_ir *ir, bool reverse)
{
    eas_status st = ir_rewrite_begin(&g->w, ir);
    if (st)
        return st;
    g->buf = arena_alloc(&g->w.mem, (size_t)(ir->nparams + 1) * sizeof *g->buf);
    st = g->buf ? ask(g, g->opt->nof, g->opt->of, true) : base_fail_oom(64);
    if (!st)
        st = ask(g, g->opt->nwrt, g->opt->wrt, false);
    return st ? st : grad_facts(g, reverse);
}

static eas_status build_reverse(const eas_ir *spmd, eas_ir *primal, const uint32_t *origin,
                                const eas_grad_options *opt, eas_grad **out)
{
    grad_known known = {0};
    eas_status st = EAS_OK;
    for (bool again = true; again && !st;) {
        gradder g = {.primal = primal, .origin = origin, .opt = opt};
        eas_ir *ir = NULL;
        st = prepare(&g, spmd, true);
        if (!st)
            st = write_reverse(&g, &known);
        if (!st)
            st = finish(&g, true, &ir);
        again = !st && note_unread(&g, ir, &known);
        if (again)
            eas_ir_release(ir);
        else if (!st)
            st = hand_over(&g, ir, primal, origin, out);
        done(&g);
    }
    vec_free(&known.tapes);
    return st;
}

static eas_status check_options(const eas_ir *ir, const eas_grad_options *opt)
{
    if (!ir || ir->magic != IR_MAGIC)
        return base_fail(EAS_ERR_HANDLE, "this IR was released");
    if (opt->max_trips < 0)
        return base_fail(EAS_ERR_VALUE, "%s: max_trips must not be negative, got %lld", ir->name,
                         (long long)opt->max_trips);
    return EAS_OK;
}

eas_status eas_ir_grad(eas_ir *ir, const eas_grad_options *opt, eas_grad **out)
{
    NEED(opt, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    eas_ir *lanes = NULL;
    uint32_t *origin = NULL;
    *out = NULL;
    eas_status st = check_options(ir, opt);
    if (st)
        return st;
    if (!ir->threads)
        return build_reverse(ir, ir, NULL, opt, out);
    st = ir_as_lanes(ir, &lanes, &origin);
    if (!st)
        st = build_reverse(lanes, ir, origin, opt, out);
    eas_ir_release(lanes);
    free(origin);
    return st;
}

/* ---- forward mode ---- */

static void add_tangents(gradder *g)
{
    for (int side = 0; side < 2; side++) {
        const int n = side ? g->opt->nof : g->opt->nwrt, *which = side ? g->opt->of : g->opt->wrt;
        for (int k = 0; k < n; k++) {
            const int p = which[k];
            const eas_grad_role role = g->buf[p].of && g->buf[p].wrt ? EAS_GRAD_BOTH
                                     : side                          ? EAS_GRAD_RESULT_TANGENT
                                                                     : EAS_GRAD_TANGENT;
            if (!g->buf[p].ct)
                named_param(g, &g->buf[p].ct, "t", p, ir_typeof(g->w.from, (uint32_t)p + 1), role);
        }
    }
}

eas_status eas_ir_jvp(eas_ir *ir, const eas_grad_options *opt, eas_grad **out)
{
    NEED(opt, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    gradder g = {.opt = opt};
    eas_ir *made = NULL;
    *out = NULL;
    eas_status st = check_options(ir, opt);
    if (!st)
        st = prepare(&g, ir, false);
    if (!st)
        st = begin(&g, "jvp");
    if (!st) {
        add_tangents(&g);
        grad_jvp(&g);
        st = finish(&g, false, &made);
    }
    if (!st)
        st = hand_over(&g, made, ir, NULL, out);
    done(&g);
    return st;
}

/* ---- properties of a derivative ---- */

eas_ir *eas_grad_ir(const eas_grad *d)
{
    NEED(d, NULL);
    return d->ir;
}

eas_grad_param eas_grad_param_at(const eas_grad *d, int i)
{
    NEED(d, (eas_grad_param){0});
    return i < 0 || i >= d->nparams ? (eas_grad_param){.role = EAS_GRAD_GIVEN, .param = -1} : d->params[i];
}

void eas_grad_free(eas_grad *d)
{
    if (!d)
        return;
    eas_ir_release(d->ir);
    eas_ir_release(d->primal);
    free(d->params);
    free(d);
}

/* Turns of a loop whose bounds lie in these ranges; -1: not known. */
static int64_t turns(ir_range lo, ir_range hi, ir_range step)
{
    __extension__ typedef __int128 wide;
    const wide far = step.lo > 0 ? (wide)hi.hi - lo.lo : (wide)lo.hi - hi.lo;
    const int64_t by = step.lo > 0 ? step.lo : step.hi < 0 ? -step.hi : 0;
    if (!by)
        return step.lo == 0 && step.hi == 0 ? 0 : -1;
    const wide n = far <= 0 ? 0 : (far + by - 1) / by;
    return n > INT32_MAX ? -1 : (int64_t)n;
}

eas_status eas_grad_trips(const eas_grad *d, int loop, const int64_t *scalars, const int64_t grid[3],
                          int64_t *out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(scalars, EAS_ERR_HANDLE);
    NEED(grid, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    arena mem = {0};
    const eas_ir *ir = d->primal;
    if (loop < 0 || loop >= d->nloops)
        return base_fail(EAS_ERR_VALUE, "%s keeps values of %d loops; there is no loop %d", ir->name,
                         d->nloops, loop);
    const ir_insn *in = &ir->insns[d->loops[loop]];
    ir_range *s = arena_alloc(&mem, (size_t)(ir->nparams + 1) * sizeof *s);
    for (int p = 0; s && p < ir->nparams; p++)
        s[p] = (ir_range){scalars[p], scalars[p]};
    ir_env env = {.scalar = s, .grid = {grid[0], grid[1], grid[2]}};
    ir_range *r = s ? ir_ranges(ir, &env, &mem) : NULL;
    int64_t n = -1;
    if (r && in->op == IR_LOOP)
        n = turns(r[ir_args(ir, in)[0]], r[ir_args(ir, in)[1]], r[ir_args(ir, in)[2]]);
    arena_free(&mem);
    if (!r)
        return base_fail_oom(ir->nvals);
    if (n < 0)
        n = d->max_trips ? d->max_trips : -1;
    *out = n;
    if (n >= 0)
        return EAS_OK;
    return base_fail(EAS_ERR_VALUE,
                     "%s: %s:%u: how often this loop goes round is not known before the launch, and its "
                     "values must be kept: give max_trips",
                     ir->name, in->file ? ir->files[in->file] : "?", (unsigned)in->line);
}
