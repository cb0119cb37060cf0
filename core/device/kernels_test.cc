// The kernels on a device against the host's. The device is simulated, or a real one: this file
// uses nothing but DeviceRuntime.
#include "core/device/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/tensor/reduce_kernels.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr Device kCuda0 = {DeviceType::kCuda, 0};
constexpr size_t kGuard = 64;
constexpr char kFill = 0x5A;

DType PartOf(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

bool IsNaN(DType dtype, const char* element) {
  uint64_t bits = 0;
  memcpy(&bits, element, SizeOf(dtype));
  switch (dtype) {
    case DType::kFloat16:
      return (bits & 0x7FFF) > 0x7C00;
    case DType::kBFloat16:
      return (bits & 0x7FFF) > 0x7F80;
    case DType::kFloat32:
      return (bits & 0x7FFFFFFF) > 0x7F800000;
    case DType::kFloat64:
      return (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000;
    default:
      return false;
  }
}

// Elements of all bit patterns, of which every eighth is a NaN, a zero, an infinity or a small
// number; bools are 0 or 1.
std::string RandomElements(DType dtype, size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count * SizeOf(dtype), 0);
  for (char& byte : bytes) {
    byte = static_cast<char>(dtype == DType::kBool ? random() % 2 : random());
  }
  const DType part = PartOf(dtype);
  if (!IsFloating(part)) return bytes;
  const size_t size = SizeOf(part);
  // In the upper bits of each format: a sign, an exponent, and the first of the fraction.
  const uint64_t special[] = {0,      0x8000, 0x7FFF, 0xFFFF, 0x7C00, 0xFC00,
                              0x7F80, 0xFF80, 0x7FF0, 0xFFF0, 0x3C00, 0x3F80};
  for (size_t at = 0; at + size <= bytes.size(); at += size) {
    if (random() % 8 != 0) continue;
    const uint64_t bits = special[random() % std::size(special)] << (8 * size - 16);
    memcpy(&bytes[at], &bits, size);
  }
  return bytes;
}

// Equal bits, or a NaN on both sides.
void ExpectSame(DType dtype, const std::string& actual, const std::string& expected,
                const std::string& context) {
  ASSERT_EQ(actual.size(), expected.size()) << context;
  if (actual == expected) return;
  const DType part = PartOf(dtype);
  const size_t size = SizeOf(part);
  for (size_t at = 0; at < expected.size(); at += size) {
    const bool both_nan = IsNaN(part, &actual[at]) && IsNaN(part, &expected[at]);
    ASSERT_TRUE(both_nan || actual.compare(at, size, expected, at, size) == 0)
        << context << ", element " << at / size;
  }
}

class KernelsTest : public ::testing::Test {
 protected:
  // Bytes on the device, `offset` bytes off alignment, with guards around them.
  class Buffer {
   public:
    Buffer(KernelsTest& test, const std::string& bytes, size_t offset = 0)
        : test_(test), begin_(kGuard + offset), size_(bytes.size()) {
      std::string all(begin_ + size_ + kGuard, kFill);
      all.replace(begin_, size_, bytes);
      auto memory = test.runtime().Allocate(kCuda0, all.size());
      EXPECT_TRUE(memory.ok()) << memory.status();
      memory_ = *memory;
      EXPECT_TRUE(test.runtime().Copy(memory_.get(), all.data(), all.size(), test.stream()).ok());
      EXPECT_TRUE(test.Synchronize().ok());
    }

    char* data() const { return static_cast<char*>(memory_.get()) + begin_; }

    // The bytes, once the stream's work has ended; checks the guards.
    std::string bytes() const {
      std::string all(begin_ + size_ + kGuard, 0);
      EXPECT_TRUE(test_.runtime().Copy(all.data(), memory_.get(), all.size(), test_.stream()).ok());
      EXPECT_TRUE(test_.Synchronize().ok());
      std::string inner = all.substr(begin_, size_);
      all.erase(begin_, size_);
      EXPECT_EQ(all, std::string(all.size(), kFill)) << "written beyond the end";
      return inner;
    }

   private:
    KernelsTest& test_;
    const size_t begin_, size_;
    std::shared_ptr<void> memory_;
  };

  void SetUp() override {
    const auto runtime = DeviceRuntime::Get();
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *runtime;
    const auto kernels = runtime_->KernelsOf(kCuda0);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    kernels_ = *kernels;
    const auto stream = runtime_->MakeStream(kCuda0);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *stream;
  }

  DeviceRuntime& runtime() { return *runtime_; }
  const Kernels& kernels() { return *kernels_; }
  const Stream& stream() { return *stream_; }
  absl::Status Synchronize() {
    return runtime_->Synchronize(*stream_, Deadline(absl::Seconds(100)));
  }

  void CheckReduce(DType dtype, ReduceOp op, const std::vector<std::string>& inputs,
                   const std::vector<size_t>& offsets, const std::string& context) {
    const size_t count = inputs[0].size() / SizeOf(dtype);
    std::vector<Buffer> buffers;
    std::vector<const void*> on_device, on_host;
    for (size_t i = 0; i < inputs.size(); ++i) {
      buffers.emplace_back(*this, inputs[i], offsets[i % offsets.size()]);
      on_device.push_back(buffers.back().data());
      on_host.push_back(inputs[i].data());
    }
    std::string expected(inputs[0].size(), 0);
    tensor::Reduce(dtype, op, expected.data(), on_host, count);
    const Buffer to(*this, std::string(expected.size(), 1), offsets.back());
    const absl::Status status =
        kernels().Reduce(dtype, op, to.data(), on_device, static_cast<int64_t>(count), stream());
    ASSERT_TRUE(status.ok()) << status << context;
    ExpectSame(dtype, to.bytes(), expected, context);
    for (size_t i = 0; i < std::min<size_t>(inputs.size(), 3); ++i) {
      EXPECT_EQ(buffers[i].bytes(), inputs[i]) << context;
    }
  }

 private:
  DeviceRuntime* runtime_ = nullptr;
  const Kernels* kernels_ = nullptr;
  std::shared_ptr<const Stream> stream_;
};

class ReductionTest : public KernelsTest,
                      public ::testing::WithParamInterface<std::tuple<DType, ReduceOp>> {
 protected:
  const DType dtype_ = std::get<0>(GetParam());
  const ReduceOp op_ = std::get<1>(GetParam());

  std::vector<std::string> Inputs(size_t inputs, size_t count) const {
    std::vector<std::string> result;
    for (size_t i = 0; i < inputs; ++i) {
      result.push_back(RandomElements(dtype_, count, static_cast<unsigned>(i + 1)));
    }
    return result;
  }
};

TEST_P(ReductionTest, IsTheHosts) {
  const size_t size = SizeOf(dtype_);
  // All aligned, all off by one element, each in its own way, not even at a multiple of its size.
  const std::vector<std::vector<size_t>> alignments = {{0}, {size}, {0, size, 3 * size}, {1, 0, 5}};
  for (const size_t count : {0, 1, 7, 1001}) {
    for (const std::vector<size_t>& offsets : alignments) {
      for (const size_t inputs : {1, 2, 6}) {
        CheckReduce(
            dtype_, op_, Inputs(inputs, count), offsets,
            absl::StrCat(inputs, " x ", count, ", ", offsets.size(), " offsets from ", offsets[0]));
      }
    }
  }
}

TEST_P(ReductionTest, OfMoreInputsThanOneFewLaunchTakesIsTheHosts) {
  CheckReduce(dtype_, op_, Inputs(65, 33), {0}, "65 inputs");
}

TEST_P(ReductionTest, TheResultMayReplaceAnyInput) {
  constexpr size_t kCount = 523;
  for (const size_t inputs : {1, 2, 5}) {
    const std::vector<std::string> contents = Inputs(inputs, kCount);
    std::vector<const void*> on_host;
    for (const std::string& input : contents) on_host.push_back(input.data());
    std::string expected(contents[0].size(), 0);
    tensor::Reduce(dtype_, op_, expected.data(), on_host, kCount);
    for (size_t replaced = 0; replaced < inputs; ++replaced) {
      std::vector<Buffer> buffers;
      std::vector<const void*> on_device;
      for (const std::string& input : contents) {
        buffers.emplace_back(*this, input);
        on_device.push_back(buffers.back().data());
      }
      ASSERT_TRUE(kernels()
                      .Reduce(dtype_, op_, buffers[replaced].data(), on_device, kCount, stream())
                      .ok());
      ExpectSame(dtype_, buffers[replaced].bytes(), expected,
                 absl::StrCat(replaced, " of ", inputs));
    }
  }
}

std::vector<std::tuple<DType, ReduceOp>> AllReductions() {
  std::vector<std::tuple<DType, ReduceOp>> all;
  for (const DType dtype : AllDTypes()) {
    for (const ReduceOp op : AllReduceOps()) {
      if (!IsFloat8(dtype) && CheckReduction(dtype, op).ok()) all.emplace_back(dtype, op);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(AllReductions, ReductionTest, ::testing::ValuesIn(AllReductions()),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)), "_",
                                               Name(std::get<1>(info.param)));
                         });

