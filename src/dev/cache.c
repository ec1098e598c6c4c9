/* cache.c: compiled images on disk.
 *
 * One file an image, named by the SHA-256 of everything that decides its bytes: the IR text, the target, the options and the build of
 * this library. Files are written beside and renamed, so a reader sees a whole file or none; what it sees is checked
 * (magic, sizes, key, SHA-256) and dropped if anything is off. The folder must belong to this user and to nobody else to
 * write: its files are executed. Nothing here ever fails a launch: no cache is only slower.
 */
#include "dev.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PATH = 1024, MAX_ENTRY = 64 << 20, EVICT_EVERY = 32, STALE_SECONDS = 3600 };
static const char magic[8] = "EASIMG01";

typedef struct header {
    char magic[8];
    uint8_t key[32];
    uint64_t size, scratch;
    uint32_t entry, alias_sensitive;
    uint8_t sum[32]; /* of this header with sum zeroed, then the bytes */
} header;

static struct {
    pthread_once_t once;
    char dir[MAX_PATH]; /* "" : off */
    char why[MAX_PATH + 256];
    uint64_t limit;
    _Atomic int writes, said;
} C = {.once = PTHREAD_ONCE_INIT};

/* ---- the folder ---- */

static bool default_dir(char *out, size_t size)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
#ifdef __APPLE__
    if (home && *home)
        return snprintf(out, size, "%s/Library/Caches/eas", home) < (int)size;
#endif
    if (xdg && *xdg == '/')
        return snprintf(out, size, "%s/eas", xdg) < (int)size;
    return home && *home && snprintf(out, size, "%s/.cache/eas", home) < (int)size;
}

