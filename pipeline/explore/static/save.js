// Points as a file: a table between tabs, JSON, or Python that reads their vectors.

import { element } from "./page.js";
import { tsv } from "./tsv.js";

const COLUMNS = ["id", "sentence", "token", "label", "group", "row", "x", "y", "before", "word", "after"];

// JSON's strings are Python's, but for characters beyond ASCII, which are escaped so that no text turns the code around.
const literal = (text) =>
  JSON.stringify(text).replace(/[^\x20-\x7e]/gu, (c) => `\\U${c.codePointAt(0).toString(16).padStart(8, "0")}`);

const lines = (values) => values.map((value, i) => (i % 12 ? " " : "\n    ") + value + ",").join("") + (values.length ? "\n" : "");

// ``s``: the weights of a mix, or which of a mixed store's columns is meant.
function python(rows, { about, s, gamma }) {
  const vectors = about.kind === "mix" ? `states[:, ${s.indexOf(1)}]` : `elmo_store.ScalarMix(s=[${s.join(", ")}], gamma=${gamma})(states=states)`;
  return [
    about.code,
    `rows = [${lines(rows.map((row) => row.row))}]`,
    `ids = [${lines(rows.map((row) => literal(row.id)))}]`,
    `labels = [${lines(rows.map((row) => literal(row.label)))}]`,
    `groups = [${lines(rows.map((row) => literal(row.group)))}]`,
    "states = store.read(rows=rows)  # [rows, states, channels]",
    `vectors = ${vectors}  # [rows, width]`,
  ].join("\n");
}

export function save(kind, rows, how) {
  const text = { tsv: (chosen) => tsv(COLUMNS, chosen), json: JSON.stringify, py: python }[kind](rows, kind === "py" ? how : undefined);
  const address = URL.createObjectURL(new Blob([text + "\n"], { type: "text/plain" }));
  element("a", { href: address, download: `occurrences.${kind}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
