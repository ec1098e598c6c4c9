/* attend.c: the derivative of softmax(s) @ v has row sums of P * (G @ v^T), with P the softmax and G a
 * cotangent of the result O = P @ v. They are the row sums of G * O: sum_j P_ij sum_d G_id v_jd = sum_d G_id
 * O_id. In this form they need no matrix of the size of s, and exec can leave that out altogether
 * (lower_attention_back.c).
 */
#include "pass.h"

static bool is_op(const pgraph *g, uint32_t i, uint16_t op) { return pass_at(g, i)->op == op; }

static bool is_softmax(const pgraph *g, uint32_t i)
{
    if (!is_op(g, i, GRAPH_MUL))
        return false;
    const uint32_t e = pass_at(g, i)->in[0], inverse = pass_at(g, i)->in[1];
    if (!is_op(g, e, GRAPH_EXP) || !is_op(g, inverse, GRAPH_RECIPROCAL))
        return false;
    const uint32_t sum = pass_at(g, inverse)->in[0];
    return is_op(g, sum, GRAPH_REDUCE_SUM) && pass_at(g, sum)->in[0] == e && pass_at(g, sum)->nwords == 2 &&
           pass_at(g, sum)->words[1] == pass_at(g, e)->rank - 1;
}

uint32_t pass_row_sums(pgraph *g, const pnode *p)
{
    const pnode *m = pass_at(g, p->in[0]);
    if (p->op != GRAPH_REDUCE_SUM || m->op != GRAPH_MUL || p->nwords != 2 || p->words[1] != m->rank - 1)
        return 0;
    const int k = is_softmax(g, m->in[0]) ? 0 : is_softmax(g, m->in[1]) ? 1 : -1;
    if (k < 0 || !is_op(g, m->in[1 - k], GRAPH_MATMUL))
        return 0;
    const uint32_t soft = m->in[k], factor = pass_at(g, m->in[1 - k])->in[0],
                   values = pass_at(g, m->in[1 - k])->in[1];
    const pnode *s = pass_at(g, soft), *ct = pass_at(g, factor), *v = pass_at(g, values),
                *d = pass_at(g, m->in[1 - k]);
    eas_dim shape[GRAPH_MAX_RANK];
    if (s->rank != d->rank || memcmp(s->shape, d->shape, sizeof *s->shape * s->rank) || ct->rank > s->rank ||
        v->rank > s->rank || ct->dtype != s->dtype || v->dtype != s->dtype)
        return 0;
    memcpy(shape, s->shape, sizeof *shape * s->rank);
    shape[s->rank - 1] = v->shape[v->rank - 2];
    pnode o = {.op = GRAPH_MATMUL,
               .kind = KIND_MATMUL,
               .dtype = s->dtype,
               .rank = s->rank,
               .nin = 2,
               .param = PARAM_NONE,
               .shape = shape};
    pnode w = {.op = GRAPH_MUL,
               .kind = KIND_MAP,
               .dtype = s->dtype,
               .rank = s->rank,
               .nin = 2,
               .param = PARAM_NONE,
               .shape = shape};
    uint32_t in[2] = {soft, pass_turned(g, values)}, sum;
    o.in = in;
    in[1] = in[1] ? pass_add(g, &o) : 0;
    in[0] = factor;
    w.in = in;
    sum = in[1] ? pass_add(g, &w) : 0;
    pnode r = *p;
    r.in = &sum;
    return sum ? pass_add(g, &r) : 0;
}
