#include "tests/emulate/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace heddle::kernels::cuda::emulate {
namespace {

// Kernels keep their arrays in "registers", which here are on this stack; 256 KiB is far more than
// the hardware's 255 registers, and only touched pages take memory.
constexpr size_t kStackBytes = size_t{256} << 10;
// Stacks begin in different lines of the caches, or those of a block would drive each other out.
constexpr size_t kStagger = 17 * 64, kStaggers = 60;
static_assert(kStagger * kStaggers < kStackBytes / 2);

}  // namespace

#if defined(__x86_64__)
// Saves the callee-saved registers on the running stack and continues on the other one. swapcontext
// would do, but it makes two system calls per switch, and a shuffle of a warp is 32 switches.
extern "C" void HeddleFiberSwitch(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl HeddleFiberSwitch
.type HeddleFiberSwitch, @function
HeddleFiberSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size HeddleFiberSwitch, .-HeddleFiberSwitch
)");
#endif

struct Fiber::Context {
#if defined(__x86_64__)
  void* caller = nullptr;
  void* fiber = nullptr;
#else
  ucontext_t caller;
  ucontext_t fiber;
#endif
  // AddressSanitizer's view of the two stacks.
  void* caller_fake_stack = nullptr;
  void* fiber_fake_stack = nullptr;
  const void* caller_bottom = nullptr;
  size_t caller_size = 0;
};

namespace {

void BeforeSwitch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom,
                  [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#endif
}

void AfterSwitch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** bottom,
                 [[maybe_unused]] size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
#endif
}

// The fiber that Resume is about to enter for the first time.
thread_local Fiber* entering = nullptr;

}  // namespace

void Fiber::Entry(Fiber* fiber) {
  AfterSwitch(nullptr, &fiber->context_->caller_bottom, &fiber->context_->caller_size);
  for (;;) {
    (*fiber->body_)();
    fiber->body_ = nullptr;
    fiber->Yield();
  }
}

Fiber::Fiber() : context_(std::make_unique<Context>()) {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  HEDDLE_CHECK(memory != MAP_FAILED, "no memory for the stack of an emulated thread");
  stack_ = static_cast<char*>(memory);
  void (*entry)() = +[] { Entry(entering); };
#if defined(__x86_64__)
  // As if HeddleFiberSwitch had been called from `entry`'s first instruction: six registers, then
  // the return address; the ABI wants the stack 8 past a multiple of 16 at a function's start.
  static std::atomic<size_t> count{0};
  const size_t stagger = count.fetch_add(1, std::memory_order_relaxed) % kStaggers * kStagger;
  auto* top = reinterpret_cast<uint64_t*>(stack_ + kStackBytes - stagger);
  for (int i = 1; i <= 8; ++i) top[-i] = 0;
  top[-2] = reinterpret_cast<uint64_t>(entry);
  context_->fiber = top - 8;
#else
  getcontext(&context_->fiber);
  context_->fiber.uc_stack.ss_sp = stack_;
  context_->fiber.uc_stack.ss_size = kStackBytes;
  context_->fiber.uc_link = nullptr;
  makecontext(&context_->fiber, entry, 0);
#endif
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::Start(const std::function<void()>* body) {
  HEDDLE_CHECK(done(), "an emulated thread is still running");
  body_ = body;
}

void Fiber::Resume() {
  entering = this;
  BeforeSwitch(&context_->caller_fake_stack, stack_, kStackBytes);
#if defined(__x86_64__)
  HeddleFiberSwitch(&context_->caller, context_->fiber);
#else
  swapcontext(&context_->caller, &context_->fiber);
#endif
  AfterSwitch(context_->caller_fake_stack, nullptr, nullptr);
}

void Fiber::Yield() {
  BeforeSwitch(&context_->fiber_fake_stack, context_->caller_bottom, context_->caller_size);
#if defined(__x86_64__)
  HeddleFiberSwitch(&context_->fiber, context_->caller);
#else
  swapcontext(&context_->fiber, &context_->caller);
#endif
  AfterSwitch(context_->fiber_fake_stack, &context_->caller_bottom, &context_->caller_size);
}

void Fiber::YieldTo([[maybe_unused]] Fiber& next) {
#if defined(__x86_64__)
  next.context_->caller = context_->caller;
  entering = &next;
  HeddleFiberSwitch(&context_->fiber, next.context_->fiber);
#endif
}

}  // namespace heddle::kernels::cuda::emulate
