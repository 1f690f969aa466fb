/* The vector width that the library was compiled for, in floats. */
#include "vector.h"

int centaurus_lanes(void) { return LANES; }
