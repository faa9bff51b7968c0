/* Sums and the page update in one pass; compiled at start with the machine's own compiler.

   Pages are worked through in cells of 64 elements, which stay in the first-level cache or in
   registers from the sum to the cast: sum the contributions (from left to right, in float32), add
   their squares (float64), divide, clip, update, cast, store. The reads of later cells are on their
   way meanwhile, so memory and arithmetic overlap.

   A call updates pages of one size that are neighbours. Elements are counted from the start of the
   first: contributions and the wire have no gaps, weights and state have one behind each page.

   Weights and moments may be stored in fewer bits: a cell is widened, updated and rounded, with the
   bits of `kernels/narrow.py`, which says what is stored.

   The arithmetic is that of torch's fused CPU kernels for vectors, rounding by rounding: FMA()
   stands exactly where torch's build has a fused multiply-add, and nowhere else (build with
   -ffp-contract=off). Whoever loads it compares its bits before it is used.

   Loops over 64 elements have a fixed length: the compiler makes vectors of them on any machine.
   Intrinsics stand only where C has no word: float16, and stores that go past the cache. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define VECTOR _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTOR _Pragma("GCC ivdep")
#endif

/* Where the machine fuses, torch fuses; else both round twice. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))

/* A cell is what is worked on at once. All streams are fetched 256 elements ahead: the processor's
   own prefetchers do not keep up with so many streams (design note 0008). */
enum { BLOCK = 4096, LANES = 256, CELL = 64, FETCH_AHEAD = 256 };

enum { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, NO_WIRE = -1 };
enum { INT8 = 3, UINT8 = 4 }; /* what is stored may be so, too: 64 codes and a scale */
enum { NONE = 0, ADAM = 1, SGD = 2, SGD_MOMENTUM = 3, LION = 4 };
enum { MAXIMIZE = 1, DECAY = 2, NESTEROV = 4, FIRST = 8, LERP_FROM_GRAD = 16, NO_MOMENTUM = 32,
       COUPLED = 64, /* Adam's decay, which is a part of the gradient; DECAY is then AdamW's */
       MOMENTUM_FROM_GRAD = 128,
       UNCHANGED = 256 /* the run keeps its weights and state */ };

/* What came from a network may lie at any address. */
typedef float __attribute__((aligned(1), may_alias)) any_float;
typedef uint16_t __attribute__((aligned(1), may_alias)) any_half;

/* Hyper-parameters of elements start..stop, rounded to float32 as torch rounds them. */
typedef struct {
    int64_t start, stop;
    int32_t flags, average_from_weights; /* the lerp of the average starts there */
    float weight_decay; /* AdamW, Lion: the factor 1 - lr * weight_decay */
    float momentum;     /* Adam: weight of the lerp of m; Lion: of the direction's */
    float dampening;    /* SGD: 1 - dampening; Adam: 1 - beta2 */
    float beta2;        /* Lion: weight of the lerp of m */
    float correction;   /* Adam: sqrt(1 - beta2 ** step) */
    float eps;
    float step_size; /* negative */
    float average; /* weight of the lerp of the average */
    uint64_t key;  /* of the draws of a parameter in this version, and of its blocks the first */
    int64_t block;
} run_t;

/* A field of pages: weights or a moment. */
typedef struct {
    const char *from; /* NULL where there is none */
    char *to;
    const float *scales; /* one a cell, of INT8 and UINT8 */
    float *scales_out;
    int32_t form;
    int32_t tensor;      /* its number, for its draws */
    int32_t is_unsigned; /* what is above zero is never rounded to it */
    int64_t stride, stride_out; /* bytes from a page's elements to the next one's, in both */
} field_t;

typedef struct {
    int64_t elems, page_elems; /* of all pages, of one */
    int32_t optimizer, contributions_count;
    const void *const *contributions;
    const int32_t *dtypes;
    field_t weights, state0, state1;
    field_t average; /* in float32 */
    const run_t *runs;
    double *squares; /* one a block, or NULL */
    void *wire;
    int32_t wire_dtype;
    float divisor, scale;
    int32_t in_place;
} update_t;

/* ------------------------------------------------------------------ types that travel */

INLINE float from_bfloat16(uint16_t value) {
    union { uint32_t bits; float value; } as = {.bits = (uint32_t)value << 16};
    return as.value;
}

/* To nearest, ties to even; every NaN becomes 0xffff, as in torch's vector code. */
INLINE uint16_t to_bfloat16(float value) {
    union { float value; uint32_t bits; } as = {.value = value};
    uint32_t rounded = (as.bits + 0x7fffu + (as.bits >> 16 & 1u)) >> 16;
    return (as.bits & 0x7fffffffu) > 0x7f800000u ? 0xffffu : (uint16_t)rounded;
}

