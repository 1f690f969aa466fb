/*@ base */
/* One vector type for every machine: CT_LANES floats, by vector extensions of GCC and clang; CT_PLAIN uses plain C99. */
#ifdef __FAST_MATH__
#error "compile without -ffast-math: rounding by adding a large number must not be optimised away"
#endif
#ifdef __GNUC__
#define CT_UNUSED __attribute__((unused))
#else
#define CT_UNUSED
#endif
#if defined(__GNUC__) && !defined(CT_PLAIN)
#define CT_INLINE static inline __attribute__((always_inline)) CT_UNUSED
#define CT_KERNEL static __attribute__((noinline)) CT_UNUSED
#define CT_TABLE static const __attribute__((aligned(64))) CT_UNUSED
#ifdef __AVX__
#define CT_LANES 8
#else
#define CT_LANES 4
#endif
typedef float ct_v __attribute__((vector_size(4 * CT_LANES)));
typedef float ct_loose __attribute__((vector_size(4 * CT_LANES), aligned(4), may_alias));
typedef uint32_t ct_u __attribute__((vector_size(4 * CT_LANES)));
#if CT_LANES == 8
CT_INLINE ct_v ct_set(float x) { ct_v v = {x, x, x, x, x, x, x, x}; return v; }
CT_INLINE ct_u ct_word(uint32_t x) { ct_u v = {x, x, x, x, x, x, x, x}; return v; }
CT_INLINE float ct_sum(ct_v x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }
#else
CT_INLINE ct_v ct_set(float x) { ct_v v = {x, x, x, x}; return v; }
CT_INLINE ct_u ct_word(uint32_t x) { ct_u v = {x, x, x, x}; return v; }
CT_INLINE float ct_sum(ct_v x) { return (x[0] + x[2]) + (x[1] + x[3]); }
#endif
CT_INLINE ct_v ct_load(const float *p) { return *(const ct_loose *)p; }
CT_INLINE void ct_store(float *p, ct_v x) { *(ct_loose *)p = x; }
CT_INLINE ct_u ct_bits(ct_v x) { return (ct_u)x; }
CT_INLINE ct_v ct_float(ct_u x) { return (ct_v)x; }
CT_INLINE ct_v ct_larger(ct_v x, ct_v y) { ct_u m = (ct_u)(x > y); return (ct_v)((m & (ct_u)x) | (~m & (ct_u)y)); }
CT_INLINE ct_v ct_smaller(ct_v x, ct_v y) { ct_u m = (ct_u)(x < y); return (ct_v)((m & (ct_u)x) | (~m & (ct_u)y)); }
CT_INLINE ct_v ct_above(ct_v x, ct_v y, ct_v z) { return (ct_v)((ct_u)(x > y) & (ct_u)z); } /* z where x > y, else 0 */
CT_INLINE float ct_lane(ct_v x, int k) { return x[k]; }
#else
#define CT_INLINE static inline CT_UNUSED
#define CT_KERNEL static CT_UNUSED
#define CT_TABLE static const CT_UNUSED
#define CT_LANES 1
typedef float ct_v;
typedef uint32_t ct_u;
CT_INLINE ct_v ct_set(float x) { return x; }
CT_INLINE ct_u ct_word(uint32_t x) { return x; }
CT_INLINE float ct_sum(ct_v x) { return x; }
CT_INLINE ct_v ct_load(const float *p) { return *p; }
CT_INLINE void ct_store(float *p, ct_v x) { *p = x; }
CT_INLINE ct_u ct_bits(ct_v x) { union { float f; uint32_t u; } c; c.f = x; return c.u; }
CT_INLINE ct_v ct_float(ct_u x) { union { float f; uint32_t u; } c; c.u = x; return c.f; }
CT_INLINE ct_v ct_larger(ct_v x, ct_v y) { return x > y ? x : y; }
CT_INLINE ct_v ct_smaller(ct_v x, ct_v y) { return x < y ? x : y; }
CT_INLINE ct_v ct_above(ct_v x, ct_v y, ct_v z) { return x > y ? z : 0.0f; }
CT_INLINE float ct_lane(ct_v x, int k) { (void)k; return x; }
#endif
#define CT_GROUP 8 /* states in a group, for every CT_LANES: the layout of tables does not depend on the machine */

/* Numbers below 1e-30 become zero: decaying states do not reach the subnormal range, which is slow on many CPUs. */
CT_INLINE ct_v ct_flush(ct_v x) { return ct_above(ct_float(ct_bits(x) & ct_word(0x7fffffffu)), ct_set(1e-30f), x); }
CT_INLINE float ct_flush1(float x) { return x > 1e-30f || x < -1e-30f || x != x ? x : 0.0f; }

/* 1 / sqrt(x) of a positive number: an estimate from the exponent and three Newton steps. */
CT_INLINE ct_v ct_rsqrt(ct_v x) {
  ct_v h = ct_set(0.5f) * x, y = ct_float(ct_word(0x5f3759dfu) - (ct_bits(x) >> 1));
  y = y * (ct_set(1.5f) - h * y * y);
  y = y * (ct_set(1.5f) - h * y * y);
  return y * (ct_set(1.5f) - h * y * y);
}
CT_INLINE float ct_rsqrt1(float x) { return ct_lane(ct_rsqrt(ct_set(x)), 0); }

CT_INLINE void ct_store_some(float *p, ct_v x, int count) {
  float lanes[CT_LANES];
  int k;
  if (count >= CT_LANES) { ct_store(p, x); return; }
  ct_store(lanes, x);
  for (k = 0; k < count; k++) p[k] = lanes[k];
}

/*@ exp: base */
/* e^x for x clamped to -87..88: x = n ln 2 + f, a polynomial of f (Cephes), and n added to the exponent. */
CT_INLINE ct_v ct_exp(ct_v x) {
  ct_v big = ct_set(12582912.0f), z, r, f, p; /* 1.5 * 2^23: adding it rounds to a whole number */
  x = ct_smaller(ct_larger(x, ct_set(-87.0f)), ct_set(88.0f));
  z = x * ct_set(1.44269504f) + big;
  r = z - big;
  f = x - r * ct_set(0.693359375f);
  f = f + r * ct_set(2.12194440e-4f);
  p = ct_set(1.9875691500e-4f) * f + ct_set(1.3981999507e-3f);
  p = p * f + ct_set(8.3334519073e-3f);
  p = p * f + ct_set(4.1665795894e-2f);
  p = p * f + ct_set(1.6666665459e-1f);
  p = p * f + ct_set(5.0000001201e-1f);
  p = p * f * f + f + ct_set(1.0f);
  return p * ct_float((ct_bits(z) << 23) + ct_word(0x3f800000u));
}

