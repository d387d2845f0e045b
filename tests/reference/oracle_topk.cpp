#include "oracle_topk.hpp"

#include <algorithm>
#include <cmath>

namespace fdma::reference {
namespace {

// The scores of the KV head that head h reads.
Result<std::vector<float>> scores_of(const std::string& name, const Tables& tables,
                                     const MaskShape& shape, std::int64_t b, std::int64_t h) {
  const auto found = tables.find(name);
  if (found == tables.end() || found->second.dtype != DType::float32 ||
      found->second.device != Device::cpu) {
    return Error{ErrorCode::invalid_argument, "oracle: no float32 scores @" + name};
  }
  const TensorView& view = found->second;
  if (view.rank < 1 || view.rank > 3) {
    return Error{ErrorCode::shape_mismatch, "oracle: scores @" + name + " of a wrong rank"};
  }
  const auto last = static_cast<std::size_t>(view.rank - 1);
  const std::int64_t heads_kv = view.rank >= 2 ? view.extents[last - 1] : 1;
  if (view.extents[last] != shape.max_kv_len() || heads_kv < 1 || shape.num_heads % heads_kv != 0 ||
      (view.rank == 3 && view.extents[0] != shape.num_batches)) {
    return Error{ErrorCode::shape_mismatch, "oracle: scores @" + name + " do not fit"};
  }
  std::int64_t offset = 0;
  if (view.rank >= 2) offset += h / (shape.num_heads / heads_kv) * view.strides[last - 1];
  if (view.rank == 3) offset += b * view.strides[0];
  std::vector<float> scores;
  for (std::int64_t k = 0; k < shape.kv_len(b); ++k) {
    scores.push_back(static_cast<const float*>(view.data)[offset + k * view.strides[last]]);
    if (std::isnan(scores.back())) {
      return Error{ErrorCode::invalid_argument, "oracle: a score of @" + name + " is NaN"};
    }
  }
  return scores;
}

}  // namespace

Result<TopkCells> TopkCells::make(const std::string& scores, Value w,
                                  const std::function<Value(Value q, Value k)>& among,
                                  const Tables& tables, const MaskShape& shape, std::int64_t b,
                                  std::int64_t h) {
  FDMA_TRY(const std::vector<float> score, scores_of(scores, tables, shape, b, h));
  TopkCells result;
  result.q_len_ = shape.q_len(b);
  result.kv_len_ = shape.kv_len(b);
  if (!w.is_defined || w.value < 1) {
    return Error{ErrorCode::invalid_argument, "oracle: topk: w is below 1 or undefined"};
  }
  for (std::int64_t q = 0; q < result.q_len_; ++q) {
    std::vector<std::size_t> visible;
    bool is_defined = true;
    for (std::int64_t k = 0; k < result.kv_len_; ++k) {
      const Value cell = among(integer(q), integer(k));
      is_defined = is_defined && cell.is_defined;
      if (cell.is_true()) visible.push_back(static_cast<std::size_t>(k));
    }
    std::stable_sort(visible.begin(), visible.end(),
                     [&](std::size_t a, std::size_t c) { return score[a] > score[c]; });
    if (static_cast<std::int64_t>(visible.size()) > w.value) {
      visible.resize(static_cast<std::size_t>(w.value));
    }
    const std::size_t row = result.cells_.size();
    result.cells_.insert(result.cells_.end(), static_cast<std::size_t>(result.kv_len_),
                         is_defined ? condition(false) : kUndefined);
    if (!is_defined) continue;
    for (const std::size_t k : visible) result.cells_[row + k] = condition(true);
  }
  return result;
}

Value TopkCells::at(Value q, Value k) const {
  if (!q.is_defined || !k.is_defined) return kUndefined;
  if (q.value < 0 || q.value >= q_len_ || k.value < 0 || k.value >= kv_len_) {
    return condition(false);
  }
  return cells_[static_cast<std::size_t>(q.value * kv_len_ + k.value)];
}

}  // namespace fdma::reference
