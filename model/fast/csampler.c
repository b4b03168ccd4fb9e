/* The network of quill.py for sampling on a CPU: one character of each of B texts per call, in float32.

   GPT.forward is the specification. If you change the network, sampling goes on in PyTorch until the
   same change is made here, tests/model/fast/test_csampler.py passes, and model/run/source.py has the
   digests that tests/model/run/test_source.py prints.

   PyTorch spends a few microseconds on every operation, and a small network has two hundred of them
   per character. Here that cost is gone.

   Letters as in quill.py: B texts, C channels, H heads, D head width (C / H), E = D / 2, V vocabulary.
   W is the attention window (block_size), S how much of it is filled. A matrix is stored COLUMNS outputs
   at a time; TEXTS texts share one pass over it; the token shift takes a part of the channels from each
   of the latest SHIFT positions (csampler.py sets all three). */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct { int layers, B, C, H, V, W; } sizes;
typedef float vector __attribute__((vector_size(64), aligned(4)));
enum { SET, ADD, SQUARED_RELU }; /* what to do with the result of a product */
#define INLINED static inline __attribute__((always_inline))

/* Layer normalization without gains. The sum of the squares is a double, since -ffast-math allows no infinity;
   where it is more than a float can hold, PyTorch's result is 0, too. */
static void norm(const float *x, float *out, int n) {
    float mean = 0;
    double squares = 0;
    for (int i = 0; i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) squares += (double)(x[i] - mean) * (x[i] - mean);
    float scale = squares < FLT_MAX ? 1 / sqrt(squares / n + 1e-5) : 0;
    for (int i = 0; i < n; i++) out[i] = (x[i] - mean) * scale;
}

/* y = x matrix, for COLUMNS columns and up to TEXTS texts. `in` and `out` are the lengths of a row of x and y. */
INLINED void product_tile(const float *matrix, const float *x, float *y, int texts, int columns, int in, int out,
                          int how) {
    vector sums[TEXTS][COLUMNS / 16] = {0};
    for (int i = 0; i < in; i++) {
        const vector *row = (const vector *)(matrix + i * COLUMNS);
        for (int b = 0; b < texts; b++)
            for (int v = 0; v < COLUMNS / 16; v++) sums[b][v] += x[b * in + i] * row[v];
    }
    for (int b = 0; b < texts; b++)
        for (int j = 0; j < columns; j++) {
            float sum = ((const float *)sums[b])[j], *to = y + b * out + j;
            *to = how == SET ? sum : how == ADD ? *to + sum : sum > 0 ? sum * sum : 0;
        }
}

/* y = x matrix, for B texts. Returns the address of the next weights. */
INLINED const float *product(const float *matrix, const float *x, float *y, int B, int in, int out, int how) {
    for (int j = 0; j < out; j += COLUMNS, matrix += COLUMNS * in) {
        int b = 0, columns = out - j < COLUMNS ? out - j : COLUMNS;
        for (; b + TEXTS <= B; b += TEXTS)
            product_tile(matrix, x + b * in, y + b * out + j, TEXTS, columns, in, out, how);
        for (; b < B; b++) product_tile(matrix, x + b * in, y + b * out + j, 1, columns, in, out, how);
    }
    return matrix;
}

/* Normalize x and shift a part of its channels. `latest` is a ring of the latest normalized inputs. */
static void norm_and_shift(const float *x, float *latest, float *out, sizes n, int64_t position) {
    for (int b = 0; b < n.B; b++, x += n.C, out += n.C, latest += SHIFT * n.C) {
        norm(x, latest + position % SHIFT * n.C, n.C);
        for (int back = 0, i = 0; back < SHIFT; back++) {
            const float *from = latest + (position + SHIFT - back) % SHIFT * n.C;
            for (int end = i + n.C / SHIFT + (back < n.C % SHIFT); i < end; i++) out[i] = from[i];
        }
    }
}

/* Rotate feature pairs by their position's angle. */
static void rotate(float *x, const float *cosine, const float *sine, int E) {
    for (int e = 0; e < E; e++) {
        float a = x[e], b = x[E + e];
        x[e] = a * cosine[e] - b * sine[e];
        x[E + e] = a * sine[e] + b * cosine[e];
    }
}

