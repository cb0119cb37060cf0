package io.syncline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.syncline.testing.Ranks;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class LoggingTest {
  private record Line(Logger.Level level, String message) {}

  @AfterEach
  void reset() {
    Logging.setSink(null);
  }

  @Test
  void linesOfCppGoToTheSinkAndWhatItThrowsIsDropped() throws Exception {
    final BlockingQueue<Line> lines = new LinkedBlockingQueue<>();
    Logging.setSink(
        (level, message) -> {
          lines.add(new Line(level, message));
          throw new IllegalStateException("a bad sink");
        });
    try (HashStore store = HashStore.create()) {
      Ranks.inThreads(
          2,
          rank -> {
            if (rank == 1) { // Comes only once the other has said that it waits.
              final Line line = lines.poll(Ranks.TIMEOUT.toSeconds(), TimeUnit.SECONDS);
              assertEquals(Logger.Level.WARN, line.level());
              assertTrue(line.message().contains("rank 1"), line.message());
            }
            World.init("local", "", store, rank, 2, Ranks.TIMEOUT).close();
          });
    }
  }

  /** A second copy would not have the sink, nor the ranks of backend local, of the first. */
  @Test
  void theNativeLibraryIsLoadedOnce() throws Exception {
    NativeLibrary.load();
    final Set<String> copies = new HashSet<>();
    for (String line : Files.readAllLines(Path.of("/proc/self/maps"))) {
      if (line.contains("libsyncline_jni")) {
        copies.add(line.split("\\s+", 6)[5]);
      }
    }
    assertEquals(1, copies.size(), copies.toString());
  }
}
