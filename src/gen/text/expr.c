/* expr.c: expressions of the C-like languages, out of the instruction table's meanings.
 *
 * A meaning is a C expression over a b c with the types T and U and the width BITS (see insn.def). Printing
 * substitutes those tokens; casts that change nothing are left out, and so are guards that a constant operand
 * decides (b == 0 for x // 128).
 */
#include "ctext.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

/* ---- literals ---- */

static const char *float_literal(ct *g, eas_dtype dt, int64_t bits)
{
    double d = ir_bits_to_double(dt, bits);
    bool single = dt != EAS_F64;
    if (isinf(d))
        return d < 0 ? "(-INFINITY)" : "INFINITY";
    if (isnan(d)) {
        float f = (float)d;
        uint32_t u;
        uint64_t w = (uint64_t)bits;
        memcpy(&u, &f, 4);
        return single && u == 0x7fc00000u ? "NAN" : g->d->bits(g, single ? EAS_F32 : EAS_F64, single ? u : w);
    }
    str s = {0};
    str_add_double(&s, d, single);
    const char *r = ct_fmt(g, signbit(d) ? "(%s%s)" : "%s%s", s.oom ? "0.0" : s.at, single ? "f" : "");
    str_free(&s);
    return r;
}

static const char *int_literal(ct *g, eas_dtype dt, int64_t v)
{
    bool wide = dtype_bits(dt) == 64;
    if (!dtype_is_signed(dt))
        return ct_fmt(g, wide ? "%lluul" : "%lluu", (unsigned long long)v);
    if (v == dtype_min(dt) && dtype_bits(dt) >= 32)
        return wide ? "(-9223372036854775807l - 1l)" : "(-2147483647 - 1)";
    return ct_fmt(g, v < 0 ? "(%lld%s)" : "%lld%s", (long long)v, wide ? "l" : "");
}

const char *ct_literal_compute(ct *g, eas_dtype dt, int64_t bits)
{
    if (dt == EAS_BOOL)
        return bits ? "true" : "false";
    return dtype_is_float(dt) ? float_literal(g, dt, bits) : int_literal(g, dt, bits);
}

const char *ct_literal(ct *g, eas_dtype dt, int64_t bits)
{
    const char *x = ct_literal_compute(g, dt, bits);
    bool half = dt == EAS_F16 || dt == EAS_BF16;
    return half && !g->d->half_is_float ? ct_fmt(g, "((%s)%s)", g->d->type[dt], x) : x;
}

/* ---- operands ---- */

const char *ct_as_f32(ct *g, eas_dtype dt, const char *x)
{
    bool half = dt == EAS_F16 || dt == EAS_BF16;
    return half && !g->d->half_is_float ? ct_fmt(g, "(float)%s", x) : x;
}

/* v in the type that arithmetic runs in. */
static const char *compute_ref(ct *g, uint32_t v, const ct_at *at, bool often)
{
    int64_t bits;
    eas_dtype dt = ir_typeof(g->ir, v).dtype;
    if (ir_const_of(g->ir, v, &bits))
        return ct_literal_compute(g, dt, bits);
    return ct_as_f32(g, dt, often ? ct_ref_often(g, v, at) : ct_ref(g, v, at));
}

const char *ct_unsigned(ct *g, uint32_t v)
{
    int64_t bits;
    eas_dtype dt = ir_typeof(g->ir, v).dtype;
    bool wide = dtype_bits(dt) == 64;
    if (ir_const_of(g->ir, v, &bits))
        return int_literal(g, wide ? EAS_U64 : EAS_U32, wide ? bits : (int64_t)(uint32_t)bits);
    const char *x = ct_ref(g, v, NULL);
    return dt == EAS_U32 || dt == EAS_U64 ? x : ct_fmt(g, "(%s)%s", g->d->type[wide ? EAS_U64 : EAS_U32], x);
}

/* ---- meanings ---- */

typedef struct meaning {
    ct *g;
    eas_dtype dt;       /* of operand a (for `where`: of b and c) */
    const char *arg[3]; /* atomic */
    bool is_const[3];
    int64_t bits[3];
    int lanes; /* operands are vectors; 0: scalars */
} meaning;

/* The end of the part at `s`: the position of `stop` outside parentheses, or of the parenthesis that
 * closes around s. */
static const char *part_end(const char *s, const char *stop)
{
    int depth = 0;
    for (; *s; s++) {
        if (!depth && stop && !strncmp(s, stop, strlen(stop)))
            return s;
        if (*s == '(')
            depth++;
        else if (*s == ')' && --depth < 0)
            return s;
    }
    return s;
}

