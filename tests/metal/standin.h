/* standin.h: Metal for machines that have none: the classes and functions that src/dev/metal.c talks to, on
 * GNU's Objective-C runtime.
 *
 * Objects are really counted and kernels are really run. What Metal's API validation would stop at is
 * *reported* here: on standard error, in the list that eas_standin_reports() gives, and as an error of the
 * command buffer it concerns. Faults can be asked for.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include "msl.h"

#include <objc/message.h>
#include <objc/objc.h>
#include <objc/runtime.h>
#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned long NSUInteger;
typedef long NSInteger;
typedef struct MTLSize {
    NSUInteger width, height, depth;
} MTLSize;
typedef struct NSRange {
    NSUInteger location, length;
} NSRange;

enum { MTLStorageShared = 0, MTLStoragePrivate = 2 << 4, MTLStorageMask = 0xf0 }; /* of MTLResourceOptions */
enum {
    MTLCommandBufferStatusNotEnqueued,
    MTLCommandBufferStatusEnqueued,
    MTLCommandBufferStatusCommitted,
    MTLCommandBufferStatusScheduled,
    MTLCommandBufferStatusCompleted,
    MTLCommandBufferStatusError
};
enum {
    MTLCommandBufferErrorInternal = 1,
    MTLCommandBufferErrorTimeout = 2,
    MTLCommandBufferErrorPageFault = 3,
    MTLCommandBufferErrorOutOfMemory = 8,
    MTLCommandBufferErrorInvalidResource = 9
};
enum { MTLIndirectDispatch = 1 << 5, MTLIndirectDispatchThreads = 1 << 6 }; /* of MTLIndirectCommandType */
enum { MTLFamilyApple1 = 1001, MTLFamilyApple3 = 1003, MTLFamilyApple9 = 1009, MTLFamilyMac2 = 2002 };
enum { MTLMathModeSafe, MTLMathModeRelaxed, MTLMathModeFast };

/* gcc has no _Atomic in Objective-C */
#define COUNT(x, by) __atomic_add_fetch(&(x), (by), __ATOMIC_ACQ_REL)

/* ---- what tests ask (standin_base.m) ---- */

EXPORT const char *eas_standin_reports(
    void); /* one a line; "" if there was nothing to complain about. Valid until the next call */
EXPORT void eas_standin_clear(void); /* forgets reports and faults */
/* Makes calls fail: "device", "memory", "compile", "pipeline", "indirect", "command", "timeout", "pagefault",
 * separated by commas; "memory:3" lets three pass first, "memory:0x2" fails twice. NULL: none. At the start
 * it is what EAS_METAL_FAULT says. */
EXPORT void eas_standin_fault(const char *spec);
EXPORT void eas_standin_indirect(long *encoded, long *executed); /* indirect commands so far */
EXPORT long
eas_standin_live(const char *kind); /* objects alive, by class: "buffer", "command", "encoder", ... */