/*@ log: base */
/* The natural logarithm of a positive number: its exponent, and a series in (m - 1) / (m + 1). */
CT_INLINE ct_v ct_log(ct_v x) {
  ct_u from = ct_word(0x3f3504f3u), bits = ct_bits(x) - from; /* sqrt(1/2), so that m is near one */
  ct_v m = ct_float((bits & ct_word(0x007fffffu)) + from);
  ct_u shifted = (bits >> 23) + ct_word(0x4b000000u); /* 2^23 + exponent modulo 512 */
  ct_v n = ct_float(shifted) - ct_set(8388608.0f);
  ct_v s, q, p;
  n = n - ct_above(n, ct_set(255.5f), ct_set(512.0f));
  s = (m - ct_set(1.0f)) / (m + ct_set(1.0f));
  q = s * s;
  p = ct_set(0.22222222f) * q + ct_set(0.28571429f);
  p = p * q + ct_set(0.4f);
  p = p * q + ct_set(0.66666667f);
  p = p * q + ct_set(2.0f);
  return n * ct_set(0.693147181f) + p * s;
}

/*@ sigmoid: exp */
CT_INLINE ct_v ct_sigmoid(ct_v x) { return ct_set(1.0f) / (ct_set(1.0f) + ct_exp(ct_set(0.0f) - x)); }

/*@ product: base */
/* y (m, n) = x (m, k) w scale + bias, where the table w (k, n) is stored in panels of 16 columns; the last panel has 8 if
   at most 8 are left. scale and bias may be null. */
#if defined(CT_WEIGHTS_FP32)
typedef float ct_w;
CT_INLINE ct_v ct_weight(const ct_w *p) { return ct_load(p); }
#elif defined(CT_WEIGHTS_FP16)
typedef uint16_t ct_w; /* IEEE half precision, normal numbers and zero only */
#if CT_LANES == 1
CT_INLINE ct_v ct_weight(const ct_w *p) {
  return ct_float(((uint32_t)(*p & 0x8000u) << 16) | ((uint32_t)(*p & 0x7fffu) << 13)) * 5.192296858534828e33f;
}
#elif defined(__F16C__) && CT_LANES == 8
#include <immintrin.h>
CT_INLINE ct_v ct_weight(const ct_w *p) { return (ct_v)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
#else
typedef int32_t ct_int __attribute__((vector_size(4 * CT_LANES)));
#ifdef __wasm_simd128__
#include <wasm_simd128.h>
CT_INLINE ct_int ct_upper(const ct_w *p) { return (ct_int)wasm_u32x4_load16x4(p) << 16; }
#elif defined(__SSE2__) && CT_LANES == 4 /* gcc would convert a narrow vector number by number */
#include <emmintrin.h>
CT_INLINE ct_int ct_upper(const ct_w *p) {
  return (ct_int)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)p));
}
#else
typedef ct_w ct_narrow __attribute__((vector_size(2 * CT_LANES), aligned(2), may_alias));
CT_INLINE ct_int ct_upper(const ct_w *p) { return (ct_int)(__builtin_convertvector(*(const ct_narrow *)p, ct_u) << 16); }
#endif
CT_INLINE ct_v ct_weight(const ct_w *p) { /* shift exponent and fraction to their places, but not the sign */
  return ct_float((ct_u)(ct_upper(p) >> 3) & ct_word(0x8fffe000u)) * ct_set(5.192296858534828e33f);
}
#endif
#else
#ifdef CT_WEIGHTS_INT16
typedef int16_t ct_w;
#else
typedef int8_t ct_w;
#endif
#if CT_LANES == 1
CT_INLINE ct_v ct_weight(const ct_w *p) { return (float)*p; }
#elif defined(__AVX2__)
#include <immintrin.h>
CT_INLINE ct_v ct_weight(const ct_w *p) {
#ifdef CT_WEIGHTS_INT16
  return (ct_v)_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)p)));
#else
  return (ct_v)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#endif
}
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
CT_INLINE ct_v ct_weight(const ct_w *p) {
#ifdef CT_WEIGHTS_INT16
  v128_t h = wasm_i32x4_load16x4(p);
#else
  v128_t h = wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p)));
#endif
  __asm__("" : "+r"(h)); /* without it, clang converts narrow vectors to floats one by one */
  return (ct_v)wasm_f32x4_convert_i32x4(h);
}
#elif defined(__SSE2__) && CT_LANES == 4 /* gcc would convert a narrow vector number by number */
#include <emmintrin.h>
typedef int32_t ct_four __attribute__((aligned(1), may_alias));
CT_INLINE ct_v ct_weight(const ct_w *p) { /* each number is moved to the upper bits of a lane and shifted down */
#ifdef CT_WEIGHTS_INT16
  __m128i h = _mm_loadl_epi64((const __m128i *)p);
#else
  __m128i h = _mm_cvtsi32_si128(*(const ct_four *)p);
  h = _mm_unpacklo_epi8(h, h);
#endif
  return (ct_v)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(h, h), 32 - 8 * (int)sizeof(ct_w)));
}
#else
typedef ct_w ct_narrow __attribute__((vector_size(sizeof(ct_w) * CT_LANES), aligned(sizeof(ct_w)), may_alias));
typedef int32_t ct_int __attribute__((vector_size(4 * CT_LANES)));
CT_INLINE ct_v ct_weight(const ct_w *p) {
  return __builtin_convertvector(__builtin_convertvector(*(const ct_narrow *)p, ct_int), ct_v);
}
#endif
#endif

