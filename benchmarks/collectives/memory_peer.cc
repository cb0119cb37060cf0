// What the machine's memory allows: the ranks are threads of one process, which need nothing but
// their instructions to move the data. all_reduce has each of them read its share of all ranks'
// buffers and write the sum back to all of them; copy and add keep every rank to buffers of its
// own.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/collectives/harness.h"

namespace syncline::benchmarks {
namespace {

// Elements that stay in the first-level cache while all ranks' buffers are summed.
constexpr int64_t kBlock = 1024;

void Add(const float* __restrict a, const float* __restrict b, float* __restrict c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

void AddTo(float* __restrict sum, const float* __restrict a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += a[i];
}

class MemorySystem : public System {
 public:
  // `buffers` is shared by all ranks.
  MemorySystem(int rank, std::vector<float*>& buffers) : rank_(rank), buffers_(buffers) {}

  std::string Describe() const override {
    return "copy, add and all_reduce by threads of one process, which share their memory";
  }

  Function Prepare(const Call& call) override {
    switch (call.operation) {
      case Operation::kCopy:
        return [call] {
          std::memcpy(call.output, call.input, call.count * sizeof(float));
          return absl::OkStatus();
        };
      case Operation::kAdd: {
        const auto second = std::make_shared<std::vector<float>>(call.count, 1.0f);
        return [call, second] {
          Add(call.input, second->data(), call.output, call.count);
          return absl::OkStatus();
        };
      }
      case Operation::kAllReduce:
        buffers_[rank_] = call.output;  // The gate comes before anybody looks.
        return [this, call] { return AllReduce(call.count); };
      default:
        return nullptr;
    }
  }

 private:
  absl::Status AllReduce(int64_t count) const {
    const int64_t size = buffers_.size();
    const int64_t end = count * (rank_ + 1) / size;
    float sum[kBlock];
    for (int64_t at = count * rank_ / size; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      std::memcpy(sum, buffers_[0] + at, n * sizeof(float));
      for (int64_t rank = 1; rank < size; ++rank) AddTo(sum, buffers_[rank] + at, n);
      for (float* buffer : buffers_) std::memcpy(buffer + at, sum, n * sizeof(float));
    }
    return absl::OkStatus();
  }

  const int rank_;
  std::vector<float*>& buffers_;
};

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  std::vector<float*> buffers(options.size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < options.size; ++rank) {
    ranks.emplace_back([&options, &buffers, rank] {
      Options own = options;
      own.rank = rank;
      MemorySystem system(rank, buffers);
      Serve(own, system);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return 0;
}

}  // namespace
}  // namespace syncline::benchmarks

int main(int argc, char** argv) { return syncline::benchmarks::Main(argc, argv); }
