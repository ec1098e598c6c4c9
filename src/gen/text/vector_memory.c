/* vector_memory.c: loads and stores of a step of a lane loop in explicit vectors (vector.c).
 *
 * Neighbouring elements are read and written as one vector; what a mask cuts, and every other offset, lane by
 * lane through small arrays.
 */
#include "vector.h"

static const char *index_plus(ct *g, eas_dtype dt, const char *x, const char *l)
{
    if (dt == EAS_U32)
        return ct_fmt(g, "%s + %s", x, l);
    if (dtype_bits(dt) == 64)
        return ct_fmt(g, "%s + (%s)%s", x, g->d->type[dt], l);
    return ct_fmt(g, "(%s)((uint)%s + %s)", g->d->type[dt], x, l);
}

/* The scalar of a comparison's lanes at both ends of the step: what rises without wrapping holds in
 * between too. */
static const char *holds_at_ends(ct *g, const ir_insn *in, const vx *x)
{
    int s = x[0].kind == STEP ? 0 : 1;
    eas_dtype dt = ir_typeof(g->ir, ir_args(g->ir, in)[s]).dtype;
    if (x[1 - s].kind != UNI || x[s].step <= 0 || !vx_wide_int(dt))
        return NULL;
    const char *last = ct_fmt(
        g, "(%s)", index_plus(g, dt, x[s].x, ct_fmt(g, "%lldu", (long long)(x[s].step * (g->lanes - 1)))));
    const char *lo[2] = {x[0].x, x[1].x}, *hi[2] = {x[0].x, x[1].x};
    hi[s] = last;
    const char *first = ct_expr_with(g, in, lo, 0), *end = ct_expr_with(g, in, hi, 0);
    return ct_fmt(g, "((%s) && (%s) && %s <= %s)", first, end, x[s].x, last);
}

/* Is a mask on in all lanes of the step? A scalar condition. */
static const char *all_on(ct *g, uint32_t v, const ct_at *at)
{
    const eas_ir *ir = g->ir;
    const ir_insn *in = ir_def(ir, v);
    vx m = vx_value(g, v, at);
    if (m.kind == UNI)
        return m.x;
    if (in && ct_is_view(ir, in)) {
        const char *inside;
        ct_at from = ct_through(g, in, at, &inside);
        return inside ? ct_fmt(g, "all(%s)", m.x) : all_on(g, ir_args(ir, in)[0], &from);
    }
    if (in && in->op == IR_AND)
        return ct_fmt(g, "(%s && %s)", all_on(g, ir_args(ir, in)[0], at), all_on(g, ir_args(ir, in)[1], at));
    if (in && (in->op == IR_LT || in->op == IR_LE || in->op == IR_GT || in->op == IR_GE)) {
        vx x[2] = {vx_value(g, ir_args(ir, in)[0], at), vx_value(g, ir_args(ir, in)[1], at)};
        const char *r = x[0].kind == STEP || x[1].kind == STEP ? holds_at_ends(g, in, x) : NULL;
        if (r)
            return r;
    }
    return ct_fmt(g, "all(%s)", m.x);
}

/* Elements that are vectors in memory as they are in variables. */
static bool plain_memory(eas_dtype dt) { return dt != EAS_BOOL && !vx_is_half(dt); }

static const char *pointer(ct *g, uint32_t buf, const char *off)
{
    return ct_fmt(g, "%s + %s", ct_name(g, buf), off);
}

static const char *space_of(const ct *g, uint32_t buf, bool write)
{
    bool local = ir_typeof(g->ir, buf).kind == IR_TG;
    return local ? write ? "__local" : "__local const" : write ? "__global" : "__global const";
}

/* What an access needs: its offset, and its mask as a vector with the condition under which all of it is
 * on. */
typedef struct touch {
    uint32_t buf;
    eas_dtype dt, off_dt;
    vx off;
    const char *all, *mask; /* NULL: no mask */
} touch;

static touch touch_of(ct *g, uint32_t buf, uint32_t off, uint32_t mask, const ct_at *at)
{
    touch t = {.buf = buf, .dt = ir_typeof(g->ir, buf).dtype, .off_dt = ir_typeof(g->ir, off).dtype};
    int64_t c;
    t.off = vx_value(g, off, at);
    if (mask && !(ir_const_of(g->ir, mask, &c) && c)) {
        t.mask = vx_as_vector(g, EAS_BOOL, vx_value(g, mask, at));
        t.all = all_on(g, mask, at);
    }
    return t;
}

static bool direct(const touch *t) { return t->off.kind == STEP && t->off.step == 1 && plain_memory(t->dt); }

/* Opens the loop over the lanes of one access; the index of lane eas_l. Arrays of that loop begin with
 * `name`. */
