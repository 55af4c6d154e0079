// `octavo._cpu`: what Python may call. The only file that knows Python.
//
// Arrays are checked here, by name; nothing is ever converted, so that what a function writes is what
// its caller sees. A wrong type or number of dimensions is a TypeError, a wrong shape or order in memory
// a ValueError. The loops run without the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "attention.h"
#include "dispatch.h"
#include "engine.h"
#include "floors.h"
#include "loads.h"
#include "memory.h"
#include "pack.h"
#include "sample.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace octavo;

namespace {

using ConstArray = nb::ndarray<nb::ro>;
constexpr int64_t kAny = -1;

std::string dtype_name(nb::dlpack::dtype type) {
  static constexpr const char* kNames[] = {"int", "uint", "float", "?", "bfloat", "complex", "bool"};
  const std::string name = type.code < 7 ? kNames[type.code] : "?";
  return name == "bool" ? name : name + std::to_string(type.bits);
}

std::string shape_text(size_t count, const int64_t* sizes) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) {
    text += (i ? ", " : "") + (sizes[i] == kAny ? "any" : std::to_string(sizes[i]));
  }
  return text + "]";
}

// The numbers of an array that must lie in C order and have the type T and the shape.
template <class T, class Array>
T* numbers(const char* name, const Array& array, std::initializer_list<int64_t> shape) {
  if (array.device_type() != nb::device::cpu::value) {
    throw nb::type_error((std::string(name) + " is not in the memory of the CPU").c_str());
  }
  const nb::dlpack::dtype wanted = nb::dtype<T>();
  if (array.dtype() != wanted) {
    const std::string message = std::string(name) + " has dtype " + dtype_name(array.dtype()) +
                                ", not " + dtype_name(wanted);
    throw nb::type_error(message.c_str());
  }
  if (array.ndim() != shape.size()) {
    const std::string message = std::string(name) + " has " + std::to_string(array.ndim()) +
                                " dimensions, not " + std::to_string(shape.size());
    throw nb::type_error(message.c_str());
  }
  std::vector<int64_t> found(array.ndim());
  bool fits = true;
  for (size_t i = 0; i < array.ndim(); ++i) {
    found[i] = static_cast<int64_t>(array.shape(i));
    fits &= shape.begin()[i] == kAny || shape.begin()[i] == found[i];
  }
  if (!fits) {
    const std::string message = std::string(name) + " has shape " +
                                shape_text(found.size(), found.data()) + ", not " +
                                shape_text(shape.size(), shape.begin());
    throw nb::value_error(message.c_str());
  }
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (found[i] > 1 && array.stride(i) != stride) {
      const std::string message = std::string(name) + " is not contiguous in C order: its strides are " +
                                  shape_text(found.size(), array.stride_ptr());
      throw nb::value_error(message.c_str());
    }
    stride *= found[i];
  }
  return static_cast<T*>(const_cast<void*>(static_cast<const void*>(array.data())));
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory new_memory(size_t bytes) {
  // Whole cache lines, at least one: aligned_alloc asks for it.
  void* memory = std::aligned_alloc(64, bytes / 64 * 64 + 64);
  if (memory == nullptr) throw std::bad_alloc();
  return Memory(static_cast<uint8_t*>(memory));
}

// A new numpy array and where its numbers lie.
template <class T>
std::pair<nb::ndarray<nb::numpy, T>, T*> new_array(std::initializer_list<size_t> shape) {
  size_t count = 1;
  for (size_t size : shape) count *= size;
  T* data = reinterpret_cast<T*>(new_memory(count * sizeof(T)).release());
  nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
  return {nb::ndarray<nb::numpy, T>(data, shape, owner), data};
}

const Kernels& chosen(const std::optional<std::string>& isa) {
  return isa ? kernels_called(*isa) : default_kernels();
}

// Strings that each follow their length in 8 bytes: the lists of a GGUF file.
class StringReader {
 public:
  StringReader(const ConstArray& data, size_t position)
      : bytes_(numbers<const uint8_t>("data", data, {kAny})), size_(data.shape(0)), position_(position) {}

  size_t position() const { return position_; }

  // Throws ValueError if it passes the end.
  std::pair<const char*, size_t> next() {
    uint64_t length;
    if (position_ > size_ || size_ - position_ < sizeof length) cut();
    std::memcpy(&length, bytes_ + position_, sizeof length);
    position_ += sizeof length;
    if (length > size_ - position_) cut();
    position_ += length;
    return {reinterpret_cast<const char*>(bytes_) + position_ - length, length};
  }

