// Tests adding masks to files and removing them. Everything else in the files stays.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "fdma/formats/hash.hpp"
#include "fdma/io/file_contents.hpp"
#include "fdma/io/mask_file.hpp"
#include "h5_edits.hpp"
#include "mask_fixtures.hpp"

namespace fdma {
namespace {

using ::testing::ElementsAre;
using testing::FileEdit;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_mask;
using testing::TemporaryFolder;

std::vector<NamedMask> one(const std::string& name, MaskFormat format) {
  return {{name, make_mask(format)}};
}

void expect_mask(const std::string& path, const std::string& name, MaskFormat format) {
  const auto read = read_mask(path, name);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(content_hash(*read), content_hash(make_mask(format))) << name;
}

std::vector<std::string> names_of(const std::string& path) {
  const auto names = list_masks(path);
  return names ? *names : std::vector<std::string>{names.error().message};
}

TEST(AddMasks, KeepsTheMasksThatAreThere) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  const auto first = add_masks(path, one("bcsr", MaskFormat::bcsr));
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE(first->is_new_file);
  for (const MaskFormat format : kMaskFormats) {
    if (format == MaskFormat::bcsr) continue;
    const auto added = add_masks(path, one(std::string(to_string(format)), format));
    ASSERT_TRUE(added) << added.error().message;
    EXPECT_FALSE(added->is_new_file);
    EXPECT_THAT(added->replaced, IsEmpty());
    EXPECT_EQ(added->names, names_of(path));
  }
  EXPECT_THAT(names_of(path),
              ElementsAre("bcsr", "bitset", "columns", "dense", "parametric", "segment"));
  for (const MaskFormat format : kMaskFormats) {
    expect_mask(path, std::string(to_string(format)), format);
  }
  EXPECT_THAT(folder.names(), ElementsAre("m.h5"));
}

TEST(AddMasks, WritesANewFileAsWriteMasksDoes) {
  const TemporaryFolder folder;
  ASSERT_TRUE(add_masks(folder.file("a.h5"), one("m", MaskFormat::bitset)));
  ASSERT_TRUE(write_masks(folder.file("b.h5"), one("m", MaskFormat::bitset)));
  testing::write_bytes(folder.file("empty.h5"), "");
  const auto added = add_masks(folder.file("empty.h5"), one("m", MaskFormat::bitset));
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_TRUE(added->is_new_file);
  const std::string bytes = testing::read_bytes(folder.file("b.h5"));
  EXPECT_EQ(testing::read_bytes(folder.file("a.h5")), bytes);
  EXPECT_EQ(testing::read_bytes(folder.file("empty.h5")), bytes);
}

TEST(AddMasks, RejectsANameThatIsThere) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(add_masks(path, one("a", MaskFormat::bcsr)));
  const std::string before = testing::read_bytes(path);
  const auto again = add_masks(path, one("a", MaskFormat::dense));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(again.error().message, HasSubstr("m.h5' holds a mask 'a' already"));
  EXPECT_EQ(testing::read_bytes(path), before);
  EXPECT_THAT(folder.names(), ElementsAre("m.h5"));
}

TEST(AddMasks, OverwritesOneMaskAndTakesNoMoreRoom) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(
      path, {{"a", make_mask(MaskFormat::bcsr)}, {"b", make_mask(MaskFormat::segment)}}));
  std::size_t size = 0;
  for (int i = 0; i < 4; ++i) {
    const auto added =
        add_masks(path, one("a", MaskFormat::dense), {.overwrite = true, .write = {}});
    ASSERT_TRUE(added) << added.error().message;
    EXPECT_THAT(added->replaced, ElementsAre("a"));
    EXPECT_THAT(added->names, ElementsAre("a", "b"));
    if (i > 0) {
      EXPECT_EQ(testing::read_bytes(path).size(), size);
    }
    size = testing::read_bytes(path).size();
  }
  expect_mask(path, "a", MaskFormat::dense);
  expect_mask(path, "b", MaskFormat::segment);
}

