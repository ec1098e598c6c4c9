/* fuzz_ir.c: any text into the IR parser. What parses must print and parse back to the same text, simplify to
 * IR that the verifier takes, and go through the text generators, whole and narrowed; nothing may crash. */
#include "eas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, eas_error_message());
    abort();
}

static void print_and_parse(const eas_ir *ir)
{
    char *first, *again;
    eas_ir *back;
    must(eas_ir_text(ir, 1, &first) == EAS_OK, "printing");
    must(eas_ir_parse(first, strlen(first), &back) == EAS_OK, "parsing what was printed");
    must(eas_ir_text(back, 1, &again) == EAS_OK, "printing again");
    must(!strcmp(first, again), "the text changes on its way");
    eas_memory_free(first);
    eas_memory_free(again);
    eas_ir_release(back);
}

static void emit(const eas_ir *ir)
{
    static const char *const forms[] = {"ir", "msl", "opencl"};
    for (int i = 0; i < 3; i++) {
        char *text;
        eas_status st = eas_ir_emit(ir, forms[i], &text);
        if (st == EAS_OK)
            eas_memory_free(text);
        else
            must(st == EAS_ERR_TYPE || st == EAS_ERR_VALUE, forms[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    eas_ir *ir, *simple;
    if (eas_ir_parse((const char *)data, size, &ir))
        return 0;
    print_and_parse(ir);
    eas_ir_analyse(ir);
    eas_status st = eas_ir_simplify(ir, &simple);
    must(st == EAS_OK, "simplifying");
    print_and_parse(simple);
    emit(ir);
    emit(simple);
    eas_ir_release(simple);
    eas_ir_release(ir);
    return 0;
}
