/* image.c: a small linker: one relocatable ELF object to a flat, position-independent image.
 *
 * Input is what LLVM emitted for one module, ELF64 little-endian, x86-64 or AArch64. Every allocated section
 * is laid out in file order at its alignment (at most 64), zero-filled ones included; relocations between
 * them are resolved now, so nothing is left for the loader. What cannot be position independent (absolute
 * addresses, other symbols, a GOT) is refused. The object is trusted to come from LLVM, but every offset in
 * it is checked all the same: a bad one is ERR_INTERNAL, never a wild access.
 */
#include "gen.h"

enum { /* the few numbers of ELF that are needed */
       EM_X86_64_ = 62,
       EM_AARCH64_ = 183,
       SHT_PROGBITS_ = 1,
       SHT_SYMTAB_ = 2,
       SHT_RELA_ = 4,
       SHT_NOBITS_ = 8,
       SHT_REL_ = 9,
       SHF_ALLOC_ = 2,
       IMAGE_ALIGN = 64,
       IMAGE_MAX = 1 << 28,
       R_X86_64_PC32_ = 2,
       R_X86_64_PLT32_ = 4,
       R_X86_64_PC64_ = 24,
       R_A64_PREL64 = 260,
       R_A64_PREL32 = 261,
       R_A64_ADR_PG = 275,
       R_A64_ADD_LO12 = 277,
       R_A64_LD8 = 278,
       R_A64_JUMP26 = 282,
       R_A64_CALL26 = 283,
       R_A64_LD16 = 284,
       R_A64_LD32 = 285,
       R_A64_LD64 = 286,
       R_A64_LD128 = 299
};

typedef struct ehdr {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
} ehdr;
typedef struct shdr {
    uint32_t name, type;
    uint64_t flags, addr, offset, size;
    uint32_t link, info;
    uint64_t addralign, entsize;
} shdr;
typedef struct sym {
    uint32_t name;
    uint8_t info, other;
    uint16_t shndx;
    uint64_t value, size;
} sym;
typedef struct rela {
    uint64_t offset, info;
    int64_t addend;
} rela;

typedef struct link {
    const uint8_t *obj;
    size_t size;
    ehdr eh;
    uint64_t *at;        /* per section: offset in the image, UINT64_MAX if it is not in it */
    uint32_t symtab;     /* section index */
    uint8_t *image;
    size_t len;
} link;

static eas_status bad(const char *what)
{
    return base_fail(EAS_ERR_INTERNAL, "linking compiled code: %s", what);
}

static bool inside(const link *l, uint64_t off, uint64_t n) { return off <= l->size && n <= l->size - off; }

static bool section(const link *l, uint32_t i, shdr *out)
{
    if (i >= l->eh.shnum)
        return false;
    memcpy(out, l->obj + l->eh.shoff + (uint64_t)i * sizeof *out, sizeof *out);
    return out->type == SHT_NOBITS_ || inside(l, out->offset, out->size);
}

/* a NUL-terminated name in string section `sec`, or "?" */
static const char *string_at(const link *l, uint32_t sec, uint32_t off)
{
    shdr s;
    if (!section(l, sec, &s) || s.type == SHT_NOBITS_ || off >= s.size)
        return "?";
    const char *p = (const char *)l->obj + s.offset + off;
    return memchr(p, 0, s.size - off) ? p : "?";
}

static bool symbol(const link *l, uint64_t i, sym *out, const char **name)
{
    shdr s;
    if (!section(l, l->symtab, &s) || i >= s.size / sizeof *out)
        return false;
    memcpy(out, l->obj + s.offset + i * sizeof *out, sizeof *out);
    *name = string_at(l, s.link, out->name);
    return true;
}

static bool loaded(const shdr *s, const char *name)
{
    return (s->flags & SHF_ALLOC_) && (s->type == SHT_PROGBITS_ || s->type == SHT_NOBITS_) &&
           strncmp(name, ".eh_frame", 9) != 0;
}

