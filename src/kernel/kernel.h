/* kernel.h: a kernel as users see it: one traced IR, its forms, what each device made of them, and launches.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include "../dev/dev.h"

#include <pthread.h>
#include <stdatomic.h>

/* Forms of a launch, as bits: each combination is compiled at first need. FORM_DATA: of what FORM_CHECKED
 * asks for, only accesses by data are checked. FORM_SUMS: DEV_SUMS. */
enum {
    FORM_ALIAS = 1,
    FORM_CHECKED = 2,
    FORM_NARROW = 4,
    FORM_ASSERT = 8,
    FORM_DATA = 16,
    FORM_SUMS = 32,
    NFORMS = 64
};
/* Forms of the IR that code is made of, as bits. IR_FORM_TEXT: with fast math, functions that C-like
 * languages have stay calls. IR_FORM_LDEXP: for hardware that scales by powers of two. */
enum {
    IR_FORM_CHECKED = 1,
    IR_FORM_NARROW = 2,
    IR_FORM_TEXT = 4,
    IR_FORM_ASSERT = 8,
    IR_FORM_LDEXP = 16,
    IR_FORM_DATA = 32,
    NIRFORMS = 64
};

/* What one launch's integers prove; remembered because the next launch is usually the same. */
typedef struct kernel_memo {
    int64_t *key; /* grid, scalars, counts */
    uint8_t proof; /* ir_proof */
    int8_t narrow; /* is the 32-bit form right? -1: nobody asked yet */
    bool sums; /* is FORM_SUMS worth it? */
    double cost; /* of a program, see cost.c */
} kernel_memo;
enum { MEMOS = 16 };

/* A parameter as a launch looks at it. */
typedef struct kernel_param {
    uint8_t is_buffer, dtype, written, log2_size, is_float, added, atomic; /* added: ir_added */
} kernel_param;

struct eas_kernel {
    uint32_t magic;
    int refs;
    uint64_t number; /* no other kernel of the process has it, or had it */
    eas_ir *ir; /* simplified, 64-bit integers: the meaning */
    eas_ir *forms[NIRFORMS]; /* with elementary functions spelled out: what runs; made at first need */
    eas_ir *narrow; /* 32-bit form, or NULL if there is nothing to narrow; made at first need */
    ir_narrow need;
    bool tried_narrow;
    eas_ir_info info;
    kernel_param *params;
    int nparams;
    int size_n, size_h, size_w, size_d; /* parameters called N, H, W, D, or -1 */
    bool has_mma; /* accesses that cannot be guarded one by one */
    bool has_assert;
    bool adds; /* some parameter is `added` */
    bool serial; /* programs run one after the other */
    bool doubtful; /* cover.c: a grid inferred from N may not be what is meant */
    _Atomic uint64_t covered; /* hash of the last such launch that was found right */
    eas_kernel *printer; /* of a kernel that prints: what runs, with two parameters more (see ir_printed) */
    ir_records records;
    pthread_mutex_t lock; /* guards the making of forms and code */
    _Atomic(dev_code *) code[DEV_MAX][NFORMS];
    atomic_flag memo_lock;
    kernel_memo memo[MEMOS];
    uint32_t memo_next;
    eas_kernel *next_grave; /* of debug builds */
};
enum { KERNEL_MAGIC = 0x4541534b };

/* ---- dump.c: EAS_DUMP ---- */
void kernel_dump(const eas_ir *ir); /* what a device is about to compile */

/* ---- kernel.c ---- */
eas_status kernel_form(eas_kernel *k, unsigned bits, eas_ir **out); /* IR_FORM_*; borrowed */
/* borrowed; the plain IR if there is nothing to narrow */
eas_status kernel_narrowed(eas_kernel *k, eas_ir **out);
eas_status kernel_code(eas_kernel *k, int device, unsigned form, dev_code **out);
/* Compiles what these kernels will probably run, several at a time, before they are launched one after the
 * other. What fails here fails again, with its message, at the launch. */
void kernel_compile_ahead(int n, eas_kernel *const *kernels, eas_device *d, const eas_launch *o);

/* fills in what the grid is inferred from: ir and size_* */
void kernel_sizes(const eas_ir *ir, eas_kernel *k);

