"""The interface to a device, and its two implementations.

`_protocol.py` is the interface; `cuda/` talks to the CUDA driver; `host/` is the simulated device.
"""
