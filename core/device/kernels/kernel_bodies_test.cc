// What the kernels compute and how their work is split, without a device.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/device/kernels/device_kernels.h"
#include "core/device/kernels/host_kernels.h"
#include "core/device/kernels/kernel_list.h"
#include "core/device/kernels/split.h"
#include "gtest/gtest.h"

namespace syncline::device::kernels {
namespace {

using Random = std::mt19937_64;

uint64_t Below(Random& random, uint64_t end) {
  return std::uniform_int_distribution<uint64_t>(0, end - 1)(random);
}

// Memory that begins at a multiple of kVectorBytes, plus `offset`, and ends with the span, so that
// AddressSanitizer sees reads behind it, within a word as well.
class Source {
 public:
  // Memory from new is a multiple of 16.
  Source(size_t bytes, size_t offset) : memory_(offset + bytes), offset_(offset) {}
  char* data() { return memory_.data() + offset_; }
  void Fill(char value) { std::fill(memory_.begin(), memory_.end(), value); }

 private:
  static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= kVectorBytes, "");
  std::vector<char> memory_;
  const size_t offset_;
};

// The same with guards around it.
class Target {
 public:
  Target(size_t bytes, size_t offset)
      : memory_(kGuardBytes + offset + bytes + kGuardBytes, kGuard),
        begin_(kGuardBytes + offset),
        bytes_(bytes) {}
  char* data() { return memory_.data() + begin_; }
  void Fill(char value) { std::fill_n(data(), bytes_, value); }
  bool GuardsAreIntact() const {
    const auto is_guard = [](char byte) { return byte == kGuard; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, is_guard) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), is_guard);
  }

 private:
  static constexpr char kGuard = 0x5A;
  static constexpr size_t kGuardBytes = 32;
  std::vector<char> memory_;
  const size_t begin_;
  const size_t bytes_;
};

TEST(CopyTest, TilesHaveEveryByteOfAPartOnce) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    // Only addresses count here; no byte is touched.
    const uintptr_t address = 0x100000 + Below(random, 64);
    const uint64_t bytes = 1 + (round % 2 == 0 ? Below(random, 64) : Below(random, 5 * kTileBytes));
    const CopyPart part = {reinterpret_cast<char*>(address), nullptr, bytes};
    const uint64_t tiles = TileCount(part);
    uint64_t done = 0;
    for (uint32_t i = 0; i < tiles; ++i) {
      const CopyPart tile = TileOf(part, i);
      ASSERT_EQ(static_cast<uint64_t>(tile.to - part.to), done);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(tile.from), done);
      ASSERT_GE(tile.bytes, 1u);
      ASSERT_LE(tile.bytes, kTileBytes);
      if (i > 0) {
        ASSERT_EQ(Misalignment(tile.to), 0u);
      }
      done += tile.bytes;
    }
    ASSERT_EQ(done, bytes);
  }
}

TEST(CopyTest, BlocksHaveEveryTileOnceAndDifferByOneAtMost) {
  Random random(2);
  for (int round = 0; round < 500; ++round) {
    const auto tiles = static_cast<uint32_t>(1 + Below(random, 5000));
    const auto blocks = static_cast<uint32_t>(1 + Below(random, tiles));
    ASSERT_EQ(FirstTile(tiles, 0, blocks), 0u);
    ASSERT_EQ(FirstTile(tiles, blocks, blocks), tiles);
    uint32_t least = tiles, most = 0;
    for (uint32_t block = 0; block < blocks; ++block) {
      const uint32_t share = FirstTile(tiles, block + 1, blocks) - FirstTile(tiles, block, blocks);
      least = std::min(least, share);
      most = std::max(most, share);
    }
    ASSERT_LE(most - least, 1u);
    ASSERT_GE(least, 1u);
  }
  EXPECT_EQ(FirstTile(0xFFFFFFFFu, 1000, 1000), 0xFFFFFFFFu);
}

