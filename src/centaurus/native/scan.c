/* Diagonal state-space recurrences over whole signals, with their backward pass.

       x[t] = a x[t-1] + u[t]          y[t] = Σ_i Σ_m Re(w x[t])

   u is (s, i, b, t) and y is (s, j, b, t), both contiguous; a and w are (s, j, i, m, 2). With i = j = 1 every channel
   s has its own m modes (pointwise, bottleneck, depthwise); with s = 1 every pair of channels has its own (full). A
   vector holds one sample of LANES rows, which may belong to different channels: small batches fill the lanes too.
   Signals are processed in blocks of BLOCK samples. The states before each block are saved as (block, s, j, i, m, 2, b);
   backward computes those inside a block again. */
#include "vector.h"

#define BLOCK 64

typedef struct {
  long s, i, j, m, b, t;
} Shape;

/* Indices of the rows in a vector: rows of y in forward, of u in backward. */
typedef struct {
  int count; /* valid rows; the others repeat the last one and are not written */
  long s[LANES], c[LANES], b[LANES];
} Rows;

INLINE Rows rows_of(long group, long channels, long batch, long rows) {
  Rows r;
  long left = rows - group * LANES;
  r.count = left < LANES ? (int)left : LANES;
  for (int k = 0; k < LANES; k++) {
    long row = group * LANES + (k < r.count ? k : r.count - 1);
    r.b[k] = row % batch;
    r.c[k] = row / batch % channels;
    r.s[k] = row / batch / channels;
  }
  return r;
}

/* Position of the first mode of input i and output j. */
INLINE long first_mode(const Shape *z, long s, long j, long i) { return ((s * z->j + j) * z->i + i) * z->m; }

/* Load (re, im) of a and of w for mode m; every lane has its own pair of channels. */
INLINE void coefficients(vec *out, const float *a, const float *w, const long *modes, long m) {
  for (int k = 0; k < LANES; k++) {
    long at = 2 * (modes[k] + m);
    out[0][k] = a[at];
    out[1][k] = a[at + 1];
    out[2][k] = w[at];
    out[3][k] = w[at + 1];
  }
}

/* Two modes at a time, interleaved to hide latency: of the same rows (same), or one of each of two groups of rows. */
INLINE void run_two(const vec *u0, const vec *u1, vec *y0, vec *y1, vec *x, const vec *c, int n, int same) {
  vec r0 = x[0], i0 = x[1], r1 = x[2], i1 = x[3];
  for (int t = 0; t < n; t++) {
    vec v0 = u0[t], v1 = same ? v0 : u1[t];
    vec s0 = c[0] * r0 + (v0 - c[1] * i0), s1 = c[4] * r1 + (v1 - c[5] * i1);
    i0 = c[0] * i0 + c[1] * r0;
    i1 = c[4] * i1 + c[5] * r1;
    r0 = s0;
    r1 = s1;
    if (same) {
      y0[t] += (c[2] * r0 - c[3] * i0) + (c[6] * r1 - c[7] * i1);
    } else {
      y0[t] += c[2] * r0 - c[3] * i0;
      y1[t] += c[6] * r1 - c[7] * i1;
    }
  }
  x[0] = r0, x[1] = i0, x[2] = r1, x[3] = i1;
}

/* Four modes of the same rows. */
INLINE void run_four(const vec *u, vec *y, vec *x, const vec *c, int n) {
  vec r[4], i[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) r[k] = x[2 * k], i[k] = x[2 * k + 1];
  for (int t = 0; t < n; t++) {
    vec sum = y[t], other = all(0);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      const vec s = c[4 * k] * r[k] + (u[t] - c[4 * k + 1] * i[k]);
      i[k] = c[4 * k] * i[k] + c[4 * k + 1] * r[k];
      r[k] = s;
      sum += c[4 * k + 2] * r[k];
      other += c[4 * k + 3] * i[k];
    }
    y[t] = sum - other;
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) x[2 * k] = r[k], x[2 * k + 1] = i[k];
}

INLINE void run_one(const vec *u, vec *y, vec *x, const vec *c, int n) {
  vec r = x[0], i = x[1];
  for (int t = 0; t < n; t++) {
    vec s = c[0] * r + (u[t] - c[1] * i);
    i = c[0] * i + c[1] * r;
    r = s;
    y[t] += c[2] * r - c[3] * i;
  }
  x[0] = r, x[1] = i;
}

