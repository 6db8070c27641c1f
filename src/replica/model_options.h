#pragma once

#include <string>
#include <vector>

#include "contract/precision.h"
#include "host/cpu_share.h"
#include "replica/device_group.h"

namespace protean {

// A model and how it is to be served, as a user states it.
struct ModelOptions {
  std::string model;  // a path, once locate_model() has found it
  std::string name;   // name on a hub that `model` was found by; empty: a path was given
  std::string dtype = "auto";
  std::string max_model_len = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kv_cache_memory = "auto";
  std::string device_memory = "auto";  // bound for weights, KV and activations together
  bool may_morph = false;              // the form may change, and replicas may become groups
  std::vector<Precision> ladder;       // precisions that layers may be lowered to; may be empty
  std::string chat_template;
  std::string special_tokens_in_content = "escape";  // or "allow"
  ComputeOptions compute;
  GroupOptions group;
  int block_size = 16;
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  bool scales = false;                // long requests have replicas become groups
  bool equal_replicas = false;        // groups by shards need replicas of equal memory
  std::string microbatches = "cost";  // what divides steps among stages: see --microbatches
  bool prefix_caching = true;
};

}  // namespace protean
