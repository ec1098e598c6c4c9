/* Rules of operations: shapes, dtypes, batch dims and messages, by a table of calls in words (graph_words.h);
 * and what composites are made of.
 *
 * A result is written like a tensor, or is a part of the message, with ! in front. Whatever is recorded is
 * expanded until nothing composite is left; shapes must stay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "graph_words.h"

/* A placeholder, or a number. */
static eas_node *parse_tensor(const char **p, int index)
{
    eas_dim shape[GRAPH_MAX_RANK];
    eas_dtype dt;
    eas_node *x;
    int bd;
    if (**p == '#') {
        ++*p;
        return parse_number(p);
    }
    int rank = parse_type(p, &dt, shape, &bd);
    assert_int_equal(eas_node_input(index, dt, rank, shape, bd, NULL, &x), EAS_OK);
    return x;
}

static int parse_tensors(const char *p, eas_node **out)
{
    int n = 0;
    while (*p) {
        out[n] = parse_tensor(&p, n);
        n++;
        while (isspace((unsigned char)*p))
            p++;
    }
    return n;
}

/* ---- expansions ---- */

static uint32_t stamp;

/* What n is made of, with composites taken apart; every step keeps shape, dtype and batch dims. */
static void take_apart(eas_node *n)
{
    char was[256], is[256];
    if (n->epoch == stamp)
        return;
    n->epoch = stamp;
    if (node_kind(n) == KIND_COMPOSITE) {
        eas_node *e = NULL;
        if (graph_rows[n->op].expand(n, node_in(n), &e))
            fail_msg("%s does not expand: %s", graph_rows[n->op].name, eas_error_message());
        describe(n, was, sizeof was);
        describe(e, is, sizeof is);
        if (strcmp(was, is))
            fail_msg("%s is %s but expands to %s", graph_rows[n->op].name, was, is);
        take_apart(e);
        node_unref(e);
        return;
    }
    for (int i = 0; i < n->nin; i++)
        take_apart(node_in(n)[i]);
}

/* ---- shardings: what always holds, whatever dim is cut ---- */

static void check_spec(const row *r, const eas_node *out, const eas_spec *s)
{
    uint32_t seen = s->partial;
    assert_int_equal(s->rank, out->rank);
    if (s->partial & s->replicated)
        fail_msg("%s(%s; %s): an axis that is not to be used is partial", r->op, r->in, r->attr);
    for (int d = 0; d < s->rank; d++)
        for (int i = 0; i < s->dims[d].n; i++) {
            if (seen >> s->dims[d].axes[i] & 1 || s->dims[d].axes[i] > 1)
                fail_msg("%s(%s; %s): axis %d is used twice", r->op, r->in, r->attr, s->dims[d].axes[i]);
            seen |= 1u << s->dims[d].axes[i];
        }
}
static void check_rule(const row *r, eas_node *n)
{
    eas_shard_rule *rule;
    eas_status st = eas_node_shard_rule(n, &rule);
    assert_int_equal(st, node_kind(n) == KIND_COMPOSITE ? EAS_ERR_UNAVAILABLE : EAS_OK);
    for (int t = 0; !st && t <= rule->nin; t++)
        for (int d = 0; d < rule->tensors[t].rank; d++)
            for (int i = 0; i < rule->tensors[t].dims[d].n; i++) {
                uint16_t f = rule->tensors[t].dims[d].factors[i];
                if (f >= rule->nfactors || (t == rule->nin && rule->factors[f].kind != EAS_FACTOR_PASS))
                    fail_msg("%s(%s; %s): factor %d of tensor %d, dim %d", r->op, r->in, r->attr, f, t, d);
            }
    eas_memory_free(st ? NULL : rule);
}
static void check_shardings(const row *r, eas_node *out, int n, eas_node *const *in)
{
    eas_mesh m = {.naxes = 2, .sizes = {2, 3}};
    eas_spec spec, got;
    const eas_spec *specs[16] = {NULL};
    int any;
    check_rule(r, out);
    assert_int_equal(eas_node_infer_spec(out, &m, n, in, specs, &got, &any), EAS_OK);
    assert_int_equal(any, 0);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < in[i]->rank; d++) {
            if (in[i] == out)
                continue;
            spec = (eas_spec){.rank = in[i]->rank};
            spec.dims[d] = (eas_dim_spec){.n = 1, .axes = {0}};
            spec.dims[(d + 1) % spec.rank].axes[spec.dims[(d + 1) % spec.rank].n++] = 1;
            for (int k = 0; k < n; k++)
                specs[k] = in[k] == in[i] ? &spec : NULL;
            if (eas_node_infer_spec(out, &m, n, in, specs, &got, &any))
                fail_msg("%s(%s; %s), dim %d of input %d cut: %s", r->op, r->in, r->attr, d, i,
                         eas_error_message());
            if (any)
                check_spec(r, out, &got);
            specs[i] = NULL;
        }
}

static bool tried[GRAPH_NOPS];

static void run(const row *r)
{
    eas_node *in[16], *out = NULL;
    int64_t attr[64];
    char got[256];
    int op = eas_tensor_op_find(r->op);
    if (op < 0)
        fail_msg("no operation '%s'", r->op);
    int n = parse_tensors(r->in, in), m = parse_attr(r->attr, attr);
    tried[op] |= r->out[0] != '!';
    eas_status st = eas_node_apply((eas_tensor_op)op, n, in, m, attr, &out);
    if (r->out[0] == '!') {
        if (!st) {
            describe(out, got, sizeof got);
            fail_msg("%s(%s; %s) gave %s, not a failure with '%s'", r->op, r->in, r->attr, got, r->out + 1);
        }
        if (strncmp(eas_error_message(), "eager.", 6) || !strstr(eas_error_message(), r->op) ||
            !strstr(eas_error_message(), r->out + 1))
            fail_msg("%s(%s; %s): '%s' is not in '%s'", r->op, r->in, r->attr, r->out + 1,
                     eas_error_message());
        assert_null(out);
    } else {
        if (st)
            fail_msg("%s(%s; %s): %s", r->op, r->in, r->attr, eas_error_message());
        describe(out, got, sizeof got);
        if (strcmp(got, r->out))
            fail_msg("%s(%s; %s) is %s, not %s", r->op, r->in, r->attr, got, r->out);
        check_shardings(r, out, n, in);
        stamp++;
        take_apart(out);
    }
    eas_node_release(out);
    for (int i = 0; i < n; i++)
        eas_node_release(in[i]);
}

