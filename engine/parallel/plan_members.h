// The members of the plain structs in a step plan, once for both directions: WriteMembers and
// ReadMembers send any of them. A struct that gets a member does not compile here until the member
// is sent, too.
//
// Thread-safety: pure functions.
#pragma once

#include <concepts>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/parallel/wire.h"
#include "engine/step.h"

namespace heddle::engine {

template <typename T, typename Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

template <Is<KvSlot> T>
auto MembersOf(T& x) {
  auto& [page, offset] = x;
  return std::tie(page, offset);
}
template <Is<ContextPiece> T>
auto MembersOf(T& x) {
  auto& [num_tokens, position, turn] = x;
  return std::tie(num_tokens, position, turn);
}
template <Is<PageCopy> T>
auto MembersOf(T& x) {
  auto& [from, to, num_tokens] = x;
  return std::tie(from, to, num_tokens);
}
template <Is<PageSwap> T>
auto MembersOf(T& x) {
  auto& [page, slot] = x;
  return std::tie(page, slot);
}
template <Is<AdapterPageLoad> T>
auto MembersOf(T& x) {
  auto& [adapter, image_page, page] = x;
  return std::tie(adapter, image_page, page);
}
template <Is<AdapterBind> T>
auto MembersOf(T& x) {
  auto& [adapter, slot, scale, page_begin, num_pages] = x;
  return std::tie(adapter, slot, scale, page_begin, num_pages);
}
template <Is<ScoreRow> T>
auto MembersOf(T& x) {
  auto& [id, row, target, num_top] = x;
  return std::tie(id, row, target, num_top);
}
template <Is<PoolRows> T>
auto MembersOf(T& x) {
  auto& [id, row, num_rows, last] = x;
  return std::tie(id, row, num_rows, last);
}
template <Is<DraftAhead> T>
auto MembersOf(T& x) {
  auto& [sample, num_tokens, slot_begin, num_slots, min_survival, max_catch_up] = x;
  return std::tie(sample, num_tokens, slot_begin, num_slots, min_survival, max_catch_up);
}
template <Is<DryBreaker> T>
auto MembersOf(T& x) {
  auto& [heads, tail] = x;
  return std::tie(heads, tail);
}
template <Is<SamplingParams> T>
auto MembersOf(T& x) {
  static_assert(sizeof(SamplingParams) == 192, "a new member? It must be sent, too");
  return std::tie(x.temperature, x.top_n_sigma, x.top_k, x.top_p, x.min_p, x.typical_p,
                  x.xtc_probability, x.xtc_threshold, x.repetition_penalty, x.presence_penalty,
                  x.frequency_penalty, x.dry_multiplier, x.dry_base, x.dry_allowed_length,
                  x.dry_penalty_last_n, x.dry_breakers, x.seed, x.num_logprobs, x.logit_bias,
                  x.min_tokens, x.min_tokens_banned, x.rejects_guesses, x.bad_words);
}
template <Is<SequenceBegin> T>
auto MembersOf(T& x) {
  auto& [id, sampling, prompt] = x;
  return std::tie(id, sampling, prompt);
}
template <Is<std::pair<TokenId, float>> T>
auto MembersOf(T& x) {
  return std::tie(x.first, x.second);
}

template <typename T>
void WriteMembers(const T& value, ByteWriter* bytes) {
  if constexpr (std::is_same_v<T, bool>) {
    bytes->Byte(value ? 1 : 0);
  } else if constexpr (std::is_floating_point_v<T>) {
    bytes->Word(value);
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    bytes->Zigzag(static_cast<int64_t>(value));
  } else {
    std::apply([bytes](const auto&... member) { (WriteMembers(member, bytes), ...); },
               MembersOf(value));
  }
}
template <typename T>
void WriteMembers(const std::vector<T>& values, ByteWriter* bytes) {
  bytes->Varint(values.size());
  for (const T& value : values) WriteMembers(value, bytes);
}

template <typename T>
void ReadMembers(ByteReader* bytes, T* value) {
  if constexpr (std::is_same_v<T, bool>) {
    *value = bytes->Byte() != 0;
  } else if constexpr (std::is_floating_point_v<T>) {
    *value = bytes->Word<T>();
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    const int64_t number = bytes->Zigzag();
    *value = static_cast<T>(number);
    if (static_cast<int64_t>(*value) != number) bytes->Fail();  // does not fit
  } else {
    std::apply([bytes](auto&... member) { (ReadMembers(bytes, &member), ...); }, MembersOf(*value));
  }
}
template <typename T>
void ReadMembers(ByteReader* bytes, std::vector<T>* values) {
  values->resize(bytes->Count());
  for (T& value : *values) ReadMembers(bytes, &value);
}

}  // namespace heddle::engine
