/* eager_index.c: NumPy's indexing in terms of the table's operations: slice, unsqueeze, squeeze, index, and
 * their inverses for x[key] = v and x.at[key].
 *
 * A key is read into one entry per axis of x (slices), the axes that integers drop, new axes, and the axes
 * that are indexed by tensors. Masks are read, since how many elements they choose decides a shape. */
#include "py.h"

#include <string.h>

enum { MAX = 32, NONE = INT32_MIN };
typedef struct key {
    int rank; /* of x, logical */
    int64_t start[MAX], stop[MAX], step[MAX]; /* per axis; INT64_MIN: left out */
    bool sliced; /* does any slice change anything? */
    bool picked; /* integers for axes of symbolic size: one element from pick on, before any slice */
    int64_t pick[MAX], picks[MAX]; /* start and size per axis then */
    int ndrop, drop[MAX]; /* axes of x that an integer took one element of */
    int nnew, new_[MAX]; /* new axes, where they stand among x's axes and each other, nothing dropped yet */
    int nindex, at[MAX]; /* axes indexed by tensors, counted as new_ are */
    eas_node *index[MAX];
    /* an ellipsis that stands for no axis parts two tensors: gap_at is a new axis that goes again */
    bool gap;
    int gap_at;
    bool mask; /* one mask of x's whole shape and nothing else: mask_node */
    eas_node *mask_node;
} key;

static void key_free(key *k)
{
    for (int i = 0; i < k->nindex; i++)
        eas_node_release(k->index[i]);
    eas_node_release(k->mask_node);
}
static int add_index(key *k, eas_node *n, int at) /* steals n */
{
    if (!n)
        return 0;
    if (k->nindex == MAX) {
        eas_node_release(n);
        return py_fail(PyExc_IndexError, "too many indices"), 0;
    }
    k->at[k->nindex] = at;
    k->index[k->nindex++] = n;
    return 1;
}

/* ---- reading a key ---- */
typedef enum entry_kind { E_INT, E_SLICE, E_NEW, E_DOTS, E_ARRAY, E_MASK } entry_kind;
typedef struct entry {
    entry_kind kind;
    PyObject *o; /* slices and integers: borrowed */
    eas_node *n; /* arrays and masks: counted */
    int takes; /* axes */
} entry;

static int logical_rank(eas_node *n) { return eas_node_rank(n) - eas_node_batch_dims(n); }

