// The native side of io.syncline.WorkBase.
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "io_syncline_WorkBase.h"
#include "java/convert.h"
#include "java/jvm.h"
#include "syncline/work.h"

namespace syncline::java {
namespace {

constexpr jint kSucceeded = -1;  // WorkFuture.SUCCEEDED

// Tells a WorkFuture how its operation ended.
void Settle(jobject future, const absl::Status& status) {
  JNIEnv* const env = AttachedEnv();
  if (env == nullptr) return;  // The JVM ends.
  const jint kind = status.ok() ? kSucceeded : ExceptionKind(status);
  jbyteArray message = status.ok() ? nullptr : NewByteArray(env, status.message());
  env->ExceptionClear();  // Without room for its message, the error has none.
  const ExceptionOrigin origin(env, status);
  env->ExceptionClear();  // The same of its origin.
  env->CallVoidMethod(future, GetJvm().future_settle, kind, message, origin.ranks(),
                      origin.operation(), origin.sequence());
  if (env->ExceptionCheck()) {
    env->ExceptionDescribe();
    env->ExceptionClear();
  }
  env->DeleteLocalRef(message);
}

void OnComplete(JNIEnv* env, Work& work, jobject future) {
  auto kept = std::make_shared<GlobalRef>(env, future);
  if (kept->get() == nullptr) return ThrowOutOfMemory(env, "no memory for a reference to a future");
  work.OnComplete(
      [kept = std::move(kept)](const absl::Status& status) { Settle(kept->get(), status); });
}

}  // namespace

extern "C" JNIEXPORT void JNICALL Java_io_syncline_WorkBase_onComplete(JNIEnv* env, jclass,
                                                                       jlong work, jobject future) {
  Call<void>(env, [&] { OnComplete(env, Self<Work>(work), future); });
}

}  // namespace syncline::java
