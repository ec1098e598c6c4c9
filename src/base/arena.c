/* arena.c: memory that is freed whole; and the growth of vectors. */
#include "base.h"

#include <stdio.h>

typedef struct arena_chunk {
    struct arena_chunk *next;
    size_t size;
} arena_chunk;

enum {
    FIRST_CHUNK = 4096,
    MAX_CHUNK = 1 << 20,
    ALIGN = 16,
    HEAD = (sizeof(arena_chunk) + ALIGN - 1) / ALIGN * ALIGN
};

static bool new_chunk(arena *a, size_t need)
{
    size_t size = a->head ? a->head->size * 2 : FIRST_CHUNK;
    if (size > MAX_CHUNK)
        size = MAX_CHUNK;
    if (size < need + HEAD)
        size = need + HEAD;
    arena_chunk *c = malloc(size);
    if (!c)
        return false;
    c->next = a->head;
    c->size = size;
    a->head = c;
    a->cur = (char *)c + HEAD;
    a->end = (char *)c + size;
    return true;
}

void *arena_alloc(arena *a, size_t n)
{
    if (n > SIZE_MAX / 2) {
        a->oom = true;
        return NULL;
    }
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    if ((!a->cur || (size_t)(a->end - a->cur) < n) && !new_chunk(a, n)) {
        a->oom = true;
        return NULL;
    }
    void *p = a->cur;
    a->cur += n;
    return memset(p, 0, n);
}

char *arena_strndup(arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (p)
        memcpy(p, s, n);
    return p;
}

char *arena_strdup(arena *a, const char *s) { return arena_strndup(a, s, strlen(s)); }

char *arena_printf(arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p;
}

void arena_free(arena *a)
{
    for (arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    memset(a, 0, sizeof *a);
}

bool vec_grow(void **at, uint32_t *cap, uint32_t need, size_t size)
{
    if (need <= *cap)
        return true;
    uint32_t n = *cap ? *cap : 8;
    while (n < need) {
        if (n > UINT32_MAX / 2)
            return false;
        n *= 2;
    }
    void *p = realloc(*at, n * size);
    if (!p)
        return false;
    *at = p;
    *cap = n;
    return true;
}
