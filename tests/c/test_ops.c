/* Values of operations, on little data, against what NumPy and torch give (tests/c/graph_words.h says how the
 * tables read; data follow a colon, results have them too). Each row runs on every device whose memory the
 * host reaches, and once more with inputs that do not lie in C order; or on the devices that are named
 * (test_ops opencl mps).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "graph_words.h"

enum { MAX_ELEMENTS = 256 };

static double read_item(eas_dtype dt, const void *data, int64_t i)
{
    switch (dt) {
    case EAS_BOOL:
    case EAS_U8: return ((const uint8_t *)data)[i];
    case EAS_I8: return ((const int8_t *)data)[i];
    case EAS_I32: return ((const int32_t *)data)[i];
    case EAS_I64: return (double)((const int64_t *)data)[i];
    case EAS_U64: return (double)((const uint64_t *)data)[i];
    case EAS_F32: return ((const float *)data)[i];
    default: fail_msg("no items of %s here", eas_dtype_name(dt)); return 0;
    }
}

static void write_item(eas_dtype dt, void *data, int64_t i, double v)
{
    switch (dt) {
    case EAS_BOOL:
    case EAS_U8: ((uint8_t *)data)[i] = (uint8_t)v; break;
    case EAS_I8: ((int8_t *)data)[i] = (int8_t)v; break;
    case EAS_I32: ((int32_t *)data)[i] = (int32_t)v; break;
    case EAS_I64: ((int64_t *)data)[i] = (int64_t)v; break;
    case EAS_F32: ((float *)data)[i] = (float)v; break;
    default: fail_msg("no items of %s here", eas_dtype_name(dt));
    }
}

typedef struct typed {
    eas_dtype dtype;
    int rank, batch_dims;
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t n;
    double item[MAX_ELEMENTS];
} typed;

/* "f32 2|3: 1 2 3 4 5 6" */
static void parse_data(const char **p, typed *t)
{
    t->rank = parse_type(p, &t->dtype, t->shape, &t->batch_dims);
    t->n = dim_product(t->rank, t->shape);
    assert_true(t->n <= MAX_ELEMENTS && **p == ':');
    ++*p;
    for (int64_t i = 0; i < t->n; i++)
        t->item[i] = strtod(*p, (char **)p);
}

/* In C order, or each axis backwards. */
static eas_node *node_of(eas_device *d, const typed *t, bool backwards)
{
    eas_buffer *buf;
    eas_node *x, *y;
    eas_device *host;
    int64_t strides[GRAPH_MAX_RANK], dense = 1, data[MAX_ELEMENTS];
    size_t bytes = eas_dtype_size(t->dtype) * (size_t)(t->n ? t->n : 1);
    assert_int_equal(eas_device_get("cpu", &host), EAS_OK);
    assert_int_equal(eas_buffer_new(d, bytes, &buf), EAS_OK);
    for (int64_t i = 0; i < t->n; i++)
        write_item(t->dtype, data, backwards ? t->n - 1 - i : i, t->item[i]);
    assert_int_equal(eas_device_copy(d, eas_buffer_address(buf), host, data, bytes, NULL), EAS_OK);
    for (int i = t->rank - 1; i >= 0; i--) {
        strides[i] = backwards ? -dense : dense;
        dense *= t->shape[i];
    }
    assert_int_equal(
        eas_node_from_buffer(buf, t->dtype, t->rank, t->shape, backwards && t->n ? t->n - 1 : 0, strides, &x),
        EAS_OK);
    eas_buffer_release(buf);
    assert_int_equal(eas_node_apply(GRAPH_ALIAS, 1, &x, 1, (int64_t[]){t->batch_dims}, &y), EAS_OK);
    eas_node_release(x);
    return y;
}

static int inputs(eas_device *d, const char *p, bool backwards, eas_node **out)
{
    int n = 0;
    while (*p) {
        if (*p == '#') {
            p++;
            out[n++] = parse_number(&p);
        } else {
            typed t;
            parse_data(&p, &t);
            out[n++] = node_of(d, &t, backwards);
        }
        while (*p == ';' || isspace((unsigned char)*p))
            p++;
    }
    return n;
}

static void compare(const row *r, eas_node *got, const char *where)
{
    typed want;
    const char *p = r->out;
    int64_t offset, strides[GRAPH_MAX_RANK];
    parse_data(&p, &want);
    char is[256], should[256];
    describe(got, is, sizeof is);
    snprintf(should, sizeof should, "%.*s", (int)strcspn(r->out, ":"), r->out);
    if (strcmp(is, should))
        fail_msg("%s(%s; %s) is %s, not %s", r->op, r->in, r->attr, is, should);
    eas_buffer *buf = eas_node_buffer(got, &offset, strides);
    eas_device *host;
    void *data = malloc(eas_buffer_size(buf) + 1);
    assert_int_equal(eas_device_get("cpu", &host), EAS_OK);
    if (want.n)
        assert_int_equal(eas_device_copy(host, data, eas_buffer_device(buf), eas_buffer_address(buf),
                                         eas_buffer_size(buf), NULL),
                         EAS_OK);
    int64_t at[GRAPH_MAX_RANK] = {0};
    for (int64_t i = 0; i < want.n; i++) {
        int64_t off = offset, rest = i;
        for (int k = want.rank - 1; k >= 0; k--) {
            at[k] = rest % want.shape[k];
            rest /= want.shape[k];
            off += at[k] * strides[k];
        }
        double v = read_item(want.dtype, data, off), w = want.item[i];
        bool same = v == w || (isnan(v) && isnan(w)) ||
                    (dtype_is_float(want.dtype) && fabs(v - w) <= 1e-5 * (1 + fabs(w)));
        if (!same)
            fail_msg("%s(%s; %s) on %s: element %d is %.9g, not %.9g", r->op, r->in, r->attr, where, (int)i,
                     v, w);
    }
    free(data);
}

