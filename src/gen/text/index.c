/* index.c: places in the lane loops: which element of its operand an element of a view is.
 *
 * A view (broadcast, reshape, slice, pad, trans) is never computed: whoever reads it reads its operand at
 * another place. Index expressions are sums, products, quotients and remainders of unsigned numbers; before a
 * pad's first element they wrap, which is harmless, since nothing is read there.
 */
#include "ctext.h"

#include <ctype.h>

const char *const ct_lane_var[IR_MAX_RANK] = {"i", "j", "i2", "i3"};

ct_at ct_natural(ir_type t)
{
    ct_at at = {0};
    int n = 0;
    for (int d = 0; d < t.rank; d++)
        at.dim[d] = t.dim[d] == 1 ? "0" : ct_lane_var[n++];
    return at;
}

bool ct_plain(const char *x) { return !strpbrk(x, " "); }

const char *ct_flat(ct *g, ir_type t, const ct_at *at)
{
    if (at->flat)
        return at->flat;
    const char *x = "0";
    for (int d = 0; d < t.rank; d++) {
        const char *y = at->dim[d];
        if (t.dim[d] == 1)
            continue;
        if (strcmp(x, "0"))
            x = ct_fmt(g, ct_plain(x) ? "%s * %du" : "(%s) * %du", x, (int)t.dim[d]);
        x = !strcmp(x, "0") ? y : !strcmp(y, "0") ? x : ct_fmt(g, "%s + %s", x, y);
    }
    return x;
}

/* x + add */
static const char *moved(ct *g, const char *x, int64_t add)
{
    if (!add)
        return x;
    if (isdigit((unsigned char)*x) && ct_plain(x))
        return ct_fmt(g, "%uu", (unsigned)(strtoll(x, NULL, 10) + add));
    return add > 0 ? ct_fmt(g, "%s + %lldu", x, (long long)add) : ct_fmt(g, "%s - %lldu", x, (long long)-add);
}

/* The place of `to` that the row-major index `flat` means. */
static ct_at from_flat(ct *g, ir_type to, const char *flat)
{
    ct_at at = {.flat = flat};
    int64_t stride = ir_lanes(to), whole = stride;
    const char *f = ct_plain(flat) ? flat : ct_fmt(g, "(%s)", flat);
    for (int d = 0; d < to.rank; d++) {
        stride /= to.dim[d];
        if (to.dim[d] == 1)
            at.dim[d] = "0";
        else if (stride * to.dim[d] == whole)
            at.dim[d] = stride == 1 ? flat : ct_fmt(g, "%s / %lldu", f, (long long)stride);
        else if (stride == 1)
            at.dim[d] = ct_fmt(g, "%s %% %du", f, (int)to.dim[d]);
        else
            at.dim[d] = ct_fmt(g, "%s / %lldu %% %du", f, (long long)stride, (int)to.dim[d]);
    }
    return at;
}

static ct_at through_reshape(ct *g, ir_type from, ir_type to, const ct_at *at)
{
    int32_t x[IR_MAX_RANK], y[IR_MAX_RANK];
    int n = ct_dims(from, x);
    if (n != ct_dims(to, y) || memcmp(x, y, (size_t)n * sizeof *x))
        return from_flat(g, to, ct_flat(g, from, at));
    ct_at r = {.flat = at->flat};
    int k = 0;
    for (int d = 0; d < to.rank; d++) {
        while (to.dim[d] != 1 && from.dim[k] == 1)
            k++;
        r.dim[d] = to.dim[d] == 1 ? "0" : at->dim[k++];
    }
    return r;
}

static ct_at through_broadcast(ir_type from, ir_type to, const ct_at *at)
{
    ct_at r = {0};
    for (int d = 0; d < to.rank; d++)
        r.dim[d] = to.dim[d] == 1 ? "0" : at->dim[d + from.rank - to.rank];
    return r;
}

static ct_at through_trans(ir_type t, int64_t imm, const ct_at *at)
{
    ct_at r = {0};
    for (int d = 0; d < t.rank; d++)
        r.dim[ir_imm_perm(imm, d)] = at->dim[d];
    return r;
}

/* Slices and pads: one index moves. */
static ct_at through_shift(ct *g, ir_type to, int axis, int64_t by, const ct_at *at)
{
    ct_at r = *at;
    r.flat = NULL;
    r.dim[axis] = to.dim[axis] == 1 ? "0" : moved(g, at->dim[axis], by);
    return r;
}

/* When an index of a pad is one of its operand's n elements, which begin at `front`; NULL: always. */
static const char *inside_pad(ct *g, const char *x, int64_t front, int64_t n, int64_t whole)
{
    if (n == whole)
        return NULL;
    if (!front)
        return ct_fmt(g, "%s < %lldu", x, (long long)n);
    if (front + n == whole)
        return ct_fmt(g, "%s >= %lldu", x, (long long)front);
    return ct_fmt(g, "%s < %lldu", moved(g, x, -front), (long long)n);
}

ct_at ct_through(ct *g, const ir_insn *in, const ct_at *at, const char **inside)
{
    ir_type from = ir_typeof(g->ir, in->res), to = ir_typeof(g->ir, ir_args(g->ir, in)[0]);
    int axis = ir_imm_axis(in->imm);
    int64_t start = ir_imm_start(in->imm);
    *inside = NULL;
    switch (in->op) {
    case IR_BROADCAST: return through_broadcast(from, to, at);
    case IR_RESHAPE: return through_reshape(g, from, to, at);
    case IR_TRANS: return through_trans(from, in->imm, at);
    case IR_SLICE: return through_shift(g, to, axis, start, at);
    default: /* IR_PAD */
        *inside = inside_pad(g, at->dim[axis], start, to.dim[axis], from.dim[axis]);
        return through_shift(g, to, axis, -start, at);
    }
}
