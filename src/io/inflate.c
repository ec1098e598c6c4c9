/* inflate.c: deflate streams (RFC 1951), decoded and encoded, and CRC-32.
 *
 * Decoding goes by tables of canonical codes: the first code and the first symbol of each length, one bit
 * more at a time beyond a table of the nine bits that most codes fit in. Encoding is one pass of LZ77 over a
 * hash of three bytes, in the format's fixed code: small, fast, and good for the zeros and repetitions that
 * tensors have.
 */
#include "io.h"

typedef struct bits {
    const uint8_t *at, *end;
    uint64_t hold;
    int n;
    /* zero bytes made up after the end of the stream; more than its own padding: the stream was cut off */
    int beyond;
} bits;

static void refill(bits *b)
{
    for (; b->n <= 48; b->n += 8) {
        b->hold |= (uint64_t)(b->at < b->end ? *b->at : 0) << b->n;
        if (b->at < b->end)
            b->at++;
        else
            b->beyond += 8;
    }
}

static uint32_t take(bits *b, int n)
{
    if (b->n < n)
        refill(b);
    uint32_t v = (uint32_t)(b->hold & (((uint64_t)1 << n) - 1));
    b->hold >>= n;
    b->n -= n;
    return v;
}

static bool cut_off(const bits *b) { return b->beyond > b->n; }

enum { FAST = 9, LONGEST = 15, NLENGTHS = 288 };
typedef struct code {
    uint16_t fast[1 << FAST]; /* symbol << 4 | length; 0: longer than FAST, or none */
    uint16_t count[LONGEST + 1], symbol[NLENGTHS];
} code;

static bool make_code(code *c, const uint8_t *lengths, int n)
{
    uint16_t at[LONGEST + 2] = {0};
    int left = 1;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < n; i++)
        c->count[lengths[i]]++;
    c->count[0] = 0;
    for (int l = 1; l <= LONGEST; l++) {
        left = 2 * left - c->count[l];
        if (left < 0)
            return false; /* there are more codes of this length than bit patterns */
        at[l + 1] = (uint16_t)(at[l] + c->count[l]);
    }
    for (int i = 0; i < n; i++)
        if (lengths[i])
            c->symbol[at[lengths[i]]++] = (uint16_t)i;
    uint32_t word = 0;
    for (int l = 1, s = 0; l <= FAST; l++, word <<= 1)
        for (int k = 0; k < c->count[l]; k++, word++, s++) {
            uint32_t turned = 0; /* codes come with their first bit first */
            for (int i = 0; i < l; i++)
                turned |= (word >> i & 1) << (l - 1 - i);
            for (uint32_t t = turned; t < 1u << FAST; t += 1u << l)
                c->fast[t] = (uint16_t)(c->symbol[s] << 4 | l);
        }
    return true;
}

static int decode(bits *b, const code *c)
{
    if (b->n < LONGEST)
        refill(b);
    uint16_t f = c->fast[b->hold & ((1 << FAST) - 1)];
    if (f) {
        b->hold >>= f & 15;
        b->n -= f & 15;
        return f >> 4;
    }
    int word = 0, first = 0, index = 0;
    for (int l = 1; l <= LONGEST; l++) {
        word |= (int)take(b, 1);
        int n = c->count[l];
        if (word - first < n)
            return c->symbol[index + word - first];
        index += n;
        first = (first + n) << 1;
        word <<= 1;
    }
    return -1;
}

static const uint16_t length_base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                       31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
static const uint8_t length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                      2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const uint16_t distance_base[] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                         33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                         1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
static const uint8_t distance_bits[] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                        6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