/* Vectors of CT_WIDE columns. Reading weights takes most of the time, and wide loads read more bytes at once. */
#if defined(CT_WEIGHTS_FP32) && defined(__AVX512F__) && CT_LANES == 8
#define CT_WIDE 16
typedef float ct_p __attribute__((vector_size(64)));
typedef float ct_loose_p __attribute__((vector_size(64), aligned(4), may_alias));
CT_INLINE ct_p ct_set_p(float x) { ct_p v = {x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; return v; }
CT_INLINE ct_p ct_load_p(const float *p) { return *(const ct_loose_p *)p; }
CT_INLINE ct_p ct_weight_p(const ct_w *p) { return ct_load_p(p); }
CT_INLINE void ct_store_p(float *p, ct_p x, int count) {
  int k;
  if (count >= CT_WIDE) *(ct_loose_p *)p = x;
  else
    for (k = 0; k < count; k++) p[k] = x[k];
}
#else
#define CT_WIDE CT_LANES
typedef ct_v ct_p;
#define ct_set_p ct_set
#define ct_load_p ct_load
#define ct_weight_p ct_weight
#define ct_store_p ct_store_some
#endif

/* CT_TILE columns of `rows` rows; with few rows, separate sums for `at_once` values of k hide the latency of additions
   (rows * at_once is 4). */
#if CT_WIDE >= 8
#define CT_TILE 16
#elif CT_WIDE == 4
#define CT_TILE 8
#else
#define CT_TILE 4
#endif
CT_INLINE void ct_tile(const float *x, const ct_w *w, float *y, int k, int n, int width, int ldx, int ldy,
                       const float *scale, const float *bias, const int rows, const int at_once, const int vectors) {
  ct_p sum[4][CT_TILE / CT_WIDE];
  int r, q, v, i = 0;
  for (r = 0; r < 4; r++)
    for (v = 0; v < vectors; v++) sum[r][v] = ct_set_p(0.0f);
  for (; i + at_once <= k; i += at_once)
    for (q = 0; q < at_once; q++) {
      ct_p b[CT_TILE / CT_WIDE];
      for (v = 0; v < vectors; v++) b[v] = ct_weight_p(w + (size_t)(i + q) * (size_t)width + v * CT_WIDE);
      for (r = 0; r < rows; r++) {
        ct_p a = ct_set_p(x[r * ldx + i + q]);
        for (v = 0; v < vectors; v++) sum[r * at_once + q][v] = a * b[v] + sum[r * at_once + q][v];
      }
    }
  for (; i < k; i++)
    for (r = 0; r < rows; r++)
      for (v = 0; v < vectors; v++)
        sum[r * at_once][v] += ct_set_p(x[r * ldx + i]) * ct_weight_p(w + (size_t)i * (size_t)width + v * CT_WIDE);
  for (r = 0; r < rows; r++)
    for (v = 0; v < vectors; v++) {
      ct_p s = sum[r * at_once][v];
      for (q = 1; q < at_once; q++) s += sum[r * at_once + q][v];
      if (scale) s *= ct_load_p(scale + v * CT_WIDE);
      if (bias) s += ct_load_p(bias + v * CT_WIDE);
      if (v * CT_WIDE < n) ct_store_p(y + r * ldy + v * CT_WIDE, s, n - v * CT_WIDE);
    }
}

CT_INLINE void ct_columns(const float *x, const ct_w *w, float *y, int m, int k, int n, int width, int ldy,
                          const float *scale, const float *bias, const int vectors) {
  int r = 0;
  for (; r + 4 <= m; r += 4)
    ct_tile(x + r * k, w, y + r * ldy, k, n, width, k, ldy, scale, bias, 4, 1, vectors);
  for (; r + 2 <= m; r += 2)
    ct_tile(x + r * k, w, y + r * ldy, k, n, width, k, ldy, scale, bias, 2, 2, vectors);
  for (; r < m; r++)
    ct_tile(x + r * k, w, y + r * ldy, k, n, width, k, ldy, scale, bias, 1, 4, vectors);
}

CT_KERNEL void ct_product(const float *x, const ct_w *w, const float *scale, const float *bias, float *y, int m, int k,
                          int n) {
  int j, c;
  for (j = 0; j < n; j += 16) {
    int width = n - j > 8 ? 16 : 8;
    for (c = 0; c < width && j + c < n; c += CT_TILE) {
      const float *s = scale ? scale + j + c : 0, *b = bias ? bias + j + c : 0;
#if CT_WIDE == 8
      if (width == 8) ct_columns(x, w + c, y + j + c, m, k, n - j - c, width, n, s, b, 1);
      else
#endif
      ct_columns(x, w + c, y + j + c, m, k, n - j - c, width, n, s, b, CT_TILE / CT_WIDE);
    }
    w += (size_t)k * (size_t)width;
  }
}

/*@ modes: base */
/* `count` recurrences x[t] = a x[t-1] + v[t], each adding Re(w x[t]) to y[t]; tables and states are in groups of lanes.

   p: (ar, ai, wr, wi) of every recurrence, s: (xr, xi). The input v is a vector (`spread`: one for every recurrence) or
   one number for all lanes (`same`). With `summed` the lanes are added up into one number. vi and yi are the imaginary
   parts of a complex input (`driven`) and result (`read`), which is -Im(w x). */
CT_INLINE void ct_chains(const float *v, const float *vi, float *y, float *yi, int frames, int ldv, int ldy, int live,
                         const float *p, float *s, const int count, const int same, const int summed,
                         const int spread, const int driven, const int read) {
  ct_v ar[4], ai[4], wr[4], wi[4], xr[4], xi[4];
  int k, t;
  for (k = 0; k < count; k++) {
    ar[k] = ct_load(p + 4 * CT_GROUP * k);
    ai[k] = ct_load(p + 4 * CT_GROUP * k + CT_GROUP);
    wr[k] = ct_load(p + 4 * CT_GROUP * k + 2 * CT_GROUP);
    wi[k] = ct_load(p + 4 * CT_GROUP * k + 3 * CT_GROUP);
    xr[k] = ct_load(s + 2 * CT_GROUP * k);
    xi[k] = ct_load(s + 2 * CT_GROUP * k + CT_GROUP);
  }
  for (t = 0; t < frames; t++) {
    const float *u = v + (size_t)t * (size_t)ldv, *ui = driven ? vi + (size_t)t * (size_t)ldv : u;
    float *o = y + (size_t)t * (size_t)ldy, *oi = read ? yi + (size_t)t * (size_t)ldy : o;
    ct_v sum = ct_set(0.0f), sumi = ct_set(0.0f);
    for (k = 0; k < count; k++) {
      int at = spread ? CT_GROUP * k : 0;
      ct_v d = same ? ct_set(*u) : ct_load(u + at), r = ar[k] * xr[k] - ai[k] * xi[k] + d, i = ai[k] * xr[k] + ar[k] * xi[k];
      if (driven) i += same ? ct_set(*ui) : ct_load(ui + at);
      xr[k] = r;
      xi[k] = i;
      if (spread) {
        sum = wr[k] * r - wi[k] * i;
        ct_store_some(o + at, sum, live - at);
        if (read) ct_store_some(oi + at, ct_set(0.0f) - wr[k] * i - wi[k] * r, live - at);
      } else {
        sum = wr[k] * r + sum;
        sum = sum - wi[k] * i;
        if (read) sumi = sumi - wr[k] * i - wi[k] * r;
      }
    }
    if (summed) {
      *o += ct_sum(sum);
      if (read) *oi += ct_sum(sumi);
    } else if (!spread) {
      ct_store_some(o, ct_load(o) + sum, live);
      if (read) ct_store_some(oi, ct_load(oi) + sumi, live);
    }
  }
  for (k = 0; k < count; k++) {
    ct_store(s + 2 * CT_GROUP * k, ct_flush(xr[k]));
    ct_store(s + 2 * CT_GROUP * k + CT_GROUP, ct_flush(xi[k]));
  }
}

CT_INLINE void ct_zero(float *y, size_t n) {
  size_t k;
  for (k = 0; k < n; k++) y[k] = 0.0f;
}

/*@ channels: modes */
/* A state-space layer that does not mix channels, with `modes` states for each of n channels. A frame of a complex
   signal has its real parts first, then its imaginary parts. */
CT_INLINE void ct_channels_(const float *v, float *y, int frames, int n, int modes, const float *p, float *s,
                            const int driven, const int read) {
  const float *vi = driven ? v + n : v;
  float *yi = read ? y + n : y;
  int g, l, k, ldv = driven ? 2 * n : n, ldy = read ? 2 * n : n;
  if (modes > 1) ct_zero(y, (size_t)frames * (size_t)ldy);
#define CT_CALL(count, spread)                                                                                     \
  for (l = 0; l < CT_GROUP && g + l < n; l += CT_LANES)                                                            \
    ct_chains(v + g + l, vi + g + l, y + g + l, yi + g + l, frames, ldv, ldy, n - g - l, p + l, s + l, count, 0, 0, \
              spread, driven, read);                                                                               \
  p += 4 * CT_GROUP * count;                                                                                       \
  s += 2 * CT_GROUP * count
  if (modes == 1) {
    for (g = 0; g + 3 * CT_GROUP < n; g += 4 * CT_GROUP) { CT_CALL(4, 1); }
    for (; g < n; g += CT_GROUP) { CT_CALL(1, 1); }
  } else {
    for (g = 0; g < n; g += CT_GROUP) {
      for (k = 0; k + 4 <= modes; k += 4) { CT_CALL(4, 0); }
      for (; k + 2 <= modes; k += 2) { CT_CALL(2, 0); }
      for (; k < modes; k++) { CT_CALL(1, 0); }
    }
  }
#undef CT_CALL
}
CT_KERNEL void ct_channels(const float *v, float *y, int frames, int n, int modes, const float *p, float *s) {
  ct_channels_(v, y, frames, n, modes, p, s, 0, 0);
}

/*@ complex_channels: channels */
CT_KERNEL void ct_complex_channels(const float *v, float *y, int frames, int n, int modes, const float *p, float *s,
                                   int driven, int read) {
  if (driven && read) ct_channels_(v, y, frames, n, modes, p, s, 1, 1);
  else if (driven) ct_channels_(v, y, frames, n, modes, p, s, 1, 0);
  else ct_channels_(v, y, frames, n, modes, p, s, 0, 1);
}

/*@ crossed: modes */
/* A state-space layer with `modes` states for every pair of input and output of a group; lanes are outputs (or, with
   `summed`, modes). */
CT_INLINE void ct_crossed_(const float *v, float *y, int frames, int groups, int in, int out, int modes, const float *p,
                           float *s, const int summed, const int driven, const int read) {
  const float *vi = driven ? v + groups * in : v;
  float *yi = read ? y + groups * out : y;
  int g, j, i, k, l, step = summed ? 1 : CT_GROUP;
  int ldv = driven ? 2 * groups * in : groups * in, ldy = read ? 2 * groups * out : groups * out;
  ct_zero(y, (size_t)frames * (size_t)ldy);
#define CT_CALL(count)                                                                                               \
  for (l = 0; l < CT_GROUP && (summed || j + l < out); l += CT_LANES)                                                \
    ct_chains(v + g * in + i, vi + g * in + i, y + g * out + j + (summed ? 0 : l), yi + g * out + j + (summed ? 0 : l), \
              frames, ldv, ldy, out - j - l, p + l, s + l, count, 1, summed, 0, driven, read);                       \
  p += 4 * CT_GROUP * count;                                                                                         \
  s += 2 * CT_GROUP * count
  for (g = 0; g < groups; g++)
    for (j = 0; j < out; j += step)
      for (i = 0; i < in; i++) {
        for (k = 0; k + 4 <= modes; k += 4) { CT_CALL(4); }
        for (; k + 2 <= modes; k += 2) { CT_CALL(2); }
        for (; k < modes; k++) { CT_CALL(1); }
      }
#undef CT_CALL
}
CT_KERNEL void ct_crossed(const float *v, float *y, int frames, int groups, int in, int out, int modes, const float *p,
                          float *s) {
  ct_crossed_(v, y, frames, groups, in, out, modes, p, s, 0, 0, 0);
}

/*@ summed: crossed */
CT_KERNEL void ct_summed(const float *v, float *y, int frames, int groups, int in, int out, int modes, const float *p,
                         float *s) {
  ct_crossed_(v, y, frames, groups, in, out, modes, p, s, 1, 0, 0);
}

/*@ complex_crossed: crossed */
CT_KERNEL void ct_complex_crossed(const float *v, float *y, int frames, int groups, int in, int out, int modes,
                                  const float *p, float *s, int driven, int read) {
  if (driven && read) ct_crossed_(v, y, frames, groups, in, out, modes, p, s, 0, 1, 1);
  else if (driven) ct_crossed_(v, y, frames, groups, in, out, modes, p, s, 0, 1, 0);
  else ct_crossed_(v, y, frames, groups, in, out, modes, p, s, 0, 0, 1);
}

/*@ norm: base */
/* Every frame minus its mean over the channels, divided by its standard deviation, times a scale, plus a bias. */
CT_KERNEL void ct_norm(const float *x, float *y, int frames, int n, const float *scale, const float *bias) {
  int t, c, l;
  if (n >= 8) {
    for (t = 0; t < frames; t++, x += n, y += n) {
      ct_v sum = ct_set(0.0f), power = ct_set(0.0f), m, k;
      float mean, square, deviation;
      for (c = 0; c + CT_LANES <= n; c += CT_LANES) sum += ct_load(x + c);
      for (mean = ct_sum(sum); c < n; c++) mean += x[c];
      mean /= (float)n;
      m = ct_set(mean);
      for (c = 0; c + CT_LANES <= n; c += CT_LANES) power += (ct_load(x + c) - m) * (ct_load(x + c) - m);
      for (square = ct_sum(power); c < n; c++) square += (x[c] - mean) * (x[c] - mean);
      deviation = ct_rsqrt1(square / (float)n + 1e-5f);
      k = ct_set(deviation);
      for (c = 0; c + CT_LANES <= n; c += CT_LANES)
        ct_store(y + c, (ct_load(x + c) - m) * k * ct_load(scale + c) + ct_load(bias + c));
      for (; c < n; c++) y[c] = (x[c] - mean) * deviation * scale[c] + bias[c];
    }
    return;
  }
  for (t = 0; t < frames; t += CT_LANES) { /* few channels: lanes over frames */
    float rows[8][CT_LANES];
    int live = frames - t < CT_LANES ? frames - t : CT_LANES;
    ct_v mean = ct_set(0.0f), power = ct_set(0.0f), k;
    for (c = 0; c < n; c++) {
      for (l = 0; l < CT_LANES; l++) rows[c][l] = l < live ? x[(t + l) * n + c] : 0.0f;
      mean += ct_load(rows[c]);
    }
    mean = mean / ct_set((float)n);
    for (c = 0; c < n; c++) power += (ct_load(rows[c]) - mean) * (ct_load(rows[c]) - mean);
    k = ct_rsqrt(power / ct_set((float)n) + ct_set(1e-5f));
    for (c = 0; c < n; c++) {
      ct_store(rows[c], (ct_load(rows[c]) - mean) * k * ct_set(scale[c]) + ct_set(bias[c]));
      for (l = 0; l < live; l++) y[(t + l) * n + c] = rows[c][l];
    }
  }
}

/*@ relu: base */
CT_KERNEL void ct_relu(const float *x, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) ct_store(y + k, ct_larger(ct_load(x + k), ct_set(0.0f)));
}

