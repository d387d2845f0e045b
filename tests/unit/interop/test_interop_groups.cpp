// Tests groups of every layout. A group that was written reads back, and each kind of damage is an
// error that names the field.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "cell_oracle.hpp"
#include "fdma/io/interop/cu_seqlens_group.hpp"
#include "fdma/io/interop/hf_mask_group.hpp"
#include "fdma/io/interop/hf_padding_group.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::compiled;

// One layout: a good group, and how a group becomes a mask.
struct Layout {
  std::string name;
  InteropGroup good;
  std::function<Result<BlockMask>(const InteropGroup&)> read;
  std::vector<std::string> optional_fields;
};

// Reads a group by these two steps.
template <class Struct>
std::function<Result<BlockMask>(const InteropGroup&)> reader(
    Result<Struct> (*from_group)(const InteropGroup&),
    std::function<Result<BlockMask>(const Struct&)> import) {
  return [=](const InteropGroup& group) -> Result<BlockMask> {
    FDMA_TRY(const Struct read, from_group(group));
    return import(read);
  };
}

BlockMask good_mask() { return compiled("causal", 48, 48, {16, 16}); }

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  const BlockMask mask = good_mask();
  FlexExportOptions flex;
  flex.block = {16, 16};
  all.push_back({"flex",
                 group_from_flex(*flex_from_block_mask(mask, flex)),
                 reader<FlexBlockMask>(flex_from_group,
                                       [](const auto& read) { return block_mask_from_flex(read); }),
                 {}});
  all.push_back(
      {"flash_mask",
       group_from_flash_mask(*flash_mask_from_block_mask(mask)),
       reader<FlashMask>(flash_mask_from_group,
                         [](const auto& read) { return block_mask_from_flash_mask(read); }),
       {"q_len"}});
  BsrExportOptions bsr;
  bsr.block = {16, 16};
  all.push_back({"bsr",
                 group_from_bsr(*bsr_from_block_mask(mask, bsr)),
                 reader<BsrMatrix>(bsr_from_group,
                                   [](const auto& read) { return block_mask_from_bsr(read); }),
                 {"q_len", "kv_len"}});
  all.push_back(
      {"cu_seqlens",
       group_from_cu_seqlens(*cu_seqlens_from_block_mask(mask)),
       reader<CuSeqlens>(cu_seqlens_from_group,
                         [](const auto& read) { return block_mask_from_cu_seqlens(read); }),
       {"packed", "num_heads", "window_size", "causal"}});
  all.push_back(
      {"hf_padding",
       group_from_hf_padding(*hf_padding_from_block_mask(mask)),
       reader<HfPadding>(hf_padding_from_group,
                         [](const auto& read) { return block_mask_from_hf_padding(read); }),
       {"q_len", "num_heads"}});
  all.push_back({"hf_mask",
                 group_from_hf_mask(*hf_mask_from_block_mask(mask)),
                 reader<HfMask>(hf_mask_from_group,
                                [](const auto& read) { return block_mask_from_hf_mask(read); }),
                 {}});
  return all;
}

OwnedTable array(DType dtype, const std::vector<std::int64_t>& extents, std::size_t num_bytes) {
  OwnedTable made;
  made.dtype = dtype;
  made.rank = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), made.extents);
  made.bytes.resize(num_bytes);
  return made;
}

OwnedTable number(std::int64_t value) {
  OwnedTable made = array(DType::int64, {}, 8);
  std::memcpy(made.bytes.data(), &value, 8);
  return made;
}

// The importer gives a mask, or an error whose words contain `field`.
void expect_error(const Layout& layout, const InteropGroup& group, const std::string& field) {
  const auto mask = layout.read(group);
  ASSERT_FALSE(mask) << layout.name << ": " << field;
  EXPECT_NE(mask.error().message.find(field), std::string::npos)
      << layout.name << ": " << field << ": " << mask.error().message;
  EXPECT_TRUE(mask.error().code == ErrorCode::invalid_argument ||
              mask.error().code == ErrorCode::shape_mismatch ||
              mask.error().code == ErrorCode::unsupported)
      << layout.name << ": " << field << ": " << mask.error().message;
}

TEST(InteropGroups, ReadBackWhatWasWritten) {
  for (const Layout& layout : layouts()) {
    const auto mask = layout.read(layout.good);
    ASSERT_TRUE(mask) << layout.name << ": " << mask.error().message;
    EXPECT_TRUE(equal_cells(*mask, good_mask())) << layout.name;
  }
}

TEST(InteropGroups, RejectAFieldThatIsMissingOrUnknown) {
  for (const Layout& layout : layouts()) {
    for (const auto& [name, values] : layout.good.arrays) {
      InteropGroup group = layout.good;
      group.arrays.erase(name);
      const auto& optional = layout.optional_fields;
      const bool is_optional = std::find(optional.begin(), optional.end(), name) != optional.end();
      const bool is_table = layout.name == "flex" && layout.read(group).has_value();
      EXPECT_FALSE(is_table) << name << " alone of its table";
      if (!is_optional) expect_error(layout, group, name);
      group = layout.good;
      group.arrays[name + "s"] = values;
      expect_error(layout, group, name + "s: unknown field");
    }
    InteropGroup empty;
    EXPECT_FALSE(layout.read(empty)) << layout.name;
  }
}

