/* The selective recurrence of S6, and its backward pass.

       x[t] = exp(-Δ[t] A) x[t-1] + Δ[t] u[t] B[t]          y[t] = Σ_n E C[t] x[t]

   u, Δ (dt) and y are (b, i, t), contiguous; B and C are (b, t, n), A and E (i, n), with n padded to whole vectors by
   zeros. A vector holds LANES states of one channel; up to WIDE vectors are processed together, with one sum over
   states. Signals are processed in blocks of BLOCK samples. The states before each block are saved as (b, i, block, n);
   backward computes those inside a block again. */
#include "vector.h"

#define BLOCK 64
#define WIDE 4

/* w vectors of states of one channel over all samples: updates state and adds to out. */
INLINE void forward(const int w, const float *v, const float *d, const float *B, const float *C, const float *A,
                    const float *E, float *state, float *out, float *saved, long n, long t) {
  vec a[WIDE], e[WIDE], x[WIDE];
  for (int k = 0; k < w; k++)
    a[k] = -load(A + k * LANES), e[k] = load(E + k * LANES), x[k] = load(state + k * LANES);
  for (long s = 0; s < t; s++) {
    if (saved && s % BLOCK == 0)
      for (int k = 0; k < w; k++) store(saved + s / BLOCK * n + k * LANES, x[k]);
    vec sum = all(0);
    for (int k = 0; k < w; k++) {
      x[k] = vexp(all(d[s]) * a[k]) * x[k] + all(d[s] * v[s]) * load(B + s * n + k * LANES);
      sum += e[k] * load(C + s * n + k * LANES) * x[k];
    }
    out[s] += total(sum);
  }
  for (int k = 0; k < w; k++) store(state + k * LANES, x[k]);
}

/* Its backward pass. state is the gradient of the state after the signal, replaced by that of the state before it. Adds
   to gv (the gradient of Δ u), gd (the rest of the gradient of Δ), dB, dC, dA and dE. path holds (2 BLOCK + 1) WIDE
   vectors. */
INLINE void backward(const int w, const float *v, const float *d, const float *B, const float *C, const float *A,
                     const float *E, const float *g, const float *saved, float *state, float *gv, float *gd, float *dB,
                     float *dC, double *dA, double *dE, long n, long t, vec *path) {
  vec a[WIDE], e[WIDE], p[WIDE], *decay = path + (BLOCK + 1) * WIDE;
  for (int k = 0; k < w; k++)
    a[k] = -load(A + k * LANES), e[k] = load(E + k * LANES), p[k] = load(state + k * LANES);
  for (long block = (t - 1) / BLOCK; block >= 0; block--) {
    const long start = block * BLOCK;
    const int count = t - start < BLOCK ? (int)(t - start) : BLOCK;
    vec da[WIDE], de[WIDE];
    for (int k = 0; k < w; k++) {
      da[k] = de[k] = all(0);
      path[k] = load(saved + block * n + k * LANES);
    }
    for (int s = 0; s < count; s++)
      for (int k = 0; k < w; k++) {
        const long at = start + s;
        decay[s * w + k] = vexp(all(d[at]) * a[k]);
        path[(s + 1) * w + k] = decay[s * w + k] * path[s * w + k] + all(d[at] * v[at]) * load(B + at * n + k * LANES);
      }
    for (int s = count - 1; s >= 0; s--) {
      const long at = start + s;
      const vec q = all(g[at]), driven = all(d[at] * v[at]), step = all(d[at]);
      vec into = all(0), away = all(0);
      for (int k = 0; k < w; k++) {
        const long place = at * n + k * LANES;
        const vec c = load(C + place), xq = path[(s + 1) * w + k] * q;
        p[k] += e[k] * c * q;
        de[k] += c * xq;
        store(dC + place, load(dC + place) + e[k] * xq);
        store(dB + place, load(dB + place) + p[k] * driven);
        into += p[k] * load(B + place);
        p[k] *= decay[s * w + k];
        const vec lost = p[k] * path[s * w + k]; /* the gradient of log decay */
        away += a[k] * lost;
        da[k] += step * lost;
      }
      gv[at] += total(into);
      gd[at] += total(away);
    }
    for (int k = 0; k < w; k++)
      for (int q = 0; q < LANES; q++) dA[k * LANES + q] -= da[k][q], dE[k * LANES + q] += de[k][q];
  }
  for (int k = 0; k < w; k++) store(state + k * LANES, p[k]);
}

