// Everything a training program needs.
#pragma once

#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/launcher.h>
#include <sherd/dtensor/dtensor.h>
#include <sherd/fsdp/accumulate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/module_list.h>
#include <sherd/fsdp/read_loss.h>
#include <sherd/fsdp/unsharded.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/device/dlpack.h>
#include <sherd/kernels/ops.h>
#include <sherd/nn/nn.h>
#include <sherd/nn/ops.h>
#include <sherd/optim/averaged.h>
#include <sherd/optim/clip.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/optimizer.h>
#include <sherd/optim/qk_clip.h>
#include <sherd/optim/schedule.h>
#include <sherd/optim/soap.h>
