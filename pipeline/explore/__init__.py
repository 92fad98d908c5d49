"""The explorer: a local page that shows a store's sentences, their neighbours in context, and what a mix would do.

neighbours   nearest rows by any mix: exact over a sample, approximate by an index kept beside the store
senses       a word's occurrences in a plane and in clusters
words        maps of them, in clusters or by a field or label
labels       labels of sentences or tokens, from a file
umap_plane   another plane, by UMAP, in a process of its own
pairs        two sentences, token by token
search, own  sentences by their words; a sentence of the user's
lists        an index that grows on disk
service      what the page asks for, as plain functions
turns        one computation at a time, the newest question first
server       the routes, the token, the headers
static/      the page: HTML, one style sheet, modules; no build
"""