/* How many lanes have their states side by side in memory: a whole vector, half of one, or one. */
INLINE int together(const Shape *z) { return z->b % LANES == 0 ? LANES : 2 * z->b == LANES ? LANES / 2 : 1; }

INLINE void save(float *saved, const Shape *z, const Rows *r, const long *modes, long m, const vec *x, int side) {
  for (int k = 0; k < r->count; k += side) {
    float *at = saved + 2 * (modes[k] + m) * z->b + r->b[k];
    memcpy(at, (const float *)&x[0] + k, sizeof(float) * side);
    memcpy(at + z->b, (const float *)&x[1] + k, sizeof(float) * side);
  }
}

INLINE void recall(const float *saved, const Shape *z, const Rows *r, const long *modes, long m, vec *x, int side) {
  for (int k = 0; k < LANES; k += side) {
    const float *at = saved + 2 * (modes[k] + m) * z->b + r->b[k];
    memcpy((float *)&x[0] + k, at, sizeof(float) * side);
    memcpy((float *)&x[1] + k, at + z->b, sizeof(float) * side);
  }
}

/* Save the states of `count` modes from mode m on; each call of save has a length that the compiler knows. */
INLINE void save_all(float *saved, const Shape *z, const Rows *r, const long *modes, long m, int count, const vec *x) {
  const int side = together(z);
  for (int q = 0; q < count; q++)
    if (side == LANES && r->count == LANES)
      save(saved, z, r, modes, m + q, x + 2 * q, LANES);
    else if (side == LANES / 2 && r->count % side == 0)
      save(saved, z, r, modes, m + q, x + 2 * q, LANES / 2);
    else
      save(saved, z, r, modes, m + q, x + 2 * q, 1);
}

INLINE void recall_all(const float *saved, const Shape *z, const Rows *r, const long *modes, long m, int count, vec *x) {
  const int side = together(z);
  for (int q = 0; q < count; q++)
    if (side == LANES && r->count == LANES)
      recall(saved, z, r, modes, m + q, x + 2 * q, LANES);
    else if (side == LANES / 2 && r->count == LANES)
      recall(saved, z, r, modes, m + q, x + 2 * q, LANES / 2);
    else
      recall(saved, z, r, modes, m + q, x + 2 * q, 1);
}

/* Prefetch the states of a pair of channels: their addresses follow no pattern that a processor could predict. */
INLINE void expect(const float *saved, const Shape *z, const Rows *r, const long *modes) {
  for (int k = 0; k < LANES; k += together(z)) {
    const char *at = (const char *)(saved + 2 * modes[k] * z->b + r->b[k]);
    for (long byte = 0; byte < 8 * z->m * z->b; byte += 64) __builtin_prefetch(at + byte);
  }
}

