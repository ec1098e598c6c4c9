/* graph.c: capture and replay. While a thread captures, its launches and queued copies are checked and
 * recorded instead of run; the end of the capture compiles what is missing, all kernels at once over the
 * pool, and lays everything out as one list of steps that a device runs without looking at anything again.
 * Arguments are rebound by name: one given at the capture, or a parameter's where that is unambiguous; what
 * is rebound is checked and laid out anew. */
#include "kernel.h"

#include <stdio.h>

enum { GRAPH_MAGIC = 0x45415347, MESSAGE = 1024 };

typedef struct action { /* a launch, or with k NULL a copy */
    eas_kernel *k;
    eas_arg *args;
    int nargs;
    eas_launch o; /* grid and debug only */
    void **object; /* per argument; for a copy dst's and src's */
    int nobjects;
    dev_way way;
    void *dst;
    const void *src;
    size_t n;
    /* laid out */
    resolved *r;
    eas_status st;
    char *message;
} action;

typedef struct label {
    char *name;
    const void *at;
} label;

struct eas_capture {
    uint32_t magic;
    int refs;
    eas_device *d;
    VEC(action) all;
    VEC(dev_step) steps;
    dev_plan *plan; /* the device's, of the steps; may be NULL */
    VEC(label) labels;
    void (*retain)(void *), (*release)(void *);
    double cost; /* rough nanoseconds of all launches */
    eas_event *last; /* after the latest replay that nobody waited for */
    bool ready;
    eas_status failed; /* of the capture */
};

static _Thread_local eas_capture *capturing;

bool graph_capturing(void) { return capturing != NULL; }
int eas_capture_is_open(void) { return capturing != NULL; }

/* ---- life ---- */

static void drop_layout(action *a)
{
    if (a->r)
        stage_free(a->r->stage);
    free(a->r);
    free(a->message);
    a->r = NULL;
    a->message = NULL;
}

static void drop_action(eas_capture *g, action *a)
{
    drop_layout(a);
    for (int i = 0; i < a->nobjects; i++)
        if (a->object[i])
            g->release(a->object[i]);
    free(a->object);
    free(a->args);
    eas_kernel_release(a->k);
}

eas_capture *eas_capture_retain(eas_capture *g)
{
    if (g)
        __atomic_add_fetch(&g->refs, 1, __ATOMIC_RELAXED);
    return g;
}

