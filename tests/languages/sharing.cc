// Shares a tensor and a queue with programs in other languages; see sharing.py.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/tensor_queue.h"

namespace syncline {
namespace {

const absl::Duration kTimeout = absl::Seconds(60);

float SumOf(const Tensor& tensor) {
  float sum = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) sum += tensor.data_as<float>()[i];
  return sum;
}

class Program {
 public:
  absl::StatusOr<std::string> Answer(const std::vector<std::string>& words) {
    const std::string& command = words[0];
    if (command == "make") {
      SYNCLINE_ASSIGN_OR_RETURN(tensor_, EmptyShared(DType::kFloat32, {3, 5}));
      return SharedHandle(tensor_);
    }
    if (command == "open") {
      SYNCLINE_ASSIGN_OR_RETURN(tensor_, OpenShared(words[1]));
      return absl::StrCat(Name(tensor_.dtype()), "[", tensor_.shape()[0], ", ", tensor_.shape()[1],
                          "]");
    }
    if (command == "fill") {
      for (int64_t i = 0; i < tensor_.numel(); ++i) {
        tensor_.data_as<float>()[i] = std::strtof(words[1].c_str(), nullptr);
      }
      return "ok";
    }
    if (command == "sum") return absl::StrCat(SumOf(tensor_));
    if (command == "free") {
      tensor_ = Tensor();
      return "ok";
    }
    return AnswerOfQueue(words);
  }

 private:
  absl::StatusOr<std::string> AnswerOfQueue(const std::vector<std::string>& words) {
    const std::string& command = words[0];
    if (command == "make_queue") {
      SYNCLINE_ASSIGN_OR_RETURN(queue_, TensorQueue::Create({1 << 16}));
      return queue_->handle();
    }
    if (command == "open_queue") {
      SYNCLINE_ASSIGN_OR_RETURN(queue_, TensorQueue::Open(words[1]));
      return "ok";
    }
    if (command == "put") {
      std::vector<float> values(2, std::strtof(words[1].c_str(), nullptr));
      SYNCLINE_RETURN_IF_ERROR(queue_->Put({Tensor::Of(values)}, words[2], kTimeout));
      return "ok";
    }
    if (command == "get") {
      const auto message = queue_->Get(kTimeout);
      if (IsEndOfQueue(message.status())) return "end";
      SYNCLINE_RETURN_IF_ERROR(message.status());
      return absl::StrCat(SumOf(message->tensors.at(0)), " ", message->note);
    }
    SYNCLINE_RETURN_IF_ERROR(queue_->Close());
    return "ok";
  }

  Tensor tensor_;
  std::shared_ptr<TensorQueue> queue_;
};

}  // namespace
}  // namespace syncline

int main() {
  syncline::Program program;
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto answer = program.Answer(absl::StrSplit(line, ' '));
    if (answer.ok()) {
      std::cout << *answer << std::endl;
    } else {
      std::cout << "error: " << answer.status().message() << std::endl;
    }
  }
}