/* Output rows first … last, in groups of LANES; saved may be null. Returns 0, or 1 if memory is exhausted. */
int centaurus_scan_forward(const float *u, float *y, const float *a, const float *w, float *saved, const long *sizes,
                           long first, long last) {
  const Shape z = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
  const long each = z.i * z.m, count = z.s * z.j * z.b, per_block = 2 * z.s * z.j * each * z.b;
  const int single = each == 1; /* one mode a row: two groups of rows run together */
  vec *x = vectors(4 * each), *c = vectors(8 * each), *u0 = vectors(4 * BLOCK);
  long *modes = malloc(sizeof(long) * 2 * LANES * (size_t)z.i);
  const int failed = !x || !c || !u0 || !modes;
  const unsigned subnormals = flush_subnormals();
  vec *u1 = u0 + BLOCK, *y0 = u0 + 2 * BLOCK, *y1 = u0 + 3 * BLOCK;
  for (long g = first; g < last && !failed;) {
    const int groups = single && g + 2 <= last ? 2 : 1;
    Rows r[2];
    const float *in[2][LANES];
    float *out[2][LANES];
    for (int q = 0; q < groups; q++) {
      r[q] = rows_of(g + q, z.j, z.b, count);
      for (int k = 0; k < LANES; k++) {
        out[q][k] = y + ((r[q].s[k] * z.j + r[q].c[k]) * z.b + r[q].b[k]) * z.t;
        in[q][k] = u + (r[q].s[k] * z.i * z.b + r[q].b[k]) * z.t;
        for (long i = 0; i < z.i; i++) modes[(q * z.i + i) * LANES + k] = first_mode(&z, r[q].s[k], r[q].c[k], i);
      }
      for (long i = 0; i < z.i; i++)
        for (long m = 0; m < z.m; m++)
          coefficients(c + 4 * ((q * z.i + i) * z.m + m), a, w, modes + (q * z.i + i) * LANES, m);
    }
    memset(x, 0, sizeof(vec) * 4 * (size_t)each);
    for (long start = 0; start < z.t; start += BLOCK) {
      const int n = z.t - start < BLOCK ? (int)(z.t - start) : BLOCK;
      if (saved)
        for (int q = 0; q < groups; q++)
          for (long i = 0; i < z.i; i++)
            save_all(saved + start / BLOCK * per_block, &z, &r[q], modes + (q * z.i + i) * LANES, 0, (int)z.m,
                     x + 2 * (q * z.i + i) * z.m);
      memset(y0, 0, sizeof(vec) * 2 * BLOCK);
      if (groups == 2) {
        gather(in[0], start, n, u0);
        gather(in[1], start, n, u1);
        run_two(u0, u1, y0, y1, x, c, n, 0);
        scatter(out[1], r[1].count, start, n, y1);
      } else {
        for (long i = 0; i < z.i; i++) {
          const float *rows[LANES];
          for (int k = 0; k < LANES; k++) rows[k] = in[0][k] + i * z.b * z.t;
          gather(rows, start, n, u0);
          long m = 0;
          for (; m + 4 <= z.m; m += 4) run_four(u0, y0, x + 2 * (i * z.m + m), c + 4 * (i * z.m + m), n);
          for (; m + 2 <= z.m; m += 2) run_two(u0, u0, y0, y0, x + 2 * (i * z.m + m), c + 4 * (i * z.m + m), n, 1);
          if (m < z.m) run_one(u0, y0, x + 2 * (i * z.m + m), c + 4 * (i * z.m + m), n);
        }
      }
      scatter(out[0], r[0].count, start, n, y0);
    }
    g += groups;
  }
  restore_subnormals(subnormals);
  free(x), free(c), free(u0), free(modes);
  return failed;
}

/* Backward of one mode in a block. The adjoint state p[t] = conj(a) p[t+1] + g[t] does not contain w, so that
   du = Re(conj(w) p), dw = Σ u p and da = conj(w) Σ conj(x[t-1]) p; the caller multiplies da by conj(w) at the end.
   x: state before the block; p: adjoint state after it, replaced by that before it; d: the sums for a and w in four
   vectors; path: memory for the states. Coefficients are copied, or the compiler would load them again after every store
   to du. */
INLINE void back_one(const vec *u, const vec *g, vec *du, const vec *x, vec *p, const vec *c, vec *d, int n,
                     vec *path) {
  const vec ar = c[0], ai = c[1], wr = c[2], wi = c[3];
  vec r = x[0], i = x[1];
  for (int t = 0; t < n; t++) {
    path[2 * t] = r, path[2 * t + 1] = i;
    vec s = ar * r + (u[t] - ai * i);
    i = ar * i + ai * r;
    r = s;
  }
  vec pr = p[0], pi = p[1], dar = {0}, dai = {0}, dwr = {0}, dwi = {0};
  for (int t = n - 1; t >= 0; t--) {
    const vec xr = path[2 * t], xi = path[2 * t + 1], v = u[t];
    vec s = ar * pr + (ai * pi + g[t]);
    pi = ar * pi - ai * pr;
    pr = s;
    du[t] += wr * pr + wi * pi;
    dwr += v * pr;
    dwi += v * pi;
    dar += xr * pr + xi * pi;
    dai += xr * pi - xi * pr;
  }
  p[0] = pr, p[1] = pi;
  d[0] += dar, d[1] += dai, d[2] += dwr, d[3] += dwi;
}

