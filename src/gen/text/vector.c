/* vector.c: lane loops in explicit vectors, for devices that are CPUs.
 *
 * The compilers of such devices do not make good vectors of loops over lanes, so the loops are printed in steps of ct.lanes: a block value is then one of
 *
 *   UNI    the same in all lanes of the step: a scalar
 *   STEP   an integer that goes up by a constant from lane to lane: the scalar of the first lane
 *   VEC    a vector; bools are masks of int, 0 or -1
 *
 * Addresses that are STEP by one are read and written as vectors; what a mask cuts, and everything else, lane by lane through small arrays, and so do a few
 * instructions without a form for vectors. Where a place cannot be followed, or there are many of those, printing fails and the loop goes lane by lane.
 */
#include "vector.h"

#include <ctype.h>
#include <stdio.h>

enum { MAX_SPREAD = 8 };

typedef struct ct_vinst {
    ct_at at;
    vx x;
    uint32_t next;
} ct_vinst;

bool vx_is_half(eas_dtype dt) { return dt == EAS_F16 || dt == EAS_BF16; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t low_bit(uint64_t x) { return least(MAX_MULT, ir_low_bit(x)); }

vx vx_give_up(ct *g)
{
    g->vec.failed = true;
    return (vx){.x = "0", .mult = 1};
}

/* ---- words of the language ---- */

/* The type of a variable's lanes: bools are int. */
eas_dtype vx_lane_dtype(eas_dtype dt) { return dt == EAS_BOOL ? EAS_I32 : vx_is_half(dt) ? EAS_F32 : dt; }

const char *vx_vec_type(ct *g, eas_dtype dt, int n) { return ct_fmt(g, "%s%d", g->d->type[vx_lane_dtype(dt)], n); }

const char *ct_array_type(const ct *g, eas_dtype dt) { return g->lanes && dt == EAS_BOOL ? g->d->type[EAS_U8] : g->d->type[dt]; }

/* The vector of neighbours at a pointer, whatever its alignment. */
const char *vx_neighbours(ct *g, const char *space, eas_dtype dt, const char *pointer)
{
    g->packs |= 1u << dt;
    return ct_fmt(g, "((%s%seas_%s%d*)(%s))->v", space, *space ? " " : "", g->d->type[dt], g->lanes, pointer);
}

const char *vx_array_at(ct *g, const char *array, eas_dtype dt, const char *at)
{
    return vx_neighbours(g, "", dt == EAS_BOOL ? EAS_U8 : vx_lane_dtype(dt), ct_fmt(g, "%s + %s", array, at));
}

void ct_vec_typedefs(const ct *g, str *s)
{
    for (int dt = 0; dt < EAS_NDTYPES; dt++)
        if (g->packs >> dt & 1)
            str_add(s, "typedef struct __attribute__((packed)) { %s%d v; } eas_%s%d;\n", g->d->type[dt], g->lanes, g->d->type[dt], g->lanes);
}

static const char *iota(ct *g, eas_dtype dt, int64_t step)
{
    str s = {0};
    str_add(&s, "(%s)(", vx_vec_type(g, dt, g->lanes));
    for (int l = 0; l < g->lanes; l++)
        str_add(&s, l ? ", %lld" : "%lld", (long long)(l * step));
    str_add(&s, ")");
    const char *r = ct_fmt(g, "%s", s.oom ? "" : s.at);
    g->mem.oom |= s.oom;
    str_free(&s);
    return r;
}

/* Any value as a vector, atomic. */
const char *vx_as_vector(ct *g, eas_dtype dt, vx v)
{
    const char *type = vx_vec_type(g, dt, g->lanes);
    if (v.kind == VEC)
        return v.x;
    if (v.kind == UNI)
        return dt == EAS_BOOL ? ct_fmt(g, "(%s)(%s ? -1 : 0)", type, v.x) : ct_fmt(g, "(%s)(%s)", type, v.x);
    return ct_fmt(g, "((%s)(%s) + %s)", type, v.x, iota(g, dt, v.step));
}

/* Bools in arrays are bytes. */
const char *vx_to_element(ct *g, eas_dtype dt, const char *x) { return dt == EAS_BOOL ? ct_fmt(g, "convert_uchar%d(%s & 1)", g->lanes, x) : x; }

const char *vx_from_element(ct *g, eas_dtype dt, const char *x)
{
    return dt == EAS_BOOL ? ct_fmt(g, "convert_int%d(%s != (uchar%d)(0))", g->lanes, x, g->lanes) : x;
}

/* ---- values known in this step ---- */

static bool same_place(ir_type t, const ct_at *a, const ct_at *b)
{
    for (int d = 0; d < t.rank; d++)
        if (strcmp(a->dim[d], b->dim[d]))
            return false;
    return true;
}

static uint32_t *chain(ct *g, uint32_t v)
{
    if (g->vec.epoch[v] != g->loop.epoch) {
        g->vec.epoch[v] = g->loop.epoch;
        g->vec.head[v] = 0;
    }
    return &g->vec.head[v];
}

static const vx *recall(ct *g, uint32_t v, const ct_at *at, int *count)
{
    *count = 0;
    for (uint32_t k = *chain(g, v); k; k = g->vec.insts[k - 1].next, ++*count)
        if (same_place(ir_typeof(g->ir, v), &g->vec.insts[k - 1].at, at))
            return &g->vec.insts[k - 1].x;
    return NULL;
}

static vx remember(ct *g, uint32_t v, const ct_at *at, vx x)
{
    uint32_t *head = chain(g, v);
    if (!vec_grow((void **)&g->vec.insts, &g->vec.cap, g->vec.n + 1, sizeof *g->vec.insts)) {
        g->mem.oom = true;
        return x;
    }
    g->vec.insts[g->vec.n++] = (ct_vinst){*at, x, *head};
    *head = g->vec.n;
    return x;
}

/* ---- places ---- */

static bool has_word(const char *s, size_t n, const char *w)
{
    size_t m = strlen(w);
    for (size_t i = 0; i + m <= n; i++) {
        bool before = i && (isalnum((unsigned char)s[i - 1]) || s[i - 1] == '_');
        bool after = i + m < n && (isalnum((unsigned char)s[i + m]) || s[i + m] == '_');
        if (!before && !after && !strncmp(s + i, w, m))
            return true;
    }
    return false;
}

/* The end of a term of a sum. */
static size_t term_length(const char *s)
{
    int depth = 0;
    size_t n = 0;
    for (; s[n]; n++) {
        depth += (s[n] == '(') - (s[n] == ')');
        if (!depth && n && s[n] == ' ' && (s[n + 1] == '+' || s[n + 1] == '-') && s[n + 2] == ' ')
            break;
    }
    return n;
}

/* How an index goes from lane to lane: UNI, STEP by one, or VEC (in another way). */
static vx index_form(ct *g, const char *s)
{
    const char *var = g->vec.var;
    vx r = {.kind = UNI, .mult = MAX_MULT, .x = s};
    bool plus = true;
    while (*s) {
        size_t n = term_length(s);
        bool own = n == strlen(var) && !strncmp(s, var, n);
        if (own && plus && r.kind == UNI) {
            r.kind = STEP;
            r.step = 1;
            r.mult = least(r.mult, (uint64_t)g->lanes);
        } else if (has_word(s, n, var)) {
            return (vx){.kind = VEC, .mult = 1};
        } else {
            r.mult = least(r.mult, isdigit((unsigned char)*s) && !memchr(s, ' ', n) ? low_bit(strtoull(s, NULL, 10)) : 1);
        }
        s += n;
        if (*s) {
            plus = s[1] == '+';
            s += 3;
        }
    }
    return r;
}

/* ---- which form a result has ---- */

/* The lanes of a step lie in one aligned run, so that no carry leaves it. */
static bool aligned_run(const ct *g, vx x) { return x.kind == STEP && x.step == 1 && x.mult >= (uint64_t)g->lanes; }

bool vx_wide_int(eas_dtype dt) { return dtype_is_int(dt) && dtype_bits(dt) >= 32; }

static ir_run run_of(vx x) { return x.kind == VEC ? (ir_run){0} : (ir_run){.ok = true, .exact = true, .stride = x.step, .mult = x.mult}; }

static vx form(ir_run r)
{
    return r.ok ? (vx){.kind = r.stride ? STEP : UNI, .step = r.stride, .mult = least(MAX_MULT, r.mult)} : (vx){.kind = VEC, .mult = 1};
}

/* The dtypes of an instruction are integers of at least 32 bits: those that scalars of a first lane are kept for. */
static bool all_wide(const eas_ir *ir, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++)
        if (!vx_wide_int(ir_typeof(ir, ir_args(ir, in)[k]).dtype))
            return false;
    return vx_wide_int(ir_typeof(ir, in->res).dtype);
}

