"""Tile kernels written in Python."""