/*@ logistic: sigmoid */
CT_KERNEL void ct_logistic(const float *x, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) ct_store(y + k, ct_sigmoid(ct_load(x + k)));
}

/*@ tanh: sigmoid */
CT_KERNEL void ct_tanh(const float *x, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES)
    ct_store(y + k, ct_set(2.0f) * ct_sigmoid(ct_set(2.0f) * ct_load(x + k)) - ct_set(1.0f));
}

/*@ gelu_tanh: sigmoid */
/* x times the normal distribution function, approximated by (1 + tanh z) / 2 = sigmoid(2 z) with
   z = sqrt(2 / pi) (x + 0.044715 x^3). */
CT_KERNEL void ct_gelu_tanh(const float *x, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) {
    ct_v u = ct_load(x + k), z = u * (ct_set(0.0713548163f) * u * u + ct_set(1.59576912f));
    ct_store(y + k, u * ct_sigmoid(z));
  }
}

/*@ gelu: exp */
/* x times the normal distribution function; the error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
CT_KERNEL void ct_gelu(const float *x, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) {
    ct_v u = ct_load(x + k), z = ct_set(0.707106781f) * ct_float(ct_bits(u) & ct_word(0x7fffffffu)), t, p, tail;
    t = ct_set(1.0f) / (ct_set(1.0f) + ct_set(0.3275911f) * z);
    p = ct_set(1.061405429f) * t - ct_set(1.453152027f);
    p = p * t + ct_set(1.421413741f);
    p = p * t - ct_set(0.284496736f);
    p = p * t + ct_set(0.254829592f);
    tail = ct_set(0.5f) * p * t * ct_exp(ct_set(0.0f) - z * z); /* probability beyond |x| */
    ct_store(y + k, ct_larger(u, ct_set(0.0f)) - ct_float(ct_bits(u) & ct_word(0x7fffffffu)) * tail);
  }
}

