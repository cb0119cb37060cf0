// What our kernels cost on the first device, beside a plain copy of the same bytes by the driver.
//
//   ./bazelw run //benchmarks/cuda -- [MEBIBYTES [REPEATS]]
//
// Prints a table in Markdown. Bandwidths count what is read and what is written.
#include "core/device/kernels.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Device kDevice = {DeviceType::kCuda, 0};
constexpr int kGradients = 1000;
constexpr int kRounds = 7;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Require(absl::StatusOr<T> result) {
  Require(result.status());
  return *std::move(result);
}

// Gradients of 64 elements to some hundred thousand, as biases and matrices have, of about `bytes`
// bytes in all; of `size` bytes each element.
std::vector<size_t> GradientSizes(size_t bytes, size_t size) {
  std::mt19937 random(1);
  std::vector<double> weights;
  double sum = 0;
  for (int i = 0; i < kGradients; ++i) {
    weights.push_back(std::exp2(std::uniform_real_distribution<double>(6, 20)(random)));
    sum += weights.back();
  }
  std::vector<size_t> sizes;
  for (const double weight : weights) {
    const auto elements = static_cast<size_t>(weight / sum * static_cast<double>(bytes / size));
    sizes.push_back(std::max<size_t>(elements | 1, 1) * size);  // Odd.
  }
  return sizes;
}

class Benchmark {
 public:
  Benchmark(size_t bytes, int repeats)
      : bytes_(bytes),
        repeats_(repeats),
        runtime_(*Require(DeviceRuntime::Get())),
        kernels_(*Require(runtime_.KernelsOf(kDevice))),
        stream_(Require(runtime_.MakeStream(kDevice))) {}

