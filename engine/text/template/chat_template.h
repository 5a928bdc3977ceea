// A model's chat template: turns messages, tools and flags into the prompt's text.
//
// An interpreter for the Jinja2 that templates are written in, set up as Hugging Face transformers
// does it: trim_blocks, lstrip_blocks, the immutable sandbox (a template cannot modify what it is
// given), loop controls, {% generation %}, tojson without HTML escapes, raise_exception,
// strftime_now. It is not a general Jinja2: no inheritance, no imports, no autoescaping; integers
// have 64 bits; and of the filters urlize, xmlattr, striptags, wordwrap, pprint, filesizeformat
// and random are missing.
//
// Templates are untrusted. They have no access to anything but their context, and what one can
// cost is bounded (limits.h).
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/template/limits.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine::text {

// Immutable once parsed. Thread-safe: any number of threads may render at once, if `now` may be
// called by any.
class ChatTemplate {
 public:
  struct Options {
    TemplateLimits limits;
    std::function<std::tm()> now;  // local time for strftime_now; by default the system's
  };

  // INVALID_ARGUMENT with "line N: ..." if the source is no template.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string source);
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string source, Options options);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // The text for the variables in `context`, an object: messages, tools, add_generation_prompt,
  // bos_token and what else the template asks for. Keys keep their order wherever they are printed.
  // INVALID_ARGUMENT, with "line N: " and the template's own words for raise_exception, if the
  // template refuses or fails; RESOURCE_EXHAUSTED if it exceeds its limits.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const;

  // Whether a variable of this name occurs anywhere: does the template know `tools`, or
  // `enable_thinking`?
  bool mentions(std::string_view variable) const;

  const std::string& source() const { return source_; }

 private:
  struct Parsed;
  ChatTemplate(std::string source, Options options, std::unique_ptr<Parsed> parsed);

  std::string source_;
  Options options_;
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace heddle::engine::text
