// The element types and their properties. To add a type, add one line here and, if none of the
// rules in element_ops.hpp fits, a rule there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "collectives/kernels/half.hpp"

namespace phalanx {

enum class Bool : std::uint8_t {};  // any byte except 0 is true

template <class T>
struct Complex {
    T real, imag;
};

// identifier, numpy's name, C++ type
#define PHALANX_DTYPES(X)                     \
    X(boolean, "bool", Bool)                  \
    X(int8, "int8", std::int8_t)              \
    X(int16, "int16", std::int16_t)           \
    X(int32, "int32", std::int32_t)           \
    X(int64, "int64", std::int64_t)           \
    X(uint8, "uint8", std::uint8_t)           \
    X(uint16, "uint16", std::uint16_t)        \
    X(uint32, "uint32", std::uint32_t)        \
    X(uint64, "uint64", std::uint64_t)        \
    X(float16, "float16", Half)               \
    X(bfloat16, "bfloat16", BFloat16)         \
    X(float32, "float32", float)              \
    X(float64, "float64", double)             \
    X(complex64, "complex64", Complex<float>) \
    X(complex128, "complex128", Complex<double>)

#define PHALANX_ENUMERATOR(id, name, type) id,
enum class Dtype : std::uint32_t { none = 0, PHALANX_DTYPES(PHALANX_ENUMERATOR) };
#undef PHALANX_ENUMERATOR

#define PHALANX_NAME(id, name, type) name,
#define PHALANX_SIZE(id, name, type) sizeof(type),
inline constexpr std::string_view kDtypeNames[] = {"no dtype", PHALANX_DTYPES(PHALANX_NAME)};
inline constexpr std::size_t kDtypeSizes[] = {1, PHALANX_DTYPES(PHALANX_SIZE)};
#undef PHALANX_NAME
#undef PHALANX_SIZE
inline constexpr std::size_t kDtypes = std::size(kDtypeNames);  // with `none`

// Safe for any number, for example one received from a peer.
constexpr std::size_t index_of(Dtype dtype) noexcept {
    const auto number = static_cast<std::size_t>(dtype);
    return number < kDtypes ? number : 0;
}
constexpr std::string_view name_of(Dtype dtype) noexcept { return kDtypeNames[index_of(dtype)]; }
constexpr std::size_t size_of(Dtype dtype) noexcept { return kDtypeSizes[index_of(dtype)]; }

inline constexpr std::size_t kLargestElement = 16;

constexpr std::array<Dtype, kDtypes - 1> all_dtypes() noexcept {
    std::array<Dtype, kDtypes - 1> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Dtype>(i + 1);
    return all;
}

// Types that are summed in float32 and rounded once.
constexpr bool is_half(Dtype dtype) noexcept {
    return dtype == Dtype::float16 || dtype == Dtype::bfloat16;
}

}  // namespace phalanx
