// A fuzz target as an ordinary test: its seeds, and what is next to them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/fuzz/fuzz.h"
#include "gtest/gtest.h"

namespace syncline::fuzz {
namespace {

// All neighbours of long seeds would take too long.
constexpr size_t kMostEnds = 300, kMostChanges = 300;
constexpr absl::Duration kLongest = absl::Milliseconds(300);

size_t StepFor(const std::string& seed, size_t most) { return seed.size() / most + 1; }

TEST(SeedsTest, AreTakenWhole) {
  const std::vector<std::string> seeds = Seeds();
  EXPECT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) RunOne(seed);
  RunOne("");
}

TEST(SeedsTest, AreTakenCutOff) {
  const absl::Time end = absl::Now() + kLongest;
  for (const std::string& seed : Seeds()) {
    for (size_t size = 0; size < seed.size() && absl::Now() < end;
         size += StepFor(seed, kMostEnds)) {
      RunOne(seed.substr(0, size));
    }
  }
}

TEST(SeedsTest, AreTakenWithOtherBytes) {
  const absl::Time end = absl::Now() + kLongest;
  for (const std::string& seed : Seeds()) {
    for (size_t at = 0; at < seed.size(); at += StepFor(seed, kMostChanges)) {
      for (const unsigned char change : {0x01, 0x80, 0xff}) {
        if (absl::Now() >= end) return;
        std::string changed = seed;
        changed[at] = static_cast<char>(changed[at] ^ change);
        RunOne(changed);
      }
    }
  }
}

// One of `seeds`, with a few changes, or with a part of another.
std::string Changed(const std::vector<std::string>& seeds, std::mt19937_64& random) {
  const auto below = [&](size_t end) { return static_cast<size_t>(random() % end); };
  std::string text = seeds[below(seeds.size())];
  for (size_t changes = 1 + below(6); changes > 0; --changes) {
    const size_t at = below(text.size() + 1), size = below(text.size() - at + 1);
    const size_t kind = below(6);
    if (kind == 0) text.insert(at, 1 + below(8), static_cast<char>(random()));
    if (kind == 1) text.erase(at, below(std::min<size_t>(size, 16) + 1));
    if (kind == 2) text.insert(at, text.substr(at, size));
    if (kind == 3) {
      const std::string& other = seeds[below(seeds.size())];
      text.replace(at, size, other.substr(below(other.size() + 1)));
    }
    if (at >= text.size() || kind < 4) continue;
    constexpr int64_t kNumbers[] = {0, 1, -1, 127, 128, 255, 256, 0x7fff, 0x7fffffff, INT64_MAX};
    const int64_t number = kNumbers[below(std::size(kNumbers))];
    const size_t bytes = std::min(text.size() - at, size_t{1} << below(4));
    if (kind == 4) std::memcpy(&text[at], &number, bytes);
    if (kind == 5) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
  }
  return text.substr(0, 4096);
}

// FUZZ_INPUTS says how many; else as many as there is time for.
TEST(SeedsTest, AreTakenChangedAtRandom) {
  const char* const inputs = std::getenv("FUZZ_INPUTS");
  const int64_t most = inputs == nullptr ? INT64_MAX : std::atoll(inputs);
  const absl::Time begin = absl::Now();
  const std::vector<std::string> seeds = Seeds();
  std::mt19937_64 random(1);
  int64_t count = 0;
  for (; count < most && (inputs != nullptr || absl::Now() < begin + kLongest); ++count) {
    RunOne(Changed(seeds, random));
  }
  std::printf("%lld inputs in %s\n", static_cast<long long>(count),
              absl::FormatDuration(absl::Now() - begin).c_str());
}

TEST(SeedsTest, AreTakenInARow) {
  const absl::Time end = absl::Now() + kLongest;
  for (const std::string& first : Seeds()) {
    for (const std::string& second : Seeds()) {
      if (absl::Now() < end) RunOne(first + second);
    }
  }
}

}  // namespace
}  // namespace syncline::fuzz