/* No row leaves a node behind, other than the numbers that are kept. */
static void run_all(const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        run(&rows[i]);
        uint64_t before = node_live();
        run(&rows[i]);
        if (node_live() > before + 8)
            fail_msg("%s(%s; %s) left %d nodes", rows[i].op, rows[i].in, rows[i].attr,
                     (int)(node_live() - before));
    }
}
#define RUN(rows) run_all(rows, sizeof(rows) / sizeof *(rows))

static void views(void **state)
{
    (void)state;
    static const row rows[] = {
        {"reshape", "f32 2,6", "[3,4]", "f32 3,4"},
        {"reshape", "f32 2,6", "[-1,4]", "f32 3,4"},
        {"reshape", "f32 5|2,6", "[3,-1]", "f32 5|3,4"},
        {"reshape", "f32 n,4", "[-1,2]", "f32 2*n,2"},
        {"reshape", "f32 n,4", "[n,2,2]", "f32 n,2,2"},
        {"reshape", "f32 n,4", "[4,-1]", "f32 4,n"},
        {"reshape", "f32 n,4", "[-1]", "f32 4*n"},
        {"reshape", "f32 n", "[-1,2]", "!(n,) cannot be reshaped to (-1, 2)"},
        {"reshape", "f32 .", "[1,1]", "f32 1,1"},
        {"reshape", "f32 1,1", "[]", "f32 ."},
        {"reshape", "f32 0,3", "[3,0]", "f32 3,0"},
        {"reshape", "f32 0,3", "[-1,3]", "f32 0,3"},
        {"reshape", "f32 0,3", "[0,-1]", "!cannot be reshaped"},
        {"reshape", "f32 2,6", "[5]", "!(2, 6) cannot be reshaped to (5,)"},
        {"reshape", "f32 2,6", "[-1,-1]", "!one size may be -1"},
        {"reshape", "f32 2,6", "[-2,6]", "!one size may be -1"},
        {"reshape", "f32 2,6", "none", "!shape is missing"},
        {"reshape", "", "[2]", "!1 tensor expected, 0 given"},
        {"reshape", "f32 2,6", "", "!too few"},
        {"reshape_physical", "f32 5|2,6", "[10,6]", "f32 10|6"},
        {"flatten", "f32 2,3,4", "0 -1", "f32 24"},
        {"flatten", "f32 7|2,3,4", "1 2", "f32 7|2,12"},
        {"flatten", "f32 .", "0 -1", "f32 1"},
        {"flatten", "f32 2,3", "1 0", "!behind"},
        {"flatten", "f32 2,3", "0 2", "!axis 2 is out of range for shape (2, 3)"},
        {"unflatten", "f32 7|6,4", "0 [2,-1]", "f32 7|2,3,4"},
        {"unflatten", "f32 6,4", "0 [4,-1]", "!does not become"},
        {"unflatten", "f32 6,4", "0 [2,2]", "!does not become"},
        {"squeeze", "f32 1,3,1", "none", "f32 3"},
        {"squeeze", "f32 1|1,3,1", "none", "f32 1|3"},
        {"squeeze", "f32 1,3,1", "[0]", "f32 3,1"},
        {"squeeze", "f32 1,3,1", "[1]", "!axis 1 of shape (1, 3, 1) has not size 1"},
        {"squeeze", "f32 1,3,1", "[0,-3]", "!twice"},
        {"squeeze_physical", "f32 1|3,1", "[0]", "f32 3|1"},
        {"unsqueeze", "f32 5|3", "[0]", "f32 5|1,3"},
        {"unsqueeze", "f32 5|3", "[-1,0]", "f32 5|1,3,1"},
        {"unsqueeze", "f32 3", "[2]", "!axis 2"},
        {"unsqueeze_physical", "f32 5|3", "[0]", "f32 1|5,3"},
        {"permute", "f32 9|2,3,4", "[2,0,1]", "f32 9|4,2,3"},
        {"permute", "f32 9|2,3,4", "none", "f32 9|4,3,2"},
        {"permute", "f32 2,3", "[0,0]", "!axis 0 is there twice"},
        {"permute", "f32 2,3", "[0]", "!an order of 1 axes for shape (2, 3)"},
        {"swap_axes", "f32 9|2,3,4", "0 -1", "f32 9|4,3,2"},
        {"swap_axes", "f32 9|2,3,4", "0 3", "!axis 3 is out of range"},
        {"matrix_transpose", "f32 9|2,3,4", "", "f32 9|2,4,3"},
        {"matrix_transpose", "f32 9|4", "", "!(4,) is not that of a matrix"},
        {"moveaxis", "f32 9|2,3,4", "[0] [-1]", "f32 9|3,4,2"},
        {"moveaxis", "f32 2,3,4", "[0,2] [2,0]", "f32 4,3,2"},
        {"moveaxis", "f32 2,3,4", "[0,0] [2,1]", "!twice"},
        {"moveaxis_physical", "f32 9|2,3", "[0] [2]", "f32 2|3,9"},
        {"broadcast_to", "f32 3", "[2,3]", "f32 2,3"},
        {"broadcast_to", "f32 9|3", "[2,3]", "f32 9|2,3"},
        {"broadcast_to", "f32 9|1", "[n]", "f32 9|n"},
        {"broadcast_to", "f32 3", "[3,2]", "!(3,) does not broadcast to (3, 2)"},
        {"broadcast_to", "f32 n", "[3]", "!(n,) does not broadcast to (3,)"},
        {"broadcast_to", "f32 2,3", "[3]", "!does not broadcast"},
        {"broadcast_to", "f32 3", "[-1]", "!size -1 is negative"},
        {"broadcast_to", "f32 1",
         "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
         "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
         "!at most 32"},
        {"broadcast_to_physical", "f32 3", "[2,3]", "f32 2,3"},
        {"slice_steps", "f32 9|10,3", "[1] [3] [2]", "f32 9|3,3"},
        {"slice_steps", "f32 10", "[9] [10] [-1]", "f32 10"},
        {"slice_steps", "f32 10", "[9] [11] [-1]", "!elements 9 to -1 of axis 0, which has size 10"},
        {"slice_steps", "f32 10", "[1] [3] [0]", "!step 0"},
        {"slice_tensor", "f32 9|10,3", "[2,0] [4,3]", "f32 9|4,3"},
        {"slice_tensor", "f32 10", "[8] [4]", "!elements 8 to 11"},
        {"slice_tensor", "f32 10", "[10] [0]", "f32 0"},
        {"slice_tensor", "f32 10", "[1,2] [1,2]", "!(10,)"},
        {"slice_tensor_physical", "f32 9|10,3", "[2] [4]", "f32 4|10,3"},
        {"slice", "f32 9|10,3", "[1] [-1] [2]", "f32 9|4,3"},
        {"slice", "f32 10", "[_] [_] [-1]", "f32 10"},
        {"slice", "f32 10", "[20] [_] [_]", "f32 0"},
        {"slice", "f32 10", "[-3] [_] [_]", "f32 3"},
        {"slice", "f32 10", "[_] [-20] [_]", "f32 0"},
        {"slice", "f32 10", "[8] [1] [-3]", "f32 3"},
        {"slice", "f32 n", "[_] [_] [-1]", "f32 n"},
        {"slice", "f32 n", "[_] [_] [2]", "f32 floordiv(n + 1, 2)"},
        {"slice", "f32 0", "[_] [_] [-1]", "f32 0"},
        {"slice", "f32 10", "[0] [1] [0]", "!step is 0"},
        {"flip", "f32 9|2,n", "none", "f32 9|2,n"},
        {"flip", "f32 2,0", "[1]", "f32 2,0"},
        {"diagonal", "f32 3,4", "0 0 1", "f32 3"},
        {"diagonal", "f32 9|3,5,4", "1 0 2", "f32 9|5,3"},
        {"diagonal", "f32 9|3,5,4", "-1 2 0", "f32 9|5,3"},
        {"diagonal", "f32 3,4", "9 0 1", "f32 0"},
        {"diagonal", "f32 3,4", "0 1 -1", "!are one"},
        {"slice_update", "f32 5,6 f32 2,3", "[1,2] [2,3]", "f32 5,6"},
        {"slice_update", "f32 5,6 i32 .", "[1,2] [2,3]", "f32 5,6"},
        {"slice_update", "f32 5,6 f32 9|3", "[1,2] [2,3]", "f32 9|5,6"},
        {"slice_update", "f32 9|5,6 f32 3", "[1,2] [2,3]", "f32 9|5,6"},
        {"slice_update", "f32 5,6 f32 2,2", "[1,2] [2,3]", "!an update of shape (2, 2) does not fit (2, 3)"},
        {"slice_set", "f32 5,6 f32 3", "[_,_] [_,_] [-2,2]", "f32 5,6"},
        {"slice_set", "f32 7|5,6 f32 8,1|3", "[_,_] [_,_] [-2,2]", "f32 8,7|5,6"},
        {"slice_set", "f32 5 f32 2", "[3] [1] [_]", "!does not fit (0,)"},
    };
    RUN(rows);
}

