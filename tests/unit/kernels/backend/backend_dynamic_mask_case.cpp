#include "backend/backend_dynamic_mask_case.hpp"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "backend/dynamic_mask_gradients.hpp"
#include "backend/fixture_array.hpp"
#include "backend/mask_cases.hpp"
#include "cell_oracle.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/select/select_topk.hpp"

namespace fdma::testing {
namespace {

constexpr BlockShape kBlock{128, 128};

float score_at(ScoreOrder order, std::int64_t key, std::mt19937& random) {
  const auto uniform = static_cast<float>(random() % 1000) / 500.0f;
  const auto position = static_cast<float>(key);
  switch (order) {
    case ScoreOrder::random:
      return uniform;
    case ScoreOrder::rising:
      return position * 0.01f;
    case ScoreOrder::drifting:
      return position * 0.002f + uniform;
    case ScoreOrder::clustered:
      return uniform * 0.1f + static_cast<float>(key / 50 * 7919 % 11);
    case ScoreOrder::with_zeros:
      return random() % 2 == 0 ? 0.0f : uniform;
  }
  return 0;
}

ColumnIntervals among_of(const BackendDynamicMaskCase& test_case, std::int64_t q_len,
                         std::int64_t kv_len) {
  ColumnIntervals among{q_len, kv_len, {0}, {}};
  for (std::int64_t key = 0; key < kv_len; ++key) {
    std::int64_t begin = std::max<std::int64_t>(key - (kv_len - q_len), 0), end = q_len;
    if (test_case.document > 0) {
      begin = std::min(key / test_case.document * test_case.document, q_len);
      end = std::min(begin + test_case.document, q_len);
    }
    if (begin < end) {
      among.intervals.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
    }
    among.offsets.push_back(static_cast<std::int64_t>(among.intervals.size()));
  }
  return among;
}

// A case with its scores and everything that depends on them.
class Run {
 public:
  Run(BackendFixture& fixture, const BackendDynamicMaskCase& test_case)
      : fixture_(fixture), test_case_(test_case) {
    for (const auto& [q_len, kv_len] : test_case.lengths) {
      kv_len_ = std::max(kv_len_, kv_len);
      among_.push_back(among_of(test_case, q_len, kv_len));
    }
    batch_ = static_cast<std::int64_t>(test_case.lengths.size());
    num_rows_ = batch_ * test_case.heads_kv;
    std::mt19937 random(static_cast<unsigned>(test_case.choice.seed));
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      for (std::int64_t key = 0; key < kv_len_; ++key) {
        scores_.push_back(score_at(test_case.order, key, random));
      }
    }
  }

  std::string check() {
    choose_attention(full_cells());
    make_object();
    if (!problem_.empty()) return problem_;
    if (test_case_.are_scores_made) {
      // The reference takes the scores that the backend made. Scores summed in another order may
      // rank near ties differently.
      run(true);
      scores_ = made_;
      if (!problem_.empty()) return problem_;
    }
    choose_attention(selected_cells());
    if (!problem_.empty()) return problem_;
    run(test_case_.are_scores_made);
    if (!problem_.empty()) return problem_;
    if (const std::string wrong = kept_difference(); !wrong.empty()) return wrong;
    if (const std::string wrong = attention_->check(); !wrong.empty()) return wrong;
    const std::vector<unsigned char> first = attention_->result_bytes();
    run(test_case_.are_scores_made);
    if (attention_->result_bytes() != first) return "two runs differ";
    return problem_.empty() ? check_gradients() : problem_;
  }

 private:
  const ColumnIntervals& among(std::int64_t row) const {
    return among_[static_cast<std::size_t>(row / test_case_.heads_kv)];
  }

  std::vector<Cells> full_cells() const {
    std::vector<Cells> cells;
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      cells.push_back(
          make_cells(among(row).q_len, among(row).kv_len, [](auto, auto) { return 1; }));
    }
    return cells;
  }

