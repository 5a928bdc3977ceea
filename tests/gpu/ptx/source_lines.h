// Lines of source behind PTX, from the .loc and .file that nvcc writes if asked for (-lineinfo).
// Inlined code has its own line and those of its callers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::ptx {

// The places of a module that is read from its begin to its end.
class SourceLines {
 public:
  // Reads what is behind `.loc`: "3 34 3, function_name $L__info_string1, inlined_at 2 76 3".
  // Returns the number of the place that instructions from there on have; -1: not understood.
  int32_t Place(std::string_view text);
  // Reads what is behind `.file`: `3 "/path/name.cuh"`. nvcc writes these behind the kernels.
  void Name(std::string_view text);
  // By number of the place: "name.cuh:34 < name.cu:76", the innermost first.
  std::vector<std::string> Shown() const;

 private:
  struct Line {
    uint64_t file, line;
    int32_t caller;  // a place, -1: none
  };
  std::vector<Line> places_;
  // "2 76 3", as written, to the last place there: callers are written before what they inline.
  std::map<std::string, int32_t, std::less<>> last_;
  std::map<std::pair<std::string, int32_t>, int32_t> known_;  // by what is written and the caller
  std::map<uint64_t, std::string> names_;
};

}  // namespace heddle::ptx
