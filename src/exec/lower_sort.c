/* lower_sort.c: sort and argsort along an axis. A program sorts one row; equal elements keep their order, NaN
 * comes last. A result that is shorter than the row has its first elements. On the cpu, rows of many numbers
 * are sorted by a function of the host's where there are vectors for it (sort_by_host); kernels do the rest:
 *
 * Elements become unsigned keys of the same order. Many rows of up to a thousand elements: a network
 * (by_network), with rows as lanes. Other short rows: each element counts those that come before it, which is
 * its place. Longer ones: by the digits of the keys, the lowest first: count, add up, move, between two
 * arrays of scratch memory. The first few of a long row: top-k by repeated selection of the minimum.
 */
#include "exec.h"

#include "../native/native.h"

#include <math.h>

enum { LANES = 1024, SHORT = 128, WIDE_ROW = 1 << 15, ABREAST = 64, NETWORK = 1024, TILE = 16 };
enum { KEYS_A, KEYS_B, COUNTS, INDEX_A, INDEX_B };

typedef struct sorting {
    lowering *w;
    const pnode *p;
    int axis;
    bool by_index; /* argsort */
    eas_dtype from, key;
    int bits; /* of a digit */
    eas_value n, row; /* length of the row; number of its first element in scratch memory */
    lindex at[MAX_DIMS];
} sorting;

static eas_value op1(lower *l, const char *name, eas_value x)
{
    return eas_builder_apply(l->b, eas_op_find(name), x, 0, 0);
}
static eas_value pick(lower *l, eas_value c, eas_value x, eas_value y)
{
    return eas_builder_apply(l->b, eas_op_find("where"), c, x, y);
}

static bool is_arg(const pnode *p) { return !strcmp(graph_rows[p->op].name, "argsort"); }
static eas_dtype key_type(eas_dtype dt)
{
    static const eas_dtype of[9] = {[1] = EAS_U8, [2] = EAS_U16, [4] = EAS_U32, [8] = EAS_U64};
    return of[eas_dtype_size(dt)];
}
static eas_dim length(const pgraph *g, const pnode *p) { return pass_at(g, p->in[0])->shape[p->words[0]]; }
static bool short_row(const pgraph *g, const pnode *p)
{
    return dim_known(length(g, p)) && length(g, p) <= SHORT;
}
static bool first_few(const pgraph *g, const pnode *p) { return p->shape[p->words[0]] != length(g, p); }

static int64_t rows_abreast(const pgraph *g, const pnode *p);
static eas_dim row_count(const pnode *p);
static bool wants_network(const pgraph *g, const pnode *p);
static int digit_bits(const pgraph *g, const pnode *p);
static int digit_count(int bits, eas_dtype key);
static eas_dtype count_type(const pgraph *g, const pnode *p);

void sort_scratch(const pgraph *g, const pnode *p, VEC_USE *out, bool *oom)
{
    eas_dim all = shape_count(p->rank, pass_at(g, p->in[0])->shape), rows = 1;
    if (wants_network(g, p)) {
        use turned_rows = {.what = USE_SCRATCH,
                           .dim = (ceil_dim(row_count(p), rows_abreast(g, p)) * rows_abreast(g, p)) *
                                  ceil_dim(length(g, p), TILE) * TILE,
                           .dtype = (uint8_t)key_type((eas_dtype)pass_at(g, p->in[0])->dtype)};
        *oom |= !vec_push(out, turned_rows);
        return;
    }
    if (short_row(g, p))
        return;
    for (int d = 0; d < p->rank; d++)
        if (d != p->words[0])
            eas_dim_apply(EAS_DIM_MUL, rows, p->shape[d], &rows);
    eas_dtype key = key_type((eas_dtype)pass_at(g, p->in[0])->dtype);
    eas_dim_apply(EAS_DIM_MUL, rows, digit_count(digit_bits(g, p), key) << digit_bits(g, p), &rows);
    use list[5] = {{.what = USE_SCRATCH, .dim = all, .dtype = (uint8_t)key},
                   {.what = USE_SCRATCH, .dim = all, .dtype = (uint8_t)key},
                   {.what = USE_SCRATCH, .dim = rows, .dtype = (uint8_t)count_type(g, p)},
                   {.what = USE_SCRATCH, .dim = all, .dtype = EAS_I64},
                   {.what = USE_SCRATCH, .dim = all, .dtype = EAS_I64}};
    for (int i = 0; i < (first_few(g, p) ? 1 : is_arg(p) ? 5 : 3); i++)
        *oom |= !vec_push(out, list[i]);
}

