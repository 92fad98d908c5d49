// The element-wise half of a training step on a CPU, in bfloat16: each function reads and writes its arrays once.
// Compiled by kernels.py with the C compiler found at run time; kernels.py holds the same equations in PyTorch.
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 32   // numbers side by side in a sum or a maximum
#define BLOCK 512  // filters of a convolution at a time: their sums stay in the first cache, however many filters there are

static inline float widen(uint16_t v) {
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t narrow(float f) {  // round to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// exp to 2 units in the last place, as plain arithmetic that every compiler turns into vectors: no vector library, and no
// -ffast-math, is needed for it.  2^n · e^r with |r| ≤ ln 2 / 2; Cephes' polynomial.  Outside ±87 it stays at the edge.
static inline float exp_(float v) {
    const float round = 12582912.0f;  // 1.5 · 2^23: adding it leaves whole numbers
    v = v > 87.0f ? 87.0f : v;
    v = v < -87.0f ? -87.0f : v;
    float n = (v * 1.44269504088896341f + round) - round;
    float r = v - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float q = 1.9875691500e-4f;
    q = q * r + 1.3981999507e-3f;
    q = q * r + 8.3334519073e-3f;
    q = q * r + 4.1665795894e-2f;
    q = q * r + 1.6666665459e-1f;
    q = q * r + 5.0000001201e-1f;
    q = q * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return q * scale;
}

static inline float sigmoid(float v) { return 1.0f / (1.0f + exp_(-v)); }
static inline float tanh_(float v) { return 2.0f / (1.0f + exp_(-2.0f * v)) - 1.0f; }

// products [B, 4d], without bias; gates [B, 4d] = activations i, f, g, o.  c_prev, c [B, d].  m [B, d] = o tanh(c).
void cell_forward(const uint16_t *restrict products, const float *restrict bias, const float *restrict c_prev,
                  uint16_t *restrict gates, float *restrict c, uint16_t *restrict m, int64_t B, int64_t d, float clip) {
    for (int64_t b = 0; b < B; b++) {
        const uint16_t *restrict in = products + b * 4 * d;
        uint16_t *restrict gi = gates + b * 4 * d, *restrict gf = gi + d, *restrict gg = gf + d, *restrict go = gg + d;
        const float *restrict cp = c_prev + b * d;
        float *restrict cn = c + b * d;
        uint16_t *restrict mm = m + b * d;
#pragma GCC ivdep
        for (int64_t k = 0; k < d; k++) {
            float i = sigmoid(widen(in[k]) + bias[k]);
            float f = sigmoid(widen(in[d + k]) + bias[d + k]);
            float g = tanh_(widen(in[2 * d + k]) + bias[2 * d + k]);
            float o = sigmoid(widen(in[3 * d + k]) + bias[3 * d + k]);
            float v = f * cp[k] + i * g;
            v = v > clip ? clip : v;
            v = v < -clip ? -clip : v;
            cn[k] = v;
            mm[k] = narrow(o * tanh_(v));
            gi[k] = narrow(i);
            gf[k] = narrow(f);
            gg[k] = narrow(g);
            go[k] = narrow(o);
        }
    }
}

// gates [B, 4d]: in = activations, out = gradients before the activations.  dc [B, d]: in = gradient of c from later
// steps, out = gradient of c_prev.  dbias [4d] is added to.
void cell_backward(uint16_t *restrict gates, const uint16_t *restrict dm, float *restrict dc,
                   const float *restrict c_prev, const float *restrict c, float *restrict dbias, int64_t B, int64_t d,
                   float clip) {
    for (int64_t b = 0; b < B; b++) {
        uint16_t *restrict gi = gates + b * 4 * d, *restrict gf = gi + d, *restrict gg = gf + d, *restrict go = gg + d;
        const float *restrict cp = c_prev + b * d, *restrict cn = c + b * d;
        const uint16_t *restrict dmb = dm + b * d;
        float *restrict dcb = dc + b * d;
        float *restrict bi = dbias, *restrict bf = dbias + d, *restrict bg = dbias + 2 * d, *restrict bo = dbias + 3 * d;
#pragma GCC ivdep
        for (int64_t k = 0; k < d; k++) {
            float i = widen(gi[k]), f = widen(gf[k]), g = widen(gg[k]), o = widen(go[k]);
            float v = cn[k], tc = tanh_(v), dmk = widen(dmb[k]);
            float dv = dcb[k] + dmk * o * (1.0f - tc * tc);
            dv = fabsf(v) < clip ? dv : 0.0f;  // the clip passes no gradient
            float di = dv * g * i * (1.0f - i);
            float df = dv * cp[k] * f * (1.0f - f);
            float dg = dv * i * (1.0f - g * g);
            float dO = dmk * tc * o * (1.0f - o);
            dcb[k] = dv * f;
            gi[k] = narrow(di);
            gf[k] = narrow(df);
            gg[k] = narrow(dg);
            go[k] = narrow(dO);
            bi[k] += di;
            bf[k] += df;
            bg[k] += dg;
            bo[k] += dO;
        }
    }
}

// Softmax over k shared candidates and each row's own true class.  logits [n, k]: in = products, out = gradient
// weight · p.  bias [k] and true_logit [n] are corrected for sampling already.  loss [n] = -weight · log p(true),
// true_gradient [n] = weight · (p(true) - 1).
void softmax_rows(uint16_t *restrict logits, const float *restrict bias, const float *restrict true_logit,
                  const float *restrict weight, float *restrict loss, float *restrict true_gradient,
                  float *restrict scratch, int64_t n, int64_t k) {
    for (int64_t r = 0; r < n; r++) {
        uint16_t *restrict row = logits + r * k;
        // LANES maxima and sums side by side: one alone would have to be taken in order, number by number.
        float tops[LANES], sums[LANES];
        for (int l = 0; l < LANES; l++) tops[l] = true_logit[r], sums[l] = 0.0f;
        int64_t whole = k - k % LANES;
        for (int64_t j = 0; j < whole; j += LANES)
            for (int l = 0; l < LANES; l++) {
                float v = widen(row[j + l]) + bias[j + l];
                scratch[j + l] = v;
                tops[l] = v > tops[l] ? v : tops[l];
            }
        for (int64_t j = whole; j < k; j++) {
            float v = widen(row[j]) + bias[j];
            scratch[j] = v;
            tops[0] = v > tops[0] ? v : tops[0];
        }
        float top = tops[0];
        for (int l = 1; l < LANES; l++) top = tops[l] > top ? tops[l] : top;
        for (int64_t j = 0; j < whole; j += LANES)
            for (int l = 0; l < LANES; l++) {
                float e = exp_(scratch[j + l] - top);
                scratch[j + l] = e;
                sums[l] += e;
            }
        for (int64_t j = whole; j < k; j++) {
            float e = exp_(scratch[j] - top);
            scratch[j] = e;
            sums[0] += e;
        }
        float own = exp_(true_logit[r] - top), w = weight[r], total = own;
        for (int l = 0; l < LANES; l++) total += sums[l];
        float scale = w / total;
        for (int64_t j = 0; j < k; j++) row[j] = narrow(scratch[j] * scale);
        loss[r] = w * (logf(total) + top - true_logit[r]);
        true_gradient[r] = w * (own / total - 1.0f);
    }
}

// All convolutions over characters with their maximum, as sums of table rows.  Convolution i has widths[i] offsets of
// counts[i] columns each, one block of columns per offset, blocks one after another: table [characters, S].
// ids [n, length]; used [n]: ids before a word's padding.  A window that starts in the padding sees nothing but
// padding, so the first such stands for all.  best [n, F] and where [n, F]: the maximum and the window it came from.
void conv_max(const float *restrict table, const int16_t *restrict ids, const int64_t *restrict used,
              const int64_t *restrict widths, const int64_t *restrict counts, float *restrict best,
              int16_t *restrict where, int64_t n_conv, int64_t S, int64_t F, int64_t n, int64_t length) {
    float sum[BLOCK];
    for (int64_t r = 0; r < n; r++) {
        const int16_t *word = ids + r * length;
        float *restrict b = best + r * F;
        int16_t *restrict at = where + r * F;
        int64_t base = 0;
        for (int64_t i = 0; i < n_conv; i++) {
            int64_t w = widths[i], f = counts[i];
            int64_t last = used[r] < length - w ? used[r] : length - w;
            for (int64_t first = 0; first < f; first += BLOCK) {
                int64_t some = f - first < BLOCK ? f - first : BLOCK;
                for (int64_t s = 0; s <= last; s++) {
                    for (int64_t j = 0; j < some; j++) sum[j] = 0.0f;
                    for (int64_t k = 0; k < w; k++) {
                        const float *restrict row = table + word[s + k] * S + base + k * f + first;
#pragma GCC ivdep
                        for (int64_t j = 0; j < some; j++) sum[j] += row[j];
                    }
                    if (s == 0) {
                        for (int64_t j = 0; j < some; j++) b[first + j] = sum[j], at[first + j] = 0;
                    } else {
#pragma GCC ivdep
                        for (int64_t j = 0; j < some; j++) {
                            int greater = sum[j] > b[first + j];
                            b[first + j] = greater ? sum[j] : b[first + j];
                            at[first + j] = greater ? (int16_t)s : at[first + j];
                        }
                    }
                }
            }
            base += w * f;
            b += f;
            at += f;
        }
    }
}

// The gradient of conv_max: gradient [n, F] is added to dtable [characters, S] where it came from.
void conv_max_backward(const float *restrict gradient, const int16_t *restrict ids, const int16_t *restrict where,
                       const int64_t *restrict widths, const int64_t *restrict counts, float *restrict dtable,
                       int64_t n_conv, int64_t S, int64_t F, int64_t n, int64_t length) {
    for (int64_t r = 0; r < n; r++) {
        const int16_t *word = ids + r * length;
        const float *g = gradient + r * F;
        const int16_t *at = where + r * F;
        int64_t base = 0;
        for (int64_t i = 0; i < n_conv; i++) {
            int64_t w = widths[i], f = counts[i];
            for (int64_t k = 0; k < w; k++)
                for (int64_t j = 0; j < f; j++) dtable[word[at[j] + k] * S + base + k * f + j] += g[j];
            base += w * f;
            g += f;
            at += f;
        }
    }
}
