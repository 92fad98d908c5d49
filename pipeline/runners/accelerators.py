"""GPUs as Dataflow is asked for them: the resource hint of the stage that embeds, whole and possible before the job is sent.

By Google's pages on GPUs and on right fitting each of the newer cards comes with machines of one family, which the hint names.
"""

from pipeline.cli.exit_codes import CommandError, Exit

FAMILIES = {  # of machines, by card
    "nvidia-tesla-t4": "n1",
    "nvidia-tesla-p4": "n1",
    "nvidia-tesla-v100": "n1",
    "nvidia-tesla-p100": "n1",
    "nvidia-l4": "g2-standard",
    "nvidia-tesla-a100": "a2-highgpu",
    "nvidia-a100-80gb": "a2-ultragpu",
    "nvidia-h100-80gb": "a3-highgpu",
}
DEFAULT_MACHINES = {"nvidia-l4": "g2-standard-8"}  # one GPU, 8 vCPUs, 32 GB


def accelerator_hint(asked: str, machine_type: str | None) -> str:
    """The hint ``asked`` for, such as ``type:nvidia-l4;count:1;install-nvidia-driver``, with the machine that its card needs.

    ``machine_type``: the whole job's, taken where it has the card. CommandError (bad usage) for a hint that Dataflow can't meet.
    """
    parts = [part for part in asked.split(";") if part]
    values = dict(part.partition(":")[::2] for part in parts)
    card, count = values.get("type", ""), values.get("count", "")
    if not card or not count.isdecimal() or int(count) < 1:
        raise CommandError(
            Exit.BAD_USAGE, f"--accelerator {asked}: name a GPU and a number, as type:nvidia-l4;count:1;install-nvidia-driver"
        )
    family, machine = FAMILIES.get(card), values.get("machine_type")
    if family is None or (family == "n1" and not machine):  # a newer card; Dataflow's own choice of a machine
        return asked
    prefix = f"{family}-"
    possible = (machine,) if machine else (machine_type, DEFAULT_MACHINES.get(card))
    chosen = next((name for name in possible if name and name.startswith(prefix)), None)
    if chosen is None:
        raise CommandError(
            Exit.BAD_USAGE,
            f"--accelerator {asked}: Google has {card} in {family} machines only: add machine_type:{prefix}… to it",
        )
    return asked if machine else f"{asked.rstrip(';')};machine_type:{chosen}"
