#include "server/tracing/trace_context.h"

#include "absl/strings/str_format.h"

namespace heddle::server {
namespace {

constexpr size_t kVersionDigits = 2;
constexpr size_t kTraceDigits = 32;
constexpr size_t kSpanDigits = 16;
constexpr size_t kFlagDigits = 2;
constexpr size_t kBytes = kVersionDigits + 1 + kTraceDigits + 1 + kSpanDigits + 1 + kFlagDigits;

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  if (header.size() < kBytes || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  const std::string_view version = header.substr(0, kVersionDigits);
  const std::string_view trace = header.substr(3, kTraceDigits);
  const std::string_view span = header.substr(36, kSpanDigits);
  const std::string_view flags = header.substr(53, kFlagDigits);
  if (!IsHex(version) || version == "ff" || !IsId(trace) || !IsId(span) || !IsHex(flags)) {
    return std::nullopt;
  }
  const bool has_more = header.size() > kBytes;
  if (has_more && (version == "00" || header[kBytes] != '-')) return std::nullopt;
  TraceContext context;
  context.trace_id = std::string(trace);
  context.parent_span_id = std::string(span);
  // The lowest bit of the flags.
  context.sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos;
  return context;
}

std::string TraceIdFrom(uint64_t high, uint64_t low) {
  if (high == 0 && low == 0) low = 1;
  return absl::StrFormat("%016x%016x", high, low);
}

std::string SpanIdFrom(uint64_t bits) { return absl::StrFormat("%016x", bits == 0 ? 1 : bits); }

bool IsSampled(uint64_t trace_id_low, double ratio) {
  constexpr int kBits = 53;  // of a double's mantissa
  const auto draw = static_cast<double>(trace_id_low >> (64 - kBits));
  return draw < ratio * static_cast<double>(uint64_t{1} << kBits);
}

}  // namespace heddle::server
