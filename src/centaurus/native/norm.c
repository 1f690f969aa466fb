/* y = silu(scale · norm(u) + before) + after over channel-major signals, and its backward pass.

   u, before, after and y are (c, b, t), contiguous; the norm is over c, with a gain and a shift for every channel;
   scale is (c, b). before, after and scale may be null. Backward needs the mean and the reciprocal standard deviation
   of every frame, both (b, t). */
#include "vector.h"

#define WIDE 4 /* vectors in a tile of frames, which are normalised together */
#define TILE (WIDE * LANES)

/* Load a tile of n frames; missing ones are zero. */
INLINE void get(vec *out, const float *p, int n) {
  if (n == TILE) {
    for (int k = 0; k < WIDE; k++) out[k] = load(p + k * LANES);
  } else {
    memset(out, 0, sizeof(vec) * WIDE);
    memcpy(out, p, sizeof(float) * n);
  }
}

INLINE void put(float *p, const vec *x, int n) {
  if (n == TILE) {
    for (int k = 0; k < WIDE; k++) store(p + k * LANES, x[k]);
  } else {
    memcpy(p, x, sizeof(float) * n);
  }
}

INLINE void forward_tile(const float *u, const float *gain, const float *shift, const float *scale, long scale_step,
                         const float *before, const float *after, float *y, float *mean, float *rstd, long c, long step,
                         int activate, float eps, int n) {
  vec first[WIDE], sum[WIDE], square[WIDE], x[WIDE], m[WIDE], r[WIDE];
  get(first, u, n); /* subtracted from every channel, against cancellation in the variance */
  for (int k = 0; k < WIDE; k++) sum[k] = square[k] = all(0);
  for (long i = 1; i < c; i++) {
    get(x, u + i * step, n);
    for (int k = 0; k < WIDE; k++) {
      vec d = x[k] - first[k];
      sum[k] += d;
      square[k] += d * d;
    }
  }
  const vec one_over = all(1.f / (float)c);
  for (int k = 0; k < WIDE; k++) {
    vec d = sum[k] * one_over, variance = square[k] * one_over - d * d;
    variance = pick(variance < all(0), all(0), variance);
    r[k] = all(1.f) / vsqrt(variance + all(eps));
    m[k] = first[k] + d;
  }
  put(mean, m, n);
  put(rstd, r, n);
  for (long i = 0; i < c; i++) {
    const float factor = scale ? scale[i * scale_step] : 1.f;
    const vec g = all(gain[i] * factor), b = all(shift[i] * factor);
    vec more[WIDE];
    get(x, u + i * step, n);
    for (int k = 0; k < WIDE; k++) x[k] = (x[k] - m[k]) * r[k] * g + b;
    if (before) {
      get(more, before + i * step, n);
      for (int k = 0; k < WIDE; k++) x[k] += more[k];
    }
    if (activate)
      for (int k = 0; k < WIDE; k++) x[k] = x[k] / (all(1.f) + vexp(-x[k]));
    if (after) {
      get(more, after + i * step, n);
      for (int k = 0; k < WIDE; k++) x[k] += more[k];
    }
    put(y + i * step, x, n);
  }
}

/* Rows first … last of the batch. */
int centaurus_norm_forward(const float *u, const float *gain, const float *shift, const float *scale,
                           const float *before, const float *after, float *y, float *mean, float *rstd, long c, long b,
                           long t, int activate, float eps, long first, long last) {
  for (long row = first; row < last; row++)
    for (long start = 0; start < t; start += TILE) {
      const int n = t - start < TILE ? (int)(t - start) : TILE;
      const long at = row * t + start;
      const float *s = scale ? scale + row : 0, *x = before ? before + at : 0, *z = after ? after + at : 0;
      if (n == TILE)
        forward_tile(u + at, gain, shift, s, b, x, z, y + at, mean + at, rstd + at, c, b * t, activate, eps, TILE);
      else
        forward_tile(u + at, gain, shift, s, b, x, z, y + at, mean + at, rstd + at, c, b * t, activate, eps, n);
    }
  return 0;
}

