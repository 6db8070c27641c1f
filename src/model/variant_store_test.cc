#include "model/variant_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "model/variant_scene_for_test.h"

namespace protean {
namespace {

TEST_F(VariantStoreTest, WhatIsPackedOnceIsReadWithoutTheCheckpoint) {
  std::vector<std::int64_t> done;
  ASSERT_TRUE(open()
                  ->pack_missing([&](std::int64_t so_far, std::int64_t total) {
                    done.push_back(so_far);
                    EXPECT_EQ(total, std::ssize(every_variant()));
                  })
                  .ok());
  EXPECT_EQ(done.size(), every_variant().size());
  checkpoint_->reads_ = 0;
  const auto store = open();
  ASSERT_TRUE(store->pack_missing().ok());
  for (const ComponentVariant& which : every_variant()) {
    ASSERT_TRUE(store->read(which, Memory(store->size(which)).bytes()).ok());
  }
  EXPECT_EQ(checkpoint_->reads_, 0);
  EXPECT_EQ(store->packed_on_demand(), 0);
  for (const ComponentVariant& which : every_variant()) {
    expect_right(*store, which);
  }
  EXPECT_EQ(unfinished(store->model_directory()), 0);
}

TEST_F(VariantStoreTest, AMissingHalfIsPackedOnDemandAndKept) {
  const ComponentVariant which = {1, Component::kAttention, Precision::kW4};
  const auto store = open();
  expect_right(*store, which);
  EXPECT_EQ(store->packed_on_demand(), 1);
  EXPECT_EQ(store->damaged_found(), 0);
  expect_right(*store, which);
  EXPECT_EQ(store->packed_on_demand(), 1);
}

TEST_F(VariantStoreTest, AFolderThatIsRemovedIsMadeAgain) {
  const ComponentVariant which = {1, Component::kAttention, Precision::kW4};
  const auto store = open();
  for (int removed = 1; removed <= 2; ++removed) {
    fs::remove_all(cache_.path());
    expect_right(*store, which);
    expect_right(*store, which);
    EXPECT_EQ(store->packed_on_demand(), removed) << "it was kept";
    EXPECT_TRUE(fs::exists(store->model_directory() / "in-use"));
  }
  fs::remove_all(cache_.path());
  EXPECT_TRUE(store->pack_missing().ok());
}

TEST_F(VariantStoreTest, F32IsNeverKept) {
  const auto store = open();
  expect_right(*store, {0, Component::kAttention, Precision::kF32});
  EXPECT_FALSE(fs::exists(file_of({0, Component::kAttention, Precision::kF32})));
}

TEST_F(VariantStoreTest, ADamagedByteAnywhereIsFoundAndMended) {
  const ComponentVariant which = {0, Component::kMlp, Precision::kW4};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  const auto end = static_cast<std::int64_t>(fs::file_size(path));
  // Offsets of magic, version, layer, component, weights, model, size, checksum, padding and header
  // checksum, then of the first, some and the last byte of the body.
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

TEST_F(VariantStoreTest, WithActivationsOf8BitsTheFilesAreTheSame) {
  const ComponentVariant w4 = {0, Component::kMlp, Precision::kW4};
  const ComponentVariant w4a8 = {0, Component::kMlp, Precision::kW4A8};
  const auto first = open();
  expect_right(*first, w4a8);
  EXPECT_TRUE(fs::exists(file_of(w4)));
  EXPECT_FALSE(fs::exists(file_of(w4a8)));
  expect_right(*first, w4);
  EXPECT_EQ(first->packed_on_demand(), 1);
}

TEST_F(VariantStoreTest, EmbeddingsAreKeptAsTheyAreBesideLayers) {
  auto store = VariantStore::open({checkpoint_, model_.path()}, {},
                                  {.directory = cache_.path(), .precisions = {Precision::kW4A8}});
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->pack_missing().ok());
  EXPECT_TRUE(fs::exists(file_of({0, Component::kEmbeddings, Precision::kW8})));
  expect_right(**store, {0, Component::kEmbeddings, Precision::kW8A8});
  EXPECT_EQ((*store)->packed_on_demand(), 0);
  expect_right(**store, {0, Component::kEmbeddings, Precision::kBf16});
  EXPECT_EQ((*store)->packed_on_demand(), 1);
  EXPECT_FALSE(fs::exists(file_of({0, Component::kEmbeddings, Precision::kBf16})));
}

TEST_F(VariantStoreTest, AFileOfAnotherLengthIsFoundAndMended) {
  const ComponentVariant which = {1, Component::kMlp, Precision::kBf16};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  const std::uintmax_t whole = fs::file_size(path);
  for (const std::uintmax_t size : {std::uintmax_t{0}, std::uintmax_t{1}, std::uintmax_t{4095},
                                    std::uintmax_t{4096}, whole - 1, whole + 1}) {
    fs::resize_file(path, size);
    const auto store = open();
    if (size % 2 == 0) {
      ASSERT_TRUE(store->pack_missing().ok());  // finds the damage too
      expect_right(*store, which);
    } else {
      expect_right(*store, which);
      EXPECT_EQ(store->damaged_found(), 1) << size << " bytes";
    }
    EXPECT_EQ(fs::file_size(path), whole);
  }
}

TEST_F(VariantStoreTest, AFileThatShrinksWhileItIsReadIsNoDisaster) {
  const ComponentVariant which = {0, Component::kMlp, Precision::kBf16};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  const auto store = open();
  const Memory got(store->size(which));
  const Memory want(store->size(which));
  ASSERT_TRUE(load_component(*checkpoint_, which, want.region.data()).ok());
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
  const ComponentVariant which = {0, Component::kAttention, Precision::kW8};
  expect_right(*open(), which);
  const fs::path path = file_of(which);
  for (const ComponentVariant& other : {ComponentVariant{1, which.component, which.precision},
                                        ComponentVariant{0, which.component, Precision::kW3}}) {
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
  const ComponentVariant which = {0, Component::kMlp, Precision::kBf16};
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

TEST_F(VariantStoreTest, ReadsAheadInOrderWhereItWasStoppedAndWhatIsThere) {
  const auto store = open();
  ASSERT_TRUE(store->pack_missing().ok());
  const auto bytes_of = [&](int layer, Component half) {
    return static_cast<std::int64_t>(fs::file_size(file_of({layer, half, Precision::kW8})));
  };
  fs::remove(file_of({0, Component::kMlp, Precision::kW8}));
  const std::vector<SwapTarget> order = {{1, Component::kMlp}, {0}, {1, Component::kAttention}};
  std::size_t next = 0;
  const auto read_ahead = [&](const Pace& pace) {
    return store->read_ahead(order, Precision::kW8A8, next, pace);
  };
  EXPECT_TRUE(read_ahead([](std::int64_t) { return false; }));
  EXPECT_EQ(next, 0U);
  std::int64_t read = 0;
  const std::int64_t first = bytes_of(1, Component::kMlp);
  EXPECT_TRUE(read_ahead([&](std::int64_t bytes) {
    read += bytes;
    return read <= first;
  }));
  EXPECT_EQ(next, 1U) << "the first of the order is read";
  read = 0;
  const auto count = [&](std::int64_t bytes) {
    read += bytes;
    return true;
  };
  EXPECT_FALSE(read_ahead(count));
  EXPECT_EQ(next, 5U);
  const std::int64_t rest = bytes_of(0, Component::kAttention) +
                            bytes_of(1, Component::kAttention) +
                            bytes_of(0, Component::kEmbeddings);
  EXPECT_EQ(read, rest);
  EXPECT_FALSE(read_ahead(count));
  EXPECT_EQ(read, rest);
}

TEST_F(VariantStoreTest, ProcessesThatPackAtTheSameTimeAllEndRight) {
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(in_child([&] { return open()->pack_missing().ok(); }));
  }
  // Another process packs on demand, without a lock.
  children.push_back(in_child([&] {
    const auto store = open();
    return std::ranges::all_of(every_variant(), [&](const ComponentVariant& which) {
      return store->read(which, Memory(store->size(which)).bytes()).ok() &&
             store->damaged_found() == 0;
    });
  }));
  for (const pid_t child : children) {
    EXPECT_TRUE(succeeded(child));
  }
  const auto store = open();
  for (const ComponentVariant& which : every_variant()) {
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
    for (const ComponentVariant& which : every_variant()) {
      expect_right(*store, which);
    }
    return !packed.ok() && packed.error().code == ErrorCode::kExhausted &&
           unfinished(store->model_directory()) == 0 && !testing::Test::HasFailure();
  };
  EXPECT_TRUE(succeeded(in_child(no_room)));
  const auto store = open();  // the disk has room again
  ASSERT_TRUE(store->pack_missing().ok());
  expect_right(*store, {1, Component::kMlp, Precision::kBf16});
  EXPECT_EQ(store->packed_on_demand(), 0);
}

TEST_F(VariantStoreTest, WithoutAFolderWeightsArePackedOnDemand) {
  const fs::path file = cache_.path() / "file";
  std::ofstream(file) << "in the way";
  auto store = VariantStore::open({checkpoint_, model_.path()}, {}, {.directory = file / "below"});
  ASSERT_TRUE(store.ok());
  EXPECT_TRUE((*store)->model_directory().empty());
  EXPECT_FALSE((*store)->pack_missing().ok());
  expect_right(**store, {0, Component::kMlp, Precision::kW3});
}

TEST_F(VariantStoreTest, WhatAWriterThatDiedLeftIsRemoved) {
  const fs::path left = open()->model_directory() / ".unfinished-abcdef";
  std::ofstream(left) << "half";
  EXPECT_EQ(unfinished(open()->model_directory()), 0);
}

TEST_F(VariantStoreTest, ARemarkSaysWhyAHalfWasPackedOnDemand) {
  const ComponentVariant which = {0, Component::kMlp, Precision::kW4};
  const auto remark_of = [&](VariantStore& store) {
    std::string remark;
    EXPECT_TRUE(store.read(which, Memory(store.size(which)).bytes(), {}, &remark).ok());
    return remark;
  };
  const auto store = open();
  EXPECT_NE(remark_of(*store).find("No such file"), std::string::npos);
  EXPECT_EQ(remark_of(*store), "");
  flip(file_of(which), 5000);
  EXPECT_NE(remark_of(*store).find("its checksum does not match"), std::string::npos);
  auto unkept = VariantStore::open({checkpoint_, model_.path()}, {},
                                   {.directory = cache_.path(), .precisions = {}});
  ASSERT_TRUE(unkept.ok());
  EXPECT_EQ(remark_of(**unkept), "") << "that is how it was asked for";
  std::ofstream(cache_.path() / "file") << "in the way";
  auto nowhere = VariantStore::open({checkpoint_, model_.path()}, {},
                                    {.directory = cache_.path() / "file" / "below"});
  ASSERT_TRUE(nowhere.ok());
  EXPECT_NE(remark_of(**nowhere).find("no folder for packed weights"), std::string::npos);
}

constexpr auto kGoOn = [](std::int64_t) { return true; };

TEST_F(VariantStoreTest, APlanNamesWhatIsMissingInItsOrderAndIsPackedInPieces) {
  const ComponentVariant there = {1, Component::kMlp, Precision::kW8};
  expect_right(*open(), there);
  const auto store = open();
  const std::vector<SwapTarget> order = {{1}, {0}};
  const auto plan = store->plan_packing(order);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(std::ssize(*plan), store->kept_count() - 1);
  EXPECT_EQ(plan->front(), (ComponentVariant{1, Component::kAttention, Precision::kBf16}));
  EXPECT_EQ(std::count(plan->begin(), plan->end(), there), 0);
  // What is planned is not expected on disk, and read without putting it there.
  const ComponentVariant which = {0, Component::kMlp, Precision::kW4};
  std::string remark;
  const Memory memory(store->size(which));
  ASSERT_TRUE(store->read(which, memory.bytes(), {}, &remark).ok());
  EXPECT_EQ(remark, "");
  EXPECT_FALSE(fs::exists(file_of(which)));
  // It stops at any place and leaves nothing unfinished.
  int stops = 0;
  for (Status packed = make_error(ErrorCode::kUnavailable, "not yet"); !packed; ++stops) {
    ASSERT_EQ(packed.error().code, ErrorCode::kUnavailable);
    ASSERT_FALSE(fs::exists(file_of(which)));
    int calls = 0;
    packed = store->pack_planned(which, [&](std::int64_t) { return calls++ < 8 * stops; });
    EXPECT_EQ(unfinished(store->model_directory()), 0);
  }
  EXPECT_GT(stops, 2);
  expect_right(*store, which);
  fs::remove(file_of(which));
  ASSERT_TRUE(store->read(which, memory.bytes(), {}, &remark).ok());
  EXPECT_NE(remark.find("No such file"), std::string::npos) << "it was there";
  // A plan that ends leaves the rest to swaps, as if there had been none.
  store->end_packing();
  expect_right(*store, {1, Component::kMlp, Precision::kW3});
  EXPECT_TRUE(fs::exists(file_of({1, Component::kMlp, Precision::kW3})));
}

TEST_F(VariantStoreTest, PackingWaitsForNeitherAnotherProcessNorAReader) {
  const auto store = open();
  ASSERT_TRUE(store->plan_packing({}).ok());
  const fs::path lock = store->model_directory() / "lock";
  const FileDescriptor other(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  const ComponentVariant which = {0, Component::kMlp, Precision::kW4};
  int calls = 0;
  const Status waited = store->pack_planned(which, [&](std::int64_t) { return ++calls < 3; });
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(calls, 3) << "it asks again and again";
  ASSERT_EQ(::flock(other.get(), LOCK_UN), 0);
  // A thread that reads from the checkpoint meanwhile is let in: packing makes way.
  std::thread reader;
  const ComponentVariant wanted = {1, Component::kAttention, Precision::kW4};
  const Memory memory(store->size(wanted));
  Status read;
  const Status packed = store->pack_planned(which, [&](std::int64_t) {
    if (!reader.joinable()) {
      reader = std::thread([&] { read = store->read(wanted, memory.bytes()); });
    }
    std::this_thread::yield();
    return true;
  });
  reader.join();
  EXPECT_TRUE(read.ok());
  EXPECT_TRUE(packed.ok() || packed.error().code == ErrorCode::kUnavailable);
  EXPECT_TRUE(store->pack_planned(which, kGoOn).ok());
  expect_right(*store, which);
}

// Writers run concurrently with a process that removes unfinished files; no file of a live writer
// is removed.
TEST_F(VariantStoreTest, AFileThatIsBeingWrittenIsNeverRemoved) {
  std::atomic<bool> over{false};
  std::thread remover([&] {
    while (!over) {
      remove_unfinished(cache_.path());
    }
  });
  const std::string body(100, 'x');
  for (int i = 0; i < 300; ++i) {
    const Status written = write_whole(cache_.path() / "file", {std::as_bytes(std::span(body))});
    EXPECT_TRUE(written.ok()) << i << ": " << written.error().message;
    if (!written.ok()) {
      break;
    }
  }
  over = true;
  remover.join();
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
    expect_right(**store, {0, Component::kMlp, Precision::kW4}, other.get());
    expect_right(**store, {0, Component::kMlp, Precision::kW8});
    EXPECT_EQ((*store)->packed_on_demand(), round == 0 ? 2 : 0);
  }
  expect_right(*open(), {0, Component::kMlp, Precision::kW4});
  ModelSpec narrower = small_spec();
  narrower.ffn = 512;
  ModelSpec finer = small_spec();
  finer.stored.group = 64;  // gives halves other sizes
  for (const ModelSpec& spec : {narrower, finer}) {
    const auto refused = VariantStore::open(
        {checkpoint_, model_.path()},
        {{Precision::kW4, {std::make_shared<SeededCheckpoint>(1.0F, spec), quantised.path()}}},
        {.directory = cache_.path()});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
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
  // A change in place behind the hashed beginning is noticed by the file's time.
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
  VariantHeader header{.which = {70, Component::kMlp, Precision::kW3},
                       .body_bytes = std::int64_t{5} << 32,
                       .body_checksum = 0x0123456789ABCDEF};
  header.model.bytes[3] = std::byte{7};
  const auto bytes = header.encode();
  const auto parsed = VariantHeader::parse(bytes);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->model, header.model);
  EXPECT_EQ(parsed->which.layer, 70);
  EXPECT_EQ(parsed->which.component, Component::kMlp);
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
