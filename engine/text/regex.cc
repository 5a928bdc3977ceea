#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/class_run.h"

namespace heddle::engine::text {
namespace {

// Steps of backtracking before a match at one position is given up: far above the needs of
// splitting patterns (a few steps per character), and below a tenth of a second. Short texts get
// fewer, since there may be many of them.
constexpr uint32_t kMaxMatchSteps = 20'000'000;
constexpr uint32_t kLeastMatchSteps = 10'000;
constexpr uint32_t kMatchStepsPerByte = 16;
// Positions that are tried between two looks at the budget.
constexpr size_t kPlacesAtATime = 64;
constexpr size_t kMaxPatternBytes = 64 * 1024;
// PCRE2 starts on 32 KiB of its caller's stack; long matches of nested groups need more.
constexpr size_t kJitStackStart = 64 * 1024;
constexpr size_t kJitStackMax = 16 * 1024 * 1024;

// PCRE2 counts U+180E as white space; Oniguruma follows the property White_Space.
constexpr std::string_view kSpaceSet =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
// Oniguruma: Alphabetic, M, Nd and Pc; PCRE2: L, N and the underscore.
constexpr std::string_view kWordSet =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
constexpr std::string_view kHexSet = "0-9A-Fa-f";

std::string_view SetOf(char escape) {
  switch (escape) {
    case 's':
    case 'S':
      return kSpaceSet;
    case 'w':
    case 'W':
      return kWordSet;
    default:
      return kHexSet;
  }
}

// Rewrites one pattern from left to right.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        HEDDLE_RETURN_IF_ERROR(Escape());
      } else if (depth_ > 0) {
        HEDDLE_RETURN_IF_ERROR(InClass());
      } else {
        if (in_[at_] == '[')
          OpenClass();
        else
          out_.push_back(in_[at_++]);
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Fail(std::string_view what) const {
    return absl::InvalidArgumentError(
        base::StrCat("regular expression '", in_, "': ", what, " at byte ", at_));
  }

  absl::Status Escape() {
    if (at_ + 1 == in_.size()) return Fail("lone backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
      case 'w':
      case 'h':
        AppendSet(depth_ > 0 ? "" : "[", SetOf(c));
        break;
      case 'S':
        // Inside a class a negated set cannot be written out; PCRE2's own \S differs only in
        // U+180E.
        if (depth_ > 0)
          out_.append("\\S");
        else
          AppendSet("[^", kSpaceSet);
        break;
      case 'W':
      case 'H':
        if (depth_ > 0) return Fail("negated shorthand in a class is not supported");
        AppendSet("[^", SetOf(c));
        break;
      default:
        out_.append(in_.substr(at_, 2));
    }
    at_ += 2;
    return absl::OkStatus();
  }

  // A set inside a class needs no brackets.
  void AppendSet(std::string_view open, std::string_view set) {
    out_.append(open).append(set);
    if (!open.empty()) out_.push_back(']');
  }

  void OpenClass() {
    depth_ = 1;
    out_.push_back(in_[at_++]);
    if (at_ < in_.size() && in_[at_] == '^') out_.push_back(in_[at_++]);
    // A leading bracket is a member in both dialects.
    if (at_ < in_.size() && in_[at_] == ']') {
      out_.append("\\]");
      ++at_;
    }
  }

  absl::Status InClass() {
    const char c = in_[at_];
    if (in_.substr(at_, 2) == "&&") return Fail("class intersection is not supported");
    if (c == '[') {
      if (in_.substr(at_, 2) != "[:") return Fail("nested class is not supported");
      const size_t close = in_.find(":]", at_);
      if (close == std::string_view::npos) return Fail("unclosed POSIX class");
      out_.append(in_.substr(at_, close + 2 - at_));
      at_ = close + 2;
      return absl::OkStatus();
    }
    if (c == ']') depth_ = 0;
    out_.push_back(c);
    ++at_;
    return absl::OkStatus();
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  int depth_ = 0;  // 1 inside a character class
};

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0)
    return base::StrCat("error ", code);
  return reinterpret_cast<const char*>(buffer);
}

struct MatchFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

// Searches one text for matches.
class Search {
 public:
  // `num_groups`: of each match that are told, the whole match included.
  Search(const pcre2_code* code, std::string_view text, uint32_t num_groups = 1)
      : code_(code),
        text_(text),
        match_(pcre2_match_data_create(num_groups, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (!has_memory()) return;
    const size_t steps = kLeastMatchSteps + kMatchStepsPerByte * text.size();
    pcre2_set_match_limit(context_.get(),
                          static_cast<uint32_t>(std::min<size_t>(steps, kMaxMatchSteps)));
  }

  bool has_memory() const { return match_ != nullptr && context_ != nullptr; }

  // Finds the first match that begins in [first, last]; returns PCRE2's result.
  int From(size_t first, size_t last) {
    pcre2_set_offset_limit(context_.get(), last);
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    while (true) {
      const int found = pcre2_match(code_, subject, text_.size(), first, PCRE2_NO_UTF_CHECK,
                                    match_.get(), context_.get());
      if (found != PCRE2_ERROR_JIT_STACKLIMIT || stack_ != nullptr) return found;
      stack_.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
    }
  }
  size_t begin() const { return pcre2_get_ovector_pointer(match_.get())[0]; }
  size_t end() const { return pcre2_get_ovector_pointer(match_.get())[1]; }
  // The text that the first group has matched; empty: nothing. REQUIRES: num_groups is 2.
  std::string_view group() const {
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_.get()) + 2;
    if (range[0] == PCRE2_UNSET || range[1] < range[0]) return {};
    return text_.substr(range[0], range[1] - range[0]);
  }

