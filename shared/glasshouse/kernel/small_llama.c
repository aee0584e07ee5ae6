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
   MLP, V vocabulary. All widths but V are multiples of 16. */

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
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
#elif LANES == 8
INLINE vec fused(vec a, vec b, vec c) { return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vec larger(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
#else
INLINE vec smaller(vec a, vec b) { return blend(a < b, a, b); }
INLINE vec larger(vec a, vec b) { return blend(a > b, a, b); }
#if defined(__aarch64__)
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
#endif

/* Sixteen numbers: the unit in which sums are divided, whatever the registers are. */
typedef struct {
    vec part[PARTS];
} vec16;

#define EACH(i) UNROLL for (int i = 0; i < PARTS; i++)
#define OPERATION(name, result)                                                                                        \
    INLINE vec16 name(vec16 a, vec16 b) {                                                                              \
        EACH(i) a.part[i] = result;                                                                                    \
        return a;                                                                                                      \
    }
OPERATION(add16, a.part[i] + b.part[i])
OPERATION(sub16, a.part[i] - b.part[i])
OPERATION(mul16, a.part[i] *b.part[i])
OPERATION(div16, a.part[i] / b.part[i])
OPERATION(max16, larger(a.part[i], b.part[i]))

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
INLINE vec16 fma16(vec16 a, vec16 b, vec16 c) {
    EACH(i) c.part[i] = fused(a.part[i], b.part[i], c.part[i]);
    return c;
}

/* The first `count` numbers of a, the others of b. */
INLINE vec16 first16(vec16 a, int64_t count, vec16 b) {
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    EACH(i) {
        ints lanes;
        memcpy(&lanes, lane + i * LANES, sizeof lanes);
        a.part[i] = blend(lanes < (int32_t)count, a.part[i], b.part[i]);
    }
    return a;
}

/* Combines the halves until one number is left. */
#if LANES == 16
#define SECOND_HALF(v, n)                                                                                              \
    __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, 8, 9, 10, 11,    \
                            12, 13, 14, 15)
#elif LANES == 8
#define SECOND_HALF(v, n) __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3, 4, 5, 6, 7)
#else
#define SECOND_HALF(v, n) __builtin_shufflevector(v, v, (n), (n) + 1, 2, 3)
#endif
#define REDUCTION(name, combined)                                                                                      \
    INLINE float name(vec16 x) {                                                                                       \
        vec a, b;                                                                                                      \
        UNROLL for (int width = PARTS / 2; width; width /= 2) UNROLL for (int i = 0; i < width; i++) {                 \
            a = x.part[i], b = x.part[i + width];                                                                      \
            x.part[i] = combined;                                                                                      \
        }                                                                                                              \
        a = x.part[0];                                                                                                 \
        if (LANES > 8) b = SECOND_HALF(a, 8 % LANES), a = combined;                                                    \
        if (LANES > 4) b = SECOND_HALF(a, 4 % LANES), a = combined;                                                    \
        b = SECOND_HALF(a, 2), a = combined;                                                                           \
        b = SECOND_HALF(a, 1), a = combined;                                                                           \
        return a[0];                                                                                                   \
    }
REDUCTION(sum16, a + b)
REDUCTION(largest16, larger(a, b))

/* Cephes: 2ⁿ times a polynomial of the rest; x is limited to ±87. */
INLINE vec exp_vec(vec x) {
    x = larger(smaller(x, splat(87.0f)), splat(-87.0f));
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

/* Writes a row as column n of panels `(…, d, 16)`. */
static void put_column(const float *row, int64_t width, int64_t n, float *panels) {
    float *to = panels + n / 16 * 16 * width + n % 16;
    for (int64_t i = 0; i < width; i++) to[16 * i] = row ? row[i] : 0;
}

/* Panels `(n / 16, d, 16)` of the transposed rows `(n, d)` from column `first` on, the last filled with zeros. */
static void pack_rows(const float *rows, int64_t stride, int64_t count, int64_t width, int64_t first, float *panels) {
    for (int64_t n = 0; n < count; n++) put_column(rows + n * stride, width, first + n, panels);
    for (int64_t n = first + count; n % 16; n++) put_column(NULL, width, n, panels);
}

/* ── the model ────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    int64_t layers, D, H, J, d, M, V, tied, has_bias, has_qk_norm, padding_token, greedy;
    float eps, temperature;
    const float *cos, *sin; /* (positions, d / 2) */
    const float *weights, *panels;
} Model;

/* Where the parameters of a layer begin, relative to the layer; those without a layer, in the whole array. */
typedef struct {
    int64_t input_norm, qkv, qkv_bias, q_norm, k_norm, out, mlp_norm, gate_up, down, layer;
    int64_t norm, embed, head, total;
} Offsets;

INLINE int64_t qkv_width(const Model *m) { return (m->H + 2 * m->J) * m->d; }
INLINE int64_t padded_vocabulary(const Model *m) { return 16 * panels_for(m->V); }

static Offsets offsets_of(const Model *m) {
    int64_t D = m->D, Q = qkv_width(m), norm = m->has_qk_norm ? m->d : 0;
    Offsets o;
    o.input_norm = 0;
    o.qkv = D;
    o.qkv_bias = o.qkv + Q * D;
    o.q_norm = o.qkv_bias + (m->has_bias ? Q : 0);
    o.k_norm = o.q_norm + norm;
    o.out = o.k_norm + norm;
    o.mlp_norm = o.out + D * m->H * m->d;
    o.gate_up = o.mlp_norm + D;
    o.down = o.gate_up + 2 * m->M * D;
    o.layer = o.down + D * m->M;
    o.norm = m->layers * o.layer;
    o.embed = o.norm + D;
    o.head = m->tied ? o.embed : o.embed + m->V * D;
    o.total = o.head + m->V * D;
    return o;
}

int64_t parameter_count(const Model *m) { return offsets_of(m).total; }
int64_t panel_count(const Model *m) { return offsets_of(m).embed + padded_vocabulary(m) * m->D; }

/* The matrices of the weights as panels, at the same offsets; the head lies where the embeddings begin. */
void pack_weights(const Model *m, float *panels) {
    Offsets o = offsets_of(m);
    int64_t D = m->D, Hd = m->H * m->d;
    for (int64_t layer = 0; layer < m->layers; layer++) {
        const float *from = m->weights + layer * o.layer;
        float *to = panels + layer * o.layer;
        pack_rows(from + o.qkv, D, qkv_width(m), D, 0, to + o.qkv);
        pack_rows(from + o.out, Hd, D, Hd, 0, to + o.out);
        pack_rows(from + o.gate_up, D, 2 * m->M, D, 0, to + o.gate_up);
        pack_rows(from + o.down, m->M, D, m->M, 0, to + o.down);
    }
    pack_rows(m->weights + o.head, D, m->V, D, 0, panels + o.embed);
}

/* A prompt, which may be empty, and its samples; or what prompts begin with, and the rest of each. Segment -1 is the
   prompt, which attends to itself only; others attend to the prompt and to themselves. */
typedef struct {
    int64_t prompt, samples, targets;       /* numbers of tokens, samples, tokens to predict */
    const int64_t *ends;                    /* (samples + 1) where the rows of each sample begin; ends[0] is `prompt` */
    const int64_t *tokens, *positions;      /* (N) */
    const int64_t *target_tokens, *outputs; /* (targets) the token, and the row that predicts it, from the last of the
                                               prompt on */
} Unit;

INLINE int64_t rows_in(const Unit *u) { return u->ends[u->samples]; }
INLINE int64_t outputs_in(const Unit *u) { return rows_in(u) - u->prompt + 1; }

typedef struct {
    int64_t before, first, rows, padded; /* padded: the number of keys, a multiple of 16 */
} Segment;

static Segment segment_of(const Unit *u, int64_t n) {
    Segment g = {n < 0 ? 0 : u->prompt, n < 0 ? 0 : u->ends[n], 0, 0};
    g.rows = n < 0 ? u->prompt : u->ends[n + 1] - u->ends[n];
    g.padded = 16 * panels_for(g.before + g.rows);
    return g;
}

/* ── memory ───────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    float *at;
    int64_t size;
} Memory; /* `at` is NULL if only the size is asked for */

static float *take(Memory *memory, int64_t count) {
    float *start = memory->at ? memory->at + memory->size : NULL;
    memory->size += 16 * panels_for(count);
    return start;
}

/* What the backward pass needs of a layer. */
typedef struct {
    float *x, *qkv, *raw; /* raw: queries and keys before Qwen3's norms */
    float *weights;       /* of attention, for each segment (H, rows, padded) */
    float *attended, *mlp_x, *gate_up;
} Layer;

static Layer take_layer(const Model *m, const Unit *u, Memory *memory) {
    int64_t N = rows_in(u), scores = 0;
    for (int64_t n = -1; n < u->samples; n++) scores += m->H * segment_of(u, n).rows * segment_of(u, n).padded;
    Layer l;
    l.x = take(memory, N * m->D);
    l.qkv = take(memory, N * qkv_width(m));
    l.raw = take(memory, m->has_qk_norm ? N * (m->H + m->J) * m->d : 0);
    l.weights = take(memory, scores);
    l.attended = take(memory, N * m->H * m->d);
    l.mlp_x = take(memory, N * m->D);
    l.gate_up = take(memory, N * 2 * m->M);
    return l;
}

/* Floats that `logprobs` writes for `backward`: the layers, then hidden states and probabilities of the outputs. */
int64_t tape_size(const Model *m, const Unit *u) {
    Memory memory = {NULL, 0};
    for (int64_t layer = 0; layer < m->layers; layer++) take_layer(m, u, &memory);
    return memory.size + outputs_in(u) * (m->D + padded_vocabulary(m));
}

#define BLOCK 96  /* rows that pass through a part of a layer together, so that they stay in the cache */
#define CAUSAL 24 /* rows whose keys end at the same panel */
#define BLOCKS(a, b, size, count)                                                                                      \
    for (int64_t a = 0, b; (b = a + (size) < (count) ? a + (size) : (count)), a < (count); a = b)

/* What a pass over a unit needs besides. */
typedef struct {
    float *x, *of_attended, *of_qkv, *sums;             /* of all rows */
    float *normed, *of_normed, *raw, *inner, *of_inner; /* of a block */
    float *panels, *of_weights;                         /* of a segment */
} Work;

static Work take_work(const Model *m, const Unit *u, Memory *memory) {
    int64_t N = rows_in(u), longest = 0;
    for (int64_t n = -1; n < u->samples; n++)
        if (segment_of(u, n).padded > longest) longest = segment_of(u, n).padded;
    Work w;
    w.x = take(memory, N * m->D);
    w.of_attended = take(memory, N * m->H * m->d);
    w.of_qkv = take(memory, N * qkv_width(m));
    w.sums = take(memory, N + 1);
    w.normed = take(memory, BLOCK * m->D);
    w.of_normed = take(memory, BLOCK * m->D);
    w.inner = take(memory, BLOCK * m->M);
    w.of_inner = take(memory, BLOCK * m->M);
    w.panels = take(memory, longest * m->d);
    w.of_weights = take(memory, CAUSAL * longest);
    return w;
}

/* Memory of this thread that is used again in every call. */
static float *scratch(int64_t count) {
    static _Thread_local float *memory;
    static _Thread_local int64_t size;
    if (size < count) {
        free(memory);
        size = 16 * panels_for(count + count / 4);
        memory = aligned_alloc(64, size * sizeof(float));
        if (!memory) abort();
    }
    return memory;
}

static Work make_work(const Model *m, const Unit *u) {
    Memory size = {NULL, 0};
    take_work(m, u, &size);
    Memory memory = {scratch(size.size), 0};
    return take_work(m, u, &memory);
}

/* ── parts of a layer ─────────────────────────────────────────────────────────────────────────── */

INLINE float scale_of(const float *x, int64_t width, float eps) {
    vec16 squares = splat16(0);
    for (int64_t j = 0; j < width; j += 16) squares = fma16(load16(x + j), load16(x + j), squares);
    return 1.0f / __builtin_sqrtf(sum16(squares) / (float)width + eps);
}

/* Rows of x divided by their root mean square, times the gain. */
static void normalize(const float *x, int64_t rows, int64_t width, const float *gain, float eps, float *out) {
    for (int64_t i = 0; i < rows; i++, x += width, out += width) {
        vec16 scale = splat16(scale_of(x, width, eps));
        for (int64_t j = 0; j < width; j += 16)
            store16(out + j, mul16(mul16(load16(x + j), scale), load16(gain + j)));
    }
}

/* From the gradient of `out`, adds those of the gain and of x (with `add`, else writes the latter). */
static void normalize_backward(const float *grad, const float *x, int64_t rows, int64_t width, const float *gain,
                               float eps, float *grad_gain, float *grad_x, int add) {
    for (int64_t i = 0; i < rows; i++, grad += width, x += width, grad_x += width) {
        vec16 products = splat16(0), scale = splat16(scale_of(x, width, eps));
        for (int64_t j = 0; j < width; j += 16) {
            vec16 g = load16(grad + j), normed = mul16(load16(x + j), scale);
            products = fma16(mul16(g, load16(gain + j)), normed, products);
            store16(grad_gain + j, fma16(g, normed, load16(grad_gain + j)));
        }
        vec16 mean = splat16(-sum16(products) / (float)width);
        for (int64_t j = 0; j < width; j += 16) {
            vec16 g = mul16(load16(grad + j), load16(gain + j)), normed = mul16(load16(x + j), scale);
            vec16 of_x = mul16(fma16(normed, mean, g), scale);
            store16(grad_x + j, add ? add16(load16(grad_x + j), of_x) : of_x);
        }
    }
}

/* Rotates queries and keys of a row in place; backwards with `sign` -1. */
static void rotate(const Model *m, float *row, int64_t position, float sign) {
    int64_t half = m->d / 2;
    const float *cosines = m->cos + position * half, *sines = m->sin + position * half;
    for (int64_t h = 0; h < m->H + m->J; h++, row += 2 * half)
        for (int64_t j = 0; j < half; j++) {
            float a = row[j], b = row[half + j], sine = sines[j] * sign;
            row[j] = a * cosines[j] - b * sine;
            row[half + j] = b * cosines[j] + a * sine;
        }
}

/* Replaces `valid` numbers x by exp(x scale / temperature - largest), those up to the end of the panel by 0; returns
   the sum, and the largest number. */
static float exponentials(float *row, int64_t valid, float scale, float temperature, float *largest) {
    vec16 lowest = splat16(-1e30f), most = lowest, zero = splat16(0), sums = zero;
    for (int64_t j = 0; j < valid; j += 16) {
        vec16 x = mul16(load16(row + j), splat16(scale));
        if (temperature != 1.0f) x = div16(x, splat16(temperature));
        if (valid - j < 16) x = first16(x, valid - j, lowest);
        most = max16(most, x);
        store16(row + j, x);
    }
    *largest = largest16(most);
    for (int64_t j = 0; j < valid; j += 16) {
        vec16 e = exp16(sub16(load16(row + j), splat16(*largest)));
        if (valid - j < 16) e = first16(e, valid - j, zero);
        sums = add16(sums, e);
        store16(row + j, e);
    }
    return sum16(sums);
}

static void multiply_row(float *row, int64_t count, float factor) {
    for (int64_t j = 0; j < count; j++) row[j] *= factor;
}

/* Attention weights of a row with `valid` keys. */
static void attention_weights(const Model *m, float *row, int64_t valid) {
    float largest, total = exponentials(row, valid, 1.0f / __builtin_sqrtf((float)m->d), 1.0f, &largest);
    multiply_row(row, 16 * panels_for(valid), 1.0f / total);
}

/* qkv `(rows, Q)` of x: normalized, projected, with Qwen3's norms, rotated. */
static void project_qkv(const Model *m, int64_t layer, const float *x, int64_t rows, const int64_t *positions,
                        float *normed, float *raw, float *qkv) {
    Offsets o = offsets_of(m);
    const float *w = m->weights + layer * o.layer, *panels = m->panels + layer * o.layer;
    int64_t D = m->D, Q = qkv_width(m), d = m->d, queries = m->H * d, both = queries + m->J * d;
    normalize(x, rows, D, w + o.input_norm, m->eps, normed);
    for (int64_t i = 0; i < rows && m->has_bias; i++) memcpy(qkv + i * Q, w + o.qkv_bias, Q * sizeof(float));
    product(rows_of(normed, D), panels_of(panels + o.qkv, D), (Out){qkv, Q}, rows, Q / 16, D, m->has_bias != 0);
    for (int64_t i = 0; i < rows; i++) {
        float *row = qkv + i * Q, *before = raw + i * both;
        if (m->has_qk_norm) {
            memcpy(before, row, both * sizeof(float));
            normalize(before, m->H, d, w + o.q_norm, m->eps, row);
            normalize(before + queries, m->J, d, w + o.k_norm, m->eps, row + queries);
        }
        rotate(m, row, positions[i], 1.0f);
    }
}

/* The rest of a layer: adds the output of attention, then that of the MLP to x; `mlp_x` is x between the two. */
static void finish_layer(const Model *m, int64_t layer, float *x, int64_t rows, const float *attended, float *mlp_x,
                         float *gate_up, float *normed, float *inner) {
    Offsets o = offsets_of(m);
    const float *panels = m->panels + layer * o.layer;
    int64_t D = m->D, M = m->M, Hd = m->H * m->d;
    product(rows_of(attended, Hd), panels_of(panels + o.out, Hd), (Out){x, D}, rows, D / 16, Hd, 1);
    memcpy(mlp_x, x, rows * D * sizeof(float));
    normalize(x, rows, D, m->weights + layer * o.layer + o.mlp_norm, m->eps, normed);
    product(rows_of(normed, D), panels_of(panels + o.gate_up, D), (Out){gate_up, 2 * M}, rows, 2 * M / 16, D, 0);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < M; j += 16) {
            vec16 g = load16(gate_up + i * 2 * M + j), u = load16(gate_up + i * 2 * M + M + j);
            store16(inner + i * M + j, mul16(mul16(g, sigmoid16(g)), u));
        }
    product(rows_of(inner, M), panels_of(panels + o.down, M), (Out){x, D}, rows, D / 16, M, 1);
}

