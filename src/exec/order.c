/* order.c: in which order the steps of a plan run.
 *
 * Steps come in the order in which results were asked for, which keeps much alive: all gradients of a network
 * wait for the first layer's, and with them everything that they are made of. So the order is changed:
 * a step that frees as much memory as it takes, or more, runs as soon as it can, and so does one that does so
 * together with a step that waits for it alone (laying out a factor of a product, and the product). Otherwise
 * the order stays. What must be known for this is which step writes and which reads each slot.
 */
#include "exec.h"

enum { MOST_STEPS = 4096 }; /* choosing takes the square of it, at worst */

typedef struct ordering {
    uint32_t n;
    const plan_step *steps;
    const slot *slots;
    uint32_t *waits;    /* per step: for how many others */
    uint32_t *uses;     /* per slot: steps that are still to come */
    uint8_t *there;     /* per slot: has memory */
    VEC(uint32_t) from, to; /* edges */
    uint32_t *first, *next; /* per step: its first edge; per edge: the next one */
    size_t most;        /* slots of a step */
    uint8_t *had;       /* room for as many */
} ordering;

static int64_t bytes_of(const slot *s)
{
    int64_t unknown = 1 << 16; /* a size that only a run knows */
    return (dim_known(s->count) ? s->count : unknown) * (int64_t)eas_dtype_size((eas_dtype)s->dtype);
}

/* The slots of a step, written ones first; how many are. */
static int slots_of(const plan_step *s, uint32_t *out, int *written)
{
    int n = 0;
    for (int k = 0; k < -s->nouts; k++)
        out[n++] = s->reuse + (uint32_t)k;
    for (int k = 0; k < s->nargs && k < s->nouts; k++)
        if (s->args[k].what == USE_NODE)
            out[n++] = s->args[k].index;
    *written = n;
    for (int k = s->nouts > 0 ? s->nouts : 0; k < s->nargs; k++)
        if (s->args[k].what == USE_NODE)
            out[n++] = s->args[k].index;
    return n;
}

static bool edge(ordering *o, uint32_t from, uint32_t to)
{
    if (from == to)
        return true;
    o->waits[to]++;
    return vec_push(&o->from, from) && vec_push(&o->to, to);
}

/* Whoever reads waits for whoever wrote; whoever writes, for all that read or wrote before. */
static bool find_edges(ordering *o, uint32_t nslots, uint32_t *few)
{
    uint32_t *writer = malloc(sizeof *writer * (nslots + 1u)),
             *reader = malloc(sizeof *reader * (nslots + 1u));
    VEC(uint32_t) who = {0};
    VEC(uint32_t) before = {0}; /* chains of readers */
    bool ok = writer && reader;
    for (uint32_t i = 0; ok && i < nslots; i++)
        writer[i] = reader[i] = UINT32_MAX;
    for (uint32_t i = 0; ok && i < o->n; i++) {
        int written, n = slots_of(&o->steps[i], few, &written);
        for (int k = 0; k < n && ok; k++) {
            uint32_t s = few[k];
            o->uses[s]++;
            if (writer[s] != UINT32_MAX)
                ok = edge(o, writer[s], i);
            for (uint32_t r = reader[s]; k < written && ok && r != UINT32_MAX; r = before.at[r])
                ok = edge(o, who.at[r], i);
            if (k >= written && ok) {
                ok = vec_push(&who, i) && vec_push(&before, reader[s]);
                reader[s] = who.len - 1;
            }
        }
        for (int k = 0; k < written; k++) {
            writer[few[k]] = i;
            reader[few[k]] = UINT32_MAX;
        }
    }
    free(writer), free(reader);
    vec_free(&who);
    vec_free(&before);
    return ok;
}

/* Bytes that are taken when it runs, less those that are free after it. */
static int64_t growth(const ordering *o, uint32_t step, uint32_t *few)
{
    int written, n = slots_of(&o->steps[step], few, &written);
    int64_t sum = 0;
    for (int k = 0; k < n; k++) {
        const slot *s = &o->slots[few[k]];
        uint32_t mine = 0;
        bool again = false;
        for (int j = 0; j < n; j++) {
            mine += few[j] == few[k];
            again |= j < k && few[j] == few[k];
        }
        if (s->leaf != SLOT_NONE || again)
            continue;
        if (!o->there[few[k]])
            sum += bytes_of(s);
        if (!s->kept && o->uses[few[k]] == mine)
            sum -= bytes_of(s);
    }
    return sum;
}