static bool guard_value(const meaning *m, int which)
{
    int bits = dtype_bits(m->dt);
    int64_t b = m->bits[1];
    bool minus_one = dtype_is_signed(m->dt) && b == -1;
    switch (which) {
    case 0: return b == 0 || minus_one;
    case 1: return b == 0;
    case 2: return minus_one;
    default: return b < 0 || b >= bits;
    }
}

/* Where operand b is a constant, drops the branch of each guard on b that cannot be taken. */
static const char *decide_guards(const meaning *m, const char *text)
{
    static const char *const guards[] = {"b == 0 || b == -1 ? ", "b == 0 ? ", "b == -1 ? ",
                                         "(U)b >= BITS ? "};
    for (int w = 0; w < 4; w++) {
        const char *at = strstr(text, guards[w]);
        if (!at)
            continue;
        const char *yes = at + strlen(guards[w]), *colon = part_end(yes, " : ");
        if (strncmp(colon, " : ", 3))
            continue;
        const char *no = colon + 3, *end = part_end(no, NULL);
        bool take = guard_value(m, w);
        const char *from = take ? yes : no, *to = take ? colon : end;
        if (to - from == 1 && at > text && at[-1] == '(' && *end == ')')
            at--, end++; /* one operand needs no parentheses */
        text = ct_fmt(m->g, "%.*s%.*s%s", (int)(at - text), text, (int)(to - from), from, end);
        w = -1;
    }
    return text;
}

static const char *type_t(const meaning *m)
{
    return m->dt == EAS_F16 || m->dt == EAS_BF16 ? "float" : m->g->d->type[m->dt];
}

static const char *type_u(const meaning *m)
{
    return m->g->d->type[dtype_bits(m->dt) == 64 ? EAS_U64 : EAS_U32];
}

static bool word(const char *s, const char *w)
{
    size_t n = strlen(w);
    return !strncmp(s, w, n) && !isalnum((unsigned char)s[n]) && s[n] != '_';
}

/* Handles a cast at s, "(T)" or "(U)"; returns the length consumed. */
static size_t put_cast(const meaning *m, str *out, const char *s)
{
    bool to_u = s[1] == 'U';
    const char *next = s + 3;
    int arg = *next >= 'a' && *next <= 'c' && word(next, (char[]){*next, 0}) ? *next - 'a' : -1;
    if (arg >= 0 && m->is_const[arg] && dtype_is_int(m->dt)) {
        bool wide = dtype_bits(m->dt) == 64;
        eas_dtype as = to_u ? (wide ? EAS_U64 : EAS_U32) : m->dt;
        int64_t v = m->bits[arg];
        str_add(out, "%s", int_literal(m->g, as, to_u && !wide ? (int64_t)(uint32_t)v : v));
        return 4;
    }
    if (*next == '0' && !isalnum((unsigned char)next[1])) {
        str_add(out, "%s", int_literal(m->g, m->dt, 0));
        return 4;
    }
    if (m->dt != EAS_U32 && m->dt != EAS_U64)
        str_add(out, "(%s)", to_u ? type_u(m) : type_t(m));
    return 3;
}

/* What a cast applies to: its length. */
static size_t primary(const char *s)
{
    if (*s == '(')
        return (size_t)(part_end(s + 1, NULL) - s) + 1 +
               (!strncmp(s, "(T)", 3) || !strncmp(s, "(U)", 3) ? primary(s + 3) : 0);
    size_t n = *s == '~' || *s == '-';
    while (isalnum((unsigned char)s[n]))
        n++;
    return n;
}

static void substitute(const meaning *m, str *out, const char *text);

/* A cast between integer vectors of one size; returns the length consumed. */
static size_t put_vector_cast(const meaning *m, str *out, const char *s)
{
    const char *type = s[1] == 'U' ? type_u(m) : type_t(m), *next = s + 3;
    size_t n = primary(next);
    if (n == 1 && *next == '0') {
        str_add(out, "(%s%d)(0)", type, m->lanes);
        return 4;
    }
    str_add(out, m->dt == EAS_U32 || m->dt == EAS_U64 ? "(" : "as_%s%d(", type, m->lanes);
    substitute(m, out, ct_fmt(m->g, "%.*s", (int)n, next));
    str_add(out, ")");
    return 3 + n;
}

