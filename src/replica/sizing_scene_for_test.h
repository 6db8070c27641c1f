#pragma once

#include <string>

#include "base/units.h"
#include "contract/model_spec.h"
#include "host/machine.h"

namespace protean {

// 1 KiB of KV a token in bf16: 4 layers x 2 x 2 heads x 32 x 2 bytes.
inline ModelSpec spec_of_1k_context() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = 4;
  spec.hidden = 128;
  spec.ffn = 256;
  spec.vocab = 512;
  spec.max_context = 1024;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 32};
  return spec;
}

inline const Machine kMachine = {
    .topology = {.cpus = {{.cpu = 0}, {.cpu = 1, .core = 1}, {.cpu = 2, .core = 2}}},
    .cores = 3,
    .free_memory_bytes = kGiB};

// Returns the word after `flag` in a message; empty if the message does not name the flag.
inline std::string named_value(const std::string& message, const std::string& flag) {
  const std::size_t at = message.find(" " + flag + " ", message.find(" that "));
  const std::size_t value = at + flag.size() + 2;
  return at == message.npos ? "" : message.substr(value, message.find(',', value) - value);
}

}  // namespace protean