TEST(CopyTest, FindsThePartOfATile) {
  const uint32_t first_tile[] = {0, 1, 5, 6, 100};
  const std::vector<uint32_t> expected = {0, 1, 1, 1, 1, 2, 3, 3};
  for (uint32_t tile = 0; tile < expected.size(); ++tile) {
    EXPECT_EQ(FindPart(first_tile, 4, tile), expected[tile]) << tile;
  }
  EXPECT_EQ(FindPart(first_tile, 4, 99), 3u);
  EXPECT_EQ(FindPart(first_tile, 1, 0), 0u);
}

TEST(CopyTest, ThreadsCopyEveryByteOfATileOnce) {
  constexpr uint32_t kFew = 8;
  for (const size_t bytes : {1, 3, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 300, 1000}) {
    for (size_t to_offset = 0; to_offset < kVectorBytes; ++to_offset) {
      for (size_t from_offset = 0; from_offset < kVectorBytes; ++from_offset) {
        Target to(bytes, to_offset);
        Source from(bytes, from_offset);
        from.Fill(1);
        std::vector<int> copies(bytes);
        for (uint32_t thread = 0; thread < kFew; ++thread) {
          to.Fill(0);
          CopyTile({to.data(), from.data(), bytes}, thread, kFew);
          for (size_t i = 0; i < bytes; ++i) copies[i] += to.data()[i];
        }
        ASSERT_EQ(copies, std::vector<int>(bytes, 1))
            << bytes << " bytes, +" << from_offset << " to +" << to_offset;
        ASSERT_TRUE(to.GuardsAreIntact());
      }
    }
  }
}

const HostKernel* Find(const std::string& name) {
  for (size_t i = 0; i < HostKernelCount(); ++i) {
    if (HostKernels()[i].name == name) return &HostKernels()[i];
  }
  ADD_FAILURE() << "there is no kernel " << name;
  return nullptr;
}

TEST(CopyTest, CopiesRandomListsOfSpans) {
  Random random(3);
  const HostKernel* const kernel = Find("syncline_copy_few");
  ASSERT_NE(kernel, nullptr);
  for (int round = 0; round < 40; ++round) {
    CopyArgs<kFewCopies> args;
    std::vector<Target> to;
    std::vector<Source> from;
    std::vector<size_t> sizes;
    args.count = static_cast<uint32_t>(1 + Below(random, kFewCopies));
    uint64_t tiles = 0;
    for (uint32_t i = 0; i < args.count; ++i) {
      const size_t most[] = {20, 1000, 3 * kTileBytes};
      sizes.push_back(1 + Below(random, most[Below(random, 3)]));
      // Half of the spans are aligned, as most tensors are.
      const bool is_aligned = Below(random, 2) == 0;
      to.emplace_back(sizes[i], is_aligned ? 0 : Below(random, 16));
      from.emplace_back(sizes[i], is_aligned ? 0 : Below(random, 16));
      for (size_t j = 0; j < sizes[i]; ++j) from[i].data()[j] = static_cast<char>(random());
      args.parts[i] = {to[i].data(), from[i].data(), sizes[i]};
      args.first_tile[i] = static_cast<uint32_t>(tiles);
      tiles += TileCount(args.parts[i]);
    }
    args.first_tile[args.count] = static_cast<uint32_t>(tiles);
    // More blocks than tiles, too.
    const unsigned int grid[] = {static_cast<unsigned int>(1 + Below(random, tiles + 3)), 1, 1};
    const unsigned int block[] = {kThreads, 1, 1};
    void* arguments[] = {&args};
    kernel->run(grid, block, arguments);
    for (uint32_t i = 0; i < args.count; ++i) {
      ASSERT_EQ(memcmp(to[i].data(), from[i].data(), sizes[i]), 0) << i << " of " << args.count;
      ASSERT_TRUE(to[i].GuardsAreIntact());
    }
  }
}

