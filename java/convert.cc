#include "java/convert.h"

#include <limits>

#include "absl/strings/string_view.h"
#include "syncline/device.h"
#include "syncline/dtype.h"

namespace syncline::java {
namespace {

constexpr jlong kNone = std::numeric_limits<jlong>::min();
constexpr jlong kForever = std::numeric_limits<jlong>::max();
// Of Tensor: READ_ONLY, DEVICE_SHIFT, DTYPE_MASK.
constexpr jlong kReadOnly = 0x100;
constexpr int kDeviceShift = 16;
constexpr jlong kDTypeMask = 0xff;

// The numbers of io.syncline.DType.
static_assert(static_cast<int>(DType::kBool) == 0);
static_assert(static_cast<int>(DType::kUInt8) == 5);
static_assert(static_cast<int>(DType::kFloat16) == 9);
static_assert(static_cast<int>(DType::kComplex128) == 14);
static_assert(static_cast<int>(DType::kFloat8E4M3) == 15);
static_assert(static_cast<int>(DType::kFloat8E5M2) == 16);

Tensor MakeTensor(jlong address, jlong type, std::vector<int64_t> shape) {
  const int place = static_cast<int>(type >> kDeviceShift);
  const Device device = place == 0 ? Device{} : Device{DeviceType::kCuda, place - 1};
  return Tensor(reinterpret_cast<void*>(address), static_cast<DType>(type & kDTypeMask), shape, {},
                device, nullptr, (type & kReadOnly) != 0 ? Access::kReadOnly : Access::kReadWrite);
}

jint PlaceOf(const Device& device) {
  return device.type == DeviceType::kCpu ? 0 : device.index + 1;
}

// What `convert` makes of each element of an array, one local reference at a time.
template <typename T, typename F>
std::vector<T> Elements(JNIEnv* env, jobjectArray array, F convert) {
  std::vector<T> result;
  if (env->ExceptionCheck()) return result;
  const jsize size = env->GetArrayLength(array);
  result.reserve(size);
  for (jsize i = 0; i < size && !env->ExceptionCheck(); ++i) {
    jobject element = env->GetObjectArrayElement(array, i);
    result.push_back(convert(element));
    env->DeleteLocalRef(element);
  }
  return result;
}

// An array of what `convert` makes of each value; null, with an exception pending, if it fails.
template <typename T, typename F>
jobjectArray NewObjectArray(JNIEnv* env, jclass element_class, const std::vector<T>& values,
                            F convert) {
  const std::optional<jsize> size = ArrayLength(env, values.size());
  jobjectArray array =
      size.has_value() ? env->NewObjectArray(*size, element_class, nullptr) : nullptr;
  for (jsize i = 0; array != nullptr && i < *size; ++i) {
    jobject element = convert(values[i]);
    if (element == nullptr) return nullptr;
    env->SetObjectArrayElement(array, i, element);
    env->DeleteLocalRef(element);
  }
  return array;
}

}  // namespace

std::string Converter<Bytes>::From(JNIEnv* env, jbyteArray value) {
  if (env->ExceptionCheck()) return {};
  const jsize size = env->GetArrayLength(value);
  std::string bytes(size, '\0');
  env->GetByteArrayRegion(value, 0, size, reinterpret_cast<jbyte*>(bytes.data()));
  return bytes;
}

std::optional<std::string> Converter<std::optional<std::string>>::From(JNIEnv* env,
                                                                       jbyteArray value) {
  if (value == nullptr) return std::nullopt;
  return Converter<Bytes>::From(env, value);
}

absl::Duration Converter<absl::Duration>::From(JNIEnv*, jlong value) {
  return value == kForever ? absl::InfiniteDuration() : absl::Nanoseconds(value);
}

jlong Converter<absl::Duration>::To(JNIEnv*, absl::Duration value) {
  return absl::ToInt64Nanoseconds(value);  // Saturates.
}

std::optional<absl::Duration> Converter<std::optional<absl::Duration>>::From(JNIEnv* env,
                                                                             jlong value) {
  if (value == kNone) return std::nullopt;
  return Converter<absl::Duration>::From(env, value);
}

jlong Converter<std::optional<absl::Duration>>::To(JNIEnv* env,
                                                   std::optional<absl::Duration> value) {
  return value.has_value() ? Converter<absl::Duration>::To(env, *value) : kNone;
}

Tensor Converter<Tensor>::From(JNIEnv* env, jlong address, jint type, jlongArray shape) {
  std::vector<int64_t> dimensions = Converter<std::vector<int64_t>>::From(env, shape);
  if (env->ExceptionCheck()) return {};
  return MakeTensor(address, type, std::move(dimensions));
}

jobject Converter<Tensor>::To(JNIEnv* env, const Tensor& value) {
  jlongArray shape = Converter<std::vector<int64_t>>::To(
      env, std::vector<int64_t>(value.shape().begin(), value.shape().end()));
  if (shape == nullptr) return nullptr;
  auto owner = std::make_unique<std::shared_ptr<void>>(value.owner());
  const Jvm& jvm = GetJvm();
  jobject tensor = env->CallStaticObjectMethod(
      jvm.tensor, jvm.tensor_from_native, reinterpret_cast<jlong>(owner.get()),
      reinterpret_cast<jlong>(value.data()),
      static_cast<jint>(value.dtype()) | PlaceOf(value.device()) << kDeviceShift, shape);
  env->DeleteLocalRef(shape);
  if (tensor != nullptr) static_cast<void>(owner.release());  // It is the Java object's now.
  return tensor;
}

std::vector<Tensor> Converter<std::vector<Tensor>>::From(JNIEnv* env, jlongArray packed) {
  const std::vector<int64_t> numbers = Converter<std::vector<int64_t>>::From(env, packed);
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < numbers.size();) {  // See Scope.use(List).
    const auto shape = numbers.begin() + static_cast<int64_t>(i) + 3;
    const int64_t rank = numbers[i + 2];
    tensors.push_back(MakeTensor(numbers[i], numbers[i + 1], {shape, shape + rank}));
    i += 3 + static_cast<size_t>(rank);
  }
  return tensors;
}

