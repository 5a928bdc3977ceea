#include "tests/emulate/lines.h"

#include <algorithm>

namespace heddle::kernels::cuda::emulate {

void Lines::Reset(int32_t threads, int32_t bytes) {
  lines_.assign((bytes + kLineBytes - 1) / kLineBytes, Line());
  fences_.assign(threads, 0);
}

bool Lines::Known(const std::vector<Touch>& touches, int32_t thread) const {
  return std::all_of(touches.begin(), touches.end(), [&](const Touch& touch) {
    return clocks_.Knows(thread, touch.thread, touch.clock);
  });
}

bool Lines::Fenced(const std::vector<Touch>& writers) const {
  return std::all_of(writers.begin(), writers.end(), [&](const Touch& touch) {
    return touch.is_async || fences_[touch.thread] > touch.fences;
  });
}

// One touch per thread: the last.
void Lines::Note(const Touch& touch, std::vector<Touch>* touches) {
  for (Touch& known : *touches) {
    if (known.thread != touch.thread) continue;
    known = touch;
    return;
  }
  touches->push_back(touch);
}

const char* Lines::OrdinaryRead(int32_t line) const {
  return lines_[line].is_filling ? "reads what a bulk copy is still filling" : nullptr;
}

const char* Lines::OrdinaryWrite(int32_t line, int32_t thread) {
  Line& to = lines_[line];
  const char* wrong = nullptr;
  if (to.is_filling) wrong = "writes where a bulk copy is still filling";
  if (!Known(to.readers, thread)) wrong = "writes what a matrix instruction may still read";
  ++to.version;
  to.readers.clear();
  Note({thread, clocks_.Own(thread), fences_[thread], false}, &to.writers);
  return wrong;
}

const char* Lines::Fill(int32_t line, int32_t thread) {
  Line& to = lines_[line];
  const char* wrong = nullptr;
  if (to.is_filling) wrong = "copies to where another bulk copy is on its way";
  if (!Known(to.readers, thread)) wrong = "copies over what a matrix instruction may still read";
  if (!Known(to.writers, thread)) wrong = "copies over what another thread writes";
  if (!Fenced(to.writers)) wrong = "copies over ordinary stores without a fence between proxies";
  ++to.version;
  to.readers.clear();
  to.writers = {{thread, clocks_.Own(thread), 0, true}};
  to.is_filling = true;
  return wrong;
}

void Lines::Filled(int32_t line) {
  lines_[line].is_filling = false;
  ++lines_[line].version;
}

const char* Lines::MatrixRead(int32_t line, int32_t thread) {
  Line& from = lines_[line];
  const char* wrong = nullptr;
  if (from.is_filling) wrong = "multiplies what a bulk copy has not filled yet";
  if (!Known(from.writers, thread)) wrong = "multiplies what no barrier says is there";
  if (!Fenced(from.writers)) wrong = "multiplies ordinary stores without a fence between proxies";
  Note({thread, clocks_.Own(thread), 0, true}, &from.readers);
  return wrong;
}

}  // namespace heddle::kernels::cuda::emulate
