#include "backend/dynamic_mask_gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "backend/backend_backward_case.hpp"
#include "backend/fixture_array.hpp"
#include "fdma/select/zoh_backward.hpp"

namespace fdma::testing {
namespace {

MutableTensorView view_of(std::vector<float>& data, const std::vector<std::int64_t>& extents) {
  return make_contiguous_mutable_view(data.data(), DType::float32, static_cast<int>(extents.size()),
                                      extents.data());
}

BackwardChoice backward_choice(const BackendDynamicMaskCase& test_case) {
  BackwardChoice choice;
  choice.are_gradients_float32 = test_case.are_scores_made;
  return choice;
}

class GradientRun {
 public:
  GradientRun(BackendFixture& fixture, const GradientCall& call)
      : fixture_(fixture),
        call_(call),
        test_case_(fixture, call.mask, call.heads, call.choice, backward_choice(call.test_case)),
        workspace_(fixture, std::vector<unsigned char>(workspace_bytes(call), 0xff)),
        scores_(fixture, call.scores),
        dscores_(fixture, std::vector<float>(call.scores.size(), -1)),
        kept_(fixture, call.kept) {}

  std::string check() {
    call_.set_bias(test_case_.forward());
    test_case_.run_forward();
    if (std::string wrong = run(true); !wrong.empty()) return wrong;
    if (const std::string wrong = test_case_.check(); !wrong.empty()) return wrong;
    const std::vector<unsigned char> first = test_case_.result_bytes();
    const std::vector<float> of_scores = dscores_.fetch();
    if (fixture_.device() == Device::cpu) {
      if (std::string wrong = run(false); !wrong.empty()) return wrong;
      if (test_case_.result_bytes() != first) return "differs where it selects by itself";
    }
    if (std::string wrong = check_bits(); !wrong.empty()) return wrong;
    return call_.test_case.are_scores_made ? check_made_scores(of_scores) : "";
  }

 private:
  static BackwardOptions deterministic() {
    BackwardOptions options;
    options.deterministic = true;
    return options;
  }
  static std::size_t workspace_bytes(const GradientCall& call) {
    return static_cast<std::size_t>(
        std::max(call.object.backward_workspace_bytes(),
                 call.object.backward_workspace_bytes(deterministic())));
  }

  // Checks that deterministic calls give the same bits whatever the memory held before.
  std::string check_bits() {
    is_deterministic_ = true;
    std::vector<unsigned char> first;
    std::vector<float> first_scores;
    for (const unsigned char poison : {0xff, 0x00, 0x41}) {
      workspace_.set(std::vector<unsigned char>(workspace_bytes(call_), poison));
      if (std::string wrong = run(true, poison); !wrong.empty()) return "deterministic: " + wrong;
      if (first.empty()) {
        first = test_case_.result_bytes();
        first_scores = dscores_.fetch();
        if (const std::string wrong = test_case_.check(); !wrong.empty())
          return "deterministic: " + wrong;
      }
      if (test_case_.result_bytes() != first || dscores_.fetch() != first_scores)
        return "deterministic: other bits";
    }
    is_deterministic_ = false;
    return {};
  }
  std::vector<std::int64_t> extents() const {
    return {call_.heads.batch, call_.heads.heads_kv, call_.kv_len};
  }

  // Makes one call. Its dscores become the dbias of the case.
  std::string run(bool has_kept, unsigned char poison = 0xff) {
    BackwardOptions options = test_case_.options();
    options.deterministic = is_deterministic_;
    const Result<void> done = test_case_.run_by(
        [&](const BackwardTensors& attention) {
          tensors_.q = attention.q;
          tensors_.kv = attention.kv;
          tensors_.out = attention.out;
          tensors_.lse = attention.lse;
          tensors_.out_low = attention.out_low;
          tensors_.dout = attention.dout;
          tensors_.dlse = attention.dlse;
          tensors_.dq = attention.dq;
          tensors_.dk = attention.dk;
          tensors_.dv = attention.dv;
          tensors_.scores = scores_.view(DType::float32, extents()).view();
          tensors_.dscores = dscores_.view(DType::float32, extents());
          tensors_.kept = {};
          if (has_kept) {
            std::vector<std::int64_t> pairs = extents();
            pairs.push_back(2);
            tensors_.kept = kept_.view(DType::int32, pairs).view();
          }
          return call_.object.backward(tensors_, workspace_.data(), nullptr, options);
        },
        poison);
    return done ? set_bias_gradient(dscores_.fetch()) : done.error().message;
  }

  // Copies gradients of scores to the dbias of the case. They must be 0 past an element's keys, and
  // everywhere if there is no bias.
  std::string set_bias_gradient(const std::vector<float>& of_scores) {
    const AttentionShape& shape = test_case_.plan().shape;
    for (std::size_t i = 0; i < of_scores.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / call_.kv_len;
      const std::int64_t key = static_cast<std::int64_t>(i) % call_.kv_len;
      const std::int64_t b = row / call_.heads.heads_kv;
      if (call_.choice.has_bias && key < shape.kv_len(b)) {
        test_case_.dbias().set(b, key, row % call_.heads.heads_kv, 0, of_scores[i]);
      } else if (of_scores[i] != 0) {
        return fmt::format("dscores: {} at key {} of row {}", of_scores[i], key, row);
      }
    }
    return {};
  }

