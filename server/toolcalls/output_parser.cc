#include "server/toolcalls/output_parser.h"
#include "server/toolcalls/white_space.h"

#include <algorithm>
#include <utility>

namespace heddle::server {
namespace {

// Longer than any sensible call; longer text is content.
constexpr size_t kMaxCallBytes = size_t{1} << 18;

enum class Likeness : uint8_t { kNo, kUndecided, kYes };

size_t SkipWhite(std::string_view text, size_t at) {
  at = text.find_first_not_of(kWhite, at);
  return at == std::string_view::npos ? std::string_view::npos : at;
}

// Compares with {"name"...: the keys with which a call's object may begin.
Likeness LikeJsonCall(std::string_view text) {
  constexpr std::string_view kKeys[] = {"\"name\"",       "\"type\"",      "\"function\"",
                                        "\"parameters\"", "\"arguments\"", "\"id\""};
  size_t at = SkipWhite(text, 1);
  if (at == std::string_view::npos) return Likeness::kUndecided;
  std::string_view rest = text.substr(at);
  Likeness likeness = Likeness::kNo;
  for (std::string_view key : kKeys) {
    if (rest.starts_with(key)) return Likeness::kYes;
    if (key.starts_with(rest)) likeness = Likeness::kUndecided;
  }
  return likeness;
}

// Compares with [name( .
Likeness LikePythonicCall(std::string_view text) {
  size_t at = SkipWhite(text, 1);
  if (at == std::string_view::npos) return Likeness::kUndecided;
  auto is_letter = [](char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  if (!is_letter(text[at])) return Likeness::kNo;
  while (at < text.size() &&
         (is_letter(text[at]) || text[at] == '.' || (text[at] >= '0' && text[at] <= '9'))) {
    ++at;
  }
  if (at == text.size()) return Likeness::kUndecided;
  return text[at] == '(' ? Likeness::kYes : Likeness::kNo;
}

Likeness LikeBareCall(char bracket, std::string_view text) {
  if (text.size() > kMaxCallHeaderBytes) text = text.substr(0, kMaxCallHeaderBytes);
  Likeness likeness = bracket == '{' ? LikeJsonCall(text) : LikePythonicCall(text);
  bool too_long = text.size() == kMaxCallHeaderBytes && likeness == Likeness::kUndecided;
  return too_long ? Likeness::kNo : likeness;
}

}  // namespace

OutputParser::OutputParser(const OutputSyntax& syntax, const ToolSet* tools, bool in_reasoning)
    : syntax_(syntax), tools_(tools), state_(in_reasoning ? State::kReasoning : State::kStart) {
  auto add = [this](const Marks& marks, MarkKind kind) {
    for (std::string_view mark : marks) {
      if (!mark.empty()) marks_.push_back({mark, kind});
    }
  };
  if (syntax.tools != nullptr) {
    add(syntax.tools->open, MarkKind::kCall);
    add(syntax.tools->noise, MarkKind::kNoise);
  }
  if (syntax.reasoning != nullptr) {
    add(syntax.reasoning->close, MarkKind::kReasoningEnd);
    add(syntax.reasoning->open, MarkKind::kReasoning);
    add(syntax.reasoning->noise, MarkKind::kNoise);
  }
  skip_white_ = in_reasoning;
}

void OutputParser::Push(std::string_view text, std::vector<OutputPiece>* pieces) {
  held_.append(text);
  out_ = pieces;
  while (!held_.empty() && Step()) {
  }
}

void OutputParser::Finish(bool natural, std::vector<OutputPiece>* pieces) {
  out_ = pieces;
  bool in_call = state_ == State::kCall || state_ == State::kBrackets;
  if (in_call && call_given_) {
    if (natural || arguments_.complete()) EndCall();
  } else if (in_call) {
    // A model that ends its turn instead of writing the closing mark has still made the call.
    if (natural && !held_.empty()) DecodeUnit(held_);
  } else if (state_ == State::kStart && !natural) {
    // A possible beginning of a bare call is dropped, like any half of a call.
    size_t begin = SkipWhite(held_, 0);
    bool bare = begin != std::string::npos && syntax_.tools != nullptr &&
                syntax_.tools->bare != 0 && held_[begin] == syntax_.tools->bare;
    if (!bare) GiveText(held_.size());
  } else if (state_ != State::kSection) {
    size_t last = held_.find_last_not_of(kWhite);
    bool trim = state_ == State::kReasoning || skip_white_;
    GiveText(!trim ? held_.size() : last == std::string::npos ? 0 : last + 1);
  }
  held_.clear();
}

bool OutputParser::Step() {
  switch (state_) {
    case State::kStart:
      return StepStart();
    case State::kContent:
    case State::kReasoning:
      return StepText();
    case State::kCall:
      return StepCall();
    case State::kSection:
      return StepSection();
    case State::kBrackets:
      return StepBrackets();
  }
  return false;
}

// Reads a bare call, or other text.
bool OutputParser::StepStart() {
  size_t begin = SkipWhite(held_, 0);
  if (begin == std::string::npos) return false;
  char bare = syntax_.tools != nullptr ? syntax_.tools->bare : '\0';
  if (bare != 0 && held_[begin] == bare) {
    Likeness likeness = LikeBareCall(bare, std::string_view(held_).substr(begin));
    if (likeness == Likeness::kUndecided) return false;
    if (likeness == Likeness::kYes) {
      Drop(begin);
      open_mark_ = "";
      arguments_.Begin(syntax_.tools, tools_);
      state_ = State::kBrackets;
      return true;
    }
  }
  state_ = State::kContent;
  return true;
}

// Reads content or reasoning, up to the next mark.
bool OutputParser::StepText() {
  if (skip_white_) {
    Drop(std::min(held_.find_first_not_of(kWhite), held_.size()));
    if (held_.empty()) return false;
  }
  std::string_view text = held_;
  size_t first = text.find_first_not_of(kWhite);
  for (size_t at = 0; at < text.size(); ++at) {
    Match match = MatchMark(text.substr(at), had_content_ || first < at);
    if (!match.undecided && match.kind == MarkKind::kNone) continue;
    size_t last = at == 0 ? std::string_view::npos : text.find_last_not_of(kWhite, at - 1);
    size_t given = last == std::string_view::npos ? 0 : last + 1;
    GiveText(given);
    if (match.undecided) return false;
    Drop(at - given + match.mark.size());
    Enter(match);
    return true;
  }
  size_t last = text.find_last_not_of(kWhite);
  GiveText(last == std::string_view::npos ? 0 : last + 1);
  return false;
}

// The longest mark at the front of `text` that is valid in this state.
OutputParser::Match OutputParser::MatchMark(std::string_view text, bool after_content) const {
  Match best;
  for (const Mark& mark : marks_) {
    bool reasoning = state_ == State::kReasoning;
    if (mark.kind == MarkKind::kReasoningEnd && !reasoning) continue;
    if (reasoning && (mark.kind == MarkKind::kCall || mark.kind == MarkKind::kNoise)) continue;
    if (mark.kind == MarkKind::kReasoning && !reasoning && after_content &&
        !syntax_.reasoning->anywhere) {
      continue;
    }
    if (text.size() < mark.text.size()) {
      best.undecided |= mark.text.starts_with(text);
    } else if (mark.text.size() > best.mark.size() && text.starts_with(mark.text)) {
      best.kind = mark.kind;
      best.mark = mark.text;
    }
  }
  return best;
}

void OutputParser::Enter(const Match& match) {
  skip_white_ = true;
  switch (match.kind) {
    case MarkKind::kReasoning:
      state_ = State::kReasoning;
      break;
    case MarkKind::kCall:
      open_mark_ = match.mark;
      searched_ = 0;
      arguments_.Begin(syntax_.tools, tools_);
      state_ = syntax_.tools->end == CallEnd::kMark ? State::kCall : State::kSection;
      break;
    case MarkKind::kReasoningEnd:
    case MarkKind::kNoise:
    case MarkKind::kNone:
      state_ = had_content_ ? State::kContent : State::kStart;
      break;
  }
}

bool OutputParser::StepCall() {
  std::string_view close = syntax_.tools->close;
  GiveArguments();
  const size_t from = std::max(searched_, arguments_.search_from());
  size_t end = held_.find(close, from);
  if (end == std::string::npos && held_.size() <= kMaxCallBytes) {
    searched_ = held_.size() - std::min(held_.size(), close.size() - 1);
    return false;
  }
  state_ = State::kContent;
  skip_white_ = true;
  if (call_given_) {
    EndCall();
    Drop(end == std::string::npos ? held_.size() : end + close.size());
    return true;
  }
  if (end != std::string::npos && DecodeUnit(std::string_view(held_).substr(0, end))) {
    Drop(end + close.size());
    return true;
  }
  // It is no call: its text is content, and is not searched for marks again.
  size_t length = end == std::string::npos ? held_.size() : end + close.size();
  skip_white_ = false;
  Give(OutputPiece::Kind::kContent, open_mark_);
  GiveText(length);
  return true;
}

bool OutputParser::StepSection() {
  Match match = MatchMark(held_, had_content_);
  if (match.undecided) return false;
  if (match.kind != MarkKind::kNone) {
    Drop(match.mark.size());
    Enter(match);
    return true;
  }
  const ToolSyntax& tools = *syntax_.tools;
  char next = held_.front();
  bool pythonic = tools.decode == DecodePythonic;
  bool begins = pythonic ? next == '[' : next == '{';
  if (!begins && tools.between.find(next) != std::string_view::npos) {
    Drop(1);
    return true;
  }
  bool named = tools.decode == DecodeNamedJson && kWhite.find(next) == std::string_view::npos;
  searched_ = 0;
  depth_ = 0;
  arguments_.Begin(syntax_.tools, tools_);
  state_ = begins || named ? State::kBrackets : State::kContent;
  return true;
}

// Reads to the end of the first bracketed value. Brackets of a header ("f[ARGS]{") do not count.
bool OutputParser::StepBrackets() {
  GiveArguments();
  bool pythonic = syntax_.tools->decode == DecodePythonic;
  for (; searched_ < held_.size(); ++searched_) {
    char c = held_[searched_];
    if (quote_ != 0) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == quote_) {
        quote_ = 0;
      }
      continue;
    }
    bool counts = depth_ > 0 || c == (pythonic ? '[' : '{');
    if (!counts) {
      if (searched_ >= kMaxCallHeaderBytes) break;
      continue;
    }
    if (c == '"' || (pythonic && c == '\'')) quote_ = c;
    if (c == '{' || c == '[' || c == '(') ++depth_;
    if ((c == '}' || c == ']' || c == ')') && --depth_ == 0) break;
  }
  if (searched_ == held_.size() && held_.size() <= kMaxCallBytes) return false;
  size_t length = std::min(searched_ + 1, held_.size());
  searched_ = 0;
  depth_ = 0;
  quote_ = 0;
  escaped_ = false;
  if (call_given_) {
    EndCall();
    Drop(length);
    skip_white_ = true;
    state_ = State::kSection;
    return true;
  }
  if (DecodeUnit(std::string_view(held_).substr(0, length))) {
    Drop(length);
    skip_white_ = true;
    state_ = State::kSection;
    return true;
  }
  state_ = State::kContent;
  skip_white_ = false;
  Give(OutputPiece::Kind::kContent, open_mark_);
  GiveText(length);
  return true;
}