TEST_F(KernelsTest, ReducesMoreElementsThanThreadsRunAtOnce) {
  // Odd, and off alignment: a head, groups, and a tail.
  constexpr size_t kCount = (3 << 20) + 5;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<std::string> inputs;
    for (unsigned seed = 1; seed <= 3; ++seed) {
      inputs.push_back(RandomElements(dtype, kCount, seed));
    }
    CheckReduce(dtype, ReduceOp::kSum, inputs, {SizeOf(dtype)}, std::string(Name(dtype)));
  }
}

TEST_F(KernelsTest, TooManyInputsAreAnErrorThatSaysSo) {
  const Buffer buffer(*this, std::string(4, 1));
  const std::vector<const void*> inputs(4001, buffer.data());
  const absl::Status status =
      kernels().Reduce(DType::kFloat32, ReduceOp::kSum, buffer.data(), inputs, 1, stream());
  EXPECT_EQ(KindOf(status), ErrorKind::kUnsupported) << status;
  const std::vector<const void*> most(4000, buffer.data());
  const Buffer to(*this, std::string(1, 0));
  ASSERT_TRUE(kernels().Reduce(DType::kUInt8, ReduceOp::kSum, to.data(), most, 1, stream()).ok());
  EXPECT_EQ(to.bytes(), std::string(1, static_cast<char>(4000 % 256)));
}

