/* json.c: a strict reader of JSON (RFC 8259) for headers: a cursor over the text; the caller says what should
 * come next. */
#include "io.h"

#include <stdio.h>

enum { DEEPEST = 64 };

eas_status json_fail(const json *j, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return base_fail(EAS_ERR_VALUE, "%s: %s at byte %zu of its JSON", j->what, text,
                     (size_t)(j->at - j->begin));
}

char json_peek(json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
    return j->at < j->end ? *j->at : 0;
}

bool json_take(json *j, char c)
{
    if (j->at >= j->end || json_peek(j) != c || j->at >= j->end)
        return false;
    j->at++;
    return true;
}

eas_status json_expect(json *j, char c)
{
    return json_take(j, c) ? EAS_OK : json_fail(j, "'%c' is missing", c);
}

eas_status json_end(json *j)
{
    json_peek(j);
    return j->at == j->end ? EAS_OK : json_fail(j, "something follows the end");
}

/* ---- strings ---- */
static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0'
              : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                     : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

static int put_utf8(char *out, uint32_t c)
{
    if (c < 0x80)
        return out[0] = (char)c, 1;
    if (c < 0x800)
        return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xE0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)),
               out[2] = (char)(0x80 | (c & 63)), 3;
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* Length of the valid UTF-8 character at p; 0: it is none. */
static int utf8_length(const char *s, const char *end)
{
    const uint8_t *p = (const uint8_t *)s;
    size_t left = (size_t)(end - s);
    int n = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (!n || (size_t)n > left)
        return 0;
    uint32_t c = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    for (int i = 1; i < n; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        c = c << 6 | (p[i] & 63);
    }
    return c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) ? 0 : n;
}

/* Decodes what follows a backslash and a u: one character, written as one escape or, as a surrogate pair, as
 * two. */
static eas_status unicode(json *j, char **to)
{
    int c = j->end - j->at >= 4 ? hex4(j->at) : -1;
    if (c <= 0)
        return json_fail(j, c ? "a bad \\u escape" : "a NUL in a string");
    j->at += 4;
    uint32_t u = (uint32_t)c;
    if (u >= 0xD800 && u < 0xDC00) {
        int low = j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u' ? hex4(j->at + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return json_fail(j, "half of a surrogate pair");
        j->at += 6;
        u = 0x10000 + ((u - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    } else if (u >= 0xDC00 && u < 0xE000)
        return json_fail(j, "half of a surrogate pair");
    *to += put_utf8(*to, u);
    return EAS_OK;
}

static eas_status escape(json *j, char **to)
{
    static const char from[] = "\"\\/bfnrt", what[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at++ : 0;
    if (c == 'u')
        return unicode(j, to);
    const char *p = c ? strchr(from, c) : NULL;
    if (!p)
        return json_fail(j, "a bad escape");
    *(*to)++ = what[p - from];
    return EAS_OK;
}

static size_t string_span(const json *j) /* bytes up to the closing quote; decoding never makes it longer */
{
    const char *p = j->at;
    for (; p < j->end && *p != '"'; p++)
        p += *p == '\\' && p + 1 < j->end;
    return (size_t)(p - j->at);
}

eas_status json_string(json *j, arena *a, char **out)
{
    eas_status st = json_expect(j, '"');
    if (st)
        return st;
    char *to = arena_alloc(a, string_span(j) + 1);
    if (!to)
        return base_fail_oom(string_span(j) + 1);
    *out = to;
    while (j->at < j->end && *j->at != '"') {
        if (*j->at == '\\') {
            j->at++;
            if ((st = escape(j, &to)))
                return st;
            continue;
        }
        int n = (uint8_t)*j->at < 0x20 ? 0 : utf8_length(j->at, j->end);
        if (!n)
            return json_fail(j, "a string that is no UTF-8");
        memcpy(to, j->at, (size_t)n);
        to += n;
        j->at += n;
    }
    *to = 0;
    return json_expect(j, '"');
}

void json_put_string(str *s, const char *p, size_t n)
{
    str_put(s, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"' || p[i] == '\\')
            str_add(s, "\\%c", p[i]);
        else if ((uint8_t)p[i] < 0x20)
            str_add(s, "\\u%04x", (unsigned)(uint8_t)p[i]);
        else
            str_put(s, p + i, 1);
    }
    str_put(s, "\"", 1);
}

/* ---- numbers and the rest ---- */
static bool digit(const json *j) { return j->at < j->end && *j->at >= '0' && *j->at <= '9'; }

eas_status json_uint(json *j, uint64_t *out)
{
    uint64_t v = 0;
    json_peek(j);
    const char *first = j->at;
    for (; digit(j); j->at++) {
        uint64_t d = (uint64_t)(*j->at - '0');
        if (v > (UINT64_MAX - d) / 10)
            return json_fail(j, "a number that is too large");
        v = v * 10 + d;
    }
    if (j->at == first || (*first == '0' && j->at - first > 1) ||
        (j->at < j->end && strchr(".eE+-", *j->at) && *j->at))
        return json_fail(j, "not a whole number");
    *out = v;
    return EAS_OK;
}

static eas_status skip_digits(json *j)
{
    if (!digit(j))
        return json_fail(j, "a bad number");
    while (digit(j))
        j->at++;
    return EAS_OK;
}

static eas_status skip_number(json *j)
{
    eas_status st;
    if (*j->at == '-')
        j->at++;
    if (j->at < j->end && *j->at == '0')
        j->at++;
    else if ((st = skip_digits(j)))
        return st;
    if (j->at < j->end && *j->at == '.' && (j->at++, st = skip_digits(j)))
        return st;
    if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
        j->at++;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-'))
            j->at++;
        return skip_digits(j);
    }
    return EAS_OK;
}

static eas_status skip_word(json *j)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->at) >= n && !memcmp(j->at, words[i], n))
            return j->at += n, EAS_OK;
    }
    return json_fail(j, "not a value");
}

static eas_status skip(json *j, int depth)
{
    arena a = {0};
    char *text, c = json_peek(j), close = c == '{' ? '}' : ']';
    eas_status st = EAS_OK;
    if (c == '"') {
        st = json_string(j, &a, &text);
        arena_free(&a);
        return st;
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return skip_number(j);
    if (c != '{' && c != '[')
        return skip_word(j);
    if (depth == DEEPEST)
        return json_fail(j, "nested more than %d deep", DEEPEST);
    j->at++;
    if (json_take(j, close))
        return EAS_OK;
    do {
        if (c == '{') {
            st = json_peek(j) == '"' ? skip(j, depth) : json_fail(j, "a key is missing");
            st = st ? st : json_expect(j, ':');
        }
        st = st ? st : skip(j, depth + 1);
    } while (!st && json_take(j, ','));
    return st ? st : json_expect(j, close);
}

eas_status json_skip(json *j) { return skip(j, 0); }
