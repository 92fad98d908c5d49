"""What one worker or the launcher does alone, and how it grows with the corpus: requests, seconds and memory of each stage.

    python -m benchmarks.scale --output s3://bucket/scale --storage-options '{"endpoint_url": "http://127.0.0.1:7070", …}'
        [--shards 40000] [--files 10000] [--steps 0.25,0.5,1] [--served FOLDER]
    python -m benchmarks.scale --output … --workers 1000 [--seconds 60]: so many workers at once, and nothing else

The server of the published figures: ``go install github.com/versity/versitygw/cmd/versitygw@latest``, then
``ROOT_ACCESS_KEY=key ROOT_SECRET_KEY=secret versitygw -p 127.0.0.1:7070 posix FOLDER``; such a server shows what lies in
FOLDER, so that with ``--served FOLDER`` the input and the shards are put there as files, which takes minutes instead of an hour.

The input is so many small files of plain text lines, about 256 tokens a shard of 256 rows. Every stage is the job's own and
runs in a process of its own; only the engine is left out: shards hold zeros (8 channels), written by threads, for what
computes is not what is measured. Stages that many workers share are given as one task of them, and how many tasks there are.
"""

import json

import fsspec

from benchmarks.scale.stages import stages
from benchmarks.scale.workers import many_workers
from benchmarks.shared.support import Table, machine, options_of


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--output", required=True, help="an empty place: folder or URL")
    parser.add_argument("--storage-options", type=json.loads, default={}, help="JSON for fsspec")
    parser.add_argument("--shards", type=int, default=40_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--steps", default="0.25,0.5,1", help="shares of --shards and --files (default: 0.25,0.5,1)")
    parser.add_argument("--workers", type=int, default=0, help="so many workers at once, and nothing else (default: none)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that workers are followed (default: 60)")
    parser.add_argument("--served", default="", help="the folder that the server at --output shows (default: put by requests)")
    args = parser.parse_args()
    if "://" in args.output:
        filesystem, path = fsspec.core.url_to_fs(args.output, **args.storage_options)
        filesystem.mkdirs(path.partition("/")[0], exist_ok=True)
    if args.workers:
        print(machine())
        many_workers(f"{args.output}/workers-{args.workers}", args.storage_options, args.workers, args.seconds)
        return
    table = Table(machine(), "  shards  stage", "requests", "seconds", "MB peak", "", label_width=28)
    for share in map(float, args.steps.split(",")):
        shards, files = round(args.shards * share), round(args.files * share)
        for name, cost, tasks in stages(args.output, args.storage_options, shards, files, args.served):
            table.row(f"{shards:>8,}  {name}", cost.requests, cost.seconds, cost.peak_bytes / 1e6, f"  {tasks}")


if __name__ == "__main__":
    main()
