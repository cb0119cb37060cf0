#include "ddp/hooks/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace syncline::ddp {
namespace {

constexpr int64_t kLanes = 16;  // Independent sums, so that the compiler can use vectors.

template <typename T>
T Dot(const T* a, const T* b, int64_t count) {
  T sums[kLanes] = {};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (int64_t i = whole; i < count; ++i) sums[i - whole] += a[i] * b[i];
  T sum = 0;
  for (T one : sums) sum += one;
  return sum;
}

template <typename T>
void AddMultiple(T factor, const T* __restrict__ from, T* __restrict__ to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// In double, so that squares of floats neither overflow nor vanish.
template <typename T>
double ExactDot(const T* a, const T* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

template <typename T>
void MultiplyRows(const T* m, MatrixShape shape, const T* q, int64_t rank, T* p) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t k = 0; k < rank; ++k) {
      p[k * shape.rows + i] = Dot(m + i * shape.cols, q + k * shape.cols, shape.cols);
    }
  }
}

template <typename T>
void MultiplyColumns(const T* m, MatrixShape shape, const T* p, int64_t rank, T* q) {
  std::fill(q, q + rank * shape.cols, T(0));
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t k = 0; k < rank; ++k) {
      AddMultiple(p[k * shape.rows + i], m + i * shape.cols, q + k * shape.cols, shape.cols);
    }
  }
}

template <typename T>
void Expand(const T* p, const T* q, int64_t rank, MatrixShape shape, int64_t limit, T* m) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    const int64_t width = std::min(shape.cols, limit - i * shape.cols);
    if (width <= 0) return;
    T* const row = m + i * shape.cols;
    const T first = p[i];
    for (int64_t j = 0; j < width; ++j) row[j] = first * q[j];
    for (int64_t k = 1; k < rank; ++k) {
      AddMultiple(p[k * shape.rows + i], q + k * shape.cols, row, width);
    }
  }
}

template <typename T>
void SubtractExpanded(const T* p, const T* q, int64_t rank, MatrixShape shape, T* m) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t k = 0; k < rank; ++k) {
      AddMultiple(-p[k * shape.rows + i], q + k * shape.cols, m + i * shape.cols, shape.cols);
    }
  }
}

template <typename T>
void Orthogonalize(T* vectors, int64_t length, int64_t rank, double epsilon) {
  constexpr double kNegligible = 64 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (int64_t k = 0; k < rank; ++k) {
    T* const vector = vectors + k * length;
    const double before = std::sqrt(ExactDot(vector, vector, length));
    // Twice, or what is left of vectors that hardly differ would be anything but orthogonal.
    for (int64_t i = 0; i < 2 * k; ++i) {
      const T* const unit = vectors + i % k * length;
      AddMultiple(static_cast<T>(-ExactDot(vector, unit, length)), unit, vector, length);
    }
    const double norm = std::sqrt(ExactDot(vector, vector, length));
    const bool vanishes = norm <= kNegligible * before || norm < std::numeric_limits<T>::min();
    const double factor = vanishes ? 0 : 1 / (norm + epsilon);  // NaN stays.
    for (int64_t i = 0; i < length; ++i) vector[i] = static_cast<T>(vector[i] * factor);
  }
}

template void MultiplyRows(const float*, MatrixShape, const float*, int64_t, float*);
template void MultiplyRows(const double*, MatrixShape, const double*, int64_t, double*);
template void MultiplyColumns(const float*, MatrixShape, const float*, int64_t, float*);
template void MultiplyColumns(const double*, MatrixShape, const double*, int64_t, double*);
template void Expand(const float*, const float*, int64_t, MatrixShape, int64_t, float*);
template void Expand(const double*, const double*, int64_t, MatrixShape, int64_t, double*);
template void SubtractExpanded(const float*, const float*, int64_t, MatrixShape, float*);
template void SubtractExpanded(const double*, const double*, int64_t, MatrixShape, double*);
template void Orthogonalize(float*, int64_t, int64_t, double);
template void Orthogonalize(double*, int64_t, int64_t, double);

}  // namespace syncline::ddp
