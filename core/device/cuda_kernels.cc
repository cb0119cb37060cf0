#include "core/device/cuda_kernels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/device/kernels/device_kernels.h"
#include "core/device/kernels/kernel_list.h"
#include "core/device/kernels/split.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

using kernels::kThreads;

// nvcc 13 makes code that drivers since R580 load.
constexpr int kDriverVersion = 13000;
constexpr int kComputeCapability = 8;

// As many as run at the same time on a multiprocessor that holds 2,048 threads.
constexpr uint32_t kBlocksPerMultiprocessor = 8;

constexpr size_t kDTypes = 17;
constexpr DType kConverted[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                DType::kFloat64};
constexpr size_t kConvertedCount = sizeof(kConverted) / sizeof(kConverted[0]);

struct Function {
  std::string name;
  CUfunction handle = nullptr;
};

// The same reduction of types and operations that there are kernels for: a bool is a byte of 0 or
// 1, a complex number two floats.
struct Lowered {
  DType dtype;
  ReduceOp op;
  uint64_t count;
};

Lowered Lower(DType dtype, ReduceOp op, int64_t count) {
  SYNCLINE_DCHECK(count >= 0 && !IsFloat8(dtype));
  const auto elements = static_cast<uint64_t>(count);
  switch (dtype) {
    case DType::kBool:
      return {DType::kUInt8, op == ReduceOp::kSum ? ReduceOp::kBor : op, elements};
    case DType::kComplex64:
      return {DType::kFloat32, op, 2 * elements};
    case DType::kComplex128:
      return {DType::kFloat64, op, 2 * elements};
    default:
      return {dtype, op, elements};
  }
}

kernels::Operation OperationOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return kernels::Operation::kSum;
    case ReduceOp::kProduct:
      return kernels::Operation::kProduct;
    case ReduceOp::kMin:
      return kernels::Operation::kMin;
    case ReduceOp::kMax:
      return kernels::Operation::kMax;
    case ReduceOp::kBand:
      return kernels::Operation::kBand;
    case ReduceOp::kBor:
      return kernels::Operation::kBor;
    case ReduceOp::kBxor:
      return kernels::Operation::kBxor;
  }
  return kernels::Operation::kSum;
}

// How many threads have something to do.
uint64_t WorkOf(const kernels::Split& split) {
  return split.groups != 0 ? split.groups : split.count;
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(const CudaDriver& driver, const Device& device) : driver_(driver), device_(device) {}

  ~CudaKernels() override {
    if (module_ == nullptr || driver_.cuModuleUnload == nullptr) return;
    if (driver_.cuCtxPushCurrent(context_) != CUDA_SUCCESS) return;
    driver_.cuModuleUnload(module_);
    CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent(&popped);
  }

  absl::Status Load();

  absl::Status CopyMany(absl::Span<const CopySpan> copies, const Stream& stream) const override;
  absl::Status Reduce(DType dtype, ReduceOp op, void* to, absl::Span<const void* const> inputs,
                      int64_t count, const Stream& stream) const override;
  absl::Status Scale(DType dtype, void* data, double factor, int64_t count,
                     const Stream& stream) const override;
  absl::Status Divide(DType dtype, void* data, int divisor, int64_t count,
                      const Stream& stream) const override;
  absl::Status Convert(DType to_dtype, void* to, DType from_dtype, const void* from, int64_t count,
                       const Stream& stream) const override;

 private:
  std::string Where() const { return absl::StrCat("on ", ToString(device_)); }

  absl::Status LoadModule();
  absl::Status Find(const std::string& name, Function* function) const;
  absl::Status FindAll();

  // Enqueues a kernel with the parameters `args`, whose `work` threads or fewer have work.
  template <class Args>
  absl::Status Launch(const Function& function, const Args& args, uint64_t work,
                      const Stream& stream) const;

  template <uint32_t kCapacity>
  absl::Status LaunchCopies(const Function& function, absl::Span<const kernels::CopyPart> parts,
                            const Stream& stream) const;

  template <uint32_t kCapacity>
  absl::Status LaunchReduce(const Function& function, const Lowered& lowered, void* to,
                            absl::Span<const void* const> inputs, const Stream& stream) const;

  const CudaDriver& driver_;
  const Device device_;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  uint32_t max_blocks_ = 0;

  Function copy_few_, copy_many_;
  // By the number of the element type; those that are lowered to others have none.
  std::array<Function, kDTypes> reduce_few_, reduce_many_, divide_, scale_;
  std::array<std::array<Function, kDTypes>, kDTypes> convert_;  // From, to.
};

