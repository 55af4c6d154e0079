// Part of bindings.cpp: what `octavo bench kernels` times. Included there, after what attends.

constexpr const char* kArithmeticNames[] = {"integers", "bf16", "float32"};

Arithmetic arithmetic_called(const std::string& name) {
  for (size_t i = 0; i < std::size(kArithmeticNames); ++i) {
    if (name == kArithmeticNames[i]) return static_cast<Arithmetic>(i);
  }
  throw nb::value_error(("there is no arithmetic '" + name + "': integers, bf16, float32").c_str());
}

void check_at_least_one(const char* name, int value) {
  if (value >= 1) return;
  throw nb::value_error((std::string(name) + " is " + std::to_string(value) + ", below 1").c_str());
}

uint64_t read_array(const ConstArray& data, ThreadPool& pool, const std::optional<std::string>& isa) {
  constexpr size_t kMegabyte = size_t{1} << 20;
  const uint8_t* bytes = numbers<const uint8_t>("data", data, {kAny});
  if (data.shape(0) == 0 || data.shape(0) % kMegabyte != 0) {
    throw nb::value_error(("data has " + std::to_string(data.shape(0)) +
                           " bytes, not whole megabytes of 1048576").c_str());
  }
  const Kernels& kernels = chosen(isa);
  nb::gil_scoped_release release;
  return read_memory(bytes, data.shape(0) / kMegabyte, pool, kernels);
}

double run_arithmetic(const std::string& name, int chunks, ThreadPool& pool,
                      const std::optional<std::string>& isa) {
  const Arithmetic arithmetic = arithmetic_called(name);
  check_at_least_one("chunks", chunks);
  const Kernels& kernels = chosen(isa);
  nb::gil_scoped_release release;
  return calculate(arithmetic, chunks, pool, kernels);
}

// A load and the pool that it was made for.
struct BoundLinearLoad {
  nb::object owner;
  Format format;
  std::unique_ptr<LinearLoad> load;

  BoundLinearLoad(const std::string& name, const std::vector<std::pair<int, int>>& shapes, int copies,
                  int most_rows, nb::object pool)
      : owner(pool), format(format_called(name)) {
    check_at_least_one("copies", copies);
    check_at_least_one("most_rows", most_rows);
    if (shapes.empty()) throw nb::value_error("shapes is empty");
    std::vector<MatrixShape> matrices;
    for (const auto& [out, in] : shapes) {
      check_at_least_one("shapes: out", out);
      Pages::check_multiple("shapes: in", in, kGroup);
      matrices.push_back({out, in});
    }
    ThreadPool& threads = nb::cast<ThreadPool&>(pool);
    nb::gil_scoped_release release;
    load = std::make_unique<LinearLoad>(format, matrices, copies, most_rows, threads);
  }

  void run(int rows, const std::optional<std::string>& isa) {
    if (rows < 1 || rows > load->most_rows()) {
      throw nb::value_error(("rows is " + std::to_string(rows) + ", not from 1 to " +
                             std::to_string(load->most_rows())).c_str());
    }
    const Kernels& kernels = chosen(isa);
    nb::gil_scoped_release release;
    load->run(rows, kernels);
  }
};

struct BoundAttentionLoad {
  nb::object owner;
  std::unique_ptr<AttentionLoad> load;

  // shape: heads, KV heads, head dim, tokens of a block.
  BoundAttentionLoad(const std::vector<Sequence>& sequences, const std::tuple<int, int, int, int>& shape,
                     int blocks, int layers, int copies, nb::object pool)
      : owner(pool) {
    const auto& [heads, kv_heads, dim, block_tokens] = shape;
    Pages::check_multiple("shape: block_tokens", block_tokens, kTile);
    Pages::check_multiple("shape: dim", dim, kTile);
    check_at_least_one("shape: kv_heads", kv_heads);
    Pages::check_multiple("shape: heads", heads, kv_heads);
    check_at_least_one("blocks", blocks);
    check_at_least_one("layers", layers);
    check_at_least_one("copies", copies);
    if (sequences.empty()) throw nb::value_error("sequences is empty");
    std::vector<AttentionSlice> slices = slices_of(sequences, block_tokens, blocks, 0);
    ThreadPool& threads = nb::cast<ThreadPool&>(pool);
    const AttentionShape of_step = {heads, kv_heads, block_tokens, 0};
    const KvLoad kv = {dim, blocks, layers, copies};
    nb::gil_scoped_release release;
    load = std::make_unique<AttentionLoad>(of_step, kv, std::move(slices), threads);
  }

  void run(const std::optional<std::string>& isa) {
    const Kernels& kernels = chosen(isa);
    nb::gil_scoped_release release;
    load->run(kernels);
  }
};

void bind_loads(nb::module_& module) {
  module.def("formats", [] {
    return std::vector<std::string>(std::begin(kFormatNames), std::end(kFormatNames));
  });
  module.def("read_memory", &read_array, "data"_a.noconvert(), nb::kw_only(), "pool"_a,
             "isa"_a = nb::none());
  module.def("calculate", &run_arithmetic, "arithmetic"_a, "chunks"_a, nb::kw_only(), "pool"_a,
             "isa"_a = nb::none());
  nb::class_<BoundLinearLoad>(module, "LinearLoad")
      .def(nb::init<const std::string&, const std::vector<std::pair<int, int>>&, int, int, nb::object>(),
           "format"_a, "shapes"_a, nb::kw_only(), "copies"_a, "most_rows"_a, "pool"_a)
      .def_prop_ro("arithmetic",
                   [](const BoundLinearLoad& self) {
                     return kArithmeticNames[static_cast<int>(arithmetic_of(self.format))];
                   })
      .def_prop_ro("nbytes", [](const BoundLinearLoad& self) { return self.load->bytes(); })
      .def_prop_ro("weights", [](const BoundLinearLoad& self) { return self.load->weights(); })
      .def("run", &BoundLinearLoad::run, "rows"_a, nb::kw_only(), "isa"_a = nb::none());
  nb::class_<BoundAttentionLoad>(module, "AttentionLoad")
      .def(nb::init<const std::vector<Sequence>&, const std::tuple<int, int, int, int>&, int, int, int,
                    nb::object>(),
           "sequences"_a, nb::kw_only(), "shape"_a, "blocks"_a, "layers"_a, "copies"_a, "pool"_a)
      .def("run", &BoundAttentionLoad::run, nb::kw_only(), "isa"_a = nb::none());
}
