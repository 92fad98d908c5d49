"""The explorer: a local page that shows a store's sentences, their neighbours in context, and what a mix would do.

neighbours   nearest rows by any mix: exact over a sample, approximate by an index kept beside the store
senses       a word's occurrences in a plane and in clusters
lists        an index that grows on disk
service      what the page asks for, as plain functions
turns        one computation at a time, the newest question first
server       the routes, the token, the headers
static/      the page: HTML, one style sheet, modules; no build
"""
