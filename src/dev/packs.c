/* packs.c: copies of a buffer's elements in another layout, kept with the buffer for whoever wants the same
 * layout again: the weights of a network are laid out for matrix products once, not at every call.
 *
 * A copy may be kept only while nobody but the library can write to the buffer. Such a buffer is *sealed*:
 * those that plans make, files that are mapped, and what a caller has sealed. It is sealed no more once its
 * address was given out for writing. Where the library itself writes to it (memory that was donated), the
 * copies are dropped (dev_buffer_changes), as they are when the buffer dies. Two sealed buffers may lie over
 * the same memory if it is mapped: an address that is given out for writing is noted, and buffers over any of
 * that memory count as not sealed.
 *
 * A copy is kept the second time that it is made: what changes at every step of a training is laid out once
 * and never again. All copies together take at most EAS_PACK_LIMIT bytes, else an eighth of the machine's
 * memory. Where that is full a copy gives way to another one only if it was not used for a while: programs
 * whose weights take more than the limit would otherwise drop each copy just before its next use.
 */
#include "dev.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

struct dev_pack {
    dev_pack_key key;
    eas_buffer *of, *copy; /* copy: NULL if it was made once, and not kept */
    dev_pack *next; /* of the same buffer */
    dev_pack *newer, *older; /* of those with a copy, by use */
    uint64_t used;
};

enum { PATIENCE = 1024, RANGES = 64 }; /* in uses of copies; of memory that others may write */

static struct {
    pthread_mutex_t lock;
    dev_pack *newest, *oldest;
    uint64_t clock, bytes, count, hits;
    struct {
        const char *low, *high;
    } open[RANGES];
    _Atomic int nopen; /* RANGES: more than there is room for */
} P = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t limit(void)
{
    static _Atomic uint64_t set; /* 1 + the limit; 0: not looked up yet */
    if (!set) {
        uint64_t n;
        if (!dev_env_bytes("EAS_PACK_LIMIT", &n))
            n = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 8;
        set = n + 1;
    }
    return set - 1;
}

/* ---- who may write ---- */

static bool open_to_others(const eas_buffer *b)
{
    const int n = atomic_load_explicit(&P.nopen, memory_order_acquire);
    const char *low = b->mem, *high = low + b->size;
    if (b->owned || !n)
        return false;
    for (int i = 0; i < n && n < RANGES; i++)
        if (low < P.open[i].high && P.open[i].low < high)
            return true;
    return n == RANGES;
}

static void open_range(const eas_buffer *b)
{
    int n = atomic_load_explicit(&P.nopen, memory_order_relaxed);
    if (b->owned || n == RANGES || open_to_others(b))
        return;
    P.open[n].low = b->mem;
    P.open[n].high = (const char *)b->mem + b->size;
    atomic_store_explicit(&P.nopen, n + 1, memory_order_release);
}

static bool is_sealed(const eas_buffer *b)
{
    return __atomic_load_n(&b->sealed, __ATOMIC_ACQUIRE) && !open_to_others(b);
}

void dev_seal(eas_buffer *b) { __atomic_store_n(&b->sealed, true, __ATOMIC_RELEASE); }

/* ---- the list; with the lock held ---- */

static void unlist(dev_pack *p)
{
    *(p->newer ? &p->newer->older : &P.newest) = p->older;
    *(p->older ? &p->older->newer : &P.oldest) = p->newer;
    P.bytes -= p->copy->room;
    P.count--;
}

static void list(dev_pack *p)
{
    p->newer = NULL;
    p->older = P.newest;
    *(P.newest ? &P.newest->newer : &P.oldest) = p;
    P.newest = p;
    p->used = P.clock;
    P.bytes += p->copy->room;
    P.count++;
}

static dev_pack *find(const eas_buffer *of, const dev_pack_key *key)
{
    for (dev_pack *p = of->packs; p; p = p->next)
        if (!memcmp(&p->key, key, sizeof *key))
            return p;
    return NULL;
}