void eas_capture_release(eas_capture *g)
{
    if (!g || __atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (g->plan)
        g->d->plan_free(g->d, g->plan);
    for (uint32_t i = 0; i < g->all.len; i++)
        drop_action(g, &g->all.at[i]);
    for (uint32_t i = 0; i < g->labels.len; i++)
        free(g->labels.at[i].name);
    vec_free(&g->all);
    vec_free(&g->steps);
    vec_free(&g->labels);
    eas_event_release(g->last);
    g->magic = 0;
    free(g);
}

eas_status eas_capture_begin(eas_capture **out)
{
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    if (capturing)
        return base_fail(EAS_ERR_RUNTIME, "a capture is under way on this thread: captures do not nest");
    eas_capture *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail_oom(sizeof *g);
    eas_status st = eas_event_new(&g->last);
    if (st) {
        free(g);
        return st;
    }
    g->magic = GRAPH_MAGIC;
    g->refs = 1;
    *out = capturing = g;
    return EAS_OK;
}

void eas_capture_abort(eas_capture *g)
{
    if (capturing == g)
        capturing = NULL;
}

eas_status eas_capture_label(eas_capture *g, const char *name, const void *address)
{
    NEED(g, EAS_ERR_HANDLE);
    label l = {strdup(name), address};
    for (uint32_t i = 0; i < g->labels.len; i++)
        if (l.name && !strcmp(g->labels.at[i].name, name)) {
            free(l.name);
            return base_fail(EAS_ERR_VALUE, "the capture has two arrays called \"%s\"", name);
        }
    if (l.name && vec_push(&g->labels, l))
        return EAS_OK;
    free(l.name);
    return base_fail_oom(strlen(name));
}

int eas_capture_count(const eas_capture *g)
{
    NEED(g, 0);
    return (int)g->all.len;
}

/* ---- recording ---- */

static eas_status one_device(eas_capture *g, eas_device *d)
{
    if (g->d && g->d != d)
        return base_fail(EAS_ERR_VALUE, "a capture is of one device: it began on \"%s\", this is on \"%s\"",
                         g->d->name, d->name);
    g->d = d;
    return EAS_OK;
}

static bool keep_objects(eas_capture *g, action *a, void *const *objects, int n, const eas_launch *o)
{
    if (!o || !o->retain || !o->release || !n)
        return true;
    if (!(a->object = malloc((size_t)n * sizeof *a->object)))
        return false;
    g->retain = o->retain;
    g->release = o->release;
    a->nobjects = n;
    for (int i = 0; i < n; i++)
        if ((a->object[i] = objects[i]))
            o->retain(objects[i]);
    return true;
}

static eas_status add_action(eas_capture *g, action *a, bool ok)
{
    if (ok && vec_push(&g->all, *a))
        return EAS_OK;
    drop_action(g, a);
    return base_fail_oom(sizeof *a);
}

eas_status graph_record(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o)
{
    eas_capture *g = capturing;
    eas_status st = one_device(g, d);
    if (!st)
        st = kernel_refuses(k, args, nargs, o);
    if (st)
        return st;
    action a = {.k = eas_kernel_retain(k), .nargs = nargs, .o = {.size = sizeof a.o}};
    if (o) {
        a.o = *o;
        a.o.interrupted = NULL;
        a.o.leave = a.o.enter = NULL;
        a.o.stream = NULL;
        a.o.hold = NULL;
        a.o.nhold = 0;
    }
    a.args = malloc(((size_t)nargs + 1) * sizeof *args);
    if (a.args)
        memcpy(a.args, args, (size_t)nargs * sizeof *args);
    return add_action(g, &a, a.args && keep_objects(g, &a, o ? o->hold : NULL, o ? o->nhold : 0, o));
}

/* ---- layout ---- */

static void lay_out(eas_capture *g, action *a)
{
    drop_layout(a);
    a->st = EAS_OK;
    if (!a->k)
        return;
    a->r = malloc(sizeof *a->r);
    a->st = a->r ? kernel_resolve(a->k, g->d, a->args, a->nargs, &a->o, false, a->r)
                 : base_fail_oom(sizeof *a->r);
    if (a->st && a->r)
        a->r->stage = NULL;
    if (!a->st && a->r->p.programs && a->r->on != g->d && !g->d->host_memory)
        a->st = base_fail(
            EAS_ERR_VALUE,
            "kernel %s cannot be captured on \"%s\": its matrices are not provably inside their buffers, so it is interpreted",
            a->k->ir->name, g->d->name);
    if (a->st)
        a->message = strdup(eas_error_message());
}

static void lay_out_slice(void *ctx, int64_t first, int64_t last, int worker)
{
    eas_capture *g = ctx;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        lay_out(g, &g->all.at[i]);
}

static bool add_copies(eas_capture *g, const stage *s, bool to)
{
    bool ok = true;
    for (int i = 0; s && i < s->n; i++) {
        const span *p = &s->at[i];
        void *here = (void *)(uintptr_t)p->lo, *there = (void *)(uintptr_t)p->there;
        dev_step c = {.way = to ? DEV_TO : DEV_FROM,
                      .dst = to ? there : here,
                      .src = to ? here : there,
                      .n = (size_t)(p->hi - p->lo)};
        if (to || p->written)
            ok = ok && vec_push(&g->steps, c);
    }
    return ok;
}

static bool add_steps(eas_capture *g, const action *a)
{
    if (!a->k) {
        dev_step c = {.way = a->way, .dst = a->dst, .src = a->src, .n = a->n};
        return !a->n || vec_push(&g->steps, c);
    }
    if (!a->r->p.programs)
        return true;
    dev_step s = {.code = a->r->code, .l = kernel_launch_of(a->k, g->d, a->r)};
    g->cost += s.l.cost * (double)s.l.programs;
    return add_copies(g, a->r->stage, true) && vec_push(&g->steps, s) && add_copies(g, a->r->stage, false);
}

static eas_status collect(eas_capture *g)
{
    g->steps.len = 0;
    g->ready = false;
    g->cost = 0;
    for (uint32_t i = 0; i < g->all.len; i++) {
        const action *a = &g->all.at[i];
        if (a->st)
            return base_fail(a->st, "%s", a->message ? a->message : "out of memory");
        if (!add_steps(g, a))
            return base_fail_oom(sizeof(dev_step));
    }
    eas_status st = g->d && g->d->plan ? g->d->plan(g->d, g->steps.at, (int)g->steps.len, &g->plan) : EAS_OK;
    g->ready = !st;
    return st;
}

eas_status eas_capture_end(eas_capture *g, const eas_launch *hooks)
{
    NEED(g, EAS_ERR_HANDLE);
    if (capturing != g)
        return base_fail(EAS_ERR_RUNTIME, "this capture is not under way on this thread");
    capturing = NULL;
    bool locks = hooks && hooks->leave && hooks->enter;
    if (locks)
        hooks->leave(hooks->ctx);
    pool_run(g->all.len, 1, lay_out_slice, g, NULL, NULL);
    eas_status st = collect(g);
    if (locks)
        hooks->enter(hooks->ctx);
    return st;
}

/* ---- rebinding ---- */

static const label *label_of(const eas_capture *g, const char *name)
{
    for (uint32_t i = 0; i < g->labels.len; i++)
        if (!strcmp(g->labels.at[i].name, name))
            return &g->labels.at[i];
    return NULL;
}

/* Is argument i of a what the name stands for? */
static bool named(const action *a, int i, const char *name, const label *l)
{
    return l ? a->args[i].is_buffer && a->args[i].v.data == l->at : !strcmp(a->k->ir->params[i].name, name);
}

static bool same_value(const eas_arg *x, const eas_arg *y)
{
    return x->v.i == y->v.i && x->count == y->count && x->is_buffer == y->is_buffer;
}

static eas_status unknown_name(const eas_capture *g, const char *name)
{
    str s = {0};
    for (uint32_t i = 0; i < g->labels.len; i++)
        str_add(&s, "%s%s", s.len ? ", " : "", g->labels.at[i].name);
    for (uint32_t i = 0; i < g->all.len && !g->labels.len; i++)
        for (int j = 0; g->all.at[i].k && j < g->all.at[i].nargs && s.len < 400; j++)
            str_add(&s, "%s%s", s.len ? ", " : "", g->all.at[i].k->ir->params[j].name);
    eas_status st = base_fail(EAS_ERR_VALUE, "nothing in the capture is called \"%s\"; there are %s", name,
                              s.at ? s.at : "no arguments");
    str_free(&s);
    return st;
}

static eas_status check_name(const eas_capture *g, const char *name, const label *l)
{
    const eas_arg *found = NULL;
    for (uint32_t i = 0; i < g->all.len; i++) {
        const action *a = &g->all.at[i];
        if (!a->k && l && (a->dst == l->at || a->src == l->at))
            return EAS_OK;
        for (int j = 0; a->k && j < a->nargs; j++) {
            if (!named(a, j, name, l))
                continue;
            if (found && !l && !same_value(found, &a->args[j]))
                return base_fail(
                    EAS_ERR_VALUE,
                    "\"%s\" stands for different values in the capture: name the arrays there (eas.capture(name=array))",
                    name);
            found = &a->args[j];
        }
    }
    return found ? EAS_OK : unknown_name(g, name);
}

static void replace_object(eas_capture *g, action *a, int i, void *object)
{
    if (i >= a->nobjects || !g->retain)
        return;
    void *former = a->object[i];
    if (object)
        g->retain(object);
    a->object[i] = object;
    if (former)
        g->release(former);
}

/* A copy's ends are bytes: the new array must have as many. */
static eas_status rebind_copy(eas_capture *g, action *a, const label *l, const eas_arg *arg, void *object)
{
    if (a->dst != l->at && a->src != l->at)
        return EAS_OK;
    if (!arg->is_buffer || (size_t)arg->count * eas_dtype_size((eas_dtype)arg->dtype) < a->n)
        return base_fail(EAS_ERR_VALUE, "\"%s\": a captured copy needs %zu bytes", l->name, a->n);
    if (a->dst == l->at) {
        a->dst = arg->v.data;
        replace_object(g, a, 0, object);
    }
    if (a->src == l->at) {
        a->src = arg->v.data;
        replace_object(g, a, 1, object);
    }
    return EAS_OK;
}

/* Checks a new argument as a launch would, before anything is changed. */
static eas_status try_action(const action *a, const char *name, const label *l, const eas_arg *arg)
{
    eas_arg args[IR_MAX_PARAMS];
    bool any = false;
    memcpy(args, a->args, (size_t)a->nargs * sizeof *args);
    for (int j = 0; j < a->nargs; j++)
        if (named(a, j, name, l)) {
            args[j] = *arg;
            any = true;
        }
    return any ? kernel_refuses(a->k, args, a->nargs, &a->o) : EAS_OK;
}

static eas_status rebind_action(eas_capture *g, action *a, const char *name, const label *l,
                                const eas_arg *arg, void *object)
{
    bool any = false;
    for (int j = 0; j < a->nargs; j++)
        if (named(a, j, name, l)) {
            a->args[j] = *arg;
            replace_object(g, a, j, object);
            any = true;
        }
    if (any)
        lay_out(g, a);
    return any && a->st ? base_fail(a->st, "%s", a->message ? a->message : "out of memory") : EAS_OK;
}

eas_status eas_capture_bind(eas_capture *g, const char *name, const eas_arg *arg, void *object)
{
    NEED(g, EAS_ERR_HANDLE);
    const label *l = label_of(g, name);
    eas_status st = eas_event_synchronize(g->last, NULL); /* a pending replay reads the steps */
    if (!st)
        st = check_name(g, name, l);
    for (uint32_t i = 0; i < g->all.len && !st; i++)
        if (g->all.at[i].k)
            st = try_action(&g->all.at[i], name, l, arg);
    for (uint32_t i = 0; i < g->all.len && !st; i++) {
        action *a = &g->all.at[i];
        st = a->k ? rebind_action(g, a, name, l, arg, object)
           : l    ? rebind_copy(g, a, l, arg, object)
                  : EAS_OK;
    }
    if (!st && l)
        ((label *)(uintptr_t)l)->at = arg->v.data;
    eas_status laid = collect(g);
    return st ? st : laid;
}

/* ---- replaying ---- */

static void release_graph(void *g) { eas_capture_release(g); }

/* now: the options of a caller that waits, without the host program's lock; NULL: no caller waits. */
static eas_status give_steps(eas_capture *g, dev_queue *q, const eas_launch *now)
{
    eas_device *d = g->d;
    eas_status st = EAS_OK;
    if (d->replay)
        return d->replay(d, q, g->plan, g->steps.at, (int)g->steps.len, now);
    for (uint32_t i = 0; i < g->steps.len && !st; i++) {
        const dev_step *s = &g->steps.at[i];
        dev_launch l = s->l;
        l.opts = now;
        st = s->code ? d->launch(d, q, s->code, &l) : d->copy(d, q, s->way, s->dst, s->src, s->n);
    }
    return st;
}

static int ask_outside(void *ctx)
{
    const eas_launch *o = ctx;
    return o->interrupted ? dev_poll((void *)(uintptr_t)o) : 0;
}

/* A long replay runs without the host program's lock (Python's GIL) and polls for interrupts now and then.
 */
static eas_status replay_here(eas_capture *g, eas_stream *s, const eas_launch *o)
{
    enum { FEW = 16, SHORT_NS = 4000 };
    bool locks = o && o->leave && o->enter && (g->steps.len > FEW || g->cost > SHORT_NS);
    eas_launch outside = {
        .size = sizeof outside, .interrupted = locks ? ask_outside : NULL, .ctx = (void *)(uintptr_t)o};
    eas_status st = stream_pending(s) ? stream_wait(s, o) : EAS_OK;
    if (st)
        return st;
    if (locks)
        o->leave(o->ctx);
    st = give_steps(g, stream_queue(s), &outside);
    if (!st)
        st = g->d->wait(g->d, stream_queue(s), UINT64_MAX);
    if (locks)
        o->enter(o->ctx);
    return st;
}

/* Replays on several streams follow each other, so that `last` is the last. */
static eas_status replay_queued(eas_capture *g, eas_stream *s, const eas_launch *o)
{
    eas_status st = eas_event_wait(g->last, s, o);
    if (!st)
        st = stream_begin(s, o);
    if (st)
        return st;
    eas_status given = give_steps(g, stream_queue(s), NULL);
    stream_hold hold = {.owner = eas_capture_retain(g), .drop_owner = release_graph};
    st = stream_end(s, EAS_OK, &hold);
    if (st)
        eas_capture_release(g);
    if (!given && !st)
        given = eas_event_record(g->last, s);
    return given ? given : st || (o && o->async) ? st : stream_wait(s, o);
}

eas_status eas_capture_replay(eas_capture *g, const eas_launch *o)
{
    NEED(g, EAS_ERR_HANDLE);
    eas_stream *s = o ? o->stream : NULL;
    if (capturing)
        return base_fail(EAS_ERR_RUNTIME,
                         "a capture is under way on this thread: a replay cannot be part of it");
    if (!g->ready)
        return base_fail(EAS_ERR_RUNTIME, "the capture did not end well: there is nothing to replay");
    if (!g->steps.len)
        return EAS_OK;
    eas_status st = s ? EAS_OK : eas_stream_current(g->d, &s);
    if (!st && eas_stream_device(s) != g->d)
        st = base_fail(EAS_ERR_VALUE, "the stream is of device \"%s\", the capture of \"%s\"",
                       eas_stream_device(s)->name, g->d->name);
    if (st)
        return st;
    atomic_fetch_add_explicit(&dev_count.launches, g->steps.len, memory_order_relaxed);
    return g->d->host_memory && !(o && o->async) ? replay_here(g, s, o) : replay_queued(g, s, o);
}

/* ---- copies that are queued or recorded ---- */

static eas_status record_copy(eas_device *d, dev_way way, void *dst, const void *src, size_t n,
                              const eas_launch *o)
{
    eas_capture *g = capturing;
    eas_status st = one_device(g, d);
    action a = {.way = way, .dst = dst, .src = src, .n = n};
    return st ? st : add_action(g, &a, keep_objects(g, &a, o ? o->hold : NULL, o ? o->nhold : 0, o));
}

eas_status eas_device_copy_on(eas_device *d, eas_copy_way way, void *dst, const void *src, size_t n,
                              const eas_launch *o)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(!n || dst, EAS_ERR_HANDLE);
    NEED(!n || src, EAS_ERR_HANDLE);
    eas_stream *s = o ? o->stream : NULL;
    dev_way w = way == EAS_COPY_TO ? DEV_TO : way == EAS_COPY_FROM ? DEV_FROM : DEV_WITHIN;
    if (capturing)
        return record_copy(d, w, dst, src, n, o);
    eas_status st = s ? EAS_OK : eas_stream_current(d, &s);
    if (!st && eas_stream_device(s) != d)
        st = base_fail(EAS_ERR_VALUE, "the stream is of device \"%s\", the copy of \"%s\"",
                       eas_stream_device(s)->name, d->name);
    if (!st)
        st = stream_begin(s, o);
    if (st)
        return st;
    bool objects = o && o->retain && o->release;
    stream_hold hold = {.objects = objects ? o->hold : NULL,
                        .nobjects = objects ? o->nhold : 0,
                        .retain = objects ? o->retain : NULL,
                        .release = objects ? o->release : NULL};
    st = stream_end(s, d->copy(d, stream_queue(s), w, dst, src, n), &hold);
    return st || (o && o->async) ? st : stream_wait(s, o);
}
