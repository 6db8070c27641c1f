#include "device/cpu/elementwise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/elementwise-inl.h"
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

void round_row(float* x, std::size_t count) {
  const auto run = [&](auto d, std::size_t from) HWY_ATTR {
    for (; from + hn::Lanes(d) <= count; from += hn::Lanes(d)) {
      hn::StoreU(round_bf16(d, hn::LoadU(d, x + from)), d, x + from);
    }
    return from;
  };
  run(Lane{}, run(Floats{}, 0));
}

void norm_row(const float* x, std::span<const float> weight, float eps, Element element,
              float* out) {
  norm_run(x, weight, norm_scale(x, weight.size(), eps), element, out);
}

float row_squares(const float* x, std::size_t count) {
  return sum_of_squares(x, count);
}

void scaled_norm_row(std::span<const float> weight, float scale, float* x) {
  norm_run(x, weight, scale, Element::kF32, x);
}

void swiglu_part(const float* gate, const float* up, std::size_t count, Element element,
                 float* out) {
  swiglu_run(gate, up, count, element, out);
}

void layer_norm_row(const float* x, const LayerNorm& norm, Element element, float* out) {
  const std::size_t count = norm.weight.size();
  const auto size = static_cast<float>(count);
  const float mean = sum_of(x, count, [](auto, auto v) HWY_ATTR { return v; }) / size;
  const auto squared = [mean](auto d, auto v) HWY_ATTR {
    const auto off = hn::Sub(v, hn::Set(d, mean));
    return hn::Mul(off, off);
  };
  const float scale = 1.0f / std::sqrt(sum_of(x, count, squared) / size + norm.eps);
  const auto run = [&](auto d, std::size_t from) HWY_ATTR {
    for (; from + hn::Lanes(d) <= count; from += hn::Lanes(d)) {
      auto v = hn::Mul(hn::Sub(hn::LoadU(d, x + from), hn::Set(d, mean)), hn::Set(d, scale));
      v = hn::Mul(v, hn::LoadU(d, norm.weight.data() + from));
      v = norm.bias.empty() ? v : hn::Add(v, hn::LoadU(d, norm.bias.data() + from));
      hn::StoreU(element == Element::kBf16 ? round_bf16(d, v) : v, d, out + from);
    }
    return from;
  };
  run(Lane{}, run(Floats{}, 0));
}

void activate_part(const Activated& of, Element element, float* out) {
  activate_run(of, element, out);
}

void scale_and_cap_part(float factor, float most, float* x, std::size_t count) {
  const auto run = [&](auto d, std::size_t from) HWY_ATTR {
    for (; from + hn::Lanes(d) <= count; from += hn::Lanes(d)) {
      auto v = hn::Mul(hn::LoadU(d, x + from), hn::Set(d, factor));
      if (most > 0.0f) {
        v = hn::Mul(tanh(d, hn::Div(v, hn::Set(d, most))), hn::Set(d, most));
      }
      hn::StoreU(v, d, x + from);
    }
    return from;
  };
  run(Lane{}, run(Floats{}, 0));
}

// Rotates one head. `cosines` and `sines` are those of the row's position.
void rotate_head(float* x, const float* cosines, const float* sines, int half, bool adjacent) {
  const auto count = static_cast<std::size_t>(half);
  const auto run = [&](auto d, std::size_t from) HWY_ATTR {
    for (; from + hn::Lanes(d) <= count; from += hn::Lanes(d)) {
      const auto c = hn::LoadU(d, cosines + from);
      const auto s = hn::LoadU(d, sines + from);
      hn::Vec<decltype(d)> a;
      hn::Vec<decltype(d)> b;
      if (adjacent) {
        hn::LoadInterleaved2(d, x + 2 * from, a, b);
      } else {
        a = hn::LoadU(d, x + from);
        b = hn::LoadU(d, x + count + from);
      }
      const auto turned_a = hn::Sub(hn::Mul(a, c), hn::Mul(b, s));
      const auto turned_b = hn::Add(hn::Mul(b, c), hn::Mul(a, s));
      if (adjacent) {
        hn::StoreInterleaved2(turned_a, turned_b, d, x + 2 * from);
      } else {
        hn::StoreU(turned_a, d, x + from);
        hn::StoreU(turned_b, d, x + count + from);
      }
    }
    return from;
  };
  run(Lane{}, run(Floats{}, 0));
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(round_row);
HWY_EXPORT(norm_row);
HWY_EXPORT(row_squares);
HWY_EXPORT(scaled_norm_row);
HWY_EXPORT(swiglu_part);
HWY_EXPORT(layer_norm_row);
HWY_EXPORT(activate_part);
HWY_EXPORT(scale_and_cap_part);
HWY_EXPORT(rotate_head);

// Floats of one task: some microseconds of work, much more than the cost of starting a task.
constexpr std::int64_t kTaskFloats = 16 * 1024;

// Calls work(first, end) over [0, count) in pieces of about kTaskFloats.
template <class Work>
void in_pieces(Team& team, std::int64_t count, std::int64_t floats_each, const Work& work) {
  const std::int64_t piece =
      std::max<std::int64_t>(1, kTaskFloats / std::max<std::int64_t>(1, floats_each));
  team.run(ceil_div(count, piece), [&](std::int64_t index, int) {
    work(index * piece, std::min(count, (index + 1) * piece));
  });
}

}  // namespace

