"""The explorer: a local page that shows a store's sentences, their neighbours in context, and what a mix would do.

neighbours   nearest rows by any mix: exact over a sample
senses       maps of a word's occurrences: a plane and clusters
labels       other groups of them: by a field
search       sentences by their words
service      what the page asks for, as plain functions
server       the routes, the token, the headers
static/      the page: HTML, one style sheet, modules; no build
"""
