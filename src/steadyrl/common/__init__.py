"""What every other package stands on, and what knows nothing of them.

- `checks`: arguments, checked once at the edge: whole numbers, tolerances, levels, seeds, arrays
- `intervals`: an estimate with its confidence interval, and the interval of a mean
- `detours`: `Perturbation`, the distribution of the paper's detour at episode start
- `files`: files that are never half-written, and locks that keep two runs apart
- `storage`: npz archives with a JSON header and digests of all arrays; values as JSON; no pickle
- `identity`: fingerprints of functions and objects by content; `own_code`: which code is no installed package's
- `values`: equality, hash and repr of dataclasses that hold arrays
- `quiet`: standard output kept free of what environments print
- `terminal`: text from outside, shown on a terminal without controlling it
- `tables`: tables on the screen
- `progress`: a live bar on a terminal, plain lines elsewhere
- `figures`: matplotlib in the house style
- `machine`: the processors at hand
- `registration`: makes steadyrl's environments known to Gymnasium, once that is imported
"""
