// The random strings of tests/golden/make_tokenizer_goldens.py, made again here.
#pragma once

#include <cstdint>
#include <string>

namespace heddle::engine::text {

// SplitMix64: Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Below(uint64_t n) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % n;
  }

 private:
  uint64_t state_;
};

// Up to 11 runs; a run is a fragment, or 1 to 6 code points of one range.
std::string RandomText(uint64_t index);

}  // namespace heddle::engine::text