/*@ silu: sigmoid */
CT_KERNEL void ct_silu(const float *x, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) ct_store(y + k, ct_load(x + k) * ct_sigmoid(ct_load(x + k)));
}

/*@ silu_add: sigmoid */
CT_KERNEL void ct_silu_add(const float *x, const float *skip, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) ct_store(y + k, ct_load(x + k) * ct_sigmoid(ct_load(x + k)) + ct_load(skip + k));
}

/*@ add_silu: sigmoid */
CT_KERNEL void ct_add_silu(const float *x, const float *skip, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) {
    ct_v z = ct_load(x + k) + ct_load(skip + k);
    ct_store(y + k, z * ct_sigmoid(z));
  }
}

/*@ add: base */
CT_KERNEL void ct_add(const float *x, const float *z, float *y, int n) {
  int k;
  for (k = 0; k < n; k += CT_LANES) ct_store(y + k, ct_load(x + k) + ct_load(z + k));
}

/*@ gate: sigmoid */
/* (y + d x) silu(gate), element by element; d has one number for each channel. */
CT_KERNEL void ct_gate(const float *y, const float *x, const float *d, const float *gate, float *out, int frames, int n) {
  int t, c;
  for (t = 0; t < frames; t++, y += n, x += n, gate += n, out += n)
    for (c = 0; c < n; c += CT_LANES) {
      ct_v g = ct_load(gate + c);
      ct_store_some(out + c, (ct_load(y + c) + ct_load(d + c) * ct_load(x + c)) * g * ct_sigmoid(g), n - c);
    }
}

/*@ part: base */
/* Copy columns from..from + n - 1 of rows of `width` numbers. */
CT_KERNEL void ct_part(const float *x, float *y, int frames, int width, int from, int n) {
  int t, c;
  for (t = 0; t < frames; t++)
    for (c = 0; c < n; c++) y[t * n + c] = x[t * width + from + c];
}

