/* fuse_cost.c: what it costs to compute a node again where it is used, for the decisions of fuse.c.
 *
 * A cost counts instructions for one element, with everything that would be inlined into it; operations that
 * always need memory of their own (reductions, products, scans, sorts, calls) cost nothing to read again.
 * The numbers are weights, not cycles: all that matters is on which side of FUSE_CHEAP a node falls.
 */
#include "exec.h"

enum { HEAVY = -1, FREE = 8 };

/* Will it be in memory, in C order? */
static bool own_memory(const pnode *p)
{
    switch (p->kind) {
    case KIND_LEAF: return !p->nwords;
    case KIND_MATMUL:
    case KIND_SORT:
    case KIND_COMPACT:
    case KIND_SCATTER:
    case KIND_RESULT: return true;
    default: return false;
    }
}

/* Does the reshape of x to p merge several dims into one? Then an index into p must be taken apart by
 * divisions; splitting dims takes only multiplications and additions. */
static bool joins_dims(const pnode *p, const pnode *x)
{
    int i = 0;
    for (int k = 0; k < x->rank; k++) {
        eas_dim whole = x->shape[k], part = 1;
        while (part != whole) {
            while (i < p->rank && p->shape[i] == 1)
                i++;
            if (i == p->rank || (part != 1 && !(dim_known(part) && dim_known(whole))))
                return true;
            eas_dim_apply(EAS_DIM_MUL, part, p->shape[i++], &part);
            if (part != whole && (!dim_known(part) || !dim_known(whole) || part > whole))
                return true;
        }
    }
    return false;
}

/* Will x be stored because several nodes use it? A node with several users is stored unless it is cheap to
 * compute in each of them. A node that ends a chain after a product is stored in any case: it takes the
 * memory that the product would have had. */
bool fuse_kept(const place *x) { return x->users > 1 && (x->cost > FUSE_CHEAP || x->tail); }

/* Is p all that is made of a product, element by element, or a reshape of that? */
static bool follows_product(const fusion *f, const pnode *p)
{
    if (p->kind == KIND_RESHAPE)
        return f->at[p->in[0]].tail && f->at[p->in[0]].users == 1;
    if (p->kind != KIND_MAP && p->kind != KIND_CAST)
        return false;
    for (int k = 0; k < p->nin; k++) {
        const pnode *x = pass_at(f->g, p->in[k]);
        const place *q = &f->at[p->in[k]];
        if ((x->kind == KIND_MATMUL || q->tail) && q->users == 1 && x->rank == p->rank &&
            !memcmp(x->shape, p->shape, sizeof *x->shape * x->rank))
            return true;
    }
    return false;
}

/* Can a reshape of x read it from memory, whatever else becomes of it? */
static bool reshaped_in_memory(const pnode *x, const place *at)
{
    return own_memory(x) || fuse_kept(at) ||
           ((x->kind == KIND_REDUCE || x->kind == KIND_ARG) && at->users > 1);
}

static int own_cost(const pgraph *g, const pnode *p, const place *at)
{
    switch (p->kind) {
    case KIND_RESHAPE:
        return joins_dims(p, pass_at(g, p->in[0])) && !reshaped_in_memory(pass_at(g, p->in[0]), &at[p->in[0]])
                 ? FUSE_CHEAP + 1
                 : 0;
    case KIND_MAP: {
        const char *ir = graph_rows[p->op].ir;
        uint16_t op = ir ? eas_op_find(ir) : 0;
        if (!ir)
            return 6;
        return ir_rows[op].flags & IR_EXPAND ? 8 : op == IR_DIV || op == IR_SQRT ? 3 : 1;
    }
    case KIND_RANDOM: return 12;
    case KIND_GATHER:
    case KIND_ALONG:
    case KIND_PAD:
    case KIND_UPDATE: return 1;
    case KIND_CONCAT: return p->nin;
    case KIND_REDUCE:
    case KIND_ARG:
    case KIND_SCAN:
    case KIND_MATMUL:
    case KIND_SCATTER:
    case KIND_SORT:
    case KIND_COMPACT:
    case KIND_CALL:
    case KIND_COLLECTIVE:
    case KIND_CONTROL: return HEAVY;
    default: return 0;
    }
}

/* Computes every node's cost, as if all expensive nodes below it were in memory. A node that reads no
 * memory at all (index ranges and numbers) counts as free up to FREE operations: computing it again saves a
 * load. */
void fuse_costs(fusion *f)
{
    /* nodes that passes have replaced are still in the list, and read nothing */
    for (uint32_t i = 1; i < f->g->n.len; i++)
        for (int k = 0; k < pass_at(f->g, i)->nin && f->uses[i]; k++)
            f->at[pass_at(f->g, i)->in[k]].users += f->at[pass_at(f->g, i)->in[k]].users < 2;
    for (uint32_t i = 1; i < f->g->n.len; i++) {
        const pnode *p = pass_at(f->g, i);
        place *q = &f->at[i];
        int own = own_cost(f->g, p, f->at), c = own == HEAVY ? 0 : own, len = 0;
        bool reads = p->kind == KIND_LEAF || own == HEAVY;
        q->heavy = own == HEAVY;
        q->tail = follows_product(f, p);
        for (int k = 0; k < p->nin; k++) {
            const place *x = &f->at[p->in[k]];
            bool stored =
                /* a node with other users is stored if it costs enough: then its transpose is a view of that
                 */
                p->kind == KIND_PERMUTE && x->users > 1;
            stored |= p->kind == KIND_RESHAPE && fuse_kept(x);
            c += own == HEAVY || stored ? 0 : x->cost;
            len = x->len > len ? x->len : len;
            q->heavy |= x->heavy;
            reads |= x->reads;
        }
        q->reads = reads;
        q->cost = (uint16_t)(c > UINT16_MAX ? UINT16_MAX : !reads && c <= FREE ? 0 : c);
        q->len = (uint16_t)(len < FUSE_LONG ? len + 1 : FUSE_LONG);
    }
}