static void batch_dims(void **state)
{
    (void)state;
    static const row rows[] = {
        {"alias", "f32 2,3", "1", "f32 2|3"},
        {"alias", "f32 2,3", "3", "!3 batch dims of a tensor of 2 dims"},
        {"stop_gradient", "f32 5|2,n", "", "f32 5|2,n"},
        {"barrier", "f32 5|2,n bool 3", "", "f32 5|2,n"},
        {"barrier", "i64 2 f32 0", "", "i64 2"},
        {"custom", "f32 2 f32 3", "", "f32 2"},
        {"incr_batch_dims", "f32 2,3", "", "f32 2|3"},
        {"incr_batch_dims", "f32 2|", "", "!no dim is left"},
        {"decr_batch_dims", "f32 2|3", "", "f32 2,3"},
        {"decr_batch_dims", "f32 2,3", "", "!batch_dims is 0"},
        {"move_axis_to_batch_dims", "f32 5|2,3", "1", "f32 3,5|2"},
        {"move_axis_to_batch_dims", "f32 5|2,3", "2", "!axis 2"},
        {"move_axis_from_batch_dims", "f32 7,5|2,3", "0 2", "f32 5|2,3,7"},
        {"move_axis_from_batch_dims", "f32 7,5|2,3", "-1 -1", "f32 7|2,3,5"},
        {"move_axis_from_batch_dims", "f32 2,3", "0 0", "!batch_axis 0 of 0 batch dims"},
        {"move_axis_from_batch_dims", "f32 7|2,3", "0 3", "!logical_destination 3"},
        {"lift_batch_dims", "f32 5|2", "3", "f32 1,1,5|2"},
        {"lift_batch_dims", "f32 5|2", "0", "!0 batch dims for a tensor that has 1"},
        {"broadcast_batch_dims", "f32 2", "[4,n]", "f32 4,n|2"},
        {"broadcast_batch_dims", "f32 5|2", "[4,5]", "f32 4,5|2"},
        {"broadcast_batch_dims", "f32 5|2", "[4,3]", "!batch dims (5,) do not broadcast to (4, 3)"},
    };
    RUN(rows);
}

