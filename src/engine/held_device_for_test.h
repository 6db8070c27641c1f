#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "control/form_path.h"
#include "control/plan_morph.h"
#include "cost/pages.h"
#include "engine/engine.h"
#include "ports/event.h"
#include "ports/executor.h"
#include "ports/token_sink.h"

// A device for tests of morphs. It works only when the test lets it, counts its pages and logs the
// order of all calls.

namespace protean {

// Layers may be bf16 or w4; a page holds a block of 8 tokens.
inline MorphConfig morph_for_test(std::int64_t kv_blocks, MorphMode mode = MorphMode::kOff,
                                  int layers = 2, int vocab = 100) {
  MorphConfig config;
  config.mode = mode;
  config.policy = options_for(mode);
  FormBounds& bounds = config.bounds;
  bounds.spec.architecture = "llama";
  bounds.spec.layers = layers;
  bounds.spec.hidden = 64;
  bounds.spec.ffn = 128;
  bounds.spec.vocab = vocab;
  bounds.spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  bounds.ladder = {Precision::kBf16, Precision::kW4};
  bounds.full =
      single_device_form(bounds.spec, Precision::kBf16, DeviceId{0},
                         {.precision = KvPrecision::kF32, .block_tokens = 8, .blocks = kv_blocks});
  PageBudget& budget = bounds.budget;
  budget.page_bytes = 4096;
  budget.reserve = reserve_pages(bounds.spec, bounds.ladder, budget.page_bytes);
  budget.pages = form_pages(bounds.spec, bounds.full, budget.page_bytes) + budget.reserve;
  config.start = bounds.full;
  return config;
}

// Steps take 5 ms at bf16 and 2 ms at w4, and a tenth of a millisecond for each token.
inline StepCost cost_for_test() {
  StepCost cost{.fixed_us = 500, .token_us = 100};
  cost.of(Precision::kBf16).step_us = 4500;
  cost.of(Precision::kW4).step_us = 1500;
  return cost;
}

inline EngineConfig engine_for_test(const MorphConfig& morph,
                                    const StepCost& cost = cost_for_test()) {
  return {.scheduler = {.kv_blocks = morph.start.kv.blocks,
                        .largest_kv_blocks = form_path(morph.bounds).back().kv.blocks,
                        .block_tokens = morph.start.kv.block_tokens,
                        .max_num_seqs = 8,
                        .max_num_batched_tokens = 64,
                        .max_model_len = 64},
          .morph = morph,
          .step_cost = cost};
}

class HeldDevice : public Executor {
 public:
  explicit HeldDevice(const MorphConfig& config)
      : bounds_(config.bounds), form_(config.start), used_(pages_of(form_)) {}

  void start(StepPlan plan) override {
    log.push_back("step");
    for (const BlockId block : plan.blocks) {
      ASSERT_LT(block, blocks_planned_) << "a plan has a block that is not there";
    }
    work.emplace_back(std::move(plan));
  }
  void prepare(MorphId id, const MorphStep& step) override {
    log.push_back("prepare " + to_string(step));
    const std::int64_t pages =
        pages_to_prepare(bounds_.spec, planned_, step, bounds_.budget.page_bytes);
    used_ += pages;
    ASSERT_LE(used_, bounds_.budget.pages) << "the budget is exceeded";
    ASSERT_TRUE(prepared_.emplace(id, Prepared{step, pages}).second);
    preparing.push_back(id);
  }
  void commit(MorphId id) override {
    Prepared& prepared = prepared_.at(id);
    log.push_back("commit " + to_string(prepared.step));
    ASSERT_TRUE(prepared.ready) << "committed before it is ready";
    planned_ = after(planned_, prepared.step);
    blocks_planned_ = planned_.kv.blocks;
    work.emplace_back(id);
  }
  void abort(MorphId id) override {
    log.push_back("abort " + to_string(prepared_.at(id).step));
    used_ -= prepared_.at(id).pages;
    prepared_.erase(id);
  }
  void move_blocks(std::vector<BlockMove> moves) override {
    log.push_back("move " + std::to_string(moves.size()));
    work.emplace_back(std::move(moves));
  }

  bool set_quota(std::int64_t pages) override {
    if (used_ > pages || refuses_quotas) {
      return false;
    }
    log.push_back("quota " + std::to_string(pages));
    bounds_.budget.pages = pages;
    return true;
  }

  // Answers the n-th prepare() that has no answer yet; the step may have been aborted.
  MorphReady ready(std::size_t n, std::optional<Error> failure = std::nullopt) {
    const MorphId id = preparing.at(n);
    preparing.erase(preparing.begin() + static_cast<std::ptrdiff_t>(n));
    const auto found = prepared_.find(id);
    if (found != prepared_.end()) {
      found->second.ready = !failure;
      if (failure) {
        used_ -= found->second.pages;
        prepared_.erase(found);
      }
    }
    return {id, std::move(failure)};
  }

  // Applies the next commit or move; the next work must not be a step.
  std::optional<MorphDone> apply_next() {
    const auto work_now = std::move(work.front());
    work.pop_front();
    if (const auto* moves = std::get_if<std::vector<BlockMove>>(&work_now)) {
      on_moves(*moves);
      return std::nullopt;
    }
    const MorphId id = std::get<MorphId>(work_now);
    const Prepared prepared = prepared_.at(id);
    prepared_.erase(id);
    used_ -= prepared.pages + pages_of(form_);
    form_ = after(form_, prepared.step);
    used_ += pages_of(form_);
    EXPECT_LE(pages_of(form_) + bounds_.budget.reserve, bounds_.budget.pages) << "does not fit";
    on_form(form_);
    return MorphDone{id, bounds_.budget.pages - used_};
  }

  const Form& form() const { return form_; }
  std::int64_t pages_used() const { return used_; }
  std::int64_t pages_of(const Form& form) const {
    return form_pages(bounds_.spec, form, bounds_.budget.page_bytes);
  }

  std::vector<std::string> log;
  std::vector<MorphId> preparing;  // without an answer, aborted ones too
  std::deque<std::variant<StepPlan, MorphId, std::vector<BlockMove>>> work;
  bool refuses_quotas = false;
  std::function<void(const std::vector<BlockMove>&)> on_moves = [](const auto&) {};
  std::function<void(const Form&)> on_form = [](const Form&) {};

 private:
  struct Prepared {
    MorphStep step;
    std::int64_t pages = 0;
    bool ready = false;
  };

  FormBounds bounds_;
  Form form_;             // after the work done
  Form planned_ = form_;  // after the work asked for
  std::int64_t blocks_planned_ = form_.kv.blocks;
  std::int64_t used_;
  std::map<MorphId, Prepared> prepared_;
};

}  // namespace protean
