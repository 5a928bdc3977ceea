// Keeps the keys of JSON objects and the items of arrays different where a grammar demands it
// (Rule::is_distinct): a finite automaton cannot, because it does not remember what was written.
// This is the part of a text's position that is beside its context.
//
// Reads a text byte by byte. From the bracket that begins a marked object or array it follows
// JSON's syntax, which the grammar guarantees, up to the matching bracket. Values are compared as
// values: 1 and 1.0 are equal, and so are two notations of a string.
//
// Thread-safety: a value; copies share what was written and never change it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/context_pool.h"
#include "engine/grammar/vocabulary.h"

namespace heddle::engine::grammar {

class DistinctValues {
 public:
  // Reads a byte. `is_marked`: an object or array with distinct values begins with it. Returns
  // false if the byte completes a key or item that was there before; the object is then of no use.
  bool Read(char byte, bool is_marked);

  // Whether some marked object or array is open.
  bool is_open() const { return num_marked_ > 0; }
  bool in_string() const { return in_string_; }
  // Whether the current value is, or is part of, a key or item that must differ from others.
  bool in_element() const { return num_elements_ > 0; }
  // Whether there is any earlier key or item in an open object or array.
  bool HasElements() const;
  // If what is being written is a string that must differ from others, itself and nothing around
  // it, and no escape is unfinished: what of earlier strings is left to write, in one notation
  // (escapes only where JSON demands them). Only a text that begins with one of these, or that has
  // an escape before its quotation mark, completes an earlier string. Null otherwise.
  std::optional<std::vector<std::string>> RestsOfStrings() const;

  // The rests, as they were written, of earlier keys or items that begin with what has been written
  // of the current one, or with nothing if the next one is about to begin.
  std::vector<std::string_view> SameSoFar() const;
  // Whether the current value is a number or a word, which ends with the byte behind it.
  bool in_scalar() const { return in_scalar_; }
  // Whether a key or item is about to begin, and has not yet.
  bool BeforeElement() const;
  // Whether the innermost open bracket is an object's.
  bool in_object() const { return !frames_.empty() && frames_.back().is_object; }

 private:
  // A list of the values written so far, newest first. Never changes.
  struct Element {
    std::string text;   // as it was written
    std::string value;  // in one notation
    std::shared_ptr<const Element> before;
    ~Element();
  };
  struct Frame {
    bool is_object;
    bool is_marked;
    bool is_due = true;  // a key or an item comes next
    int64_t begin = -1;  // of the current key or item in text_, if it is tracked
    std::shared_ptr<const Element> elements;
  };

  void Begin();
  bool EndValue();
  bool EndElement(Frame* frame);
  void Append(char byte) {
    if (num_elements_ > 0) text_.push_back(byte);
  }

  std::vector<Frame> frames_;
  int32_t num_marked_ = 0;    // of frames_
  int32_t num_elements_ = 0;  // keys and items that are being written, one of a frame
  std::string text_;          // from the beginning of the outermost of them
  bool in_string_ = false;
  bool in_escape_ = false;
  bool in_scalar_ = false;
};

// Whether a text that stands in `context` can still be something else than each of the texts that
// `values` says it may not become.
bool CanDiffer(const Automaton& automaton, ContextPool* pool, ContextId context,
               const DistinctValues& values);

}  // namespace heddle::engine::grammar