static void fixed_lengths(uint8_t *l)
{
    for (int i = 0; i < NLENGTHS; i++)
        l[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
}

static bool dynamic_codes(bits *b, code *literals, code *distances)
{
    static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t l[320] = {0};
    int nl = (int)take(b, 5) + 257, nd = (int)take(b, 5) + 1, nc = (int)take(b, 4) + 4, i = 0;
    if (nl > 286 || nd > 30)
        return false;
    for (int k = 0; k < nc; k++)
        l[order[k]] = (uint8_t)take(b, 3);
    if (!make_code(literals, l, 19))
        return false;
    memset(l, 0, sizeof l);
    while (i < nl + nd) {
        int s = decode(b, literals), n, v = 0;
        if (s < 0 || (s == 16 && !i) || cut_off(b))
            return false;
        if (s < 16) {
            l[i++] = (uint8_t)s;
            continue;
        }
        v = s == 16 ? l[i - 1] : 0;
        n = s == 16 ? 3 + (int)take(b, 2) : s == 17 ? 3 + (int)take(b, 3) : 11 + (int)take(b, 7);
        if (i + n > nl + nd)
            return false;
        while (n--)
            l[i++] = (uint8_t)v;
    }
    return l[256] && make_code(literals, l, nl) && make_code(distances, l + nl, nd);
}

typedef struct sink {
    uint8_t *at, *begin, *end;
} sink;

static bool copy_back(sink *o, size_t distance, size_t n)
{
    if (distance > (size_t)(o->at - o->begin))
        return false;
    if (n > (size_t)(o->end - o->at))
        n = (size_t)(o->end - o->at);
    const uint8_t *from = o->at - distance;
    if (distance >= n)
        memcpy(o->at, from, n);
    else
        for (size_t i = 0; i < n; i++)
            o->at[i] = from[i];
    o->at += n;
    return true;
}

static bool coded_block(bits *b, sink *o, const code *literals, const code *distances)
{
    while (o->at < o->end) {
        int s = decode(b, literals);
        if (s < 0 || s > 285 || cut_off(b))
            return false;
        if (s == 256)
            return true;
        if (s < 256) {
            *o->at++ = (uint8_t)s;
            continue;
        }
        size_t n = length_base[s - 257] + take(b, length_bits[s - 257]);
        int d = decode(b, distances);
        if (d < 0 || d > 29 || !copy_back(o, distance_base[d] + take(b, distance_bits[d]), n))
            return false;
    }
    return true;
}

static bool stored_block(bits *b, sink *o)
{
    take(b, b->n & 7);
    uint32_t n = take(b, 16), not = take(b, 16);
    if ((n ^ not) != 0xFFFF || cut_off(b))
        return false;
    for (; n && o->at < o->end && b->n > 0; n--)
        *o->at++ = (uint8_t)take(b, 8);
    size_t k = n < (size_t)(o->end - o->at) ? n : (size_t)(o->end - o->at);
    if (cut_off(b) || k > (size_t)(b->end - b->at))
        return false;
    if (k)
        memcpy(o->at, b->at, k);
    o->at += k;
    b->at += k;
    return true;
}

bool io_inflate(const uint8_t *src, size_t n, uint8_t *dst, size_t room, size_t *made)
{
    bits b = {.at = src, .end = src + n};
    sink o = {dst, dst, dst + room};
    code *c = malloc(2 * sizeof *c);
    uint8_t fixed[NLENGTHS], five[30];
    bool ok = c != NULL, last = false;
    while (ok && !last && o.at < o.end) {
        last = take(&b, 1);
        switch (take(&b, 2)) {
        case 0: ok = stored_block(&b, &o); break;
        case 1:
            fixed_lengths(fixed);
            memset(five, 5, sizeof five);
            ok = make_code(c, fixed, NLENGTHS) && make_code(c + 1, five, 30) && coded_block(&b, &o, c, c + 1);
            break;
        case 2: ok = dynamic_codes(&b, c, c + 1) && coded_block(&b, &o, c, c + 1); break;
        default: ok = false;
        }
        ok = ok && !cut_off(&b);
    }
    free(c);
    *made = (size_t)(o.at - dst);
    return ok;
}

/* ---- encoding ---- */
typedef struct packer {
    str *s;
    uint64_t hold;
    int n;
} packer;

static void put(packer *p, uint32_t v, int n)
{
    p->hold |= (uint64_t)v << p->n;
    p->n += n;
    while (p->n >= 8) {
        char c = (char)p->hold;
        str_put(p->s, &c, 1);
        p->hold >>= 8;
        p->n -= 8;
    }
}

static void put_code(packer *p, uint32_t word, int n) /* first bit first */
{
    uint32_t turned = 0;
    for (int i = 0; i < n; i++)
        turned |= (word >> i & 1) << (n - 1 - i);
    put(p, turned, n);
}

static void put_symbol(packer *p, int s)
{
    if (s < 144)
        put_code(p, 0x30u + (uint32_t)s, 8);
    else if (s < 256)
        put_code(p, 0x190u + (uint32_t)s - 144, 9);
    else if (s < 280)
        put_code(p, (uint32_t)s - 256, 7);
    else
        put_code(p, 0xC0u + (uint32_t)s - 280, 8);
}

static int band(const uint16_t *base, int n, size_t v) /* the last base that is not above v */
{
    int i = 0;
    while (i + 1 < n && base[i + 1] <= v)
        i++;
    return i;
}

enum { HASH = 14, REACH = 32768, LONGEST_MATCH = 258 };

static uint32_t hash3(const uint8_t *p)
{
    return ((p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16) * 2654435761u) >> (32 - HASH);
}

static size_t match(const uint8_t *src, size_t at, size_t from, size_t n)
{
    size_t k = 0, most = n - at < LONGEST_MATCH ? n - at : LONGEST_MATCH;
    while (k < most && src[from + k] == src[at + k])
        k++;
    return k;
}

void io_deflate(const uint8_t *src, size_t n, str *out)
{
    packer p = {.s = out};
    /* the last place of each hash, plus 1; if there is no memory for it, nothing is matched */
    size_t *last = calloc((size_t)1 << HASH, sizeof *last);
    put(&p, 1, 1);
    put(&p, 1, 2);
    for (size_t i = 0; i < n;) {
        size_t k = 0, from = 0;
        if (last && i + 3 <= n) {
            size_t *h = &last[hash3(src + i)];
            from = *h;
            *h = i + 1;
            if (from && i - (from - 1) <= REACH)
                k = match(src, i, from - 1, n);
        }
        if (k < 4) {
            put_symbol(&p, src[i++]);
            continue;
        }
        int l = band(length_base, 29, k), d = band(distance_base, 30, i - (from - 1));
        put_symbol(&p, 257 + l);
        put(&p, (uint32_t)(k - length_base[l]), length_bits[l]);
        put_code(&p, (uint32_t)d, 5);
        put(&p, (uint32_t)(i - (from - 1) - distance_base[d]), distance_bits[d]);
        i += k;
    }
    put_symbol(&p, 256);
    put(&p, 0, 7);
    free(last);
}

/* ---- CRC-32, eight bytes at a time ---- */
static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        tables[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 255];
}

uint32_t io_crc32(uint32_t crc, const uint8_t *p, size_t n)
{
    pthread_once(&tables_once, make_tables);
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = crc ^ io_u32(p), b = io_u32(p + 4);
        crc = tables[7][a & 255] ^ tables[6][a >> 8 & 255] ^ tables[5][a >> 16 & 255] ^ tables[4][a >> 24] ^
              tables[3][b & 255] ^ tables[2][b >> 8 & 255] ^ tables[1][b >> 16 & 255] ^ tables[0][b >> 24];
    }
    for (; n; n--)
        crc = tables[0][(crc ^ *p++) & 255] ^ crc >> 8;
    return ~crc;
}
