/* status.c: the error state of a thread, and the names of statuses. */
#include "base.h"

#include <stdio.h>

static _Thread_local char message[4096];

eas_status base_fail(eas_status st, const char *fmt, ...)
{
    char text[sizeof message]; /* the arguments may point into message itself */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(message, text, sizeof text);
    return st;
}

eas_status base_fail_oom(size_t bytes) { return base_fail(EAS_ERR_MEMORY, "out of memory: %zu bytes could not be allocated", bytes); }

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

#ifndef EAS_VERSION_TEXT
#define EAS_VERSION_TEXT "0.1.0"
#endif
const char *eas_version(void) { return EAS_VERSION_TEXT; }

void eas_memory_free(void *p) { free(p); }

eas_status base_null(const char *fn, const char *what) { return base_fail(EAS_ERR_HANDLE, "%s: \"%s\" is NULL", fn, what); }
