/* dump.c: EAS_DUMP=folder keeps the IR of every kernel that is compiled, in the form that the device was
 * given.
 *
 * A file is named after the kernel and the hash of its text, so that equal kernels share one file and two
 * runs of a program can be compared name by name. A file that cannot be written is left out: dumping never
 * makes a launch fail.
 */
#include "kernel.h"

#include <ctype.h>
#include <stdio.h>
#include <sys/stat.h>

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return;
    fputs(text, f);
    fclose(f);
}

static void path_of(const char *folder, const char *name, const char *text, char *out, size_t size)
{
    sha256 s;
    uint8_t hash[32];
    char hex[65], safe[64];
    size_t n = 0;
    sha256_init(&s);
    sha256_add(&s, text, strlen(text));
    sha256_done(&s, hash);
    sha256_hex(hash, hex);
    for (; name[n] && n < sizeof safe - 1; n++)
        safe[n] = isalnum((unsigned char)name[n]) ? name[n] : '_';
    safe[n] = 0;
    snprintf(out, size, "%s/%s-%.12s.ir", folder, safe, hex);
}

void kernel_dump(const eas_ir *ir)
{
    const char *folder = base_env("EAS_DUMP");
    char *text = NULL, path[1024];
    if (!folder || !*folder)
        return;
    if (!eas_ir_text(ir, 0, &text)) {
        mkdir(folder, 0777);
        path_of(folder, ir->name, text, path, sizeof path);
        write_text(path, text);
    }
    eas_memory_free(text);
}
