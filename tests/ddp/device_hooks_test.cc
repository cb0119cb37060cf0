// Communication hooks on buckets of simulated devices, against the same on the host.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/comm_hook.h"
#include "syncline/hooks.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/ddp/comm_hook_ranks.h"
#include "tests/ddp/reducer_ranks.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using Make = std::function<absl::StatusOr<std::shared_ptr<CommHook>>()>;
// Gradients by step and parameter, of rank 0.
using Results = std::vector<std::vector<Tensor>>;

const std::vector<std::vector<int64_t>> kShapes = {{31, 7}, {1}, {300}, {}};

std::vector<Tensor> Parameters(DType dtype) {
  std::vector<Tensor> parameters;
  for (const auto& shape : kShapes) parameters.push_back(Parameter(dtype, shape));
  return parameters;
}

template <typename T>
Results Run(const std::string& backend, const Make& make, int64_t divisor) {
  Results results;
  ExpectOnRanks(
      2,
      [&](Group group) -> absl::Status {
        Reducer::Options options;
        options.caps = {400, 400};
        SYNCLINE_ASSIGN_OR_RETURN(options.hook, make());
        SYNCLINE_ASSIGN_OR_RETURN(
            const Reducers reducer,
            Reducer::Create(group, Parameters(DTypeOf<T>::value), std::move(options)));
        for (int step = 0; step < 3; ++step) {
          Reducer::Step begin;
          begin.divisor = divisor;
          SYNCLINE_RETURN_IF_ERROR(reducer->BeginStep(begin));
          for (int64_t i : {3, 2, 1, 0}) {
            SYNCLINE_ASSIGN_OR_RETURN(const Tensor place, reducer->gradient(i));
            std::vector<T> values = Gradients<T>(group->rank(), 10 * step + i, place.numel());
            SYNCLINE_ASSIGN_OR_RETURN(const Tensor placed,
                                      Placed(Tensor::Of(values).Reshape(kShapes[i])));
            SYNCLINE_RETURN_IF_ERROR(reducer->CopyReady(i, placed));
          }
          SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
          std::vector<Tensor> found;
          for (int64_t i : {0, 1, 2, 3}) {
            SYNCLINE_ASSIGN_OR_RETURN(const Tensor host, Fetched(*reducer->gradient(i)));
            Tensor copy = Tensor::Zeros(host.dtype(), host.shape());
            std::memcpy(copy.data(), host.data(), host.nbytes());
            found.push_back(std::move(copy));
          }
          if (group->rank() == 0) results.push_back(std::move(found));
        }
        return group->status();
      },
      backend);
  return results;
}

template <typename T>
void ExpectAsOnTheHost(const Make& make, int64_t divisor) {
  const Results expected = Run<T>("local", make, divisor);
  for (const char* backend : kOnDevices) {
    const Results found = Run<T>(backend, make, divisor);
    ASSERT_EQ(found.size(), expected.size()) << backend;
    for (size_t step = 0; step < found.size(); ++step) {
      for (size_t i = 0; i < kShapes.size(); ++i) {
        EXPECT_EQ(std::memcmp(found[step][i].data(), expected[step][i].data(),
                              expected[step][i].nbytes()),
                  0)
            << backend << ", step " << step << ", parameter " << i;
      }
    }
  }
}

TEST(DeviceHooksTest, ResultsAreThoseOfTheHost) {
  const Make makes[] = {[] { return nullptr; }, [] { return AllReduceHook(); },
                        [] { return HalfHook(DType::kFloat16); },
                        [] { return HalfHook(DType::kBFloat16); },
                        [] { return PostLocalSgdHook(1); }};
  for (const Make& make : makes) {
    for (const int64_t divisor : {0, 4}) {
      ExpectAsOnTheHost<float>(make, divisor);
      ExpectAsOnTheHost<double>(make, divisor);
    }
  }
}

TEST(DeviceHooksTest, AHookThatWorksOnTheHostIsRefusedWhenItIsSet) {
  const std::pair<std::string, Make> hooks[] = {
      {"power_sgd", [] { return PowerSgdHook({}); }},
      {"batched_power_sgd", [] { return BatchedPowerSgdHook({}); }},
      {"quantize_per_tensor", [] { return QuantizePerTensorHook(); }},
      {"quantize_per_channel", [] { return QuantizePerChannelHook(8); }},
      {"top_k", [] { return TopKHook(0.5); }}};
  for (const auto& [name, make] : hooks) {
    for (const char* backend : {"auto@cuda", "nccl@cuda"}) {
      ExpectOnRanks(
          2,
          [name = name, make = make](Group group) -> absl::Status {
            SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                      Reducer::Create(group, SmallModel(), SmallOptions()));
            SYNCLINE_ASSIGN_OR_RETURN(const auto hook, make());
            const absl::Status refused = reducer->SetHook(hook);
            EXPECT_EQ(KindOf(refused), ErrorKind::kUnsupported);
            EXPECT_THAT(Message(refused), HasSubstr(absl::StrCat("hook '", name, "': it works")));
            EXPECT_THAT(Message(refused), HasSubstr("float16_compress"));
            Reducer::Options options = SmallOptions();
            options.hook = hook;
            EXPECT_EQ(KindOf(Reducer::Create(group, SmallModel(), options).status()),
                      ErrorKind::kUnsupported);
            for (int64_t i : {0, 1, 2}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 3));
            SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
            return Holds(*reducer, 1, 3);
          },
          backend);
    }
  }
}

TEST(DeviceHooksTest, NoHostWaitsForADeviceWhereBucketsAreCompressed) {
  Countdown ready(2), passed(2);
  ExpectOnRanks(
      2,
      [&](Group group) -> absl::Status {
        Reducer::Options options = SmallOptions();
        SYNCLINE_ASSIGN_OR_RETURN(options.hook, HalfHook(DType::kBFloat16));
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), options));
        for (int step = 0; step < 2; ++step) {
          for (int64_t i : {0, 1, 2}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 3));
          SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
          SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 1, 3));
        }
        ready.StepAndWait();
        {
          const device::HeldStreams held(group->rank());
          for (int step = 0; step < 3; ++step) {
            const float mine = static_cast<float>(2 * group->rank() + step);
            for (int64_t i : {0, 1, 2}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, mine));
            SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
          }
          passed.StepAndWait();
        }
        for (int64_t i : {0, 1, 2}) SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, i, 3));
        return group->status();
      },
      "auto@cuda");
}

}  // namespace
}  // namespace syncline
