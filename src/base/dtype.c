/* dtype.c: the element types and the conversions that C does not have. */
#include "base.h"

#include <math.h>

static const struct {
    const char *name;
    uint8_t size;
    char kind;
} rows[EAS_NDTYPES] = {
#define EAS_X(NAME, name, bytes, kind) {#name, bytes, kind},
    EAS_DTYPE_TABLE(EAS_X)
#undef EAS_X
};

static bool known(eas_dtype dt) { return (unsigned)dt < EAS_NDTYPES; }

size_t eas_dtype_size(eas_dtype dt) { return known(dt) ? rows[dt].size : 0; }
const char *eas_dtype_name(eas_dtype dt) { return known(dt) ? rows[dt].name : "?"; }
char eas_dtype_kind(eas_dtype dt) { return known(dt) ? rows[dt].kind : 0; }

int eas_dtype_parse(const char *name, eas_dtype *out)
{
    NEED(name, 0);
    for (int i = 0; i < EAS_NDTYPES; i++)
        if (!strcmp(rows[i].name, name)) {
            *out = (eas_dtype)i;
            return 1;
        }
    return 0;
}

bool dtype_is_int(eas_dtype dt) { return rows[dt].kind == 'i' || rows[dt].kind == 'u'; }
bool dtype_is_float(eas_dtype dt) { return rows[dt].kind == 'f'; }
bool dtype_is_signed(eas_dtype dt) { return rows[dt].kind == 'i'; }
int dtype_bits(eas_dtype dt) { return dt == EAS_BOOL ? 1 : 8 * rows[dt].size; }

int64_t dtype_min(eas_dtype dt) { return dtype_is_signed(dt) ? -(int64_t)(dtype_max(dt))-1 : 0; }

uint64_t dtype_max(eas_dtype dt)
{
    int bits = dtype_bits(dt) - dtype_is_signed(dt);
    return bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float f32_from(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 31)
        return f32_from(sign | 0x7f800000 | man << 13 | (man ? 0x400000 : 0));
    if (exp)
        return f32_from(sign | (exp + 112) << 23 | man << 13);
    float f = (float)man * 0x1p-24f;
    return f32_from(sign | f32_bits(f));
}

/* Rounds the magnitude of d to a 16-bit format of `man` mantissa bits and least normal exponent emin, in one
 * step. */
static uint16_t round16(double d, int man, int emin, uint16_t inf)
{
    uint64_t u;
    memcpy(&u, &d, 8);
    uint16_t sign = (uint16_t)(u >> 48 & 0x8000);
    int exp = (int)(u >> 52 & 0x7ff) - 1023;
    uint64_t m = u & ((1ull << 52) - 1);
    if (exp == 1024)
        return (uint16_t)(sign | inf | (m ? 1u << (man - 1) : 0));
    if (exp == -1023)
        return sign; /* a double this small is far below half of the least 16-bit value */
    m |= 1ull << 52;
    int drop = 52 - man + (exp < emin ? emin - exp : 0);
    if (drop > 54)
        return sign;
    uint64_t kept = m >> drop, rest = m & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1));
    /* kept holds the hidden bit for normals: adding it to the exponent field carries correctly, also into
     * infinity */
    uint64_t field = exp < emin ? kept : ((uint64_t)(exp - emin) << man) + kept;
    return (uint16_t)(sign | (field >= inf ? inf : field));
}

uint16_t f64_to_f16(double d) { return round16(d, 10, -14, 0x7c00); }
uint16_t f64_to_bf16(double d) { return round16(d, 7, -126, 0x7f80); }
uint16_t f32_to_f16(float f) { return f64_to_f16((double)f); }
uint16_t f32_to_bf16(float f) { return f64_to_bf16((double)f); }
float bf16_to_f32(uint16_t h) { return f32_from((uint32_t)h << 16); }

/* Floats: rounding may not make an infinity of a finite number. Integers: exactly. */
int eas_dtype_holds(eas_dtype dt, int is_float, int64_t i, double f)
{
    double d = is_float ? f : (double)i;
    switch (dt) {
    case EAS_F64: return 1;
    case EAS_F32: return !isfinite(d) || isfinite((double)(float)d);
    case EAS_F16: return !isfinite(d) || (f64_to_f16(d) & 0x7fff) != 0x7c00;
    case EAS_BF16: return !isfinite(d) || (f64_to_bf16(d) & 0x7fff) != 0x7f80;
    case EAS_BOOL: return d == 0 || d == 1;
    default: break;
    }
    if (!dtype_is_int(dt))
        return 0;
    if (is_float)
        return d == floor(d) && d >= (double)dtype_min(dt) &&
               (dtype_bits(dt) == 64 ? d < (dt == EAS_U64 ? 0x1p64 : 0x1p63) : d <= (double)dtype_max(dt));
    if (dtype_is_signed(dt))
        return i >= dtype_min(dt) && i <= (int64_t)dtype_max(dt);
    return i >= 0 && (uint64_t)i <= dtype_max(dt);
}
