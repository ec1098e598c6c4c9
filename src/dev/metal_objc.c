/* metal_objc.c: the Objective-C runtime from plain C. Nothing of it is linked: it is opened at run time,
 * Apple's with Metal on macOS, or whatever library EAS_METAL_LIBRARY names (the stand-in of tests/metal, on
 * GNU's runtime). Apple's runtime sends a message through objc_msgSend; GNU's finds the method with
 * objc_msg_lookup, and the call is an ordinary one. */
#include "metal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

mtl_sel metal_sel[NMESSAGES];

static struct {
    metal_fn *send, *send_struct; /* Apple's */
    metal_fn *(*lookup)(mtl_id, mtl_sel); /* GNU's */
    mtl_id (*get_class)(const char *);
    mtl_sel (*selector)(const char *);
    void *(*push)(void);
    void (*pop)(void *);
    mtl_id (*create_device)(void);
    void *stack_block; /* the class of blocks on the stack */
} rt;

metal_fn *metal_method(mtl_id o, int message)
{
    if (rt.lookup)
        return rt.lookup(o, metal_sel[message]);
#if defined(__x86_64__)
    if (message == MSG_max_threads) /* returns a structure in memory */
        return rt.send_struct;
#endif
    return rt.send;
}

mtl_id metal_class(const char *name) { return rt.get_class(name); }
mtl_id metal_string(const char *s) { return SEND(string, metal_class("NSString"), s); }
void *metal_pool_push(void) { return rt.push(); }
void metal_pool_pop(void *pool) { rt.pop(pool); }

const char *metal_text(mtl_id error)
{
    mtl_id s = error ? SEND0(description, error) : NULL;
    const char *text = s ? SEND0(utf8, s) : NULL;
    return text ? text : "no reason given";
}

/* ---- blocks: as the compilers' documentation lays them out, with one captured variable pair ---- */

typedef struct completed_block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct completed_block *b, mtl_id command_buffer);
    const struct block_info {
        unsigned long reserved, size;
    } *info;
    void (*handler)(void *, mtl_id);
    void *ctx;
} completed_block;

static void invoke(completed_block *b, mtl_id command_buffer) { b->handler(b->ctx, command_buffer); }

/* On the stack: whoever keeps a block copies it. */
void metal_on_completed(mtl_id command_buffer, void (*handler)(void *ctx, mtl_id command_buffer), void *ctx)
{
    static const struct block_info info = {0, sizeof(completed_block)};
    completed_block b = {rt.stack_block, 0, 0, invoke, &info, handler, ctx};
    SEND(on_completed, command_buffer, &b);
}

/* ---- opening ---- */

static _Thread_local char why[512];

static bool find(void *lib, const char *name, void *out)
{
    void *p = dlsym(lib, name);
    memcpy(out, &p, sizeof p);
    return p != NULL;
}

static const char *find_all(void *lib)
{
    const char *missing = NULL;
    if (!find(lib, "objc_msg_lookup", &rt.lookup) && !find(lib, "objc_msgSend", &rt.send))
        missing = "objc_msgSend";
    find(lib, "objc_msgSend_stret", &rt.send_struct); /* only where structures need it */
    const struct {
        const char *name;
        void *at;
    } needed[] = {
        {"objc_getClass", &rt.get_class},           {"sel_registerName", &rt.selector},
        {"objc_autoreleasePoolPush", &rt.push},     {"objc_autoreleasePoolPop", &rt.pop},
        {"_NSConcreteStackBlock", &rt.stack_block}, {"MTLCreateSystemDefaultDevice", &rt.create_device},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!find(lib, needed[i].name, needed[i].at))
            missing = needed[i].name;
    return missing;
}

#ifdef __APPLE__
/* Metal gives a command line program no device unless CoreGraphics is there. */
static void *open_system(void)
{
    static const char *const libs[] = {"/usr/lib/libobjc.A.dylib",
                                       "/System/Library/Frameworks/Foundation.framework/Foundation",
                                       "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",
                                       "/System/Library/Frameworks/Metal.framework/Metal"};
    for (size_t i = 0; i < sizeof libs / sizeof *libs; i++)
        if (!dlopen(libs[i], RTLD_LAZY | RTLD_GLOBAL)) {
            snprintf(why, sizeof why, "%s", dlerror());
            return NULL;
        }
    return RTLD_DEFAULT;
}
#else
static void *open_system(void)
{
    snprintf(why, sizeof why,
             "Metal is part of macOS; EAS_METAL_LIBRARY may name a stand-in (docs/metal.md)");
    return NULL;
}
#endif

static void register_selectors(void)
{
    static const char *const names[] = {
#define MSG(result, name, types, cls, selector, text) selector,
#include "metal_msg.def"
#undef MSG
    };
    for (int i = 0; i < NMESSAGES; i++)
        metal_sel[i] = rt.selector(names[i]);
}

const char *metal_open(mtl_id *device)
{
    const char *name = base_env("EAS_METAL_LIBRARY");
    bool given = name && *name;
    void *lib = given ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : open_system();
    if (!lib) {
        if (given)
            snprintf(why, sizeof why, "EAS_METAL_LIBRARY cannot be opened: %s", dlerror());
        return why;
    }
    const char *missing = find_all(lib);
    if (missing) {
        snprintf(why, sizeof why, "%s has no %s", given ? name : "the system's Metal", missing);
        return why;
    }
    register_selectors();
    *device = rt.create_device();
    return *device ? NULL : "this machine has no Metal device";
}

/* ---- fork: only a process that has opened Metal has children that must not use it ---- */

static _Atomic bool forked;
static void in_child(void) { forked = true; }

void metal_watch_fork(void) { pthread_atfork(NULL, NULL, in_child); }
bool metal_forked(void) { return forked; }
