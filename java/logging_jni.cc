// The native side of io.syncline.Logging.
#include "io_syncline_Logging.h"
#include "java/jvm.h"
#include "syncline/log.h"

namespace syncline::java {
namespace {

// Hands a line to Java. It is lost if the JVM has no room for it, or ends.
void LogInJava(LogLevel level, absl::string_view message) {
  JNIEnv* const env = AttachedEnv();
  if (env == nullptr || env->ExceptionCheck()) return;
  jbyteArray text = NewByteArray(env, message);
  if (text != nullptr) {
    const Jvm& jvm = GetJvm();
    env->CallStaticVoidMethod(jvm.logging, jvm.logging_from_native, static_cast<jint>(level), text);
    env->DeleteLocalRef(text);
  }
  env->ExceptionClear();
}

}  // namespace

extern "C" JNIEXPORT void JNICALL Java_io_syncline_Logging_attach(JNIEnv*, jclass) {
  static_assert(static_cast<int>(LogLevel::kDebug) == 0);  // As in Logger.Level.
  static_assert(static_cast<int>(LogLevel::kError) == 3);
  SetLogSink(LogInJava);
}

}  // namespace syncline::java
