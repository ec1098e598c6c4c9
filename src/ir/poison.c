/* poison.c: marks for lanes of live values whose load was out of bounds.
 *
 * A load of a lane that no store needs is no fault (docs/ir.md), and while a kernel runs instruction by
 * instruction it is not known yet which lanes a store will need. So a lane that is loaded out of bounds is
 * marked, every lane that is computed from a marked one is marked as well, and the fault is reported where a
 * marked lane is stored, decides a branch, is used as an offset or a mask, or is read by the host. `where`
 * takes only the mark of the side that it chooses; `and` with false and `or` with true are not marked.
 */
#include "interp.h"

#include <stdio.h>

struct poison {
    uint8_t **bad; /* per value: a byte a lane, or NULL */
    uint32_t cap;
    eas_status st; /* of the first fault */
    base_error error; /* of that */
};

static const uint8_t *marks(const run *r, uint32_t v)
{
    return r->poison && v < r->poison->cap ? r->poison->bad[v] : NULL;
}
static bool is_bad(const run *r, uint32_t v, int64_t k) { return marks(r, v) && marks(r, v)[k]; }
static bool lane_on(const run *r, int64_t k) { return r->threads == 1 ? r->active[0] : r->active[k]; }

static bool out_of_memory(run *r) { return r->st = base_fail_oom(sizeof(struct poison)), false; }

static uint8_t *marks_of(run *r, uint32_t v)
{
    if (!r->poison && !(r->poison = calloc(1, sizeof *r->poison)))
        return out_of_memory(r), NULL;
    struct poison *p = r->poison;
    const uint32_t old = p->cap;
    if (v >= old && !vec_grow((void **)&p->bad, &p->cap, v + 1, sizeof *p->bad))
        return out_of_memory(r), NULL;
    for (uint32_t k = old; k < p->cap; k++)
        p->bad[k] = NULL;
    if (!p->bad[v] && !(p->bad[v] = calloc((size_t)interp_lanes(r, v), 1)))
        return out_of_memory(r), NULL;
    return p->bad[v];
}

static void mark(run *r, uint32_t v, int64_t k)
{
    uint8_t *m = marks_of(r, v);
    if (m)
        m[k] = 1;
}

void poison_load(run *r, uint32_t v, int64_t lane)
{
    const eas_status st = r->st;
    r->st = EAS_OK;
    mark(r, v, lane);
    if (r->st || r->poison->st)
        return;
    r->poison->st = st;
    base_error_keep(&r->poison->error, st);
}

void poison_drop(run *r, uint32_t v)
{
    if (!marks(r, v))
        return;
    free(r->poison->bad[v]);
    r->poison->bad[v] = NULL;
}

void poison_free(run *r)
{
    for (uint32_t v = 0; r->poison && v < r->poison->cap; v++)
        free(r->poison->bad[v]);
    if (r->poison)
        free(r->poison->bad);
    free(r->poison);
    r->poison = NULL;
}

bool poison_used(run *r, uint32_t v)
{
    const int64_t n = marks(r, v) ? interp_lanes(r, v) : 0;
    for (int64_t k = 0; k < n; k++)
        if (is_bad(r, v, k) && (r->threads == 1 || lane_on(r, k)))
            return r->st = base_error_raise(&r->poison->error), true;
    return false;
}

/* ---- instructions that use their operands: a marked lane is a fault ---- */

static bool fail_at(run *r) { return r->st = base_error_raise(&r->poison->error), true; }

/* Offset, mask and stored value of an access, in the lanes that take part: is one of them marked? */
static bool access_uses(run *r, const ir_insn *in, int first, int last)
{
    const uint32_t *a = ir_args(r->ir, in), mask = ir_mask(r->ir, in);
    const int64_t n = interp_lanes(r, a[1]);
    for (int64_t k = 0; k < n; k++) {
        if (!lane_on(r, k) || (mask && !is_bad(r, mask, k) && !r->val[mask][k]))
            continue;
        if (mask && is_bad(r, mask, k))
            return fail_at(r);
        for (int i = first; i < last; i++)
            if (is_bad(r, a[i], k))
                return fail_at(r);
    }
    return false;
}

bool poison_before(run *r, const ir_insn *in)
{
    if (!r->poison || !r->poison->st)
        return false;
    if (in->op == IR_LOAD)
        return access_uses(r, in, 1, 2);
    if (in->op == IR_STORE || ir_is_atomic(in))
        return access_uses(r, in, 1, in->op == IR_STORE ? 3 : 2 + ir_atomic_values(in->op));
    if (!(ir_rows[in->op].flags & (IR_EFFECT | IR_MEM)) && in->op != IR_SIMD_SHUFFLE)
        return false;
    for (int i = 0; i < in->nargs; i++)
        if (poison_used(r, ir_args(r->ir, in)[i]))
            return true;
    return false;
}

