// Everything of nn/.
#pragma once

#include <sherd/nn/activation.h>
#include <sherd/nn/attention.h>
#include <sherd/nn/dropout.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/embedding.h>
#include <sherd/nn/expert_exchange.h>
#include <sherd/nn/expert_parallel.h>
#include <sherd/nn/function.h>
#include <sherd/nn/gradient_check.h>
#include <sherd/nn/grouped_linear.h>
#include <sherd/nn/linear.h>
#include <sherd/nn/loss.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/nn/models/presets.h>
#include <sherd/nn/models/stored_names.h>
#include <sherd/nn/module.h>
#include <sherd/nn/norm.h>
#include <sherd/nn/qk_norm.h>
#include <sherd/nn/recompute.h>
#include <sherd/nn/rope.h>
#include <sherd/nn/routing.h>
#include <sherd/nn/rows.h>
#include <sherd/nn/sequence_parallel.h>
#include <sherd/nn/tensor_parallel.h>
#include <sherd/nn/vocab_parallel.h>
