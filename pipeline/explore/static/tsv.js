// Rows as a table between tabs.

// How a formula begins for spreadsheets, in full-width characters, too. Numbers begin so as well, and lone marks are text.
const FORMULA = /^[=+\-@＝＋－＠]./u;

// Tokens and labels come from anybody: a spreadsheet must not compute one. It takes the apostrophe as the mark of a text.
function cell(value) {
  const text = String(value).replace(/[\t\r\n]/g, " ");
  return FORMULA.test(text) && !Number.isFinite(Number(text)) ? `'${text}` : text;
}

export function tsv(columns, rows) {
  const lines = rows.map((row) => columns.map((name) => cell(row[name])));
  return [columns, ...lines].map((line) => line.join("\t")).join("\n");
}
