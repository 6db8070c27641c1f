// Measures what a morph costs: attaching and detaching pages, and the slowdown of decode steps
// while MLPs of 1B-shaped layers are swapped all the time. Prints medians; compare only numbers of
// one run.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <semaphore>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "cost/pages.h"
#include "model/synthetic_checkpoint.h"
#include "worker/cpu_worker.h"

namespace protean {
namespace {

constexpr int kLayers = 2;
constexpr int kBatch = 8;
constexpr int kContext = 256;
constexpr int kRounds = 6;  // in each, steps without and then with swaps
constexpr int kSteps = 25;  // steps of each kind in a round
constexpr int kBlockTokens = 16;

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

void measure_pages() {
  constexpr std::int64_t kPages = 64;
  const auto pool = *cpu::PagePool::create(2 * kMiB, kPages);
  cpu::PageRange range = *cpu::PageRange::reserve(*pool, kPages);
  const auto timed = [](auto act) {
    const Clock::time_point begin = Clock::now();
    act();
    return 1000 * milliseconds_since(begin);
  };
  const auto attach = [&](std::int64_t pages) {
    return timed([&] { check(range.attach(pages).ok(), "there are free pages"); });
  };
  const auto detach = [&](std::int64_t pages) { return timed([&] { range.detach(pages); }); };
  fmt::print("us per page of 2 MiB\n  first attach (allocates a huge page)  {:8.1f}\n",
             attach(kPages) / kPages);
  for (const std::int64_t pages : {std::int64_t{1}, kPages}) {
    std::vector<double> attached;
    std::vector<double> detached;
    for (int i = 0; i < 100; ++i) {
      detached.push_back(detach(pages) / static_cast<double>(pages));
      attached.push_back(attach(pages) / static_cast<double>(pages));
    }
    fmt::print("  {:2} pages at once: attach {:6.2f}, detach {:6.2f}\n", pages,
               quantile(attached, 0.5), quantile(detached, 0.5));
  }
}

ModelSpec spec_1b_shaped() {
  ModelSpec spec;
  spec.architecture = "bench";
  spec.layers = kLayers;
  spec.hidden = 2048;
  spec.ffn = 8192;
  spec.vocab = 4096;
  spec.max_context = 2048;
  spec.attention = {.heads = 32, .kv_heads = 8, .head_dim = 64};
  return spec;
}

// Packed weights in memory, like a variant cache that is in the page cache.
class PackedHalves {
 public:
  explicit PackedHalves(const ModelSpec& spec) : checkpoint_(spec) {}

  Result<std::string> read(const ComponentVariant& which, std::span<std::byte> memory,
                           const Pace& pace) {
    constexpr std::size_t kChunk = 256 * kKiB;
    const std::vector<std::byte>& packed = packed_of(which);
    for (std::size_t at = 0; at < memory.size(); at += kChunk) {
      const std::size_t count = std::min(kChunk, memory.size() - at);
      std::memcpy(memory.data() + at, packed.data() + at, count);
      if (!pace(static_cast<std::int64_t>(count))) {
        return make_error(ErrorCode::kUnavailable, "aborted");
      }
    }
    return std::string();
  }

  // Returns the same bytes for all layers, since only time is measured.
  const std::vector<std::byte>& packed_of(const ComponentVariant& which) {
    std::vector<std::byte>& packed = packed_[{which.component, which.precision}];
    if (packed.empty()) {
      const std::int64_t size =
          component_size(checkpoint_.spec(), which.component, which.precision);
      auto region = *cpu::Region::map(size);
      check(load_component(checkpoint_, {0, which.component, which.precision}, region.data()).ok(),
            "synthetic weights can be packed");
      packed.assign(region.data(), region.data() + size);
    }
    return packed;
  }

