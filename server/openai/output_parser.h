// Splits what a model writes into content, reasoning and tool calls, as the text comes.
//
// The pieces are the same however the text is cut: each decision is a function of the text so far,
// and is taken as soon as that text allows only one. A call is reported when its name is known and
// its arguments have begun, and these as they come; in formats that do not write them as JSON, when
// it is whole. Half of one never shows as content. What looked like a call and is none is content.
// White space around calls and reasoning belongs to neither. Thread-safety: none; one per choice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/argument_stream.h"
#include "server/openai/output_syntax.h"
#include "server/openai/tool_call.h"

namespace heddle::server {

struct OutputPiece {
  enum class Kind : uint8_t {
    kContent,
    kReasoning,
    kCall,       // with its arguments, or the beginning of them
    kArguments,  // more of the last call's
  };
  Kind kind = Kind::kContent;
  std::string text;        // not empty but for kCall, and the last kArguments
  ToolCall call;           // kCall
  bool ends_call = false;  // with this piece the last call is whole
};

class OutputParser {
 public:
  // `tools` outlives the parser. `in_reasoning`: the prompt has opened it (EndsInReasoning).
  OutputParser(const OutputSyntax& syntax, const ToolSet* tools, bool in_reasoning);

  // Appends what `text` completed; neighbours of one kind are one piece.
  void Push(std::string_view text, std::vector<OutputPiece>* pieces);

  // The text ends. `natural`: the model ended it, so that a call that lacks nothing but its closing
  // mark is one; otherwise an unfinished call is dropped.
  void Finish(bool natural, std::vector<OutputPiece>* pieces);

  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State : uint8_t {
    kStart,  // nothing but white space yet: a bare call may begin
    kContent,
    kReasoning,
    kCall,      // behind a mark that opens a call; until its closing mark
    kSection,   // CallEnd::kBrackets: between calls
    kBrackets,  // in one of them
  };
  enum class MarkKind : uint8_t { kNone, kCall, kReasoning, kReasoningEnd, kNoise };
  struct Mark {
    std::string_view text;
    MarkKind kind;
  };
  // A mark at the start of some text: there, not there, or not to be told yet.
  struct Match {
    bool undecided = false;
    MarkKind kind = MarkKind::kNone;
    std::string_view mark;
  };

  bool Step();  // false: more text is needed
  bool StepStart();
  bool StepText();
  bool StepCall();
  bool StepSection();
  bool StepBrackets();
  Match MatchMark(std::string_view text, bool after_content) const;
  void Enter(const Match& match);
  void Give(OutputPiece::Kind kind, std::string_view text);
  void GiveText(size_t length);  // of held_, as what the state is
  bool DecodeUnit(std::string_view unit);
  void GiveArguments();
  void EndCall();
  void Drop(size_t length);

  OutputSyntax syntax_;
  const ToolSet* tools_;
  std::vector<Mark> marks_;
  State state_;
  std::string held_;  // not decided yet
  std::vector<OutputPiece>* out_ = nullptr;
  std::string_view open_mark_;  // of the call or section we are in
  bool skip_white_ = false;     // the next white space belongs to nothing
  bool had_content_ = false;
  ArgumentStream arguments_;  // of the call we are in
  bool call_given_ = false;   // it was reported, with its first arguments
  // kCall: bytes of held_ where no closing mark begins. kBrackets: bytes that were looked at.
  size_t searched_ = 0;
  int depth_ = 0;
  char quote_ = 0;
  bool escaped_ = false;
};

}  // namespace heddle::server
