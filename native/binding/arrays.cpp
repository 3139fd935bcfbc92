// Read numpy arrays and names of operations as the engine takes them. Nothing is converted: an
// array that does not fit is left to Python, which has the error texts.
#include "binding/binding.hpp"

namespace phalanx::binding {

namespace {

struct NamedDtype {
    Dtype dtype;
    PyObject* descr;  // numpy's own, shared by most arrays, but not by unpickled ones
};

// Made at the first use: it imports numpy, which a supervisor does without. Never destroyed: no
// destructor runs after the interpreter has shut down.
struct Known {
    std::vector<NamedKind> kinds;
    std::vector<NamedDtype> dtypes;
};

NamedKind named(OpKind kind) {
    const bool keeps_shape = kind == OpKind::kAllSum || kind == OpKind::kAllMax ||
                             kind == OpKind::kAllMin || kind == OpKind::kBroadcast ||
                             is_message(kind);
    return {kind, keeps_shape, PyUnicode_InternFromString(name_of(kind).c_str())};
}

const Known& known() {
    // Not made by an initializer: other threads would hold the GIL while they wait for that.
    static const Known* it = nullptr;
    if (it != nullptr) return *it;
    auto* made = new Known;
    for (const OpKind kind : kOpKinds) made->kinds.push_back(named(kind));
    for (const Dtype dtype : all_dtypes()) {
        if (dtype == Dtype::bfloat16) continue;  // from ml_dtypes, not numpy
        const std::string name(name_of(dtype));
        made->dtypes.push_back({dtype, py::dtype(name).release().ptr()});
    }
    if (it == nullptr) it = made;  // else another thread was first, while numpy ran Python code
    return *it;
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

// `as` names the dtype of the bytes if numpy has no name for it, else "".
Dtype dtype_read_as(PyObject* descr, std::string_view as) {
    for (const NamedDtype& its : known().dtypes) {
        if (its.descr != descr) continue;
        if (as.empty()) return its.dtype;
        const bool is_bits = its.dtype == Dtype::uint16 && as == name_of(Dtype::bfloat16);
        return is_bits ? Dtype::bfloat16 : Dtype::none;
    }
    if (!as.empty()) return Dtype::none;
    return dtype_of(py::reinterpret_borrow<py::dtype>(py::handle(descr)));
}

// Null for anything but a contiguous, aligned array.
const Array* array_with(PyObject* object, int flags) {
    if (!Api::get().PyArray_Check_(object)) return nullptr;
    const Array* array = py::detail::array_proxy(object);
    const int needed = flags | Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_;
    return (array->flags & needed) == needed ? array : nullptr;
}

}  // namespace

const NamedKind* kind_of(PyObject* name) {
    for (const NamedKind& its : known().kinds) {
        if (its.name == name) return &its;
    }
    return nullptr;
}

bool ArrayCall::read_input(PyObject* x, std::string_view dtype, bool is_written) {
    input_ = array_with(x, is_written ? Api::NPY_ARRAY_WRITEABLE_ : 0);
    if (input_ == nullptr || input_->nd > static_cast<int>(kMostDims)) return false;
    call.dtype = dtype_read_as(input_->descr, dtype);
    call.count = 1;
    for (int axis = 0; axis < input_->nd; ++axis) {
        dims_[axis] = static_cast<std::uint64_t>(input_->dimensions[axis]);
        call.count *= dims_[axis];
    }
    call.shape = {dims_.data(), static_cast<std::size_t>(input_->nd)};
    call.x = reinterpret_cast<const std::byte*>(input_->data);
    if (is_written) call.out = reinterpret_cast<std::byte*>(input_->data);
    return call.dtype != Dtype::none;
}

bool ArrayCall::read_output(PyObject* out, std::string_view dtype, const Group& group) {
    output_ = array_with(out, Api::NPY_ARRAY_WRITEABLE_);
    if (output_ == nullptr ||
        (output_->descr != input_->descr && dtype_read_as(output_->descr, dtype) != call.dtype)) {
        return false;
    }
    std::uint64_t count = 1;
    for (int axis = 0; axis < output_->nd; ++axis) {
        count *= static_cast<std::uint64_t>(output_->dimensions[axis]);
    }
    if (count != out_count(call.kind, call.count, group.size())) return false;
    call.out = reinterpret_cast<std::byte*>(output_->data);
    const std::uint64_t nbytes = call.count * size_of(call.dtype);
    is_apart = call.x + nbytes <= call.out || call.out + count * size_of(call.dtype) <= call.x;
    // A shifted overlap would be overwritten while it is read. If every element stays in its place,
    // x and out may be the same; if every rank gets another block of x, they may not.
    const auto own_block =
        static_cast<std::uint64_t>(call.kind == OpKind::kAllGather ? group.rank() : 0);
    return is_apart || (!has_blocks(call.kind) && call.x == call.out + own_block * nbytes);
}

void register_convert(py::module_& module) {
    module.def("supported_dtypes", [] {
        py::list names;
        for (const Dtype dtype : all_dtypes()) names.append(name_of(dtype));
        return py::tuple(names);
    });
}

}  // namespace phalanx::binding
