"""Modelling code of transformers in double precision."""

import torch


class DoubleTorch:
    """The module torch, but torch.float32 is torch.float64: modelling code casts norms, scores and softmax to float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def in_double(modeling):
    """Returns a module of transformers that computes in double precision from now on."""
    modeling.torch = DoubleTorch()
    return modeling