void standin_report(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool standin_fault(const char *kind); /* should this one fail? */
double standin_now(void);
/* of Apple's: EAS_METAL_FAMILY, Apple 9; 0: none that knows indirect commands */
NSInteger standin_family(void);
double standin_limit(void); /* seconds that a command may take: EAS_METAL_TIMEOUT, 60 */

/* ---- Foundation (standin_base.m) ---- */

@class NSString, NSError;

__attribute__((objc_root_class))
@interface NSObject {
    Class isa;
    long refs;
}
+ (id)alloc;
+ (id)new;
- (id)init;
- (id)retain;
- (void)release;
- (id)autorelease;
- (void)dealloc;
- (NSUInteger)retainCount;
- (BOOL)respondsToSelector:(SEL)sel;
@end

@interface NSString : NSObject {
    char *bytes;
}
+ (id)stringWithUTF8String:(const char *)s;
- (const char *)UTF8String;
- (NSUInteger)length;
@end

@interface NSError : NSObject {
    NSString *text;
    NSString *domain;
    NSInteger code;
}
+ (id)errorWithDomain:(const char *)d code:(NSInteger)c text:(const char *)s;
- (NSString *)localizedDescription;
- (NSString *)domain;
- (NSInteger)code;
@end

/* ---- Metal (standin_device.m) ---- */

@class EASDevice;

@interface MTLCompileOptions : NSObject {
  @public
    BOOL fast;
    NSInteger mode;
    NSUInteger version;
}
- (void)setFastMathEnabled:(BOOL)on;
- (void)setMathMode:(NSInteger)m;
- (void)setLanguageVersion:(NSUInteger)v;
@end

@interface EASLibrary : NSObject {
  @public
    EASDevice *device;
    msl_lib *lib;
}
- (id)newFunctionWithName:(NSString *)name;
@end

@interface EASFunction : NSObject {
  @public
    EASLibrary *library;
    const msl_kernel *kernel;
}
@end

@interface MTLComputePipelineDescriptor : NSObject {
  @public
    EASFunction *function;
    BOOL indirect;
}
- (void)setComputeFunction:(EASFunction *)f;
- (void)setSupportIndirectCommandBuffers:(BOOL)on;
@end

@interface EASPipeline : NSObject {
  @public
    EASFunction *function;
    BOOL indirect; /* indirect commands may name it */
}
- (NSUInteger)maxTotalThreadsPerThreadgroup;
- (NSUInteger)threadExecutionWidth;
- (NSUInteger)staticThreadgroupMemoryLength;
@end

typedef struct standin_deallocator { /* a block that gives memory back */
    void *isa;
    int flags, reserved;
    void (*invoke)(void *block, void *memory, NSUInteger size);
} standin_deallocator;

@interface EASBuffer : NSObject {
  @public
    char *memory;
    NSUInteger size;
    BOOL private_;
    BOOL lent; /* the memory is the caller's */
    standin_deallocator *done; /* of lent memory, or NULL */
    int users; /* command buffers that are not over */
}
- (void *)contents;
- (NSUInteger)length;
@end

@interface EASEvent : NSObject {
  @public
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t value;
}
- (uint64_t)signaledValue;
- (void)setSignaledValue:(uint64_t)v;
- (BOOL)waitFor:(uint64_t)v seconds:(double)s;
@end

@class MTLIndirectCommandBufferDescriptor;

@interface EASDevice : NSObject
- (NSString *)name;
- (BOOL)hasUnifiedMemory;
- (MTLSize)maxThreadsPerThreadgroup;
- (NSUInteger)maxThreadgroupMemoryLength;
- (NSUInteger)maxBufferLength;
- (BOOL)supportsFamily:(NSInteger)family;
- (id)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id)newComputePipelineStateWithFunction:(EASFunction *)f error:(NSError **)error;
- (id)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)d
                                    options:(NSUInteger)o
                                 reflection:(id *)r
                                      error:(NSError **)error;
- (id)newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor *)d
                             maxCommandCount:(NSUInteger)n
                                     options:(NSUInteger)o;
- (id)newBufferWithLength:(NSUInteger)n options:(NSUInteger)o;
- (id)newBufferWithBytes:(const void *)p length:(NSUInteger)n options:(NSUInteger)o;
- (id)newBufferWithBytesNoCopy:(void *)p
                        length:(NSUInteger)n
                       options:(NSUInteger)o
                   deallocator:(standin_deallocator *)done;
- (id)newCommandQueue;
- (id)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)n;
- (id)newSharedEvent;
@end

/* ---- what a dispatch needs (standin_queue.m) ---- */

typedef struct standin_binding {
    EASBuffer *buffer;
    NSUInteger offset, length;
    void *bytes; /* of setBytes */
} standin_binding;

/* Is everything that the kernel reads bound, aligned and long enough, and the group of a size? Else why[]
 * says what is not. */
bool standin_fits(const msl_kernel *k, const standin_binding *bound, MTLSize n, MTLSize group, char why[256]);
msl_grid standin_grid(MTLSize threads, MTLSize group);

/* ---- indirect commands (standin_indirect.m) ---- */

extern long standin_executed;

@interface MTLIndirectCommandBufferDescriptor : NSObject {
  @public
    NSUInteger types, most;
    BOOL inherit_pipeline, inherit_buffers;
}
- (void)setCommandTypes:(NSUInteger)t;
- (void)setInheritPipelineState:(BOOL)on;
- (void)setInheritBuffers:(BOOL)on;
- (void)setMaxKernelBufferBindCount:(NSUInteger)n;
@end

@class EASIndirectBuffer;

