"""Which ages the tuned PPO configurations of MuJoCo Playground ever train on, from the installed package.

    python benchmarks/playground_configs.py      in an environment with steadyrl[playground,report]

Writes results/playground_configs.json, .md and .svg. Nothing is trained: everything follows from the settings, by the
formula of brax's PPO (`steadyrl.diagnosis.trainer_schedule`; tests_jax runs that PPO and sees the resets).
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from steadyrl.cli.audit_config import as_dict
from steadyrl.diagnosis.trainer_schedule import playground_schedules, plot_schedules

OUT = Path(__file__).parent / "results" / "playground_configs.json"


def main() -> None:
    found = dict(playground_schedules())
    early = sum(schedule.reset_before_an_end for schedule in found.values())
    result = {
        "command": "python benchmarks/playground_configs.py",
        "versions": {name: version(name) for name in ("steadyrl", "playground", "brax", "jax")},
        "configurations": len(found),
        "reset_before_an_end": early,
        "tasks": {name: as_dict(schedule) for name, schedule in found.items()},
    }
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        f"{early} of the {len(found)} tuned PPO configurations of MuJoCo Playground {version('playground')} reset all "
        "environments",
        "together before an episode can last until its time limit. Steps are actions of one environment.",
        "",
        "| task | environments | episode | all reset every | oldest age trained on | never trained on | per update |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, schedule in found.items():
        never = 1 - schedule.oldest_age / schedule.episode_steps
        lines.append(
            f"| {name} | {schedule.num_envs:,} | {schedule.episode_steps:,} | {schedule.reset_every or 'never'} "
            f"| {schedule.oldest_age:,} | {f'{never:.0%}' if never else ''} "
            f"| {min(schedule.update_steps / schedule.episode_steps, 1):.1%} |"
        )
    OUT.with_suffix(".md").write_text("\n".join([*lines, "", f"Made by `{result['command']}`.", ""]))
    plot_schedules(found, OUT.with_suffix(".svg"))
    print(f"{early} of {len(found)}")


if __name__ == "__main__":
    main()
