// Any text as a model's answer, in the syntax of any family and cut in any two places: the pieces
// do not depend on the cuts, and the arguments of a call are an object.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "server/toolcalls/output_parser.h"

namespace heddle::test {
namespace {

using server::OutputPiece;

std::string Parse(const server::OutputSyntax& syntax, std::string_view text, size_t first,
                  size_t second) {
  static const server::ToolSet tools{{{"f", {{"x", "string"}, {"n", "integer"}}}, {"g", {}}}};
  server::OutputParser parser(syntax, &tools, /*in_reasoning=*/false);
  std::vector<OutputPiece> pieces;
  parser.Push(text.substr(0, first), &pieces);
  parser.Push(text.substr(first, second), &pieces);
  parser.Push(text.substr(std::min(text.size(), first + second)), &pieces);
  parser.Finish(/*natural=*/true, &pieces);
  std::string all;
  for (const OutputPiece& piece : pieces) {
    // More arguments go on where the last piece ended.
    if (piece.kind != OutputPiece::Kind::kArguments) {
      all.push_back('\0');
      all.push_back(static_cast<char>('0' + static_cast<int>(piece.kind)));
    }
    all.append(piece.text).append(piece.call.name).append(piece.call.arguments);
    if (piece.ends_call) all.push_back('\1');
  }
  return all;
}

void Check(std::string_view input) {
  if (input.size() < 3) return;
  auto byte = [&input](size_t i) { return static_cast<unsigned char>(input[i]); };
  auto tools = server::ToolSyntaxes();
  auto reasonings = server::ReasoningSyntaxes();
  server::OutputSyntax syntax;
  syntax.tools = &tools[byte(0) % tools.size()];
  if (byte(0) >= 128) syntax.reasoning = &reasonings[byte(1) % reasonings.size()];
  std::string_view text = input.substr(3);
  // The detokenizer gives whole code points of well-formed UTF-8.
  if (!base::IsValidUtf8(text)) return;
  std::string whole = Parse(syntax, text, text.size(), 0);
  size_t first = text.empty() ? 0 : byte(1) % text.size();
  HEDDLE_CHECK(Parse(syntax, text, first, byte(2)) == whole, "cuts do not change what was said");
}

}  // namespace
}  // namespace heddle::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  heddle::test::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
