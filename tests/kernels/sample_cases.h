// Draws from rows of logits, on one device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/device.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

inline std::vector<NamedDevice> AllDevices() {
  std::vector<NamedDevice> devices = CpuDevices(2);
  devices.push_back({"reference", CreateReferenceDevice()});
  return devices;
}

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
};

inline Drawn Sample(Device& device, Matrix& logits, const std::vector<SampleRowParams>& rows,
                    int32_t max_top = 0) {
  Drawn drawn;
  drawn.tokens.resize(rows.size());
  drawn.logprobs.resize(rows.size());
  drawn.top_tokens.resize(rows.size() * max_top);
  drawn.top_logprobs.resize(rows.size() * max_top);
  REQUIRE(device
              .Run([&](Ops& ops) {
                ops.Sample({logits.tensor(), rows, max_top, drawn.tokens.data(),
                            drawn.logprobs.data(), drawn.top_tokens.data(),
                            drawn.top_logprobs.data()});
              })
              .ok());
  return drawn;
}

inline Matrix Row(std::vector<float> values) {
  Matrix matrix(1, static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), matrix.at(0, 0));
  return matrix;
}

}  // namespace heddle::kernels::test