/* Panels of keys or values (those after `from`) of a segment, after those of the prompt's full panels. */
static void pack_segment(const float *from, int64_t Q, int64_t d, Segment g, float *panels) {
    int64_t packed = g.before / 16 * 16;
    pack_rows(from + packed * Q, Q, g.before - packed, d, packed, panels);
    pack_rows(from + g.first * Q, Q, g.rows, d, g.before, panels);
}

static void attend(const Model *m, const Unit *u, const Layer *l, float *panels) {
    int64_t d = m->d, Q = qkv_width(m), H = m->H, shared = H / m->J, Hd = H * d;
    for (int64_t j = 0; j < m->J; j++) {
        const float *k = l->qkv + (H + j) * d, *v = k + m->J * d;
        float *weights = l->weights;
        pack_rows(k, Q, u->prompt / 16 * 16, d, 0, panels);
        for (int64_t n = -1; n < u->samples; n++) {
            Segment g = segment_of(u, n);
            int64_t L = g.padded;
            pack_segment(k, Q, d, g, panels);
            for (int64_t h = j * shared; h < (j + 1) * shared; h++)
                BLOCKS(a, b, CAUSAL, g.rows) {
                    float *w = weights + (h * g.rows + a) * L;
                    int64_t row = g.first + a, keys = 16 * panels_for(g.before + b);
                    Out to = {l->attended + row * Hd + h * d, Hd};
                    product(rows_of(l->qkv + row * Q + h * d, Q), panels_of(panels, d), (Out){w, L}, b - a, keys / 16,
                            d, 0);
                    for (int64_t i = a; i < b; i++) {
                        float *own = w + (i - a) * L;
                        attention_weights(m, own, g.before + i + 1);
                        for (int64_t t = 16 * panels_for(g.before + i + 1); t < keys; t++) own[t] = 0;
                    }
                    product(rows_of(w, L), plain(v, Q), to, b - a, d / 16, g.before, 0);
                    product(rows_of(w + g.before, L), plain(v + g.first * Q, Q), to, b - a, d / 16, b, 1);
                }
            weights += H * g.rows * L;
        }
    }
}

