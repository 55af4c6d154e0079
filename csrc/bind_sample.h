// Part of bindings.cpp: the sampler. Included there, after what checks arrays.

// Columns of the numbers of a sample, as _cpu.pyi lists them.
enum Whole {
  kRow, kPosition, kSeed, kTopK, kNamed, kRanked, kCandidates, kGiven, kMask, kWholeColumns
};
enum Real { kTemperature, kTopP, kMinP, kRepetition, kFrequency, kPresence, kRealColumns };
enum List { kAllowed, kBanned, kBiased, kSeen, kCounted, kLists };

struct BoundSampler {
  const Kernels& kernels;
  int vocab;
  nb::object owner;
  ThreadPool& pool;
  std::vector<RowSampler> of_thread;

  BoundSampler(const BoundSampler&) = delete;
  BoundSampler(int vocab, nb::object pool, const std::optional<std::string>& isa)
      : kernels(chosen(isa)), vocab(vocab), owner(pool), pool(nb::cast<ThreadPool&>(pool)) {
    if (vocab < 1) throw nb::value_error("vocab must be at least 1");
    for (int i = 0; i < this->pool.size(); ++i) of_thread.emplace_back(kernels, vocab);
  }

  // ends: where the lists of a sample end in ids and values; they follow each other.
  nb::tuple sample(const ConstArray& logits, const ConstArray& whole, const ConstArray& real,
                   const ConstArray& ends, const ConstArray& ids, const ConstArray& values,
                   const ConstArray& masks) {
    const float* rows = numbers<const float>("logits", logits, {kAny, vocab});
    const std::vector<SampleOptions> samples = read(whole, real, ends, ids, values, masks);
    const size_t count = samples.size();
    std::vector<const float*> row(count);
    std::vector<size_t> first(count + 1);
    const int64_t* columns = numbers<const int64_t>("whole", whole, {kAny, kWholeColumns});
    for (size_t i = 0; i < count; ++i) {
      const int64_t number = columns[i * kWholeColumns + kRow];
      if (number < 0 || number >= static_cast<int64_t>(logits.shape(0))) {
        throw nb::value_error(("whole has row " + std::to_string(number) + ", there are " +
                               std::to_string(logits.shape(0))).c_str());
      }
      row[i] = rows + number * vocab;
      first[i + 1] = first[i] + samples[i].named + samples[i].candidates;
    }
    auto [tokens, to_tokens] = new_array<int32_t>({count});
    auto [logprobs, to_logprobs] = new_array<double>({count});
    auto [broken, to_broken] = new_array<int32_t>({count});
    auto [ranks, to_ranks] = new_array<int32_t>({count});
    auto [named, to_named] = new_array<int32_t>({count});
    auto [starts, to_starts] = new_array<int64_t>({count});
    std::copy(first.begin(), first.begin() + count, to_starts);
    auto [named_ids, to_ids] = new_array<int32_t>({first[count]});
    auto [named_values, to_values] = new_array<double>({first[count]});
    const auto choose = [&, to_tokens = to_tokens, to_logprobs = to_logprobs, to_broken = to_broken,
                         to_ranks = to_ranks, to_named = to_named, to_ids = to_ids,
                         to_values = to_values](RowSampler& sampler, int i) {
      const Choice choice =
          sampler.sample(row[i], samples[i], to_ids + first[i], to_values + first[i]);
      to_tokens[i] = choice.token;
      to_logprobs[i] = choice.logprob;
      to_broken[i] = choice.broken;
      to_ranks[i] = choice.rank;
      to_named[i] = choice.named;
    };
    {
      nb::gil_scoped_release release;
      pool.run([&](ThreadPool::Member& member) {
        RowSampler& sampler = of_thread[member.index()];
        member.for_chunks(static_cast<int>(count), [&](int i) { choose(sampler, i); });
      });
    }
    return nb::make_tuple(tokens, logprobs, broken, ranks, named, starts, named_ids, named_values);
  }

 private:
  std::vector<SampleOptions> read(const ConstArray& whole, const ConstArray& real, const ConstArray& ends,
                                  const ConstArray& ids, const ConstArray& values,
                                  const ConstArray& masks) const {
    const int64_t* w = numbers<const int64_t>("whole", whole, {kAny, kWholeColumns});
    const auto count = static_cast<int64_t>(whole.shape(0));
    const double* r = numbers<const double>("real", real, {count, kRealColumns});
    const int64_t* end = numbers<const int64_t>("ends", ends, {count, kLists});
    const int32_t* tokens = numbers<const int32_t>("ids", ids, {kAny});
    const auto total = static_cast<int64_t>(ids.shape(0));
    const double* with = numbers<const double>("values", values, {total});
    check_range("ids", tokens, total, 0, vocab);
    const int words = (vocab + 31) / 32;
    const int32_t* mask = numbers<const int32_t>("masks", masks, {kAny, words});
    std::vector<SampleOptions> samples(count);
    int64_t at = 0;
    for (SampleOptions& one : samples) {
      one.position = static_cast<uint64_t>(w[kPosition]);
      one.seed = static_cast<uint64_t>(w[kSeed]);
      one.top_k = static_cast<int>(std::clamp<int64_t>(w[kTopK], 0, vocab));
      one.named = static_cast<int>(std::clamp<int64_t>(w[kNamed], 0, vocab));
      one.ranked = w[kRanked] != 0;
      one.candidates = static_cast<int>(std::clamp<int64_t>(w[kCandidates], 0, vocab));
      if (w[kGiven] < -1 || w[kGiven] >= vocab) {
        throw nb::value_error(("whole gives token " + std::to_string(w[kGiven])).c_str());
      }
      one.given = static_cast<int>(w[kGiven]);
      if (w[kMask] < -1 || w[kMask] >= static_cast<int64_t>(masks.shape(0))) {
        throw nb::value_error(("whole has mask " + std::to_string(w[kMask]) + ", there are " +
                               std::to_string(masks.shape(0))).c_str());
      }
      if (w[kMask] >= 0) one.mask = mask + w[kMask] * words;
      one.temperature = r[kTemperature];
      one.top_p = r[kTopP];
      one.min_p = r[kMinP];
      one.repetition = r[kRepetition];
      one.frequency = r[kFrequency];
      one.presence = r[kPresence];
      TokenList* const lists[] = {&one.allowed, &one.banned, &one.biased, &one.seen, &one.counted};
      for (int kind = 0; kind < kLists; ++kind) {
        if (end[kind] < at || end[kind] > total) {
          throw nb::value_error("ends must not fall, nor pass the end of ids");
        }
        *lists[kind] = {tokens + at, with + at, static_cast<int>(end[kind] - at)};
        at = end[kind];
      }
      w += kWholeColumns, r += kRealColumns, end += kLists;
    }
    return samples;
  }
};

void bind_sampler(nb::module_& module) {
  nb::class_<BoundSampler>(module, "Sampler")
      .def(nb::init<int, nb::object, const std::optional<std::string>&>(), "vocab"_a, nb::kw_only(), "pool"_a,
           "isa"_a = nb::none())
      .def("sample", &BoundSampler::sample, "logits"_a.noconvert(), "whole"_a.noconvert(),
           "real"_a.noconvert(), "ends"_a.noconvert(), "ids"_a.noconvert(), "values"_a.noconvert(),
           "masks"_a.noconvert());
}