static void substitute(const meaning *m, str *out, const char *text)
{
    for (const char *s = text; *s;) {
        bool start = s == text || (!isalnum((unsigned char)s[-1]) && s[-1] != '_');
        if (!strncmp(s, "(T)", 3) || !strncmp(s, "(U)", 3)) {
            s += m->lanes ? put_vector_cast(m, out, s) : put_cast(m, out, s);
        } else if (start && *s >= 'a' && *s <= 'c' && word(s, (char[]){*s, 0})) {
            str_add(out, "%s", m->arg[*s - 'a']);
            s++;
        } else if (start && word(s, "BITS")) {
            str_add(out, dtype_is_signed(m->dt) && s >= text + 3 && strncmp(s - 3, ">= ", 3) ? "%d" : "%du",
                    dtype_bits(m->dt));
            s += 4;
        } else {
            str_put(out, s++, 1);
        }
    }
}

/* Without parentheses around the whole. */
static const char *strip(ct *g, const char *s)
{
    size_t n = strlen(s);
    while (n > 2 && s[0] == '(' && part_end(s + 1, NULL) == s + n - 1) {
        s = ct_fmt(g, "%.*s", (int)(n - 2), s + 1);
        n -= 2;
    }
    return s;
}

static int mentions(const char *text, char operand)
{
    int n = 0;
    for (const char *s = text; *s; s++)
        n += *s == operand && word(s, (char[]){operand, 0}) &&
             (s == text || (!isalnum((unsigned char)s[-1]) && s[-1] != '_'));
    return n;
}

static const char *mask_expr(ct *g, const ir_insn *in, const char *const a[3])
{
    switch (in->op) {
    case IR_AND: return ct_fmt(g, "%s & %s", a[0], a[1]);
    case IR_OR: return ct_fmt(g, "%s | %s", a[0], a[1]);
    case IR_XOR: return ct_fmt(g, "%s ^ %s", a[0], a[1]);
    case IR_NOT: return ct_fmt(g, "~%s", a[0]);
    default: return NULL;
    }
}

static const char *bool_expr(ct *g, const ir_insn *in, const char *const a[3], int lanes)
{
    if (lanes)
        return mask_expr(g, in, a);
    switch (in->op) {
    case IR_AND: return ct_fmt(g, "%s && %s", a[0], a[1]);
    case IR_OR: return ct_fmt(g, "%s || %s", a[0], a[1]);
    case IR_XOR: return ct_fmt(g, "%s != %s", a[0], a[1]);
    case IR_NOT: return ct_fmt(g, "!%s", a[0]);
    default: return NULL;
    }
}

const char *ct_join(ct *g, uint16_t op, eas_dtype dt, const char *x, const char *y, int lanes)
{
    const ir_row *row = &ir_rows[op];
    const ir_insn in = {.op = op};
    const char *text = dtype_is_float(dt) ? row->fl : dtype_is_signed(dt) ? row->si : row->ui;
    meaning m = {.g = g, .dt = dt, .arg = {ct_as_f32(g, dt, x), ct_as_f32(g, dt, y), NULL}, .lanes = lanes};
    if (dt == EAS_BOOL)
        return bool_expr(g, &in, m.arg, lanes);
    str s = {0};
    substitute(&m, &s, text);
    const char *r = strip(g, s.oom ? "" : ct_fmt(g, "%s", s.at));
    str_free(&s);
    return dt == EAS_F16 || dt == EAS_BF16 ? g->d->round(g, dt, ct_fmt(g, "(%s)", r)) : r;
}

/* ---- casts ---- */

/* A 64-bit integer as a float rounded to odd: rounding that again rounds once. */
const char ct_odd_text[] = "float eas_odd_u64(ulong x)\n"
                           "{\n"
                           "    int s = 0;\n"
                           "    while ((x >> s) >= 16777216ul) ++s;\n"
                           "    ulong m = x >> s;\n"
                           "    float f = (float)((m << s) != x ? m | 1ul : m);\n"
                           "    for (; s > 0; --s) f *= 2.0f;\n"
                           "    return f;\n"
                           "}\n"
                           "\n"
                           "float eas_odd_i64(long x)\n"
                           "{\n"
                           "    return x < 0 ? -eas_odd_u64(0ul - (ulong)x) : eas_odd_u64((ulong)x);\n"
                           "}\n"
                           "\n";