static void together_and_apart(void **state)
{
    (void)state;
    static const row rows[] = {
        {"concatenate", "f32 2,3 i32 4,3", "0", "f32 6,3"},
        {"concatenate", "f32 2,3 f32 n,3", "0", "f32 n + 2,3"},
        {"concatenate", "f32 9|2,3 f32 2,4", "-1", "f32 9|2,7"},
        {"concatenate", "f32 2,3 f32 4", "_", "f32 10"},
        {"concatenate", "f32 2,3 f32 4,4", "0", "!shapes (2, 3) and (4, 4) do not go together along axis 0"},
        {"concatenate", "f32 . f32 .", "0", "!stack"},
        {"concatenate", "", "0", "!at least 1 tensor"},
        {"stack", "f32 2,3 f64 2,3", "1", "f64 2,2,3"},
        {"stack", "f32 9|3 f32 3", "-1", "f32 9|3,2"},
        {"stack", "f32 . f32 . f32 .", "0", "f32 3"},
        {"stack", "f32 3 f32 4", "0", "!do not go together"},
        {"split", "f32 9|6,2", "3 0 2", "f32 9|2,2"},
        {"split", "f32 7,2", "3 0 2", "!(7, 2) does not split into 3 equal parts"},
        {"chunk", "f32 7,2", "3 0 0", "f32 3,2"},
        {"chunk", "f32 7,2", "3 0 2", "f32 2,2"},
        {"chunk", "f32 2", "3 0 2", "f32 0"},
        {"chunk", "f32 7,2", "0 0 2", "!0 chunks"},
        {"unbind", "f32 9|7,2", "1 1", "f32 9|7"},
        {"unbind", "f32 7,2", "1 2", "!part 2 of 2"},
        {"unbind", "f32 n,2", "0 0", "!no fixed size"},
        {"tile", "f32 2,3", "[2]", "f32 2,6"},
        {"tile", "f32 9|3", "[2,2]", "f32 9|2,6"},
        {"tile", "f32 n", "[3,0]", "f32 3,0"},
        {"repeat", "f32 9|2,3", "4 1", "f32 9|2,12"},
        {"repeat", "f32 9|2,3", "4 _", "f32 9|24"},
        {"repeat", "f32 3", "-1 _", "!-1 repeats"},
        {"roll", "f32 9|2,n", "[1] none", "f32 9|2,n"},
        {"roll", "f32 2,3", "[1,-1] [0,1]", "f32 2,3"},
        {"roll", "f32 0", "[1] [0]", "f32 0"},
        {"roll", "f32 2,3", "[1,1,1] [0,1]", "!3 shifts for 2 axes"},
        {"shuffle_physical", "f32 4,2", "0 [2,-1,0]", "f32 3,2"},
        {"shuffle_physical", "f32 2,3", "1 [0,0]", "f32 2,2"},
        {"pad", "f32 9|2,3", "[1,1,0,2] 0", "f32 9|4,5"},
        {"pad", "f32 2,3 f32 9|", "[1,1,0,2] 0", "f32 9|4,5"},
        {"pad", "f32 2,3 #1", "[1,1,0,2] 0", "f32 4,5"},
        {"pad", "i32 2,n", "[1,1,0,2] 1", "i32 4,n + 2"},
        {"pad", "f32 2,1", "[1,1,4,2] 2", "f32 4,7"},
        {"pad", "f32 2,3", "[1,1,4,2] 3", "f32 4,9"},
        {"pad", "f32 9|2,3", "[1,1,4,2] 4", "f32 9|4,9"},
        {"pad", "bool 2,3", "[1,1,4,0] 5", "bool 4,7"},
        {"pad", "i8 2,3", "[1,1,4,0] 6", "i8 4,7"},
        {"pad", "i8 2,3", "[1,1,4,0] 7", "i8 4,7"},
        {"pad", "i8 2,3 #5", "[1,1,4,2] 8", "i8 4,9"},
        {"pad", "f16 2,3 f32 9|", "[1,1,4,2] 8", "f16 9|4,9"},
        {"pad", "f32 2,3", "[1,1] 0", "!2 paddings"},
        {"pad", "f32 2,3", "[1,1,-1,0] 0", "!axis 1 is padded by -1 and 0"},
        {"pad", "f32 0", "[1,1] 2", "!axis 0 is empty"},
        {"pad", "f32 0", "[1,1] 0", "f32 2"},
        {"pad", "f32 2", "[1,1] 99", "!no mode 99"},
        {"pad_constant", "i32 9|2,n #1", "[1,0] [0,2]", "i32 9|3,n + 2"},
        {"pad_constant", "i32 2 i32 2", "[1] [0]", "!is no number"},
        {"pad_constant", "i32 2 #1", "[1,1] [0]", "!2 and 1 paddings for shape (2,)"},
    };
    RUN(rows);
}

