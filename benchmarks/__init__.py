"""Speed, measured as ratios to a floor in one run; ``python -m benchmarks`` prints a table and writes JSON."""
