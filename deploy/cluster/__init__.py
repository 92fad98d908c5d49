"""What the scripts that bring up an engine on this machine share: processes, released artefacts, the workers' boot program."""