static eas_status read_header(link *l)
{
    if (l->size < sizeof l->eh)
        return bad("not an ELF object");
    memcpy(&l->eh, l->obj, sizeof l->eh);
    if (memcmp(l->eh.ident, "\177ELF\2\1", 6) != 0 || l->eh.type != 1)
        return bad("not an ELF object");
    if (l->eh.machine != EM_X86_64_ && l->eh.machine != EM_AARCH64_)
        return bad("an object for another machine");
    if (l->eh.shentsize != sizeof(shdr) || !inside(l, l->eh.shoff, (uint64_t)l->eh.shnum * sizeof(shdr)))
        return bad("bad section table");
    return EAS_OK;
}

static eas_status lay_out(link *l)
{
    l->at = malloc(sizeof *l->at * (l->eh.shnum + 1u));
    if (!l->at)
        return base_fail_oom(sizeof *l->at * l->eh.shnum);
    uint64_t end = 0;
    for (uint32_t i = 0; i < l->eh.shnum; i++) {
        shdr s;
        if (!section(l, i, &s))
            return bad("a section reaches past the end");
        l->at[i] = UINT64_MAX;
        if (s.type == SHT_SYMTAB_)
            l->symtab = i;
        if (!loaded(&s, string_at(l, l->eh.shstrndx, s.name)))
            continue;
        const uint64_t align = s.addralign ? s.addralign : 1;
        if (align > IMAGE_ALIGN || (align & (align - 1)) || s.size > IMAGE_MAX)
            return bad("a section is too large or too strictly aligned");
        end = (end + align - 1) & ~(align - 1);
        l->at[i] = end;
        end += s.size;
        if (end > IMAGE_MAX)
            return bad("the code is too large");
    }
    l->len = (size_t)end;
    return EAS_OK;
}

static eas_status copy_sections(link *l)
{
    l->image = calloc(1, l->len ? l->len : 1);
    if (!l->image)
        return base_fail_oom(l->len);
    for (uint32_t i = 0; i < l->eh.shnum; i++) {
        shdr s;
        if (l->at[i] == UINT64_MAX || !section(l, i, &s) || s.type == SHT_NOBITS_)
            continue;
        memcpy(l->image + l->at[i], l->obj + s.offset, s.size);
    }
    return EAS_OK;
}

static bool fits(int64_t v, int bits)
{
    return v >= -((int64_t)1 << (bits - 1)) && v < (int64_t)1 << (bits - 1);
}

static eas_status patch_x86(uint32_t type, uint8_t *p, size_t room, int64_t v)
{
    if (type == R_X86_64_PC64_ && room >= 8) {
        memcpy(p, &v, 8);
        return EAS_OK;
    }
    if ((type != R_X86_64_PC32_ && type != R_X86_64_PLT32_) || room < 4)
        return base_fail(EAS_ERR_INTERNAL, "linking compiled code: relocation %u", type);
    if (!fits(v, 32))
        return bad("a relocation is out of reach");
    const int32_t w = (int32_t)v;
    memcpy(p, &w, 4);
    return EAS_OK;
}

/* s: target in the image; at: place in the image. Pages are those of the image, which is loaded at a page
 * boundary. */
