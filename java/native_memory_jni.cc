// The native side of io.syncline.NativeMemory.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "io_syncline_NativeMemory.h"
#include "java/convert.h"
#include "java/jvm.h"
#include "syncline/dtype.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "syncline/tensor.h"

namespace syncline::java {
namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kPiece =
    1 << 17;  // Elements copied between two chances for the garbage collector.

// 0, with an OutOfMemoryError pending, if there is not so much.
jlong Allocate(JNIEnv* env, jlong bytes) {
  const size_t size = std::max<size_t>(static_cast<size_t>(bytes), 1);
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, size) != 0) {
    ThrowOutOfMemory(env, "no memory for a tensor outside the heap");
    return 0;
  }
  return reinterpret_cast<jlong>(memory);
}

// Copies all elements of `array`, piece by piece, by `region`, a function of JNIEnv.
template <typename Array, typename Element>
void CopyRegions(JNIEnv* env, jobject array, jlong address,
                 void (JNIEnv::*region)(Array, jsize, jsize, Element*)) {
  auto* const memory = reinterpret_cast<Element*>(address);
  const auto typed_array = static_cast<Array>(array);
  const int64_t size = env->GetArrayLength(typed_array);
  for (int64_t first = 0; first < size; first += kPiece) {
    const int64_t count = std::min(kPiece, size - first);
    (env->*region)(typed_array, static_cast<jsize>(first), static_cast<jsize>(count),
                   memory + first);
  }
}

}  // namespace

extern "C" {

JNIEXPORT jlong JNICALL Java_io_syncline_NativeMemory_allocate(JNIEnv* env, jclass, jlong bytes) {
  return Allocate(env, bytes);
}

JNIEXPORT jlong JNICALL Java_io_syncline_NativeMemory_allocateZeros(JNIEnv* env, jclass,
                                                                    jlong bytes) {
  const jlong address = Allocate(env, bytes);
  if (address != 0) std::memset(reinterpret_cast<void*>(address), 0, static_cast<size_t>(bytes));
  return address;
}

JNIEXPORT jlongArray JNICALL Java_io_syncline_NativeMemory_allocateShared(JNIEnv* env, jclass,
                                                                          jint dtype,
                                                                          jlongArray shape) {
  return Call<std::vector<int64_t>>(
      env, [&] { return std::tuple{FromJava<std::vector<int64_t>>(env, shape)}; },
      [&](const auto& shape) -> absl::StatusOr<std::vector<int64_t>> {
        SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor,
                                  EmptyShared(static_cast<DType>(dtype), shape));
        const auto* owner = new std::shared_ptr<void>(tensor.owner());
        return std::vector<int64_t>{reinterpret_cast<jlong>(owner),
                                    reinterpret_cast<jlong>(tensor.data())};
      });
}

JNIEXPORT jbyteArray JNICALL Java_io_syncline_NativeMemory_sharedHandle(JNIEnv* env, jclass,
                                                                        jlong address, jint type,
                                                                        jlongArray shape) {
  return Call<std::string>(
      env, [&] { return std::tuple{FromJava<Tensor>(env, address, type, shape)}; },
      [](const Tensor& tensor) { return SharedHandle(tensor); });
}

JNIEXPORT jobject JNICALL Java_io_syncline_NativeMemory_openShared(JNIEnv* env, jclass,
                                                                   jbyteArray handle) {
  return Call<Tensor>(
      env, [&] { return std::tuple{FromJava<std::string>(env, handle)}; },
      [](const std::string& handle) { return OpenShared(handle); });
}

JNIEXPORT void JNICALL Java_io_syncline_NativeMemory_free(JNIEnv*, jclass, jlong address) {
  std::free(reinterpret_cast<void*>(address));
}

JNIEXPORT void JNICALL Java_io_syncline_NativeMemory_releaseOwner(JNIEnv*, jclass, jlong owner) {
  delete reinterpret_cast<std::shared_ptr<void>*>(owner);
}

JNIEXPORT jlong JNICALL Java_io_syncline_NativeMemory_address(JNIEnv* env, jclass, jobject buffer) {
  return reinterpret_cast<jlong>(env->GetDirectBufferAddress(buffer));
}

JNIEXPORT jobject JNICALL Java_io_syncline_NativeMemory_buffer(JNIEnv* env, jclass, jlong address,
                                                               jint length) {
  return env->NewDirectByteBuffer(reinterpret_cast<void*>(address), length);
}

JNIEXPORT void JNICALL Java_io_syncline_NativeMemory_copyIn(JNIEnv* env, jclass, jobject array,
                                                            jint dtype, jlong address) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat32:
      return CopyRegions(env, array, address, &JNIEnv::GetFloatArrayRegion);
    case DType::kFloat64:
      return CopyRegions(env, array, address, &JNIEnv::GetDoubleArrayRegion);
    case DType::kInt32:
      return CopyRegions(env, array, address, &JNIEnv::GetIntArrayRegion);
    case DType::kInt64:
      return CopyRegions(env, array, address, &JNIEnv::GetLongArrayRegion);
    default:  // DType.ofArray knows no other.
      return CopyRegions(env, array, address, &JNIEnv::GetByteArrayRegion);
  }
}

JNIEXPORT void JNICALL Java_io_syncline_NativeMemory_copyOut(JNIEnv* env, jclass, jlong address,
                                                             jint dtype, jobject array) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat32:
      return CopyRegions(env, array, address, &JNIEnv::SetFloatArrayRegion);
    case DType::kFloat64:
      return CopyRegions(env, array, address, &JNIEnv::SetDoubleArrayRegion);
    case DType::kInt32:
      return CopyRegions(env, array, address, &JNIEnv::SetIntArrayRegion);
    case DType::kInt64:
      return CopyRegions(env, array, address, &JNIEnv::SetLongArrayRegion);
    default:  // DType.ofArray knows no other.
      return CopyRegions(env, array, address, &JNIEnv::SetByteArrayRegion);
  }
}

JNIEXPORT jlong JNICALL Java_io_syncline_NativeMemory_enterStream(JNIEnv*, jclass, jlong stream,
                                                                  jint device) {
  return reinterpret_cast<jlong>(
      new StreamScope({{DeviceType::kCuda, device}, reinterpret_cast<void*>(stream)}));
}

JNIEXPORT void JNICALL Java_io_syncline_NativeMemory_leaveStream(JNIEnv*, jclass, jlong scope) {
  delete reinterpret_cast<StreamScope*>(scope);
}

}  // extern "C"

}  // namespace syncline::java