TEST_F(KernelsTest, DivideIsTheHosts) {
  for (const DType dtype : AllDTypes()) {
    if (dtype == DType::kBool || IsFloat8(dtype)) continue;
    for (const int divisor : {1, 2, 3, 7, 1000, std::numeric_limits<int>::max()}) {
      for (const size_t count : {0, 1, 17, 300}) {
        for (const size_t offset : {size_t{0}, SizeOf(dtype), size_t{1}}) {
          std::string expected = RandomElements(dtype, count, 9);
          const Buffer data(*this, expected, offset);
          tensor::Divide(dtype, expected.data(), divisor, count);
          const absl::Status status =
              kernels().Divide(dtype, data.data(), divisor, static_cast<int64_t>(count), stream());
          ASSERT_TRUE(status.ok()) << status;
          ExpectSame(dtype, data.bytes(), expected,
                     absl::StrCat(Name(dtype), ", ", count, " / ", divisor));
        }
      }
    }
  }
}

TEST_F(KernelsTest, ScaleIsTheHosts) {
  for (const DType dtype : AllDTypes()) {
    if (IsFloat8(dtype) || !CheckReduction(dtype, ReduceOp::kPremulSum).ok()) continue;
    for (const double factor : {0.0, 1.0, -0.1, 1.0 / 3, 1e30, 1e300}) {
      for (const size_t count : {0, 1, 17, 300}) {
        for (const size_t offset : {size_t{0}, SizeOf(dtype), size_t{1}}) {
          std::string expected = RandomElements(dtype, count, 10);
          const Buffer data(*this, expected, offset);
          tensor::Scale(dtype, expected.data(), factor, count);
          const absl::Status status =
              kernels().Scale(dtype, data.data(), factor, static_cast<int64_t>(count), stream());
          ASSERT_TRUE(status.ok()) << status;
          ExpectSame(dtype, data.bytes(), expected,
                     absl::StrCat(Name(dtype), ", ", count, " * ", factor));
        }
      }
    }
  }
}