/* x `(N, D)` of all rows after a layer; `l` is what the backward pass needs. */
static void forward_layer(const Model *m, int64_t layer, const Unit *u, const Layer *l, const Work *w) {
    int64_t N = rows_in(u), D = m->D, Hd = m->H * m->d, both = (m->H + m->J) * m->d;
    memcpy(l->x, w->x, N * D * sizeof(float));
    BLOCKS(a, b, BLOCK, N)
        project_qkv(m, layer, l->x + a * D, b - a, u->positions + a, w->normed, l->raw + a * both,
                    l->qkv + a * qkv_width(m));
    attend(m, u, l, w->panels);
    BLOCKS(a, b, BLOCK, N)
        finish_layer(m, layer, w->x + a * D, b - a, l->attended + a * Hd, l->mlp_x + a * D, l->gate_up + a * 2 * m->M,
                     w->normed, w->inner);
}

static void embed(const Model *m, const int64_t *tokens, int64_t rows, float *x) {
    const float *table = m->weights + offsets_of(m).embed;
    for (int64_t i = 0; i < rows; i++) memcpy(x + i * m->D, table + tokens[i] * m->D, m->D * sizeof(float));
}

static void logits_of(const Model *m, const float *x, int64_t rows, float *normed, float *logits) {
    Offsets o = offsets_of(m);
    int64_t D = m->D, V = padded_vocabulary(m);
    normalize(x, rows, D, m->weights + o.norm, m->eps, normed);
    product(rows_of(normed, D), panels_of(m->panels + o.embed, D), (Out){logits, V}, rows, V / 16, D, 0);
}

