/* A small Llama on a CPU: decoding, log-probabilities, gradients, AdamW, with the same bits everywhere.

     prompts ──► forward ──► keys, values ──► decode ──► tokens, log-probabilities
     a prompt and its samples ──► forward ──► log-probabilities ──► (loss in Python)
                                  backward ◄── d loss / d log-probability

   The order of every sum is written down here, every product-sum is a fused multiply-add, and exp, log, sin and cos are
   computed here. So results depend neither on the width of the registers, nor on the number of threads, nor on what
   else is in the batch. Compile with -ffp-contract=off: no other product may be fused with a sum.

   Weights are one array of floats, parameter after parameter (`offsets_of`); so are gradients. Forward passes read
   panels: a copy in which 16 outputs of a matrix lie side by side. Threads are the caller's: no function here has state
   that another thread sees.

   Shapes: N rows (tokens), D width, H query heads, J key-value heads, d head dimension, Q = (H + 2 J) d, M width of the
   MLP, V vocabulary, P tokens of a prompt. All widths but V are multiples of 16. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ── vectors ──────────────────────────────────────────────────────────────────────────────────── */

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#elif defined(__aarch64__)
#include <arm_neon.h>
#define LANES 4
#else
#define LANES 4
#endif
#define PARTS (16 / LANES)

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef vec loose __attribute__((aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec v) { *(loose *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec blend(ints mask, vec a, vec b) { return (vec)((mask & (ints)a) | (~mask & (ints)b)); }

#if LANES == 16
INLINE vec fused(vec a, vec b, vec c) { return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif LANES == 8
INLINE vec fused(vec a, vec b, vec c) { return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__aarch64__)
INLINE vec fused(vec a, vec b, vec c) { return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
typedef double doubles __attribute__((vector_size(8 * LANES)));
typedef int64_t longs __attribute__((vector_size(8 * LANES)));

/* The product is exact in double. The sum is rounded to odd, so that rounding it again to float is correct. */
INLINE vec fused(vec a, vec b, vec c) {
    doubles p = __builtin_convertvector(a, doubles) * __builtin_convertvector(b, doubles);
    doubles q = __builtin_convertvector(c, doubles), sum = p + q, of_q = sum - p;
    doubles error = (p - (sum - of_q)) + (q - of_q);
    longs bits = (longs)sum, away = (error > 0) == (sum > 0), exponent = (bits >> 52) & 0x7ff;
    longs inexact = (error != 0) & ((bits & 1) == 0) & (exponent != 0x7ff);
    bits += inexact & ((away & 1) | (~away & -1));
    return __builtin_convertvector((doubles)bits, vec);
}
#endif

/* Sixteen numbers: the unit in which sums are divided, whatever the registers are. */
typedef struct {
    vec part[PARTS];
} vec16;

#define EACH(i) UNROLL for (int i = 0; i < PARTS; i++)

INLINE vec16 splat16(float x) {
    vec16 out;
    EACH(i) out.part[i] = splat(x);
    return out;
}
INLINE vec16 load16(const float *p) {
    vec16 out;
    EACH(i) out.part[i] = load(p + i * LANES);
    return out;
}
INLINE void store16(float *p, vec16 a) { EACH(i) store(p + i * LANES, a.part[i]); }
INLINE vec16 add16(vec16 a, vec16 b) {
    EACH(i) a.part[i] += b.part[i];
    return a;
}
INLINE vec16 sub16(vec16 a, vec16 b) {
    EACH(i) a.part[i] -= b.part[i];
    return a;
}
INLINE vec16 mul16(vec16 a, vec16 b) {
    EACH(i) a.part[i] *= b.part[i];
    return a;
}
INLINE vec16 fma16(vec16 a, vec16 b, vec16 c) {
    EACH(i) c.part[i] = fused(a.part[i], b.part[i], c.part[i]);
    return c;
}
INLINE vec16 max16(vec16 a, vec16 b) {
    EACH(i) a.part[i] = blend(a.part[i] > b.part[i], a.part[i], b.part[i]);
    return a;
}

/* The first `count` numbers of a, the others of b. */
INLINE vec16 first16(vec16 a, int count, vec16 b) {
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    EACH(i) {
        ints lanes;
        memcpy(&lanes, lane + i * LANES, sizeof lanes);
        a.part[i] = blend(lanes < count, a.part[i], b.part[i]);
    }
    return a;
}

/* The halves are combined until one number is left. */
INLINE float sum16(vec16 a) {
    float x[16];
    store16(x, a);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}
INLINE float largest16(vec16 a) {
    float x[16];
    store16(x, a);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return x[0];
}

/* Cephes: 2ⁿ times a polynomial of the rest; x is limited to ±87. */
INLINE vec exp_vec(vec x) {
    x = blend(x < splat(87.0f), x, splat(87.0f));
    x = blend(x > splat(-87.0f), x, splat(-87.0f));
    vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* the nearest integer */
    vec r = fused(n, splat(2.12194440e-4f), fused(n, splat(-0.693359375f), x));
    vec p = fused(splat(1.9875691500e-4f), r, splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p, r, splat(1.0f));
    p = fused(p, r, splat(1.0f));
    return p * (vec)((__builtin_convertvector(n, ints) + 127) << 23);
}
INLINE vec16 exp16(vec16 a) {
    EACH(i) a.part[i] = exp_vec(a.part[i]);
    return a;
}
INLINE vec16 sigmoid16(vec16 a) {
    EACH(i) a.part[i] = 1.0f / (1.0f + exp_vec(-a.part[i]));
    return a;
}

/* Of a positive normal number: its exponent, and the series of artanh. */
static double log_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    memcpy(&x, &bits, 8);
    if (x > 1.4142135623730951) {
        x *= 0.5;
        exponent++;
    }
    double s = (x - 1) / (x + 1), square = s * s, sum = 0;
    for (int k = 21; k > 0; k -= 2) sum = sum * square + 1.0 / k;
    return exponent * 0.6931471805599453 + 2 * s * sum;
}

/* Tables `(positions, d / 2)` of the rotations: sines and cosines of position × frequency, as float products. */
void rotary_tables(int64_t positions, int64_t half, const float *frequencies, float *cosines, float *sines) {
    for (int64_t n = 0; n < positions * half; n++) {
        float angle = (float)(n / half) * frequencies[n % half];
        int64_t turns = (int64_t)((double)angle * 0.6366197723675814 + 0.5);
        double r = ((double)angle - turns * 1.5707963267341256) - turns * 6.077100506506192e-11;
        double square = r * r, sine = 0, cosine = 0;
        for (int k = 17; k > 1; k -= 2) sine = (sine + 1) * -square / (k * (k - 1));
        for (int k = 16; k > 0; k -= 2) cosine = (cosine + 1) * -square / (k * (k - 1));
        sine = (sine + 1) * r;
        cosine += 1;
        sines[n] = (float)(turns % 4 == 0 ? sine : turns % 4 == 1 ? cosine : turns % 4 == 2 ? -sine : -cosine);
        cosines[n] = (float)(turns % 4 == 0 ? cosine : turns % 4 == 1 ? -sine : turns % 4 == 2 ? -cosine : sine);
    }
}

/* ── matrix products ──────────────────────────────────────────────────────────────────────────── */

#define TILE_ROWS 6
#if LANES == 16
#define TILE_PANELS 2
#else
#define TILE_PANELS 1
#endif

typedef struct {
    const float *first;
    int64_t row, inner;
} Left; /* the strides of a */
typedef struct {
    const float *first;
    int64_t panel, inner;
} Right; /* the strides of b: of 16 columns, and of the inner index */
typedef struct {
    float *first;
    int64_t row;
} Out;

INLINE void tile(int rows, int panels, Left a, Right b, Out c, int64_t inner, int add) {
    vec sums[TILE_ROWS][TILE_PANELS * PARTS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < panels * PARTS; j++)
            sums[i][j] = add ? load(c.first + i * c.row + j * LANES) : (vec){0};
    for (int64_t t = 0; t < inner; t++) {
        vec right[TILE_PANELS * PARTS];
        UNROLL for (int j = 0; j < panels * PARTS; j++)
            right[j] = load(b.first + (j / PARTS) * b.panel + t * b.inner + (j % PARTS) * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            vec left = splat(a.first[i * a.row + t * a.inner]);
            UNROLL for (int j = 0; j < panels * PARTS; j++) sums[i][j] = fused(left, right[j], sums[i][j]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < panels * PARTS; j++) store(c.first + i * c.row + j * LANES, sums[i][j]);
}

INLINE void tiles(int panels, Left a, Right b, Out c, int64_t rows, int64_t inner, int add) {
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS) {
        tile(TILE_ROWS, panels, a, b, c, inner, add);
        a.first += TILE_ROWS * a.row;
        c.first += TILE_ROWS * c.row;
    }
    switch (rows) {
    case 5: tile(5, panels, a, b, c, inner, add); break;
    case 4: tile(4, panels, a, b, c, inner, add); break;
    case 3: tile(3, panels, a, b, c, inner, add); break;
    case 2: tile(2, panels, a, b, c, inner, add); break;
    case 1: tile(1, panels, a, b, c, inner, add); break;
    }
}

/* c = a b, or with `add` c += a b: each sum in the order of the inner index, from 0 or from c. */
static void product(Left a, Right b, Out c, int64_t rows, int64_t panels, int64_t inner, int add) {
    int64_t p = 0;
    for (; p + TILE_PANELS <= panels; p += TILE_PANELS)
        tiles(TILE_PANELS, a, (Right){b.first + p * b.panel, b.panel, b.inner}, (Out){c.first + 16 * p, c.row}, rows,
              inner, add);
    for (; p < panels; p++)
        tiles(1, a, (Right){b.first + p * b.panel, b.panel, b.inner}, (Out){c.first + 16 * p, c.row}, rows, inner, add);
}

INLINE Left rows_of(const float *a, int64_t stride) { return (Left){a, stride, 1}; }
INLINE Left columns_of(const float *a, int64_t stride) { return (Left){a, 1, stride}; }
INLINE Right panels_of(const float *b, int64_t inner) { return (Right){b, 16 * inner, 16}; }
INLINE Right plain(const float *b, int64_t stride) { return (Right){b, 16, stride}; }

INLINE int64_t panels_for(int64_t count) { return (count + 15) / 16; }

/* Panels `(n / 16, d, 16)` of the transposed rows `(n, d)` from panel `first / 16` on, the last filled with zeros. */
static void pack_rows(const float *rows, int64_t stride, int64_t count, int64_t width, int64_t first, float *panels) {
    for (int64_t n = 0; n < count; n++) {
        float *to = panels + (first + n) / 16 * 16 * width + (first + n) % 16;
        for (int64_t i = 0; i < width; i++) to[16 * i] = rows[n * stride + i];
    }
    for (int64_t n = first + count; n % 16; n++) {
        float *to = panels + n / 16 * 16 * width + n % 16;
        for (int64_t i = 0; i < width; i++) to[16 * i] = 0;
    }
}

/* ── the model ────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    int64_t layers, width, heads, kv_heads, head_dim, mlp, vocabulary, tied, has_bias, has_qk_norm, padding_token;
    float eps, temperature; /* 0 is greedy */
    const float *cos, *sin; /* (positions, d / 2) */
} Shape;

/* Where the parameters of a layer begin, relative to the layer; those without a layer, in the whole array. */
typedef struct {
    int64_t input_norm, qkv, qkv_bias, q_norm, k_norm, out, mlp_norm, gate_up, down, layer;
    int64_t norm, embed, head, total;
} Offsets;

INLINE int64_t qkv_width(const Shape *s) { return (s->heads + 2 * s->kv_heads) * s->head_dim; }

static Offsets offsets_of(const Shape *s) {
    int64_t D = s->width, Q = qkv_width(s), bias = s->has_bias ? Q : 0, norm = s->has_qk_norm ? s->head_dim : 0;
    Offsets o;
    o.input_norm = 0;
    o.qkv = D;
    o.qkv_bias = o.qkv + Q * D;
    o.q_norm = o.qkv_bias + bias;
    o.k_norm = o.q_norm + norm;
    o.out = o.k_norm + norm;
    o.mlp_norm = o.out + D * s->heads * s->head_dim;
    o.gate_up = o.mlp_norm + D;
    o.down = o.gate_up + 2 * s->mlp * D;
    o.layer = o.down + D * s->mlp;
    o.norm = s->layers * o.layer;
    o.embed = o.norm + D;
    o.head = s->tied ? o.embed : o.embed + s->vocabulary * D;
    o.total = o.head + s->vocabulary * D;
    return o;
}

int64_t parameter_count(const Shape *s) { return offsets_of(s).total; }
int64_t panel_count(const Shape *s) { return offsets_of(s).embed + 16 * panels_for(s->vocabulary) * s->width; }

/* The matrices of the weights as panels, at the same offsets; the head lies where the embeddings begin. */
void pack_weights(const Shape *s, const float *weights, float *panels) {
    Offsets o = offsets_of(s);
    int64_t D = s->width, Hd = s->heads * s->head_dim;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        const float *from = weights + layer * o.layer;
        float *to = panels + layer * o.layer;
        pack_rows(from + o.qkv, D, qkv_width(s), D, 0, to + o.qkv);
        pack_rows(from + o.out, Hd, D, Hd, 0, to + o.out);
        pack_rows(from + o.gate_up, D, 2 * s->mlp, D, 0, to + o.gate_up);
        pack_rows(from + o.down, s->mlp, D, s->mlp, 0, to + o.down);
    }
    pack_rows(weights + o.head, D, s->vocabulary, D, 0, panels + o.embed);
}

/* ── parts of a layer ─────────────────────────────────────────────────────────────────────────── */

/* Rows of x divided by their root mean square; `out` is that times the gain. */
static void normalize(const float *x, int64_t x_row, int64_t rows, int64_t width, const float *gain, float eps,
                      float *normed, int64_t normed_row, float *scales, float *out, int64_t out_row) {
    for (int64_t i = 0; i < rows; i++, x += x_row, normed += normed_row, out += out_row) {
        vec16 squares = splat16(0);
        for (int64_t j = 0; j < width; j += 16) squares = fma16(load16(x + j), load16(x + j), squares);
        float scale = 1.0f / __builtin_sqrtf(sum16(squares) / (float)width + eps);
        scales[i] = scale;
        for (int64_t j = 0; j < width; j++) {
            normed[j] = x[j] * scale;
            out[j] = normed[j] * gain[j];
        }
    }
}

/* From the gradient of `out`, adds those of the gain and of x (with `add`, else writes the latter). */
static void normalize_backward(const float *grad, int64_t grad_row, const float *normed, int64_t normed_row,
                               const float *scales, const float *gain, int64_t rows, int64_t width, float *grad_gain,
                               float *grad_x, int64_t x_row, int add) {
    for (int64_t i = 0; i < rows; i++, grad += grad_row, normed += normed_row, grad_x += x_row) {
        vec16 products = splat16(0), scale = splat16(scales[i]);
        for (int64_t j = 0; j < width; j += 16) {
            vec16 g = load16(grad + j), n = load16(normed + j);
            products = fma16(mul16(g, load16(gain + j)), n, products);
            store16(grad_gain + j, fma16(g, n, load16(grad_gain + j)));
        }
        vec16 mean = splat16(-sum16(products) / (float)width);
        for (int64_t j = 0; j < width; j += 16) {
            vec16 g = mul16(load16(grad + j), load16(gain + j));
            vec16 of_x = mul16(fma16(load16(normed + j), mean, g), scale);
            store16(grad_x + j, add ? add16(load16(grad_x + j), of_x) : of_x);
        }
    }
}

INLINE void scale_rows(const float *normed, int64_t rows, int64_t width, const float *gain, float *out) {
    for (int64_t i = 0; i < rows * width; i++) out[i] = normed[i] * gain[i % width];
}

/* Rotates some heads of a row in place; backwards with `sign` -1. */
static void rotate(const Shape *s, float *row, int64_t heads, int64_t position, float sign) {
    int64_t half = s->head_dim / 2;
    const float *cosines = s->cos + position * half, *sines = s->sin + position * half;
    for (int64_t h = 0; h < heads; h++, row += 2 * half)
        for (int64_t j = 0; j < half; j++) {
            float a = row[j], b = row[half + j], sine = sines[j] * sign;
            row[j] = a * cosines[j] - b * sine;
            row[half + j] = b * cosines[j] + a * sine;
        }
}

/* Softmax of `valid` scores times `scale`; the others before `end` become 0. */
static void softmax(float *row, int64_t valid, int64_t end, float scale) {
    vec16 lowest = splat16(-1e30f), largest = lowest, zero = splat16(0), sums = zero, factor = splat16(scale);
    for (int64_t j = 0; j < valid; j += 16) {
        vec16 x = first16(mul16(load16(row + j), factor), (int)(valid - j), lowest);
        largest = max16(largest, x);
        store16(row + j, x);
    }
    vec16 top = splat16(largest16(largest));
    for (int64_t j = 0; j < valid; j += 16) {
        vec16 e = first16(exp16(sub16(load16(row + j), top)), (int)(valid - j), zero);
        sums = add16(sums, e);
        store16(row + j, e);
    }
    factor = splat16(1.0f / sum16(sums));
    for (int64_t j = 0; j < valid; j += 16) store16(row + j, mul16(load16(row + j), factor));
    for (int64_t j = 16 * panels_for(valid); j < end; j++) row[j] = 0;
}

/* Replaces logits by exp(logit / temperature - largest), 0 after the last; returns largest + log of the sum. */
static double exps_of_logits(const Shape *s, float *row, float *total) {
    float temperature = s->temperature ? s->temperature : 1.0f;
    vec16 lowest = splat16(-1e30f), largest = lowest, zero = splat16(0), sums = zero;
    int64_t count = s->vocabulary;
    for (int64_t j = 0; j < count; j += 16) {
        vec16 x = load16(row + j);
        if (temperature != 1.0f) EACH(i) x.part[i] /= temperature;
        x = first16(x, (int)(count - j), lowest);
        largest = max16(largest, x);
        store16(row + j, x);
    }
    float top = largest16(largest);
    for (int64_t j = 0; j < count; j += 16) {
        vec16 e = first16(exp16(sub16(load16(row + j), splat16(top))), (int)(count - j), zero);
        sums = add16(sums, e);
        store16(row + j, e);
    }
    *total = sum16(sums);
    return top + log_of(*total);
}

INLINE float scaled_logit(const Shape *s, float logit) {
    return s->temperature == 0 || s->temperature == 1 ? logit : logit / s->temperature;
}

/* qkv `(rows, Q)` of x: normalized, projected, with Qwen3's norms, rotated. */
typedef struct {
    float *normed, *scale, *qk_normed, *qk_scale, *qkv;
} Attention;

static void before_attention(const Shape *s, const float *w, const float *panels, const float *x, int64_t rows,
                             const int64_t *positions, Attention to, float *out) {
    Offsets o = offsets_of(s);
    int64_t D = s->width, Q = qkv_width(s), d = s->head_dim, H = s->heads, J = s->kv_heads, K = H + J;
    normalize(x, D, rows, D, w + o.input_norm, s->eps, to.normed, D, to.scale, out, D);
    if (s->has_bias)
        for (int64_t i = 0; i < rows; i++) memcpy(to.qkv + i * Q, w + o.qkv_bias, Q * sizeof(float));
    product(rows_of(out, D), panels_of(panels + o.qkv, D), (Out){to.qkv, Q}, rows, Q / 16, D, s->has_bias != 0);
    for (int64_t i = 0; i < rows; i++) {
        float *row = to.qkv + i * Q;
        if (s->has_qk_norm) {
            float *normed = to.qk_normed + i * K * d, *scale = to.qk_scale + i * K;
            normalize(row, d, H, d, w + o.q_norm, s->eps, normed, d, scale, row, d);
            normalize(row + H * d, d, J, d, w + o.k_norm, s->eps, normed + H * d, d, scale + H, row + H * d, d);
        }
        rotate(s, row, K, positions[i], 1.0f);
    }
}

/* The rest of a layer: adds the output of attention and the MLP to x. `inner` (rows, M), `out` (rows, D) are scratch. */
static void after_attention(const Shape *s, const float *w, const float *panels, float *x, int64_t rows,
                            const float *attended, float *normed, float *scale, float *gate_up, float *inner,
                            float *out) {
    Offsets o = offsets_of(s);
    int64_t D = s->width, M = s->mlp, Hd = s->heads * s->head_dim;
    product(rows_of(attended, Hd), panels_of(panels + o.out, Hd), (Out){x, D}, rows, D / 16, Hd, 1);
    normalize(x, D, rows, D, w + o.mlp_norm, s->eps, normed, D, scale, out, D);
    product(rows_of(out, D), panels_of(panels + o.gate_up, D), (Out){gate_up, 2 * M}, rows, 2 * M / 16, D, 0);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < M; j += 16) {
            vec16 g = load16(gate_up + i * 2 * M + j), u = load16(gate_up + i * 2 * M + M + j);
            store16(inner + i * M + j, mul16(mul16(g, sigmoid16(g)), u));
        }
    product(rows_of(inner, M), panels_of(panels + o.down, M), (Out){x, D}, rows, D / 16, M, 1);
}

/* ── a prompt and its samples ─────────────────────────────────────────────────────────────────── */

typedef struct {
    int64_t prompt, samples; /* tokens of the prompt, which may be 0; number of samples */
    const int64_t *ends;     /* (samples + 1) where the rows of each sample begin; ends[0] is `prompt` */
    const int64_t *tokens;   /* (N) */
} Unit;

INLINE int64_t rows_in(const Unit *u) { return u->ends[u->samples]; }
INLINE int64_t outputs_in(const Unit *u) { return rows_in(u) - u->prompt + 1; }

/* Segment -1 is the prompt, which attends to itself only; others attend to the prompt and to themselves. */
typedef struct {
    int64_t before, first, rows, padded; /* padded: of all keys, a multiple of 16 */
} Segment;

static Segment segment_of(const Unit *u, int64_t n) {
    Segment g = {n < 0 ? 0 : u->prompt, n < 0 ? 0 : u->ends[n], 0, 0};
    g.rows = n < 0 ? u->prompt : u->ends[n + 1] - u->ends[n];
    g.padded = 16 * panels_for(g.before + g.rows);
    return g;
}

/* What the backward pass needs of a layer. */
typedef struct {
    Attention attention;
    float *weights; /* of each segment (H, rows, padded) */
    float *attended, *mlp_normed, *mlp_scale, *gate_up;
} Layer;

typedef struct {
    float *at;
    int64_t size;
} Memory; /* `at` is NULL if only the size is asked for */

static float *take(Memory *m, int64_t count) {
    float *start = m->at ? m->at + m->size : NULL;
    m->size += 16 * panels_for(count);
    return start;
}

static int64_t weights_count(const Shape *s, const Unit *u) {
    int64_t count = 0;
    for (int64_t n = -1; n < u->samples; n++) {
        Segment g = segment_of(u, n);
        count += s->heads * g.rows * g.padded;
    }
    return count;
}

static Layer take_layer(const Shape *s, const Unit *u, Memory *m) {
    int64_t N = rows_in(u), K = s->has_qk_norm ? s->heads + s->kv_heads : 0;
    Layer l;
    l.attention.normed = take(m, N * s->width);
    l.attention.scale = take(m, N);
    l.attention.qk_normed = take(m, N * K * s->head_dim);
    l.attention.qk_scale = take(m, N * K);
    l.attention.qkv = take(m, N * qkv_width(s));
    l.weights = take(m, weights_count(s, u));
    l.attended = take(m, N * s->heads * s->head_dim);
    l.mlp_normed = take(m, N * s->width);
    l.mlp_scale = take(m, N);
    l.gate_up = take(m, N * 2 * s->mlp);
    return l;
}

/* Of the rows that predict a token: the last of the prompt and all of the samples. */
typedef struct {
    float *normed, *scale, *probabilities; /* (outputs, padded vocabulary) */
} Head;

static Head take_head(const Shape *s, int64_t outputs, Memory *m) {
    Head h;
    h.normed = take(m, outputs * s->width);
    h.scale = take(m, outputs);
    h.probabilities = take(m, outputs * 16 * panels_for(s->vocabulary));
    return h;
}

/* Floats that `logprobs` writes for `backward`. */
int64_t tape_size(const Shape *s, const Unit *u) {
    Memory m = {NULL, 0};
    for (int64_t layer = 0; layer < s->layers; layer++) take_layer(s, u, &m);
    take_head(s, outputs_in(u), &m);
    return m.size;
}

static void *allocate(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    if (!memory) abort();
    return memory;
}

/* Memory of this thread that is used again in every call. */
static float *scratch(int64_t count) {
    static _Thread_local float *memory;
    static _Thread_local int64_t size;
    if (size < count) {
        free(memory);
        size = count + count / 4;
        memory = allocate(size * sizeof(float));
    }
    return memory;
}

#define BLOCK 96 /* rows that pass through a part of a layer together, so that they stay in the cache */
#define BLOCKS(a, b, count) for (int64_t a = 0, b; (b = a + BLOCK < (count) ? a + BLOCK : (count)), a < (count); a = b)

/* Attention of all rows of a unit; `panels` is scratch for the keys of a segment. */
static void attend(const Shape *s, const Unit *u, Layer *l, float scale, float *panels) {
    int64_t d = s->head_dim, Q = qkv_width(s), H = s->heads, shared = H / s->kv_heads, Hd = H * d;
    const float *qkv = l->attention.qkv;
    for (int64_t j = 0; j < s->kv_heads; j++) {
        const float *k = qkv + (H + j) * d, *v = k + s->kv_heads * d;
        float *weights = l->weights;
        int64_t whole = u->prompt / 16 * 16; /* keys of the prompt in full panels */
        pack_rows(k, Q, whole, d, 0, panels);
        for (int64_t n = -1; n < u->samples; n++) {
            Segment g = segment_of(u, n);
            int64_t packed = g.before / 16 * 16;
            pack_rows(k + packed * Q, Q, g.before - packed, d, packed, panels);
            pack_rows(k + g.first * Q, Q, g.rows, d, g.before, panels);
            for (int64_t h = j * shared; h < (j + 1) * shared; h++) {
                float *w = weights + h * g.rows * g.padded;
                const float *q = qkv + g.first * Q + h * d;
                Out to = {l->attended + g.first * Hd + h * d, Hd};
                product(rows_of(q, Q), panels_of(panels, d), (Out){w, g.padded}, g.rows, g.padded / 16, d, 0);
                for (int64_t i = 0; i < g.rows; i++) softmax(w + i * g.padded, g.before + i + 1, g.padded, scale);
                product(rows_of(w, g.padded), plain(v, Q), to, g.rows, d / 16, g.before, 0);
                product(rows_of(w + g.before, g.padded), plain(v + g.first * Q, Q), to, g.rows, d / 16, g.rows, 1);
            }
            weights += H * g.rows * g.padded;
        }
    }
}

INLINE float score_scale(const Shape *s) { return 1.0f / __builtin_sqrtf((float)s->head_dim); }

static int64_t longest_segment(const Unit *u) {
    int64_t longest = 0;
    for (int64_t n = -1; n < u->samples; n++)
        if (segment_of(u, n).padded > longest) longest = segment_of(u, n).padded;
    return longest;
}

/* Hidden states x `(N, D)` after all layers; `memory` gives what each layer keeps. */
static void forward(const Shape *s, const float *weights, const float *panels, const Unit *u, Memory *memory, float *x,
                    float *work) {
    Offsets o = offsets_of(s);
    int64_t N = rows_in(u), D = s->width, Hd = s->heads * s->head_dim, K = s->heads + s->kv_heads;
    float *out = work, *inner = out + BLOCK * D, *key_panels = inner + BLOCK * s->mlp;
    for (int64_t i = 0; i < N; i++) memcpy(x + i * D, weights + o.embed + u->tokens[i] * D, D * sizeof(float));
    for (int64_t layer = 0; layer < s->layers; layer++) {
        const float *w = weights + layer * o.layer, *p = panels + layer * o.layer;
        Layer l = take_layer(s, u, memory);
        Attention t = l.attention;
        BLOCKS(a, b, N) {
            int64_t positions[BLOCK];
            for (int64_t i = a, n = 0; i < b; i++) {
                while (i >= u->prompt && i >= u->ends[n + 1]) n++;
                positions[i - a] = i < u->prompt ? i : u->prompt + i - u->ends[n];
            }
            Attention part = {t.normed + a * D, t.scale + a, t.qk_normed + a * K * s->head_dim, t.qk_scale + a * K,
                              t.qkv + a * qkv_width(s)};
            before_attention(s, w, p, x + a * D, b - a, positions, part, out);
        }
        attend(s, u, &l, score_scale(s), key_panels);
        BLOCKS(a, b, N)
            after_attention(s, w, p, x + a * D, b - a, l.attended + a * Hd, l.mlp_normed + a * D, l.mlp_scale + a,
                            l.gate_up + a * 2 * s->mlp, inner, out);
    }
}

static int64_t forward_work(const Shape *s, const Unit *u) {
    return BLOCK * (s->width + s->mlp) + longest_segment(u) * s->head_dim;
}

/* The output row that predicts the i-th token of sample n. */
INLINE int64_t output_of(const Unit *u, int64_t n, int64_t i) { return i ? u->ends[n] - u->prompt + i : 0; }
INLINE int64_t tokens_of(const Unit *u, int64_t n) { return u->ends[n + 1] - u->ends[n] + 1; }

/* Log-probabilities of the tokens of all samples, one sample after the other. The last token of a sample is a target,
   but no row of the unit. */
void logprobs(const Shape *s, const float *weights, const float *panels, const Unit *u, const int64_t *targets,
              float *tape, float *result) {
    Offsets o = offsets_of(s);
    int64_t D = s->width, V = 16 * panels_for(s->vocabulary), N = rows_in(u), outputs = outputs_in(u), first = N - outputs;
    float *x = scratch(N * D + forward_work(s, u)), *work = x + N * D;
    Memory memory = {tape, 0};
    forward(s, weights, panels, u, &memory, x, work);
    Head head = take_head(s, outputs, &memory);
    BLOCKS(a, b, outputs) {
        normalize(x + (first + a) * D, D, b - a, D, weights + o.norm, s->eps, head.normed + a * D, D, head.scale + a,
                  work, D);
        product(rows_of(work, D), panels_of(panels + o.embed, D), (Out){head.probabilities + a * V, V}, b - a, V / 16,
                D, 0);
    }
    float *to = result;
    for (int64_t n = 0, k = 0; n < u->samples; n++)
        for (int64_t i = 0; i < tokens_of(u, n); i++, k++)
            *to++ = scaled_logit(s, head.probabilities[output_of(u, n, i) * V + targets[k]]);
    double *normalizers = (double *)scratch(2 * outputs);
    for (int64_t i = 0; i < outputs; i++) {
        float total, *row = head.probabilities + i * V;
        normalizers[i] = exps_of_logits(s, row, &total);
        float factor = 1.0f / total;
        for (int64_t j = 0; j < V; j++) row[j] *= factor;
    }
    for (int64_t n = 0, k = 0; n < u->samples; n++)
        for (int64_t i = 0; i < tokens_of(u, n); i++, k++) result[k] = (float)(result[k] - normalizers[output_of(u, n, i)]);
}

/* ── gradients ────────────────────────────────────────────────────────────────────────────────── */

/* Gradients of q, k and v `(N, Q)` from those of the output of attention `(N, H d)`. */
static void attend_backward(const Shape *s, const Unit *u, const Layer *l, const float *grad, float *grad_qkv,
                            float *grad_weights, float *panels) {
    int64_t d = s->head_dim, Q = qkv_width(s), H = s->heads, shared = H / s->kv_heads, Hd = H * d;
    const float *qkv = l->attention.qkv;
    memset(grad_qkv, 0, rows_in(u) * Q * sizeof(float));
    for (int64_t j = 0; j < s->kv_heads; j++) {
        int64_t key = (H + j) * d, value = key + s->kv_heads * d;
        const float *weights = l->weights;
        pack_rows(qkv + value, Q, u->prompt / 16 * 16, d, 0, panels);
        for (int64_t n = -1; n < u->samples; n++) {
            Segment g = segment_of(u, n);
            int64_t packed = g.before / 16 * 16, row = g.first * Q, L = g.padded;
            pack_rows(qkv + packed * Q + value, Q, g.before - packed, d, packed, panels);
            pack_rows(qkv + row + value, Q, g.rows, d, g.before, panels);
            for (int64_t h = j * shared; h < (j + 1) * shared; h++) {
                const float *w = weights + h * g.rows * L, *q = qkv + row + h * d;
                const float *x = l->attended + g.first * Hd + h * d, *dx = grad + g.first * Hd + h * d;
                Out of_q = {grad_qkv + row + h * d, Q};
                product(rows_of(dx, Hd), panels_of(panels, d), (Out){grad_weights, L}, g.rows, L / 16, d, 0);
                for (int64_t i = 0; i < g.rows; i++) {
                    vec16 products = splat16(0), scale = splat16(score_scale(s));
                    for (int64_t c = 0; c < d; c += 16)
                        products = fma16(load16(x + i * Hd + c), load16(dx + i * Hd + c), products);
                    vec16 mean = splat16(sum16(products));
                    for (int64_t c = i * L; c < (i + 1) * L; c += 16)
                        store16(grad_weights + c,
                                mul16(mul16(load16(w + c), sub16(load16(grad_weights + c), mean)), scale));
                }
                int64_t firsts[2] = {0, row}, counts[2] = {g.before, g.rows}, columns[2] = {0, g.before};
                for (int part = 0; part < 2; part++) { /* the keys of the prompt, then its own */
                    int64_t at = firsts[part], count = counts[part], column = columns[part];
                    product(columns_of(w + column, L), plain(dx, Hd), (Out){grad_qkv + at + value, Q}, count, d / 16,
                            g.rows, 1);
                    product(rows_of(grad_weights + column, L), plain(qkv + at + key, Q), of_q, g.rows, d / 16, count,
                            1);
                    product(columns_of(grad_weights + column, L), plain(q, Q), (Out){grad_qkv + at + key, Q}, count,
                            d / 16, g.rows, 1);
                }
            }
            weights += H * g.rows * L;
        }
    }
}

/* Replaces gate_up by its gradient, given that of `inner`, which is computed again. */
static void gate_backward(float *gate_up, const float *grad, float *inner, int64_t rows, int64_t M) {
    vec16 one = splat16(1);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < M; j += 16) {
            float *gate = gate_up + i * 2 * M + j;
            vec16 g = load16(gate), u = load16(gate + M), of_inner = load16(grad + i * M + j), sigmoid = sigmoid16(g);
            vec16 silu = mul16(g, sigmoid);
            store16(inner + i * M + j, mul16(silu, u));
            store16(gate, mul16(mul16(of_inner, u), fma16(silu, sub16(one, sigmoid), sigmoid)));
            store16(gate + M, mul16(of_inner, silu));
        }
}

/* Writes the gradients of all weights, given those of the log-probabilities; overwrites the tape. */
void backward(const Shape *s, const float *weights, const Unit *u, const int64_t *targets, const float *grad_logprobs,
              float *tape, float *grads) {
    Offsets o = offsets_of(s);
    int64_t D = s->width, V = 16 * panels_for(s->vocabulary), N = rows_in(u), outputs = outputs_in(u), first = N - outputs;
    int64_t M = s->mlp, Q = qkv_width(s), d = s->head_dim, Hd = s->heads * d, K = s->heads + s->kv_heads;
    int64_t longest = longest_segment(u);
    float *dx = scratch(N * (D + Hd + Q) + BLOCK * 2 * (D + M) + longest * (longest + d) + N), *of_attended = dx + N * D;
    float *of_qkv = of_attended + N * Hd, *normed = of_qkv + N * Q, *of_normed = normed + BLOCK * D;
    float *inner = of_normed + BLOCK * D, *of_inner = inner + BLOCK * M, *of_weights = of_inner + BLOCK * M;
    float *value_panels = of_weights + longest * longest, *sums = value_panels + longest * d;
    Memory memory = {tape, 0};
    Layer *layers = allocate(s->layers * sizeof(Layer));
    for (int64_t layer = 0; layer < s->layers; layer++) layers[layer] = take_layer(s, u, &memory);
    Head head = take_head(s, outputs, &memory);
    memset(grads, 0, o.total * sizeof(float));
    memset(dx, 0, N * D * sizeof(float));
    memset(sums, 0, outputs * sizeof(float));

    float temperature = s->temperature ? s->temperature : 1.0f, *of_logits = head.probabilities;
    for (int64_t n = 0, k = 0; n < u->samples; n++)
        for (int64_t i = 0; i < tokens_of(u, n); i++, k++) sums[output_of(u, n, i)] += grad_logprobs[k] / temperature;
    for (int64_t i = 0; i < outputs; i++)
        for (int64_t j = 0; j < V; j++) of_logits[i * V + j] *= -sums[i];
    for (int64_t n = 0, k = 0; n < u->samples; n++)
        for (int64_t i = 0; i < tokens_of(u, n); i++, k++)
            of_logits[output_of(u, n, i) * V + targets[k]] += grad_logprobs[k] / temperature;
    BLOCKS(a, b, outputs) {
        scale_rows(head.normed + a * D, b - a, D, weights + o.norm, normed);
        product(columns_of(of_logits + a * V, V), plain(normed, D), (Out){grads + o.head, D}, s->vocabulary, D / 16,
                b - a, 1);
        product(rows_of(of_logits + a * V, V), plain(weights + o.head, D), (Out){of_normed, D}, b - a, D / 16,
                s->vocabulary, 0);
        normalize_backward(of_normed, D, head.normed + a * D, D, head.scale + a, weights + o.norm, b - a, D,
                           grads + o.norm, dx + (first + a) * D, D, 1);
    }
    for (int64_t layer = s->layers - 1; layer >= 0; layer--) {
        const float *w = weights + layer * o.layer;
        float *g = grads + layer * o.layer;
        Layer l = layers[layer];
        Attention t = l.attention;
        BLOCKS(a, b, N) {
            int64_t rows = b - a;
            float *of_x = dx + a * D, *gate_up = l.gate_up + a * 2 * M;
            product(rows_of(of_x, D), plain(w + o.down, M), (Out){of_inner, M}, rows, M / 16, D, 0);
            gate_backward(gate_up, of_inner, inner, rows, M);
            product(columns_of(of_x, D), plain(inner, M), (Out){g + o.down, M}, D, M / 16, rows, 1);
            scale_rows(l.mlp_normed + a * D, rows, D, w + o.mlp_norm, normed);
            product(columns_of(gate_up, 2 * M), plain(normed, D), (Out){g + o.gate_up, D}, 2 * M, D / 16, rows, 1);
            product(rows_of(gate_up, 2 * M), plain(w + o.gate_up, D), (Out){of_normed, D}, rows, D / 16, 2 * M, 0);
            normalize_backward(of_normed, D, l.mlp_normed + a * D, D, l.mlp_scale + a, w + o.mlp_norm, rows, D,
                               g + o.mlp_norm, of_x, D, 1);
            product(columns_of(of_x, D), plain(l.attended + a * Hd, Hd), (Out){g + o.out, Hd}, D, Hd / 16, rows, 1);
            product(rows_of(of_x, D), plain(w + o.out, Hd), (Out){of_attended + a * Hd, Hd}, rows, Hd / 16, D, 0);
        }
        attend_backward(s, u, &l, of_attended, of_qkv, of_weights, value_panels);
        for (int64_t i = 0, n = 0; i < N; i++) {
            while (i >= u->prompt && i >= u->ends[n + 1]) n++;
            float *row = of_qkv + i * Q, *normed_row = t.qk_normed + i * K * d, *scale = t.qk_scale + i * K;
            rotate(s, row, K, i < u->prompt ? i : u->prompt + i - u->ends[n], -1.0f);
            if (s->has_qk_norm) {
                normalize_backward(row, d, normed_row, d, scale, w + o.q_norm, s->heads, d, g + o.q_norm, row, d, 0);
                normalize_backward(row + Hd, d, normed_row + Hd, d, scale + s->heads, w + o.k_norm, s->kv_heads, d,
                                   g + o.k_norm, row + Hd, d, 0);
            }
            if (s->has_bias)
                for (int64_t j = 0; j < Q; j++) g[o.qkv_bias + j] += row[j];
        }
        BLOCKS(a, b, N) {
            scale_rows(t.normed + a * D, b - a, D, w + o.input_norm, normed);
            product(columns_of(of_qkv + a * Q, Q), plain(normed, D), (Out){g + o.qkv, D}, Q, D / 16, b - a, 1);
            product(rows_of(of_qkv + a * Q, Q), plain(w + o.qkv, D), (Out){of_normed, D}, b - a, D / 16, Q, 0);
            normalize_backward(of_normed, D, t.normed + a * D, D, t.scale + a, w + o.input_norm, b - a, D,
                               g + o.input_norm, dx + a * D, D, 1);
        }
    }
    free(layers);
    for (int64_t i = 0; i < N; i++)
        if (u->tokens[i] != s->padding_token)
            for (int64_t j = 0; j < D; j++) grads[o.embed + u->tokens[i] * D + j] += dx[i * D + j];
}

/* ── decoding ─────────────────────────────────────────────────────────────────────────────────── */

/* The token at which the number falls in the cumulative distribution. */
static int64_t choose(const float *exps, int64_t count, float total, float noise) {
    float position = noise * total, below = 0;
    int64_t block = 0, last = -1;
    for (; block + 16 < count; block += 16) {
        float part = sum16(load16(exps + block));
        if (below + part >= position) break;
        below += part;
    }
    for (int64_t n = block; n < count && n < block + 16; n++) {
        if (exps[n] > 0) last = n;
        below += exps[n];
        if (last >= 0 && below >= position) break;
    }
    while (last < 0 && block > 0) /* rounding led past the last possible token */
        if (exps[--block] > 0) last = block;
    return last < 0 ? 0 : last;
}

static int64_t sample(const Shape *s, float *logits, float noise, float *logprob) {
    int64_t token = 0;
    float total, largest = logits[0], kept = 0;
    for (int64_t n = 1; s->temperature == 0 && n < s->vocabulary; n++)
        if (logits[n] > largest) {
            largest = logits[n];
            token = n;
        }
    kept = logits[token];
    float *exps = scratch(16 * panels_for(s->vocabulary));
    memcpy(exps, logits, 16 * panels_for(s->vocabulary) * sizeof(float));
    double normalizer = exps_of_logits(s, exps, &total);
    if (s->temperature != 0) token = choose(exps, s->vocabulary, total, noise);
    kept = scaled_logit(s, logits[token]);
    *logprob = (float)(kept - normalizer);
    return token;
}

typedef struct {
    int64_t groups, max_tokens, slots;
    const int64_t *rows;   /* (groups + 1) where the samples of each prompt begin */
    const float *noise;    /* (rows, max_tokens) */
    const uint8_t *is_end; /* (V) */
} Requests;

/* Memory of `generate`. */
typedef struct {
    float *prompt_keys;   /* (layers, J, full panels of all prompts, d, 16) */
    float *keys, *values; /* of each slot: (layers, J, panels, d, 16) after those, and (layers, J, max_tokens, d) */
    float *first_logits, *logits, *x, *normed, *out, *scale, *qkv, *qk_normed, *qk_scale, *attended, *gate_up, *inner, *scores;
    int64_t key_floats, value_floats, own_panels, longest;
} Decoding;

static Decoding take_decoding(const Shape *s, const Unit *u, const Requests *r, int64_t whole_panels, Memory *m) {
    int64_t D = s->width, d = s->head_dim, J = s->kv_heads, K = s->heads + J, slots = r->slots, rows = rows_in(u);
    int64_t V = 16 * panels_for(s->vocabulary);
    Decoding t;
    t.own_panels = panels_for(r->max_tokens + 15);
    t.longest = longest_segment(u) + 16 * t.own_panels;
    t.key_floats = s->layers * J * t.own_panels * 16 * d;
    t.value_floats = s->layers * J * r->max_tokens * d;
    t.prompt_keys = take(m, s->layers * J * whole_panels * 16 * d);
    t.keys = take(m, slots * t.key_floats);
    t.values = take(m, slots * t.value_floats);
    t.first_logits = take(m, r->groups * V);
    t.logits = take(m, slots * V);
    t.x = take(m, (rows > slots ? rows : slots) * D);
    t.normed = take(m, slots * D);
    t.out = take(m, slots * D);
    t.scale = take(m, slots);
    t.qkv = take(m, slots * qkv_width(s));
    t.qk_normed = take(m, slots * K * d);
    t.qk_scale = take(m, slots * K);
    t.attended = take(m, slots * s->heads * d);
    t.gate_up = take(m, slots * 2 * s->mlp);
    t.inner = take(m, slots * s->mlp);
    t.scores = take(m, slots * t.longest);
    return t;
}

/* Samples `r->rows[g + 1] - r->rows[g]` completions of each prompt g, at most `slots` at a time: a finished one makes
   room for the next. The prompts are a unit: what all of them begin with, then the rest of each. Writes tokens and
   log-probabilities `(rows, max_tokens)` and lengths. */
void generate(const Shape *s, const float *weights, const float *panels, const Unit *u, const Requests *r,
              int64_t *tokens, float *result, int64_t *lengths) {
    Offsets o = offsets_of(s);
    int64_t D = s->width, Q = qkv_width(s), d = s->head_dim, H = s->heads, J = s->kv_heads, Hd = H * d, shared = H / J;
    int64_t V = 16 * panels_for(s->vocabulary), limit = r->max_tokens, common = u->prompt, slots = r->slots;
    int64_t n = 0, next = 0, group = 0, whole_panels = 0;
    int64_t *panel_of = allocate((r->groups + 1) * sizeof(int64_t)), *row_of = allocate(5 * slots * sizeof(int64_t));
    int64_t *slot_of = row_of + slots, *group_of = slot_of + slots, *positions = group_of + slots;
    int64_t *in_use = positions + slots;
    memset(in_use, 0, slots * sizeof(int64_t));
    for (int64_t g = 0; g < r->groups; g++) {
        panel_of[g] = whole_panels;
        whole_panels += (common + u->ends[g + 1] - u->ends[g]) / 16;
    }
    Memory size = {NULL, 0};
    take_decoding(s, u, r, whole_panels, &size);
    for (int64_t layer = 0; layer < s->layers; layer++) take_layer(s, u, &size);
    Memory memory = {allocate(size.size * sizeof(float)), 0};
    Decoding t = take_decoding(s, u, r, whole_panels, &memory);
    int64_t key_floats = t.key_floats, value_floats = t.value_floats, own_panels = t.own_panels, longest = t.longest;
    float *x = t.x, *qkv = t.qkv, *scores = t.scores;
    Layer *layers = allocate(s->layers * sizeof(Layer));
    Memory tape = memory;

    /* prompts: logits after the last token, keys of full panels; values are read where the forward pass left them */
    forward(s, weights, panels, u, &tape, x, scratch(forward_work(s, u)));
    tape = memory;
    for (int64_t g = 0; g < r->groups; g++) {
        normalize(x + (u->ends[g + 1] - 1) * D, D, 1, D, weights + o.norm, s->eps, t.normed, D, t.scale, t.out, D);
        product(rows_of(t.out, D), panels_of(panels + o.embed, D), (Out){t.first_logits + g * V, V}, 1, V / 16, D, 0);
    }
    for (int64_t layer = 0; layer < s->layers; layer++) {
        layers[layer] = take_layer(s, u, &tape);
        const float *from = layers[layer].attention.qkv + H * d;
        for (int64_t j = 0; j < J; j++, from += d)
            for (int64_t g = 0; g < r->groups; g++) {
                int64_t rest = u->ends[g + 1] - u->ends[g], whole = (common + rest) / 16 * 16;
                float *to = t.prompt_keys + ((layer * J + j) * whole_panels + panel_of[g]) * 16 * d;
                int64_t of_common = common < whole ? common : whole;
                pack_rows(from, Q, of_common, d, 0, to);
                pack_rows(from + u->ends[g] * Q, Q, whole - of_common, d, of_common, to);
            }
    }
    while (1) {
        while (n < slots && next < r->rows[r->groups]) { /* waiting rows take free slots */
            while (next >= r->rows[group + 1]) group++;
            int64_t token = sample(s, t.first_logits + group * V, r->noise[next * limit], result + next * limit);
            tokens[next * limit] = token;
            lengths[next] = 1;
            if (!r->is_end[token] && limit > 1) {
                int64_t slot = 0;
                while (in_use[slot]) slot++;
                in_use[slot] = 1;
                row_of[n] = next;
                group_of[n] = group;
                slot_of[n++] = slot;
                int64_t rest = u->ends[group + 1] - u->ends[group], length = common + rest;
                for (int64_t layer = 0; layer < s->layers; layer++) /* keys after the last full panel of the prompt */
                    for (int64_t j = 0; j < J; j++)
                        for (int64_t p = length / 16 * 16; p < length; p++) {
                            int64_t at = p < common ? p : u->ends[group] + p - common;
                            const float *key = layers[layer].attention.qkv + at * Q + (H + j) * d;
                            float *to = t.keys + slot * key_floats + (layer * J + j) * own_panels * 16 * d + p % 16;
                            for (int64_t i = 0; i < d; i++) to[16 * i] = key[i];
                        }
            }
            next++;
        }
        if (!n) break;
        for (int64_t i = 0; i < n; i++) {
            int64_t row = row_of[i], g = group_of[i];
            memcpy(x + i * D, weights + o.embed + tokens[row * limit + lengths[row] - 1] * D, D * sizeof(float));
            positions[i] = common + u->ends[g + 1] - u->ends[g] + lengths[row] - 1;
        }
        for (int64_t layer = 0; layer < s->layers; layer++) {
            const float *w = weights + layer * o.layer, *p = panels + layer * o.layer;
            before_attention(s, w, p, x, n, positions, (Attention){t.normed, t.scale, t.qk_normed, t.qk_scale, qkv}, t.out);
            for (int64_t a = 0, b; a < n; a = b) { /* rows of one prompt */
                int64_t g = group_of[a], rest = u->ends[g + 1] - u->ends[g], length = common + rest;
                int64_t whole = length / 16, begin = 16 * whole;
                for (b = a; b < n && group_of[b] == g; b++) {}
                for (int64_t h = 0; h < H; h++) {
                    int64_t j = h / shared;
                    const float *prompt_values = layers[layer].attention.qkv + (H + J + j) * d;
                    Out to = {t.attended + a * Hd + h * d, Hd}, of_scores = {scores + a * longest, longest};
                    product(rows_of(qkv + a * Q + h * d, Q),
                            panels_of(t.prompt_keys + ((layer * J + j) * whole_panels + panel_of[g]) * 16 * d, d),
                            of_scores, b - a, whole, d, 0);
                    for (int64_t i = a; i < b; i++) {
                        float *own_keys = t.keys + slot_of[i] * key_floats + (layer * J + j) * own_panels * 16 * d;
                        float *own_values = t.values + slot_of[i] * value_floats + (layer * J + j) * limit * d;
                        int64_t here = positions[i] - begin, count = panels_for(here + 1);
                        if (h % shared == 0) {
                            for (int64_t c = 0; c < d; c++)
                                own_keys[here / 16 * 16 * d + 16 * c + here % 16] = qkv[i * Q + (H + j) * d + c];
                            memcpy(own_values + (positions[i] - length) * d, qkv + i * Q + (H + J + j) * d,
                                   d * sizeof(float));
                        }
                        product(rows_of(qkv + i * Q + h * d, Q), panels_of(own_keys, d),
                                (Out){scores + i * longest + begin, longest}, 1, count, d, 0);
                        softmax(scores + i * longest, positions[i] + 1, 0, score_scale(s));
                    }
                    product(rows_of(scores + a * longest, longest), plain(prompt_values, Q), to, b - a, d / 16, common, 0);
                    product(rows_of(scores + a * longest + common, longest), plain(prompt_values + u->ends[g] * Q, Q),
                            to, b - a, d / 16, rest, 1);
                    for (int64_t i = a; i < b; i++) {
                        float *own_values = t.values + slot_of[i] * value_floats + (layer * J + j) * limit * d;
                        product(rows_of(scores + i * longest + length, longest), plain(own_values, d),
                                (Out){t.attended + i * Hd + h * d, Hd}, 1, d / 16, positions[i] - length + 1, 1);
                    }
                }
            }
            after_attention(s, w, p, x, n, t.attended, t.normed, t.scale, t.gate_up, t.inner, t.out);
        }
        normalize(x, D, n, D, weights + o.norm, s->eps, t.normed, D, t.scale, t.out, D);
        product(rows_of(t.out, D), panels_of(panels + o.embed, D), (Out){t.logits, V}, n, V / 16, D, 0);
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t row = row_of[i], at = row * limit + lengths[row];
            tokens[at] = sample(s, t.logits + i * V, r->noise[at], result + at);
            lengths[row]++;
            if (r->is_end[tokens[at]] || lengths[row] == limit) {
                in_use[slot_of[i]] = 0;
            } else {
                row_of[kept] = row;
                group_of[kept] = group_of[i];
                slot_of[kept++] = slot_of[i];
            }
        }
        n = kept;
    }
    free(layers);
    free(panel_of);
    free(row_of);
    free(memory.at);
}

/* ── optimizer and loss ───────────────────────────────────────────────────────────────────────── */

/* The sum of squares, in double. */
double sum_squares(int64_t count, const float *x) {
    double sums[16] = {0};
    for (int64_t i = 0; i < count; i++) sums[i % 16] += (double)x[i] * x[i];
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) sums[i] += sums[i + width];
    return sums[0];
}

typedef struct {
    float decay, beta1, beta2, rest1, rest2, step_size, correction, eps; /* rest: 1 - beta; correction of √v */
} AdamW;

void adamw(int64_t count, const AdamW *o, const float *grad, float *weight, float *mean, float *square) {
    for (int64_t i = 0; i < count; i++) {
        mean[i] = mean[i] * o->beta1 + grad[i] * o->rest1;
        square[i] = square[i] * o->beta2 + grad[i] * grad[i] * o->rest2;
        float root = __builtin_sqrtf(square[i]) / o->correction + o->eps;
        weight[i] = weight[i] * o->decay - o->step_size * mean[i] / root;
    }
}