INLINE void backward_tile(const float *u, const float *gain, const float *shift, const float *scale, long scale_step,
                          const float *before, const float *dy, const float *mean, const float *rstd, float *du,
                          float *dbefore, vec *sums, vec *kept, long c, long step, int activate, int n) {
  vec m[WIDE], r[WIDE], along[WIDE], across[WIDE], x[WIDE], q[WIDE], more[WIDE];
  get(m, mean, n);
  get(r, rstd, n);
  for (int k = 0; k < WIDE; k++) along[k] = across[k] = all(0);
  for (long i = 0; i < c; i++) {
    const float factor = scale ? scale[i * scale_step] : 1.f;
    const vec g = all(gain[i] * factor), b = all(shift[i] * factor);
    vec dgain = all(0), dshift = all(0);
    get(x, u + i * step, n);
    get(q, dy + i * step, n);
    for (int k = 0; k < WIDE; k++) x[k] = (x[k] - m[k]) * r[k];
    if (activate) {
      if (before) get(more, before + i * step, n);
      for (int k = 0; k < WIDE; k++) {
        vec z = x[k] * g + b;
        if (before) z += more[k];
        vec sigmoid = all(1.f) / (all(1.f) + vexp(-z));
        q[k] *= sigmoid * (all(1.f) + z * (all(1.f) - sigmoid));
      }
    }
    if (dbefore) put(dbefore + i * step, q, n);
    for (int k = 0; k < WIDE; k++) {
      vec qx = q[k] * x[k];
      dshift += q[k];
      dgain += qx;
      across[k] += q[k] * g;
      along[k] += qx * g;
      kept[i * WIDE + k] = q[k];
    }
    sums[2 * i] += dgain;
    sums[2 * i + 1] += dshift;
  }
  const vec one_over = all(1.f / (float)c);
  for (int k = 0; k < WIDE; k++) along[k] *= one_over, across[k] *= one_over;
  for (long i = 0; i < c; i++) {
    const vec g = all(gain[i] * (scale ? scale[i * scale_step] : 1.f));
    get(x, u + i * step, n);
    for (int k = 0; k < WIDE; k++)
      x[k] = (kept[i * WIDE + k] * g - across[k] - (x[k] - m[k]) * r[k] * along[k]) * r[k];
    put(du + i * step, x, n);
  }
}

/* Rows first … last; adds to dgain and dshift (c); dbefore may be null. Returns 0, or 1 if memory is exhausted. */
int centaurus_norm_backward(const float *u, const float *gain, const float *shift, const float *scale,
                            const float *before, const float *dy, const float *mean, const float *rstd, float *du,
                            float *dbefore, double *dgain, double *dshift, long c, long b, long t, int activate,
                            long first, long last) {
  vec *sums = vectors(2 * c), *kept = vectors(c * WIDE);
  const int failed = !sums || !kept;
  const long flush = 64 * TILE; /* frames summed in single precision before the sum is added in double precision */
  for (long row = first; row < last && !failed; row++)
    for (long start = 0; start < t;) {
      memset(sums, 0, sizeof(vec) * 2 * (size_t)c);
      for (const long end = start + flush < t ? start + flush : t; start < end; start += TILE) {
        const int n = end - start < TILE ? (int)(end - start) : TILE;
        const long at = row * t + start;
        const float *s = scale ? scale + row : 0, *x = before ? before + at : 0;
        float *z = dbefore ? dbefore + at : 0;
        if (n == TILE)
          backward_tile(u + at, gain, shift, s, b, x, dy + at, mean + at, rstd + at, du + at, z, sums, kept, c, b * t,
                        activate, TILE);
        else
          backward_tile(u + at, gain, shift, s, b, x, dy + at, mean + at, rstd + at, du + at, z, sums, kept, c, b * t,
                        activate, n);
      }
      for (long i = 0; i < c; i++) {
        const double factor = scale ? scale[i * b + row] : 1.0;
        dgain[i] += factor * total(sums[2 * i]);
        dshift[i] += factor * total(sums[2 * i + 1]);
      }
    }
  free(sums), free(kept);
  return failed;
}
