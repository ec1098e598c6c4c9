/* op_quant.c: matrices of small integers with scales, and products with them.
 *
 * A matrix (..., K, N) is cut along K into groups, padded with zeros to whole ones. Each column of a group
 * has a scale (and an offset): an element is scale * code(q) + offset. Everything has N as its last dim, so
 * whatever is done with it is done by whole vectors of columns, and scales need no gather. Two 4-bit codes
 * share a byte: with h = group / 2, row g*h + j of the data has element g*group + j in its low half and
 * g*group + h + j in its high half. So one load serves two rows of the matrix, and GGUF's Q4_0 is the same
 * bytes, transposed.
 *
 * All of it is recorded in operations of the table, so it has their derivatives, batching and devices. A
 * product with one row is written as the sum that it is: dequantising happens in registers, and what is read
 * is the compressed matrix. A product with more rows multiplies by the dequantised matrix: the kernel that
 * lays its right factor out in panels dequantises on the way.
 */
#include "graph.h"

enum { ROWS = -2, COLUMNS = -1, MOST_LEADING = GRAPH_MAX_RANK - 4 };

/* The 16 values of "normal float 4": quantiles of a normal distribution, scaled to [-1, 1] (Dettmers et al.,
 * QLoRA, appendix E). */
static const double nf4[16] = {-1.0,
                               -0.6961928009986877,
                               -0.5250730514526367,
                               -0.39491748809814453,
                               -0.28444138169288635,
                               -0.18477343022823334,
                               -0.09105003625154495,
                               0.0,
                               0.07958029955625534,
                               0.16093020141124725,
                               0.24611230194568634,
                               0.33791524171829224,
                               0.44070982933044434,
                               0.5626170039176941,
                               0.7229568362236023,
                               1.0};

/* ---- operations on logical axes ---- */
typedef struct shape_of { /* a shape in the making */
    int n;
    int64_t at[GRAPH_MAX_RANK + 1]; /* at[0]: their number, as attributes are */
} shape_of;
static void push(shape_of *s, eas_dim d)
{
    if (s->n < GRAPH_MAX_RANK)
        s->at[1 + s->n++] = d;
    s->at[0] = s->n;
}
static eas_node *as_shape(gbuild *g, eas_node *x, const shape_of *s)
{
    return x ? gb_apply(g, GRAPH_RESHAPE, 1, &x, 1 + s->n, s->at) : NULL;
}

/* x (lead..., a, b, c... ) as lead plus these dims. */
static eas_node *with_last(gbuild *g, eas_node *x, int lead, int n, const eas_dim *last)
{
    shape_of s = {0};
    if (!x)
        return NULL;
    for (int i = 0; i < lead; i++)
        push(&s, node_logical_shape(x)[i]);
    for (int i = 0; i < n; i++)
        push(&s, last[i]);
    return as_shape(g, x, &s);
}
static eas_node *reduced(gbuild *g, uint16_t op, eas_node *x, int64_t axis)
{
    return x ? gb_apply(g, op, 1, &x, 3, (int64_t[]){1, axis, 0}) : NULL;
}
static eas_node *to(gbuild *g, eas_node *x, eas_dtype dt)
{
    return x ? gb_apply(g, GRAPH_CAST, 1, &x, 1, (int64_t[]){dt}) : NULL;
}
static eas_node *number(gbuild *g, eas_node *like, double v) { return like ? gd_num(g, like, v) : NULL; }
static eas_node *op2(gbuild *g, uint16_t op, eas_node *x, eas_node *y)
{
    return x && y ? gb2(g, op, x, y) : NULL;
}
static eas_node *bits_of(gbuild *g, uint16_t op, eas_node *x, int64_t v)
{
    return x ? gb2(g, op, x, gd_num(g, x, (double)v)) : NULL; /* a constant of the code, no argument */
}

/* Part `at` of `count` from there along the logical axis `axis`, which is from the end. */
static eas_node *part(gbuild *g, eas_node *x, int axis, eas_dim at, eas_dim count)
{
    int64_t attr[2 * GRAPH_MAX_RANK + 2];
    if (!x)
        return NULL;
    int n = node_logical_rank(x);
    attr[0] = attr[n + 1] = n;
    for (int i = 0; i < n; i++) {
        attr[1 + i] = i == n + axis ? at : 0;
        attr[n + 2 + i] = i == n + axis ? count : node_logical_shape(x)[i];
    }
    return gb_apply(g, GRAPH_SLICE_TENSOR, 1, &x, 2 * n + 2, attr);
}

