// Bytes of the messages between ranks: integers of variable length (as in Protocol Buffers: seven
// bits a byte, the lowest first; signed ones in zigzag form), and little-endian words.
//
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace heddle::engine {

static_assert(std::endian::native == std::endian::little,
              "words are written as they lie in memory");

// Appends to a string, which has all bytes when the writer is gone; until then its content behind
// the first of them is unspecified.
class ByteWriter {
 public:
  // Appends to `*out`, which outlives the writer and is not to be changed meanwhile.
  explicit ByteWriter(std::string* out)
      : out_(*out), at_(out->data() + out->size()), end_(out->data() + out->size()) {}
  ByteWriter(const ByteWriter&) = delete;
  ByteWriter& operator=(const ByteWriter&) = delete;
  ~ByteWriter() { out_.resize(static_cast<size_t>(at_ - out_.data())); }

  void Byte(uint8_t value) {
    Need(1);
    *at_++ = static_cast<char>(value);
  }
  void Varint(uint64_t value) {
    Need(kMaxVarintBytes);
    char* at = at_;
    for (; value >= 0x80; value >>= 7) *at++ = static_cast<char>(value | 0x80);
    *at++ = static_cast<char>(value);
    at_ = at;
  }
  void Zigzag(int64_t value) {
    Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  template <typename T>
  void Word(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    Bytes({reinterpret_cast<const char*>(&value), sizeof(T)});
  }
  void Bytes(std::string_view bytes) {
    Need(bytes.size());
    at_ += bytes.copy(at_, bytes.size());
  }

 private:
  static constexpr size_t kMaxVarintBytes = 10;
  static constexpr size_t kLeastRoom = 64;

  // Makes room for `count` bytes. The string is longer than what was written, so that a byte is a
  // comparison and a store.
  void Need(size_t count) {
    if (static_cast<size_t>(end_ - at_) < count) Grow(count);
  }
  [[gnu::noinline]] void Grow(size_t count) {
    const auto written = static_cast<size_t>(at_ - out_.data());
    out_.resize(std::max({written + count, 2 * written, kLeastRoom}));
    at_ = out_.data() + written;
    end_ = out_.data() + out_.size();
  }

  std::string& out_;
  char* at_;   // the next byte goes here
  char* end_;  // of the string
};

// Reads what ByteWriter wrote. Behind the first failure (the message is too short, or a number too
// long) everything reads as zero, and ok() stays false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool ok() const { return ok_; }
  size_t num_left() const { return static_cast<size_t>(end_ - at_); }
  void Fail() {
    ok_ = false;
    at_ = end_;
  }

  uint8_t Byte() {
    if (at_ == end_) {
      Fail();
      return 0;
    }
    return static_cast<uint8_t>(*at_++);
  }
  uint64_t Varint() {
    if (at_ != end_ && static_cast<uint8_t>(*at_) < 0x80) return static_cast<uint8_t>(*at_++);
    return LongVarint();
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
    if (num_left() < sizeof(T)) {
      Fail();
      return value;
    }
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string_view Bytes(size_t count) {
    if (num_left() < count) {
      Fail();
      return {};
    }
    const std::string_view bytes(at_, count);
    at_ += count;
    return bytes;
  }
  // A number of elements that follow, each of at least one byte; so no message asks for more memory
  // than some constant times its own size.
  size_t Count() {
    const uint64_t count = Varint();
    if (count > num_left()) {
      Fail();
      return 0;
    }
    return static_cast<size_t>(count);
  }

 private:
  // Out of line, so that what is inline stays as short as what nearly all numbers need.
  [[gnu::noinline]] uint64_t LongVarint() {
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

  const char* at_;
  const char* end_;
  bool ok_ = true;
};

}  // namespace heddle::engine
