"""What every other package stands on, and what knows nothing of them.

- `checks`: arguments, checked once at the edge: whole numbers, tolerances, levels, seeds, arrays
- `intervals`: an estimate with its confidence interval, and the interval of a mean
- `detours`: `Perturbation`, the distribution of the paper's detour at episode start
- `storage`: files that are never half-written: npz and JSON, no pickle
- `terminal`: text from outside, shown on a terminal without controlling it
- `tables`: tables on the screen
- `progress`: a live bar on a terminal, plain lines elsewhere
- `figures`: matplotlib in the house style
- `machine`: the processors at hand
- `registration`: makes steadyrl's environments known to Gymnasium, once that is imported
"""
