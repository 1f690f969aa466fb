/* Squared differences of compressed spectra, and their gradient.

   For every bin let p = |X|² + floor, the compressed magnitude p^(c/2) and the compressed value Z = X p^((c-1)/2). The
   loss is share (p^(c/2) - p'^(c/2))² + (1 - share) |Z - Z'|², times the weight of the bin. Spectra are (frames, bins)
   of pairs (re, im), contiguous. */
#include "vector.h"

/* Separate n pairs (re, im) into a vector of real and a vector of imaginary parts. */
INLINE void split(const float *p, int n, vec *re, vec *im) {
  for (int k = 0; k < n; k++) (*re)[k] = p[2 * k], (*im)[k] = p[2 * k + 1];
}

/* Frames first … last: adds the loss to *sum and writes its gradient with respect to `ours`. */
int centaurus_compressed(const float *ours, const float *theirs, const float *weights, float *grad, double *sum,
                         long bins, float floor_, float c, float share, long first, long last) {
  for (long frame = first; frame < last; frame++) {
    vec line = all(0);
    for (long f = 0; f < bins; f += LANES) {
      const int n = bins - f < LANES ? (int)(bins - f) : LANES;
      const long at = 2 * (frame * bins + f);
      vec re = all(0), im = all(0), re2 = all(0), im2 = all(0), weight = all(0);
      if (n == LANES) {
        split(ours + at, LANES, &re, &im);
        split(theirs + at, LANES, &re2, &im2);
        weight = load(weights + f);
      } else {
        split(ours + at, n, &re, &im);
        split(theirs + at, n, &re2, &im2);
        weight = load_some(weights + f, n);
      }
      const vec p = re * re + im * im + all(floor_), p2 = re2 * re2 + im2 * im2 + all(floor_);
      const vec half = all(0.5f * c) * vlog(p), half2 = all(0.5f * c) * vlog(p2);
      const vec small = vexp(half), small2 = vexp(half2);
      const vec scale = small / vsqrt(p), scale2 = small2 / vsqrt(p2);
      const vec dm = small - small2, dre = re * scale - re2 * scale2, dim = im * scale - im2 * scale2;
      line += weight * (all(share) * dm * dm + all(1.f - share) * (dre * dre + dim * dim));
      /* d small = c small / p X·dX, and dZ = scale dX + (c - 1) scale / p X (X·dX) */
      const vec along = all(2.f * share * c) * dm * small / p +
                        all(2.f * (1.f - share) * (c - 1.f)) * scale / p * (dre * re + dim * im);
      const vec across = all(2.f * (1.f - share)) * scale;
      const vec gre = weight * (along * re + across * dre), gim = weight * (along * im + across * dim);
      for (int k = 0; k < n; k++) grad[at + 2 * k] = gre[k], grad[at + 2 * k + 1] = gim[k];
    }
    *sum += total(line);
  }
  return 0;
}
