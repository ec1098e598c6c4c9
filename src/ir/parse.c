/* parse.c: the inverse of print.c. Input may be anything; errors say line and column. Numbers of values must be those that
 * the printer would give, so that text and IR correspond one to one. */
#include "ir.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

typedef struct parser {
    const char *at, *end, *line_start;
    int line;
    eas_builder *b;
    bool failed;
} parser;

static bool fail(parser *p, const char *fmt, ...) BASE_PRINTF(2, 3);
static bool fail(parser *p, const char *fmt, ...)
{
    if (p->failed)
        return false;
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->failed = true;
    base_fail(EAS_ERR_SYNTAX, "IR text, line %d, column %d: %s", p->line, (int)(p->at - p->line_start) + 1, text);
    return false;
}

static void skip_blanks(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
    if (p->at < p->end && *p->at == ';') /* a comment to the end of the line */
        while (p->at < p->end && *p->at != '\n')
            p->at++;
}

static void skip_lines(parser *p)
{
    for (skip_blanks(p); p->at < p->end && *p->at == '\n'; skip_blanks(p)) {
        p->at++;
        p->line++;
        p->line_start = p->at;
    }
}

static bool peek(parser *p, char c)
{
    skip_blanks(p);
    return p->at < p->end && *p->at == c;
}

static bool take(parser *p, char c)
{
    if (!peek(p, c))
        return false;
    p->at++;
    return true;
}

static bool expect(parser *p, char c) { return take(p, c) || fail(p, "expected '%c'", c); }

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 128; }

static bool word(parser *p, char *out, size_t size)
{
    skip_blanks(p);
    size_t n = 0;
    while (p->at + n < p->end && is_word(p->at[n]))
        n++;
    if (!n || n >= size)
        return fail(p, "expected a name");
    memcpy(out, p->at, n);
    out[n] = 0;
    p->at += n;
    return true;
}

static bool keyword(parser *p, const char *w)
{
    size_t n = strlen(w);
    skip_blanks(p);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, w, n) || (p->at + n < p->end && is_word(p->at[n])))
        return false;
    p->at += n;
    return true;
}

/* Decimal, with sign; as the bits of a 64-bit integer. */
static bool integer(parser *p, int64_t *out)
{
    skip_blanks(p);
    bool neg = take(p, '-');
    uint64_t v = 0;
    const char *start = p->at;
    for (; p->at < p->end && isdigit((unsigned char)*p->at); p->at++) {
        uint64_t d = (uint64_t)(*p->at - '0');
        if (v > (UINT64_MAX - d) / 10)
            return fail(p, "number too large");
        v = v * 10 + d;
    }
    if (p->at == start)
        return fail(p, "expected a number");
    if (neg && v > (uint64_t)1 << 63)
        return fail(p, "number too small");
    *out = (int64_t)(neg ? 0 - v : v);
    return true;
}

static bool small(parser *p, int64_t max, int64_t *out) { return integer(p, out) && ((*out >= 0 && *out <= max) || fail(p, "number out of range")); }

static bool parse_dims(parser *p, ir_type *t)
{
    if (!take(p, '['))
        return true;
    do {
        int64_t d;
        if (t->rank == IR_MAX_RANK)
            return fail(p, "at most %d dimensions", (int)IR_MAX_RANK);
        if (!small(p, INT32_MAX, &d))
            return false;
        t->dim[t->rank++] = (int32_t)d;
    } while (take(p, ','));
    return expect(p, ']');
}

static bool parse_dtype(parser *p, uint8_t *dt)
{
    char w[16];
    eas_dtype d;
    if (!word(p, w, sizeof w))
        return false;
    if (!eas_dtype_parse(w, &d))
        return fail(p, "no dtype is called %s", w);
    *dt = (uint8_t)d;
    return true;
}

static bool parse_type(parser *p, ir_type *t)
{
    memset(t, 0, sizeof *t);
    if (keyword(p, "frag")) {
        *t = (ir_type){.dtype = EAS_F32, .kind = IR_FRAG};
        return true;
    }
    t->kind = keyword(p, "buf") ? IR_BUF : keyword(p, "tg") ? IR_TG : IR_VAL;
    if (t->kind != IR_VAL && !expect(p, '<'))
        return false;
    if (!parse_dtype(p, &t->dtype))
        return false;
    return (t->kind == IR_VAL || expect(p, '>')) && parse_dims(p, t);
}

