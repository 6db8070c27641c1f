#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "contract/form.h"
#include "contract/step.h"
#include "cost/step_sizes.h"
#include "host/cpu_share.h"
#include "measure/stopwatch.h"
#include "model/checkpoint.h"
#include "model/variant_store.h"
#include "replica/device_group.h"
#include "worker/cpu_worker.h"

namespace protean {

struct StepRigOptions {
  std::filesystem::path model;
  std::filesystem::path variant_cache;  // empty: the default folder
  std::vector<Precision> precisions;    // precisions that layers will have, in any order
  std::vector<StepSizes> steps;         // steps that will be timed
  CpuShare cpus;
  std::optional<DeviceGroup> group;  // instead of one device on `cpus`
  bool cpu_time = false;
};

// The real worker without an engine, with as much memory as the steps to be timed need. Its weights
// change precision as a server's do, and its KV cache holds keys and values of random tokens.
// Quantised layers come from the variant store, which packs those that are missing first.
class StepRig {
 public:
  static Result<std::unique_ptr<StepRig>> create(const StepRigOptions& options);

  const ModelSpec& spec() const { return checkpoint_->spec(); }
  const Form& form() const { return form_; }
  const VariantStore& variants() const { return *variants_; }

  // Swaps the layers, one precision for each, and the embeddings.
  Status become(std::span<const LayerPrecision> layers, Precision embeddings);

  // What a server is that starts at this precision, its embeddings too: where they are others, with
  // a worker of its own.
  Status become(Precision precision);

  // Returns the time of one step, from the start of its plan to its result.
  Result<double> time_s(const StepSizes& sizes);

  StepPlan plan_of(const StepSizes& sizes);

 private:
  using MorphAnswer = std::variant<MorphReady, MorphDone>;

  StepRig(const StepRigOptions& options, std::shared_ptr<Checkpoint> checkpoint,
          std::shared_ptr<VariantStore> variants);
  Result<PageBudget> choose_memory(const StepRigOptions& options);
  Form form_at(Precision precision, const KvForm& kv) const;
  Status start_worker();
  Status fill_kv();
  Status swap(const SwapComponent& swap);
  MorphAnswer wait_for_morph();

  const std::shared_ptr<Checkpoint> checkpoint_;
  const std::shared_ptr<VariantStore> variants_;
  const DeviceGroup group_;
  const Stopwatch stopwatch_;
  const int max_step_tokens_;
  const int max_positions_;
  Form form_;
  PageBudget budget_;
  std::uint64_t last_step_ = 0;
  std::uint64_t last_morph_ = 0;
  BoundedQueue<StepResult> results_{1};
  BoundedQueue<MorphAnswer> morphs_{1};
  std::unique_ptr<CpuWorker> worker_;  // last member: its threads push into the queues
};

}  // namespace protean
