// Endpoint data as bytes: fixed little-endian fields, read with every bound checked, since a peer wrote them.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "net/error.h"

namespace mk::net {

using Blob = std::vector<unsigned char>;

class BlobWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* p = reinterpret_cast<const unsigned char*>(&value);
    blob_.insert(blob_.end(), p, p + sizeof value);
  }
  void put_bytes(const void* data, size_t n) {
    put(static_cast<uint32_t>(n));
    const auto* p = static_cast<const unsigned char*>(data);
    blob_.insert(blob_.end(), p, p + n);
  }
  void put_text(const std::string& text) { put_bytes(text.data(), text.size()); }
  Blob take() { return std::move(blob_); }

 private:
  Blob blob_;
};

class BlobReader {
 public:
  BlobReader(const void* data, size_t n) : next_(static_cast<const unsigned char*>(data)), left_(n) {}

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    if constexpr (std::is_same_v<T, bool>) {
      const uint8_t value = get<uint8_t>();
      if (value > 1) fail(MKNET_ERROR_PEER, "endpoint data has %u where yes or no is said", value);
      return value != 0;
    } else {
      T value;
      need(sizeof value);
      memcpy(&value, next_, sizeof value);
      skip(sizeof value);
      return value;
    }
  }
  Blob get_bytes() {
    const uint32_t n = get<uint32_t>();
    need(n);
    Blob bytes(next_, next_ + n);
    skip(n);
    return bytes;
  }
  std::string get_text() {
    const Blob b = get_bytes();
    return std::string(b.begin(), b.end());
  }
  void end() const {
    if (left_ != 0) fail(MKNET_ERROR_PEER, "endpoint data has %zu bytes too many", left_);
  }

 private:
  void need(size_t n) const {
    if (n > left_) fail(MKNET_ERROR_PEER, "endpoint data ends too early: %zu bytes wanted, %zu left", n, left_);
  }
  void skip(size_t n) { next_ += n, left_ -= n; }

  const unsigned char* next_;
  size_t left_;
};

}  // namespace mk::net
