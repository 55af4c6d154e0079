// Part of bindings.cpp: packing the weights of a model. Included there, after what packs one matrix.

// A part of a matrix: its GGUF type, its bytes [out, row bytes], and whether they are pages of a file.
using PackPart = std::tuple<int, ConstArray, bool>;

// Packs matrices that were added one by one all at once, without the GIL, so that the caller's other
// threads get on. Their memory has few large pages; what was read of files is given back on the way.
class Packer {
 public:
  Packer(const Packer&) = delete;
  explicit Packer(nb::object pool)
      : owner_(pool), pool_(nb::cast<ThreadPool&>(pool)), memory_(std::make_shared<WeightMemory>()) {}

  // The matrix is of no use before run().
  Matrix add(const std::vector<PackPart>& parts, int in, const std::optional<std::string>& format,
             bool paired) {
    Job job;
    job.source.arrangement = paired ? Arrangement::kPaired : Arrangement::kConcatenated;
    if (parts.empty()) throw nb::value_error("parts is empty");
    for (const auto& [type, data, mapped] : parts) {
      job.source.parts.push_back(source_matrix(type, in, data));
      job.mapped.push_back(mapped);
    }
    const Format wanted = format ? format_called(*format) : default_format(job.source);
    check_source(job.source, wanted);
    job.matrix = packed_shape(wanted, job.source.out(), job.source.in());
    job.data = memory_->take(packed_bytes(job.matrix));
    job.matrix.data = job.data;
    for (const auto& part : parts) arrays_.push_back(std::get<1>(part));
    jobs_.push_back(job);
    Matrix matrix;
    matrix.packed = job.matrix;
    matrix.shared = memory_;
    return matrix;
  }

  void run() {
    {
      nb::gil_scoped_release release;
      for (const Job& job : jobs_) {
        if (stopping_.load(std::memory_order_relaxed)) break;
        pack(job);
      }
    }
    jobs_.clear();
    arrays_.clear();
  }

  // Any thread may call: run() leaves the rest out, and returns soon.
  void stop() { stopping_.store(true, std::memory_order_relaxed); }

 private:
  struct Job {
    PackSource source;
    std::vector<bool> mapped;
    PackedMatrix matrix;
    uint8_t* data = nullptr;
  };

  // Bytes of a file that are in memory at once.
  static constexpr size_t kPieceBytes = size_t{16} << 20;

  void pack(const Job& job) {
    size_t bytes = 0;
    for (const SourceMatrix& part : job.source.parts) bytes += source_bytes(part);
    const int strips = job.matrix.strips(), pieces = static_cast<int>(bytes / kPieceBytes) + 1;
    for (int piece = 0; piece < pieces && !stopping_.load(std::memory_order_relaxed); ++piece) {
      const int begin = static_cast<int>(int64_t{strips} * piece / pieces);
      const int end = static_cast<int>(int64_t{strips} * (piece + 1) / pieces);
      pool_.for_chunks(end - begin, [&](int strip) {
        pack_strips(job.source, job.matrix, begin + strip, begin + strip + 1, job.data);
      });
      for (size_t i = 0; i < job.mapped.size(); ++i) {
        if (job.mapped[i]) drop_file_pages(job.source.parts[i].data, source_bytes(job.source.parts[i]));
      }
    }
  }

  static size_t source_bytes(const SourceMatrix& part) {
    return source_row_bytes(part.type, part.in) * part.out;
  }

  nb::object owner_;
  ThreadPool& pool_;
  std::shared_ptr<WeightMemory> memory_;
  std::vector<ConstArray> arrays_;
  std::vector<Job> jobs_;
  std::atomic<bool> stopping_{false};
};

// What a matrix of parts of these types takes.
size_t count_packed_bytes(const std::vector<int>& types, int out, int in,
                          const std::optional<std::string>& format) {
  PackSource source;
  for (int type : types) source.parts.push_back({static_cast<SourceType>(type), out, in, nullptr, nullptr});
  if (types.empty() || out < 1 || in < kGroup || in % kGroup) {
    throw nb::value_error("a matrix has parts, outputs, and inputs in multiples of 32");
  }
  const Format wanted = format ? format_called(*format) : default_format(source);
  return packed_bytes(packed_shape(wanted, out, in));
}

void bind_packer(nb::module_& module) {
  nb::class_<Packer>(module, "Packer")
      .def(nb::init<nb::object>(), "pool"_a)
      .def("add", &Packer::add, "parts"_a.noconvert(), "in_features"_a, nb::kw_only(),
           "format"_a = nb::none(), "paired"_a = false)
      .def("run", &Packer::run)
      .def("stop", &Packer::stop);
  module.def("packed_bytes", &count_packed_bytes, "types"_a, "out"_a, "in_features"_a, nb::kw_only(),
             "format"_a = nb::none());
}