/* x with zeros behind it along `axis`, which is from the end. */
static eas_node *padded(gbuild *g, eas_node *x, int axis, int64_t by)
{
    int64_t attr[2 * GRAPH_MAX_RANK + 2] = {0};
    if (!x || !by)
        return x;
    int n = node_logical_rank(x);
    attr[0] = 2 * n;
    attr[1 + 2 * (n + axis) + 1] = by;
    eas_node *in[2] = {x, gb_num(g, x, 0)};
    return gb_apply(g, GRAPH_PAD, 2, in, 2 * n + 2, attr);
}

/* Lets go of what was made; results were counted before. */
static eas_status ended(gbuild *g, const eas_node *result)
{
    eas_node *none;
    eas_status st = gb_done(g, NULL, &none);
    return st ? st : result ? EAS_OK : base_fail_oom(sizeof *result);
}
static eas_status handed_out(gbuild *g, eas_node *result, eas_node **out)
{
    *out = !g->st && result ? eas_node_retain(result) : NULL;
    return ended(g, *out);
}

/* ---- formats ---- */
static const struct quant_kind {
    const char *name;
    int bits, group; /* group 0: all of K */
    bool offsets;
} kinds[] = {{"int8", 8, 0, false}, {"int4", 4, 32, false}, {"int4_zp", 4, 32, true}, {"nf4", 4, 64, false}};
enum { NKINDS = sizeof kinds / sizeof *kinds };

const char *eas_quant_name(eas_quant kind) { return (unsigned)kind < NKINDS ? kinds[kind].name : NULL; }
int eas_quant_parse(const char *name, eas_quant *out)
{
    for (int i = 0; name && i < NKINDS; i++)
        if (!strcmp(name, kinds[i].name))
            return *out = (eas_quant)i, 1;
    return 0;
}

/* ---- quantising ---- */

/* The places of elements among the values of nf4: how many midpoints between neighbours lie below. */
static eas_node *nearest_nf4(gbuild *g, eas_node *x)
{
    eas_node *sum = NULL;
    for (int i = 0; i < 15; i++) {
        eas_node *above = to(g, op2(g, GRAPH_GREATER, x, number(g, x, (nf4[i] + nf4[i + 1]) / 2)), EAS_U8);
        sum = sum ? op2(g, GRAPH_ADD, sum, above) : above;
    }
    return sum;
}

static eas_node *clipped(gbuild *g, eas_node *x, double low, double high)
{
    return op2(g, GRAPH_MINIMUM, op2(g, GRAPH_MAXIMUM, x, number(g, x, low)), number(g, x, high));
}

/* Where a scale would be 0 it is 1: the codes are 0 then. */
static eas_node *not_zero(gbuild *g, eas_node *s)
{
    return s ? gb3(g, GRAPH_WHERE, op2(g, GRAPH_EQUAL, s, number(g, s, 0)), number(g, s, 1), s) : NULL;
}

/* w (lead..., G, group, N) in f32: scales (and zero points), (lead..., G, N). */
static void find_scales(gbuild *g, eas_node *w, eas_quant kind, eas_node **scales, eas_node **zero)
{
    *zero = NULL;
    if (kind == EAS_QUANT_INT4_ZP) {
        eas_node *low = reduced(g, GRAPH_REDUCE_MIN, w, -2), *high = reduced(g, GRAPH_REDUCE_MAX, w, -2);
        low = op2(g, GRAPH_MINIMUM, low, number(g, low, 0));
        high = op2(g, GRAPH_MAXIMUM, high, number(g, high, 0));
        *scales = not_zero(g, op2(g, GRAPH_DIV, op2(g, GRAPH_SUB, high, low), number(g, high, 15)));
        eas_node *z = op2(g, GRAPH_DIV, low, *scales);
        *zero = clipped(g, z ? gb1(g, GRAPH_ROUND, gb1(g, GRAPH_NEG, z)) : NULL, 0, 15);
        return;
    }
    double most = kind == EAS_QUANT_INT8 ? 127 : kind == EAS_QUANT_INT4 ? 7 : 1;
    eas_node *s = reduced(g, GRAPH_REDUCE_MAX, w ? gb1(g, GRAPH_ABS, w) : NULL, -2);
    *scales = not_zero(g, op2(g, GRAPH_DIV, s, number(g, s, most)));
}

