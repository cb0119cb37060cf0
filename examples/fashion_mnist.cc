// Data-parallel training without any framework: a perceptron on Fashion-MNIST.
//   ./bazelw build //examples:fashion_mnist
//   ./bazelw run //launch:run -- --standalone --nproc-per-node=2 --no-python
//   bazel-bin/examples/fashion_mnist
//
// The backward pass writes each gradient to its place in the reducer's buckets and says so: the
// gradients of a layer travel while those of the layer before are still being computed.
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/world.h"

ABSL_FLAG(std::string, data, "", "the folder of the four .gz files; //launch:run brings them");
ABSL_FLAG(int, epochs, 5, "passes over the training images");
ABSL_FLAG(int, batch_size, 240, "images of a step, over all processes");
ABSL_FLAG(double, learning_rate, 0.05, "falls to 0 at the end");
ABSL_FLAG(int64_t, limit, 60000, "train on the first so many images");

namespace {

using syncline::Reducer;
using syncline::Tensor;
using Floats = std::vector<float>;

constexpr int64_t kWidths[] = {784, 256, 128, 10};
constexpr int64_t kLayers = 3, kPixels = 784, kClasses = 10;
constexpr float kPixelMean = 72.94f;  // Of the training images.

// ---- Data ----

struct Images {
  Floats pixels;                // [n, 784], of mean 0.
  std::vector<uint8_t> labels;  // [n]
  int64_t count() const { return static_cast<int64_t>(labels.size()); }
};

// Up to `limit` bytes of a gzipped file, without its header.
absl::StatusOr<std::vector<uint8_t>> ReadGzip(const std::string& path, int64_t header,
                                              int64_t limit) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, " cannot be opened"));
  std::vector<uint8_t> bytes(header + limit);
  const int size = gzread(file.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
  if (size < header) return absl::DataLossError(absl::StrCat(path, " cannot be read"));
  return std::vector<uint8_t>(bytes.begin() + header, bytes.begin() + size);
}

// The first `limit` images of "train" or "t10k".
absl::StatusOr<Images> Load(const std::string& folder, const std::string& split, int64_t limit) {
  const std::string prefix = absl::StrCat(folder, "/", split);
  SYNCLINE_ASSIGN_OR_RETURN(
      auto pixels, ReadGzip(absl::StrCat(prefix, "-images-idx3-ubyte.gz"), 16, limit * kPixels));
  Images images;
  SYNCLINE_ASSIGN_OR_RETURN(images.labels,
                            ReadGzip(absl::StrCat(prefix, "-labels-idx1-ubyte.gz"), 8, limit));
  images.pixels.reserve(pixels.size());
  for (uint8_t pixel : pixels) images.pixels.push_back((pixel - kPixelMean) / 255);
  return images;
}

// --data, or the folder among the files that Bazel hands to //launch:run.
absl::StatusOr<std::string> FindData() {
  if (!absl::GetFlag(FLAGS_data).empty()) return absl::GetFlag(FLAGS_data);
  const char* const runfiles = std::getenv("SYNCLINE_RUNFILES");
  const std::string root = absl::StrCat(runfiles != nullptr ? runfiles : ".", "/fashion_mnist");
  std::error_code error;
  for (const auto& file : std::filesystem::recursive_directory_iterator(root, error)) {
    if (file.path().filename() == "train-images-idx3-ubyte.gz") {
      return file.path().parent_path().string();
    }
  }
  return absl::NotFoundError(
      "Fashion-MNIST was not found: start with //launch:run, or pass --data");
}

// ---- Arithmetic: plain loops that compilers vectorise; matrices are row-major ----

