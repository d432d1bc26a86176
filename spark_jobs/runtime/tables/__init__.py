"""Where rows go: the sinks' tables and the runtime's own, checked before anything is staged."""
