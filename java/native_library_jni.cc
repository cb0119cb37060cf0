// The native side of io.syncline.NativeLibrary.
#include <jni.h>

#include <string>
#include <vector>

#include "core/backend.h"
#include "core/store.h"
#include "io_syncline_NativeLibrary.h"

namespace {

// A Java array of `names`; null, with an OutOfMemoryError pending, if the JVM has no room for it.
jobjectArray ToJava(JNIEnv* env, const std::vector<std::string>& names) {
  jclass string = env->FindClass("java/lang/String");
  if (string == nullptr) return nullptr;
  jobjectArray array = env->NewObjectArray(static_cast<jsize>(names.size()), string, nullptr);
  for (size_t i = 0; array != nullptr && i < names.size(); ++i) {
    jstring name = env->NewStringUTF(names[i].c_str());
    if (name == nullptr) return nullptr;
    env->SetObjectArrayElement(array, static_cast<jsize>(i), name);
    env->DeleteLocalRef(name);
  }
  return array;
}

}  // namespace

JNIEXPORT jobjectArray JNICALL Java_io_syncline_NativeLibrary_backends(JNIEnv* env, jclass) {
  return ToJava(env, syncline::BackendRegistry::Names());
}

JNIEXPORT jobjectArray JNICALL Java_io_syncline_NativeLibrary_stores(JNIEnv* env, jclass) {
  return ToJava(env, syncline::StoreRegistry::Names());
}
