"""What a finished job says: counts, bytes, speed, and what to do next in three lines of Python. Pure but for reading markers."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from elmo_store.format.layout import REJECTS, have_layers
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import ShardMarker, read_marker, total_bytes
from elmo_store.storage.root import Root
from pipeline.cli.terminal import duration, human_bytes, in_line


@dataclass(frozen=True)
class Totals:
    """Sums over shards. Seconds are those of all workers together, so they may exceed the time that passed."""

    tokens: int
    bytes: int
    seconds_reading: float
    seconds_computing: float
    seconds_writing: float
    engine: Mapping[str, float]
    retries: int = 0

    @property
    def lane_fill(self) -> float | None:
        """Share of the engine's grid that held work; None without numbers."""
        return _share(self.engine.get("cells_used"), self.engine.get("cells"))

    @property
    def table_hits(self) -> float | None:
        """Share of cells whose first-layer gates were in the table of words."""
        return _hits(self.engine.get("table_computed"), self.engine.get("table_wanted"))

    @property
    def word_hits(self) -> float | None:
        """Share of words that the character CNN did not have to see again."""
        return _hits(self.engine.get("words_computed"), self.engine.get("words_looked_up"))


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _hits(misses: float | None, asked: float | None) -> float | None:
    share = _share(misses, asked)
    return None if share is None else 1 - share


def totals(markers: Iterable[ShardMarker]) -> Totals:
    """Sums over ``markers``."""
    sums: dict[str, float] = {}
    listed = list(markers)
    for marker in listed:
        for name, value in marker.stats.items():
            if isinstance(value, int | float):
                sums[name] = sums.get(name, 0.0) + value
    return of_sums(sums, total_bytes(listed))


def of_sums(sums: Mapping[str, float], n_bytes: int) -> Totals:
    """The totals of markers whose numbers add up to ``sums`` and whose objects have ``n_bytes``."""
    return Totals(
        tokens=int(sums.get("tokens", 0)),
        bytes=n_bytes,
        seconds_reading=sums.get("seconds_reading", 0.0),
        seconds_computing=sums.get("seconds_computing", 0.0),
        seconds_writing=sums.get("seconds_writing", 0.0),
        engine={name.removeprefix("engine_"): v for name, v in sums.items() if name.startswith("engine_")},
        retries=int(sums.get("retries", 0)),
    )


def _why_none(manifest: Manifest) -> str:
    """What explains a store without tokens; "" for others and for mixes."""
    if manifest.sizes.tokens or manifest.kind != "states":
        return ""
    share = manifest.job.get("sample", 1)
    why = f"--sample {share} took no record with tokens, give a larger share" if share != 1 else "the input holds none"
    return f": nothing was there to embed, {why}"


def all_markers(root: Root, n_shards: int) -> list[ShardMarker]:
    """The markers of a complete store."""
    with ThreadPoolExecutor(16) as pool:
        return [marker for marker in pool.map(lambda k: read_marker(root, k), range(n_shards)) if marker is not None]


def summary(root: Root, manifest: Manifest, everything: Totals | None, this_run: Totals | None, *, seconds: float) -> list[str]:
    """The block that ends a run, which took ``seconds``. Without totals it says what the manifest does."""
    counts = manifest.sizes
    if everything is None or this_run is None:
        size = {"size": f"{counts.shards:,} shards"}
        everything = this_run = of_sums({}, 0)
    else:
        per_token = everything.bytes / counts.tokens if counts.tokens else 0.0
        size = {"size": f"{human_bytes(everything.bytes)} in {counts.shards:,} shards, {per_token:,.0f} bytes a token"}
    forms = " and ".join({"zarr": "Zarr (states.zarr)", "parquet": "Parquet (states/)"}[f] for f in manifest.forms)
    refused = f"{counts.rejected:,} records refused" + (f" (see {root.url(REJECTS)})" if counts.rejected else "")
    rows = {
        "text": f"{counts.sentences:,} sentences, {counts.tokens:,} tokens{_why_none(manifest)}",
        "problems": f"{refused}, {counts.words_cut:,} words truncated at 48 bytes",
        "states": f"{', '.join(manifest.states)}; {manifest.channels} wide, {manifest.dtype}; {forms}",
    } | size
    if this_run.tokens < everything.tokens:
        rows["earlier"] = f"{everything.tokens - this_run.tokens:,} tokens were there already from an earlier run"
    if this_run.tokens:
        rows["this run"] = (
            f"{this_run.tokens:,} tokens in {duration(seconds)} = {this_run.tokens / seconds:,.0f} tokens/s; "
            f"workers read {this_run.seconds_reading:.1f} s, computed {this_run.seconds_computing:.1f} s, "
            f"wrote {this_run.seconds_writing:.1f} s"
        )
    if this_run.retries:
        rows["storage"] = f"{this_run.retries:,} requests failed in passing and were repeated"
    if this_run.lane_fill is not None:
        reused = [("first-layer gates", this_run.table_hits), ("word vectors", this_run.word_hits)]
        shown = ", ".join(f"{name} {share:.0%}" for name, share in reused if share is not None)
        rows["engine"] = f"lanes filled {this_run.lane_fill:.0%}" + (f"; computed before and reused: {shown}" if shown else "")
    return [in_line(line) for line in (f"complete: {root}", *(f"  {name:<9} {text}" for name, text in rows.items()))]


def next_steps(root: Root, manifest: Manifest) -> list[str]:
    """Lines of Python that open the store and read one sentence of it, if there is one, mixed if it holds states."""
    shown = ", ".join(f'"{name}": …' for name in root.storage_options)  # their values may be secrets
    options = f", storage_options={{{shown}}}" if shown else ""
    lines = ["import elmo_store", f"store = elmo_store.open({str(root)!r}{options})"]
    if not manifest.sizes.sentences:
        return lines
    if manifest.kind == "mix" or not have_layers(manifest.states):
        return [*lines, f"vectors = store.sentence(0)[{manifest.states[0]!r}]  # [tokens, {manifest.channels}]"]
    w = ", ".join(["0.0"] * ((len(manifest.states) + 1) // 2))
    mix = f"elmo_store.ScalarMix(w=[{w}])(states=store.sentence(0).read())"
    return [*lines, f"vectors = {mix}  # [tokens, {2 * manifest.channels}]; w: what your task learned"]
