/* The network of gpt.py for sampling on a CPU: one character of each of B texts at a time, in float32.

   GPT.forward is the specification, and a test holds this equal to it. What is left out here is what costs a
   small network its time there: a few microseconds for every operation, two hundred of them a character.

   Letters as in gpt.py: B texts, C channels, H heads, D head width (C / H), V vocabulary; W is the window (block_size),
   S how much of it is filled, R the shift's reach. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* COLUMNS of a matrix lie side by side, and TEXTS share one reading of it: native.py says how many. */
typedef struct { int layers, B, C, H, V, W, R; } sizes;
typedef float vector __attribute__((vector_size(64), aligned(4))); /* in as many registers as the processor needs */
enum { SET, ADD, SQUARED_RELU };
#define INLINED static inline __attribute__((always_inline))

static void norm(const float *x, float *out, int n) {
    float mean = 0, variance = 0;
    for (int i = 0; i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) out[i] = (x[i] - mean) / sqrtf(variance + 1e-5f);
}

/* y = x matrix for COLUMNS columns and a few texts; the matrix's rows lie COLUMNS apart, x's `in` and y's `out`. */
INLINED void tile(const float *matrix, const float *x, float *y, int texts, int columns, int in, int out, int how) {
    vector sums[TEXTS][COLUMNS / 16] = {0};
    for (int i = 0; i < in; i++) {
        const vector *row = (const vector *)(matrix + i * COLUMNS);
        for (int b = 0; b < texts; b++) {
            sums[b][0] += x[b * in + i] * row[0];
            sums[b][1] += x[b * in + i] * row[1];
        }
    }
    for (int b = 0; b < texts; b++)
        for (int j = 0; j < columns; j++) {
            float sum = ((const float *)sums[b])[j], *to = y + b * out + j;
            *to = how == SET ? sum : how == ADD ? *to + sum : sum > 0 ? sum * sum : 0;
        }
}

/* y = x matrix for B texts; returns where the next weights begin. */
INLINED const float *product(const float *matrix, const float *x, float *y, int B, int in, int out, int how) {
    for (int j = 0; j < out; j += COLUMNS, matrix += COLUMNS * in) {
        int b = 0, columns = out - j < COLUMNS ? out - j : COLUMNS;
        for (; b + TEXTS <= B; b += TEXTS) tile(matrix, x + b * in, y + b * out + j, TEXTS, columns, in, out, how);
        for (; b < B; b++) tile(matrix, x + b * in, y + b * out + j, 1, columns, in, out, how);
    }
    return matrix;
}

/* x, normalised, and shares of the R before it, which `last` remembers; returns where the next weights begin. */
static const float *shift(const float *share, const float *x, float *last, float *out, sizes n, int64_t position) {
    for (int b = 0; b < n.B; b++, x += n.C, out += n.C, last += n.R * n.C) {
        float now[n.C];
        norm(x, now, n.C);
        memcpy(out, now, sizeof now);
        for (int back = 1; back <= n.R; back++) {
            const float *before = last + (position + n.R - back) % n.R * n.C;
            for (int i = 0; i < n.C; i++) out[i] += share[(back - 1) * n.C + i] * before[i];
        }
        memcpy(last + position % n.R * n.C, now, sizeof now);
    }
    return share + n.R * n.C;
}

static void rotate(float *x, const float *cosine, const float *sine, int E) {
    for (int e = 0; e < E; e++) {
        float a = x[e], b = x[E + e];
        x[e] = a * cosine[e] - b * sine[e];
        x[E + e] = a * sine[e] + b * cosine[e];
    }
}

/* softmax(q K / sqrt(D)) V: two products, of keys that lie side by side and of values below each other.
   Normalised, q and k are no longer than sqrt(D), nor is a score: exp is safe to heads some 7,000 wide. */
static void attend(const float *q, const float *K, const float *V, float *out, int S, int W, int D) {
    float weights[W + COLUMNS], sum = 0;
    product(K, q, weights, 1, D, (S + COLUMNS - 1) / COLUMNS * COLUMNS, SET);
    for (int s = 0; s < S; s++) sum += weights[s] = expf(weights[s] / sqrtf(D));
    for (int s = 0; s < S; s++) weights[s] /= sum;
    for (int d = 0; d < D; d += COLUMNS) tile(V + d * W, weights, out + d, 1, D - d < COLUMNS ? D - d : COLUMNS, S, D, SET);
}

/* logits of what follows ids, the characters at `position`. `state` is what is remembered, zeros at first. */
void step(const sizes *given, const float *weights, const int64_t *ids, int64_t position, float *state, float *logits) {
    const sizes n = *given;
    const int B = n.B, C = n.C, D = C / n.H, E = D / 2, S = position < n.W ? position + 1 : n.W, slot = position % n.W;
    const int block = slot / COLUMNS * COLUMNS, columns = (n.W + COLUMNS - 1) / COLUMNS * COLUMNS;
    float cosine[E], sine[E], q[D], k[D], *x = state, *h = x + B * C, *wide = h + B * C, *memory = wide + 4 * B * C;
    for (int e = 0; e < E; e++) {
        double angle = position * pow(10000, -(double)e / E);
        cosine[e] = cos(angle), sine[e] = sin(angle);
    }
    for (int b = 0; b < B; b++) norm(weights + ids[b] * C, x + b * C, C);
    weights += n.V * C;
    for (int layer = 0; layer < n.layers; layer++) {
        weights = shift(weights, x, memory, h, n, position), memory += n.R * B * C;
        weights = product(weights, h, wide, B, C, 3 * C, SET);
        for (int i = 0; i < B * n.H; i++) {
            const float *from = wide + i / n.H * 3 * C + i % n.H * D;
            float *K = memory, *V = K + columns * D;
            norm(from, q, D), rotate(q, cosine, sine, E);
            norm(from + C, k, D), rotate(k, cosine, sine, E);
            for (int d = 0; d < D; d++) {
                K[block * D + d * COLUMNS + slot - block] = k[d];
                V[d / COLUMNS * COLUMNS * n.W + slot * COLUMNS + d % COLUMNS] = from[2 * C + d];
            }
            attend(q, K, V, h + i * D, S, n.W, D);
            memory = V + (D + COLUMNS - 1) / COLUMNS * COLUMNS * n.W;
        }
        weights = product(weights, h, x, B, C, C, ADD);
        weights = shift(weights, x, memory, h, n, position), memory += n.R * B * C;
        weights = product(weights, h, wide, B, C, 4 * C, SQUARED_RELU);
        weights = product(weights, wide, x, B, 4 * C, C, ADD);
    }
    for (int b = 0; b < B; b++) norm(x + b * C, h + b * C, C);
    product(weights, h, logits, B, C, n.V, SET);
}