static bool parse_string(parser *p, str *out)
{
    if (!expect(p, '"'))
        return false;
    while (p->at < p->end && *p->at != '"' && *p->at != '\n') {
        if (*p->at == '\\' && p->at + 1 < p->end) {
            unsigned v;
            p->at++;
            if (*p->at == 'x') {
                char hex[3] = {p->at + 1 < p->end ? p->at[1] : 0, p->at + 2 < p->end ? p->at[2] : 0, 0};
                if (sscanf(hex, "%2x", &v) != 1 || !v || v > 31 || !isxdigit((unsigned char)hex[1]))
                    return fail(p, "bad escape");
                char c = (char)v;
                str_put(out, &c, 1);
                p->at += 3;
                continue;
            }
        }
        str_put(out, p->at++, 1);
    }
    return expect(p, '"');
}

static bool parse_file(parser *p, int want)
{
    int64_t n;
    if (!small(p, UINT16_MAX, &n))
        return false;
    if (n != want)
        return fail(p, "files are numbered from 1");
    str s = {0};
    bool ok = parse_string(p, &s) && s.len;
    if (ok) {
        eas_builder_at(p->b, s.at, 1);
        ok = p->b->ir->nfiles == want + 1 || fail(p, "this file stands here twice");
    } else {
        fail(p, "expected a file name");
    }
    str_free(&s);
    eas_builder_at(p->b, NULL, 0);
    return ok;
}

/* ---- constants ---- */

static bool parse_float(parser *p, eas_dtype dt, int64_t *bits)
{
    char t[64];
    size_t n = 0;
    skip_blanks(p);
    if ((size_t)(p->end - p->at) > 6 && !memcmp(p->at, "nan:0x", 6)) {
        uint64_t v = 0;
        p->at += 6;
        for (; p->at < p->end && isxdigit((unsigned char)*p->at) && n < 16; p->at++, n++)
            v = v << 4 | (uint64_t)(isdigit((unsigned char)*p->at) ? *p->at - '0' : (*p->at | 32) - 'a' + 10);
        *bits = (int64_t)v;
        return n ? true : fail(p, "expected hexadecimal digits");
    }
    while (p->at + n < p->end && n < sizeof t - 1 && (is_word(p->at[n]) || strchr("+-.", p->at[n])) && p->at[n])
        n++;
    memcpy(t, p->at, n);
    t[n] = 0;
    char *stop;
    double d = strtod(t, &stop);
    if (!n || *stop)
        return fail(p, "expected a number");
    p->at += n;
    *bits = ir_bits_from_double(dt, isnan(d) ? (double)__builtin_nanf("") : d);
    return true;
}

/* The type stands behind the constant: look ahead for it. */
static bool const_dtype(parser *p, eas_dtype *dt)
{
    const char *save = p->at;
    const char *q = p->at;
    while (q < p->end && *q != '\n' && !(*q == ' ' && q + 1 < p->end && q[1] == ':'))
        q++;
    ir_type t;
    if (q == p->end || *q == '\n')
        return fail(p, "expected ' : ' and a type");
    p->at = q + 2;
    if (!parse_type(p, &t))
        return false;
    p->at = save;
    *dt = t.dtype;
    return true;
}

static bool parse_const(parser *p, int64_t *imm)
{
    eas_dtype dt = EAS_BOOL;
    if (!const_dtype(p, &dt))
        return false;
    if (dt != EAS_BOOL)
        return dtype_is_float(dt) ? parse_float(p, dt, imm) : integer(p, imm);
    *imm = keyword(p, "true");
    return *imm || keyword(p, "false") || fail(p, "expected true or false");
}

/* ---- instructions ---- */

typedef struct line {
    VEC(uint32_t) res;
    VEC(uint32_t) args;
    VEC(ir_type) types;
} line;

static bool value_ref(parser *p, uint32_t *v)
{
    int64_t n;
    if (!expect(p, '%') || !small(p, UINT32_MAX / 4, &n))
        return false;
    *v = (uint32_t)n;
    return true;
}

