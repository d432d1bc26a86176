"""Where rows come from: sources and static inputs, pinned, and the ends of bounded ones."""