static int read_entry(PyObject *o, entry *e)
{
    *e = (entry){E_INT, o, NULL, 1};
    if (o == Py_None)
        return e->kind = E_NEW, e->takes = 0, 1;
    if (o == Py_Ellipsis)
        return e->kind = E_DOTS, e->takes = 0, 1;
    if (PySlice_Check(o))
        return e->kind = E_SLICE, 1;
    bool flag = PyBool_Check(o) || PyArray_IsScalar(o, Bool);
    if (PyIndex_Check(o) && !flag && !eager_check(o) && !PyArray_Check(o))
        return 1;
    eas_node *n = eager_operand(o);
    if (!n)
        return PyErr_Occurred()
                 ? 0
                 : (py_fail(
                        PyExc_IndexError,
                        "an index must be an int, a slice, None, ..., or a tensor or array of ints or bools; got %s",
                        Py_TYPE(o)->tp_name),
                    0);
    e->n = n;
    char kind = eas_dtype_kind(eas_node_dtype(n));
    bool empty_list = kind == 'f' && PyList_Check(o) && PyList_GET_SIZE(o) == 0;
    if (empty_list) {
        int64_t dt = EAS_I64;
        e->n = n = eager_do("cast", 1, &n, 1, &dt);
        kind = 'i';
        if (!n)
            return 0;
    }
    if (kind == 'f') {
        eas_node_release(n);
        e->n = NULL;
        return py_fail(PyExc_IndexError, "an index must be of ints or bools, this one is of %s",
                       eas_dtype_name(eas_node_dtype(n))),
               0;
    }
    e->kind = kind == 'b' ? E_MASK : E_ARRAY;
    e->takes = kind == 'b' ? logical_rank(n) : 1;
    return 1;
}
/* The numbers of the elements that a mask chooses, an array for each of its axes. */
static int add_mask(key *k, eas_node *mask, int at, int rank)
{
    if (eas_node_batch_dims(mask))
        return py_fail(PyExc_IndexError,
                       "a mask inside vmap chooses another number of elements in each lane: use eager.where"),
               0;
    PyObject *a = array_of_node(mask), *b = NULL, *where = NULL;
    if (a && !rank) /* one truth value: a new axis of size 1 or 0 */
        b = PyArray_Ravel((PyArrayObject *)a, NPY_CORDER);
    else
        b = Py_XNewRef(a);
    where = b ? PyArray_Nonzero((PyArrayObject *)b) : NULL;
    int ok = where != NULL;
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(where); i++)
        ok = add_index(k, node_of_data(PyTuple_GET_ITEM(where, i), NULL, NULL), at + (int)i);
    Py_XDECREF(where);
    Py_XDECREF(b);
    Py_XDECREF(a);
    return ok;
}
static int bound(PyObject *o, int64_t *out)
{
    if (o == Py_None)
        return *out = INT64_MIN, 1;
    if (PyIndex_Check(o)) {
        *out = PyNumber_AsSsize_t(o, NULL); /* clamps */
        return !(*out == -1 && PyErr_Occurred());
    }
    return dim_of(o, "a bound of a slice", out);
}
static int add_slice(key *k, int axis, PyObject *o)
{
    PySliceObject *s = (PySliceObject *)o;
    if (!bound(s->start, &k->start[axis]) || !bound(s->stop, &k->stop[axis]) ||
        !bound(s->step, &k->step[axis]))
        return 0;
    if (k->step[axis] == 0)
        return py_fail(PyExc_ValueError, "slice step cannot be zero"), 0;
    if (s->start != Py_None || s->stop != Py_None || (s->step != Py_None && k->step[axis] != 1))
        k->sliced = true;
    return 1;
}
static int out_of_bounds(Py_ssize_t i, int axis, eas_dim size)
{
    if (size < 0 || (i >= -size && i < size))
        return 0;
    py_fail(PyExc_IndexError, "index %zd is out of bounds for axis %d with size %lld", i, axis,
            (long long)size);
    return 1;
}
static int add_int(key *k, int axis, PyObject *o, eas_dim size)
{
    Py_ssize_t i = PyNumber_AsSsize_t(o, PyExc_IndexError);
    if ((i == -1 && PyErr_Occurred()) || out_of_bounds(i, axis, size))
        return 0;
    k->drop[k->ndrop++] = axis;
    if (size < 0) {
        eas_status st = i < 0 ? eas_dim_apply(EAS_DIM_ADD, size, i, &k->pick[axis]) : EAS_OK;
        if (i >= 0)
            k->pick[axis] = i;
        k->picks[axis] = 1;
        k->picked = true;
        return st == EAS_OK ? 1 : (py_raise(st), 0);
    }
    k->start[axis] = i;
    k->stop[axis] = i == -1 ? INT64_MIN : i + 1;
    k->sliced = true;
    return 1;
}
/* A mask without elements picks none, so its sizes of 0 fit any axis, as in NumPy; exact: they do not. */
static int check_mask(eas_node *x, int axis, eas_node *mask, bool exact)
{
    const eas_dim *have = eas_node_shape(x) + eas_node_batch_dims(x) + axis,
                  *want = eas_node_shape(mask) + eas_node_batch_dims(mask);
    for (int i = 0; i < logical_rank(mask); i++)
        if (have[i] != want[i] && exact)
            return 0;
        else if (have[i] != want[i] && want[i])
            return py_fail(PyExc_IndexError, "a mask of size %lld does not fit axis %d of size %lld",
                           (long long)want[i], axis + i, (long long)have[i]),
                   0;
    return 1;
}
/* Beside arrays an integer is one too. */
static int add_int_array(key *k, int axis, int place, PyObject *o, eas_dim size)
{
    Py_ssize_t v = PyNumber_AsSsize_t(o, PyExc_IndexError);
    eas_node *n;
    if ((v == -1 && PyErr_Occurred()) || out_of_bounds(v, axis, size))
        return 0;
    eas_status st = eas_node_number(EAS_I64, 0, v, 0, &n);
    return st == EAS_OK ? add_index(k, n, place) : (py_raise(st), 0);
}
static int add_new_axis(key *k, entry *e, int place)
{
    if (k->nnew == MAX)
        return py_fail(PyExc_IndexError, "too many new axes"), 0;
    k->new_[k->nnew++] = place;
    return e->kind == E_NEW || add_mask(k, e->n, place, 0);
}
static int place_entry(key *k, eas_node *x, entry *e, bool arrays, int axis, int place)
{
    eas_dim size = e->takes ? (eas_node_shape(x) + eas_node_batch_dims(x))[axis] : 0;
    switch (e->kind) {
    case E_SLICE: return add_slice(k, axis, e->o);
    case E_INT: return arrays ? add_int_array(k, axis, place, e->o, size) : add_int(k, axis, e->o, size);
    case E_ARRAY: return add_index(k, eas_node_retain(e->n), place);
    case E_MASK:
        if (e->takes)
            return check_mask(x, axis, e->n, false) && add_mask(k, e->n, place, e->takes);
        return add_new_axis(k, e, place);
    case E_NEW: return add_new_axis(k, e, place);
    default: return 1;
    }
}
/* NumPy puts the axes of tensors first if anything stands between them, be it an ellipsis for no axis at all.
 */
