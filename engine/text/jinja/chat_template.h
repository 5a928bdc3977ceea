// A model's chat template: turns messages, tools and flags into the prompt's text.
//
// An interpreter of the Jinja2 that templates are written in, configured as in Hugging Face
// transformers: trim_blocks, lstrip_blocks, the immutable sandbox (a template cannot modify its
// inputs), loop controls, {% generation %}, tojson without HTML escapes, raise_exception,
// strftime_now. It is not a general Jinja2: it has no inheritance, imports or autoescaping;
// integers have 64 bits; and the filters urlize, pprint and random are missing.
//
// Templates are untrusted. They can access only their context, and the cost of each is bounded
// (limits.h).
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/limits.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine::text {

// Immutable once parsed. Thread-safe: any number of threads may render at once, if any thread may
// call `now`.
class ChatTemplate {
 public:
  struct Options {
    TemplateLimits limits;
    std::function<std::tm()> now;  // local time for strftime_now; by default the system's
  };

  // INVALID_ARGUMENT with "line N: ..." if the source is not a valid template.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string source);
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string source, Options options);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // The text for the variables in `context`, an object: messages, tools, add_generation_prompt,
  // bos_token and others that the template uses. Keys keep their order wherever they are printed.
  // INVALID_ARGUMENT, with "line N: " and the template's own words for raise_exception, if the
  // template refuses or fails; RESOURCE_EXHAUSTED if it exceeds its limits.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const;

  // Whether a variable of this name occurs anywhere: for example whether the template knows `tools`
  // or `enable_thinking`.
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