bool sort_by_host(const fusion *f, const pnode *p)
{
    enum { LEAST = 65 };
    if (!f->sort_bytes || p->kind != KIND_SORT || first_few(f->g, p) || p->words[0] != p->rank - 1)
        return false;
    const eas_dim n = length(f->g, p);
    const eas_dtype dt = (eas_dtype)pass_at(f->g, p->in[0])->dtype;
    return dim_known(n) && n >= LEAST && (!is_arg(p) || n <= UINT32_MAX) &&
           native_sorts(eas_dtype_kind(dt), (int)eas_dtype_size(dt), is_arg(p), f->sort_bytes);
}

/* ---- keys ---- */

static eas_value top_bit(sorting *s)
{
    return eas_builder_const_typed(s->w->l.b, s->key, 0, (int64_t)((uint64_t)1 << (dtype_bits(s->key) - 1)));
}

static eas_value to_key(sorting *s, eas_value v)
{
    lower *l = &s->w->l;
    char kind = eas_dtype_kind(s->from);
    eas_value k;
    if (kind == 'f') {
        eas_value nan = op1(l, "isnan", v);
        if (s->by_index) /* both zeros are equal */
            v = low_bin(l, "add", v, eas_builder_const_typed(l->b, s->from, 0, 0));
        k = eas_builder_bitcast(l->b, v, s->key);
        eas_value below = low_bin(l, "ge", k, top_bit(s));
        k = pick(l, below, op1(l, "not", k), low_bin(l, "or", k, top_bit(s)));
        k = pick(l, nan, eas_builder_const_typed(l->b, s->key, 0, -1), k);
    } else {
        k = eas_builder_cast(l->b, v, s->key);
        k = kind == 'i' ? low_bin(l, "xor", k, top_bit(s)) : k;
    }
    return s->p->words[1] ? op1(l, "not", k) : k;
}

static eas_value from_key(sorting *s, eas_value k)
{
    lower *l = &s->w->l;
    char kind = eas_dtype_kind(s->from);
    if (s->p->words[1])
        k = op1(l, "not", k);
    if (kind == 'f') {
        eas_value above = low_bin(l, "ge", k, top_bit(s));
        return eas_builder_bitcast(l->b, pick(l, above, low_bin(l, "xor", k, top_bit(s)), op1(l, "not", k)),
                                   s->from);
    }
    return eas_builder_cast(l->b, kind == 'i' ? low_bin(l, "xor", k, top_bit(s)) : k, s->from);
}

/* ---- elements of the row ---- */

static eas_value input(sorting *s, eas_value i, eas_value ok)
{
    s->at[s->axis] = (lindex){i, ok};
    return low_value(&s->w->l, s->p->in[0], s->at, NULL);
}

static void output(sorting *s, eas_value i, eas_value v, eas_value ok)
{
    eas_value all;
    s->at[s->axis] = (lindex){i, ok};
    eas_value off = low_offset(&s->w->l, s->p->rank, s->p->shape, s->at, &all);
    eas_builder_store(s->w->l.b, s->w->out[0], off, v, ok);
}

static eas_value there(sorting *s, eas_value i) { return low_bin(&s->w->l, "add", s->row, i); }
static eas_value read(sorting *s, int which, eas_value i, eas_value ok)
{
    return eas_builder_load(s->w->l.b, s->w->scratch[which], there(s, i), ok, 0);
}
static void write(sorting *s, int which, eas_value i, eas_value v, eas_value ok)
{
    eas_builder_store(s->w->l.b, s->w->scratch[which], there(s, i), v, ok);
}

