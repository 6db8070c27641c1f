#include "model/variant_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>

#include "device/cpu/memory.h"
#include "model/synthetic_checkpoint.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

constexpr std::array kKept = {Precision::kBf16, Precision::kW8, Precision::kW4, Precision::kW3};

ModelSpec small_spec() {
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

// Other weights for each seed; counts what is read of it.
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

std::vector<HalfVariant> every_variant() {
  std::vector<HalfVariant> all;
  for (const Precision precision : kKept) {
    for (int layer = 0; layer < small_spec().layers; ++layer) {
      for (const LayerHalf half : kLayerHalves) {
        all.push_back({layer, half, precision});
      }
    }
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

void flip(const fs::path& path, std::int64_t at) {
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

  fs::path file_of(const HalfVariant& which) {
    return open()->model_directory() / fmt::format("layer-{:03}.{}.{}", which.layer,
                                                   to_string(which.half),
                                                   to_string(which.precision));
  }

  // What the store gives is what packing the checkpoint gives.
  void expect_right(VariantStore& store, const HalfVariant& which,
                    const Checkpoint* from = nullptr) {
    const Memory got(store.size(which));
    const Memory want(store.size(which));
    const Status read = store.read(which, got.bytes());
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_TRUE(load_half(from == nullptr ? *checkpoint_ : *from, which, want.region.data()).ok());
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

TEST_F(VariantStoreTest, WhatIsPackedOnceIsReadWithoutTheCheckpoint) {
  std::vector<std::int64_t> done;
  ASSERT_TRUE(open()
                  ->pack_missing([&](std::int64_t so_far, std::int64_t total) {
                    done.push_back(so_far);
                    EXPECT_EQ(total, 16);
                  })
                  .ok());
  EXPECT_EQ(done.size(), 16U);
  checkpoint_->reads_ = 0;
  const auto store = open();
  ASSERT_TRUE(store->pack_missing().ok());
  for (const HalfVariant& which : every_variant()) {
    ASSERT_TRUE(store->read(which, Memory(store->size(which)).bytes()).ok());
  }
  EXPECT_EQ(checkpoint_->reads_, 0);
  EXPECT_EQ(store->packed_on_demand(), 0);
  for (const HalfVariant& which : every_variant()) {
    expect_right(*store, which);
  }
  EXPECT_EQ(unfinished(store->model_directory()), 0);
}

TEST_F(VariantStoreTest, AMissingHalfIsPackedOnDemandAndKept) {
  const HalfVariant which = {1, LayerHalf::kAttention, Precision::kW4};
  const auto store = open();
  expect_right(*store, which);
  EXPECT_EQ(store->packed_on_demand(), 1);
  EXPECT_EQ(store->damaged_found(), 0);
  expect_right(*store, which);
  EXPECT_EQ(store->packed_on_demand(), 1);
}

TEST_F(VariantStoreTest, F32IsNeverKept) {
  const auto store = open();
  expect_right(*store, {0, LayerHalf::kAttention, Precision::kF32});
  EXPECT_FALSE(fs::exists(file_of({0, LayerHalf::kAttention, Precision::kF32})));
}

TEST_F(VariantStoreTest, ADamagedByteAnywhereIsFoundAndMended) {
  const HalfVariant which = {0, LayerHalf::kMlp, Precision::kW4};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  const auto end = static_cast<std::int64_t>(fs::file_size(path));
  // Magic, version, layer, half, precision, model, size, checksum, padding, header checksum; then
  // the body's first, some and last byte.
  for (const std::int64_t at : {0L, 8L, 12L, 16L, 20L, 24L, 39L, 40L, 47L, 48L, 55L, 56L, 2000L,
                                4088L, 4095L, 4096L, 5000L, end / 2, end - 1}) {
    flip(path, at);
    const auto store = open();
    expect_right(*store, which);
    EXPECT_EQ(store->damaged_found(), 1) << "byte " << at;
    expect_right(*store, which);
    EXPECT_EQ(store->packed_on_demand(), 1) << "byte " << at;
  }
}

TEST_F(VariantStoreTest, AFileOfAnotherLengthIsFoundAndMended) {
  const HalfVariant which = {1, LayerHalf::kMlp, Precision::kBf16};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  const std::uintmax_t whole = fs::file_size(path);
  for (const std::uintmax_t size : {std::uintmax_t{0}, std::uintmax_t{1}, std::uintmax_t{4095},
                                    std::uintmax_t{4096}, whole - 1, whole + 1}) {
    fs::resize_file(path, size);
    const auto store = open();
    if (size % 2 == 0) {
      ASSERT_TRUE(store->pack_missing().ok());  // which sees it too
      expect_right(*store, which);
    } else {
      expect_right(*store, which);
      EXPECT_EQ(store->damaged_found(), 1) << size << " bytes";
    }
    EXPECT_EQ(fs::file_size(path), whole);
  }
}

TEST_F(VariantStoreTest, AFileThatShrinksWhileItIsReadIsNoDisaster) {
  const HalfVariant which = {0, LayerHalf::kMlp, Precision::kBf16};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  const auto store = open();
  const Memory got(store->size(which));
  const Memory want(store->size(which));
  ASSERT_TRUE(load_half(*checkpoint_, which, want.region.data()).ok());
  int calls = 0;
  ASSERT_TRUE(store
                  ->read(which, got.bytes(),
                         [&](std::int64_t) {
                           if (++calls == 1) {
                             fs::resize_file(path, 5000);
                           }
                           return true;
                         })
                  .ok());
  EXPECT_TRUE(std::ranges::equal(got.bytes(), want.bytes()));
  EXPECT_EQ(store->damaged_found(), 1);
}

TEST_F(VariantStoreTest, AnotherModelsOrLayersFileIsNotTaken) {
  const HalfVariant which = {0, LayerHalf::kAttention, Precision::kW8};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  for (const HalfVariant& other :
       {HalfVariant{1, which.half, which.precision}, HalfVariant{0, which.half, Precision::kW3}}) {
    expect_right(*open(), other);
    fs::copy_file(file_of(other), path, fs::copy_options::overwrite_existing);
    const auto store = open();
    expect_right(*store, which);
    EXPECT_EQ(store->damaged_found(), 1);
  }
  const std::string body(static_cast<std::size_t>(open()->size(which)), 'x');
  ASSERT_TRUE(write_variant(path, ModelIdentity{}, which, std::as_bytes(std::span(body))).ok());
  const auto store = open();
  expect_right(*store, which);
  EXPECT_EQ(store->damaged_found(), 1);
}

TEST_F(VariantStoreTest, ReadingIsPacedInChunksAndCanBeCalledOff) {
  const HalfVariant which = {0, LayerHalf::kMlp, Precision::kBf16};
  const auto store = open();
  expect_right(*store, which);
  std::vector<std::int64_t> chunks;
  const Memory memory(store->size(which));
  const auto note = [&](std::int64_t bytes) {
    chunks.push_back(bytes);
    return true;
  };
  ASSERT_TRUE(store->read(which, memory.bytes(), note).ok());
  EXPECT_EQ(std::accumulate(chunks.begin(), chunks.end(), std::int64_t{0}), store->size(which));
  EXPECT_GT(chunks.size(), 1U);
  EXPECT_LE(*std::max_element(chunks.begin(), chunks.end()), std::int64_t{1} << 20);
  const Status stopped = store->read(which, memory.bytes(), [](std::int64_t) { return false; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(store->damaged_found(), 0);
  EXPECT_EQ(store->packed_on_demand(), 1);
}

// In a process of its own; what it says is its exit code.
template <class Body>
pid_t in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body() ? 0 : 1);
  }
  return child;
}

bool succeeded(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(VariantStoreTest, ProcessesThatPackAtTheSameTimeAllEndRight) {
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(in_child([&] { return open()->pack_missing().ok(); }));
  }
  // One that packs on demand and pays no heed to anybody.
  children.push_back(in_child([&] {
    const auto store = open();
    return std::ranges::all_of(every_variant(), [&](const HalfVariant& which) {
      return store->read(which, Memory(store->size(which)).bytes()).ok() &&
             store->damaged_found() == 0;
    });
  }));
  for (const pid_t child : children) {
    EXPECT_TRUE(succeeded(child));
  }
  const auto store = open();
  for (const HalfVariant& which : every_variant()) {
    expect_right(*store, which);
  }
  EXPECT_EQ(store->packed_on_demand() + store->damaged_found(), 0);
  EXPECT_EQ(unfinished(store->model_directory()), 0);
}

TEST_F(VariantStoreTest, AFullDiskCostsOnlyTime) {
  const auto no_room = [&] {
    (void)std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 100 * 1024, .rlim_max = 100 * 1024};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      return false;
    }
    const auto store = open();
    const Status packed = store->pack_missing();
    for (const HalfVariant& which : every_variant()) {
      expect_right(*store, which);
    }
    return !packed.ok() && packed.error().code == ErrorCode::kExhausted &&
           unfinished(store->model_directory()) == 0 && !testing::Test::HasFailure();
  };
  EXPECT_TRUE(succeeded(in_child(no_room)));
  const auto store = open();  // there is room now
  ASSERT_TRUE(store->pack_missing().ok());
  expect_right(*store, {1, LayerHalf::kMlp, Precision::kBf16});
  EXPECT_EQ(store->packed_on_demand(), 0);
}

TEST_F(VariantStoreTest, WithoutAFolderWeightsArePackedOnDemand) {
  const fs::path file = cache_.path() / "file";
  std::ofstream(file) << "in the way";
  auto store = VariantStore::open({checkpoint_, model_.path()}, {}, {.directory = file / "below"});
  ASSERT_TRUE(store.ok());
  EXPECT_TRUE((*store)->model_directory().empty());
  EXPECT_FALSE((*store)->pack_missing().ok());
  expect_right(**store, {0, LayerHalf::kMlp, Precision::kW3});
}

TEST_F(VariantStoreTest, WhatAWriterThatDiedLeftIsRemoved) {
  const fs::path left = open()->model_directory() / ".unfinished-abcdef";
  std::ofstream(left) << "half";
  EXPECT_EQ(unfinished(open()->model_directory()), 0);
}

TEST_F(VariantStoreTest, APrecisionMayComeFromAnotherCheckpoint) {
  const TemporaryDirectory quantised;
  write_model(quantised.path(), "two");
  const auto other = std::make_shared<SeededCheckpoint>(2.0F);
  for (int round = 0; round < 2; ++round) {  // packed, then read
    auto store = VariantStore::open({checkpoint_, model_.path()},
                                    {{Precision::kW4, {other, quantised.path()}}},
                                    {.directory = cache_.path()});
    ASSERT_TRUE(store.ok());
    expect_right(**store, {0, LayerHalf::kMlp, Precision::kW4}, other.get());
    expect_right(**store, {0, LayerHalf::kMlp, Precision::kW8});
    EXPECT_EQ((*store)->packed_on_demand(), round == 0 ? 2 : 0);
  }
  expect_right(*open(), {0, LayerHalf::kMlp, Precision::kW4});
  ModelSpec wider = small_spec();
  wider.ffn = 512;
  const auto refused = VariantStore::open(
      {checkpoint_, model_.path()},
      {{Precision::kW4, {std::make_shared<SeededCheckpoint>(1.0F, wider), quantised.path()}}},
      {.directory = cache_.path()});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(VariantStoreTest, AModelIsKnownByItsFiles) {
  const TemporaryDirectory copy;
  write_model(copy.path(), "one");
  const auto identity = [](const fs::path& path) {
    return identify_model(path, small_spec())->hex();
  };
  const std::string before = identity(model_.path());
  EXPECT_EQ(before.size(), 32U);
  EXPECT_EQ(identity(copy.path()), before);
  std::ofstream(copy.path() / "README.md") << "about it";
  EXPECT_EQ(identity(copy.path()), before);
  std::ofstream(copy.path() / "config.json") << "won";
  EXPECT_NE(identity(copy.path()), before);
  // Changed in place beyond what is looked at: by its time.
  const fs::path large = model_.path() / "model-2.safetensors";
  std::ofstream(large) << std::string(3 << 20, 'a');
  const std::string with_large = identity(model_.path());
  EXPECT_NE(with_large, before);
  fs::last_write_time(large, fs::last_write_time(large) + std::chrono::milliseconds(1));
  EXPECT_NE(identity(model_.path()), with_large);
  ModelSpec other = small_spec();
  other.layers = 3;
  EXPECT_NE(identify_model(copy.path(), other)->hex(), identity(copy.path()));
  EXPECT_FALSE(identify_model(model_.path() / "nothing", small_spec()).ok());
}

TEST(VariantHeader, SaysWhatWasWrittenAndNothingElse) {
  VariantHeader header{.which = {70, LayerHalf::kMlp, Precision::kW3},
                       .body_bytes = std::int64_t{5} << 32,
                       .body_checksum = 0x0123456789ABCDEF};
  header.model.bytes[3] = std::byte{7};
  const auto bytes = header.encode();
  const auto parsed = VariantHeader::parse(bytes);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->model, header.model);
  EXPECT_EQ(parsed->which.layer, 70);
  EXPECT_EQ(parsed->which.half, LayerHalf::kMlp);
  EXPECT_EQ(parsed->which.precision, Precision::kW3);
  EXPECT_EQ(parsed->body_bytes, header.body_bytes);
  EXPECT_EQ(parsed->body_checksum, header.body_checksum);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    auto damaged = bytes;
    damaged[at] ^= std::byte{1};
    EXPECT_FALSE(VariantHeader::parse(damaged).ok()) << "byte " << at;
  }
  EXPECT_FALSE(VariantHeader::parse(std::span(bytes).first(4095)).ok());
  EXPECT_FALSE(VariantHeader::parse({}).ok());
}

}  // namespace
}  // namespace protean