/* An instruction with a constant on the right, of a value that goes up from lane to lane. Factors are kept small, so that no stride overflows. */
static ir_run with_constant(const ct *g, const ir_insn *in, const ir_run *x, int64_t c)
{
    const eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    const bool floors = in->op == IR_FLOORDIV || in->op == IR_MOD || !dtype_is_signed(dt), aligned = x->stride == 1;
    switch (in->op) {
    case IR_MUL: return c > -4096 && c < 4096 ? ir_run_scaled(x, c) : (ir_run){0};
    case IR_SHL: return c >= 0 && c < 12 ? ir_run_scaled(x, (int64_t)1 << c) : (ir_run){0};
    case IR_FLOORDIV:
    case IR_TDIV: return aligned && floors ? ir_run_split(true, x, c, g->lanes) : (ir_run){0};
    case IR_MOD:
    case IR_TREM: return aligned && floors ? ir_run_split(false, x, c, g->lanes) : (ir_run){0};
    case IR_SHR: return aligned && c >= 0 && c < 31 ? ir_run_split(true, x, (int64_t)1 << c, g->lanes) : (ir_run){0};
    case IR_AND: return aligned && c > 0 && c < INT64_MAX && !(c & (c + 1)) ? ir_run_split(false, x, c + 1, g->lanes) : (ir_run){0};
    default: return (ir_run){0};
    }
}

