"""What a finished job says: counts, bytes, speed, and what to do next in three lines of Python. Pure."""

from collections.abc import Mapping
from typing import Any

from elmo_store.format.layout import REJECTS, have_layers
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import REPEATED_IDS
from elmo_store.format.version import Version
from elmo_store.format.words import WordLimit
from elmo_store.storage.root import Root
from pipeline.cli.terminal import duration, human_bytes, in_line, quantity

MAX_CUT_SHARE = 0.05  # of words that are longer than the model reads, in a text that has spaces


def summary(
    root: Root, manifest: Manifest, left: Mapping[str, Any] | None, *, seconds: float
) -> list[str]:
    """The block that ends a run, which took ``seconds``. ``left``: by the last stage, the sums over the shards' markers.

    ``bytes`` of all objects, and the markers' numbers of ``everything`` and of ``this_run`` (seconds are those of all workers
    together); None: the block says what the manifest does.
    """
    counts = manifest.sizes
    skipped = int(left["everything"].get("skipped", 0)) if left is not None else 0
    is_empty = manifest.kind == "states" and not counts.tokens and not skipped
    nothing = ": nothing was there to embed, the input holds none" if is_empty else ""
    size = quantity(counts.shards, "shard")
    if left is not None:
        per_token = left["bytes"] / counts.tokens if counts.tokens else 0.0
        size = f"{human_bytes(left['bytes'])} in {size}, {per_token:,.0f} bytes a token"
    forms = " and ".join(
        {"zarr": "Zarr (states.zarr)", "parquet": "Parquet (states/)"}[f] for f in manifest.forms
    )
    refused = f"{quantity(counts.rejected, 'record')} refused" + (
        f" (see {root.url(REJECTS)})" if counts.rejected else ""
    )
    cut = f"{counts.words_cut:,} words truncated at {WordLimit.of(manifest.model.options)}"
    if counts.words_cut > MAX_CUT_SHARE * counts.tokens:
        cut += ": the text probably has no spaces between words"
    rows = {
        "text": f"{quantity(counts.sentences, 'sentence')}, {quantity(counts.tokens, 'token')}{nothing}",
        "problems": f"{refused}, {cut}",
        "states": f"{', '.join(manifest.states)}; {manifest.channels} wide, {manifest.dtype}; {forms}",
        "size": size,
    }
    if skipped:
        rows["skipped"] = (
            f"{quantity(skipped, 'sentence')} left out: the collection has them already"
        )
    if left is not None:
        if repeated := int(left["everything"].get(REPEATED_IDS, 0)):
            rows["ids"] = (
                f"{quantity(repeated, 'sentence')} repeat the id of an earlier one: read those by number"
            )
        rows |= _of_this_run(left["this_run"], int(left["everything"].get("tokens", 0)), seconds)
    return [
        in_line(line)
        for line in (f"complete: {root}", *(f"  {name:<9} {text}" for name, text in rows.items()))
    ]


def _of_this_run(sums: Mapping[str, float], all_tokens: int, seconds: float) -> dict[str, str]:
    rows = {}
    tokens = int(sums.get("tokens", 0))
    if tokens < all_tokens:
        rows["earlier"] = (
            f"{quantity(all_tokens - tokens, 'token')} there already from an earlier run"
        )
    if tokens:
        reading, computing, writing = (
            sums.get(f"seconds_{name}", 0.0) for name in ("reading", "computing", "writing")
        )
        rows["this run"] = (
            f"{quantity(tokens, 'token')} in {duration(seconds)} = {tokens / seconds:,.0f} tokens/s; "
            f"workers read {reading:.1f} s, computed {computing:.1f} s, wrote {writing:.1f} s"
        )
    if known := int(sums.get("known_sentences", 0)):
        rows["known"] = (
            f"{quantity(known, 'sentence')} ({quantity(int(sums['known_rows']), 'row')}) in the collection already: they are in "
            "it twice now; their vectors were copied, not computed"
        )
    return rows


def described(name: str, version: Version) -> str:
    """The line that ends a command which changed a collection."""
    counts, members = version.store.sizes, quantity(len(version.members), "member")
    held = f"{quantity(counts.sentences, 'sentence')}, {quantity(counts.tokens, 'token')}"
    return in_line(f"{name}: version {version.number}, {members}, {held}")


def next_steps(root: Root, manifest: Manifest) -> list[str]:
    """Lines of Python that open the store and read one sentence of it, if there is one, mixed if it holds states."""
    shown = ", ".join(
        f'"{name}": …' for name in root.storage_options
    )  # their values may be secrets
    options = f", storage_options={{{shown}}}" if shown else ""
    lines = ["import elmo_store", f"store = elmo_store.open({str(root)!r}{options})"]
    if not manifest.sizes.sentences:
        return lines
    if manifest.kind == "mix" or not have_layers(manifest.states):
        return [
            *lines,
            f"vectors = store.sentence(0)[{manifest.states[0]!r}]  # [tokens, {manifest.channels}]",
        ]
    w = ", ".join(["0.0"] * ((len(manifest.states) + 1) // 2))
    mix = f"elmo_store.ScalarMix(w=[{w}])(states=store.sentence(0).read())"
    return [
        *lines,
        f"vectors = {mix}  # [tokens, {2 * manifest.channels}]; w: what your task learned",
    ]
