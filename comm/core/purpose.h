// Purpose of a collective, as part of its identity.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace sherd {

/// Short phrase such as "the weights of unit 'blocks.0'", equal on all ranks of a call; none by default. A
/// cheap handle: made once, copied with each call.
class Purpose {
 public:
  Purpose() = default;
  /// `in_digest`: whether calls with this purpose enter Communicator::digest(). False where consistent ranks
  /// make different numbers of calls, such as each owner of matrices among its tensor-parallel peers.
  explicit Purpose(std::string text, bool in_digest = true);
  /// Returns the purpose of an entry, such as "export_weights()": the first collective of a public function
  /// that every rank must call at the same point. It is not in the digest. A rank that waits there for 10 s
  /// (or a tenth of the timeout, if less) writes one line to stderr with the function and the missing ranks.
  /// Other collectives write none: ranks may reach them late.
  static Purpose entry(std::string_view function);

  /// Returns the phrase; "" without a purpose.
  std::string_view text() const { return what_ ? std::string_view(what_->text) : std::string_view(); }
  /// Returns a hash of the text; 0 without a purpose.
  uint64_t hash() const { return what_ ? what_->hash : 0; }
  bool is_entry() const { return what_ && what_->entry; }
  bool in_digest() const { return what_ && what_->in_digest; }
  explicit operator bool() const { return what_ != nullptr; }

 private:
  struct What {
    std::string text;
    uint64_t hash;
    bool in_digest, entry;
  };
  std::shared_ptr<const What> what_;
};

}  // namespace sherd