/* Log-probabilities of the targets of a unit. The last token of a sample is a target, but no row of the unit. */
void logprobs(const Model *m, const Unit *u, float *tape, float *result) {
    int64_t D = m->D, V = padded_vocabulary(m), outputs = outputs_in(u);
    Work w = make_work(m, u);
    Memory memory = {tape, 0};
    embed(m, u->tokens, rows_in(u), w.x);
    for (int64_t layer = 0; layer < m->layers; layer++) {
        Layer l = take_layer(m, u, &memory);
        forward_layer(m, layer, u, &l, &w);
    }
    float *hidden = take(&memory, outputs * D), *logits = take(&memory, outputs * V);
    memcpy(hidden, w.x + (u->prompt - 1) * D, outputs * D * sizeof(float));
    BLOCKS(a, b, BLOCK, outputs) logits_of(m, hidden + a * D, b - a, w.normed, logits + a * V);
    for (int64_t k = 0; k < u->targets; k++)
        result[k] = logits[u->outputs[k] * V + u->target_tokens[k]] / m->temperature;
    double *normalizers = (double *)w.of_qkv;
    for (int64_t i = 0; i < outputs; i++) { /* the tape has probabilities */
        float largest, total = exponentials(logits + i * V, m->V, 1.0f, m->temperature, &largest);
        normalizers[i] = largest + log_of(total);
        multiply_row(logits + i * V, V, 1.0f / total);
    }
    for (int64_t k = 0; k < u->targets; k++) result[k] = (float)(result[k] - normalizers[u->outputs[k]]);
}

