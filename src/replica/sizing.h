#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/pages.h"
#include "cost/step_time.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "replica/model_options.h"

namespace protean {

// What a replica has that shares a model with replicas of unequal memory.
struct ReplicaMemory {
  std::int64_t lacking_pages = 0;  // of each device (Holding)
  std::int64_t kv_blocks = 0;
  std::int64_t largest_kv_blocks = 0;  // see Sizing
};

// The form that each replica of a model starts in, and the memory it needs.
struct Sizing {
  std::vector<DeviceSpec> devices;  // devices of all replicas, replica after replica
  std::vector<CpuShare> cpus;       // CPUs that each device computes on
  // Names the first replica's devices. If replicas have unequal memory, its KV is that of one with
  // the least.
  Form form;
  std::vector<ReplicaMemory> unequal;  // by replica; empty: all have equal memory
  PageBudget budget;                   // pages for weights and KV of the device with most
  StepPrecision step_precision;        // the form's precisions
  std::int64_t largest_kv_blocks = 0;  // if all layers are at their lowest precision
  int max_model_len = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  // Memory of pages and activations that a device takes, the one with most pages.
  std::int64_t device_bytes = 0;
  bool joins = false;  // replicas may become groups: each device has buffers for that
  std::vector<std::string> warnings;

  int replicas() const { return static_cast<int>(devices.size() / form.group.size()); }
};

// Returns the sizing with the form and the KV of one replica.
Sizing sizing_of(Sizing all, int replica);

// Returns the pages that all devices together have fewer than if each had the most of them.
std::int64_t lacking_pages(const Sizing& sizing);

// Returns the most steps that joined replicas have in flight: one for each stage.
inline int joint_steps(const Sizing& sizing) {
  return sizing.replicas() * static_cast<int>(stages_of(sizing.form).size());
}

// Returns the most rows of a step of joined replicas: prompts are limited to the tokens that one
// replica's steps may take, while each replica has its decodes.
inline int joint_rows(int step_tokens, int replicas, int max_num_seqs) {
  return step_tokens + replicas * max_num_seqs;
}

// Returns the precision that --dtype names; for "auto" the highest in which the checkpoint stores a
// half of a layer.
Result<Precision> dtype_precision(const std::string& dtype, const StoredWeights& stored);

// Chooses the form and its memory from the options and what this machine has free. Where the
// options name neither devices nor their memory, takes the first of divisions_to_try() that holds
// sequences of the model's full length; if none does, the first of those that hold the longest.
// `check` may refuse what a division allows, or shorten its sequences.
Result<Sizing> choose_sizing(const ModelOptions& options, const ModelSpec& spec,
                             const Machine& machine,
                             const std::function<Status(Sizing&)>& check = {});

// Returns true if --max-model-len is auto.
bool is_any_length(const ModelOptions& options);

// Returns the KV blocks of the widest group that the replicas can form by shards, or `blocks`,
// which one replica may have, if that is more. If any length will do, only groups count that form
// by themselves.
std::int64_t widest_kv_blocks(const ModelOptions& options, const ModelSpec& spec,
                              const Sizing& sizing, std::int64_t blocks);

// Makes the longest sequence fit a KV cache of `most_blocks`. If --max-model-len is auto, shortens
// it with a warning; otherwise fails.
Status fit_length(const ModelOptions& options, const ModelSpec& spec, std::int64_t most_blocks,
                  Sizing& sizing);

}  // namespace protean
