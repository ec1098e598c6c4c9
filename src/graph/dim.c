/* dim.c: sizes that are expressions in symbols.
 *
 * An expression is kept as a polynomial with integer coefficients in atoms. An atom is a symbol (a size, so
 * not negative), or a floor division, a remainder, a minimum or a maximum of two expressions. Terms are
 * ordered by degree and then by the atoms' texts, so equal expressions are equal polynomials and have equal
 * texts in every process. One table for the process keeps each polynomial once: the number of an expression
 * is its place there, counted up from the smallest 64-bit number, which leaves -1 and other small negative
 * numbers what they are.
 *
 * The table only grows: a process has few symbols.
 */
#include "graph.h"

#include <ctype.h>
#include <pthread.h>

enum { MAX_TERMS = 64, MAX_DEGREE = 16, MAX_DEPTH = 64, SYMBOL = -1 };

typedef struct term {
    int64_t coef;
    int degree;
    uint32_t atom[MAX_DEGREE]; /* in order; one that occurs twice is there twice */
} term;
typedef struct poly {
    int n;
    term t[MAX_TERMS]; /* none has a coefficient of 0; the constant is last */
} poly;
typedef struct atom {
    int op; /* SYMBOL or eas_dim_op */
    eas_dim a, b;
    char *text;
    int depth;
    bool positive; /* never below 0 */
} atom;
typedef struct expr {
    poly *p;   /* only p->n terms are there */
    char *text;
    uint64_t hash;
    int depth;
} expr;

static struct {
    pthread_mutex_t lock;
    VEC(atom) atoms;
    VEC(expr) exprs;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void enter(void) { base_lock(&table.lock); }
static void unlock(void) { base_unlock(&table.lock); }

static eas_dim number_of(uint32_t i) { return INT64_MIN + 1 + (int64_t)i; }
static uint64_t place_of(eas_dim d) { return (uint64_t)d - (uint64_t)INT64_MIN - 1; }
static bool is_place(eas_dim d) { return dim_is_expr(d) && place_of(d) < table.exprs.len; }

/* ---- numbers ---- */

static eas_status too_large(void)
{
    return base_fail(EAS_ERR_VALUE, "eager: a size is too large for 64 bits");
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0) & ((a ^ b) < 0)); }

/* A computed size must not fall into the range of values that encode expressions. */
static eas_status in_range(int64_t v, eas_dim *out)
{
    if (v < DIM_LOWEST)
        return too_large();
    *out = v;
    return EAS_OK;
}

static eas_status apply_numbers(eas_dim_op op, int64_t a, int64_t b, eas_dim *out)
{
    int64_t v = 0;
    bool over = false;
    switch (op) {
    case EAS_DIM_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case EAS_DIM_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case EAS_DIM_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case EAS_DIM_FLOORDIV:
    case EAS_DIM_MOD:
        if (b == 0)
            return base_fail(EAS_ERR_VALUE, "eager: a size is divided by 0");
        v = op == EAS_DIM_MOD ? a - floor_div(a, b) * b : floor_div(a, b);
        break;
    case EAS_DIM_MIN: v = a < b ? a : b; break;
    case EAS_DIM_MAX: v = a > b ? a : b; break;
    default: return base_fail(EAS_ERR_VALUE, "eager: no operation %d on sizes", (int)op);
    }
    return over ? too_large() : in_range(v, out);
}

/* ---- polynomials; with the lock held ---- */

/* Higher degrees first, then by the texts of the atoms. */
static int compare(const term *x, const term *y)
{
    if (x->degree != y->degree)
        return y->degree - x->degree;
    for (int i = 0; i < x->degree; i++)
        if (x->atom[i] != y->atom[i])
            return strcmp(table.atoms.at[x->atom[i]].text, table.atoms.at[y->atom[i]].text);
    return 0;
}

