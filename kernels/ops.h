// Operations on tensors: check of shapes and dtypes, then queueing of the kernel on a stream.
//
// This header includes those of all families of the runtime, each with its formulas; nn/ops.h those of models. What holds
// for all operations:
//
// Every function returns at once. Tensors named as outputs are overwritten unless the comment says "adds".
// The caller keeps the memory alive until the stream has run the work (see Device for the reuse rule).
// @throws ShapeMismatch / InvalidArgument at the call when arguments do not fit; kernels themselves do not
// fail, but for indices that they find outside their range.
//
// Activations are of one dtype, f32 or bf16; arithmetic inside a kernel is always fp32 or better, and
// gradients of weights are always f32 and accumulated (`+=`). The reference kernels take activations of f64 as
// well, for checks of gradients: what is f32 beside others (rstd, losses, gradients of weights) is f64 beside
// those, but for the lse of attention.
//
// The structs named ...Args hold what a kernel is given: plain memory with checked sizes. Only backends and
// tests of kernels need them (device/kernel_set.h); others call the functions.
//
// Segments are pieces of parameters: a pass of an optimizer step takes a list of them, so that a model of many small
// parameters costs few launches. They hold plain pointers. The result for an element depends on that element alone, not on
// its place in its segment.
#pragma once

#include <sherd/kernels/copy/copy.h>                    // IWYU pragma: export
#include <sherd/kernels/elementwise/elementwise.h>      // IWYU pragma: export
#include <sherd/kernels/epilogue/epilogue.h>            // IWYU pragma: export
#include <sherd/kernels/gemm/gemm.h>                    // IWYU pragma: export
#include <sherd/kernels/muon/muon.h>                    // IWYU pragma: export
#include <sherd/kernels/optimizer/optimizer.h>          // IWYU pragma: export
#include <sherd/kernels/orthogonalize/orthogonalize.h>  // IWYU pragma: export
#include <sherd/kernels/random/random.h>                // IWYU pragma: export
#include <sherd/kernels/reduce/reduce.h>                // IWYU pragma: export
#include <sherd/kernels/rest/rest.h>                    // IWYU pragma: export
#include <sherd/kernels/squares/squares.h>              // IWYU pragma: export
