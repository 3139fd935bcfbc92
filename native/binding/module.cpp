// The module phalanx._native: only registers what the other files define.
#include "binding/binding.hpp"

PYBIND11_MODULE(_native, module) {
    using namespace phalanx::binding;
    module.doc() = "The native engine of phalanx: moves bytes between descriptors and mappings.";
    register_site(module);
    register_errors(module);
    register_convert(module);
    register_page(module);
    register_monitoring(module);
    register_arena(module);
    register_group(module);
    register_fast_path(module);
    register_mlx(module);
}
