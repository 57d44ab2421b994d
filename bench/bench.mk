# Benchmarks: one command per table in the README.
