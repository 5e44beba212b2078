/* The noise of a draw: Philox and Box-Muller, with an exponential and a logarithm that vectorise.
 *
 * exp_, log_ and the polynomials of sine and cosine have no branches, so that the loops vectorise; they are accurate to a
 * few units in the last place of float32 on the ranges that occur here.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 2048, COUNTERS = BLOCK / 4, ROUNDS = 10 };

static inline float as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t as_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

/* fmaxf and fminf would be function calls because of NaN. Of these a NaN comes out if it is b. */
static inline float max_(float a, float b) { return a > b ? a : b; }
static inline float min_(float a, float b) { return a < b ? a : b; }

/* exp by 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]; saturates instead of overflowing. */
static inline float exp_(float x) {
    x = min_(88.0f, max_(-87.0f, x));
    float shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to the nearest integer */
    float n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * as_float((uint32_t)((int32_t)n + 127) << 23);
}

/* log of a positive normal number: exponent times ln 2 plus a polynomial of the mantissa in [sqrt(1/2), sqrt(2)). */
static inline float log_(float x) {
    uint32_t bits = as_bits(x);
    int32_t exponent = (int32_t)((bits - 0x3f3504f3u) >> 23); /* counts from sqrt(1/2), wraps below 1 */
    exponent = exponent > 255 ? exponent - 512 : exponent;
    float m = as_float(bits - ((uint32_t)exponent << 23)) - 1.0f;
    float e = (float)exponent, z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * z - 2.12194440e-4f * e - 0.5f * z;
    return m + p + 0.693359375f * e;
}

/* log(1 + u) for u >= 0, with a correction for the rounding of 1 + u, so that it is exact for tiny u. */
static inline float log1p_(float u) {
    float y = 1.0f + u;
    return log_(y) + (u - (y - 1.0f)) / y;
}

static inline float softplus_(float x) { return max_(0.0f, x) + log1p_(exp_(-fabsf(x))); }

/* Philox needs both halves of the 64-bit products of its 32-bit words. Each word is in a 64-bit lane, whose upper half is
 * ignored: then a product is one instruction, and no shuffles are needed between the rounds. Without the intrinsics, gcc
 * 12 multiplies all 64 bits, which takes twice as long without AVX-512. `pack` interleaves the words of even and of odd
 * counters. */
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#ifdef __AVX512F__
typedef uint64_t lanes __attribute__((vector_size(64)));
static inline lanes product(lanes x, uint32_t m) { return (lanes)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(m)); }
#else
typedef uint64_t lanes __attribute__((vector_size(32)));
static inline lanes product(lanes x, uint32_t m) { return (lanes)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(m)); }
#endif
static inline void pack(lanes even, lanes odd, uint32_t *words) {
    lanes both = (even & 0xffffffffu) | (odd << 32);
    memcpy(words, &both, sizeof both);
}
#else
typedef uint64_t lanes;
static inline lanes product(lanes x, uint32_t m) { return (x & 0xffffffffu) * m; }
static inline void pack(lanes even, lanes odd, uint32_t *words) { words[0] = (uint32_t)even, words[1] = (uint32_t)odd; }
#endif
enum { LANES = sizeof(lanes) / sizeof(uint64_t) };

/* Philox4x32 of Salmon, Moraes, Dror and Shaw (2011): a counter of four words becomes four random words. */
static inline void philox(lanes *x, const uint32_t *key, int rounds) {
    lanes x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
    const uint32_t key0 = key[0], key1 = key[1];
#pragma GCC unroll 10
    for (int r = 0; r < rounds; r++) {
        lanes p = product(x0, 0xd2511f53u), q = product(x2, 0xcd9e8d57u);
        x0 = (q >> 32) ^ x1 ^ (key0 + (uint32_t)r * 0x9e3779b9u);
        x1 = q;
        x2 = (p >> 32) ^ x3 ^ (key1 + (uint32_t)r * 0xbb67ae85u);
        x3 = p;
    }
    x[0] = x0, x[1] = x1, x[2] = x2, x[3] = x3;
}

/* Two independent standard normals from two random words, by Box-Muller. */
static inline void normal_pair(uint32_t a, uint32_t b, float *first, float *second) {
    /* 31 bits: float32 keeps the precision of small numbers, so the tail reaches 6.6 standard deviations. */
    float u = ((float)(int32_t)(a >> 1) + 0.5f) * 4.656612873077393e-10f;
    float radius = sqrtf(-2.0f * log_(u));
    /* The top two bits select a quarter turn, the others an angle in [-pi/4, pi/4). */
    float angle = ((float)(int32_t)(b & 0x3fffffffu) * 9.313225746154785e-10f - 0.5f) * 1.57079633f;
    float z = angle * angle;
    float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * angle + angle;
    float cosine = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z
                   - 0.5f * z + 1.0f;
    float x = (b & 0x40000000u) ? sine : cosine, y = (b & 0x40000000u) ? cosine : sine;
    *first = (b & 0x80000000u) ? -radius * x : radius * x;
    *second = ((b ^ (b << 1)) & 0x80000000u) ? -radius * y : radius * y;
}

/* Block i of the stream (key, weight, part): counter j fills the indices j, 512 + j, 1024 + j and 1536 + j. The first two
 * words of the counter are the number i * 512 + j; the second word is the same for the whole block. Of a block that is
 * not whole, at least the first `length` numbers are made. */
static inline void block_noise(int64_t i, const uint32_t *key, uint32_t weight, uint32_t part, int64_t length,
                               float *noise) {
    const int counters = length < COUNTERS ? (int)length : COUNTERS;
    const uint64_t start = (uint64_t)i * COUNTERS;
    const lanes none = {0}, high = none + (start >> 32), third = none + weight, fourth = none + part;
    uint64_t twice[LANES];
    for (int l = 0; l < LANES; l++) twice[l] = 2 * (uint64_t)l;
    lanes evens;
    memcpy(&evens, twice, sizeof evens);
    uint32_t words[4][COUNTERS];
    for (int j = 0; j < counters; j += 2 * LANES) {
        lanes even[4] = {evens + (start + (uint64_t)j), high, third, fourth};
        lanes odd[4] = {evens + (start + (uint64_t)j + 1), high, third, fourth};
        philox(even, key, ROUNDS);
        philox(odd, key, ROUNDS);
        for (int w = 0; w < 4; w++) pack(even[w], odd[w], words[w] + j);
    }
    for (int j = 0; j < counters; j++) normal_pair(words[0][j], words[1][j], noise + j, noise + COUNTERS + j);
    if (length <= 2 * COUNTERS) return;
    for (int j = 0; j < COUNTERS; j++)
        normal_pair(words[2][j], words[3][j], noise + 2 * COUNTERS + j, noise + 3 * COUNTERS + j);
}

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t block_length(int64_t n, int64_t block) {
    int64_t rest = n - block * BLOCK;
    return rest < BLOCK ? rest : BLOCK;
}