void round_to(Element element, std::span<float> x) {
  if (element == Element::kBf16) {
    HWY_DYNAMIC_DISPATCH(round_row)(x.data(), x.size());
  }
}

void rms_norm(Team& team, std::span<const float> x, const RmsNorm& norm, Element element,
              std::span<float> out) {
  check(!norm.weight.empty() && x.size() % norm.weight.size() == 0 && out.size() == x.size(),
        "x and out are not rows as long as the norm's weight");
  const std::int64_t width = std::ssize(norm.weight);
  in_pieces(team, std::ssize(x) / width, width, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(norm_row)
      (x.data() + row * width, norm.weight, norm.eps, element, out.data() + row * width);
    }
  });
}

void sum_squares(Team& team, std::span<const float> x, std::span<float> squares) {
  const std::int64_t rows = std::ssize(squares);
  check(rows > 0 && std::ssize(x) % rows == 0, "x has a row for each sum");
  const std::int64_t width = std::ssize(x) / rows;
  in_pieces(team, rows, width, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) {
      squares[static_cast<std::size_t>(row)] = HWY_DYNAMIC_DISPATCH(row_squares)(
          x.data() + row * width, static_cast<std::size_t>(width));
    }
  });
}

void rms_norm_part(Team& team, std::span<const float> squares, std::int64_t width,
                   const RmsNorm& norm, std::span<float> x) {
  const std::int64_t columns = std::ssize(norm.weight);
  check(x.size() == squares.size() * norm.weight.size(), "x has a part of a row for each sum");
  in_pieces(team, std::ssize(squares), columns, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) {
      const float mean = squares[static_cast<std::size_t>(row)] / static_cast<float>(width);
      HWY_DYNAMIC_DISPATCH(scaled_norm_row)
      (norm.weight, 1.0F / std::sqrt(mean + norm.eps), x.data() + row * columns);
    }
  });
}

void swiglu(Team& team, std::span<const float> gate, std::span<const float> up, Element element,
            std::span<float> out) {
  check(gate.size() == up.size() && out.size() == up.size(), "gate, up and out differ in size");
  in_pieces(team, std::ssize(out), 1, [&](std::int64_t first, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_part)
    (gate.data() + first, up.data() + first, static_cast<std::size_t>(end - first), element,
     out.data() + first);
  });
}

void layer_norm(Team& team, std::span<const float> x, const LayerNorm& norm, Element element,
                std::span<float> out) {
  check(!norm.weight.empty() && x.size() % norm.weight.size() == 0 && out.size() == x.size(),
        "x and out are not rows as long as the norm's weight");
  check(norm.bias.empty() || norm.bias.size() == norm.weight.size(),
        "the norm's bias is as long as its weight");
  const std::int64_t width = std::ssize(norm.weight);
  in_pieces(team, std::ssize(x) / width, width, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(layer_norm_row)
      (x.data() + row * width, norm, element, out.data() + row * width);
    }
  });
}

