// Numpy arrays in: what is refused, and in which words.
#include "base/cpu.hpp"
#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

#define PHALANX_NAME_COMMA(name, type, sum_type) #name ", "
constexpr std::string_view kNames = PHALANX_DTYPES(PHALANX_NAME_COMMA);
#undef PHALANX_NAME_COMMA

std::string supported() { return std::string(kNames.substr(0, kNames.size() - 2)); }

// By kind and size, not by the type number: long and long long are both int64 on Linux.
Dtype dtype_of(const py::dtype& dtype) {
    if (dtype.byteorder() != '=' && dtype.byteorder() != '|') return Dtype::none;
    const auto size = dtype.itemsize();
    switch (dtype.kind()) {
        case 'f':
            return size == 4 ? Dtype::float32 : size == 8 ? Dtype::float64 : Dtype::none;
        case 'i':
            return size == 8 ? Dtype::int64 : Dtype::none;
        default:
            return Dtype::none;
    }
}

}  // namespace

View view_of(const py::handle& object, const char* name, bool is_output) {
    if (!py::isinstance<py::array>(object)) {
        throw py::type_error(
            std::string(name) + " must be a numpy array, not " +
            py::str(py::type::handle_of(object).attr("__name__")).cast<std::string>());
    }
    const auto array = py::reinterpret_borrow<py::array>(object);
    View view;
    view.dtype = dtype_of(array.dtype());
    if (view.dtype == Dtype::none) {
        throw py::type_error(std::string(name) + " has dtype " +
                             py::str(array.dtype()).cast<std::string>() +
                             "; supported, in native byte order: " + supported());
    }
    const int flags = array.flags();
    if ((flags & py::array::c_style) == 0) {
        throw py::value_error(std::string(name) +
                              " must be C-contiguous; numpy.ascontiguousarray makes it so");
    }
    if ((flags & py::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) {
        throw py::value_error(std::string(name) +
                              " must be aligned; numpy.ascontiguousarray(x.copy()) makes it so");
    }
    if (is_output && !array.writeable()) {
        throw py::value_error(std::string(name) + " is read-only");
    }
    view.data = static_cast<const std::byte*>(array.data());
    if (is_output) view.writable = static_cast<std::byte*>(const_cast<void*>(array.data()));
    view.count = static_cast<std::uint64_t>(array.size());
    view.shape.reserve(static_cast<std::size_t>(array.ndim()));
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
        view.shape.push_back(static_cast<std::uint64_t>(array.shape(axis)));
    }
    return view;
}

void register_convert(py::module_& module) {
    module.def("supported_dtypes", [] {
        py::list names;
#define PHALANX_APPEND(name, type, sum_type) names.append(#name);
        PHALANX_DTYPES(PHALANX_APPEND)
#undef PHALANX_APPEND
        return py::tuple(names);
    });
    module.def("flag_latency_ns", [] {
        const py::gil_scoped_release released;  // a thread and two atomics, nothing of Python
        return flag_latency_ns();
    });
}

}  // namespace phalanx::binding