/* w divided by its scales, as codes. */
static eas_node *find_codes(gbuild *g, eas_node *w, eas_quant kind, eas_node *scales, eas_node *zero)
{
    int lead = w ? node_logical_rank(w) - 3 : 0;
    if (!w || !scales)
        return NULL;
    const eas_dim *last = node_logical_shape(w) + lead, one[3] = {last[0], 1, last[2]};
    eas_node *x = op2(g, GRAPH_DIV, w, with_last(g, scales, lead, 3, one));
    if (kind == EAS_QUANT_NF4)
        return nearest_nf4(g, x);
    x = x ? gb1(g, GRAPH_ROUND, x) : NULL;
    if (kind == EAS_QUANT_INT8)
        return to(g, clipped(g, x, -127, 127), EAS_I8);
    x = op2(g, GRAPH_ADD, x, zero ? with_last(g, zero, lead, 3, one) : number(g, x, 8));
    return to(g, clipped(g, x, 0, 15), EAS_U8);
}

/* Codes (lead..., G, group, N), two in a byte: (lead..., G * group / 2, N). */
static eas_node *packed(gbuild *g, eas_node *q, int lead, eas_dim groups, int64_t group, eas_dim columns)
{
    const eas_dim four[4] = {groups, 2, group / 2, columns}, two[2] = {groups * (group / 2), columns};
    eas_node *x = with_last(g, q, lead, 4, four);
    eas_node *low = part(g, x, -3, 0, 1), *high = part(g, x, -3, 1, 1);
    return with_last(g, op2(g, GRAPH_BITWISE_OR, low, bits_of(g, GRAPH_BITWISE_LEFT_SHIFT, high, 4)), lead, 2,
                     two);
}

eas_status eas_node_quantize(eas_node *w, eas_quant kind, eas_quantized *out)
{
    gbuild g = {0};
    NEED(w, EAS_ERR_VALUE);
    NEED(out, EAS_ERR_VALUE);
    if ((unsigned)kind >= NKINDS)
        return base_fail(EAS_ERR_VALUE, "eager.quantize: there is no kind %d", (int)kind);
    int lead = node_logical_rank(w) - 2;
    if (lead < 0 || lead > MOST_LEADING)
        return base_fail(EAS_ERR_VALUE,
                         "eager.quantize: shape %s is not that of a matrix, or of a stack of them",
                         rule_text(w, (char[128]){0}));
    if (!dtype_is_float((eas_dtype)w->dtype))
        return base_fail(EAS_ERR_TYPE, "eager.quantize: a matrix of floats is wanted, not of %s",
                         eas_dtype_name((eas_dtype)w->dtype));
    const eas_dim rows = node_logical_shape(w)[lead], columns = node_logical_shape(w)[lead + 1];
    if (!dim_known(rows))
        return base_fail(EAS_ERR_VALUE, "eager.quantize: the number of rows must be known, not a symbol");
    if (rows == 0)
        return base_fail(EAS_ERR_VALUE, "eager.quantize: a matrix of shape %s has no rows",
                         rule_text(w, (char[128]){0}));
    int64_t group = kinds[kind].group ? kinds[kind].group : rows, groups = (rows + group - 1) / group;
    const eas_dim three[3] = {groups, group, columns}, two[2] = {groups * group, columns};
    eas_node *scales, *zero,
        *x = with_last(&g, padded(&g, to(&g, w, EAS_F32), ROWS, groups * group - rows), lead, 3, three);
    find_scales(&g, x, kind, &scales, &zero);
    eas_node *codes = find_codes(&g, x, kind, scales, zero);
    codes = kinds[kind].bits == 8 ? with_last(&g, codes, lead, 2, two)
                                  : packed(&g, codes, lead, groups, group, columns);
    eas_node *offsets = zero ? op2(&g, GRAPH_MUL, gb1(&g, GRAPH_NEG, zero), scales) : NULL;
    *out = (eas_quantized){kind, rows, group, NULL, NULL, NULL};
    if (!g.st && codes && scales && (!zero || offsets)) {
        out->data = eas_node_retain(codes);
        out->scales = eas_node_retain(scales);
        out->offsets = offsets ? eas_node_retain(offsets) : NULL;
    }
    return ended(&g, out->data);
}

