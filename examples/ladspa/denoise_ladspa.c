/* A LADSPA plug-in around a denoiser in C: real-time safe, for PipeWire, Audacity and other hosts.

   The host may run any number of samples at a time; the model takes hops. Samples are buffered until a hop is full, so
   the latency is the hop plus the model's delay, reported at the port `latency`. Nothing is allocated
   or locked after `instantiate`. The host's rate must be the model's: hosts convert, or the plug-in is not created. */
#include <ladspa.h>
#include <stdlib.h>
#include <string.h>

#include "denoise.h"

enum { INPUT, OUTPUT, MIX, LATENCY, PORTS };

typedef struct {
  LADSPA_Data *port[PORTS];
  void *state;
  float *in, *clean, *dry; /* a hop of input, a hop of output, and the input delayed like the output */
  long filled, dry_at, late;
} Denoise;

static LADSPA_Handle instantiate(const LADSPA_Descriptor *descriptor, unsigned long rate) {
  Denoise *d;
  (void)descriptor;
  if (rate != (unsigned long)denoise_rate) return NULL;
  d = calloc(1, sizeof *d);
  if (!d) return NULL;
  d->late = denoise_hop + denoise_delay;
  d->state = malloc(denoise_state_bytes());
  d->in = calloc((size_t)denoise_hop, sizeof(float));
  d->clean = calloc((size_t)denoise_hop, sizeof(float));
  d->dry = calloc((size_t)d->late, sizeof(float));
  if (d->state && d->in && d->clean && d->dry) return d;
  free(d->state);
  free(d->in);
  free(d->clean);
  free(d->dry);
  free(d);
  return NULL;
}

static void connect_port(LADSPA_Handle handle, unsigned long port, LADSPA_Data *at) {
  if (port < PORTS) ((Denoise *)handle)->port[port] = at;
}

static void activate(LADSPA_Handle handle) {
  Denoise *d = handle;
  denoise_init(d->state);
  memset(d->in, 0, (size_t)denoise_hop * sizeof(float));
  memset(d->clean, 0, (size_t)denoise_hop * sizeof(float));
  memset(d->dry, 0, (size_t)d->late * sizeof(float));
  d->filled = d->dry_at = 0;
}

static void run(LADSPA_Handle handle, unsigned long count) {
  Denoise *d = handle;
  float mix = d->port[MIX] ? *d->port[MIX] : 1.0f;
  unsigned long k;
  mix = mix < 0 ? 0 : mix > 1 ? 1 : mix;
  for (k = 0; k < count; k++) {
    float x = d->port[INPUT][k], dry = d->dry[d->dry_at], wet = d->clean[d->filled];
    d->dry[d->dry_at] = x;
    d->dry_at = d->dry_at + 1 == d->late ? 0 : d->dry_at + 1;
    d->in[d->filled] = x == x && x < 1e6f && x > -1e6f ? x : 0.0f; /* NaN would stay in the state */
    if (++d->filled == denoise_hop) {
      denoise_step(d->state, d->in, d->clean);
      d->filled = 0;
    }
    d->port[OUTPUT][k] = mix * wet + (1.0f - mix) * dry;
  }
  if (d->port[LATENCY]) *d->port[LATENCY] = (LADSPA_Data)d->late;
}

static void cleanup(LADSPA_Handle handle) {
  Denoise *d = handle;
  free(d->state);
  free(d->in);
  free(d->clean);
  free(d->dry);
  free(d);
}

static const LADSPA_PortDescriptor kinds[PORTS] = {
    LADSPA_PORT_INPUT | LADSPA_PORT_AUDIO,
    LADSPA_PORT_OUTPUT | LADSPA_PORT_AUDIO,
    LADSPA_PORT_INPUT | LADSPA_PORT_CONTROL,
    LADSPA_PORT_OUTPUT | LADSPA_PORT_CONTROL,
};
static const char *const names[PORTS] = {"Input", "Output", "Mix", "latency"};
static const LADSPA_PortRangeHint hints[PORTS] = {
    {0, 0, 0},
    {0, 0, 0},
    {LADSPA_HINT_BOUNDED_BELOW | LADSPA_HINT_BOUNDED_ABOVE | LADSPA_HINT_DEFAULT_1, 0, 1},
    {0, 0, 0},
};
static const LADSPA_Descriptor descriptor = {
    .UniqueID = 4787, /* of the range 1 to 999999 that is free for plug-ins not registered centrally */
    .Label = "centaurus_denoise",
    .Properties = LADSPA_PROPERTY_HARD_RT_CAPABLE,
    .Name = "Centaurus speech denoiser",
    .Maker = "Centaurus",
    .Copyright = "Apache-2.0",
    .PortCount = PORTS,
    .PortDescriptors = kinds,
    .PortNames = names,
    .PortRangeHints = hints,
    .instantiate = instantiate,
    .connect_port = connect_port,
    .activate = activate,
    .run = run,
    .cleanup = cleanup,
};

const LADSPA_Descriptor *ladspa_descriptor(unsigned long index) { return index == 0 ? &descriptor : NULL; }
