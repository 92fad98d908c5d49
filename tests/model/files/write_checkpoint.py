"""Write tests/model/files/checkpoint: a bilm-tf checkpoint of a tiny model, by the Saver of tensorflow. Run once.

    python -m tests.model.files.write_checkpoint

bilm-tf's training (`bilm.training.train`) saves with `tf.train.Saver` under the names that its `dump_weights` maps; the values
are those of `random_weights(OPTIONS)`, written as HDF5 beside it by `dump_weights`'s rules, with the Adagrad slots, softmax and
counters that training leaves in the file. Tested with TensorFlow 2.21.
"""

import json
import os
import re
import sys
from pathlib import Path

import h5py
import numpy as np

FOLDER = Path(__file__).parent / "checkpoint"


def variable_name(dataset: str) -> str:
    """The way back of `dump_weights`: name of a dataset of weights.hdf5 → name of the variable in the graph."""
    name = (
        dataset.replace("/RNN/", "/rnn/")
        .replace("/MultiRNNCell/", "/multi_rnn_cell/")
        .replace("/LSTMCell/", "/lstm_cell/")
    )
    name = re.sub("/Cell([0-9]+)", r"/cell_\1", name)
    return "lm/" + name.replace("W_P_0", "projection/kernel").replace("/W_0", "/kernel").replace(
        "/B", "/bias"
    )


def main(published: Path) -> None:
    """``published``: a folder with options.json and weights.hdf5."""
    import tensorflow as tf

    options = json.loads((published / "options.json").read_text())
    options["char_cnn"]["n_characters"] = 261  # as while training
    options |= {
        "all_clip_norm_val": 10.0,
        "batch_size": 2,
        "bidirectional": True,
        "dropout": 0.1,
        "n_epochs": 1,
        "n_tokens_vocab": 7,
    }
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "options.json").write_text(json.dumps(options))
    values: dict[str, np.ndarray] = {}
    with h5py.File(published / "weights.hdf5") as file:
        file.visititems(
            lambda name, item: (
                values.update({variable_name(name): item[()]})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    random = np.random.default_rng(0)
    values["lm/softmax/W"] = random.standard_normal((7, options["lstm"]["projection_dim"])).astype(
        np.float32
    )
    values["lm/softmax/b"] = random.standard_normal(7).astype(np.float32)
    for name in ("lm/char_embed", "lm/softmax/W"):
        values[f"{name}/Adagrad"] = random.standard_normal(values[name].shape).astype(np.float32)
    values["global_step"] = np.array(42, np.int64)
    values["train_perplexity"] = np.array(39.7, np.float32)
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(name, initializer=value, use_resource=False)
            for name, value in values.items()
        ]
        session.run(v1.global_variables_initializer())
        os.chdir(FOLDER)
        v1.train.Saver(variables, max_to_keep=2).save(
            session, "model.ckpt", global_step=42, write_meta_graph=False
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
