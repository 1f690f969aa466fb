/* Run the rows of a batch through a step that was exported to C. Defined on the compiler's command line: SOURCE (the
   step's file), PREFIX (of its functions), INPUTS (channels) and ROW (floats in the state of a row). */
#include SOURCE
#include <string.h>
#define PASTE(a, b) a##b
#define JOIN(a, b) PASTE(a, b)
#define STEP(name) JOIN(PREFIX, name)
#define HOP ((size_t)STEP(_hop) * INPUTS)
#define FRAMES ((size_t)STEP(_frames))
#define N ((size_t)STEP(_outputs))

long centaurus_state_floats(void) { return ROW; }
long centaurus_block_floats(void) { return (long)(STEP(_state_bytes)() / sizeof(float) + FRAMES * N); }

/* Transpose the output of a step, y (frames, outputs), into out (outputs, length). */
static void put(const float *y, float *out, size_t length) {
  size_t t, k;
  for (k = 0; k < N; k++)
    for (t = 0; t < FRAMES; t++) out[k * length + t] = y[t * N + k];
}

/* One step of every row: in (rows, hop · inputs), out (rows, outputs, frames), states before and after (rows, ROW).
   block has memory for a step's state and its output. */
void centaurus_run(float *block, const float *in, float *out, const float *before, float *after, int rows) {
  float *y = block + STEP(_state_bytes)() / sizeof(float);
  int row;
  for (row = 0; row < rows; row++, in += HOP, out += FRAMES * N, before += ROW, after += ROW) {
    memcpy(block, before, ROW * sizeof(float));
    STEP(_step)(block, in, N == 1 ? out : y);
    if (N > 1) put(y, out, FRAMES);
    memcpy(after, block, ROW * sizeof(float));
  }
}

#ifdef CT_HALVES
/* First halves of `steps` steps of every row, each with `size` floats of scratch; in has `length` floats in a row. */
void centaurus_run_first(float *s, float *scratch, long size, const float *in, long length, int rows, int steps) {
  int step, row;
  for (step = 0; step < steps; step++)
    for (row = 0; row < rows; row++, scratch += size)
      STEP(_first)(s + (size_t)row * ROW, scratch, in + (size_t)row * length + step * HOP);
}

/* Second halves of the same steps; out has `length` frames in a row. */
void centaurus_run_second(float *s, float *scratch, long size, float *out, long length, int rows, int steps) {
  int step, row;
  for (step = 0; step < steps; step++)
    for (row = 0; row < rows; row++, scratch += size) {
      float *y = scratch + size - FRAMES * N, *to = out + (size_t)row * N * length + step * FRAMES;
      STEP(_second)(s + (size_t)row * ROW, scratch, N == 1 ? to : y);
      if (N > 1) put(y, to, length);
    }
}
#endif