static void run(eas_device *d, const row *r, bool backwards)
{
    eas_node *in[8], *out;
    int64_t attr[32];
    int op = eas_tensor_op_find(r->op), n = inputs(d, r->in, backwards, in), m = parse_attr(r->attr, attr);
    if (op < 0)
        fail_msg("no operation '%s'", r->op);
    if (eas_node_apply((eas_tensor_op)op, n, in, m, attr, &out) || eas_nodes_realize(1, &out, d, NULL))
        fail_msg("%s(%s; %s) on %s: %s", r->op, r->in, r->attr, eas_device_name(d), eas_error_message());
    compare(r, out, eas_device_name(d));
    eas_node_release(out);
    for (int i = 0; i < n; i++)
        eas_node_release(in[i]);
}

static char **named; /* the devices to take, if some are named */

static bool is_wanted(const eas_device *d)
{
    if (!named[0])
        return !eas_device_unavailable(d) && eas_device_has_host_memory(d);
    for (char **p = named; *p; p++)
        if (!strcmp(*p, eas_device_name(d)))
            return true;
    return false;
}

static void run_all(const row *rows, size_t n)
{
    for (int k = 0; k < eas_device_count(); k++) {
        eas_device *d = eas_device_at(k);
        if (!is_wanted(d))
            continue;
        for (size_t i = 0; i < n; i++) {
            run(d, &rows[i], false);
            if (!named[0])
                run(d, &rows[i], true);
        }
    }
}

