#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "contract/form.h"
#include "device/cpu/shared_exchange.h"
#include "worker/kv_places.h"

namespace protean {

// A group as its devices compute: the form, where its devices are on the fabric, and its homes.
struct Formation {
  Form form;
  std::vector<int> devices;  // of the fabric, one per device of form.group
  std::vector<Copy> homes;   // the devices of each home, as indices into form.group
  // By layer: where each home has its blocks in an array of its own; null: at the places of their
  // numbers.
  std::shared_ptr<const std::vector<KvPlaces>> home_places;
  std::vector<std::int64_t> home_blocks;  // KV blocks of each home; empty: equal parts

  int home_count() const { return static_cast<int>(homes.size()); }
  HomeBlocks blocks() const {
    return home_blocks.empty() ? HomeBlocks(home_count(), form.kv.blocks / home_count())
                               : HomeBlocks(home_blocks);
  }
  // Returns the home that a device belongs to: an index into form.group.
  int home_with(int device) const;
};

// Returns home_places of homes that join: each of the formations is one of them.
std::shared_ptr<const std::vector<KvPlaces>> places_of_joined(
    const std::vector<const Formation*>& joined);

// Returns home_places for the time after the homes' blocks have become those of one, by shards or
// by layers (KvStore::unify).
std::shared_ptr<const std::vector<KvPlaces>> places_as_one(const Formation& formation);

// Returns the copy of a component that computes the rows of each home: the one that has most
// devices of the home; of the embeddings, the one on the devices of the first layer, or for the LM
// head, of the last.
std::vector<Copy> copies_by_home(const Formation& formation, int layer, Component half);

// The rows of a home, which a device gets from another one or hands over to it.
struct RowTransfer {
  int home = 0;
  int peer = 0;         // device of the fabric
  int taken_last = -1;  // the stop before which the peer took rows last in this step; -1: none
};

// What a device does at one stop of a step's way (SharedExchange).
struct Stop {
  int first_home = 0;  // of those whose rows the device computes here, which are consecutive
  int homes = 0;
  std::vector<RowTransfer> takes;  // before
  std::vector<RowTransfer> hands;  // after
};

// The way of a step through one device. Each component has one copy, or one for each home. A home's
// rows are computed by a copy of it, and pass to the next copy where that is on other devices.
struct StepRoute {
  std::vector<Stop> stops;
  cpu::GroupMembers members;
  std::vector<bool> draws;  // by home: the device draws its tokens
  std::int64_t most_blocks = 0;  // KV blocks of the largest of several homes
};

// Returns the way through a device of the formation: `device` is an index into form.group.
StepRoute route_of(const Formation& formation, int device);

}  // namespace protean