static bool parts_tensors(const entry *e, int n, int i)
{
    bool before = false, after = false;
    for (int k = 0; k < n; k++)
        if (e[k].kind == E_ARRAY || e[k].kind == E_MASK || e[k].kind == E_INT)
            *(k < i ? &before : &after) = true;
    return before && after;
}
static int place_entries(key *k, eas_node *x, entry *e, int n)
{
    int axis = 0, place = 0, takes = 0, dots = 0;
    bool arrays = false;
    for (int i = 0; i < n; i++) {
        takes += e[i].takes;
        dots += e[i].kind == E_DOTS;
        arrays = arrays || e[i].kind == E_ARRAY || e[i].kind == E_MASK;
    }
    if (dots > 1)
        return py_fail(PyExc_IndexError, "an index has at most one ellipsis"), 0;
    if (takes > k->rank)
        return py_fail(PyExc_IndexError, "%d indices for a tensor of %d dims", takes, k->rank), 0;
    for (int i = 0; i < n; i++) {
        int over = e[i].kind == E_DOTS ? k->rank - takes : e[i].takes;
        if (!place_entry(k, x, &e[i], arrays, axis, place))
            return 0;
        if (arrays && e[i].kind == E_DOTS && over == 0 && parts_tensors(e, n, i)) {
            if (!add_new_axis(k, &(entry){.kind = E_NEW}, place))
                return 0;
            k->gap = true;
            k->gap_at = place++;
        }
        axis += over;
        place += over + (e[i].kind == E_NEW || (e[i].kind == E_MASK && !e[i].takes));
    }
    return 1;
}
/* masks: a lone mask may stay one. */
static int key_read(PyObject *o, eas_node *x, bool masks, key *k)
{
    memset(k, 0, sizeof *k);
    k->rank = logical_rank(x);
    if (k->rank > MAX)
        return py_fail(PyExc_IndexError, "more than %d dims", MAX), 0;
    for (int i = 0; i < k->rank; i++) {
        k->start[i] = k->stop[i] = INT64_MIN;
        k->step[i] = 1;
        k->pick[i] = 0;
        k->picks[i] = (eas_node_shape(x) + eas_node_batch_dims(x))[i];
    }
    PyObject *one[1] = {o}, **items = PyTuple_Check(o) ? &PyTuple_GET_ITEM(o, 0) : one;
    Py_ssize_t n = PyTuple_Check(o) ? PyTuple_GET_SIZE(o) : 1;
    entry e[2 * MAX];
    int count = 0, ok = n <= 2 * MAX;
    if (!ok)
        py_fail(PyExc_IndexError, "too many indices");
    for (; ok && count < n; count++)
        ok = read_entry(items[count], &e[count]);
    if (ok && masks && n == 1 && e[0].kind == E_MASK && e[0].takes == k->rank &&
        check_mask(x, 0, e[0].n, true)) {
        k->mask = true;
        k->mask_node = eas_node_retain(e[0].n);
    } else
        ok = ok && !PyErr_Occurred() && place_entries(k, x, e, (int)n);
    for (int i = 0; i < count; i++)
        eas_node_release(e[i].n);
    return ok;
}

