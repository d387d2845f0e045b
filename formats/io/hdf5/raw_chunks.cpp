#include "io/hdf5/raw_chunks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "io/hdf5/dataset_storage.hpp"
#include "io/hdf5/h5_driver.hpp"

namespace fdma::io {

/// The driver's state of its file, and the notes that it takes.
struct ChunkNotes {
  int descriptor = -1;
  std::int64_t file_bytes = 0;
  bool takes_down = false;  // raw data is not read; its place is noted here
  int num_places = 0;
  haddr_t address = 0;  // of the last noted place
  std::size_t size = 0;
  std::vector<haddr_t> structures;  // addresses where metadata was read
  haddr_t tree = 0;                 // root of the version 1 B-tree of chunks, 0 if none was read
};

namespace {

using Driver = H5Driver<ChunkNotes>;

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t max_address) {
  return (flags & H5F_ACC_RDWR) == 0 ? Driver::open(name, flags, access, max_address) : nullptr;
}

// Every view is a separate file.
int compare_files(const H5FD_t* a, const H5FD_t* b) { return a < b ? -1 : (b < a ? 1 : 0); }

// No features: HDF5 asks for each structure separately.
herr_t query_features(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr) *flags = 0;
  return 0;
}

haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) {
  return static_cast<haddr_t>(Driver::as_file(file)->state->file_bytes);
}

herr_t read_bytes(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t address, size_t size,
                  void* buffer) {
  ChunkNotes& notes = *Driver::as_file(file)->state;
  if (notes.takes_down && type == H5FD_MEM_DRAW) {
    ++notes.num_places;
    notes.address = address;
    notes.size = size;
    return 0;
  }
  if (!is_inside(address, size, notes.file_bytes)) return -1;
  if (!read_exactly(notes.descriptor, static_cast<std::int64_t>(address),
                    static_cast<std::int64_t>(size), static_cast<std::byte*>(buffer))) {
    return -1;
  }
  if (type == H5FD_MEM_DRAW) return 0;
  notes.structures.push_back(address);
  // The root is read before its children, and no other dataset is opened here.
  constexpr char kTreeOfChunks[] = "TREE\1";
  if (notes.tree == 0 && size >= sizeof kTreeOfChunks &&
      std::memcmp(buffer, kTreeOfChunks, sizeof kTreeOfChunks - 1) == 0) {
    notes.tree = address;
  }
  return 0;
}

