"""Algorithms on arrays that know no classes and nothing of reinforcement learning.

- `elimination`: subtraction-free elimination (Grassmann, Taksar, Heyman), accurate in every entry even of stiff chains
- `multigrid`: algebraic multigrid for a million states
- `absorbing`: solves linear systems of one absorbing chain, by whichever of these is cheapest and accurate
- `graphs`: reachability, periods, end components
- `powers`: the distribution of a small chain after many steps, by repeated squaring
- `convolution`: convolution by transforms, and a recursive filter
"""