// Emits the certain part of the current call's arguments.
void OutputParser::GiveArguments() {
  std::string more;
  arguments_.Read(held_, &more);
  if (more.empty()) return;
  if (call_given_) {
    const bool joins = !out_->empty() && out_->back().kind == OutputPiece::Kind::kArguments;
    if (joins) {
      out_->back().text.append(more);
    } else {
      out_->push_back({OutputPiece::Kind::kArguments, std::move(more), {}});
    }
    return;
  }
  call_given_ = true;
  had_content_ = true;
  open_mark_ = "";
  out_->push_back({OutputPiece::Kind::kCall, "", {arguments_.name(), std::move(more)}});
}

void OutputParser::EndCall() {
  const bool at_hand = !out_->empty() && (out_->back().kind == OutputPiece::Kind::kArguments ||
                                          out_->back().kind == OutputPiece::Kind::kCall);
  if (!at_hand) out_->push_back({OutputPiece::Kind::kArguments, "", {}});
  out_->back().ends_call = true;
  call_given_ = false;
}

bool OutputParser::DecodeUnit(std::string_view unit) {
  static const ToolSet no_tools;
  std::vector<ToolCall> calls;
  if (!syntax_.tools->decode(unit, tools_ == nullptr ? no_tools : *tools_, &calls)) return false;
  for (ToolCall& call : calls) {
    out_->push_back({OutputPiece::Kind::kCall, "", std::move(call), /*ends_call=*/true});
  }
  had_content_ = true;
  open_mark_ = "";  // it precedes the first call of a section only
  return true;
}

void OutputParser::Give(OutputPiece::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (kind == OutputPiece::Kind::kContent) had_content_ = true;
  if (!out_->empty() && out_->back().kind == kind && kind != OutputPiece::Kind::kCall) {
    out_->back().text.append(text);
  } else {
    out_->push_back({kind, std::string(text), {}});
  }
}

void OutputParser::GiveText(size_t length) {
  if (length == 0) return;
  Give(state_ == State::kReasoning ? OutputPiece::Kind::kReasoning : OutputPiece::Kind::kContent,
       std::string_view(held_).substr(0, length));
  Drop(length);
  skip_white_ = false;
}

void OutputParser::Drop(size_t length) { held_.erase(0, length); }

}  // namespace heddle::server
