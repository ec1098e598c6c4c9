/* nodes.h: words in which the tests of lazy tensors speak. */
#ifndef NODES_H
#define NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "eas.h"

static inline void ok(eas_status st)
{
    if (st)
        fail_msg("%s", eas_error_message());
}
static inline eas_node *op(const char *name, int nin, eas_node *const *in, int nattr, const int64_t *attr)
{
    eas_node *n;
    int code = eas_tensor_op_find(name);
    assert_true(code >= 0);
    ok(eas_node_apply((eas_tensor_op)code, nin, in, nattr, attr, &n));
    return n;
}
static inline eas_node *op2(const char *name, eas_node *x, eas_node *y)
{
    return op(name, 2, (eas_node *[]){x, y}, 0, NULL);
}
static inline eas_node *number(double v)
{
    eas_node *n;
    ok(eas_node_number(EAS_F32, 1, 0, v, &n));
    return n;
}

#endif
