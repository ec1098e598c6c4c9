/* fuzz_io.c: any bytes as a file of tensors. What opens must be readable: every tensor is decoded and its
 * ends are touched; nothing may crash, read beyond the file or allocate without reason. The first byte
 * chooses the name, so that each format is tried. */
#include "eas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void touch(eas_weights *w, int i)
{
    eas_weight e = eas_weights_at(w, i);
    eas_node *n = NULL;
    int64_t offset, strides[EAS_MAX_RANK], start[EAS_MAX_RANK], count[EAS_MAX_RANK], elements = 1;
    if (eas_weights_find(w, e.name) != i)
        abort();
    for (int k = 0; k < e.rank; k++) {
        elements *= e.shape[k];
        start[k] = e.shape[k] / 2;
        count[k] = e.shape[k] - start[k];
    }
    if (elements > 1 << 24)
        return; /* a deflated stream of zeros may be large with good reason */
    for (int part = 0; part < 2; part++) {
        if (eas_weights_slice(w, i, part ? start : NULL, part ? count : NULL, &n) != EAS_OK)
            continue;
        eas_buffer *buf = eas_node_buffer(n, &offset, strides);
        int64_t last = offset, any = 1;
        for (int k = 0; k < e.rank; k++) {
            int64_t have = part ? count[k] : e.shape[k];
            any *= have;
            last += (have - 1) * strides[k];
        }
        const uint8_t *p = eas_buffer_host(buf);
        size_t each = eas_dtype_size(e.dtype);
        if (any) {
            sink = p[(size_t)offset * each];
            sink = p[(size_t)last * each + each - 1];
        }
        eas_node_release(n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"m.safetensors", "m.npz", "m.gguf", "m.npy"};
    eas_weights *w;
    if (!size || eas_weights_parse(data + 1, size - 1, names[data[0] % 4], &w) != EAS_OK)
        return 0;
    for (int i = 0; i < eas_weights_count(w); i++)
        touch(w, i);
    for (int i = 0; i < eas_weights_meta_count(w); i++) {
        char *text = NULL;
        if (eas_weights_meta(w, i, &text) == EAS_OK)
            sink = (uint8_t)strlen(text);
        eas_memory_free(text);
    }
    eas_weights_release(w);
    return 0;
}
