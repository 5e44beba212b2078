/* The passes and products of a draw; see fused.py for their use.
 *
 * Self-contained C99 without torch headers, so that any compiler builds it in a second or two. Each block or tile has one
 * sum in double precision, and the caller adds the sums in order, so the result does not depend on the number of threads.
 */
#include "noise.h"
#include "passes.h"
#include "products.h"

int omp_get_thread_num(void); /* not omp.h, which some compilers lack */
int omp_get_num_threads(void);

/* Blocks that one thread does in about the time in which another wakes up. */
enum { FEW = 16 };

int64_t ks_block(void) { return BLOCK; }

/* The words of n counters of four words each, for a comparison with the published vectors. */
void ks_philox(int64_t n, const uint32_t *counters, const uint32_t *key, int rounds, uint32_t *words, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        lanes x[4];
        uint32_t same[2 * LANES];
        for (int w = 0; w < 4; w++) x[w] = (lanes){0} + counters[4 * i + w];
        philox(x, key, rounds);
        for (int w = 0; w < 4; w++) pack(x[w], x[w], same), words[4 * i + w] = same[0];
    }
}

/* The first n normals of the stream (key, weight, part). */
void ks_noise(int64_t n, const uint32_t *key, uint32_t weight, uint32_t part, float *noise, int threads) {
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static) if (blocks > FEW)
    for (int64_t i = 0; i < blocks; i++) {
        float own[BLOCK];
        int64_t length = block_length(n, i);
        block_noise(i, key, weight, part, length, own);
        memcpy(noise + i * BLOCK, own, sizeof(float) * (size_t)length);
    }
}

/* Numbers to draw: n means, each with its rho or its deviation, and which noise is theirs. */
typedef struct {
    int64_t n, has_rhos, weight, part;
    const float *mean, *spread;
    float *values;
} numbers;

/* Block i of some numbers, drawn once with each of some keys; its means and deviations stay in the cache. */
static void draw_block(const numbers *of, int64_t i, int64_t draws, const uint32_t *keys) {
    int64_t at = i * BLOCK, length = block_length(of->n, i);
    const float *mean = of->mean + at, *std = of->spread + at;
    float noise[BLOCK], own[BLOCK];
    if (of->has_rhos) deviations(std, 0.0f, own, length), std = own;
    for (int64_t draw = 0; draw < draws; draw++) {
        float *value = of->values + draw * of->n + at;
        block_noise(i, keys + 2 * draw, (uint32_t)of->weight, (uint32_t)of->part, length, noise);
        for (int64_t j = 0; j < length; j++) value[j] = mean[j] + std[j] * noise[j];
    }
}

/* All numbers of a network, drawn once with each of some keys, one draw after another. */
void ks_draws(int64_t count, const numbers *all, int64_t draws, const uint32_t *keys, int threads) {
    int64_t blocks = 0;
    for (int64_t k = 0; k < count; k++) blocks += ceil_div(all[k].n, BLOCK);
#pragma omp parallel num_threads(threads) if (draws * blocks > FEW)
    {
        int64_t turn = 0, team = omp_get_num_threads(), own = omp_get_thread_num();
        for (int64_t k = 0; k < count; k++)
            for (int64_t i = 0; i < ceil_div(all[k].n, BLOCK); i++)
                if (turn++ % team == own) draw_block(all + k, i, draws, keys);
    }
}

/* The draw of n numbers, each with its mean and rho; the sums of log q go to `log_q`, one per block. */
void ks_sample(int64_t n, const float *mean, const float *rho, const float *offset, const uint32_t *key,
               uint32_t weight, uint32_t part, float *value, float *std, double *log_q, int threads) {
    const stream s = {key, weight, part};
#pragma omp parallel for num_threads(threads) schedule(static) if (n > FEW * BLOCK)
    for (int64_t i = 0; i < ceil_div(n, BLOCK); i++) {
        int64_t at = i * BLOCK, end = at + block_length(n, i);
        log_q[i] = sample_range(at, end, mean + at, rho + at, *offset, s, value + at, std + at);
    }
}

