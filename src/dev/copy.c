/* copy.c: copies between devices, done when the call returns. */
#include "dev.h"

enum { LARGE = 1 << 16 }; /* bytes from which a copy releases the caller's lock */

static void move(void *dst, const void *src, size_t n, const eas_launch *hooks)
{
    bool locks = n >= LARGE && hooks && hooks->leave && hooks->enter;
    if (locks)
        hooks->leave(hooks->ctx);
    memmove(dst, src, n);
    if (locks)
        hooks->enter(hooks->ctx);
}

/* Host memory has no order of its own: what is pending on it comes first. */
static eas_status settle(eas_device *d, const eas_launch *hooks)
{
    eas_stream *s;
    eas_status st = d && d->host_memory ? eas_stream_current(d, &s) : EAS_OK;
    return d && d->host_memory && !st && stream_pending(s) ? stream_wait(s, hooks) : st;
}

static eas_status on_device(eas_device *d, dev_way way, void *dst, const void *src, size_t n,
                            const eas_launch *hooks)
{
    eas_stream *s;
    eas_status st = eas_stream_current(d, &s);
    if (!st)
        st = stream_begin(s, hooks);
    if (st)
        return st;
    st = stream_end(s, d->copy(d, stream_queue(s), way, dst, src, n), &(stream_hold){0});
    if (st)
        return st;
    eas_launch quiet = hooks ? *hooks : (eas_launch){0};
    quiet.interrupted = NULL; /* an interrupted copy would go on writing to the caller's memory */
    return stream_wait(s, &quiet);
}

static eas_status between(eas_device *to, void *dst, eas_device *from, const void *src, size_t n,
                          const eas_launch *hooks)
{
    void *mem = malloc(n);
    if (!mem)
        return base_fail_oom(n);
    eas_status st = on_device(from, DEV_FROM, mem, src, n, hooks);
    if (!st)
        st = on_device(to, DEV_TO, dst, mem, n, hooks);
    free(mem);
    return st;
}

eas_status eas_device_copy(eas_device *to, void *dst, eas_device *from, const void *src, size_t n,
                           const eas_launch *hooks)
{
    NEED(!n || dst, EAS_ERR_HANDLE);
    NEED(!n || src, EAS_ERR_HANDLE);
    bool to_host = !to || to->host_memory, from_host = !from || from->host_memory;
    eas_status st = settle(to, hooks);
    if (!st && from != to)
        st = settle(from, hooks);
    if (st || !n)
        return st;
    if (to_host && from_host)
        return move(dst, src, n, hooks), EAS_OK;
    if (to_host)
        return on_device(from, DEV_FROM, dst, src, n, hooks);
    if (from_host)
        return on_device(to, DEV_TO, dst, src, n, hooks);
    return to == from ? on_device(to, DEV_WITHIN, dst, src, n, hooks) : between(to, dst, from, src, n, hooks);
}
