/* native.c: functions of the host's (src/native) as steps of a plan. They work on host memory: on a device
 * that has its own, inputs are copied out and results in. */
#include "exec.h"

#include "../native/native.h"

struct native_step {
    const eas_native *fn;
    int nnumbers;
    eas_dim *numbers;
};
enum { MOST_BUFFERS = 16, MOST_NUMBERS = 64 };

eas_status eas_node_native(const char *name, int nin, eas_node *const *in, int nouts,
                           const eas_node_type *outs, int nnumbers, const eas_dim *numbers,
                           eas_node **results)
{
    NEED(name, EAS_ERR_HANDLE);
    NEED(!nin || in, EAS_ERR_HANDLE);
    NEED(!nouts || (outs && results), EAS_ERR_HANDLE);
    NEED(!nnumbers || numbers, EAS_ERR_HANDLE);
    const eas_native *fn = native_find(name);
    if (!fn)
        return base_fail(EAS_ERR_VALUE, "eas_node_native: there is no function \"%s\"", name);
    if (nin > MOST_BUFFERS || nouts > MOST_BUFFERS || nnumbers > MOST_NUMBERS)
        return base_fail(
            EAS_ERR_VALUE,
            "eas_node_native: %s with %d inputs, %d results and %d numbers is more than there is room for",
            name, nin, nouts, nnumbers);
    return node_native(fn, nin, in, nouts, outs, nnumbers, numbers, results);
}

eas_status native_new(const node_extra *e, native_step **out)
{
    native_step *s = calloc(1, sizeof *s);
    eas_dim *numbers = malloc(sizeof *numbers * (size_t)(e->nnumbers + 1));
    *out = s;
    if (!s || !numbers) {
        free(numbers);
        return base_fail_oom(sizeof *s);
    }
    if (e->nnumbers)
        memcpy(numbers, e->numbers, sizeof *numbers * (size_t)e->nnumbers);
    *s = (native_step){e->native, e->nnumbers, numbers};
    return EAS_OK;
}

void native_free(native_step *s)
{
    if (!s)
        return;
    free(s->numbers);
    free(s);
}

bool native_same(const native_step *a, const native_step *b)
{
    if (!a || !b)
        return a == b;
    return a->fn == b->fn && a->nnumbers == b->nnumbers &&
           !memcmp(a->numbers, b->numbers, sizeof *a->numbers * (size_t)a->nnumbers);
}

static eas_status call_it(const native_step *s, native_call *c, const eas_launch *h)
{
    bool locks = h && h->leave && h->enter;
    if (locks)
        h->leave(h->ctx);
    eas_status st = s->fn->run(c);
    if (locks)
        h->enter(h->ctx);
    return st;
}

static eas_status host_copies(int n, eas_buffer *const *bufs, void **at, eas_device *d,
                              const eas_launch *hooks, bool filled)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++) {
        size_t size = eas_buffer_size(bufs[i]);
        at[i] = malloc(size + 1);
        st = at[i] ? EAS_OK : base_fail_oom(size);
        if (!st && filled && size)
            st = eas_device_copy(NULL, at[i], d, bufs[i]->mem, size, hooks);
    }
    return st;
}

static eas_status run_copied(const native_step *s, native_call *c, const plan_run *r, eas_device *d,
                             eas_buffer *const *in, eas_buffer *const *outs)
{
    void *from[MOST_BUFFERS] = {0}, *to[MOST_BUFFERS] = {0};
    eas_status st = host_copies(c->nin, in, from, d, r->hooks, true);
    if (!st)
        st = host_copies(c->nout, outs, to, d, r->hooks, false);
    for (int i = 0; i < c->nin; i++)
        c->in[i] = from[i];
    for (int i = 0; i < c->nout; i++)
        c->out[i] = to[i];
    if (!st)
        st = call_it(s, c, r->hooks);
    for (int i = 0; i < c->nout && !st; i++)
        if (eas_buffer_size(outs[i]))
            st = eas_device_copy(d, outs[i]->mem, NULL, to[i], eas_buffer_size(outs[i]), r->hooks);
    for (int i = 0; i < c->nin; i++)
        free(from[i]);
    for (int i = 0; i < c->nout; i++)
        free(to[i]);
    return st;
}

eas_status native_run(const native_step *s, const plan_run *r, eas_device *d, int nin, eas_buffer *const *in,
                      int nout, eas_buffer *const *outs)
{
    const void *from[MOST_BUFFERS];
    void *to[MOST_BUFFERS];
    int64_t numbers[MOST_NUMBERS];
    native_call c = {
        .nin = nin, .nout = nout, .nnumbers = s->nnumbers, .in = from, .out = to, .numbers = numbers};
    eas_status st = EAS_OK;
    for (int i = 0; i < s->nnumbers && !st; i++) {
        numbers[i] = s->numbers[i];
        if (dim_is_expr(numbers[i]))
            st = dim_eval(s->numbers[i], r->nsymbols, r->symbols, r->sizes, &numbers[i]);
    }
    if (st)
        return st;
    if (!eas_device_has_host_memory(d))
        return run_copied(s, &c, r, d, in, outs);
    for (int i = 0; i < nin; i++)
        from[i] = in[i]->mem;
    for (int i = 0; i < nout; i++)
        to[i] = outs[i]->mem;
    return call_it(s, &c, r->hooks);
}

const char *native_name(const struct eas_native *fn) { return fn->name; }
