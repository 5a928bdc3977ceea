// The grids of GGUF's formats IQ1 to IQ3: tables that are part of the formats, as ggml defines
// them.
//
// An entry has the magnitudes of 8 columns, two bits each (IQ1: -1, 0, 1; IQ2: 8, 25, 43), or of 4
// columns, three bits each (IQ3), the first in the lowest bits.
#pragma once

#include <cstdint>

namespace heddle::engine {

extern const uint16_t kGridIq1[2048];  // of IQ1_S and IQ1_M
extern const uint16_t kGridIq2Xxs[256];
extern const uint16_t kGridIq2Xs[512];
extern const uint16_t kGridIq2S[1024];
extern const uint16_t kGridIq3Xxs[256];
extern const uint16_t kGridIq3S[512];

}  // namespace heddle::engine