static vx form_of(const ct *g, const ir_insn *in, const vx *x)
{
    const vx uni = {.kind = UNI, .mult = 1}, vec = {.kind = VEC, .mult = 1};
    bool all_uni = true, known = all_wide(g->ir, in);
    for (int k = 0; k < in->nargs; k++) {
        all_uni = all_uni && x[k].kind == UNI;
        known = known && x[k].kind != VEC;
    }
    if (!known)
        return all_uni ? uni : vec;
    const uint32_t *a = ir_args(g->ir, in);
    const ir_run l = in->nargs ? run_of(x[0]) : (ir_run){0}, r = in->nargs > 1 ? run_of(x[1]) : l;
    int64_t c;
    const bool constant = in->nargs == 2 && ir_const_of(g->ir, a[1], &c);
    switch (in->op) {
    case IR_ADD:
    case IR_SUB: return form(ir_run_sum(in->op, &l, &r));
    case IR_CAST: {
        const bool wider = dtype_bits(ir_typeof(g->ir, in->res).dtype) > dtype_bits(ir_typeof(g->ir, a[0]).dtype);
        return !all_uni && wider && !aligned_run(g, x[0]) ? vec : form(l);
    }
    case IR_MUL:
        if (all_uni)
            return form(ir_run_product(&l, &r));
        break;
    case IR_SHL: /* of a uniform value too: what it is a multiple of decides about vectors */
        if (constant && c >= 0 && c < 12)
            return form(with_constant(g, in, &l, c));
        break;
    default: break;
    }
    return all_uni ? uni : constant ? form(with_constant(g, in, &l, c)) : vec;
}