 private:
  [[noreturn]] static void cut() { throw nb::value_error("data is cut short"); }

  const uint8_t* bytes_;
  size_t size_, position_;
};

size_t skip_strings(const ConstArray& data, size_t position, size_t count) {
  StringReader reader(data, position);
  for (size_t index = 0; index < count; ++index) reader.next();
  return reader.position();
}

// Throws UnicodeDecodeError, which is a ValueError, for text that is not UTF-8.
std::pair<nb::list, size_t> read_strings(const ConstArray& data, size_t position, size_t count) {
  StringReader reader(data, position);
  nb::list texts;
  for (size_t index = 0; index < count; ++index) {
    const auto [text, length] = reader.next();
    PyObject* decoded = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), nullptr);
    if (decoded == nullptr) throw nb::python_error();
    texts.append(nb::steal(decoded));
  }
  return {texts, reader.position()};
}

// --- Linear layers ---------------------------------------------------------------------------------

constexpr const char* kFormatNames[] = {"q4", "q8", "bf16", "f32", "f16", "q4s", "q5s", "q6s", "q8s"};

Format format_called(const std::string& name) {
  for (size_t i = 0; i < std::size(kFormatNames); ++i) {
    if (name == kFormatNames[i]) return static_cast<Format>(i);
  }
  std::string names;
  for (const char* known : kFormatNames) names += (names.empty() ? "" : ", ") + std::string(known);
  throw nb::value_error(("there is no format '" + name + "': " + names).c_str());
}

struct Matrix {
  PackedMatrix packed;
  Memory memory;                         // its own,
  std::shared_ptr<WeightMemory> shared;  // or that of a whole model
};

// One matrix of a file as the bytes of its rows, [out, row bytes].
SourceMatrix source_matrix(int type, int in, const ConstArray& data) {
  const auto source = static_cast<SourceType>(type);
  const BlockShape block = block_shape(source);
  if (block.inputs == 0) {
    throw nb::value_error(("type " + std::to_string(type) + " is not read").c_str());
  }
  if (in < kGroup || in % kGroup || in % block.inputs) {
    const std::string message = "in_features is " + std::to_string(in) + ", not a multiple of " +
                                std::to_string(block.inputs > kGroup ? block.inputs : kGroup);
    throw nb::value_error(message.c_str());
  }
  const auto row_bytes = static_cast<int64_t>(source_row_bytes(source, in));
  const uint8_t* bytes = numbers<const uint8_t>("data", data, {kAny, row_bytes});
  return {source, static_cast<int>(data.shape(0)), in, bytes, nullptr};
}

Matrix pack(const std::vector<std::pair<int, ConstArray>>& parts, int in,
            const std::optional<std::string>& format, bool paired, ThreadPool* pool) {
  PackSource source;
  source.arrangement = paired ? Arrangement::kPaired : Arrangement::kConcatenated;
  if (parts.empty()) throw nb::value_error("parts is empty");
  for (const auto& [type, data] : parts) source.parts.push_back(source_matrix(type, in, data));
  const Format wanted = format ? format_called(*format) : default_format(source);
  check_source(source, wanted);
  Matrix matrix;
  matrix.packed = packed_shape(wanted, source.out(), source.in());
  matrix.memory = new_memory(packed_bytes(matrix.packed));
  matrix.packed.data = matrix.memory.get();
  nb::gil_scoped_release release;
  if (pool == nullptr) {
    pack_strips(source, matrix.packed, 0, matrix.packed.strips(), matrix.memory.get());
  } else {
    pool->for_chunks(matrix.packed.strips(), [&](int strip) {
      pack_strips(source, matrix.packed, strip, strip + 1, matrix.memory.get());
    });
  }
  return matrix;
}

nb::ndarray<nb::numpy, float> unpack(const Matrix& matrix) {
  const size_t out = matrix.packed.out, in = matrix.packed.in;
  auto [array, values] = new_array<float>({out, in});
  for (size_t row = 0; row < out; ++row) {
    unpack_row(matrix.packed, static_cast<int>(row), values + row * in);
  }
  return array;
}

// Memory for rows in the form that a format asks for.
struct PreparedRows {
  Rows rows;
  Memory codes, scales, sums, offsets, bf16;

