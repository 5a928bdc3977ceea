#include "server/parallel/parallel_format.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/regex.h"

namespace heddle::server {
namespace {

constexpr std::string_view kOutlineItems = R"(<Outline>\s*([0-9]+(?:\.[0-9]+)*)\s*:)";

constexpr std::string_view kId = "{id}";

// `pattern` with the id in its places.
std::string WithId(std::string text, std::string_view id) {
  for (size_t at = text.find(kId); at != std::string::npos; at = text.find(kId, at + id.size())) {
    text.replace(at, kId.size(), id);
  }
  return text;
}

// `pattern` with each number that a branch may have.
std::string NumberedMarks(const std::string& pattern) {
  std::string marks;
  for (int32_t number = 1; number <= ParallelLimits::kMaxBranches; ++number) {
    marks += WithId(pattern, base::StrCat(number));
  }
  return marks;
}

const std::vector<ParallelFormat>& Formats() {
  static const std::vector<ParallelFormat> formats = {
      {.name = "multiverse",
       .join = ParallelJoin::kConcurrent,
       .fork_at = "</Goal>",
       .items_from = "<Goal>",
       .items = std::string(kOutlineItems),
       .before = "\n",
       .header = "<Path>\n{id}:",
       .branch_begin = "<Path>",
       .branch_end = "</Path>",
       .cut_end = "\n</Path>",
       .after = "\n",
       .tail = "<Conclusion>\n",
       .shown = "<Parallel></Parallel><Outline></Outline></Conclusion>"},
      {.name = "threadweaver",
       .join = ParallelJoin::kText,
       .fork_at = "</Outlines>",
       .items_from = "<Outlines>",
       .items = std::string(kOutlineItems),
       .before = "\n",
       .header = "<Thread>\n{id}:",
       .branch_begin = "<Thread>",
       .branch_end = "</Thread>",
       .cut_end = "\n</Thread>",
       .after = "",
       .tail = "\n</Parallel>",
       .shown = "<Parallel><Outline></Outline>"},
      {.name = "apr",
       .join = ParallelJoin::kCalls,
       .fork_at = std::string(kAprEndOfCalls),
       .tail = std::string(kAprBeginOfCalls)},
      {.name = "parathinker",
       .join = ParallelJoin::kConcurrent,
       .header = "<think{id}>",
       .cut_end = "</think{id}>",
       .tail = "<summary>By analyzing multiple reasoning processes above, I concluded that: The "
               "final answer is",
       .shown = NumberedMarks("<think{id}></think{id}>"),
       .at_start = true,
       .answer_end = "</summary>",
       .other_end = "</think>"},
  };
  return formats;
}

// The token that `mark` is; -1: it is several.
TokenId TokenOf(std::string_view mark, const TextCodec& codec) {
  const absl::StatusOr<std::vector<TokenId>> tokens = codec.Encode(mark, /*add_special=*/false);
  if (!tokens.ok() || tokens->empty()) return -1;
  return codec.TokenBytes(tokens->back()) == mark ? tokens->back() : -1;
}

absl::Status EncodeTo(std::string_view text, const TextCodec& codec, std::vector<TokenId>* tokens) {
  if (text.empty()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(*tokens, codec.Encode(text, /*add_special=*/false));
  return absl::OkStatus();
}

}  // namespace

const ParallelFormat* FindParallelFormat(std::string_view name) {
  const std::vector<ParallelFormat>& formats = Formats();
  const auto found = std::find_if(formats.begin(), formats.end(),
                                  [name](const ParallelFormat& one) { return one.name == name; });
  return found == formats.end() ? nullptr : &*found;
}

const ParallelFormat* DetectParallelFormat(const TextCodec& codec, bool has_segments) {
  for (const ParallelFormat& format : Formats()) {
    if (format.at_start) {
      if (has_segments && TokenOf(WithId(format.header, "1"), codec) >= 0) return &format;
      continue;
    }
    if (TokenOf(format.fork_at, codec) >= 0 && TokenOf(format.branch_end, codec) >= 0) {
      return &format;
    }
  }
  return nullptr;
}

std::string ParallelFormatNames() {
  std::string names;
  for (const ParallelFormat& format : Formats()) names.append(format.name).append(", ");
  return names.append("custom");
}

struct ParallelSyntax::Expression {
  engine::text::Regex regex;
};

ParallelSyntax::ParallelSyntax(ParallelFormat format, const TextCodec* codec)
    : format_(std::move(format)), codec_(*codec) {}

ParallelSyntax::~ParallelSyntax() = default;

absl::StatusOr<std::shared_ptr<const ParallelSyntax>> ParallelSyntax::Make(ParallelFormat format,
                                                                           const TextCodec* codec) {
  HEDDLE_ASSIGN_OR_RETURN(engine::text::Regex items, engine::text::Regex::Compile(format.items));
  std::shared_ptr<ParallelSyntax> syntax(new ParallelSyntax(std::move(format), codec));
  const ParallelFormat& own = syntax->format_;
  syntax->items_ = std::make_unique<Expression>(Expression{std::move(items)});
  syntax->fork_token_ = TokenOf(own.fork_at, *codec);
  syntax->end_token_ = TokenOf(own.branch_end, *codec);
  HEDDLE_RETURN_IF_ERROR(EncodeTo(own.before, *codec, &syntax->before_));
  HEDDLE_RETURN_IF_ERROR(EncodeTo(own.cut_end, *codec, &syntax->cut_end_));
  HEDDLE_RETURN_IF_ERROR(EncodeTo(own.after, *codec, &syntax->after_));
  HEDDLE_RETURN_IF_ERROR(EncodeTo(own.tail, *codec, &syntax->tail_));
  if (own.at_start) HEDDLE_RETURN_IF_ERROR(syntax->FindNumbers());
  return std::shared_ptr<const ParallelSyntax>(std::move(syntax));
}

absl::StatusOr<std::vector<std::string>> ParallelSyntax::Items(std::string_view text,
                                                               size_t limit) const {
  constexpr double kSeconds = 0.005;  // of a thread that has others to serve
  std::vector<std::string> ids;
  if (!format_.items_from.empty()) {
    const size_t from = text.rfind(format_.items_from);
    if (from == std::string_view::npos) return ids;
    text = text.substr(from + format_.items_from.size());
  }
  if (text.size() > kMaxItemBytes) return ids;
  engine::text::WorkBudget budget(text.size(), kSeconds);
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<std::string_view> found,
                          items_->regex.FirstGroups(text, limit, &budget));
  for (const std::string_view id : found) ids.emplace_back(id);
  return ids;
}

std::vector<TokenId> ParallelSyntax::Prompt(std::string_view text) const {
  absl::StatusOr<std::vector<TokenId>> tokens = codec_.Encode(text, /*add_special=*/true);
  return tokens.ok() ? *std::move(tokens) : std::vector<TokenId>();
}

std::vector<TokenId> ParallelSyntax::Text(std::string_view text) const {
  std::vector<TokenId> tokens;
  if (!EncodeTo(text, codec_, &tokens).ok()) tokens.clear();
  return tokens;
}

std::vector<TokenId> ParallelSyntax::Header(std::string_view id) const {
  return Text(WithId(format_.header, id));
}

std::span<const TokenId> ParallelSyntax::CutEnd(size_t number) const {
  if (!at_start()) return cut_end_;
  return {&numbers_[number].end, 1};
}

absl::Status ParallelSyntax::FindNumbers() {
  for (int32_t number = 1; number <= ParallelLimits::kMaxBranches; ++number) {
    const std::string id = base::StrCat(number);
    const Numbered one = {TokenOf(WithId(format_.header, id), codec_),
                          TokenOf(WithId(format_.cut_end, id), codec_)};
    if (one.header < 0 || one.end < 0) break;
    numbers_.push_back(one);
    branch_ends_.push_back(one.end);
    beginnings_.push_back(one.header);
  }
  if (!tail_.empty()) beginnings_.push_back(tail_.front());
  answer_end_ = TokenOf(format_.answer_end, codec_);
  for (const TokenId token : {answer_end_, TokenOf(format_.other_end, codec_)}) {
    if (token >= 0) branch_ends_.push_back(token);
  }
  if (!numbers_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(base::StrCat("this model has no tokens of the format ",
                                                 format_.name, ", such as ",
                                                 base::Quote(WithId(format_.header, "1"))));
}

std::vector<std::string_view> ParallelSyntax::Marks() const {
  return {format_.fork_at, format_.items_from, format_.items,        format_.before,
          format_.header,  format_.branch_end, format_.branch_begin, format_.cut_end,
          format_.after,   format_.tail,       format_.shown,        format_.answer_end};
}

}  // namespace heddle::server
