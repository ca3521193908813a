"""What the tests of isolated searches import in another process."""

import os
import threading

import numpy as np

import cuda_async as ca
import tilekern as tk

N = 2048


@tk.kernel
def add(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D):
    out.store(tk.load_like(x, out) + tk.load_like(y, out))


def make(config):
    """Faults on demand: a candidate that hangs, one that ends its process, one that raises."""
    behaviour = config.get("behaviour", "right")
    if behaviour == "hangs":
        threading.Event().wait()
    if behaviour == "ends":
        os._exit(7)
    if behaviour == "raises":
        raise ValueError("no such configuration")
    if behaviour == "prints":
        print("something on stdout")
    device = ca.current_device()
    x = ca.from_host(np.arange(N, dtype="f4")).sync()
    other = ca.zeros((N,)) if behaviour == "wrong" else ca.ones((N,))
    out = ca.zeros((N,)).sync()
    bound = add.bind(out.partition(config.get("tile", 256)), x, other.sync(), device=device)
    return bound.launch


def verify(value):
    """x + 1."""
    return np.array_equal(ca.to_host(value[0].tensor).sync(), np.arange(N) + 1)
