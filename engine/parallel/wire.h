// Bytes of the messages between ranks: integers of variable length (as in Protocol Buffers: seven
// bits a byte, the lowest first; signed ones in zigzag form), and little-endian words.
//
// Thread-safety: none.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace heddle::engine {

static_assert(std::endian::native == std::endian::little,
              "words are written as they lie in memory");

class ByteWriter {
 public:
  // Appends to `*out`, which outlives the writer.
  explicit ByteWriter(std::string* out) : out_(*out) {}

  void Byte(uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void Varint(uint64_t value) {
    while (value >= 0x80) {
      Byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    Byte(static_cast<uint8_t>(value));
  }
  void Zigzag(int64_t value) {
    Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  template <typename T>
  void Word(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

 private:
  std::string& out_;
};

// Reads what ByteWriter wrote. Behind the first failure (the message is too short, or a number too
// long) everything reads as zero, and ok() stays false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  size_t num_left() const { return rest_.size(); }
  void Fail() {
    ok_ = false;
    rest_ = {};
  }

  uint8_t Byte() {
    if (rest_.empty()) {
      Fail();
      return 0;
    }
    const auto value = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = Byte();
      if (shift == 63 && byte > 1) break;  // beyond 64 bits
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    Fail();
    return 0;
  }
  int64_t Zigzag() {
    const uint64_t value = Varint();
    return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  // `base` and a Zigzag, modulo 2^64: it is for the caller to see whether that makes sense.
  int64_t Shifted(int64_t base) {
    return static_cast<int64_t>(static_cast<uint64_t>(base) + static_cast<uint64_t>(Zigzag()));
  }
  template <typename T>
  T Word() {
    static_assert(std::is_arithmetic_v<T>);
    T value = 0;
    if (rest_.size() < sizeof(T)) {
      Fail();
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  std::string_view Bytes(size_t count) {
    if (rest_.size() < count) Fail();
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  // A number of elements that follow, each of at least one byte; so no message asks for more memory
  // than some constant times its own size.
  size_t Count() {
    const uint64_t count = Varint();
    if (count > rest_.size()) {
      Fail();
      return 0;
    }
    return static_cast<size_t>(count);
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace heddle::engine
