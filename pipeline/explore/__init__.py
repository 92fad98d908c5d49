"""The explorer: a local page that shows a store's sentences, their neighbours in context, and what a mix would do."""
