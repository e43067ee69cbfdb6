"""One environment and policy, or a file of lengths: is its data at steady state, when will it be, what is the cure?

- `collection`: episodes, collected until the question is answered
- `analysis`: `diagnose`, `diagnose_lengths` and the `Diagnosis` they return
- `mcmc`: R-hat and effective sample size, a second opinion by ArviZ
- `wording`: the sentences, for screen and page alike
- `screen`: the diagnosis on one screen
- `report`: the diagnosis as one self-contained HTML page; `page/` has its style and script
"""

from steadyrl.diagnosis.analysis import Diagnosis, diagnose, diagnose_lengths

__all__ = ["Diagnosis", "diagnose", "diagnose_lengths"]