static eas_status too_long(void)
{
    return base_fail(EAS_ERR_VALUE, "eager: an expression of sizes has too many terms or factors");
}

static eas_status add_term(poly *p, const term *t)
{
    int i = 0, c = 1;
    while (i < p->n && (c = compare(&p->t[i], t)) < 0)
        i++;
    if (i < p->n && c == 0) {
        if (__builtin_add_overflow(p->t[i].coef, t->coef, &p->t[i].coef))
            return too_large();
        if (p->t[i].coef == 0)
            memmove(&p->t[i], &p->t[i + 1], sizeof *p->t * (size_t)(--p->n - i));
        return EAS_OK;
    }
    if (t->coef == 0)
        return EAS_OK;
    if (p->n == MAX_TERMS)
        return too_long();
    memmove(&p->t[i + 1], &p->t[i], sizeof *p->t * (size_t)(p->n++ - i));
    p->t[i] = *t;
    return EAS_OK;
}

static eas_status load(eas_dim d, poly *p)
{
    p->n = 0;
    if (d >= DIM_LOWEST)
        return add_term(p, &(term){.coef = d});
    if (!is_place(d))
        return base_fail(EAS_ERR_VALUE, "eager: %lld is neither a size nor an expression of sizes",
                         (long long)d);
    const poly *from = table.exprs.at[place_of(d)].p;
    p->n = from->n;
    memcpy(p->t, from->t, sizeof *p->t * (size_t)from->n);
    return EAS_OK;
}

static eas_status times(const term *x, const term *y, term *out)
{
    term t = {.degree = x->degree + y->degree};
    if (t.degree > MAX_DEGREE)
        return too_long();
    if (__builtin_mul_overflow(x->coef, y->coef, &t.coef))
        return too_large();
    for (int i = 0, j = 0, k = 0; k < t.degree; k++) {
        bool left = j == y->degree || (i < x->degree && strcmp(table.atoms.at[x->atom[i]].text,
                                                               table.atoms.at[y->atom[j]].text) <= 0);
        t.atom[k] = left ? x->atom[i++] : y->atom[j++];
    }
    *out = t;
    return EAS_OK;
}

/* *p += factor * q */
static eas_status add_times(poly *p, const term *factor, const poly *q)
{
    eas_status st = EAS_OK;
    term t;
    for (int i = 0; i < q->n && !st; i++) {
        st = times(factor, &q->t[i], &t);
        if (!st)
            st = add_term(p, &t);
    }
    return st;
}

static eas_status add_polys(poly *p, const poly *q, int sign)
{
    return add_times(p, &(term){.coef = sign}, q);
}

static eas_status multiply(poly *p, const poly *q)
{
    poly product = {0};
    eas_status st = EAS_OK;
    for (int i = 0; i < p->n && !st; i++)
        st = add_times(&product, &p->t[i], q);
    *p = product;
    return st;
}

/* t / by, if every factor of by is in t */
static bool divide_term(const term *t, const term *by, term *out)
{
    int k = 0;
    *out = (term){0};
    if (t->coef % by->coef)
        return false;
    out->coef = t->coef / by->coef;
    for (int i = 0; i < t->degree; i++)
        if (k < by->degree && t->atom[i] == by->atom[k])
            k++;
        else
            out->atom[out->degree++] = t->atom[i];
    return k == by->degree;
}

/* *quotient = p / by, if that is exact. */
static bool divide_exactly(const poly *p, const poly *by, poly *quotient)
{
    poly rest = *p;
    quotient->n = 0;
    while (by->n && rest.n) {
        term t;
        if (!divide_term(&rest.t[0], &by->t[0], &t) || add_term(quotient, &t))
            return false;
        t.coef = -t.coef;
        if (add_times(&rest, &t, by))
            return false;
    }
    return by->n > 0;
}

static bool constant(const poly *p, int64_t *v)
{
    *v = p->n ? p->t[0].coef : 0;
    return p->n == 0 || (p->n == 1 && p->t[0].degree == 0);
}

