/* source.c: a launch for a queue that others own: which text, what to bind, how many threads. Nothing is
 * compiled and nothing runs here. */
#include "kernel.h"

enum { SPMD_GROUP = 32 };

/* The language of a form, and the device that compiles it. */
static eas_status dialect_of(const char *form, gen_dialect *d, eas_device **device)
{
    for (int i = 0; gen_dialect_find(form, d) && i < eas_device_count(); i++) {
        const char *text = eas_device_facts_get(*device = eas_device_at(i)).text;
        if (text && !strcmp(text, form))
            return EAS_OK;
    }
    return base_fail(EAS_ERR_VALUE, "no source text \"%s\"; there are msl and opencl", form);
}

static unsigned ir_bits(int variant) { return IR_FORM_TEXT | (variant & FORM_NARROW ? IR_FORM_NARROW : 0); }

/* Refuses launches whose kernel reports something (bounds checks, assertions, prints): the device that runs
 * the source cannot hand a report back. */
static eas_status refuse_reports(const eas_kernel *k, bool in_bounds, const eas_launch *o)
{
    if (k->printer)
        return base_fail(EAS_ERR_UNAVAILABLE, "kernel %s prints", k->ir->name);
    if (kernel_debugs(o))
        return base_fail(EAS_ERR_UNAVAILABLE, "kernel %s is launched with debug, which checks every access",
                         k->ir->name);
    if (!in_bounds)
        return base_fail(
            EAS_ERR_UNAVAILABLE,
            "kernel %s: that its accesses stay inside the arguments is not proved, so they must be checked",
            k->ir->name);
    return EAS_OK;
}

static eas_status bits_of(const eas_kernel *k, const eas_ir *ir, const packed *p, uint64_t *value)
{
    gen_msl_layout layout;
    eas_status st = gen_msl_layout_of(ir, &layout);
    if (st)
        return st;
    if (layout.packed)
        return base_fail(EAS_ERR_UNAVAILABLE,
                         "kernel %s has %d parameters; more than %d are not bound one by one", k->ir->name,
                         k->nparams, (int)GEN_MSL_BUFFERS);
    for (int i = 0; i < k->nparams; i++) {
        eas_dtype from = (eas_dtype)k->params[i].dtype, to = gen_ctext_scalar(ir, i);
        double d;
        memcpy(&d, &p->slot[i], sizeof d);
        bool rounded = !k->params[i].is_buffer && from == EAS_F64 && to != EAS_F64;
        value[i] = k->params[i].is_buffer ? 0 : rounded ? (uint64_t)ir_bits_from_double(to, d) : p->slot[i];
    }
    return EAS_OK;
}

static void threads_of(const eas_kernel *k, const packed *p, eas_source *out)
{
    bool groups = k->info.mode == EAS_MODE_THREAD;
    for (int i = 0; i < 3; i++) {
        out->threads[i] = p->grid[i];
        out->group[i] = 1;
    }
    out->group[0] = groups ? k->info.block : p->grid[0] < SPMD_GROUP ? p->grid[0] : SPMD_GROUP;
    if (groups)
        out->threads[0] *= k->info.block;
}

eas_status eas_kernel_source(eas_kernel *k, const char *form, const eas_arg *args, int nargs,
                             const eas_launch *o, eas_source *out)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(form, EAS_ERR_HANDLE);
    NEED(nargs <= 0 || args, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    gen_dialect dialect;
    eas_device *d;
    packed p;
    bool in_bounds, narrow, overlap;
    eas_ir *ir;
    memset(out, 0, sizeof *out);
    eas_status st = dialect_of(form, &dialect, &d);
    if (!st)
        st = kernel_judge(k, d, args, nargs, o, &p, &in_bounds, &narrow, &overlap);
    if (st || !p.programs)
        return st;
    if ((st = refuse_reports(k, in_bounds, o)))
        return st;
    out->variant = (narrow ? FORM_NARROW : 0) | (overlap ? FORM_ALIAS : 0);
    st = kernel_form(k, ir_bits(out->variant), &ir);
    if (!st)
        st = dev_check(d, ir);
    if (!st)
        st = bits_of(k, ir, &p, out->value);
    threads_of(k, &p, out);
    return st;
}

eas_status eas_kernel_source_text(eas_kernel *k, const char *form, int variant, char **text, char **name)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(form, EAS_ERR_HANDLE);
    NEED(text, EAS_ERR_HANDLE);
    NEED(name, EAS_ERR_HANDLE);
    gen_dialect dialect;
    eas_device *d;
    eas_ir *ir;
    str s = {0}, n = {0};
    *text = *name = NULL;
    eas_status st = dialect_of(form, &dialect, &d);
    if (!st)
        st = kernel_form(k, ir_bits(variant), &ir);
    if (!st)
        st = gen_ctext(ir, dialect, variant & FORM_ALIAS ? GEN_ALIAS : 0, &s, NULL);
    if (!st)
        st = gen_ctext_name(ir, &n);
    if (!st)
        st = str_take(&s, text);
    if (!st)
        st = str_take(&n, name);
    if (st) {
        free(*text);
        *text = NULL;
        str_free(&s);
        str_free(&n);
    }
    return st;
}
