"""Flips bits of files: loading gives the same content or an error in words, never other numbers, never all memory.

Files that steadyrl writes carry digests, so that every change is noticed. Files of other programs (logs, policies) have
none: of them it is only asked that reading ends in lengths or in an error with a sentence. The last flips of each kind
change whole bytes, runs of bytes, or the length of the file.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import TimeLimit, Trial, limit_memory, main, time_limit

GIGABYTES = 2.0
SECONDS = 20.0


def damaged(content: bytes, generator: random.Random, kind: str) -> bytes:
    """Return content with some damage."""
    changed = bytearray(content)
    place = generator.randrange(len(content))
    if kind == "bit":
        changed[place] ^= 1 << generator.randrange(8)
    elif kind == "byte":
        changed[place] = generator.randrange(256)
    elif kind == "run":
        changed[place : place + 16] = generator.randbytes(len(changed[place : place + 16]))
    elif kind == "cut":
        del changed[place:]
    else:
        changed[place:place] = generator.randbytes(generator.randrange(1, 40))
    return bytes(changed)


def kinds(folder: Path) -> dict[str, tuple[Path, Callable[[Path], Any], bool]]:
    """Write a file of each kind; return it, how it is loaded, and whether it carries digests."""
    import numpy as np
    from gymnasium import spaces

    from steadyrl import (
        EpisodeLengths,
        Episodes,
        LearningProcess,
        Perturbation,
        Samples,
        Settings,
        audit_log,
        collect_episodes,
        collect_samples,
        gallery,
        load_lengths,
        train,
    )
    from steadyrl.cli.check import _load_policy
    from steadyrl.environments.codecs import action_codec, observation_codec
    from steadyrl.experiments.catalogue import named
    from steadyrl.experiments.experiment import Result
    from steadyrl.experiments.running import reproduce
    from steadyrl.lengths.files import write_lengths
    from steadyrl.policies.files import load_policy
    from steadyrl.policies.networks import random_gaussian_policy
    from steadyrl.rollouts.checkpoints import Checkpoint

    found: dict[str, tuple[Path, Callable[[Path], Any], bool]] = {}
    episodes = collect_episodes("CartPole-v1", "uniform", 6, backend="serial", trajectories=True)
    episodes.save(folder / "episodes.npz")
    found["Episodes (.npz)"] = (folder / "episodes.npz", Episodes.load, True)
    samples = collect_samples("CartPole-v1", "uniform", 4, [2, 9], backend="serial", perturbation=Perturbation(0.5))
    samples.save(folder / "samples.npz")
    found["Samples (.npz)"] = (folder / "samples.npz", Samples.load, True)
    gallery.corridor(3)[0].save(folder / "process.npz")
    limited = gallery.corridor(3)[0].with_time_limit(4)
    limited.save(folder / "limited.npz")
    found["LearningProcess with a time limit (.npz)"] = (
        folder / "limited.npz",
        lambda path: LearningProcess.load(path).digest,
        True,
    )
    found["LearningProcess (.npz)"] = (folder / "process.npz", lambda path: LearningProcess.load(path).digest, True)
    random_gaussian_policy(2, (1,), seed=0).save(folder / "policy.safetensors")
    seen, acted = observation_codec(spaces.Box(-1, 1, (2,))), action_codec(spaces.Box(-1, 1, (1,)))

    def weights(path: Path) -> Any:
        return {name: value.tolist() for name, value in load_policy(path, seen, acted).tensors().items()}

    found["policy (.safetensors)"] = (folder / "policy.safetensors", weights, True)
    settings = Settings(updates=2, num_envs=2, n_steps=4, backend="serial", optimiser="adam", critic_epochs=1)
    try:
        train("CartPole-v1", settings, out=folder / "run")
    except ImportError:
        print("no PyTorch: training checkpoints are left out")
    else:
        from steadyrl.sspg.checkpoints import load_checkpoint

        def checkpoint(path: Path) -> Any:
            path.replace(path.parent / "checkpoint.npz")
            header, arrays = load_checkpoint(path.parent, "CartPole-v1", settings, "")
            return header, {name: (str(value.dtype), value.tobytes()) for name, value in sorted(arrays.items())}

        found["training checkpoint (.npz)"] = (folder / "run" / "checkpoint.npz", checkpoint, True)
    manifest = {"block_size": 4, "total": 40, "seed": 0}
    partial = Checkpoint(folder / "a.partial", manifest, resume=False)
    for block in range(5):
        partial.write({"block": block, "skipped": [], "lengths": np.arange(4) + 10 * block})
    partial.close()

    def blocks(path: Path) -> Any:
        before = path.read_bytes()
        try:
            open_again = Checkpoint(path, manifest, resume=True)
        except Exception:
            if path.read_bytes() != before:
                raise AssertionError("a damaged checkpoint was overwritten") from None
            raise
        read = {block: open_again.read(block)["lengths"].tolist() for block in sorted(open_again.blocks)}
        told, size = open_again.damage, len(before)
        open_again.close()
        wrong = {block for block, values in read.items() if values != [10 * block + i for i in range(4)]}
        lost = set(range(5)) - set(read)
        if wrong or (lost and not told and size >= whole):
            raise AssertionError(f"blocks {wrong} are other numbers, blocks {lost} are lost, and it said {told}")
        return "whole, or the damage was told"

    whole = (folder / "a.partial").stat().st_size
    found["collect's checkpoint (.partial)"] = (folder / "a.partial", blocks, True)

    reproduce(named("figure-1"), "quick", folder)

    def held(path: Path) -> Any:
        result = Result.load(path)
        return result.header(), {name: value.tobytes() for name, value in sorted(result.arrays.items())}

    found["result of reproduce (.npz)"] = (folder / "figure-1.npz", held, True)

    lengths = episodes.lengths.tolist()
    (folder / "lengths.txt").write_text("\n".join(map(str, lengths)) + "\n")
    rows = [f"{n}.0,{n},{i}.5" for i, n in enumerate(lengths)]
    (folder / "monitor.csv").write_text('#{"t_start": 1.0, "env_id": "Walk-v0"}\nr,l,t\n' + "\n".join(rows) + "\n")
    (folder / "lengths.json").write_text(str(lengths))
    (folder / "lengths.jsonl").write_text("".join(f'{{"episode_length": {n}}}\n' for n in lengths))
    np.save(folder / "lengths.npy", np.array(lengths))
    np.savez(folder / "evaluations.npz", ep_lengths=np.array([lengths]), timesteps=np.array([5]))
    for name in ("lengths.txt", "monitor.csv", "lengths.json", "lengths.jsonl", "lengths.npy", "evaluations.npz"):
        found[f"log of lengths ({name.partition('.')[0]}.{name.partition('.')[2]})"] = (
            folder / name,
            load_lengths,
            False,
        )
    write_lengths(EpisodeLengths.from_gymnasium(lengths), len(lengths), folder / "sorted.txt")
    found["lengths that diagnose writes (lengths.txt)"] = (
        folder / "sorted.txt",
        lambda path: load_lengths(path).probabilities.tolist(),
        True,
    )
    records = [{"hist_stats": {"episode_lengths": lengths[:i]}, "episodes_this_iter": 1} for i in range(1, 7)]
    (folder / "result.json").write_text("".join(json.dumps(record) + "\n" for record in records))
    found["log of RLlib (result.json)"] = (folder / "result.json", load_lengths, False)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("no PyTorch or TensorBoard: event files are left out")
    else:
        with SummaryWriter(folder / "board") as log:
            for step, length in enumerate(lengths):
                log.add_scalar("charts/episodic_length", length, step)
        found["log of TensorBoard (events)"] = (next((folder / "board").iterdir()), load_lengths, False)
    process, uniform = gallery.corridor(3)[:2]
    np.save(folder / "table.npy", uniform)
    np.savez(folder / "table.npz", policy=uniform)
    (folder / "table.json").write_text(json.dumps(uniform.tolist()))
    np.savetxt(folder / "table.csv", uniform, delimiter=",")
    for name in ("table.npy", "table.npz", "table.json", "table.csv"):
        found[f"policy given to check ({Path(name).suffix})"] = (
            folder / name,
            lambda path: _load_policy(process, str(path)),
            False,
        )
    steps = np.cumsum(lengths).tolist()
    rows = [f"{step},{n},{n}.0,{i % 1}" for i, (n, step) in enumerate(zip(lengths, steps, strict=True))]
    (folder / "episodes.csv").write_text("global_step,l,r,env\n" + "\n".join(rows) + "\n")
    found["log of episodes that is audited (episodes.csv)"] = (folder / "episodes.csv", audit_log, False)
    found["log of episodes that is audited (monitor.csv)"] = (folder / "monitor.csv", audit_log, False)
    found["Episodes read as lengths (.npz)"] = (
        folder / "episodes.npz",
        lambda path: load_lengths(path).probabilities.tolist(),
        True,
    )
    return found


def attack(trial: Trial) -> None:
    """Damage files of every kind: `trial.count` single bits each, and a quarter as many of other damage."""
    from steadyrl import SteadyrlError

    files = kinds(trial.folder)
    limit_memory(GIGABYTES)
    work = trial.folder / "work"
    work.mkdir()
    first = 4 * trial.seed % len(files)  # another seed begins elsewhere, for when there is little time
    for kind, (path, load, has_digests) in [*files.items()][first:] + [*files.items()][:first]:
        content, copy, generator = path.read_bytes(), work / f"copy-{path.name}", trial.generator(kind)
        copy.write_bytes(content)
        whole = load(copy) if has_digests else None
        for number in range(trial.count + trial.count // 4):
            how = "bit" if number < trial.count else generator.choice(["byte", "run", "cut", "more"])
            copy.write_bytes(damaged(content, generator, how))
            trial.tried[f"{kind}: {'bits flipped' if how == 'bit' else 'other damage'}"] += 1
            try:
                with time_limit(SECONDS), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    same = load(copy) == whole
                if has_digests and not same and not ("partial" in kind and how in ("cut", "more")):
                    trial.found(f"{kind}, number {number}: other content was loaded")
            except SteadyrlError as error:
                if not str(error).strip():
                    trial.found(f"{kind}, number {number}: an error without words")
            except TimeLimit:
                trial.found(f"{kind}, number {number}: more than {SECONDS:g} s")
            except Exception as error:
                trial.found(f"{kind}, number {number} ({how}): {type(error).__name__}: {str(error)[:150]}")
            if trial.time_is_up():
                return


if __name__ == "__main__":
    main("flips", attack, count=500, seconds=900)
