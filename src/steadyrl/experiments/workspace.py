"""Collects an experiment's data so that an interrupted run can be resumed where it stopped.

Everything that a run asks for has a label. Finished parts are saved under their labels in the run's folder of
unfinished work, and half-finished parts keep their blocks there until the part is saved; a second run with the same
settings finds both. The folder is deleted when the experiment is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from steadyrl.common.detours import Perturbation
from steadyrl.common.storage import load_arrays, save_arrays
from steadyrl.errors import RolloutError
from steadyrl.integrations.envpool.twins import against_envpool
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.rollouts.blocks import Task, Work
from steadyrl.rollouts.collect import as_times, run_episodes, run_samples
from steadyrl.rollouts.episodes import Episodes, EpisodeWork
from steadyrl.rollouts.planning import Options, Plan, installed_versions, make_plan
from steadyrl.rollouts.running import Keeping
from steadyrl.rollouts.samples import Samples, SampleWork

_KIND = "unfinished work"
_SEEDS = 1_000_003  # apart, so that runs of neighbouring seeds do not meet


@dataclass
class Workspace:
    """A folder of unfinished work, and the options for collecting."""

    seed: int
    folder: Path
    backend: str = "auto"
    workers: int | None = None
    address: str | None = None
    progress: bool | TextIO = False
    say: Callable[[str], None] = lambda text: None
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of all packages used so far."""
    _blocks: list[Path] = field(default_factory=list)
    """Files with the finished blocks of the part that is being computed."""
    _family: str | None = None
    """The kind of environments in that part, "gymnasium" or "envpool", if it has any that both have."""

    def derived_seed(self, number: int) -> int:
        """Return the seed of the run's part with this number."""
        return self.seed + _SEEDS * (number + 1)

    def arrays(self, label: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the arrays of `compute()`, or those that it returned before the run was interrupted."""
        path = self.folder / f"{label}.npz"
        if path.exists():
            header, found = load_arrays(path, _KIND)
            _require_versions(path, header["versions"])
            self._require_family(path, header.get("family"))
            self.versions |= header["versions"]
            return found
        before, self.versions, self._blocks, self._family = (self.versions, self._blocks, self._family), {}, [], None
        made = {key: np.asarray(value) for key, value in compute().items()}
        save_arrays(path, _KIND, {"versions": self.versions, "family": self._family}, made)
        for blocks in self._blocks:  # only now: a run that is killed before has them all
            blocks.unlink(missing_ok=True)
        self.versions, self._blocks, self._family = before[0] | self.versions, before[1], before[2] or self._family
        return made

    def task(self, environment: Any, policy: Any) -> Task:
        """Return an environment's codecs and the policy that a name stands for: the same in all parts of a run."""
        return make_plan(environment, policy, EpisodeWork(1), Options(seed=self.seed)).task

    def policy(self, environment: Any, policy: Any) -> Any:
        """Return the policy that a name stands for, as an object."""
        return self.task(environment, policy).policy

    def episodes(
        self,
        label: str,
        environment: Any,
        policy: Any,
        count: int,
        *,
        seed: int,
        observation_sums: bool | None = None,
        trajectories: bool = False,
        **more: Any,
    ) -> Episodes:
        """Collect episodes; their blocks are kept until `arrays` has saved what is computed of them."""
        self.say(f"{label}: {count:,} episodes")
        plan = self._plan(
            environment, policy, EpisodeWork(count, observation_sums is not False, trajectories), seed, more
        )
        return run_episodes(plan, observation_sums, self._keeping(label), self.progress)

    def samples(
        self,
        label: str,
        environment: Any,
        policy: Any,
        rollouts: int,
        times: ArrayLike,
        *,
        seed: int,
        perturbation: Perturbation | None = None,
        **more: Any,
    ) -> Samples:
        """Collect samples; their blocks are kept until `arrays` has saved what is computed of them."""
        self.say(f"{label}: {rollouts:,} rollouts")
        plan = self._plan(environment, policy, SampleWork(rollouts, as_times(times), perturbation), seed, more)
        return run_samples(plan, self._keeping(label), self.progress)

    def age_sums(
        self, label: str, environment: Any, policy: Any, count: int, *, seed: int, chunk: int, groups: int, width: int
    ) -> tuple[list[AgeSums], Any]:
        """Collect episodes in chunks; return sums of the first `width` observed values at each age, and all lengths.

        Args:
            label: the name of this part of the run.
            environment: as for `collect_episodes`.
            policy: as for `collect_episodes`.
            count: total number of episodes.
            seed: the seed of this part of the run.
            chunk: episodes held in memory at once; half of it is a block, so that two cores share a chunk.
            groups: total number of groups; error bands come from their scatter.
            width: number of observed values that are kept.
        """
        chunks = -(-count // chunk)
        sums: list[AgeSums] = []
        lengths = []
        for i in range(chunks):
            size = min(chunk, count - i * chunk)
            name = f"{label}-{i}"

            def compute(i: int = i, size: int = size, name: str = name) -> dict[str, Any]:
                found = self.episodes(
                    name,
                    environment,
                    policy,
                    size,
                    seed=seed + _SEEDS * i,
                    trajectories=True,
                    observation_sums=False,
                    block_size=max(1, -(-size // 8)) if size > 200 else None,
                )
                assert found.trajectories is not None
                observations = found.trajectories.observations[:, :width]
                parts = list(AgeSums.split(found.lengths, observations, max(1, groups // chunks)))
                kept: dict[str, Any] = {"lengths": found.lengths, "groups": len(parts)}
                for j, part in enumerate(parts):
                    kept |= {f"count{j}": part.count, f"total{j}": part.total, f"squares{j}": part.total_squares}
                return kept

            found = self.arrays(name, compute)
            lengths.append(found["lengths"])
            sums += [
                AgeSums(found[f"count{j}"], found[f"total{j}"], found[f"squares{j}"])
                for j in range(int(found["groups"]))
            ]
        return sums, np.concatenate(lengths)

    def _plan(self, environment: Any, policy: Any, work: Work, seed: int, more: Mapping[str, Any]) -> Plan:
        how = {"backend": self.backend, "workers": self.workers, "address": self.address}
        plan = make_plan(environment, policy, work, Options(seed=seed, **(how | dict(more))))
        self.versions |= plan.provenance["versions"]
        if "backend" not in more and against_envpool(plan.task.source, plan.description) is None:
            self._family = plan.task.family
        return plan

    def _require_family(self, path: Path, then: str | None) -> None:
        """Raise RolloutError if a finished part has random numbers that the next ones would not have."""
        now = "envpool" if self.backend == "auto" else "gymnasium"
        if then is not None and then != now:
            before = "'auto', which took EnvPool" if then == "envpool" else "one that does not take EnvPool"
            raise RolloutError(
                f"{str(path)!r} was made with another backend ({before}; now it is {self.backend!r}), whose random "
                f"numbers are others, and one result cannot have both; go on with that one (--backend), or delete the "
                f"folder {str(path.parent)!r} to begin again"
            )

    def _keeping(self, label: str) -> Keeping:
        blocks = self.folder / f"{label}.partial"
        self._blocks.append(blocks)
        return Keeping(blocks, resume=blocks.exists(), stays=True).in_place()


def _require_versions(path: Path, then: Mapping[str, str]) -> None:
    """Raise RolloutError if a finished part was made with other versions than those that would make the next one."""
    now = installed_versions(then)
    differ = [
        f"{name}: {version} then, {now.get(name)} now" for name, version in then.items() if now.get(name) != version
    ]
    if differ:
        raise RolloutError(
            f"{str(path)!r} was made with other versions ({', '.join(differ)}), and one result cannot have both; "
            f"install those versions to go on, or delete the folder {str(path.parent)!r} to begin again"
        )