static const char *cast_expr(ct *g, eas_dtype from, eas_dtype to, const char *x)
{
    const ct_dialect *d = g->d;
    bool to_half = to == EAS_F16 || to == EAS_BF16;
    if (from == to)
        return x;
    if (to == EAS_BOOL)
        return ct_fmt(g, "%s != 0", ct_as_f32(g, from, x));
    if (dtype_is_float(from)) {
        if (from == EAS_F64 && to_half)
            return d->from_f64(g, to, x);
        const char *f = ct_as_f32(g, from, x);
        if (dtype_is_int(to))
            return d->sat(g, from == EAS_F64 ? EAS_F64 : EAS_F32, to, f);
        if (to_half)
            return d->round(g, to, f);
        return ct_fmt(g, "(%s)%s", d->type[to], x);
    }
    if (!to_half)
        return ct_fmt(g, "(%s)%s", d->type[to], x);
    /* Up to 24 bits are exact in float, and more than that is infinite in f16: one rounding. bf16 has
     * float's range, so wider integers go through a float that is rounded to odd. */
    if (to == EAS_BF16 && dtype_bits(from) >= 32) {
        bool sign = dtype_is_signed(from);
        ct_need(g, CT_ODD);
        return d->round(
            g, to, ct_fmt(g, "eas_odd_%c64((%s)%s)", sign ? 'i' : 'u', d->type[sign ? EAS_I64 : EAS_U64], x));
    }
    return d->round(g, to, ct_fmt(g, "(float)%s", x));
}

/* What the table says of an instruction on these operands. */
static const char *mean(ct *g, const ir_insn *in, const char *const *arg, int lanes)
{
    const eas_ir *ir = g->ir;
    const uint32_t *args = ir_args(ir, in);
    eas_dtype to = ir_typeof(ir, in->res).dtype;
    meaning m = {.g = g, .dt = ir_typeof(ir, args[in->op == IR_WHERE ? 1 : 0]).dtype, .lanes = lanes};
    const ir_row *row = &ir_rows[in->op];
    const char *text = dtype_is_float(m.dt) ? row->fl : dtype_is_signed(m.dt) ? row->si : row->ui;
    if (!text)
        return "0"; /* the verifier has refused such instructions */
    for (int k = 0; k < in->nargs; k++) {
        m.is_const[k] = ir_const_of(ir, args[k], &m.bits[k]);
        m.arg[k] = arg[k];
    }
    if (to == EAS_BOOL && m.dt == EAS_BOOL) {
        const char *x = bool_expr(g, in, m.arg, lanes);
        if (x)
            return x;
    }
    if (in->nargs == 2 && m.is_const[1] && dtype_is_int(m.dt))
        text = decide_guards(&m, text);
    str s = {0};
    substitute(&m, &s, text);
    const char *x = strip(g, s.oom ? "" : ct_fmt(g, "%s", s.at));
    str_free(&s);
    if ((to == EAS_F16 || to == EAS_BF16) && in->op != IR_WHERE)
        x = g->d->round(g, to, ct_fmt(g, "(%s)", x));
    return x;
}

const char *ct_expr_with(ct *g, const ir_insn *in, const char *const *arg, int lanes)
{
    const eas_ir *ir = g->ir;
    if (in->op != IR_CAST && in->op != IR_BITCAST)
        return mean(g, in, arg, lanes);
    const uint32_t v = ir_args(ir, in)[0];
    eas_dtype from = v <= (uint32_t)ir->nparams ? g->param_dtype[v - 1] : ir_typeof(ir, v).dtype,
              to = ir_typeof(ir, in->res).dtype;
    return in->op == IR_CAST ? cast_expr(g, from, to, arg[0]) : g->d->bitcast(g, from, to, arg[0]);
}

const char *ct_expr(ct *g, const ir_insn *in, const ct_at *at)
{
    const eas_ir *ir = g->ir;
    const uint32_t *args = ir_args(ir, in);
    const ir_row *row = &ir_rows[in->op];
    eas_dtype dt = ir_typeof(ir, args[in->op == IR_WHERE ? 1 : 0]).dtype;
    const char *text = dtype_is_float(dt) ? row->fl : dtype_is_signed(dt) ? row->si : row->ui, *arg[3] = {0};
    bool cast = in->op == IR_CAST || in->op == IR_BITCAST;
    for (int k = 0; k < in->nargs && k < 3; k++) {
        bool often = !cast && text && (g->uses[args[k]] > 1 || mentions(text, (char)('a' + k)) > 1);
        if (cast || in->op == IR_WHERE)
            arg[k] = often ? ct_ref_often(g, args[k], at) : ct_ref(g, args[k], at);
        else
            arg[k] = compute_ref(g, args[k], at, often);
    }
    return ct_expr_with(g, in, arg, 0);
}
