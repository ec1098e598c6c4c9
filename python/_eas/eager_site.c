/* eager_site.c: the line that records an operation, as a number that a node can carry; and objects that are
 * let go later, since libeas drops nodes and memory on any thread and under its own locks. */
#include "py.h"

#include <stdatomic.h>
#include <string.h>

/* ---- lines ---- */
/* Chunks stay where they are and a number is given out once its place is written, so looking needs no lock:
 * libeas asks without the GIL. */
typedef struct place {
    char *file;
    int line;
} place;
enum { CHUNK = 1024, CHUNKS = 4096 };
static place *chunks[CHUNKS];
static uint32_t nplaces = 1; /* 0 is none */
static PyObject *numbers; /* (file, line) -> number */

enum { SLOTS = 1024 };
static struct slot {
    PyCodeObject *code; /* counted: its address stays its own */
    int lasti;
    uint32_t number; /* 0: code of ours, look further out */
    bool ours;
} slots[SLOTS];

static uint32_t add_place(PyObject *file, int line)
{
    const char *name = PyUnicode_AsUTF8(file);
    place **chunk = &chunks[nplaces / CHUNK];
    if (!name || nplaces == CHUNK * CHUNKS || (!*chunk && !(*chunk = calloc(CHUNK, sizeof **chunk))))
        return 0;
    place *p = &(*chunk)[nplaces % CHUNK];
    *p = (place){strdup(name), line};
    return p->file ? nplaces++ : 0;
}
static uint32_t number_of(PyObject *file, int line)
{
    PyObject *key = Py_BuildValue("(Oi)", file, line),
             *n = key ? PyDict_GetItemWithError(numbers, key) : NULL;
    uint32_t r = n ? (uint32_t)PyLong_AsUnsignedLong(n) : 0;
    if (key && !n && !PyErr_Occurred() && (r = add_place(file, line))) {
        PyObject *v = PyLong_FromUnsignedLong(r);
        if (v)
            PyDict_SetItem(numbers, key, v);
        Py_XDECREF(v);
    }
    Py_XDECREF(key);
    PyErr_Clear();
    return r;
}
static bool is_ours(PyCodeObject *code)
{
    PyObject *file = code->co_filename;
    return (G.package && PyUnicode_Tailmatch(file, G.package, 0, PY_SSIZE_T_MAX, -1) == 1) ||
           (G.package2 && PyUnicode_Tailmatch(file, G.package2, 0, PY_SSIZE_T_MAX, -1) == 1);
}
static struct slot *slot_of(PyFrameObject *f)
{
    PyCodeObject *code = PyFrame_GetCode(f);
    int lasti = PyFrame_GetLasti(f);
    struct slot *s =
        &slots[(((uintptr_t)code >> 4) ^ ((uintptr_t)code >> 14) ^ (unsigned)lasti * 37u) % SLOTS];
    if (s->code != code || s->lasti != lasti) {
        PyCodeObject *old = s->code;
        bool ours = is_ours(code);
        uint32_t n = ours ? 0 : number_of(code->co_filename, PyFrame_GetLineNumber(f));
        *s = (struct slot){(PyCodeObject *)Py_NewRef(code), lasti, n, ours};
        Py_XDECREF(old);
    }
    Py_DECREF(code);
    return s;
}
uint32_t site_here(void)
{
    PyFrameObject *f = PyEval_GetFrame();
    if (!f)
        return 0;
    struct slot *s = slot_of(f);
    if (!s->ours)
        return s->number;
    uint32_t n = 0;
    Py_INCREF(f);
    while (f) {
        s = slot_of(f);
        bool ours = s->ours;
        n = s->number;
        PyFrameObject *back = ours ? PyFrame_GetBack(f) : NULL;
        Py_DECREF(f);
        f = back;
    }
    return n;
}
int site_find(uint32_t site, char *file, size_t room, int *line)
{
    const place *p = site && site < nplaces ? &chunks[site / CHUNK][site % CHUNK] : NULL;
    if (!p)
        return 0;
    snprintf(file, room, "%s", p->file);
    *line = p->line;
    return 1;
}
PyObject *site_text(uint32_t site)
{
    char file[1024];
    int line;
    return site_find(site, file, sizeof file, &line) ? PyUnicode_FromFormat("%s:%d", file, line)
                                                     : Py_NewRef(Py_None);
}

/* ---- later ---- */
typedef struct later {
    struct later *next;
    PyObject *object;
} later;
_Atomic(void *) later_list;

void later_decref(void *object)
{
    if (!object)
        return;
    later *l = PyMem_RawMalloc(sizeof *l);
    if (!l)
        return; /* a leak, when there is no memory at all */
    l->object = object;
    void *head = atomic_load(&later_list);
    do
        l->next = head;
    while (!atomic_compare_exchange_weak(&later_list, &head, l));
}
/* Letting go of one object may put others on the list: the loop takes them, not the stack. */
void later_run(void)
{
    static bool running;
    if (running)
        return;
    running = true;
    for (later *l; (l = atomic_exchange(&later_list, NULL));)
        while (l) {
            later *next = l->next;
            Py_DECREF(l->object);
            PyMem_RawFree(l);
            l = next;
        }
    running = false;
}

static PyObject *set_package2(PyObject *m, PyObject *folder)
{
    (void)m;
    if (!PyUnicode_Check(folder))
        return py_fail(PyExc_TypeError, "a folder is a str");
    Py_XSETREF(G.package2, Py_NewRef(folder));
    Py_RETURN_NONE;
}
static PyMethodDef functions[] = {{"_set_package2", set_package2, METH_O,
                                   "_set_package2(folder): frames of files in it are not the user's"},
                                  {NULL, NULL, 0, NULL}};
int site_init(PyObject *module)
{
    eas_site_set_resolver(site_find);
    return (numbers = PyDict_New()) ? PyModule_AddFunctions(module, functions) : -1;
}
