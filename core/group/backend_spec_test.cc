#include "core/group/backend_spec.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

BackendRegistry::Entry Serving(EnumSet<DeviceType> devices) {
  Capabilities capabilities = Capabilities::All();
  capabilities.devices = devices;
  return {capabilities, [](const BackendConfig&) -> absl::StatusOr<std::shared_ptr<Backend>> {
            return UnsupportedError("never made");
          }};
}

const BackendRegistry::Registration kWires("wires", Serving({DeviceType::kCpu}));
const BackendRegistry::Registration kRays("rays", Serving({DeviceType::kCuda}));
const BackendRegistry::Registration kBoth("both", Serving({DeviceType::kCpu, DeviceType::kCuda}));

std::string Refusal(absl::string_view spec) {
  const absl::Status status = ParseBackendSpec(spec).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << spec;
  return std::string(status.message());
}

TEST(BackendSpecTest, ANameServesAllItsDevices) {
  EXPECT_THAT(*ParseBackendSpec("wires"), ElementsAre(Pair(DeviceType::kCpu, "wires")));
  EXPECT_THAT(*ParseBackendSpec("Both"),
              ElementsAre(Pair(DeviceType::kCpu, "both"), Pair(DeviceType::kCuda, "both")));
}

TEST(BackendSpecTest, PairsNameTheBackendOfEachDevice) {
  EXPECT_THAT(*ParseBackendSpec("cpu:wires, CUDA:rays"),
              ElementsAre(Pair(DeviceType::kCpu, "wires"), Pair(DeviceType::kCuda, "rays")));
  EXPECT_THAT(*ParseBackendSpec("cuda:both"), ElementsAre(Pair(DeviceType::kCuda, "both")));
}

TEST(BackendSpecTest, AllSpellingsOfOneSpecHaveTheSameText) {
  const auto text = [](absl::string_view spec) {
    return SerializeBackendSpec(*ParseBackendSpec(spec));
  };
  for (const absl::string_view spelling : {"both", " Both", "cuda:both, cpu:both"}) {
    EXPECT_EQ(text(spelling), "both");
  }
  EXPECT_EQ(text("cuda:RAYS ,cpu:wires"), "cpu:wires,cuda:rays");
  EXPECT_EQ(text("cpu:both"), "cpu:both");
  EXPECT_EQ(text("wires"), "cpu:wires");
}

TEST(BackendSpecTest, ARefusalSaysWhatWouldBeRight) {
  EXPECT_THAT(Refusal("strings"), HasSubstr("unknown backend 'strings'; choose one of: both"));
  EXPECT_THAT(Refusal(""), HasSubstr("choose one of"));
  EXPECT_THAT(Refusal("cpu:strings"), HasSubstr("unknown backend 'strings'"));
  EXPECT_THAT(Refusal("tpu:wires"), HasSubstr("unknown device 'tpu'; choose one of: cpu, cuda"));
  EXPECT_THAT(Refusal("cuda:wires"), HasSubstr("wires does not serve device cuda"));
  EXPECT_THAT(Refusal("cpu:wires,cpu:both"), HasSubstr("named twice"));
  EXPECT_THAT(Refusal("cpu:wires,rays"), HasSubstr("pairs such as cpu:gloo,cuda:nccl"));
}

TEST(BackendRegistryTest, ABackendMayBeAddedOnceUnderAProperName) {
  EXPECT_TRUE(BackendRegistry::Add("late_1", Serving({DeviceType::kCpu})).ok());
  EXPECT_TRUE(BackendRegistry::Has("late_1"));
  EXPECT_THAT(std::string(BackendRegistry::Add("late_1", Serving({})).message()),
              HasSubstr("registered already"));
  EXPECT_THAT(std::string(BackendRegistry::Add("Late", Serving({})).message()),
              HasSubstr("lower-case"));
  EXPECT_EQ(KindOf(BackendRegistry::Add("", Serving({}))), ErrorKind::kArgument);
}

}  // namespace
}  // namespace syncline::group
