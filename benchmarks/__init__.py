"""What a reset costs beside other tools' ways to a pristine database: `python -m benchmarks`."""
