// A handler of the whole server, as transports have it, without a connection: the demo model's
// codec, the real pool of prepare threads, and an engine that plays a few tokens of each answer.
//
// Threads: Check on one. It returns when the request is answered, and aborts where the answer is
// not one that a server may give.
#pragma once

#include <memory>

#include "tests/fuzz/fuzzed_request.h"

namespace heddle::test {

class HandlerHarness {
 public:
  HandlerHarness();
  ~HandlerHarness();

  void Check(const FuzzedRequest& request);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace heddle::test
