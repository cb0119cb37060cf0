#include "backends/shm/adaptive_copier.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "core/base/event_count.h"
#include "core/tensor/copy_bytes.h"

namespace syncline::shm {

void NontemporalCopy(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
#if defined(__SSE2__)
  // Whole lines of the target only: a partial nontemporal line would be read from memory first.
  const size_t head =
      std::min<size_t>(-reinterpret_cast<uintptr_t>(target) % base::kCacheLine, bytes);
  std::memcpy(target, source, head);
  target += head;
  source += head;
  bytes -= head;
  for (; bytes >= base::kCacheLine;
       target += base::kCacheLine, source += base::kCacheLine, bytes -= base::kCacheLine) {
    const auto* const in = reinterpret_cast<const __m128i*>(source);
    auto* const out = reinterpret_cast<__m128i*>(target);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // A release store does not wait for nontemporal ones.
#endif
  std::memcpy(target, source, bytes);
}

void AdaptiveCopier::CopyTimed(void* to, const void* from, size_t bytes) {
  const int left = until_trial_.load(std::memory_order_relaxed);
  if (left > 0) {
    until_trial_.store(left - 1, std::memory_order_relaxed);
    NontemporalCopy(to, from, bytes);
    return;
  }
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  tensor::CopyBytes(to, from, bytes);
  const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
  const bool is_slow =
      taken.count() > kSlowCopyNanosPerLine * static_cast<double>(bytes / base::kCacheLine);
  const uint32_t before = slow_trials_.load(std::memory_order_relaxed);
  const uint32_t trials = (before << 1 | (is_slow ? 1 : 0)) & kTrialsMask;
  if (trials != before) slow_trials_.store(trials, std::memory_order_relaxed);
  if (is_slow && AreSlow(trials)) {
    until_trial_.store(kCopyTrialInterval, std::memory_order_relaxed);
  }
}

}  // namespace syncline::shm
