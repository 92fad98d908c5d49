"""zarrita, zarr's reader in JavaScript: the Zarr form in Node. ELMO_STORE_ZARRITA names a folder that npm installed it in."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.store.support import make_store

PROGRAM = """
import * as zarr from "zarrita";
import FileSystemStore from "@zarrita/storage/fs";

const group = await zarr.open.v3(new FileSystemStore(process.argv[1]), { kind: "group" });
const read = async (name) => {
  const { data, shape } = await zarr.get(await zarr.open.v3(group.resolve(name), { kind: "array" }));
  return { shape, data: Array.from(data, (value) => (typeof value === "bigint" ? Number(value) : value)) };
};
const found = { float16: typeof Float16Array !== "undefined", attributes: group.attrs };
for (const name of process.argv.slice(2)) found[name] = await read(name).catch((error) => String(error));
console.log(JSON.stringify(found));
"""


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "zstd", "blosc"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_zarrita(tmp_path: Path, dtype: str, compression: str) -> None:
    """Numbers of 16 bits need a Node that has Float16Array (24 has, 20 has not), where zarrita says so."""
    node, folder = shutil.which("node"), os.environ.get("ELMO_STORE_ZARRITA")
    if node is None or folder is None:
        pytest.skip(
            "no zarrita: npm install --prefix FOLDER zarrita, and FOLDER in ELMO_STORE_ZARRITA"
        )
    settings: dict[str, Any] = {"dtype": dtype, "compression": compression, "checksum": "crc32c"}
    written = make_store(str(tmp_path / "store"), **settings)
    names = ["states", "token", "state", "sentence_start", *(["scale"] if dtype == "int8" else [])]
    command = [
        node,
        "--input-type=module",
        "--eval",
        PROGRAM,
        str(tmp_path / "store" / "states.zarr"),
        *names,
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["attributes"] == {"format": "elmo-store", "format_version": 1}
    assert found["token"]["data"] == written.row_tokens
    assert found["state"]["data"] == list(written.manifest.states)
    assert found["sentence_start"]["data"] == written.starts
    if dtype == "float16" and not found["float16"]:
        assert "unsupported dataType: float16" in found["states"]
        return
    states = np.array(found["states"]["data"], dtype).reshape(found["states"]["shape"])
    if dtype == "int8":
        states = (
            states
            * np.array(found["scale"]["data"], np.float32).reshape(found["scale"]["shape"])[
                ..., None
            ]
        )
    np.testing.assert_array_equal(states, written.states)