  std::vector<Cells> selected_cells() {
    std::vector<Cells> cells;
    expected_.assign(static_cast<std::size_t>(num_rows_ * kv_len_), {0, 0});
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      const auto first = scores_.begin() + row * kv_len_;
      const std::vector<float> scores(first, first + among(row).kv_len);
      auto kept = select_topk(scores, test_case_.w, among(row));
      if (!kept) {
        problem_ = kept.error().message;
        return cells;
      }
      for (std::int64_t key = 0; key < among(row).kv_len; ++key) {
        const auto at = static_cast<std::size_t>(key);
        const bool is_dropped = test_case_.drops_zero_scores && scores[at] == 0;
        if (kept->offsets[at] == kept->offsets[at + 1] || is_dropped) continue;
        expected_[static_cast<std::size_t>(row * kv_len_ + key)] =
            kept->intervals[static_cast<std::size_t>(kept->offsets[at])];
      }
      cells.push_back(
          make_cells(among(row).q_len, among(row).kv_len, [&](std::int64_t q, std::int64_t k) {
            const Interval& queries = expected_[static_cast<std::size_t>(row * kv_len_ + k)];
            return queries.begin <= q && q < queries.end;
          }));
    }
    return cells;
  }

  // Makes the tensors and the reference for these cells of each KV head.
  void choose_attention(const std::vector<Cells>& cells) {
    if (!problem_.empty()) return;
    std::vector<MaskCase> cases;
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int32_t h = 0; h < test_case_.heads_q; ++h) {
        const std::int64_t row =
            b * test_case_.heads_kv + h / (test_case_.heads_q / test_case_.heads_kv);
        cases.push_back(case_of("", cells[static_cast<std::size_t>(row)], kBlock));
      }
    }
    mask_ = combined(test_case_.name, batch_, test_case_.heads_q, cases, kBlock);
    attention_.emplace(fixture_, mask_, heads(), choice());
    set_bias(*attention_);
  }

  CaseHeads heads() const { return {batch_, test_case_.heads_q, test_case_.heads_kv}; }
  CaseChoice choice() const {
    CaseChoice choice = test_case_.choice;
    choice.has_bias = test_case_.bias != ScoreBias::none;
    choice.wants_out_low = choice.has_bias;
    return choice;
  }

  void set_bias(BackendAttentionCase& attention) const {
    if (test_case_.bias == ScoreBias::none) return;
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      for (std::int64_t key = 0; key < among(row).kv_len; ++key) {
        attention.bias().set(row / test_case_.heads_kv, key, row % test_case_.heads_kv, 0,
                             scores_[static_cast<std::size_t>(row * kv_len_ + key)]);
      }
    }
    attention.bias().upload();
  }

  void make_object() {
    DynamicMaskSpec spec;
    spec.shape = attention_->plan().shape;
    spec.w = test_case_.w;
    spec.bias = test_case_.bias;
    spec.drops_zero_scores = test_case_.drops_zero_scores;
    spec.has_gradients = true;
    spec.backend = fixture_.backend();
    spec.reading =
        fixture_.backend() == Backend::cpu ? SelectionReading::automatic : test_case_.reading;
    if (test_case_.document > 0) {
      spec.masks = among_;
      for (std::int64_t row = 0; row < num_rows_; ++row) {
        spec.mask_of.push_back(static_cast<std::int32_t>(row / test_case_.heads_kv));
      }
    }
    Result<DynamicMaskAttention> made = DynamicMaskAttention::make(std::move(spec));
    if (!made) {
      problem_ = made.error().message;
      return;
    }
    object_.emplace(*std::move(made));
    // The call must work whatever the workspace holds before.
    workspace_ = std::make_unique<FixtureArray<unsigned char>>(
        fixture_,
        std::vector<unsigned char>(static_cast<std::size_t>(object_->workspace_bytes()), 0xff));
  }

  std::int64_t columns() const {
    const std::int64_t dim = attention_->plan().shape.head_dim_v;
    return test_case_.is_dt_proj_wide ? test_case_.heads_kv * dim : dim;
  }
  std::vector<float> weights() const {
    std::mt19937 random(7);
    std::vector<float> weights(static_cast<std::size_t>(test_case_.heads_kv * columns()));
    for (float& weight : weights) {
      weight = (static_cast<float>(random() % 2001) / 1000 - 1) /
               static_cast<float>(attention_->plan().shape.head_dim_v);
    }
    return weights;
  }
  std::vector<float> coefficients() const {
    return std::vector<float>(static_cast<std::size_t>(test_case_.heads_kv), -0.7f);
  }

  void run(bool makes_scores) {
    const std::int64_t heads_kv = test_case_.heads_kv;
    FixtureArray<float> dt_proj(fixture_, weights());
    FixtureArray<float> a_coef(fixture_, coefficients());
    FixtureArray<float> given(fixture_, scores_);
    FixtureArray<float> made(fixture_, std::vector<float>(scores_.size(), -1));
    FixtureArray<Interval> kept(fixture_, std::vector<Interval>(scores_.size(), {-7, -7}));
    FixtureArray<std::uint32_t> status(fixture_, {0});
    const std::vector<std::int64_t> extents{batch_, heads_kv, kv_len_};

    attention_->poison(0xff);
    const AttentionTensors attention = attention_->tensors();
    DynamicMaskTensors tensors{};
    tensors.q = attention.q;
    tensors.kv = attention.kv;
    tensors.out = attention.out;
    tensors.lse = attention.lse;
    tensors.out_low = attention.out_low;
    if (makes_scores) {
      tensors.dt_proj = dt_proj.view(DType::float32, {heads_kv, columns()}).view();
      tensors.a_coef = a_coef.view(DType::float32, {heads_kv}).view();
    } else {
      tensors.scores = given.view(DType::float32, extents).view();
    }
    tensors.made_scores = made.view(DType::float32, extents);
    tensors.kept = kept.view(DType::int32, {batch_, heads_kv, kv_len_, 2});
    DynamicMaskOptions options;
    options.attention = attention_->options();
    void* const word = fixture_.device() == Device::cuda ? status.data() : nullptr;
    const Result<void> done = object_->run(tensors, workspace_->data(),
                                           static_cast<std::uint32_t*>(word), nullptr, options);
    if (!done) {
      problem_ = done.error().message;
      return;
    }
    made_ = made.fetch();
    kept_ = kept.fetch();
    if (status.fetch().front() != 0) problem_ = fmt::format("status {}", status.fetch().front());
    attention_->fetch();
  }

  std::string kept_difference() const {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (kept_[i] == expected_[i]) continue;
      return fmt::format("key {} of row {}: kept by [{}, {}), expected [{}, {})",
                         i % static_cast<std::size_t>(kv_len_),
                         i / static_cast<std::size_t>(kv_len_), kept_[i].begin, kept_[i].end,
                         expected_[i].begin, expected_[i].end);
    }
    return {};
  }

  std::string check_gradients() const {
    GradientCall call{test_case_, *object_, mask_, heads(), choice(), scores_, kept_};
    call.kv_len = kv_len_;
    call.set_bias = [this](BackendAttentionCase& attention) { set_bias(attention); };
    call.columns = columns();
    call.dt_proj = weights();
    call.a_coef = coefficients();
    return check_dynamic_mask_gradients(fixture_, call);
  }

  BackendFixture& fixture_;
  const BackendDynamicMaskCase& test_case_;
  std::vector<ColumnIntervals> among_;  // for each batch element
  std::int64_t batch_ = 0, num_rows_ = 0, kv_len_ = 0;
  std::vector<float> scores_, made_;
  std::vector<Interval> expected_, kept_;
  MaskCase mask_;
  std::optional<BackendAttentionCase> attention_;
  std::optional<DynamicMaskAttention> object_;
  std::unique_ptr<FixtureArray<unsigned char>> workspace_;
  std::string problem_;
};