static bool never_negative(const poly *p)
{
    for (int i = 0; i < p->n; i++) {
        if (p->t[i].coef < 0)
            return false;
        for (int k = 0; k < p->t[i].degree; k++)
            if (!table.atoms.at[p->t[i].atom[k]].positive)
                return false;
    }
    return true;
}

/* ---- texts ---- */

static void add_factors(str *s, const term *t)
{
    for (int i = 0; i < t->degree;) {
        int power = 1;
        while (i + power < t->degree && t->atom[i + power] == t->atom[i])
            power++;
        str_add(s, "%s%s", i ? "*" : "", table.atoms.at[t->atom[i]].text);
        if (power > 1)
            str_add(s, "**%d", power);
        i += power;
    }
}

static void add_poly_text(str *s, const poly *p)
{
    for (int i = 0; i < p->n; i++) {
        const term *t = &p->t[i];
        bool minus = t->coef < 0;
        uint64_t size = minus ? 0 - (uint64_t)t->coef : (uint64_t)t->coef;
        str_add(s, "%s", i == 0 ? (minus ? "-" : "") : minus ? " - " : " + ");
        if (size != 1 || t->degree == 0)
            str_add(s, "%llu%s", (unsigned long long)size, t->degree ? "*" : "");
        add_factors(s, t);
    }
}

static void add_text(str *s, eas_dim d)
{
    if (d >= DIM_LOWEST)
        str_add(s, "%lld", (long long)d);
    else
        str_add(s, "%s", is_place(d) ? table.exprs.at[place_of(d)].text : "?");
}

/* ---- the table ---- */

static int depth_of(eas_dim d) { return is_place(d) ? table.exprs.at[place_of(d)].depth : 0; }

static uint64_t hash_poly(const poly *p)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < p->n; i++) {
        h = (h ^ (uint64_t)p->t[i].coef) * 1099511628211u;
        for (int k = 0; k < p->t[i].degree; k++)
            h = (h ^ p->t[i].atom[k]) * 1099511628211u;
    }
    return h;
}

static bool same(const poly *p, const poly *q)
{
    if (p->n != q->n)
        return false;
    for (int i = 0; i < p->n; i++)
        if (p->t[i].coef != q->t[i].coef || compare(&p->t[i], &q->t[i]))
            return false;
    return true;
}

static eas_status add_expr(const poly *p, uint64_t hash, eas_dim *out)
{
    expr e = {.hash = hash};
    str s = {0};
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->t[i].degree; k++)
            e.depth = table.atoms.at[p->t[i].atom[k]].depth > e.depth ? table.atoms.at[p->t[i].atom[k]].depth
                                                                      : e.depth;
    size_t size = offsetof(poly, t) + sizeof *p->t * (size_t)p->n;
    e.p = malloc(size);
    add_poly_text(&s, p);
    eas_status st = str_take(&s, &e.text);
    if (!st && e.p) {
        memcpy(e.p, p, size);
        *out = number_of(table.exprs.len);
        if (vec_push(&table.exprs, e))
            return EAS_OK;
    }
    free(e.p);
    free(e.text);
    return base_fail_oom(size);
}

static eas_status intern(const poly *p, eas_dim *out)
{
    int64_t v;
    if (constant(p, &v))
        return in_range(v, out);
    uint64_t h = hash_poly(p);
    for (uint32_t i = 0; i < table.exprs.len; i++)
        if (table.exprs.at[i].hash == h && same(table.exprs.at[i].p, p)) {
            *out = number_of(i);
            return EAS_OK;
        }
    return add_expr(p, h, out);
}

