"""What only a worker's process has: a task's order, who asks, its time, and the driver that it has in hand."""