/* softmax(q K / sqrt(D)) V for one head. */
static void attend(const float *q, const float *K, const float *V, float *out, int S, int W, int D) {
    float weights[W + COLUMNS], sum = 0;
    product(K, q, weights, 1, D, (S + COLUMNS - 1) / COLUMNS * COLUMNS, SET);
    float largest = weights[0]; /* subtracted from all scores, so that exp cannot overflow */
    for (int s = 1; s < S; s++) largest = fmaxf(largest, weights[s]);
    for (int s = 0; s < S; s++) sum += weights[s] = expf((weights[s] - largest) / sqrtf(D));
    for (int s = 0; s < S; s++) weights[s] /= sum;
    for (int d = 0; d < D; d += COLUMNS)
        product_tile(V + d * W, weights, out + d, 1, D - d < COLUMNS ? D - d : COLUMNS, S, D, SET);
}

/* x += MLP(shift(norm(x))). `latest` as in norm_and_shift. Returns the address of the next weights. */
static const float *feed_forward(const float *weights, float *x, float *latest, float *h, float *wide,
                                 sizes n, int64_t position) {
    norm_and_shift(x, latest, h, n, position);
    weights = product(weights, h, wide, n.B, n.C, 4 * n.C, SQUARED_RELU);
    return product(weights, wide, x, n.B, 4 * n.C, n.C, ADD);
}

/* Read the characters `ids` at `position`; write the logits of the next ones. `state` holds temporary
   values, then what each block remembers of earlier positions; it starts as zeros. */
void step(const sizes *given, const float *weights, const int64_t *ids, int64_t position, float *state,
          float *logits) {
    const sizes n = *given;
    const int B = n.B, C = n.C, D = C / n.H, E = D / 2;
    const int S = position < n.W ? position + 1 : n.W, slot = position % n.W; /* keys and values are a ring */
    const int tile = slot / COLUMNS * COLUMNS, columns = (n.W + COLUMNS - 1) / COLUMNS * COLUMNS;
    float cosine[E], sine[E];
    float *x = state, *h = x + B * C, *wide = h + B * C, *memory = wide + 4 * B * C;
    for (int e = 0; e < E; e++) {
        double angle = position * pow(10000, -(double)e / E);
        cosine[e] = cos(angle);
        sine[e] = sin(angle);
    }
    for (int b = 0; b < B; b++) norm(weights + ids[b] * C, x + b * C, C);
    weights += n.V * C;
    for (int layer = 0; layer < n.layers; layer++) {
        weights = feed_forward(weights, x, memory, h, wide, n, position);
        memory += SHIFT * B * C;
        /* Attention */
        norm_and_shift(x, memory, h, n, position);
        memory += SHIFT * B * C;
        float *queries = wide, *keys = queries + B * C, *values = keys + B * C;
        weights = product(weights, h, queries, B, C, C, SET);
        weights = product(weights, h, keys, B, C, C, SET);
        weights = product(weights, h, values, B, C, C, SET);
        for (int i = 0; i < B * n.H; i++) { /* head i % H of text i / H */
            float *q = queries + i * D, *k = keys + i * D, *K = memory, *V = K + columns * D;
            rotate(q, cosine, sine, E);
            rotate(k, cosine, sine, E);
            for (int d = 0; d < D; d++) {
                K[tile * D + d * COLUMNS + slot - tile] = k[d];
                V[d / COLUMNS * COLUMNS * n.W + slot * COLUMNS + d % COLUMNS] = values[i * D + d];
            }
            attend(q, K, V, h + i * D, S, n.W, D);
            memory = V + (D + COLUMNS - 1) / COLUMNS * COLUMNS * n.W;
        }
        weights = product(weights, h, x, B, C, C, ADD);
        weights = feed_forward(weights, x, memory, h, wide, n, position);
        memory += SHIFT * B * C;
    }
    for (int b = 0; b < B; b++) norm(x + b * C, h + b * C, C);
    product(weights, h, logits, B, C, n.V, SET);
}