#if defined(__AVX512F__)
INLINE void from_float16(const any_half *from, float *to) {
    for (int j = 0; j < CELL; j += 16)
        _mm512_storeu_ps(to + j, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + j))));
}
INLINE void to_float16(const float *from, uint16_t *to) {
    for (int j = 0; j < CELL; j += 16)
        _mm256_storeu_si256((__m256i *)(to + j),
                            _mm512_cvtps_ph(_mm512_loadu_ps(from + j), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
INLINE void from_float16(const any_half *from, float *to) {
    for (int j = 0; j < CELL; j += 8)
        _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + j))));
}
INLINE void to_float16(const float *from, uint16_t *to) {
    for (int j = 0; j < CELL; j += 8)
        _mm_storeu_si128((__m128i *)(to + j),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + j), _MM_FROUND_TO_NEAREST_INT));
}
#else
INLINE void from_float16(const any_half *from, float *to) {
    for (int j = 0; j < CELL; j++) {
        uint32_t sign = (uint32_t)(from[j] & 0x8000u) << 16, rest = from[j] & 0x7fffu;
        union { uint32_t bits; float value; } as;
        if (rest >= 0x7c00u) /* infinity, NaN (made quiet) */
            as.bits = 0x7f800000u | rest << 13 | (rest > 0x7c00u ? 0x400000u : 0u);
        else if (rest >= 0x400u)
            as.bits = (rest << 13) + 0x38000000u;
        else
            as.value = (float)rest * 0x1p-24f;
        as.bits |= sign;
        to[j] = as.value;
    }
}
INLINE void to_float16(const float *from, uint16_t *to) {
    for (int j = 0; j < CELL; j++) {
        union { float value; uint32_t bits; } as = {.value = from[j]};
        uint32_t sign = as.bits >> 16 & 0x8000u, rest = as.bits & 0x7fffffffu, half;
        if (rest > 0x7f800000u)
            half = 0x7e00u | (rest >> 13 & 0x3ffu);
        else if (rest >= 0x477ff000u) /* 65,520 and above */
            half = 0x7c00u;
        else if (rest >= 0x38800000u)
            half = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
        else { /* the sum with 0.5 rounds to a multiple of 2 ** -24 */
            as.bits = rest;
            as.value += 0.5f;
            half = as.bits - 0x3f000000u;
        }
        to[j] = (uint16_t)(sign | half);
    }
}
#endif

/* ------------------------------------------------------------------ stores past the cache */

/* `bytes` is a multiple of 64, `from` aligned to it; whether `to` is, the caller knows. */
INLINE void store(void *to, const void *from, int64_t bytes, int past_cache) {
#if defined(__AVX512F__)
    if (past_cache) {
        for (int64_t i = 0; i < bytes; i += 64)
            _mm512_stream_si512((__m512i *)((char *)to + i),
                                _mm512_load_si512((const __m512i *)((const char *)from + i)));
        return;
    }
#elif defined(__x86_64__)
    if (past_cache) {
        for (int64_t i = 0; i < bytes; i += 16)
            _mm_stream_si128((__m128i *)((char *)to + i),
                             _mm_load_si128((const __m128i *)((const char *)from + i)));
        return;
    }
#endif
    memcpy(to, from, (size_t)bytes);
}

