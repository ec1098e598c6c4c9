/* dot.c: `dot` as a loop over k; four over neighbouring columns in one loop. */
#include "ctext.h"

/* The type that base + k * stride is computed in. */
static eas_dtype index_dtype(const eas_ir *ir, uint32_t base, uint32_t stride)
{
    eas_dtype x = ir_typeof(ir, base).dtype, y = ir_typeof(ir, stride).dtype;
    int64_t c;
    if (ir_const_of(ir, stride, &c) && c >= 0)
        y = dtype_bits(y) == 64 && c <= INT32_MAX ? x : y;
    if (ir_const_of(ir, base, &c) && c >= 0)
        x = dtype_bits(x) == 64 && c <= INT32_MAX ? y : x;
    if (dtype_bits(x) == 64 || dtype_bits(y) == 64 || dtype_is_signed(x) != dtype_is_signed(y))
        return EAS_I64;
    return dtype_is_signed(x) ? EAS_I32 : EAS_U32;
}

static const char *as_index(ct *g, eas_dtype dt, uint32_t v)
{
    int64_t c;
    if (ir_const_of(g->ir, v, &c))
        return ct_literal(g, dt, dt == EAS_U32 ? (int64_t)(uint32_t)c : c);
    return ir_typeof(g->ir, v).dtype == dt ? ct_ref(g, v, NULL)
                                           : ct_fmt(g, "(%s)%s", g->d->type[dt], ct_ref(g, v, NULL));
}

/* base + k * stride */
static const char *walk_index(ct *g, uint32_t base, uint32_t stride, bool wide_k)
{
    eas_dtype dt = index_dtype(g->ir, base, stride), kt = wide_k ? EAS_U64 : EAS_U32;
    int64_t c;
    const char *k = dt == kt ? "k" : ct_fmt(g, "(%s)k", g->d->type[dt]);
    if (!(ir_const_of(g->ir, stride, &c) && c == 1))
        k = ct_fmt(g, "%s * %s", k, as_index(g, dt, stride));
    return ir_const_of(g->ir, base, &c) && c == 0 ? k : ct_fmt(g, "%s + %s", as_index(g, dt, base), k);
}

/* Opens the loop over k < K. */
static bool open_k(ct *g, uint32_t K)
{
    eas_dtype dt = ir_typeof(g->ir, K).dtype;
    int64_t c;
    bool is_const = ir_const_of(g->ir, K, &c), wide = is_const ? c > UINT32_MAX : dtype_bits(dt) == 64;
    const char *word = g->d->type[wide ? EAS_U64 : EAS_U32], *end;
    if (is_const)
        end = ct_literal(g, wide ? EAS_U64 : EAS_U32, c < 0 ? 0 : c);
    else if (dtype_is_signed(dt))
        end = ct_fmt(g, "(%s)max((%s)%s, %s)", word, g->d->type[wide ? EAS_I64 : EAS_I32], ct_ref(g, K, NULL),
                     wide ? "0l" : "0");
    else
        end = ct_ref(g, K, NULL);
    ct_line(g, "for (%s k = 0; k < %s; ++k) {", word, end);
    g->indent++;
    return wide;
}

static bool wide_k(const eas_ir *ir, uint32_t K)
{
    int64_t c;
    return ir_const_of(ir, K, &c) ? c > UINT32_MAX : dtype_bits(ir_typeof(ir, K).dtype) == 64;
}

static const char *dot_element(ct *g, uint32_t buf, const char *index, eas_dtype sum)
{
    eas_dtype dt = ir_typeof(g->ir, buf).dtype;
    const char *x = ct_as_f32(g, dt, g->d->load(g, buf, index));
    return sum == EAS_F64 && dt != EAS_F64 ? ct_fmt(g, "(double)%s", x) : x;
}

void ct_print_dot(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    eas_dtype sum = ir_typeof(g->ir, in->res).dtype;
    bool wide = wide_k(g->ir, a[6]);
    /* operands that are recomputed must stand before the loop */
    const char *ia = walk_index(g, a[1], a[2], wide), *ib = walk_index(g, a[4], a[5], wide);
    ct_define(g, in->res, sum == EAS_F64 ? "0.0" : "0.0f");
    const char *r = ct_ref(g, in->res, NULL);
    open_k(g, a[6]);
    ct_line(g, "%s = fma(%s, %s, %s);", r, dot_element(g, a[0], ia, sum), dot_element(g, a[3], ib, sum), r);
    ct_close(g);
}

/* The results of the four dots that i leads, in order of their columns. */
static void dot4_results(const ct *g, uint32_t i, uint32_t r[4])
{
    int n = 0;
    for (uint32_t j = i; n < 4; j++)
        if (g->dot4[j] == i + 1)
            r[n++] = g->ir->insns[j].res;
}

static void dot4_loop(ct *g, const uint32_t *a, const uint32_t res[4], bool vector)
{
    static const char part[] = "xyzw";
    bool wide = wide_k(g->ir, a[6]);
    const char *va = ct_fmt(g, "v%u_a", res[0]), *vb = ct_fmt(g, "v%u_b", res[0]);
    const char *ib = walk_index(g, a[4], a[5], wide);
    open_k(g, a[6]);
    ct_line(g, "float %s = %s;", va, dot_element(g, a[0], walk_index(g, a[1], a[2], wide), EAS_F32));
    if (vector)
        ct_line(g, "float4 %s = %s;", vb, g->d->load4(g, a[3], ib));
    for (int c = 0; c < 4; c++) {
        const char *r = ct_ref(g, res[c], NULL);
        const char *y = vector ? ct_fmt(g, "%s.%c", vb, part[c])
                               : dot_element(g, a[3], c ? ct_fmt(g, "%s + %d", ib, c) : ib, EAS_F32);
        ct_line(g, "%s = fma(%s, %s, %s);", r, va, y, r);
    }
    ct_close(g);
}

/* "" when base and stride of b are known multiples of four; else the test for it. */
static const char *alignment_test(ct *g, uint32_t base, uint32_t stride)
{
    bool b = ir_multiple(g->ir, base) % 4 == 0, s = ir_multiple(g->ir, stride) % 4 == 0;
    if (b && s)
        return "";
    const char *zero =
        dtype_bits(ir_typeof(g->ir, base).dtype) == 64 || dtype_bits(ir_typeof(g->ir, stride).dtype) == 64
            ? "0ul"
            : "0u";
    if (!b && !s)
        return ct_fmt(g, "((%s | %s) & 3u) == %s", ct_unsigned(g, base), ct_unsigned(g, stride), zero);
    return ct_fmt(g, "(%s & 3u) == %s", ct_unsigned(g, b ? stride : base), zero);
}

void ct_print_dot4(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    uint32_t res[4];
    dot4_results(g, g->at, res);
    const char *test = g->d->load4_needs_alignment ? alignment_test(g, a[4], a[5]) : "";
    for (int k = 1; k < 7; k++)
        if (k != 3)
            ct_ref(g, a[k], NULL); /* what is recomputed must stand before the loops */
    for (int c = 0; c < 4; c++)
        ct_define(g, res[c], "0.0f");
    if (!*test) {
        dot4_loop(g, a, res, true);
        return;
    }
    ct_line(g, "if (%s) {", test);
    g->indent++;
    dot4_loop(g, a, res, true);
    g->indent--;
    ct_line(g, "} else {");
    g->indent++;
    dot4_loop(g, a, res, false);
    ct_close(g);
}
