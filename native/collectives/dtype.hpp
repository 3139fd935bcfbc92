// The element types that can be summed, and what one must know of each. Adding one is one line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace phalanx {

// name, C++ type, type in which it is added (unsigned for integers: they wrap, without UB)
#define PHALANX_DTYPES(X)      \
    X(float32, float, float)   \
    X(float64, double, double) \
    X(int64, std::int64_t, std::uint64_t)

enum class Dtype : std::uint32_t {
    none = 0,
#define PHALANX_ENUMERATOR(name, type, sum_type) name,
    PHALANX_DTYPES(PHALANX_ENUMERATOR)
#undef PHALANX_ENUMERATOR
};

// Both are safe for a number that came from elsewhere.
constexpr std::string_view name_of(Dtype dtype) noexcept {
    switch (dtype) {
#define PHALANX_NAME(name, type, sum_type) \
    case Dtype::name:                      \
        return #name;
        PHALANX_DTYPES(PHALANX_NAME)
#undef PHALANX_NAME
        case Dtype::none:
            break;
    }
    return "no dtype";
}

constexpr std::size_t size_of(Dtype dtype) noexcept {
    switch (dtype) {
#define PHALANX_SIZE(name, type, sum_type) \
    case Dtype::name:                      \
        return sizeof(type);
        PHALANX_DTYPES(PHALANX_SIZE)
#undef PHALANX_SIZE
        case Dtype::none:
            break;
    }
    return 1;
}

}  // namespace phalanx
