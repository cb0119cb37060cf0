// Products of matrices with few rows or columns.
//
// Matrices lie row by row. `p` and `q` hold `rank` vectors one behind the other: the columns of an
// n x rank matrix, for n = rows and n = cols. T is float or double.
#ifndef SYNCLINE_DDP_HOOKS_LOW_RANK_H_
#define SYNCLINE_DDP_HOOKS_LOW_RANK_H_

#include <cstdint>

namespace syncline::ddp {

struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

// p = m q.
template <typename T>
void MultiplyRows(const T* m, MatrixShape shape, const T* q, int64_t rank, T* p);

// q = m' p, where m' is m transposed.
template <typename T>
void MultiplyColumns(const T* m, MatrixShape shape, const T* p, int64_t rank, T* q);

// m = p q'; the first `limit` elements only.
template <typename T>
void Expand(const T* p, const T* q, int64_t rank, MatrixShape shape, int64_t limit, T* m);

// m -= p q'.
template <typename T>
void SubtractExpanded(const T* p, const T* q, int64_t rank, MatrixShape shape, T* m);

// Makes `vectors`, `rank` of `length` elements, orthogonal to each other and 1 long, in order
// (Gram and Schmidt). `epsilon` is added to the lengths that are divided by. What hardly differs
// from a combination of those before it becomes 0.
template <typename T>
void Orthogonalize(T* vectors, int64_t length, int64_t rank, double epsilon);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_LOW_RANK_H_
