/* Denoise a WAV file (mono, 16 bits, the model's rate): wavfilter IN.wav OUT.wav
   The model is the pair denoise.c and denoise.h that `centaurus export denoise-16k -o denoise.c` writes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "denoise.h"

#define MOST_HOP 65536

static uint32_t number(const unsigned char *p, int bytes) {
  uint32_t n = 0;
  while (bytes--) n = n << 8 | p[bytes];
  return n;
}

/* Copy the header up to the samples; return their count, or -1 for an unsupported format. */
static long header(FILE *in, FILE *out) {
  unsigned char head[12], chunk[8], format[16];
  if (fread(head, 1, 12, in) != 12 || memcmp(head, "RIFF", 4) || memcmp(head + 8, "WAVE", 4)) return -1;
  fwrite(head, 1, 12, out);
  memset(format, 0, sizeof format);
  while (fread(chunk, 1, 8, in) == 8) {
    uint32_t size = number(chunk + 4, 4), k;
    fwrite(chunk, 1, 8, out);
    if (!memcmp(chunk, "data", 4)) {
      int fits = number(format, 2) == 1 && number(format + 2, 2) == 1 && number(format + 14, 2) == 16;
      return fits && number(format + 4, 4) == (uint32_t)denoise_rate ? (long)(size / 2) : -1;
    }
    for (k = 0; k < size + size % 2; k++) {
      int c = getc(in);
      if (k < 16 && !memcmp(chunk, "fmt ", 4)) format[k] = (unsigned char)c;
      putc(c, out);
    }
  }
  return -1;
}

static void put_sample(float x, FILE *out) {
  long n = (long)(32768.0f * x + (x < 0 ? -0.5f : 0.5f));
  n = n > 32767 ? 32767 : n < -32768 ? -32768 : n;
  putc((int)(n & 255), out);
  putc((int)(n >> 8 & 255), out);
}

int main(int argc, char **argv) {
  static float samples[MOST_HOP];
  FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;
  void *state = malloc(denoise_state_bytes());
  long left = out ? header(in, out) : -1, late = denoise_delay, read = left, k;
  if (left < 0 || !state || denoise_hop > MOST_HOP) {
    fprintf(stderr, "usage: wavfilter IN.wav OUT.wav, where IN is mono, 16 bits, %d Hz\n", denoise_rate);
    return 1;
  }
  denoise_init(state);
  while (left > 0) { /* outputs are `delay` samples late: zeros follow the last sample */
    for (k = 0; k < denoise_hop; k++) {
      int low = read > 0 ? getc(in) : 0, high = read > 0 ? getc(in) : 0;
      samples[k] = read-- > 0 && high != EOF ? (float)((low | high << 8) - (high & 128 ? 65536 : 0)) / 32768.0f : 0.0f;
    }
    denoise_step(state, samples, samples);
    for (k = 0; k < denoise_hop && left > 0; k++)
      if (late > 0) late--;
      else { put_sample(samples[k], out); left--; }
  }
  free(state);
  return fclose(out) ? 1 : 0;
}
