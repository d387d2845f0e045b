#include "backend/closed_form_cases.hpp"

#include <algorithm>
#include <utility>

namespace fdma::testing {
namespace {

constexpr BlockShape kBlock{16, 16};

}  // namespace

BlockMask block_mask_of(const ParametricMask& mask) {
  BlockMask result;
  result.block = kBlock;
  result.shape.q_lens = {mask.q_len};
  result.shape.kv_lens = {mask.kv_len};
  result.group_of = {0};
  result.groups = std::vector<ParametricMask>{mask};
  return result;
}

std::vector<ParametricMask> plain_forms(std::int64_t q_len, std::int64_t kv_len) {
  std::vector<ParametricMask> forms;
  const auto add = [&](auto&& set) {
    ParametricMask mask;
    mask.q_len = q_len;
    mask.kv_len = kv_len;
    mask.pos_offset = kv_len - q_len;
    mask.kv_end = kv_len;
    set(mask);
    forms.push_back(mask);
  };
  const auto documents = [&](ParametricMask& m) {
    m.cu_seqlens = {0, kv_len / 5, kv_len / 5, kv_len / 3, kv_len * 3 / 4, kv_len};
  };
  add([](ParametricMask&) {});
  add([](ParametricMask& m) { m.right = 0; });
  add([&](ParametricMask& m) { m.right = 0, m.left = kv_len / 6; });
  add([&](ParametricMask& m) { m.right = 0, m.left = kv_len / 6, m.sink = kv_len / 10; });
  add([&](ParametricMask& m) { m.right = m.left = kv_len / 5; });
  add([&](ParametricMask& m) { m.right = 0, m.prefix = kv_len / 3; });
  add([&](ParametricMask& m) { m.right = 0, m.kv_begin = kv_len / 7; });
  add([&](ParametricMask& m) { m.right = 0, m.kv_end = kv_len - kv_len / 7; });
  add([&](ParametricMask& m) { documents(m); });
  add([&](ParametricMask& m) { documents(m), m.right = 0; });
  add([&](ParametricMask& m) { documents(m), m.right = 0, m.left = 20, m.kv_begin = 9; });
  add([](ParametricMask& m) { m.kv_end = 0; });
  return forms;
}

ParametricMask random_form(std::mt19937& rng, std::int64_t max_q_len, std::int64_t max_kv_len) {
  ParametricMask mask;
  mask.q_len = pick(rng, 1, max_q_len);
  mask.kv_len = pick(rng, 1, max_kv_len);
  mask.pos_offset = mask.kv_len - mask.q_len + (pick(rng, 0, 2) == 0 ? pick(rng, -40, 40) : 0);
  const auto distance = [&] {
    return pick(rng, 0, 2) == 0 ? kUnbounded : pick(rng, -30, max_kv_len);
  };
  mask.left = distance();
  mask.right = pick(rng, 0, 2) == 0 ? 0 : distance();
  if (pick(rng, 0, 2) == 0) mask.prefix = pick(rng, 0, mask.kv_len);
  if (pick(rng, 0, 2) == 0) mask.sink = pick(rng, 0, mask.kv_len);
  if (pick(rng, 0, 2) == 0) mask.kv_begin = pick(rng, 0, mask.kv_len);
  mask.kv_end = pick(rng, 0, 2) == 0 ? pick(rng, mask.kv_begin, mask.kv_len) : mask.kv_len;
  if (pick(rng, 0, 1) == 0) {
    for (std::int64_t i = pick(rng, 2, 7); i > 0; --i) {
      mask.cu_seqlens.push_back(pick(rng, pick(rng, 0, 3) == 0 ? -20 : 0, mask.kv_len + 5));
    }
    std::sort(mask.cu_seqlens.begin(), mask.cu_seqlens.end());
  }
  return mask;
}

ParametricMask at_call(const ParametricMask& mask, const CallElement& element) {
  ParametricMask result = mask;
  result.q_len = element.q_len;
  result.kv_len = element.kv_len;
  result.pos_offset += element.kv_len - element.q_len - (mask.kv_len - mask.q_len);
  result.kv_end = std::min(mask.kv_end, element.kv_len);
  if (!element.cu_seqlens.empty()) {
    result.cu_seqlens.assign(element.cu_seqlens.begin(), element.cu_seqlens.end());
  }
  return result;
}

MaskCase case_at_call(const std::string& name, const ParametricMask& mask,
                      const std::vector<CallElement>& elements) {
  std::vector<MaskCase> cases;
  for (const CallElement& element : elements) {
    cases.push_back(case_of(name, cells_of(at_call(mask, element)), kBlock));
  }
  return combined(name, static_cast<std::int64_t>(elements.size()), 1, cases, kBlock);
}

RandomCall::RandomCall(std::mt19937& rng, const ParametricMask& planned, std::int64_t batch,
                       std::int64_t num_borders, bool is_shared) {
  for (std::int64_t b = 0; b < batch; ++b) {
    CallElement element{b == 0 ? planned.q_len : pick(rng, 0, planned.q_len),
                        b == 0 ? planned.kv_len : pick(rng, 0, planned.kv_len)};
    if (num_borders > 0 && is_shared && b > 0) {
      element.cu_seqlens = elements[0].cu_seqlens;
    } else if (num_borders > 0) {
      for (std::int64_t i = 0; i < num_borders; ++i) {
        element.cu_seqlens.push_back(static_cast<std::int32_t>(pick(rng, 0, planned.kv_len)));
      }
      std::sort(element.cu_seqlens.begin(), element.cu_seqlens.end());
      borders.insert(borders.end(), element.cu_seqlens.begin(), element.cu_seqlens.end());
    }
    q_lens.push_back(static_cast<std::int32_t>(element.q_len));
    kv_lens.push_back(static_cast<std::int32_t>(element.kv_len));
    elements.push_back(std::move(element));
  }
}

}  // namespace fdma::testing