/* ---- dequantising ---- */

/* The value of nf4 codes 0 to 15: a tree of choices, a level for each bit. The highest bit chooses last:
 * below it are tables that processors look up in a register (src/gen/llvm/table.c). */
static eas_node *value_nf4(gbuild *g, eas_node *q)
{
    eas_node *level[16], *like = to(g, q, EAS_F32);
    for (int i = 0; i < 16; i++)
        level[i] = number(g, like, nf4[i]);
    for (int bit = 0, n = 8; bit < 4; bit++, n /= 2) {
        eas_node *set =
            op2(g, GRAPH_NOT_EQUAL, bits_of(g, GRAPH_BITWISE_AND, q, 1 << bit), gb_int(g, EAS_I32, 0));
        for (int i = 0; i < n; i++)
            level[i] = set && level[2 * i] && level[2 * i + 1]
                         ? gb3(g, GRAPH_WHERE, set, level[2 * i + 1], level[2 * i])
                         : NULL;
    }
    return level[0];
}

/* Codes of a byte, as f32 before scales and offsets: 0 and 1 say which half. Halves are taken apart in 32
 * bits, where the codes become floats without further moves. */
static eas_node *value_of(gbuild *g, const eas_quantized *q, eas_node *bytes, int half)
{
    if (q->kind == EAS_QUANT_INT8)
        return to(g, bytes, EAS_F32);
    eas_node *wide = to(g, bytes, EAS_I32), *code = half ? bits_of(g, GRAPH_BITWISE_RIGHT_SHIFT, wide, 4)
                                                         : bits_of(g, GRAPH_BITWISE_AND, wide, 15);
    if (q->kind == EAS_QUANT_NF4)
        return value_nf4(g, code);
    eas_node *v = to(g, code, EAS_F32);
    return q->kind == EAS_QUANT_INT4 ? op2(g, GRAPH_SUB, v, number(g, v, 8)) : v;
}

static bool fits(const eas_node *x, int lead, eas_dim rows, eas_dim columns)
{
    const eas_dim *s = node_logical_shape(x);
    return node_logical_rank(x) == lead + 2 && dim_agrees(s[lead], rows) && dim_agrees(s[lead + 1], columns);
}

static eas_status check(const char *fn, const eas_quantized *q)
{
    NEED(q, EAS_ERR_VALUE);
    NEED(q->data, EAS_ERR_VALUE);
    NEED(q->scales, EAS_ERR_VALUE);
    if ((unsigned)q->kind >= NKINDS)
        return base_fail(EAS_ERR_VALUE, "eager.%s: there is no kind %d", fn, (int)q->kind);
    const struct quant_kind *k = &kinds[q->kind];
    int lead = node_logical_rank(q->data) - 2;
    if (lead < 0 || lead > MOST_LEADING || q->rows <= 0 || q->group <= 0 || (k->bits == 4 && q->group % 2))
        return base_fail(
            EAS_ERR_VALUE,
            "eager.%s: %lld rows in groups of %lld, with data of shape %s, are no quantized matrix", fn,
            (long long)q->rows, (long long)q->group, rule_text(q->data, (char[128]){0}));
    eas_dim groups = (q->rows + q->group - 1) / q->group, columns = node_logical_shape(q->data)[lead + 1];
    eas_dtype want = k->bits == 8 ? EAS_I8 : EAS_U8;
    if (q->data->dtype != want || q->scales->dtype != EAS_F32)
        return base_fail(EAS_ERR_TYPE, "eager.%s: data of %s and scales of %s; %s has %s and f32", fn,
                         eas_dtype_name((eas_dtype)q->data->dtype),
                         eas_dtype_name((eas_dtype)q->scales->dtype), k->name, eas_dtype_name(want));
    if (!fits(q->data, lead, groups * q->group * k->bits / 8, columns) ||
        !fits(q->scales, lead, groups, columns) ||
        (q->offsets && (!fits(q->offsets, lead, groups, columns) || q->offsets->dtype != EAS_F32)))
        return base_fail(
            EAS_ERR_VALUE,
            "eager.%s: data of shape %s and scales of %s do not belong to %lld rows in groups of %lld", fn,
            rule_text(q->data, (char[128]){0}), rule_text(q->scales, (char[128]){0}), (long long)q->rows,
            (long long)q->group);
    return EAS_OK;
}

