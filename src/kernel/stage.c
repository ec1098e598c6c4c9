/* stage.c: arguments in the wrong memory. On a device that cannot use host memory, host arrays are lent to it
 * for the time of a launch, or copied there before and those that are written back after it; a launch that
 * must be interpreted takes the other way. Arguments that overlap are one piece on the other side as well, so
 * what a kernel sees of overlap stays what it was. */
#include "kernel.h"

enum { ALIGN = 64 };

static void add_span(stage *g, uint64_t lo, uint64_t hi, bool written, uint8_t log2_align)
{
    for (int i = 0; i < g->n;) {
        span *s = &g->at[i];
        if (lo >= s->hi || s->lo >= hi) {
            i++;
            continue;
        }
        lo = s->lo < lo ? s->lo : lo;
        hi = s->hi > hi ? s->hi : hi;
        written |= s->written;
        log2_align = s->log2_align > log2_align ? s->log2_align : log2_align;
        *s = g->at[--g->n];
        i = 0;
    }
    g->at[g->n++] = (span){.lo = lo, .hi = hi, .written = written, .log2_align = log2_align};
}

stage *stage_new(const eas_kernel *k, const eas_arg *args, const packed *p, bool host)
{
    stage *g = calloc(1, sizeof *g + (size_t)k->nparams * sizeof(span));
    for (int i = 0; i < k->nparams && g; i++) {
        const kernel_param *q = &k->params[i];
        if (q->is_buffer && p->count[i] && host == ((args[i].flags & EAS_ARG_HOST) != 0))
            add_span(g, p->slot[i], p->slot[i] + ((uint64_t)p->count[i] << q->log2_size), q->written,
                     q->log2_size);
    }
    return g;
}

void stage_free(void *ctx)
{
    stage *g = ctx;
    for (int i = 0; g && i < g->n; i++) {
        eas_buffer_release(g->at[i].buf);
        free(g->at[i].host);
        if (g->at[i].lent && !dev_usable(g->lent_to))
            g->lent_to->dealloc(g->lent_to, (void *)(uintptr_t)g->at[i].there,
                                (size_t)(g->at[i].hi - g->at[i].lo));
    }
    free(g);
}

static bool lend_span(stage *g, span *s, eas_device *d)
{
    void *mem;
    if (s->lo & (((uint64_t)1 << s->log2_align) - 1) ||
        !d->lend(d, (void *)(uintptr_t)s->lo, (size_t)(s->hi - s->lo), s->written, &mem))
        return false;
    g->lent_to = d;
    s->there = (uint64_t)(uintptr_t)mem;
    return s->lent = true;
}

/* The staging memory has the same offset within a cache line as the array, so aligned accesses stay
 * aligned. */
eas_status stage_alloc(stage *g, eas_device *d, bool lend)
{
    for (int i = 0; i < g->n; i++) {
        span *s = &g->at[i];
        if (lend && d->lend && lend_span(g, s, d))
            continue;
        size_t size = (size_t)(s->hi - s->lo) + ALIGN;
        eas_status st = d ? eas_buffer_new(d, size, &s->buf) : EAS_OK;
        if (!d && !(s->host = aligned_alloc(ALIGN, (size + ALIGN - 1) / ALIGN * ALIGN)))
            st = base_fail_oom(size);
        if (st)
            return st;
        uint64_t base = (uint64_t)(uintptr_t)(d ? eas_buffer_address(s->buf) : s->host);
        s->there = base + s->lo % ALIGN;
    }
    return EAS_OK;
}

void stage_map(const stage *g, const eas_kernel *k, packed *p, const eas_arg *args, bool host)
{
    for (int i = 0; i < k->nparams; i++)
        for (int j = 0; j < g->n && k->params[i].is_buffer && p->count[i] &&
                        host == ((args[i].flags & EAS_ARG_HOST) != 0);
             j++)
            if (p->slot[i] >= g->at[j].lo && p->slot[i] < g->at[j].hi) {
                p->slot[i] = g->at[j].there + (p->slot[i] - g->at[j].lo);
                break;
            }
}

/* One copy a span: there, or only of what was written, back. What was lent is there already; back, the copy
 * makes it visible. */
eas_status stage_copy(const stage *g, eas_device *d, dev_queue *q, dev_way way)
{
    eas_status st = EAS_OK;
    bool to_there = (way == DEV_TO) == (g->n && !g->at[0].host);
    for (int i = 0; i < g->n && !st; i++) {
        const span *s = &g->at[i];
        void *here = (void *)(uintptr_t)s->lo, *there = (void *)(uintptr_t)s->there;
        if (to_there ? !s->lent : s->written)
            st =
                d->copy(d, q, way, to_there ? there : here, to_there ? here : there, (size_t)(s->hi - s->lo));
    }
    return st;
}
