/* pytree.h: what the files of pytrees share.
 *
 *   pytree.c   types of nodes; flattening, unflattening, paths; one tree along the structure of another
 *   treedef.c  the TreeDef as an object of Python's, and the functions of the module
 */
#ifndef PYTREE_H
#define PYTREE_H

#include "py.h"

typedef enum tree_kind {
    T_LEAF,
    T_NONE,
    T_TUPLE,
    T_LIST,
    T_DICT,
    T_NAMED,
    T_ORDERED,
    T_DEFAULT,
    T_DATACLASS,
    T_CUSTOM
} tree_kind;

typedef struct tree_node {
    uint8_t kind;
    Py_ssize_t arity;
    PyObject *type; /* of T_NAMED, T_DATACLASS, T_CUSTOM */
    PyObject *aux;  /* keys of a dict; (factory, keys); static fields; what a custom node's flatten gave */
} tree_node;
typedef struct TreeDef {
    PyObject_HEAD tree_node *nodes;
    Py_ssize_t n, leaves;
} TreeDef;

/* What is known of a type that is no built-in container. */
typedef struct TypeInfo {
    PyObject_HEAD uint8_t kind;
    /* T_CUSTOM: functions; T_DATACLASS: names of the fields that are children, and of the others */
    PyObject *flatten, *unflatten;
} TypeInfo;

/* ---- pytree.c ---- */
extern PyTypeObject *treedef_type; /* set by treedef.c */
int tree_types_init(PyObject *module);
void tree_drop_nodes(tree_node *nodes, Py_ssize_t n);
PyObject *tree_register_node(PyObject *m, PyObject *args);
/* of a namedtuple or the children of a dataclass, counted; NULL, without an exception, of any other node */
PyObject *tree_field_names(const tree_node *t);
PyObject *tree_flatten_up_to(TreeDef *d, PyObject *tree); /* a list of what is at d's leaves */

#endif