/* In f32, (lead..., rows, N). */
static eas_node *dequantized(gbuild *g, const eas_quantized *q)
{
    int lead = node_logical_rank(q->data) - 2;
    eas_dim groups = (q->rows + q->group - 1) / q->group, columns = node_logical_shape(q->data)[lead + 1];
    bool whole = kinds[q->kind].bits == 8;
    const eas_dim four[4] = {groups, 1, whole ? q->group : q->group / 2, columns},
                  one[4] = {groups, 1, 1, columns}, two[2] = {groups * q->group, columns};
    eas_node *bytes = with_last(g, q->data, lead, 4, four), *x = value_of(g, q, bytes, 0);
    if (!whole) {
        eas_node *both[2] = {x, value_of(g, q, bytes, 1)};
        x = both[0] && both[1] ? gb_apply(g, GRAPH_CONCATENATE, 2, both, 1, (int64_t[]){-3}) : NULL;
    }
    x = op2(g, GRAPH_MUL, x, with_last(g, q->scales, lead, 4, one));
    if (q->offsets)
        x = op2(g, GRAPH_ADD, x, with_last(g, q->offsets, lead, 4, one));
    x = with_last(g, x, lead, 2, two);
    return groups * q->group == q->rows ? x : part(g, x, ROWS, 0, q->rows);
}

eas_status eas_quantized_dequantize(const eas_quantized *q, eas_dtype dt, eas_node **out)
{
    gbuild g = {0};
    NEED(out, EAS_ERR_VALUE);
    eas_status st = check("dequantize", q);
    if (st)
        return st;
    if (!dtype_is_float(dt))
        return base_fail(EAS_ERR_TYPE, "eager.dequantize: to %s; a float dtype is wanted",
                         eas_dtype_name(dt));
    return handed_out(&g, to(&g, dequantized(&g, q), dt), out);
}

/* ---- products ---- */

/* Groups that one program sums up: rows of a band lie in different pages, and beyond BAND of them misses of
 * the TLB cost more than what partial sums, (bands, N) in f32, take to write and read. */
enum { BAND = 64 };
static int64_t groups_of_band(int64_t groups, int64_t rows)
{
    int64_t n = rows < BAND ? BAND / rows : 1;
    while (groups % n)
        n--;
    return n;
}

/* int4's codes are 8 above what they stand for: a step begins with -8 times the sum of its factors, one
 * number, where taking 8 off the codes would be two operations for each byte. */
static eas_node *less_8(gbuild *g, eas_node *lows, eas_node *highs)
{
    eas_node *both = reduced(g, GRAPH_REDUCE_SUM, op2(g, GRAPH_ADD, lows, highs), -2);
    if (!both)
        return NULL;
    const eas_dim last[2] = {1, 1};
    both = with_last(g, both, node_logical_rank(both) - 1, 2, last);
    return op2(g, GRAPH_MUL, both, number(g, both, -8));
}

/* Rows of bytes whose codes are summed before their scale is applied: they are of one group, so that one
 * multiplication serves all of them. */
enum { STEP = 4 };
static int64_t rows_of_step(int64_t rows)
{
    int64_t n = STEP;
    while (rows % n)
        n /= 2;
    return n;
}

/* sum plus x times y, by fma: half the instructions of a product and a sum. sum NULL: nothing yet. */
static eas_node *plus_product(gbuild *g, eas_node *sum, eas_node *x, eas_node *y)
{
    return !x || !y ? NULL : sum ? gb3(g, GRAPH_FMA, x, y, sum) : op2(g, GRAPH_MUL, x, y);
}