// What an element of a float is as a double, which holds it exactly.
double ValueOf(DType dtype, const char* element) {
  if (dtype == DType::kFloat64 || dtype == DType::kFloat32) {
    double wide;
    float narrow;
    if (dtype == DType::kFloat64) {
      memcpy(&wide, element, sizeof(wide));
      return wide;
    }
    memcpy(&narrow, element, sizeof(narrow));
    return narrow;
  }
  uint16_t bits;
  memcpy(&bits, element, sizeof(bits));
  const int fraction = dtype == DType::kFloat16 ? 10 : 7;
  const int least = dtype == DType::kFloat16 ? -14 : -126;
  const int field = (bits & 0x7FFF) >> fraction, rest = bits & ((1 << fraction) - 1);
  double value = std::ldexp((field == 0 ? 0 : 1 << fraction) + rest,
                            least + std::max(field - 1, 0) - fraction);
  if (field == (1 << (15 - fraction)) - 1) value = rest != 0 ? NAN : INFINITY;
  return (bits & 0x8000) != 0 ? -value : value;
}

// The largest step between neighbours at `value`: that of its own binade.
bool IsNearest(DType dtype, double value, double rounded) {
  if (std::isnan(value)) return std::isnan(rounded);
  const int fraction = dtype == DType::kFloat16    ? 10
                       : dtype == DType::kBFloat16 ? 7
                       : dtype == DType::kFloat32  ? 23
                                                   : 52;
  const int least = dtype == DType::kFloat16 ? -14 : dtype == DType::kFloat64 ? -1022 : -126;
  const int most = dtype == DType::kFloat16 ? 15 : dtype == DType::kFloat64 ? 1023 : 127;
  const double limit = std::ldexp(2 - std::ldexp(1, -fraction - 1), most);
  if (std::fabs(value) >= limit) return std::isinf(rounded) && (value < 0) == (rounded < 0);
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  const double unit = std::ldexp(1, exponent - fraction);
  const double expected = std::nearbyint(value / unit) * unit;
  return rounded == expected && std::signbit(rounded) == std::signbit(value);
}

