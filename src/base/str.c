/* str.c: a growing string, and numbers as text that reads back exactly. */
#include "base.h"

#include <math.h>
#include <stdio.h>

static bool reserve(str *s, size_t n)
{
    if (s->oom)
        return false;
    if (s->len + n + 1 <= s->cap)
        return true;
    size_t cap = s->cap ? s->cap : 256;
    while (cap < s->len + n + 1)
        cap *= 2;
    char *p = realloc(s->at, cap);
    if (!p) {
        s->oom = true;
        return false;
    }
    s->at = p;
    s->cap = cap;
    return true;
}

void str_put(str *s, const char *p, size_t n)
{
    if (!reserve(s, n))
        return;
    if (n)
        memcpy(s->at + s->len, p, n);
    s->len += n;
    s->at[s->len] = 0;
}

void str_vadd(str *s, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0 || !reserve(s, (size_t)n))
        return;
    vsnprintf(s->at + s->len, (size_t)n + 1, fmt, ap);
    s->len += (size_t)n;
}

void str_add(str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    str_vadd(s, fmt, ap);
    va_end(ap);
}

void str_free(str *s)
{
    free(s->at);
    memset(s, 0, sizeof *s);
}

eas_status str_take(str *s, char **out)
{
    if (!s->oom)
        reserve(s, 0); /* an empty text is still a text */
    if (s->oom) {
        size_t n = s->len;
        str_free(s);
        return base_fail_oom(n);
    }
    s->at[s->len] = 0;
    *out = s->at;
    memset(s, 0, sizeof *s);
    return EAS_OK;
}

void str_add_double(str *s, double v, bool single)
{
    if (isnan(v)) {
        str_add(s, "nan");
        return;
    }
    if (isinf(v)) {
        str_add(s, v < 0 ? "-inf" : "inf");
        return;
    }
    char t[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(t, sizeof t, "%.*g", digits, v);
        double back = strtod(t, NULL);
        if (single ? (float)back == (float)v : back == v)
            break;
    }
    str_add(s, strpbrk(t, ".e") ? "%s" : "%s.0", t);
}
