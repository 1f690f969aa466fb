/* Vectors of floats as wide as the machine's registers, by vector extensions of GCC (12 and later) and clang.
   Compile without -ffast-math, which removes rounding by adding a large number. */
#ifndef CENTAURUS_VECTOR_H
#define CENTAURUS_VECTOR_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int ivec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define KERNEL static __attribute__((noinline, unused))

INLINE vec all(float x) { return x - (vec){0}; }
INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec x) { *(loose *)p = x; }
INLINE vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* Load the first n lanes; the others are zero. */
INLINE vec load_some(const float *p, int n) {
  vec x = {0};
  memcpy(&x, p, sizeof(float) * n);
  return x;
}

INLINE float total(vec x) {
#if LANES == 16
  typedef float half __attribute__((vector_size(32)));
  half h = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#elif LANES == 8
  const vec h = x;
#endif
#if LANES > 4
  typedef float quarter __attribute__((vector_size(16)));
  quarter q = __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#else
  const vec q = x;
#endif
  return (q[0] + q[2]) + (q[1] + q[3]);
}

/* Between the two calls numbers below 1e-38 are zero: on many CPUs, arithmetic on subnormal numbers (the end of a decay)
   is slow. */
#ifdef __SSE__
INLINE unsigned flush_subnormals(void) {
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040u);
  return before;
}
INLINE void restore_subnormals(unsigned before) { __builtin_ia32_ldmxcsr(before); }
#else
INLINE unsigned flush_subnormals(void) { return 0; }
INLINE void restore_subnormals(unsigned before) { (void)before; }
#endif

/* exp(x) to about 1e-7, with x clamped to -87 … 88: 2^k times a polynomial (Cephes) on |f| <= log(2) / 2. */
INLINE vec vexp(vec x) {
  x = pick(x > all(88.f), all(88.f), x);
  x = pick(x < all(-87.f), all(-87.f), x);
  const vec magic = all(12582912.f); /* 1.5 * 2^23: adding it rounds to a whole number */
  vec shifted = x * all(1.44269504f) + magic, rounded = shifted - magic;
  vec f = x - rounded * all(0.693359375f) + rounded * all(2.12194440e-4f);
  vec p = all(1.9875691500e-4f);
  p = p * f + all(1.3981999507e-3f);
  p = p * f + all(8.3334519073e-3f);
  p = p * f + all(4.1665795894e-2f);
  p = p * f + all(1.6666665459e-1f);
  p = p * f + all(5.0000001201e-1f);
  p = p * f * f + f + all(1.f);
  ivec k = __builtin_convertvector(rounded, ivec);
  return p * (vec)((k + 127) << 23);
}

/* log(x) of a positive normal number: its exponent, and a series in (m - 1) / (m + 1) with m near one. */
INLINE vec vlog(vec x) {
  const ivec from = (ivec){0} + 0x3f3504f3; /* sqrt(1/2) */
  const ivec bits = (ivec)x - from;
  const vec m = (vec)((bits & 0x007fffff) + from), n = __builtin_convertvector(bits >> 23, vec);
  const vec s = (m - all(1.f)) / (m + all(1.f)), q = s * s;
  vec p = all(0.22222222f) * q + all(0.28571429f);
  p = p * q + all(0.4f);
  p = p * q + all(0.66666667f);
  p = p * q + all(2.f);
  return n * all(0.693147181f) + p * s;
}

INLINE vec vsqrt(vec x) {
  vec r = x;
  for (int k = 0; k < LANES; k++) r[k] = sqrtf(r[k]);
  return r;
}

/* Memory aligned to whole vectors, uninitialised. */
INLINE vec *vectors(long count) {
  return (vec *)aligned_alloc(sizeof(vec), sizeof(vec) * (size_t)(count > 0 ? count : 1));
}

/* Transpose LANES rows of LANES samples in place, by log2(LANES) perfect shuffles. */
INLINE void transpose(vec *r) {
#if LANES == 16
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#endif
  vec s[LANES];
  for (int round = 1; round < LANES; round *= 2) {
    for (int k = 0; k < LANES / 2; k++) {
      s[2 * k] = __builtin_shufflevector(r[k], r[k + LANES / 2], LOW);
      s[2 * k + 1] = __builtin_shufflevector(r[k], r[k + LANES / 2], HIGH);
    }
    for (int k = 0; k < LANES; k++) r[k] = s[k];
  }
}

/* Load samples start … start + n of LANES rows, one vector for each sample. */
KERNEL void gather(const float *const *rows, long start, int n, vec *out) {
  if (n < LANES) {
    for (int t = 0; t < n; t++)
      for (int k = 0; k < LANES; k++) out[t][k] = rows[k][start + t];
    return;
  }
  for (int t = 0; t < n; t += LANES) {
    const int at = t + LANES <= n ? t : n - LANES; /* the last piece overlaps the one before */
    vec r[LANES];
    for (int k = 0; k < LANES; k++) r[k] = load(rows[k] + start + at);
    transpose(r);
    for (int k = 0; k < LANES; k++) out[at + k] = r[k];
  }
}

/* Store vectors of samples to the first `count` rows: the inverse of gather. */
KERNEL void scatter(float *const *rows, int count, long start, int n, const vec *in) {
  if (n < LANES) {
    for (int t = 0; t < n; t++)
      for (int k = 0; k < count; k++) rows[k][start + t] = in[t][k];
    return;
  }
  for (int t = 0; t < n; t += LANES) {
    const int at = t + LANES <= n ? t : n - LANES;
    vec r[LANES];
    for (int k = 0; k < LANES; k++) r[k] = in[at + k];
    transpose(r);
    for (int k = 0; k < count; k++) store(rows[k] + start + at, r[k]);
  }
}

#endif