/* A loop over the row in blocks of lanes. */
static uint32_t blocks(sorting *s, eas_value *i, eas_value *ok)
{
    lower *l = &s->w->l;
    eas_value iv;
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), s->n, low_int(l, LANES), 0, NULL, &iv, NULL);
    *i = low_bin(l, "add", iv, low_lanes(l, 0, LANES));
    *ok = low_bin(l, "lt", *i, s->n);
    return mark;
}

static void end_loop(sorting *s, uint32_t mark)
{
    eas_builder_loop_end(s->w->l.b, 0, NULL, NULL);
    low_forget(&s->w->l, mark);
}

/* The place as it is; so it needs no checks. */
static eas_value in_row(sorting *s, eas_value place)
{
    lower *l = &s->w->l;
    return low_bin(l, "min", low_bin(l, "max", place, low_int(l, 0)), low_bin(l, "sub", s->n, low_int(l, 1)));
}

/* ---- short rows ---- */

static void by_counting(sorting *s)
{
    lower *l = &s->w->l;
    int64_t n = length(l->g, s->p), few = s->p->shape[s->axis];
    if (!few)
        return;
    eas_value i = low_lanes(l, 0, n), v = eas_builder_broadcast(l->b, input(s, i, 0), 1, &n),
              k = to_key(s, v), iv, now, place;
    eas_value none = eas_builder_broadcast(l->b, low_int(l, 0), 1, &n);
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), s->n, low_int(l, 1), 1, &none, &iv, &now);
    eas_value other = to_key(s, input(s, iv, 0));
    eas_value before = low_bin(l, "or", low_bin(l, "lt", other, k),
                               low_bin(l, "and", low_bin(l, "eq", other, k), low_bin(l, "lt", iv, i)));
    eas_value next = low_bin(l, "add", now, eas_builder_cast(l->b, before, EAS_I64));
    eas_builder_loop_end(l->b, 1, &next, &place);
    low_forget(l, mark);
    place = in_row(s, place);
    output(s, place, s->by_index ? i : v, few < n ? low_bin(l, "lt", place, low_int(l, few)) : 0);
}

/* ---- many rows at a time ----
 *
 * A bitonic network whose comparisons all go the same way: for k = 2, 4, ... a block of k elements, two
 * sorted halves, is merged by comparing element i with its mirror image i ^ (k - 1), and then with the one
 * k/4, k/8, ... 1 further on. Which elements are compared does not depend on the data, so a program does it
 * for as many rows as a few vectors have lanes: element i of all its rows lies together in scratch memory
 * (rows are turned on the way in and out), and a comparison is a minimum and a maximum. Elements after the
 * row's end would be larger than all others: comparisons with them change nothing and are left out.
 */
static int64_t rows_abreast(const pgraph *g, const pnode *p)
{
    const int64_t key = (int64_t)eas_dtype_size(key_type((eas_dtype)pass_at(g, p->in[0])->dtype));
    return key > 4 ? 16 : 32; /* eight registers of AVX2 for both sides of a comparison */
}

static eas_dim row_count(const pnode *p)
{
    eas_dim n = 1;
    for (int d = 0; d < p->rank; d++)
        if (d != p->words[0])
            eas_dim_apply(EAS_DIM_MUL, n, p->shape[d], &n);
    return n;
}

static bool wants_network(const pgraph *g, const pnode *p)
{
    const eas_dim rows = row_count(p), n = length(g, p);
    return !is_arg(p) && !first_few(g, p) && dim_known(n) && n >= 8 && n <= NETWORK && dim_known(rows) &&
           rows >= 16;
}

static eas_value turned(lower *l, eas_value v) { return eas_builder_trans(l->b, v, (int[]){1, 0, 2, 3}); }

/* A loop over the row in tiles of TILE elements: i as columns, for the rows' own memory, and as rows, for
 * scratch memory. */
