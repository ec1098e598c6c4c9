/* show.c: what a plan will do, for people: the groups with their nodes, what is stored, and the memory that takes. */
#include "exec.h"

static void add_node(str *s, const pgraph *g, uint32_t i)
{
    const pnode *p = pass_at(g, i);
    str_add(s, "%%%u = %s", i, graph_rows[p->op].name);
    for (int k = 0; k < p->nin; k++)
        str_add(s, "%s%%%u", k ? ", " : " ", p->in[k]);
    if (p->kind == KIND_LEAF || (p->kind == KIND_CONST && !p->fixed))
        str_add(s, " #%u", p->param);
    str_add(s, " : %s", eas_dtype_name((eas_dtype)p->dtype));
    shape_add_text(s, p->rank, p->shape);
}

static const char *const kinds[] = {"map", "matmul", "scan", "scatter", "sort", "call", "alias", "attention"};

void show_groups(str *s, const fusion *f)
{
    for (uint32_t k = f->groups.len - 1; k > 0; k--) {
        const group *g = &f->groups.at[k];
        str_add(s, "kernel %u: %s over ", f->groups.len - k, kinds[g->kind]);
        shape_add_text(s, g->rank, g->space);
        if (g->inner) {
            str_add(s, ", along");
            for (int d = 0; d < g->rank; d++)
                if (g->inner >> d & 1)
                    str_add(s, " %d", d);
        }
        str_add(s, "\n");
        for (uint32_t i = 1; i < f->g->n.len; i++) {
            const place *q = &f->at[i];
            const pnode *p = pass_at(f->g, i);
            if (q->group != k || !q->used || q->many || p->kind == KIND_LEAF || p->kind == KIND_CONST)
                continue;
            str_add(s, "    ");
            add_node(s, f->g, i);
            str_add(s, "%s\n", q->stored ? "  (stored)" : "");
        }
    }
}