/* ---- getting ---- */
static int pick_attr(const key *k, int64_t *attr)
{
    attr[0] = attr[1 + k->rank] = k->rank;
    memcpy(attr + 1, k->pick, sizeof *attr * (size_t)k->rank);
    memcpy(attr + 2 + k->rank, k->picks, sizeof *attr * (size_t)k->rank);
    return 2 * k->rank + 2;
}
static eas_node *picked_of(eas_node *x, key *k) /* steals x */
{
    int64_t attr[2 * MAX + 2];
    return !k->picked || !x ? x : eager_do("slice_tensor", 1, &x, pick_attr(k, attr), attr);
}
static eas_node *slice_of(eas_node *x, key *k) /* steals x */
{
    int64_t attr[3 * MAX + 3], n = 0;
    x = picked_of(x, k);
    if (!k->sliced || !x)
        return x;
    for (int w = 0; w < 3; w++) {
        const int64_t *from = w == 0 ? k->start : w == 1 ? k->stop : k->step;
        attr[n++] = k->rank;
        for (int i = 0; i < k->rank; i++)
            attr[n++] = w == 2 && from[i] == INT64_MIN ? 1 : from[i];
    }
    return eager_do("slice", 1, &x, (int)n, attr);
}
static eas_node *axes_op(const char *op, eas_node *x, int n, const int *axes) /* steals x */
{
    int64_t attr[MAX + 1] = {n};
    for (int i = 0; i < n; i++)
        attr[1 + i] = axes[i];
    return !n || !x ? x : eager_do(op, 1, &x, n + 1, attr);
}
/* x with its slices taken, new axes there; without the dropped ones only if nothing is indexed by tensors
 * (else none are dropped). */
static eas_node *basic(eas_node *x, key *k)
{
    int shift[MAX], n = 0;
    x = axes_op("squeeze", slice_of(x, k), k->ndrop, k->drop);
    for (int i = 0; i < k->nnew; i++) { /* places among all axes -> among those left */
        int before = 0;
        for (int d = 0; d < k->ndrop; d++) {
            int place = k->drop[d];
            for (int j = 0; j < k->nnew; j++)
                place += k->new_[j] <= place;
            before += place < k->new_[i];
        }
        shift[n++] = k->new_[i] - before;
    }
    return axes_op("unsqueeze", x, n, shift);
}
static eas_node *indexed(eas_node *x, key *k) /* steals x */
{
    eas_node *in[MAX + 1] = {x};
    int64_t attr[MAX + 1] = {k->nindex};
    if (!k->nindex || !x)
        return x;
    for (int i = 0; i < k->nindex; i++) {
        in[1 + i] = eas_node_retain(k->index[i]);
        attr[1 + i] = k->at[i];
    }
    return eager_do("index", k->nindex + 1, in, k->nindex + 1, attr);
}
/* How many axes that no tensor indexes lie in [from, to), counted as new_ are. */
static int plain_axes(const key *k, int from, int to)
{
    int n = 0;
    for (int place = from; place < to; place++) {
        bool by_tensor = false;
        for (int i = 0; i < k->nindex; i++)
            by_tensor |= k->at[i] == place;
        n += !by_tensor;
    }
    return n;
}
static eas_node *close_gap(eas_node *r, const key *k) /* of what was got; steals r */
{
    int front = 0;
    for (int i = 0; i < k->nindex; i++)
        front = logical_rank(k->index[i]) > front ? logical_rank(k->index[i]) : front;
    front += plain_axes(k, 0, k->gap_at);
    return k->gap ? axes_op("squeeze", r, 1, &front) : r;
}
static eas_node *open_gap(eas_node *v, const key *k) /* of what is to be set; steals v */
{
    int at = logical_rank(v) - plain_axes(k, k->gap_at + 1, k->rank + k->nnew);
    return k->gap && at >= 0 ? axes_op("unsqueeze", v, 1, &at) : v;
}
/* By a mask of all of x: both as one axis, so that one number tells each place. */
static eas_node *chosen(eas_node *x, key *k) /* steals x */
{
    eas_node *flat =
        eager_do("flatten", 1, (eas_node *[]){eas_node_retain(k->mask_node)}, 2, (int64_t[]){0, -1});
    int ok = flat && add_mask(k, flat, 0, 1);
    eas_node_release(flat);
    if (ok)
        return indexed(eager_do("flatten", 1, &x, 2, (int64_t[]){0, -1}), k);
    eas_node_release(x);
    return NULL;
}
eas_node *index_operand(PyObject *o)
{
    return eager_tracing ? eager_operand(o) : eas_node_retain(eager_node(o));
}

