"""The explorer: a local page that shows a store's sentences, their neighbours in context, and what a mix would do.

vectors       a sample of rows in memory, exact neighbours by any mix: pure
ann           an approximate index of all rows, kept beside the store
text_search   sentences by their words, by DuckDB over the parts
own           a sentence of the user's, by the store's own model
service       what the page asks for, as plain functions
server        the routes, the token, the headers
static/       the page: HTML, one style sheet, one module; no build
"""
