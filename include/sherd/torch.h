// Everything a training program of libtorch modules needs.
#pragma once

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/launcher.h>
#include <sherd/fsdp/accumulate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/read_loss.h>
#include <sherd/optim/schedule.h>
#include <sherd/torch/broadcast.h>
#include <sherd/torch/call.h>
#include <sherd/torch/convert.h>
#include <sherd/torch/device.h>
#include <sherd/torch/device_memory.h>
#include <sherd/torch/fully_shard.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/gradients.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/meta_device.h>
#include <sherd/torch/optimizer.h>
#include <sherd/torch/recompute.h>
#include <sherd/torch/sync_batch_norm.h>
#include <sherd/torch/unsharded.h>
#include <sherd/torch/update_weights.h>
