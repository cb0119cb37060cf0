package io.syncline.testing;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** Calls methods by the name they have in the description of the API, and keeps count. */
public final class Calls {
  private static final Set<Method> CALLED = ConcurrentHashMap.newKeySet();

  private Calls() {}

  /**
   * Calls the public method {@code name}, "all_reduce" for allReduce, of an object, or of a class
   * if it is static, that takes these arguments.
   */
  public static Object call(Object target, String name, Object... arguments) throws Exception {
    final Class<?> type = target instanceof Class<?> own ? own : target.getClass();
    final List<Method> fitting =
        Arrays.stream(type.getMethods())
            .filter(method -> method.getName().equals(javaName(name)) && !method.isBridge())
            .filter(method -> fits(method, arguments))
            .toList();
    if (fitting.size() != 1) {
      throw new AssertionError(
          fitting.size() + " methods " + type.getSimpleName() + "." + name + " fit "
              + Arrays.deepToString(arguments) + ": " + fitting);
    }
    final Method method = fitting.get(0);
    CALLED.add(method);
    try {
      return method.invoke(target, arguments);
    } catch (InvocationTargetException e) {
      if (e.getCause() instanceof Error error) {
        throw error;
      }
      throw (Exception) e.getCause();
    }
  }

  /** The public methods of {@code type} itself that nobody has called. */
  public static List<String> neverCalled(Class<?> type) {
    return Arrays.stream(type.getDeclaredMethods())
        .filter(method -> Modifier.isPublic(method.getModifiers()) && !method.isSynthetic())
        .filter(method -> !CALLED.contains(method))
        .map(Method::toString)
        .sorted()
        .toList();
  }

  private static String javaName(String name) {
    if (name.equals("wait")) {
      return "await";
    }
    final StringBuilder camel = new StringBuilder();
    for (String part : name.split("_")) {
      camel.append(camel.isEmpty() ? part : part.substring(0, 1).toUpperCase() + part.substring(1));
    }
    return camel.toString();
  }

  private static boolean fits(Method method, Object[] arguments) {
    final Class<?>[] types = method.getParameterTypes();
    if (types.length != arguments.length) {
      return false;
    }
    for (int i = 0; i < types.length; i++) {
      if (!fits(types[i], arguments[i])) {
        return false;
      }
    }
    return true;
  }

  private static boolean fits(Class<?> type, Object argument) {
    if (type == long.class) { // Reflection widens, too.
      return argument instanceof Long || argument instanceof Integer;
    } else if (type == int.class) {
      return argument instanceof Integer;
    } else if (type == double.class) {
      return argument instanceof Double;
    } else if (type == boolean.class) {
      return argument instanceof Boolean;
    }
    return argument == null || type.isInstance(argument);
  }
}
