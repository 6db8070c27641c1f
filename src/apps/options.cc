#include "apps/options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace protean {
namespace {

template <class T>
CLI::Validator range_of(T least, T most, const char* kind) {
  const auto check_range = [least, most, kind](const std::string& text) {
    T number{};
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool inside = failed == std::errc() && end == text.data() + text.size() &&
                        number >= least && number <= most;
    return inside ? std::string()
                  : fmt::format("'{}' is not a {} from {} to {}", text, kind, least, most);
  };
  return {check_range, fmt::format("{} to {}", least, most)};
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return range_of<std::int64_t>(least, most, "whole number");
}

CLI::Validator number_range(double least, double most) {
  return range_of<double>(least, most, "number");
}

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string list = fmt::format("{}", fmt::join(words, ", "));
  const std::string values = fmt::format("{{{}}}", fmt::join(words, ","));
  const auto check_word = [words = std::move(words), list](const std::string& text) {
    const bool known = std::find(words.begin(), words.end(), text) != words.end();
    return known ? std::string() : fmt::format("'{}' is none of {}", text, list);
  };
  return {check_word, values};
}

CLI::Validator existing_path() {
  const auto check_path = [](const std::string& path) {
    std::error_code unknown;
    return std::filesystem::exists(path, unknown) ? std::string()
                                                  : fmt::format("'{}' does not exist", path);
  };
  return {check_path, ""};
}

void add_compute_options(CLI::App& app, ComputeOptions& options) {
  app.add_option("--cpus", options.cpus,
                 "CPUs to compute on, such as 0-7,16. Each gets a pinned thread, so leave them to "
                 "this process; --threads or a container's quota may lower the number (default "
                 "all CPUs that this process may use, threads not pinned)")
      ->type_name("LIST")
      ->group("Processors");
  app.add_option(
         "--threads", options.threads,
         "Compute with this many threads, at most 4 for each CPU of this process; 0 is one for "
         "each CPU, as far as a container's quota goes")
      ->check(whole_number(0, 4096))
      ->capture_default_str()
      ->group("Processors");
}

namespace {

void add_precision_options(CLI::App& app, ModelOptions& options) {
  app.add_option(
         "MODEL", options.model,
         "Hugging Face directory (config.json, *.safetensors, tokenizer), .gguf file, or the "
         "name of a model on a hub: ORG/NAME[:FILE][@REVISION], fetched if the cache lacks "
         "it")
      ->type_name("MODEL")
      ->required();
  app.option_defaults()->group("Model");
  app.add_option("--dtype", options.dtype,
                 "Precision of the layers. bf16 and f32 keep the weights as they are; s24 keeps "
                 "the two largest of four (see protean prune); w8, w4 and w3 quantise them to 8, 4 "
                 "or 3 bits while loading; w8a8 and w4a8 also round "
                 "activations to 8 bits and w8a7 to 7, which computes faster on most processors. "
                 "auto is what a quantised checkpoint holds, otherwise bf16")
      ->type_name("PRECISION")
      ->capture_default_str();
  app.add_option("--max-model-len", options.max_model_len,
                 "Longest prompt and answer together, in tokens. auto is the length that the "
                 "checkpoint states, as far as KV memory allows")
      ->type_name("TOKENS")
      ->capture_default_str();
  app.add_option("--chat-template", options.chat_template,
                 "Use the Jinja chat template in this file instead of the model's own")
      ->type_name("FILE")
      ->check(existing_path());
  app.add_option(
         "--special-tokens-in-content", options.special_tokens_in_content,
         "Special tokens written out in a chat's messages, such as <|im_end|>: escape reads "
         "them as plain text, so that only the chat template sets special tokens; allow "
         "reads them as special tokens")
      ->check(one_of({"escape", "allow"}))
      ->capture_default_str();
}

void add_memory_options(CLI::App& app, ModelOptions& options) {
  app.option_defaults()->group("Memory");
  app.add_option("--device-memory", options.device_memory,
                 "Bound for weights, KV cache and activations together, such as 12GiB, on each "
                 "device. auto is what they need")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--kv-cache-memory", options.kv_cache_memory,
                 "Memory for keys and values, such as 4GiB, on each device. auto is enough for "
                 "--max-num-seqs "
                 "sequences of full length, and at most half of the free memory or all that "
                 "--device-memory leaves")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype,
                 "Precision of keys and values: bf16, f32, or int8, which takes half the memory of "
                 "bf16. auto is f32 if --dtype is f32, otherwise bf16")
      ->type_name("PRECISION")
      ->capture_default_str();
  app.add_option("--block-size", options.block_size, "Tokens in a KV block")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", options.prefix_caching,
               "Reuse the KV of prompts that begin alike (default on)");
  app.option_defaults()->group("Batching");
  app.add_option("--max-num-seqs", options.max_num_seqs, "Most sequences in one step")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", options.max_num_batched_tokens,
                 "Most tokens in one step; longer prompts are computed in chunks. Activations take "
                 "memory in proportion")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  app.add_option(
         "--microbatches", options.microbatches,
         "How ready work is divided into the steps of a pipeline. cost: as many steps as "
         "stages, of equal predicted time; lookahead: halved further, as in KunServe, while "
         "steps stay efficient; released: by heuristics of KunServe's released code, whole "
         "prompts, the longest first to the step with the fewest tokens, one long prompt cut in "
         "a step; tokens: of equal numbers of tokens")
      ->check(one_of({"cost", "lookahead", "released", "tokens"}))
      ->capture_default_str();
}

}  // namespace

