/* standin_base.m: counting, autorelease pools, strings, errors; reports and faults. */
#include "standin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- reports ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *reports;
static size_t used;

void standin_report(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "Metal validation: %s\n", line);
    pthread_mutex_lock(&lock);
    size_t n = strlen(line);
    char *more = realloc(reports, used + n + 2);
    if (more) {
        reports = more;
        memcpy(reports + used, line, n);
        memcpy(reports + used + n, "\n", 2);
        used += n + 1;
    }
    pthread_mutex_unlock(&lock);
}

const char *eas_standin_reports(void)
{
    static char *last;
    pthread_mutex_lock(&lock);
    free(last);
    last = strdup(reports ? reports : "");
    pthread_mutex_unlock(&lock);
    return last;
}

/* ---- faults ---- */

static struct fault {
    char kind[32];
    int skip, count;
} faults[16];
static int nfaults = -1; /* the environment has not been read */

static void read_faults(const char *spec)
{
    nfaults = 0;
    while (spec && *spec && nfaults < (int)(sizeof faults / sizeof *faults)) {
        struct fault f = {.count = 1};
        if (sscanf(spec, "%31[a-z]:%dx%d", f.kind, &f.skip, &f.count) >= 1)
            faults[nfaults++] = f;
        spec += strcspn(spec, ",");
        spec += *spec == ',';
    }
}

void eas_standin_fault(const char *spec)
{
    pthread_mutex_lock(&lock);
    read_faults(spec);
    pthread_mutex_unlock(&lock);
}

void eas_standin_clear(void)
{
    pthread_mutex_lock(&lock);
    read_faults(NULL);
    free(reports);
    reports = NULL;
    used = 0;
    pthread_mutex_unlock(&lock);
}

bool standin_fault(const char *kind)
{
    bool fails = false;
    pthread_mutex_lock(&lock);
    if (nfaults < 0)
        read_faults(getenv("EAS_METAL_FAULT"));
    for (int i = 0; i < nfaults && !fails; i++)
        if (!strcmp(faults[i].kind, kind) && faults[i].skip-- <= 0 && faults[i].count > 0) {
            faults[i].count--;
            fails = true;
        }
    pthread_mutex_unlock(&lock);
    return fails;
}

double standin_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double standin_limit(void)
{
    const char *s = getenv("EAS_METAL_TIMEOUT");
    double v = s ? atof(s) : 0;
    return v > 0 ? v : 60;
}

NSInteger standin_family(void)
{
    const char *s = getenv("EAS_METAL_FAMILY");
    return s ? atol(s) : MTLFamilyApple9;
}

/* ---- how many are alive ---- */

static struct kind {
    const char *name, *class_name;
    long n;
} kinds[] = {{"buffer", "EASBuffer", 0},           {"command", "EASCommandBuffer", 0}, {"compute", "EASComputeEncoder", 0},
             {"blit", "EASBlitEncoder", 0},        {"pipeline", "EASPipeline", 0},     {"library", "EASLibrary", 0},
             {"function", "EASFunction", 0},       {"event", "EASEvent", 0},           {"queue", "EASQueue", 0},
             {"options", "MTLCompileOptions", 0}, {"string", "NSString", 0},          {"error", "NSError", 0},
             {"device", "EASDevice", 0},           {"indirect", "EASIndirectBuffer", 0}};

static void count(Class c, long by)
{
    const char *name = class_getName(c);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].class_name, name))
            COUNT(kinds[i].n, by);
}

long eas_standin_live(const char *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, kind))
            return COUNT(kinds[i].n, 0);
    return -1;
}

/* ---- messages that nobody answers ---- */

static id unanswered(id self, SEL sel, ...)
{
    standin_report("%s does not respond to %s", object_getClassName(self), sel_getName(sel));
    return nil;
}

static IMP forward(id self, SEL sel)
{
    (void)self, (void)sel;
    return (IMP)unanswered;
}

__attribute__((constructor)) static void set_up(void) { __objc_msg_forward2 = forward; }

/* ---- pools ---- */

typedef struct pool {
    struct pool *below;
    id *at;
    int n, cap;
} pool;
static _Thread_local pool *top;

EXPORT void *objc_autoreleasePoolPush(void);
EXPORT void objc_autoreleasePoolPop(void *p);

void *objc_autoreleasePoolPush(void)
{
    pool *p = calloc(1, sizeof *p);
    p->below = top;
    return top = p;
}

void objc_autoreleasePoolPop(void *until)
{
    for (bool last = false; top && !last;) {
        pool *p = top;
        last = p == until;
        for (int i = 0; i < p->n; i++) /* releasing may autorelease more into it */
            [p->at[i] release];
        top = p->below;
        free(p->at);
        free(p);
    }
}

static void into_pool(id x)
{
    if (!top) {
        standin_report("%s autoreleased with no pool in place: leaking", object_getClassName(x));
        return;
    }
    if (top->n == top->cap) {
        top->cap = top->cap ? 2 * top->cap : 16;
        top->at = realloc(top->at, (size_t)top->cap * sizeof *top->at);
    }
    top->at[top->n++] = x;
}

/* ---- objects ---- */

@implementation NSObject
+ (id)alloc
{
    NSObject *o = class_createInstance(self, 0);
    o->refs = 1;
    count(self, 1);
    return o;
}
+ (id)new
{
    return [[self alloc] init];
}
+ (void)initialize
{
}
- (id)init
{
    return self;
}
- (id)retain
{
    COUNT(refs, 1);
    return self;
}
- (void)release
{
    if (COUNT(refs, -1) == 0) {
        count(isa, -1);
        [self dealloc];
    }
}
- (id)autorelease
{
    into_pool(self);
    return self;
}
- (NSUInteger)retainCount
{
    return (NSUInteger)refs;
}
- (BOOL)respondsToSelector:(SEL)sel
{
    return class_respondsToSelector(isa, sel);
}

/* The shell of a dead object stays a while, as a zombie, so that a message to it is told from one to a
 * living one. */
- (void)dealloc
{
    enum { GRAVES = 1024 };
    static id graves[GRAVES];
    static unsigned next;
    isa = objc_getClass("EASZombie");
    pthread_mutex_lock(&lock);
    id old = graves[next % GRAVES];
    graves[next++ % GRAVES] = self;
    pthread_mutex_unlock(&lock);
    if (old)
        object_dispose(old);
}
@end

@interface EASZombie : NSObject
@end
@implementation EASZombie
- (id)retain
{
    standin_report("retain sent to a released object");
    return self;
}
- (void)release
{
    standin_report("release sent to a released object");
}
- (id)autorelease
{
    standin_report("autorelease sent to a released object");
    return self;
}
@end

@implementation NSString
+ (id)stringWithUTF8String:(const char *)s
{
    NSString *o = [self alloc];
    o->bytes = strdup(s);
    return [o autorelease];
}
- (const char *)UTF8String
{
    return bytes;
}
- (NSUInteger)length
{
    return strlen(bytes);
}
- (void)dealloc
{
    free(bytes);
    [super dealloc];
}
@end

@implementation NSError
+ (id)errorWithDomain:(const char *)d code:(NSInteger)c text:(const char *)s
{
    NSError *e = [self alloc];
    e->text = [[NSString stringWithUTF8String:s] retain];
    e->domain = [[NSString stringWithUTF8String:d] retain];
    e->code = c;
    return [e autorelease];
}
- (NSString *)localizedDescription
{
    return text;
}
- (NSString *)domain
{
    return domain;
}
- (NSInteger)code
{
    return code;
}
- (void)dealloc
{
    [text release];
    [domain release];
    [super dealloc];
}
@end