jobjectArray Converter<std::vector<Tensor>>::To(JNIEnv* env, const std::vector<Tensor>& value) {
  return NewObjectArray(env, GetJvm().tensor, value,
                        [env](const Tensor& tensor) { return Converter<Tensor>::To(env, tensor); });
}

std::vector<int64_t> Converter<std::vector<int64_t>>::From(JNIEnv* env, jlongArray value) {
  static_assert(sizeof(jlong) == sizeof(int64_t));
  if (env->ExceptionCheck()) return {};
  const jsize size = env->GetArrayLength(value);
  std::vector<int64_t> numbers(size);
  env->GetLongArrayRegion(value, 0, size, reinterpret_cast<jlong*>(numbers.data()));
  return numbers;
}

jlongArray Converter<std::vector<int64_t>>::To(JNIEnv* env, const std::vector<int64_t>& value) {
  const std::optional<jsize> size = ArrayLength(env, value.size());
  jlongArray array = size.has_value() ? env->NewLongArray(*size) : nullptr;
  if (array == nullptr) return nullptr;
  env->SetLongArrayRegion(array, 0, *size, reinterpret_cast<const jlong*>(value.data()));
  return array;
}

std::vector<int> Converter<std::vector<int>>::From(JNIEnv* env, jlongArray value) {
  const std::vector<int64_t> numbers = Converter<std::vector<int64_t>>::From(env, value);
  return {numbers.begin(), numbers.end()};
}

jlongArray Converter<std::vector<int>>::To(JNIEnv* env, const std::vector<int>& value) {
  return Converter<std::vector<int64_t>>::To(env, std::vector<int64_t>(value.begin(), value.end()));
}

std::vector<std::vector<int64_t>> Converter<std::vector<std::vector<int64_t>>>::From(
    JNIEnv* env, jobjectArray value) {
  return Elements<std::vector<int64_t>>(env, value, [env](jobject row) {
    return Converter<std::vector<int64_t>>::From(env, static_cast<jlongArray>(row));
  });
}

std::vector<std::vector<int>> Converter<std::vector<std::vector<int>>>::From(JNIEnv* env,
                                                                             jobjectArray value) {
  return Elements<std::vector<int>>(env, value, [env](jobject row) {
    return Converter<std::vector<int>>::From(env, static_cast<jlongArray>(row));
  });
}

jobjectArray Converter<std::vector<std::vector<int64_t>>>::To(
    JNIEnv* env, const std::vector<std::vector<int64_t>>& value) {
  return NewObjectArray(env, GetJvm().long_array, value, [env](const std::vector<int64_t>& row) {
    return Converter<std::vector<int64_t>>::To(env, row);
  });
}

std::vector<std::string> Converter<std::vector<Bytes>>::From(JNIEnv* env, jobjectArray value) {
  return Elements<std::string>(env, value, [env](jobject bytes) {
    return Converter<Bytes>::From(env, static_cast<jbyteArray>(bytes));
  });
}

jobjectArray Converter<std::vector<Bytes>>::To(JNIEnv* env, const std::vector<std::string>& value) {
  return NewObjectArray(env, GetJvm().byte_array, value,
                        [env](const std::string& bytes) { return NewByteArray(env, bytes); });
}

}  // namespace syncline::java
