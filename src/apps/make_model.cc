#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "apps/options.h"
#include "apps/output_directory.h"
#include "cost/known_models.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "model/checkpoint_writer.h"
#include "model/hf_config_writer.h"
#include "model/random_checkpoint.h"
#include "terminal/output.h"
#include "terminal/progress.h"
#include "tokenizer/byte_alphabet.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int kBytes = 256;  // the first tokens
constexpr TokenId kBegin = 256;
constexpr TokenId kEnd = 257;

struct MakeModelOptions {
  std::string like;
  std::string format = "hf";
  std::uint64_t seed = 1;
  ComputeOptions compute;
  std::string output;
  bool overwrite = false;
};

// Returns a token for each byte, two special tokens, and words that no text is cut into, so that
// every token that a random model draws can be decoded.
std::vector<std::string> token_texts(int vocab) {
  std::vector<std::string> tokens;
  tokens.reserve(static_cast<std::size_t>(vocab));
  for (int byte = 0; byte < kBytes; ++byte) {
    tokens.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  }
  tokens.insert(tokens.end(), {"<|begin|>", "<|end|>"});
  while (std::ssize(tokens) < vocab) {
    tokens.push_back(to_byte_alphabet(
        std::ssize(tokens) == kEnd + 1 ? " w" : fmt::format(" w{}", tokens.size())));
  }
  return tokens;
}

// Returns the one merge that some readers require: a space and a "w".
std::string one_merge() {
  return to_byte_alphabet(" ") + " " + to_byte_alphabet("w");
}

std::string tokenizer_json(const std::vector<std::string>& tokens) {
  json::object vocabulary;
  json::array added;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const bool special = id == kBegin || id == kEnd;
    if (special) {
      added.push_back(json::object{{"id", id},
                                   {"content", tokens[id]},
                                   {"special", true},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false}});
    } else {
      vocabulary[tokens[id]] = id;
    }
  }
  const json::object byte_level{{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", true}};
  return json::serialize(
      json::object{{"version", "1.0"},
                   {"added_tokens", std::move(added)},
                   {"normalizer", nullptr},
                   {"pre_tokenizer", byte_level},
                   {"post_processor", nullptr},
                   {"decoder", byte_level},
                   {"model", json::object{{"type", "BPE"},
                                          {"vocab", std::move(vocabulary)},
                                          {"merges", json::array{one_merge()}}}}});
}

Status write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << "\n";
  file.close();
  return file ? Status() : make_error(ErrorCode::kInternal, "{} cannot be written", path.string());
}

