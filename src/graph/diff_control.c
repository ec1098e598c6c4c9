/* diff_control.c: derivatives of loops and branches. */
#include "graph.h"

eas_status diff_control_forth(gbuild *g, eas_node *n, eas_node *const *t, eas_node **out)
{
    (void)g, (void)n, (void)t, (void)out;
    return base_fail(EAS_ERR_UNAVAILABLE, "loop");
}

eas_status diff_control_back(gbuild *g, eas_node *n, eas_node *const *ct, const bool *wanted, eas_node **grads)
{
    (void)g, (void)n, (void)ct, (void)wanted, (void)grads;
    return base_fail(EAS_ERR_UNAVAILABLE, "loop");
}