  PreparedRows(const Kernels& kernels, Format format, const float* values, int count, int in) {
    rows.in = in;
    const size_t numbers = static_cast<size_t>(count) * in, groups = numbers / kGroup;
    if (takes_f32(format)) {
      rows.f32 = values;
    } else if (takes_bf16(format)) {
      bf16 = new_memory(numbers * 2);
      auto* to = reinterpret_cast<uint16_t*>(bf16.get());
      kernels.to_bf16(values, static_cast<int>(numbers), to);
      rows.bf16 = to;
    } else {
      codes = new_memory(numbers);
      scales = new_memory(groups * 4);
      sums = new_memory(groups * 4);
      offsets = new_memory(groups * 4);
      rows.quantized = {in, reinterpret_cast<int8_t*>(codes.get()),
                        reinterpret_cast<float*>(scales.get()), reinterpret_cast<float*>(sums.get()),
                        reinterpret_cast<int32_t*>(offsets.get())};
      kernels.quantize_rows(values, rows.quantized, 0, count);
    }
  }
};

void check_groups(int64_t in) {
  if (in % kGroup != 0) {
    const std::string message = "values has rows of " + std::to_string(in) +
                                " numbers, not a multiple of " + std::to_string(kGroup);
    throw nb::value_error(message.c_str());
  }
}

auto quantize_rows(const ConstArray& values, const std::optional<std::string>& isa) {
  const float* from = numbers<const float>("values", values, {kAny, kAny});
  const size_t count = values.shape(0), in = values.shape(1);
  check_groups(static_cast<int64_t>(in));
  const Kernels& kernels = chosen(isa);
  auto [codes, to_codes] = new_array<int8_t>({count, in});
  auto [scales, to_scales] = new_array<float>({count, in / kGroup});
  auto [sums, to_sums] = new_array<float>({count, in / kGroup});
  auto [offsets, to_offsets] = new_array<int32_t>({count, in / kGroup});
  kernels.quantize_rows(from, {static_cast<int>(in), to_codes, to_scales, to_sums, to_offsets}, 0,
                        static_cast<int>(count));
  return nb::make_tuple(codes, scales, sums, offsets);
}

// Strips that one thread takes at a time: enough to be worth a visit to the counter.
constexpr int kStripsOfAChunk = 4;

nb::ndarray<nb::numpy, float> run_linear(const Matrix& matrix, const ConstArray& values,
                                         ThreadPool* pool, const std::optional<std::string>& isa) {
  const PackedMatrix& packed = matrix.packed;
  const float* from = numbers<const float>("values", values, {kAny, packed.in});
  const int count = static_cast<int>(values.shape(0));
  const Kernels& kernels = chosen(isa);
  const size_t out = packed.out;
  auto [array, to] = new_array<float>({static_cast<size_t>(count), out});
  if (count == 0) return array;
  nb::gil_scoped_release release;
  const PreparedRows prepared(kernels, packed.format, from, count, packed.in);
  if (pool == nullptr) {
    kernels.linear(packed, prepared.rows, count, 0, packed.strips(), to, out);
  } else {
    const int chunks = (packed.strips() + kStripsOfAChunk - 1) / kStripsOfAChunk;
    pool->for_chunks(chunks, [&, to = to](int chunk) {
      const int begin = chunk * kStripsOfAChunk;
      const int end = std::min(begin + kStripsOfAChunk, packed.strips());
      kernels.linear(packed, prepared.rows, count, begin, end, to, out);
    });
  }
  return array;
}

void bind_linear(nb::module_& module) {
  nb::class_<Matrix>(module, "PackedMatrix")
      .def_prop_ro("format",
                   [](const Matrix& self) { return kFormatNames[static_cast<int>(self.packed.format)]; })
      .def_prop_ro("shape",
                   [](const Matrix& self) { return nb::make_tuple(self.packed.out, self.packed.in); })
      .def_prop_ro("nbytes", [](const Matrix& self) { return packed_bytes(self.packed); })
      .def("unpack", &unpack);
  module.def("pack", &pack, "parts"_a.noconvert(), "in_features"_a, nb::kw_only(),
             "format"_a = nb::none(), "paired"_a = false, "pool"_a = nb::none());
  module.def("quantize_rows", &quantize_rows, "values"_a.noconvert(), nb::kw_only(),
             "isa"_a = nb::none());
  module.def("linear", &run_linear, "matrix"_a, "values"_a.noconvert(), nb::kw_only(),
             "pool"_a = nb::none(), "isa"_a = nb::none());
}

