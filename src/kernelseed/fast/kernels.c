/* The elementwise passes of a draw, each as one loop: see fused.py for what they are for.
 *
 * Self-contained C99 without headers of torch, so that any compiler builds it in about a second. The functions exp_, log_
 * and the sine's polynomials are branch-free so that the loops vectorise; they are good to a few units in the last place
 * of float32 on the ranges that occur here. Sums go to one double a block, added up in order by the caller: the same
 * result for any number of threads.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 2048, HALF = BLOCK / 2 };

static inline float as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t as_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

/* fmaxf and fminf would be calls, for the sake of NaN. */
static inline float max_(float a, float b) { return a > b ? a : b; }
static inline float min_(float a, float b) { return a < b ? a : b; }

/* exp by 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]; saturates instead of overflowing. */
static inline float exp_(float x) {
    x = min_(max_(x, -87.0f), 88.0f);
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

/* log(1 + u) for u >= 0: the rounding of 1 + u is put back, so that tiny u come out as themselves. */
static inline float log1p_(float u) {
    float y = 1.0f + u;
    return log_(y) + (u - (y - 1.0f)) / y;
}

static inline float softplus_(float x) { return max_(x, 0.0f) + log1p_(exp_(-fabsf(x))); }

/* 32 bits in which every input bit flips every output bit with a probability close to a half (lowbias32). */
static inline uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Two independent standard normals by Box and Muller, a function of the key and the counter alone. */
static inline void normal_pair(uint32_t counter, uint32_t key0, uint32_t key1, float *first, float *second) {
    uint32_t a = mix(mix((2 * counter) ^ key0) + key1);
    uint32_t b = mix(mix((2 * counter + 1) ^ key0) + key1);
    /* 31 bits: in float32 small numbers keep theirs, so the tail reaches 6.6 standard deviations. */
    float u = ((float)(int32_t)(a >> 1) + 0.5f) * 4.656612873077393e-10f;
    float radius = sqrtf(-2.0f * log_(u));
    /* The top two bits are the quarter turn, the others an angle within [-pi/4, pi/4). */
    float angle = ((float)(int32_t)(b & 0x3fffffffu) * 9.313225746154785e-10f - 0.5f) * 1.57079633f;
    float z = angle * angle;
    float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * angle + angle;
    float cosine = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z
                   - 0.5f * z + 1.0f;
    float x = (b & 0x40000000u) ? sine : cosine, y = (b & 0x40000000u) ? cosine : sine;
    *first = (b & 0x80000000u) ? -radius * x : radius * x;
    *second = ((b ^ (b << 1)) & 0x80000000u) ? -radius * y : radius * y;
}

/* A block's noise: pair j fills places j and HALF + j. `block` counts blocks of the whole draw, not of this weight. */
static inline void block_noise(uint32_t block, const uint32_t *key, float *noise) {
    for (int j = 0; j < HALF; j++)
        normal_pair(block * HALF + (uint32_t)j, key[0], key[1], noise + j, noise + HALF + j);
}

static inline int64_t block_length(int64_t n, int64_t block) {
    int64_t rest = n - block * BLOCK;
    return rest < BLOCK ? rest : BLOCK;
}

int64_t ks_block(void) { return BLOCK; }

/* noise[0..n) from the stream `key`, whose first block is number `first`. */
void ks_noise(int64_t n, const uint32_t *key, uint32_t first, float *noise, int threads) {
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        float own[BLOCK];
        block_noise(first + (uint32_t)i, key, own);
        memcpy(noise + i * BLOCK, own, sizeof(float) * (size_t)block_length(n, i));
    }
}

enum { RUN = 512 };

/* The sum of the logarithms of up to RUN factors in [1, 2]: eight logarithms of products of 64, which stay below 2^64. */
static double log_product(float *factors, int64_t n) {
    for (int64_t j = n; j < RUN; j++) factors[j] = 1.0f;
    for (int half = RUN / 2; half >= 8; half /= 2)
        for (int j = 0; j < half; j++) factors[j] *= factors[j + half];
    double sum = 0.0;
    for (int j = 0; j < 8; j++) sum += (double)log_(factors[j]);
    return sum;
}

/* softplus of numbers below -3, where log(1 + u) is a short series. */
static inline float softplus_of_small(float x) {
    float u = exp_(x);
    return u * (1.0f - u * (0.5f - u * (0.33333333f - u * (0.25f - u * (0.2f - u * 0.16666667f)))));
}

static inline int all_below(const float *x, int64_t n, float bound) {
    int above = 0;
    for (int64_t j = 0; j < n; j++) above |= x[j] >= bound;
    return !above;
}

