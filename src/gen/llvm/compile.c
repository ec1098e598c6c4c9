/* compile.c: the entry point of libeas-llvm.
 *
 *   plan -> LLVM IR of one function -> object (LLVM's code generator, no IR passes) -> flat image (image.c)
 *
 * Every LLVM object of a compilation hangs on its own context, so compilations on several threads do not
 * meet.
 */
#include "llvm.h"

#include <llvm-c/Analysis.h>

#ifndef NDEBUG
static eas_status check_module(gen *g)
{
    char *err = NULL;
    eas_status st = EAS_OK;
    if (LLVMVerifyModule(g->mod, LLVMReturnStatusAction, &err))
        st = base_fail(EAS_ERR_INTERNAL, "LLVM: %s", err);
    LLVMDisposeMessage(err);
    return st;
}
#else
static eas_status check_module(gen *g)
{
    (void)g;
    return EAS_OK;
}
#endif

static eas_status make_text(gen *g, char **text)
{
    if (strcmp(g->opt->text, "llvm") == 0) {
        char *s = LLVMPrintModuleToString(g->mod);
        *text = s ? strdup(s) : NULL;
        LLVMDisposeMessage(s);
        return *text ? EAS_OK : base_fail_oom(1);
    }
    LLVMMemoryBufferRef buf;
    const eas_status st = target_emit(g, true, &buf);
    if (st)
        return st;
    *text = strndup(LLVMGetBufferStart(buf), LLVMGetBufferSize(buf));
    LLVMDisposeMemoryBuffer(buf);
    return *text ? EAS_OK : base_fail_oom(1);
}

static eas_status make_object(gen *g, gen_image *image)
{
    LLVMMemoryBufferRef buf;
    const eas_status st = target_emit(g, false, &buf);
    if (st)
        return st;
    image->size = LLVMGetBufferSize(buf);
    image->bytes = malloc(image->size);
    if (image->bytes)
        memcpy(image->bytes, LLVMGetBufferStart(buf), image->size);
    LLVMDisposeMemoryBuffer(buf);
    return image->bytes ? EAS_OK : base_fail_oom(image->size);
}

static eas_status make_image(gen *g, gen_image *image)
{
    LLVMMemoryBufferRef buf;
    eas_status st = target_emit(g, false, &buf);
    if (st)
        return st;
    st = gen_link_elf((const uint8_t *)LLVMGetBufferStart(buf), LLVMGetBufferSize(buf), "kernel", image);
    LLVMDisposeMemoryBuffer(buf);
    image->scratch = g->p.scratch;
    image->alias_sensitive = g->p.alias_sensitive;
    return st;
}

static eas_status make_plan(gen *g)
{
    eas_status st = bf16_factors(g);
    if (!st)
        st = bytes_factors(g);
    if (!st)
        st = plan_make(&g->p);
    if (st)
        return st;
    bf16_reserve(g);
    bytes_reserve(g);
    return EAS_OK;
}

static eas_status plan_text(gen *g, char **text)
{
    str s = {0};
    const eas_status st = make_plan(g);
    if (st)
        return st;
    plan_print(&g->p, &s);
    return str_take(&s, text);
}

static eas_status generate(gen *g)
{
    const eas_status st = make_plan(g);
    if (st)
        return st;
    g->sval = arena_alloc(&g->mem, sizeof *g->sval * (g->ir->nvals + 1));
    g->outputs = arena_alloc(&g->mem, sizeof *g->outputs * (g->ir->nvals + 1));
    g->frags = arena_alloc(&g->mem, sizeof *g->frags * (g->ir->nvals + 1));
    g->chains = arena_alloc(&g->mem, sizeof *g->chains * (g->ir->nvals + 1));
    if (g->opt->sums)
        g->sums = arena_alloc(&g->mem, sizeof *g->sums * (size_t)(g->ir->nparams + 1));
    if (!g->sval || !g->outputs || !g->frags || !g->chains || (g->opt->sums && !g->sums))
        return base_fail_oom(sizeof *g->sval * g->ir->nvals);
    if (g->sums)
        ir_added(g->ir, g->sums);
    function_emit(g);
    return g->st ? g->st : check_module(g);
}

typedef struct task {
    gen *g;
    gen_image *image;
    char **text;
    eas_status st;
} task;

static void with_llvm(void *ctx)
{
    task *t = ctx;
    gen *g = t->g;
    const char *form = g->opt->text;
    g->cx = LLVMContextCreate();
    g->mod = LLVMModuleCreateWithNameInContext("eas", g->cx);
    g->b = LLVMCreateBuilderInContext(g->cx);
    t->st = generate(g);
    if (!t->st)
        t->st = !form               ? make_image(g, t->image)
              : strcmp(form, "obj") ? make_text(g, t->text)
                                    : make_object(g, t->image);
    LLVMDisposeBuilder(g->b);
    LLVMDisposeModule(g->mod);
    LLVMContextDispose(g->cx);
}

static eas_status gave_up(const char *why)
{
    return *why ? base_fail(EAS_ERR_INTERNAL, "LLVM: %s", why)
                : base_fail(EAS_ERR_MEMORY, "the compiler ran out of memory");
}

static eas_status compile(const eas_ir *ir, const gen_options *opt, gen_image *image, char **text)
{
    char why[512];
    gen g = {.ir = ir, .opt = opt};
    g.p = (plan){.ir = ir, .mem = &g.mem, .alias = opt->alias != 0};
    task t = {&g, image, text, EAS_OK};
    target_read_isa(&g);
    if (opt->text && !strcmp(opt->text, "plan"))
        t.st = plan_text(&g, text);
    else if (!llvm_guarded(with_llvm, &t, why, sizeof why)) {
        if (image) {
            free(image->bytes);
            image->bytes = NULL;
        }
        t.st = gave_up(why);
    }
    plan_free(&g.p);
    arena_free(&g.mem);
    return t.st;
}

/* The module has its own copy of base, so the message of a failure is handed over, malloc'ed. */
EAS_API gen_llvm_compile eas_llvm_compile;
EAS_API eas_status eas_llvm_compile(const eas_ir *ir, const gen_options *opt, gen_image *image, char **text,
                                    char **error)
{
    if (image)
        memset(image, 0, sizeof *image);
    const bool other = opt->build && strcmp(opt->build, eas_build_id());
    const eas_status st = other
                            ? base_fail(EAS_ERR_UNAVAILABLE, "libeas-llvm is of another build than libeas")
                            : compile(ir, opt, image, text);
    if (st && error)
        *error = strdup(eas_error_message());
    return st;
}
