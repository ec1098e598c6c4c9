/* meshes.c: graphs with tensors on several meshes. A program is of one mesh; what goes from one mesh to
 * another (a GRAPH_SHARD on another mesh than what it is made of, as derivatives of such have them, too) is
 * evaluated on its own mesh first, and comes to the next one whole. */
#include "dist.h"

_Thread_local bool dist_several;

/* The mesh that a node lies on; NULL: none. Nothing below a GRAPH_SHARD is looked at. */
const dist_mesh *dist_mesh_of(eas_node *n)
{
    diff_set seen = {0};
    gbuild g = {0};
    VEC(eas_node *) stack = {0};
    const dist_mesh *found = NULL;
    bool ok = vec_push(&stack, n);
    while (ok && stack.len && !found && !g.st) {
        eas_node *x = stack.at[--stack.len];
        if (!(x->flags & NODE_SHARDED) || diff_set_has(&seen, x))
            continue;
        diff_set_add(&g, &seen, x);
        found = node_own_mesh(x);
        for (int i = 0; !found && ok && !node_real(x) && i < x->nin; i++) {
            int index;
            ok = vec_push(&stack, node_kind(x) == KIND_RESULT ? control_source(x, &index) : node_in(x)[i]);
        }
    }
    vec_free(&stack);
    free(seen.at);
    return found;
}

bool dist_foreign(const eas_node *n, int i)
{
    if (!dist_several || n->op != GRAPH_SHARD || i >= n->nin)
        return false;
    const dist_mesh *own = node_own_mesh(n), *other = dist_mesh_of(node_in(n)[i]);
    return own && other && own != other;
}

typedef VEC(eas_node *) VEC_NODES;

/* The inputs of nodes that are on another mesh than these, deepest first, counted. */
static eas_status transfers(int n, eas_node *const *nodes, VEC_NODES *out)
{
    diff_set seen = {0};
    gbuild g = {0};
    VEC(struct at {
        eas_node *n;
        int next;
    })
    stack = {0};
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        ok = vec_push(&stack, ((struct at){nodes[i], 0}));
        while (ok && stack.len && !g.st) {
            struct at *a = &stack.at[stack.len - 1];
            eas_node *x = a->n;
            if (a->next == 0 && (!(x->flags & NODE_SHARDED) || node_real(x) || diff_set_has(&seen, x))) {
                stack.len--;
                continue;
            }
            if (a->next == 0)
                diff_set_add(&g, &seen, x);
            if (a->next < x->nin) {
                int index, k = a->next++;
                ok = vec_push(
                    &stack, ((struct at){
                                node_kind(x) == KIND_RESULT ? control_source(x, &index) : node_in(x)[k], 0}));
                continue;
            }
            for (int k = 0; k < x->nin && ok; k++)
                if (dist_foreign(x, k) && !node_real(node_in(x)[k]))
                    ok = vec_push(out, node_ref(node_in(x)[k]));
            stack.len--;
        }
    }
    vec_free(&stack);
    free(seen.at);
    return ok && !g.st ? EAS_OK : base_fail_oom(out->len);
}

eas_status dist_stage(int n, eas_node *const *nodes, dist_evaluate evaluate, eas_device *device,
                      const eas_launch *hooks)
{
    VEC_NODES first = {0};
    eas_status st = transfers(n, nodes, &first);
    for (uint32_t i = 0; i < first.len && !st; i++) {
        const dist_mesh *m = dist_mesh_of(first.at[i]);
        if (!node_real(first.at[i]) && m)
            st = evaluate(m, 1, &first.at[i], device, hooks);
    }
    for (uint32_t i = 0; i < first.len; i++)
        node_unref(first.at[i]);
    vec_free(&first);
    return st;
}