/* ── gradients ────────────────────────────────────────────────────────────────────────────────── */

/* Gradients of q, k and v `(N, Q)` from those of the output of attention `(N, H d)`. */
static void attend_backward(const Model *m, const Unit *u, const Layer *l, const Work *work) {
    int64_t d = m->d, Q = qkv_width(m), H = m->H, shared = H / m->J, Hd = H * d;
    float *of_weights = work->of_weights, *of_qkv = work->of_qkv;
    vec16 scale = splat16(1.0f / __builtin_sqrtf((float)d));
    memset(of_qkv, 0, rows_in(u) * Q * sizeof(float));
    for (int64_t j = 0; j < m->J; j++) {
        int64_t key = (H + j) * d, value = key + m->J * d;
        const float *weights = l->weights;
        pack_rows(l->qkv + value, Q, u->prompt / 16 * 16, d, 0, work->panels);
        for (int64_t n = -1; n < u->samples; n++) {
            Segment g = segment_of(u, n);
            int64_t L = g.padded;
            pack_segment(l->qkv + value, Q, d, g, work->panels);
            for (int64_t h = j * shared; h < (j + 1) * shared; h++)
                BLOCKS(a, b, CAUSAL, g.rows) {
                    int64_t row = g.first + a, keys = 16 * panels_for(g.before + b);
                    const float *w = weights + (h * g.rows + a) * L, *q = l->qkv + row * Q + h * d;
                    const float *x = l->attended + row * Hd + h * d, *dx = work->of_attended + row * Hd + h * d;
                    product(rows_of(dx, Hd), panels_of(work->panels, d), (Out){of_weights, L}, b - a, keys / 16, d, 0);
                    for (int64_t i = 0; i < b - a; i++) {
                        vec16 products = splat16(0);
                        for (int64_t c = 0; c < d; c += 16)
                            products = fma16(load16(x + i * Hd + c), load16(dx + i * Hd + c), products);
                        vec16 mean = splat16(sum16(products));
                        for (int64_t c = i * L; c < i * L + keys; c += 16)
                            store16(of_weights + c,
                                    mul16(mul16(load16(w + c), sub16(load16(of_weights + c), mean)), scale));
                    }
                    int64_t firsts[2] = {0, g.first * Q}, counts[2] = {g.before, b}, columns[2] = {0, g.before};
                    for (int part = 0; part < 2; part++) { /* the keys of the prompt, then its own */
                        int64_t at = firsts[part], count = counts[part], column = columns[part];
                        product(columns_of(w + column, L), plain(dx, Hd), (Out){of_qkv + at + value, Q}, count, d / 16,
                                b - a, 1);
                        product(rows_of(of_weights + column, L), plain(l->qkv + at + key, Q),
                                (Out){of_qkv + row * Q + h * d, Q}, b - a, d / 16, count, 1);
                        product(columns_of(of_weights + column, L), plain(q, Q), (Out){of_qkv + at + key, Q}, count,
                                d / 16, b - a, 1);
                    }
                }
            weights += H * g.rows * L;
        }
    }
}

