/* eager_show.c: what evaluating tensors would do, as text or as a drawing (eager.trace, eager.visualize). */
#include "py.h"

#include <string.h>

/* Names of tensors in a form that needs no GIL. */
typedef struct show_names {
    PyObject *names; /* {name: tensor} */
    Py_ssize_t n;
    eas_node **node; /* counted */
    const char **name;
} show_names;
static int show_names_read(show_names *s)
{
    PyObject *key, *v;
    Py_ssize_t pos = 0, room = PyDict_GET_SIZE(s->names) + 1;
    s->node = PyMem_New(eas_node *, (size_t)room);
    s->name = PyMem_New(const char *, (size_t)room);
    while (s->node && s->name && PyDict_Next(s->names, &pos, &key, &v)) {
        const char *text = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
        if (!text || !eager_check(v))
            continue;
        s->node[s->n] = eas_node_retain(eager_node(v));
        s->name[s->n++] = text;
    }
    return s->node && s->name ? 1 : (PyErr_NoMemory(), 0);
}
static void show_names_done(show_names *s)
{
    for (Py_ssize_t i = 0; i < s->n; i++)
        eas_node_release(s->node[i]);
    PyMem_Free(s->node);
    PyMem_Free(s->name);
}
static const char *show_name(void *context, eas_node *n, int input)
{
    (void)input;
    show_names *s = context;
    for (Py_ssize_t i = 0; i < s->n; i++)
        if (s->node[i] == n)
            return s->name[i];
    return NULL;
}
PyObject *eager_show(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    eas_node *nodes[64];
    const char *form =
        nargs > 2 && PyUnicode_Check(args[0]) && PyDict_Check(args[1]) ? PyUnicode_AsUTF8(args[0]) : NULL;
    int n = 0;
    for (Py_ssize_t i = 2; form && i < nargs && n < 64; i++)
        if (eager_check(args[i]))
            nodes[n++] = eager_node(args[i]);
    if (!form || !n)
        return py_fail(PyExc_TypeError, "show(form, {name: tensor}, *tensors)");
    char *text;
    eas_status st;
    show_names names = {.names = args[1]};
    if (!show_names_read(&names))
        return NULL;
    for (int i = 0; i < n; i++)
        eas_node_retain(nodes[i]);
    Py_BEGIN_ALLOW_THREADS;
    eas_show_set_namer(show_name, &names);
    st = eas_nodes_show(n, nodes, form, &text);
    eas_show_set_namer(NULL, NULL);
    Py_END_ALLOW_THREADS;
    show_names_done(&names);
    for (int i = 0; i < n; i++)
        eas_node_release(nodes[i]);
    return py_take_text(st, text);
}