CaseChoice choice_of(std::int32_t head_dim, DType dtype, Layout layout) {
  CaseChoice choice;
  choice.head_dim = head_dim;
  choice.dtype = dtype;
  choice.layout = layout;
  return choice;
}

}  // namespace

std::string run_dynamic_mask(BackendFixture& fixture, const BackendDynamicMaskCase& test_case) {
  const std::string wrong = Run(fixture, test_case).check();
  return wrong.empty() ? wrong : test_case.name + ": " + wrong;
}

std::vector<BackendDynamicMaskCase> dynamic_mask_cases() {
  const CaseChoice plain = choice_of(64, DType::bfloat16, Layout::rows);
  const CaseChoice wide = choice_of(128, DType::bfloat16, Layout::rows);
  const CaseChoice half = choice_of(128, DType::float16, Layout::padded);
  const CaseChoice odd = choice_of(72, DType::bfloat16, Layout::head_major);
  using enum ScoreOrder;
  constexpr auto kGather = SelectionReading::gather, kScan = SelectionReading::scan;
  std::vector<BackendDynamicMaskCase> test_cases;
  for (const SelectionReading reading : {kGather, kScan}) {
    const std::string way(fdma::to_string(reading));
    const auto add = [&](BackendDynamicMaskCase test_case) {
      test_case.name += ", " + way;
      test_case.reading = reading;
      test_cases.push_back(std::move(test_case));
    };
    add({.name = "random",
         .lengths = {{700, 700}},
         .heads_q = 2,
         .heads_kv = 2,
         .w = 100,
         .choice = plain});
    add({.name = "rising",
         .lengths = {{1100, 1100}},
         .heads_q = 2,
         .heads_kv = 1,
         .w = 64,
         .bias = ScoreBias::none,
         .order = rising,
         .choice = wide});
    add({.name = "drifting, grouped heads",
         .lengths = {{600, 600}},
         .heads_q = 8,
         .heads_kv = 2,
         .w = 150,
         .order = drifting,
         .choice = wide});
    add({.name = "lengths",
         .lengths = {{500, 900}, {129, 130}, {1, 640}},
         .heads_q = 6,
         .heads_kv = 2,
         .w = 77,
         .order = clustered,
         .choice = half});
    add({.name = "made of v",
         .lengths = {{400, 400}, {300, 400}},
         .heads_q = 4,
         .heads_kv = 2,
         .w = 50,
         .are_scores_made = true,
         .choice = plain});
    add({.name = "made of all heads' v, log",
         .lengths = {{513, 513}},
         .heads_q = 4,
         .heads_kv = 4,
         .w = 129,
         .bias = ScoreBias::log,
         .are_scores_made = true,
         .is_dt_proj_wide = true,
         .choice = wide});
    add({.name = "zeros dropped",
         .lengths = {{500, 500}},
         .heads_q = 2,
         .heads_kv = 2,
         .w = 200,
         .order = with_zeros,
         .drops_zero_scores = true,
         .choice = odd});
    add({.name = "documents",
         .lengths = {{700, 700}, {650, 650}},
         .heads_q = 4,
         .heads_kv = 2,
         .w = 90,
         .document = 150,
         .choice = plain});
    add({.name = "keys in common",
         .lengths = {{2500, 2500}, {600, 2200}},
         .heads_q = 4,
         .heads_kv = 2,
         .w = 400,
         .choice = wide});
    add({.name = "keys in common, drifting",
         .lengths = {{3000, 3000}},
         .heads_q = 2,
         .heads_kv = 2,
         .w = 700,
         .order = drifting,
         .choice = half});
    add({.name = "one key", .lengths = {{300, 300}}, .w = 1, .choice = plain});
    add({.name = "one query",
         .lengths = {{1, 1000}},
         .heads_q = 8,
         .heads_kv = 2,
         .w = 300,
         .choice = wide});
    add({.name = "more queries than keys",
         .lengths = {{400, 150}},
         .heads_q = 2,
         .heads_kv = 1,
         .w = 40,
         .choice = plain});
  }
  // Some keys are live through three query segments of the kv worklist of the gradients.
  test_cases.push_back({.name = "long lives",
                        .lengths = {{2300, 2300}},
                        .heads_q = 2,
                        .heads_kv = 1,
                        .w = 150,
                        .reading = kGather,
                        .choice = plain});
  test_cases.push_back({.name = "all keys",
                        .lengths = {{300, 300}},
                        .heads_q = 2,
                        .heads_kv = 2,
                        .w = 300,
                        .choice = plain});
  test_cases.push_back({.name = "chosen by cost",
                        .lengths = {{900, 900}},
                        .heads_q = 8,
                        .heads_kv = 2,
                        .w = 60,
                        .are_scores_made = true,
                        .choice = wide});
  return test_cases;
}

}  // namespace fdma::testing