  void Run() {
    // SYNCLINE_CUDA_LIBRARY stands in for the driver, most often by simulated devices.
    if (const char* const library = std::getenv("SYNCLINE_CUDA_LIBRARY"); library != nullptr) {
      std::printf("**With %s for a driver: if it simulates devices, the times say nothing.**\n\n",
                  library);
    }
    std::printf("%d gradients, %.1f MiB, %d repeats, driver of CUDA %d\n\n", kGradients,
                static_cast<double>(bytes_) / (1 << 20), repeats_, runtime_.driver_version());
    std::printf("| what | us | GB/s | of a plain copy | us on the host |\n|---|---|---|---|---|\n");
    RunCopies("float32, packed at multiples of 256 bytes", 4, 256);
    RunCopies("float32, packed without gaps", 4, 4);
    RunCopies("bfloat16, packed without gaps", 2, 2);
    for (const int inputs : {2, 8}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt16, DType::kInt8}) {
        RunReduction(dtype, inputs);
      }
    }
    RunConversions();
  }

 private:
  struct Cost {
    double device_us;  // Of one repeat.
    double host_us;    // To enqueue it.
  };

  // Medians of some rounds, in each of which `enqueue` is called `repeats_` times in a row.
  Cost CostOf(const std::function<absl::Status()>& enqueue) {
    const Deadline deadline(absl::Minutes(5));
    Require(enqueue());
    Require(runtime_.Synchronize(*stream_, deadline));
    std::vector<double> device, host;
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < repeats_; ++i) Require(enqueue());
      const std::chrono::duration<double, std::micro> enqueued = Clock::now() - begin;
      Require(runtime_.Synchronize(*stream_, deadline));
      const std::chrono::duration<double, std::micro> done = Clock::now() - begin;
      host.push_back(enqueued.count() / repeats_);
      device.push_back(done.count() / repeats_);
    }
    std::sort(device.begin(), device.end());
    std::sort(host.begin(), host.end());
    return {device[kRounds / 2], host[kRounds / 2]};
  }

  void Print(const std::string& what, const Cost& cost, double moved, double plain) {
    const double bandwidth = moved / cost.device_us / 1000;
    std::printf("| %s | %.1f | %.0f | %.2f | %.1f |\n", what.c_str(), cost.device_us, bandwidth,
                bandwidth / plain, cost.host_us);
  }

  std::shared_ptr<void> Allocate(size_t bytes) {
    return Require(runtime_.Allocate(kDevice, bytes));
  }

  // GB/s of the driver's copy of `bytes` bytes.
  double PlainCopy(const std::string& what, size_t bytes) {
    const auto from = Allocate(bytes), to = Allocate(bytes);
    const Cost cost = CostOf([&] { return runtime_.Copy(to.get(), from.get(), bytes, *stream_); });
    const double moved = 2.0 * static_cast<double>(bytes);
    const double plain = moved / cost.device_us / 1000;
    Print(what, cost, moved, plain);
    return plain;
  }

  void RunCopies(const std::string& name, size_t size, size_t alignment) {
    const std::vector<size_t> sizes = GradientSizes(bytes_, size);
    std::vector<std::shared_ptr<void>> gradients;
    std::vector<size_t> places;
    size_t total = 0, moved = 0;
    for (const size_t bytes : sizes) {
      gradients.push_back(Allocate(bytes));
      places.push_back(total);
      total += (bytes + alignment - 1) / alignment * alignment;
      moved += bytes;
    }
    const auto bucket = Allocate(total);
    std::vector<CopySpan> pack, unpack;
    for (size_t i = 0; i < sizes.size(); ++i) {
      char* const place = static_cast<char*>(bucket.get()) + places[i];
      pack.push_back({place, gradients[i].get(), sizes[i]});
      unpack.push_back({gradients[i].get(), place, sizes[i]});
      const auto value = static_cast<unsigned char>(i + 1);
      Require(runtime_.Fill(gradients[i].get(), value, sizes[i], *stream_));
    }
    const double plain = PlainCopy(absl::StrCat("plain copy, ", name), moved);
    const double both = 2.0 * static_cast<double>(moved);
    Print(absl::StrCat("pack, ", name), CostOf([&] { return kernels_.CopyMany(pack, *stream_); }),
          both, plain);
    CheckBucket(bucket.get(), total, places, sizes);
    Print(absl::StrCat("unpack, ", name),
          CostOf([&] { return kernels_.CopyMany(unpack, *stream_); }), both, plain);
    Print(absl::StrCat("a plain copy of each, ", name), CostOf([&] {
            for (const CopySpan& span : pack) {
              const absl::Status status = runtime_.Copy(span.to, span.from, span.bytes, *stream_);
              if (!status.ok()) return status;
            }
            return absl::OkStatus();
          }),
          both, plain);
  }

  // A bandwidth counts only if the right bytes have moved.
  void CheckBucket(const void* bucket, size_t total, const std::vector<size_t>& places,
                   const std::vector<size_t>& sizes) {
    std::vector<char> contents(total);
    Require(runtime_.Copy(contents.data(), bucket, total, *stream_));
    Require(runtime_.Synchronize(*stream_, Deadline(absl::Minutes(1))));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto begin = contents.begin() + static_cast<std::ptrdiff_t>(places[i]);
      const auto is_right = [i](char byte) { return byte == static_cast<char>(i + 1); };
      if (!std::all_of(begin, begin + static_cast<std::ptrdiff_t>(sizes[i]), is_right)) {
        std::fprintf(stderr, "gradient %zu was not packed\n", i);
        std::exit(1);
      }
    }
  }

  void RunReduction(DType dtype, int count) {
    const size_t bytes = bytes_ / static_cast<size_t>(count) / 16 * 16;
    std::vector<std::shared_ptr<void>> memory;
    std::vector<const void*> inputs;
    for (int i = 0; i < count; ++i) {
      memory.push_back(Allocate(bytes));
      inputs.push_back(memory.back().get());
      Require(runtime_.Fill(memory.back().get(), 0, bytes, *stream_));
    }
    const auto to = Allocate(bytes);
    const double plain = PlainBandwidth();
    const auto elements = static_cast<int64_t>(bytes / SizeOf(dtype));
    Print(absl::StrCat("sum of ", count, " x ", Name(dtype)), CostOf([&] {
            return kernels_.Reduce(dtype, ReduceOp::kSum, to.get(), inputs, elements, *stream_);
          }),
          static_cast<double>(bytes) * (count + 1), plain);
  }

  void RunConversions() {
    const auto elements = static_cast<int64_t>(bytes_ / 4);
    const auto wide = Allocate(bytes_), half = Allocate(bytes_ / 2);
    Require(runtime_.Fill(wide.get(), 0, bytes_, *stream_));
    const double moved = static_cast<double>(elements) * 6, plain = PlainBandwidth();
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      Print(absl::StrCat("float32 to ", Name(dtype)), CostOf([&] {
              return kernels_.Convert(dtype, half.get(), DType::kFloat32, wide.get(), elements,
                                      *stream_);
            }),
            moved, plain);
      Print(absl::StrCat(Name(dtype), " to float32"), CostOf([&] {
              return kernels_.Convert(DType::kFloat32, wide.get(), dtype, half.get(), elements,
                                      *stream_);
            }),
            moved, plain);
    }
    Print("float32 divided", CostOf([&] {
            return kernels_.Divide(DType::kFloat32, wide.get(), 3, elements, *stream_);
          }),
          2.0 * static_cast<double>(bytes_), plain);
  }

  double PlainBandwidth() {
    if (plain_ == 0) plain_ = PlainCopy("plain copy", bytes_);
    return plain_;
  }

  const size_t bytes_;
  const int repeats_;
  DeviceRuntime& runtime_;
  const Kernels& kernels_;
  const std::shared_ptr<const Stream> stream_;
  double plain_ = 0;
};

}  // namespace
}  // namespace syncline::device

int main(int argc, char** argv) {
  const int mebibytes = argc > 1 ? std::atoi(argv[1]) : 400;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 50;
  if (mebibytes < 1 || repeats < 1) {
    std::fprintf(stderr, "usage: %s [MEBIBYTES [REPEATS]]\n", argv[0]);
    return 2;
  }
  syncline::device::Benchmark(static_cast<size_t>(mebibytes) << 20, repeats).Run();
}