/* The sums of log P(value) up to a constant: softplus(c0 - c1 w^2) - c2 w^2. */
void ks_mixture(int64_t n, const float *value, const float *c, double *log_p, int threads) {
    const float c0 = c[0], c1 = c[1], c2 = c[2];
#pragma omp parallel for num_threads(threads) schedule(static) if (n > FEW * BLOCK)
    for (int64_t i = 0; i < ceil_div(n, BLOCK); i++) {
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

/* The gradients of mean and rho. The means are given, so that sigma times the noise is known without the noise. */
void ks_gradient(int64_t n, const float *grad, const float *value, const float *std, const float *mean, const float *c,
                 float kl, float *d_mean, float *d_rho, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (n > FEW * BLOCK)
    for (int64_t i = 0; i < ceil_div(n, BLOCK); i++) {
        int64_t o = i * BLOCK, length = block_length(n, i);
        float shift[BLOCK];
        for (int64_t j = 0; j < length; j++) shift[j] = value[o + j] - mean[o + j];
        gradient_block(length, grad + o, value + o, std + o, shift, c, kl, d_mean + o, d_rho + o);
    }
}

/* --- germination ------------------------------------------------------------------------------------------------
 *
 * A weight is a matrix (rows x n): germinators (rows x k) times a seed (k x n), for the mean and for rho. It is made in
 * tiles of whole rows, whose numbers stay in the cache from the product to the end of the pass over them.
 */
typedef struct {
    int64_t rows, n, k;
    int mean_bf16, rho_bf16; /* which products use bfloat16 */
} germination;

/* The rows of a tile: about half a megabyte for mean and rho, and enough tiles for the threads. */
static int64_t tile_rows(germination g) {
    int64_t strips = 27 * BLOCK / ((g.n > 0 ? g.n : 1) * MR), enough = ceil_div(g.rows, 8 * MR);
    strips = strips < enough ? strips : enough;
    return (strips > 1 ? strips : 1) * MR;
}

static inline int64_t padded(int64_t n) { return ceil_div(n, NR) * NR; }

int ks_has_bf16(void) { return HAS_BF16; }

int64_t ks_tiles(int64_t rows, int64_t n) {
    return ceil_div(rows, tile_rows((germination){rows, n, 0, 0, 0}));
}

/* The scratch of a thread for its tile: strips of both germinators, and the products. */
static int64_t draw_words(germination g) {
    int64_t both = strip_words(steps_of(g.k, g.mean_bf16)) + strip_words(steps_of(g.k, g.rho_bf16));
    return tile_rows(g) / MR * both + 2 * tile_rows(g) * padded(g.n);
}

/* The number of words of scratch that ks_germinate needs. */
int64_t ks_germinate_scratch(int64_t rows, int64_t n, int64_t k, int mean_bf16, int rho_bf16, int threads) {
    germination g = {rows, n, k, mean_bf16, rho_bf16};
    return padded(n) * (k + steps_of(k, 1)) + threads * draw_words(g);
}

/* One half of a tile, `rows` x n: the products of a germinator's rows with all panels of the seed. */
static void germinate_half(const float *germinator, const word *panels, int64_t rows, germination g, int bf16,
                           word *strips, float *out) {
    const int64_t steps = steps_of(g.k, bf16), pitch = padded(g.n);
    for (int64_t r = 0; r < rows; r += MR)
        pack_strip(strips + r / MR * strip_words(steps), germinator + r * g.k, g.k, min64(MR, rows - r), g.k, bf16);
    for (int64_t j = 0; j < pitch; j += NR)
        for (int64_t r = 0; r < rows; r += MR)
            tile(strips + r / MR * strip_words(steps), panels + j * steps, steps, out + r * pitch + j, pitch, 0, bf16);
    if (pitch != g.n)
        for (int64_t r = 1; r < rows; r++) memmove(out + r * g.n, out + r * pitch, sizeof(float) * (size_t)g.n);
}

/* Germinate and draw a weight. The sums of log q go to `log_q`, one per tile. */
void ks_germinate(int64_t rows, int64_t n, int64_t k, const float *mean_germinator, const float *rho_germinator,
                  const float *seed, const float *offset, const uint32_t *key, uint32_t weight, uint32_t part,
                  float *value, float *std, double *log_q, word *scratch, int mean_bf16, int rho_bf16, int threads) {
    const germination g = {rows, n, k, mean_bf16, rho_bf16};
    const stream s = {key, weight, part};
    const int64_t height = tile_rows(g);
    word *panels[2] = {scratch, scratch + padded(n) * k}, *own = panels[1] + padded(n) * steps_of(k, 1);
#pragma omp parallel num_threads(threads) if (rows * n > FEW * BLOCK)
    {
#pragma omp for schedule(static)
        for (int64_t j = 0; j < n; j += NR)
            for (int bf16 = 0; bf16 < 2; bf16++)
                if (bf16 == mean_bf16 || bf16 == rho_bf16)
                    pack_panel(panels[bf16] + j * steps_of(k, bf16), seed + j, n, k, min64(NR, n - j), bf16);
        word *strips = own + omp_get_thread_num() * draw_words(g);
        float *mean = (float *)strips + draw_words(g) - 2 * height * padded(n), *rho = mean + height * padded(n);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < ceil_div(rows, height); i++) {
            int64_t r = i * height, count = min64(height, rows - r);
            germinate_half(mean_germinator + r * k, panels[mean_bf16], count, g, mean_bf16, strips, mean);
            germinate_half(rho_germinator + r * k, panels[rho_bf16], count, g, rho_bf16, strips, rho);
            log_q[i] = sample_range(r * n, (r + count) * n, mean, rho, *offset, s, value + r * n, std + r * n);
        }
    }
}

/* The scratch of a thread: for a tile, both gradients, a chunk of a strip, and the sums of a strip; then for a panel of
 * both gradients of all rows. */
static int64_t gradient_words(germination g) {
    int64_t of_tile = 2 * tile_rows(g) * g.n + MR * LD + MR * padded(g.k);
    int64_t of_panels = NR * (steps_of(g.rows, g.mean_bf16) + steps_of(g.rows, g.rho_bf16));
    return of_tile > of_panels ? of_tile : of_panels;
}

/* The number of words of scratch that ks_ungerminate needs. */
int64_t ks_ungerminate_scratch(int64_t rows, int64_t n, int64_t k, int mean_bf16, int rho_bf16, int threads) {
    germination g = {rows, n, k, mean_bf16, rho_bf16};
    int64_t strips = ceil_div(k, MR) * (strip_words(steps_of(rows, mean_bf16)) + strip_words(steps_of(rows, rho_bf16)));
    int64_t gradients = padded(n) * (steps_of(rows, mean_bf16) + steps_of(rows, rho_bf16));
    return strips + padded(k) * (n + steps_of(n, 1)) + gradients + threads * gradient_words(g);
}

/* The gradient of a germinator's rows: the gradients (rows x n) of the tile times the transposed seed. */
static void germinator_gradient(const float *gradients, const word *panels, int64_t rows, germination g, int bf16,
                                word *chunk, float *sums, float *d_germinator) {
    const int64_t span = bf16 ? 2 * KC : KC, steps = steps_of(g.n, bf16), pitch = padded(g.k);
    for (int64_t r = 0; r < rows; r += MR) {
        int64_t count = min64(MR, rows - r);
        for (int64_t from = 0; from < g.n; from += span) {
            int64_t length = min64(span, g.n - from), at = steps_of(from, bf16);
            pack_strip(chunk, gradients + r * g.n + from, g.n, count, length, bf16);
            for (int64_t j = 0; j < pitch; j += NR)
                tile(chunk, panels + j * steps + at * NR, steps_of(length, bf16), sums + j, pitch, from > 0, bf16);
        }
        for (int64_t i = 0; i < count; i++)
            memcpy(d_germinator + (r + i) * g.k, sums + i * pitch, sizeof(float) * (size_t)g.k);
    }
}

/* The columns from j on of the seed's gradient: the transposed germinators times the panels of both gradients, whose
 * pieces are first gathered from the tiles. */
static void seed_gradient(word *const strips[2], word *const kept[2], int64_t j, germination g, word *panels,
                          float *d_seed) {
    const int bf16[2] = {g.mean_bf16, g.rho_bf16};
    const size_t width = sizeof(float) * (size_t)min64(NR, g.n - j);
    const int64_t height = tile_rows(g), steps[2] = {steps_of(g.rows, bf16[0]), steps_of(g.rows, bf16[1])};
    word *const panel[2] = {panels, panels + steps[0] * NR};
    for (int half = 0; half < 2; half++)
        for (int64_t r = 0; r < g.rows; r += height) {
            int64_t at = steps_of(r, bf16[half]), own = steps_of(min64(height, g.rows - r), bf16[half]);
            memcpy(panel[half] + at * NR, kept[half] + at * padded(g.n) + j * own, sizeof(word) * (size_t)(own * NR));
        }
    for (int64_t i = 0; i < g.k; i += MR) {
        float sums[MR * NR];
        for (int half = 0; half < 2; half++)
            tile(strips[half] + i / MR * strip_words(steps[half]), panel[half], steps[half], sums, NR, half,
                 bf16[half]);
        for (int64_t q = 0; q < min64(MR, g.k - i); q++) memcpy(d_seed + (i + q) * g.n + j, sums + q * NR, width);
    }
}

/* The gradients of the seed, of both germinators (which are given transposed, k x rows) and of the offset, whose sums go
 * to `d_offset`, one per tile. The seed's gradient needs the gradients of all rows, which are kept tile after tile: with
 * whole panels one after another, a tile would write to places that share few sets of the cache. */
void ks_ungerminate(int64_t rows, int64_t n, int64_t k, const float *grad, const float *value, const float *std,
                    const float *mean_transposed, const float *rho_transposed, const float *seed, const uint32_t *key,
                    uint32_t weight, uint32_t part, const float *c, float kl, float *d_seed, float *d_mean_germinator,
                    float *d_rho_germinator, double *d_offset, word *scratch, int mean_bf16, int rho_bf16, int threads) {
    const germination g = {rows, n, k, mean_bf16, rho_bf16};
    const stream s = {key, weight, part};
    const int64_t height = tile_rows(g);
    const int bf16[2] = {mean_bf16, rho_bf16};
    const int64_t steps[2] = {steps_of(rows, mean_bf16), steps_of(rows, rho_bf16)};
    const float *transposed[2] = {mean_transposed, rho_transposed};
    word *strips[2] = {scratch, scratch + ceil_div(k, MR) * strip_words(steps[0])};
    word *seeds[2] = {strips[1] + ceil_div(k, MR) * strip_words(steps[1])};
    seeds[1] = seeds[0] + padded(k) * n;
    word *kept[2] = {seeds[1] + padded(k) * steps_of(n, 1)};
    kept[1] = kept[0] + padded(n) * steps[0];
    word *own = kept[1] + padded(n) * steps[1];
#pragma omp parallel num_threads(threads) if (rows * n > FEW * BLOCK)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < k; i += MR)
            for (int half = 0; half < 2; half++)
                pack_strip(strips[half] + i / MR * strip_words(steps[half]), transposed[half] + i * rows, rows,
                           min64(MR, k - i), rows, bf16[half]);
#pragma omp for schedule(static)
        for (int64_t from = 0; from < n; from += 512)
            for (int64_t j = 0; j < k; j += NR)
                for (int b = 0; b < 2; b++)
                    if (b == mean_bf16 || b == rho_bf16)
                        pack_transposed(seeds[b] + j * steps_of(n, b) + steps_of(from, b) * NR, seed + j * n + from, n,
                                        min64(512, n - from), min64(NR, k - j), b);
        word *chunk = own + omp_get_thread_num() * gradient_words(g);
        float *sums = (float *)(chunk + MR * LD), *d[2] = {sums + MR * padded(k)};
        d[1] = d[0] + height * n;
#pragma omp for schedule(dynamic)
        for (int64_t r = 0; r < rows; r += height) {
            int64_t count = min64(height, rows - r), at = r * n, to = at + count * n;
            d_offset[r / height] = gradient_range(at, to, grad + at, value + at, std + at, s, c, kl, d[0], d[1]);
            for (int half = 0; half < 2; half++) {
                float *d_germinator = (half ? d_rho_germinator : d_mean_germinator) + r * k;
                germinator_gradient(d[half], seeds[bf16[half]], count, g, bf16[half], chunk, sums, d_germinator);
                word *keep = kept[half] + steps_of(r, bf16[half]) * padded(n);
                const int64_t own = steps_of(count, bf16[half]);
                for (int64_t j = 0; j < n; j += NR)
                    pack_panel(keep + j * own, d[half] + j, n, count, min64(NR, n - j), bf16[half]);
            }
        }
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < n; j += NR) seed_gradient(strips, kept, j, g, chunk, d_seed);
    }
}
