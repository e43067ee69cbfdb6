"""Numerical algorithms that know nothing of reinforcement learning: arrays in, arrays out."""
