"""The tests: ``tests/storage``, ``tests/compaction`` and ``tests/harness`` mirror the packages."""