/* ---- cost.c ---- */
typedef struct kernel_estimate { /* of one program */
    double ns, adds; /* adds: to buffers that are `added` */
} kernel_estimate;
kernel_estimate kernel_cost(const eas_kernel *k, const ir_env *env);
/* Do arrays of each thread's own (FORM_SUMS) cost less than they save? */
bool kernel_sums_pay(const eas_kernel *k, const int64_t *count, double adds);

/* ---- launch.c ---- */
/* A launch's arguments as the device wants them. */
typedef struct packed {
    uint64_t slot[IR_MAX_PARAMS];
    int64_t count[IR_MAX_PARAMS];
    int64_t key[3 + IR_MAX_PARAMS]; /* grid, then per parameter its integer value or its count */
    uint64_t bytes;
    int64_t grid[3], programs;
} packed;

typedef struct resolved { /* a launch that nothing refuses any more */
    packed p;
    double cost;
    eas_device *on; /* where it runs: dev_ref for what must be interpreted */
    dev_code *code;
    struct stage *stage; /* host arguments of a device with memory of its own; NULL: none */
} resolved;
/* Arguments checked and as code wants them, and the grid. */
eas_status kernel_pack(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o, uint64_t *slot,
                       int64_t *count, int64_t grid[3]);
/* arguments and grid alone */
eas_status kernel_refuses(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o);
/* Checks everything and compiles what is missing. With programs == 0 there is nothing to do. lend: the launch
 * is waited for, so the device may use host arrays where they lie. */
eas_status kernel_resolve(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o,
                          bool lend, resolved *r);
/* What this launch's values prove for a device, and whether its buffers overlap where one is written. */
eas_status kernel_judge(eas_kernel *k, const eas_device *d, const eas_arg *args, int nargs,
                        const eas_launch *o, packed *p, bool *in_bounds, bool *narrow, bool *overlap);
dev_launch kernel_launch_of(const eas_kernel *k, const eas_device *d, const resolved *r);

/* Launches that do not depend on each other, as one where the device can: waited for, each with a grid. */
typedef struct kernel_call {
    eas_kernel *kernel;
    const eas_arg *args;
    int nargs;
    int64_t grid[3];
} kernel_call;
eas_status kernel_launch_many(int n, const kernel_call *calls, eas_device *d, const eas_launch *o);

bool kernel_debugs(const eas_launch *o); /* the launch, or EAS_DEBUG, asks for checks and asserts */

/* ---- print.c: kernels that print ---- */
eas_status print_kernel(eas_kernel *k); /* makes k->printer, if k prints */
eas_status print_launch(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o);
eas_status print_prepare(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o);

/* ---- stage.c ---- */
typedef struct span {
    uint64_t lo, hi; /* the memory as it was given */
    uint64_t there; /* where it begins on the other side */
    eas_buffer *buf; /* on the device */
    void *host; /* or on the host */
    bool written, lent; /* lent: there is the same memory */
    uint8_t log2_align; /* of its largest element */
} span;
typedef struct stage {
    eas_device *lent_to; /* or NULL */
    int n;
    span at[];
} stage;
/* The memory of the host arguments (or of all others), in pieces that do not overlap. */
stage *stage_new(const eas_kernel *k, const eas_arg *args, const packed *p, bool host);
/* on d, or with NULL on the host; lend: without a copy where d can */
eas_status stage_alloc(stage *g, eas_device *d, bool lend);
void stage_map(const stage *g, const eas_kernel *k, packed *p, const eas_arg *args, bool host);
eas_status stage_copy(const stage *g, eas_device *d, dev_queue *q, dev_way way);
void stage_free(void *g);

/* ---- graph.c ---- */
bool graph_capturing(void); /* is this thread recording? */
eas_status graph_record(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o);

/* ---- grid.c ---- */
eas_status kernel_grid(const eas_kernel *k, const eas_arg *args, const eas_launch *o, int64_t grid[3]);

/* ---- cover.c: grids inferred from N ---- */
bool cover_doubtful(const eas_kernel *k);
bool cover_asks(const eas_kernel *k, const packed *p); /* is there reason to check? */
eas_status cover_check(const eas_kernel *k, const packed *p);

#endif