 private:
  SyntheticCheckpoint checkpoint_;
  std::map<std::pair<Component, Precision>, std::vector<std::byte>> packed_;
};

StepPlan decode_step() {
  StepPlan plan{.id = StepId{1}};
  constexpr int kBlocks = kContext / kBlockTokens;
  for (int i = 0; i < kBatch; ++i) {
    plan.tokens.push_back(i);
    for (int block = 0; block < kBlocks; ++block) {
      plan.blocks.push_back(i * kBlocks + block);
    }
    plan.slices.push_back({.first_position = kContext - 1,
                           .token_begin = i,
                           .token_count = 1,
                           .block_begin = i * kBlocks,
                           .block_count = kBlocks,
                           .sample = i});
    plan.samples.push_back({.params = {.temperature = 0.0F}, .position = kContext});
  }
  return plan;
}

// A worker that decodes while parts of its layers are swapped for equal ones, so that all steps
// compute the same. Each swap is prepared when the previous one is done.
class Bench {
 public:
  // `share` is the part of one core that swaps may use while steps run.
  Bench(const ModelSpec& spec, PackedHalves& packed, double share) {
    constexpr int kThreads = 2;
    const Form form = single_device_form(
        spec, Precision::kBf16, DeviceId{0},
        {.block_tokens = kBlockTokens, .blocks = kBatch * kContext / kBlockTokens});
    const std::int64_t page_bytes = page_bytes_for(spec);
    const std::int64_t reserve =
        2 * component_pages(spec, Component::kMlp, Precision::kBf16, page_bytes);
    worker_ = *CpuWorker::create(
        {.form = form,
         .devices = {{.threads = kThreads}},
         .max_step_tokens = kBatch,
         .max_positions = 2 * kContext,
         .pages = PageBudget{page_bytes, form_pages(spec, form, page_bytes) + reserve},
         .read_component = [&](const ComponentVariant& which, std::span<std::byte> memory,
                               const Pace& pace) { return packed.read(which, memory, pace); },
         .background_share = share / kThreads},
        SyntheticCheckpoint(spec), {}, [this](const StepResult&) { stepped_.release(); },
        {.ready = [this](const MorphReady& ready) { worker_->commit(ready.id); },
         .done = [this](const MorphDone&) { swap_done(); }});
  }

  // Runs steps, with or without swaps at the same time, and appends their times.
  void step(bool swapping, std::vector<double>& times) {
    swapping_ = swapping;
    if (swapping) {
      swap_next();
    }
    for (int i = 0; i < kSteps; ++i) {
      const Clock::time_point begin = Clock::now();
      worker_->start(decode_step());
      stepped_.acquire();
      times.push_back(milliseconds_since(begin));
    }
    swapping_ = false;
    if (swapping) {
      swaps_over_.acquire();
    }
  }

  int swaps() const { return swaps_; }

 private:
  void swap_next() {
    ++swaps_;
    worker_->prepare(MorphId{static_cast<std::uint64_t>(swaps_)},
                     SwapComponent{swaps_ % kLayers, Component::kMlp, Precision::kBf16});
  }
  void swap_done() {
    if (swapping_) {
      swap_next();
    } else {
      swaps_over_.release();
    }
  }

  std::binary_semaphore stepped_{0};
  std::binary_semaphore swaps_over_{0};
  std::atomic<bool> swapping_{false};
  std::atomic<int> swaps_{0};
  std::unique_ptr<CpuWorker> worker_;
};

void measure_swaps() {
  const ModelSpec spec = spec_1b_shaped();
  PackedHalves packed(spec);
  fmt::print(
      "\n{} layers of 1B shape at bf16; a batch of {} decodes at {} tokens while the bf16 MLP\n"
      "({}) of one layer after the other is copied from memory and swapped in\n"
      "  share of a core   step ms alone   during swaps   slower   P99 / alone   swap ms\n",
      kLayers, kBatch, kContext,
      format_bytes(component_size(spec, Component::kMlp, Precision::kBf16)));
  for (const double share : {0.05, 0.1, 1.0}) {
    Bench bench(spec, packed, share);
    std::vector<double> quiet;
    std::vector<double> during;
    double swapping_ms = 0;
    for (int round = 0; round < kRounds; ++round) {
      bench.step(false, quiet);
      const Clock::time_point begin = Clock::now();
      bench.step(true, during);
      swapping_ms += milliseconds_since(begin);
    }
    const double alone = quantile(quiet, 0.5);
    const double median = quantile(during, 0.5);
    fmt::print("  {:15.2f} {:15.2f} {:14.2f} {:7.1f}% {:13.2f} {:9.1f}\n", share, alone, median,
               100 * (median / alone - 1), quantile(during, 0.99) / quantile(quiet, 0.99),
               swapping_ms / bench.swaps());
  }
}

}  // namespace
}  // namespace protean

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  protean::measure_pages();
  protean::measure_swaps();
}
