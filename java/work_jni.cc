// The native side of io.syncline.WorkBase.
#include <memory>

#include "absl/status/status.h"
#include "core/work.h"
#include "io_syncline_WorkBase.h"
#include "java/convert.h"
#include "java/jvm.h"

namespace syncline::java {
namespace {

// Tells a WorkFuture how its operation ended.
void Settle(jobject future, const absl::Status& status) {
  JNIEnv* const env = AttachedEnv();
  if (env == nullptr) return;  // The JVM ends.
  jbyteArray message = status.ok() ? nullptr : NewByteArray(env, status.message());
  if (!env->ExceptionCheck()) {
    const jint kind = status.ok() ? 0 : ExceptionKind(status);
    env->CallVoidMethod(future, GetJvm().future_settle, kind, message);
  }
  env->DeleteLocalRef(message);
  if (env->ExceptionCheck()) {  // No memory for a message or a thread: the future never completes.
    env->ExceptionDescribe();
    env->ExceptionClear();
  }
}

}  // namespace

extern "C" JNIEXPORT void JNICALL Java_io_syncline_WorkBase_onComplete(JNIEnv* env, jclass,
                                                                       jlong work, jobject future) {
  auto kept = std::make_shared<GlobalRef>(env, future);
  if (kept->get() == nullptr) return ThrowOutOfMemory(env, "no memory for a reference to a future");
  Self<Work>(work).OnComplete(
      [kept = std::move(kept)](const absl::Status& status) { Settle(kept->get(), status); });
}

}  // namespace syncline::java