static void views(void **state)
{
    (void)state;
    static const row rows[] = {
        {"reshape", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[3,-1]", "f32 3,2: 4 1 1.5 4 0.5 2.5"},
        {"reshape",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "[4,3]",
         "f32 2|4,3: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0"},
        {"flatten",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "0 1",
         "f32 6,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0"},
        {"squeeze", "f32 1,3: 4 1 1.5", "[0]", "f32 3: 4 1 1.5"},
        {"unsqueeze", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1]", "f32 2,1,3: 4 1 1.5 4 0.5 2.5"},
        {"permute",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "[2,0,1]",
         "f32 4,2,3: 3 -2 0 -3.5 -1.5 4.5 -2.5 3.5 3 -0.5 -2 -0.5 -4 4 -3.5 3 2 0 -2 -4.5 3 -2 -2.5 0"},
        {"swap_axes",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "0 1",
         "f32 2|4,3: 3 -2 0 -2.5 3.5 3 -4 4 -3.5 -2 -4.5 3 -3.5 -1.5 4.5 -0.5 -2 -0.5 3 2 0 -2 -2.5 0"},
        {"matrix_transpose",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "",
         "f32 2,4,3: 3 -2 0 -2.5 3.5 3 -4 4 -3.5 -2 -4.5 3 -3.5 -1.5 4.5 -0.5 -2 -0.5 3 2 0 -2 -2.5 0"},
        {"moveaxis",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "[0] [-1]",
         "f32 3,4,2: 3 -3.5 -2.5 -0.5 -4 3 -2 -2 -2 -1.5 3.5 -2 4 2 -4.5 -2.5 0 4.5 3 -0.5 -3.5 0 3 0"},
        {"broadcast_to", "f32 2,1: 4 4", "[2,3]", "f32 2,3: 4 4 4 4 4 4"},
        {"broadcast_to", "f32 2|3: 4 1 1.5 4 0.5 2.5", "[2,3]",
         "f32 2|2,3: 4 1 1.5 4 1 1.5 4 0.5 2.5 4 0.5 2.5"},
        {"slice",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "[_,2,1] [_,_,-1] [-1,-2,_]", "f32 2,2,2: -0.5 0 -0.5 3 3 -3.5 -2.5 -4"},
        {"slice_tensor",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "[1,0,2] [1,2,2]", "f32 1,2,2: 3 -2 2 -2.5"},
        {"slice_steps", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[0,2] [2,2] [1,-2]", "f32 2,2: 1.5 4 2.5 4"},
        {"flip", "f32 2,3: 4 1 1.5 4 0.5 2.5", "none", "f32 2,3: 2.5 0.5 4 1.5 1 4"},
        {"diagonal",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "1 1 2", "f32 2,3: -2.5 4 3 -0.5 2 0"},
        {"diagonal",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "-1 0 2", "f32 3,1: -3.5 -1.5 4.5"},
        {"slice_update", "f32 2,3: 4 1 1.5 4 0.5 2.5; f32 2,2: 1 0.5 0 4.5", "[0,1] [2,2]",
         "f32 2,3: 4 1 0.5 4 0 4.5"},
        {"slice_set", "f32 2,3: 4 1 1.5 4 0.5 2.5; f32 2: 1 0.5", "[_,_] [_,_] [1,-2]",
         "f32 2,3: 0.5 1 1 0.5 0.5 1"},
        {"slice_set", "f32 2|3: 4 1 1.5 4 0.5 2.5; f32 2|1: 3 3", "[1] [_] [_]", "f32 2|3: 4 3 3 4 3 3"},
        {"move_axis_to_batch_dims",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "1",
         "f32 3|2,4: 3 -2.5 -4 -2 -3.5 -0.5 3 -2 -2 3.5 4 -4.5 -1.5 -2 2 -2.5 0 3 -3.5 3 4.5 -0.5 0 0"},
        {"move_axis_from_batch_dims",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "0 1",
         "f32 3,2,4: 3 -2.5 -4 -2 -3.5 -0.5 3 -2 -2 3.5 4 -4.5 -1.5 -2 2 -2.5 0 3 -3.5 3 4.5 -0.5 0 0"},
        {"broadcast_batch_dims", "f32 3: 4 1 1.5", "[2]", "f32 2|3: 4 1 1.5 4 1 1.5"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void joins(void **state)
{
    (void)state;
    static const row rows[] = {
        {"concatenate", "f32 2,3: 4 1 1.5 4 0.5 2.5; f32 2,1: 4 4", "1", "f32 2,4: 4 1 1.5 4 4 0.5 2.5 4"},
        {"concatenate", "f32 2|3: 4 1 1.5 4 0.5 2.5; f32 3: 4 1 1.5", "0",
         "f32 2|6: 4 1 1.5 4 1 1.5 4 0.5 2.5 4 1 1.5"},
        {"concatenate", "f32 2,3: 4 1 1.5 4 0.5 2.5; i32 2: 1 1", "_", "f32 8: 4 1 1.5 4 0.5 2.5 1 1"},
        {"stack", "f32 2,3: 4 1 1.5 4 0.5 2.5; f32 2,3: 5 2 2.5 5 1.5 3.5", "1",
         "f32 2,2,3: 4 1 1.5 5 2 2.5 4 0.5 2.5 5 1.5 3.5"},
        {"split",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "2 2 1", "f32 2,3,2: -4 -2 4 -4.5 -3.5 3 3 -2 2 -2.5 0 0"},
        {"chunk", "i32 7: 0 1 2 3 4 5 6", "3 0 1", "i32 2: 3 4"},
        {"unbind",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "1 2",
         "f32 2,4: 0 3 -3.5 3 4.5 -0.5 0 0"},
        {"tile", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[2,1,2]",
         "f32 2,2,6: 4 1 1.5 4 1 1.5 4 0.5 2.5 4 0.5 2.5 4 1 1.5 4 1 1.5 4 0.5 2.5 4 0.5 2.5"},
        {"repeat", "f32 2,3: 4 1 1.5 4 0.5 2.5", "2 1", "f32 2,6: 4 4 1 1 1.5 1.5 4 4 0.5 0.5 2.5 2.5"},
        {"repeat", "f32 2,3: 4 1 1.5 4 0.5 2.5", "2 _", "f32 12: 4 4 1 1 1.5 1.5 4 4 0.5 0.5 2.5 2.5"},
        {"roll", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] none", "f32 2,3: 2.5 4 1 1.5 4 0.5"},
        {"roll", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1,-1] [0,1]", "f32 2,3: 0.5 2.5 4 1 1.5 4"},
        {"pad", "i32 4: -2 5 0 -3", "[2,5] 0", "i32 11: 0 0 -2 5 0 -3 0 0 0 0 0"},
        {"pad", "f32 4: 3.5 -3 3.5 1", "[2,5] 1", "f32 11: 3.5 3.5 3.5 -3 3.5 1 1 1 1 1 1"},
        {"pad", "i32 4: -4 -5 -1 -5", "[2,5] 2", "i32 11: -1 -5 -4 -5 -1 -5 -1 -5 -4 -5 -1"},
        {"pad", "f32 4: -3.5 0 4.5 -0.5", "[2,5] 3", "f32 11: 0 -3.5 -3.5 0 4.5 -0.5 -0.5 4.5 0 -3.5 -3.5"},
        {"pad", "i32 4: 3 5 4 1", "[2,5] 4", "i32 11: 4 1 3 5 4 1 3 5 4 1 3"},
        {"pad", "f32 4: -0.5 0 -2 0", "[2,5] 5", "f32 11: 0 0 -0.5 0 -2 0 0 0 0 0 0"},
        {"pad", "i32 4: -1 -3 5 -5", "[2,5] 6", "i32 11: -5 -5 -1 -3 5 -5 -5 -5 -5 -5 -5"},
        {"pad", "f32 4: -4 -3 4.5 2", "[2,5] 7",
         "f32 11: -0.125 -0.125 -4 -3 4.5 2 -0.125 -0.125 -0.125 -0.125 -0.125"},
        {"pad", "i32 4: 4 -3 2 -1", "[2,5] 8", "i32 11: 0 2 4 -3 2 -1 -1 -1 -1 -1 0"},
        {"pad", "f32 2|3: 4 1 1.5 4 0.5 2.5; f32 2|: 0 -4.5", "[1,0] 0", "f32 2|4: 0 4 1 1.5 -4.5 4 0.5 2.5"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void indices(void **state)
{
    (void)state;
    static const row rows[] = {
        {"gather", "f32 2,3: 4 1 1.5 4 0.5 2.5; i32 2,2: 0 -1 1 0", "0",
         "f32 2,2,3: 4 1 1.5 4 0.5 2.5 4 0.5 2.5 4 1 1.5"},
        {"gather", "f32 2,3: 4 1 1.5 4 0.5 2.5; u8 2: 2 0", "1", "f32 2,2: 1.5 4 2.5 4"},
        {"gather", "f32 2|3: 4 1 1.5 4 0.5 2.5; i64 2|2: 0 -1 1 0", "0", "f32 2|2: 4 1.5 0.5 4"},
        {"gather", "f32 2,3: 4 1 1.5 4 0.5 2.5; i64 2|2: 0 -1 1 0", "1", "f32 2|2,2: 4 1.5 4 2.5 1 4 0.5 4"},
        {"take_along_axis", "f32 2,3: 4 1 1.5 4 0.5 2.5; i64 2,3: 0 2 1 -1 0 0", "1",
         "f32 2,3: 4 1.5 1 2.5 4 4"},
        {"index",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0; i64 2: 0 1; i64 2,1: 2 -1",
         "[0,2]", "f32 2,2,3: -4 4 -3.5 3 2 0 -2 -4.5 3 -2 -2.5 0"},
        {"index",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0; i64 2: 0 -1; i64 2: 2 3",
         "[1,2]", "f32 2,2: -4 3 3 0"},
        {"scatter", "f32 3,2: 1 3 1.5 -3.5 0.5 -2; i64 4: 0 2 0 -1; f32 4,2: 4.5 3.5 -3 0 4 3.5 2 1.5", "0 0",
         "f32 3,2: 4 3.5 1.5 -3.5 2 1.5"},
        {"scatter", "i32 3,2: -5 3 0 -4 -3 0; i64 4: 0 2 0 -1; i32 4,2: 2 0 1 4 2 -2 2 1", "0 1",
         "i32 3,2: -1 1 0 -4 0 5"},
        {"scatter", "f32 3,2: -3.5 -4 1.5 -1 1 -1.5; i64 4: 0 2 0 -1; f32 4,2: -2.5 -3.5 -1 3 -1 -1 0.5 4.5",
         "0 2", "f32 3,2: -8.75 -14 1.5 -1 -0.5 -20.25"},
        {"scatter", "i32 3,2: -1 1 -1 1 -1 2; i64 4: 0 2 0 -1; i32 4,2: 1 2 5 -4 1 -1 -2 -3", "0 3",
         "i32 3,2: -1 -1 -1 1 -2 -4"},
        {"scatter", "f32 3,2: -4.5 -1 3 -4 -1 4.5; i64 4: 0 2 0 -1; f32 4,2: 4.5 -2.5 -4.5 1.5 -4.5 -2 0 3.5",
         "0 4", "f32 3,2: 4.5 -1 3 -4 0 4.5"},
        {"index_update", "f32 2,3: 4 1 1.5 4 0.5 2.5; f32 .: 1; i64 3: 0 1 0; i64 3: 2 0 2", "[0,1] 1",
         "f32 2,3: 4 1 3.5 5 0.5 2.5"},
        {"put_along_axis", "f32 2,3: 4 1 1.5 4 0.5 2.5; i64 2,1: 2 0; f32 .: 9", "1 0",
         "f32 2,3: 4 1 9 9 0.5 2.5"},
        {"searchsorted", "f32 5: -3.5 0 3.5 3.5 4; f32 5: 1 4 4.5 -3.5 0", "0", "i64 5: 2 4 5 0 1"},
        {"searchsorted", "f32 5: -3.5 0 3.5 3.5 4; f32 5: 1 4 4.5 -3.5 0", "1", "i64 5: 2 5 5 1 2"},
        {"searchsorted",
         "f32 40: -4.5 -4.5 -4.5 -4 -4 -3.5 -3 -3 -2.5 -2.5 -2.5 -2 -1.5 -1 -1 -1 -1 -0.5 -0.5 0 0.5 0.5 0.5 0.5 0.5 0.5 1 1.5 2 2 2.5 2.5 2.5 3 3.5 "
         "3.5 4 4.5 4.5 4.5; f32 6: 1 4 4.5 -3.5 0 nan",
         "1", "i64 6: 27 37 40 6 20 40"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void sets(void **state)
{
    (void)state;
    static const row rows[] = {
        {"flat_nonzero", "f32 2,3: 0 1 0 2 nan 0", "3", "i64 3: 1 3 4"},
        {"flat_nonzero", "bool 2|3: 0 1 1 1 0 1", "2", "i64 2|2: 1 2 0 2"},
        {"flat_nonzero", "f32 0:", "0", "i64 0:"},
        {"count_unique", "f32 2,3: 3 1 nan 3 nan 1", "0", "i64 .: 4"},
        {"count_unique", "i8 2|3: 3 1 3 5 5 5", "0", "i64 2|: 2 1"},
        {"count_unique", "i8 0:", "0", "i64 .: 0"},
        {"unique", "i32 2,3: 3 1 7 3 1 1", "3 0 0", "i32 3: 1 3 7"},
        {"unique", "i32 2,3: 3 1 7 3 1 1", "3 1 0", "i64 3: 1 0 2"},
        {"unique", "i32 2,3: 3 1 7 3 1 1", "3 2 0", "i64 2,3: 1 0 2 1 0 0"},
        {"unique", "i32 2,3: 3 1 7 3 1 1", "3 3 0", "i64 3: 3 2 1"},
        {"count_unique", "i32 2,3: 1 1 1 3 3 7", "1", "i64 .: 3"},
        {"unique", "i32 2,3: 1 1 1 3 3 7", "3 0 1", "i32 3: 1 3 7"},
        {"unique", "i32 2,3: 1 1 1 3 3 7", "3 1 1", "i64 3: 0 3 5"},
        {"unique", "i32 2,3: 1 1 1 3 3 7", "3 2 1", "i64 2,3: 0 0 0 1 1 2"},
        {"unique", "i32 2,3: 1 1 1 3 3 7", "3 3 1", "i64 3: 3 2 1"},
        {"unique", "bool 4: 1 0 1 1", "2 3 0", "i64 2: 1 3"},
        {"unique", "f32 3: nan 2 nan", "3 0 0", "f32 3: 2 nan nan"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void reductions(void **state)
{
    (void)state;
    static const row rows[] = {
        {"reduce_sum", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0", "f32 2: 6.5 7"},
        {"reduce_sum",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "none 0", "f32 2|: -2 -3"},
        {"reduce_sum", "bool 2,3: 0 1 0 0 1 0", "[0] 1", "i64 1,3: 0 2 0"},
        {"reduce_sum", "i8 2,2: 100 100 3 -7", "[1] 0", "i64 2: 200 -4"},
        {"prod", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0", "f32 2: 6 5"},
        {"prod",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "none 0", "f32 2|: 0 -0"},
        {"prod", "bool 2,3: 0 1 0 0 1 0", "[0] 1", "i64 1,3: 0 1 0"},
        {"prod", "i8 2,2: 100 100 3 -7", "[1] 0", "i64 2: 10000 -21"},
        {"reduce_max", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0", "f32 2: 4 4"},
        {"reduce_max",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "none 0", "f32 2|: 4 4.5"},
        {"reduce_max", "bool 2,3: 0 1 0 0 1 0", "[0] 1", "bool 1,3: 0 1 0"},
        {"reduce_max", "i8 2,2: 100 100 3 -7", "[1] 0", "i8 2: 100 3"},
        {"reduce_min", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0", "f32 2: 1 0.5"},
        {"reduce_min",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "none 0", "f32 2|: -4.5 -3.5"},
        {"reduce_min", "bool 2,3: 0 1 0 0 1 0", "[0] 1", "bool 1,3: 0 1 0"},
        {"reduce_min", "i8 2,2: 100 100 3 -7", "[1] 0", "i8 2: 100 -7"},
        {"any", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0", "bool 2: 1 1"},
        {"any", "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "none 0", "bool 2|: 1 1"},
        {"any", "bool 2,3: 0 1 0 0 1 0", "[0] 1", "bool 1,3: 0 1 0"},
        {"any", "i8 2,2: 100 100 3 -7", "[1] 0", "bool 2: 1 1"},
        {"all", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0", "bool 2: 1 1"},
        {"all", "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "none 0", "bool 2|: 0 0"},
        {"all", "bool 2,3: 0 1 0 0 1 0", "[0] 1", "bool 1,3: 0 1 0"},
        {"all", "i8 2,2: 100 100 3 -7", "[1] 0", "bool 2: 1 1"},
        {"reduce_sum_physical",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "[0] 0", "f32 3|4: -0.5 -3 -1 -4 -3.5 1.5 6 -7 4.5 2.5 -3.5 3"},
        {"mean", "i32 2,3: 0 1 2 3 4 5", "[1] 0", "f32 2: 1 4"},
        {"mean",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0",
         "[0] 1", "f32 2|1,4: 0.3333333 1.333333 -1.166667 -1.166667 -0.1666667 -1 1.666667 -1.5"},
        {"var", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0 1.0", "f32 2: 2.583333 3.083333"},
        {"std", "f32 2,3: 4 1 1.5 4 0.5 2.5", "none 1 0.0", "f32 1,1: 1.376893"},
        {"count_nonzero", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[0] 0", "i64 3: 2 2 2"},
        {"logsumexp", "f32 3,3: 1 2 3 -inf -inf -inf inf 0 1", "[1] 0", "f32 3: 3.407606 -inf inf"},
        {"softmax", "f32 2,3: 4 1 1.5 4 0.5 2.5", "1",
         "f32 2,3: 0.8834921 0.04398648 0.07252146 0.7978761 0.02409377 0.1780302"},
        {"logsoftmax", "f32 2|3: 4 1 1.5 4 0.5 2.5", "0",
         "f32 2|3: -0.123873 -3.123873 -2.623873 -0.225802 -3.725802 -1.725802"},
        {"minmax", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0 0", "f32 2: 1 0.5"},
        {"minmax", "f32 2,3: 4 1 1.5 4 0.5 2.5", "[1] 0 1", "f32 2: 4 4"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void along(void **state)
{
    (void)state;
    static const row rows[] = {
        {"argmax", "f32 2,3: 1 nan 3 2 2 0", "1 0", "i64 2: 1 0"},
        {"argmax", "bool 2,3: 0 1 0 0 1 0", "_ 0", "i64 .: 1"},
        {"argmax", "f32 2|3: 4 1 1.5 4 0.5 2.5", "0 1", "i64 2|1: 0 0"},
        {"argmin", "f32 2,3: 1 nan 3 2 2 0", "1 0", "i64 2: 1 2"},
        {"argmin", "bool 2,3: 0 1 0 0 1 0", "_ 0", "i64 .: 0"},
        {"argmin", "f32 2|3: 4 1 1.5 4 0.5 2.5", "0 1", "i64 2|1: 1 1"},
        {"cumsum", "f32 2,3: 4 1 1.5 4 0.5 2.5", "1 0", "f32 2,3: 4 5 6.5 4 4.5 7"},
        {"cumsum",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "0 1",
         "f32 2|3,4: 1 4 -3.5 -3.5 -2 6.5 0.5 -1.5 0 3 -3.5 3 -0.5 -3 5 -4.5 3 -2.5 2 -2.5 4.5 -0.5 0 0"},
        {"cumprod", "f32 2,3: 4 1 1.5 4 0.5 2.5", "1 0", "f32 2,3: 4 4 6 4 2 5"},
        {"cumprod",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "0 1",
         "f32 2|3,4: -0 -26.25 56 27 -0 10.5 -14 -13.5 0 3 -3.5 3 23.625 -0.5 0 0 -6.75 1 0 -0 4.5 -0.5 0 0"},
        {"cummax", "f32 2,3: 4 1 1.5 4 0.5 2.5", "1 0", "f32 2,3: 4 4 4 4 4 4"},
        {"cummax",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "0 1",
         "f32 2|3,4: 3 3.5 4 3 0 3.5 4 3 0 3 -3.5 3 4.5 -0.5 3 0 4.5 -0.5 2 0 4.5 -0.5 0 0"},
        {"cummin", "f32 2,3: 4 1 1.5 4 0.5 2.5", "1 0", "f32 2,3: 4 1 1 4 0.5 0.5"},
        {"cummin",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "0 1",
         "f32 2|3,4: -2 -2.5 -4 -4.5 -2 3 -3.5 -4.5 0 3 -3.5 3 -3.5 -2 0 -2.5 -1.5 -2 0 -2.5 4.5 -0.5 0 0"},
        {"cumulative_sum", "f32 2,3: 4 1 1.5 4 0.5 2.5", "1 1", "f32 2,4: 0 4 5 6.5 0 4 4.5 7"},
        {"cumulative_prod", "i8 2: 2 3", "_ 1", "i64 3: 1 2 6"},
        {"diff", "f32 2,3: 4 1 1.5 4 0.5 2.5", "1 2", "f32 2,1: 3.5 5.5"},
        {"diff", "bool 2,3: 0 1 0 0 1 0", "1 1", "bool 2,2: 1 1 1 1"},
        {"sort",
         "f32 2|3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "1 0",
         "f32 2|3,4: -4 -2.5 -2 3 -4.5 -2 3.5 4 -3.5 0 3 3 -3.5 -2 -0.5 3 -2.5 -2 -1.5 2 -0.5 0 0 4.5"},
        {"sort", "bool 2,3: 0 1 0 0 1 0", "1 1", "bool 2,3: 1 0 0 1 0 0"},
        {"argsort", "i32 5: 3 1 3 2 1", "0 0", "i64 5: 1 4 3 0 2"},
        {"argsort", "i32 5: 3 1 3 2 1", "0 1", "i64 5: 0 2 3 1 4"},
        {"topk", "i32 5: 3 1 3 2 1", "2 0 1 0", "i32 2: 3 3"},
        {"topk", "i32 5: 3 1 3 2 1", "2 0 0 1", "i64 2: 1 4"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void products(void **state)
{
    (void)state;
    static const row rows[] = {
        {"matmul", "f32 2,3: 3.5 1.5 -1.5 -4 1 -2; f32 3,2: 1.5 3.5 -1.5 4 0 0.5", "",
         "f32 2,2: 3 17.5 -7.5 -11"},
        {"matmul", "f32 3: 3.5 1.5 -1.5; f32 3,2: 1.5 3.5 -1.5 4 0 0.5", "", "f32 2: 3 17.5"},
        {"matmul", "f32 2,3: 3.5 1.5 -1.5 -4 1 -2; f32 3: 1.5 -1.5 0", "", "f32 2: 3 -7.5"},
        {"matmul", "f32 3: 3.5 1.5 -1.5; f32 3: 1.5 -1.5 0", "", "f32 .: 3"},
        {"matmul", "f32 2|3: 3.5 1.5 -1.5 -4 1 -2; f32 3,2: 1.5 3.5 -1.5 4 0 0.5", "",
         "f32 2|2: 3 17.5 -7.5 -11"},
        {"matmul", "i8 2,3: 3 3 3 3 3 3; i8 3,2: 50 50 50 50 50 50", "", "i8 2,2: -62 -62 -62 -62"},
        {"matmul", "bool 2,3: 0 1 0 0 1 0; bool 3,2: 0 0 1 1 0 0", "", "bool 2,2: 1 1 1 1"},
        {"matmul", "f32 2|2,3: 3 1.5 -3.5 3.5 -1 3.5 3 4.5 -4.5 3.5 1 0; f32 2|3: 3.5 1.5 -1.5 -4 1 -2", "",
         "f32 2|2: 18 5.5 1.5 -13"},
        {"outer", "f32 2|3: 3.5 1.5 -1.5 -4 1 -2; f32 2: 1.5 3.5", "",
         "f32 2|3,2: 5.25 12.25 2.25 5.25 -2.25 -5.25 -6 -14 1.5 3.5 -3 -7"},
        {"vecdot", "f32 2,3: 3.5 1.5 -1.5 -4 1 -2; f32 2,3: 4.5 2.5 -0.5 -3 2 -1", "-1", "f32 2: 20.25 16"},
        {"tensordot",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0; f32 4,3: 0 1 2 3 4 5 6 7 8 9 10 11",
         "[1,2] [1,0]", "f32 2: -34.5 -15.5"},
        {"dot", "f32 2,3: 3.5 1.5 -1.5 -4 1 -2; f32 3,2: 1.5 3.5 -1.5 4 0 0.5", "",
         "f32 2,2: 3 17.5 -7.5 -11"},
        {"trace",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "1",
         "f32 2: 4.5 1.5"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void creation(void **state)
{
    (void)state;
    static const row rows[] = {
        {"iota", "", "[2,3] 1 i32", "i32 2,3: 0 1 2 0 1 2"},
        {"full", "f32 2|: 2 3", "[2]", "f32 2|2: 2 2 3 3"},
        {"arange", "#3; #2", "4 i32", "i32 4: 3 5 7 9"},
        {"linspace", "#-1; #2", "4 1 f32", "f32 4: -1 0 1 2"},
        {"linspace", "#0; #9", "4 0 i32", "i32 4: 0 2 4 6"},
        {"eye", "", "[2,3] 1 i8", "i8 2,3: 0 1 0 0 0 1"},
        {"tri", "", "[2,3] 0 f32", "f32 2,3: 1 0 0 1 1 0"},
        {"tril",
         "f32 2,3,4: 3 -2.5 -4 -2 -2 3.5 4 -4.5 0 3 -3.5 3 -3.5 -0.5 3 -2 -1.5 -2 2 -2.5 4.5 -0.5 0 0", "1",
         "f32 2,3,4: 3 -2.5 0 0 -2 3.5 4 0 0 3 -3.5 3 -3.5 -0.5 0 0 -1.5 -2 2 0 4.5 -0.5 0 0"},
        {"triu", "f32 2,3: 4 1 1.5 4 0.5 2.5", "-1", "f32 2,3: 4 1 1.5 4 0.5 2.5"},
        {"hann_window", "", "4 1 f32", "f32 4: 0 0.5 1 0.5"},
        {"hann_window", "", "1 0 f32", "f32 1: 1"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

static void networks(void **state)
{
    (void)state;
    static const row rows[] = {
        {"conv2d",
         "f32 1,4,3,2: -3 -1 -1.5 -2 4.5 3.5 0.5 4.5 -1.5 -3.5 -2 -4 4.5 -2.5 -0.5 -3 4.5 -3 0 4.5 0 4 4 2.5; f32 2,2,2,2: 2.5 0.5 1 3 -0.5 4 3.5 -1 "
         "-1 2 4 -4 -4 -2.5 -0.5 -3; f32 2: 0 0.5",
         "[1] [1] [1,0,0,1] 1",
         "f32 1,4,3,2: 6 8.25 -26.25 -16.25 9.5 -4.5 10.5 -10.75 1.75 36.25 0.75 25.25 -16.75 41 -48.25 -6 -25.5 8.5 14.5 -33.75 -18.25 -21.25 14.25 "
         "-8.25"},
        {"conv2d",
         "f32 1,4,3,2: -3 -1 -1.5 -2 4.5 3.5 0.5 4.5 -1.5 -3.5 -2 -4 4.5 -2.5 -0.5 -3 4.5 -3 0 4.5 0 4 4 2.5; f32 2,2,1,2: 4.5 2.5 -2.5 2.5 3 1.5 "
         "1.5 -2",
         "[2] [1] [0] 2", "f32 1,2,1,2: -10.5 6.25 21.5 -15"},
        {"conv2d",
         "f32 1,4,3,2: -3 -1 -1.5 -2 4.5 3.5 0.5 4.5 -1.5 -3.5 -2 -4 4.5 -2.5 -0.5 -3 4.5 -3 0 4.5 0 4 4 2.5; f32 2|2,2,2,1: 2 -3.5 1 4 4.5 -2 -1.5 "
         "1 -1 2 -3 -3 -4.5 -0.5 -2.5 -2",
         "[1] [1] [0] 1", "f32 2|1,3,2,1: -20 21.75 -7.25 -14.75 0.25 -9.5 17.75 -5 11.75 11 -9.25 -27"},
        {"conv2d_transpose",
         "f32 1,4,3,2: -3 -1 -1.5 -2 4.5 3.5 0.5 4.5 -1.5 -3.5 -2 -4 4.5 -2.5 -0.5 -3 4.5 -3 0 4.5 0 4 4 2.5; f32 2,2,2,2: 2.5 0.5 1 3 -0.5 4 3.5 -1 "
         "-1 2 4 -4 -4 -2.5 -0.5 -3",
         "[2] [1] [1] [1]",
         "f32 1,7,5,2: 14.5 4.5 -2.5 2 11 6.75 2.5 4 -26.75 -12.75 17.75 -2.75 -5.5 -12 -13.25 -1.75 -7 -14 -15 -3 -13.25 -13.75 -5.5 8 14.75 11.25 "
         "-6 8 18 13 -12.25 18.25 -2.75 -9.5 -11.75 1.25 9.75 -4.5 -14.25 18.75 -11.75 5.25 -5.5 10 9.5 9.25 -10.5 30 -10.5 6.75 18 -4.5 2 12 16 -4 "
         "11.25 11.5 8 11.5 -11.25 -13.5 8 -16 -10 -12 1 6 -22.25 -9.5"},
        {"avg_pool2d", "f32 1,5,4,1: 4 3 3 1 -3.5 2.5 1 4 0 -3 1 -0.5 1.5 -1 -2 -3.5 4.5 2.5 -0.5 -2.5",
         "[3] [2] [1] [1] 1 0", "f32 1,3,3,1: 1.5 2.416667 2.5 -0.5833333 -0.1666667 0 1.875 -1.166667 -3"},
        {"avg_pool2d", "f32 1,5,4,1: 4 3 3 1 -3.5 2.5 1 4 0 -3 1 -0.5 1.5 -1 -2 -3.5 4.5 2.5 -0.5 -2.5",
         "[3] [2] [1] [1] 1 1",
         "f32 1,3,3,1: 0.6666667 1.611111 0.8333333 -0.3888889 -0.1666667 0 0.8333333 -0.7777778 -1"},
        {"max_pool2d", "f32 1,5,4,1: 4 3 3 1 -3.5 2.5 1 4 0 -3 1 -0.5 1.5 -1 -2 -3.5 4.5 2.5 -0.5 -2.5",
         "[2] [2] [1] [0] 1", "f32 1,3,2,1: 4 4 1.5 1 4.5 -0.5"},
        {"max_pool2d", "f32 1,5,4,1: 4 3 3 1 -3.5 2.5 1 4 0 -3 1 -0.5 1.5 -1 -2 -3.5 4.5 2.5 -0.5 -2.5",
         "[2] [1] [2] [1] 0", "f32 1,5,4,1: 2.5 1 4 1 3 4 3 3 2.5 1.5 4 1 2.5 4.5 2.5 1 -1 1.5 -1 -2"},
        {"window", "i32 6: 0 1 2 3 4 5", "[0] [3] [2] [1]", "i32 2,3: 0 1 2 2 3 4"},
        {"clip", "f32 2,3: 4 1 1.5 4 0.5 2.5; #-1; #2", "", "f32 2,3: 2 1 1.5 2 0.5 2"},
        {"layer_norm", "f32 2,3: 4 1 1.5 4 0.5 2.5; f32 3: 1 2 3; f32 3: 0 0 1", "[-1] 1e-5",
         "f32 2,3: 1.396997 -1.777997 -0.5239972 1.162474 -2.557442 1.348742"},
        {"rms_norm", "f32 2|3: 4 1 1.5 4 0.5 2.5", "[0] 1e-5",
         "f32 2|3: 1.579083 0.3947707 0.5921561 1.460593 0.1825741 0.9128703"},
        {"one_hot", "i32 3: 0 2 5", "3 f32", "f32 3,3: 1 0 0 0 0 1 0 0 0"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}

/* ---- random numbers: not which, but what kind ---- */

static const char *const distributions[] = {"uniform", "gaussian", "randint"};

static void draw(eas_device *d, const char *op, eas_dtype dt, double a, double b, int64_t n, uint64_t seed,
                 double *out)
{
    eas_node *in[3], *y;
    int64_t attr[] = {1, n, dt}, offset, strides[1];
    assert_int_equal(eas_node_number(EAS_U64, 0, (int64_t)seed, 0, &in[0]), EAS_OK);
    assert_int_equal(eas_node_number(EAS_F32, 1, 0, a, &in[1]), EAS_OK);
    assert_int_equal(eas_node_number(EAS_F32, 1, 0, b, &in[2]), EAS_OK);
    assert_int_equal(eas_node_apply((eas_tensor_op)eas_tensor_op_find(op), 3, in, 3, attr, &y), EAS_OK);
    if (eas_nodes_realize(1, &y, d, NULL))
        fail_msg("%s: %s", op, eas_error_message());
    const void *data = eas_buffer_host(eas_node_buffer(y, &offset, strides));
    for (int64_t i = 0; i < n; i++)
        out[i] = dt == EAS_F64 ? ((const double *)data)[i]
               : dt == EAS_F16 ? f16_to_f32(((const uint16_t *)data)[i])
                               : read_item(dt, data, i);
    eas_node_release(y);
    for (int i = 0; i < 3; i++)
        eas_node_release(in[i]);
}

static void randoms(void **state)
{
    (void)state;
    enum { N = 4000 };
    static double x[N], again[N], other[N];
    static const eas_dtype floats[] = {EAS_F16, EAS_F32, EAS_F64}, ints[] = {EAS_I8, EAS_I64};
    eas_device *d;
    assert_int_equal(eas_device_get("cpu", &d), EAS_OK);
    for (int k = 0; k < 8; k++) {
        bool normal = k / 3 == 1, whole = k >= 6;
        eas_dtype dt = whole ? ints[k - 6] : floats[k % 3];
        const char *op = distributions[whole ? 2 : normal];
        draw(d, op, dt, -2, 3, N, 7, x);
        draw(d, op, dt, -2, 3, N, 7, again);
        draw(d, op, dt, -2, 3, N, 8, other);
        assert_memory_equal(x, again, sizeof x);
        assert_memory_not_equal(x, other, sizeof x);
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            sum += x[i];
            squares += x[i] * x[i];
            assert_true(normal || (x[i] >= -2 && x[i] <= (whole ? 2 : 3)));
            assert_true(!whole || x[i] == floor(x[i]));
        }
        double mean = sum / N, deviation = sqrt(squares / N - mean * mean);
        double want_mean = normal ? -2 : whole ? 0 : 0.5, want = normal ? 3 : whole ? sqrt(2) : 5 / sqrt(12);
        assert_true(fabs(mean - want_mean) < 0.2 && fabs(deviation - want) < 0.1);
    }
}

/* New keys differ from each other, and the numbers of a lane of a vmap are those of its key alone. */
static void keys(void **state)
{
    (void)state;
    eas_node *key, *many, *lanes, *bits, *one, *alone, *folded;
    eas_device *d;
    int64_t offset, strides[2];
    assert_int_equal(eas_device_get("cpu", &d), EAS_OK);
    assert_int_equal(eas_node_number(EAS_U64, 0, 42, 0, &key), EAS_OK);
    assert_int_equal(eas_node_apply(GRAPH_SPLIT_KEY, 1, &key, 1, (int64_t[]){8}, &many), EAS_OK);
    assert_int_equal(eas_node_apply(GRAPH_ALIAS, 1, &many, 1, (int64_t[]){1}, &lanes), EAS_OK);
    assert_int_equal(eas_node_apply(GRAPH_RANDOM_BITS, 1, &lanes, 2, (int64_t[]){1, 5}, &bits), EAS_OK);
    assert_int_equal(eas_node_apply(GRAPH_UNBIND, 1, &many, 2, (int64_t[]){0, 3}, &one), EAS_OK);
    assert_int_equal(eas_node_apply(GRAPH_RANDOM_BITS, 1, &one, 2, (int64_t[]){1, 5}, &alone), EAS_OK);
    assert_int_equal(eas_node_apply(GRAPH_FOLD_IN, 2, (eas_node *[]){key, many}, 0, NULL, &folded), EAS_OK);
    eas_node *all[] = {many, bits, alone, folded};
    assert_int_equal(eas_nodes_realize(4, all, d, NULL), EAS_OK);
    const uint64_t *k = eas_buffer_host(eas_node_buffer(many, &offset, strides)),
                   *f = eas_buffer_host(eas_node_buffer(folded, &offset, strides));
    const uint32_t *x = eas_buffer_host(eas_node_buffer(bits, &offset, strides)),
                   *y = eas_buffer_host(eas_node_buffer(alone, &offset, strides));
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            assert_true((i == j || (k[i] != k[j] && f[i] != f[j])) && k[i] != f[j]);
    assert_memory_equal(x + 15, y, 5 * sizeof *y);
    eas_node *each[] = {key, many, lanes, bits, one, alone, folded};
    for (int i = 0; i < 7; i++)
        eas_node_release(each[i]);
}

/* An index out of range is found when it is used. */
static void bad_indices(void **state)
{
    (void)state;
    static const row rows[] = {
        {"gather", "f32 3: 1 2 3; i64 2: 0 3", "0", ""},
        {"gather", "f32 3: 1 2 3; i64 2: 0 -4", "0", ""},
        {"take_along_axis", "f32 3: 1 2 3; i64 1: 3", "0", ""},
        {"index", "f32 2,3: 1 2 3 4 5 6; i64 1: 0; i64 1: 3", "[0,1]", ""},
        {"scatter", "f32 3: 1 2 3; i64 1: 3; f32 1: 9", "0 0", ""},
        {"scatter", "f32 3: 1 2 3; i64 1: -4; f32 1: 9", "0 1", ""},
    };
    eas_device *d;
    assert_int_equal(eas_device_get("cpu", &d), EAS_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        eas_node *in[8], *out;
        int64_t attr[32];
        int n = inputs(d, rows[i].in, false, in), m = parse_attr(rows[i].attr, attr);
        assert_int_equal(eas_node_apply((eas_tensor_op)eas_tensor_op_find(rows[i].op), n, in, m, attr, &out),
                         EAS_OK);
        eas_status st = eas_nodes_realize(1, &out, d, NULL);
        if (st != EAS_ERR_INDEX)
            fail_msg("%s(%s) gave %s, not an error of indices: %s", rows[i].op, rows[i].in,
                     eas_status_name(st), eas_error_message());
        eas_node_release(out);
        for (int k = 0; k < n; k++)
            eas_node_release(in[k]);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    named = argv + 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views),    cmocka_unit_test(joins),      cmocka_unit_test(indices),
        cmocka_unit_test(sets),     cmocka_unit_test(reductions), cmocka_unit_test(along),
        cmocka_unit_test(products), cmocka_unit_test(creation),   cmocka_unit_test(networks),
        cmocka_unit_test(randoms),  cmocka_unit_test(keys),       cmocka_unit_test(bad_indices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