static eas_status patch_a64(uint32_t type, uint8_t *p, size_t room, uint64_t s, uint64_t at)
{
    uint32_t in;
    if (room < 4)
        return bad("a relocation reaches past the end");
    memcpy(&in, p, 4);
    const int64_t rel = (int64_t)s - (int64_t)at, page = (int64_t)(s >> 12) - (int64_t)(at >> 12);
    const uint32_t lo = (uint32_t)(s & 0xfff);
    switch (type) {
    case R_A64_PREL64:
        if (room < 8)
            return bad("a relocation reaches past the end");
        memcpy(p, &rel, 8);
        return EAS_OK;
    case R_A64_PREL32: in = (uint32_t)rel; break;
    case R_A64_CALL26:
    case R_A64_JUMP26: in = (in & 0xfc000000u) | ((uint32_t)(rel >> 2) & 0x3ffffffu); break;
    case R_A64_ADR_PG:
        in = (in & 0x9f00001fu) | ((uint32_t)page & 3) << 29 | ((uint32_t)(page >> 2) & 0x7ffff) << 5;
        break;
    case R_A64_ADD_LO12:
    case R_A64_LD8: in = (in & 0xffc003ffu) | lo << 10; break;
    case R_A64_LD16: in = (in & 0xffc003ffu) | (lo >> 1) << 10; break;
    case R_A64_LD32: in = (in & 0xffc003ffu) | (lo >> 2) << 10; break;
    case R_A64_LD64: in = (in & 0xffc003ffu) | (lo >> 3) << 10; break;
    case R_A64_LD128: in = (in & 0xffc003ffu) | (lo >> 4) << 10; break;
    default: return base_fail(EAS_ERR_INTERNAL, "linking compiled code: relocation %u", type);
    }
    memcpy(p, &in, 4);
    return EAS_OK;
}

static eas_status relocate_one(link *l, uint32_t target, uint64_t limit, const rela *r)
{
    sym s;
    const char *name;
    if (!symbol(l, r->info >> 32, &s, &name))
        return bad("a relocation without a symbol");
    if (s.shndx == 0 || s.shndx >= l->eh.shnum || l->at[s.shndx] == UINT64_MAX)
        return base_fail(EAS_ERR_INTERNAL,
                         "linking compiled code: it refers to '%s', which is not part of it", name);
    if (r->offset >= limit)
        return bad("a relocation outside its section");
    const uint64_t at = l->at[target] + r->offset, to = l->at[s.shndx] + s.value + (uint64_t)r->addend;
    uint8_t *p = l->image + at;
    const size_t room = (size_t)(limit - r->offset);
    if (l->eh.machine == EM_X86_64_)
        return patch_x86((uint32_t)r->info, p, room, (int64_t)(to - at));
    return patch_a64((uint32_t)r->info, p, room, to, at);
}

static eas_status relocate(link *l)
{
    for (uint32_t i = 0; i < l->eh.shnum; i++) {
        shdr s, t;
        if (!section(l, i, &s) || (s.type != SHT_RELA_ && s.type != SHT_REL_))
            continue;
        if (s.info >= l->eh.shnum || l->at[s.info] == UINT64_MAX)
            continue;
        if (s.type == SHT_REL_ || !section(l, s.info, &t))
            return bad("relocations without addends");
        for (uint64_t k = 0; k < s.size / sizeof(rela); k++) {
            rela r;
            memcpy(&r, l->obj + s.offset + k * sizeof r, sizeof r);
            const eas_status st = relocate_one(l, s.info, t.size, &r);
            if (st)
                return st;
        }
    }
    return EAS_OK;
}

static eas_status find_entry(const link *l, const char *entry, uint32_t *out)
{
    sym s;
    const char *name;
    for (uint64_t i = 1; symbol(l, i, &s, &name); i++) {
        if (s.shndx == 0 || s.shndx >= l->eh.shnum || strcmp(name, entry) != 0 ||
            l->at[s.shndx] == UINT64_MAX)
            continue;
        *out = (uint32_t)(l->at[s.shndx] + s.value);
        return *out < l->len ? EAS_OK : bad("the entry lies outside the code");
    }
    return bad("no entry");
}

eas_status gen_link_elf(const uint8_t *obj, size_t size, const char *entry, gen_image *out)
{
    link l = {.obj = obj, .size = size};
    eas_status st = read_header(&l);
    if (!st)
        st = lay_out(&l);
    if (!st)
        st = copy_sections(&l);
    if (!st)
        st = relocate(&l);
    if (!st)
        st = find_entry(&l, entry, &out->entry);
    free(l.at);
    if (st) {
        free(l.image);
        return st;
    }
    out->bytes = l.image;
    out->size = l.len;
    return EAS_OK;
}

void gen_image_free(gen_image *im)
{
    free(im->bytes);
    memset(im, 0, sizeof *im);
}
