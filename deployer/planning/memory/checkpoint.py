"""Findings about a checkpoint: what is missing, cut short, or not understood."""

from collections.abc import Iterator

from deployer.errors import DeployError
from deployer.planning.preflight import error, warning
from deployer.schema.memory import GIB, Checkpoint
from deployer.schema.outcome import Finding

NAMED = 3


def usable(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, if a plan can be made of it."""
    if checkpoint.error:
        raise DeployError(
            checkpoint.error, hint="a folder with config.json and *.safetensors", where=checkpoint.path
        )
    if checkpoint.config is None:
        raise DeployError("there is no config.json", where=checkpoint.path)
    return checkpoint


def checkpoint_findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Whether the weights are complete: the index against files, their sizes and their headers."""
    if checkpoint.missing_files:
        yield error(
            "weights-missing",
            f"the index names {len(checkpoint.missing_files)} files that are not there: "
            f"{_some(checkpoint.missing_files)}",
            "download the model again; the plan counts only what is there",
        )
    for file in checkpoint.files:
        if file.error:
            yield error("weights-damaged", file.error, "download the file again")
    if checkpoint.missing_tensors:
        yield error(
            "weights-missing",
            f"the index names tensors that no file holds: {_some(checkpoint.missing_tensors)}",
            "download the model again",
        )


def unknown_tensors(names: tuple[str, ...], counted_bytes: int) -> Iterator[Finding]:
    """Tensors whose names said nothing, which were counted whole on every GPU."""
    if names:
        yield warning(
            "unknown-tensors",
            f"{len(names)} kinds of tensors are not known and were counted whole on every GPU that may hold "
            f"them: {_some(names)}",
            f"the plan may be too high; the checkpoint has {counted_bytes / GIB:.1f} GiB in all",
        )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
