// What the sanitizers' runtimes read from an executable when it starts.

// On top of AddressSanitizer's defaults, of which the search for leaks is one.
extern "C" const char* __asan_default_options();

extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=1"; }

// c-ares 1.18, of Debian's gRPC, loses the name with each look-up of "localhost".
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() { return "leak:ares_strdup\n"; }

// What ThreadSanitizer takes for races and is none. Each entry names one function of a library,
// none of ours.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return
      // Abseil maps memory for a thread's identity and hands it to other threads through a mutex
      // whose inner workings it hides from ThreadSanitizer.
      "race:DoAllocWithArena\n"
      // Abseil posts a semaphore that the woken thread may be about to give up; later versions hide
      // this access from ThreadSanitizer for the same reason.
      "race:AbslInternalPerThreadSemPost\n";
}
