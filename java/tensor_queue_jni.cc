// The native side of io.syncline.TensorQueue.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io_syncline_TensorQueue.h"
#include "java/convert.h"
#include "java/jvm.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/tensor_queue.h"

namespace syncline::java {
namespace {

using Queue = std::shared_ptr<TensorQueue>;

absl::StatusOr<Queue> Create(int64_t capacity, int64_t max_messages) {
  if (capacity < 1) return ArgumentError("capacity must be at least 1 byte");
  return TensorQueue::Create({static_cast<size_t>(capacity), max_messages});
}

// The result of Put or, for no nanoseconds, of TryPut.
absl::StatusOr<bool> Put(TensorQueue& queue, const std::vector<Tensor>& tensors,
                         const std::string& note, absl::Duration timeout) {
  if (timeout == absl::ZeroDuration()) return queue.TryPut(tensors, note);
  SYNCLINE_RETURN_IF_ERROR(queue.Put(tensors, note, timeout));
  return true;
}

// Nothing at the end of the queue, and where there is no message for no nanoseconds.
absl::StatusOr<absl::optional<TensorQueue::Message>> Get(TensorQueue& queue,
                                                         absl::Duration timeout) {
  if (timeout == absl::ZeroDuration()) {
    auto message = queue.TryGet();
    if (IsEndOfQueue(message.status())) return absl::nullopt;
    return message;
  }
  auto message = queue.Get(timeout);
  if (IsEndOfQueue(message.status())) return absl::nullopt;
  SYNCLINE_RETURN_IF_ERROR(message.status());
  return *std::move(message);
}

}  // namespace

extern "C" {

JNIEXPORT jlong JNICALL Java_io_syncline_TensorQueue_nativeCreate(JNIEnv* env, jclass,
                                                                  jlong capacity,
                                                                  jlong max_messages) {
  return Call<Queue>(env, [&] { return Create(capacity, max_messages); });
}

JNIEXPORT jlong JNICALL Java_io_syncline_TensorQueue_nativeOpen(JNIEnv* env, jclass,
                                                                jbyteArray handle) {
  return Call<Queue>(
      env, [&] { return std::tuple{FromJava<std::string>(env, handle)}; },
      [](const std::string& handle) { return TensorQueue::Open(handle); });
}

JNIEXPORT jbyteArray JNICALL Java_io_syncline_TensorQueue_nativeHandle(JNIEnv* env, jclass,
                                                                       jlong self) {
  return Call<std::string>(env, [&] { return Self<TensorQueue>(self).handle(); });
}

JNIEXPORT jboolean JNICALL Java_io_syncline_TensorQueue_nativePut(JNIEnv* env, jclass, jlong self,
                                                                  jlongArray tensors,
                                                                  jbyteArray note, jlong nanos) {
  return Call<bool>(
      env,
      [&] {
        return std::tuple{FromJava<std::vector<Tensor>>(env, tensors), FromJava<Bytes>(env, note),
                          FromJava<absl::Duration>(env, nanos)};
      },
      [&](const std::vector<Tensor>& tensors, const std::string& note, absl::Duration timeout) {
        return Put(Self<TensorQueue>(self), tensors, note, timeout);
      });
}

JNIEXPORT jobjectArray JNICALL Java_io_syncline_TensorQueue_nativeGet(JNIEnv* env, jclass,
                                                                      jlong self, jlong nanos,
                                                                      jobjectArray note) {
  bool has_message = false;
  const auto tensors = Call<std::vector<Tensor>>(
      env, [&] { return std::tuple{FromJava<absl::Duration>(env, nanos)}; },
      [&](absl::Duration timeout) -> absl::StatusOr<std::vector<Tensor>> {
        SYNCLINE_ASSIGN_OR_RETURN(auto message, Get(Self<TensorQueue>(self), timeout));
        if (!message.has_value()) return std::vector<Tensor>();
        has_message = true;
        jbyteArray bytes = NewByteArray(env, message->note);
        if (bytes != nullptr) env->SetObjectArrayElement(note, 0, bytes);
        return std::move(message->tensors);
      });
  return has_message && !env->ExceptionCheck() ? tensors : nullptr;
}

JNIEXPORT void JNICALL Java_io_syncline_TensorQueue_nativeShutdown(JNIEnv* env, jclass,
                                                                   jlong self) {
  Call<void>(env, [&] { return Self<TensorQueue>(self).Close(); });
}

JNIEXPORT jlongArray JNICALL Java_io_syncline_TensorQueue_nativeStats(JNIEnv* env, jclass,
                                                                      jlong self) {
  return Call<std::vector<int64_t>>(env, [&] {
    const TensorQueue& queue = Self<TensorQueue>(self);
    const TensorQueue::Stats stats = queue.stats();
    return std::vector<int64_t>{stats.messages,    static_cast<int64_t>(stats.bytes),
                                stats.lost_puts,   stats.lost_gets,
                                queue.is_closed(), static_cast<int64_t>(queue.capacity())};
  });
}

JNIEXPORT void JNICALL Java_io_syncline_TensorQueue_free(JNIEnv*, jclass, jlong pointer) {
  Release<TensorQueue>(pointer);
}

}  // extern "C"

}  // namespace syncline::java
