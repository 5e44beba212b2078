/* The elementwise passes of a draw over a range [from, to) of the numbers of a weight. Pointers are to number `from`.
 *
 * Noise comes in blocks, so a range that ends within one costs the noise of the whole block.
 */
typedef struct {
    const uint32_t *key;
    uint32_t weight, part;
} stream;

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

/* softplus of numbers below -3, for which a short series of log(1 + u) is enough. */
static inline float softplus_of_small(float x) {
    float u = exp_(x);
    return u * (1.0f - u * (0.5f - u * (0.33333333f - u * (0.25f - u * (0.2f - u * 0.16666667f)))));
}

static inline int all_below(const float *x, int64_t n, float bound) {
    int above = 0;
    for (int64_t j = 0; j < n; j++) above |= x[j] >= bound;
    return !above;
}

/* The standard deviations softplus(rho + shift) of a block; returns the sum of their logarithms. */
static double deviations(const float *rho, float shift, float *std, int64_t n) {
    if (all_below(rho, n, -3.0f - shift))
        for (int64_t j = 0; j < n; j++) std[j] = max_(1.17549435e-38f, softplus_of_small(rho[j] + shift));
    else
        for (int64_t j = 0; j < n; j++) std[j] = max_(1.17549435e-38f, softplus_(rho[j] + shift));
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

/* The ratios softplus'(rho) / std = (1 - exp(-std)) / std of a block, by a series if all std are small. */
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

/* value = mean + softplus(rho + shift) * noise, and std for the gradient; returns log q up to a constant per number.
 * `value` may be `mean`, and `std` may be `rho`. The gradient generates the noise again. */
static double sample_range(int64_t from, int64_t to, const float *mean, const float *rho, float shift, stream s,
                           float *value, float *std) {
    double sum = 0.0;
    for (int64_t at = from; at < to;) {
        int64_t i = at / BLOCK, end = (i + 1) * BLOCK < to ? (i + 1) * BLOCK : to, length = end - at, o = at - from;
        float block[BLOCK], sigma[BLOCK], squares = 0.0f, *noise = block + (at - i * BLOCK);
        block_noise(i, s.key, s.weight, s.part, end - i * BLOCK, block);
        double logs = deviations(rho + o, shift, sigma, length);
#pragma omp simd reduction(+ : squares)
        for (int64_t j = 0; j < length; j++) {
            value[o + j] = mean[o + j] + sigma[j] * noise[j];
            std[o + j] = sigma[j];
            squares += noise[j] * noise[j];
        }
        sum -= logs + 0.5 * squares;
        at = end;
    }
    return sum;
}

/* The gradients of mean and rho of up to a block, for a loss whose gradient with respect to the weight is `grad`, plus
 * `kl` times the KL under the prior with the constants c; `shift` is sigma times the noise. Returns the sum of d_rho. */
static double gradient_block(int64_t n, const float *grad, const float *value, const float *std, const float *shift,
                             const float *c, float kl, float *d_mean, float *d_rho) {
    const float c0 = c[0], c1 = c[1], c2 = c[2];
    float ratio[BLOCK], sum = 0.0f;
    slope_ratios(std, ratio, n);
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        float w = value[j];
        float narrow = 1.0f / (1.0f + exp_(c1 * w * w - c0)); /* the responsibility of the narrow component */
        float d = grad[j] + kl * 2.0f * w * (c2 + c1 * narrow);
        float dr = ratio[j] * (d * shift[j] - kl);
        d_mean[j] = d;
        d_rho[j] = dr;
        sum += dr;
    }
    return sum;
}

/* The same for a range, with its noise made again. */
static double gradient_range(int64_t from, int64_t to, const float *grad, const float *value, const float *std, stream s,
                             const float *c, float kl, float *d_mean, float *d_rho) {
    double total = 0.0;
    for (int64_t at = from; at < to;) {
        int64_t i = at / BLOCK, end = (i + 1) * BLOCK < to ? (i + 1) * BLOCK : to, length = end - at, o = at - from;
        float block[BLOCK], *shift = block + (at - i * BLOCK);
        block_noise(i, s.key, s.weight, s.part, end - i * BLOCK, block);
        for (int64_t j = 0; j < length; j++) shift[j] *= std[o + j];
        total += gradient_block(length, grad + o, value + o, std + o, shift, c, kl, d_mean + o, d_rho + o);
        at = end;
    }
    return total;
}
