"""The paper's figures, tables and claims as experiments: settings, run, figure, findings.

Claim by claim, what the paper says stands beside what was measured; verdicts are computed from the result file. An
experiment's module is named as on the command line:

- `figure_1`: the perturbation trick, drawn from the transition matrices
- `table_1`: one on-policy distribution and one performance for episodic and continual learning
- `figure_2`: projected against actual change of performance; `ascent` has its gradient ascent
- `figure_3` and `figure_3b`: how long environments, and the state sweep, take to reach their steady state
- `appendix_e`: what discounted few-step estimators compute
- `stages`: policies at different stages of training (appendix F.2)
- `elsewhere`: the questions of Figure 3 asked of MuJoCo and classic control

and what they share:

- `experiment`: what an experiment, a result and a finding are
- `convergence_curves`: marginal means and the phase distance of one environment over time
- `workspace`: collects data so that an interrupted run can be resumed
- `catalogue`: all experiments by name
- `running`: runs experiments and writes their folder
- `pages`: a result as HTML and Markdown
"""