static bool parse_results(parser *p, line *l)
{
    uint32_t v;
    do {
        if (!value_ref(p, &v))
            return false;
        if (v != p->b->ir->nvals + l->res.len)
            return fail(p, "values are numbered in order: expected %%%u", (unsigned)(p->b->ir->nvals + l->res.len));
        if (l->res.len == UINT16_MAX || !vec_push(&l->res, v))
            return fail(p, "too many results");
    } while (take(p, ','));
    return expect(p, '=');
}

static bool parse_operands(parser *p, line *l)
{
    uint32_t v;
    if (!peek(p, '%'))
        return true;
    do {
        if (!value_ref(p, &v))
            return false;
        if (l->args.len == UINT16_MAX || !vec_push(&l->args, v))
            return fail(p, "too many operands");
    } while (take(p, ','));
    return true;
}

static bool parse_types(parser *p, line *l)
{
    ir_type t;
    if (!l->res.len)
        return true;
    if (!expect(p, ':'))
        return false;
    do {
        if (!parse_type(p, &t))
            return false;
        if (!vec_push(&l->types, t))
            return fail(p, "out of memory");
    } while (take(p, ','));
    return l->types.len == l->res.len || fail(p, "%u types for %u results", (unsigned)l->types.len, (unsigned)l->res.len);
}

static bool parse_position(parser *p)
{
    int64_t file = 0, ln = 0;
    if (take(p, '@')) {
        if (!small(p, p->b->ir->nfiles - 1, &file) || !expect(p, ':') || !small(p, UINT32_MAX, &ln))
            return false;
        if (!file)
            return fail(p, "files are numbered from 1");
    }
    p->b->file = (uint16_t)file;
    p->b->line = (uint32_t)ln;
    return true;
}

static bool parse_place(parser *p, uint16_t op, int64_t *imm)
{
    int64_t axis, start;
    if (op != IR_TRANS) {
        if (!small(p, 7, &axis) || !small(p, INT32_MAX, &start))
            return false;
        *imm = ir_imm_place((int)axis, start);
        return true;
    }
    for (int i = 0; i < IR_MAX_RANK && !peek(p, '%'); i++) {
        if (!small(p, 7, &axis))
            return false;
        *imm |= axis << (3 * i);
    }
    return true;
}

static bool parse_text(parser *p, int64_t *imm)
{
    str s = {0};
    skip_blanks(p);
    bool ok = parse_string(p, &s);
    if (ok)
        *imm = irb_string(p->b, s.at ? s.at : "");
    str_free(&s);
    return ok && (*imm >= 0 || fail(p, "out of memory"));
}

static bool parse_name(parser *p, const char *const *names, int n, int *out)
{
    for (*out = 0; *out < n; ++*out)
        if (keyword(p, names[*out]))
            return true;
    return fail(p, "expected %s or the like", names[n - 1]);
}

static bool parse_fence(parser *p, int64_t *imm)
{
    int order, scope;
    if (!parse_name(p, ir_order_names, EAS_NORDERS, &order) || !parse_name(p, ir_scope_names, EAS_NSCOPES, &scope))
        return false;
    *imm = ir_imm_fence((eas_order)order, (eas_scope)scope);
    return true;
}

static bool parse_imm(parser *p, uint16_t op, int64_t *imm)
{
    if (op == IR_FENCE)
        return parse_fence(p, imm);
    switch (ir_rows[op].rule) {
    case IR_RULE_CONST: return parse_const(p, imm);
    case IR_RULE_IDENT: return op == IR_LANE_ID || op == IR_SG_ID || integer(p, imm);
    case IR_RULE_ASSERT:
    case IR_RULE_PRINT: return parse_text(p, imm);
    case IR_RULE_ARANGE: return integer(p, imm);
    case IR_RULE_MOVE: return parse_place(p, op, imm);
    case IR_RULE_REDUCE:
    case IR_RULE_SCAN: return small(p, 7, imm);
    default: return true;
    }
}

static bool same_types(parser *p, const line *l, const ir_type *given)
{
    for (uint32_t i = 0; i < l->types.len; i++)
        if (!ir_type_eq(l->types.at[i], given[i]))
            return fail(p, "the result is not of the type that the operands give");
    return true;
}