TEST_F(KernelsTest, ConvertRoundsToNearestEven) {
  const DType floats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
  for (const DType from_dtype : floats) {
    for (const DType to_dtype : floats) {
      for (const size_t count : {0, 1, 9, 4099}) {
        for (const size_t step : {0, 1, 2}) {
          std::string values = RandomElements(from_dtype, count, 11);
          if (SizeOf(from_dtype) > 2 && count > 100) {
            // Small exponents, so that most are within the range of a half.
            for (size_t i = 0; i < count; i += 2) {
              const double value =
                  std::ldexp(ValueOf(DType::kFloat16, &values[i * SizeOf(from_dtype)]), -9);
              const auto narrow = static_cast<float>(value * (1 + 1e-6));
              const double wide = value * (1 + 1e-9);
              if (from_dtype == DType::kFloat32) memcpy(&values[i * 4], &narrow, 4);
              if (from_dtype == DType::kFloat64) memcpy(&values[i * 8], &wide, 8);
            }
          }
          const size_t from_offset = step == 2 ? 1 : step * SizeOf(from_dtype);
          const Buffer from(*this, values, from_offset);
          const Buffer to(*this, std::string(count * SizeOf(to_dtype), 0), step * SizeOf(to_dtype));
          const absl::Status status = kernels().Convert(
              to_dtype, to.data(), from_dtype, from.data(), static_cast<int64_t>(count), stream());
          ASSERT_TRUE(status.ok()) << status;
          const std::string actual = to.bytes();
          for (size_t i = 0; i < count; ++i) {
            const double value = ValueOf(from_dtype, &values[i * SizeOf(from_dtype)]);
            const double rounded = ValueOf(to_dtype, &actual[i * SizeOf(to_dtype)]);
            ASSERT_TRUE(IsNearest(to_dtype, value, rounded))
                << Name(from_dtype) << " " << value << " became " << Name(to_dtype) << " "
                << rounded;
          }
        }
      }
    }
  }
}

TEST_F(KernelsTest, PacksAndUnpacksManyTensors) {
  std::mt19937_64 random(12);
  // None, one, few, as many as one launch takes, and more.
  for (const size_t count : {0, 1, 144, 145, 1168, 1169, 2500}) {
    std::vector<size_t> sizes;
    for (size_t i = 0; i < count; ++i) {
      sizes.push_back(random() % 10 == 0 ? random() % 40000 : random() % 60);
    }
    const size_t total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
    std::string contents(total, 0);
    for (char& byte : contents) byte = static_cast<char>(random());
    // Tensors lie at random places of `scattered`, with gaps between them.
    std::vector<size_t> places;
    std::string expected;
    size_t at = 0;
    for (const size_t size : sizes) {
      expected.append(random() % 20, kFill);
      places.push_back(expected.size());
      expected.append(contents, at, size);
      at += size;
    }
    const Buffer scattered(*this, expected), packed(*this, std::string(total, 0), 2);
    const Buffer again(*this, std::string(expected.size(), kFill), 1);
    std::vector<CopySpan> pack, unpack;
    at = 0;
    for (size_t i = 0; i < count; ++i) {
      pack.push_back({packed.data() + at, scattered.data() + places[i], sizes[i]});
      unpack.push_back({again.data() + places[i], packed.data() + at, sizes[i]});
      at += sizes[i];
    }
    ASSERT_TRUE(kernels().CopyMany(pack, stream()).ok());
    ASSERT_TRUE(kernels().CopyMany(unpack, stream()).ok());
    EXPECT_TRUE(packed.bytes() == contents) << count;
    EXPECT_TRUE(again.bytes() == expected) << count;
  }
}

TEST_F(KernelsTest, CopiesOneLargeSpan) {
  std::string contents((40 << 20) + 13, 0);
  std::mt19937 random(13);
  for (size_t i = 0; i + 4 <= contents.size(); i += 4) {
    const uint32_t word = random();
    memcpy(&contents[i], &word, sizeof(word));
  }
  const Buffer from(*this, contents, 3), to(*this, std::string(contents.size(), 0), 8);
  ASSERT_TRUE(kernels().CopyMany({{to.data(), from.data(), contents.size()}}, stream()).ok());
  EXPECT_TRUE(to.bytes() == contents);
}

TEST_F(KernelsTest, WorkIsDoneInTheOrderOfTheStream) {
  const Buffer data(*this, std::string(4096, 1));
  for (int i = 0; i < 6; ++i) {
    const void* const inputs[] = {data.data(), data.data()};
    ASSERT_TRUE(
        kernels().Reduce(DType::kUInt8, ReduceOp::kSum, data.data(), inputs, 4096, stream()).ok());
  }
  EXPECT_EQ(data.bytes(), std::string(4096, 64));
}

}  // namespace
}  // namespace syncline::device