TEST(SplitTest, EveryElementIsInAGroupOrSingle) {
  Random random(4);
  uint64_t with_groups = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint32_t sizes[] = {uint32_t{1} << Below(random, 4), uint32_t{1} << Below(random, 4)};
    const bool by_elements = Below(random, 4) != 0;
    const void* addresses[2];
    for (int i = 0; i < 2; ++i) {
      const uint64_t offset = Below(random, 40) * (by_elements ? sizes[i] : 1);
      addresses[i] = reinterpret_cast<const void*>(0x100000 + offset);
    }
    const uint64_t count = Below(random, 100);
    const Split split =
        SplitElements(count, {{&addresses[0], 1, sizes[0]}, {&addresses[1], 1, sizes[1]}});
    const uint32_t group = kVectorBytes / std::max(sizes[0], sizes[1]);
    ASSERT_EQ(split.count, count);
    ASSERT_LE(split.head + split.groups * group, count);
    bool is_aligned = true;
    for (int i = 0; i < 2; ++i) {
      is_aligned = is_aligned && IsAligned(addresses[i], 0, sizes[i], sizes[i]);
      if (split.groups == 0) continue;
      ASSERT_TRUE(IsAligned(addresses[i], split.head, sizes[i], group * sizes[i]));
    }
    ASSERT_EQ(split.is_aligned != 0, is_aligned);
    if (split.groups != 0) {
      ++with_groups;
      ASSERT_TRUE(is_aligned);
      ASSERT_LT(split.head, group);
      ASSERT_LT(count - split.head - split.groups * group, group);
    }
    // Equal alignment must not miss the fast way.
    if (is_aligned && sizes[0] == sizes[1] &&
        Misalignment(addresses[0]) == Misalignment(addresses[1])) {
      ASSERT_EQ(split.groups != 0, count >= split.head + group && count > 0) << count;
    }
  }
  EXPECT_GT(with_groups, 1000u);
}

TEST(SplitTest, ThreadsTakeEveryElementOnce) {
  for (const Split& split : {Split{1000, 0, 0, 1}, Split{1000, 62, 3, 1}, Split{3, 0, 0, 0},
                             Split{16, 1, 0, 1}, Split{17, 1, 1, 1}}) {
    std::vector<int> taken(split.count);
    for (uint32_t block = 0; block < 3; ++block) {
      for (uint32_t thread = 0; thread < 5; ++thread) {
        ForEach<16>(
            split, {block, 3, thread, 5},
            [&](uint64_t first) {
              for (int i = 0; i < 16; ++i) ++taken[first + i];
            },
            [&](uint64_t at) { ++taken[at]; });
      }
    }
    EXPECT_EQ(taken, std::vector<int>(split.count, 1));
  }
}

// The reference: `value` as a float of `fraction` bits behind the point and no exponent below
// `least`, in the bits of a 16-bit float. Exact: a double holds every step.
uint16_t RoundedHalf(double value, int fraction, int least) {
  const int infinity = ((1 << (15 - fraction)) - 1) << fraction;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  const int exponent = std::max(std::ilogb(magnitude), least);
  const double units = std::nearbyint(std::ldexp(magnitude, fraction - exponent));
  const int bits = ((exponent - least) << fraction) + static_cast<int>(std::min(units, 65536.0));
  return static_cast<uint16_t>(sign | (exponent > 200 ? infinity : std::min(bits, infinity)));
}

// Doubles around each number of a 16-bit float, and around the middle between it and the next.
template <class Half>
std::vector<double> Borders(uint16_t infinity) {
  std::vector<double> borders = {1e300,
                                 1e-300,
                                 std::numeric_limits<double>::denorm_min(),
                                 std::numeric_limits<double>::infinity(),
                                 3.5e38,
                                 65520,
                                 65519.99};
  for (int bits = 0; bits < infinity; ++bits) {
    const double here = Half::Load(static_cast<uint16_t>(bits));
    const double next = Half::Load(static_cast<uint16_t>(bits + 1));
    const double middle = std::isinf(next) ? here : (here + next) / 2;
    for (const double value : {here, middle}) {
      borders.insert(borders.end(),
                     {value, std::nextafter(value, 0), std::nextafter(value, 1e308),
                      static_cast<double>(std::nextafterf(static_cast<float>(value), 0.0f))});
    }
  }
  for (size_t i = borders.size(); i-- > 0;) borders.push_back(-borders[i]);
  return borders;
}

