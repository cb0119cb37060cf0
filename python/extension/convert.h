// How each type of the API's vocabulary (api/stub.py) crosses between Python and C++.
#ifndef SYNCLINE_PYTHON_EXTENSION_CONVERT_H_
#define SYNCLINE_PYTHON_EXTENSION_CONVERT_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/extension/streams.h"
#include "syncline/interrupt.h"
#include "syncline/store.h"
#include "syncline/tensor.h"

namespace syncline::python {

namespace py = ::pybind11;

// Words of the vocabulary that have no C++ type of their own.
struct Bytes;  // A std::string that is not text.
template <typename T>
struct Nullable;  // A std::shared_ptr that may be null: None.

// For each type: `Cpp`, the C++ type; `From`, which raises a TypeError that names `argument` and
// says what to pass; and `To`.
template <typename T, typename = void>
struct Converter;

template <typename T>
typename Converter<T>::Cpp FromPython(py::handle value, absl::string_view argument) {
  return Converter<T>::From(value, argument);
}

template <typename T>
py::object ToPython(typename Converter<T>::Cpp value) {
  return Converter<T>::To(std::move(value));
}

// Calls C++ without the GIL; hands back its result as a T, or raises its error. Long waits in the
// call run the handlers of signals, on Python's main thread, and end if one of them raises.
template <typename T, typename F>
py::object Call(F call);

// The same for a call that makes the current streams wait, whatever its arguments.
template <typename T, typename F>
py::object CallOnKnownStreams(F call) {
  AddKnownStreams();
  return Call<T>(std::move(call));
}

// A TypeError: "`argument` must be `wanted`, not <type of value>: `hint`".
[[noreturn]] void RaiseWrongType(absl::string_view argument, absl::string_view wanted,
                                 py::handle value, absl::string_view hint = "");

// ---- Implementation ----

template <>
struct Converter<bool> {
  using Cpp = bool;
  static bool From(py::handle value, absl::string_view argument);
  static py::object To(bool value) { return py::bool_(value); }
};

template <>
struct Converter<int64_t> {
  using Cpp = int64_t;
  static int64_t From(py::handle value, absl::string_view argument);
  static py::object To(int64_t value) { return py::int_(value); }
};

// A rank or a number of ranks.
template <>
struct Converter<int> {
  using Cpp = int;
  static int From(py::handle value, absl::string_view argument);
  static py::object To(int value) { return py::int_(value); }
};

template <>
struct Converter<double> {
  using Cpp = double;
  static double From(py::handle value, absl::string_view argument);
  static py::object To(double value) { return py::float_(value); }
};

template <>
struct Converter<std::string> {
  using Cpp = std::string;
  static std::string From(py::handle value, absl::string_view argument);
  static py::object To(absl::string_view value);
};

template <>
struct Converter<Bytes> {
  using Cpp = std::string;
  static std::string From(py::handle value, absl::string_view argument);
  static py::object To(absl::string_view value) { return py::bytes(value.data(), value.size()); }
};

template <>
struct Converter<absl::Duration> {
  using Cpp = absl::Duration;
  static absl::Duration From(py::handle value, absl::string_view argument);
  static py::object To(absl::Duration value);
};

template <>
struct Converter<Tensor> {
  using Cpp = Tensor;
  static Tensor From(py::handle value, absl::string_view argument);
  static py::object To(Tensor value);
};

template <typename T>
struct Converter<std::optional<T>> {
  using Cpp = std::optional<typename Converter<T>::Cpp>;
  static Cpp From(py::handle value, absl::string_view argument) {
    if (value.is_none()) return std::nullopt;
    return FromPython<T>(value, argument);
  }
  static py::object To(Cpp value) {
    return value.has_value() ? ToPython<T>(*std::move(value)) : py::none();
  }
};

// The items of a list or of what serves as one; not of a str, which is one by accident.
std::vector<py::object> Items(py::handle list, absl::string_view argument);

template <typename T>
struct Converter<std::vector<T>> {
  using Cpp = std::vector<typename Converter<T>::Cpp>;
  static Cpp From(py::handle value, absl::string_view argument) {
    const std::vector<py::object> items = Items(value, argument);
    Cpp result;
    result.reserve(items.size());
    for (const py::object& item : items) {
      result.push_back(FromPython<T>(item, absl::StrCat(argument, "[", result.size(), "]")));
    }
    return result;
  }
  static py::object To(Cpp value) {
    py::list result;
    for (auto& item : value) result.append(ToPython<T>(std::move(item)));
    return std::move(result);
  }
};

template <typename T>
struct Converter<std::shared_ptr<T>> {
  using Cpp = std::shared_ptr<T>;
  static Cpp From(py::handle value, absl::string_view argument) {
    if (py::isinstance<T>(value)) return value.cast<Cpp>();
    const auto name = py::cast<std::string>(py::type::of<T>().attr("__name__"));
    RaiseWrongType(argument, absl::StrCat("a ", name), value);
  }
  static py::object To(Cpp value) { return py::cast(DroppedWithoutGil(std::move(value))); }
};

// Besides ours, an object of Python that has the methods of a store (python_store.h).
template <>
struct Converter<std::shared_ptr<Store>> {
  using Cpp = std::shared_ptr<Store>;
  static Cpp From(py::handle value, absl::string_view argument);
  static py::object To(Cpp value);
};

template <typename T>
struct Converter<Nullable<T>> {
  using Cpp = std::shared_ptr<T>;
  static Cpp From(py::handle value, absl::string_view argument) {
    if (value.is_none()) return nullptr;
    return FromPython<std::shared_ptr<T>>(value, argument);
  }
  static py::object To(Cpp value) {
    return value == nullptr ? py::none() : ToPython<std::shared_ptr<T>>(std::move(value));
  }
};

// Enums are ordinary ones of Python, made by DefineEnum: the class and its members, by value. They
// live as long as the process, like the types of pybind11.
struct EnumInPython {
  py::handle type;
  std::vector<py::handle> members;
};

EnumInPython MakeEnum(py::module_& module, const char* name,
                      std::initializer_list<const char*> members, const char* doc);
int64_t EnumValue(py::handle member, const EnumInPython& known, absl::string_view argument);

template <typename T>
EnumInPython& EnumOf() {
  static auto* const known = new EnumInPython;
  return *known;
}

template <typename T>
void DefineEnum(py::module_& module, const char* name, std::initializer_list<const char*> members,
                const char* doc) {
  EnumOf<T>() = MakeEnum(module, name, members, doc);
}

template <typename T>
struct Converter<T, std::enable_if_t<std::is_enum_v<T>>> {
  using Cpp = T;
  static T From(py::handle value, absl::string_view argument) {
    return static_cast<T>(EnumValue(value, EnumOf<T>(), argument));
  }
  static py::object To(T value) {
    return py::reinterpret_borrow<py::object>(EnumOf<T>().members[static_cast<size_t>(value)]);
  }
};

template <typename T>
struct IsStatusOr : std::false_type {};
template <typename T>
struct IsStatusOr<absl::StatusOr<T>> : std::true_type {};

// Raises what a handler of a signal has raised during the call, which may have succeeded.
inline void RaiseIfInterrupted() {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

template <typename F>
auto WithoutGil(F& call) {
  GilReleased released;
  const InterruptScope interruptible(&CheckSignals);
  return call();
}

template <typename T, typename F>
py::object Call(F call) {
  using Result = decltype(call());
  CallStreams* const arguments = CallStreams::Innermost();
  CallStreams::All streams;
  if (arguments != nullptr) streams = arguments->Take();
  const auto on_streams = [&] { return OnStreams(streams.own, call); };
  if constexpr (std::is_void_v<Result>) {
    WithoutGil(on_streams);
    RaiseIfInterrupted();
    return py::none();
  } else {
    auto result = WithoutGil(on_streams);
    RaiseIfInterrupted();
    if (!streams.others.empty()) JoinOthers(streams);
    if constexpr (std::is_same_v<Result, absl::Status>) {
      RaiseIfError(result);
      return py::none();
    } else if constexpr (IsStatusOr<Result>::value) {
      RaiseIfError(result.status());
      return ToPython<T>(*std::move(result));
    } else {
      return ToPython<T>(std::move(result));
    }
  }
}

}  // namespace syncline::python

#endif  // SYNCLINE_PYTHON_EXTENSION_CONVERT_H_