static bool build_line(parser *p, line *l, uint16_t op, int64_t imm)
{
    ir_type *given = malloc((l->types.len + 1) * sizeof *given);
    if (!given)
        return fail(p, "out of memory");
    if (l->types.len)
        memcpy(given, l->types.at, l->types.len * sizeof *given);
    for (uint32_t i = 0; i < l->args.len; i++)
        if (l->args.at[i] >= p->b->ir->nvals)
            l->args.at[i] = 0;
    if (op == IR_ALLOC_TG && l->types.len == 1)
        imm = given[0].dim[0];
    irb_note_block(p->b, irb_insn(p->b, op, l->args.at, (int)l->args.len, imm, (int)l->res.len, given));
    bool ok = p->b->status ? (p->failed ? false : fail(p, "%s", p->b->error.message)) : same_types(p, l, given);
    free(given);
    return ok;
}

static bool parse_insn(parser *p)
{
    line l = {0};
    char name[32];
    int64_t imm = 0;
    eas_op op = 0;
    bool ok = (!peek(p, '%') || parse_results(p, &l)) && word(p, name, sizeof name);
    if (ok && !(op = eas_op_find(name)))
        ok = fail(p, "no instruction is called %s", name);
    ok = ok && parse_imm(p, op, &imm) && parse_operands(p, &l) && parse_types(p, &l) && parse_position(p);
    ok = ok && (peek(p, '\n') || fail(p, "expected the end of the line")) && build_line(p, &l, op, imm);
    vec_free(&l.res);
    vec_free(&l.args);
    vec_free(&l.types);
    return ok;
}

static bool parse_params(parser *p)
{
    if (!expect(p, '('))
        return false;
    if (take(p, ')'))
        return true;
    do {
        ir_type t;
        char name[256];
        if (!parse_type(p, &t) || !word(p, name, sizeof name))
            return false;
        if (t.rank || t.kind == IR_TG || t.kind == IR_FRAG)
            return fail(p, "a parameter is a scalar or a buffer");
        if (!irb_param(p->b, name, t, false))
            return fail(p, "%s", p->b->error.message);
    } while (take(p, ','));
    return expect(p, ')');
}

static bool parse_flags(parser *p)
{
    if (keyword(p, "block") && !small(p, IR_MAX_DIM, &p->b->ir->spmd_block))
        return false;
    if (keyword(p, "threads") && !small(p, IR_MAX_DIM, &p->b->ir->threads))
        return false;
    if (keyword(p, "nocontract"))
        p->b->ir->flags |= EAS_KERNEL_NO_CONTRACT;
    if (keyword(p, "fastmath"))
        p->b->ir->flags |= EAS_KERNEL_FAST_MATH;
    return true;
}

static bool parse_kernel(parser *p)
{
    char name[256];
    int files = 1;
    for (skip_lines(p); keyword(p, "file"); skip_lines(p))
        if (!parse_file(p, files++))
            return false;
    if (!keyword(p, "kernel"))
        return fail(p, "expected 'kernel'");
    if (!word(p, name, sizeof name))
        return false;
    p->b->ir->name = arena_strdup(&p->b->ir->mem, name);
    if (!p->b->ir->name)
        return fail(p, "out of memory");
    if (isdigit((unsigned char)name[0]))
        return fail(p, "a kernel's name must be an identifier");
    if (!parse_params(p) || !parse_flags(p) || !expect(p, '{'))
        return false;
    for (skip_lines(p); !take(p, '}'); skip_lines(p))
        if (!parse_insn(p))
            return false;
    skip_lines(p);
    return p->at == p->end || fail(p, "expected the end of the text");
}

eas_status ir_parse(const char *text, size_t len, eas_ir **out)
{
    parser p = {.at = text, .end = text + len, .line_start = text, .line = 1};
    *out = NULL;
    eas_status st = eas_builder_new("k", 0, &p.b);
    if (st)
        return st;
    st = parse_kernel(&p) ? irb_finish(p.b, out) : EAS_ERR_SYNTAX;
    eas_builder_free(p.b);
    return st;
}

eas_status eas_ir_parse(const char *text, size_t len, eas_ir **out)
{
    NEED(text, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    return ir_parse(text, len, out);
}
