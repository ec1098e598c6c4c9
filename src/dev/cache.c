/* cache.c: compiled images on disk.
 *
 * One file an image, named by the SHA-256 of everything that decides its bytes: the IR text, the target, the
 * options and the build of this library. Files are written beside and renamed, so a reader sees a whole file
 * or none; what it sees is checked (magic, sizes, key, SHA-256) and dropped if anything is off. The folder
 * must belong to this user and to nobody else to write: its files are executed. Nothing here ever fails a
 * launch: no cache is only slower.
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

enum { MAX_PATH = 1280, MAX_ENTRY = 64 << 20, EVICT_EVERY = 32, STALE_SECONDS = 3600, BLOCK = 4096 };
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
    char dir[1024]; /* "" : off */
    char why[MAX_PATH + 256];
    uint64_t limit;
    _Atomic int writes, said;
} C = {.once = PTHREAD_ONCE_INIT};

/* ---- the folder ---- */

enum { MAX_DIR = 1024 }; /* so that names of files fit */

/* C.why says why not. */
static bool refuse(const char *fmt, const char *dir)
{
    char why[sizeof C.why];
    snprintf(why, sizeof why, fmt, dir);
    memcpy(C.why, why, sizeof why);
    C.dir[0] = 0;
    return false;
}

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A folder in one that is there: "base/first/second", both made if need be. */
static bool below(const char *base, const char *first, const char *second)
{
    if (!is_dir(base))
        return refuse("there is no folder %s to keep it in", base);
    if (snprintf(C.dir, MAX_DIR, "%s/%s", base, first) >= MAX_DIR - 8)
        return refuse("the name of the folder %.64s... is too long", base);
    if (second) {
        mkdir(C.dir, 0700);
        strcat(strcat(C.dir, "/"), second);
    }
    return true;
}

/* Beside what the user's other programs keep. A home that is not there (a service's, a container's) is not
 * made. */
static bool default_dir(void)
{
    const char *xdg = base_env("XDG_CACHE_HOME"), *home = base_env("HOME");
#ifdef __APPLE__
    if (home && *home == '/')
        return below(home, "Library/Caches", "eas");
#endif
    if (xdg && *xdg == '/') {
        char up[MAX_PATH];
        const char *slash = strrchr(xdg, '/');
        if (is_dir(xdg) ||
            snprintf(up, sizeof up, "%.*s", slash == xdg ? 1 : (int)(slash - xdg), xdg) >= (int)sizeof up ||
            !slash[1])
            return below(xdg, "eas", NULL);
        return below(up, slash + 1, "eas");
    }
    if (home && *home == '/')
        return below(home, ".cache", "eas");
    return refuse("%s", "no home folder to keep it in");
}