static PyObject *get_item(eas_node *x, PyObject *keyobj) /* steals x */
{
    key k;
    eas_node *r = NULL;
    if (key_read(keyobj, x, logical_rank(x) > 1, &k))
        r = k.mask ? chosen(eas_node_retain(x), &k)
                   : close_gap(indexed(basic(eas_node_retain(x), &k), &k), &k);
    key_free(&k);
    eas_node_release(x);
    return r ? eager_result(EAS_OK, r) : NULL;
}

/* ---- slices whose start is a tensor without data ----
 *
 * x[i:i+3]: start and stop must be the same but for a number, so that the length is known. The slice is a
 * gather of start, start + step, ..., and an update of it a scatter; the rest of the key sees a whole axis. A
 * start that does not leave room is an IndexError when it runs.
 */
typedef struct linear { /* scale * of + offset */
    const eas_node *of;
    int64_t scale, offset;
} linear;

static bool is_op(const eas_node *n, const char *name) { return eas_node_op(n) == eas_tensor_op_find(name); }

static linear linear_of(const eas_node *n, int depth)
{
    int64_t i;
    double f;
    eas_node *const *in;
    linear self = {n, 1, 0};
    if (eas_node_number_value(n, &i, &f))
        return eas_dtype_kind(eas_node_dtype(n)) == 'f' ? self : (linear){NULL, 0, i};
    int count = eas_node_inputs(n, &in);
    if (count == 1 && depth && is_op(n, "cast") && eas_dtype_kind(eas_node_dtype(in[0])) != 'f')
        return linear_of(in[0], depth - 1);
    bool mul = count == 2 && is_op(n, "mul"), add = count == 2 && is_op(n, "add"),
         sub = count == 2 && is_op(n, "sub");
    if (!depth || !(mul || add || sub))
        return self;
    linear a = linear_of(in[0], depth - 1), b = linear_of(in[1], depth - 1);
    if (mul) {
        if (a.of && b.of)
            return self;
        linear x = a.of ? a : b;
        int64_t by = a.of ? b.offset : a.offset;
        return (linear){x.of, x.scale * by, x.offset * by};
    }
    if (a.of && b.of && a.of != b.of)
        return self;
    int sign = sub ? -1 : 1;
    return (linear){a.of ? a.of : b.of, a.scale + sign * b.scale, a.offset + sign * b.offset};
}
static bool without_data(PyObject *o) /* a tensor that int() cannot read */
{
    if (!eager_check(o))
        return false;
    eas_node *n = eager_tracing ? eager_stand_in(eager_node(o)) : NULL;
    bool is = n || eas_node_is_symbolic(eager_node(o)) || eas_node_batch_dims(eager_node(o));
    eas_node_release(n);
    return is;
}
static bool is_dynamic(PyObject *o)
{
    return PySlice_Check(o) &&
           (without_data(((PySliceObject *)o)->start) || without_data(((PySliceObject *)o)->stop));
}