static void indices(void **state)
{
    (void)state;
    static const row rows[] = {
        {"gather", "f32 5,3 i32 2,4", "0", "f32 2,4,3"},
        {"gather", "f32 9|5,3 i32 4", "1", "f32 9|5,4"},
        {"gather", "f32 5,3 i32 9|4", "0", "f32 9|4,3"},
        {"gather", "f32 5,3 i32 9|4", "1", "f32 9|5,4"},
        {"gather", "f32 8|5,3 i32 9,1|4", "1", "f32 9,8|5,4"},
        {"gather", "f32 9|5,3 u64 9|", "0", "f32 9|3"},
        {"gather", "f32 5,3 f32 4", "0", "!indices must be integers, these are f32"},
        {"gather", "f32 5,3 bool 5", "0", "!a mask"},
        {"gather", "f32 . i32 4", "0", "!axis 0 is out of range for shape ()"},
        {"take_along_axis", "f32 5,3 i64 2,3", "0", "f32 2,3"},
        {"take_along_axis", "f32 9|5,3 i64 1,7", "-1", "f32 9|5,7"},
        {"take_along_axis", "f32 5,3 i64 9|2,1", "0", "f32 9|2,3"},
        {"take_along_axis", "f32 5,3 i64 2,2", "0", "!(2, 2) do not fit (5, 3)"},
        {"take_along_axis", "f32 5,3 i64 2", "0", "!as many dims"},
        {"index", "f32 5,3 i64 4 i64 4", "[0,1]", "f32 4"},
        {"index", "f32 5,3,7 i64 4 i64 4", "[0,2]", "f32 4,3"},
        {"index", "f32 9|5,3,7 i64 4,1 i64 2", "[1,2]", "f32 9|5,4,2"},
        {"index", "f32 9|5,3,7 i64 9|4 i64 .", "[1,2]", "f32 9|5,4"},
        {"index", "f32 5,n,7 i64 9|4", "[1]", "f32 9|5,4,7"},
        {"index", "f32 5,3 i64 4 i64 3", "[0,1]", "!do not broadcast"},
        {"index", "f32 5,3 i64 4", "[0,1]", "!1 indices for 2 axes"},
        {"index", "f32 5,3 i64 4 i64 4", "[1,0]", "!ascending"},
        {"scatter", "f32 5,3 i32 4 f32 4,3", "0 0", "f32 5,3"},
        {"scatter", "f32 5,3 i32 4 f32 3", "0 1", "f32 5,3"},
        {"scatter", "f32 9|5,3 i32 4 f32 5,4", "1 1", "f32 9|5,3"},
        {"scatter", "f32 5,3 i32 9|4 f32 5,4", "1 1", "f32 9|5,3"},
        {"scatter", "bool 5 i32 4 bool 4", "0 1", "bool 5"},
        {"scatter", "f32 5,3 i32 4 f32 4,2", "0 0", "!updates of shape (4, 2) do not fit (4, 3)"},
        {"scatter", "f32 5,3 f32 4 f32 4,3", "0 0", "!must be integers"},
        {"scatter", "f32 5,3 i32 4 f32 4,3", "0 9", "!no mode 9"},
        {"index_update", "f32 5,3 f32 4 i64 4 i64 4", "[0,1] 0", "f32 5,3"},
        {"index_update", "f32 5,3,7 f32 . i64 4 i64 4", "[0,2] 1", "f32 5,3,7"},
        {"index_update", "f32 5,3,7 f32 5,4 i64 4 i64 4", "[1,2] 1", "f32 5,3,7"},
        {"index_update", "f32 8|5,3,7 f32 5,4 i64 9,1|4 i64 4", "[1,2] 1", "f32 9,8|5,3,7"},
        {"put_along_axis", "f32 5,3 i64 2,3 f32 2,3", "0 0", "f32 5,3"},
        {"put_along_axis", "f32 5,3 i64 9|5,1 f32 .", "1 1", "f32 9|5,3"},
        {"put_along_axis", "f32 5,3 i64 2,2 f32 .", "0 0", "!do not fit"},
        {"searchsorted", "f32 7 f32 2,3", "0", "i64 2,3"},
        {"searchsorted", "f32 700 i32 2,3", "1", "i64 2,3"},
        {"searchsorted", "f32 n f32 9|2", "1", "i64 9|2"},
        {"searchsorted", "f32 9|100 f32 .", "1", "i64 9|"},
        {"searchsorted", "f32 9|100 f32 9|3", "1", "i64 9|3"},
        {"searchsorted", "f32 2,3 f32 2", "0", "!one axis"},
        {"flat_nonzero", "f32 9|2,3", "4", "i64 9|4"},
        {"flat_nonzero", "f32 .", "-1", "!size is -1"},
        {"count_unique", "f32 9|2,n", "0", "i64 9|"},
        {"unique", "bool 9|2,3", "2 0 0", "bool 9|2"},
        {"unique", "f32 2,n", "2 1 0", "i64 2"},
        {"unique", "f32 2,n", "2 2 1", "i64 2,n"},
        {"unique", "f32 .", "1 3 0", "i64 1"},
        {"unique", "f32 2", "1 4 0", "!result 4 of 4"},
        {"unique", "f32 2|3", "4 0 0", "!size is 4 for shape (3,)"},
    };
    RUN(rows);
}

static void reductions(void **state)
{
    (void)state;
    static const row rows[] = {
        {"reduce_sum", "f32 2,3", "none 0", "f32 ."},
        {"reduce_sum", "f32 9|2,3", "none 0", "f32 9|"},
        {"reduce_sum", "f32 9|2,3", "none 1", "f32 9|1,1"},
        {"reduce_sum", "i8 2,3,4", "[0,-1] 0", "i64 3"},
        {"reduce_sum", "u8 2,3", "[1] 1", "u64 2,1"},
        {"reduce_sum", "bool .", "none 0", "i64 ."},
        {"reduce_sum", "f16 n", "[0] 0", "f16 ."},
        {"reduce_sum", "f32 2,3", "[2] 0", "!axis 2 is out of range for shape (2, 3)"},
        {"reduce_sum", "f32 2,3", "[0,0] 0", "!axis 0 is there twice"},
        {"reduce_sum_physical", "f32 9|2,3", "[0] 0", "f32 2|3"},
        {"prod_physical", "u8 9|2,3", "[0,2] 1", "u64 1|2,1"},
        {"reduce_max_physical", "f32 9|2,3", "[0] 0", "f32 2|3"},
        {"reduce_min_physical", "bool 9|2,3", "none 0", "bool ."},
        {"any_physical", "f32 9|2,3", "[-3] 1", "bool 1|2,3"},
        {"all_physical", "f32 9|2,3", "[3] 0", "!axis 3 is out of range for shape (9, 2, 3)"},
        {"all_physical", "f32 9|2,3", "[2] 0", "bool 9|2"},
        {"prod", "i32 0,3", "[0] 0", "i64 3"},
        {"reduce_max", "i8 2,3", "[1] 0", "i8 2"},
        {"reduce_max", "bool 2,3", "[1] 0", "bool 2"},
        {"reduce_max", "f32 2,0", "[1] 0", "!no element"},
        {"reduce_min", "f32 2,0", "[0] 0", "f32 0"},
        {"any", "f32 9|2", "none 0", "bool 9|"},
        {"all", "i8 2", "none 1", "bool 1"},
        {"mean", "i32 9|2,3", "[0] 1", "f32 9|1,3"},
        {"mean", "f16 n,3", "none 0", "f16 ."},
        {"mean", "f64 0", "none 0", "f64 ."},
        {"mean_physical", "f32 9|2,3", "[0,1] 0", "f32 3|"},
        {"var", "f32 9|n,3", "[0] 0 1.0", "f32 9|3"},
        {"std", "i32 2,3", "none 1 0.0", "f32 1,1"},
        {"count_nonzero", "f32 9|2,3", "[0] 0", "i64 9|3"},
        {"logsumexp", "f16 9|2,3", "[0] 1", "f16 9|1,3"},
        {"logsumexp", "f32 0", "none 0", "f32 ."},
        {"softmax", "f32 9|2,3", "-1", "f32 9|2,3"},
        {"softmax", "i32 2,n", "0", "f32 2,n"},
        {"softmax", "bf16 2,0", "1", "bf16 2,0"},
        {"softmax", "f32 .", "-1", "!axis -1 is out of range for shape ()"},
        {"logsoftmax", "f64 3", "0", "f64 3"},
        {"minmax", "bool 9|2,3", "[0] 1 0", "bool 9|1,3"},
        {"minmax", "f32 9|2,3", "none 0 1", "f32 9|"},
        {"minmax", "f32 0", "none 0 1", "!no element"},
        {"minmax", "f32 2", "none 0 2", "!result 2 of 2"},
    };
    RUN(rows);
}

