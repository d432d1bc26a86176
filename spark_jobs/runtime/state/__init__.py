"""What a stage remembers: the files of its state in Spark's checkpoint, kept, traced and repartitioned."""
