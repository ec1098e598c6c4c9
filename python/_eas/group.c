/* group.c: functions of mk over the threads of a simdgroup and of a group. Rows of one table; `self` is the
 * row. */
#include "py.h"

enum kind { SHUFFLE, SIMD_REDUCE, SIMD_TEST, SIMD_SCAN, TG_REDUCE, TG_TEST, TG_SCAN };
static const struct row {
    const char *name, *op; /* of what joins */
    enum kind kind;
    int how; /* eas_shuffle, or: without the own value */
    const char *args, *doc;
} table[] = {
    {"simd_shuffle", NULL, SHUFFLE, EAS_SHUFFLE_LANE, "x, lane",
     "x of another thread of the simdgroup: that of lane (modulo 32)."},
    {"simd_broadcast", NULL, SHUFFLE, EAS_SHUFFLE_LANE, "x, lane",
     "x of one lane of the simdgroup, for all of them."},
    {"simd_shuffle_xor", NULL, SHUFFLE, EAS_SHUFFLE_XOR, "x, delta",
     "x of the lane whose number is this one's ^ delta."},
    {"simd_shuffle_up", NULL, SHUFFLE, EAS_SHUFFLE_UP, "x, delta",
     "x of the lane delta below; lanes that have none keep their own."},
    {"simd_shuffle_down", NULL, SHUFFLE, EAS_SHUFFLE_DOWN, "x, delta",
     "x of the lane delta above; lanes that have none keep their own."},
    {"simd_sum", "add", SIMD_REDUCE, 0, "x", "Sum over the 32 threads of the simdgroup, in each of them."},
    {"simd_prod", "mul", SIMD_REDUCE, 0, "x",
     "Product over the 32 threads of the simdgroup, in each of them."},
    {"simd_max", "max", SIMD_REDUCE, 0, "x",
     "Largest over the 32 threads of the simdgroup, in each of them; NaN if there is one."},
    {"simd_min", "min", SIMD_REDUCE, 0, "x",
     "Smallest over the 32 threads of the simdgroup, in each of them; NaN if there is one."},
    {"simd_and", "and", SIMD_REDUCE, 0, "x",
     "Bitwise and over the 32 threads of the simdgroup, in each of them."},
    {"simd_or", "or", SIMD_REDUCE, 0, "x",
     "Bitwise or over the 32 threads of the simdgroup, in each of them."},
    {"simd_xor", "xor", SIMD_REDUCE, 0, "x",
     "Bitwise exclusive or over the 32 threads of the simdgroup, in each of them."},
    {"simd_any", "or", SIMD_TEST, 0, "x", "Does x hold for some thread of the simdgroup?"},
    {"simd_all", "and", SIMD_TEST, 0, "x", "Does x hold for every thread of the simdgroup?"},
    {"simd_prefix_sum", NULL, SIMD_SCAN, 0, "x", "Sum of x over the lanes up to this one."},
    {"simd_prefix_exclusive_sum", NULL, SIMD_SCAN, 1, "x", "Sum of x over the lanes before this one."},
    {"tg_sum", "add", TG_REDUCE, 0, "x", "Sum over the threads of the group, in each of them."},
    {"tg_prod", "mul", TG_REDUCE, 0, "x", "Product over the threads of the group, in each of them."},
    {"tg_max", "max", TG_REDUCE, 0, "x",
     "Largest over the threads of the group, in each of them; NaN if there is one."},
    {"tg_min", "min", TG_REDUCE, 0, "x",
     "Smallest over the threads of the group, in each of them; NaN if there is one."},
    {"tg_any", "or", TG_TEST, 0, "x", "Does x hold for some thread of the group?"},
    {"tg_all", "and", TG_TEST, 0, "x", "Does x hold for every thread of the group?"},
    {"tg_prefix_sum", NULL, TG_SCAN, 0, "x", "Sum of x over the threads of the group up to this one."},
    {"tg_prefix_exclusive_sum", NULL, TG_SCAN, 1, "x",
     "Sum of x over the threads of the group before this one."},
};
enum { NROWS = sizeof table / sizeof *table };
static PyMethodDef defs[NROWS];
static char docs[NROWS][192];

static eas_value build(eas_builder *b, const struct row *r, eas_value x, eas_value y)
{
    eas_op op = r->op ? eas_op_find(r->op) : 0;
    switch (r->kind) {
    case SHUFFLE: return eas_builder_simd_shuffle(b, (eas_shuffle)r->how, x, y);
    case SIMD_REDUCE: return eas_builder_simd_reduce(b, op, x);
    case SIMD_TEST: return eas_builder_simd_reduce(b, op, eas_builder_cast(b, x, EAS_BOOL));
    case SIMD_SCAN: return eas_builder_simd_scan(b, x, r->how);
    case TG_REDUCE: return eas_builder_tg_reduce(b, op, x);
    case TG_TEST: return eas_builder_tg_reduce(b, op, eas_builder_cast(b, x, EAS_BOOL));
    default: return eas_builder_tg_scan(b, x, r->how);
    }
}

static PyObject *mk_group(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const struct row *r = &table[PyLong_AsLong(self)];
    int n = r->kind == SHUFFLE ? 2 : 1;
    sig s = {r->name, n, n, {"x", r->how == EAS_SHUFFLE_LANE ? "lane" : "delta"}};
    PyObject *in[8];
    eas_value v[2] = {0, 0};
    Trace *t = trace_enter(s.fn);
    if (!t || !trace_whole(t, s.fn, true) || !mk_parse(&s, args, nargs, kwnames, in))
        return NULL;
    for (int i = 0; i < n; i++)
        if (!value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    return value_new(t, build(t->b, r, v[0], v[1]));
}

int group_init(PyObject *mk)
{
    for (int i = 0; i < NROWS; i++) {
        snprintf(docs[i], sizeof docs[i], "%s($module, %s)\n--\n\n%s", table[i].name, table[i].args,
                 table[i].doc);
        defs[i] = (PyMethodDef){table[i].name, (PyCFunction)(void (*)(void))mk_group,
                                METH_FASTCALL | METH_KEYWORDS, docs[i]};
        if (mk_add_numbered(mk, &defs[i], i) < 0)
            return -1;
    }
    return 0;
}