static void along(void **state)
{
    (void)state;
    static const row rows[] = {
        {"argmax", "f32 9|2,3", "-1 0", "i64 9|2"},
        {"argmax", "f32 9|2,3", "_ 0", "i64 9|"},
        {"argmin", "bool 9|2,3", "_ 1", "i64 9|1,1"},
        {"argmin", "f32 2,3", "0 1", "i64 1,3"},
        {"argmax", "f32 2,0", "1 0", "!no element"},
        {"argmax", "f32 2,0", "0 0", "i64 0"},
        {"argmax", "f32 .", "_ 0", "i64 ."},
        {"cumsum", "i8 9|2,n", "0 0", "i64 9|2,n"},
        {"cumsum", "bool 2,3", "_ 1", "i64 6"},
        {"cumprod", "u16 3", "0 0", "u64 3"},
        {"cummax", "f16 3", "0 0", "f16 3"},
        {"cummin", "bool 3", "0 0", "!not for bool"},
        {"cummin", "i8 9|3", "0 1", "i8 9|3"},
        {"cumulative_sum", "f32 9|2,3", "1 1", "f32 9|2,4"},
        {"cumulative_sum", "f32 3", "_ 0", "f32 3"},
        {"cumulative_sum", "f32 2,3", "_ 0", "!which axis of shape (2, 3)?"},
        {"cumulative_prod", "i32 0", "0 1", "i64 1"},
        {"diff", "f32 9|2,3", "1 1", "f32 9|2,2"},
        {"diff", "bool n", "0 2", "bool max(n - 2, 0)"},
        {"diff", "i8 3", "0 4", "i8 0"},
        {"diff", "i8 3", "0 -1", "!n is -1"},
        {"sort", "f32 9|2,3", "-1 0", "f32 9|2,3"},
        {"sort", "bool 2,3", "_ 1", "bool 6"},
        {"argsort", "bool 9|2,3", "0 1", "i64 9|2,3"},
        {"topk", "f32 9|2,5", "3 -1 1 0", "f32 9|2,3"},
        {"topk", "bool 2,5", "3 -1 0 1", "i64 2,3"},
        {"topk", "f32 2,5", "6 -1 1 0", "!k is 6 for axis 1 of shape (2, 5)"},
    };
    RUN(rows);
}

static void products(void **state)
{
    (void)state;
    static const row rows[] = {
        {"matmul", "f32 2,3 f32 3,4", "", "f32 2,4"},
        {"matmul", "f32 3 f32 3", "", "f32 ."},
        {"matmul", "f32 3 f32 3,4", "", "f32 4"},
        {"matmul", "f32 2,3 i32 3", "", "f32 2"},
        {"matmul", "f32 7,1,2,3 f32 5,3,4", "", "f32 7,5,2,4"},
        {"matmul", "f32 9|2,3 f32 3,4", "", "f32 9|2,4"},
        {"matmul", "f32 9|3 f32 3,4", "", "f32 9|4"},
        {"matmul", "f32 9|3 f32 9|3,4", "", "f32 9|4"},
        {"matmul", "f32 9|3 f32 9|3", "", "f32 9|"},
        {"matmul", "f32 3 f32 9|3,4", "", "f32 9|4"},
        {"matmul", "f32 8|2,3 f32 9,1|5,3,4", "", "f32 9,8|5,2,4"},
        {"matmul", "f32 n,3 f32 3,n", "", "f32 n,n"},
        {"matmul", "bool 2,3 bool 3,4", "", "bool 2,4"},
        {"matmul", "i8 2,0 i32 0,4", "", "i32 2,4"},
        {"matmul", "f32 2,3 f32 4,3", "", "!shapes (2, 3) and (4, 3) do not multiply"},
        {"matmul", "f32 7,2,3 f32 5,3,4", "", "!do not multiply"},
        {"matmul", "f32 . f32 3", "", "!a number is no matrix"},
        {"outer", "f32 2 i32 9|3", "", "f32 9|2,3"},
        {"outer", "f32 2,2 f32 .", "", "f32 4,1"},
        {"vecdot", "f32 9|2,3 f32 3", "-1", "f32 9|2"},
        {"vecdot", "i8 5,3 i8 5,3", "0", "i8 3"},
        {"vecdot", "bool 3 bool 3", "-1", "bool ."},
        {"vecdot", "f32 3 f32 4", "-1", "!do not multiply"},
        {"vecdot", "f32 2,3 f32 3", "0", "!axis 0 of shapes"},
        {"tensordot", "f32 9|2,3,4 f32 4,3,5", "[1,2] [1,0]", "f32 9|2,5"},
        {"tensordot", "f32 2 f32 3", "[] []", "f32 2,3"},
        {"tensordot", "bool n,2 bool 2,n", "[0] [1]", "bool 2,2"},
        {"tensordot", "f32 2,3 f32 2,3", "[0] [1]", "!do not multiply"},
        {"tensordot", "f32 2,3 f32 2,3", "[0,0] [0,0]", "!twice"},
        {"tensordot", "f32 2,3 f32 2,3", "[0] [0,1]", "!1 axes against 2"},
        {"dot", "f32 3 f32 3", "", "f32 ."},
        {"dot", "f32 9|2,3 f32 4,3,5", "", "f32 9|2,4,5"},
        {"dot", "f32 . f32 9|3", "", "f32 9|3"},
        {"trace", "i32 9|7,2,3", "1", "i64 9|7"},
        {"trace", "i32 9|3", "0", "!not that of a matrix"},
    };
    RUN(rows);
}