INLINE void finish_stores(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

INLINE int is_aligned(const void *pointer) { return ((uintptr_t)pointer & 63u) == 0; }

/* ------------------------------------------------------------------ what is stored */

typedef union { uint32_t bits; float value; } word_t;

/* The finaliser of SplitMix64: a bijection without a pattern (Steele et al. 2014). */
INLINE uint64_t mixed(uint64_t value) {
    uint64_t z = value + 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One draw for each element of a cell. */
INLINE void draw_cell(const run_t *run, int tensor, int64_t at, uint32_t *drawn) {
    uint64_t block = (uint64_t)(run->block + (at - run->start) / CELL);
    uint64_t key = mixed(mixed(run->key ^ (uint64_t)tensor) ^ block);
    uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    VECTOR for (int j = 0; j < CELL; j++) {
        uint32_t x = low + (uint32_t)j * 0x9e3779b9u;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15 ^ high) * 0x846ca68bu;
        drawn[j] = x ^ x >> 16;
    }
}

INLINE void widen_codes(const field_t *field, int64_t at, float *room) {
    float scale = field->scales[at / CELL];
    if (field->form == INT8) {
        const int8_t *codes = (const int8_t *)field->from + at;
        VECTOR for (int j = 0; j < CELL; j++) {
            float code = (float)codes[j];
            room[j] = code * fabsf(code) * (1.0f / 16129.0f) * scale;
        }
    } else {
        const uint8_t *codes = (const uint8_t *)field->from + at;
        VECTOR for (int j = 0; j < CELL; j++) {
            float root = (float)codes[j] * (float)codes[j] * (1.0f / 65025.0f);
            room[j] = root * root * scale;
        }
    }
}

/* The values of a cell: where they lie, or in `room`. */
INLINE const float *widened(const field_t *field, int64_t at, float *room) {
    if (field->form == FLOAT32) return (const float *)field->from + at;
    if (field->form == BFLOAT16) {
        const uint16_t *from = (const uint16_t *)field->from + at;
        VECTOR for (int j = 0; j < CELL; j++) room[j] = from_bfloat16(from[j]);
    } else {
        widen_codes(field, at, room);
    }
    return room;
}

/* Above zero stays above it; a NaN becomes 0xffff. */
INLINE void narrow_bfloat16(const float *values, const uint32_t *drawn, int is_unsigned,
                            uint16_t *to) {
    VECTOR for (int j = 0; j < CELL; j++) {
        word_t as = {.value = values[j]};
        uint32_t found = (as.bits + (drawn[j] >> 16)) >> 16;
        if (is_unsigned) found |= (as.bits != 0) & (found == 0);
        to[j] = (as.bits & 0x7fffffffu) > 0x7f800000u ? 0xffffu : (uint16_t)found;
    }
}

/* place[j] lies between `lower[j]` and the next code, in squares or fourth powers of codes. */
INLINE int32_t drawn_code(float lower, float low, float high, float place, uint32_t drawn) {
    float chance = (float)(int32_t)(drawn >> 8) * 0x1p-24f;
    return (int32_t)lower + (chance * (high - low) < place - low);
}

/* Returns the scale: the largest magnitude, NaN if one is not finite. In several loops, each of
   which compilers make vectors of. */
INLINE float narrow_codes(const float *values, const uint32_t *drawn, int form, uint8_t *to) {
    ALIGNED float place[CELL], lower[CELL];
    int32_t largest = 0;
    for (int j = 0; j < CELL; j++) {
        word_t as = {.value = values[j]};
        int32_t size = (int32_t)(as.bits & 0x7fffffffu);
        largest = size > largest ? size : largest;
    }
    word_t scale = {.bits = largest >= 0x7f800000 ? 0x7fc00000u : (uint32_t)largest};
    float divisor = largest == 0 ? 1.0f : scale.value;
    VECTOR for (int j = 0; j < CELL; j++) {
        float part = fabsf(values[j]) / divisor;
        place[j] = part < 1.0f ? part : 1.0f;
    }
    if (form == INT8) {
        VECTOR for (int j = 0; j < CELL; j++) {
            place[j] *= 16129.0f;
            lower[j] = (float)(int32_t)sqrtf(place[j]);
        }
        VECTOR for (int j = 0; j < CELL; j++) {
            word_t as = {.value = values[j]};
            int32_t sign = (int32_t)as.bits >> 31;
            float low = lower[j] * lower[j], high = (lower[j] + 1.0f) * (lower[j] + 1.0f);
            int32_t code = drawn_code(lower[j], low, high, place[j], drawn[j]);
            to[j] = (uint8_t)((code ^ sign) - sign);
        }
    } else {
        VECTOR for (int j = 0; j < CELL; j++)
            lower[j] = (float)(int32_t)(sqrtf(sqrtf(place[j])) * 255.0f);
        VECTOR for (int j = 0; j < CELL; j++) {
            float least = place[j] != 0.0f ? 1.0f : 0.0f;
            lower[j] = lower[j] > least ? lower[j] : least;
            place[j] *= 4228250625.0f;
        }
        VECTOR for (int j = 0; j < CELL; j++) {
            float low = lower[j] * lower[j], high = (lower[j] + 1.0f) * (lower[j] + 1.0f);
            to[j] = (uint8_t)drawn_code(lower[j], low * low, high * high, place[j], drawn[j]);
        }
    }
    return scale.value;
}

/* ------------------------------------------------------------------ the sum and its squares */

#define F32(k) (s##k[j])
#define B16(k) from_bfloat16(s##k[j])
#define F16(k) (h##k[j])

/* sum = c0 (+ c1 (+ c2 + c3)), or sum += the same one after the other. */
#define ADD(VALUE) VECTOR for (int j = 0; j < CELL; j++) sum[j] = VALUE;
#define SOURCE(k, type) const type *s##k = (const type *)from[k];
#define HALF(k) ALIGNED float h##k[CELL]; from_float16(s##k, h##k);
#define ADD_SOME(V, type, H1, H2, H4)                                                              \
    if (count == 1) {                                                                              \
        SOURCE(0, type) H1                                                                         \
        if (is_first) { ADD(V(0)) } else { ADD(sum[j] + V(0)) }                                    \
    } else if (count == 2) {                                                                       \
        SOURCE(0, type) SOURCE(1, type) H2                                                         \
        if (is_first) { ADD(V(0) + V(1)) } else { ADD((sum[j] + V(0)) + V(1)) }                    \
    } else {                                                                                       \
        SOURCE(0, type) SOURCE(1, type) SOURCE(2, type) SOURCE(3, type) H4                         \
        if (is_first) { ADD(((V(0) + V(1)) + V(2)) + V(3)) }                                       \
        else { ADD((((sum[j] + V(0)) + V(1)) + V(2)) + V(3)) }                                     \
    }

INLINE int64_t size_of(int dtype) { return dtype == FLOAT32 ? 4 : 2; }

/* Elements at..at + 64 of all contributions, from left to right, up to 4 of one type at once. */
INLINE void sum_cell(float *sum, const void *const *contributions, const int32_t *dtypes,
                     int contributions_count, int64_t at) {
    const char *from[4];
    for (int index = 0, count; index < contributions_count; index += count) {
        int dtype = dtypes[index], same = 1, is_first = index == 0;
        while (same < 4 && index + same < contributions_count && dtypes[index + same] == dtype)
            same++;
        count = same == 3 ? 2 : same;
        for (int k = 0; k < count; k++)
            from[k] = (const char *)contributions[index + k] + at * size_of(dtype);
        if (dtype == FLOAT32) {
            ADD_SOME(F32, any_float, , , )
        } else if (dtype == BFLOAT16) {
            ADD_SOME(B16, any_half, , , )
        } else {
            ADD_SOME(F16, any_half, HALF(0), HALF(0) HALF(1), HALF(0) HALF(1) HALF(2) HALF(3))
        }
    }
}

/* Lane j of 256 adds the squares of elements j, j + 256, j + 512 ... of a block. A float32 squared
   fits float64 exactly, so a fused multiply-add changes nothing. */
INLINE void square_cell(double *lanes, const any_float *sum, int64_t at) {
    double *lane = lanes + at % LANES;
    if (at % BLOCK < LANES) {
        VECTOR for (int j = 0; j < CELL; j++) lane[j] = (double)sum[j] * (double)sum[j];
    } else {
        VECTOR for (int j = 0; j < CELL; j++) lane[j] += (double)sum[j] * (double)sum[j];
    }
}

/* The upper half of the lanes is added to the lower half until one is left. `elems` of the block
   were added; the others are zero. */
static double add_lanes(double *lanes, int64_t elems) {
    for (int64_t j = elems; j < LANES; j++) lanes[j] = 0;
    for (int half = LANES / 2; half >= 8; half /= 2) {
        VECTOR for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    }
    for (int half = 4; half >= 1; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

/* ------------------------------------------------------------------ 64 elements of an optimizer */

/* x / divisor as the machine divides, without its divider: two corrections of x * (1 / divisor),
   each with an exact remainder, give the correctly rounded quotient (Markstein 1990, Theorem 8.3).
   For x a square root and divisor in [2 ** -20, 1] nothing over- or underflows on the way. */
INLINE float divided(float x, float divisor, float inverse) {
    float quotient = x * inverse;
    quotient = __builtin_fmaf(__builtin_fmaf(-quotient, divisor, x), inverse, quotient);
    float better = __builtin_fmaf(__builtin_fmaf(-quotient, divisor, x), inverse, quotient);
    return x < INFINITY ? better : x;
}

INLINE void adam_cell(const run_t *run, int flags, int by_inverse, const any_float *grad,
                      const float *weights, const float *m, const float *v, float *weights_out,
                      float *m_out, float *v_out) {
    float inverse = 1.0f / run->correction;
    float lerp = run->momentum, decay = run->weight_decay, beta2 = run->beta2;
    float rest2 = run->dampening, correction = run->correction, eps = run->eps;
    float step_size = run->step_size;
    VECTOR for (int j = 0; j < CELL; j++) {
        float g = grad[j], w = weights[j], first = m[j], second = v[j];
        if (flags & MAXIMIZE) g = -g;
        if (flags & COUPLED) g = FMA(w, decay, g);
        else if (flags & DECAY) w *= decay;
        first = FMA(lerp, g - first, flags & LERP_FROM_GRAD ? g : first);
        second = FMA(rest2 * g, g, second * beta2);
        float root = sqrtf(second);
        float norm = by_inverse ? divided(root, correction, inverse) : root / correction;
        w = w + (step_size * first) / (norm + eps);
        m_out[j] = first;
        v_out[j] = second;
        weights_out[j] = w;
    }
}

INLINE void sgd_cell(const run_t *run, int flags, int has_momentum, const any_float *grad,
                     const float *weights, const float *buffer, float *weights_out,
                     float *buffer_out) {
    float decay = run->weight_decay, momentum = run->momentum, rest = run->dampening;
    float step_size = run->step_size;
    VECTOR for (int j = 0; j < CELL; j++) {
        float g = grad[j], w = weights[j];
        if (flags & MAXIMIZE) g = -g;
        if (flags & DECAY) g = FMA(w, decay, g);
        if (has_momentum) {
            float b = flags & FIRST ? g : FMA(g, rest, buffer[j] * momentum);
            if (flags & NO_MOMENTUM) b = buffer[j];
            else g = flags & NESTEROV ? FMA(b, momentum, g) : b;
            buffer_out[j] = b;
        }
        weights_out[j] = FMA(g, step_size, w);
    }
}

INLINE void lion_cell(const run_t *run, int flags, const any_float *grad, const float *weights,
                      const float *m, float *weights_out, float *m_out) {
    float lerp = run->momentum, rest = run->beta2, decay = run->weight_decay;
    float step_size = run->step_size;
    VECTOR for (int j = 0; j < CELL; j++) {
        float g = grad[j], w = weights[j], old = m[j];
        if (flags & MAXIMIZE) g = -g;
        float direction = FMA(lerp, g - old, flags & LERP_FROM_GRAD ? g : old);
        float sign = (float)((direction > 0.0f) - (direction < 0.0f));
        if (flags & DECAY) w *= decay;
        weights_out[j] = FMA(sign, step_size, w);
        m_out[j] = FMA(rest, g - old, flags & MOMENTUM_FROM_GRAD ? g : old);
    }
}

INLINE void average_cell(const run_t *run, const float *average, const float *weights,
                         float *average_out) {
    float lerp = run->average;
    int from_weights = run->average_from_weights;
    VECTOR for (int j = 0; j < CELL; j++) {
        float old = average[j], w = weights[j];
        average_out[j] = FMA(lerp, w - old, from_weights ? w : old);
    }
}

/* ------------------------------------------------------------------ pages */

/* What follows from a call, once. */
typedef struct {
    int divide, clip, past_cache, wire_past_cache, is_direct;
    float factor;
} plan_t;

INLINE void fetch(const void *from) { __builtin_prefetch(from, 0, 3); }

INLINE void fetch_cell(const void *const *contributions, const int32_t *dtypes,
                       int contributions_count, int64_t at) {
    for (int k = 0; k < contributions_count; k++) {
        int64_t size = size_of(dtypes[k]);
        const char *from = (const char *)contributions[k] + at * size;
        fetch(from);
        fetch(from + 64);
        if (size == 4) {
            fetch(from + 128);
            fetch(from + 192);
        }
    }
}

INLINE int64_t bytes_of(int form) { return form == FLOAT32 ? 4 : form == BFLOAT16 ? 2 : 1; }

INLINE void fetch_floats(const float *from) {
    for (int i = 0; i < CELL; i += 16) fetch(from + i);
}

INLINE void fetch_field(const field_t *field, int64_t at) {
    const char *from = field->from + at * bytes_of(field->form);
    fetch(from);
    if (field->form <= BFLOAT16) fetch(from + 64);
    if (field->form == FLOAT32) fetch(from + 128), fetch(from + 192);
}

/* Where the new values of a cell are computed: in their place, or in `room`. */
INLINE float *target(const field_t *field, int64_t at, float *room, int past_cache) {
    return past_cache || field->form != FLOAT32 ? room : (float *)field->to + at;
}

/* Store a cell that was computed in `room`. Weights become what is stored. */
INLINE void store_field(const field_t *field, const run_t *run, int64_t at, float *room,
                        int past_cache) {
    ALIGNED uint32_t drawn[CELL];
    ALIGNED uint16_t halves[CELL];
    ALIGNED uint8_t codes[CELL];
    if (field->form == FLOAT32) {
        if (past_cache) store(field->to + at * 4, room, CELL * 4, 1);
        return;
    }
    draw_cell(run, field->tensor, at, drawn);
    if (field->form == BFLOAT16) {
        narrow_bfloat16(room, drawn, field->is_unsigned, halves);
        store(field->to + at * 2, halves, sizeof halves, past_cache);
        if (field->tensor == 0) {
            VECTOR for (int j = 0; j < CELL; j++) room[j] = from_bfloat16(halves[j]);
        }
    } else {
        field->scales_out[at / CELL] = narrow_codes(room, drawn, field->form, codes);
        store(field->to + at, codes, sizeof codes, past_cache);
    }
}

INLINE void copy_field(const field_t *field, int64_t at) {
    int64_t size = bytes_of(field->form);
    if (field->to == field->from) return; /* it is in place, others are not */
    memcpy(field->to + at * size, field->from + at * size, (size_t)(CELL * size));
    if (field->scales) field->scales_out[at / CELL] = field->scales[at / CELL];
}

INLINE void cast_cell(const update_t *call, const float *weights, int64_t at, int past_cache) {
    ALIGNED uint16_t narrow[CELL];
    if (call->wire_dtype == FLOAT32) {
        ALIGNED float wide[CELL];
        memcpy(wide, weights, sizeof wide);
        store((char *)call->wire + at * 4, wide, sizeof wide, past_cache);
        return;
    }
    if (call->wire_dtype == BFLOAT16) {
        VECTOR for (int j = 0; j < CELL; j++) narrow[j] = to_bfloat16(weights[j]);
    } else {
        to_float16(weights, narrow);
    }
    store((char *)call->wire + at * 2, narrow, sizeof narrow, past_cache);
}

/* The sum of a cell and its squares; a single float32 contribution is read where it lies. */
INLINE const any_float *measured_cell(const update_t *call, const plan_t *plan, double *lanes,
                                      float *sum, int64_t at) {
    const any_float *total = sum;
    if (plan->is_direct) total = (const any_float *)call->contributions[0] + at;
    else sum_cell(sum, call->contributions, call->dtypes, call->contributions_count, at);
    if (call->squares) {
        square_cell(lanes, total, at);
        int64_t stop = at + CELL;
        if (stop % BLOCK == 0 || stop == call->elems)
            call->squares[at / BLOCK] = add_lanes(lanes, stop - at / BLOCK * BLOCK);
    }
    return total;
}

/* Elements start..stop of one run and one page: one optimizer, known flags. */
INLINE void update_cells(const update_t *call, const plan_t *plan, const run_t *run, double *lanes,
                         int64_t start, int64_t stop, int kind, int flags, int by_inverse) {
    ALIGNED float out0[CELL], out1[CELL], out2[CELL], out3[CELL], sum[CELL];
    ALIGNED float in0[CELL], in1[CELL], in2[CELL];
    const field_t *weights = &call->weights, *state0 = &call->state0, *state1 = &call->state1;
    int past_cache = plan->past_cache;
    for (int64_t at = start; at < stop; at += CELL) {
        float *w = target(weights, at, out0, past_cache);
        float *a = kind == SGD ? out1 : target(state0, at, out1, past_cache);
        float *b = kind != ADAM ? out2 : target(state1, at, out2, past_cache);
        if (at + FETCH_AHEAD < call->elems) {
            fetch_cell(call->contributions, call->dtypes, call->contributions_count,
                       at + FETCH_AHEAD);
            fetch_field(weights, at + FETCH_AHEAD);
            if (kind != SGD) fetch_field(state0, at + FETCH_AHEAD);
            if (kind == ADAM) fetch_field(state1, at + FETCH_AHEAD);
            if (call->average.from) fetch_field(&call->average, at + FETCH_AHEAD);
        }
        const any_float *grad = measured_cell(call, plan, lanes, sum, at);
        const float *now = widened(weights, at, in0);
        const float *first = kind == SGD ? in1 : widened(state0, at, in1);
        const float *second = kind != ADAM ? in2 : widened(state1, at, in2);
        if (plan->divide == 1) {
            VECTOR for (int j = 0; j < CELL; j++) sum[j] = grad[j] * plan->factor;
            grad = sum;
        } else if (plan->divide == 2) {
            VECTOR for (int j = 0; j < CELL; j++) sum[j] = grad[j] / call->divisor;
            grad = sum;
        }
        if (plan->clip) {
            VECTOR for (int j = 0; j < CELL; j++) sum[j] = grad[j] * call->scale;
            grad = sum;
        }
        if (kind == ADAM) adam_cell(run, flags, by_inverse, grad, now, first, second, w, a, b);
        else if (kind == LION) lion_cell(run, flags, grad, now, first, w, a);
        else sgd_cell(run, flags, kind == SGD_MOMENTUM, grad, now, first, w, a);
        store_field(weights, run, at, w, past_cache);
        if (kind != SGD) store_field(state0, run, at, a, past_cache);
        if (kind == ADAM) store_field(state1, run, at, b, past_cache);
        if (call->average.from) {
            float *average = target(&call->average, at, out3, past_cache);
            average_cell(run, (const float *)call->average.from + at, w, average);
            if (past_cache) store(call->average.to + at * 4, out3, sizeof out3, 1);
        }
        if (call->wire_dtype != NO_WIRE) cast_cell(call, w, at, plan->wire_past_cache);
    }
}

#define UPDATE(kind, flags, by_inverse)                                                            \
    update_cells(call, plan, run, lanes, start, stop, kind, flags, by_inverse)

static void update_adam(const update_t *call, const plan_t *plan, const run_t *run, double *lanes,
                        int64_t start, int64_t stop) {
    int is_usual = run->correction >= 0x1p-20f && run->correction <= 1.0f;
#if !(defined(__FMA__) || defined(__ARM_FEATURE_FMA))
    is_usual = 0;
#endif
    if (is_usual && run->flags == DECAY) UPDATE(ADAM, DECAY, 1);
    else if (is_usual && run->flags == COUPLED) UPDATE(ADAM, COUPLED, 1);
    else if (is_usual && run->flags == 0) UPDATE(ADAM, 0, 1);
    else UPDATE(ADAM, run->flags, 0);
}

static void update_sgd(const update_t *call, const plan_t *plan, const run_t *run, double *lanes,
                       int64_t start, int64_t stop) {
    if (call->optimizer == SGD) UPDATE(SGD, run->flags, 0);
    else UPDATE(SGD_MOMENTUM, run->flags, 0);
}

static void update_lion(const update_t *call, const plan_t *plan, const run_t *run, double *lanes,
                        int64_t start, int64_t stop) {
    UPDATE(LION, run->flags, 0);
}

INLINE int state_arrays(int optimizer) {
    return optimizer == ADAM ? 2 : optimizer == SGD_MOMENTUM || optimizer == LION;
}

/* Elements start..stop keep their values: the sum is measured at most. */
static void copy_cells(const update_t *call, const plan_t *plan, double *lanes, int64_t start,
                       int64_t stop) {
    ALIGNED float sum[CELL], in0[CELL];
    int arrays = state_arrays(call->optimizer);
    for (int64_t at = start; at < stop; at += CELL) {
        const float *now = widened(&call->weights, at, in0);
        if (call->squares) measured_cell(call, plan, lanes, sum, at);
        if (!call->in_place) {
            copy_field(&call->weights, at);
            if (arrays > 0) copy_field(&call->state0, at);
            if (arrays > 1) copy_field(&call->state1, at);
            if (call->average.from) copy_field(&call->average, at);
        }
        if (call->wire_dtype != NO_WIRE) cast_cell(call, now, at, plan->wire_past_cache);
    }
}

/* A field of the next page: so that elements are counted on. */
static void next_page(field_t *field, int64_t page_elems) {
    if (!field->from) return;
    field->from += field->stride - page_elems * bytes_of(field->form);
    field->to += field->stride_out - page_elems * bytes_of(field->form);
    if (!field->scales) return;
    field->scales += field->stride / 4 - page_elems / CELL;
    field->scales_out += field->stride_out / 4 - page_elems / CELL;
}

static int goes_past_cache(const field_t *field) {
    return is_aligned(field->to) && field->stride_out % 64 == 0;
}

/* A page whose first element is `start`. Runs lie in order, without gaps, and all borders are
   multiples of 64; the first run is the one that `start` is in. Returns the next page's first. */
static const run_t *update_page(const update_t *call, const plan_t *plan, double *lanes,
                                const run_t *run, int64_t start) {
    int64_t end = start + call->page_elems;
    if (call->optimizer == NONE) {
        copy_cells(call, plan, lanes, start, end);
        return run;
    }
    while (start < end) {
        int64_t stop = run->stop < end ? run->stop : end;
        if (run->flags & UNCHANGED) copy_cells(call, plan, lanes, start, stop);
        else if (call->optimizer == ADAM) update_adam(call, plan, run, lanes, start, stop);
        else if (call->optimizer == LION) update_lion(call, plan, run, lanes, start, stop);
        else update_sgd(call, plan, run, lanes, start, stop);
        run += run->stop == stop;
        start = stop;
    }
    return run;
}

void luwu_update(const update_t *call) {
    ALIGNED double lanes[LANES];
    plan_t plan = {.clip = call->scale < 1.0f};
    if (call->divisor != 1.0f) {
        /* Dividing by a power of two is multiplying by its inverse, bit for bit. */
        int exponent;
        int is_power = frexpf(call->divisor, &exponent) == 0.5f && exponent > -100 && exponent < 100;
        plan.divide = is_power ? 1 : 2;
        plan.factor = 1.0f / call->divisor;
    }
    plan.is_direct = call->contributions_count == 1 && call->dtypes[0] == FLOAT32;
    plan.past_cache = !call->in_place && goes_past_cache(&call->weights) &&
                      goes_past_cache(&call->state0) && goes_past_cache(&call->state1) &&
                      goes_past_cache(&call->average);
    plan.wire_past_cache = call->wire_dtype != NO_WIRE && is_aligned(call->wire);
    update_t page = *call;
    const run_t *run = call->runs;
    for (int64_t start = 0; start < call->elems; start += call->page_elems) {
        run = update_page(&page, &plan, lanes, run, start);
        next_page(&page.weights, call->page_elems);
        next_page(&page.state0, call->page_elems);
        next_page(&page.state1, call->page_elems);
        next_page(&page.average, call->page_elems);
    }
    finish_stores();
}

/* out = before + (c0 + c1 + ...); `before` may be NULL, or `out` itself; `squares` may be NULL. */
void luwu_fold(int64_t elems, const void *const *contributions, const int32_t *dtypes,
               int32_t contributions_count, const float *before, float *out, double *squares) {
    ALIGNED double lanes[LANES];
    ALIGNED float sum[CELL];
    int past_cache = is_aligned(out) && before != out;
    for (int64_t at = 0; at < elems; at += CELL) {
        if (at + FETCH_AHEAD < elems) {
            fetch_cell(contributions, dtypes, contributions_count, at + FETCH_AHEAD);
            if (before) fetch_floats(before + at + FETCH_AHEAD);
        }
        sum_cell(sum, contributions, dtypes, contributions_count, at);
        if (before) {
            VECTOR for (int j = 0; j < CELL; j++) sum[j] = before[at + j] + sum[j];
        }
        store(out + at, sum, sizeof sum, past_cache);
        if (!squares) continue;
        square_cell(lanes, sum, at);
        int64_t stop = at + CELL;
        if (stop % BLOCK == 0 || stop == elems)
            squares[at / BLOCK] = add_lanes(lanes, stop - at / BLOCK * BLOCK);
    }
    finish_stores();
}

/* ------------------------------------------------------------------ products of matrices */

/* Rows of the result, and columns, that are made at once, in registers. */
enum { TILE_ROWS = 6, TILE_COLUMNS = 32 };

/* Each element is a sum over k from 0 upwards, in which each product and each sum is rounded: the
   order does not depend on sizes, on threads or on the machine. */
INLINE void product_tile(int rows, int64_t inner, const float *a, int64_t a_stride,
                         const float *panel, float *out, int64_t out_stride, int columns) {
    ALIGNED float sums[TILE_ROWS][TILE_COLUMNS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < TILE_COLUMNS; j++) sums[i][j] = 0.0f;
    for (int64_t k = 0; k < inner; k++) {
        const float *line = panel + k * TILE_COLUMNS;
        for (int i = 0; i < rows; i++) {
            float left = a[i * a_stride + k];
            VECTOR for (int j = 0; j < TILE_COLUMNS; j++) sums[i][j] += left * line[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) out[i * out_stride + j] = sums[i][j];
}

/* out [rows, columns] = a [rows, inner] b, where b is [inner, columns] or, transposed, [columns,
   inner]; all row by row without gaps. `panel`: room for 32 * inner floats. */
void luwu_product(int64_t rows, int64_t columns, int64_t inner, const float *a, const float *b,
                  int32_t is_transposed, float *panel, float *out) {
    for (int64_t at = 0; at < columns; at += TILE_COLUMNS) {
        int wide = columns - at < TILE_COLUMNS ? (int)(columns - at) : TILE_COLUMNS;
        for (int64_t k = 0; k < inner; k++) {
            float *line = panel + k * TILE_COLUMNS;
            for (int j = 0; j < wide; j++)
                line[j] = is_transposed ? b[(at + j) * inner + k] : b[k * columns + at + j];
            for (int j = wide; j < TILE_COLUMNS; j++) line[j] = 0.0f;
        }
        int64_t i = 0;
        for (; i + TILE_ROWS <= rows; i += TILE_ROWS)
            product_tile(TILE_ROWS, inner, a + i * inner, inner, panel, out + i * columns + at,
                         columns, wide);
        for (; i < rows; i++)
            product_tile(1, inner, a + i * inner, inner, panel, out + i * columns + at, columns,
                         wide);
    }
}
