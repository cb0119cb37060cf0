package io.syncline;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.function.LongFunction;

/** What values look like on the way to native code and back. */
final class Convert {
  private static final long NONE = Long.MIN_VALUE; // In place of nanoseconds.
  private static final Duration LONGEST = Duration.ofNanos(Long.MAX_VALUE);

  private Convert() {}

  static <T> T notNull(T value, String argument) {
    if (value == null) {
      throw new NullPointerException(argument + " must not be null");
    }
    return value;
  }

  static byte[] utf8(String text, String argument) {
    try {
      final ByteBuffer bytes =
          StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(notNull(text, argument)));
      return Arrays.copyOf(bytes.array(), bytes.limit());
    } catch (CharacterCodingException e) {
      throw new IllegalArgumentException(
          argument + " has half a surrogate pair, which stands for no character", e);
    }
  }

  static byte[] utf8OrNull(String text, String argument) {
    return text == null ? null : utf8(text, argument);
  }

  static byte[][] utf8(List<String> texts, String argument) {
    return notNull(texts, argument).stream().map(t -> utf8(t, argument)).toArray(byte[][]::new);
  }

  static byte[][] bytes(List<byte[]> values, String argument) {
    return notNull(values, argument).stream()
        .map(value -> notNull(value, argument))
        .toArray(byte[][]::new);
  }

  /** What native code says need not be UTF-8: it quotes users and peers. */
  static String text(byte[] utf8) {
    return utf8 == null ? null : new String(utf8, StandardCharsets.UTF_8);
  }

  static List<String> texts(byte[][] texts) {
    return Arrays.stream(texts).map(Convert::text).toList();
  }

  /** Saturated: 292 years stand for all that is longer. */
  static long nanos(Duration duration, String argument) {
    notNull(duration, argument);
    if (duration.compareTo(LONGEST) >= 0) {
      return Long.MAX_VALUE;
    }
    return duration.compareTo(LONGEST.negated()) <= 0 ? -Long.MAX_VALUE : duration.toNanos();
  }

  static long nanosOrNone(Duration duration) {
    return duration == null ? NONE : nanos(duration, "duration");
  }

  static Duration duration(long nanos) {
    return nanos == NONE ? null : Duration.ofNanos(nanos);
  }

  static long[] longs(int[] values, String argument) {
    return Arrays.stream(notNull(values, argument)).asLongStream().toArray();
  }

  static long[][] longs(int[][] values, String argument) {
    return Arrays.stream(notNull(values, argument))
        .map(row -> longs(row, argument))
        .toArray(long[][]::new);
  }

  /** A copy, which nobody else changes while native code reads it. */
  static long[][] rows(long[][] values, String argument) {
    return Arrays.stream(notNull(values, argument))
        .map(row -> notNull(row, argument))
        .toArray(long[][]::new);
  }

  static int[] ints(long[] values) {
    return Arrays.stream(values).mapToInt(Math::toIntExact).toArray();
  }

  static int[][] ints(long[][] values) {
    return Arrays.stream(values).map(Convert::ints).toArray(int[][]::new);
  }

  static <T> T orNull(long pointer, LongFunction<T> make) {
    return pointer == 0 ? null : make.apply(pointer);
  }
}
