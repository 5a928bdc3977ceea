// A stack that runs a function until it yields: what the emulator's threads are made of.
// Thread-safety: a fiber is resumed by one thread at a time, and by the same one from its start to
// its end.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace heddle::kernels::cuda::emulate {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Sets what the next Resume starts. REQUIRES: done().
  void Start(const std::function<void()>* body);
  // Runs until the body yields or ends. REQUIRES: !done().
  void Resume();
  // Within the body: back to the caller of Resume.
  void Yield();
  // Within the body, where kSwitches: to `next`, which yields to this one's caller of Resume in its
  // place. REQUIRES: `next` is not done and does not run.
  void YieldTo(Fiber& next);
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
  static constexpr bool kSwitches = true;
#else
  static constexpr bool kSwitches = false;
#endif
  bool done() const { return body_ == nullptr; }

 private:
  struct Context;  // saved registers of both sides
  static void Entry(Fiber* fiber);

  std::unique_ptr<Context> context_;
  char* stack_ = nullptr;
  const std::function<void()>* body_ = nullptr;
};

}  // namespace heddle::kernels::cuda::emulate