static uint32_t tiles(sorting *s, int64_t rows, lindex *i, eas_value *place)
{
    lower *l = &s->w->l;
    eas_value iv;
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), s->n, low_int(l, TILE), 0, NULL, &iv, NULL);
    *i = low_along(l, iv, 1, TILE, length(l->g, s->p));
    eas_value first = low_bin(l, "add", s->row, low_bin(l, "mul", iv, low_int(l, rows)));
    *place = low_bin(
        l, "add", first,
        low_bin(l, "add", low_bin(l, "mul", low_lanes(l, 0, TILE), low_int(l, rows)), low_lanes(l, 1, rows)));
    return mark;
}

static void tiles_in(sorting *s, int64_t rows)
{
    lower *l = &s->w->l;
    lindex i;
    eas_value place;
    uint32_t mark = tiles(s, rows, &i, &place);
    const int64_t shape[] = {rows, TILE};
    s->at[s->axis] = i;
    eas_value v = eas_builder_broadcast(l->b, low_value(l, s->p->in[0], s->at, NULL), 2, shape);
    eas_builder_store(l->b, s->w->scratch[KEYS_A], place, turned(l, to_key(s, v)), 0);
    end_loop(s, mark);
}

static void tiles_out(sorting *s, int64_t rows)
{
    lower *l = &s->w->l;
    lindex i;
    eas_value place, ok;
    uint32_t mark = tiles(s, rows, &i, &place);
    eas_value v = from_key(s, turned(l, eas_builder_load(l->b, s->w->scratch[KEYS_A], place, 0, 0)));
    s->at[s->axis] = i;
    eas_value off = low_offset(l, s->p->rank, s->p->shape, s->at, &ok);
    eas_builder_store(l->b, s->w->out[0], off, v, ok);
    end_loop(s, mark);
}

/* Elements i and j of all rows, in order. */
static void compare(sorting *s, int64_t rows, eas_value i, eas_value j)
{
    lower *l = &s->w->l;
    const int64_t n = length(l->g, s->p);
    const bool whole = (n & (n - 1)) == 0;
    if (!whole)
        eas_builder_if_begin(l->b, low_bin(l, "lt", j, s->n));
    eas_value lane = eas_builder_arange(l->b, 0, rows), of[2] = {i, j}, v[2];
    for (int k = 0; k < 2; k++) {
        of[k] = low_bin(
            l, "add", low_bin(l, "add", s->row, low_bin(l, "mul", in_row(s, of[k]), low_int(l, rows))), lane);
        v[k] = eas_builder_load(l->b, s->w->scratch[KEYS_A], of[k], 0, 0);
    }
    eas_builder_store(l->b, s->w->scratch[KEYS_A], of[0], low_bin(l, "min", v[0], v[1]), 0);
    eas_builder_store(l->b, s->w->scratch[KEYS_A], of[1], low_bin(l, "max", v[0], v[1]), 0);
    if (!whole)
        eas_builder_if_end(l->b, 0, NULL, NULL);
}

static eas_value begin_loop(lower *l, eas_value from, eas_value to)
{
    eas_value iv;
    eas_builder_loop_begin(l->b, from, to, low_int(l, 1), 0, NULL, &iv, NULL);
    return iv;
}

static void by_network(sorting *s)
{
    lower *l = &s->w->l;
    const int64_t rows = rows_abreast(l->g, s->p), n = length(l->g, s->p);
    int levels = 0;
    while ((int64_t)1 << levels < n)
        levels++;
    eas_value one = low_int(l, 1), pairs = low_int(l, (int64_t)1 << (levels - 1));
    tiles_in(s, rows);
    eas_value level = begin_loop(l, one, low_int(l, levels + 1)), k = low_bin(l, "shl", one, level);
    eas_value t = begin_loop(l, low_int(l, 0), pairs), below = low_bin(l, "sub", level, one),
              half = low_bin(l, "shl", one, below);
    eas_value in = low_bin(l, "and", t, low_bin(l, "sub", half, one)),
              i = low_bin(l, "add", low_bin(l, "shl", low_bin(l, "shr", t, below), level), in);
    compare(s, rows, i, low_bin(l, "xor", i, low_bin(l, "sub", k, one)));
    eas_builder_loop_end(l->b, 0, NULL, NULL);
    eas_value step = begin_loop(l, one, level), j = low_bin(l, "shr", k, low_bin(l, "add", step, one));
    t = begin_loop(l, low_int(l, 0), pairs);
    in = low_bin(l, "and", t, low_bin(l, "sub", j, one));
    i = low_bin(l, "add", low_bin(l, "shl", low_bin(l, "sub", t, in), one), in);
    compare(s, rows, i, low_bin(l, "add", i, j));
    for (int d = 0; d < 3; d++)
        eas_builder_loop_end(l->b, 0, NULL, NULL);
    tiles_out(s, rows);
}

