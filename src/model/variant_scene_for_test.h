#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/memory.h"
#include "model/synthetic_checkpoint.h"
#include "model/variant_store.h"
#include "tests/checkpoints/checkpoints.h"

// A small model, its files and a cache of its packed layers.

namespace protean {

namespace fs = std::filesystem;

inline constexpr std::array kKept = {Precision::kBf16, Precision::kW8, Precision::kW4,
                                     Precision::kW3};

inline ModelSpec small_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = 2;
  spec.hidden = 256;
  spec.ffn = 1024;  // an MLP half is more than one chunk of a read
  spec.vocab = 40;
  spec.max_context = 64;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16, .qkv_bias = true, .qk_norm = true};
  return spec;
}

// A checkpoint whose weights depend on the seed. Counts reads.
class SeededCheckpoint : public SyntheticCheckpoint {
 public:
  explicit SeededCheckpoint(float seed, ModelSpec spec = small_spec())
      : SyntheticCheckpoint(std::move(spec)), seed_(seed) {}

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    ++reads_;
    SyntheticCheckpoint::read_rows(role, layer, row, count, out);
    std::transform(out, out + count * row_length(role), out, [&](float x) { return x * seed_; });
  }

  mutable int reads_ = 0;

 private:
  float seed_;
};

inline std::vector<ComponentVariant> every_variant() {
  std::vector<ComponentVariant> all;
  for (const Precision precision : kKept) {
    for (int layer = 0; layer < small_spec().layers; ++layer) {
      for (const Component half : kLayerHalves) {
        all.push_back({layer, half, precision});
      }
    }
  }
  for (const Precision precision : {Precision::kBf16, Precision::kW8}) {  // with such layers
    all.push_back({0, Component::kEmbeddings, precision});
  }
  return all;
}

struct Memory {
  explicit Memory(std::int64_t bytes) : region(*cpu::Region::map(bytes)) {
    std::memset(region.data(), 0x5A, static_cast<std::size_t>(bytes));
  }
  std::span<std::byte> bytes() const {
    return {region.data(), static_cast<std::size_t>(region.bytes())};
  }
  cpu::Region region;
};

inline void flip(const fs::path& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.good()) << path << " at " << at;
}

class VariantStoreTest : public testing::Test {
 protected:
  VariantStoreTest() { write_model(model_.path(), "one"); }

  static void write_model(const fs::path& folder, const std::string& what) {
    std::ofstream(folder / "config.json") << what;
    std::ofstream(folder / "model.safetensors") << "weights of " << what;
  }

  std::unique_ptr<VariantStore> open() {
    auto store = VariantStore::open({checkpoint_, model_.path()}, {}, {.directory = cache_.path()});
    EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().message);
    return *std::move(store);
  }

  fs::path file_of(const ComponentVariant& which) {
    const std::string layer =
        which.component == Component::kEmbeddings ? "" : fmt::format("layer-{:03}.", which.layer);
    return open()->model_directory() /
           fmt::format("{}{}.{}", layer, to_string(which.component), to_string(which.precision));
  }

  // Expects that the store reads the bytes that packing the checkpoint writes.
  void expect_right(VariantStore& store, const ComponentVariant& which,
                    const Checkpoint* from = nullptr) {
    const Memory got(store.size(which));
    const Memory want(store.size(which));
    const Status read = store.read(which, got.bytes());
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_TRUE(
        load_component(from == nullptr ? *checkpoint_ : *from, which, want.region.data()).ok());
    EXPECT_TRUE(std::ranges::equal(got.bytes(), want.bytes()));
  }

  static int unfinished(const fs::path& folder) {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      count += entry.path().filename().string().starts_with(".unfinished") ? 1 : 0;
    }
    return count;
  }

  TemporaryDirectory model_;
  TemporaryDirectory cache_;
  std::shared_ptr<SeededCheckpoint> checkpoint_ = std::make_shared<SeededCheckpoint>(1.0F);
};

// Runs `body` in a child process, whose exit code is 0 if `body` returns true.
template <class Body>
pid_t in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body() ? 0 : 1);
  }
  return child;
}

inline bool succeeded(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace protean
