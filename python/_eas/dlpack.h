/* dlpack.h: DLPack's structures as its specification lays them out, and what dlpack.c and torch.c tell each
 * other. */
#ifndef EAS_PY_DLPACK_H
#define EAS_PY_DLPACK_H

#include "py.h"

typedef struct {
    int32_t type, id;
} dl_device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides; /* strides in elements; NULL: C order */
    uint64_t byte_offset;
} dl_tensor;
typedef struct dl_managed {
    dl_tensor t;
    void *ctx;
    void (*deleter)(struct dl_managed *);
} dl_managed;
typedef struct dl_versioned {
    uint32_t major, minor;
    void *ctx;
    void (*deleter)(struct dl_versioned *);
    uint64_t flags;
    dl_tensor t;
} dl_versioned;
typedef struct dl_api { /* what a type's __dlpack_c_exchange_api__ holds */
    uint32_t major, minor;
    const struct dl_api *prev;
    int (*allocate)(dl_tensor *like, dl_versioned **out, void *ctx,
                    void (*fail)(void *ctx, const char *kind, const char *message));
    int (*managed_from)(void *object, dl_versioned **out);
    int (*managed_to)(dl_versioned *m, void **object); /* takes m, whatever happens */
    int (*view)(void *object, dl_tensor *out);         /* may be NULL; valid until control returns */
    int (*stream)(int32_t device, int32_t id, void **out);
} dl_api;
enum { DL_CPU = 1, DL_CUDA_HOST = 3 }; /* those of devices are in src/dev/device.def */
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };
enum { DL_READ_ONLY = 1, DL_IS_COPIED = 2 };

int dlpack_dtype(dl_dtype d);                   /* eas_dtype or -1 */
const dl_api *dlpack_api(PyTypeObject *type);   /* of DLPack 1.x; NULL if the type has none */
/* a tensor over it; m is the tensor's, or deleted on failure */
PyObject *dlpack_take(dl_versioned *m);
dl_versioned *dlpack_give(Tensor *t, bool copied); /* NULL with an exception */

#endif