/*@ copy: base */
CT_KERNEL void ct_copy(const float *x, float *y, int n) {
  int k;
  for (k = 0; k < n; k++) y[k] = ct_flush1(x[k]);
}

/*@ pool: base */
CT_KERNEL void ct_pool(const float *x, float *y, int frames, int factor, int n) {
  int t, r, c;
  for (t = 0; t < frames; t++)
    for (c = 0; c < n; c++) {
      float sum = 0.0f;
      for (r = 0; r < factor; r++) sum += x[(t * factor + r) * n + c];
      y[t * n + c] = sum / (float)factor;
    }
}

/*@ selective: exp */
/* log(1 + e^x) = max(x, 0) + log(1 + e) with e = e^-|x|, the logarithm by a series in e / (2 + e). */
CT_INLINE ct_v ct_softplus(ct_v x) {
  ct_v size = ct_float(ct_bits(x) & ct_word(0x7fffffffu)), e = ct_exp(ct_set(0.0f) - size), r = e / (ct_set(2.0f) + e);
  ct_v q = r * r, p = ct_set(0.13333333f) * q + ct_set(0.15384615f);
  p = p * q + ct_set(0.18181818f);
  p = p * q + ct_set(0.22222222f);
  p = p * q + ct_set(0.28571429f);
  p = p * q + ct_set(0.4f);
  p = p * q + ct_set(0.66666667f);
  p = p * q + ct_set(2.0f);
  return ct_larger(x, ct_set(0.0f)) + r * p;
}

/* A selective scan: x = exp(d a) x + (d u) b and y = sum of c e x, d = softplus(raw), for each of n channels.

   b and c are columns of `wide`, which has `row` numbers in a row: b from column `from` on, c after it, `width` each. a, e
   and the states s are (n, width); in b and c the columns after the last state are zero. raw is overwritten by d. */
CT_KERNEL void ct_selective(const float *u, float *raw, const float *wide, float *y, int frames, int n, int width,
                            int from, int row, const float *a, const float *e, float *s) {
  int t, i, k;
  for (k = 0; k < frames * n; k += CT_LANES) ct_store_some(raw + k, ct_softplus(ct_load(raw + k)), frames * n - k);
  for (t = 0; t < frames; t++, u += n, raw += n, y += n, wide += row) {
    const float *b = wide + from, *c = b + width;
    for (i = 0; i < n; i++) {
      float *x = s + i * width;
      ct_v d = ct_set(raw[i]), drive = ct_set(raw[i] * u[i]), sum = ct_set(0.0f);
      for (k = 0; k < width; k += CT_LANES) {
        ct_v z = ct_exp(d * ct_load(a + i * width + k)) * ct_load(x + k) + drive * ct_load(b + k);
        ct_store(x + k, z);
        sum += ct_load(c + k) * ct_load(e + i * width + k) * z;
      }
      y[i] = ct_sum(sum);
    }
  }
  for (k = 0; k < n * width; k += CT_LANES) ct_store(s + k, ct_flush(ct_load(s + k)));
}

/*@ past: base */
/* The `kept` frames of the state, followed by these; the last ones become the state of the next step. */
CT_KERNEL void ct_past(const float *x, float *y, float *s, int frames, int kept, int n) {
  int k;
  for (k = 0; k < kept * n; k++) y[k] = s[k];
  for (k = 0; k < frames * n; k++) y[kept * n + k] = x[k];
  for (k = 0; k < kept * n; k++) s[k] = ct_flush1(y[frames * n + k]);
}

/*@ taps: base */
/* A causal convolution of each channel; x begins with taps - 1 frames of the past, so tap k of frame t is frame t + k. */
CT_KERNEL void ct_taps(const float *x, float *y, int frames, int n, int taps, const float *w, const float *bias) {
  int t, c, k;
  for (t = 0; t < frames; t++)
    for (c = 0; c < n; c += CT_LANES) {
      ct_v sum = bias ? ct_load(bias + c) : ct_set(0.0f);
      for (k = 0; k < taps; k++) sum += ct_load(x + (t + k) * n + c) * ct_load(w + k * n + c);
      ct_store_some(y + t * n + c, sum, n - c);
    }
}

/*@ patches: base */
/* Rows for a product with the weights of a convolution over bands and frames: for every output frame and output band
   `taps` frames of `across` bands, zero beyond the ends. A frame is `bands` times n numbers; x begins with the past. */
CT_KERNEL void ct_patches(const float *x, float *y, int frames, int hop, int taps, int bands, int out, int apart,
                          int across, int n) {
  int t, b, k, c;
  for (t = 0; t < frames; t++)
    for (b = 0; b < out; b++)
      for (k = 0; k < taps; k++) {
        int first = (b * apart - across / 2) * n;
        const float *row = x + (t * hop + k) * bands * n;
        for (c = 0; c < across * n; c++) *y++ = first + c < 0 || first + c >= bands * n ? 0.0f : row[first + c];
      }
}

/*@ mean: base */
/* The mean of all frames so far; s: their number, then the mean. */
CT_KERNEL void ct_mean(const float *x, float *y, int frames, int n, float *s) {
  int t, c;
  for (t = 0; t < frames; t++) {
    s[0] += 1.0f;
    for (c = 0; c < n; c++) y[t * n + c] = s[1 + c] = ct_flush1(s[1 + c] + (x[t * n + c] - s[1 + c]) / s[0]);
  }
}

/*@ window: base */
/* The mean of the last `window` frames, or of all if there are fewer; x begins with the past; s: their number. */
CT_KERNEL void ct_window(const float *x, float *y, int frames, int n, int window, float *s) {
  int t, c, k;
  for (t = 0; t < frames; t++) {
    if (s[0] < (float)window) s[0] += 1.0f;
    for (c = 0; c < n; c++) {
      float sum = 0.0f;
      for (k = 0; k < window; k++) sum += x[(t + k) * n + c];
      y[t * n + c] = sum / s[0];
    }
  }
}

/*@ dc_block: base */
CT_KERNEL void ct_dc_block(const float *x, float *y, int frames, int n, float pole, float loss, float *s) {
  int t, c;
  for (c = 0; c < n; c++) {
    float sum = s[c];
    for (t = 0; t < frames; t++) {
      float u = x[t * n + c];
      y[t * n + c] = u - loss * sum;
      sum = pole * sum + u;
    }
    s[c] = ct_flush1(sum);
  }
}

