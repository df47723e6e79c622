"""What bench/cli.py is made of: machines, the schema of results, checks, comparisons, tables and plots."""