/* Takes the text over. */
static eas_status intern_atom(atom a, eas_dim *out)
{
    uint32_t i = 0;
    while (i < table.atoms.len && strcmp(table.atoms.at[i].text, a.text))
        i++;
    if (i < table.atoms.len)
        free(a.text);
    else if (!vec_push(&table.atoms, a)) {
        free(a.text);
        return base_fail_oom(sizeof a);
    }
    poly p = {.n = 1, .t = {{.coef = 1, .degree = 1, .atom = {i}}}};
    return intern(&p, out);
}

/* Expressions before numbers, then by their texts. */
static bool in_text_order(eas_dim a, eas_dim b)
{
    if (is_place(a) && is_place(b))
        return strcmp(table.exprs.at[place_of(a)].text, table.exprs.at[place_of(b)].text) < 0;
    return is_place(a);
}

static eas_status new_atom(eas_dim_op op, const poly *p, const poly *q, bool positive, eas_dim *out)
{
    static const char *const names[] = {
        [EAS_DIM_FLOORDIV] = "floordiv", [EAS_DIM_MOD] = "mod", [EAS_DIM_MIN] = "min", [EAS_DIM_MAX] = "max"};
    atom a = {.op = (int)op, .positive = positive};
    str s = {0};
    eas_status st = intern(p, &a.a);
    if (!st)
        st = intern(q, &a.b);
    if (st)
        return st;
    a.depth = 1 + (depth_of(a.a) > depth_of(a.b) ? depth_of(a.a) : depth_of(a.b));
    if (a.depth > MAX_DEPTH)
        return base_fail(EAS_ERR_VALUE, "eager: an expression of sizes nests deeper than %d", MAX_DEPTH);
    if ((op == EAS_DIM_MIN || op == EAS_DIM_MAX) && in_text_order(a.b, a.a)) { /* one of the two forms */
        eas_dim t = a.a;
        a.a = a.b;
        a.b = t;
    }
    str_add(&s, "%s(", names[op]);
    add_text(&s, a.a);
    str_add(&s, ", ");
    add_text(&s, a.b);
    str_add(&s, ")");
    st = str_take(&s, &a.text);
    return st ? st : intern_atom(a, out);
}

/* ---- arithmetic ---- */

/* min and max: one of them, if it is known which. */
static eas_status extreme(eas_dim_op op, const poly *p, const poly *q, eas_dim *out)
{
    poly up = *p, down = *q;
    eas_status st = add_polys(&up, q, -1);
    if (!st)
        st = add_polys(&down, p, -1);
    if (st)
        return st;
    if (never_negative(&up))
        return intern(op == EAS_DIM_MAX ? p : q, out);
    if (never_negative(&down))
        return intern(op == EAS_DIM_MAX ? q : p, out);
    bool one = never_negative(p), other = never_negative(q);
    return new_atom(op, p, q, op == EAS_DIM_MAX ? one || other : one && other, out);
}

/* Terms that by divides come out of the division: (4*n + m) // 2 is 2*n + m // 2. */
static eas_status take_multiples(poly *p, int64_t by, poly *whole)
{
    poly rest = {0};
    eas_status st = EAS_OK;
    *whole = (poly){0};
    for (int i = 0; i < p->n && !st; i++) {
        term out = p->t[i], in = p->t[i];
        out.coef = floor_div(p->t[i].coef, by);
        in.coef = p->t[i].coef - out.coef * by;
        st = add_term(whole, &out);
        if (!st)
            st = add_term(&rest, &in);
    }
    *p = rest;
    return st;
}