static void creation(void **state)
{
    (void)state;
    static const row rows[] = {
        {"iota", "", "[2,n] -1 i32", "i32 2,n"},
        {"iota", "", "[2] 1 i32", "!axis 1 of shape (2,)"},
        {"full", "#1", "[2,n]", "i64 2,n"},
        {"full", "f32 9|", "[2,3]", "f32 9|2,3"},
        {"full", "f32 .", "[]", "f32 ."},
        {"full", "f32 2", "[3]", "!(2,) does not fill (3,)"},
        {"full", "f32 .", "[-3]", "!size -3 is negative"},
        {"zeros", "#0", "[2,n]", "i64 2,n"},
        {"ones", "f32 .", "[2]", "f32 2"},
        {"arange", "#0 #1", "n f32", "f32 n"},
        {"arange", "f32 9| #2", "5 i16", "i16 9|5"},
        {"arange", "#0 #1", "-2 f32", "!length is -2"},
        {"arange", "f32 3 #1", "2 f32", "!start has shape (3,)"},
        {"arange", "#0 #1", "3 bool", "!not for bool"},
        {"linspace", "#0 #1", "n 1 f32", "f32 n"},
        {"linspace", "#0 f32 9|", "5 0 i8", "i8 9|5"},
        {"hann_window", "", "n 1 f32", "f32 n"},
        {"hann_window", "", "1 0 f16", "f16 1"},
        {"hann_window", "", "8 0 i32", "!not for i32"},
        {"eye", "", "[3,n] 1 bool", "bool 3,n"},
        {"eye", "", "[3] 1 bool", "!not that of a matrix"},
        {"tri", "", "[3,4] -1 f64", "f64 3,4"},
        {"tril", "f32 9|n,3,4", "1", "f32 9|n,3,4"},
        {"triu", "bool 3,4", "-1", "bool 3,4"},
        {"triu", "bool 4", "-1", "!not that of a matrix"},
    };
    RUN(rows);
}

static void randoms(void **state)
{
    (void)state;
    static const row rows[] = {
        {"random_bits", "u64 .", "[2,n]", "u32 2,n"},
        {"random_uniform", "i64 9|", "[2]", "f32 9|2"},
        {"random_normal", "u64 .", "[]", "f32 ."},
        {"random_bits", "u64 3", "[2]", "!one key is wanted, these have shape (3,)"},
        {"random_bits", "f32 .", "[2]", "!a key is a u64"},
        {"uniform", "u64 . #0 #1", "[2,3] f32", "f32 2,3"},
        {"uniform", "u64 9| #0 #1", "[2,3] f64", "f64 9|2,3"},
        {"uniform", "u64 . f32 9| #1", "[2,3] f16", "f16 9|2,3"},
        {"uniform", "u64 8| f32 9,1| #1", "[] bf16", "bf16 9,8|"},
        {"uniform", "u64 . #0 #1", "[2] i32", "!not for i32"},
        {"gaussian", "u64 . #0.0 #1", "[n] f32", "f32 n"},
        {"gaussian", "u64 9| #0 #1", "[2,3] f64", "f64 9|2,3"},
        {"gaussian", "u64 9| f32 2 #1", "[2,3] f64", "!bounds of shape (2,)"},
        {"randint", "u64 . #0 #10", "[2] u8", "u8 2"},
        {"randint", "u64 9| i64 9| #10", "[2] i64", "i64 9|2"},
        {"randint", "u64 . #0 #9000000000", "[2] u64", "u64 2"},
        {"randint", "u64 . #3 #3", "[2] i32", "!no integer from 3 to below 3"},
        {"split_key", "u64 9|", "n", "u64 9|n"},
        {"split_key", "u64 .", "-1", "!-1 keys"},
        {"fold_in", "u64 9| i32 4", "", "u64 9|4"},
        {"fold_in", "u64 . #7", "", "u64 ."},
    };
    RUN(rows);
}

