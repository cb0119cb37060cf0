// Communication hooks on buckets of devices, against the same on the host.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/device/stream_handle.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/comm_hook.h"
#include "syncline/hash_store.h"
#include "syncline/hooks.h"
#include "syncline/process_group.h"
#include "syncline/reduce_op.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "syncline/tensor.h"
#include "syncline/work.h"
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
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
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

// Starts what the test says, and notes the devices that it is given.
class OwnHook final : public CommHook {
 public:
  using StartBucket =
      std::function<absl::StatusOr<std::shared_ptr<Work>>(ProcessGroup&, const Tensor&)>;

  explicit OwnHook(StartBucket start) : start_(std::move(start)) {}

  std::string name() const override { return "own"; }
  absl::Status SetDevice(const Device& device) override {
    devices.push_back(device);
    return absl::OkStatus();
  }
  absl::Status Attach(std::shared_ptr<ProcessGroup> group) override {
    group_ = std::move(group);
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) override {
    return start_(*group_, bucket->buffer);
  }

  std::vector<Device> devices;

 private:
  const StartBucket start_;
  std::shared_ptr<ProcessGroup> group_;
};

absl::StatusOr<std::shared_ptr<Work>> Averaged(ProcessGroup& group, const Tensor& buffer) {
  return group.AllReduceAsync(buffer, ReduceOp::kAvg);
}

TEST(DeviceHooksTest, AReducerElsewhereThatIsRefusedAHookDoesNotChangeIt) {
  ExpectOnRanks(
      2,
      [](Group group) -> absl::Status {
        const auto hook = std::make_shared<OwnHook>(Averaged);
        Reducer::Options options = SmallOptions();
        options.hook = hook;
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers owner,
                                  Reducer::Create(group, SmallModel(), options));
        const std::vector<Tensor> on_host = {Tensor(nullptr, DType::kFloat32, {3})};
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers other, Reducer::Create(group, on_host, {}));
        const absl::Status refused = other->SetHook(hook);
        EXPECT_THAT(Message(refused), HasSubstr("belongs to another reducer"));
        EXPECT_EQ(hook->devices.size(), 1);
        EXPECT_EQ(hook->devices.front(), TestDevice());
        for (int64_t i : {0, 1, 2}) SYNCLINE_RETURN_IF_ERROR(Copy(*owner, i, 3));
        SYNCLINE_RETURN_IF_ERROR(owner->Finish());
        return Holds(*owner, 1, 3);
      },
      "auto@cuda");
}

// Of an average whose end the test decides.
class LateHandle final : public device::StreamHandle {
 public:
  explicit LateHandle(std::shared_ptr<const device::Event> end) : StreamHandle(std::move(end)) {}

 private:
  std::optional<absl::Status> Verdict() override { return std::nullopt; }
};

TEST(DeviceHooksTest, AFailureAfterTheStepEndsTheReducersGroup) {
  ExpectOnRanks(
      1,
      [](Group group) -> absl::Status {
        std::vector<std::pair<std::shared_ptr<Work>, std::shared_ptr<LateHandle>>> started;
        Reducer::Options options = SmallOptions();
        options.hook = std::make_shared<OwnHook>(
            [&](ProcessGroup&, const Tensor&) -> absl::StatusOr<std::shared_ptr<Work>> {
              SYNCLINE_ASSIGN_OR_RETURN(auto* const runtime, device::DeviceRuntime::Get());
              SYNCLINE_ASSIGN_OR_RETURN(auto end, runtime->Record(CurrentStream(TestDevice())));
              auto handle = std::make_shared<LateHandle>(std::move(end));
              auto work = std::make_shared<Work>("late");
              work->Start();
              work->Enqueued(TestDevice(), handle);
              started.emplace_back(work, handle);
              return work;
            });
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), options));
        for (int64_t i : {0, 1, 2}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 3));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        SYNCLINE_RETURN_IF_ERROR(group->status());
        EXPECT_EQ(started.size(), 3);
        for (auto& [work, handle] : started) {
          work->Finish(BackendError("the link is down"));
          handle->End(BackendError("the link is down"));
        }
        EXPECT_THAT(Message(group->status()), HasSubstr("hook 'own', bucket 0: the link is down"));
        return absl::OkStatus();
      },
      "auto@cuda");
}

TEST(DeviceHooksTest, AHookThatNeverEnqueuesIsNotWaitedForWithoutEnd) {
  auto store = std::make_shared<HashStore>();
  ProcessGroup::Options of_group;
  of_group.backend = "auto";
  of_group.store = store;
  of_group.timeout = absl::Milliseconds(300);
  of_group.connect_timeout = absl::Seconds(60);
  const auto group = ProcessGroup::Create(of_group);
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<std::shared_ptr<Work>> started;
  Reducer::Options options;
  options.hook = std::make_shared<OwnHook>([&](ProcessGroup&, const Tensor&) {
    started.push_back(std::make_shared<Work>("an average that does not come"));
    started.back()->Start();
    return started.back();
  });
  const Device device = {DeviceType::kCuda, 0};
  const std::vector<Tensor> parameters = {Tensor(nullptr, DType::kFloat32, {3}, {}, device)};
  const auto reducer = Reducer::Create(*group, parameters, options);
  ASSERT_TRUE(reducer.ok()) << reducer.status();
  ASSERT_TRUE(Copy(**reducer, 0, 3).ok());
  const absl::Status late = (*reducer)->Finish();
  EXPECT_EQ(KindOf(late), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("hook 'own', bucket 0: an average that does not come has "
                        "not been enqueued on cuda:0 within 1.2s"));
  EXPECT_FALSE((*group)->status().ok());
  for (const auto& work : started) work->Finish(BackendError("the test is over"));
}

}  // namespace
}  // namespace syncline
