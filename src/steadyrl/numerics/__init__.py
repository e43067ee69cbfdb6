"""Algorithms on arrays that know no classes and nothing of reinforcement learning.

- `elimination`: subtraction-free elimination (Grassmann, Taksar, Heyman): every entry right, however stiff the chain
- `multigrid`: algebraic multigrid for a million states
- `absorbing`: solves with one absorbing chain, by whichever of these is cheapest and accurate
- `graphs`: reachability, periods, end components
- `powers`: far ahead in a small chain, by repeated squaring
- `convolution`: convolution by transforms, and a recursive filter
"""
