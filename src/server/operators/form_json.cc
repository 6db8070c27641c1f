#include "server/operators/form_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/call/json_body.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 31;

ApiError no_wish(std::string message, std::string param) {
  return {.message = std::move(message), .param = std::move(param)};
}

double seconds_of(TimeNs ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerS);
}

json::object shown(const SwapComponent& swap) {
  if (swap.component == Component::kEmbeddings) {
    return {{"kind", "embeddings"}, {"text", to_string(swap)}, {"to", to_string(swap.to)}};
  }
  return {{"kind", "swap"},
          {"text", to_string(swap)},
          {"layer", swap.layer},
          {"half", to_string(swap.component)},
          {"to", to_string(swap.to)}};
}

json::object shown(const ResizeKv& resize) {
  return {{"kind", "kv"}, {"text", to_string(resize)}, {"kv_blocks", resize.blocks}};
}

json::object shown(const HoldShards& hold) {
  json::array runs;
  for (const ShardRun& run : hold.runs) {
    runs.push_back(json::object{{"first", run.first}, {"count", run.count}});
  }
  return {{"kind", "hold"},
          {"text", to_string(hold)},
          {"layer", hold.layer},
          {"component", to_string(hold.component)},
          {"shards", std::move(runs)}};
}

json::object shown_step(const MorphStep& step) {
  return std::visit([](const auto& what) { return shown(what); }, step);
}

// What a morph changes in all, in one line: "8 halves of layers to w4, KV to 812 blocks".
struct MorphSummary {
  std::vector<std::pair<Precision, int>> halves;
  std::optional<Precision> embeddings;
  std::optional<std::int64_t> kv_blocks;  // blocks after the last resize
  int held = 0;                           // components that devices hold otherwise

  void operator()(const SwapComponent& swap) {
    if (swap.component == Component::kEmbeddings) {
      embeddings = swap.to;
      return;
    }
    const auto found = std::find_if(halves.begin(), halves.end(),
                                    [&](const auto& count) { return count.first == swap.to; });
    if (found == halves.end()) {
      halves.emplace_back(swap.to, 1);
    } else {
      ++found->second;
    }
  }
  void operator()(const ResizeKv& resize) { kv_blocks = resize.blocks; }
  void operator()(const HoldShards&) { ++held; }

  std::string text() const {
    std::vector<std::string> changes;
    for (const auto& [precision, count] : halves) {
      changes.push_back(fmt::format("{} {} to {}", count,
                                    count == 1 ? "half of a layer" : "halves of layers",
                                    to_string(precision)));
    }
    if (embeddings) {
      changes.push_back(fmt::format("embeddings to {}", to_string(*embeddings)));
    }
    if (held > 0) {
      changes.push_back(fmt::format("{} component{} in other shards", held, held == 1 ? "" : "s"));
    }
    if (kv_blocks) {
      changes.push_back(fmt::format("KV to {} blocks", *kv_blocks));
    }
    return changes.empty() ? "nothing to change" : fmt::format("{}", fmt::join(changes, ", "));
  }
};

// Reads "w4", or "bf16/w4" for attention and MLP.
Checked<LayerPrecision> read_layer(const json::value& value) {
  if (!value.is_string()) {
    return no_wish(R"(a layer is a precision, like "w4", or two, like "bf16/w4")", "layers");
  }
  const auto text = std::string_view(value.get_string());
  const std::size_t slash = text.find('/');
  const auto attention = parse_precision(text.substr(0, slash));
  const auto mlp =
      slash == std::string_view::npos ? attention : parse_precision(text.substr(slash + 1));
  for (const auto& half : {attention, mlp}) {
    if (!half.ok()) {
      return no_wish(half.error().message, "layers");
    }
  }
  return LayerPrecision{*attention, *mlp};
}

Checked<std::vector<LayerPrecision>> read_layers(const json::value& value, int layers) {
  std::vector<LayerPrecision> read;
  if (!value.is_array()) {
    Checked<LayerPrecision> every = read_layer(value);
    if (ApiError* error = std::get_if<ApiError>(&every)) {
      return std::move(*error);
    }
    read.assign(static_cast<std::size_t>(layers), std::get<LayerPrecision>(every));
    return read;
  }
  if (std::ssize(value.get_array()) != layers) {
    return no_wish(fmt::format("the model has {} layers, but {} are listed: list each, or send one "
                               "precision for all",
                               layers, value.get_array().size()),
                   "layers");
  }
  for (const json::value& one : value.get_array()) {
    Checked<LayerPrecision> layer = read_layer(one);
    if (ApiError* error = std::get_if<ApiError>(&layer)) {
      return std::move(*error);
    }
    read.push_back(std::get<LayerPrecision>(layer));
  }
  return read;
}

