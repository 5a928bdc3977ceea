// Types of what passes between the scheduler and the engine: tokens, positions, sequences, pages.
// Depends on nothing.
#pragma once

#include <cstdint>

namespace heddle::engine {

// Index into the vocabulary. It is an alias and not a class because it is read from and written to
// arrays of int32 on devices. Valid ids are in [0, vocab).
using TokenId = int32_t;
// Stands for a token that is not drawn yet, or that could not be drawn.
inline constexpr TokenId kNoToken = -1;

// Position of a token in its sequence as RoPE sees it; from 0.
using Position = int32_t;

// Identity of one branch of one request; never reused during the life of the process.
enum class SequenceId : uint64_t {};

// Page of the KV pool, dense in [0, num_pages).
enum class PageId : int32_t {};

// Content of a LoRA adapter; never reused during the life of the process, so that another file
// under the same name is another adapter. 0: none.
enum class AdapterId : uint64_t {};

inline int32_t Index(PageId page) { return static_cast<int32_t>(page); }

}  // namespace heddle::engine