/* ---- instructions on vectors ---- */

static bool in_vectors(eas_dtype dt) { return dt == EAS_F32 || dt == EAS_F64 || vx_wide_int(dt); }

/* A mask as lanes of as many bits. */
static const char *mask_as(ct *g, int bits, const char *m)
{
    return bits == 32 ? m : ct_fmt(g, "convert_%s%d(%s)", bits == 64 ? "long" : bits == 16 ? "short" : "char", g->lanes, m);
}

static const char *mask_from(ct *g, int bits, const char *m) { return bits == 32 ? m : ct_fmt(g, "convert_int%d(%s)", g->lanes, m); }

static const char *cast_vector(ct *g, eas_dtype from, eas_dtype to, const char *x)
{
    int W = g->lanes;
    const char *type = g->d->type[vx_lane_dtype(to)];
    if (vx_is_half(to))
        return vx_is_half(from) && from == to ? x : NULL;
    if (from == to || (vx_is_half(from) && to == EAS_F32))
        return x;
    if (to == EAS_BOOL) {
        eas_dtype lane = vx_lane_dtype(from);
        return mask_from(g, dtype_bits(lane), ct_fmt(g, "(%s != (%s)(0))", x, vx_vec_type(g, lane, W)));
    }
    if (from == EAS_BOOL)
        return ct_fmt(g, "convert_%s%d(%s & 1)", type, W, x);
    if (dtype_is_float(from))
        return ct_fmt(g, dtype_is_int(to) ? "convert_%s%d_sat_rtz(%s)" : "convert_%s%d(%s)", type, W, x);
    if (dtype_is_int(to) && dtype_bits(from) == dtype_bits(to))
        return ct_fmt(g, "as_%s%d(%s)", type, W, x);
    return ct_fmt(g, "convert_%s%d(%s)", type, W, x);
}

/* May the table's meaning be printed over vectors? Quotients and shifts only by constants, and quotients of unsigned integers. */
static bool has_vector_form(const eas_ir *ir, const ir_insn *in)
{
    const ir_row *row = &ir_rows[in->op];
    const uint32_t *a = ir_args(ir, in);
    if (!(row->flags & IR_VECTOR) || in->op == IR_WHERE)
        return in->op == IR_WHERE;
    const eas_dtype dt = ir_typeof(ir, a[0]).dtype;
    int64_t c;
    const bool constant = in->nargs == 2 && ir_const_of(ir, a[1], &c);
    switch (in->op) {
    case IR_FLOORDIV:
    case IR_TDIV:
    case IR_MOD:
    case IR_TREM: return in_vectors(dt) && !dtype_is_signed(dt) && !dtype_is_float(dt) && constant && c > 0;
    case IR_SHL:
    case IR_SHR: return in_vectors(dt) && constant && c >= 0 && c < dtype_bits(dt);
    default: return in_vectors(dt) || (dt == EAS_BOOL && row->classes & IR_B);
    }
}

/* An operand of lane eas_l, through an array unless all lanes have the same. */
static const char *spread(ct *g, const char *name, int k, eas_dtype dt, vx x)
{
    if (x.kind == UNI)
        return x.x;
    const char *array = ct_fmt(g, "%s_%c", name, 'a' + k);
    ct_line(g, "%s %s[%d];", ct_array_type(g, dt), array, g->lanes);
    ct_line(g, "%s = %s;", vx_array_at(g, array, dt, "0"), vx_to_element(g, dt, vx_as_vector(g, dt, x)));
    return ct_fmt(g, "%s[eas_l]", array);
}