herr_t write_bytes(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

H5FD_class_t make_class() {
  H5FD_class_t driver = Driver::make_class("fdma_raw_chunks", 601);
  driver.open = open_file;
  driver.cmp = compare_files;
  driver.query = query_features;
  driver.get_eof = get_eof;
  driver.read = read_bytes;
  driver.write = write_bytes;
  return driver;
}

herr_t read_chunk(hid_t dataset, const hsize_t* offset, std::uint32_t* filter_mask) {
  std::byte nothing{};  // the driver writes nothing to it
#if H5_VERS_MAJOR >= 2
  std::size_t size = std::numeric_limits<std::size_t>::max();
  return H5Dread_chunk(dataset, H5P_DEFAULT, offset, filter_mask, &nothing, &size);
#else
  return H5Dread_chunk(dataset, H5P_DEFAULT, offset, filter_mask, &nothing);
#endif
}

// The bytes that chunks take, as few intervals where chunks are adjacent in the file.
class TakenBytes {
  static constexpr std::int64_t kBytesOfStructure = 8;

 public:
  void add(const ChunkPlace& chunk) {
    if (!taken_.empty() && taken_.back().end == chunk.address) {
      taken_.back().end += chunk.size;
    } else {
      taken_.push_back({chunk.address, chunk.address + chunk.size});
    }
  }

  /// A byte that two chunks share, or that a chunk shares with the first 8 bytes of a structure; -1
  /// if there is none.
  std::int64_t shared(std::vector<haddr_t> structures) {
    std::sort(taken_.begin(), taken_.end(), [](Bytes a, Bytes b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < taken_.size(); ++i) {
      if (taken_[i].begin < taken_[i - 1].end) return taken_[i].begin;
    }
    std::sort(structures.begin(), structures.end());
    auto structure = structures.begin();
    for (const Bytes& bytes : taken_) {
      const std::int64_t first = std::max<std::int64_t>(0, bytes.begin - kBytesOfStructure + 1);
      structure = std::lower_bound(structure, structures.end(), static_cast<haddr_t>(first));
      if (structure == structures.end()) break;
      const auto begin = static_cast<std::int64_t>(*structure);
      if (begin < bytes.end) return std::max(begin, bytes.begin);
    }
    return -1;
  }

 private:
  struct Bytes {
    std::int64_t begin;
    std::int64_t end;
  };
  std::vector<Bytes> taken_;
};

}  // namespace

RawChunks::RawChunks() : notes_(std::make_unique<ChunkNotes>()) {}
RawChunks::RawChunks(RawChunks&&) noexcept = default;
RawChunks& RawChunks::operator=(RawChunks&&) noexcept = default;
RawChunks::~RawChunks() {
  info_.dataset.reset();
  file_.reset();
}

Result<RawChunks> RawChunks::open(const InputFile& input, const std::string& dataset,
                                  const std::string& where) {
  RawChunks chunks;
  chunks.where_ = where;
  FDMA_TRY(chunks.notes_->descriptor, descriptor_of(input));
  chunks.notes_->file_bytes = input.size_bytes;
  const Handle access = Driver::access(make_class(), chunks.notes_.get());
  if (!access || H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG) < 0) {
    return hdf5_error(where, "HDF5 cannot be set up");
  }
  chunks.file_ = Handle(H5Fopen(input.path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!chunks.file_) return hdf5_error(where, "cannot open the file again");
  FDMA_TRY(chunks.info_, open_dataset(chunks.file_.get(), dataset, where));
  return chunks;
}

Result<ChunkPlace> RawChunks::find(const std::vector<std::int64_t>& begin, std::int64_t max_bytes) {
  offset_.assign(begin.begin(), begin.end());
  ChunkPlace place;
  ChunkNotes& notes = *notes_;
  notes.num_places = 0;
  notes.takes_down = true;
  const herr_t status = read_chunk(info_.dataset.get(), offset_.data(), &place.filter_mask);
  notes.takes_down = false;
  const auto wrong = [&](ErrorCode code, const std::string& text) {
    return Error{code, fmt::format("{}: chunk {} {}", where_, extents_text(begin), text)};
  };
  if (status < 0) {
    // The result of H5Dget_chunk_storage_size for a chunk that was never written depends on the
    // version.
    const std::string reason = last_reason();
    if (reason == "chunk address isn't defined") return place;
    hsize_t size = 0;
    const bool is_absent =
        H5Dget_chunk_storage_size(info_.dataset.get(), offset_.data(), &size) >= 0 && size == 0;
    H5Eclear2(H5E_DEFAULT);
    if (is_absent) return place;
    return wrong(ErrorCode::corrupt_file, fmt::format("cannot be found: {}", reason));
  }
  if (notes.num_places != 1) {
    return wrong(ErrorCode::corrupt_file,
                 fmt::format("is in {} places of the file", notes.num_places));
  }
  if (!is_inside(notes.address, notes.size, notes.file_bytes)) {
    return wrong(ErrorCode::corrupt_file,
                 fmt::format("would take bytes [{}, {} + {}), but the file has {}", notes.address,
                             notes.address, notes.size, notes.file_bytes));
  }
  if (static_cast<std::int64_t>(notes.size) > max_bytes) {
    return wrong(
        ErrorCode::corrupt_file,
        fmt::format("takes {} bytes in the file, expected {} at most", notes.size, max_bytes));
  }
  place.address = static_cast<std::int64_t>(notes.address);
  place.size = static_cast<std::int64_t>(notes.size);
  place.is_stored = true;
  return place;
}

bool RawChunks::has_tree() const { return notes_->tree != 0; }

Result<void> RawChunks::visit_tree(const ChunkVisit& visit) const {
  const Handle creation(H5Fget_create_plist(file_.get()), H5Pclose);
  std::size_t address_bytes = 0, length_bytes = 0;
  hsize_t userblock = 0;
  if (!creation || H5Pget_sizes(creation.get(), &address_bytes, &length_bytes) < 0 ||
      H5Pget_userblock(creation.get(), &userblock) < 0 || address_bytes > sizeof(haddr_t)) {
    return hdf5_error(where_, "cannot read the file's header");
  }
  ChunkTree tree;
  tree.descriptor = notes_->descriptor;
  tree.file_bytes = notes_->file_bytes;
  tree.root = static_cast<std::int64_t>(notes_->tree);
  tree.base = static_cast<std::int64_t>(userblock);
  tree.address_bytes = address_bytes;
  tree.extents = info_.extents;
  tree.chunk = info_.chunk;
  if (H5Pget_nfilters(info_.creation.get()) == 0) {
    tree.fixed_size = chunk_bytes(info_, static_cast<std::int64_t>(H5Tget_size(info_.type.get())),
                                  std::numeric_limits<std::uint32_t>::max());
  }
  return walk_chunk_tree(tree, visit, where_);
}

// The other indices keep chunks by number, or check their own bytes. A stored chunk that no look-up
// finds is missing in the count.
Result<void> RawChunks::visit_slots(const ChunkVisit& visit) {
  std::vector<std::int64_t> begin(info_.extents.size(), 0);
  for (;;) {
    FDMA_TRY(const ChunkPlace place, find(begin, std::numeric_limits<std::int64_t>::max()));
    if (place.is_stored) FDMA_TRY_VOID(visit(begin, place));
    std::size_t axis = begin.size();
    for (; axis > 0; --axis) {
      begin[axis - 1] += info_.chunk[axis - 1];
      if (begin[axis - 1] < info_.extents[axis - 1]) break;
      begin[axis - 1] = 0;
    }
    if (axis == 0) return {};
  }
}

Result<std::string> RawChunks::chunks_at(std::int64_t address) {
  std::vector<std::string> names;
  const ChunkVisit look = [&](const std::vector<std::int64_t>& begin,
                              const ChunkPlace& place) -> Result<void> {
    if (place.address <= address && address < place.address + place.size && names.size() < 2) {
      names.push_back(extents_text(begin));
    }
    return {};
  };
  FDMA_TRY_VOID(visit(look));
  return names.size() == 2 ? fmt::format("chunks {} take the same", fmt::join(names, " and "))
                           : fmt::format("chunk {} takes a structure's", fmt::join(names, " and "));
}

Result<void> RawChunks::visit(const ChunkVisit& visit) {
  if (has_tree()) return visit_tree(visit);
  return info_.num_elements > 0 ? visit_slots(visit) : Result<void>();
}

Result<std::int64_t> RawChunks::check() {
  std::int64_t num_found = 0;
  TakenBytes taken;
  const ChunkVisit add = [&](const std::vector<std::int64_t>&,
                             const ChunkPlace& place) -> Result<void> {
    ++num_found;
    taken.add(place);
    return {};
  };
  if (has_tree()) {
    FDMA_TRY_VOID(visit(add));
  } else {
    const Handle space(H5Dget_space(info_.dataset.get()), H5Sclose);
    hsize_t num_stored = 0;
    if (!space || H5Dget_num_chunks(info_.dataset.get(), space.get(), &num_stored) < 0) {
      return hdf5_error(where_, "cannot count its chunks");
    }
    if (num_stored > 0) FDMA_TRY_VOID(visit(add));
    if (num_found != static_cast<std::int64_t>(num_stored)) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("{}: chunk coordinates lead to {} chunks inside the extents {}, "
                               "expected all {} that are stored",
                               where_, num_found, extents_text(info_.extents), num_stored)};
    }
  }
  const std::int64_t shared = taken.shared(notes_->structures);
  if (shared >= 0) {
    FDMA_TRY(const std::string culprits, chunks_at(shared));
    return Error{ErrorCode::corrupt_file,
                 fmt::format("{}: {} byte {} of the file", where_, culprits, shared)};
  }
  return num_found;
}

Result<void> read_exactly(int descriptor, std::int64_t address, std::int64_t size, std::byte* out) {
  while (size > 0) {
    const ssize_t count = pread(descriptor, out, static_cast<std::size_t>(size), address);
    if (count < 0) {
      if (errno == EINTR) continue;
      return Error{ErrorCode::io,
                   fmt::format("cannot read the file: {}", std::generic_category().message(errno))};
    }
    if (count == 0) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("the file ends at byte {}, {} before its end", address, size)};
    }
    out += count;
    address += count;
    size -= count;
  }
  return {};
}

Result<int> descriptor_of(const InputFile& input) {
  void* handle = nullptr;
  if (H5Fget_vfd_handle(input.file.get(), H5P_DEFAULT, &handle) < 0 || handle == nullptr) {
    return hdf5_error(fmt::format("'{}'", input.path), "HDF5 does not give its descriptor");
  }
  return *static_cast<int*>(handle);
}

}  // namespace fdma::io
