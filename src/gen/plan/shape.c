/* shape.c: canonical shapes, and the index maps through which a value is read.
 *
 * A canonical shape has no dims of size 1. An index map says, for each canonical dim of a value, which
 * iteration dim indexes it; broadcasts and reshapes of blocks are never computed: plan_resolve follows them
 * to the value that holds the data.
 */
#include "plan.h"

int64_t shape_lanes(const shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++)
        n *= s->dim[i];
    return n;
}

bool shape_eq(const shape *a, const shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, sizeof a->dim[0] * (size_t)a->rank) == 0;
}

shape plan_shape(const plan *p, ir_type t)
{
    shape s = {0};
    (void)p;
    for (int i = 0; i < t.rank; i++)
        if (t.dim[i] != 1)
            s.dim[s.rank++] = t.dim[i];
    return s;
}

map_t map_identity(int rank)
{
    map_t m = 0;
    for (int d = 0; d < 4; d++)
        m |= (map_t)((d < rank ? d : NODIM) << (4 * d));
    return m;
}

static map_t map_set(map_t m, int d, int to) { return (map_t)((m & ~(15 << (4 * d))) | to << (4 * d)); }

int plan_canon_dim(ir_type t, int d)
{
    int k = 0;
    if (t.dim[d] == 1)
        return NODIM;
    for (int i = 0; i < d; i++)
        k += t.dim[i] != 1;
    return k;
}

static map_t broadcast_map(ir_type from, ir_type to, map_t m)
{
    map_t r = map_identity(0);
    for (int d = 0; d < from.rank; d++) {
        const int s = plan_canon_dim(from, d), t = plan_canon_dim(to, d + to.rank - from.rank);
        if (s != NODIM)
            r = map_set(r, s, map_get(m, t));
    }
    return r;
}

/* The last two dims change places. */
static bool swaps(const plan *p, const ir_insn *in)
{
    const ir_type from = ir_typeof(p->ir, ir_args(p->ir, in)[0]), to = ir_typeof(p->ir, in->res);
    const int rank = plan_shape(p, from).rank;
    for (int d = 0, c = 0; d < to.rank; d++) {
        if (to.dim[d] == 1)
            continue;
        const int src = plan_canon_dim(from, ir_imm_perm(in->imm, d));
        if (src != (c == rank - 2 ? rank - 1 : c == rank - 1 ? rank - 2 : c))
            return false;
        c++;
    }
    return rank >= 2;
}

bool plan_whole(const plan *p, const ir_insn *in)
{
    if (in->op == IR_MATMUL && p->val[in->res].cls == C_UNI)
        return p->val[ir_args(p->ir, in)[0]].sh.rank > 0;
    if (!in->res || p->val[in->res].cls != C_BLOCK)
        return false;
    return in->op == IR_MATMUL || ir_rows[in->op].rule == IR_RULE_SCAN ||
           (in->op == IR_TRANS && p->val[ir_args(p->ir, in)[0]].cls == C_BLOCK && swaps(p, in));
}

map_t plan_source_map(const plan *p, const ir_insn *in, map_t m)
{
    const uint32_t src = ir_args(p->ir, in)[0];
    return in->op == IR_BROADCAST ? broadcast_map(ir_typeof(p->ir, src), ir_typeof(p->ir, in->res), m) : m;
}

bool plan_trivial_reshape(const plan *p, const ir_insn *in)
{
    const shape a = plan_shape(p, ir_typeof(p->ir, ir_args(p->ir, in)[0])),
                b = plan_shape(p, ir_typeof(p->ir, in->res));
    return shape_eq(&a, &b);
}

view plan_resolve(const plan *p, uint32_t v, map_t m)
{
    view w = {.v = v, .m = m};
    while (p->val[w.v].cls == C_VIEW) {
        const ir_insn *in = ir_def(p->ir, w.v);
        const uint32_t src = ir_args(p->ir, in)[0];
        if (in->op == IR_BROADCAST) {
            w.m = broadcast_map(ir_typeof(p->ir, src), ir_typeof(p->ir, w.v), w.m);
        } else if (!plan_trivial_reshape(p, in)) {
            w.linear = true;
            w.lin = p->val[w.v].sh;
            w.linmap = w.m;
            w.v = src;
            return w; /* classes make sure that src is a C_BLOCK */
        }
        w.v = src;
    }
    return w;
}

bool plan_identity(const plan *p, const view *w, const shape *sh)
{
    return !w->linear && w->m == map_identity(sh->rank) && shape_eq(&p->val[w->v].sh, sh);
}
