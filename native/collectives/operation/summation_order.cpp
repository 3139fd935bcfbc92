// See summation_order.hpp and tests/native/collectives/test_summation_order.cpp.
#include "collectives/operation/summation_order.hpp"

namespace phalanx {

Range slice(std::uint64_t count, std::uint64_t parts, std::uint64_t index, std::uint64_t grain) {
    // In units of grains, and split by division, so that units * index / parts cannot overflow.
    const std::uint64_t units = count / grain + (count % grain != 0 ? 1 : 0);
    const auto bound = [&](std::uint64_t i) {
        return std::min(count, (units / parts * i + units % parts * i / parts) * grain);
    };
    const std::uint64_t begin = bound(index);
    return {begin, bound(index + 1) - begin};
}

std::vector<Range> node_slices(std::uint64_t count, std::uint64_t width, int nodes) {
    const auto parts = static_cast<std::uint64_t>(nodes);
    std::vector<Range> slices;
    for (std::uint64_t node = 0; node < parts; ++node) {
        const Range range = slice(count, parts, node);
        slices.push_back({range.begin * width, range.size * width});
    }
    return slices;
}

std::vector<int> ring_arrivals(int nodes, int first) {
    std::vector<int> order;
    for (int step = 1; step < nodes; ++step) order.push_back((first - step + nodes) % nodes);
    return order;
}

}  // namespace phalanx