// --- Attention -------------------------------------------------------------------------------------

// The pages of one layer with memory of their own.
struct Pages {
  KvPages pages;
  int blocks = 0;
  Memory memory;

  Pages(int block_count, int block_tokens, int kv_heads, int dim, const std::string& format) {
    if (format != "bf16" && format != "f32") {
      throw nb::value_error(("there is no page format '" + format + "': bf16 or f32").c_str());
    }
    check_multiple("block_tokens", block_tokens, kTile);
    check_multiple("dim", dim, 16);
    if (block_count < 1 || kv_heads < 1) throw nb::value_error("blocks and kv_heads must be at least 1");
    blocks = block_count;
    pages.format = format == "f32" ? PageFormat::kF32 : PageFormat::kBf16;
    pages.block_tokens = block_tokens;
    pages.kv_heads = kv_heads;
    pages.dim = dim;
    pages.stride = pages.page_bytes();
    memory = new_memory(pages.stride * blocks);
    // No number: what has not been written must not be seen.
    std::memset(memory.get(), 0xff, pages.stride * blocks);
    pages.base = memory.get();
  }

  static void check_multiple(const char* name, int value, int of) {
    if (value > 0 && value % of == 0) return;
    const std::string message = std::string(name) + " is " + std::to_string(value) +
                                ", not a multiple of " + std::to_string(of);
    throw nb::value_error(message.c_str());
  }

  void write(const ConstArray& slots, const ConstArray& keys, const ConstArray& values,
             const std::optional<std::string>& isa) const {
    const int64_t* to = numbers<const int64_t>("slots", slots, {kAny});
    const auto count = static_cast<int64_t>(slots.shape(0));
    const float* from_keys = numbers<const float>("keys", keys, {count, pages.kv_heads, pages.dim});
    const float* from_values =
        numbers<const float>("values", values, {count, pages.kv_heads, pages.dim});
    for (int64_t i = 0; i < count; ++i) {
      if (to[i] < 0 || to[i] >= static_cast<int64_t>(blocks) * pages.block_tokens) {
        throw nb::value_error(("slots has " + std::to_string(to[i]) + ", past the pages").c_str());
      }
    }
    const Kernels& kernels = chosen(isa);
    const int64_t width = static_cast<int64_t>(pages.kv_heads) * pages.dim;
    for (int64_t i = 0; i < count; ++i) {
      kernels.write_kv(pages, to[i], from_keys + i * width, from_values + i * width);
    }
  }
};

// One sequence of a step: its new tokens, the position of the first of them, its blocks.
using Sequence = std::tuple<int, int, ConstArray>;

std::vector<AttentionSlice> slices_of(const std::vector<Sequence>& sequences, int block_tokens,
                                      int block_count, int window) {
  std::vector<AttentionSlice> slices;
  int first = 0;
  for (const auto& [tokens, start, table] : sequences) {
    if (tokens < 1 || start < 0) {
      throw nb::value_error("sequences: needs at least 1 token and a start of at least 0");
    }
    const int32_t* blocks = numbers<const int32_t>("sequences: table", table, {kAny});
    const int64_t end = static_cast<int64_t>(start) + tokens;
    const int64_t covered = static_cast<int64_t>(table.shape(0)) * block_tokens;
    if (covered < end) {
      throw nb::value_error(("sequences: table has room for " + std::to_string(covered) +
                             " tokens, not " + std::to_string(end)).c_str());
    }
    const int64_t lowest = window > 0 && start - window + 1 > 0 ? start - window + 1 : 0;
    for (int64_t at = lowest / block_tokens; at * block_tokens < end; ++at) {
      if (blocks[at] < 0 || blocks[at] >= block_count) {
        throw nb::value_error(("sequences: table has block " + std::to_string(blocks[at]) +
                               ", there are " + std::to_string(block_count)).c_str());
      }
    }
    slices.push_back({first, tokens, start, blocks});
    first += tokens;
  }
  return slices;
}