TEST(InteropGroups, RejectOtherTypesAndRanks) {
  for (const Layout& layout : layouts()) {
    for (const auto& [name, values] : layout.good.arrays) {
      InteropGroup group = layout.good;
      OwnedTable& field = group.arrays[name];
      const auto count = static_cast<std::int64_t>(values.bytes.size()) / size_bytes(values.dtype);
      if (layout.name != "hf_mask") {  // there floats are a form of their own
        field.dtype = DType::float32;
        field.bytes.assign(static_cast<std::size_t>(count) * 4, std::byte{0});
        expect_error(layout, group, name + ": float32");
      } else {
        field.dtype = DType::int64;
        field.bytes.assign(static_cast<std::size_t>(count) * 8, std::byte{0});
        expect_error(layout, group, name + ": int64");
      }
      if (values.rank == 0) continue;
      group = layout.good;  // all in one dimension fewer, or one more
      OwnedTable& flat = group.arrays[name];
      flat.rank = values.rank == 1 ? 2 : 1;
      std::fill(std::begin(flat.extents), std::end(flat.extents), 1);
      flat.extents[0] = count;
      expect_error(layout, group, name);
    }
  }
}

TEST(InteropGroups, RejectSizesThatDisagree) {
  for (const Layout& layout : layouts()) {
    for (const auto& [name, values] : layout.good.arrays) {
      // Each dimension one shorter; the bytes follow.
      for (int d = 0; d < values.rank; ++d) {
        InteropGroup group = layout.good;
        OwnedTable& field = group.arrays[name];
        if (field.extents[d] == 0) continue;
        field.bytes.resize(field.bytes.size() / static_cast<std::size_t>(field.extents[d]) *
                           static_cast<std::size_t>(field.extents[d] - 1));
        --field.extents[d];
        const auto mask = layout.read(group);
        if (!mask) {
          EXPECT_FALSE(mask.error().message.empty()) << layout.name << ": " << name;
          continue;
        }
        // With fewer query rows or keys, or without a padding column, this is another good group.
        const bool is_shorter = (layout.name == "hf_mask" && d >= 2) ||
                                (layout.name == "hf_padding" && d == 1) ||
                                (layout.name == "flash_mask" && d == 2);
        EXPECT_TRUE(is_shorter) << layout.name << ": " << name << " shorter in dimension " << d;
      }
    }
  }
}

TEST(InteropGroups, RejectNumbersOutOfRange) {
  constexpr std::int64_t kNumbers[] = {-1,
                                       -2,
                                       3,
                                       49,
                                       kMaxLength,
                                       kMaxLength + 1,
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min()};
  // Every integer of every field, as each of these: an error, or a mask as the numbers say.
  for (const Layout& layout : layouts()) {
    for (const auto& [name, values] : layout.good.arrays) {
      const auto size = static_cast<std::size_t>(size_bytes(values.dtype));
      const std::size_t count = std::min<std::size_t>(values.bytes.size() / size, 64);
      for (std::size_t i = 0; i < count; ++i) {
        for (const std::int64_t replacement : kNumbers) {
          InteropGroup group = layout.good;
          std::memcpy(group.arrays[name].bytes.data() + i * size, &replacement, size);
          const bool is_long = name == "q_len" && replacement == kMaxLength;
          if (is_long) continue;  // a good mask of 2 thousand million rows
          const auto mask = layout.read(group);
          if (!mask) {
            EXPECT_FALSE(mask.error().message.empty());
          }
        }
      }
    }
  }
}

TEST(InteropGroups, RejectHugeSizes) {
  // Extents that no memory holds over no bytes at all, as an empty dimension allows.
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  for (const Layout& layout : layouts()) {
    for (const auto& [name, values] : layout.good.arrays) {
      for (int d = 0; d < values.rank; ++d) {
        InteropGroup group = layout.good;
        std::vector<std::int64_t> extents(static_cast<std::size_t>(values.rank), kHuge);
        extents[static_cast<std::size_t>(d)] = 0;
        group.arrays[name] = array(values.dtype, extents, 0);
        const auto mask = layout.read(group);
        ASSERT_FALSE(mask) << layout.name << ": " << name;
        EXPECT_FALSE(mask.error().message.empty());
      }
    }
  }
}

TEST(InteropGroups, NameTheFieldsOfEachLayout) {
  const std::vector<Layout> all = layouts();
  const auto layout = [&](const std::string& name) {
    return *std::find_if(all.begin(), all.end(), [&](const Layout& l) { return l.name == name; });
  };
  const auto expect = [&](const std::string& name, const std::string& field,
                          const OwnedTable& values, const std::string& message) {
    InteropGroup group = layout(name).good;
    group.arrays[field] = values;
    expect_error(layout(name), group, message);
  };
  expect("cu_seqlens", "causal", number(2), "causal: 2, expected 0 or 1");
  expect("cu_seqlens", "packed", number(-1), "packed: -1, expected 0 or 1");
  expect("cu_seqlens", "num_heads", number(0), "heads: 1 x 0");
  expect("cu_seqlens", "window_size", array(DType::int32, {3}, 12), "window_size: 3 entries");
  expect("cu_seqlens", "window_size", number(3), "window_size: int64 [], expected 1 dimensions");
  expect("cu_seqlens", "seqused_k", array(DType::int32, {2}, 8), "seqused_k: 2 entries");
  expect("cu_seqlens", "cu_seqlens_k", array(DType::int32, {3}, 12), "cu_seqlens_k: 3 entries");
  expect("hf_padding", "causal", number(7), "causal: 7, expected 0 or 1");
  expect("hf_padding", "q_len", number(-1), "q_len: -1, expected 0");
  expect("hf_padding", "attention_mask", array(DType::int64, {0, 48}, 0), "0 x 1");
  expect("hf_mask", "attention_mask", array(DType::float32, {1, 0, 48, 48}, 0), "1 x 0");
  expect("bsr", "index_base", number(2), "index_base: 2, expected 0 or 1");
  expect("bsr", "block_order", number(0), "block_order: 0, expected 1 (column) or 2 (row)");
}

}  // namespace
}  // namespace fdma
