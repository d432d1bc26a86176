"""What a user declares: sources, stages, sinks, parameters. Nothing here imports Spark or writes files."""