/* Compute the states of `count` modes before every sample of a block: path is (sample, mode, 2). */
INLINE void retrace(const vec *u0, const vec *u1, const vec *x, const vec *c, int n, vec *path, int count, int same) {
  vec r[4], i[4];
  for (int k = 0; k < count; k++) r[k] = x[2 * k], i[k] = x[2 * k + 1];
  for (int t = 0; t < n; t++) {
    vec *at = path + 2 * count * t;
#pragma GCC unroll 4
    for (int k = 0; k < count; k++) {
      const vec v = same || !k ? u0[t] : u1[t], s = c[4 * k] * r[k] + (v - c[4 * k + 1] * i[k]);
      at[2 * k] = r[k], at[2 * k + 1] = i[k];
      i[k] = c[4 * k] * i[k] + c[4 * k + 1] * r[k];
      r[k] = s;
    }
  }
}

/* Backward of two modes at a time, whose states are two of `count` in path. */
INLINE void back_two(const vec *u0, const vec *u1, const vec *g0, const vec *g1, vec *du0, vec *du1, vec *p,
                     const vec *c, vec *d, int n, const vec *path, int count, int same) {
  const vec ar0 = c[0], ai0 = c[1], wr0 = c[2], wi0 = c[3], ar1 = c[4], ai1 = c[5], wr1 = c[6], wi1 = c[7];
  vec pr0 = p[0], pi0 = p[1], pr1 = p[2], pi1 = p[3];
  vec dar0 = {0}, dai0 = {0}, dwr0 = {0}, dwi0 = {0}, dar1 = {0}, dai1 = {0}, dwr1 = {0}, dwi1 = {0};
  for (int t = n - 1; t >= 0; t--) {
    const vec *at = path + 2 * count * t, q0 = g0[t], q1 = same ? q0 : g1[t], v0 = u0[t], v1 = same ? v0 : u1[t];
    vec s0 = ar0 * pr0 + (ai0 * pi0 + q0), s1 = ar1 * pr1 + (ai1 * pi1 + q1);
    pi0 = ar0 * pi0 - ai0 * pr0;
    pi1 = ar1 * pi1 - ai1 * pr1;
    pr0 = s0;
    pr1 = s1;
    if (same) {
      du0[t] += (wr0 * pr0 + wi0 * pi0) + (wr1 * pr1 + wi1 * pi1);
    } else {
      du0[t] += wr0 * pr0 + wi0 * pi0;
      du1[t] += wr1 * pr1 + wi1 * pi1;
    }
    dwr0 += v0 * pr0, dwi0 += v0 * pi0, dwr1 += v1 * pr1, dwi1 += v1 * pi1;
    dar0 += at[0] * pr0, dai0 += at[0] * pi0, dar1 += at[2] * pr1, dai1 += at[2] * pi1;
    dar0 += at[1] * pi0, dai0 -= at[1] * pr0, dar1 += at[3] * pi1, dai1 -= at[3] * pr1;
  }
  p[0] = pr0, p[1] = pi0, p[2] = pr1, p[3] = pi1;
  d[0] += dar0, d[1] += dai0, d[2] += dwr0, d[3] += dwi0, d[4] += dar1, d[5] += dai1, d[6] += dwr1, d[7] += dwi1;
}