TEST(AddMasks, RejectsFilesThatHoldNoMasksUnlessTheyAreToBeReplaced) {
  const TemporaryFolder folder;
  testing::write_bytes(folder.file("text"), "notes of somebody\n");
  const std::int64_t values[] = {1, 2, 3};
  FileEdit::create(folder.file("data.h5"))
      .dataset("x", H5T_STD_I64LE, H5T_NATIVE_INT64, {3}, values);
  for (const char* name : {"text", "data.h5"}) {
    const std::string path = folder.file(name);
    const std::string before = testing::read_bytes(path);
    const auto refused =
        add_masks(path, one("a", MaskFormat::bcsr), {.overwrite = true, .write = {}});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("is no mask file of FDMA"));
    EXPECT_EQ(testing::read_bytes(path), before);
    const auto added =
        add_masks(path, one("a", MaskFormat::bcsr), {.replace_file = true, .write = {}});
    ASSERT_TRUE(added) << added.error().message;
    EXPECT_TRUE(added->replaced_file);
    EXPECT_THAT(names_of(path), ElementsAre("a"));
  }
}

// The file holds weights, attributes and a user block beside the masks.
std::string file_of_others(const TemporaryFolder& folder) {
  std::string path = folder.file("model.h5");
  EXPECT_TRUE(write_masks(
      path, {{"a", make_mask(MaskFormat::bcsr)}, {"b", make_mask(MaskFormat::segment)}}));
  FileEdit edit(path);
  const std::int64_t values[] = {11, 12, 13};
  edit.group("layer");
  edit.dataset("layer/w", H5T_STD_I64LE, H5T_NATIVE_INT64, {3}, values);
  edit.attribute("/", "author", "somebody");
  return path;
}

TEST(AddMasks, KeepsWhateverElseTheFileHolds) {
  const TemporaryFolder folder;
  const std::string path = file_of_others(folder);
  ASSERT_TRUE(add_masks(path, one("c", MaskFormat::columns)));
  ASSERT_TRUE(add_masks(path, one("a", MaskFormat::dense), {.overwrite = true, .write = {}}));
  const auto left = remove_masks(path, {"b"});
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_THAT(*left, ElementsAre("a", "c"));
  expect_mask(path, "a", MaskFormat::dense);
  expect_mask(path, "c", MaskFormat::columns);
  const auto contents = list_datasets(path);
  ASSERT_TRUE(contents) << contents.error().message;
  EXPECT_EQ(contents->datasets.front().path, "/layer/w");
  EXPECT_EQ(contents->datasets.front().type, "int64");
  EXPECT_THAT(contents->datasets.front().extents, ElementsAre(3));
  FileEdit edit(path);
  EXPECT_GT(H5Aexists(edit.id(), "author"), 0);
}

TEST(RemoveMasks, KeepsTheOthersAndGivesTheRoomBack) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, one("a", MaskFormat::bcsr)));
  const std::size_t alone = testing::read_bytes(path).size();
  ASSERT_TRUE(add_masks(path, one("b", MaskFormat::dense)));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const auto left = remove_masks(path, {"b", "b"});
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_THAT(*left, ElementsAre("a"));
  EXPECT_LE(testing::read_bytes(path).size(), alone);
  expect_mask(path, "a", MaskFormat::bcsr);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(RemoveMasks, LeavesAnEmptyMaskFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, one("a", MaskFormat::bcsr)));
  const auto left = remove_masks(path, {"a"});
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_THAT(*left, IsEmpty());
  EXPECT_THAT(names_of(path), IsEmpty());
  ASSERT_TRUE(add_masks(path, one("b", MaskFormat::bcsr)));
  EXPECT_THAT(names_of(path), ElementsAre("b"));
}

TEST(RemoveMasks, RejectsWhatIsNotThere) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  EXPECT_EQ(remove_masks(path, {"a"}).error().code, ErrorCode::io);
  ASSERT_TRUE(write_masks(path, one("a", MaskFormat::bcsr)));
  const std::string before = testing::read_bytes(path);
  const auto removed = remove_masks(path, {"a", "z"});
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code, ErrorCode::io);
  EXPECT_THAT(removed.error().message, HasSubstr("holds no mask 'z'; it holds: a"));
  EXPECT_EQ(testing::read_bytes(path), before);
}