std::optional<ApiError> read_field(const json::key_value_pair& field, int layers, FormWish& wish) {
  const json::value& value = field.value();
  if (field.key() == "layers") {
    Checked<std::vector<LayerPrecision>> read = read_layers(value, layers);
    if (ApiError* error = std::get_if<ApiError>(&read)) {
      return std::move(*error);
    }
    wish.layers = std::get<std::vector<LayerPrecision>>(std::move(read));
  } else if (field.key() == "embeddings") {
    const std::string_view name = value.is_string() ? value.get_string() : std::string_view();
    if (const auto read = parse_precision(name); read.ok()) {
      wish.embeddings = *read;
    } else {
      return no_wish(R"(embeddings have a precision, like "w8")", "embeddings");
    }
  } else if (field.key() == "kv_blocks") {
    if (!value.is_int64() || value.get_int64() < 1 || value.get_int64() >= kMostBlocks) {
      return no_wish("kv_blocks is a number of blocks, at least 1", "kv_blocks");
    }
    wish.kv_blocks = value.get_int64();
  } else if (field.key() == "mode") {
    const auto read = parse_morph_mode(value.is_string() ? value.get_string() : std::string_view());
    if (!read.ok()) {
      return no_wish(read.error().message, "mode");
    }
    wish.mode = *read;
  } else if (field.key() == "quality_floor") {
    const auto read =
        parse_quality_floor(value.is_string() ? value.get_string() : std::string_view());
    if (!read.ok()) {
      return no_wish(read.error().message, "quality_floor");
    }
    wish.floor = *read;
  } else if (field.key() == "release") {
    if (!value.is_bool() || !value.get_bool()) {
      return no_wish("release can only be true: the policy then decides again", "release");
    }
    wish.release = true;
  } else {
    return no_wish(
        fmt::format("\"{}\" is not part of a form's wish: send layers, embeddings, kv_blocks, "
                    "release, mode or quality_floor",
                    excerpt(std::string(field.key()))),
        std::string(field.key()));
  }
  return std::nullopt;
}

json::object shown_load(const LoadSeen& load) {
  return {{"arrivals_per_s", load.arrivals_per_s},
          {"arrivals_last_s", load.arrivals_last_s},
          {"arrivals_per_s_most", load.most_arrivals_per_s},
          {"answer_tokens", load.answer_tokens},
          {"expected_wait_s", seconds_of(load.expected_wait_ns)},
          {"ttft_p95_s", seconds_of(load.ttft_p95_ns)},
          {"tpot_p95_s", seconds_of(load.tpot_p95_ns)}};
}

json::value shown_packing(const Packing* packing) {
  if (packing == nullptr) {
    return nullptr;
  }
  return json::object{
      {"done", packing->done},
      {"total", packing->total},
      {"failure", packing->failure.empty() ? json::value(nullptr)
                                           : json::value(json::string(packing->failure))}};
}

json::object shown_prediction(const FormPrediction& form) {
  return {{"precision", form.precision},
          {"kv_blocks", form.kv_blocks},
          {"late", form.late},
          {"late_most", form.late_most},
          {"kv_short_blocks", form.kv_short_blocks},
          {"answer_tokens_per_s", form.answer_tokens_per_s},
          {"capacity_per_s", form.capacity_per_s},
          {"kl_nats", form.kl_nats},
          {"cost", form.cost},
          {"cost_most", form.cost_most},
          {"late_lasting", form.late_lasting ? json::value(*form.late_lasting) : json::value()},
          {"morph_s", form.morph_s},
          {"verdict", form.verdict}};
}

}  // namespace

json::object shown_form(const Form& form) {
  json::array stages;
  std::size_t tensor = 1;
  for (const Stage& stage : stages_of(form)) {
    json::array devices;
    for (const int device : stage.devices) {
      devices.push_back(form.group[static_cast<std::size_t>(device)].device.value);
    }
    tensor = std::max(tensor, stage.devices.size());
    stages.push_back(json::object{{"first_layer", stage.first_layer},
                                  {"layer_count", stage.layer_count},
                                  {"devices", std::move(devices)}});
  }
  json::array layers;
  for (const LayerPrecision& layer : form.layer_precision) {
    layers.push_back(json::value(to_string(layer)));
  }
  return {{"text", to_string(form)},
          {"tp_degree", tensor},
          {"stages", std::move(stages)},
          {"layer_precision", std::move(layers)},
          {"embeddings", to_string(form.embeddings)},
          {"kv_precision", to_string(form.kv.precision)},
          {"kv_block_tokens", form.kv.block_tokens},
          {"kv_blocks", form.kv.blocks}};
}