/* Takes the copy away, to be released without the lock; the entry stays and tells that it was made. */
static eas_buffer *take_copy(dev_pack *p)
{
    eas_buffer *copy = p->copy;
    if (copy)
        unlist(p);
    p->copy = NULL;
    return copy;
}

static bool make_room(uint64_t bytes, eas_buffer **dropped)
{
    const uint64_t most = limit();
    if (bytes > most)
        return false;
    while (P.bytes + bytes > most && P.oldest && P.clock - P.oldest->used > PATIENCE) {
        eas_buffer *copy = take_copy(P.oldest);
        copy->next = *dropped;
        *dropped = copy;
    }
    return P.bytes + bytes <= most;
}

static void release_all(eas_buffer *chain)
{
    while (chain) {
        eas_buffer *next = chain->next;
        eas_buffer_release(chain);
        chain = next;
    }
}

/* ---- for those who make copies ---- */

eas_buffer *dev_pack_find(eas_buffer *of, const dev_pack_key *key, dev_pack_ask *ask)
{
    *ask = (dev_pack_ask){0};
    if (!is_sealed(of) || !limit())
        return NULL;
    eas_buffer *copy = NULL;
    base_lock(&P.lock);
    dev_pack *p = find(of, key);
    ask->known = p != NULL;
    ask->may = true;
    ask->version = of->version;
    /* what another stream makes may not be there yet */
    if (p && p->copy && p->copy->stream == stream_used(of->device)) {
        P.clock++;
        P.hits++;
        copy = eas_buffer_retain(p->copy);
        unlist(p);
        list(p);
    } else if (p && p->copy)
        ask->may = false;
    base_unlock(&P.lock);
    return copy;
}

void dev_pack_add(eas_buffer *of, const dev_pack_key *key, const dev_pack_ask *ask, eas_buffer *copy)
{
    eas_buffer *dropped = NULL;
    dev_pack *made = ask->may ? calloc(1, sizeof *made) : NULL;
    if (!made) /* without memory for it nothing is kept */
        return;
    *made = (dev_pack){.key = *key, .of = of};
    base_lock(&P.lock);
    if (is_sealed(of) && of->version == ask->version) {
        dev_pack *p = find(of, key);
        if (!p) {
            p = made;
            made = NULL;
            p->next = of->packs;
            __atomic_store_n(&of->packs, p, __ATOMIC_RELEASE);
        }
        P.clock++;
        if (ask->known && !p->copy && make_room(copy->room, &dropped)) {
            p->copy = eas_buffer_retain(copy);
            list(p);
        }
    }
    base_unlock(&P.lock);
    free(made);
    release_all(dropped);
}

void dev_packs_drop_all(eas_buffer *of)
{
    eas_buffer *dropped = NULL;
    base_lock(&P.lock);
    dev_pack *p = of->packs;
    __atomic_store_n(&of->packs, NULL, __ATOMIC_RELEASE);
    for (dev_pack *next; p; p = next) {
        eas_buffer *copy = take_copy(p);
        next = p->next;
        free(p);
        if (copy) {
            copy->next = dropped;
            dropped = copy;
        }
    }
    base_unlock(&P.lock);
    release_all(dropped);
}

void dev_unseal(eas_buffer *b)
{
    base_lock(&P.lock);
    open_range(b);
    __atomic_store_n(&b->sealed, false, __ATOMIC_RELEASE);
    base_unlock(&P.lock);
    dev_buffer_changes(b);
}

void dev_packs_empty(const eas_device *d)
{
    eas_buffer *dropped = NULL;
    base_lock(&P.lock);
    for (dev_pack *p = P.oldest, *newer; p; p = newer) {
        newer = p->newer;
        if (d && p->of->device != d)
            continue;
        eas_buffer *copy = take_copy(p);
        copy->next = dropped;
        dropped = copy;
    }
    base_unlock(&P.lock);
    release_all(dropped);
}

dev_pack_stats dev_packs_stats(void)
{
    base_lock(&P.lock);
    dev_pack_stats s = {.bytes = P.bytes, .count = P.count, .hits = P.hits, .limit = limit()};
    base_unlock(&P.lock);
    return s;
}