// c[m, n] += a[m, k] * b[k, n], four rows of b at a time.
void AddProduct(const float* a, const float* b, float* __restrict c, int64_t m, int64_t k,
                int64_t n) {
  for (int64_t i = 0; i < m; ++i, a += k, c += n) {
    int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      const float x0 = a[p], x1 = a[p + 1], x2 = a[p + 2], x3 = a[p + 3];
      const float *b0 = b + p * n, *b1 = b0 + n, *b2 = b1 + n, *b3 = b2 + n;
      for (int64_t j = 0; j < n; ++j) c[j] += x0 * b0[j] + x1 * b1[j] + x2 * b2[j] + x3 * b3[j];
    }
    for (; p < k; ++p) {
      for (int64_t j = 0; j < n; ++j) c[j] += a[p] * b[p * n + j];
    }
  }
}

Floats Transposed(const float* a, int64_t rows, int64_t columns) {
  Floats result(rows * columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) result[j * rows + i] = a[i * columns + j];
  }
  return result;
}

// ---- The model ----

struct Evaluation {
  double loss = 0;  // Summed over images.
  int64_t correct = 0;
};

// ReLU between the layers, softmax cross-entropy after the last.
class Perceptron {
 public:
  Perceptron() {
    std::mt19937 generator(1);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      std::normal_distribution<float> normal(0, std::sqrt(2.0f / kWidths[layer]));
      Floats weight(kWidths[layer] * kWidths[layer + 1]);
      for (float& w : weight) w = normal(generator);
      parameters_.push_back(std::move(weight));
      parameters_.emplace_back(kWidths[layer + 1]);
    }
    for (const Floats& parameter : parameters_) velocity_.emplace_back(parameter.size());
  }

  // Weight, bias, weight, bias, ...: views, which the model must outlive.
  std::vector<Tensor> Parameters() {
    std::vector<Tensor> views;
    for (int64_t i = 0; i < 2 * kLayers; ++i) {
      const Tensor flat = Tensor::Of(parameters_[i]);
      views.push_back(i % 2 == 0 ? flat.Reshape({kWidths[i / 2], kWidths[i / 2 + 1]}) : flat);
    }
    return views;
  }

  static std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      names.push_back(absl::StrCat("layer", layer, ".weight"));
      names.push_back(absl::StrCat("layer", layer, ".bias"));
    }
    return names;
  }

  // Keeps the activations of `count` images for Backward.
  Evaluation Forward(Floats pixels, const std::vector<uint8_t>& labels) {
    const int64_t count = static_cast<int64_t>(labels.size());
    activations_ = {std::move(pixels)};
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t in = kWidths[layer], out = kWidths[layer + 1];
      const Floats& bias = parameters_[2 * layer + 1];
      Floats z(count * out);
      for (int64_t i = 0; i < count; ++i) std::copy(bias.begin(), bias.end(), &z[i * out]);
      AddProduct(activations_.back().data(), parameters_[2 * layer].data(), z.data(), count, in,
                 out);
      if (layer + 1 < kLayers) {
        for (float& x : z) x = std::max(x, 0.0f);
      }
      activations_.push_back(std::move(z));
    }
    return Softmax(labels);
  }

  // Hands the gradients of `scale` * summed loss to the reducer, those of the last layer first.
  absl::Status Backward(const std::vector<uint8_t>& labels, float scale, Reducer& reducer) {
    const int64_t count = static_cast<int64_t>(labels.size());
    Floats delta = activations_[kLayers];  // Of the softmax.
    for (int64_t i = 0; i < count; ++i) delta[i * kClasses + labels[i]] -= 1;
    for (float& d : delta) d *= scale;
    for (int64_t layer = kLayers - 1; layer >= 0; --layer) {
      const int64_t in = kWidths[layer], out = kWidths[layer + 1];
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor bias, reducer.gradient(2 * layer + 1));
      std::fill_n(bias.data_as<float>(), out, 0.0f);
      for (int64_t i = 0; i < count * out; ++i) bias.data_as<float>()[i % out] += delta[i];
      SYNCLINE_RETURN_IF_ERROR(reducer.MarkReady(2 * layer + 1));

      SYNCLINE_ASSIGN_OR_RETURN(const Tensor weight, reducer.gradient(2 * layer));
      std::fill_n(weight.data_as<float>(), in * out, 0.0f);
      const Floats inputs = Transposed(activations_[layer].data(), count, in);
      AddProduct(inputs.data(), delta.data(), weight.data_as<float>(), in, count, out);
      SYNCLINE_RETURN_IF_ERROR(reducer.MarkReady(2 * layer));
      if (layer == 0) break;

      Floats before(count * in);
      const Floats transposed = Transposed(parameters_[2 * layer].data(), in, out);
      AddProduct(delta.data(), transposed.data(), before.data(), count, out, in);
      for (int64_t i = 0; i < count * in; ++i) before[i] *= activations_[layer][i] > 0 ? 1 : 0;
      delta = std::move(before);
    }
    return absl::OkStatus();
  }

  // Stochastic gradient descent with momentum, by what the reducer has averaged.
  absl::Status Step(const Reducer& reducer, float rate) {
    for (int64_t i = 0; i < 2 * kLayers; ++i) {
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor average, reducer.gradient(i));
      const float* gradient = average.data_as<float>();
      for (size_t j = 0; j < parameters_[i].size(); ++j) {
        velocity_[i][j] = 0.9f * velocity_[i][j] + gradient[j];
        parameters_[i][j] -= rate * velocity_[i][j];
      }
    }
    return absl::OkStatus();
  }

 private:
  // Turns the last activations into probabilities.
  Evaluation Softmax(const std::vector<uint8_t>& labels) {
    Evaluation result;
    float* row = activations_.back().data();
    for (size_t i = 0; i < labels.size(); ++i, row += kClasses) {
      const float* largest = std::max_element(row, row + kClasses);
      result.correct += largest - row == labels[i];
      const float offset = *largest;
      for (int64_t j = 0; j < kClasses; ++j) row[j] = std::exp(row[j] - offset);
      const float sum = std::accumulate(row, row + kClasses, 0.0f);
      for (int64_t j = 0; j < kClasses; ++j) row[j] /= sum;
      result.loss -= std::log(row[labels[i]] + 1e-12f);
    }
    return result;
  }

  std::vector<Floats> parameters_, velocity_;
  std::vector<Floats> activations_;  // The images, and what each layer makes of them.
};

