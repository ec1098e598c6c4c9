/* status.c: the error state of a thread, and the names of statuses. */
#include "base.h"

#include <stdio.h>

static _Thread_local char message[sizeof((base_error *)0)->message];
static _Thread_local char place_file[256]; /* "": not known */
static _Thread_local uint32_t place_line;

static void set_place(const char *file, uint32_t line)
{
    snprintf(place_file, sizeof place_file, "%s", file ? file : "");
    place_line = line;
}

eas_status base_vfail_at(eas_status st, const char *file, uint32_t line, const char *fmt, va_list ap)
{
    char text[sizeof message]; /* the arguments may point into message itself */
    const int n = file && *file ? snprintf(text, sizeof text, "%s:%u: ", file, (unsigned)line) : 0;
    if (n >= 0 && (size_t)n < sizeof text)
        vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    memcpy(message, text, sizeof text);
    set_place(file, line);
    return st;
}

eas_status base_fail(eas_status st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    base_vfail_at(st, NULL, 0, fmt, ap);
    va_end(ap);
    return st;
}

eas_status base_fail_at(eas_status st, const char *file, uint32_t line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    base_vfail_at(st, file, line, fmt, ap);
    va_end(ap);
    return st;
}

void base_error_keep(base_error *e, eas_status st)
{
    e->status = st;
    e->line = place_line;
    memcpy(e->message, message, sizeof e->message);
    memcpy(e->file, place_file, sizeof e->file);
}

eas_status base_error_raise(const base_error *e)
{
    memcpy(message, e->message, sizeof message);
    set_place(e->file, e->line);
    return e->status;
}

int eas_error_place(const char **file, int *line)
{
    if (file)
        *file = *place_file ? place_file : NULL;
    if (line)
        *line = (int)place_line;
    return *place_file != 0;
}

eas_status base_fail_oom(size_t bytes)
{
    return base_fail(EAS_ERR_MEMORY, "out of memory: %zu bytes could not be allocated", bytes);
}

const char *eas_error_message(void) { return message; }

const char *eas_status_name(eas_status st)
{
    switch (st) {
#define EAS_X(name, code, text) \
    case EAS_##name: return #name;
        EAS_STATUS_TABLE(EAS_X)
#undef EAS_X
    }
    return "unknown status";
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
const char *eas_version(void)
{
    return TEXT(EAS_VERSION_MAJOR) "." TEXT(EAS_VERSION_MINOR) "." TEXT(EAS_VERSION_PATCH);
}
int eas_version_number(void) { return EAS_VERSION; }

void eas_memory_free(void *p) { free(p); }

eas_status base_null(const char *fn, const char *what)
{
    return base_fail(EAS_ERR_HANDLE, "%s: \"%s\" is NULL", fn, what);
}
