"""What a stage has staged: its private log, which is also the channel to the stages behind it."""
