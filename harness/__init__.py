"""A test-database harness for PostgreSQL."""
