"""The stages of an embed job as Beam sees them: each a few lines over the pure functions of this room.

May import apache_beam, elmo_store and transforms. Every stage reads what it needs from the store and leaves what the
next ones need there; between stages travel piece numbers, tasks (pointers) and counts. What has a valid marker is not
done again.
"""

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput

from elmo_store import zarr_form
from elmo_store.layout import FORMS, shard_marker
from elmo_store.manifest import Counts, Manifest, read_manifest, write_manifest
from elmo_store.markers import marked_shards
from elmo_store.storage import Root
from transforms.embed import NAMESPACE, BiLMHandler, EmbedSettings, plan_id
from transforms.finish import IO_THREADS, CombineOutcomes, Outcome, done_shards, finish_job, outcome_of
from transforms.number import NumberTask, is_numbered, number_part
from transforms.plan import CorpusPlan, grouped, make_plan, part_counts, shards_per_task
from transforms.records import Piece, PieceResult, ReadSettings
from transforms.tokenise import piece_result, tokenise_piece
from transforms.work import PIECE_LIST, PLAN

NUMBER, SHARDS = "number", "shards"


@dataclass(frozen=True)
class JobSettings:
    """What the stages of one run share; small and picklable."""

    embed: EmbedSettings
    read: ReadSettings
    input_storage_options: dict[str, Any] | None
    most_shards_per_task: int
    workers: int  # processes that embed, as far as is known: each should get a task
    device: str
    accelerator: str

    @property
    def root(self) -> Root:
        """The store."""
        return self.embed.root


def write_pieces(root: Root, pieces: Iterable[Piece]) -> None:
    """Leave the list of pieces in the scratch area: as a part of the job's graph it would meet runners' limits on its size."""
    root.put(PIECE_LIST, "".join(json.dumps(piece.to_dict()) + "\n" for piece in pieces).encode())


def read_pieces(root: Root) -> list[Piece]:
    """The pieces of the job, in input order."""
    return [Piece.from_dict(json.loads(line)) for line in root.get(PIECE_LIST).decode().split("\n") if line]


def tokenise(piece: Piece, settings: JobSettings) -> int:
    """Stage A of one piece, unless it is done; returns its number."""
    began = time.perf_counter()
    if piece_result(settings.root, piece, settings.read) is None:
        result = tokenise_piece(settings.root, piece, settings.read, settings.input_storage_options)
        counter = beam.metrics.Metrics.counter
        counter(NAMESPACE, "sentences_read").inc(result.n_sentences)
        counter(NAMESPACE, "tokens_read").inc(result.n_tokens)
        counter(NAMESPACE, "records_rejected").inc(result.n_rejected)
        counter(NAMESPACE, "words_cut").inc(sum(part.n_words_cut for part in result.parts))
        counter(NAMESPACE, "milliseconds_tokenising").inc(int(1000 * (time.perf_counter() - began)))
    return piece.index


def corpus_plan(root: Root, manifest: Manifest, read: ReadSettings) -> CorpusPlan:
    """Stage B: the plan that the markers of all pieces give."""

    def result(piece: Piece) -> PieceResult:
        found = piece_result(root, piece, read)
        if found is None:
            raise RuntimeError(f"piece {piece.index} ({piece.url}) is not tokenised: run the same command again")
        return found

    with ThreadPoolExecutor(IO_THREADS) as pool:
        results = list(pool.map(result, read_pieces(root)))
    return make_plan(part_counts(results), shard_rows=manifest.shard_rows, boundaries=manifest.boundaries)


def id_of_plan(manifest: Manifest, plan: CorpusPlan) -> str:
    """What all shards' bytes follow from: the parts in order, the model, and every setting of the job."""
    return plan_id(
        [
            manifest.model.fingerprint,
            manifest.start_state.sha256,
            json.dumps([manifest.dtype, manifest.precision, manifest.boundaries, manifest.shard_rows]),
            json.dumps([[form for form in FORMS if form in manifest.forms], manifest.compression]),
            *(part.counts.sha256 for part in plan.parts),
        ]
    )


def plan_job(_: int, settings: JobSettings) -> Iterable[Any]:
    """Stage B: sizes into the manifest, empty arrays into the store, and the tasks that are still to do."""
    root = settings.root
    manifest = read_manifest(root)
    if manifest.complete:
        return
    plan = corpus_plan(root, manifest, settings.read)
    counts = Counts(
        plan.n_sentences, plan.n_tokens, plan.n_rows, plan.n_rejected, plan.n_words_cut, len(plan.parts), plan.n_shards
    )
    manifest = replace(manifest, counts=counts)
    write_manifest(root, manifest)
    if "zarr" in manifest.forms:
        zarr_form.create(root, manifest)
    identity = id_of_plan(manifest, plan)
    # On a local disk a look into every byte costs little; elsewhere sizes must do, puts there are whole or absent.
    done = done_shards(root, identity, plan.n_shards, "sha256" if root.is_local else "size")
    root.put_json(
        PLAN,
        {"id": identity, "n_tokens": plan.n_tokens, "n_rows": plan.n_rows, "n_shards": plan.n_shards}
        | {"n_parts": len(plan.parts), "planned": time.time(), "shards_done": len(done)},
    )
    for shard in marked_shards(root):
        if shard not in done:
            root.remove(shard_marker(shard))  # so that a marker means "done" to workers too
    for part in plan.parts:
        task = NumberTask(part, manifest.boundaries)
        if not is_numbered(root, task):
            yield TaggedOutput(NUMBER, task)
    size = shards_per_task(plan.n_shards, most=settings.most_shards_per_task, workers=settings.workers)
    for batch in grouped(plan.shard_tasks(done.keys()), size):
        yield TaggedOutput(SHARDS, batch)


def number(task: NumberTask, settings: JobSettings) -> Outcome:
    """One part gets its final numbers."""
    return outcome_of(number_part(settings.root, task))


def finish(outcome: Outcome, settings: JobSettings) -> bool:
    """Stage D. IncompleteJobError if work is left."""
    finish_job(settings.root, outcome)
    return True


class EmbedCorpus(beam.PTransform[PBegin, PCollection[bool]]):
    """The whole job: pieces → scratch parts → plan → (final parts ‖ shards) → complete store."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__()
        self._settings = settings

    def expand(self, begin: PBegin) -> PCollection[bool]:
        """Wire the stages; every Reshuffle is where work spreads over workers."""
        settings = self._settings
        handler = BiLMHandler(settings.embed, settings.device, settings.accelerator)
        read = (
            begin
            | "Job" >> beam.Create([settings.root])
            | "Pieces" >> beam.FlatMap(read_pieces).with_output_types(Piece)
            | "Spread pieces" >> beam.Reshuffle()
            | "Tokenise" >> beam.Map(tokenise, settings).with_output_types(int)
            | "All pieces" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
        )
        tasks = read | "Plan" >> beam.FlatMap(plan_job, settings).with_outputs(NUMBER, SHARDS)
        numbered = tasks[NUMBER] | "Spread parts" >> beam.Reshuffle() | "Number" >> beam.Map(number, settings)
        embedded = (
            tasks[SHARDS]
            | "Spread shards" >> beam.Reshuffle()
            | "Embed" >> RunInference(handler, model_identifier=f"elmo-store-{settings.embed.run_id}")
            | "Outcomes" >> beam.Map(outcome_of)
        )
        return (
            (numbered, embedded)
            | "Outcomes together" >> beam.Flatten()
            | "All outcomes" >> beam.CombineGlobally(CombineOutcomes())
            | "Finish" >> beam.Map(finish, settings).with_output_types(bool)
        )