static void run(ordering *o, uint32_t step, uint32_t *few, uint32_t *ready, uint32_t *nready)
{
    int written, n = slots_of(&o->steps[step], few, &written);
    for (int k = 0; k < n; k++) {
        o->there[few[k]] = 1;
        o->uses[few[k]]--;
    }
    for (uint32_t e = o->first[step]; e; e = o->next[e - 1])
        if (--o->waits[o->to.at[e - 1]] == 0)
            ready[(*nready)++] = o->to.at[e - 1];
}

/* The growth of memory by a step, or by the step together with one successor that waits for nothing else,
 * whichever is least. */
static int64_t growth_of_two(ordering *o, uint32_t step, uint32_t *few, uint32_t *mine)
{
    const int64_t own = growth(o, step, few);
    int64_t least = own;
    if (own <= 0)
        return own;
    int written, n = slots_of(&o->steps[step], mine, &written);
    uint8_t *had = o->had;
    for (int k = 0; k < n; k++) {
        had[k] = o->there[mine[k]];
        o->there[mine[k]] = 1;
        o->uses[mine[k]]--;
    }
    for (uint32_t e = o->first[step]; e; e = o->next[e - 1])
        if (o->waits[o->to.at[e - 1]] == 1) {
            const int64_t both = own + growth(o, o->to.at[e - 1], few);
            least = both < least ? both : least;
        }
    for (int k = n; k-- > 0;) {
        o->there[mine[k]] = had[k];
        o->uses[mine[k]]++;
    }
    return least;
}

/* The first step that frees more than it takes, else the first that frees as much (a step that frees more may
 * follow it), else the first of all. */
static uint32_t choose(ordering *o, const uint32_t *ready, uint32_t nready, uint32_t *few)
{
    uint32_t best[3] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    for (uint32_t i = 0; i < nready; i++) {
        int64_t more = growth_of_two(o, ready[i], few, few + o->most);
        for (int k = more < 0 ? 0 : more == 0 ? 1 : 2; k < 3; k++)
            if (best[k] == UINT32_MAX || ready[i] < ready[best[k]])
                best[k] = i;
    }
    return best[0] != UINT32_MAX ? best[0] : best[1] != UINT32_MAX ? best[1] : best[2];
}

static bool reorder(ordering *o, plan_step *steps, uint32_t *few)
{
    uint32_t *ready = malloc(sizeof *ready * (o->n + 1u)), nready = 0;
    plan_step *out = malloc(sizeof *out * (o->n + 1u));
    bool ok = ready && out;
    for (uint32_t i = 0; ok && i < o->n; i++)
        if (o->waits[i] == 0)
            ready[nready++] = i;
    for (uint32_t done = 0; ok && done < o->n; done++) {
        uint32_t k = choose(o, ready, nready, few), step = ready[k];
        ready[k] = ready[--nready];
        out[done] = steps[step];
        run(o, step, few, ready, &nready);
    }
    if (ok)
        memcpy(steps, out, sizeof *out * o->n);
    free(ready);
    free(out);
    return ok;
}

eas_status plan_order(uint32_t nsteps, plan_step *steps, uint32_t nslots, const slot *slots)
{
    ordering o = {.n = nsteps, .steps = steps, .slots = slots};
    int most = 0;
    if (nsteps < 3 || nsteps > MOST_STEPS)
        return EAS_OK;
    for (uint32_t i = 0; i < nsteps; i++) {
        int n = steps[i].nargs + (steps[i].nouts < 0 ? -steps[i].nouts : 0);
        most = n > most ? n : most;
    }
    o.most = (size_t)most + 1;
    uint32_t *few = malloc(sizeof *few * 2 * o.most);
    o.had = malloc(o.most);
    o.waits = calloc(nsteps + 1u, sizeof *o.waits);
    o.uses = calloc(nslots + 1u, sizeof *o.uses);
    o.there = calloc(nslots + 1u, 1);
    o.first = calloc(nsteps + 1u, sizeof *o.first);
    bool ok = few && o.had && o.waits && o.uses && o.there && o.first && find_edges(&o, nslots, few);
    o.next = ok ? calloc(o.to.len + 1u, sizeof *o.next) : NULL;
    ok = ok && o.next;
    for (uint32_t e = 0; ok && e < o.to.len; e++) {
        o.next[e] = o.first[o.from.at[e]];
        o.first[o.from.at[e]] = e + 1;
    }
    ok = ok && reorder(&o, steps, few);
    free(few), free(o.had), free(o.waits), free(o.uses), free(o.there), free(o.first), free(o.next);
    vec_free(&o.from);
    vec_free(&o.to);
    return ok ? EAS_OK : base_fail_oom(nsteps);
}
