/* standin_shader.m: what torch.mps.compile_shader does, for tests: MSL compiled by itself, and dispatched
 * on one queue that is not libeas's. Plain C on the outside: tests/torch_mps.py calls it. */
#include "standin.h"

#include <stdio.h>
#include <string.h>

enum { ERROR_SIZE = 2048 };

EXPORT void *eas_standin_shader_compile(const char *source, char error[ERROR_SIZE]); /* a library, or NULL */
EXPORT void eas_standin_shader_free(void *library);
EXPORT int eas_standin_shader_wait(char error[ERROR_SIZE]); /* for everything that was dispatched; 0: all went well */
/* Argument i is a buffer and an offset, or, where buffer[i] is NULL, `size[i]` bytes. threads and group as
 * torch takes them. 0: it is queued. */
EXPORT int eas_standin_shader_run(void *library, const char *name, int n, void *const *buffer, const uint64_t *offset, const void *const *bytes,
                                  const uint64_t *size, const uint64_t threads[3], const uint64_t group[3], char error[ERROR_SIZE]);
void *objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void *p);
id MTLCreateSystemDefaultDevice(void);

static struct {
    EASDevice *device;
    EASQueue *queue;
    EASCommandBuffer *last;
} torch;

static bool ready(void)
{
    if (!torch.device)
        torch.device = MTLCreateSystemDefaultDevice();
    if (torch.device && !torch.queue)
        torch.queue = [torch.device newCommandQueue];
    return torch.queue != nil;
}

static void say(char error[ERROR_SIZE], NSError *e, const char *otherwise)
{
    snprintf(error, ERROR_SIZE, "%s", e ? [[e localizedDescription] UTF8String] : otherwise);
}

void *eas_standin_shader_compile(const char *source, char error[ERROR_SIZE])
{
    void *pool = objc_autoreleasePoolPush();
    NSError *e = nil;
    MTLCompileOptions *options = [MTLCompileOptions new];
    [options setMathMode:MTLMathModeSafe];
    id library = ready() ? [torch.device newLibraryWithSource:[NSString stringWithUTF8String:source] options:options error:&e] : nil;
    if (!library)
        say(error, e, "no device");
    [options release];
    objc_autoreleasePoolPop(pool);
    return library;
}

void eas_standin_shader_free(void *library) { [(id)library release]; }

static EASPipeline *pipeline_of(EASLibrary *library, const char *name, NSError **e)
{
    EASFunction *f = [library newFunctionWithName:[NSString stringWithUTF8String:name]];
    EASPipeline *p = f ? [torch.device newComputePipelineStateWithFunction:f error:e] : nil;
    [f release];
    return p;
}

int eas_standin_shader_run(void *library, const char *name, int n, void *const *buffer, const uint64_t *offset, const void *const *bytes,
                           const uint64_t *size, const uint64_t threads[3], const uint64_t group[3], char error[ERROR_SIZE])
{
    void *pool = objc_autoreleasePoolPush();
    NSError *e = nil;
    EASPipeline *p = pipeline_of(library, name, &e);
    if (!p) {
        say(error, e, "no such function");
        objc_autoreleasePoolPop(pool);
        return -1;
    }
    EASCommandBuffer *c = [torch.queue commandBuffer];
    EASComputeEncoder *encoder = [c computeCommandEncoder];
    [encoder setComputePipelineState:p];
    for (int i = 0; i < n; i++) {
        if (buffer[i])
            [encoder setBuffer:(EASBuffer *)buffer[i] offset:offset[i] atIndex:(NSUInteger)i];
        else
            [encoder setBytes:bytes[i] length:size[i] atIndex:(NSUInteger)i];
    }
    [encoder dispatchThreads:(MTLSize){threads[0], threads[1], threads[2]} threadsPerThreadgroup:(MTLSize){group[0], group[1], group[2]}];
    [encoder endEncoding];
    [torch.last release];
    torch.last = [c retain];
    [c commit];
    [p release];
    objc_autoreleasePoolPop(pool);
    return 0;
}

int eas_standin_shader_wait(char error[ERROR_SIZE])
{
    if (!torch.last)
        return 0;
    [torch.last waitUntilCompleted];
    NSError *e = [torch.last error];
    if (e)
        say(error, e, "");
    [torch.last release];
    torch.last = nil;
    return e ? -1 : 0;
}
