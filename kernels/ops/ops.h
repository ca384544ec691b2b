// Operations on tensors: check of shapes and dtypes, then queueing of the kernel on a stream.
//
// This header includes those of all families, each with its formulas. What holds for all operations:
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
// tests of kernels need them (see KernelTable); others call the functions.
#pragma once

#include <sherd/nn/kernels/activation/activation.h>
#include <sherd/nn/kernels/attention/attention.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/kernels/dropout/dropout.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/kernels/embedding/embedding.h>
#include <sherd/nn/kernels/experts/experts.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/kernels/loss/loss.h>
#include <sherd/kernels/muon/muon.h>
#include <sherd/nn/kernels/norm/norm.h>
#include <sherd/kernels/optimizer/optimizer.h>
#include <sherd/kernels/orthogonalize/orthogonalize.h>
#include <sherd/kernels/random/random_values.h>
#include <sherd/kernels/ops/random_normal.h>
#include <sherd/kernels/reduce/reduce.h>
#include <sherd/nn/kernels/rope/rope.h>
#include <sherd/kernels/ops/segments.h>
#include <sherd/nn/kernels/softmax/softmax.h>
#include <sherd/kernels/squares/squares.h>
#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>