static eas_status divide(eas_dim_op op, poly *p, const poly *q, eas_dim *out)
{
    poly whole = {0}, exact;
    int64_t by;
    bool fixed = constant(q, &by);
    if (fixed && by == 0)
        return base_fail(EAS_ERR_VALUE, "eager: a size is divided by 0");
    if (divide_exactly(p, q, &exact))
        return op == EAS_DIM_MOD ? in_range(0, out) : intern(&exact, out);
    eas_status st = fixed ? take_multiples(p, by, &whole) : EAS_OK;
    if (st)
        return st;
    bool positive = (fixed ? by > 0 : never_negative(q)) && (op == EAS_DIM_MOD || never_negative(p));
    int64_t rest;
    eas_dim part;
    if (fixed && constant(p, &rest))
        st = apply_numbers(op, rest, by, &part);
    else
        st = new_atom(op, p, q, positive, &part);
    if (st || op == EAS_DIM_MOD || whole.n == 0) {
        *out = part;
        return st;
    }
    poly sum;
    st = load(part, &sum);
    if (!st)
        st = add_polys(&sum, &whole, 1);
    return st ? st : intern(&sum, out);
}

static eas_status apply_exprs(eas_dim_op op, eas_dim a, eas_dim b, eas_dim *out)
{
    poly p, q;
    eas_status st = load(a, &p);
    if (!st)
        st = load(b, &q);
    if (st)
        return st;
    switch (op) {
    case EAS_DIM_ADD:
    case EAS_DIM_SUB: st = add_polys(&p, &q, op == EAS_DIM_ADD ? 1 : -1); break;
    case EAS_DIM_MUL: st = multiply(&p, &q); break;
    case EAS_DIM_FLOORDIV:
    case EAS_DIM_MOD: return divide(op, &p, &q, out);
    case EAS_DIM_MIN:
    case EAS_DIM_MAX: return extreme(op, &p, &q, out);
    default: return base_fail(EAS_ERR_VALUE, "eager: no operation %d on sizes", (int)op);
    }
    return st ? st : intern(&p, out);
}

eas_status eas_dim_apply(eas_dim_op op, eas_dim a, eas_dim b, eas_dim *out)
{
    NEED(out, EAS_ERR_HANDLE);
    *out = 0;
    if (a >= DIM_LOWEST && b >= DIM_LOWEST)
        return apply_numbers(op, a, b, out);
    enter();
    eas_status st = apply_exprs(op, a, b, out);
    unlock();
    return st;
}