// ---- Training ----

// The images of `all` with these numbers.
std::pair<Floats, std::vector<uint8_t>> Pick(const Images& all, const std::vector<int64_t>& part) {
  std::pair<Floats, std::vector<uint8_t>> picked;
  for (int64_t i : part) {
    const auto first = all.pixels.begin() + i * kPixels;
    picked.first.insert(picked.first.end(), first, first + kPixels);
    picked.second.push_back(all.labels[i]);
  }
  return picked;
}

// This rank's images of step `step`: every size-th of the batch.
std::vector<int64_t> PartOf(const std::vector<int64_t>& order, int64_t step, int64_t rank,
                            int64_t size) {
  const int64_t batch = absl::GetFlag(FLAGS_batch_size);
  std::vector<int64_t> part;
  for (int64_t i = rank; i < batch; i += size) part.push_back(order[step * batch + i]);
  return part;
}

// One pass over the images in an order of its own. Returns the mean loss over all ranks.
absl::StatusOr<double> TrainEpoch(syncline::World& world, const Images& images, int epoch,
                                  Perceptron& model, Reducer& reducer) {
  const int64_t batch = absl::GetFlag(FLAGS_batch_size), steps = images.count() / batch;
  std::vector<int64_t> order(images.count());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(epoch));
  // The reducer averages over ranks; what is wanted is the sum over the batch by its size.
  const float scale = static_cast<float>(world.size()) / static_cast<float>(batch);
  double loss = 0;
  for (int64_t step = 0; step < steps; ++step) {
    auto [pixels, labels] = Pick(images, PartOf(order, step, world.rank(), world.size()));
    loss += model.Forward(std::move(pixels), labels).loss;
    SYNCLINE_RETURN_IF_ERROR(model.Backward(labels, scale, reducer));
    SYNCLINE_RETURN_IF_ERROR(reducer.Finish());
    const double done = epoch - 1 + static_cast<double>(step) / steps;
    const double rate =
        absl::GetFlag(FLAGS_learning_rate) * (1 - done / absl::GetFlag(FLAGS_epochs));
    SYNCLINE_RETURN_IF_ERROR(model.Step(reducer, static_cast<float>(rate)));
  }
  std::vector<double> total = {loss};
  SYNCLINE_RETURN_IF_ERROR(world.group()->AllReduce(Tensor::Of(total)));
  return total[0] / static_cast<double>(std::max<int64_t>(1, steps * batch));
}

