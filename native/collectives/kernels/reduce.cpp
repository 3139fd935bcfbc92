// Dispatch from a reduction and dtype to its kernel; conversions; invalid values.
#include "collectives/kernels/reduce.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "collectives/kernels/reduce_loops.hpp"

namespace phalanx {

namespace {

template <class T>
[[gnu::always_inline]] inline void widen_as(const std::byte* from, float* to,
                                            std::size_t count) noexcept {
    const T* halves = reinterpret_cast<const T*>(from);
    PHALANX_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) to[i] = widen(halves[i]);
}

template <class T>
[[gnu::always_inline]] inline void narrow_as(const float* from, std::byte* to,
                                             std::size_t count) noexcept {
    T* halves = reinterpret_cast<T*>(to);
    PHALANX_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) narrow(from[i], halves[i]);
}

PHALANX_CLONES void widen_half(const std::byte* from, float* to, std::size_t count) {
    widen_as<Half>(from, to, count);
}
PHALANX_CLONES void widen_bfloat16(const std::byte* from, float* to, std::size_t count) {
    widen_as<BFloat16>(from, to, count);
}
PHALANX_CLONES void narrow_half(const float* from, std::byte* to, std::size_t count) {
    narrow_as<Half>(from, to, count);
}
PHALANX_CLONES void narrow_bfloat16(const float* from, std::byte* to, std::size_t count) {
    narrow_as<BFloat16>(from, to, count);
}

// The values least likely to be taken for a result. Not 0, the least unsigned value: a black
// picture and an array of False look like results.
template <class T>
struct InvalidValue {
    using Limits = std::numeric_limits<T>;
    static constexpr T value = Limits::has_quiet_NaN ? Limits::quiet_NaN()
                               : Limits::is_signed   ? Limits::min()
                                                     : Limits::max();
};
template <>
struct InvalidValue<Bool> {
    static constexpr Bool value{1};
};
template <>
struct InvalidValue<Half> {
    static constexpr Half value{0x7e00};
};
template <>
struct InvalidValue<BFloat16> {
    static constexpr BFloat16 value{0x7fc0};
};
template <class T>
struct InvalidValue<Complex<T>> {
    static constexpr Complex<T> value{InvalidValue<T>::value, InvalidValue<T>::value};
};

}  // namespace

void reduce(Reduction reduction, Dtype dtype, std::byte* out, std::byte* out_too,
            std::span<const std::byte* const> inputs, std::size_t count) noexcept {
    if (count == 0 || inputs.empty()) return;
    const Kernel* const kernels = reduction == Reduction::kSum   ? kSumKernels
                                  : reduction == Reduction::kMax ? kMaxKernels
                                                                 : kMinKernels;
    kernels[index_of(dtype)](out, out_too, inputs, count);
}

void widen(Dtype half, const std::byte* from, float* to, std::size_t count) noexcept {
    half == Dtype::float16 ? widen_half(from, to, count) : widen_bfloat16(from, to, count);
}

void narrow(Dtype half, const float* from, std::byte* to, std::size_t count) noexcept {
    half == Dtype::float16 ? narrow_half(from, to, count) : narrow_bfloat16(from, to, count);
}

void invalidate(Dtype dtype, std::byte* out, std::size_t count) noexcept {
    if (count == 0) return;
    switch (dtype) {
#define PHALANX_CASE(id, name, type)                                                 \
    case Dtype::id:                                                                  \
        std::fill_n(reinterpret_cast<type*>(out), count, InvalidValue<type>::value); \
        return;
        PHALANX_DTYPES(PHALANX_CASE)
#undef PHALANX_CASE
        case Dtype::none:
            break;
    }
}

}  // namespace phalanx