/*@ level: base */
/* The level of every hop of n numbers, which rises at once and falls by the factor `decay` per hop; y is x over it. */
CT_KERNEL void ct_level(const float *x, float *y, float *levels, int hops, int n, float floor, float decay, float *s) {
  int h, k;
  for (h = 0; h < hops; h++, x += n, y += n) {
    ct_v power = ct_set(0.0f), inverse;
    float square, level;
    for (k = 0; k + CT_LANES <= n; k += CT_LANES) power += ct_load(x + k) * ct_load(x + k);
    for (square = ct_sum(power); k < n; k++) square += x[k] * x[k];
    square = square / (float)n + floor * floor;
    level = square * ct_rsqrt1(square);
    if (*s * decay > level) level = *s * decay;
    *s = levels[h] = level;
    inverse = ct_set(1.0f / level);
    for (k = 0; k + CT_LANES <= n; k += CT_LANES) ct_store(y + k, ct_load(x + k) * inverse);
    for (; k < n; k++) y[k] = x[k] / level;
  }
}

/*@ unlevel: base */
/* Multiply by the input's level again, and mix with the share `kept` of the input. */
CT_KERNEL void ct_unlevel(const float *x, const float *input, const float *levels, float *y, int hops, int n, float kept) {
  int h, k;
  for (h = 0; h < hops; h++)
    for (k = 0; k < n; k++) y[h * n + k] = x[h * n + k] * levels[h] * (1.0f - kept) + input[h * n + k] * kept;
}

/*@ fft: base */
/* The discrete Fourier transform of n complex numbers, without bit reversal (Stockham). Returns 1 if the result is in b.
   cs and sn: cosine and sine of 2 pi k / (2 n) for k < 2 n. */
#define CT_PUT(at, x) (*(at) = (x))
#define CT_TURNED(q, re, im, set, put)                                                                              \
  put(yr + q * m + k, set(cs[q * turn]) * (re) + set(sn[q * turn]) * (im));                                         \
  put(yi + q * m + k, set(cs[q * turn]) * (im) - set(sn[q * turn]) * (re))
#define CT_FOUR(type, get, put, set)                                                                                \
  type ur = get(xr + k), ui = get(xi + k), vr = get(xr + 2 * far + k), vi = get(xi + 2 * far + k);                  \
  type pr = get(xr + far + k), pi = get(xi + far + k), zr = get(xr + 3 * far + k), zi = get(xi + 3 * far + k);      \
  put(yr + k, ur + vr + (pr + zr));                                                                                 \
  put(yi + k, ui + vi + (pi + zi));                                                                                 \
  CT_TURNED(1, ur - vr + (pi - zi), ui - vi - (pr - zr), set, put);                                                 \
  CT_TURNED(2, ur + vr - (pr + zr), ui + vi - (pi + zi), set, put);                                                 \
  CT_TURNED(3, ur - vr - (pi - zi), ui - vi + (pr - zr), set, put)
CT_KERNEL int ct_fft(float *ar, float *ai, float *br, float *bi, int n, const float *cs, const float *sn) {
  int m = 1, rest = n, swapped = 0;
  while (rest > 1) {
    int r = rest % 4 ? 2 : 4, l, j, k, p, q;
    float *other;
    while (rest % r) r++;
    l = rest / r;
    for (j = 0; j < l; j++) {
      const float *xr = ar + j * m, *xi = ai + j * m;
      float *yr = br + r * j * m, *yi = bi + r * j * m;
      if (r == 4) {
        int turn = 2 * j * m, far = l * m;
        for (k = 0; k + CT_LANES <= m; k += CT_LANES) { CT_FOUR(ct_v, ct_load, ct_store, ct_set); }
        for (; k < m; k++) { CT_FOUR(float, *, CT_PUT, ); }
        continue;
      }
      if (r == 2) {
        float c = cs[2 * j * m], s = sn[2 * j * m];
        for (k = 0; k < m; k++) {
          float dr = xr[k] - xr[l * m + k], di = xi[k] - xi[l * m + k];
          yr[k] = xr[k] + xr[l * m + k];
          yi[k] = xi[k] + xi[l * m + k];
          yr[m + k] = c * dr + s * di;
          yi[m + k] = c * di - s * dr;
        }
        continue;
      }
      for (q = 0; q < r; q++) {
        for (k = 0; k < m; k++) yr[q * m + k] = yi[q * m + k] = 0.0f;
        for (p = 0; p < r; p++) {
          int turn = (2 * n / r * (p * q % r) + 2 * j * m % (2 * n) * q) % (2 * n);
          float c = cs[turn], s = sn[turn];
          for (k = 0; k < m; k++) {
            yr[q * m + k] += c * xr[p * l * m + k] + s * xi[p * l * m + k];
            yi[q * m + k] += c * xi[p * l * m + k] - s * xr[p * l * m + k];
          }
        }
      }
    }
    other = ar; ar = br; br = other;
    other = ai; ai = bi; bi = other;
    swapped = !swapped;
    m *= r;
    rest = l;
  }
  return swapped;
}

/*@ analysis: fft */
/* Spectra of windowed frames: real parts of all bins, then imaginary parts. x begins with the past of the window; work
   has 2 * window numbers. Even and odd samples are real and imaginary part of a complex signal of half the length. */
CT_KERNEL void ct_analysis(const float *x, float *y, float *work, int frames, int window, int hop, const float *w,
                           const float *cs, const float *sn) {
  int n = window / 2, t, k;
  for (t = 0; t < frames; t++, x += hop, y += 2 * (n + 1)) {
    float *re = work, *im = work + n;
    for (k = 0; k < n; k++) {
      re[k] = x[2 * k] * w[2 * k];
      im[k] = x[2 * k + 1] * w[2 * k + 1];
    }
    if (ct_fft(re, im, work + 2 * n, work + 3 * n, n, cs, sn)) {
      re = work + 2 * n;
      im = work + 3 * n;
    }
    for (k = 0; k <= n; k++) {
      int a = k == n ? 0 : k, b = k == 0 ? 0 : n - k;
      float er = 0.5f * (re[a] + re[b]), ei = 0.5f * (im[a] - im[b]); /* spectra of even (e) and odd (q) samples */
      float qr = 0.5f * (im[a] + im[b]), qi = 0.5f * (re[b] - re[a]);
      y[k] = er + cs[k] * qr + sn[k] * qi;
      y[n + 1 + k] = ei + cs[k] * qi - sn[k] * qr;
    }
  }
}

