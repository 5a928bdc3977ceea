// Splits a model's output into content, reasoning and tool calls as the text arrives.
// The pieces are the same however the text is cut: each decision depends only on the text so far,
// and is taken as soon as that text allows only one. A call is reported when its name is known and
// its arguments have begun, and these as they arrive; in formats that do not write them as JSON,
// when the call is complete. Half of a call never appears as content. Text that looked like a call
// but is none becomes content. White space around calls and reasoning belongs to neither.
// Thread-safety: none; one per choice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/toolcalls/argument_stream.h"
#include "server/toolcalls/output_syntax.h"
#include "server/toolcalls/tool_call.h"

namespace heddle::server {

struct OutputPiece {
  enum class Kind : uint8_t {
    kContent,
    kReasoning,
    kCall,       // with its arguments, or their beginning
    kArguments,  // more arguments of the last call
  };
  Kind kind = Kind::kContent;
  std::string text;        // not empty, except for kCall and the last kArguments
  ToolCall call;           // kCall
  bool ends_call = false;  // this piece completes the last call
};

class OutputParser {
 public:
  // `tools` must outlive the parser. `in_reasoning`: the prompt ends inside reasoning
  // (EndsInReasoning).
  OutputParser(const OutputSyntax& syntax, const ToolSet* tools, bool in_reasoning);

  // Appends what `text` completed; adjacent text of one kind is one piece.
  void Push(std::string_view text, std::vector<OutputPiece>* pieces);

  // The text ends. `natural`: the model ended it, so that a call that lacks only its closing mark
  // counts; otherwise an unfinished call is dropped.
  void Finish(bool natural, std::vector<OutputPiece>* pieces);

  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State : uint8_t {
    kStart,  // only white space so far: a bare call may begin
    kContent,
    kReasoning,
    kCall,      // behind an opening mark, until the closing one
    kSection,   // CallEnd::kBrackets: between calls
    kBrackets,  // inside one of them
  };
  enum class MarkKind : uint8_t { kNone, kCall, kReasoning, kReasoningEnd, kNoise };
  struct Mark {
    std::string_view text;
    MarkKind kind;
  };
  // Whether a mark begins some text: yes, no, or unknown yet.
  struct Match {
    bool undecided = false;
    MarkKind kind = MarkKind::kNone;
    std::string_view mark;
  };

  bool Step();  // returns false if more text is needed
  bool StepStart();
  bool StepText();
  bool StepCall();
  bool StepSection();
  bool StepBrackets();
  Match MatchMark(std::string_view text, bool after_content) const;
  void Enter(const Match& match);
  void Give(OutputPiece::Kind kind, std::string_view text);
  void GiveText(size_t length);  // emits the front of held_, as the state's kind
  bool DecodeUnit(std::string_view unit);
  void GiveArguments();
  void EndCall();
  void Drop(size_t length);

  OutputSyntax syntax_;
  const ToolSet* tools_;
  std::vector<Mark> marks_;
  State state_;
  std::string held_;  // undecided text
  std::vector<OutputPiece>* out_ = nullptr;
  std::string_view open_mark_;  // opening mark of the current call or section
  bool skip_white_ = false;     // the next white space belongs to no piece
  bool had_content_ = false;
  ArgumentStream arguments_;  // for the current call
  bool call_given_ = false;   // whether it was reported, with its first arguments
  // kCall: leading bytes of held_ in which no closing mark begins. kBrackets: bytes already read.
  size_t searched_ = 0;
  int depth_ = 0;
  char quote_ = 0;
  bool escaped_ = false;
};

}  // namespace heddle::server
