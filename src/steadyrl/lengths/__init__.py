"""What episode lengths alone tell: when data is at steady state, how sure that is, and how to get there sooner.

Episodes are independent and alike, so their ends are a renewal process, and the ages of copies (steps since the start
of their episodes) bound how far their states can be from the steady state. Numpy and scipy are all that is needed.

- `distribution`: `EpisodeLengths`, the distribution of T
- `files`: lengths from text, csv and monitor.csv (`text_files`), JSON, RLlib's and TensorBoard's logs (`log_files`),
  npy and npz files; `columns` finds the column of lengths; `records` is what a file or a collection of episodes says
- `drift`: whether lengths change over a training log, and its latest homogeneous stretch
- `renewal`: the renewal equation, phase distance, mixing time, distance of batches; `mixing` finds long mixing times
- `confidence`: intervals for all of these; `distance_bands` is the band of the phase distance
- `age_sums`, `moments`: sums of observations at each age, and the marginal means at every time that follow from them
- `delays`: start times by design; `next_step_delays` corrects them for NEXT_STEP autoreset
- `anytime`: the smallest distance that is possible at every time, and the rule that attains it
- `truncated_episodes`: what cutting episodes short does to the ages
- `ways`: all ways to bring environments out of lockstep; `strategies` ranks them and recommends one
- `finished_bias`: what a log of finished episodes shows, and how far that is from the truth, exactly
- `life_table`: lengths of a stream that is still running, by the Kaplan-Meier estimate
"""

from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.confidence import LengthsConfidence, bootstrap, steady_state_mean
from steadyrl.lengths.delays import Delays, design_delays, uniform_delays
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.drift import Drift, find_drift
from steadyrl.lengths.files import load_lengths, read_lengths
from steadyrl.lengths.finished_bias import finished_mean
from steadyrl.lengths.moments import MarginalMoments, marginal_moments
from steadyrl.lengths.renewal import batch_distance, phase_distance, phase_mixing_time, renewal_sequence
from steadyrl.lengths.strategies import Recommendation, Strategy, compare_strategies, recommend

__all__ = [
    "AgeSums",
    "Delays",
    "Drift",
    "EpisodeLengths",
    "LengthsConfidence",
    "MarginalMoments",
    "Recommendation",
    "Strategy",
    "batch_distance",
    "bootstrap",
    "compare_strategies",
    "design_delays",
    "find_drift",
    "finished_mean",
    "load_lengths",
    "marginal_moments",
    "phase_distance",
    "phase_mixing_time",
    "read_lengths",
    "recommend",
    "renewal_sequence",
    "steady_state_mean",
    "uniform_delays",
]
