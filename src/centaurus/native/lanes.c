/* What the library was compiled for. */
#include "vector.h"

int centaurus_lanes(void) { return LANES; }
