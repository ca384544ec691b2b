"""Golden cases of functions: inputs, outputs and gradients by PyTorch in f64. make_functions.py and make_algebra.py use it.

Inputs and outputs' gradients are odd multiples of 1/64, so f32 holds them exactly and none is 0.
"""

import json
import pathlib

import numpy as np
import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


class Cases:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def grid(self, *shape):
        return torch.tensor((2 * self.rng.integers(-48, 48, size=shape) + 1) / 64.0)

    def distinct(self, *shape):
        """The same without equal elements, for maxima."""
        count = int(np.prod(shape))
        return torch.tensor((2.0 * self.rng.permutation(count) + 1 - count // 2 * 2) / 64.0).reshape(shape)

    def case(self, inputs, parameters, integers, function):
        leaves = [t.requires_grad_() for t in inputs + parameters]
        outputs = function(inputs, parameters, integers)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        seeds = [self.grid(*y.shape) for y in outputs]
        gradients = torch.autograd.grad(outputs, leaves, seeds)
        return {
            "inputs": [stored(t) for t in inputs],
            "parameters": [stored(t) for t in parameters],
            "integers": [stored(t) for t in integers],
            "outputs": [stored(t) for t in outputs],
            "output_gradients": [stored(t) for t in seeds],
            "gradients": [stored(t) for t in gradients],  # of the inputs, then of the parameters
        }

    def write(self, name, cases):
        """Writes name.json beside this file, from name -> (inputs, parameters, integers, function of the three)."""
        lines = [f'"{name}": {json.dumps(self.case(*parts))}' for name, parts in cases.items()]
        text = '{"torch": "%s",\n"cases": {\n%s\n}}\n' % (torch.__version__, ",\n".join(lines))
        json.loads(text)
        pathlib.Path(__file__).with_name(name + ".json").write_text(text)


def stored(t):
    return {"shape": list(t.shape), "values": t.detach().flatten().tolist()}