// The share of images that the model knows; each rank looks at its part of them.
absl::StatusOr<double> Accuracy(syncline::World& world, const Images& images, Perceptron& model) {
  std::vector<int64_t> part, correct = {0};
  for (int64_t i = world.rank(); i < images.count(); i += world.size()) part.push_back(i);
  auto [pixels, labels] = Pick(images, part);
  correct[0] = model.Forward(std::move(pixels), labels).correct;
  SYNCLINE_RETURN_IF_ERROR(world.group()->AllReduce(Tensor::Of(correct)));
  return static_cast<double>(correct[0]) / static_cast<double>(images.count());
}

// An error, on all ranks, unless all weights are bitwise those of rank 0.
absl::Status CheckEqualWeights(syncline::World& world, Perceptron& model) {
  std::vector<int64_t> differing = {0};
  for (const Tensor& parameter : model.Parameters()) {
    const Tensor first = Tensor::Zeros(parameter.dtype(), parameter.shape());
    std::memcpy(first.data(), parameter.data(), parameter.nbytes());
    SYNCLINE_RETURN_IF_ERROR(world.group()->Broadcast(first, 0));
    differing[0] += std::memcmp(first.data(), parameter.data(), parameter.nbytes()) != 0;
  }
  SYNCLINE_RETURN_IF_ERROR(world.group()->AllReduce(Tensor::Of(differing)));
  if (differing[0] == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(differing[0], " weights differ from those of rank 0"));
}

absl::Status Run() {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string folder, FindData());
  SYNCLINE_ASSIGN_OR_RETURN(const Images train, Load(folder, "train", absl::GetFlag(FLAGS_limit)));
  SYNCLINE_ASSIGN_OR_RETURN(const Images test, Load(folder, "t10k", 10000));

  SYNCLINE_ASSIGN_OR_RETURN(auto world, syncline::World::Init({}));  // env://, as launchers set it
  Perceptron model;
  SYNCLINE_RETURN_IF_ERROR(world->group()->BroadcastCoalesced(model.Parameters(), 0));
  Reducer::Options options;
  options.names = Perceptron::Names();
  options.caps.first = 100 << 10;
  options.caps.others = 500 << 10;
  SYNCLINE_ASSIGN_OR_RETURN(auto reducer,
                            Reducer::Create(world->group(), model.Parameters(), options));
  for (int epoch = 1; epoch <= absl::GetFlag(FLAGS_epochs); ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    SYNCLINE_ASSIGN_OR_RETURN(const double loss, TrainEpoch(*world, train, epoch, model, *reducer));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    SYNCLINE_ASSIGN_OR_RETURN(const double accuracy, Accuracy(*world, test, model));
    if (world->rank() == 0) {
      std::cout << absl::StrFormat("epoch %d: loss %.6f, test accuracy %.2f%%, %.1f s\n", epoch,
                                   loss, 100 * accuracy, time.count())
                << std::flush;
    }
  }
  SYNCLINE_RETURN_IF_ERROR(CheckEqualWeights(*world, model));
  if (world->rank() == 0) {
    std::cout << reducer->stats().ToString() << "weights bitwise equal on all " << world->size()
              << " ranks" << std::endl;
  }
  world->Close();
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