template <class Half>
void CheckConversions(uint16_t infinity, int fraction, int least) {
  for (const double value : Borders<Half>(infinity)) {
    const uint16_t expected = RoundedHalf(value, fraction, least);
    ASSERT_EQ((Converted<Plain<double>, Half>(value)), expected) << value;
    const auto single = static_cast<float>(value);
    const uint16_t of_single = RoundedHalf(single, fraction, least);
    ASSERT_EQ((Converted<Plain<float>, Half>(single)), of_single) << single;
  }
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const bool is_nan = (bits & 0x7FFF) > infinity;
    const auto wide = Converted<Half, Plain<double>>(half);
    ASSERT_EQ(std::isnan(wide), is_nan) << bits;
    ASSERT_EQ(std::isnan((Converted<Half, Plain<float>>(half))), is_nan) << bits;
    const auto back = Converted<Plain<double>, Half>(wide);
    ASSERT_EQ((back & 0x7FFF) > infinity, is_nan) << bits;
    if (!is_nan) {
      ASSERT_EQ(back, half);
    }
  }
}

TEST(ElementsTest, Float16ConversionsRoundOnceToNearestEven) {
  CheckConversions<Float16>(0x7C00, 10, -14);
}

TEST(ElementsTest, BFloat16ConversionsRoundOnceToNearestEven) {
  CheckConversions<BFloat16>(0x7F80, 7, -126);
}

TEST(ElementsTest, OneHalfBecomesTheOther) {
  EXPECT_EQ((Converted<Float16, BFloat16>(0x3C01)), 0x3F80);  // 1 + 2^-10 rounds to 1.
  EXPECT_EQ((Converted<BFloat16, Float16>(0x3F81)), 0x3C08);
  EXPECT_EQ((Converted<BFloat16, Float16>(0x7F00)), 0x7C00);  // 2^127 is too large.
  EXPECT_EQ((Converted<BFloat16, Float16>(0x8001)), 0x8000);  // -2^-133 too small.
}

TEST(HostKernelsTest, NamesAreUnique) {
  std::vector<std::string> names;
  for (size_t i = 0; i < HostKernelCount(); ++i) names.push_back(HostKernels()[i].name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_GE(names.size(), 2u);
}

// The images of the fat binary, by the headers in front of each: "elf 90", "ptx 100".
std::vector<std::string> Images() {
  const auto read = [](size_t at, auto value) {
    memcpy(&value, kDeviceKernelsFatbin + at, sizeof(value));
    return value;
  };
  EXPECT_EQ(read(0, uint32_t{}), 0xBA55ED50u);
  const size_t header = read(6, uint16_t{});
  const size_t end = header + read(8, uint64_t{});
  EXPECT_EQ(end, kDeviceKernelsFatbinSize);
  std::vector<std::string> images;
  for (size_t at = header; at + 64 <= end;) {
    const uint16_t kind = read(at, uint16_t{});
    const uint32_t capability = read(at + 28, uint32_t{});
    images.push_back(absl::StrCat(kind == 1 ? "ptx " : kind == 2 ? "elf " : "other ", capability));
    at += read(at + 4, uint32_t{}) + read(at + 8, uint64_t{});
  }
  std::sort(images.begin(), images.end());
  return images;
}

TEST(FatBinaryTest, HasCodeForThreeGenerationsAndPtxForOthers) {
  EXPECT_EQ(Images(),
            (std::vector<std::string>{"elf 100", "elf 80", "elf 90", "ptx 100", "ptx 80"}));
  EXPECT_LT(kDeviceKernelsFatbinSize, 3u << 20);  // It is part of every library that we ship.
}

}  // namespace
}  // namespace syncline::device::kernels
