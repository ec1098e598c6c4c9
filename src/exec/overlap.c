/* overlap.c: collectives of a plan are started early and awaited late, and small ones that can be started
 * together go as one.
 *
 * The steps are in their order. A collective can start once the last of its inputs is written, and its
 * results are not needed before the first step that reads one of them. It becomes two steps at these two
 * places; what stands between them runs meanwhile. Both have the inputs and the results as arguments, so that
 * their memory is kept from the one to the other.
 *
 * Several small reductions over the same devices, of one dtype, are one if there is a place where all can
 * have started and none is needed yet: a message costs more than its few bytes, and the elements are joined
 * in the same order. All devices have the same plan, so they agree on all of this.
 */
#include "exec.h"

enum { SMALL = 64 << 10, TOGETHER = 256 << 10, MOST = 64 }; /* bytes of one, bytes of all, how many */

typedef struct pending { /* collectives that are one */
    VEC(uint32_t) steps;
    uint32_t from, until; /* it starts before step `from`, and is awaited before step `until` */
    int64_t bytes; /* -1: it stays alone */
} pending;
typedef VEC(pending) VEC_PENDING;

static int outputs(const plan_step *s) { return s->nouts < 0 ? -s->nouts : 0; }

static bool reads(const plan_step *s, uint32_t first, int n)
{
    for (int k = s->nouts > 0 ? s->nouts : 0; k < s->nargs; k++)
        if (s->args[k].what == USE_NODE && s->args[k].index >= first &&
            s->args[k].index < first + (uint32_t)n)
            return true;
    return false;
}

/* The first step that reads what step i makes. */
static uint32_t first_reader(uint32_t n, const plan_step *steps, uint32_t i)
{
    for (uint32_t k = i + 1; k < n; k++)
        if (reads(&steps[k], steps[i].reuse, outputs(&steps[i])))
            return k;
    return n;
}

static int64_t bytes_of(const plan_step *s, const slot *slots)
{
    int64_t all = 0;
    for (int k = 0; k < s->nargs; k++) {
        const slot *x = &slots[s->args[k].index];
        if (!dim_known(x->count))
            return -1;
        all += x->count * (int64_t)eas_dtype_size((eas_dtype)x->dtype);
    }
    return all;
}

static bool may_join(const plan_step *s, int64_t bytes)
{
    return s->collective[COLL_KIND] == COLL_REDUCE && s->nargs == 1 && bytes >= 0 && bytes <= SMALL;
}

static bool alike(const plan_step *a, const plan_step *b)
{
    return a->collective[COLL_JOIN] == b->collective[COLL_JOIN] &&
           a->collective[COLL_MESH] == b->collective[COLL_MESH] &&
           a->collective[COLL_AXES] == b->collective[COLL_AXES] && a->args[0].dtype == b->args[0].dtype;
}