/* A block's deviations from rho, in place of softplus(rho + shift); returns the sum of their logarithms. */
static double deviations(const float *rho, float shift, float *std, int64_t n) {
    if (all_below(rho, n, -3.0f - shift))
        for (int64_t j = 0; j < n; j++) std[j] = max_(softplus_of_small(rho[j] + shift), 1.17549435e-38f);
    else
        for (int64_t j = 0; j < n; j++) std[j] = max_(softplus_(rho[j] + shift), 1.17549435e-38f);
    double sum = 0.0;
    for (int64_t from = 0; from < n; from += RUN) {
        int64_t length = n - from < RUN ? n - from : RUN;
        float mantissas[RUN];
        int32_t exponents = 0;
#pragma omp simd reduction(+ : exponents)
        for (int64_t j = 0; j < length; j++) {
            uint32_t bits = as_bits(std[from + j]);
            exponents += (int32_t)(bits >> 23) - 127;
            mantissas[j] = as_float((bits & 0x007fffffu) | 0x3f800000u);
        }
        sum += 0.6931471805599453 * exponents + log_product(mantissas, length);
    }
    return sum;
}

/* value = mean + softplus(rho + offset) * noise, and std for the gradient; sums of log q to `log_q`.
 * `value` may be `mean`, and `std` may be `rho`. The noise is made again when the gradient needs it. */
void ks_sample(int64_t n, const float *mean, const float *rho, const float *offset, const uint32_t *key, uint32_t first,
               float *value, float *std, double *log_q, int threads) {
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    const float shift = *offset;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        float noise[BLOCK], sigma[BLOCK], squares = 0.0f;
        int64_t length = block_length(n, i), at = i * BLOCK;
        block_noise(first + (uint32_t)i, key, noise);
        double logs = deviations(rho + at, shift, sigma, length);
#pragma omp simd reduction(+ : squares)
        for (int64_t j = 0; j < length; j++) {
            value[at + j] = mean[at + j] + sigma[j] * noise[j];
            std[at + j] = sigma[j];
            squares += noise[j] * noise[j];
        }
        log_q[i] = -logs - 0.5 * squares;
    }
}

/* Sums of log P(value) but for a constant: softplus(c0 - c1 w^2) - c2 w^2. */
void ks_mixture(int64_t n, const float *value, const float *c, double *log_p, int threads) {
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    const float c0 = c[0], c1 = c[1], c2 = c[2];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        double sum = 0.0;
        for (int64_t from = i * BLOCK; from < i * BLOCK + block_length(n, i); from += RUN) {
            int64_t rest = i * BLOCK + block_length(n, i) - from, length = rest < RUN ? rest : RUN;
            float factors[RUN], linear = 0.0f; /* softplus(q) = max(q, 0) + log(1 + exp(-|q|)) */
#pragma omp simd reduction(+ : linear)
            for (int64_t j = 0; j < length; j++) {
                float square = value[from + j] * value[from + j], q = c0 - c1 * square;
                linear += max_(q, 0.0f) - c2 * square;
                factors[j] = 1.0f + exp_(-fabsf(q));
            }
            sum += (double)linear + log_product(factors, length);
        }
        log_p[i] = sum;
    }
}

/* A block's ratio softplus'(rho) / std = (1 - exp(-std)) / std, by a series where all deviations are small. */
static void slope_ratios(const float *std, float *ratio, int64_t n) {
    if (all_below(std, n, 0.05f))
        for (int64_t j = 0; j < n; j++) {
            float s = std[j];
            ratio[j] = 1.0f - s * (0.5f - s * (0.16666667f - s * (0.041666667f - s * 0.0083333333f)));
        }
    else
        for (int64_t j = 0; j < n; j++) {
            float s = std[j];
            ratio[j] = s < 0.01f ? 1.0f - s * (0.5f - s * 0.16666667f) : (1.0f - exp_(-s)) / s;
        }
}

/* Gradients for mean and rho: of a loss whose gradient for the weight is `grad`, plus `kl` times the KL.
 * `d_mean` may be `grad`. Sums of d_rho to `d_offset`. */
void ks_gradient(int64_t n, const float *grad, const float *value, const float *std, const uint32_t *key, uint32_t first,
                 const float *c, float kl, float *d_mean, float *d_rho, double *d_offset, int threads) {
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    const float c0 = c[0], c1 = c[1], c2 = c[2];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        float noise[BLOCK], ratio[BLOCK], sum = 0.0f;
        int64_t length = block_length(n, i), at = i * BLOCK;
        block_noise(first + (uint32_t)i, key, noise);
        slope_ratios(std + at, ratio, length);
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < length; j++) {
            float w = value[at + j];
            float narrow = 1.0f / (1.0f + exp_(c1 * w * w - c0)); /* the narrow component's responsibility */
            float d = grad[at + j] + kl * 2.0f * w * (c2 + c1 * narrow);
            float dr = ratio[j] * (std[at + j] * d * noise[j] - kl);
            d_mean[at + j] = d;
            d_rho[at + j] = dr;
            sum += dr;
        }
        d_offset[i] = sum;
    }
}
