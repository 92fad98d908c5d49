"""The whole reading stage of plain running text through Beam's local runner, by one and by two processes.

    python -m benchmarks.text [--megabytes 20]

The text is the sample of the repository, repeated; the processes' starts are in the seconds.
"""

import time

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.support import Table, machine, options_of, working_folder
from benchmarks.texts import SAMPLE
from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSettings
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import TokeniseTasks


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--megabytes", type=float, default=20, help="of text (default: 20)")
    args = parser.parse_args()
    sample = "\n\n".join(path.read_text("utf-8") for path in sorted(SAMPLE.glob("*.txt"))).encode() + b"\n\n"
    settings = ReadSettings()
    print(machine())
    table = Table("read, tokenise, write scratch parts", "processes", "MB", "seconds", "MB/s", "tokens/s")
    with working_folder() as folder:
        path = folder / "a.txt"
        path.write_bytes(sample * max(1, round(args.megabytes * 1e6 / len(sample))))
        megabytes = path.stat().st_size / 1e6
        tasks = list(read_tasks(plan_splits([str(path)], "text", settings)))
        for n in (1, 2):
            pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
            _ = pipeline | beam.Create(tasks) | TokeniseTasks(Root(folder / f"store-{n}"), settings, processes=n)
            began = time.perf_counter()
            result = pipeline.run()
            result.wait_until_finish()
            spent = time.perf_counter() - began
            counters = result.metrics().query()["counters"]
            tokens = next(counter.committed for counter in counters if counter.key.metric.name == "tokens_read")
            table.row(str(n), megabytes, spent, megabytes / spent, tokens / spent)


if __name__ == "__main__":
    main()