static bool make_dirs(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static void refuse(const char *fmt, const char *dir)
{
    snprintf(C.why, sizeof C.why, fmt, dir);
    C.dir[0] = 0;
}

static void check_dir(void)
{
    struct stat st;
    if (!make_dirs(C.dir) || stat(C.dir, &st))
        refuse("the cache folder %s cannot be made", C.dir);
    else if (!S_ISDIR(st.st_mode))
        refuse("%s is not a folder", C.dir);
    else if (st.st_uid != geteuid())
        refuse("the cache folder %s belongs to another user", C.dir);
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        refuse("the cache folder %s can be written by others (chmod go-w it)", C.dir);
    else if (access(C.dir, W_OK | X_OK | R_OK))
        refuse("the cache folder %s cannot be written", C.dir);
    if (!C.dir[0])
        dev_warn_once(&C.said, "%s: compiled kernels are kept in memory only", C.why);
}

static void set_up(void)
{
    const char *dir = getenv("EAS_CACHE_DIR"), *limit = getenv("EAS_CACHE_LIMIT");
    unsigned long long n = limit && *limit ? strtoull(limit, NULL, 10) : 0;
    C.limit = n ? n : (uint64_t)512 << 20;
    if (dir && (!*dir || !strcmp(dir, "0") || !strcmp(dir, "off"))) {
        snprintf(C.why, sizeof C.why, "switched off by EAS_CACHE_DIR");
        return;
    }
    bool have = dir ? snprintf(C.dir, sizeof C.dir, "%s", dir) < MAX_PATH - 128 : default_dir(C.dir, sizeof C.dir - 128);
    if (!have) {
        C.dir[0] = 0;
        snprintf(C.why, sizeof C.why, "no home folder to keep it in");
        return;
    }
    check_dir();
}

static const char *folder(void)
{
    pthread_once(&C.once, set_up);
    return C.dir;
}

const char *eas_cache_dir(void) { return folder(); }
const char *eas_cache_why(void) { return folder(), C.why; }

/* ---- entries ---- */

void cache_key_text(const char *text, size_t len, const char *target, const char *options, cache_key *key)
{
    sha256 h;
    sha256_init(&h);
    const char *parts[] = {eas_build_id(), target, options};
    for (int i = 0; i < 3; i++)
        sha256_add(&h, parts[i], strlen(parts[i]) + 1);
    sha256_add(&h, text, len);
    sha256_done(&h, key->h);
}

void cache_key_of(const eas_ir *ir, const char *target, const char *options, cache_key *key)
{
    str s = {0};
    ir_print(&s, ir, false);
    cache_key_text(s.at ? s.at : "", s.len, target, options, key);
    str_free(&s);
}

static bool entry_path(const cache_key *key, char out[MAX_PATH])
{
    char hex[65];
    if (!*folder())
        return false;
    sha256_hex(key->h, hex);
    return snprintf(out, MAX_PATH, "%s/%s.eas", C.dir, hex) < MAX_PATH;
}

static void checksum(const header *h, const uint8_t *bytes, uint8_t out[32])
{
    header copy = *h;
    sha256 s;
    memset(copy.sum, 0, sizeof copy.sum);
    sha256_init(&s);
    sha256_add(&s, &copy, sizeof copy);
    sha256_add(&s, bytes, h->size);
    sha256_done(&s, out);
}

static bool read_all(int fd, void *p, size_t n)
{
    for (char *at = p; n;) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *p, size_t n)
{
    for (const char *at = p; n;) {
        ssize_t put = write(fd, at, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        at += put;
        n -= (size_t)put;
    }
    return true;
}

/* Reads and checks an entry; bytes are malloc'ed. The file's own name must be its key, unless key is NULL (then any is fine). */
static bool read_entry(int fd, const uint8_t *key, header *h, uint8_t **bytes)
{
    struct stat st;
    uint8_t sum[32];
    *bytes = NULL;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return false;
    if (st.st_size < (off_t)sizeof *h || st.st_size > MAX_ENTRY || !read_all(fd, h, sizeof *h))
        return false;
    if (memcmp(h->magic, magic, sizeof magic) || (key && memcmp(h->key, key, 32)) || h->size != (uint64_t)st.st_size - sizeof *h ||
        h->entry >= h->size)
        return false;
    *bytes = malloc(h->size);
    bool good = *bytes && read_all(fd, *bytes, h->size);
    if (good) {
        checksum(h, *bytes, sum);
        good = !memcmp(sum, h->sum, 32);
    }
    if (!good) {
        free(*bytes);
        *bytes = NULL;
    }
    return good;
}

/* An entry in use moves to the end of the queue for eviction; once an hour is often enough. */
static void touch(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && time(NULL) - st.st_mtime > STALE_SECONDS)
        futimens(fd, NULL);
}

bool cache_load(const cache_key *key, gen_image *im)
{
    char path[MAX_PATH];
    header h;
    if (!entry_path(key, path))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        atomic_fetch_add(&dev_count.misses, 1);
        return false;
    }
    bool good = read_entry(fd, key->h, &h, &im->bytes);
    if (good)
        touch(fd);
    close(fd);
    if (!good) {
        im->bytes = NULL;
        unlink(path);
        atomic_fetch_add(&dev_count.bad, 1);
        atomic_fetch_add(&dev_count.misses, 1);
        return false;
    }
    im->size = h.size;
    im->entry = h.entry;
    im->scratch = h.scratch;
    im->alias_sensitive = (uint8_t)h.alias_sensitive;
    atomic_fetch_add(&dev_count.hits, 1);
    return true;
}

/* ---- eviction ---- */

typedef struct entry {
    char name[80];
    time_t when;
    uint64_t size;
} entry;

static int older(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->when != y->when ? (x->when < y->when ? -1 : 1) : strcmp(x->name, y->name);
}

static bool is_entry(const char *name) { return strlen(name) == 64 + 4 && !strcmp(name + 64, ".eas"); }
static bool is_leftover(const char *name) { return name[0] == '.' && strstr(name, ".tmp"); }