/* ---- longer ones ---- */

static void load_keys(sorting *s)
{
    eas_value i, ok;
    uint32_t mark = blocks(s, &i, &ok);
    write(s, KEYS_A, i, to_key(s, input(s, i, ok)), ok);
    if (s->by_index && !first_few(s->w->l.g, s->p))
        write(s, INDEX_A, i, i, ok);
    end_loop(s, mark);
}

/* Digits of 11 bits for long rows, of 8 for others: a pass over a row of keys is made for each digit that a
 * key has digits, but the counts must be made anew for each row, and stay in the first cache. */
static int digit_bits(const pgraph *g, const pnode *p)
{
    return dim_known(length(g, p)) && length(g, p) < WIDE_ROW ? 8 : 11;
}
static int digit_count(int bits, eas_dtype key) { return (dtype_bits(key) + bits - 1) / bits; }
static eas_dtype count_type(const pgraph *g, const pnode *p)
{
    return dim_known(length(g, p)) && length(g, p) < INT32_MAX ? EAS_I32 : EAS_I64;
}

static eas_value counts_at(sorting *s, int digit, eas_value value)
{
    lower *l = &s->w->l;
    const int64_t each = (int64_t)1 << s->bits, all = each * digit_count(s->bits, s->key);
    eas_value row = low_bin(l, "mul", eas_builder_program_id(l->b, 0), low_int(l, all));
    return low_bin(l, "add", digit ? low_bin(l, "add", row, low_int(l, digit * each)) : row, value);
}

static eas_value digit_of(sorting *s, eas_value key, int digit)
{
    lower *l = &s->w->l;
    const int from = digit * s->bits,
              width = dtype_bits(s->key) - from < s->bits ? dtype_bits(s->key) - from : s->bits;
    eas_value d = from ? low_bin(l, "shr", key, eas_builder_const_typed(l->b, s->key, 0, from)) : key;
    return eas_builder_cast(
        l->b,
        dtype_bits(s->key) == width
            ? d
            : low_bin(l, "and", d, eas_builder_const_typed(l->b, s->key, 0, ((int64_t)1 << width) - 1)),
        EAS_I64);
}

static eas_value one_by_one(sorting *s)
{
    eas_value iv;
    eas_builder_loop_begin(s->w->l.b, low_int(&s->w->l, 0), s->n, low_int(&s->w->l, 1), 0, NULL, &iv, NULL);
    return iv;
}

/* The count of a digit's value, which is one more afterwards. */
static eas_value count_up(sorting *s, int digit, eas_value value)
{
    lower *l = &s->w->l;
    eas_value at = counts_at(s, digit, value), c = eas_builder_load(l->b, s->w->scratch[COUNTS], at, 0, 0);
    eas_builder_store(l->b, s->w->scratch[COUNTS], at,
                      low_bin(l, "add", c, eas_builder_const_typed(l->b, count_type(l->g, s->p), 0, 1)), 0);
    return eas_builder_cast(l->b, c, EAS_I64);
}