static eas_node *int_node(int64_t v)
{
    eas_node *n;
    eas_status st = eas_node_number(EAS_I64, 0, v, 0, &n);
    return st == EAS_OK ? n : (py_raise(st), NULL);
}
static eas_node *apply2(const char *op, eas_node *a, eas_node *b) /* steals both */
{
    eas_node *in[2] = {a, b};
    return eager_do(op, 2, in, 0, NULL);
}
/* start, start + step, ...: n of them; beyond the axis where start is negative, so that it is refused. */
static eas_node *slice_indices(eas_node *start, int64_t n, int64_t step)
{
    int64_t dt = EAS_I64, iota[] = {1, n, 0, EAS_I64};
    start = eager_do("cast", 1, &start, 1, &dt);
    eas_node *in[3] = {start ? apply2("less", eas_node_retain(start), int_node(0)) : NULL,
                       int_node((int64_t)1 << 40), start};
    start = eager_do("where", 3, in, 0, NULL);
    int zero[1] = {0};
    start = axes_op("unsqueeze", start, 1, zero);
    return apply2("add", start, apply2("mul", eager_do("iota", 0, NULL, 4, iota), int_node(step)));
}
static eas_node *dynamic_indices(PyObject *slice)
{
    PySliceObject *s = (PySliceObject *)slice;
    Py_ssize_t step = s->step == Py_None ? 1 : PyNumber_AsSsize_t(s->step, PyExc_IndexError);
    if (step == -1 && PyErr_Occurred())
        return NULL;
    eas_node *a = s->start == Py_None ? int_node(0) : eager_arg(s->start, "slice", "start"), *b = NULL,
             *r = NULL;
    if (a && s->stop != Py_None)
        b = eager_arg(s->stop, "slice", "stop");
    linear x = a && b ? linear_of(a, 8) : (linear){0}, y = b ? linear_of(b, 8) : (linear){0};
    int64_t n = y.offset - x.offset;
    if (!PyErr_Occurred() && (!b || x.of != y.of || x.scale != y.scale || step < 1))
        py_fail_at(
            graph_break,
            "x[start:stop] where start or stop is a tensor whose data is not there yet needs a length that is known: write "
            "x[i:i + n] with a number n (and a step above 0), or choose elements with eager.gather or eager.where");
    else if (!PyErr_Occurred())
        r = slice_indices(eas_node_retain(a), n > 0 ? (n + step - 1) / step : 0, step);
    eas_node_release(a);
    eas_node_release(b);
    return r;
}
typedef struct dynamic { /* slices of that kind in a key */
    PyObject *key; /* with whole axes in their place; NULL: there are none */
    int n, axis[MAX];
    eas_node *index[MAX];
} dynamic;
static void dynamic_free(dynamic *d)
{
    Py_XDECREF(d->key);
    for (int i = 0; i < d->n; i++)
        eas_node_release(d->index[i]);
}
static int takes_axes(PyObject *o, int *n) /* of an entry of a key */
{
    entry e;
    if (!read_entry(o, &e))
        return 0;
    *n = e.takes;
    eas_node_release(e.n);
    return 1;
}
static int dynamic_read(PyObject *keyobj, eas_node *x, dynamic *d)
{
    PyObject *one[1] = {keyobj}, **items = PyTuple_Check(keyobj) ? &PyTuple_GET_ITEM(keyobj, 0) : one;
    Py_ssize_t n = PyTuple_Check(keyobj) ? PyTuple_GET_SIZE(keyobj) : 1;
    bool any = false;
    *d = (dynamic){0};
    for (Py_ssize_t i = 0; i < n; i++)
        any |= is_dynamic(items[i]);
    if (!any)
        return 1;
    int axis = 0, takes = 0, all = 0;
    for (Py_ssize_t i = 0; i < n; i++, all += takes)
        if (!takes_axes(items[i], &takes))
            return 0;
    if (!(d->key = PyTuple_New(n)))
        return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        bool dyn = is_dynamic(items[i]);
        PyObject *whole = dyn ? PySlice_New(NULL, NULL, NULL) : Py_NewRef(items[i]);
        PyTuple_SET_ITEM(d->key, i, whole);
        if (!whole || !takes_axes(items[i], &takes))
            return 0;
        if (dyn && d->n < MAX) {
            d->axis[d->n] = axis;
            if (!(d->index[d->n] = dynamic_indices(items[i])))
                return 0;
            d->n++;
        }
        axis += items[i] == Py_Ellipsis ? logical_rank(x) - all : takes;
    }
    return 1;
}
static eas_node *dynamic_part(eas_node *x, const dynamic *d, int n) /* after the first n slices; steals x */
{
    for (int i = 0; i < n && x; i++) {
        eas_node *in[2] = {x, eas_node_retain(d->index[i])};
        int64_t axis = d->axis[i];
        x = eager_do("gather", 2, in, 1, &axis);
    }
    return x;
}
PyObject *eager_subscript(PyObject *o, PyObject *keyobj)
{
    dynamic d;
    eas_node *x = index_operand(o);
    PyObject *r = NULL;
    if (!x)
        return NULL;
    if (!dynamic_read(keyobj, x, &d))
        eas_node_release(x);
    else if ((x = dynamic_part(x, &d, d.n)))
        r = get_item(x, d.key ? d.key : keyobj);
    dynamic_free(&d);
    return r;
}