/* Oldest files go until what remains is four fifths of the limit. Other processes may do the same: missing files are fine. */
static void evict(void)
{
    VEC(entry) v = {0};
    uint64_t total = 0;
    DIR *d = opendir(C.dir);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if ((!is_entry(e->d_name) && !is_leftover(e->d_name)) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        if (is_leftover(e->d_name)) {
            if (time(NULL) - st.st_mtime > STALE_SECONDS)
                unlinkat(dirfd(d), e->d_name, 0);
            continue;
        }
        entry n = {.when = st.st_mtime, .size = (uint64_t)st.st_size};
        memcpy(n.name, e->d_name, 64 + 5);
        total += n.size;
        if (!vec_push(&v, n))
            break;
    }
    if (total > C.limit && v.len) {
        qsort(v.at, v.len, sizeof *v.at, older);
        for (uint32_t i = 0; i < v.len && total > C.limit / 5 * 4; i++) {
            unlinkat(dirfd(d), v.at[i].name, 0);
            total -= v.at[i].size;
        }
    }
    closedir(d);
    vec_free(&v);
}

void cache_store(const cache_key *key, const gen_image *im)
{
    static _Atomic unsigned serial;
    char path[MAX_PATH], tmp[MAX_PATH];
    header h = {.size = im->size, .scratch = im->scratch, .entry = im->entry, .alias_sensitive = im->alias_sensitive};
    if (!entry_path(key, path) || im->size > MAX_ENTRY / 2)
        return;
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.key, key->h, 32);
    checksum(&h, im->bytes, h.sum);
    if (snprintf(tmp, sizeof tmp, "%s/.%ld-%u.tmp", C.dir, (long)getpid(), atomic_fetch_add(&serial, 1)) >= (int)sizeof tmp)
        return;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST && !unlink(tmp)) /* left by a process of the same number that died */
        fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write_all(fd, &h, sizeof h) && write_all(fd, im->bytes, im->size);
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (ok)
        ok = rename(tmp, path) == 0;
    if (!ok) {
        unlink(tmp);
        dev_warn_once(&C.said, "the cache folder %s cannot be written (%s): compiled kernels are kept in memory only", C.dir, strerror(errno));
    } else if (atomic_fetch_add(&C.writes, 1) % EVICT_EVERY == 0) {
        evict();
    }
}

/* ---- timings: a line of text a file, "eas-tune KEY SECONDS" ---- */

enum { LINE = 160 };

static bool is_timing(const char *name) { return strlen(name) == 64 + 5 && !strcmp(name + 64, ".tune"); }

static bool parse_timing(const char *line, char hex[65], double *seconds)
{
    int used = 0;
    return sscanf(line, "eas-tune %64[0-9a-f] %lf%n", hex, seconds, &used) == 2 && used && strlen(hex) == 64 && *seconds > 0 && *seconds < 1e9;
}

static bool read_timing(const char *hex, double *seconds)
{
    char path[MAX_PATH + 80], line[LINE], found[65];
    if (!*folder())
        return false;
    snprintf(path, sizeof path, "%s/%s.tune", C.dir, hex);
    FILE *f = fopen(path, "re");
    bool good = f && fgets(line, sizeof line, f) && parse_timing(line, found, seconds) && !strcmp(found, hex);
    if (f)
        fclose(f);
    return good;
}

/* A timing that is there stays, so that processes that measure at the same time end up with the same ones; only an import replaces it. */
static void write_timing(const char *hex, double seconds, bool replace)
{
    static _Atomic unsigned serial;
    char path[MAX_PATH + 80], tmp[MAX_PATH + 80], line[LINE];
    double there;
    if (!*folder())
        return;
    snprintf(path, sizeof path, "%s/%s.tune", C.dir, hex);
    snprintf(tmp, sizeof tmp, "%s/.%ld-t%u.tmp", C.dir, (long)getpid(), atomic_fetch_add(&serial, 1));
    int n = snprintf(line, sizeof line, "eas-tune %s %.9g\n", hex, seconds);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write_all(fd, line, (size_t)n);
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (ok && !replace && link(tmp, path) && errno == EEXIST && !read_timing(hex, &there))
        replace = true; /* a damaged one */
    if (!ok || !replace || rename(tmp, path))
        unlink(tmp);
}

/* ---- for people ---- */

