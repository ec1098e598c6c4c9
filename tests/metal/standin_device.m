/* standin_device.m: the device and what it makes: libraries, pipelines, buffers, events. */
#include "standin.h"

#include <objc/thr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

EXPORT id MTLCreateSystemDefaultDevice(void);

id MTLCreateSystemDefaultDevice(void) { return standin_fault("device") ? nil : [EASDevice new]; }

static void fail(NSError **error, const char *domain, NSInteger code, const char *text)
{
    if (error)
        *error = [NSError errorWithDomain:domain code:code text:text];
}

@implementation MTLCompileOptions
- (id)init
{
    fast = YES;
    mode = MTLMathModeFast;
    return self;
}
- (void)setFastMathEnabled:(BOOL)on
{
    fast = on;
}
- (void)setMathMode:(NSInteger)m
{
    if (m < MTLMathModeSafe || m > MTLMathModeFast)
        standin_report("mathMode %ld is none", (long)m);
    mode = m;
    fast = m == MTLMathModeFast;
}
- (void)setLanguageVersion:(NSUInteger)v
{
    version = v;
}
@end

@implementation EASLibrary
- (id)newFunctionWithName:(NSString *)name
{
    const msl_kernel *k = msl_find(lib, [name UTF8String]);
    if (!k)
        return nil;
    EASFunction *f = [EASFunction alloc];
    f->library = [self retain];
    f->kernel = k;
    return f;
}
- (void)dealloc
{
    msl_lib_free(lib);
    [super dealloc];
}
@end

@implementation EASFunction
- (void)dealloc
{
    [library release];
    [super dealloc];
}
@end

@implementation MTLComputePipelineDescriptor
- (void)setComputeFunction:(EASFunction *)f
{
    [f retain];
    [function release];
    function = f;
}
- (void)setSupportIndirectCommandBuffers:(BOOL)on
{
    indirect = on;
}
- (void)dealloc
{
    [function release];
    [super dealloc];
}
@end

@implementation EASPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup
{
    return MSL_MAX_THREADS;
}
- (NSUInteger)threadExecutionWidth
{
    return MSL_SIMD;
}
- (NSUInteger)staticThreadgroupMemoryLength
{
    return function->kernel->tg_bytes;
}
- (void)dealloc
{
    [function release];
    [super dealloc];
}
@end

@implementation EASBuffer
- (void *)contents
{
    return private_ ? NULL : memory;
}
- (NSUInteger)length
{
    return size;
}
- (void)dealloc
{
    if (users)
        standin_report("a buffer of %lu bytes was released while %d command buffers use it", (unsigned long)size, (int)users);
    else if (!lent)
        munmap(memory, size);
    if (done)
        done->invoke(done, memory, size);
    [super dealloc];
}
@end

@implementation EASEvent
- (id)init
{
    pthread_mutex_init(&lock, NULL);
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &a);
    return self;
}
- (uint64_t)signaledValue
{
    pthread_mutex_lock(&lock);
    uint64_t v = value;
    pthread_mutex_unlock(&lock);
    return v;
}
- (void)setSignaledValue:(uint64_t)v
{
    pthread_mutex_lock(&lock);
    value = v;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
- (BOOL)waitFor:(uint64_t)v seconds:(double)s
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)s + 1;
    int rc = 0;
    pthread_mutex_lock(&lock);
    while (value < v && !rc)
        rc = pthread_cond_timedwait(&changed, &lock, &until);
    BOOL reached = value >= v;
    pthread_mutex_unlock(&lock);
    return reached;
}
- (void)dealloc
{
    pthread_mutex_destroy(&lock);
    pthread_cond_destroy(&changed);
    [super dealloc];
}
@end

@implementation EASDevice
- (NSString *)name
{
    return [NSString stringWithUTF8String:"stand-in for Metal (kernels run on the CPU)"];
}
- (BOOL)hasUnifiedMemory
{
    return YES;
}
- (MTLSize)maxThreadsPerThreadgroup
{
    return (MTLSize){MSL_MAX_THREADS, MSL_MAX_THREADS, MSL_MAX_THREADS};
}
- (NSUInteger)maxThreadgroupMemoryLength
{
    return MSL_MAX_TG;
}
- (NSUInteger)maxBufferLength
{
    return (NSUInteger)sysconf(_SC_PHYS_PAGES) * (NSUInteger)sysconf(_SC_PAGESIZE) / 4 * 3;
}

/* Apple's devices in a Mac are of the Mac family as well. */
- (BOOL)supportsFamily:(NSInteger)family
{
    NSInteger mine = standin_family();
    return mine && (family == MTLFamilyMac2 || (family >= MTLFamilyApple1 && family <= mine));
}

- (id)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error
{
    const char *text = [source UTF8String];
    char *said = NULL;
    if (standin_fault("compile")) {
        fail(error, "MTLLibraryErrorDomain", 3, "program_source:1:1: error: injected compile failure\n");
        return nil;
    }
    if (options && options->version && options->version < (3 << 16) + 1 && strstr(text, "bfloat")) {
        fail(error, "MTLLibraryErrorDomain", 3, "program_source:1:1: error: bfloat needs language version 3.1\n");
        return nil;
    }
    msl_lib *lib = msl_compile(&text, 1, options ? options->fast : YES, &said);
    if (!lib) {
        fail(error, "MTLLibraryErrorDomain", 3, said ? said : "compile failure");
        free(said);
        return nil;
    }
    EASLibrary *l = [EASLibrary alloc];
    l->lib = lib;
    return l;
}