eas_status eas_dim_symbol(const char *name, eas_dim *out)
{
    NEED(name, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    atom a = {.op = SYMBOL, .positive = true};
    bool good = isalpha((unsigned char)name[0]) || name[0] == '_';
    *out = 0;
    for (const char *p = name; *p; p++)
        good &= isalnum((unsigned char)*p) || *p == '_';
    if (!good)
        return base_fail(EAS_ERR_VALUE,
                         "eager: '%s' cannot name a size: letters, digits and _ can, a letter or _ first",
                         name);
    a.text = strdup(name);
    if (!a.text)
        return base_fail_oom(strlen(name));
    enter();
    eas_status st = intern_atom(a, out);
    unlock();
    return st;
}

eas_dim dim_product(int n, const eas_dim *d)
{
    eas_dim p = 1;
    bool empty = false;
    for (int i = 0; i < n; i++)
        empty |= d[i] == 0;
    for (int i = 0; i < n && !empty; i++) {
        int64_t plain;
        if (p >= 0 && d[i] >= 0 && !__builtin_mul_overflow(p, d[i], &plain)) /* nearly always */
            p = plain;
        else if (eas_dim_apply(EAS_DIM_MUL, p, d[i], &p))
            return DIM_NONE;
    }
    return empty ? 0 : p;
}

bool dim_divides(eas_dim a, eas_dim b, eas_dim *out)
{
    poly p, q, r;
    *out = -1;
    if (a >= DIM_LOWEST && b >= DIM_LOWEST) {
        if (b == 0 || a % b)
            return false;
        *out = a / b;
        return true;
    }
    enter();
    bool ok = !load(a, &p) && !load(b, &q) && divide_exactly(&p, &q, &r) && !intern(&r, out);
    unlock();
    return ok;
}

bool dim_linear(eas_dim d, eas_dim *symbol, int64_t *scale, int64_t *offset)
{
    bool ok = false;
    enter();
    if (is_place(d)) {
        const poly *p = table.exprs.at[place_of(d)].p;
        ok = p->t[0].degree == 1 && table.atoms.at[p->t[0].atom[0]].op == SYMBOL &&
             (p->n == 1 || (p->n == 2 && p->t[1].degree == 0));
        if (ok) {
            poly one = {.n = 1, .t = {{.coef = 1, .degree = 1, .atom = {p->t[0].atom[0]}}}};
            *scale = p->t[0].coef;
            *offset = p->n == 2 ? p->t[1].coef : 0;
            ok = !intern(&one, symbol);
        }
    }
    unlock();
    return ok;
}

/* ---- values ---- */

typedef struct env {
    int n;
    const eas_dim *symbols;
    const char *const *names; /* or these */
    const int64_t *values;
} env;

static eas_status value_of(eas_dim d, const env *e, int64_t *out);

static eas_status symbol_value(const char *name, uint32_t number, const env *e, int64_t *out)
{
    for (int i = 0; i < e->n; i++) {
        bool it = false;
        if (e->names)
            it = !strcmp(e->names[i], name);
        else if (is_place(e->symbols[i])) {
            const poly *p = table.exprs.at[place_of(e->symbols[i])].p;
            it = p->n == 1 && p->t[0].coef == 1 && p->t[0].degree == 1 && p->t[0].atom[0] == number;
        }
        if (it) {
            *out = e->values[i];
            return EAS_OK;
        }
    }
    return base_fail(EAS_ERR_VALUE, "eager: the size '%s' has no value", name);
}

static eas_status atom_value(uint32_t number, const env *e, int64_t *out)
{
    const atom *a = &table.atoms.at[number];
    int64_t x, y;
    if (a->op == SYMBOL)
        return symbol_value(a->text, number, e, out);
    eas_status st = value_of(a->a, e, &x);
    if (!st)
        st = value_of(a->b, e, &y);
    return st ? st : apply_numbers((eas_dim_op)a->op, x, y, out);
}

static eas_status value_of(eas_dim d, const env *e, int64_t *out)
{
    int64_t sum = 0;
    if (d >= DIM_LOWEST) {
        *out = d;
        return EAS_OK;
    }
    if (!is_place(d))
        return base_fail(EAS_ERR_VALUE, "eager: %lld is neither a size nor an expression of sizes",
                         (long long)d);
    const poly *p = table.exprs.at[place_of(d)].p;
    for (int i = 0; i < p->n; i++) {
        int64_t v = p->t[i].coef, factor;
        for (int k = 0; k < p->t[i].degree; k++) {
            eas_status st = atom_value(p->t[i].atom[k], e, &factor);
            if (st)
                return st;
            if (__builtin_mul_overflow(v, factor, &v))
                return too_large();
        }
        if (__builtin_add_overflow(sum, v, &sum))
            return too_large();
    }
    *out = sum;
    return EAS_OK;
}

eas_status eas_dim_value(eas_dim d, int n, const char *const *names, const int64_t *values, int64_t *out)
{
    if (n && !(names && values))
        return base_null(__func__, "names");
    NEED(out, EAS_ERR_HANDLE);
    *out = 0;
    enter();
    eas_status st = value_of(d, &(env){n, NULL, names, values}, out);
    unlock();
    return st;
}

eas_status dim_eval(eas_dim d, int n, const eas_dim *symbols, const int64_t *values, int64_t *out)
{
    *out = d;
    if (d >= DIM_LOWEST)
        return EAS_OK;
    enter();
    eas_status st = value_of(d, &(env){n, symbols, NULL, values}, out);
    unlock();
    return st;
}

/* ---- texts for others ---- */

void dim_add_text(str *s, eas_dim d)
{
    if (d >= DIM_LOWEST) {
        str_add(s, "%lld", (long long)d);
        return;
    }
    enter();
    add_text(s, d);
    unlock();
}

eas_status eas_dim_text(eas_dim d, char **out)
{
    NEED(out, EAS_ERR_HANDLE);
    str s = {0};
    dim_add_text(&s, d);
    return str_take(&s, out);
}

void shape_add_text(str *s, int rank, const eas_dim *shape)
{
    str_add(s, "(");
    for (int i = 0; i < rank; i++) {
        str_add(s, "%s", i ? ", " : "");
        dim_add_text(s, shape[i]);
    }
    str_add(s, rank == 1 ? ",)" : ")");
}

const char *shape_text(char *buf, size_t n, int rank, const eas_dim *shape)
{
    str s = {0};
    shape_add_text(&s, rank, shape);
    size_t len = s.at ? s.len : 0;
    if (len >= n)
        len = n - 1;
    if (len)
        memcpy(buf, s.at, len);
    buf[len] = 0;
    str_free(&s);
    return buf;
}

/* ---- the most that it can be ---- */

static _Thread_local env bounds; /* of symbols, while something is planned */

void dim_bound(int n, const eas_dim *symbols, const int64_t *most)
{
    bounds = (env){.n = n, .symbols = symbols, .values = most};
}

static int64_t most_of(eas_dim d);

static int64_t atom_most(uint32_t number)
{
    const atom *a = &table.atoms.at[number];
    if (a->op == SYMBOL) {
        for (int i = 0; i < bounds.n; i++) {
            const poly *p =
                is_place(bounds.symbols[i]) ? table.exprs.at[place_of(bounds.symbols[i])].p : NULL;
            if (p && p->n == 1 && p->t[0].coef == 1 && p->t[0].degree == 1 && p->t[0].atom[0] == number)
                return bounds.values[i];
        }
        return DIM_ANY;
    }
    int64_t x = most_of(a->a), y = most_of(a->b);
    switch (a->op) {
    case EAS_DIM_FLOORDIV: return x != DIM_ANY && a->b >= 1 ? x / a->b : x;
    case EAS_DIM_MOD: return a->b >= 1 ? a->b - 1 : DIM_ANY;
    case EAS_DIM_MIN: return x < y ? x : y;
    case EAS_DIM_MAX: return x > y ? x : y;
    default: return DIM_ANY;
    }
}

/* Symbols are not negative, so what is subtracted is 0 at least. */
static int64_t most_of(eas_dim d)
{
    int64_t sum = 0;
    if (d >= DIM_LOWEST)
        return d;
    if (!is_place(d))
        return DIM_ANY;
    const poly *p = table.exprs.at[place_of(d)].p;
    for (int i = 0; i < p->n; i++) {
        int64_t v = p->t[i].coef;
        bool over = false;
        for (int k = 0; k < p->t[i].degree && v > 0 && !over; k++) {
            int64_t m = atom_most(p->t[i].atom[k]);
            over = m == DIM_ANY || __builtin_mul_overflow(v, m, &v);
        }
        if (v < 0 && p->t[i].degree)
            v = 0;
        if (over || __builtin_add_overflow(sum, v, &sum))
            return DIM_ANY;
    }
    return sum < 0 ? 0 : sum;
}

int64_t dim_most(eas_dim d)
{
    if (d >= DIM_LOWEST || !bounds.n)
        return d >= DIM_LOWEST ? d : DIM_ANY;
    enter();
    int64_t m = most_of(d);
    unlock();
    return m;
}

/* ---- sizes that are taken for equal ---- */
static _Thread_local struct {
    eas_dim_decide decide;
    void *context;
} decider;

void eas_dim_set_decider(eas_dim_decide decide, void *context)
{
    decider.decide = decide;
    decider.context = context;
}

bool dim_agrees(eas_dim a, eas_dim b)
{
    if (a == b)
        return true;
    return decider.decide && dim_is_expr(a) && dim_is_expr(b) && decider.decide(decider.context, a, b);
}