absl::Status CudaKernels::LoadModule() {
  CUdevice device = 0;
  SYNCLINE_RETURN_IF_ERROR(
      driver_.Check(driver_.cuDeviceGet(&device, device_.index), "cuDeviceGet", Where()));
  // One reference more, which is the process's as that of the runtime is.
  SYNCLINE_RETURN_IF_ERROR(driver_.Check(driver_.cuDevicePrimaryCtxRetain(&context_, device),
                                         "cuDevicePrimaryCtxRetain", Where()));
  int multiprocessors = 0;
  SYNCLINE_RETURN_IF_ERROR(
      driver_.Check(driver_.cuDeviceGetAttribute(&multiprocessors,
                                                 CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
                    "cuDeviceGetAttribute", Where()));
  max_blocks_ = kBlocksPerMultiprocessor * static_cast<uint32_t>(std::max(multiprocessors, 1));
  return driver_.Check(driver_.cuModuleLoadData(&module_, kernels::kDeviceKernelsFatbin),
                       "cuModuleLoadData", Where());
}

absl::Status CudaKernels::Find(const std::string& name, Function* function) const {
  function->name = absl::StrCat("syncline_", name);
  return driver_.Check(
      driver_.cuModuleGetFunction(&function->handle, module_, function->name.c_str()),
      absl::StrCat("cuModuleGetFunction of ", function->name), Where());
}

absl::Status CudaKernels::FindAll() {
  SYNCLINE_RETURN_IF_ERROR(Find("copy_few", &copy_few_));
  SYNCLINE_RETURN_IF_ERROR(Find("copy_many", &copy_many_));
  for (const DType dtype : AllDTypes()) {
    if (IsFloat8(dtype) || !(IsInteger(dtype) || IsFloating(dtype))) continue;
    const auto at = static_cast<size_t>(dtype);
    const auto name = Name(dtype);
    SYNCLINE_RETURN_IF_ERROR(Find(absl::StrCat("reduce_few_", name), &reduce_few_[at]));
    SYNCLINE_RETURN_IF_ERROR(Find(absl::StrCat("reduce_many_", name), &reduce_many_[at]));
    SYNCLINE_RETURN_IF_ERROR(Find(absl::StrCat("divide_", name), &divide_[at]));
    if (!IsFloating(dtype)) continue;
    SYNCLINE_RETURN_IF_ERROR(Find(absl::StrCat("scale_", name), &scale_[at]));
    for (const DType to : AllDTypes()) {
      if (IsFloat8(to) || !IsFloating(to) || to == dtype) continue;
      SYNCLINE_RETURN_IF_ERROR(Find(absl::StrCat("convert_", name, "_to_", Name(to)),
                                    &convert_[at][static_cast<size_t>(to)]));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaKernels::Load() {
  SYNCLINE_RETURN_IF_ERROR(CheckCudaKernels(driver_, device_));
  SYNCLINE_RETURN_IF_ERROR(LoadModule());
  // Drivers load lazily, which a capture of the first launch would not survive: asking for a
  // function loads it.
  return FindAll();
}

template <class Args>
absl::Status CudaKernels::Launch(const Function& function, const Args& args, uint64_t work,
                                 const Stream& stream) const {
  SYNCLINE_DCHECK(stream.device == device_ && function.handle != nullptr);
  const uint64_t blocks = std::min<uint64_t>((work + kThreads - 1) / kThreads, max_blocks_);
  // The driver copies the parameters before it returns.
  void* arguments[] = {const_cast<Args*>(&args)};
  SYNCLINE_RETURN_IF_ERROR(
      driver_.Check(driver_.cuCtxPushCurrent(context_), "cuCtxPushCurrent", Where()));
  const CUresult result =
      driver_.cuLaunchKernel(function.handle, static_cast<unsigned int>(blocks), 1, 1, kThreads, 1,
                             1, 0, static_cast<CUstream>(stream.handle), arguments, nullptr);
  CUcontext popped = nullptr;
  driver_.cuCtxPopCurrent(&popped);
  return driver_.Check(result, absl::StrCat("cuLaunchKernel of ", function.name), Where());
}

template <uint32_t kCapacity>
absl::Status CudaKernels::LaunchCopies(const Function& function,
                                       absl::Span<const kernels::CopyPart> parts,
                                       const Stream& stream) const {
  const auto args = std::make_unique<kernels::CopyArgs<kCapacity>>();
  uint64_t tiles = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    args->parts[i] = parts[i];
    args->first_tile[i] = static_cast<uint32_t>(tiles);
    tiles += kernels::TileCount(parts[i]);
  }
  SYNCLINE_DCHECK(tiles <= UINT32_MAX);  // 64 TiB.
  args->count = static_cast<uint32_t>(parts.size());
  args->first_tile[parts.size()] = static_cast<uint32_t>(tiles);
  return Launch(function, *args, tiles * kThreads, stream);
}

absl::Status CudaKernels::CopyMany(absl::Span<const CopySpan> copies, const Stream& stream) const {
  std::vector<kernels::CopyPart> parts;
  parts.reserve(copies.size());
  for (const CopySpan& copy : copies) {
    if (copy.bytes == 0 || copy.to == copy.from) continue;
    parts.push_back({static_cast<char*>(copy.to), static_cast<const char*>(copy.from), copy.bytes});
  }
  absl::Span<const kernels::CopyPart> rest = parts;
  while (!rest.empty()) {
    const auto now = rest.subspan(0, kernels::kManyCopies);
    rest.remove_prefix(now.size());
    SYNCLINE_RETURN_IF_ERROR(now.size() <= kernels::kFewCopies
                                 ? LaunchCopies<kernels::kFewCopies>(copy_few_, now, stream)
                                 : LaunchCopies<kernels::kManyCopies>(copy_many_, now, stream));
  }
  return absl::OkStatus();
}

template <uint32_t kCapacity>
absl::Status CudaKernels::LaunchReduce(const Function& function, const Lowered& lowered, void* to,
                                       absl::Span<const void* const> inputs,
                                       const Stream& stream) const {
  const auto size = static_cast<uint32_t>(SizeOf(lowered.dtype));
  const auto args = std::make_unique<kernels::ReduceArgs<kCapacity>>();
  args->split =
      kernels::SplitElements(lowered.count, {{&to, 1, size}, {inputs.data(), inputs.size(), size}});
  args->to = to;
  args->count = static_cast<uint32_t>(inputs.size());
  args->op = OperationOf(lowered.op);
  args->divisor = lowered.op == ReduceOp::kAvg ? static_cast<int32_t>(inputs.size()) : 0;
  std::copy(inputs.begin(), inputs.end(), args->inputs);
  return Launch(function, *args, WorkOf(args->split), stream);
}

absl::Status CudaKernels::Reduce(DType dtype, ReduceOp op, void* to,
                                 absl::Span<const void* const> inputs, int64_t count,
                                 const Stream& stream) const {
  SYNCLINE_DCHECK(!inputs.empty() && CheckReduction(dtype, op).ok());
  if (count == 0) return absl::OkStatus();
  if (inputs.size() == 1) {
    return CopyMany({{to, inputs[0], static_cast<size_t>(count) * SizeOf(dtype)}}, stream);
  }
  if (inputs.size() > kernels::kManyInputs) {
    return UnsupportedError(absl::StrCat("a reduction on a device has at most ",
                                         kernels::kManyInputs, " inputs, not ", inputs.size()));
  }
  const Lowered lowered = Lower(dtype, op, count);
  const auto at = static_cast<size_t>(lowered.dtype);
  if (inputs.size() <= kernels::kFewInputs) {
    return LaunchReduce<kernels::kFewInputs>(reduce_few_[at], lowered, to, inputs, stream);
  }
  return LaunchReduce<kernels::kManyInputs>(reduce_many_[at], lowered, to, inputs, stream);
}

absl::Status CudaKernels::Scale(DType dtype, void* data, double factor, int64_t count,
                                const Stream& stream) const {
  SYNCLINE_DCHECK(CheckReduction(dtype, ReduceOp::kPremulSum).ok());
  if (count == 0) return absl::OkStatus();
  const Lowered lowered = Lower(dtype, ReduceOp::kPremulSum, count);
  const auto size = static_cast<uint32_t>(SizeOf(lowered.dtype));
  kernels::MapArgs args = {};
  args.split = kernels::SplitElements(lowered.count, {{&data, 1, size}});
  args.to = data;
  args.from = data;
  args.factor = factor;
  return Launch(scale_[static_cast<size_t>(lowered.dtype)], args, WorkOf(args.split), stream);
}

absl::Status CudaKernels::Divide(DType dtype, void* data, int divisor, int64_t count,
                                 const Stream& stream) const {
  SYNCLINE_DCHECK(divisor >= 1);
  if (count == 0 || divisor == 1) return absl::OkStatus();
  const Lowered lowered = Lower(dtype, ReduceOp::kAvg, count);
  const auto size = static_cast<uint32_t>(SizeOf(lowered.dtype));
  kernels::MapArgs args = {};
  args.split = kernels::SplitElements(lowered.count, {{&data, 1, size}});
  args.to = data;
  args.from = data;
  args.divisor = divisor;
  return Launch(divide_[static_cast<size_t>(lowered.dtype)], args, WorkOf(args.split), stream);
}

absl::Status CudaKernels::Convert(DType to_dtype, void* to, DType from_dtype, const void* from,
                                  int64_t count, const Stream& stream) const {
  if (count == 0) return absl::OkStatus();
  if (to_dtype == from_dtype) {
    return CopyMany({{to, from, static_cast<size_t>(count) * SizeOf(to_dtype)}}, stream);
  }
  const void* const to_address = to;
  kernels::MapArgs args = {};
  args.split = kernels::SplitElements(static_cast<uint64_t>(count),
                                      {{&from, 1, static_cast<uint32_t>(SizeOf(from_dtype))},
                                       {&to_address, 1, static_cast<uint32_t>(SizeOf(to_dtype))}});
  args.to = to;
  args.from = from;
  const Function& function =
      convert_[static_cast<size_t>(from_dtype)][static_cast<size_t>(to_dtype)];
  return Launch(function, args, WorkOf(args.split), stream);
}

}  // namespace

absl::Status CheckCudaKernels(const CudaDriver& driver, const Device& device) {
  if (kernels::kDeviceKernelsFatbinSize == 0) {
    return UnsupportedError("Syncline was built without its kernels (--define=cuda_kernels=no)");
  }
  int version = 0;
  SYNCLINE_RETURN_IF_ERROR(driver.Check(driver.cuDriverGetVersion(&version), "cuDriverGetVersion"));
  if (version < kDriverVersion) {
    return UnsupportedError(
        absl::StrCat("Syncline's kernels need a driver of CUDA 13.0 (R580) or later; ",
                     driver.library, " is one of CUDA ", version / 1000, ".", version % 1000 / 10));
  }
  const bool has_all = driver.cuDeviceGetAttribute != nullptr &&
                       driver.cuModuleLoadData != nullptr &&
                       driver.cuModuleGetFunction != nullptr && driver.cuLaunchKernel != nullptr;
  if (!has_all) {
    return UnsupportedError(
        absl::StrCat("Syncline's kernels need cuDeviceGetAttribute, cuModuleLoadData, "
                     "cuModuleGetFunction and cuLaunchKernel, which not all are in ",
                     driver.library));
  }
  const std::string where = absl::StrCat("on ", ToString(device));
  CUdevice handle = 0;
  SYNCLINE_RETURN_IF_ERROR(
      driver.Check(driver.cuDeviceGet(&handle, device.index), "cuDeviceGet", where));
  int numbers[2];
  for (const auto& [number, attribute] :
       {std::make_pair(&numbers[0], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        std::make_pair(&numbers[1], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)}) {
    SYNCLINE_RETURN_IF_ERROR(driver.Check(driver.cuDeviceGetAttribute(number, attribute, handle),
                                          "cuDeviceGetAttribute", where));
  }
  if (numbers[0] >= kComputeCapability) return absl::OkStatus();
  return UnsupportedError(absl::StrCat("Syncline's kernels need a device of compute capability ",
                                       kComputeCapability, ".0 or later; ", ToString(device),
                                       " has ", numbers[0], ".", numbers[1]));
}

absl::StatusOr<std::unique_ptr<Kernels>> MakeCudaKernels(const CudaDriver& driver,
                                                         const Device& device) {
  auto kernels = std::make_unique<CudaKernels>(driver, device);
  SYNCLINE_RETURN_IF_ERROR(kernels->Load());
  return kernels;
}

}  // namespace syncline::device
