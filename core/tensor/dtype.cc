#include "syncline/dtype.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncline/status.h"

namespace syncline {
namespace {

enum class Category { kBool, kInteger, kFloating, kComplex };

struct Row {
  DType dtype;
  absl::string_view name;
  Category category;
};

// In the order of DType's values, so that a value is its row's index.
constexpr std::array<Row, 17> kRows = {{
    {DType::kBool, "bool", Category::kBool},
    {DType::kInt8, "int8", Category::kInteger},
    {DType::kInt16, "int16", Category::kInteger},
    {DType::kInt32, "int32", Category::kInteger},
    {DType::kInt64, "int64", Category::kInteger},
    {DType::kUInt8, "uint8", Category::kInteger},
    {DType::kUInt16, "uint16", Category::kInteger},
    {DType::kUInt32, "uint32", Category::kInteger},
    {DType::kUInt64, "uint64", Category::kInteger},
    {DType::kFloat16, "float16", Category::kFloating},
    {DType::kBFloat16, "bfloat16", Category::kFloating},
    {DType::kFloat32, "float32", Category::kFloating},
    {DType::kFloat64, "float64", Category::kFloating},
    {DType::kComplex64, "complex64", Category::kComplex},
    {DType::kComplex128, "complex128", Category::kComplex},
    {DType::kFloat8E4M3, "float8_e4m3fn", Category::kFloating},
    {DType::kFloat8E5M2, "float8_e5m2", Category::kFloating},
}};

constexpr bool IsOrdered() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(IsOrdered(), "kRows must be in the order of DType's values");

const Row& RowOf(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

constexpr std::array<DType, kRows.size()> MakeAll() {
  std::array<DType, kRows.size()> all = {};
  for (size_t i = 0; i < kRows.size(); ++i) all[i] = kRows[i].dtype;
  return all;
}
constexpr std::array<DType, kRows.size()> kAll = MakeAll();

}  // namespace

absl::Span<const DType> AllDTypes() { return kAll; }

absl::string_view Name(DType dtype) { return RowOf(dtype).name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  const std::string known = absl::StrJoin(
      kRows, ", ", [](std::string* out, const Row& row) { absl::StrAppend(out, row.name); });
  return ArgumentError(absl::StrCat("'", name, "' is not an element type; choose one of: ", known));
}

bool IsInteger(DType dtype) { return RowOf(dtype).category == Category::kInteger; }

bool IsFloat8(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2; }

bool IsFloating(DType dtype) { return RowOf(dtype).category == Category::kFloating; }

}  // namespace syncline
