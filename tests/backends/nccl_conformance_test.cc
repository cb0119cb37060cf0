// Backend nccl, over the stand-ins for NCCL and CUDA, in the suite of all backends.
#include <vector>

#include "core/device/testing/fake_cuda_env.h"
#include "syncline/backend_registry.h"
#include "tests/backends/backend_conformance.h"
#include "tests/backends/device_backend.h"

namespace syncline {
namespace {

constexpr char kName[] = "nccl_on_devices";

BackendCase Case() {
  BackendCase nccl = {kName};
  nccl.matching = MessageMatching::kInOrder;
  return nccl;
}

// No eight-bit floats, which the suite knows no sums of.
const BackendRegistry::Registration kRegistered =
    RegisterOnDevices("nccl", kName, Capabilities::All());

// A device of the machine has room for the kernels of four ranks.
std::vector<int> Sizes() {
  return device::DevicesAreSimulated() ? std::vector<int>{1, 2, 3, 7}
                                       : std::vector<int>{1, 2, 3, 4};
}

INSTANTIATE_TEST_SUITE_P(Nccl, BackendConformance,
                         testing::Combine(testing::Values(Case()), testing::ValuesIn(Sizes())),
                         &CaseName);
INSTANTIATE_TEST_SUITE_P(Nccl, BackendData,
                         testing::Combine(testing::Values(Case()), testing::ValuesIn(Sizes()),
                                          testing::ValuesIn(DataCaseNames(Case()))),
                         &DataCaseName);

}  // namespace
}  // namespace syncline
