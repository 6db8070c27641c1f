#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "contract/morph.h"
#include "contract/observation.h"
#include "ports/token_sink.h"

namespace protean {

// Keeps all outputs, and the latest observation, form and use of memory.
class RecordingSink : public TokenSink {
 public:
  void emit(OutputBatch batch) override {
    for (Output& output : batch.outputs) {
      outputs.push_back(std::move(output));
    }
    if (batch.form) {
      form = batch.form;
      ++forms;
    }
    memory = batch.memory ? batch.memory : memory;
    observation = batch.observation;
  }
  template <class T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const Output& output : outputs) {
      if (const T* match = std::get_if<T>(&output)) {
        found.push_back(*match);
      }
    }
    return found;
  }
  std::vector<Output> outputs;
  std::shared_ptr<const FormStatus> form;
  int forms = 0;
  std::optional<MemoryUse> memory;
  Observation observation;
};

}  // namespace protean