/* Gradients of a layer's weights, and of x before it from those after it. */
static void backward_layer(const Model *m, int64_t layer, const Unit *u, const Layer *l, const Work *work,
                           float *grads) {
    Offsets o = offsets_of(m);
    const float *w = m->weights + layer * o.layer;
    float *g = grads + layer * o.layer, *normed = work->normed, *of_normed = work->of_normed, *of_inner = work->of_inner;
    int64_t N = rows_in(u), D = m->D, M = m->M, Q = qkv_width(m), d = m->d, Hd = m->H * d, both = Hd + m->J * d;
    BLOCKS(a, b, BLOCK, N) {
        int64_t rows = b - a;
        float *of_x = work->x + a * D, *gate_up = l->gate_up + a * 2 * M;
        product(rows_of(of_x, D), plain(w + o.down, M), (Out){of_inner, M}, rows, M / 16, D, 0);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < M; j += 16) { /* gate and up become their gradients */
                float *gate = gate_up + i * 2 * M + j;
                vec16 x = load16(gate), up = load16(gate + M), grad = load16(of_inner + i * M + j);
                vec16 sigmoid = sigmoid16(x), silu = mul16(x, sigmoid);
                store16(work->inner + i * M + j, mul16(silu, up));
                store16(gate, mul16(mul16(grad, up), fma16(silu, sub16(splat16(1), sigmoid), sigmoid)));
                store16(gate + M, mul16(grad, silu));
            }
        product(columns_of(of_x, D), plain(work->inner, M), (Out){g + o.down, M}, D, M / 16, rows, 1);
        normalize(l->mlp_x + a * D, rows, D, w + o.mlp_norm, m->eps, normed);
        product(columns_of(gate_up, 2 * M), plain(normed, D), (Out){g + o.gate_up, D}, 2 * M, D / 16, rows, 1);
        product(rows_of(gate_up, 2 * M), plain(w + o.gate_up, D), (Out){of_normed, D}, rows, D / 16, 2 * M, 0);
        normalize_backward(of_normed, l->mlp_x + a * D, rows, D, w + o.mlp_norm, m->eps, g + o.mlp_norm, of_x, 1);
        product(columns_of(of_x, D), plain(l->attended + a * Hd, Hd), (Out){g + o.out, Hd}, D, Hd / 16, rows, 1);
        product(rows_of(of_x, D), plain(w + o.out, Hd), (Out){work->of_attended + a * Hd, Hd}, rows, Hd / 16, D, 0);
    }
    attend_backward(m, u, l, work);
    for (int64_t i = 0; i < N; i++) {
        float *row = work->of_qkv + i * Q, *raw = l->raw + i * both;
        rotate(m, row, u->positions[i], -1.0f);
        if (m->has_qk_norm) {
            normalize_backward(row, raw, m->H, d, w + o.q_norm, m->eps, g + o.q_norm, row, 0);
            normalize_backward(row + Hd, raw + Hd, m->J, d, w + o.k_norm, m->eps, g + o.k_norm, row + Hd, 0);
        }
        for (int64_t j = 0; j < Q && m->has_bias; j++) g[o.qkv_bias + j] += row[j];
    }
    BLOCKS(a, b, BLOCK, N) {
        const float *of_qkv = work->of_qkv + a * Q;
        normalize(l->x + a * D, b - a, D, w + o.input_norm, m->eps, normed);
        product(columns_of(of_qkv, Q), plain(normed, D), (Out){g + o.qkv, D}, Q, D / 16, b - a, 1);
        product(rows_of(of_qkv, Q), plain(w + o.qkv, D), (Out){of_normed, D}, b - a, D / 16, Q, 0);
        normalize_backward(of_normed, l->x + a * D, b - a, D, w + o.input_norm, m->eps, g + o.input_norm,
                           work->x + a * D, 1);
    }
}