/* An instruction lane by lane, where a loop over vectors has only a few of that kind. */
static const char *over_lanes(ct *g, const ir_insn *in, const vx *x)
{
    const eas_ir *ir = g->ir;
    const uint32_t *a = ir_args(ir, in);
    const eas_dtype to = ir_typeof(ir, in->res).dtype;
    const char *lane[3], *name = ct_fmt(g, "v%u_e%d", (unsigned)in->res, g->vec.serial);
    bool narrow = !in_vectors(to) && to != EAS_BOOL;
    for (int k = 0; k < in->nargs; k++)
        narrow = narrow || (!in_vectors(ir_typeof(ir, a[k]).dtype) && ir_typeof(ir, a[k]).dtype != EAS_BOOL);
    if (narrow || ++g->vec.serial > MAX_SPREAD)
        return vx_give_up(g).x;
    for (int k = 0; k < in->nargs; k++)
        lane[k] = spread(g, name, k, ir_typeof(ir, a[k]).dtype, x[k]);
    ct_line(g, "%s %s[%d];", ct_array_type(g, to), name, g->lanes);
    ct_line(g, "for (uint eas_l = 0; eas_l < %du; ++eas_l) {", g->lanes);
    ct_line(g, "    %s[eas_l] = %s;", name, ct_expr_with(g, in, lane, 0));
    ct_line(g, "}");
    return vx_from_element(g, to, vx_array_at(g, name, to, "0"));
}

static const char *vector_expr(ct *g, const ir_insn *in, const vx *x)
{
    const eas_ir *ir = g->ir;
    const uint32_t *a = ir_args(ir, in);
    eas_dtype from = ir_typeof(ir, a[0]).dtype, to = ir_typeof(ir, in->res).dtype;
    const char *arg[3] = {0};
    if (in->op == IR_CAST || in->op == IR_BITCAST) {
        if (a[0] <= (uint32_t)ir->nparams)
            from = g->param_dtype[a[0] - 1];
        bool bits = in->op == IR_BITCAST;
        const char *v = vx_as_vector(g, from, x[0]);
        const char *r = !bits                              ? cast_vector(g, from, to, v)
                      : in_vectors(from) && in_vectors(to) ? ct_fmt(g, "as_%s(%s)", vx_vec_type(g, to, g->lanes), v)
                                                           : NULL;
        return r ? r : over_lanes(g, in, x);
    }
    if (!has_vector_form(ir, in))
        return over_lanes(g, in, x);
    for (int k = 0; k < in->nargs; k++)
        arg[k] = vx_as_vector(g, ir_typeof(ir, a[k]).dtype, x[k]);
    if (in->op == IR_SHL || in->op == IR_SHR)
        arg[1] = x[1].x; /* a constant */
    if (in->op == IR_WHERE)
        arg[0] = mask_as(g, dtype_bits(vx_lane_dtype(to)), arg[0]);
    const char *r = ct_expr_with(g, in, arg, g->lanes);
    if (to != EAS_BOOL || from == EAS_BOOL || in->op == IR_WHERE)
        return r;
    return mask_from(g, dtype_bits(vx_lane_dtype(from)), ct_fmt(g, "(%s)", r));
}

/* ---- values ---- */

static vx array_value(ct *g, uint32_t v, const ct_at *at)
{
    ir_type t = ir_typeof(g->ir, v);
    const char *flat = ct_flat(g, t, at);
    vx f = index_form(g, flat);
    if (f.kind == VEC)
        return vx_give_up(g);
    if (f.kind == UNI)
        return (vx){.kind = UNI, .mult = 1, .x = ct_fmt(g, t.dtype == EAS_BOOL ? "(%s[%s] != 0)" : "%s[%s]", ct_name(g, v), flat)};
    return (vx){.kind = VEC, .mult = 1, .x = vx_from_element(g, t.dtype, vx_array_at(g, ct_name(g, v), t.dtype, flat))};
}

static vx arange_value(ct *g, const ir_insn *in, const ct_at *at)
{
    vx f = index_form(g, at->dim[0]);
    if (f.kind == VEC)
        return vx_give_up(g);
    f.mult = least(f.mult, low_bit((uint64_t)in->imm));
    f.x = ct_ref(g, in->res, at);
    return f;
}

