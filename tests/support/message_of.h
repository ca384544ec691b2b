// Message of an exception.
#pragma once

#include <string>

/// The message of the E that `body` throws; "nothing was thrown" otherwise. Other exceptions pass through.
template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}
