// Part of bindings.cpp: the engine. Included there, after what checks arrays and packs matrices.

using Floats = std::optional<ConstArray>;

constexpr int64_t kMostPositions = int64_t{1} << 30;

// A layer as Python describes it: what it points to is kept alive by the engine's owner.
struct Layer {
  LayerWeights weights;
  std::vector<FeedForward> feed_forward;
  int index_in_group = 0;
};

void expect_shape(const char* name, const Matrix& matrix, int out, int in) {
  if (matrix.packed.out == out && matrix.packed.in == in) return;
  const int64_t found[] = {matrix.packed.out, matrix.packed.in}, wanted[] = {out, in};
  throw nb::value_error((std::string(name) + " has shape " + shape_text(2, found) + ", not " +
                         shape_text(2, wanted)).c_str());
}

// The numbers of a model, and its layers, before it becomes an engine.
struct ModelBuilder {
  Model model;
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<nb::object> kept;  // arrays and matrices that are pointed to

  ModelBuilder(const ModelBuilder&) = delete;
  ModelBuilder(int vocab, int hidden, int intermediate, int heads, int kv_heads, int head_dim,
               float norm_eps, float embedding_scale, bool gelu, int experts, int experts_per_token,
               bool normalized_experts) {
    Pages::check_multiple("hidden", hidden, 1);
    Pages::check_multiple("intermediate", intermediate, kGroup);
    Pages::check_multiple("head_dim", head_dim, 2);
    Pages::check_multiple("heads", heads, kv_heads);
    model.vocab = vocab;
    model.hidden = padded(hidden);
    model.hidden_size = hidden;
    model.intermediate = intermediate;
    model.heads = heads;
    model.kv_heads = kv_heads;
    model.head_dim = (head_dim + kTile - 1) / kTile * kTile;
    model.head_size = head_dim;
    model.norm_eps = norm_eps;
    model.embedding_scale = embedding_scale;
    model.gelu = gelu;
    model.experts = experts;
    model.experts_per_token = experts_per_token;
    model.normalized_experts = normalized_experts;
  }

  void set_ends(nb::object embedding, nb::object norm, nb::object output) {
    const Matrix &table = nb::cast<const Matrix&>(embedding), &head = nb::cast<const Matrix&>(output);
    expect_shape("embedding", table, model.vocab, model.hidden);
    expect_shape("output", head, model.vocab, model.hidden);
    model.embedding = table.packed;
    model.output = head.packed;
    model.norm = numbers<const float>("norm", nb::cast<ConstArray>(norm), {model.hidden});
    kept.insert(kept.end(), {embedding, norm, output});
  }

  void add_frequencies(nb::object frequencies, float scale) {
    int number = 0;
    while (number < kMaxRotaries && model.frequencies[number]) ++number;
    if (number == kMaxRotaries) throw nb::value_error("a model has at most two sets of frequencies");
    model.frequencies[number] =
        numbers<const float>("frequencies", nb::cast<ConstArray>(frequencies), {model.head_dim / 2});
    model.rotary_scale[number] = scale;
    kept.push_back(frequencies);
  }