/* All digits in one go through the keys; then counts become the places of the first key with each value. */
static void count_digits(sorting *s)
{
    lower *l = &s->w->l;
    const int64_t each = (int64_t)1 << s->bits;
    const int digits = digit_count(s->bits, s->key);
    eas_value zero =
        eas_builder_broadcast(l->b, eas_builder_const_typed(l->b, count_type(l->g, s->p), 0, 0), 1, &each);
    for (int d = 0; d < digits; d++)
        eas_builder_store(l->b, s->w->scratch[COUNTS], counts_at(s, d, low_lanes(l, 0, each)), zero, 0);
    eas_value i = one_by_one(s), key = read(s, KEYS_A, i, 0);
    for (int d = 0; d < digits; d++)
        count_up(s, d, digit_of(s, key, d));
    eas_builder_loop_end(l->b, 0, NULL, NULL);
}

static void move(sorting *s, int digit, int from, int to)
{
    lower *l = &s->w->l;
    const int64_t each = (int64_t)1 << s->bits;
    eas_value every = counts_at(s, digit, low_lanes(l, 0, each)),
              c = eas_builder_load(l->b, s->w->scratch[COUNTS], every, 0, 0);
    eas_builder_store(l->b, s->w->scratch[COUNTS], every,
                      low_bin(l, "sub", eas_builder_scan(l->b, eas_op_find("add"), c, 0), c), 0);
    eas_value i = one_by_one(s), key = read(s, KEYS_A + from, i, 0),
              place = in_row(s, count_up(s, digit, digit_of(s, key, digit)));
    write(s, KEYS_A + to, place, key, 0);
    if (s->by_index)
        write(s, INDEX_A + to, place, read(s, INDEX_A + from, i, 0), 0);
    eas_builder_loop_end(l->b, 0, NULL, NULL);
}

/* A pass for a digit that is the same in all keys: their order does not change. */
static void copy(sorting *s, int from, int to)
{
    eas_value i, ok;
    uint32_t mark = blocks(s, &i, &ok);
    write(s, KEYS_A + to, i, read(s, KEYS_A + from, i, ok), ok);
    if (s->by_index)
        write(s, INDEX_A + to, i, read(s, INDEX_A + from, i, ok), ok);
    end_loop(s, mark);
}

static void by_digit(sorting *s, int digit, int from, int to)
{
    lower *l = &s->w->l;
    eas_value first = in_row(s, low_int(l, 0)), value = digit_of(s, read(s, KEYS_A, first, 0), digit);
    eas_value same = eas_builder_cast(
        l->b, eas_builder_load(l->b, s->w->scratch[COUNTS], counts_at(s, digit, value), 0, 0), EAS_I64);
    eas_builder_if_begin(l->b, low_bin(l, "eq", same, s->n));
    copy(s, from, to);
    eas_builder_if_else(l->b, 0, NULL);
    move(s, digit, from, to);
    eas_builder_if_end(l->b, 0, NULL, NULL);
}

static void by_digits(sorting *s)
{
    lower *l = &s->w->l;
    int from = 0;
    eas_value i, ok;
    s->bits = digit_bits(l->g, s->p);
    const int digits = digit_count(s->bits, s->key);
    eas_builder_if_begin(l->b, low_bin(l, "gt", s->n, low_int(l, 0)));
    load_keys(s);
    count_digits(s);
    for (int d = 0; d < digits; d++, from ^= 1)
        by_digit(s, d, from, from ^ 1);
    uint32_t mark = blocks(s, &i, &ok);
    output(s, i, s->by_index ? read(s, INDEX_A + from, i, ok) : from_key(s, read(s, KEYS_A + from, i, ok)),
           ok);
    end_loop(s, mark);
    eas_builder_if_end(l->b, 0, NULL, NULL);
}

/* ---- the first few ---- */

/* The smallest key of the row that comes after (last, at) in the order of keys and places, and its place.
 * Every lane keeps the smallest of the keys it meets; a reduction over the lanes gives the result. */
