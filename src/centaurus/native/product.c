/* Products of many small matrices, one for each bin of spectra: c = a b.

   a is (m, k) with any strides, b is (k, n) and c is (m, n), both with contiguous rows; a b that is stored as (n, k) is
   transposed first. `sizes` has m, k, n; the strides of a for bins, rows and columns; the strides of b and c for bins
   and rows; and whether b is stored transposed. A block of ROWS rows and one or two vectors of columns of c is
   accumulated in registers. */
#include "vector.h"

#if LANES == 16
#define ROWS 8
#else
#define ROWS 4
#endif

INLINE void block(const int rows, const int vecs, const float *a, long across, long along, const float *b, long b_row,
                  float *c, long c_row, long k) {
  vec sum[ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = all(0);
  for (long p = 0; p < k; p++) {
    const vec v0 = load(b + p * b_row), v1 = vecs > 1 ? load(b + p * b_row + LANES) : v0;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const vec x = all(a[r * across + p * along]);
      sum[r][0] += x * v0;
      if (vecs > 1) sum[r][1] += x * v1;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    store(c + r * c_row, sum[r][0]);
    if (vecs > 1) store(c + r * c_row + LANES, sum[r][1]);
  }
}

/* All rows of one or two vectors of columns. */
INLINE void columns(const int vecs, const float *a, long across, long along, const float *b, long b_row, float *c,
                    long c_row, long m, long k) {
  long r = 0;
  for (; r + ROWS <= m; r += ROWS) block(ROWS, vecs, a + r * across, across, along, b, b_row, c + r * c_row, c_row, k);
  for (; r < m; r++) block(1, vecs, a + r * across, across, along, b, b_row, c + r * c_row, c_row, k);
}

KERNEL void one_column(const float *a, long across, long along, const float *b, long b_row, float *c, long c_row, long m,
                       long k) {
  columns(1, a, across, along, b, b_row, c, c_row, m, k);
}
KERNEL void two_columns(const float *a, long across, long along, const float *b, long b_row, float *c, long c_row, long m,
                        long k) {
  columns(2, a, across, along, b, b_row, c, c_row, m, k);
}

/* Transpose (rows, columns) to (columns, wide), filled with zeros from rows to wide. */
KERNEL void transposed(const float *b, long row, long rows, long columns, float *out, long wide) {
  for (long r = 0; r < wide; r += LANES)
    for (long q = 0; q < columns; q += LANES) {
      const int high = rows - r < LANES ? (int)(rows - r) : LANES, left = columns - q < LANES ? (int)(columns - q) : LANES;
      vec t[LANES];
      for (int k = 0; k < LANES; k++)
        t[k] = k >= high ? all(0) : left == LANES ? load(b + (r + k) * row + q) : load_some(b + (r + k) * row + q, left);
      transpose(t);
      for (int k = 0; k < left; k++) store(out + (q + k) * wide + r, t[k]);
    }
}

/* Bins first … last. Returns 0, or 1 if memory is exhausted. */
int centaurus_products(const float *a, const float *b, float *c, const long *sizes, long first, long last) {
  const long m = sizes[0], k = sizes[1], n = sizes[2], across = sizes[4], along = sizes[5], turned = sizes[10];
  const long c_row = sizes[9], wide = (n + LANES - 1) / LANES * LANES, whole = n / LANES * LANES;
  vec *room = turned ? vectors(wide / LANES * k) : vectors(k), *rest = vectors(m);
  const int failed = !room || !rest;
  float *edge = (float *)room, *end = (float *)rest;
  for (long f = first; f < last && !failed; f++) {
    const float *x = a + f * sizes[3], *y = b + f * sizes[6];
    float *out = c + f * sizes[8];
    long y_row = sizes[7], q = 0;
    if (turned) {
      transposed(y, y_row, n, k, edge, wide);
      y = edge, y_row = wide;
    }
    for (; q + 2 * LANES <= whole; q += 2 * LANES) two_columns(x, across, along, y + q, y_row, out + q, c_row, m, k);
    if (q < whole) one_column(x, across, along, y + q, y_row, out + q, c_row, m, k), q += LANES;
    if (q == n) continue;
    const float *tail = y + q;
    if (!turned) { /* the last columns do not fill a vector */
      for (long p = 0; p < k; p++) room[p] = load_some(y + p * y_row + q, (int)(n - q));
      tail = edge, y_row = LANES;
    }
    one_column(x, across, along, tail, y_row, end, LANES, m, k);
    for (long r = 0; r < m; r++) memcpy(out + r * c_row + q, end + r * LANES, sizeof(float) * (size_t)(n - q));
  }
  free(room), free(rest);
  return failed;
}
