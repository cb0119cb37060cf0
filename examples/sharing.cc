// Consumes batches that sharing.py puts into a queue, and writes to an array of it.
#include <cstdint>
#include <iostream>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/tensor_queue.h"

namespace {

absl::Status Run(const char* queue_handle, const char* totals_handle) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto batches, syncline::TensorQueue::Open(queue_handle));
  SYNCLINE_ASSIGN_OR_RETURN(const auto totals, syncline::OpenShared(totals_handle));
  auto* const total = totals.data_as<double>();  // sharing.py sees what is written here.
  int count = 0;
  for (;; ++count) {
    auto batch = batches->Get(absl::Seconds(60));
    if (syncline::IsEndOfQueue(batch.status())) break;
    SYNCLINE_RETURN_IF_ERROR(batch.status());
    const syncline::Tensor& images = batch->tensors.at(0);  // float32[n, 28, 28]
    const syncline::Tensor& labels = batch->tensors.at(1);  // int64[n]
    const int64_t pixels = images.numel() / labels.numel();
    for (int64_t i = 0; i < images.numel(); ++i) {
      total[labels.data_as<int64_t>()[i / pixels]] += images.data_as<float>()[i];
    }
  }
  std::cout << "C++ has consumed " << count << " batches" << std::endl;
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: sharing QUEUE TOTALS; started by sharing.py" << std::endl;
    return 2;
  }
  const absl::Status status = Run(argv[1], argv[2]);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
