"""The paper's figures, tables and claims as experiments, one a module: settings, run, figure, findings.

Claim by claim, what the paper says stands beside what was measured; verdicts are computed from the result file.
"""
