#include "io/dense/slab_consumer.hpp"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>

#include "io/hdf5/dense_kernels.hpp"

namespace fdma::io {

SlabConsumer::SlabConsumer(const DenseElement& element, const DenseGeometry& geometry,
                           const DenseReadOptions& options, bool clears_rows)
    : element_(element), geometry_(geometry), options_(options), clears_rows_(clears_rows) {
  group_of_.resize(static_cast<std::size_t>(geometry.extents[0] * geometry.extents[1]));
}

std::int64_t SlabConsumer::q_len() const {
  if (geometry_.dims != DenseDims::bk) return geometry_.extents[2];
  return options_.q_len > 0 ? options_.q_len : geometry_.extents[3];
}

std::size_t SlabConsumer::plane_of(std::int64_t b, std::int64_t h) const {
  return static_cast<std::size_t>((b - slab_.begin[0]) * slab_.count[1] + h - slab_.begin[1]);
}

void SlabConsumer::begin_slab(const Slab& slab) {
  slab_ = slab;
  if (planes_.empty()) open_planes(slab);
}

void SlabConsumer::open_planes(const Slab& slab) {
  const std::int64_t num_planes = slab.count[0] * slab.count[1];
  planes_.reserve(static_cast<std::size_t>(num_planes));
  for (std::int64_t p = 0; p < num_planes; ++p) {
    planes_.emplace_back(geometry_.extents[2], geometry_.extents[3], options_.block,
                         geometry_.band_rows);
  }
}

void SlabConsumer::pack(const BoxValues& box) {
  const auto [num_b, num_h, num_q, num_k] = box.count;
  const std::int64_t q_end = box.begin[2] + num_q;
  for (std::int64_t b = 0; b < num_b; ++b) {
    for (std::int64_t h = 0; h < num_h; ++h) {
      DensePlane& plane = planes_[plane_of(box.begin[0] + b, box.begin[1] + h)];
      const std::byte* values = box.values + b * box.strides[0] + h * box.strides[1];
      for (std::int64_t q = box.begin[2]; q < q_end;) {
        PackBox rows;
        rows.values = values + (q - box.begin[2]) * box.strides[2];
        rows.value_stride = box.strides[2];
        rows.num_rows = std::min(q_end - q, plane.rows_after(q));
        rows.num_cols = num_k;
        rows.bits = plane.row(q);
        rows.bit_stride = plane.row_stride();
        rows.bit_begin = box.begin[3];
        rows.ends_row = box.begin[3] + num_k == geometry_.extents[3];
        if (!pack_rows(element_.rule(), rows)) {
          for (std::int64_t i = 0; i < rows.num_rows * num_k; ++i) {
            const std::byte* value =
                rows.values + i / num_k * rows.value_stride + i % num_k * element_.size_bytes();
            if (judge_value(element_.rule(), value) >= 0) continue;
            note_bad({box.begin[0] + b, box.begin[1] + h, q + i / num_k, box.begin[3] + i % num_k},
                     element_.complaint_of_stored(value));
            break;
          }
        }
        q += rows.num_rows;
      }
    }
  }
}

void SlabConsumer::pack_plainly(const BoxValues& box) {
  const auto [num_b, num_h, num_q, num_k] = box.count;
  for (std::int64_t row = 0; row < num_b * num_h * num_q; ++row) {
    const std::int64_t b = row / (num_h * num_q), h = row / num_q % num_h, q = row % num_q;
    const std::byte* values =
        box.values + b * box.strides[0] + h * box.strides[1] + q * box.strides[2];
    DensePlane& plane = planes_[plane_of(box.begin[0] + b, box.begin[1] + h)];
    const std::int64_t index =
        element_.pack(values, num_k, plane.row(box.begin[2] + q), box.begin[3]);
    if (index < 0) continue;
    note_bad({box.begin[0] + b, box.begin[1] + h, box.begin[2] + q, box.begin[3] + index},
             element_.complaint(values + index * element_.size_bytes()));
  }
}

void SlabConsumer::note_bad(const CellIndex& cell, std::string complaint) {
  const std::lock_guard lock(mutex_);
  if (bad_ && bad_->cell < cell) return;
  bad_ = Finding{cell, std::move(complaint)};
}

void SlabConsumer::fail(const CellIndex& begin, Error error) {
  const std::lock_guard lock(mutex_);
  if (failure_ && failure_->begin < begin) return;
  failure_ = Failure{begin, std::move(error)};
}

void SlabConsumer::end_slab(const Slab& slab) {
  if (failure_) return;
  if (slab.ends_band && !bad_ && geometry_.dims != DenseDims::bk) {
    tbb::parallel_for(std::size_t{0}, planes_.size(), [&](std::size_t p) {
      planes_[p].complete(slab.begin[2] + slab.count[2], clears_rows_);
    });
    check_size();
  }
  if (slab.ends_group) close_planes(slab);
}

void SlabConsumer::check_size() {
  if (options_.max_result_bytes <= 0) return;
  std::int64_t bytes = masks_bytes_;
  for (const DensePlane& plane : planes_) bytes += plane.data_bytes();
  if (bytes <= options_.max_result_bytes) return;
  fail(slab_.begin,
       {ErrorCode::out_of_memory,
        fmt::format("the cells of partial tiles, stored once each, take more than {} bytes of "
                    "memory by query row {} of {}: the mask has too little structure for blocks "
                    "of {}x{}, or needs more memory than there is",
                    options_.max_result_bytes, slab_.begin[2] + slab_.count[2],
                    geometry_.extents[2], options_.block.block_q, options_.block.block_kv)});
}

void SlabConsumer::close_planes(const Slab& slab) {
  for (std::size_t p = 0; p < planes_.size() && !bad_; ++p) {
    DensePlane& plane = planes_[p];
    const auto i = static_cast<std::int64_t>(p);
    const std::int64_t b = slab.begin[0] + i / slab.count[1];
    const std::int64_t h = slab.begin[1] + i % slab.count[1];
    group_of_[static_cast<std::size_t>(b * geometry_.extents[1] + h)] =
        intern(geometry_.dims == DenseDims::bk
                   ? mask_of_equal_rows(plane.row(0), q_len(), geometry_.extents[3], options_.block)
                   : plane.finish());
  }
  planes_.clear();
}

// Equal cells give equal arrays, so comparing arrays finds heads with equal masks.
std::int32_t SlabConsumer::intern(SegmentMask mask) {
  const auto it = std::find(masks_.begin(), masks_.end(), mask);
  if (it != masks_.end()) return static_cast<std::int32_t>(it - masks_.begin());
  masks_bytes_ += mask.size_bytes();
  masks_.push_back(std::move(mask));
  return static_cast<std::int32_t>(masks_.size() - 1);
}

bool SlabConsumer::is_settled(const Slab& slab) const {
  if (failure_) return true;
  if (!bad_) return false;
  const CellIndex& cell = bad_->cell;
  const bool is_first_plane = cell[0] == slab.begin[0] && cell[1] == slab.begin[1];
  const bool is_last_group =
      cell[0] == slab.begin[0] || slab.begin[1] + slab.count[1] == geometry_.extents[1];
  return (slab.ends_group && is_last_group) || (slab.ends_band && is_first_plane);
}

Result<BlockMask> SlabConsumer::finish(const std::string& where) && {
  if (failure_) {
    failure_->error.message = fmt::format("{}: {}", where, failure_->error.message);
    return std::move(failure_->error);
  }
  if (bad_) {
    const CellIndex& cell = bad_->cell;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: cell (b {}, h {}, q {}, k {}) {}", where, cell[0], cell[1],
                             cell[2], cell[3], bad_->complaint)};
  }
  if (geometry_.num_values() == 0) {  // no cells, no slabs
    DensePlane plane(q_len(), geometry_.extents[3], options_.block, 1);
    masks_.push_back(plane.finish());
  }
  BlockMask mask;
  mask.block = options_.block;
  mask.shape.num_batches = geometry_.extents[0];
  mask.shape.num_heads = geometry_.extents[1];
  mask.shape.q_lens = {q_len()};
  mask.shape.kv_lens = {geometry_.extents[3]};
  // Planes arrive group by group; groups are numbered by first occurrence in (b, h) order.
  std::vector<std::int32_t> number(masks_.size(), -1);
  std::vector<SegmentMask> ordered;
  for (std::int32_t& group : group_of_) {
    std::int32_t& renamed = number[static_cast<std::size_t>(group)];
    if (renamed < 0) {
      renamed = static_cast<std::int32_t>(ordered.size());
      ordered.push_back(std::move(masks_[static_cast<std::size_t>(group)]));
    }
    group = renamed;
  }
  mask.group_of = std::move(group_of_);
  mask.groups = std::move(ordered);
  return mask;
}

}  // namespace fdma::io