json::array shown_precisions(const std::vector<Precision>& precisions) {
  json::array shown;
  for (const Precision precision : precisions) {
    shown.emplace_back(to_string(precision));
  }
  return shown;
}

json::object shown_status(const FormStatus& status) {
  json::array predictions;
  for (const FormPrediction& form : status.predictions) {
    predictions.push_back(shown_prediction(form));
  }
  json::object tokens;
  for (const TokensAt& at : status.output_tokens) {
    tokens[at.precision] = at.tokens;
  }
  return {{"form", shown_form(status.form)},
          {"wanted", shown_form(status.wanted)},
          {"mode", to_string(status.mode)},
          {"quality_floor", to_string(status.floor)},
          {"ladder", shown_precisions(status.ladder)},
          {"precisions", shown_precisions(status.precisions)},
          {"embeddings_precisions", shown_precisions(status.embeddings_precisions)},
          {"pinned", status.pinned},
          {"pages",
           {{"bytes_each", status.pages.page_bytes},
            {"all", status.pages.all},
            {"free", status.pages.free}}},
          {"packing", shown_packing(status.packing.get())},
          {"totals",
           {{"swaps_down", status.swaps_down_total},
            {"swaps_up", status.swaps_up_total},
            {"kv_resizes", status.kv_resizes_total},
            {"blocks_moved", status.blocks_moved_total},
            {"failures", status.failures_total},
            {"remarks", status.remarks_total}}},
          {"output_tokens", std::move(tokens)},
          {"load", shown_load(status.load)},
          {"predictions", std::move(predictions)}};
}

json::object shown_morph(const Morph& morph) {
  MorphSummary summary;
  json::array steps;
  for (const MorphStep& step : morph.steps) {
    std::visit(summary, step);
    steps.push_back(shown_step(step));
  }
  return {{"summary", summary.text()}, {"reason", morph.reason}, {"steps", std::move(steps)}};
}

json::array shown_devices(const std::vector<DevicePages>& devices) {
  json::array shown;
  for (const DevicePages& pages : devices) {
    json::array layers;
    for (const auto& [attention, mlp] : pages.layers) {
      layers.push_back(json::array{attention, mlp});
    }
    json::object device{{"device", pages.device.value},
                        {"layers", std::move(layers)},
                        {"embeddings", pages.embeddings},
                        {"kv", pages.kv}};
    if (pages.lacking > 0) {
      device["lacking"] = pages.lacking;
    }
    shown.push_back(std::move(device));
  }
  return shown;
}

json::array shown_history(const MorphHistory& history, TimeNs now_ns, double unix_time_s) {
  json::array shown;
  for (const auto& entry : history) {
    const MorphRecord& record = *entry;
    json::object one = shown_step(record.step);
    one["id"] = record.id;
    one["reason"] = record.reason;
    one["asked_at"] = unix_time_s - seconds_of(now_ns - record.asked_ns);
    one["ready_after_s"] = record.ready_ns < 0
                               ? json::value(nullptr)
                               : json::value(seconds_of(record.ready_ns - record.asked_ns));
    one["done_after_s"] = record.done_ns < 0
                              ? json::value(nullptr)
                              : json::value(seconds_of(record.done_ns - record.asked_ns));
    one["failure"] =
        record.failure.empty() ? json::value(nullptr) : json::value(json::string(record.failure));
    one["remark"] =
        record.remark.empty() ? json::value(nullptr) : json::value(json::string(record.remark));
    shown.push_back(std::move(one));
  }
  return shown;
}

Checked<FormWish> read_form_wish(std::string_view body, int layers) {
  Checked<json::value> parsed = parse_json_body(body);
  if (ApiError* error = std::get_if<ApiError>(&parsed)) {
    return std::move(*error);
  }
  const json::value& value = std::get<json::value>(parsed);
  if (!value.is_object() || value.get_object().empty()) {
    return no_wish(R"(send what the form should be, like {"layers": "w8"} or {"kv_blocks": 512})",
                   "");
  }
  FormWish wish;
  for (const json::key_value_pair& field : value.get_object()) {
    if (std::optional<ApiError> error = read_field(field, layers, wish)) {
      return *std::move(error);
    }
  }
  if (wish.release && wish.names_form()) {
    return no_wish("release comes alone: what else is asked for would pin the form again",
                   "release");
  }
  if (wish.names_policy() && (wish.release || wish.names_form())) {
    return no_wish("mode and quality_floor are the policy's: send a form or a release apart",
                   wish.mode ? "mode" : "quality_floor");
  }
  return wish;
}

}  // namespace protean