- (id)newPipeline:(EASFunction *)f indirect:(BOOL)indirect error:(NSError **)error
{
    char why[160];
    if (!f)
        standin_report("a pipeline of a nil function");
    if (indirect && ![self supportsFamily:MTLFamilyApple3])
        standin_report("a pipeline for indirect commands; the device has none");
    if (!f || standin_fault("pipeline")) {
        fail(error, "AGXMetalStandIn", 1, "the pipeline could not be made");
        return nil;
    }
    if (f->kernel->tg_bytes > MSL_MAX_TG) {
        snprintf(why, sizeof why, "Threadgroup memory size (%u) exceeds the maximum threadgroup memory allowed (%d)", f->kernel->tg_bytes,
                 (int)MSL_MAX_TG);
        fail(error, "AGXMetalStandIn", 1, why);
        return nil;
    }
    EASPipeline *p = [EASPipeline alloc];
    p->function = [f retain];
    p->indirect = indirect;
    return p;
}
- (id)newComputePipelineStateWithFunction:(EASFunction *)f error:(NSError **)error
{
    return [self newPipeline:f indirect:NO error:error];
}
- (id)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)d
                                    options:(NSUInteger)o
                                 reflection:(id *)r
                                      error:(NSError **)error
{
    if (!d || o || r)
        standin_report("newComputePipelineStateWithDescriptor: with no descriptor, or asking for a reflection that is not here");
    return [self newPipeline:d ? d->function : nil indirect:d && d->indirect error:error];
}

- (id)newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor *)d maxCommandCount:(NSUInteger)n options:(NSUInteger)o
{
    NSUInteger compute = MTLIndirectDispatch | MTLIndirectDispatchThreads;
    if (!d || !n || !d->types || d->types & ~compute || d->inherit_pipeline || d->inherit_buffers || d->most > MSL_MAX_BUFFERS ||
        (o & MTLStorageMask) != MTLStorageShared) {
        standin_report("newIndirectCommandBufferWithDescriptor: %lu commands of types %lu with %lu buffers", (unsigned long)n,
                       (unsigned long)(d ? d->types : 0), (unsigned long)(d ? d->most : 0));
        return nil;
    }
    if (![self supportsFamily:MTLFamilyApple3]) {
        standin_report("newIndirectCommandBufferWithDescriptor: the device has no indirect commands");
        return nil;
    }
    return standin_fault("indirect") || standin_fault("memory") ? nil : [[EASIndirectBuffer alloc] initWith:d count:n];
}

- (id)newBufferWithLength:(NSUInteger)n options:(NSUInteger)o
{
    NSUInteger mode = o & MTLStorageMask;
    if (!n || (mode != MTLStorageShared && mode != MTLStoragePrivate)) {
        standin_report("newBufferWithLength: %lu bytes with options %lu", (unsigned long)n, (unsigned long)o);
        return nil;
    }
    if (standin_fault("memory") || n > [self maxBufferLength])
        return nil;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return nil;
    memset(p, 0xcd, n < 1 << 20 ? n : 1 << 20); /* what a program has not written it may not rely on */
    EASBuffer *b = [EASBuffer alloc];
    b->memory = p;
    b->size = n;
    b->private_ = mode == MTLStoragePrivate;
    return b;
}

- (id)newBufferWithBytes:(const void *)p length:(NSUInteger)n options:(NSUInteger)o
{
    if ((o & MTLStorageMask) != MTLStorageShared) {
        standin_report("newBufferWithBytes: makes shared buffers only");
        return nil;
    }
    EASBuffer *b = [self newBufferWithLength:n options:o];
    if (b)
        memcpy(b->memory, p, n);
    return b;
}

- (id)newBufferWithBytesNoCopy:(void *)p length:(NSUInteger)n options:(NSUInteger)o deallocator:(standin_deallocator *)done
{
    NSUInteger page = (NSUInteger)sysconf(_SC_PAGESIZE);
    if ((o & MTLStorageMask) != MTLStorageShared || !p || (uintptr_t)p % page || !n || n % page) {
        standin_report("newBufferWithBytesNoCopy: %lu bytes at %p with options %lu; it takes whole pages of %lu bytes, shared", (unsigned long)n, p,
                       (unsigned long)o, (unsigned long)page);
        return nil;
    }
    if (standin_fault("memory") || n > [self maxBufferLength])
        return nil;
    EASBuffer *b = [EASBuffer alloc];
    b->memory = p;
    b->size = n;
    b->lent = YES;
    b->done = done;
    return b;
}

- (id)newCommandQueue
{
    return [self newCommandQueueWithMaxCommandBufferCount:64];
}
- (id)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)n
{
    return [[EASQueue alloc] initWithDevice:self limit:n];
}
- (id)newSharedEvent
{
    return [EASEvent new];
}
@end
