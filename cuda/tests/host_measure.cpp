// mk_measure where there is no GPU: options, refusals, and the pattern that data is checked by.
#include <cuda_runtime.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "host/error.h"
#include "host/measure.h"
#include "host/measure_pair.h"
#include "kernels/measure.h"
#include "tests/check.h"

using namespace mk;

namespace {

std::string refusal(const mk_measure_options& o) {
  try {
    measure_options(&o);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(measure_options_have_defaults) {
  const mk_measure_options o = measure_options(nullptr);
  CHECK(o.bytes == 256u << 20 && o.repeats == 8 && o.rounds == 2000 && o.timeout_ns == 2'000'000'000);
  mk_measure_options mine;
  MK_INIT(&mine);
  mine.bytes = 4096, mine.rounds = 3;
  const mk_measure_options filled = measure_options(&mine);
  CHECK(filled.bytes == 4096 && filled.rounds == 3 && filled.repeats == 8);
}

TEST(bad_measure_options_are_named) {
  mk_measure_options o;
  MK_INIT(&o);
  o.bytes = 24;
  CHECK(has(refusal(o), "bytes is 24"));
  o.bytes = (uint64_t{4} << 30) + 16;
  CHECK(has(refusal(o), "bytes is 4294967312"));
  MK_INIT(&o);
  o.repeats = -1;
  CHECK(has(refusal(o), "repeats is -1"));
  MK_INIT(&o);
  o.rounds = 1'000'001;
  CHECK(has(refusal(o), "rounds is 1000001"));
  MK_INIT(&o);
  o.timeout_ns = UINT64_MAX;
  CHECK(has(refusal(o), "timeout_ns is 18446744073709551615"));
  MK_INIT(&o);
  o.version = 9;
  CHECK(has(refusal(o), "interface version 9"));
}

TEST(fans_are_checked_and_share_the_bytes) {
  const int32_t devices[] = {0, 1, 2, 3, 4, 5, 6, 7}, twice[] = {0, 1, 0};
  const auto why = [](const int32_t* d, int32_t count, const mk_measure_options& o, const mk_measure_fan* f, int32_t n) -> std::string {
    try {
      measure_fan_shard(d, count, o, f, n);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  mk_measure_options o = measure_options(nullptr);
  mk_measure_fan f;
  MK_INIT(&f);
  f.sources = 8, f.peers = 7, f.ctas = 132, f.depth = 4;
  CHECK(measure_fan_shard(devices, 8, o, &f, 1) == (256u << 20) / 7 / kFanBlock * kFanBlock);
  f.peers = 1;
  CHECK(measure_fan_shard(devices, 8, o, &f, 1) == (256u << 20) / 7 / kFanBlock * kFanBlock);  // the same data for any number of peers
  CHECK(has(why(nullptr, 8, o, &f, 1), "devices is NULL") && has(why(devices, 8, o, nullptr, 1), "fans is NULL"));
  CHECK(has(why(devices, 1, o, &f, 1), "1 devices") && has(why(devices, 17, o, &f, 1), "17 devices"));
  CHECK(has(why(twice, 3, o, &f, 1), "device 0 is there twice") && has(why(devices, 8, o, &f, 0), "fan_count is 0"));
  const auto spoilt = [&](int32_t mk_measure_fan::*field, int32_t value) {
    mk_measure_fan bad[2] = {f, f};
    bad[1].*field = value;
    return why(devices, 8, o, bad, 2);
  };
  CHECK(has(spoilt(&mk_measure_fan::sources, 0), "sources is 0") && has(spoilt(&mk_measure_fan::sources, 9), "sources is 9"));
  CHECK(has(spoilt(&mk_measure_fan::peers, 0), "peers is 0") && has(spoilt(&mk_measure_fan::peers, 8), "peers is 8"));
  CHECK(has(spoilt(&mk_measure_fan::ctas, -1), "ctas is -1") && has(spoilt(&mk_measure_fan::ctas, 1025), "ctas is 1025"));
  CHECK(has(spoilt(&mk_measure_fan::depth, 0), "depth is 0") && has(spoilt(&mk_measure_fan::depth, 5), "depth is 5"));
  o.bytes = 6 * kFanBlock;
  CHECK(has(why(devices, 8, o, &f, 1), "at least 114688 are wanted"));
  o.bytes = uint64_t{4} << 30, o.repeats = 1000;
  CHECK(why(devices, 8, o, &f, 1).empty());
  mk_measure_fan old = f;
  old.version = 9;
  CHECK(has(why(devices, 8, o, &old, 1), "interface version 9"));
}

TEST(trips_are_checked) {
  const auto why = [](const mk_measure_trip* t, int32_t n) -> std::string {
    try {
      check_trips(t, n);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  mk_measure_trip t;
  MK_INIT(&t);
  t.on_device = 1, t.unordered = 1, t.bytes = 1 << 20;
  CHECK(why(&t, 1).empty() && has(why(nullptr, 1), "NULL") && has(why(&t, 0), "count is 0"));
  const auto spoilt = [&](auto mk_measure_trip::*field, auto value) {
    mk_measure_trip bad[2] = {t, t};
    bad[1].*field = value;
    return why(bad, 2);
  };
  CHECK(has(spoilt(&mk_measure_trip::bytes, 12), "bytes is 12") && has(spoilt(&mk_measure_trip::bytes, (1 << 20) + 8), "bytes is 1048584"));
  CHECK(has(spoilt(&mk_measure_trip::on_device, 2), "on_device is 2") && has(spoilt(&mk_measure_trip::unordered, -1), "unordered is -1"));
  CHECK(has(spoilt(&mk_measure_trip::version, 9u), "interface version 9"));
}

// The two ranks that a trip is measured between, with the CPU in the GPU's place.
TEST(what_a_trip_posts_reaches_the_other_rank) {
  constexpr uint64_t kBytes = 1 << 16, kSecond = 1'000'000'000, kFlagAt = kBytes - 8;
  for (const bool unordered : {false, true}) {
    std::vector<uint64_t> heaps[2] = {std::vector<uint64_t>(kBytes / 8), std::vector<uint64_t>(kBytes / 8)};
    const measure::PairSide sides[2] = {{heaps[0].data(), nullptr}, {heaps[1].data(), nullptr}};
    const measure::NetPair pair(sides, kBytes, unordered, 60 * kSecond);
    for (uint64_t round = 1; round <= 100; ++round) {
      heaps[0][0] = heaps[0][511] = round;
      mknet_command c = {};
      c.op = MKNET_WRITE, c.peer = 1, c.rows = 1, c.bytes = 4096, c.flag = kFlagAt, c.value = round;
      uint64_t position = 0;
      mknet_error e;
      CHECK(mknet_push(pair.net(0), &c, 60 * kSecond, &position, &e) == MKNET_OK);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (__atomic_load_n(&heaps[1][kFlagAt / 8], __ATOMIC_ACQUIRE) < round && std::chrono::steady_clock::now() < deadline)
        if (mknet_status(pair.net(1), 1000, &e) != MKNET_OK) break;
      CHECK(heaps[1][kFlagAt / 8] == round && heaps[1][0] == round && heaps[1][511] == round);
      CHECK(mknet_flush(pair.net(0), 1, position + 1, 60 * kSecond, &e) == MKNET_OK);
    }
  }
}

TEST(measuring_what_is_not_there_is_refused) {
  mk_error e;
  mk_measure_path path[2];
  mk_measure_host host;
  CHECK(mk_measure_pair(0, 1, nullptr, nullptr, &e) == MK_ERROR_ARGUMENT && has(e.text, "path is NULL"));
  CHECK(mk_measure_pair(1, 1, nullptr, path, &e) == MK_ERROR_ARGUMENT && has(e.text, "no pair with itself"));
  CHECK(mk_measure_host_link(0, nullptr, nullptr, &e) == MK_ERROR_ARGUMENT && has(e.text, "out is NULL"));
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return;
  CHECK(mk_measure_pair(0, 1, nullptr, path, &e) == MK_ERROR_UNSUPPORTED && has(e.text, "no CUDA device"));
  CHECK(mk_measure_host_link(0, nullptr, &host, &e) == MK_ERROR_UNSUPPORTED && has(e.text, "no CUDA device"));
  mk_measure_trip trip;
  MK_INIT(&trip);
  CHECK(mk_measure_trips(0, nullptr, &trip, 1, &e) == MK_ERROR_UNSUPPORTED && has(e.text, "no CUDA device"));
  const int32_t both[] = {0, 1};
  mk_measure_fan fan;
  MK_INIT(&fan);
  fan.sources = fan.peers = fan.depth = 1;
  CHECK(mk_measure_fan_out(both, 2, nullptr, &fan, 1, &e) == MK_ERROR_UNSUPPORTED && has(e.text, "no CUDA device"));
}

// A shift by words, another seed, and a word left out must all be seen.
TEST(the_pattern_tells_places_and_seeds_apart) {
  constexpr uint64_t kPoisonWord = 0xA5A5A5A5A5A5A5A5ull;
  for (uint64_t i = 0; i < 100000; ++i) {
    const uint64_t word = measure_word(1, i);
    CHECK(word != measure_word(2, i) && word != measure_word(1, i + 1) && word != measure_word(1, i + 2) &&
          word != measure_word(1, i + 16) && word != kPoisonWord);
  }
}
