#include "core/base/hash.h"

#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace syncline::base {
namespace {

TEST(HashTest, BytesHashToThePublishedValues) {
  EXPECT_EQ(Fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a64("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(Fnv1a32(""), 0x811c9dc5u);
  EXPECT_EQ(Fnv1a32("foobar"), 0xbf9cf968u);
}

TEST(HashTest, WordsThatDifferAnywhereHashDifferently) {
  std::set<uint64_t> seen;
  for (int bit = 0; bit < 64; ++bit) {
    for (int position = 0; position < 3; ++position) {
      WordHash hash;
      for (int i = 0; i < 3; ++i) hash.Add(i == position ? uint64_t{1} << bit : 0);
      EXPECT_TRUE(seen.insert(hash.value()).second) << bit << " of word " << position;
    }
  }
}

TEST(HashTest, TheOrderOfWordsCounts) {
  WordHash a, b;
  a.Add(1);
  a.Add(2);
  b.Add(2);
  b.Add(1);
  EXPECT_NE(a.value(), b.value());
}

}  // namespace
}  // namespace syncline::base