Status write_hf(const Checkpoint& checkpoint, const ArchitectureRow& row,
                const fs::path& directory) {
  const ModelSpec& spec = checkpoint.spec();
  auto config = hf_config_of(spec, {.stop_ids = {kEnd}});
  if (!config.ok()) {
    return config.error();
  }
  (*config)["bos_token_id"] = kBegin;
  const std::vector<std::string> tokens = token_texts(spec.vocab);
  const json::object tokenizer_config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                      {"bos_token", tokens[kBegin]},
                                      {"eos_token", tokens[kEnd]},
                                      {"add_bos_token", false},
                                      {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, std::string> texts[] = {
      {"config.json", json::serialize(*config)},
      {"tokenizer.json", tokenizer_json(tokens)},
      {"tokenizer_config.json", json::serialize(tokenizer_config)}};
  for (const auto& [name, text] : texts) {
    if (Status written = write_text(directory / name, text); !written.ok()) {
      return written;
    }
  }
  return write_safetensors(checkpoint, row.hf_tensors->names, directory / "model.safetensors",
                           progress_bar("writing"));
}

GgufMetadata gguf_metadata(const ModelSpec& spec, const std::string& name) {
  GgufMetadata metadata;
  const std::string prefix = spec.architecture + ".";
  const auto add = [&](std::string_view key, auto value) {
    metadata.add(prefix + std::string(key), value);
  };
  const auto count = [](int value) { return static_cast<std::uint32_t>(value); };
  metadata.add("general.architecture", spec.architecture);
  metadata.add("general.name", name);
  metadata.add("general.file_type", std::uint32_t{32});  // mostly bf16
  add("block_count", count(spec.layers));
  add("context_length", count(spec.max_context));
  add("embedding_length", count(spec.hidden));
  add("feed_forward_length", count(spec.ffn));
  add("vocab_size", count(spec.vocab));
  add("attention.head_count", count(spec.attention.heads));
  add("attention.head_count_kv", count(spec.attention.kv_heads));
  add("attention.key_length", count(spec.attention.head_dim));
  add("attention.value_length", count(spec.attention.head_dim));
  add("attention.layer_norm_rms_epsilon", spec.norm_eps);
  add("rope.freq_base", static_cast<float>(spec.rope.theta));
  add("rope.dimension_count", count(spec.attention.head_dim));
  const std::vector<std::string> tokens = token_texts(spec.vocab);
  constexpr std::int32_t kNormal = 1;
  constexpr std::int32_t kControl = 3;
  std::vector<std::int32_t> types(tokens.size(), kNormal);
  types[kBegin] = kControl;
  types[kEnd] = kControl;
  metadata.add("tokenizer.ggml.model", "gpt2");
  metadata.add("tokenizer.ggml.pre", spec.architecture == "qwen2" ? "qwen2" : "llama-bpe");
  metadata.add("tokenizer.ggml.tokens", tokens);
  metadata.add("tokenizer.ggml.token_type", types);
  metadata.add("tokenizer.ggml.merges", std::vector<std::string>{one_merge()});
  metadata.add("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(kBegin));
  metadata.add("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(kEnd));
  metadata.add("tokenizer.ggml.add_bos_token", false);
  return metadata;
}

Status make_model(const MakeModelOptions& options) {
  Result<KnownModel> model = find_known_model(options.like, true);
  if (!model.ok()) {
    return model.error();
  }
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  cpu::Team team(cpus->threads, cpus->where);
  const cpu::Seat seat = team.take_seat();
  ModelSpec& spec = model->spec;
  const ArchitectureRow& row = architecture_of(spec);
  if (options.format == "gguf") {
    spec.rope.scaling = RopeScaling::kNone;  // random weights need no long contexts
  }
  const RandomCheckpoint checkpoint(team, spec, options.seed);
  auto output = OutputDirectory::create(options.output, options.overwrite);
  if (!output.ok()) {
    return output.error();
  }
  Status written;
  if (options.format == "hf") {
    written = write_hf(checkpoint, row, output->path());
  } else {
    written = write_gguf(checkpoint, row.gguf_tensors->names, gguf_metadata(spec, options.like),
                         output->path() / (options.like + ".gguf"), progress_bar("writing"));
  }
  if (written.ok()) {
    written = output->finish();
  }
  if (written.ok()) {
    const fs::path made = options.format == "hf"
                              ? fs::path(options.output)
                              : fs::path(options.output) / (options.like + ".gguf");
    print_text(
        fmt::format("{} holds random weights of the sizes of {}\n", made.string(), options.like));
  }
  return written;
}

int run_make_model(const MakeModelOptions& options) {
  const Status status = make_model(options);
  return status.ok() ? 0 : exit_with(status.error());
}

}  // namespace

void add_make_model(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "make-model", "Write a model of real sizes with random weights, to measure speed with");
  auto options = std::make_shared<MakeModelOptions>();
  app->option_defaults()->group("Output");
  app->add_option("--like", options->like,
                  "Model whose sizes to take, such as llama-3.2-1b or 150m; a wrong name lists all")
      ->type_name("NAME")
      ->required();
  app->add_option("-o,--output", options->output, "Directory to write")
      ->type_name("FOLDER")
      ->required();
  app->add_flag("--overwrite", options->overwrite, "Replace the model in that directory");
  app->add_option("--format", options->format, "Write safetensors (hf) or GGUF, both in bf16")
      ->check(one_of({"hf", "gguf"}))
      ->capture_default_str();
  app->add_option("--seed", options->seed, "Seed: the same one gives the same weights")
      ->capture_default_str();
  add_compute_options(*app, options->compute);
  app->footer("Example: protean make-model --like 150m -o 150m");
  app->callback([options, &exit_code] { exit_code = run_make_model(*options); });
}

}  // namespace protean