void add_group_options(CLI::App& app, GroupOptions& options) {
  app.option_defaults()->group("Devices");
  app.add_option(
         "--devices", options.devices,
         "Divide the CPUs among this many devices of all replicas together, or take them from a "
         "TOML file with a "
         "table [[device]] for each: cpus = \"0-7\", memory = \"12GiB\". auto is as many as "
         "the model's division needs, or if there is none, one for each NUMA node")
      ->type_name("NUMBER|FILE")
      ->capture_default_str();
  app.add_option("--tensor-parallel-size", options.tensor,
                 "Devices that share each layer; 0 is chosen: all of them if the KV heads divide "
                 "among them and there is no other division")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  app.add_option("--pipeline-parallel-size", options.pipeline,
                 "Stages of consecutive layers, each on devices of its own; 0 is chosen")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  app.add_option("--stages", options.stages,
                 "Layers of each stage, such as 10,9,7,6 (default even, or what leaves the most KV "
                 "cache if a device file gives stages different memory)")
      ->type_name("LIST");
  app.add_option("--max-tensor-parallel-size", options.most_tensor,
                 "Shards of each layer: the largest degree of tensor parallelism that this model "
                 "may ever have, on which the bits of its answers depend; 0 is the degree in use")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  app.add_flag("--keep-attention", options.keeps_attention,
               "Let replicas keep their attention weights in groups by shards, as in AMOEBA: a "
               "split copies none of them, and a group has less KV");
  app.add_flag("--overlap-kv", options.overlaps_kv,
               "Move the KV of replicas that become groups or split while a step still computes "
               "other layers, as in AMOEBA: faster only if copies have CPUs of their own");
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_precision_options(app, options);
  add_memory_options(app, options);
  app.option_defaults()->group("Devices");
  app.add_option("--data-parallel-size", options.group.replicas,
                 "Replicas of the model, each with weights, KV cache and devices of its own. "
                 "Memory flags are for each device, batch flags for each replica. By default 1; if "
                 "no flag names devices, CPUs, memory or a division, one on each of several NUMA "
                 "nodes, or fewer that are divided among nodes if the model does not fit one")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  add_group_options(app, options.group);
  add_compute_options(app, options.compute);
}

void add_variant_option(CLI::App& app, std::vector<std::string>& texts) {
  app.add_option("--variant", texts,
                 "Take a precision's weights from another model, such as one that protean quantize "
                 "wrote: w4=MODEL-w4. May be repeated")
      ->type_name("PRECISION=MODEL")
      ->allow_extra_args(false);
}

void add_variant_cache_option(CLI::App& app, std::string& folder) {
  app.add_option("--variant-cache", folder,
                 "Folder that keeps packed layers and what was measured of a model (default "
                 "protean in $XDG_CACHE_HOME or ~/.cache)")
      ->type_name("FOLDER");
}

}  // namespace protean