  // The position of the next code point behind `at`; beyond the text if there is none.
  size_t NextPlace(size_t at) const {
    do {
      ++at;
    } while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80);
    return at;
  }

 private:
  const pcre2_code* code_;
  std::string_view text_;
  std::unique_ptr<pcre2_match_data, MatchFree> match_;
  std::unique_ptr<pcre2_match_context, MatchFree> context_;
  std::unique_ptr<pcre2_jit_stack, MatchFree> stack_;
};

// Calls `on_match` at each match of `search`, from left to right.
absl::Status Walk(Search* search, std::string_view text, std::string_view pattern,
                  WorkBudget* budget, absl::FunctionRef<absl::Status()> on_match) {
  if (!search->has_memory()) {
    return absl::ResourceExhaustedError("no memory for a regular expression match");
  }
  size_t from = 0;
  while (from <= text.size()) {
    if (budget != nullptr) HEDDLE_RETURN_IF_ERROR(budget->CheckTime());
    const size_t last = std::min(text.size(), from + kPlacesAtATime);
    const int found = search->From(from, last);
    if (found == PCRE2_ERROR_NOMATCH) {
      from = search->NextPlace(last);
      continue;
    }
    if (found < 0) {
      return absl::ResourceExhaustedError(base::StrCat("regular expression '", pattern, "' on ",
                                                       text.size(), " bytes: ", ErrorText(found)));
    }
    const size_t begin = search->begin();
    const size_t end = search->end();
    if (end < begin) break;  // \K in a lookahead, which no tokenizer uses
    HEDDLE_RETURN_IF_ERROR(on_match());
    from = end > begin ? end : search->NextPlace(end);
  }
  return absl::OkStatus();
}

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  std::string pattern;
  std::optional<ClassRun> run;  // in place of `compiled`
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern) {
  return Translator(pattern).Run();
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(base::StrCat("regular expression of ", pattern.size(),
                                                   " bytes, the limit is ", kMaxPatternBytes));
  }
  auto code = std::make_unique<Code>();
  code->pattern = pattern;
  code->run = ClassRun::Parse(pattern);
  if (code->run) return Regex(std::move(code));
  HEDDLE_ASSIGN_OR_RETURN(const std::string translated, TranslateOniguruma(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's ^ and $ work on lines by default. Start optimisations are off because they look at
  // the whole text each time.
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                     PCRE2_USE_OFFSET_LIMIT | PCRE2_NO_START_OPTIMIZE,
                                 &error, &offset, nullptr);
  if (code->compiled == nullptr) {
    return absl::InvalidArgumentError(
        base::StrCat("regular expression '", pattern, "': ", ErrorText(error)));
  }
  // Without the just-in-time compiler (some kernels forbid it) the interpreter gives the same
  // matches.
  pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

absl::StatusOr<Regex> Regex::Literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) {
      pattern.append(base::StrCat("\\x{", absl::Hex(static_cast<unsigned char>(c)), "}"));
    } else {
      pattern.push_back(c);
    }
  }
  return Compile(pattern);
}

absl::Status Regex::ForEachMatch(std::string_view text,
                                 absl::FunctionRef<absl::Status(size_t, size_t)> on_match,
                                 WorkBudget* budget) const {
  if (code_->run) return code_->run->ForEachMatch(text, on_match);
  Search search(code_->compiled, text);
  return Walk(&search, text, code_->pattern, budget,
              [&search, &on_match] { return on_match(search.begin(), search.end()); });
}

absl::StatusOr<std::vector<std::string_view>> Regex::FirstGroups(std::string_view text,
                                                                 size_t limit,
                                                                 WorkBudget* budget) const {
  std::vector<std::string_view> groups;
  uint32_t count = 0;
  if (!code_->run) pcre2_pattern_info(code_->compiled, PCRE2_INFO_CAPTURECOUNT, &count);
  const auto add = [&groups, limit](std::string_view group) {
    if (groups.size() < limit) groups.push_back(group);
    return absl::OkStatus();
  };
  if (count == 0) {
    HEDDLE_RETURN_IF_ERROR(ForEachMatch(
        text,
        [text, &add](size_t begin, size_t end) { return add(text.substr(begin, end - begin)); },
        budget));
    return groups;
  }
  Search search(code_->compiled, text, 2);
  HEDDLE_RETURN_IF_ERROR(
      Walk(&search, text, code_->pattern, budget, [&] { return add(search.group()); }));
  return groups;
}

}  // namespace heddle::engine::text