/* Damaged ones, or all. */
static bool drop_timing(DIR *d, const char *name, bool check)
{
    char hex[65] = "";
    double seconds;
    memcpy(hex, name, 64);
    return (!check || !read_timing(hex, &seconds)) && unlinkat(dirfd(d), name, 0) == 0;
}

static eas_status each_entry(bool check, uint64_t *good, uint64_t *bad, uint64_t *bytes)
{
    DIR *d = *folder() ? opendir(C.dir) : NULL;
    if (!d)
        return base_fail(EAS_ERR_IO, "there is no cache: %s", *folder() ? strerror(errno) : C.why);
    for (struct dirent *e; (e = readdir(d));) {
        header h;
        uint8_t *b = NULL;
        if (is_timing(e->d_name) && drop_timing(d, e->d_name, check))
            *bad += 1;
        if (!is_entry(e->d_name))
            continue;
        int fd = check ? openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
        char hex[65] = "";
        bool ok = fd >= 0 && read_entry(fd, NULL, &h, &b);
        if (ok)
            sha256_hex(h.key, hex);
        ok = ok && !strncmp(hex, e->d_name, 64);
        if (fd >= 0)
            close(fd);
        *good += ok;
        *bytes += ok ? sizeof h + h.size : 0;
        if (!ok) {
            unlinkat(dirfd(d), e->d_name, 0);
            *bad += 1;
        }
        free(b);
    }
    closedir(d);
    return EAS_OK;
}

eas_status eas_cache_clear(void)
{
    uint64_t n = 0;
    return each_entry(false, &n, &n, &n);
}

eas_status eas_cache_verify(uint64_t *good, uint64_t *bad, uint64_t *bytes)
{
    NEED(good, EAS_ERR_HANDLE);
    NEED(bad, EAS_ERR_HANDLE);
    NEED(bytes, EAS_ERR_HANDLE);
    *good = *bad = *bytes = 0;
    return each_entry(true, good, bad, bytes);
}

void cache_timing_name(const eas_ir *ir, eas_device *d, const char *key, char hex[65])
{
    cache_key k;
    cache_key_of(ir, eas_device_describe(d), key, &k);
    sha256_hex(k.h, hex);
}
bool cache_timing_load(const char *hex, double *seconds) { return read_timing(hex, seconds); }
void cache_timing_store(const char *hex, double seconds) { write_timing(hex, seconds, false); }

eas_status eas_tune_export(char **out)
{
    NEED(out, EAS_ERR_HANDLE);
    str s = {0};
    *out = NULL;
    DIR *d = *folder() ? opendir(C.dir) : NULL;
    if (!d)
        return base_fail(EAS_ERR_IO, "there is no cache: %s", *folder() ? strerror(errno) : C.why);
    for (struct dirent *e; (e = readdir(d));) {
        double seconds;
        char hex[65] = "";
        if (!is_timing(e->d_name))
            continue;
        memcpy(hex, e->d_name, 64);
        if (read_timing(hex, &seconds))
            str_add(&s, "eas-tune %s %.9g\n", hex, seconds);
    }
    closedir(d);
    str_add(&s, "%s", "");
    return str_take(&s, out);
}

eas_status eas_tune_import(const char *text, int *count)
{
    NEED(text, EAS_ERR_HANDLE);
    *count = 0;
    if (!*folder())
        return base_fail(EAS_ERR_IO, "there is no cache: %s", C.why);
    for (int pass = 0; pass < 2; pass++) { /* nothing is taken of a text that has a bad line */
        int number = 1;
        for (const char *at = text; *at; number++) {
            char hex[65];
            double seconds;
            if (!parse_timing(at, hex, &seconds))
                return base_fail(EAS_ERR_VALUE, "line %d is no timing: want \"eas-tune KEY SECONDS\"", number);
            if (pass) {
                write_timing(hex, seconds, true);
                ++*count;
            }
            const char *end = strchr(at, '\n');
            at = end ? end + 1 : at + strlen(at);
        }
    }
    return EAS_OK;
}
