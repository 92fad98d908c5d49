// The cell's arithmetic for one instruction set. Included by _lstm.c once for each, which defines NAME(x) before.
//
// Plain C for the compiler to vectorise, and the same IEEE operations in the same order for every instruction set
// (fused multiply-adds are written out, contraction is off), so that every one of them gives the same bytes.

// 2^z for |z| <= 40: 2^n · P(z - n), n the nearest integer; P within 7.5e-8 of 2^f on [-1/2, 1/2].
static inline __attribute__((always_inline)) float NAME(exp2)(float z) {
    const float magic = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low bits
    float t = z + magic;
    float f = z - (t - magic);
    float p = 0.001327647129073739f;
    p = __builtin_fmaf(p, f, 0.009675540961325169f);
    p = __builtin_fmaf(p, f, 0.05550713092088699f);
    p = __builtin_fmaf(p, f, 0.24022120237350464f);
    p = __builtin_fmaf(p, f, 0.6931469440460205f);
    p = __builtin_fmaf(p, f, 1.0000001192092896f);
    uint32_t n, bits;
    memcpy(&n, &t, 4);
    memcpy(&bits, &p, 4);
    bits += n << 23;
    memcpy(&p, &bits, 4);
    return p;
}

// exp(scale · v), held within 2^±limit (40), where a sigmoid or a tanh has long reached its end; NaN stays NaN.
static inline __attribute__((always_inline)) float NAME(exp_scaled)(float v, float scale, float limit) {
    float z = v * scale;
    z = limit < z ? limit : z;
    z = -limit > z ? -limit : z;
    return NAME(exp2)(z);
}

static inline __attribute__((always_inline)) float NAME(load)(const void *from, int64_t k, const int bf16) {
    if (!bf16) return ((const float *)from)[k];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[k] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline __attribute__((always_inline)) float NAME(rounded)(float value, const int bf16) {
    if (!bf16) return value;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t even = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;  // to nearest, ties to even
    bits = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : even;
    memcpy(&value, &bits, 4);
    return value;
}

static inline __attribute__((always_inline)) void NAME(store)(void *to, int64_t k, float value, const int bf16) {
    if (!bf16) {
        ((float *)to)[k] = value;
        return;
    }
    value = NAME(rounded)(value, 1);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    ((uint16_t *)to)[k] = (uint16_t)(bits >> 16);
}

// One lane's cell.  gates, word [4d] in the order i, f, g, o; before, after [d]; hidden [d].
//   c = sigmoid(f) c + sigmoid(i) tanh(g)  and  hidden = sigmoid(o) tanh(c),  each over one denominator:
// with I, F, O = exp(-i, -f, -o), G = exp(-2g), C = exp(-2c). In two loops over a strip, since both together are a chain so long
// that a processor can't look ahead to enough other numbers while each operation waits for the one before it.
static inline __attribute__((always_inline)) void NAME(cell_lane)(
    const char *restrict gates, const char *restrict word, const float *before, float *after, char *restrict hidden,
    int64_t d, float clip, const int bf16, const int has_word) {
    const float log2e = 1.44269504088896341f, limit = exp_limit;
    float strip[STRIP];
    for (int64_t low = 0; low < d; low += STRIP) {
        const int64_t high = low + STRIP < d ? low + STRIP : d;
        float *restrict h = bf16 ? strip : (float *)hidden + low;  // of one width with c: rounding in this loop costs more
#pragma GCC ivdep
        for (int64_t k = low; k < high; k++) {
            float i = NAME(load)(gates, k, bf16), f = NAME(load)(gates, k + d, bf16), g = NAME(load)(gates, k + 2 * d, bf16);
            if (has_word) {
                i += NAME(load)(word, k, bf16), f += NAME(load)(word, k + d, bf16), g += NAME(load)(word, k + 2 * d, bf16);
            }
            float I = 1.0f + NAME(exp_scaled)(i, -log2e, limit), F = 1.0f + NAME(exp_scaled)(f, -log2e, limit);
            float eg = NAME(exp_scaled)(g, -2.0f * log2e, limit), G = 1.0f + eg;
            float both = I * G;
            float c = __builtin_fmaf(before[k], both, (1.0f - eg) * F) / (both * F);
            c = clip < c ? clip : c;
            after[k] = -clip > c ? -clip : c;
        }
#pragma GCC ivdep
        for (int64_t k = low; k < high; k++) {
            float o = NAME(load)(gates, k + 3 * d, bf16);
            if (has_word) o += NAME(load)(word, k + 3 * d, bf16);
            float ec = NAME(exp_scaled)(after[k], -2.0f * log2e, limit);
            float O = 1.0f + NAME(exp_scaled)(o, -log2e, limit);
            h[k - low] = (1.0f - ec) / ((1.0f + ec) * O);
        }
        for (int64_t k = low; bf16 && k < high; k++) NAME(store)(hidden, k, strip[k - low], 1);
    }
}

static void NAME(cell)(const struct cell *a, int64_t first, int64_t stop) {
    const int64_t size = a->bf16 ? 2 : 4, d = a->d;
    for (int64_t lane = first; lane < stop; lane++) {
        const char *gates = a->gates + lane * 4 * d * size;
        const char *word = a->table ? a->table + a->table_row[lane] * 4 * d * size : gates;
        float *after = a->c + lane * d;
        const float *before = a->begins && a->begins[lane] ? a->begin_c : after;
        char *hidden = a->hidden + lane * d * size;
        if (a->bf16 && a->table) NAME(cell_lane)(gates, word, before, after, hidden, d, a->clip, 1, 1);
        else if (a->bf16) NAME(cell_lane)(gates, word, before, after, hidden, d, a->clip, 1, 0);
        else if (a->table) NAME(cell_lane)(gates, word, before, after, hidden, d, a->clip, 0, 1);
        else NAME(cell_lane)(gates, word, before, after, hidden, d, a->clip, 0, 0);
    }
}

static inline __attribute__((always_inline)) void NAME(finish_lane)(
    const char *restrict projected, char *h, const char *skip, float *restrict output, char *following,
    int64_t p, float clip, const int bf16) {
#pragma GCC ivdep
    for (int64_t k = 0; k < p; k++) {
        float value = NAME(load)(projected, k, bf16);
        value = clip < value ? clip : value;
        value = -clip > value ? -clip : value;
        value = NAME(rounded)(value, bf16);
        NAME(store)(h, k, value, bf16);
        if (skip) value += NAME(load)(skip, k, bf16);
        output[k] = value;
        if (following) NAME(store)(following, k, value, bf16);
    }
}

static void NAME(finish)(const struct finish *a, int64_t first, int64_t stop) {
    const int64_t size = a->bf16 ? 2 : 4, p = a->p;
    for (int64_t lane = first; lane < stop; lane++) {
        const char *projected = a->projected + lane * p * size;
        char *h = a->h + lane * a->h_stride * size;
        const char *skip = a->skip ? a->skip + lane * a->skip_stride * size : NULL;
        char *following = a->following ? a->following + lane * a->following_stride * size : NULL;
        float *output = a->output + lane * p;
        if (a->bf16) NAME(finish_lane)(projected, h, skip, output, following, p, a->clip, 1);
        else NAME(finish_lane)(projected, h, skip, output, following, p, a->clip, 0);
    }
}
