#include "java/fake_jvm.h"

#include <algorithm>
#include <cstdarg>

namespace syncline::java {
namespace {

FakeJvm* fake = nullptr;

// Notes a function of JNI that must not be called while an exception is pending.
void Enter(const char* function) {
  if (fake->pending != nullptr) fake->misused.push_back(function);
}

void SetPending(std::string class_name, std::string message) {
  fake->pending = &fake->Get(fake->New({std::move(class_name), std::move(message)}));
}

jclass FindClass(JNIEnv*, const char* name) {
  Enter("FindClass");
  if (name == fake->missing_class) {
    SetPending("java/lang/NoClassDefFoundError", name);
    return nullptr;
  }
  return static_cast<jclass>(fake->New({"java/lang/Class", name}));
}

jmethodID GetMethod(JNIEnv*, jclass, const char* name, const char*) {
  Enter("GetMethodID");
  return reinterpret_cast<jmethodID>(fake->New({"method", name}));
}

// The only one that tests come to: DistException.of.
jobject CallStaticObject(JNIEnv*, jclass, jmethodID, va_list arguments) {
  Enter("CallStaticObjectMethod");
  const jint kind = va_arg(arguments, jint);
  jobject message = va_arg(arguments, jobject);
  return fake->New({"kind " + std::to_string(kind), fake->Get(message).text});
}

jint Throw(JNIEnv*, jthrowable exception) {
  Enter("Throw");
  fake->pending = &fake->Get(exception);
  return 0;
}

jint ThrowNew(JNIEnv*, jclass thrown, const char* message) {
  Enter("ThrowNew");
  SetPending(fake->Get(thrown).text, message);
  return 0;
}

jsize GetArrayLength(JNIEnv*, jarray array) {
  Enter("GetArrayLength");
  return fake->Get(array).length;
}

jobject GetObjectArrayElement(JNIEnv*, jobjectArray array, jsize index) {
  Enter("GetObjectArrayElement");
  return fake->Get(array).elements.at(index);
}

jobjectArray NewObjectArray(JNIEnv*, jsize length, jclass, jobject) {
  Enter("NewObjectArray");
  return static_cast<jobjectArray>(fake->New({"Object[]", "", length}));
}

jbyteArray NewByteArray(JNIEnv*, jsize length) {
  Enter("NewByteArray");
  return static_cast<jbyteArray>(fake->New({"byte[]", std::string(length, '\0'), length}));
}

void SetByteArrayRegion(JNIEnv*, jbyteArray array, jsize first, jsize count, const jbyte* from) {
  Enter("SetByteArrayRegion");
  std::copy_n(from, count, fake->Get(array).text.begin() + first);
}

// Only notes that it was called: the arrays of tests are larger than memory.
void GetByteArrayRegion(JNIEnv*, jbyteArray, jsize first, jsize count, jbyte*) {
  Enter("GetByteArrayRegion");
  fake->regions.emplace_back(first, count);
}

}  // namespace

FakeJvm::FakeJvm() : env_{&functions_}, vm_{&invocations_} {
  fake = this;
  functions_.FindClass = FindClass;
  functions_.GetMethodID = GetMethod;
  functions_.GetStaticMethodID = GetMethod;
  functions_.CallStaticObjectMethodV = CallStaticObject;
  functions_.Throw = Throw;
  functions_.ThrowNew = ThrowNew;
  functions_.ExceptionCheck = [](JNIEnv*) -> jboolean { return fake->pending != nullptr; };
  functions_.NewGlobalRef = [](JNIEnv*, jobject object) { return object; };
  functions_.DeleteLocalRef = [](JNIEnv*, jobject) {};
  functions_.GetArrayLength = GetArrayLength;
  functions_.GetObjectArrayElement = GetObjectArrayElement;
  functions_.NewObjectArray = NewObjectArray;
  functions_.NewByteArray = NewByteArray;
  functions_.SetByteArrayRegion = SetByteArrayRegion;
  functions_.GetByteArrayRegion = GetByteArrayRegion;
  invocations_.GetEnv = [](JavaVM*, void** env, jint) -> jint {
    *env = fake->env();
    return JNI_OK;
  };
}

FakeJvm::~FakeJvm() { fake = nullptr; }

jobject FakeJvm::New(FakeObject object) {
  objects_.push_back(std::move(object));
  return reinterpret_cast<jobject>(&objects_.back());
}

}  // namespace syncline::java
