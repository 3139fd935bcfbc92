// Loop over the rules, for reduce*.cpp only: blocks that fit the cache, and one clone per
// instruction set, chosen at load time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/cpu.hpp"
#include "collectives/kernels/dtype.hpp"

namespace phalanx {

// out may be exactly one of the inputs: no iteration reads what another iteration writes.
#if defined(PHALANX_SANITIZED)  // instrumented loops do not vectorise, and clang warns
#define PHALANX_INDEPENDENT
#elif defined(__clang__)
#define PHALANX_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define PHALANX_INDEPENDENT _Pragma("GCC ivdep")
#endif

// Block size for more than two inputs: the partial results and one block of each input stay in the
// 32 KiB first-level cache.
inline constexpr std::size_t kBlockBytes = std::size_t{8} << 10;

template <class Rule>
[[gnu::always_inline]] inline void reduce_with(std::byte* out, std::byte* out_too,
                                               std::span<const std::byte* const> inputs,
                                               std::size_t count) noexcept {
    using Element = typename Rule::Element;
    using Partial = typename Rule::Partial;
    constexpr std::size_t kBlock = kBlockBytes / sizeof(Partial);
    const std::size_t last = inputs.size() - 1;
    Partial partial[kBlock];
    for (std::size_t at = 0; at < count; at += kBlock) {
        const std::size_t n = std::min(kBlock, count - at);
        const auto input = [&](std::size_t which) {
            return reinterpret_cast<const Element*>(inputs[which]) + at;
        };
        Element* const to = reinterpret_cast<Element*>(out) + at;
        const Element* const first = input(0);
        const Element* const final = input(last);
        if (last == 0 && !std::is_same_v<Element, Bool>) {
            std::memmove(to, first, n * sizeof(Element));
        } else if (last <= 1) {  // one bool is combined with itself: its bytes become 0 and 1
            PHALANX_INDEPENDENT
            for (std::size_t i = 0; i < n; ++i) {
                to[i] = Rule::store(Rule::combine(Rule::load(first[i]), Rule::load(final[i])));
            }
        } else {
            const Element* const second = input(1);
            PHALANX_INDEPENDENT
            for (std::size_t i = 0; i < n; ++i) {
                partial[i] = Rule::combine(Rule::load(first[i]), Rule::load(second[i]));
            }
            for (std::size_t k = 2; k < last; ++k) {
                const Element* const next = input(k);
                PHALANX_INDEPENDENT
                for (std::size_t i = 0; i < n; ++i) {
                    partial[i] = Rule::combine(partial[i], Rule::load(next[i]));
                }
            }
            PHALANX_INDEPENDENT
            for (std::size_t i = 0; i < n; ++i) {
                to[i] = Rule::store(Rule::combine(partial[i], Rule::load(final[i])));
            }
        }
        if (out_too != nullptr) {  // from the cache
            std::memcpy(reinterpret_cast<Element*>(out_too) + at, to, n * sizeof(Element));
        }
    }
}

using Kernel = void (*)(std::byte* out, std::byte* out_too,
                        std::span<const std::byte* const> inputs, std::size_t count);
extern const Kernel kSumKernels[kDtypes];
extern const Kernel kMaxKernels[kDtypes];
extern const Kernel kMinKernels[kDtypes];

// One function per dtype, and their table; the entry of `none` does nothing.
inline void reduce_nothing(std::byte* /*out*/, std::byte* /*out_too*/,
                           std::span<const std::byte* const> /*inputs*/, std::size_t /*count*/) {}
#define PHALANX_KERNEL(id, rule)                                                                   \
    PHALANX_CLONES void reduce_##id(std::byte* out, std::byte* out_too,                            \
                                    std::span<const std::byte* const> inputs, std::size_t count) { \
        reduce_with<rule>(out, out_too, inputs, count);                                            \
    }

}  // namespace phalanx
