/* ggml.c: the blocks of llama.cpp's quantised formats. A block is a scale (an f16), sometimes an offset, and
 * small integers; K formats have blocks of 256 with scales of their own for every 16 or 32, which are small
 * integers themselves. */
#include "io.h"

static float half_at(const uint8_t *p) { return f16_to_f32(io_u16(p)); }

static void decode_q4_0(const uint8_t *p, float *y)
{
    float d = half_at(p);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)((p[2 + i] & 15) - 8) * d;
        y[i + 16] = (float)((p[2 + i] >> 4) - 8) * d;
    }
}

static void decode_q4_1(const uint8_t *p, float *y)
{
    float d = half_at(p), m = half_at(p + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = (float)(p[4 + i] & 15) * d + m;
        y[i + 16] = (float)(p[4 + i] >> 4) * d + m;
    }
}

static void decode_q5(const uint8_t *low, uint32_t high, float d, float m, int less, float *y)
{
    for (int i = 0; i < 16; i++) {
        int a = (low[i] & 15) | (int)(high >> i & 1) << 4, b = low[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
        y[i] = (float)(a - less) * d + m;
        y[i + 16] = (float)(b - less) * d + m;
    }
}
static void decode_q5_0(const uint8_t *p, float *y)
{
    decode_q5(p + 6, io_u32(p + 2), half_at(p), 0.0f, 16, y);
}
static void decode_q5_1(const uint8_t *p, float *y)
{
    decode_q5(p + 8, io_u32(p + 4), half_at(p), half_at(p + 2), 0, y);
}

static void decode_q8_0(const uint8_t *p, float *y)
{
    float d = half_at(p);
    for (int i = 0; i < 32; i++)
        y[i] = (float)(int8_t)p[2 + i] * d;
}

/* Scale and offset of sub-block j of 8, six bits each in twelve bytes. */
static void scale_of(const uint8_t *q, int j, int *scale, int *offset)
{
    if (j < 4) {
        *scale = q[j] & 63;
        *offset = q[j + 4] & 63;
    } else {
        *scale = (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
        *offset = q[j + 4] >> 4 | (q[j] >> 6) << 4;
    }
}

/* high: the fifth bits of the numbers: bit j of each of its 32 bytes belongs to sub-block j. NULL: numbers
 * have four bits. */
static void decode_k(const uint8_t *p, const uint8_t *high, const uint8_t *low, float *y)
{
    float d = half_at(p), m = half_at(p + 2);
    for (int j = 0; j < 8; j++) {
        int scale, offset;
        scale_of(p + 4, j, &scale, &offset);
        float a = d * (float)scale, b = m * (float)offset;
        for (int i = 0; i < 32; i++) {
            int q = (low[j / 2 * 32 + i] >> (j % 2 * 4)) & 15;
            q |= high ? (high[i] >> j & 1) << 4 : 0;
            *y++ = a * (float)q - b;
        }
    }
}
static void decode_q4_k(const uint8_t *p, float *y) { decode_k(p, NULL, p + 16, y); }
static void decode_q5_k(const uint8_t *p, float *y) { decode_k(p, p + 16, p + 48, y); }

static void decode_q6_k(const uint8_t *p, float *y)
{
    const uint8_t *low = p, *high = p + 128;
    const int8_t *scale = (const int8_t *)(p + 192);
    float d = half_at(p + 208);
    for (int n = 0; n < 2; n++, y += 128, low += 64, high += 32, scale += 8)
        for (int i = 0; i < 32; i++)
            for (int k = 0; k < 4; k++) {
                int q = (low[i + k % 2 * 32] >> (k / 2 * 4) & 15) | (high[i] >> (2 * k) & 3) << 4;
                y[i + 32 * k] = d * (float)scale[i / 16 + 2 * k] * (float)(q - 32);
            }
}

const ggml_kind *ggml_find(uint32_t type)
{
    static const ggml_kind kinds[] = {
        {0, "F32", 1, 4, EAS_F32, NULL},         {1, "F16", 1, 2, EAS_F16, NULL},
        {2, "Q4_0", 32, 18, -1, decode_q4_0},    {3, "Q4_1", 32, 20, -1, decode_q4_1},
        {6, "Q5_0", 32, 22, -1, decode_q5_0},    {7, "Q5_1", 32, 24, -1, decode_q5_1},
        {8, "Q8_0", 32, 34, -1, decode_q8_0},    {9, "Q8_1", 32, 36, -1, NULL},
        {10, "Q2_K", 256, 84, -1, NULL},         {11, "Q3_K", 256, 110, -1, NULL},
        {12, "Q4_K", 256, 144, -1, decode_q4_k}, {13, "Q5_K", 256, 176, -1, decode_q5_k},
        {14, "Q6_K", 256, 210, -1, decode_q6_k}, {15, "Q8_K", 256, 292, -1, NULL},
        {16, "IQ2_XXS", 256, 66, -1, NULL},      {17, "IQ2_XS", 256, 74, -1, NULL},
        {18, "IQ3_XXS", 256, 98, -1, NULL},      {19, "IQ1_S", 256, 50, -1, NULL},
        {20, "IQ4_NL", 32, 18, -1, NULL},        {21, "IQ3_S", 256, 110, -1, NULL},
        {22, "IQ2_S", 256, 82, -1, NULL},        {23, "IQ4_XS", 256, 136, -1, NULL},
        {24, "I8", 1, 1, EAS_I8, NULL},          {25, "I16", 1, 2, EAS_I16, NULL},
        {26, "I32", 1, 4, EAS_I32, NULL},        {27, "I64", 1, 8, EAS_I64, NULL},
        {28, "F64", 1, 8, EAS_F64, NULL},        {29, "IQ1_M", 256, 56, -1, NULL},
        {30, "BF16", 1, 2, EAS_BF16, NULL},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].type == type)
            return &kinds[i];
    return NULL;
}