/* Rows (b, i) first … last; replaces the states x (b, i, n) by those after the signal; saved may be null. */
int centaurus_selective_forward(const float *u, const float *dt, const float *B, const float *C, const float *A,
                                const float *E, float *x, float *y, float *saved, long channels, long n, long t,
                                long first, long last) {
  const long blocks = (t + BLOCK - 1) / BLOCK;
  const unsigned subnormals = flush_subnormals();
  for (long row = first; row < last; row++) {
    const long i = row % channels, b = row / channels;
    float *out = y + row * t;
    memset(out, 0, sizeof(float) * (size_t)t);
    for (long m = 0, step; m < n; m += step) {
      step = n - m >= WIDE * LANES ? WIDE * LANES : LANES;
#define FORWARD(w)                                                                                              \
  forward(w, u + row * t, dt + row * t, B + b * t * n + m, C + b * t * n + m, A + i * n + m, E + i * n + m,     \
          x + row * n + m, out, saved ? saved + row * blocks * n + m : 0, n, t)
      if (step == LANES)
        FORWARD(1);
      else
        FORWARD(WIDE);
    }
  }
  restore_subnormals(subnormals);
  return 0;
}

/* Batch rows first … last. Adds to dA and dE (i, n) and writes the other gradients. dx (b, i, n) is the gradient of the
   state after the signal, replaced by that of the state before it. Returns 0, or 1 if memory is exhausted. */
int centaurus_selective_backward(const float *u, const float *dt, const float *B, const float *C, const float *A,
                                 const float *E, const float *dy, const float *saved, float *dx, float *du, float *ddt,
                                 float *dB, float *dC, double *dA, double *dE, long channels, long n, long t, long first,
                                 long last) {
  const long blocks = (t + BLOCK - 1) / BLOCK;
  vec *path = vectors((2 * BLOCK + 1) * WIDE);
  if (!path) return 1;
  const unsigned subnormals = flush_subnormals();
  for (long b = first; b < last; b++) {
    memset(dB + b * t * n, 0, sizeof(float) * (size_t)(t * n));
    memset(dC + b * t * n, 0, sizeof(float) * (size_t)(t * n));
    for (long i = 0; i < channels; i++) {
      const long row = b * channels + i;
      const float *v = u + row * t, *d = dt + row * t;
      float *gv = du + row * t, *gd = ddt + row * t;
      memset(gv, 0, sizeof(float) * (size_t)t);
      memset(gd, 0, sizeof(float) * (size_t)t);
      for (long m = 0, step; m < n; m += step) {
        step = n - m >= WIDE * LANES ? WIDE * LANES : LANES;
#define BACKWARD(w)                                                                                             \
  backward(w, v, d, B + b * t * n + m, C + b * t * n + m, A + i * n + m, E + i * n + m, dy + row * t,           \
           saved + row * blocks * n + m, dx + row * n + m, gv, gd, dB + b * t * n + m, dC + b * t * n + m,      \
           dA + i * n + m, dE + i * n + m, n, t, path)
        if (step == LANES)
          BACKWARD(1);
        else
          BACKWARD(WIDE);
      }
      for (long s = 0; s < t; s++) {
        gd[s] += gv[s] * v[s];
        gv[s] *= d[s];
      }
    }
  }
  restore_subnormals(subnormals);
  free(path);
  return 0;
}