/* Input rows first … last, in groups of LANES; adds to da and dw. Returns 0, or 1 if memory is exhausted. */
int centaurus_scan_backward(const float *u, const float *dy, const float *a, const float *w, const float *saved,
                            float *du, float *da, float *dw, const long *sizes, long first, long last) {
  const Shape z = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
  const long each = z.j * z.m, count = z.s * z.i * z.b, per_block = 2 * z.s * z.j * z.i * z.m * z.b;
  const int single = each == 1;
  vec *p = vectors(4 * each), *c = vectors(8 * each), *d = vectors(8 * each), *room = vectors(6 * BLOCK + 8 * BLOCK);
  long *modes = malloc(sizeof(long) * 2 * LANES * (size_t)z.j);
  const int failed = !p || !c || !d || !room || !modes;
  const unsigned subnormals = flush_subnormals();
  vec *u0 = room, *u1 = room + BLOCK, *g0 = room + 2 * BLOCK, *g1 = room + 3 * BLOCK, *d0 = room + 4 * BLOCK;
  vec *d1 = room + 5 * BLOCK, *path = room + 6 * BLOCK;
  for (long g = first; g < last && !failed;) {
    const int groups = single && g + 2 <= last ? 2 : 1;
    Rows r[2];
    const float *in[2][LANES], *from[2][LANES];
    float *out[2][LANES];
    for (int q = 0; q < groups; q++) {
      r[q] = rows_of(g + q, z.i, z.b, count);
      for (int k = 0; k < LANES; k++) {
        long at = ((r[q].s[k] * z.i + r[q].c[k]) * z.b + r[q].b[k]) * z.t;
        in[q][k] = u + at;
        out[q][k] = du + at;
        from[q][k] = dy + (r[q].s[k] * z.j * z.b + r[q].b[k]) * z.t;
        for (long j = 0; j < z.j; j++) modes[(q * z.j + j) * LANES + k] = first_mode(&z, r[q].s[k], j, r[q].c[k]);
      }
      for (long j = 0; j < z.j; j++)
        for (long m = 0; m < z.m; m++)
          coefficients(c + 4 * ((q * z.j + j) * z.m + m), a, w, modes + (q * z.j + j) * LANES, m);
    }
    memset(p, 0, sizeof(vec) * 4 * (size_t)each);
    memset(d, 0, sizeof(vec) * 8 * (size_t)each);
    for (long block = (z.t - 1) / BLOCK; block >= 0; block--) {
      const long start = block * BLOCK;
      const int n = z.t - start < BLOCK ? (int)(z.t - start) : BLOCK;
      const float *states = saved + block * per_block;
      vec x[8] = {{0}};
      memset(d0, 0, sizeof(vec) * 2 * BLOCK);
      gather(in[0], start, n, u0);
      if (groups == 2) {
        gather(in[1], start, n, u1);
        gather(from[0], start, n, g0);
        gather(from[1], start, n, g1);
        recall_all(states, &z, &r[0], modes, 0, 1, x);
        recall_all(states, &z, &r[1], modes + LANES, 0, 1, x + 2);
        retrace(u0, u1, x, c, n, path, 2, 0);
        back_two(u0, u1, g0, g1, d0, d1, p, c, d, n, path, 2, 0);
        scatter(out[1], r[1].count, start, n, d1);
      } else {
        for (long j = 0; j < z.j; j++) {
          const float *rows[LANES];
          for (int k = 0; k < LANES; k++) rows[k] = from[0][k] + j * z.b * z.t;
          gather(rows, start, n, g0);
          const long *own = modes + j * LANES;
          if (block) expect(states - per_block, &z, &r[0], own);
          long m = 0;
          for (; m + 4 <= z.m; m += 4) {
            long at = j * z.m + m;
            recall_all(states, &z, &r[0], own, m, 4, x);
            retrace(u0, u0, x, c + 4 * at, n, path, 4, 1);
            back_two(u0, u0, g0, g0, d0, d0, p + 2 * at, c + 4 * at, d + 4 * at, n, path, 4, 1);
            back_two(u0, u0, g0, g0, d0, d0, p + 2 * at + 4, c + 4 * at + 8, d + 4 * at + 8, n, path + 4, 4, 1);
          }
          for (; m + 2 <= z.m; m += 2) {
            long at = j * z.m + m;
            recall_all(states, &z, &r[0], own, m, 2, x);
            retrace(u0, u0, x, c + 4 * at, n, path, 2, 1);
            back_two(u0, u0, g0, g0, d0, d0, p + 2 * at, c + 4 * at, d + 4 * at, n, path, 2, 1);
          }
          if (m < z.m) {
            long at = j * z.m + m;
            recall_all(states, &z, &r[0], own, m, 1, x);
            back_one(u0, g0, d0, x, p + 2 * at, c + 4 * at, d + 4 * at, n, path);
          }
        }
      }
      scatter(out[0], r[0].count, start, n, d0);
    }
    for (int q = 0; q < groups; q++)
      for (long at = 0; at < each; at++)
        for (int k = 0; k < r[q].count; k++) {
          long mode = 2 * (modes[(q * z.j + at / z.m) * LANES + k] + at % z.m);
          const vec *own = d + 4 * (q * each + at);
          const float wr = w[mode], wi = w[mode + 1];
          da[mode] += wr * own[0][k] + wi * own[1][k], da[mode + 1] += wr * own[1][k] - wi * own[0][k];
          dw[mode] += own[2][k], dw[mode + 1] += own[3][k];
        }
    g += groups;
  }
  restore_subnormals(subnormals);
  free(p), free(c), free(d), free(room), free(modes);
  return failed;
}