  // parts: by name, as _cpu.pyi lists them.
  void add_layer(nb::dict parts, int rotary, int group, int index_in_group) {
    auto layer = std::make_unique<Layer>();
    LayerWeights& weights = layer->weights;
    const auto row = [&](const char* name, int64_t size) -> const float* {
      if (!parts.contains(name)) return nullptr;
      kept.push_back(parts[name]);
      return numbers<const float>(name, nb::cast<ConstArray>(parts[name]), {size});
    };
    const auto matrix = [&](nb::object given, const char* name, int out, int in) {
      kept.push_back(given);
      const Matrix& found = nb::cast<const Matrix&>(given);
      expect_shape(name, found, out, in);
      return found.packed;
    };
    const int hidden = model.hidden, inner = model.intermediate;
    weights.attn_norm = row("attn_norm", hidden);
    weights.qkv = matrix(parts["qkv"], "qkv", model.qkv_size(), hidden);
    weights.qkv_bias = row("qkv_bias", model.qkv_size());
    weights.q_norm = row("q_norm", model.head_dim);
    weights.k_norm = row("k_norm", model.head_dim);
    weights.o = matrix(parts["o"], "o", hidden, padded(model.mixed_size()));
    weights.attn_post_norm = row("attn_post_norm", hidden);
    weights.ffn_norm = row("ffn_norm", hidden);
    weights.ffn_post_norm = row("ffn_post_norm", hidden);
    if (model.experts) weights.router = matrix(parts["router"], "router", model.experts, hidden);
    if (!weights.attn_norm || !weights.ffn_norm) throw nb::value_error("a layer needs its two norms");
    for (nb::handle pair : nb::cast<nb::list>(parts["feed_forward"])) {
      const auto two = nb::cast<nb::tuple>(pair);
      layer->feed_forward.push_back({matrix(two[0], "gate_up", 2 * inner, hidden),
                                     matrix(two[1], "down", hidden, inner)});
      // Rows are made ready once, for all experts.
      if (layer->feed_forward.back().gate_up.format != layer->feed_forward.front().gate_up.format) {
        throw nb::value_error("all experts of a layer must have one format");
      }
    }
    if (static_cast<int>(layer->feed_forward.size()) != std::max(model.experts, 1)) {
      throw nb::value_error("feed_forward must have one pair, or one for each expert");
    }
    weights.feed_forward = layer->feed_forward.data();
    weights.rotary = rotary;
    weights.group = group;
    layer->index_in_group = index_in_group;
    layers.push_back(std::move(layer));
  }
};

// Blocks of a step's tables, and the slots written, must be there: nothing else is memory of ours.
void check_range(const char* name, const int32_t* values, size_t count, int64_t low, int64_t high) {
  for (size_t i = 0; i < count; ++i) {
    if (values[i] >= low && values[i] < high) continue;
    throw nb::value_error((std::string(name) + " has " + std::to_string(values[i]) + ", not from " +
                           std::to_string(low) + " to " + std::to_string(high - 1)).c_str());
  }
}

// A layer's pages must lie inside the blocks of its group, and its frequencies be there.
void check_home(const Model& model, const Layer& layer, const std::vector<std::tuple<int, int, int>>& groups) {
  const auto check = [](const char* name, int value, int count) {
    if (value >= 0 && value < count) return;
    throw nb::value_error((std::string(name) + " of a layer is " + std::to_string(value) +
                           ", there are " + std::to_string(count)).c_str());
  };
  int rotaries = 0;
  while (rotaries < kMaxRotaries && model.frequencies[rotaries]) ++rotaries;
  check("rotary", layer.weights.rotary, rotaries);
  check("group", layer.weights.group, static_cast<int>(groups.size()));
  check("index_in_group", layer.index_in_group, std::get<2>(groups[layer.weights.group]));
}

// Every position that a slice sees must have a block in its table.
void check_table(const StepInputs& step, const GroupTables& group, int64_t entries, int block_tokens,
                 int window, int blocks) {
  for (int i = 0; i < step.slices; ++i) {
    const int64_t start = step.starts[i], end = start + step.lengths[i];
    const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, start - window + 1);
    const int64_t first = seen / block_tokens, last = (end - 1) / block_tokens;
    if (group.starts[i] < 0 || group.starts[i] + last >= entries) {
      throw nb::value_error(("tables ends before position " + std::to_string(end - 1) + " of slice " +
                             std::to_string(i)).c_str());
    }
    check_range("tables", group.tables + group.starts[i] + first, last - first + 1, 0, blocks);
  }
}

struct BoundEngine {
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<nb::object> kept;
  std::vector<std::tuple<int, int, int>> groups;  // tokens per block, window, pages per block
  std::unique_ptr<Engine> engine;

  BoundEngine(const BoundEngine&) = delete;
  BoundEngine(ModelBuilder& builder, const std::vector<std::tuple<int, int, int>>& given, int blocks,
              const std::string& page_format, nb::object pool, const std::optional<std::string>& isa)
      : groups(given) {
    if (builder.layers.empty()) throw nb::value_error("the model has no layers, or is in use already");
    if (!builder.model.norm) throw nb::value_error("the model has no ends");
    for (const auto& layer : builder.layers) check_home(builder.model, *layer, groups);
    if (blocks < 1) throw nb::value_error("blocks must be at least 1");
    if (page_format != "bf16" && page_format != "f32") {
      throw nb::value_error(("there is no page format '" + page_format + "': bf16 or f32").c_str());
    }
    std::vector<GroupShape> shapes;
    for (const auto& [block_tokens, window, pages] : groups) {
      Pages::check_multiple("block_tokens", block_tokens, kTile);
      shapes.push_back({block_tokens, window, pages});
    }
    layers = std::move(builder.layers);
    kept = std::move(builder.kept);
    kept.push_back(pool);
    std::vector<LayerWeights> weights;
    std::vector<int> indices;
    for (const auto& layer : layers) {
      weights.push_back(layer->weights);
      indices.push_back(layer->index_in_group);
    }
    const PageFormat format = page_format == "f32" ? PageFormat::kF32 : PageFormat::kBf16;
    engine = std::make_unique<Engine>(builder.model, std::move(weights), indices, std::move(shapes), format,
                                      blocks, nb::cast<ThreadPool&>(pool), chosen(isa));
  }