/* ---- setting ---- */
static const char *const join_names[] = {"set", "add", "mul", "minimum", "maximum"};

eas_node *index_cast(eas_node *v, eas_dtype dt) /* steals */
{
    int64_t attr = dt;
    if (v && !number_fits(v, dt, "set")) {
        eas_node_release(v);
        return NULL;
    }
    return !v || (eas_node_dtype(v) == dt && !eas_node_is_weak(v)) ? v : eager_do("cast", 1, &v, 1, &attr);
}
/* reshape or broadcast_to like's logical shape; steals v */
static eas_node *shaped(const char *op, eas_node *v, eas_node *like)
{
    int64_t attr[MAX + 1];
    int bd = eas_node_batch_dims(like), n = eas_node_rank(like) - bd;
    attr[0] = n;
    memcpy(attr + 1, eas_node_shape(like) + bd, sizeof *attr * (size_t)n);
    return v ? eager_do(op, 1, &v, n + 1, attr) : NULL;
}
/* NumPy lets values have more leading axes of size 1 than there is room for. */
static eas_node *without_leading_ones(eas_node *v, int rank)
{
    int bd = eas_node_batch_dims(v), have = eas_node_rank(v) - bd, axes[MAX], n = 0;
    while (have - n > rank && n < MAX && eas_node_shape(v)[bd + n] == 1) {
        axes[n] = n;
        n++;
    }
    return axes_op("squeeze", v, n, axes);
}
static eas_node *put_slice(eas_node *x, eas_node *v, key *k);
static eas_node *put_picked(eas_node *x, eas_node *v, key *k)
{
    int64_t attr[2 * MAX + 2];
    eas_node *in[2] = {x, NULL}, *part = picked_of(eas_node_retain(x), k);
    k->picked = false;
    in[1] = part ? put_slice(part, v, k) : (eas_node_release(v), NULL);
    k->picked = true;
    return eager_do("slice_update", 2, in, pick_attr(k, attr), attr);
}
static eas_node *put_slice(eas_node *x, eas_node *v, key *k) /* x with v in place of its slice; steals both */
{
    if (k->picked)
        return put_picked(x, v, k);
    int64_t attr[3 * MAX + 3], n = 0;
    eas_node *in[2] = {x, v};
    if (!k->sliced && x && v && eas_node_batch_dims(v) >= eas_node_batch_dims(x)) {
        eas_node_release(x);
        return v;
    }
    for (int w = 0; w < 3; w++) {
        const int64_t *from = w == 0 ? k->start : w == 1 ? k->stop : k->step;
        attr[n++] = k->rank;
        for (int i = 0; i < k->rank; i++)
            attr[n++] = w == 2 && from[i] == INT64_MIN ? 1 : from[i];
    }
    return eager_do("slice_set", 2, in, (int)n, attr);
}
static eas_node *set_basic(eas_node *x, eas_node *v, key *k, int how) /* steals v */
{
    eas_node *part = basic(eas_node_retain(x), k), *whole = slice_of(eas_node_retain(x), k), *r = NULL;
    if (part && whole && v) {
        v = without_leading_ones(v, logical_rank(part));
        if (how != INDEX_SET && v) {
            eas_node *in[2] = {eas_node_retain(part), v};
            v = index_cast(eager_do(join_names[how], 2, in, 0, NULL), eas_node_dtype(x));
        }
        v = shaped("reshape", shaped("broadcast_to", v, part), whole);
        r = v ? put_slice(eas_node_retain(x), v, k) : NULL;
        v = NULL;
    }
    eas_node_release(v);
    eas_node_release(part);
    eas_node_release(whole);
    return r;
}
static eas_node *set_indexed(eas_node *x, eas_node *v, key *k, int how) /* steals v */
{
    eas_node *in[MAX + 2], *part = basic(eas_node_retain(x), k), *whole = slice_of(eas_node_retain(x), k),
                           *r = NULL;
    int64_t attr[MAX + 2] = {k->nindex};
    if (!part || !whole || !v) {
        eas_node_release(v);
        eas_node_release(part);
        eas_node_release(whole);
        return NULL;
    }
    in[0] = part;
    in[1] = open_gap(v, k);
    for (int i = 0; i < k->nindex; i++) {
        in[2 + i] = eas_node_retain(k->index[i]);
        attr[1 + i] = k->at[i];
    }
    attr[1 + k->nindex] = how;
    r = shaped("reshape", eager_do("index_update", k->nindex + 2, in, k->nindex + 2, attr), whole);
    eas_node_release(whole);
    return r ? put_slice(eas_node_retain(x), r, k) : NULL;
}
static eas_node *set_masked(eas_node *x, eas_node *v, key *k, int how) /* steals v; v is one number */
{
    if (how != INDEX_SET) {
        eas_node *in[2] = {eas_node_retain(x), v};
        v = index_cast(eager_do(join_names[how], 2, in, 0, NULL), eas_node_dtype(x));
    }
    eas_node *in[3] = {eas_node_retain(k->mask_node), v, eas_node_retain(x)};
    return eager_do("where", 3, in, 0, NULL);
}
static eas_node *set_item(eas_node *x, PyObject *keyobj, PyObject *value, int how) /* steals x */
{
    key k;
    PyObject *one = x ? number_from(value) : NULL;
    eas_node *v = one ? eager_operand(one) : NULL, *r = NULL;
    Py_XDECREF(one);
    if (x && !v && !PyErr_Occurred())
        py_fail(PyExc_TypeError, "a tensor's elements cannot be set to a %s", Py_TYPE(value)->tp_name);
    v = v ? index_cast(v, eas_node_dtype(x)) : NULL;
    memset(&k, 0, sizeof k);
    if (v && key_read(keyobj, x, logical_rank(v) == 0, &k))
        r = k.mask   ? set_masked(x, v, &k, how)
          : k.nindex ? set_indexed(x, v, &k, how)
                     : set_basic(x, v, &k, how);
    else
        eas_node_release(v);
    key_free(&k);
    eas_node_release(x);
    return r;
}
eas_node *index_updated(PyObject *o, PyObject *keyobj, PyObject *value, int how)
{
    dynamic d;
    eas_node *x = index_operand(o), *r = NULL;
    if (!x)
        return NULL;
    if (dynamic_read(keyobj, x, &d)) {
        r = dynamic_part(eas_node_retain(x), &d, d.n);
        r = r ? set_item(r, d.key ? d.key : keyobj, value, how) : NULL;
        /* from the last slice outwards: where it was taken from, with it put back */
        for (int i = d.n - 1; i >= 0 && r; i--) {
            eas_node *in[3] = {dynamic_part(eas_node_retain(x), &d, i), eas_node_retain(d.index[i]), r};
            int64_t attr[2] = {d.axis[i], INDEX_SET};
            r = eager_do("scatter", 3, in, 2, attr);
        }
    }
    dynamic_free(&d);
    eas_node_release(x);
    return r;
}
int index_record(eas_node *out, PyObject *x, PyObject *value, bool in_place)
{
    if (!eas_node_is_traced(out))
        return 1;
    PyObject *args = PyTuple_Pack(2, x, value),
             *kwargs = Py_BuildValue("{s:O}", "use_buffer_ops", in_place ? Py_True : Py_False);
    int code = eas_tensor_op_find("slice_update");
    int ok = args && kwargs &&
             impl_record(&out, 1, code < 0 ? NULL : op_object((eas_tensor_op)code), args, kwargs, NULL);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return ok;
}
/* Tensor.op_kwargs shows whether elements may be written where they lie. */
int index_note_way(PyObject *t, PyObject *in_place)
{
    Eager *e = (Eager *)t;
    if (!e->extra && !(e->extra = PyDict_New()))
        return 0;
    return PyDict_SetItemString(e->extra, "use_buffer_ops", in_place) == 0;
}
int eager_ass_subscript(PyObject *o, PyObject *keyobj, PyObject *value)
{
    if (!value)
        return py_fail(PyExc_TypeError, "elements of a tensor cannot be deleted"), -1;
    eas_node *n = index_updated(o, keyobj, value, INDEX_SET);
    if (!n)
        return -1;
    if (!index_record(n, o, value, true) || (eager_strict && !eager_tracing && !eager_realize(1, &n))) {
        eas_node_release(n);
        return -1;
    }
    eas_node *old = ((Eager *)o)->n;
    ((Eager *)o)->n = n;
    eas_node_release(old);
    return index_note_way(o, Py_True) ? 0 : -1;
}