static uint32_t later(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t earlier(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* The steps i and what it is joined with; false: no memory. */
static bool add_pending(VEC_PENDING *all, const plan_step *steps, uint32_t i, uint32_t from, uint32_t until,
                        int64_t bytes)
{
    for (uint32_t k = 0; k < all->len && bytes >= 0; k++) {
        pending *p = &all->at[k];
        if (p->bytes < 0 || p->bytes + bytes > TOGETHER || p->steps.len >= MOST ||
            !alike(&steps[p->steps.at[0]], &steps[i]))
            continue;
        if (later(p->from, from) > earlier(p->until, until))
            continue;
        p->from = later(p->from, from);
        p->until = earlier(p->until, until);
        p->bytes += bytes;
        return vec_push(&p->steps, i);
    }
    pending p = {.from = from, .until = until, .bytes = bytes};
    return vec_push(&p.steps, i) && vec_push(all, p);
}

/* wrote: per slot, the step after which it is there. A slot that a collective writes is there when that is
 * awaited, which is before its first reader. */
static bool collect(uint32_t n, const plan_step *steps, uint32_t nslots, const slot *slots, VEC_PENDING *all)
{
    uint32_t *there = calloc(nslots + 1, sizeof *there);
    for (uint32_t i = 0; i < n && there; i++) {
        const plan_step *s = &steps[i];
        for (int k = 0; k < s->nouts; k++)
            there[s->args[k].index] = i + 1;
        for (int k = 0; k < outputs(s); k++)
            there[s->reuse + (uint32_t)k] = i + 1;
        if (!s->collective)
            continue;
        uint32_t from = 0, until = first_reader(n, steps, i);
        for (int k = 0; k < s->nargs; k++)
            from = later(from, there[s->args[k].index]);
        for (int k = 0; k < outputs(s); k++)
            /* a collective of it comes after it is awaited */
            there[s->reuse + (uint32_t)k] = later(from, until);
        int64_t bytes = bytes_of(s, slots);
        if (!add_pending(all, steps, i, from, until, may_join(s, bytes) ? bytes : -1)) {
            free(there);
            return false;
        }
    }
    bool ok = there != NULL;
    free(there);
    return ok;
}

/* One step that starts or awaits; the words are given to it. */
static bool make(const pending *p, const plan_step *steps, int phase, uint32_t number, plan_step *out)
{
    int n = 0, at = 0;
    for (uint32_t i = 0; i < p->steps.len; i++)
        n += steps[p->steps.at[i]].nargs;
    const plan_step *one = &steps[p->steps.at[0]];
    size_t words = sizeof *one->collective * (size_t)coll_nwords(one->collective);
    *out = (plan_step){
        .grid = {1, 1, 1}, .reuse = SLOT_NONE, .nargs = 2 * n, .phase = (uint8_t)phase, .number = number};
    out->args = calloc((size_t)(2 * n) + 1, sizeof *out->args);
    out->collective = malloc(words);
    if (!out->args || !out->collective)
        return false;
    memcpy(out->collective, one->collective, words);
    for (uint32_t i = 0; i < p->steps.len; i++) {
        const plan_step *s = &steps[p->steps.at[i]];
        for (int k = 0; k < s->nargs; k++, at++) {
            out->args[at] = s->args[k];
            out->args[n + at] = (struct plan_arg){
                .what = USE_NODE, .dtype = s->args[k].dtype, .index = s->reuse + (uint32_t)k};
        }
    }
    return true;
}

static bool emit(VEC_PLAN_STEP *out, const pending *p, const plan_step *steps, int phase, uint32_t number)
{
    plan_step s;
    if (make(p, steps, phase, number, &s) && vec_push(out, s))
        return true;
    free(s.args);
    free(s.collective);
    return false;
}

eas_status plan_overlap(VEC_PLAN_STEP *steps, uint32_t nslots, const slot *slots, uint32_t *ncomms)
{
    VEC_PENDING all = {0};
    VEC_PLAN_STEP out = {0};
    bool any = false, ok = true;
    *ncomms = 0;
    for (uint32_t i = 0; i < steps->len && !any; i++)
        any = steps->at[i].collective != NULL;
    if (!any)
        return EAS_OK;
    ok = collect(steps->len, steps->at, nslots, slots, &all);
    for (uint32_t i = 0; i <= steps->len && ok; i++) {
        /* collectives that are awaited before this step come first: their results may be inputs of others */
        for (uint32_t k = 0; k < all.len && ok; k++)
            ok = all.at[k].until != i || all.at[k].from >= i ||
                 emit(&out, &all.at[k], steps->at, STEP_WAIT, k);
        for (uint32_t k = 0; k < all.len && ok; k++)
            if (all.at[k].from == i) {
                ok = emit(&out, &all.at[k], steps->at, STEP_START, k);
                if (ok && all.at[k].until <= i)
                    ok = emit(&out, &all.at[k], steps->at, STEP_WAIT, k);
            }
        if (ok && i < steps->len && !steps->at[i].collective)
            ok = vec_push(&out, steps->at[i]);
    }
    for (uint32_t i = 0; i < steps->len && ok; i++)
        if (steps->at[i].collective) {
            free(steps->at[i].args);
            free(steps->at[i].collective);
        }
    for (uint32_t k = 0; k < all.len; k++)
        vec_free(&all.at[k].steps);
    *ncomms = all.len;
    vec_free(&all);
    if (!ok) { /* no memory: the caller keeps the steps as they were */
        for (uint32_t i = 0; i < out.len; i++)
            if (out.at[i].collective) {
                free(out.at[i].args);
                free(out.at[i].collective);
            }
        vec_free(&out);
        return base_fail_oom(steps->len);
    }
    vec_free(steps);
    *steps = out;
    return EAS_OK;
}
