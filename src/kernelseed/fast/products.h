/* Matrix products of germination: A (rows x k) times B (k x columns), accumulated in float32.
 *
 * The library that torch calls for float32 products reaches half of the peak of some processors at these shapes, and
 * the numbers would go to memory and back before the next pass over them. Here a product is made of tiles that stay in
 * registers, by callers that use each part while it is in the cache.
 *
 * A step of a product multiplies one word of 32 bits of A with a row of words of B: one float32, or a pair of bfloat16 for
 * two values of k. A panel of B holds NR columns, step by step; a strip of A holds MR rows in chunks of KC steps.
 */
#ifdef __AVX512F__
enum { WIDTH = 16, MR = 12 };
#elif defined(__AVX2__)
enum { WIDTH = 8, MR = 6 };
#else
enum { WIDTH = 4, MR = 4 };
#endif
enum { NR = 2 * WIDTH, KC = 256, LD = KC + 16 }; /* LD: rows of a strip begin in different sets of the cache */

typedef float vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef union { float f; uint32_t pair; } word;

#ifdef __AVX512BF16__
enum { HAS_BF16 = 1 };
#else
enum { HAS_BF16 = 0 };
#endif

static inline int64_t steps_of(int64_t k, int bf16) { return bf16 ? (k + 1) / 2 : k; }
static inline int64_t strip_words(int64_t steps) { return ceil_div(steps, KC) * MR * LD; }

/* Up to n numbers as n words, or as n pairs (low, high). */
static inline void put_words(word *to, const float *low, const float *high, int64_t n, int bf16) {
#ifdef __AVX512BF16__
    if (bf16) {
        for (int64_t j = 0; j < n; j += 16) {
            __mmask16 mask = n - j < 16 ? (__mmask16)((1u << (n - j)) - 1) : 0xffff;
            __m512i l = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, low + j)));
            __m512i h = _mm512_setzero_si512();
            if (high) h = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, high + j)));
            _mm512_mask_storeu_epi32(to + j, mask, _mm512_or_si512(l, _mm512_slli_epi32(h, 16)));
        }
        return;
    }
#endif
    memcpy(to, low, sizeof(word) * (size_t)n);
}

/* A panel: `columns` columns of the matrix b (k x ...), padded with zeros. */
static void pack_panel(word *panel, const float *b, int64_t stride, int64_t k, int64_t columns, int bf16) {
    for (int64_t step = 0; step < steps_of(k, bf16); step++) {
        const float *low = b + (bf16 ? 2 * step : step) * stride;
        put_words(panel + step * NR, low, bf16 && 2 * step + 1 < k ? low + stride : NULL, columns, bf16);
        for (int64_t j = columns; j < NR; j++) panel[step * NR + j].pair = 0;
    }
}

/* The same for `columns` rows of the matrix b (... x k): a panel of its transpose. */
static void pack_transposed(word *panel, const float *b, int64_t stride, int64_t k, int64_t columns, int bf16) {
    enum { PART = 64 };
    word row[PART];
    for (int64_t from = 0; from < k; from += PART) {
        int64_t length = min64(PART, k - from), steps = steps_of(length, bf16), at = bf16 ? from / 2 : from;
        for (int64_t j = 0; j < NR; j++) {
            memset(row, 0, sizeof row);
            if (j < columns && bf16) {
                float numbers[PART] = {0}, low[PART / 2], high[PART / 2];
                memcpy(numbers, b + j * stride + from, sizeof(float) * (size_t)length);
                for (int p = 0; p < PART / 2; p++) low[p] = numbers[2 * p], high[p] = numbers[2 * p + 1];
                put_words(row, low, high, PART / 2, 1);
            } else if (j < columns)
                memcpy(row, b + j * stride + from, sizeof(float) * (size_t)length);
            for (int64_t p = 0; p < steps; p++) panel[(at + p) * NR + j] = row[p];
        }
    }
}

/* A strip: up to MR rows of the matrix a (... x k), padded with zeros. One chunk has room for all its KC steps. */
static void pack_strip(word *strip, const float *a, int64_t stride, int64_t rows, int64_t k, int bf16) {
    int64_t span = bf16 ? 2 * KC : KC;
    for (int64_t from = 0; from < k; from += span, strip += MR * LD)
        for (int64_t i = 0; i < MR; i++) {
            int64_t length = min64(span, k - from);
            word *to = strip + i * LD;
            if (i >= rows) {
                memset(to, 0, sizeof(word) * KC);
                continue;
            }
            const float *row = a + i * stride + from;
#ifdef __AVX512BF16__
            if (bf16) {
                for (int64_t j = 0; j < length; j += 32) {
                    int64_t rest = length - j;
                    __mmask16 first = rest < 16 ? (__mmask16)((1u << rest) - 1) : 0xffff;
                    __mmask16 second = rest < 16 ? 0 : rest < 32 ? (__mmask16)((1u << (rest - 16)) - 1) : 0xffff;
                    __m512 low = _mm512_maskz_loadu_ps(first, row + j), high = _mm512_maskz_loadu_ps(second, row + j + 16);
                    _mm512_storeu_si512(to + j / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
                }
                continue;
            }
#endif
            memcpy(to, row, sizeof(float) * (size_t)length);
        }
}

/* The tile c (MR x NR) of one chunk: c = strip * panel, or c += strip * panel. */
static void tile_f32(const word *strip, const word *panel, int64_t steps, float *c, int64_t stride, int add) {
    vec sum[MR][2];
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
        sum[i][0] = add ? *(const vec *)(c + i * stride) : (vec){0};
        sum[i][1] = add ? *(const vec *)(c + i * stride + WIDTH) : (vec){0};
    }
    for (int64_t p = 0; p < steps; p++) {
        vec b0 = *(const vec *)(panel + p * NR), b1 = *(const vec *)(panel + p * NR + WIDTH);
#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            float a = strip[i * LD + p].f;
            sum[i][0] += a * b0;
            sum[i][1] += a * b1;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
        *(vec *)(c + i * stride) = sum[i][0];
        *(vec *)(c + i * stride + WIDTH) = sum[i][1];
    }
}

#ifdef __AVX512BF16__
static void tile_bf16(const word *strip, const word *panel, int64_t steps, float *c, int64_t stride, int add) {
    __m512 sum[MR][2];
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
        sum[i][0] = add ? _mm512_loadu_ps(c + i * stride) : _mm512_setzero_ps();
        sum[i][1] = add ? _mm512_loadu_ps(c + i * stride + WIDTH) : _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < steps; p++) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(panel + p * NR);
        __m512bh b1 = (__m512bh)_mm512_loadu_si512(panel + p * NR + WIDTH);
#pragma GCC unroll 12
        for (int i = 0; i < MR; i++) {
            __m512bh a = (__m512bh)_mm512_set1_epi32((int)strip[i * LD + p].pair);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], a, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], a, b1);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++) {
        _mm512_storeu_ps(c + i * stride, sum[i][0]);
        _mm512_storeu_ps(c + i * stride + WIDTH, sum[i][1]);
    }
}
#else
#define tile_bf16 tile_f32 /* never called: HAS_BF16 is 0 */
#endif

/* The same for a whole strip and panel. */
static void tile(const word *strip, const word *panel, int64_t steps, float *c, int64_t stride, int add, int bf16) {
    for (int64_t from = 0; from < steps; from += KC) {
        const word *a = strip + from / KC * MR * LD, *b = panel + from * NR;
        int64_t length = min64(KC, steps - from);
        if (bf16)
            tile_bf16(a, b, length, c, stride, add || from);
        else
            tile_f32(a, b, length, c, stride, add || from);
    }
}
