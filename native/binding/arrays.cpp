// Checks and conversion of numpy arrays, with the error texts.
#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

std::string supported() {
    std::string names;
    for (const Dtype dtype : all_dtypes()) {
        names += (names.empty() ? "" : ", ") + std::string(name_of(dtype));
    }
    return names;
}

constexpr int kFirstCustomNumber = 256;  // NPY_USERDEF: first number of dtypes from other packages

// Checks the name of the scalar type: works without importing ml_dtypes.
bool is_bfloat16(const py::dtype& dtype) {
    if (dtype.num() < kFirstCustomNumber || dtype.itemsize() != 2 || dtype.byteorder() != '=') {
        return false;
    }
    const PyObject* scalar = py::detail::array_descriptor_proxy(dtype.ptr())->typeobj;
    const std::string_view name = reinterpret_cast<const PyTypeObject*>(scalar)->tp_name;
    return name.substr(name.rfind('.') + 1) == name_of(Dtype::bfloat16);
}

// The caller names the dtype of the bytes; only their size can be checked.
Dtype dtype_as(const py::array& array, const char* name, std::string_view wanted) {
    const auto dtype = dtype_named(wanted);
    if (!dtype) {
        throw py::value_error("dtype " + std::string(wanted) +
                              " is not supported; supported: " + supported());
    }
    const py::dtype own = array.dtype();
    const bool has_swapped = own.byteorder() != '=' && own.byteorder() != '|';
    if (std::string_view("biufcV").find(own.kind()) == std::string_view::npos || has_swapped ||
        own.attr("hasobject").cast<bool>()) {
        throw py::type_error(std::string(name) + " has dtype " + py::str(own).cast<std::string>() +
                             "; only native numbers or raw bytes can be read as " +
                             std::string(wanted));
    }
    if (static_cast<std::size_t>(own.itemsize()) != size_of(*dtype)) {
        throw py::value_error(std::string(name) + " has elements of " +
                              std::to_string(own.itemsize()) + " bytes; " + std::string(wanted) +
                              " has " + std::to_string(size_of(*dtype)));
    }
    return *dtype;
}

}  // namespace

// By kind and size, not by the type number: long and long long are both int64 on Linux. longdouble
// and clongdouble have the kinds of float64 and complex128, but not their sizes.
Dtype dtype_of(const py::dtype& dtype) {
    if (dtype.byteorder() != '=' && dtype.byteorder() != '|') return Dtype::none;
    const auto size = dtype.itemsize();
    if (dtype.num() >= kFirstCustomNumber) {
        return is_bfloat16(dtype) ? Dtype::bfloat16 : Dtype::none;
    }
    switch (dtype.kind()) {
        case 'b':
            return Dtype::boolean;
        case 'f':
            return size == 4   ? Dtype::float32
                   : size == 8 ? Dtype::float64
                   : size == 2 ? Dtype::float16
                               : Dtype::none;
        case 'c':
            return size == 8 ? Dtype::complex64 : size == 16 ? Dtype::complex128 : Dtype::none;
        case 'i':
            return size == 8   ? Dtype::int64
                   : size == 4 ? Dtype::int32
                   : size == 2 ? Dtype::int16
                               : Dtype::int8;
        case 'u':
            return size == 8   ? Dtype::uint64
                   : size == 4 ? Dtype::uint32
                   : size == 2 ? Dtype::uint16
                               : Dtype::uint8;
        default:
            return Dtype::none;
    }
}

View view_of(const py::handle& object, const char* name, bool is_output, std::string_view dtype) {
    if (!py::isinstance<py::array>(object)) {
        throw py::type_error(
            std::string(name) + " must be a numpy array, not " +
            py::str(py::type::handle_of(object).attr("__name__")).cast<std::string>());
    }
    const auto array = py::reinterpret_borrow<py::array>(object);
    View view;
    view.dtype = dtype.empty() ? dtype_of(array.dtype()) : dtype_as(array, name, dtype);
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
        for (const Dtype dtype : all_dtypes()) names.append(name_of(dtype));
        return py::tuple(names);
    });
}

}  // namespace phalanx::binding