/* What of x belongs to the halves of bytes, so that a product takes little work for each byte. For nf4 that
 * is x itself. A byte of integers is l + 16 h; with y = x_h / 16, x_l l + x_h h = (x_l - y) l + y (l + 16 h),
 * so h need not be taken out of the byte. */
static void factors(gbuild *g, const eas_quantized *q, eas_node **lows, eas_node **highs)
{
    if (q->kind == EAS_QUANT_NF4)
        return;
    *highs = op2(g, GRAPH_MUL, *highs, number(g, *highs, 0.0625));
    *lows = op2(g, GRAPH_SUB, *lows, *highs);
}

/* sum plus one row of bytes times their factors */
static eas_node *plus_row(gbuild *g, eas_node *sum, const eas_quantized *q, eas_node *bytes, eas_node *low,
                          eas_node *high)
{
    eas_node *both =
        q->kind == EAS_QUANT_NF4 ? value_of(g, q, bytes, 1) : to(g, to(g, bytes, EAS_I32), EAS_F32);
    return plus_product(g, plus_product(g, sum, low, value_of(g, q, bytes, 0)), high, both);
}

/* One row with 4-bit codes: step rows of bytes make one term, a band of groups is summed by one kernel. x is
 * padded to whole groups. */
static eas_node *one_row_of_halves(gbuild *g, eas_node *x, const eas_quantized *q)
{
    const eas_dim columns = node_logical_shape(q->data)[1];
    const int64_t groups = (q->rows + q->group - 1) / q->group, h = q->group / 2, step = rows_of_step(h);
    const int64_t band = groups_of_band(groups, h), bands = groups / band, steps = h / step;
    const eas_dim bytes[5] = {bands, band, steps, step, columns}, scale[5] = {bands, band, 1, 1, columns},
                  halves[4] = {groups, 2, h, 1}, each[5] = {bands, band, steps, step, 1},
                  flat[2] = {bands, columns};
    eas_node *both = with_last(g, x, 0, 4, halves), *d = with_last(g, q->data, 0, 5, bytes), *sum = NULL,
             *lows = with_last(g, part(g, both, -3, 0, 1), 0, 5, each),
             *highs = with_last(g, part(g, both, -3, 1, 1), 0, 5, each);
    eas_node *low = lows, *high = highs;
    factors(g, q, &low, &high);
    eas_quantized codes = *q;
    codes.kind = q->kind == EAS_QUANT_INT4 ? EAS_QUANT_INT4_ZP : q->kind; /* as they are stored */
    if (q->kind == EAS_QUANT_INT4)
        sum = less_8(g, lows, highs);
    for (int64_t i = 0; i < step; i++) {
        eas_node *row = part(g, d, -2, i, 1);
        sum = plus_row(g, sum, &codes, row, part(g, low, -2, i, 1), part(g, high, -2, i, 1));
    }
    sum = op2(g, GRAPH_MUL, sum, with_last(g, q->scales, 0, 5, scale));
    sum = sum ? gb_apply(g, GRAPH_REDUCE_SUM, 1, &sum, 5, (int64_t[]){3, 1, 2, 3, 0}) : NULL;
    return reduced(g, GRAPH_REDUCE_SUM, with_last(g, sum, 0, 2, flat), 0);
}

/* One row with bytes, in groups or in one. */
static eas_node *one_row_of_bytes(gbuild *g, eas_node *x, const eas_quantized *q)
{
    const eas_dim columns = node_logical_shape(q->data)[1];
    const int64_t groups = (q->rows + q->group - 1) / q->group, band = groups_of_band(groups, q->group),
                  bands = groups / band;
    const eas_dim each[4] = {bands, band, q->group, 1}, bytes[4] = {bands, band, q->group, columns},
                  scale[4] = {bands, band, 1, columns}, flat[2] = {bands, columns};
    eas_node *sum =
        op2(g, GRAPH_MUL, with_last(g, x, 0, 4, each), value_of(g, q, with_last(g, q->data, 0, 4, bytes), 0));
    if (groups == 1) /* one scale for all */
        return op2(g, GRAPH_MUL,
                   reduced(g, GRAPH_REDUCE_SUM, with_last(g, sum, 0, 2, (eas_dim[]){q->group, columns}), 0),
                   with_last(g, q->scales, 0, 1, &columns));
    sum = op2(g, GRAPH_MUL, sum, with_last(g, q->scales, 0, 4, scale));
    sum = sum ? gb_apply(g, GRAPH_REDUCE_SUM, 1, &sum, 4, (int64_t[]){2, 1, 2, 0}) : NULL;
    return reduced(g, GRAPH_REDUCE_SUM, with_last(g, sum, 0, 2, flat), 0);
}

