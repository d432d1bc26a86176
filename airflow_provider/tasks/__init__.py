"""The parts of a task that exist only in a worker's process: its order, its identity, its time limits and its driver."""
