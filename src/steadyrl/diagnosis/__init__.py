"""One environment and policy, or a log of lengths: is its data at steady state, when will it be, what is the cure?

- `collection`: collects episodes until the question is answered
- `stopping`: when more episodes could not change the recommendation
- `selection`: which episodes of a log are analysed
- `analysis`: `diagnose` and `diagnose_lengths`
- `result`: the `Diagnosis` that they return
- `observed`: means of observed values over time, and which settle last
- `seen_ages`: how much of the age shows in an observation, so whether lockstep can be felt
- `mcmc`: R-hat and effective sample size by ArviZ, as a second opinion
- `episode_logs`: logs of episodes with their place in time: monitor.csv files, and csv files with steps
- `audit`: how biased a logged mean return was at each moment
- `trainer_schedule`: which ages a configuration of brax's PPO ever trains on
- `logged_bias`: what a log of finished episodes will show, for the report
- `wording`: all sentences, for screen and report alike
- `screen`: the diagnosis on one screen
- `report`: the diagnosis as one self-contained HTML page; `page/` has its style and script
"""

from steadyrl.diagnosis.analysis import diagnose, diagnose_lengths
from steadyrl.diagnosis.audit import Audit, audit_log
from steadyrl.diagnosis.result import Diagnosis

__all__ = ["Audit", "Diagnosis", "audit_log", "diagnose", "diagnose_lengths"]