/* Writes the gradients of all weights, given those of the log-probabilities; overwrites the tape. */
void backward(const Model *m, const Unit *u, const float *grad_logprobs, float *tape, float *grads) {
    Offsets o = offsets_of(m);
    int64_t D = m->D, V = padded_vocabulary(m), outputs = outputs_in(u);
    Work w = make_work(m, u);
    Memory memory = {tape, 0};
    Layer layers[m->layers];
    for (int64_t layer = 0; layer < m->layers; layer++) layers[layer] = take_layer(m, u, &memory);
    float *hidden = take(&memory, outputs * D), *of_logits = take(&memory, outputs * V);
    memset(grads, 0, o.total * sizeof(float));
    memset(w.x, 0, rows_in(u) * D * sizeof(float)); /* from here on the gradient of x */
    memset(w.sums, 0, outputs * sizeof(float));
    for (int64_t k = 0; k < u->targets; k++) w.sums[u->outputs[k]] += grad_logprobs[k] / m->temperature;
    for (int64_t i = 0; i < outputs; i++) multiply_row(of_logits + i * V, V, -w.sums[i]);
    for (int64_t k = 0; k < u->targets; k++)
        of_logits[u->outputs[k] * V + u->target_tokens[k]] += grad_logprobs[k] / m->temperature;
    BLOCKS(a, b, BLOCK, outputs) {
        const float *grad = of_logits + a * V;
        normalize(hidden + a * D, b - a, D, m->weights + o.norm, m->eps, w.normed);
        product(columns_of(grad, V), plain(w.normed, D), (Out){grads + o.head, D}, m->V, D / 16, b - a, 1);
        product(rows_of(grad, V), plain(m->weights + o.head, D), (Out){w.of_normed, D}, b - a, D / 16, m->V, 0);
        normalize_backward(w.of_normed, hidden + a * D, b - a, D, m->weights + o.norm, m->eps, grads + o.norm,
                           w.x + (u->prompt - 1 + a) * D, 1);
    }
    for (int64_t layer = m->layers - 1; layer >= 0; layer--) backward_layer(m, layer, u, layers + layer, &w, grads);
    for (int64_t i = 0; i < rows_in(u); i++)
        if (u->tokens[i] != m->padding_token)
            for (int64_t j = 0; j < D; j++) grads[o.embed + u->tokens[i] * D + j] += w.x[i * D + j];
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

static int64_t sample(const Model *m, const float *logits, float noise, float *exps, float *logprob) {
    int64_t token = 0;
    memcpy(exps, logits, padded_vocabulary(m) * sizeof(float));
    float largest, total = exponentials(exps, m->V, 1.0f, m->temperature, &largest);
    if (!m->greedy) token = choose(exps, m->V, total, noise);
    for (int64_t n = 1; n < m->V && m->greedy; n++)
        if (logits[n] > logits[token]) token = n;
    *logprob = (float)(logits[token] / m->temperature - (largest + log_of(total)));
    return token;
}

typedef struct {
    int64_t groups, max_tokens, slots;
    const int64_t *rows;   /* (groups + 1) where the samples of each prompt begin */
    const float *noise;    /* (rows, max_tokens) */
    const uint8_t *is_end; /* (V) */
} Requests;

typedef struct {
    int64_t row, group, slot;
} Running; /* a completion in a slot */

/* Keys and values. A prompt's are `(layers, J, groups, panels, d, 16)` and `(layers, J, groups, 16 panels, d)`, a
   slot's `(slots, layers, J, …)`. Keys after the last full panel of a prompt are the slot's. */
typedef struct {
    float *prompt_keys, *prompt_values, *keys, *values;
    float *first_logits, *logits, *exps, *x, *normed, *raw, *qkv, *attended, *mlp_x, *gate_up, *inner, *scores;
    int64_t prompt_size, slot_size, longest; /* floats of one head of a layer; numbers in a row of scores */
} Decoding;

static Decoding take_decoding(const Model *m, const Unit *u, const Requests *r, Memory *memory) {
    int64_t slots = r->slots, V = padded_vocabulary(m), heads = m->layers * m->J, most = 0;
    for (int64_t g = 0; g < r->groups; g++)
        if (u->prompt + u->ends[g + 1] - u->ends[g] > most) most = u->prompt + u->ends[g + 1] - u->ends[g];
    Decoding t;
    t.prompt_size = (most / 16 + 1) * 16 * m->d;
    t.slot_size = panels_for(r->max_tokens + 15) * 16 * m->d;
    t.longest = (t.prompt_size + t.slot_size) / m->d;
    t.prompt_keys = take(memory, heads * r->groups * t.prompt_size);
    t.prompt_values = take(memory, heads * r->groups * t.prompt_size);
    t.keys = take(memory, slots * heads * t.slot_size);
    t.values = take(memory, slots * heads * t.slot_size);
    t.first_logits = take(memory, r->groups * V);
    t.logits = take(memory, slots * V);
    t.exps = take(memory, V);
    t.x = take(memory, slots * m->D);
    t.normed = take(memory, slots * m->D);
    t.raw = take(memory, slots * (m->H + m->J) * m->d);
    t.qkv = take(memory, slots * qkv_width(m));
    t.attended = take(memory, slots * m->H * m->d);
    t.mlp_x = take(memory, slots * m->D);
    t.gate_up = take(memory, slots * 2 * m->M);
    t.inner = take(memory, slots * m->M);
    t.scores = take(memory, slots * t.longest);
    return t;
}

/* Computes the prompts: their keys and values, and the logits after their last tokens. */
static void prefill(const Model *m, const Unit *u, const Decoding *t, const Work *w, const Layer *l) {
    int64_t Q = qkv_width(m), d = m->d, D = m->D;
    embed(m, u->tokens, rows_in(u), w->x);
    for (int64_t layer = 0; layer < m->layers; layer++) {
        forward_layer(m, layer, u, l, w);
        for (int64_t j = 0; j < m->J; j++)
            for (int64_t g = 0; g < u->samples; g++) {
                int64_t at = ((layer * m->J + j) * u->samples + g) * t->prompt_size, rest = u->ends[g + 1] - u->ends[g];
                const float *k = l->qkv + (m->H + j) * d, *v = k + m->J * d;
                float *values = t->prompt_values + at;
                pack_rows(k, Q, u->prompt, d, 0, t->prompt_keys + at);
                pack_rows(k + u->ends[g] * Q, Q, rest, d, u->prompt, t->prompt_keys + at);
                for (int64_t p = 0; p < u->prompt + rest; p++, values += d)
                    memcpy(values, v + (p < u->prompt ? p : u->ends[g] + p - u->prompt) * Q, d * sizeof(float));
            }
    }
    for (int64_t g = 0; g < u->samples; g++)
        logits_of(m, w->x + (u->ends[g + 1] - 1) * D, 1, w->normed, t->first_logits + g * padded_vocabulary(m));
}

/* Attention of the new tokens of completions a to b, which have the same prompt of `length` tokens. */
static void attend_decoding(const Model *m, int64_t layer, const Decoding *t, const Running *running, int64_t a,
                            int64_t b, int64_t groups, int64_t length, const int64_t *positions) {
    int64_t Q = qkv_width(m), d = m->d, H = m->H, J = m->J, Hd = H * d, shared = H / J, L = t->longest;
    int64_t whole = length / 16, begin = 16 * whole;
    for (int64_t h = 0; h < H; h++) {
        int64_t j = h / shared, at = ((layer * J + j) * groups + running[a].group) * t->prompt_size;
        product(rows_of(t->qkv + a * Q + h * d, Q), panels_of(t->prompt_keys + at, d), (Out){t->scores + a * L, L},
                b - a, whole, d, 0);
        for (int64_t i = a; i < b; i++) {
            const float *row = t->qkv + i * Q;
            int64_t own = ((running[i].slot * m->layers + layer) * J + j) * t->slot_size, here = positions[i] - begin;
            float *keys = t->keys + own;
            if (h % shared == 0) {
                put_column(row + (H + j) * d, d, here, keys);
                memcpy(t->values + own + (positions[i] - length) * d, row + (H + J + j) * d, d * sizeof(float));
            }
            product(rows_of(row + h * d, Q), panels_of(keys, d), (Out){t->scores + i * L + begin, L}, 1,
                    panels_for(here + 1), d, 0);
            attention_weights(m, t->scores + i * L, positions[i] + 1);
        }
        product(rows_of(t->scores + a * L, L), plain(t->prompt_values + at, d), (Out){t->attended + a * Hd + h * d, Hd},
                b - a, d / 16, length, 0);
        for (int64_t i = a; i < b; i++) {
            int64_t own = ((running[i].slot * m->layers + layer) * J + j) * t->slot_size;
            product(rows_of(t->scores + i * L + length, L), plain(t->values + own, d),
                    (Out){t->attended + i * Hd + h * d, Hd}, 1, d / 16, positions[i] - length + 1, 1);
        }
    }
}

/* Samples `r->rows[g + 1] - r->rows[g]` completions of each prompt g, at most `slots` at a time: a finished one makes
   room for the next. The prompts are a unit: what all of them begin with, then the rest of each. Writes tokens and
   log-probabilities `(rows, max_tokens)` and lengths. */
void generate(const Model *m, const Unit *u, const Requests *r, int64_t *tokens, float *result, int64_t *lengths) {
    int64_t V = padded_vocabulary(m), limit = r->max_tokens, heads = m->layers * m->J, panel = 16 * m->d;
    Memory size = {NULL, 0};
    take_decoding(m, u, r, &size);
    take_work(m, u, &size);
    take_layer(m, u, &size);
    Memory memory = {scratch(size.size), 0};
    Decoding t = take_decoding(m, u, r, &memory);
    Work w = take_work(m, u, &memory);
    Layer l = take_layer(m, u, &memory);
    prefill(m, u, &t, &w, &l);
    Running running[r->slots];
    int64_t positions[r->slots], last[r->slots], prompt[r->groups], n = 0, next = 0, group = 0;
    uint8_t in_use[r->slots];
    memset(in_use, 0, r->slots);
    for (int64_t g = 0; g < r->groups; g++) prompt[g] = u->prompt + u->ends[g + 1] - u->ends[g];
    while (1) {
        for (; n < r->slots && next < r->rows[r->groups]; next++) { /* waiting rows take free slots */
            while (next >= r->rows[group + 1]) group++;
            int64_t at = next * limit, slot = 0;
            tokens[at] = sample(m, t.first_logits + group * V, r->noise[at], t.exps, result + at);
            lengths[next] = 1;
            if (r->is_end[tokens[at]] || limit == 1) continue;
            while (in_use[slot]) slot++;
            in_use[slot] = 1;
            running[n++] = (Running){next, group, slot};
            for (int64_t k = 0; k < heads; k++) /* keys after the last full panel of the prompt */
                memcpy(t.keys + (slot * heads + k) * t.slot_size,
                       t.prompt_keys + (k * r->groups + group) * t.prompt_size + prompt[group] / 16 * panel,
                       panel * sizeof(float));
        }
        if (!n) break;
        for (int64_t i = 0; i < n; i++) {
            int64_t row = running[i].row;
            last[i] = tokens[row * limit + lengths[row] - 1];
            positions[i] = prompt[running[i].group] + lengths[row] - 1;
        }
        embed(m, last, n, t.x);
        for (int64_t layer = 0; layer < m->layers; layer++) {
            project_qkv(m, layer, t.x, n, positions, t.normed, t.raw, t.qkv);
            for (int64_t a = 0, b; a < n; a = b) {
                for (b = a; b < n && running[b].group == running[a].group; b++) {}
                attend_decoding(m, layer, &t, running, a, b, r->groups, prompt[running[a].group], positions);
            }
            finish_layer(m, layer, t.x, n, t.attended, t.mlp_x, t.gate_up, t.normed, t.inner);
        }
        logits_of(m, t.x, n, t.normed, t.logits);
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t row = running[i].row, at = row * limit + lengths[row]++;
            tokens[at] = sample(m, t.logits + i * V, r->noise[at], t.exps, result + at);
            if (r->is_end[tokens[at]] || lengths[row] == limit)
                in_use[running[i].slot] = 0;
            else
                running[kept++] = running[i];
        }
        n = kept;
    }
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
