"""The state of a stage: the files of its state in Spark's checkpoint are kept, traced and repartitioned here."""