nb::ndarray<nb::numpy, float> attend(const Pages& pages, const ConstArray& queries,
                                     const std::vector<Sequence>& sequences, float scale, int window,
                                     ThreadPool* pool, const std::optional<std::string>& isa) {
  const int dim = pages.pages.dim;
  const float* from = numbers<const float>("queries", queries, {kAny, kAny, dim});
  const int tokens = static_cast<int>(queries.shape(0)), heads = static_cast<int>(queries.shape(1));
  Pages::check_multiple("queries: the number of heads", heads, pages.pages.kv_heads);
  if (window < 0) throw nb::value_error("window is below 0");
  const std::vector<AttentionSlice> slices =
      slices_of(sequences, pages.pages.block_tokens, pages.blocks, window);
  const int expected = slices.empty() ? 0 : slices.back().first_token + slices.back().tokens;
  if (tokens != expected) {
    throw nb::value_error(("queries has " + std::to_string(tokens) + " tokens, the sequences " +
                           std::to_string(expected)).c_str());
  }
  const Kernels& kernels = chosen(isa);
  auto [array, to] = new_array<float>({queries.shape(0), queries.shape(1), queries.shape(2)});
  nb::gil_scoped_release release;
  const int threads = pool == nullptr ? 1 : pool->size();
  AttentionPlan plan;
  const AttentionShape shape = {heads, pages.pages.kv_heads, pages.pages.block_tokens, window};
  const AttentionWork& work = plan.build(shape, slices.data(), static_cast<int>(slices.size()), threads);
  const size_t scratch_floats = attention_scratch_floats(dim);
  const Memory partials = new_memory(partial_floats(work, dim) * sizeof(float));
  const Memory scratch = new_memory(threads * scratch_floats * sizeof(float));
  const size_t stride = static_cast<size_t>(heads) * dim;
  const AttentionLayer layer = {pages.pages, from,   stride, scale,
                                to,          stride, reinterpret_cast<float*>(partials.get())};
  const auto scratch_of = [&](int thread) {
    return reinterpret_cast<float*>(scratch.get()) + thread * scratch_floats;
  };
  if (pool == nullptr) {
    for (int i = 0; i < work.item_count; ++i) kernels.run_attention(work, layer, i, scratch_of(0));
    for (int i = 0; i < work.merge_count; ++i) kernels.merge_attention(work, layer, i, scratch_of(0));
    return array;
  }
  pool->run([&](ThreadPool::Member& me) {
    float* mine = scratch_of(me.index());
    me.for_chunks(work.item_count, [&](int i) { kernels.run_attention(work, layer, i, mine); });
    me.for_chunks(work.merge_count, [&](int i) { kernels.merge_attention(work, layer, i, mine); });
  });
  return array;
}

void bind_attention(nb::module_& module) {
  nb::class_<Pages>(module, "KvPages")
      .def(nb::init<int, int, int, int, const std::string&>(), "blocks"_a, nb::kw_only(),
           "block_tokens"_a, "kv_heads"_a, "dim"_a, "format"_a)
      .def("write", &Pages::write, "slots"_a.noconvert(), "keys"_a.noconvert(),
           "values"_a.noconvert(), nb::kw_only(), "isa"_a = nb::none());
  module.def("attention", &attend, "pages"_a, "queries"_a.noconvert(), "sequences"_a.noconvert(),
             nb::kw_only(), "scale"_a, "window"_a = 0, "pool"_a = nb::none(), "isa"_a = nb::none());
}

void bind_threads(nb::module_& module) {
  nb::class_<ThreadPool>(module, "ThreadPool")
      .def("__init__",
           [](ThreadPool* self, int threads, double give_way_s) {
             Patience patience;
             patience.giving_way_ns = static_cast<int64_t>(give_way_s * 1e9);
             new (self) ThreadPool(threads, patience);
           },
           "threads"_a, "give_way_s"_a = 0.0)
      .def_prop_ro("size", &ThreadPool::size)
      .def("wake", &ThreadPool::wake);
}

#include "bind_pack.h"
#include "bind_engine.h"
#include "bind_sample.h"
#include "bind_loads.h"

}  // namespace

NB_MODULE(_cpu, module) {
  // A process may end while a thread of its own still serves: nothing is lost by that.
  nb::set_leak_warnings(false);
  module.def("isa", [] { return default_kernels().name; });
  module.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
  });
  module.def("read_strings", &read_strings, "data"_a.noconvert(), "position"_a, "count"_a);
  module.def("skip_strings", &skip_strings, "data"_a.noconvert(), "position"_a, "count"_a);
  bind_threads(module);
  bind_linear(module);
  bind_packer(module);
  bind_attention(module);
  bind_engine(module);
  bind_sampler(module);
  bind_loads(module);
}