/* ---- marks that results take over from operands ---- */

/* Is the result of `and` or `or` in lane k decided by the operand that is not marked? */
static bool settled(const run *r, const ir_insn *in, int64_t k)
{
    const uint32_t *a = ir_args(r->ir, in);
    if ((in->op != IR_AND && in->op != IR_OR) || ir_typeof(r->ir, in->res).dtype != EAS_BOOL)
        return false;
    for (int i = 0; i < 2; i++)
        if (!is_bad(r, a[i], k) && (r->val[a[i]][k] != 0) == (in->op == IR_OR))
            return true;
    return false;
}

static void lane_by_lane(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    const int64_t n = interp_lanes(r, in->res);
    for (int64_t k = 0; k < n; k++) {
        bool bad = false;
        for (int i = 0; i < in->nargs; i++)
            bad |= is_bad(r, a[i], k);
        if (in->op == IR_WHERE)
            bad = is_bad(r, a[0], k) || is_bad(r, a[r->val[a[0]][k] ? 1 : 2], k);
        if (bad && !settled(r, in, k))
            mark(r, in->res, k);
    }
}

static void moved(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    const ir_type from = ir_typeof(r->ir, a[0]), to = ir_typeof(r->ir, in->res);
    const int64_t n = interp_lanes(r, in->res);
    if (r->threads > 1) {
        lane_by_lane(r, in);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        const int64_t src = ir_source_lane(in->op, in->imm, from, to, k);
        if (src >= 0 ? is_bad(r, a[0], src) : is_bad(r, a[1], 0))
            mark(r, in->res, k);
    }
}

static void along(run *r, const ir_insn *in, bool scan)
{
    const uint32_t x = ir_args(r->ir, in)[0];
    const ir_axis ax = ir_axis_of(ir_typeof(r->ir, x), (int)in->imm);
    for (int64_t o = 0; o < ax.outer; o++)
        for (int64_t i = 0; i < ax.inner; i++) {
            bool bad = false;
            for (int64_t k = 0; k < ax.n; k++) {
                bad |= is_bad(r, x, (o * ax.n + k) * ax.inner + i);
                if (bad && scan)
                    mark(r, in->res, (o * ax.n + k) * ax.inner + i);
            }
            if (bad && !scan)
                mark(r, in->res, o * ax.inner + i);
        }
}

static void product(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in);
    const int64_t m = ir_typeof(r->ir, a[0]).dim[0], K = ir_typeof(r->ir, a[0]).dim[1],
                  n = ir_typeof(r->ir, a[1]).dim[1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            bool bad = is_bad(r, a[2], i * n + j);
            for (int64_t k = 0; k < K && !bad; k++)
                bad = is_bad(r, a[0], i * K + k) || is_bad(r, a[1], k * n + j);
            if (bad)
                mark(r, in->res, i * n + j);
        }
}

static void loaded(run *r, const ir_insn *in)
{
    const uint32_t *a = ir_args(r->ir, in), mask = ir_mask(r->ir, in);
    const int64_t n = in->nargs == 4 && marks(r, a[3]) ? interp_lanes(r, in->res) : 0;
    for (int64_t k = 0; k < n; k++)
        if ((!lane_on(r, k) || !r->val[mask][k]) && is_bad(r, a[3], k))
            mark(r, in->res, k);
}

void poison_after(run *r, const ir_insn *in)
{
    bool any = false;
    for (int i = 0; i < in->nargs && r->poison; i++)
        any |= marks(r, ir_args(r->ir, in)[i]) != NULL;
    if (!any || in->nres != 1)
        return;
    switch (ir_rows[in->op].rule) {
    case IR_RULE_SHAPE:
    case IR_RULE_MOVE: moved(r, in); return;
    case IR_RULE_REDUCE: along(r, in, false); return;
    case IR_RULE_SCAN: along(r, in, true); return;
    case IR_RULE_MATMUL: product(r, in); return;
    case IR_RULE_LOAD: loaded(r, in); return;
    case IR_RULE_SAME:
    case IR_RULE_CMP:
    case IR_RULE_WHERE:
    case IR_RULE_CAST: lane_by_lane(r, in); return;
    default: return; /* the others are effects, whose operands poison_before looks at, or have no operands */
    }
}
