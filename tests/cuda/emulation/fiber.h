// A fiber is a stack and a place in the code. Switching saves what a call preserves, by hand, in a
// few nanoseconds: ucontext also changes the signal mask, which is a system call.
// -DMONOLANE_UCONTEXT takes ucontext all the same, as other processors do.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(MONOLANE_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__))
#define EMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Those of primitives.cuh, which the emulator's own files do without.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

namespace emulator {

#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK_BYTES = 256 * 1024;  // frames have red zones; a report is made on them too
#else
// Not a power of two: the hot ends of a thousand stacks must not share the same sets of the caches.
constexpr size_t STACK_BYTES = 40 * 1024 + 1088;
#endif
constexpr size_t CANARY_BYTES = 256;  // at the end that overflows

#ifdef EMULATOR_UCONTEXT
inline void switch_stack(void** save, void* load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(load));
}
// Apart from its caller, because getcontext returns twice and would unsettle the caller's locals.
__attribute__((noinline)) inline void* prepare_stack(u8* stack, void (*entry)()) {
  ucontext_t* context = reinterpret_cast<ucontext_t*>(stack + CANARY_BYTES);
  getcontext(context);
  context->uc_stack.ss_sp = stack + 4096;
  context->uc_stack.ss_size = (STACK_BYTES - 4096) / 64 * 64;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
#else
extern "C"
    __attribute__((visibility("hidden"))) void monolane_switch_stack(void** save, void* load);
inline void switch_stack(void** save, void* load) { monolane_switch_stack(save, load); }

#if defined(__x86_64__)
constexpr size_t SAVED = 8, ENTRY = 6;  // words: six registers, the address, its caller's (none)
#else
constexpr size_t SAVED = 20, ENTRY = 11;  // words: twelve registers, x30 the last, and eight halves
#endif

inline void* prepare_stack(u8* stack, void (*entry)()) {
  uintptr_t top = reinterpret_cast<uintptr_t>(stack + STACK_BYTES) & ~static_cast<uintptr_t>(15);
  u64* saved = reinterpret_cast<u64*>(top) - SAVED;
  memset(saved, 0, SAVED * 8);
  saved[ENTRY] = reinterpret_cast<u64>(entry);
  return saved;
}
#endif

extern "C" void* monolane_emulator_memory(size_t bytes);  // context.cpp

// The stacks of a host thread, kept from launch to launch: fresh pages cost more than a launch.
class Stacks {
 public:
  bool reserve(size_t count) {
    void* at = monolane_emulator_memory(SLACK + count * STACK_BYTES);
    base_ = at ? static_cast<u8*>(at) + SLACK : nullptr;
    return at != nullptr;
  }
  u8* at(size_t i) const { return base_ + i * STACK_BYTES; }

  void* prepare(size_t i, void (*entry)()) const {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(at(i), STACK_BYTES);  // what a failed launch left
#endif
    memset(at(i), CANARY, CANARY_BYTES);
    return prepare_stack(at(i), entry);
  }
  bool overflowed(size_t i) const {
    for (size_t k = 0; k < CANARY_BYTES; ++k) {
      if (at(i)[k] != CANARY) return true;
    }
    return false;
  }

 private:
  static constexpr u8 CANARY = 0x5a;
  static constexpr size_t SLACK = 64 * 1024;  // what overflows the first stack meets nobody's
  u8* base_ = nullptr;
};

}  // namespace emulator