/* EAS_CACHE_DIR; what is relative is so to the folder that the process is in now. */
static bool given_dir(const char *dir)
{
    char here[MAX_PATH] = "";
    if (*dir != '/' && !getcwd(here, sizeof here))
        return refuse("EAS_CACHE_DIR is relative (%.256s), and the folder of this process has no name", dir);
    if (snprintf(C.dir, MAX_DIR, "%s%s%s", here, *here ? "/" : "", dir) >= MAX_DIR)
        return refuse("EAS_CACHE_DIR is too long (%.64s...)", dir);
    return true;
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

static bool check_dir(bool given)
{
    struct stat st;
    if (given ? !make_dirs(C.dir) : mkdir(C.dir, 0700) && errno != EEXIST)
        return refuse("the cache folder %s cannot be made", C.dir);
    if (stat(C.dir, &st))
        return refuse("the cache folder %s cannot be made", C.dir);
    if (!S_ISDIR(st.st_mode))
        return refuse("%s is not a folder", C.dir);
    if (st.st_uid != geteuid())
        return refuse("the cache folder %s belongs to another user", C.dir);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return refuse("the cache folder %s can be written by others (chmod go-w it)", C.dir);
    return access(C.dir, W_OK | X_OK | R_OK) ? refuse("the cache folder %s cannot be written", C.dir) : true;
}

static void set_up(void)
{
    const char *dir = base_env("EAS_CACHE_DIR"), *limit = getenv("EAS_CACHE_LIMIT");
    unsigned long long n = limit && *limit ? strtoull(limit, NULL, 10) : 0;
    C.limit = n ? n : (uint64_t)512 << 20;
    if (dir && (!*dir || !strcmp(dir, "0") || !strcmp(dir, "off"))) {
        snprintf(C.why, sizeof C.why, "switched off by EAS_CACHE_DIR");
        return;
    }
    if (!(dir ? given_dir(dir) : default_dir()) || !check_dir(dir != NULL))
        dev_warn_once(&C.said, "%s: compiled kernels are kept in memory only", C.why);
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
    key->unknown = false;
}

void cache_key_of(const eas_ir *ir, const char *target, const char *options, cache_key *key)
{
    str s = {0};
    ir_print(&s, ir, false);
    cache_key_text(s.at ? s.at : "", s.len, target, options, key);
    key->unknown = s.oom; /* a part of the text would be the key of something else */
    str_free(&s);
}

static bool entry_path(const cache_key *key, char out[MAX_PATH])
{
    char hex[65];
    if (key->unknown || !*folder())
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

/* Without waiting (a FIFO would block for ever) and without following links. */
static int open_at(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
}

/* A file of ours, that nobody else can write. */
static bool is_own_file(int fd, struct stat *st)
{
    return fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid() &&
           !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* Reads and checks an entry; bytes are malloc'ed. The file's own name must be its key, unless key is NULL
 * (then any is fine). */
static bool read_entry(int fd, const uint8_t *key, header *h, uint8_t **bytes)
{
    struct stat st;
    uint8_t sum[32];
    *bytes = NULL;
    if (!is_own_file(fd, &st))
        return false;
    if (st.st_size < (off_t)sizeof *h || st.st_size > MAX_ENTRY || !read_all(fd, h, sizeof *h))
        return false;
    if (memcmp(h->magic, magic, sizeof magic) || (key && memcmp(h->key, key, 32)) ||
        h->size != (uint64_t)st.st_size - sizeof *h || h->entry >= h->size)
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
    int fd = open_at(AT_FDCWD, path);
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

/* ---- writing: beside, and then renamed ---- */

#define TEMPORARY ".eas-XXXXXX" /* the letters are chosen so that no other process has the same */

static bool is_temporary(const char *name)
{
    return strlen(name) == sizeof TEMPORARY - 1 && !strncmp(name, TEMPORARY, 5);
}

static int open_temporary(char path[MAX_PATH])
{
    snprintf(path, MAX_PATH, "%s/%s", C.dir, TEMPORARY);
    return mkostemp(path, O_CLOEXEC); /* rw------- */
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
static bool is_timing(const char *name) { return strlen(name) == 64 + 5 && !strcmp(name + 64, ".tune"); }

/* Oldest files go until what remains is four fifths of the limit. Other processes may do the same: missing
 * files are fine. */
static void evict(void)
{
    VEC(entry) v = {0};
    uint64_t total = 0;
    DIR *d = opendir(C.dir);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        const bool left = is_temporary(e->d_name);
        if ((!is_entry(e->d_name) && !is_timing(e->d_name) && !left) ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        if (left) { /* a temporary file of a process that died */
            if (S_ISREG(st.st_mode) && st.st_uid == geteuid() && time(NULL) - st.st_mtime > STALE_SECONDS)
                unlinkat(dirfd(d), e->d_name, 0);
            continue;
        }
        /* what it takes on disk */
        entry n = {.when = st.st_mtime, .size = ((uint64_t)st.st_size + BLOCK - 1) / BLOCK * BLOCK};
        memcpy(n.name, e->d_name, strlen(e->d_name) + 1);
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
    char path[MAX_PATH], tmp[MAX_PATH];
    header h = {
        .size = im->size, .scratch = im->scratch, .entry = im->entry, .alias_sensitive = im->alias_sensitive};
    if (!entry_path(key, path) || im->size > MAX_ENTRY / 2)
        return;
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.key, key->h, 32);
    checksum(&h, im->bytes, h.sum);
    int fd = open_temporary(tmp);
    bool ok = fd >= 0 && write_all(fd, &h, sizeof h) && write_all(fd, im->bytes, im->size);
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (ok)
        ok = rename(tmp, path) == 0;
    if (!ok) {
        const int error = errno;
        if (fd >= 0)
            unlink(tmp);
        errno = error;
        dev_warn_once(&C.said,
                      "the cache folder %s cannot be written (%s): compiled kernels are kept in memory only",
                      C.dir, strerror(errno));
    } else if (atomic_fetch_add(&C.writes, 1) % EVICT_EVERY == 0) {
        evict();
    }
}

/* ---- timings: a line of text a file, "eas-tune KEY SECONDS" ---- */

enum { LINE = 160 };

static bool parse_timing(const char *line, char hex[65], double *seconds)
{
    int used = 0;
    return sscanf(line, "eas-tune %64[0-9a-f] %lf%n", hex, seconds, &used) == 2 && used &&
           strlen(hex) == 64 && *seconds > 0 && *seconds < 1e9;
}

static bool read_timing(const char *hex, double *seconds)
{
    char path[MAX_PATH], line[LINE] = "", found[65];
    struct stat st;
    if (!*folder())
        return false;
    snprintf(path, sizeof path, "%s/%s.tune", C.dir, hex);
    int fd = open_at(AT_FDCWD, path);
    bool good = fd >= 0 && is_own_file(fd, &st) && st.st_size < LINE &&
                read_all(fd, line, (size_t)st.st_size) && parse_timing(line, found, seconds) &&
                !strcmp(found, hex);
    if (good)
        touch(fd);
    if (fd >= 0)
        close(fd);
    return good;
}

/* A timing that is there stays, so that processes that measure at the same time end up with the same ones;
 * only an import replaces it. */
static void write_timing(const char *hex, double seconds, bool replace)
{
    char path[MAX_PATH], tmp[MAX_PATH], line[LINE];
    double there;
    if (!*folder())
        return;
    snprintf(path, sizeof path, "%s/%s.tune", C.dir, hex);
    int n = snprintf(line, sizeof line, "eas-tune %s %.9g\n", hex, seconds);
    int fd = open_temporary(tmp);
    bool ok = fd >= 0 && write_all(fd, line, (size_t)n);
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (ok && !replace && link(tmp, path) && errno == EEXIST && !read_timing(hex, &there))
        replace = true; /* a damaged one */
    if (fd >= 0 && (!ok || !replace || rename(tmp, path)))
        unlink(tmp);
    if (ok && atomic_fetch_add(&C.writes, 1) % EVICT_EVERY == 0)
        evict();
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
        int fd = check ? open_at(dirfd(d), e->d_name) : -1;
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
    if (k.unknown)
        *hex = 0;
}
bool cache_timing_load(const char *hex, double *seconds) { return *hex && read_timing(hex, seconds); }
void cache_timing_store(const char *hex, double seconds)
{
    if (*hex)
        write_timing(hex, seconds, false);
}

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
    NEED(count, EAS_ERR_HANDLE);
    *count = 0;
    if (!*folder())
        return base_fail(EAS_ERR_IO, "there is no cache: %s", C.why);
    for (int pass = 0; pass < 2; pass++) { /* the first pass checks: one bad line refuses the whole text */
        int number = 1;
        for (const char *at = text; *at; number++) {
            char hex[65];
            double seconds;
            if (!parse_timing(at, hex, &seconds))
                return base_fail(EAS_ERR_VALUE, "line %d is no timing: want \"eas-tune KEY SECONDS\"",
                                 number);
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
