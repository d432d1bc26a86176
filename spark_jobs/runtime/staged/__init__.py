"""The staged rows of a stage: its private log, which is also the channel to the stages downstream."""