/* Names buffers, and does not count them: whoever executes it must say which it uses. */
@interface EASIndirectCommand : NSObject {
  @public
    EASIndirectBuffer *owner; /* it is part of */
    EASPipeline *pipeline;
    standin_binding bound[MSL_MAX_BUFFERS];
    msl_grid grid;
    BOOL barrier, encoded;
}
- (void)reset;
- (void)setComputePipelineState:(EASPipeline *)p;
- (void)setKernelBuffer:(EASBuffer *)b offset:(NSUInteger)o atIndex:(NSUInteger)i;
- (void)setBarrier;
- (void)clearBarrier;
- (void)concurrentDispatchThreadgroups:(MTLSize)n threadsPerThreadgroup:(MTLSize)g;
- (void)concurrentDispatchThreads:(MTLSize)n threadsPerThreadgroup:(MTLSize)g;
@end

@interface EASIndirectBuffer : NSObject {
  @public
    NSUInteger size, types, most;
    EASIndirectCommand **commands;
    int users; /* command buffers that are not over */
    BOOL wrong; /* something was refused */
}
- (id)initWith:(MTLIndirectCommandBufferDescriptor *)d count:(NSUInteger)n;
- (NSUInteger)size;
- (id)indirectComputeCommandAtIndex:(NSUInteger)i;
@end

/* ---- commands (standin_queue.m) ---- */

typedef struct standin_block { /* a block, as the compilers' documentation lays it out */
    void *isa;
    int flags, reserved;
    void (*invoke)(void *block, id command_buffer);
    struct standin_block_info {
        unsigned long reserved, size;
    } *info;
} standin_block;

typedef struct command command;

@interface EASQueue : NSObject {
  @public
    EASDevice *device;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    BOOL stop, started;
    NSUInteger limit;
    NSUInteger open, pending; /* command buffers not committed; committed and not over */
    id first, last; /* committed ones, in order */
}
- (id)initWithDevice:(EASDevice *)d limit:(NSUInteger)n;
- (id)commandBuffer;
- (id)commandBufferWithUnretainedReferences;
@end

@interface EASCommandBuffer : NSObject {
  @public
    EASQueue *queue;
    id encoder; /* not ended */
    command *first, *last;
    EASBuffer **used; /* by useResources: */
    NSUInteger nused;
    BOOL unretained, enqueued, wrong;
    int fault; /* that was asked for */
    NSUInteger status;
    NSError *error;
    double start, end;
    id next; /* in the queue */
    standin_block **handlers;
    int nhandlers;
}
- (id)computeCommandEncoder;
- (id)blitCommandEncoder;
- (void)commit;
- (void)waitUntilCompleted;
- (void)addCompletedHandler:(standin_block *)b;
- (void)encodeSignalEvent:(EASEvent *)e value:(uint64_t)v;
- (void)encodeWaitForEvent:(EASEvent *)e value:(uint64_t)v;
- (NSUInteger)status;
- (NSError *)error;
- (double)GPUStartTime;
- (double)GPUEndTime;
@end

@interface EASEncoder : NSObject {
  @public
    EASCommandBuffer *buffer;
    BOOL ended;
}
- (void)endEncoding;
- (void)wrong:(const char *)what;
@end

@interface EASComputeEncoder : EASEncoder {
  @public
    EASPipeline *pipeline;
    standin_binding bound[MSL_MAX_BUFFERS];
    EASPipeline **ran; /* that dispatches of its own have named */
    NSUInteger nran, first_used; /* first_used: of the command buffer's, this encoder's begin here */
}
- (void)setComputePipelineState:(EASPipeline *)p;
- (void)setBuffer:(EASBuffer *)b offset:(NSUInteger)o atIndex:(NSUInteger)i;
- (void)setBytes:(const void *)p length:(NSUInteger)n atIndex:(NSUInteger)i;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)size;
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)size;
- (void)useResources:(EASBuffer *const *)all count:(NSUInteger)n usage:(NSUInteger)u;
- (void)memoryBarrierWithScope:(NSUInteger)scope;
- (void)executeCommandsInBuffer:(EASIndirectBuffer *)b withRange:(NSRange)r;
@end

@interface EASBlitEncoder : EASEncoder
- (void)copyFromBuffer:(EASBuffer *)a
          sourceOffset:(NSUInteger)ao
              toBuffer:(EASBuffer *)b
     destinationOffset:(NSUInteger)bo
                  size:(NSUInteger)n;
@end

#endif