  // places: (tables, table starts, blocks, offsets) of each group.
  void run(const ConstArray& ids, const ConstArray& positions, const ConstArray& starts,
           const ConstArray& lengths,
           const std::vector<std::tuple<ConstArray, ConstArray, ConstArray, ConstArray>>& places,
           const ConstArray& sample_rows) {
    const Model& model = engine->model();
    StepInputs step;
    const auto tokens = static_cast<int64_t>(ids.shape(0));
    step.tokens = static_cast<int>(tokens);
    step.ids = numbers<const int32_t>("ids", ids, {kAny});
    check_range("ids", step.ids, tokens, 0, model.vocab);
    step.positions = numbers<const int32_t>("positions", positions, {tokens});
    step.starts = numbers<const int32_t>("starts", starts, {kAny});
    const auto slices = static_cast<int64_t>(starts.shape(0));
    step.slices = static_cast<int>(slices);
    step.lengths = numbers<const int32_t>("lengths", lengths, {slices});
    check_range("starts", step.starts, slices, 0, kMostPositions);
    check_range("lengths", step.lengths, slices, 1, tokens + 1);
    if (std::accumulate(step.lengths, step.lengths + slices, int64_t{0}) != tokens) {
      throw nb::value_error("lengths must add up to the tokens");
    }
    if (places.size() != groups.size()) throw nb::value_error("groups: one for each KV group");
    for (const auto& [tables, table_starts, blocks, offsets] : places) {
      const auto& [block_tokens, window, pages] = groups[step.groups.size()];
      GroupTables group;
      group.tables = numbers<const int32_t>("tables", tables, {kAny});
      group.starts = numbers<const int32_t>("table_starts", table_starts, {slices});
      group.blocks = numbers<const int32_t>("blocks", blocks, {tokens});
      group.offsets = numbers<const int32_t>("offsets", offsets, {tokens});
      check_table(step, group, static_cast<int64_t>(tables.shape(0)), block_tokens, window,
                  engine->blocks());
      check_range("blocks", group.blocks, tokens, 0, engine->blocks());
      check_range("offsets", group.offsets, tokens, 0, block_tokens);
      step.groups.push_back(group);
    }
    const auto samples = static_cast<int64_t>(sample_rows.shape(0));
    step.samples = static_cast<int>(samples);
    step.sample_rows = numbers<const int32_t>("sample_rows", sample_rows, {kAny});
    check_range("sample_rows", step.sample_rows, samples, 0, tokens);
    nb::gil_scoped_release release;
    engine->run(step);
  }

  void check_sampled(int first, int count) const {
    if (first >= 0 && count >= 0 && first <= engine->sampled() - count) return;
    throw nb::value_error(("the last step sampled " + std::to_string(engine->sampled()) + " rows, not " +
                           std::to_string(int64_t{first} + count)).c_str());
  }

  void score(int first, const nb::ndarray<>& logits) {
    float* to = numbers<float>("logits", logits, {kAny, engine->model().vocab});
    const int count = static_cast<int>(logits.shape(0));
    check_sampled(first, count);
    nb::gil_scoped_release release;
    engine->score(first, count, to);
  }

  void write_states(int first, const nb::ndarray<>& rows) {
    const auto hidden = static_cast<size_t>(engine->model().hidden);
    float* to = numbers<float>("rows", rows, {kAny, engine->model().hidden});
    const int count = static_cast<int>(rows.shape(0));
    check_sampled(first, count);
    std::copy_n(engine->states() + first * hidden, count * hidden, to);
  }