static void networks(void **state)
{
    (void)state;
    static const row rows[] = {
        {"window", "f32 9|10,3", "[0] [3] [2] [1]", "f32 9|4,3,3"},
        {"window", "f32 n", "[0] [3] [1] [1]", "f32 max(n - 2, 0),3"},
        {"window", "f32 10,3", "[0,0] [3,3] [2,2] [1,1]", "!twice"},
        {"window", "f32 10,3", "[0] [0] [2] [1]", "!must be above 0"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,3,5", "[1] [1] [0] 1", "f32 2,6,7,5"},
        {"conv2d", "f32 2,8,9,4 f32 3,3,2,6 f32 6", "[2] [1] [1] 2", "f32 2,4,5,6"},
        {"conv2d", "f32 7|2,8,9,3 f32 3,3,3,5", "[1,2] [2] [1,1,0,0] 1", "f32 7|2,6,3,5"},
        {"conv2d", "f32 2,8,9,3 f32 7|3,3,3,5 f32 5", "[1] [1] [0] 1", "f32 7|2,6,7,5"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,3,5 f32 7|5", "[1] [1] [0] 1", "f32 7|2,6,7,5"},
        {"conv2d", "f32 6|2,8,9,4 f32 7,1|3,3,2,4 f32 4", "[1] [1] [0] 2", "f32 7,6|2,6,7,4"},
        {"conv2d", "f32 n,8,9,3 f32 3,3,3,5", "[1] [1] [0] 1", "f32 n,6,7,5"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,3,5", "[0] [1] [0] 1", "!stride is 0; it must be at least 1"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,3,5", "[1] [-1] [0] 1", "!dilation is -1"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,3,5", "[1] [1] [-2] 1", "!padding is -2 and -2"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,3,5", "[1] [1] [0] 2", "!groups is 2"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,4,5", "[1] [1] [0] 1", "!channels differ"},
        {"conv2d", "f32 8,9,3 f32 3,3,3,5", "[1] [1] [0] 1",
         "!x has shape (8, 9, 3); (N, H, W, C) is wanted"},
        {"conv2d", "f32 2,2,9,3 f32 3,3,3,5", "[1] [1] [0] 1", "!does not fit shape (2, 2, 9, 3)"},
        {"conv2d", "f32 2,8,9,3 f32 3,3,3,5 f32 4", "[1] [1] [0] 1", "!bias has shape (4,); (5,) is wanted"},
        {"conv2d_transpose", "f32 2,4,5,3 f32 3,3,6,3", "[2] [1] [0] [0]", "f32 2,9,11,6"},
        {"conv2d_transpose", "f32 7|2,4,5,3 f32 3,3,6,3 f32 6", "[2] [1] [1] [1]", "f32 7|2,8,10,6"},
        {"conv2d_transpose", "f32 2,4,5,3 f32 1,1,6,3", "[2] [1] [1] [0]", "f32 2,5,7,6"},
        {"conv2d_transpose", "f32 2,4,5,3 f32 3,3,6,3", "[2] [1] [0] [2]", "!output_paddings is 2"},
        {"conv2d_transpose", "f32 2,4,5,3 f32 3,3,3,6", "[2] [1] [0] [0]", "!channels differ"},
        {"avg_pool2d", "f32 7|2,8,9,3", "[2] [2] [1] [0] 0 1", "f32 7|2,4,4,3"},
        {"avg_pool2d", "i32 2,8,9,3", "[3] [2] [1] [1] 1 0", "f32 2,5,5,3"},
        {"avg_pool2d", "f16 n,8,9,3", "[3] [2] [1] [1] 0 0", "f16 n,4,5,3"},
        {"max_pool2d", "f32 7|2,8,9,3", "[2] [2] [1] [0] 1", "f32 7|2,4,5,3"},
        {"max_pool2d", "u8 2,8,9,3", "[2] [2] [1] [1] 0", "u8 2,5,5,3"},
        {"max_pool2d", "bool 2,8,9,3", "[2] [2] [1] [1] 0", "bool 2,5,5,3"},
        {"max_pool2d", "f32 2,8,9,3", "[0] [2] [1] [0] 0", "!kernel_size is 0"},
        {"max_pool2d", "f32 2,8,9,3", "[2] [2] [1] [2] 0", "!more than half"},
        {"max_pool2d", "f32 2,8,9,3", "[9] [2] [1] [0] 0", "!does not fit"},
        {"clip", "i8 9|2,3 #0 #10", "", "i8 9|2,3"},
        {"clip", "f32 3 f32 9|3 f64 2,1", "", "f64 9|2,3"},
        {"layer_norm", "f16 9|2,3 f16 3 f16 3", "[-1] 1e-5", "f16 9|2,3"},
        {"layer_norm", "i32 2,3", "none 1e-5", "f32 2,3"},
        {"layer_norm", "f32 2,3 f32 9|3", "[1] 1e-5", "f32 9|2,3"},
        {"layer_norm", "f32 3 f32 2,3", "[0] 1e-5", "!more dims than x"},
        {"rms_norm", "f32 9|n,3 f32 3", "[-1] 1e-5", "f32 9|n,3"},
        {"one_hot", "i32 9|2", "5 f32", "f32 9|2,5"},
        {"one_hot", "f32 2", "5 f32", "!classes must be integers"},
    };
    RUN(rows);
}

/* A chain of 10^5 is let go in a loop. */
static void long_chain(void **state)
{
    (void)state;
    eas_node *x, *y;
    int64_t attr[] = {2, 3, 2};
    uint64_t before = node_live();
    assert_int_equal(eas_node_input(0, EAS_F32, 2, (eas_dim[]){3, 2}, 0, NULL, &x), EAS_OK);
    for (int i = 0; i < 100000; i++) {
        assert_int_equal(eas_node_apply(GRAPH_RESHAPE, 1, &x, 3, attr, &y), EAS_OK);
        eas_node_release(x);
        x = y;
    }
    assert_int_equal(node_live() - before, 100001);
    eas_node_release(x);
    assert_int_equal(node_live(), before);
}

/* A new row of op.def needs a row here; operations element by element are walked by their own tests. */
static void every_row_is_tried(void **state)
{
    (void)state;
    for (int i = 0; i < GRAPH_NOPS; i++)
        if (!tried[i] && graph_rows[i].kind != KIND_MAP && graph_rows[i].kind != KIND_CAST &&
            graph_rows[i].make != make_none)
            fail_msg("%s is in no table of this file", graph_rows[i].name);
}

/* ---- nodes that somebody remembers ---- */

static int dropped;
static void count_drop(void *object)
{
    (void)object;
    dropped++;
}

static void remembered(void **state)
{
    (void)state;
    eas_dim shape[2] = {2, 3};
    eas_node *x, *y, *again;
    assert_int_equal(eas_node_input(0, EAS_F32, 2, shape, 0, NULL, &x), EAS_OK);
    assert_int_equal(eas_node_apply((eas_tensor_op)eas_tensor_op_find("neg"), 1, &x, 0, NULL, &y), EAS_OK);
    assert_true(eas_node_is_symbolic(y));
    assert_int_equal(eas_node_depth(y), eas_node_depth(x) + 1);
    assert_true(eas_node_is_shared(x)); /* y counts it */
    assert_false(eas_node_is_shared(y));
    eas_node_set_batch_dims(y, 1);
    assert_int_equal(eas_node_batch_dims(y), 1);
    eas_node_set_batch_dims(y, 3); /* more than it has */
    assert_int_equal(eas_node_batch_dims(y), 1);
    assert_int_equal(eas_node_set_object(y, &dropped, count_drop), EAS_OK);
    again = eas_node_revive(y);
    assert_ptr_equal(again, y);
    assert_true(eas_node_is_shared(y));
    eas_node_release(again);
    assert_int_equal(dropped, 0);
    eas_node_release(y);
    assert_int_equal(dropped, 1);
    assert_false(eas_node_is_shared(x));
    eas_node_release(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(views),
                                       cmocka_unit_test(batch_dims),
                                       cmocka_unit_test(together_and_apart),
                                       cmocka_unit_test(indices),
                                       cmocka_unit_test(reductions),
                                       cmocka_unit_test(along),
                                       cmocka_unit_test(randoms),
                                       cmocka_unit_test(networks),
                                       cmocka_unit_test(products),
                                       cmocka_unit_test(creation),
                                       cmocka_unit_test(long_chain),
                                       cmocka_unit_test(remembered),
                                       cmocka_unit_test(every_row_is_tried)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