/* Puts x into a variable, unless it is a name. */
static vx named(ct *g, eas_dtype dt, vx x, const char *name)
{
    bool plain = ct_plain(x.x) && !strpbrk(x.x, "([>");
    if (plain)
        return x;
    ct_line(g, "%s %s = %s;", x.kind == VEC ? vx_vec_type(g, dt, g->lanes) : g->d->type[dt], name, x.x);
    x.x = name;
    return x;
}

/* What an instruction gives at a place, in a variable of this name; scalars may stand in their own. */
static vx compute(ct *g, const ir_insn *in, const ct_at *at, const char *name)
{
    vx x[3];
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    if (in->op == IR_ARANGE)
        return arange_value(g, in, at);
    if (in->op == IR_LOAD)
        return named(g, dt, vx_load(g, in, at, name), name);
    if (in->nargs > 3 || !(ir_rows[in->op].flags & IR_PURE) || ir_is_fold(in) || in->op == IR_SIMD_SHUFFLE)
        return vx_give_up(g);
    for (int k = 0; k < in->nargs; k++)
        x[k] = vx_value(g, ir_args(g->ir, in)[k], at);
    vx r = form_of(g, in, x);
    if (g->vec.failed)
        return r;
    if (r.kind == VEC) {
        r.x = vector_expr(g, in, x);
    } else {
        const char *arg[3];
        for (int k = 0; k < in->nargs; k++)
            arg[k] = x[k].x;
        r.x = ct_expr_with(g, in, arg, 0);
    }
    ct_line(g, "%s %s = %s;", r.kind == VEC ? vx_vec_type(g, dt, g->lanes) : g->d->type[dt], name, r.x);
    r.x = name;
    return r;
}

vx vx_value(ct *g, uint32_t v, const ct_at *place)
{
    const eas_ir *ir = g->ir;
    ir_type t = ir_typeof(ir, v);
    const ir_insn *in = ir_def(ir, v);
    ct_at at = place ? *place : ct_natural(t);
    int64_t bits;
    int count;
    if (g->vec.failed)
        return vx_give_up(g);
    if (ir_const_of(ir, v, &bits))
        return (vx){.kind = UNI, .mult = low_bit((uint64_t)bits), .x = ct_literal(g, t.dtype, bits)};
    if (in && ct_is_view(ir, in)) {
        const char *inside;
        ct_at from = ct_through(g, in, &at, &inside);
        return inside ? vx_give_up(g) : vx_value(g, ir_args(ir, in)[0], &from);
    }
    if (!is_block(t))
        return (vx){.kind = UNI, .mult = least(MAX_MULT, ir_multiple(ir, v)), .x = ct_ref(g, v, &at)};
    const vx *have = recall(g, v, &at, &count);
    if (have)
        return *have;
    if (g->remat[v] || (g->inlined[v] && !g->array[v])) {
        vx x = compute(g, in, &at, ct_fmt(g, count ? "v%u_w%d" : "v%u_w", (unsigned)v, count));
        return g->vec.failed ? x : remember(g, v, &at, x);
    }
    if (!g->array[v])
        return vx_give_up(g);
    return remember(g, v, &at, named(g, t.dtype, array_value(g, v, &at), ct_fmt(g, "v%u_r%d", (unsigned)v, count)));
}

/* ---- what ctext.c and fold.c ask for ---- */

static void put(ct *g, const char *array, ir_type t, const ct_at *at, vx x)
{
    const char *flat = ct_flat(g, t, at);
    if (index_form(g, flat).kind != STEP) {
        vx_give_up(g);
        return;
    }
    ct_line(g, "%s = %s;", vx_array_at(g, array, t.dtype, flat), vx_to_element(g, t.dtype, vx_as_vector(g, t.dtype, x)));
}

static void insn(ct *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    g->at = i;
    if (in->op == IR_STORE) {
        vx_store(g, in);
        return;
    }
    if (!in->nres || (g->inlined[in->res] && !g->array[in->res]) || ct_is_view(g->ir, in) || in->op == IR_CONST)
        return;
    ir_type t = ir_typeof(g->ir, in->res);
    ct_at at = ct_natural(t);
    vx x = compute(g, in, &at, ct_fmt(g, "v%u_w", (unsigned)in->res));
    if (g->vec.failed)
        return;
    remember(g, in->res, &at, x);
    if (g->array[in->res])
        put(g, ct_name(g, in->res), t, &at, x);
}

