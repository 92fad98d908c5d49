"""The command line: subcommands, configuration, logs, the terminal, exit codes."""
