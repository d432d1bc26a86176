"""The driver as a process: its locks, its log, its signs of life, and what ends it from outside."""
