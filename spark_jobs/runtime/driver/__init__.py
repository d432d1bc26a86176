"""The driver as a process: its locks, its log, its heartbeat, and its cancellation."""