TEST(AddMasks, ManyWritersOfOneFileLoseNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  constexpr int kWriters = 8, kEach = 5;
  std::vector<pid_t> children;
  for (int writer = 0; writer < kWriters; ++writer) {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0; i < kEach; ++i) {
        const std::string name = std::to_string(writer) + "-" + std::to_string(i);
        if (!add_masks(path, one(name, MaskFormat::bcsr))) _exit(1);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(names_of(path).size(), std::size_t{kWriters * kEach});
  EXPECT_THAT(folder.names(), ElementsAre("m.h5"));
}

TEST(AddMasks, ThreadsOfOneProcessWaitForEachOther) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back(
        [&path, i] { EXPECT_TRUE(add_masks(path, one(std::to_string(i), MaskFormat::bcsr))); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(names_of(path).size(), 6u);
}

TEST(AddMasks, RejectsAFileThatIsOpenForWriting) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.h5");
  ASSERT_TRUE(write_masks(path, one("a", MaskFormat::bcsr)));
  const int writer = open(path.c_str(), O_RDWR);
  ASSERT_EQ(flock(writer, LOCK_EX), 0);  // as HDF5 does
  const auto added = add_masks(path, one("b", MaskFormat::bcsr));
  close(writer);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::io);
  EXPECT_THAT(added.error().message, HasSubstr("open for writing"));
  EXPECT_TRUE(add_masks(path, one("b", MaskFormat::bcsr)));
}

// The test runs in a child process, because limits cannot be raised again.
TEST(AddMasks, LeavesTheFileOnAFullDisk) {
  const TemporaryFolder folder;
  const std::string pure = folder.file("m.h5");
  ASSERT_TRUE(write_masks(pure, one("a", MaskFormat::bcsr)));
  const std::string mixed = file_of_others(folder);
  for (const std::string& path : {pure, mixed}) {
    const std::string before = testing::read_bytes(path);
    for (const rlim_t limit : {rlim_t{0}, rlim_t{2048}, rlim_t{before.size()}}) {
      const pid_t child = fork();
      if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit limits{limit, limit};
        if (setrlimit(RLIMIT_FSIZE, &limits) != 0) _exit(10);
        const auto added = add_masks(path, one("c", MaskFormat::dense));
        if (added) _exit(11);
        const bool is_full = added.error().message.find("File too large") != std::string::npos;
        _exit(added.error().code == ErrorCode::io && is_full ? 0 : 12);
      }
      int status = 0;
      waitpid(child, &status, 0);
      EXPECT_EQ(WEXITSTATUS(status), 0) << path << " limit " << limit;
      EXPECT_EQ(testing::read_bytes(path), before);
    }
  }
  EXPECT_THAT(folder.names(), ElementsAre("m.h5", "model.h5"));
}

TEST(ListDatasets, ListsWhatAForeignFileHolds) {
  const TemporaryFolder folder;
  const std::string path = folder.file("data.h5");
  const std::int64_t values[] = {1, 0, 1, 0, 1, 0};
  {
    FileEdit edit = FileEdit::create(path);
    const testing::Type boolean(testing::make_boolean_type());
    const std::int8_t truths[] = {1, 0};
    edit.group("a");
    edit.group("a/b");
    edit.dataset("a/b/x", H5T_STD_I32LE, H5T_NATIVE_INT64, {2, 3}, values);
    edit.dataset("t", boolean, boolean, {2}, truths);
    edit.dataset("s", H5T_IEEE_F32LE, H5T_NATIVE_INT64, {}, values);
    edit.soft_link("again", "/t");
    edit.external_link("outside", "other.h5", "/x");
    ASSERT_GE(H5Lcreate_hard(edit.id(), "/a", edit.id(), "/a/b/up", H5P_DEFAULT, H5P_DEFAULT), 0);
  }
  const auto first = list_datasets(path, 1);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->datasets.size(), 1u);
  EXPECT_FALSE(first->is_complete);
  const auto plain = list_datasets(path);
  ASSERT_TRUE(plain);
  EXPECT_TRUE(plain->is_complete);  // a group that holds itself is looked into once
  ASSERT_EQ(plain->datasets.size(), 3u);
  EXPECT_EQ(plain->datasets[0].path, "/a/b/x");
  EXPECT_EQ(plain->datasets[0].type, "int32");
  EXPECT_THAT(plain->datasets[0].extents, ElementsAre(2, 3));
  EXPECT_EQ(plain->datasets[1].path, "/s");
  EXPECT_THAT(plain->datasets[1].extents, IsEmpty());
  EXPECT_EQ(plain->datasets[2].type, "boolean");
}

TEST(ListDatasets, RejectsFilesThatAreNotHdf5) {
  const TemporaryFolder folder;
  testing::write_bytes(folder.file("text"), "notes\n");
  EXPECT_EQ(list_datasets(folder.file("text")).error().code, ErrorCode::corrupt_file);
  EXPECT_EQ(list_datasets(folder.file("absent")).error().code, ErrorCode::io);
}

}  // namespace
}  // namespace fdma
