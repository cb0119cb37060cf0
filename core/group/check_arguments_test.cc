#include "core/group/check_arguments.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"
#include "syncline/tensor.h"

namespace syncline::group {
namespace {

using ::testing::HasSubstr;

// Draws calls that are mostly right, with things wrong here and there.
class AnyCall {
 public:
  explicit AnyCall(uint32_t seed) : random_(seed) {}

  Capabilities AnyCapabilities() {
    Capabilities capabilities = Capabilities::All();
    if (OneIn(3)) capabilities.devices.insert(DeviceType::kCuda);
    if (OneIn(8)) capabilities.move_dtypes.erase(DType::kInt64);
    if (OneIn(8)) capabilities.reduce_dtypes.erase(DType::kFloat32);
    if (OneIn(16)) capabilities.ops.erase(OpKind::kAllGather);
    return capabilities;
  }

  // Its tensors are those of this object, until the next one is drawn.
  Collective Next(int rank, int size) {
    memory_at_ = memory_ + Draw(4) * 8;
    dtype_ = OneIn(2) ? DType::kFloat32 : DType::kInt64;
    count_ = OneIn(8) ? 0 : 1 + Draw(5);
    tensor_ = AnyTensor(count_);
    const bool has_equal_parts = OneIn(3);
    inputs_ = has_equal_parts ? AnyEqualParts(size) : AnyList(size);
    outputs_ = has_equal_parts ? AnyEqualParts(size) : AnyList(size);
    std::vector<Tensor>& list = OneIn(2) ? inputs_ : outputs_;
    if (OneIn(3) && rank < static_cast<int>(list.size())) {  // In place.
      (has_equal_parts ? tensor_ : list[rank]) = has_equal_parts ? list[rank] : tensor_;
    }
    Collective call = AnyOf(rank, size);
    call.has_equal_parts = has_equal_parts;
    return call;
  }

 private:
  int Draw(int end) { return static_cast<int>(random_() % static_cast<uint32_t>(end)); }
  bool OneIn(int chances) { return Draw(chances) == 0; }

  // Of the tensors drawn last.
  Collective AnyOf(int rank, int size) {
    const int peer = OneIn(10) ? Draw(2 * size + 2) - size : Draw(size);
    const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kBor,
                            ReduceOp::kPremulSum};
    const ReduceOp op = ops[Draw(5)];
    const double factor = OneIn(6) ? 2.0 : 1.0;
    const bool has_list = OneIn(8) ? OneIn(2) : peer == rank;
    const absl::Span<const Tensor> none;
    switch (Draw(13)) {
      case 0:
        return Collective::Broadcast(tensor_, peer);
      case 1:
        return Collective::AllReduce(tensor_, op, factor);
      case 2:
        return Collective::Reduce(tensor_, op, peer, factor);
      case 3:
        return Collective::AllGather(outputs_, tensor_);
      case 4:
        return Collective::Gather(has_list ? absl::MakeConstSpan(outputs_) : none, tensor_, peer);
      case 5:
        return Collective::Scatter(tensor_, has_list ? absl::MakeConstSpan(inputs_) : none, peer);
      case 6:
        return Collective::ReduceScatter(tensor_, inputs_, op, factor);
      case 7:
        return Collective::Scan(tensor_, op, factor);
      case 8:
        return Collective::Exscan(tensor_, op, factor);
      case 9:
        return Collective::AllToAll(outputs_, inputs_);
      case 10:
        return Collective::Barrier();
      case 11:
        return Collective::Send(tensor_, peer, OneIn(8) ? -1 : Draw(3));
      default:
        return Collective::Recv(tensor_, OneIn(4) ? kAnySource : peer,
                                OneIn(8) ? int64_t{1} << 31 : Draw(3));
    }
  }

  // Behind the one before, as a rule.
  Tensor AnyTensor(int64_t count) {
    const DType dtype = OneIn(20) ? DType::kInt8 : dtype_;
    if (OneIn(20)) ++count;
    if (OneIn(20)) memory_at_ = memory_ + Draw(100) * 8;
    char* const data = memory_at_;
    memory_at_ += count * 8;
    if (OneIn(4)) memory_at_ += 8;
    const Device device = OneIn(30) ? Device{DeviceType::kCuda, 0} : Device{DeviceType::kCpu, 0};
    if (OneIn(30)) {
      return Tensor(data, dtype, {count}, {}, device, nullptr, Access::kReadOnly);
    }
    if (OneIn(30)) return Tensor(data, dtype, {count, 2}, {4, 2}, device);  // With gaps.
    return Tensor(data, dtype, {count}, {}, device);
  }
  std::vector<Tensor> AnyList(int size) {
    std::vector<Tensor> list;
    const int length = OneIn(20) ? Draw(size + 2) : size;
    for (int i = 0; i < length; ++i) list.push_back(AnyTensor(count_));
    return list;
  }
  std::vector<Tensor> AnyEqualParts(int size) {
    const int64_t part = OneIn(20) ? count_ + 1 : count_;
    Tensor whole;
    do {
      whole = AnyTensor(size * part);
    } while (!whole.is_contiguous() || whole.numel() < size * part);
    std::vector<Tensor> parts;
    for (int i = 0; i < size; ++i) parts.push_back(whole.Slice(i * part, part));
    return parts;
  }

  std::mt19937 random_;
  char memory_[1 << 14] = {};
  char* memory_at_ = memory_;
  DType dtype_ = DType::kFloat32;
  int64_t count_ = 0;
  Tensor tensor_;
  std::vector<Tensor> inputs_, outputs_;
};

TEST(CheckArgumentsTest, NothingIsWrongWithPlainCalls) {
  AnyCall calls(1);
  int64_t plain = 0, right = 0, wrong = 0;
  for (int i = 0; i < 300'000; ++i) {
    const int size = 1 + i % 4, rank = i / 4 % size;
    const Capabilities capabilities = calls.AnyCapabilities();
    const Collective call = calls.Next(rank, size);
    const absl::Status status = CheckArguments(call, capabilities, "any", rank, size);
    if (IsPlain(call, capabilities, rank, size)) {
      ASSERT_TRUE(status.ok()) << "call " << i << ", " << Name(call.kind) << ": " << status;
      ++plain;
    }
    ++(status.ok() ? right : wrong);
  }
  // Otherwise this looks at few of them.
  EXPECT_GT(plain, 50'000);
  EXPECT_GT(right, plain);
  EXPECT_GT(wrong, 50'000);
}

TEST(CheckArgumentsTest, ATensorOfAListOnAnotherDeviceIsRefused) {
  Capabilities capabilities = Capabilities::All();
  capabilities.devices.insert(DeviceType::kCuda);
  float numbers[3] = {};
  const Tensor here(numbers, DType::kFloat32, {1});
  const std::vector<Tensor> mixed = {
      Tensor(numbers + 1, DType::kFloat32, {1}),
      Tensor(numbers + 2, DType::kFloat32, {1}, {}, {DeviceType::kCuda, 0})};
  for (const Collective& call :
       {Collective::AllGather(mixed, here), Collective::Gather(mixed, here, 0),
        Collective::Scatter(here, mixed, 0),
        Collective::ReduceScatter(here, mixed, ReduceOp::kSum)}) {
    const absl::Status status = CheckArguments(call, capabilities, "any", 0, 2);
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << Name(call.kind);
    EXPECT_THAT(std::string(status.message()), HasSubstr("[1] is on cuda:0"));
  }
}

}  // namespace
}  // namespace syncline::group
