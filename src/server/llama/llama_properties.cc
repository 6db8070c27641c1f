#include "server/llama/llama_properties.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

namespace protean {
namespace {

namespace json = boost::json;

// Returns the sampling that a request without fields gets.
json::object default_sampling(const ServedModel& model) {
  const SamplingParams plain;
  const GenerationDefaults& defaults = model.defaults;
  return {{"n_predict", -1},
          {"max_tokens", -1},
          {"seed", -1},
          {"temperature", defaults.temperature.value_or(1.0F)},
          {"top_k", defaults.top_k.value_or(plain.top_k)},
          {"top_p", defaults.top_p.value_or(plain.top_p)},
          {"min_p", defaults.min_p.value_or(plain.min_p)},
          {"repeat_penalty", 1.0},
          {"presence_penalty", 0.0},
          {"frequency_penalty", 0.0},
          {"stop", json::array()},
          {"ignore_eos", false},
          {"stream", false},
          {"grammar", ""}};
}

}  // namespace

json::object llama_properties(const ServedModel& model, int slots, std::string_view version) {
  return {{"default_generation_settings",
           json::object{{"n_ctx", model.max_model_len}, {"params", default_sampling(model)}}},
          {"total_slots", slots},
          {"model_alias", model.names.front()},
          {"model_path", model.names.front()},
          {"chat_template", model.chat.template_source},
          {"bos_token", model.chat.bos_token},
          {"eos_token", model.chat.eos_token},
          {"modalities", json::object{{"vision", false}, {"audio", false}}},
          {"build_info", fmt::format("protean-{}", version)}};
}

json::object llama_slot(const LlamaSlot& slot, int id, const ServedModel& model) {
  const bool busy = slot.request != 0;
  json::object shown{
      {"id", id}, {"n_ctx", model.max_model_len}, {"speculative", false}, {"is_processing", busy}};
  if (busy) {
    shown["id_task"] = slot.request;
    shown["params"] = json::object{{"n_predict", slot.max_tokens}};
    shown["next_token"] = json::object{{"has_next_token", true},
                                       {"n_remain", slot.max_tokens - slot.output_tokens},
                                       {"n_decoded", slot.output_tokens}};
  }
  return shown;
}

}  // namespace protean
