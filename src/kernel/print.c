/* print.c: launches of kernels that print.
 *
 * Such a kernel keeps its IR as it was written; what runs is another kernel made from it, whose last two
 * arguments are memory of ours: a counter and the records (src/ir/records.c). The launch is waited for, and
 * the records are written afterwards, also when it failed. On the cpu the programs run one after the other,
 * so that the records that find a place are the first ones.
 */
#include "kernel.h"

#include <stdio.h>

enum { DEFAULT_LIMIT = 1000, MAX_LIMIT = 1 << 20 };

static int64_t print_limit(void)
{
    const char *e = getenv("EAS_PRINT_LIMIT");
    long long n = e && *e ? strtoll(e, NULL, 10) : DEFAULT_LIMIT;
    return n < 0 ? 0 : n > MAX_LIMIT ? MAX_LIMIT : n;
}

eas_status print_kernel(eas_kernel *k)
{
    eas_ir *ir;
    if (!ir_prints(k->ir))
        return EAS_OK;
    eas_status st = ir_printed(k->ir, print_limit(), &ir, &k->records);
    if (st)
        return st;
    st = eas_kernel_new(ir, &k->printer);
    eas_ir_release(ir);
    if (!st)
        k->printer->serial = true;
    return st;
}

typedef struct printing {
    uint32_t count[2];
    uint32_t *words;
    eas_arg args[IR_MAX_PARAMS];
    eas_launch opts;
} printing;

static eas_status begin(const eas_kernel *k, const eas_device *d, const eas_arg *args, int nargs,
                        const eas_launch *o, printing *p)
{
    size_t words = (size_t)(k->records.cap * k->records.stride);
    memset(p, 0, offsetof(printing, args));
    if (nargs != k->nparams)
        return base_fail(EAS_ERR_TYPE, "kernel %s takes %d arguments, got %d", k->ir->name, k->nparams,
                         nargs);
    p->opts = o ? *o : (eas_launch){.size = sizeof p->opts};
    eas_status st = eas_kernel_grid(k, args, nargs, o, p->opts.grid);
    if (st)
        return st;
    p->opts.has_grid = 1;
    p->opts.async = 0;
    if (!d->host_memory)
        p->opts.interrupted = NULL; /* an interrupted launch would go on writing to the records */
    if (!(p->words = malloc(words * sizeof *p->words)))
        return base_fail_oom(words * sizeof *p->words);
    memcpy(p->args, args, (size_t)nargs * sizeof *args);
    p->args[nargs] =
        (eas_arg){.v.data = p->count, .count = 2, .dtype = EAS_U32, .is_buffer = 1, .flags = EAS_ARG_HOST};
    p->args[nargs + 1] = (eas_arg){
        .v.data = p->words, .count = (int64_t)words, .dtype = EAS_U32, .is_buffer = 1, .flags = EAS_ARG_HOST};
    return EAS_OK;
}

static eas_status show(const eas_kernel *k, const printing *p)
{
    str s = {0};
    bool ok = ir_add_records(&s, k->ir, &k->records, p->count, p->words, p->opts.grid);
    if (ok && s.len && p->opts.print) {
        p->opts.print(p->opts.ctx, s.at, s.len);
    } else if (ok && s.len) {
        fwrite(s.at, 1, s.len, stdout);
        fflush(stdout);
    }
    str_free(&s);
    return ok ? EAS_OK : base_fail_oom(p->count[0]);
}

eas_status print_launch(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o)
{
    if (graph_capturing())
        return base_fail(EAS_ERR_VALUE, "kernel %s prints: such a launch cannot be captured", k->ir->name);
    printing *p = malloc(sizeof *p);
    if (!p)
        return base_fail_oom(sizeof *p);
    eas_status st = begin(k, d, args, nargs, o, p);
    if (!st) {
        base_error failed;
        base_error_keep(&failed, eas_kernel_launch(k->printer, d, p->args, nargs + 2, &p->opts));
        st = show(k, p);
        if (failed.status)
            st = base_error_raise(&failed);
    }
    free(p->words);
    free(p);
    return st;
}

eas_status print_prepare(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs, const eas_launch *o)
{
    printing *p = malloc(sizeof *p);
    if (!p)
        return base_fail_oom(sizeof *p);
    eas_status st = begin(k, d, args, nargs, o, p);
    if (!st)
        st = eas_kernel_prepare(k->printer, d, p->args, nargs + 2, &p->opts);
    free(p->words);
    free(p);
    return st;
}
