// How each type of the API's vocabulary (api/stub.py) crosses between Java and C++.
//
// JNI has no exceptions: a conversion that fails leaves a Java exception pending and returns any
// value; conversions do nothing while one is pending, and Call does not make the call. What C++
// throws, for want of memory above all, may pass through conversions but not through Call.
#ifndef SYNCLINE_JAVA_CONVERT_H_
#define SYNCLINE_JAVA_CONVERT_H_

#include <jni.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "java/jvm.h"
#include "syncline/interrupt.h"
#include "syncline/tensor.h"

namespace syncline::java {

// Words of the vocabulary that have no C++ type of their own.
struct Bytes;  // A std::string that is not text.
template <typename T>
struct Nullable;  // A std::shared_ptr that may be null.

// The class at the top of T's hierarchy. A handle of Java is a jlong that points to a
// std::shared_ptr<RootOf<T>::type> on the heap.
template <typename T>
struct RootOf {
  using type = T;
};

// For each type: `Java`, what stands for it in the native method that returns it; `From`, which
// takes what stands for it among its arguments; and `To`.
template <typename T, typename = void>
struct Converter;

template <typename T, typename... Args>
auto FromJava(JNIEnv* env, Args... arguments) {
  return Converter<T>::From(env, arguments...);
}

// What the handle `self` stands for; its Java class says that it is a T.
template <typename T>
T& Self(jlong self) {
  return static_cast<T&>(**reinterpret_cast<std::shared_ptr<typename RootOf<T>::type>*>(self));
}

template <typename T>
void Release(jlong self) {
  delete reinterpret_cast<std::shared_ptr<T>*>(self);
}

// Calls C++ with the elements of the tuple that `convert` makes of Java's arguments; hands back its
// result as a T. What goes wrong on the way becomes a Java exception, never one of C++. Long waits
// in the call end when this thread is interrupted.
template <typename T, typename A, typename F>
auto Call(JNIEnv* env, A convert, F call);

// The same without arguments.
template <typename T, typename F>
auto Call(JNIEnv* env, F call);

// ---- Implementation ----

template <>
struct Converter<void> {
  using Java = void;
};

template <>
struct Converter<bool> {
  using Java = jboolean;
  static bool From(JNIEnv*, jboolean value) { return value == JNI_TRUE; }
  static jboolean To(JNIEnv*, bool value) { return value ? JNI_TRUE : JNI_FALSE; }
};

template <>
struct Converter<int64_t> {
  using Java = jlong;
  static int64_t From(JNIEnv*, jlong value) { return value; }
  static jlong To(JNIEnv*, int64_t value) { return value; }
};

// A rank or a number of ranks: an int of Java, too, so it fits.
template <>
struct Converter<int> {
  using Java = jlong;
  static int From(JNIEnv*, jlong value) { return static_cast<int>(value); }
  static jlong To(JNIEnv*, int value) { return value; }
};

template <>
struct Converter<double> {
  using Java = jdouble;
  static double From(JNIEnv*, jdouble value) { return value; }
  static jdouble To(JNIEnv*, double value) { return value; }
};

template <>
struct Converter<Bytes> {
  using Java = jbyteArray;
  static std::string From(JNIEnv* env, jbyteArray value);
  static jbyteArray To(JNIEnv* env, absl::string_view value) { return NewByteArray(env, value); }
};

// In UTF-8, which the Java side makes and reads.
template <>
struct Converter<std::string> : Converter<Bytes> {};

template <>
struct Converter<std::optional<std::string>> {
  using Java = jbyteArray;
  static std::optional<std::string> From(JNIEnv* env, jbyteArray value);
  static jbyteArray To(JNIEnv* env, const std::optional<std::string>& value) {
    return value.has_value() ? NewByteArray(env, *value) : nullptr;
  }
};

// In nanoseconds; the largest number stands for infinity, the smallest for nothing.
template <>
struct Converter<absl::Duration> {
  using Java = jlong;
  static absl::Duration From(JNIEnv*, jlong value);
  static jlong To(JNIEnv*, absl::Duration value);
};

template <>
struct Converter<std::optional<absl::Duration>> {
  using Java = jlong;
  static std::optional<absl::Duration> From(JNIEnv* env, jlong value);
  static jlong To(JNIEnv* env, std::optional<absl::Duration> value);
};

template <>
struct Converter<Tensor> {
  using Java = jobject;
  static Tensor From(JNIEnv* env, jlong address, jint type, jlongArray shape);
  static jobject To(JNIEnv* env, const Tensor& value);
};

template <>
struct Converter<std::vector<Tensor>> {
  using Java = jobjectArray;
  static std::vector<Tensor> From(JNIEnv* env, jlongArray packed);
  static jobjectArray To(JNIEnv* env, const std::vector<Tensor>& value);
};

template <>
struct Converter<std::vector<int64_t>> {
  using Java = jlongArray;
  static std::vector<int64_t> From(JNIEnv* env, jlongArray value);
  static jlongArray To(JNIEnv* env, const std::vector<int64_t>& value);
};

template <>
struct Converter<std::vector<std::vector<int64_t>>> {
  using Java = jobjectArray;
  static std::vector<std::vector<int64_t>> From(JNIEnv* env, jobjectArray value);
  static jobjectArray To(JNIEnv* env, const std::vector<std::vector<int64_t>>& value);
};

template <>
struct Converter<std::vector<int>> {
  using Java = jlongArray;
  static std::vector<int> From(JNIEnv* env, jlongArray value);
  static jlongArray To(JNIEnv* env, const std::vector<int>& value);
};

template <>
struct Converter<std::vector<std::vector<int>>> {
  using Java = jobjectArray;
  static std::vector<std::vector<int>> From(JNIEnv* env, jobjectArray value);
};

template <>
struct Converter<std::vector<Bytes>> {
  using Java = jobjectArray;
  static std::vector<std::string> From(JNIEnv* env, jobjectArray value);
  static jobjectArray To(JNIEnv* env, const std::vector<std::string>& value);
};

template <>
struct Converter<std::vector<std::string>> : Converter<std::vector<Bytes>> {};

template <typename T>
struct Converter<T, std::enable_if_t<std::is_enum_v<T>>> {
  using Java = jint;
  static T From(JNIEnv*, jint value) { return static_cast<T>(value); }
  static jint To(JNIEnv*, T value) { return static_cast<jint>(value); }
};

template <typename T>
struct Converter<Nullable<T>> {
  using Root = typename RootOf<T>::type;
  using Java = jlong;
  static std::shared_ptr<T> From(JNIEnv*, jlong value) {
    if (value == 0) return nullptr;
    return std::static_pointer_cast<T>(*reinterpret_cast<std::shared_ptr<Root>*>(value));
  }
  static jlong To(JNIEnv*, std::shared_ptr<T> value) {
    if (value == nullptr) return 0;
    return reinterpret_cast<jlong>(new std::shared_ptr<Root>(std::move(value)));
  }
};

template <typename T>
struct Converter<std::shared_ptr<T>> : Converter<Nullable<T>> {};

template <typename T>
struct IsStatusOr : std::false_type {};
template <typename T>
struct IsStatusOr<absl::StatusOr<T>> : std::true_type {};

template <typename T, typename F>
auto CallOrThrow(JNIEnv* env, const F& call) {
  using Result = std::decay_t<decltype(call())>;
  using Java = typename Converter<T>::Java;
  if constexpr (std::is_void_v<Result>) {
    call();
  } else if constexpr (std::is_same_v<Result, absl::Status>) {
    const absl::Status status = call();
    if (!status.ok()) Throw(env, status);
  } else if constexpr (IsStatusOr<Result>::value) {
    auto result = call();
    if (result.ok()) {
      if constexpr (!std::is_void_v<Java>) return Converter<T>::To(env, *std::move(result));
    } else {
      Throw(env, result.status());
    }
    if constexpr (!std::is_void_v<Java>) return Java{};
  } else {
    return Converter<T>::To(env, call());
  }
}

template <typename T, typename A, typename F>
auto Call(JNIEnv* env, A convert, F call) {
  using Java = typename Converter<T>::Java;
  try {
    const auto arguments = convert();
    const auto make_call = [&] { return std::apply(call, arguments); };
    const ThreadInterrupt interrupt(env);
    const InterruptScope interruptible(interrupt);
    if (!env->ExceptionCheck()) return CallOrThrow<T>(env, make_call);
  } catch (const std::bad_alloc&) {
    ThrowOutOfMemory(env, "no memory outside the heap for a call of Syncline");
  } catch (const std::exception& error) {  // Such as that of a thread that cannot be started.
    ThrowForeign(env, error.what());
  }
  return static_cast<Java>(Java());
}

template <typename T, typename F>
auto Call(JNIEnv* env, F call) {
  return Call<T>(env, [] { return std::tuple<>(); }, std::move(call));
}

}  // namespace syncline::java

#endif  // SYNCLINE_JAVA_CONVERT_H_