/* One row: x (K) in f32, of which the result is a sum over K. Bands of groups are summed by one kernel, bands
 * by another; offsets are a product of their own, with the sums of x over groups. */
static eas_node *one_row(gbuild *g, eas_node *x, const eas_quantized *q)
{
    const int64_t groups = (q->rows + q->group - 1) / q->group;
    const eas_dim per[2] = {groups, q->group};
    eas_node *all = padded(g, x, -1, groups * q->group - q->rows),
             *sum = kinds[q->kind].bits == 8 ? one_row_of_bytes(g, all, q) : one_row_of_halves(g, all, q);
    if (!q->offsets)
        return sum;
    eas_node *sums = reduced(g, GRAPH_REDUCE_SUM, with_last(g, all, 0, 2, per), -1);
    return op2(g, GRAPH_ADD, sum, op2(g, GRAPH_MATMUL, sums, q->offsets));
}

/* Is x one row, and the matrix one? */
static bool is_row(const eas_node *x, const eas_quantized *q)
{
    if (x->batch_dims || q->data->batch_dims || q->scales->batch_dims || q->data->rank != 2)
        return false;
    for (int i = 0; i < x->rank - 1; i++)
        if (node_shape(x)[i] != 1)
            return false;
    return true;
}

static eas_node *multiplied(gbuild *g, eas_node *x, const eas_quantized *q)
{
    eas_dtype dt = (eas_dtype)x->dtype, sum = graph_compute_dtype(dt);
    eas_node *wide = to(g, x, sum), *y;
    if (!wide)
        return NULL;
    if (is_row(x, q) && sum == EAS_F32) {
        shape_of s = {0};
        for (int i = 0; i < x->rank - 1; i++)
            push(&s, 1);
        push(&s, node_logical_shape(q->data)[1]);
        y = as_shape(g, one_row(g, as_shape(g, wide, &(shape_of){1, {1, q->rows}}), q), &s);
    } else if (q->kind == EAS_QUANT_INT8 && q->group == q->rows && node_logical_rank(q->data) == 2 &&
               !q->offsets) {
        eas_node *codes = to(g, q->data, sum),
                 *scales = to(g, with_last(g, q->scales, 0, 1, &node_logical_shape(q->data)[1]), sum);
        y = op2(g, GRAPH_MUL, op2(g, GRAPH_MATMUL, wide, codes), scales);
    } else
        y = op2(g, GRAPH_MATMUL, wide, to(g, dequantized(g, q), sum));
    return to(g, y, dt);
}

eas_status eas_quantized_matmul(eas_node *x, const eas_quantized *q, eas_node **out)
{
    gbuild g = {0};
    NEED(x, EAS_ERR_VALUE);
    NEED(out, EAS_ERR_VALUE);
    eas_status st = check("quantized_matmul", q);
    if (st)
        return st;
    if (!dtype_is_float((eas_dtype)x->dtype))
        return base_fail(EAS_ERR_TYPE, "eager.quantized_matmul: x is of %s; a float dtype is wanted",
                         eas_dtype_name((eas_dtype)x->dtype));
    if (node_logical_rank(x) < 1 || !dim_agrees(node_shape(x)[x->rank - 1], q->rows)) {
        eas_dim columns = node_shape(q->data)[q->data->rank - 1];
        return base_fail(EAS_ERR_VALUE, "eager.quantized_matmul: shapes %s and %s do not multiply",
                         rule_text(x, (char[128]){0}),
                         shape_text((char[128]){0}, 128, 2, (eas_dim[]){q->rows, columns}));
    }
    return handed_out(&g, multiplied(&g, x, q), out);
}
