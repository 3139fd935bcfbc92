// One template per kernel, a switch over the dtypes, and a clone for AVX2 chosen at load time.
#include "collectives/kernels.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace phalanx {

namespace {

// Elements summed at a time when there are more than two inputs: the accumulator (at most 8 KiB)
// and one block of each input stay in the 32 KiB first-level cache.
constexpr std::size_t kBlock = 1024;

// ifunc resolvers run before a sanitizer is ready, so clones are for plain builds only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(PHALANX_SANITIZED)
#define PHALANX_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define PHALANX_CLONES
#endif

// out may be exactly a or b: no iteration reads what another one writes.
#if defined(PHALANX_SANITIZED)  // instrumented loops are not vectorised, and clang says so
#define PHALANX_INDEPENDENT
#elif defined(__clang__)
#define PHALANX_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define PHALANX_INDEPENDENT _Pragma("GCC ivdep")
#endif

template <class T>
[[gnu::always_inline]] inline void add(T* out, const T* a, const T* b, std::size_t count) noexcept {
    PHALANX_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

template <class T>
[[gnu::always_inline]] inline void add_twice(T* out, T* out_too, const T* a, const T* b,
                                             std::size_t count) noexcept {
    PHALANX_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
        const T value = a[i] + b[i];
        out[i] = value;
        out_too[i] = value;
    }
}

template <class T>
[[gnu::always_inline]] inline void sum_as(std::byte* out, std::byte* out_too,
                                          std::span<const std::byte* const> inputs,
                                          std::size_t count) noexcept {
    const auto input = [&](std::size_t which, std::size_t at) {
        return reinterpret_cast<const T*>(inputs[which]) + at;
    };
    T partial[kBlock];
    for (std::size_t at = 0; at < count; at += kBlock) {
        const std::size_t n = std::min(kBlock, count - at);
        const T* left = input(0, at);
        for (std::size_t k = 1; k + 1 < inputs.size(); ++k) {
            add(partial, left, input(k, at), n);
            left = partial;
        }
        T* to = reinterpret_cast<T*>(out) + at;
        if (inputs.size() == 1) {
            std::memmove(to, left, n * sizeof(T));
            if (out_too != nullptr)
                std::memmove(reinterpret_cast<T*>(out_too) + at, left, n * sizeof(T));
        } else if (out_too != nullptr) {
            add_twice(to, reinterpret_cast<T*>(out_too) + at, left, input(inputs.size() - 1, at),
                      n);
        } else {
            add(to, left, input(inputs.size() - 1, at), n);
        }
    }
}

#define PHALANX_SUM(name, type, sum_type)                                                         \
    PHALANX_CLONES void sum_##name(std::byte* out, std::byte* out_too,                            \
                                   std::span<const std::byte* const> inputs, std::size_t count) { \
        sum_as<sum_type>(out, out_too, inputs, count);                                            \
    }
PHALANX_DTYPES(PHALANX_SUM)
#undef PHALANX_SUM

template <class T>
void poison_as(std::byte* out, std::size_t count) noexcept {
    using Limits = std::numeric_limits<T>;
    std::fill_n(reinterpret_cast<T*>(out), count,
                Limits::has_quiet_NaN ? Limits::quiet_NaN() : Limits::min());
}

}  // namespace

void sum(Dtype dtype, std::byte* out, std::byte* out_too, std::span<const std::byte* const> inputs,
         std::size_t count) noexcept {
    if (count == 0 || inputs.empty()) return;
    switch (dtype) {
#define PHALANX_CASE(name, type, sum_type) \
    case Dtype::name:                      \
        return sum_##name(out, out_too, inputs, count);
        PHALANX_DTYPES(PHALANX_CASE)
#undef PHALANX_CASE
        case Dtype::none:
            break;
    }
}

void poison(Dtype dtype, std::byte* out, std::size_t count) noexcept {
    if (count == 0) return;
    switch (dtype) {
#define PHALANX_CASE(name, type, sum_type) \
    case Dtype::name:                      \
        return poison_as<type>(out, count);
        PHALANX_DTYPES(PHALANX_CASE)
#undef PHALANX_CASE
        case Dtype::none:
            break;
    }
}

}  // namespace phalanx