void activate(Team& team, const Activated& of, Element element, std::span<float> out) {
  check(of.x.size() == out.size() && (of.factor.empty() || of.factor.size() == out.size()),
        "x, factor and out differ in size");
  in_pieces(team, std::ssize(out), 1, [&](std::int64_t first, std::int64_t end) {
    const auto at = static_cast<std::size_t>(first);
    const auto count = static_cast<std::size_t>(end - first);
    const auto factor = of.factor.empty() ? of.factor : of.factor.subspan(at, count);
    HWY_DYNAMIC_DISPATCH(activate_part)
    ({of.x.subspan(at, count), factor, of.activation}, element, out.data() + first);
  });
}

void scale_and_cap(Team& team, float factor, float most, std::span<float> x) {
  in_pieces(team, std::ssize(x), 1, [&](std::int64_t first, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_and_cap_part)
    (factor, most, x.data() + first, static_cast<std::size_t>(end - first));
  });
}

void add_scaled(Team& team, std::span<const float> x, float factor, std::span<float> out) {
  check(x.size() == out.size(), "x and out have the same size");
  in_pieces(team, std::ssize(out), 1, [&](std::int64_t first, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(end); ++i) {
      out[i] += factor * x[i];
    }
  });
}

void add(Team& team, std::span<const float> x, std::span<float> out) {
  check(x.size() == out.size(), "x and out have the same size");
  in_pieces(team, std::ssize(out), 1, [&](std::int64_t first, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(end); ++i) {
      out[i] += x[i];
    }
  });
}

namespace {

// The sums so far of a piece of the columns: each level of the stack is a whole subtree.
class TreeSum {
 public:
  static constexpr std::size_t kColumns = 512;

  // Adds the rows of the next run of shards, and every two equal subtrees that this completes.
  void add(int shards, std::span<const float> rows) {
    check(levels_ < kLevels, "a tree of shards is not so deep");
    std::copy(rows.begin(), rows.end(), sums_[levels_].begin());
    shards_[levels_++] = shards;
    while (levels_ > 1 && shards_[levels_ - 2] == shards_[levels_ - 1]) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        sums_[levels_ - 2][i] += sums_[levels_ - 1][i];
      }
      shards_[levels_ - 2] *= 2;
      --levels_;
    }
  }
  void add_to(std::span<float> out) {
    check(levels_ == 1, "the runs are whole subtrees");
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += sums_[0][i];
    }
    levels_ = 0;
  }

 private:
  static constexpr std::size_t kLevels = 16;
  std::array<std::array<float, kColumns>, kLevels> sums_;
  std::array<int, kLevels> shards_{};
  std::size_t levels_ = 0;
};

}  // namespace

void add_partial_sums(Team& team, std::span<const ShownRows> sums, std::span<float> out) {
  for (const ShownRows& sum : sums) {
    check(sum.rows.size() == out.size(), "partial sums are as long as what they are added to");
  }
  if (sums.size() == 1) {
    add(team, sums[0].rows, out);
    return;
  }
  in_pieces(team, std::ssize(out), std::ssize(sums), [&](std::int64_t first, std::int64_t end) {
    TreeSum tree;
    for (auto at = static_cast<std::size_t>(first); at < static_cast<std::size_t>(end);
         at += TreeSum::kColumns) {
      const std::size_t count = std::min(TreeSum::kColumns, static_cast<std::size_t>(end) - at);
      for (const ShownRows& sum : sums) {
        tree.add(sum.shards, sum.rows.subspan(at, count));
      }
      tree.add_to(out.subspan(at, count));
    }
  });
}

void rope(Team& team, std::span<float> x, int heads, std::span<const int> positions,
          const RopeTable& table) {
  const std::int64_t half = table.half;
  const std::int64_t head =
      std::ssize(x) / std::max<std::int64_t>(1, std::ssize(positions)) / heads;
  const std::int64_t width = heads * head;
  check(std::ssize(x) == std::ssize(positions) * width && 2 * half <= head,
        "x is not a row of heads per position");
  check(table.cosines.size() == table.sines.size(), "as many sines as cosines");
  in_pieces(team, std::ssize(positions), width, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) {
      const std::int64_t at = positions[static_cast<std::size_t>(row)] * half;
      check(at >= 0 && at + half <= std::ssize(table.cosines), "a position beyond the rope table");
      for (int i = 0; i < heads; ++i) {
        HWY_DYNAMIC_DISPATCH(rotate_head)
        (x.data() + row * width + i * head, table.cosines.data() + at, table.sines.data() + at,
         table.half, table.adjacent);
      }
    }
  });
}

}  // namespace protean::cpu
#endif
