"""The tables of sinks and the runtime's own tables. They are checked before anything is staged."""