/* Prefetches what will be loaded at this step of the next round or program. */
static void prefetch(ct *g, uint32_t i)
{
    const uint32_t *a = ir_args(g->ir, &g->ir->insns[i]);
    const ct_at at = ct_natural(ir_typeof(g->ir, a[1]));
    const char *by = ct_prefetch_step(g, i);
    vx off = by ? vx_value(g, a[1], &at) : (vx){0};
    if (off.kind != STEP || off.step != 1)
        return;
    ct_line(g, "eas_ask(%s + (%s + %s));", ct_name(g, a[0]), off.x, by);
    g->vec.prefetches = true;
}

static void group_body(ct *g, uint32_t group)
{
    const uint32_t next = g->prefetches[group];
    for (uint32_t i = g->first[next]; next && i <= g->last[next]; i++)
        if (g->group[i] == next)
            prefetch(g, i);
    for (uint32_t i = g->first[group]; i <= g->last[group] && !g->vec.failed; i++)
        if (g->group[i] == group)
            insn(g, i);
}

static void copy_body(ct *g, const ct_walk *w)
{
    ir_type t = ir_typeof(g->ir, w->value);
    ct_at at = ct_natural(t);
    put(g, w->to, t, &at, vx_value(g, w->value, &at));
}

ct_vec_mark ct_vec_begin(ct *g)
{
    g->vec.failed = false;
    g->vec.serial = 0;
    return (ct_vec_mark){g->body.len, g->lines.len, g->indent};
}

bool ct_vec_end(ct *g, const ct_vec_mark *m)
{
    bool ok = !g->vec.failed;
    g->vec.failed = false;
    g->vec.var = NULL;
    ct_new_scope(g);
    if (ok)
        return true;
    g->body.len = m->len;
    if (g->body.at)
        g->body.at[m->len] = 0;
    g->lines.len = m->lines;
    g->indent = m->indent;
    return false;
}

const char *ct_vec_ref(ct *g, uint32_t v, const ct_at *at) { return vx_as_vector(g, ir_typeof(g->ir, v).dtype, vx_value(g, v, at)); }

void ct_vec_put(ct *g, const char *array, ir_type t, const ct_at *at, const char *x) { put(g, array, t, at, (vx){.kind = VEC, .mult = 1, .x = x}); }

/* Loops over the lanes of t, the innermost in steps, and over single lanes at its end. */
bool ct_vec_walk(ct *g, ir_type t, const ct_walk *w)
{
    int32_t dim[IR_MAX_RANK];
    const int rank = ct_dims(t, dim);
    const int64_t n = rank ? dim[rank - 1] : 0, whole = g->lanes ? n / g->lanes * g->lanes : 0;
    if (!whole)
        return false;
    const char *var = ct_lane_var[rank - 1];
    const ct_vec_mark m = ct_vec_begin(g);
    for (int d = 0; d + 1 < rank; d++)
        ct_open(g, ct_lane_var[d], dim[d]);
    ct_line(g, "for (uint %s = 0; %s < %lldu; %s += %du) {", var, var, (long long)whole, var, g->lanes);
    g->indent++;
    ct_new_scope(g);
    g->vec.var = var;
    w->group ? group_body(g, w->group) : copy_body(g, w);
    ct_close(g);
    if (whole < n && !g->vec.failed) {
        ct_line(g, "for (uint %s = %lldu; %s < %lldu; ++%s) {", var, (long long)whole, var, (long long)n, var);
        g->indent++;
        ct_new_scope(g);
        w->one(g, w);
        ct_close(g);
    }
    for (int d = 0; d + 1 < rank; d++)
        ct_close(g);
    return ct_vec_end(g, &m);
}