  // dv of the last call, row by row; 0 past an element's keys.
  std::vector<float> dv() const {
    const AttentionShape& shape = test_case_.plan().shape;
    std::vector<float> values;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t key = 0; key < call_.kv_len; ++key) {
        for (std::int64_t i = 0; i < shape.heads_kv * shape.head_dim_v; ++i) {
          const double value =
              key < shape.kv_len(b)
                  ? test_case_.dv().get(b, key, i / shape.head_dim_v, i % shape.head_dim_v)
                  : 0;
          values.push_back(static_cast<float>(value));
        }
      }
    }
    return values;
  }

  std::string check_made_scores(std::vector<float> of_scores) {
    const AttentionShape& shape = test_case_.plan().shape;
    const std::vector<std::int64_t> dt_extents{shape.heads_kv, call_.columns};
    const std::vector<std::int64_t> a_extents{shape.heads_kv};
    std::vector<float> dt_proj = call_.dt_proj, a_coef = call_.a_coef, expected_dv = dv();
    std::vector<float> ddt_proj(dt_proj.size()), da_coef(a_coef.size());
    ZohBackwardTensors zoh;
    zoh.values = test_case_.forward().v().host_view().view();
    zoh.values.extents[1] = call_.kv_len;
    zoh.dt_proj = view_of(dt_proj, dt_extents).view();
    zoh.a_coef = view_of(a_coef, a_extents).view();
    zoh.dscores = view_of(of_scores, extents()).view();
    zoh.dvalues =
        view_of(expected_dv, {shape.batch, call_.kv_len, shape.heads_kv, shape.head_dim_v});
    zoh.other_dvalues = zoh.dvalues.view();
    zoh.ddt_proj = view_of(ddt_proj, dt_extents);
    zoh.da_coef = view_of(da_coef, a_extents);
    const ZohMode mode = call_.test_case.bias == ScoreBias::log ? ZohMode::log : ZohMode::exp;
    if (const auto done = zoh_scores_backward(zoh, {mode, 1}); !done) return done.error().message;

    FixtureArray<float> own_dt_proj(fixture_, dt_proj), own_a_coef(fixture_, a_coef);
    FixtureArray<float> got_dt_proj(fixture_, std::vector<float>(ddt_proj.size(), -1));
    FixtureArray<float> got_a_coef(fixture_, std::vector<float>(da_coef.size(), -1));
    tensors_.dt_proj = own_dt_proj.view(DType::float32, dt_extents).view();
    tensors_.a_coef = own_a_coef.view(DType::float32, a_extents).view();
    tensors_.ddt_proj = got_dt_proj.view(DType::float32, dt_extents);
    tensors_.da_coef = got_a_coef.view(DType::float32, a_extents);
    std::vector<unsigned char> bits;
    std::vector<float> first_dt_proj, first_a_coef;
    is_deterministic_ = true;
    for (const unsigned char poison : {0x00, 0xff}) {
      workspace_.set(std::vector<unsigned char>(workspace_bytes(call_), poison));
      if (std::string wrong = run(true, poison); !wrong.empty()) return "deterministic: " + wrong;
      if (bits.empty()) {
        bits = test_case_.result_bytes();
        first_dt_proj = got_dt_proj.fetch();
        first_a_coef = got_a_coef.fetch();
      }
      if (test_case_.result_bytes() != bits || got_dt_proj.fetch() != first_dt_proj ||
          got_a_coef.fetch() != first_a_coef)
        return "deterministic, of scores that are made: other bits";
    }
    is_deterministic_ = false;
    if (std::string wrong = run(true); !wrong.empty()) return wrong;
    const auto difference = [](std::string_view name, const std::vector<float>& got,
                               const std::vector<float>& expected) {
      float largest = 0, error = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        error = std::max(error, std::abs(got[i] - expected[i]));
      }
      // The tolerance covers sums of gradients and of scores in another order.
      return largest > 0 && error <= 2e-4f * largest
                 ? std::string()
                 : fmt::format("{}: error {}, largest {}", name, error, largest);
    };
    std::string wrong = difference("dv", dv(), expected_dv);
    if (wrong.empty()) wrong = difference("ddt_proj", got_dt_proj.fetch(), ddt_proj);
    return wrong.empty() ? difference("da_coef", got_a_coef.fetch(), da_coef) : wrong;
  }

  BackendFixture& fixture_;
  const GradientCall& call_;
  mutable BackendBackwardCase test_case_;
  FixtureArray<unsigned char> workspace_;
  FixtureArray<float> scores_, dscores_;
  FixtureArray<Interval> kept_;
  DynamicMaskBackwardTensors tensors_;
  bool is_deterministic_ = false;
};

}  // namespace

std::string check_dynamic_mask_gradients(BackendFixture& fixture, const GradientCall& call) {
  const std::string wrong = GradientRun(fixture, call).check();
  return wrong.empty() ? wrong : "backward: " + wrong;
}

}  // namespace fdma::testing