/*@ synthesis: fft */
/* Overlap-add: the newest `kept` samples of every frame of spectra, windowed, are added to those of earlier frames (s).
   The window w includes the transform's factor 2 / window. */
CT_KERNEL void ct_synthesis(const float *x, float *y, float *work, int frames, int window, int kept, int hop,
                            const float *w, const float *cs, const float *sn, float *s) {
  int n = window / 2, t, k;
  for (t = 0; t < frames; t++, x += 2 * (n + 1), y += hop) {
    const float *xr = x, *xi = x + n + 1, *even, *odd;
    float *re = work, *im = work + n;
    for (k = 0; k < n; k++) {
      float ar = xr[k], ai = k ? xi[k] : 0.0f, br = xr[n - k], bi = k ? xi[n - k] : 0.0f;
      float dr = ar - br, di = ai + bi, qr = cs[k] * dr - sn[k] * di, qi = cs[k] * di + sn[k] * dr;
      re[k] = 0.5f * (ar + br - qi);
      im[k] = 0.5f * (ai - bi + qr);
    }
    even = re;
    odd = im;
    if (ct_fft(im, re, work + 3 * n, work + 2 * n, n, cs, sn)) { /* real and imaginary part swapped: the inverse */
      even = work + 2 * n;
      odd = work + 3 * n;
    }
    for (k = 0; k < kept; k++) {
      int at = window - kept + k;
      float sample = (at & 1 ? odd[at >> 1] : even[at >> 1]) * w[k] + (k < kept - hop ? s[k] : 0.0f);
      if (k < hop) y[k] = sample;
      else s[k - hop] = ct_flush1(sample);
    }
  }
}

/*@ power: base */
/* Power of spectra divided by the level, an exponential mean over frames of the mean over bins from `lowest` on; without
   decay the level is 1. s: the weighted sum and the sum of the weights. */
CT_KERNEL void ct_power(const float *x, float *y, float *levels, int frames, int bins, int lowest, float decay, float *s) {
  int t, k;
  for (t = 0; t < frames; t++, x += 2 * bins, y += bins) {
    float level = 1.0f;
    for (k = 0; k < bins; k += CT_LANES) {
      ct_v re = ct_load(x + k), im = ct_load(x + bins + k);
      ct_store_some(y + k, re * re + im * im, bins - k);
    }
    if (decay > 0.0f) {
      ct_v sum = ct_set(0.0f);
      float mean, inverse;
      for (k = lowest; k + CT_LANES <= bins; k += CT_LANES) sum += ct_load(y + k);
      for (mean = ct_sum(sum); k < bins; k++) mean += y[k];
      s[0] = ct_flush1(decay * s[0] + (1.0f - decay) * mean / (float)(bins - lowest));
      s[1] = decay * s[1] + (1.0f - decay);
      level = s[0] / s[1] + 1e-10f;
      inverse = 1.0f / level;
      for (k = 0; k < bins; k += CT_LANES) ct_store_some(y + k, ct_load(y + k) * ct_set(inverse), bins - k);
    }
    levels[t] = level;
  }
}

/*@ compress: exp log */
/* Compressed spectra: magnitudes relative to the level to a power, then real and imaginary parts of that magnitude. */
CT_KERNEL void ct_compress(const float *x, const float *relative, const float *levels, float *y, int frames, int bins,
                           float half_power) {
  int t, k;
  for (t = 0; t < frames; t++, x += 2 * bins, relative += bins, y += 3 * bins)
    for (k = 0; k < bins; k += CT_LANES) {
      ct_v r = ct_load(relative + k) + ct_set(1e-8f), magnitude = ct_exp(ct_set(half_power) * ct_log(r));
      ct_v scale = magnitude * ct_rsqrt(r * ct_set(levels[t]));
      ct_store_some(y + k, magnitude, bins - k);
      ct_store_some(y + bins + k, ct_load(x + k) * scale, bins - k);
      ct_store_some(y + 2 * bins + k, ct_load(x + bins + k) * scale, bins - k);
    }
}

/*@ bands: exp log */
/* The power of bands to the exponent half_power, or its logarithm if that is 0. */
CT_KERNEL void ct_bands(const float *x, float *y, int n, float half_power) {
  int k;
  for (k = 0; k < n; k += CT_LANES) {
    ct_v p = ct_load(x + k);
    if (half_power > 0.0f) p = ct_exp(ct_set(half_power) * ct_log(p + ct_set(1e-8f)));
    else p = ct_set(0.2f) * ct_log(p + ct_set(1e-7f));
    ct_store(y + k, p);
  }
}

/*@ mask: base */
/* Spectra times (1 + mask), complex; a frame of m has `width` numbers, of which the mask's come first. */
CT_KERNEL void ct_mask(const float *x, const float *m, float *y, int frames, int bins, int width) {
  int t, k;
  for (t = 0; t < frames; t++, x += 2 * bins, m += width, y += 2 * bins)
    for (k = 0; k < bins; k += CT_LANES) {
      ct_v re = ct_load(x + k), im = ct_load(x + bins + k), a = ct_load(m + k), b = ct_load(m + bins + k);
      ct_store_some(y + k, re + a * re - b * im, bins - k);
      ct_store_some(y + bins + k, im + a * im + b * re, bins - k);
    }
}

/*@ filter: base */
/* Add taps - 1 earlier frames of the lowest bins times complex factors, which follow the mask in m. re and im begin with
   these frames. */
CT_KERNEL void ct_filter(const float *re, const float *im, const float *m, float *y, int frames, int bins, int low,
                         int taps) {
  int t, k, age, n;
  for (t = 0; t < frames; t++, y += 2 * bins)
    for (age = 1, m += 2 * bins; age < taps; age++, m += 2 * low)
      for (k = 0, n = (t + taps - 1 - age) * low; k < low; k += CT_LANES) {
        ct_v r = ct_load(re + n + k), i = ct_load(im + n + k), a = ct_load(m + k), b = ct_load(m + low + k);
        ct_store_some(y + k, ct_load(y + k) + a * r - b * i, low - k);
        ct_store_some(y + bins + k, ct_load(y + bins + k) + a * i + b * r, low - k);
      }
}
