// A hash of 128 bits that stands for what was added, in that order: states are compared by it in
// place of their edges. Equal data give equal signatures; different data do not collide by chance,
// and nobody who chooses the data knows the seed of this process.
// Source of the mixing step: wyhash (Wang Yi), a product of 64 by 64 bits folded to 64.
// Plain value; the seed is set once, by whichever thread comes first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/hash/hash.h"

namespace heddle::engine::grammar {

class Signature {
 public:
  Signature() {
    static const uint64_t seed = absl::HashOf(uint64_t{0x5163});  // absl seeds it by process
    first_ = seed;
    second_ = ~seed;
  }

  void Add(uint64_t value) {
    first_ = Fold(first_ ^ value, 0xA0761D6478BD642Full);
    second_ = Fold(second_ + value, 0xE7037ED1A0B428DBull);
  }

  void AddText(std::string_view text) {
    Add(text.size());
    while (!text.empty()) {
      uint64_t word = 0;
      const size_t size = std::min(text.size(), sizeof(word));
      std::memcpy(&word, text.data(), size);
      Add(word);
      text.remove_prefix(size);
    }
  }

  bool operator==(const Signature&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Signature& s) {
    return H::combine(std::move(h), s.first_ ^ s.second_);
  }

 private:
  static uint64_t Fold(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ a;
  }

  uint64_t first_;
  uint64_t second_;
};

}  // namespace heddle::engine::grammar
