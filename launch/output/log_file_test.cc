// LogFile and LineFilter.
#include "launch/output/log_file.h"

#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/output/line_filter.h"
#include "launch/output/prefix.h"

namespace syncline::launch {
namespace {

using testing::HasSubstr;

class LogFileTest : public testing::Test {
 protected:
  LogFileTest() : folder_(testing::TempDir() + "/log-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~LogFileTest() override { std::filesystem::remove_all(folder_); }

  LogFile Open(int64_t rotate_bytes = 0, int rotate_keep = 5) {
    LogFile::Options options;
    options.path = folder_ + "/deep/er/log";
    options.rotate_bytes = rotate_bytes;
    options.rotate_keep = rotate_keep;
    absl::StatusOr<LogFile> file = LogFile::Open(options);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  std::string Text(const std::string& suffix = "") {
    std::ifstream file(folder_ + "/deep/er/log" + suffix, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  bool Exists(const std::string& suffix) {
    return std::filesystem::exists(folder_ + "/deep/er/log" + suffix);
  }

  std::string folder_;
};

TEST_F(LogFileTest, TakesAnyBytesAndAppends) {
  const std::string bytes("a\0\xff\xfe\r\n no end", 13);
  EXPECT_TRUE(Open().Write(bytes).ok());
  EXPECT_TRUE(Open().Write("more").ok());
  EXPECT_EQ(Text(), bytes + "more");
}

TEST_F(LogFileTest, RotatesAtLineEnds) {
  LogFile file = Open(20);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(file.Write(absl::StrCat("line ", i, "\n")).ok());
  EXPECT_EQ(Text(".2"), "line 0\nline 1\n");
  EXPECT_EQ(Text(".1"), "line 2\nline 3\n");
  EXPECT_EQ(Text(), "line 4\nline 5\n");
}

TEST_F(LogFileTest, OnePieceMayFillSeveralFiles) {
  LogFile file = Open(10);
  EXPECT_TRUE(file.Write("aaaa\nbbbb\ncccc\ndddd\neeee\n").ok());
  EXPECT_EQ(Text(".2"), "aaaa\nbbbb\n");
  EXPECT_EQ(Text(".1"), "cccc\ndddd\n");
  EXPECT_EQ(Text(), "eeee\n");
}

TEST_F(LogFileTest, KeepsOnlySoManyOldFiles) {
  LogFile file = Open(6, 2);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(file.Write(absl::StrCat("line", i, "\n")).ok());
  EXPECT_EQ(Text(".2"), "line6\n");
  EXPECT_EQ(Text(".1"), "line7\n");
  EXPECT_EQ(Text(), "line8\n");
  EXPECT_FALSE(Exists(".3"));
}

TEST_F(LogFileTest, MayKeepNone) {
  LogFile file = Open(6, 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(file.Write(absl::StrCat("line", i, "\n")).ok());
  EXPECT_EQ(Text(), "line2\n");
  EXPECT_FALSE(Exists(".1"));
}

TEST_F(LogFileTest, ALineThatComesInPiecesStaysWhole) {
  LogFile file = Open(10);
  for (const char* piece : {"12345678", "9abcde", "f\nnext\n"}) EXPECT_TRUE(file.Write(piece).ok());
  EXPECT_EQ(Text(".1"), "123456789abcdef\n");
  EXPECT_EQ(Text(), "next\n");
}

TEST_F(LogFileTest, ALineWithoutEndIsCut) {
  LogFile file = Open(10, 1000);
  const std::string piece(10000, 'x');
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(file.Write(piece).ok());
  const auto largest = static_cast<size_t>(10 + LogFile::kLineSlack);
  EXPECT_EQ(Text(".1").size(), largest);
  EXPECT_EQ(Text(".15").size(), largest);
  EXPECT_FALSE(Exists(".16"));
}

TEST_F(LogFileTest, CountsWhatTheFileHadBefore) {
  EXPECT_TRUE(Open(10).Write("12345678\n").ok());
  EXPECT_TRUE(Open(10).Write("abc\n").ok());
  EXPECT_EQ(Text(".1"), "12345678\n");
  EXPECT_EQ(Text(), "abc\n");
}

TEST_F(LogFileTest, GrowsOnIfItCannotBeRotated) {
  LogFile file = Open(6, 1);
  std::filesystem::create_directories(folder_ + "/deep/er/log.1/full");
  EXPECT_TRUE(file.Write("line0\n").ok());
  EXPECT_THAT(file.Write("line1\n").message(), HasSubstr("cannot be rotated"));
  EXPECT_TRUE(file.Write("line2\n").ok());
  EXPECT_EQ(Text(), "line0\nline1\nline2\n");
}

TEST_F(LogFileTest, AFullDiskLosesBytesAndTheFileSaysHowMany) {
  std::signal(SIGXFSZ, SIG_IGN);
  LogFile file = Open();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status first = file.Write("0123456789abc\n");
  const absl::Status second = file.Write("more\n");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(first.message(), HasSubstr("cannot be written: File too large"));
  EXPECT_TRUE(second.ok());
  EXPECT_TRUE(file.Write("after\n").ok());
  EXPECT_EQ(Text(),
            "0123456789\n[syncline-run: 9 bytes are missing here: the file could not be written]\n"
            "after\n");
}

TEST_F(LogFileTest, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_ + "/deep") << "a file";
  LogFile::Options options;
  options.path = folder_ + "/deep/log";
  EXPECT_THAT(LogFile::Open(options).status().message(), HasSubstr("Not a directory"));
}

TEST_F(LogFileTest, AFilterCopiesTheWholeLinesThatContainAnyOfItsWords) {
  LogFile file = Open();
  LineFilter zero({"loss", "acc"}, "[rank0]: ", file);
  LineFilter one({"loss"}, "[rank1]: ", file);
  EXPECT_TRUE(zero.Feed("epoch 1\nlo").ok());
  EXPECT_TRUE(one.Feed("the loss\r\nnothing\n").ok());
  EXPECT_TRUE(zero.Feed("ss 0.5\nacc 1").ok());
  EXPECT_TRUE(zero.End().ok());
  EXPECT_TRUE(one.End().ok());
  EXPECT_EQ(Text(), "[rank1]: the loss\n[rank0]: loss 0.5\n[rank0]: acc 1\n");
}

TEST_F(LogFileTest, AFilterLooksAtAnEndlessLineInPieces) {
  LogFile file = Open();
  LineFilter filter({"needle"}, "", file);
  const std::string hay(LineFilter::kMaxLine, 'x');
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(filter.Feed(hay).ok());
  EXPECT_TRUE(filter.Feed("needle\nend\n").ok());
  EXPECT_TRUE(filter.End().ok());
  EXPECT_EQ(Text(), "needle\n");
}

}  // namespace
}  // namespace syncline::launch
