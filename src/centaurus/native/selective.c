/* The selective recurrence of S6 over whole signals, and its backward pass.

       x[t] = exp(-Δ[t] A) x[t-1] + Δ[t] u[t] B[t]          y[t] = Σ_n E C[t] x[t]

   u, Δ (dt), y are (b, i, t), contiguous; B and C are (b, t, n) with n padded to whole vectors by zeros, and so are
   A and E (i, n). A vector holds LANES states of one channel. Signals go in blocks; the states before each block are
   saved as (b, i, block, n), and backward computes those inside a block again. */
#include "vector.h"

#define BLOCK 64

/* Rows (b, i) first … last; saved may be null. */
int centaurus_selective_forward(const float *u, const float *dt, const float *B, const float *C, const float *A,
                                 const float *E, float *y, float *saved, long channels, long n, long t, long first,
                                 long last) {
  const long blocks = (t + BLOCK - 1) / BLOCK;
  const unsigned subnormals = flush_subnormals();
  for (long row = first; row < last; row++) {
    const long i = row % channels, b = row / channels;
    const float *v = u + row * t, *d = dt + row * t;
    float *out = y + row * t;
    memset(out, 0, sizeof(float) * (size_t)t);
    for (long m = 0; m < n; m += LANES) {
      const vec a = -load(A + i * n + m), e = load(E + i * n + m);
      const float *into = B + b * t * n + m, *from = C + b * t * n + m;
      vec x = all(0);
      for (long k = 0; k < blocks; k++) {
        const long start = k * BLOCK, end = start + BLOCK < t ? start + BLOCK : t;
        if (saved) store(saved + (row * blocks + k) * n + m, x);
        for (long s = start; s < end; s++) {
          x = vexp(all(d[s]) * a) * x + all(d[s] * v[s]) * load(into + s * n);
          out[s] += total(e * load(from + s * n) * x);
        }
      }
    }
  }
  restore_subnormals(subnormals);
  return 0;
}

/* Rows (b, i) of batch rows first … last; every gradient but dA and dE (i, n), which are added to, is written. */
int centaurus_selective_backward(const float *u, const float *dt, const float *B, const float *C, const float *A,
                                 const float *E, const float *dy, const float *saved, float *du, float *ddt, float *dB,
                                 float *dC, double *dA, double *dE, long channels, long n, long t, long first,
                                 long last) {
  const long blocks = (t + BLOCK - 1) / BLOCK;
  vec *path = vectors(2 * BLOCK + 1);
  vec *decay = path + BLOCK + 1;
  if (!path) return 1;
  const unsigned subnormals = flush_subnormals();
  for (long b = first; b < last; b++) {
    memset(dB + b * t * n, 0, sizeof(float) * (size_t)(t * n));
    memset(dC + b * t * n, 0, sizeof(float) * (size_t)(t * n));
    for (long i = 0; i < channels; i++) {
      const long row = b * channels + i;
      const float *v = u + row * t, *d = dt + row * t, *g = dy + row * t;
      float *gv = du + row * t, *gd = ddt + row * t; /* of Δ u, and of Δ alone, until the end */
      memset(gv, 0, sizeof(float) * (size_t)t);
      memset(gd, 0, sizeof(float) * (size_t)t);
      for (long m = 0; m < n; m += LANES) {
        const vec a = -load(A + i * n + m), e = load(E + i * n + m);
        const float *into = B + b * t * n + m, *from = C + b * t * n + m;
        float *ginto = dB + b * t * n + m, *gfrom = dC + b * t * n + m;
        vec p = all(0);
        for (long k = blocks - 1; k >= 0; k--) {
          const long start = k * BLOCK;
          const int count = t - start < BLOCK ? (int)(t - start) : BLOCK;
          vec x = load(saved + (row * blocks + k) * n + m), da = all(0), de = all(0);
          path[0] = x;
          for (int s = 0; s < count; s++) decay[s] = vexp(all(d[start + s]) * a);
          for (int s = 0; s < count; s++) {
            const long at = start + s;
            x = decay[s] * x + all(d[at] * v[at]) * load(into + at * n);
            path[s + 1] = x;
          }
          for (int s = count - 1; s >= 0; s--) {
            const long at = start + s;
            const vec q = all(g[at]), c = load(from + at * n), in = load(into + at * n), xq = path[s + 1] * q;
            p += e * c * q;
            de += c * xq;
            store(gfrom + at * n, load(gfrom + at * n) + e * xq);
            store(ginto + at * n, load(ginto + at * n) + p * all(d[at] * v[at]));
            gv[at] += total(p * in);
            p *= decay[s];
            const vec lost = p * path[s]; /* the gradient of log decay */
            gd[at] += total(a * lost);
            da += all(d[at]) * lost;
          }
          for (int q = 0; q < LANES; q++) dA[i * n + m + q] -= da[q], dE[i * n + m + q] += de[q];
        }
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
