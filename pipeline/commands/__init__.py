"""One module a subcommand of ``elmo-store``."""
