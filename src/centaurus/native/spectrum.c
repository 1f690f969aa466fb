/* Spectra of many real signals at once, with the bins outermost, and the adjoint. Products of the bins need no
   transposition before or after.

       X[f] = Σ_t u[t] e^(-2πi f t / n)          y[t] = Re Σ_f X[f] e^(2πi f t / n)          f = 0 … n/2, t < samples

   u and y are (rows, samples), contiguous; spectra are (n/2 + 1, 2, rows) with `bin` floats from one bin to the next,
   which should not be a power of two: the bins of a row would all compete for a few lines of the cache. n is even. A
   vector holds one sample of LANES rows, so a transform of vectors is LANES transforms. A real transform of n points is
   a complex one of n/2, whose stages (Stockham) read one buffer and write the other. `roots` has e^(-2πi k/n), k < n. */
#include "vector.h"

typedef struct {
  vec re, im;
} pair;

#define STAGES 40

INLINE pair scaled(pair x, float re, float im) {
  return (pair){x.re * all(re) - x.im * all(im), x.re * all(im) + x.im * all(re)};
}
INLINE pair sum(pair x, pair y) { return (pair){x.re + y.re, x.im + y.im}; }
INLINE pair difference(pair x, pair y) { return (pair){x.re - y.re, x.im - y.im}; }
/* -i · sign · x */
INLINE pair turned(pair x, float sign) { return (pair){x.im * all(sign), -x.re * all(sign)}; }

/* A radix-4 stage of `stride` interleaved transforms of `size` points; step = n / size. sign is 1 for e^(-i…), -1 for
   e^(i…). Only the first `given` quarters of the inputs are not zero, and only the first `asked` quarters of the outputs
   are needed (in the last stage, of size 4). */
INLINE void stage_4(const pair *x, pair *y, long size, long stride, const float *roots, long step, float sign, int given,
                    int asked) {
  const long quarter = size / 4;
  for (long p = 0; p < quarter; p++) {
    const float *w1 = roots + 2 * p * step, *w2 = roots + 4 * p * step, *w3 = roots + 6 * p * step;
    for (long q = 0; q < stride; q++) {
      const pair *in = x + q + stride * p;
      pair *out = y + q + stride * 4 * p;
      const pair a = in[0], b = in[stride * quarter];
      pair even = a, odd = a, other = b, across = turned(b, sign);
      if (given > 2) {
        const pair c = in[2 * stride * quarter], d = in[3 * stride * quarter];
        even = sum(a, c), odd = difference(a, c), other = sum(b, d), across = turned(difference(b, d), sign);
      }
      out[0] = sum(even, other);
      out[stride] = scaled(sum(odd, across), w1[0], sign * w1[1]);
      if (asked > 2) {
        out[2 * stride] = scaled(difference(even, other), w2[0], sign * w2[1]);
        out[3 * stride] = scaled(difference(odd, across), w3[0], sign * w3[1]);
      }
    }
  }
}

/* The same for radix 2, 3 and 5, by the definition of the transform. */
INLINE void stage_any(const int radix, const pair *x, pair *y, long size, long stride, const float *roots, long step,
                      float sign) {
  const long part = size / radix, turn = step * part; /* distance of the radix's roots of unity in roots */
  for (long p = 0; p < part; p++)
    for (long q = 0; q < stride; q++)
      for (int k = 0; k < radix; k++) {
        pair total = x[q + stride * p];
        for (int j = 1; j < radix; j++) {
          const float *w = roots + 2 * turn * (j * k % radix);
          total = sum(total, scaled(x[q + stride * (p + j * part)], w[0], sign * w[1]));
        }
        const float *w = roots + 2 * p * step * k;
        y[q + stride * (radix * p + k)] = scaled(total, w[0], sign * w[1]);
      }
}

KERNEL void forward_4(const pair *x, pair *y, long size, long stride, const float *roots, long step) {
  stage_4(x, y, size, stride, roots, step, 1, 4, 4);
}
KERNEL void first_4(const pair *x, pair *y, long size, long stride, const float *roots, long step) {
  stage_4(x, y, size, stride, roots, step, 1, 2, 4);
}
KERNEL void back_4(const pair *x, pair *y, long size, long stride, const float *roots, long step) {
  stage_4(x, y, size, stride, roots, step, -1, 4, 4);
}
KERNEL void last_4(const pair *x, pair *y, long size, long stride, const float *roots, long step) {
  stage_4(x, y, size, stride, roots, step, -1, 4, 2);
}
KERNEL void stage_2(const pair *x, pair *y, long size, long stride, const float *roots, long step, float sign) {
  stage_any(2, x, y, size, stride, roots, step, sign);
}
KERNEL void stage_3(const pair *x, pair *y, long size, long stride, const float *roots, long step, float sign) {
  stage_any(3, x, y, size, stride, roots, step, sign);
}
KERNEL void stage_5(const pair *x, pair *y, long size, long stride, const float *roots, long step, float sign) {
  stage_any(5, x, y, size, stride, roots, step, sign);
}

/* Factor m into radices, fours first, and return how many there are; 0 if m has another prime factor. */
static int radices(long m, int *radix) {
  const int known[] = {4, 2, 3, 5};
  int count = 0;
  for (int k = 0; k < 4; k++)
    for (; m % known[k] == 0 && count < STAGES; m /= known[k]) radix[count++] = known[k];
  return m == 1 ? count : 0;
}

