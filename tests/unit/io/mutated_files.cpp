// Structures are found by their first bytes: signatures such as TREE, SNOD, HEAP and OHDR. Object
// headers of version 1 have no signature; the addresses in symbol table nodes lead to them.
#include "mutated_files.hpp"

#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include "fdma/io/interop_group.hpp"
#include "fdma/io/mask_file.hpp"
#include "h5_edits.hpp"
#include "io/hdf5/h5_handle.hpp"
#include "mask_fixtures.hpp"

// These functions are HDF5's own; they make the checksums of files right.
extern "C" std::uint32_t H5_checksum_metadata(const void* data, std::size_t bytes,
                                              std::uint32_t start);

namespace fdma::testing {
namespace {

constexpr std::uint64_t kUndefined = ~std::uint64_t{0};

template <class T>
T load(const std::string& bytes, std::size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <class T>
void store(std::string& bytes, std::size_t at, T value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(bytes.data() + at, &value, sizeof value);
}

std::vector<std::size_t> positions_of(const std::string& bytes, std::string_view signature) {
  std::vector<std::size_t> found;
  for (std::size_t at = bytes.find(signature); at != std::string::npos;
       at = bytes.find(signature, at + 1)) {
    found.push_back(at);
  }
  return found;
}

// Returns the headers of version 1 that symbol table nodes and the superblock name.
std::vector<std::size_t> old_headers(const std::string& bytes) {
  std::vector<std::size_t> headers;
  const auto add = [&](std::uint64_t at) {
    if (at > 0 && at + 16 < bytes.size() && bytes[at] == 1) {
      headers.push_back(static_cast<std::size_t>(at));
    }
  };
  add(load<std::uint64_t>(bytes, 64));
  for (const std::size_t node : positions_of(bytes, "SNOD")) {
    const auto count = std::min<std::size_t>(load<std::uint16_t>(bytes, node + 6), 64);
    for (std::size_t i = 0; i < count; ++i) add(load<std::uint64_t>(bytes, node + 16 + 40 * i));
  }
  return headers;
}

struct Message {
  std::size_t begin;  ///< of its own header
  std::size_t body;
  std::size_t size;
};

// Returns the messages in the first block of an object header of version 1.
std::vector<Message> messages_of(const std::string& bytes, std::size_t header) {
  std::vector<Message> messages;
  const std::size_t end =
      std::min<std::size_t>(bytes.size(), header + 16 + load<std::uint32_t>(bytes, header + 8));
  for (std::size_t at = header + 16; at + 8 <= end;) {
    const std::size_t size = load<std::uint16_t>(bytes, at + 2);
    messages.push_back({at, at + 8, std::min(size, end - at - 8)});
    at += 8 + size;
  }
  return messages;
}

// Returns the place of the checksum of a new object header, at the end of its first block.
std::optional<std::size_t> checksum_of(const std::string& bytes, std::size_t header) {
  const auto flags = static_cast<unsigned char>(load<char>(bytes, header + 5));
  std::size_t at = header + 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
  const std::size_t width = std::size_t{1} << (flags & 3);
  std::uint64_t size = load<std::uint64_t>(bytes, at);
  if (width < 8) size &= (std::uint64_t{1} << (8 * width)) - 1;
  at += width;
  if (size > bytes.size() || at + size + 4 > bytes.size()) return std::nullopt;
  return at + static_cast<std::size_t>(size);
}

void repair_checksums(std::string& bytes) {
  if (bytes.size() > 48 && bytes[8] >= 2) {
    store(bytes, 44, H5_checksum_metadata(bytes.data(), 44, 0));
  }
  for (const std::size_t header : positions_of(bytes, "OHDR")) {
    if (const auto at = checksum_of(bytes, header)) {
      store(bytes, *at, H5_checksum_metadata(bytes.data() + header, *at - header, 0));
    }
  }
}

class Mutator {
 public:
  Mutator(std::string& bytes, const std::string& other, std::mt19937_64& random)
      : bytes_(bytes), other_(other), random_(random) {}

  void apply(Mutation mutation) {
    if (bytes_.empty()) return;
    switch (mutation) {
      case Mutation::flip_bits:
        for (std::uint64_t i = 1 + below(8); i > 0; --i) {
          bytes_[below(bytes_.size())] ^= static_cast<char>(1 << below(8));
        }
        return;
      case Mutation::set_bytes: {
        const std::size_t at = near_structure();
        for (std::uint64_t i = 1 + below(8); i > 0; --i) {
          constexpr std::array<unsigned char, 6> kBytes = {0, 1, 2, 0x7f, 0x80, 0xff};
          const std::size_t place = std::min(at + below(64), bytes_.size() - 1);
          bytes_[place] = static_cast<char>(below(2) == 0 ? below(256) : kBytes[below(6)]);
        }
        return;
      }
      case Mutation::change_message:
        return change_message();
      case Mutation::change_address:
        return change_number([&](std::uint64_t value) {
          return value == kUndefined || (value >= 8 && value <= bytes_.size());
        });
      case Mutation::change_size:
        return change_number([](std::uint64_t value) { return value > 0 && value < 100000; });
      case Mutation::change_structure: {
        constexpr std::array<std::size_t, 4> kWidths = {1, 2, 4, 8};
        const std::size_t width = kWidths[below(4)];
        return set(near_structure() + below(12) * width, width);
      }
      case Mutation::truncate:
        if (below(8) == 0)
          return bytes_.append(1 + below(4096), static_cast<char>(below(256))), void();
        return bytes_.resize(below(2) == 0 ? below(bytes_.size())
                                           : bytes_.size() - 1 -
                                                 below(std::min<std::size_t>(bytes_.size(), 512)));
      case Mutation::splice: {
        const std::string& from = below(2) == 0 ? bytes_ : other_;
        const std::string piece =
            from.substr(below(from.size()), 1 + below(below(4) == 0 ? 2048 : 64));
        const std::size_t at = below(bytes_.size());
        if (below(4) == 0) return bytes_.insert(at, piece), void();
        bytes_.replace(at, std::min(piece.size(), bytes_.size() - at),
                       piece.substr(0, bytes_.size() - at));
        return;
      }
    }
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  // Returns a number with which programs often fail.
  std::uint64_t number(std::uint64_t old) {
    switch (below(12)) {
      case 0:
        return 0;
      case 1:
        return 1;
      case 2:
        return kUndefined;
      case 3:
        return kUndefined - below(16);
      case 4:
        return old + 1;
      case 5:
        return old - 1;
      case 6:
        return bytes_.size() - below(64);
      case 7:
        return below(bytes_.size());
      case 8:
        return std::uint64_t{1} << below(64);
      case 9:
        return (std::uint64_t{1} << below(64)) - 1;
      case 10:
        return old ^ (std::uint64_t{1} << below(64));
      default:
        return random_() >> below(64);
    }
  }

  void set(std::size_t at, std::size_t width) {
    if (at + width > bytes_.size()) return;
    std::uint64_t old = 0;
    std::memcpy(&old, bytes_.data() + at, width);
    const std::uint64_t value = number(old);
    std::memcpy(bytes_.data() + at, &value, width);
  }

  std::size_t near_structure() {
    std::vector<std::size_t> places{0, 8};
    for (const char* signature : {"TREE", "SNOD", "HEAP", "OHDR", "OCHK", "FRHP", "FHDB", "BTHD",
                                  "BTLF", "FAHD", "FADB", "GCOL"}) {
      const auto found = positions_of(bytes_, signature);
      places.insert(places.end(), found.begin(), found.end());
    }
    const auto headers = old_headers(bytes_);
    places.insert(places.end(), headers.begin(), headers.end());
    return places[below(places.size())];
  }

  void change_message() {
    const std::vector<std::size_t> headers = old_headers(bytes_);
    if (headers.empty()) {  // the newer layout: any place in a header
      const auto found = positions_of(bytes_, "OHDR");
      if (!found.empty()) set(found[below(found.size())] + 6 + below(200), 1 + below(2) * 3);
      return;
    }
    const std::vector<Message> messages = messages_of(bytes_, headers[below(headers.size())]);
    if (messages.empty()) return;
    const Message& message = messages[below(messages.size())];
    switch (below(5)) {
      case 0:
        return store(bytes_, message.begin, static_cast<std::uint16_t>(below(26)));
      case 1:
        return set(message.begin + 2, 2);
      case 2:
        return set(message.begin + 4, 1);
      default: {
        constexpr std::array<std::size_t, 4> kWidths = {1, 2, 4, 8};
        const std::size_t width = kWidths[below(4)];
        return set(message.body + below(std::max<std::size_t>(message.size / width, 1)) * width,
                   width);
      }
    }
  }

  // Changes a number of eight bytes for which `is_likely` holds.
  void change_number(const std::function<bool(std::uint64_t)>& is_likely) {
    for (int tries = 0; tries < 500; ++tries) {
      const std::size_t at = below(bytes_.size() / 8) * 8;
      const auto old = load<std::uint64_t>(bytes_, at);
      if (is_likely(old)) return set(at, 8);
    }
  }

  std::string& bytes_;
  const std::string& other_;
  std::mt19937_64& random_;
};

std::vector<std::int8_t> causal_values(std::int64_t q_len, std::int64_t kv_len) {
  std::vector<std::int8_t> values;
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < kv_len; ++k) values.push_back(k <= q ? 1 : 0);
  }
  return values;
}

void add_mask_files(const std::string& path, std::vector<SeedFile>& seeds) {
  for (const MaskFormat format : kMaskFormats) {
    BlockMask mask = make_mask(format);
    mask.spec = "causal";
    if (!write_masks(path, {{"m", mask}})) std::abort();
    seeds.push_back({SeedKind::mask, std::string(to_string(format)), read_bytes(path)});
  }
  if (!write_masks(path, {{"m", make_pattern_mask()}})) std::abort();
  seeds.push_back({SeedKind::mask, "patterns", read_bytes(path)});
  // The masks are large enough that arrays are chunked, shuffled and deflated.
  BlockMask large;
  large.shape.q_lens = {900};
  large.shape.kv_lens = {1000};
  large.group_of = {0};
  large.is_per_batch = large.is_per_head = true;
  large.groups = std::vector<DenseBits>{dense_of(make_cells(
      900, 1000, [](std::int64_t q, std::int64_t k) { return (q * 7 + k * k) % 5 < 2; }))};
  if (!write_masks(path, {{"m", large}})) std::abort();
  seeds.push_back({SeedKind::mask, "dense deflated", read_bytes(path)});
}

void add_dense_files(const std::string& path, std::vector<SeedFile>& seeds) {
  struct Kind {
    const char* name;
    bool chunked, shuffle, deflate, fletcher, newest, half;
  };
  constexpr Kind kKinds[] = {
      {"contiguous", false, false, false, false, false, false},
      {"float16", false, false, false, false, false, true},
      {"chunked", true, false, false, false, false, false},
      {"gzip", true, false, true, false, false, false},
      {"shuffle gzip float16", true, true, true, false, false, true},
      {"gzip fletcher32", true, false, true, true, false, false},
      {"fletcher32", true, false, false, true, false, false},
      {"newest contiguous", false, false, false, false, true, false},
      {"newest shuffle gzip fletcher32", true, true, true, true, true, false},
  };
  const std::vector<std::int8_t> values = causal_values(96, 80);
  const std::vector<hsize_t> extents{96, 80};
  for (const Kind& kind : kKinds) {
    const io::Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    if (kind.newest) H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get());
    const io::Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t chunk[2] = {32, 40};
    if (kind.chunked) H5Pset_chunk(creation.get(), 2, chunk);
    if (kind.shuffle) H5Pset_shuffle(creation.get());
    if (kind.deflate) H5Pset_deflate(creation.get(), 6);
    if (kind.fletcher) H5Pset_fletcher32(creation.get());
    const Type type(kind.half ? make_half_type(H5T_ORDER_LE) : H5Tcopy(H5T_STD_U8LE));
    const hid_t space = H5Screate_simple(2, extents.data(), nullptr);
    const hid_t dataset =
        H5Dcreate2(file, "mask", type, space, H5P_DEFAULT, creation.get(), H5P_DEFAULT);
    // The mask is additive: 0 keeps a key, also where a conversion leaves zeros.
    std::vector<float> additive;
    for (const std::int8_t value : values) additive.push_back(value != 0 ? 0.0f : -65504.0f);
    const herr_t written =
        kind.half
            ? H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, additive.data())
            : H5Dwrite(dataset, H5T_NATIVE_INT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    if (written < 0) std::abort();
    H5Dclose(dataset);
    H5Sclose(space);
    H5Fclose(file);
    seeds.push_back({SeedKind::dense, kind.name, read_bytes(path)});
  }
}

void add_interop_files(const std::string& path, std::vector<SeedFile>& seeds) {
  BlockMask mask;
  mask.block = {16, 16};
  mask.shape.q_lens = {48};
  mask.shape.kv_lens = {64};
  mask.group_of = {0};
  mask.groups = std::vector<SegmentMask>{segment_of(
      make_cells(48, 64, [](std::int64_t q, std::int64_t k) { return k <= q; }), mask.block)};
  FlexExportOptions flex_options;
  flex_options.block = mask.block;
  const auto flex = flex_from_block_mask(mask, flex_options);
  const auto flash = flash_mask_from_block_mask(mask);
  BsrExportOptions bsr_options;
  bsr_options.block = mask.block;
  const auto bsr = bsr_from_block_mask(mask, bsr_options);
  if (!flex || !flash || !bsr) std::abort();
  const std::pair<SeedKind, InteropGroup> groups[] = {
      {SeedKind::flex, group_from_flex(*flex)},
      {SeedKind::flash_mask, group_from_flash_mask(*flash)},
      {SeedKind::bsr, group_from_bsr(*bsr)}};
  for (const auto& [kind, group] : groups) {
    if (!write_interop_group(path, "/mask", group)) std::abort();
    seeds.push_back({kind, "group", read_bytes(path)});
  }
}

}  // namespace

std::vector<SeedFile> seed_files(const std::string& folder) {
  const std::string path = folder + "/seed.h5";
  std::vector<SeedFile> seeds;
  add_mask_files(path, seeds);
  add_dense_files(path, seeds);
  add_interop_files(path, seeds);
  return seeds;
}

std::string mutated(const std::string& bytes, const std::string& other, Mutation mutation,
                    std::mt19937_64& random) {
  std::string result = bytes;
  Mutator mutator(result, other, random);
  for (std::uint64_t i = 1 + random() % 3; i > 0; --i) mutator.apply(mutation);
  if (random() % 2 == 0) repair_checksums(result);
  return result;
}

}  // namespace fdma::testing