static const char *open_each(ct *g, const touch *t, const char *name)
{
    const char *off = t->off.x;
    bool steps = t->off.kind == STEP && t->off.step == 1;
    if (t->off.kind != UNI && !steps) {
        ct_line(g, "%s %s_o[%d];", g->d->type[t->off_dt], name, g->lanes);
        ct_line(g, "%s = %s;", vx_array_at(g, ct_fmt(g, "%s_o", name), t->off_dt, "0"),
                vx_as_vector(g, t->off_dt, t->off));
        off = ct_fmt(g, "%s_o[eas_l]", name);
    }
    if (t->mask) {
        ct_line(g, "int %s_m[%d];", name, g->lanes);
        ct_line(g, "%s = %s;", vx_array_at(g, ct_fmt(g, "%s_m", name), EAS_I32, "0"), t->mask);
    }
    ct_line(g, "for (uint eas_l = 0; eas_l < %du; ++eas_l) {", g->lanes);
    g->indent++;
    return steps ? index_plus(g, t->off_dt, off, "eas_l") : off;
}

static void load_each(ct *g, const touch *t, const char *name, const char *other)
{
    const char *array = ct_fmt(g, "%s_t", name);
    ct_line(g, "%s %s[%d];", ct_array_type(g, t->dt), array, g->lanes);
    if (other)
        ct_line(g, "%s = %s;", vx_array_at(g, array, t->dt, "0"), vx_to_element(g, t->dt, other));
    const char *at = open_each(g, t, name);
    ct_line(g, t->mask ? "if (%s_m[eas_l]) %s[eas_l] = %s;" : "%s%s[eas_l] = %s;", t->mask ? name : "", array,
            g->d->load(g, t->buf, at));
    ct_close(g);
    ct_line(g, "%s = %s;", name, vx_from_element(g, t->dt, vx_array_at(g, array, t->dt, "0")));
}

vx vx_load(ct *g, const ir_insn *in, const ct_at *at, const char *name)
{
    const uint32_t *a = ir_args(g->ir, in);
    touch t = touch_of(g, a[0], a[1], in->nargs == 4 ? a[2] : 0, at);
    const char *other = t.mask ? vx_as_vector(g, t.dt, vx_value(g, a[3], at)) : NULL;
    if (g->vec.failed)
        return vx_give_up(g);
    if (t.off.kind == UNI && !t.mask)
        return (vx){.kind = UNI, .mult = 1, .x = g->d->load(g, a[0], t.off.x)};
    const char *type = vx_vec_type(g, t.dt, g->lanes),
               *whole = direct(&t)
                          ? vx_neighbours(g, space_of(g, a[0], false), t.dt, pointer(g, a[0], t.off.x))
                          : NULL;
    if (whole && !t.mask)
        return (vx){.kind = VEC, .mult = 1, .x = whole};
    ct_line(g, "%s %s;", type, name);
    if (whole) {
        ct_line(g, "if (%s) {", t.all);
        ct_line(g, "    %s = %s;", name, whole);
        ct_line(g, "} else {");
    } else {
        ct_line(g, "{");
    }
    g->indent++;
    load_each(g, &t, name, other);
    ct_close(g);
    return (vx){.kind = VEC, .mult = 1, .x = name};
}

static void store_each(ct *g, const touch *t, const char *name, const char *x)
{
    const char *array = ct_fmt(g, "%s_t", name);
    ct_line(g, "%s %s[%d];", ct_array_type(g, t->dt), array, g->lanes);
    ct_line(g, "%s = %s;", vx_array_at(g, array, t->dt, "0"), vx_to_element(g, t->dt, x));
    const char *at = open_each(g, t, name);
    g->d->store(g, t->mask ? ct_fmt(g, "if (%s_m[eas_l]) ", name) : "", t->buf, at,
                ct_fmt(g, "%s[eas_l]", array));
    ct_close(g);
}

static void store_whole(ct *g, const touch *t, const char *x)
{
    const char *p = pointer(g, t->buf, t->off.x);
    if (ir_typeof(g->ir, t->buf).kind == IR_TG) {
        ct_line(g, "%s = %s;", vx_neighbours(g, "__local", t->dt, p), x);
        return;
    }
    g->vec.puts = true;
    g->packs |= 1u << t->dt;
    ct_line(g, "eas_put(%s%d, %s, %s);", g->d->type[t->dt], g->lanes, p, x);
}

void vx_store(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const ct_at at = ct_natural(ir_typeof(g->ir, a[1]));
    touch t = touch_of(g, a[0], a[1], in->nargs == 4 ? a[3] : 0, &at);
    const char *x = vx_as_vector(g, t.dt, vx_value(g, a[2], &at)),
               *name = ct_fmt(g, "v0_s%u", (unsigned)g->at);
    bool whole = direct(&t);
    if (whole && !t.mask) {
        store_whole(g, &t, x);
        return;
    }
    ct_line(g, whole ? "if (%s) {" : "%s{", whole ? t.all : "");
    g->indent++;
    if (whole) {
        store_whole(g, &t, x);
        g->indent--;
        ct_line(g, "} else {");
        g->indent++;
    }
    store_each(g, &t, name, x);
    ct_close(g);
}
