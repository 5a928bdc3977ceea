// How a GGUF file of the kind `gpt2` splits text: the file gives a name, not a pattern.
// Source: the names and patterns of llama.cpp's `llama_vocab` (fact tables of public models); the
// patterns are those of the models' own tokenizer.json.
#pragma once

#include <span>
#include <string_view>

namespace heddle::engine::text {

struct GgufPattern {
  std::string_view name;  // value of tokenizer.ggml.pre
  // Applied one after the other; matches and gaps are both kept.
  std::span<const std::string_view> splits;
  bool ignore_merges = false;  // a word that is a token is not merged
  bool add_bos = false;        // the default if the file does not say
};

// nullptr if the name is unknown.
const GgufPattern* FindGgufPattern(std::string_view name);

}  // namespace heddle::engine::text