/* A complex transform of m points in x, with y as a work buffer; returns the buffer with the result. `half`: only the
   first half of the input is not zero (forward), or only the first half of the output is needed (back). Backward uses
   the radices in reverse order. */
static pair *transform(pair *x, pair *y, long m, const int *radix, int count, const float *roots, int back, int half) {
  long size = m, stride = 1;
  for (int k = 0; k < count; k++) {
    const int r = radix[back ? count - 1 - k : k];
    const long step = 2 * m / size;
    if (r == 4 && !back)
      (half && k == 0 ? first_4 : forward_4)(x, y, size, stride, roots, step);
    else if (r == 4)
      (half && k == count - 1 ? last_4 : back_4)(x, y, size, stride, roots, step);
    else
      (r == 2 ? stage_2 : r == 3 ? stage_3 : stage_5)(x, y, size, stride, roots, step, back ? -1.f : 1.f);
    size /= r, stride *= r;
    pair *other = x;
    x = y, y = other;
  }
  return x;
}

INLINE vec load_lanes(const float *p, int n) { return n == LANES ? load(p) : load_some(p, n); }
INLINE void store_some(float *p, vec x, int n) {
  if (n == LANES)
    store(p, x);
  else
    memcpy(p, &x, sizeof(float) * n);
}

/* Groups first … last of LANES rows. Returns 0, or 1 if memory is exhausted or n has prime factors other than 2, 3, 5. */
int centaurus_spectrum(const float *u, float *out, const float *roots, long rows, long samples, long n, long bin,
                       long first, long last) {
  const long m = n / 2, pairs = samples / 2;
  int radix[STAGES];
  const int count = radices(m, radix), half = 2 * ((samples + 1) / 2) <= m && m % 4 == 0;
  pair *x = (pair *)vectors(2 * m), *y = (pair *)vectors(2 * m);
  const int failed = !x || !y || (!count && m != 1);
  for (long g = first; g < last && !failed; g++) {
    const int lanes = rows - g * LANES < LANES ? (int)(rows - g * LANES) : LANES;
    const float *from[LANES];
    for (int k = 0; k < LANES; k++) from[k] = u + (g * LANES + (k < lanes ? k : 0)) * samples;
    gather(from, 0, (int)samples, (vec *)x);
    if (samples % 2) x[pairs].im = all(0);
    const long filled = (samples + 1) / 2, needed = half ? m / 2 : m;
    memset(x + filled, 0, sizeof(pair) * (size_t)(needed > filled ? needed - filled : 0));
    const pair *z = transform(x, y, m, radix, count, roots, 0, half);
    float *to = out + g * LANES;
    store_some(to, z[0].re + z[0].im, lanes);
    store_some(to + rows, all(0), lanes);
    store_some(to + m * bin, z[0].re - z[0].im, lanes);
    store_some(to + m * bin + rows, all(0), lanes);
    for (long k = 1; k <= m / 2; k++) { /* separate the spectra of the even and of the odd samples */
      const pair a = z[k], b = {z[m - k].re, -z[m - k].im};
      const pair even = {all(.5f) * (a.re + b.re), all(.5f) * (a.im + b.im)};
      const pair odd = {all(.5f) * (a.im - b.im), all(.5f) * (b.re - a.re)};
      const pair w = scaled(odd, roots[2 * k], roots[2 * k + 1]);
      store_some(to + k * bin, even.re + w.re, lanes);
      store_some(to + k * bin + rows, even.im + w.im, lanes);
      store_some(to + (m - k) * bin, even.re - w.re, lanes);
      store_some(to + (m - k) * bin + rows, w.im - even.im, lanes);
    }
  }
  free(x), free(y);
  return failed;
}

/* The adjoint, with the same arguments and return values. */
int centaurus_signal(const float *in, float *y, const float *roots, long rows, long samples, long n, long bin, long first,
                     long last) {
  const long m = n / 2;
  int radix[STAGES];
  const int count = radices(m, radix), half = 2 * ((samples + 1) / 2) <= m && m % 4 == 0;
  pair *x = (pair *)vectors(2 * m + 2), *z = (pair *)vectors(2 * m + 2);
  const int failed = !x || !z || (!count && m != 1);
  for (long g = first; g < last && !failed; g++) {
    const int lanes = rows - g * LANES < LANES ? (int)(rows - g * LANES) : LANES;
    const float *from = in + g * LANES;
    const vec low = load_lanes(from, lanes), high = load_lanes(from + m * bin, lanes);
    x[0] = (pair){low + high, low - high};
    for (long k = 1; k <= m / 2; k++) {
      const float *low_bin = from + k * bin, *high_bin = from + (m - k) * bin;
      const pair a = {load_lanes(low_bin, lanes), load_lanes(low_bin + rows, lanes)};
      const pair b = {load_lanes(high_bin, lanes), -load_lanes(high_bin + rows, lanes)};
      const pair even = {all(.5f) * (a.re + b.re), all(.5f) * (a.im + b.im)};
      const pair odd = scaled(difference(a, b), .5f * roots[2 * k], -.5f * roots[2 * k + 1]);
      x[k] = (pair){even.re - odd.im, even.im + odd.re};
      x[m - k] = (pair){even.re + odd.im, odd.re - even.im};
    }
    float *to[LANES];
    for (int k = 0; k < lanes; k++) to[k] = y + (g * LANES + k) * samples;
    scatter(to, lanes, 0, (int)samples, (const vec *)transform(x, z, m, radix, count, roots, 1, half));
  }
  free(x), free(z);
  return failed;
}
