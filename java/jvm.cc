#include "java/jvm.h"

#include <string>

#include "core/status.h"

namespace syncline::java {
namespace {

constexpr jint kVersion = JNI_VERSION_10;
constexpr jint kInterrupted = 9;  // After the values of ErrorKind.

static_assert(static_cast<int>(ErrorKind::kArgument) == 0);
static_assert(static_cast<int>(ErrorKind::kType) == 1);
static_assert(static_cast<int>(ErrorKind::kTimeout) == 2);
static_assert(static_cast<int>(ErrorKind::kNetwork) == 3);
static_assert(static_cast<int>(ErrorKind::kStore) == 4);
static_assert(static_cast<int>(ErrorKind::kBackend) == 5);
static_assert(static_cast<int>(ErrorKind::kMismatch) == 6);
static_assert(static_cast<int>(ErrorKind::kUnsupported) == 7);
static_assert(static_cast<int>(ErrorKind::kInternal) == 8);

Jvm jvm;  // Written by JNI_OnLoad only, before any other call.

// A class for ever; null, with an exception pending, if there is none.
jclass FindClass(JNIEnv* env, const char* name) {
  jclass local = env->FindClass(name);
  return local == nullptr ? nullptr : static_cast<jclass>(env->NewGlobalRef(local));
}

bool FindAll(JNIEnv* env) {
  jvm.byte_array = FindClass(env, "[B");
  jvm.long_array = FindClass(env, "[J");
  jvm.tensor = FindClass(env, "io/syncline/Tensor");
  jvm.dist_exception = FindClass(env, "io/syncline/DistException");
  jvm.out_of_memory = FindClass(env, "java/lang/OutOfMemoryError");
  jvm.thread = FindClass(env, "java/lang/Thread");
  jvm.logging = FindClass(env, "io/syncline/Logging");
  jclass future = env->FindClass("io/syncline/WorkFuture");
  if (env->ExceptionCheck()) return false;
  jvm.tensor_from_native =
      env->GetStaticMethodID(jvm.tensor, "fromNative", "(JJI[J)Lio/syncline/Tensor;");
  jvm.exception_of =
      env->GetStaticMethodID(jvm.dist_exception, "of", "(I[B)Ljava/lang/RuntimeException;");
  jvm.future_settle = env->GetMethodID(future, "settle", "(I[B)V");
  jvm.current_thread = env->GetStaticMethodID(jvm.thread, "currentThread", "()Ljava/lang/Thread;");
  jvm.is_interrupted = env->GetMethodID(jvm.thread, "isInterrupted", "()Z");
  jvm.logging_from_native = env->GetStaticMethodID(jvm.logging, "fromNative", "(I[B)V");
  return !env->ExceptionCheck();
}

// Takes the thread off the JVM when it ends.
struct Detacher {
  ~Detacher() { jvm.vm->DetachCurrentThread(); }
};

}  // namespace

const Jvm& GetJvm() { return jvm; }

JNIEnv* AttachedEnv() {
  void* env = nullptr;
  if (jvm.vm->GetEnv(&env, kVersion) == JNI_OK) return static_cast<JNIEnv*>(env);
  char name[] = "syncline-native";
  JavaVMAttachArgs arguments = {kVersion, name, nullptr};
  if (jvm.vm->AttachCurrentThreadAsDaemon(&env, &arguments) != JNI_OK) return nullptr;
  static thread_local Detacher detacher;
  static_cast<void>(detacher);
  return static_cast<JNIEnv*>(env);
}

GlobalRef::~GlobalRef() {
  JNIEnv* const env = object_ == nullptr ? nullptr : AttachedEnv();
  if (env != nullptr) env->DeleteGlobalRef(object_);
}

jbyteArray NewByteArray(JNIEnv* env, absl::string_view bytes) {
  const auto size = static_cast<jsize>(bytes.size());
  jbyteArray array = env->NewByteArray(size);
  if (array == nullptr) return nullptr;
  env->SetByteArrayRegion(array, 0, size, reinterpret_cast<const jbyte*>(bytes.data()));
  return array;
}

jint ExceptionKind(const absl::Status& status) {
  if (absl::IsCancelled(status)) return kInterrupted;
  return static_cast<jint>(KindOf(status));
}

void Throw(JNIEnv* env, const absl::Status& status) {
  if (env->ExceptionCheck()) return;
  jbyteArray message = NewByteArray(env, status.message());
  if (message == nullptr) return;
  jobject exception = env->CallStaticObjectMethod(jvm.dist_exception, jvm.exception_of,
                                                  ExceptionKind(status), message);
  if (env->ExceptionCheck()) return;  // One of making it.
  env->DeleteLocalRef(message);
  env->Throw(static_cast<jthrowable>(exception));
  env->DeleteLocalRef(exception);
}

void ThrowOutOfMemory(JNIEnv* env, const char* message) {
  if (!env->ExceptionCheck()) env->ThrowNew(jvm.out_of_memory, message);
}

absl::Status ThreadInterrupt::operator()() const {
  jobject thread = env_->CallStaticObjectMethod(jvm.thread, jvm.current_thread);
  const bool failed = env_->ExceptionCheck();
  const bool interrupted =
      failed || env_->CallBooleanMethod(thread, jvm.is_interrupted) == JNI_TRUE;
  if (!interrupted && !env_->ExceptionCheck()) {
    env_->DeleteLocalRef(thread);
    return absl::OkStatus();
  }
  return absl::CancelledError(
      "the wait was interrupted by Thread.interrupt; what it waited for goes on");
}

}  // namespace syncline::java

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* vm, void*) {
  using namespace syncline::java;  // NOLINT: the one function outside the namespace.
  void* env = nullptr;
  if (vm->GetEnv(&env, kVersion) != JNI_OK) return JNI_ERR;
  jvm.vm = vm;
  return FindAll(static_cast<JNIEnv*>(env)) ? kVersion : JNI_ERR;
}