  // of_row: the number of each row's mask, or -1.
  nb::tuple find_likeliest(int first, int count, const ConstArray& of_row, const ConstArray& masks) {
    check_sampled(first, count);
    const std::vector<const int32_t*> mask = masks_of_rows(count, of_row, masks);
    const auto size = static_cast<size_t>(count);
    auto [tokens, to_tokens] = new_array<int32_t>({size});
    auto [logprobs, to_logprobs] = new_array<double>({size});
    auto [broken, to_broken] = new_array<int32_t>({size});
    std::vector<Survey> found(size);
    {
      nb::gil_scoped_release release;
      engine->survey(first, count, mask.empty() ? nullptr : mask.data(), found.data());
    }
    for (size_t row = 0; row < size; ++row) {
      to_tokens[row] = found[row].id;
      to_logprobs[row] = found[row].logprob();
      to_broken[row] = found[row].broken;
    }
    return nb::make_tuple(tokens, logprobs, broken);
  }

  // Empty if there are none.
  std::vector<const int32_t*> masks_of_rows(int count, const ConstArray& of_row,
                                            const ConstArray& masks) const {
    const int32_t* number = numbers<const int32_t>("of_row", of_row, {count});
    const int words = (engine->model().vocab + 31) / 32;
    const int32_t* mask = numbers<const int32_t>("masks", masks, {kAny, words});
    const auto given = static_cast<int64_t>(masks.shape(0));
    check_range("of_row", number, count, -1, given);
    std::vector<const int32_t*> of;
    for (int row = 0; given && row < count; ++row) {
      of.push_back(number[row] < 0 ? nullptr : mask + static_cast<size_t>(number[row]) * words);
    }
    return of;
  }

  void copy(const ConstArray& sources, const ConstArray& targets) {
    const auto count = static_cast<int64_t>(sources.shape(0));
    const int32_t* from = numbers<const int32_t>("sources", sources, {kAny});
    const int32_t* to = numbers<const int32_t>("targets", targets, {count});
    check_range("sources", from, count, 0, engine->blocks());
    check_range("targets", to, count, 0, engine->blocks());
    engine->copy(from, to, static_cast<int>(count));
  }
};

void bind_engine(nb::module_& module) {
  nb::class_<ModelBuilder>(module, "Model")
      .def(nb::init<int, int, int, int, int, int, float, float, bool, int, int, bool>(), nb::kw_only(),
           "vocab"_a, "hidden"_a, "intermediate"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "norm_eps"_a,
           "embedding_scale"_a, "gelu"_a, "experts"_a, "experts_per_token"_a, "normalized_experts"_a)
      .def("set_ends", &ModelBuilder::set_ends, "embedding"_a, "norm"_a, "output"_a)
      .def("add_frequencies", &ModelBuilder::add_frequencies, "frequencies"_a, "scale"_a)
      .def("add_layer", &ModelBuilder::add_layer, "parts"_a, nb::kw_only(), "rotary"_a, "group"_a,
           "index_in_group"_a);
  nb::class_<BoundEngine>(module, "Engine")
      .def(nb::init<ModelBuilder&, const std::vector<std::tuple<int, int, int>>&, int, const std::string&,
                    nb::object, const std::optional<std::string>&>(),
           "model"_a, nb::kw_only(), "groups"_a, "blocks"_a, "page_format"_a, "pool"_a,
           "isa"_a = nb::none())
      .def_prop_ro("block_bytes", [](const BoundEngine& self) { return self.engine->block_bytes(); })
      .def("touch_ahead", [](BoundEngine& self, size_t bytes) { self.engine->touch_ahead(bytes); },
           "bytes"_a)
      .def("run", &BoundEngine::run, "ids"_a.noconvert(), "positions"_a.noconvert(),
           "starts"_a.noconvert(), "lengths"_a.noconvert(), "groups"_a.noconvert(),
           "sample_rows"_a.noconvert())
      .def("score", &BoundEngine::score, "first"_a, "logits"_a.noconvert())
      .def("write_states", &BoundEngine::write_states, "first"_a, "rows"_a.noconvert())
      .def("find_likeliest", &BoundEngine::find_likeliest, "first"_a, "count"_a, "of_row"_a.noconvert(),
           "masks"_a.noconvert())
      .def("copy", &BoundEngine::copy, "sources"_a.noconvert(), "targets"_a.noconvert());
}
