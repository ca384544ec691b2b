// Operations of models on tensors. kernels/ops.h says what holds for all operations.
#pragma once

#include <sherd/nn/kernels/activation/activation.h>          // IWYU pragma: export
#include <sherd/nn/kernels/attention/attention.h>            // IWYU pragma: export
#include <sherd/nn/kernels/dropout/dropout.h>                // IWYU pragma: export
#include <sherd/nn/kernels/embedding/embedding.h>            // IWYU pragma: export
#include <sherd/nn/kernels/experts/experts.h>                // IWYU pragma: export
#include <sherd/nn/kernels/latent/latent.h>                  // IWYU pragma: export
#include <sherd/nn/kernels/loss/loss.h>                      // IWYU pragma: export
#include <sherd/nn/kernels/norm/norm.h>                      // IWYU pragma: export
#include <sherd/nn/kernels/reduction/reduction.h>            // IWYU pragma: export
#include <sherd/nn/kernels/rope/rope.h>                      // IWYU pragma: export
#include <sherd/nn/kernels/sinks/sinks.h>                    // IWYU pragma: export
#include <sherd/nn/kernels/softmax/softmax.h>                // IWYU pragma: export
#include <sherd/nn/kernels/strided/strided.h>                // IWYU pragma: export
#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>  // IWYU pragma: export