static void next_least(sorting *s, eas_value last, eas_value at, eas_value *least, eas_value *where)
{
    lower *l = &s->w->l;
    int64_t n = ABREAST;
    eas_value none = eas_builder_const_typed(l->b, EAS_I32, 0, INT32_MAX), iv, now[2], end[2];
    eas_value init[2] = {eas_builder_broadcast(l->b, eas_builder_const_typed(l->b, s->key, 0, -1), 1, &n),
                         eas_builder_broadcast(l->b, none, 1, &n)};
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), s->n, low_int(l, ABREAST), 2, init, &iv, now);
    eas_value i = low_bin(l, "add", iv, low_lanes(l, 0, ABREAST)), ok = low_bin(l, "lt", i, s->n),
              k = read(s, KEYS_A, i, ok);
    eas_value here = low_bin(l, "add", eas_builder_cast(l->b, iv, EAS_I32),
                             eas_builder_cast(l->b, low_lanes(l, 0, ABREAST), EAS_I32));
    eas_value after = low_bin(l, "or", low_bin(l, "gt", k, last),
                              low_bin(l, "and", low_bin(l, "eq", k, last), low_bin(l, "gt", here, at)));
    eas_value less = low_bin(l, "or", low_bin(l, "lt", k, now[0]), low_bin(l, "eq", now[1], none));
    eas_value take = low_bin(l, "and", ok, low_bin(l, "and", after, less));
    eas_builder_loop_end(l->b, 2, (eas_value[]){pick(l, take, k, now[0]), pick(l, take, here, now[1])}, end);
    low_forget(l, mark);
    *least = eas_builder_reduce(l->b, eas_op_find("min"), end[0], 0);
    *where = eas_builder_reduce(l->b, eas_op_find("min"),
                                pick(l, low_bin(l, "eq", end[0], *least), end[1], none), 0);
}

static void by_choosing(sorting *s)
{
    lower *l = &s->w->l;
    eas_value iv, now[2], next[2], end[2],
        start[2] = {eas_builder_const_typed(l->b, s->key, 0, 0),
                    eas_builder_const_typed(l->b, EAS_I32, 0, -1)};
    load_keys(s);
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_int(l, s->p->shape[s->axis]), low_int(l, 1), 2, start,
                           &iv, now);
    next_least(s, now[0], now[1], &next[0], &next[1]);
    output(s, iv, s->by_index ? eas_builder_cast(l->b, next[1], EAS_I64) : from_key(s, next[0]), 0);
    eas_builder_loop_end(l->b, 2, next, end);
    low_forget(l, mark);
}

/* Rows are lanes along block axis 0. */
static void many_rows(sorting *s)
{
    lower *l = &s->w->l;
    const int64_t rows = rows_abreast(l->g, s->p), all = row_count(s->p);
    eas_value pid = eas_builder_program_id(l->b, 0);
    l->nblock = 2;
    lindex r = low_along(l, low_bin(l, "mul", pid, low_int(l, rows)), 0, rows, all);
    low_spread_from(l, r.v, s->p->rank, s->p->shape, 1u << s->axis, s->at);
    for (int d = 0; d < s->p->rank; d++)
        if (d != s->axis && s->at[d].v)
            s->at[d].ok = r.ok;
    s->row = low_bin(l, "mul", pid, low_int(l, rows * ceil_dim(length(l->g, s->p), TILE) * TILE));
    s->w->use->grid[0] = ceil_dim(all, rows);
    by_network(s);
}

void lower_sort(lowering *w)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core);
    eas_dtype from = (eas_dtype)pass_at(l->g, p->in[0])->dtype;
    sorting s = {
        .w = w, .p = p, .axis = (int)p->words[0], .by_index = is_arg(p), .from = from, .key = key_type(from)};
    eas_dim *grid = w->use->grid;
    l->nblock = 1;
    grid[1] = grid[2] = 1;
    s.n = low_dim(l, length(l->g, p));
    if (wants_network(l->g, p)) {
        many_rows(&s);
        return;
    }
    grid[0] = low_spread(l, 0, p->rank, p->shape, 1u << s.axis, s.at);
    s.row = low_bin(l, "mul", eas_builder_program_id(l->b, 0), s.n);
    if (short_row(l->g, p))
        by_counting(&s);
    else if (first_few(l->g, p))
        by_choosing(&s);
    else
        by_digits(&s);
}
